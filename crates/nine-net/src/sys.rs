//! The one place of unsafe code in this crate: calls whose contract the compiler cannot check.
//!
//! In: an owned socket. Out: its registration with the runtime of this thread.
#![allow(unsafe_code)]

use std::io;

use socket2::Socket;

use crate::socket::AsyncFd;

/// Registers `socket` with the runtime of this thread, for reading and writing.
///
/// # Panics
/// Outside a runtime.
pub(crate) fn register(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    // SAFETY: the `AsyncFd` owns the socket, whose descriptor stays open and the same until it is dropped: a
    // `Socket` never changes its descriptor, and this crate never takes a `&mut Socket` out of an `AsyncFd`.
    unsafe { AsyncFd::register(socket) }.map_err(io::Error::from)
}
