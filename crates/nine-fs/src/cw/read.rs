//! Reads: finds a block and verifies its content.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use nine_block::{Error, Kind as Wrong, Proof};

use super::copies::ReadCopy;
use super::layout::{CacheHeader, HEADER, RowLocation, TableRow, is_sector};
use super::rows::{self, RowPages};
use super::step::{BlockOperation, PlanStep, step};
use super::tag::{BlockKind, BlockTag, TAG};
use super::{Cw, CwState, Result, read_all};
use crate::hash::FixedMap;
use crate::ptr::NEW;
use crate::tree;

/// Copies are evicted for new ones only while free slots and copies together exceed the slots that must stay free by
/// more than this number.
const KEEPING: u64 = 64;
/// Maximum number of read copies in progress. Blocks read beyond that are not copied.
const KEEPING_MAX: u64 = 4096;

/// The source of a block, and its expected content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockSource {
    /// A slot, and the sum of its block; for a read copy also the w-address.
    Slot(u64, u32, Option<u64>),
    Worm(u64),
}

impl Cw {
    /// Loads a page of rows into memory.
    pub(super) async fn load(&self, page: u64) -> Result<()> {
        self.load_with(page, &FixedMap::default()).await
    }

    /// The same, but rows in `known` replace those of the table.
    pub(super) async fn load_with(&self, page: u64, known: &FixedMap<u64, TableRow>) -> Result<()> {
        loop {
            let (shrunk, used) = {
                let state = &mut *self.state();
                if state.rows.has(page) {
                    return Ok(());
                }
                if !RowPages::is_used(page, &state.used_rows.bits) {
                    let loaded = state.rows.load(page, &[], &state.used_rows.bits, known);
                    return loaded.map_err(|text| Error::new(Wrong::Failed, text));
                }
                if state.rows.is_large() && !state.committing {
                    state.rows.shrink();
                    state.shrunk += 1;
                }
                let first = page * rows::SECTORS;
                let used = (first..first + rows::SECTORS)
                    .map(|sector| RowPages::is_sector_used(sector, &state.used_rows.bits))
                    .collect::<Box<[bool]>>();
                (state.shrunk, used)
            };
            let layout = &self.0.layout;
            let from = page * rows::SECTORS;
            let count = layout.rows.1.div_ceil(super::layout::ROWS).min(from + rows::SECTORS) - from;
            let at = layout.rows.0 * layout.per_block() + from;
            let proof = Proof::new(1, move |n, sector| !used[n as usize] || is_sector(sector, from + n));
            let bytes = read_all(&*self.0.c, at, count, Some(proof)).await?;
            let state = &mut *self.state();
            if state.shrunk == shrunk {
                let loaded = state.rows.load(page, &bytes, &state.used_rows.bits, known);
                return loaded.map_err(|text| Error::new(Wrong::Failed, text).of(self.0.c.name()));
            }
        }
    }

    /// Returns the source of a block.
    async fn find(&self, at: u64) -> Result<BlockSource> {
        loop {
            let page = {
                let state = &mut *self.state();
                if let Some((is, row)) = state.of(at) {
                    let plan = step(is, BlockOperation::Read, self.0.fastworm).expect("everything is read");
                    let worm = match row.place {
                        RowLocation::OnWorm(worm) => Some(worm),
                        _ if at < NEW => Some(at),
                        _ => None,
                    };
                    return match (plan.steps[0], row.place, worm) {
                        (PlanStep::ReadCache, RowLocation::Here(slot), _) => {
                            Ok(BlockSource::Slot(slot, row.sum, None))
                        }
                        (PlanStep::ReadCache, _, Some(worm)) => {
                            let ReadCopy { slot, sum } = state.copies.get(worm).expect("its state says so");
                            Ok(BlockSource::Slot(slot, sum, Some(worm)))
                        }
                        (_, _, Some(worm)) => self.on_worm(worm, state.header.fields.next_worm),
                        _ => Err(Error::new(Wrong::Failed, format!("there is no block {at:#x}"))),
                    };
                }
                rows::page_of(at - NEW)
            };
            self.load(page).await?;
        }
    }

