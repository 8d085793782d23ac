//! The `data` file of a disk.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use nine_block::{Device, Io, Op, SECTOR};
use nine_io::synth::{Ask, Handle};
use nine_proto::{Errno, OpenFlags};

use super::refused;

/// The data of one disk, shared by all fids that have it open.
pub(super) struct DiskData {
    device: Arc<dyn Device>,
    writes: Mutex<WriteQueue>,
}

/// Writes of partial sectors run one at a time, and no other write runs meanwhile.
#[derive(Default)]
struct WriteQueue {
    /// The number of whole-sector writes in flight.
    whole: usize,
    /// A partial-sector write is in flight.
    part: bool,
    /// Queued writes.
    waiting: VecDeque<Ask>,
    /// A caller is starting queued writes; a write that completes meanwhile leaves that to it.
    begins: bool,
}

/// An open `data` file.
pub(super) struct OpenDiskFile {
    pub(super) data: Arc<DiskData>,
    pub(super) flags: OpenFlags,
}

impl DiskData {
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, writes: Mutex::default() }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.device.shape().read_only
    }

    fn size(&self) -> u64 {
        self.device.shape().sectors * SECTOR
    }

    fn writes(&self) -> std::sync::MutexGuard<'_, WriteQueue> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the queued writes that may run. It does not recurse, even if the device completes a write at once.
    fn begin(self: &Arc<Self>) {
        if std::mem::replace(&mut self.writes().begins, true) {
            return;
        }
        loop {
            let mut writes = self.writes();
            let next = writes.waiting.front().map(is_whole);
            let Some(is_whole) = next.filter(|is_whole| !writes.part && (*is_whole || writes.whole == 0))
            else {
                writes.begins = false;
                return;
            };
            let ask = writes.waiting.pop_front().expect("it is the first");
            match is_whole {
                true => writes.whole += 1,
                false => writes.part = true,
            }
            drop(writes);
            match is_whole {
                true => self.write(ask),
                false => self.write_part(ask),
            }
        }
    }

    fn write(self: &Arc<Self>, ask: Ask) {
        let (data, at, bytes) = (self.clone(), ask.offset / SECTOR, ask.data.clone());
        self.device.submit(Io::write(at, bytes, move |written| {
            ask.done(written.map(drop).map_err(|error| refused(&error)));
            data.writes().whole -= 1;
            data.begin();
        }));
    }

    fn write_part(self: &Arc<Self>, ask: Ask) {
        let (data, (at, count)) = (self.clone(), sectors(ask.offset, ask.data.len()));
        self.device.submit(Io::read(at, count, move |read| {
            let ended = data.clone();
            let end = move |ask: Ask, result: nine_block::Result<Bytes>| {
                ask.done(result.map(drop).map_err(|error| refused(&error)));
                ended.writes().part = false;
                ended.begin();
            };
            match read {
                Ok(read) => {
                    let mut bytes = BytesMut::from(read);
                    let from = (ask.offset - at * SECTOR) as usize;
                    bytes[from..from + ask.data.len()].copy_from_slice(&ask.data);
                    let written = Io::write(at, bytes.freeze(), move |written| end(ask, written));
                    data.device.submit(written);
                }
                Err(error) => end(ask, Err(error)),
            }
        }));
    }
}

fn is_whole(ask: &Ask) -> bool {
    ask.offset.is_multiple_of(SECTOR) && (ask.data.len() as u64).is_multiple_of(SECTOR)
}

/// Returns the sectors that contain these bytes: the first, and their number.
fn sectors(offset: u64, len: usize) -> (u64, u64) {
    let (first, end) = (offset / SECTOR, (offset + len as u64).div_ceil(SECTOR));
    (first, end - first)
}

impl Handle for OpenDiskFile {
    fn read(&self, ask: Ask) {
        let left = self.data.size().saturating_sub(ask.offset);
        let len = left.min(ask.count.into()) as usize;
        if !self.flags.reads() || len == 0 {
            let result = if self.flags.reads() { Ok(()) } else { Err(Errno::EBADF) };
            return match result {
                Ok(()) => ask.give(Bytes::new()),
                Err(errno) => ask.fail(errno.into()),
            };
        }
        let (at, count) = sectors(ask.offset, len);
        self.data.device.submit(Io::read(at, count, move |read| match read {
            Ok(bytes) => {
                let from = (ask.offset - at * SECTOR) as usize;
                ask.give(bytes.slice(from..from + len));
            }
            Err(error) => ask.fail(refused(&error)),
        }));
    }

    fn write(&self, ask: Ask) {
        let end = ask.offset.checked_add(ask.data.len() as u64);
        if !self.flags.writes() {
            ask.fail(Errno::EBADF.into());
        } else if ask.data.is_empty() {
            ask.done(Ok(()));
        } else if end.is_none_or(|end| end > self.data.size()) {
            ask.fail(Errno::ENOSPC.into());
        } else {
            self.data.writes().waiting.push_back(ask);
            self.data.begin();
        }
    }

    fn sync(&self, ask: Ask) {
        self.data.device.submit(Io::other(Op::Flush, 0, 0, move |flushed| {
            ask.synced(flushed.map(drop).map_err(|error| refused(&error)));
        }));
    }
}
