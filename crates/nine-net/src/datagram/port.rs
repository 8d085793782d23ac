//! The port: its interface for callers, and the state shared with its driver.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Poll, Waker};

use nine_stream::{Device, Fault, Limit, Make, Pool, Stream};

use super::{Driver, Link, canonical};
use crate::env::Clock;
use crate::il::{HEADER, Il, Setup, State, halves};
use crate::lock::{Mutex, MutexGuard, lock};

/// Bytes of the largest datagram of UDP on IPv4.
const UDP_LEN_MAX: usize = 65_507;

/// Maximum number of unacknowledged bytes that il buffers per line, however large the peer's window is.
const UNACKED_LEN_MAX: usize = 4 << 20;

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Plain datagrams.
    Plain,
    /// il.
    Il,
}

/// Limits of a port.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of lines. Further ones are refused.
    pub lines: usize,
    /// Maximum number of calls that wait to be accepted per announced port. Further ones are refused.
    pub calls: usize,
    /// Maximum number of half-open calls. A further one replaces the oldest.
    pub half: usize,
    /// Maximum number of bytes that il buffers for a reader.
    pub window: usize,
    /// Memory for the buffers of all il lines together, about, in bytes. With many lines, each starts with its share of
    /// this as its window.
    pub memory: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { lines: 16 << 10, calls: 64, half: 256, window: 1 << 20, memory: 256 << 20 }
    }
}

/// One connection.
pub struct Line {
    // Dropped before the stream: il learns that the process is gone before the stream is closed.
    _left: ProcessGone,
    /// The caller's end. A message is a datagram, or a message of il.
    pub stream: Stream,
    /// `addr!port` of this end.
    pub local: String,
    /// `addr!port` of the other end; with headers `::!0`.
    pub remote: String,
    pub(super) il: Option<Arc<Mutex<Il>>>,
}

/// Dropping it reports that the process is gone. From then on il has limited time for its unsent data.
struct ProcessGone(Option<Arc<Mutex<Il>>>);

impl Drop for ProcessGone {
    fn drop(&mut self) {
        if let Some(il) = &self.0 {
            lock(il).orphan();
        }
    }
}

impl Line {
    /// Bytes of the largest message.
    pub fn largest(&self) -> usize {
        // A datagram that exceeds the path's limit is fragmented.
        self.il.as_ref().map_or(UDP_LEN_MAX, |il| lock(il).largest())
    }

    /// State and counts, in one line.
    pub fn status(&self) -> String {
        self.il.as_ref().map_or_else(|| "Datagram".into(), |il| lock(il).status())
    }
}

/// Identifies a line: the peer, and the ports of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LineKey {
    pub(super) addr: SocketAddr,
    pub(super) remote: u16,
    pub(super) local: u16,
    /// Our address that was called, if there are several.
    pub(super) here: Option<IpAddr>,
}

/// A new line, as its driver needs it.
pub(super) struct NewLine {
    pub(super) key: LineKey,
    pub(super) device: Device,
    pub(super) il: Option<Arc<Mutex<Il>>>,
    /// Wakes the dialler when the call is answered.
    pub(super) opening: OpeningWaker,
    pub(super) headers: bool,
}

pub(super) type OpeningWaker = Arc<Mutex<Option<Waker>>>;

#[derive(Default)]
pub(super) struct LineTable {
    /// Created by callers, and not yet taken over by the driver.
    pub(super) made: Vec<NewLine>,
    pub(super) keys: HashSet<LineKey>,
    pub(super) listens: HashMap<u16, AnnouncedPort>,
    pub(super) driver: Option<Waker>,
    pub(super) handles: usize,
    /// The driver is gone.
    pub(super) over: bool,
    last_port: u16,
}

/// An announced port.
#[derive(Default)]
pub(super) struct AnnouncedPort {
    pub(super) calls: VecDeque<Line>,
    pub(super) waiting: Vec<Waker>,
}

pub(super) struct DatagramPort {
    pub(super) kind: Kind,
    pub(super) limits: Limits,
    pub(super) local: SocketAddr,
    pub(super) clock: Arc<dyn Clock>,
    sums: bool,
    largest: Arc<dyn Fn(SocketAddr) -> usize + Send + Sync>,
    table: Mutex<LineTable>,
}

