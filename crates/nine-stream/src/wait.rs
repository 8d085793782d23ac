//! A queue of waiters: their wakers in the order of arrival.
//!
//! In: waiters that arrive and leave. Out: the waker of the next one. Always holds: only the first waiter may proceed.
//! When it leaves, with or without success, the caller wakes the next one. So a waiter that is dropped at the moment of
//! its wake-up does not lose the wake-up for others.

use alloc::collections::VecDeque;
use core::task::Waker;

/// A place in the queue.
pub(crate) type QueueTicket = Option<u64>;

#[derive(Default)]
pub(crate) struct WaiterQueue {
    waiting: VecDeque<(u64, Waker)>,
    next: u64,
}

impl WaiterQueue {
    /// Whether this waiter may proceed: none is before it.
    pub(crate) fn is_turn(&self, ticket: &QueueTicket) -> bool {
        self.waiting.front().is_none_or(|(first, _)| Some(*first) == *ticket)
    }

    /// Enters at the end of the queue, or updates the waker of the waiter's place.
    pub(crate) fn wait(&mut self, ticket: &mut QueueTicket, waker: &Waker) {
        if let Some(place) = self.waiting.iter_mut().find(|(place, _)| Some(*place) == *ticket) {
            place.1.clone_from(waker);
            return;
        }
        self.waiting.push_back((self.next, waker.clone()));
        *ticket = Some(self.next);
        self.next += 1;
    }

    /// Leaves the queue. Returns whether the waiter was the first. The caller must then wake the next one, if it can
    /// proceed.
    pub(crate) fn leave(&mut self, ticket: &mut QueueTicket) -> bool {
        let Some(gone) = ticket.take() else { return false };
        let Some(at) = self.waiting.iter().position(|(place, _)| *place == gone) else { return false };
        self.waiting.remove(at);
        at == 0
    }

    /// Returns the waker of the first waiter, which keeps its place until it leaves.
    pub(crate) fn first(&self) -> Option<Waker> {
        self.waiting.front().map(|(_, waker)| waker.clone())
    }

    /// Removes and returns all waiters. The caller must wake them.
    pub(crate) fn all(&mut self) -> VecDeque<(u64, Waker)> {
        core::mem::take(&mut self.waiting)
    }
}

/// Wakes the wakers. Call it without holding a lock.
pub(crate) fn wake(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}
