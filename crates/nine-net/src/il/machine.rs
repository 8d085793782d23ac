//! One connection: its state, its numbers, and its queues in both directions.
//!
//! In: packets, messages, the time. Out: packets, messages, a deadline. All ids have 64 bits here: 2^32 plus the id on
//! the wire, which is extended by the nearest known id.

mod sends;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use nine_stream::{Block, Fault};

use super::packet::{AckPayload, HEADER, Header, Kind, SyncPayload};
use super::path::{PathModel, PathStamp};

/// Memory of a stored message besides its bytes.
const COST: usize = 128;
/// Maximum number of messages in flight between new peers.
const IDS: u64 = 4096;
/// The same if a peer is old.
const OLD_IDS: u64 = 20;
/// Maximum number of unsent bytes before `send` is refused.
const UNSENT: usize = 256 << 10;
/// Maximum number of unread bytes of an old peer's messages.
const OLD_UNREAD: usize = 64 << 10;
/// The smallest window of a new peer, and the smallest limit for its messages.
const WINDOW_MIN: usize = 4096;
const MESSAGE_LEN_MIN: u32 = 512;
/// The connection fails after a message was lost this often although the peer answers. Up to the second number it is
/// sent again at once, then with growing pauses.
const TRIES: u8 = 64;
const FREE_TRIES: u8 = 8;
/// How long an acknowledgement waits for data to carry it; the same if a peer is old.
const ACK_DELAY: Duration = Duration::from_millis(1);
const OLD_ACK_DELAY: Duration = Duration::from_millis(100);
/// A timeout exceeds the measured time by this, the precision of timers.
const SLACK: Duration = Duration::from_millis(2);
/// The longest pause between retransmissions; the same if a peer is old.
const RESEND_PAUSE_MAX: Duration = Duration::from_secs(2);
const OLD_PAUSE: Duration = Duration::from_secs(30);
/// Silence after which a query is sent.
const QUERY_IDLE: Duration = Duration::from_secs(10);
/// Silence after which the peer is taken for dead.
const DEAD: Duration = Duration::from_secs(300);
/// How long a call, or a close, is repeated without an answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for the answer to a call, and how often it is repeated: the call may be forged.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWERS: u32 = 4;
/// How long sent messages are stored after the process is gone, for a peer that does not accept them.
const ORPHAN: Duration = Duration::from_secs(60);
/// The initial estimate of the round-trip time.
const GUESS: Duration = Duration::from_millis(100);

/// The parameters of a connection.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Local port.
    pub local: u16,
    /// Remote port.
    pub remote: u16,
    /// The initial id, which must be unpredictable.
    pub start: u32,
    /// The largest message that fits in one packet on this path, in bytes.
    pub largest: usize,
    /// Maximum number of bytes in unread input.
    pub window: usize,
    /// Maximum number of unacknowledged bytes stored here, whatever window the peer advertises.
    pub kept: usize,
    /// Packets get sums, because the layer below has none.
    pub sums: bool,
    /// Behaves as peers did before there were reports.
    pub old: bool,
}

/// The state of a connection. A listener has none: its port has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// This end has called.
    Syncer,
    /// This end was called, and has answered.
    Syncee,
    /// Both ends have received a packet of the other.
    Established,
    /// This end has sent a close.
    Closing,
    /// The connection is over.
    Closed,
}

/// See the module.
pub struct Il {
    setup: Setup,
    state: State,
    fault: Option<Fault>,
    refused: bool,
    /// The peer supports reports.
    new: bool,
    path: PathModel,
    /// Messages of the process that are not sent yet.
    unsent: VecDeque<Block>,
    unsent_cost: usize,
    /// Sent messages, from `next - flight.len()` on, that are not acknowledged in order.
    flight: VecDeque<SentMessageState>,
    flight_cost: usize,
    /// Bytes of them that are presumed to be in flight.
    on_way: usize,
    lost: usize,
    arrived: usize,
    next: u64,
    /// The peer's window after its ack.
    peer_window: usize,
    largest: usize,
    /// Counts transmissions, queries included.
    order: u64,
    /// The latest transmission that is known to have arrived.
    arrived_order: u64,
    /// The transmission count at query `n`.
    queries: [u64; 9],
    query: u8,
    /// The last id received in order.
    recvd: u64,
    peer_start: u64,
    early: BTreeMap<u64, Block>,
    early_cost: usize,
    inbox: VecDeque<Block>,
    /// Bytes of the inbox, and of the message being delivered.
    inbox_cost: usize,
    /// The cost of the message being delivered; 0: there is none.
    in_hand: usize,
    /// The rest of the window advertised to the peer.
    told: usize,
    newest: Option<(u64, u8, Duration)>,
    /// The process has closed, or the peer has.
    closing: bool,
    peer_closed: bool,
    close_acked: bool,
    /// The process is gone: it reads nothing, and its sent messages have a time limit.
    orphaned: bool,
    /// Messages received since the last ack.
    unacked: u32,
    due: DuePackets,
    timers: IlTimers,
    counts: IlCounters,
}

