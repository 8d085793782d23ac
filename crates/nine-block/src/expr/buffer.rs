//! A device of an expression with its own cache.

use std::sync::Arc;
use std::time::Duration;

use super::Driver;
use crate::cache::{Cache, Cached, Options};
use crate::device::{Device, Io, SECTOR, Shape};
use crate::error::{Error, Kind, Result};
use crate::mirror::{Pause, Rest};
use crate::owner::SectorOwner;
use crate::plain::within;

/// A device with a cache.
pub(super) struct BufferedDevice {
    name: String,
    cache: Cache,
    cached: Cached,
}

/// Maximum number of lost blocks that a status lists.
const NAMED: usize = 20;

impl BufferedDevice {
    /// Creates a cache of `memory` bytes, with blocks of `block` sectors. Its driver begins to write dirty blocks when
    /// they are between one and two pauses old.
    pub(super) fn new(
        of: std::sync::Arc<dyn Device>,
        name: String,
        memory: u64,
        block: u32,
        rest: Rest,
    ) -> Result<(Self, Driver)> {
        let cache = Cache::new(Options { block: u64::from(block) * SECTOR, memory, ..Options::default() });
        let cached = cache.over(of)?;
        let ticked = cached.clone();
        let driver = async move {
            for pauses in 0.. {
                ticked.tick(Duration::from_secs(pauses), Duration::from_secs(1));
                rest(Pause::Idle).await;
            }
        };
        Ok((Self { name, cache, cached }, Box::pin(driver)))
    }
}

impl Device for BufferedDevice {
    fn shape(&self) -> Shape {
        self.cached.shape()
    }

    fn unbacked(&self) -> u64 {
        self.cached.unbacked()
    }

    fn submit(&self, io: Io) {
        self.cached.submit(io);
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn status(&self) -> String {
        let lost = match self.cached.lost() {
            None => "blocks may be lost, too many to name them\n".into(),
            Some(lost) if lost.is_empty() => String::new(),
            Some(lost) => {
                let named: Vec<String> = lost.iter().take(NAMED).map(u64::to_string).collect();
                let more = if lost.len() > NAMED { " and more" } else { "" };
                format!("{} blocks may be lost: {}{more}\n", lost.len(), named.join(" "))
            }
        };
        let head = format!("{} {} sectors\n", self.name, self.shape().sectors);
        head + &within(&format!("{}{lost}{}", self.cache.stats(), self.cached.status()))
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        self.cached.owned_by(owner);
    }

    fn trouble(&self) -> Vec<String> {
        self.cached.trouble()
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        if words == ["resume"] {
            self.cached.resume();
            return Ok(());
        }
        self.cached.control(words).map_err(|error| match error.kind {
            Kind::Unsupported => Error::new(error.kind, format!("{error}; {} knows `resume`", self.name)),
            _ => error,
        })
    }
}
