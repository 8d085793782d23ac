//! The executor and the clock of a simulated world.
//!
//! Tasks are polled one at a time, and the next one is picked at random among the ready ones. When none is ready, time
//! jumps to the next timer. Always holds: a world panics and prints its seed if nothing can happen while its main
//! future is pending (a lost wake-up has this effect), or after [`STEPS_MAX`] steps.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use nine_net::{Env, Task, Timer};

use crate::rng::Rng;

/// Number of steps after which a world is considered to be in an endless loop.
const STEPS_MAX: u64 = 20_000_000;

/// Number of worlds that a test with small worlds runs. Tests with larger worlds run fewer.
const SMALL: u64 = 40;

/// Returns the seeds for a test: only `NINE_SEED` if it is set, else `count` seeds starting at `NINE_FIRST_SEED`
/// (default 0). `NINE_SEEDS` overrides the number for tests of small worlds; other tests scale it in proportion to
/// `count`.
pub fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("NINE_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("NINE_FIRST_SEED").unwrap_or(0);
            let count = number("NINE_SEEDS").map_or(count, |most| (most * count).div_ceil(SMALL).min(most));
            first..first + count
        }
    }
}

/// Whether a test that calls [`seeds`] with `count` runs its default seeds. Only then must every random event of the
/// test have occurred.
pub fn tries_all(count: u64) -> bool {
    seeds(count).take(count as usize).eq(0..count)
}

/// A simulated world.
pub struct World {
    seed: u64,
    env: SimEnv,
}

/// The [`Env`] of a world. Clones share the world.
#[derive(Clone)]
pub struct SimEnv {
    clock: Arc<Clock>,
    tasks: Rc<RefCell<Tasks>>,
    rng: Rc<RefCell<Rng>>,
}

/// The time and its timers. Shared with the links, which are `Send`.
pub(crate) struct Clock {
    now: AtomicU64,
    timers: Mutex<Timers>,
}

#[derive(Default)]
struct Timers {
    next: u64,
    waiting: BTreeMap<(Duration, u64), Waker>,
}

#[derive(Default)]
struct Tasks {
    next: u64,
    all: BTreeMap<u64, Task>,
    ready: Arc<Ready>,
}

#[derive(Default)]
struct Ready(Mutex<Vec<u64>>);

struct Wakes {
    task: u64,
    ready: Arc<Ready>,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        let mut ready = self.ready.0.lock().expect("no panic while it is held");
        if !ready.contains(&self.task) {
            ready.push(self.task);
        }
    }
}

impl World {
    /// Creates the world of a seed, at time 0.
    pub fn new(seed: u64) -> Self {
        let clock = Clock { now: AtomicU64::new(0), timers: Mutex::default() };
        let env = SimEnv {
            clock: Arc::new(clock),
            tasks: Rc::default(),
            rng: Rc::new(RefCell::new(Rng::new(seed))),
        };
        Self { seed, env }
    }

    /// Returns the world's environment: time, tasks and entropy.
    pub fn env(&self) -> SimEnv {
        self.env.clone()
    }

    /// Returns a random stream for a part of the test.
    pub fn rng(&self) -> Rng {
        self.env.rng.borrow_mut().fork()
    }

    /// Runs the world until `main` completes. On a panic, prints the command that replays the seed.
    pub fn run<R: 'static>(&self, main: impl Future<Output = R> + 'static) -> R {
        struct Says(u64);
        impl Drop for Says {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    // libtest names a test's thread after the test.
                    let test = std::thread::current().name().unwrap_or("main").to_string();
                    let again = "cargo test -p nine-sim --test it -- --exact";
                    eprintln!("replay this world with: NINE_SEED={} {again} {test}", self.0);
                }
            }
        }
        let _says = Says(self.seed);
        let result = Rc::new(RefCell::new(None));
        let into = result.clone();
        self.env.spawn(Box::pin(async move {
            let value = main.await;
            *into.borrow_mut() = Some(value);
        }));
        for _ in 0..STEPS_MAX {
            if let Some(value) = result.borrow_mut().take() {
                return value;
            }
            if !self.step() {
                panic!("nothing can happen any more at {:?}: a wake-up was lost", self.env.now());
            }
        }
        panic!("the world does not come to an end");
    }

    /// Runs until no task is ready and no timer is left, so that all remaining work is done.
    pub fn settle(&self) {
        while self.step() {}
    }

    /// Returns the number of unfinished tasks.
    pub fn tasks(&self) -> usize {
        self.env.tasks.borrow().all.len()
    }

    fn step(&self) -> bool {
        let picked = {
            let tasks = self.env.tasks.borrow();
            let mut ready = tasks.ready.0.lock().expect("no panic while it is held");
            let n = ready.len();
            (n > 0).then(|| ready.swap_remove(self.env.rng.borrow_mut().below(n)))
        };
        let Some(id) = picked else { return self.env.clock.advance() };
        let Some(mut task) = self.env.tasks.borrow_mut().all.remove(&id) else { return true };
        let ready = self.env.tasks.borrow().ready.clone();
        let waker = Waker::from(Arc::new(Wakes { task: id, ready }));
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.env.tasks.borrow_mut().all.insert(id, task);
        }
        true
    }
}

impl Drop for World {
    /// Tasks hold handles of the world. Dropping them breaks the cycle.
    fn drop(&mut self) {
        let all = std::mem::take(&mut self.env.tasks.borrow_mut().all);
        drop(all);
    }
}