    fn on_worm(&self, at: u64, next: u64) -> Result<BlockSource> {
        // Blocks from there on have never been written. A segment in progress is read through its rows.
        match self.is_before(at, next) {
            true => Ok(BlockSource::Worm(at)),
            false => Err(Error::new(Wrong::Failed, format!("w is not written at {at}"))),
        }
    }

    /// Reads blocks from consecutive addresses, and verifies each.
    pub(super) async fn read(&self, at: u64, count: u64) -> Result<Bytes> {
        let mut sources = self.find_all(at, count).await?;
        loop {
            let result = self.read_from(at, &sources).await;
            if let Ok(bytes) = &result {
                self.keep(&sources, bytes);
                return result;
            }
            // The slot may have been reused meanwhile.
            let now = self.find_all(at, count).await?;
            if now == sources {
                return result;
            }
            sources = now;
        }
    }

    async fn find_all(&self, at: u64, count: u64) -> Result<Vec<BlockSource>> {
        let mut sources = Vec::with_capacity(count as usize);
        for at in at..at + count {
            sources.push(self.find(at).await?);
        }
        Ok(sources)
    }

    pub(super) async fn read_from(&self, at: u64, sources: &[BlockSource]) -> Result<Bytes> {
        // Read adjacent blocks together, all at the same time.
        let runs = neighbours(sources, |from| self.sector(from), self.0.layout.per_block());
        let calls: Vec<_> = runs
            .into_iter()
            .map(|run| {
                let sectors = (run.end - run.start) as u64 * self.0.layout.per_block();
                let device = match sources[run.start] {
                    BlockSource::Slot(..) => self.slots_on(),
                    BlockSource::Worm(_) => &self.0.w,
                };
                let proof = self.proof(at + run.start as u64, &sources[run.clone()]);
                let call = device.read_proven(self.sector(sources[run.start]), sectors, Some(proof));
                (run, call)
            })
            .collect();
        let alone = calls.len() == 1;
        let mut all = Vec::new();
        for (run, call) in calls {
            let bytes = call.await;
            let is_right = |bytes: &Bytes| {
                let blocks = sources[run.clone()].iter().zip(bytes.chunks_exact(self.block()));
                blocks
                    .zip(at + run.start as u64..)
                    .try_for_each(|((from, block), at)| self.judge(at, *from, block))
            };
            let is_copy = |from: &BlockSource| matches!(from, BlockSource::Slot(.., Some(_)));
            let bytes = match bytes.and_then(|bytes| is_right(&bytes).map(|()| bytes)) {
                Ok(bytes) => bytes,
                // Perhaps no single member of a mirror has all blocks; and a read copy can be replaced by the block on
                // w.
                Err(_) if run.len() > 1 || sources[run.clone()].iter().any(is_copy) => {
                    self.one_by_one(at + run.start as u64, &sources[run]).await?
                }
                Err(error) => return Err(error),
            };
            if alone {
                return Ok(bytes);
            }
            all.extend_from_slice(&bytes);
        }
        Ok(all.into())
    }

    /// Reads each block by itself, after reading them together has failed. Read copies are discarded, and read from w.
    async fn one_by_one(&self, first: u64, sources: &[BlockSource]) -> Result<Bytes> {
        let mut all = Vec::new();
        for (from, at) in sources.iter().zip(first..) {
            let from = match *from {
                BlockSource::Slot(_, _, Some(worm)) => {
                    let state = &mut *self.state();
                    if let Some(slot) = state.copies.remove(worm) {
                        state.slots.give(slot);
                    }
                    BlockSource::Worm(worm)
                }
                from => from,
            };
            all.extend_from_slice(&self.read_one(at, from, false).await?);
        }
        Ok(all.into())
    }

    /// Reads one block; with `everywhere` from all members of a mirror.
    async fn read_one(&self, at: u64, from: BlockSource, everywhere: bool) -> Result<Bytes> {
        let device = if let BlockSource::Worm(_) = from { &self.0.w } else { self.slots_on() };
        let proof = self.proof(at, &[from]);
        let proof = if everywhere { proof.everywhere() } else { proof };
        let bytes = device.read_proven(self.sector(from), self.0.layout.per_block(), Some(proof)).await?;
        self.judge(at, from, &bytes)?;
        Ok(bytes)
    }

