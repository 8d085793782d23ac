//! Streams: a file in order at the speed of the link (Floren, *FTP-like Streams for the 9P Protocol*; `stream`,
//! `sread`, `swrite`, `sclose`).
//!
//! In: an open file, an offset, a direction. Out: bytes. If the session has streams ([`Options::streams`], a `.s`
//! dialect) and enough bytes are to be moved, a data connection carries them (`side`). Meanwhile the first [`HEAD`]
//! bytes go by windowed Treads or Twrites, so that no caller waits for the connection. In *compatibility mode* all
//! bytes go that way: if there are no streams, if the data connection fails, or if the file is sequential.
//!
//! The stream gives up a data connection that breaks, or that moves nothing for [`Options::data_timeout`] while bytes
//! are wanted. A read continues at the first missing byte: over a new data connection if the old one carried at least
//! [`RESUME_MIN`] bytes, else by Treads. A write fails with [`Error::Stream`], and its owner continues behind
//! [`Stream::moved`].
//!
//! Always holds: bytes arrive in order and without gaps. A read reports the end of the file only if the server confirms
//! over the 9P connection that it sent as many bytes as have arrived. Of a write, [`Stream::moved`] bytes are safe in
//! any case.
//!
//! [`Options::streams`]: super::Options::streams
//! [`Options::data_timeout`]: super::Options::data_timeout

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use nine_net::{PIPE_SIZE, Transport, kernel_pipe};
use nine_proto::msg::Tmsg;
use nine_proto::{Errno, GetMask, Time};

use super::answer::Answer;
use super::call::ClientCall;
use super::data_timer::DataTimer;
use super::error::{Error, Result};
use super::file::File;
use super::flow::{Reader, Writer};
use super::side::{DataConnection, sclose};
use crate::buf::{FramePool, MessageFrame};

/// The direction of a [`Stream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the server.
    Read,
    /// To the server.
    Write,
}

/// Bytes that go by Treads or Twrites while the data connection is dialled: about as many as a new connection moves in
/// that time. More would only compete with it, because both share the link.
pub const HEAD: u64 = 256 << 10;
/// Minimum number of bytes to move for which a data connection is dialled.
pub const WORTH: u64 = 8 << 20;
/// A data connection that carried fewer bytes before it broke is not replaced by another one.
const RESUME_MIN: u64 = 1 << 20;
/// Maximum number of bytes read from or written to a data connection at once.
pub(super) const DATA_PIECE_MAX: usize = 256 * 1024;

/// A file in order, from an offset on. `F` is a [`File`] or dereferences to one.
///
/// Dropping it closes the data connection and abandons requests in flight; then it is unknown which bytes were written.
pub struct Stream<F> {
    file: F,
    pub(super) way: StreamTransfer<F>,
    /// Bytes that were read and not returned, or that are still to be written.
    pub(super) rest: Bytes,
    /// A pipe through which data goes into a local file.
    pipe: Option<(OwnedFd, OwnedFd)>,
}

pub(super) enum StreamTransfer<F> {
    Read(StreamReader<F>),
    Write(StreamWriter<F>),
}

impl<F: Deref<Target = File> + Clone + Unpin> Stream<F> {
    /// A stream from `offset` on. `end` is the length of the file, present or future, if it is known, else 0. Nothing
    /// is sent before the first poll.
    pub fn begin(file: F, offset: u64, end: u64, direction: Direction) -> Self {
        Self::after(HEAD, file, offset, end, direction)
    }

    /// Like [`Stream::begin`], for a file whose length must show how much was written, whatever else is lost. It is
    /// written at one position at a time, so it waits for the data connection before the first byte.
    pub fn straight(file: F, offset: u64, end: u64, direction: Direction) -> Self {
        Self::after(0, file, offset, end, direction)
    }

