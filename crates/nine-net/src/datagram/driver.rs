//! Moves datagrams between the link and the lines, in one task.
//!
//! Always holds: a poll ends after [`DATAGRAMS_PER_POLL`] datagrams in each direction. If the link accepts no more, one
//! datagram waits here, and the rest in the queues of the lines.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::Future;
use std::io::{self, IoSlice};
use std::mem;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use nine_stream::{Block, Chain, Device, Fault, Pool, Reading};

use super::port::{DatagramPort, GONE, Kind, Line, LineKey, NewLine, OpeningWaker};
use super::{Came, DATAGRAMS_AT_ONCE, Link, Room, canonical, wide};
use crate::env::Timer;
use crate::il::{Header, Il, Kind as Packet, State};
use crate::lock::{Mutex, lock};

/// Datagrams per poll, in each direction.
const DATAGRAMS_PER_POLL: usize = 64;
/// Datagrams of one line before other lines send.
const LINE_BATCH_MAX: usize = 8;
/// Size of a buffer for one datagram.
const DATAGRAM_LEN_MAX: usize = 64 << 10;
/// Smaller datagrams are copied out of their buffer.
const COPIED_LEN_MAX: usize = 16 << 10;
/// Size of Plan 9's `headers`, in bytes.
const HEADERS: usize = 52;
/// Consecutive faults after which the link is given up, and the pause after each.
const FAULTS: u32 = 64;
const FAULT_PAUSE: Duration = Duration::from_millis(10);
/// Ended connections that are remembered: most of them, for how long, and how many closes of each are answered. The
/// peer may not have received the last one.
const ENDED: usize = 4096;
const ENDED_FOR: Duration = Duration::from_secs(30);
const ENDED_ANSWERS: u8 = 8;
/// How long a port stays for these answers after all else has ended.
const STAYS: Duration = Duration::from_secs(2);

/// See the module. Completes when the port, its announcements and all lines are gone. An error is the link's, and hangs
/// up all lines.
pub struct Driver<L> {
    shared: Arc<DatagramPort>,
    link: L,
    pool: Pool,
    /// Buffers for the next datagrams.
    rooms: Vec<Block>,
    lines: HashMap<u64, OpenLine>,
    ids: HashMap<LineKey, u64>,
    headers: Option<u64>,
    next: u64,
    /// Keyed by id too: a forged call exists beside the true one, and only one of them completes.
    half: HashMap<HalfOpenCall, Il>,
    /// Oldest first.
    half_order: VecDeque<HalfOpenCall>,
    ended: EndedLines,
    timers: BTreeSet<(Duration, u64)>,
    ready: Arc<ReadyLines>,
    /// Lines with something to send.
    turns: VecDeque<u64>,
    /// Datagrams that the link has not accepted, with their addresses.
    stuck: VecDeque<(Chain, SocketAddr, LocalIp)>,
    sleep: Option<(Duration, Timer)>,
    faults: u32,
    /// The pause after a fault of the link.
    pause: Option<Duration>,
}

/// Recently ended il connections. A close for any other one is not answered, because the answer is a close too: two
/// ends without a connection would answer each other forever.
#[derive(Default)]
struct EndedLines {
    left: HashMap<LineKey, (Duration, u8)>,
    order: VecDeque<(Duration, LineKey)>,
}

impl EndedLines {
    fn enter(&mut self, now: Duration, key: LineKey) {
        let key = anywhere(key);
        let is_old = |at: Duration| at + ENDED_FOR < now;
        while let Some((at, old)) = self.order.front().copied()
            && (is_old(at) || self.order.len() >= ENDED)
        {
            self.order.pop_front();
            if self.left.get(&old).is_some_and(|(newest, _)| *newest == at) {
                self.left.remove(&old);
            }
        }
        self.left.insert(key, (now, ENDED_ANSWERS));
        self.order.push_back((now, key));
    }

