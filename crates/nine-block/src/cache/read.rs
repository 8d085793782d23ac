//! Reads of a device through the cache, and read-ahead.
//!
//! In: blocks. Out: reads of missing blocks, adjacent ones together; their data, to all operations that wait for it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;

use super::BlockWaiter;
use super::ahead::Ahead;
use super::disk::CachedDisk;
use super::shard::{BlockEntry, EntryContent};
use crate::device::{Done, Io, SECTOR};
use crate::error::{Kind, Result};
use crate::sync::lock;

impl CachedDisk {
    /// Returns a block that is in the cache.
    pub(super) fn hit(self: &Arc<Self>, block: u64) -> Option<Bytes> {
        let (data, ahead) = self.glance(block)?;
        if ahead {
            self.run();
        }
        Some(data)
    }

    /// The same, and whether a read-ahead is due.
    pub(super) fn glance(self: &Arc<Self>, block: u64) -> Option<(Bytes, bool)> {
        let mut shard = lock(self.shared.shard(self.key(block)));
        let (entry, ahead) = shard.wanted(self.key(block))?;
        let EntryContent::Data(data) = &entry.held else {
            entry.ahead = ahead;
            return None;
        };
        let data = data.clone();
        shard.hits += 1;
        drop(shard);
        if ahead {
            self.used_ahead();
            self.read_ahead(block..block + 1, false);
        }
        Some((data, ahead))
    }

    /// Reads blocks: cached ones at once, missing ones in as few reads as possible.
    pub(super) fn fetch(self: &Arc<Self>, blocks: Range<u64>, mut done: impl FnMut(u64) -> Done) {
        let (mut runs, mut told) = (ReadRuns::new(self.run_most()), Vec::new());
        let (mut used, mut missing) = (false, false);
        for block in blocks.clone() {
            let key = self.key(block);
            let mut shard = lock(self.shared.shard(key));
            let count = &self.shared.count;
            match shard.wanted(key) {
                Some((BlockEntry { held: EntryContent::Data(data), .. }, ahead)) => {
                    told.push((done(block), data.clone()));
                    shard.hits += 1;
                    used |= ahead && self.used_ahead();
                }
                Some((BlockEntry { held: EntryContent::Reading(waiters), .. }, ahead)) => {
                    waiters.push(BlockWaiter::Read(done(block)));
                    count.joined.fetch_add(1, Relaxed);
                    used |= ahead && self.used_ahead();
                }
                None => {
                    missing = true;
                    count.misses.fetch_add(1, Relaxed);
                    if !self.may_read() {
                        // Nothing is evicted for this block; it is read for this caller alone.
                        count.passed.fetch_add(1, Relaxed);
                        drop(shard);
                        let count = self.len(block) as u64 / SECTOR;
                        self.device.submit(Io::read(block * self.per_block(), count, done(block)));
                        continue;
                    }
                    let id = shard.insert(
                        key,
                        EntryContent::Reading(vec![BlockWaiter::Read(done(block))]),
                        false,
                        false,
                    );
                    self.shared.held.fetch_add(1, Relaxed);
                    runs.push(block, id);
                }
            }
            drop(shard);
            self.shared.make_room(key);
        }
        told.into_iter().for_each(|(done, data)| done(Ok(data)));
        runs.0.into_iter().for_each(|(first, ids)| self.read(first, ids, false));
        if used || missing {
            self.read_ahead(blocks, missing);
            self.run();
        }
    }

