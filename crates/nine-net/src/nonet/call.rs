//! A call that is up: a stream of messages, and a transport of bytes.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use nine_stream::{Block, Chain, Fault, Putting, Reading, Stream};

use crate::ether::Mac;
use crate::transport::{Peer, Proof, Transport};

/// Bytes of a write that become a chain at once. Messages as long as may be: their numbers have 8 bits, and a packet
/// that comes when its number is another message's is taken for that one's, so the numbers shall last.
const WRITE: usize = 64 << 10;

/// One end of a call. Its [`Stream`] has messages, with their borders, of at most
/// [`MESSAGE_MAX`](super::MESSAGE_MAX) bytes: longer ones are cut. As a [`Transport`] it carries bytes. Dropped, it
/// hangs up when all that was written is acknowledged.
pub struct Call {
    stream: Stream,
    reading: Reading,
    putting: Putting,
    /// What was taken and not put.
    writing: Option<Chain>,
    peer: Peer,
    address: Mac,
    user: String,
}

impl Call {
    pub(super) fn new(stream: Stream, address: Mac, service: &str, user: &str) -> Self {
        let peer = Peer { addr: format!("nonet!{address}!{service}"), proof: Proof::None };
        let (reading, putting) = (stream.reading(), stream.putting());
        Self { stream, reading, putting, writing: None, peer, address, user: user.into() }
    }

    /// Its messages.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The other end's card.
    pub fn address(&self) -> Mac {
        self.address
    }

    /// Who calls. Nothing proves it.
    pub fn user(&self) -> &str {
        &self.user
    }

    fn poll_put(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.writing {
            Some(_) => self.putting.poll(cx, &mut self.writing).map_err(broken),
            None => Poll::Ready(Ok(())),
        }
    }
}

fn broken(fault: Fault) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, fault)
}

impl Transport for Call {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let Some(chain) = ready!(self.reading.poll(cx, Some(buf.len()))).map_err(broken)? else {
                return Poll::Ready(Ok(0));
            };
            let mut n = 0;
            for block in chain {
                buf[n..n + block.len()].copy_from_slice(block.data());
                n += block.len();
            }
            // An empty message is nothing in a stream of bytes.
            if n > 0 {
                return Poll::Ready(Ok(n));
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        ready!(self.poll_put(cx))?;
        let mut data = Vec::with_capacity(bufs.iter().map(|buf| buf.len()).sum::<usize>().min(WRITE));
        for buf in bufs {
            data.extend_from_slice(&buf[..buf.len().min(WRITE - data.len())]);
        }
        let n = data.len();
        let mut block = Block::from(data);
        block.delim = true;
        self.writing = Some(block.into());
        match self.poll_put(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(n)),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_put(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_put(cx))?;
        self.stream.finish();
        Poll::Ready(Ok(()))
    }

    fn status(&self) -> String {
        self.stream.modules().iter().map(|(name, says)| format!("{name} {says}\n")).collect()
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}
