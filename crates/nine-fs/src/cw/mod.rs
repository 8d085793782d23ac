//! The cw device: a worm with a cache in front of it (docs/disk.md).
//!
//! In: reads of blocks by address (it is a [`Device`], so that the block cache can stand on it), commits, and the
//! blocks of a dump. Out: operations on c and w.
//!
//! ```text
//! the tree -> blocks in memory -> cw -> step (what is done in which state)
//!                                  |---> rows, room (which slot a new block is in, which are free)
//!                                  |---> commit (slots, journal, checkpoint) --> c
//!                                  |---> segment (a dump on its way)         --> w
//! ```
//! Always holds: c and w hold the state of the last durable commit, whatever happens. A slot that this state names is
//! not written. A block of w that belongs to a dump is never written again. Without a cache device ("in place") slots
//! are blocks of w, and c is an area of w.

mod bytes;
mod chain;
mod commit;
mod copies;
mod copyworm;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
mod hold;
mod in_place;
mod layout;
mod mend;
mod owner;
mod read;
mod room;
mod rows;
mod segment;
mod start;
mod step;
mod tag;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nine_block::{Bits, Device, Error, Io, Kind as Wrong, Op as Asked, Proof, SECTOR, Shape, Tasks};

use crate::hash::FixedSet;
use crate::ptr::NEW;
pub(crate) use bytes::{get32, get64, put32, put64};
pub(crate) use chain::DumpChain;
pub(crate) use commit::{ChangedBlock, CommitChanges, CopiedBlock};
use copies::ReadCopyTable;
pub use copyworm::Copied;
pub(crate) use copyworm::copy as copy_worm;
pub(crate) use hold::CommitSnapshot;
pub(crate) use in_place::follows;
pub(crate) use layout::{
    CacheHeader, CacheLayout, CommitFields, DumpName, DumpSuperblock, NewestSuperblock, WAITING_MAX,
    WaitingDump, WormLabel,
};
pub(crate) use layout::{RowLocation, TableRow};
pub(crate) use mend::RowRepair;
use room::FreeNumbers;
use rows::RowPages;
pub(crate) use segment::SegmentWriter;
pub(crate) use start::{CreateOptions, RecoverOptions, later};
use step::BlockState as Is;
pub(crate) use tag::{BlockKind, BlockTag, FsIdentity, TAG, sum};

/// The result of operations on blocks, of commits and of opening.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// A cached worm. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Cw(Arc<CwShared>);

struct CwShared {
    c: Arc<dyn Device>,
    w: Arc<dyn Device>,
    layout: CacheLayout,
    identity: FsIdentity,
    /// The w-address of the first segment.
    first: u64,
    fastworm: bool,
    row_order: bool,
    state: Mutex<CwState>,
    tasks: Tasks,
    /// Slots promised to later commits.
    promised: AtomicU64,
}

/// The durable state, except where a field says otherwise.
struct CwState {
    header: CacheHeader,
    rows: RowPages,
    used_slots: TrackedBitmap,
    used_rows: TrackedBitmap,
    forwarded: TrackedBitmap,
    /// Free slots: not named by the durable state, by a commit in progress or by a read copy.
    slots: FreeNumbers,
    /// Free rows: used neither by the durable state nor by blocks that are only in memory.
    free_rows: FreeNumbers,
    copies: ReadCopyTable,
    /// Slots of read copies that are being written.
    keeping: u64,
    /// Rows of blocks that could not be copied to w.
    failed: FixedSet<u64>,
    journal: JournalPosition,
    /// A commit is in progress: the pages of rows that it needs stay in memory.
    committing: bool,
    /// Counts how often pages of rows were evicted. A page whose read began before an eviction is read again.
    shrunk: u64,
    /// The error after which nothing can be committed any more.
    stopped: Option<Error>,
    /// The snapshot that a reader holds, and the number of snapshots taken so far.
    hold: Option<hold::SnapshotHold>,
    holds: u64,
}

/// A bitmap, and its sectors that have changed since the last checkpoint.
struct TrackedBitmap {
    bits: Bits,
    /// The number of bits that are 1.
    count: u64,
    changed: BTreeSet<u64>,
}

/// Where the next record of the journal goes.
struct JournalPosition {
    /// Its sector in the journal.
    at: u64,
    /// Its record number.
    number: u64,
    /// Sectors that replay may need, including those skipped at the journal's end.
    used: u64,
    /// A commit has failed. Its record may be on the device, so a checkpoint comes before the next record.
    doubtful: bool,
}

impl TrackedBitmap {
    fn mark(&mut self, bit: u64, to: bool) {
        if self.bits.has(bit) != to {
            if to {
                self.bits.set(bit);
                self.count += 1;
            } else {
                self.bits.unset(bit);
                self.count -= 1;
            }
            self.changed.insert(bit / 4032);
        }
    }
}

impl Cw {
    fn state(&self) -> MutexGuard<'_, CwState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes of a block.
    pub(crate) fn block(&self) -> usize {
        self.0.layout.block as usize
    }

