//! What a mirror knows: who is in, what is marked, and what has still to be copied. No disk is touched here.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::label::{Now, Place};
use super::lost::Written;
use super::passes;
use crate::bits::Bits;
use crate::device::Shape;
use crate::error::Error;
use crate::owner::SectorOwner;

/// All of it.
pub(super) struct State {
    pub now: Now,
    pub region: u64,
    pub members: Vec<Member>,
    /// Writes that are under way, by region.
    pub hot: HashMap<u64, u32>,
    /// Regions that were written since the last pass of clearing.
    pub touched: Bits,
    /// What was written and not flushed.
    pub written: Written,
    pub scrub: Option<Scrub>,
    pub resync: Option<Resync>,
    /// Megabytes a second that copies and comparisons shall take at most, 0 for as fast as can be; if somebody said so.
    pub speed: Option<u64>,
    /// A new event was begun and is not known to be durable: labels may say either. Nothing is written until they are
    /// sure.
    pub unsure: bool,
    /// Of the members that are in.
    pub shape: Shape,
    /// They verify blocks where members differ.
    pub owners: Vec<Arc<dyn SectorOwner>>,
    /// Nothing is copied until there is one.
    pub waits_for_owner: bool,
}

/// What is known of a member.
pub(super) struct Member {
    /// Marks that it shall have.
    pub want: Bits,
    /// Marks that it has for sure.
    pub disk: Bits,
    /// Regions in which it may not be right. Of the first that is in: none; of one that is
    /// out it says nothing.
    pub todo: Bits,
    /// Those of these that are copied only because everything shall be: it is as right there as it was before.
    pub again: Bits,
    /// The one of these that is copied now.
    pub copying: Option<u64>,
    /// Sectors that were not copied, because nobody can read them: it may not be right there. Their regions stay
    /// marked.
    pub lacks: BTreeSet<u64>,
    /// That it has everything but these was told.
    pub lacking: bool,
    /// Sectors that no owner could verify, and that are not reported yet.
    pub unjudged: u64,
    /// A new disk: it is not compared before it is written.
    pub new: bool,
    /// A flush has failed, and it could not be set aside: what was written before may not be on it.
    pub unflushed: Option<Error>,
    /// Why it was set aside.
    pub why: Option<Error>,
    pub counts: Counts,
}

/// What a member has done since the mirror was opened.
#[derive(Default)]
pub(super) struct Counts {
    pub reads: u64,
    pub writes: u64,
    /// Errors of reads, and how many of them were mended.
    pub errors: u64,
    pub mended: u64,
    pub writes_failed: u64,
    pub flushes_failed: u64,
    /// Sectors that were copied to it.
    pub copied: u64,
    /// Sectors that differed and that no owner could verify.
    pub unjudged: u64,
}

/// What a comparison does about differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heal {
    /// Nothing.
    No,
    /// What more than half of them have is written to the others.
    Most,
    /// The same, and where there is no such thing, what the first has.
    First,
}

/// A comparison of members that is under way.
pub(super) struct Scrub {
    pub heal: Heal,
    pub at: u64,
    /// Sectors.
    pub differ: u64,
}

/// Everything is copied to these members, one after the other: the next region.
pub(super) struct Resync {
    pub members: Vec<usize>,
    pub next: u64,
}

/// Sectors that a member may lack and still be read elsewhere.
const LACKS_MOST: usize = 1024;

impl Member {
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
            counts: Counts::default(),
        }
    }

    fn right_in(&self, region: u64) -> bool {
        self.again.has(region) || !self.todo.has(region) && self.copying != Some(region)
    }

    /// Regions that are still to be copied.
    pub fn left(&self) -> u64 {
        self.todo.count() + u64::from(self.copying.is_some())
    }

    /// It has these sectors.
    pub fn has(&mut self, from: u64, to: u64) {
        if !self.lacks.is_empty() {
            self.lacks.retain(|at| !(from..to).contains(at));
        }
    }

    /// It lacks this sector; whether that can be remembered.
    pub fn lack(&mut self, at: u64) -> bool {
        let fits = self.lacks.len() < LACKS_MOST || self.lacks.contains(&at);
        if fits {
            self.lacks.insert(at);
        }
        fits
    }

    /// Regions in which it may not be right.
    pub fn wrong(&self, region: u64) -> Bits {
        let mut wrong = self.todo.clone();
        self.copying.into_iter().for_each(|region| wrong.set(region));
        wrong.without(&self.again);
        self.lacks.iter().for_each(|at| wrong.set(at / region));
        wrong
    }

    /// It may not be right in these regions.
    pub fn needs(&mut self, regions: &Bits) {
        self.todo.add(regions);
        self.again.without(regions);
    }

    /// What was being copied has to be copied again.
    pub fn stop_copying(&mut self) {
        if let Some(region) = self.copying.take() {
            self.todo.set(region);
        }
    }
}

