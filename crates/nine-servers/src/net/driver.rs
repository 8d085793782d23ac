//! One task that advances conversations when sockets or timers are ready.
//!
//! In: wake-ups from sockets. Out: calls of `turn` for the woken jobs, in that order.
//!
//! Always holds: a woken job is queued once until its turn begins, and again if it is woken after that. A dropped job
//! leaves nothing in the queue.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use nine_net::lock::{Mutex, lock};

/// The number of turns before other tasks run.
const JOBS_PER_POLL_MAX: usize = 64;

/// A job that the driver advances. A turn must not block.
pub(super) trait DriverJob: Send + Sync {
    fn turn(&self, cx: &mut Context<'_>);
}

/// The waker of a job.
pub(super) struct DriverWaker {
    job: Weak<dyn DriverJob>,
    queue: Arc<WokenJobQueue>,
    /// It is in the queue. Changed only under the queue's lock.
    rung: AtomicBool,
}

/// The woken jobs, each at most once.
#[derive(Default)]
pub(super) struct WokenJobQueue(Mutex<WokenJobState>);

#[derive(Default)]
struct WokenJobState {
    bells: VecDeque<Arc<DriverWaker>>,
    driver: Option<Waker>,
    ended: bool,
}

impl DriverWaker {
    pub(super) fn new(job: Weak<dyn DriverJob>, queue: &Arc<WokenJobQueue>) -> Arc<Self> {
        Arc::new(Self { job, queue: queue.clone(), rung: AtomicBool::new(false) })
    }
}

impl Wake for DriverWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut rung = lock(&self.queue.0);
        if rung.ended || self.rung.swap(true, Ordering::Relaxed) {
            return;
        }
        rung.bells.push_back(self.clone());
        let driver = rung.driver.take();
        drop(rung);
        driver.into_iter().for_each(Waker::wake);
    }
}

impl WokenJobQueue {
    /// Returns the next woken job. If there is none, `waker` is woken when there is one.
    fn next(&self, waker: &Waker) -> Poll<Option<Arc<DriverWaker>>> {
        let mut rung = lock(&self.0);
        let Some(bell) = rung.bells.pop_front() else {
            rung.driver = Some(waker.clone());
            return if rung.ended { Poll::Ready(None) } else { Poll::Pending };
        };
        bell.rung.store(false, Ordering::Relaxed);
        Poll::Ready(Some(bell))
    }

    /// Returns whether [`WokenJobQueue::end`] was called.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.0).ended
    }

    /// Ends the queue: no more jobs are accepted.
    pub(super) fn end(&self) {
        let mut rung = lock(&self.0);
        rung.ended = true;
        let (bells, driver) = (std::mem::take(&mut rung.bells), rung.driver.take());
        drop(rung);
        // Dropped unlocked: dropping the last reference to a job may wake another.
        drop(bells);
        driver.into_iter().for_each(Waker::wake);
    }
}

/// Advances conversations. A future to be spawned once, on the core that shall own the sockets. It ends with the
/// server.
#[must_use]
pub struct Driver(Arc<WokenJobQueue>);

impl Driver {
    pub(super) fn new(queue: &Arc<WokenJobQueue>) -> Self {
        Self(queue.clone())
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..JOBS_PER_POLL_MAX {
            let Poll::Ready(next) = self.0.next(cx.waker()) else { return Poll::Pending };
            let Some(bell) = next else { return Poll::Ready(()) };
            if let Some(job) = bell.job.upgrade() {
                job.turn(&mut Context::from_waker(&Waker::from(bell)));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
