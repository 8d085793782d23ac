//! Who goes on with conversations when sockets or timers say so: one task.
//!
//! In: bells that sockets ring. Out: turns of those whose bells rang, in that order.
//!
//! Always holds: a bell that has rung is in the queue once until its job's turn begins, and again if it rings after
//! that; a job that has gone leaves nothing behind.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use nine_net::lock::{Mutex, lock};

/// Turns before other tasks have theirs.
const TURNS: usize = 64;

/// What goes on, turn by turn. A turn does not wait.
pub(super) trait Job: Send + Sync {
    fn turn(&self, cx: &mut Context<'_>);
}

/// Rung by whoever has something for a job: a waker.
pub(super) struct Bell {
    job: Weak<dyn Job>,
    queue: Arc<Queue>,
    /// It is in the queue, whose lock is held by who looks.
    rung: AtomicBool,
}

/// The jobs whose bells rang: as many at most as there are.
#[derive(Default)]
pub(super) struct Queue(Mutex<Rung>);

#[derive(Default)]
struct Rung {
    bells: VecDeque<Arc<Bell>>,
    driver: Option<Waker>,
    ended: bool,
}

impl Bell {
    pub(super) fn new(job: Weak<dyn Job>, queue: &Arc<Queue>) -> Arc<Self> {
        Arc::new(Self { job, queue: queue.clone(), rung: AtomicBool::new(false) })
    }
}

impl Wake for Bell {
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

impl Queue {
    /// The next one; where there is none, `waker` is woken when there is.
    fn next(&self, waker: &Waker) -> Poll<Option<Arc<Bell>>> {
        let mut rung = lock(&self.0);
        let Some(bell) = rung.bells.pop_front() else {
            rung.driver = Some(waker.clone());
            return if rung.ended { Poll::Ready(None) } else { Poll::Pending };
        };
        bell.rung.store(false, Ordering::Relaxed);
        Poll::Ready(Some(bell))
    }

    /// Whether [`Queue::end`] has been.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.0).ended
    }

    /// Nobody will ask for anything any more.
    pub(super) fn end(&self) {
        let mut rung = lock(&self.0);
        rung.ended = true;
        let (bells, driver) = (std::mem::take(&mut rung.bells), rung.driver.take());
        drop(rung);
        // The last job of a bell may ring another.
        drop(bells);
        driver.into_iter().for_each(Waker::wake);
    }
}

/// Goes on with conversations: a task, to be spawned once, on the core whose sockets they shall have. It ends with the
/// server.
#[must_use]
pub struct Driver(Arc<Queue>);

impl Driver {
    pub(super) fn new(queue: &Arc<Queue>) -> Self {
        Self(queue.clone())
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..TURNS {
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
