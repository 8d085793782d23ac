//! Calls on one link: dialling, announcing, and the task that moves packets for all calls.
//!
//! In: a [`Link`], announced services, dialled addresses. Out: [`Call`]s, and a [`Driver`], which the caller runs: it
//! receives, sends and waits for all timers.
//!
//! Always holds: a call is identified by the other end's address and the circuit of its packets. Calls send in
//! rotation. A caller that is not accepted yet takes only a slot in a queue. A packet of an unknown call is answered
//! once or not at all.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use nine_stream::{Block, Device, Fault, Limit, Make, Pool, Reading, Stream};

use super::call::Call;
use super::machine::{Nonet, RESEND_TIMEOUT, WITHHELD};
use super::module::halves;
use super::packet::{HANGUP, Medium, NEWCALL, NonetHeader, SERVICE, circuit, reset};
use crate::env::{Clock, Timer};
use crate::ether::{Mac, Packet, Room};
use crate::lock::{Mutex, lock};

/// A carrier of packets between cards. It may lose, repeat, corrupt and reorder them. An error of the kind
/// [`NotConnected`](io::ErrorKind::NotConnected) means that the link is gone for good; any other means a lost packet.
pub trait Link: Send + Unpin + 'static {
    /// Receives the next packet, with its sender. A packet that does not fit in `buf` is dropped.
    fn poll_recv(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<(usize, Mac)>>;

    /// Sends a packet whole, or loses it.
    fn poll_send(&mut self, cx: &mut Context<'_>, to: Mac, packet: &[u8]) -> Poll<io::Result<()>>;

    /// Receives packets, as many as are available and fit. Returns the number of rooms used, at least one. A room
    /// without a sender has no usable packet.
    fn poll_recv_many(&mut self, cx: &mut Context<'_>, rooms: &mut [Room<'_>]) -> Poll<io::Result<usize>> {
        let mut n = 0;
        while let Some(room) = rooms.get_mut(n) {
            match self.poll_recv(cx, room.bytes) {
                Poll::Ready(Ok((len, from))) => (room.came, n) = (Some((len, from)), n + 1),
                Poll::Ready(Err(error)) if n == 0 => return Poll::Ready(Err(error)),
                _ => break,
            }
        }
        if n == 0 { Poll::Pending } else { Poll::Ready(Ok(n)) }
    }

    /// Sends packets, each whole, or loses them. Returns how many were sent, at least one. An error concerns the first
    /// one.
    fn poll_send_many(&mut self, cx: &mut Context<'_>, packets: &[Packet<'_>]) -> Poll<io::Result<usize>> {
        let mut n = 0;
        while let Some(Packet { to, parts }) = packets.get(n) {
            match self.poll_send(cx, *to, &parts.concat()) {
                Poll::Ready(Ok(())) => n += 1,
                Poll::Ready(Err(error)) if n == 0 => return Poll::Ready(Err(error)),
                _ => break,
            }
        }
        if n == 0 { Poll::Pending } else { Poll::Ready(Ok(n)) }
    }

    /// Checks whether the link is there, or there again, for links that do not report it otherwise. Updates its
    /// [`mtu`](Link::mtu) and address.
    fn check(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// The longest packet, in bytes.
    fn mtu(&self) -> usize;

    /// Our own address.
    fn address(&self) -> Mac;
}

/// The longest name of a service or a user, in bytes: NAMELEN of the original.
pub const NAME_MAX: usize = 28;

/// Limits of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of calls per service that wait to be accepted. Further ones are not answered, and the callers try
    /// again.
    pub waiting: usize,
    /// Maximum number of calls that are open or being dialled. Beyond it no call is dialled or answered.
    pub calls: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { waiting: 16, calls: 1024 }
    }
}

/// Memory for the writes of a call, in bytes: in flight, and being written.
const WRITES: usize = 1 << 20;
/// The queue at either end of a call's stream.
const STREAM_QUEUE_LIMIT: Limit = Limit { bytes: WITHHELD, blocks: 256 };
/// Packets per poll, in each direction.
const PORT_PACKETS_PER_POLL: usize = 64;
/// The link is given up after this many consecutive send failures over this time, or this many receive failures.
const FAULTS: u32 = 64;
const FAULTY: Duration = Duration::from_secs(10);
/// The interval of checks of a link that failed to receive, until a packet comes.
const LOOK: Duration = Duration::from_secs(1);
/// Maximum number of queued answers to unknown circuits.
const RESETS: usize = 16;

