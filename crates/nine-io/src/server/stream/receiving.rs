//! From a data connection to its file: through a kernel pipe if the server can store from one ([`Fill`]), else written
//! by offset.
//!
//! Always holds: small amounts of data are collected for [`LULL`](super::LULL). Received bytes that are not
//! stored are at most [`UNWRITTEN_MAX`], or two pipes. Only stored bytes without a gap count. If the end of the file
//! decides where bytes go, only one write is in flight.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use nine_net::{PIPE_SIZE, Transport};
use nine_proto::msg::{Data, Tmsg};
use nine_proto::{Dialect, Errno, Error, NOFID, Result, Tag};

use super::super::{FileServer, Node, TURN_BYTES};
use super::asker::{StreamRequester, TransferResult, WRITE_HEAD, wrong};
use super::fill::{Fill, FillPipe};
use super::sending::lost;
use super::{Course, Passage, StreamStart};
use crate::buf::{FrameBuffer, FramePool, MessageFrame};

/// Largest write, in bytes.
const WRITE_LEN_MAX: usize = 256 * 1024;
/// Less than this is collected before it is written, in bytes.
const LITTLE: usize = 64 * 1024;
/// Maximum number of bytes received and not written.
const UNWRITTEN_MAX: usize = 4 << 20;
/// Bytes that a poll receives before it yields.
const RECEIVE_SLICE_LEN: usize = 4 * TURN_BYTES;

pub(super) struct StreamReceiver {
    asker: StreamRequester,
    offset: u64,
    /// Bytes from `offset` on that were handed on to be stored.
    received: u64,
    buf: Option<Arc<FrameBuffer>>,
    filled: usize,
    writes: VecDeque<PendingWrite>,
    under_way: usize,
    /// Writes must not overtake each other.
    serial: bool,
    /// The connection is at its end; `lost` is the error, if any.
    eof: bool,
    lost: Option<Error>,
    /// The server that stores from pipes, and the open file's node. `None`: data goes through memory.
    filler: Option<(Arc<dyn FileServer>, Node)>,
    filling: Option<Arc<FillPipe>>,
    /// Bytes in `filling`.
    piped: usize,
    draining: Option<(Arc<FillPipe>, usize)>,
    spare: Option<Arc<FillPipe>>,
}

struct PendingWrite {
    number: u32,
    at: u64,
    len: u32,
    /// The data, to repeat the part that a short write left.
    frame: bytes::Bytes,
    answer: Option<Result<TransferResult>>,
}

impl StreamReceiver {
    pub(super) fn new(
        asker: StreamRequester,
        way: StreamStart,
        server: &Arc<dyn FileServer>,
        node: &Node,
    ) -> Self {
        let filler = (!way.serial && server.can_fill(node)).then(|| (server.clone(), node.clone()));
        Self {
            asker,
            offset: way.offset,
            received: 0,
            buf: None,
            filled: 0,
            writes: VecDeque::new(),
            under_way: 0,
            serial: way.serial,
            eof: false,
            lost: None,
            filler,
            filling: None,
            piped: 0,
            draining: None,
            spare: None,
        }
    }

    /// Writes the collected data.
    fn write(&mut self) {
        let Some(mut buf) = self.buf.take() else { return };
        let len = std::mem::take(&mut self.filled);
        let at = self.offset + self.received;
        let own = Arc::get_mut(&mut buf).expect("nobody has it before it is whole");
        head(at, len, &mut own.bytes[..WRITE_HEAD]);
        self.received += len as u64;
        self.under_way += len;
        let write = self.ask(MessageFrame::new(buf, 0, WRITE_HEAD + len), at);
        self.writes.push_back(write);
    }

    fn ask(&mut self, frame: MessageFrame, at: u64) -> PendingWrite {
        let data = frame.share(&frame.as_ref()[WRITE_HEAD..]);
        let (number, answer) = self.asker.write(frame);
        PendingWrite { number, at, len: data.len() as u32, frame: data, answer }
    }

