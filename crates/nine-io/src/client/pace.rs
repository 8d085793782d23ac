//! Finds how many bytes to have in flight so that the link is full and its queues are not. It uses the round trips and
//! rates of the answers. A small relative of BBR (Cardwell and others, 2016).
//!
//! In: the times of requests and answers of pieces. Out: a window in bytes. The window starts at [`WINDOW_FIRST_LEN`]
//! and grows by the answered bytes, so it doubles each round trip, while that raises the rate. Then it is one and a
//! half times the capacity of the link: the highest rate of the last [`RATE_ROUNDS_MAX`] round trips, times the
//! shortest round trip seen when the link was found full. Other requests of the connection wait behind what is in
//! flight. Periodically it is a quarter larger for one round trip. If that raises the rate, growth starts again. A link
//! is also full when all answers of a round trip are delayed by a queue ([`QUEUE_DELAY`]). Short answers mean that the
//! server has no room for the window: it is halved, down to [`WINDOW_FIRST_LEN`].

use std::collections::VecDeque;
use std::time::Duration;

/// The initial window, in bytes.
const WINDOW_FIRST_LEN: usize = 1 << 20;
/// The smallest window, in bytes.
const WINDOW_LEN_MIN: usize = 256 * 1024;
/// A queue delays the answers if every one of a round trip takes longer than the link's round-trip time by more than
/// this, and by more than that time itself.
const QUEUE_DELAY: Duration = Duration::from_millis(20);
/// Round trips for which a measured rate counts.
const RATE_ROUNDS_MAX: usize = 10;
/// A larger window is tried once in this many round trips.
const PROBE_ROUNDS: u32 = 8;
/// The link is full after this many round trips without a rate increase of a quarter.
const FULL_ROUNDS: u32 = 3;

pub(crate) struct PaceController {
    most: usize,
    window: usize,
    /// Bytes answered.
    answered: u64,
    /// The shortest time of each of the last round trips; the newest last.
    trips: VecDeque<Duration>,
    /// The assumed round-trip time of the link, once it is full.
    shortest: Duration,
    /// The highest rate of each of the last round trips, bytes per second; the newest last.
    rates: VecDeque<f64>,
    /// The current round trip ends with the first answer to a request made at or after this count of answered bytes.
    round: u64,
    /// The best rate when it last grew by a quarter, and the number of round trips since.
    best: f64,
    since: u32,
    full: bool,
    /// Round trips since the link was found full.
    rounds: u32,
    /// Bytes that were answered when the window was halved.
    halved: u64,
}

/// The state at the time of a piece's request.
#[derive(Clone, Copy, Default)]
pub(crate) struct PaceSample {
    at: Duration,
    answered: u64,
}

