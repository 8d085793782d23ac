//! A dump on its way to w: blocks in the order in which they come, one behind the other (docs/disk.md, "Addresses,
//! generations, dumps").
//!
//! In: contents of blocks. Out: their w-addresses, at once; which of them are durable, when asked; at the end a
//! superblock.
//!
//! Always holds: what w has is not written again, unless it is the same.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use nine_block::{Error, Kind as Wrong};

use super::commit::Come;
use super::layout::Super;
use super::tag::{Kind, Tag};
use super::{Cw, Result};
use crate::jobs::yield_now;
use crate::ptr::NEW;

/// Bytes of the largest write.
const RUN: usize = 1 << 20;

/// See the module.
pub(crate) struct Segment {
    cw: Cw,
    /// Where its superblock goes.
    first: u64,
    /// Where the next block goes.
    next: u64,
    run: BytesMut,
    run_at: u64,
    /// Rows and where they are on w, since the last time that it was asked what is durable.
    come: Vec<Come>,
    /// A place of w could not be written.
    failed: bool,
    /// In place: blocks of the dump, copied or not.
    blocks: u64,
    /// In place: where the next ones go.
    together: Range<u64>,
    /// In place: what was written where, by sums, as long as `come` has it.
    written: Vec<(u64, u32)>,
}

impl Segment {
    /// Goes on with the segment whose superblock belongs at `first`, from `next` on; in place that is where the next
    /// segment begins.
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

    /// Where the next block goes.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Whether it has failed because a place of w cannot be written: another one may do.
    pub(crate) fn is_place_bad(&self) -> bool {
        self.failed
    }

    /// Blocks that have come since [`durable`](Self::durable).
    pub(crate) fn come(&self) -> usize {
        self.come.len()
    }

    /// The rows of these.
    pub(crate) fn rows(&self) -> impl Iterator<Item = u64> + '_ {
        self.come.iter().map(|come| come.row)
    }

    /// Blocks that stay where they are.
    pub(crate) fn stay(&mut self, row: u64, place: u64, count: u64) {
        self.come.extend((0..count).map(|n| Come { row: row + n, worm: place + n, same: true }));
        self.blocks += count;
    }

    /// It ends here: what has come, and no commit has heard of, has no place. The rows of that.
    pub(crate) fn give_up(self) -> Vec<u64> {
        let rows = self.rows().collect();
        // What cannot be written is nobody's until the next start.
        if self.cw.in_place() && !self.failed {
            let stays = |come: &Come| self.cw.is_written(come.worm, 0);
            let places = self.come.iter().filter(|come| !stays(come)).map(|come| come.worm);
            self.cw.give_places(places.chain(self.together.clone()).collect::<Vec<_>>().into_iter());
        }
        rows
    }

    /// The next blocks, so many, will lie beside each other.
    ///
    /// # Errors
    /// [`Wrong::Range`]: in place there may be no such room.
    pub(crate) fn keep_together(&mut self, count: u64) -> Result<()> {
        if self.cw.in_place() {
            let text = "w is full, or what is free there lies too scattered: make it larger";
            let none = || Error::new(Wrong::Range, text).of(self.cw.0.w.name());
            self.together = self.cw.run(count).ok_or_else(none)?;
        }
        Ok(())
    }

    /// Where the next block goes, if there is room.
    fn place(&mut self) -> Option<u64> {
        // The last block of a segment is its second superblock.
        let next = Some(self.next).filter(|next| next + 1 < self.cw.worm_blocks());
        if self.cw.in_place() { self.together.next().or_else(|| self.cw.place()) } else { next }
    }

    /// A new block has its turn. Where on w it is; not durable yet. What could not be written is behind
    /// [`next`](Self::next), if this fails.
    ///
    /// # Errors
    /// [`Wrong::Range`]: w is full. What w says.
    pub(crate) async fn put(
        &mut self,
        kind: Kind,
        (at, made): (u64, u32),
        (owner, index): (u64, u64),
        content: &[u8],
    ) -> Result<u64> {
        let mut place = self.place();
        if place.is_none() {
            // It may have been made larger.
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
        let tag = Tag { kind, made, at: place, owner, index };
        let sum = tag.seal(&mut self.run[start..], &self.cw.0.identity);
        if self.cw.in_place() {
            self.written.push((place, sum));
        }
        self.come.push(Come { row: at - NEW, worm: place, same: kind == Kind::File });
        self.blocks += 1;
        self.next += u64::from(!self.cw.in_place());
        if self.run.len() + block > RUN {
            self.write().await?;
            // As in a commit: clients' requests may go on beside it.
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

    /// All that has come is durable: their rows, and where they are.
    pub(crate) async fn durable(&mut self) -> Result<Vec<Come>> {
        self.write().await?;
        self.cw.0.w.flush().await?;
        self.looks().await?;
        Ok(std::mem::take(&mut self.come))
    }

    /// What was written is there: where its place has been another's before, nothing else would tell.
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

    /// The end: the superblock, in the last and the first block; one of them must come there. Where the next segment
    /// begins, it says.
    pub(crate) async fn seal(&mut self, it: Super) -> Result<Super> {
        self.write().await?;
        self.cw.0.w.flush().await?;
        let (next, blocks) = match self.cw.in_place() {
            true => (self.next, self.blocks + 2),
            false => (self.next + 1, self.next + 1 - self.first),
        };
        let it = Super { next, blocks, behind: self.cw.behind(), ..it };
        let mut written = Err(Error::new(Wrong::Failed, "there was no superblock to write"));
        for at in [self.cw.second(self.first, blocks), self.first] {
            let mut block = vec![0; self.cw.block()];
            it.encode(&mut block);
            let tag = Tag { kind: Kind::Super, made: it.generation, at, owner: 0, index: 0 };
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

/// Whether the same may go well in another place.
fn is_of_the_place(error: &Error) -> bool {
    matches!(error.kind, Wrong::Failed | Wrong::ReadOnly | Wrong::Unwritten)
}

impl Cw {
    /// What was written to w is durable.
    pub(crate) async fn flush_worm(&self) -> Result<()> {
        self.0.w.flush().await.map(drop)
    }

    /// Writes blocks to w. If it is a worm indeed, and has them already, that is as good.
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
