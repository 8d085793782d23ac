//! The mutex: that of std, of loom in tests that explore all lock orders, or a spin lock without std.

#[cfg(nine_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(all(feature = "std", not(nine_loom)))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(all(not(feature = "std"), not(nine_loom)))]
pub(crate) use spin::{Mutex, MutexGuard};

/// Locks the mutex. The state of a panicked thread is usable: lists change in single steps.
#[cfg(any(feature = "std", nine_loom))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks the mutex.
#[cfg(all(not(feature = "std"), not(nine_loom)))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
