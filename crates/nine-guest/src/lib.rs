//! A 9P client for a program that shares memory with its host (docs/channels.md): a Linux process now, a machine
//! without an operating system as well.
//!
//! In: the memory of a channel, and a [`Line`], by which one waits. Out: the files of the host. Calls block, and
//! are not many at once: a thread that wants its own way gets its own channel. Data of some size goes through the
//! arena, which both sides see: copied there once, or made and used there without a copy ([`Buffer`]).
//!
//! Always holds:
//! - No answer is believed: it must be to what was asked, as long as was asked at most, and lie where it was told
//!   to. What breaks that ends the channel, and every call then says so until [`Client::reconnect`].
//! - Nothing of the arena is used again before the host has answered.
//! - A call that has waited longer than one's patience is flushed ([`Options::patience`]); what it used is free when
//!   the host has said so.
//! - What is dropped is given back: pages of the arena at once, fids when the client next walks.
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
