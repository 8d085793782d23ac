//! How many frames may be under way on a path: slow start, then one more each round, half for a loss, one for silence.

/// The first.
const FIRST: u32 = 16;
/// What a loss leaves at least; silence leaves one.
const LEAST: u32 = 2;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    may: u32,
    threshold: u32,
    /// Answers since it has grown.
    answers: u32,
    /// Losses of frames before this one are of a round that has been paid for.
    paid: u64,
    /// What it was before, how many were lost in that round and have not come after all, and where the round began.
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

    /// Frames.
    pub(crate) fn may(&self) -> usize {
        self.may as usize
    }

    /// A frame is answered; it grows up to what the target queues, while it is used.
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

    /// Frame `order` is lost, and the next will be `next`; others are answered.
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

    /// Frame `order` has been answered after all. Where all of a round are, nothing was lost: it is what it was (as
    /// Eifel has it, RFC 4015).
    pub(crate) fn late(&mut self, order: u64) {
        if (self.round..self.paid).contains(&order) && self.missing > 0 {
            self.missing -= 1;
            if self.missing == 0 && self.may < self.before.0 {
                (self.may, self.threshold) = self.before;
            }
        }
    }

    /// Frame `order` is lost, and nothing is heard.
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
