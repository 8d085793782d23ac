//! A read or a write that a file of a synthetic tree answers: once, now or later, from any thread.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use nine_proto::{Errno, Error, Result};

use super::Visitor;
use crate::payload::Payload;
use crate::server::{Later, Reply, ReqId};
use crate::sync::{Mutex, lock};

/// See the module. One that is dropped is answered with EIO.
pub struct Ask {
    /// Who asks.
    pub visitor: Arc<Visitor>,
    /// First byte.
    pub offset: u64,
    /// Of a read: the bytes that the answer may have.
    pub count: u32,
    /// Of a write: its bytes.
    pub data: Bytes,
    id: ReqId,
    asks: Arc<Asks>,
}

impl Ask {
    /// What was written, as text.
    pub fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.data).map_err(|_| Error::new(Errno::EINVAL, "this is no text"))
    }

    /// The lines of it that are not empty.
    pub fn lines(&self) -> Result<Vec<&str>> {
        Ok(self.text()?.lines().filter(|line| !line.trim().is_empty()).collect())
    }

    /// Whether the client still wants the answer.
    pub fn is_wanted(&self) -> bool {
        lock(&self.asks.0).contains_key(&self.id)
    }

    /// Answers a write: all of it was taken, or none.
    pub fn done(self, result: Result<()>) {
        let count = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        self.asks.answer(self.id, result.map(|()| Reply::Wrote(count)));
    }

    /// Answers a read with the beginning of these bytes, as much as was asked for.
    pub fn give(self, mut bytes: Bytes) {
        bytes.truncate(self.count as usize);
        self.asks.answer(self.id, Ok(Reply::Read(Payload::Bytes(bytes))));
    }

    /// Answers a read from the whole content of a file.
    pub fn give_from(self, whole: &Bytes) {
        let from = usize::try_from(self.offset).unwrap_or(usize::MAX).min(whole.len());
        let bytes = whole.slice(from..);
        self.give(bytes);
    }

    /// Refuses.
    pub fn fail(self, error: Error) {
        self.asks.answer(self.id, Err(error));
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        // An answer of nobody: of the request itself.
        drop(self.asks.take(self.id));
    }
}

/// Those that wait for their answers: one for each outstanding request at most.
#[derive(Default)]
pub(super) struct Asks(Mutex<HashMap<ReqId, Later>>);

impl Asks {
    pub(super) fn ask(self: &Arc<Self>, later: Later, visitor: Arc<Visitor>) -> Ask {
        let (offset, count, data) = match later.op() {
            nine_proto::Op::Write { offset, .. } => (offset, 0, later.data().unwrap_or_default()),
            nine_proto::Op::Read { offset, .. } => (offset, later.count(), Bytes::new()),
            _ => (0, 0, Bytes::new()),
        };
        let id = later.id();
        lock(&self.0).insert(id, later);
        Ask { visitor, offset, count, data, id, asks: self.clone() }
    }

    pub(super) fn answer(&self, id: ReqId, result: Result<Reply>) {
        if let Some(later) = self.take(id) {
            later.respond(result);
        }
    }

    fn take(&self, id: ReqId) -> Option<Later> {
        lock(&self.0).remove(&id)
    }
}
