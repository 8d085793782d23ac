//! The integration tests of nine-sim as one program, with one module per subject.

mod aoe;
mod aoe_driver;
mod aoe_mirror;
mod archive;
mod called;
mod cec;
mod common;
mod conversation;
mod cores;
mod delay;
mod dialects;
mod direct;
mod host;
mod hostile;
mod il;
mod limits;
mod mux;
mod nonet;
mod others;
mod stream;
mod tree;
