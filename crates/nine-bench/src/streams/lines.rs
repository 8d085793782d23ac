//! Connections between two ends of a network, and the code of both ends. TCP and UDP are the kernel's, used with
//! blocking calls as in any program. il and nonet are ours, each one task on a thread of its own.
//!
//! In: a carrier, the location of its ends, a job. Out: a figure. Each turn creates a connection of its own.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker, ready};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use nine_io::client::blocking::Client;
use nine_io::client::{Dialled, Net as Dialler};
use nine_net::datagram::{self, Came, Link as _, Room, Udp};
use nine_net::ether::{ETHER_TYPE, Ether, Mac};
use nine_net::nonet::{self, Limits};
use nine_net::{Addr, Env, Transport, rt};
use nine_sim::delay::Side;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::WRITE;
use crate::far::RemoteLink;
use crate::place::CpuPlacement;
use crate::server::SILENCE;

#[derive(Clone, Copy)]
pub(super) enum LineCarrier<'f> {
    Tcp,
    /// TCP; the near end is a file of `/net`, through a mux.
    Files(&'f NetFiles),
    /// il; the near end is a file of `/net`, through a mux.
    IlFiles(&'f NetFiles),
    /// For round trips only.
    Udp,
    /// il over UDP.
    Il,
    /// nonet, with its packets in UDP if the delay box is the cable: [`UdpEtherCable`].
    Nonet,
    /// nonet on an Ethernet of the kernel: a card of this name on each side, with the addresses [`MACS`].
    Ether(&'static str),
    /// TCP on the same Ethernet.
    TcpAt([Ipv4Addr; 2]),
    /// il over UDP on the same Ethernet.
    IlAt([Ipv4Addr; 2]),
}

/// `/net` of a mux.
pub(super) struct NetFiles {
    pub(super) client: Client,
    pub(super) net: Dialler,
}

/// The location of the two ends.
#[derive(Clone, Copy)]
pub(super) enum NetLocation<'f> {
    Loopback,
    Far(&'f RemoteLink),
}

#[derive(Clone, Copy)]
pub(super) enum LineJob {
    /// A total number of bytes, in writes of a size: GB/s until the last one is read.
    Bytes(usize, usize),
    /// A number of messages of a size, to and fro: microseconds of one round trip.
    Trips(u32, usize),
}

/// A turn that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(120);
/// Interval at which an idle end checks whether the other one is done.
const LOOK: Duration = Duration::from_millis(20);
/// MAC addresses of the cards, by side.
pub(super) const MACS: [Mac; 2] = [Mac([0x0a, 0, 0, 0, 0, 1]), Mac([0x0a, 0, 0, 0, 0, 2])];
/// Size of an il message that fits in one packet of the box, bytes; a write to a file is one message.
const WHOLE: usize = 1400;
/// The name of the service.
const SERVICE: &str = "bench";

impl NetLocation<'_> {
    fn run<T: Send>(self, side: Side, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match self {
            Self::Loopback => f(),
            Self::Far(far) => far.run(side, f)?,
        }
    }

    fn address(self, side: Side) -> Ipv4Addr {
        match self {
            Self::Loopback => Ipv4Addr::LOCALHOST,
            Self::Far(far) => far.address(side),
        }
    }
}

/// Runs one turn.
pub(super) fn turn(
    net: NetLocation<'_>,
    carrier: LineCarrier<'_>,
    place: CpuPlacement,
    job: LineJob,
) -> io::Result<f64> {
    let (tell, told) = channel();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let there = || {
            net.run(Side::There, || {
                place.stand_far()?;
                rt::block_on(async |env| answer(net, carrier, job, env, tell, &over).await)?
            })
        };
        let here = || {
            net.run(Side::Here, || {
                place.stand_near()?;
                rt::block_on(async |env| {
                    let late = env.sleep_until(env.now() + LIMIT);
                    match select(pin!(call(net, carrier, job, env, told)), late).await {
                        Either::Left((done, _)) => done,
                        Either::Right(_) => Err(io::ErrorKind::TimedOut.into()),
                    }
                })?
            })
        };
        let there = scope.spawn(there);
        let here = scope.spawn(here).join();
        over.store(true, Ordering::Release);
        let failed = |_| io::Error::other("an end has failed");
        let figure = here.map_err(failed)?;
        // If the far end failed first, its error is more useful.
        there.join().map_err(failed)??;
        figure
    })
}

