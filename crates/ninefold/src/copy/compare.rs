//! Comparison of two trees: files that the new tree has in addition, lacks, or has in another form.
//!
//! In: two places, each at a server or on this machine; one of them may be absent. Out: a sequence of [`Change`]s,
//! sorted by name, a directory before its content.
//!
//! Always holds: content is read only if kind, length, version and times do not decide. At most [`AHEAD`] directories
//! are read or wait to be reported, and [`READ`] files of each are read at once. No link is followed.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::rc::Rc;

use anyhow::{Result, bail};
use futures_util::future::try_join;
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use nine_io::client::Error;
use nine_proto::Errno;

use super::end::{Dir, Found, Kind, Meta};
use super::progress::Steps;
use super::remote;
use super::sum::Sum;
use crate::dial::{Sessions, why_absent};
use crate::operand::Place;

/// Limit of directories that are being read, or wait until earlier ones are reported.
const AHEAD: usize = 64;
/// Limit of files of one directory that are read at once.
const READ: usize = 8;
/// Limit of nested directories.
const DEEPEST: usize = 1000;

/// A name in a directory, with its attributes.
#[derive(Clone)]
pub struct Side {
    pub dir: Rc<Dir>,
    /// Empty for the directory itself.
    pub name: Vec<u8>,
    pub meta: Meta,
}

impl Side {
    /// Looks up a place of a server. Returns `None` if there is no file.
    pub async fn at(sessions: &Sessions, place: &Place) -> Result<Option<Self>> {
        let root = sessions.root(place).await?;
        let (path, name) = place.split().unwrap_or((&place.path, b""));
        let (dir, name) = (root.walk(path).await, name.to_vec());
        let found = match dir {
            Ok(dir) => {
                let dir = Dir::Remote(remote::Dir::new(dir));
                dir.stat(&name).await.map(|meta| Self { dir: Rc::new(dir), name, meta })
            }
            Err(error) => Err(why_absent(&root, path, error).await.into()),
        };
        match found {
            Ok(side) => Ok(Some(side)),
            Err(error) if is_nowhere(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a file of at most `most` bytes. Returns `None` if it is larger.
    pub async fn text(&self, most: u64) -> Result<Option<Vec<u8>>> {
        let source = self.dir.open(&self.name, &self.meta, 0).await?;
        let (mut reading, mut text) = (source.reading(), Vec::new());
        while let Some(data) = reading.next().await? {
            text.extend_from_slice(&data);
            if text.len() as u64 > most {
                return Ok(None);
            }
        }
        source.ready().await?;
        Ok(Some(text))
    }

    async fn readlink(&self) -> Result<Vec<u8>> {
        self.dir.readlink(&self.name).await
    }
}

/// A difference between the trees.
pub struct Change {
    /// Path from the start of the comparison; empty for the start itself.
    pub path: Vec<u8>,
    pub what: What,
    pub old: Option<Side>,
    pub new: Option<Side>,
    /// The old tree's directory for this name. `None` if it does not exist, or for the start of the comparison.
    pub old_dir: Option<Rc<Dir>>,
}

/// The kind of a difference.
pub enum What {
    Added,
    Removed,
    /// The content of a file, or the target of a link.
    Content,
    /// Only mode, owner or modification time.
    Attributes,
    /// The kind of file.
    Kind,
    /// The file could not be compared.
    Unknown(anyhow::Error),
}

/// Two files to compare.
struct Pair {
    path: Vec<u8>,
    old: Option<Side>,
    new: Option<Side>,
    old_dir: Option<Rc<Dir>>,
    depth: usize,
}

enum Slot {
    Say(Change),
    Look(Pair),
    /// Being compared, under this number.
    Running(u64),
}

type Looking<'a> = Pin<Box<dyn Future<Output = (u64, Result<Vec<Slot>>)> + 'a>>;

/// A running comparison.
pub struct Comparison<'a> {
    how: How<'a>,
    /// Results and pending work, in the order of output.
    slots: VecDeque<Slot>,
    running: FuturesUnordered<Looking<'a>>,
    done: HashMap<u64, Result<Vec<Slot>>>,
    number: u64,
    /// There may be pending work to start.
    stale: bool,
}

#[derive(Clone, Copy)]
struct How<'a> {
    /// Also report the content of directories that only one tree has.
    all: bool,
    steps: &'a Steps,
}

impl<'a> Comparison<'a> {
    /// Starts to compare these two files or trees.
    pub fn new(old: Option<Side>, new: Option<Side>, all: bool, steps: &'a Steps) -> Self {
        let pair = Pair { path: Vec::new(), old, new, old_dir: None, depth: 0 };
        Self {
            how: How { all, steps },
            slots: VecDeque::from([Slot::Look(pair)]),
            running: FuturesUnordered::new(),
            done: HashMap::new(),
            number: 0,
            stale: true,
        }
    }

