//! A worm without a cache device: new blocks are written to their final address on w, and stay there when they are
//! dumped (docs/disk.md, "Without a cache device").
//!
//! In: a rewritable w. Out: blocks of w, each free or allocated; which blocks of a dump need not be copied.

use std::ops::Range;
use std::sync::Arc;

use nine_block::{Bits, Device, Error, Kind as Wrong, Part};

use super::layout::{CacheLayout, LABELS, RowLocation, WAITING_MAX, WormLabel};
use super::room::FreeNumbers;
use super::tag::BlockKind;
use super::{ChangedBlock, CommitChanges, CommitFields, Cw, CwState, Result};
use crate::ptr::NEW;

/// Returns the front area: the area of w after its labels, which serves as c.
pub(super) fn front(w: &Arc<dyn Device>, block: u32, first: u64) -> Result<Arc<dyn Device>> {
    let per = u64::from(block) / 512;
    let name = format!("the front of {}", w.name());
    Ok(Arc::new(Part::new(w.clone(), name, LABELS * per, first.saturating_sub(LABELS) * per)?))
}

/// Returns the cache device of the archive on w: the device `c`, or the front area of w.
pub(super) fn cache(c: Arc<dyn Device>, w: &Arc<dyn Device>, label: &WormLabel) -> Result<Arc<dyn Device>> {
    let bad = |text: &str| Err(Error::new(Wrong::Unsupported, text).of(w.name()));
    match (c.shape().sectors, label.in_place.0) {
        (0, 0) => bad("this archive has a cache device: name it instead of `n`, before the worm"),
        (0, first) => front(w, label.block, first),
        (_, 0) => Ok(c),
        // A follower has its own small cache in memory.
        _ if w.shape().read_only => Ok(c),
        _ => bad("this archive has no cache device: it is `c n WORM`"),
    }
}

/// Creates the layout of a new archive, and returns the front area.
///
/// # Errors
/// [`Wrong::Unsupported`]: w is too small, or write-once.
pub(super) async fn make(w: &Arc<dyn Device>, block: u32) -> Result<(Arc<dyn Device>, CacheLayout)> {
    let bad = |text: String| Error::new(Wrong::Unsupported, text).of(w.name());
    let blocks = w.shape().sectors / (u64::from(block) / 512);
    let layout = CacheLayout::in_place(blocks, block);
    let layout = layout.ok_or_else(|| {
        let least = (1..).find(|blocks| CacheLayout::in_place(*blocks, block).is_some()).unwrap_or_default();
        bad(format!("{blocks} blocks are too few for an archive without a cache device: {least} at least"))
    })?;
    let c = front(w, block, layout.front())?;
    // A write-once device fails here, before any data is lost.
    let last = layout.copies * layout.per_block();
    for _ in 0..2 {
        let zeros = vec![0; block as usize];
        c.write(last, zeros.into()).await.map_err(|error| match error.kind {
            Wrong::ReadOnly => {
                bad("it is written once: such a worm has a cache device, `c CACHE WORM`".into())
            }
            _ => error,
        })?;
    }
    Ok((c, layout))
}

/// Maximum number of blocks in an extent. A dump needs them adjacent, and longer free runs might not exist.
const TOGETHER: u64 = 32;
/// Maximum number of shorter free runs that are tried before an extent is scattered.
const RUN_TRIES_MAX: usize = 64;

/// Returns whether the block with this address may extend the extent of the block before it, if one commit writes both.
pub(crate) fn follows(at: u64) -> bool {
    !(at - NEW).is_multiple_of(TOGETHER)
}

impl CommitChanges {
    /// Returns how many blocks from `from` on belong to one extent.
    fn together(&self, from: usize) -> usize {
        let goes_on = |two: &&[ChangedBlock]| {
            let [one, next] = two else { return false };
            one.kind == BlockKind::File
                && (next.kind, next.owner, next.index) == (one.kind, one.owner, one.index + 1)
                && next.at.at == one.at.at + 1
        };
        1 + self.blocks[from..].windows(2).take_while(goes_on).count()
    }

