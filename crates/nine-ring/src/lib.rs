//! Channels in memory that two parties share (docs/channels.md). A channel has a header, two rings of lines, an arena
//! of pages, and flags that announce a sleeping side.
//!
//! In: memory, and bytes in pieces. Out: the same pieces at the other end. No std, runtime or system call is needed:
//! the caller waits and rings doorbells. The feature `linux` adds memory files and doorbells of processes.
//!
//! Always holds:
//! - Data from the other side is copied before it is checked. Invalid data yields a [`Fault`], and the other side loses
//!   only its own channel. Nothing that it writes causes a panic, an access outside the channel or an endless loop
//!   here.
//! - The reader gets each piece whole, in order, and once.
//! - A side that sleeps after [`End::may_sleep`] is woken for every later event.

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
