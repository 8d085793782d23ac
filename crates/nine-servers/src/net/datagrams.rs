//! UDP and il on this machine. A call is a line of a datagram socket. Each socket has a driver task beside the
//! server's.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use nine_net::datagram::{self, Kind, Limits, Line, Port};
use nine_net::lock::{Mutex, lock};
use nine_net::{Clock, Env, rt};

use super::share::UserShare;
use super::stack::{
    Announced, Asks, CONNECT_TIMEOUT, Call, End, Later, Messages, Network, Place, resolve_ip,
};

/// UDP, or il over UDP.
pub struct Datagrams {
    kind: Kind,
    clock: Arc<dyn Clock>,
}

impl Datagrams {
    /// UDP: each message is a datagram.
    pub fn udp(clock: Arc<dyn Clock>) -> Self {
        Self { kind: Kind::Plain, clock }
    }

    /// il over UDP: messages arrive once and in order.
    pub fn il(clock: Arc<dyn Clock>) -> Self {
        Self { kind: Kind::Il, clock }
    }

    fn port(&self, at: SocketAddr) -> io::Result<(Port, DatagramCallDriver)> {
        let (port, driver) =
            Port::new(datagram::Udp::bind(at)?, self.kind, Limits::default(), self.clock.clone());
        let (running, driver) = DatagramCallDriver::of(driver);
        rt::Real.spawn(Box::pin(driver));
        Ok((port, running))
    }
}

impl Network for Datagrams {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Plain => "udp",
            Kind::Il => "il",
        }
    }

    fn resolve(&self, text: &str, asks: &Asks) -> Later<io::Result<Vec<Place>>> {
        resolve_ip(text, asks, self.name())
    }

    fn dial(&self, to: Place, from: Option<Place>) -> Later<io::Result<Call>> {
        let Place::Ip(to) = to else {
            return Box::pin(std::future::ready(Err(io::ErrorKind::InvalidInput.into())));
        };
        let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let from = match from {
            Some(Place::Ip(from)) if self.kind == Kind::Il && from.port() != 0 => {
                let text = "il chooses the port of this end itself: of the local address only the address can be given";
                return Box::pin(std::future::ready(Err(io::Error::new(io::ErrorKind::InvalidInput, text))));
            }
            Some(Place::Ip(from)) => from,
            _ => SocketAddr::new(any, 0),
        };
        let (port, kind, clock) = (self.port(from), self.kind, self.clock.clone());
        Box::pin(async move {
            let (port, running) = port?;
            if kind == Kind::Plain {
                return port.connect(to).map(|line| call(line, kind, Some(running)));
            }
            let mut late = clock.sleep_until(clock.now() + CONNECT_TIMEOUT);
            let mut dial = pin!(port.dial(to, to.port()));
            let line = std::future::poll_fn(|cx| match dial.as_mut().poll(cx) {
                Poll::Pending => late.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
                done => done,
            });
            line.await.map(|line| call(line, kind, Some(running)))
        })
    }

    fn announce(&self, at: Place) -> Later<io::Result<Box<dyn Announced>>> {
        let Place::Ip(at) = at else {
            return Box::pin(std::future::ready(Err(io::ErrorKind::InvalidInput.into())));
        };
        let kind = self.kind;
        let port = self.port(at);
        Box::pin(async move {
            let (port, _) = port?;
            let number = if kind == Kind::Il { port.local().port() } else { 0 };
            let announced = Arc::new(port.announce(number)?);
            Ok(Box::new(AnnouncedCalls { kind, announced, next: None }) as _)
        })
    }
}

/// The calls to an announced port.
struct AnnouncedCalls {
    kind: Kind,
    announced: Arc<datagram::Announced>,
    next: Option<Pin<Box<dyn Future<Output = io::Result<Line>> + Send>>>,
}

