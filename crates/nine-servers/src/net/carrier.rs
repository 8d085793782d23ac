//! The transport of a conversation: a connection's bytes or a datagram line's messages. Its operations are polled.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use nine_io::Payload;
use nine_io::synth::Ask;
use nine_net::{Conversation, Transport};
use nine_stream::{Block, Chain, Pool};

use super::stack::{Messages, Wire};

/// The maximum size of one read from a socket, in bytes.
const SOCKET_READ_MAX: usize = 256 << 10;
/// The maximum number of writes sent together.
const GATHERED_WRITES_MAX: usize = 16;

/// Bytes that the buffers of answers may hold. Beyond that, answers are copied.
const ANSWER_BUFFERS_MAX: usize = 64 << 20;

thread_local! {
    /// Buffers for reads from sockets; a buffer returns when its answer was sent.
    static BUFFERS: (Pool, RefCell<Option<Block>>) = (Pool::new(ANSWER_BUFFERS_MAX), RefCell::default());
}

/// Reads a connection once, at most `most` bytes. Data that fills a good part of a buffer is returned without a copy.
fn poll_bytes(line: &mut impl Transport, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<Bytes>> {
    BUFFERS.with(|(pool, spare)| {
        let spared = spare.take().filter(|block| block.is_empty());
        let mut block = match spared.or_else(|| pool.try_alloc(SOCKET_READ_MAX)) {
            Some(block) => block,
            None => return poll_copied(line, cx, most),
        };
        let Some(room) = block.room() else { return poll_copied(line, cx, most) };
        let whole = room.len();
        let most = most.min(whole);
        let read = line.poll_read(cx, &mut room[..most]);
        if let Poll::Ready(Ok(n)) = read
            && n >= whole / 4
        {
            block.filled(n);
            return Poll::Ready(Ok(block.into()));
        }
        let bytes =
            read.map_ok(|n| block.room().map(|room| Bytes::copy_from_slice(&room[..n])).unwrap_or_default());
        spare.replace(Some(block));
        bytes
    })
}

fn poll_copied(line: &mut impl Transport, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<Bytes>> {
    let mut bytes = vec![0; most.min(SOCKET_READ_MAX / 4)];
    line.poll_read(cx, &mut bytes).map_ok(|n| {
        bytes.truncate(n);
        bytes.into()
    })
}

/// See the module.
pub(super) enum CallCarrier {
    Bytes(Conversation<Box<dyn Wire>>),
    Messages(Box<Messages>),
}

impl CallCarrier {
    /// Writes part of the queued data. `sent` bytes of the first request are written already. Returns the number of
    /// bytes.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        asks: &VecDeque<Ask>,
        sent: usize,
    ) -> Poll<io::Result<usize>> {
        let first = asks.front().map(|ask| ask.data.slice(sent..)).unwrap_or_default();
        match self {
            // An empty write sends nothing on a connection.
            Self::Bytes(_) if first.is_empty() => Poll::Ready(Ok(0)),
            Self::Bytes(line) => {
                let mut slices = [IoSlice::new(&[]); GATHERED_WRITES_MAX];
                slices[0] = IoSlice::new(&first);
                let rest = asks.iter().skip(1).take_while(|ask| !ask.data.is_empty());
                let count =
                    1 + slices[1..].iter_mut().zip(rest).map(|(s, ask)| *s = IoSlice::new(&ask.data)).count();
                line.poll_write(cx, &slices[..count])
            }
            Self::Messages(messages) => messages.poll_write(cx, first),
        }
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Bytes(line) => line.poll_flush(cx),
            Self::Messages(_) => Poll::Ready(Ok(())),
        }
    }

    /// Reads at most `most` bytes of received data. `None` at the end.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<Option<Bytes>>> {
        match self {
            Self::Bytes(line) => {
                poll_bytes(line, cx, most).map_ok(|bytes| Some(bytes).filter(|bytes| !bytes.is_empty()))
            }
            Self::Messages(messages) => messages.poll_read(cx, most),
        }
    }

    pub(super) fn status(&self) -> String {
        match self {
            Self::Bytes(line) => line.status(),
            Self::Messages(messages) => messages.line.stream.status(),
        }
    }
}

