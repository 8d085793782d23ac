//! Commits make a set of changes durable at one moment or not at all; and checkpoints (docs/disk.md, "The journal").
//!
//! In: changed blocks, freed rows, blocks that were copied to w. Out: writes to slots, one record, one flush.
//!
//! Always holds: commits do not overlap, which the caller ensures. A slot that a durable record names is not written.
//! The state in memory is the durable one, and changes only after the flush.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use nine_block::{Call, Device, Error, Kind as Wrong, SECTOR};

use super::copies::ReadCopy;
use super::layout::{
    CommitFields, HEADER, JournalRecord, ROWS, RowChange, RowLocation, TableRow, seal_sector,
};
use super::rows;
use super::step::{BlockOperation, PlanStep, step};
use super::tag::{BlockKind, BlockTag, TAG};
use super::{Cw, CwState, Is, Result};
use crate::hash::{FixedMap, FixedSet};
use crate::jobs::yield_now;
use crate::ptr::BlockPtr;

/// Bytes of the largest write.
const RUN: usize = 1 << 20;
/// Writes in flight at a time.
const WRITES: usize = 8;

/// A changed block.
#[derive(Clone)]
pub(crate) struct ChangedBlock {
    pub(crate) at: BlockPtr,
    pub(crate) kind: BlockKind,
    pub(crate) owner: u64,
    pub(crate) index: u64,
    /// A whole block; its tag is not filled in.
    pub(crate) block: Bytes,
}

/// A block that was copied to w.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopiedBlock {
    pub(crate) row: u64,
    pub(crate) worm: u64,
    /// The slot holds the same block, so it can stay as a read copy. For a node it does not: the node on c points to
    /// rows, the node on w to w-addresses.
    pub(crate) same: bool,
}

/// The changes of one commit.
#[derive(Default)]
pub(crate) struct CommitChanges {
    /// In the order in which they should lie on c.
    pub(crate) blocks: Vec<ChangedBlock>,
    /// Blocks of the current generation, known to earlier commits, that nothing points to any more.
    pub(crate) freed: Vec<u64>,
    /// Rows of blocks that are durable on w.
    pub(crate) forward: Vec<CopiedBlock>,
    /// Forwarded rows that nothing points to any more.
    pub(crate) swept: Vec<u64>,
    pub(crate) fields: CommitFields,
}

impl CommitChanges {
    fn rows(&self) -> impl Iterator<Item = u64> + '_ {
        let blocks = self.blocks.iter().filter_map(|changed| changed.at.row());
        let freed = self.freed.iter().filter_map(|at| BlockPtr { at: *at, made: 0 }.row());
        blocks.chain(freed).chain(self.forward.iter().map(|come| come.row)).chain(self.swept.iter().copied())
    }
}

/// A few writes in flight. When `end` returns, none is in flight, so a retry may write the same slots.
#[derive(Default)]
pub(super) struct WriteWindow {
    calls: VecDeque<Call>,
    failed: Option<Error>,
}

impl WriteWindow {
    /// Begins a write, unless one has failed.
    pub(super) async fn begin(&mut self, device: &dyn Device, at: u64, data: Bytes) {
        if self.calls.len() == WRITES {
            self.wait().await;
        }
        let is_long = data.len() >= RUN;
        if self.failed.is_none() {
            self.calls.push_back(device.write(at, data));
        }
        if is_long {
            // Let other requests run between large writes.
            yield_now().await;
        }
    }

    async fn wait(&mut self) {
        if let Some(call) = self.calls.pop_front()
            && let Err(error) = call.await
        {
            self.failed.get_or_insert(error);
        }
    }

    pub(super) async fn end(mut self) -> Result<()> {
        while !self.calls.is_empty() {
            self.wait().await;
        }
        self.failed.map_or(Ok(()), Err)
    }
}

impl Cw {
    /// Returns the maximum number of entries in a commit.
    pub(crate) fn entries_most(&self) -> usize {
        (self.0.layout.journal_sectors() as usize * SECTOR as usize / 4 - super::layout::FIELDS_MAX)
            / super::layout::ENTRY
    }

