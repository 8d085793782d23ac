//! Locks and conditions: std's, or loom's when a test explores every order of them; and which locks a piece of work
//! takes.

use std::sync::PoisonError;

#[cfg(nine_loom)]
pub use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(nine_loom))]
pub use std::sync::{Condvar, Mutex, MutexGuard};

/// Locks. What a panicking thread left behind is as good as what it found: tables change in single steps.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(debug_assertions)]
    seen::note(std::ptr::from_ref(mutex).addr());
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What tests ask: which locks are taken. Builds without debug assertions do not have it.
#[cfg(debug_assertions)]
pub mod seen {
    use std::cell::RefCell;

    thread_local! {
        static TAKEN: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
    }

    pub(super) fn note(lock: usize) {
        // A thread that ends may have let go of it already.
        let _ = TAKEN.try_with(|taken| {
            if let Some(taken) = &mut *taken.borrow_mut() {
                taken.push(lock);
            }
        });
    }

    /// From now on the locks of this thread are written down.
    pub fn begin() {
        TAKEN.set(Some(Vec::new()));
    }

    /// Those that this thread has taken since, by address, in order.
    pub fn end() -> Vec<usize> {
        TAKEN.take().unwrap_or_default()
    }
}
