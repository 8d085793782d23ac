//! The state of a mirror in memory: the states of members, the marks, and the regions to be copied. No disk is used
//! here.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::label::{LabelEvent, Place};
use super::lost::UnflushedSectors;
use super::passes;
use crate::bits::Bits;
use crate::device::Shape;
use crate::error::Error;
use crate::owner::SectorOwner;

/// The state of a mirror.
pub(super) struct MirrorState {
    pub now: LabelEvent,
    pub region: u64,
    pub members: Vec<MemberState>,
    /// Writes in flight, by region.
    pub hot: HashMap<u64, u32>,
    /// Regions written since marks were last cleared.
    pub touched: Bits,
    /// Data that was written and not flushed.
    pub written: UnflushedSectors,
    pub scrub: Option<MirrorScrub>,
    pub resync: Option<FullResync>,
    /// The speed limit of copies and comparisons in megabytes a second, if a command has set one; 0: no limit.
    pub speed: Option<u64>,
    /// A new event is not known to be durable, so labels may have either state. Nothing is written until that is
    /// settled.
    pub unsure: bool,
    /// The common shape of the active members.
    pub shape: Shape,
    /// Owners that verify blocks where members differ.
    pub owners: Vec<Arc<dyn SectorOwner>>,
    /// Nothing is copied until there is an owner.
    pub waits_for_owner: bool,
}

/// The state of a member.
pub(super) struct MemberState {
    /// Marks that it must have.
    pub want: Bits,
    /// Marks that it certainly has.
    pub disk: Bits,
    /// Regions in which it may not be right; none for the first that is in. For a member that is out it has no meaning.
    pub todo: Bits,
    /// The regions of `todo` that are copied only because of a full resync: there it is as right as before.
    pub again: Bits,
    /// The region that is being copied.
    pub copying: Option<u64>,
    /// Sectors that were not copied because no member can read them: the member may not be right there. Their regions
    /// stay marked.
    pub lacks: BTreeSet<u64>,
    /// It was reported that the member has everything but these.
    pub lacking: bool,
    /// Sectors that no owner could verify, and that are not reported yet.
    pub unjudged: u64,
    /// A new disk: it is not compared before it is written.
    pub new: bool,
    /// A failed flush of a member that could not be set aside: earlier writes may not be on it.
    pub unflushed: Option<Error>,
    /// Why it was set aside.
    pub why: Option<Error>,
    pub counts: MemberCounters,
}

/// The counters of a member since the mirror was opened.
#[derive(Default)]
pub(super) struct MemberCounters {
    pub reads: u64,
    pub writes: u64,
    /// Read errors, and how many of them were repaired.
    pub errors: u64,
    pub mended: u64,
    pub writes_failed: u64,
    pub flushes_failed: u64,
    /// Sectors that were copied to it.
    pub copied: u64,
    /// Sectors that differed and that no owner could verify.
    pub unjudged: u64,
}

/// What a scrub does about differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScrubHeal {
    /// Nothing.
    No,
    /// Writes the content of the majority to the others.
    Most,
    /// The same, or if there is no majority, the content of the first.
    First,
}

/// A scrub in progress.
pub(super) struct MirrorScrub {
    pub heal: ScrubHeal,
    pub at: u64,
    /// Number of sectors that differ.
    pub differ: u64,
}

/// A full resync of these members, one after the other: the next region.
pub(super) struct FullResync {
    pub members: Vec<usize>,
    pub next: u64,
}

/// Maximum number of lacking sectors recorded for a member. Beyond it the copy of a region fails, and is tried again.
const LACKS_MAX: usize = 1024;

impl MemberState {
    pub fn new(regions: u64) -> Self {
        let none = Bits::new(regions);
        let (want, disk, todo, again) = (none.clone(), none.clone(), none.clone(), none);
        Self {
            want,
            disk,
            todo,
            again,
            copying: None,
            lacks: BTreeSet::new(),
            lacking: false,
            new: false,
            unjudged: 0,
            unflushed: None,
            why: None,
            counts: MemberCounters::default(),
        }
    }

    fn right_in(&self, region: u64) -> bool {
        self.again.has(region) || !self.todo.has(region) && self.copying != Some(region)
    }

    /// Returns the number of regions that are still to be copied.
    pub fn left(&self) -> u64 {
        self.todo.count() + u64::from(self.copying.is_some())
    }

