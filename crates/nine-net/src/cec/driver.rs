//! Runs the state machines on a link and a clock, for callers on other threads.
//!
//! In: links, the card of a server or a server's setup. Out: a [`Call`] and a [`Host`], each with its driver, which the
//! caller runs; servers that were [found](discover).
//!
//! Always holds: no waker is called while the machine is locked. A driver yields after a batch of packets. A dropped
//! driver ends all waits.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::client::{Client, End};
use super::frame::{DATA_MAX, Frame, HEADER, Kind, Offer};
use super::server::{Event, Id, Server, Setup};
use crate::env::{Clock, Timer};
use crate::ether::Mac;
use crate::lock::{Mutex, lock};
use crate::nonet::Link;

/// Packets per poll, in each direction.
const PACKETS_PER_POLL: usize = 64;
/// Consecutive errors after which a link counts as gone.
const FAULTS: u32 = 64;
/// The interval between checks whether a link is gone or back.
const LOOK: Duration = Duration::from_secs(2);
/// Maximum number of servers listed.
const FOUND: usize = 1024;
/// How often the discovery broadcast is sent.
const TIMES: u32 = 3;
/// The number of a discovery, which distinguishes its answers from unsolicited offers.
const ASKED: u8 = 1;
/// The broadcast address.
const EVERYBODY: Mac = Mac([0xff; 6]);

/// A link with its buffers.
struct LinkPort<L> {
    link: L,
    room: Vec<u8>,
    out: Option<(Mac, Vec<u8>)>,
    faults: u32,
    /// Why the link is not usable.
    gone: Option<io::Error>,
}

impl<L: Link> LinkPort<L> {
    fn new(link: L) -> io::Result<Self> {
        let mtu = link.mtu();
        if mtu < HEADER + DATA_MAX {
            let why = format!("CEC needs packets of {} bytes, this link has {mtu}", HEADER + DATA_MAX);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self { link, room: vec![0; mtu], out: None, faults: 0, gone: None })
    }

    fn fails(&mut self, error: io::Error) {
        self.faults += 1;
        if error.kind() == io::ErrorKind::NotConnected || self.faults >= FAULTS {
            self.gone = Some(error);
        }
    }

    /// Passes received packets to `each`. Returns whether there may be more.
    fn receive(&mut self, cx: &mut Context<'_>, mut each: impl FnMut(Mac, &[u8])) -> bool {
        for _ in 0..PACKETS_PER_POLL {
            if self.gone.is_some() {
                return false;
            }
            match self.link.poll_recv(cx, &mut self.room) {
                Poll::Pending => return false,
                Poll::Ready(Ok((len, from))) => {
                    self.faults = 0;
                    each(from, &self.room[..len]);
                }
                Poll::Ready(Err(error)) => self.fails(error),
            }
        }
        true
    }

    /// Sends packets while the link accepts them. Returns whether there may be more. Packets for a link that is gone
    /// are lost.
    fn send(&mut self, cx: &mut Context<'_>, mut next: impl FnMut() -> Option<(Mac, Vec<u8>)>) -> bool {
        for _ in 0..PACKETS_PER_POLL {
            let Some((to, packet)) = self.out.take().or_else(&mut next) else { return false };
            if self.gone.is_some() {
                continue;
            }
            match self.link.poll_send(cx, to, &packet) {
                Poll::Pending => {
                    self.out = Some((to, packet));
                    return false;
                }
                Poll::Ready(Ok(())) => self.faults = 0,
                Poll::Ready(Err(error)) => self.fails(error),
            }
        }
        true
    }

    /// Checks whether the link is there, or there again.
    fn look(&mut self) {
        match self.link.check() {
            Ok(()) => (self.gone, self.faults) = (None, 0),
            Err(error) if self.gone.is_none() => self.gone = Some(error),
            Err(_) => {}
        }
        self.room.resize(self.link.mtu().max(HEADER + DATA_MAX), 0);
    }
}

/// Waits for a time that may change.
#[derive(Default)]
struct TimeWait(Option<(Duration, Timer)>);

impl TimeWait {
    /// Whether the time has come. If not, the task is woken then.
    fn poll(&mut self, cx: &mut Context<'_>, clock: &dyn Clock, until: Duration) -> bool {
        if until <= clock.now() {
            return true;
        }
        if self.0.as_ref().is_none_or(|(of, _)| *of != until) {
            self.0 = Some((until, clock.sleep_until(until)));
        }
        let Some((_, timer)) = &mut self.0 else { return false };
        let is_over = timer.as_mut().poll(cx).is_ready();
        if is_over {
            self.0 = None;
        }
        is_over
    }
}

/// A state machine, with the wakers of its driver and of waiting tasks.
struct DrivenMachine<M> {
    machine: Mutex<M>,
    driver: Mutex<Option<Waker>>,
    waiting: Mutex<Vec<Waker>>,
    clock: Arc<dyn Clock>,
}

impl<M> DrivenMachine<M> {
    fn new(machine: M, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (driver, waiting) = (Mutex::default(), Mutex::default());
        Arc::new(Self { machine: Mutex::new(machine), driver, waiting, clock })
    }

