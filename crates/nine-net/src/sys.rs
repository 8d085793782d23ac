//! The only unsafe code in this crate: calls whose contract the compiler cannot check.
//!
//! In: an owned socket. Out: its registration with the runtime of this thread; datagrams with the address that they
//! were sent to; packets of an Ethernet. No pointer is kept longer than a call.
#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use socket2::{SockAddr, SockAddrStorage, Socket};

use crate::datagram::{self, Came, DATAGRAMS_AT_ONCE, wide};
use crate::ether::{Mac, PACKETS_AT_ONCE as PACKETS, Packet, Room};
use crate::socket::{AsyncFd, Interest};

/// Registers `socket` with the runtime of this thread, for reading and writing.
///
/// # Panics
/// Outside a runtime.
pub(crate) fn register(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    register_for(socket, Interest::READABLE | Interest::WRITABLE)
}

/// The same, for the given events.
///
/// # Panics
/// Outside a runtime.
pub(crate) fn register_for(socket: Socket, interest: Interest) -> io::Result<AsyncFd<Socket>> {
    // SAFETY: the `AsyncFd` owns the socket, whose descriptor stays open and the same until it is dropped: a
    // `Socket` never changes its descriptor, and this crate never takes a `&mut Socket` out of an `AsyncFd`.
    unsafe { AsyncFd::register_with_interest(socket, interest) }.map_err(io::Error::from)
}

/// Takes the sockets from the service manager, which are descriptors from 3 on, and sets close-on-exec. Must be called
/// once only.
pub(crate) fn inherit(count: usize) -> io::Result<Vec<Socket>> {
    let fds = (FIRST_INHERITED..).take(count);
    let own = |fd: RawFd| {
        // SAFETY: the call takes numbers. It fails if there is no such descriptor.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open, and the parent process has passed it to this one. Nothing else in this
        // process owns it, and this function is called once.
        Ok(unsafe { Socket::from_raw_fd(fd) })
    };
    fds.map(own).collect()
}

/// SD_LISTEN_FDS_START.
const FIRST_INHERITED: RawFd = 3;

/// Makes the allocator retain up to 64 MiB of freed memory instead of returning it to the kernel and faulting it in
/// again: message buffers of a quarter of a MiB are allocated and freed often.
pub(crate) fn keep_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two numbers. It is called once, while the runtime is created, and takes malloc's own
    // lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 20);
        libc::mallopt(libc::M_TOP_PAD, 1 << 20);
    }
}