    /// Makes the changes durable. If it fails, nothing has changed, and the caller may try the same changes again.
    ///
    /// # Errors
    /// [`Wrong::Poisoned`]: nothing can be made durable any more.
    pub(crate) async fn commit(&self, changes: &CommitChanges) -> Result<()> {
        self.is_well()?;
        self.state().committing = true;
        let result = self.commit_now(changes).await;
        self.state().committing = false;
        result
    }

    async fn commit_now(&self, changes: &CommitChanges) -> Result<()> {
        self.stretch().await?;
        let sectors = JournalRecord::sectors(changes.fields.waiting.len(), changes.rows().count());
        assert!(sectors <= self.0.layout.journal_sectors() / 2, "a commit of {sectors} sectors");
        let must_make_room = {
            let journal = &self.state().journal;
            journal.doubtful || journal.room(sectors, self.0.layout.journal_sectors()).is_none()
        };
        if must_make_room {
            self.checkpoint(None).await?;
        }
        self.load_all(changes).await?;
        let slots = self.take(changes)?;
        self.break_promise(changes.blocks.len() as u64);
        let result = self.write(changes, &slots).await;
        let state = &mut *self.state();
        match result {
            Ok(record) => {
                state.journal.at = record.1 + sectors;
                state.journal.number += 1;
                state.journal.used += sectors + record.2;
                let same = changes.forward.iter().filter(|come| come.same && !self.0.fastworm);
                state.apply(&record.0, &same.map(|come| come.row).collect());
                Ok(())
            }
            Err(error) => {
                self.promise(changes.blocks.len() as u64);
                slots.into_iter().flatten().for_each(|slot| state.slots.give(slot));
                state.journal.doubtful = true;
                if error.kind == Wrong::Full {
                    // On a sparse device the first slots were mostly written before, and have their storage.
                    state.slots.rewind();
                }
                if error.kind == Wrong::Poisoned {
                    state.stopped = Some(error.clone());
                }
                Err(error)
            }
        }
    }

    /// Loads the pages of all rows that change. They stay in memory until the commit ends.
    async fn load_all(&self, changes: &CommitChanges) -> Result<()> {
        let mut pages: Vec<u64> = changes.rows().map(rows::page_of).collect();
        pages.sort_unstable();
        pages.dedup();
        for page in pages {
            self.load(page).await?;
        }
        Ok(())
    }

