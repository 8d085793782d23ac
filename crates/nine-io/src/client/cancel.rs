//! Orderly cancellation: stops a whole computation and learns its outcome.
//!
//! Dropping a future takes its request back without waiting. A caller that must know the outcome (a mux that answers a
//! Tflush) cancels instead. The call in flight is flushed and awaited, so that its answer counts if it came first
//! (flush(5)). Calls that are not begun yet fail with EINTR.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use super::error::Result;
use super::state::interrupted;

/// A request to stop a computation for a client. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    wished: Arc<AtomicBool>,
    client: u64,
}

impl Cancel {
    /// For a computation on behalf of this client ([`ReqId::conn`](crate::server::ReqId)): its calls are charged to
    /// that client. 0: to no client.
    pub fn of(client: u64) -> Self {
        Self { wished: Arc::default(), client }
    }

    /// Stops the computation in this scope at its next poll; the caller must also wake it.
    pub fn cancel(&self) {
        self.wished.store(true, Ordering::Relaxed);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.wished.load(Ordering::Relaxed)
    }

    /// Wraps `future` so that its calls obey this cancellation.
    pub fn scope<F: Future + Unpin>(self, future: F) -> Scope<F> {
        Scope { cancel: self, future }
    }
}

/// The client for which the current computation of this thread runs.
pub(crate) fn client() -> u64 {
    CURRENT.with_borrow(|current| current.as_ref().map_or(0, |cancel| cancel.client))
}

/// Completes with `future`, or with EINTR as soon as the current computation is cancelled: for waits that are no calls.
/// Then `future` is dropped.
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

/// Whether the current computation of this thread is cancelled.
pub(crate) fn is_cancelled() -> bool {
    CURRENT.with_borrow(|current| current.as_ref().is_some_and(Cancel::is_cancelled))
}

impl<F: Future + Unpin> Future for Scope<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        struct CurrentGuard(Option<Cancel>);
        impl Drop for CurrentGuard {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _restore = CurrentGuard(CURRENT.replace(Some(self.cancel.clone())));
        Pin::new(&mut self.future).poll(cx)
    }
}
