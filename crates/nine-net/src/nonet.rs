//! nonet: Plan 9's reliable messages on a bare Ethernet (`docs/nonet.md`).
//!
//! In: packets of a [`Link`] (an [`Ether`](crate::ether::Ether)), services and addresses. Out: [`Call`]s, which are
//! streams of messages and transports. [`Nonet`] is one end of a call, a state machine without clock and link;
//! [`halves`] makes a module of it; [`port`] runs many calls on one link.

mod call;
mod machine;
mod module;
mod packet;
mod port;

pub use call::Call;
pub use machine::{Counts, HELD, MESSAGES, Nonet, RESEND_MAX, WITHHELD};
pub use module::halves;
pub use packet::{HEADER, MESSAGE_MAX, Medium, reset};
pub use port::{Announced, Driver, Limits, Link, NAME_MAX, Port, port};
