//! What every socket end does, whoever waits for it: open, dress, send, receive, shut down, and say who the
//! peer is.
//!
//! In: resolved addresses, buffers. Out: plain non-blocking, close-on-exec sockets and their answers;
//! `WouldBlock` is handed up to the end that knows how to wait (`socket` on the runtime, `poll` on the
//! caller's thread).
//!
//! Always holds: no call here blocks, except [`lookup`], which says so; no call raises SIGPIPE, except
//! [`sendfile`], for which the kernel has no such flag (Rust programs ignore the signal from their start).

use std::fmt::Display;
use std::io::{self, IoSlice, Read};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::pipe::SpliceFlags;
use socket2::{SockAddr, Socket, TcpKeepalive, Type};

use crate::dial::Addr;
use crate::transport::{Peer, Proof};

/// Where an address leads before any name is resolved.
pub(crate) enum Place<'a> {
    Known(SockAddr),
    Named(&'a str, u16),
}

/// What is to be dialled at `addr`; `*` is refused.
pub(crate) fn place(addr: &Addr) -> io::Result<Place<'_>> {
    Ok(match addr {
        Addr::Il { .. } => return Err(no_stream("il")),
        Addr::Tcp { host, .. } | Addr::Tls { host, .. } if host == "*" => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "`*` is for listening; to dial, name a host",
            ));
        }
        Addr::Tcp { host, port } | Addr::Tls { host, port } => match host.parse::<IpAddr>() {
            Ok(ip) => Place::Known(SocketAddr::new(ip, *port).into()),
            Err(_) => Place::Named(host, *port),
        },
        Addr::Shm { .. } => return Err(no_stream("shared memory")),
        Addr::Unix { path } => Place::Known(SockAddr::unix(path)?),
        Addr::Vsock { cid, port } => Place::Known(SockAddr::vsock(*cid, *port)),
    })
}

/// What is dialled or listened on as a stream socket, and is none.
fn no_stream(what: &str) -> io::Error {
    let why = format!("{what} has no stream sockets: it cannot be used here yet");
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Resolves a name. Blocks for as long as the resolver does.
pub(crate) fn lookup(host: &str, port: u16) -> io::Result<Vec<SockAddr>> {
    Ok((host, port).to_socket_addrs().map_err(unknown)?.map(SockAddr::from).collect())
}

/// The resolver's errors, which have neither number nor kind.
pub(crate) fn unknown(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(_) => error,
        None => io::Error::new(io::ErrorKind::HostUnreachable, error.to_string()),
    }
}

/// Where to listen for `addr`; `*` is every address, of IPv6 and IPv4 where the machine has IPv6. A name may
/// block, as [`lookup`] does; of its addresses an IPv4 one is preferred, so that `localhost` is what people
/// expect.
pub(crate) fn listen_place(addr: &Addr) -> io::Result<SockAddr> {
    match addr {
        Addr::Tcp { host, port } | Addr::Tls { host, port } if host == "*" => {
            Ok(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), *port).into())
        }
        _ => match place(addr)? {
            Place::Known(at) => Ok(at),
            Place::Named(host, port) => {
                let found = lookup(host, port)?;
                let first = found.iter().find(|a| a.is_ipv4()).or(found.first());
                first.cloned().ok_or_else(|| io::Error::other(format!("{host} has no address")))
            }
        },
    }
}

/// A new stream socket for the family of `at`.
pub(crate) fn open(at: &SockAddr) -> io::Result<Socket> {
    Socket::new(at.domain(), Type::STREAM.nonblocking(), None)
}

/// Begins to connect. `WouldBlock`: the queue of a unix listener is full, begin again later.
pub(crate) fn connect(to: &SockAddr) -> io::Result<Socket> {
    let socket = open(to)?;
    match socket.connect(to) {
        Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
        _ => Ok(socket),
    }
}

/// Ends what [`connect`] began. `NotConnected`: not yet, wait until the socket is writable.
pub(crate) fn connected(socket: &Socket, to: &SockAddr) -> io::Result<Peer> {
    if let Some(e) = socket.take_error()? {
        return Err(e);
    }
    socket.peer_addr()?;
    // The peer's own idea of its name may be another than the one it was dialled by.
    dress(socket, to)
}

/// Sets what our streams want and tells who the peer is.
pub(crate) fn dress(socket: &Socket, peer: &SockAddr) -> io::Result<Peer> {
    let proof = if peer.is_unix() {
        let cred = rustix::net::sockopt::socket_peercred(socket)?;
        Proof::Unix { uid: cred.uid.as_raw(), gid: cred.gid.as_raw() }
    } else {
        Proof::None
    };
    if peer.as_socket().is_some() {
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&KEEPALIVE)?;
    }
    Ok(Peer { addr: dial_string(peer), proof })
}

/// An address of the kernel as a dial string.
pub(crate) fn dial_string(at: &SockAddr) -> String {
    if let Some(ip) = at.as_socket() {
        return Addr::Tcp { host: ip.ip().to_canonical().to_string(), port: ip.port() }.to_string();
    }
    if let Some((cid, port)) = at.as_vsock_address() {
        return Addr::Vsock { cid, port }.to_string();
    }
    match at.as_pathname() {
        Some(path) => Addr::Unix { path: path.into() }.to_string(),
        None => "unix!".into(),
    }
}

