//! The seam: what the device server asks of a network, and the networks of this machine.
//!
//! In: texts written to a ctl, places. Out: calls and announced places. Nothing here blocks: names are looked up on
//! threads that may.

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
use super::datagrams::Running;
use super::policy::{Policy, Want};

/// What ends later, on the task of the [`Driver`](super::Driver).
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// One protocol: a directory of `/net`.
///
/// Concurrency: futures and [`Announced`]s are polled by one task; a [`Call`] is used from any core.
pub trait Network: Send + Sync + 'static {
    /// The name of the directory.
    fn name(&self) -> &'static str;

    /// The places that a text (`ADDRESS!PORT`, or what this network has) may mean, in the order in which they are
    /// tried. To announce, the host may be `*`, or missing. A name is looked up if who asks may have that.
    fn resolve(&self, text: &str, asks: &Asks) -> Later<io::Result<Vec<Place>>>;

    /// Where a place really is, links being followed; what may take its time.
    fn real(&self, place: Place, _want: Want) -> Later<io::Result<Place>> {
        Box::pin(ready(Ok(place)))
    }

    /// Calls, from the address of this end that is chosen, if one is: its port 0 is any that is free.
    fn dial(&self, to: Place, from: Option<Place>) -> Later<io::Result<Call>>;

    /// Takes calls from now on.
    fn announce(&self, at: Place) -> Later<io::Result<Box<dyn Announced>>>;
}

/// Who asks what a text means, and what he wants there.
#[derive(Clone)]
pub struct Asks {
    pub(super) policy: Arc<Policy>,
    pub(super) who: Arc<Who>,
    pub(super) want: Want,
}

impl Asks {
    /// The addresses of a host, a name being looked up if who asks may call beyond the loopback; on this network, if
    /// one is named. At least one.
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

/// Where a call goes, or is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An IP address (`::` is any) and a port (0 is any).
    Ip(SocketAddr),
    /// A unix socket.
    Path(PathBuf),
}

impl Place {
    /// What a text for the other end of a call to this place says: `PORT`, `ADDRESS!PORT` or `*!PORT`. Without an
    /// address it is the loopback for who calls that, else any.
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

    /// Whether the kernel chooses the port.
    pub(super) fn is_free(&self) -> bool {
        matches!(self, Self::Ip(at) if at.port() == 0)
    }

    /// The place of an IP address as `local` shows it.
    pub(super) fn of(shown: &str) -> Option<Self> {
        let (ip, port) = shown.split_once('!')?;
        Some(Self::Ip((ip.parse::<IpAddr>().ok()?, port.parse().ok()?).into()))
    }
}

impl fmt::Display for Place {
    /// As `local` and `remote` show it: address!port.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(at) => write!(f, "{}!{}", at.ip().to_canonical(), at.port()),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A call that has been made or taken.
pub struct Call {
    /// Its bytes or its messages.
    pub end: End,
    /// This end's address.
    pub local: String,
    /// The other end's.
    pub remote: String,
}

/// What carries a call.
pub enum End {
    /// A connection, on which modules can be pushed.
    Bytes(Box<dyn Wire>),
    /// A stream of messages.
    Messages(Box<Messages>),
}

/// A connection of which options can be set.
pub trait Wire: Transport {
    /// Sets it. An error of kind `Unsupported`: it has none of the kind.
    fn set(&mut self, option: Setting) -> io::Result<()>;
}

/// What a word of a ctl sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Asks the silent peer after this time whether it is there.
    Keepalive(Duration),
    /// Hops of a packet.
    Ttl(u8),
    /// The traffic class of packets.
    Tos(u8),
}

/// A line of messages and its places in both queues.
pub struct Messages {
    pub(super) line: Line,
    pub(super) reading: Reading,
    pub(super) putting: Putting,
    /// The message that is being put.
    pub(super) going: Option<Option<Chain>>,
    /// What a read does not take of a message is thrown away.
    pub(super) cuts: bool,
    /// What goes on with it when it is closed.
    pub(super) running: Option<Running>,
}

