//! A shard of the table: blocks by device and address, and the eviction policy (S3-FIFO: Yang and others, "FIFO queues
//! are all you need for cache eviction", 2023).
//!
//! Why this policy: blocks read once pass through a small queue and never disturb the large one, so a scan of any
//! length costs a tenth of the memory. A hit changes one byte in its entry and moves nothing, where LRU and 2Q relink
//! lists under the lock. Its code is a third of CLOCK-Pro's. Measured (tests/it/cache, `a_hot_set_..`): of a hot set of
//! half the cache all is held after a scan of 10 times the cache, of which LRU holds nothing.
//!
//! Always holds: dirty blocks, and those being read, are not evicted. Each block is in one of the two queues once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;

use super::BlockWaiter;

/// The number of the device, and the block.
pub(super) type BlockKey = (u32, u64);

/// Maximum count of uses.
const USES: u8 = 3;

/// A shard of the table.
pub(super) struct TableShard {
    entries: HashMap<BlockKey, BlockEntry>,
    /// New blocks: a tenth.
    small: VecDeque<(BlockKey, u64)>,
    /// Blocks that were used again.
    main: VecDeque<(BlockKey, u64)>,
    /// Keys that recently left `small`, without their data. If a block comes back from here it goes to `main`. At most
    /// `share`.
    ghosts: HashSet<BlockKey>,
    ghost_order: VecDeque<BlockKey>,
    /// The shard's share of blocks, if they are distributed evenly.
    share: usize,
    next: u64,
    /// The block used last. Using it again at once counts as the same use, because a reader may read a block in pieces.
    last: Option<BlockKey>,
    pub(super) hits: u64,
}

/// A block that is in the cache, or is being read.
pub(super) struct BlockEntry {
    pub(super) held: EntryContent,
    /// Differs from the block on the device.
    pub(super) dirty: bool,
    /// Read ahead, and not used yet.
    pub(super) ahead: bool,
    /// Unique among all entries.
    pub(super) id: u64,
    uses: u8,
    /// It is in `main`, or will be.
    stays: bool,
    /// Its memory is shared with blocks that were read together.
    lent: bool,
}

impl BlockEntry {
    /// Sets the data that was read. A block in `main` gets its own memory, so that it does not keep its neighbours'.
    pub(super) fn fill(&mut self, data: Bytes, lent: bool) {
        self.held = EntryContent::Data(data);
        self.lent = lent;
        if self.stays {
            self.own();
        }
    }

    fn own(&mut self) {
        if let EntryContent::Data(data) = &mut self.held
            && std::mem::take(&mut self.lent)
        {
            *data = Bytes::copy_from_slice(data);
        }
    }
}

pub(super) enum EntryContent {
    Data(Bytes),
    /// Being read; the operations that wait for it.
    Reading(Vec<BlockWaiter>),
}

impl TableShard {
    pub(super) fn new(share: usize) -> Self {
        Self {
            entries: HashMap::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: HashSet::new(),
            ghost_order: VecDeque::new(),
            share,
            next: 0,
            last: None,
            hits: 0,
        }
    }

    /// Returns the entry of a block that is used, and whether it was read ahead for that.
    pub(super) fn wanted(&mut self, key: BlockKey) -> Option<(&mut BlockEntry, bool)> {
        let again = self.last.replace(key) == Some(key);
        let entry = self.entries.get_mut(&key)?;
        let ahead = std::mem::take(&mut entry.ahead);
        if !again && !ahead {
            entry.uses = USES.min(entry.uses + 1);
        }
        Some((entry, ahead))
    }

    /// Returns an entry without counting a use.
    pub(super) fn get(&mut self, key: BlockKey) -> Option<&mut BlockEntry> {
        self.entries.get_mut(&key)
    }

    /// Inserts a block that is not there. Returns the id of its entry.
    pub(super) fn insert(&mut self, key: BlockKey, held: EntryContent, dirty: bool, ahead: bool) -> u64 {
        self.next += 1;
        let id = self.next;
        let stays = self.ghosts.remove(&key);
        let entry = BlockEntry { held, dirty, ahead, id, uses: 0, stays, lent: false };
        let before = self.entries.insert(key, entry);
        assert!(before.is_none(), "a block was inserted that is here");
        match stays {
            true => self.main.push_back((key, id)),
            false => self.small.push_back((key, id)),
        }
        // Removed entries are still in the queues.
        if self.small.len() + self.main.len() > 2 * self.entries.len() + 64 {
            let entries = &self.entries;
            let is_here = |(key, id): &(BlockKey, u64)| entries.get(key).is_some_and(|entry| entry.id == *id);
            self.small.retain(is_here);
            self.main.retain(is_here);
        }
        id
    }

