//! The commit loop of an archive: when a commit begins, and how its errors are handled.
//!
//! In: changes in memory, and requests to make them durable. Out: durable changes, written by [`crate::cw`].
//!
//! Always holds: one commit at a time. An error that passes by itself is retried until it does, and loses nothing; any
//! other error stops the archive after a few tries.

use std::future::poll_fn;
use std::task::Poll;

use nine_block::Kind;
use nine_proto::Result;

use crate::archive::{Archive, ArchiveState, errno};
use crate::cw::CommitChanges;

/// Retries after errors that do not pass by themselves.
const RETRIES: u32 = 3;

/// The failed tries of one operation.
#[derive(Default)]
struct FailedTries {
    /// Errors that do not pass by themselves.
    count: u32,
    /// The kind of the latest error that passes by itself.
    waits_for: Option<Kind>,
}

impl Archive {
    /// Makes all changes so far durable.
    ///
    /// # Errors
    /// ENOSPC: a device has no storage left below ([`Kind::Full`]); the changes become durable when it has some. Any
    /// other error: they are not durable, and nothing can be made durable any more.
    pub async fn sync(&self) -> Result<()> {
        let (epoch, tried) = {
            let state = &mut *self.state();
            // A commit in progress covers its own changes.
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

    pub(crate) fn want_commit(&self, state: &mut ArchiveState) {
        state.wanted = true;
        if !state.committing && state.stopped.is_none() {
            state.committing = true;
            let archive = self.clone();
            self.begin(async move { archive.commits().await });
        }
    }

    /// Commits until no commit is requested any more.
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
        // Quotas are updated with the data, under one hold of the lock if possible.
        let taken = self.attempt(|state| {
            state.fs.settle()?;
            Ok(state.close(self.0.cw.entries_most() / 4))
        });
        let (changes, epoch) = match taken.await {
            Ok(taken) => taken,
            Err(error) => {
                // Data is worth more than quotas.
                self.error(format_args!("who uses how much could not be noted: {error}"));
                let state = &mut *self.state();
                state.fs.forget_used();
                state.close(self.0.cw.entries_most() / 4)
            }
        };
        let mut tries = FailedTries::default();
        while self.retries("commit", self.0.cw.commit(&changes).await, &mut tries).await? {}
        {
            let state = &mut *self.state();
            state.fs.mem.closed(changes.forward.iter().map(|come| come.worm));
            state.durable = epoch;
            state.waiters.wake();
        }
        let mut tries = FailedTries::default();
        while self.retries("checkpoint", self.0.cw.tidy(false).await, &mut tries).await? {}
        Ok(())
    }

    /// Returns whether to retry an operation with this result, after waiting until it is time. While the archive is not
    /// stopping, it retries without limit if a device is down, busy or full. It never retries [`Kind::Poisoned`], and
    /// any other error at most [`RETRIES`] times.
    ///
    /// # Errors
    /// The error of the last try.
    async fn retries(
        &self,
        what: &str,
        result: nine_block::Result<()>,
        tries: &mut FailedTries,
    ) -> nine_block::Result<bool> {
        let is_full = matches!(&result, Err(error) if error.kind == Kind::Full);
        let was_full = if is_full { None } else { self.state().fs.full.take() };
        let Err(error) = result else {
            if was_full.is_some() {
                self.info(format_args!("there is room again: the {what} goes on"));
            }
            return Ok(false);
        };
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
        if error.kind == Kind::Poisoned || tries.count >= RETRIES {
            return Err(error);
        }
        tries.count += 1;
        self.warn(format_args!("{error}: the {what} is tried again"));
        Ok(true)
    }
}

impl ArchiveState {
    /// Takes the changes for the next commit, and returns its number. Later changes belong to the commit after it.
    fn close(&mut self, most: usize) -> (CommitChanges, u64) {
        // This commit serves all requests so far.
        (self.wanted, self.dirty_since, self.noted) = (false, None, false);
        let (blocks, freed) = self.fs.mem.close();
        let forward: Vec<_> = self.forward.drain(..self.forward.len().min(most)).collect();
        let swept: Vec<u64> = self.swept.drain(..self.swept.len().min(most)).collect();
        self.wanted |= !self.forward.is_empty() || !self.swept.is_empty();
        let changes = CommitChanges { blocks, freed, forward, swept, fields: self.fields() };
        self.epoch += 1;
        (changes, self.epoch - 1)
    }
}
