//! One conversation: its state, its numbers, what waits in either direction.
//!
//! In: packets, messages, the time. Out: packets, messages, a deadline. All ids are kept as 64 bits here: 2^32 and what
//! is on the wire, which is extended by what is next to it.

mod sends;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use nine_stream::{Block, Fault};

use super::packet::{HEADER, Header, Hello, Kind, Report};
use super::path::{Path, Stamp};

/// What keeping a message costs beside its bytes.
const COST: usize = 128;
/// Messages that may be outstanding between new peers.
const IDS: u64 = 4096;
/// The same where a peer is old.
const OLD_IDS: u64 = 20;
/// What waits to be sent at most before `send` is refused, bytes.
const UNSENT: usize = 256 << 10;
/// What an old peer's messages may take that nobody reads, bytes.
const OLD_UNREAD: usize = 64 << 10;
/// The smallest window that a new peer may have, and the smallest of its largest messages.
const SMALLEST: usize = 4096;
const SMALLEST_MESSAGE: u32 = 512;
/// A message that is lost so often, while the peer answers, will not get through; and so often it is sent again at
/// once before pauses grow between.
const TRIES: u8 = 64;
const FREE_TRIES: u8 = 8;
/// An acknowledgement waits for company so long; so long where a peer is old.
const ACK_DELAY: Duration = Duration::from_millis(1);
const OLD_ACK_DELAY: Duration = Duration::from_millis(100);
/// What a timeout is more than what has been measured: timers are not better.
const SLACK: Duration = Duration::from_millis(2);
/// The longest pause between repetitions; the same where a peer is old.
const PAUSE: Duration = Duration::from_secs(2);
const OLD_PAUSE: Duration = Duration::from_secs(30);
/// Silence after which a query is sent.
const IDLE: Duration = Duration::from_secs(10);
/// Silence after which the peer is taken for dead.
const DEAD: Duration = Duration::from_secs(300);
/// How long a call, or a close, is repeated without an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long, and how often, an answer to a call is: the call may be forged.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
const ANSWERS: u32 = 4;
/// How long what was sent is kept for a peer that does not take it when the process has gone.
const ORPHAN: Duration = Duration::from_secs(60);
/// The first guess of a round trip.
const GUESS: Duration = Duration::from_millis(100);

/// What a conversation begins with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Port of this end.
    pub local: u16,
    /// Port of the other end.
    pub remote: u16,
    /// Not to be guessed: what ids begin with.
    pub start: u32,
    /// Bytes of the largest message that the way takes in one packet.
    pub largest: usize,
    /// What may wait to be read here, bytes.
    pub window: usize,
    /// What may wait here for the peer's acknowledgement, whatever window it says, bytes.
    pub kept: usize,
    /// Packets get sums: nothing below has them.
    pub sums: bool,
    /// Speaks as ends did before there were reports.
    pub old: bool,
}

/// Where a conversation is. Who listens has none: that is its port's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Has called.
    Syncer,
    /// Was called, and has answered.
    Syncee,
    /// Both have heard each other.
    Established,
    /// Has said close.
    Closing,
    /// Is over.
    Closed,
}

/// See the module.
pub struct Il {
    setup: Setup,
    state: State,
    fault: Option<Fault>,
    refused: bool,
    /// The peer knows reports.
    new: bool,
    path: Path,
    /// What the process has sent and has not left.
    unsent: VecDeque<Block>,
    unsent_cost: usize,
    /// From `next - flight.len()` on: sent, and not acknowledged in order.
    flight: VecDeque<Sent>,
    flight_cost: usize,
    /// What of it is taken to be on its way.
    on_way: usize,
    lost: usize,
    arrived: usize,
    next: u64,
    /// What the peer's window is behind its ack.
    peer_window: usize,
    largest: usize,
    /// Transmissions are counted, queries among them.
    order: u64,
    /// The latest transmission that has arrived.
    arrived_order: u64,
    /// Transmissions before query `n`.
    queries: [u64; 9],
    query: u8,
    /// The last that has come in order.
    recvd: u64,
    peer_start: u64,
    early: BTreeMap<u64, Block>,
    early_cost: usize,
    inbox: VecDeque<Block>,
    /// What is in hand with it.
    inbox_cost: usize,
    /// The cost of the message that is being delivered; 0: none is.
    in_hand: usize,
    /// What is left of the window that the peer was told.
    told: usize,
    newest: Option<(u64, u8, Duration)>,
    /// The process has closed, or the peer.
    closing: bool,
    peer_closed: bool,
    close_acked: bool,
    /// The process has gone: it reads nothing, and what it has sent has a time.
    orphaned: bool,
    /// Messages since the last ack.
    unacked: u32,
    due: Due,
    timers: Timers,
    counts: Counts,
}

