//! One end of a nonet conversation, without a clock and without a link (`docs/nonet.md`).
//!
//! In: packets that have come, messages to be sent, the time. Out: packets to be sent, messages that have come, when to
//! ask again. `handle` takes events, `poll_*` gives effects.
//!
//! Always holds: messages come out once and in order; at most [`MESSAGES`] are under way; of what has come and was not
//! taken there are at most [`HELD`] bytes and one message; what does not fit is dropped and counted, and has changed
//! nothing; an end that hears nothing comes to its end by itself.

use std::collections::VecDeque;
use std::time::Duration;

use nine_stream::{Block, Fault};

use super::packet::{ACKME, HANGUP, HEADER, Header, MESSAGE_MAX, Medium, NEWCALL, RESET, SERVICE};

/// Messages that are under way at once: half of their numbers.
pub const MESSAGES: usize = 128;
/// Bytes that wait for the process from which on nothing is acknowledged.
pub const WITHHELD: usize = 16 << 10;
/// Bytes that have come and were not taken, with [`OVERHEAD`] for each message. Beyond it packets are dropped.
pub const HELD: usize = 256 << 10;
/// What keeping a message takes beside its bytes.
const OVERHEAD: usize = 128;
/// Bytes under way at once, at most; at first, and at least, as many as a message may have.
const WINDOW: usize = 256 << 10;
/// So much longer than the fastest acknowledgement another one takes when no more is put under way.
const QUEUED: Duration = Duration::from_millis(50);
/// The time after which an acknowledgement is missed where none was measured, and the longest that doubling makes.
pub const RESEND_MAX: Duration = Duration::from_millis(250);
/// The shortest one, and the longest that is measured.
const RESEND_MIN: Duration = Duration::from_millis(5);
const MEASURED_MAX: Duration = Duration::from_secs(2);
/// How long an acknowledgement waits for a message that takes it along.
const ACK_DELAY: Duration = Duration::from_millis(1);
/// Acknowledgements that wait for nothing.
const ACKS: usize = 2;
/// Packets of acknowledged messages behind one that was not, which is sent again then.
const OVERTAKEN: usize = 3;
/// How often a message is sent again without a pause.
const AT_ONCE: u32 = 3;
/// How often a message, or a probe, is sent again, each 250 ms.
const TRIES: u32 = 100;
/// How long in all.
pub(super) const PATIENCE: Duration = RESEND_MAX.saturating_mul(TRIES);
/// After so long a silence the other end is asked whether it is there.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// For what a process that has gone left behind.
const ORPHAN: Duration = Duration::from_secs(60);
/// How often a hang-up is said.
const HANGUPS: u32 = 10;
const SILENT: &str = "the other end says nothing any more";

/// What has happened, for `status` and for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that were sent.
    pub sent: u64,
    /// Messages that have come, in order.
    pub received: u64,
    /// Messages that were sent again.
    pub resent: u64,
    /// Packets that did not fit: of another circuit, with a wrong sum, too long, or out of order.
    pub bad: u64,
    /// Packets of messages that had come already.
    pub old: u64,
    /// Packets for which there was no room.
    pub full: u64,
}

/// See the module.
pub struct Nonet {
    medium: Medium,
    /// Of packets that leave.
    circuit: u32,
    /// The other end has not been heard of.
    calling: bool,
    counts: Counts,

    /// Messages from the first that is not acknowledged.
    out: VecDeque<Out>,
    /// The number of the first of them, not cut to eight bits.
    first: u64,
    /// The message that is being sent for the first time, and how much of it was.
    fresh: (u64, usize),
    /// How much of the first message was sent again, if it is being sent.
    again: Option<usize>,
    /// Bytes of messages that are not acknowledged.
    bytes: usize,
    /// Bytes that may be.
    window: usize,
    /// The number behind what was under way when it was halved, 0 before that.
    halved: u64,
    /// Packets of messages of `out` that are acknowledged.
    overtaking: usize,
    /// When the first message or a hang-up is sent again, or, where nothing is under way, a probe.
    due: Duration,
    /// The other end was asked for an answer behind the first message: if it comes, the message did not.
    asks: bool,
    /// It is to be asked for one now.
    doubts: bool,
    /// How often something was missed, since the other end was heard; more than 250 ms count as several.
    tries: u32,
    /// How often, since something was measured or a message of many packets acknowledged.
    doubled: u32,
    /// What acknowledgements take: the least, and smoothed with its deviation.
    least: Duration,
    smooth: Option<Duration>,
    vary: Duration,

