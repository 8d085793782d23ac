//! A 9P client for a program that shares memory with its host (docs/channels.md): a Linux process, or a machine
//! without an operating system.
//!
//! In: the memory of a channel, and a [`Line`], with which the client waits. Out: the files of the host. Calls block.
//! A client has one caller; threads that work in parallel get a channel each. Larger data goes through the arena,
//! which both sides see. It is copied there once, or used there without a copy ([`Buffer`]).
//!
//! Always holds:
//! - No answer is trusted. It must match the request, must not be longer than requested, and must be in the requested
//!   place. An answer that violates this ends the channel. Every later call then fails until [`Client::reconnect`].
//! - No part of the arena is reused before the host has answered.
//! - A call that waits longer than its timeout is flushed ([`Options::patience`]). Its resources are freed when the
//!   host has confirmed that.
//! - Dropping a value frees its resources: pages of the arena when the client next needs room, fids at the next walk.
//!
//! With the feature `linux`:
//! ```no_run
//! # #[cfg(feature = "linux")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use nine_guest::{OpenFlags, Process};
//!
//! let mut host = Process::inherited()?.client()?;
//! let root = host.attach("glenda", "")?;
//! let motd = host.open(&root, "lib/motd", OpenFlags::READ)?;
//! let mut text = [0; 1000];
//! let len = host.read(&motd, 0, &mut text)?;
//! # let _ = len;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "linux"))]
//! # fn main() {}
//! ```

#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

mod client;
mod conn;
mod flush;
mod line;
mod lot;
#[cfg(all(feature = "machine", target_arch = "x86_64"))]
pub mod machine;
mod partition;
#[cfg(feature = "linux")]
mod process;
mod space;
#[cfg(feature = "linux")]
mod sys;
mod transfer;
mod words;

pub use client::{Client, File, Metadata, Options};
pub use line::{Line, Wait};
pub use nine_proto::{Dialect, Dirent, Errno, Error, OpenFlags, Qid, Result};
pub use nine_ring::{Memory, Place};
pub use partition::{Clock, Input, Join, Last, OWN, Outcome, Output, Partition};
#[cfg(feature = "linux")]
pub use process::Process;
pub use space::{Entry, How, Opened, Shared, Space};
pub use transfer::Buffer;
