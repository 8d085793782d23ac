//! The host's end of a channel as a transport: of a byte stream, or of any kind with byte counters and an end that
//! follows its channel.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};

use nine_net::lock::{Mutex, lock};
use nine_net::shm::{Channel, Incoming, MOST, Note};
use nine_net::{Peer, Placed, Transport};

use super::chan::ShmChannel;

/// Byte counters of a channel's connections.
#[derive(Default)]
pub(super) struct ChannelCounters {
    came: AtomicU64,
    went: AtomicU64,
    ended: AtomicBool,
}

/// The waker of the task waiting on a connection.
#[derive(Clone, Default)]
pub(super) struct WakerSlot(Arc<Mutex<Option<Waker>>>);

impl WakerSlot {
    pub(super) fn wake(&self) {
        let waker = lock(&self.0).take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl ChannelCounters {
    /// Returns the number of bytes from the guest and to it.
    pub(super) fn bytes(&self) -> [u64; 2] {
        [&self.came, &self.went].map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// Marks all connections as ended. The caller wakes the waiting tasks.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

/// A connection of a channel. Dropping it allows the channel's next one.
pub(super) struct CountedTransport<T> {
    inner: T,
    chan: Arc<ShmChannel>,
    waker: WakerSlot,
}

impl<T: Transport> CountedTransport<T> {
    pub(super) fn new(inner: T, chan: &Arc<ShmChannel>, waker: &WakerSlot) -> Self {
        Self { inner, chan: chan.clone(), waker: waker.clone() }
    }

    /// Returns `polled`. If that is pending it stores the waker, and returns `end` if the connections have ended.
    fn unless_ended<P>(&self, cx: &mut Context<'_>, polled: Poll<P>, end: P) -> Poll<P> {
        if polled.is_pending() {
            *lock(&self.waker.0) = Some(cx.waker().clone());
            if self.chan.moved.has_ended() {
                return Poll::Ready(end);
            }
        }
        polled
    }

    fn count(
        &self,
        polled: Poll<io::Result<usize>>,
        of: fn(&ChannelCounters) -> &AtomicU64,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(n)) = polled {
            of(&self.chan.moved).fetch_add(n as u64, Ordering::Relaxed);
        }
        polled
    }
}

fn broken() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

impl<T: Transport> Transport for CountedTransport<T> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.chan.moved.has_ended() {
            return Poll::Ready(Ok(0));
        }
        let polled = self.inner.poll_read(cx, buf);
        let polled = self.count(polled, |moved| &moved.came);
        self.unless_ended(cx, polled, Ok(0))
    }

    fn take_placed(&mut self, len: usize) -> Option<Placed> {
        let placed = self.inner.take_placed(len)?;
        self.chan.moved.came.fetch_add(placed.len() as u64, Ordering::Relaxed);
        Some(placed)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.chan.moved.has_ended() {
            return Poll::Ready(Err(broken()));
        }
        let polled = self.inner.poll_write(cx, bufs);
        let polled = self.count(polled, |moved| &moved.went);
        self.unless_ended(cx, polled, Err(broken()))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.inner.poll_flush(cx);
        self.unless_ended(cx, polled, Err(broken()))
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.inner.poll_close(cx);
        self.unless_ended(cx, polled, Err(broken()))
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.inner.poll_hangup(cx);
        self.unless_ended(cx, polled, ())
    }

    fn poll_read_placed(
        &mut self,
        cx: &mut Context<'_>,
        head: &[u8; 11],
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<Option<usize>>> {
        let polled = self.inner.poll_read_placed(cx, head, file, offset, len);
        if let Poll::Ready(Ok(Some(moved))) = &polled {
            let _ = self.count(Poll::Ready(Ok(*moved + head.len())), |moved| &moved.went);
        }
        self.unless_ended(cx, polled, Err(broken()))
    }

    fn peer(&self) -> &Peer {
        self.inner.peer()
    }
}

impl<T> Drop for CountedTransport<T> {
    fn drop(&mut self) {
        self.chan.came_back();
    }
}

/// A byte stream without message boundaries.
pub(super) struct ChannelByteStream {
    channel: Channel,
    incoming: Incoming,
}

impl ChannelByteStream {
    /// Wraps a channel that a guest has joined.
    pub(super) fn new(channel: Channel) -> Self {
        Self { channel, incoming: Incoming::default() }
    }
}

impl Transport for ChannelByteStream {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.incoming.poll_read(&mut self.channel, cx, buf, |_, _| Ok(()))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let bytes = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| &buf[..]);
        let bytes = &bytes[..bytes.len().min(MOST)];
        ready!(self.channel.poll_put(cx, bytes, Note::None))?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.channel.settle();
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.channel.close();
        Poll::Ready(Ok(()))
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.channel.poll_gone(cx)
    }

    fn peer(&self) -> &Peer {
        self.channel.peer()
    }
}
