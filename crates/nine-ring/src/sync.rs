//! The atomics for words that both sides access: those of core, or those of a checker that explores their orders.

#[cfg(not(all(test, any(nine_loom, nine_shuttle))))]
pub(crate) use core::sync::atomic::{AtomicU32, Ordering};
#[cfg(all(test, nine_loom))]
pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(all(test, nine_shuttle))]
pub(crate) use shuttle::sync::atomic::{AtomicU32, Ordering};
