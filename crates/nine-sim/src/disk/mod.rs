//! A simulated disk in memory, with power cuts and other faults, from a seed.
//!
//! In: operations ([`Device`]), steps, power cuts. Out: the answers of a disk with a volatile cache, in any order that
//! [`Device`] allows, and the data left on it. Disks of one [`Power`] lose power together. Always holds, as long as no
//! [`Fault`] is injected:
//! - a read sees all writes that had completed when it was submitted;
//! - after a cut, each write is present that had completed when a successful flush was submitted, or a newer one;
//! - a sector is written whole or not at all;
//! - handles from before a cut or a [`Disk::reopen`] cannot change the disk any more.

mod image;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::future::{Future, poll_fn};
use std::ops::{AddAssign, Range};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nine_block::{Device, Io, Kind, Op, SECTOR, Shape};

pub use image::Image;
use state::{Entry, Inner, Setting, State, What};

use crate::rng::Rng;

/// Maximum number of log entries.
const LOG: usize = 256;

/// A power supply with its disks. Clones share it.
#[derive(Clone)]
pub struct Power(Arc<Mutex<State>>);

/// A handle of a disk. Clones share its life: [`Disk::reopen`] or a cut ends it for all of them.
#[derive(Clone)]
pub struct Disk {
    power: Power,
    index: usize,
    life: u64,
}

/// An injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// A sector that is read becomes unreadable until it is written again.
    Read,
    /// A write fails. Any of its sectors may be written.
    Write,
    /// A flush fails, and unflushed writes may be lost although later flushes succeed, as on Linux.
    Flush,
    /// A bit is flipped in the data of the write or, with [`Disk::chance`], in any written sector. No error is
    /// reported.
    Flip,
    /// A write goes to other sectors. No error is reported.
    Misdirect,
    /// A write is not executed. No error is reported.
    Lose,
    /// A flush omits one write. No error is reported.
    Forget,
    /// An operation does not complete until [`Disk::release`].
    Stick,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Flip,
        Self::Misdirect,
        Self::Lose,
        Self::Forget,
        Self::Stick,
    ];
}

/// Which volatile writes survive a cut. Pending writes count as the last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// Each survives, is dropped or is torn, at random. Overlapping ones are applied in random order.
    Each,
    /// All survive.
    All,
    /// None survives.
    Nothing,
    /// Those of one disk survive.
    OneDisk,
    /// The last one survives.
    Last,
    /// A random number of the first ones survives.
    Prefix,
    /// All but one survive.
    AllButOne,
}

impl Fate {
    /// All fates.
    pub const ALL: [Self; 7] =
        [Self::Each, Self::All, Self::Nothing, Self::OneDisk, Self::Last, Self::Prefix, Self::AllButOne];
}

/// Counters of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Completed reads, successful or not.
    pub reads: u64,
    /// Completed writes, successful or not.
    pub writes: u64,
    /// Completed flushes, successful or not.
    pub flushes: u64,
    /// Sectors of completed reads.
    pub sectors_read: u64,
    /// Sectors of completed writes.
    pub sectors_written: u64,
    /// Injected faults.
    pub faults: BTreeMap<Fault, u64>,
    /// Cuts, by fate.
    pub cuts: BTreeMap<Fate, u64>,
    /// Writes that survived a cut whole.
    pub kept: u64,
    /// Writes that a cut dropped.
    pub dropped: u64,
    /// Writes that a cut tore.
    pub torn: u64,
}

impl AddAssign<&Self> for Counts {
    fn add_assign(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.sectors_read += other.sectors_read;
        self.sectors_written += other.sectors_written;
        self.kept += other.kept;
        self.dropped += other.dropped;
        self.torn += other.torn;
        other.faults.iter().for_each(|(fault, n)| *self.faults.entry(*fault).or_default() += n);
        other.cuts.iter().for_each(|(fate, n)| *self.cuts.entry(*fate).or_default() += n);
    }
}

impl Power {
    /// Creates a power supply without disks.
    pub fn new(seed: u64) -> Self {
        let (rng, log) = (Rng::new(seed), VecDeque::with_capacity(LOG));
        Self(Arc::new(Mutex::new(State { rng, tick: 0, disks: Vec::new(), log, wakers: Vec::new() })))
    }