struct Sent {
    /// Empty when it has arrived.
    block: Block,
    cost: usize,
    order: u64,
    stamp: Stamp,
    times: u8,
    fate: Fate,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    OnWay,
    Lost,
    Arrived,
}

/// What is to be sent as soon as there is room.
#[derive(Default)]
struct Due {
    sync: bool,
    ack: bool,
    query: bool,
    close: bool,
    state: Option<u8>,
    /// A close for what this end knows nothing of.
    reject: Option<Header>,
    /// The first one goes as a dataquery.
    ask: bool,
}

#[derive(Default)]
struct Timers {
    ack: Option<Duration>,
    /// Of sync, data, query or close, whatever is to be repeated.
    again: Option<Duration>,
    tries: u32,
    heard: Duration,
    asked: Duration,
    /// When a close, or a call, began.
    began: Duration,
    /// When it ends, whatever waits: the process has gone.
    orphan: Option<Duration>,
}

#[derive(Default)]
struct Counts {
    sent: u64,
    resent: u64,
    received: u64,
    duplicates: u64,
    dropped: u64,
}

fn cost(block: &Block) -> usize {
    block.len() + COST
}

/// The id next to `near` that ends so.
fn extend(near: u64, id: u32) -> u64 {
    near.wrapping_add_signed(i64::from(id.wrapping_sub(near as u32) as i32))
}

impl Il {
    /// Calls.
    pub fn call(now: Duration, setup: Setup) -> Self {
        let mut il = Self::new(now, setup, State::Syncer);
        il.due.sync = true;
        il
    }