impl DatagramPort {
    pub(super) fn table(&self) -> MutexGuard<'_, LineTable> {
        lock(&self.table)
    }

    pub(super) fn wake(&self) {
        let driver = self.table().driver.take();
        driver.into_iter().for_each(Waker::wake);
    }

    /// The parameters of a new il connection.
    pub(super) fn setup(&self, key: LineKey) -> Setup {
        let mut start = [0; 4];
        self.clock.entropy(&mut start);
        let largest = (self.largest)(key.addr).saturating_sub(HEADER).max(1);
        let share = self.limits.memory / (self.table().keys.len() + 1);
        let fits = (2 * largest + 1024).max(4096);
        let (window, kept) = (self.limits.window.min(share).max(fits), UNACKED_LEN_MAX.min(share).max(fits));
        let (start, LineKey { local, remote, .. }) = (u32::from_be_bytes(start), key);
        Setup { local, remote, start, largest, window, kept, sums: self.sums, old: false }
    }

    /// Creates both ends of a line.
    pub(super) fn line(&self, key: LineKey, il: Option<Arc<Mutex<Il>>>, headers: bool) -> (Line, NewLine) {
        let clock = self.clock.clone();
        let limit = match self.kind {
            Kind::Plain => Limit { bytes: 256 << 10, blocks: 256 },
            Kind::Il => Limit { bytes: 256 << 10, blocks: 512 },
        };
        let clock = Arc::new(move || clock.now());
        let (stream, device) = Stream::new(&Make { clock, limit, ..Make::new(Pool::new(0)) });
        if let Some(il) = &il {
            stream.push_halves("il", halves(il.clone())).expect("it is new");
        }
        let (port, there) = match self.kind {
            Kind::Plain => (self.local.port(), key.addr.port()),
            Kind::Il => (key.local, key.remote),
        };
        let line = Line {
            _left: ProcessGone(il.clone()),
            stream,
            local: format!("{}!{port}", key.here.unwrap_or(self.local.ip()).to_canonical()),
            remote: format!("{}!{there}", key.addr.ip().to_canonical()),
            il: il.clone(),
        };
        (line, NewLine { key, device, il, opening: OpeningWaker::default(), headers })
    }
}

/// One datagram socket. Clones share it. An announcement ends with its [`Announced`].
///
/// Concurrency: any number of tasks may dial, announce and accept.
pub struct Port(Arc<DatagramPort>);

impl Clone for Port {
    fn clone(&self) -> Self {
        self.0.table().handles += 1;
        Self(self.0.clone())
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.0.table().handles -= 1;
        self.0.wake();
    }
}

impl Port {
    /// Creates a port on this link. The caller must run the driver until it completes.
    pub fn new<L: Link>(link: L, kind: Kind, limits: Limits, clock: Arc<dyn Clock>) -> (Self, Driver<L>) {
        let table = LineTable { handles: 1, last_port: 4999, ..LineTable::default() };
        let shared = Arc::new(DatagramPort {
            kind,
            limits,
            local: link.local(),
            clock,
            sums: !link.has_sums(),
            largest: link.largest(),
            table: Mutex::new(table),
        });
        (Self(shared.clone()), Driver::new(shared, link))
    }

    /// The local address.
    pub fn local(&self) -> SocketAddr {
        self.0.local
    }

    /// Opens a line for plain datagrams to and from `to`.
    pub fn connect(&self, to: SocketAddr) -> io::Result<Line> {
        let key = LineKey { addr: canonical(to), remote: 0, local: 0, here: None };
        self.enter(key)?;
        let (line, made) = self.0.line(key, None, false);
        self.hand_over(made);
        Ok(line)
    }

    /// Opens a line for all datagrams without a line of their own. Each starts with the 52 bytes of Plan 9's `headers`:
    /// `raddr[16] laddr[16] ifcaddr[16] rport[2] lport[2]`, most significant byte first. A written datagram must start
    /// with them too, and goes to raddr and rport.
    pub fn headers(&self) -> io::Result<Line> {
        let nobody = SocketAddr::from(([0u16; 8], 0));
        let key = LineKey { addr: nobody, remote: 0, local: 0, here: None };
        self.enter(key)?;
        let (line, made) = self.0.line(key, None, true);
        self.hand_over(made);
        Ok(line)
    }

