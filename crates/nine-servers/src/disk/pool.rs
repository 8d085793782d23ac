//! A thread pool for operations that wait for the disk.
//!
//! In: jobs of clients. Out: their effects, in no particular order between threads. Clients take turns: a client with
//! very many jobs delays another client by one job, not by all of them. Threads are started when first needed and
//! then stay. A push wakes at most one sleeping thread, and none while another one is waking up. That one wakes the
//! next if it sees more jobs when it takes its own. A thread that finishes a job takes the next one without sleeping.
//!
//! Always holds: every accepted job runs, also if the pool is dropped. The drop waits for them.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use crate::sync::{Builder, Condvar, JoinHandle, Mutex, MutexGuard, current};

/// A job.
pub(crate) type PoolJob = Box<dyn FnOnce() + Send>;

/// See the module.
pub(crate) struct ThreadPool {
    shared: Arc<ThreadPoolShared>,
}

struct ThreadPoolShared {
    state: Mutex<ThreadPoolState>,
    work: Condvar,
    most: usize,
}

#[derive(Default)]
struct ThreadPoolState {
    queue: FairJobQueue,
    threads: Vec<JoinHandle<()>>,
    sleeping: usize,
    /// A thread was woken or started and has not looked at the queue yet.
    waking: bool,
    stop: bool,
}

/// Queued jobs, by client.
#[derive(Default)]
struct FairJobQueue {
    jobs: HashMap<u64, VecDeque<PoolJob>>,
    /// Clients with queued jobs, the next one first.
    turns: VecDeque<u64>,
    len: usize,
}

impl FairJobQueue {
    fn push(&mut self, client: u64, job: PoolJob) {
        let jobs = self.jobs.entry(client).or_default();
        if jobs.is_empty() {
            self.turns.push_back(client);
        }
        jobs.push_back(job);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<PoolJob> {
        let client = self.turns.pop_front()?;
        let jobs = self.jobs.get_mut(&client).expect("who has a turn has jobs");
        let job = jobs.pop_front().expect("who has a turn has jobs");
        self.len -= 1;
        if jobs.is_empty() {
            self.jobs.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        Some(job)
    }
}

/// The maximum number of queued jobs. Each belongs to a request, and a session bounds its outstanding requests. So
/// only very many sessions together reach it. Then the job is returned to the caller and its request fails.
const QUEUE_MAX: usize = 64 * 1024;

impl ThreadPool {
    /// Returns a pool of at most `most` threads. None is started yet.
    pub(crate) fn new(most: usize) -> Self {
        let shared = ThreadPoolShared { state: Mutex::default(), work: Condvar::new(), most: most.max(1) };
        Self { shared: Arc::new(shared) }
    }

    /// Four threads per core, since they mostly wait; at most 32.
    pub(super) fn default_size() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from).saturating_mul(4).min(32)
    }

    /// Queues a client's job. `Err` returns a job if the queue is full, or if not even one thread can be started.
    pub(crate) fn push(&self, client: u64, job: PoolJob) -> Result<(), PoolJob> {
        let mut state = self.shared.lock();
        if state.queue.len >= QUEUE_MAX {
            return Err(job);
        }
        state.queue.push(client, job);
        self.shared.call_one(&mut state);
        if state.threads.is_empty() {
            // No thread was ever started, so this job is the only one.
            return Err(state.queue.pop().expect("pushed just now, under this lock"));
        }
        Ok(())
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        let threads = {
            let mut state = self.shared.lock();
            state.stop = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.work.notify_all();
        // The last reference to the pool may have been dropped on one of its threads, which then ends by itself.
        let us = current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != us) {
            if thread.join().is_err() {
                tracing::error!("a disk thread ended in a panic");
            }
        }
    }
}

impl ThreadPoolShared {
    fn lock(&self) -> MutexGuard<'_, ThreadPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes or starts one thread, unless one is about to look at the queue or all are busy.
    fn call_one(self: &Arc<Self>, state: &mut ThreadPoolState) {
        if state.waking {
            return;
        }
        if state.sleeping > 0 {
            state.waking = true;
            self.work.notify_one();
        } else if state.threads.len() < self.most && !state.stop {
            let shared = self.clone();
            let name = format!("disk{}", state.threads.len());
            match Builder::new().name(name).spawn(move || shared.run()) {
                Ok(thread) => {
                    state.waking = true;
                    state.threads.push(thread);
                }
                Err(error) => tracing::warn!(%error, "no more disk threads"),
            }
        }
    }