impl Announced for AnnouncedCalls {
    fn local(&self) -> String {
        Place::Ip(self.announced.port().local()).to_string()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Call>> {
        let announced = self.announced.clone();
        let next = self.next.get_or_insert_with(|| Box::pin(async move { announced.accept().await }));
        let line = ready!(next.as_mut().poll(cx));
        self.next = None;
        Poll::Ready(line.map(|line| call(line, self.kind, None)))
    }

    fn headers(&mut self) -> io::Result<Call> {
        match self.kind {
            Kind::Plain => self.announced.port().headers().map(|line| call(line, self.kind, None)),
            Kind::Il => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

fn call(line: Line, kind: Kind, running: Option<DatagramCallDriver>) -> Call {
    let (local, remote) = (line.local.clone(), line.remote.clone());
    let messages = Messages { running, ..Messages::new(line, kind == Kind::Plain) };
    Call { end: End::Messages(Box::new(messages)), local, remote }
}

/// Returns the other end of a datagram with Plan 9's headers: `raddr[16] laddr[16] ifcaddr[16] rport[2] lport[2]`.
pub(super) fn end_of(datagram: &[u8]) -> Option<SocketAddr> {
    let header = datagram.first_chunk::<52>()?;
    let ip = Ipv6Addr::from(*header.first_chunk::<16>()?).to_canonical();
    Some((ip, u16::from_be_bytes([header[48], header[49]])).into())
}

/// Senders of recent datagrams with headers. About [`SENDERS_MAX`] are remembered; the older half is forgotten at a
/// time.
#[derive(Default)]
pub(super) struct RecentSenders {
    /// The newer and the older half. The older one is cleared when the newer one is full.
    halves: [HashSet<SocketAddr>; 2],
}

impl RecentSenders {
    pub(super) fn note(&mut self, datagram: &[u8]) {
        let Some(from) = end_of(datagram) else { return };
        if self.halves[0].len() >= SENDERS_MAX / 2 && !self.halves[0].contains(&from) {
            self.halves.swap(0, 1);
            self.halves[0].clear();
        }
        self.halves[0].insert(from);
    }

    pub(super) fn has(&self, to: SocketAddr) -> bool {
        self.halves.iter().any(|half| half.contains(&to))
    }
}

/// The maximum number of remembered senders.
const SENDERS_MAX: usize = 2048;

/// The driver of one call. After the last close it runs on until written data has been sent.
pub(super) struct DatagramCallDriver(Arc<Mutex<CallDriverState>>);

#[derive(Default)]
struct CallDriverState {
    task: Option<Waker>,
    ended: bool,
    /// It must end now.
    cut: bool,
    /// Its share of the limit on lingering conversations.
    share: Option<UserShare>,
}

impl DatagramCallDriver {
    /// Returns the handle of a driver, and the future to spawn for it. A driver's error reaches its lines.
    fn of(driver: impl Future) -> (Self, impl Future<Output = ()>) {
        let run = Arc::<Mutex<CallDriverState>>::default();
        let of = run.clone();
        let mut driver = Box::pin(driver);
        let task = poll_fn(move |cx| {
            {
                let mut run = lock(&of);
                run.task = Some(cx.waker().clone());
                if run.cut {
                    return Poll::Ready(());
                }
            }
            ready!(driver.as_mut().poll(cx));
            let mut run = lock(&of);
            run.ended = true;
            let gone = run.share.take();
            drop(run);
            drop(gone);
            Poll::Ready(())
        });
        (Self(run), task)
    }

    /// Detaches the driver from its closed call. Without a share it ends now.
    pub(super) fn leave(self, share: Option<UserShare>) {
        let mut run = lock(&self.0);
        if run.ended {
            return;
        }
        run.cut = share.is_none();
        run.share = share;
        let task = if run.cut { run.task.take() } else { None };
        drop(run);
        task.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use nine_io::server::Who;
    use nine_net::Proof;

    use super::super::share::{FairShares, ShareUser};
    use super::*;

    #[test]
    fn callers_are_known_until_many_others_have_come() {
        let datagram = |n: u16| {
            let mut bytes = [0; 60];
            bytes[..16].copy_from_slice(&Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets());
            bytes[48..50].copy_from_slice(&n.to_be_bytes());
            bytes
        };
        let mut callers = RecentSenders::default();
        for n in 0..5000 {
            callers.note(&datagram(n));
            callers.note(&datagram(4999));
        }
        let known = |n| callers.has(SocketAddr::from(([10, 0, 0, 1], n)));
        assert!(known(4990) && known(4999) && !known(1));
        assert!(callers.halves.iter().map(HashSet::len).sum::<usize>() <= SENDERS_MAX);
        assert_eq!(end_of(&[0; 51]), None);
        assert_eq!(end_of(&[0; 52]), Some((Ipv6Addr::UNSPECIFIED, 0).into()));
    }

    #[test]
    fn who_has_left_runs_on_where_there_is_room_and_is_counted_until_it_ends() {
        let cx = &mut Context::from_waker(Waker::noop());
        let who = Who { name: "x".into(), ..Who::none(Proof::None) };
        let (lingers, user) = (FairShares::new(2), ShareUser::of(&who));
        let over = Arc::new(Mutex::new(false));
        let is_over = over.clone();
        let (running, task) =
            DatagramCallDriver::of(poll_fn(
                move |_| if *lock(&is_over) { Poll::Ready(()) } else { Poll::Pending },
            ));
        let mut task = pin!(task);
        assert!(task.as_mut().poll(cx).is_pending());
        running.leave(lingers.take(&user, 1).ok());
        assert!(task.as_mut().poll(cx).is_pending());
        let (cut, other) = DatagramCallDriver::of(pending::<()>());
        let mut other = pin!(other);
        assert!(other.as_mut().poll(cx).is_pending());
        cut.leave(lingers.take(&user, 1).ok());
        assert!(other.as_mut().poll(cx).is_ready());
        *lock(&over) = true;
        assert!(task.as_mut().poll(cx).is_ready());
        assert!(lingers.take(&user, 1).is_ok());
    }
}
