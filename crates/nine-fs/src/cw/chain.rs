//! The superblocks of w: which dumps there are, where nobody knows but w itself.
//!
//! In: w. Out: its superblocks in their order, and where what was written ends (docs/disk.md, "The worm").

use bytes::Bytes;
use nine_block::{Device, Error, Kind as Wrong, Proof, SECTOR};

use super::Result;
use super::layout::{LABELS, Label, Super};
use super::tag::{Identity, Kind, Tag};

/// Blocks that have nothing of ours, behind which nothing more is looked for: what is passed over when places of w
/// cannot be written is much less.
const LOOK: u64 = 1 << 16;
/// Bytes that are read at a time.
const READ: u64 = 1 << 20;

/// A worm, as who knows its label reads it.
pub(crate) struct Worm<'a> {
    pub(crate) w: &'a dyn Device,
    pub(crate) identity: Identity,
    /// Sectors of a block.
    pub(crate) per: u64,
    /// Where the first segment begins.
    pub(crate) first: u64,
}

/// What is there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain {
    /// Superblocks and the places of their first copies, oldest first.
    pub(crate) dumps: Vec<(u64, Super)>,
    /// Behind all that has been written, also of dumps that never came to their end.
    pub(crate) behind: u64,
    /// The largest generation of all that.
    pub(crate) generation: u32,
}

impl<'a> Worm<'a> {
    pub(crate) fn new(w: &'a dyn Device, label: &Label) -> Self {
        let per = u64::from(label.block) / SECTOR;
        Self { w, identity: label.identity, per, first: label.first() }
    }

    /// There is no cache device: segments lie anywhere, and have their superblocks' copies beside each other.
    fn is_in_place(&self) -> bool {
        self.first > LABELS
    }

    /// The superblock at this place.
    pub(crate) async fn superblock(&self, at: u64) -> Result<Super> {
        let wrong = |text: &str| Error::new(Wrong::Failed, format!("block {at:#x}: {text}"));
        let identity = self.identity;
        let proof =
            Proof::new(self.per, move |_, block| Tag::open(block, &identity).is_ok_and(|tag| tag.at == at));
        let block = self.w.read_proven(at * self.per, self.per, Some(proof)).await?;
        let tag = Tag::open(&block, &identity).map_err(wrong)?;
        if tag.kind != Kind::Super || tag.at != at {
            return Err(wrong("it is no superblock"));
        }
        Super::decode(&block).map_err(|text| wrong(&text))
    }

    /// All superblocks from the one at this place on, of generations behind this one.
    ///
    /// # Errors
    /// That w does not answer; that another has it to himself.
    pub(crate) async fn chain(&self, from: u64, after: u32) -> Result<Chain> {
        let mut chain = Chain { dumps: Vec::new(), behind: from, generation: after };
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
                // What else is written there is no part of it.
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

    /// Whether a superblock may have come to this place: something is there.
    pub(crate) async fn has_something(&self, at: u64) -> Result<bool> {
        match self.w.read(at * self.per, self.per).await {
            Ok(block) => Ok(block.iter().any(|byte| *byte != 0)),
            Err(error) if error.kind == Wrong::Range || error.kind == Wrong::Unwritten => Ok(false),
            Err(error) if passes(&error) => Err(error),
            Err(_) => Ok(true),
        }
    }

    /// Looks block by block for the next superblock, in its last place if not in its first.
    async fn look(&self, chain: &mut Chain, last: u32) -> Result<Option<(u64, Super)>> {
        let end = self.w.shape().sectors / self.per;
        let (mut at, mut nothing) = (chain.behind, 0);
        while at < end && nothing < LOOK {
            let count = (READ / (self.per * SECTOR)).min(end - at);
            for (at, block) in (at..).zip(self.blocks(at, count).await?) {
                let tag = block.as_ref().and_then(|block| Tag::open(block, &self.identity).ok());
                let Some((block, tag)) = block.zip(tag).filter(|(_, tag)| tag.at == at) else {
                    nothing += 1;
                    continue;
                };
                nothing = 0;
                if tag.kind == Kind::Super
                    && let Ok(it) = Super::decode(&block)
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

    /// Blocks, as far as they can be read.
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

/// It says nothing of what is there.
fn passes(error: &Error) -> bool {
    !matches!(error.kind, Wrong::Failed | Wrong::Unwritten | Wrong::Range)
}