/// The calls of one link. Clones share the port. When the last clone is dropped and no call is left, the driver ends.
#[derive(Clone)]
pub struct Port(Arc<PortHandle>);

struct PortHandle(Arc<NonetPort>);

struct NonetPort {
    address: Mac,
    medium: Medium,
    limits: Limits,
    make: Make,
    clock: Arc<dyn Clock>,
    state: Mutex<NonetPortState>,
    ready: Arc<ReadyCalls>,
}

#[derive(Default)]
struct NonetPortState {
    calls: HashMap<CircuitKey, KnownCall>,
    /// Calls that the driver has not taken over yet.
    new: Vec<(CircuitKey, Device)>,
    services: BTreeMap<String, NonetService>,
    circuit: u32,
    /// No clone of the port is left.
    closed: bool,
    /// The link has failed.
    failed: Option<Fault>,
}

/// The other end, and the circuit of received packets.
type CircuitKey = (Mac, u32);

/// A call, as the port stores it.
struct KnownCall {
    call: Arc<Mutex<Nonet>>,
    /// Wakes the dialler when the call is answered.
    dials: Option<Waker>,
}

/// A call, as its driver stores it.
struct DrivenCall {
    device: Device,
    reading: Reading,
    waker: Waker,
    /// The time for which its timer is set.
    deadline: Option<Duration>,
    /// It is in the driver's rotation.
    has_turn: bool,
}

#[derive(Default)]
struct NonetService {
    waiting: VecDeque<WaitingCall>,
    accepts: Option<Waker>,
}

/// A call that is not accepted yet.
struct WaitingCall {
    key: CircuitKey,
    user: String,
    /// When its last packet came.
    heard: Duration,
}

impl NonetService {
    /// Removes callers that have given up silently.
    fn expire(&mut self, now: Duration) {
        self.waiting.retain(|call| now < call.heard + RESEND_TIMEOUT);
    }
}

/// Calls with something to send.
#[derive(Default)]
struct ReadyCalls(Mutex<(BTreeSet<CircuitKey>, Option<Waker>)>);

impl ReadyCalls {
    fn wake(&self, key: Option<CircuitKey>) {
        let mut ready = lock(&self.0);
        ready.0.extend(key);
        let driver = ready.1.take();
        drop(ready);
        driver.into_iter().for_each(Waker::wake);
    }
}

/// Wakes the driver for a call, or for a timer.
struct CallWaker(Option<CircuitKey>, Arc<ReadyCalls>);

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.1.wake(self.0);
    }
}