    /// Adds an empty disk, which reads as zeros.
    pub fn disk(&self, sectors: u64) -> Disk {
        self.add(sectors, false)
    }

    /// Adds a write-once disk. Rewriting a sector fails with [`Kind::ReadOnly`], and reading an unwritten one with
    /// [`Kind::Unwritten`].
    pub fn worm(&self, sectors: u64) -> Disk {
        self.add(sectors, true)
    }

    fn add(&self, sectors: u64, worm: bool) -> Disk {
        let (chances, places) = ([0; Fault::ALL.len()], Vec::new());
        let setting = Setting {
            sectors,
            known: sectors,
            worm,
            at_once: false,
            chances,
            within: None,
            places,
            storage: None,
        };
        let mut state = self.state();
        state.disks.push(Inner::new(setting, Image::default()));
        Disk { power: self.clone(), index: state.disks.len() - 1, life: 0 }
    }

    /// Returns handles of all disks, in their present lives.
    pub fn disks(&self) -> Vec<Disk> {
        let state = self.state();
        let disks = state.disks.iter().enumerate();
        disks.map(|(index, disk)| Disk { power: self.clone(), index, life: disk.life }).collect()
    }

    /// Advances a random operation of a random disk. Returns false if none is pending.
    pub fn step(&self) -> bool {
        self.step_of(|_| true)
    }

    /// Runs until no operation is pending, including those submitted by completions.
    pub fn settle(&self) {
        while self.step() {}
    }

