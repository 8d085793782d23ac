//! `throttle RATE`: no more than so many bytes a second, each way.
//!
//! Always holds: what is put leaves when all before it, at that rate, would have left; one put may be on its way at
//! once, the next one waits.

use std::time::Duration;

use nine_stream::{Chain, Fault};

use super::held::Rule;
use super::{size, time_of};

pub(super) struct Throttle {
    /// Bytes a second.
    rate: u64,
    /// When everything that has been let in will have left.
    free: Duration,
}

impl Rule for Throttle {
    fn parse(arguments: &str) -> Result<Self, Fault> {
        match size(arguments.trim_end_matches("/s"))? {
            0 => Err(Fault::new("nothing at all would ever leave")),
            rate => Ok(Self { rate, free: Duration::ZERO }),
        }
    }

    const MOST: (usize, usize) = (1, usize::MAX);

    fn due(&mut self, now: Duration, chain: &Chain) -> Result<Option<Duration>, Fault> {
        self.free = self.free.max(now).saturating_add(time_of(chain.len() as u64, self.rate));
        Ok(Some(self.free))
    }

    fn says(&self) -> String {
        format!("{} bytes/s", self.rate)
    }
}
