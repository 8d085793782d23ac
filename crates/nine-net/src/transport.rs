//! The interface for bytes that enter and leave: one trait, implemented by sockets, TLS and the simulated link.
//!
//! Always holds: one task at a time drives a transport. `Pending` has arranged that the task of the most recent `cx` is
//! woken. No method blocks.

use std::any::Any;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use nine_stream::Fault;

use crate::shm::Placed;

/// Shared data of two ends in one process, besides the bytes between them.
pub type Beside = Arc<dyn Any + Send + Sync>;

/// A reliable, ordered, two-way byte stream.
///
/// Concurrency: one task drives it. Each direction stores the waker of its latest poll.
pub trait Transport: Send + Unpin + 'static {
    /// Reads up to `buf.len()` bytes (never called with an empty buffer). `Ok(0)`: the peer has closed its
    /// side.
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Writes some of the bytes, in order. Returns how many were taken, never 0 for a non-empty list.
    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;

    /// The same, with the hint that more follows at once. A socket may hold back an incomplete segment until then, for
    /// at most 200 ms.
    fn poll_write_more(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll_write(cx, bufs)
    }

    /// Sends the data that the transport itself buffers (TLS records). Sockets buffer nothing.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _ = cx;
        Poll::Ready(Ok(()))
    }

    /// Closes our direction politely: flushes, then signals the end to the peer.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Completes when the peer is gone, even if bytes from it are unread. For an owner that does not read at present. A
    /// transport that cannot detect this stays pending forever.
    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Pending
    }

    /// Whether [`Transport::poll_sendfile`] works here.
    fn can_sendfile(&self) -> bool {
        false
    }

    /// Sends up to `len` bytes of `file` from `offset` without a copy in user space. `Ok(0)`: the file ends there. The
    /// caller must ensure that the range is resident: the call may block on a page fault.
    fn poll_sendfile(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        let _ = (cx, file, offset, len);
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Answers a read in memory that the client has reserved for the answer (a channel). Reads up to `len` bytes of
    /// `file` from `offset` into it, then sends `head`, the first 11 bytes of an Rread, with the number of bytes read:
    /// fewer at the end of the file. `Ok(None)`: no memory is reserved, and nothing was done. The call may block as
    /// [`Transport::poll_sendfile`] may.
    fn poll_read_placed(
        &mut self,
        cx: &mut Context<'_>,
        head: &[u8; 11],
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<Option<usize>>> {
        let _ = (cx, head, file, offset, len);
        Poll::Ready(Ok(None))
    }

    /// With `more`, a socket may hold back an incomplete segment, for at most 200 ms. It sends the rest without `more`,
    /// and with [`Transport::poll_close`].
    fn cork(&mut self, more: bool) {
        let _ = more;
    }

    /// Whether [`Transport::poll_splice_in`] and [`Transport::poll_splice_out`] work here.
    fn can_splice(&self) -> bool {
        false
    }

    /// Moves up to `len` received bytes into `pipe` without a copy in user space. `Ok(0)`: the peer has closed its
    /// side. An error of kind `StorageFull`: the pipe is full.
    fn poll_splice_in(
        &mut self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        let _ = (cx, pipe, len);
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Sends up to `len` bytes of `pipe` without a copy in user space. The pipe must have that many.
    fn poll_splice_out(
        &mut self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        let _ = (cx, pipe, len);
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Takes the next bytes if they are exactly `len` and lie in memory that the peer has reserved until it is
    /// answered. They are taken in place and not read.
    fn take_placed(&mut self, len: usize) -> Option<Placed> {
        let _ = len;
        None
    }

    /// Executes a control text: `push NAME ARGUMENTS`, `pop`, or a command of a module (`docs/streams.md`). Fails if
    /// nothing can be pushed on this transport.
    fn control(&mut self, text: &str) -> Result<(), Fault> {
        let _ = text;
        Err(Fault::new("nothing can be pushed here"))
    }

    /// Checks whether [`Transport::control`] would accept a text at present. Returns the bytes that the pushed module
    /// may hold.
    fn check(&self, text: &str) -> Result<usize, Fault> {
        let _ = text;
        Err(Fault::new("nothing can be pushed here"))
    }

    /// Returns a status line for each module, from the top on.
    fn status(&self) -> String {
        String::new()
    }

    /// If the other end is in this process: a cell that both ends share, for operations without bytes. The first end to
    /// use it may fill it, once.
    fn beside(&self) -> Option<&OnceLock<Beside>> {
        None
    }

    /// The identity of the other end.
    fn peer(&self) -> &Peer;

    /// The certificates that the peer has presented, in DER, its own first: the basis of its [`Proof`].
    fn certificates(&self) -> Vec<&[u8]> {
        Vec::new()
    }
}

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        (**self).poll_read(cx, buf)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        (**self).poll_write(cx, bufs)
    }

    fn poll_write_more(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        (**self).poll_write_more(cx, bufs)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_close(cx)
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        (**self).poll_hangup(cx)
    }

    fn can_sendfile(&self) -> bool {
        (**self).can_sendfile()
    }

    fn poll_sendfile(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        (**self).poll_sendfile(cx, file, offset, len)
    }

    fn poll_read_placed(
        &mut self,
        cx: &mut Context<'_>,
        head: &[u8; 11],
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<Option<usize>>> {
        (**self).poll_read_placed(cx, head, file, offset, len)
    }

    fn cork(&mut self, more: bool) {
        (**self).cork(more);
    }

    fn can_splice(&self) -> bool {
        (**self).can_splice()
    }

    fn poll_splice_in(
        &mut self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        (**self).poll_splice_in(cx, pipe, len)
    }

    fn poll_splice_out(
        &mut self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        (**self).poll_splice_out(cx, pipe, len)
    }

    fn take_placed(&mut self, len: usize) -> Option<Placed> {
        (**self).take_placed(len)
    }

    fn control(&mut self, text: &str) -> Result<(), Fault> {
        (**self).control(text)
    }

    fn check(&self, text: &str) -> Result<usize, Fault> {
        (**self).check(text)
    }

    fn status(&self) -> String {
        (**self).status()
    }

    fn beside(&self) -> Option<&OnceLock<Beside>> {
        (**self).beside()
    }

    fn certificates(&self) -> Vec<&[u8]> {
        (**self).certificates()
    }

    fn peer(&self) -> &Peer {
        (**self).peer()
    }
}

/// The other end of a [`Transport`], with the proof of its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address as a dial string, for logs and for people (`tcp!127.0.0.1!40112`).
    pub addr: String,
    /// The proof by the transport itself.
    pub proof: Proof,
}

/// How an identity was proven below 9P.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// No identity (plain TCP, vsock).
    None,
    /// The kernel reported the ids (`SO_PEERCRED`), as of the time when the peer connected.
    Unix {
        /// Effective user id.
        uid: u32,
        /// Effective group id.
        gid: u32,
    },
    /// The kernel reported the user at the other end of a TCP connection within this machine. It decides the client's
    /// read permission; a client does not attach as this user.
    Loopback {
        /// User id of the process that made the connection.
        uid: u32,
    },
    /// A certificate signed by our authority, or the one that we were configured to expect.
    Certificate {
        /// Its first DNS or e-mail subject alternative name, else its common name, else its fingerprint in
        /// hex.
        name: String,
        /// SHA-256 of the certificate, so that two connections of one holder can be matched.
        fingerprint: [u8; 32],
    },
}

