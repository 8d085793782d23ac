//! The same sectors on several devices, with labels and marks, so that a member that missed something gets it.
//!
//! In: operations, and words (`return`, `aside`, `resync`, `scrub`). Out: operations of members, and [`Event`]s to
//! whoever runs it. What it keeps on disks, and why nothing is lost by a cut: docs/block.md.
//!
//! Always holds: a region is marked, durably, on all members that are written before any is written there; a write that
//! a member has not done is acknowledged after that member is out by a durable event; the first member that is in is
//! right everywhere, and others are read only where they are.
//!
//! It keeps what was submitted until it has ended, and no queue beside: who submits has a limit. A member that never
//! ends an operation holds up the writes and flushes that wait for it: patience is the member's.

mod bare;
mod keep;
mod label;
mod open;
mod state;
mod sure;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

pub use self::bare::Bare;
pub use self::keep::{Pause, Rest};
pub use self::label::{MEMBERS_MOST, Place};
pub use self::open::Start;

use self::label::{HEAD, Now, REGIONS_MOST};
use self::state::{Scrub, State};
use crate::call::Call;
use crate::device::{Device, Io, Op, Shape};
use crate::error::{Error, Kind, Result};
use crate::locks::Locks;
use crate::plain::within;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::task::Tasks;

/// A mirror.
#[derive(Clone)]
pub struct Mirror(Arc<Inner>);

/// Whoever is told what happens to a mirror. It must not wait.
pub type Told = Arc<dyn Fn(&Event) + Send + Sync>;

/// What happens to a member of a mirror.
#[derive(Clone, Debug)]
pub struct Event {
    /// The member, as it is in the expression.
    pub member: String,
    /// What.
    pub what: Happening,
}

/// What happens to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happening {
    /// It is out, and has to be told to return.
    Aside(Error),
    /// It gets what it missed.
    Returning,
    /// It is in.
    Back,
    /// It could not return.
    Refused(Error),
    /// Sectors could not be read, and were written again.
    Mended(u64, u64),
    /// Sectors are not the same as those of others; they were made the same, or not.
    Differs(u64, u64, bool),
    /// What it should get cannot be read anywhere.
    Unreadable(Error),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.member;
        match &self.what {
            Happening::Aside(why) => write!(f, "{name} is set aside: {why}"),
            Happening::Returning => write!(f, "{name} gets what it missed"),
            Happening::Back => write!(f, "{name} is in"),
            Happening::Refused(why) => write!(f, "{name} cannot return: {why}"),
            Happening::Mended(at, count) => write!(f, "{name}: sectors {at}+{count} were written again"),
            Happening::Differs(at, count, healed) => {
                let healed = if *healed { ", and are healed" } else { "" };
                write!(f, "{name}: sectors {at}+{count} differ{healed}")
            }
            Happening::Unreadable(why) => write!(f, "{name} lacks what cannot be read: {why}"),
        }
    }
}

struct Inner {
    set: [u8; 16],
    members: Vec<Arc<dyn Device>>,
    state: Mutex<State>,
    /// Sectors that are written or copied. Writes wait here for those before them that overlap.
    ranges: Locks,
    /// Held by who writes marks. Whoever holds two has taken them in this order: ranges, marks, labels.
    marks: Locks,
    /// Held by who writes labels.
    labels: Locks,
    /// Held by who drives it.
    driver: Locks,
    told: Told,
    tasks: Tasks,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn tell(&self, member: usize, what: Happening) {
        (self.told)(&Event { member: self.members[member].name(), what });
    }

    /// The same of several members; whose failed, in their order.
    async fn each(&self, of: &[usize], begin: impl Fn(&dyn Device) -> Call) -> Vec<(usize, Error)> {
        let calls: Vec<(usize, Call)> =
            of.iter().map(|member| (*member, begin(&*self.members[*member]))).collect();
        let mut failed = Vec::new();
        for (member, call) in calls {
            if let Err(error) = call.await {
                failed.push((member, error));
            }
        }
        failed
    }

