//! A queue of blocks with a limit.
//!
//! Always holds: `bytes` and `blocks` count what is queued, and neither is beyond the limit, but for one chain that is
//! larger than all of it; once it has refused, it refuses until it is at or below half of both.

use alloc::collections::VecDeque;

use crate::block::{Block, Chain};

/// How much a queue takes: its high water mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bytes in it.
    pub bytes: usize,
    /// Blocks in it.
    pub blocks: usize,
}

impl Limit {
    /// As much as is sensible for a conversation: a quarter of a megabyte.
    pub const CONVERSATION: Self = Self { bytes: 256 << 10, blocks: 256 };
    /// One put.
    pub const ONE: Self = Self { bytes: 0, blocks: 0 };
}

/// Blocks that wait, in order.
#[derive(Debug)]
pub struct Queue {
    blocks: VecDeque<Block>,
    bytes: usize,
    /// Messages that end in it.
    delims: usize,
    limit: Limit,
    refused: bool,
}

impl Queue {
    /// An empty one.
    pub fn new(limit: Limit) -> Self {
        Self { blocks: VecDeque::new(), bytes: 0, delims: 0, limit, refused: false }
    }

    /// Takes all of a chain, or refuses it: then [`Queue::relieved`] says when to try again.
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

    /// Takes all of a chain, whatever the limit says.
    pub fn force(&mut self, chain: Chain) {
        for block in chain {
            self.bytes += block.len();
            self.delims += usize::from(block.delim);
            self.blocks.push_back(block);
        }
    }

    /// Takes the first block out.
    pub fn pop(&mut self) -> Option<Block> {
        let block = self.blocks.pop_front()?;
        self.bytes -= block.len();
        self.delims -= usize::from(block.delim);
        Some(block)
    }

    /// Takes out `want` bytes, or as many as there are before a message ends; `None`: the first block.
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

    /// Puts back what was taken out last.
    pub fn put_back(&mut self, block: Block) {
        self.bytes += block.len();
        self.delims += usize::from(block.delim);
        self.blocks.push_front(block);
    }

    /// The first block.
    pub fn front(&self) -> Option<&Block> {
        self.blocks.front()
    }

    /// The blocks, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter()
    }

    /// Whether it has refused and is at or below half of its limit since: said once, to whoever shall tell those who
    /// were refused.
    pub fn relieved(&mut self) -> bool {
        let low = self.bytes <= self.limit.bytes / 2 && self.blocks.len() <= self.limit.blocks / 2;
        low && core::mem::take(&mut self.refused)
    }

    /// Bytes in it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Blocks in it.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Whether no block is in it, not even an empty one.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether a message ends in it.
    pub fn has_message(&self) -> bool {
        self.delims > 0
    }

    /// Whether it has refused what it would have been given.
    pub fn has_refused(&self) -> bool {
        self.refused
    }

    /// Forgets everything in it.
    pub fn clear(&mut self) {
        *self = Self::new(self.limit);
    }
}
