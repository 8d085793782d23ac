//! Many connections on one datagram socket: the multiplexing of D. L. Presotto, *Multiprocessor Streams for Plan 9*,
//! 3.4, for plain datagrams and for il.
//!
//! In: datagrams of a [`Link`]. Out: [`Line`]s, each a stream of its own whose device the [`Driver`] serves.
//!
//! Always holds: no line waits for the reader of another. A datagram goes to the line of its sender, or is dropped.
//! Lines, calls that wait to be accepted and half-open calls have [`Limits`].

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

/// Maximum number of datagrams received at once.
pub(crate) const DATAGRAMS_AT_ONCE: usize = 4;

/// A buffer for one received datagram.
pub struct Room<'a> {
    /// The buffer; a longer datagram is truncated.
    pub bytes: &'a mut [u8],
    /// The received datagram. `None`: there is no usable one.
    pub came: Option<Came>,
}

impl<'a> Room<'a> {
    /// An empty buffer.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, came: None }
    }
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    /// Length, in bytes.
    pub len: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The local address it was sent to, if this end has several.
    pub here: Option<IpAddr>,
}

/// A source and sink of datagrams. One task drives it.
pub trait Link: Send + Unpin + 'static {
    /// Receives datagrams, as many as are available and fit. Returns their number, at least one.
    fn poll_recv(&mut self, cx: &mut Context<'_>, rooms: &mut [Room<'_>]) -> Poll<io::Result<usize>>;

    /// Sends a datagram, from `here` if given. An error means that it is lost, as any datagram may be.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
        to: SocketAddr,
        here: Option<IpAddr>,
    ) -> Poll<io::Result<()>>;

    /// The local address.
    fn local(&self) -> SocketAddr;

    /// Returns a function for the largest datagram to an address, in bytes. It may be called from any thread.
    fn largest(&self) -> Arc<dyn Fn(SocketAddr) -> usize + Send + Sync>;

    /// Whether the layer below drops corrupted datagrams.
    fn has_sums(&self) -> bool;
}

/// Unwraps a mapped IPv4 address. An IPv6 address keeps its scope.
fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_none() => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into()
        }
        _ => SocketAddr::new(addr.ip().to_canonical(), addr.port()),
    }
}

/// Maps an address to IPv6.
pub(crate) fn wide(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}
