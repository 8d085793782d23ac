//! A disk, and what is asked of it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, Kind, Result};
use crate::owner::SectorOwner;

/// Bytes of a sector: the unit of all addresses and counts.
pub const SECTOR: u64 = 512;

/// Numbered sectors that are read and written.
///
/// Concurrency: from any thread, many operations at once, in no order: two that overlap and are under way at the same
/// time may happen in either order, and only [`Op::Flush`] covers what was *complete* when it was submitted.
pub trait Device: Send + Sync + 'static {
    /// What it is like, as far as is known now.
    fn shape(&self) -> Shape;

    /// Begins an operation. It ends by [`Io::end`], on any thread, perhaps before this returns.
    ///
    /// A [`Proof`] of a read chooses between copies, and never makes a read fail: a device that has a copy for which it
    /// holds answers with that one; a device that has none answers with a copy that it could read, as a single disk
    /// does. A read fails only if no copy could be read. So whoever reads judges the bytes, whatever the device is.
    fn submit(&self, io: Io);

    /// Bytes of sectors without storage, as far as is known now: the holes of a sparse file beyond the free space of
    /// its file system. Writes there fail with [`Kind::Full`]. 0 for other devices. Does not block.
    fn unbacked(&self) -> u64 {
        0
    }

    /// As it is in an expression, for messages.
    fn name(&self) -> String;

    /// For people: a line for itself, and lines for what it is made of, each two blanks further in.
    fn status(&self) -> String {
        let Shape { sectors, read_only, .. } = self.shape();
        format!("{} {sectors} sectors{}\n", self.name(), if read_only { ", read only" } else { "" })
    }

    /// For people: the present faults of the device and of the devices it is made of, one line each.
    fn trouble(&self) -> Vec<String> {
        Vec::new()
    }

    /// Adds an owner, whom mirrors ask from now on which copy of a block is right. Devices without copies ignore it;
    /// devices made of others pass it on. Several owners may each own a part.
    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        let _ = owner;
    }

    /// Does what these words say (`resync`, `scrub`, what the device knows); an unknown word is an error that names
    /// those that are known.
    fn control(&self, words: &[&str]) -> Result<()> {
        let word = words.first().copied().unwrap_or_default();
        Err(Error::new(Kind::Unsupported, format!("{}: knows no `{word}`, nor other words", self.name())))
    }
}

/// What a device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many there are.
    pub sectors: u64,
    /// Sectors, aligned, that are written whole or not at all, also when the power goes.
    pub atom: u32,
    /// The most sectors of one operation that are worth asking for at once; more are cut by the device itself.
    pub most: u32,
    /// It is not written.
    pub read_only: bool,
    /// [`Op::Flush`] makes writes durable. Where it does not, the device says so, and nothing more can be promised.
    pub durable: bool,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Sectors are read.
    Read,
    /// Sectors are written.
    Write,
    /// What was written and complete before this was submitted is durable.
    Flush,
    /// What is in these sectors is not wanted any more; they may be read as anything until they are written.
    Discard,
    /// It is looked how large the device is by now: [`Device::shape`] knows afterwards.
    Look,
}

/// Whoever is told how it ended: of a read, what was read.
///
/// It must not wait, and must not begin what ends by calling it again: a device may end at once, and so on without an
/// end. Who goes on with more does so in a task of his own ([`Device`]'s calls, which are futures).
pub type Done = Box<dyn FnOnce(Result<Bytes>) + Send>;

/// An operation that is under way. It ends once: by [`Io::end`], or, if it is dropped, with an error that says so.
pub struct Io {
    /// What is done.
    pub op: Op,
    /// The first sector.
    pub at: u64,
    /// Sectors.
    pub count: u64,
    /// Of a write, what is written: `count` sectors.
    pub data: Bytes,
    /// Of a read, what is known of what is there.
    pub proof: Option<Proof>,
    done: Option<Done>,
}

/// Whether these bytes are the n-th block of a read.
type Holds = dyn Fn(u64, &[u8]) -> bool + Send + Sync;

