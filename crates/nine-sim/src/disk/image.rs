//! Contents of a disk: its written sectors, and when each was written.
//!
//! In: changes. Out: bytes. Always holds: `put_newer` does not overwrite newer data with older.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use nine_block::SECTOR;

/// The written sectors and their data. Only these use memory.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// By first sector. They do not overlap.
    pub(super) extents: BTreeMap<u64, Extent>,
    /// Unreadable sectors.
    pub(super) bad: Vec<Range<u64>>,
}

#[derive(Clone, Debug)]
pub(super) struct Extent {
    data: Bytes,
    /// When it was written.
    tick: u64,
}

impl Extent {
    pub(super) fn count(&self) -> u64 {
        self.data.len() as u64 / SECTOR
    }

    pub(super) fn part(&self, skip: u64, count: u64) -> Self {
        Self { data: part(&self.data, skip, count), tick: self.tick }
    }
}

pub(super) fn part(data: &Bytes, skip: u64, count: u64) -> Bytes {
    data.slice((skip * SECTOR) as usize..((skip + count) * SECTOR) as usize)
}

impl Image {
    /// Returns the data of these sectors, with zeros for unwritten ones.
    pub fn read(&self, at: u64, count: u64) -> Bytes {
        let mut found = self.within(at, at + count);
        let mut next = found.next();
        if let Some((first, extent)) = next
            && first <= at
            && at + count <= first + extent.count()
        {
            return part(&extent.data, at - first, count);
        }
        let mut data = BytesMut::zeroed((count * SECTOR) as usize);
        while let Some((first, extent)) = next {
            let (from, to) = (first.max(at), (first + extent.count()).min(at + count));
            let into = ((from - at) * SECTOR) as usize..((to - at) * SECTOR) as usize;
            data[into].copy_from_slice(&part(&extent.data, from - first, to - from));
            next = found.next();
        }
        data.freeze()
    }

    /// Whether the sector was written.
    pub fn is_written(&self, at: u64) -> bool {
        self.within(at, at + 1).next().is_some()
    }

    /// Returns the runs of written sectors, in order. Two runs may be adjacent.
    pub fn written(&self) -> impl Iterator<Item = Range<u64>> {
        self.extents.iter().map(|(at, extent)| *at..at + extent.count())
    }

    /// Returns the number of written sectors.
    pub fn sectors(&self) -> u64 {
        self.extents.values().map(Extent::count).sum()
    }

    pub(super) fn within(&self, at: u64, end: u64) -> impl Iterator<Item = (u64, &Extent)> {
        let before = self.extents.range(..at).next_back().filter(|(first, old)| *first + old.count() > at);
        let rest = self.extents.range(at..end.max(at));
        before.into_iter().chain(rest).map(|(first, extent)| (*first, extent)).filter(move |_| at < end)
    }

    /// Returns the first unwritten one of these sectors.
    pub(super) fn unwritten(&self, at: u64, count: u64) -> Option<u64> {
        self.older(at, count, 0).first().map(|range| range.start)
    }

    /// Returns the parts of these sectors that hold no data newer than `tick`.
    pub(super) fn older(&self, at: u64, count: u64, tick: u64) -> Vec<Range<u64>> {
        let mut older = Vec::new();
        let mut next = at;
        for (first, extent) in self.within(at, at + count).filter(|(_, extent)| extent.tick > tick) {
            older.push(next..first);
            next = first + extent.count();
        }
        older.push(next..at + count);
        older.retain(|range| range.start < range.end);
        older
    }

    /// Applies a change, except where the data is newer.
    pub(super) fn put_newer(&mut self, change: &Change) {
        for range in self.older(change.at, change.count, change.tick) {
            self.put(&change.part(range));
        }
    }

    pub(super) fn put(&mut self, change: &Change) {
        let (at, end) = (change.at, change.end());
        if at == end {
            return;
        }
        self.heal(at, end);
        if let Some(data) = &change.data
            && let Some(old) = self.extents.get_mut(&at)
            && old.data.len() == data.len()
        {
            *old = Extent { data: data.clone(), tick: change.tick };
            return;
        }
        let found: Vec<u64> = self.within(at, end).map(|(first, _)| first).collect();
        for first in found {
            let old = self.extents.remove(&first).expect("it was found");
            if first < at {
                self.extents.insert(first, old.part(0, at - first));
            }
            if first + old.count() > end {
                self.extents.insert(end, old.part(end - first, first + old.count() - end));
            }
        }
        if let Some(data) = &change.data {
            self.extents.insert(at, Extent { data: data.clone(), tick: change.tick });
        }
    }

    fn heal(&mut self, at: u64, end: u64) {
        if !self.bad.is_empty() {
            let bad =
                self.bad.drain(..).flat_map(|bad| [bad.start..bad.end.min(at), bad.start.max(end)..bad.end]);
            self.bad = bad.filter(|bad| bad.start < bad.end).collect();
        }
    }

    /// Returns the first unreadable one of these sectors.
    pub(super) fn bad(&self, at: u64, end: u64) -> Option<u64> {
        self.bad.iter().filter(|bad| bad.start < end && at < bad.end).map(|bad| bad.start.max(at)).min()
    }
}

/// The effect of a write or discard.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) at: u64,
    pub(super) count: u64,
    /// `None`: the sectors become unwritten.
    pub(super) data: Option<Bytes>,
    pub(super) tick: u64,
}

impl Change {
    pub(super) fn end(&self) -> u64 {
        self.at + self.count
    }

    pub(super) fn part(&self, range: Range<u64>) -> Self {
        let (skip, count) = (range.start - self.at, range.end - range.start);
        let data = self.data.as_ref().map(|data| part(data, skip, count));
        Self { at: range.start, count, data, tick: self.tick }
    }
}
