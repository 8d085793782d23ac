//! Passing a request on: the answer is told, no future and no task waits for it.
//!
//! In: a request of a client of ours that will be answered [`Later`], and the message that asks a server for the same.
//! Out: [`Forward::answered`], on the driver's task, in the order of the answers.

use std::sync::Arc;

use bytes::Bytes;
use nine_proto::msg::Tmsg;
use nine_proto::{Fid, Qid};

use super::Client;
use super::answer::Answer;
use super::call::Call;
use super::error::{Error, Result};
use super::file::File;
use super::state::Waiter;
use crate::server::{Later, ReqId, Request};

/// Who turns answers into answers.
pub trait Forward: Send + Sync + 'static {
    /// The server's answer to what was asked for `later`. `made`: the fid that a walk, an attach or an xattrwalk made.
    /// Must not block; may use the client.
    fn answered(self: Arc<Self>, later: Later, answer: Result<Answer>, made: Option<Fid>);

    /// It was not sent: the connection is gone, or the message does not fit. May use the client.
    fn refused(self: Arc<Self>, later: Later, error: Error);

    /// Whether it is lost if a read was answered and nobody took the answer, as of a pipe.
    fn takes(&self, later: &Later) -> bool {
        let _ = later;
        false
    }
}

/// For how many calls of [`Client::tick`] somebody waits for an Rflush.
#[derive(Clone, Copy, Debug)]
pub struct FlushLimits {
    /// Until a request that changes nothing is answered EINTR.
    pub reads: u32,
    /// Until a request that may have changed something is answered EINTR. It waits longer, because only the server's
    /// answer tells whether the change happened.
    pub changes: u32,
    /// Until the Rflush is overdue.
    pub overdue: u32,
}

/// See the module.
pub(crate) struct Forwarded {
    later: Later,
    by: Arc<dyn Forward>,
}

impl Forwarded {
    /// See [`Forward::takes`].
    pub(crate) fn takes(&self) -> bool {
        self.by.takes(&self.later)
    }

    /// The client whose request it is.
    pub(crate) fn client(&self) -> u64 {
        self.later.id().conn
    }

    pub(crate) fn tell(self, answer: Result<Answer>, made: Option<Fid>) {
        self.by.answered(self.later, answer, made);
    }
}

impl Client {
    /// Passes a request on: `message` says what asks for it here; a payload is the end of a message whose own data is
    /// only a count. While there is no room it waits, like every call, until its client has its turn.
    pub fn forward<F>(&self, later: Later, by: Arc<dyn Forward>, message: F)
    where
        F: for<'r> FnOnce(&'r Request) -> (Tmsg<'r>, Option<Bytes>),
    {
        let client = later.id().conn;
        let forwarded = Box::new(Forwarded { later, by });
        let refused = self.0.shared.with(|state| {
            let (message, payload) = message(&forwarded.later);
            match state.begin(&message, payload, Waiter::Unknown(client)) {
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

    /// Nobody needs the answer to this request any more: its server is told so. [`Forward::answered`] comes all the
    /// same: with the answer if that was first, else with EINTR. What comes out: whether it was under way here.
    pub fn flush_forwarded(&self, id: ReqId) -> bool {
        self.0.shared.with(|state| state.flush_forwarded(|forwarded| forwarded.later.id() == id))
    }

    /// To be called from time to time after a request was taken back, until it says that nothing is flushed any more:
    /// whoever has waited for an Rflush too long by `limits` is answered EINTR. How many Rflushes are overdue, and how
    /// many are waited for. The tags and fids of the first stay taken, and if they become many the server is better
    /// given up ([`Client::abort`]).
    pub fn tick(&self, limits: FlushLimits) -> (usize, usize) {
        self.0.shared.with(|state| state.tick(limits))
    }

    /// A number for a fid that a message of [`Client::forward`] makes. If it is not used in one, it is lost until the
    /// session ends.
    pub fn new_fid(&self) -> Result<Fid> {
        self.fid()
    }

    /// The file behind a fid that [`Forward::answered`] was told of.
    pub fn adopt(&self, fid: Fid, qid: Qid) -> File {
        File::new(self, fid, qid)
    }

    /// Asks for what no other method says.
    pub async fn ask(&self, message: Tmsg<'_>) -> Result<Answer> {
        self.call(message).await
    }

    /// The same with a payload: the end of a message whose own data is only a count.
    pub async fn ask_with(&self, message: Tmsg<'_>, payload: Option<Bytes>) -> Result<Answer> {
        match payload {
            Some(payload) => Call::with_payload(&self.0.shared, message, payload).await,
            None => self.call(message).await,
        }
    }
}
