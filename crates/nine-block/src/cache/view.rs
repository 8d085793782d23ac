//! The cache as a device of sectors.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::cached::Cached;
use super::{BlockWrite, disk::CachedDisk};
use crate::device::{Device, Done, Io, Op, SECTOR, Shape};
use crate::error::{Error, Kind, Result};
use crate::owner::SectorOwner;
use crate::sync::{Mutex, lock};

impl Device for Cached {
    /// As for the device below, but an atom is at most a block.
    fn shape(&self) -> Shape {
        let shape = self.0.device.shape();
        Shape { sectors: self.0.sectors(), atom: shape.atom.min(self.0.per_block() as u32), ..shape }
    }

    fn unbacked(&self) -> u64 {
        self.0.device.unbacked()
    }

    fn name(&self) -> String {
        self.0.device.name()
    }

    fn status(&self) -> String {
        let state = lock(&self.0.state);
        let dirty = state.order.len();
        let poisoned = state.trouble.lost(state.order.failed()).is_none_or(|lost| !lost.is_empty());
        let stopped = state.trouble.stopped.clone();
        drop(state);
        let mut text = format!("{} cached, {dirty} blocks dirty", self.name());
        text += if poisoned { ", poisoned" } else { "" };
        if let Some(error) = stopped {
            text += &format!(", not written now: {error}");
        }
        text.push('\n');
        for line in self.0.device.status().lines() {
            text += &format!("  {line}\n");
        }
        text
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        self.0.device.owned_by(owner);
    }

    fn trouble(&self) -> Vec<String> {
        let state = lock(&self.0.state);
        let stopped = state.trouble.stopped.clone();
        let is_poisoned = state.trouble.lost(state.order.failed()).is_none_or(|lost| !lost.is_empty());
        drop(state);
        let mut all: Vec<String> =
            stopped.map(|error| format!("{} is not written now: {error}", self.name())).into_iter().collect();
        if is_poisoned {
            all.push(format!("{}: blocks may be lost until they are written again", self.name()));
        }
        all.extend(self.0.device.trouble());
        all
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        self.0.device.control(words)
    }

    fn submit(&self, io: Io) {
        if let Err(error) = io.judge(&self.shape()) {
            return io.end(Err(error.of(self.name())));
        }
        match io.op {
            Op::Read | Op::Write if io.count == 0 => io.end(Ok(Bytes::new())),
            Op::Read => read(&self.0, io),
            Op::Write => write(&self.0, io),
            Op::Discard => discard(&self.0, io),
            Op::Flush => self.flush_to(Box::new(move |result| io.end(result))),
            Op::Look => {
                let disk = self.0.clone();
                self.0.device.submit(Io::other(Op::Look, 0, 0, move |result| match result {
                    Ok(_) => {
                        lock(&disk.state).looks.push(io);
                        disk.run();
                    }
                    Err(error) => io.end(Err(error)),
                }));
            }
        }
    }
}

/// Returns the blocks that contain the sectors of an operation.
fn blocks(disk: &CachedDisk, io: &Io) -> Range<u64> {
    io.at / disk.per_block()..io.end_at().div_ceil(disk.per_block())
}

fn read(disk: &Arc<CachedDisk>, io: Io) {
    let blocks = blocks(disk, &io);
    let skip = ((io.at - blocks.start * disk.per_block()) * SECTOR) as usize;
    let wanted = io.bytes();
    if blocks.end - blocks.start == 1
        && let Some(data) = disk.hit(blocks.start)
    {
        return io.end(cut(data, skip, wanted));
    }
    let parts = SplitOperation::new(io, blocks.clone(), move |parts| {
        let [part] = &parts[..] else {
            let mut all = BytesMut::with_capacity(wanted + skip);
            parts.iter().for_each(|part| all.extend_from_slice(part));
            return cut(all.freeze(), skip, wanted);
        };
        cut(part.clone(), skip, wanted)
    });
    disk.fetch(blocks, |block| parts.done(block));
}

/// Returns the requested range of the blocks' data.
fn cut(data: Bytes, skip: usize, len: usize) -> Result<Bytes> {
    match skip + len <= data.len() {
        true => Ok(data.slice(skip..skip + len)),
        false => Err(Error::new(Kind::Range, "it has become smaller")),
    }
}

fn write(disk: &Arc<CachedDisk>, io: Io) {
    let (blocks, at, data) = (blocks(disk, &io), io.at, io.data.clone());
    let is_one = blocks.end - blocks.start == 1;
    let parts = SplitOperation::new(io, blocks.clone(), |_| Ok(Bytes::new()));
    for block in blocks {
        let first = block * disk.per_block();
        let from = first.max(at);
        let to = (first + disk.per_block()).min(at + data.len() as u64 / SECTOR);
        let data = data.slice(((from - at) * SECTOR) as usize..((to - at) * SECTOR) as usize);
        // A cached block must not keep the memory of its neighbours.
        let data = if is_one { data } else { Bytes::copy_from_slice(&data) };
        disk.write(BlockWrite {
            block,
            skip: ((from - first) * SECTOR) as usize,
            data,
            done: parts.done(block),
        });
    }
}

/// Discards whole blocks only; it is a hint. It ends before the device is told, which happens after all writes before a
/// barrier.
fn discard(disk: &Arc<CachedDisk>, io: Io) {
    let from = io.at.div_ceil(disk.per_block());
    let to = match io.end_at() == disk.sectors() {
        true => io.end_at().div_ceil(disk.per_block()),
        false => io.end_at() / disk.per_block(),
    };
    if from < to {
        disk.discard(from..to);
    }
    io.end(Ok(Bytes::new()));
}

/// The parts of an operation, one for each block. The operation ends when all have, with the result of `all` or the
/// first error.
struct SplitOperation<F> {
    first: u64,
    state: Mutex<SplitState<F>>,
}

struct SplitState<F> {
    parts: Vec<Bytes>,
    left: u64,
    error: Option<Error>,
    /// `None` when it has ended.
    whole: Option<(Io, F)>,
}

impl<F: FnOnce(Vec<Bytes>) -> Result<Bytes> + Send + 'static> SplitOperation<F> {
    fn new(io: Io, blocks: Range<u64>, all: F) -> Arc<Self> {
        let left = blocks.end - blocks.start;
        let parts = vec![Bytes::new(); left as usize];
        let state = SplitState { parts, left, error: None, whole: Some((io, all)) };
        Arc::new(Self { first: blocks.start, state: Mutex::new(state) })
    }

    fn done(self: &Arc<Self>, block: u64) -> Done {
        let parts = self.clone();
        Box::new(move |result| parts.end(block, result))
    }

    fn end(&self, block: u64, result: Result<Bytes>) {
        let mut state = lock(&self.state);
        match result {
            Ok(data) => state.parts[(block - self.first) as usize] = data,
            Err(error) => state.error = state.error.take().or(Some(error)),
        }
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        let (io, all) = state.whole.take().expect("each part ends once");
        let (parts, error) = (std::mem::take(&mut state.parts), state.error.take());
        drop(state);
        io.end(error.map_or_else(|| all(parts), Err));
    }
}
