//! A mirror like Ken Thompson's, without labels on the disks. So it does not know which writes a member has missed.

use std::sync::Arc;

use bytes::Bytes;

use super::{UnfitAnswer, best, fit};
use crate::device::{Device, Io, Op, Shape};
use crate::error::Result;
use crate::join::common;
use crate::locks::RangeLocks;
use crate::owner::SectorOwner;
use crate::plain::{above, control_one};
use crate::task::Tasks;

/// A bare mirror. Writes go to all members, from the last to the first, and all must succeed. A read goes to the first
/// member that succeeds.
pub struct Bare(Arc<BareMirror>);

struct BareMirror {
    of: Vec<Arc<dyn Device>>,
    /// Overlapping writes run one after the other, so that all members have them in the same order.
    ranges: RangeLocks,
    tasks: Tasks,
}

impl Bare {
    /// Creates a bare mirror. Panics if there are no members.
    pub fn new(of: Vec<Arc<dyn Device>>) -> Self {
        assert!(!of.is_empty(), "a mirror of nothing");
        Self(Arc::new(BareMirror { of, ranges: RangeLocks::default(), tasks: Tasks::default() }))
    }
}

impl BareMirror {
    async fn change(self: Arc<Self>, io: Io) {
        let held = match io.op {
            Op::Write | Op::Discard => Some(self.ranges.lock(io.at, io.end_at()).await),
            _ => None,
        };
        let mut first = Ok(Bytes::new());
        for member in self.of.iter().rev() {
            let result = match io.op {
                Op::Write => member.write(io.at, io.data.clone()).await,
                Op::Discard => member.discard(io.at, io.count).await,
                Op::Flush => member.flush().await,
                _ => member.look().await,
            };
            first = first.and(result);
        }
        drop(held);
        io.end(first);
    }

    async fn read(self: Arc<Self>, io: Io) {
        let mut unfit = Vec::new();
        for member in &self.of {
            let answer = member.read_proven(io.at, io.count, io.proof.clone()).await;
            match fit(&io, answer) {
                Ok(data) => return io.end(Ok(data)),
                Err(answer) => unfit.push(answer),
            }
            if unfit.last().is_some_and(UnfitAnswer::stops) {
                break;
            }
        }
        io.end(best(unfit));
    }
}

impl Device for Bare {
    fn shape(&self) -> Shape {
        let sectors = self.0.of.iter().map(|member| member.shape().sectors).min().unwrap_or(0);
        Shape { sectors, ..common(&self.0.of).1 }
    }

    fn unbacked(&self) -> u64 {
        self.0.of.iter().map(|member| member.unbacked()).max().unwrap_or(0)
    }

    fn submit(&self, io: Io) {
        if let Err(error) = io.judge(&self.shape()) {
            return io.end(Err(error.of(self.name())));
        }
        let inner = self.0.clone();
        match io.op {
            Op::Read => self.0.tasks.spawn(inner.read(io)),
            _ => self.0.tasks.spawn(inner.change(io)),
        }
    }

    fn name(&self) -> String {
        format!("bare{{{}}}", common(&self.0.of).0)
    }

    fn status(&self) -> String {
        above(self, &self.0.of.iter().collect::<Vec<_>>())
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        self.0.of.iter().for_each(|member| member.owned_by(owner.clone()));
    }

    fn trouble(&self) -> Vec<String> {
        self.0.of.iter().flat_map(|member| member.trouble()).collect()
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        control_one(self, &self.0.of, words)
    }
}
