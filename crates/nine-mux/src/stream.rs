//! Streams of clients that are streams of upstreams: bytes go from one data connection to the other, from socket to
//! socket through a pipe of the kernel where both are sockets.
//!
//! In: a Tstream for a file of an upstream that has streams itself. Out: a [`Passage`]. What an upstream without streams
//! serves, what a mount with `-r` keeps, and what is ours are read and written by offset, as every server's files are.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use nine_io::client::{Direction, File, Stream};
use nine_io::server::{Course, Passage, StreamRequest};
use nine_net::{PIPE_SIZE, Transport, kernel_pipe};
use nine_proto::{Errno, Error, Result};

use crate::cfid::{CFid, Open};

/// Read at once where there is no pipe, bytes.
const PIECE: usize = 256 * 1024;
/// Bytes of a poll before others have their turn.
const TURN: usize = 4 << 20;

/// A way for this stream that the upstream makes.
pub(crate) fn passage(request: &StreamRequest<'_>) -> Option<Box<dyn Passage>> {
    let cfid = request.node.downcast_ref::<CFid>()?;
    if cfid.kept.is_some() || !matches!(cfid.open, Some(Open::There(_))) {
        return None;
    }
    let file = cfid.live().file.clone();
    if !file.client().has_streams() {
        return None;
    }
    let direction = if request.read { Direction::Read } else { Direction::Write };
    // Whoever asks for a stream has much to read.
    let stream = Stream::begin(file, request.offset, u64::MAX, direction);
    Some(Box::new(Relay {
        stream: Some(stream),
        read: request.read,
        rest: Bytes::new(),
        pipe: None,
        piped: 0,
        eof: false,
    }))
}

struct Relay {
    /// `None`: it is let go.
    stream: Option<Stream<Arc<File>>>,
    read: bool,
    /// What has come and is not passed on: here, or in the pipe.
    rest: Bytes,
    pipe: Option<(OwnedFd, OwnedFd)>,
    piped: usize,
    eof: bool,
}

impl Passage for Relay {
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut dyn Transport,
        course: &mut Course,
    ) -> Poll<Result<()>> {
        if self.read { self.poll_read(cx, data, course) } else { self.poll_write(cx, data, course) }
    }

    /// The upstream's fid ends after what is under way on it.
    fn poll_settle(&mut self, _: &mut Context<'_>) -> Poll<()> {
        self.stream = None;
        Poll::Ready(())
    }
}

impl Relay {
    /// From the upstream to the client.
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
            if course.moved - begin >= TURN as u64 {
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
            if stream.has_connection() && data.can_splice() {
                let (_, inlet) = piped(&mut self.pipe)?;
                if let Some(n) = ready!(stream.poll_pull(cx, inlet.as_fd())).map_err(client)? {
                    self.piped = n;
                    continue;
                }
            }
            // What was written goes out while there is nothing more.
            if data.poll_flush(cx).map_err(lost)?.is_pending() {
                return Poll::Pending;
            }
            match ready!(stream.poll_next(cx)) {
                Some(bytes) => self.rest = bytes.map_err(client)?,
                None => return Poll::Ready(Ok(())),
            }
        }
    }

    /// From the client to the upstream.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut dyn Transport,
        course: &mut Course,
    ) -> Poll<Result<()>> {
        let stream = self.stream.as_mut().expect("it is not moved any more once it is let go");
        let mut turn = 0;
        let end = loop {
            if let Some((out, _)) = self.pipe.as_ref().filter(|_| self.piped > 0) {
                match ready!(stream.poll_give(cx, out.as_fd(), self.piped)) {
                    Ok(Some(n)) => self.piped -= n,
                    // The connection has gone: there is no other way for what is in the pipe.
                    Ok(None) => break Err(Error::new(Errno::EIO, "the upstream's data connection has gone")),
                    Err(error) => break Err(client(error)),
                }
                continue;
            }
            if !self.rest.is_empty()
                && let Err(error) = ready!(stream.poll_put(cx, &mut self.rest))
            {
                break Err(client(error));
            }
            if self.eof {
                break ready!(stream.poll_finish(cx)).map_err(client);
            }
            if turn >= TURN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if stream.has_connection() && data.can_splice() {
                let (_, inlet) = piped(&mut self.pipe)?;
                self.piped = ready!(data.poll_splice_in(cx, inlet.as_fd(), PIPE_SIZE)).map_err(lost)?;
                self.eof = self.piped == 0;
                turn += self.piped;
                continue;
            }
            let mut piece = vec![0; PIECE];
            let n = match data.poll_read(cx, &mut piece) {
                Poll::Ready(n) => n.map_err(lost)?,
                Poll::Pending => {
                    // What was taken goes on meanwhile.
                    if let Poll::Ready(Err(error)) = stream.poll_put(cx, &mut self.rest) {
                        break Err(client(error));
                    }
                    return Poll::Pending;
                }
            };
            piece.truncate(n);
            self.eof = n == 0;
            turn += n;
            self.rest = piece.into();
        };
        course.moved = stream.moved();
        Poll::Ready(end)
    }
}

fn piped(pipe: &mut Option<(OwnedFd, OwnedFd)>) -> Result<&(OwnedFd, OwnedFd)> {
    if pipe.is_none() {
        *pipe = Some(kernel_pipe().map_err(|error| Error::new(Errno::ENFILE, error.to_string()))?);
    }
    Ok(pipe.as_ref().expect("made just now"))
}

fn lost(error: std::io::Error) -> Error {
    Error::new(Errno::ECONNRESET, format!("the data connection: {error}"))
}

fn client(error: nine_io::client::Error) -> Error {
    error.into_reply()
}
