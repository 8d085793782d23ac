//! A cache of the blocks of many devices, in one memory.
//!
//! In: reads and writes of devices ([`Cached`], which is a [`Device`](crate::Device) too). Out: reads of missing
//! blocks, each once; writes of dirty blocks, adjacent ones together, because of a flush, their age, or lack of room.
//!
//! ```text
//! Cached -> Disk -> shards (blocks by device and address, which one goes)
//!             |---> order (what is dirty, behind which barrier)
//!             |---> trouble (what may be lost)    |---> streams (what will be wanted)
//! ```
//! Memory is bounded. Of [`Options::memory`] at most three eighths are dirty, an eighth is being read, and an eighth
//! was read ahead and not used yet. So there is always a block that can be evicted. Additional memory is used by the
//! buffers of operations in flight (for each device [`WRITES`] writes, and the reads that its users wait for), and by
//! data that users hold. Blocks that were read together share their memory until one is promoted. Such runs together
//! take at most five quarters of the memory, even if their blocks were evicted.
//!
//! Always holds: no lock is held during a device operation or a callback. A device's lock is taken before a shard's,
//! and only one shard's at a time.

mod ahead;
mod cached;
mod disk;
mod order;
mod read;
mod shard;
mod trouble;
mod turn;
mod view;
mod write;

#[cfg(all(test, nine_loom))]
mod any_order;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;

use crate::device::{Device, Done, SECTOR};
use crate::error::{Error, Kind, Result};
use crate::sync::{Mutex, lock};

pub use ahead::Ahead;
pub use cached::Cached;
use disk::CachedDisk;
use shard::{BlockKey, TableShard};

/// Maximum number of writes to a device in flight; further dirty blocks wait, and are combined.
const WRITES: usize = 4;
/// Number of dirty blocks guaranteed to each device.
const OWN: usize = if cfg!(nine_loom) { 1 } else { 8 };
/// Minimum number of blocks of a cache.
const CACHE_BLOCKS_MIN: usize = if cfg!(nine_loom) { 8 } else { 128 };

/// The sizes and policies of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of a block, a multiple of [`SECTOR`].
    pub block: u64,
    /// Bytes of all blocks; the minimum is 128 blocks.
    pub memory: u64,
    /// Shards of the table, each with its own lock.
    pub shards: usize,
    /// Maximum bytes of an operation that combines adjacent blocks.
    pub largest: u64,
    /// The read-ahead policy.
    pub ahead: Ahead,
}

impl Default for Options {
    fn default() -> Self {
        Self { block: 8 << 10, memory: 64 << 20, shards: 16, largest: 1 << 20, ahead: Ahead::default() }
    }
}

/// A cache. Cheap to clone.
#[derive(Clone)]
pub struct Cache(Arc<CacheShared>);

struct CacheShared {
    options: Options,
    shards: Box<[Mutex<TableShard>]>,
    /// Maximum number of blocks.
    most: usize,
    /// Blocks in the table, and older versions of dirty blocks.
    held: AtomicUsize,
    /// Blocks that are being read from devices.
    reading: AtomicUsize,
    /// Blocks that are to be read ahead, or were and have not been used.
    ahead: AtomicUsize,
    /// Dirty blocks.
    dirty: AtomicUsize,
    /// Dirty blocks beyond those guaranteed to each device.
    pool: AtomicUsize,
    devices: AtomicUsize,
    /// Blocks of the runs that share their memory.
    lent: Arc<AtomicUsize>,
    next: AtomicU32,
    count: CacheCounters,
}

/// The shared memory of blocks that were read together. It lives until the last of them is dropped.
struct BlockRun {
    data: Bytes,
    blocks: usize,
    lent: Arc<AtomicUsize>,
}