impl Proof {
    /// Whether it proves the user as whom a client attaches.
    pub fn is_identity(&self) -> bool {
        matches!(self, Self::Unix { .. } | Self::Certificate { .. })
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Complete reads and writes, for the tests of every transport.

    use super::*;
    use std::future::poll_fn;

    pub(crate) async fn read(t: &mut impl Transport) -> io::Result<Vec<u8>> {
        let mut buf = [0; 64];
        let n = poll_fn(|cx| t.poll_read(cx, &mut buf)).await?;
        Ok(buf[..n].to_vec())
    }

    pub(crate) async fn write(t: &mut impl Transport, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = poll_fn(|cx| t.poll_write(cx, &[IoSlice::new(bytes)])).await?;
            bytes = &bytes[n..];
        }
        poll_fn(|cx| t.poll_flush(cx)).await
    }

    /// Runs both futures until both have ended.
    pub(crate) async fn join<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
        let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
        let (mut first, mut second) = (None, None);
        poll_fn(|cx| {
            if first.is_none() {
                first = ready(a.as_mut().poll(cx));
            }
            if second.is_none() {
                second = ready(b.as_mut().poll(cx));
            }
            if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        (first.take().expect("ended"), second.take().expect("ended"))
    }

    fn ready<T>(poll: Poll<T>) -> Option<T> {
        match poll {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    pub(crate) async fn close(t: &mut impl Transport) -> io::Result<()> {
        poll_fn(|cx| t.poll_close(cx)).await
    }
}
