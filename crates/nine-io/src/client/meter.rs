//! What is asked of a server and how long it takes, for who looks at that.
//!
//! In: that a request begins or has been answered, and bytes that go by. Out: counts, and answers by their times. The
//! clock is asked only while somebody looks: [`LOOKED`] from his latest look on.
//!
//! Concurrency: any number of clients count in one meter; nobody waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nine_net::Clock;

/// How long times are measured after a look.
pub const LOOKED: Duration = Duration::from_secs(10);
/// Number `n` has the answers that took less than `2^n` microseconds, and not less than half of it; the last one has
/// all that took longer.
pub const TIMES: usize = 26;

/// See the module.
pub struct Meter {
    clock: Arc<dyn Clock>,
    /// Until when somebody looks, microseconds; 0: nobody does.
    until: AtomicU64,
    requests: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    times: [AtomicU64; TIMES],
}

/// What a [`Meter`] has counted since its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Requests that were made.
    pub requests: u64,
    /// Bytes that were sent.
    pub sent: u64,
    /// Bytes that have come.
    pub received: u64,
    /// Answers to what was asked while somebody looked, by how long they took ([`TIMES`]). What waits for room before
    /// it is sent waits here, too.
    pub times: [u64; TIMES],
}

impl Meter {
    /// With nothing counted.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let [until, requests, sent, received] = [const { AtomicU64::new(0) }; 4];
        Self { clock, until, requests, sent, received, times: [const { AtomicU64::new(0) }; TIMES] }
    }

    /// What has been counted. Somebody looks from now on.
    pub fn look(&self) -> Load {
        self.until.store(micros(self.clock.now() + LOOKED), Ordering::Relaxed);
        let [requests, sent, received] = [&self.requests, &self.sent, &self.received].map(read);
        Load { requests, sent, received, times: self.times.each_ref().map(read) }
    }

    /// A request is made. What comes out is for [`Meter::ended`].
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
        // Somebody may have looked meanwhile.
        let _ = self.until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        0
    }

    /// The request that began then has been answered.
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

    /// A clock that is set by hand, microseconds; and how often it was asked.
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
