//! The errors of a client, by origin: the server refused, the connection failed, the server's bytes are invalid, or the
//! client refused without a request.

use std::fmt;
use std::io;
use std::sync::Arc;

use nine_proto::{Errno, WireError};

/// The result of client operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation failed. Cheap to clone: if a connection fails, every waiting call gets the same error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The server refused.
    Remote(nine_proto::Error),
    /// A name on the path does not exist, or must not be walked.
    Walk {
        /// The requested path, up to and including the failed name.
        path: Box<str>,
        /// The server's error, or ENOENT if it only stopped (walk(5)).
        error: nine_proto::Error,
    },
    /// The client refused without a request: the argument is invalid, or the dialect has no such operation.
    Refused(nine_proto::Error),
    /// The connection failed before the request was sent: nothing has happened.
    Unsent {
        /// The server's address.
        peer: Arc<str>,
        /// The reason.
        error: Arc<io::Error>,
    },
    /// The connection failed.
    Transport {
        /// The server's address.
        peer: Arc<str>,
        /// The reason.
        error: Arc<io::Error>,
    },
    /// The server sent bytes that are not 9P, so the connection was closed.
    Protocol {
        /// The server's address.
        peer: Arc<str>,
        /// The violation.
        error: WireError,
    },
    /// The data connection of a stream failed; the session continues.
    Stream {
        /// The server's address.
        peer: Arc<str>,
        /// The reason.
        error: Arc<io::Error>,
    },
    /// The local file at the other end of a stream failed.
    Here(Arc<io::Error>),
    /// The server knows none of the offered dialects.
    Version {
        /// The server's address.
        peer: Arc<str>,
    },
}

impl Error {
    pub(crate) fn refused(errno: Errno, text: &str) -> Self {
        Self::Refused(nine_proto::Error::new(errno, text))
    }

    /// The best error number, for callers that must report one.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Remote(error) | Self::Refused(error) | Self::Walk { error, .. } => error.errno,
            Self::Transport { error, .. }
            | Self::Unsent { error, .. }
            | Self::Stream { error, .. }
            | Self::Here(error) => {
                number(error).unwrap_or_else(|| match error.kind() {
                    // Errors of a dial.
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Errno::ECONNREFUSED,
                    io::ErrorKind::TimedOut => Errno::ETIMEDOUT,
                    io::ErrorKind::PermissionDenied => Errno::EACCES,
                    io::ErrorKind::HostUnreachable => Errno::EHOSTUNREACH,
                    _ => number(cause(error)).unwrap_or(Errno::ECONNRESET),
                })
            }
            Self::Protocol { .. } | Self::Version { .. } => Errno::EPROTO,
        }
    }

    /// Whether the connection is gone, so that another one might succeed.
    pub fn is_disconnect(&self) -> bool {
        matches!(self, Self::Transport { .. } | Self::Unsent { .. } | Self::Protocol { .. })
    }

    /// The same error for a request that has not been sent.
    pub(crate) fn unsent(&self) -> Self {
        match self.clone() {
            Self::Transport { peer, error } => Self::Unsent { peer, error },
            other => other,
        }
    }

    /// The same error for a caller that has sent an earlier request.
    pub fn sent(self) -> Self {
        match self {
            Self::Unsent { peer, error } => Self::Transport { peer, error },
            other => other,
        }
    }

    /// Converts it into the answer to a client's request; a server's own error passes unchanged.
    pub fn into_reply(self) -> nine_proto::Error {
        match self {
            Self::Remote(error) | Self::Refused(error) | Self::Walk { error, .. } => error,
            other => nine_proto::Error::new(other.errno(), other.to_string()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remote(error) | Self::Refused(error) => error.fmt(f),
            Self::Walk { path, error } => write!(f, "{path}: {error}"),
            Self::Transport { peer, error } | Self::Unsent { peer, error } => {
                write!(f, "{peer}: {}", plain(error))
            }
            Self::Stream { peer, error } => write!(f, "{peer}: the data connection broke: {}", plain(error)),
            Self::Here(error) => f.write_str(&plain(error)),
            Self::Protocol { peer, error } => write!(f, "{peer} does not keep to 9P: {error}"),
            Self::Version { peer } => write!(f, "{peer} speaks no 9P that we know"),
        }
    }
}

/// The cause without the address that was tried, which the caller's message names already.
fn cause(error: &io::Error) -> &io::Error {
    let below = error.get_ref().and_then(|error| error.source()).and_then(|error| error.downcast_ref());
    below.unwrap_or(error)
}

fn number(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().and_then(|n| u32::try_from(n).ok()).map(Errno)
}

/// The system's own text of an error, without the number that Rust appends.
fn plain(error: &io::Error) -> String {
    let error = cause(error);
    number(error).map_or_else(|| error.to_string(), |errno| errno.to_string())
}

/// It has no source: the text is complete.
impl std::error::Error for Error {}

impl From<nine_proto::Error> for Error {
    fn from(error: nine_proto::Error) -> Self {
        Self::Remote(error)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.errno() {
            Errno::ENOENT => io::ErrorKind::NotFound,
            Errno::EACCES | Errno::EPERM => io::ErrorKind::PermissionDenied,
            Errno::EEXIST => io::ErrorKind::AlreadyExists,
            Errno::EINTR => io::ErrorKind::Interrupted,
            Errno::EOPNOTSUPP | Errno::ENOSYS => io::ErrorKind::Unsupported,
            Errno::EINVAL => io::ErrorKind::InvalidInput,
            _ => match &error {
                Error::Transport { error, .. }
                | Error::Unsent { error, .. }
                | Error::Stream { error, .. }
                | Error::Here(error) => error.kind(),
                Error::Protocol { .. } => io::ErrorKind::InvalidData,
                _ => io::ErrorKind::Other,
            },
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nine_net::Addr;

    use super::*;
    use crate::client::{Options, blocking};

    #[test]
    fn a_lost_connection_is_told_once_and_plainly() {
        let error = Arc::new(io::Error::from_raw_os_error(104));
        let lost = Error::Transport { peer: "tcp!h!1".into(), error };
        assert_eq!(lost.to_string(), "tcp!h!1: Connection reset by peer");
        assert!(std::error::Error::source(&lost).is_none());
        assert_eq!(lost.errno(), Errno::ECONNRESET);
    }

    #[test]
    fn what_was_dialled_is_said_once() {
        // The name is too long for one element of a path, so no request is sent.
        let none = format!("tcp!{}!564", "n".repeat(64));
        for (addr, said, errno) in [
            ("tcp!127.0.0.1!1", "Connection refused", Errno::ECONNREFUSED),
            (&none, "failed to lookup address information", Errno::EHOSTUNREACH),
        ] {
            let addr: Addr = addr.parse().unwrap();
            let limit = Duration::from_secs(60);
            let failed = blocking::Client::dial(&addr, limit, Options::default()).map(drop).unwrap_err();
            let text = failed.to_string();
            assert!(text.starts_with(&format!("{addr}: {said}")) && !text.contains("os error"), "{text}");
            assert_eq!(failed.errno(), errno);
        }
    }
}
