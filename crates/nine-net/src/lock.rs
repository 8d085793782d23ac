//! Locks and conditions: std's, or loom's when a test explores all interleavings. Also records which locks a piece of
//! code takes.

use std::sync::PoisonError;

#[cfg(nine_loom)]
pub use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(nine_loom))]
pub use std::sync::{Condvar, Mutex, MutexGuard};

/// Locks, and ignores poisoning. Tables change in single steps, so a panic leaves them consistent.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(debug_assertions)]
    seen::note(std::ptr::from_ref(mutex).addr());
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records the locks taken, for tests. Only in builds with debug assertions.
#[cfg(debug_assertions)]
pub mod seen {
    use std::cell::RefCell;

    thread_local! {
        static TAKEN: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
    }

    pub(super) fn note(lock: usize) {
        // A thread that is ending may have destroyed the record already.
        let _ = TAKEN.try_with(|taken| {
            if let Some(taken) = &mut *taken.borrow_mut() {
                taken.push(lock);
            }
        });
    }

    /// Starts to record the locks of this thread.
    pub fn begin() {
        TAKEN.set(Some(Vec::new()));
    }

    /// Stops recording. Returns the addresses of the locks taken, in order.
    pub fn end() -> Vec<usize> {
        TAKEN.take().unwrap_or_default()
    }
}
