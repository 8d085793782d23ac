//! Chains that a module holds until their time has come.

use std::collections::VecDeque;
use std::time::Duration;

use nine_stream::{Chain, Next};

/// In the order in which they leave.
#[derive(Default)]
pub(super) struct Held {
    chains: VecDeque<(Duration, Chain)>,
    bytes: usize,
}

impl Held {
    /// Holds one; none leaves before those that came before it.
    pub(super) fn push(&mut self, due: Duration, chain: Chain) {
        self.bytes += chain.len();
        self.chains.push_back((due, chain));
    }

    /// When the first one leaves.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.chains.front().map(|(due, _)| *due)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.chains.len()
    }

    /// Passes on those whose time has come, as long as there is room.
    pub(super) fn release(&mut self, next: &mut Next<'_, '_>) {
        let now = next.now();
        while !next.is_full()
            && let Some((_, chain)) = self.chains.pop_front_if(|(due, _)| *due <= now)
        {
            self.bytes -= chain.len();
            next.put(chain);
        }
    }

    /// Passes on all of them.
    pub(super) fn release_all(&mut self, next: &mut Next<'_, '_>) {
        self.bytes = 0;
        self.chains.drain(..).for_each(|(_, chain)| next.put(chain));
    }
}
