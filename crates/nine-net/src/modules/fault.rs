//! `fault delay MS`, `fault loss N`, `fault cut BYTES`, in any combination: what networks do, on purpose.
//!
//! Always holds: what is delayed keeps its order and is not more than [`MOST`]; every `N`th message is lost, which only
//! what repeats lost messages survives; after the cut nothing goes either way and both ends are told.

use std::time::Duration;

use nine_stream::{Chain, Fault, Halves, Module, Next};

use super::held::Held;
use super::size;

/// Bytes and chains that are delayed at once.
const MOST: (usize, usize) = (1 << 20, 4096);

#[derive(Default)]
struct Faulty {
    delay: Duration,
    /// Every so manieth chain is lost; 0: none.
    loss: u64,
    /// Bytes until the cut.
    left: Option<u64>,
    seen: u64,
    held: Held,
}

pub(super) fn open(arguments: &str) -> Result<Halves, Fault> {
    // Wrong words are told now, not at the first message.
    Ok(Halves { up: Box::new(parse(arguments)?), down: Box::new(parse(arguments)?) })
}

fn parse(arguments: &str) -> Result<Faulty, Fault> {
    let mut faulty = Faulty::default();
    let mut words = arguments.split_ascii_whitespace();
    while let Some(word) = words.next() {
        let value = size(words.next().unwrap_or_default())?;
        match word {
            "delay" => faulty.delay = Duration::from_millis(value),
            "loss" => faulty.loss = value,
            "cut" => faulty.left = Some(value),
            _ => return Err(Fault::new(format!("{word:?} is no fault: delay MS, loss N, cut BYTES"))),
        }
    }
    Ok(faulty)
}

impl Module for Faulty {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(chain.len() as u64).ok_or_else(|| Fault::new("cut, as was asked"))?;
        }
        self.seen += 1;
        if self.loss > 0 && self.seen.is_multiple_of(self.loss) {
            return Ok(());
        }
        self.held.push(next.now().saturating_add(self.delay), chain);
        self.resume(next)
    }

    fn is_full(&self) -> bool {
        self.held.bytes() >= MOST.0 || self.held.len() >= MOST.1
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
        format!("{} messages, holds {} bytes", self.seen, self.held.bytes())
    }
}
