//! The state of one device of a cache, and its share of the memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::ahead::DeviceStreams;
use super::order::WriteOrder;
use super::shard::{BlockEntry, BlockKey, EntryContent};
use super::trouble::LostBlocks;
use super::{BlockWrite, CacheShared, OWN};
use crate::device::{Device, Done, Io, SECTOR};
use crate::sync::{Mutex, lock};

/// A device of a cache.
pub(super) struct CachedDisk {
    pub(super) shared: Arc<CacheShared>,
    number: u32,
    pub(super) device: Arc<dyn Device>,
    sectors: AtomicU64,
    pub(super) streams: Mutex<DeviceStreams>,
    pub(super) state: Mutex<CachedDiskState>,
}

/// The state that does not belong to single blocks.
pub(super) struct CachedDiskState {
    pub(super) order: WriteOrder,
    pub(super) trouble: LostBlocks,
    /// Writes that have a slot for a dirty block but are not in the table yet.
    pub(super) coming: usize,
    /// Slots for dirty blocks at the last count: `order.len() + coming`.
    slots: usize,
    /// Versions of blocks beyond the first, at the last count.
    extra: usize,
    /// Writes that wait for a slot.
    pub(super) writers: VecDeque<BlockWrite>,
    /// Epochs up to this one are to be written.
    pub(super) up_to: u64,
    /// So many blocks are dirty that writing begins before a write must wait.
    pub(super) hurry: bool,
    /// Flushes, by the epoch up to which they wait, in rising order.
    pub(super) flushes: VecDeque<(u64, Done)>,
    /// Looks that wait until the new size can be used.
    pub(super) looks: Vec<Io>,
    /// The flushes that the present flush of the device serves; empty if there is none.
    pub(super) flushing: Vec<Done>,
    /// Blocks of a failed joint read, to be read one by one. Bounded by the blocks being read.
    pub(super) again: VecDeque<(u64, u64)>,
    /// Blocks to be read ahead, bounded by [`CacheShared::ahead_room`].
    pub(super) ahead: VecDeque<Range<u64>>,
    /// Number of read-aheads in flight.
    pub(super) aheads: usize,
    /// A thread is running the steps of this device.
    pub(super) running: bool,
}

/// Whether the present size of a device can be used; if not, the state of its last block.
pub(super) enum SizeStatus {
    Clear,
    Read,
    Dirty,
}

impl CachedDisk {
    pub(super) fn new(shared: Arc<CacheShared>, number: u32, device: Arc<dyn Device>) -> Self {
        let streams = Mutex::new(DeviceStreams::new(shared.options.ahead, shared.options.block));
        let state = CachedDiskState {
            order: WriteOrder::new(),
            trouble: LostBlocks::default(),
            coming: 0,
            slots: 0,
            extra: 0,
            writers: VecDeque::new(),
            up_to: 0,
            hurry: false,
            flushes: VecDeque::new(),
            looks: Vec::new(),
            flushing: Vec::new(),
            again: VecDeque::new(),
            ahead: VecDeque::new(),
            aheads: 0,
            running: false,
        };
        let sectors = AtomicU64::new(device.shape().sectors);
        Self { shared, number, device, sectors, streams, state: Mutex::new(state) }
    }

    pub(super) fn sectors(&self) -> u64 {
        self.sectors.load(Relaxed)
    }

    /// Returns the sectors of a block.
    pub(super) fn per_block(&self) -> u64 {
        self.shared.options.block / SECTOR
    }

    /// Returns the bytes of this block; 0 if the device has shrunk.
    pub(super) fn len(&self, block: u64) -> usize {
        let rest = self.sectors().saturating_sub(block * self.per_block());
        (rest.min(self.per_block()) * SECTOR) as usize
    }

    /// Returns the maximum number of blocks of an operation.
    pub(super) fn run_most(&self) -> usize {
        let largest = (self.shared.options.largest / SECTOR).min(u64::from(self.device.shape().most));
        ((largest / self.per_block()) as usize).max(1)
    }

    pub(super) fn key(&self, block: u64) -> BlockKey {
        (self.number, block)
    }