async fn answer(
    net: NetLocation<'_>,
    carrier: LineCarrier<'_>,
    job: LineJob,
    env: rt::Real,
    tell: Sender<SocketAddr>,
    over: &AtomicBool,
) -> io::Result<()> {
    let at = match carrier {
        LineCarrier::TcpAt([_, there]) | LineCarrier::IlAt([_, there]) => SocketAddr::from((there, 0)),
        _ => SocketAddr::from((net.address(Side::There), 0)),
    };
    // The near end waits for the address. If it never comes, the closed channel tells it that this end is gone.
    let tell = |at: SocketAddr| tell.send(at).map_err(|_| io::Error::other("the caller has gone"));
    let goes_on = async {
        match carrier {
            LineCarrier::Tcp | LineCarrier::TcpAt(_) | LineCarrier::Files(_) => {
                let listener = TcpListener::bind(at)?;
                set_socket_timeout(&listener, Timeout::Recv, Some(SILENCE))?;
                tell(listener.local_addr()?)?;
                serve(&mut TcpEnd::new(listener.accept()?.0)?, job).await
            }
            LineCarrier::Udp => {
                let socket = UdpSocket::bind(at)?;
                socket.set_read_timeout(Some(SILENCE))?;
                tell(socket.local_addr()?)?;
                let (_, from) = socket.peek_from(&mut [0; 1])?;
                socket.connect(from)?;
                serve(&mut UdpEnd(socket), job).await
            }
            LineCarrier::Il | LineCarrier::IlAt(_) | LineCarrier::IlFiles(_) => {
                let addr = Addr::Il { host: at.ip().to_string(), port: 0 };
                let listener = datagram::Listener::bind(&addr, &env)?;
                let Addr::Il { port, .. } = *listener.addr() else { unreachable!("it is of il") };
                tell((at.ip(), port).into())?;
                let mut talk = StreamEnd(listener.accept().await?);
                let _open = in_task(env, async move { serve(&mut talk, job).await.map(|()| talk) }).await?;
                // The last data may have to be retransmitted, so stay until the near end is done.
                until(over, env).await;
                Ok(())
            }
            LineCarrier::Nonet => {
                let cable = UdpEtherCable::new(Udp::bind(at)?, Side::There, None);
                let at = cable.udp.local();
                take(cable, job, env, over, || tell(at)).await
            }
            LineCarrier::Ether(card) => {
                take(Ether::open(card, ETHER_TYPE)?, job, env, over, || tell(at)).await
            }
        }
    };
    match select(pin!(goes_on), pin!(until(over, env))).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => Ok(()),
    }
}

/// Waits until the near end is done.
async fn until(over: &AtomicBool, env: rt::Real) {
    while !over.load(Ordering::Acquire) {
        env.sleep_until(env.now() + LOOK).await;
    }
}

async fn call(
    net: NetLocation<'_>,
    carrier: LineCarrier<'_>,
    job: LineJob,
    env: rt::Real,
    told: Receiver<SocketAddr>,
) -> io::Result<f64> {
    let to = told.recv().map_err(|_| io::Error::other("the far end did not begin"))?;
    let at = SocketAddr::from((net.address(Side::Here), 0));
    match carrier {
        LineCarrier::Tcp | LineCarrier::TcpAt(_) => {
            perform(&mut TcpEnd::new(TcpStream::connect(to)?)?, job).await
        }
        LineCarrier::Files(NetFiles { client, net }) => {
            let call = client.wait(net.dial(&format!("tcp!{}!{}", to.ip(), to.port())))?;
            perform(&mut FileEnd(client, call, WRITE), job).await
        }
        LineCarrier::IlFiles(NetFiles { client, net }) => {
            let call = client.wait(net.dial(&format!("il!{}!{}", to.ip(), to.port())))?;
            perform(&mut FileEnd(client, call, WHOLE), job).await
        }
        LineCarrier::Udp => {
            let socket = UdpSocket::bind(at)?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(SILENCE))?;
            perform(&mut UdpEnd(socket), job).await
        }
        LineCarrier::Il | LineCarrier::IlAt(_) => {
            let addr = Addr::Il { host: to.ip().to_string(), port: to.port() };
            let mut talk = StreamEnd(datagram::dial(&addr, SILENCE, &env).await?);
            in_task(env, async move { perform(&mut talk, job).await }).await
        }
        LineCarrier::Nonet => dial(UdpEtherCable::new(Udp::bind(at)?, Side::Here, Some(to)), job, env).await,
        LineCarrier::Ether(card) => dial(Ether::open(card, ETHER_TYPE)?, job, env).await,
    }
}