    /// What has come from the message on that is expected next, `None` where nothing has.
    joins: VecDeque<Option<Join>>,
    /// Its number.
    expected: u64,
    /// Messages in order.
    ready: VecDeque<Block>,
    /// Nobody wants them, for the process has gone.
    deaf: bool,
    /// When that is over, too.
    orphaned: Option<Duration>,
    /// Bytes of these, and of all that has come, with overheads.
    waiting: usize,
    held: usize,
    /// Numbers to be acknowledged.
    acks: VecDeque<u8>,
    acked: u8,
    ack_due: Duration,
    /// The other end wants to hear something.
    asked: bool,

    /// We want no more.
    closing: bool,
    /// The other end wants no more.
    hungup: bool,
    /// How often we have said so.
    hangups: u32,
    /// A last packet that waits for no answer.
    farewell: bool,
    over: Option<Result<(), Fault>>,
}

struct Out {
    data: Block,
    /// When its last packet left.
    sent: Option<Duration>,
    /// How often it was sent again.
    resent: u32,
    acked: bool,
}

struct Join {
    total: usize,
    data: Vec<u8>,
}

impl Join {
    fn is_whole(&self) -> bool {
        self.data.len() == self.total
    }

    fn cost(&self) -> usize {
        self.data.len() + OVERHEAD
    }
}

impl Nonet {
    /// The caller's end, in an even circuit. `words` are `SERVICE USER`, of one packet.
    pub fn call(medium: Medium, circuit: u32, words: Vec<u8>) -> Self {
        let mut call = Self::new(medium, circuit, 1);
        call.calling = true;
        call.send(words.into());
        call
    }

    /// The callee's end: the call was accepted.
    pub fn answer(medium: Medium, circuit: u32, now: Duration) -> Self {
        let mut answer = Self::new(medium, circuit, 2);
        answer.due = now + SILENCE;
        answer.acknowledge(1, now, true);
        answer
    }

    fn new(medium: Medium, circuit: u32, expected: u64) -> Self {
        Self {
            medium,
            circuit,
            calling: false,
            counts: Counts::default(),
            out: VecDeque::new(),
            first: 1,
            fresh: (1, 0),
            again: None,
            bytes: 0,
            window: MESSAGE_MAX,
            halved: 0,
            overtaking: 0,
            due: Duration::ZERO,
            asks: false,
            doubts: false,
            tries: 0,
            doubled: 0,
            least: Duration::MAX,
            smooth: None,
            vary: Duration::ZERO,
            joins: VecDeque::new(),
            expected,
            ready: VecDeque::new(),
            deaf: false,
            orphaned: None,
            waiting: 0,
            held: 0,
            acks: VecDeque::new(),
            acked: 0,
            ack_due: Duration::ZERO,
            asked: false,
            closing: false,
            hungup: false,
            hangups: 0,
            farewell: false,
            over: None,
        }
    }

    /// Whether a message would be sent now, or would have to wait.
    pub fn can_send(&self) -> bool {
        !self.is_closing() && self.out.len() < MESSAGES && self.bytes < self.window
    }

    /// Sends a message. Where [`Nonet::can_send`] is false it is forgotten.
    ///
    /// # Panics
    /// It is longer than [`MESSAGE_MAX`].
    pub fn send(&mut self, data: Block) {
        assert!(data.len() <= MESSAGE_MAX, "a message is cut before it is sent");
        if self.can_send() {
            self.bytes += data.len();
            self.out.push_back(Out { data, sent: None, resent: 0, acked: false });
            self.counts.sent += 1;
        }
    }

    /// The next message that has come.
    pub fn poll_message(&mut self) -> Option<Block> {
        let message = self.ready.pop_front()?;
        let cost = message.len() + OVERHEAD;
        self.waiting -= cost;
        self.held -= cost;
        Some(message)
    }

    /// The message that was taken last waits again.
    pub fn put_back(&mut self, message: Block) {
        let cost = message.len() + OVERHEAD;
        self.waiting += cost;
        self.held += cost;
        self.ready.push_front(message);
    }

