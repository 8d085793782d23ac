//! Commits of an archive, one after the other: when one begins, and what becomes of its errors.
//!
//! In: what has changed, who waits for it to be durable. Out: moments that are durable ([`crate::cw`] writes them).
//!
//! Always holds: one commit at a time; an error that passes by itself is waited for and loses nothing, any other one
//! stops the archive after a few tries.

use std::future::poll_fn;
use std::task::Poll;

use nine_block::Kind;
use nine_proto::Result;

use crate::archive::{Archive, State, errno};
use crate::cw::Changes;

/// After so many errors that do not pass by themselves nothing is tried any more.
const TRIES: u32 = 3;

/// How something has been tried.
#[derive(Default)]
struct Tries {
    /// Tries that have failed with an error that does not pass by itself.
    failed: u32,
    /// What it was last seen to wait for.
    waits_for: Option<Kind>,
}

impl Archive {
    /// All that has changed up to now is durable when this ends well.
    ///
    /// # Errors
    /// ENOSPC: the devices have no room below, and it is made durable once they have ([`Kind::Full`]). Any other: it is
    /// not, and nothing can be made durable any more.
    pub async fn sync(&self) -> Result<()> {
        let (epoch, tried) = {
            let state = &mut *self.state();
            // What a commit under way has is durable with that one.
            let changes = state.has_changes();
            if changes {
                self.want_commit(state);
            }
            if state.fs.full.is_some() {
                // The commit that waits for room is tried now.
                state.waiters.wake();
            }
            (if changes { state.epoch } else { state.epoch - 1 }, state.found_full)
        };
        poll_fn(|cx| {
            let state = &mut *self.state();
            if state.durable >= epoch {
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = &state.stopped {
                return Poll::Ready(Err(errno(error)));
            }
            if let Some(error) = state.fs.full.as_ref().filter(|_| state.found_full != tried) {
                return Poll::Ready(Err(errno(error)));
            }
            state.waiters.add(cx.waker());
            Poll::Pending
        })
        .await
    }

    pub(crate) fn want_commit(&self, state: &mut State) {
        state.wanted = true;
        if !state.committing && state.stopped.is_none() {
            state.committing = true;
            let archive = self.clone();
            self.begin(async move { archive.commits().await });
        }
    }

    /// Commits as long as somebody wants one.
    async fn commits(&self) {
        loop {
            if let Err(error) = self.commit().await {
                let state = &mut *self.state();
                self.error(format_args!(
                    "{error}: nothing is changed any more, and what was answered is safe: mend the devices \
                    and start again"
                ));
                (state.stopped, state.committing) = (Some(error), false);
                state.waiters.wake();
                return;
            }
            let state = &mut *self.state();
            state.waiters.wake();
            if !std::mem::take(&mut state.wanted) {
                state.committing = false;
                return;
            }
        }
    }

    async fn commit(&self) -> nine_block::Result<()> {
        // Who uses how much goes with what they have written: in one hold of the lock, if it can be.
        let taken = self.attempt(|state| {
            state.fs.settle()?;
            Ok(state.close(self.0.cw.entries_most() / 4))
        });
        let (changes, epoch) = match taken.await {
            Ok(taken) => taken,
            Err(error) => {
                // Who uses how much is worth less than what they write.
                self.error(format_args!("who uses how much could not be noted: {error}"));
                let state = &mut *self.state();
                state.fs.forget_used();
                state.close(self.0.cw.entries_most() / 4)
            }
        };
        let mut tries = Tries::default();
        while self.retries("commit", self.0.cw.commit(&changes).await, &mut tries).await? {}
        {
            let state = &mut *self.state();
            state.fs.mem.closed(changes.forward.iter().map(|come| come.worm));
            state.durable = epoch;
            state.waiters.wake();
        }
        let mut tries = Tries::default();
        while self.retries("checkpoint", self.0.cw.tidy(false).await, &mut tries).await? {}
        Ok(())
    }

    /// Whether what has ended so is to be done once more, when it is time for that: as long as devices are down, busy
    /// or full, and a few times after any other error.
    ///
    /// # Errors
    /// That of the last try.
    async fn retries(
        &self,
        what: &str,
        result: nine_block::Result<()>,
        tries: &mut Tries,
    ) -> nine_block::Result<bool> {
        let is_full = matches!(&result, Err(error) if error.kind == Kind::Full);
        if !is_full && self.state().fs.full.take().is_some() {
            self.info(format_args!("there is room again: the {what} goes on"));
        }
        let Err(error) = result else { return Ok(false) };
        let passes = matches!(error.kind, Kind::Down | Kind::Busy | Kind::Full);
        if passes && !self.state().ends() {
            if tries.waits_for.replace(error.kind) != Some(error.kind) {
                self.warn(format_args!("{error}: the {what} waits for that"));
            }
            if is_full {
                let state = &mut *self.state();
                (state.fs.full, state.found_full) = (Some(error), state.found_full + 1);
                state.waiters.wake();
            }
            self.next_tick().await;
            return Ok(true);
        }
        if error.kind == Kind::Poisoned || tries.failed >= TRIES {
            return Err(error);
        }
        tries.failed += 1;
        self.warn(format_args!("{error}: the {what} is tried again"));
        Ok(true)
    }
}

impl State {
    /// What the next commit takes, and its epoch. What comes now is the one's behind it.
    fn close(&mut self, most: usize) -> (Changes, u64) {
        // What this takes is wanted no more.
        (self.wanted, self.dirty_since, self.noted) = (false, None, false);
        let (blocks, freed) = self.fs.mem.close();
        let forward: Vec<_> = self.forward.drain(..self.forward.len().min(most)).collect();
        let swept: Vec<u64> = self.swept.drain(..self.swept.len().min(most)).collect();
        self.wanted |= !self.forward.is_empty() || !self.swept.is_empty();
        let changes = Changes { blocks, freed, forward, swept, fields: self.fields() };
        self.epoch += 1;
        (changes, self.epoch - 1)
    }
}
