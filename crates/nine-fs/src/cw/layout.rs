//! The encoding of everything on c and w except blocks: headers, fields, records, rows, labels, superblocks
//! (docs/disk.md).
//!
//! In: bytes of a device, or values. Out: the other form. No bytes cause a panic; invalid bytes give an error message.

use nine_proto::Time;

use super::bytes::{get16, get32, get64, put16, put32, put64};
use super::tag::{FsIdentity, sum};
use crate::ptr::{BlockPtr, NEW};

/// The version of the format that this program writes.
pub(crate) const VERSION: u32 = 1;
/// Sectors of a header.
pub(crate) const HEADER: u64 = 8;
/// Bytes of a header.
const HEADER_BYTES: usize = 4096;
/// Rows in a sector, and entries in a sector of the table of copies.
pub(crate) const ROWS: u64 = 31;
/// Bytes of a record before its fields.
const RECORD: usize = 56;
/// Bytes of an entry of a record.
pub(crate) const ENTRY: usize = 32;
/// Bytes of a waiting dump in the fields.
const WAITING: usize = 56;
/// Maximum number of dumps that wait to be copied.
pub(crate) const WAITING_MAX: usize = 64;
/// Maximum bytes of fields.
pub(crate) const FIELDS_MAX: usize = 64 + WAITING * WAITING_MAX;

const CACHE: &[u8; 8] = b"9foldC\0\0";
const WORM: &[u8; 8] = b"9foldW\0\0";
const SUPER: &[u8; 8] = b"9foldS\0\0";
const JOURNAL: &[u8; 8] = b"9foldJ\0\0";

/// The name of a dump: its date, and its number on that date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DumpName {
    pub(crate) year: u16,
    pub(crate) month: u8,
    pub(crate) day: u8,
    /// 0 for the first.
    pub(crate) number: u32,
}

/// A dump that is not on w yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingDump {
    pub(crate) generation: u32,
    pub(crate) root: BlockPtr,
    pub(crate) time: Time,
    pub(crate) date: DumpName,
    /// The w-address of its segment; 0: the segment has not begun.
    pub(crate) segment: u64,
    /// The next inode number when the dump was taken.
    pub(crate) next_inode: u64,
}

/// The newest superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NewestSuperblock {
    /// Its w-address; 0: there is none.
    pub(crate) at: u64,
    pub(crate) generation: u32,
    /// Blocks of its segment: the last one is its second copy.
    pub(crate) blocks: u32,
}

/// The values of the whole file system at a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommitFields {
    pub(crate) generation: u32,
    pub(crate) root: BlockPtr,
    pub(crate) next_inode: u64,
    pub(crate) next_worm: u64,
    pub(crate) newest: NewestSuperblock,
    pub(crate) blocks: u64,
    pub(crate) waiting: Vec<WaitingDump>,
}

fn put_ptr(bytes: &mut [u8], at: usize, ptr: BlockPtr) {
    put64(bytes, at, ptr.at);
    put32(bytes, at + 8, ptr.made);
}

fn get_ptr(bytes: &[u8], at: usize) -> BlockPtr {
    BlockPtr { at: get64(bytes, at), made: get32(bytes, at + 8) }
}

fn put_time(bytes: &mut [u8], at: usize, time: Time) {
    put64(bytes, at, time.sec as u64);
    put32(bytes, at + 8, time.nsec);
}

fn get_time(bytes: &[u8], at: usize) -> Time {
    Time { sec: get64(bytes, at) as i64, nsec: get32(bytes, at + 8).min(999_999_999) }
}

/// Takes eight bytes.
fn put_date(bytes: &mut [u8], at: usize, date: DumpName) {
    put16(bytes, at, date.year);
    (bytes[at + 2], bytes[at + 3]) = (date.month, date.day);
    put32(bytes, at + 4, date.number);
}

fn get_date(bytes: &[u8], at: usize) -> DumpName {
    let (month, day) = (bytes[at + 2], bytes[at + 3]);
    DumpName { year: get16(bytes, at), month, day, number: get32(bytes, at + 4) }
}