    /// The process has gone: what comes is acknowledged and forgotten, and what was sent arrives, if the other end
    /// takes it within a minute.
    pub fn orphan(&mut self) {
        self.deaf = true;
        while self.poll_message().is_some() {}
    }

    /// Nothing more is sent behind what was.
    pub fn close(&mut self) {
        self.closing = true;
        self.turn();
    }

    /// The call ends at once, with one word to the other end.
    pub fn abort(&mut self, why: Fault) {
        if self.over.is_none() {
            self.farewell = true;
            self.end(Err(why));
        }
    }

    /// Nothing more will come to the process: it was told, or reads what is left first.
    pub fn is_ended(&self) -> bool {
        self.hungup || self.over.is_some()
    }

    /// Nothing more is taken to be sent.
    pub fn is_closing(&self) -> bool {
        self.closing || self.is_ended()
    }

    /// How it ended: nothing more goes to the link, but what [`Nonet::poll_packet`] still has.
    pub fn result(&self) -> Option<&Result<(), Fault>> {
        self.over.as_ref()
    }

    /// Whether the callee has been heard of.
    pub fn is_answered(&self) -> bool {
        !self.calling
    }

    /// Whether no message waits to be taken.
    pub fn is_drained(&self) -> bool {
        self.ready.is_empty()
    }

    /// Whether everything that was sent is acknowledged.
    pub fn is_settled(&self) -> bool {
        self.out.is_empty()
    }

    /// What has happened.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes of what has come and was not taken, with overheads.
    pub fn held(&self) -> usize {
        self.held
    }

    /// One line for `status`.
    pub fn status(&self) -> String {
        let Counts { sent, received, resent, bad, old, full } = self.counts;
        let rtt = self.smooth.map_or(0, |rtt| rtt.as_micros());
        let (out, held) = (self.out.len(), self.held);
        let link = format!("sent {sent} rcved {received} rexmit {resent} bad {bad} old {old} full {full}");
        format!("{link} out {out} held {held} rtt {rtt}us")
    }

    /// Takes a packet that has come.
    pub fn handle(&mut self, now: Duration, packet: &[u8]) {
        let Some((head, data)) = Header::decode(packet).filter(|(head, _)| head.circuit == self.circuit ^ 1)
        else {
            self.counts.bad += 1;
            return;
        };
        if self.over.is_some() {
            return;
        }
        if head.flags & RESET != 0 {
            return self.handle_reset(head);
        }
        self.calling = false;
        if !self.is_closing() {
            self.tries = 0;
        }
        self.handle_ack(now, head.ack);
        if self.is_idle() {
            self.due = now + SILENCE;
        }
        if head.flags & HANGUP != 0 && head.remain == 0 {
            self.handle_hangup(head);
        } else if head.mid.wrapping_sub(self.expected as u8) < MESSAGES as u8 {
            self.handle_part(now, head, data, packet.len());
        } else {
            let is_message = head.remain != 0 || head.flags & ACKME != 0;
            self.counts.old += u64::from(is_message);
            if is_message && head.remain >= 0 {
                self.acknowledge(head.mid, now, true);
                self.asked |= self.is_withholding();
            }
        }
        self.turn();
    }

    /// The other end knows nothing of us. It says which packet it means: one that we could have sent.
    fn handle_reset(&mut self, head: Header) {
        if usize::from(head.ack.wrapping_sub(self.first.wrapping_sub(2) as u8)) > self.out.len() + 2 {
            self.counts.bad += 1;
        } else if self.hungup || self.is_hanging_up() {
            self.end(Ok(()));
        } else if self.calling {
            self.end(Err(Fault::new("the call was refused")));
        } else {
            self.end(Err(Fault::new("the other end knows nothing of this call any more")));
        }
    }

    fn handle_hangup(&mut self, head: Header) {
        let ahead = head.mid.wrapping_sub(self.expected as u8);
        if (1..MESSAGES as u8).contains(&ahead) {
            self.farewell = true;
            return self.end(Err(Fault::new("the other end has hung up before all had come")));
        }
        self.hungup = true;
        // What has come in part will not be completed.
        self.held -= self.joins.drain(..).flatten().map(|join| join.cost()).sum::<usize>();
    }

