//! A future on a thread of its own: how threads without a runtime read and write streams. Sockets have a
//! [`Reactor`](crate::Reactor) instead.
//!
//! A thread that waits looks for the call for [`LOOKS`] before it sleeps: what two threads pass to and fro is then
//! there in less time than it takes to wake one of them. Where that is in vain it looks seldom.
//!
//! Always holds: a call that comes while the thread is awake is seen before it sleeps; who calls a thread that is awake
//! makes no system call.

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

/// How long a thread looks before it sleeps: longer than it takes to wake another, which may be what it waits for.
#[cfg(not(nine_loom))]
const LOOKS: Duration = Duration::from_micros(100);
/// Looks between two of the clock.
#[cfg(not(nine_loom))]
const GLANCES: u32 = 32;
/// After looks in vain, at most so many waits go without.
const BLIND_MAX: u32 = 256;

/// It runs, and nobody has called.
const AWAKE: u32 = 0;
/// Somebody has called.
const CALLED: u32 = 1;
/// It sleeps, or is about to.
const ASLEEP: u32 = 2;

/// A thread that waits, as those see it who call it.
struct Sleeper {
    state: AtomicU32,
    parker: Parker,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(CALLED, Ordering::AcqRel) == ASLEEP {
            self.parker.unpark();
        }
    }
}

impl Sleeper {
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

/// What a thread keeps from one wait to the next.
struct Kept {
    sleeper: Arc<Sleeper>,
    waker: Waker,
    /// How many waits go without looks, and how many of those there were before.
    blind: (u32, u32),
}

impl Kept {
    fn new() -> Self {
        let sleeper = Arc::new(Sleeper { state: AtomicU32::new(AWAKE), parker: Parker::here() });
        Self { waker: sleeper.clone().into(), sleeper, blind: (0, 0) }
    }

    /// Returns when somebody has called.
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

/// Whether a call comes within [`LOOKS`].
#[cfg(not(nine_loom))]
fn looks(sleeper: &Sleeper) -> bool {
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
fn looks(_: &Sleeper) -> bool {
    false
}

#[cfg(not(nine_loom))]
thread_local! {
    /// A wait within a wait has its own.
    static KEPT: Cell<Option<Kept>> = const { Cell::new(None) };
}

/// Runs a future on this thread, which sleeps while it waits. Its wakers may be called from any thread.
#[cfg(not(nine_loom))]
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut kept = KEPT.take().unwrap_or_else(Kept::new);
    let done = run(&mut kept, future);
    KEPT.set(Some(kept));
    done
}

fn run<T>(kept: &mut Kept, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        // What has been called for until now is found by the poll.
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
            // It is woken, too, and ends.
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
            let mut kept = Kept::new();
            let there = Arc::new(AtomicBool::new(false));
            let (come, waker) = (there.clone(), kept.waker.clone());
            let thread = loom::thread::spawn(move || {
                // The first call is for nothing.
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
