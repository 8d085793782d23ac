//! The map of sectors to objects.
//!
//! In: objects, in any order, also repeatedly. Out: the object that has a sector; the number up to which the objects of
//! an epoch are known.
//!
//! Always holds: of two objects with the same sector the one with the greater [`ObjectId`] counts, in whatever order
//! they came.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::format::{ObjectId, SectorObject};

/// The map. It takes 24 bytes for each object, unless objects overlap.
#[derive(Default)]
pub(crate) struct ObjectMap {
    /// By first sector; they do not overlap.
    parts: BTreeMap<u64, ObjectPart>,
    epochs: BTreeMap<u32, EpochObjects>,
}

/// The part of an object that counts.
#[derive(Clone, Copy)]
struct ObjectPart {
    id: ObjectId,
    /// Sectors of the object before this part.
    skip: u16,
    len: u16,
    /// Sectors of the whole object.
    count: u16,
}

/// The known objects of an epoch.
#[derive(Default)]
struct EpochObjects {
    /// The first number that was not seen.
    next: u32,
    /// Larger numbers that were seen.
    beyond: BTreeSet<u32>,
}

/// Consecutive sectors that are in one object, or in none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SectorSpan {
    pub sectors: Range<u64>,
    pub of: Option<SectorObject>,
}

impl ObjectMap {
    pub fn insert(&mut self, object: SectorObject) {
        self.epochs.entry(object.id.epoch).or_default().see(object.id.number);
        let mut from = object.first;
        for (start, part) in self.overlapping(object.first..object.end()) {
            let end = start + u64::from(part.len);
            if part.id >= object.id {
                self.put(&object, from..start);
                from = end;
                continue;
            }
            self.parts.remove(&start);
            self.keep(start, part, start..object.first);
            self.keep(start, part, object.end()..end);
        }
        self.put(&object, from..object.end());
    }

    fn put(&mut self, object: &SectorObject, sectors: Range<u64>) {
        let &SectorObject { id, first, count } = object;
        self.keep(first, ObjectPart { id, skip: 0, len: count, count }, sectors);
    }

    /// Stores the remaining `sectors` of a part that began at `start`.
    fn keep(&mut self, start: u64, part: ObjectPart, sectors: Range<u64>) {
        if sectors.start < sectors.end {
            let skip = part.skip + (sectors.start - start) as u16;
            let len = (sectors.end - sectors.start) as u16;
            self.parts.insert(sectors.start, ObjectPart { skip, len, ..part });
        }
    }

    /// Returns the parts that overlap these sectors, in order.
    fn overlapping(&self, sectors: Range<u64>) -> Vec<(u64, ObjectPart)> {
        let before = self.parts.range(..sectors.start).next_back();
        let before = before.filter(|(start, part)| *start + u64::from(part.len) > sectors.start);
        before.into_iter().chain(self.parts.range(sectors)).map(|(start, part)| (*start, *part)).collect()
    }

    /// Returns the objects that have these sectors, in order.
    pub fn find(&self, sectors: Range<u64>) -> Vec<SectorSpan> {
        let mut found = Vec::new();
        let mut from = sectors.start;
        for (start, part) in self.overlapping(sectors.clone()) {
            if from < start {
                found.push(SectorSpan { sectors: from..start, of: None });
            }
            let of = SectorObject { id: part.id, first: start - u64::from(part.skip), count: part.count };
            let end = start + u64::from(part.len);
            found.push(SectorSpan { sectors: start.max(from)..end.min(sectors.end), of: Some(of) });
            from = end;
        }
        if from < sectors.end {
            found.push(SectorSpan { sectors: from..sectors.end, of: None });
        }
        found
    }

    /// Returns the first number of an epoch that was not seen.
    pub fn next(&self, epoch: u32) -> u32 {
        self.epochs.get(&epoch).map_or(0, |epoch| epoch.next)
    }

    /// Returns the number of parts.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns how many numbers are missing although later ones of their epochs are there.
    pub fn missing(&self) -> u64 {
        self.epochs.values().map(EpochObjects::missing).sum()
    }
}

impl EpochObjects {
    fn see(&mut self, number: u32) {
        if number > self.next {
            self.beyond.insert(number);
        } else if number == self.next {
            self.next = self.next.saturating_add(1);
            while self.beyond.remove(&self.next) {
                self.next = self.next.saturating_add(1);
            }
        }
    }

    fn missing(&self) -> u64 {
        let last = self.beyond.last().map_or(0, |last| u64::from(last - self.next) + 1);
        last - self.beyond.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(epoch: u32, number: u32, first: u64, count: u16) -> SectorObject {
        SectorObject { id: ObjectId { epoch, number }, first, count }
    }

    /// Compares with a table of sectors, for all orders of a few objects.
    #[test]
    fn the_later_object_counts_in_any_order() {
        let mut state = 1u64;
        let mut random = move |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..3000 {
            let mut objects: Vec<SectorObject> = (0..1 + random(6) as u32)
                .map(|n| object(1 + random(3) as u32, n, random(40), 1 + random(12) as u16))
                .collect();
            let mut wanted = [None; 64];
            objects.sort_by_key(|object| object.id);
            for object in &objects {
                (object.first..object.end()).for_each(|at| wanted[at as usize] = Some(*object));
            }
            for i in (1..objects.len()).rev() {
                objects.swap(i, random(i as u64 + 1) as usize);
            }
            let mut map = ObjectMap::default();
            objects.iter().for_each(|object| map.insert(*object));
            // An object may be listed twice.
            map.insert(objects[0]);
            let found = map.find(0..64);
            assert!(found.windows(2).all(|two| two[0].sectors.end == two[1].sectors.start));
            for span in &found {
                for at in span.sectors.clone() {
                    assert_eq!(span.of, wanted[at as usize], "{at} of {objects:?}");
                }
            }
            let (from, to) = (random(30), 30 + random(30));
            let part: u64 = map.find(from..to).iter().map(|span| span.sectors.end - span.sectors.start).sum();
            assert_eq!(part, to - from);
        }
    }

    #[test]
    fn what_is_missing_is_known() {
        let mut map = ObjectMap::default();
        [0, 1, 4, 3, 9].into_iter().for_each(|n| map.insert(object(2, n, u64::from(n), 1)));
        assert_eq!((map.next(2), map.missing()), (2, 5));
        map.insert(object(2, 2, 2, 1));
        assert_eq!((map.next(2), map.next(1), map.missing()), (5, 0, 4));
        assert!(size_of::<(u64, ObjectPart)>() <= 24);
        // Numbers that no writer could have reached.
        [0, 1].into_iter().for_each(|n| map.insert(object(3, u32::MAX - n, 0, 1)));
        assert_eq!((map.next(3), map.missing()), (0, 4 + (1 << 32) - 2));
    }
}
