//! Many conversations on one datagram socket: the multiplexing of D. L. Presotto, *Multiprocessor Streams for Plan 9*,
//! 3.4, for plain datagrams and for il.
//!
//! In: datagrams of a [`Link`]. Out: [`Line`]s, each a stream of its own whose device the [`Driver`] serves.
//!
//! Always holds: no line waits for the reader of another; a datagram is given to the line of its sender or dropped;
//! lines, calls that wait to be accepted and calls that are half open have [`Limits`].

mod driver;
mod port;
mod talk;
mod udp;

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::task::{Context, Poll};

pub use driver::Driver;
pub use port::{Announced, Kind, Limits, Line, Port};
pub use talk::{Listener, Talk, dial};
pub use udp::{Raw, Udp};

/// Datagrams that are received at once, at most.
pub(crate) const ROOMS: usize = 4;

/// Room for one datagram that comes.
pub struct Room<'a> {
    /// Where it goes; what has no room is cut off.
    pub bytes: &'a mut [u8],
    /// What has come; `None`: nothing of use.
    pub came: Option<Came>,
}

impl<'a> Room<'a> {
    /// Empty.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, came: None }
    }
}

/// A datagram that has come.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    /// Bytes.
    pub len: usize,
    /// Who has sent it.
    pub from: SocketAddr,
    /// The address of this end that it was sent to, where an end has several.
    pub here: Option<IpAddr>,
}

/// Where datagrams go and come from. One task drives it.
pub trait Link: Send + Unpin + 'static {
    /// The next datagrams, as many as have come and as there are rooms: how many, and one at least.
    fn poll_recv(&mut self, cx: &mut Context<'_>, rooms: &mut [Room<'_>]) -> Poll<io::Result<usize>>;

    /// Sends one, from `here` where that is said. An error: it is lost, as any may be.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
        to: SocketAddr,
        here: Option<IpAddr>,
    ) -> Poll<io::Result<()>>;

    /// Its own address.
    fn local(&self) -> SocketAddr;

    /// Says how many bytes a datagram to somebody may have, asked from any thread.
    fn largest(&self) -> Arc<dyn Fn(SocketAddr) -> usize + Send + Sync>;

    /// Whether what was changed on its way is dropped below.
    fn has_sums(&self) -> bool;
}

/// An address of IPv4 as what it is; one of IPv6 with the link that it is of.
fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_none() => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into()
        }
        _ => SocketAddr::new(addr.ip().to_canonical(), addr.port()),
    }
}

/// An address as one of IPv6.
pub(crate) fn wide(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}
