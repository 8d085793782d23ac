//! Builds devices from a tree, by a table of letters.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use super::absent::{AbsentDevice, OpenAttempt};
use super::buffer::BufferedDevice;
use super::{Arg, DEPTH_MOST, OLD, Tree, What, Wrong, parse};
use crate::device::Device;
use crate::error::{Error, Kind, Result};
use crate::join::{Concat, Interleave};
use crate::mirror::{Bare, Mirror, Pause, Place, Rest, Start, Told, Watched};
use crate::part::Part;
use crate::plain::{Nothing, ReadOnly};
use crate::ram::Ram;
use crate::sync::{Mutex, lock};
use crate::worm::FakeWorm;

/// A device that is being opened.
pub type Making = Pin<Box<dyn Future<Output = Result<Arc<dyn Device>>> + Send>>;

/// Opens the device of a letter.
type LetterOpener = Arc<dyn Fn(&Arg) -> Making + Send + Sync>;
/// Opens a device made of others.
type CompositeOpener = Arc<dyn Fn(Vec<Arc<dyn Device>>) -> Making + Send + Sync>;

/// The devices of letters and words. It begins with `n` and `ram`; the program adds the others.
#[derive(Clone)]
pub struct Table {
    open: BTreeMap<String, LetterOpener>,
    over: BTreeMap<String, CompositeOpener>,
}

/// The options for building the devices of an expression.
#[derive(Clone)]
pub struct How {
    /// Sectors of a block for `p`, `[ ]`, `buffer` and a new `f`.
    pub block: u32,
    /// The conditions under which mirrors start.
    pub start: Start,
    /// Write nothing: another program may be using the devices.
    pub watch: bool,
    /// Create mirrors and fake worms before opening them; the value identifies the set of the mirror. If there are
    /// several mirrors, the last byte counts their sets.
    pub make: Option<[u8; 16]>,
    /// The callback for events of mirrors.
    pub told: Told,
    /// Pauses of the background work of mirrors and buffers.
    pub rest: Rest,
    /// The caller will call [`Device::owned_by`]; mirrors copy nothing before that.
    pub owned: bool,
    /// Receives each opened mirror, for an orderly shutdown.
    pub mirrors: OpenMirrors,
}

/// The open mirrors of expressions. Clones share them.
#[derive(Clone, Default)]
pub struct OpenMirrors(Arc<Mutex<Vec<Mirror>>>);

impl OpenMirrors {
    /// Closes all mirrors ([`Mirror::close`]), and forgets them. Call it after the last write to them.
    pub async fn close(&self) {
        for mirror in self.take() {
            mirror.close().await;
        }
    }

    /// Forgets all mirrors and so their members, without closing them.
    pub fn abort(&self) {
        drop(self.take());
    }

    fn add(&self, mirror: Mirror) {
        lock(&self.0).push(mirror);
    }

    fn take(&self) -> Vec<Mirror> {
        std::mem::take(&mut *lock(&self.0))
    }
}

/// Background work of a device, for the program to run. It does not end.
pub type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The devices of an expression.
pub struct Built {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The background work. Without it nothing is copied to a returning member ([`Mirror::keep`]), no missing member is
    /// opened again, and a buffer writes only when it is flushed or full.
    pub drivers: Vec<Driver>,
}

impl Default for Table {
    fn default() -> Self {
        let mut table = Self { open: BTreeMap::new(), over: BTreeMap::new() };
        table.letter("n", |_| Box::pin(async { Ok(Arc::new(Nothing) as Arc<dyn Device>) }));
        table.letter("ram", |arg| {
            let sectors = match arg {
                Arg::Numbers(numbers) if numbers.len() == 1 => Some(numbers[0]),
                _ => None,
            };
            Box::pin(async move {
                let text = "a number of sectors is expected";
                let sectors = sectors.ok_or_else(|| Error::new(Kind::Unsupported, text))?;
                Ok(Arc::new(Ram::new(sectors)) as Arc<dyn Device>)
            })
        });
        table
    }
}

impl Table {
    /// Adds the device of a letter or word. Opening it may wait for a network.
    ///
    /// # Panics
    /// If a word begins with a letter that can precede another device. That is a bug of the caller.
    pub fn letter(&mut self, name: &str, open: impl Fn(&Arg) -> Making + Send + Sync + 'static) {
        assert!(name.len() == 1 || !name.starts_with(|c| OLD.contains(c)), "`{name}` cannot be a word");
        self.open.insert(name.into(), Arc::new(open));
    }

    /// Sets the device that `c`, `j` or `x` makes from the devices behind it.
    pub fn over(
        &mut self,
        name: &str,
        make: impl Fn(Vec<Arc<dyn Device>>) -> Making + Send + Sync + 'static,
    ) {
        self.over.insert(name.into(), Arc::new(make));
    }

    /// Parses an expression with the words of this table.
    pub fn parse(&self, text: &str) -> std::result::Result<Tree, Wrong> {
        let words: Vec<&str> = self.open.keys().map(String::as_str).filter(|name| name.len() > 1).collect();
        parse(text, &words)
    }

