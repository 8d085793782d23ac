//! A disk of memory that loses power, and has other faults, by a seed.
//!
//! In: operations ([`Device`]), steps, cuts. Out: what a disk with a volatile cache answers, in any order that
//! [`Device`] allows, and what is left on it. Disks of one [`Power`] lose it together. Always holds, as long as no
//! [`Fault`] is asked for:
//! - a read has all writes that had ended when it was submitted;
//! - what had ended when a flush was submitted that ended well is there after a cut, or what is newer;
//! - a sector is written whole or not at all;
//! - whoever had the disk before a cut, or before [`Disk::reopen`], does nothing to it any more.

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

/// Entries of the log that are kept.
const LOG: usize = 256;

/// What disks hang on. Clones are the same.
#[derive(Clone)]
pub struct Power(Arc<Mutex<State>>);

/// One who has a disk. Clones are the same one.
#[derive(Clone)]
pub struct Disk {
    power: Power,
    index: usize,
    life: u64,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// A sector that is read cannot be, until it is written again.
    Read,
    /// A write fails, and any of its sectors may be written.
    Write,
    /// A flush fails, and what was not flushed may be lost, though later ones end well: as Linux does it.
    Flush,
    /// One bit of what a write stores is another; by chance, of any sector that is written. Nobody is told.
    Flip,
    /// A write goes to another place. Nobody is told.
    Misdirect,
    /// A write is not done. Nobody is told.
    Lose,
    /// A flush forgets one write. Nobody is told.
    Forget,
    /// An operation does not end until [`Disk::release`].
    Stick,
}

impl Fault {
    /// All there are.
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

/// Which of the writes that are not durable a cut leaves. Those that wait count as the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// Each is kept, dropped or torn, and those that overlap are in any order.
    Each,
    /// All.
    All,
    /// None.
    Nothing,
    /// Those of one disk.
    OneDisk,
    /// The last.
    Last,
    /// The first so many.
    Prefix,
    /// All but one.
    AllButOne,
}

impl Fate {
    /// All there are.
    pub const ALL: [Self; 7] =
        [Self::Each, Self::All, Self::Nothing, Self::OneDisk, Self::Last, Self::Prefix, Self::AllButOne];
}

