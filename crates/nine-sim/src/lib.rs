//! Simulated worlds, each from one seed: an executor that picks the next ready task at random, a clock that jumps,
//! links that delay, limit and break. For tests only.
//!
//! Only [`delay`] uses the real clock and network, and [`s3`] a loopback socket. Elsewhere the same seed always gives
//! the same world. A world that cannot continue panics and prints its seed.
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
