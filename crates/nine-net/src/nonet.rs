//! nonet: Plan 9's reliable messages on a bare Ethernet (`docs/nonet.md`).
//!
//! In: packets of a link, messages of processes. Out: the same, the other way. [`Nonet`] is one end of a conversation,
//! a state machine without clock and link.

mod machine;
mod packet;

pub use machine::{Counts, HELD, MESSAGES, Nonet, RESEND_MAX, WITHHELD};
pub use packet::{HEADER, MESSAGE_MAX, Medium, reset};
