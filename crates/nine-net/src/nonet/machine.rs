//! One end of a nonet call, without clock and link (`docs/nonet.md`).
//!
//! In: received packets, messages to send, the time. Out: packets to send, received messages, the time of the next
//! poll. `handle` takes events, `poll_*` returns effects.
//!
//! Always holds: messages are delivered once and in order. At most [`MESSAGES`] are in flight. Unread input has at most
//! [`HELD`] bytes and one message. Packets that do not fit are dropped and counted, and change nothing. An end that
//! receives nothing ends by itself.

use std::collections::VecDeque;
use std::time::Duration;

use nine_stream::{Block, Fault};

use super::packet::{ACKME, HANGUP, HEADER, MESSAGE_MAX, Medium, NEWCALL, NonetHeader, RESET, SERVICE};

/// Maximum number of messages in flight: half of their numbers.
pub const MESSAGES: usize = 128;
/// From this many unread bytes on, nothing is acknowledged.
pub const WITHHELD: usize = 16 << 10;
/// Maximum number of bytes in unread input, with [`OVERHEAD`] for each message. Beyond it packets are dropped.
pub const HELD: usize = 256 << 10;
/// Memory of a stored message besides its bytes.
const OVERHEAD: usize = 128;
/// Maximum number of bytes in flight. The window starts at the size of the longest message, and never gets smaller.
const FLIGHT_WINDOW_MAX: usize = 256 << 10;
/// If an acknowledgement takes this much longer than the fastest one, the window does not grow.
const QUEUED: Duration = Duration::from_millis(50);
/// The retransmission timeout before any measurement, and the most to which doubling raises it.
pub const RESEND_MAX: Duration = Duration::from_millis(250);
/// The shortest timeout, and the longest that follows from measurements.
const RESEND_MIN: Duration = Duration::from_millis(5);
const MEASURED_MAX: Duration = Duration::from_secs(2);
/// How long an acknowledgement waits for a message that can carry it.
const ACK_DELAY: Duration = Duration::from_millis(1);
/// From this many on, acknowledgements are sent at once.
const ACKS: usize = 2;
/// Packets of later messages acknowledged until an unacknowledged message is sent again.
const OVERTAKEN: usize = 3;
/// How often a message is sent again without a pause.
const FAST_RESENDS_MAX: u32 = 3;
/// How often a message, or a probe, is sent again, each after 250 ms.
const RESENDS_MAX: u32 = 100;
/// The total time of these tries.
pub(super) const RESEND_TIMEOUT: Duration = RESEND_MAX.saturating_mul(RESENDS_MAX);
/// Silence after which a probe is sent to the other end.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// Time for the unsent data of a process that is gone.
const ORPHAN: Duration = Duration::from_secs(60);
/// Maximum number of transmissions of a hang-up.
const HANGUPS: u32 = 10;
const SILENT: &str = "the other end says nothing any more";

/// Counters, for `status` and for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages sent.
    pub sent: u64,
    /// Messages received, in order.
    pub received: u64,
    /// Messages sent again.
    pub resent: u64,
    /// Invalid packets: of another circuit, with a wrong sum, too long, or out of order.
    pub bad: u64,
    /// Packets of messages received already.
    pub old: u64,
    /// Packets for which there was no room.
    pub full: u64,
}

/// See the module.
pub struct Nonet {
    medium: Medium,
    /// The circuit of sent packets.
    circuit: u32,
    /// No packet has come from the other end yet.
    calling: bool,
    counts: Counts,

    /// Messages from the first unacknowledged one on.
    out: VecDeque<OutgoingMessage>,
    /// The number of the first of them, as a full counter.
    first: u64,
    /// The message being sent for the first time, and its bytes sent so far.
    fresh: (u64, usize),
    /// Bytes of the first message sent again so far, if that is in progress.
    again: Option<usize>,
    /// Bytes of unacknowledged messages.
    bytes: usize,
    /// The window for them.
    window: usize,
    /// The number after those in flight when the window was halved; 0 before that.
    halved: u64,
    /// Packets of acknowledged messages in `out`.
    overtaking: usize,
    /// When to send the first message or a hang-up again, or, with nothing in flight, a probe.
    due: Duration,
    /// A probe was sent after the first message. Its answer means that the message was lost.
    asks: bool,
    /// Such a probe is due now.
    doubts: bool,
    /// Timeouts since the last packet from the other end, in units of 250 ms.
    tries: u32,
    /// Timeouts since the last measurement, or the last acknowledgement of a message of several packets.
    doubled: u32,
    /// Round-trip times of acknowledgements: the least, the smoothed one, and its deviation.
    least: Duration,
    smooth: Option<Duration>,
    vary: Duration,

