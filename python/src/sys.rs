//! Access to the memory of a caller's buffer while the interpreter runs other threads. No safe API offers that.

#![allow(unsafe_code)]

use std::slice;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

/// A buffer to read into: writable, contiguous, and pinned while this value lives.
pub struct Buffer(PyBuffer<u8>);

impl Buffer {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let view = PyMemoryView::from(object)?;
        if view.getattr(intern!(py, "readonly"))?.is_truthy()? {
            return Err(PyBufferError::new_err("a buffer to read into must be writable"));
        }
        // A view of bytes, whatever its items are. The cast fails if it is not contiguous.
        let view = view.call_method1(intern!(py, "cast"), (intern!(py, "B"),))?;
        Ok(Self(PyBuffer::get(&view)?))
    }

    /// Returns the whole buffer for writing.
    pub fn bytes(&mut self) -> &mut [u8] {
        let (start, len) = (self.0.buf_ptr().cast::<u8>(), self.0.len_bytes());
        if len == 0 {
            return &mut [];
        }
        // SAFETY: the exporter keeps `len` writable bytes at `start` while its buffer is held. `self` holds it (PEP
        // 3118: the exporter can neither move nor free the memory meanwhile), and `self` is borrowed as long as the
        // slice. Every value of a byte is valid. Python code on another thread may write there meanwhile, as it may
        // beside `socket.recv_into`; then it finds its own bytes or the received ones. We only write, and no decision
        // depends on the memory's content.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }
}
