//! Errors of calls: an errno and a text, kept for each thread until its next failure.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nine_io::client::Error;
use nine_proto::Errno;

/// The error of a call.
#[derive(Debug)]
pub struct Fail {
    errno: Errno,
    text: String,
}

impl Fail {
    pub fn new(errno: Errno, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }

    /// Prefixes the text with the object of the call, unless the text begins with it.
    pub fn on(self, what: &[u8]) -> Self {
        let what = String::from_utf8_lossy(what);
        if what.is_empty() || self.text.starts_with(&*what) {
            return self;
        }
        Self { text: format!("{what}: {}", self.text), ..self }
    }
}

impl From<Error> for Fail {
    fn from(error: Error) -> Self {
        let text = match &error {
            // The caller adds the path.
            Error::Walk { error, .. } => error.to_string(),
            other => other.to_string(),
        };
        Self { errno: error.errno(), text }
    }
}

impl From<io::Error> for Fail {
    fn from(error: io::Error) -> Self {
        let errno = match error.kind() {
            _ if error.raw_os_error().is_some() => Errno(error.raw_os_error().unwrap_or_default() as u32),
            io::ErrorKind::NotFound => Errno::ENOENT,
            io::ErrorKind::PermissionDenied => Errno::EACCES,
            io::ErrorKind::WouldBlock => Errno::EAGAIN,
            io::ErrorKind::InvalidInput => Errno::EINVAL,
            io::ErrorKind::InvalidData => Errno::EPROTO,
            io::ErrorKind::UnexpectedEof => Errno::ECONNRESET,
            io::ErrorKind::TimedOut => Errno::ETIMEDOUT,
            _ => Errno::EIO,
        };
        Self { errno, text: error.to_string() }
    }
}

thread_local! {
    static LAST: RefCell<(i32, CString)> = RefCell::default();
}

/// Runs `call` and returns its value. On an error, sets the thread's error and returns `failed`. A
/// panic is a bug of this library and counts as EIO.
pub fn answer<T>(failed: T, call: impl FnOnce() -> Result<T, Fail>) -> T {
    let fail = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(done)) => return done,
        Ok(Err(fail)) => fail,
        Err(panic) => Fail::new(Errno::EIO, format!("a bug in libninefold: {}", words(&*panic))),
    };
    let text = CString::new(fail.text.replace('\0', " ")).unwrap_or_default();
    // In a thread that is ending, no code can ask for the error.
    let _ = LAST.try_with(|last| *last.borrow_mut() = (fail.errno.0 as i32, text));
    failed
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}

/// Returns the errno of this thread's latest failure; 0 if there was none.
pub fn errno() -> i32 {
    LAST.try_with(|last| last.borrow().0).unwrap_or(0)
}

/// Returns the text of that failure, valid until this thread's next failure.
pub fn text() -> *const c_char {
    LAST.try_with(|last| last.borrow().1.as_ptr()).unwrap_or(c"".as_ptr())
}
