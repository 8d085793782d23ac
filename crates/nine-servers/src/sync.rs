//! Threads, locks and condition variables: std's, or loom's in tests that explore every interleaving.

#[cfg(nine_loom)]
pub(crate) use loom::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle, current},
};
#[cfg(not(nine_loom))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle, current},
};
