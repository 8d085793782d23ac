//! The answers of a synthetic file to reads, writes and opens: once each, now or later, from any thread.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use nine_proto::{Errno, Error, OpenFlags, Result};

use super::serve::{OpenNode, TreePosition, held};
use super::{Handle, Visitor};
use crate::audit;
use crate::payload::Payload;
use crate::server::{Later, Reply, ReqId};
use crate::sync::{Mutex, lock};

/// A read or a write. If it is dropped, it is answered with EIO.
pub struct Ask {
    /// The client.
    pub visitor: Arc<Visitor>,
    /// Offset of the first byte.
    pub offset: u64,
    /// The maximum number of bytes that the answer to a read may have.
    pub count: u32,
    /// The data of a write.
    pub data: Bytes,
    /// The text that the open file reads, for writes to a text file; see [`Ask::leave`].
    pub(super) text: Option<Arc<Mutex<Bytes>>>,
    id: ReqId,
    asks: Arc<PendingAsks>,
}

impl Ask {
    /// Its id, for [`Handle::cancel`].
    pub fn id(&self) -> ReqId {
        self.id
    }

    /// The data as text.
    pub fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.data).map_err(|_| Error::new(Errno::EINVAL, "this is no text"))
    }

    /// The nonempty lines of the text.
    pub fn lines(&self) -> Result<Vec<&str>> {
        Ok(self.text()?.lines().filter(|line| !line.trim().is_empty()).collect())
    }

    /// Whether the client still wants the answer.
    pub fn is_wanted(&self) -> bool {
        lock(&self.asks.0).contains_key(&self.id)
    }

    /// In a write to a text file: makes the same open file, and no other, read as `text` from now on.
    pub fn leave(&self, text: String) {
        self.text.iter().for_each(|of| *lock(of) = text.clone().into());
    }

    /// Answers a write: all of its data was taken, or none.
    pub fn done(self, result: Result<()>) {
        let count = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        self.asks.answer(self.id, result.map(|()| Reply::Wrote(count)));
    }

    /// Answers a write of which `count` bytes were taken.
    pub fn took(self, count: usize) {
        let count = u32::try_from(count.min(self.data.len())).unwrap_or(u32::MAX);
        self.asks.answer(self.id, Ok(Reply::Wrote(count)));
    }

    /// Answers [`Handle::sync`].
    pub fn synced(self, result: Result<()>) {
        self.asks.answer(self.id, result.map(|()| Reply::Done));
    }

    /// Answers a read with the first of these bytes, as many as it may have.
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

    /// Answers with an error.
    pub fn fail(self, error: Error) {
        self.asks.answer(self.id, Err(error));
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        // If it is unanswered, dropping its `Later` answers EIO.
        drop(self.asks.take(self.id));
    }
}

/// An open. If it is dropped, it is answered with EIO.
pub struct Opening {
    /// The client.
    pub visitor: Arc<Visitor>,
    /// The flags of the open.
    pub flags: OpenFlags,
    at: Arc<TreePosition>,
    id: ReqId,
    asks: Arc<PendingAsks>,
}

impl Opening {
    /// Its id, for the `cancel` of [`File::opened_later`](super::File::opened_later).
    pub fn id(&self) -> ReqId {
        self.id
    }

    /// Opens the file with this handle. Returns the handle if the client no longer wants it.
    pub fn opened(self, handle: Arc<dyn Handle>) -> std::result::Result<(), Arc<dyn Handle>> {
        let at = self.at.clone();
        self.open_at(at, handle)
    }

    /// As [`Opening::opened`], but turns the fid into that of another file, to which these names lead from the file's
    /// directory.
    ///
    /// # Panics
    /// If there is no such file: the caller must have created it.
    pub fn becomes(
        self,
        names: &[&str],
        handle: Arc<dyn Handle>,
    ) -> std::result::Result<(), Arc<dyn Handle>> {
        let at = self.at.beside(names, &self.visitor).expect("who opens it has made it");
        self.open_at(at, handle)
    }

    fn open_at(
        self,
        at: Arc<TreePosition>,
        handle: Arc<dyn Handle>,
    ) -> std::result::Result<(), Arc<dyn Handle>> {
        let Some(later) = self.asks.take(self.id) else { return Err(handle) };
        let node = held(at.clone(), self.visitor.clone(), Some(OpenNode::File(handle)));
        later.respond(Ok(Reply::Open { qid: at.qid, iounit: 0, node }));
        Ok(())
    }

    /// Answers with an error.
    pub fn fail(self, error: Error) {
        self.asks.answer(self.id, Err(error));
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        drop(self.asks.take(self.id));
    }
}

/// The audit event of a text for a control file, written when the text is answered.
pub(super) struct ControlAudit {
    /// The file, as the tree's name and the path in it.
    pub(super) file: String,
    /// The text, without secrets.
    pub(super) text: String,
    pub(super) owner: bool,
}

impl ControlAudit {
    fn tell(&self, later: &Later, error: Option<&Error>) {
        let (allowed, conn, file, text, owner) =
            (error.is_none(), later.id().conn, &self.file, &self.text, self.owner);
        let user = audit::line(later.who().name.as_bytes());
        let why = error.map(|error| audit::line(error.to_string().as_bytes()));
        tracing::info!(target: audit::TARGET, event = "ctl", allowed, conn, user, owner, file, text, why);
    }
}

/// Unanswered requests: at most one for each outstanding request.
#[derive(Default)]
pub(super) struct PendingAsks(Mutex<HashMap<ReqId, WaitingAsk>>);

/// The request to answer, and its audit event.
type WaitingAsk = (Later, Option<Box<ControlAudit>>);

impl PendingAsks {
    pub(super) fn ask(
        self: &Arc<Self>,
        later: Later,
        visitor: Arc<Visitor>,
        told: Option<Box<ControlAudit>>,
    ) -> Ask {
        let (offset, count, data) = match later.op() {
            nine_proto::Op::Write { offset, .. } => (offset, 0, later.data().unwrap_or_default()),
            nine_proto::Op::Read { offset, .. } => (offset, later.count(), Bytes::new()),
            _ => (0, 0, Bytes::new()),
        };
        let id = later.id();
        lock(&self.0).insert(id, (later, told));
        Ask { visitor, offset, count, data, text: None, id, asks: self.clone() }
    }

    pub(super) fn opening(
        self: &Arc<Self>,
        later: Later,
        visitor: Arc<Visitor>,
        at: Arc<TreePosition>,
        flags: OpenFlags,
    ) -> Opening {
        let id = later.id();
        lock(&self.0).insert(id, (later, None));
        Opening { visitor, flags, at, id, asks: self.clone() }
    }

    pub(super) fn answer(&self, id: ReqId, result: Result<Reply>) {
        let found = lock(&self.0).remove(&id);
        if let Some((later, told)) = found {
            if let Some(told) = told {
                told.tell(&later, result.as_ref().err());
            }
            later.respond(result);
        }
    }

    fn take(&self, id: ReqId) -> Option<Later> {
        let (later, told) = lock(&self.0).remove(&id)?;
        if let Some(told) = told {
            told.tell(&later, Some(&Errno::EIO.into()));
        }
        Some(later)
    }
}
