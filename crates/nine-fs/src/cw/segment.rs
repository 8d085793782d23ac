//! Writes a dump to w: blocks in the order in which they arrive, one after the other (docs/disk.md, "Addresses,
//! generations, dumps").
//!
//! In: contents of blocks. Out: their w-addresses at once; on request which of them are durable; a superblock at the
//! end.
//!
//! Always holds: a written block of w is not written again, unless with the same content.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use nine_block::{Error, Kind as Wrong};

use super::commit::CopiedBlock;
use super::layout::DumpSuperblock;
use super::tag::{BlockKind, BlockTag};
use super::{Cw, Result};
use crate::jobs::yield_now;
use crate::ptr::NEW;

/// Bytes of the largest write.
const RUN: usize = 1 << 20;

/// A segment that is being written.
pub(crate) struct SegmentWriter {
    cw: Cw,
    /// The w-address of its superblock.
    first: u64,
    /// The w-address of the next block; in place the start of the next segment.
    next: u64,
    run: BytesMut,
    run_at: u64,
    /// Rows and their w-addresses, since the last call of [`durable`](Self::durable).
    come: Vec<CopiedBlock>,
    /// A block of w could not be written.
    failed: bool,
    /// In place: blocks of the dump, copied or not.
    blocks: u64,
    /// In place: the run of free blocks that the next blocks go to.
    together: Range<u64>,
    /// In place: the addresses and sums of written blocks, until they are verified.
    written: Vec<(u64, u32)>,
}

impl SegmentWriter {
    /// Continues the segment whose superblock is at `first`, with the next block at `next`. In place `next` is where
    /// the next segment begins.
    pub(crate) fn new(cw: &Cw, first: u64, next: u64) -> Self {
        Self {
            cw: cw.clone(),
            first,
            next,
            run: BytesMut::new(),
            run_at: next,
            come: Vec::new(),
            failed: false,
            blocks: 0,
            together: 0..0,
            written: Vec::new(),
        }
    }

    /// Returns the w-address of the next block; in place the start of the next segment.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Returns whether it has failed because a block of w cannot be written. Another block may do.
    pub(crate) fn is_place_bad(&self) -> bool {
        self.failed
    }

    /// Returns how many blocks were added since [`durable`](Self::durable).
    pub(crate) fn come(&self) -> usize {
        self.come.len()
    }