#[derive(Default)]
struct CacheCounters {
    misses: AtomicU64,
    joined: AtomicU64,
    passed: AtomicU64,
    evictions: AtomicU64,
    written: AtomicU64,
    writes: AtomicU64,
    ahead: AtomicU64,
    ahead_used: AtomicU64,
    ahead_in_vain: AtomicU64,
}

/// An operation that waits for a block to be read.
enum BlockWaiter {
    Read(Done),
    /// Changes a part of the block.
    Write(BlockWrite),
}

/// A write of a block or a part of one.
struct BlockWrite {
    block: u64,
    /// The offset of the data in the block, in bytes.
    skip: usize,
    data: Bytes,
    done: Done,
}

impl Cache {
    /// Creates an empty cache.
    ///
    /// # Panics
    /// If a block is not a whole number of sectors, or there are no shards. That is a bug of the caller.
    pub fn new(options: Options) -> Self {
        let Options { block, shards, memory, .. } = options;
        assert!(block > 0 && block.is_multiple_of(SECTOR) && shards > 0, "no cache: {options:?}");
        let most = ((memory / block) as usize).max(CACHE_BLOCKS_MIN);
        let shard = || Mutex::new(TableShard::new(most.div_ceil(shards)));
        Self(Arc::new(CacheShared {
            options,
            shards: std::iter::repeat_with(shard).take(shards).collect(),
            most,
            held: AtomicUsize::new(0),
            reading: AtomicUsize::new(0),
            ahead: AtomicUsize::new(0),
            dirty: AtomicUsize::new(0),
            pool: AtomicUsize::new(0),
            devices: AtomicUsize::new(0),
            lent: Arc::default(),
            next: AtomicU32::new(0),
            count: CacheCounters::default(),
        }))
    }

    /// Adds a device. Nothing else may write to it, because the cache would not notice.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] if there is no memory for another device: each has 8 dirty blocks of its own.
    pub fn over(&self, device: Arc<dyn Device>) -> Result<Cached> {
        let fits = |devices| (OWN * (devices + 1) <= self.0.dirty_most()).then_some(devices + 1);
        if self.0.devices.fetch_update(Relaxed, Relaxed, fits).is_err() {
            let text = format!("the cache of {} blocks is too small for another device", self.0.most);
            return Err(Error::new(Kind::Unsupported, text).of(device.name()));
        }
        let number = self.0.next.fetch_add(1, Relaxed);
        Ok(Cached::new(CachedDisk::new(self.0.clone(), number, device)))
    }

    /// Returns the counters and the present sizes.
    pub fn stats(&self) -> Stats {
        let CacheShared { count, .. } = &*self.0;
        Stats {
            block: self.0.options.block,
            most: self.0.most as u64,
            held: self.0.held.load(Relaxed) as u64,
            dirty: self.0.dirty.load(Relaxed) as u64,
            lent: self.0.lent.load(Relaxed) as u64,
            hits: self.0.shards.iter().map(|shard| lock(shard).hits).sum(),
            misses: count.misses.load(Relaxed),
            joined: count.joined.load(Relaxed),
            passed: count.passed.load(Relaxed),
            evictions: count.evictions.load(Relaxed),
            written: count.written.load(Relaxed),
            writes: count.writes.load(Relaxed),
            ahead: count.ahead.load(Relaxed),
            ahead_used: count.ahead_used.load(Relaxed),
            ahead_in_vain: count.ahead_in_vain.load(Relaxed),
        }
    }
}

impl CacheShared {
    /// Returns the maximum number of dirty blocks. Rewrites of failed blocks may exceed it, up to twice.
    fn dirty_most(&self) -> usize {
        self.most * 3 / 8
    }

    /// Returns the maximum for one device: half, so that a slow or dead device leaves room for others.
    fn device_most(&self) -> usize {
        self.dirty_most() / 2
    }

    /// Returns the maximum for all devices together, beyond the blocks guaranteed to each.
    fn pool_most(&self) -> usize {
        self.dirty_most() - OWN * self.devices.load(Relaxed)
    }

