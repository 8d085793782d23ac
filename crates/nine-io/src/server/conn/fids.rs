//! Fids of a connection, charged to its principal.
//!
//! In: the type of each message, and the number of fids. Out: the session's limit of fids. Always holds: a connection
//! may have [`FIDS_FLOOR`] fids whatever the others do, so that a client can attach and show the token. Fids above the
//! floor are taken from the core's limit in batches. So most messages only compare two numbers.

use super::{Connection, TATTACH, TAUTH, TWALK, TXATTRWALK};
use crate::limits::ClientPrincipal;

/// Fids that every connection may have.
pub const FIDS_FLOOR: usize = 16;
/// Fids that the connections of a core may have above their floors: at 200 to 500 bytes each, some 400 MiB.
pub const FIDS_ALL: usize = 1 << 20;
/// The smallest and the largest number of fids that are taken at once.
const FID_BATCH_RANGE: (usize, usize) = (8, 1024);

impl Connection {
    /// Takes fids before a message that may create one, if none may be left.
    pub(super) fn take_fids(&mut self, number: u8) {
        if !matches!(number, TAUTH | TATTACH | TWALK | TXATTRWALK) || self.own {
            return;
        }
        let (needed, allowed) = (self.fids_needed() + 1, FIDS_FLOOR + self.fids.units());
        if needed > allowed {
            self.fids.grow_up_to(needed - allowed + (needed / 4).clamp(FID_BATCH_RANGE.0, FID_BATCH_RANGE.1));
            self.session.limit_fids(FIDS_FLOOR + self.fids.units());
        }
    }

    /// Gives unneeded fids back to the core's limit, if there are many.
    pub(super) fn give_back_fids(&mut self) {
        let needed = self.fids_needed();
        if self.fids.units() > 2 * needed + 8 * FID_BATCH_RANGE.0 {
            self.fids.shrink_to(needed + FID_BATCH_RANGE.0);
            self.session.limit_fids(FIDS_FLOOR + self.fids.units());
        }
    }

    /// Charges the fids and the place to the principal of an attach, if its proof is better than all before.
    pub(super) fn charge_to(&mut self, principal: &ClientPrincipal) {
        if principal.class() > self.fids.principal().class() {
            self.fids.move_to(principal);
            if let Some(place) = &mut self.place {
                place.move_to(principal);
            }
        }
    }

    /// Existing fids, and those that requests in flight may create.
    fn fids_needed(&self) -> usize {
        self.session.fid_count() + self.session.outstanding()
    }
}
