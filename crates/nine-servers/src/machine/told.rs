//! A value set once, by any thread, and awaited by one task.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

pub(super) struct OnceSignal<T>(Mutex<(Option<T>, Option<Waker>)>);

impl<T> Default for OnceSignal<T> {
    fn default() -> Self {
        Self(Mutex::new((None, None)))
    }
}

impl<T: Copy> OnceSignal<T> {
    /// Sets the value. Only the first call counts.
    pub(super) fn tell(&self, word: T) {
        let mut state = self.state();
        state.0.get_or_insert(word);
        let waker = state.1.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns the value, if it is set.
    pub(super) fn get(&self) -> Option<T> {
        self.state().0
    }

    /// Returns when the value is set.
    pub(super) async fn heard(&self) -> T {
        poll_fn(|cx| {
            let mut state = self.state();
            if let Some(word) = state.0 {
                return Poll::Ready(word);
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn state(&self) -> MutexGuard<'_, (Option<T>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
