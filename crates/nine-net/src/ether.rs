//! An Ethernet as a device end: packets of one type, on one interface.
//!
//! In: the name of an interface, packets with the address they go to. Out: packets with the address they come from; the
//! kernel makes and takes off the header of the frame. Needs CAP_NET_RAW.
//!
//! Always holds: nothing here blocks; a packet goes whole or not at all; what the interface has no room for is lost, as
//! on any Ethernet.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::task::{Context, Poll, ready};

use socket2::{Domain, Socket, Type};

use crate::nonet::Link;
use crate::socket::AsyncFd;
use crate::sys;

/// The type of our frames: the first of two that IEEE 802 leaves to local experiments.
pub const ETHER_TYPE: u16 = 0x88b5;

/// Bytes that may wait in the kernel to be received, if it allows as many: two windows of a conversation, with what
/// the kernel counts for each packet.
const RECEIVED: usize = 4 << 20;

/// The address of a card. Written as twelve hexadecimal digits, as Plan 9 does; colons are accepted.
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

/// Text that is no address of a card.
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
            // A colon behind each pair but the last.
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

/// Packets that are received or sent in one call, at most.
pub(crate) const ROOMS: usize = 32;

/// Room for one packet that comes.
#[derive(Debug)]
pub struct Room<'a> {
    /// Where it goes; what does not fit is passed over.
    pub bytes: &'a mut [u8],
    /// Its length, and who has sent it; `None`: nothing of use.
    pub came: Option<(usize, Mac)>,
}

impl<'a> Room<'a> {
    /// Empty.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, came: None }
    }
}

/// A packet that leaves, in two parts.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Who is to have it.
    pub to: Mac,
    /// One behind the other; either may be empty.
    pub parts: [&'a [u8]; 2],
}

/// An interface, opened for packets of one type. One task drives it, on the thread that made it.
#[derive(Debug)]
pub struct Ether {
    fd: AsyncFd<Socket>,
    card: sys::Card,
    name: String,
    kind: u16,
    /// Packets to everybody are heard, too.
    hears_all: bool,
    only: Vec<(u8, [u8; 2])>,
}

impl Ether {
    /// Opens `interface` for packets of the type `kind` ([`ETHER_TYPE`] unless there is a reason).
    ///
    /// # Errors
    /// PermissionDenied, which says so, without CAP_NET_RAW; NotFound where no interface has this name; InvalidInput
    /// where it is no Ethernet.
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

    /// The same, which hears only packets that have, at each of these places (0 is the first byte behind the header of
    /// the frame), one of two bytes. The kernel drops others before they cost anything.
    ///
    /// # Errors
    /// Of more than 85 places, and those of the kernel.
    pub fn only(self, bytes: &[(u8, [u8; 2])]) -> io::Result<Self> {
        sys::filter_packets(self.fd.get_ref(), bytes)?;
        Ok(Self { only: bytes.into(), ..self })
    }

    /// The same, which hears packets to everybody as well as those to this card.
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
                    // No more has come: what comes from now on is told anew.
                    if n < rooms.len().min(ROOMS) {
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

    /// The kernel tells no socket when an interface is taken away that was down before, and each goes down first. One
    /// that has come back under the name by which it was opened is opened again, where we may.
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
        // Another may have its name before it is asked.
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

/// It may come up again, or takes shorter frames by now ([`Link::check`] tells); conversations have their own patience.
fn is_down(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENOBUFS | libc::EMSGSIZE))
}

/// An error of the kernel, as a [`Link`] has it.
fn fault(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO | libc::EBADF | libc::ENOTSOCK) => {
            io::Error::new(io::ErrorKind::NotConnected, format!("the interface has gone: {error}"))
        }
        _ => error,
    }
}

fn open(interface: &str, kind: u16) -> io::Result<(Socket, sys::Card)> {
    // Of no type yet: nothing is received before it is bound to the interface.
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
    // As much as we may; what does not fit is lost and sent again.
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