    fn run(self: Arc<Self>) {
        let mut state = self.lock();
        state.waking = false;
        loop {
            if let Some(job) = state.queue.pop() {
                if state.queue.len > 0 {
                    self.call_one(&mut state);
                }
                drop(state);
                // If a job panics, dropping its request answers EIO. The thread continues.
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a disk job panicked");
                }
                state = self.lock();
            } else if state.stop {
                return;
            } else {
                state.sleeping += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleeping -= 1;
                state.waking = false;
            }
        }
    }
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn every_job_runs_before_the_pool_is_gone() {
        let (tx, rx) = mpsc::channel();
        let pool = ThreadPool::new(3);
        for i in 0..1000 {
            let tx = tx.clone();
            assert!(pool.push(1, Box::new(move || tx.send(i).unwrap())).is_ok());
        }
        drop((pool, tx));
        let mut seen: Vec<i32> = rx.iter().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_job_that_blocks_does_not_hold_up_the_next() {
        let pool = ThreadPool::new(2);
        let (unblock, blocked) = mpsc::channel::<()>();
        let (tx, rx) = mpsc::channel();
        let jobs: [PoolJob; 2] =
            [Box::new(move || blocked.recv().unwrap()), Box::new(move || tx.send(()).unwrap())];
        for job in jobs {
            assert!(pool.push(1, job).is_ok());
        }
        rx.recv().unwrap();
        unblock.send(()).unwrap();
    }

    #[test]
    fn clients_take_turns() {
        let pool = ThreadPool::new(1);
        let (unblock, blocked) = mpsc::channel::<()>();
        let (tx, rx) = mpsc::channel();
        assert!(pool.push(0, Box::new(move || blocked.recv().unwrap())).is_ok());
        for client in [1, 1, 1, 1, 2, 2, 3] {
            let tx = tx.clone();
            assert!(pool.push(client, Box::new(move || tx.send(client).unwrap())).is_ok());
        }
        unblock.send(()).unwrap();
        drop(tx);
        assert_eq!(rx.iter().collect::<Vec<u64>>(), [1, 2, 3, 1, 2, 1, 1]);
    }

    #[test]
    fn a_job_that_panics_ends_alone() {
        let pool = ThreadPool::new(1);
        let (tx, rx) = mpsc::channel();
        assert!(pool.push(1, Box::new(|| panic!("on purpose"))).is_ok());
        assert!(pool.push(1, Box::new(move || tx.send(()).unwrap())).is_ok());
        rx.recv().unwrap();
    }

    #[test]
    fn threads_start_only_when_needed() {
        let pool = ThreadPool::new(8);
        assert_eq!(pool.shared.lock().threads.len(), 0);
        let (tx, rx) = mpsc::channel();
        assert!(pool.push(1, Box::new(move || tx.send(()).unwrap())).is_ok());
        rx.recv().unwrap();
        assert_eq!(pool.shared.lock().threads.len(), 1);
    }
}

#[cfg(all(test, nine_loom))]
mod orders {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    fn check(test: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(test);
    }

    /// A gate that opens once.
    #[derive(Clone)]
    struct OnceGate(Arc<(Mutex<bool>, Condvar)>);

    impl OnceGate {
        fn new() -> Self {
            Self(Arc::new((Mutex::new(false), Condvar::new())))
        }

        fn open(&self) {
            *self.0.0.lock().unwrap() = true;
            self.0.1.notify_one();
        }

        fn pass(&self) {
            let mut open = self.0.0.lock().unwrap();
            while !*open {
                open = self.0.1.wait(open).unwrap();
            }
        }
    }

    fn push(pool: &ThreadPool, job: impl FnOnce() + Send + 'static) {
        assert!(pool.push(1, Box::new(job)).is_ok());
    }

    #[test]
    fn no_job_lies_while_a_thread_could_take_it_in_any_order() {
        check(|| {
            let pool = ThreadPool::new(2);
            let (met, over) = (OnceGate::new(), OnceGate::new());
            push(&pool, || {});
            // Only another thread can end this job's wait.
            let (meet, tell) = (met.clone(), over.clone());
            push(&pool, move || {
                meet.pass();
                tell.open();
            });
            push(&pool, move || met.open());
            over.pass();
        });
    }

    #[test]
    fn a_sleeping_thread_is_woken_by_whoever_pushes_in_any_order() {
        check(|| {
            let pool = Arc::new(ThreadPool::new(1));
            let ran = [OnceGate::new(), OnceGate::new()];
            let [tell, mine] = ran.clone();
            let other = pool.clone();
            let pusher = loom::thread::spawn(move || push(&other, move || tell.open()));
            push(&pool, move || mine.open());
            ran.iter().for_each(OnceGate::pass);
            pusher.join().unwrap();
        });
    }

    #[test]
    fn every_job_runs_before_the_pool_is_gone_in_any_order() {
        check(|| {
            let pool = ThreadPool::new(2);
            let ran = Arc::new(AtomicUsize::new(0));
            for _ in 0..3 {
                let ran = ran.clone();
                push(&pool, move || {
                    ran.fetch_add(1, SeqCst);
                });
            }
            drop(pool);
            assert_eq!(ran.load(SeqCst), 3);
        });
    }
}
