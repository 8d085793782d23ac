//! The 9P conformance suite: tests any server over the wire, in every dialect it offers.
//!
//! In: a way to dial the server ([`Dial`]), time and timers ([`nine_net::Env`]), [`Options`]. Out: a [`Report`] for
//! each case, then a [`Summary`]; or [`Unusable`], if there is no 9P server at the other end.
//!
//! Always holds: each case quotes the sentence of the manual page that it proves. It uses connections of its own,
//! message by message, and ends within its time limit for any behaviour of the server. Cases that are not run are
//! reported with the reason.
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
