//! Streams: the bytes of one open file in order, over a connection of their own (Floren, *FTP-like Streams for the 9P
//! Protocol*; `docs/protocol.md`, "Streaming").
//!
//! In: Tstream and Tsclose of a [`Connection`](super::Connection), and connections that show a token. Out: offers,
//! bytes, verdicts. A stream adapter ([`Passage`]) connects the file and the data connection. It is the file server's
//! own, or one that reads and writes by offset (`sending`, `receiving`) and works with every server.
//!
//! Always holds: a token is valid once, for [`OFFER_TIME`], for a peer with the proof and the encryption of the 9P
//! connection. A stream has one verdict, which every waiting Tsclose gets. A stream ends with its fid, and the fid's
//! clunk is served once nothing of the stream uses its node.

mod asker;
mod fill;
mod receiving;
mod sending;

use std::collections::HashMap;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nine_net::{Clock, Env, Peer, Proof, Transport};
use nine_proto::stream::{self, TOKEN};
use nine_proto::{Errno, Error, Result};

use super::req::{Answer, FidEntry, FileServer, Later, Reply, Req, ReqId};
use super::{Core, Node};
use crate::limits::FairShare;
use crate::sync::{Mutex, lock};

use asker::StreamRequester;
pub use fill::Fill;
use receiving::StreamReceiver;
use sending::StreamSender;
pub use sending::lost;

/// Maximum number of untaken offers of one connection; at the limit a Tstream is refused with EAGAIN.
pub const OFFERS: usize = 64;
/// Maximum number of untaken offers of all connections of a core.
pub const OFFERS_ALL: usize = 4096;
/// An untaken offer expires after this time.
pub const OFFER_TIME: Duration = Duration::from_secs(10);
/// Timeout for a data connection to show its token.
pub const TOKEN_TIME: Duration = Duration::from_secs(10);
/// Received data is stored after this time, even if it is little.
pub const LULL: Duration = Duration::from_millis(200);

/// The settings of a listener that offers streams.
#[derive(Clone)]
pub struct Streams {
    /// The address that clients dial: `tcp!*!564`, where `*` stands for the host that they have dialled already.
    dial: Arc<str>,
    /// The source of tokens and time.
    clock: Arc<dyn Clock>,
}

impl Streams {
    /// Clients dial streams at `dial`, where the host `*` stands for the host that they have dialled already.
    pub fn new(dial: &str, clock: Arc<dyn Clock>) -> Self {
        Self { dial: dial.into(), clock }
    }
}

/// A stream adapter: moves the bytes of one stream between its file and its data connection.
///
/// Concurrency: polled by one task, on any core.
pub trait Passage: Send {
    /// Moves bytes in order and counts them in `course.moved`. Reading ends at the end of the file or after
    /// `course.until` bytes; writing ends at the end of `data` or when that many bytes are stored. It must yield from
    /// time to time while more bytes are available.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut dyn Transport,
        course: &mut Course,
    ) -> Poll<Result<()>>;

    /// Completes when the adapter no longer uses the file. Called after `poll_move` has completed or is abandoned.
    fn poll_settle(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// The progress of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// Bytes handed to the data connection, or stored, without a gap.
    pub moved: u64,
    /// The byte count at which it ends, if the file or the data connection does not end before.
    pub until: u64,
    /// The stream was idle for [`LULL`], perhaps several times: received data must be stored now.
    pub lull: bool,
}

/// The parameters of a Tstream.
pub struct StreamRequest<'a> {
    /// The open file.
    pub node: &'a Node,
    /// The direction: from the file if true, to the file if not.
    pub read: bool,
    /// Offset of the first byte.
    pub offset: u64,
    /// The client's connection.
    pub conn: u64,
}

/// The untaken offers of all connections of a core, by token.
#[derive(Default)]
pub(super) struct StreamOffers(Mutex<HashMap<[u8; 16], Arc<ServerStream>>>);

/// The direction and the start of a stream.
#[derive(Clone, Copy)]
pub(super) struct StreamStart {
    /// The direction: from the file if true, to the file if not.
    pub(super) read: bool,
    /// Offset of the first byte.
    pub(super) offset: u64,
    /// Requests must not overtake each other.
    pub(super) serial: bool,
}

/// One stream, from its offer to its verdict.
pub(super) struct ServerStream {
    token: [u8; 16],
    /// The expiry time of the offer.
    pub(super) due: Duration,
    way: StreamStart,
    held: FidEntry,
    conn: u64,
    proof: Proof,
    /// Whether the 9P connection is encrypted.
    tls: bool,
    server: Arc<dyn FileServer>,
    core: Core,
    state: Mutex<StreamState>,
}

