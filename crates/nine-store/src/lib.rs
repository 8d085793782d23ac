//! A worm device on an object store that speaks S3 (docs/store.md); and [`Slate`], a small rewritable disk in one
//! object, for an arbiter.
//!
//! In: operations of a [`Device`](nine_block::Device). Out: objects that are put once, and read in parts.
//!
//! ```text
//! write -> gathered -> objects -> put    (a flush waits for all, and looks whether it may)
//! read  -> gathered, or map -> get
//! ```
//! Always holds: no object with sectors is ever replaced or removed. Objects of a completed flush are in every later
//! listing. Opening and reading change nothing in the store. Names, lengths and sums from the store are checked before
//! use.

#![forbid(unsafe_code)]

mod again;
mod format;
mod gather;
mod map;
pub mod memory;
mod objects;
mod place;
#[cfg(feature = "s3")]
mod s3;
mod slate;
mod store;
#[cfg(test)]
mod tests;
mod turns;
mod write;

pub use again::Patience;
pub use objects::{Answer, Condition, Etag, Fault, Got, Listed, Objects, Rest, Swapped, swap};
pub use place::Place;
#[cfg(feature = "s3")]
pub use s3::S3;
pub use slate::Slate;
pub use store::{Options, Store};
