//! Threads of the program's own: the connections, which the program schedules itself (the last paragraph of Hickey's
//! thesis).
//!
//! In: futures, each with its [`OrderCard`]. Out: one future, which polls the woken ones in the order of a
//! [`Schedule`], and grants the few slots of [`ConnectionThreads::slot`] in the same order.
//!
//! Always holds: everything but a wake-up happens on the core that polls. A thread that is woken while it runs runs
//! again. After [`THREADS_PER_SLICE`] threads other tasks of the core run.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
#[cfg(not(nine_loom))]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

#[cfg(nine_loom)]
use loom::sync::atomic::AtomicBool;
use nine_net::lock::{Mutex, lock};

use super::order::{ConnectionOrder, OrderCard, Schedule};

/// Threads that run before other tasks of the core.
const THREADS_PER_SLICE: usize = 32;

type ThreadFuture = Pin<Box<dyn Future<Output = ()>>>;

/// See the module. Clones share the threads.
#[derive(Clone)]
pub(super) struct ConnectionThreads(Rc<ThreadTable>);

struct ThreadTable {
    ready: Arc<WokenThreads>,
    threads: RefCell<Vec<ThreadSlot>>,
    free: RefCell<Vec<usize>>,
    /// Threads that may run.
    order: RefCell<ConnectionOrder>,
    live: Cell<usize>,
    /// Threads that continue after all other work of this core.
    later: RefCell<Vec<usize>>,
    /// Tasks that wait until there are fewer threads.
    fewer: RefCell<Vec<Waker>>,
    slots: Cell<usize>,
    /// Threads that wait for a slot.
    waiting: RefCell<ConnectionOrder>,
    now: Cell<Duration>,
}

struct ThreadSlot {
    /// `None`: it is running, or has ended.
    body: Option<ThreadFuture>,
    card: Rc<OrderCard>,
    bell: Arc<ThreadWaker>,
    /// It was granted a slot that it waited for.
    given: Cell<bool>,
}

/// Threads woken since the last check, and the waker of [`ConnectionThreads::run`].
struct WokenThreads {
    woken: Mutex<(Vec<usize>, Option<Waker>)>,
}

struct ThreadWaker {
    number: usize,
    rung: AtomicBool,
    ready: Arc<WokenThreads>,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.rung.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut woken = lock(&self.ready.woken);
        woken.0.push(self.number);
        let main = woken.1.take();
        drop(woken);
        main.into_iter().for_each(Waker::wake);
    }
}

impl ConnectionThreads {
    /// Starts with no threads. At most `slots` threads hold a slot at once.
    pub(super) fn new(schedule: Schedule, slots: usize) -> Self {
        Self(Rc::new(ThreadTable {
            ready: Arc::new(WokenThreads { woken: Mutex::new((Vec::new(), None)) }),
            threads: RefCell::default(),
            free: RefCell::default(),
            order: RefCell::new(ConnectionOrder::of_wakes(schedule)),
            live: Cell::new(0),
            later: RefCell::default(),
            fewer: RefCell::default(),
            slots: Cell::new(slots),
            waiting: RefCell::new(ConnectionOrder::new(schedule)),
            now: Cell::new(Duration::ZERO),
        }))
    }

    /// The number of threads.
    pub(super) fn live(&self) -> usize {
        self.0.live.get()
    }

    /// The time at which the present poll began.
    pub(super) fn now(&self) -> Duration {
        self.0.now.get()
    }

