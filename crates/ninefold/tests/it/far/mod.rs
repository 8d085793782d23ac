//! Streams of the real server over a long link, and their failures. These are the faults that nine-sim's tests `stream`
//! simulate with many seeds. Here each occurs once over sockets, with the command or the client of nine-io.
//!
//! The link is a delay box. If this machine cannot create one, the same tests run over a relay, with a note: there
//! nothing is lost or reordered, and connections open at once.
//!
//! The expiry of an offer after ten seconds is left to the simulation, because no test should wait so long.

mod cuts;
mod files;
mod gate;
mod roads;
mod site;
mod talk;
mod tokens;
