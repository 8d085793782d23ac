//! Runs operations of several steps as futures in reusable slots, without a task for each.
//!
//! In: [`JobTable::begin`], which polls the job at once, so that a job that need not wait never enters the queue. Out:
//! nothing; a job answers its request itself. [`JobTable::poll`] polls the jobs that were woken since.
//!
//! Always holds: a job that is woken during its poll is polled again. A cancelled job is polled again with its cancel
//! flag set, and ends by itself. Clients have at most one job for each outstanding request, which bounds the jobs.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use nine_io::client::{Cancel, Scope};
use nine_io::server::ReqId;
use nine_net::lock::{Mutex, lock};

/// A job answers its request before it ends.
pub(crate) type JobFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
pub(crate) struct JobTable {
    state: Mutex<JobTableState>,
}

#[derive(Default)]
struct JobTableState {
    slots: Vec<JobEntry>,
    free: Vec<usize>,
    by_request: HashMap<ReqId, usize>,
    /// Slots with woken jobs.
    ready: Vec<usize>,
    /// Wakes the task that polls [`JobTable::poll`].
    driver: Option<Waker>,
}

struct JobEntry {
    job: JobStage,
    request: Option<ReqId>,
    cancel: Cancel,
    waker: Waker,
    /// Whether it is in `ready`, or will be when its poll ends.
    woken: bool,
}

enum JobStage {
    Free,
    Waits(Scope<JobFuture>),
    /// Another thread polls it.
    Polled,
}

struct JobWaker {
    jobs: Weak<JobTable>,
    slot: usize,
}

impl Wake for JobWaker {
    fn wake(self: Arc<Self>) {
        if let Some(jobs) = self.jobs.upgrade() {
            jobs.wake(self.slot);
        }
    }
}

impl JobTable {
    /// Starts a job for a request, or a job of the mux itself.
    pub(crate) fn begin(self: &Arc<Self>, request: Option<ReqId>, job: JobFuture) {
        let index = {
            let mut state = lock(&self.state);
            let index = state.free.pop().unwrap_or_else(|| {
                let slot = state.slots.len();
                let waker = Waker::from(Arc::new(JobWaker { jobs: Arc::downgrade(self), slot }));
                let free = JobEntry {
                    job: JobStage::Free,
                    request: None,
                    cancel: Cancel::default(),
                    waker,
                    woken: false,
                };
                state.slots.push(free);
                slot
            });
            if let Some(id) = request {
                state.by_request.insert(id, index);
            }
            let slot = &mut state.slots[index];
            slot.cancel = Cancel::of(request.map_or(0, |id| id.conn));
            slot.job = JobStage::Waits(slot.cancel.clone().scope(job));
            slot.request = request;
            slot.woken = true;
            index
        };
        self.run(index);
    }

    /// Asks the job of a request to stop. Returns false if there is none.
    pub(crate) fn cancel(&self, request: ReqId) -> bool {
        let found = {
            let state = lock(&self.state);
            let index = state.by_request.get(&request).copied();
            index.inspect(|&index| state.slots[index].cancel.cancel())
        };
        found.inspect(|&index| self.wake(index)).is_some()
    }

    /// Returns the number of jobs that have not ended.
    pub(crate) fn len(&self) -> usize {
        let state = lock(&self.state);
        state.slots.len() - state.free.len()
    }

    /// Polls the jobs that were woken, and registers the caller's waker.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) {
        let ready = {
            let mut state = lock(&self.state);
            match &mut state.driver {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            std::mem::take(&mut state.ready)
        };
        for index in ready {
            self.run(index);
        }
    }

    /// Polls a job until it is pending and was not woken during its poll.
    fn run(&self, index: usize) {
        let mut polled: Option<Scope<JobFuture>> = None;
        loop {
            let (mut job, waker) = {
                let mut state = lock(&self.state);
                let slot = &mut state.slots[index];
                let again = std::mem::take(&mut slot.woken);
                let job = match (polled.take(), std::mem::replace(&mut slot.job, JobStage::Polled)) {
                    (Some(job), _) | (None, JobStage::Waits(job)) => job,
                    (None, other) => {
                        // The polling thread will check `woken`. A free slot was woken by a stale waker.
                        slot.woken = again && matches!(other, JobStage::Polled);
                        slot.job = other;
                        return;
                    }
                };
                if !again {
                    slot.job = JobStage::Waits(job);
                    return;
                }
                (job, slot.waker.clone())
            };
            if let Poll::Ready(()) = Pin::new(&mut job).poll(&mut Context::from_waker(&waker)) {
                drop(job);
                return self.end(index);
            }
            polled = Some(job);
        }
    }

