//! One error type for all dialects: an errno and, if it says more than the errno's own text, a text.
//!
//! One table serves both directions. Clients of .L and .u get the number and clients of 9P2000 the text. The same table
//! recognises the error texts of 9P2000 servers. The text of an upstream server is preserved.

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;

/// The result of a file operation.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// A Linux error number (the wire's `ecode[4]`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub u32);

/// The error of a failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The number for .u and .L clients.
    pub errno: Errno,
    text: Option<Box<str>>,
}

impl Error {
    /// Creates an error with a text that is more precise than that of its number.
    pub fn new(errno: Errno, text: impl Into<String>) -> Self {
        Self { errno, text: Some(text.into().into_boxed_str()) }
    }

    /// Creates the error for a text that a peer sent, and preserves the text.
    pub fn from_text(text: &str) -> Self {
        Self::new(Errno::from_text(text), text)
    }

    /// Returns the error text for a 9P2000 client.
    pub fn ename(&self) -> &str {
        self.text.as_deref().unwrap_or_else(|| self.errno.text())
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self { errno, text: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.ename())
    }
}

impl core::error::Error for Error {}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

macro_rules! errnos {
    ($($name:ident $number:literal $text:literal)*) => {
        #[allow(missing_docs, reason = "the names of errno(3)")]
        impl Errno {
            $(pub const $name: Self = Self($number);)*

            /// Returns the text of strerror(3), which the Linux client's table knows. A number that errno(3) does not
            /// have yields "unknown error": "I/O error N" would need an allocation.
            pub fn text(self) -> &'static str {
                match self.0 {
                    $($number => $text,)*
                    _ => "unknown error",
                }
            }

            fn from_own_text(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$name),)*
                    _ => None,
                }
            }
        }

        impl fmt::Debug for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($number => f.write_str(stringify!($name)),)*
                    n => write!(f, "errno {n}"),
                }
            }
        }

        #[cfg(test)]
        const ALL: &[Errno] = &[$(Errno::$name),*];
    };
}

errnos! {
    EPERM 1 "Operation not permitted"
    ENOENT 2 "No such file or directory"
    ESRCH 3 "No such process"
    EINTR 4 "Interrupted system call"
    EIO 5 "Input/output error"
    ENXIO 6 "No such device or address"
    E2BIG 7 "Argument list too long"
    ENOEXEC 8 "Exec format error"
    EBADF 9 "Bad file descriptor"
    EAGAIN 11 "Resource temporarily unavailable"
    ENOMEM 12 "Cannot allocate memory"
    EACCES 13 "Permission denied"
    EFAULT 14 "Bad address"
    EBUSY 16 "Device or resource busy"
    EEXIST 17 "File exists"
    EXDEV 18 "Invalid cross-device link"
    ENODEV 19 "No such device"
    ENOTDIR 20 "Not a directory"
    EISDIR 21 "Is a directory"
    EINVAL 22 "Invalid argument"
    ENFILE 23 "Too many open files in system"
    EMFILE 24 "Too many open files"
    ENOTTY 25 "Inappropriate ioctl for device"
    ETXTBSY 26 "Text file busy"
    EFBIG 27 "File too large"
    ENOSPC 28 "No space left on device"
    ESPIPE 29 "Illegal seek"
    EROFS 30 "Read-only file system"
    EMLINK 31 "Too many links"
    EPIPE 32 "Broken pipe"
    ERANGE 34 "Numerical result out of range"
    EDEADLK 35 "Resource deadlock avoided"
    ENAMETOOLONG 36 "File name too long"
    ENOLCK 37 "No locks available"
    ENOSYS 38 "Function not implemented"
    ENOTEMPTY 39 "Directory not empty"
    ELOOP 40 "Too many levels of symbolic links"
    ENODATA 61 "No data available"
    EPROTO 71 "Protocol error"
    EOVERFLOW 75 "Value too large for defined data type"
    EOPNOTSUPP 95 "Operation not supported"
    EADDRINUSE 98 "Address already in use"
    EADDRNOTAVAIL 99 "Cannot assign requested address"
    ENETUNREACH 101 "Network is unreachable"
    ECONNABORTED 103 "Software caused connection abort"
    ECONNRESET 104 "Connection reset by peer"
    ENOBUFS 105 "No buffer space available"
    ENOTCONN 107 "Transport endpoint is not connected"
    ETIMEDOUT 110 "Connection timed out"
    ECONNREFUSED 111 "Connection refused"
    EHOSTUNREACH 113 "No route to host"
    ESTALE 116 "Stale file handle"
    EDQUOT 122 "Disk quota exceeded"
    ECANCELED 125 "Operation canceled"
}

