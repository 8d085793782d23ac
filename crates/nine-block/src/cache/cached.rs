//! A device seen through the cache, by blocks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::BlockWrite;
use super::disk::CachedDisk;
use crate::call::Call;
use crate::device::{Done, SECTOR};
use crate::error::{Error, Kind, Result};
use crate::sync::lock;

/// A device seen through a [`Cache`](super::Cache): by blocks here, by sectors as a [`Device`](crate::Device). Cheap to
/// clone. When the last clone is dropped and the operations in flight have ended, dirty blocks are lost: flush before.
///
/// # Guarantees
///
/// A write ends when it is in the cache, and later reads see it. It stays in memory, and is written to the device
/// because of a flush, [`Cached::tick`], or lack of room. Of concurrent writes to the same sectors any may be the last.
/// Writes to different parts of a block do not affect each other.
///
/// [`Cached::barrier`]: a write that ended before the barrier has ended on the device before a write that began after
/// it is submitted to the device. Writes in flight may be on either side. This is the order in which the device gets
/// the writes, and so the state if this program dies. A device with its own cache may lose the former and keep the
/// latter at a power cut, unless there is a flush in between.
///
/// [`Cached::flush`]: a barrier. When it succeeds, all writes that ended before it began are on the device, and the
/// device has completed a flush submitted after them. They are durable if the device's [`Shape::durable`](crate::Shape)
/// holds.
///
/// If a write to the device fails, its blocks stay dirty in the cache, and can be read; of several blocks written
/// together all count as failed. The write is not retried. The next flush returns its error, and all further ones
/// return [`Kind::Poisoned`], until each of these blocks was written again ([`Cached::lost`] lists them). Then all
/// their data, from before the failure and after it, is written to the device in order; data after a barrier waits for
/// that. A failed flush of the device poisons in the same way all blocks written since the last successful one. They
/// must be written again even if the cache still has them, because the state of the device is unknown.
///
/// If the device answers a write or flush with [`Kind::Reserved`], writing stops: all writes and flushes return this
/// error, and no dirty block is dropped, until [`Cached::resume`]. [`Kind::Busy`] and [`Kind::Full`] do the same until
/// the next write, flush or tick.
///
/// Discarded blocks leave the cache at once. The device is told after the writes before a barrier, and before later
/// writes to these blocks. A discard is a hint: partial blocks are not discarded, and if there are many, some are
/// dropped.
///
/// # Limits
///
/// Three eighths of the cache may be dirty, and half of that for one device. A write beyond that waits, in order of
/// arrival. No write waits for ever. There are dirty blocks of the same device before it, because each device has room
/// for 8 that no other can take. Waiting makes them be written, which takes no further memory, because the data is in
/// the cache. Each write to the device ends, and so there is room. If they cannot be written, because they have failed
/// or the device is reserved, the waiting writes fail. Writing a failed block again does not wait. The number of
/// waiting writes is limited by the submitters, whose data they hold.
#[derive(Clone)]
pub struct Cached(pub(super) Arc<CachedDisk>);

impl Cached {
    pub(super) fn new(disk: CachedDisk) -> Self {
        Self(Arc::new(disk))
    }

