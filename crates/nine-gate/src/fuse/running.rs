//! Requests that wait, and what becomes of them when the kernel interrupts them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_io::client::{Cancel, Scope};
use nine_net::Timer;
use nine_proto::Errno;

use super::{Gate, Outcome};

type Doing = Pin<Box<dyn Future<Output = Outcome>>>;

/// What a request does.
pub(super) struct Work {
    pub future: Doing,
    /// How long it may go on when it is interrupted, before it is flushed.
    pub grace: Duration,
}

/// That a request be interrupted.
#[derive(Default)]
pub(super) struct Wish {
    asked: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Wish {
    pub(super) fn ask(&self) {
        self.asked.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A request under way: done when it has been answered.
pub(super) struct Running {
    gate: Rc<Gate>,
    unique: u64,
    work: Scope<Doing>,
    grace: Duration,
    /// Made when it waits for the first time.
    wish: Option<Rc<Wish>>,
    cancel: Cancel,
    is_answered: bool,
    /// After an interrupt: until it is flushed, then until its caller is let go.
    timer: Option<Timer>,
}

impl Running {
    pub(super) fn new(gate: Rc<Gate>, unique: u64, work: Work) -> Self {
        let cancel = Cancel::default();
        let Work { future, grace } = work;
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

    /// What has come of it so far; an error if its caller is let go.
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
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
                // The server does not even answer the flush: dropping the work leaves it to the client.
                return Poll::Ready(Err(Errno::EINTR));
            }
            self.cancel.cancel();
            self.timer = Some(clock.sleep_until(clock.now() + self.gate.options.patience));
        }
    }
}

impl Future for Running {
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
            let wish = Rc::<Wish>::default();
            this.gate.wishes.borrow_mut().insert(this.unique, wish.clone());
            wish
        });
        wish.waker.replace(Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Running {
    /// Nobody waits for who has ended, and the kernel holds no directory for him.
    fn drop(&mut self) {
        if !self.is_answered {
            self.gate.answer(self.unique, Err(Errno(ECONNABORTED)));
        }
    }
}

/// Of Linux (errno(3)).
const ECONNABORTED: u32 = 103;

impl Gate {
    /// The kernel wants to be rid of a request. One that has been answered is none.
    pub(super) fn interrupt(&self, unique: u64) {
        let wish = self.wishes.borrow().get(&unique).cloned();
        if let Some(wish) = wish {
            wish.ask();
        }
    }
}