    /// Counts stored bytes, and repeats the rest of short writes.
    fn take(&mut self, course: &mut Course) -> Result<()> {
        while let Some(PendingWrite { answer: Some(_), .. }) = self.writes.front() {
            let Some(PendingWrite { at, len, frame, answer: Some(answer), .. }) = self.writes.pop_front()
            else {
                break;
            };
            self.under_way -= len as usize;
            let TransferResult::Wrote(n) = answer? else {
                return Err(wrong("a write", "a reply of another kind"));
            };
            if n == 0 || n > len {
                return Err(Error::new(Errno::EIO, "the file takes no more bytes"));
            }
            course.moved += u64::from(n);
            if n < len {
                let rest = &frame[n as usize..];
                let mut again = vec![0; WRITE_HEAD + rest.len()];
                head(at + u64::from(n), rest.len(), &mut again[..WRITE_HEAD]);
                again[WRITE_HEAD..].copy_from_slice(rest);
                self.under_way += rest.len();
                let write = self.ask(MessageFrame::of(again), at + u64::from(n));
                self.writes.push_front(write);
            }
        }
        Ok(())
    }

    /// Receives through pipes: one is filled while the other is stored.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut dyn Transport,
        course: &mut Course,
    ) -> Poll<Result<()>> {
        let mut turn = 0;
        loop {
            if let Some((pipe, len)) = self.draining.take() {
                match pipe.poll_done(cx) {
                    Poll::Pending => self.draining = Some((pipe, len)),
                    Poll::Ready((stored, result)) => {
                        course.moved += stored as u64;
                        result?;
                        if stored < len {
                            return Poll::Ready(Err(Error::new(Errno::EIO, "the file takes no more bytes")));
                        }
                        self.spare = Some(pipe);
                    }
                }
            }
            if course.moved >= course.until || self.eof && self.piped == 0 && self.draining.is_none() {
                return Poll::Ready(self.lost.take().map_or(Ok(()), Err));
            }
            let pipe = match (&self.filling, self.spare.take()) {
                (Some(filling), spare) => {
                    self.spare = spare;
                    filling.clone()
                }
                (None, Some(spare)) => self.filling.insert(spare).clone(),
                (None, None) => match FillPipe::new() {
                    Ok(pipe) => self.filling.insert(pipe).clone(),
                    // No descriptors are left. Continue with copies once the other pipe is stored.
                    Err(_) if self.draining.is_some() => return Poll::Pending,
                    Err(_) => {
                        (self.filler, self.spare) = (None, None);
                        return self.poll_copy(cx, data, course);
                    }
                },
            };
            let mut full = false;
            let mut dry = false;
            if !self.eof && turn < RECEIVE_SLICE_LEN {
                match data.poll_splice_in(cx, pipe.inlet(), PIPE_SIZE) {
                    Poll::Ready(Ok(0)) => self.eof = true,
                    Poll::Ready(Ok(n)) => {
                        self.piped += n;
                        turn += n;
                    }
                    Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::StorageFull => full = true,
                    Poll::Ready(Err(error)) => (self.eof, self.lost) = (true, Some(lost(error))),
                    Poll::Pending => dry = true,
                }
            }
            let all = self.received + self.piped as u64 >= course.until;
            let due = self.piped >= WRITE_LEN_MAX || full || self.eof || all || course.lull;
            if self.piped > 0 && due && self.draining.is_none() {
                let (server, node) = self.filler.as_ref().expect("there is one, or this were not its way");
                let len = std::mem::take(&mut self.piped);
                let at = self.offset + self.received;
                server.fill(Fill::new(node.clone(), self.asker.conn, &pipe, at, len));
                self.received += len as u64;
                self.draining = Some((pipe, len));
                self.filling = None;
                continue;
            }
            if self.eof && self.draining.is_none() {
                continue;
            }
            if dry || full || self.eof {
                return Poll::Pending;
            }
            if turn >= RECEIVE_SLICE_LEN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Receives through memory.
    fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut dyn Transport,
        course: &mut Course,
    ) -> Poll<Result<()>> {
        let mut turn = 0;
        loop {
            let writes = &mut self.writes;
            self.asker.answers(cx.waker(), |number, answer| {
                if let Some(write) = writes.iter_mut().find(|write| write.number == number) {
                    write.answer = Some(answer);
                }
            });
            self.take(course)?;
            let all = self.writes.is_empty() && self.filled == 0;
            if course.moved >= course.until || self.eof && all {
                return Poll::Ready(self.lost.take().map_or(Ok(()), Err));
            }
            if self.writes.front().is_some_and(|write| write.answer.is_some()) {
                continue;
            }
            let buffer = if self.buf.is_some() { WRITE_LEN_MAX } else { 0 };
            let room = self.asker.holds(self.under_way + buffer);
            let piece = if room < 2 * WRITE_LEN_MAX { LITTLE } else { WRITE_LEN_MAX };
            let full = self.filled >= piece;
            if full || self.eof && self.filled > 0 {
                if self.serial && !self.writes.is_empty() {
                    return Poll::Pending;
                }
                self.write();
                continue;
            }
            let fits = self.under_way + piece <= UNWRITTEN_MAX.min(room.max(2 * piece));
            if self.eof || !fits {
                return Poll::Pending;
            }
            if turn >= RECEIVE_SLICE_LEN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.filler.is_some() && self.filled == 0 && data.can_splice() {
                if !self.writes.is_empty() {
                    return Poll::Pending;
                }
                self.buf = None;
                self.asker.holds(0);
                return self.poll_fill(cx, data, course);
            }
            let buf = self.buf.get_or_insert_with(|| FramePool::here().take(WRITE_HEAD + WRITE_LEN_MAX));
            let own = Arc::get_mut(buf).expect("nobody has it before it is whole");
            match data.poll_read(cx, &mut own.bytes[WRITE_HEAD + self.filled..WRITE_HEAD + piece]) {
                Poll::Ready(Ok(0)) => self.eof = true,
                Poll::Ready(Ok(n)) => {
                    self.filled += n;
                    turn += n;
                }
                Poll::Ready(Err(error)) => (self.eof, self.lost) = (true, Some(lost(error))),
                Poll::Pending if self.filled == 0 => {
                    self.buf = None;
                    self.asker.holds(self.under_way);
                    return Poll::Pending;
                }
                Poll::Pending => {
                    let all = self.received + self.filled as u64 >= course.until;
                    if !(self.writes.is_empty() && (self.filled >= LITTLE || all || course.lull)) {
                        return Poll::Pending;
                    }
                    self.write();
                }
            }
        }
    }
}

impl Passage for StreamReceiver {
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut dyn Transport,
        course: &mut Course,
    ) -> Poll<Result<()>> {
        if self.filling.is_some() || self.draining.is_some() || self.spare.is_some() {
            return self.poll_fill(cx, data, course);
        }
        self.poll_copy(cx, data, course)
    }

    fn poll_settle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.asker.cancel(self.writes.iter().filter(|w| w.answer.is_none()).map(|w| w.number));
        self.writes.clear();
        self.asker.answers(cx.waker(), |_, _| ());
        if let Some((pipe, _)) = &self.draining
            && pipe.poll_done(cx).is_pending()
        {
            return Poll::Pending;
        }
        self.draining = None;
        if self.asker.outstanding == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

fn head(offset: u64, len: usize, into: &mut [u8]) {
    let mut bytes = Vec::with_capacity(WRITE_HEAD);
    let message = Tmsg::Write { fid: NOFID, offset, data: Data::Count(len as u32) };
    message.encode_before(len, Tag(0), Dialect::L, &mut bytes);
    into.copy_from_slice(&bytes);
}