    /// Returns the next change, or `None` at the end.
    ///
    /// # Errors
    /// The connection to a server is lost. Errors of single names are reported as [`What::Unknown`].
    pub async fn next(&mut self) -> Result<Option<Change>> {
        loop {
            match self.slots.pop_front() {
                None => return Ok(None),
                Some(Slot::Say(change)) => return Ok(Some(change)),
                Some(Slot::Running(number)) => match self.done.remove(&number) {
                    Some(found) => {
                        for slot in found?.into_iter().rev() {
                            self.slots.push_front(slot);
                        }
                        self.stale = true;
                    }
                    None => {
                        self.slots.push_front(Slot::Running(number));
                        self.begin();
                        if let Some((number, found)) = self.running.next().await {
                            self.done.insert(number, found);
                        }
                    }
                },
                Some(Slot::Look(pair)) => {
                    self.look(pair, |slots, slot| slots.push_front(slot));
                    self.stale = true;
                }
            }
        }
    }

    /// Starts pending work in order, up to the limit.
    fn begin(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let mut at = 0;
        while self.running.len() + self.done.len() < AHEAD && at < self.slots.len() {
            if matches!(self.slots[at], Slot::Look(_)) {
                let slot = std::mem::replace(&mut self.slots[at], Slot::Running(0));
                let Slot::Look(pair) = slot else { unreachable!("it is one") };
                self.look(pair, |slots, slot| slots[at] = slot);
            }
            at += 1;
        }
    }

    fn look(&mut self, pair: Pair, put: impl FnOnce(&mut VecDeque<Slot>, Slot)) {
        self.number += 1;
        let (number, how) = (self.number, self.how);
        put(&mut self.slots, Slot::Running(number));
        self.running.push(Box::pin(async move {
            let found = how.pair(pair).await;
            (number, found)
        }));
    }
}

impl How<'_> {
    /// Compares a pair. Returns its changes and the pairs below it.
    async fn pair(self, pair: Pair) -> Result<Vec<Slot>> {
        let Pair { path, old, new, old_dir: into, depth } = pair;
        self.steps.one();
        let is_dir = |side: &Option<Side>| side.as_ref().is_some_and(|side| side.meta.kind == Kind::Dir);
        let (old_dir, new_dir) = (is_dir(&old), is_dir(&new));
        let what = match (&old, &new) {
            (Some(old), Some(new)) => self.judge(old, new).await,
            (None, Some(_)) => Ok(Some(What::Added)),
            (Some(_), None) => Ok(Some(What::Removed)),
            (None, None) => Ok(None),
        };
        let mut slots = Vec::new();
        let what = what.or_else(|error| {
            if crate::fail::is_final(&error) { Err(error) } else { Ok(Some(What::Unknown(error))) }
        })?;
        if let Some(what) = what {
            let (path, old, new) = (path.clone(), old.clone(), new.clone());
            slots.push(Slot::Say(Change { path, what, old, new, old_dir: into }));
        }
        let goes_on = old_dir && new_dir || self.all && (old_dir || new_dir);
        if !goes_on {
            return Ok(slots);
        }
        let listed = async {
            if depth > DEEPEST {
                bail!("it is more than {DEEPEST} directories deep");
            }
            let none = || Ok((None, Vec::new()));
            let of = async |side: &Option<Side>| match side {
                Some(side) if side.meta.kind == Kind::Dir => list(side).await,
                _ => none(),
            };
            try_join(of(&old), of(&new)).await
        };
        match listed.await {
            Ok((old, new)) => slots.extend(self.merge(&path, old, new, depth + 1).await?),
            Err(error) if crate::fail::is_final(&error) => return Err(error),
            Err(error) => {
                slots.push(Slot::Say(Change { path, what: What::Unknown(error), old, new, old_dir: None }));
            }
        }
        Ok(slots)
    }

