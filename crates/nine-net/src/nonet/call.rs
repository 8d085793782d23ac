//! An open call: a stream of messages, and a transport of bytes.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nine_stream::Stream;

use super::machine::Nonet;
use crate::ether::Mac;
use crate::lock::{Mutex, lock};
use crate::messages::MessageStream;
use crate::transport::{Peer, Proof, Transport};

/// Bytes of a write that become a chain at once. Messages should be as long as possible: their numbers have only 8
/// bits, and a late packet may be taken for one of a newer message with the same number.
const WRITE: usize = 64 << 10;

/// One end of a call. Its [`Stream`] has messages, with their boundaries, of at most
/// [`MESSAGE_MAX`](super::MESSAGE_MAX) bytes: longer ones are split. As a [`Transport`] it carries bytes. Dropping it
/// hangs up when all written data is acknowledged, or after a minute.
pub struct Call {
    // Dropped before the stream: the machine learns that the process is gone before the stream is closed.
    _left: NonetGone,
    stream: Stream,
    messages: MessageStream,
    peer: Peer,
    address: Mac,
    user: String,
}

/// Dropping it reports that the process is gone.
struct NonetGone(Arc<Mutex<Nonet>>);

impl Drop for NonetGone {
    fn drop(&mut self) {
        lock(&self.0).orphan();
    }
}

impl Call {
    pub(super) fn new(
        stream: Stream,
        call: Arc<Mutex<Nonet>>,
        address: Mac,
        service: &str,
        user: &str,
    ) -> Self {
        let peer = Peer { addr: format!("nonet!{address}!{service}"), proof: Proof::None };
        let messages = MessageStream::of(&stream);
        Self { _left: NonetGone(call), stream, messages, peer, address, user: user.into() }
    }

    /// The stream of its messages.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The other end's card.
    pub fn address(&self) -> Mac {
        self.address
    }

    /// The caller's user, which nothing proves.
    pub fn user(&self) -> &str {
        &self.user
    }
}

impl Transport for Call {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.messages.poll_read(cx, buf)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.messages.poll_write(cx, bufs, WRITE)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.messages.poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let left = ready!(self.messages.poll_flush(cx));
        self.stream.finish();
        Poll::Ready(left)
    }

    fn status(&self) -> String {
        self.stream.modules().iter().map(|(name, says)| format!("{name} {says}\n")).collect()
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}
