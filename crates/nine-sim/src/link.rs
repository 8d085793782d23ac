//! A two-way link between two ends of a simulated world: it delays, limits, splits bytes into pieces, and breaks.
//!
//! The link stands for TCP: bytes arrive in order and none is lost, in pieces of random size. Always holds: at most
//! [`Shape::window`] bytes are in flight in each direction; a writer beyond that waits.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use nine_net::{Peer, Proof, Transport};

use crate::rng::Rng;
use crate::world::{Clock, World};

/// Properties of a link.
#[derive(Clone, Debug)]
pub struct Shape {
    /// One-way delay.
    pub delay: Duration,
    /// Maximum number of bytes in flight in one direction.
    pub window: usize,
    /// Maximum number of bytes that one read returns. The actual number is random.
    pub piece: usize,
    /// The link breaks when more than this many bytes have been sent, both directions together.
    pub breaks_after: Option<u64>,
    /// The link stalls when more than this many bytes have been sent, both directions together. Then nothing arrives,
    /// and neither end is notified.
    pub stalls_after: Option<u64>,
    /// Identity proof of the peer, the same for both ends.
    pub proof: Proof,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(1),
            window: 256 * 1024,
            piece: 64 * 1024,
            breaks_after: None,
            stalls_after: None,
            proof: Proof::Unix { uid: 0, gid: 0 },
        }
    }
}

/// One end of a link.
pub struct End {
    shared: Arc<Mutex<Shared>>,
    clock: Arc<Clock>,
    side: usize,
    peer: Peer,
}

struct Shared {
    shape: Shape,
    rng: Rng,
    sent: u64,
    broken: bool,
    stalled: bool,
    /// Directions towards side 0 and side 1.
    ways: [Way; 2],
}

#[derive(Default)]
struct Way {
    pieces: VecDeque<(Duration, Vec<u8>)>,
    bytes: usize,
    closed: bool,
    /// Deadline of the latest timer.
    timer: Option<Duration>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// Waker for the arrival of a piece.
struct Arrival {
    shared: Weak<Mutex<Shared>>,
    side: usize,
}

impl Wake for Arrival {
    fn wake(self: Arc<Self>) {
        let shared = self.shared.upgrade();
        let reader = shared.and_then(|shared| shared.lock().ok()?.ways[self.side].reader.take());
        reader.into_iter().for_each(Waker::wake);
    }
}

/// Creates a link, and returns its two ends.
pub fn link(world: &World, shape: Shape) -> (End, End) {
    connect(world.env().time(), world.rng(), shape)
}

/// Creates links without access to the world, from any thread.
pub struct Links {
    clock: Arc<Clock>,
    rng: Mutex<Rng>,
}

impl Links {
    /// Creates links of this world.
    pub fn new(world: &World) -> Self {
        Self { clock: world.env().time(), rng: Mutex::new(world.rng()) }
    }

    /// Creates a link, and returns its two ends.
    pub fn link(&self, shape: Shape) -> (End, End) {
        let rng = self.rng.lock().expect("no panic while it is held").fork();
        connect(self.clock.clone(), rng, shape)
    }
}

fn connect(clock: Arc<Clock>, rng: Rng, shape: Shape) -> (End, End) {
    let peer = Peer { addr: "sim".into(), proof: shape.proof.clone() };
    let shared = Shared { shape, rng, sent: 0, broken: false, stalled: false, ways: Default::default() };
    let shared = Arc::new(Mutex::new(shared));
    let end = |side| End { shared: shared.clone(), clock: clock.clone(), side, peer: peer.clone() };
    (end(0), end(1))
}

impl Shared {
    fn break_now(&mut self) {
        self.broken = true;
        for way in &mut self.ways {
            way.pieces.clear();
            way.reader.take().into_iter().chain(way.writer.take()).for_each(Waker::wake);
        }
    }
}

impl Transport for End {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut shared = self.shared.lock().expect("no panic while it is held");
        let shared = &mut *shared;
        if shared.broken {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let way = &mut shared.ways[self.side];
        if shared.stalled {
            way.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        match way.pieces.front_mut() {
            Some((time, piece)) if *time <= self.clock.now() => {
                let n = (1 + shared.rng.below(shared.shape.piece)).min(piece.len()).min(buf.len());
                buf[..n].copy_from_slice(&piece[..n]);
                piece.drain(..n);
                if piece.is_empty() {
                    way.pieces.pop_front();
                }
                way.bytes -= n;
                if let Some(writer) = way.writer.take() {
                    writer.wake();
                }
                Poll::Ready(Ok(n))
            }
            Some((time, _)) => {
                way.reader = Some(cx.waker().clone());
                // Start at most one timer per piece, however often this is polled. Each timer wakes the reader.
                if way.timer.replace(*time) != Some(*time) {
                    let arrival = Arrival { shared: Arc::downgrade(&self.shared), side: self.side };
                    self.clock.wake_at(*time, &Waker::from(Arc::new(arrival)));
                }
                Poll::Pending
            }
            None if way.closed => Poll::Ready(Ok(0)),
            None => {
                way.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut shared = self.shared.lock().expect("no panic while it is held");
        let shared = &mut *shared;
        let way = &mut shared.ways[1 - self.side];
        if shared.broken || way.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = shared.shape.window.saturating_sub(way.bytes);
        if room == 0 {
            way.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let all: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).take(room).collect();
        let n = (1 + shared.rng.below(2 * shared.shape.piece)).min(all.len());
        way.pieces.push_back((self.clock.now() + shared.shape.delay, all[..n].to_vec()));
        way.bytes += n;
        if let Some(reader) = way.reader.take() {
            reader.wake();
        }
        shared.sent += n as u64;
        if shared.shape.breaks_after.is_some_and(|limit| shared.sent > limit) {
            shared.break_now();
        }
        shared.stalled |= shared.shape.stalls_after.is_some_and(|limit| shared.sent > limit);
        Poll::Ready(Ok(n))
    }

    fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = self.shared.lock().expect("no panic while it is held");
        let way = &mut shared.ways[1 - self.side];
        way.closed = true;
        if let Some(reader) = way.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut shared = self.shared.lock().expect("no panic while it is held");
        if shared.broken || shared.ways[self.side].closed && !shared.stalled {
            return Poll::Ready(());
        }
        shared.ways[self.side].reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Ok(mut shared) = self.shared.lock() {
            let shared = &mut *shared;
            let way = &mut shared.ways[1 - self.side];
            way.closed = true;
            way.reader.take().into_iter().for_each(Waker::wake);
            shared.ways[self.side].closed = true;
            shared.ways[self.side].writer.take().into_iter().for_each(Waker::wake);
        }
    }
}