    /// Returns the end of the address space: every address is smaller.
    pub(crate) fn end(&self) -> u64 {
        NEW + self.0.layout.rows.1
    }

    /// Returns the identity of the file system.
    pub(crate) fn identity(&self) -> &FsIdentity {
        &self.0.identity
    }

    /// Returns the fields of the last durable commit.
    pub(crate) fn fields(&self) -> CommitFields {
        self.state().header.fields.clone()
    }

    /// Allocates a new address for a block. It follows `near`, the address of the block before, if that row is free.
    /// With `apart` it does not follow `near`, if another row is free. Returns `None` if no row is free.
    pub(crate) fn grow(&self, near: Option<u64>, apart: bool) -> Option<u64> {
        let mut state = self.state();
        let beside = near.and_then(|near| near.checked_sub(NEW)).map(|row| row + 1);
        if let Some(row) = beside.filter(|_| !apart)
            && state.free_rows.take_at(row)
        {
            return Some(NEW + row);
        }
        let mut row = state.free_rows.take(1)?.start;
        if apart
            && Some(row) == beside
            && let Some(other) = state.free_rows.take(1)
        {
            state.free_rows.give(row);
            row = other.start;
        }
        if near.is_none() {
            // Leave 63 rows, so that the blocks that follow can have the addresses after this one.
            state.free_rows.skip(63);
        }
        Some(NEW + row)
    }

    /// Frees the row of a new address that no commit has used.
    pub(crate) fn forget(&self, at: u64) {
        self.state().free_rows.give(at - NEW);
    }

    /// Promises `slots` more slots to later commits.
    pub(crate) fn promise(&self, slots: u64) {
        self.0.promised.fetch_add(slots, Ordering::Relaxed);
    }

    /// Takes back a promise of `slots` slots: they were allocated, or are not needed any more.
    pub(crate) fn break_promise(&self, slots: u64) {
        self.0.promised.fetch_sub(slots, Ordering::Relaxed);
    }

    /// Returns the number of slots promised to later commits.
    pub(crate) fn promised(&self) -> u64 {
        self.0.promised.load(Ordering::Relaxed)
    }

    /// Returns the number of slots reserved for removals.
    pub(crate) fn kept_back(&self) -> u64 {
        let slots = if self.in_place() { self.worm_blocks() } else { self.0.layout.slots.1 };
        (slots / 64).max(64)
    }

    /// Returns how many slots and how many rows can be allocated. Slots include those that evictions would free.
    pub(crate) fn room(&self) -> (u64, u64) {
        let state = self.state();
        (state.slots.free() + state.copies.len() as u64 + state.held(), state.free_rows.free())
    }

    /// Returns the capacity for blocks that wait for a dump or to be copied, and the number in use. The unit is slots,
    /// or rows in place.
    pub(crate) fn slots(&self) -> (u64, u64) {
        let state = self.state();
        match self.in_place() {
            true => (self.0.layout.rows.1, state.used_rows.count - state.forwarded.count),
            false => (self.0.layout.slots.1, state.used_slots.count),
        }
    }

    /// Returns the blocks of w, by its last known size.
    pub(crate) fn worm_blocks(&self) -> u64 {
        self.0.w.shape().sectors / self.0.layout.per_block()
    }

    /// Returns the minimum size of c in sectors, for blocks of `block` bytes.
    pub(crate) fn least(block: u32) -> u64 {
        CacheLayout::least(block)
    }

    /// Returns c and w.
    pub(crate) fn devices(&self) -> (&dyn Device, &dyn Device) {
        (&*self.0.c, &*self.0.w)
    }

    /// Looks up the present size of w.
    pub(crate) async fn look_at_worm(&self) -> Result<()> {
        self.0.w.look().await.map(drop)
    }

    /// Follows a dump that another server has written: reads go to this dump from now on.
    pub(crate) fn followed(&self, newest: NewestSuperblock, it: &DumpSuperblock) {
        let fields = &mut self.state().header.fields;
        (fields.newest, fields.next_worm, fields.root) = (newest, it.next, it.root);
        fields.next_inode = fields.next_inode.max(it.next_inode);
        fields.generation = fields.generation.max(it.generation + 1);
    }

    /// Returns the rows that are forwarded to w.
    pub(crate) fn forwarded(&self) -> Vec<u64> {
        self.state().forwarded.bits.ones().collect()
    }

    /// Returns the w-address of a row's block, if the row is forwarded. The outer `None`: the row's page is not in
    /// memory.
    pub(crate) fn worm_of_now(&self, row: u64) -> Option<Option<u64>> {
        let state = &mut *self.state();
        if row >= self.0.layout.rows.1 || !state.forwarded.bits.has(row) {
            return Some(None);
        }
        match state.rows.get(row)?.place {
            RowLocation::OnWorm(at) => Some(Some(at)),
            RowLocation::Free | RowLocation::Here(_) => Some(None),
        }
    }