    /// Stores a block that the device has now.
    pub(super) fn keep(&self, block: u64, data: Bytes) {
        let key = self.key(block);
        let mut shard = lock(self.shared.shard(key));
        let mut readers = Vec::new();
        match shard.get(key) {
            // A concurrent write through the cache takes precedence.
            Some(entry) if entry.dirty => {}
            Some(BlockEntry { held: EntryContent::Reading(waiters), .. })
                if waiters.iter().any(|waiter| matches!(waiter, BlockWaiter::Write(_))) => {}
            Some(entry) => {
                if let EntryContent::Reading(waiters) =
                    std::mem::replace(&mut entry.held, EntryContent::Data(data.clone()))
                {
                    readers = waiters;
                }
            }
            None => {
                shard.insert(key, EntryContent::Data(data.clone()), false, false);
                self.shared.held.fetch_add(1, Relaxed);
            }
        }
        drop(shard);
        self.shared.make_room(key);
        for waiter in readers {
            if let BlockWaiter::Read(done) = waiter {
                done(Ok(data.clone()));
            }
        }
    }

    /// Drops a block, unless it is dirty or an operation waits for it. If it is being read ahead, the result is not
    /// kept.
    pub(super) fn forget(&self, block: u64) {
        let key = self.key(block);
        let mut shard = lock(self.shared.shard(key));
        let can_go = |entry: &mut BlockEntry| match &entry.held {
            EntryContent::Data(_) => !entry.dirty,
            EntryContent::Reading(waiters) => waiters.is_empty(),
        };
        if shard.get(key).is_some_and(can_go) {
            let gone = shard.remove(key).expect("it is there, above");
            self.shared.held.fetch_sub(1, Relaxed);
            self.shared.ahead.fetch_sub(usize::from(gone.ahead), Relaxed);
        }
    }

