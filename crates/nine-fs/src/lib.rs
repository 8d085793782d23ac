//! The archive: Ken Thompson's cached-WORM file server, which survives a power cut at any instant (docs/disk.md).
//!
//! In: a cache device and a worm, 9P requests, the time. Out: files, and by date every dump of them.

#![forbid(unsafe_code)]

mod archive;
mod check;
mod commits;
mod console;
mod cw;
mod date;
mod dump;
mod follow;
mod forecast;
mod fs;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod grow;
mod hash;
mod item;
mod jobs;
pub mod lease;
mod live;
mod log;
mod memory;
mod ptr;
mod recover;
mod rounds;
mod scrub;
mod serve;
mod stats;
#[cfg(test)]
mod tests;
mod tree;
mod turns;
mod users;

pub use archive::{Archive, Ream, Settings, Wall};
pub use check::{Checked, Depth, Repaired};
pub use cw::Copied;
pub use dump::Dumped;
pub use grow::Grow;
pub use jobs::Driver;
pub use log::Log;
pub use recover::{Recover, Recovered};
pub use stats::Figure;
pub use turns::Turns;
