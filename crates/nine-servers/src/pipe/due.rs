//! Deadlines of pipes with modules that need timers.
//!
//! In: deadlines of pipes. Out: a [`Driver`], one task for all of them.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_net::lock::{Mutex, lock};
use nine_net::{Clock, Timer};

use super::PipeShared;

/// The number of pipes that one poll may advance before other tasks run.
const PIPES_PER_POLL_MAX: usize = 64;

/// The deadlines, at most one for each pipe.
#[derive(Default)]
pub(super) struct PipeDeadlines(Mutex<DeadlineSet>);

#[derive(Default)]
struct DeadlineSet {
    all: BTreeSet<(Duration, u64)>,
    waker: Option<Waker>,
}

impl PipeDeadlines {
    /// Replaces the deadline of a pipe.
    pub(super) fn change(&self, number: u64, old: Option<Duration>, new: Option<Duration>) {
        if old == new {
            return;
        }
        let mut times = lock(&self.0);
        let first = times.all.first().copied();
        old.map(|old| times.all.remove(&(old, number)));
        new.map(|new| times.all.insert((new, number)));
        let earlier = times.all.first().is_some_and(|now| first.is_none_or(|first| *now < first));
        let waker = if earlier { times.waker.take() } else { None };
        drop(times);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns the first deadline, and wakes `waker` when there is an earlier one.
    fn first(&self, waker: &Waker) -> Option<(Duration, u64)> {
        let mut times = lock(&self.0);
        times.waker = Some(waker.clone());
        times.all.first().copied()
    }
}

impl Drop for PipeDeadlines {
    /// Wakes the driver, which then ends.
    fn drop(&mut self) {
        let waker = lock(&self.0).waker.take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Advances pipes when a module's deadline has passed. A future to be spawned once.
#[must_use]
pub struct Driver {
    shared: Weak<PipeShared>,
    clock: Arc<dyn Clock>,
    sleep: Option<(Duration, Timer)>,
}

impl Driver {
    pub(super) fn new(shared: &Arc<PipeShared>) -> Self {
        Self { shared: Arc::downgrade(shared), clock: shared.clock.clone(), sleep: None }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..PIPES_PER_POLL_MAX {
            let Some(shared) = self.shared.upgrade() else { return Poll::Ready(()) };
            let Some((time, number)) = shared.due.first(cx.waker()) else { return Poll::Pending };
            if time <= self.clock.now() {
                if let Some(pair) = shared.pair(number) {
                    pair.tick();
                }
                continue;
            }
            if self.sleep.as_ref().is_none_or(|(until, _)| *until != time) {
                self.sleep = Some((time, self.clock.sleep_until(time)));
            }
            if let Some((_, sleep)) = &mut self.sleep
                && sleep.as_mut().poll(cx).is_pending()
            {
                return Poll::Pending;
            }
            self.sleep = None;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
