//! A mirror: the same sectors on several devices, with labels and marks, so that a member that has missed writes gets
//! them.
//!
//! In: operations, and commands (`return`, `aside`, `resync`, `scrub`). Out: operations of members, and [`Event`]s to
//! the caller. docs/block.md describes what is on the disks, and why a power cut loses nothing.
//!
//! Always holds: a region is durably marked on all active members before any is written there. A write that a member
//! has missed is acknowledged only after a durable event has set that member aside. The first member that is in is
//! right everywhere, and others are read only where they are right.
//!
//! It holds submitted operations until they end, and has no other queue; the submitter bounds their number. A member
//! that never ends an operation holds up the writes and flushes that wait for it: the timeout is the member's.

mod bare;
mod keep;
mod label;
mod lost;
mod open;
mod scrub;
mod state;
mod sure;
mod watch;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

pub use self::bare::Bare;
pub use self::keep::{Pause, Rest};
pub use self::label::{MEMBERS_MOST, Place};
pub use self::open::Start;
pub use self::watch::Watched;

use self::label::{HEAD_SECTORS, LabelEvent, REGIONS_MAX};
use self::state::{MemberCounters, MirrorState, ScrubHeal};
use crate::call::Call;
use crate::device::{Device, Io, Op, Proof, SECTOR, Shape};
use crate::error::{Error, Kind, Result};
use crate::locks::RangeLocks;
use crate::owner::{SectorOwner, ShiftedOwner};
use crate::plain::within;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::task::Tasks;

/// A mirror.
#[derive(Clone)]
pub struct Mirror(Arc<MirrorShared>);

/// The callback for events of a mirror. It must not block.
pub type Told = Arc<dyn Fn(&Event) + Send + Sync>;

/// An event of a member of a mirror.
#[derive(Clone, Debug)]
pub struct Event {
    /// The expression of the member, or of the mirror.
    pub member: String,
    /// The kind of the event.
    pub what: Happening,
}

/// The kind of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happening {
    /// It is out, and returns only on command.
    Aside(Error),
    /// It gets the writes that it has missed.
    Returning,
    /// It is in.
    Back,
    /// It could not return.
    Refused(Error),
    /// Sectors could not be read, and were written again.
    Mended(u64, u64),
    /// Sectors differ from those of other members; the flag says whether they were made equal.
    Differs(u64, u64, bool),
    /// Data that it should get cannot be read anywhere.
    Unreadable(Error),
    /// It has everything but this number of sectors, which no member can read.
    Lacking(u64),
    /// It was made equal to the first member, and this number of differing sectors could not be verified by an owner.
    Unjudged(u64),
    /// It was not set aside as requested.
    Stays(Error),
    /// Its flush has failed, as on all members that are in: unflushed data may be lost.
    Unflushed(Error),
    /// Of the mirror: the scrub has ended; this number of sectors differed.
    Compared(u64),
    /// Everything was copied to it.
    Copied,
    /// Work for the mirror or a member was stopped.
    Stopped(Error),
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
            Happening::Lacking(count) => {
                write!(
                    f,
                    "{name} has everything but {count} sectors that cannot be read: it is in when they are "
                )?;
                f.write_str("written, or no other is")
            }
            Happening::Unjudged(count) => {
                write!(
                    f,
                    "{name}: {count} sectors differed from those of others, and nobody knows which were "
                )?;
                f.write_str("right: they are as on the first member that is in")
            }
            Happening::Stays(why) => write!(f, "{name} is not set aside: {why}"),
            Happening::Unflushed(why) => {
                write!(f, "{name} could not flush, nor could others; what was not flushed may be lost: {why}")
            }
            Happening::Compared(count) => write!(f, "{name} is compared: {count} sectors differ"),
            Happening::Copied => write!(f, "{name} has got everything"),
            Happening::Stopped(why) => write!(f, "{name} is not gone on with: {why}"),
        }
    }
}

