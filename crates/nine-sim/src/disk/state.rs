//! The disks of a power supply: pending operations, their effects, and the result of a cut.
//!
//! In: operations, steps, random numbers. Out: results, images. Always holds: the same seed gives the same results.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::task::Waker;

use bytes::{Bytes, BytesMut};
use nine_block::{Error, Io, Kind, Op, Result, SECTOR, Shape};

use super::image::{Change, Image, part};
use super::{Counts, Fate, Fault, LOG};
use crate::rng::Rng;

pub(super) struct State {
    pub(super) rng: Rng,
    /// Counts all events.
    pub(super) tick: u64,
    pub(super) disks: Vec<Inner>,
    pub(super) log: VecDeque<Entry>,
    /// Tasks that wait for a pending operation.
    pub(super) wakers: Vec<Waker>,
}

pub(super) struct Inner {
    pub(super) setting: Setting,
    pub(super) life: u64,
    /// The contents that reads see.
    pub(super) now: Image,
    /// The contents that survive any cut.
    pub(super) durable: Image,
    /// Volatile changes, by the tick at which they were made; with the tick at which their operation completed
    /// successfully.
    pub(super) loose: BTreeMap<u64, (Change, Option<u64>)>,
    pub(super) queue: Vec<Pending>,
    pub(super) stuck: Vec<Pending>,
    pub(super) counts: Counts,
}

#[derive(Clone)]
pub(super) struct Setting {
    /// Actual size, and size known to the client.
    pub(super) sectors: u64,
    pub(super) known: u64,
    /// Write-once.
    pub(super) worm: bool,
    pub(super) at_once: bool,
    /// One in so many operations, by fault; 0: none.
    pub(super) chances: [usize; Fault::ALL.len()],
    /// Maximum number of sectors with data; `None`: no limit.
    pub(super) storage: Option<u64>,
    /// Random faults are confined to these sectors; `None`: everywhere.
    pub(super) within: Option<Range<u64>>,
    /// Planned faults: kind, sectors, remaining number.
    pub(super) places: Vec<(Fault, Range<u64>, u64)>,
}

impl Setting {
    pub(super) fn shape(&self) -> Shape {
        Shape { sectors: self.known, atom: 1, most: 2048, read_only: false, durable: true }
    }
}

pub(super) struct Pending {
    pub(super) io: Io,
    pub(super) submitted: u64,
    /// Number of sectors of a write that are already applied.
    pub(super) done: u64,
    /// Ticks at which they were applied.
    pub(super) ticks: Vec<u64>,
    /// Result of an applied operation, to be delivered later.
    pub(super) result: Option<Result<Bytes>>,
}

pub(super) struct Entry {
    pub(super) tick: u64,
    pub(super) disk: usize,
    /// Tick of its submission, which identifies the operation.
    pub(super) submitted: u64,
    pub(super) op: Op,
    pub(super) at: u64,
    pub(super) count: u64,
    pub(super) what: What,
}

pub(super) enum What {
    Begun,
    Happened,
    Ended(Option<Kind>),
    Fault(Fault),
    Cut(Fate),
    Reopened,
}

impl Inner {
    pub(super) fn new(setting: Setting, image: Image) -> Self {
        let (queue, stuck) = (Vec::new(), Vec::new());
        let (now, durable, loose) = (image.clone(), image, BTreeMap::new());
        Self { setting, life: 0, now, durable, loose, queue, stuck, counts: Counts::default() }
    }

    /// Starts a new life with these contents. Older handles become invalid.
    pub(super) fn starts(&mut self, image: Image) {
        self.life += 1;
        self.setting.known = self.setting.sectors;
        self.loose.clear();
        (self.now, self.durable) = (image.clone(), image);
    }

    /// Makes these volatile changes durable.
    pub(super) fn settle(&mut self, ticks: &[u64]) {
        for tick in ticks {
            let (change, _) = self.loose.remove(tick).expect("it is loose");
            self.durable.put_newer(&change);
        }
    }
}

