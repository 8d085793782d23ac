//! The shared-memory device end: one end of a channel (docs/channels.md) on the runtime.
//!
//! In: memory shared with another process, and two doorbells. Out: pieces, in order. Decides when to spin and when to
//! sleep, and detects a peer that is gone.
//!
//! Always holds: nothing here blocks. A channel lives on the runtime of the thread that created it. An end announces
//! that it sleeps, and then checks once more before it does.

use std::future::poll_fn;
use std::hint::spin_loop;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nine_ring::linux::{self, Bell};
pub use nine_ring::linux::{Passed, VARIABLE};
pub use nine_ring::{Arena, Gauge, Kind, Layout, Life, MAGIC, MOST, Memory, Note, PAGE, Piece, Place, Watch};
use nine_ring::{End, Fault, Guest};
use socket2::Socket as Raw;

use crate::dial::Addr;
use crate::end;
use crate::socket::{AsyncFd, Interest, Socket, timeout};
use crate::sys;
use crate::transport::Peer;

mod board;

pub use board::{Board, Slot};

/// How an end of a channel waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waits {
    /// Never sleeps: for a processor of its own.
    Poll,
    /// Sleeps at once.
    Interrupt,
    /// Spins for about as long as a wake-up takes, and less often after it has spun in vain.
    #[default]
    Adaptive,
}

impl Waits {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Poll, Self::Interrupt, Self::Adaptive];

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Interrupt => "interrupt",
            Self::Adaptive => "adaptive",
        }
    }

    /// Finds it by name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|waits| waits.name() == name)
    }
}

/// Lines of each ring of a channel: 64 KiB.
pub const LINES: u32 = 1024;
/// Pages of the arena of a channel: 8 MiB, of which only the used part takes memory.
pub const PAGES: u32 = 2048;

/// How long a host that has accepted a connection may take to send a channel, which must come first.
pub const GIVEN: Duration = Duration::from_secs(5);
const NOT_GIVEN: &str = "who listens there takes connections, but has given no channel in 5 s: if it speaks 9P \
                         on the socket itself, dial it as unix!";

/// Polls of the task in which an end spins before it sleeps, and checks in each.
const TURNS: u32 = 40;
const LOOKS: u32 = 30;
/// Maximum number of waits without spinning after spinning was in vain.
const BLIND_MAX: u32 = 256;

/// One end of a channel. One task drives it.
pub struct Channel {
    end: End,
    wait: AsyncFd<Raw>,
    ring: Bell,
    life: AsyncFd<Raw>,
    waits: Waits,
    peer: Peer,
    /// Polls left in which to spin.
    turns: u32,
    /// Waits left without spinning, and the last such number.
    blind: (u32, u32),
    /// The peer may have to be rung.
    owes: bool,
    /// This end has announced that it sleeps.
    asleep: bool,
    /// The peer's end of the socket is closed.
    gone: bool,
    /// The peer sends nothing more.
    ended: bool,
    /// Nothing more is accepted, whatever the peer writes.
    over: bool,
}

