//! What sleeping and waking is made of: std's, or loom's when a test explores every order of it.

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
