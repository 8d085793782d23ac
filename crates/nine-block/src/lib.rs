//! Block devices of numbered sectors, and devices made of other devices (those of Plan 9's file server, fs(8)).
//!
//! In: [`Device`]s of other crates: files of the host, AoE disks, any device that a letter of an expression names. Out:
//! the same trait. Nothing here knows files, a network, a runtime or a clock.
//!
//! ```text
//! expression -> tree -> letters -> devices
//!                                    | submit(Io)
//!                 cache -> mirror -> partition -> ... -> a disk
//! ```
//! Always holds: each [`Io`] ends exactly once, even if it is dropped. An operation out of a device's range never
//! reaches the devices below.

#![forbid(unsafe_code)]

mod bits;
mod cache;
mod call;
pub mod conform;
mod device;
mod error;
mod expr;
mod growing;
mod guard;
mod join;
mod locks;
mod mirror;
mod moving;
mod owner;
mod part;
mod plain;
mod ram;
mod sync;
mod task;
mod whole;
mod worm;

pub use bits::Bits;
pub use cache::{Ahead, Cache, Cached, Options, Stats};
pub use call::Call;
pub use device::{Device, Done, Io, Op, Proof, SECTOR, Shape};
pub use error::{Error, Kind, Result};
pub use expr::{
    Arg, Built, DEPTH_MOST, DEVICES_MOST, Driver, How, Making, OpenMirrors, TEXT_MOST, Table, Tree, What,
    Wrong, parse,
};
pub use growing::Growing;
pub use guard::{Guard, Now, Right};
pub use join::{Concat, Interleave};
pub use mirror::{Bare, Event, Happening, MEMBERS_MOST, Mirror, Pause, Place, Rest, Start, Told, Watched};
pub use moving::Moving;
pub use owner::SectorOwner;
pub use part::Part;
pub use plain::{Nothing, ReadOnly};
pub use ram::Ram;
pub use task::Tasks;
pub use worm::{BLOCKS_MOST, FakeWorm};
