//! CEC, the Ethernet console: a terminal on a bare Ethernet, as Coraid's appliances and Plan 9 have it (`docs/cec.md`).
//!
//! In: packets of a [`Link`](crate::nonet::Link), what is typed, what commands answer, the time. Out: packets, what
//! comes, the lines of who has logged in. [`Client`] and [`Server`] are state machines without clock and link;
//! [`call`], [`host`] and [`discover`] run them.
//!
//! Always holds: bytes come once and in order, or the conversation ends and says so; nobody has a line read who has not
//! shown the password; what waits anywhere is at most what the limits say.

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
