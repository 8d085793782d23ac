//! A model of the path to the other end: its round-trip time, its delivery rate, and how much may be in flight.
//!
//! It models the bottleneck as BBR does (Cardwell et al., 2016): data in flight is twice the delivery rate times the
//! shortest round trip. Occasional losses change nothing. Rounds with many losses set a limit, and silence resets the
//! model.

use std::collections::VecDeque;
use std::time::Duration;

/// Rounds after which a delivery rate is dropped.
const RATE_ROUNDS: u64 = 10;
/// After this long without a shorter round trip, little is sent for a moment, to measure the shortest one again.
const STALE: Duration = Duration::from_secs(10);
/// The shortest round trip used in the model: batches and timers take as long.
const ROUND_TRIP_MIN: Duration = Duration::from_millis(1);
/// Messages that may always be in flight.
const FLIGHT_MESSAGES_MIN: usize = 4;
/// Maximum number of bytes in flight.
pub(super) const FLIGHT_LEN_MAX: usize = 16 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct PathModel {
    /// Smoothed round-trip time and its mean deviation.
    pub(super) rtt: Duration,
    pub(super) deviation: Duration,
    shortest: Duration,
    shortest_at: Duration,
    /// While the path is drained: until when, and the shortest round trip seen.
    emptying: Option<(Duration, Duration)>,
    /// Bytes that may be in flight.
    pub(super) room: usize,
    /// The limit from rounds with many losses.
    limit: usize,
    /// The rate still grows.
    growing: bool,
    best: u64,
    flat: u32,
    /// Round and rate in bytes per second: falling rates of rising rounds.
    rates: VecDeque<(u64, u64)>,
    round: u64,
    round_ends: u64,
    round_began: u64,
    round_lost: (u64, usize),
    delivered: u64,
    delivered_at: Duration,
    /// When the message delivered last was sent.
    sent_at: Duration,
    /// Until this much is delivered, the rate was limited by the sender.
    starved_until: u64,
    message: usize,
}

/// The state of the model when a message was sent, stored with the message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PathStamp {
    pub(super) sent: Duration,
    delivered: u64,
    delivered_at: Duration,
    first_sent: Duration,
    starved: bool,
}

impl PathModel {
    /// Creates a model for messages of `message` bytes.
    pub(super) fn new(message: usize, first_guess: Duration) -> Self {
        Self {
            rtt: first_guess,
            deviation: first_guess / 2,
            shortest: Duration::MAX,
            shortest_at: Duration::ZERO,
            emptying: None,
            room: 10 * message,
            limit: usize::MAX,
            growing: true,
            best: 0,
            flat: 0,
            rates: VecDeque::new(),
            round: 0,
            round_ends: 0,
            round_began: 0,
            round_lost: (0, 0),
            delivered: 0,
            delivered_at: Duration::ZERO,
            sent_at: Duration::ZERO,
            starved_until: 0,
            message,
        }
    }

    /// Records that a message is sent with `on_way` bytes in flight.
    pub(super) fn sends(&mut self, now: Duration, on_way: usize) -> PathStamp {
        if on_way == 0 {
            (self.sent_at, self.delivered_at) = (now, now);
        }
        PathStamp {
            sent: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.sent_at,
            starved: self.starved_until > self.delivered,
        }
    }

    /// Records that there is room but nothing to send.
    pub(super) fn starves(&mut self, on_way: usize) {
        self.starved_until = self.delivered + on_way as u64 + 1;
    }