impl CommitFields {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 64 + WAITING * self.waiting.len()];
        put32(&mut bytes, 0, self.generation);
        put32(&mut bytes, 4, self.waiting.len() as u32);
        put_ptr(&mut bytes, 8, self.root);
        put64(&mut bytes, 24, self.next_inode);
        put64(&mut bytes, 32, self.next_worm);
        put64(&mut bytes, 40, self.newest.at);
        put32(&mut bytes, 48, self.newest.generation);
        put32(&mut bytes, 52, self.newest.blocks);
        put64(&mut bytes, 56, self.blocks);
        for (dump, bytes) in self.waiting.iter().zip(bytes[64..].chunks_exact_mut(WAITING)) {
            put32(bytes, 0, dump.generation);
            put32(bytes, 4, dump.root.made);
            put64(bytes, 8, dump.root.at);
            put_time(bytes, 16, dump.time);
            put_date(bytes, 28, dump.date);
            put64(bytes, 36, dump.segment);
            put64(bytes, 44, dump.next_inode);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.len().checked_sub(64)?;
        let count = get32(bytes, 4) as usize;
        if count > WAITING_MAX || rest != count * WAITING {
            return None;
        }
        let waiting = bytes[64..].chunks_exact(WAITING).map(|bytes| WaitingDump {
            generation: get32(bytes, 0),
            root: BlockPtr { made: get32(bytes, 4), at: get64(bytes, 8) },
            time: get_time(bytes, 16),
            date: get_date(bytes, 28),
            segment: get64(bytes, 36),
            next_inode: get64(bytes, 44),
        });
        let fields = Self {
            generation: get32(bytes, 0),
            root: get_ptr(bytes, 8),
            next_inode: get64(bytes, 24),
            next_worm: get64(bytes, 32),
            newest: NewestSuperblock {
                at: get64(bytes, 40),
                generation: get32(bytes, 48),
                blocks: get32(bytes, 52),
            },
            blocks: get64(bytes, 56),
            waiting: waiting.collect(),
        };
        let can_be = fields.generation < u32::MAX
            && fields.blocks < NEW
            && fields.next_worm <= NEW
            && fields.segments().all(|at| at <= NEW);
        can_be.then_some(fields)
    }

    /// Returns the w-addresses of the segments that have begun.
    pub(crate) fn segments(&self) -> impl Iterator<Item = u64> + '_ {
        let segments = self.waiting.iter().map(|dump| dump.segment).chain([self.newest.at]);
        segments.filter(|at| *at > 0)
    }
}

/// The location of each table on c, in blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheLayout {
    /// Bytes of a block.
    pub(crate) block: u32,
    pub(crate) journal: (u64, u64),
    /// The first block, and the number of rows.
    pub(crate) rows: (u64, u64),
    pub(crate) used_slots: u64,
    pub(crate) used_rows: u64,
    pub(crate) forwarded: u64,
    pub(crate) copies: u64,
    /// The first block, and the number of slots.
    pub(crate) slots: (u64, u64),
    /// There is no cache device: slots are blocks of w, and all tables are in an area of w.
    pub(crate) in_place: bool,
}

/// Bytes of the smallest journal.
const JOURNAL_LEN_MIN: u64 = 1 << 20;
/// Minimum number of slots.
const SLOTS_MIN: u64 = 128;

/// A w without a cache device can grow to this multiple of its first size.
const GROWTH: u64 = 16;
/// A w of at most this number of blocks has a row for each. A larger one has this number of rows, or a quarter of its
/// blocks if that is more.
const ROWS_IN_PLACE: u64 = 1 << 26;
/// Blocks of w for its labels, before everything else.
pub(crate) const LABELS: u64 = 2;

/// Returns the sectors of a bitmap (docs/block.md).
fn sectors_of_bits(bits: u64) -> u64 {
    bits.div_ceil(4032)
}

/// Returns the blocks of the journal on a device of `blocks` blocks.
fn journal_of(blocks: u64, block: u32) -> u64 {
    (blocks / 16).clamp(JOURNAL_LEN_MIN / u64::from(block), (64 << 20) / u64::from(block))
}