    async fn write(self: Arc<Self>, io: Io) {
        let held = self.ranges.lock(io.at, io.end_at()).await;
        let regions = {
            let mut state = self.state();
            let regions = state.regions(io.at, io.end_at());
            state.begin(regions.clone());
            regions
        };
        let mut result = self.sure().await;
        if result.is_ok() {
            result = self.mark(regions.clone()).await;
        }
        if result.is_ok() {
            let active = self.state().active();
            let failed = self.each(&active, |member| member.write(HEAD + io.at, io.data.clone())).await;
            result = self.settle(failed).await;
            if result.is_err() {
                self.state().doubt(regions.clone());
            }
        }
        self.state().end(regions);
        drop(held);
        io.end(result.map(|()| Bytes::new()));
    }

    /// Reads from the first that can; who failed before is mended, or set aside, when the answer is given.
    async fn read_again(self: Arc<Self>, io: Io, first: (usize, Error)) {
        let mut failed = vec![first];
        let readable = self.state().readable(io.at, io.end_at());
        for member in readable {
            if failed.iter().any(|(failed, _)| *failed == member) {
                continue;
            }
            if stops(&failed[failed.len() - 1].1) {
                break;
            }
            match self.members[member].read(HEAD + io.at, io.count).await {
                Ok(data) => {
                    let (at, count) = (io.at, io.count);
                    io.end(Ok(data));
                    for (member, error) in failed {
                        self.mend(member, at, count, error).await;
                    }
                    return;
                }
                Err(error) => failed.push((member, error)),
            }
        }
        let stop = failed.iter().position(|(_, error)| stops(error)).unwrap_or(0);
        io.end(Err(failed.swap_remove(stop).1));
    }

    /// Sectors of a member could not be read: they are written again from another, or it is set aside.
    async fn mend(&self, member: usize, at: u64, count: u64, error: Error) {
        self.state().members[member].errors += 1;
        if error.kind != Kind::Failed {
            let _ = self.settle(vec![(member, error)]).await;
            return;
        }
        let _held = self.ranges.lock(at, at + count).await;
        let others: Vec<usize> =
            self.state().readable(at, at + count).into_iter().filter(|other| *other != member).collect();
        for other in others {
            let Ok(data) = self.members[other].read(HEAD + at, count).await else { continue };
            match self.members[member].write(HEAD + at, data).await {
                Ok(_) => {
                    self.state().members[member].mended += 1;
                    self.tell(member, Happening::Mended(at, count));
                }
                // Nobody waits for it: who is the last stays in.
                Err(error) => drop(self.settle(vec![(member, error)]).await),
            }
            return;
        }
    }

    /// Reads what is right, for a copy.
    async fn read_right(&self, at: u64, count: u64) -> Result<Bytes> {
        let mut first = None;
        let readable = self.state().readable(at, at + count);
        for member in readable {
            match self.members[member].read(HEAD + at, count).await {
                Ok(data) => return Ok(data),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| Error::new(Kind::Failed, "no member is in")))
    }

    async fn flush(self: Arc<Self>, io: Io) {
        let active = self.state().active();
        let failed = self.each(&active, |member| member.flush()).await;
        io.end(self.settle(failed).await.map(|()| Bytes::new()));
    }

    /// Looks at all members; when all have become larger, so has the mirror.
    async fn look(self: Arc<Self>, io: Io) {
        let _held = self.ranges.lock(0, u64::MAX).await;
        io.end(self.grow().await.map(|()| Bytes::new()));
    }

    async fn grow(&self) -> Result<()> {
        let active = self.state().active();
        let mut failed = self.each(&active, |member| member.look()).await;
        let old = self.state().now.sectors;
        for member in &active {
            let sectors = self.members[*member].shape().sectors;
            if sectors < HEAD + old && failed.iter().all(|(failed, _)| failed != member) {
                let text = format!("it has {sectors} sectors, and {} are needed", HEAD + old);
                failed.push((*member, Error::new(Kind::Range, text)));
            }
        }
        self.settle(failed).await?;
        let (regions, sectors) = {
            let mut state = self.state();
            let sizes = state.active().into_iter().map(|member| self.members[member].shape().sectors - HEAD);
            let sectors = sizes.min().unwrap_or(0).min(state.region.saturating_mul(REGIONS_MOST));
            if sectors <= old {
                return Ok(());
            }
            let regions = old / state.region..sectors.div_ceil(state.region);
            state.resize(regions.end);
            state.begin(regions.clone());
            (regions, sectors)
        };
        let mut result = self.mark(regions.clone()).await;
        if result.is_ok() {
            let _held = self.labels.lock(0, 1).await;
            result = self.relabel(Vec::new(), |next| next.sectors = sectors).await;
        }
        let mut state = self.state();
        // Nobody has made members equal there: as if a write had failed, on all that are not the first.
        state.doubt(regions.clone());
        state.end(regions);
        result
    }
}

