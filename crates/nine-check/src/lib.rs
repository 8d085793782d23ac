//! The 9P conformance suite: judges any server over the wire, in every dialect it offers.
//!
//! In: a way to dial the server ([`Dial`]), time and timers ([`nine_net::Env`]), [`Options`]. Out: a [`Report`] for
//! each case, then a [`Summary`]; or [`Unusable`], if there is nothing at the other end that speaks 9P.
//!
//! Always holds: a case says which sentence of which manual page it proves; it speaks on connections of its own,
//! message by message, and ends within its time limit whatever the server does; what is not run is said, with the
//! reason.
#![forbid(unsafe_code)]

mod case;
mod cases;
mod conn;
mod run;
mod scene;
mod talk;

pub use case::{Case, Needs, Outcome, Speaks};
pub use cases::all;
pub use run::{Dial, Dialling, Options, Report, Summary, Tally, Unusable, check, chosen};
