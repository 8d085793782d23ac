//! Forwards a request; no future and no task waits for its answer.
//!
//! In: a client's request that will be answered [`Later`], and the message that requests the same from a server. Out: a
//! call of [`Forward::answered`] on the driver's task, in the order of the answers.

use std::sync::Arc;

use bytes::Bytes;
use nine_proto::msg::Tmsg;
use nine_proto::{Fid, Qid};

use super::Client;
use super::answer::Answer;
use super::call::ClientCall;
use super::error::{Error, Result};
use super::file::File;
use super::state::AnswerWaiter;
use crate::server::{Later, ReqId, Request};

/// Converts a server's answers into answers for clients.
pub trait Forward: Send + Sync + 'static {
    /// Handles the server's answer to the message for `later`. `made` is the fid that a walk, an attach or an xattrwalk
    /// created. Must not block; may use the client.
    fn answered(self: Arc<Self>, later: Later, answer: Result<Answer>, made: Option<Fid>);

    /// Handles a message that was not sent: the connection is gone, or the message does not fit. May use the client.
    fn refused(self: Arc<Self>, later: Later, error: Error);

    /// Whether an answered read is lost if its answer is dropped, as with a pipe.
    fn takes(&self, later: &Later) -> bool {
        let _ = later;
        false
    }
}

/// Timeouts of waiting for an Rflush, in calls of [`Client::tick`].
#[derive(Clone, Copy, Debug)]
pub struct FlushLimits {
    /// Until a request that changes nothing is answered EINTR.
    pub reads: u32,
    /// Until a request that may have changed something is answered EINTR. It waits longer, because only the server's
    /// answer shows whether the change happened.
    pub changes: u32,
    /// Until the Rflush is overdue.
    pub overdue: u32,
}

/// See the module.
pub(crate) struct ForwardedRequest {
    later: Later,
    by: Arc<dyn Forward>,
}

impl ForwardedRequest {
    /// See [`Forward::takes`].
    pub(crate) fn takes(&self) -> bool {
        self.by.takes(&self.later)
    }

    /// The client that sent the request.
    pub(crate) fn client(&self) -> u64 {
        self.later.id().conn
    }

    pub(crate) fn tell(self, answer: Result<Answer>, made: Option<Fid>) {
        self.by.answered(self.later, answer, made);
    }
}

impl Client {
    /// Forwards a request. `message` returns the message to send; a payload is the end of a message that itself holds
    /// only a count. If there is no room, the call waits for its client's turn, like every call.
    pub fn forward<F>(&self, later: Later, by: Arc<dyn Forward>, message: F)
    where
        F: for<'r> FnOnce(&'r Request) -> (Tmsg<'r>, Option<Bytes>),
    {
        let client = later.id().conn;
        let forwarded = Box::new(ForwardedRequest { later, by });
        let refused = self.0.shared.with(|state| {
            let (message, payload) = message(&forwarded.later);
            match state.begin(&message, payload, AnswerWaiter::Unknown(client)) {
                Ok(call) => {
                    state.forward(call, forwarded);
                    None
                }
                Err(error) => Some((forwarded, error)),
            }
        });
        if let Some((forwarded, error)) = refused {
            forwarded.by.refused(forwarded.later, error);
        }
    }

    /// Flushes a forwarded request. [`Forward::answered`] is called all the same: with the answer if that came first,
    /// else with EINTR. Returns whether the request was in flight here.
    pub fn flush_forwarded(&self, id: ReqId) -> bool {
        self.0.shared.with(|state| state.flush_forwarded(|forwarded| forwarded.later.id() == id))
    }

    /// To be called periodically after a request was taken back, until no flush is in progress. Requests that have
    /// waited for an Rflush beyond `limits` are answered EINTR. Returns how many Rflushes are overdue, and how many are
    /// not yet. Overdue ones keep their tags and fids in use; if they become many, give up the server
    /// ([`Client::abort`]).
    pub fn tick(&self, limits: FlushLimits) -> (usize, usize) {
        self.0.shared.with(|state| state.tick(limits))
    }

    /// Returns a fid number for a message of [`Client::forward`]. If it is not used, it is lost until the session ends.
    pub fn new_fid(&self) -> Result<Fid> {
        self.fid()
    }

    /// Returns the file of a fid that [`Forward::answered`] received as `made`.
    pub fn adopt(&self, fid: Fid, qid: Qid) -> File {
        File::new(self, fid, qid)
    }

    /// Sends a message for which there is no other method.
    pub async fn ask(&self, message: Tmsg<'_>) -> Result<Answer> {
        self.call(message).await
    }

    /// Like [`Client::ask`], with a payload: the end of a message that itself holds only a count.
    pub async fn ask_with(&self, message: Tmsg<'_>, payload: Option<Bytes>) -> Result<Answer> {
        match payload {
            Some(payload) => ClientCall::with_payload(&self.0.shared, message, payload).await,
            None => self.call(message).await,
        }
    }
}
