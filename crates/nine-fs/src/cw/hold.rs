//! A held snapshot: the state of one commit, which can be read while further commits go on. A check beside clients uses
//! it.
//!
//! In: the last durable commit. Out: its rows and blocks as they were then.
//!
//! Always holds: a slot that the snapshot names is not written while it is held. Slots that commits give up are freed
//! when the snapshot is dropped. If another caller needs a slot first, the snapshot is lost, and its reader gets an
//! error. It is also lost if more than [`ROWS_MAX`] rows have changed since.

use bytes::Bytes;
use nine_block::{Bits, Error, Kind as Wrong, SECTOR};

use super::layout::{CommitFields, ROWS, RowLocation, TableRow, is_sector};
use super::read::BlockSource;
use super::{Cw, CwState, Result};
use crate::hash::FixedMap;
use crate::ptr::NEW;

/// Maximum number of rows that have changed since, at 32 bytes each.
const ROWS_MAX: usize = 1 << 18;

/// The data that a snapshot needs from the state.
pub(super) struct SnapshotHold {
    number: u64,
    /// Rows that have changed since, with their old values.
    rows: FixedMap<u64, TableRow>,
    /// Slots that only the snapshot still names.
    slots: Vec<u64>,
}

/// A snapshot. There is at most one at a time; dropping this value releases it.
pub(crate) struct CommitSnapshot {
    cw: Cw,
    number: u64,
    pub(crate) fields: CommitFields,
    pub(crate) used_slots: Bits,
    pub(crate) used_rows: Bits,
    pub(crate) forwarded: Bits,
}

impl CwState {
    /// Remembers the old value of a row that a commit changes.
    pub(super) fn changes(&mut self, number: u64, before: TableRow) {
        if let Some(hold) = &mut self.hold {
            hold.rows.entry(number).or_insert(before);
            if hold.rows.len() > ROWS_MAX {
                self.let_go();
            }
        }
    }

    /// Frees a slot, or defers that to the release of the snapshot.
    pub(super) fn leave(&mut self, slot: u64) {
        match &mut self.hold {
            Some(hold) => hold.slots.push(slot),
            None => self.slots.give(slot),
        }
    }

    /// Returns the number of slots that only the snapshot names.
    pub(super) fn held(&self) -> u64 {
        self.hold.as_ref().map_or(0, |hold| hold.slots.len() as u64)
    }

    /// Drops the snapshot: its reader gets an error from now on.
    pub(super) fn let_go(&mut self) {
        for slot in self.hold.take().into_iter().flat_map(|hold| hold.slots) {
            self.slots.give(slot);
        }
    }
}

impl Cw {
    /// Takes a snapshot of the last durable commit. An earlier snapshot is lost.
    pub(crate) fn hold(&self) -> CommitSnapshot {
        let state = &mut *self.state();
        state.let_go();
        state.holds += 1;
        let number = state.holds;
        state.hold = Some(SnapshotHold { number, rows: FixedMap::default(), slots: Vec::new() });
        CommitSnapshot {
            cw: self.clone(),
            number,
            fields: state.header.fields.clone(),
            used_slots: state.used_slots.bits.clone(),
            used_rows: state.used_rows.bits.clone(),
            forwarded: state.forwarded.bits.clone(),
        }
    }

    /// Reads a row from the table on c, in use or not. `None`: its sector is invalid.
    pub(crate) async fn row_on_disk(&self, row: u64) -> Result<Option<TableRow>> {
        let layout = &self.0.layout;
        let sector = row / ROWS;
        let bytes = self.0.c.read(layout.rows.0 * layout.per_block() + sector, 1).await?;
        let place = 16 + (row % ROWS) as usize * 16;
        Ok(is_sector(&bytes, sector).then(|| TableRow::get(&bytes[place..place + 16])).flatten())
    }
}

impl CommitSnapshot {
    /// Returns whether the snapshot is still held.
    pub(crate) fn is_there(&self) -> bool {
        self.cw.state().hold.as_ref().is_some_and(|hold| hold.number == self.number)
    }

