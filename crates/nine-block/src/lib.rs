//! Perfect disks of numbered sectors, and what is made of them (the devices of Plan 9's file server, fs(8)).
//!
//! In: [`Device`]s of other rooms: host files, AoE, what a letter of an expression stands for. Out: the same trait
//! again. Nothing here knows files, a network, a runtime or a clock.
//!
//! ```text
//! expression -> tree -> letters -> devices
//!                                    | submit(Io)
//!                 cache -> mirror -> partition -> ... -> a disk
//! ```
//! Always holds: each [`Io`] ends once, whatever becomes of who has it; what is out of a device's range never reaches
//! what is below it.

#![forbid(unsafe_code)]

mod call;
mod device;
mod error;
mod ram;
mod sync;

pub use device::{Device, Done, Io, Op, SECTOR, Shape};
pub use error::{Error, Kind, Result};
pub use ram::Ram;
