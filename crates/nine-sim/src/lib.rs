//! A world from one seed: an executor that picks the next ready task by chance, a clock that jumps, links that delay,
//! cut and break. For tests only.
//!
//! Nothing here but [`delay`] looks at the real clock or the real network: the same seed is the same world, always. A
//! world in which nothing can happen any more stops with its seed.
#![deny(unsafe_code)]

mod datagrams;
pub mod delay;
pub mod disk;
pub mod ether;
mod host;
mod link;
mod rng;
pub mod s3;
mod world;

pub use datagrams::{Datagrams, Weather, Wire};
pub use host::{Faulty, Plan};
pub use link::{End, Links, Shape, link};
pub use rng::Rng;
pub use world::{SimEnv, World, seeds, tries_all};
