//! Links of this machine: UDP, and bare IP.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::{Domain, Protocol, Socket, Type};

use super::{DATAGRAMS_AT_ONCE, Link, Room, wide};
use crate::socket::{AsyncFd, Interest};
use crate::sys;

/// Size of the kernel's buffers, if it allows that much. In bytes.
const BUFFER: usize = 4 << 20;
/// The IP protocol number of il.
const IL: i32 = 40;
/// Bytes of a packet that fits every path.
const SAFE: usize = 1280;
/// After this many sends without blocking, the socket is no longer registered for writing.
const CALM: u32 = 64;

/// A datagram socket, registered for reading. It is registered for writing only after a send has blocked. Otherwise the
/// kernel would report the room after every sent datagram, which would wake the task needlessly.
struct RegisteredSocket {
    fd: AsyncFd<Socket>,
    /// The same socket, registered for writing after a send has blocked, and the sends since then.
    full: Option<(AsyncFd<Socket>, u32)>,
}

impl RegisteredSocket {
    fn new(socket: Socket) -> io::Result<Self> {
        Ok(Self { fd: sys::register_for(socket, Interest::READABLE)?, full: None })
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>, rooms: &mut [Room<'_>]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            match sys::recv_many(guard.get_inner(), rooms) {
                Ok(n) => {
                    if n < rooms.len().min(DATAGRAMS_AT_ONCE) {
                        // There were no more. After an error in the middle some may be left, until the next one
                        // arrives.
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(n));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
        to: SocketAddr,
        mut here: Option<IpAddr>,
    ) -> Poll<io::Result<()>> {
        loop {
            match sys::send_from(self.fd.get_ref(), parts, to, here) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.full.is_none() {
                        let again = self.fd.get_ref().try_clone()?;
                        self.full = Some((sys::register_for(again, Interest::WRITABLE)?, 0));
                    }
                    if let Some((full, gone)) = &mut self.full {
                        *gone = 0;
                        ready!(full.poll_write_ready(cx))?.clear_ready();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // We cannot send from this address: the datagram came to a broadcast or multicast address.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) && here.is_some() => here = None,
                done => {
                    if let Some((_, gone)) = &mut self.full {
                        *gone += 1;
                        if *gone == CALM {
                            self.full = None;
                        }
                    }
                    return Poll::Ready(done);
                }
            }
        }
    }
}

/// Sets the buffer sizes as far as the kernel allows, and permits fragmentation. Without it a path with a smaller MTU
/// than expected would drop all large datagrams.
fn prepare(socket: &Socket) {
    let _ = socket.set_recv_buffer_size(BUFFER);
    let _ = socket.set_send_buffer_size(BUFFER);
    let _ = sys::set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT);
}

/// A UDP socket.
pub struct Udp {
    fd: RegisteredSocket,
    local: SocketAddr,
}

impl Udp {
    /// Binds to `at`; port 0: any. The unspecified IPv6 address includes IPv4. Without IPv6 on the machine it is IPv4
    /// only.
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
            prepare(&socket);
            if at.ip().is_unspecified() {
                // An answer is sent from the address that received the request.
                let (level, name) = match at.is_ipv6() {
                    true => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
                    false => (libc::IPPROTO_IP, libc::IP_PKTINFO),
                };
                sys::set_option(&socket, level, name, 1)?;
            }
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
        Ok(Self { fd: RegisteredSocket::new(socket)?, local })
    }
}

/// The largest packet on the path to `to`, in bytes.
fn mtu(to: SocketAddr) -> usize {
    let ask = || {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
        let port = if to.port() == 0 { 1 } else { to.port() };
        socket.connect(&SocketAddr::new(to.ip(), port).into())?;
        sys::path_mtu(&socket, to.is_ipv6())
    };
    let most = match to.ip() {
        // A packet that exceeds an IPv6 path is dropped, and the report of it often gets lost.
        IpAddr::V6(ip) if !ip.is_loopback() => SAFE,
        _ => 1 << 16,
    };
    ask().unwrap_or(SAFE).clamp(SAFE, most)
}

fn header(to: SocketAddr) -> usize {
    if to.is_ipv6() { 40 } else { 20 }
}

impl Link for Udp {
    fn poll_recv(&mut self, cx: &mut Context<'_>, rooms: &mut [Room<'_>]) -> Poll<io::Result<usize>> {
        self.fd.poll_recv(cx, rooms)
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
        to: SocketAddr,
        here: Option<IpAddr>,
    ) -> Poll<io::Result<()>> {
        // An IPv6 socket needs IPv6 addresses.
        let to = match to.ip() {
            IpAddr::V4(ip) if self.local.is_ipv6() => SocketAddr::new(wide(ip.into()).into(), to.port()),
            _ => to,
        };
        self.fd.poll_send(cx, parts, to, here)
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

/// il on bare IPv4, protocol 40. Addresses have port 0.
pub struct Raw {
    fd: RegisteredSocket,
    local: SocketAddr,
}

impl Raw {
    /// Binds to `at`. `PermissionDenied` without the capability CAP_NET_RAW.
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
        prepare(&socket);
        let local = SocketAddr::new(at.into(), 0);
        socket.bind(&local.into())?;
        Ok(Self { fd: RegisteredSocket::new(socket)?, local })
    }
}

impl Link for Raw {
    fn poll_recv(&mut self, cx: &mut Context<'_>, rooms: &mut [Room<'_>]) -> Poll<io::Result<usize>> {
        let n = ready!(self.fd.poll_recv(cx, rooms))?;
        for room in &mut rooms[..n] {
            // A received packet includes the IP header.
            let Some(came) = &mut room.came else { continue };
            let header = usize::from(room.bytes.first().copied().unwrap_or(0) & 15) * 4;
            if !(20..=came.len).contains(&header) {
                room.came = None;
                continue;
            }
            let to = room.bytes[16..].first_chunk::<4>().copied();
            came.here = to.map(IpAddr::from);
            room.bytes.copy_within(header..came.len, 0);
            came.len -= header;
            came.from.set_port(0);
        }
        Poll::Ready(Ok(n))
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
        to: SocketAddr,
        here: Option<IpAddr>,
    ) -> Poll<io::Result<()>> {
        self.fd.poll_send(cx, parts, SocketAddr::new(to.ip(), 0), here)
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