    /// Returns the maximum number of blocks that may be read at a time and cached.
    fn reading_most(&self) -> usize {
        self.most / 8
    }

    /// Returns the number of blocks that may be read ahead now; 0 if memory is short.
    fn ahead_room(&self) -> u64 {
        let is_short = self.reading.load(Relaxed) * 2 > self.reading_most()
            || self.dirty.load(Relaxed) * 4 > self.dirty_most() * 3;
        if is_short { 0 } else { (self.most / 8).saturating_sub(self.ahead.load(Relaxed)) as u64 }
    }

    /// Returns blocks that were read together, with their shared memory counted. `None` if too much is shared already.
    fn lend(&self, data: &Bytes, blocks: usize) -> Option<Bytes> {
        let fits = |lent| (lent + blocks <= self.most + self.most / 4).then_some(lent + blocks);
        self.lent.fetch_update(Relaxed, Relaxed, fits).ok()?;
        Some(Bytes::from_owner(BlockRun { data: data.clone(), blocks, lent: self.lent.clone() }))
    }

    fn place(&self, (device, block): BlockKey) -> usize {
        let mixed = (block ^ u64::from(device) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize % self.shards.len()
    }

    fn shard(&self, key: BlockKey) -> &Mutex<TableShard> {
        &self.shards[self.place(key)]
    }

    /// Evicts blocks until the limit is met: from this block's shard, or if none can go, from the next ones.
    fn make_room(&self, key: BlockKey) {
        let from = self.place(key);
        while self.held.load(Relaxed) > self.most {
            let mut shards = (from..from + self.shards.len()).map(|at| &self.shards[at % self.shards.len()]);
            // Other threads may have made room meanwhile.
            let Some(gone) = shards.find_map(|shard| lock(shard).evict()) else { return };
            self.held.fetch_sub(1, Relaxed);
            self.count.evictions.fetch_add(1, Relaxed);
            if gone.ahead {
                self.ahead.fetch_sub(1, Relaxed);
                self.count.ahead_in_vain.fetch_add(1, Relaxed);
            }
        }
    }
}

impl AsRef<[u8]> for BlockRun {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for BlockRun {
    fn drop(&mut self) {
        self.lent.fetch_sub(self.blocks, Relaxed);
    }
}

/// The counters of a cache, in blocks unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of a block.
    pub block: u64,
    /// Maximum number of blocks.
    pub most: u64,
    /// Present number of blocks.
    pub held: u64,
    /// Blocks that differ from those on their device.
    pub dirty: u64,
    /// Blocks that share memory with others, including evicted ones.
    pub lent: u64,
    /// Reads of blocks in the cache.
    pub hits: u64,
    /// Reads of missing blocks.
    pub misses: u64,
    /// Reads that joined a read in progress.
    pub joined: u64,
    /// Misses that were not cached, because too many blocks were being read.
    pub passed: u64,
    /// Evicted blocks.
    pub evictions: u64,
    /// Blocks written to devices.
    pub written: u64,
    /// Operations that wrote them.
    pub writes: u64,
    /// Blocks read ahead.
    pub ahead: u64,
    /// Of these, used.
    pub ahead_used: u64,
    /// Of these, evicted before use.
    pub ahead_in_vain: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, most, held, dirty, lent, hits, misses, joined, passed, evictions, .. } = self;
        let Self { written, writes, ahead, ahead_used, ahead_in_vain, .. } = self;
        writeln!(f, "blocks {held} of {most}, of {block} bytes, {dirty} dirty, {lent} in runs")?;
        writeln!(
            f,
            "read {hits} hits, {misses} misses, {joined} joined, {passed} passed, {evictions} evicted"
        )?;
        writeln!(f, "written {written} in {writes} writes")?;
        writeln!(f, "read ahead {ahead}, {ahead_used} used, {ahead_in_vain} in vain")
    }
}
