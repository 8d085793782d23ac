//! What can go wrong for a client, by who is at fault: the server said no, the connection went, the server's bytes
//! are wrong, or we refused before asking.

use std::fmt;
use std::io;
use std::sync::Arc;

use nine_proto::{Errno, WireError};

/// What client operations return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed. Cheap to clone: when a connection goes, every waiter gets the same one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The server refused.
    Remote(nine_proto::Error),
    /// A name on the way does not exist, or may not be walked.
    Walk {
        /// The path as it was asked for, up to and with the name that failed.
        path: Box<str>,
        /// What the server said, or ENOENT where it only stopped (walk(5)).
        error: nine_proto::Error,
    },
    /// We refused without asking: the argument is bad, or the dialect cannot say it.
    Refused(nine_proto::Error),
    /// The connection was gone before the request was sent: nothing has happened.
    Unsent {
        /// The server's address.
        peer: Arc<str>,
        /// What happened to it.
        error: Arc<io::Error>,
    },
    /// The connection is gone.
    Transport {
        /// The server's address.
        peer: Arc<str>,
        /// What happened to it.
        error: Arc<io::Error>,
    },
    /// The server sent something that is not 9P; the connection was ended.
    Protocol {
        /// The server's address.
        peer: Arc<str>,
        /// What is wrong with it.
        error: WireError,
    },
    /// The data connection of a stream broke; the session goes on.
    Stream {
        /// The server's address.
        peer: Arc<str>,
        /// What happened to it.
        error: Arc<io::Error>,
    },
    /// This machine's own file failed, from or to which a stream went.
    Here(Arc<io::Error>),
    /// The server speaks none of the dialects that were offered.
    Version {
        /// The server's address.
        peer: Arc<str>,
    },
}

impl Error {
    pub(crate) fn refused(errno: Errno, text: &str) -> Self {
        Self::Refused(nine_proto::Error::new(errno, text))
    }

    /// The number that says it best, for callers that must pass one on.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Remote(error) | Self::Refused(error) | Self::Walk { error, .. } => error.errno,
            Self::Transport { error, .. }
            | Self::Unsent { error, .. }
            | Self::Stream { error, .. }
            | Self::Here(error) => {
                number(error).unwrap_or_else(|| match error.kind() {
                    // Of a dial.
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

    /// Whether the connection is gone, so that another one might do better.
    pub fn is_disconnect(&self) -> bool {
        matches!(self, Self::Transport { .. } | Self::Unsent { .. } | Self::Protocol { .. })
    }

    /// The same, to whoever had not sent anything yet.
    pub(crate) fn unsent(&self) -> Self {
        match self.clone() {
            Self::Transport { peer, error } => Self::Unsent { peer, error },
            other => other,
        }
    }

    /// The same, to whoever has sent something before.
    pub fn sent(self) -> Self {
        match self {
            Self::Unsent { peer, error } => Self::Transport { peer, error },
            other => other,
        }
    }

    /// What to answer to a client of ours that asked for this: a server's own words pass unchanged.
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

/// What happened, without the address that was tried: whoever tells it says that before.
fn cause(error: &io::Error) -> &io::Error {
    let below = error.get_ref().and_then(|error| error.source()).and_then(|error| error.downcast_ref());
    below.unwrap_or(error)
}

fn number(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().and_then(|n| u32::try_from(n).ok()).map(Errno)
}

/// An error of the system in its own words, without Rust's number behind them.
fn plain(error: &io::Error) -> String {
    let error = cause(error);
    number(error).map_or_else(|| error.to_string(), |errno| errno.to_string())
}

/// Without a source: the text has said all of it.
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
        // Longer than a part of a name may be: nobody is asked.
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
