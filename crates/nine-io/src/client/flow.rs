//! File data in both directions, with as many messages in flight as a long link needs.
//!
//! A piece is one Tread or Twrite. Pieces are started and completed in order, so an error or the end of the file
//! appears at its position. The rest of a short answer is requested before any later bytes count, so there are no gaps.
//! A server answers short when it has no room for the window. The reader then requests the rests of all short answers
//! together, and halves the window.
//!
//! If there is a clock, the window is found from the measured round trips and rates (`pace`).
//!
//! Always holds: at most `Options::window` bytes are in flight, or twice as many if the window is found, or one piece.
//! A file whose reads and writes must not be split (append-only, exclusive) has one piece in flight.

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use nine_net::Clock;
use nine_proto::msg::{Data, Tmsg};
use nine_proto::{Errno, OpenFlags, Qid};

use super::answer::Answer;
use super::call::ClientCall;
use super::error::{Error, Result};
use super::file::File;
use super::pace::{PaceController, PaceSample};
use super::window::FutureWindow;

/// Maximum data in one of several Treads, in bytes. The answer fits into a unix socket's buffer (208 KiB), so it is
/// sent in one go.
const READ: u32 = 128 * 1024;
/// Maximum data in one of several Twrites, in bytes: larger ones only make progress coarser.
const WRITE: u32 = 256 * 1024;
/// A larger piece is cut to a multiple of this, so that pieces are aligned to pages.
const PAGE: u32 = 4096;

impl File {
    /// Reads bytes from `offset` on into `buf`. It returns less than fits only at the end of the file, or before an
    /// error, which the next read meets. Large reads are pipelined. Of append-only and exclusive files it sends one
    /// Tread.
    ///
    /// Files that deliver events, rather than bytes at an offset, must be read with [`File::read`].
    pub async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let stop = offset.saturating_add(buf.len() as u64);
        if self.is_sequential() || buf.len() <= self.piece(READ) as usize {
            // The common case. The rest of a short answer may be requested below.
            let data = self.read(offset, buf.len().min(self.iounit() as usize) as u32).await?;
            buf[..data.len()].copy_from_slice(&data);
            if self.is_sequential() || data.is_empty() || data.len() == buf.len() {
                return Ok(data.len());
            }
            let at = data.len();
            return Ok(at + self.fill(offset + at as u64, stop, &mut buf[at..]).await.unwrap_or(0));
        }
        self.fill(offset, stop, buf).await
    }

    async fn fill(&self, offset: u64, stop: u64, buf: &mut [u8]) -> Result<usize> {
        let mut reader = Reader::new(self, offset, stop).until(stop);
        let mut n = 0;
        while let Some(data) = reader.next().await {
            match data {
                Ok(data) => {
                    buf[n..n + data.len()].copy_from_slice(&data);
                    n += data.len();
                }
                Err(error) if n == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(n)
    }

    /// One Tread: at most `count` and [`File::iounit`] bytes; none at the end of the file.
    pub async fn read(&self, offset: u64, count: u32) -> Result<Bytes> {
        data(self.call(Tmsg::Read { fid: self.fid(), offset, count: count.min(self.iounit()) }).await?)
    }

    /// Writes at `offset`, and returns how many of the first bytes of `data` the server has taken: less than all only
    /// before an error, which the next write meets. Large writes are pipelined. To append-only and exclusive files it
    /// sends one Twrite, which may take less.
    pub async fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        if self.is_sequential() || data.len() <= self.piece(WRITE) as usize {
            let n = self.write(offset, &data[..data.len().min(self.iounit() as usize)]).await?;
            return Ok(n as usize);
        }
        let mut writer = Writer::new(self, offset);
        let mut written = Ok(());
        for piece in data.chunks(self.piece(WRITE) as usize) {
            written = writer.push(Bytes::copy_from_slice(piece)).await;
            if written.is_err() {
                break;
            }
        }
        if written.is_ok() {
            written = writer.finish().await;
        }
        match (writer.written(), written) {
            (0, Err(error)) => Err(error),
            (n, _) => Ok(n as usize),
        }
    }

    /// Writes all of `data` at `offset`.
    pub async fn write_all_at(&self, mut offset: u64, mut data: &[u8]) -> Result<()> {
        loop {
            let n = self.write_at(offset, data).await?;
            data = &data[n..];
            offset += n as u64;
            if data.is_empty() {
                return Ok(());
            }
            if n == 0 {
                return Err(takes_nothing());
            }
        }
    }

    /// One Twrite of at most [`File::iounit`] bytes; returns how many the server has taken.
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<u32> {
        let data = Data::Bytes(&data[..data.len().min(self.iounit() as usize)]);
        wrote(self.call(Tmsg::Write { fid: self.fid(), offset, data }).await?)
    }

    /// Whether reads and writes must not be split.
    pub(super) fn is_sequential(&self) -> bool {
        let appends = self.flags().is_some_and(|flags| flags.has(OpenFlags::APPEND));
        appends || self.qid().ty & (Qid::APPEND | Qid::EXCL) != 0
    }

    /// The maximum data in a piece, at most `most`.
    fn piece(&self, most: u32) -> u32 {
        whole_pages(self.iounit().min(most))
    }

    fn window(&self) -> usize {
        if self.is_sequential() { 0 } else { self.client().0.options.window }
    }

    /// The estimator of the window, if there is a clock.
    fn pace(&self) -> Option<(PaceController, Arc<dyn Clock>)> {
        let clock = self.client().0.options.clock.clone().filter(|_| !self.is_sequential())?;
        Some((PaceController::new(WIDER * self.window()), clock))
    }
}