/// Error phrases of Plan 9 servers (lib9p, the kernel, Ken's file server) and their numbers. If a phrase contains
/// another one, the longer stands first. They are searched in the lower-cased text.
const PLAN9: &[(&str, Errno)] = &[
    ("file not found", Errno::ENOENT),
    ("does not exist", Errno::ENOENT),
    ("no such file", Errno::ENOENT),
    ("directory entry not found", Errno::ENOENT),
    ("phase error", Errno::ESTALE),
    ("already exists", Errno::EEXIST),
    ("file exists", Errno::EEXIST),
    ("permission denied", Errno::EACCES),
    ("create prohibited", Errno::EACCES),
    ("mounted directory forbids creation", Errno::EACCES),
    ("not owner", Errno::EPERM),
    ("unknown fid", Errno::EBADF),
    ("fid unknown", Errno::EBADF),
    ("duplicate fid", Errno::EBUSY),
    ("fid in use", Errno::EBUSY),
    ("file is locked", Errno::EBUSY),
    ("file in use", Errno::EBUSY),
    ("exclusive use", Errno::EBUSY),
    ("connection in use", Errno::EBUSY),
    ("not connected", Errno::ENOTCONN),
    ("not announced", Errno::EINVAL),
    ("control request", Errno::EINVAL),
    ("is a mount point", Errno::EBUSY),
    ("bad offset", Errno::EINVAL),
    ("not empty", Errno::ENOTEMPTY),
    ("walk in non-directory", Errno::ENOTDIR),
    ("not a directory", Errno::ENOTDIR),
    ("is a directory", Errno::EISDIR),
    ("read only", Errno::EROFS),
    ("read-only", Errno::EROFS),
    ("file system full", Errno::ENOSPC),
    ("no space", Errno::ENOSPC),
    ("name too long", Errno::ENAMETOOLONG),
    ("interrupted", Errno::EINTR),
    ("hungup", Errno::EPIPE),
    ("botch", Errno::EPROTO),
    ("not implemented", Errno::ENOSYS),
    ("not supported", Errno::EOPNOTSUPP),
    ("connection refused", Errno::ECONNREFUSED),
    ("timed out", Errno::ETIMEDOUT),
    // The remaining wstat errors, such as "wstat may not change qid".
    ("wstat", Errno::EPERM),
];

impl Errno {
    /// Returns the number for an error text of another server, or EIO if the text is not recognised.
    pub fn from_text(text: &str) -> Self {
        if let Some(errno) = Self::from_own_text(text) {
            return errno;
        }
        let lower = text.to_lowercase();
        PLAN9.iter().find(|(words, _)| lower.contains(words)).map_or(Self::EIO, |&(_, errno)| errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_survives_the_way_through_its_text() {
        for &errno in ALL {
            assert_eq!(Errno::from_text(errno.text()), errno);
        }
    }

    #[test]
    fn plan9_texts_have_numbers_and_keep_their_words() {
        let error = Error::from_text("directory entry not found");
        assert_eq!(error.errno, Errno::ENOENT);
        assert_eq!(error.ename(), "directory entry not found");
        assert_eq!(Errno::from_text("create/wstat -- file exists"), Errno::EEXIST);
        assert_eq!(Errno::from_text("wstat may not change qid"), Errno::EPERM);
        assert_eq!(Error::from_text("something else").errno, Errno::EIO);
    }
}
