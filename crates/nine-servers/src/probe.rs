//! Whether to look into the page cache before a read is given to a thread.
//!
//! Always holds: a file that is never there costs a look once in [`EVERY`] reads; one whose file system cannot tell
//! costs one.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// After this many misses in a row the cache is asked no more...
const MISSES: u8 = 4;
/// ...but once in so many reads: the probe of a miss costs a tenth of the read itself.
const EVERY: u8 = 16;

/// Of one open file.
#[derive(Default)]
pub(crate) struct Probe {
    misses: AtomicU8,
    /// The file system does not know `RWF_NOWAIT`: of reads, of writes.
    unknown: [AtomicBool; 2],
}

impl Probe {
    /// Whether to look for this read.
    pub(crate) fn looks(&self) -> bool {
        if self.unknown[0].load(Ordering::Relaxed) {
            return false;
        }
        let misses = self.misses.load(Ordering::Relaxed);
        if misses < MISSES {
            return true;
        }
        let again = misses + 1 >= MISSES + EVERY;
        self.misses.store(if again { MISSES - 1 } else { misses + 1 }, Ordering::Relaxed);
        again
    }

    /// Whether a write may be tried without waiting.
    pub(crate) fn writes(&self) -> bool {
        !self.unknown[1].load(Ordering::Relaxed)
    }

    /// It was there.
    pub(crate) fn hit(&self) {
        self.misses.store(0, Ordering::Relaxed);
    }

    /// It was not.
    pub(crate) fn missed(&self) {
        let misses = self.misses.load(Ordering::Relaxed);
        self.misses.store(misses.saturating_add(1).min(MISSES), Ordering::Relaxed);
    }

    /// The file system cannot tell.
    pub(crate) fn unknown(&self, write: bool) {
        self.unknown[usize::from(write)].store(true, Ordering::Relaxed);
    }
}