impl CacheLayout {
    /// Returns the layout of a device of `sectors` sectors. `None`: it is too small.
    pub(crate) fn of(sectors: u64, block: u32) -> Option<Self> {
        let per_block = u64::from(block) / 512;
        let blocks = sectors / per_block;
        let in_blocks = |sectors: u64| sectors.div_ceil(per_block);
        let journal = journal_of(blocks, block);
        // The tables before the slots grow with their number, so first leave a little too much room.
        let mut slots = blocks.checked_sub(journal + 3)?;
        loop {
            let rows = 2 * slots;
            let at_rows = 1 + journal;
            let at_used_slots = at_rows + in_blocks(rows.div_ceil(ROWS));
            let at_used_rows = at_used_slots + in_blocks(sectors_of_bits(slots));
            let at_forwarded = at_used_rows + in_blocks(sectors_of_bits(rows));
            let at_copies = at_forwarded + in_blocks(sectors_of_bits(rows));
            let at_slots = at_copies + in_blocks(slots.div_ceil(ROWS));
            if at_slots + slots < blocks {
                return (slots >= SLOTS_MIN).then_some(Self {
                    block,
                    journal: (1, journal),
                    rows: (at_rows, rows),
                    used_slots: at_used_slots,
                    used_rows: at_used_rows,
                    forwarded: at_forwarded,
                    copies: at_copies,
                    slots: (at_slots, slots),
                    in_place: false,
                });
            }
            slots = slots.checked_sub((at_slots + slots - blocks).div_ceil(2).max(1))?;
        }
    }

    /// Returns the layout of a w without a cache device: the tables in the area after its labels. `None`: w is too
    /// small.
    pub(crate) fn in_place(blocks: u64, block: u32) -> Option<Self> {
        let per_block = u64::from(block) / 512;
        let in_blocks = |sectors: u64| sectors.div_ceil(per_block);
        let journal = journal_of(blocks, block);
        // If clients change more blocks in a generation, an extra dump is taken.
        let rows = blocks.min((blocks / 4).max(ROWS_IN_PLACE));
        let used_slots = 1 + journal + in_blocks(rows.div_ceil(ROWS));
        let used_rows = used_slots + in_blocks(sectors_of_bits(GROWTH * blocks));
        let forwarded = used_rows + in_blocks(sectors_of_bits(rows));
        let layout = Self {
            block,
            journal: (1, journal),
            rows: (1 + journal, rows),
            used_slots,
            used_rows,
            forwarded,
            copies: forwarded + in_blocks(sectors_of_bits(rows)),
            slots: (0, blocks),
            in_place: true,
        };
        (blocks < 1 << 36 && blocks >= layout.front() + SLOTS_MIN).then_some(layout)
    }

    /// In place: returns the first block after the tables. The last block of the tables has headers.
    pub(crate) fn front(&self) -> u64 {
        self.copies.saturating_add(LABELS + 1)
    }

    /// In place: returns the maximum number of slots, which the bitmap of used slots limits.
    pub(crate) fn slots_most(&self) -> u64 {
        self.used_rows.saturating_sub(self.used_slots).saturating_mul(self.per_block() * 4032)
    }

    /// Returns the minimum size of a cache device in sectors.
    pub(crate) fn least(block: u32) -> u64 {
        (1..).map(|mib| mib << 11).find(|least| Self::of(*least, block).is_some()).unwrap_or_default()
    }

    /// Returns whether no table overlaps the one before it or is too large.
    pub(crate) fn is_sane(&self) -> bool {
        // In place there is no table of copies, and nothing follows it.
        let (copies, behind) =
            if self.in_place { (0, self.copies) } else { (self.slots.1.div_ceil(ROWS), self.slots.0) };
        let starts = [
            1,
            self.journal.0,
            self.rows.0,
            self.used_slots,
            self.used_rows,
            self.forwarded,
            self.copies,
            behind,
        ];
        let blocks = |sectors: u64| sectors.div_ceil(self.per_block());
        let sizes = [
            0,
            self.journal.1,
            blocks(self.rows.1.div_ceil(ROWS)),
            blocks(sectors_of_bits(self.slots.1)),
            blocks(sectors_of_bits(self.rows.1)),
            blocks(sectors_of_bits(self.rows.1)),
            blocks(copies),
        ];
        let fits = |(two, size): (&[u64], u64)| two[0].checked_add(size).is_some_and(|end| end <= two[1]);
        let enough = self.slots.1 >= SLOTS_MIN && self.journal.1 >= JOURNAL_LEN_MIN / u64::from(self.block);
        enough
            && self.slots.0 < 1 << 40
            && if self.in_place { self.slots.0 == 0 } else { self.rows.1 == 2 * self.slots.1 }
            && starts.windows(2).zip(sizes).all(fits)
    }

