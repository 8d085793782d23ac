//! A device of a cache: what is known of it, and what of the memory it has.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::ahead::Streams;
use super::order::Order;
use super::shard::{Entry, Held, Key};
use super::trouble::Trouble;
use super::{OWN, Shared, Write};
use crate::device::{Device, Done, Io, SECTOR};
use crate::sync::{Mutex, lock};

/// See the module.
pub(super) struct Disk {
    pub(super) shared: Arc<Shared>,
    number: u32,
    pub(super) device: Arc<dyn Device>,
    sectors: AtomicU64,
    pub(super) streams: Mutex<Streams>,
    pub(super) state: Mutex<State>,
}

/// What is not a matter of single blocks.
pub(super) struct State {
    pub(super) order: Order,
    pub(super) trouble: Trouble,
    /// Writes that have a place among the dirty blocks, and are not there yet.
    pub(super) coming: usize,
    /// Places among the dirty blocks, as they were counted last: `order.len() + coming`.
    slots: usize,
    /// Versions of blocks beyond the first, as they were counted last.
    extra: usize,
    /// Those for whom there is no place.
    pub(super) writers: VecDeque<Write>,
    /// What is of epochs up to this one is to be written.
    pub(super) up_to: u64,
    /// So much is dirty that it is written before somebody must wait.
    pub(super) hurry: bool,
    /// Those who wait for all up to an epoch, rising.
    pub(super) flushes: VecDeque<(u64, Done)>,
    /// Those who have looked at it, and wait until it can be seen to have grown.
    pub(super) looks: Vec<Io>,
    /// Those for whom the device is flushed now; none: it is not.
    pub(super) flushing: Vec<Done>,
    /// Blocks that were read together with others, in vain, and are read alone now. At most what is read at a time.
    pub(super) again: VecDeque<(u64, u64)>,
    /// What is to be read ahead: what [`Shared::ahead_room`] has room for.
    pub(super) ahead: VecDeque<Range<u64>>,
    /// Reads ahead that are under way.
    pub(super) aheads: usize,
    /// Somebody takes the device's turns.
    pub(super) running: bool,
}

/// Whether a device can be seen as it is now; if not, what its last block is.
pub(super) enum Sight {
    Clear,
    Read,
    Dirty,
}

impl Disk {
    pub(super) fn new(shared: Arc<Shared>, number: u32, device: Arc<dyn Device>) -> Self {
        let streams = Mutex::new(Streams::new(shared.options.ahead, shared.options.block));
        let state = State {
            order: Order::new(),
            trouble: Trouble::default(),
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

    /// Sectors of a block.
    pub(super) fn per_block(&self) -> u64 {
        self.shared.options.block / SECTOR
    }

    /// Bytes of this block; 0 if the device has become smaller.
    pub(super) fn len(&self, block: u64) -> usize {
        let rest = self.sectors().saturating_sub(block * self.per_block());
        (rest.min(self.per_block()) * SECTOR) as usize
    }

    /// Blocks of the largest operation.
    pub(super) fn run_most(&self) -> usize {
        let largest = (self.shared.options.largest / SECTOR).min(u64::from(self.device.shape().most));
        ((largest / self.per_block()) as usize).max(1)
    }

    pub(super) fn key(&self, block: u64) -> Key {
        (self.number, block)
    }

    /// A place among the dirty blocks, if there is one.
    pub(super) fn take_slot(&self, state: &mut State) -> bool {
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

    /// Gives back what is not needed any more, wherever it is counted.
    pub(super) fn account(&self, state: &mut State) {
        let slots = state.order.len() + state.coming;
        let extra = state.order.extra();
        let over = |slots: usize| slots.saturating_sub(OWN);
        // What becomes less wraps round, and so does the sum.
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

    /// These blocks are not wanted any more.
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

    /// The device was looked at: it is seen as it is now, if it can be. What is here of its last block is shorter than
    /// it should be where it has become larger: as long as that is dirty or read just now, it cannot.
    pub(super) fn sees(&self, state: &mut State) -> Sight {
        let (now, before) = (self.device.shape().sectors, self.sectors());
        let key = self.key(before / self.per_block());
        let mut shard = lock(self.shared.shard(key));
        if now > before && !before.is_multiple_of(self.per_block()) {
            match shard.get(key) {
                Some(Entry { held: Held::Reading(_), .. }) => return Sight::Read,
                Some(entry) if entry.dirty => {
                    if state.order.oldest() > state.up_to {
                        state.up_to = state.order.seal();
                    }
                    return Sight::Dirty;
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
        Sight::Clear
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        // What is clean goes when others need the room; what is dirty would stay.
        for block in state.order.blocks() {
            self.clean(block);
        }
        state.order = Order::new();
        self.account(&mut state);
        self.shared
            .ahead
            .fetch_sub(state.ahead.iter().map(|range| (range.end - range.start) as usize).sum(), Relaxed);
        self.shared.devices.fetch_sub(1, Relaxed);
    }
}