struct MirrorShared {
    set: [u8; 16],
    members: Vec<Arc<dyn Device>>,
    state: Arc<Mutex<MirrorState>>,
    /// Ranges of sectors that are written or copied. Overlapping writes wait here for each other.
    ranges: RangeLocks,
    /// Held while marks are written. If several locks are held, they are taken in this order: ranges, marks, labels.
    marks: RangeLocks,
    /// Held while labels are written.
    labels: RangeLocks,
    /// Held by the future of [`Mirror::keep`].
    driver: RangeLocks,
    /// By member: held while it is brought back.
    returns: RangeLocks,
    looks: Mutex<LookQueue>,
    told: Told,
    tasks: Tasks,
}

/// Looks. One look runs at a time, and those that come meanwhile share the next one.
#[derive(Default)]
struct LookQueue {
    waiting: Vec<Io>,
    running: bool,
}

impl MirrorShared {
    fn state(&self) -> MutexGuard<'_, MirrorState> {
        lock(&self.state)
    }

    fn tell(&self, member: usize, what: Happening) {
        (self.told)(&Event { member: self.members[member].name(), what });
    }

    /// Reports an event of the whole mirror.
    fn tell_of_all(&self, what: Happening) {
        (self.told)(&Event { member: self.name(), what });
    }

    fn name(&self) -> String {
        format!("{{{}}}", self.members.iter().map(|member| member.name()).collect::<String>())
    }

    /// Runs an operation on several members. Returns those that have failed, in order.
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
        let (regions, began) = {
            let mut state = self.state();
            let regions = state.regions(io.at, io.end_at());
            state.begin(regions.clone());
            (regions, state.written.begins())
        };
        let mut result = self.sure().await;
        if result.is_ok() {
            result = self.mark(regions.clone()).await;
        }
        if result.is_ok() {
            let active = self.state().active();
            let failed =
                self.each(&active, |member| member.write(HEAD_SECTORS + io.at, io.data.clone())).await;
            self.failed(&failed);
            result = self.settle(failed).await;
            let mut state = self.state();
            for member in active {
                state.members[member].counts.writes += 1;
                if result.is_ok() {
                    state.members[member].has(io.at, io.end_at());
                }
            }
            match result {
                Ok(()) => state.written.wrote(io.at, io.end_at(), began),
                Err(_) => state.doubt(regions.clone()),
            }
        }
        self.state().end(regions);
        drop(held);
        io.end(result.map(|()| Bytes::new()));
    }

    /// Reads from the other members, after the first one has failed or its data did not satisfy the proof. When the
    /// answer is given, members that failed before the right one are repaired or set aside.
    async fn read_again(self: Arc<Self>, io: Io, first: (usize, UnfitAnswer)) {
        let mut failed = vec![first];
        let readable = self.state().readable(io.at, io.end_at());
        for member in readable {
            if failed.iter().any(|(failed, _)| *failed == member) {
                continue;
            }
            if failed[failed.len() - 1].1.stops() {
                break;
            }
            self.state().members[member].counts.reads += 1;
            let read = self.members[member].read_proven(HEAD_SECTORS + io.at, io.count, io.proof.clone());
            let answer = read.await;
            match fit(&io, answer) {
                Ok(data) => {
                    let (at, count, proof) = (io.at, io.count, io.proof.clone());
                    io.end(Ok(data));
                    for (member, unfit) in failed {
                        self.mend(member, at, count, (unfit.into_error(at, count), &proof)).await;
                    }
                    return;
                }
                Err(unfit) => failed.push((member, unfit)),
            }
        }
        io.end(best(failed.into_iter().map(|(_, unfit)| unfit)));
    }

    /// Reads from all members that have these sectors, and repairs those for which the proof does not hold.
    async fn read_everywhere(self: Arc<Self>, io: Io) {
        let (mut right, mut failed) = (None, Vec::new());
        let readable = self.state().readable(io.at, io.end_at());
        for member in readable {
            self.state().members[member].counts.reads += 1;
            let read = self.members[member].read_proven(HEAD_SECTORS + io.at, io.count, io.proof.clone());
            let answer = read.await;
            match fit(&io, answer) {
                Ok(data) => right = right.or(Some(data)),
                Err(unfit) if unfit.stops() => return io.end(best([unfit])),
                Err(unfit) => failed.push((member, unfit)),
            }
        }
        let (at, count, proof) = (io.at, io.count, io.proof.clone());
        match right {
            Some(data) => io.end(Ok(data)),
            None if failed.is_empty() => return io.fail(Kind::Failed, "nobody has it for sure"),
            None => return io.end(best(failed.into_iter().map(|(_, unfit)| unfit))),
        }
        for (member, unfit) in failed {
            self.mend(member, at, count, (unfit.into_error(at, count), &proof)).await;
        }
    }

    /// Repairs sectors of a member that are unreadable or wrong, from another member; or sets the member aside.
    async fn mend(&self, member: usize, at: u64, count: u64, (error, proof): (Error, &Option<Proof>)) {
        self.state().members[member].counts.errors += 1;
        if error.kind != Kind::Failed {
            // No caller waits for this. The last member stays in.
            return drop(self.settle(vec![(member, error)]).await);
        }
        let _held = self.ranges.lock(at, at + count).await;
        let others: Vec<usize> =
            self.state().readable(at, at + count).into_iter().filter(|other| *other != member).collect();
        for other in others {
            self.state().written.copies(Some(other), at, at + count);
            let data = match self.members[other].read_proven(HEAD_SECTORS + at, count, proof.clone()).await {
                Ok(data) if proof.as_ref().is_none_or(|proof| proof.holds(&data)) => data,
                Err(error) if stops(&error) => return self.tell(other, Happening::Stopped(error)),
                // The sectors may have been written again, and be right now.
                _ => continue,
            };
            match self.members[member].write(HEAD_SECTORS + at, data).await {
                Ok(_) => {
                    self.state().members[member].counts.mended += 1;
                    self.tell(member, Happening::Mended(at, count));
                }
                // A write-once member: its other sectors are as good as before.
                Err(error) if error.kind == Kind::ReadOnly => self.tell(member, Happening::Unreadable(error)),
                Err(error) => self.not_written(member, error).await,
            }
            return;
        }
    }

    /// Handles the failure of a write that no caller waits for. If the member is not set aside, that is reported.
    async fn not_written(&self, member: usize, error: Error) {
        let failed = vec![(member, error)];
        self.failed(&failed);
        if let Err(error) = self.settle(failed).await {
            self.tell(member, Happening::Stopped(error));
        }
    }

    /// Reads the right data, for a copy.
    async fn read_right(&self, at: u64, count: u64) -> Result<Bytes> {
        let mut first = None;
        let readable = self.state().readable(at, at + count);
        for member in readable {
            self.state().written.copies(Some(member), at, at + count);
            match self.members[member].read(HEAD_SECTORS + at, count).await {
                Ok(data) => return Ok(data),
                Err(error) if stops(&error) => return Err(error),
                // A member that does not answer says nothing about its sectors.
                Err(error) if error.kind != Kind::Failed => first = Some(error),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| Error::new(Kind::Failed, "nobody has it for sure")))
    }

    /// Reads from a member, or else the right data, sector by sector where necessary; `None` for unreadable sectors.
    async fn read_parts(&self, of: Option<usize>, at: u64, count: u64) -> Result<Vec<Option<Bytes>>> {
        let mut sectors = vec![None; count as usize];
        let mut left = vec![(at, count)];
        while let Some((from, count)) = left.pop() {
            let result = match of {
                Some(member) => self.members[member].read(HEAD_SECTORS + from, count).await,
                None => self.read_right(from, count).await,
            };
            let half = count / 2;
            match result {
                Ok(data) => {
                    for sector in 0..count {
                        let bytes = data.slice((sector * SECTOR) as usize..((sector + 1) * SECTOR) as usize);
                        sectors[(from - at + sector) as usize] = Some(bytes);
                    }
                }
                Err(error) if error.kind != Kind::Failed => return Err(error),
                Err(_) if count == 1 => {}
                Err(_) => left.extend([(from + half, count - half), (from, half)]),
            }
        }
        Ok(sectors)
    }

    async fn flush(self: Arc<Self>, io: Io) {
        let (active, number, lost) = {
            let mut state = self.state();
            (state.active(), state.written.flush_begins(), state.written.lost())
        };
        let failed = self.flush_of(&active).await;
        let mut result = Ok(());
        if !failed.is_empty() || self.state().unflushed() {
            let _held = self.marks.lock(0, 1).await;
            result = self.settle_marked(failed).await;
        }
        let result = {
            let mut state = self.state();
            match result {
                Err(error) if passes(&error) => Err(error),
                // A write during the flush is not covered by it.
                result if lost || state.written.lost() => {
                    let why = result.err().map(|error| format!(": {error}")).unwrap_or_default();
                    let text =
                        format!("a flush has failed, and what was written before is not written again{why}");
                    Err(Error::new(Kind::Poisoned, text).of(self.name()))
                }
                Ok(()) => {
                    state.written.flushed(number);
                    Ok(Bytes::new())
                }
                Err(error) => Err(error),
            }
        };
        io.end(result);
    }

    /// Looks at all members while looks are waiting. If all members have grown, the mirror grows too.
    async fn look(self: Arc<Self>) {
        loop {
            let told = {
                let mut looks = lock(&self.looks);
                looks.running = !looks.waiting.is_empty();
                std::mem::take(&mut looks.waiting)
            };
            if told.is_empty() {
                return;
            }
            let result = self.grow().await;
            told.into_iter().for_each(|io| io.end(result.clone().map(|()| Bytes::new())));
        }
    }

    async fn grow(&self) -> Result<()> {
        let active = self.state().active();
        let mut failed = self.each(&active, |member| member.look()).await;
        let needs = HEAD_SECTORS + self.state().now.sectors;
        for member in &active {
            let sectors = self.members[*member].shape().sectors;
            if sectors < needs && failed.iter().all(|(failed, _)| failed != member) {
                let text = format!("it has {sectors} sectors, and {needs} are needed");
                failed.push((*member, Error::new(Kind::Range, text)));
            }
        }
        self.settle(failed).await?;
        // A member that is out must be able to return, so its last known size counts.
        let sectors = |region: u64| {
            let sizes = self.members.iter().map(|member| member.shape().sectors.saturating_sub(HEAD_SECTORS));
            sizes.min().unwrap_or(0).min(region.saturating_mul(REGIONS_MAX))
        };
        let larger = {
            let state = self.state();
            sectors(state.region) > state.now.sectors
        };
        if !larger {
            return Ok(());
        }
        let _held = self.ranges.lock(0, u64::MAX).await;
        let (regions, sectors) = {
            let mut state = self.state();
            let (old, sectors) = (state.now.sectors, sectors(state.region));
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
            let _marks = self.marks.lock(0, 1).await;
            let _labels = self.labels.lock(0, 1).await;
            result = self.relabel(Vec::new(), |next| next.sectors = sectors).await;
        }
        let mut state = self.state();
        // The members may differ there, as after a failed write; copy from the first.
        state.doubt(regions.clone());
        state.end(regions);
        result
    }
}

