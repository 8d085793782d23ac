//! Conversion of arguments and results: immutable data without a copy, attributes as tuples.

use bytes::Bytes;
use nine_proto::{Attr, Time};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyMemoryView};

/// Converts data to write. `bytes` are used in place; any other object is copied, because it may change meanwhile.
pub fn data(from: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    if let Ok(bytes) = from.cast::<PyBytes>() {
        return Ok(Bytes::from_owner(PyBackedBytes::from(bytes.clone())));
    }
    // Accept items of any number type, as `bytes(memoryview(x))` does.
    let (py, view) = (from.py(), PyMemoryView::from(from)?);
    if !view.getattr(intern!(py, "c_contiguous"))?.is_truthy()? {
        return Err(PyBufferError::new_err("what is written must lie in one piece"));
    }
    let view = view.call_method1(intern!(py, "cast"), (intern!(py, "B"),))?;
    Ok(Bytes::from(PyBuffer::<u8>::get(&view)?.to_vec(py)?))
}

/// mode, ino, nlink, uid, gid, size, then atime, mtime and ctime in nanoseconds, blksize, blocks, rdev.
pub type Stat = (u32, u64, u64, u32, u32, u64, (i128, i128, i128), u64, u64, u64);

/// Converts attributes for `os.stat_result`.
pub fn stat(attr: &Attr) -> Stat {
    let ns = |time: Time| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
    (
        attr.mode,
        attr.qid.path,
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.size,
        (ns(attr.atime), ns(attr.mtime), ns(attr.ctime)),
        attr.blksize,
        attr.blocks,
        attr.rdev,
    )
}