    /// Takes a slot for a dirty block, if there is one.
    pub(super) fn take_slot(&self, state: &mut CachedDiskState) -> bool {
        let (pool, most) = (&self.shared.pool, self.shared.pool_most());
        let more = |taken| (taken < most).then_some(taken + 1);
        let is_own = state.slots < OWN;
        let takes = is_own
            || state.slots < self.shared.device_most() && pool.fetch_update(Relaxed, Relaxed, more).is_ok();
        if takes {
            state.coming += 1;
            state.slots += 1;
            self.shared.dirty.fetch_add(1, Relaxed);
        }
        takes
    }

    /// Updates the shared counts, and so frees slots.
    pub(super) fn account(&self, state: &mut CachedDiskState) {
        let slots = state.order.len() + state.coming;
        let extra = state.order.extra();
        let over = |slots: usize| slots.saturating_sub(OWN);
        // The difference may wrap around, and the sum wraps back.
        let add = |to: &AtomicUsize, new: usize, old: usize| {
            to.fetch_add(new.wrapping_sub(old), Relaxed);
        };
        add(&self.shared.pool, over(slots), over(state.slots));
        add(&self.shared.dirty, slots, state.slots);
        add(&self.shared.held, extra, state.extra);
        (state.slots, state.extra) = (slots, extra);
        let (most, pool_most) = (self.shared.device_most(), self.shared.pool_most());
        let pool = self.shared.pool.load(Relaxed);
        if slots * 4 >= most * 3 || (pool * 4 >= pool_most * 3 && slots > OWN) {
            state.hurry = true;
        } else if slots * 2 <= most && pool * 4 < pool_most * 3 {
            state.hurry = false;
        }
    }

    pub(super) fn clean(&self, block: u64) {
        let key = self.key(block);
        if let Some(entry) = lock(self.shared.shard(key)).get(key) {
            entry.dirty = false;
        }
    }

    /// Discards these blocks.
    pub(super) fn discard(self: &Arc<Self>, blocks: Range<u64>) {
        let mut state = lock(&self.state);
        state.order.discard(blocks.clone());
        state.trouble.discard(&blocks);
        for shard in &self.shared.shards {
            let mut shard = lock(shard);
            for block in shard.among(self.number, &blocks) {
                let gone = shard.remove(self.key(block)).expect("it has just been found");
                self.shared.held.fetch_sub(1, Relaxed);
                self.shared.ahead.fetch_sub(usize::from(gone.ahead), Relaxed);
            }
        }
        self.account(&mut state);
        drop(state);
        self.run();
    }

    /// Uses the present size of the device after a look, if possible. If the device has grown, the cached last block is
    /// too short, and must leave first; it cannot while it is dirty or being read.
    pub(super) fn sees(&self, state: &mut CachedDiskState) -> SizeStatus {
        let (now, before) = (self.device.shape().sectors, self.sectors());
        let key = self.key(before / self.per_block());
        let mut shard = lock(self.shared.shard(key));
        if now > before && !before.is_multiple_of(self.per_block()) {
            match shard.get(key) {
                Some(BlockEntry { held: EntryContent::Reading(_), .. }) => return SizeStatus::Read,
                Some(entry) if entry.dirty => {
                    if state.order.oldest() > state.up_to {
                        state.up_to = state.order.seal();
                    }
                    return SizeStatus::Dirty;
                }
                Some(_) => {
                    let gone = shard.remove(key).expect("it is there, above");
                    self.shared.held.fetch_sub(1, Relaxed);
                    self.shared.ahead.fetch_sub(usize::from(gone.ahead), Relaxed);
                }
                None => {}
            }
        }
        self.sectors.store(now, Relaxed);
        SizeStatus::Clear
    }
}

impl Drop for CachedDisk {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        // Clean blocks are evicted when room is needed. Dirty ones would stay for ever, so mark them clean.
        for block in state.order.blocks() {
            self.clean(block);
        }
        state.order = WriteOrder::new();
        self.account(&mut state);
        self.shared
            .ahead
            .fetch_sub(state.ahead.iter().map(|range| (range.end - range.start) as usize).sum(), Relaxed);
        self.shared.devices.fetch_sub(1, Relaxed);
    }
}