/// Why a member's answer is not returned while others may have a better one.
enum UnfitAnswer {
    /// It was read, but the proof does not hold.
    Unproven(Bytes),
    Failed(Error),
}

impl UnfitAnswer {
    /// Returns whether no other member is to be asked.
    fn stops(&self) -> bool {
        matches!(self, Self::Failed(error) if stops(error))
    }

    /// Returns the error for the member's repair.
    fn into_error(self, at: u64, count: u64) -> Error {
        match self {
            Self::Unproven(_) => {
                Error::new(Kind::Failed, format!("sectors {at}+{count} are not what was written"))
            }
            Self::Failed(error) => error,
        }
    }
}

/// Returns the data of a member's answer, if the proof of the read holds.
fn fit(io: &Io, answer: Result<Bytes>) -> std::result::Result<Bytes, UnfitAnswer> {
    match answer {
        Ok(data) if io.proves(&data) => Ok(data),
        Ok(data) => Err(UnfitAnswer::Unproven(data)),
        Err(error) => Err(UnfitAnswer::Failed(error)),
    }
}

/// Returns the answer of a read for which no member satisfies the proof: an error that stops the others, or else the
/// first data that could be read, or else the first error ([`Device::submit`]).
///
/// # Panics
/// If there is no answer at all. That is a bug of the caller.
fn best(answers: impl IntoIterator<Item = UnfitAnswer>) -> Result<Bytes> {
    let (mut bytes, mut first) = (None, None);
    for answer in answers {
        match answer {
            UnfitAnswer::Failed(error) if stops(&error) => return Err(error),
            UnfitAnswer::Unproven(data) => bytes = bytes.or(Some(data)),
            UnfitAnswer::Failed(error) => first = first.or(Some(error)),
        }
    }
    bytes.ok_or_else(|| first.expect("at least one member was asked"))
}

