//! `fault delay MS`, `fault loss N`, `fault cut BYTES`, in any combination: simulates faults of networks.
//!
//! Always holds: delayed messages stay in order, up to [`FaultRule::QUEUE_MAX`]. Every `N`th message is lost, which
//! only protocols with retransmission survive. After the cut no data passes in either direction, and both ends get an
//! error.

use std::time::Duration;

use nine_stream::{Chain, Fault};

use super::held::HoldRule;
use super::size;

#[derive(Default)]
pub(super) struct FaultRule {
    delay: Duration,
    /// Every `loss`th chain is dropped; 0: none.
    loss: u64,
    /// Bytes left until the cut.
    left: Option<u64>,
    seen: u64,
}

impl HoldRule for FaultRule {
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

    const QUEUE_MAX: (usize, usize) = (4096, 1 << 20);

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