    /// Returns the sectors of a block.
    pub(crate) fn per_block(&self) -> u64 {
        u64::from(self.block) / 512
    }

    /// Returns the sectors of the journal.
    pub(crate) fn journal_sectors(&self) -> u64 {
        self.journal.1 * self.per_block()
    }
}

/// The header of c.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheHeader {
    pub(crate) layout: CacheLayout,
    pub(crate) identity: FsIdentity,
    pub(crate) number: u64,
    pub(crate) incarnation: u64,
    /// The sector of the journal where replay begins, and the record number there.
    pub(crate) replay: (u64, u64),
    pub(crate) fastworm: bool,
    pub(crate) row_order: bool,
    /// A recovery is in progress: the header does not count as complete yet.
    pub(crate) is_unfinished: bool,
    /// The epoch of the lease under which it was opened last; 0: none.
    pub(crate) epoch: u64,
    pub(crate) fields: CommitFields,
}

/// Checks magic, version and features, and returns the features.
fn known(bytes: &[u8], mark: &[u8; 8], what: &str, can: u32) -> Result<u32, String> {
    if bytes[..8] != *mark {
        return Err(format!("there is no {what}"));
    }
    let (version, features) = (get32(bytes, 8), get32(bytes, 12));
    if version > VERSION || features & !can != 0 {
        return Err(format!(
            "its format is newer (version {version}, features {features:#x}): it needs a newer ninefold"
        ));
    }
    Ok(features)
}

/// The offset of the epoch in a header: after the longest fields.
const EPOCH: usize = HEADER_BYTES - 12;
const _: () = assert!(160 + FIELDS_MAX <= EPOCH);

impl CacheHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        let layout = &self.layout;
        bytes[..8].copy_from_slice(CACHE);
        put32(&mut bytes, 8, VERSION);
        put32(&mut bytes, 20, layout.block);
        bytes[24..40].copy_from_slice(&self.identity);
        let words = [
            self.number,
            self.incarnation,
            layout.journal.0,
            layout.journal.1,
            layout.rows.0,
            layout.rows.1,
            layout.used_slots,
            layout.used_rows,
            layout.forwarded,
            layout.copies,
            layout.slots.0,
            layout.slots.1,
            self.replay.0,
            self.replay.1,
        ];
        words.into_iter().enumerate().for_each(|(n, word)| put64(&mut bytes, 40 + 8 * n, word));
        let options = [self.fastworm, self.row_order, layout.in_place, self.is_unfinished];
        put32(&mut bytes, 152, (0..).zip(options).map(|(bit, is)| u32::from(is) << bit).sum());
        let fields = self.fields.encode();
        put32(&mut bytes, 156, fields.len() as u32);
        bytes[160..160 + fields.len()].copy_from_slice(&fields);
        put64(&mut bytes, EPOCH, self.epoch);
        Self::seal(&mut bytes);
        bytes
    }

    /// Writes the sum of a header into its bytes.
    pub(super) fn seal(bytes: &mut [u8]) {
        let sum = sum(&bytes[..HEADER_BYTES - 4]);
        put32(bytes, HEADER_BYTES - 4, sum);
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        known(bytes, CACHE, "cache device's header", 0)?;
        if sum(&bytes[..HEADER_BYTES - 4]) != get32(bytes, HEADER_BYTES - 4) {
            return Err("the header's sum is wrong".into());
        }
        let word = |n: usize| get64(bytes, 40 + 8 * n);
        let layout = CacheLayout {
            block: get32(bytes, 20),
            journal: (word(2), word(3)),
            rows: (word(4), word(5)),
            used_slots: word(6),
            used_rows: word(7),
            forwarded: word(8),
            copies: word(9),
            slots: (word(10), word(11)),
            in_place: get32(bytes, 152) & 4 != 0,
        };
        let length = get32(bytes, 156) as usize;
        let fields =
            (length <= FIELDS_MAX).then(|| CommitFields::decode(&bytes[160..160 + length])).flatten();
        // These numbers are incremented later, so they must not overflow.
        let counted = [0, 1, 13].iter().all(|n| word(*n) < 1 << 63);
        let sane =
            counted && matches!(layout.block, 8192 | 16384 | 32768 | 65536) && layout.slots.1 < 1 << 40;
        let sane = sane && layout.rows.1 < 1 << 41;
        match fields {
            Some(fields) if sane => Ok(Self {
                layout,
                identity: bytes[24..40].try_into().expect("16 bytes"),
                number: word(0),
                incarnation: word(1),
                replay: (word(12), word(13)),
                fastworm: get32(bytes, 152) & 1 != 0,
                row_order: get32(bytes, 152) & 2 != 0,
                is_unfinished: get32(bytes, 152) & 8 != 0,
                epoch: get64(bytes, EPOCH),
                fields,
            }),
            _ => Err("the header says what cannot be".into()),
        }
    }
}

