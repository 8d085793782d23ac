//! A raw connection: sends messages, valid or malformed, and receives frames, each checked to be 9P.
//!
//! In: a transport, T-messages or bytes. Out: R-messages in order of arrival; the whole exchange is recorded in a
//! [`ExchangeLog`].
//!
//! Always holds: reads are bounded by msize. A frame that is too large, does not decode, or belongs to another
//! dialect fails the case at once. So does an answer to no request.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::IoSlice;
use std::rc::Rc;

use nine_net::Transport;
use nine_proto::frame::{self, HEADER};
use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Dialect, NOTAG, Tag};

use crate::case::{CaseResult, StopReason, fail};

/// The largest Rversion accepted, before an msize is agreed. Bytes.
const RVERSION_LEN_MAX: u32 = 8192;
/// The size of one read, in bytes.
const READ_LEN: usize = 16 * 1024;
/// The number of lines of the exchange that are kept; older ones are dropped.
const LOG_LINES_MAX: usize = 24;
/// The maximum length of a line of the exchange, in characters.
const LOG_LINE_LEN_MAX: usize = 180;

/// The exchange, for the report of a failure. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct ExchangeLog(Rc<RefCell<VecDeque<String>>>);

impl ExchangeLog {
    fn add(&self, mark: &str, conn: u32, text: &str) {
        let mut lines = self.0.borrow_mut();
        if lines.len() == LOG_LINES_MAX {
            lines.pop_front();
        }
        let cut: String = text.chars().take(LOG_LINE_LEN_MAX).collect();
        let more = if text.chars().nth(LOG_LINE_LEN_MAX).is_some() { "..." } else { "" };
        lines.push_back(format!("{mark}{conn} {cut}{more}"));
    }

    pub(crate) fn take(&self) -> Vec<String> {
        self.0.take().into()
    }
}

/// See the module.
pub(crate) struct CheckedConnection {
    transport: Box<dyn Transport>,
    log: ExchangeLog,
    /// The connection's number in the case's log.
    number: u32,
    come: Vec<u8>,
    /// The buffer of one read.
    block: Vec<u8>,
    next_tag: u16,
    /// The agreed dialect; before that, 9P2000.
    pub(crate) dialect: Dialect,
    pub(crate) msize: u32,
    /// Whether a version was agreed. Before that, an error may be of any dialect.
    pub(crate) agreed: bool,
    /// The group of new files.
    pub(crate) gid: u32,
}

/// A received R-message, checked to decode.
pub(crate) struct ReceivedReply {
    frame: Vec<u8>,
    dialect: Dialect,
}

impl ReceivedReply {
    pub(crate) fn msg(&self) -> Rmsg<'_> {
        Rmsg::decode(&self.frame, self.dialect).expect("checked when it came").1
    }

    pub(crate) fn tag(&self) -> Tag {
        frame::tag_of(&self.frame)
    }

    /// Returns its type on the wire.
    pub(crate) fn number(&self) -> u8 {
        frame::type_of(&self.frame)
    }

    pub(crate) fn len(&self) -> usize {
        self.frame.len()
    }

    pub(crate) fn is_error(&self) -> bool {
        matches!(self.msg(), Rmsg::Error { .. } | Rmsg::Lerror { .. })
    }

    /// Returns whether it is an error for an unsupported message.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self.msg(), Rmsg::Lerror { ecode: EOPNOTSUPP | ENOSYS })
    }

    /// Returns it as text.
    pub(crate) fn text(&self) -> String {
        self.msg().with_tag(self.tag()).to_string()
    }
}

/// The result of a wait for the next message.
pub(crate) enum ConnectionEvent {
    Got(ReceivedReply),
    Ended,
}

impl CheckedConnection {
    pub(crate) fn new(transport: Box<dyn Transport>, log: ExchangeLog, number: u32, gid: u32) -> Self {
        let (dialect, msize) = (Dialect::P2000, RVERSION_LEN_MAX);
        Self {
            transport,
            log,
            number,
            come: Vec::new(),
            block: vec![0; READ_LEN],
            next_tag: 1,
            dialect,
            msize,
            agreed: false,
            gid,
        }
    }