impl Channel {
    /// Creates and opens a channel. Returns the host's end, and the descriptors for the guest. `life`: the socket whose
    /// other end the guest's process has.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn open(layout: Layout, waits: Waits, life: OwnedFd, peer: Peer) -> io::Result<(Self, Given)> {
        let (memory, file) = linux::create(layout.size)?;
        let (wait, ring) = (Bell::new()?, Bell::new()?);
        let given = Given { memory: file, wait: ring.try_clone()?, ring: wait.try_clone()? };
        Ok((Self::new(End::open(memory, layout), wait, ring, life, waits, peer)?, given))
    }

    /// Creates a channel for the client of a unix socket, and sends it the descriptors.
    pub fn give(layout: Layout, waits: Waits, socket: Socket) -> io::Result<Self> {
        let (fd, mut peer) = socket.into_parts();
        peer.addr = peer.addr.replacen("unix!", "shm!", 1);
        let socket = fd.try_clone()?;
        let (channel, given) = Self::open(layout, waits, fd, peer)?;
        Passed::send(&given.memory, &given.wait, &given.ring, &socket)?;
        Ok(channel)
    }

    /// Joins the channel that the listener on this unix socket sends.
    ///
    /// Fails with the error, or with `TimedOut` after `limit`, or [`GIVEN`] after it has connected without a channel: a
    /// 9P server without channels sends nothing before a request.
    pub async fn dial(path: &Path, waits: Waits, limit: Duration) -> io::Result<Self> {
        let addr = Addr::Shm { path: path.into() };
        let joined = timeout(limit, async {
            let unix = Addr::Unix { path: path.into() };
            let mut socket = Socket::connect(&unix, limit).await?;
            let given = timeout(GIVEN, poll_fn(|cx| socket.poll_readable(cx))).await;
            given.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, NOT_GIVEN))??;
            let (fd, peer) = socket.into_parts();
            let peer = Peer { addr: addr.to_string(), ..peer };
            let passed = Passed::receive(fd).map_err(|(error, _)| error)?;
            Self::join(passed, waits, peer).await
        });
        match joined.await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(error)) => Err(end::tried(&addr, error)),
            Err(_) => Err(end::tried(&addr, end::too_late(limit))),
        }
    }

    /// Joins a channel, and waits until the host serves it.
    pub async fn join(passed: Passed, waits: Waits, peer: Peer) -> io::Result<Self> {
        let Passed { memory, wait, ring, life } = passed;
        let bad = |bad| io::Error::new(io::ErrorKind::InvalidData, bad);
        let guest = Guest::join(linux::map(&memory)?).map_err(bad)?;
        if guest.must_ring() {
            ring.ring_at_once();
        }
        let (wait, life) = (bell(wait)?, hangup(life)?);
        guest.may_sleep();
        let end = poll_fn(|cx| {
            loop {
                if let Some(end) = guest.served() {
                    return Poll::Ready(Ok(end));
                }
                if !heard(&wait, cx) {
                    let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
                    return life.poll_read_ready(cx).map(|_| Err(gone()));
                }
                guest.may_sleep();
            }
        });
        let end = end.await?;
        end.is_awake();
        Ok(Self::with(end, wait, ring, life, waits, peer))
    }

    fn new(end: End, wait: Bell, ring: Bell, life: OwnedFd, waits: Waits, peer: Peer) -> io::Result<Self> {
        Ok(Self::with(end, bell(wait)?, ring, hangup(life)?, waits, peer))
    }

    fn with(end: End, wait: AsyncFd<Raw>, ring: Bell, life: AsyncFd<Raw>, waits: Waits, peer: Peer) -> Self {
        Self {
            end,
            wait,
            ring,
            life,
            waits,
            peer,
            turns: 0,
            blind: (0, 0),
            owes: false,
            asleep: false,
            gone: false,
            ended: false,
            over: false,
        }
    }

    /// The layout of the memory.
    pub fn layout(&self) -> &Layout {
        self.end.layout()
    }

    /// The identity of the peer.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// A handle to watch the channel from elsewhere.
    pub fn watch(&self) -> Watch {
        self.end.watch()
    }

    /// The memory of a place, and the offset in it. `None`: it is outside the arena.
    pub fn place(&self, place: Place) -> Option<(&Memory, usize)> {
        self.end.place(place)
    }

    /// For the host: waits until a guest joins, and serves it. Fails if its process is gone.
    pub fn poll_join(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.end.life() == Life::Another {
                self.end.serve();
                (self.ended, self.over, self.owes) = (false, false, true);
                self.settle();
                return Poll::Ready(Ok(()));
            }
            if self.gone {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            ready!(self.poll_wait(cx, |end| end.life() != Life::Same));
        }
    }

    /// Takes a piece, into the start of `into`. `None`: no more pieces will come.
    ///
    /// # Panics
    /// `into` is shorter than [`MOST`].
    pub fn poll_take(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<Option<Piece>>> {
        loop {
            if let Some(piece) = self.take(into)? {
                return Poll::Ready(Ok(Some(piece)));
            }
            if self.ended || self.over {
                self.over = true;
                return Poll::Ready(Ok(None));
            }
            match self.end.life() {
                Life::Same if !self.gone => ready!(self.poll_wait(cx, |end| end.is_ready())),
                Life::Another => self.over = true,
                // The peer may have written before that: check once more.
                Life::Same | Life::Ended => self.ended = true,
            }
        }
    }

    /// Takes a piece that is available already.
    ///
    /// # Panics
    /// `into` is shorter than [`MOST`].
    pub fn take(&mut self, into: &mut [u8]) -> io::Result<Option<Piece>> {
        if self.over {
            return Ok(None);
        }
        let piece = self.end.take(into).map_err(|broken| {
            self.over = true;
            fault(broken)
        })?;
        if piece.is_some() {
            self.owes = true;
            self.found();
        }
        Ok(piece)
    }

    /// Stops accepting pieces, because the input is invalid.
    pub fn give_up(&mut self) {
        self.over = true;
    }

    /// Puts a piece. Call [`Channel::settle`] when there is no more to put at present. An error of the kind
    /// `BrokenPipe`: the peer will not take it.
    ///
    /// # Panics
    /// It is longer than [`MOST`].
    pub fn poll_put(&mut self, cx: &mut Context<'_>, bytes: &[u8], note: Note) -> Poll<io::Result<()>> {
        loop {
            if self.end.put(bytes, note).map_err(fault)? {
                self.owes = true;
                return Poll::Ready(Ok(()));
            }
            if self.gone || self.end.life() != Life::Same {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            ready!(self.poll_wait(cx, |end| end.has_room(bytes.len()) != Ok(false)));
        }
    }

    /// Rings the peer if it sleeps and may wait for pieces put or taken.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.owes) && self.end.must_ring() {
            self.ring.ring_at_once();
        }
    }

    /// Signals the end of our pieces.
    pub fn close(&mut self) {
        self.end.end();
        self.owes = true;
        self.settle();
    }

    /// For the host, after a guest: lets the next one join, by [`Channel::poll_join`]. The former guest sees that it is
    /// no longer served.
    ///
    /// # Panics
    /// This end is the guest's.
    pub fn begin_again(&mut self) {
        self.end.begin_again();
        self.owes = true;
        self.settle();
    }

    /// Completes when the peer is gone.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.gone || self.end.life() != Life::Same {
            return Poll::Ready(());
        }
        self.sleep(cx, |end| end.life() != Life::Same)
    }

    /// Ready: check for `news` again.
    fn poll_wait(&mut self, cx: &mut Context<'_>, news: impl Fn(&mut End) -> bool) -> Poll<()> {
        self.settle();
        if self.waits == Waits::Poll || self.turns > 0 {
            for _ in 0..LOOKS {
                spin_loop();
                if news(&mut self.end) {
                    return Poll::Ready(());
                }
            }
            self.looked_in_vain();
            if self.hung_up(cx).is_ready() {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.sleep(cx, |end| news(end) || end.life() != Life::Same)
    }

    /// Ready: there is news, or the peer is gone.
    fn sleep(&mut self, cx: &mut Context<'_>, news: impl Fn(&mut End) -> bool) -> Poll<()> {
        self.asleep = true;
        self.end.may_sleep();
        if news(&mut self.end) {
            return Poll::Ready(());
        }
        if heard(&self.wait, cx) {
            // The ring may be old, or have no cause. A peer that rings without end gets the polls of this task and no
            // more.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.hung_up(cx)
    }

    fn hung_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Nothing is ever sent on this socket: any event is its end.
        if !self.gone {
            ready!(self.life.poll_read_ready(cx)).ok();
            self.gone = true;
        }
        Poll::Ready(())
    }

    /// Ends a wait after a piece was found.
    fn found(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.end.is_awake();
        }
        if self.turns > 0 {
            // Spinning was worthwhile.
            self.blind = (0, 0);
        }
        match &mut self.blind.0 {
            0 if self.waits == Waits::Adaptive => self.turns = TURNS,
            0 => {}
            blind => *blind -= 1,
        }
    }

    fn looked_in_vain(&mut self) {
        self.turns = self.turns.saturating_sub(1);
        if self.turns == 0 {
            let more = (2 * self.blind.1 + 1).min(BLIND_MAX);
            self.blind = (more, more);
        }
    }
}

