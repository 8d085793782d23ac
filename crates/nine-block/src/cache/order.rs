//! The dirty blocks of a device, and the order in which they are written: a state machine without locks, devices or a
//! clock.
//!
//! In: written blocks, barriers, results of writes. Out: the next write. An epoch is all data written between two
//! barriers. A block that is written again in a later epoch, or while a write of it is in flight, has several versions.
//! They are written to the device one after the other.
//!
//! Always holds: a write of an epoch begins only when all earlier epochs are on the device. At most one version of a
//! block is in flight. A version is removed when it was written or is no longer needed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

/// Maximum number of waiting discards of an epoch. Further ones are dropped: the device is not told of them.
const DISCARDS: usize = 64;

/// The dirty blocks of a device.
pub(super) struct WriteOrder {
    /// By block: the versions that are not on the device, the oldest first; never empty.
    blocks: BTreeMap<u64, VecDeque<DirtyVersion>>,
    /// The oldest first. The last one is open.
    epochs: VecDeque<FlushEpoch>,
    /// The number of the oldest epoch.
    oldest: u64,
    versions: usize,
    /// Blocks with a failed write of their oldest version.
    failed: BTreeSet<u64>,
    /// Number of writes in flight, or one discard.
    under_way: usize,
    discarding: bool,
    /// Writes continue from here, so that they go through the device in one direction.
    hand: u64,
}

struct DirtyVersion {
    epoch: u64,
    data: Bytes,
    state: DirtyState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DirtyState {
    Waits,
    UnderWay,
    /// In flight, and discarded since: it is removed however the write ends.
    Unwanted,
    Failed,
}

#[derive(Default)]
struct FlushEpoch {
    /// Number of its versions.
    left: usize,
    /// Blocks that have their oldest version in this epoch, waiting to be written.
    ready: BTreeSet<u64>,
    discards: Vec<Range<u64>>,
    /// When it was first seen not to be empty.
    since: Option<Duration>,
}

/// The next operation for the device.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DeviceWork {
    /// Consecutive blocks, from this one on.
    Write(u64, Vec<Bytes>),
    /// Blocks to be discarded.
    Discard(Range<u64>),
}

/// The result of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteEnd {
    Written,
    /// It failed, and is not retried until the block is written again.
    Failed,
    /// It must be tried again.
    Back,
}

impl WriteOrder {
    pub(super) fn new() -> Self {
        Self {
            blocks: BTreeMap::new(),
            epochs: VecDeque::from([FlushEpoch::default()]),
            oldest: 1,
            versions: 0,
            failed: BTreeSet::new(),
            under_way: 0,
            discarding: false,
            hand: 0,
        }
    }

    /// Returns the number of versions of all blocks.
    pub(super) fn len(&self) -> usize {
        self.versions
    }

    /// Returns the number of versions beyond the first of each block.
    pub(super) fn extra(&self) -> usize {
        self.versions - self.blocks.len()
    }

