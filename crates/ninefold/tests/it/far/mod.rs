//! Streams of the real server over a long link, and what goes wrong with them there: the faults that nine-sim's tests
//! `stream` play through with seeds, once each over sockets, with the command or the client of nine-io.
//!
//! The link is a delay box. Where this host makes none, the same tests run over a relay, which is said: nothing is lost
//! or overtaken there, and connections open at once.
//!
//! That an offer is void after ten seconds is left to the simulation: nothing shortens them, and no test waits so long.

mod cuts;
mod files;
mod gate;
mod roads;
mod site;
mod talk;
mod tokens;