    /// Returns the rows of these blocks.
    pub(crate) fn rows(&self) -> impl Iterator<Item = u64> + '_ {
        self.come.iter().map(|come| come.row)
    }

    /// Adds `count` blocks that stay where they are, from `place` on.
    pub(crate) fn stay(&mut self, row: u64, place: u64, count: u64) {
        self.come.extend((0..count).map(|n| CopiedBlock { row: row + n, worm: place + n, same: true }));
        self.blocks += count;
    }

    /// Abandons the segment. Blocks that no commit has recorded are discarded. Returns their rows.
    pub(crate) fn give_up(self) -> Vec<u64> {
        let rows = self.rows().collect();
        // If a block cannot be written, its run stays allocated until the next start.
        if self.cw.in_place() && !self.failed {
            let stays = |come: &CopiedBlock| self.cw.is_written(come.worm, 0);
            let places = self.come.iter().filter(|come| !stays(come)).map(|come| come.worm);
            self.cw.give_places(places.chain(self.together.clone()).collect::<Vec<_>>().into_iter());
        }
        rows
    }

    /// Reserves room for the next `count` blocks to be adjacent.
    ///
    /// # Errors
    /// [`Wrong::Range`]: in place w has no such run of free blocks.
    pub(crate) fn keep_together(&mut self, count: u64) -> Result<()> {
        if self.cw.in_place() {
            let text = "w is full, or what is free there lies too scattered: make it larger";
            let none = || Error::new(Wrong::Range, text).of(self.cw.0.w.name());
            self.together = self.cw.run(count).ok_or_else(none)?;
        }
        Ok(())
    }

    /// Returns the w-address for the next block, if w has room.
    fn place(&mut self) -> Option<u64> {
        // The last block of a segment is its second superblock.
        let next = Some(self.next).filter(|next| next + 1 < self.cw.worm_blocks());
        if self.cw.in_place() { self.together.next().or_else(|| self.cw.place()) } else { next }
    }

    /// Adds a block, and returns its w-address. The block is not durable yet. If this fails, the block that could not
    /// be written is before [`next`](Self::next).
    ///
    /// # Errors
    /// [`Wrong::Range`]: w is full. Other errors are those of w.
    pub(crate) async fn put(
        &mut self,
        kind: BlockKind,
        (at, made): (u64, u32),
        (owner, index): (u64, u64),
        content: &[u8],
    ) -> Result<u64> {
        let mut place = self.place();
        if place.is_none() {
            // w may have grown.
            let _ = self.cw.0.w.look().await;
            place = self.place();
        }
        let Some(place) = place else {
            return Err(Error::new(Wrong::Range, "w is full: make it larger").of(self.cw.0.w.name()));
        };
        let block = self.cw.block();
        if place != self.run_at + (self.run.len() / block) as u64 {
            self.write().await?;
        }
        let start = self.run.len();
        if start == 0 {
            self.run.reserve(RUN);
            self.run_at = place;
        }
        self.run.extend_from_slice(content);
        self.run.resize(start + block, 0);
        let tag = BlockTag { kind, made, at: place, owner, index };
        let sum = tag.seal(&mut self.run[start..], &self.cw.0.identity);
        if self.cw.in_place() {
            self.written.push((place, sum));
        }
        self.come.push(CopiedBlock { row: at - NEW, worm: place, same: kind == BlockKind::File });
        self.blocks += 1;
        self.next += u64::from(!self.cw.in_place());
        if self.run.len() + block > RUN {
            self.write().await?;
            // As in a commit: let other requests run.
            yield_now().await;
        }
        Ok(place)
    }

    async fn write(&mut self) -> Result<()> {
        if self.run.is_empty() {
            return Ok(());
        }
        let (at, bytes) = (self.run_at, self.run.split().freeze());
        let written = self.cw.write_worm(at, bytes).await;
        self.failed |= written.as_ref().is_err_and(is_of_the_place);
        written
    }

    /// Makes all added blocks durable. Returns their rows and w-addresses.
    pub(crate) async fn durable(&mut self) -> Result<Vec<CopiedBlock>> {
        self.write().await?;
        self.cw.0.w.flush().await?;
        self.looks().await?;
        Ok(std::mem::take(&mut self.come))
    }

    /// Verifies the written blocks in place. Where an address held another block before, nothing else would detect a
    /// lost write.
    async fn looks(&mut self) -> Result<()> {
        let most = RUN / self.cw.block();
        for run in self.written.chunk_by(|(at, _), (next, _)| at + 1 == *next) {
            for piece in run.chunks(most) {
                let there = self.cw.has_come(piece).await;
                self.failed |= there.as_ref().is_err_and(is_of_the_place);
                there?;
            }
        }
        self.written.clear();
        Ok(())
    }

    /// Completes the segment: writes the superblock into its last and its first block. One of the two writes must
    /// succeed. Returns the superblock, with the start of the next segment.
    pub(crate) async fn seal(&mut self, it: DumpSuperblock) -> Result<DumpSuperblock> {
        self.write().await?;
        self.cw.0.w.flush().await?;
        let (next, blocks) = match self.cw.in_place() {
            true => (self.next, self.blocks + 2),
            false => (self.next + 1, self.next + 1 - self.first),
        };
        let it = DumpSuperblock { next, blocks, behind: self.cw.behind(), ..it };
        let mut written = Err(Error::new(Wrong::Failed, "there was no superblock to write"));
        for at in [self.cw.second(self.first, blocks), self.first] {
            let mut block = vec![0; self.cw.block()];
            it.encode(&mut block);
            let tag = BlockTag { kind: BlockKind::Super, made: it.generation, at, owner: 0, index: 0 };
            tag.seal(&mut block, &self.cw.0.identity);
            let one = self.cw.write_worm(at, block.into()).await;
            if let Err(error) = &one {
                tracing::warn!(
                    "{error}: a copy of the superblock of generation {} is missing",
                    it.generation
                );
            }
            written = written.or(one);
        }
        self.failed |= written.as_ref().is_err_and(is_of_the_place);
        written?;
        self.cw.0.w.flush().await?;
        Ok(it)
    }
}

/// Returns whether the write may succeed at another address.
fn is_of_the_place(error: &Error) -> bool {
    matches!(error.kind, Wrong::Failed | Wrong::ReadOnly | Wrong::Unwritten)
}

impl Cw {
    /// Makes all writes to w durable.
    pub(crate) async fn flush_worm(&self) -> Result<()> {
        self.0.w.flush().await.map(drop)
    }

    /// Writes blocks to w. If w is write-once and already has the same content there, that is a success.
    async fn write_worm(&self, at: u64, bytes: Bytes) -> Result<()> {
        let sector = at * self.0.layout.per_block();
        match self.0.w.write(sector, bytes.clone()).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind == Wrong::ReadOnly => {
                let there = self.0.w.read(sector, bytes.len() as u64 / 512).await;
                if there.is_ok_and(|there| there == bytes) { Ok(()) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
    }
}
