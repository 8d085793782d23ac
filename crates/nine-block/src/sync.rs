//! Locks: std's, or loom's when a test explores every order of them.

use std::sync::PoisonError;

#[cfg(nine_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(nine_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Locks. What a panicking thread left behind is as good as what it found: tables change in single steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