/// What has happened to a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads that ended, well or not.
    pub reads: u64,
    /// Writes that ended, well or not.
    pub writes: u64,
    /// Flushes that ended, well or not.
    pub flushes: u64,
    /// Sectors that were read.
    pub sectors_read: u64,
    /// Sectors that were to be written.
    pub sectors_written: u64,
    /// Faults.
    pub faults: BTreeMap<Fault, u64>,
    /// Cuts.
    pub cuts: BTreeMap<Fate, u64>,
    /// Writes that a cut left whole.
    pub kept: u64,
    /// Writes of which it left nothing.
    pub dropped: u64,
    /// Writes of which it left some.
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
    /// Without disks.
    pub fn new(seed: u64) -> Self {
        let (rng, log) = (Rng::new(seed), VecDeque::with_capacity(LOG));
        Self(Arc::new(Mutex::new(State { rng, tick: 0, disks: Vec::new(), log, wakers: Vec::new() })))
    }

    /// One more disk, on which nothing is written: it reads as zeros.
    pub fn disk(&self, sectors: u64) -> Disk {
        self.add(sectors, false)
    }

    /// One more, each of whose sectors is written once ([`Kind::ReadOnly`]), and not read before ([`Kind::Unwritten`]).
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

    /// All disks, for whoever has them now.
    pub fn disks(&self) -> Vec<Disk> {
        let state = self.state();
        let disks = state.disks.iter().enumerate();
        disks.map(|(index, disk)| Disk { power: self.clone(), index, life: disk.life }).collect()
    }

    /// Something of one operation of one disk happens, as chance will have it. False: none waits.
    pub fn step(&self) -> bool {
        self.step_of(|_| true)
    }

    /// All that waits ends, and what follows from it.
    pub fn settle(&self) {
        while self.step() {}
    }

    /// Runs until it is done, by so many steps at most. None: they are over, or nothing can happen any more.
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

    /// Waits until an operation waits: who steps in a task of a [`World`](crate::World) waits here, and then a while.
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

    /// Operations that wait, without those that are stuck.
    pub fn waiting(&self) -> usize {
        self.state().disks.iter().map(|disk| disk.queue.len()).sum()
    }

    /// The power goes, and comes again: nobody has a disk until [`Disk::reopen`].
    pub fn cut(&self) -> Fate {
        let fate = self.state().fate();
        self.cut_as(fate);
        fate
    }

    /// The power goes, and this is left.
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

    /// What a cut would leave now, as disks of their own; here nothing happens. So every instant of one run is tried.
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

    /// A fate as chance will have it, for [`Power::after`].
    pub fn fate(&self) -> Fate {
        self.state().fate()
    }

    /// The last that happened, for messages: a line each.
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
    /// With a power of its own.
    pub fn new(seed: u64, sectors: u64) -> Self {
        Power::new(seed).disk(sectors)
    }

    /// [`Power::worm`], with a power of its own.
    pub fn worm(seed: u64, sectors: u64) -> Self {
        Power::new(seed).worm(sectors)
    }

    /// What it hangs on.
    pub fn power(&self) -> &Power {
        &self.power
    }

    /// Something of one operation of this disk happens. False: none waits.
    pub fn step(&self) -> bool {
        self.power.step_of(|disk| disk == self.index)
    }

    /// Operations end before [`Device::submit`] returns, from now on, or wait for steps.
    pub fn at_once(&self, yes: bool) {
        self.with(|disk| disk.setting.at_once = yes);
    }

    /// One operation in so many has this fault; 0: none.
    pub fn chance(&self, fault: Fault, one_in: usize) {
        self.with(|disk| disk.setting.chances[fault as usize] = one_in);
    }

    /// Faults of [`Disk::chance`] come among these sectors only, as if they were a disk of their own: reads and writes
    /// within them have them, and what a fault changes lies there. Flushes are of all sectors, and have none.
    pub fn confine(&self, sectors: Range<u64>) {
        self.with(|disk| disk.setting.within = Some(sectors));
    }

    /// The next so many operations that touch these sectors have this fault. A flush touches all.
    pub fn at(&self, fault: Fault, sectors: Range<u64>, times: u64) {
        self.with(|disk| disk.setting.places.push((fault, sectors, times)));
    }

    /// No operation has a fault from now on. What is damaged stays so, and what is stuck.
    pub fn heal(&self) {
        self.with(|disk| (disk.setting.chances, disk.setting.places) = ([0; Fault::ALL.len()], Vec::new()));
    }

    /// These sectors cannot be read until they are written again.
    pub fn spoil(&self, sectors: Range<u64>) {
        self.with(|disk| {
            disk.now.bad.push(sectors.clone());
            disk.durable.bad.push(sectors);
        });
    }

    /// A bit of a sector is another.
    pub fn flip(&self, sector: u64, bit: usize) {
        self.power.state().flip(self.index, sector, bit);
    }

    /// It has so many sectors, which is seen after [`Op::Look`](nine_block::Op::Look) or a cut.
    pub fn grow(&self, sectors: u64) {
        self.with(|disk| {
            assert!(sectors >= disk.setting.sectors, "it does not shrink");
            disk.setting.sectors = sectors;
        });
    }

    /// It has storage for so many sectors from now on, as a sparse file on a disk that others fill: a write to more
    /// than those ends with [`Kind::Full`], and some of it may be written. `None`: for all.
    pub fn storage(&self, sectors: Option<u64>) {
        self.with(|disk| disk.setting.storage = sectors);
    }

    /// Sectors that take storage now.
    pub fn stored(&self) -> u64 {
        self.with(|disk| disk.now.sectors())
    }

    /// Writes that wait, without those that are stuck.
    pub fn writing(&self) -> usize {
        self.with(|disk| disk.queue.iter().filter(|pending| pending.io.op == Op::Write).count())
    }

    /// What is stuck waits for steps as others do; where operations end at once, it ends.
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

    /// Operations that are stuck.
    pub fn stuck(&self) -> usize {
        self.with(|disk| disk.stuck.len())
    }

    /// Operations that wait, without those that are stuck.
    pub fn waiting(&self) -> usize {
        self.with(|disk| disk.queue.len())
    }

    /// For who comes next. Whoever has it now has it no more: after a cut he has lost it anyway; without one, as when a
    /// program is killed, each of his operations happens or does not, and the cache stays.
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

    /// What a read of this sector would find, if it would find any.
    pub fn peek(&self, sector: u64) -> Bytes {
        self.with(|disk| disk.now.read(sector, 1))
    }

    /// Something else lies there, and is durable; nobody is told. A worm counts it as written.
    ///
    /// # Panics
    /// If `bytes` are no whole sectors.
    pub fn poke(&self, sector: u64, bytes: impl Into<Bytes>) {
        self.power.state().poke(self.index, sector, bytes.into());
    }

    /// What a cut leaves for certain.
    pub fn snapshot(&self) -> Image {
        self.with(|disk| disk.durable.clone())
    }

    /// It has this, and nothing else: as a disk that comes back with what it had long ago. Whoever had it has it no
    /// more.
    #[must_use]
    pub fn restore(&self, image: &Image) -> Self {
        let now = Self { life: self.with(|disk| disk.life), ..self.clone() }.reopen();
        now.with(|disk| {
            (disk.now, disk.durable, disk.loose) = (image.clone(), image.clone(), BTreeMap::new())
        });
        now
    }

    /// What has happened to it.
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
