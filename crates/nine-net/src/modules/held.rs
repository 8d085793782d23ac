//! A module that delays chains. A [`HoldRule`] decides until when.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;

use nine_stream::{Chain, Fault, Halves, Module, ModuleKind, Next};

/// Decides when chains leave.
pub(super) trait HoldRule: Send + Sized {
    /// Parses the arguments.
    fn parse(arguments: &str) -> Result<Self, Fault>;

    /// When a chain that arrives now leaves. `None`: it is dropped.
    fn due(&mut self, now: Duration, chain: &Chain) -> Result<Option<Duration>, Fault>;

    /// Maximum number of chains, and of bytes, that are held. The last chain may exceed it.
    const QUEUE_MAX: (usize, usize);

    /// A description for `status`.
    fn says(&self) -> String;
}

/// The kind of module with rule `R`.
pub(super) struct RuleModule<R>(PhantomData<fn() -> R>);

impl<R> Default for RuleModule<R> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<R: HoldRule + 'static> ModuleKind for RuleModule<R> {
    fn open(&self, arguments: &str) -> Result<Halves, Fault> {
        // Reports wrong arguments now, not at the first message.
        let half = || Ok(Box::new(RuleDirection::new(R::parse(arguments)?)));
        Ok(Halves { up: half()?, down: half()? })
    }

    fn cost(&self, _: &str) -> usize {
        let (chains, bytes) = R::QUEUE_MAX;
        // The last chain may arrive when the limit is almost reached.
        2 * (bytes.min((chains - 1) * CHAIN) + CHAIN)
    }
}

/// Maximum number of bytes in a chain of a connection.
const CHAIN: usize = 256 << 10;

/// One direction of a module with a rule.
pub(super) struct RuleDirection<R> {
    rule: R,
    /// In order of arrival, which is the order of departure.
    chains: VecDeque<(Duration, Chain)>,
    bytes: usize,
}

impl<R> RuleDirection<R> {
    pub(super) fn new(rule: R) -> Self {
        Self { rule, chains: VecDeque::new(), bytes: 0 }
    }
}

impl<R: HoldRule> Module for RuleDirection<R> {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        if let Some(due) = self.rule.due(next.now(), &chain)? {
            self.bytes += chain.len();
            self.chains.push_back((due, chain));
        }
        self.resume(next)
    }

    fn is_full(&self) -> bool {
        let (chains, bytes) = R::QUEUE_MAX;
        self.chains.len() >= chains || self.bytes >= bytes
    }

    fn holds(&self) -> bool {
        !self.chains.is_empty()
    }

    fn resume(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let now = next.now();
        while !next.is_full()
            && let Some((_, chain)) = self.chains.pop_front_if(|(due, _)| *due <= now)
        {
            self.bytes -= chain.len();
            next.put(chain);
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Duration> {
        self.chains.front().map(|(due, _)| *due)
    }

    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.bytes = 0;
        self.chains.drain(..).for_each(|(_, chain)| next.put(chain));
        Ok(())
    }

    fn status(&self) -> String {
        format!("{}, holds {} bytes", self.rule.says(), self.bytes)
    }
}