/// The location of a row's block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RowLocation {
    #[default]
    Free,
    /// In this slot.
    Here(u64),
    /// At this w-address.
    OnWorm(u64),
}

/// A row: the location of a new block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableRow {
    pub(crate) place: RowLocation,
    pub(crate) made: u32,
    /// CRC-32C of the block in its slot.
    pub(crate) sum: u32,
}

impl RowLocation {
    /// Returns the slot, if the block is in one.
    pub(crate) fn slot(self) -> Option<u64> {
        if let Self::Here(slot) = self { Some(slot) } else { None }
    }
}

const LOW: u64 = (1 << 56) - 1;

impl TableRow {
    pub(crate) fn put(self, bytes: &mut [u8]) {
        let place = match self.place {
            RowLocation::Free => 0,
            RowLocation::Here(slot) => 1 << 56 | slot,
            RowLocation::OnWorm(at) => 2 << 56 | at,
        };
        put64(bytes, 0, place);
        put32(bytes, 8, self.made);
        put32(bytes, 12, self.sum);
    }

    pub(crate) fn get(bytes: &[u8]) -> Option<Self> {
        let place = get64(bytes, 0);
        let place = match place >> 56 {
            0 => RowLocation::Free,
            1 => RowLocation::Here(place & LOW),
            2 => RowLocation::OnWorm(place & LOW),
            _ => return None,
        };
        Some(Self { place, made: get32(bytes, 8), sum: get32(bytes, 12) })
    }
}

/// Writes the sum of a sector of rows or copies.
pub(crate) fn seal_sector(bytes: &mut [u8], number: u64) {
    put32(bytes, 0, 0);
    put64(bytes, 4, number);
    let sum = sum(&bytes[4..512]);
    put32(bytes, 0, sum);
    put64(bytes, 4, 0);
}

/// Returns whether the sum of a table's sector is right.
pub(crate) fn is_sector(bytes: &[u8], number: u64) -> bool {
    let mut copy: [u8; 512] = bytes[..512].try_into().expect("a sector");
    seal_sector(&mut copy, number);
    copy[..4] == bytes[..4]
}

/// A change of a row, in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowChange {
    pub(crate) number: u64,
    pub(crate) row: TableRow,
    /// The slot that became free.
    pub(crate) left: Option<u64>,
}

/// A record of the journal: one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalRecord {
    pub(crate) incarnation: u64,
    pub(crate) number: u64,
    pub(crate) fields: CommitFields,
    pub(crate) entries: Vec<RowChange>,
}

impl JournalRecord {
    /// Returns the sectors of a record with this number of waiting dumps and entries.
    pub(crate) fn sectors(waiting: usize, entries: usize) -> u64 {
        (RECORD + 64 + WAITING * waiting + ENTRY * entries).div_ceil(512) as u64
    }