/// Creates a port on a link, with its driver.
///
/// # Errors
/// `InvalidInput` if the packets of the link are shorter than [`Medium::LEAST`].
pub fn port<L: Link>(link: L, limits: Limits, clock: Arc<dyn Clock>) -> io::Result<(Port, Driver<L>)> {
    let mtu = link.mtu();
    if mtu < Medium::LEAST {
        let why = format!("nonet needs packets of {} bytes, this link has {mtu}", Medium::LEAST);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut random = [0; 4];
    clock.entropy(&mut random);
    let time = clock.clone();
    let make =
        Make { limit: STREAM_QUEUE_LIMIT, clock: Arc::new(move || time.now()), ..Make::new(Pool::new(0)) };
    let shared = Arc::new(NonetPort {
        address: link.address(),
        medium: Medium { mtu, ..Medium::ETHER },
        limits,
        make,
        clock,
        state: Mutex::new(NonetPortState {
            circuit: u32::from_le_bytes(random) & 0xff_fffe,
            ..NonetPortState::default()
        }),
        ready: Arc::default(),
    });
    let driver = Driver {
        link,
        shared: shared.clone(),
        calls: HashMap::new(),
        buf: vec![0; mtu],
        resets: VecDeque::new(),
        out: None,
        turns: VecDeque::new(),
        failing: None,
        deaf: 0,
        look: None,
        timers: BTreeSet::new(),
        sleep: None,
        alarm: Arc::new(CallWaker(None, shared.ready.clone())).into(),
    };
    Ok((Port(Arc::new(PortHandle(shared))), driver))
}

impl Port {
    /// Our own address.
    pub fn address(&self) -> Mac {
        self.0.0.address
    }

    /// Calls a service. Completes when the other end has answered, or with the error, after at most 25 s. Dropping the
    /// future hangs up.
    pub async fn dial(&self, to: Mac, service: &str, user: &str) -> Result<Call, Fault> {
        for name in [service, user] {
            if !is_name(name) {
                return Err(Fault::new(format!("{name:?} is no name: 1 to {NAME_MAX} bytes without blanks")));
            }
        }
        let (key, stream, call) = self.begin(to, format!("{service} {user}").into())?;
        let mut dialling = DiallingCall { shared: &self.0.0, key, call, stream: Some(stream) };
        poll_fn(|cx| dialling.poll(cx)).await?;
        // It is there until it is taken here.
        let stream = dialling.stream.take().ok_or_else(gone)?;
        Ok(Call::new(stream, dialling.call.clone(), to, service, user))
    }

    /// Accepts calls of a service until the [`Announced`] is dropped.
    pub fn announce(&self, service: &str) -> Result<Announced, Fault> {
        if !is_name(service) {
            return Err(Fault::new(format!("{service:?} is no name: 1 to {NAME_MAX} bytes without blanks")));
        }
        let mut state = lock(&self.0.0.state);
        if let Some(fault) = &state.failed {
            return Err(fault.clone());
        }
        if state.services.contains_key(service) {
            return Err(Fault::new(format!("{service} is announced already")));
        }
        state.services.insert(service.into(), NonetService::default());
        Ok(Announced { port: self.clone(), service: service.into() })
    }

    /// A line for each call: the other end, its circuit, and its counters.
    pub fn status(&self) -> String {
        let state = lock(&self.0.0.state);
        let line = |((to, circuit), known): (&CircuitKey, &KnownCall)| {
            format!("{to} {circuit} {}\n", lock(&known.call).status())
        };
        state.calls.iter().map(line).collect()
    }

    fn begin(&self, to: Mac, words: Vec<u8>) -> Result<(CircuitKey, Stream, Arc<Mutex<Nonet>>), Fault> {
        let shared = &self.0.0;
        let mut state = lock(&shared.state);
        if state.calls.len() >= shared.limits.calls {
            return Err(Fault::new(format!("there are {} calls already", shared.limits.calls)));
        }
        let key = loop {
            state.circuit = (state.circuit + 2) & 0xff_fffe;
            let key = (to, state.circuit | 1);
            if !state.calls.contains_key(&key) {
                break key;
            }
        };
        let call = Nonet::call(shared.medium, state.circuit, words);
        let (stream, call) = shared.enter(&mut state, key, call)?;
        drop(state);
        stream.tick();
        shared.ready.wake(Some(key));
        Ok((key, stream, call))
    }
}

fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|byte| byte > b' ' && byte != 0x7f)
}

fn gone() -> Fault {
    Fault::new("the link has gone")
}

impl NonetPort {
    /// Creates a stream for a call, and registers its device end.
    fn enter(
        &self,
        state: &mut NonetPortState,
        key: CircuitKey,
        call: Nonet,
    ) -> Result<(Stream, Arc<Mutex<Nonet>>), Fault> {
        if let Some(fault) = &state.failed {
            return Err(fault.clone());
        }
        let (stream, device) = Stream::new(&Make { pool: Pool::new(WRITES), ..self.make.clone() });
        let call = Arc::new(Mutex::new(call));
        stream.push_halves("nonet", halves(call.clone()))?;
        state.calls.insert(key, KnownCall { call: call.clone(), dials: None });
        state.new.push((key, device));
        Ok((stream, call))
    }
}

impl Drop for PortHandle {
    fn drop(&mut self) {
        lock(&self.0.state).closed = true;
        self.0.ready.wake(None);
    }
}

/// A call that is not answered yet. Dropping it hangs up.
struct DiallingCall<'p> {
    shared: &'p NonetPort,
    key: CircuitKey,
    call: Arc<Mutex<Nonet>>,
    stream: Option<Stream>,
}