    /// Answers a call: `packet` is its sync. `None`: it is none.
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
        let timers = Timers { heard: now, asked: now, began: now, ..Timers::default() };
        Self {
            state,
            fault: None,
            refused: false,
            new: false,
            path: Path::new(setup.largest + COST, GUESS),
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
            due: Due::default(),
            timers,
            counts: Counts::default(),
            setup,
        }
    }

    /// What the peer's sync says.
    fn hears_sync(&mut self, id: u32, payload: &[u8]) {
        self.peer_start = (1 << 32) + u64::from(id);
        self.recvd = self.peer_start;
        let is_fit = |hello: &Hello| hello.window as usize >= SMALLEST && hello.largest >= SMALLEST_MESSAGE;
        let hello = Hello::parse(payload).filter(|hello| is_fit(hello) && !self.setup.old);
        if let Some(hello) = hello {
            self.new = true;
            self.peer_window = (hello.window as usize).min(self.setup.kept);
            let fits = (hello.largest as usize).min(self.peer_window - COST);
            self.largest = self.largest.min(fits.max(1));
        }
    }

    /// Where it is.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether it has ended because nobody listens, or takes no calls now.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// What is below has gone.
    pub fn fail(&mut self, why: &str) {
        if self.state != State::Closed {
            self.fails(why);
        }
    }

    /// Why it has ended, if for an error.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Whether it is over and all that the peer has sent is delivered. A peer that has closed is heard until then: it
    /// acknowledges what was sent before.
    pub fn is_at_end(&self) -> bool {
        self.state == State::Closed && self.inbox.is_empty() && self.in_hand == 0
    }

    /// Bytes of the largest message, as far as is known.
    pub fn largest(&self) -> usize {
        self.largest
    }

    /// Whether [`Il::send`] is to wait: the window is closed and enough waits, or the peer has closed.
    pub fn is_full(&self) -> bool {
        self.fault.is_none() && (self.unsent_cost >= UNSENT || self.peer_closed)
    }

    /// Whether something is to be done before it is over.
    pub fn holds(&self) -> bool {
        let waits = !self.unsent.is_empty() || !self.flight.is_empty() || self.closing;
        self.state != State::Closed && waits
    }

    /// A message of the process. Refused: it is too large, or all is over.
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

    /// The next message for the process. The one before it has been taken, unless it was brought back.
    pub fn deliver(&mut self) -> Option<Block> {
        self.inbox_cost -= std::mem::take(&mut self.in_hand);
        let block = self.inbox.pop_front()?;
        self.in_hand = cost(&block);
        Some(block)
    }

    /// The process does not take it now.
    pub fn undeliver(&mut self, block: Block) {
        self.in_hand = 0;
        self.inbox.push_front(block);
    }

    /// The process sends nothing more: what it has sent arrives, then both ends close.
    pub fn close(&mut self) {
        self.closing = true;
        if self.state == State::Syncer {
            self.state = State::Closed;
        }
    }

    /// The process has gone. What it has sent arrives, if the peer takes it within a minute.
    pub fn orphan(&mut self) {
        self.orphaned = true;
    }

    /// One line for `status`.
    pub fn status(&self) -> String {
        let Counts { sent, resent, received, duplicates, dropped } = self.counts;
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

    /// Packets that were not of this conversation, or broken.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped
    }

    /// Messages that were sent more than once.
    pub fn resent(&self) -> u64 {
        self.counts.resent
    }

    /// When [`Il::transmit`] is to be called at the latest.
    pub fn deadline(&self) -> Option<Duration> {
        if self.state == State::Closed {
            return None;
        }
        let Timers { ack, again, heard, asked, began, orphan, .. } = self.timers;
        let idle = if self.is_opening() { None } else { Some((heard.max(asked) + IDLE).min(heard + DEAD)) };
        let patience = self.is_unanswered().then_some(began + self.answer_within());
        [ack, again, idle, patience, orphan].into_iter().flatten().min()
    }

    fn is_opening(&self) -> bool {
        matches!(self.state, State::Syncer | State::Syncee)
    }

    /// Whether its call, or its close, is not answered yet.
    fn is_unanswered(&self) -> bool {
        self.is_opening() || (self.has_closed() && !self.close_acked)
    }

    fn answer_within(&self) -> Duration {
        if self.state == State::Syncee { ANSWER_PATIENCE } else { PATIENCE }
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

    /// Nothing that was sent is wanted any more.
    fn forgets_sent(&mut self) {
        self.unsent.clear();
        self.flight.clear();
        (self.unsent_cost, self.flight_cost, self.on_way, self.lost, self.arrived) = (0, 0, 0, 0, 0);
    }

    fn ids(&self) -> u64 {
        if self.new { IDS } else { OLD_IDS }
    }

    /// A packet has come; what is not of this conversation is dropped, and counted.
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

    /// In `Syncer`.
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
            // Whoever was here before has left something open there.
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
        // Who knows nothing of this answers with the number that a control packet had.
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
            Kind::Ack | Kind::State if self.new => Report::parse(packet.data()),
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

    /// What has come in order to `ack`, and beyond it what the report says.
    fn hears_ack(&mut self, now: Duration, ack: u64, report: Option<Report>) {
        if self.has_closed() && ack == self.next {
            self.close_acked = true;
            self.may_be_over();
        }
        let first = self.first();
        if ack + 1 < first {
            // An older one: it says nothing that a later one did not.
            return;
        }
        let (mut bytes, mut newest) = (0, None::<(u64, Stamp)>);
        let arrives = |sent: &Sent, newest: &mut Option<(u64, Stamp)>| {
            if newest.is_none_or(|(order, _)| order < sent.order) {
                *newest = Some((sent.order, sent.stamp));
            }
        };
        let mut measured = false;
        if let Some(report) = &report {
            self.peer_window = (report.window as usize).min(self.setup.kept);
            let at = extend(self.next, report.newest).wrapping_sub(first);
            let told = self.flight.get(usize::try_from(at).unwrap_or(usize::MAX));
            if let Some(sent) = told.filter(|sent| sent.times == report.times && sent.fate != Fate::Arrived) {
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
                // What is taken is told; what is read, only a report tells.
                self.peer_window = self.peer_window.saturating_sub(cost);
            }
            match sent.fate {
                Fate::OnWay => self.on_way -= cost,
                Fate::Lost => self.lost -= 1,
                Fate::Arrived => self.arrived -= 1,
            }
            if sent.fate != Fate::Arrived {
                bytes += cost;
                arrives(&sent, &mut newest);
                // What has waited behind one that was sent again says nothing.
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
            // They rise, so that a report costs what is in flight at most.
            if from < above || to >= self.next || to < from {
                continue;
            }
            above = to + 1;
            for sent in self.flight.range_mut((from - first) as usize..=(to - first) as usize) {
                let cost = sent.cost;
                match sent.fate {
                    Fate::Arrived => continue,
                    Fate::OnWay => self.on_way -= cost,
                    Fate::Lost => self.lost -= 1,
                }
                sent.fate = Fate::Arrived;
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
        // What is only late is not lost.
        let (overtaken, turn) = (self.arrived_order, self.path.rtt + self.path.deviation);
        let lost = match self.arrived {
            0 => 0,
            _ => self.lose(now, |sent| sent.order + 3 <= overtaken && now >= sent.stamp.sent + turn).0,
        };
        self.path.delivers(now, bytes, newest.map(|(_, stamp)| stamp), lost);
    }

    /// Takes what is on its way for lost where that is so; how many bytes, and when what has a pause may be.
    fn lose(&mut self, now: Duration, is_lost: impl Fn(&Sent) -> bool) -> (usize, Option<Duration>) {
        let (mut bytes, mut paused, rtt) = (0, None::<Duration>, self.path.rtt);
        // What is lost again and again has pauses: the way may not take it now.
        let pause = |times: u8| match times.checked_sub(FREE_TRIES) {
            Some(more) => (rtt * (1 << more.min(16))).min(PAUSE),
            None => Duration::ZERO,
        };
        for sent in self.flight.iter_mut().filter(|sent| sent.fate == Fate::OnWay) {
            let until = sent.stamp.sent + pause(sent.times);
            if !is_lost(sent) {
                continue;
            }
            if now < until {
                paused = Some(paused.map_or(until, |soonest| soonest.min(until)));
            } else {
                sent.fate = Fate::Lost;
                self.lost += 1;
                bytes += sent.cost;
            }
        }
        self.on_way -= bytes;
        (bytes, paused)
    }

    /// The peer says what it has had when it got query `n`: what had left before and is not there is lost.
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
                // It is asked again when something may be sent.
                self.timers.again = paused;
            }
        } else if let Some(sent) = self.flight.front_mut().filter(|sent| sent.order < before) {
            if sent.fate == Fate::OnWay {
                sent.fate = Fate::Lost;
                self.lost += 1;
                self.on_way -= sent.cost;
            }
            self.due.ask = true;
        }
    }

    /// Data has come.
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
            // It comes again when there is room.
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
                // One that ends in good order says close itself, and is acknowledged, before it forgets.
                self.fails("the peer has forgotten the conversation");
                return true;
            }
            // Who has gone already knows nothing of us.
            self.peer_closed = true;
            self.close_acked = true;
            self.may_be_over();
            return true;
        }
        if knows_nothing && self.has_closed() {
            // It answers something that was late.
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
            // It takes nothing any more.
            self.forgets_sent();
        }
        self.due.close |= self.has_closed();
        self.may_be_over();
        true
    }

    fn may_be_over(&mut self) {
        if self.peer_closed && self.close_acked {
            self.state = State::Closed;
            // The other one may not have heard it.
            self.due.close = true;
        }
    }
}
