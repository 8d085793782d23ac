//! `fault delay MS`, `fault loss N`, `fault cut BYTES`, in any combination: what networks do, on purpose.
//!
//! Always holds: what is delayed keeps its order and is not more than [`Faulty::MOST`]; every `N`th message is lost,
//! which only what repeats lost messages survives; after the cut nothing goes either way and both ends are told.

use std::time::Duration;

use nine_stream::{Chain, Fault};

use super::held::Rule;
use super::size;

#[derive(Default)]
pub(super) struct Faulty {
    delay: Duration,
    /// Every so manieth chain is lost; 0: none.
    loss: u64,
    /// Bytes until the cut.
    left: Option<u64>,
    seen: u64,
}

impl Rule for Faulty {
    fn parse(arguments: &str) -> Result<Self, Fault> {
        let mut faulty = Self::default();
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

    const MOST: (usize, usize) = (4096, 1 << 20);

    fn due(&mut self, now: Duration, chain: &Chain) -> Result<Option<Duration>, Fault> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(chain.len() as u64).ok_or_else(|| Fault::new("cut, as was asked"))?;
        }
        self.seen += 1;
        let is_lost = self.loss > 0 && self.seen.is_multiple_of(self.loss);
        Ok((!is_lost).then(|| now.saturating_add(self.delay)))
    }

    fn says(&self) -> String {
        format!("{} messages", self.seen)
    }
}