impl DiallingCall<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let mut state = lock(&self.shared.state);
        let known = state.calls.get_mut(&self.key);
        let call = lock(&self.call);
        match call.result() {
            Some(how) => Poll::Ready(how.clone().and(Err(Fault::new("the other end has hung up")))),
            None if call.is_answered() => Poll::Ready(Ok(())),
            None => {
                let Some(known) = known else { return Poll::Ready(Err(gone())) };
                known.dials = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for DiallingCall<'_> {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            lock(&self.call).abort(Fault::new("given up"));
            stream.tick();
        }
    }
}

/// A service that accepts calls.
pub struct Announced {
    port: Port,
    service: String,
}

impl Announced {
    /// Its name.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// Waits for the next call. One task at a time may wait.
    pub async fn accept(&mut self) -> Result<Call, Fault> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// [`Announced::accept`] as a poll function.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Call, Fault>> {
        let shared = &self.port.0.0;
        let mut state = lock(&shared.state);
        if let Some(fault) = &state.failed {
            return Poll::Ready(Err(fault.clone()));
        }
        let Some(service) = state.services.get_mut(&self.service) else { return Poll::Ready(Err(gone())) };
        service.expire(shared.clock.now());
        let Some(WaitingCall { key, user, .. }) = service.waiting.pop_front() else {
            service.accepts = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let call = Nonet::answer(shared.medium, key.1 ^ 1, shared.clock.now());
        let (stream, call) = shared.enter(&mut state, key, call)?;
        drop(state);
        stream.tick();
        shared.ready.wake(Some(key));
        Poll::Ready(Ok(Call::new(stream, call, key.0, &self.service, &user)))
    }
}

impl Drop for Announced {
    /// Waiting callers are refused when they try again.
    fn drop(&mut self) {
        lock(&self.port.0.0.state).services.remove(&self.service);
    }
}

/// The task of a port: receives, sends and waits. Ends with the link's error, or when no port, call or service is left.
#[must_use = "nothing happens unless it is run"]
pub struct Driver<L> {
    link: L,
    shared: Arc<NonetPort>,
    calls: HashMap<CircuitKey, DrivenCall>,
    buf: Vec<u8>,
    resets: VecDeque<(Mac, Vec<u8>)>,
    /// A packet that the link has not accepted.
    out: Option<(Mac, Block)>,
    /// Calls that may have something to send, in order.
    turns: VecDeque<CircuitKey>,
    /// Consecutive send failures, and the time of the first.
    failing: Option<(u32, Duration)>,
    /// Consecutive receive failures.
    deaf: u32,
    /// When to check the link: it has failed, and no packet has come since.
    look: Option<Duration>,
    /// Deadlines of calls.
    timers: BTreeSet<(Duration, CircuitKey)>,
    sleep: Option<(Duration, Timer)>,
    /// The same waker always, so that a timer is not registered again.
    alarm: Waker,
}

impl<L: Link> Future for Driver<L> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.turn(cx);
        if let Poll::Ready(how) = &polled {
            let why = how.as_ref().err().map_or_else(gone, |error| Fault::new(error.to_string()));
            self.fail(&why);
        }
        polled
    }
}

impl<L> Drop for Driver<L> {
    fn drop(&mut self) {
        self.fail(&gone());
    }
}

