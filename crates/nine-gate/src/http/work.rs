//! Worker threads for long computations: compression, and writing large pages. The serving core continues meanwhile.
//!
//! In: jobs. Out: futures of their results. Each caller first takes a permit, of which there is one per thread
//! ([`ClientTurns`](super::turns::ClientTurns)).
//!
//! Always holds: threads start with the first jobs, and end with the pool. A job does not start if its result was
//! dropped.

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread;

use nine_net::lock::{Mutex, lock};

type WorkJob = Box<dyn FnOnce() + Send>;

/// See the module.
pub(super) struct WorkPool {
    jobs: Sender<WorkJob>,
    waiting: Arc<Mutex<Receiver<WorkJob>>>,
    most: usize,
    started: Cell<usize>,
}

/// The future result of a job. `None`: the job panicked.
pub(super) struct WorkResult<T>(Arc<Mutex<JobSlot<T>>>);

struct JobSlot<T> {
    result: Option<T>,
    is_over: bool,
    waker: Option<Waker>,
}

/// Marks a job as over when dropped, however the job ends.
struct JobEnd<T>(Arc<Mutex<JobSlot<T>>>);

impl WorkPool {
    /// Creates a pool of at most `most` threads.
    pub(super) fn new(most: usize) -> Self {
        let (jobs, waiting) = channel();
        Self { jobs, waiting: Arc::new(Mutex::new(waiting)), most: most.max(1), started: Cell::new(0) }
    }

    /// The number of cores without the serving one, at least 1 and at most 8.
    pub(super) fn default_size() -> usize {
        thread::available_parallelism().map_or(1, usize::from).saturating_sub(1).clamp(1, 8)
    }

    /// Runs a job on a worker thread; on this thread if none can be started.
    pub(super) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> WorkResult<T> {
        let slot = Arc::new(Mutex::new(JobSlot { result: None, is_over: false, waker: None }));
        let end = JobEnd(slot.clone());
        let job: WorkJob = Box::new(move || {
            if Arc::strong_count(&end.0) > 1 {
                let result = job();
                lock(&end.0).result = Some(result);
            }
        });
        self.start_one();
        match self.started.get() {
            0 => run(job),
            // The pool owns the receiver, so sending cannot fail.
            _ => drop(self.jobs.send(job)),
        }
        WorkResult(slot)
    }

    fn start_one(&self) {
        let started = self.started.get();
        if started >= self.most {
            return;
        }
        let waiting = self.waiting.clone();
        let name = format!("http-work{started}");
        match thread::Builder::new().name(name).spawn(move || work(&waiting)) {
            Ok(_) => self.started.set(started + 1),
            Err(error) => tracing::warn!("http: no more threads for long work: {error}"),
        }
    }
}

/// Runs jobs until the pool is dropped.
fn work(waiting: &Mutex<Receiver<WorkJob>>) {
    loop {
        // One thread waits for the next job. The others wait for the lock.
        let next = lock(waiting).recv();
        match next {
            Ok(job) => run(job),
            Err(_) => return,
        }
    }
}

fn run(job: WorkJob) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("http: a job panicked");
    }
}

impl<T> Drop for JobEnd<T> {
    fn drop(&mut self) {
        let mut slot = lock(&self.0);
        slot.is_over = true;
        let waker = slot.waker.take();
        drop(slot);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T> Future for WorkResult<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = lock(&self.0);
        if slot.is_over {
            return Poll::Ready(slot.result.take());
        }
        slot.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use nine_net::rt;

    use super::*;

    #[test]
    fn a_job_is_done_beside_the_core_and_one_that_panics_is_not_missed() {
        let pool = WorkPool::new(2);
        let (here, there, none, after) = rt::block_on(async |_| {
            let there = pool.run(|| thread::current().id()).await;
            let none = pool.run(|| -> u8 { panic!("on purpose") }).await;
            (thread::current().id(), there, none, pool.run(|| 7).await)
        })
        .unwrap();
        assert!(there.is_some_and(|there| there != here));
        assert_eq!((none, after), (None, Some(7)));
    }

    #[test]
    fn a_job_that_nobody_waits_for_is_not_begun() {
        let pool = WorkPool::new(1);
        let (go, waits) = channel::<()>();
        let first = pool.run(move || waits.recv());
        let (tells, told) = channel();
        drop(pool.run(move || tells.send(())));
        go.send(()).unwrap();
        rt::block_on(async |_| first.await).unwrap();
        drop(pool);
        assert!(told.recv().is_err(), "it is dropped without having run");
    }
}
