//! CEC, the Ethernet console: a terminal on a bare Ethernet, as in Coraid's appliances and Plan 9 (`docs/cec.md`).
//!
//! In: packets of a [`Link`](crate::nonet::Link), typed input, output of commands, the time. Out: packets, received
//! output, the lines of logged-in users. [`Client`] and [`Server`] are state machines without clock and link; [`call`],
//! [`host`] and [`discover`] run them.
//!
//! Always holds: bytes arrive once and in order, or the connection ends with an error. A line is read only after the
//! password. All queues have limits.

mod client;
mod driver;
mod frame;
mod guard;
mod line;
mod server;
mod talk;
#[cfg(test)]
mod tests;

pub use client::{Client, End, INBOX, WAITING};
pub use driver::{Call, CallDriver, Found, Host, HostDriver, call, discover, host};
pub use frame::{DATA_MAX, ETHER_TYPE, Frame, HEADER, Kind, Offer};
pub use server::{ANSWER_MAX, CONVERSATIONS, Event, Id, PER_CARD, PROMPT, Password, Server, Setup, Why};
