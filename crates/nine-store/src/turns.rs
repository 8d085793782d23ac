//! A fair semaphore: a number of permits, which waiting tasks get in order of arrival.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Locks a mutex, also after a panic: all tables change in single steps, so they are consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The semaphore.
#[derive(Clone)]
pub(crate) struct PermitPool(Arc<Mutex<PermitState>>);

struct PermitState {
    free: usize,
    next: u64,
    /// Waiting tasks; their number is bounded by that of the operations in flight.
    waiting: VecDeque<(u64, Waker)>,
}

/// A permit, held until it is dropped.
pub(crate) struct RequestPermit(PermitPool);

impl PermitPool {
    pub fn new(free: usize) -> Self {
        Self(Arc::new(Mutex::new(PermitState { free, next: 0, waiting: VecDeque::new() })))
    }

    /// Waits for a permit.
    pub async fn turn(&self) -> RequestPermit {
        let mut waits = PermitWait { turns: self, number: None };
        poll_fn(|cx| {
            let mut state = lock(&self.0);
            let is_first = |number| state.waiting.front().is_none_or(|(first, _)| Some(*first) == number);
            if state.free > 0 && is_first(waits.number) {
                state.free -= 1;
                if waits.number.take().is_some() {
                    state.waiting.pop_front();
                }
                let next = state.next_waker();
                drop(state);
                next.into_iter().for_each(Waker::wake);
                return Poll::Ready(());
            }
            match waits.number {
                Some(number) => {
                    let mine = state.waiting.iter_mut().find(|(other, _)| *other == number);
                    mine.into_iter().for_each(|(_, waker)| waker.clone_from(cx.waker()));
                }
                None => {
                    let number = state.next;
                    state.next += 1;
                    state.waiting.push_back((number, cx.waker().clone()));
                    waits.number = Some(number);
                }
            }
            Poll::Pending
        })
        .await;
        RequestPermit(self.clone())
    }
}

impl PermitState {
    fn next_waker(&self) -> Option<Waker> {
        let first = self.waiting.front().filter(|_| self.free > 0);
        first.map(|(_, waker)| waker.clone())
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let next = {
            let mut state = lock(&self.0.0);
            state.free += 1;
            state.next_waker()
        };
        next.into_iter().for_each(Waker::wake);
    }
}

/// A waiting task. If it is dropped, the next one is woken.
struct PermitWait<'a> {
    turns: &'a PermitPool,
    number: Option<u64>,
}

impl Drop for PermitWait<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let next = {
            let mut state = lock(&self.turns.0);
            state.waiting.retain(|(other, _)| *other != number);
            state.next_waker()
        };
        next.into_iter().for_each(Waker::wake);
    }
}