struct SentMessageState {
    /// Empty after it has arrived.
    block: Block,
    cost: usize,
    order: u64,
    stamp: PathStamp,
    times: u8,
    fate: MessageFate,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MessageFate {
    OnWay,
    Lost,
    Arrived,
}

/// Packets to send as soon as possible.
#[derive(Default)]
struct DuePackets {
    sync: bool,
    ack: bool,
    query: bool,
    close: bool,
    state: Option<u8>,
    /// A close for an unknown connection.
    reject: Option<Header>,
    /// The first message in flight is sent again as a dataquery.
    ask: bool,
}

#[derive(Default)]
struct IlTimers {
    ack: Option<Duration>,
    /// The retransmission of a sync, data, query or close.
    again: Option<Duration>,
    tries: u32,
    heard: Duration,
    asked: Duration,
    /// When the close, or the call, started.
    began: Duration,
    /// When the connection ends in any case: the process is gone.
    orphan: Option<Duration>,
}

#[derive(Default)]
struct IlCounters {
    sent: u64,
    resent: u64,
    received: u64,
    duplicates: u64,
    dropped: u64,
}

fn cost(block: &Block) -> usize {
    block.len() + COST
}

/// The id nearest to `near` with these low 32 bits.
fn extend(near: u64, id: u32) -> u64 {
    near.wrapping_add_signed(i64::from(id.wrapping_sub(near as u32) as i32))
}

impl Il {
    /// Starts a call.
    pub fn call(now: Duration, setup: Setup) -> Self {
        let mut il = Self::new(now, setup, State::Syncer);
        il.due.sync = true;
        il
    }

    /// Answers a call, whose sync is `packet`. `None`: it is not a call.
    pub fn answer(now: Duration, setup: Setup, packet: &[u8]) -> Option<Self> {
        let (header, len) = Header::parse(packet)?;
        if header.kind != Kind::Sync || header.ack != 0 {
            return None;
        }
        let mut il = Self::new(now, setup, State::Syncee);
        il.hears_sync(header.id, &packet[HEADER..HEADER + len]);
        il.due.sync = true;
        Some(il)
    }

    fn new(now: Duration, setup: Setup, state: State) -> Self {
        let next = (1 << 32) + u64::from(setup.start) + 1;
        let timers = IlTimers { heard: now, asked: now, began: now, ..IlTimers::default() };
        Self {
            state,
            fault: None,
            refused: false,
            new: false,
            path: PathModel::new(setup.largest + COST, GUESS),
            unsent: VecDeque::new(),
            unsent_cost: 0,
            flight: VecDeque::new(),
            flight_cost: 0,
            on_way: 0,
            lost: 0,
            arrived: 0,
            next,
            peer_window: usize::MAX,
            largest: setup.largest,
            order: 0,
            arrived_order: 0,
            queries: [0; 9],
            query: 0,
            recvd: 0,
            peer_start: 0,
            early: BTreeMap::new(),
            early_cost: 0,
            inbox: VecDeque::new(),
            inbox_cost: 0,
            in_hand: 0,
            told: setup.window,
            newest: None,
            closing: false,
            peer_closed: false,
            close_acked: false,
            orphaned: false,
            unacked: 0,
            due: DuePackets::default(),
            timers,
            counts: IlCounters::default(),
            setup,
        }
    }

    /// Handles the peer's sync.
    fn hears_sync(&mut self, id: u32, payload: &[u8]) {
        self.peer_start = (1 << 32) + u64::from(id);
        self.recvd = self.peer_start;
        let is_fit =
            |hello: &SyncPayload| hello.window as usize >= WINDOW_MIN && hello.largest >= MESSAGE_LEN_MIN;
        let hello = SyncPayload::parse(payload).filter(|hello| is_fit(hello) && !self.setup.old);
        if let Some(hello) = hello {
            self.new = true;
            self.peer_window = (hello.window as usize).min(self.setup.kept);
            let fits = (hello.largest as usize).min(self.peer_window - COST);
            self.largest = self.largest.min(fits.max(1));
        }
    }

