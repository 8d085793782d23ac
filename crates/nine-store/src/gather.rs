//! Gathers written sectors into objects until they are durable.
//!
//! In: writes to sectors that are not written yet. Out: objects, and their data until they have been put.
//!
//! Always holds: no two writes overlap. Data that was put into an object stays there, under the same name, until it is
//! durable.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use nine_block::SECTOR;

use crate::format::{ObjectId, SectorObject};

/// Objects do not cross a multiple of this number of sectors.
pub(crate) const CELL: u64 = 16_384;

/// Written sectors that are not durable yet.
#[derive(Default)]
pub(crate) struct GatheredSectors {
    /// Data in no object, by first sector.
    loose: BTreeMap<u64, Bytes>,
    /// Bytes of `loose`.
    loose_bytes: u64,
    /// Objects by first sector.
    cut: BTreeMap<u64, PendingObject>,
    bytes: u64,
}

/// An object that is not durable.
#[derive(Clone)]
pub(crate) struct PendingObject {
    pub object: SectorObject,
    /// Consecutive parts of its data.
    pub parts: Vec<Bytes>,
}

impl GatheredSectors {
    /// Returns the bytes of all data.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes that are in no object.
    pub fn loose_bytes(&self) -> u64 {
        self.loose_bytes
    }

    /// Adds a write to sectors that are not written yet.
    pub fn add(&mut self, at: u64, data: Bytes) {
        self.bytes += data.len() as u64;
        self.loose_bytes += data.len() as u64;
        let mut data = data;
        let mut at = at;
        while !data.is_empty() {
            let here = ((CELL - at % CELL) * SECTOR).min(data.len() as u64);
            self.loose.insert(at, data.split_to(here as usize));
            at += here / SECTOR;
        }
    }

    /// Returns the starts of runs that reach the end of their cell, among those that overlap `sectors`.
    pub fn ripe(&self, sectors: Range<u64>) -> Vec<u64> {
        let mut found = Vec::new();
        let mut at = sectors.start;
        while at < sectors.end {
            let cell = at - at % CELL..at - at % CELL + CELL;
            let ends = std::iter::successors(Some(at), |at| Some(at + sectors_of(self.loose.get(at)?)));
            if ends.take_while(|end| *end <= cell.end).last() == Some(cell.end) {
                let before = self.loose.range(cell.start..at).rev();
                let run = before.scan(at, |next, (start, data)| {
                    (start + sectors_of(data) == *next).then(|| *next = *start).map(|()| *start)
                });
                found.push(run.last().unwrap_or(at));
            }
            at = cell.end;
        }
        found
    }

    /// Returns the starts of all runs.
    pub fn runs(&self) -> Vec<u64> {
        let mut end = None;
        let is_first = |(start, data): (&u64, &Bytes)| {
            let goes_on = end == Some(*start) && !start.is_multiple_of(CELL);
            end = Some(start + sectors_of(data));
            (!goes_on).then_some(*start)
        };
        self.loose.iter().filter_map(is_first).collect()
    }

    /// Makes an object of the run that begins at `first`.
    pub fn cut(&mut self, first: u64, id: ObjectId) -> SectorObject {
        let (mut at, end) = (first, first - first % CELL + CELL);
        let mut parts = Vec::new();
        while at < end
            && let Some(data) = self.loose.remove(&at)
        {
            at += sectors_of(&data);
            self.loose_bytes -= data.len() as u64;
            parts.push(data);
        }
        let object = SectorObject { id, first, count: (at - first) as u16 };
        self.cut.insert(first, PendingObject { object, parts });
        object
    }

    /// Returns an object that is not durable.
    pub fn object(&self, first: u64) -> Option<&PendingObject> {
        self.cut.get(&first)
    }

    /// Returns the smallest number of an object that is not durable.
    pub fn oldest(&self) -> Option<u32> {
        self.cut.values().map(|cut| cut.object.id.number).min()
    }

    /// Drops an object that is durable.
    pub fn forget(&mut self, first: u64) {
        if let Some(cut) = self.cut.remove(&first) {
            self.bytes -= u64::from(cut.object.count) * SECTOR;
        }
    }

    /// Returns the data for these sectors, in order.
    pub fn find(&self, sectors: Range<u64>) -> Vec<(u64, Bytes)> {
        // No part is longer than a cell.
        let near = sectors.start.saturating_sub(CELL)..sectors.end;
        let loose = self.loose.range(near.clone()).map(|(start, data)| (*start, data));
        let mut found: Vec<(u64, Bytes)> = Vec::new();
        let mut take = |start: u64, data: &Bytes| {
            let (from, to) = (sectors.start.max(start), sectors.end.min(start + sectors_of(data)));
            if from < to {
                let bytes = ((from - start) * SECTOR) as usize..((to - start) * SECTOR) as usize;
                found.push((from, data.slice(bytes)));
            }
        };
        loose.for_each(|(start, data)| take(start, data));
        for cut in self.cut.range(near).map(|(_, cut)| cut) {
            let mut start = cut.object.first;
            for data in &cut.parts {
                take(start, data);
                start += sectors_of(data);
            }
        }
        found.sort_by_key(|(start, _)| *start);
        found
    }
}

pub(crate) fn sectors_of(data: &Bytes) -> u64 {
    data.len() as u64 / SECTOR
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sectors(count: u64) -> Bytes {
        vec![7; (count * SECTOR) as usize].into()
    }

    fn id(number: u32) -> ObjectId {
        ObjectId { epoch: 1, number }
    }

    #[test]
    fn a_run_is_an_object_up_to_the_end_of_its_cell() {
        let mut gather = GatheredSectors::default();
        gather.add(CELL - 8, sectors(4));
        gather.add(3, sectors(2));
        assert_eq!((gather.runs(), gather.ripe(0..CELL)), (vec![3, CELL - 8], vec![]));
        gather.add(CELL - 4, sectors(8));
        assert_eq!(gather.runs(), [3, CELL - 8, CELL]);
        assert_eq!(gather.ripe(CELL - 4..CELL + 4), [CELL - 8]);
        let object = gather.cut(CELL - 8, id(0));
        assert_eq!((object.first, object.count, gather.loose_bytes()), (CELL - 8, 8, 6 * SECTOR));
        assert_eq!((gather.bytes(), gather.oldest()), (14 * SECTOR, Some(0)));
        let found: Vec<(u64, u64)> =
            gather.find(4..CELL + 1).iter().map(|(at, data)| (*at, sectors_of(data))).collect();
        assert_eq!(found, [(4, 1), (CELL - 8, 4), (CELL - 4, 4), (CELL, 1)]);
        gather.forget(CELL - 8);
        assert_eq!((gather.bytes(), gather.oldest()), (6 * SECTOR, None));
        for (number, run) in gather.runs().into_iter().enumerate() {
            gather.cut(run, id(1 + number as u32));
        }
        assert_eq!((gather.runs(), gather.loose_bytes()), (vec![], 0));
    }

    #[test]
    fn cells_that_are_whole_are_ripe() {
        let mut gather = GatheredSectors::default();
        gather.add(5, sectors(2 * CELL));
        assert_eq!(gather.ripe(5..5 + 2 * CELL), [5, CELL]);
        assert_eq!(gather.runs(), [5, CELL, 2 * CELL]);
        assert_eq!(gather.cut(CELL, id(0)).count, CELL as u16);
    }
}