    /// Records a measured round trip.
    pub(super) fn measured(&mut self, now: Duration, rtt: Duration) {
        if self.shortest == Duration::MAX {
            (self.rtt, self.deviation) = (rtt, rtt / 2);
        } else {
            self.deviation = (self.deviation * 3 + self.rtt.abs_diff(rtt)) / 4;
            self.rtt = (self.rtt * 7 + rtt) / 8;
        }
        if rtt <= self.shortest {
            (self.shortest, self.shortest_at) = (rtt, now);
        }
        match &mut self.emptying {
            Some((until, seen)) if now < *until => *seen = rtt.min(*seen),
            Some((_, seen)) => {
                (self.shortest, self.shortest_at) = ((*seen).min(rtt), now);
                self.emptying = None;
            }
            None if now > self.shortest_at + STALE => {
                self.emptying = Some((now + self.rtt * 3, Duration::MAX));
            }
            None => {}
        }
    }

    /// Records delivered bytes, with the stamp of the one sent last, and the number of lost messages.
    pub(super) fn delivers(&mut self, now: Duration, bytes: usize, newest: Option<PathStamp>, lost: usize) {
        self.delivered += bytes as u64;
        self.delivered_at = now;
        self.round_lost.0 += (lost > 0) as u64;
        self.round_lost.1 += lost;
        if let Some(stamp) = newest {
            self.sent_at = stamp.sent;
            let rounds = stamp.delivered >= self.round_ends;
            if rounds {
                self.rounds();
            }
            let took =
                now.saturating_sub(stamp.delivered_at).max(stamp.sent.saturating_sub(stamp.first_sent));
            let rate = (self.delivered - stamp.delivered) as f64 / took.as_secs_f64().max(1e-6);
            let rate = rate as u64;
            if !stamp.starved || rate > self.rate() {
                self.rates.retain(|(round, old)| *old > rate && round + RATE_ROUNDS > self.round);
                self.rates.push_back((self.round, rate));
            }
            if rounds && self.growing && !stamp.starved {
                self.flat = if self.rate() > self.best + self.best / 4 { 0 } else { self.flat + 1 };
                self.best = self.best.max(self.rate());
                self.growing = self.flat < 3;
            }
        }
        self.make_room(bytes);
    }

    fn rounds(&mut self) {
        let (lost, total) = (self.round_lost.1 as u64, self.delivered - self.round_began);
        if self.round_lost.0 >= 3 && lost * 20 > total + lost {
            self.limit = self.room.min(self.limit) / 20 * 17;
            self.growing = false;
        } else if self.limit < FLIGHT_LEN_MAX {
            self.limit += (self.limit / 16).max(self.message);
        }
        self.round += 1;
        self.round_lost = (0, 0);
        (self.round_began, self.round_ends) = (self.delivered, self.delivered);
    }

    fn make_room(&mut self, bytes: usize) {
        let fewest = FLIGHT_MESSAGES_MIN * self.message;
        if self.growing {
            self.room += bytes;
        } else {
            let rtt = self.shortest.clamp(ROUND_TRIP_MIN, Duration::from_secs(10));
            let product = self.rate() as f64 * rtt.as_secs_f64();
            let aim = 2 * (product as usize).min(FLIGHT_LEN_MAX) + 3 * self.message;
            self.room = aim.min(self.room + bytes);
        }
        self.room = self.room.min(self.limit).min(FLIGHT_LEN_MAX).max(fewest);
    }

    /// Bytes that may be in flight now.
    pub(super) fn may(&self) -> usize {
        if self.emptying.is_some() { FLIGHT_MESSAGES_MIN * self.message } else { self.room }
    }

    /// Resets the model, because no answers arrive.
    pub(super) fn is_silent(&mut self) {
        let (rtt, deviation) = (self.rtt, self.deviation);
        let (delivered, delivered_at) = (self.delivered, self.delivered_at);
        *self = Self { deviation, delivered, delivered_at, ..Self::new(self.message, rtt) };
        self.room = FLIGHT_MESSAGES_MIN * self.message;
        (self.round_began, self.round_ends) = (delivered, delivered);
    }

    /// Delivery rate in bytes per second; 0: unknown.
    pub(super) fn rate(&self) -> u64 {
        self.rates.front().map_or(0, |(_, rate)| *rate)
    }
}
