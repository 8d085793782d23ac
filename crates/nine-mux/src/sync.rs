//! The locks that wake-ups are made of: std's, or loom's when a test explores every order of them.

#[cfg(nine_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(nine_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Locks; what a panicking thread left behind is as good as what it found.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