    fn handle_ack(&mut self, now: Duration, mid: u8) {
        if self.asks && mid == (self.first - 2) as u8 {
            return self.resend();
        }
        let at = usize::from(mid.wrapping_sub(self.first as u8));
        let Some(out) = self.out.get_mut(at).filter(|out| !out.acked) else { return };
        let Some(sent) = out.sent else { return };
        out.acked = true;
        let (len, rtt, resent) = (out.data.len(), now.saturating_sub(sent), out.resent > 0);
        let packets = self.medium.packets(len);
        let is_used = self.bytes >= self.window / 2;
        self.bytes -= len;
        self.overtaking += packets;
        self.tries = 0;
        if !resent || packets > 1 {
            self.doubled = 0;
        }
        // What was sent twice measures nothing.
        if !resent {
            self.measure(rtt);
            if is_used && rtt <= self.least + QUEUED {
                let more = if self.halved == 0 { len } else { len * MESSAGE_MAX / self.window };
                self.window = WINDOW.min(self.window + more);
            }
        }
        if at == 0 {
            while let Some(out) = self.out.pop_front_if(|out| out.acked) {
                self.overtaking -= self.medium.packets(out.data.len());
                self.first += 1;
            }
            (self.again, self.asks) = (None, false);
            // Where one was lost another may be.
            self.doubts = resent && packets > 1;
            self.due = now + self.patience();
        }
        if self.overtaking >= OVERTAKEN && self.out.front().is_some_and(|out| out.resent == 0) {
            self.resend();
        }
    }

    fn measure(&mut self, rtt: Duration) {
        self.least = self.least.min(rtt);
        match self.smooth {
            Some(smooth) => {
                self.vary = (3 * self.vary + smooth.abs_diff(rtt)) / 4;
                self.smooth = Some((7 * smooth + rtt) / 8);
            }
            None => (self.smooth, self.vary) = (Some(rtt), rtt / 2),
        }
    }

    /// How long an acknowledgement is waited for.
    fn patience(&self) -> Duration {
        let Some(smooth) = self.smooth else { return RESEND_MAX };
        let time = (smooth + 4 * self.vary).clamp(RESEND_MIN, MEASURED_MAX);
        (time * (1 << self.doubled.min(8))).min(time.max(RESEND_MAX))
    }

    fn handle_part(&mut self, now: Duration, head: Header, data: &[u8], len: usize) {
        let at = usize::from(head.mid.wrapping_sub(self.expected as u8));
        let left = usize::from(head.remain.unsigned_abs());
        let part = &data[..data.len().min(left)];
        let is_padded = data.len() > left;
        if head.flags & ACKME == 0 || is_padded && len > self.medium.min || part.is_empty() && left > 0 {
            self.counts.bad += 1;
            return;
        }
        if self.hungup {
            return;
        }
        let known = self.joins.get(at).and_then(Option::as_ref);
        let follows = match known {
            Some(join) if head.remain >= 0 => !join.is_whole() && join.total != left,
            Some(join) => join.total - join.data.len() == left,
            None => head.remain >= 0,
        };
        if !follows {
            // A part that is there already is no fault of anybody's.
            let is_old = known.is_some_and(|join| match head.remain {
                0.. => join.total == left,
                _ => join.total - join.data.len() < left,
            });
            let again = is_old && head.remain >= 0 && known.is_some_and(Join::is_whole);
            *(if is_old { &mut self.counts.old } else { &mut self.counts.bad }) += 1;
            if again {
                self.acknowledge(head.mid, now, true);
            }
            return;
        }
        // The next one may always come where nobody is slow.
        let is_next = at == 0 && self.ready.is_empty();
        if !is_next && self.held + part.len() + OVERHEAD > HELD {
            self.counts.full += 1;
            return;
        }
        if self.joins.len() <= at {
            self.joins.resize_with(at + 1, || None);
        }
        let slot = &mut self.joins[at];
        if head.remain >= 0 {
            self.held -= slot.take().map_or(0, |join| join.cost());
            self.held += OVERHEAD;
        }
        let join = slot.get_or_insert_with(|| Join { total: left, data: Vec::new() });
        join.data.extend_from_slice(part);
        self.held += part.len();
        if join.is_whole() {
            self.acknowledge(head.mid, now, false);
            self.deliver();
        }
    }

