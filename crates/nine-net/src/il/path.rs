//! What one end knows of the way to the other: how long it takes, how much of it comes through, how much may be on it.
//!
//! A model of the bottleneck, as BBR's (Cardwell et al., 2016): what is on its way is twice the delivery rate times the
//! shortest round trip. A message lost now and then changes nothing; rounds that lose much set a limit, and silence
//! begins anew.

use std::collections::VecDeque;
use std::time::Duration;

/// Rounds after which a delivery rate is forgotten.
const ROUNDS: u64 = 10;
/// After this long without a shorter round trip the way is emptied for a moment, to see the shortest anew.
const STALE: Duration = Duration::from_secs(10);
/// The round trip that is reckoned with at least: batches and timers take as long.
const SHORTEST: Duration = Duration::from_millis(1);
/// Messages that may always be on their way.
const FEWEST: usize = 4;
/// Bytes that may be on their way at most.
pub(super) const MOST: usize = 16 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Path {
    /// Smoothed round trip and its mean deviation.
    pub(super) rtt: Duration,
    pub(super) deviation: Duration,
    shortest: Duration,
    shortest_at: Duration,
    /// While the way is being emptied: until when, and the shortest seen.
    emptying: Option<(Duration, Duration)>,
    /// Bytes that may be on their way.
    pub(super) room: usize,
    /// What rounds that lost much have shown.
    limit: usize,
    /// The rate still grows.
    growing: bool,
    best: u64,
    flat: u32,
    /// Round and rate, bytes a second: falling rates of rising rounds.
    rates: VecDeque<(u64, u64)>,
    round: u64,
    round_ends: u64,
    round_began: u64,
    round_lost: (u64, usize),
    delivered: u64,
    delivered_at: Duration,
    /// When the message that was delivered last had been sent.
    sent_at: Duration,
    /// Until so much is delivered, there was not enough to send.
    starved_until: u64,
    message: usize,
}

/// What is kept with a message that is on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamp {
    pub(super) sent: Duration,
    delivered: u64,
    delivered_at: Duration,
    first_sent: Duration,
    starved: bool,
}

impl Path {
    /// Of messages of so many bytes.
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

    /// A message leaves while so much is on its way.
    pub(super) fn sends(&mut self, now: Duration, on_way: usize) -> Stamp {
        if on_way == 0 {
            (self.sent_at, self.delivered_at) = (now, now);
        }
        Stamp {
            sent: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.sent_at,
            starved: self.starved_until > self.delivered,
        }
    }

    /// There is room, and nothing to send.
    pub(super) fn starves(&mut self, on_way: usize) {
        self.starved_until = self.delivered + on_way as u64 + 1;
    }

    /// A round trip has taken so long.
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

    /// So many bytes have been delivered, the one that was sent last among them with this stamp; so many are lost.
    pub(super) fn delivers(&mut self, now: Duration, bytes: usize, newest: Option<Stamp>, lost: usize) {
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
                self.rates.retain(|(round, old)| *old > rate && round + ROUNDS > self.round);
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
        } else if self.limit < MOST {
            self.limit += (self.limit / 16).max(self.message);
        }
        self.round += 1;
        self.round_lost = (0, 0);
        (self.round_began, self.round_ends) = (self.delivered, self.delivered);
    }

    fn make_room(&mut self, bytes: usize) {
        let fewest = FEWEST * self.message;
        if self.growing {
            self.room += bytes;
        } else {
            let rtt = self.shortest.clamp(SHORTEST, Duration::from_secs(10));
            let product = self.rate() as f64 * rtt.as_secs_f64();
            let aim = 2 * (product as usize).min(MOST) + 3 * self.message;
            self.room = aim.min(self.room + bytes);
        }
        self.room = self.room.min(self.limit).min(MOST).max(fewest);
    }

    /// What may be on its way now.
    pub(super) fn may(&self) -> usize {
        if self.emptying.is_some() { FEWEST * self.message } else { self.room }
    }

    /// Nothing is heard: what was known is worth nothing.
    pub(super) fn is_silent(&mut self) {
        let (rtt, deviation) = (self.rtt, self.deviation);
        let (delivered, delivered_at) = (self.delivered, self.delivered_at);
        *self = Self { deviation, delivered, delivered_at, ..Self::new(self.message, rtt) };
        self.room = FEWEST * self.message;
        (self.round_began, self.round_ends) = (delivered, delivered);
    }

    /// Bytes a second; 0: not known.
    pub(super) fn rate(&self) -> u64 {
        self.rates.front().map_or(0, |(_, rate)| *rate)
    }
}
