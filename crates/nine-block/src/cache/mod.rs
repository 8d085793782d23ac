//! Blocks of many devices, kept in one memory.
//!
//! In: reads and writes of devices ([`Cached`], which is a [`Device`](crate::Device) too). Out: to the devices below,
//! reads of what is not here, each once; writes of what has become dirty, neighbours together, when a flush, its age
//! or the want of room says so.
//!
//! ```text
//! Cached -> Disk -> shards (blocks by device and address, which one goes)
//!             |---> order (what is dirty, behind which barrier)
//!             |---> trouble (what may be lost)    |---> streams (what will be wanted)
//! ```
//! Memory is bounded: of [`Options::memory`] three eighths at most are dirty, an eighth is read at a time, an eighth
//! has been read ahead and not used yet. So there is always a block that can go. Beside it are the buffers of what is
//! under way (of a device [`WRITES`] writes and the reads that its users wait for), and what users keep of what they
//! were given. Blocks that were read together share their memory until one is found worth keeping; of such runs at most
//! five quarters of the memory live at a time, whatever has become of their blocks.
//!
//! Always holds: no lock is held over an operation of a device, nor while somebody is told; a device's lock is taken
//! before a shard's, and of shards one at a time.

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
use disk::Disk;
use shard::{Key, Shard};

/// Writes to a device that are under way at a time; what is dirty beyond waits, and grows together.
const WRITES: usize = 4;
/// Blocks that a device may have dirty whatever the others have.
const OWN: usize = if cfg!(nine_loom) { 1 } else { 8 };
/// Fewer blocks are no cache.
const FEWEST: usize = if cfg!(nine_loom) { 8 } else { 128 };

/// How large everything is.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of a block, a multiple of [`SECTOR`].
    pub block: u64,
    /// Bytes of all blocks together; 128 blocks at least.
    pub memory: u64,
    /// Parts of the table, each with a lock of its own.
    pub shards: usize,
    /// Bytes of the largest operation that neighbouring blocks are put together to.
    pub largest: u64,
    /// What is read ahead.
    pub ahead: Ahead,
}

impl Default for Options {
    fn default() -> Self {
        Self { block: 8 << 10, memory: 64 << 20, shards: 16, largest: 1 << 20, ahead: Ahead::default() }
    }
}

/// A memory of blocks. Cheap to clone.
#[derive(Clone)]
pub struct Cache(Arc<Shared>);

struct Shared {
    options: Options,
    shards: Box<[Mutex<Shard>]>,
    /// Blocks that there is memory for.
    most: usize,
    /// Of these, what is held: blocks of the table, and older versions of dirty ones.
    held: AtomicUsize,
    /// Blocks that are read from devices.
    reading: AtomicUsize,
    /// Blocks that are to be read ahead, or were, and have not been used.
    ahead: AtomicUsize,
    /// Blocks that are dirty.
    dirty: AtomicUsize,
    /// Of these, what devices have beyond their own.
    pool: AtomicUsize,
    devices: AtomicUsize,
    /// Blocks of the runs that share their memory.
    lent: Arc<AtomicUsize>,
    next: AtomicU32,
    count: Count,
}