    /// Allocates slots for the blocks, adjacent within an extent if possible. `None`: there are too few.
    pub(super) fn places(&self, slots: &mut FreeNumbers) -> Option<Vec<Range<u64>>> {
        let (mut all, mut from) = (Vec::<Range<u64>>::new(), 0);
        while from < self.blocks.len() {
            let mut left = self.together(from) as u64;
            from += left as usize;
            while left > 0 {
                let Some(run) = slots.take_run(left, RUN_TRIES_MAX).or_else(|| slots.take(left)) else {
                    all.into_iter().flatten().for_each(|slot| slots.give(slot));
                    return None;
                };
                left -= run.end - run.start;
                all.push(run);
            }
        }
        Some(all)
    }
}

impl Cw {
    /// Returns whether there is no cache device.
    pub(crate) fn in_place(&self) -> bool {
        self.0.layout.in_place
    }

    /// Returns whether blocks may be read ahead. A follower in place may not: it does not know when a block of w is
    /// reused.
    pub(crate) fn may_read_ahead(&self) -> bool {
        self.in_place() || self.0.first == LABELS
    }

    /// Returns the device that has the slots.
    pub(super) fn slots_on(&self) -> &Arc<dyn Device> {
        if self.in_place() { &self.0.w } else { &self.0.c }
    }

    /// Returns whether segments lie one after the other. In place they need not, so this is true.
    pub(super) fn are_in_order(&self, fields: &CommitFields) -> bool {
        self.0.first > LABELS || fields.segments().all(|at| at < fields.next_worm)
    }

    /// Returns the w-address of the second copy of a superblock, from the first and the number of its segment's blocks.
    pub(crate) fn second(&self, first: u64, blocks: u64) -> u64 {
        let behind = if self.0.first > LABELS { 1 } else { blocks.saturating_sub(1) };
        first + behind
    }

    /// Returns where the segment after the one at `first` will begin, as far as that is known. `None`: w has no room.
    pub(crate) fn segment_behind(&self, first: u64) -> Option<u64> {
        if self.in_place() { self.pair() } else { Some(first + 1) }
    }

    /// Allocates two adjacent blocks, for a superblock.
    fn pair(&self) -> Option<u64> {
        self.run(2).map(|run| run.start)
    }

    /// Allocates `count` adjacent blocks. `None`: there is no such run.
    pub(super) fn run(&self, count: u64) -> Option<Range<u64>> {
        let state = &mut *self.state();
        if self.spare(state, count) { state.slots.take_run(count, usize::MAX) } else { None }
    }

    /// Allocates a block for a dump. `None`: there is no room.
    pub(super) fn place(&self) -> Option<u64> {
        let state = &mut *self.state();
        if self.spare(state, 1) { state.slots.take(1).map(|place| place.start) } else { None }
    }

    /// Returns whether `count` blocks are free besides those promised to commits. Otherwise a commit could wait for a
    /// dump that waits for the commit. If there are too few, a held snapshot is dropped.
    fn spare(&self, state: &mut CwState, count: u64) -> bool {
        let least = self.promised() + count;
        if state.slots.free() < least {
            state.let_go();
        }
        state.slots.free() >= least
    }

    /// Frees blocks that no commit has recorded.
    pub(super) fn give_places(&self, places: impl Iterator<Item = u64>) {
        let slots = &mut self.state().slots;
        places.for_each(|place| slots.give(place));
    }

    /// Returns the w-address of consecutive blocks of a file that are adjacent, as a dump needs them. `None`: they must
    /// be copied.
    pub(crate) async fn stays(&self, at: u64, count: u64) -> Result<Option<u64>> {
        let Some(row) = at.checked_sub(NEW).filter(|_| self.in_place()) else { return Ok(None) };
        let mut first = None;
        for n in 0..count {
            self.load_row(row + n).await?;
            let place = match self.state().rows.get(row + n).map(|row| row.place) {
                Some(RowLocation::Here(place) | RowLocation::OnWorm(place)) => place,
                _ => return Ok(None),
            };
            if *first.get_or_insert(place) + n != place {
                return Ok(None);
            }
        }
        Ok(first)
    }

