//! Servers far away: clients and servers at the two ends of a link whose round trip and rate are set. A delay box, or
//! relays where this host makes none.
//!
//! In: programs and closures, each with its side. Out: what they do over the link, and what the link is really like.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nine_sim::delay::{DelayBox, Relay, Shape, Side};

use crate::child::Child;
use crate::server::SILENCE;
use crate::stats::median;

/// Both sides and the link between them.
pub struct Far {
    link: Link,
    shape: Mutex<Shape>,
}

enum Link {
    Box(DelayBox),
    /// Made when the first client asks for their servers.
    Relays(Mutex<Vec<Relay>>),
}

/// Where servers listen and where relays do, without a box: the same port of another address.
const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
const RELAYS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Datagrams that measure a round trip.
const PINGS: usize = 9;

/// What a link is really like.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub rtt: Duration,
    /// Bytes per second of a plain TCP connection.
    pub payload: f64,
}

impl Far {
    /// A link without delay and limit.
    pub fn new() -> io::Result<Self> {
        let shape = Shape::default();
        let link = match DelayBox::new(shape) {
            Ok(made) => Link::Box(made),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) =>
            {
                eprintln!("  {error}");
                Link::Relays(Mutex::default())
            }
            Err(error) => return Err(error),
        };
        Ok(Self { link, shape: Mutex::new(shape) })
    }

    /// What to say of it in a report.
    pub fn note(&self) -> &'static str {
        match self.link {
            Link::Box(_) => "link: a delay box of network name spaces and TUN devices",
            Link::Relays(_) => {
                "link: NO DELAY BOX HERE: plain TCP relays delay and limit, but connections open without delay"
            }
        }
    }

    /// Gives the link another round trip, and a rate in bits per second each way.
    pub fn set(&self, rtt: Duration, rate: Option<u64>) {
        self.shape(Shape::symmetric(rtt, rate));
    }

    /// Gives it another shape.
    pub fn shape(&self, shape: Shape) {
        *locked(&self.shape) = shape;
        match &self.link {
            Link::Box(link) => link.set(shape),
            Link::Relays(relays) => locked(relays).iter().for_each(|relay| relay.set(shape)),
        }
    }

    /// Whether there is a box, which carries any packets of IP.
    pub fn is_box(&self) -> bool {
        matches!(self.link, Link::Box(_))
    }

    /// The address of a side, as the other one sees it.
    pub fn address(&self, side: Side) -> Ipv4Addr {
        match &self.link {
            Link::Box(link) => link.address(side),
            Link::Relays(_) => LOCAL,
        }
    }

    /// Where servers listen.
    pub fn server(&self) -> Ipv4Addr {
        self.listen(Side::There)
    }

    /// Where servers of a side listen: those of the near one are for itself.
    fn listen(&self, side: Side) -> Ipv4Addr {
        match (&self.link, side) {
            (Link::Box(link), Side::There) => link.address(Side::There),
            _ => LOCAL,
        }
    }

    /// A port on which no server of a side listens yet.
    pub fn free_port(&self, side: Side) -> io::Result<u16> {
        let at = (self.listen(side), 0);
        Ok(self.run(side, || TcpListener::bind(at))??.local_addr()?.port())
    }

    /// Where clients find, at the other end of the link, the server that listens at a port.
    pub fn reach(&self, port: u16) -> io::Result<SocketAddr> {
        let server = SocketAddr::from((self.server(), port));
        let Link::Relays(relays) = &self.link else { return Ok(server) };
        let at = SocketAddr::from((RELAYS, port));
        let mut relays = locked(relays);
        if !relays.iter().any(|relay| relay.address() == at) {
            relays.push(Relay::new(at, server, *locked(&self.shape))?);
        }
        Ok(at)
    }

    /// Starts a program on a side, its output in a file.
    pub fn start(&self, side: Side, words: &[OsString], log: &Path) -> io::Result<Child> {
        self.role(side, &[&["exec".into()], words].concat(), log)
    }

    /// The same with a role of this program.
    pub fn role(&self, side: Side, words: &[OsString], log: &Path) -> io::Result<Child> {
        let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
        Child::placed(&words, log, |command| match &self.link {
            Link::Box(link) => link.command(side, command),
            Link::Relays(_) => Ok(()),
        })
    }

    /// Runs `f` on a side, and waits for it.
    pub fn run<T: Send>(&self, side: Side, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        match &self.link {
            Link::Box(link) => link.run(side, f),
            Link::Relays(_) => Ok(f()),
        }
    }

    /// Waits until a server that was started takes connections.
    pub fn wait_for(&self, child: &mut Child, side: Side, port: u16, log: &Path) -> io::Result<()> {
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

    /// Packets that found the link's queue full so far; without a box nobody counts.
    pub fn dropped(&self) -> u64 {
        match &self.link {
            Link::Box(link) => [Side::Here, Side::There].map(|side| link.counts(side).full).iter().sum(),
            Link::Relays(_) => 0,
        }
    }

    /// Measures the link as it is: round trips of an empty link, and `size` bytes from there to here over one
    /// connection, which is what the link lets through of any protocol.
    pub fn measure(&self, size: usize) -> io::Result<Measured> {
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
        Ok(Measured { rtt, payload: size as f64 / took.as_secs_f64() })
    }

    /// The middle one of several round trips of one byte.
    fn round_trip(&self, listener: &TcpListener, to: SocketAddr) -> io::Result<Duration> {
        let Link::Box(link) = &self.link else {
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

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabits = self.payload * 8.0 / 1e6;
        write!(f, "{:.2} ms, {megabits:.1} Mbit/s of payload", self.rtt.as_secs_f64() * 1e3)
    }
}
