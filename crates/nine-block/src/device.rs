//! A block device, and its operations.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, Kind, Result};
use crate::owner::SectorOwner;

/// Bytes of a sector: the unit of all addresses and counts.
pub const SECTOR: u64 = 512;

/// A device of numbered sectors.
///
/// Concurrency: operations may be submitted from any thread, many at once, and end in any order. Two overlapping
/// operations in flight may take effect in either order. [`Op::Flush`] covers only writes that were *complete* when it
/// was submitted.
pub trait Device: Send + Sync + 'static {
    /// Returns the properties of the device, as far as they are known now.
    fn shape(&self) -> Shape;

    /// Begins an operation. It ends by [`Io::end`], on any thread, perhaps before this returns.
    ///
    /// A [`Proof`] of a read selects between copies, and never makes a read fail. A device that has a copy for which
    /// the proof holds returns that copy. If no copy satisfies it, the device returns one that it could read, as a
    /// single disk does. A read fails only if no copy could be read. So the reader must verify the bytes, for any
    /// device.
    fn submit(&self, io: Io);

    /// Returns the bytes of sectors without storage, as far as is known now: the holes of a sparse file beyond the free
    /// space of its file system. Writes there fail with [`Kind::Full`]. 0 for other devices. Does not block.
    fn unbacked(&self) -> u64 {
        0
    }

    /// Returns the device as an expression, for messages.
    fn name(&self) -> String;

    /// Returns the status for people: a line for this device, and indented lines for the devices that it is made of.
    fn status(&self) -> String {
        let Shape { sectors, read_only, .. } = self.shape();
        format!("{} {sectors} sectors{}\n", self.name(), if read_only { ", read only" } else { "" })
    }

    /// Returns the present faults of this device and of the devices that it is made of, one line each, for people.
    fn trouble(&self) -> Vec<String> {
        Vec::new()
    }

    /// Adds an owner. Mirrors ask it from now on which copy of a block is right. Devices without copies ignore it;
    /// devices made of others pass it on. Several owners may each own a part.
    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        let _ = owner;
    }

    /// Runs a command such as `resync` or `scrub`. An unknown command is an error that lists the known ones.
    fn control(&self, words: &[&str]) -> Result<()> {
        let word = words.first().copied().unwrap_or_default();
        Err(Error::new(Kind::Unsupported, format!("{}: knows no `{word}`, nor other words", self.name())))
    }
}

/// The properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The size in sectors.
    pub sectors: u64,
    /// An aligned run of this number of sectors is written completely or not at all, also when the power is cut.
    pub atom: u32,
    /// The maximum number of sectors in an efficient operation. The device splits larger ones itself.
    pub most: u32,
    /// The device refuses writes.
    pub read_only: bool,
    /// [`Op::Flush`] makes writes durable. If it is false, the device promises nothing.
    pub durable: bool,
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Read sectors.
    Read,
    /// Write sectors.
    Write,
    /// Make durable all writes that were complete when this was submitted.
    Flush,
    /// Discard these sectors; until they are written again, reads may return anything.
    Discard,
    /// Refresh the size, which [`Device::shape`] returns afterwards.
    Look,
}

/// The callback for the result of an operation; for a read it gets the data.
///
/// It must not block. It must not start an operation that would call it again, because a device may end operations at
/// once, and the recursion would be endless. Code that continues with more operations runs in a task instead, with
/// futures from [`Device`]'s calls.
pub type Done = Box<dyn FnOnce(Result<Bytes>) + Send>;

/// An operation in flight. It ends exactly once: by [`Io::end`], or with an error if it is dropped.
pub struct Io {
    /// The kind of the operation.
    pub op: Op,
    /// The first sector.
    pub at: u64,
    /// The number of sectors.
    pub count: u64,
    /// The data of a write: `count` sectors.
    pub data: Bytes,
    /// The expected content of a read.
    pub proof: Option<Proof>,
    done: Option<Done>,
}

/// Returns whether these bytes are the n-th block of a read.
type BlockProof = dyn Fn(u64, &[u8]) -> bool + Send + Sync;

/// The reader's check of the blocks of a read, mostly by a sum. If the proof fails for a member of a mirror, the mirror
/// tries the next one, and repairs the members that failed. If it fails for all, the answer is the bytes of the first
/// readable member. A device with a single copy ignores it. A part of a read inherits the proof if it consists of whole
/// blocks; reads through a buffer do not.
#[derive(Clone)]
pub struct Proof {
    /// Sectors of a block.
    per: u64,
    /// Blocks before the first.
    skip: u64,
    everywhere: bool,
    holds: Arc<BlockProof>,
}

impl Proof {
    /// Creates the proof of a read of blocks of `per` sectors. `holds` returns whether these bytes are the n-th block.
    pub fn new(per: u64, holds: impl Fn(u64, &[u8]) -> bool + Send + Sync + 'static) -> Self {
        Self { per, skip: 0, everywhere: false, holds: Arc::new(holds) }
    }