    /// Returns the oldest epoch: all before it are on the device.
    pub(super) fn oldest(&self) -> u64 {
        self.oldest
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    pub(super) fn failed(&self) -> &BTreeSet<u64> {
        &self.failed
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = u64> {
        self.blocks.keys().copied()
    }

    /// Adds a write of a block. Returns whether this adds a version, instead of replacing one that is no longer needed.
    pub(super) fn put(&mut self, block: u64, data: Bytes) -> bool {
        let now = self.oldest + self.epochs.len() as u64 - 1;
        let versions = self.blocks.entry(block).or_default();
        if self.failed.remove(&block) {
            // All versions are tried again in order: the failed ones before the new one.
            versions[0].state = DirtyState::Waits;
            self.epochs[(versions[0].epoch - self.oldest) as usize].ready.insert(block);
        }
        if let Some(last) =
            versions.back_mut().filter(|last| last.epoch == now && last.state == DirtyState::Waits)
        {
            last.data = data;
            return false;
        }
        versions.push_back(DirtyVersion { epoch: now, data, state: DirtyState::Waits });
        let epoch = &mut self.epochs[(now - self.oldest) as usize];
        epoch.left += 1;
        if versions.len() == 1 {
            epoch.ready.insert(block);
        }
        self.versions += 1;
        true
    }

    /// Orders later writes after earlier ones. Returns the number of the last epoch with earlier writes.
    pub(super) fn seal(&mut self) -> u64 {
        let open = self.oldest + self.epochs.len() as u64 - 1;
        if self.open().is_empty() {
            return open - 1;
        }
        self.epochs.push_back(FlushEpoch::default());
        self.settle();
        open
    }

    /// Closes the open epoch, if it has had data for this time.
    pub(super) fn seal_older(&mut self, now: Duration, age: Duration) -> Option<u64> {
        let open = self.open();
        if open.is_empty() {
            return None;
        }
        let since = *open.since.get_or_insert(now);
        (now.saturating_sub(since) >= age).then(|| self.seal())
    }

    fn open(&mut self) -> &mut FlushEpoch {
        self.epochs.back_mut().expect("the last one is open, and stays")
    }

    /// Discards these blocks: their versions are removed, except those in flight, and the device is told in order.
    pub(super) fn discard(&mut self, range: Range<u64>) {
        let blocks: Vec<u64> = self.blocks.range(range.clone()).map(|(block, _)| *block).collect();
        for block in blocks {
            let versions = self.blocks.get_mut(&block).expect("it has just been found");
            let kept = usize::from(matches!(versions[0].state, DirtyState::UnderWay | DirtyState::Unwanted));
            if kept == 1 {
                versions[0].state = DirtyState::Unwanted;
            }
            for version in versions.drain(kept..) {
                let epoch = &mut self.epochs[(version.epoch - self.oldest) as usize];
                epoch.left -= 1;
                epoch.ready.remove(&block);
                self.versions -= 1;
            }
            if versions.is_empty() {
                self.blocks.remove(&block);
            }
            self.failed.remove(&block);
        }
        let discards = &mut self.open().discards;
        if let Some(last) = discards.last_mut().filter(|last| last.end == range.start) {
            last.end = range.end;
        } else if discards.len() < DISCARDS {
            discards.push(range);
        }
        self.settle();
    }

    /// Returns the next operation, for at most `most` consecutive blocks of the oldest epoch. Discards of an epoch come
    /// first, each alone, because later writes to their blocks must follow them.
    pub(super) fn next(&mut self, most: usize) -> Option<DeviceWork> {
        let epoch = self.epochs.front_mut().expect("the last one is open, and stays");
        if self.discarding {
            return None;
        }
        if !epoch.discards.is_empty() {
            if self.under_way > 0 {
                return None;
            }
            self.discarding = true;
            self.under_way = 1;
            return Some(DeviceWork::Discard(epoch.discards.remove(0)));
        }
        let found = *epoch.ready.range(self.hand..).next().or_else(|| epoch.ready.first())?;
        let mut run = found..found + 1;
        while ((run.end - run.start) as usize) < most && epoch.ready.contains(&run.end) {
            run.end += 1;
        }
        while ((run.end - run.start) as usize) < most
            && run.start > 0
            && epoch.ready.contains(&(run.start - 1))
        {
            run.start -= 1;
        }
        self.hand = run.end;
        self.under_way += 1;
        let first = run.start;
        let take = |block| {
            epoch.ready.remove(&block);
            let version = &mut self.blocks.get_mut(&block).expect("what is ready has a version")[0];
            version.state = DirtyState::UnderWay;
            version.data.clone()
        };
        Some(DeviceWork::Write(first, run.map(take).collect()))
    }

    /// Takes the result of a write of these blocks. Returns those that are clean now.
    pub(super) fn ended(&mut self, run: Range<u64>, end: WriteEnd) -> Vec<u64> {
        self.under_way -= 1;
        let mut clean = Vec::new();
        for block in run {
            let versions = self.blocks.get_mut(&block).expect("what is on its way stays");
            let end = match versions[0].state {
                DirtyState::UnderWay => end,
                DirtyState::Unwanted => WriteEnd::Written,
                _ => panic!("a write of block {block} ended that was not under way"),
            };
            match end {
                WriteEnd::Written => {
                    let written = versions.pop_front().expect("it was there above");
                    self.epochs[(written.epoch - self.oldest) as usize].left -= 1;
                    self.versions -= 1;
                }
                WriteEnd::Failed => {
                    versions[0].state = DirtyState::Failed;
                    self.failed.insert(block);
                    continue;
                }
                WriteEnd::Back => versions[0].state = DirtyState::Waits,
            }
            match versions.front() {
                Some(next) => drop(self.epochs[(next.epoch - self.oldest) as usize].ready.insert(block)),
                None => {
                    self.blocks.remove(&block);
                    clean.push(block);
                }
            }
        }
        self.settle();
        clean
    }

    /// Takes the end of a discard.
    pub(super) fn discarded(&mut self) {
        self.under_way -= 1;
        self.discarding = false;
        self.settle();
    }

    /// Returns whether failed blocks prevent all further writes.
    pub(super) fn is_stuck(&self) -> bool {
        let oldest = &self.epochs[0];
        self.under_way == 0 && oldest.left > 0 && oldest.ready.is_empty() && oldest.discards.is_empty()
    }

    fn settle(&mut self) {
        while self.epochs.len() > 1 && !self.discarding && self.epochs[0].is_empty() {
            self.epochs.pop_front();
            self.oldest += 1;
        }
    }
}

impl FlushEpoch {
    fn is_empty(&self) -> bool {
        self.left == 0 && self.discards.is_empty()
    }
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use super::*;

    fn data(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn write(at: u64, blocks: &[&'static str]) -> Option<DeviceWork> {
        Some(DeviceWork::Write(at, blocks.iter().copied().map(data).collect()))
    }

    #[test]
    fn neighbours_go_together_up_to_the_most() {
        let mut order = WriteOrder::new();
        for block in [5, 3, 9, 4, 6] {
            assert!(order.put(block, data("x")));
        }
        assert_eq!(order.next(3), write(3, &["x", "x", "x"]));
        assert_eq!(order.next(3), write(6, &["x"]));
        assert_eq!(order.next(3), write(9, &["x"]));
        assert_eq!(order.next(3), None);
        assert_eq!(order.ended(3..6, WriteEnd::Written), [3, 4, 5]);
        assert_eq!(order.len(), 2);
    }

    #[test]
    fn a_block_written_again_before_it_goes_goes_once() {
        let mut order = WriteOrder::new();
        assert!(order.put(1, data("a")));
        assert!(!order.put(1, data("b")));
        assert_eq!(order.next(9), write(1, &["b"]));
    }

    #[test]
    fn a_block_written_again_while_it_goes_goes_again() {
        let mut order = WriteOrder::new();
        order.put(1, data("a"));
        order.next(9);
        assert!(order.put(1, data("b")));
        assert!(!order.put(1, data("c")));
        assert_eq!(order.next(9), None, "one version at a time");
        assert_eq!(order.ended(1..2, WriteEnd::Written), []);
        assert_eq!(order.next(9), write(1, &["c"]));
        assert_eq!(order.ended(1..2, WriteEnd::Written), [1]);
    }

    #[test]
    fn nothing_passes_a_barrier() {
        let mut order = WriteOrder::new();
        order.put(1, data("a"));
        order.put(2, data("b"));
        assert_eq!(order.seal(), 1);
        assert_eq!(order.seal(), 1, "an empty epoch is not sealed");
        order.put(1, data("c"));
        order.put(3, data("d"));
        assert_eq!(order.next(1), write(1, &["a"]));
        assert_eq!(order.ended(1..2, WriteEnd::Written), []);
        assert_eq!(order.next(9), write(2, &["b"]));
        assert_eq!(order.next(9), None);
        assert_eq!(order.oldest(), 1);
        order.ended(2..3, WriteEnd::Written);
        assert_eq!(order.oldest(), 2);
        assert_eq!(order.next(9), write(3, &["d"]));
        assert_eq!(order.next(9), write(1, &["c"]));
    }

    #[test]
    fn what_failed_holds_up_what_is_behind_until_it_is_written_again() {
        let mut order = WriteOrder::new();
        order.put(1, data("a"));
        order.seal();
        order.put(2, data("b"));
        order.next(9);
        order.ended(1..2, WriteEnd::Failed);
        assert!(order.is_stuck() && order.failed().contains(&1));
        assert_eq!(order.next(9), None);
        assert!(order.put(1, data("c")));
        assert!(!order.is_stuck());
        assert_eq!(order.next(9), write(1, &["a"]));
        order.ended(1..2, WriteEnd::Written);
        assert_eq!(order.next(9), write(1, &["c", "b"]));
    }

    #[test]
    fn discards_go_behind_what_is_under_way_and_before_what_is_written_since() {
        let mut order = WriteOrder::new();
        order.put(1, data("a"));
        order.put(7, data("b"));
        order.next(1);
        order.discard(0..4);
        order.put(1, data("c"));
        assert_eq!(order.next(9), None);
        order.ended(1..2, WriteEnd::Written);
        assert_eq!(order.next(9), Some(DeviceWork::Discard(0..4)));
        assert_eq!(order.next(9), None);
        order.discarded();
        assert_eq!(order.next(9), write(7, &["b"]));
        assert_eq!(order.next(9), write(1, &["c"]));
    }

    #[test]
    fn an_epoch_is_sealed_by_its_age() {
        let mut order = WriteOrder::new();
        let (at, age) = (Duration::from_secs, Duration::from_secs(5));
        assert_eq!(order.seal_older(at(1), age), None);
        order.put(1, data("a"));
        assert_eq!(order.seal_older(at(10), age), None);
        assert_eq!(order.seal_older(at(14), age), None);
        assert_eq!(order.seal_older(at(15), age), Some(1));
        assert_eq!(order.seal_older(at(30), age), None);
    }
}
