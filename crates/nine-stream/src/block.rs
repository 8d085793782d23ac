//! Blocks, the units of data in a stream, and chains of them.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::{fmt, mem};

use bytes::Bytes;

use crate::pool::{PoolMemory, give_back};

/// The bytes between a read pointer and a write pointer, in memory of a [`Pool`](crate::Pool) or of another owner.
///
/// Several blocks may share one memory ([`Block::split_to`]). The memory is returned when the last of them is dropped.
pub struct Block {
    memory: BlockStorage,
    /// Index of the first byte that is not consumed.
    rp: usize,
    /// Index of the first byte that is not filled.
    wp: usize,
    /// Whether a message ends with this block.
    pub delim: bool,
}

enum BlockStorage {
    Pool(Arc<PoolMemory>),
    Bytes(Bytes),
}

impl Block {
    /// Creates an empty block in memory of a pool.
    pub(crate) fn new(memory: Arc<PoolMemory>) -> Self {
        Self { memory: BlockStorage::Pool(memory), rp: 0, wp: 0, delim: false }
    }

    /// Returns the number of usable bytes.
    pub fn len(&self) -> usize {
        self.wp - self.rp
    }

    /// Whether there are no usable bytes. A message may be empty.
    pub fn is_empty(&self) -> bool {
        self.rp == self.wp
    }

    /// Returns the usable bytes.
    pub fn data(&self) -> &[u8] {
        match &self.memory {
            BlockStorage::Pool(memory) => &memory.bytes()[self.rp..self.wp],
            BlockStorage::Bytes(bytes) => &bytes[self.rp..self.wp],
        }
    }

    /// Returns the usable bytes for changes in place. `None` if the memory is shared or read-only.
    pub fn data_mut(&mut self) -> Option<&mut [u8]> {
        let range = self.rp..self.wp;
        self.own(range)
    }

    /// Returns the unfilled memory after the data. `None` if the memory is shared or read-only.
    pub fn room(&mut self) -> Option<&mut [u8]> {
        let wp = self.wp;
        self.own(wp..usize::MAX)
    }

    /// Marks `n` bytes of [`Block::room`] as filled.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn filled(&mut self, n: usize) {
        let lim = match &self.memory {
            BlockStorage::Pool(memory) => memory.bytes().len(),
            BlockStorage::Bytes(_) => self.wp,
        };
        assert!(n <= lim - self.wp, "a block is filled beyond its limit");
        self.wp += n;
    }

    /// Appends as much of `from` as fits. Returns the number of bytes.
    pub fn fill(&mut self, from: &[u8]) -> usize {
        let n = match self.room() {
            Some(room) => {
                let n = room.len().min(from.len());
                room[..n].copy_from_slice(&from[..n]);
                n
            }
            None => 0,
        };
        self.wp += n;
        n
    }

    /// Consumes `n` bytes from the front, or all if there are fewer.
    pub fn advance(&mut self, n: usize) {
        self.rp += n.min(self.len());
    }

    /// Drops the bytes after the first `n`.
    pub fn truncate(&mut self, n: usize) {
        self.wp = self.wp.min(self.rp + n);
    }

    /// Splits off the first `n` bytes (or all) as a block in the same memory, without the delimiter.
    pub fn split_to(&mut self, n: usize) -> Self {
        let mut first = self.share();
        first.wp = self.rp + n.min(self.len());
        first.delim = false;
        self.rp = first.wp;
        first
    }

    /// Creates another block with the same bytes in the same memory.
    pub fn share(&self) -> Self {
        let memory = match &self.memory {
            BlockStorage::Pool(memory) => BlockStorage::Pool(memory.clone()),
            BlockStorage::Bytes(bytes) => BlockStorage::Bytes(bytes.clone()),
        };
        Self { memory, rp: self.rp, wp: self.wp, delim: self.delim }
    }

    fn own(&mut self, range: Range<usize>) -> Option<&mut [u8]> {
        let BlockStorage::Pool(memory) = &mut self.memory else { return None };
        let bytes = Arc::get_mut(memory)?.bytes_mut();
        let end = range.end.min(bytes.len());
        Some(&mut bytes[range.start..end])
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let BlockStorage::Pool(memory) = mem::replace(&mut self.memory, BlockStorage::Bytes(Bytes::new()))
        {
            give_back(memory);
        }
    }
}

impl From<Bytes> for Block {
    fn from(bytes: Bytes) -> Self {
        let wp = bytes.len();
        Self { memory: BlockStorage::Bytes(bytes), rp: 0, wp, delim: false }
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.data()
    }
}

/// Converts without a copy. The memory is returned with the last reference to the bytes.
impl From<Block> for Bytes {
    fn from(block: Block) -> Self {
        Bytes::from_owner(block)
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let delim = if self.delim { " delim" } else { "" };
        write!(f, "block of {} bytes{delim}", self.len())
    }
}

/// Blocks that are put in one step: no other data comes between them.
#[derive(Debug, Default)]
pub struct Chain {
    first: Option<Block>,
    rest: VecDeque<Block>,
}

impl Chain {
    /// Appends a block.
    pub fn push(&mut self, block: Block) {
        if self.first.is_none() {
            self.first = Some(block);
        } else {
            self.rest.push_back(block);
        }
    }

    /// Removes and returns the first block.
    pub fn pop(&mut self) -> Option<Block> {
        let first = self.first.take()?;
        if !self.rest.is_empty() {
            self.first = self.rest.pop_front();
        }
        Some(first)
    }

    /// Iterates over the blocks in order.
    pub fn iter(&self) -> impl Iterator<Item = &Block> {
        self.first.iter().chain(&self.rest)
    }

    /// Returns the number of bytes in all blocks.
    pub fn len(&self) -> usize {
        self.iter().map(Block::len).sum()
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// Whether there is no block, not even an empty one.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Marks the last block as the end of a message.
    pub fn end_message(&mut self) {
        if let Some(last) = self.rest.back_mut().or(self.first.as_mut()) {
            last.delim = true;
        }
    }

    /// Whether a message ends with the last block.
    pub fn ends_message(&self) -> bool {
        self.rest.back().or(self.first.as_ref()).is_some_and(|last| last.delim)
    }
}

impl From<Block> for Chain {
    fn from(block: Block) -> Self {
        Self { first: Some(block), rest: VecDeque::new() }
    }
}

impl Iterator for Chain {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        self.pop()
    }
}

impl Extend<Block> for Chain {
    fn extend<I: IntoIterator<Item = Block>>(&mut self, blocks: I) {
        blocks.into_iter().for_each(|block| self.push(block));
    }
}
