//! The lock: std's, loom's when a test explores every order of its takers, or one that spins where there is no std.

#[cfg(nine_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(all(feature = "std", not(nine_loom)))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(all(not(feature = "std"), not(nine_loom)))]
pub(crate) use spin::{Mutex, MutexGuard};

/// Locks. What a panicking thread left behind is as good as what it found: lists change in single steps.
#[cfg(any(feature = "std", nine_loom))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks.
#[cfg(all(not(feature = "std"), not(nine_loom)))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