    /// Input from the next expected message on; `None` for messages of which nothing has come.
    joins: VecDeque<Option<MessageAssembly>>,
    /// The number of that message.
    expected: u64,
    /// Complete messages, in order.
    ready: VecDeque<Block>,
    /// The process is gone, so messages are discarded.
    deaf: bool,
    /// When the call then ends in any case.
    orphaned: Option<Duration>,
    /// Bytes of `ready`, and of all unread input, with overheads.
    waiting: usize,
    held: usize,
    /// Message numbers to acknowledge.
    acks: VecDeque<u8>,
    acked: u8,
    ack_due: Duration,
    /// The other end requests a packet.
    asked: bool,

    /// This end has closed.
    closing: bool,
    /// The other end has hung up.
    hungup: bool,
    /// Hang-ups sent.
    hangups: u32,
    /// A last packet is due, which expects no answer.
    farewell: bool,
    over: Option<Result<(), Fault>>,
}

struct OutgoingMessage {
    data: Block,
    /// When its last packet was sent.
    sent: Option<Duration>,
    /// How often it was sent again.
    resent: u32,
    acked: bool,
}

struct MessageAssembly {
    total: usize,
    data: Vec<u8>,
}

impl MessageAssembly {
    fn is_whole(&self) -> bool {
        self.data.len() == self.total
    }

    fn cost(&self) -> usize {
        self.data.len() + OVERHEAD
    }
}

impl Nonet {
    /// Creates the caller's end, in an even circuit. `words` are `SERVICE USER`, in one packet.
    pub fn call(medium: Medium, circuit: u32, words: Vec<u8>) -> Self {
        let mut call = Self::new(medium, circuit, 1);
        call.calling = true;
        call.send(words.into());
        call
    }

    /// Creates the callee's end of an accepted call.
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

    /// Whether a message can be sent now.
    pub fn can_send(&self) -> bool {
        !self.is_closing() && self.out.len() < MESSAGES && self.bytes < self.window
    }

    /// Sends a message. Drops it if [`Nonet::can_send`] is false.
    ///
    /// # Panics
    /// It is longer than [`MESSAGE_MAX`].
    pub fn send(&mut self, data: Block) {
        assert!(data.len() <= MESSAGE_MAX, "a message is cut before it is sent");
        if self.can_send() {
            self.bytes += data.len();
            self.out.push_back(OutgoingMessage { data, sent: None, resent: 0, acked: false });
            self.counts.sent += 1;
        }
    }

    /// Takes the next received message.
    pub fn poll_message(&mut self) -> Option<Block> {
        let message = self.ready.pop_front()?;
        let cost = message.len() + OVERHEAD;
        self.waiting -= cost;
        self.held -= cost;
        Some(message)
    }

    /// Puts back the message that was taken last.
    pub fn put_back(&mut self, message: Block) {
        let cost = message.len() + OVERHEAD;
        self.waiting += cost;
        self.held += cost;
        self.ready.push_front(message);
    }

    /// Reports that the process is gone. From now on received messages are acknowledged and discarded. Sent messages
    /// still arrive, if the other end accepts them within a minute.
    pub fn orphan(&mut self) {
        self.deaf = true;
        while self.poll_message().is_some() {}
    }

    /// Sends nothing after the messages sent so far.
    pub fn close(&mut self) {
        self.closing = true;
        self.turn();
    }

    /// Ends the call at once, with one packet to the other end.
    pub fn abort(&mut self, why: Fault) {
        if self.over.is_none() {
            self.farewell = true;
            self.end(Err(why));
        }
    }

    /// Whether no more messages will arrive. Received ones may still be unread.
    pub fn is_ended(&self) -> bool {
        self.hungup || self.over.is_some()
    }

    /// Whether no more messages are accepted to send.
    pub fn is_closing(&self) -> bool {
        self.closing || self.is_ended()
    }

    /// The result of an ended call. Only a last packet may be left in [`Nonet::poll_packet`].
    pub fn result(&self) -> Option<&Result<(), Fault>> {
        self.over.as_ref()
    }

    /// Whether a packet from the callee has come.
    pub fn is_answered(&self) -> bool {
        !self.calling
    }