    /// The present state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether the call was refused: there is no listener, or it accepts no calls now.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Ends the connection because the layer below is gone.
    pub fn fail(&mut self, why: &str) {
        if self.state != State::Closed {
            self.fails(why);
        }
    }

    /// The error with which it has ended, if any.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Whether it is over and all received messages are delivered. After the peer's close its packets are still
    /// handled: they acknowledge earlier messages.
    pub fn is_at_end(&self) -> bool {
        self.state == State::Closed && self.inbox.is_empty() && self.in_hand == 0
    }

    /// The largest message, in bytes, as far as is known.
    pub fn largest(&self) -> usize {
        self.largest
    }

    /// Whether [`Il::send`] must wait: too much is unsent, or the peer has closed.
    pub fn is_full(&self) -> bool {
        self.fault.is_none() && (self.unsent_cost >= UNSENT || self.peer_closed)
    }

    /// Whether some work is left before it may end.
    pub fn holds(&self) -> bool {
        let waits = !self.unsent.is_empty() || !self.flight.is_empty() || self.closing;
        self.state != State::Closed && waits
    }

    /// Queues a message of the process. Fails if it is too large, or the connection is over.
    pub fn send(&mut self, message: Block) -> Result<(), Fault> {
        if self.closing || self.state == State::Closed {
            return Err(self.fault.clone().unwrap_or_else(|| Fault::new("the conversation is closed")));
        }
        if message.len() > self.largest {
            let (is, may) = (message.len(), self.largest);
            return Err(Fault::new(format!("a message has {is} bytes, and may have {may}")));
        }
        self.unsent_cost += cost(&message);
        self.unsent.push_back(message);
        Ok(())
    }

    /// Takes the next message for the process. This frees the one before, unless that was put back.
    pub fn deliver(&mut self) -> Option<Block> {
        self.inbox_cost -= std::mem::take(&mut self.in_hand);
        let block = self.inbox.pop_front()?;
        self.in_hand = cost(&block);
        Some(block)
    }

    /// Puts back a message that the process does not accept now.
    pub fn undeliver(&mut self, block: Block) {
        self.in_hand = 0;
        self.inbox.push_front(block);
    }

    /// Closes: sent messages still arrive, then both ends close.
    pub fn close(&mut self) {
        self.closing = true;
        if self.state == State::Syncer {
            self.state = State::Closed;
        }
    }

    /// Reports that the process is gone. Its sent messages still arrive, if the peer accepts them within a minute.
    pub fn orphan(&mut self) {
        self.orphaned = true;
    }

    /// A line for `status`.
    pub fn status(&self) -> String {
        let IlCounters { sent, resent, received, duplicates, dropped } = self.counts;
        format!(
            "{:?} rtt {} us window {} rate {} sent {sent} resent {resent} received {received} duplicates \
             {duplicates} dropped {dropped} unacked {} {}",
            self.state,
            self.path.rtt.as_micros(),
            self.path.may().min(self.peer_window),
            self.path.rate(),
            self.flight.len(),
            if self.new { "new" } else { "old" },
        )
    }

    /// Packets dropped because they were broken or not of this connection.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped
    }

    /// Messages that were sent more than once.
    pub fn resent(&self) -> u64 {
        self.counts.resent
    }

    /// When to call [`Il::transmit`] at the latest.
    pub fn deadline(&self) -> Option<Duration> {
        if self.state == State::Closed {
            return None;
        }
        let IlTimers { ack, again, heard, asked, began, orphan, .. } = self.timers;
        let idle =
            if self.is_opening() { None } else { Some((heard.max(asked) + QUERY_IDLE).min(heard + DEAD)) };
        let patience = self.is_unanswered().then_some(began + self.answer_within());
        [ack, again, idle, patience, orphan].into_iter().flatten().min()
    }

    fn is_opening(&self) -> bool {
        matches!(self.state, State::Syncer | State::Syncee)
    }

    /// Whether its call, or its close, is unanswered.
    fn is_unanswered(&self) -> bool {
        self.is_opening() || (self.has_closed() && !self.close_acked)
    }

    fn answer_within(&self) -> Duration {
        if self.state == State::Syncee { ANSWER_TIMEOUT } else { CALL_TIMEOUT }
    }