pub(crate) fn recv(mut socket: &Socket, buf: &mut [u8]) -> io::Result<usize> {
    retry(|| socket.read(buf))
}

/// Sends some of `bufs`; of more than [`IOV_MAX`] slices the first ones.
pub(crate) fn send(socket: &Socket, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
    let bufs = &bufs[..bufs.len().min(IOV_MAX)];
    retry(|| socket.send_vectored_with_flags(bufs, libc::MSG_NOSIGNAL))
}

/// The same where more follows at once.
pub(crate) fn send_more(socket: &Socket, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
    let bufs = &bufs[..bufs.len().min(IOV_MAX)];
    retry(|| socket.send_vectored_with_flags(bufs, libc::MSG_NOSIGNAL | libc::MSG_MORE))
}

pub(crate) fn sendfile(socket: &Socket, file: BorrowedFd<'_>, mut at: u64, len: usize) -> io::Result<usize> {
    retry(|| Ok(rustix::fs::sendfile(socket, file, Some(&mut at), len)?))
}

/// A pipe of the kernel for [`Transport::poll_splice_in`](crate::Transport::poll_splice_in), read and written end, of
/// [`PIPE_SIZE`] bytes if the user may still have so many in pipes, else of less.
pub fn kernel_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (out, inlet) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let _ = rustix::pipe::fcntl_setpipe_size(&inlet, PIPE_SIZE);
    Ok((out, inlet))
}

/// Moves pages of a file into an empty pipe, without a copy, until it has `len` bytes, is full, or the file ends.
/// Returns the number of bytes, 0 if the file system cannot do it. They stay there if the file becomes shorter.
pub fn fill_pipe(file: BorrowedFd<'_>, mut offset: u64, inlet: &OwnedFd, len: usize) -> usize {
    let mut filled = 0;
    while filled < len {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let moved = rustix::pipe::splice(file, Some(&mut offset), inlet, None, len - filled, flags);
        match moved {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    filled
}

/// Bytes of a [`kernel_pipe`].
pub const PIPE_SIZE: usize = 1 << 20;

/// Moves bytes from or into a pipe; waits for neither end.
pub(crate) fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    retry(|| Ok(rustix::pipe::splice(from, None, to, None, len, flags)?))
}

/// Whether nothing has come, not even the end.
pub(crate) fn is_empty(socket: &Socket) -> bool {
    let mut byte = [std::mem::MaybeUninit::uninit()];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let seen = retry(|| socket.recv_with_flags(&mut byte, flags));
    seen.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
}

/// Tells the peer that nothing more will come. A peer that has gone already is no error.
pub(crate) fn close(socket: &Socket) -> io::Result<()> {
    match socket.shutdown(std::net::Shutdown::Write) {
        Err(e) if e.kind() != io::ErrorKind::NotConnected => Err(e),
        _ => Ok(()),
    }
}

/// The same error with words in front that say what was tried, on what. The kernel's number is in what it comes from
/// ([`std::error::Error::source`]).
pub(crate) fn tried(what: impl Display, e: io::Error) -> io::Error {
    let text = format!("{what}: {e}");
    io::Error::new(e.kind(), Tried { text, e })
}

#[derive(Debug)]
struct Tried {
    text: String,
    e: io::Error,
}

impl Display for Tried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Tried {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.e)
    }
}

/// The error of a dial that ran out of time.
pub(crate) fn too_late(timeout: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {timeout:?}"))
}

/// The moment when `limit` will have passed; a limit of more than a year is one of a year.
pub(crate) fn after(limit: Duration) -> Instant {
    Instant::now() + limit.min(Duration::from_secs(365 * 86_400))
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// The most slices one `sendmsg` takes (the kernel's `UIO_MAXIOV`); the caller sends the rest with its next
/// call.
pub(crate) const IOV_MAX: usize = 1024;

/// How long to wait before a connect is begun again that a full queue refused.
pub(crate) const BACKLOG_PAUSE: Duration = Duration::from_millis(10);

/// A TCP peer that vanished without a word is noticed within two minutes.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(20))
    .with_retries(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_kernel_read_as_dial_strings() {
        let tcp = |s: &str| dial_string(&s.parse::<SocketAddr>().expect("valid").into());
        assert_eq!(tcp("127.0.0.1:564"), "tcp!127.0.0.1!564");
        assert_eq!(tcp("[::ffff:10.0.0.1]:1"), "tcp!10.0.0.1!1");
        assert_eq!(tcp("[::1]:1"), "tcp!::1!1");
        assert_eq!(dial_string(&SockAddr::vsock(3, 564)), "vsock!3!564");
        assert_eq!(dial_string(&SockAddr::unix("/run/x").expect("short")), "unix!/run/x");
    }

    #[test]
    fn what_was_tried_is_said_and_the_number_is_known() {
        let error = tried("tcp!h!1", io::Error::from_raw_os_error(libc::EMFILE));
        let source = std::error::Error::source(&error).or_else(|| error.get_ref()?.source());
        let number = source.and_then(|source| source.downcast_ref::<io::Error>()?.raw_os_error());
        assert_eq!(number, Some(libc::EMFILE));
        assert!(error.to_string().starts_with("tcp!h!1: Too many open files"));
    }

    #[test]
    fn a_star_is_not_dialled() {
        let addr: Addr = "tcp!*!564".parse().expect("valid");
        assert!(place(&addr).is_err_and(|e| e.to_string().contains("for listening")));
    }
}
