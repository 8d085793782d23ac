//! The words that both sides see: core's atomics, or those of a checker that tries every order of them.

#[cfg(not(all(test, any(nine_loom, nine_shuttle))))]
pub(crate) use core::sync::atomic::{AtomicU32, Ordering};
#[cfg(all(test, nine_loom))]
pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(all(test, nine_shuttle))]
pub(crate) use shuttle::sync::atomic::{AtomicU32, Ordering};