    fn window(&self) -> usize {
        self.setup.window.saturating_sub(self.inbox_cost)
    }

    fn first(&self) -> u64 {
        self.next - self.flight.len() as u64
    }

    fn fails(&mut self, why: &str) {
        self.state = State::Closed;
        self.fault.get_or_insert_with(|| Fault::new(why));
        self.forgets_sent();
    }

    /// Drops all unsent and unacknowledged messages.
    fn forgets_sent(&mut self) {
        self.unsent.clear();
        self.flight.clear();
        (self.unsent_cost, self.flight_cost, self.on_way, self.lost, self.arrived) = (0, 0, 0, 0, 0);
    }

    fn ids(&self) -> u64 {
        if self.new { IDS } else { OLD_IDS }
    }

    /// Handles a received packet. A packet of another connection is dropped and counted.
    pub fn receive(&mut self, now: Duration, mut packet: Block) {
        let parsed = Header::parse(packet.data());
        let of_us = |header: &Header| header.src == self.setup.remote && header.dst == self.setup.local;
        let Some((header, len)) = parsed.filter(|(header, _)| of_us(header)) else {
            self.counts.dropped += 1;
            return;
        };
        packet.advance(HEADER);
        packet.truncate(len);
        let taken = match self.state {
            State::Syncer => self.hears_answer(&header, packet.data()),
            State::Closed => false,
            _ => self.hears(now, &header, packet),
        };
        match taken {
            true => self.timers.heard = now,
            false => self.counts.dropped += 1,
        }
    }

    /// Handles a packet in the state `Syncer`.
    fn hears_answer(&mut self, header: &Header, payload: &[u8]) -> bool {
        let is_ours = header.ack == self.setup.start;
        match header.kind {
            Kind::Sync if is_ours => {
                self.hears_sync(header.id, payload);
                self.state = State::Established;
                (self.timers.again, self.timers.tries) = (None, 0);
                self.due.ack = true;
            }
            Kind::Close if is_ours => {
                self.refused = true;
                self.fails("the call is refused");
            }
            Kind::Sync | Kind::Close => return false,
            // An earlier connection with these ports is still open at the other end.
            _ => {
                self.due.reject = Some(header.reject());
                return false;
            }
        }
        true
    }

    fn hears(&mut self, now: Duration, header: &Header, packet: Block) -> bool {
        if header.kind == Kind::Sync {
            let same = header.id == self.peer_start as u32;
            self.due.sync |= same && self.state == State::Syncee && header.ack == 0;
            self.due.ack |= self.state != State::Syncee;
            return same;
        }
        let (id, ack) = (extend(self.recvd, header.id), extend(self.next, header.ack));
        // A peer that does not know this connection answers with the number of a control packet.
        let any = self.has_closed() || header.kind == Kind::Close;
        let last = if any { self.next } else { self.next - 1 };
        let reach = self.ids() + 1;
        let near = id + reach > self.recvd && id <= self.recvd + reach;
        if !near || ack > last || ack + reach < self.first() {
            return false;
        }
        if self.state == State::Syncee {
            if ack < self.next - 1 {
                return false;
            }
            self.state = State::Established;
            (self.timers.again, self.timers.tries) = (None, 0);
            self.due.sync = false;
        }
        let report = match header.kind {
            Kind::Ack | Kind::State if self.new => AckPayload::parse(packet.data()),
            _ => None,
        };
        match header.kind {
            Kind::Data | Kind::DataQuery => {
                self.hears_ack(now, ack, None);
                let taken = self.takes(now, id, header.spec, packet);
                if header.kind == Kind::DataQuery {
                    self.due.state = Some(header.spec);
                }
                return taken;
            }
            Kind::Query => {
                self.hears_ack(now, ack, None);
                self.due.state = Some(header.spec);
            }
            Kind::Ack => self.hears_ack(now, ack, report),
            Kind::State => {
                self.hears_ack(now, ack, report);
                self.hears_state(now, usize::from(header.spec));
            }
            Kind::Close => return self.hears_close(now, id, ack),
            Kind::Sync => {}
        }
        true
    }

    fn has_closed(&self) -> bool {
        self.state == State::Closing
    }

