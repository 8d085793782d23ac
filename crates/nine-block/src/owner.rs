//! The owner of a device's sectors: the file system on it, which can verify copies of its blocks.
//!
//! In: sectors, bytes. Out: whether the bytes are that block. A mirror with differing members asks before it makes them
//! equal ([`Device::owned_by`](crate::Device::owned_by)). The devices in between translate sector numbers.

use std::ops::Range;
use std::sync::Arc;

/// An owner of sectors.
///
/// Concurrency: called from any thread, many times at once. It must not block.
pub trait SectorOwner: Send + Sync + 'static {
    /// Returns the sectors of the block that contains `sector`. `None`: the owner cannot verify this sector.
    fn block(&self, sector: u64) -> Option<Range<u64>>;

    /// Returns whether the bytes are a version of this block that was once written completely.
    fn holds(&self, block: Range<u64>, bytes: &[u8]) -> bool;

    /// Returns whether the bytes are the latest version of this block; `false` if the owner cannot tell. Used for a
    /// copy that may have missed writes, where an old version would pass [`SectorOwner::holds`].
    fn holds_latest(&self, block: Range<u64>, bytes: &[u8]) -> bool;
}

/// Translates sectors `below` of the device under it to its own sectors, from `here` on.
pub(crate) struct ShiftedOwner {
    pub(crate) owner: Arc<dyn SectorOwner>,
    pub(crate) below: Range<u64>,
    pub(crate) here: u64,
}

impl SectorOwner for ShiftedOwner {
    fn block(&self, sector: u64) -> Option<Range<u64>> {
        let at = self.below.contains(&sector).then(|| sector - self.below.start + self.here)?;
        let block = self.owner.block(at)?;
        // A block that begins or ends on another device cannot be verified on this one.
        let (start, count) =
            (block.start.checked_sub(self.here)? + self.below.start, block.end - block.start);
        (start + count <= self.below.end).then_some(start..start + count)
    }

    fn holds(&self, block: Range<u64>, bytes: &[u8]) -> bool {
        self.owner.holds(self.above(block), bytes)
    }

    fn holds_latest(&self, block: Range<u64>, bytes: &[u8]) -> bool {
        self.owner.holds_latest(self.above(block), bytes)
    }
}

impl ShiftedOwner {
    /// Translates sectors of the device below to sectors of the owner.
    fn above(&self, block: Range<u64>) -> Range<u64> {
        let shifted = |sector: u64| sector - self.below.start + self.here;
        shifted(block.start)..shifted(block.end)
    }
}

/// Translates for the member `index` of an interleave.
pub(crate) struct StripedOwner {
    pub(crate) owner: Arc<dyn SectorOwner>,
    pub(crate) index: u64,
    pub(crate) members: u64,
    /// Sectors of a stripe.
    pub(crate) stripe: u64,
}

impl StripedOwner {
    /// Translates a sector of the member to one of the interleave.
    fn above(&self, sector: u64) -> u64 {
        (sector / self.stripe * self.members + self.index) * self.stripe + sector % self.stripe
    }

    fn block_above(&self, block: Range<u64>) -> Range<u64> {
        let start = self.above(block.start);
        start..start + (block.end - block.start)
    }
}

impl SectorOwner for StripedOwner {
    fn block(&self, sector: u64) -> Option<Range<u64>> {
        let at = self.above(sector);
        let block = self.owner.block(at)?;
        let first = at / self.stripe * self.stripe;
        // A block on several members cannot be verified on one.
        let is_here = first <= block.start && block.end <= first + self.stripe;
        is_here.then(|| sector - (at - block.start)..sector + (block.end - at))
    }

    fn holds(&self, block: Range<u64>, bytes: &[u8]) -> bool {
        self.owner.holds(self.block_above(block), bytes)
    }

    fn holds_latest(&self, block: Range<u64>, bytes: &[u8]) -> bool {
        self.owner.holds_latest(self.block_above(block), bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 4 sectors that contain their number.
    struct Numbered;

    impl SectorOwner for Numbered {
        fn block(&self, sector: u64) -> Option<Range<u64>> {
            Some(sector / 4 * 4..sector / 4 * 4 + 4)
        }

        fn holds(&self, block: Range<u64>, bytes: &[u8]) -> bool {
            block.end - block.start == 4 && block.start / 4 == u64::from(bytes[0])
        }

        fn holds_latest(&self, block: Range<u64>, bytes: &[u8]) -> bool {
            self.holds(block, bytes)
        }
    }

    #[test]
    fn a_part_is_asked_for_its_own_blocks_and_for_no_others() {
        // Sectors 10 to 30 of the disk are 0 to 20 of the part.
        let part = ShiftedOwner { owner: Arc::new(Numbered), below: 10..30, here: 0 };
        assert_eq!((part.block(9), part.block(30)), (None, None));
        assert_eq!((part.block(10), part.block(17)), (Some(10..14), Some(14..18)));
        assert!(part.holds(14..18, &[1]) && !part.holds(14..18, &[2]));
        // The second disk of a concatenation has the sectors from 6 on: block 1 begins on the first.
        let second = ShiftedOwner { owner: Arc::new(Numbered), below: 0..9, here: 6 };
        assert_eq!((second.block(0), second.block(2), second.block(8)), (None, Some(2..6), None));
        assert!(second.holds(2..6, &[2]));
    }

    #[test]
    fn a_member_of_an_interleave_is_asked_for_blocks_within_a_stripe() {
        let of = |stripe| StripedOwner { owner: Arc::new(Numbered), index: 1, members: 2, stripe };
        // Stripes of 8: the member's second one has the sectors 24 to 32.
        assert_eq!(of(8).block(13), Some(12..16));
        assert!(of(8).holds(12..16, &[7]) && !of(8).holds(12..16, &[3]));
        assert_eq!(of(2).block(13), None);
    }
}