/// Returns whether other members would give the same error, or the error is not the member's.
fn stops(error: &Error) -> bool {
    matches!(error.kind, Kind::Reserved | Kind::Unwritten)
}

/// Returns whether the error is never a reason to set a member aside: the member has done nothing, and may be asked
/// again.
fn passes(error: &Error) -> bool {
    matches!(error.kind, Kind::Reserved | Kind::Busy)
}

impl Device for Mirror {
    fn shape(&self) -> Shape {
        self.0.state().shape
    }

    fn unbacked(&self) -> u64 {
        let active = self.0.state().active();
        active.into_iter().map(|member| self.0.members[member].unbacked()).max().unwrap_or(0)
    }

    fn submit(&self, io: Io) {
        let inner = self.0.clone();
        if let Err(error) = io.judge(&self.shape()) {
            return io.end(Err(error.of(self.name())));
        }
        match io.op {
            Op::Read if io.proof.as_ref().is_some_and(Proof::is_everywhere) => {
                self.0.tasks.spawn(inner.read_everywhere(io));
            }
            Op::Read => {
                let first = {
                    let mut state = inner.state();
                    let first = state.inside()[0];
                    state.members[first].counts.reads += 1;
                    first
                };
                let (at, count, proof) = (HEAD_SECTORS + io.at, io.count, io.proof.clone());
                let member = inner.members[first].clone();
                let read = Io::read(at, count, move |result| match fit(&io, result) {
                    Ok(data) => io.end(Ok(data)),
                    Err(unfit) => {
                        let tasks = inner.tasks.clone();
                        tasks.spawn(inner.read_again(io, (first, unfit)));
                    }
                });
                member.submit(read.with(proof));
            }
            Op::Write if io.count > 0 => self.0.tasks.spawn(inner.write(io)),
            // Discarded sectors may read as anything, and members would differ.
            Op::Write | Op::Discard => io.end(Ok(Bytes::new())),
            Op::Flush => self.0.tasks.spawn(inner.flush(io)),
            Op::Look => {
                let mut looks = lock(&inner.looks);
                looks.waiting.push(io);
                let running = std::mem::replace(&mut looks.running, true);
                drop(looks);
                if !running {
                    self.0.tasks.spawn(inner.look());
                }
            }
        }
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn status(&self) -> String {
        let state = self.0.state();
        let LabelEvent { event, sectors, .. } = state.now;
        let mut text = format!("{} {sectors} sectors, event {event}\n", self.name());
        for (number, (device, member)) in self.0.members.iter().zip(&state.members).enumerate() {
            let place = match state.place(number) {
                Place::In if member.left() == 0 => "in".into(),
                Place::In => format!("in, {} regions to make equal", member.left()),
                Place::Returning => {
                    let lacks = match member.lacks.len() {
                        0 => String::new(),
                        lacks => format!(", lacks {lacks} sectors that cannot be read"),
                    };
                    format!("returning, {} regions of {} left{lacks}", member.left(), member.todo.len())
                }
                Place::Out => match &member.why {
                    Some(why) => format!("out: {why}"),
                    None => "out".into(),
                },
            };
            let MemberCounters {
                reads,
                writes,
                errors,
                mended,
                writes_failed,
                flushes_failed,
                copied,
                unjudged,
            } = &member.counts;
            text += &format!("  {number} {place}; {errors} reads failed, {mended} mended; ");
            text += &format!("{reads} reads, {writes} writes, {writes_failed} failed, ");
            text += &format!("{flushes_failed} flushes failed, {copied} sectors copied");
            text += &match unjudged {
                0 => "\n".to_owned(),
                unjudged => format!(", {unjudged} sectors unjudged\n"),
            };
            text += &within(&within(&device.status()));
        }
        if state.written.lost() {
            text += "  a flush has failed, and what was written before is not written again\n";
        }
        if let Some(scrub) = &state.scrub {
            text += &format!("  scrub at sector {}, {} sectors differ\n", scrub.at, scrub.differ);
        }
        if let Some(resync) = &state.resync {
            text += &format!("  resync full of {:?} at region {}\n", resync.members, resync.next);
        }
        if let Some(speed) = state.speed {
            text += &format!("  speed {speed}\n");
        }
        text
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        for member in &self.0.members {
            // A member may contain mirrors too.
            member.owned_by(Arc::new(ShiftedOwner {
                owner: owner.clone(),
                below: HEAD_SECTORS..u64::MAX,
                here: 0,
            }));
        }
        let mut state = self.0.state();
        state.waits_for_owner = false;
        state.owners.push(owner);
    }

    fn trouble(&self) -> Vec<String> {
        let mut all = Vec::new();
        {
            let state = self.0.state();
            for (number, member) in state.members.iter().enumerate() {
                let name = self.0.members[number].name();
                match (state.place(number), &member.why) {
                    (Place::In, _) => {}
                    (Place::Returning, _) => {
                        all.push(format!("member {number} of a mirror is being copied: {name}"))
                    }
                    (Place::Out, Some(why)) => {
                        all.push(format!("member {number} of a mirror is out: {name}: {why}"))
                    }
                    (Place::Out, None) => all.push(format!("member {number} of a mirror is out: {name}")),
                }
            }
            if state.written.lost() {
                all.push(format!(
                    "{}: a flush has failed, and its writes are not repeated yet",
                    self.0.name()
                ));
            }
        }
        all.extend(self.0.members.iter().flat_map(|member| member.trouble()));
        all
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        let known = "return N, return N new, aside N, resync full, resync full N, scrub, scrub heal, scrub heal first, \
                     stop, speed N, N WORDS";
        let wrong = || {
            let text = format!("{}: no `{}`; it knows {known}", self.name(), words.join(" "));
            Error::new(Kind::Unsupported, text)
        };
        let member = |word: &str| {
            let number = word.parse::<usize>().ok();
            number.filter(|number| *number < self.0.members.len()).ok_or_else(wrong)
        };
        let (this, tasks) = (self.clone(), &self.0.tasks);
        // Failures of these commands are reported as events.
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
            ["resync", "full"] => {
                self.0.nothing_runs()?;
                tasks.spawn(async move { drop(this.resync_full(None).await) });
            }
            ["resync", "full", one] => {
                let one = member(one)?;
                self.0.nothing_runs()?;
                tasks.spawn(async move { drop(this.resync_full(Some(one)).await) });
            }
            ["scrub"] => self.0.begin_scrub(ScrubHeal::No)?,
            ["scrub", "heal"] => self.0.begin_scrub(ScrubHeal::Most)?,
            ["scrub", "heal", "first"] => self.0.begin_scrub(ScrubHeal::First)?,
            ["stop"] => {
                let mut state = self.0.state();
                if state.scrub.take().is_none() & state.resync.take().is_none() {
                    return Err(Error::new(Kind::Unsupported, "nothing runs").of(self.0.name()));
                }
            }
            ["speed", speed] => self.0.state().speed = Some(speed.parse().map_err(|_| wrong())?),
            [one, ref rest @ ..] => return self.0.members[member(one)?].control(rest),
            [] => return Err(wrong()),
        }
        Ok(())
    }
}