    /// Returns the bytes of a block. The last block of a device may be shorter.
    pub fn block(&self) -> u64 {
        self.0.shared.options.block
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> u64 {
        self.0.sectors().div_ceil(self.block() / SECTOR)
    }

    /// Returns a block if it is in the cache, without copying.
    pub fn hit(&self, block: u64) -> Option<Bytes> {
        self.0.hit(block)
    }

    /// The same without ever calling the device. The flag says whether a read-ahead is due; [`go_on`](Self::go_on)
    /// begins it.
    pub fn glance(&self, block: u64) -> Option<(Bytes, bool)> {
        self.0.glance(block)
    }

    /// Begins a read-ahead that is due.
    pub fn go_on(&self) {
        self.0.run();
    }

    /// Reads consecutive blocks, in as few reads of the device as possible.
    pub fn get_all(&self, blocks: std::ops::Range<u64>) -> Vec<Call> {
        if blocks.is_empty() || self.judge(blocks.end - 1).is_err() {
            return blocks.map(|block| self.get(block)).collect();
        }
        let mut calls = Vec::new();
        self.0.fetch(blocks, |_| {
            let (done, call) = Call::pair();
            calls.push(call);
            done
        });
        calls
    }

    /// Reads a block. Concurrent reads of a block share one read of the device.
    pub fn get(&self, block: u64) -> Call {
        let (done, call) = Call::pair();
        match self.judge(block) {
            Err(error) => done(Err(error)),
            Ok(_) => {
                let mut done = Some(done);
                self.0.fetch(block..block + 1, |_| done.take().expect("there is one block"));
            }
        }
        call
    }

    /// Drops a block that will not be read again in this version. If it is being read ahead, the result is not kept.
    pub fn forget(&self, block: u64) {
        self.0.forget(block);
    }

    /// Tells the cache the content of a block that was written to the device past the cache. It is stored as if it had
    /// just been read, and answers waiting reads.
    pub fn keep(&self, block: u64, data: Bytes) {
        if self.judge(block).is_ok_and(|len| len == data.len()) {
            self.0.keep(block, data);
        }
    }

    /// Writes a whole block. The cache keeps `data` itself, and so any larger buffer that it is a part of.
    pub fn put(&self, block: u64, data: Bytes) -> Call {
        let (done, call) = Call::pair();
        match self.judge(block) {
            Err(error) => done(Err(error)),
            Ok(len) if len != data.len() => {
                let text = format!("{} bytes are no block of {len}", data.len());
                done(Err(Error::new(Kind::Range, text).of(self.0.device.name())));
            }
            Ok(_) if self.0.device.shape().read_only => {
                done(Err(Error::new(Kind::ReadOnly, "it is not written").of(self.0.device.name())));
            }
            Ok(_) => self.0.write(BlockWrite { block, skip: 0, data, done }),
        }
        call
    }

    /// Returns the bytes of a block, or an error if there is no such block.
    fn judge(&self, block: u64) -> Result<usize> {
        match block < self.blocks() {
            true => Ok(self.0.len(block)),
            false => {
                let text = format!("block {block} is not among its {}", self.blocks());
                Err(Error::new(Kind::Range, text).of(self.0.device.name()))
            }
        }
    }

    /// Orders later writes after earlier ones. See [`Cached`].
    pub fn barrier(&self) {
        lock(&self.0.state).order.seal();
    }

    /// Makes all writes durable. See [`Cached`].
    pub fn flush(&self) -> Call {
        let (done, call) = Call::pair();
        self.flush_to(done);
        call
    }

    pub(super) fn flush_to(&self, done: Done) {
        let mut state = lock(&self.0.state);
        state.trouble.asked();
        let epoch = state.order.seal();
        state.up_to = state.up_to.max(epoch);
        state.flushes.push_back((epoch, done));
        drop(state);
        self.0.run();
    }

    /// Advances the clock to `now`. If data has been dirty for `age`, as seen from tick to tick, writing begins for all
    /// data written so far. So a block that is written continually is written to the device once in this time.
    pub fn tick(&self, now: Duration, age: Duration) {
        let mut state = lock(&self.0.state);
        state.trouble.asked();
        if let Some(epoch) = state.order.seal_older(now, age) {
            state.up_to = epoch;
        }
        drop(state);
        self.0.run();
    }

    /// Returns the blocks that must be written again before a flush can succeed. `None`: there were too many to
    /// remember, and the device must be opened again with [`Cache::over`](super::Cache::over).
    pub fn lost(&self) -> Option<Vec<u64>> {
        let state = lock(&self.0.state);
        state.trouble.lost(state.order.failed())
    }

    /// Resumes writing after the device was reserved for another owner.
    pub fn resume(&self) {
        lock(&self.0.state).trouble.stopped = None;
        self.0.run();
    }
}
