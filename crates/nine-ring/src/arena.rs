//! Allocates the pages of an arena. The client that owns the arena keeps this state in its private memory.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::layout::{PAGE, Place};

/// The free space of an arena in at most [`UNITS`] units. A unit is a page, or several in a large arena.
#[derive(Debug)]
pub struct Arena {
    /// A bit for each unit in use. The bits of units that do not exist are set, too.
    used: [u64; UNITS / 64],
    /// Size of a unit, in bytes.
    unit: usize,
    /// Number of units.
    units: usize,
    /// The unit at which the search starts.
    next: usize,
    gauge: Gauge,
}

/// The number of pages in use, readable by other threads.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicU32>);

/// Maximum number of units.
const UNITS: usize = 4096;

impl Arena {
    /// Creates an arena of `pages` free pages.
    pub fn new(pages: u32) -> Self {
        let unit = (pages as usize).div_ceil(UNITS).max(1) * PAGE;
        let units = pages as usize * PAGE / unit;
        let mut arena = Self { used: [0; UNITS / 64], unit, units, next: 0, gauge: Gauge::default() };
        (units..UNITS).for_each(|i| arena.set(i, true));
        arena
    }

    /// Returns the gauge of the pages in use.
    pub fn gauge(&self) -> Gauge {
        self.gauge.clone()
    }

    /// Allocates `len` contiguous bytes. Returns `None` if no free range is large enough.
    pub fn take(&mut self, len: u32) -> Option<Place> {
        let need = (len as usize).div_ceil(self.unit).max(1);
        if need > self.units {
            return None;
        }
        let at = self.find(self.next, self.units, need).or_else(|| {
            // A range that starts before `next` may reach beyond it.
            self.find(0, (self.next + need).min(self.units), need)
        })?;
        (at..at + need).for_each(|i| self.set(i, true));
        self.next = at + need;
        self.count(|pages, more| pages + more, need);
        Some(Place { at: (at * self.unit) as u32, count: len })
    }

    /// Frees a range.
    ///
    /// # Panics
    /// If the range is not allocated.
    pub fn give(&mut self, place: Place) {
        let at = place.at as usize / self.unit;
        let need = (place.count as usize).div_ceil(self.unit).max(1);
        for i in at..at + need {
            assert!(self.get(i), "a place that was taken: {place:?}");
            self.set(i, false);
        }
        self.count(|pages, less| pages - less, need);
        // Reuse this range first: it is most likely in the caches.
        self.next = at;
    }

    /// Adjusts the gauge. Only the owner writes it.
    fn count(&self, add: fn(u32, u32) -> u32, units: usize) {
        let Gauge(pages) = &self.gauge;
        pages.store(add(pages.load(Relaxed), (units * self.unit / PAGE) as u32), Relaxed);
    }

    /// Finds the first `need` contiguous free units between `from` and `to`.
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
    /// Returns the number of pages in use.
    pub fn pages(&self) -> u32 {
        self.0.load(Relaxed)
    }
}