impl Messages {
    /// Puts one message.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, data: Bytes) -> Poll<io::Result<usize>> {
        let (n, most) = (data.len(), self.line.largest());
        if n > most {
            let text = format!("a message has at most {most} bytes here");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        let chain = self.going.get_or_insert_with(|| {
            let mut chain = Some(Chain::from(Block::from(data)));
            chain.iter_mut().for_each(Chain::end_message);
            chain
        });
        let put = ready!(self.putting.poll(cx, chain));
        self.going = None;
        Poll::Ready(put.map(|()| n).map_err(io::Error::other))
    }

    pub(super) fn give_up(&mut self) {
        self.going = None;
        self.putting = self.line.stream.putting();
    }

    /// Returns the rest of a message, or the next message.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<Option<Bytes>>> {
        let taken = ready!(self.reading.poll(cx, Some(most)));
        let Some(mut chain) = taken.map_err(io::Error::other)? else { return Poll::Ready(Ok(None)) };
        if self.cuts && !chain.ends_message() {
            // The rest of a datagram is available: it arrived as a whole.
            while let Poll::Ready(Ok(Some(rest))) = self.reading.poll(cx, None)
                && !rest.ends_message()
            {}
        }
        let first = chain.pop();
        if chain.is_empty() {
            return Poll::Ready(Ok(first.map(Bytes::from)));
        }
        let whole: Vec<u8> =
            first.iter().chain(chain.iter()).flat_map(|block| block.data()).copied().collect();
        Poll::Ready(Ok(Some(whole.into())))
    }
}

/// Writes part of these payloads, in order; ranges of files without a copy if possible.
pub(super) fn poll_write_parts(
    line: &mut impl Transport,
    cx: &mut Context<'_>,
    parts: &[Payload],
) -> Poll<io::Result<usize>> {
    match parts {
        [Payload::File { file, offset, len, .. }, ..] if line.can_sendfile() => {
            match ready!(line.poll_sendfile(cx, file.as_fd(), *offset, *len as usize))? {
                0 => Poll::Ready(Err(nine_io::shrunk())),
                n => Poll::Ready(Ok(n)),
            }
        }
        [part @ Payload::File { .. }, ..] => {
            let bytes = part.read(SOCKET_READ_MAX)?;
            line.poll_write(cx, &[IoSlice::new(&bytes)])
        }
        _ => {
            let in_memory = parts.iter().map_while(Payload::pieces);
            let mut slices = [IoSlice::new(&[]); GATHERED_WRITES_MAX];
            let (mut count, mut bytes) = (0, 0);
            for (slice, piece) in slices.iter_mut().zip(in_memory.flatten()) {
                *slice = IoSlice::new(piece);
                (count, bytes) = (count + 1, bytes + piece.len());
            }
            match parts.iter().map(Payload::len).sum::<usize>() > bytes {
                true => line.poll_write_more(cx, &slices[..count]),
                false => line.poll_write(cx, &slices[..count]),
            }
        }
    }
}

/// Discards input until the other end has closed. TCP resets a connection that is dropped with unread input, and the
/// other end may then lose data written to it.
pub(super) fn poll_drain(line: &mut impl Transport, cx: &mut Context<'_>) -> Poll<()> {
    for _ in 0..GATHERED_WRITES_MAX {
        if ready!(poll_bytes(line, cx, SOCKET_READ_MAX)).is_ok_and(|bytes| !bytes.is_empty()) {
            continue;
        }
        return Poll::Ready(());
    }
    // Lets other tasks run.
    cx.waker().wake_by_ref();
    Poll::Pending
}
