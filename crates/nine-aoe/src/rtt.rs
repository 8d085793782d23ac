//! Round-trip times: Jacobson's estimate (1988), with the gains of Linux's aoe: 1/256 for the mean, 1/8 for the
//! deviation. The mean moves slowly, so a change raises the deviation at once, and the timeout is not too short.

use std::time::Duration;

/// Timeout before the first measurement.
const GUESS: Duration = Duration::from_millis(250);
/// Minimum timeout: the resolution of timers and of a target's scheduler.
const LEAST: Duration = Duration::from_millis(10);
/// Minimum timeout of a frame that later frames have overtaken. Here time is not the only sign of a loss.
const LEAST_OVERTAKEN: Duration = Duration::from_millis(1);
/// Maximum timeout.
const MOST: Duration = Duration::from_secs(30);

/// An estimate of the round-trip time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    /// Nanoseconds, scaled by 256 (mean) and 8 (deviation). 0 if nothing was measured.
    mean: u64,
    deviation: u64,
}

impl Rtt {
    /// Adds a measurement.
    pub(crate) fn measured(&mut self, took: Duration) {
        let took = (took.as_nanos() as u64).clamp(1, MOST.as_nanos() as u64);
        if self.mean == 0 {
            (self.mean, self.deviation) = (took << 8, took << 2);
            return;
        }
        let error = took as i64 - (self.mean >> 8) as i64;
        self.mean = self.mean.saturating_add_signed(error).max(1);
        let more = error.unsigned_abs() as i64 - (self.deviation >> 3) as i64;
        self.deviation = self.deviation.saturating_add_signed(more);
    }

    /// Returns the mean round-trip time.
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_nanos(self.mean >> 8)
    }

    fn bare(&self) -> Duration {
        Duration::from_nanos(2 * (self.mean >> 8) + self.deviation)
    }

    /// Returns the time after which an unanswered frame is considered lost.
    pub(crate) fn timeout(&self) -> Duration {
        if self.mean == 0 { GUESS } else { self.bare().clamp(LEAST, MOST) }
    }

    /// The same, for a frame that was sent before others that are answered.
    pub(crate) fn overtaken(&self) -> Duration {
        if self.mean == 0 { GUESS } else { self.bare().clamp(LEAST_OVERTAKEN, MOST) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn the_first_is_the_mean_and_the_timeout_has_a_floor_and_a_ceiling() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(), GUESS);
        rtt.measured(100 * US);
        assert_eq!((rtt.mean(), rtt.timeout()), (100 * US, LEAST));
        assert_eq!(rtt.overtaken(), LEAST_OVERTAKEN);
        rtt.measured(Duration::from_secs(1000));
        assert!(rtt.timeout() <= MOST);
    }

    #[test]
    fn a_change_shows_in_the_timeout_at_once_and_in_the_mean_slowly() {
        let mut rtt = Rtt::default();
        (0..1000).for_each(|_| rtt.measured(100 * US));
        rtt.measured(50_000 * US);
        assert!(rtt.mean() < 400 * US && rtt.timeout() > 40_000 * US, "{rtt:?}");
        (0..1000).for_each(|_| rtt.measured(50_000 * US));
        assert!(rtt.mean() > 45_000 * US && rtt.timeout() < 150_000 * US, "{rtt:?}");
        (0..3000).for_each(|_| rtt.measured(100 * US));
        assert_eq!(rtt.timeout(), LEAST);
    }
}
