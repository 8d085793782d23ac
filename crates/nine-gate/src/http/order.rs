//! The order in which waiting connections get a scarce resource.
//!
//! Always holds: a waiting connection is found as long as there is one. Under [`Schedule::Shortest`] a request older
//! than the age limit goes before all younger ones.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

/// Stale entries that may remain in the heaps.
const SLACK: usize = 64;

/// The order of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// The earliest request first.
    Fifo,
    /// The fewest bytes left to send first (shortest remaining response first). A request older than `age` goes before
    /// all others, the oldest first.
    Shortest {
        /// The age limit.
        age: Duration,
    },
}

impl Schedule {
    /// Bytes that one connection sends before others run. With FIFO, shorter slices would delay long answers and not
    /// help later requests. Under shortest first, a connection with less left to send must get its slice soon.
    pub(super) fn turn(self) -> u64 {
        match self {
            Self::Fifo => 1 << 20,
            Self::Shortest { .. } => 256 << 10,
        }
    }
}

/// The data by which a connection is ordered. The connection updates it.
#[derive(Debug, Default)]
pub struct OrderCard {
    /// When the present request arrived.
    pub since: Cell<Duration>,
    /// Bytes left of the answer; 0 if not known yet.
    pub left: Cell<u64>,
    /// The deadline of the present wait.
    until: Cell<Duration>,
    /// The deadline has passed.
    pub late: Cell<bool>,
    /// No answer is owed: the connection may be closed without input.
    pub idle: Cell<bool>,
}

impl OrderCard {
    /// Sets the deadline of the present wait.
    pub fn due(&self, until: Duration) {
        self.until.set(until);
        self.late.set(false);
    }

    /// The same, unless the deadline is earlier already.
    pub fn hurry(&self, until: Duration) {
        self.until.set(self.until.get().min(until));
    }

    /// Whether the deadline has passed since the last call.
    pub fn becomes_late(&self, now: Duration) -> bool {
        self.until.get() < now && !self.late.replace(true)
    }
}

/// A queue, in which each number is at most once.
pub struct ConnectionOrder {
    schedule: Schedule,
    /// Replaces the heaps if the order is that of arrival here alone.
    line: Option<VecDeque<(u64, usize)>>,
    /// By the schedule, then by arrival here.
    best: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// By age: arrival of the request, then arrival here.
    oldest: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    /// By number: its arrival count while it waits, else 0.
    waits: Vec<u64>,
    came: u64,
    len: usize,
}

impl ConnectionOrder {
    /// Creates an empty queue.
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

    /// Creates an empty queue for connections that may have no request yet. FIFO is then the order of arrival here.
    pub fn of_wakes(schedule: Schedule) -> Self {
        let line = (schedule == Schedule::Fifo).then(VecDeque::new);
        Self { line, ..Self::new(schedule) }
    }

    /// Whether no connection waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a connection, unless it waits already.
    pub fn push(&mut self, number: usize, card: &OrderCard) {
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
        // An entry removed from one heap stays in the other until this cleanup.
        if self.best.len().max(self.oldest.len()) > 2 * self.len + SLACK {
            let waits = &self.waits;
            self.best.retain(|Reverse((_, came, number))| waits[*number] == *came);
            self.oldest.retain(|Reverse((_, came, number))| waits[*number] == *came);
        }
    }

    /// Removes a connection.
    pub fn remove(&mut self, number: usize) {
        if let Some(came) = self.waits.get_mut(number).filter(|came| **came != 0) {
            *came = 0;
            self.len -= 1;
        }
        if self.is_empty() {
            // All remaining entries are stale.
            self.line.iter_mut().for_each(VecDeque::clear);
            self.best.clear();
            self.oldest.clear();
        }
    }

    /// Removes and returns the next connection.
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

    fn card(since: u64, left: u64) -> OrderCard {
        OrderCard {
            since: Cell::new(Duration::from_secs(since)),
            left: Cell::new(left),
            ..OrderCard::default()
        }
    }

    fn all(order: &mut ConnectionOrder, now: u64) -> Vec<usize> {
        std::iter::from_fn(|| order.pop(Duration::from_secs(now))).collect()
    }

    #[test]
    fn whose_request_came_first_goes_first() {
        let mut order = ConnectionOrder::new(Schedule::Fifo);
        for (number, since, left) in [(3, 5, 1), (0, 2, 100), (7, 2, 1), (1, 1, 50)] {
            order.push(number, &card(since, left));
        }
        assert_eq!(all(&mut order, 1000), [1, 0, 7, 3]);
    }

    #[test]
    fn those_that_are_woken_run_in_the_order_of_their_wakes() {
        let mut order = ConnectionOrder::of_wakes(Schedule::Fifo);
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
        let mut order = ConnectionOrder::new(Schedule::Shortest { age: Duration::from_secs(10) });
        let put = |order: &mut ConnectionOrder| {
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
        let mut order = ConnectionOrder::new(Schedule::Shortest { age: Duration::ZERO });
        for n in 0..10_000 {
            order.push(n % 7, &card(0, n as u64));
            assert!(order.len < 7 || order.pop(Duration::from_secs(9)).is_some());
        }
        assert!(order.best.len() + order.oldest.len() < 4 * SLACK);
    }

    #[test]
    fn who_has_gone_is_not_found_and_may_come_again() {
        for schedule in [Schedule::Fifo, Schedule::Shortest { age: Duration::ZERO }] {
            let mut order = ConnectionOrder::new(schedule);
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
