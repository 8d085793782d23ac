//! Checks that exactly those rows and slots are in use that trees point to.
//!
//! In: the rows that trees point to. Out: faults, and rows with corrected values.

use nine_block::Bits;

use super::{CheckWalk, TreeRepair};
use crate::cw::{RowLocation, RowRepair, TableRow};
use crate::ptr::NEW;

impl CheckWalk<'_> {
    /// Checks the table of rows, as of the snapshot.
    ///
    /// # Errors
    /// The snapshot is lost, or the check was stopped.
    pub(super) async fn table(&mut self) -> nine_proto::Result<()> {
        let (held, slots) = (self.held, self.held.used_slots.len());
        let [mut taken, mut shared] = [Bits::new(slots), Bits::new(slots)];
        for row in held.used_rows.ones() {
            if row % 4096 == 0 {
                self.pause(0).await?;
            }
            let it = match held.row(row).await {
                Ok(it) => it,
                Err(error) => {
                    self.fault(|| format!("row {row} cannot be read: {error}"));
                    self.blind = true;
                    continue;
                }
            };
            if let Some(slot) = it.place.slot().filter(|slot| *slot < slots) {
                let bits = if taken.has(slot) { &mut shared } else { &mut taken };
                bits.set(slot);
            }
        }
        for row in held.used_rows.ones() {
            let Ok(it) = held.row(row).await else { continue };
            let pointed = self.rows.get(&row).copied();
            let is_forwarded = held.forwarded.has(row);
            let slot = it.place.slot();
            if slot.is_some_and(|slot| slot >= slots) {
                self.fault(|| format!("row {row} names slot {}, of {slots}", slot.unwrap_or(0)));
                continue;
            }
            let is_shared = slot.is_some_and(|slot| shared.has(slot));
            if let Some(slot) = slot.filter(|_| is_shared) {
                self.fault(|| format!("slot {slot} is used twice, by row {row}"));
            }
            // If two rows have the same slot, the row that matches the block in it is right.
            let is_its = !is_shared || held.is_in_slot(row, it).await;
            let free = |left| RowRepair { row: Some(row), to: TableRow::default(), left };
            match (it.place, pointed) {
                (RowLocation::Free, None) => self.row(|| format!("row {row} is used, and free"), free(None)),
                (RowLocation::Free, Some(_)) => {
                    self.fault(|| format!("what row {row} had is lost: it is free"))
                }
                (RowLocation::Here(slot), None) => {
                    let left = (is_its && held.used_slots.has(slot)).then_some(slot);
                    self.row(|| format!("nothing points to row {row} ({:#x})", NEW + row), free(left));
                }
                // A sweep will free it.
                (RowLocation::OnWorm(_), None) | (_, Some(_)) => {
                    if pointed.is_some_and(|made| made != it.made) {
                        self.fault(|| format!("row {row} is not of the generation that its pointer says"));
                    }
                    let has_bit = slot.is_none_or(|slot| held.used_slots.has(slot));
                    if !has_bit && is_its {
                        let text = || format!("slot {} has a block, and is free", slot.unwrap_or(0));
                        self.row(text, RowRepair { row: Some(row), to: it, left: None });
                    }
                    if is_forwarded != slot.is_none() {
                        let text = || format!("whether row {row} is on w is said twice, and not the same");
                        self.row(text, RowRepair { row: Some(row), to: it, left: None });
                    }
                }
            }
        }
        for (row, made) in std::mem::take(&mut self.rows) {
            if row < held.used_rows.len() && held.used_rows.has(row) {
                continue;
            }
            let there = match row < held.used_rows.len() {
                true => self.archive.0.cw.row_on_disk(row).await.ok().flatten(),
                false => None,
            };
            let there = there.filter(|it| it.made == made);
            let free = |slot: u64| slot < slots && !taken.has(slot);
            match there {
                Some(it) if it.place.slot().is_some_and(free) && held.is_in_slot(row, it).await => {
                    let text = || format!("something points to row {row}, which is free; its block is there");
                    self.row(text, RowRepair { row: Some(row), to: it, left: None });
                    taken.set(it.place.slot().unwrap_or_default());
                }
                _ => self
                    .fault(|| format!("what row {row} had is lost: something points to it, and it is free")),
            }
        }
        // In place, slots without a row may belong to dumps.
        let alone = held.used_slots.ones().filter(|slot| !held.in_place() && !taken.has(*slot));
        for slot in alone {
            let text = || format!("slot {slot} is used, and no row has it");
            self.row(text, RowRepair { row: None, to: TableRow::default(), left: Some(slot) });
        }
        Ok(())
    }

    /// Reports a wrong row, and its repair. If a tree could not be read, no row is freed.
    fn row(&mut self, text: impl FnOnce() -> String, mend: RowRepair) {
        let frees = mend.to.place == RowLocation::Free;
        self.fault(text);
        if !(frees && self.blind) {
            self.checked.mend(TreeRepair::Row(mend));
        }
    }
}
