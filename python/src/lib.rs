//! The Python module `ninefold._native`: sessions with 9P servers, their files and streams.
//!
//! In: paths as bytes, buffers. Out: numbers, bytes, tuples; the Python package `ninefold` turns them into its public
//! objects. A session waits on the calling thread, without the interpreter's lock and open to signals. A session made
//! for asyncio has a thread of its own and returns futures (`wait`).
//!
//! Always holds: no input from a peer or a caller causes a panic; it causes an exception. An object from before a fork
//! is refused after it, and is not touched.

mod args;
mod ending;
mod error;
mod file;
mod session;
mod stream;
mod sys;
mod wait;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::file::Handle;
    #[pymodule_export]
    use crate::session::{Session, connect};
    #[pymodule_export]
    use crate::stream::Stream;
}
