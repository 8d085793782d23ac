//! `throttle RATE`: no more than so many bytes a second, each way.
//!
//! Always holds: what is put leaves when all before it, at that rate, would have left; one put may be on its way at
//! once, the next one waits.

use std::time::Duration;

use nine_stream::{Chain, Fault, Halves, Module, Next};

use super::held::Held;
use super::{size, time_of};

struct Throttle {
    /// Bytes a second.
    rate: u64,
    /// When everything that has been let in will have left.
    free: Duration,
    held: Held,
}

pub(super) fn open(arguments: &str) -> Result<Halves, Fault> {
    let rate = size(arguments.trim_end_matches("/s"))?;
    if rate == 0 {
        return Err(Fault::new("nothing at all would ever leave"));
    }
    let half = || Box::new(Throttle { rate, free: Duration::ZERO, held: Held::default() });
    Ok(Halves { up: half(), down: half() })
}

impl Module for Throttle {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.free = self.free.max(next.now()).saturating_add(time_of(chain.len() as u64, self.rate));
        self.held.push(self.free, chain);
        self.resume(next)
    }

    fn is_full(&self) -> bool {
        self.holds()
    }

    fn resume(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.held.release(next);
        Ok(())
    }

    fn deadline(&self) -> Option<Duration> {
        self.held.deadline()
    }

    fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.held.release_all(next);
        Ok(())
    }

    fn status(&self) -> String {
        format!("{} bytes/s, holds {}", self.rate, self.held.bytes())
    }
}
