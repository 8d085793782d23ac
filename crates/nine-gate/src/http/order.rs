//! Whose turn it is: among those who wait for something of which there is not enough for all.
//!
//! Always holds: of those who wait one is found as long as there is one; under [`Schedule::Shortest`] nobody waits
//! behind others for longer than the age limit.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

/// Places of those that have gone which are kept.
const SLACK: usize = 64;

/// Who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Whose request came first.
    Fifo,
    /// Who has the fewest bytes left to send (shortest remaining response first); whose request is older than `age`
    /// goes before all others, the oldest first.
    Shortest {
        /// The age limit.
        age: Duration,
    },
}

impl Schedule {
    /// Bytes that one sends before others have their turn. Shorter turns would make everybody's answer late who has
    /// more to send, and help nobody whose request came later; whoever has less left is to be found soon.
    pub(super) fn turn(self) -> u64 {
        match self {
            Self::Fifo => 1 << 20,
            Self::Shortest { .. } => 256 << 10,
        }
    }
}

/// What the order goes by: of one connection, kept by it.
#[derive(Debug, Default)]
pub struct Card {
    /// When the request came that is being answered.
    pub since: Cell<Duration>,
    /// Bytes of the answer that are left; 0 while nobody knows.
    pub left: Cell<u64>,
    /// When what is waited for must have happened.
    until: Cell<Duration>,
    /// It has not.
    pub late: Cell<bool>,
    /// Nothing is owed: it may be ended when nothing has come.
    pub idle: Cell<bool>,
}

impl Card {
    /// What is waited for from now on must have happened then.
    pub fn due(&self, until: Duration) {
        self.until.set(until);
        self.late.set(false);
    }

    /// The same, unless it must have happened before.
    pub fn hurry(&self, until: Duration) {
        self.until.set(self.until.get().min(until));
    }

    /// Whether it is late, and was not when this was asked last.
    pub fn becomes_late(&self, now: Duration) -> bool {
        self.until.get() < now && !self.late.replace(true)
    }
}

/// A queue. Each number is in it once at most.
pub struct Order {
    schedule: Schedule,
    /// Those of a queue that goes by nothing but the order in which they came.
    line: Option<VecDeque<(u64, usize)>>,
    /// By what the schedule says, then by the order in which they came.
    best: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// By their age: when the request came, and when they came here.
    oldest: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    /// By number: as what it waits; 0: it does not.
    waits: Vec<u64>,
    came: u64,
    len: usize,
}

impl Order {
    /// Nobody waits.
    pub fn new(schedule: Schedule) -> Self {
        Self {
            schedule,
            line: None,
            best: BinaryHeap::new(),
            oldest: BinaryHeap::new(),
            waits: Vec::new(),
            came: 0,
            len: 0,
        }
    }

