//! Why a connection ended, and its log line.

use std::io;

use nine_proto::{Error, WireError};

use crate::audit;

/// Logs a line about a client: at the info level, or at the debug level for clients in this process.
macro_rules! note {
    ($own:expr, $($what:tt)+) => {
        if $own { tracing::debug!($($what)+) } else { tracing::info!($($what)+) }
    };
}
pub(super) use note;

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum ConnectionEnd {
    /// The client closed it.
    Closed,
    /// The server drains, and this client's answers have left.
    Drained,
    /// The transport failed.
    Io(io::Error),
    /// The client sent bytes that are not 9P.
    Malformed(WireError),
    /// A large message was arriving while the core had no memory left.
    Memory,
    /// The policy no longer allows the client's access.
    Judged(Error),
    /// It had not attached, and was evicted for another connection.
    Evicted,
    /// The client sent no Tversion in time.
    Silent,
    /// It is the data connection of a stream, not a client.
    Data,
}

impl ConnectionEnd {
    /// Logs it.
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