    fn after(head: u64, file: F, offset: u64, end: u64, direction: Direction) -> Self {
        if i64::try_from(offset).is_err() {
            return Self::nowhere(file, direction);
        }
        // If the length of a write is unknown, the data connection is dialled only after many bytes.
        let unsure = head > 0 && end == u64::MAX && direction == Direction::Write;
        let side = match offset.checked_add(head) {
            Some(from) if !unsure && end.saturating_sub(offset) >= WORTH => {
                DataConnection::begin(&file, from, direction)
            }
            _ => DataConnection::None,
        };
        let handover = if side.is_none() { u64::MAX } else { offset + head };
        let way = match direction {
            Direction::Read => {
                let reader = Reader::new(file.clone(), offset, end).until(handover);
                let timer = DataTimer::new(&file);
                StreamTransfer::Read(StreamReader {
                    head: reader,
                    head_len: head,
                    side,
                    handover,
                    offset,
                    end,
                    at: offset,
                    over: false,
                    timer,
                })
            }
            Direction::Write => StreamTransfer::Write(StreamWriter {
                head: Writer::new(file.clone(), offset),
                timer: DataTimer::new(&file),
                side,
                handover,
                offset,
                at: offset,
                sent: 0,
                safe: None,
                count: None,
                stopped: false,
                attr_call: None,
                last_attr: None,
                failed: None,
                finished: false,
                unsure,
            }),
        };
        Self { file, way, rest: Bytes::new(), pipe: None }
    }

    /// A stream at an offset that no file has: reads are at the end, writes fail.
    fn nowhere(file: F, direction: Direction) -> Self {
        let mut stream = Self::after(0, file, 0, 0, direction);
        match &mut stream.way {
            StreamTransfer::Read(reading) => reading.over = true,
            StreamTransfer::Write(writing) => {
                writing.failed = Some(Error::refused(Errno::EFBIG, "no file is that long"));
            }
        }
        stream
    }