    /// Compares the content of two directories.
    async fn merge(self, path: &[u8], old: Listed, new: Listed, depth: usize) -> Result<Vec<Slot>> {
        let (mut pairs, mut unknown) = (Vec::new(), Vec::new());
        let (old_dir, new_dir) = (old.0, new.0);
        let (mut old, mut new) = (old.1.into_iter().peekable(), new.1.into_iter().peekable());
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => break,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(a), Some(b)) => a.name.cmp(&b.name),
            };
            let a = old.next_if(|_| order.is_le());
            let b = new.next_if(|_| order.is_ge());
            let name = a.as_ref().or(b.as_ref()).map(|found| found.name.clone()).unwrap_or_default();
            let path = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
            let side = |dir: &Option<Rc<Dir>>, found: Option<Found>| match (dir, found) {
                (Some(dir), Some(Found { name, meta })) => {
                    meta.map(|meta| Some(Side { dir: dir.clone(), name, meta }))
                }
                _ => Ok(None),
            };
            match (side(&old_dir, a), side(&new_dir, b)) {
                (Ok(old), Ok(new)) => {
                    pairs.push(Pair { path, old, new, old_dir: old_dir.clone(), depth });
                }
                (Err(error), _) | (_, Err(error)) => {
                    let what = What::Unknown(error);
                    unknown.push(Slot::Say(Change { path, what, old: None, new: None, old_dir: None }));
                }
            }
        }
        // Directories become slots of their own, because each may be large.
        let is_dir = |side: &Option<Side>| side.as_ref().is_some_and(|side| side.meta.kind == Kind::Dir);
        let look = |pair: Pair| async move {
            if is_dir(&pair.old) || is_dir(&pair.new) {
                return Ok(vec![Slot::Look(pair)]);
            }
            Box::pin(self.pair(pair)).await
        };
        let mut looked = stream::iter(pairs).map(look).buffered(READ);
        while let Some(slots) = looked.next().await {
            unknown.extend(slots?);
        }
        Ok(unknown)
    }

    /// Compares two files. Returns `None` if they are the same.
    async fn judge(self, old: &Side, new: &Side) -> Result<Option<What>> {
        let (a, b) = (&old.meta, &new.meta);
        let dressed = |meta: &Meta| (meta.mode, meta.uid, meta.gid);
        let attributes = || (dressed(a) != dressed(b) || a.mtime != b.mtime).then_some(What::Attributes);
        let is_same = a.state.is_some() && a.state == b.state && (a.size, a.mtime) == (b.size, b.mtime);
        Ok(match (a.kind, b.kind) {
            (a, b) if a != b => Some(What::Kind),
            (Kind::Dir, _) => (dressed(a) != dressed(b)).then_some(What::Attributes),
            (Kind::Special, _) => attributes(),
            _ if is_same => attributes(),
            (Kind::Link, _) => {
                let (old, new) = try_join(old.readlink(), new.readlink()).await?;
                if old == new { attributes() } else { Some(What::Content) }
            }
            // A read of an event file has side effects, so its content is not compared.
            _ if a.is_event || b.is_event => attributes(),
            _ if a.size != b.size => Some(What::Content),
            _ => match self.reads_alike(old, new).await? {
                true => attributes(),
                false => Some(What::Content),
            },
        })
    }

    async fn reads_alike(self, old: &Side, new: &Side) -> Result<bool> {
        let open = |side: &Side| {
            let side = side.clone();
            async move { side.dir.open(&side.name, &side.meta, 0).await }
        };
        let (a, b) = try_join(open(old), open(new)).await?;
        let (mut sum, mut other) = (Sum::new(), Sum::new());
        let read = |n| self.steps.read(n);
        let both = try_join(sum.read(a.reading(), read), other.read(b.reading(), read)).await;
        a.ready().await?;
        b.ready().await?;
        both?;
        Ok(sum.is(other))
    }
}

/// Returns whether an error means that nothing is at a path: also if a file or a link is in the way.
pub fn is_nowhere(error: &anyhow::Error) -> bool {
    let errno = error.downcast_ref::<Error>().map(Error::errno);
    matches!(errno, Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP))
        || error.downcast_ref() == Some(&rustix::io::Errno::NOENT)
}

/// A directory, and its entries.
type Listed = (Option<Rc<Dir>>, Vec<Found>);

async fn list(side: &Side) -> Result<Listed> {
    let dir = Rc::new(side.dir.dir(&side.name).await?);
    let (mut listing, mut all) = (dir.listing().await?, Vec::new());
    while let Some(found) = listing.next().await? {
        all.extend(found);
    }
    all.sort_unstable_by(|a: &Found, b| a.name.cmp(&b.name));
    Ok((Some(dir), all))
}
