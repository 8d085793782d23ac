//! The network interface: the operations the server needs from a network, and the networks of this machine.
//!
//! In: texts written to a ctl, places. Out: calls and announced places. Nothing here blocks; names are looked up on
//! threads.

use std::fmt;
use std::future::{Future, poll_fn, ready};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use nine_io::server::Who;
use nine_net::datagram::Line;
use nine_net::{Addr, Listener, Peer, Proof, Socket, Transport, rt};
use nine_stream::{Chain, Putting, Reading};
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::aside::aside;
use super::datagrams::DatagramCallDriver;
use super::policy::{Policy, Want};

/// A future that runs on the task of the [`Driver`](super::Driver).
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// One protocol: a directory of `/net`.
///
/// Concurrency: futures and [`Announced`]s are polled by one task; a [`Call`] is used from any core.
pub trait Network: Send + Sync + 'static {
    /// The name of the directory.
    fn name(&self) -> &'static str;

    /// Returns the places that a text (`ADDRESS!PORT`, or a syntax of this network) may mean, in the order to try
    /// them. For an announce the host may be `*` or missing. A name is looked up only if the policy allows it to the
    /// client.
    fn resolve(&self, text: &str, asks: &Asks) -> Later<io::Result<Vec<Place>>>;

    /// Returns the place with symbolic links resolved. May wait for the disk.
    fn real(&self, place: Place, _want: Want) -> Later<io::Result<Place>> {
        Box::pin(ready(Ok(place)))
    }

    /// Connects to `to`. `from` is the local address; its port 0 means any free port.
    fn dial(&self, to: Place, from: Option<Place>) -> Later<io::Result<Call>>;

    /// Starts to accept calls at a place.
    fn announce(&self, at: Place) -> Later<io::Result<Box<dyn Announced>>>;
}

/// The client that asks to resolve a text, and its intention.
#[derive(Clone)]
pub struct Asks {
    pub(super) policy: Arc<Policy>,
    pub(super) who: Arc<Who>,
    pub(super) want: Want,
}

impl Asks {
    /// Returns the addresses of a host, at least one. A name is looked up if the client may dial beyond the loopback,
    /// on `network` if one is given.
    pub(super) async fn addresses(&self, host: &str, network: Option<&str>) -> io::Result<Vec<IpAddr>> {
        if let Ok(ip) = host.parse() {
            return Ok(vec![ip]);
        }
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/') {
            return Err(bad("the name of a host has no blanks, no control characters and no / in it"));
        }
        self.policy.check_name(host, network, &self.who).map_err(io::Error::other)?;
        let found = rt::resolve(host).await.map_err(|_| unknown_host(host))?;
        if found.is_empty() { Err(unknown_host(host)) } else { Ok(found) }
    }
}

/// The address of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An IP address (`::` is any) and a port (0 is any).
    Ip(SocketAddr),
    /// A unix socket.
    Path(PathBuf),
}

