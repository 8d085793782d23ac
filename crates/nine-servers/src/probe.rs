//! Decides whether to look into the page cache before a read is handed to a thread.
//!
//! Always holds: if a file is never in the cache, it is probed once in [`PROBE_INTERVAL`] reads. If its file system
//! does not support the probe, it is probed once in all.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// After this many misses in a row, the cache is probed less often...
const MISSES_MAX: u8 = 4;
/// ...once in this many reads. A probe that misses costs a tenth of the read itself.
const PROBE_INTERVAL: u8 = 16;

/// The probe state of one open file.
#[derive(Default)]
pub(crate) struct CacheProbe {
    misses: AtomicU8,
    /// The file system does not support `RWF_NOWAIT`: for reads, for writes.
    unknown: [AtomicBool; 2],
}

impl CacheProbe {
    /// Returns whether to probe for this read.
    pub(crate) fn looks(&self) -> bool {
        if self.unknown[0].load(Ordering::Relaxed) {
            return false;
        }
        let misses = self.misses.load(Ordering::Relaxed);
        if misses < MISSES_MAX {
            return true;
        }
        let again = misses + 1 >= MISSES_MAX + PROBE_INTERVAL;
        self.misses.store(if again { MISSES_MAX - 1 } else { misses + 1 }, Ordering::Relaxed);
        again
    }

    /// Returns whether a write may be tried without waiting.
    pub(crate) fn writes(&self) -> bool {
        !self.unknown[1].load(Ordering::Relaxed)
    }

    /// Records that the data was in the cache.
    pub(crate) fn hit(&self) {
        self.misses.store(0, Ordering::Relaxed);
    }

    /// Records that the data was not in the cache.
    pub(crate) fn missed(&self) {
        let misses = self.misses.load(Ordering::Relaxed);
        self.misses.store(misses.saturating_add(1).min(MISSES_MAX), Ordering::Relaxed);
    }

    /// Records that the file system does not support `RWF_NOWAIT` for writes, or for reads.
    pub(crate) fn unknown(&self, write: bool) {
        self.unknown[usize::from(write)].store(true, Ordering::Relaxed);
    }
}
