//! Writes of a device through the cache: into the table, and their results on the device.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::{Bytes, BytesMut};

use super::disk::CachedDisk;
use super::order::WriteEnd;
use super::shard::{BlockEntry, EntryContent};
use super::{BlockWaiter, BlockWrite};
use crate::error::{Error, Kind, Result};
use crate::sync::lock;

impl CachedDisk {
    /// Writes a block or a part of one. The write ends when it is in the cache.
    pub(super) fn write(self: &Arc<Self>, write: BlockWrite) {
        let mut state = lock(&self.state);
        state.trouble.asked();
        if let Some(error) = state.trouble.stopped.clone() {
            drop(state);
            return (write.done)(Err(error));
        }
        if state.order.failed().contains(&write.block) {
            state.coming += 1;
            self.account(&mut state);
        } else if !state.writers.is_empty() || !self.take_slot(&mut state) {
            state.writers.push_back(write);
            drop(state);
            return self.run();
        }
        drop(state);
        self.apply(write);
        self.run();
    }

    /// Performs a write that has a slot.
    pub(super) fn apply(self: &Arc<Self>, write: BlockWrite) {
        let key = self.key(write.block);
        let mut state = lock(&self.state);
        let mut shard = lock(self.shared.shard(key));
        let is_whole = write.skip == 0 && write.data.len() == self.len(write.block);
        let data = match shard.wanted(key) {
            found if is_whole => {
                if found.is_some_and(|(_, ahead)| ahead) {
                    self.used_ahead();
                }
                write.data
            }
            Some((BlockEntry { held: EntryContent::Reading(waiters), .. }, ahead)) => {
                waiters.push(BlockWaiter::Write(write));
                if ahead {
                    self.used_ahead();
                }
                return;
            }
            Some((BlockEntry { held: EntryContent::Data(data), .. }, ahead)) => {
                let result = self.patch(data, &write);
                if ahead {
                    self.used_ahead();
                }
                match result {
                    Ok(data) => data,
                    Err(error) => {
                        drop(shard);
                        state.coming -= 1;
                        self.account(&mut state);
                        drop(state);
                        return (write.done)(Err(error));
                    }
                }
            }
            None => {
                let id =
                    shard.insert(key, EntryContent::Reading(vec![BlockWaiter::Write(write)]), false, false);
                self.shared.held.fetch_add(1, Relaxed);
                self.shared.reading.fetch_add(1, Relaxed);
                self.shared.count.misses.fetch_add(1, Relaxed);
                drop((shard, state));
                self.shared.make_room(key);
                return self.read(key.1, vec![id], false);
            }
        };
        state.coming -= 1;
        state.order.put(key.1, data.clone());
        let mut told = vec![write.done];
        let mut readers = Vec::new();
        match shard.get(key) {
            Some(entry) => {
                entry.dirty = true;
                if let EntryContent::Reading(waiters) =
                    std::mem::replace(&mut entry.held, EntryContent::Data(data.clone()))
                {
                    // These operations began before this write ended. Readers get the new data; waiting writes count as
                    // overwritten by it.
                    for waiter in waiters {
                        match waiter {
                            BlockWaiter::Read(done) => readers.push(done),
                            BlockWaiter::Write(write) => {
                                state.coming -= 1;
                                told.push(write.done);
                            }
                        }
                    }
                }
            }
            None => {
                shard.insert(key, EntryContent::Data(data.clone()), true, false);
                self.shared.held.fetch_add(1, Relaxed);
            }
        }
        drop(shard);
        self.account(&mut state);
        drop(state);
        self.shared.make_room(key);
        told.into_iter().for_each(|done| done(Ok(Bytes::new())));
        readers.into_iter().for_each(|done| done(Ok(data.clone())));
    }

    /// Returns a block with a part of it changed.
    pub(super) fn patch(&self, block: &Bytes, write: &BlockWrite) -> Result<Bytes> {
        let to = write.skip + write.data.len();
        if to > block.len() {
            return Err(Error::new(Kind::Range, "it has become smaller").of(self.device.name()));
        }
        let mut new = BytesMut::from(&block[..]);
        new[write.skip..to].copy_from_slice(&write.data);
        Ok(new.freeze())
    }

    /// Takes the result of a write of these blocks to the device.
    pub(super) fn wrote(&self, blocks: Range<u64>, result: Result<Bytes>) {
        let mut state = lock(&self.state);
        let end = match result {
            Ok(_) => {
                state.trouble.wrote(blocks.clone());
                self.shared.count.written.fetch_add(blocks.end - blocks.start, Relaxed);
                WriteEnd::Written
            }
            Err(error) if state.trouble.failed(&error) => WriteEnd::Back,
            Err(_) => WriteEnd::Failed,
        };
        for block in state.order.ended(blocks, end) {
            self.clean(block);
        }
        self.account(&mut state);
    }
}
