//! Client errors as Python exceptions: `OSError` with an errno, and thus its subclasses (`FileNotFoundError`, ...).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use nine_io::client::Error;
use pyo3::PyErr;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};

/// Converts the error of an operation on `path`.
pub fn of(error: &Error, path: &[u8]) -> PyErr {
    let number = error.errno().0;
    let text = match error {
        // The path is a separate argument of the exception.
        Error::Walk { error, .. } => error.to_string(),
        other => other.to_string(),
    };
    if path.is_empty() {
        return PyOSError::new_err((number, text));
    }
    PyOSError::new_err((number, text, OsString::from_vec(path.to_vec())))
}

/// The error for a closed object, with the text of Python's own files.
pub fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("I/O operation on closed {what}"))
}

/// The error after a fork: a connection belongs to the process that made it.
pub fn forked(maker: u32) -> PyErr {
    PyRuntimeError::new_err(format!(
        "this was made by process {maker}, before a fork: connect anew in each process"
    ))
}

/// The error for a call while the interpreter ends: it would wait forever.
pub fn ending() -> PyErr {
    PyRuntimeError::new_err("the interpreter is ending: no answer would come any more")
}

/// The error for a stream in use: it has one reader or writer at a time.
pub fn busy() -> PyErr {
    PyRuntimeError::new_err("another thread, or a signal handler's caller, is using this stream")
}
