//! Blocks that may be lost on a device, and the errors to report.
//!
//! In: written blocks, results of writes and flushes. Out: the result of a flush of the cache.
//!
//! Always holds: blocks that a failed flush was to make durable are remembered until they are written again.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::error::{Error, Kind, Result};

/// Maximum number of blocks that each set remembers. Beyond that only the fact is known, and only opening the device
/// again ends the poisoning.
const REMEMBERED: usize = 1 << 16;

/// The blocks that may be lost on a device.
#[derive(Default)]
pub(super) struct LostBlocks {
    /// Written since the last flush began.
    written: BlockSet,
    /// Written before the flush in progress.
    at_flush: BlockSet,
    /// Written before a flush that failed.
    lost: BlockSet,
    /// The error that the next flush must report.
    untold: Option<Error>,
    /// The device is reserved, busy or full; nothing is written.
    pub(super) stopped: Option<Error>,
}

#[derive(Default)]
struct BlockSet {
    some: BTreeSet<u64>,
    /// And others that are not remembered.
    more: bool,
}

impl LostBlocks {
    /// Records a completed write. A flush in progress may have begun before it and does not cover it; if that flush
    /// fails, these blocks are lost too.
    pub(super) fn wrote(&mut self, blocks: Range<u64>) {
        for block in blocks {
            self.lost.some.remove(&block);
            self.written.add(block);
        }
    }

    /// Records a failed write. Returns whether to retry it later.
    pub(super) fn failed(&mut self, error: &Error) -> bool {
        let stops = self.stops(error);
        if !stops {
            self.untold.get_or_insert_with(|| error.clone());
        }
        stops
    }

    /// Returns whether the device has done nothing, and should not be used for now.
    fn stops(&mut self, error: &Error) -> bool {
        match error.kind {
            Kind::Reserved => self.stopped = Some(error.clone()),
            Kind::Busy | Kind::Full => drop(self.stopped.get_or_insert_with(|| error.clone())),
            _ => return false,
        }
        true
    }

    /// Lets writing resume after the device was busy or full, because a caller has made a new request.
    pub(super) fn asked(&mut self) {
        self.stopped.take_if(|error| matches!(error.kind, Kind::Busy | Kind::Full));
    }

    /// Forgets discarded blocks.
    pub(super) fn discard(&mut self, blocks: &Range<u64>) {
        self.lost.some.retain(|block| !blocks.contains(block));
    }

    pub(super) fn flush_begins(&mut self) {
        self.at_flush = std::mem::take(&mut self.written);
    }

    pub(super) fn flush_ended(&mut self, result: &Result<bytes::Bytes>) {
        let at_flush = std::mem::take(&mut self.at_flush);
        match result {
            Ok(_) => {}
            Err(error) if self.stops(error) => self.written.add_all(at_flush),
            Err(_) => {
                self.lost.add_all(at_flush);
                self.lost.add_all(std::mem::take(&mut self.written));
            }
        }
    }

    /// Returns the error that prevents a flush, if some blocks could not be written.
    pub(super) fn verdict(&mut self, failed: &BTreeSet<u64>, device: &str) -> Result<()> {
        if let Some(error) = self.stopped.clone().or_else(|| self.untold.take()) {
            return Err(error);
        }
        let first = failed.first().or_else(|| self.lost.some.first());
        match (first, self.lost.more) {
            (None, false) => Ok(()),
            (first, _) => {
                let which =
                    first.map_or("nobody knows which".to_owned(), |block| format!("the first is {block}"));
                let text = format!("blocks may be lost until they are written again ({which})");
                Err(Error::new(Kind::Poisoned, text).of(device))
            }
        }
    }

    /// Returns the blocks that must be written again. `None`: not all are remembered.
    pub(super) fn lost(&self, failed: &BTreeSet<u64>) -> Option<Vec<u64>> {
        (!self.lost.more).then(|| self.lost.some.union(failed).copied().collect())
    }
}

impl BlockSet {
    fn add_all(&mut self, other: Self) {
        self.more |= other.more;
        other.some.into_iter().for_each(|block| self.add(block));
    }

    fn add(&mut self, block: u64) {
        self.some.insert(block);
        if self.some.len() > REMEMBERED {
            self.some.clear();
            self.more = true;
        }
    }
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use super::*;

    fn verdict(trouble: &mut LostBlocks) -> Option<Kind> {
        trouble.verdict(&BTreeSet::new(), "x").err().map(|error| error.kind)
    }

    fn flush(trouble: &mut LostBlocks, ok: bool) {
        trouble.flush_begins();
        trouble.flush_ended(&if ok { Ok(bytes::Bytes::new()) } else { Err(Error::new(Kind::Failed, "no")) });
    }

    #[test]
    fn what_a_failed_flush_was_to_keep_must_be_written_again() {
        let mut trouble = LostBlocks::default();
        trouble.wrote(1..3);
        flush(&mut trouble, true);
        trouble.wrote(7..9);
        flush(&mut trouble, false);
        assert_eq!(trouble.lost(&BTreeSet::new()), Some(vec![7, 8]));
        trouble.wrote(7..8);
        assert_eq!(verdict(&mut trouble), Some(Kind::Poisoned));
        trouble.wrote(8..9);
        assert_eq!(verdict(&mut trouble), None);
        flush(&mut trouble, false);
        assert_eq!(trouble.lost(&BTreeSet::new()), Some(vec![7, 8]));
    }

    #[test]
    fn what_is_written_while_a_flush_fails_is_lost_with_the_rest() {
        let mut trouble = LostBlocks::default();
        trouble.wrote(1..3);
        trouble.flush_begins();
        trouble.wrote(2..5);
        trouble.flush_ended(&Err(Error::new(Kind::Failed, "no")));
        assert_eq!(trouble.lost(&BTreeSet::new()), Some(vec![1, 2, 3, 4]));
    }

    #[test]
    fn a_flush_that_was_not_done_is_no_loss_and_no_promise() {
        for kind in [Kind::Reserved, Kind::Busy] {
            let mut trouble = LostBlocks::default();
            trouble.wrote(1..3);
            trouble.flush_begins();
            trouble.flush_ended(&Err(Error::new(kind, "later")));
            assert_eq!(trouble.lost(&BTreeSet::new()), Some(Vec::new()));
            trouble.asked();
            assert_eq!(verdict(&mut trouble), (kind == Kind::Reserved).then_some(kind));
            trouble.stopped = None;
            flush(&mut trouble, false);
            assert_eq!(trouble.lost(&BTreeSet::new()), Some(vec![1, 2]));
        }
    }

    #[test]
    fn an_error_is_told_once() {
        let mut trouble = LostBlocks::default();
        trouble.failed(&Error::new(Kind::Down, "away"));
        trouble.failed(&Error::new(Kind::Failed, "again"));
        assert_eq!(verdict(&mut trouble), Some(Kind::Down));
        assert_eq!(verdict(&mut trouble), None);
    }

    #[test]
    fn more_than_can_be_remembered_is_lost_for_good() {
        let mut trouble = LostBlocks::default();
        trouble.wrote(0..REMEMBERED as u64 + 1);
        flush(&mut trouble, false);
        trouble.wrote(0..REMEMBERED as u64 + 1);
        assert_eq!(verdict(&mut trouble), Some(Kind::Poisoned));
        assert_eq!(trouble.lost(&BTreeSet::new()), None);
    }
}
