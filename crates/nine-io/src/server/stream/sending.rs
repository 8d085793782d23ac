//! From a file to its data connection, read by offset. File ranges are sent with sendfile; reads that the server
//! answers later are sent ahead.
//!
//! Always holds: bytes leave in order. The rest of a short answer is requested before any later bytes count. Requested
//! and unsent bytes together are at most the window, or one piece. The window grows to [`SEND_WINDOW_MAX`] while the
//! connection waits for the server.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};

use nine_net::Transport;
use nine_proto::{Errno, Error, Result};

use super::super::TURN_BYTES;
use super::super::tx::ReplyQueue;
use super::asker::{StreamRequester, TransferResult, wrong};
use super::{Course, Passage, StreamStart};
use crate::payload::Payload;

/// Largest read, in bytes.
const READ_LEN_MAX: u32 = 1 << 20;
/// The read size does not shrink below this, however short the answers, in bytes.
const READ_LEN_MIN: u32 = 4096;
/// The initial and the largest window, in bytes.
const SEND_WINDOW_FIRST: usize = 2 << 20;
const SEND_WINDOW_MAX: usize = 8 << 20;
/// Smallest limit of a read when memory is short, in bytes.
const SCARCE_READ_MIN: usize = 64 * 1024;
/// Bytes that a poll sends before it yields.
const SEND_SLICE_LEN: u64 = 4 * TURN_BYTES as u64;

pub(super) struct StreamSender {
    asker: StreamRequester,
    pieces: VecDeque<PendingRead>,
    tx: ReplyQueue,
    offset: u64,
    /// Bytes from `offset` on that have been requested.
    asked: u64,
    /// Bytes from `offset` on that were queued in `tx`.
    taken: u64,
    ended: Option<Result<()>>,
    window: usize,
    /// The current largest read: smaller if the server's answers are shorter.
    piece: u32,
    /// The connection is corked: it holds small data back for more.
    corked: bool,
    /// Parallel reads would be answered in arbitrary order, so only one is in flight.
    serial: bool,
    /// Bytes that were sent when the file turned out to have become shorter.
    shrunk: Option<u64>,
}

struct PendingRead {
    number: u32,
    offset: u64,
    len: u32,
    answer: Option<Result<Payload>>,
}

impl StreamSender {
    pub(super) fn new(asker: StreamRequester, way: StreamStart) -> Self {
        Self {
            asker,
            pieces: VecDeque::new(),
            tx: ReplyQueue::default(),
            offset: way.offset,
            asked: 0,
            taken: 0,
            ended: None,
            window: SEND_WINDOW_FIRST,
            piece: READ_LEN_MAX,
            corked: false,
            serial: way.serial,
            shrunk: None,
        }
    }

    fn ask(&mut self, offset: u64, len: u32) -> PendingRead {
        let (number, answer) = self.asker.read(offset, len);
        PendingRead { number, offset, len, answer: answer.map(data) }
    }

    /// Bytes that are requested or wait to be sent.
    fn under_way(&self) -> usize {
        (self.asked - self.taken) as usize + self.tx.unsent()
    }

    /// Queues the available data, up to `until` or the end.
    fn take(&mut self, until: u64) {
        while self.ended.is_none()
            && self.taken < until
            && self.tx.unsent() < SEND_WINDOW_FIRST
            && let Some(PendingRead { answer: Some(_), .. }) = self.pieces.front()
        {
            let Some(PendingRead { offset, len, answer: Some(answer), .. }) = self.pieces.pop_front() else {
                break;
            };
            match answer {
                Err(error) => self.ended = Some(Err(error)),
                Ok(data) if data.is_empty() => self.ended = Some(Ok(())),
                Ok(data) if data.len() > len as usize => {
                    self.ended = Some(Err(wrong("a read", "more bytes than were asked for")));
                }
                Ok(mut data) => {
                    let n = data.len() as u32;
                    data.truncate(until - self.taken);
                    self.taken += data.len() as u64;
                    if n == len {
                        self.piece = self.piece.saturating_mul(2).min(READ_LEN_MAX);
                    } else {
                        // Halve the size only: the end of a file is short as well, and many small reads should not
                        // follow it.
                        self.piece = n.max(self.piece / 2).max(READ_LEN_MIN);
                    }
                    if data.len() < n as usize {
                        self.forget();
                    } else if n < len {
                        let rest = self.ask(offset + u64::from(n), len - n);
                        self.pieces.push_front(rest);
                    }
                    self.tx.data(data);
                }
            }
        }
        if self.ended.is_some() {
            self.forget();
        }
    }