impl SimEnv {
    pub(crate) fn time(&self) -> Arc<Clock> {
        self.clock.clone()
    }
}

/// The part of a world that any thread may use.
struct Shared {
    clock: Arc<Clock>,
    rng: Mutex<Rng>,
}

impl nine_net::Clock for Shared {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn wall(&self) -> Duration {
        self.clock.wall()
    }

    fn sleep_until(&self, deadline: Duration) -> Timer {
        self.clock.clone().sleep_until(deadline)
    }

    fn entropy(&self, buf: &mut [u8]) {
        let mut rng = self.rng.lock().expect("no panic while it is held");
        buf.fill_with(|| rng.bits() as u8);
    }
}

impl Env for SimEnv {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn wall(&self) -> Duration {
        self.clock.wall()
    }

    fn sleep_until(&self, deadline: Duration) -> Timer {
        self.clock.clone().sleep_until(deadline)
    }

    fn entropy(&self, buf: &mut [u8]) {
        let mut rng = self.rng.borrow_mut();
        buf.fill_with(|| rng.bits() as u8);
    }

    fn clock(&self) -> Arc<dyn nine_net::Clock> {
        let rng = Mutex::new(self.rng.borrow_mut().fork());
        Arc::new(Shared { clock: self.clock.clone(), rng })
    }

    fn spawn(&self, task: Task) {
        let mut tasks = self.tasks.borrow_mut();
        let id = tasks.next;
        tasks.next += 1;
        tasks.all.insert(id, task);
        tasks.ready.0.lock().expect("no panic while it is held").push(id);
    }
}

/// A future that completes at its deadline. It wakes only the task that polled it last, once, and none after it was
/// dropped. Otherwise a sleeping task that is polled often would get one wake-up, and so one more poll, for each poll.
struct SimTimer {
    clock: Arc<Clock>,
    deadline: Duration,
    /// Number of the registered timer, if any.
    number: Option<u64>,
}

impl SimTimer {
    fn cancel(&mut self) {
        if let Some(number) = self.number.take() {
            self.clock.cancel(self.deadline, number);
        }
    }
}

impl Future for SimTimer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.cancel();
        if self.clock.now() >= self.deadline {
            return Poll::Ready(());
        }
        self.number = Some(self.clock.wake_at(self.deadline, cx.waker()));
        Poll::Pending
    }
}

impl Drop for SimTimer {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Clock {
    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn wall(&self) -> Duration {
        Duration::from_secs(1_700_000_000) + self.now()
    }

    fn sleep_until(self: Arc<Self>, deadline: Duration) -> Timer {
        Box::pin(SimTimer { clock: self, deadline, number: None })
    }

    /// Registers a timer that wakes `waker` at `time`, once, even if no task waits then. Returns a number for
    /// [`Clock::cancel`].
    pub(crate) fn wake_at(&self, time: Duration, waker: &Waker) -> u64 {
        let mut timers = self.timers.lock().expect("no panic while it is held");
        let number = timers.next;
        timers.next += 1;
        timers.waiting.insert((time, number), waker.clone());
        number
    }

    /// Removes a timer.
    fn cancel(&self, time: Duration, number: u64) {
        let waker = self.timers.lock().expect("no panic while it is held").waiting.remove(&(time, number));
        // Drop it without the lock: a waker may own other timers.
        drop(waker);
    }

    /// Jumps to the next timer. Returns `false` if there is none.
    fn advance(&self) -> bool {
        let first = self.timers.lock().expect("no panic while it is held").waiting.pop_first();
        let Some(((time, _), waker)) = first else { return false };
        let now = self.now().max(time);
        self.now.store(now.as_nanos() as u64, Ordering::Relaxed);
        waker.wake();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: u64) -> Vec<u32> {
        let world = World::new(seed);
        let log: Rc<RefCell<Vec<u32>>> = Rc::default();
        for i in 0..8 {
            let log = log.clone();
            world.env().spawn(Box::pin(async move { log.borrow_mut().push(i) }));
        }
        world.settle();
        log.take()
    }

    #[test]
    fn one_seed_is_one_world_and_another_is_another() {
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn time_jumps_and_never_waits() {
        let world = World::new(0);
        let env = world.env();
        world.run(async move {
            env.sleep_until(Duration::from_secs(3600)).await;
            assert_eq!(env.now(), Duration::from_secs(3600));
        });
    }

    #[test]
    fn a_task_that_sleeps_and_is_often_polled_has_one_timer() {
        let world = World::new(0);
        let env = world.env();
        let clock = env.time();
        let timers = move || clock.timers.lock().expect("no panic while it is held").waiting.len();
        world.run(async move {
            let mut sleep = env.sleep_until(Duration::from_secs(1));
            for n in 0..100 {
                // Each poll of a task has a new waker.
                let polled = std::future::poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx).is_ready())).await;
                assert!(!polled && timers() == 1, "{n}: {}", timers());
                env.sleep_until(env.now() + Duration::from_millis(1)).await;
            }
            drop(sleep);
            assert_eq!(timers(), 0);
        });
    }

    #[test]
    #[should_panic(expected = "a wake-up was lost")]
    fn a_lost_wake_up_is_noticed() {
        World::new(0).run(std::future::pending::<()>());
    }
}
