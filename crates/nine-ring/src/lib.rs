//! Channels through memory that two parties see (docs/channels.md): a header, two rings of lines, an arena of pages,
//! and the words by which nobody sleeps through anything.
//!
//! In: memory, and bytes in pieces. Out: the same pieces at the other end. No std, no runtime and no system call: who
//! waits and how a bell is rung is the caller's; with the feature `linux` here are a process' memory files and bells.
//!
//! Always holds:
//! - What the other side has written is copied before it is looked at. Whatever it writes, it gets a [`Fault`] and ends
//!   its own channel; nothing here panics, reads or writes outside the channel, or goes round for ever by it.
//! - A piece is seen whole or not at all, in order, once.
//! - Who sleeps by [`End::may_sleep`] is rung for whatever comes after it.

#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

mod arena;
mod end;
#[cfg(all(feature = "fuzz", not(all(test, any(nine_loom, nine_shuttle)))))]
pub mod fuzz;
mod layout;
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
pub mod linux;
mod ring;
mod sync;
mod sys;
#[cfg(test)]
mod tests;

pub use arena::{Arena, Gauge};
pub use end::{End, Guest, Life, Watch};
pub use layout::{Bad, Kind, Layout, MAGIC, PAGE, Place};
pub use ring::{Fault, MOST, Note, Piece, Reader, Writer};
pub use sys::Memory;
#[cfg(not(all(test, any(nine_loom, nine_shuttle))))]
pub use sys::Owner;
