//! Tasks of a device: futures that run on the thread that ends the operation they wait for.
//!
//! A device has no runtime. At any time one thread runs the ready tasks of a device, one after the other, so the stack
//! does not grow with a chain of operations that end at once. The queue is bounded by the number of tasks. Those come
//! from submitted operations, which the submitter must bound.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use crate::sync::{Mutex, lock};

/// The tasks of a device, or of a layer above devices.
#[derive(Clone, Default)]
pub struct Tasks(Arc<Mutex<ReadyTasks>>);

#[derive(Default)]
struct ReadyTasks {
    queue: VecDeque<Arc<BlockTask>>,
    running: bool,
}

struct BlockTask {
    tasks: Tasks,
    state: Mutex<TaskState>,
}

struct TaskState {
    /// `None` while it is polled and after it has ended.
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    queued: bool,
}

impl Tasks {
    /// Starts a task, and polls it if no other thread is running tasks.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let state = Mutex::new(TaskState { future: Some(Box::pin(future)), queued: false });
        Arc::new(BlockTask { tasks: self.clone(), state }).wake();
    }

    fn run(&self) {
        if std::mem::replace(&mut lock(&self.0).running, true) {
            return;
        }
        let mut turn = RunGuard { tasks: self, over: false };
        while let Some(task) = turn.next() {
            task.poll();
        }
    }
}

/// The thread that runs tasks. If a task panics, the next thread runs the others.
struct RunGuard<'a> {
    tasks: &'a Tasks,
    over: bool,
}

impl RunGuard<'_> {
    fn next(&mut self) -> Option<Arc<BlockTask>> {
        let mut ready = lock(&self.tasks.0);
        let task = ready.queue.pop_front();
        if task.is_none() {
            // In the same critical section: a task that is queued later starts a new run.
            ready.running = false;
            self.over = true;
        }
        task
    }
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        if !self.over {
            lock(&self.tasks.0).running = false;
        }
    }
}

impl BlockTask {
    fn poll(self: Arc<Self>) {
        let future = {
            let mut state = lock(&self.state);
            state.queued = false;
            state.future.take()
        };
        let Some(mut future) = future else { return };
        let waker = Waker::from(self.clone());
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            lock(&self.state).future = Some(future);
        }
    }
}

impl Wake for BlockTask {
    fn wake(self: Arc<Self>) {
        if std::mem::replace(&mut lock(&self.state).queued, true) {
            return;
        }
        let tasks = self.tasks.clone();
        lock(&tasks.0).queue.push_back(self);
        tasks.run();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locks::RangeLocks;

    /// Each task is woken by the one before.
    #[test]
    fn long_chains_take_no_stack() {
        let (tasks, locks) = (Tasks::default(), RangeLocks::default());
        let count = Arc::new(Mutex::new(0));
        let first = locks.hold(0, 1);
        for _ in 0..20_000 {
            let (wait, count) = (locks.lock(0, 1), count.clone());
            tasks.spawn(async move {
                let _held = wait.await;
                *lock(&count) += 1;
            });
        }
        assert_eq!(*lock(&count), 0);
        drop(first);
        assert_eq!(*lock(&count), 20_000);
    }
}

#[cfg(all(test, nine_loom))]
mod any_order {
    use bytes::Bytes;
    use loom::thread::spawn;

    use super::*;
    use crate::call::Call;
    use crate::locks::RangeLocks;
    use crate::sync::check;

    /// The awaited operation ends before the task polls it, during the poll, or afterwards.
    #[test]
    fn a_task_is_woken_in_any_order() {
        check(|| {
            let (tasks, ended) = (Tasks::default(), Arc::new(Mutex::new(0)));
            let (pairs, told) = ([Call::pair(), Call::pair()], ended.clone());
            let [(first, one), (second, two)] = pairs;
            let others = [first, second].map(|done| spawn(move || done(Ok(Bytes::new()))));
            tasks.spawn(async move {
                for call in [one, two] {
                    assert!(call.await.is_ok());
                    *lock(&told) += 1;
                }
            });
            others.into_iter().for_each(|other| other.join().expect("it has not failed"));
            assert_eq!(*lock(&ended), 2);
        });
    }

    /// Each thread runs the tasks, or leaves its own to the thread that is running them.
    #[test]
    fn no_task_stays_behind_in_any_order() {
        check(|| {
            let (tasks, locks, count) = (Tasks::default(), RangeLocks::default(), Arc::new(Mutex::new(0)));
            let spawns = {
                let (tasks, count) = (tasks.clone(), count.clone());
                move || {
                    let (wait, count) = (locks.lock(0, 1), count.clone());
                    tasks.spawn(async move {
                        let _held = wait.await;
                        *lock(&count) += 1;
                    });
                }
            };
            let others = [spawn(spawns.clone()), spawn(spawns.clone())];
            spawns();
            others.into_iter().for_each(|other| other.join().expect("it has not failed"));
            assert_eq!(*lock(&count), 3);
        });
    }
}
