//! A worm whose sectors lie in the objects of a store that speaks S3 (docs/store.md); and [`Slate`], a small disk in
//! one object, for an arbiter.
//!
//! In: operations of a [`Device`](nine_block::Device). Out: objects that are put once, and read in parts.
//!
//! ```text
//! write -> gathered -> objects -> put    (a flush waits for all, and looks whether it may)
//! read  -> gathered, or map -> get
//! ```
//! Always holds: no object of sectors is ever replaced or removed; what a flush has answered is in every later listing;
//! who opens and reads changes nothing in the store. What comes from the store is judged before it is believed: names,
//! lengths and sums.

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