    /// Whether to answer a close.
    fn answers(&mut self, now: Duration, key: LineKey) -> bool {
        match self.left.get_mut(&anywhere(key)) {
            Some((at, left)) if *left > 0 && *at + ENDED_FOR >= now => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }
}

/// The key without our address, as it is stored for connections that we called.
fn anywhere(key: LineKey) -> LineKey {
    LineKey { here: None, ..key }
}

/// Our address in a connection, if there are several.
type LocalIp = Option<IpAddr>;

/// A half-open call, and the id in its first packet.
type HalfOpenCall = (LineKey, u32);

/// An open line.
struct OpenLine {
    key: LineKey,
    device: Device,
    reading: Reading,
    il: Option<Arc<Mutex<Il>>>,
    opening: Option<OpeningWaker>,
    waker: Arc<LineWaker>,
    due: Option<Duration>,
    headers: bool,
}

#[derive(Default)]
struct ReadyLines(Mutex<(Vec<u64>, Option<Waker>)>);

/// Wakes the driver from its timer: one waker for its whole life.
impl Wake for ReadyLines {
    fn wake(self: Arc<Self>) {
        let driver = lock(&self.0).1.take();
        driver.into_iter().for_each(Waker::wake);
    }
}

/// Queues a line for the driver.
struct LineWaker {
    id: u64,
    queued: AtomicBool,
    ready: Arc<ReadyLines>,
}

impl Wake for LineWaker {
    fn wake(self: Arc<Self>) {
        if self.queued.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut ready = lock(&self.ready.0);
        ready.0.push(self.id);
        let driver = ready.1.take();
        drop(ready);
        driver.into_iter().for_each(Waker::wake);
    }
}

impl<L: Link> Driver<L> {
    pub(super) fn new(shared: Arc<DatagramPort>, link: L) -> Self {
        let pool = Pool::new(8 << 20);
        let rooms = pool.try_alloc(DATAGRAM_LEN_MAX).into_iter().collect();
        Self {
            shared,
            link,
            pool,
            rooms,
            lines: HashMap::new(),
            ids: HashMap::new(),
            headers: None,
            next: 0,
            half: HashMap::new(),
            half_order: VecDeque::new(),
            ended: EndedLines::default(),
            timers: BTreeSet::new(),
            ready: Arc::default(),
            turns: VecDeque::new(),
            stuck: VecDeque::new(),
            sleep: None,
            faults: 0,
            pause: None,
        }
    }

    /// Takes over lines that callers have created.
    fn adopt_all(&mut self) {
        let made = mem::take(&mut self.shared.table().made);
        made.into_iter().for_each(|made| self.adopt(made));
    }

    fn adopt(&mut self, made: NewLine) {
        let NewLine { key, device, il, opening, headers } = made;
        let id = self.next;
        self.next += 1;
        let waker = Arc::new(LineWaker { id, queued: AtomicBool::new(true), ready: self.ready.clone() });
        let reading = device.reading();
        if headers {
            self.headers = Some(id);
        }
        self.ids.insert(key, id);
        let opening = il.is_some().then_some(opening);
        self.lines.insert(id, OpenLine { key, device, reading, il, opening, waker, due: None, headers });
        self.tick(id);
        self.turns.push_back(id);
    }

    fn tick(&mut self, id: u64) {
        if let Some(live) = self.lines.get(&id) {
            live.device.tick();
            self.touch(id);
        }
    }