    /// Builds the devices of an expression.
    ///
    /// # Errors
    /// The first device that cannot be opened, and its position. A missing member of a mirror is not an error: the
    /// mirror decides whether to start without it, and it is opened again when the mirror looks at it.
    pub async fn build(&self, text: &str, how: &How) -> std::result::Result<Built, Wrong> {
        let tree = self.parse(text)?;
        self.make(&tree, &text.into(), how).await.map_err(|failed| failed.wrong)
    }

    async fn make(
        &self,
        tree: &Tree,
        text: &Arc<str>,
        how: &How,
    ) -> std::result::Result<Built, FailedDevice> {
        let mut build = ExpressionBuild { table: self, how: how.clone(), text, drivers: Vec::new() };
        let device = build.device(tree, DEPTH_MOST).await?;
        Ok(Built { device, drivers: build.drivers })
    }

    fn known(&self) -> String {
        let known: Vec<&str> = self.open.keys().map(String::as_str).collect();
        known.join(", ")
    }
}

struct ExpressionBuild<'a> {
    table: &'a Table,
    how: How,
    text: &'a Arc<str>,
    drivers: Vec<Driver>,
}

/// The error of a member that is not waited for.
const LATE: &str = "it was set aside before, and has not answered yet";

/// A device that could not be opened.
struct FailedDevice {
    wrong: Wrong,
    kind: Kind,
}

/// The future of one device of a tree.
type DeviceFuture<'a> =
    Pin<Box<dyn Future<Output = std::result::Result<Arc<dyn Device>, FailedDevice>> + Send + 'a>>;

