//! Remote servers: clients and servers at the two ends of a link with a given round trip and rate. The link is a delay
//! box, or relays if this machine cannot create one.
//!
//! In: programs and closures, each with its side. Out: their results over the link, and the measured properties of the
//! link.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nine_sim::delay::{DelayBox, Relay, Shape, Side};

use crate::child::ChildProcess;
use crate::server::SILENCE;
use crate::stats::median;

/// Both sides and the link between them.
pub struct RemoteLink {
    link: LinkKind,
    shape: Mutex<Shape>,
}

enum LinkKind {
    Box(DelayBox),
    /// Relays, each created when a client first asks for its server.
    Relays(Mutex<Vec<Relay>>),
}

/// Addresses without a box: of servers; and of relays, at the same port.
const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
const RELAYS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Datagrams to measure a round trip.
const PINGS: usize = 9;

/// The measured properties of a link.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredLink {
    pub rtt: Duration,
    /// Rate of a plain TCP connection, bytes per second.
    pub payload: f64,
}

impl RemoteLink {
    /// Creates a link without delay and limit.
    pub fn new() -> io::Result<Self> {
        let shape = Shape::default();
        let link = match DelayBox::new(shape) {
            Ok(made) => LinkKind::Box(made),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) =>
            {
                eprintln!("  {error}");
                LinkKind::Relays(Mutex::default())
            }
            Err(error) => return Err(error),
        };
        Ok(Self { link, shape: Mutex::new(shape) })
    }

    /// Describes the link for a report.
    pub fn note(&self) -> &'static str {
        match self.link {
            LinkKind::Box(_) => "link: a delay box of network name spaces and TUN devices",
            LinkKind::Relays(_) => {
                "link: NO DELAY BOX HERE: plain TCP relays delay and limit, but connections open without delay"
            }
        }
    }

    /// Sets the round trip, and the rate in bits per second in each direction.
    pub fn set(&self, rtt: Duration, rate: Option<u64>) {
        self.shape(Shape::symmetric(rtt, rate));
    }

    /// Sets all properties of the link.
    pub fn shape(&self, shape: Shape) {
        *locked(&self.shape) = shape;
        match &self.link {
            LinkKind::Box(link) => link.set(shape),
            LinkKind::Relays(relays) => locked(relays).iter().for_each(|relay| relay.set(shape)),
        }
    }

    /// Returns whether there is a box, which carries any IP packets.
    pub fn is_box(&self) -> bool {
        matches!(self.link, LinkKind::Box(_))
    }

    /// Returns the address of a side, as the other side sees it.
    pub fn address(&self, side: Side) -> Ipv4Addr {
        match &self.link {
            LinkKind::Box(link) => link.address(side),
            LinkKind::Relays(_) => LOCAL,
        }
    }

    /// Returns the address where servers listen.
    pub fn server(&self) -> Ipv4Addr {
        self.listen(Side::There)
    }

    /// Returns the address where servers of a side listen. Servers on the near side are for clients on that side.
    fn listen(&self, side: Side) -> Ipv4Addr {
        match (&self.link, side) {
            (LinkKind::Box(link), Side::There) => link.address(Side::There),
            _ => LOCAL,
        }
    }

    /// Returns a free port of a side.
    pub fn free_port(&self, side: Side) -> io::Result<u16> {
        let at = (self.listen(side), 0);
        Ok(self.run(side, || TcpListener::bind(at))??.local_addr()?.port())
    }

    /// Returns the address by which clients reach, over the link, the server at a port.
    pub fn reach(&self, port: u16) -> io::Result<SocketAddr> {
        let server = SocketAddr::from((self.server(), port));
        let LinkKind::Relays(relays) = &self.link else { return Ok(server) };
        let at = SocketAddr::from((RELAYS, port));
        let mut relays = locked(relays);
        if !relays.iter().any(|relay| relay.address() == at) {
            relays.push(Relay::new(at, server, *locked(&self.shape))?);
        }
        Ok(at)
    }

    /// Starts a program on a side, with its output in a file.
    pub fn start(&self, side: Side, words: &[OsString], log: &Path) -> io::Result<ChildProcess> {
        self.role(side, &[&["exec".into()], words].concat(), log)
    }

    /// Like [`RemoteLink::start`], with a role of this program.
    pub fn role(&self, side: Side, words: &[OsString], log: &Path) -> io::Result<ChildProcess> {
        let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
        ChildProcess::placed(&words, log, |command| match &self.link {
            LinkKind::Box(link) => link.command(side, command),
            LinkKind::Relays(_) => Ok(()),
        })
    }

    /// Runs `f` on a side, and waits for it.
    pub fn run<T: Send>(&self, side: Side, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        match &self.link {
            LinkKind::Box(link) => link.run(side, f),
            LinkKind::Relays(_) => Ok(f()),
        }
    }

    /// Waits until a started server accepts connections.
    pub fn wait_for(&self, child: &mut ChildProcess, side: Side, port: u16, log: &Path) -> io::Result<()> {
        let (begun, at) = (Instant::now(), (self.listen(side), port));
        while self.run(side, || TcpStream::connect(at))?.is_err() {
            if child.has_ended()? || begun.elapsed() > SILENCE {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                return Err(io::Error::other(format!(
                    "{}: it did not start: {}",
                    log.display(),
                    said.trim()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Returns the packets dropped at the link's full queue; 0 without a box.
    pub fn dropped(&self) -> u64 {
        match &self.link {
            LinkKind::Box(link) => [Side::Here, Side::There].map(|side| link.counts(side).full).iter().sum(),
            LinkKind::Relays(_) => 0,
        }
    }

    /// Measures the link: round trips when it is idle, and the transfer of `size` bytes from the far side over one
    /// connection.
    pub fn measure(&self, size: usize) -> io::Result<MeasuredLink> {
        let listener = self.run(Side::There, || TcpListener::bind((self.server(), 0)))??;
        let to = self.reach(listener.local_addr()?.port())?;
        let rtt = self.round_trip(&listener, to)?;
        let sender = std::thread::spawn(move || {
            let piece = vec![0; 256 << 10];
            let (mut stream, mut left) = (listener.accept()?.0, size);
            while left > 0 {
                left -= stream.write(&piece[..left.min(256 << 10)])?;
            }
            io::Result::Ok(())
        });
        let begun = Instant::now();
        let mut stream = self.run(Side::Here, || TcpStream::connect(to))??;
        let came = io::copy(&mut stream, &mut io::sink())?;
        let took = begun.elapsed();
        sender.join().map_err(|_| io::Error::other("the sender has panicked"))??;
        if came != size as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(MeasuredLink { rtt, payload: size as f64 / took.as_secs_f64() })
    }

    /// Returns the median of several round trips of one byte.
    fn round_trip(&self, listener: &TcpListener, to: SocketAddr) -> io::Result<Duration> {
        let LinkKind::Box(link) = &self.link else {
            let mut near = TcpStream::connect(to)?;
            let mut far = listener.accept()?.0;
            return middle(|| {
                near.write_all(&[0])?;
                far.read_exact(&mut [0])?;
                far.write_all(&[0])?;
                near.read_exact(&mut [0])
            });
        };
        let [near, far] = [Side::Here, Side::There]
            .map(|side| link.run(side, || UdpSocket::bind((link.address(side), 0))).and_then(|bound| bound));
        let (near, far) = (near?, far?);
        near.connect(far.local_addr()?)?;
        far.connect(near.local_addr()?)?;
        near.set_read_timeout(Some(SILENCE))?;
        far.set_read_timeout(Some(SILENCE))?;
        middle(|| {
            near.send(&[0])?;
            far.recv(&mut [0])?;
            far.send(&[0])?;
            near.recv(&mut [0]).map(drop)
        })
    }
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn middle(mut once: impl FnMut() -> io::Result<()>) -> io::Result<Duration> {
    let mut took = Vec::new();
    for _ in 0..PINGS {
        let begun = Instant::now();
        once()?;
        took.push(begun.elapsed().as_secs_f64());
    }
    Ok(Duration::from_secs_f64(median(&took).unwrap_or_default()))
}

impl fmt::Display for MeasuredLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabits = self.payload * 8.0 / 1e6;
        write!(f, "{:.2} ms, {megabits:.1} Mbit/s of payload", self.rtt.as_secs_f64() * 1e3)
    }
}
