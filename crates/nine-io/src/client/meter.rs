//! Counts the requests to a server and measures their latency, for observers.
//!
//! In: starts and answers of requests, and bytes moved. Out: counts, and a histogram of latencies. The clock is read
//! only for [`LOOKED`] after an observer's last look.
//!
//! Concurrency: any number of clients count in one meter, without waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nine_net::Clock;

/// How long latencies are measured after a look.
pub const LOOKED: Duration = Duration::from_secs(10);
/// The number of latency classes. Class `n` has the answers that took less than `2^n` microseconds and at least half of
/// that; the last class has all slower ones.
pub const TIMES: usize = 26;

/// See the module.
pub struct Meter {
    clock: Arc<dyn Clock>,
    /// The time until which latencies are measured, in microseconds; 0: not measured.
    until: AtomicU64,
    requests: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    times: [AtomicU64; TIMES],
}

/// The counts of a [`Meter`] since its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Requests sent or queued.
    pub requests: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Answers to requests made during an observation, by latency class ([`TIMES`]). The latency includes the wait for
    /// room before the request is sent.
    pub times: [u64; TIMES],
}

impl Meter {
    /// A meter with all counts zero.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let [until, requests, sent, received] = [const { AtomicU64::new(0) }; 4];
        Self { clock, until, requests, sent, received, times: [const { AtomicU64::new(0) }; TIMES] }
    }

    /// Returns the counts, and starts or prolongs the measurement.
    pub fn look(&self) -> Load {
        self.until.store(micros(self.clock.now() + LOOKED), Ordering::Relaxed);
        let [requests, sent, received] = [&self.requests, &self.sent, &self.received].map(read);
        Load { requests, sent, received, times: self.times.each_ref().map(read) }
    }

    /// Counts a request. Returns its start time for [`Meter::ended`], or 0 if it is not measured.
    pub(crate) fn begun(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let until = read(&self.until);
        if until == 0 {
            return 0;
        }
        let now = micros(self.clock.now());
        if now < until {
            return now;
        }
        // Another look may have come meanwhile.
        let _ = self.until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        0
    }

    /// Records the answer to the request with this start time.
    pub(crate) fn ended(&self, begun: u64) {
        if begun > 0 {
            let took = micros(self.clock.now()).saturating_sub(begun);
            let at = (u64::BITS - took.leading_zeros()) as usize;
            self.times[at.min(TIMES - 1)].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Never 0.
fn micros(time: Duration) -> u64 {
    time.as_micros() as u64 + 1
}

fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use nine_net::Timer;

    use super::*;

    /// A clock set by hand, in microseconds, and the number of its readings.
    #[derive(Default)]
    struct Hand(AtomicU64, AtomicU64);

    impl Clock for Hand {
        fn now(&self) -> Duration {
            self.1.fetch_add(1, Ordering::Relaxed);
            Duration::from_micros(read(&self.0))
        }

        fn wall(&self) -> Duration {
            self.now()
        }

        fn sleep_until(&self, _: Duration) -> Timer {
            unreachable!("a meter waits for nothing")
        }

        fn entropy(&self, _: &mut [u8]) {
            unreachable!("a meter needs no entropy")
        }
    }

    #[test]
    fn the_clock_is_asked_only_while_somebody_looks() {
        let hand = Arc::new(Hand::default());
        let meter = Meter::new(hand.clone());
        for _ in 0..100 {
            meter.ended(meter.begun());
        }
        assert_eq!(read(&hand.1), 0);
        let load = meter.look();
        assert_eq!((load.requests, load.times.iter().sum::<u64>()), (100, 0));
        meter.ended(meter.begun());
        assert_eq!(meter.look().times.iter().sum::<u64>(), 1);
        hand.0.fetch_add(LOOKED.as_micros() as u64, Ordering::Relaxed);
        meter.ended(meter.begun());
        let asked = read(&hand.1);
        meter.ended(meter.begun());
        assert_eq!(read(&hand.1), asked);
        assert_eq!(meter.look().times.iter().sum::<u64>(), 1);
    }

    #[test]
    fn answers_are_counted_by_their_times() {
        let hand = Arc::new(Hand::default());
        let meter = Meter::new(hand.clone());
        meter.look();
        for took in [0, 1, 2, 3, 4, 1023, 1024, 1 << 40] {
            let begun = meter.begun();
            hand.0.fetch_add(took, Ordering::Relaxed);
            meter.ended(begun);
            hand.0.fetch_sub(took, Ordering::Relaxed);
        }
        let times = meter.look().times;
        let counted: Vec<_> = times.iter().enumerate().filter(|(_, n)| **n > 0).collect();
        assert_eq!(counted, [(0, &1), (1, &1), (2, &2), (3, &1), (10, &1), (11, &1), (TIMES - 1, &1)]);
    }
}