/// A window that is found may be this many times [`Options::window`](super::Options::window).
pub const WIDER: usize = 2;

/// Reads a file from an offset to its end, ahead of its caller.
///
/// It reads ahead only bytes that are known to exist: below `size` it has a window of Treads in flight, beyond it one.
/// So `size` 0 is right for files that deliver events.
pub struct Reader<F> {
    file: F,
    window: FutureWindow<WindowCall>,
    /// Bytes requested in the window.
    under_way: usize,
    /// The offset of the next piece.
    at: u64,
    /// The file is believed to have bytes below this offset.
    size: u64,
    /// Nothing is requested from this offset on.
    stop: u64,
    /// Maximum data in one piece, in bytes.
    piece: u32,
    /// Maximum data in the window, in bytes, unless `pace` finds it.
    most: usize,
    /// The window is the one of `pace`, if there is one.
    paced: bool,
    /// The times of the latest and of the fastest piece, from its request to its use.
    trips: Option<(Duration, Duration)>,
    pace: Option<(PaceController, Arc<dyn Clock>)>,
    done: bool,
}

impl<F: Deref<Target = File>> Reader<F> {
    /// A reader from `offset` on. `size` is the length of the file if it is known (from [`File::getattr`]), else 0.
    pub fn new(file: F, offset: u64, size: u64) -> Self {
        let (piece, most) = (file.piece(READ), file.window());
        let (window, stop, pace) = (FutureWindow::new(), u64::MAX, file.pace());
        let (paced, trips) = (true, None);
        Self {
            file,
            window,
            under_way: 0,
            at: offset,
            size,
            stop,
            piece,
            most,
            paced,
            trips,
            pace,
            done: false,
        }
    }

    /// Requests nothing at `stop` and beyond.
    #[must_use]
    pub fn until(self, stop: u64) -> Self {
        Self { stop, ..self }
    }

    /// Limits a piece to `most` bytes, for files of which more is known than [`File::iounit`].
    #[must_use]
    pub fn in_pieces(self, most: u32) -> Self {
        Self { piece: self.piece.min(whole_pages(most.max(1))), ..self }
    }

    /// From now on has at most `most` bytes in flight, or one piece, instead of `Options::window`.
    pub fn set_window(&mut self, most: usize) {
        (self.most, self.paced) = (most, false);
    }

    /// The times of the latest and of the fastest piece, from its request to its use. `None` without a clock, and
    /// before the first piece.
    pub fn trips(&self) -> Option<(Duration, Duration)> {
        self.trips
    }

    /// Continues beyond the offset of [`Reader::until`].
    pub(super) fn extend(&mut self) {
        self.stop = u64::MAX;
    }

    /// Continues at `at`, up to `stop`, after it has stopped.
    pub(super) fn go_on(&mut self, at: u64, stop: u64) {
        (self.at, self.stop) = (at, stop);
    }

    /// Maximum number of bytes in one piece.
    pub fn piece_max(&self) -> u32 {
        self.piece
    }

    /// The offset of the next piece that is not requested yet.
    pub fn edge(&self) -> u64 {
        self.at
    }

    /// Sends requests up to the window, and takes no answer.
    pub fn begin(&mut self, cx: &mut Context<'_>) {
        if !self.done {
            self.fill();
            self.window.begin(cx);
        }
    }