impl Place {
    /// Parses the local address of a call to this place: `PORT`, `ADDRESS!PORT` or `*!PORT`. Without an address it is
    /// that of the loopback if the call goes there, else any.
    pub(super) fn opposite(&self, text: &str) -> io::Result<Self> {
        let Self::Ip(to) = self else { return Err(bad("the local address cannot be chosen here")) };
        let any = match to.ip() {
            ip if ip.is_loopback() => ip,
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let (host, port) = text.split_once('!').unwrap_or(("*", text));
        let ip = if host == "*" { Some(any) } else { host.parse().ok().map(|ip: IpAddr| ip.to_canonical()) };
        match (ip, port.parse()) {
            (Some(ip), Ok(port)) if ip.is_ipv4() == to.is_ipv4() => Ok(Self::Ip((ip, port).into())),
            (Some(_), Ok(_)) => Err(bad("the local address is not of the other end's family")),
            _ => Err(bad("bad local address: write ADDRESS!PORT or PORT, in numbers")),
        }
    }

    /// Returns whether the kernel chooses the port.
    pub(super) fn is_free(&self) -> bool {
        matches!(self, Self::Ip(at) if at.port() == 0)
    }

    /// Parses an IP address and port as `local` shows them.
    pub(super) fn of(shown: &str) -> Option<Self> {
        let (ip, port) = shown.split_once('!')?;
        Some(Self::Ip((ip.parse::<IpAddr>().ok()?, port.parse().ok()?).into()))
    }
}

impl fmt::Display for Place {
    /// Formats it as `local` and `remote` show it: address!port.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(at) => write!(f, "{}!{}", at.ip().to_canonical(), at.port()),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A connected call, outgoing or incoming.
pub struct Call {
    /// Its bytes or its messages.
    pub end: End,
    /// This end's address.
    pub local: String,
    /// The other end's address.
    pub remote: String,
}

/// The transport of a call.
pub enum End {
    /// A connection, on which modules can be pushed.
    Bytes(Box<dyn Wire>),
    /// A stream of messages.
    Messages(Box<Messages>),
}

/// A connection with options.
pub trait Wire: Transport {
    /// Sets an option. An error of kind `Unsupported` if the connection does not have it.
    fn set(&mut self, option: Setting) -> io::Result<()>;
}

/// An option set by a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Probes an idle peer after this time; zero turns probes off.
    Keepalive(Duration),
    /// The hop limit of packets.
    Ttl(u8),
    /// The traffic class of packets.
    Tos(u8),
}

/// A message line with its read and write positions.
pub struct Messages {
    pub(super) line: Line,
    pub(super) reading: Reading,
    pub(super) putting: Putting,
    /// The message being put.
    pub(super) going: Option<Option<Chain>>,
    /// The part of a message that a read does not take is discarded.
    pub(super) cuts: bool,
    /// The driver that continues after the close.
    pub(super) running: Option<DatagramCallDriver>,
}

impl Messages {
    /// Wraps a line. `cuts`: messages are datagrams, and a short read loses the rest of one.
    pub fn new(line: Line, cuts: bool) -> Self {
        let (reading, putting) = (line.stream.reading(), line.stream.putting());
        Self { line, reading, putting, going: None, cuts, running: None }
    }
}

/// A place that accepts calls.
pub trait Announced: Send {
    /// Returns the actual address, with the port the kernel has chosen.
    fn local(&self) -> String;

    /// Turns the place into one conversation of all its datagrams, each preceded by Plan 9's headers. No more calls
    /// are accepted. An error of kind `Unsupported` if this network has no headers.
    fn headers(&mut self) -> io::Result<Call> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the next call. It waits while descriptors are exhausted. An error is final.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Call>>;
}

/// TCP on this machine.
pub struct Tcp;

impl Network for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn resolve(&self, text: &str, asks: &Asks) -> Later<io::Result<Vec<Place>>> {
        resolve_ip(text, asks, "tcp")
    }

    fn dial(&self, to: Place, from: Option<Place>) -> Later<io::Result<Call>> {
        dial(to, from)
    }

    fn announce(&self, at: Place) -> Later<io::Result<Box<dyn Announced>>> {
        announce(&at)
    }
}

/// Unix sockets on this machine; an address is a path.
pub struct Unix;

impl Network for Unix {
    fn name(&self) -> &'static str {
        "unix"
    }

    fn resolve(&self, text: &str, _: &Asks) -> Later<io::Result<Vec<Place>>> {
        Box::pin(ready(lexical(text).map(|path| vec![Place::Path(path)])))
    }

    fn real(&self, place: Place, want: Want) -> Later<io::Result<Place>> {
        match place {
            Place::Path(path) => Box::pin(aside(move || real(&path, want).map(Place::Path))),
            Place::Ip(_) => Box::pin(ready(Ok(place))),
        }
    }

    fn dial(&self, to: Place, _: Option<Place>) -> Later<io::Result<Call>> {
        Box::pin(async move {
            let Place::Path(path) = &to else { return Err(io::ErrorKind::InvalidInput.into()) };
            let at = SocketAddrUnix::new(path)?;
            let socket = match aside(move || dial_path(&at)).await {
                // The socket exists but its backlog is full: wait.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    Socket::connect(&addr(&to), CONNECT_TIMEOUT).await?
                }
                fd => Socket::from_parts(fd?, Peer { addr: format!("unix!{to}"), proof: Proof::None })?,
            };
            Ok(Call { remote: to.to_string(), ..call(socket)? })
        })
    }

    fn announce(&self, at: Place) -> Later<io::Result<Box<dyn Announced>>> {
        announce(&at)
    }
}

