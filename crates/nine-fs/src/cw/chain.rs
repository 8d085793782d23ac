//! The chain of superblocks on w: the list of dumps, read from w alone.
//!
//! In: w. Out: its superblocks in order, and the end of the written blocks (docs/disk.md, "The worm").

use bytes::Bytes;
use nine_block::{Device, Error, Kind as Wrong, Proof, SECTOR};

use super::Result;
use super::layout::{DumpSuperblock, LABELS, WormLabel};
use super::tag::{BlockKind, BlockTag, FsIdentity};

/// The search ends after this number of consecutive blocks that are not of this archive. The gap that unwritable blocks
/// of w leave is much smaller.
const LOOK: u64 = 1 << 16;
/// Bytes of one read.
const READ: u64 = 1 << 20;

/// A worm with a known label.
pub(crate) struct LabeledWorm<'a> {
    pub(crate) w: &'a dyn Device,
    pub(crate) identity: FsIdentity,
    /// Sectors of a block.
    pub(crate) per: u64,
    /// The w-address of the first segment.
    pub(crate) first: u64,
}

/// The chain as found.
#[derive(Clone, Debug, Default)]
pub(crate) struct DumpChain {
    /// Superblocks with the w-addresses of their first copies, oldest first.
    pub(crate) dumps: Vec<(u64, DumpSuperblock)>,
    /// The end of all written blocks, including those of dumps that were never completed.
    pub(crate) behind: u64,
    /// The largest generation of all these blocks.
    pub(crate) generation: u32,
}

impl<'a> LabeledWorm<'a> {
    pub(crate) fn new(w: &'a dyn Device, label: &WormLabel) -> Self {
        let per = u64::from(label.block) / SECTOR;
        Self { w, identity: label.identity, per, first: label.first() }
    }

    /// Returns whether there is no cache device. Segments then lie anywhere, and the two copies of a superblock are
    /// adjacent.
    fn is_in_place(&self) -> bool {
        self.first > LABELS
    }

    /// Reads the superblock at `at`.
    pub(crate) async fn superblock(&self, at: u64) -> Result<DumpSuperblock> {
        let wrong = |text: &str| Error::new(Wrong::Failed, format!("block {at:#x}: {text}"));
        let identity = self.identity;
        let proof = Proof::new(self.per, move |_, block| {
            BlockTag::open(block, &identity).is_ok_and(|tag| tag.at == at)
        });
        let block = self.w.read_proven(at * self.per, self.per, Some(proof)).await?;
        let tag = BlockTag::open(&block, &identity).map_err(wrong)?;
        if tag.kind != BlockKind::Super || tag.at != at {
            return Err(wrong("it is no superblock"));
        }
        DumpSuperblock::decode(&block).map_err(|text| wrong(&text))
    }

    /// Follows the chain from `from` on, and returns the superblocks of generations after `after`.
    ///
    /// # Errors
    /// The error of w, if it does not answer or is reserved for another owner.
    pub(crate) async fn chain(&self, from: u64, after: u32) -> Result<DumpChain> {
        let mut chain = DumpChain { dumps: Vec::new(), behind: from, generation: after };
        let mut last = after;
        loop {
            let at = chain.behind;
            let mut found = self.superblock(at).await;
            if self.is_in_place() && found.is_err() {
                found = self.superblock(at + 1).await;
            }
            let (at, it) = match found {
                Ok(it) if it.generation > last => (at, it),
                Err(error) if passes(&error) => return Err(error),
                // In place other written blocks do not belong to the chain.
                _ if self.is_in_place() => return Ok(chain),
                _ => match self.look(&mut chain, last).await? {
                    Some(found) => found,
                    None => return Ok(chain),
                },
            };
            last = it.generation;
            chain.behind = if self.is_in_place() { it.next } else { it.next.max(chain.behind + 1) };
            chain.generation = chain.generation.max(last);
            chain.dumps.push((at, it));
        }
    }

    /// Returns whether a superblock may be at `at`: whether the block has data. An unreadable block counts as data.
    pub(crate) async fn has_something(&self, at: u64) -> Result<bool> {
        match self.w.read(at * self.per, self.per).await {
            Ok(block) => Ok(block.iter().any(|byte| *byte != 0)),
            Err(error) if error.kind == Wrong::Range || error.kind == Wrong::Unwritten => Ok(false),
            Err(error) if passes(&error) => Err(error),
            Err(_) => Ok(true),
        }
    }

    /// Searches for the next superblock block by block. It may be the last copy if the first cannot be read.
    async fn look(&self, chain: &mut DumpChain, last: u32) -> Result<Option<(u64, DumpSuperblock)>> {
        let end = self.w.shape().sectors / self.per;
        let (mut at, mut nothing) = (chain.behind, 0);
        while at < end && nothing < LOOK {
            let count = (READ / (self.per * SECTOR)).min(end - at);
            for (at, block) in (at..).zip(self.blocks(at, count).await?) {
                let tag = block.as_ref().and_then(|block| BlockTag::open(block, &self.identity).ok());
                let Some((block, tag)) = block.zip(tag).filter(|(_, tag)| tag.at == at) else {
                    nothing += 1;
                    continue;
                };
                nothing = 0;
                if tag.kind == BlockKind::Super
                    && let Ok(it) = DumpSuperblock::decode(&block)
                    && it.generation > last
                {
                    let first = if it.next == at + 1 { it.next.saturating_sub(it.blocks) } else { at };
                    return Ok(Some((first, it)));
                }
                (chain.behind, chain.generation) = (at + 1, chain.generation.max(tag.made));
            }
            at += count;
        }
        Ok(None)
    }

    /// Reads `count` blocks; `None` for each that cannot be read.
    async fn blocks(&self, at: u64, count: u64) -> Result<Vec<Option<Bytes>>> {
        let block = (self.per * SECTOR) as usize;
        match self.w.read(at * self.per, count * self.per).await {
            Ok(bytes) => {
                return Ok(bytes.chunks_exact(block).map(|block| Some(bytes.slice_ref(block))).collect());
            }
            Err(error) if passes(&error) => return Err(error),
            Err(_) => {}
        }
        let mut blocks = Vec::with_capacity(count as usize);
        for at in at..at + count {
            match self.w.read(at * self.per, self.per).await {
                Ok(block) => blocks.push(Some(block)),
                Err(error) if passes(&error) => return Err(error),
                Err(_) => blocks.push(None),
            }
        }
        Ok(blocks)
    }
}

/// Returns whether the error says nothing about the content of the block.
fn passes(error: &Error) -> bool {
    !matches!(error.kind, Wrong::Failed | Wrong::Unwritten | Wrong::Range)
}
