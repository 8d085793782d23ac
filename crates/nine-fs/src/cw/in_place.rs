//! A worm without a cache device: what is new is written in its place on w, and stays there when it is dumped
//! (docs/disk.md, "Without a cache device").
//!
//! In: a w that can be written again. Out: places of it, each either free or had by somebody; which blocks of a dump
//! need not be copied.

use std::ops::Range;
use std::sync::Arc;

use nine_block::{Bits, Device, Error, Kind as Wrong, Part};

use super::layout::{LABELS, Label, Layout, Place, WAITING_MOST};
use super::room::Room;
use super::tag::Kind;
use super::{Changed, Changes, Cw, Fields, Result, State};
use crate::ptr::NEW;

/// What c would have: the area of w behind its labels.
pub(super) fn front(w: &Arc<dyn Device>, block: u32, first: u64) -> Result<Arc<dyn Device>> {
    let per = u64::from(block) / 512;
    let name = format!("the front of {}", w.name());
    Ok(Arc::new(Part::new(w.clone(), name, LABELS * per, first.saturating_sub(LABELS) * per)?))
}

/// The cache device of the archive on w: what was named as one, or the front of w.
pub(super) fn cache(c: Arc<dyn Device>, w: &Arc<dyn Device>, label: &Label) -> Result<Arc<dyn Device>> {
    let bad = |text: &str| Err(Error::new(Wrong::Unsupported, text).of(w.name()));
    match (c.shape().sectors, label.in_place.0) {
        (0, 0) => bad("this archive has a cache device: name it instead of `n`, before the worm"),
        (0, first) => front(w, label.block, first),
        (_, 0) => Ok(c),
        // Who follows has a small one of his own, in memory.
        _ if w.shape().read_only => Ok(c),
        _ => bad("this archive has no cache device: it is `c n WORM`"),
    }
}