async fn take(
    link: impl nonet::Link,
    job: LineJob,
    env: rt::Real,
    over: &AtomicBool,
    tell: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let port = port(link, env)?;
    let mut announced = port.announce(SERVICE).map_err(io::Error::other)?;
    tell()?;
    let mut call = StreamEnd(announced.accept().await.map_err(io::Error::other)?);
    let _open = in_task(env, async move { serve(&mut call, job).await.map(|()| call) }).await?;
    until(over, env).await;
    Ok(())
}

async fn dial(link: impl nonet::Link, job: LineJob, env: rt::Real) -> io::Result<f64> {
    let port = port(link, env)?;
    let there = MACS[Side::There as usize];
    let mut call = StreamEnd(port.dial(there, SERVICE, SERVICE).await.map_err(io::Error::other)?);
    in_task(env, async move { perform(&mut call, job).await }).await
}

fn port(link: impl nonet::Link, env: rt::Real) -> io::Result<nonet::Port> {
    let (port, driver) = nonet::port(link, Limits::default(), env.clock())?;
    env.spawn(Box::pin(async { drop(driver.await) }));
    Ok(port)
}

/// Runs work in a task of its own, as for connections. A future inside `block_on` itself is polled only after the
/// runtime has asked the kernel for events once more.
async fn in_task<T: 'static>(
    env: rt::Real,
    work: impl Future<Output = io::Result<T>> + 'static,
) -> io::Result<T> {
    let done = Rc::new((Cell::new(None), Cell::new(None)));
    let told = done.clone();
    env.spawn(Box::pin(async move {
        told.0.set(Some(work.await));
        told.1.take().into_iter().for_each(Waker::wake);
    }));
    poll_fn(|cx| {
        done.1.set(Some(cx.waker().clone()));
        done.0.take().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// The part of the near end.
async fn perform(wire: &mut impl LineEnd, job: LineJob) -> io::Result<f64> {
    match job {
        LineJob::Bytes(bytes, write) => {
            let (begun, mut left, mut buf) = (Instant::now(), bytes, vec![0; write]);
            while left > 0 {
                buf.fill(left as u8);
                let piece = left.min(write);
                wire.write(&buf[..piece]).await?;
                left -= piece;
            }
            wire.read_all(&mut [0]).await?;
            Ok(bytes as f64 / begun.elapsed().as_secs_f64() / 1e9)
        }
        LineJob::Trips(trips, size) => {
            let (begun, mut message) = (Instant::now(), vec![7; size]);
            for _ in 0..trips {
                wire.write(&message).await?;
                wire.read_all(&mut message).await?;
            }
            Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(trips))
        }
    }
}

/// The part of the far end.
async fn serve(wire: &mut impl LineEnd, job: LineJob) -> io::Result<()> {
    match job {
        LineJob::Bytes(bytes, write) => {
            let (mut left, mut buf) = (bytes, vec![0; write]);
            while left > 0 {
                match wire.read(&mut buf).await? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    n => left = left.saturating_sub(n),
                }
            }
            wire.write(&[1]).await
        }
        LineJob::Trips(trips, size) => {
            let mut message = vec![0; size];
            for _ in 0..trips {
                wire.read_all(&mut message).await?;
                wire.write(&message).await?;
            }
            Ok(())
        }
    }
}

/// One end of a connection. Those of the kernel block and never await.
trait LineEnd {
    /// Reads some bytes; 0 at the end.
    async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all bytes.
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    async fn read_all(&mut self, buf: &mut [u8]) -> io::Result<()> {
        let mut have = 0;
        while have < buf.len() {
            match self.read(&mut buf[have..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => have += n,
            }
        }
        Ok(())
    }
}

struct TcpEnd(TcpStream);

impl TcpEnd {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        Ok(Self(stream))
    }
}

impl LineEnd for TcpEnd {
    async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
}

struct UdpEnd(UdpSocket);

impl LineEnd for UdpEnd {
    async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.recv(buf)
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.send(bytes).map(drop)
    }
}

