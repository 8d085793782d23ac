//! The tasks of an announced channel: one for its socket, and one for each guest.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nine_io::channel::{Asking, Serving};
use nine_io::synth::Ask;
use nine_net::shm::{Channel, Kind};
use nine_net::{Addr, Env, Listener, Socket, Transport};
use nine_proto::{Errno, Error};

use super::chan::{ChannelConfig, DATA_READ_MAX, GuestSlot, ShmChannel};
use super::end::{ChannelByteStream, CountedTransport};

/// How long a guest may take to join after it got its memory.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Announces a channel, and serves its guests until the channel ends.
pub(super) async fn announce(env: impl Env + Clone, chan: Arc<ShmChannel>, at: PathBuf, ask: Ask) {
    let mut listener = match Listener::bind(&Addr::Shm { path: at }) {
        Ok(listener) => listener,
        Err(error) => {
            chan.announced(false);
            let errno = error.raw_os_error().and_then(|number| u32::try_from(number).ok()).map(Errno);
            let errno = errno.unwrap_or(match error.kind() {
                io::ErrorKind::AddrInUse => Errno::EADDRINUSE,
                io::ErrorKind::PermissionDenied => Errno::EACCES,
                io::ErrorKind::NotFound => Errno::ENOENT,
                _ => Errno::EIO,
            });
            return ask.fail(Error::new(errno, error.to_string()));
        }
    };
    let Some(how) = chan.announced(true) else {
        return ask.fail(Error::new(Errno::EPIPE, "hung up"));
    };
    ask.done(Ok(()));
    while let Some(turn) = chan.until_over(chan.turn()).await {
        let socket = match chan.until_over(listener.accept(&env)).await {
            None => break,
            Some(Ok(socket)) => socket,
            Some(Err(error)) => {
                tracing::error!("{}: {error}", listener.addr());
                break;
            }
        };
        env.spawn(Box::pin(guest(env.clone(), chan.clone(), how.clone(), turn, socket)));
    }
    chan.hang_up();
}

/// Serves one guest, from its connection until it has gone.
async fn guest(
    env: impl Env + Clone,
    chan: Arc<ShmChannel>,
    how: ChannelConfig,
    turn: GuestSlot,
    socket: Socket,
) {
    let peer = socket.peer().addr.clone();
    match chan.until_over(join(&env, &how, socket)).await {
        None => {}
        Some(Err(error)) => tracing::warn!(%peer, "a guest has not joined: {error}"),
        Some(Ok(channel)) => {
            turn.joined(channel.watch());
            host(&env, &chan, &how, &turn, channel).await;
            if how.kind == Kind::Bytes {
                chan.hang_up();
            }
        }
    }
}

/// Gives a connected guest a channel, and waits until it has joined.
async fn join(env: &impl Env, how: &ChannelConfig, socket: Socket) -> io::Result<Channel> {
    let mut late = env.sleep_until(env.now() + JOIN_TIMEOUT);
    let mut channel = Channel::give(how.layout(), how.waits, socket)?;
    let joined = poll_fn(|cx| match late.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        Poll::Pending => channel.poll_join(cx),
    });
    joined.await.map(|()| channel)
}

/// Runs the channel's service for a guest, until one of them has gone.
async fn host(
    env: &(impl Env + Clone),
    chan: &Arc<ShmChannel>,
    how: &ChannelConfig,
    turn: &GuestSlot,
    channel: Channel,
) {
    let peer = channel.peer().addr.clone();
    let end: Box<dyn Transport> = match how.kind {
        Kind::GuestAsks => Box::new(CountedTransport::new(Serving::new(channel), chan, &turn.waker)),
        Kind::HostAsks => {
            let asking = Asking::new(channel);
            turn.has_arena(asking.gauge());
            Box::new(CountedTransport::new(asking, chan, &turn.waker))
        }
        Kind::Bytes => Box::new(CountedTransport::new(ChannelByteStream::new(channel), chan, &turn.waker)),
    };
    match (&how.to, how.kind) {
        (Some(name), kind) => {
            let other = if kind == Kind::Bytes { Kind::Bytes } else { Kind::HostAsks };
            match chan.connected(name, other) {
                Ok(other) => relay(end, other).await,
                Err(why) => tracing::warn!(%peer, "a guest is not connected to {name}: {why}"),
            }
        }
        (None, Kind::GuestAsks) => match chan.service() {
            Some(service) => service.welcome(env.clone(), end).await,
            None => tracing::warn!(%peer, "a guest has come when nothing is served any more"),
        },
        (None, Kind::HostAsks) => chan.lend(end).await,
        (None, Kind::Bytes) => chan.carry(end).await,
    }
}

