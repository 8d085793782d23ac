//! Why a connection ended, and what is said of it.

use std::io;

use nine_proto::{Error, WireError};

use crate::audit;

/// A line of the log about a client; for those of this process, only for who debugs.
macro_rules! note {
    ($own:expr, $($what:tt)+) => {
        if $own { tracing::debug!($($what)+) } else { tracing::info!($($what)+) }
    };
}
pub(super) use note;

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// The client closed it.
    Closed,
    /// The server drains, and this client's answers have left.
    Drained,
    /// The transport failed.
    Io(io::Error),
    /// The client sent what is not 9P.
    Malformed(WireError),
    /// A large message was coming in while the core had no memory left.
    Memory,
    /// The client may not have what it had.
    Judged(Error),
    /// It has not attached, and another connection needs its place.
    Evicted,
    /// The client has not even greeted.
    Silent,
    /// It is no client but the data connection of a stream.
    Data,
}

impl End {
    /// Says it in the log.
    pub(super) fn tell(&self, own: bool, conn: u64, peer: &str, user: &str) {
        match self {
            Self::Closed => note!(own, conn, peer, user, "closed by the client"),
            Self::Drained => note!(own, conn, peer, user, "drained"),
            Self::Io(error) => note!(own, conn, peer, user, "lost: {error}"),
            Self::Malformed(error) => tracing::warn!(conn, peer, user, "cut off: {error}"),
            Self::Memory => {
                tracing::warn!(
                    conn,
                    peer,
                    user,
                    "cut off: a large message was coming in and no buffers were left"
                );
            }
            Self::Judged(error) => tracing::warn!(
                target: audit::TARGET,
                event = "end", conn, peer, user, why = %error,
                "cut off: {error}"
            ),
            Self::Evicted => {
                note!(
                    own,
                    conn,
                    peer,
                    user,
                    "cut off: it had not attached, and another client needs its place"
                );
            }
            Self::Silent => tracing::warn!(conn, peer, user, "cut off: it did not begin to speak 9P"),
            Self::Data => tracing::debug!(conn, peer, "it carries a stream"),
        }
    }
}
