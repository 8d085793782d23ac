//! The requests that a stream sends to its file server, as 9P operations in the name of its fid.

use std::sync::Arc;
use std::task::Waker;

use nine_proto::msg::Tmsg;
use nine_proto::session::server::{CallId, Request as SessionRequest};
use nine_proto::{Dialect, Errno, Error, NOFID, Result};

use super::super::req::{
    self, Answer, FidEntry, FileServer, FinishedRequest, LateAnswers, Req, ReqId, Request,
};
use super::super::{Core, FLOOR};
use crate::buf::MessageFrame;
use crate::payload::Payload;

/// Bytes before the data of a Twrite: `size[4] Twrite tag[2] fid[4] offset[8] count[4]`.
pub(super) const WRITE_HEAD: usize = 23;

pub(super) struct StreamRequester {
    server: Arc<dyn FileServer>,
    held: FidEntry,
    core: Core,
    /// The 9P connection; requests are made in the name of its client.
    pub(super) conn: u64,
    answers: Arc<LateAnswers>,
    arrived: Vec<FinishedRequest>,
    /// Unanswered requests.
    pub(super) outstanding: usize,
    /// Bytes borrowed from the core.
    borrowed: usize,
}

/// The result of a read or a write.
pub(super) enum TransferResult {
    Data(Payload),
    Wrote(u32),
}

impl StreamRequester {
    pub(super) fn new(server: &Arc<dyn FileServer>, held: &FidEntry, core: &Core, conn: u64) -> Self {
        Self {
            server: server.clone(),
            held: held.clone(),
            core: core.clone(),
            conn,
            answers: Arc::default(),
            arrived: Vec::new(),
            outstanding: 0,
            borrowed: 0,
        }
    }

    /// Reads bytes. Returns the request's number, and the answer if there is one at once.
    pub(super) fn read(&mut self, offset: u64, count: u32) -> (u32, Option<Result<TransferResult>>) {
        let mut head = Vec::with_capacity(WRITE_HEAD);
        Tmsg::Read { fid: NOFID, offset, count }.encode(nine_proto::Tag(0), Dialect::L, &mut head);
        self.ask(MessageFrame::of(head), count)
    }

    /// Writes the bytes that the frame holds from [`WRITE_HEAD`] on. Returns as `read` does.
    pub(super) fn write(&mut self, frame: MessageFrame) -> (u32, Option<Result<TransferResult>>) {
        let count = (frame.as_ref().len() - WRITE_HEAD) as u32;
        self.ask(frame, count)
    }

    fn ask(&mut self, frame: MessageFrame, count: u32) -> (u32, Option<Result<TransferResult>>) {
        let call = req::own_call();
        let number = call.number();
        let inner = SessionRequest::own(call, frame, Dialect::L, self.held.clone(), count);
        let request = Request::new(inner, self.held.who.clone(), self.conn, count as usize);
        let Answer(result) = self.server.serve(Req::new(request, self.answers.clone()));
        self.outstanding += usize::from(result.is_none());
        (number, result.map(got))
    }

    /// Passes the answers that have arrived since the last call to `each`, by number.
    pub(super) fn answers(&mut self, waker: &Waker, mut each: impl FnMut(u32, Result<TransferResult>)) {
        self.answers.wake(waker);
        self.answers.take(&mut self.arrived);
        for FinishedRequest { call, result, .. } in self.arrived.drain(..) {
            self.outstanding -= 1;
            each(call.number(), got(result));
        }
    }

    /// Cancels unanswered requests.
    pub(super) fn cancel(&self, numbers: impl Iterator<Item = u32>) {
        for number in numbers {
            let id = ReqId { conn: self.conn, call: CallId::numbered(number) };
            self.server.cancel(id, Some(&self.held.node));
        }
    }

    /// Accounts for the bytes that the stream holds now, and returns the number that it may hold.
    pub(super) fn holds(&mut self, bytes: usize) -> usize {
        let borrow = bytes.saturating_sub(FLOOR);
        self.core.memory().borrow(self.borrowed, borrow);
        self.borrowed = borrow;
        FLOOR + (self.core.memory().free() + borrow) / 4
    }
}

impl Drop for StreamRequester {
    fn drop(&mut self) {
        self.core.memory().borrow(self.borrowed, 0);
    }
}

/// Logs an answer that breaks the rules of [`FileServer`], and returns the client's error.
pub(super) fn wrong(message: &str, why: &str) -> Error {
    tracing::error!("the file server answered {message} of a stream wrongly (fix the server): {why}");
    Error::new(Errno::EIO, format!("fault of the file server: {why}"))
}

fn got<N>(result: Result<nine_proto::Reply<N, Payload>>) -> Result<TransferResult> {
    match result? {
        nine_proto::Reply::Read(data) => Ok(TransferResult::Data(data)),
        nine_proto::Reply::Wrote(n) => Ok(TransferResult::Wrote(n)),
        _ => Err(wrong("a read or a write", "a reply of another kind")),
    }
}