    /// Returns the next bytes; `None` at the end of the file and after an error. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`Stream::next`] for hand-written futures.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        let StreamTransfer::Read(reading) = &mut self.way else { return Poll::Ready(Some(Err(other_way()))) };
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.rest))));
        }
        match ready!(reading.poll_next(cx, &self.file, None)) {
            Some(Ok(StreamChunk::Bytes(data))) => Poll::Ready(Some(Ok(data))),
            Some(Ok(StreamChunk::Filled(_))) => unreachable!("nothing was there to be filled"),
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => Poll::Ready(None),
        }
    }

    /// Reads bytes into `buf`, and returns their number: 0 at the end of the file.
    pub async fn sread(&mut self, buf: &mut [u8]) -> Result<usize> {
        poll_fn(|cx| self.poll_sread(cx, buf)).await
    }

    pub(super) fn poll_sread(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<usize>> {
        if self.rest.is_empty() && !buf.is_empty() {
            let StreamTransfer::Read(reading) = &mut self.way else { return Poll::Ready(Err(other_way())) };
            // Direct reads into a small buffer would cost a system call each.
            let into = (buf.len() >= DATA_PIECE_MAX / 2).then_some(&mut *buf);
            match ready!(reading.poll_next(cx, &self.file, into)) {
                Some(Ok(StreamChunk::Filled(n))) => return Poll::Ready(Ok(n)),
                Some(Ok(StreamChunk::Bytes(data))) => self.rest = data,
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Ok(0)),
            }
        }
        let n = buf.len().min(self.rest.len());
        buf[..n].copy_from_slice(&self.rest.split_to(n));
        Poll::Ready(Ok(n))
    }

    /// Writes the next bytes into a local file at `at`, without a copy in user space if they come over a data
    /// connection. Returns their number; `None` at the end. Blocks for the local disk as `write(2)` does.
    pub async fn receive(&mut self, into: BorrowedFd<'_>, at: u64) -> Result<Option<usize>> {
        // Without a pipe the data goes through memory.
        if self.has_connection()
            && let Some((out, inlet)) = self.pipe.take().or_else(|| kernel_pipe().ok())
        {
            if let Some(n) = poll_fn(|cx| self.poll_pull(cx, inlet.as_fd())).await? {
                drain(&out, into, at, n).inspect_err(|_| self.lose())?;
                self.pipe = Some((out, inlet));
                return Ok(Some(n));
            }
            self.pipe = Some((out, inlet));
        }
        let Some(data) = self.next().await.transpose()? else { return Ok(None) };
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(into, &data[done..], at + done as u64) {
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    self.lose();
                    return Err(here(error.into()));
                }
            }
        }
        Ok(Some(done))
    }

    /// Bytes that were taken from the stream are lost, so the stream ends here.
    fn lose(&mut self) {
        if let StreamTransfer::Read(reading) = &mut self.way {
            reading.end(Ok(()));
        }
    }

    /// Whether [`Stream::poll_give`] would send over the data connection now.
    pub fn can_give(&self) -> bool {
        match &self.way {
            StreamTransfer::Write(StreamWriter {
                side: DataConnection::Open { transport, .. },
                at,
                handover,
                failed: None,
                ..
            }) => at >= handover && transport.can_splice(),
            _ => false,
        }
    }

    /// Moves bytes from the data connection into an empty pipe, without a copy in user space. `None`: not possible now,
    /// or not at all; [`Stream::poll_next`] works.
    pub fn poll_pull(&mut self, cx: &mut Context<'_>, pipe: BorrowedFd<'_>) -> Poll<Result<Option<usize>>> {
        match &mut self.way {
            StreamTransfer::Read(reading) if self.rest.is_empty() => {
                reading.poll_splice(cx, &self.file, pipe)
            }
            _ => Poll::Ready(Ok(None)),
        }
    }

    /// Writes up to `len` bytes of a pipe, which holds as many, over the data connection, without a copy in user space.
    /// Returns their number. `None`: not possible; use [`Stream::poll_put`].
    pub fn poll_give(
        &mut self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> Poll<Result<Option<usize>>> {
        ready!(self.poll_drain(cx))?;
        match &mut self.way {
            StreamTransfer::Write(writing) => writing.poll_direct(cx, &self.file, |transport, cx| {
                transport.can_splice().then(|| transport.poll_splice_out(cx, pipe, len))
            }),
            StreamTransfer::Read(_) => Poll::Ready(Err(other_way())),
        }
    }

    /// Takes `data` to be written next, and leaves it empty, once earlier data is on its way.
    pub fn poll_put(&mut self, cx: &mut Context<'_>, data: &mut Bytes) -> Poll<Result<()>> {
        ready!(self.poll_drain(cx))?;
        self.rest = std::mem::take(data);
        match self.poll_drain(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Writes `data` next; waits while the window is full. An error is permanent.
    pub async fn push(&mut self, data: Bytes) -> Result<()> {
        self.poll_drained().await?;
        self.rest = data;
        self.poll_drained().await
    }

    /// Writes bytes of `buf`, and returns the number taken, which is all of them.
    pub async fn swrite(&mut self, buf: &[u8]) -> Result<usize> {
        self.push(Bytes::copy_from_slice(buf)).await.map(|()| buf.len())
    }

    /// Writes up to `len` bytes of a local file from `at` on, without a copy in user space if they go over a data
    /// connection. Returns their number; 0 at the end of the local file. Blocks for the local disk as `read(2)` does.
    pub async fn send(&mut self, from: BorrowedFd<'_>, at: u64, len: usize) -> Result<usize> {
        self.poll_drained().await?;
        if let StreamTransfer::Write(writing) = &mut self.way {
            let sent = poll_fn(|cx| {
                writing.poll_direct(cx, &self.file, |transport, cx| {
                    transport.can_sendfile().then(|| transport.poll_sendfile(cx, from, at, len))
                })
            });
            if let Some(n) = sent.await? {
                return Ok(n);
            }
        }
        let mut piece = vec![0; len.min(DATA_PIECE_MAX)];
        let n = loop {
            match rustix::io::pread(from, &mut *piece, at) {
                Err(rustix::io::Errno::INTR) => {}
                read => break read.map_err(|e| here(e.into()))?,
            }
        };
        piece.truncate(n);
        if n > 0 {
            self.push(piece.into()).await?;
        }
        Ok(n)
    }

    async fn poll_drained(&mut self) -> Result<()> {
        poll_fn(|cx| self.poll_drain(cx)).await
    }

    /// Passes on the bytes that are to be written.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.way {
            StreamTransfer::Write(writing) => writing.poll_drain(cx, &self.file, &mut self.rest),
            StreamTransfer::Read(_) => Poll::Ready(Err(other_way())),
        }
    }

    /// Waits until the server has taken all that was written: safe after [`File::fsync`].
    pub async fn finish(&mut self) -> Result<()> {
        poll_fn(|cx| self.poll_finish(cx)).await
    }

    /// [`Stream::finish`] for hand-written futures.
    pub fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.poll_drain(cx))?;
        match &mut self.way {
            StreamTransfer::Write(writing) => writing.poll_finish(cx, &self.file),
            StreamTransfer::Read(_) => Poll::Ready(Err(other_way())),
        }
    }

    /// Bytes read from the offset on, or bytes that the server has taken, without a gap. Valid after an error, too.
    pub fn moved(&self) -> u64 {
        match &self.way {
            StreamTransfer::Read(reading) => reading.at - reading.offset - self.rest.len() as u64,
            StreamTransfer::Write(writing) => writing.moved(),
        }
    }

    /// Whether a data connection carries bytes now.
    pub fn has_connection(&self) -> bool {
        let side = match &self.way {
            StreamTransfer::Read(reading) => &reading.side,
            StreamTransfer::Write(writing) => &writing.side,
        };
        matches!(side, DataConnection::Open { .. })
    }

    /// Ends the stream: finishes writes, and discards unread bytes. Returns [`Stream::moved`]. Afterwards the file may
    /// have another stream.
    pub async fn sclose(mut self) -> Result<u64> {
        match &mut self.way {
            StreamTransfer::Write(_) => self.finish().await?,
            StreamTransfer::Read(reading) => {
                if !matches!(std::mem::replace(&mut reading.side, DataConnection::None), DataConnection::None)
                {
                    // The answer shows how far the server was, which does not matter.
                    let _ = sclose(&self.file, 0).await;
                }
            }
        }
        Ok(self.moved())
    }
}

