//! A queue of blocks with a limit.
//!
//! In: chains. Out: blocks. Always holds: `bytes` and `blocks` count the queued data. Both are within the limit, except
//! for one chain that is larger than the limit. After a refusal the queue refuses until it is at or below half of both
//! limits.

use alloc::collections::VecDeque;

use crate::block::{Block, Chain};

/// The high-water mark of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Maximum number of bytes.
    pub bytes: usize,
    /// Maximum number of blocks.
    pub blocks: usize,
}

impl Limit {
    /// A sensible limit for a conversation: a quarter of a megabyte.
    pub const CONVERSATION: Self = Self { bytes: 256 << 10, blocks: 256 };
    /// A limit of one put.
    pub const ONE: Self = Self { bytes: 0, blocks: 0 };
}

/// Queued blocks, in order.
#[derive(Debug)]
pub struct Queue {
    blocks: VecDeque<Block>,
    bytes: usize,
    /// Number of messages that end in the queue.
    delims: usize,
    limit: Limit,
    refused: bool,
}

impl Queue {
    /// Creates an empty queue.
    pub fn new(limit: Limit) -> Self {
        Self { blocks: VecDeque::new(), bytes: 0, delims: 0, limit, refused: false }
    }

    /// Queues all of a chain, or refuses it. [`Queue::relieved`] then signals when to try again.
    pub fn put(&mut self, chain: Chain) -> Result<(), Chain> {
        let fits = self.bytes + chain.len() <= self.limit.bytes
            && self.blocks.len() + chain.blocks() <= self.limit.blocks;
        if self.refused || !(fits || self.blocks.is_empty()) {
            self.refused = true;
            return Err(chain);
        }
        self.force(chain);
        Ok(())
    }

    /// Queues all of a chain, regardless of the limit.
    pub fn force(&mut self, chain: Chain) {
        for block in chain {
            self.bytes += block.len();
            self.delims += usize::from(block.delim);
            self.blocks.push_back(block);
        }
    }

    /// Removes and returns the first block.
    pub fn pop(&mut self) -> Option<Block> {
        let block = self.blocks.pop_front()?;
        self.bytes -= block.len();
        self.delims -= usize::from(block.delim);
        Some(block)
    }

    /// Removes `want` bytes, or fewer if a message ends before. With `None` it removes the first block.
    pub fn take(&mut self, want: Option<usize>) -> Chain {
        let mut chain = Chain::default();
        let mut left = want.unwrap_or(usize::MAX);
        while let Some(mut block) = self.pop() {
            if block.len() > left {
                chain.push(block.split_to(left));
                self.put_back(block);
                break;
            }
            left -= block.len();
            let ends = block.delim || want.is_none() || left == 0;
            chain.push(block);
            if ends {
                break;
            }
        }
        chain
    }

    /// Returns a removed block to the front.
    pub fn put_back(&mut self, block: Block) {
        self.bytes += block.len();
        self.delims += usize::from(block.delim);
        self.blocks.push_front(block);
    }

    /// Returns the first block.
    pub fn front(&self) -> Option<&Block> {
        self.blocks.front()
    }

    /// Iterates over the blocks in order.
    pub fn iter(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter()
    }

    /// Whether the queue has refused and has since fallen to half of its limit. Returns true once per refusal; the
    /// caller must then wake the refused callers.
    pub fn relieved(&mut self) -> bool {
        let low = self.bytes <= self.limit.bytes / 2 && self.blocks.len() <= self.limit.blocks / 2;
        low && core::mem::take(&mut self.refused)
    }

    /// Returns the number of queued bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of queued blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there is no block, not even an empty one.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether a message ends in the queue.
    pub fn has_message(&self) -> bool {
        self.delims > 0
    }

    /// Whether the queue has refused a chain and still refuses.
    pub fn has_refused(&self) -> bool {
        self.refused
    }

    /// Drops all blocks.
    pub fn clear(&mut self) {
        *self = Self::new(self.limit);
    }
}