    /// Starts a thread, which gets its number and its card.
    pub(super) fn spawn<F: Future<Output = ()> + 'static>(
        &self,
        body: impl FnOnce(usize, Rc<OrderCard>) -> F,
    ) {
        let inner = &*self.0;
        let number = inner.free.borrow_mut().pop().unwrap_or(inner.threads.borrow().len());
        let card = Rc::new(OrderCard::default());
        card.since.set(inner.now.get());
        let body = Box::pin(body(number, card.clone()));
        let bell = Arc::new(ThreadWaker { number, rung: AtomicBool::new(false), ready: inner.ready.clone() });
        let slot = ThreadSlot { body: Some(body), card, bell: bell.clone(), given: Cell::new(false) };
        let mut threads = inner.threads.borrow_mut();
        match threads.get_mut(number) {
            Some(old) => *old = slot,
            None => threads.push(slot),
        }
        drop(threads);
        inner.live.set(inner.live.get() + 1);
        bell.wake();
    }

    /// Wakes a thread.
    pub(super) fn wake(&self, number: usize) {
        let bell = self.0.threads.borrow().get(number).map(|slot| slot.bell.clone());
        bell.into_iter().for_each(Wake::wake);
    }

    /// Wakes threads that have become late, so that they end.
    pub(super) fn sweep(&self, now: Duration) {
        let threads = self.0.threads.borrow();
        threads.iter().filter(|slot| slot.card.becomes_late(now)).for_each(|slot| slot.bell.wake_by_ref());
    }

    /// Gives idle threads a deadline of `until`, unless a request arrives before.
    pub(super) fn hurry(&self, until: Duration) {
        self.0
            .threads
            .borrow()
            .iter()
            .filter(|slot| slot.card.idle.get())
            .for_each(|slot| slot.card.hurry(until));
    }

    /// Lets other threads run that are ahead in the order.
    pub(super) async fn pass(&self, number: usize) {
        let mut passed = false;
        poll_fn(|_| {
            if std::mem::replace(&mut passed, true) {
                return Poll::Ready(());
            }
            self.wake(number);
            Poll::Pending
        })
        .await;
    }

    /// Lets everything else on this core run first, not only other threads.
    pub(super) async fn yield_core(&self, number: usize) {
        let mut passed = false;
        poll_fn(|_| {
            if std::mem::replace(&mut passed, true) {
                return Poll::Ready(());
            }
            self.0.later.borrow_mut().push(number);
            Poll::Pending
        })
        .await;
    }

    /// Waits until there are fewer than `most` threads.
    pub(super) async fn fewer(&self, most: usize) {
        poll_fn(|cx| {
            if self.live() < most {
                return Poll::Ready(());
            }
            self.0.fewer.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits for a slot, which is held until the result is dropped. Only for the thread with this number.
    pub(super) async fn slot(&self, number: usize) -> HeldSlot<'_> {
        let inner = &*self.0;
        let mut place = SlotWait { inner, number, waits: false };
        poll_fn(|_| place.poll()).await;
        place.waits = false;
        HeldSlot { inner }
    }

    /// Drops all threads.
    pub(super) fn end(&self) {
        let bodies: Vec<_> =
            self.0.threads.borrow_mut().iter_mut().filter_map(|slot| slot.body.take()).collect();
        // Their destructors may call this object.
        drop(bodies);
        self.0.live.set(0);
    }

    /// Polls the threads as they are woken. Never ends.
    pub(super) async fn run(&self, now: impl Fn() -> Duration) {
        poll_fn(|cx| {
            for number in self.0.later.take() {
                self.wake(number);
            }
            let turn = self.0.turn(cx, now());
            if !self.0.later.borrow().is_empty() {
                cx.waker().wake_by_ref();
            }
            turn
        })
        .await
    }
}

/// A wait for a slot. If it is dropped, a slot granted meanwhile goes to the next waiter.
struct SlotWait<'t> {
    inner: &'t ThreadTable,
    number: usize,
    waits: bool,
}

impl SlotWait<'_> {
    fn poll(&mut self) -> Poll<()> {
        let threads = self.inner.threads.borrow();
        let slot = &threads[self.number];
        if slot.given.take() {
            return Poll::Ready(());
        }
        if self.inner.slots.get() > 0 {
            self.inner.slots.set(self.inner.slots.get() - 1);
            self.inner.waiting.borrow_mut().remove(self.number);
            return Poll::Ready(());
        }
        self.waits = true;
        self.inner.waiting.borrow_mut().push(self.number, &slot.card);
        Poll::Pending
    }
}