    /// Messages that nothing is missing before.
    fn deliver(&mut self) {
        while let Some(Some(join)) = self.joins.pop_front_if(|join| join.as_ref().is_some_and(Join::is_whole))
        {
            self.expected += 1;
            self.counts.received += 1;
            if self.deaf {
                self.held -= join.cost();
                continue;
            }
            self.waiting += join.cost();
            let mut message = Block::from(join.data);
            message.delim = true;
            self.ready.push_back(message);
        }
    }

    /// A message is to be acknowledged. There are at most as many as may be under way.
    fn acknowledge(&mut self, mid: u8, now: Duration, at_once: bool) {
        let due = if at_once { now } else { now + ACK_DELAY };
        self.ack_due = if self.acks.is_empty() { due } else { self.ack_due.min(due) };
        if self.acks.len() < MESSAGES && !self.acks.contains(&mid) {
            self.acks.push_back(mid);
        }
    }

    fn is_withholding(&self) -> bool {
        self.waiting >= WITHHELD
    }

    /// Whether an acknowledgement waits no longer.
    fn is_ack_due(&self, now: Duration) -> bool {
        let due = !self.acks.is_empty() && (self.acks.len() >= ACKS || self.ack_due <= now);
        due && !self.is_withholding() || self.asked
    }

    /// The next packet for the link. After `None`: ask again when [`Nonet::deadline`] has come, or something happens.
    pub fn poll_packet(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.farewell {
            self.farewell = false;
            return Some(self.control(HANGUP));
        }
        self.check_time(now);
        if self.over.is_some() {
            return None;
        }
        if std::mem::take(&mut self.doubts) && self.can_ask() {
            self.asks = true;
            self.due = now + self.patience();
            return Some(self.control(ACKME));
        }
        if let Some(at) = self.again {
            return Some(self.part(now, 0, at, true));
        }
        let (fresh, at) = self.fresh;
        let index = (fresh - self.first) as usize;
        if index < self.out.len() {
            return Some(self.part(now, index, at, false));
        }
        if self.is_ack_due(now) {
            self.asked = false;
            if !self.is_withholding() {
                self.next_ack();
            }
            return Some(self.control(0));
        }
        if self.is_hanging_up() && (self.hangups == 0 || self.due <= now) {
            return Some(self.say_hangup(now));
        }
        if self.is_idle() && self.due <= now {
            self.tries += 1;
            self.due = now + RESEND_MAX;
            return Some(self.control(ACKME));
        }
        None
    }

    /// When [`Nonet::poll_packet`] is to be asked at the latest.
    pub fn deadline(&self) -> Option<Duration> {
        if self.over.is_some() {
            return None;
        }
        let acks = (!self.acks.is_empty() && !self.is_withholding()).then_some(self.ack_due);
        let first = self.out.front().is_some_and(|out| out.sent.is_some());
        let is_due =
            first && self.again.is_none() || self.is_hanging_up() && self.hangups > 0 || self.is_idle();
        acks.into_iter().chain(is_due.then_some(self.due)).chain(self.orphaned).min()
    }

    /// Everything was said, and the other end is to know.
    fn is_hanging_up(&self) -> bool {
        self.closing && self.out.is_empty()
    }

    /// Nothing is under way, nor will it be until somebody has something to say.
    fn is_idle(&self) -> bool {
        self.out.is_empty() && !self.is_closing()
    }

    /// What is to be asked after, sent again, or given up.
    fn check_time(&mut self, now: Duration) {
        if self.deaf && now >= *self.orphaned.get_or_insert(now + ORPHAN) {
            return self.end(Err(Fault::new("the other end has not taken what was sent")));
        }
        if self.is_idle() && self.tries >= TRIES && self.due <= now {
            return self.end(Err(Fault::new(SILENT)));
        }
        if self.is_hanging_up() && self.hangups == HANGUPS && self.due <= now {
            // All that we have said was heard; whether we have heard all nobody knows.
            self.end(Err(Fault::new(SILENT)));
        }
        let waits = self.out.front().is_some_and(|out| out.sent.is_some()) && self.again.is_none();
        if waits && self.due <= now {
            if self.tries >= TRIES {
                let why = if self.calling { "nobody answers" } else { SILENT };
                return self.end(Err(Fault::new(why)));
            }
            // A message of one packet is a question as well, where the time is believed.
            let is_long = self.medium.packets(self.out[0].data.len()) > 1;
            self.doubts = (is_long || self.doubled > 0) && self.can_ask();
            self.tries += self.patience().as_millis().div_ceil(RESEND_MAX.as_millis()) as u32;
            self.doubled = self.doubled.saturating_add(1);
            if !self.doubts {
                self.resend();
            }
        }
    }

