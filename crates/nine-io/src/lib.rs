//! Live 9P: the server framework, synthetic trees for it, files of changes, and (in `client`) the
//! [`Client`](client::Client) and its files.
//!
//! Everything here depends on wakers only: a [`nine_net::Transport`] for bytes and a [`nine_net::Env`] for time and
//! tasks decide whether the world is real or simulated.
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