impl<L: Link> Driver<L> {
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.shared.ready.0).1 = Some(cx.waker().clone());
        let mut busy = self.receive(cx)?;
        self.tick()?;
        busy |= self.send(cx)?;
        // After everything that may have changed a deadline.
        busy |= self.is_time();
        if busy {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let state = lock(&self.shared.state);
        let is_done = state.closed && state.calls.is_empty() && state.services.is_empty();
        drop(state);
        if is_done && self.resets.is_empty() && self.out.is_none() {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Receives packets. Returns whether there may be more.
    fn receive(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        for _ in 0..PORT_PACKETS_PER_POLL {
            match self.link.poll_recv(cx, &mut self.buf) {
                Poll::Pending => {
                    self.deaf = 0;
                    return Ok(false);
                }
                Poll::Ready(Ok((len, from))) => {
                    (self.deaf, self.look) = (0, None);
                    self.take(from, len);
                }
                Poll::Ready(Err(error)) => {
                    self.deaf += 1;
                    if is_gone(&error) {
                        return Err(error);
                    }
                    if self.deaf == FAULTS {
                        return Err(given_up(&error));
                    }
                    self.look = Some(self.shared.clock.now() + LOOK);
                }
            }
        }
        Ok(true)
    }

    /// Takes over new calls.
    fn adopt(&mut self) {
        for (key, device) in std::mem::take(&mut lock(&self.shared.state).new) {
            let waker = Arc::new(CallWaker(Some(key), self.shared.ready.clone())).into();
            let reading = device.reading();
            self.calls.insert(key, DrivenCall { device, reading, waker, deadline: None, has_turn: false });
        }
    }

    /// Passes a packet to its call.
    fn take(&mut self, from: Mac, len: usize) {
        let Some(circuit) = self.buf.get(..len).and_then(circuit) else { return };
        let key = (from, circuit);
        if !self.calls.contains_key(&key) {
            self.adopt();
        }
        let packet = &self.buf[..len];
        if let Some(driven) = self.calls.get(&key) {
            let mut block = Block::from(packet.to_vec());
            block.delim = true;
            // Always accepted, unless the call is over.
            let _ = driven.device.try_put(block);
            lock(&self.shared.ready.0).0.insert(key);
            return self.answered(key);
        }
        let Some((head, data)) = NonetHeader::decode(packet) else { return };
        let mut state = lock(&self.shared.state);
        if head.flags & HANGUP != 0 {
            state.services.values_mut().for_each(|service| service.waiting.retain(|call| call.key != key));
        } else if head.flags & NEWCALL != 0 {
            match called(head, data) {
                // A later packet of a call that is not accepted: it will be sent again.
                None => return,
                Some((service, user)) => {
                    let is_full = state.calls.len() >= self.shared.limits.calls;
                    if let Some(service) = state.services.get_mut(service) {
                        let heard = self.shared.clock.now();
                        service.expire(heard);
                        if let Some(known) = service.waiting.iter_mut().find(|call| call.key == key) {
                            known.heard = heard;
                        } else if !is_full && service.waiting.len() < self.shared.limits.waiting {
                            service.waiting.push_back(WaitingCall { key, user: user.into(), heard });
                            let accepts = service.accepts.take();
                            drop(state);
                            accepts.into_iter().for_each(Waker::wake);
                        }
                        return;
                    }
                }
            }
        }
        drop(state);
        if self.resets.len() < RESETS
            && let Some(answer) = reset(packet, self.shared.medium.min)
        {
            self.resets.push_back((from, answer));
        }
    }

    /// Runs calls whose deadline has passed.
    fn tick(&mut self) -> io::Result<()> {
        let now = self.shared.clock.now();
        for _ in 0..PORT_PACKETS_PER_POLL {
            let Some(first) = self.timers.first().copied().filter(|(deadline, _)| *deadline <= now) else {
                break;
            };
            self.timers.remove(&first);
            let key = first.1;
            let Some(driven) = self.calls.get_mut(&key) else { continue };
            driven.deadline = None;
            driven.device.tick();
            lock(&self.shared.ready.0).0.insert(key);
        }
        if self.look.is_some_and(|look| look <= now) {
            self.look = Some(now + LOOK);
            self.link.check().or_else(|error| if is_gone(&error) { Err(error) } else { Ok(()) })?;
        }
        Ok(())
    }

    /// Whether a deadline has passed. If not, waits for the next one.
    fn is_time(&mut self) -> bool {
        let first = self.timers.first().map(|(deadline, _)| *deadline);
        let Some(next) = first.into_iter().chain(self.look).min() else {
            self.sleep = None;
            return false;
        };
        // A timer that is too early stays: it leads here again, and most deadlines move later.
        let sleep = match &mut self.sleep {
            Some((until, sleep)) if *until <= next => sleep,
            other => &mut other.insert((next, self.shared.clock.sleep_until(next))).1,
        };
        let is_time = sleep.as_mut().poll(&mut Context::from_waker(&self.alarm)).is_ready();
        if is_time {
            self.sleep = None;
        }
        is_time
    }

    /// Sends packets of calls, in rotation. Returns whether there are more and the link may accept them.
    fn send(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let ready = std::mem::take(&mut lock(&self.shared.ready.0).0);
        // A ready call is known already, or new.
        self.adopt();
        for key in ready {
            if let Some(driven) = self.calls.get_mut(&key)
                && !std::mem::replace(&mut driven.has_turn, true)
            {
                self.turns.push_back(key);
            }
        }
        for _ in 0..PORT_PACKETS_PER_POLL {
            if self.poll_out(cx)?.is_pending() {
                // The link wakes the task.
                return Ok(false);
            }
            if let Some((to, answer)) = self.resets.pop_front() {
                self.out = Some((to, answer.into()));
            } else if let Some(key) = self.turns.pop_front() {
                self.take_from(key);
            } else {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the next packet of a call. After the last one the call leaves the rotation, and its deadline is updated.
    fn take_from(&mut self, key: CircuitKey) {
        let Some(driven) = self.calls.get_mut(&key) else { return };
        match driven.reading.poll(&mut Context::from_waker(&driven.waker), None) {
            Poll::Ready(Ok(Some(mut chain))) => {
                self.out = chain.pop().map(|packet| (key.0, packet));
                self.turns.push_back(key);
            }
            Poll::Ready(_) => self.remove(key),
            Poll::Pending => {
                driven.has_turn = false;
                let deadline = driven.device.deadline();
                if deadline != driven.deadline {
                    self.timers.extend(deadline.map(|deadline| (deadline, key)));
                    let old = std::mem::replace(&mut driven.deadline, deadline);
                    old.map(|old| self.timers.remove(&(old, key)));
                }
            }
        }
    }

    /// Removes a call that is over.
    fn remove(&mut self, key: CircuitKey) {
        let gone = self.calls.remove(&key);
        gone.and_then(|driven| driven.deadline).map(|deadline| self.timers.remove(&(deadline, key)));
        self.answered(key);
        lock(&self.shared.state).calls.remove(&key);
    }

    /// Wakes the dialler of a call, to check for the answer.
    fn answered(&self, key: CircuitKey) {
        let dials = lock(&self.shared.state).calls.get_mut(&key).and_then(|known| known.dials.take());
        dials.into_iter().for_each(Waker::wake);
    }

    /// Sends the packet that waits for the link. If that fails, the packet is lost.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        let Some((to, packet)) = &self.out else { return Ok(Poll::Ready(())) };
        match self.link.poll_send(cx, *to, packet.data()) {
            Poll::Ready(Ok(())) => self.failing = None,
            Poll::Ready(Err(error)) => {
                let now = self.shared.clock.now();
                let (faults, since) = self.failing.get_or_insert((0, now));
                *faults += 1;
                if is_gone(&error) {
                    return Err(error);
                }
                if *faults >= FAULTS && now >= *since + FAULTY {
                    return Err(given_up(&error));
                }
            }
            Poll::Pending => return Ok(Poll::Pending),
        }
        self.out = None;
        Ok(Poll::Ready(()))
    }
}

impl<L> Driver<L> {
    /// The link is gone: ends all calls, and wakes all waiting tasks.
    fn fail(&mut self, why: &Fault) {
        let mut state = lock(&self.shared.state);
        state.failed.get_or_insert_with(|| why.clone());
        let known = std::mem::take(&mut state.calls);
        let mut devices: Vec<_> =
            std::mem::take(&mut state.new).into_iter().map(|(_, device)| device).collect();
        let accepts: Vec<_> =
            state.services.values_mut().filter_map(|service| service.accepts.take()).collect();
        drop(state);
        known.values().for_each(|known| lock(&known.call).abort(why.clone()));
        devices.extend(self.calls.drain().map(|(_, driven)| driven.device));
        devices.iter().for_each(|device| device.hangup(Some(why.clone())));
        known.into_values().filter_map(|known| known.dials).for_each(Waker::wake);
        accepts.into_iter().for_each(Waker::wake);
    }
}

fn given_up(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the link fails again and again: {error}"))
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotConnected
}

/// The service and the user in a call. `None`: this is not the first message of one.
fn called(head: NonetHeader, data: &[u8]) -> Option<(&str, &str)> {
    let words = data.get(..usize::try_from(head.remain).ok()?)?;
    let first = head.mid == 1 && head.flags & SERVICE != 0 && head.circuit & 1 == 0;
    let (service, user) = std::str::from_utf8(words).ok()?.split_once(' ').filter(|_| first)?;
    (is_name(service) && is_name(user)).then_some((service, user))
}

#[cfg(test)]
mod tests;