    /// The same as [`worm_of_now`](Self::worm_of_now), but reads the page if it is not in memory.
    pub(crate) async fn worm_of(&self, row: u64) -> Result<Option<u64>> {
        loop {
            if let Some(found) = self.worm_of_now(row) {
                return Ok(found);
            }
            self.load_row(row).await?;
        }
    }

    /// Loads the page of a row into memory.
    pub(crate) async fn load_row(&self, row: u64) -> Result<()> {
        self.load(rows::page_of(row)).await
    }

    /// Returns the rows in use.
    pub(crate) fn used_rows(&self) -> Vec<u64> {
        self.state().used_rows.bits.ones().collect()
    }

    /// Returns the slot of a row, if it has one.
    pub(crate) async fn place_of(&self, row: u64) -> Result<Option<u64>> {
        self.load_row(row).await?;
        match self.state().rows.get(row).map(|row| row.place) {
            Some(RowLocation::Here(slot)) => Ok(Some(slot)),
            _ => Ok(None),
        }
    }

    /// Reads `count` blocks from consecutive addresses, for copying.
    pub(crate) async fn blocks(&self, at: u64, count: u64) -> Result<::bytes::Bytes> {
        self.read(at, count).await
    }

    /// Returns the sector at which a slot begins: of c, or of w in place.
    fn slot_at(&self, slot: u64) -> u64 {
        let layout = &self.0.layout;
        let (first, slots) = layout.slots;
        let column = slots / COLUMNS;
        let block = if self.0.row_order && slot < column * COLUMNS {
            slot % column * COLUMNS + slot / column
        } else {
            slot
        };
        (first + block) * layout.per_block()
    }

    fn wrong(&self, at: u64, text: impl std::fmt::Display) -> Error {
        Error::new(Wrong::Failed, format!("block {at:#x}: {text}"))
    }
}

/// Slots of a row in the seed's former slot order.
const COLUMNS: u64 = 67;

impl CwState {
    /// Returns the state of a block by its address, and its row if it has one. `None`: the row's page is not in memory.
    fn of(&mut self, at: u64) -> Option<(Is, TableRow)> {
        let Some(row) = at.checked_sub(NEW) else {
            let is = if self.copies.has(at) { Is::Read } else { Is::None };
            return Some((is, TableRow::default()));
        };
        let it = self.rows.get(row)?;
        let is = match it.place {
            RowLocation::Free => Is::None,
            RowLocation::OnWorm(worm) if self.copies.has(worm) => Is::Read,
            RowLocation::OnWorm(_) => Is::None,
            RowLocation::Here(_) if self.failed.contains(&row) => Is::Dump1,
            RowLocation::Here(_) if it.made == self.header.fields.generation => Is::Dirty,
            RowLocation::Here(_) => Is::Dump,
        };
        Some((is, it))
    }

    /// Takes up to `most` consecutive slots. If none is free, evicts a read copy, or else drops the held snapshot.
    fn take_slots(&mut self, most: u64) -> Option<std::ops::Range<u64>> {
        if self.slots.free() == 0 {
            match self.copies.evict() {
                Some(slot) => self.slots.give(slot),
                None => self.let_go(),
            }
        }
        self.slots.take(most)
    }
}

/// A read-only device: blocks by their addresses.
impl Device for Cw {
    fn shape(&self) -> Shape {
        let sectors = self.end() * self.0.layout.per_block();
        Shape { sectors, atom: 1, most: 2048, read_only: true, durable: true }
    }

    fn name(&self) -> String {
        format!("c {} {}", self.0.c.name(), self.0.w.name())
    }

    fn submit(&self, io: Io) {
        if let Err(error) = io.judge(&self.shape()) {
            return io.end(Err(error));
        }
        match io.op {
            Asked::Read => {
                let cw = self.clone();
                self.0.tasks.spawn(async move {
                    let per = cw.0.layout.per_block();
                    let result = cw.read(io.at / per, io.count / per).await;
                    io.end(result);
                });
            }
            Asked::Flush | Asked::Look => io.end(Ok(::bytes::Bytes::new())),
            Asked::Write | Asked::Discard => io.fail(Wrong::ReadOnly, "it changes by commits"),
        }
    }
}

/// Reads sectors in requests of at most 2048 sectors. If a request does not satisfy `proof`, its sectors are read one
/// by one, and returned even if the proof does not hold for them.
async fn read_all(device: &dyn Device, at: u64, count: u64, proof: Option<Proof>) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity((count * SECTOR) as usize);
    let mut next = at;
    while next < at + count {
        let piece = (at + count - next).min(2048);
        let of = |skip, count| proof.as_ref().and_then(|proof| proof.part(next - at + skip, count));
        match device.read_proven(next, piece, of(0, piece)).await {
            Ok(read) if of(0, piece).is_none_or(|proof| proof.holds(&read)) => bytes.extend_from_slice(&read),
            Err(error) if proof.is_none() => return Err(error),
            _ => {
                for n in 0..piece {
                    bytes.extend_from_slice(&device.read_proven(next + n, 1, of(n, 1)).await?);
                }
            }
        }
        next += piece;
    }
    Ok(bytes)
}
