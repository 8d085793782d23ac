//! `throttle RATE`: no more than so many bytes a second, each way.
//!
//! Always holds: what is put leaves when all before it, at that rate, would have left; one put may be on its way at
//! once, the next one waits.

use std::time::Duration;

use nine_stream::{Chain, Fault, Halves};

use super::held::{Holding, Rule};
use super::{size, time_of};

struct Throttle {
    /// Bytes a second.
    rate: u64,
    /// When everything that has been let in will have left.
    free: Duration,
}

pub(super) fn open(arguments: &str) -> Result<Halves, Fault> {
    let rate = size(arguments.trim_end_matches("/s"))?;
    if rate == 0 {
        return Err(Fault::new("nothing at all would ever leave"));
    }
    let half = || Box::new(Holding::new(Throttle { rate, free: Duration::ZERO }));
    Ok(Halves { up: half(), down: half() })
}

impl Rule for Throttle {
    const MOST: (usize, usize) = (1, usize::MAX);

    fn due(&mut self, now: Duration, chain: &Chain) -> Result<Option<Duration>, Fault> {
        self.free = self.free.max(now).saturating_add(time_of(chain.len() as u64, self.rate));
        Ok(Some(self.free))
    }

    fn says(&self) -> String {
        format!("{} bytes/s", self.rate)
    }
}