    /// Makes a mirror read all members, not only until the first right one.
    pub fn everywhere(mut self) -> Self {
        self.everywhere = true;
        self
    }

    /// Returns whether all members are to be read.
    pub fn is_everywhere(&self) -> bool {
        self.everywhere
    }

    /// Returns the proof of `count` sectors from the `skip`-th on, if they are whole blocks.
    pub fn part(&self, skip: u64, count: u64) -> Option<Self> {
        let whole = skip.is_multiple_of(self.per) && count.is_multiple_of(self.per);
        whole.then(|| Self { skip: self.skip + skip / self.per, ..self.clone() })
    }

    /// Returns whether all blocks are right.
    pub fn holds(&self, data: &[u8]) -> bool {
        let blocks = data.chunks_exact((self.per * SECTOR) as usize);
        blocks.zip(self.skip..).all(|(block, n)| (self.holds)(n, block))
    }
}

impl Io {
    /// Creates a read of `count` sectors.
    pub fn read(at: u64, count: u64, done: impl FnOnce(Result<Bytes>) + Send + 'static) -> Self {
        Self { op: Op::Read, at, count, data: Bytes::new(), proof: None, done: Some(Box::new(done)) }
    }

    /// Sets the proof of a read.
    pub fn with(mut self, proof: Option<Proof>) -> Self {
        self.proof = proof;
        self
    }

    /// Creates a write of whole sectors.
    ///
    /// # Panics
    /// If `data` is not a whole number of sectors. That is a bug of the caller.
    pub fn write(at: u64, data: Bytes, done: impl FnOnce(Result<Bytes>) + Send + 'static) -> Self {
        let len = data.len() as u64;
        assert!(len.is_multiple_of(SECTOR), "a write of {len} bytes, which are no sectors");
        Self { op: Op::Write, at, count: len / SECTOR, data, proof: None, done: Some(Box::new(done)) }
    }

    /// Creates a flush, a look, or a discard of `count` sectors.
    pub fn other(op: Op, at: u64, count: u64, done: impl FnOnce(Result<Bytes>) + Send + 'static) -> Self {
        debug_assert!(!matches!(op, Op::Read | Op::Write));
        Self { op, at, count, data: Bytes::new(), proof: None, done: Some(Box::new(done)) }
    }

    /// Returns the sector after the last.
    pub fn end_at(&self) -> u64 {
        self.at.saturating_add(self.count)
    }

    /// Returns the bytes of its sectors.
    pub fn bytes(&self) -> usize {
        (self.count * SECTOR) as usize
    }

    /// Ends the operation. A successful read must pass all of its data.
    pub fn end(mut self, result: Result<Bytes>) {
        let result = match (self.op, result) {
            // A device that returns the wrong amount of data is broken; turn that into an error here.
            (Op::Read, Ok(data)) if data.len() as u64 != self.count * SECTOR => {
                let text = format!("{} bytes were read, not {} sectors", data.len(), self.count);
                Err(Error::new(Kind::Failed, text))
            }
            (_, result) => result,
        };
        if let Some(done) = self.done.take() {
            done(result);
        }
    }

    /// Ends the operation with an error.
    pub fn fail(self, kind: Kind, text: impl fmt::Display) {
        self.end(Err(Error::new(kind, text)));
    }

    /// Checks that a device of this shape can do the operation.
    pub fn judge(&self, shape: &Shape) -> Result<()> {
        let in_range = self.at.checked_add(self.count).is_some_and(|end| end <= shape.sectors);
        match self.op {
            Op::Flush | Op::Look => Ok(()),
            _ if !in_range => Err(Error::new(
                Kind::Range,
                format!("sectors {}+{} are not among its {}", self.at, self.count, shape.sectors),
            )),
            Op::Write | Op::Discard if shape.read_only => {
                Err(Error::new(Kind::ReadOnly, "it is not written"))
            }
            _ => Ok(()),
        }
    }

    /// Creates a part of the same operation: `count` sectors from the `skip`-th on, at sector `at` of another device.
    /// Its result goes to `done`.
    ///
    /// # Panics
    /// If it is not a part of the operation. That is a bug of the caller.
    pub fn part(
        &self,
        skip: u64,
        count: u64,
        at: u64,
        done: impl FnOnce(Result<Bytes>) + Send + 'static,
    ) -> Self {
        assert!(skip + count <= self.count, "no part of it");
        let data = match self.op {
            Op::Write => self.data.slice((skip * SECTOR) as usize..((skip + count) * SECTOR) as usize),
            _ => Bytes::new(),
        };
        let proof = self.proof.as_ref().and_then(|proof| proof.part(skip, count));
        Self { op: self.op, at, count, data, proof, done: Some(Box::new(done)) }
    }

    /// Returns whether this data satisfies the proof, if there is one.
    pub fn proves(&self, data: &[u8]) -> bool {
        self.proof.as_ref().is_none_or(|proof| proof.holds(data))
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(Error::new(Kind::Failed, "nobody has done it")));
        }
    }
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}+{}", self.op, self.at, self.count)
    }
}