    /// Ends a recovery: of the blocks it has reserved only those in `had` stay allocated.
    ///
    /// # Errors
    /// [`Wrong::Unsupported`]: too few blocks are free to continue.
    pub(crate) fn has_only(&self, had: Option<Bits>) -> Result<()> {
        let state = &mut *self.state();
        if let Some(had) = had {
            let mut free = state.used_slots.bits.clone();
            free.without(&had);
            let behind = free.ones().filter(|place| *place >= self.0.first);
            behind.for_each(|place| state.used_slots.mark(place, false));
            let fields = state.header.fields.clone();
            state.claim(&fields);
            state.slots = FreeNumbers::new(state.used_slots.bits.len(), state.used_slots.bits.ones());
        }
        if state.slots.free() < WAITING_MAX as u64 {
            let text = "what dumps may have leaves no room to go on: make it larger first";
            return Err(Error::new(Wrong::Unsupported, text).of(self.0.w.name()));
        }
        Ok(())
    }

    /// Returns the number of slots.
    pub(crate) fn places_of_all(&self) -> u64 {
        self.state().used_slots.bits.len()
    }

    /// In place: returns the end of the allocated blocks; otherwise 0.
    pub(super) fn behind(&self) -> u64 {
        let state = self.state();
        if self.in_place() { state.used_slots.bits.ones().last().map_or(0, |last| last + 1) } else { 0 }
    }

    /// Returns whether the block at `at` of w is written or allocated, as far as is known.
    pub(crate) fn is_written(&self, at: u64, next_worm: u64) -> bool {
        let state = self.state();
        match self.in_place() {
            true => at < state.used_slots.bits.len() && state.used_slots.bits.has(at),
            false => self.is_before(at, next_worm),
        }
    }

    /// Returns whether block `at` of w can have been written. Later blocks never have been.
    pub(super) fn is_before(&self, at: u64, next_worm: u64) -> bool {
        at < if self.0.first > LABELS { self.worm_blocks() } else { next_worm }
    }

    /// Returns the blocks of w that are written or allocated.
    pub(crate) fn written(&self, next_worm: u64) -> u64 {
        if self.in_place() { self.state().used_slots.count } else { next_worm }
    }

    /// Returns the blocks of w that can still be written, after the blocks that wait to be copied.
    pub(crate) fn worm_left(&self, next_worm: u64) -> u64 {
        match self.in_place() {
            true => self.room().0.saturating_sub(self.promised() + self.kept_back()),
            false => self.worm_blocks().saturating_sub(next_worm).saturating_sub(self.slots().1),
        }
    }

    /// Returns whether a finished dump frees room for changes. In place it frees rows, but no slots.
    pub(crate) fn dump_makes_room(&self) -> bool {
        let (slots, rows) = self.room();
        !self.in_place() || rows < slots
    }

    /// Returns whether w has grown by blocks that are not in use yet. The next commit takes them into use.
    pub(crate) fn has_grown(&self) -> bool {
        let places = self.worm_blocks().min(self.0.layout.slots_most());
        self.in_place() && places > self.state().slots.len()
    }

    /// Takes new blocks of w into use, in a checkpoint.
    pub(super) async fn stretch(&self) -> Result<()> {
        if !self.has_grown() {
            return Ok(());
        }
        let blocks = self.worm_blocks();
        self.state().stretch(blocks);
        // A record that names new blocks counts only after a header that covers them.
        self.checkpoint(None).await?;
        let state = &mut *self.state();
        let len = state.used_slots.bits.len();
        state.slots.stretch(len);
        Ok(())
    }
}

impl CwState {
    /// Extends the slots to `blocks`, or to the maximum.
    pub(super) fn stretch(&mut self, blocks: u64) {
        let layout = &mut self.header.layout;
        let (now, to) = (self.used_slots.bits.len(), blocks.min(layout.slots_most()));
        if to > now {
            layout.slots.1 = to;
            self.used_slots.bits.resize(to);
            self.used_slots.changed.extend(now / 4032..to.div_ceil(4032));
        }
    }

    /// Marks the blocks of present and future superblocks as used, in place.
    pub(super) fn claim(&mut self, fields: &CommitFields) {
        if !self.header.layout.in_place {
            return;
        }
        for at in fields.segments().chain([fields.next_worm]).flat_map(|at| [at, at + 1]) {
            if at < self.used_slots.bits.len() {
                self.used_slots.mark(at, true);
            }
        }
    }
}