impl Messages {
    /// Of a line. `cuts`: they are datagrams, of which a read that is too short loses the rest.
    pub fn new(line: Line, cuts: bool) -> Self {
        let (reading, putting) = (line.stream.reading(), line.stream.putting());
        Self { line, reading, putting, going: None, cuts, running: None }
    }
}

/// A place where calls are taken.
pub trait Announced: Send {
    /// Where it really is: port 0 has become one.
    fn local(&self) -> String;

    /// Takes no calls, but all that comes to the place as one conversation, each datagram behind Plan 9's headers.
    /// An error of kind `Unsupported`: this network has none.
    fn headers(&mut self) -> io::Result<Call> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The next call. While descriptors are short it waits; an error is final.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Call>>;
}

/// TCP of this machine.
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

/// Unix sockets of this machine: an address is the path of one.
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
                // There is something: its queue of calls is full, and is waited for.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    Socket::connect(&addr(&to), PATIENCE).await?
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

/// A path as it is written, without what says nothing: the disk is not asked.
fn lexical(text: &str) -> io::Result<PathBuf> {
    let path = Path::new(text);
    if !path.is_absolute() {
        return Err(bad("the path of a unix socket begins with /"));
    }
    // The kernel would stop at a NUL, behind what has been judged.
    if text.contains(char::is_control) {
        return Err(bad("no control characters in the path of a unix socket"));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(bad("no way up in the path of a unix socket"));
    }
    Ok(path.components().collect())
}

/// Where a path of [`lexical`] really leads, so that a policy is asked about that.
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

/// A listener of this machine.
struct Bound(Listener);

impl Announced for Bound {
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
            // Who has gone by now has no address any more, and is passed over.
            let Ok(mut call) = call(accepted) else { continue };
            if let Addr::Unix { .. } = self.0.addr() {
                // The kernel knows it by the name that it was made with.
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
            _ => Socket::connect(&addr(&to), PATIENCE).await?,
        };
        Ok(Call { remote: to.to_string(), ..call(socket)? })
    })
}

/// A call to a unix socket: the kernel follows its path once more, which may take its time.
fn dial_path(at: &SocketAddrUnix) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&fd, at)?;
    Ok(fd)
}

/// A TCP connection from an address of this end. One that has ended there a moment ago is in nobody's way.
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
    // A write of nothing: it can be when the call has been taken, or has failed.
    poll_fn(|cx| socket.poll_write(cx, &[])).await?;
    socket.set(Setting::Keepalive(Duration::from_secs(60)))?;
    Ok(socket)
}

fn announce(at: &Place) -> Later<io::Result<Box<dyn Announced>>> {
    // It is an address or a path: there is no name to wait for.
    let bound = Listener::bind(&addr(at)).map(|listener| Box::new(Bound(listener)) as _);
    Box::pin(ready(bound))
}

fn call(socket: Socket) -> io::Result<Call> {
    let place = |end: SocketAddrAny| match SocketAddr::try_from(end.clone()) {
        Ok(ip) => Place::Ip(ip).to_string(),
        // Most ends of unix sockets have no name.
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

/// [`Network::resolve`] where an address is `HOST!PORT`: the host a name, an IP address, or `*`; the port a number or
/// what /etc/services calls one. `!r` behind it (a port below 1024 of one's own) is refused, and so is every port at
/// once (`*`), which Plan 9's kernel has and this one has not.
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
        // Linux takes "any address" for the loopback where it is dialled: it shall be judged as that.
        let meant = |ip: IpAddr| match ip.to_canonical() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) if !announces => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) if !announces => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Ok(found.into_iter().map(|ip| Place::Ip((meant(ip), port).into())).collect())
    })
}

/// The port of a service: those of 9P, then what this machine knows.
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

/// For a connection.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