pub(super) struct StreamReader<F> {
    head: Reader<F>,
    /// Bytes that the head reads before a data connection takes over.
    head_len: u64,
    side: DataConnection,
    /// The offset at which the data connection takes over.
    handover: u64,
    offset: u64,
    /// The length of the file, as far as it is known.
    end: u64,
    /// The offset of the next byte.
    at: u64,
    over: bool,
    timer: DataTimer,
}

/// The next bytes of a file.
enum StreamChunk {
    Bytes(Bytes),
    /// This many bytes are in the caller's buffer.
    Filled(usize),
}

impl<F: Deref<Target = File> + Clone> StreamReader<F> {
    /// Returns the next bytes; they are in `into` if they come over the data connection.
    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        file: &F,
        mut into: Option<&mut [u8]>,
    ) -> Poll<Option<Result<StreamChunk>>> {
        if self.over {
            return Poll::Ready(None);
        }
        loop {
            let settled = self.side.poll(cx, file).is_ready();
            let open = matches!(self.side, DataConnection::Open { .. });
            if settled && !open && self.handover != u64::MAX {
                // All of the file goes this way. The requests in flight of the head are taken first.
                self.handover = u64::MAX;
                self.head.extend();
            }
            if self.at < self.handover {
                return Poll::Ready(match ready!(self.head.poll_next(cx)) {
                    Some(Ok(data)) => {
                        self.at += data.len() as u64;
                        Some(Ok(StreamChunk::Bytes(data)))
                    }
                    Some(Err(error)) => self.end(Err(error)),
                    None => self.end(Ok(())),
                });
            }
            if !open {
                return Poll::Pending;
            }
            match ready!(self.poll_data(cx, file, into.as_deref_mut())) {
                Ok(Some(came)) => {
                    self.at += match &came {
                        StreamChunk::Bytes(data) => data.len(),
                        StreamChunk::Filled(n) => *n,
                    } as u64;
                    return Poll::Ready(Some(Ok(came)));
                }
                Ok(None) if !matches!(self.side, DataConnection::Open { .. }) => {}
                Ok(None) => return Poll::Ready(self.end(Ok(()))),
                Err(error) => return Poll::Ready(self.end(Err(error))),
            }
        }
    }

    fn end(&mut self, result: Result<()>) -> Option<Result<StreamChunk>> {
        self.over = true;
        self.side = DataConnection::None;
        result.err().map(Err)
    }

    /// The next bytes of the data connection; `None`: there are no more, or the connection failed and the head
    /// continues.
    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
        file: &F,
        into: Option<&mut [u8]>,
    ) -> Poll<Result<Option<StreamChunk>>> {
        let came = self.at - self.handover;
        let DataConnection::Open { transport, buf, ended, .. } = &mut self.side else {
            unreachable!("asked for what has come over it")
        };
        let mut broken = None;
        if !*ended {
            let fills = into.is_some();
            let target = into.unwrap_or_else(|| {
                let own = buf.get_or_insert_with(|| FramePool::here().take(DATA_PIECE_MAX));
                &mut Arc::get_mut(own).expect("nobody has it before it is filled").bytes[..DATA_PIECE_MAX]
            });
            match transport.poll_read(cx, target) {
                Poll::Ready(Ok(0)) => *ended = true,
                Poll::Ready(Ok(n)) if fills => return Poll::Ready(Ok(Some(StreamChunk::Filled(n)))),
                Poll::Ready(Ok(n)) if n < DATA_PIECE_MAX / 2 => {
                    return Poll::Ready(Ok(Some(StreamChunk::Bytes(Bytes::copy_from_slice(&target[..n])))));
                }
                Poll::Ready(Ok(n)) => {
                    let full = buf.take().expect("filled just now");
                    return Poll::Ready(Ok(Some(StreamChunk::Bytes(Bytes::from_owner(MessageFrame::new(
                        full, 0, n,
                    ))))));
                }
                Poll::Ready(Err(error)) => (*ended, broken) = (true, Some(error)),
                Poll::Pending => {
                    *buf = None;
                    // The verdict tells whether more bytes are on their way.
                    let waits = match self.side.poll_told(cx) {
                        Poll::Ready(Ok((count, None))) => *count > came,
                        Poll::Ready(_) => false,
                        Poll::Pending => true,
                    };
                    if waits {
                        broken = Some(ready!(self.timer.poll_silent(cx, self.at)));
                    }
                }
            }
        }
        let why = match self.side.poll_told(cx) {
            Poll::Ready(Ok((count, None))) if *count == came => return Poll::Ready(Ok(None)),
            Poll::Ready(Ok((count, None))) if *count < came => {
                let text = format!("the server counted {count} bytes, and {came} have come");
                return Poll::Ready(Err(Error::refused(Errno::EIO, &text)));
            }
            // Another stream of this file has replaced it. The rest is read by Treads.
            Poll::Ready(Ok((_, Some(error)))) if error.errno == Errno::ECANCELED => {
                self.side = DataConnection::None;
                self.handover = u64::MAX;
                self.head.go_on(self.at, u64::MAX);
                return Poll::Ready(Ok(None));
            }
            Poll::Ready(Err(error)) if file.client().dead().is_some() => {
                return Poll::Ready(Err(error.clone()));
            }
            Poll::Ready(Err(error)) => error.to_string(),
            Poll::Ready(Ok((_, Some(error)))) => error.to_string(),
            Poll::Ready(Ok((count, None))) => format!("it ended after {came} of {count} bytes"),
            Poll::Pending => match broken {
                Some(error) => error.to_string(),
                // The verdict of an orderly end is on its way.
                None => ready!(self.timer.poll_silent(cx, self.at)).to_string(),
            },
        };
        self.resume(file, came, &why);
        Poll::Ready(Ok(None))
    }

    /// Continues behind a data connection that is of no more use after `came` bytes. If the file itself is the reason,
    /// a Tread says so.
    fn resume(&mut self, file: &F, came: u64, why: &str) {
        let from = self.at.saturating_add(self.head_len);
        if came < RESUME_MIN {
            self.side.leave(file, &why);
        } else {
            let peer = file.client().peer();
            tracing::warn!(%peer, "a data connection broke after {came} bytes ({why}): reading on");
            self.side = match self.end.saturating_sub(self.at) >= WORTH {
                true => DataConnection::begin(file, from, Direction::Read),
                false => DataConnection::Leaving(sclose(file, 0)),
            };
        }
        self.timer.restart();
        self.handover = if matches!(self.side, DataConnection::Asked(..)) { from } else { u64::MAX };
        self.head.go_on(self.at, self.handover);
    }

    /// Moves bytes of the data connection into an empty pipe. `None`: none are available, or it is not possible.
    fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        file: &F,
        pipe: BorrowedFd<'_>,
    ) -> Poll<Result<Option<usize>>> {
        let _ = self.side.poll(cx, file);
        let DataConnection::Open { transport, ended: false, .. } = &mut self.side else {
            return Poll::Ready(Ok(None));
        };
        if self.at < self.handover || self.over || !transport.can_splice() {
            return Poll::Ready(Ok(None));
        }
        match transport.poll_splice_in(cx, pipe, PIPE_SIZE) {
            Poll::Ready(Ok(n)) if n > 0 => {
                self.at += n as u64;
                Poll::Ready(Ok(Some(n)))
            }
            Poll::Pending => match self.side.poll_told(cx) {
                Poll::Ready(Ok((count, None))) if *count <= self.at - self.handover => Poll::Ready(Ok(None)),
                Poll::Ready(Ok((_, Some(_))) | Err(_)) => Poll::Ready(Ok(None)),
                _ => self.timer.poll_silent(cx, self.at).map(|_| Ok(None)),
            },
            // `poll_data` meets the same end and interprets it.
            Poll::Ready(_) => Poll::Ready(Ok(None)),
        }
    }
}

