//! The table of rows, as far as it is in memory.
//!
//! In: pages of the table, when a caller needs one. Out: rows, and the changed sectors. A page in memory is current: it
//! has the changes of all commits so far.
//!
//! Always holds: changed sectors that are not yet on the device stay in memory. Each checkpoint reduces the other pages
//! to [`PAGES`].

use std::collections::{BTreeMap, BTreeSet};

use nine_block::Bits;

use super::layout::{ROWS, TableRow, is_sector, seal_sector};
use crate::hash::FixedMap;

/// Sectors of a page.
pub(crate) const SECTORS: u64 = 64;
/// Rows of a page.
const PER_PAGE: u64 = SECTORS * ROWS;
/// Pages that a checkpoint leaves in memory: 2 million rows, 48 MB.
const PAGES: usize = 1024;

/// The pages of the table that are in memory.
#[derive(Default)]
pub(crate) struct RowPages {
    pages: BTreeMap<u64, RowPage>,
    changed: BTreeSet<u64>,
    clock: u64,
}

struct RowPage {
    rows: Box<[TableRow]>,
    used: u64,
}

/// Returns the page of a row.
pub(crate) fn page_of(row: u64) -> u64 {
    row / PER_PAGE
}

impl RowPages {
    /// Returns whether the page is in memory.
    pub(crate) fn has(&self, page: u64) -> bool {
        self.pages.contains_key(&page)
    }

    /// Returns whether any row of a page is in use. A page without used rows need not be read.
    pub(crate) fn is_used(page: u64, used: &Bits) -> bool {
        (page * SECTORS..(page + 1) * SECTORS).any(|sector| Self::is_sector_used(sector, used))
    }

    /// Returns whether any row of a sector is in use.
    pub(crate) fn is_sector_used(sector: u64, used: &Bits) -> bool {
        (sector * ROWS..((sector + 1) * ROWS).min(used.len())).any(|row| used.has(row))
    }

    /// Loads a page from its bytes on the device; without bytes, as a page without used rows. A row in `known` replaces
    /// the device's and counts as changed.
    ///
    /// # Errors
    /// A description of the first sector that is invalid.
    pub(crate) fn load(
        &mut self,
        page: u64,
        bytes: &[u8],
        used: &Bits,
        known: &FixedMap<u64, TableRow>,
    ) -> Result<(), String> {
        if self.has(page) {
            return Ok(());
        }
        let mut rows = vec![TableRow::default(); PER_PAGE as usize].into_boxed_slice();
        for (n, row) in rows.iter_mut().enumerate() {
            let number = page * PER_PAGE + n as u64;
            if known.contains_key(&number) {
                self.changed.insert(number / ROWS);
            }
            if number >= used.len() || !used.has(number) {
                continue;
            }
            let sector = page * SECTORS + n as u64 / ROWS;
            if let Some(known) = known.get(&number) {
                *row = *known;
                continue;
            }
            let at = n / ROWS as usize * 512;
            let bytes = bytes.get(at..at + 512).unwrap_or_default();
            let place = 16 + n % ROWS as usize * 16;
            let right = !bytes.is_empty() && is_sector(bytes, sector);
            *row = right
                .then(|| TableRow::get(&bytes[place..place + 16]))
                .flatten()
                .ok_or_else(|| format!("sector {sector} of the table of rows is wrong"))?;
        }
        self.clock += 1;
        self.pages.insert(page, RowPage { rows, used: self.clock });
        Ok(())
    }

    /// Returns a row, if its page is in memory.
    pub(crate) fn get(&mut self, row: u64) -> Option<TableRow> {
        let page = self.pages.get_mut(&page_of(row))?;
        page.used = self.clock;
        Some(page.rows[(row % PER_PAGE) as usize])
    }

    /// Changes a row. Panics if its page is not in memory.
    pub(crate) fn set(&mut self, row: u64, to: TableRow) {
        let page = self.pages.get_mut(&page_of(row)).expect("who changes a row has its page loaded before");
        page.rows[(row % PER_PAGE) as usize] = to;
        self.changed.insert(row / ROWS);
    }

    /// Takes the sectors that have changed since the last call, with their bytes.
    pub(crate) fn changed(&mut self) -> Vec<(u64, [u8; 512])> {
        let sectors = std::mem::take(&mut self.changed);
        sectors.into_iter().map(|sector| (sector, self.sector(sector))).collect()
    }

    /// Marks a sector as changed again.
    pub(crate) fn again(&mut self, sector: u64) {
        self.changed.insert(sector);
    }

    fn sector(&self, number: u64) -> [u8; 512] {
        let page = &self.pages[&(number / SECTORS)];
        let from = (number % SECTORS * ROWS) as usize;
        let mut bytes = [0; 512];
        for (row, bytes) in page.rows[from..].iter().zip(bytes[16..].chunks_exact_mut(16)) {
            row.put(bytes);
        }
        seal_sector(&mut bytes, number);
        bytes
    }

    /// Returns whether there are more than twice as many clean pages as [`PAGES`].
    pub(crate) fn is_large(&self) -> bool {
        self.pages.len() > 2 * PAGES + self.changed.len()
    }

    /// Evicts the clean pages that were not used for longest, until [`PAGES`] are left.
    pub(crate) fn shrink(&mut self) {
        self.clock += 1;
        let over = self.pages.len().saturating_sub(PAGES);
        if over == 0 {
            return;
        }
        let changed: BTreeSet<u64> = self.changed.iter().map(|sector| sector / SECTORS).collect();
        let clean = self.pages.iter().filter(|(page, _)| !changed.contains(page));
        let mut by_use: Vec<(u64, u64)> = clean.map(|(page, it)| (it.used, *page)).collect();
        by_use.sort_unstable();
        by_use.iter().take(over).for_each(|(_, page)| drop(self.pages.remove(page)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cw::layout::RowLocation;

    fn bits(len: u64, ones: impl Iterator<Item = u64>) -> Bits {
        let mut bits = Bits::new(len);
        ones.for_each(|bit| bits.set(bit));
        bits
    }

    #[test]
    fn what_was_changed_is_loaded_again() {
        let used = bits(5000, (1990..2100).chain([4999]));
        let mut rows = RowPages::default();
        assert!(!RowPages::is_used(0, &used) && RowPages::is_used(1, &used) && RowPages::is_used(2, &used));
        for page in 0..3 {
            rows.load(page, &[], &Bits::new(5000), &FixedMap::default()).unwrap();
        }
        let row = |n: u64| TableRow { place: RowLocation::Here(n * 3), made: n as u32, sum: !n as u32 };
        used.ones().for_each(|n| rows.set(n, row(n)));
        let mut disk = vec![0; 3 * 64 * 512];
        for (sector, bytes) in rows.changed() {
            disk[sector as usize * 512..][..512].copy_from_slice(&bytes);
        }
        assert!(rows.changed().is_empty());
        let mut again = RowPages::default();
        for page in 0..3 {
            again
                .load(page, &disk[page as usize * 64 * 512..][..64 * 512], &used, &FixedMap::default())
                .unwrap();
        }
        for n in 0..5000 {
            assert_eq!(again.get(n), Some(if used.has(n) { row(n) } else { TableRow::default() }));
        }
        disk[4999 / 31 * 512 + 100] ^= 1;
        assert!(RowPages::default().load(2, &disk[2 * 64 * 512..], &used, &FixedMap::default()).is_err());
    }
}
