//! The locks and atomics behind wake-ups: std's, or loom's when a test explores every interleaving.

pub(crate) use nine_net::lock::{Mutex, lock};

#[cfg(nine_loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize};
#[cfg(not(nine_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize};
