//! UDP and il of this machine: a call is a line of a datagram socket, whose driver runs beside the server's.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nine_net::datagram::{self, Kind, Limits, Line, Port};
use nine_net::{Clock, Env, rt};

use super::stack::{Announced, Call, End, Later, Messages, Network, PATIENCE, Place, resolve_ip};

/// UDP, or il over UDP.
pub struct Datagrams {
    kind: Kind,
    clock: Arc<dyn Clock>,
}

impl Datagrams {
    /// UDP: a message is a datagram.
    pub fn udp(clock: Arc<dyn Clock>) -> Self {
        Self { kind: Kind::Plain, clock }
    }

    /// il over UDP: messages arrive, once and in order.
    pub fn il(clock: Arc<dyn Clock>) -> Self {
        Self { kind: Kind::Il, clock }
    }

    fn port(&self, at: SocketAddr) -> io::Result<Port> {
        let (port, driver) =
            Port::new(datagram::Udp::bind(at)?, self.kind, Limits::default(), self.clock.clone());
        // An error ends the lines, which tell it.
        rt::Real.spawn(Box::pin(async { drop(driver.await) }));
        Ok(port)
    }
}

impl Network for Datagrams {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Plain => "udp",
            Kind::Il => "il",
        }
    }

    fn resolve(&self, text: &str, announces: bool) -> Later<io::Result<Vec<Place>>> {
        resolve_ip(text, announces, self.name())
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
            let port = port?;
            if kind == Kind::Plain {
                return port.connect(to).map(|line| call(line, kind));
            }
            let mut late = clock.sleep_until(clock.now() + PATIENCE);
            let mut dial = pin!(port.dial(to, to.port()));
            let line = std::future::poll_fn(|cx| match dial.as_mut().poll(cx) {
                Poll::Pending => late.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
                done => done,
            });
            line.await.map(|line| call(line, kind))
        })
    }

    fn announce(&self, at: Place) -> Later<io::Result<Box<dyn Announced>>> {
        let Place::Ip(at) = at else {
            return Box::pin(std::future::ready(Err(io::ErrorKind::InvalidInput.into())));
        };
        let kind = self.kind;
        let port = self.port(at);
        Box::pin(async move {
            let port = port?;
            let number = if kind == Kind::Il { port.local().port() } else { 0 };
            let announced = Arc::new(port.announce(number)?);
            Ok(Box::new(Calls { kind, announced, next: None }) as _)
        })
    }
}

/// Calls to an announced port.
struct Calls {
    kind: Kind,
    announced: Arc<datagram::Announced>,
    next: Option<Pin<Box<dyn Future<Output = io::Result<Line>> + Send>>>,
}

impl Announced for Calls {
    fn local(&self) -> String {
        Place::Ip(self.announced.port().local()).to_string()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Call>> {
        let announced = self.announced.clone();
        let next = self.next.get_or_insert_with(|| Box::pin(async move { announced.accept().await }));
        let line = ready!(next.as_mut().poll(cx));
        self.next = None;
        Poll::Ready(line.map(|line| call(line, self.kind)))
    }

    fn headers(&mut self) -> io::Result<Call> {
        match self.kind {
            Kind::Plain => self.announced.port().headers().map(|line| call(line, self.kind)),
            Kind::Il => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

fn call(line: Line, kind: Kind) -> Call {
    let (local, remote) = (line.local.clone(), line.remote.clone());
    Call { end: End::Messages(Box::new(Messages::new(line, kind == Kind::Plain))), local, remote }
}
