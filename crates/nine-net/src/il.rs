//! il: messages between two ends, whole, in order and once, on datagrams (Plan 9's Internet Link; `docs/il.md`).
//!
//! In: messages of a process, datagrams, the time, a start id. Out: datagrams, messages, a deadline. [`Il`] is the
//! state machine of one conversation, without a clock or a socket; [`halves`] makes a module of it.
//!
//! Always holds: what a process is given was sent by the other one, in order, whole, once; a packet whose numbers are
//! not those of the conversation changes nothing; what waits in either direction is at most what the limits say.

mod machine;
mod module;
mod packet;
mod path;
#[cfg(test)]
mod tests;

pub use machine::{Il, Setup, State};
pub use module::halves;
pub use packet::{HEADER, Header, Kind, REJECT};
