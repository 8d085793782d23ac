//! The memory of a caller's buffer, which is written while the interpreter runs others: that nothing safe hands out.

#![allow(unsafe_code)]

use std::slice;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

/// A buffer that is read into: writable, in one piece, and held in its place while this lives.
pub struct Buffer(PyBuffer<u8>);

impl Buffer {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let view = PyMemoryView::from(object)?;
        if view.getattr(intern!(py, "readonly"))?.is_truthy()? {
            return Err(PyBufferError::new_err("a buffer to read into must be writable"));
        }
        // Bytes, whatever it is of; refused where they do not lie in one piece.
        let view = view.call_method1(intern!(py, "cast"), (intern!(py, "B"),))?;
        Ok(Self(PyBuffer::get(&view)?))
    }

    /// All of it, to be written.
    pub fn bytes(&mut self) -> &mut [u8] {
        let (start, len) = (self.0.buf_ptr().cast::<u8>(), self.0.len_bytes());
        if len == 0 {
            return &mut [];
        }
        // SAFETY: the exporter keeps `len` writable bytes at `start` as long as its buffer is held, which it is by
        // `self` (PEP 3118: who has given it out can neither move nor free it), and `self` is borrowed as long as this
        // is. Every value of a byte is one. Python code on another thread may write there meanwhile, as it may beside
        // `socket.recv_into`: then it finds its own bytes or those that have come. We only write, and decide nothing by
        // what stands there.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }
}
