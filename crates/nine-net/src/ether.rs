//! An Ethernet as a device end: packets of one type, on one interface.
//!
//! In: the name of an interface, packets with their destinations. Out: packets with their senders; the kernel adds and
//! removes the frame header. Needs CAP_NET_RAW.
//!
//! Always holds: nothing here blocks. A packet is sent whole or not at all. Packets for which the interface has no room
//! are lost, as on any Ethernet.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::task::{Context, Poll, ready};

use socket2::{Domain, Socket, Type};

use crate::nonet::Link;
use crate::socket::AsyncFd;
use crate::sys;

/// The type of our frames: the first of the two types that IEEE 802 reserves for local experiments.
pub const ETHER_TYPE: u16 = 0x88b5;

/// Receive buffer in the kernel, if it allows that much, in bytes: two windows of a call, with the kernel's overhead
/// per packet.
const RECEIVED: usize = 4 << 20;

/// The address of a card. Displays as twelve hexadecimal digits, as in Plan 9. Colons are accepted in input.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The error for a text that is not a card address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoMac(String);

impl fmt::Display for NoMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no Ethernet address: twelve hexadecimal digits, as 0a0000000001", self.0)
    }
}

impl std::error::Error for NoMac {}

impl FromStr for Mac {
    type Err = NoMac;

    fn from_str(text: &str) -> Result<Self, NoMac> {
        let bare: Vec<u8> = match text.len() {
            12 => text.into(),
            // A colon after each pair but the last.
            17 if text.bytes().skip(2).step_by(3).all(|byte| byte == b':') => {
                text.bytes().enumerate().filter(|(at, _)| at % 3 != 2).map(|(_, byte)| byte).collect()
            }
            _ => return Err(NoMac(text.into())),
        };
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let mut mac = [0; 6];
        for (byte, pair) in mac.iter_mut().zip(bare.as_chunks::<2>().0) {
            let digits = digit(pair[0]).zip(digit(pair[1]));
            let (high, low) = digits.ok_or_else(|| NoMac(text.into()))?;
            *byte = high << 4 | low;
        }
        Ok(Self(mac))
    }
}

/// Maximum number of packets received or sent in one call.
pub(crate) const PACKETS_AT_ONCE: usize = 32;

/// A buffer for one received packet.
#[derive(Debug)]
pub struct Room<'a> {
    /// The buffer. A packet that does not fit is dropped.
    pub bytes: &'a mut [u8],
    /// The packet's length and sender. `None`: there is no usable one.
    pub came: Option<(usize, Mac)>,
}

impl<'a> Room<'a> {
    /// An empty buffer.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, came: None }
    }
}

/// A packet to send, in two parts.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The destination.
    pub to: Mac,
    /// Consecutive parts; either may be empty.
    pub parts: [&'a [u8]; 2],
}

/// An interface, opened for packets of one type. One task drives it, on the thread that created it.
#[derive(Debug)]
pub struct Ether {
    fd: AsyncFd<Socket>,
    card: sys::EthernetCard,
    name: String,
    kind: u16,
    /// Broadcasts are received too.
    hears_all: bool,
    only: Vec<(u8, [u8; 2])>,
}

impl Ether {
    /// Opens `interface` for packets of the type `kind`, usually [`ETHER_TYPE`].
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW; `NotFound` if no interface has this name; `InvalidInput` if it is not an
    /// Ethernet.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn open(interface: &str, kind: u16) -> io::Result<Self> {
        let (socket, card) = open(interface, kind)
            .map_err(|error| io::Error::new(error.kind(), format!("ether {interface}: {error}")))?;
        Ok(Self {
            fd: sys::register(socket)?,
            card,
            name: interface.into(),
            kind,
            hears_all: false,
            only: Vec::new(),
        })
    }

    /// Receives only packets that have, at each of these offsets (0 is the first byte after the frame header), one of
    /// two bytes. The kernel drops others early.
    ///
    /// # Errors
    /// Fails for more than 85 offsets, and with errors of the kernel.
    pub fn only(self, bytes: &[(u8, [u8; 2])]) -> io::Result<Self> {
        sys::filter_packets(self.fd.get_ref(), bytes)?;
        Ok(Self { only: bytes.into(), ..self })
    }

    /// Receives broadcasts as well as packets to this card.
    #[must_use]
    pub fn hearing_all(self) -> Self {
        Self { hears_all: true, ..self }
    }
}

