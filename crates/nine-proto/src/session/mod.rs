//! The state of a 9P session between messages, as two state machines without I/O.
//!
//! [`server`] takes frames and the file server's replies, and yields requests to serve and bytes to send. [`client`]
//! takes calls and frames, and yields the call that each reply belongs to.

pub mod client;
pub mod server;
