//! The archive as the owner of its devices' sectors: it verifies blocks on which the members of a mirror differ.
//!
//! In: the bytes of one copy of a block. Out: whether they are the block, by its tag, its row's sum, or the sum of a
//! table's sector.

use std::ops::Range;
use std::sync::{Arc, Weak};

use nine_block::SectorOwner;

use super::layout::is_sector;
use super::tag::{BlockTag, FsIdentity};
use super::{CacheLayout, Cw, CwShared};

/// The owner of c, as long as the archive is open.
struct CacheOwner {
    layout: CacheLayout,
    identity: FsIdentity,
    cw: Weak<CwShared>,
}

/// The owner of w, as long as the archive is open.
struct WormOwner {
    layout: CacheLayout,
    identity: FsIdentity,
    cw: Weak<CwShared>,
}

impl Cw {
    /// Becomes the owner of c and w.
    pub(super) fn owns_devices(&self) {
        let CwShared { c, w, layout, identity, .. } = &*self.0;
        let (layout, identity, cw) = (layout.clone(), *identity, Arc::downgrade(&self.0));
        w.owned_by(Arc::new(WormOwner { layout: layout.clone(), identity, cw: cw.clone() }));
        if !layout.in_place {
            c.owned_by(Arc::new(CacheOwner { layout, identity, cw }));
        }
    }

    /// Returns the sum that a block's row expects in the slot at this sector of c. `None`: the row of `at` is not in
    /// memory, or names another slot.
    fn expected_sum(&self, sector: u64, at: u64) -> Option<u32> {
        let state = &mut *self.state();
        let row = state.rows.get(at.checked_sub(crate::ptr::NEW)?)?;
        row.place.slot().filter(|slot| self.slot_at(*slot) == sector).map(|_| row.sum)
    }
}

impl CacheOwner {
    /// Returns the number of this sector in the table of rows or of copies.
    fn in_table(&self, sector: u64) -> Option<u64> {
        let per = self.layout.per_block();
        let CacheLayout { rows, used_slots, copies, slots, .. } = &self.layout;
        let tables = [(rows.0 * per, used_slots * per), (copies * per, slots.0 * per)];
        tables.iter().find(|(from, to)| (*from..*to).contains(&sector)).map(|(from, _)| sector - from)
    }

    /// Returns whether `bytes` are a whole block of this archive. The second value: whether they are its latest
    /// version, if its row is known.
    fn verify(&self, block: Range<u64>, bytes: &[u8]) -> (bool, Option<bool>) {
        let Ok(tag) = BlockTag::open(bytes, &self.identity) else { return (false, None) };
        let sum = super::get32(bytes, bytes.len() - 4);
        let expected = self.cw.upgrade().and_then(|inner| Cw(inner).expected_sum(block.start, tag.at));
        (true, expected.map(|expected| expected == sum))
    }
}

impl SectorOwner for CacheOwner {
    fn block(&self, sector: u64) -> Option<Range<u64>> {
        if self.cw.strong_count() == 0 {
            return None;
        }
        if self.in_table(sector).is_some() {
            return Some(sector..sector + 1);
        }
        let per = self.layout.per_block();
        let (first, count) = self.layout.slots;
        let block = sector / per;
        (first..first + count).contains(&block).then_some(block * per..(block + 1) * per)
    }

    fn holds(&self, block: Range<u64>, bytes: &[u8]) -> bool {
        match self.in_table(block.start) {
            Some(number) => is_sector(bytes, number),
            None => {
                let (is_whole, is_latest) = self.verify(block, bytes);
                is_whole && is_latest != Some(false)
            }
        }
    }

    fn holds_latest(&self, block: Range<u64>, bytes: &[u8]) -> bool {
        // A table's sector carries no version.
        self.in_table(block.start).is_none() && self.verify(block, bytes).1 == Some(true)
    }
}

impl SectorOwner for WormOwner {
    fn block(&self, sector: u64) -> Option<Range<u64>> {
        let start = sector / self.layout.per_block() * self.layout.per_block();
        (self.cw.strong_count() > 0).then_some(start..start + self.layout.per_block())
    }

    fn holds(&self, _: Range<u64>, bytes: &[u8]) -> bool {
        BlockTag::open(bytes, &self.identity).is_ok()
    }

    fn holds_latest(&self, block: Range<u64>, bytes: &[u8]) -> bool {
        // With a cache device each block of w is written once; in place blocks are reused.
        let place = block.start / self.layout.per_block();
        !self.layout.in_place && BlockTag::open(bytes, &self.identity).is_ok_and(|tag| tag.at == place)
    }
}
