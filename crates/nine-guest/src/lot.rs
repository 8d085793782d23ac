//! Numbers of things with a lifetime: fids, lent parts of the arena. Dropping one sends no message. The client finds
//! dropped numbers when it next looks for them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32};

/// The number of numbers.
pub(crate) const NUMBERS_MAX: u32 = 4096;

/// The dropped numbers.
#[derive(Debug)]
struct DroppedNumbers {
    bits: [AtomicU32; NUMBERS_MAX as usize / 32],
    any: AtomicBool,
}

/// A number; its owner may drop it on any thread.
#[derive(Debug)]
pub(crate) struct OwnedNumber {
    number: u32,
    /// Its drop is not recorded.
    is_told: bool,
    dropped: Arc<DroppedNumbers>,
}

/// The allocator of numbers.
#[derive(Debug)]
pub(crate) struct NumberAllocator {
    dropped: Arc<DroppedNumbers>,
    /// Free numbers below `next`.
    free: Vec<u32>,
    next: u32,
}

impl OwnedNumber {
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.number
    }
}

impl Drop for OwnedNumber {
    fn drop(&mut self) {
        if self.is_told {
            return;
        }
        let (word, bit) = (self.number as usize / 32, self.number % 32);
        self.dropped.bits[word].fetch_or(1 << bit, Release);
        self.dropped.any.store(true, Release);
    }
}

impl NumberAllocator {
    pub(crate) fn new() -> Self {
        let bits = [const { AtomicU32::new(0) }; NUMBERS_MAX as usize / 32];
        let dropped = Arc::new(DroppedNumbers { bits, any: AtomicBool::new(false) });
        Self { dropped, free: Vec::new(), next: 0 }
    }

    /// Takes a free number. `None`: all are in use.
    pub(crate) fn take(&mut self) -> Option<OwnedNumber> {
        let number = self.free.pop().or_else(|| {
            let number = self.next;
            (number < NUMBERS_MAX).then(|| self.next += 1)?;
            Some(number)
        })?;
        Some(OwnedNumber { number, is_told: false, dropped: self.dropped.clone() })
    }

    /// Frees a number directly.
    pub(crate) fn forget(&mut self, number: OwnedNumber) {
        self.free.push(number.number);
        let mut number = number;
        number.is_told = true;
    }

    /// Frees a number returned by `dropped`.
    pub(crate) fn give(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Makes `dropped` return a number again.
    pub(crate) fn drop_again(&mut self, number: u32) {
        drop(OwnedNumber { number, is_told: false, dropped: self.dropped.clone() });
    }

    /// Returns a number that was dropped. Each is returned once.
    pub(crate) fn dropped(&self) -> Option<u32> {
        // A drop after this swap sets the flag again. The bits of drops before it are visible.
        if !self.dropped.any.load(Relaxed) || !self.dropped.any.swap(false, AcqRel) {
            return None;
        }
        for (n, word) in self.dropped.bits.iter().enumerate() {
            let bits = word.load(Acquire);
            if bits != 0 {
                self.dropped.any.store(true, Relaxed);
                let bit = bits.trailing_zeros();
                word.fetch_and(!(1 << bit), AcqRel);
                return Some(n as u32 * 32 + bit);
            }
        }
        None
    }

    /// Returns whether this number is of this allocator.
    #[inline]
    pub(crate) fn has(&self, number: &OwnedNumber) -> bool {
        Arc::ptr_eq(&self.dropped, &number.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_had_by_one_and_told_once_when_dropped() {
        let mut lot = NumberAllocator::new();
        let mut all: Vec<_> = core::iter::from_fn(|| lot.take()).collect();
        assert_eq!(all.len(), NUMBERS_MAX as usize);
        assert!(all.iter().enumerate().all(|(n, number)| number.get() == n as u32));
        assert_eq!(lot.dropped(), None);
        drop((all.remove(4000), all.remove(63)));
        assert_eq!((lot.dropped(), lot.dropped(), lot.dropped()), (Some(63), Some(4000), None));
        lot.give(63);
        assert_eq!((lot.take().unwrap().get(), lot.take().is_none()), (63, true));
        assert_eq!(lot.dropped(), Some(63));
        assert!(lot.has(&all[0]) && !NumberAllocator::new().has(&all[0]));
    }
}
