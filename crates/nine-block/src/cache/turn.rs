//! The next steps of a cached device, apart from reads that a caller waits for.
//!
//! In: changes of its state. Out: one step after the other, run by one thread at a time. A thread that changes the
//! state runs steps until none is left, or leaves them to the thread that is running them. So operations that end at
//! once do not grow the stack, and a device may end operations on any thread.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::{Bytes, BytesMut};

use super::disk::{CachedDisk, CachedDiskState, SizeStatus};
use super::order::DeviceWork;
use super::shard::EntryContent;
use super::{BlockWrite, WRITES};
use crate::device::{Done, Io, Op};
use crate::error::{Error, Kind, Result};
use crate::sync::lock;

/// A step, which is run without a lock.
enum CacheStep {
    ReadAgain(u64, u64),
    Apply(BlockWrite),
    Device(DeviceWork),
    Flush,
    Ahead(Range<u64>),
    Tell(Vec<(Done, Result<Bytes>)>),
    Seen(Vec<(Io, Result<Bytes>)>),
}

impl CachedDisk {
    /// Runs the steps, unless another thread does.
    pub(super) fn run(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.running, true) {
            return;
        }
        loop {
            let Some(turn) = self.next(&mut state) else {
                // In the same critical section: a later change starts a new run.
                state.running = false;
                return;
            };
            drop(state);
            self.take(turn);
            state = lock(&self.state);
        }
    }

    /// Chooses the next step. Only this function does.
    fn next(&self, state: &mut CachedDiskState) -> Option<CacheStep> {
        if let Some((block, id)) = state.again.pop_front() {
            return Some(CacheStep::ReadAgain(block, id));
        }
        let is_stopped = state.trouble.stopped.is_some();
        if !is_stopped
            && !state.writers.is_empty()
            && self.take_slot(state)
            && let Some(write) = state.writers.pop_front()
        {
            return Some(CacheStep::Apply(write));
        }
        let is_hopeless = self.is_hopeless(state);
        if !state.looks.is_empty()
            && let Some(turn) = self.seen(state, is_hopeless)
        {
            return Some(turn);
        }
        if is_hopeless && (!state.writers.is_empty() || !state.flushes.is_empty()) {
            return Some(CacheStep::Tell(self.hopeless(state)));
        }
        if let Some(turn) = self.next_flush(state) {
            return Some(turn);
        }
        let is_wanted = state.order.oldest() <= state.up_to || state.hurry || !state.writers.is_empty();
        if is_wanted
            && !is_stopped
            && state.order.under_way() < WRITES
            && let Some(work) = state.order.next(self.run_most())
        {
            return Some(CacheStep::Device(work));
        }
        if state.aheads < self.shared.options.ahead.at_once()
            && let Some(range) = state.ahead.pop_front()
        {
            state.aheads += 1;
            return Some(CacheStep::Ahead(range));
        }
        None
    }

    /// Returns whether nothing can be written now: writing is stopped, or failed blocks prevent it.
    fn is_hopeless(&self, state: &CachedDiskState) -> bool {
        state.trouble.stopped.is_some() && state.order.under_way() == 0 || state.order.is_stuck()
    }

    /// Answers the looks, if the new size can be used, or never can.
    fn seen(&self, state: &mut CachedDiskState, is_hopeless: bool) -> Option<CacheStep> {
        let result = match self.sees(state) {
            SizeStatus::Clear => Ok(Bytes::new()),
            SizeStatus::Dirty if is_hopeless => {
                let text = "its last block could not be written: it is seen as large as it was";
                Err(state.trouble.stopped.clone().unwrap_or_else(|| self.poisoned(text)))
            }
            _ => return None,
        };
        let looks = std::mem::take(&mut state.looks).into_iter();
        Some(CacheStep::Seen(looks.map(|io| (io, result.clone())).collect()))
    }

    fn poisoned(&self, text: &str) -> Error {
        Error::new(Kind::Poisoned, text).of(self.device.name())
    }

    /// Fails the operations that wait in vain.
    fn hopeless(&self, state: &mut CachedDiskState) -> Vec<(Done, Result<Bytes>)> {
        let mut told = Vec::new();
        for (_, done) in std::mem::take(&mut state.flushes) {
            // Blocks have failed, or writing is stopped, so this is an error.
            told.push((done, self.verdict(state).map(|()| Bytes::new())));
        }
        for write in std::mem::take(&mut state.writers) {
            let text = "there is no room for what is written, and what could not be written keeps it";
            let error = state.trouble.stopped.clone().unwrap_or_else(|| self.poisoned(text));
            told.push((write.done, Err(error)));
        }
        told
    }

    fn verdict(&self, state: &mut CachedDiskState) -> Result<()> {
        state.trouble.verdict(state.order.failed(), &self.device.name())
    }

    /// Flushes the device for all flushes that have their writes on it.
    fn next_flush(&self, state: &mut CachedDiskState) -> Option<CacheStep> {
        let oldest = state.order.oldest();
        if !state.flushing.is_empty() || state.flushes.front()?.0 >= oldest {
            return None;
        }
        if let Err(error) = self.verdict(state) {
            let (_, done) = state.flushes.pop_front()?;
            return Some(CacheStep::Tell(vec![(done, Err(error))]));
        }
        let ready = state.flushes.partition_point(|(epoch, _)| *epoch < oldest);
        state.flushing = state.flushes.drain(..ready).map(|(_, done)| done).collect();
        state.trouble.flush_begins();
        Some(CacheStep::Flush)
    }

    fn take(self: &Arc<Self>, turn: CacheStep) {
        match turn {
            CacheStep::ReadAgain(block, id) => self.read_again(block, id),
            CacheStep::Apply(write) => self.apply(write),
            CacheStep::Device(DeviceWork::Write(first, blocks)) => self.write_back(first, blocks),
            CacheStep::Device(DeviceWork::Discard(blocks)) => {
                let (disk, per_block) = (self.clone(), self.per_block());
                let at = blocks.start * per_block;
                let count = (blocks.end * per_block).min(self.sectors()).saturating_sub(at);
                // A discard is a hint, so a device's refusal is not an error.
                self.device.submit(Io::other(Op::Discard, at, count, move |_| {
                    lock(&disk.state).order.discarded();
                    disk.run();
                }));
            }
            CacheStep::Flush => {
                let disk = self.clone();
                self.device.submit(Io::other(Op::Flush, 0, 0, move |result| {
                    let mut state = lock(&disk.state);
                    state.trouble.flush_ended(&result);
                    let told = std::mem::take(&mut state.flushing);
                    drop(state);
                    told.into_iter().for_each(|done| done(result.clone()));
                    disk.run();
                }));
            }
            CacheStep::Ahead(range) => {
                let rest = self.begin_ahead(range);
                if !rest.is_empty() {
                    lock(&self.state).ahead.push_front(rest);
                }
            }
            CacheStep::Tell(told) => told.into_iter().for_each(|(done, result)| done(result)),
            CacheStep::Seen(told) => told.into_iter().for_each(|(io, result)| io.end(result)),
        }
    }

    fn write_back(self: &Arc<Self>, first: u64, mut blocks: Vec<Bytes>) {
        let run = first..first + blocks.len() as u64;
        let data = match blocks.len() {
            1 => blocks.remove(0),
            _ => {
                let mut all = BytesMut::with_capacity(blocks.iter().map(Bytes::len).sum());
                blocks.iter().for_each(|block| all.extend_from_slice(block));
                all.freeze()
            }
        };
        self.shared.count.writes.fetch_add(1, Relaxed);
        let disk = self.clone();
        self.device.submit(Io::write(first * self.per_block(), data, move |result| {
            disk.wrote(run, result);
            disk.run();
        }));
    }

    /// Reads a block by itself, if an operation waits for it.
    fn read_again(self: &Arc<Self>, block: u64, id: u64) {
        let key = self.key(block);
        let mut shard = lock(self.shared.shard(key));
        let is_wanted = shard.get(key).filter(|entry| entry.id == id).and_then(|entry| match &entry.held {
            EntryContent::Reading(waiters) => Some(!waiters.is_empty()),
            EntryContent::Data(_) => None,
        });
        if is_wanted == Some(false) {
            let gone = shard.remove(key).expect("it is there, above");
            self.shared.held.fetch_sub(1, Relaxed);
            self.shared.ahead.fetch_sub(usize::from(gone.ahead), Relaxed);
        }
        drop(shard);
        match is_wanted {
            Some(true) => self.read(block, vec![id], false),
            _ => drop(self.shared.reading.fetch_sub(1, Relaxed)),
        }
    }
}
