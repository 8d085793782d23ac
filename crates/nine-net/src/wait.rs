//! Runs a future on the calling thread, for threads without a runtime that read and write streams. Sockets have a
//! [`Reactor`](crate::Reactor) instead.
//!
//! Before it sleeps, a thread spins for its wake-up for [`LOOKS`]. If two threads exchange data, that is faster than to
//! wake one of them. After it has spun in vain, it spins less often.
//!
//! Always holds: a wake-up that arrives while the thread is awake is seen before it sleeps. To wake a thread that is
//! awake takes no system call.

#[cfg(not(nine_loom))]
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
#[cfg(not(nine_loom))]
use std::time::{Duration, Instant};

use crate::sync::{AtomicU32, Parker};

/// How long a thread spins before it sleeps: longer than it takes to wake another thread, which may wake it in turn.
#[cfg(not(nine_loom))]
const LOOKS: Duration = Duration::from_micros(100);
/// Checks between two readings of the clock.
#[cfg(not(nine_loom))]
const GLANCES: u32 = 32;
/// Maximum number of waits without spinning after spinning was in vain.
const BLIND_MAX: u32 = 256;

/// It runs, without a wake-up since its last poll.
const AWAKE: u32 = 0;
/// It was woken.
const CALLED: u32 = 1;
/// It sleeps, or is about to sleep.
const ASLEEP: u32 = 2;

/// A waiting thread, as its wakers see it.
struct SleepingThread {
    state: AtomicU32,
    parker: Parker,
}

impl Wake for SleepingThread {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(CALLED, Ordering::AcqRel) == ASLEEP {
            self.parker.unpark();
        }
    }
}

impl SleepingThread {
    fn is_called(&self) -> bool {
        self.state.load(Ordering::Acquire) == CALLED
    }

    fn sleep(&self) {
        let asleep = self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        while asleep.is_ok() && !self.is_called() {
            self.parker.park(None);
        }
    }
}

/// State of a thread from one wait to the next.
struct ThreadState {
    sleeper: Arc<SleepingThread>,
    waker: Waker,
    /// The waits left without spinning, and the last such number.
    blind: (u32, u32),
}

impl ThreadState {
    fn new() -> Self {
        let sleeper = Arc::new(SleepingThread { state: AtomicU32::new(AWAKE), parker: Parker::here() });
        Self { waker: sleeper.clone().into(), sleeper, blind: (0, 0) }
    }

    /// Returns after a wake-up.
    fn sleep(&mut self) {
        if self.blind.0 > 0 {
            self.blind.0 -= 1;
        } else if looks(&self.sleeper) {
            self.blind = (0, 0);
            return;
        } else {
            let more = (2 * self.blind.1 + 1).min(BLIND_MAX);
            self.blind = (more, more);
        }
        self.sleeper.sleep();
    }
}

/// Spins. Returns whether a wake-up arrives within [`LOOKS`].
#[cfg(not(nine_loom))]
fn looks(sleeper: &SleepingThread) -> bool {
    let begun = Instant::now();
    loop {
        for _ in 0..GLANCES {
            if sleeper.is_called() {
                return true;
            }
            std::hint::spin_loop();
        }
        if begun.elapsed() > LOOKS {
            return false;
        }
    }
}

#[cfg(nine_loom)]
fn looks(_: &SleepingThread) -> bool {
    false
}

#[cfg(not(nine_loom))]
thread_local! {
    /// A nested wait has its own.
    static KEPT: Cell<Option<ThreadState>> = const { Cell::new(None) };
}

/// Runs a future on this thread, which sleeps while it waits. The future's wakers may be called from any thread.
#[cfg(not(nine_loom))]
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut kept = KEPT.take().unwrap_or_else(ThreadState::new);
    let done = run(&mut kept, future);
    KEPT.set(Some(kept));
    done
}

fn run<T>(kept: &mut ThreadState, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        // The poll handles all wake-ups up to now.
        kept.sleeper.state.swap(AWAKE, Ordering::AcqRel);
        match future.as_mut().poll(&mut Context::from_waker(&kept.waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => kept.sleep(),
        }
    }
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use super::*;
    use nine_stream::{Make, Pool, pipe};

    #[test]
    fn bytes_go_to_and_fro_between_threads_whether_they_look_or_sleep() {
        let (near, far) = pipe(&Make::new(Pool::new(1 << 20)));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut byte = [0];
                while wait(far.read(&mut byte)).unwrap() == 1 {
                    wait(far.write(&byte)).unwrap();
                }
            });
            for n in 0..20_000u32 {
                let mut byte = [n as u8];
                wait(near.write(&byte)).unwrap();
                assert_eq!(wait(near.read(&mut byte)).unwrap(), 1);
                assert_eq!(byte[0], n as u8);
            }
            drop(near);
        });
    }

    #[test]
    fn a_wait_within_a_wait_does_not_take_its_call() {
        let mut called = false;
        let done = wait(std::future::poll_fn(|cx| {
            if called {
                return Poll::Ready(7);
            }
            called = true;
            cx.waker().wake_by_ref();
            // The inner wait is woken too, and ends.
            let mut first = true;
            wait(std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                if std::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }
            }));
            Poll::Pending
        }));
        assert_eq!(done, 7);
    }
}

#[cfg(all(test, nine_loom))]
mod orders {
    use super::*;
    use loom::sync::atomic::AtomicBool;

    #[test]
    fn no_call_is_lost_between_the_poll_and_the_sleep_in_any_order() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let mut kept = ThreadState::new();
            let there = Arc::new(AtomicBool::new(false));
            let (come, waker) = (there.clone(), kept.waker.clone());
            let thread = loom::thread::spawn(move || {
                // The first wake-up has no cause.
                waker.wake_by_ref();
                come.store(true, Ordering::Release);
                waker.wake();
            });
            let ready = || if there.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending };
            run(&mut kept, std::future::poll_fn(|_| ready()));
            thread.join().unwrap();
        });
    }
}
