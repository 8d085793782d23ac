//! An archive that several machines may serve, of which one is the main one: words for whoever decides that, and what
//! he says of it.
//!
//! In: what the program does about `takeover` and `handover`. Out: `status`; an end of all changes, when another
//! machine has become the main one.

use std::sync::Arc;

use nine_block::{Device, Error as Wrong};
use nine_proto::{Errno, Error, Result};

use crate::archive::Archive;
use crate::cw::{Cw, later};
use crate::grow::Grow;

/// What the program does.
#[derive(Clone)]
pub struct Turns {
    /// Does what a line of the console says: `takeover`, `handover`, and words behind.
    pub does: Grow,
    /// Lines of the status.
    pub said: Arc<dyn Fn() -> String + Send + Sync>,
}

impl Archive {
    /// From now on it is one of several machines' that take turns.
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

    /// The epoch of its newest superblock: of the last machine that has brought a dump to the worm by a right to write.
    pub fn newest_epoch(&self) -> u64 {
        self.state().newest_epoch
    }

    /// The epoch of the right by which the cache on `c` of the worm `w` was opened last; 0: by none. None where no
    /// cache of it is there, or one that was not made to the end. Of all caches of a worm the one with the largest is
    /// the newest.
    ///
    /// # Errors
    /// What the devices say.
    pub async fn cache_epoch(c: &dyn Device, w: &dyn Device) -> nine_block::Result<Option<u64>> {
        Cw::epoch_of(c, w).await
    }

    /// Nothing is changed any more, and why: another machine may do that now. Reads go on.
    pub fn stops(&self, why: Wrong) {
        self.stop_copies();
        let state = &mut *self.state();
        state.stopped.get_or_insert(why);
        state.waiters.wake();
    }

    /// What the newest superblock says of the right by which it was written.
    ///
    /// # Errors
    /// [`nine_block::Kind::Reserved`]: one that came later than ours.
    pub(crate) async fn knows_epoch(&self) -> nine_block::Result<()> {
        let (at, blocks) = {
            let newest = self.state().newest;
            (newest.at, newest.blocks)
        };
        if at == 0 {
            return Ok(());
        }
        // Without it the dump is not lost, and reads say what is wrong with it.
        let Ok(it) = self.0.cw.superblock_of(at, blocks).await else { return Ok(()) };
        self.state().newest_epoch = it.epoch;
        if self.0.epoch != 0 && it.epoch > self.0.epoch {
            return Err(later("its newest dump was written", it.epoch, self.0.epoch));
        }
        Ok(())
    }
}