struct StreamEnd<T>(T);

impl<T: Transport> LineEnd for StreamEnd<T> {
    async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.0.poll_read(cx, buf)).await
    }

    async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = poll_fn(|cx| self.0.poll_write(cx, &[IoSlice::new(bytes)])).await?;
            bytes = &bytes[n..];
        }
        poll_fn(|cx| self.0.poll_flush(cx)).await
    }
}

/// An end in `/net`, with a limit on the size of a write.
struct FileEnd<'f>(&'f Client, Dialled, usize);

impl LineEnd for FileEnd<'_> {
    async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let came = self.0.wait(self.1.data.read(0, buf.len() as u32))?;
        buf[..came.len()].copy_from_slice(&came);
        Ok(came.len())
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(self.2) {
            match self.0.wait(self.1.data.write(0, piece))? as usize {
                n if n == piece.len() => {}
                n => return Err(io::Error::other(format!("a write of {} bytes took {n}", piece.len()))),
            }
        }
        Ok(())
    }
}

/// An Ethernet of two cards with UDP as the cable: a frame, `dst[6] src[6] type[2] packet`, in a datagram. With IP and
/// UDP this adds 42 bytes to the packet; a real Ethernet adds 38.
struct UdpEtherCable {
    udp: Udp,
    mine: Mac,
    /// The other end of the cable: configured, or learned from its first frame.
    to: Option<SocketAddr>,
    frame: Vec<u8>,
}

/// Size of a frame's header, bytes.
const ETHER_HEAD_LEN: usize = 14;
/// Size of a packet, bytes: with the headers of frame, UDP and IP it fills the box's 1500.
const MTU: usize = 1500 - 28 - ETHER_HEAD_LEN;

impl UdpEtherCable {
    fn new(udp: Udp, side: Side, to: Option<SocketAddr>) -> Self {
        Self { udp, mine: MACS[side as usize], to, frame: vec![0; ETHER_HEAD_LEN + MTU] }
    }
}

impl nonet::Link for UdpEtherCable {
    fn poll_recv(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<(usize, Mac)>> {
        loop {
            let mut rooms = [Room::new(&mut self.frame)];
            ready!(self.udp.poll_recv(cx, &mut rooms))?;
            let [Room { came: Some(Came { len, from, .. }), .. }] = rooms else { continue };
            self.to = Some(from);
            let Some(([dst, src], rest)) = self.frame[..len].split_at_checked(12).map(|(addresses, rest)| {
                let (pair, _) = addresses.as_chunks::<6>();
                ([pair[0], pair[1]], rest)
            }) else {
                continue;
            };
            if let (true, Some(packet)) = (dst == self.mine.0, rest.get(2..)) {
                buf[..packet.len()].copy_from_slice(packet);
                return Poll::Ready(Ok((packet.len(), Mac(src))));
            }
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, to: Mac, packet: &[u8]) -> Poll<io::Result<()>> {
        let Some(at) = self.to else { return Poll::Ready(Ok(())) };
        let mut head = [0; ETHER_HEAD_LEN];
        head[..6].copy_from_slice(&to.0);
        head[6..12].copy_from_slice(&self.mine.0);
        head[12..].copy_from_slice(&ETHER_TYPE.to_be_bytes());
        self.udp.poll_send(cx, &[IoSlice::new(&head), IoSlice::new(packet)], at, None)
    }

    fn mtu(&self) -> usize {
        MTU
    }

    fn address(&self) -> Mac {
        self.mine
    }
}