/// An error that another member would give too, or that is not the member's.
fn stops(error: &Error) -> bool {
    matches!(error.kind, Kind::Reserved | Kind::Unwritten)
}

impl Device for Mirror {
    fn shape(&self) -> Shape {
        self.0.state().shape
    }

    fn submit(&self, io: Io) {
        let inner = self.0.clone();
        if let Err(error) = io.judge(&self.shape()) {
            return io.end(Err(error.of(self.name())));
        }
        match io.op {
            Op::Read => {
                let first = inner.state().readable(io.at, io.end_at())[0];
                let (at, count) = (HEAD + io.at, io.count);
                let member = inner.members[first].clone();
                member.submit(Io::read(at, count, move |result| match result {
                    Ok(data) => io.end(Ok(data)),
                    Err(error) => {
                        let tasks = inner.tasks.clone();
                        tasks.spawn(inner.read_again(io, (first, error)));
                    }
                }));
            }
            Op::Write if io.count > 0 => self.0.tasks.spawn(inner.write(io)),
            // Discarded sectors may be read as anything, and members would differ.
            Op::Write | Op::Discard => io.end(Ok(Bytes::new())),
            Op::Flush => self.0.tasks.spawn(inner.flush(io)),
            Op::Look => self.0.tasks.spawn(inner.look(io)),
        }
    }

    fn name(&self) -> String {
        format!("{{{}}}", self.0.members.iter().map(|member| member.name()).collect::<String>())
    }

    fn status(&self) -> String {
        let state = self.0.state();
        let Now { event, sectors, .. } = state.now;
        let mut text = format!("{} {sectors} sectors, event {event}\n", self.name());
        for (number, (device, member)) in self.0.members.iter().zip(&state.members).enumerate() {
            let place = match state.place(number) {
                Place::In if member.left() == 0 => "in".into(),
                Place::In => format!("in, {} regions to make equal", member.left()),
                Place::Returning => {
                    format!("returning, {} regions of {} left", member.left(), member.todo.len())
                }
                Place::Out => match &member.why {
                    Some(why) => format!("out: {why}"),
                    None => "out".into(),
                },
            };
            text +=
                &format!("  {number} {place}; {} reads failed, {} mended\n", member.errors, member.mended);
            text += &within(&within(&device.status()));
        }
        if let Some(scrub) = &state.scrub {
            text += &format!("  scrub at sector {}, {} pieces differ\n", scrub.at, scrub.differ);
        }
        text
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        let known = "return N, return N new, aside N, resync full, resync full N, scrub, scrub heal, N WORDS";
        let wrong = || {
            let text = format!("{}: no `{}`; it knows {known}", self.name(), words.join(" "));
            Error::new(Kind::Unsupported, text)
        };
        let member = |word: &str| {
            let number = word.parse::<usize>().ok();
            number.filter(|number| *number < self.0.members.len()).ok_or_else(wrong)
        };
        let (this, tasks) = (self.clone(), &self.0.tasks);
        match *words {
            ["return", one] => {
                let one = member(one)?;
                tasks.spawn(async move { drop(this.bring_back(one, false).await) });
            }
            ["return", one, "new"] => {
                let one = member(one)?;
                tasks.spawn(async move { drop(this.bring_back(one, true).await) });
            }
            ["aside", one] => {
                let one = member(one)?;
                tasks.spawn(async move { drop(this.set_aside(one).await) });
            }
            ["resync", "full"] => tasks.spawn(async move { drop(this.resync_full(None).await) }),
            ["resync", "full", one] => {
                let one = member(one)?;
                tasks.spawn(async move { drop(this.resync_full(Some(one)).await) });
            }
            ["scrub"] => self.0.state().scrub = Some(Scrub { heal: false, at: 0, differ: 0 }),
            ["scrub", "heal"] => self.0.state().scrub = Some(Scrub { heal: true, at: 0, differ: 0 }),
            [one, ref rest @ ..] => return self.0.members[member(one)?].control(rest),
            [] => return Err(wrong()),
        }
        Ok(())
    }
}
