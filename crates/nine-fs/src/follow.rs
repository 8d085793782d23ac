//! A follower: an archive that another server writes, read from its worm alone. It has all dumps, and finds new ones.
//!
//! In: a worm that is never written here. Out: `dump`, and the newest dump as `main`; both are read-only.
//!
//! Its cache device is a small one in memory, recovered from the worm.

use std::sync::Arc;
use std::time::Duration;

use nine_block::{Device, Error as Wrong, Kind, Ram, ReadOnly};

use crate::archive::{Archive, Settings};
use crate::cw::{Cw, NewestSuperblock, RecoverOptions};
use crate::dump::LoadedDump;
use crate::jobs::Driver;
use crate::recover::record_of;

/// Time between two looks at the worm.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// One of this number of looks searches beyond the expected address of the next dump, because unwritable blocks of w
/// may have been skipped.
const FAR: u32 = 120;

/// The state of a follower.
#[derive(Default)]
pub(crate) struct FollowerState {
    last: Duration,
    looks: u32,
    busy: bool,
    /// Why the last look has failed.
    trouble: Option<String>,
}

impl FollowerState {
    /// Returns the line for the status.
    pub(crate) fn said(&self) -> String {
        match &self.trouble {
            None => "follows the worm of another server\n".into(),
            Some(why) => format!("follows the worm of another server, which cannot be read: {why}\n"),
        }
    }
}

impl Archive {
    /// Opens the dumps of a worm that another server may be writing. New dumps appear by themselves.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: there is no archive. [`Kind::Unwritten`]: there is no dump yet. Errors of the worm.
    pub async fn follow(w: Arc<dyn Device>, settings: &Settings) -> nine_block::Result<(Self, Driver)> {
        let w: Arc<dyn Device> = Arc::new(ReadOnly::new(w));
        let label = Cw::label(&*w).await?;
        let c: Arc<dyn Device> = Arc::new(Ram::new(Cw::least(label.block)));
        let how = RecoverOptions { date: None, fastworm: Some(true), incarnation: 1 };
        let (cw, _, chain) = Cw::recover(c, w, &how).await?;
        let why = Wrong::new(Kind::ReadOnly, "it follows the worm of another server, where it is changed");
        let (archive, driver) = Self::on(cw, label, settings, Some(why)).await?;
        {
            let state = &mut *archive.state();
            state.follows = Some(self::FollowerState::default());
            let dumps =
                chain.dumps.iter().map(|(at, it)| (it.generation, LoadedDump { record: record_of(*at, it) }));
            state.dumps = dumps.collect();
        }
        Ok((archive, driver))
    }

    pub(crate) fn tick_following(&self, now: Duration) {
        let far = {
            let state = &mut *self.state();
            let Some(follows) = &mut state.follows else { return };
            if follows.busy || now.saturating_sub(follows.last) < LOOK_INTERVAL {
                return;
            }
            (follows.busy, follows.last, follows.looks) = (true, now, follows.looks + 1);
            follows.looks.is_multiple_of(FAR)
        };
        let archive = self.clone();
        self.begin(async move {
            let looked = archive.look_for_dumps(far).await;
            let state = &mut *archive.state();
            let Some(follows) = &mut state.follows else { return };
            follows.busy = false;
            let trouble = looked.err().map(|error| error.to_string());
            if let Some(why) = trouble.as_ref().filter(|why| follows.trouble.as_ref() != Some(why)) {
                archive.warn(format_args!("{why}: new dumps are not seen until it can be read"));
            }
            follows.trouble = trouble;
        });
    }

    /// Takes over the dumps that are new on the worm.
    async fn look_for_dumps(&self, far: bool) -> nine_block::Result<()> {
        let cw = &self.0.cw;
        let (next, after) = {
            let state = &*self.state();
            (state.next_worm, state.newest.generation)
        };
        cw.look_at_worm().await?;
        let worm = cw.worm();
        if !far && !worm.has_something(next).await? {
            return Ok(());
        }
        for (at, it) in worm.chain(next, after).await?.dumps {
            let newest = NewestSuperblock { at, generation: it.generation, blocks: it.blocks as u32 };
            cw.followed(newest, &it);
            let state = &mut *self.state();
            (state.newest, state.next_worm, state.newest_epoch) = (newest, it.next, it.epoch);
            state.fs.mem.root = it.root;
            state.dumps.insert(it.generation, LoadedDump { record: record_of(at, &it) });
            state.users_may_be_others();
            state.changes.forget();
            state.tell_dump(&crate::recover::name(it.date));
            self.info(format_args!("dump {}", crate::recover::name(it.date)));
        }
        Ok(())
    }
}
