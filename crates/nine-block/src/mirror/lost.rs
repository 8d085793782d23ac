//! Tracks the sectors that were written and not flushed, and those of them that are lost.
//!
//! In: the beginnings and ends of writes, flushes and copies. Out: whether a flush may report success.
//!
//! Always holds: data written before a flush that no member could do counts as lost until it is written again, by a
//! write that began after that. A member that fails a flush may have lost sectors before; if they were copied to other
//! members since, they count as lost too.

use std::collections::{BTreeMap, VecDeque};

/// Maximum number of ranges. Beyond that only their existence is known, and lost data stays lost until the mirror is
/// opened again.
const REMEMBERED: usize = 1 << 16;

/// The unflushed and the lost sectors.
#[derive(Default)]
pub(super) struct UnflushedSectors {
    /// Ranges written between flushes, with the number of the first flush that covers them.
    between: VecDeque<(u64, SectorRanges)>,
    /// Ranges copied from a member, or from an unknown one, with the number of the first flush that covers them.
    copied: VecDeque<(u64, Option<usize>, SectorRanges)>,
    /// The number of the next flush.
    next: u64,
    lost: SectorRanges,
    /// Number of losses so far.
    losses: u64,
}

/// Ranges of sectors, by start and end; none touches another.
#[derive(Default)]
struct SectorRanges {
    some: BTreeMap<u64, u64>,
    /// And others that are not remembered.
    more: bool,
}

impl UnflushedSectors {
    /// Begins a write. Returns the value for [`wrote`](Self::wrote).
    pub fn begins(&self) -> u64 {
        self.losses
    }

    /// Ends a write that all active members have done.
    pub fn wrote(&mut self, from: u64, to: u64, began: u64) {
        if began != self.losses {
            return self.lost.add(from, to);
        }
        self.lost.remove(from, to);
        if self.between.back().is_none_or(|(number, _)| *number != self.next) {
            self.between.push_back((self.next, SectorRanges::default()));
        }
        let (_, last) = self.between.back_mut().expect("it is there by now");
        last.add(from, to);
    }

    /// Begins a copy of sectors that are read from this member.
    pub fn copies(&mut self, from: Option<usize>, at: u64, to: u64) {
        if self.copied.back().is_none_or(|(number, last, _)| (*number, *last) != (self.next, from)) {
            self.copied.push_back((self.next, from, SectorRanges::default()));
        }
        let (.., last) = self.copied.back_mut().expect("it is there by now");
        last.add(at, to);
    }

    /// Begins a flush. Returns its number.
    pub fn flush_begins(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Ends a flush that all remaining members have done.
    pub fn flushed(&mut self, number: u64) {
        while self.between.front().is_some_and(|(covered, _)| *covered <= number) {
            self.between.pop_front();
        }
        while self.copied.front().is_some_and(|(covered, ..)| *covered <= number) {
            self.copied.pop_front();
        }
    }

    /// A member has failed a flush and is set aside: unflushed data that was or may have been copied from it is lost.
    pub fn lose_copies(&mut self, of: usize) {
        for (_, from, copied) in &self.copied {
            if from.is_some_and(|from| from != of) {
                continue;
            }
            for (_, written) in &self.between {
                self.lost.more |= copied.more || written.more;
                for (at, to) in &copied.some {
                    let before = written.some.range(..*to).rev().take_while(|(_, end)| **end > *at);
                    before.for_each(|(begin, end)| self.lost.add(*at.max(begin), *to.min(end)));
                }
            }
        }
    }

    /// No member that is in has done a flush: all unflushed data is lost.
    pub fn lose(&mut self) {
        self.losses += 1;
        for (_, ranges) in std::mem::take(&mut self.between) {
            ranges.some.into_iter().for_each(|(from, to)| self.lost.add(from, to));
            self.lost.more |= ranges.more;
        }
    }

    /// Returns whether anything is lost.
    pub fn lost(&self) -> bool {
        self.lost.more || !self.lost.some.is_empty()
    }
}

impl SectorRanges {
    fn add(&mut self, mut from: u64, mut to: u64) {
        // Merge ranges that touch it.
        while let Some((&begin, &end)) = self.some.range(..=to).next_back().filter(|(_, end)| **end >= from) {
            self.some.remove(&begin);
            (from, to) = (from.min(begin), to.max(end));
        }
        match self.some.len() < REMEMBERED {
            true => drop(self.some.insert(from, to)),
            false => self.more = true,
        }
    }

    fn remove(&mut self, from: u64, to: u64) {
        while let Some((&begin, &end)) = self.some.range(..to).next_back().filter(|(_, end)| **end > from) {
            self.some.remove(&begin);
            for (begin, end) in [(begin, from), (to, end)] {
                if begin < end {
                    self.some.insert(begin, end);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_the_same_as_sets() {
        let mut ranges = SectorRanges::default();
        let mut set = std::collections::BTreeSet::new();
        let mut number = 1u64;
        for _ in 0..20_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let from = (number >> 33) % 60;
            let to = from + 1 + (number >> 40) % 9;
            if number >> 63 == 0 {
                ranges.add(from, to);
                set.extend(from..to);
            } else {
                ranges.remove(from, to);
                set.retain(|at| !(from..to).contains(at));
            }
            let all: Vec<u64> = ranges.some.iter().flat_map(|(from, to)| *from..*to).collect();
            assert!(all.iter().eq(set.iter()), "{:?}", ranges.some);
        }
    }

    #[test]
    fn what_was_copied_from_one_that_has_not_flushed_is_lost() {
        let mut written = UnflushedSectors::default();
        written.wrote(0, 8, 0);
        written.wrote(20, 30, 0);
        let flush = written.flush_begins();
        written.wrote(40, 50, 0);
        written.copies(Some(1), 0, 24);
        written.copies(Some(2), 40, 50);
        written.lose_copies(0);
        assert!(!written.lost());
        written.lose_copies(1);
        let lost = |written: &UnflushedSectors| written.lost.some.clone().into_iter().collect::<Vec<_>>();
        assert_eq!(lost(&written), [(0, 8), (20, 24)]);
        written.flushed(flush);
        written.lost = SectorRanges::default();
        written.lose_copies(1);
        assert!(!written.lost(), "what was copied then was flushed before");
        written.lose_copies(2);
        assert_eq!(lost(&written), [(40, 50)]);
    }

    #[test]
    fn what_is_lost_has_to_be_written_again() {
        let mut written = UnflushedSectors::default();
        let early = written.begins();
        written.wrote(0, 8, early);
        let flush = written.flush_begins();
        written.wrote(8, 16, early);
        written.flushed(flush);
        written.lose();
        assert!(written.lost());
        let again = written.begins();
        written.wrote(7, 16, again);
        assert!(!written.lost(), "0 to 8 were flushed");
        written.wrote(20, 24, early);
        assert!(written.lost(), "it may have been there before");
        written.wrote(20, 24, again);
        assert!(!written.lost());
    }
}
