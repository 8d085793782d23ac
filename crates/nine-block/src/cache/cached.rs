//! A device seen through the cache, by its blocks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Write;
use super::disk::Disk;
use crate::call::Call;
use crate::device::{Done, SECTOR};
use crate::error::{Error, Kind, Result};
use crate::sync::lock;

/// A device seen through a [`Cache`](super::Cache): by blocks here, by sectors as a [`Device`](crate::Device). Cheap
/// to clone. When the last of its clones has gone, and what was under way has ended, what is dirty is forgotten: flush
/// before.
///
/// # What is promised
///
/// A write has ended when it is in the cache; whoever reads afterwards reads it. It stays there, and goes to the device
/// when a flush, [`Cached::tick`] or the want of room says so. Of writes to the same sectors that are under way at the
/// same time any may be the last; of parts of a block none changes another part.
///
/// [`Cached::barrier`]: a write that had ended before the barrier has ended on the device before a write that began
/// after it is given to the device. Writes that were under way are on either side. That is the order in which a device
/// gets them, and so what is found if it is this program that ends; a device that has a cache of its own may lose the
/// former and keep the latter when its power goes, unless a flush lies between.
///
/// [`Cached::flush`]: a barrier; and when it ends well, all writes that had ended before it began are on the device,
/// and a flush of the device has ended well that was given to it after they were. Where the device's
/// [`Shape::durable`](crate::Shape) holds, they are durable.
///
/// A write to the device that fails keeps its blocks in the cache, dirty, where they can be read; of several that were
/// written together all count as failed. It is not tried again: the next flush has its error, and all further ones have
/// [`Kind::Poisoned`], until each of these blocks was written to again ([`Cached::lost`] names them). Then all that was
/// written to it, before the failure and since, goes to the device in its order; what is behind a barrier waits for
/// that. A flush of the device that fails poisons in the same way all blocks that were written since the last one that
/// went well: they are to be written again too, also where the cache has them still, for nobody knows what the device
/// has.
///
/// [`Kind::Reserved`], when the device says it to a write or flush, stops writing: all writes and flushes have this
/// error from then on, and nothing that is dirty is forgotten, until [`Cached::resume`]. [`Kind::Busy`] and
/// [`Kind::Full`] do the same until somebody asks again: for a write, a flush or a tick.
///
/// Discarded blocks leave the cache at once. The device is told behind what lies before a barrier, and before what is
/// written to them since. It is a hint: of blocks discarded in part nothing is, of many at a time some are not told.
///
/// # Limits
///
/// Three eighths of the cache may be dirty, half of that of one device. A write beyond waits, in the order of coming.
/// No write waits for ever: who waits has dirty blocks of the same device before him (each device has room for 8 that
/// no other can take), who waits makes them be written, writing takes nothing that others could hold back (the data is
/// there, in the cache), each write ends, and so there is room; where they cannot be written, because they failed or
/// the device is reserved, those who wait are told so. Who writes again what failed does not wait. How many may wait is
/// limited by those who submit, whose data it is.
#[derive(Clone)]
pub struct Cached(pub(super) Arc<Disk>);

impl Cached {
    pub(super) fn new(disk: Disk) -> Self {
        Self(Arc::new(disk))
    }

    /// Bytes of a block. The last one of a device may be shorter.
    pub fn block(&self) -> u64 {
        self.0.shared.options.block
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.0.sectors().div_ceil(self.block() / SECTOR)
    }

    /// A block, if it is here: for those who need not wait. Nothing is copied.
    pub fn hit(&self, block: u64) -> Option<Bytes> {
        self.0.hit(block)
    }

    /// The same for those who must not wait even for a device that answers at once. And whether there is
    /// something to be read ahead: [`go_on`](Self::go_on) begins it, later.
    pub fn glance(&self, block: u64) -> Option<(Bytes, bool)> {
        self.0.glance(block)
    }

    /// Begins what is to be read ahead.
    pub fn go_on(&self) {
        self.0.run();
    }

    /// Blocks one behind the other, in as few reads as possible.
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

    /// A block. Those who want it at the same time wait for the same read.
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

    /// Nobody will want this block as it is any more: what is kept of it may go, and what is read ahead just now is not
    /// kept.
    pub fn forget(&self, block: u64) {
        self.0.forget(block);
    }

    /// This is what the device has in this block: whoever wrote it there past the cache says so. It is kept as
    /// if it had been read just now, and given to those who wait for it.
    pub fn keep(&self, block: u64, data: Bytes) {
        if self.judge(block).is_ok_and(|len| len == data.len()) {
            self.0.keep(block, data);
        }
    }

    /// Writes a block, whole. The data is kept as it is: where it is a part of something larger, so is that.
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
            Ok(_) => self.0.write(Write { block, skip: 0, data, done }),
        }
        call
    }

    /// The bytes of the block, if it is one.
    fn judge(&self, block: u64) -> Result<usize> {
        match block < self.blocks() {
            true => Ok(self.0.len(block)),
            false => {
                let text = format!("block {block} is not among its {}", self.blocks());
                Err(Error::new(Kind::Range, text).of(self.0.device.name()))
            }
        }
    }

    /// What comes goes to the device after what was there. See [`Cached`].
    pub fn barrier(&self) {
        lock(&self.0.state).order.seal();
    }

    /// Makes all that was written durable. See [`Cached`].
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

    /// It is now so late: what has been dirty for `age`, seen from tick to tick, begins to be written, with all that
    /// was written up to now. A block that is written to all the time is so written once in this time.
    pub fn tick(&self, now: Duration, age: Duration) {
        let mut state = lock(&self.0.state);
        state.trouble.asked();
        if let Some(epoch) = state.order.seal_older(now, age) {
            state.up_to = epoch;
        }
        drop(state);
        self.0.run();
    }

    /// Blocks that must be written again before a flush can go well. None: there were too many to remember them, and
    /// the device must be taken anew from [`Cache::over`](super::Cache::over).
    pub fn lost(&self) -> Option<Vec<u64>> {
        let state = lock(&self.0.state);
        state.trouble.lost(state.order.failed())
    }

    /// The device is ours again: what is dirty may be written.
    pub fn resume(&self) {
        lock(&self.0.state).trouble.stopped = None;
        self.0.run();
    }
}