/// Moves bytes both ways until one side has gone.
async fn relay(mut a: Box<dyn Transport>, mut b: Box<dyn Transport>) {
    let (mut there, mut back) = (DirectionBuffer::new(), DirectionBuffer::new());
    let ended = poll_fn(|cx| {
        let is_over =
            there.poll_move(cx, &mut a, &mut b).is_ready() || back.poll_move(cx, &mut b, &mut a).is_ready();
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    });
    ended.await;
    // Data from one side before its end has been written to the other.
    let mut closed = pin!(poll_fn(|cx| {
        let both = [a.poll_close(cx), b.poll_close(cx)];
        if both.iter().any(Poll::is_pending) { Poll::Pending } else { Poll::Ready(()) }
    }));
    // Polled once only: a side that accepts no data is not waited for.
    poll_fn(|cx| Poll::Ready(closed.as_mut().poll(cx).is_ready())).await;
}

/// Bytes moved in one direction before other tasks run.
const COPY_BURST_LEN: usize = 8 * DATA_READ_MAX;

/// One direction; it buffers at most [`DATA_READ_MAX`] bytes.
struct DirectionBuffer {
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl DirectionBuffer {
    fn new() -> Self {
        Self { bytes: vec![0; DATA_READ_MAX], at: 0, end: 0 }
    }

    /// Moves bytes. Ready when the direction has ended. Two guests on their own processors may keep up with this
    /// task. So it yields after [`COPY_BURST_LEN`] bytes and is polled again at once.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut impl Transport,
        to: &mut impl Transport,
    ) -> Poll<()> {
        let mut moved = 0;
        loop {
            while self.at < self.end {
                match ready!(to.poll_write(cx, &[IoSlice::new(&self.bytes[self.at..self.end])])) {
                    Ok(n) => self.at += n,
                    Err(_) => return Poll::Ready(()),
                }
            }
            if self.end > 0 && ready!(to.poll_flush(cx)).is_err() {
                return Poll::Ready(());
            }
            moved += self.end;
            (self.at, self.end) = (0, 0);
            if moved >= COPY_BURST_LEN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match ready!(from.poll_read(cx, &mut self.bytes)) {
                Ok(n @ 1..) => self.end = n,
                _ => return Poll::Ready(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use nine_net::{Peer, Proof};

    use super::*;

    /// It always has more data, and accepts everything.
    struct EndlessTransport(Peer);

    impl Transport for EndlessTransport {
        fn poll_read(&mut self, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_write(&mut self, _: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()))
        }

        fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn peer(&self) -> &Peer {
            &self.0
        }
    }

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn guests_that_never_pause_leave_a_turn_to_others() {
        let woken = Arc::new(WakeCounter::default());
        let waker = Waker::from(woken.clone());
        let endless = || EndlessTransport(Peer { addr: "test".into(), proof: Proof::None });
        let (mut from, mut to, mut way) = (endless(), endless(), DirectionBuffer::new());
        for turn in 1..4 {
            let polled = way.poll_move(&mut Context::from_waker(&waker), &mut from, &mut to);
            assert!(polled.is_pending());
            assert_eq!(woken.0.load(Ordering::Relaxed), turn, "it goes on by itself");
        }
    }
}