    fn end(&self, index: usize) {
        let mut state = lock(&self.state);
        let slot = &mut state.slots[index];
        slot.job = JobStage::Free;
        slot.woken = false;
        if let Some(id) = slot.request.take() {
            state.by_request.remove(&id);
        }
        state.free.push(index);
    }

    fn wake(&self, index: usize) {
        let driver = {
            let mut state = lock(&self.state);
            let slot = &mut state.slots[index];
            if std::mem::replace(&mut slot.woken, true) || !matches!(slot.job, JobStage::Waits(_)) {
                return;
            }
            state.ready.push(index);
            if state.ready.len() == 1 { state.driver.clone() } else { None }
        };
        driver.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(not(nine_loom))]
    use std::future::pending;
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Ends when it has been woken. Counts its polls.
    fn waits(at: &Arc<Mutex<Option<Waker>>>, ended: &Arc<AtomicUsize>) -> JobFuture {
        let (at, ended, mut polls) = (at.clone(), ended.clone(), 0);
        Box::pin(poll_fn(move |cx| {
            polls += 1;
            if polls == 2 {
                ended.fetch_add(1, Ordering::SeqCst);
                return Poll::Ready(());
            }
            *lock(&at) = Some(cx.waker().clone());
            Poll::Pending
        }))
    }

    #[cfg(not(nine_loom))]
    fn poll(jobs: &JobTable) {
        jobs.poll(&mut Context::from_waker(Waker::noop()));
    }

    #[cfg(not(nine_loom))]
    #[test]
    fn a_job_runs_at_once_and_again_when_it_is_woken() {
        let jobs = Arc::new(JobTable::default());
        let (at, ended) = (Arc::default(), Arc::default());
        jobs.begin(None, waits(&at, &ended));
        poll(&jobs);
        assert_eq!((jobs.len(), ended.load(Ordering::SeqCst)), (1, 0));
        let waker = lock(&at).take().unwrap();
        waker.wake_by_ref();
        poll(&jobs);
        assert_eq!((jobs.len(), ended.load(Ordering::SeqCst)), (0, 1));
        waker.wake();
        jobs.begin(None, Box::pin(pending()));
        poll(&jobs);
        assert_eq!(jobs.len(), 1, "an old waker of a slot does no harm to its next job");
    }

    #[cfg(not(nine_loom))]
    #[test]
    fn a_job_that_wakes_itself_is_polled_until_it_waits() {
        let jobs = Arc::new(JobTable::default());
        let mut polls = 0;
        jobs.begin(
            None,
            Box::pin(poll_fn(move |cx| {
                polls += 1;
                cx.waker().wake_by_ref();
                if polls == 5 { Poll::Ready(()) } else { Poll::Pending }
            })),
        );
        assert_eq!(jobs.len(), 0);
    }

    #[cfg(nine_loom)]
    #[test]
    fn a_job_woken_from_another_thread_is_never_left_lying_in_any_order() {
        use loom::future::block_on;
        loom::model(|| {
            let jobs = Arc::new(JobTable::default());
            let (at, ended): (Arc<Mutex<Option<Waker>>>, Arc<AtomicUsize>) =
                (Arc::new(Mutex::new(None)), Arc::default());
            let waker = {
                let at = at.clone();
                loom::thread::spawn(move || {
                    loop {
                        if let Some(waker) = lock(&at).take() {
                            return waker.wake();
                        }
                        loom::thread::yield_now();
                    }
                })
            };
            jobs.begin(None, waits(&at, &ended));
            block_on(poll_fn(|cx| {
                jobs.poll(cx);
                if ended.load(Ordering::SeqCst) == 1 { Poll::Ready(()) } else { Poll::Pending }
            }));
            waker.join().unwrap();
        });
    }
}
