//! The integration tests of ninefold as one program, one module for each subject.

mod aoe;
mod blocking;
mod cec;
mod channels;
mod check;
mod coherence;
mod common;
mod config;
mod cons;
mod copy;
mod far;
mod fs;
mod guests;
mod http;
mod keys;
mod machine;
mod modules;
mod mount;
mod mux;
mod namespace;
mod net;
mod nodes;
mod part;
mod partition;
mod patience;
mod pipe;
mod resume;
mod serve;
mod shm;
mod srv;
mod store;
#[cfg(feature = "top")]
mod top;
mod verbs;
mod watch;
