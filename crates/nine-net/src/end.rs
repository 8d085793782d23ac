//! The operations of every socket end, independent of how it waits: open, configure, send, receive, shut down, and
//! identify the peer.
//!
//! In: resolved addresses, buffers. Out: plain non-blocking, close-on-exec sockets and results. `WouldBlock` is
//! returned to the caller, which knows how to wait (`socket` on the runtime, `poll` on the caller's thread).
//!
//! Always holds: no call here blocks, except [`lookup`], which documents it. No call raises SIGPIPE, except
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

/// An address before name resolution.
pub(crate) enum UnresolvedAddr<'a> {
    Known(SockAddr),
    Named(&'a str, u16),
}

/// Returns the address to dial for `addr`. Refuses `*`.
pub(crate) fn place(addr: &Addr) -> io::Result<UnresolvedAddr<'_>> {
    Ok(match addr {
        Addr::Il { .. } => return Err(no_stream("il")),
        Addr::Tcp { host, .. } | Addr::Tls { host, .. } if host == "*" => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "`*` is for listening; to dial, name a host",
            ));
        }
        Addr::Tcp { host, port } | Addr::Tls { host, port } => match host.parse::<IpAddr>() {
            Ok(ip) => UnresolvedAddr::Known(SocketAddr::new(ip, *port).into()),
            Err(_) => UnresolvedAddr::Named(host, *port),
        },
        Addr::Shm { .. } => return Err(no_stream("shared memory")),
        Addr::Unix { path } => UnresolvedAddr::Known(SockAddr::unix(path)?),
        Addr::Vsock { cid, port } => UnresolvedAddr::Known(SockAddr::vsock(*cid, *port)),
    })
}

/// The error for an address that has no stream sockets.
fn no_stream(what: &str) -> io::Error {
    let why = format!("{what} has no stream sockets: it cannot be used here yet");
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Resolves a name. Blocks for as long as the resolver does.
pub(crate) fn lookup(host: &str, port: u16) -> io::Result<Vec<SockAddr>> {
    Ok((host, port).to_socket_addrs().map_err(unknown)?.map(SockAddr::from).collect())
}

/// Classifies the resolver's errors, which have neither a number nor a kind.
pub(crate) fn unknown(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(_) => error,
        None => io::Error::new(io::ErrorKind::HostUnreachable, error.to_string()),
    }
}

/// Returns the address to listen on for `addr`. `*` is every address, of IPv6 and IPv4 if the machine has IPv6. A name
/// may block, as [`lookup`] does. IPv4 addresses are preferred, so that `localhost` works as expected.
pub(crate) fn listen_place(addr: &Addr) -> io::Result<SockAddr> {
    match addr {
        Addr::Tcp { host, port } | Addr::Tls { host, port } if host == "*" => {
            Ok(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), *port).into())
        }
        _ => match place(addr)? {
            UnresolvedAddr::Known(at) => Ok(at),
            UnresolvedAddr::Named(host, port) => {
                let found = lookup(host, port)?;
                let first = found.iter().find(|a| a.is_ipv4()).or(found.first());
                first.cloned().ok_or_else(|| io::Error::other(format!("{host} has no address")))
            }
        },
    }
}

/// Creates a stream socket for the family of `at`.
pub(crate) fn open(at: &SockAddr) -> io::Result<Socket> {
    Socket::new(at.domain(), Type::STREAM.nonblocking(), None)
}

/// Starts to connect. `WouldBlock`: the queue of a unix listener is full, try again later.
pub(crate) fn connect(to: &SockAddr) -> io::Result<Socket> {
    let socket = open(to)?;
    match socket.connect(to) {
        Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
        _ => Ok(socket),
    }
}

/// Completes a [`connect`]. `NotConnected`: not yet, wait until the socket is writable.
pub(crate) fn connected(socket: &Socket, to: &SockAddr) -> io::Result<Peer> {
    if let Some(e) = socket.take_error()? {
        return Err(e);
    }
    socket.peer_addr()?;
    // The peer may report a different name than the one dialled.
    dress(socket, to)
}

/// Sets the options of our streams, and returns the peer's identity.
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

/// Writes an address of the kernel as a dial string.
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

/// Sends some of `bufs`, of which it uses at most the first [`IOV_MAX`].
pub(crate) fn send(socket: &Socket, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
    let bufs = &bufs[..bufs.len().min(IOV_MAX)];
    retry(|| socket.send_vectored_with_flags(bufs, libc::MSG_NOSIGNAL))
}

/// The same, with the hint that more follows at once.
pub(crate) fn send_more(socket: &Socket, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
    let bufs = &bufs[..bufs.len().min(IOV_MAX)];
    retry(|| socket.send_vectored_with_flags(bufs, libc::MSG_NOSIGNAL | libc::MSG_MORE))
}

pub(crate) fn sendfile(socket: &Socket, file: BorrowedFd<'_>, mut at: u64, len: usize) -> io::Result<usize> {
    retry(|| Ok(rustix::fs::sendfile(socket, file, Some(&mut at), len)?))
}

/// Creates a kernel pipe for [`Transport::poll_splice_in`](crate::Transport::poll_splice_in). Returns its read and
/// write ends. Its size is [`PIPE_SIZE`], or less if the user's limit for pipes is reached.
pub fn kernel_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (out, inlet) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let _ = rustix::pipe::fcntl_setpipe_size(&inlet, PIPE_SIZE);
    Ok((out, inlet))
}

/// Moves pages of a file into an empty pipe, without a copy, until it has `len` bytes, is full, or the file ends.
/// Returns the number of bytes, 0 if the file system does not support it. The bytes stay in the pipe if the file
/// becomes shorter.
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

/// Size of a [`kernel_pipe`], in bytes.
pub const PIPE_SIZE: usize = 1 << 20;

/// Moves bytes from or into a pipe. Blocks on neither end.
pub(crate) fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    retry(|| Ok(rustix::pipe::splice(from, None, to, None, len, flags)?))
}

/// Whether nothing has been received, not even the end.
pub(crate) fn is_empty(socket: &Socket) -> bool {
    let mut byte = [std::mem::MaybeUninit::uninit()];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let seen = retry(|| socket.recv_with_flags(&mut byte, flags));
    seen.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
}

/// Signals the end to the peer. A peer that is gone already is no error.
pub(crate) fn close(socket: &Socket) -> io::Result<()> {
    match socket.shutdown(std::net::Shutdown::Write) {
        Err(e) if e.kind() != io::ErrorKind::NotConnected => Err(e),
        _ => Ok(()),
    }
}

/// Adds to an error what was tried, and on what. The kernel's error is its source ([`std::error::Error::source`]).
pub(crate) fn tried(what: impl Display, e: io::Error) -> io::Error {
    let text = format!("{what}: {e}");
    io::Error::new(e.kind(), FailedAddr { text, e })
}

#[derive(Debug)]
struct FailedAddr {
    text: String,
    e: io::Error,
}

impl Display for FailedAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for FailedAddr {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.e)
    }
}

/// The error of a dial that timed out.
pub(crate) fn too_late(timeout: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {timeout:?}"))
}

/// The time when `limit` will have passed; at most a year from now.
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

/// Maximum number of slices of one `sendmsg` (the kernel's `UIO_MAXIOV`). The caller sends the rest with its next call.
pub(crate) const IOV_MAX: usize = 1024;

/// The pause before a connect is tried again after a full queue refused it.
pub(crate) const BACKLOG_PAUSE: Duration = Duration::from_millis(10);

/// A TCP peer that vanished silently is noticed within two minutes.
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
