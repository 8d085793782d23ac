//! Locks: those of std, or of loom when a test explores all interleavings.

use std::sync::PoisonError;

#[cfg(nine_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(nine_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Runs a test in all interleavings with at most three preemptions.
#[cfg(all(test, nine_loom))]
pub(crate) fn check(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.max_branches = 10_000;
    model.check(test);
}

/// Locks a mutex, also after a panic: tables change in single steps, so they are consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
