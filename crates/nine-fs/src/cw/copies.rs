//! Copies on c of blocks that w has, and which goes when there is no room.
//!
//! In: what was read from w, or has come there. Out: where on c it is. First in, first out: the block cache above has
//! what is wanted often; a copy that is used on its way out goes round once more.

use std::collections::{BTreeSet, VecDeque};

use crate::hash::Map;

/// A copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) slot: u64,
    /// Of the block in the slot.
    pub(crate) sum: u32,
}

/// See the module. As many as there are slots.
#[derive(Default)]
pub(crate) struct Copies {
    /// By w-address; whether it was used.
    copies: Map<u64, (Copy, bool)>,
    order: VecDeque<u64>,
    /// Slots of which the table on c says something else.
    pub(crate) changed: BTreeSet<u64>,
    /// What each slot has a copy of, for that table.
    by_slot: Map<u64, u64>,
}

impl Copies {
    pub(crate) fn len(&self) -> usize {
        self.copies.len()
    }

    pub(crate) fn has(&self, worm: u64) -> bool {
        self.copies.contains_key(&worm)
    }

    /// For whoever reads it.
    pub(crate) fn get(&mut self, worm: u64) -> Option<Copy> {
        let (copy, used) = self.copies.get_mut(&worm)?;
        *used = true;
        Some(*copy)
    }

    /// A slot has a copy of this from now on. False: there is one.
    pub(crate) fn add(&mut self, worm: u64, copy: Copy) -> bool {
        if self.has(worm) {
            return false;
        }
        self.copies.insert(worm, (copy, false));
        self.by_slot.insert(copy.slot, worm);
        self.changed.insert(copy.slot);
        self.order.push_back(worm);
        true
    }

    /// This copy is none: its slot.
    pub(crate) fn remove(&mut self, worm: u64) -> Option<u64> {
        let (copy, _) = self.copies.remove(&worm)?;
        self.by_slot.remove(&copy.slot);
        self.changed.insert(copy.slot);
        if self.order.len() > 2 * self.copies.len() + 64 {
            let copies = &self.copies;
            self.order.retain(|worm| copies.contains_key(worm));
        }
        Some(copy.slot)
    }

    /// One copy goes: its slot.
    pub(crate) fn evict(&mut self) -> Option<u64> {
        loop {
            let worm = self.order.pop_front()?;
            let Some((_, used)) = self.copies.get_mut(&worm) else { continue };
            if !std::mem::take(used) {
                return self.remove(worm);
            }
            self.order.push_back(worm);
        }
    }

    /// What a slot has: the w-address and the sum.
    pub(crate) fn in_slot(&self, slot: u64) -> Option<(u64, u32)> {
        let worm = *self.by_slot.get(&slot)?;
        Some((worm, self.copies[&worm].0.sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_unless_it_was_used() {
        let mut copies = Copies::default();
        for n in 0..4 {
            assert!(copies.add(100 + n, Copy { slot: n, sum: 7 }));
        }
        assert!(!copies.add(101, Copy { slot: 9, sum: 7 }));
        assert_eq!(copies.get(100), Some(Copy { slot: 0, sum: 7 }));
        assert_eq!(copies.remove(101), Some(1));
        assert_eq!([(); 4].map(|()| copies.evict()), [Some(2), Some(3), Some(0), None]);
    }

    #[test]
    fn the_order_does_not_grow_with_what_is_removed() {
        let mut copies = Copies::default();
        for n in 0..10_000 {
            copies.add(n, Copy { slot: 0, sum: 0 });
            copies.remove(n);
        }
        assert!(copies.order.len() < 100);
    }
}
