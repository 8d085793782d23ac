//! The client and the mux for programs in C (docs/c.md): `libninefold`, with `include/ninefold_client.h`.
//!
//! In: handles, which are numbers, texts and buffers of the caller's. Out: numbers, and what has failed as an errno and
//! a text of the calling thread's.
//!
//! Always holds: no panic leaves a call; a handle that is closed, of another kind, of before a fork, or nobody's, is
//! EBADF and nothing else; memory is the caller's on his side and ours on ours.
#![deny(unsafe_code)]

mod client;
mod fail;
mod mux;
mod stream;
mod sys;
mod table;