    pub(super) fn remove(&mut self, key: BlockKey) -> Option<BlockEntry> {
        self.entries.remove(&key)
    }

    /// Returns the blocks of a device in this range that have data.
    pub(super) fn among(&self, device: u32, range: &Range<u64>) -> Vec<u64> {
        let is_data = |entry: &BlockEntry| matches!(entry.held, EntryContent::Data(_));
        let here = self
            .entries
            .iter()
            .filter(|((of, block), entry)| *of == device && range.contains(block) && is_data(entry));
        here.map(|((_, block), _)| *block).collect()
    }

    /// Evicts a block. `None`: all must stay.
    pub(super) fn evict(&mut self) -> Option<BlockEntry> {
        // Each block is visited once in `small`, and in `main` once for each use.
        let mut looks = (self.small.len() + self.main.len()) * (usize::from(USES) + 2);
        while looks > 0 {
            looks -= 1;
            let from_small = self.small.len() > self.share / 10 || self.main.is_empty();
            let (key, id) = if from_small { self.small.pop_front() } else { self.main.pop_front() }?;
            let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.id == id) else { continue };
            let stays = if entry.dirty || matches!(entry.held, EntryContent::Reading(_)) {
                true
            } else if from_small {
                std::mem::take(&mut entry.uses) > 1
            } else {
                let uses = entry.uses;
                entry.uses = uses.saturating_sub(1);
                uses > 0
            };
            if stays {
                entry.stays = true;
                entry.own();
                self.main.push_back((key, id));
                continue;
            }
            if from_small {
                self.remember(key);
            }
            return self.entries.remove(&key);
        }
        None
    }

    fn remember(&mut self, key: BlockKey) {
        if self.ghosts.insert(key) {
            self.ghost_order.push_back(key);
        }
        while self.ghost_order.len() > self.share {
            let gone = self.ghost_order.pop_front().expect("it is longer than that");
            self.ghosts.remove(&gone);
        }
    }
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use super::*;

    fn data() -> EntryContent {
        EntryContent::Data(Bytes::from_static(b"x"))
    }

    /// Reads blocks. Returns how many were in the shard.
    fn read(shard: &mut TableShard, blocks: impl IntoIterator<Item = u64>) -> usize {
        let mut here = 0;
        for block in blocks {
            if shard.wanted((0, block)).is_some() {
                here += 1;
                continue;
            }
            if shard.entries.len() == shard.share {
                assert!(shard.evict().is_some());
            }
            shard.insert((0, block), data(), false, false);
        }
        here
    }

    #[test]
    fn a_scan_leaves_alone_what_was_wanted_again() {
        let mut shard = TableShard::new(100);
        read(&mut shard, (0..200).map(|n| n % 50));
        assert_eq!(read(&mut shard, 1000..2000), 0);
        assert_eq!(read(&mut shard, 0..50), 50);
    }

    #[test]
    fn a_block_read_in_pieces_was_used_once() {
        let mut shard = TableShard::new(10);
        read(&mut shard, (0..1600).map(|n| n / 16));
        assert_eq!(shard.main.len(), 0);
    }

    #[test]
    fn what_must_stay_stays() {
        let mut shard = TableShard::new(10);
        for block in 0..10 {
            let held = if block % 2 == 0 { EntryContent::Reading(Vec::new()) } else { data() };
            shard.insert((0, block), held, block % 4 == 1, false);
        }
        assert!(shard.evict().is_some() && shard.evict().is_some());
        assert!(shard.evict().is_none());
        let mut left: Vec<u64> = shard.entries.keys().map(|(_, block)| *block).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1, 2, 4, 5, 6, 8, 9]);
    }

    #[test]
    fn the_queues_do_not_grow_with_what_is_removed() {
        let mut shard = TableShard::new(10);
        for block in 0..10_000 {
            shard.insert((0, block), data(), true, false);
            assert!(shard.remove((0, block)).is_some());
        }
        assert!(shard.small.len() + shard.main.len() < 100);
    }
}