    /// Returns the bytes of a block.
    pub(crate) fn block(&self) -> usize {
        self.cw.block()
    }

    /// Returns a row as of the snapshot.
    ///
    /// # Errors
    /// There is no such row, it cannot be read, or the snapshot is lost.
    pub(crate) async fn row(&self, row: u64) -> Result<TableRow> {
        if row >= self.used_rows.len() {
            return Err(Error::new(Wrong::Failed, format!("there is no row {row}")));
        }
        loop {
            {
                let state = &mut *self.cw.state();
                let hold = state.hold.as_ref().filter(|hold| hold.number == self.number);
                let Some(hold) = hold else { return Err(lost()) };
                if let Some(row) = hold.rows.get(&row).copied().or_else(|| state.rows.get(row)) {
                    return Ok(row);
                }
            }
            self.cw.load_row(row).await?;
        }
    }

    /// Reads blocks from consecutive addresses, and verifies each.
    pub(crate) async fn blocks(&self, at: u64, count: u64) -> Result<Bytes> {
        if at.checked_add(count).is_none_or(|end| end > self.cw.end()) {
            return Err(Error::new(Wrong::Failed, format!("there is no block {at:#x}")));
        }
        let mut sources = Vec::with_capacity(count as usize);
        for at in at..at + count {
            sources.push(match at.checked_sub(NEW) {
                None => self.on_worm(at)?,
                Some(row) => match self.row(row).await? {
                    TableRow { place: RowLocation::Here(slot), sum, .. } => {
                        BlockSource::Slot(slot, sum, None)
                    }
                    TableRow { place: RowLocation::OnWorm(at), .. } => self.on_worm(at)?,
                    TableRow { place: RowLocation::Free, .. } => {
                        return Err(self.cw.wrong(at, "its row is free"));
                    }
                },
            });
        }
        let read = self.cw.read_from(at, &sources).await;
        if read.is_err() && !self.is_there() { Err(lost()) } else { read }
    }

    /// Returns whether there is no cache device.
    pub(crate) fn in_place(&self) -> bool {
        self.cw.in_place()
    }

    /// Returns whether the block of w at this address is written.
    pub(crate) fn is_written(&self, at: u64) -> bool {
        match self.in_place() {
            true => at < self.used_slots.len() && self.used_slots.has(at),
            false => self.cw.is_before(at, self.fields.next_worm),
        }
    }

    fn on_worm(&self, at: u64) -> Result<BlockSource> {
        match self.is_written(at) {
            true => Ok(BlockSource::Worm(at)),
            false => Err(Error::new(Wrong::Failed, format!("w is not written at {at}"))),
        }
    }

    /// Returns whether the slot of a row holds the block that the row names.
    pub(crate) async fn is_in_slot(&self, row: u64, it: TableRow) -> bool {
        let RowLocation::Here(slot) = it.place else { return false };
        let sources = [BlockSource::Slot(slot, it.sum, None)];
        let bytes = self.cw.slots_on().read(self.cw.slot_at(slot), self.block() as u64 / SECTOR).await;
        bytes.is_ok_and(|block| {
            let tag = super::BlockTag::open(&block, self.cw.identity());
            // Without a cache device the tag of a file's block has its slot as address. A node's tag has its row.
            let at = |tag: &super::BlockTag| match self.in_place() && tag.kind == super::BlockKind::File {
                true => slot,
                false => NEW + row,
            };
            let is_it = tag.is_ok_and(|tag| (tag.at, tag.made) == (at(&tag), it.made));
            is_it && self.cw.judge(NEW + row, sources[0], &block).is_ok()
        })
    }
}

impl Drop for CommitSnapshot {
    fn drop(&mut self) {
        let state = &mut *self.cw.state();
        if state.hold.as_ref().is_some_and(|hold| hold.number == self.number) {
            state.let_go();
        }
    }
}

fn lost() -> Error {
    Error::new(Wrong::Busy, "so much has changed meanwhile that the moment could not be held")
}