impl Drop for SlotWait<'_> {
    fn drop(&mut self) {
        if !self.waits {
            return;
        }
        self.inner.waiting.borrow_mut().remove(self.number);
        let given = self.inner.threads.borrow().get(self.number).is_some_and(|slot| slot.given.take());
        if given {
            self.inner.give_back();
        }
    }
}

/// A held slot.
pub(super) struct HeldSlot<'t> {
    inner: &'t ThreadTable,
}

impl Drop for HeldSlot<'_> {
    fn drop(&mut self) {
        self.inner.give_back();
    }
}

impl ThreadTable {
    fn give_back(&self) {
        match self.waiting.borrow_mut().pop(self.now.get()) {
            Some(next) => {
                let threads = self.threads.borrow();
                threads[next].given.set(true);
                threads[next].bell.wake_by_ref();
            }
            None => self.slots.set(self.slots.get() + 1),
        }
    }

    fn turn(&self, cx: &mut Context<'_>, now: Duration) -> Poll<()> {
        self.now.set(now);
        for _ in 0..THREADS_PER_SLICE {
            self.take_woken();
            let next = self.order.borrow_mut().pop(now);
            let Some(number) = next else {
                let mut woken = lock(&self.ready.woken);
                if !woken.0.is_empty() {
                    continue;
                }
                woken.1 = Some(cx.waker().clone());
                return Poll::Pending;
            };
            self.run(number);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Moves the woken threads to the order.
    fn take_woken(&self) {
        let woken = std::mem::take(&mut lock(&self.ready.woken).0);
        let threads = self.threads.borrow();
        let mut order = self.order.borrow_mut();
        for &number in &woken {
            order.push(number, &threads[number].card);
        }
        drop((threads, order));
        // Reuse the list's memory.
        let mut list = lock(&self.ready.woken);
        if list.0.is_empty() && woken.capacity() <= 1024 {
            let mut woken = woken;
            woken.clear();
            list.0 = woken;
        }
    }

    fn run(&self, number: usize) {
        let (body, bell) = {
            let mut threads = self.threads.borrow_mut();
            let slot = &mut threads[number];
            (slot.body.take(), slot.bell.clone())
        };
        // A late wake-up of an ended thread.
        let Some(mut body) = body else { return };
        bell.rung.store(false, Ordering::Release);
        let waker = Waker::from(bell);
        if body.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.threads.borrow_mut()[number].body = Some(body);
            return;
        }
        drop(body);
        self.free.borrow_mut().push(number);
        self.live.set(self.live.get() - 1);
        self.fewer.take().into_iter().for_each(Waker::wake);
    }
}

#[cfg(all(test, nine_loom))]
mod tests {
    use loom::future::block_on;
    use loom::thread;

    use super::*;

    #[test]
    fn a_thread_woken_from_another_core_is_never_left_lying_in_any_order() {
        loom::model(|| {
            let threads = ConnectionThreads::new(Schedule::Fifo, 1);
            let place = Arc::new(Mutex::new((false, None::<Waker>)));
            let waits = place.clone();
            threads.spawn(|_, _| {
                poll_fn(move |cx| {
                    let mut place = lock(&waits);
                    if place.0 {
                        return Poll::Ready(());
                    }
                    place.1 = Some(cx.waker().clone());
                    Poll::Pending
                })
            });
            let other = thread::spawn(move || {
                let mut place = lock(&place);
                place.0 = true;
                let waker = place.1.take();
                drop(place);
                waker.into_iter().for_each(Waker::wake);
            });
            block_on(poll_fn(|cx| {
                let _ = threads.0.turn(cx, Duration::ZERO);
                if threads.live() == 0 { Poll::Ready(()) } else { Poll::Pending }
            }));
            other.join().unwrap();
        });
    }
}
