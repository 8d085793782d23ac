//! A moment that can be read as it was while commits go on: for a check beside clients.
//!
//! In: the last durable commit. Out: its rows and blocks, as they were then, whatever has changed since.
//!
//! Always holds: a slot that the moment names is not written while it is held. So slots that commits leave are given
//! back when it is let go of, or when somebody needs one: then the moment is lost, and who reads it is told. Of what
//! has changed since it remembers [`ROWS_MOST`] rows; with more it is lost, too.

use bytes::Bytes;
use nine_block::{Bits, Error, Kind as Wrong, SECTOR};

use super::layout::{Fields, Place, ROWS, Row, is_sector};
use super::read::From;
use super::{Cw, Result, State};
use crate::hash::Map;
use crate::ptr::NEW;

/// Rows that have changed since, 32 bytes each.
const ROWS_MOST: usize = 1 << 18;

/// What is remembered for who holds a moment.
pub(super) struct Hold {
    number: u64,
    /// Rows that have changed since, as they were.
    rows: Map<u64, Row>,
    /// Slots that it names, and nobody else any more.
    slots: Vec<u64>,
}

/// See the module. There is one at a time; it is let go of when this is dropped.
pub(crate) struct Held {
    cw: Cw,
    number: u64,
    pub(crate) fields: Fields,
    pub(crate) used_slots: Bits,
    pub(crate) used_rows: Bits,
    pub(crate) forwarded: Bits,
}

impl State {
    /// A row is changed by a commit that is durable now.
    pub(super) fn changes(&mut self, number: u64, before: Row) {
        if let Some(hold) = &mut self.hold {
            hold.rows.entry(number).or_insert(before);
            if hold.rows.len() > ROWS_MOST {
                self.let_go();
            }
        }
    }

    /// A slot is left, and is free when nobody reads it any more.
    pub(super) fn leave(&mut self, slot: u64) {
        match &mut self.hold {
            Some(hold) => hold.slots.push(slot),
            None => self.slots.give(slot),
        }
    }

    /// Slots that a moment alone still names.
    pub(super) fn held(&self) -> u64 {
        self.hold.as_ref().map_or(0, |hold| hold.slots.len() as u64)
    }

    /// Whoever holds a moment has lost it.
    pub(super) fn let_go(&mut self) {
        for slot in self.hold.take().into_iter().flat_map(|hold| hold.slots) {
            self.slots.give(slot);
        }
    }
}

impl Cw {
    /// Holds the moment of the last durable commit. Who held another one has lost it.
    pub(crate) fn hold(&self) -> Held {
        let state = &mut *self.state();
        state.let_go();
        state.holds += 1;
        let number = state.holds;
        state.hold = Some(Hold { number, rows: Map::default(), slots: Vec::new() });
        Held {
            cw: self.clone(),
            number,
            fields: state.header.fields.clone(),
            used_slots: state.used_slots.bits.clone(),
            used_rows: state.used_rows.bits.clone(),
            forwarded: state.forwarded.bits.clone(),
        }
    }

    /// What the table on c says of a row, whether it is used or not; none: its sector is wrong.
    pub(crate) async fn row_on_disk(&self, row: u64) -> Result<Option<Row>> {
        let layout = &self.0.layout;
        let sector = row / ROWS;
        let bytes = self.0.c.read(layout.rows.0 * layout.per_block() + sector, 1).await?;
        let place = 16 + (row % ROWS) as usize * 16;
        Ok(is_sector(&bytes, sector).then(|| Row::get(&bytes[place..place + 16])).flatten())
    }
}

impl Held {
    /// Whether it is still as it was.
    pub(crate) fn is_there(&self) -> bool {
        self.cw.state().hold.as_ref().is_some_and(|hold| hold.number == self.number)
    }

    /// Bytes of a block.
    pub(crate) fn block(&self) -> usize {
        self.cw.block()
    }

    /// A row. What cannot be read is said.
    pub(crate) async fn row(&self, row: u64) -> Result<Row> {
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

    /// Blocks by their addresses, one behind the other, all right.
    pub(crate) async fn blocks(&self, at: u64, count: u64) -> Result<Bytes> {
        if at.checked_add(count).is_none_or(|end| end > self.cw.end()) {
            return Err(Error::new(Wrong::Failed, format!("there is no block {at:#x}")));
        }
        let mut sources = Vec::with_capacity(count as usize);
        for at in at..at + count {
            sources.push(match at.checked_sub(NEW) {
                None => self.on_worm(at)?,
                Some(row) => match self.row(row).await? {
                    Row { place: Place::Here(slot), sum, .. } => From::Slot(slot, sum, None),
                    Row { place: Place::OnWorm(at), .. } => self.on_worm(at)?,
                    Row { place: Place::Free, .. } => {
                        return Err(self.cw.wrong(at, "its row is free"));
                    }
                },
            });
        }
        let read = self.cw.read_from(at, &sources).await;
        if read.is_err() && !self.is_there() { Err(lost()) } else { read }
    }

    /// There is no cache device.
    pub(crate) fn in_place(&self) -> bool {
        self.cw.in_place()
    }

    /// Whether w has something there.
    pub(crate) fn is_written(&self, at: u64) -> bool {
        match self.in_place() {
            true => at < self.used_slots.len() && self.used_slots.has(at),
            false => self.cw.is_before(at, self.fields.next_worm),
        }
    }

    fn on_worm(&self, at: u64) -> Result<From> {
        match self.is_written(at) {
            true => Ok(From::Worm(at)),
            false => Err(Error::new(Wrong::Failed, format!("w is not written at {at}"))),
        }
    }

    /// Whether what this row says is in its slot.
    pub(crate) async fn is_in_slot(&self, row: u64, it: Row) -> bool {
        let Place::Here(slot) = it.place else { return false };
        let sources = [From::Slot(slot, it.sum, None)];
        let bytes = self.cw.slots_on().read(self.cw.slot_at(slot), self.block() as u64 / SECTOR).await;
        bytes.is_ok_and(|block| {
            let tag = super::Tag::open(&block, self.cw.identity());
            // Without a cache device blocks of files have their places in them, nodes their rows.
            let at = |tag: &super::Tag| match self.in_place() && tag.kind == super::Kind::File {
                true => slot,
                false => NEW + row,
            };
            let is_it = tag.is_ok_and(|tag| (tag.at, tag.made) == (at(&tag), it.made));
            is_it && self.cw.judge(NEW + row, sources[0], &block).is_ok()
        })
    }
}

impl Drop for Held {
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