    /// Returns the check by which a mirror verifies the blocks. It keeps no reference to the archive, even if a device
    /// never answers.
    fn proof(&self, first: u64, sources: &[BlockSource]) -> Proof {
        let (cw, sources): (_, Box<[BlockSource]>) = (Arc::downgrade(&self.0), sources.into());
        let is_right = move |n: u64, block: &[u8]| {
            let (cw, from) = (cw.upgrade().map(Cw), sources.get(n as usize));
            cw.zip(from).is_some_and(|(cw, from)| cw.judge(first + n, *from, block).is_ok())
        };
        Proof::new(self.0.layout.per_block(), is_right)
    }

    /// Reads blocks of w from all members of a mirror, without using c. If one is wrong, each is read by itself.
    pub(crate) async fn scrub(&self, at: u64, count: u64) -> Vec<Result<Bytes>> {
        self.read_everywhere(at, &(at..at + count).map(BlockSource::Worm).collect::<Vec<_>>()).await
    }

    /// Reads adjacent blocks of w from all members of a mirror. If one is wrong, each is read by itself.
    async fn read_everywhere(&self, first: u64, from: &[BlockSource]) -> Vec<Result<Bytes>> {
        let (sector, sectors) = (self.sector(from[0]), from.len() as u64 * self.0.layout.per_block());
        let proof = self.proof(first, from).everywhere();
        if let Ok(bytes) = self.0.w.read_proven(sector, sectors, Some(proof.clone())).await
            && proof.holds(&bytes)
        {
            return bytes.chunks_exact(self.block()).map(|block| Ok(bytes.slice_ref(block))).collect();
        }
        let mut blocks = Vec::with_capacity(from.len());
        for (at, from) in (first..).zip(from) {
            blocks.push(self.read_one(at, *from, true).await);
        }
        blocks
    }

    /// In place: verifies the blocks of these rows, which are adjacent, on all members of a mirror.
    pub(crate) async fn stands(&self, at: u64, count: u64) -> Result<()> {
        let from = self.find_all(at, count).await?;
        self.read_everywhere(at, &from).await.into_iter().try_for_each(|block| block.map(drop))
    }

    /// The same for adjacent blocks of w, by the sums that were written.
    pub(super) async fn has_come(&self, places: &[(u64, u32)]) -> Result<()> {
        let from: Vec<BlockSource> =
            places.iter().map(|(place, sum)| BlockSource::Slot(*place, *sum, None)).collect();
        self.read_everywhere(places[0].0, &from).await.into_iter().try_for_each(|block| block.map(drop))
    }

    /// The same for the block of a row on c.
    pub(crate) async fn scrub_row(&self, row: u64) -> Result<()> {
        let from = self.find(NEW + row).await?;
        self.read_one(NEW + row, from, true).await.map(drop)
    }

    /// Returns the errors of the headers on c. A header that is being written may be torn, so each is read twice.
    pub(crate) async fn scrub_headers(&self) -> Vec<Error> {
        let is_right = |bytes: &[u8]| CacheHeader::decode(bytes).is_ok();
        let mut wrong = Vec::new();
        for at in [0, HEADER, self.last_block(), self.last_block() + HEADER] {
            let mut last = None;
            for _ in 0..2 {
                let proof = Proof::new(HEADER, move |_, bytes| is_right(bytes)).everywhere();
                last = match self.0.c.read_proven(at, HEADER, Some(proof)).await {
                    Ok(bytes) => {
                        CacheHeader::decode(&bytes).err().map(|text| Error::new(Wrong::Failed, text))
                    }
                    Err(error) => Some(error),
                };
                if last.is_none() {
                    break;
                }
            }
            wrong.extend(last.map(|error| error.of(self.0.c.name())));
        }
        wrong
    }

    /// Returns the inode in the tag of a row's block. The tag is not verified: use it in messages only.
    pub(crate) async fn owner_by_tag(&self, row: u64) -> Option<u64> {
        let slot = self.place_of(row).await.ok()??;
        let block = self.slots_on().read(self.slot_at(slot), self.0.layout.per_block()).await.ok()?;
        Some(super::get64(&block, block.len() - TAG + 16))
    }

    /// Returns the first sector of the source.
    fn sector(&self, from: BlockSource) -> u64 {
        match from {
            BlockSource::Slot(slot, ..) => self.slot_at(slot),
            BlockSource::Worm(at) => at * self.0.layout.per_block(),
        }
    }