    /// Cancels and forgets all requests after the queued bytes.
    fn forget(&mut self) {
        self.asker.cancel(self.pieces.iter().filter(|p| p.answer.is_none()).map(|p| p.number));
        self.pieces.clear();
        self.asked = self.taken;
    }

    fn fill(&mut self, until: u64) {
        let held = self.tx.held()
            + self.pieces.iter().filter(|p| !p.is_file()).map(|p| p.len as usize).sum::<usize>();
        let room = self.asker.holds(held);
        while self.ended.is_none() {
            let most = until.saturating_sub(self.asked).min(room.max(SCARCE_READ_MIN) as u64);
            let piece = most.min(self.piece.into()) as u32;
            let offset =
                self.offset.checked_add(self.asked).filter(|at| at.checked_add(piece.into()).is_some());
            let under_way = self.under_way();
            let more = under_way + piece as usize <= self.window.min(room);
            let fits = under_way == 0 || more && (self.pieces.is_empty() || !self.serial);
            if piece == 0 || !fits || self.tx.unsent() >= SEND_WINDOW_FIRST {
                return;
            }
            let Some(offset) = offset else {
                self.ended = Some(Err(Error::new(Errno::EFBIG, "no file has so many bytes")));
                return;
            };
            self.asked += u64::from(piece);
            let piece = self.ask(offset, piece);
            let later = piece.answer.is_none();
            self.pieces.push_back(piece);
            if !later {
                return;
            }
        }
    }
}

impl PendingRead {
    fn is_file(&self) -> bool {
        matches!(self.answer, Some(Ok(Payload::File { .. })))
    }
}

impl Passage for StreamSender {
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        data_connection: &mut dyn Transport,
        course: &mut Course,
    ) -> Poll<Result<()>> {
        let begin = course.moved;
        loop {
            let pieces = &mut self.pieces;
            self.asker.answers(cx.waker(), |number, answer| {
                if let Some(piece) = pieces.iter_mut().find(|piece| piece.number == number) {
                    piece.answer = Some(data(answer));
                }
            });
            self.take(course.until);
            self.fill(course.until);
            if !self.corked && self.tx.unsent() > 0 {
                data_connection.cork(true);
                self.corked = true;
            }
            let flushed = self.tx.poll_flush(cx, data_connection);
            course.moved = self.taken - self.tx.unsent() as u64;
            if course.moved >= course.until {
                return Poll::Ready(Ok(()));
            }
            match flushed {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error))
                    if error.kind() == io::ErrorKind::UnexpectedEof && self.shrunk != Some(course.moved) =>
                {
                    // The file has become shorter than announced: read again from here.
                    self.shrunk = Some(course.moved);
                    (self.tx, self.taken, self.ended) = (ReplyQueue::default(), course.moved, None);
                    self.forget();
                    continue;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(lost(error))),
                Poll::Pending => return Poll::Pending,
            }
            let ready = self.pieces.front().is_some_and(|piece| piece.answer.is_some());
            if !ready && let Some(ended) = &self.ended {
                return Poll::Ready(ended.clone());
            }
            if !ready {
                // The connection waits for the server, so keep more requests in flight.
                self.window = (2 * self.window).min(SEND_WINDOW_MAX);
                if self.pieces.is_empty() {
                    continue;
                }
                if self.corked {
                    data_connection.cork(false);
                    self.corked = false;
                }
                if data_connection.poll_hangup(cx).is_ready() {
                    return Poll::Ready(Err(Error::new(Errno::ECONNRESET, "the data connection was closed")));
                }
                return Poll::Pending;
            }
            if course.moved - begin >= SEND_SLICE_LEN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    fn poll_settle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.forget();
        self.asker.answers(cx.waker(), |_, _| ());
        if self.asker.outstanding == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// The error of a failed data connection.
pub fn lost(error: io::Error) -> Error {
    Error::new(Errno::ECONNRESET, format!("the data connection: {error}"))
}

fn data(got: Result<TransferResult>) -> Result<Payload> {
    match got? {
        TransferResult::Data(data) => Ok(data),
        TransferResult::Wrote(_) => Err(wrong("a read", "a reply of another kind")),
    }
}
