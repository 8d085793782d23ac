//! The shared-memory device end: one end of a channel (docs/channels.md) on the runtime.
//!
//! In: memory that another process sees too, and two bells. Out: pieces, in order; who looks for them, who sleeps, and
//! what becomes of a peer that has gone.
//!
//! Always holds: nothing here blocks; a channel lives on the runtime whose thread made it; who sleeps has said so, and
//! has looked once more.

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

/// What waits at one end of a channel does before it sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waits {
    /// It never sleeps: for a processor of its own.
    Poll,
    /// It sleeps at once.
    Interrupt,
    /// It looks for about as long as it takes to be woken, seldom where that is in vain.
    #[default]
    Adaptive,
}

impl Waits {
    /// Each.
    pub const ALL: [Self; 3] = [Self::Poll, Self::Interrupt, Self::Adaptive];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Interrupt => "interrupt",
            Self::Adaptive => "adaptive",
        }
    }

    /// The one of this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|waits| waits.name() == name)
    }
}

/// Lines of each ring of a channel: 64 KiB.
pub const LINES: u32 = 1024;
/// Pages of the arena of a channel: 8 MiB, of which only what is used takes memory.
pub const PAGES: u32 = 2048;

/// How long a host that has taken a connection may take to give a channel: it does nothing else before it.
pub const GIVEN: Duration = Duration::from_secs(5);
const NOT_GIVEN: &str = "who listens there takes connections, but has given no channel in 5 s: if it speaks 9P \
                         on the socket itself, dial it as unix!";

/// Turns of the runtime in which an end looks before it sleeps, and looks in each.
const TURNS: u32 = 40;
const LOOKS: u32 = 30;
/// After looks in vain, at most so many waits go without.
const BLIND_MAX: u32 = 256;

/// One end of a channel. One task drives it.
pub struct Channel {
    end: End,
    wait: AsyncFd<Raw>,
    ring: Bell,
    life: AsyncFd<Raw>,
    waits: Waits,
    peer: Peer,
    /// Turns that are left to look in.
    turns: u32,
    /// Waits that go without looks now, and how many went without the last time.
    blind: (u32, u32),
    /// Somebody may have to be rung.
    owes: bool,
    /// We have said that we sleep.
    asleep: bool,
    /// The other side's descriptor is closed.
    gone: bool,
    /// It sends nothing more.
    ended: bool,
    /// Nothing more is taken, whatever it writes.
    over: bool,
}