    pub(crate) fn encode(&self, identity: &FsIdentity) -> Vec<u8> {
        let fields = self.fields.encode();
        let sectors = Self::sectors(self.fields.waiting.len(), self.entries.len());
        let mut bytes = vec![0; sectors as usize * 512];
        bytes[..8].copy_from_slice(JOURNAL);
        let length = bytes.len() as u32;
        put32(&mut bytes, 12, length);
        bytes[16..32].copy_from_slice(identity);
        put64(&mut bytes, 32, self.incarnation);
        put64(&mut bytes, 40, self.number);
        put32(&mut bytes, 48, fields.len() as u32);
        put32(&mut bytes, 52, self.entries.len() as u32);
        bytes[RECORD..RECORD + fields.len()].copy_from_slice(&fields);
        let behind = &mut bytes[RECORD + fields.len()..];
        for (entry, bytes) in self.entries.iter().zip(behind.chunks_exact_mut(ENTRY)) {
            put64(bytes, 0, entry.number);
            entry.row.put(&mut bytes[8..24]);
            put64(bytes, 24, entry.left.unwrap_or(u64::MAX));
        }
        Self::seal(&mut bytes);
        bytes
    }

    /// Writes the sum of a record into its bytes.
    pub(super) fn seal(bytes: &mut [u8]) {
        let sum = sum(&bytes[12..]);
        put32(bytes, 8, sum);
    }

    /// Returns the bytes of the record that begins with this sector, if the sector begins the expected record.
    pub(crate) fn length(sector: &[u8], identity: &FsIdentity, incarnation: u64, number: u64) -> Option<u64> {
        let length = u64::from(get32(sector, 12));
        let right = sector[..8] == *JOURNAL
            && sector[16..32] == *identity
            && get64(sector, 32) == incarnation
            && get64(sector, 40) == number;
        (right && length >= 512 && length.is_multiple_of(512)).then_some(length)
    }

    /// Decodes a whole record, of the length that [`length`](Self::length) has returned. `None`: it is invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if sum(&bytes[12..]) != get32(bytes, 8) {
            return None;
        }
        let (fields, count) = (get32(bytes, 48) as usize, get32(bytes, 52) as usize);
        let behind = RECORD.checked_add(fields)?;
        let end = count.checked_mul(ENTRY)?.checked_add(behind)?;
        let fields = CommitFields::decode(bytes.get(RECORD..behind)?)?;
        let entries = bytes.get(behind..end)?.chunks_exact(ENTRY).map(|bytes| {
            let left = get64(bytes, 24);
            let left = (left != u64::MAX).then_some(left);
            Some(RowChange { number: get64(bytes, 0), row: TableRow::get(&bytes[8..24])?, left })
        });
        let entries = entries.collect::<Option<_>>()?;
        Some(Self { incarnation: get64(bytes, 32), number: get64(bytes, 40), fields, entries })
    }
}

/// The label of w, in its first two blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WormLabel {
    pub(crate) block: u32,
    pub(crate) identity: FsIdentity,
    pub(crate) made: Time,
    pub(crate) name: String,
    /// Without a cache device: the first block after the tables, and the blocks of w at its creation. Otherwise zeros.
    pub(crate) in_place: (u64, u64),
}

/// Maximum bytes of a name in a label.
pub(crate) const NAME_MAX: usize = 64;
/// The feature flag of a worm without a cache device.
const IN_PLACE: u32 = 1;

impl WormLabel {
    /// Encodes it into the content of a block.
    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(WORM);
        put32(bytes, 8, VERSION);
        put32(bytes, 20, self.block);
        bytes[24..40].copy_from_slice(&self.identity);
        put_time(bytes, 40, self.made);
        bytes[52..52 + self.name.len()].copy_from_slice(self.name.as_bytes());
        if self.in_place.0 > 0 {
            [12, 16].into_iter().for_each(|at| put32(bytes, at, IN_PLACE));
            put64(bytes, 116, self.in_place.0);
            put64(bytes, 124, self.in_place.1);
        }
    }

    /// Returns the w-address of the first segment.
    pub(crate) fn first(&self) -> u64 {
        self.in_place.0.max(LABELS)
    }

    /// Decodes the first bytes of a block. The label itself gives the block size.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let features = known(bytes, WORM, "worm's label", IN_PLACE)?;
        let block = get32(bytes, 20);
        if !matches!(block, 8192 | 16384 | 32768 | 65536) {
            return Err(format!("its label says blocks of {block} bytes"));
        }
        let in_place = match features {
            0 => (0, 0),
            _ => (get64(bytes, 116), get64(bytes, 124)),
        };
        if features != 0 && !(LABELS + 1..=in_place.1.min(NEW)).contains(&in_place.0) {
            return Err("its label says what cannot be".into());
        }
        let name = bytes[52..52 + NAME_MAX].split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(Self {
            block,
            identity: bytes[24..40].try_into().expect("16 bytes"),
            made: get_time(bytes, 40),
            name: String::from_utf8_lossy(name).into(),
            in_place,
        })
    }
}

