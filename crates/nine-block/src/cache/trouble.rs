//! What may be lost on a device, and who is told.
//!
//! In: which blocks were written, how writes and flushes ended. Out: what a flush is to answer.
//!
//! Always holds: what a failed flush was to make durable is remembered until it was written again.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::error::{Error, Kind, Result};

/// Blocks that are remembered, of each sort. Where there are more, it is only known that there are, and then nothing
/// takes the poison from the device but to begin anew with it.
const REMEMBERED: usize = 1 << 16;

/// See the module.
#[derive(Default)]
pub(super) struct Trouble {
    /// Written since the last flush began.
    written: Blocks,
    /// Written before the flush that is under way.
    at_flush: Blocks,
    /// Written before a flush that failed.
    lost: Blocks,
    /// For the next flush.
    untold: Option<Error>,
    /// Another has the device, or it is busy or full; nothing is written.
    pub(super) stopped: Option<Error>,
}

#[derive(Default)]
struct Blocks {
    some: BTreeSet<u64>,
    /// And others.
    more: bool,
}

impl Trouble {
    /// These blocks are on the device. A flush that is under way may have begun before: it says nothing of them, and if
    /// it fails what it has not written of them is lost, too.
    pub(super) fn wrote(&mut self, blocks: Range<u64>) {
        for block in blocks {
            self.lost.some.remove(&block);
            self.written.add(block);
        }
    }

    /// A write failed. Whether it is to be tried again, when somebody wants that.
    pub(super) fn failed(&mut self, error: &Error) -> bool {
        let stops = self.stops(error);
        if !stops {
            self.untold.get_or_insert_with(|| error.clone());
        }
        stops
    }

    /// Whether the device has done nothing, and is to be left alone for now.
    fn stops(&mut self, error: &Error) -> bool {
        match error.kind {
            Kind::Reserved => self.stopped = Some(error.clone()),
            Kind::Busy | Kind::Full => drop(self.stopped.get_or_insert_with(|| error.clone())),
            _ => return false,
        }
        true
    }

    /// Somebody asks for something anew: a device that was busy or full need not be so now.
    pub(super) fn asked(&mut self) {
        self.stopped.take_if(|error| matches!(error.kind, Kind::Busy | Kind::Full));
    }

    /// Nobody wants these any more.
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

    /// What hinders a flush of a device, some of whose blocks could not be written.
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

    /// What is to be written again. None: nobody knows all of it.
    pub(super) fn lost(&self, failed: &BTreeSet<u64>) -> Option<Vec<u64>> {
        (!self.lost.more).then(|| self.lost.some.union(failed).copied().collect())
    }
}

impl Blocks {
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

    fn verdict(trouble: &mut Trouble) -> Option<Kind> {
        trouble.verdict(&BTreeSet::new(), "x").err().map(|error| error.kind)
    }

    fn flush(trouble: &mut Trouble, ok: bool) {
        trouble.flush_begins();
        trouble.flush_ended(&if ok { Ok(bytes::Bytes::new()) } else { Err(Error::new(Kind::Failed, "no")) });
    }

    #[test]
    fn what_a_failed_flush_was_to_keep_must_be_written_again() {
        let mut trouble = Trouble::default();
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
        let mut trouble = Trouble::default();
        trouble.wrote(1..3);
        trouble.flush_begins();
        trouble.wrote(2..5);
        trouble.flush_ended(&Err(Error::new(Kind::Failed, "no")));
        assert_eq!(trouble.lost(&BTreeSet::new()), Some(vec![1, 2, 3, 4]));
    }

    #[test]
    fn a_flush_that_was_not_done_is_no_loss_and_no_promise() {
        for kind in [Kind::Reserved, Kind::Busy] {
            let mut trouble = Trouble::default();
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
        let mut trouble = Trouble::default();
        trouble.failed(&Error::new(Kind::Down, "away"));
        trouble.failed(&Error::new(Kind::Failed, "again"));
        assert_eq!(verdict(&mut trouble), Some(Kind::Down));
        assert_eq!(verdict(&mut trouble), None);
    }

    #[test]
    fn more_than_can_be_remembered_is_lost_for_good() {
        let mut trouble = Trouble::default();
        trouble.wrote(0..REMEMBERED as u64 + 1);
        flush(&mut trouble, false);
        trouble.wrote(0..REMEMBERED as u64 + 1);
        assert_eq!(verdict(&mut trouble), Some(Kind::Poisoned));
        assert_eq!(trouble.lost(&BTreeSet::new()), None);
    }
}