/// Bytes in a channel's arena. The process that put them there may change them at any time.
#[derive(Clone, Debug)]
pub struct Placed {
    memory: Memory,
    at: usize,
    len: usize,
}

impl Placed {
    /// Bytes `at` to `at + len` of the memory.
    ///
    /// # Panics
    /// They are outside the memory.
    pub fn new(memory: Memory, at: usize, len: usize) -> Self {
        memory.address(at, len);
        Self { memory, at, len }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the first bytes, as many as fit.
    pub fn read(&self, into: &mut [u8]) {
        let n = into.len().min(self.len);
        self.memory.read(self.at, &mut into[..n]);
    }

    /// Copies the first bytes, at most `most`.
    pub fn to_vec(&self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most.min(self.len)];
        self.read(&mut bytes);
        bytes
    }

    /// Drops the bytes after the first `most`.
    pub fn truncate(&mut self, most: usize) {
        self.len = self.len.min(most);
    }

    /// Drops the first `n` bytes.
    ///
    /// # Panics
    /// There are fewer.
    pub fn advance(&mut self, n: usize) {
        (self.at, self.len) = (self.at + n, self.len.checked_sub(n).expect("no more than there are"));
    }

    /// Writes the bytes to a file at `offset`, without a copy in this process. Returns the number written. `nowait`:
    /// fails with `WouldBlock` if the write would wait for a disk.
    pub fn write_at(&self, file: BorrowedFd<'_>, offset: u64, nowait: bool) -> rustix::io::Result<usize> {
        self.memory.write_at(self.at, self.len, file, offset, nowait)
    }
}