impl PaceController {
    /// A window of at most `most` bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            window: WINDOW_FIRST_LEN.min(most),
            answered: 0,
            trips: VecDeque::from([Duration::MAX]),
            shortest: Duration::MAX,
            rates: VecDeque::from([0.0]),
            round: 0,
            best: 0.0,
            since: 0,
            full: false,
            rounds: 0,
            halved: 0,
        }
    }

    /// Bytes to have in flight.
    pub(crate) fn window(&self) -> usize {
        self.window
    }

    /// Records the request of a piece.
    pub(crate) fn ask(&self, now: Duration) -> PaceSample {
        PaceSample { at: now, answered: self.answered }
    }

    /// Records the answer to a piece, with its number of bytes. Returns the time that it took.
    pub(crate) fn answer(&mut self, now: Duration, asked: PaceSample, bytes: usize) -> Duration {
        self.answered += bytes as u64;
        let trip = now.saturating_sub(asked.at).max(Duration::from_micros(1));
        let shortest = self.trips.back_mut().expect("there is always one");
        *shortest = trip.min(*shortest);
        self.shortest = trip.min(self.shortest);
        let rate = (self.answered - asked.answered) as f64 / trip.as_secs_f64();
        let newest = self.rates.back_mut().expect("there is always one");
        *newest = newest.max(rate);
        if asked.answered >= self.round {
            self.round = self.answered;
            self.end_round();
        }
        let settled = (1.5 * self.holds()) as usize + WINDOW_LEN_MIN / 2;
        let window = match self.full {
            // A larger window would only lengthen the queue.
            false if self.queues(trip) => self.window,
            false => self.window + bytes,
            true if self.rounds % PROBE_ROUNDS == PROBE_ROUNDS - 1 => {
                settled + WINDOW_LEN_MIN.max(settled / 4)
            }
            true => settled,
        };
        self.window = window.clamp(WINDOW_LEN_MIN.min(self.most), self.most);
        trip
    }

    /// To be called when the answer to a piece is shorter than the piece: the server has no room for the window. Halves
    /// the window, once for all pieces that were requested before.
    pub(crate) fn shrink(&mut self, asked: PaceSample) {
        if asked.answered >= self.halved && self.window > WINDOW_FIRST_LEN {
            self.halved = self.answered;
            self.most = (self.window / 2).max(WINDOW_FIRST_LEN);
            self.window = self.most;
        }
    }

    /// The capacity of the link in bytes.
    fn holds(&self) -> f64 {
        let rate = self.rates.iter().copied().fold(0.0, f64::max);
        rate * self.shortest.as_secs_f64()
    }

    /// The link is found full.
    fn fill(&mut self) {
        (self.full, self.rounds) = (true, 0);
        self.shortest = self.trips.iter().copied().min().unwrap_or(Duration::MAX);
    }

    /// Whether a queue of the link has delayed an answer that took this time.
    fn queues(&self, trip: Duration) -> bool {
        trip > self.shortest.saturating_add(self.shortest.max(QUEUE_DELAY))
    }

    fn end_round(&mut self) {
        let newest = self.rates.back().copied().unwrap_or_default();
        let shortest = self.trips.back().copied().unwrap_or(Duration::MAX);
        let queues = self.queues(shortest);
        if self.full {
            self.rounds += 1;
            // The rates since the last trial showed its effect.
            let since = self.rates.iter().rev().skip(1).take(PROBE_ROUNDS as usize - 2);
            let before = since.copied().fold(0.0, f64::max);
            if newest > 1.1 * before {
                // The link has more capacity than assumed.
                (self.full, self.best, self.since) = (false, newest, 0);
            }
        } else if queues {
            self.fill();
        } else if newest >= 1.25 * self.best {
            (self.best, self.since) = (newest, 0);
        } else {
            self.since += 1;
            if self.since >= FULL_ROUNDS {
                self.fill();
            }
        }
        self.rates.push_back(0.0);
        self.trips.push_back(Duration::MAX);
        if self.rates.len() > RATE_ROUNDS_MAX {
            self.rates.pop_front();
            self.trips.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 128 * 1024;

    /// A reader with the whole window in flight over a link with this rate and round trip. Returns the window after
    /// each answer.
    fn read(rate: f64, trip: Duration, pieces: usize, most: usize) -> Vec<usize> {
        read_after(0, rate, trip, pieces, most)
    }

    /// The same, but the first pieces take a hundredth of the time.
    fn read_after(quick: usize, rate: f64, trip: Duration, pieces: usize, most: usize) -> Vec<usize> {
        let (mut pace, mut free, mut now) = (PaceController::new(most), Duration::ZERO, Duration::ZERO);
        let (mut way, mut asked, mut windows) = (VecDeque::new(), 0, Vec::new());
        while windows.len() < pieces {
            while way.len() * PIECE + PIECE <= pace.window() && asked < pieces {
                let trip = if asked < quick { trip / 100 } else { trip };
                free = free.max(now + trip) + Duration::from_secs_f64(PIECE as f64 / rate);
                way.push_back((free, pace.ask(now)));
                asked += 1;
            }
            let (at, was) = way.pop_front().expect("something is under way");
            now = at;
            pace.answer(now, was, PIECE);
            windows.push(pace.window());
        }
        windows
    }

    #[test]
    fn the_window_settles_above_what_the_link_holds() {
        for (mbit, ms) in [(100, 50), (100, 200), (1000, 20), (10, 100), (1000, 1)] {
            let (rate, trip) = (f64::from(mbit) * 125_000.0, Duration::from_millis(ms));
            let holds = rate * (trip.as_secs_f64() + PIECE as f64 / rate);
            let window = *read(rate, trip, 2000, 64 << 20).last().unwrap() as f64;
            assert!(
                window >= 1.2 * holds && window <= 2.0 * holds + 1.5 * WINDOW_LEN_MIN as f64,
                "{mbit} {ms}: {window} {holds}"
            );
        }
    }

    #[test]
    fn it_grows_twice_as_large_with_each_round_trip_until_the_link_is_full() {
        let windows = read(125_000_000.0, Duration::from_millis(100), 2000, 64 << 20);
        assert!(windows[7] == WINDOW_FIRST_LEN + 8 * PIECE && windows.iter().all(|&w| w <= 64 << 20));
        assert!(windows.iter().max().unwrap() >= &(12 << 20), "a link that holds 12.5 MB is filled");
    }

    #[test]
    fn a_link_that_has_become_longer_is_filled_again() {
        let (rate, trip) = (12.5e6, Duration::from_millis(100));
        let windows = read_after(100, rate, trip, 6000, 64 << 20);
        assert!(*windows.last().unwrap() as f64 >= rate * trip.as_secs_f64(), "{:?}", windows.last());
    }

    #[test]
    fn a_short_answer_halves_the_window_once_for_what_was_asked_before() {
        let mut pace = PaceController::new(16 << 20);
        let asked = pace.ask(Duration::ZERO);
        for _ in 0..120 {
            pace.answer(Duration::from_millis(50), asked, PIECE);
        }
        let before = pace.window();
        assert!(before > 8 << 20, "{before}");
        pace.shrink(asked);
        assert_eq!(pace.window(), before / 2);
        pace.shrink(asked);
        assert_eq!(pace.window(), before / 2, "it was asked for before");
        for _ in 0..9 {
            let asked = pace.ask(Duration::from_millis(60));
            pace.answer(Duration::from_millis(110), asked, PIECE);
            assert!(pace.window() <= before / 2, "it does not grow again");
            pace.shrink(asked);
        }
        assert_eq!(pace.window(), WINDOW_FIRST_LEN);
    }

    #[test]
    fn a_window_that_only_fills_a_queue_stops_growing() {
        // 10 Mbit/s and 50 ms: the link holds 62 KB.
        let windows = read(1.25e6, Duration::from_millis(50), 400, 64 << 20);
        assert!(windows.iter().all(|&w| w <= 4 << 20), "{:?}", windows.iter().max());
    }

    #[test]
    fn it_never_has_more_than_it_may() {
        let windows = read(1e9, Duration::from_millis(200), 1000, 3 << 20);
        assert!(windows.iter().all(|&w| w <= 3 << 20) && windows.last() == Some(&(3 << 20)));
    }
}