pub(super) struct StreamWriter<F> {
    head: Writer<F>,
    side: DataConnection,
    handover: u64,
    offset: u64,
    /// The offset of the next byte to pass on.
    at: u64,
    /// Bytes that the data connection has taken.
    sent: u64,
    /// The part of `sent` that the server has confirmed.
    safe: Option<u64>,
    /// A Tsclose with the number of bytes that were sent. The first Tsclose gets the same answer.
    count: Option<Box<ClientCall<'static>>>,
    /// A Tsclose has asked the server to stop where it is.
    stopped: bool,
    /// The question whether the server still stores bytes, and the length and time of the last answer.
    attr_call: Option<Box<ClientCall<'static>>>,
    last_attr: Option<(u64, Time)>,
    timer: DataTimer,
    failed: Option<Error>,
    finished: bool,
    /// Whether it is unknown if there will be enough bytes for a data connection.
    unsure: bool,
}

impl<F: Deref<Target = File> + Clone> StreamWriter<F> {
    fn poll_drain(&mut self, cx: &mut Context<'_>, file: &F, rest: &mut Bytes) -> Poll<Result<()>> {
        loop {
            if let Some(error) = &self.failed {
                return Poll::Ready(Err(error.clone()));
            }
            if self.unsure && self.at - self.offset >= WORTH / 2 {
                self.unsure = false;
                if let Some(from) = self.at.checked_add(HEAD) {
                    self.side = DataConnection::begin(file, from, Direction::Write);
                    self.handover = if self.side.is_none() { u64::MAX } else { from };
                }
            }
            let settled = self.poll_side(cx, file);
            // Earlier Twrites may fail while the data connection takes more bytes.
            if let Poll::Ready(Err(error)) = self.head.poll_until(cx, usize::MAX) {
                return self.fail(error);
            }
            if rest.is_empty() {
                // Bytes that the transport holds back are sent as far as possible.
                let _ = self.poll_flush(cx);
                return Poll::Ready(Ok(()));
            }
            if self.finished {
                return Poll::Ready(Err(Error::refused(Errno::EBADF, "the stream is finished")));
            }
            if self.at < self.handover {
                let most = (self.handover - self.at).min(self.head.piece().min(rest.len()) as u64) as usize;
                if let Err(error) = ready!(self.head.poll_room(cx, most)) {
                    return self.fail(error);
                }
                self.head.put(rest.split_to(most));
                // Sends it now.
                let _ = self.head.poll_until(cx, usize::MAX);
                self.at += most as u64;
                continue;
            }
            if !settled {
                return Poll::Pending;
            }
            let DataConnection::Open { transport, .. } = &mut self.side else { continue };
            match transport.poll_write(cx, &[IoSlice::new(rest)]) {
                Poll::Ready(Ok(n)) => {
                    drop(rest.split_to(n));
                    (self.at, self.sent) = (self.at + n as u64, self.sent + n as u64);
                }
                Poll::Ready(Err(error)) => ready!(self.poll_broken(cx, file, error))?,
                Poll::Pending => ready!(self.poll_over(cx, file))?,
            }
        }
    }