/// The input of a channel as bytes, in order: the reading half of its transports.
pub struct Incoming {
    /// The unread part of a piece.
    rest: Box<[u8; MOST]>,
    at: usize,
    end: usize,
    /// Arena bytes that follow it.
    placed: Place,
}

impl Default for Incoming {
    fn default() -> Self {
        Self { rest: Box::new([0; MOST]), at: 0, end: 0, placed: Place::default() }
    }
}

impl Incoming {
    /// Whether everything taken has been read.
    pub fn is_empty(&self) -> bool {
        self.at == self.end && self.placed.count == 0
    }

    /// Reads the next bytes. Returns their number; 0 at the end. `came` gets each piece before its bytes are read. If
    /// it refuses one, reading fails and the channel accepts no more.
    pub fn poll_read(
        &mut self,
        channel: &mut Channel,
        cx: &mut Context<'_>,
        buf: &mut [u8],
        mut came: impl FnMut(&[u8], Note) -> io::Result<()>,
    ) -> Poll<io::Result<usize>> {
        if self.is_empty() {
            let is_large = buf.len() >= MOST;
            let mut room = if is_large { &mut *buf } else { &mut self.rest[..] };
            let mut next = ready!(channel.poll_take(cx, room))?;
            if next.is_none() {
                return Poll::Ready(Ok(0));
            }
            let mut n = 0;
            while let Some(Piece { len, note }) = next {
                came(&room[..len], note).inspect_err(|_| channel.give_up())?;
                if let Note::Data(place) = note {
                    self.placed = place;
                }
                n += len;
                room = &mut room[len..];
                if len == 0 || self.placed.count > 0 || room.len() < MOST {
                    break;
                }
                next = channel.take(room)?;
            }
            if !is_large {
                (self.at, self.end) = (0, n);
            } else if n > 0 {
                return Poll::Ready(Ok(n));
            }
        }
        let n = buf.len().min(self.end - self.at);
        if n > 0 {
            buf[..n].copy_from_slice(&self.rest[self.at..self.at + n]);
            self.at += n;
            return Poll::Ready(Ok(n));
        }
        let n = buf.len().min(self.placed.count as usize);
        if n == 0 {
            // An empty piece: poll again after other tasks.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let (memory, at) = channel.place(self.placed).expect("looked at when it came");
        memory.read(at, &mut buf[..n]);
        self.placed = Place { at: self.placed.at + n as u32, count: self.placed.count - n as u32 };
        Poll::Ready(Ok(n))
    }

    /// Takes the next bytes in place, if they are exactly `len` bytes of the arena and not empty.
    pub fn take_placed(&mut self, channel: &Channel, len: usize) -> Option<Placed> {
        if self.at < self.end || self.placed.count as usize != len || len == 0 {
            return None;
        }
        let (memory, at) = channel.place(std::mem::take(&mut self.placed)).expect("looked at when it came");
        Some(Placed::new(memory.clone(), at, len))
    }
}

/// The descriptors that a guest needs besides a socket to its host.
#[derive(Debug)]
pub struct Given {
    /// The memory file.
    pub memory: OwnedFd,
    /// Rung for the guest.
    pub wait: Bell,
    /// Rung for the host.
    pub ring: Bell,
}

impl Given {
    /// Makes them inheritable by a child process. `life` is the other end of the socket passed to [`Channel::open`]. Of
    /// all other open descriptors the child gets only its standard files.
    pub fn for_child(self, life: OwnedFd) -> io::Result<Inherited> {
        linux::close_all_on_exec()?;
        let Self { memory, wait, ring } = self;
        let [memory, wait, ring, life] = [memory, wait.into(), ring.into(), life].map(rustix::io::dup);
        Ok(Inherited([memory?, wait?, ring?, life?]))
    }

