//! The congestion window of a path, in frames: slow start, then growth by one in each round; halved by a loss, and set
//! to one if the path is silent.

/// Initial window.
const FIRST: u32 = 16;
/// Minimum window after a loss. Silence reduces it to one.
const LEAST: u32 = 2;

/// A congestion window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    may: u32,
    threshold: u32,
    /// Answers since the window last grew.
    answers: u32,
    /// Losses of frames before this order belong to a round for which the window is already reduced.
    paid: u64,
    /// Window and threshold before the last reduction; the lost frames of that round that are still unanswered; the
    /// first order of the round.
    before: (u32, u32),
    missing: u32,
    round: u64,
}

impl Window {
    pub(crate) fn new() -> Self {
        Self {
            may: FIRST,
            threshold: u32::MAX,
            answers: 0,
            paid: 0,
            before: (FIRST, u32::MAX),
            missing: 0,
            round: 0,
        }
    }

    /// Returns the maximum number of frames in flight.
    pub(crate) fn may(&self) -> usize {
        self.may as usize
    }

    /// Records an answer. The window grows up to the target's queue length (`queues`) if at least half of it is in use.
    pub(crate) fn answered(&mut self, queues: usize, under_way: usize) {
        if self.may() >= queues {
            self.may = queues as u32;
        } else if 2 * under_way < self.may() {
        } else if self.may < self.threshold {
            self.may += 1;
        } else {
            self.answers += 1;
            if self.answers >= self.may {
                (self.may, self.answers) = (self.may + 1, 0);
            }
        }
    }

    /// Records that frame `order` is lost while others are answered. `next` is the order of the next frame.
    pub(crate) fn lost(&mut self, order: u64, next: u64) {
        if order < self.paid {
            self.missing += u32::from(order >= self.round);
        } else {
            (self.before, self.missing, self.round) = ((self.may, self.threshold), 1, self.paid);
            self.paid = next;
            self.threshold = (self.may / 2).max(LEAST);
            (self.may, self.answers) = (self.threshold, 0);
        }
    }

    /// Records a late answer to frame `order`. When all losses of the round have answers, none was real: the window
    /// before the reduction is restored (as in Eifel, RFC 4015).
    pub(crate) fn late(&mut self, order: u64) {
        if (self.round..self.paid).contains(&order) && self.missing > 0 {
            self.missing -= 1;
            if self.missing == 0 && self.may < self.before.0 {
                (self.may, self.threshold) = self.before;
            }
        }
    }

    /// Records that frame `order` is lost and nothing is answered.
    pub(crate) fn silent(&mut self, order: u64, next: u64) {
        self.lost(order, next);
        self.may = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_after_all_was_not_lost() {
        let mut window = Window::new();
        (0..48).for_each(|_| window.answered(64, 64));
        (10..14).for_each(|order| window.silent(order, 64));
        assert_eq!(window.may(), 1);
        (10..13).for_each(|order| window.late(order));
        assert_eq!(window.may(), 1);
        window.late(13);
        assert_eq!(window.may(), 64);
        window.late(12);
        window.lost(70, 80);
        window.late(12);
        assert_eq!(window.may(), 32, "of another round");
        window.lost(71, 80);
        window.late(70);
        window.lost(80, 90);
        window.late(80);
        assert_eq!(window.may(), 32, "what it was before this round");
    }

    #[test]
    fn it_grows_by_answers_and_a_round_of_losses_halves_it_once() {
        let mut window = Window::new();
        (0..48).for_each(|_| window.answered(64, 64));
        assert_eq!(window.may(), 64);
        window.answered(64, 64);
        assert_eq!(window.may(), 64);
        (0..10).for_each(|order| window.lost(order, 64));
        assert_eq!(window.may(), 32);
        (0..31).for_each(|_| window.answered(64, 64));
        assert_eq!(window.may(), 32);
        window.answered(64, 64);
        assert_eq!(window.may(), 33);
        window.lost(64, 70);
        assert_eq!(window.may(), 16);
        window.silent(70, 71);
        assert_eq!(window.may(), 1);
        (0..7).for_each(|_| window.answered(64, 64));
        assert_eq!(window.may(), 8, "slow start up to half of what was");
        (0..100).for_each(|_| window.answered(64, 2));
        assert_eq!(window.may(), 8, "what is not used does not grow");
        window.answered(4, 4);
        assert_eq!(window.may(), 4, "the target queues less by now");
    }
}