    /// Verifies a block from this source.
    pub(super) fn judge(&self, at: u64, from: BlockSource, block: &[u8]) -> Result<()> {
        let end = block.len() - TAG;
        let tag = BlockTag::open(block, &self.0.identity).map_err(|text| self.wrong(at, text))?;
        let is_it = match from {
            // A node on w is not a copy of the node on c (docs/disk.md, "States").
            BlockSource::Slot(_, sum, worm) => {
                let is_copy = worm.is_none_or(|worm| tag.at == worm || tag.kind == BlockKind::File);
                is_copy && super::get32(block, block.len() - 4) == sum
            }
            BlockSource::Worm(worm) => tag.at == worm,
        };
        if !is_it {
            return Err(self.wrong(at, "another block is in its place"));
        }
        match tag.kind {
            BlockKind::Leaf | BlockKind::Branch => {
                tree::node::check(&block[..end], tag.kind == BlockKind::Leaf)
                    .map_err(|text| self.wrong(at, format!("a node that cannot be: {text}")))
            }
            BlockKind::File | BlockKind::Super | BlockKind::Label => Ok(()),
        }
    }

    /// Writes blocks that were read from w into slots, adjacent ones together. This runs in the background, if copies
    /// are wanted and slots are free.
    fn keep(&self, sources: &[BlockSource], bytes: &Bytes) {
        if self.0.fastworm {
            return;
        }
        let mut from = 0;
        while from < sources.len() {
            let (worms, slots) = {
                let state = &mut *self.state();
                let is_new = |from: &BlockSource| match *from {
                    BlockSource::Worm(worm) if !state.copies.has(worm) => Some(worm),
                    _ => None,
                };
                let worms: Vec<u64> = sources[from..].iter().map_while(is_new).collect();
                let slots = self.slots_to_keep(state, worms.len() as u64);
                (worms, slots)
            };
            let Some(slots) = slots else {
                from += worms.len().max(1);
                continue;
            };
            let count = (slots.end - slots.start) as usize;
            let data = bytes.slice(from * self.block()..(from + count) * self.block());
            from += count;
            let (cw, write) = (self.clone(), self.0.c.write(self.slot_at(slots.start), data.clone()));
            self.0.tasks.spawn(async move {
                let written = write.await.is_ok();
                let state = &mut *cw.state();
                state.keeping -= slots.end - slots.start;
                for ((slot, worm), block) in slots.zip(worms).zip(data.chunks_exact(cw.block())) {
                    let sum = super::get32(block, block.len() - 4);
                    if !written || !state.copies.add(worm, ReadCopy { slot, sum }) {
                        state.slots.give(slot);
                    }
                }
            });
        }
    }

    /// Allocates at most `most` consecutive slots for read copies. Evicts unused copies if necessary.
    fn slots_to_keep(&self, state: &mut CwState, most: u64) -> Option<Range<u64>> {
        // Leave the slots promised to commits, the reserve, and a sixteenth for later writes.
        let least = self.promised() + self.kept_back() + self.0.layout.slots.1 / 16;
        let most = most.min(KEEPING_MAX.saturating_sub(state.keeping));
        // In the seed's former order consecutive slots are not adjacent.
        let most = if self.0.row_order { most.min(1) } else { most };
        while state.slots.free() < least + most
            && state.slots.free() + state.copies.len() as u64 > least + KEEPING
            && let Some(slot) = state.copies.evict()
        {
            state.slots.give(slot);
        }
        let most = most.min(state.slots.free().saturating_sub(least));
        let slots = state.slots.take(most).filter(|_| most > 0)?;
        state.keeping += slots.end - slots.start;
        Some(slots)
    }
}

/// Splits sources into runs that are adjacent on the same device, as index ranges.
fn neighbours(
    sources: &[BlockSource],
    sector: impl Fn(BlockSource) -> u64,
    per_block: u64,
) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (n, from) in sources.iter().enumerate() {
        let goes_on = n > 0 && {
            let before = sources[n - 1];
            let same = matches!(before, BlockSource::Worm(_)) == matches!(from, BlockSource::Worm(_));
            same && sector(before) + per_block == sector(*from)
        };
        match runs.last_mut() {
            Some(run) if goes_on => run.end = n + 1,
            _ => runs.push(n..n + 1),
        }
    }
    runs
}