    /// Returns them to be sent to a program, which passes them on ([`variable`]). No other child process inherits them.
    pub fn to_send(self, life: OwnedFd) -> [OwnedFd; 4] {
        let Self { memory, wait, ring } = self;
        [memory, wait.into(), ring.into(), life]
    }
}

/// Name and value of the environment variable by which a program finds the inherited descriptors of [`Given::to_send`],
/// which have these numbers.
pub fn variable(numbers: [RawFd; 4]) -> (&'static str, String) {
    (linux::VARIABLE, Passed::variable(numbers))
}

/// Descriptors of a channel that the next child process inherits. Drop it after the start.
#[derive(Debug)]
pub struct Inherited([OwnedFd; 4]);

impl Inherited {
    /// Name and value of the environment variable by which the child finds them.
    pub fn variable(&self) -> (&'static str, String) {
        let numbers = [0, 1, 2, 3].map(|n| self.0[n].as_raw_fd());
        variable(numbers)
    }
}

impl Drop for Channel {
    /// Closes the channel, as dropping a socket closes the socket.
    fn drop(&mut self) {
        self.close();
    }
}

fn fault(fault: Fault) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault)
}

fn bell(bell: Bell) -> io::Result<AsyncFd<Raw>> {
    sys::register_for(OwnedFd::from(bell).into(), Interest::READABLE)
}

fn hangup(life: OwnedFd) -> io::Result<AsyncFd<Raw>> {
    rustix::io::ioctl_fionbio(&life, true)?;
    sys::register_for(life.into(), Interest::READABLE)
}

/// Whether the bell was rung since the last check. If not, the task is woken when it is.
fn heard(bell: &AsyncFd<Raw>, cx: &mut Context<'_>) -> bool {
    match bell.poll_read_ready(cx) {
        Poll::Pending => false,
        Poll::Ready(Err(_)) => true,
        Poll::Ready(Ok(mut guard)) => {
            linux::hear(guard.get_inner().as_fd());
            guard.clear_ready();
            true
        }
    }
}

#[cfg(test)]
mod tests;