struct StreamState {
    stage: StreamStage,
    /// The file server's own adapter, until the data connection arrives.
    passage: Option<Box<dyn Passage>>,
    /// Waiting Tscloses with their counts; bounded by the connection's limit of requests.
    waiting: Vec<(Later, u64)>,
    /// The task of the data connection.
    task: Option<Waker>,
    /// The 9P connection's task, while it waits for the end.
    conn: Option<Waker>,
    /// The place of its data connection.
    place: Option<FairShare>,
}

impl StreamState {
    /// The byte count at which the stream ends, if not before.
    fn until(&self) -> u64 {
        self.waiting.iter().map(|&(_, count)| count).min().unwrap_or(u64::MAX)
    }
}

enum StreamStage {
    Offered,
    Running,
    /// The fid is gone; the adapter may still use its node.
    Ending,
    /// The stream has ended; `error` is the reason, if it failed.
    Over {
        moved: u64,
        stopped: bool,
        error: Option<Error>,
        told: bool,
    },
}

impl ServerStream {
    /// Creates a stream and its offer, which is the data of the Rstream. `ours` counts the client's untaken offers. Its
    /// end gives the place back.
    pub(super) fn offer(
        streams: &Streams,
        server: &Arc<dyn FileServer>,
        core: &Core,
        held: &FidEntry,
        peer: &Peer,
        (conn, ours): (u64, usize),
        (way, place): (StreamStart, Option<FairShare>),
    ) -> Result<(Arc<Self>, Vec<u8>)> {
        if i64::try_from(way.offset).is_err() {
            return Err(Error::new(Errno::EFBIG, "no file has so many bytes"));
        }
        let mut token = [0; 16];
        streams.clock.entropy(&mut token);
        let StreamStart { read, offset, .. } = way;
        let request = StreamRequest { node: &held.node, read, offset, conn };
        let state = StreamState {
            stage: StreamStage::Offered,
            passage: server.stream(request),
            waiting: Vec::new(),
            task: None,
            conn: None,
            place,
        };
        let stream = Arc::new(Self {
            token,
            due: streams.clock.now() + OFFER_TIME,
            way,
            held: held.clone(),
            conn,
            proof: peer.proof.clone(),
            tls: is_tls(peer),
            server: server.clone(),
            core: core.clone(),
            state: Mutex::new(state),
        });
        let mut all = lock(&core.offers().0);
        // One client alone cannot take all offers.
        if ours >= OFFERS.min((OFFERS_ALL - all.len().min(OFFERS_ALL)).div_ceil(4)) {
            return Err(Error::new(Errno::EAGAIN, "too many streams have been asked for and not dialled"));
        }
        all.insert(token, stream.clone());
        drop(all);
        Ok((stream, stream::offer(&streams.dial, token)))
    }

    /// Returns the stream of a data connection's token, and invalidates the token.
    pub(super) fn claim(core: &Core, token: &[u8; TOKEN], peer: &Peer, now: Duration) -> Option<Arc<Self>> {
        let token = stream::token(token)?;
        let mut all = lock(&core.offers().0);
        let same = |stream: &&Arc<Self>| stream.proof == peer.proof && stream.tls == is_tls(peer);
        let stream = all.get(&token).filter(same).filter(|stream| now < stream.due)?.clone();
        all.remove(&token);
        drop(all);
        let mut state = lock(&stream.state);
        if !matches!(state.stage, StreamStage::Offered) {
            return None;
        }
        state.stage = StreamStage::Running;
        drop(state);
        Some(stream)
    }

    /// Whether the offer is untaken.
    pub(super) fn is_offered(&self) -> bool {
        matches!(lock(&self.state).stage, StreamStage::Offered)
    }

    /// Whether the stream has ended, so that its fid may get another one.
    pub(super) fn is_over(&self) -> bool {
        matches!(lock(&self.state).stage, StreamStage::Over { .. })
    }