impl ExpressionBuild<'_> {
    fn device<'a>(&'a mut self, tree: &'a Tree, depth: usize) -> DeviceFuture<'a> {
        assert!(depth > 0, "a tree that was not parsed");
        Box::pin(async move {
            let result = match &tree.what {
                What::Leaf(name, arg) => match self.table.open.get(name) {
                    Some(open) if self.how.watch => open(arg).await.map(ReadOnly::new).map(arc),
                    Some(open) => open(arg).await,
                    None => {
                        let text =
                            format!("no device `{name}` is known here; these are: {}", self.table.known());
                        Err(Error::new(Kind::Unsupported, text))
                    }
                },
                What::Part(of, base, size) => {
                    let of = self.device(of, depth - 1).await?;
                    Part::numbered(of, *base, *size, self.how.block.into()).map(arc)
                }
                What::Named(of, name) => {
                    let of = self.device(of, depth - 1).await?;
                    Part::named(of, name).await.map(arc)
                }
                What::Of("{", of) => {
                    let members = self.members(of, depth - 1).await?;
                    self.mirror(members).await
                }
                What::Buffer(_, of) if self.how.watch => return self.device(of, depth - 1).await,
                What::Buffer(bytes, of) => {
                    let of = self.device(of, depth - 1).await?;
                    let (name, rest) = (tree.to_string(), self.how.rest.clone());
                    BufferedDevice::new(of, name, *bytes, self.how.block, rest).map(|(buffer, driver)| {
                        self.drivers.push(driver);
                        arc(buffer)
                    })
                }
                What::Of(name, of) => {
                    let mut made = Vec::new();
                    for tree in of {
                        made.push(self.device(tree, depth - 1).await?);
                    }
                    self.over(name, made).await
                }
            };
            result.map_err(|error| {
                let (kind, text) = (error.kind, error.to_string());
                FailedDevice { wrong: Wrong { expr: self.text.clone(), at: tree.at, text }, kind }
            })
        })
    }

    /// Opens the members of a mirror: concurrently, but one after the other if they are created, because their sets are
    /// numbered. A member that the newest label calls out is not waited for long when all others are there.
    async fn members(
        &mut self,
        of: &[Tree],
        depth: usize,
    ) -> std::result::Result<Vec<Arc<dyn Device>>, FailedDevice> {
        let mut opened: Vec<Option<std::result::Result<Arc<dyn Device>, FailedDevice>>> = Vec::new();
        if self.how.make.is_some() {
            for tree in of {
                opened.push(Some(self.device(tree, depth).await));
            }
        } else {
            opened = self.open_all(of, depth).await;
        }
        let mut members = Vec::new();
        for (tree, opened) in of.iter().zip(opened) {
            let late = || FailedDevice { wrong: self.wrong(tree, LATE), kind: Kind::Down };
            members.push(match opened.unwrap_or_else(|| Err(late())) {
                Ok(device) => device,
                Err(failed) if self.may_lack(tree, &failed) => self.absent(tree, failed),
                Err(failed) => return Err(failed),
            });
        }
        Ok(members)
    }

    /// Opens all members. `None` for a member that was set aside before and has not answered.
    async fn open_all(
        &mut self,
        of: &[Tree],
        depth: usize,
    ) -> Vec<Option<std::result::Result<Arc<dyn Device>, FailedDevice>>> {
        let opens = of.iter().map(|tree| {
            let mut build = ExpressionBuild {
                table: self.table,
                how: self.how.clone(),
                text: self.text,
                drivers: Vec::new(),
            };
            Box::pin(async move {
                let device = build.device(tree, depth).await;
                let label = match &device {
                    Ok(device) => Mirror::places(&**device).await,
                    Err(_) => None,
                };
                (device, build.drivers, label)
            })
        });
        let mut opens: Vec<_> = opens.map(Some).collect();
        let mut opened: Vec<Option<_>> = opens.iter().map(|_| None).collect();
        // The newest event, and the states of the members in its label.
        let mut newest = (0, Vec::new());
        let (mut late, rest) = (None, self.how.rest.clone());
        let drivers = &mut self.drivers;
        poll_fn(|cx| {
            for (open, place) in opens.iter_mut().zip(&mut opened) {
                let Some(Poll::Ready((device, more, label))) =
                    open.as_mut().map(|open| open.as_mut().poll(cx))
                else {
                    continue;
                };
                (*open, *place) = (None, Some(device));
                drivers.extend(more);
                newest = label.into_iter().fold(std::mem::take(&mut newest), |was, is| match is.0 > was.0 {
                    true => is,
                    false => was,
                });
            }
            let mut waits = opens.iter().enumerate().filter(|(_, open)| open.is_some()).peekable();
            if waits.peek().is_none() {
                return Poll::Ready(());
            }
            let is_out = |(member, _): (usize, _)| newest.1.get(member) == Some(&Place::Out);
            match waits.all(is_out) {
                true => late.get_or_insert_with(|| rest(Pause::Late)).as_mut().poll(cx),
                false => Poll::Pending,
            }
        })
        .await;
        opened
    }

    fn wrong(&self, tree: &Tree, text: &str) -> Wrong {
        Wrong { expr: self.text.clone(), at: tree.at, text: text.into() }
    }

    async fn mirror(&mut self, members: Vec<Arc<dyn Device>>) -> Result<Arc<dyn Device>> {
        if self.how.watch {
            return Watched::open(members).await.map(arc);
        }
        if let Some(set) = &mut self.how.make {
            Mirror::make(&members, *set).await?;
            set[15] = set[15].wrapping_add(1);
        }
        let mirror = Mirror::open(members, self.how.start, self.how.told.clone()).await?;
        if self.how.owned {
            mirror.wait_for_owner();
        }
        self.drivers.push(Box::pin(mirror.clone().keep(self.how.rest.clone())));
        self.how.mirrors.add(mirror.clone());
        Ok(arc(mirror))
    }

    async fn over(&mut self, name: &str, mut of: Vec<Arc<dyn Device>>) -> Result<Arc<dyn Device>> {
        match name {
            "(" => Concat::new(of).map(arc),
            "[" => Interleave::new(of, self.how.block).map(arc),
            "bare" => Ok(arc(Bare::new(of))),
            "ro" => Ok(arc(ReadOnly::new(of.remove(0)))),
            "f" => {
                let of = of.remove(0);
                if self.how.watch {
                    return FakeWorm::watch(of).await.map(arc);
                }
                match self.how.make {
                    Some(_) => FakeWorm::make(of, self.how.block).await.map(arc),
                    None => FakeWorm::open(of).await.map(arc),
                }
            }
            name => match (self.table.over.get(name), name) {
                (Some(over), _) => over(of).await,
                (None, "x") => {
                    let text = "`x` exchanged bytes for machines of another order; our disks have one order";
                    Err(Error::new(Kind::Unsupported, text))
                }
                (None, _) => {
                    Err(Error::new(Kind::Unsupported, format!("nobody here makes `{name}` of devices")))
                }
            },
        }
    }

    /// Returns whether a mirror may start without this member. It may not if the mirror is being created, another owner
    /// has reserved the member, or its expression is not understood.
    fn may_lack(&self, tree: &Tree, failed: &FailedDevice) -> bool {
        self.how.make.is_none()
            && !matches!(failed.kind, Kind::Reserved | Kind::Unsupported)
            && self.is_understood(tree)
    }

    /// Returns whether all letters of the expression are known.
    fn is_understood(&self, tree: &Tree) -> bool {
        match &tree.what {
            What::Leaf(name, _) => self.table.open.contains_key(name),
            What::Part(of, ..) | What::Named(of, _) | What::Buffer(_, of) => self.is_understood(of),
            What::Of(_, of) => of.iter().all(|tree| self.is_understood(tree)),
        }
    }

    /// Returns a placeholder for a member that is not there.
    fn absent(&mut self, tree: &Tree, failed: FailedDevice) -> Arc<dyn Device> {
        let opened = (self.table.clone(), self.how.clone(), self.text.clone(), tree.clone());
        let open = move || -> OpenAttempt {
            let (table, how, text, tree) = opened.clone();
            Box::pin(async move {
                let made = table.make(&tree, &text, &how).await;
                made.map_err(|FailedDevice { wrong, kind }| Error::new(kind, wrong.text))
            })
        };
        let why = Error::new(failed.kind, failed.wrong.text);
        let (absent, driver) = AbsentDevice::new(tree.to_string(), why, open);
        self.drivers.push(driver);
        arc(absent)
    }
}

fn arc(device: impl Device) -> Arc<dyn Device> {
    Arc::new(device)
}