    /// Flushes the data connection, if there is one. The next write meets its errors.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.side {
            DataConnection::Open { transport, ended: false, .. } => transport.poll_flush(cx).map(drop),
            _ => Poll::Ready(()),
        }
    }

    /// Whether it is decided how the bytes after the head are sent.
    fn poll_side(&mut self, cx: &mut Context<'_>, file: &File) -> bool {
        let settled = self.side.poll(cx, file).is_ready();
        if settled && !self.finished && !matches!(self.side, DataConnection::Open { .. }) {
            self.handover = u64::MAX;
        }
        settled
    }

    fn fail(&mut self, error: Error) -> Poll<Result<()>> {
        self.failed = Some(error.clone());
        if !matches!(self.side, DataConnection::Open { .. }) {
            self.side = DataConnection::None;
        }
        Poll::Ready(Err(error))
    }

    /// The data connection takes nothing now: checks whether the server has ended the stream.
    fn poll_over(&mut self, cx: &mut Context<'_>, file: &File) -> Poll<Result<()>> {
        let broken = match self.side.poll_told(cx) {
            Poll::Ready(_) => io::ErrorKind::BrokenPipe.into(),
            Poll::Pending => ready!(self.timer.poll_silent(cx, self.sent)),
        };
        self.poll_broken(cx, file, broken)
    }

    /// The data connection is broken: the server reports why, and how many bytes are safe.
    fn poll_broken(&mut self, cx: &mut Context<'_>, file: &File, broken: io::Error) -> Poll<Result<()>> {
        // The server may not have noticed, or may never have had the connection.
        self.stop(cx, file);
        let told = self.poll_verdict(cx, file);
        // An error of the Twrites comes first.
        if let Err(error) = ready!(self.head.poll_until(cx, 0)) {
            return self.fail(error);
        }
        let error = match ready!(told) {
            Ok(()) => cut(file, broken),
            Err(error) => error,
        };
        if matches!(error, Error::Stream { .. }) && self.safe.unwrap_or(0) < RESUME_MIN {
            // A caller that continues would otherwise dial one data connection after the other.
            file.client().without_streams();
        }
        self.fail(error)
    }

    /// Asks the server to end the stream after `count` bytes, unless it has ended: then another stream may have its
    /// place.
    fn say(&mut self, cx: &mut Context<'_>, file: &File, count: u64) {
        if self.count.is_none() && self.side.poll_told(cx).is_pending() {
            self.count.insert(Box::new(sclose(file, count))).begin(cx);
        }
    }

    /// Asks the server to end the stream where it is, unless it is over.
    fn stop(&mut self, cx: &mut Context<'_>, file: &File) {
        if !std::mem::replace(&mut self.stopped, true) && self.side.poll_told(cx).is_pending() {
            self.count.insert(Box::new(sclose(file, 0))).begin(cx);
        }
    }

    /// Asks the server for the file's attributes. Returns whether they have changed since the last time, or were never
    /// asked for: then the server still stores bytes.
    fn poll_stores(&mut self, cx: &mut Context<'_>, file: &File) -> Poll<bool> {
        let call = self.attr_call.get_or_insert_with(|| {
            let is_l = file.client().dialect().is_l();
            let fid = file.fid();
            Box::new(file.call(match is_l {
                true => Tmsg::Getattr { fid, mask: GetMask::BASIC.0 },
                false => Tmsg::Stat { fid },
            }))
        });
        let answer = ready!(Pin::new(call).poll(cx));
        self.attr_call = None;
        let Ok(Answer::Attr(attr)) = answer else { return Poll::Ready(false) };
        let now = (attr.size, attr.mtime);
        Poll::Ready(self.last_attr.replace(now) != Some(now))
    }

    /// Waits for the server's verdict, and checks that it has stored all that was sent.
    fn poll_verdict(&mut self, cx: &mut Context<'_>, file: &File) -> Poll<Result<()>> {
        let sent = self.sent;
        let told = ready!(self.side.poll_told(cx));
        let stored = told.as_ref().map_or(0, |&(stored, _)| stored.min(sent));
        let result = match told {
            // The Tsclose allowed any number of bytes, so every end of the connection is EPIPE. The count decides.
            Ok((_, Some(error))) if !is_connection(error.errno) => Err(Error::Remote(error.clone())),
            Ok(_) if stored < sent => {
                let text = format!("it was cut after {stored} of {sent} bytes");
                Err(cut(file, io::Error::new(io::ErrorKind::UnexpectedEof, text)))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error.clone()),
        };
        if matches!(told, Ok((_, Some(error))) if error.errno == Errno::ETIMEDOUT)
            || stored < RESUME_MIN && stored < sent
        {
            // The connection failed before it carried much.
            file.client().without_streams();
        }
        self.safe = Some(stored);
        Poll::Ready(result)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>, file: &F) -> Poll<Result<()>> {
        if let Some(error) = &self.failed {
            return Poll::Ready(Err(error.clone()));
        }
        if self.finished {
            return Poll::Ready(Ok(()));
        }
        let head = self.head.poll_until(cx, 0);
        if let Poll::Ready(Err(error)) = head {
            return self.fail(error);
        }
        if self.at <= self.handover && self.sent == 0 && !matches!(self.side, DataConnection::None) {
            // There were no bytes beyond the head, so the data connection is given up.
            if !matches!(self.side, DataConnection::Leaving(_)) {
                self.side = DataConnection::Leaving(sclose(file, 0));
            }
            let _ = self.side.poll(cx, file);
            if !self.side.is_none() {
                return Poll::Pending;
            }
        }
        if let DataConnection::Open { transport, ended, .. } = &mut self.side {
            if !*ended {
                match transport.poll_close(cx) {
                    Poll::Ready(Ok(())) => *ended = true,
                    Poll::Ready(Err(error)) => return self.poll_broken(cx, file, error),
                    Poll::Pending => return self.poll_over(cx, file),
                }
            }
            self.say(cx, file, self.sent);
            let mut verdict = self.poll_verdict(cx, file);
            while verdict.is_pending() && !self.stopped && self.timer.poll_silent(cx, self.sent).is_ready() {
                // On a slow link, bytes that were sent long ago are still on their way.
                if ready!(self.poll_stores(cx, file)) {
                    self.timer.restart();
                } else {
                    self.stop(cx, file);
                    verdict = self.poll_verdict(cx, file);
                }
            }
            if let Err(error) = ready!(verdict) {
                // An error of the Twrites comes first.
                ready!(head)?;
                return self.fail(error);
            }
        }
        ready!(head)?;
        self.side = DataConnection::None;
        self.finished = true;
        Poll::Ready(Ok(()))
    }

    /// Sends over the data connection by a special operation, if `call` has one. `None`: not possible.
    fn poll_direct(
        &mut self,
        cx: &mut Context<'_>,
        file: &F,
        call: impl FnOnce(&mut dyn Transport, &mut Context<'_>) -> Option<Poll<io::Result<usize>>>,
    ) -> Poll<Result<Option<usize>>> {
        if let Some(error) = &self.failed {
            return Poll::Ready(Err(error.clone()));
        }
        let settled = self.poll_side(cx, file);
        if self.at < self.handover {
            return Poll::Ready(Ok(None));
        }
        if !settled {
            return Poll::Pending;
        }
        let DataConnection::Open { transport, .. } = &mut self.side else { return Poll::Ready(Ok(None)) };
        let Some(sent) = call(&mut **transport, cx) else { return Poll::Ready(Ok(None)) };
        match sent {
            Poll::Ready(Ok(n)) => {
                (self.at, self.sent) = (self.at + n as u64, self.sent + n as u64);
                Poll::Ready(Ok(Some(n)))
            }
            Poll::Ready(Err(error)) => self.poll_broken(cx, file, error).map_ok(|()| None),
            Poll::Pending => self.poll_over(cx, file).map_ok(|()| None),
        }
    }

    fn moved(&self) -> u64 {
        let head = self.head.written();
        let whole = self.handover != u64::MAX && head == self.handover - self.offset;
        head + if whole { self.safe.unwrap_or(0) } else { 0 }
    }
}

/// Moves `n` bytes from a pipe into a local file.
fn drain(out: &OwnedFd, into: BorrowedFd<'_>, mut at: u64, n: usize) -> Result<usize> {
    let mut done = 0;
    while done < n {
        match rustix::pipe::splice(out, None, into, Some(&mut at), n - done, rustix::pipe::SpliceFlags::MOVE)
        {
            Ok(0) => return Err(here(io::ErrorKind::WriteZero.into())),
            Ok(m) => done += m,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(here(error.into())),
        }
    }
    Ok(n)
}

/// Whether it is the error of a data connection, not of the file.
fn is_connection(errno: Errno) -> bool {
    matches!(errno, Errno::EPIPE | Errno::ECONNRESET | Errno::ETIMEDOUT)
}

fn cut(file: &File, error: io::Error) -> Error {
    Error::Stream { peer: file.client().peer().clone(), error: Arc::new(error) }
}

/// A local error.
fn here(error: io::Error) -> Error {
    Error::Here(Arc::new(error))
}

pub(super) fn other_way() -> Error {
    Error::refused(Errno::EBADF, "the stream goes the other way")
}
