//! Removal of an environment variable.

#![allow(unsafe_code)]

extern crate std;

/// Removes a variable, so that child processes do not inherit it.
pub(crate) fn forget_variable(name: &str) {
    // SAFETY: std's own access to the environment is behind a lock. A thread that reads it by other means violates
    // the documented condition of `Process::inherited`.
    unsafe { std::env::remove_var(name) }
}
