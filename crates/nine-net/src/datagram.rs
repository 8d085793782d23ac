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
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

pub use driver::Driver;
pub use port::{Announced, Kind, Limits, Line, Port};
pub use talk::{Listener, Talk, dial};
pub use udp::{Raw, Udp};

/// Where datagrams go and come from. One task drives it.
pub trait Link: Send + Unpin + 'static {
    /// The next datagram, and who sent it.
    fn poll_recv(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<(usize, SocketAddr)>>;

    /// Sends one. An error: it is lost, as any may be.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
        to: SocketAddr,
    ) -> Poll<io::Result<()>>;

    /// Its own address.
    fn local(&self) -> SocketAddr;

    /// Says how many bytes a datagram to somebody may have, asked from any thread.
    fn largest(&self) -> Arc<dyn Fn(SocketAddr) -> usize + Send + Sync>;

    /// Whether what was changed on its way is dropped below.
    fn has_sums(&self) -> bool;
}
