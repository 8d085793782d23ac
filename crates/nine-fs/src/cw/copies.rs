//! Read copies: slots of c that hold blocks which are also on w, and which are evicted when slots run short.
//!
//! In: blocks read from w or copied to it. Out: their slots on c. The order is first in, first out, because the block
//! cache above holds the hot blocks. A copy that was read since it was queued goes round once more (second chance).

use std::collections::{BTreeSet, VecDeque};

use crate::hash::FixedMap;

/// A read copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadCopy {
    pub(crate) slot: u64,
    /// CRC-32C of the block in the slot.
    pub(crate) sum: u32,
}

/// The table of read copies. It has at most one entry for each slot.
#[derive(Default)]
pub(crate) struct ReadCopyTable {
    /// By w-address; the flag says whether the copy was read since it was queued.
    copies: FixedMap<u64, (ReadCopy, bool)>,
    order: VecDeque<u64>,
    /// Slots with an outdated entry in the table on c.
    pub(crate) changed: BTreeSet<u64>,
    /// The w-address that each slot holds a copy of, for that table.
    by_slot: FixedMap<u64, u64>,
}

impl ReadCopyTable {
    pub(crate) fn len(&self) -> usize {
        self.copies.len()
    }

    pub(crate) fn has(&self, worm: u64) -> bool {
        self.copies.contains_key(&worm)
    }

    /// Returns a copy for reading, and marks it as used.
    pub(crate) fn get(&mut self, worm: u64) -> Option<ReadCopy> {
        let (copy, used) = self.copies.get_mut(&worm)?;
        *used = true;
        Some(*copy)
    }

    /// Records that a slot holds a copy of `worm`. Returns false if there is a copy already.
    pub(crate) fn add(&mut self, worm: u64, copy: ReadCopy) -> bool {
        if self.has(worm) {
            return false;
        }
        self.copies.insert(worm, (copy, false));
        self.by_slot.insert(copy.slot, worm);
        self.changed.insert(copy.slot);
        self.order.push_back(worm);
        true
    }

    /// Removes a copy. Returns its slot.
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

    /// Evicts one copy. Returns its slot.
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

    /// Returns the w-address and the sum of the copy in a slot.
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
        let mut copies = ReadCopyTable::default();
        for n in 0..4 {
            assert!(copies.add(100 + n, ReadCopy { slot: n, sum: 7 }));
        }
        assert!(!copies.add(101, ReadCopy { slot: 9, sum: 7 }));
        assert_eq!(copies.get(100), Some(ReadCopy { slot: 0, sum: 7 }));
        assert_eq!(copies.remove(101), Some(1));
        assert_eq!([(); 4].map(|()| copies.evict()), [Some(2), Some(3), Some(0), None]);
    }

    #[test]
    fn the_order_does_not_grow_with_what_is_removed() {
        let mut copies = ReadCopyTable::default();
        for n in 0..10_000 {
            copies.add(n, ReadCopy { slot: 0, sum: 0 });
            copies.remove(n);
        }
        assert!(copies.order.len() < 100);
    }
}
