//! An allocator of numbers: slots or rows.
//!
//! In: numbers to take and to free. Out: free numbers, consecutive where possible.

use std::ops::Range;

/// The numbers `0..len`, each free or taken.
pub(crate) struct FreeNumbers {
    /// A bit is 1 if the number is taken.
    words: Vec<u64>,
    len: u64,
    free: u64,
    /// The number at which the next search begins.
    hand: u64,
}

impl FreeNumbers {
    /// Creates an allocator of `len` free numbers, except those in `taken`. Panics if a number is taken twice.
    pub(crate) fn new(len: u64, taken: impl Iterator<Item = u64>) -> Self {
        let mut room = Self { words: vec![0; len.div_ceil(64) as usize], len, free: len, hand: 0 };
        for number in taken {
            assert!(room.take_at(number), "{number} is taken twice");
        }
        room
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Grows to `len` numbers; the new ones are free.
    pub(crate) fn stretch(&mut self, len: u64) {
        self.words.resize(len.div_ceil(64) as usize, 0);
        self.free += len - self.len;
        self.len = len;
    }

    /// Returns how many numbers are free.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Begins the next search at 0.
    pub(crate) fn rewind(&mut self) {
        self.hand = 0;
    }

    fn is_free(&self, number: u64) -> bool {
        self.words[(number / 64) as usize] & (1 << (number % 64)) == 0
    }

    /// Takes `number` if it is free. Returns whether it was.
    pub(crate) fn take_at(&mut self, number: u64) -> bool {
        let is_free = number < self.len && self.is_free(number);
        if is_free {
            self.words[(number / 64) as usize] |= 1 << (number % 64);
            self.free -= 1;
        }
        is_free
    }

    /// Takes at most `most` consecutive numbers, from the first free one after those taken last.
    pub(crate) fn take(&mut self, most: u64) -> Option<Range<u64>> {
        let first = self.next_free(self.hand, self.len).or_else(|| self.next_free(0, self.hand))?;
        let mut end = first;
        while end - first < most && self.take_at(end) {
            end += 1;
        }
        self.hand = if end == self.len { 0 } else { end };
        Some(first..end)
    }

    /// Takes `count` consecutive numbers. Gives up after more than `tries` shorter runs.
    pub(crate) fn take_run(&mut self, count: u64, tries: usize) -> Option<Range<u64>> {
        let mut short = Vec::new();
        let found = loop {
            match self.take(count) {
                Some(run) if run.end - run.start == count => break Some(run),
                Some(run) if short.len() < tries => short.push(run),
                Some(run) => {
                    short.push(run);
                    break None;
                }
                None => break None,
            }
        };
        short.into_iter().flatten().for_each(|number| self.give(number));
        found
    }

    /// Moves the start of the next search `count` numbers on, so that the owner of the last numbers may get the next
    /// ones.
    pub(crate) fn skip(&mut self, count: u64) {
        self.hand = (self.hand + count) % self.len;
    }

    fn next_free(&self, from: u64, to: u64) -> Option<u64> {
        let mut at = from;
        while at < to {
            let rest = !self.words[(at / 64) as usize] >> (at % 64);
            if rest != 0 {
                let found = at + u64::from(rest.trailing_zeros());
                return (found < to).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Frees `number`. Panics if it is free.
    pub(crate) fn give(&mut self, number: u64) {
        assert!(!self.is_free(number), "{number} was free");
        self.words[(number / 64) as usize] &= !(1 << (number % 64));
        self.free += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_had_once_and_neighbours_come_together() {
        let mut room = FreeNumbers::new(1000, [3, 64, 999].into_iter());
        let mut had = vec![false; 1000];
        let runs: Vec<Range<u64>> = std::iter::from_fn(|| room.take(200)).collect();
        for number in runs.iter().cloned().flatten() {
            assert!(!std::mem::replace(&mut had[number as usize], true), "{number}");
        }
        assert_eq!(runs, [0..3, 4..64, 65..265, 265..465, 465..665, 665..865, 865..999]);
        assert_eq!((room.free(), room.take(1)), (0, None));
        room.give(500);
        assert_eq!(room.take(9), Some(500..501));
    }

    #[test]
    fn a_run_is_whole_or_none_and_what_was_looked_at_is_free_again() {
        let mut room = FreeNumbers::new(64, (0..64).filter(|n| n % 4 == 3 || *n == 40));
        room.give(35);
        let free = room.free();
        assert_eq!(room.take_run(7, 5), None);
        assert_eq!((room.take_run(8, usize::MAX), room.free()), (None, free));
        assert_eq!((room.take_run(7, usize::MAX), room.free()), (Some(32..39), free - 7));
    }

    #[test]
    fn what_was_given_back_comes_last() {
        let mut room = FreeNumbers::new(128, std::iter::empty());
        assert_eq!(room.take(4), Some(0..4));
        room.give(1);
        assert_eq!(room.take(4), Some(4..8));
        room.skip(112);
        assert_eq!((room.take(64), room.take(64)), (Some(120..128), Some(1..2)));
    }
}