/// A superblock: the description of a dump on w.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DumpSuperblock {
    pub(crate) generation: u32,
    pub(crate) root: BlockPtr,
    pub(crate) time: Time,
    pub(crate) date: DumpName,
    /// The w-address of the superblock before, or 0; and the blocks of its segment.
    pub(crate) before: (u64, u32),
    /// The w-address of the next segment.
    pub(crate) next: u64,
    pub(crate) next_inode: u64,
    /// Blocks of the segment.
    pub(crate) blocks: u64,
    /// The epoch of the lease under which it was written (docs/lease.md); 0: none.
    pub(crate) epoch: u64,
    /// Without a cache device: no block from here on was in use when it was written.
    pub(crate) behind: u64,
}

impl WaitingDump {
    /// Returns whether this superblock is that of the waiting dump.
    pub(crate) fn became(&self, it: &DumpSuperblock) -> bool {
        (it.generation, it.time) == (self.generation, self.time)
    }
}

impl DumpSuperblock {
    /// Encodes it into the content of a block.
    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(SUPER);
        put32(bytes, 8, VERSION);
        put32(bytes, 12, self.generation);
        put_ptr(bytes, 16, self.root);
        put_time(bytes, 32, self.time);
        put_date(bytes, 44, self.date);
        put32(bytes, 52, self.before.1);
        let words = [self.before.0, self.next, self.next_inode, self.blocks];
        words.into_iter().enumerate().for_each(|(n, word)| put64(bytes, 56 + 8 * n, word));
        put64(bytes, 88, self.epoch);
        put64(bytes, 96, self.behind);
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes[..8] != *SUPER {
            return Err("there is no superblock".into());
        }
        if get32(bytes, 8) > VERSION {
            return Err("the superblock is of a newer version: it needs a newer ninefold".into());
        }
        let it = Self {
            generation: get32(bytes, 12),
            root: get_ptr(bytes, 16),
            time: get_time(bytes, 32),
            date: get_date(bytes, 44),
            before: (get64(bytes, 56), get32(bytes, 52)),
            next: get64(bytes, 64),
            next_inode: get64(bytes, 72),
            blocks: get64(bytes, 80),
            epoch: get64(bytes, 88),
            behind: get64(bytes, 96),
        };
        match [it.before.0, it.next, it.blocks, it.behind].iter().all(|place| *place <= NEW) {
            true => Ok(it),
            false => Err("the superblock says what cannot be".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> CommitFields {
        let date = DumpName { year: 2026, month: 11, day: 21, number: 1 };
        let time = Time { sec: -5, nsec: 7 };
        let root = BlockPtr { at: 1 << 47 | 9, made: 4 };
        let waiting = vec![WaitingDump { generation: 4, root, time, date, segment: 12, next_inode: 70 }; 3];
        CommitFields {
            generation: 5,
            root,
            next_inode: 77,
            next_worm: 99,
            newest: NewestSuperblock { at: 2, generation: 3, blocks: 9 },
            blocks: 1000,
            waiting,
        }
    }

    #[test]
    fn everything_fits_and_nothing_overlaps() {
        for block in [8192, 16384, 32768, 65536] {
            for sectors in (20_000..400_000).step_by(7919).chain([1 << 24, 1 << 31, 1 << 36]) {
                let Some(layout) = CacheLayout::of(sectors, block) else {
                    assert!(sectors < 40_000, "{sectors} sectors of blocks of {block}");
                    continue;
                };
                let per = layout.per_block();
                let (slots, rows) = (layout.slots.1, layout.rows.1);
                assert_eq!(rows, 2 * slots);
                let ends = [
                    (1, layout.journal.0),
                    (layout.journal.0 + layout.journal.1, layout.rows.0),
                    (layout.rows.0 + rows.div_ceil(31).div_ceil(per), layout.used_slots),
                    (layout.used_slots + slots.div_ceil(4032).div_ceil(per), layout.used_rows),
                    (layout.used_rows + rows.div_ceil(4032).div_ceil(per), layout.forwarded),
                    (layout.forwarded + rows.div_ceil(4032).div_ceil(per), layout.copies),
                    (layout.copies + slots.div_ceil(31).div_ceil(per), layout.slots.0),
                    (layout.slots.0 + slots, sectors / per),
                ];
                assert!(ends.iter().all(|(end, next)| end <= next), "{ends:?}");
                let left = sectors / per - layout.slots.0 - slots;
                assert!(left <= 4 + slots / 100, "{left} blocks of {sectors} sectors are left over");
            }
        }
    }

    #[test]
    fn without_a_cache_all_lies_before_the_places_and_the_bits_can_grow() {
        for block in [8192, 16384, 32768, 65536] {
            for blocks in (300..9000).step_by(797).chain([1 << 20, 1 << 30, (1 << 35) + 7]) {
                let Some(layout) = CacheLayout::in_place(blocks, block) else {
                    assert!(blocks < 1000, "{blocks} blocks of {block}");
                    continue;
                };
                assert!(layout.is_sane() && layout.slots_most() >= 16 * blocks);
                let grown = CacheLayout { slots: (0, layout.slots_most()), ..layout.clone() };
                assert!(grown.is_sane());
                let over = CacheLayout { slots: (0, layout.slots_most() + 1), ..layout.clone() };
                assert!(!over.is_sane());
                assert!(blocks < 1 << 14 || layout.front() < blocks / 12, "{} of {blocks}", layout.front());
                let label = WormLabel {
                    block,
                    identity: [4; 16],
                    made: Time { sec: 1, nsec: 2 },
                    name: "alone".into(),
                    in_place: (layout.front(), blocks),
                };
                let mut bytes = vec![0; 512];
                label.encode(&mut bytes);
                assert_eq!(WormLabel::decode(&bytes), Ok(label));
            }
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let layout = CacheLayout::of(1 << 20, 16384).unwrap();
        let header = CacheHeader {
            layout,
            identity: [3; 16],
            number: 8,
            incarnation: 2,
            replay: (40, 17),
            fastworm: true,
            row_order: false,
            is_unfinished: true,
            epoch: 33,
            fields: fields(),
        };
        assert_eq!(CacheHeader::decode(&header.encode()), Ok(header));
        let rows = [RowLocation::Free, RowLocation::Here(7), RowLocation::OnWorm(1 << 46)]
            .map(|place| TableRow { place, made: 4, sum: 0xdead_beef });
        let entry = |(number, row)| RowChange { number: number as u64, row, left: (number > 0).then_some(9) };
        let entries = rows.into_iter().enumerate().map(entry).collect();
        let record = JournalRecord { incarnation: 2, number: 17, fields: fields(), entries };
        let bytes = record.encode(&[3; 16]);
        assert_eq!(JournalRecord::length(&bytes, &[3; 16], 2, 17), Some(bytes.len() as u64));
        assert_eq!(JournalRecord::length(&bytes, &[3; 16], 1, 17), None);
        assert_eq!(JournalRecord::decode(&bytes), Some(record));
    }

    #[test]
    fn a_header_or_record_with_another_bit_is_none() {
        let layout = CacheLayout::of(1 << 20, 16384).unwrap();
        let header = CacheHeader {
            layout,
            identity: [3; 16],
            number: 8,
            incarnation: 2,
            replay: (40, 17),
            fastworm: true,
            row_order: false,
            is_unfinished: true,
            epoch: 0,
            fields: fields(),
        };
        let mut bytes = header.encode();
        for bit in (0..bytes.len() * 8).step_by(13) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(CacheHeader::decode(&bytes).is_err());
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let record = JournalRecord { incarnation: 2, number: 17, fields: fields(), entries: Vec::new() };
        let mut bytes = record.encode(&[3; 16]);
        for bit in 8 * 8..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(JournalRecord::decode(&bytes).is_none(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_sector_of_rows_knows_its_place() {
        let mut sector = [0; 512];
        TableRow { place: RowLocation::Here(3), made: 1, sum: 2 }.put(&mut sector[16..32]);
        seal_sector(&mut sector, 5);
        assert!(is_sector(&sector, 5) && !is_sector(&sector, 6));
        sector[20] ^= 1;
        assert!(!is_sector(&sector, 5));
    }
}
