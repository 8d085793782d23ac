//! Links of this machine: UDP, and IP itself.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recvfrom, sendmsg_addr};
use socket2::{Domain, Protocol, Socket, Type};

use super::Link;
use crate::socket::AsyncFd;
use crate::sys;

/// Bytes that the kernel keeps of what comes and goes, if it may.
const BUFFER: usize = 4 << 20;
/// il's number in IP.
const IL: i32 = 40;
/// Bytes of the smallest packet that every way takes.
const SAFE: usize = 1280;

/// A UDP socket.
pub struct Udp {
    fd: AsyncFd<Socket>,
    local: SocketAddr,
}

impl Udp {
    /// Bound to `at`; port 0: any. The unspecified address of IPv6 takes IPv4, too, where the machine has IPv6.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn bind(at: SocketAddr) -> io::Result<Self> {
        let open = |at: SocketAddr| -> io::Result<Socket> {
            let socket =
                Socket::new(Domain::for_address(at), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
            if at.is_ipv6() && at.ip().is_unspecified() {
                socket.set_only_v6(false)?;
            }
            roomy(&socket);
            socket.bind(&at.into())?;
            Ok(socket)
        };
        let socket = match open(at) {
            // A machine without IPv6.
            Err(e) if at.ip().is_unspecified() && e.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
                open((Ipv4Addr::UNSPECIFIED, at.port()).into())?
            }
            done => done?,
        };
        let local = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { fd: sys::register(socket)?, local })
    }
}

/// Asks for room in the kernel; it gives what it may.
fn roomy(socket: &Socket) {
    let _ = socket.set_recv_buffer_size(BUFFER);
    let _ = socket.set_send_buffer_size(BUFFER);
}

/// Bytes of a packet on the way to `to`.
fn mtu(to: SocketAddr) -> usize {
    let ask = || {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
        let port = if to.port() == 0 { 1 } else { to.port() };
        socket.connect(&SocketAddr::new(to.ip(), port).into())?;
        sys::path_mtu(&socket, to.is_ipv6())
    };
    ask().unwrap_or(SAFE).clamp(SAFE, 1 << 16)
}

fn header(to: SocketAddr) -> usize {
    if to.is_ipv6() { 40 } else { 20 }
}

fn poll_send(
    fd: &AsyncFd<Socket>,
    cx: &mut Context<'_>,
    parts: &[IoSlice<'_>],
    to: SocketAddr,
) -> Poll<io::Result<()>> {
    loop {
        let mut guard = ready!(fd.poll_write_ready(cx))?;
        let mut nothing = SendAncillaryBuffer::default();
        match sendmsg_addr(guard.get_inner(), &to, parts, &mut nothing, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
            Err(rustix::io::Errno::INTR) => {}
            done => return Poll::Ready(done.map(drop).map_err(io::Error::from)),
        }
    }
}

fn poll_recv(
    fd: &AsyncFd<Socket>,
    cx: &mut Context<'_>,
    buf: &mut [u8],
) -> Poll<io::Result<(usize, SocketAddr)>> {
    loop {
        let mut guard = ready!(fd.poll_read_ready(cx))?;
        match recvfrom(guard.get_inner(), &mut *buf, RecvFlags::empty()) {
            Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
            Err(rustix::io::Errno::INTR) => {}
            Ok((n, _, from)) => {
                let Some(from) = from.and_then(|from| SocketAddr::try_from(from).ok()) else { continue };
                return Poll::Ready(Ok((n, from)));
            }
            Err(error) => return Poll::Ready(Err(error.into())),
        }
    }
}

impl Link for Udp {
    fn poll_recv(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<(usize, SocketAddr)>> {
        poll_recv(&self.fd, cx, buf)
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
        to: SocketAddr,
    ) -> Poll<io::Result<()>> {
        // A socket of IPv6 wants its own kind of address.
        let to = match to.ip() {
            IpAddr::V4(ip) if self.local.is_ipv6() => SocketAddr::new(ip.to_ipv6_mapped().into(), to.port()),
            _ => to,
        };
        poll_send(&self.fd, cx, parts, to)
    }

    fn local(&self) -> SocketAddr {
        self.local
    }

    fn largest(&self) -> Arc<dyn Fn(SocketAddr) -> usize + Send + Sync> {
        Arc::new(|to| (mtu(to) - header(to) - 8).min(65_507))
    }

    fn has_sums(&self) -> bool {
        true
    }
}

/// il on IP itself, protocol 40; of IPv4. An address has port 0.
pub struct Raw {
    fd: AsyncFd<Socket>,
    local: SocketAddr,
}

impl Raw {
    /// Bound to `at`. `PermissionDenied`: that takes the capability CAP_NET_RAW.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn bind(at: Ipv4Addr) -> io::Result<Self> {
        let kind = Type::RAW.nonblocking();
        let socket =
            Socket::new(Domain::IPV4, kind, Some(Protocol::from(IL))).map_err(|e| match e.kind() {
                io::ErrorKind::PermissionDenied => io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "il on IP itself takes CAP_NET_RAW; il over UDP takes nothing",
                ),
                _ => e,
            })?;
        roomy(&socket);
        let local = SocketAddr::new(at.into(), 0);
        socket.bind(&local.into())?;
        Ok(Self { fd: sys::register(socket)?, local })
    }
}

impl Link for Raw {
    fn poll_recv(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<(usize, SocketAddr)>> {
        loop {
            let (n, from) = ready!(poll_recv(&self.fd, cx, buf))?;
            // The header of IP comes, too.
            let header = usize::from(buf.first().copied().unwrap_or(0) & 15) * 4;
            if (20..=n).contains(&header) {
                buf.copy_within(header..n, 0);
                return Poll::Ready(Ok((n - header, SocketAddr::new(from.ip(), 0))));
            }
        }
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
        to: SocketAddr,
    ) -> Poll<io::Result<()>> {
        poll_send(&self.fd, cx, parts, SocketAddr::new(to.ip(), 0))
    }

    fn local(&self) -> SocketAddr {
        self.local
    }

    fn largest(&self) -> Arc<dyn Fn(SocketAddr) -> usize + Send + Sync> {
        Arc::new(|to| mtu(to).min(65_535) - header(to))
    }

    fn has_sums(&self) -> bool {
        false
    }
}
