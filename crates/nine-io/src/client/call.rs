//! One request and the wait for its answer, as a future. Dropping it takes the request back without waiting: the
//! request is flushed, and the effect of a late success is undone.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use nine_proto::NOTAG;
use nine_proto::msg::Tmsg;

use super::answer::Answer;
use super::cancel;
use super::error::{Error, Result};
use super::state::{Shared, Waiter, interrupted};

/// See the module. It is sent at the first poll, or later if there is no room then.
pub(crate) struct Call<'m> {
    shared: Arc<Shared>,
    message: Tmsg<'m>,
    payload: Option<Bytes>,
    stage: Stage,
}

enum Stage {
    New,
    Begun(usize),
    /// It failed before it was sent.
    Failed(Error),
    Over,
}

impl<'m> Call<'m> {
    pub(crate) fn new(shared: &Arc<Shared>, message: Tmsg<'m>) -> Self {
        Self { shared: shared.clone(), message, payload: None, stage: Stage::New }
    }

    /// `payload` is the end of the message, which itself holds only a count.
    pub(crate) fn with_payload(shared: &Arc<Shared>, message: Tmsg<'m>, payload: Bytes) -> Self {
        let mut call = Self::new(shared, message);
        call.payload = Some(payload);
        call
    }

    /// Returns the begun call without its message, which is no longer needed.
    pub(crate) fn begun(mut self) -> Call<'static> {
        assert!(!matches!(self.stage, Stage::New), "it has been begun");
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        let message = Tmsg::Flush { oldtag: NOTAG };
        Call { shared: self.shared.clone(), message, payload: None, stage }
    }

    /// Sends it now, or queues it if there is no room. The answer must still be awaited.
    pub(crate) async fn send(&mut self) {
        let begun = poll_fn(|cx| {
            self.begin(cx);
            Poll::Ready(())
        });
        begun.await;
    }

    /// [`Call::send`] for hand-written futures.
    pub(crate) fn begin(&mut self, cx: &mut Context<'_>) {
        // An answer never arrives at the first poll.
        if let Poll::Ready(Err(error)) = Pin::new(&mut *self).poll(cx) {
            self.stage = Stage::Failed(error);
        }
    }
}

impl Future for Call<'_> {
    type Output = Result<Answer>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { shared, message, payload, stage } = self.get_mut();
        let cancelled = cancel::is_cancelled();
        let answer = match stage {
            Stage::New if cancelled => {
                shared.with(|state| state.unsent(message));
                Err(interrupted())
            }
            Stage::New => {
                let waiter = Waiter::Waker(cx.waker().clone());
                match shared.with(|state| state.begin(message, payload.take(), waiter)) {
                    Ok(call) => {
                        *stage = Stage::Begun(call);
                        return Poll::Pending;
                    }
                    Err(error) => Err(error),
                }
            }
            &mut Stage::Begun(call) => {
                let polled = shared.with(|state| {
                    if cancelled {
                        state.flush(call);
                    }
                    state.poll(call, cx.waker())
                });
                match polled {
                    Poll::Ready(answer) => answer,
                    Poll::Pending => return Poll::Pending,
                }
            }
            Stage::Failed(error) => Err(error.clone()),
            Stage::Over => panic!("a call is polled no more after its answer"),
        };
        *stage = Stage::Over;
        Poll::Ready(answer)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        match self.stage {
            Stage::New => self.shared.with(|state| state.unsent(&self.message)),
            Stage::Begun(call) => self.shared.with(|state| state.abandon(call)),
            Stage::Failed(_) | Stage::Over => {}
        }
    }
}
