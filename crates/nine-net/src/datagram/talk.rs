//! A line as a transport, so that 9P runs over il; and a listener for such lines.
//!
//! Always holds: data is sent in messages that fit the path. At most one of them is buffered here.

use std::io::{self, IoSlice};
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::port::{Announced, Kind, Limits, Line, Port};
use super::udp::Udp;
use crate::dial::Addr;
use crate::end;
use crate::env::{Clock, Env};
use crate::messages::MessageStream;
use crate::transport::{Peer, Proof, Transport};

/// Maximum number of bytes in a message, however large the path allows it.
const MESSAGE: usize = 64 << 10;

/// A line as a byte stream. Dropping it closes it; flushed data still arrives.
pub struct Talk {
    line: Line,
    messages: MessageStream,
    peer: Peer,
}

impl Talk {
    /// Makes a transport of a line. Nothing proves the identity of the peer.
    pub fn new(line: Line) -> Self {
        let messages = MessageStream::of(&line.stream);
        let peer = Peer { addr: format!("il!{}", line.remote), proof: Proof::None };
        Self { line, messages, peer }
    }

    /// The underlying line.
    pub fn line(&self) -> &Line {
        &self.line
    }
}

impl Transport for Talk {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.messages.poll_read(cx, buf)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.messages.poll_write(cx, bufs, self.line.largest().min(MESSAGE))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.messages.poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let left = ready!(self.messages.poll_flush(cx));
        self.line.stream.finish();
        Poll::Ready(left)
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

/// Dials an il address, over UDP. Resolves a name on this thread, and uses the first of its addresses. Fails with
/// `TimedOut` after `limit`.
///
/// # Panics
/// Outside a runtime.
pub async fn dial(addr: &Addr, limit: Duration, env: &impl Env) -> io::Result<Talk> {
    let to = place(addr)?;
    let here = match to {
        SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let (port, driver) = Port::new(Udp::bind(here)?, Kind::Il, Limits::default(), env.clock());
    env.spawn(Box::pin(async move {
        drop(driver.await);
    }));
    let dialled = within(env.clock(), limit, port.dial(to, to.port())).await;
    Ok(Talk::new(dialled.map_err(|e| end::tried(addr, e))?))
}

async fn within<T>(
    clock: Arc<dyn Clock>,
    limit: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let mut late = clock.sleep_until(clock.now().saturating_add(limit));
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Pending => late.as_mut().poll(cx).map(|()| Err(end::too_late(limit))),
        done => done,
    })
    .await
}

fn place(addr: &Addr) -> io::Result<SocketAddr> {
    let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_string());
    match addr {
        Addr::Il { host, .. } if host == "*" => Err(wrong("`*` is for listening; to dial, name a host")),
        Addr::Il { host, port } => {
            let first = (host.as_str(), *port).to_socket_addrs()?.next();
            first.ok_or_else(|| io::Error::other(format!("{host} has no address")))
        }
        _ => Err(wrong("this is no address of il")),
    }
}

/// A listener for il calls, over UDP.
pub struct Listener {
    announced: Announced,
    addr: Addr,
}

impl Listener {
    /// Listens on `addr`; `*` is every address.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn bind(addr: &Addr, env: &dyn Env) -> io::Result<Self> {
        let at = match addr {
            Addr::Il { host, port } if host == "*" => (Ipv6Addr::UNSPECIFIED, *port).into(),
            _ => place(addr)?,
        };
        let tried = |e| end::tried(format_args!("listen on {addr}"), e);
        let udp = Udp::bind(at).map_err(tried)?;
        let (port, driver) = Port::new(udp, Kind::Il, Limits::default(), env.clock());
        env.spawn(Box::pin(async move {
            drop(driver.await);
        }));
        let at = port.local().port();
        let mut addr = addr.clone();
        if let Addr::Il { port, .. } = &mut addr {
            *port = at;
        }
        Ok(Self { announced: port.announce(at)?, addr })
    }

    /// The actual address: a port 0 is replaced by the chosen port.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

    /// Whether only this machine can reach it.
    pub fn local_only(&self) -> bool {
        self.announced.port().local().ip().to_canonical().is_loopback()
    }

    /// Waits for the next call. An error is final. Dropping the future loses no call.
    pub async fn accept(&self) -> io::Result<Talk> {
        self.announced.accept().await.map(Talk::new)
    }
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use super::*;
    use crate::rt;
    use crate::transport::testing::{close, read, write};

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn bytes_go_both_ways_over_udp_of_this_machine_and_the_end_comes_behind_them() {
        rt::block_on(async |env| {
            let listener = Listener::bind(&"il!127.0.0.1!0".parse().expect("valid"), &env).expect("bound");
            assert!(listener.local_only() && !listener.addr().to_string().ends_with("!0"));
            let mut here = dial(listener.addr(), LIMIT, &env).await.expect("answered");
            let mut there = listener.accept().await.expect("a call");
            assert!(here.peer().addr.starts_with("il!127.0.0.1!"), "{}", here.peer().addr);
            // Larger than one message.
            let sent: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
            let (wrote, seen) = crate::transport::testing::join(
                async {
                    write(&mut here, &sent).await?;
                    close(&mut here).await
                },
                async {
                    let mut seen = Vec::new();
                    loop {
                        match read(&mut there).await.expect("read") {
                            part if part.is_empty() => return seen,
                            part => seen.extend(part),
                        }
                        if seen.len() == 300_000 {
                            write(&mut there, b"all of it").await.expect("written");
                        }
                    }
                },
            )
            .await;
            wrote.expect("written");
            assert!(seen == sent);
            assert_eq!(read(&mut here).await.expect("read"), b"all of it");
            assert_eq!(read(&mut here).await.expect("the end"), b"");
            drop((here, there));
        })
        .expect("a runtime");
    }

    #[test]
    fn a_call_to_any_address_of_the_machine_is_answered_from_there() {
        rt::block_on(async |env| {
            let listener = Listener::bind(&"il!*!0".parse().expect("valid"), &env).expect("bound");
            let addr = listener.addr().to_string().replace('*', "127.0.0.2");
            let mut here = dial(&addr.parse().expect("valid"), LIMIT, &env).await.expect("answered");
            write(&mut here, b"hello").await.expect("written");
            let mut there = listener.accept().await.expect("a call");
            assert!(there.line().local.starts_with("127.0.0.2!"), "{}", there.line().local);
            assert_eq!(read(&mut there).await.expect("read"), b"hello");
        })
        .expect("a runtime");
    }

    #[test]
    fn where_nobody_listens_a_call_is_refused_or_fails_in_time() {
        rt::block_on(async |env| {
            let listener = Listener::bind(&"il!127.0.0.1!0".parse().expect("valid"), &env).expect("bound");
            let Addr::Il { port, .. } = listener.addr() else { unreachable!("it is one") };
            let (ours, driver) = Port::new(
                Udp::bind(([127, 0, 0, 1], 0).into()).expect("bound"),
                Kind::Il,
                Limits::default(),
                env.clock(),
            );
            env.spawn(Box::pin(async move {
                drop(driver.await);
            }));
            let refused = ours.dial(([127, 0, 0, 1], *port).into(), 99).await;
            assert!(refused.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused));
            for wrong in ["il!*!1", "tcp!h!1"] {
                assert!(dial(&wrong.parse().expect("valid"), LIMIT, &env).await.is_err(), "{wrong}");
            }
        })
        .expect("a runtime");
    }
}