    /// Polls `future`, with a step between polls, for at most `steps` steps. Returns `None` if it is not complete then,
    /// or if no step is possible.
    pub fn run<T>(&self, steps: u64, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        let mut left = steps;
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
                return Some(value);
            }
            left = left.checked_sub(1).filter(|_| self.step())?;
        }
    }

    /// Waits until an operation is pending. For a task of a [`World`](crate::World) that makes the steps: it waits
    /// here, and then for a while.
    pub async fn busy(&self) {
        poll_fn(|cx| {
            let mut state = self.state();
            if state.disks.iter().any(|disk| !disk.queue.is_empty()) {
                return Poll::Ready(());
            }
            state.wakers.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Returns the number of pending operations, without stuck ones.
    pub fn waiting(&self) -> usize {
        self.state().disks.iter().map(|disk| disk.queue.len()).sum()
    }

    /// Cuts the power, with a random fate, and restores it. All handles become invalid until [`Disk::reopen`].
    pub fn cut(&self) -> Fate {
        let fate = self.state().fate();
        self.cut_as(fate);
        fate
    }

    /// Cuts the power with this fate.
    pub fn cut_as(&self, fate: Fate) {
        let mut state = self.state();
        let images = state.left(fate);
        let mut over = Vec::new();
        for (disk, image) in images.into_iter().enumerate() {
            state.note(disk, What::Cut(fate));
            let state = &mut *state;
            let disk = &mut state.disks[disk];
            over.extend(
                disk.queue
                    .drain(..)
                    .chain(disk.stuck.drain(..))
                    .map(|pending| (pending.io, state.rng.one_in(2))),
            );
            disk.starts(image);
        }
        drop(state);
        for (io, told) in over {
            match told {
                true => io.fail(Kind::Down, "the power went"),
                false => drop(io),
            }
        }
    }

    /// Returns copies of the disks as a cut would leave them now. The disks themselves are not changed, so a test can
    /// try every instant of one run.
    pub fn after(&self, fate: Fate) -> Self {
        let mut state = self.state();
        let images = state.left(fate);
        let (rng, tick, log) = (state.rng.fork(), state.tick, VecDeque::new());
        let disks = state.disks.iter_mut().zip(images).map(|(disk, image)| {
            let setting = Setting { known: disk.setting.sectors, ..disk.setting.clone() };
            Inner::new(setting, image)
        });
        let disks = disks.collect();
        Self(Arc::new(Mutex::new(State { rng, tick, disks, log, wakers: Vec::new() })))
    }

    /// Returns a random fate, for [`Power::after`].
    pub fn fate(&self) -> Fate {
        self.state().fate()
    }

    /// Returns the latest events as text, one per line.
    pub fn log(&self) -> String {
        let mut text = String::new();
        for Entry { tick, disk, submitted, op, at, count, what } in &self.state().log {
            let _ = write!(text, "{tick} sim{disk} ");
            let _ = match what {
                What::Cut(fate) => writeln!(text, "the power went: {fate:?}"),
                What::Reopened => writeln!(text, "reopened"),
                What::Fault(fault) => writeln!(text, "{fault:?} at {at}+{count}"),
                What::Begun => writeln!(text, "{op:?} {at}+{count}"),
                What::Happened => writeln!(text, "{op:?} {at}+{count} of {submitted} has happened"),
                What::Ended(None) => writeln!(text, "{op:?} {at}+{count} of {submitted} ended"),
                What::Ended(Some(kind)) => writeln!(text, "{op:?} {at}+{count} of {submitted}: {kind:?}"),
            };
        }
        text
    }

    fn step_of(&self, counts: impl Fn(usize) -> bool) -> bool {
        let mut state = self.state();
        let waits = |state: &State, disk: usize| if counts(disk) { state.disks[disk].queue.len() } else { 0 };
        let all: usize = (0..state.disks.len()).map(|disk| waits(&state, disk)).sum();
        if all == 0 {
            return false;
        }
        let (mut which, mut disk) = (state.rng.below(all), 0);
        while which >= waits(&state, disk) {
            which -= waits(&state, disk);
            disk += 1;
        }
        let ended = state.advance(disk, which, false);
        drop(state);
        ended.into_iter().for_each(|(io, result)| io.end(result));
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    /// Creates a disk with its own power supply.
    pub fn new(seed: u64, sectors: u64) -> Self {
        Power::new(seed).disk(sectors)
    }

    /// Creates a write-once disk ([`Power::worm`]) with its own power supply.
    pub fn worm(seed: u64, sectors: u64) -> Self {
        Power::new(seed).worm(sectors)
    }

    /// Returns its power supply.
    pub fn power(&self) -> &Power {
        &self.power
    }

    /// Advances a random operation of this disk. Returns false if none is pending.
    pub fn step(&self) -> bool {
        self.power.step_of(|disk| disk == self.index)
    }

    /// Sets whether operations complete before [`Device::submit`] returns, or wait for steps.
    pub fn at_once(&self, yes: bool) {
        self.with(|disk| disk.setting.at_once = yes);
    }

    /// Injects this fault into one in `one_in` operations; 0: none.
    pub fn chance(&self, fault: Fault, one_in: usize) {
        self.with(|disk| disk.setting.chances[fault as usize] = one_in);
    }

    /// Restricts the faults of [`Disk::chance`] to these sectors: only reads and writes within them have faults, and a
    /// fault changes only these sectors. Flushes, which concern all sectors, have no faults then.
    pub fn confine(&self, sectors: Range<u64>) {
        self.with(|disk| disk.setting.within = Some(sectors));
    }

    /// Injects this fault into the next `times` operations that touch these sectors. A flush touches all.
    pub fn at(&self, fault: Fault, sectors: Range<u64>, times: u64) {
        self.with(|disk| disk.setting.places.push((fault, sectors, times)));
    }

    /// Stops injecting faults. Damaged sectors and stuck operations remain.
    pub fn heal(&self) {
        self.with(|disk| (disk.setting.chances, disk.setting.places) = ([0; Fault::ALL.len()], Vec::new()));
    }

    /// Makes these sectors unreadable until they are written again.
    pub fn spoil(&self, sectors: Range<u64>) {
        self.with(|disk| {
            disk.now.bad.push(sectors.clone());
            disk.durable.bad.push(sectors);
        });
    }

    /// Flips a bit of a sector.
    pub fn flip(&self, sector: u64, bit: usize) {
        self.power.state().flip(self.index, sector, bit);
    }

    /// Grows the disk. The new size is visible after [`Op::Look`](nine_block::Op::Look) or a cut. Panics if it would
    /// shrink.
    pub fn grow(&self, sectors: u64) {
        self.with(|disk| {
            assert!(sectors >= disk.setting.sectors, "it does not shrink");
            disk.setting.sectors = sectors;
        });
    }

    /// Limits the storage to so many sectors, like a sparse file on a disk that fills up. A write that needs more fails
    /// with [`Kind::Full`], and a part of it may be written. `None`: no limit.
    pub fn storage(&self, sectors: Option<u64>) {
        self.with(|disk| disk.setting.storage = sectors);
    }

    /// Returns the number of sectors that use storage.
    pub fn stored(&self) -> u64 {
        self.with(|disk| disk.now.sectors())
    }

    /// Returns the number of pending writes, without stuck ones.
    pub fn writing(&self) -> usize {
        self.with(|disk| disk.queue.iter().filter(|pending| pending.io.op == Op::Write).count())
    }

    /// Makes stuck operations pending again. If operations complete at once, these complete now.
    pub fn release(&self) {
        let mut state = self.power.state();
        let mut ended = Vec::new();
        let disk = &mut state.disks[self.index];
        let (stuck, at_once) = (std::mem::take(&mut disk.stuck), disk.setting.at_once);
        for pending in stuck {
            let queue = &mut state.disks[self.index].queue;
            queue.push(pending);
            let last = queue.len() - 1;
            if at_once {
                ended.extend(state.advance(self.index, last, true));
            }
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        ended.into_iter().for_each(|(io, result)| io.end(result));
    }

    /// Returns the number of stuck operations.
    pub fn stuck(&self) -> usize {
        self.with(|disk| disk.stuck.len())
    }

    /// Returns the number of pending operations, without stuck ones.
    pub fn waiting(&self) -> usize {
        self.with(|disk| disk.queue.len())
    }

    /// Returns a new handle, and invalidates the older ones. After a cut they are invalid anyway. Without a cut, as
    /// when a program is killed, each pending write happens or not, and the cache remains.
    #[must_use]
    pub fn reopen(&self) -> Self {
        let mut state = self.power.state();
        let mut over = Vec::new();
        if state.disks[self.index].life == self.life {
            over = state.kill(self.index);
            state.note(self.index, What::Reopened);
        }
        let life = state.disks[self.index].life;
        drop(state);
        over.into_iter().for_each(|io| io.fail(Kind::Down, "another has the disk"));
        Self { power: self.power.clone(), index: self.index, life }
    }

    /// Returns the data of a sector, even if it is unreadable.
    pub fn peek(&self, sector: u64) -> Bytes {
        self.with(|disk| disk.now.read(sector, 1))
    }

    /// Replaces sectors durably, without reporting it. A write-once disk counts them as written.
    ///
    /// # Panics
    /// Panics if `bytes` is not a whole number of sectors.
    pub fn poke(&self, sector: u64, bytes: impl Into<Bytes>) {
        self.power.state().poke(self.index, sector, bytes.into());
    }

    /// Returns the durable data, which survives any cut.
    pub fn snapshot(&self) -> Image {
        self.with(|disk| disk.durable.clone())
    }

    /// Replaces the whole contents, as if the disk came back with old data. Invalidates older handles.
    #[must_use]
    pub fn restore(&self, image: &Image) -> Self {
        let now = Self { life: self.with(|disk| disk.life), ..self.clone() }.reopen();
        now.with(|disk| {
            (disk.now, disk.durable, disk.loose) = (image.clone(), image.clone(), BTreeMap::new())
        });
        now
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.with(|disk| disk.counts.clone())
    }

    fn with<T>(&self, does: impl FnOnce(&mut Inner) -> T) -> T {
        does(&mut self.power.state().disks[self.index])
    }
}

impl Device for Disk {
    fn shape(&self) -> Shape {
        self.with(|disk| disk.setting.shape())
    }

    fn unbacked(&self) -> u64 {
        self.with(|disk| {
            let Some(storage) = disk.setting.storage else { return 0 };
            let stored = disk.now.sectors();
            let (holes, left) = (disk.setting.sectors - stored, storage.saturating_sub(stored));
            holes.saturating_sub(left) * SECTOR
        })
    }

    fn name(&self) -> String {
        format!("sim{}", self.index)
    }

    fn submit(&self, io: Io) {
        let mut state = self.power.state();
        if state.disks[self.index].life != self.life {
            drop(state);
            return io.fail(Kind::Down, "another has the disk");
        }
        let ended = state.submit(self.index, io);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        ended.into_iter().for_each(|(io, result)| io.end(result));
    }
}