/// Returns the MTU of the path to the peer of a connected IPv4 or IPv6 socket, in bytes.
pub(crate) fn path_mtu(socket: &Socket, is_v6: bool) -> io::Result<usize> {
    let (level, name) = match is_v6 {
        true => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        false => (libc::IPPROTO_IP, libc::IP_MTU),
    };
    let (mut mtu, mut len) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: both pointers are to variables that outlive the call, and `len` is the size of the one that is filled in.
    let done =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut mtu).cast(), &raw mut len) };
    if done == 0 { Ok(usize::try_from(mtu).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// Sets an integer option of a socket.
pub(crate) fn set_option(
    socket: &Socket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads an int, which outlives the call.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A buffer for the control data of a datagram: one address, of either family.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct ControlBuffer([u8; 64]);

/// Receives available datagrams, at most one per room, from a non-blocking socket. Returns their number.
pub(crate) fn recv_many(socket: &Socket, rooms: &mut [datagram::Room<'_>]) -> io::Result<usize> {
    // SAFETY: a `mmsghdr` is numbers and pointers, for which zeros are values.
    let mut headers: [libc::mmsghdr; DATAGRAMS_AT_ONCE] = unsafe { mem::zeroed() };
    let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; DATAGRAMS_AT_ONCE];
    let mut names: [SockAddrStorage; DATAGRAMS_AT_ONCE] = std::array::from_fn(|_| SockAddrStorage::zeroed());
    let mut besides = [ControlBuffer([0; 64]); DATAGRAMS_AT_ONCE];
    let count = rooms.len().min(DATAGRAMS_AT_ONCE);
    for at in 0..count {
        let bytes = &mut *rooms[at].bytes;
        parts[at] = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let header = &mut headers[at].msg_hdr;
        header.msg_name = (&raw mut names[at]).cast();
        header.msg_namelen = names[at].size_of();
        (header.msg_iov, header.msg_iovlen) = (&raw mut parts[at], 1);
        header.msg_control = (&raw mut besides[at]).cast();
        header.msg_controllen = size_of::<ControlBuffer>() as _;
    }
    // SAFETY: each of the first `count` headers has pointers to a name, a room and a control buffer of the lengths that
    // it gives; all outlive the call, and no two are the same.
    let n = unsafe {
        libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count as _, 0, std::ptr::null_mut())
    };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    for (at, name) in names.into_iter().enumerate().take(n) {
        let header = &headers[at].msg_hdr;
        // SAFETY: the kernel has filled in an address of this length.
        let from = unsafe { SockAddr::new(name, header.msg_namelen) }.as_socket();
        let len = headers[at].msg_len as usize;
        rooms[at].came = from.map(|from| Came { len, from, here: here_of(header) });
    }
    Ok(n)
}

/// The address that a datagram was sent to, if the kernel reports it.
fn here_of(header: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: the kernel has filled in `header`, whose control buffer still exists; the macros stay in it, and the data
    // they point to is read only if it is as long as its kind.
    unsafe {
        let beside = libc::CMSG_FIRSTHDR(header);
        if beside.is_null() {
            return None;
        }
        let (data, len) = (libc::CMSG_DATA(beside), (*beside).cmsg_len as usize);
        let has = |size: usize| len >= libc::CMSG_LEN(size as _) as usize;
        match ((*beside).cmsg_level, (*beside).cmsg_type) {
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if has(size_of::<libc::in6_pktinfo>()) => {
                let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                Some(IpAddr::from(info.ipi6_addr.s6_addr).to_canonical())
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) if has(size_of::<libc::in_pktinfo>()) => {
                let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                Some(IpAddr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()))
            }
            _ => None,
        }
    }
}

/// Sends a datagram from a non-blocking socket, with this source address if one is given. `to` is of the socket's
/// family.
pub(crate) fn send_from(
    socket: &Socket,
    parts: &[IoSlice<'_>],
    to: SocketAddr,
    from: Option<IpAddr>,
) -> io::Result<()> {
    let mut beside = ControlBuffer([0; 64]);
    let to = SockAddr::from(to);
    // SAFETY: a `msghdr` is numbers and pointers, for which zeros are values.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = to.as_ptr().cast_mut().cast();
    header.msg_namelen = to.len();
    (header.msg_iov, header.msg_iovlen) = (parts.as_ptr().cast_mut().cast(), parts.len() as _);
    if let Some(from) = from {
        let zeros = libc::in_addr { s_addr: 0 };
        let (level, kind, len) = match to.is_ipv6() {
            true => (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, size_of::<libc::in6_pktinfo>()),
            false => (libc::IPPROTO_IP, libc::IP_PKTINFO, size_of::<libc::in_pktinfo>()),
        };
        header.msg_control = (&raw mut beside).cast();
        // SAFETY: `CMSG_SPACE` only computes; the buffer has room for either kind after a header, is aligned for one,
        // and the macros stay in it.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(len as _) as _;
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = level;
            (*first).cmsg_type = kind;
            (*first).cmsg_len = libc::CMSG_LEN(len as _) as _;
            let data = libc::CMSG_DATA(first);
            match from {
                IpAddr::V4(v4) if !to.is_ipv6() => {
                    let s_addr = u32::from_ne_bytes(v4.octets());
                    let source = libc::in_addr { s_addr };
                    let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: source, ipi_addr: zeros };
                    data.cast::<libc::in_pktinfo>().write_unaligned(info);
                }
                from => {
                    let s6_addr = wide(from).octets();
                    let info = libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr }, ipi6_ifindex: 0 };
                    data.cast::<libc::in6_pktinfo>().write_unaligned(info);
                }
            }
        }
    }
    // SAFETY: `header` has pointers to an address, to buffers (an `IoSlice` is an `iovec`) and to `beside`, of the
    // lengths that it gives, which all outlive the call; the kernel only reads them.
    let n = unsafe { libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_NOSIGNAL) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A network interface that is an Ethernet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EthernetCard {
    pub(crate) index: i32,
    pub(crate) mac: [u8; 6],
    /// Bytes.
    pub(crate) mtu: usize,
}