    /// Whether there are no unread messages.
    pub fn is_drained(&self) -> bool {
        self.ready.is_empty()
    }

    /// Whether all sent messages are acknowledged.
    pub fn is_settled(&self) -> bool {
        self.out.is_empty()
    }

    /// The counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes of unread input, with overheads.
    pub fn held(&self) -> usize {
        self.held
    }

    /// A line for `status`.
    pub fn status(&self) -> String {
        let Counts { sent, received, resent, bad, old, full } = self.counts;
        let rtt = self.smooth.map_or(0, |rtt| rtt.as_micros());
        let (out, held) = (self.out.len(), self.held);
        let link = format!("sent {sent} rcved {received} rexmit {resent} bad {bad} old {old} full {full}");
        format!("{link} out {out} held {held} rtt {rtt}us")
    }

    /// Handles a received packet.
    pub fn handle(&mut self, now: Duration, packet: &[u8]) {
        let Some((head, data)) =
            NonetHeader::decode(packet).filter(|(head, _)| head.circuit == self.circuit ^ 1)
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

    /// Handles a reset: the other end does not know this call. It must name a packet that we may have sent.
    fn handle_reset(&mut self, head: NonetHeader) {
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

    fn handle_hangup(&mut self, head: NonetHeader) {
        let ahead = head.mid.wrapping_sub(self.expected as u8);
        if (1..MESSAGES as u8).contains(&ahead) {
            self.farewell = true;
            return self.end(Err(Fault::new("the other end has hung up before all had come")));
        }
        self.hungup = true;
        // Incomplete messages will not be completed.
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
        // A message that was sent twice gives no measurement.
        if !resent {
            self.measure(rtt);
            if is_used && rtt <= self.least + QUEUED {
                let more = if self.halved == 0 { len } else { len * MESSAGE_MAX / self.window };
                self.window = FLIGHT_WINDOW_MAX.min(self.window + more);
            }
        }
        if at == 0 {
            while let Some(out) = self.out.pop_front_if(|out| out.acked) {
                self.overtaking -= self.medium.packets(out.data.len());
                self.first += 1;
            }
            (self.again, self.asks) = (None, false);
            // If one packet was lost, others may be.
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

    /// The present retransmission timeout.
    fn patience(&self) -> Duration {
        let Some(smooth) = self.smooth else { return RESEND_MAX };
        let time = (smooth + 4 * self.vary).clamp(RESEND_MIN, MEASURED_MAX);
        (time * (1 << self.doubled.min(8))).min(time.max(RESEND_MAX))
    }

    fn handle_part(&mut self, now: Duration, head: NonetHeader, data: &[u8], len: usize) {
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
            // A part received already is no error.
            let is_old = known.is_some_and(|join| match head.remain {
                0.. => join.total == left,
                _ => join.total - join.data.len() < left,
            });
            let again = is_old && head.remain >= 0 && known.is_some_and(MessageAssembly::is_whole);
            *(if is_old { &mut self.counts.old } else { &mut self.counts.bad }) += 1;
            if again {
                self.acknowledge(head.mid, now, true);
            }
            return;
        }
        // The next expected message is always accepted if the reader is not behind.
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
        let join = slot.get_or_insert_with(|| MessageAssembly { total: left, data: Vec::new() });
        join.data.extend_from_slice(part);
        self.held += part.len();
        if join.is_whole() {
            self.acknowledge(head.mid, now, false);
            self.deliver();
        }
    }

    /// Moves complete messages to `ready`, in order.
    fn deliver(&mut self) {
        while let Some(Some(join)) =
            self.joins.pop_front_if(|join| join.as_ref().is_some_and(MessageAssembly::is_whole))
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

    /// Queues the acknowledgement of a message. At most [`MESSAGES`] are queued: no more messages can be in flight.
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

    /// Whether an acknowledgement is due.
    fn is_ack_due(&self, now: Duration) -> bool {
        let due = !self.acks.is_empty() && (self.acks.len() >= ACKS || self.ack_due <= now);
        due && !self.is_withholding() || self.asked
    }

    /// Returns the next packet to send. After `None`: poll again at [`Nonet::deadline`], or after an event.
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

    /// When to call [`Nonet::poll_packet`] at the latest.
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

    /// Whether this end is closed and all its messages are acknowledged. Then it sends hang-ups, at most [`HANGUPS`],
    /// until one is answered.
    fn is_hanging_up(&self) -> bool {
        self.closing && self.out.is_empty()
    }

    /// Whether nothing is in flight, until this process or the other end sends something.
    fn is_idle(&self) -> bool {
        self.out.is_empty() && !self.is_closing()
    }

    /// Handles timeouts: sends probes or messages again, or ends the call.
    fn check_time(&mut self, now: Duration) {
        if self.deaf && now >= *self.orphaned.get_or_insert(now + ORPHAN) {
            return self.end(Err(Fault::new("the other end has not taken what was sent")));
        }
        if self.is_idle() && self.tries >= RESENDS_MAX && self.due <= now {
            return self.end(Err(Fault::new(SILENT)));
        }
        if self.is_hanging_up() && self.hangups == HANGUPS && self.due <= now {
            // All our messages were received. It is unknown whether we have received all of theirs.
            self.end(Err(Fault::new(SILENT)));
        }
        let waits = self.out.front().is_some_and(|out| out.sent.is_some()) && self.again.is_none();
        if waits && self.due <= now {
            if self.tries >= RESENDS_MAX {
                let why = if self.calling { "nobody answers" } else { SILENT };
                return self.end(Err(Fault::new(why)));
            }
            // A message of one packet serves as a probe itself, while the measured time is plausible.
            let is_long = self.medium.packets(self.out[0].data.len()) > 1;
            self.doubts = (is_long || self.doubled > 0) && self.can_ask();
            self.tries += self.patience().as_millis().div_ceil(RESEND_MAX.as_millis()) as u32;
            self.doubled = self.doubled.saturating_add(1);
            if !self.doubts {
                self.resend();
            }
        }
    }

    /// Whether a probe can be sent. It has the number before the last acknowledged one, which must not be taken for a
    /// new one even if it arrives late. The other end hardly ever sends that number by itself.
    fn can_ask(&self) -> bool {
        let is_sent = self.out.front().is_some_and(|out| out.sent.is_some());
        is_sent && self.first > 1 && self.out.len() <= MESSAGES / 2
    }

    /// Sends the first message again. All packets lost with it count as one loss.
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

    /// The packet with the part of a message that starts at `at`.
    fn part(&mut self, now: Duration, index: usize, at: usize, again: bool) -> Vec<u8> {
        let mid = self.first + index as u64;
        let len = self.out[index].data.len();
        let end = len.min(at + self.medium.mtu - HEADER);
        let is_last = end == len;
        if is_last && !self.is_withholding() {
            self.next_ack();
        }
        // Any packet answers the other end's request.
        self.asked = false;
        let called = if self.calling { NEWCALL } else { 0 };
        let service = if mid == 1 && self.circuit & 1 == 0 { SERVICE } else { 0 };
        let left = (len - at) as i16;
        let header = NonetHeader {
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
                // Sends a probe at once to see whether it arrived, unless the other end seems to have no room for it.
                self.doubts =
                    (1..=FAST_RESENDS_MAX).contains(&self.out[0].resent) && self.medium.packets(len) > 1;
                self.due = now + self.patience();
            }
        }
        packet
    }

    fn next_ack(&mut self) {
        self.acked = self.acks.pop_front().unwrap_or(self.acked);
    }

    /// A packet without data. With ACKME it has a number that was received already, so the other end only acknowledges
    /// it: a probe. A hang-up has the next number.
    fn control(&self, flags: u8) -> Vec<u8> {
        let mid = match flags {
            HANGUP => self.first + self.out.len() as u64,
            ACKME if !self.out.is_empty() => self.first - 2,
            _ => self.first - 1,
        };
        let header = NonetHeader { circuit: self.circuit, flags, mid: mid as u8, ack: self.acked, remain: 0 };
        header.encode(&[], self.medium.min)
    }

    fn say_hangup(&mut self, now: Duration) -> Vec<u8> {
        self.hangups += 1;
        self.doubled += 1;
        self.due = now + self.patience();
        self.control(HANGUP)
    }

    /// Ends the call if the other end has hung up and all messages of this end are acknowledged. The last packet is a
    /// hang-up, unless this end has sent one before.
    fn turn(&mut self) {
        if self.hungup && self.out.is_empty() && self.over.is_none() {
            self.farewell = self.hangups == 0;
            self.end(Ok(()));
        }
    }

    fn end(&mut self, how: Result<(), Fault>) {
        self.over.get_or_insert(how);
        // The number shows the other end whether it has missed messages.
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