impl State {
    pub fn place(&self, member: usize) -> Place {
        self.now.places[member].0
    }

    /// Members that are written.
    pub fn active(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|member| self.place(*member) != Place::Out).collect()
    }

    /// Members that are in; the first of them is right everywhere.
    pub fn inside(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|member| self.place(*member) == Place::In).collect()
    }

    pub fn regions(&self, from: u64, to: u64) -> Range<u64> {
        from / self.region..to.div_ceil(self.region)
    }

    /// Members that can be read here, in the order in which they are asked: those that are in, and then those that
    /// would be if somebody could read what they lack.
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

    /// Whether a member is right in all of a region.
    fn right_in(&self, member: &Member, region: u64) -> bool {
        let sectors = region * self.region..(region + 1) * self.region;
        member.right_in(region) && (member.lacks.is_empty() || member.lacks.range(sectors).next().is_none())
    }

    /// Marks that all members that are written shall have.
    pub fn want(&mut self, regions: Range<u64>) {
        for (member, (place, _)) in self.members.iter_mut().zip(&self.now.places) {
            if *place != Place::Out {
                regions.clone().for_each(|region| member.want.set(region));
            }
        }
    }

    /// A write begins: its regions are to be marked.
    pub fn begin(&mut self, regions: Range<u64>) {
        for region in regions.clone() {
            *self.hot.entry(region).or_default() += 1;
            self.touched.set(region);
        }
        self.want(regions);
    }

    /// A write has ended.
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

    /// A write has failed everywhere: nobody knows what is there now, and the first that is in decides.
    pub fn doubt(&mut self, regions: Range<u64>) {
        let first = self.inside()[0];
        let mut bits = Bits::new(self.touched.len());
        regions.for_each(|region| bits.set(region));
        self.active().into_iter().filter(|at| *at != first).for_each(|at| self.members[at].needs(&bits));
    }

    /// A member has not flushed, which is remembered until it is out, or it is known what is lost.
    pub fn flush_failed(&mut self, number: usize, error: &Error) {
        let out = self.place(number) == Place::Out;
        let member = &mut self.members[number];
        member.counts.flushes_failed += 1;
        if !out && !passes(error) {
            member.unflushed.get_or_insert_with(|| error.clone());
        }
    }

    /// Whether a member is in, or returns, that has failed a flush.
    pub fn unflushed(&self) -> bool {
        self.members.iter().any(|member| member.unflushed.is_some())
    }

    /// A flush has failed on all that are in, and what was not flushed may be there or not, on each: it is lost, and
    /// the first decides what is there. Who they are, and why; none, if one has done all its flushes.
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

    /// The first that will be in has not got everything, and others may have: marks that they need before that. Whether
    /// there are any.
    pub fn hand_over(&mut self, next: &Now) -> bool {
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

    /// It is as labels say it by now. How many sectors the first lacks, if it is another than before.
    pub fn apply(&mut self, now: Now) -> usize {
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
        // Whoever is the first now decides what is right where members may differ; and he may have what the one before
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

    /// The next region that is copied, and to whom, from there on.
    pub fn next_copy(&self, from: (usize, u64)) -> Option<(usize, u64)> {
        let copies = self
            .active()
            .into_iter()
            .flat_map(|member| self.members[member].todo.ones().map(move |region| (member, region)));
        copies.into_iter().find(|next| *next >= from)
    }

    /// Marks that could be cleared after a flush, of each member that is written.
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