impl Channel {
    /// Makes a channel and opens it: this end is the host's. What the guest is to get is the second; `life` is the
    /// socket that the guest's process has the other end of.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn open(layout: Layout, waits: Waits, life: OwnedFd, peer: Peer) -> io::Result<(Self, Given)> {
        let (memory, file) = linux::create(layout.size)?;
        let (wait, ring) = (Bell::new()?, Bell::new()?);
        let given = Given { memory: file, wait: ring.try_clone()?, ring: wait.try_clone()? };
        Ok((Self::new(End::open(memory, layout), wait, ring, life, waits, peer)?, given))
    }

    /// Makes a channel for whoever has connected to a unix socket, and gives it to him.
    pub fn give(layout: Layout, waits: Waits, socket: Socket) -> io::Result<Self> {
        let (fd, mut peer) = socket.into_parts();
        peer.addr = peer.addr.replacen("unix!", "shm!", 1);
        let socket = fd.try_clone()?;
        let (channel, given) = Self::open(layout, waits, fd, peer)?;
        Passed::send(&given.memory, &given.wait, &given.ring, &socket)?;
        Ok(channel)
    }

    /// Joins the channel that is given to whoever connects to this unix socket.
    ///
    /// Fails with what went wrong, or `TimedOut` after `limit`, or [`GIVEN`] after it has connected without being given
    /// one: a 9P server without channels says nothing before it is asked.
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

    /// Joins a channel, and waits until it is served.
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

    /// What is where.
    pub fn layout(&self) -> &Layout {
        self.end.layout()
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// What may be looked at beside it.
    pub fn watch(&self) -> Watch {
        self.end.watch()
    }

    /// The memory of a place, and where there. `None`: it is not in the arena.
    pub fn place(&self, place: Place) -> Option<(&Memory, usize)> {
        self.end.place(place)
    }

    /// The host: waits until a guest joins, and serves him. An error: his process has gone.
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

    /// Takes a piece: its bytes are the first of `into`. `None`: none will come.
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
                // What it has written before is looked for once more.
                Life::Same | Life::Ended => self.ended = true,
            }
        }
    }

    /// Takes a piece that has come already.
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

    /// From now on nothing is taken: what has come makes no sense.
    pub fn give_up(&mut self) {
        self.over = true;
    }

    /// Puts a piece; [`Channel::settle`] when there is no more to put for now. An error of the kind `BrokenPipe`:
    /// nobody will take it.
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

    /// Rings whoever sleeps and may wait for what was put or taken.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.owes) && self.end.must_ring() {
            self.ring.ring_at_once();
        }
    }

    /// Says that nothing more is put.
    pub fn close(&mut self) {
        self.end.end();
        self.owes = true;
        self.settle();
    }

    /// The host, when it has done with a guest: the next one may join, by [`Channel::poll_join`]. Who was there before
    /// sees that he is served no more.
    ///
    /// # Panics
    /// This end is the guest's.
    pub fn begin_again(&mut self) {
        self.end.begin_again();
        self.owes = true;
        self.settle();
    }

    /// Completes when the other side has gone.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.gone || self.end.life() != Life::Same {
            return Poll::Ready(());
        }
        self.sleep(cx, |end| end.life() != Life::Same)
    }

    /// Ready: it is worth looking again for what `news` tells of.
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

    /// Ready: there are news, or the other side has gone.
    fn sleep(&mut self, cx: &mut Context<'_>, news: impl Fn(&mut End) -> bool) -> Poll<()> {
        self.asleep = true;
        self.end.may_sleep();
        if news(&mut self.end) {
            return Poll::Ready(());
        }
        if heard(&self.wait, cx) {
            // Of something before, or of nothing: a peer that rings and rings has the task's turns and no more.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.hung_up(cx)
    }

    fn hung_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Nothing is ever sent on it: whatever comes is its end.
        if !self.gone {
            ready!(self.life.poll_read_ready(cx)).ok();
            self.gone = true;
        }
        Poll::Ready(())
    }

    /// Something has come.
    fn found(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.end.is_awake();
        }
        if self.turns > 0 {
            // Looking was worth it.
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

/// Bytes that lie in a channel's arena: whoever put them there may change them at any time.
#[derive(Clone, Debug)]
pub struct Placed {
    memory: Memory,
    at: usize,
    len: usize,
}

impl Placed {
    /// Those of the memory.
    ///
    /// # Panics
    /// They are not in it.
    pub fn new(memory: Memory, at: usize, len: usize) -> Self {
        memory.address(at, len);
        Self { memory, at, len }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the first of them, as many as there is room for.
    pub fn read(&self, into: &mut [u8]) {
        let n = into.len().min(self.len);
        self.memory.read(self.at, &mut into[..n]);
    }

    /// A copy of the first of them, at most `most`.
    pub fn to_vec(&self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most.min(self.len)];
        self.read(&mut bytes);
        bytes
    }

    /// Lets go of what is behind the first `most`.
    pub fn truncate(&mut self, most: usize) {
        self.len = self.len.min(most);
    }

    /// Lets go of the first `n`.
    ///
    /// # Panics
    /// There are fewer.
    pub fn advance(&mut self, n: usize) {
        (self.at, self.len) = (self.at + n, self.len.checked_sub(n).expect("no more than there are"));
    }

    /// Writes them into a file at `offset`, without a copy in this process: how many. `nowait`: an error of the kind
    /// `WouldBlock` where that would wait for a disk.
    pub fn write_at(&self, file: BorrowedFd<'_>, offset: u64, nowait: bool) -> rustix::io::Result<usize> {
        self.memory.write_at(self.at, self.len, file, offset, nowait)
    }
}

/// What has come through a channel, as bytes in order: the reading half of its transports.
pub struct Incoming {
    /// What of a piece was not asked for yet.
    rest: Box<[u8; MOST]>,
    at: usize,
    end: usize,
    /// Bytes of the arena that come then.
    placed: Place,
}

impl Default for Incoming {
    fn default() -> Self {
        Self { rest: Box::new([0; MOST]), at: 0, end: 0, placed: Place::default() }
    }
}

impl Incoming {
    /// Whether all that was taken has been read.
    pub fn is_empty(&self) -> bool {
        self.at == self.end && self.placed.count == 0
    }

    /// Reads what comes next: how many bytes; 0, none will come. `came` is told of each piece before its bytes are
    /// read; when it refuses one, that was the last.
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
            // A piece of nothing: look again, when others had their turn.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let (memory, at) = channel.place(self.placed).expect("looked at when it came");
        memory.read(at, &mut buf[..n]);
        self.placed = Place { at: self.placed.at + n as u32, count: self.placed.count - n as u32 };
        Poll::Ready(Ok(n))
    }

    /// The bytes that come next where they lie, if they are `len` of the arena's, and not none.
    pub fn take_placed(&mut self, channel: &Channel, len: usize) -> Option<Placed> {
        if self.at < self.end || self.placed.count as usize != len || len == 0 {
            return None;
        }
        let (memory, at) = channel.place(std::mem::take(&mut self.placed)).expect("looked at when it came");
        Some(Placed::new(memory.clone(), at, len))
    }
}

/// What a guest needs of a channel beside a socket to its host.
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
    /// The same for a program that this one starts; `life` is the other end of the socket that [`Channel::open`] has.
    /// Of all else that is open now it will have its standard files, and nothing.
    pub fn for_child(self, life: OwnedFd) -> io::Result<Inherited> {
        linux::close_all_on_exec()?;
        let Self { memory, wait, ring } = self;
        let [memory, wait, ring, life] = [memory, wait.into(), ring.into(), life].map(rustix::io::dup);
        Ok(Inherited([memory?, wait?, ring?, life?]))
    }

    /// The same to be sent to a program, which hands them on ([`variable`]): no other one that is started has them.
    pub fn to_send(self, life: OwnedFd) -> [OwnedFd; 4] {
        let Self { memory, wait, ring } = self;
        [memory, wait.into(), ring.into(), life]
    }
}

/// By which a program finds the descriptors of [`Given::to_send`] that it inherits under these numbers: name and value
/// of a variable of its environment.
pub fn variable(numbers: [RawFd; 4]) -> (&'static str, String) {
    (linux::VARIABLE, Passed::variable(numbers))
}

/// A channel's descriptors that the next program that is started inherits. To be dropped then.
#[derive(Debug)]
pub struct Inherited([OwnedFd; 4]);

impl Inherited {
    /// The variable of its environment by which it finds them: name and value.
    pub fn variable(&self) -> (&'static str, String) {
        let numbers = [0, 1, 2, 3].map(|n| self.0[n].as_raw_fd());
        variable(numbers)
    }
}

impl Drop for Channel {
    /// As a socket that is dropped is closed.
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

/// Whether the bell was rung since it was heard last; if not, the task is woken when it is.
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