    /// Answers a Tsclose, now or when the stream ends.
    pub(super) fn close(&self, req: Req, count: u64) -> Answer {
        let mut state = lock(&self.state);
        match &mut state.stage {
            StreamStage::Over { told: told @ false, moved, stopped, error } => {
                *told = true;
                let verdict = self.verdict(*moved, *stopped, error.clone(), count);
                drop(state);
                req.now(Ok(verdict))
            }
            StreamStage::Over { .. } => {
                drop(state);
                req.now(Err(none()))
            }
            StreamStage::Offered if count == 0 => {
                state.stage = StreamStage::Over { moved: 0, stopped: true, error: None, told: true };
                let (waiting, passage) = (std::mem::take(&mut state.waiting), state.passage.take());
                state.place = None;
                drop(state);
                drop(passage);
                self.withdraw();
                for (later, count) in waiting {
                    later.respond(Ok(self.verdict(0, true, None, count)));
                }
                req.now(Ok(Reply::Sclosed { count: 0, errno: 0, ename: Box::default() }))
            }
            _ => {
                let (answer, later) = req.later();
                state.waiting.push((later, count));
                let task = state.task.take();
                drop(state);
                task.into_iter().for_each(Waker::wake);
                answer
            }
        }
    }

    /// Flushes a Tsclose.
    pub(super) fn flush(&self, id: ReqId) {
        let mut state = lock(&self.state);
        let Some(at) = state.waiting.iter().position(|(later, _)| later.id() == id) else { return };
        let (later, _) = state.waiting.swap_remove(at);
        drop(state);
        later.respond(Err(Errno::EINTR.into()));
    }

    /// Expires an offer that was not taken in time.
    pub(super) fn expire(&self) {
        if self.is_offered() {
            self.withdraw();
            let error = Error::new(Errno::ETIMEDOUT, "nobody has dialled the stream in time");
            self.over(StreamStage::Offered, 0, false, Some(error));
        }
    }

    /// Ends the stream because its fid is gone.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        match state.stage {
            StreamStage::Offered => {
                drop(state);
                self.withdraw();
                self.over(StreamStage::Offered, 0, false, Some(gone()));
            }
            StreamStage::Running => {
                state.stage = StreamStage::Ending;
                let task = state.task.take();
                drop(state);
                task.into_iter().for_each(Waker::wake);
            }
            StreamStage::Ending | StreamStage::Over { .. } => {}
        }
    }

    /// Whether nothing of an ended stream uses its node; if false, `waker` is woken when that is so.
    pub(super) fn settled(&self, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        match state.stage {
            StreamStage::Running | StreamStage::Ending => {
                state.conn = Some(waker.clone());
                false
            }
            StreamStage::Offered | StreamStage::Over { .. } => true,
        }
    }

    /// Carries the bytes until one side has no more, an error occurs, or the fid is gone.
    pub(super) async fn run(self: Arc<Self>, env: impl Env, data: Box<dyn Transport>, begin: &[u8]) {
        let mut data = PrefixedTransport { begin: Bytes::copy_from_slice(begin), data };
        // If this future is dropped, waiting Tscloses still get a verdict.
        let mut running = RunningStream { stream: &self, moved: 0, stopped: false, done: false };
        let own = lock(&self.state).passage.take();
        let asker = StreamRequester::new(&self.server, &self.held, &self.core, self.conn);
        let mut passage = match own {
            Some(own) => own,
            None if self.way.read => Box::new(StreamSender::new(asker, self.way)),
            None => Box::new(StreamReceiver::new(asker, self.way, &self.server, &self.held.node)),
        };
        let mut course = Course { moved: 0, until: u64::MAX, lull: false };
        let mut lull = None;
        let ended = poll_fn(|cx| {
            {
                let mut state = lock(&self.state);
                if matches!(state.stage, StreamStage::Ending) {
                    return Poll::Ready(None);
                }
                course.until = state.until();
                match &mut state.task {
                    Some(old) => old.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
            }
            if let Poll::Ready(ended) = passage.poll_move(cx, &mut data, &mut course) {
                return Poll::Ready(Some(ended));
            }
            if self.way.read {
                return Poll::Pending;
            }
            // Small amounts of data must be stored too, after a while.
            let timer = lull.get_or_insert_with(|| env.sleep_until(env.now() + LULL));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            (lull, course.lull) = (None, true);
            let polled = passage.poll_move(cx, &mut data, &mut course);
            course.lull = false;
            polled.map(Some)
        });
        let ended = ended.await;
        running.moved = course.moved;
        if let Some(result) = ended {
            let error = result.err();
            if let Some(error) = &error {
                tracing::debug!(peer = %data.peer().addr, moved = course.moved, "a stream has failed: {error}");
            } else if self.way.read {
                // TLS may wait until the peer has taken the rest. The end of the fid ends this wait, and so does a
                // Tsclose with a smaller count.
                let closed = poll_fn(|cx| {
                    let mut state = lock(&self.state);
                    state.task = Some(cx.waker().clone());
                    let over = matches!(state.stage, StreamStage::Ending) || state.until() < running.moved;
                    drop(state);
                    match data.poll_close(cx) {
                        Poll::Pending if over => Poll::Ready(Ok(())),
                        closed => closed,
                    }
                });
                let _ = closed.await;
            }
            poll_fn(|cx| passage.poll_settle(cx)).await;
            running.stopped = course.moved >= course.until;
            running.over(error);
        } else {
            drop(data);
            poll_fn(|cx| passage.poll_settle(cx)).await;
            running.over(Some(gone()));
        }
    }

    /// Ends the stream, unless it was taken while `from` is `Offered`. Waiting Tscloses are answered without the lock.
    fn over(&self, from: StreamStage, moved: u64, stopped: bool, error: Option<Error>) {
        let mut state = lock(&self.state);
        if matches!(from, StreamStage::Offered) && !matches!(state.stage, StreamStage::Offered) {
            return;
        }
        let (waiting, passage, conn) =
            (std::mem::take(&mut state.waiting), state.passage.take(), state.conn.take());
        state.place = None;
        state.stage = StreamStage::Over { moved, stopped, error: error.clone(), told: !waiting.is_empty() };
        drop(state);
        drop(passage);
        for (later, count) in waiting {
            later.respond(Ok(self.verdict(moved, stopped, error.clone(), count)));
        }
        conn.into_iter().for_each(Waker::wake);
    }

    /// The Rsclose for a Tsclose with `count`.
    fn verdict(&self, moved: u64, stopped: bool, error: Option<Error>, count: u64) -> Reply {
        let short = moved < count && (stopped || !self.way.read);
        let error = error.or_else(|| {
            short.then(|| match self.way.read {
                true => Error::new(Errno::ECANCELED, "another Tsclose has ended the stream"),
                false => Error::new(Errno::EPIPE, format!("the data connection ended after {moved} bytes")),
            })
        });
        let (errno, ename) = match error {
            Some(error) => (error.errno.0, error.ename().into()),
            None => (0, Box::default()),
        };
        Reply::Sclosed { count: moved, errno, ename }
    }

    fn withdraw(&self) {
        lock(&self.core.offers().0).remove(&self.token);
    }
}

