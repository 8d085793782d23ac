//! Requests in flight, and their interruption by the kernel.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_io::client::{Cancel, Scope};
use nine_net::Timer;
use nine_proto::Errno;

use super::{FuseResult, MountState};

type RequestFuture = Pin<Box<dyn Future<Output = FuseResult>>>;

/// The work for a request.
pub(super) struct RequestWork {
    pub future: RequestFuture,
    /// How long it may continue after an interrupt before it is flushed.
    pub grace: Duration,
}

/// The wish to interrupt a request.
#[derive(Default)]
pub(super) struct InterruptWish {
    asked: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl InterruptWish {
    pub(super) fn ask(&self) {
        self.asked.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A request in flight. Ends when it has been answered.
pub(super) struct RunningRequest {
    gate: Rc<MountState>,
    unique: u64,
    work: Scope<RequestFuture>,
    grace: Duration,
    /// Created when the request waits for the first time.
    wish: Option<Rc<InterruptWish>>,
    cancel: Cancel,
    is_answered: bool,
    /// After an interrupt: runs until the flush, then until the caller gets EINTR.
    timer: Option<Timer>,
}

impl RunningRequest {
    pub(super) fn new(gate: Rc<MountState>, unique: u64, work: RequestWork) -> Self {
        let cancel = Cancel::default();
        let RequestWork { future, grace } = work;
        Self {
            gate,
            unique,
            work: cancel.clone().scope(future),
            grace,
            wish: None,
            cancel,
            is_answered: false,
            timer: None,
        }
    }

    /// Returns the outcome, EINTR if the server does not answer the flush in time.
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<FuseResult> {
        loop {
            if let Poll::Ready(outcome) = Pin::new(&mut self.work).poll(cx) {
                return Poll::Ready(outcome);
            }
            if !self.wish.as_ref().is_some_and(|wish| wish.asked.get()) {
                return Poll::Pending;
            }
            let clock = &self.gate.clock;
            let timer = self.timer.get_or_insert_with(|| clock.sleep_until(clock.now() + self.grace));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if self.cancel.is_cancelled() {
                // The server does not answer the flush either. Dropping the work leaves it to the client.
                return Poll::Ready(Err(Errno::EINTR));
            }
            self.cancel.cancel();
            self.timer = Some(clock.sleep_until(clock.now() + self.gate.options.patience));
        }
    }
}

impl Future for RunningRequest {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if let Poll::Ready(outcome) = this.step(cx) {
            if this.wish.take().is_some() {
                this.gate.wishes.borrow_mut().remove(&this.unique);
            }
            this.gate.answer(this.unique, outcome);
            this.is_answered = true;
            return Poll::Ready(());
        }
        let wish = this.wish.get_or_insert_with(|| {
            let wish = Rc::<InterruptWish>::default();
            this.gate.wishes.borrow_mut().insert(this.unique, wish.clone());
            wish
        });
        wish.waker.replace(Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for RunningRequest {
    /// Answers a request that is dropped unfinished, so that its caller and the locks of its directory are released.
    fn drop(&mut self) {
        if !self.is_answered {
            self.gate.answer(self.unique, Err(Errno(ECONNABORTED)));
        }
    }
}

/// Linux' number (errno(3)).
const ECONNABORTED: u32 = 103;

impl MountState {
    /// Handles INTERRUPT. Does nothing if the request has been answered.
    pub(super) fn interrupt(&self, unique: u64) {
        let wish = self.wishes.borrow().get(&unique).cloned();
        if let Some(wish) = wish {
            wish.ask();
        }
    }
}
