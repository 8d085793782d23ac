//! The runtime: one single-threaded tokio runtime per core, and the real [`Env`].
//!
//! In: the number of cores, and a function for each. Out: their results; the clock, timers, entropy and tasks of this
//! machine; signals; the limit of descriptors.
//!
//! Always holds: a task never leaves the core that spawned it. All cores read one clock, which starts at 0 when it is
//! first read. Only this module and `socket` use tokio.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, Once, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::{Builder, LocalRuntime};
use tokio::signal::unix::{self, SignalKind};

use crate::env::{Clock, Env, Task, Timer};
use crate::sys;

/// The environment of this machine. Timers and tasks need the runtime of [`run`] or [`block_on`] around them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real;

impl Env for Real {
    fn now(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    fn wall(&self) -> Duration {
        // A clock before 1970 reads as 1970.
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }

    fn sleep_until(&self, deadline: Duration) -> Timer {
        Box::pin(tokio::time::sleep(deadline.saturating_sub(self.now())))
    }

    /// # Panics
    /// If the kernel has no entropy, which Linux rules out once it has started.
    fn entropy(&self, buf: &mut [u8]) {
        getrandom::fill(buf).expect("the kernel gives random bytes");
    }

    fn spawn(&self, task: Task) {
        tokio::task::spawn_local(task);
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(AnyCoreEnv)
    }
}

/// [`Real`] for use from any core.
struct AnyCoreEnv;

impl Clock for AnyCoreEnv {
    fn now(&self) -> Duration {
        Real.now()
    }

    fn wall(&self) -> Duration {
        Real.wall()
    }

    fn sleep_until(&self, deadline: Duration) -> Timer {
        Real.sleep_until(deadline)
    }

    fn entropy(&self, buf: &mut [u8]) {
        Real.entropy(buf);
    }
}

/// The core of [`run`] on which a future runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Index of the core; 0 is the thread that called [`run`].
    pub index: usize,
    /// Number of cores.
    pub count: usize,
}

/// The default number of cores: one below four processors, else one per processor.
pub fn default_cores() -> usize {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        0..4 => 1,
        n => n,
    }
}

/// Runs `main` once per core, each on its own thread and runtime. Returns their results in order when all have ended.
/// With several cores, each thread is pinned to one of the processors we may use. A single one is scheduled by the
/// kernel, so that several such programs spread out.
///
/// Fails, before any `main` has started, if a runtime cannot be created. If one of several cores panics, the process
/// aborts: the others would wait for it forever.
pub fn run<R: Send>(cores: usize, main: impl AsyncFn(Core, Real) -> R + Sync) -> io::Result<Vec<R>> {
    let count = cores.max(1);
    let start = StartBarrier { gate: Barrier::new(count), failed: AtomicBool::new(false) };
    let one = |index| run_core(Core { index, count }, &start, &main);
    std::thread::scope(|scope| {
        let one = &one;
        let name = |index| std::thread::Builder::new().name(format!("core{index}"));
        // Without this thread the others wait at the barrier forever, so nothing can be saved.
        let spawn = |index| name(index).spawn_scoped(scope, move || one(index)).expect("a thread per core");
        let others: Vec<_> = (1..count).map(spawn).collect();
        let first = one(0);
        // A panic of a core has aborted the process already.
        let rest = others.into_iter().map(|core| core.join().expect("a core that panics aborts"));
        std::iter::once(first).chain(rest).collect()
    })
}

/// Runs `main` on this thread, inside a runtime. Tasks that it has spawned end with it.
pub fn block_on<R>(main: impl AsyncFnOnce(Real) -> R) -> io::Result<R> {
    Ok(runtime()?.block_on(main(Real)))
}

/// Resolves a host with the resolver of this machine, on a helper thread. At most [`LOOKUPS`] run at once; others wait.
/// A cancelled lookup still counts until it ends, because no resolver can be stopped.
pub async fn resolve(host: &str) -> io::Result<Vec<IpAddr>> {
    let turn = poll_fn(|cx| LookupPermit::poll(cx.waker())).await;
    let host = host.to_owned();
    let look_up = move || {
        let _turn = turn;
        (host, 0).to_socket_addrs().map(|found| found.map(|at| at.ip()).collect())
    };
    let mut found: Vec<IpAddr> = tokio::task::spawn_blocking(look_up).await.map_err(io::Error::other)??;
    found.dedup();
    Ok(found)
}

/// Maximum number of lookups of [`resolve`] at once. The other half of a core's helper threads is for dials by name.
const LOOKUPS: usize = BLOCKING_THREADS / 2;

/// A permit for a lookup.
struct LookupPermit;

static TURNS: Mutex<(usize, Vec<Waker>)> = Mutex::new((LOOKUPS, Vec::new()));

impl LookupPermit {
    fn poll(waker: &Waker) -> Poll<Self> {
        let (free, waiting) = &mut *TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        if *free == 0 {
            waiting.retain(|other| !other.will_wake(waker));
            waiting.push(waker.clone());
            return Poll::Pending;
        }
        *free -= 1;
        Poll::Ready(Self)
    }
}