    /// After any event of a line: updates its deadline, and wakes its dialler once the call is answered.
    fn touch(&mut self, id: u64) {
        let Some(live) = self.lines.get_mut(&id) else { return };
        let due = live.device.deadline();
        if due != live.due {
            live.due.map(|due| self.timers.remove(&(due, id)));
            due.map(|due| self.timers.insert((due, id)));
            live.due = due;
        }
        let answered = live.il.as_ref().is_some_and(|il| lock(il).state() != State::Syncer);
        if answered && let Some(opening) = live.opening.take() {
            let waker = lock(&opening).take();
            waker.into_iter().for_each(Waker::wake);
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(live) = self.lines.remove(&id) else { return };
        live.due.map(|due| self.timers.remove(&(due, id)));
        self.ids.remove(&live.key);
        if live.il.is_some() {
            self.ended.enter(self.shared.clock.now(), live.key);
        }
        if self.headers == Some(id) {
            self.headers = None;
        }
        self.shared.table().keys.remove(&live.key);
        if let Some(opening) = &live.opening {
            let waker = lock(opening).take();
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Receives datagrams. Returns whether there may be more.
    fn poll_in(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        if self.pause.is_some_and(|until| self.shared.clock.now() < until) {
            return Ok(false);
        }
        self.pause = None;
        let mut left = DATAGRAMS_PER_POLL;
        while left > 0 {
            let count = self.rooms.len();
            let mut blocks = self.rooms.iter_mut();
            let mut rooms: [Room<'_>; DATAGRAMS_AT_ONCE] =
                std::array::from_fn(|_| Room::new(blocks.next().and_then(Block::room).unwrap_or(&mut [])));
            match self.link.poll_recv(cx, &mut rooms[..count]) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(n)) => {
                    self.faults = 0;
                    let came = rooms.map(|room| room.came);
                    left = left.saturating_sub(n.max(1));
                    for (at, came) in came.into_iter().enumerate().take(n) {
                        if let Some(came) = came {
                            let block = self.take(at, came.len);
                            self.comes(block, Came { from: canonical(came.from), ..came });
                        }
                    }
                    // A full batch adds a buffer. With one datagram at a time two are enough: an empty one shows that
                    // there are no more.
                    if n == count && count < DATAGRAMS_AT_ONCE {
                        self.rooms.extend(self.pool.try_alloc(DATAGRAM_LEN_MAX));
                    }
                }
                Poll::Ready(Err(error)) => {
                    self.faults += 1;
                    if self.faults == FAULTS {
                        return Err(error);
                    }
                    self.pause = Some(self.shared.clock.now() + FAULT_PAUSE);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Takes a received datagram: a copy, or for a large one its buffer, if there is another. Readers may hold it for
    /// long.
    fn take(&mut self, at: usize, n: usize) -> Block {
        let fresh = if n < COPIED_LEN_MAX { None } else { self.pool.try_alloc(DATAGRAM_LEN_MAX) };
        let room = &mut self.rooms[at];
        match fresh {
            Some(fresh) => {
                room.filled(n);
                mem::replace(room, fresh)
            }
            None => Block::from(room.room().map_or(Vec::new(), |space| space[..n].to_vec())),
        }
    }

    fn comes(&mut self, block: Block, came: Came) {
        match self.shared.kind {
            Kind::Plain => self.plain_comes(block, came),
            Kind::Il => self.il_comes(block, came),
        }
    }

    fn plain_comes(&mut self, mut block: Block, came: Came) {
        let from = came.from;
        block.delim = true;
        let key = LineKey { addr: from, remote: 0, local: 0, here: came.here };
        let known = self.known(key).or(self.headers);
        let Some(id) = known.or_else(|| self.call(key, None)) else { return };
        let Some(live) = self.lines.get(&id) else { return };
        let mut chain = Chain::default();
        if live.headers {
            chain.push(Block::from(self.headers_of(came)));
        }
        chain.push(block);
        // A datagram that is not read in time is lost.
        let _ = live.device.try_put(chain);
    }

    fn headers_of(&self, Came { from, here, .. }: Came) -> Vec<u8> {
        let local = self.shared.local;
        let here = here.unwrap_or(local.ip());
        let mut bytes = Vec::with_capacity(HEADERS);
        for ip in [from.ip(), here, here] {
            bytes.extend(wide(ip).octets());
        }
        bytes.extend(from.port().to_be_bytes());
        bytes.extend(local.port().to_be_bytes());
        bytes
    }

    /// The line of a datagram: one that was called at this address, or one that has called.
    fn known(&self, key: LineKey) -> Option<u64> {
        self.ids.get(&key).or_else(|| self.ids.get(&anywhere(key))).copied()
    }

    fn il_comes(&mut self, mut block: Block, came: Came) {
        let Some((header, _)) = Header::parse(block.data()) else { return };
        let key = LineKey { addr: came.from, remote: header.src, local: header.dst, here: came.here };
        if let Some(id) = self.known(key) {
            if let Some(live) = self.lines.get(&id) {
                block.delim = true;
                let _ = live.device.try_put(block);
                self.touch(id);
            }
            return;
        }
        let now = self.shared.clock.now();
        let is_call = header.kind == Packet::Sync && header.ack == 0;
        let meant = |half: &&HalfOpenCall| half.0 == key && (!is_call || half.1 == header.id);
        let halves: Vec<HalfOpenCall> = self.half_order.iter().filter(meant).copied().collect();
        for half in &halves {
            if let Some(mut il) = self.half.remove(half) {
                il.receive(now, block.share());
                self.half_goes_on(*half, il, now);
            }
        }
        // Half-open calls may be forged. If none of them completes, the packet is answered as if there were none.
        if self.ids.contains_key(&key) || (is_call && !halves.is_empty()) {
            return;
        }
        let listens = self.shared.table().listens.get(&key.local).map(|listen| listen.calls.len());
        let takes = listens.is_some_and(|calls| calls < self.shared.limits.calls);
        if is_call && takes {
            if let Some(il) = Il::answer(now, self.shared.setup(key), block.data()) {
                if self.half.len() >= self.shared.limits.half
                    && let Some(oldest) = self.half_order.pop_front()
                {
                    self.half.remove(&oldest);
                }
                let half = (key, header.id);
                self.half_order.push_back(half);
                self.half_goes_on(half, il, now);
            }
        } else if header.kind != Packet::Close || self.ended.answers(now, key) {
            let nothing = header.reject();
            self.send_soon(nothing.packet(None, !self.link.has_sums()), came.from, came.here);
        }
    }

    /// Continues a half-open call after a packet or a timeout.
    fn half_goes_on(&mut self, half: HalfOpenCall, mut il: Il, now: Duration) {
        if il.state() == State::Syncee {
            while let Some(packet) = il.transmit(now) {
                self.send_soon(packet, half.0.addr, half.0.here);
            }
        }
        if il.state() == State::Syncee {
            self.half.insert(half, il);
            return;
        }
        self.half_order.retain(|other| *other != half);
        if il.state() != State::Closed {
            let _ = self.call(half.0, Some(Arc::new(Mutex::new(il))));
        }
    }

    /// Offers a call to a listener. If there is no room, it is dropped.
    fn call(&mut self, key: LineKey, il: Option<Arc<Mutex<Il>>>) -> Option<u64> {
        let shared = self.shared.clone();
        let mut table = shared.table();
        let is_room = table.keys.len() < shared.limits.lines;
        let listen = table.listens.get(&key.local)?;
        if !is_room || listen.calls.len() >= shared.limits.calls || !table.keys.insert(key) {
            return None;
        }
        drop(table);
        let (line, made) = shared.line(key, il, false);
        let id = self.next;
        self.adopt(made);
        self.offer(key.local, line);
        Some(id)
    }

    fn offer(&mut self, port: u16, line: Line) {
        let mut table = self.shared.table();
        let refused = match table.listens.get_mut(&port) {
            Some(listen) => {
                listen.calls.push_back(line);
                let waiting = mem::take(&mut listen.waiting);
                drop(table);
                waiting.into_iter().for_each(Waker::wake);
                None
            }
            None => {
                drop(table);
                Some(line)
            }
        };
        drop(refused);
    }

    /// Queues a packet without a line, if there is room.
    fn send_soon(&mut self, packet: Chain, to: SocketAddr, here: LocalIp) {
        if self.stuck.len() < DATAGRAMS_PER_POLL {
            self.stuck.push_back((packet, to, here));
        }
    }

    fn poll_stuck(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some((chain, to, here)) = self.stuck.pop_front() {
            let mut slices = [IoSlice::new(&[]); LINE_BATCH_MAX];
            let many: Vec<u8>;
            let used = if chain.blocks() <= LINE_BATCH_MAX {
                slices
                    .iter_mut()
                    .zip(chain.iter())
                    .for_each(|(slice, block)| *slice = IoSlice::new(block.data()));
                chain.blocks()
            } else {
                many = chain.iter().flat_map(Block::data).copied().collect();
                slices[0] = IoSlice::new(&many);
                1
            };
            if self.link.poll_send(cx, &slices[..used], to, here).is_pending() {
                self.stuck.push_front((chain, to, here));
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// Lets lines send in rotation. Returns whether there may be more.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> bool {
        let woken = mem::take(&mut lock(&self.ready.0).0);
        self.turns.extend(woken);
        let mut sent = 0;
        while sent < DATAGRAMS_PER_POLL {
            if self.poll_stuck(cx).is_pending() {
                return false;
            }
            let Some(id) = self.turns.pop_front() else { return false };
            sent += self.turn(id, cx);
        }
        let _ = self.poll_stuck(cx);
        true
    }

    /// Sends datagrams of one line. Returns their number.
    fn turn(&mut self, id: u64, cx: &mut Context<'_>) -> usize {
        for n in 0..LINE_BATCH_MAX {
            let Some(live) = self.lines.get_mut(&id) else { return n };
            live.waker.queued.store(false, Ordering::SeqCst);
            let waker = Waker::from(live.waker.clone());
            let (mut to, mut here) = (live.key.addr, live.key.here);
            match live.reading.poll(&mut Context::from_waker(&waker), Some(usize::MAX)) {
                Poll::Ready(Ok(Some(mut chain))) => {
                    if live.headers {
                        let Some((header_to, from, data)) = addressed(&mut chain) else { continue };
                        (to, chain) = (header_to, data);
                        // A source address can be chosen only on a socket bound to all addresses.
                        here = Some(from).filter(|_| self.shared.local.ip().is_unspecified());
                        here = here.filter(|here| !here.is_unspecified());
                    }
                    self.stuck.push_back((chain, to, here));
                    if self.poll_stuck(cx).is_pending() {
                        self.again(id);
                        return n + 1;
                    }
                }
                Poll::Ready(_) => {
                    self.remove(id);
                    return n + 1;
                }
                Poll::Pending => {
                    self.touch(id);
                    return n + 1;
                }
            }
        }
        self.again(id);
        LINE_BATCH_MAX
    }

    /// Queues the line again: it has more to send.
    fn again(&mut self, id: u64) {
        if let Some(live) = self.lines.get(&id)
            && !live.waker.queued.swap(true, Ordering::SeqCst)
        {
            self.turns.push_back(id);
        }
        self.touch(id);
    }

    /// Runs the lines and half-open calls whose deadline has passed.
    fn tick_due(&mut self) {
        let now = self.shared.clock.now();
        for _ in 0..DATAGRAMS_PER_POLL {
            let Some((due, id)) = self.timers.first().copied().filter(|(due, _)| *due <= now) else { break };
            self.timers.remove(&(due, id));
            if let Some(live) = self.lines.get_mut(&id) {
                live.due = None;
            }
            self.tick(id);
        }
        let late: Vec<HalfOpenCall> =
            self.half.iter().filter(|(_, il)| il.deadline() <= Some(now)).map(|(key, _)| *key).collect();
        for key in late {
            if let Some(il) = self.half.remove(&key) {
                self.half_goes_on(key, il, now);
            }
        }
    }

    /// Waits for the next deadline. Runs after everything that may set one.
    fn poll_sleep(&mut self) -> bool {
        let now = self.shared.clock.now();
        let half = self.half.values().filter_map(Il::deadline).min();
        let Some(next) = self
            .timers
            .first()
            .map(|(due, _)| *due)
            .into_iter()
            .chain(half)
            .chain(self.pause)
            .chain(self.stays())
            .min()
        else {
            self.sleep = None;
            return false;
        };
        if next <= now {
            return true;
        }
        // A timer that is too early stays: it leads here again, and most deadlines move later.
        let sleep = match &mut self.sleep {
            Some((until, sleep)) if *until <= next => sleep,
            other => &mut other.insert((next, self.shared.clock.sleep_until(next))).1,
        };
        let alarm = Waker::from(self.ready.clone());
        let ready = sleep.as_mut().poll(&mut Context::from_waker(&alarm)).is_ready();
        if ready {
            self.sleep = None;
        }
        ready
    }

    fn is_over(&self) -> bool {
        let table = self.shared.table();
        let is_idle = table.handles == 0 && table.made.is_empty() && self.lines.is_empty();
        drop(table);
        is_idle && self.stuck.is_empty() && self.stays().is_none()
    }

    /// Until when the port still answers closes, although all lines are gone: the last peer may not have received our
    /// close.
    fn stays(&self) -> Option<Duration> {
        let (at, _) = self.ended.order.back()?;
        Some(*at + STAYS).filter(|until| self.lines.is_empty() && self.shared.clock.now() < *until)
    }
}

impl<L: Link> Future for Driver<L> {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        lock(&this.ready.0).1 = Some(cx.waker().clone());
        this.shared.table().driver = Some(cx.waker().clone());
        this.adopt_all();
        let mut more = this.poll_in(cx)?;
        this.tick_due();
        more |= this.poll_out(cx);
        if this.is_over() {
            return Poll::Ready(Ok(()));
        }
        more |= this.poll_sleep();
        if more || !lock(&this.ready.0).0.is_empty() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<L> Drop for Driver<L> {
    /// Without a driver no data moves. Wakes all waiting tasks, and ends every line with an error.
    fn drop(&mut self) {
        let mut table = self.shared.table();
        table.over = true;
        let made = mem::take(&mut table.made);
        let listens = mem::take(&mut table.listens);
        drop(table);
        let live = self.lines.drain().map(|(_, live)| (live.device, live.il, live.opening));
        let made = made.into_iter().map(|made| (made.device, made.il, Some(made.opening)));
        for (device, il, opening) in live.chain(made) {
            match il {
                // Received data is read first.
                Some(il) => {
                    lock(&il).fail(GONE);
                    device.tick();
                }
                None => device.hangup(Some(Fault::new(GONE))),
            }
            let waker = opening.and_then(|opening| lock(&opening).take());
            waker.into_iter().for_each(Waker::wake);
        }
        listens.into_values().flat_map(|listen| listen.waiting).for_each(Waker::wake);
    }
}

/// Removes the headers from a written message. Returns the destination, the source, and the data. `None`: they are
/// incomplete.
fn addressed(chain: &mut Chain) -> Option<(SocketAddr, IpAddr, Chain)> {
    let bytes: Vec<u8> = chain.iter().flat_map(Block::data).copied().collect();
    let header = bytes.first_chunk::<HEADERS>()?;
    let ip = Ipv6Addr::from(*header.first_chunk::<16>()?);
    let port = u16::from_be_bytes([header[48], header[49]]);
    let to = canonical(SocketAddr::new(ip.into(), port));
    let from = Ipv6Addr::from(*header[16..].first_chunk::<16>()?);
    Some((to, IpAddr::V6(from).to_canonical(), Block::from(bytes[HEADERS..].to_vec()).into()))
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_close_is_answered_some_times_by_whatever_address_it_came() {
        let (mut ended, second) = (EndedLines::default(), Duration::from_secs(1));
        let key = |remote, here| LineKey { addr: ([10, 0, 0, 1], 7).into(), remote, local: 5000, here };
        let here = Some(IpAddr::from([10, 0, 0, 2]));
        ended.enter(second, key(1, None));
        assert!(!ended.answers(second, key(2, here)));
        for _ in 0..ENDED_ANSWERS {
            assert!(ended.answers(30 * second, key(1, here)));
        }
        assert!(!ended.answers(30 * second, key(1, here)));
        // Ended again under the same numbers, and long ago.
        ended.enter(20 * second, key(1, None));
        ended.enter(40 * second, key(3, here));
        assert!(ended.answers(50 * second, key(1, here)) && ended.answers(50 * second, key(3, None)));
        assert!(!ended.answers(51 * second, key(1, here)));
        for n in 0..ENDED as u16 {
            ended.enter(60 * second, key(n, None));
        }
        assert_eq!((ended.left.len(), ended.order.len()), (ENDED, ENDED));
    }
}
