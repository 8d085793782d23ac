//! Taking a variable of the environment away.

#![allow(unsafe_code)]

extern crate std;

/// A program that this one starts does not have it.
pub(crate) fn forget_variable(name: &str) {
    // SAFETY: std's own access to the environment is behind a lock. Who reads it by other means in another thread
    // does so against the word of `Process::inherited`.
    unsafe { std::env::remove_var(name) }
}
