//! `throttle RATE`: limits each direction to `RATE` bytes a second.
//!
//! Always holds: over any time `t` no more than `RATE * (t + CATCH_UP)` bytes leave, and one message; one message is
//! delayed at a time, and the next one waits.

use std::time::Duration;

use nine_stream::{Chain, Fault};

use super::held::HoldRule;
use super::{size, time_of};

/// A message that came this much after the link was free is sent as if it had been there in time. Timers fire late, by
/// a millisecond or two: at 20 MB/s, with 64 KiB in a message, that would cost a third of the rate.
const CATCH_UP: Duration = Duration::from_millis(20);

pub(super) struct ThrottleRule {
    /// Bytes a second.
    rate: u64,
    /// When the link is free: every message that was accepted has left.
    free: Duration,
}

impl HoldRule for ThrottleRule {
    fn parse(arguments: &str) -> Result<Self, Fault> {
        match size(arguments.trim_end_matches("/s"))? {
            0 => Err(Fault::new("nothing at all would ever leave")),
            rate => Ok(Self { rate, free: Duration::ZERO }),
        }
    }

    const QUEUE_MAX: (usize, usize) = (1, usize::MAX);

    fn due(&mut self, now: Duration, chain: &Chain) -> Result<Option<Duration>, Fault> {
        self.free = self
            .free
            .max(now.saturating_sub(CATCH_UP))
            .saturating_add(time_of(chain.len() as u64, self.rate));
        Ok(Some(self.free))
    }

    fn says(&self) -> String {
        format!("{} bytes/s", self.rate)
    }
}
