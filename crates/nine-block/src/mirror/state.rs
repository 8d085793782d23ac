//! What a mirror knows: who is in, what is marked, and what has still to be copied. No disk is touched here.

use std::collections::HashMap;

use super::label::{Now, Place};
use crate::bits::Bits;
use crate::device::Shape;
use crate::error::Error;

/// All of it.
pub(super) struct State {
    pub now: Now,
    pub region: u64,
    pub members: Vec<Member>,
    /// Writes that are under way, by region.
    pub hot: HashMap<u64, u32>,
    /// Regions that were written since the last pass of clearing.
    pub touched: Bits,
    pub scrub: Option<Scrub>,
    /// A new event was begun and is not known to be durable: labels may say either. Nothing is written until they are
    /// sure.
    pub unsure: bool,
    /// Of the members that are in.
    pub shape: Shape,
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
    /// The one of these that is copied now.
    pub copying: Option<u64>,
    /// Why it was set aside.
    pub why: Option<Error>,
    /// Errors of reads, and how many of them were mended.
    pub errors: u64,
    pub mended: u64,
}

/// A comparison of members that is under way.
pub(super) struct Scrub {
    pub heal: bool,
    pub at: u64,
    pub differ: u64,
}

impl Member {
    pub fn new(regions: u64) -> Self {
        let none = Bits::new(regions);
        let (want, disk, todo) = (none.clone(), none.clone(), none);
        Self { want, disk, todo, copying: None, why: None, errors: 0, mended: 0 }
    }

    fn right_in(&self, region: u64) -> bool {
        !self.todo.has(region) && self.copying != Some(region)
    }

    /// Regions that are still to be copied.
    pub fn left(&self) -> u64 {
        self.todo.count() + u64::from(self.copying.is_some())
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

    pub fn regions(&self, from: u64, to: u64) -> std::ops::Range<u64> {
        from / self.region..to.div_ceil(self.region)
    }

    /// Members that can be read here, in the order in which they are asked.
    pub fn readable(&self, from: u64, to: u64) -> Vec<usize> {
        let right =
            |member: &usize| self.regions(from, to).all(|region| self.members[*member].right_in(region));
        self.inside().into_iter().filter(right).collect()
    }

    /// A write begins: its regions are to be marked.
    pub fn begin(&mut self, regions: std::ops::Range<u64>) {
        for region in regions {
            *self.hot.entry(region).or_default() += 1;
            self.touched.set(region);
            for (member, (place, _)) in self.members.iter_mut().zip(&self.now.places) {
                if *place != Place::Out {
                    member.want.set(region);
                }
            }
        }
    }

    /// A write has ended.
    pub fn end(&mut self, regions: std::ops::Range<u64>) {
        for region in regions {
            let count = self.hot.get_mut(&region).expect("it was begun");
            *count -= 1;
            if *count == 0 {
                self.hot.remove(&region);
            }
        }
    }

    pub fn marked(&self, regions: std::ops::Range<u64>) -> bool {
        let active = self.active();
        regions.into_iter().all(|region| active.iter().all(|member| self.members[*member].disk.has(region)))
    }

    /// A write has failed everywhere: nobody knows what is there now, and the first that is in decides.
    pub fn doubt(&mut self, regions: std::ops::Range<u64>) {
        let first = self.inside()[0];
        for member in self.active().into_iter().filter(|member| *member != first) {
            regions.clone().for_each(|region| self.members[member].todo.set(region));
        }
    }

    /// It is as labels say it by now.
    pub fn apply(&mut self, now: Now) {
        let before = std::mem::replace(&mut self.now, now);
        for (number, (old, _)) in before.places.iter().enumerate() {
            let member = &mut self.members[number];
            if *old != Place::Out && self.now.places[number].0 == Place::Out {
                member.stop_copying();
            }
        }
        // Whoever is the first now decides what is right where members may differ.
        if let Some(first) = self.inside().first() {
            self.members[*first].todo.clear();
            self.members[*first].copying = None;
        }
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
                Place::Returning => !self.members[member].right_in(region),
                _ => !whole || self.members.iter().any(|member| !member.right_in(region)),
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
            [&mut member.want, &mut member.disk, &mut member.todo]
                .into_iter()
                .for_each(|bits| bits.resize(regions));
        }
    }
}