    /// Whether the number before the last that was acknowledged will not be taken for a new one, though it comes late.
    /// It is hardly ever in what the other end says by itself.
    fn can_ask(&self) -> bool {
        let is_sent = self.out.front().is_some_and(|out| out.sent.is_some());
        is_sent && self.first > 1 && self.out.len() <= MESSAGES / 2
    }

    /// The first message is sent again. What is lost with it is one fault of the way.
    fn resend(&mut self) {
        let Some(out) = self.out.front_mut().filter(|out| out.sent.is_some()) else { return };
        out.resent += 1;
        self.again = self.again.or(Some(0));
        (self.asks, self.doubts) = (false, false);
        if self.first >= self.halved {
            self.halved = self.fresh.0;
            self.window = (self.window / 2).max(MESSAGE_MAX);
        }
    }

    /// The part of a message that begins at `at`.
    fn part(&mut self, now: Duration, index: usize, at: usize, again: bool) -> Vec<u8> {
        let mid = self.first + index as u64;
        let len = self.out[index].data.len();
        let end = len.min(at + self.medium.mtu - HEADER);
        let is_last = end == len;
        if is_last && !self.is_withholding() {
            self.next_ack();
        }
        // Whatever it is, the other end hears it.
        self.asked = false;
        let called = if self.calling { NEWCALL } else { 0 };
        let service = if mid == 1 && self.circuit & 1 == 0 { SERVICE } else { 0 };
        let left = (len - at) as i16;
        let header = Header {
            circuit: self.circuit,
            flags: ACKME | called | service,
            mid: mid as u8,
            ack: self.acked,
            remain: if at == 0 { left } else { -left },
        };
        let packet = header.encode(&self.out[index].data.data()[at..end], self.medium.min);
        match (again, is_last) {
            (true, false) => self.again = Some(end),
            (true, true) => {
                self.again = None;
                self.counts.resent += 1;
            }
            (false, false) => self.fresh.1 = end,
            (false, true) => self.fresh = (mid + 1, 0),
        }
        if is_last {
            self.out[index].sent = Some(now);
            if index == 0 {
                // Whether it has come this time is asked at once, unless the other end seems to have no room for it.
                self.doubts = (1..=AT_ONCE).contains(&self.out[0].resent) && self.medium.packets(len) > 1;
                self.due = now + self.patience();
            }
        }
        packet
    }

    fn next_ack(&mut self) {
        self.acked = self.acks.pop_front().unwrap_or(self.acked);
    }

    /// A packet without data. Its number is one that has come, so that with ACKME it is acknowledged and no more: a
    /// probe, or a question where messages are under way; that of a hang-up is the next one.
    fn control(&self, flags: u8) -> Vec<u8> {
        let mid = match flags {
            HANGUP => self.first + self.out.len() as u64,
            ACKME if !self.out.is_empty() => self.first - 2,
            _ => self.first - 1,
        };
        let header = Header { circuit: self.circuit, flags, mid: mid as u8, ack: self.acked, remain: 0 };
        header.encode(&[], self.medium.min)
    }

    fn say_hangup(&mut self, now: Duration) -> Vec<u8> {
        self.hangups += 1;
        self.doubled += 1;
        self.due = now + self.patience();
        self.control(HANGUP)
    }

    /// Both have said all: the last word.
    fn turn(&mut self) {
        if self.hungup && self.out.is_empty() && self.over.is_none() {
            self.farewell = self.hangups == 0;
            self.end(Ok(()));
        }
    }

    fn end(&mut self, how: Result<(), Fault>) {
        self.over.get_or_insert(how);
        // Whoever misses one of them shall know it.
        self.first += self.out.len() as u64;
        self.out.clear();
        self.bytes = 0;
        self.again = None;
        self.acks.clear();
        self.held -= self.joins.drain(..).flatten().map(|join| join.cost()).sum::<usize>();
    }
}

#[cfg(test)]
mod tests;