/// Looks up the interface of this name, in the network name space of `socket`.
pub(crate) fn card(socket: &Socket, name: &str) -> io::Result<EthernetCard> {
    let no_such = || io::Error::new(io::ErrorKind::NotFound, "no interface has this name");
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(no_such());
    }
    let ask = |request| {
        let mut ifr_name = [0; libc::IFNAMSIZ];
        for (to, from) in ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let nothing = libc::sockaddr { sa_family: 0, sa_data: [0; 14] };
        let mut ifreq =
            libc::ifreq { ifr_name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_addr: nothing } };
        // SAFETY: the three requests below take a pointer to a `struct ifreq`, which outlives the call, and fill in its
        // union.
        match unsafe { libc::ioctl(socket.as_raw_fd(), request, &mut ifreq) } {
            0 => Ok(ifreq.ifr_ifru),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let index = ask(libc::SIOCGIFINDEX).map_err(|error| match error.raw_os_error() {
        Some(libc::ENODEV) => no_such(),
        _ => error,
    })?;
    let (mtu, address) = (ask(libc::SIOCGIFMTU)?, ask(libc::SIOCGIFHWADDR)?);
    // SAFETY: the kernel has filled in the member that each request is of, and all have bytes of any value; the union
    // was all zeros before.
    let (index, mtu, address) = unsafe { (index.ifru_ifindex, mtu.ifru_mtu, address.ifru_hwaddr) };
    if address.sa_family != libc::ARPHRD_ETHER {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this interface is no Ethernet"));
    }
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    Ok(EthernetCard { index, mac, mtu: usize::try_from(mtu).unwrap_or(0) })
}