    /// Returns a tag that was not used recently.
    pub(crate) fn tag(&mut self) -> u16 {
        let tag = self.next_tag;
        self.next_tag = if tag >= 0xff00 { 1 } else { tag + 1 };
        tag
    }

    /// Sends one message.
    pub(crate) async fn send(&mut self, tag: u16, message: &Tmsg<'_>) -> CaseResult {
        self.send_all(&[(tag, message.clone())]).await
    }

    /// Sends messages in one write.
    pub(crate) async fn send_all(&mut self, messages: &[(u16, Tmsg<'_>)]) -> CaseResult {
        let mut bytes = Vec::new();
        for (tag, message) in messages {
            message.encode(Tag(*tag), self.dialect, &mut bytes);
            self.log.add("->", self.number, &message.with_tag(Tag(*tag)).to_string());
        }
        self.push(&bytes).await
    }

    /// Sends bytes unchanged.
    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) -> CaseResult {
        let hex: String = bytes.iter().take(32).map(|b| format!("{b:02x} ")).collect();
        self.log.add("->", self.number, &format!("{} bytes: {}", bytes.len(), hex.trim_end()));
        self.push(bytes).await
    }

    async fn push(&mut self, mut bytes: &[u8]) -> CaseResult {
        while !bytes.is_empty() {
            let sent = poll_fn(|cx| self.transport.poll_write(cx, &[IoSlice::new(bytes)])).await;
            let n = sent.map_err(|e| self.gone(&e.to_string()))?;
            bytes = &bytes[n..];
        }
        poll_fn(|cx| self.transport.poll_flush(cx)).await.map_err(|e| self.gone(&e.to_string()))
    }

    fn gone(&self, why: &str) -> StopReason {
        self.log.add("<-", self.number, &format!("the end: {why}"));
        StopReason::Gone(format!("the server ended the connection ({why})"))
    }

    /// Returns the next message, to any request, or the end of the connection.
    pub(crate) async fn event(&mut self) -> CaseResult<ConnectionEvent> {
        match self.frame().await? {
            Some(frame) => self.checked(frame).map(ConnectionEvent::Got),
            None => Ok(ConnectionEvent::Ended),
        }
    }

    /// Returns the next message as bytes of any dialect; `None` at the end of the connection.
    pub(crate) async fn frame(&mut self) -> CaseResult<Option<Vec<u8>>> {
        loop {
            if let Some(head) = self.come.first_chunk::<4>() {
                let size = u32::from_le_bytes(*head);
                if size < HEADER as u32 || size > self.msize {
                    let start: String =
                        self.come.escape_ascii().map(char::from).take(LOG_LINE_LEN_MAX / 2).collect();
                    self.log.add("<-", self.number, &format!("bytes that begin \"{start}\""));
                    return fail(format!(
                        "what came says that it is {size} bytes long; the limit is {}",
                        self.msize
                    ));
                }
                if self.come.len() >= size as usize {
                    let rest = self.come.split_off(size as usize);
                    return Ok(Some(std::mem::replace(&mut self.come, rest)));
                }
            }
            let Self { transport, block, .. } = self;
            match poll_fn(|cx| transport.poll_read(cx, block)).await {
                Ok(0) if !self.come.is_empty() => {
                    return fail(format!(
                        "the connection ended after {} bytes of a message",
                        self.come.len()
                    ));
                }
                Ok(0) | Err(_) => {
                    self.log.add("<-", self.number, "the end");
                    return Ok(None);
                }
                Ok(n) => self.come.extend_from_slice(&self.block[..n]),
            }
        }
    }

    fn checked(&self, frame: Vec<u8>) -> CaseResult<ReceivedReply> {
        let (tag, ty) = (frame::tag_of(&frame), frame::type_of(&frame));
        if let Err(error) = Rmsg::decode(&frame, self.dialect) {
            self.log.add("<-", self.number, &format!("type {ty} tag {tag}, {} bytes", frame.len()));
            return fail(format!("the answer is not {}: {error}", self.dialect.name()));
        }
        let got = ReceivedReply { frame, dialect: self.dialect };
        self.log.add("<-", self.number, &got.text());
        match got.msg() {
            _ if !self.agreed => Ok(got),
            Rmsg::Error { .. } if self.dialect.is_l() => fail("Rerror is no message of 9P2000.L: Rlerror is"),
            Rmsg::Lerror { .. } if !self.dialect.is_l() => fail("Rlerror is a message of 9P2000.L alone"),
            _ => Ok(got),
        }
    }

    /// Returns the next message. The connection must not end.
    pub(crate) async fn receive(&mut self) -> CaseResult<ReceivedReply> {
        match self.event().await? {
            ConnectionEvent::Got(got) => Ok(got),
            ConnectionEvent::Ended => Err(self.gone("an answer was owed")),
        }
    }

    /// Returns the answer to the only outstanding request: of its type, or an error.
    pub(crate) async fn answer(&mut self, tag: u16, message: &Tmsg<'_>) -> CaseResult<ReceivedReply> {
        let got = self.receive().await?;
        if got.tag() != Tag(tag) {
            return fail(format!("an answer with tag {}; only tag {} is outstanding", got.tag(), Tag(tag)));
        }
        answers(message, &got)?;
        Ok(got)
    }

    /// Sends a request and waits for its answer: of its type, or an error.
    pub(crate) async fn call(&mut self, message: Tmsg<'_>) -> CaseResult<ReceivedReply> {
        let tag = if matches!(message, Tmsg::Version { .. }) { NOTAG.0 } else { self.tag() };
        self.send(tag, &message).await?;
        self.answer(tag, &message).await
    }

    /// The same. It must succeed.
    pub(crate) async fn ok(&mut self, message: Tmsg<'_>) -> CaseResult<ReceivedReply> {
        let got = self.call(message.clone()).await?;
        if got.is_error() {
            fail(format!("{} was refused: {}", message.label(), got.text()))
        } else {
            Ok(got)
        }
    }

    /// The same. It must be refused, for the reason `why`.
    pub(crate) async fn refused(&mut self, message: Tmsg<'_>, why: &str) -> CaseResult<ReceivedReply> {
        let got = self.call(message.clone()).await?;
        if got.is_error() { Ok(got) } else { fail(format!("{} succeeded, but {why}", message.label())) }
    }

    /// The same. The case is skipped if the error means that the message is unsupported.
    pub(crate) async fn supported_but_refused(
        &mut self,
        message: Tmsg<'_>,
        why: &str,
    ) -> CaseResult<ReceivedReply> {
        let label = message.label();
        let got = self.refused(message, why).await?;
        if got.is_unsupported() { Err(not_there(label, &got)) } else { Ok(got) }
    }

    /// Like `ok`. The case is skipped if the message is unsupported.
    pub(crate) async fn supported(&mut self, message: Tmsg<'_>) -> CaseResult<ReceivedReply> {
        let label = message.label();
        let got = self.call(message).await?;
        match got.is_error() {
            _ if got.is_unsupported() => Err(not_there(label, &got)),
            true => fail(format!("{label} was refused: {}", got.text())),
            false => Ok(got),
        }
    }
}

fn not_there(label: &str, got: &ReceivedReply) -> StopReason {
    StopReason::Skip(format!("the server has no {label}: {}", got.text()))
}

/// Checks that `got` can be an answer to `message`.
pub(crate) fn answers(message: &Tmsg<'_>, got: &ReceivedReply) -> CaseResult {
    let (asked, label) = (message.number(), message.label());
    if got.number() == asked + 1 {
        return Ok(());
    }
    match message {
        Tmsg::Flush { .. } => {
            fail(format!("a Tflush has no other answer than Rflush; this is {}", got.text()))
        }
        _ if got.is_error() => Ok(()),
        _ => fail(format!("{} is no answer to {label}", got.text())),
    }
}

const EOPNOTSUPP: u32 = 95;
const ENOSYS: u32 = 38;
