//! One request and the wait for its answer, as a future. Dropping it takes the request back without waiting: the
//! request is flushed, and the fid that a late success made is clunked.

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
use super::state::{AnswerWaiter, ClientShared, interrupted};

/// See the module. It is sent at the first poll, or later if there is no room then.
pub(crate) struct ClientCall<'m> {
    shared: Arc<ClientShared>,
    message: Tmsg<'m>,
    payload: Option<Bytes>,
    stage: CallStage,
}

enum CallStage {
    New,
    Begun(usize),
    /// It failed before it was sent.
    Failed(Error),
    Over,
}

impl<'m> ClientCall<'m> {
    pub(crate) fn new(shared: &Arc<ClientShared>, message: Tmsg<'m>) -> Self {
        Self { shared: shared.clone(), message, payload: None, stage: CallStage::New }
    }

    /// `payload` is the end of the message, which itself holds only a count.
    pub(crate) fn with_payload(shared: &Arc<ClientShared>, message: Tmsg<'m>, payload: Bytes) -> Self {
        let mut call = Self::new(shared, message);
        call.payload = Some(payload);
        call
    }

    /// Returns the begun call without its message, which is no longer needed.
    pub(crate) fn begun(mut self) -> ClientCall<'static> {
        assert!(!matches!(self.stage, CallStage::New), "it has been begun");
        let stage = std::mem::replace(&mut self.stage, CallStage::Over);
        let message = Tmsg::Flush { oldtag: NOTAG };
        ClientCall { shared: self.shared.clone(), message, payload: None, stage }
    }

    /// Sends it now, or queues it if there is no room. The answer must still be awaited.
    pub(crate) async fn send(&mut self) {
        let begun = poll_fn(|cx| {
            self.begin(cx);
            Poll::Ready(())
        });
        begun.await;
    }

    /// [`ClientCall::send`] for hand-written futures.
    pub(crate) fn begin(&mut self, cx: &mut Context<'_>) {
        // An answer never arrives at the first poll.
        if let Poll::Ready(Err(error)) = Pin::new(&mut *self).poll(cx) {
            self.stage = CallStage::Failed(error);
        }
    }
}

impl Future for ClientCall<'_> {
    type Output = Result<Answer>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { shared, message, payload, stage } = self.get_mut();
        let cancelled = cancel::is_cancelled();
        let answer = match stage {
            CallStage::New if cancelled => {
                shared.with(|state| state.unsent(message));
                Err(interrupted())
            }
            CallStage::New => {
                let waiter = AnswerWaiter::Waker(cx.waker().clone());
                match shared.with(|state| state.begin(message, payload.take(), waiter)) {
                    Ok(call) => {
                        *stage = CallStage::Begun(call);
                        return Poll::Pending;
                    }
                    Err(error) => Err(error),
                }
            }
            &mut CallStage::Begun(call) => {
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
            CallStage::Failed(error) => Err(error.clone()),
            CallStage::Over => panic!("a call is polled no more after its answer"),
        };
        *stage = CallStage::Over;
        Poll::Ready(answer)
    }
}

impl Drop for ClientCall<'_> {
    fn drop(&mut self) {
        match self.stage {
            CallStage::New => self.shared.with(|state| state.unsent(&self.message)),
            CallStage::Begun(call) => self.shared.with(|state| state.abandon(call)),
            CallStage::Failed(_) | CallStage::Over => {}
        }
    }
}
