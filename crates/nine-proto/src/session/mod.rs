//! What a 9P session knows between messages, as two machines without I/O.
//!
//! [`server`] is told frames and answers and says what to serve and what to send; [`client`] is told calls and frames
//! and says who is answered.

pub mod client;
pub mod server;