    /// Runs `work` on the machine, and wakes its driver.
    fn with<T>(&self, work: impl FnOnce(&mut M, Duration) -> T) -> T {
        let done = work(&mut lock(&self.machine), self.clock.now());
        let driver = lock(&self.driver).take();
        driver.into_iter().for_each(Waker::wake);
        done
    }

    /// Wakes the waiting tasks, because something may have happened.
    fn tell(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until `ready` returns a result. Its condition changes only by the driver, or by `ready` itself.
    async fn until<T>(&self, mut ready: impl FnMut(&mut M) -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut machine = lock(&self.machine);
            if let Some(found) = ready(&mut machine) {
                drop(machine);
                let driver = lock(&self.driver).take();
                driver.into_iter().for_each(Waker::wake);
                return Poll::Ready(found);
            }
            let mut waiting = lock(&self.waiting);
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

/// A connection to a server. Dropping it makes its driver end the connection.
pub struct Call(Arc<DrivenMachine<Client>>);

/// Runs a [`Call`]. Completes when the connection has ended, with the reason, or with the error of the link.
#[must_use = "nothing happens unless it is run"]
pub struct CallDriver<L> {
    shared: Arc<DrivenMachine<Client>>,
    server: Mac,
    port: LinkPort<L>,
    sleep: TimeWait,
    look: Duration,
}

/// Calls a server.
///
/// # Errors
/// `InvalidInput` if the packets of the link are too short.
pub fn call<L: Link>(link: L, server: Mac, clock: Arc<dyn Clock>) -> io::Result<(Call, CallDriver<L>)> {
    let (mut conn, mut chance) = ([0], [0; 4]);
    clock.entropy(&mut conn);
    clock.entropy(&mut chance);
    let look = clock.now() + LOOK;
    let shared = DrivenMachine::new(Client::new(clock.now(), conn[0], u32::from_ne_bytes(chance)), clock);
    let driver = CallDriver {
        shared: shared.clone(),
        server,
        port: LinkPort::new(link)?,
        sleep: TimeWait::default(),
        look,
    };
    Ok((Call(shared), driver))
}

impl Call {
    /// Waits until the server has agreed, or the connection has ended.
    pub async fn opened(&self) -> Result<(), End> {
        self.0.until(|client| client.end().map(Err).or_else(|| client.is_open().then_some(Ok(())))).await
    }

    /// Sends some of these bytes, when there is room. Returns how many. A dropped future has sent none.
    pub async fn send(&self, bytes: &[u8]) -> Result<usize, End> {
        self.0
            .until(|client| match client.end() {
                Some(end) => Some(Err(end)),
                None => Some(client.send(bytes)).filter(|n| *n > 0 || bytes.is_empty()).map(Ok),
            })
            .await
    }

    /// Waits for the next received bytes. After the last ones, returns how the connection ended.
    pub async fn recv(&self) -> Result<Vec<u8>, End> {
        self.0
            .until(|client| {
                let bytes = client.take();
                if bytes.is_empty() { client.end().map(Err) } else { Some(Ok(bytes)) }
            })
            .await
    }

    /// Waits until all data was acknowledged, or the connection has ended.
    pub async fn sent(&self) -> Result<(), End> {
        self.0.until(|client| client.end().map(Err).or_else(|| client.is_idle().then_some(Ok(())))).await
    }

    /// Whether all data was acknowledged.
    pub fn is_idle(&self) -> bool {
        lock(&self.0.machine).is_idle()
    }

    /// See [`Client::close`].
    pub fn close(&self) {
        self.0.with(|client, _| client.close());
        self.0.tell();
    }

    /// Ends the connection at once.
    pub fn quit(&self) {
        self.0.with(|client, _| client.quit());
        self.0.tell();
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.quit();
    }
}

impl<L: Link> Future for CallDriver<L> {
    type Output = io::Result<End>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<End>> {
        let Self { shared, server, port, sleep, look } = self.get_mut();
        *lock(&shared.driver) = Some(cx.waker().clone());
        if *look <= shared.clock.now() {
            port.look();
            *look = shared.clock.now() + LOOK;
        }
        let mut machine = lock(&shared.machine);
        let mut more = port.receive(cx, |from, packet| {
            if from == *server {
                machine.receive(packet);
            }
        });
        more |= port.send(cx, || machine.poll_packet(shared.clock.now()).map(|packet| (*server, packet)));
        let (end, deadline) = (machine.end(), machine.deadline());
        if port.gone.is_some() {
            machine.quit();
        }
        drop(machine);
        shared.tell();
        if let Some(error) = port.gone.take() {
            return Poll::Ready(Err(error));
        }
        if let (Some(end), None, None) = (end, deadline, &port.out) {
            return Poll::Ready(Ok(end));
        }
        // If the link has no room, it wakes the task.
        let due = deadline.filter(|_| port.out.is_none()).unwrap_or(*look).min(*look);
        if more || sleep.poll(cx, &*shared.clock, due) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<L> Drop for CallDriver<L> {
    fn drop(&mut self) {
        lock(&self.shared.machine).quit();
        self.shared.tell();
    }
}

/// A server's console on a link.
#[derive(Clone)]
pub struct Host(Arc<DrivenMachine<Server>>);

/// Runs a [`Host`], until it was closed and all clients were informed. If the link is gone, waits for it.
#[must_use = "nothing happens unless it is run"]
pub struct HostDriver<L> {
    shared: Arc<DrivenMachine<Server>>,
    port: LinkPort<L>,
    sleep: TimeWait,
    look: Duration,
    /// The loss of the link was logged.
    told: bool,
}

/// Serves a console on a link.
///
/// # Errors
/// `InvalidInput` if the packets of the link are too short.
pub fn host<L: Link>(link: L, setup: Setup, clock: Arc<dyn Clock>) -> io::Result<(Host, HostDriver<L>)> {
    let look = clock.now() + LOOK;
    let shared = DrivenMachine::new(Server::new(setup), clock);
    let port = LinkPort::new(link)?;
    Ok((Host(shared.clone()), HostDriver { shared, port, sleep: TimeWait::default(), look, told: false }))
}

impl Host {
    /// Waits for the next event. One task at a time may wait.
    pub async fn event(&self) -> Event {
        self.0.until(Server::event).await
    }

    /// See [`Server::answer`].
    pub fn answer(&self, id: Id, text: &str) {
        self.0.with(|server, now| server.answer(now, id, text));
        // Input typed meanwhile may contain another line.
        self.0.tell();
    }

    /// See [`Server::hang_up`].
    pub fn hang_up(&self, id: Id) {
        self.0.with(|server, _| server.hang_up(id));
    }

    /// See [`Server::close`].
    pub fn close(&self) {
        self.0.with(|server, _| server.close());
        self.0.tell();
    }
}

impl<L: Link> Future for HostDriver<L> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { shared, port, sleep, look, told } = self.get_mut();
        *lock(&shared.driver) = Some(cx.waker().clone());
        if *look <= shared.clock.now() {
            port.look();
            *look = shared.clock.now() + LOOK;
        }
        let mut machine = lock(&shared.machine);
        let mut more = port.receive(cx, |from, packet| machine.receive(shared.clock.now(), from, packet));
        more |= port.send(cx, || machine.poll_packet(shared.clock.now()));
        let (deadline, is_over) = (machine.deadline(), machine.is_closed());
        drop(machine);
        shared.tell();
        if is_over && deadline.is_none() && port.out.is_none() {
            return Poll::Ready(());
        }
        if *told != port.gone.is_some() {
            *told = !*told;
            match &port.gone {
                Some(error) => tracing::warn!("cec: {error}; it is looked for"),
                None => tracing::info!("cec: the interface is there again"),
            }
        }
        let due = deadline.filter(|_| port.out.is_none()).unwrap_or(*look).min(*look);
        if more || sleep.poll(cx, &*shared.clock, due) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// A server that has answered a discovery.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// Its description of itself.
    pub offer: Offer,
    /// Its card.
    pub mac: Mac,
    /// The index of the link on which it was seen.
    pub port: usize,
}

/// Asks all cards on these links, and listens for `patience`, or until a server is `wanted`.
///
/// # Errors
/// The error of one of the links, if all links are gone.
pub async fn discover<L: Link>(
    links: Vec<L>,
    patience: Duration,
    wanted: impl Fn(&Found) -> bool,
    clock: Arc<dyn Clock>,
) -> io::Result<Vec<Found>> {
    let mut ports = links.into_iter().map(LinkPort::new).collect::<io::Result<Vec<_>>>()?;
    let question = Frame { seq: ASKED, ..Frame::bare(Kind::Discover, 0) }.bytes();
    let mut found: BTreeSet<Found> = BTreeSet::new();
    for _ in 0..TIMES {
        let mut due: Vec<_> = ports.iter().map(|_| Some((EVERYBODY, question.clone()))).collect();
        let until = clock.now() + patience / TIMES;
        let mut sleep = TimeWait::default();
        let is_found = poll_fn(|cx| {
            let mut more = false;
            for (n, port) in ports.iter_mut().enumerate() {
                more |= port.send(cx, || due[n].take());
                more |= port.receive(cx, |mac, packet| {
                    let Some(Frame { kind: Kind::Offer, data, .. }) = Frame::parse(packet) else { return };
                    let offer = Offer::parse(data).filter(|_| found.len() < FOUND);
                    found.extend(offer.map(|offer| Found { offer, mac, port: n }));
                });
            }
            if found.iter().any(&wanted) {
                return Poll::Ready(true);
            }
            if sleep.poll(cx, &*clock, until) {
                return Poll::Ready(false);
            }
            if more {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await;
        if is_found {
            break;
        }
        if ports.iter().all(|port| port.gone.is_some())
            && let Some(error) = ports.iter_mut().find_map(|port| port.gone.take())
        {
            return Err(error);
        }
    }
    Ok(found.into_iter().collect())
}