/// Normalizes a path as written. The disk is not read.
fn lexical(text: &str) -> io::Result<PathBuf> {
    let path = Path::new(text);
    if !path.is_absolute() {
        return Err(bad("the path of a unix socket begins with /"));
    }
    // The kernel would end the path at a NUL, after the check.
    if text.contains(char::is_control) {
        return Err(bad("no control characters in the path of a unix socket"));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(bad("no way up in the path of a unix socket"));
    }
    Ok(path.components().collect())
}

/// Resolves the links of a path of [`lexical`], for the policy check.
fn real(path: &Path, want: Want) -> io::Result<PathBuf> {
    let real = match (want, path.parent(), path.file_name()) {
        (Want::Announce, Some(dir), Some(name)) => dir.canonicalize().map(|dir| dir.join(name)),
        _ => path.canonicalize(),
    };
    real.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            io::Error::new(error.kind(), format!("{}: there is no such file", path.display()))
        }
        _ => error,
    })
}

impl Wire for Socket {
    fn set(&mut self, option: Setting) -> io::Result<()> {
        let Ok(at) = SocketAddr::try_from(rustix::net::getsockname(&*self)?) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let is_v4 = at.ip().to_canonical().is_ipv4();
        match option {
            Setting::Keepalive(Duration::ZERO) => sockopt::set_socket_keepalive(&*self, false)?,
            Setting::Keepalive(after) => {
                // The kernel counts in seconds.
                sockopt::set_tcp_keepidle(&*self, after.max(Duration::from_secs(1)))?;
                sockopt::set_socket_keepalive(&*self, true)?;
            }
            Setting::Ttl(hops) if is_v4 => sockopt::set_ip_ttl(&*self, hops.into())?,
            Setting::Ttl(hops) => sockopt::set_ipv6_unicast_hops(&*self, Some(hops))?,
            Setting::Tos(class) if is_v4 => sockopt::set_ip_tos(&*self, class)?,
            Setting::Tos(class) => sockopt::set_ipv6_tclass(&*self, class.into())?,
        }
        Ok(())
    }
}

/// A listener on this machine.
struct LocalListener(Listener);

impl Announced for LocalListener {
    fn local(&self) -> String {
        match self.0.addr() {
            Addr::Unix { path } => path.display().to_string(),
            Addr::Tcp { host, port } if host == "*" => format!("::!{port}"),
            Addr::Tcp { host, port } => format!("{host}!{port}"),
            other => other.to_string(),
        }
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Call>> {
        loop {
            let accepted = std::task::ready!(self.0.poll_accept(cx, &rt::Real))?;
            // A peer that has gone has no address any more. Skip it.
            let Ok(mut call) = call(accepted) else { continue };
            if let Addr::Unix { .. } = self.0.addr() {
                // The kernel knows the socket by the name it was created with.
                call.local = self.local();
            }
            return Poll::Ready(Ok(call));
        }
    }
}

fn dial(to: Place, from: Option<Place>) -> Later<io::Result<Call>> {
    Box::pin(async move {
        let socket = match (&to, from) {
            (Place::Ip(to), Some(Place::Ip(from))) => dial_from(*to, from).await?,
            _ => Socket::connect(&addr(&to), CONNECT_TIMEOUT).await?,
        };
        Ok(Call { remote: to.to_string(), ..call(socket)? })
    })
}

/// Connects to a unix socket. The kernel resolves the path once more, which may wait for the disk.
fn dial_path(at: &SocketAddrUnix) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&fd, at)?;
    Ok(fd)
}

/// Opens a TCP connection from a local address. A recently closed connection there does not prevent that.
async fn dial_from(to: SocketAddr, from: SocketAddr) -> io::Result<Socket> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    sockopt::set_tcp_nodelay(&fd, true)?;
    rustix::net::bind(&fd, &from)?;
    match rustix::net::connect(&fd, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let mut socket = Socket::from_parts(fd, Peer { addr: format!("tcp!{to}"), proof: Proof::None })?;
    // An empty write is ready when the connection is established or has failed.
    poll_fn(|cx| socket.poll_write(cx, &[])).await?;
    socket.set(Setting::Keepalive(Duration::from_secs(60)))?;
    Ok(socket)
}