    /// Records that it has these sectors.
    pub fn has(&mut self, from: u64, to: u64) {
        if !self.lacks.is_empty() {
            self.lacks.retain(|at| !(from..to).contains(at));
        }
    }

    /// Records that it lacks this sector. Returns false if there are too many.
    pub fn lack(&mut self, at: u64) -> bool {
        let fits = self.lacks.len() < LACKS_MAX || self.lacks.contains(&at);
        if fits {
            self.lacks.insert(at);
        }
        fits
    }

    /// Returns the regions in which it may not be right.
    pub fn wrong(&self, region: u64) -> Bits {
        let mut wrong = self.todo.clone();
        self.copying.into_iter().for_each(|region| wrong.set(region));
        wrong.without(&self.again);
        self.lacks.iter().for_each(|at| wrong.set(at / region));
        wrong
    }

    /// Schedules regions in which it may not be right.
    pub fn needs(&mut self, regions: &Bits) {
        self.todo.add(regions);
        self.again.without(regions);
    }

    /// Stops the copy of a region, which remains to be copied.
    pub fn stop_copying(&mut self) {
        if let Some(region) = self.copying.take() {
            self.todo.set(region);
        }
    }
}

impl MirrorState {
    pub fn place(&self, member: usize) -> Place {
        self.now.places[member].0
    }

