//! Errors of the client as Python has them: `OSError` by number, and so its subclasses (`FileNotFoundError`, ...).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use nine_io::client::Error;
use pyo3::PyErr;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};

/// What an operation on `path` came to.
pub fn of(error: &Error, path: &[u8]) -> PyErr {
    let number = error.errno().0;
    let text = match error {
        // The path is said behind it.
        Error::Walk { error, .. } => error.to_string(),
        other => other.to_string(),
    };
    if path.is_empty() {
        return PyOSError::new_err((number, text));
    }
    PyOSError::new_err((number, text, OsString::from_vec(path.to_vec())))
}

/// As Python's own files say it.
pub fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("I/O operation on closed {what}"))
}

/// After a fork a connection is its maker's.
pub fn forked(maker: u32) -> PyErr {
    PyRuntimeError::new_err(format!(
        "this was made by process {maker}, before a fork: connect anew in each process"
    ))
}

/// Who asks for something while the interpreter ends would wait for ever.
pub fn ending() -> PyErr {
    PyRuntimeError::new_err("the interpreter is ending: no answer would come any more")
}

/// A stream has one reader or writer at a time.
pub fn busy() -> PyErr {
    PyRuntimeError::new_err("another thread, or a signal handler's caller, is using this stream")
}
