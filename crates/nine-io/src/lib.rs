//! Live 9P: the server framework, synthetic trees for it, change files, and (in `client`) the
//! [`Client`](client::Client) and its files.
//!
//! All code here depends on wakers only. A [`nine_net::Transport`] provides bytes, a [`nine_net::Env`] time and tasks.
//! These two decide whether a program runs for real or in a simulation.
#![forbid(unsafe_code)]

pub mod audit;
mod buf;
pub mod changes;
pub mod channel;
pub mod client;
mod direct;
pub mod frame9p;
pub mod limits;
pub mod near;
mod payload;
pub mod quote;
pub mod server;
mod sync;
pub mod synth;

pub use direct::{Called, Direct};
pub use payload::{Payload, Resident, shrunk};