    /// Handles an ack up to `ack`, and the report of later messages.
    fn hears_ack(&mut self, now: Duration, ack: u64, report: Option<AckPayload>) {
        if self.has_closed() && ack == self.next {
            self.close_acked = true;
            self.may_be_over();
        }
        let first = self.first();
        if ack + 1 < first {
            // An older one, without new information.
            return;
        }
        let (mut bytes, mut newest) = (0, None::<(u64, PathStamp)>);
        let arrives = |sent: &SentMessageState, newest: &mut Option<(u64, PathStamp)>| {
            if newest.is_none_or(|(order, _)| order < sent.order) {
                *newest = Some((sent.order, sent.stamp));
            }
        };
        let mut measured = false;
        if let Some(report) = &report {
            self.peer_window = (report.window as usize).min(self.setup.kept);
            let at = extend(self.next, report.newest).wrapping_sub(first);
            let told = self.flight.get(usize::try_from(at).unwrap_or(usize::MAX));
            if let Some(sent) =
                told.filter(|sent| sent.times == report.times && sent.fate != MessageFate::Arrived)
            {
                let took = now.saturating_sub(sent.stamp.sent);
                let rtt = took.saturating_sub(Duration::from_micros(report.delay.into()));
                self.path.measured(now, rtt.max(Duration::from_micros(1)));
                measured = true;
            }
        }
        let (mut once, mut again) = (None, false);
        while self.first() <= ack
            && let Some(sent) = self.flight.pop_front()
        {
            let cost = sent.cost;
            self.flight_cost -= cost;
            if self.new && report.is_none() {
                // An ack shows that messages were accepted. Only a report shows that they were read.
                self.peer_window = self.peer_window.saturating_sub(cost);
            }
            match sent.fate {
                MessageFate::OnWay => self.on_way -= cost,
                MessageFate::Lost => self.lost -= 1,
                MessageFate::Arrived => self.arrived -= 1,
            }
            if sent.fate != MessageFate::Arrived {
                bytes += cost;
                arrives(&sent, &mut newest);
                // A message that waited behind a retransmitted one gives no measurement.
                again |= sent.times > 0;
                once = Some(sent.stamp.sent).filter(|_| !again);
            }
        }
        if !measured && let Some(sent) = once {
            self.path.measured(now, now.saturating_sub(sent));
        }
        let first = self.first();
        let mut above = first;
        for (from, to) in report.iter().flat_map(|report| &report.ranges) {
            let (from, to) = (extend(self.next, *from), extend(self.next, *to));
            // Ascending, so that a report costs no more work than the messages in flight.
            if from < above || to >= self.next || to < from {
                continue;
            }
            above = to + 1;
            for sent in self.flight.range_mut((from - first) as usize..=(to - first) as usize) {
                let cost = sent.cost;
                match sent.fate {
                    MessageFate::Arrived => continue,
                    MessageFate::OnWay => self.on_way -= cost,
                    MessageFate::Lost => self.lost -= 1,
                }
                sent.fate = MessageFate::Arrived;
                sent.block = Block::from(Vec::new());
                self.arrived += 1;
                bytes += cost;
                arrives(sent, &mut newest);
            }
        }
        if let Some((order, _)) = newest {
            self.arrived_order = self.arrived_order.max(order);
            (self.timers.again, self.timers.tries) = (None, 0);
        }
        // A message that is only late is not lost.
        let (overtaken, turn) = (self.arrived_order, self.path.rtt + self.path.deviation);
        let lost = match self.arrived {
            0 => 0,
            _ => self.lose(now, |sent| sent.order + 3 <= overtaken && now >= sent.stamp.sent + turn).0,
        };
        self.path.delivers(now, bytes, newest.map(|(_, stamp)| stamp), lost);
    }

    /// Marks messages in flight as lost if `is_lost`. Returns their bytes, and when the first paused one may be marked.
    fn lose(
        &mut self,
        now: Duration,
        is_lost: impl Fn(&SentMessageState) -> bool,
    ) -> (usize, Option<Duration>) {
        let (mut bytes, mut paused, rtt) = (0, None::<Duration>, self.path.rtt);
        // A message that is lost repeatedly gets pauses: the path may not accept it now.
        let pause = |times: u8| match times.checked_sub(FREE_TRIES) {
            Some(more) => (rtt * (1 << more.min(16))).min(RESEND_PAUSE_MAX),
            None => Duration::ZERO,
        };
        for sent in self.flight.iter_mut().filter(|sent| sent.fate == MessageFate::OnWay) {
            let until = sent.stamp.sent + pause(sent.times);
            if !is_lost(sent) {
                continue;
            }
            if now < until {
                paused = Some(paused.map_or(until, |soonest| soonest.min(until)));
            } else {
                sent.fate = MessageFate::Lost;
                self.lost += 1;
                bytes += sent.cost;
            }
        }
        self.on_way -= bytes;
        (bytes, paused)
    }

