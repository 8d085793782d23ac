//! Which pages of an arena are in use: kept by the client who owns it, in his own memory.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::layout::{PAGE, Place};

/// The free room of an arena, in as many units as fit into [`UNITS`]: of a page, or of more in a large arena.
#[derive(Debug)]
pub struct Arena {
    /// A bit for each unit in use, and for those that there are not.
    used: [u64; UNITS / 64],
    /// Bytes of a unit.
    unit: usize,
    /// Units that there are.
    units: usize,
    /// Where the search begins: behind what was taken last.
    next: usize,
    gauge: Gauge,
}

/// How many pages of an arena are in use, for others to look at.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicU32>);

/// Units at most.
const UNITS: usize = 4096;

impl Arena {
    /// All of `pages` is free.
    pub fn new(pages: u32) -> Self {
        let unit = (pages as usize).div_ceil(UNITS).max(1) * PAGE;
        let units = pages as usize * PAGE / unit;
        let mut arena = Self { used: [0; UNITS / 64], unit, units, next: 0, gauge: Gauge::default() };
        (units..UNITS).for_each(|i| arena.set(i, true));
        arena
    }

    /// What may be looked at beside it.
    pub fn gauge(&self) -> Gauge {
        self.gauge.clone()
    }

    /// Takes room for `len` bytes in a row. `None`: there is none now.
    pub fn take(&mut self, len: u32) -> Option<Place> {
        let need = (len as usize).div_ceil(self.unit).max(1);
        if need > self.units {
            return None;
        }
        let at = self.find(self.next, self.units, need).or_else(|| {
            // What begins before it may reach behind it.
            self.find(0, (self.next + need).min(self.units), need)
        })?;
        (at..at + need).for_each(|i| self.set(i, true));
        self.next = at + need;
        self.count(|pages, more| pages + more, need);
        Some(Place { at: (at * self.unit) as u32, count: len })
    }

    /// Gives it back.
    ///
    /// # Panics
    /// It was not taken.
    pub fn give(&mut self, place: Place) {
        let at = place.at as usize / self.unit;
        let need = (place.count as usize).div_ceil(self.unit).max(1);
        for i in at..at + need {
            assert!(self.get(i), "a place that was taken: {place:?}");
            self.set(i, false);
        }
        self.count(|pages, less| pages - less, need);
        // The warmest in the caches is the one to have next.
        self.next = at;
    }

    /// Nobody else writes there.
    fn count(&self, add: fn(u32, u32) -> u32, units: usize) {
        let Gauge(pages) = &self.gauge;
        pages.store(add(pages.load(Relaxed), (units * self.unit / PAGE) as u32), Relaxed);
    }

    /// The first `need` free units in a row that begin at `from` or behind it and end at `to` or before it.
    fn find(&self, from: usize, to: usize, need: usize) -> Option<usize> {
        let mut begin = from;
        let mut i = from;
        while i < to {
            if i.is_multiple_of(64) && self.used[i / 64] == u64::MAX {
                i += 64;
                begin = i;
                continue;
            }
            if self.get(i) {
                begin = i + 1;
            } else if i + 1 - begin == need {
                return Some(begin);
            }
            i += 1;
        }
        None
    }

    fn get(&self, i: usize) -> bool {
        self.used[i / 64] & 1 << (i % 64) != 0
    }

    fn set(&mut self, i: usize, used: bool) {
        let bit = 1 << (i % 64);
        if used { self.used[i / 64] |= bit } else { self.used[i / 64] &= !bit }
    }
}

impl Gauge {
    /// Pages.
    pub fn pages(&self) -> u32 {
        self.0.load(Relaxed)
    }
}
