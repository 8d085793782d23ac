//! Ranges that are held against others.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, lock};

/// Ranges that are held, or waited for: who came first has it first. As many as there are operations under way.
#[derive(Clone, Default)]
pub(crate) struct Locks(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    next: u64,
    /// By ticket.
    ranges: BTreeMap<u64, Range>,
}

struct Range {
    from: u64,
    to: u64,
    /// Those that wait for this one, by ticket: of all before it that overlap, each waits for the last.
    behind: BTreeMap<u64, Waker>,
}

/// A place in the order; the range is free again when it is dropped.
pub(crate) struct Held {
    locks: Locks,
    ticket: u64,
}

/// Becomes [`Held`] when nobody before holds a part of it.
pub(crate) struct Wait(Option<Held>);

impl Locks {
    /// From a sector on, up to one that is not of it. The place in the order is taken now.
    pub fn lock(&self, from: u64, to: u64) -> Wait {
        Wait(Some(self.hold(from, to)))
    }

    /// Takes the place without waiting.
    pub fn hold(&self, from: u64, to: u64) -> Held {
        let mut table = lock(&self.0);
        let ticket = table.next;
        table.next += 1;
        table.ranges.insert(ticket, Range { from, to, behind: BTreeMap::new() });
        Held { locks: self.clone(), ticket }
    }
}

impl Future for Wait {
    type Output = Held;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Held> {
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

impl Drop for Held {
    fn drop(&mut self) {
        let mut table = lock(&self.locks.0);
        let gone = table.ranges.remove(&self.ticket).expect("it is in the table until it is dropped");
        drop(table);
        gone.behind.into_values().for_each(Waker::wake);
    }
}
