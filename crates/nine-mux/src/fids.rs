//! Fids on upstream connections, shared fairly among the clients of a mux.
//!
//! In: walks, and the start and end of clients' fids. Out: the refusal (ENFILE) of a walk if the client has used its
//! share. Always holds: however many fids the clients use, the connection has fids left for the owner and for the mux
//! itself.

use nine_io::limits::FairShare;
use nine_proto::{Errno, Error};

/// Maximum number of clients' fids on one upstream connection: the fids that our own servers allow for a connection,
/// minus a sixteenth for walks of several steps.
pub const UPSTREAM_FIDS_MAX: usize = (1 << 18) - (1 << 14);

/// Returns the error for another fid of a client on the same connection, if the client has used its share.
pub(crate) fn refusal(share: &FairShare) -> Option<Error> {
    let text = "too many fids of one server: this client has its share";
    (!share.has_room()).then(|| Error::new(Errno::ENFILE, text))
}