    /// Handles the answer to query `n`, with the messages received before it. Earlier transmissions that are missing
    /// are lost.
    fn hears_state(&mut self, now: Duration, n: usize) {
        let Some(before) = self.queries.get_mut(n).map(std::mem::take).filter(|before| *before > 0) else {
            return;
        };
        self.timers.again = None;
        if !self.flight.is_empty() {
            self.timers.tries = 0;
        }
        if self.new {
            let (lost, paused) = self.lose(now, |sent| sent.order < before);
            if lost == 0 {
                // The query is repeated when something may be sent.
                self.timers.again = paused;
            }
        } else if let Some(sent) = self.flight.front_mut().filter(|sent| sent.order < before) {
            if sent.fate == MessageFate::OnWay {
                sent.fate = MessageFate::Lost;
                self.lost += 1;
                self.on_way -= sent.cost;
            }
            self.due.ask = true;
        }
    }

    /// Handles received data.
    fn takes(&mut self, now: Duration, id: u64, times: u8, block: Block) -> bool {
        if self.peer_closed || id <= self.recvd || self.early.contains_key(&id) {
            self.counts.duplicates += 1;
            self.due.ack = true;
            return true;
        }
        let is_next = id == self.recvd + 1;
        let held = self.inbox_cost + self.early_cost;
        let fits = match self.new {
            true => held + cost(&block) <= self.setup.window || (is_next && self.inbox.is_empty()),
            false => self.inbox_cost < OLD_UNREAD,
        };
        if id > self.recvd + self.ids() || !fits {
            // It is sent again when there is room.
            self.due.ack |= self.new;
            return true;
        }
        self.newest = Some((id, times, now));
        self.counts.received += 1;
        if is_next {
            self.come(block);
            while let Some(block) = self.early.remove(&(self.recvd + 1)) {
                self.early_cost -= cost(&block);
                self.come(block);
            }
        } else {
            self.early_cost += cost(&block);
            self.early.insert(id, block);
            self.due.ack |= self.new;
        }
        self.unacked += 1;
        if self.unacked >= 2 && self.new {
            self.due.ack = true;
        } else if self.timers.ack.is_none() {
            self.timers.ack = Some(now + if self.new { ACK_DELAY } else { OLD_ACK_DELAY });
        }
        true
    }

    fn come(&mut self, block: Block) {
        self.recvd += 1;
        self.told = self.told.saturating_sub(cost(&block));
        self.inbox_cost += cost(&block);
        self.inbox.push_back(block);
    }

    fn hears_close(&mut self, now: Duration, id: u64, ack: u64) -> bool {
        let knows_nothing = id == self.recvd && !self.peer_closed;
        if self.has_closed() && ack == self.next && knows_nothing {
            if self.new {
                // A peer that ends regularly sends a close, and gets its ack, before it forgets the connection.
                self.fails("the peer has forgotten the conversation");
                return true;
            }
            // A peer that is gone already does not know us.
            self.peer_closed = true;
            self.close_acked = true;
            self.may_be_over();
            return true;
        }
        if knows_nothing && self.has_closed() {
            // It answers a late packet.
            return false;
        }
        if knows_nothing {
            self.fails("the peer has ended the conversation");
            return true;
        }
        let in_order = id == self.recvd + 1;
        if !self.peer_closed && !in_order && (self.new || id <= self.recvd) {
            return false;
        }
        self.hears_ack(now, ack, None);
        self.due.ack = true;
        if self.peer_closed {
            self.due.close |= self.has_closed();
            return true;
        }
        if !in_order {
            self.fails("the peer has closed, and messages are missing");
            self.due.close = true;
            return true;
        }
        self.recvd += 1;
        (self.peer_closed, self.closing) = (true, true);
        self.early.clear();
        self.early_cost = 0;
        if !self.new {
            // The peer accepts nothing any more.
            self.forgets_sent();
        }
        self.due.close |= self.has_closed();
        self.may_be_over();
        true
    }

    fn may_be_over(&mut self) {
        if self.peer_closed && self.close_acked {
            self.state = State::Closed;
            // The other end may not have received our close.
            self.due.close = true;
        }
    }
}
