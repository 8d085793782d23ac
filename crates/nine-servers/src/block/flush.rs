//! Flushes of a file of the host, one at a time.
//!
//! In: flushes. Out: calls of fdatasync, each for all flushes queued when it began. The kernel reports a write-back
//! error once per open file description. Of two concurrent calls, one would get the error and the other would report
//! success for lost data.
//!
//! Always holds: one thread at a time calls fdatasync. A call answers only flushes submitted before it began. After a
//! call has failed there are no more calls, and every flush fails.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use nine_block::{Error, Io, Kind};

/// See the module.
#[derive(Default)]
pub(super) struct FlushQueue(Mutex<FlushQueueState>);

#[derive(Default)]
struct FlushQueueState {
    waiting: Vec<Io>,
    /// A thread runs the flushes, or is about to.
    running: bool,
    /// The error of the call that failed.
    failed: Option<String>,
}

/// Held by the thread that runs the flushes. If dropped, the thread has panicked, and queued flushes fail.
struct FlushRunGuard<'a>(&'a FlushQueue);

impl FlushQueue {
    fn state(&self) -> MutexGuard<'_, FlushQueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a flush. If true, the caller must have a thread [`run`](Self::run), or [`give_up`](Self::give_up). Else
    /// a thread is at it already.
    #[must_use]
    pub(super) fn push(&self, io: Io) -> bool {
        let mut state = self.state();
        state.waiting.push(io);
        !std::mem::replace(&mut state.running, true)
    }

    /// Fails all queued flushes, since no thread can run them.
    pub(super) fn give_up(&self) {
        let mut state = self.state();
        state.running = false;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(|io| io.fail(Kind::Busy, "too much waits for the disk"));
    }

    /// Calls `sync` until no flush is queued. `wrong` makes an error from a text.
    pub(super) fn run(&self, sync: impl Fn() -> std::io::Result<()>, wrong: impl Fn(&str) -> Error) {
        let turn = FlushRunGuard(self);
        loop {
            let mut state = self.state();
            if state.waiting.is_empty() {
                // Under the same lock, so that a later flush gets a new thread.
                state.running = false;
                std::mem::forget(turn);
                return;
            }
            let told = std::mem::take(&mut state.waiting);
            let mut failed = state.failed.clone();
            drop(state);
            if failed.is_none()
                && let Err(error) = sync()
            {
                failed = Some(error.to_string());
                self.state().failed.clone_from(&failed);
                tracing::error!("{}", wrong(&format!("{error}: nothing is promised of it any more")));
            }
            let result = match failed {
                None => Ok(Bytes::new()),
                Some(why) => {
                    Err(wrong(&format!("a flush has failed ({why}): what was written before it may be lost")))
                }
            };
            told.into_iter().for_each(|io| io.end(result.clone()));
        }
    }
}

impl Drop for FlushRunGuard<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::Cell;
    use std::sync::Arc;

    use nine_block::Op;

    /// The results of flushes, in the order of completion.
    type Told = Arc<Mutex<Vec<(u32, Option<Kind>)>>>;

    fn flush(flushes: &FlushQueue, told: &Told, number: u32) -> bool {
        let told = told.clone();
        flushes.push(Io::other(Op::Flush, 0, 0, move |result| {
            told.lock().unwrap().push((number, result.err().map(|error| error.kind)));
        }))
    }

    fn wrong(text: &str) -> Error {
        Error::new(Kind::Poisoned, text)
    }

    #[test]
    fn an_error_that_the_kernel_tells_once_is_told_to_all() {
        let (flushes, told, calls) = (FlushQueue::default(), Told::default(), Cell::new(0));
        assert!(flush(&flushes, &told, 1));
        let sync = || {
            calls.set(calls.get() + 1);
            // While the first call runs, no second one may run and report success.
            assert!(!flush(&flushes, &told, 2));
            if calls.get() == 1 { Err(std::io::Error::from_raw_os_error(5)) } else { Ok(()) }
        };
        flushes.run(sync, wrong);
        assert!(flush(&flushes, &told, 3));
        flushes.run(sync, wrong);
        let poisoned = Some(Kind::Poisoned);
        assert_eq!(*told.lock().unwrap(), [(1, poisoned), (2, poisoned), (3, poisoned)]);
        assert_eq!(calls.get(), 1);
    }

    #[test]
    fn who_waits_shares_a_call_that_began_after_he_came() {
        let (flushes, told, calls) = (FlushQueue::default(), Told::default(), Cell::new(0));
        assert!(flush(&flushes, &told, 1));
        assert!(!flush(&flushes, &told, 2));
        let sync = || {
            calls.set(calls.get() + 1);
            if calls.get() == 1 {
                (3..6).for_each(|number| assert!(!flush(&flushes, &told, number)));
                assert!(told.lock().unwrap().is_empty());
            } else {
                assert_eq!(told.lock().unwrap().len(), 2, "the call before was not theirs");
            }
            Ok(())
        };
        flushes.run(sync, wrong);
        assert_eq!((calls.get(), told.lock().unwrap().len()), (2, 5));
        assert!(told.lock().unwrap().iter().all(|(_, error)| error.is_none()));
    }

    #[test]
    fn nobody_waits_for_a_thread_that_cannot_be_had_or_has_died() {
        let (flushes, told) = (FlushQueue::default(), Told::default());
        assert!(flush(&flushes, &told, 1));
        flushes.give_up();
        assert!(flush(&flushes, &told, 2));
        let dies = || -> std::io::Result<()> {
            assert!(!flush(&flushes, &told, 3));
            panic!("on purpose")
        };
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| flushes.run(dies, wrong)));
        assert!(died.is_err());
        assert_eq!(
            *told.lock().unwrap(),
            [(1, Some(Kind::Busy)), (2, Some(Kind::Failed)), (3, Some(Kind::Busy))]
        );
        assert!(flush(&flushes, &told, 4));
    }
}
