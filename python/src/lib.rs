//! The Python module `ninefold._native`: sessions with 9P servers, their files and streams.
//!
//! In: paths as bytes, buffers. Out: numbers, bytes, tuples; `ninefold`, in Python, makes of them what its users see. A
//! session waits on the thread that calls, without the interpreter's lock and open to signals; or, made for asyncio, it
//! has a thread of its own and answers with futures (`wait`).
//!
//! Always holds: whatever a peer or a caller does is an exception here, and never a panic; what was made before a fork
//! is refused after it, and not touched.

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