    /// Nobody waits; for those who have no request yet, and whose is found when it is their turn. First come, first
    /// served is then the order in which they came here.
    pub fn of_wakes(schedule: Schedule) -> Self {
        let line = (schedule == Schedule::Fifo).then(VecDeque::new);
        Self { line, ..Self::new(schedule) }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// This one waits from now on, if it does not yet.
    pub fn push(&mut self, number: usize, card: &Card) {
        if self.waits.len() <= number {
            self.waits.resize(number + 1, 0);
        }
        if self.waits[number] != 0 {
            return;
        }
        self.came += 1;
        self.waits[number] = self.came;
        self.len += 1;
        if let Some(line) = &mut self.line {
            return line.push_back((self.came, number));
        }
        match self.schedule {
            Schedule::Fifo => {
                let since = card.since.get().as_nanos() as u64;
                self.best.push(Reverse((since, self.came, number)));
            }
            Schedule::Shortest { .. } => {
                self.best.push(Reverse((card.left.get(), self.came, number)));
                self.oldest.push(Reverse((card.since.get(), self.came, number)));
            }
        }
        // Those that have gone by one of the ways are in the other one still.
        if self.best.len().max(self.oldest.len()) > 2 * self.len + SLACK {
            let waits = &self.waits;
            self.best.retain(|Reverse((_, came, number))| waits[*number] == *came);
            self.oldest.retain(|Reverse((_, came, number))| waits[*number] == *came);
        }
    }

    /// It does not wait any more.
    pub fn remove(&mut self, number: usize) {
        if let Some(came) = self.waits.get_mut(number).filter(|came| **came != 0) {
            *came = 0;
            self.len -= 1;
        }
        if self.is_empty() {
            // Nothing is left but those that have gone.
            self.line.iter_mut().for_each(VecDeque::clear);
            self.best.clear();
            self.oldest.clear();
        }
    }

    /// The next one, which does not wait any more.
    pub fn pop(&mut self, now: Duration) -> Option<usize> {
        let number = self.aged(now).or_else(|| self.first())?;
        self.remove(number);
        Some(number)
    }

    fn aged(&mut self, now: Duration) -> Option<usize> {
        let Schedule::Shortest { age } = self.schedule else { return None };
        while let Some(&Reverse((since, came, number))) = self.oldest.peek() {
            if self.waits[number] == came {
                return Some(number).filter(|_| since + age < now);
            }
            self.oldest.pop();
        }
        None
    }

    fn first(&mut self) -> Option<usize> {
        if let Some(line) = &mut self.line {
            while let Some((came, number)) = line.pop_front() {
                if self.waits[number] == came {
                    return Some(number);
                }
            }
            return None;
        }
        while let Some(Reverse((_, came, number))) = self.best.pop() {
            if self.waits[number] == came {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(since: u64, left: u64) -> Card {
        Card { since: Cell::new(Duration::from_secs(since)), left: Cell::new(left), ..Card::default() }
    }

    fn all(order: &mut Order, now: u64) -> Vec<usize> {
        std::iter::from_fn(|| order.pop(Duration::from_secs(now))).collect()
    }

    #[test]
    fn whose_request_came_first_goes_first() {
        let mut order = Order::new(Schedule::Fifo);
        for (number, since, left) in [(3, 5, 1), (0, 2, 100), (7, 2, 1), (1, 1, 50)] {
            order.push(number, &card(since, left));
        }
        assert_eq!(all(&mut order, 1000), [1, 0, 7, 3]);
    }

    #[test]
    fn those_that_are_woken_run_in_the_order_of_their_wakes() {
        let mut order = Order::of_wakes(Schedule::Fifo);
        for (number, since) in [(3, 5), (0, 2), (3, 1), (7, 2)] {
            order.push(number, &card(since, 1));
        }
        order.remove(0);
        order.push(0, &card(0, 0));
        assert_eq!(all(&mut order, 1000), [3, 7, 0]);
        assert!(order.is_empty() && order.pop(Duration::ZERO).is_none());
    }

    #[test]
    fn who_has_least_left_goes_first_until_somebody_is_too_old() {
        let mut order = Order::new(Schedule::Shortest { age: Duration::from_secs(10) });
        let put = |order: &mut Order| {
            for (number, since, left) in [(3, 50, 1), (0, 20, 100), (7, 45, 30), (1, 10, 50)] {
                order.push(number, &card(since, left));
                order.push(number, &card(0, 0));
            }
        };
        put(&mut order);
        assert_eq!(order.len, 4);
        assert_eq!(all(&mut order, 20), [3, 7, 1, 0]);
        put(&mut order);
        assert_eq!(all(&mut order, 50), [1, 0, 3, 7]);
        assert!(order.is_empty());
    }

    #[test]
    fn those_that_go_by_their_age_leave_nothing_behind() {
        let mut order = Order::new(Schedule::Shortest { age: Duration::ZERO });
        for n in 0..10_000 {
            order.push(n % 7, &card(0, n as u64));
            assert!(order.len < 7 || order.pop(Duration::from_secs(9)).is_some());
        }
        assert!(order.best.len() + order.oldest.len() < 4 * SLACK);
    }

    #[test]
    fn who_has_gone_is_not_found_and_may_come_again() {
        for schedule in [Schedule::Fifo, Schedule::Shortest { age: Duration::ZERO }] {
            let mut order = Order::new(schedule);
            order.push(1, &card(1, 1));
            order.push(2, &card(2, 2));
            order.remove(1);
            order.remove(5);
            order.push(1, &card(3, 3));
            assert_eq!(all(&mut order, 0), [2, 1]);
            assert_eq!(order.best.len() + order.oldest.len(), 0, "nothing is kept");
        }
    }
}