/// Blocks that were read together, in one memory, until the last of them is gone.
struct Run {
    data: Bytes,
    blocks: usize,
    lent: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Count {
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

/// Who waits for a block.
enum Waiter {
    Read(Done),
    /// It changes a part of it.
    Write(Write),
}

/// A part of a block, or all of it, that is written.
struct Write {
    block: u64,
    /// Bytes before it.
    skip: usize,
    data: Bytes,
    done: Done,
}

impl Cache {
    /// With nothing in it.
    ///
    /// # Panics
    /// If a block is no number of whole sectors, or there are no shards: a mistake of ours.
    pub fn new(options: Options) -> Self {
        let Options { block, shards, memory, .. } = options;
        assert!(block > 0 && block.is_multiple_of(SECTOR) && shards > 0, "no cache: {options:?}");
        let most = ((memory / block) as usize).max(FEWEST);
        let shard = || Mutex::new(Shard::new(most.div_ceil(shards)));
        Self(Arc::new(Shared {
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
            count: Count::default(),
        }))
    }

    /// A device, seen through the cache. Nobody else writes to it: that would not be seen.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] if there is no memory for another one: each has 8 dirty blocks of its own.
    pub fn over(&self, device: Arc<dyn Device>) -> Result<Cached> {
        let fits = |devices| (OWN * (devices + 1) <= self.0.dirty_most()).then_some(devices + 1);
        if self.0.devices.fetch_update(Relaxed, Relaxed, fits).is_err() {
            let text = format!("the cache of {} blocks is too small for another device", self.0.most);
            return Err(Error::new(Kind::Unsupported, text).of(device.name()));
        }
        let number = self.0.next.fetch_add(1, Relaxed);
        Ok(Cached::new(Disk::new(self.0.clone(), number, device)))
    }

    /// What has happened, and what is there now.
    pub fn stats(&self) -> Stats {
        let Shared { count, .. } = &*self.0;
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

impl Shared {
    /// Blocks of all devices that may be dirty. Who writes again what could not be written may go beyond, up to twice
    /// as many.
    fn dirty_most(&self) -> usize {
        self.most * 3 / 8
    }

    /// Of these, those of one device: half, so that one that is slow or gone leaves room to the others.
    fn device_most(&self) -> usize {
        self.dirty_most() / 2
    }

    /// Dirty blocks that devices may have beyond their own, all together.
    fn pool_most(&self) -> usize {
        self.dirty_most() - OWN * self.devices.load(Relaxed)
    }

    /// Blocks that may be read at a time, and kept.
    fn reading_most(&self) -> usize {
        self.most / 8
    }

    /// Blocks that may be read ahead now: none where memory is short.
    fn ahead_room(&self) -> u64 {
        let is_short = self.reading.load(Relaxed) * 2 > self.reading_most()
            || self.dirty.load(Relaxed) * 4 > self.dirty_most() * 3;
        if is_short { 0 } else { (self.most / 8).saturating_sub(self.ahead.load(Relaxed)) as u64 }
    }

    /// These blocks, read together, with the memory that they have in common; `None` where too much is lent already.
    fn lend(&self, data: &Bytes, blocks: usize) -> Option<Bytes> {
        let fits = |lent| (lent + blocks <= self.most + self.most / 4).then_some(lent + blocks);
        self.lent.fetch_update(Relaxed, Relaxed, fits).ok()?;
        Some(Bytes::from_owner(Run { data: data.clone(), blocks, lent: self.lent.clone() }))
    }

    fn place(&self, (device, block): Key) -> usize {
        let mixed = (block ^ u64::from(device) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize % self.shards.len()
    }

    fn shard(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[self.place(key)]
    }

    /// Blocks go until there are no more than there is memory for: of this block's shard, and where it has none that
    /// can go, of the next ones.
    fn make_room(&self, key: Key) {
        let from = self.place(key);
        while self.held.load(Relaxed) > self.most {
            let mut shards = (from..from + self.shards.len()).map(|at| &self.shards[at % self.shards.len()]);
            // Others may have made it meanwhile.
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

impl AsRef<[u8]> for Run {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.lent.fetch_sub(self.blocks, Relaxed);
    }
}

/// What a cache has done, in blocks where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of a block.
    pub block: u64,
    /// There is memory for so many.
    pub most: u64,
    /// There are so many.
    pub held: u64,
    /// Of these, what is not on its device.
    pub dirty: u64,
    /// What was read together and shares its memory takes so many, gone or not.
    pub lent: u64,
    /// Wanted, and there.
    pub hits: u64,
    /// Wanted, and not there.
    pub misses: u64,
    /// Wanted, and read for another already.
    pub joined: u64,
    /// Wanted, and not kept, because too many were read at the time. They are among the misses.
    pub passed: u64,
    /// Gone for others.
    pub evictions: u64,
    /// Written to devices.
    pub written: u64,
    /// Operations that wrote them.
    pub writes: u64,
    /// Read ahead.
    pub ahead: u64,
    /// Of these, used.
    pub ahead_used: u64,
    /// Of these, gone without.
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