/// A stream with its data connection.
struct RunningStream<'s> {
    stream: &'s ServerStream,
    moved: u64,
    /// A Tsclose has ended it, not the file.
    stopped: bool,
    done: bool,
}

impl RunningStream<'_> {
    fn over(&mut self, error: Option<Error>) {
        self.done = true;
        self.stream.over(StreamStage::Running, self.moved, self.stopped, error);
    }
}

impl Drop for RunningStream<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.over(Some(Error::new(Errno::EIO, "the server has let go of the stream")));
        }
    }
}

/// A data connection whose first bytes have been read already.
struct PrefixedTransport {
    begin: Bytes,
    data: Box<dyn Transport>,
}

impl Transport for PrefixedTransport {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.begin.is_empty() {
            return self.data.poll_read(cx, buf);
        }
        let n = buf.len().min(self.begin.len());
        buf[..n].copy_from_slice(&self.begin.split_to(n));
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.data.poll_write(cx, bufs)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.data.poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.data.poll_close(cx)
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.data.poll_hangup(cx)
    }

    fn can_sendfile(&self) -> bool {
        self.data.can_sendfile()
    }

    fn poll_sendfile(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        self.data.poll_sendfile(cx, file, offset, len)
    }

    fn cork(&mut self, more: bool) {
        self.data.cork(more);
    }

    /// Not until the first bytes have been taken.
    fn can_splice(&self) -> bool {
        self.begin.is_empty() && self.data.can_splice()
    }

    fn poll_splice_in(
        &mut self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        self.data.poll_splice_in(cx, pipe, len)
    }

    fn poll_splice_out(
        &mut self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        self.data.poll_splice_out(cx, pipe, len)
    }

    fn peer(&self) -> &Peer {
        self.data.peer()
    }
}

fn gone() -> Error {
    Error::new(Errno::EBADF, "the fid of the stream is gone")
}

fn is_tls(peer: &Peer) -> bool {
    peer.addr.starts_with("tls!")
}

/// The error of a Tsclose on a fid without a stream.
pub(super) fn none() -> Error {
    Error::new(Errno::EINVAL, "no stream on this fid")
}
