//! Background jobs: futures that one driver polls.
//!
//! In: [`JobQueue::begin`], from any thread. Out: nothing; a job reports its own result. The program polls the
//! [`Driver`] on any thread or runtime, and the jobs run there. Waking a job never runs it, so it may be woken with
//! locks held.
//!
//! The number of jobs is bounded by their callers: one per request, and one commit, one copy and one sweep.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::hash::FixedMap;

type JobWork = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Jobs that are polled before the driver yields to other tasks of its thread.
const JOBS_PER_SLICE: usize = 64;

/// Yields once to other tasks.
pub(crate) async fn yield_now() {
    let mut turn = false;
    poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut turn, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The jobs of an archive.
#[derive(Clone, Default)]
pub(crate) struct JobQueue(Arc<Mutex<JobQueueState>>);

#[derive(Default)]
struct JobQueueState {
    ready: VecDeque<Arc<QueuedJob>>,
    /// Jobs that have not ended, by number.
    running: FixedMap<u64, Arc<QueuedJob>>,
    next: u64,
    driver: Option<Waker>,
    closed: bool,
    /// The driver was dropped: new jobs are dropped at once.
    gone: bool,
}

struct QueuedJob {
    jobs: JobQueue,
    number: u64,
    state: Mutex<JobState>,
}

struct JobState {
    /// `None` while it is polled and after it has ended.
    work: Option<JobWork>,
    queued: bool,
}

/// Polls the jobs. It ends when they are [closed](JobQueue::close) and none is left. Dropping it drops the remaining
/// jobs.
pub struct Driver(JobQueue);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl JobQueue {
    /// Returns the future that polls the jobs.
    pub(crate) fn driver(&self) -> Driver {
        Driver(self.clone())
    }

    /// Starts a job.
    pub(crate) fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        let state = Mutex::new(JobState { work: Some(Box::pin(work)), queued: false });
        let (job, is_there) = {
            let queue = &mut *lock(&self.0);
            queue.next += 1;
            let job = Arc::new(QueuedJob { jobs: self.clone(), number: queue.next, state });
            let there = (!queue.gone).then(|| queue.running.insert(queue.next, job.clone()));
            (job, there.is_some())
        };
        if is_there {
            job.wake();
        }
    }

    /// Lets the driver end after the last job.
    pub(crate) fn close(&self) {
        let mut queue = lock(&self.0);
        queue.closed = true;
        wake(queue);
    }
}

fn wake(mut queue: MutexGuard<'_, JobQueueState>) {
    let driver = queue.driver.take();
    drop(queue);
    driver.into_iter().for_each(Waker::wake);
}

impl Wake for QueuedJob {
    fn wake(self: Arc<Self>) {
        if std::mem::replace(&mut lock(&self.state).queued, true) {
            return;
        }
        let jobs = self.jobs.clone();
        let mut queue = lock(&jobs.0);
        if !queue.gone {
            queue.ready.push_back(self);
            wake(queue);
        }
    }
}

impl QueuedJob {
    fn poll(self: Arc<Self>) {
        let work = {
            let mut state = lock(&self.state);
            state.queued = false;
            state.work.take()
        };
        let Some(mut work) = work else { return };
        let waker = Waker::from(self.clone());
        match work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => lock(&self.state).work = Some(work),
            Poll::Ready(()) => {
                let job = lock(&self.jobs.0).running.remove(&self.number);
                drop(job);
            }
        }
    }
}

impl Driver {
    /// Runs a future, and polls the jobs meanwhile.
    pub(crate) async fn beside<T>(mut self, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        poll_fn(|cx| {
            let _ = Pin::new(&mut self).poll(cx);
            what.as_mut().poll(cx)
        })
        .await
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let (running, ready) = {
            let queue = &mut *lock(&self.0.0);
            queue.gone = true;
            (std::mem::take(&mut queue.running), std::mem::take(&mut queue.ready))
        };
        // Dropping a job may wake other jobs or use the queue.
        for job in running.into_values() {
            let work = lock(&job.state).work.take();
            drop(work);
        }
        drop(ready);
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..JOBS_PER_SLICE {
            let mut queue = lock(&self.0.0);
            let Some(job) = queue.ready.pop_front() else {
                if queue.closed && queue.running.is_empty() {
                    return Poll::Ready(());
                }
                queue.driver = Some(cx.waker().clone());
                return Poll::Pending;
            };
            drop(queue);
            job.poll();
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Tasks that wait for a condition. They are woken together, and each checks its condition again.
#[derive(Default)]
pub(crate) struct WaiterList(Vec<Waker>);

impl WaiterList {
    pub(crate) fn add(&mut self, waker: &Waker) {
        // A task that polls repeatedly is woken once.
        if !self.0.last().is_some_and(|last| last.will_wake(waker)) {
            self.0.push(waker.clone());
        }
    }

    pub(crate) fn wake(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(Mutex<usize>);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            *lock(&self.0) += 1;
        }
    }

    #[test]
    fn jobs_run_where_the_driver_is_polled_and_it_ends_behind_the_last() {
        let (jobs, count) = (JobQueue::default(), Arc::new(Count(Mutex::new(0))));
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let mut driver = jobs.driver();
        let kept = Arc::new(Mutex::new(None::<Waker>));
        assert!(Pin::new(&mut driver).poll(&mut cx).is_pending());
        let store = kept.clone();
        jobs.begin(std::future::poll_fn(move |cx| {
            let mut kept = lock(&store);
            let again = kept.is_some();
            *kept = Some(cx.waker().clone());
            if again { Poll::Ready(()) } else { Poll::Pending }
        }));
        assert_eq!(*lock(&count.0), 1);
        assert!(Pin::new(&mut driver).poll(&mut cx).is_pending());
        jobs.close();
        assert!(Pin::new(&mut driver).poll(&mut cx).is_pending(), "one is left");
        lock(&kept).clone().unwrap().wake();
        assert!(Pin::new(&mut driver).poll(&mut cx).is_ready());
    }

    #[test]
    fn what_is_left_goes_with_the_driver() {
        let jobs = JobQueue::default();
        let (driver, held) = (jobs.driver(), Arc::new(()));
        let (own, inner) = (held.clone(), jobs.clone());
        jobs.begin(async move {
            std::future::pending::<()>().await;
            drop((own, inner));
        });
        drop(driver);
        assert_eq!(Arc::strong_count(&held), 1);
        // This job would never be polled.
        let own = held.clone();
        jobs.begin(async move { drop(own) });
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