    fn is_well(&self) -> Result<()> {
        match &self.state().stopped {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Takes slots for the changed blocks, in their order.
    fn take(&self, changes: &CommitChanges) -> Result<Vec<Range<u64>>> {
        let state = &mut *self.state();
        let full = || Error::new(Wrong::Busy, "there is no room").of(self.slots_on().name());
        if self.in_place() {
            if let Some(places) = changes.places(&mut state.slots) {
                return Ok(places);
            }
            // A held snapshot uses some. Drop it.
            state.let_go();
            return changes.places(&mut state.slots).ok_or_else(full);
        }
        let mut left = changes.blocks.len() as u64;
        let mut slots: Vec<Range<u64>> = Vec::new();
        while left > 0 {
            let Some(run) = state.take_slots(left) else {
                slots.into_iter().flatten().for_each(|slot| state.slots.give(slot));
                return Err(full());
            };
            left -= run.end - run.start;
            slots.push(run);
        }
        Ok(slots)
    }

    /// Writes blocks and record, and flushes. Returns the record, its sector in the journal, and the sectors skipped at
    /// the journal's end.
    async fn write(
        &self,
        changes: &CommitChanges,
        slots: &[Range<u64>],
    ) -> Result<(JournalRecord, u64, u64)> {
        let mut entries = Vec::with_capacity(changes.rows().count());
        let mut left = self.left(changes)?.into_iter();
        let (mut writes, mut run, mut run_at, mut next) = (WriteWindow::default(), BytesMut::new(), 0, 0);
        for (changed, slot) in changes.blocks.iter().zip(slots.iter().cloned().flatten()) {
            let at = self.slot_at(slot);
            if !run.is_empty() && (at != next || run.len() >= RUN) {
                writes.begin(&**self.slots_on(), run_at, run.split().freeze()).await;
            }
            if run.is_empty() {
                run_at = at;
                run.reserve(RUN.min(self.block() * changes.blocks.len()));
            }
            next = at + self.0.layout.per_block();
            let sum = self.put_block(&mut run, changed, slot);
            let number = changed.at.row().expect("what is committed is new");
            let row = TableRow { place: RowLocation::Here(slot), made: changed.at.made, sum };
            entries.push(RowChange { number, row, left: left.next().flatten() });
        }
        if !run.is_empty() {
            writes.begin(&**self.slots_on(), run_at, run.freeze()).await;
        }
        for at in &changes.freed {
            let number = BlockPtr { at: *at, made: 0 }.row().expect("what is freed is new");
            entries.push(RowChange { number, row: TableRow::default(), left: left.next().flatten() });
        }
        for CopiedBlock { row: number, worm, .. } in &changes.forward {
            let at = crate::ptr::NEW + number;
            let old = self.state().of(at).expect("its page is loaded").1;
            let row = TableRow { place: RowLocation::OnWorm(*worm), ..old };
            entries.push(RowChange { number: *number, row, left: left.next().flatten() });
        }
        for number in &changes.swept {
            entries.push(RowChange {
                number: *number,
                row: TableRow::default(),
                left: left.next().flatten(),
            });
        }
        let (record, at, over) = {
            let state = &*self.state();
            let (journal, fields) = (&state.journal, changes.fields.clone());
            let record = JournalRecord {
                incarnation: state.header.incarnation,
                number: journal.number,
                fields,
                entries,
            };
            let sectors = JournalRecord::sectors(record.fields.waiting.len(), record.entries.len());
            let (at, over) =
                journal.room(sectors, self.0.layout.journal_sectors()).expect("a checkpoint has made room");
            (record, at, over)
        };
        let first = self.0.layout.journal.0 * self.0.layout.per_block();
        let bytes = Bytes::from(record.encode(&self.0.identity));
        let mut from = 0;
        while from < bytes.len() {
            let to = bytes.len().min(from + RUN);
            writes.begin(&*self.0.c, first + at + from as u64 / SECTOR, bytes.slice(from..to)).await;
            from = to;
        }
        writes.end().await?;
        // In place c is an area of w, so one flush covers both.
        self.0.c.flush().await?;
        Ok((record, at, over))
    }

    /// Returns the slots that rows give up, in the order of [`CommitChanges::rows`], after checking each change against
    /// the table of states.
    ///
    /// # Errors
    /// The tables on the device contradict each other: applying the change could give one block's slot to another.
    fn left(&self, changes: &CommitChanges) -> Result<Vec<Option<u64>>> {
        let state = &mut *self.state();
        let mut all = FixedSet::default();
        let blocks = changes.blocks.iter().map(|_| (Some(BlockOperation::Write), None));
        let freed = changes.freed.iter().map(|_| (Some(BlockOperation::Free), None));
        // In place most blocks stay in their slots.
        let come =
            |come: &CopiedBlock| (Some(BlockOperation::Copy), Some(come.worm).filter(|_| self.in_place()));
        let forward = changes.forward.iter().map(come);
        let ops = blocks.chain(freed).chain(forward).chain(changes.swept.iter().map(|_| (None, None)));
        let mut left = Vec::with_capacity(changes.rows().count());
        for (number, (op, stays)) in changes.rows().zip(ops) {
            let at = crate::ptr::NEW + number;
            let (is, row) = state.of(at).expect("its page is loaded");
            let op = match (op, row.place) {
                (Some(BlockOperation::Write), RowLocation::Free) => Some(BlockOperation::Grow),
                // If a copy was restarted after some blocks had been forwarded, they are copied again.
                (Some(BlockOperation::Copy), RowLocation::OnWorm(_)) => None,
                (op, _) => op,
            };
            let writes = |step: &PlanStep| {
                matches!(step, PlanStep::WriteCache | PlanStep::Release | PlanStep::Forward)
            };
            let may = match op {
                Some(op) => step(is, op, self.0.fastworm).is_some_and(|plan| plan.steps.iter().any(writes)),
                None => matches!(row.place, RowLocation::OnWorm(_)),
            };
            let is_used = number < state.used_rows.bits.len() && state.used_rows.bits.has(number);
            let slot = row.place.slot();
            let is_its = slot.is_none_or(|slot| {
                slot < state.used_slots.bits.len() && state.used_slots.bits.has(slot) && all.insert(slot)
            });
            if !may
                || is_used != (op != Some(BlockOperation::Grow))
                || !is_its
                || number >= state.used_rows.bits.len()
            {
                let text =
                    format!("{op:?} of what is {row:?}: the tree, the rows and the slots do not agree");
                return Err(self.wrong(at, text));
            }
            left.push(slot.filter(|slot| stays != Some(*slot)));
        }
        Ok(left)
    }

    /// Appends a block to `run` as it will lie in its slot. Returns its sum.
    fn put_block(&self, run: &mut BytesMut, changed: &ChangedBlock, slot: u64) -> u32 {
        let ChangedBlock { at, kind, owner, index, block } = changed;
        let start = run.len();
        run.extend_from_slice(&block[..block.len() - TAG]);
        run.resize(start + block.len(), 0);
        // A file's block stays here when it is dumped, so it gets its final address. A node points to rows, so a dump
        // writes another copy of it.
        let is_final = self.in_place() && *kind == BlockKind::File;
        let place = if is_final { slot } else { at.at };
        let tag = BlockTag { kind: *kind, made: at.made, at: place, owner: *owner, index: *index };
        tag.seal(&mut run[start..], &self.0.identity)
    }

    /// Writes the sectors changed since the last checkpoint in place, and then a header that frees the journal. With
    /// `incarnation` the header has that incarnation.
    ///
    /// # Errors
    /// As for a commit. The previous header then stays in effect.
    pub(super) async fn checkpoint(&self, incarnation: Option<u64>) -> Result<()> {
        let layout = &self.0.layout;
        let per = layout.per_block();
        let (sectors, header) = {
            let state = &mut *self.state();
            let mut sectors: Vec<(u64, [u8; 512])> = Vec::new();
            sectors
                .extend(state.rows.changed().into_iter().map(|(n, bytes)| (layout.rows.0 * per + n, bytes)));
            let marks = [
                (&mut state.used_slots, layout.used_slots),
                (&mut state.used_rows, layout.used_rows),
                (&mut state.forwarded, layout.forwarded),
            ];
            for (marks, block) in marks {
                let changed = std::mem::take(&mut marks.changed);
                let bytes = |n| marks.bits.sector(n)[..].try_into().expect("a sector");
                sectors.extend(changed.into_iter().map(|n| (block * per + n, bytes(n))));
            }
            for number in std::mem::take(&mut state.copies.changed).into_iter().map(|slot| slot / ROWS) {
                let at = layout.copies * per + number;
                if sectors.last().is_none_or(|(last, _)| *last != at) {
                    sectors.push((at, state.copies_sector(number)));
                }
            }
            let journal = &mut state.journal;
            if journal.doubtful {
                // Records that may be there now do not belong to what follows.
                journal.number += 1;
            }
            let mut header = state.header.clone();
            header.number += 1;
            header.replay = (journal.at, journal.number);
            header.incarnation = incarnation.unwrap_or(header.incarnation);
            (sectors, header)
        };
        let result = self.write_checkpoint(&sectors, &header).await;
        let state = &mut *self.state();
        match result {
            Ok(()) => {
                state.header = header;
                (state.journal.used, state.journal.doubtful) = (0, false);
                state.rows.shrink();
                state.shrunk += 1;
                Ok(())
            }
            Err(error) => {
                // Write all of it again at the next checkpoint.
                state.again(&sectors, layout);
                if error.kind == Wrong::Poisoned {
                    state.stopped = Some(error.clone());
                }
                Err(error)
            }
        }
    }

    async fn write_checkpoint(
        &self,
        sectors: &[(u64, [u8; 512])],
        header: &super::CacheHeader,
    ) -> Result<()> {
        let mut writes = WriteWindow::default();
        for run in sectors.chunk_by(|a, b| a.0 + 1 == b.0) {
            for piece in run.chunks(RUN / 512) {
                let bytes: Vec<u8> = piece.iter().flat_map(|(_, bytes)| bytes).copied().collect();
                writes.begin(&*self.0.c, piece[0].0, bytes.into()).await;
            }
        }
        writes.end().await?;
        self.0.c.flush().await?;
        let (bytes, letter) = (Bytes::from(header.encode()), header.number % 2 * HEADER);
        for at in [letter, self.last_block() + letter] {
            self.0.c.write(at, bytes.clone()).await?;
        }
        self.0.c.flush().await.map(drop)
    }

    /// Returns the first sector of the block with the second copies of the headers.
    pub(super) fn last_block(&self) -> u64 {
        let per = self.0.layout.per_block();
        (self.0.c.shape().sectors / per - 1) * per
    }

    /// Makes a checkpoint if half of the journal is used; with `always` if anything has changed, including the table of
    /// copies.
    pub(crate) async fn tidy(&self, always: bool) -> Result<()> {
        let due = {
            let state = &*self.state();
            let has_changed = state.journal.used > 0 || !state.copies.changed.is_empty();
            state.journal.used * 2 > self.0.layout.journal_sectors() || (always && has_changed)
        };
        if due { self.checkpoint(None).await } else { Ok(()) }
    }

    /// Marks rows of blocks that could not be copied to w. Only messages and the state table use this.
    pub(crate) fn copying_failed(&self, rows: impl Iterator<Item = u64>) {
        self.state().failed.extend(rows);
    }

    /// Returns whether all blocks that a record names are in their slots. Replay checks the last record this way.
    pub(super) async fn are_there(&self, record: &JournalRecord) -> Result<bool> {
        let last: FixedMap<u64, TableRow> =
            record.entries.iter().map(|entry| (entry.number, entry.row)).collect();
        let mut there: Vec<(u64, u32)> = last
            .values()
            .filter_map(|row| match row.place {
                RowLocation::Here(slot) => Some((self.slot_at(slot), row.sum)),
                RowLocation::Free | RowLocation::OnWorm(_) => None,
            })
            .collect();
        there.sort_unstable();
        // Read adjacent blocks together, a few requests at a time.
        let per = self.0.layout.per_block();
        let runs = there.chunk_by(|(at, _), (next, _)| at + per == *next);
        let mut calls = VecDeque::new();
        for run in runs.flat_map(|run| run.chunks(RUN / self.block())) {
            calls.push_back((self.slots_on().read(run[0].0, run.len() as u64 * per), run));
            if calls.len() == WRITES && !self.is_there(calls.pop_front()).await? {
                return Ok(false);
            }
        }
        while !calls.is_empty() {
            if !self.is_there(calls.pop_front()).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn is_there(&self, call: Option<(Call, &[(u64, u32)])>) -> Result<bool> {
        let Some((call, run)) = call else { return Ok(true) };
        let blocks = match call.await {
            Ok(blocks) => blocks,
            // A sector that was being written when the power was cut may be unreadable. Any other error is passed on,
            // because it does not say whether the block is there.
            Err(error) if error.kind == Wrong::Failed => return Ok(false),
            Err(error) => return Err(error),
        };
        let is_right = |(block, (_, sum)): (&[u8], &(u64, u32))| {
            let end = block.len() - 4;
            super::tag::sum(&block[..end]) == *sum && block[end..] == sum.to_le_bytes()
        };
        Ok(blocks.chunks_exact(self.block()).zip(run).all(is_right))
    }
}

impl super::JournalPosition {
    /// Returns where a record of `sectors` sectors goes in a journal of `most`, and the sectors skipped at its end.
    /// `None`: the journal has no room.
    pub(super) fn room(&self, sectors: u64, most: u64) -> Option<(u64, u64)> {
        let (at, over) = if self.at + sectors <= most { (self.at, 0) } else { (0, most - self.at) };
        (self.used + over + sectors <= most).then_some((at, over))
    }
}

impl CwState {
    /// Applies a durable record. The slots of the rows in `same` become read copies.
    fn apply(&mut self, record: &JournalRecord, same: &FixedSet<u64>) {
        for RowChange { number, row, left } in &record.entries {
            let before = self.rows.get(*number).expect("its page is loaded");
            self.changes(*number, before);
            self.rows.set(*number, *row);
            if let Some(slot) = *left {
                self.used_slots.mark(slot, false);
                let copy = ReadCopy { slot, sum: before.sum };
                let stays = match row.place {
                    _ if self.hold.is_some() => false,
                    RowLocation::OnWorm(worm) => same.contains(number) && self.copies.add(worm, copy),
                    _ => false,
                };
                if !stays {
                    self.leave(slot);
                }
            }
            self.mark_place(*row);
            if row.place == RowLocation::Free {
                self.free_rows.give(*number);
            }
            self.used_rows.mark(*number, row.place != RowLocation::Free);
            self.forwarded.mark(*number, matches!(row.place, RowLocation::OnWorm(_)));
            if !matches!(row.place, RowLocation::Here(_)) {
                self.failed.remove(number);
            }
        }
        if record.fields.generation != self.header.fields.generation {
            // This alone turns the dirty blocks into blocks to be dumped: the state depends on the generation.
            debug_assert!(
                step(Is::Dirty, BlockOperation::Dump, true).is_some_and(|plan| plan.steps.is_empty())
            );
        }
        self.claim(&record.fields);
        self.header.fields = record.fields.clone();
    }

    /// Marks the slot of a row as used; in place also the block of w that it is forwarded to.
    pub(super) fn mark_place(&mut self, row: TableRow) {
        match row.place {
            RowLocation::Here(slot) => self.used_slots.mark(slot, true),
            RowLocation::OnWorm(place) if self.header.layout.in_place => self.used_slots.mark(place, true),
            RowLocation::OnWorm(_) | RowLocation::Free => {}
        }
    }

    /// Encodes a sector of the table of copies.
    fn copies_sector(&self, number: u64) -> [u8; 512] {
        let mut bytes = [0; 512];
        for (slot, bytes) in (number * ROWS..).zip(bytes[16..].chunks_exact_mut(16)) {
            if let Some((worm, sum)) = self.copies.in_slot(slot) {
                super::put64(bytes, 0, worm);
                super::put32(bytes, 8, sum);
            }
        }
        seal_sector(&mut bytes, number);
        bytes
    }

    /// Marks these sectors as changed again.
    fn again(&mut self, sectors: &[(u64, [u8; 512])], layout: &super::CacheLayout) {
        let per = layout.per_block();
        for (at, _) in sectors {
            let block = at / per;
            let number = |first: u64| at - first * per;
            if block >= layout.copies {
                self.copies.changed.insert(number(layout.copies) * ROWS);
            } else if block >= layout.forwarded {
                self.forwarded.changed.insert(number(layout.forwarded));
            } else if block >= layout.used_rows {
                self.used_rows.changed.insert(number(layout.used_rows));
            } else if block >= layout.used_slots {
                self.used_slots.changed.insert(number(layout.used_slots));
            } else {
                self.rows.again(number(layout.rows.0));
            }
        }
    }
}
