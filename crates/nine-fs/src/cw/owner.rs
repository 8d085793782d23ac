//! What the archive knows of sectors of its devices, for mirrors whose members differ: the sums of its blocks.
//!
//! In: bytes that some member of a mirror has in the place of a block. Out: whether they are the block.

use std::ops::Range;
use std::sync::{Arc, Weak};

use nine_block::SectorOwner;

use super::layout::is_sector;
use super::tag::{Identity, Tag};
use super::{Cw, Inner, Layout};

/// The owner of c.
struct OfCache {
    layout: Layout,
    identity: Identity,
    /// What is durable by now, as long as somebody has it.
    cw: Weak<Inner>,
}

/// The owner of w.
struct OfWorm {
    per_block: u64,
    identity: Identity,
}

impl Cw {
    /// From now on mirrors below ask it where their members differ.
    pub(super) fn owns_devices(&self) {
        let Inner { c, w, layout, identity, .. } = &*self.0;
        let (layout, identity, cw) = (layout.clone(), *identity, Arc::downgrade(&self.0));
        w.owned_by(Arc::new(OfWorm { per_block: layout.per_block(), identity }));
        if !layout.in_place {
            c.owned_by(Arc::new(OfCache { layout, identity, cw }));
        }
    }
}

impl OfCache {
    /// The number of a sector in the table of rows or of copies that it is of.
    fn in_table(&self, sector: u64) -> Option<u64> {
        let per = self.layout.per_block();
        let Layout { rows, used_slots, copies, slots, .. } = &self.layout;
        let tables = [(rows.0 * per, used_slots * per), (copies * per, slots.0 * per)];
        tables.iter().find(|(from, to)| (*from..*to).contains(&sector)).map(|(from, _)| sector - from)
    }
}

impl SectorOwner for OfCache {
    fn block(&self, sector: u64) -> Option<Range<u64>> {
        if self.in_table(sector).is_some() {
            return Some(sector..sector + 1);
        }
        let per = self.layout.per_block();
        let (first, count) = self.layout.slots;
        let block = sector / per;
        (first..first + count).contains(&block).then_some(block * per..(block + 1) * per)
    }

    fn holds(&self, block: Range<u64>, bytes: &[u8]) -> bool {
        if let Some(number) = self.in_table(block.start) {
            return is_sector(bytes, number);
        }
        let Ok(tag) = Tag::open(bytes, &self.identity) else { return false };
        // A whole block may be an older one, which a member has kept.
        let sum = super::get32(bytes, bytes.len() - 4);
        self.cw.upgrade().is_none_or(|inner| Cw(inner).may_be_at(block.start, tag.at, sum))
    }
}

impl SectorOwner for OfWorm {
    fn block(&self, sector: u64) -> Option<Range<u64>> {
        let start = sector / self.per_block * self.per_block;
        Some(start..start + self.per_block)
    }

    fn holds(&self, _: Range<u64>, bytes: &[u8]) -> bool {
        Tag::open(bytes, &self.identity).is_ok()
    }
}

impl Cw {
    /// Whether the block of this address, with that sum, may lie at this sector of c, as far as its row is known.
    fn may_be_at(&self, sector: u64, at: u64, sum: u32) -> bool {
        let state = &mut *self.state();
        match at.checked_sub(crate::ptr::NEW).and_then(|row| state.rows.get(row)) {
            Some(row) => row.place.slot().is_none_or(|slot| self.slot_at(slot) != sector || row.sum == sum),
            None => true,
        }
    }
}
