//! il: messages between two ends, whole, in order and once, over datagrams (Plan 9's Internet Link; `docs/il.md`).
//!
//! In: messages of a process, datagrams, the time, a start id. Out: datagrams, messages, a deadline. [`Il`] is the
//! state machine of one connection, without a clock or a socket; [`halves`] makes a module of it.
//!
//! Always holds: a process receives only messages that the other one sent, in order, whole, once. A packet with numbers
//! outside the connection's windows changes nothing. The queues of both directions have limits.

mod machine;
mod module;
mod packet;
mod path;
#[cfg(test)]
mod tests;

pub use machine::{Il, Setup, State};
pub use module::halves;
pub use packet::{HEADER, Header, Kind, REJECT};
