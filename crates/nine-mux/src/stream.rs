//! Relays the streams of clients to streams of upstreams. Bytes go from one data connection to the other. If both are
//! sockets, they go through a kernel pipe.
//!
//! In: a Tstream for a file of an upstream that has streams itself. Out: a [`Passage`]. There is none for an upstream
//! without streams, a mount with `-r` or a file of the mux itself: such a file is read and written by offset.

use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use nine_io::client::{Cancel, Direction, File, Stream};
use nine_io::server::{Course, Passage, StreamRequest, lost};
use nine_net::{PIPE_SIZE, Transport, kernel_pipe};
use nine_proto::{Errno, Error, Result};

use crate::cfid::{ClientFid, OpenFidKind};

/// Size of a read without a pipe, in bytes.
const RELAY_READ_LEN: usize = 256 * 1024;
/// Number of bytes after which a poll yields to others.
const RELAY_SLICE_LEN: usize = 1 << 20;

/// Returns a relay for this stream, if the upstream has streams.
pub(crate) fn passage(request: &StreamRequest<'_>) -> Option<Box<dyn Passage>> {
    let cfid = request.node.downcast_ref::<ClientFid>()?;
    if cfid.kept.is_some() || !matches!(cfid.open, Some(OpenFidKind::There(_))) {
        return None;
    }
    let file = cfid.live().file.clone();
    if !file.client().has_streams() {
        return None;
    }
    let direction = if request.read { Direction::Read } else { Direction::Write };
    // Request no data beside the stream: the number of bytes in the file is unknown.
    let stream = Stream::straight(file, request.offset, u64::MAX, direction);
    Some(Box::new(StreamRelay {
        stream: Some(stream),
        read: request.read,
        rest: Bytes::new(),
        pipe: None,
        piped: 0,
        buf: Vec::new(),
        received: 0,
        eof: false,
        lost: None,
        conn: request.conn,
    }))
}

struct StreamRelay {
    /// `None` after the relay has released it.
    stream: Option<Stream<Arc<File>>>,
    read: bool,
    /// Received data that is not forwarded yet: here, or in the pipe.
    rest: Bytes,
    pipe: Option<(OwnedFd, OwnedFd)>,
    piped: usize,
    /// Buffer for reads without a pipe.
    buf: Vec<u8>,
    /// Number of bytes received from the client.
    received: u64,
    /// Whether the client's data has ended. `lost` is the error if it did not end cleanly.
    eof: bool,
    lost: Option<Error>,
    /// The number of the client's connection.
    conn: u64,
}

impl Passage for StreamRelay {
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut dyn Transport,
        course: &mut Course,
    ) -> Poll<Result<()>> {
        // The stream uses its client's share of the upstream.
        let client = Cancel::of(self.conn);
        let once = poll_fn(|cx| {
            Poll::Ready(if self.read {
                self.poll_read(cx, data, course)
            } else {
                self.poll_write(cx, data, course)
            })
        });
        match pin!(client.scope(once)).poll(cx) {
            Poll::Ready(moved) => moved,
            Poll::Pending => unreachable!("it is ready at once"),
        }
    }

    /// Releases the stream. The upstream's fid ends after its in-flight requests.
    fn poll_settle(&mut self, _: &mut Context<'_>) -> Poll<()> {
        self.stream = None;
        Poll::Ready(())
    }
}

impl StreamRelay {
    /// Moves bytes from the upstream to the client.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut dyn Transport,
        course: &mut Course,
    ) -> Poll<Result<()>> {
        let stream = self.stream.as_mut().expect("it is not moved any more once it is let go");
        let begin = course.moved;
        loop {
            if course.moved >= course.until {
                return Poll::Ready(Ok(()));
            }
            if course.moved - begin >= RELAY_SLICE_LEN as u64 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let most = usize::try_from(course.until - course.moved).unwrap_or(usize::MAX);
            if let Some((out, _)) = self.pipe.as_ref().filter(|_| self.piped > 0) {
                let n = ready!(data.poll_splice_out(cx, out.as_fd(), self.piped.min(most))).map_err(lost)?;
                self.piped -= n;
                course.moved += n as u64;
                continue;
            }
            if !self.rest.is_empty() {
                let bytes = &self.rest[..self.rest.len().min(most)];
                let n = ready!(data.poll_write(cx, &[IoSlice::new(bytes)])).map_err(lost)?;
                drop(self.rest.split_to(n));
                course.moved += n as u64;
                continue;
            }
            if let Some((_, inlet)) = piped(&mut self.pipe, stream.has_connection() && data.can_splice())
                && let Poll::Ready(Some(n)) = stream.poll_pull(cx, inlet.as_fd()).map_err(client)?
            {
                self.piped = n;
                continue;
            }
            // Flush the written data while no more is available.
            if data.poll_flush(cx).map_err(lost)?.is_pending() {
                return Poll::Pending;
            }
            match stream.poll_next(cx) {
                Poll::Ready(Some(bytes)) => self.rest = bytes.map_err(client)?,
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending if data.poll_hangup(cx).is_ready() => {
                    return Poll::Ready(Err(Error::new(Errno::ECONNRESET, "the data connection was closed")));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Moves bytes from the client to the upstream.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut dyn Transport,
        course: &mut Course,
    ) -> Poll<Result<()>> {
        let ended = self.poll_through(cx, data, course.until);
        let stream = self.stream.as_ref().expect("it is not moved any more once it is let go");
        course.moved = stream.moved();
        ended
    }

    fn poll_through(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut dyn Transport,
        until: u64,
    ) -> Poll<Result<()>> {
        let stream = self.stream.as_mut().expect("it is not moved any more once it is let go");
        let mut turn = 0;
        loop {
            if let Some((out, _)) = self.pipe.as_ref().filter(|_| self.piped > 0) {
                match ready!(stream.poll_give(cx, out.as_fd(), self.piped)).map_err(client)? {
                    Some(n) => self.piped -= n,
                    None => {
                        let text = "the upstream's data connection has gone";
                        return Poll::Ready(Err(Error::new(Errno::ECONNRESET, text)));
                    }
                }
                continue;
            }
            ready!(stream.poll_put(cx, &mut self.rest)).map_err(client)?;
            if self.eof || self.received >= until {
                // Data that came before the connection was lost is stored, too, and counts.
                ready!(stream.poll_finish(cx)).map_err(client)?;
                return Poll::Ready(self.lost.take().map_or(Ok(()), Err));
            }
            if turn >= RELAY_SLICE_LEN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let come = match piped(&mut self.pipe, stream.can_give() && data.can_splice()) {
                Some((_, inlet)) => {
                    ready!(data.poll_splice_in(cx, inlet.as_fd(), PIPE_SIZE)).inspect(|&n| self.piped = n)
                }
                None => {
                    self.buf.resize(RELAY_READ_LEN, 0);
                    ready!(data.poll_read(cx, &mut self.buf))
                        .inspect(|&n| self.rest = Bytes::copy_from_slice(&self.buf[..n]))
                }
            };
            let n = come.unwrap_or_else(|error| {
                self.lost = Some(lost(error));
                0
            });
            self.eof = n == 0;
            self.received += n as u64;
            turn += n;
        }
    }
}

/// Returns the pipe, if one is wanted and descriptors are available.
fn piped(pipe: &mut Option<(OwnedFd, OwnedFd)>, wanted: bool) -> Option<&(OwnedFd, OwnedFd)> {
    if wanted && pipe.is_none() {
        *pipe = kernel_pipe().ok();
    }
    pipe.as_ref().filter(|_| wanted)
}

fn client(error: nine_io::client::Error) -> Error {
    error.into_reply()
}
