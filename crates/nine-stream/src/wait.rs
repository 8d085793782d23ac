//! Who waits for a turn: wakers in the order in which they came.
//!
//! Always holds: a turn belongs to the first who waits; whoever leaves with it, or without it, says who is to be woken
//! next. So a waiter that goes away in the moment in which it is woken takes nobody's wake-up with it.

use alloc::collections::VecDeque;
use core::task::Waker;

/// A place in the list.
pub(crate) type Ticket = Option<u64>;

#[derive(Default)]
pub(crate) struct Waiters {
    waiting: VecDeque<(u64, Waker)>,
    next: u64,
}

impl Waiters {
    /// Whether it is the turn of this one: nobody came before.
    pub(crate) fn is_turn(&self, ticket: &Ticket) -> bool {
        self.waiting.front().is_none_or(|(first, _)| Some(*first) == *ticket)
    }

    /// Waits, at the end, or with a newer waker at the place it has.
    pub(crate) fn wait(&mut self, ticket: &mut Ticket, waker: &Waker) {
        if let Some(place) = self.waiting.iter_mut().find(|(place, _)| Some(*place) == *ticket) {
            place.1.clone_from(waker);
            return;
        }
        self.waiting.push_back((self.next, waker.clone()));
        *ticket = Some(self.next);
        self.next += 1;
    }

    /// Waits no more: whether it was the first, so that the next one is to be woken if there is something to have.
    pub(crate) fn leave(&mut self, ticket: &mut Ticket) -> bool {
        let Some(gone) = ticket.take() else { return false };
        let Some(at) = self.waiting.iter().position(|(place, _)| *place == gone) else { return false };
        self.waiting.remove(at);
        at == 0
    }

    /// Who is to be woken: the first keeps its place until it leaves.
    pub(crate) fn first(&self) -> Option<Waker> {
        self.waiting.front().map(|(_, waker)| waker.clone())
    }

    /// Everybody is to be woken, and nobody waits any more.
    pub(crate) fn all(&mut self) -> VecDeque<(u64, Waker)> {
        core::mem::take(&mut self.waiting)
    }
}

/// Wakes when nothing is locked any more.
pub(crate) fn wake(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}
