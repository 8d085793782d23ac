//! Giving up in good order: a whole computation is told to stop, and says what became of it.
//!
//! Dropping a future takes its request back and waits for nothing. Who owes somebody the truth (a mux that answers a
//! Tflush) cancels instead: the call that is under way is flushed and waited for, so that its answer, if it came first,
//! counts (flush(5)); calls that are not yet begun fail with EINTR.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use super::error::Result;
use super::state::interrupted;

/// A wish to stop, of a client of ours. Clones are the same wish.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    wished: Arc<AtomicBool>,
    client: u64,
}

impl Cancel {
    /// For a computation that is done for this client ([`ReqId::conn`](crate::server::ReqId)): its calls count as that
    /// client's. 0: for nobody but us.
    pub fn of(client: u64) -> Self {
        Self { wished: Arc::default(), client }
    }

    /// Stops what runs in this scope, from its next poll on: whoever cancels also wakes it.
    pub fn cancel(&self) {
        self.wished.store(true, Ordering::Relaxed);
    }

    /// Whether it was wished.
    pub fn is_cancelled(&self) -> bool {
        self.wished.load(Ordering::Relaxed)
    }

    /// `future`, whose calls heed this wish.
    pub fn scope<F: Future + Unpin>(self, future: F) -> Scope<F> {
        Scope { cancel: self, future }
    }
}

/// The client for which the computation is done that is polled on this thread now.
pub(crate) fn client() -> u64 {
    CURRENT.with_borrow(|current| current.as_ref().map_or(0, |cancel| cancel.client))
}

/// `future`, or EINTR as soon as the computation it is part of shall stop: for waits that are no calls. What it has
/// begun is dropped.
pub async fn heed<T>(future: impl Future<Output = T>) -> Result<T> {
    let mut future = pin!(future);
    poll_fn(|cx| match is_cancelled() {
        true => Poll::Ready(Err(interrupted())),
        false => future.as_mut().poll(cx).map(Ok),
    })
    .await
}

/// See [`Cancel::scope`].
#[derive(Debug)]
pub struct Scope<F> {
    cancel: Cancel,
    future: F,
}

thread_local! {
    static CURRENT: RefCell<Option<Cancel>> = const { RefCell::new(None) };
}

/// Whether the computation that is polled on this thread now shall stop.
pub(crate) fn is_cancelled() -> bool {
    CURRENT.with_borrow(|current| current.as_ref().is_some_and(Cancel::is_cancelled))
}

impl<F: Future + Unpin> Future for Scope<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        struct Restore(Option<Cancel>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _restore = Restore(CURRENT.replace(Some(self.cancel.clone())));
        Pin::new(&mut self.future).poll(cx)
    }
}