fn announce(at: &Place) -> Later<io::Result<Box<dyn Announced>>> {
    // It is an address or a path, so there is no lookup to wait for.
    let bound = Listener::bind(&addr(at)).map(|listener| Box::new(LocalListener(listener)) as _);
    Box::pin(ready(bound))
}

fn call(socket: Socket) -> io::Result<Call> {
    let place = |end: SocketAddrAny| match SocketAddr::try_from(end.clone()) {
        Ok(ip) => Place::Ip(ip).to_string(),
        // Most unix sockets have no name.
        Err(_) => SocketAddrUnix::try_from(end)
            .ok()
            .and_then(|at| Some(String::from_utf8_lossy(at.path_bytes()?).into_owned()))
            .unwrap_or_default(),
    };
    let local = place(rustix::net::getsockname(&socket)?);
    let remote = rustix::net::getpeername(&socket)?.map(place).unwrap_or_default();
    Ok(Call { end: End::Bytes(Box::new(socket)), local, remote })
}

fn addr(place: &Place) -> Addr {
    match place {
        Place::Ip(at) if at.ip() == Ipv6Addr::UNSPECIFIED => Addr::Tcp { host: "*".into(), port: at.port() },
        Place::Ip(at) => Addr::Tcp { host: at.ip().to_string(), port: at.port() },
        Place::Path(path) => Addr::Unix { path: path.clone() },
    }
}

/// Implements [`Network::resolve`] for addresses `HOST!PORT`. The host is a name, an IP address, or `*`; the port is
/// a number or a name of /etc/services. Refused are `!r` after it (a local port below 1024), and `*` as the port:
/// Plan 9's kernel can accept calls to every port, and Linux cannot.
pub(super) fn resolve_ip(text: &str, asks: &Asks, protocol: &'static str) -> Later<io::Result<Vec<Place>>> {
    let announces = asks.want == Want::Announce;
    let parts: Vec<&str> = text.split('!').collect();
    let (host, service) = match parts[..] {
        [service] if announces => ("*", service),
        ["", service] | ["*", service] if announces => ("*", service),
        [host, service] if !host.is_empty() && host != "*" => (host, service),
        [_, _, "r"] => return Box::pin(ready(Err(bad("ports of one's own cannot be asked for")))),
        _ => return Box::pin(ready(Err(bad("bad address: write ADDRESS!PORT")))),
    };
    let (host, service, asks) = (host.to_owned(), service.to_owned(), asks.clone());
    Box::pin(async move {
        let port = match service.parse() {
            Ok(port) => port,
            Err(_) if service == "*" => {
                return Err(bad("calls to every port cannot be taken here; port 0 is any that is free"));
            }
            Err(_) => port(&service, protocol).ok_or_else(|| bad(&format!("unknown service {service}")))?,
        };
        if host == "*" {
            return Ok(vec![Place::Ip((Ipv6Addr::UNSPECIFIED, port).into())]);
        }
        let found = asks.addresses(&host, Some(protocol)).await?;
        // Linux dials the loopback for an unspecified address. The policy must judge it as that.
        let meant = |ip: IpAddr| match ip.to_canonical() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) if !announces => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) if !announces => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Ok(found.into_iter().map(|ip| Place::Ip((meant(ip), port).into())).collect())
    })
}

/// Returns the port of a service: those of 9P, then those of /etc/services.
fn port(service: &str, protocol: &str) -> Option<u16> {
    let known =
        [("9fs", "tcp", 564), ("9fs", "il", 17008), ("exportfs", "tcp", 17007), ("exportfs", "il", 17007)];
    if let Some((.., port)) = known.iter().find(|(name, of, _)| (*name, *of) == (service, protocol)) {
        return Some(*port);
    }
    let protocol = if protocol == "il" { "tcp" } else { protocol };
    static SERVICES: OnceLock<String> = OnceLock::new();
    let services = SERVICES.get_or_init(|| std::fs::read_to_string("/etc/services").unwrap_or_default());
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (name, number) = (words.next()?, words.next()?);
        let (port, of) = number.split_once('/')?;
        let is_it = of == protocol && (name == service || words.any(|alias| alias == service));
        is_it.then(|| port.parse().ok()).flatten()
    })
}

fn unknown_host(host: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("can't translate address: {host} is not known"))
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.to_owned())
}

/// The timeout of a connect.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