impl Drop for LookupPermit {
    fn drop(&mut self) {
        let woken = {
            let (free, waiting) = &mut *TURNS.lock().unwrap_or_else(PoisonError::into_inner);
            *free += 1;
            std::mem::take(waiting)
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Raises the limit of open descriptors to its maximum. Returns the new limit.
pub fn raise_nofile() -> io::Result<u64> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// A signal to this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: shut down politely.
    Terminate,
    /// SIGINT: the same, from a terminal.
    Interrupt,
    /// SIGHUP: reload the configuration.
    Hangup,
}

/// The signals received from now on. Their default action is off for the rest of the process's life.
#[derive(Debug)]
pub struct Signals([(Signal, unix::Signal); 3]);

/// Starts to watch for SIGTERM, SIGINT and SIGHUP.
///
/// # Panics
/// Outside a runtime.
pub fn signals() -> io::Result<Signals> {
    Ok(Signals([
        (Signal::Terminate, unix::signal(SignalKind::terminate())?),
        (Signal::Interrupt, unix::signal(SignalKind::interrupt())?),
        (Signal::Hangup, unix::signal(SignalKind::hangup())?),
    ]))
}

impl Signals {
    /// Waits for the next signal. The same signal twice may be reported once. Dropping the future loses no signal.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            let came = self.0.iter_mut().find_map(|(name, s)| s.poll_recv(cx).is_ready().then_some(*name));
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The barrier at which cores wait until each has its runtime.
struct StartBarrier {
    gate: Barrier,
    failed: AtomicBool,
}

fn run_core<R>(core: Core, start: &StartBarrier, main: &impl AsyncFn(Core, Real) -> R) -> io::Result<R> {
    let _bomb = (core.count > 1).then_some(AbortOnPanic);
    let runtime = runtime();
    start.failed.fetch_or(runtime.is_err(), Ordering::Relaxed);
    start.gate.wait();
    let runtime = runtime?;
    if start.failed.load(Ordering::Relaxed) {
        return Err(io::Error::other("another core has no runtime"));
    }
    if core.count > 1 {
        pin(core.index);
    }
    Ok(runtime.block_on(main(core, Real)))
}

fn runtime() -> io::Result<LocalRuntime> {
    static ONCE: Once = Once::new();
    ONCE.call_once(sys::keep_freed);
    let all = sched_getaffinity(None);
    let mut builder = Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(BLOCKING_THREADS);
    if let Ok(all) = all {
        // Helper threads inherit their core's pin. They may run anywhere.
        builder.on_thread_start(move || {
            let _ = sched_setaffinity(None, &all);
        });
    }
    builder.build_local(Default::default())
}

/// Pins this thread to the `index`-th of the processors we may use, modulo their number. A failure only costs speed.
fn pin(index: usize) {
    let Ok(all) = sched_getaffinity(None) else { return };
    let ours: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect();
    let Some(&cpu) = ours.get(index % ours.len().max(1)) else { return };
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(e) = sched_setaffinity(None, &set) {
        tracing::warn!("core {index} is not pinned to processor {cpu}: {e}");
    }
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Maximum number of helper threads of one core, for calls that block (name lookups). Further work waits, bounded by
/// the time limit of its dial.
const BLOCKING_THREADS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn cores_run_side_by_side_and_answer_in_order() {
        // The cores wait for each other: run in sequence they would never end.
        let gate = Barrier::new(2);
        let found = run(2, async |core, _| {
            gate.wait();
            (core.index, core.count)
        });
        assert_eq!(found.expect("runs"), [(0, 2), (1, 2)]);
    }

    #[test]
    fn several_cores_are_pinned_and_their_helpers_are_not() {
        let all = sched_getaffinity(None).expect("known").count();
        let pinned = run(2, async |_, _| {
            let core = sched_getaffinity(None).expect("known").count();
            let helper = tokio::task::spawn_blocking(|| sched_getaffinity(None).expect("known").count());
            (core, helper.await.expect("no panic"))
        });
        assert!(pinned.is_ok_and(|cores| cores.iter().all(|&seen| seen == (1, all))));
    }

    #[test]
    fn tasks_need_not_be_send_and_timers_fire_in_order() {
        block_on(async |env| {
            let (seen, start) = (Rc::new(RefCell::new(Vec::new())), env.now());
            for ms in [3, 1] {
                let (seen, at) = (seen.clone(), start + Duration::from_millis(ms));
                env.spawn(Box::pin(async move {
                    env.sleep_until(at).await;
                    assert!(env.now() >= at);
                    seen.borrow_mut().push(ms);
                }));
            }
            while seen.borrow().len() < 2 {
                env.sleep_until(env.now() + Duration::from_millis(1)).await;
            }
            assert_eq!(*seen.borrow(), [1, 3]);
        })
        .expect("a runtime");
    }

    #[test]
    fn a_signal_is_an_event() {
        block_on(async |_| {
            let mut signals = signals().expect("watched");
            let us = rustix::process::getpid();
            rustix::process::kill_process(us, rustix::process::Signal::HUP).expect("sent");
            assert_eq!(signals.next().await, Signal::Hangup);
        })
        .expect("a runtime");
    }

    #[test]
    fn the_limit_of_descriptors_rises_to_what_is_allowed() {
        let now = raise_nofile().expect("allowed");
        assert_eq!(rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), now);
    }

    #[test]
    fn entropy_differs() {
        let (mut a, mut b) = ([0; 16], [0; 16]);
        Real.entropy(&mut a);
        Real.entropy(&mut b);
        assert_ne!(a, b);
    }
}
