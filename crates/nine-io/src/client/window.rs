//! Several futures under way, taken in the order they were begun.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// See the module. Whoever fills it bounds it. Polling drives all of them, for each is sent by its first poll and
/// may have to wait for room after that.
pub(crate) struct Window<F: Future> {
    slots: VecDeque<Slot<F>>,
}

enum Slot<F: Future> {
    Running(F),
    Done(F::Output),
}

impl<F: Future + Unpin> Window<F> {
    pub(crate) fn new() -> Self {
        Self { slots: VecDeque::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn push_back(&mut self, future: F) {
        self.slots.push_back(Slot::Running(future));
    }

    /// Goes before all others.
    pub(crate) fn push_front(&mut self, future: F) {
        self.slots.push_front(Slot::Running(future));
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
    }

    /// The output of the oldest; `None` when there is none under way.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        for slot in &mut self.slots {
            if let Slot::Running(future) = slot
                && let Poll::Ready(output) = Pin::new(future).poll(cx)
            {
                *slot = Slot::Done(output);
            }
        }
        match self.slots.pop_front() {
            None => Poll::Ready(None),
            Some(Slot::Done(output)) => Poll::Ready(Some(output)),
            Some(running) => {
                self.slots.push_front(running);
                Poll::Pending
            }
        }
    }
}