    /// Returns the next bytes; `None` at the end of the file and after an error. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`Reader::next`] for hand-written futures.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        if self.done {
            return Poll::Ready(None);
        }
        self.fill();
        let Some(WindowResult { offset, len, asked, answer, .. }) = ready!(self.window.poll_next(cx)) else {
            // It has reached `stop`.
            return Poll::Ready(None);
        };
        self.under_way -= len as usize;
        if let (Some((pace, clock)), Ok(Answer::Data(data))) = (&mut self.pace, &answer) {
            let trip = pace.answer(clock.now(), asked, data.len());
            let fastest = self.trips.map_or(trip, |(_, fastest)| fastest.min(trip));
            self.trips = Some((trip, fastest));
        }
        match answer.and_then(data) {
            Ok(data) if data.is_empty() => {
                self.end();
                Poll::Ready(None)
            }
            Ok(data) => {
                let n = data.len() as u32;
                if n < len {
                    self.window.push_front(self.ask(offset + u64::from(n), len - n));
                    self.under_way += (len - n) as usize;
                    if offset + u64::from(n) < self.size {
                        self.follow_up(cx, asked);
                    }
                }
                Poll::Ready(Some(Ok(data)))
            }
            Err(error) => {
                self.end();
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    /// Handles a short answer before the end of the file. Also requests what is missing from the short answers behind
    /// it. `asked`: the pace when the request was sent.
    fn follow_up(&mut self, cx: &mut Context<'_>, asked: PaceSample) {
        if let Some((pace, _)) = &mut self.pace {
            pace.shrink(asked);
        }
        let mut window = std::mem::replace(&mut self.window, FutureWindow::new());
        window.insert_behind_done(cx, |ended: &mut WindowResult| match &ended.answer {
            Ok(Answer::Data(data)) if !data.is_empty() && data.len() < ended.len as usize => {
                let (n, len) = (data.len() as u32, ended.len);
                ended.len = n;
                Some(self.ask(ended.offset + u64::from(n), len - n))
            }
            _ => None,
        });
        self.window = window;
    }

    fn fill(&mut self) {
        loop {
            let alone = self.window.len() == 0;
            let pace = self.pace.as_ref().filter(|_| self.paced);
            let most = pace.map_or(self.most, |(pace, _)| pace.window());
            let room = self.under_way + self.piece as usize <= most && self.at <= self.size;
            if self.at >= self.stop || !(alone || room) {
                return;
            }
            // The last piece of a known size is followed by one that finds the end, or bytes added meanwhile.
            let known = self.size.saturating_sub(self.at);
            let most = if known > 0 { known } else { u64::MAX }.min(self.stop - self.at);
            let len = u64::from(self.piece).min(most) as u32;
            self.window.push_back(self.ask(self.at, len));
            self.under_way += len as usize;
            self.at += u64::from(len);
        }
    }

    fn ask(&self, offset: u64, len: u32) -> WindowCall {
        let call = self.file.call(Tmsg::Read { fid: self.file.fid(), offset, count: len });
        let asked = self.pace.as_ref().map(|(pace, clock)| pace.ask(clock.now())).unwrap_or_default();
        WindowCall { call, offset, len, asked, data: Bytes::new() }
    }

    fn end(&mut self) {
        self.done = true;
        self.window.clear();
    }
}

/// Writes a file from an offset on, without waiting for each answer.
///
/// Dropping it takes back unanswered writes; [`Writer::finish`] waits for them.
pub struct Writer<F> {
    file: F,
    window: FutureWindow<WindowCall>,
    under_way: usize,
    at: u64,
    written: u64,
    pace: Option<(PaceController, Arc<dyn Clock>)>,
    failed: Option<Error>,
}

impl<F: Deref<Target = File>> Writer<F> {
    /// A writer from `offset` on.
    pub fn new(file: F, offset: u64) -> Self {
        let pace = file.pace();
        Self { file, window: FutureWindow::new(), under_way: 0, at: offset, written: 0, pace, failed: None }
    }

    /// Writes `data` next. Waits while the window is full. An error concerns this or an earlier piece, and is
    /// permanent. When it is returned, no piece is in flight any more; pieces behind the failed one may be written.
    pub async fn push(&mut self, mut data: Bytes) -> Result<()> {
        while !data.is_empty() {
            let len = data.len().min(self.piece());
            poll_fn(|cx| self.poll_room(cx, len)).await?;
            self.put(data.split_to(len));
        }
        self.progress().await
    }

    /// Sends the new pieces and processes the answers that have arrived. Waits for nothing.
    pub async fn progress(&mut self) -> Result<()> {
        poll_fn(|cx| self.poll_until(cx, usize::MAX)).await
    }

    /// The offset of the next [`Writer::push`].
    pub fn edge(&self) -> u64 {
        self.at
    }

    /// Bytes whose answers have not been processed yet.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Maximum data of one [`Writer::put`], in bytes.
    pub(super) fn piece(&self) -> usize {
        self.file.piece(WRITE) as usize
    }

    /// Waits until the window has room for `len` more bytes.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<()>> {
        let most = self.pace.as_ref().map_or_else(|| self.file.window(), |(pace, _)| pace.window());
        self.poll_until(cx, most.saturating_sub(len))
    }

    /// Queues a piece, which the next poll sends.
    pub(super) fn put(&mut self, data: Bytes) {
        let len = data.len();
        let piece = self.ask(self.at, data);
        self.window.push_back(piece);
        self.under_way += len;
        self.at += len as u64;
    }

    fn ask(&self, offset: u64, data: Bytes) -> WindowCall {
        let len = data.len() as u32;
        let message = Tmsg::Write { fid: self.file.fid(), offset, data: Data::Count(len) };
        let call = ClientCall::with_payload(&self.file.client().0.shared, message, data.clone());
        let asked = self.pace.as_ref().map(|(pace, clock)| pace.ask(clock.now())).unwrap_or_default();
        WindowCall { call, offset, len, asked, data }
    }

    /// Waits until all writes are answered.
    pub async fn finish(&mut self) -> Result<()> {
        poll_fn(|cx| self.poll_until(cx, 0)).await
    }

    /// Bytes from the offset on that the server has taken, without a gap.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Waits until at most `room` bytes are in flight, or after an error until none are. `usize::MAX`: waits for
    /// nothing.
    pub(super) fn poll_until(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<Result<()>> {
        loop {
            let Poll::Ready(ended) = self.window.poll_next(cx) else {
                let is_done = self.under_way <= room && (self.failed.is_none() || room == usize::MAX);
                return if is_done { Poll::Ready(Ok(())) } else { Poll::Pending };
            };
            let Some(WindowResult { offset, len, mut data, asked, answer }) = ended else {
                return Poll::Ready(self.failed.clone().map_or(Ok(()), Err));
            };
            self.under_way -= len as usize;
            match answer.and_then(wrote) {
                // The first error is the one that counts.
                _ if self.failed.is_some() => {}
                Ok(0) => self.failed = Some(takes_nothing()),
                Ok(n) => {
                    self.written += u64::from(n);
                    if let Some((pace, clock)) = &mut self.pace {
                        pace.answer(clock.now(), asked, n as usize);
                    }
                    if n < len {
                        let rest = data.split_off(n as usize);
                        self.under_way += rest.len();
                        let again = self.ask(offset + u64::from(n), rest);
                        self.window.push_front(again);
                    }
                }
                Err(error) => self.failed = Some(error),
            }
        }
    }
}

/// Copies the rest of `reader` to `writer`, waits until all of it is written, and returns the number of bytes.
/// `progress` gets the number of bytes read so far.
pub async fn copy(
    reader: &mut Reader<impl Deref<Target = File>>,
    writer: &mut Writer<impl Deref<Target = File>>,
    mut progress: impl FnMut(u64),
) -> Result<u64> {
    let mut copied = 0;
    while let Some(data) = reader.next().await {
        let data = data?;
        copied += data.len() as u64;
        writer.push(data).await?;
        progress(copied);
    }
    writer.finish().await?;
    Ok(copied)
}

/// One Tread or Twrite of a window.
struct WindowCall {
    call: ClientCall<'static>,
    offset: u64,
    len: u32,
    asked: PaceSample,
    /// The data of a Twrite.
    data: Bytes,
}

struct WindowResult {
    offset: u64,
    len: u32,
    data: Bytes,
    asked: PaceSample,
    answer: Result<Answer>,
}

impl Future for WindowCall {
    type Output = WindowResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<WindowResult> {
        let answer = ready!(Pin::new(&mut self.call).poll(cx));
        Poll::Ready(WindowResult {
            offset: self.offset,
            len: self.len,
            asked: self.asked,
            data: std::mem::take(&mut self.data),
            answer,
        })
    }
}

fn whole_pages(piece: u32) -> u32 {
    if piece > PAGE { piece - piece % PAGE } else { piece }
}

fn data(answer: Answer) -> Result<Bytes> {
    match answer {
        Answer::Data(data) => Ok(data),
        other => other.never(),
    }
}

pub(super) fn wrote(answer: Answer) -> Result<u32> {
    match answer {
        Answer::Wrote(n) => Ok(n),
        other => other.never(),
    }
}

pub(super) fn takes_nothing() -> Error {
    nine_proto::Error::new(Errno::EIO, "the server takes no more bytes").into()
}
