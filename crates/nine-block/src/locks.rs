//! Locks on ranges.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, lock};

/// Locked ranges, and waiting ones, in order of arrival. Their number is bounded by that of the operations in flight.
#[derive(Clone, Default)]
pub(crate) struct RangeLocks(Arc<Mutex<LockTable>>);

#[derive(Default)]
struct LockTable {
    next: u64,
    /// By ticket.
    ranges: BTreeMap<u64, LockedRange>,
}

struct LockedRange {
    from: u64,
    to: u64,
    /// Waiting ranges, by ticket. A range waits for the last overlapping one before it.
    behind: BTreeMap<u64, Waker>,
}

/// A position in the order, and the lock on its range. Dropping it unlocks the range.
pub(crate) struct RangeLock {
    locks: RangeLocks,
    ticket: u64,
}

/// Becomes [`RangeLock`] when no range before it overlaps.
pub(crate) struct LockWait(Option<RangeLock>);

impl RangeLocks {
    /// Locks the range `from..to`. The position in the order is taken at once.
    pub fn lock(&self, from: u64, to: u64) -> LockWait {
        LockWait(Some(self.hold(from, to)))
    }

    /// Takes a position in the order without waiting.
    pub fn hold(&self, from: u64, to: u64) -> RangeLock {
        let mut table = lock(&self.0);
        let ticket = table.next;
        table.next += 1;
        table.ranges.insert(ticket, LockedRange { from, to, behind: BTreeMap::new() });
        RangeLock { locks: self.clone(), ticket }
    }
}

impl Future for LockWait {
    type Output = RangeLock;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RangeLock> {
        let held = self.0.take().expect("not polled again after it was ready");
        let mut table = lock(&held.locks.0);
        let (from, to) = (table.ranges[&held.ticket].from, table.ranges[&held.ticket].to);
        let mut before = table.ranges.range_mut(..held.ticket).rev();
        if let Some((_, other)) = before.find(|(_, other)| other.from < to && from < other.to) {
            other.behind.insert(held.ticket, cx.waker().clone());
            drop(table);
            self.0 = Some(held);
            return Poll::Pending;
        }
        drop(table);
        Poll::Ready(held)
    }
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        let mut table = lock(&self.locks.0);
        let gone = table.ranges.remove(&self.ticket).expect("it is in the table until it is dropped");
        drop(table);
        gone.behind.into_values().for_each(Waker::wake);
    }
}

#[cfg(all(test, nine_loom))]
mod any_order {
    use loom::future::block_on;
    use loom::thread::spawn;

    use super::*;
    use crate::sync::check;

    /// Holds the lock alone, and counts that.
    fn hold(locks: &RangeLocks, from: u64, to: u64, inside: &Mutex<(bool, usize)>) {
        let held = block_on(locks.lock(from, to));
        assert!(!std::mem::replace(&mut lock(inside).0, true), "another has it");
        let mut inside = lock(inside);
        *inside = (false, inside.1 + 1);
        drop(inside);
        drop(held);
    }

    #[test]
    fn who_waits_for_a_range_gets_it_in_any_order() {
        check(|| {
            let (locks, inside) = (RangeLocks::default(), Arc::new(Mutex::new((false, 0))));
            let others = [(0, 2), (1, 3)].map(|(from, to)| {
                let (locks, inside) = (locks.clone(), inside.clone());
                spawn(move || hold(&locks, from, to, &inside))
            });
            hold(&locks, 1, 2, &inside);
            others.into_iter().for_each(|other| other.join().expect("it has not failed"));
            assert_eq!(lock(&inside).1, 3);
            assert!(lock(&locks.0).ranges.is_empty());
        });
    }

    /// A dropped position lets those behind it pass, and only those.
    #[test]
    fn who_gives_up_is_not_waited_for_in_any_order() {
        check(|| {
            let locks = RangeLocks::default();
            let first = locks.hold(0, 1);
            let (given_up, behind) = (locks.lock(0, 3), locks.lock(2, 3));
            let apart = locks.lock(3, 4);
            let gives_up = spawn(move || drop(given_up));
            let waits = spawn(move || drop(block_on(behind)));
            drop(block_on(apart));
            drop(first);
            gives_up.join().expect("it has not failed");
            waits.join().expect("it has not failed");
            assert!(lock(&locks.0).ranges.is_empty());
        });
    }
}
