//! The locks and atomics that wake-ups are made of: std's, or loom's when a test explores every order of them.

pub(crate) use nine_net::lock::{Mutex, lock};

#[cfg(nine_loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize};
#[cfg(not(nine_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize};
