//! Locks: std's, or loom's when a test explores every order of them.

use std::sync::PoisonError;

#[cfg(nine_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(nine_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Tries a test in every order of what it does, with at most three threads taken off a processor against their will.
#[cfg(all(test, nine_loom))]
pub(crate) fn check(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.max_branches = 10_000;
    model.check(test);
}

/// Locks. What a panicking thread left behind is as good as what it found: tables change in single steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