    /// Calls `port` at `to`, by il. Returns the line when the call is answered. Otherwise fails with
    /// `ConnectionRefused` or `TimedOut`.
    pub async fn dial(&self, to: SocketAddr, port: u16) -> io::Result<Line> {
        let key = self.free_key(canonical(to), port)?;
        let il = Il::call(self.0.clock.now(), self.0.setup(key));
        let il = Arc::new(Mutex::new(il));
        let (line, made) = self.0.line(key, Some(il.clone()), false);
        let opening = made.opening.clone();
        self.hand_over(made);
        let answered = poll_fn(|cx| {
            *lock(&opening) = Some(cx.waker().clone());
            let il = lock(&il);
            match (il.state(), il.fault()) {
                (_, Some(fault)) => Poll::Ready(Err(fault.clone())),
                (State::Syncer, None) if !self.0.table().over => Poll::Pending,
                _ => Poll::Ready(Ok(())),
            }
        });
        match answered.await {
            Ok(()) if lock(&il).state() == State::Syncer => Err(gone()),
            Ok(()) => Ok(line),
            Err(fault) if lock(&il).is_refused() => {
                Err(io::Error::new(io::ErrorKind::ConnectionRefused, fault))
            }
            Err(fault) => Err(io::Error::new(io::ErrorKind::TimedOut, fault)),
        }
    }

    /// Accepts il calls to a port. For plain datagrams (port 0) each sender is a call. `AddrInUse`: the port is
    /// announced already.
    pub fn announce(&self, port: u16) -> io::Result<Announced> {
        let mut table = self.0.table();
        if table.over {
            return Err(gone());
        }
        if table.listens.contains_key(&port) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        table.listens.insert(port, AnnouncedPort::default());
        drop(table);
        Ok(Announced { port: self.clone(), at: port })
    }

    /// A key with an unused local port.
    fn free_key(&self, addr: SocketAddr, remote: u16) -> io::Result<LineKey> {
        for _ in 5000..u16::MAX {
            let mut table = self.0.table();
            table.last_port = if table.last_port == u16::MAX { 5000 } else { table.last_port + 1 };
            let key = LineKey { addr, remote, local: table.last_port, here: None };
            let taken = table.keys.contains(&key) || table.listens.contains_key(&key.local);
            drop(table);
            if !taken {
                self.enter(key)?;
                return Ok(key);
            }
        }
        Err(io::ErrorKind::AddrNotAvailable.into())
    }

    fn enter(&self, key: LineKey) -> io::Result<()> {
        let mut table = self.0.table();
        if table.over {
            return Err(gone());
        }
        if table.keys.len() >= self.0.limits.lines {
            return Err(io::Error::other("there are as many conversations as may be"));
        }
        if !table.keys.insert(key) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(())
    }

    fn hand_over(&self, made: NewLine) {
        let mut table = self.0.table();
        if table.over {
            drop(table);
            // The driver has ended meanwhile.
            return made.device.hangup(Some(Fault::new(GONE)));
        }
        table.made.push(made);
        drop(table);
        self.0.wake();
    }
}

/// The error of a line whose link is gone.
pub(super) const GONE: &str = "the link has gone";

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the port is closed")
}

/// An announced port. Dropping it ends the announcement, and hangs up waiting calls.
pub struct Announced {
    port: Port,
    at: u16,
}

impl Announced {
    /// The port of the announcement.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Waits for the next call.
    pub async fn accept(&self) -> io::Result<Line> {
        poll_fn(|cx| {
            let mut table = self.port.0.table();
            if table.over {
                return Poll::Ready(Err(gone()));
            }
            let listen = table.listens.entry(self.at).or_default();
            match listen.calls.pop_front() {
                Some(line) => Poll::Ready(Ok(line)),
                None => {
                    listen.waiting.retain(|waker| !waker.will_wake(cx.waker()));
                    listen.waiting.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        let listen = self.port.0.table().listens.remove(&self.at);
        // Dropped without the lock: the lines hang up, which may run any code.
        drop(mem::take(&mut listen.unwrap_or_default().calls));
    }
}
