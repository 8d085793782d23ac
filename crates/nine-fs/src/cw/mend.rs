//! Repairs of rows, regardless of their old values and bits.
//!
//! In: rows with their new values. Out: a commit of them.

use bytes::Bytes;
use nine_block::SECTOR;

use super::commit::WriteWindow;
use super::layout::{JournalRecord, RowChange, RowLocation, TableRow};
use super::{Cw, Result, rows};

/// The repair of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowRepair {
    /// `None`: only the slot is freed.
    pub(crate) row: Option<u64>,
    pub(crate) to: TableRow,
    /// A slot that becomes free.
    pub(crate) left: Option<u64>,
}

impl Cw {
    /// Changes a bit of used slots (0), used rows (1) or forwarded rows (2).
    #[cfg(test)]
    pub(crate) async fn set_bit(&self, which: usize, bit: u64, to: bool) -> Result<()> {
        self.state().marks(which).mark(bit, to);
        self.checkpoint(None).await
    }

    /// Returns the sector at which the block of a row begins.
    #[cfg(test)]
    pub(crate) async fn sector_of_row(&self, row: u64) -> u64 {
        self.slot_at(self.place_of(row).await.unwrap().unwrap())
    }

    /// Commits at most as many repairs as one commit can have, and checkpoints them. Afterwards the state in memory is
    /// invalid: the archive must be opened again.
    ///
    /// # Errors
    /// Errors of the device. After a power cut all of the repairs are there, or none.
    pub(crate) async fn mend(&self, mends: &[RowRepair]) -> Result<()> {
        // The journal is empty now, so this is its first record.
        self.checkpoint(None).await?;
        let mends = &mends[..mends.len().min(self.entries_most())];
        let nobody = {
            let state = &*self.state();
            (0..state.used_rows.bits.len()).find(|row| !state.used_rows.bits.has(*row))
        };
        let entries = mends.iter().filter_map(|mend| {
            let number = mend.row.or(nobody)?;
            Some(RowChange { number, row: mend.to, left: mend.left })
        });
        let entries: Vec<RowChange> = entries.collect();
        for entry in &entries {
            self.load(rows::page_of(entry.number)).await?;
        }
        let (record, at, over) = {
            let state = &*self.state();
            let fields = state.header.fields.clone();
            let (incarnation, number) = (state.header.incarnation, state.journal.number);
            let record = JournalRecord { incarnation, number, fields, entries };
            let sectors = JournalRecord::sectors(record.fields.waiting.len(), record.entries.len());
            let most = self.0.layout.journal_sectors();
            let (at, over) = state.journal.room(sectors, most).expect("a checkpoint has made room");
            (record, at, over)
        };
        let bytes = Bytes::from(record.encode(&self.0.identity));
        let (first, sectors) =
            (self.0.layout.journal.0 * self.0.layout.per_block(), bytes.len() as u64 / SECTOR);
        let mut writes = WriteWindow::default();
        writes.begin(&*self.0.c, first + at, bytes).await;
        writes.end().await?;
        self.0.c.flush().await?;
        {
            let state = &mut *self.state();
            (state.journal.at, state.journal.number) = (at + sectors, state.journal.number + 1);
            state.journal.used += sectors + over;
            for RowChange { number, row, left } in record.entries {
                state.rows.set(number, row);
                left.into_iter().for_each(|slot| state.used_slots.mark(slot, false));
                row.place.slot().into_iter().for_each(|slot| state.used_slots.mark(slot, true));
                state.used_rows.mark(number, row.place != RowLocation::Free);
                state.forwarded.mark(number, matches!(row.place, RowLocation::OnWorm(_)));
            }
        }
        self.checkpoint(None).await
    }
}
