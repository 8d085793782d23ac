//! The client and the mux for programs in C (docs/c.md): `libninefold`, with `include/ninefold_client.h`.
//!
//! In: handles (numbers), texts and buffers of the caller. Out: numbers; errors as an errno and a text of the calling
//! thread.
//!
//! Always holds: no panic leaves a call. A handle that is closed, of another kind, from before a fork, or invalid gives
//! EBADF and has no other effect. The caller owns the memory on its side, and this library the memory on its own.
#![deny(unsafe_code)]

mod client;
mod fail;
mod mux;
mod stream;
mod sys;
mod table;
