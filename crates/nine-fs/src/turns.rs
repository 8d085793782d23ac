//! Failover: an archive that several machines may serve, one of which is the primary. The program decides which.
//!
//! In: the functions for `takeover`, `handover` and the status. Out: all changes stop when another machine has become
//! the primary.

use std::sync::Arc;

use nine_block::{Device, Error as Wrong};
use nine_proto::{Errno, Error, Result};

use crate::archive::Archive;
use crate::cw::{Cw, later};
use crate::grow::Grow;

/// The program's functions for failover.
#[derive(Clone)]
pub struct Turns {
    /// Runs a line of the console: `takeover` or `handover`, with arguments.
    pub does: Grow,
    /// Returns lines for the status.
    pub said: Arc<dyn Fn() -> String + Send + Sync>,
}

impl Archive {
    /// Declares that several machines may serve the archive.
    pub fn takes_turns(&self, turns: Turns) {
        self.state().turns = Some(turns);
    }

    pub(crate) async fn turn(&self, line: &str) -> Result<()> {
        let turns = self.state().turns.clone();
        let Some(turns) = turns else {
            let text = "no other machine serves this archive: it has no `arbiter=` where it is mounted";
            return Err(Error::new(Errno::EOPNOTSUPP, text));
        };
        (turns.does)(line).await.map_err(|why| Error::new(Errno::EINVAL, why))
    }

    /// Returns the epoch of the newest superblock: that of the last lease under which a dump was written to the worm.
    pub fn newest_epoch(&self) -> u64 {
        self.state().newest_epoch
    }

    /// Returns the epoch of the lease under which the cache on `c` of the worm `w` was opened last; 0 without a lease.
    /// `None`: there is no complete cache of this worm. Of all caches of a worm, the one with the largest epoch is the
    /// newest.
    ///
    /// # Errors
    /// Errors of the devices.
    pub async fn cache_epoch(c: &dyn Device, w: &dyn Device) -> nine_block::Result<Option<u64>> {
        Cw::epoch_of(c, w).await
    }

    /// Stops all changes, for the reason `why`: another machine may write now. Reads continue.
    pub fn stops(&self, why: Wrong) {
        self.stop_copies();
        let state = &mut *self.state();
        state.stopped.get_or_insert(why);
        state.waiters.wake();
    }

    /// Reads the epoch from the newest superblock.
    ///
    /// # Errors
    /// [`nine_block::Kind::Reserved`]: it is later than the epoch of our lease.
    pub(crate) async fn knows_epoch(&self) -> nine_block::Result<()> {
        let (at, blocks) = {
            let newest = self.state().newest;
            (newest.at, newest.blocks)
        };
        if at == 0 {
            return Ok(());
        }
        // An unreadable superblock does not lose the dump, and reads of the dump report errors.
        let Ok(it) = self.0.cw.superblock_of(at, blocks).await else { return Ok(()) };
        self.state().newest_epoch = it.epoch;
        if self.0.epoch != 0 && it.epoch > self.0.epoch {
            return Err(later("its newest dump was written", it.epoch, self.0.epoch));
        }
        Ok(())
    }
}
