//! The one place of unsafe code in this crate: calls whose contract the compiler cannot check.
//!
//! In: an owned socket. Out: its registration with the runtime of this thread; packets of an Ethernet. Nothing here
//! keeps a pointer longer than a call.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use socket2::Socket;

use crate::socket::AsyncFd;

/// Registers `socket` with the runtime of this thread, for reading and writing.
///
/// # Panics
/// Outside a runtime.
pub(crate) fn register(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    // SAFETY: the `AsyncFd` owns the socket, whose descriptor stays open and the same until it is dropped: a
    // `Socket` never changes its descriptor, and this crate never takes a `&mut Socket` out of an `AsyncFd`.
    unsafe { AsyncFd::register(socket) }.map_err(io::Error::from)
}

/// Has the allocator keep what is freed, up to 64 MiB, rather than give it back to the kernel and fault it in anew:
/// buffers of messages come and go by the quarter of a MiB.
pub(crate) fn keep_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two numbers; it is called while the runtime is made, once, and takes malloc's own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 20);
        libc::mallopt(libc::M_TOP_PAD, 1 << 20);
    }
}

/// Bytes of a packet that goes where `socket`, of IPv4 or IPv6, is connected.
pub(crate) fn path_mtu(socket: &Socket, is_v6: bool) -> io::Result<usize> {
    let (level, name) = match is_v6 {
        true => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        false => (libc::IPPROTO_IP, libc::IP_MTU),
    };
    let (mut mtu, mut len) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: both pointers are to variables that live on, and `len` is the size of the one that is filled in.
    let done =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut mtu).cast(), &raw mut len) };
    if done == 0 { Ok(usize::try_from(mtu).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// A network interface that is an Ethernet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Card {
    pub(crate) index: i32,
    pub(crate) mac: [u8; 6],
    /// Bytes.
    pub(crate) mtu: usize,
}

/// What the interface of this name is, in the network name space of `socket`.
pub(crate) fn card(socket: &Socket, name: &str) -> io::Result<Card> {
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
        // SAFETY: the three requests below take a pointer to a `struct ifreq`, which lives on, and fill in its union.
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
    Ok(Card { index, mac, mtu: usize::try_from(mtu).unwrap_or(0) })
}

/// Lets a packet socket receive frames of the type `kind` from one interface.
pub(crate) fn bind_packet(socket: &Socket, index: i32, kind: u16) -> io::Result<()> {
    let at = link_address(index, kind, [0; 6]);
    // SAFETY: the kernel reads an address of this length, which lives on.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&at).cast(), LINK_ADDRESS) };
    if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives a packet from a packet socket that does not block: its length, which may be more than `buf` has, who has
/// sent it, and whether it was sent to this card alone.
pub(crate) fn recv_packet(socket: &Socket, buf: &mut [u8]) -> io::Result<(usize, [u8; 6], bool)> {
    let (mut from, mut len) = (link_address(0, 0, [0; 6]), LINK_ADDRESS);
    // SAFETY: the kernel writes at most `buf.len()` bytes to `buf` and at most `len` to `from`, which both live on; a
    // `sockaddr_ll` may have any bytes.
    let n = unsafe {
        let (fd, from) = (socket.as_raw_fd(), std::ptr::from_mut(&mut from).cast());
        libc::recvfrom(fd, buf.as_mut_ptr().cast(), buf.len(), libc::MSG_TRUNC, from, &mut len)
    };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    let [a, b, c, d, e, f, ..] = from.sll_addr;
    Ok((n, [a, b, c, d, e, f], from.sll_pkttype == libc::PACKET_HOST))
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
    // SAFETY: the kernel reads `packet` and an address of this length, which both live on.
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