impl Link for Ether {
    fn poll_recv(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<(usize, Mac)>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            match sys::recv_packet(guard.get_inner(), buf) {
                Ok((len, from, to)) if len <= buf.len() && to.is_heard(self.hears_all) => {
                    return Poll::Ready(Ok((len, Mac(from))));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) => return Poll::Ready(Err(fault(error))),
            }
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, to: Mac, packet: &[u8]) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.fd.poll_write_ready(cx))?;
            match sys::send_packet(guard.get_inner(), self.card.index, self.kind, to.0, packet) {
                Ok(()) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if is_down(&error) => return Poll::Ready(Ok(())),
                Err(error) => return Poll::Ready(Err(fault(error))),
            }
        }
    }

    fn poll_recv_many(&mut self, cx: &mut Context<'_>, rooms: &mut [Room<'_>]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            match sys::recv_packets(guard.get_inner(), rooms, self.hears_all) {
                Ok(n) => {
                    // There are no more packets: the next one is reported again.
                    if n < rooms.len().min(PACKETS_AT_ONCE) {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(n));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) => return Poll::Ready(Err(fault(error))),
            }
        }
    }

    fn poll_send_many(&mut self, cx: &mut Context<'_>, packets: &[Packet<'_>]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.fd.poll_write_ready(cx))?;
            match sys::send_packets(guard.get_inner(), self.card.index, self.kind, packets) {
                Ok(n) => return Poll::Ready(Ok(n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if is_down(&error) => return Poll::Ready(Ok(1)),
                Err(error) => return Poll::Ready(Err(fault(error))),
            }
        }
    }

    /// The kernel does not notify a socket when an interface that was down is removed, and an interface goes down
    /// before it is removed. An interface that has returned under its original name is opened again, if permitted.
    fn check(&mut self) -> io::Result<()> {
        let name = match rustix::net::netdevice::index_to_name(self.fd.get_ref(), self.card.index as u32) {
            Err(error @ rustix::io::Errno::NODEV) => {
                let (socket, card) = open(&self.name, self.kind).map_err(|_| fault(error.into()))?;
                if !self.only.is_empty() {
                    sys::filter_packets(&socket, &self.only)?;
                }
                (self.fd, self.card) = (sys::register(socket)?, card);
                return Ok(());
            }
            name => name?,
        };
        // Another interface may take the name before this query.
        if let Ok(card) = sys::card(self.fd.get_ref(), &name)
            && card.index == self.card.index
        {
            self.card = card;
        }
        Ok(())
    }

    fn mtu(&self) -> usize {
        self.card.mtu
    }

    fn address(&self) -> Mac {
        Mac(self.card.mac)
    }
}

/// The interface may come up again, or may now accept only shorter frames, which [`Link::check`] detects. Calls have
/// their own timeouts.
fn is_down(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENOBUFS | libc::EMSGSIZE))
}

/// Converts a kernel error to one of a [`Link`].
fn fault(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO | libc::EBADF | libc::ENOTSOCK) => {
            io::Error::new(io::ErrorKind::NotConnected, format!("the interface has gone: {error}"))
        }
        _ => error,
    }
}

fn open(interface: &str, kind: u16) -> io::Result<(Socket, sys::EthernetCard)> {
    // Without a type, so nothing is received before it is bound to the interface.
    let socket =
        Socket::new(Domain::PACKET, Type::DGRAM.cloexec().nonblocking(), None).map_err(
            |error| match error.kind() {
                io::ErrorKind::PermissionDenied => io::Error::new(
                    error.kind(),
                    "a packet socket needs CAP_NET_RAW (root, or setcap cap_net_raw+ep)",
                ),
                _ => error,
            },
        )?;
    let card = sys::card(&socket, interface)?;
    // As large as permitted. Packets that do not fit are lost and sent again.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVED).is_err() {
        let _ = socket.set_recv_buffer_size(RECEIVED);
    }
    sys::bind_packet(&socket, card.index, kind)?;
    Ok((socket, card))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_twelve_digits_and_colons_are_accepted() {
        let mac = Mac([0x0a, 0, 0x12, 0xfe, 0, 1]);
        assert_eq!(mac.to_string(), "0a0012fe0001");
        for text in ["0a0012fe0001", "0A0012FE0001", "0a:00:12:fe:00:01"] {
            assert_eq!(text.parse(), Ok(mac));
        }
        for text in
            ["", "0a0012fe000", "0a0012fe00011", "0a0012fe000g", "0a:00:12:fe:0001", "0a-00-12-fe-00-01"]
        {
            let why = text.parse::<Mac>().expect_err(text);
            assert!(why.to_string().contains("twelve hexadecimal digits"), "{why}");
        }
        assert!("ö0a0012fe000".parse::<Mac>().is_err() && "0a:00:12:fe:00:é".parse::<Mac>().is_err());
        assert!("+a0012fe0001".parse::<Mac>().is_err());
    }
}