/// What a reader knows of the blocks that it reads, mostly a sum. A mirror takes the next member where the proof does
/// not hold, and writes the right bytes to the first; if it holds for no member, the bytes of the first member that
/// could be read are the answer. A device that has one copy of everything does not look at it. A part of a read has it
/// as far as it is of whole blocks; reads through a buffer have none.
#[derive(Clone)]
pub struct Proof {
    /// Sectors of a block.
    per: u64,
    /// Blocks before the first.
    skip: u64,
    everywhere: bool,
    holds: Arc<Holds>,
}

impl Proof {
    /// Of a read of blocks of `per` sectors: `holds` says whether these bytes are the n-th of them.
    pub fn new(per: u64, holds: impl Fn(u64, &[u8]) -> bool + Send + Sync + 'static) -> Self {
        Self { per, skip: 0, everywhere: false, holds: Arc::new(holds) }
    }

    /// All members of a mirror are read, not only the first that is right.
    pub fn everywhere(mut self) -> Self {
        self.everywhere = true;
        self
    }

    /// Whether they are.
    pub fn is_everywhere(&self) -> bool {
        self.everywhere
    }

    /// Of `count` sectors from the `skip`-th on, if they are whole blocks.
    pub fn part(&self, skip: u64, count: u64) -> Option<Self> {
        let whole = skip.is_multiple_of(self.per) && count.is_multiple_of(self.per);
        whole.then(|| Self { skip: self.skip + skip / self.per, ..self.clone() })
    }

    /// Whether all blocks are right.
    pub fn holds(&self, data: &[u8]) -> bool {
        let blocks = data.chunks_exact((self.per * SECTOR) as usize);
        blocks.zip(self.skip..).all(|(block, n)| (self.holds)(n, block))
    }
}

impl Io {
    /// A read of `count` sectors.
    pub fn read(at: u64, count: u64, done: impl FnOnce(Result<Bytes>) + Send + 'static) -> Self {
        Self { op: Op::Read, at, count, data: Bytes::new(), proof: None, done: Some(Box::new(done)) }
    }

    /// The same, of which something is known, if it is.
    pub fn with(mut self, proof: Option<Proof>) -> Self {
        self.proof = proof;
        self
    }

    /// A write of whole sectors.
    ///
    /// # Panics
    /// If `data` is no number of whole sectors: a mistake of ours.
    pub fn write(at: u64, data: Bytes, done: impl FnOnce(Result<Bytes>) + Send + 'static) -> Self {
        let len = data.len() as u64;
        assert!(len.is_multiple_of(SECTOR), "a write of {len} bytes, which are no sectors");
        Self { op: Op::Write, at, count: len / SECTOR, data, proof: None, done: Some(Box::new(done)) }
    }

    /// A flush, a look, a discard of `count` sectors.
    pub fn other(op: Op, at: u64, count: u64, done: impl FnOnce(Result<Bytes>) + Send + 'static) -> Self {
        debug_assert!(!matches!(op, Op::Read | Op::Write));
        Self { op, at, count, data: Bytes::new(), proof: None, done: Some(Box::new(done)) }
    }

    /// The sector behind the last.
    pub fn end_at(&self) -> u64 {
        self.at.saturating_add(self.count)
    }

    /// Bytes of its sectors.
    pub fn bytes(&self) -> usize {
        (self.count * SECTOR) as usize
    }

    /// It is over. Of a read that went well: what was read, all of it.
    pub fn end(mut self, result: Result<Bytes>) {
        let result = match (self.op, result) {
            // A device that answers something else than was asked is broken, and says so here and not to its users.
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

    /// It failed.
    pub fn fail(self, kind: Kind, text: impl fmt::Display) {
        self.end(Err(Error::new(kind, text)));
    }

    /// Whether a device of this shape can do it; else why not.
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

    /// A part of the same operation: `count` sectors from the `skip`-th on, at `at`; who has the whole is told by
    /// `done`.
    ///
    /// # Panics
    /// If it is no part of it: a mistake of ours.
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

    /// Whether this is what a read was to bring, as far as is known.
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
