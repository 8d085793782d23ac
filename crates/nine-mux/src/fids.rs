//! Fids of upstream connections, which the clients of a mux share fairly.
//!
//! In: walks, and fids of clients as they come and go. Out: a refusal (ENFILE) of a walk of a client that has its
//! share. Always holds: the connection has fids for the owner and for the mux' own steps, whatever its clients hold.

use nine_io::limits::FairShare;
use nine_proto::{Errno, Error};

/// Fids that clients hold on one connection to a server: those that our own servers allow for a connection, without a
/// sixteenth for walks of several steps.
pub const UPSTREAM_FIDS_MAX: usize = (1 << 18) - (1 << 14);

/// Why a client that has this one may not have another fid on the same connection.
pub(crate) fn refusal(share: &FairShare) -> Option<Error> {
    let text = "too many fids of one server: this client has its share";
    (!share.has_room()).then(|| Error::new(Errno::ENFILE, text))
}