/// What is where on a new one.
///
/// # Errors
/// [`Wrong::Unsupported`]: it is too small, or a worm indeed.
pub(super) async fn make(w: &Arc<dyn Device>, block: u32) -> Result<(Arc<dyn Device>, Layout)> {
    let bad = |text: String| Error::new(Wrong::Unsupported, text).of(w.name());
    let blocks = w.shape().sectors / (u64::from(block) / 512);
    let layout = Layout::in_place(blocks, block);
    let layout = layout.ok_or_else(|| {
        let least = (1..).find(|blocks| Layout::in_place(*blocks, block).is_some()).unwrap_or_default();
        bad(format!("{blocks} blocks are too few for an archive without a cache device: {least} at least"))
    })?;
    let c = front(w, block, layout.front())?;
    // Before anything is lost: what can be written once shows it here.
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

/// Blocks of an extent lie beside each other in a dump, so there are not more than can be found room for.
const TOGETHER: u64 = 32;
/// So many runs of free places are looked at for what should lie together before it is scattered.
const TRIES: usize = 64;

/// Whether the block with this address may follow the one before it in one extent, if both are written together.
pub(crate) fn follows(at: u64) -> bool {
    !(at - NEW).is_multiple_of(TOGETHER)
}

impl Changes {
    /// Blocks from this one on that are of one extent.
    fn together(&self, from: usize) -> usize {
        let goes_on = |two: &&[Changed]| {
            let [one, next] = two else { return false };
            one.kind == Kind::File
                && (next.kind, next.owner, next.index) == (one.kind, one.owner, one.index + 1)
                && next.at.at == one.at.at + 1
        };
        1 + self.blocks[from..].windows(2).take_while(goes_on).count()
    }

    /// Places for the blocks, those of an extent beside each other if there is such room. None: there is too little.
    pub(super) fn places(&self, slots: &mut Room) -> Option<Vec<Range<u64>>> {
        let (mut all, mut from) = (Vec::<Range<u64>>::new(), 0);
        while from < self.blocks.len() {
            let mut left = self.together(from) as u64;
            from += left as usize;
            while left > 0 {
                let Some(run) = slots.take_run(left, TRIES).or_else(|| slots.take(left)) else {
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
    /// There is no cache device.
    pub(crate) fn in_place(&self) -> bool {
        self.0.layout.in_place
    }

    /// Whether what lies behind a block may be read before it is wanted. Who follows does not know when a place becomes
    /// another's.
    pub(crate) fn may_read_ahead(&self) -> bool {
        self.in_place() || self.0.first == LABELS
    }

    /// Where slots are.
    pub(super) fn slots_on(&self) -> &Arc<dyn Device> {
        if self.in_place() { &self.0.w } else { &self.0.c }
    }

    /// Whether segments lie one behind the other, where that is how they are written.
    pub(super) fn are_in_order(&self, fields: &Fields) -> bool {
        self.0.first > LABELS || fields.segments().all(|at| at < fields.next_worm)
    }

    /// Where the second copy of a superblock is, whose segment has so many blocks.
    pub(crate) fn second(&self, first: u64, blocks: u64) -> u64 {
        let behind = if self.0.first > LABELS { 1 } else { blocks.saturating_sub(1) };
        first + behind
    }

    /// Where the segment behind the one that begins at `first` begins, as far as that is known by now. None: w has no
    /// room.
    pub(crate) fn segment_behind(&self, first: u64) -> Option<u64> {
        if self.in_place() { self.pair() } else { Some(first + 1) }
    }

    /// Two places beside each other, for a superblock.
    fn pair(&self) -> Option<u64> {
        self.run(2).map(|run| run.start)
    }

    /// So many places beside each other. None: there are not, anywhere.
    pub(super) fn run(&self, count: u64) -> Option<Range<u64>> {
        let state = &mut *self.state();
        if self.spare(state, count) { state.slots.take_run(count, usize::MAX) } else { None }
    }

    /// A place for a block of a dump. None: there is no room.
    pub(super) fn place(&self) -> Option<u64> {
        let state = &mut *self.state();
        if self.spare(state, 1) { state.slots.take(1).map(|place| place.start) } else { None }
    }

    /// Whether there are so many places beside those that commits to come will take: else a commit would wait for a
    /// dump that waits for it. A moment that somebody reads is worth less.
    fn spare(&self, state: &mut State, count: u64) -> bool {
        let least = self.promised() + count;
        if state.slots.free() < least {
            state.let_go();
        }
        state.slots.free() >= least
    }

    /// These are not wanted, and no commit has heard of them.
    pub(super) fn give_places(&self, places: impl Iterator<Item = u64>) {
        let slots = &mut self.state().slots;
        places.for_each(|place| slots.give(place));
    }

    /// Where blocks of a file lie that follow one another: on w, beside each other, as a dump has them. None: they are
    /// to be copied.
    pub(crate) async fn stays(&self, at: u64, count: u64) -> Result<Option<u64>> {
        let Some(row) = at.checked_sub(NEW).filter(|_| self.in_place()) else { return Ok(None) };
        let mut first = None;
        for n in 0..count {
            self.load_row(row + n).await?;
            let place = match self.state().rows.get(row + n).map(|row| row.place) {
                Some(Place::Here(place) | Place::OnWorm(place)) => place,
                _ => return Ok(None),
            };
            if *first.get_or_insert(place) + n != place {
                return Ok(None);
            }
        }
        Ok(first)
    }

    /// Of what a recovery has taken for had, these places alone are; and there is room to go on.
    ///
    /// # Errors
    /// [`Wrong::Unsupported`]: there is not.
    pub(crate) fn has_only(&self, had: Option<Bits>) -> Result<()> {
        let state = &mut *self.state();
        if let Some(had) = had {
            let mut free = state.used_slots.bits.clone();
            free.without(&had);
            let behind = free.ones().filter(|place| *place >= self.0.first);
            behind.for_each(|place| state.used_slots.mark(place, false));
            let fields = state.header.fields.clone();
            state.claim(&fields);
            state.slots = Room::new(state.used_slots.bits.len(), state.used_slots.bits.ones());
        }
        if state.slots.free() < WAITING_MOST as u64 {
            let text = "what dumps may have leaves no room to go on: make it larger first";
            return Err(Error::new(Wrong::Unsupported, text).of(self.0.w.name()));
        }
        Ok(())
    }

    /// Places that there are.
    pub(crate) fn places_of_all(&self) -> u64 {
        self.state().used_slots.bits.len()
    }

    /// Behind all places that somebody has.
    pub(super) fn behind(&self) -> u64 {
        let state = self.state();
        if self.in_place() { state.used_slots.bits.ones().last().map_or(0, |last| last + 1) } else { 0 }
    }

    /// Whether w has something there, as far as is known.
    pub(crate) fn is_written(&self, at: u64, next_worm: u64) -> bool {
        let state = self.state();
        match self.in_place() {
            true => at < state.used_slots.bits.len() && state.used_slots.bits.has(at),
            false => self.is_before(at, next_worm),
        }
    }

    /// Whether w may have something there: what is behind has never been written.
    pub(super) fn is_before(&self, at: u64, next_worm: u64) -> bool {
        at < if self.0.first > LABELS { self.worm_blocks() } else { next_worm }
    }

    /// Blocks of w that are written, or somebody's.
    pub(crate) fn written(&self, next_worm: u64) -> u64 {
        if self.in_place() { self.state().used_slots.count } else { next_worm }
    }

    /// Blocks that can still be written there, behind what waits.
    pub(crate) fn worm_left(&self, next_worm: u64) -> u64 {
        match self.in_place() {
            true => self.room().0.saturating_sub(self.promised() + self.kept_back()),
            false => self.worm_blocks().saturating_sub(next_worm).saturating_sub(self.slots().1),
        }
    }

    /// Whether a dump, when it is on w, leaves more room for changes: in place it gives back rows, and no place.
    pub(crate) fn dump_makes_room(&self) -> bool {
        let (slots, rows) = self.room();
        !self.in_place() || rows < slots
    }

    /// Whether w has become larger by places that nobody can have yet: the next commit sees to it.
    pub(crate) fn has_grown(&self) -> bool {
        let places = self.worm_blocks().min(self.0.layout.slots_most());
        self.in_place() && places > self.state().slots.len()
    }

    /// What w has become larger by is had from now on: when that is durable.
    pub(super) async fn stretch(&self) -> Result<()> {
        if !self.has_grown() {
            return Ok(());
        }
        let blocks = self.worm_blocks();
        self.state().stretch(blocks);
        // A record that names what is new counts only behind a header that knows it.
        self.checkpoint(None).await?;
        let state = &mut *self.state();
        let len = state.used_slots.bits.len();
        state.slots.stretch(len);
        Ok(())
    }
}

impl State {
    /// There are so many places, if there can be.
    pub(super) fn stretch(&mut self, blocks: u64) {
        let layout = &mut self.header.layout;
        let (now, to) = (self.used_slots.bits.len(), blocks.min(layout.slots_most()));
        if to > now {
            layout.slots.1 = to;
            self.used_slots.bits.resize(to);
            self.used_slots.changed.extend(now / 4032..to.div_ceil(4032));
        }
    }

    /// What these say of superblocks, there and to come: nobody else has those places.
    pub(super) fn claim(&mut self, fields: &Fields) {
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