    /// Returns the members that are written.
    pub fn active(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|member| self.place(*member) != Place::Out).collect()
    }

    /// Returns the members that are in; the first of them is right everywhere.
    pub fn inside(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|member| self.place(*member) == Place::In).collect()
    }

    pub fn regions(&self, from: u64, to: u64) -> Range<u64> {
        from / self.region..to.div_ceil(self.region)
    }

    /// Returns the members that can be read here, in the order in which they are asked: those that are in, and then
    /// those that would be in but for sectors that no member can read.
    pub fn readable(&self, from: u64, to: u64) -> Vec<usize> {
        let right = |member: &usize| {
            let member = &self.members[*member];
            self.regions(from, to).all(|region| member.right_in(region))
                && (member.lacks.is_empty() || member.lacks.range(from..to).next().is_none())
        };
        let lacking = (0..self.members.len())
            .filter(|member| self.place(*member) == Place::Returning && self.members[*member].left() == 0);
        self.inside().into_iter().chain(lacking).filter(right).collect()
    }

    /// Returns whether a member is right in all of a region.
    fn right_in(&self, member: &MemberState, region: u64) -> bool {
        let sectors = region * self.region..(region + 1) * self.region;
        member.right_in(region) && (member.lacks.is_empty() || member.lacks.range(sectors).next().is_none())
    }

    /// Requests marks of these regions on all active members.
    pub fn want(&mut self, regions: Range<u64>) {
        for (member, (place, _)) in self.members.iter_mut().zip(&self.now.places) {
            if *place != Place::Out {
                regions.clone().for_each(|region| member.want.set(region));
            }
        }
    }

    /// Begins a write: requests the marks of its regions.
    pub fn begin(&mut self, regions: Range<u64>) {
        for region in regions.clone() {
            *self.hot.entry(region).or_default() += 1;
            self.touched.set(region);
        }
        self.want(regions);
    }

    /// Ends a write.
    pub fn end(&mut self, regions: Range<u64>) {
        for region in regions {
            let count = self.hot.get_mut(&region).expect("it was begun");
            *count -= 1;
            if *count == 0 {
                self.hot.remove(&region);
            }
        }
    }

    pub fn marked(&self, regions: Range<u64>) -> bool {
        let active = self.active();
        regions.into_iter().all(|region| active.iter().all(|member| self.members[*member].disk.has(region)))
    }

    /// Handles a write that has failed everywhere: its content is unknown, and the first member that is in decides.
    pub fn doubt(&mut self, regions: Range<u64>) {
        let first = self.inside()[0];
        let mut bits = Bits::new(self.touched.len());
        regions.for_each(|region| bits.set(region));
        self.active().into_iter().filter(|at| *at != first).for_each(|at| self.members[at].needs(&bits));
    }

    /// Records that a member has failed a flush, until it is out, or the loss is known.
    pub fn flush_failed(&mut self, number: usize, error: &Error) {
        let out = self.place(number) == Place::Out;
        let member = &mut self.members[number];
        member.counts.flushes_failed += 1;
        if !out && !passes(error) {
            member.unflushed.get_or_insert_with(|| error.clone());
        }
    }

    /// Returns whether an active member has failed a flush.
    pub fn unflushed(&self) -> bool {
        self.members.iter().any(|member| member.unflushed.is_some())
    }

    /// If all members that are in have failed a flush, unflushed data is lost, and the first of them decides its
    /// content. Returns these members and their errors; none if one of them has done all its flushes.
    pub fn lose(&mut self) -> Vec<(usize, Error)> {
        let inside = self.inside();
        let why = |member: &usize| Some((*member, self.members[*member].unflushed.clone()?));
        let Some(lost) = inside.iter().map(why).collect::<Option<Vec<_>>>() else { return Vec::new() };
        self.written.lose();
        let marked = self.members[inside[0]].want.clone();
        for member in self.active() {
            let member = &mut self.members[member];
            member.unflushed = None;
            member.needs(&marked);
            member.want.add(&marked);
        }
        self.members[inside[0]].todo.clear();
        lost
    }

    /// If the next first member is not right everywhere, requests the marks that others need before that. Returns
    /// whether there are any.
    pub fn hand_over(&mut self, next: &LabelEvent) -> bool {
        let is_in = |at: &usize| next.places[*at].0 == Place::In;
        let first = (0..self.members.len()).find(is_in).expect("one is in");
        let wrong = self.members[first].wrong(self.region);
        for (member, (place, _)) in self.members.iter_mut().zip(&next.places) {
            if *place != Place::Out {
                member.want.add(&wrong);
            }
        }
        !wrong.is_empty()
    }

    /// Applies a durable event. Returns how many sectors the first member lacks, if it is a new first member.
    pub fn apply(&mut self, now: LabelEvent) -> usize {
        let first_was = self.inside().first().copied();
        let before = std::mem::replace(&mut self.now, now);
        for (number, (old, _)) in before.places.iter().enumerate() {
            let member = &mut self.members[number];
            if self.now.places[number].0 == Place::Out {
                if member.unflushed.take().is_some() {
                    self.written.lose_copies(number);
                }
                member.lacks.clear();
                member.again.clear();
                if *old != Place::Out {
                    member.stop_copying();
                }
            }
        }
        let first = self.inside().first().copied();
        let (Some(first), true) = (first, first != first_was) else { return 0 };
        // The new first member decides the content where members may differ. It may have sectors that the one before
        // could not read.
        let wrong = self.members[first].wrong(self.region);
        for other in self.active().into_iter().filter(|other| *other != first) {
            let member = &mut self.members[other];
            let mut needs = wrong.clone();
            std::mem::take(&mut member.lacks).into_iter().for_each(|at| needs.set(at / self.region));
            member.needs(&needs);
            member.want.add(&wrong);
        }
        let member = &mut self.members[first];
        member.todo.clear();
        member.again.clear();
        member.copying = None;
        std::mem::take(&mut member.lacks).len()
    }

    /// Returns the next region to be copied, and the member that gets it, from `from` on.
    pub fn next_copy(&self, from: (usize, u64)) -> Option<(usize, u64)> {
        let copies = self
            .active()
            .into_iter()
            .flat_map(|member| self.members[member].todo.ones().map(move |region| (member, region)));
        copies.into_iter().find(|next| *next >= from)
    }

    /// Returns the marks of a member that may be cleared after a flush.
    pub fn cold(&self, member: usize) -> Bits {
        let mut cold = self.members[member].want.clone();
        let whole = self.now.all_in();
        let regions: Vec<u64> = cold.ones().collect();
        for region in regions {
            let busy = self.hot.contains_key(&region) || self.touched.has(region);
            let keep = match self.place(member) {
                Place::Returning => !self.right_in(&self.members[member], region),
                _ => !whole || self.members.iter().any(|member| !self.right_in(member, region)),
            };
            if busy || keep {
                cold.unset(region);
            }
        }
        cold
    }

    pub fn resize(&mut self, regions: u64) {
        self.touched.resize(regions);
        for member in &mut self.members {
            [&mut member.want, &mut member.disk, &mut member.todo, &mut member.again]
                .into_iter()
                .for_each(|bits| bits.resize(regions));
        }
    }
}