/// Binds a packet socket to frames of the type `kind` of one interface.
pub(crate) fn bind_packet(socket: &Socket, index: i32, kind: u16) -> io::Result<()> {
    let at = link_address(index, kind, [0; 6]);
    // SAFETY: the kernel reads an address of this length, which outlives the call.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&at).cast(), LINK_ADDRESS) };
    if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the kernel drop packets that do not have, at each of these offsets, one of two bytes.
pub(crate) fn filter_packets(socket: &Socket, bytes: &[(u8, [u8; 2])]) -> io::Result<()> {
    let step = |code, jt, jf, k: u8| libc::sock_filter { code, jt, jf, k: u32::from(k) };
    let (load, is, ends) = (
        (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16,
        (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        (libc::BPF_RET | libc::BPF_K) as u16,
    );
    let mut program = Vec::new();
    for (n, (at, [one, other])) in bytes.iter().enumerate() {
        // Jumps to the last instruction, which drops the packet.
        let drops = 3 * (bytes.len() - n) - 2;
        let drops = u8::try_from(drops).map_err(|_| io::ErrorKind::InvalidInput)?;
        program.extend([step(load, 0, 0, *at), step(is, 1, 0, *one), step(is, 0, drops, *other)]);
    }
    program.push(libc::sock_filter { k: u32::MAX, ..step(ends, 0, 0, 0) });
    program.push(step(ends, 0, 0, 0));
    let program = libc::sock_fprog { len: program.len() as _, filter: program.as_mut_ptr() };
    let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of a program that points to as many instructions as it gives, all of which
    // outlive the call; it copies them.
    let done = unsafe {
        let program = std::ptr::from_ref(&program).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program, len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The kind of destination of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PacketDestination(u8);

impl PacketDestination {
    /// Whether it was sent to this card, or to all cards if `hears_all`.
    pub(crate) fn is_heard(self, hears_all: bool) -> bool {
        self.0 == libc::PACKET_HOST || hears_all && self.0 == libc::PACKET_BROADCAST
    }
}

/// Receives a packet from a non-blocking packet socket. Returns its length, which may exceed `buf`, its sender and its
/// kind of destination.
pub(crate) fn recv_packet(
    socket: &Socket,
    buf: &mut [u8],
) -> io::Result<(usize, [u8; 6], PacketDestination)> {
    let (mut from, mut len) = (link_address(0, 0, [0; 6]), LINK_ADDRESS);
    // SAFETY: the kernel writes at most `buf.len()` bytes to `buf` and at most `len` to `from`, which both outlive the
    // call; a `sockaddr_ll` may have any bytes.
    let n = unsafe {
        let (fd, from) = (socket.as_raw_fd(), std::ptr::from_mut(&mut from).cast());
        libc::recvfrom(fd, buf.as_mut_ptr().cast(), buf.len(), libc::MSG_TRUNC, from, &mut len)
    };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    let [a, b, c, d, e, f, ..] = from.sll_addr;
    Ok((n, [a, b, c, d, e, f], PacketDestination(from.sll_pkttype)))
}

/// Receives available packets, at most one per room, from a non-blocking packet socket. Returns the number of rooms
/// used. A packet that does not fit, or was sent to others, leaves its room empty.
pub(crate) fn recv_packets(socket: &Socket, rooms: &mut [Room<'_>], hears_all: bool) -> io::Result<usize> {
    // SAFETY: a `mmsghdr` is numbers and pointers, for which zeros are values.
    let mut headers: [libc::mmsghdr; PACKETS] = unsafe { mem::zeroed() };
    let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PACKETS];
    let mut names = [link_address(0, 0, [0; 6]); PACKETS];
    let count = rooms.len().min(PACKETS);
    for at in 0..count {
        let bytes = &mut *rooms[at].bytes;
        parts[at] = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let header = &mut headers[at].msg_hdr;
        (header.msg_name, header.msg_namelen) = ((&raw mut names[at]).cast(), LINK_ADDRESS);
        (header.msg_iov, header.msg_iovlen) = (&raw mut parts[at], 1);
    }
    // SAFETY: each of the first `count` headers has pointers to a name and a room of the lengths that it gives; all
    // outlive the call, and no two are the same.
    let n = unsafe {
        let (fd, null) = (socket.as_raw_fd(), std::ptr::null_mut());
        libc::recvmmsg(fd, headers.as_mut_ptr(), count as _, libc::MSG_TRUNC as _, null)
    };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    for (room, (header, name)) in rooms.iter_mut().zip(headers.iter().zip(names)).take(n) {
        let (len, [a, b, c, d, e, f, ..]) = (header.msg_len as usize, name.sll_addr);
        let is_ours = len <= room.bytes.len() && PacketDestination(name.sll_pkttype).is_heard(hears_all);
        room.came = is_ours.then_some((len, Mac([a, b, c, d, e, f])));
    }
    Ok(n)
}

/// Sends packets to cards, as many as the kernel accepts. Returns their number.
pub(crate) fn send_packets(
    socket: &Socket,
    index: i32,
    kind: u16,
    packets: &[Packet<'_>],
) -> io::Result<usize> {
    // SAFETY: a `mmsghdr` is numbers and pointers, for which zeros are values.
    let mut headers: [libc::mmsghdr; PACKETS] = unsafe { mem::zeroed() };
    let mut parts = [[IoSlice::new(&[]); 2]; PACKETS];
    let mut names = [link_address(0, 0, [0; 6]); PACKETS];
    let count = packets.len().min(PACKETS);
    for (at, packet) in packets.iter().enumerate().take(count) {
        names[at] = link_address(index, kind, packet.to.0);
        parts[at] = packet.parts.map(IoSlice::new);
        let header = &mut headers[at].msg_hdr;
        (header.msg_name, header.msg_namelen) = ((&raw mut names[at]).cast(), LINK_ADDRESS);
        (header.msg_iov, header.msg_iovlen) = ((&raw mut parts[at]).cast(), 2);
    }
    // SAFETY: each of the first `count` headers has pointers to an address and to two parts (an `IoSlice` is an
    // `iovec`), which outlive the call; the kernel only reads them, and writes the sent lengths to the headers.
    let n = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count as _, 0) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Sends a packet to a card.
pub(crate) fn send_packet(
    socket: &Socket,
    index: i32,
    kind: u16,
    to: [u8; 6],
    packet: &[u8],
) -> io::Result<()> {
    let to = link_address(index, kind, to);
    // SAFETY: the kernel reads `packet` and an address of this length, which both outlive the call.
    let n = unsafe {
        let (fd, to) = (socket.as_raw_fd(), std::ptr::from_ref(&to).cast());
        libc::sendto(fd, packet.as_ptr().cast(), packet.len(), 0, to, LINK_ADDRESS)
    };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

const LINK_ADDRESS: libc::socklen_t = size_of::<libc::sockaddr_ll>() as libc::socklen_t;

fn link_address(index: i32, kind: u16, [a, b, c, d, e, f]: [u8; 6]) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: kind.to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [a, b, c, d, e, f, 0, 0],
    }
}