impl State {
    pub(super) fn next(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    pub(super) fn submit(&mut self, index: usize, io: Io) -> Option<(Io, Result<Bytes>)> {
        let submitted = self.next();
        self.note_io(index, &io, submitted, What::Begun);
        let sticks = self.fault(index, Fault::Stick, &io);
        let disk = &mut self.disks[index];
        let at_once = disk.setting.at_once;
        disk.queue.push(Pending { io, submitted, done: 0, ticks: Vec::new(), result: None });
        let last = disk.queue.len() - 1;
        if sticks {
            let mut pending = disk.queue.remove(last);
            if pending.io.op != Op::Flush && self.rng.one_in(2) {
                pending.result = Some(self.happen(index, &mut pending));
            }
            self.disks[index].stuck.push(pending);
            return None;
        }
        at_once.then(|| self.advance(index, last, true)).flatten()
    }

    /// Advances an operation. Returns it with its result if it completes.
    pub(super) fn advance(&mut self, index: usize, which: usize, whole: bool) -> Option<(Io, Result<Bytes>)> {
        let mut pending = self.disks[index].queue.swap_remove(which);
        let mut later = false;
        if pending.result.is_none() {
            if !whole && self.rng.one_in(8) && self.first_half(index, &mut pending) {
                self.disks[index].queue.push(pending);
                return None;
            }
            let result = self.happen(index, &mut pending);
            // A flush that loses writes reports that at once. Otherwise a successful flush in between would have
            // promised them.
            let told = pending.io.op == Op::Flush && result.is_err();
            pending.result = Some(result);
            later = !whole && !told && self.rng.one_in(4);
        }
        if later {
            self.note_io(index, &pending.io, pending.submitted, What::Happened);
            self.disks[index].queue.push(pending);
            return None;
        }
        let now = self.next();
        let Pending { io, submitted, ticks, result, .. } = pending;
        let result = result.expect("it has happened");
        let kind = result.as_ref().err().map(|error| error.kind);
        self.note_io(index, &io, submitted, What::Ended(kind));
        let Inner { loose, counts, .. } = &mut self.disks[index];
        match io.op {
            Op::Read => {
                (counts.reads, counts.sectors_read) = (counts.reads + 1, counts.sectors_read + io.count)
            }
            Op::Write => {
                (counts.writes, counts.sectors_written) =
                    (counts.writes + 1, counts.sectors_written + io.count);
            }
            Op::Flush => counts.flushes += 1,
            _ => {}
        }
        if kind.is_none() {
            // The entry is gone if a failed flush has lost the change.
            for tick in ticks {
                loose.entry(tick).and_modify(|(_, ended)| *ended = Some(now));
            }
        }
        Some((io, result))
    }

    /// Applies the first sectors of a write now, and leaves the rest for later. Returns whether it did.
    pub(super) fn first_half(&mut self, index: usize, pending: &mut Pending) -> bool {
        let Setting { worm, chances, ref places, .. } = self.disks[index].setting;
        let Pending { io, done, .. } = &pending;
        // A lost or misdirected write is so as a whole.
        if chances[Fault::Lose as usize] + chances[Fault::Misdirect as usize] + places.len() > 0 {
            return false;
        }
        let (at, left) = (io.at + done, io.count - (*done).min(io.count));
        if io.op != Op::Write
            || left < 2
            || io.judge(&self.disks[index].setting.shape()).is_err()
            || worm && self.disks[index].now.within(at, io.end_at()).next().is_some()
        {
            return false;
        }
        let count = 1 + self.rng.below(left as usize - 1) as u64;
        let tick = self.change(index, at, count, Some(part(&io.data, *done, count)));
        pending.ticks.push(tick);
        pending.done += count;
        true
    }

    /// Applies the rest of an operation, and returns its result.
    pub(super) fn happen(&mut self, index: usize, pending: &mut Pending) -> Result<Bytes> {
        pending
            .io
            .judge(&self.disks[index].setting.shape())
            .map_err(|error| error.of(format!("sim{index}")))?;
        let error = |kind, text: String| Err(Error::new(kind, text).of(format!("sim{index}")));
        let io = &pending.io;
        match io.op {
            Op::Read => {
                if io.count > 0 && self.fault(index, Fault::Read, io) {
                    let bad = io.at + self.rng.below(io.count as usize) as u64;
                    self.disks[index].now.bad.push(bad..bad + 1);
                    self.disks[index].durable.bad.push(bad..bad + 1);
                }
                let disk = &self.disks[index];
                if let Some(bad) = disk.now.bad(io.at, io.end_at()) {
                    return error(Kind::Failed, format!("sector {bad} cannot be read"));
                }
                match disk.now.unwritten(io.at, io.count).filter(|_| disk.setting.worm) {
                    Some(at) => error(Kind::Unwritten, format!("sector {at} was never written")),
                    None => Ok(disk.now.read(io.at, io.count)),
                }
            }
            Op::Write => {
                let (mut at, end) = (io.at + pending.done, io.end_at());
                let disk = &self.disks[index];
                if disk.setting.worm && disk.now.within(at, end).next().is_some() {
                    return error(Kind::ReadOnly, format!("some of {at}+{} is written already", end - at));
                }
                let mut data = part(&io.data, pending.done, end - at);
                if let Some(storage) = disk.setting.storage {
                    let holes = |end| {
                        disk.now.older(at, end - at, 0).iter().map(|hole| hole.end - hole.start).sum::<u64>()
                    };
                    let left = storage.saturating_sub(disk.now.sectors());
                    if holes(end) > left {
                        // A write-once disk writes all or nothing.
                        let most = if disk.setting.worm { at } else { end };
                        let room = (at..most).take_while(|sector| holes(sector + 1) <= left).count() as u64;
                        self.change(index, at, room, Some(part(&data, 0, room)));
                        return error(Kind::Full, "No space left on device".into());
                    }
                }
                if self.fault(index, Fault::Write, io) {
                    for piece in self.some_of(end - at) {
                        let data = part(&data, piece.start, piece.end - piece.start);
                        self.change(index, at + piece.start, piece.end - piece.start, Some(data));
                    }
                    return error(Kind::Failed, format!("{at}+{} cannot be written", end - at));
                }
                if self.fault(index, Fault::Lose, io) {
                    return Ok(Bytes::new());
                }
                if self.fault(index, Fault::Misdirect, io) {
                    match self.elsewhere(index, at, end - at) {
                        Some(other) => at = other,
                        None => return Ok(Bytes::new()),
                    }
                }
                let flips = !data.is_empty() && self.fault(index, Fault::Flip, io);
                let other = flips
                    && self.disks[index].setting.chances[Fault::Flip as usize] > 0
                    && self.rng.one_in(2);
                if flips && !other {
                    let bit = self.rng.below(data.len() * 8);
                    data = flipped(&data, bit);
                }
                let tick = self.change(index, at, data.len() as u64 / SECTOR, Some(data));
                pending.ticks.push(tick);
                if other {
                    self.flip_any(index);
                }
                Ok(Bytes::new())
            }
            Op::Flush => match self.fault(index, Fault::Flush, io) {
                true => {
                    self.lose(index);
                    error(Kind::Poisoned, "what was written may be lost".into())
                }
                false => {
                    self.flush(index, pending);
                    Ok(Bytes::new())
                }
            },
            Op::Discard if self.disks[index].setting.worm => {
                error(Kind::ReadOnly, "what is written stays".into())
            }
            Op::Discard => {
                let (at, count) = (io.at, io.count);
                let noise = match self.rng.below(3) {
                    0 => return Ok(Bytes::new()),
                    1 => 0,
                    _ => count.min(8),
                };
                let bytes: Vec<u8> = (0..noise * SECTOR).map(|_| self.rng.bits() as u8).collect();
                let first = self.change(index, at, noise, Some(bytes.into()));
                let rest = self.change(index, at + noise, count - noise, None);
                pending.ticks.extend([first, rest]);
                Ok(Bytes::new())
            }
            Op::Look => {
                let setting = &mut self.disks[index].setting;
                setting.known = setting.sectors;
                Ok(Bytes::new())
            }
        }
    }

    /// Applies a volatile change, which a cut may undo. Returns its tick.
    pub(super) fn change(&mut self, index: usize, at: u64, count: u64, data: Option<Bytes>) -> u64 {
        let tick = self.next();
        let change = Change { at, count, data, tick };
        let disk = &mut self.disks[index];
        disk.now.put(&change);
        disk.loose.insert(tick, (change, None));
        tick
    }

    /// Makes all changes durable that completed before the flush was submitted, and a random part of the others.
    pub(super) fn flush(&mut self, index: usize, flush: &Pending) {
        let before = |ended: &Option<u64>| ended.is_some_and(|ended| ended < flush.submitted);
        let loose = &self.disks[index].loose;
        let mut due: Vec<u64> =
            loose.iter().filter(|(_, (_, ended))| before(ended)).map(|(tick, _)| *tick).collect();
        if !due.is_empty() && self.fault(index, Fault::Forget, &flush.io) {
            let forgotten = due.swap_remove(self.rng.below(due.len()));
            self.disks[index].loose.remove(&forgotten);
        }
        self.disks[index].settle(&due);
        if self.rng.one_in(2) {
            let all = self.rng.one_in(2);
            let rest = self.disks[index].loose.keys().copied();
            let more: Vec<u64> = rest.filter(|_| all || self.rng.one_in(2)).collect();
            self.disks[index].settle(&more);
        }
    }

    /// Handles a failed flush: volatile changes may be lost at the next cut, or be gone from the cache, too.
    pub(super) fn lose(&mut self, index: usize) {
        let disk = &mut self.disks[index];
        let how = self.rng.below(3);
        let some = |rng: &mut Rng| how == 1 || how == 2 && rng.one_in(2);
        disk.loose.retain(|_, _| !some(&mut self.rng));
        if self.rng.one_in(2) {
            disk.now = disk.durable.clone();
            disk.loose.values().for_each(|(change, _)| disk.now.put_newer(change));
        }
    }

    pub(super) fn poke(&mut self, index: usize, at: u64, data: Bytes) {
        let count = data.len() as u64 / SECTOR;
        assert!(data.len() as u64 == count * SECTOR, "no whole sectors");
        let change = Change { at, count, data: Some(data), tick: self.next() };
        self.disks[index].now.put(&change);
        self.disks[index].durable.put(&change);
    }

    pub(super) fn flip(&mut self, index: usize, sector: u64, bit: usize) {
        let bytes = flipped(&self.disks[index].now.read(sector, 1), bit);
        self.poke(index, sector, bytes);
    }

    /// Flips a bit in a random written sector, if there is one.
    pub(super) fn flip_any(&mut self, index: usize) {
        let Setting { sectors, within, .. } = &self.disks[index].setting;
        let range = within.clone().unwrap_or(0..*sectors);
        let from = range.start + self.rng.below((range.end - range.start) as usize) as u64;
        let extents = &self.disks[index].now.extents;
        let mut some = extents.range(from..range.end).chain(extents.range(range.clone()));
        if let Some((at, extent)) = some.next() {
            let sector = (at + self.rng.below(extent.count() as usize) as u64).min(range.end - 1);
            let bit = self.rng.below(8 * SECTOR as usize);
            self.flip(index, sector, bit);
        }
    }

    /// Returns other sectors for a misdirected write. On a write-once disk they must be unwritten.
    pub(super) fn elsewhere(&mut self, index: usize, at: u64, count: u64) -> Option<u64> {
        let Inner { now, setting, .. } = &self.disks[index];
        let (low, room) = match &setting.within {
            Some(range) => (range.start, range.end - count),
            None => (0, setting.known - count),
        };
        let far = low + self.rng.below((room - low) as usize + 1) as u64;
        let other = match self.rng.below(3) {
            0 => at + count,
            1 => at.saturating_sub(count),
            _ => now.extents.range(far..).next().map_or(far, |(first, _)| *first),
        };
        let other = match other.clamp(low, room) {
            other if other != at => other,
            _ if at < room => at + 1,
            _ => at.saturating_sub(1).max(low),
        };
        let free = !setting.worm || now.within(other, other + count).next().is_none();
        (other != at && free).then_some(other)
    }

    /// Returns a random subset of `count` sectors as runs, in order. It may be empty or complete.
    pub(super) fn some_of(&mut self, count: u64) -> Vec<Range<u64>> {
        let one = self.rng.below(count.max(1) as usize) as u64;
        // Empty runs are removed.
        let mut some: Vec<_> = match self.rng.below(5) {
            0 => [0..one, 0..0].into(),
            1 => [one..count, 0..0].into(),
            2 => [0..one, one + 1..count].into(),
            3 => [one..count.min(one + 1), 0..0].into(),
            _ => (0..count).filter(|_| self.rng.one_in(2)).map(|at| at..at + 1).collect(),
        };
        some.retain(|run| !run.is_empty());
        some
    }

    /// Whether this operation gets this fault.
    pub(super) fn fault(&mut self, index: usize, fault: Fault, io: &Io) -> bool {
        let Setting { chances, places, within, .. } = &mut self.disks[index].setting;
        let is_data = !matches!(io.op, Op::Flush | Op::Look);
        let may =
            within.as_ref().is_none_or(|range| is_data && range.start <= io.at && io.end_at() <= range.end);
        let touches = |range: &Range<u64>| {
            matches!(io.op, Op::Flush | Op::Look) || range.start < io.end_at() && io.at < range.end
        };
        let place = places.iter().position(|(of, range, _)| *of == fault && touches(range));
        if let Some(place) = place {
            places[place].2 = places[place].2.saturating_sub(1);
            if places[place].2 == 0 {
                places.remove(place);
            }
        }
        let chance = chances[fault as usize];
        let happens = place.is_some() || chance > 0 && may && self.rng.one_in(chance);
        if happens {
            *self.disks[index].counts.faults.entry(fault).or_default() += 1;
            self.note_io(index, io, 0, What::Fault(fault));
        }
        happens
    }

    /// Returns a random fate. About one in two is [`Fate::Each`].
    pub(super) fn fate(&mut self) -> Fate {
        let fate = self.rng.below(2 * Fate::ALL.len());
        Fate::ALL.get(fate).copied().unwrap_or(Fate::Each)
    }

    /// Returns the contents of the disks after a cut at this moment.
    pub(super) fn left(&mut self, fate: Fate) -> Vec<Image> {
        let mut changes = Vec::new();
        for (index, disk) in self.disks.iter().enumerate() {
            changes.extend(disk.loose.values().map(|(change, _)| (index, change.clone())));
        }
        changes.sort_by_key(|(_, change)| change.tick);
        let loose = changes.len();
        for (index, disk) in self.disks.iter().enumerate() {
            let waits = disk.queue.iter().chain(&disk.stuck).filter(|pending| pending.result.is_none());
            for Pending { io, done, .. } in waits.filter(|pending| pending.io.op == Op::Write) {
                if io.judge(&disk.setting.shape()).is_ok() {
                    let data = Some(part(&io.data, *done, io.count - done));
                    changes.push((
                        index,
                        Change { at: io.at + done, count: io.count - done, data, tick: u64::MAX },
                    ));
                }
            }
        }
        shuffle(&mut self.rng, &mut changes[loose..]);
        let last = self.next();
        changes[loose..].iter_mut().for_each(|(_, change)| change.tick = last);

        let all: Vec<usize> = changes.iter().map(|(index, _)| *index).collect();
        let kept = self.choose(fate, changes);
        for (index, disk) in self.disks.iter_mut().enumerate() {
            let count =
                |indices: &mut dyn Iterator<Item = usize>| indices.filter(|of| *of == index).count() as u64;
            let whole = count(&mut kept.iter().filter(|(_, _, torn)| !torn).map(|(index, ..)| *index));
            let torn = count(&mut kept.iter().filter(|(_, _, torn)| *torn).map(|(index, ..)| *index));
            *disk.counts.cuts.entry(fate).or_default() += 1;
            disk.counts.kept += whole;
            disk.counts.torn += torn;
            disk.counts.dropped += count(&mut all.iter().copied()) - whole - torn;
        }
        let mut images: Vec<Image> = self.disks.iter().map(|disk| disk.durable.clone()).collect();
        for (index, pieces, _) in kept {
            let Inner { durable, setting, .. } = &self.disks[index];
            for change in pieces {
                // A surviving change overwrites only older flushed data. A write-once disk is never overwritten.
                let free = match setting.worm {
                    true => images[index].older(change.at, change.count, 0),
                    false => durable.older(change.at, change.count, change.tick),
                };
                free.into_iter().for_each(|range| images[index].put(&change.part(range)));
            }
        }
        images
    }

    /// Chooses the surviving writes. Returns each with its disk, its pieces in order of application, and whether it is
    /// torn.
    pub(super) fn choose(
        &mut self,
        fate: Fate,
        mut changes: Vec<(usize, Change)>,
    ) -> Vec<(usize, Vec<Change>, bool)> {
        let count = changes.len();
        match fate {
            Fate::All => {}
            Fate::Nothing => changes.clear(),
            Fate::Prefix => changes.truncate(self.rng.below(count + 1)),
            Fate::Last => drop(changes.drain(..count.saturating_sub(1))),
            Fate::AllButOne if count > 0 => drop(changes.remove(self.rng.below(count))),
            Fate::AllButOne => {}
            Fate::OneDisk => {
                let one = self.rng.below(self.disks.len().max(1));
                changes.retain(|(index, _)| *index == one);
            }
            Fate::Each => {
                let torn = 2 + self.rng.below(15);
                let kept = torn + self.rng.below(31 - torn);
                shuffle(&mut self.rng, &mut changes);
                let each = changes.into_iter().filter_map(|(index, change)| match self.rng.below(32) {
                    roll if roll < torn && change.count > 1 => {
                        let runs = self.some_of(change.count).into_iter();
                        let runs = runs.map(|run| change.part(change.at + run.start..change.at + run.end));
                        let runs: Vec<_> = runs.collect();
                        let left: u64 = runs.iter().map(|run| run.count).sum();
                        (left > 0).then_some((index, runs, left < change.count))
                    }
                    roll if roll < kept => Some((index, vec![change], false)),
                    _ => None,
                });
                return each.collect();
            }
        }
        changes.into_iter().map(|(index, change)| (index, vec![change], false)).collect()
    }

    /// Ends the present life of a disk. Each pending write is applied or not. Returns the pending operations.
    pub(super) fn kill(&mut self, index: usize) -> Vec<Io> {
        let disk = &mut self.disks[index];
        let over: Vec<Pending> = disk.queue.drain(..).chain(disk.stuck.drain(..)).collect();
        disk.life += 1;
        let each = over.into_iter().map(|mut pending| {
            let happens = pending.result.is_none() && pending.io.op == Op::Write && self.rng.one_in(2);
            if happens {
                drop(self.happen(index, &mut pending));
            }
            pending.io
        });
        let over = each.collect();
        // For the disk itself they are complete.
        let now = self.next();
        self.disks[index].loose.values_mut().for_each(|(_, ended)| *ended = ended.or(Some(now)));
        over
    }

    pub(super) fn note(&mut self, disk: usize, what: What) {
        self.enter(Entry { tick: self.tick, disk, submitted: 0, op: Op::Look, at: 0, count: 0, what });
    }

    pub(super) fn note_io(&mut self, disk: usize, io: &Io, submitted: u64, what: What) {
        let Io { op, at, count, .. } = *io;
        self.enter(Entry { tick: self.tick, disk, submitted, op, at, count, what });
    }

    pub(super) fn enter(&mut self, entry: Entry) {
        if self.log.len() == LOG {
            self.log.pop_front();
        }
        self.log.push_back(entry);
    }
}

fn flipped(data: &[u8], bit: usize) -> Bytes {
    let mut bytes = BytesMut::from(data);
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes.freeze()
}

fn shuffle<T>(rng: &mut Rng, items: &mut [T]) {
    for i in (1..items.len()).rev() {
        items.swap(i, rng.below(i + 1));
    }
}