    /// Returns whether another block may be read and cached; it counts from now on.
    fn may_read(&self) -> bool {
        let most = self.shared.reading_most();
        let more = |reading| (reading < most).then_some(reading + 1);
        self.shared.reading.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Counts the use of a block that was read ahead. Returns true.
    pub(super) fn used_ahead(&self) -> bool {
        self.shared.ahead.fetch_sub(1, Relaxed);
        self.shared.count.ahead_used.fetch_add(1, Relaxed);
        true
    }

    /// Schedules a read-ahead after a read of `blocks`. The thread that runs the next step begins it.
    fn read_ahead(&self, blocks: Range<u64>, missing: bool) {
        // A block was not evicted if its read-ahead has not begun.
        let waits = |ahead: &VecDeque<Range<u64>>| ahead.iter().any(|range| range.contains(&blocks.start));
        let missing = missing && !waits(&lock(&self.state).ahead);
        let end = self.sectors().div_ceil(self.per_block());
        let mut more = lock(&self.streams).wanted(blocks, missing, end, self.shared.ahead_room());
        let piece = match self.shared.options.ahead {
            Ahead::Seed => 1,
            _ => self.run_most() as u64,
        };
        if !more.is_empty() {
            self.shared.ahead.fetch_add((more.end - more.start) as usize, Relaxed);
            let mut state = lock(&self.state);
            while !more.is_empty() {
                let to = more.end.min(more.start + piece);
                state.ahead.push_back(more.start..to);
                more.start = to;
            }
        }
    }

    /// Begins to read ahead the missing blocks of a range, up to the first later one that is cached. Returns the rest.
    pub(super) fn begin_ahead(self: &Arc<Self>, mut range: Range<u64>) -> Range<u64> {
        let (first, mut ids) = (range.start, Vec::new());
        let mut from = first;
        while !range.is_empty() {
            let key = self.key(range.start);
            let mut shard = lock(self.shared.shard(key));
            let is_here = shard.get(key).is_some();
            if is_here && !ids.is_empty() {
                break;
            }
            range.start += 1;
            if is_here || self.len(key.1) == 0 || !self.may_read() {
                self.shared.ahead.fetch_sub(1, Relaxed);
                if !ids.is_empty() {
                    break;
                }
                from = range.start;
                continue;
            }
            ids.push(shard.insert(key, EntryContent::Reading(Vec::new()), false, true));
            self.shared.held.fetch_add(1, Relaxed);
            self.shared.count.ahead.fetch_add(1, Relaxed);
            drop(shard);
            self.shared.make_room(key);
        }
        match ids.is_empty() {
            true => lock(&self.state).aheads -= 1,
            false => self.read(from, ids, true),
        }
        range
    }

    /// Reads blocks from `first` on, for entries with these ids.
    pub(super) fn read(self: &Arc<Self>, first: u64, ids: Vec<u64>, ahead: bool) {
        let count = (first..).zip(&ids).map(|(block, _)| self.len(block) as u64).sum::<u64>() / SECTOR;
        let disk = self.clone();
        let io = Io::read(first * self.per_block(), count, move |result| {
            if ahead {
                lock(&disk.state).aheads -= 1;
            }
            disk.arrived(first, &ids, result);
            disk.run();
        });
        self.device.submit(io);
    }

    fn arrived(&self, first: u64, ids: &[u64], result: Result<Bytes>) {
        let run = ids.len() > 1;
        if let Err(error) = &result
            && run
            && matches!(error.kind, Kind::Failed | Kind::Unwritten | Kind::Range)
        {
            // One of them is the cause; read each by itself.
            return lock(&self.state).again.extend((first..).zip(ids.iter().copied()));
        }
        self.shared.reading.fetch_sub(ids.len(), Relaxed);
        let lent = result.as_ref().ok().filter(|_| run).and_then(|data| self.shared.lend(data, ids.len()));
        let lends = lent.is_some();
        let result = lent.map_or(result, Ok);
        for (n, (block, id)) in (first..).zip(ids).enumerate() {
            let part = result.clone().map(|data| {
                let from = n * self.shared.options.block as usize;
                let part = data.slice(from..data.len().min(from + self.shared.options.block as usize));
                if run && !lends { Bytes::copy_from_slice(&part) } else { part }
            });
            self.arrived_one(block, *id, part, lends);
        }
    }

    fn arrived_one(&self, block: u64, id: u64, result: Result<Bytes>, lent: bool) {
        let key = self.key(block);
        let mut state = lock(&self.state);
        let mut shard = lock(self.shared.shard(key));
        // The block may have been overwritten, or its entry replaced.
        let Some(entry) = shard.get(key).filter(|entry| entry.id == id) else { return };
        let EntryContent::Reading(waiters) = &mut entry.held else { return };
        let waiters = std::mem::take(waiters);
        let mut told: Vec<(Done, Result<Bytes>)> = Vec::new();
        let mut readers = Vec::new();
        let mut now = result.clone();
        let mut changed = None;
        for waiter in waiters {
            match waiter {
                BlockWaiter::Read(done) => readers.push(done),
                BlockWaiter::Write(write) => {
                    state.coming -= 1;
                    let result = now.clone().and_then(|data| self.patch(&data, &write));
                    if let Ok(data) = &result {
                        (now, changed) = (result.clone(), Some(data.clone()));
                    }
                    told.push((write.done, result.map(|_| Bytes::new())));
                }
            }
        }
        match &now {
            Ok(data) => entry.fill(data.clone(), lent),
            Err(_) => {
                let gone = shard.remove(key).expect("it is there, above");
                self.shared.held.fetch_sub(1, Relaxed);
                self.shared.ahead.fetch_sub(usize::from(gone.ahead), Relaxed);
            }
        }
        if let Some(data) = changed {
            state.order.put(block, data);
            shard.get(key).expect("it has its data").dirty = true;
        }
        drop(shard);
        self.account(&mut state);
        drop(state);
        self.shared.make_room(key);
        told.into_iter().for_each(|(done, result)| done(result));
        readers.into_iter().for_each(|done| done(now.clone()));
    }
}

/// Runs of consecutive blocks, with the ids of their entries.
struct ReadRuns(Vec<(u64, Vec<u64>)>, usize);

impl ReadRuns {
    fn new(most: usize) -> Self {
        Self(Vec::new(), most)
    }

    fn push(&mut self, block: u64, id: u64) {
        match self.0.last_mut() {
            Some((first, ids)) if *first + ids.len() as u64 == block && ids.len() < self.1 => ids.push(id),
            _ => self.0.push((block, vec![id])),
        }
    }
}
