//! Fuzzing: sectors and blocks outside the tree, with valid sums, and their locations.

use super::layout::JournalRecord;
use super::layout::{ROWS, is_sector, seal_sector};
use super::tag::sum;
use super::{
    BlockTag, CacheHeader, CacheLayout, DumpSuperblock, RowLocation, TAG, TableRow, WormLabel, get32, get64,
    put32, put64,
};

/// The identity of test archives.
const IDENTITY: [u8; 16] = [7; 16];

/// Decodes any bytes as each structure on c and w outside the tree.
pub(crate) fn formats(data: &[u8]) {
    let mut header = vec![0; 4096];
    header[..8].copy_from_slice(b"9foldC\0\0");
    fill(&mut header[8..], data);
    CacheHeader::seal(&mut header);
    if let Ok(header) = CacheHeader::decode(&header) {
        let again = header.encode();
        assert_eq!(CacheHeader::decode(&again), Ok(header.clone()));
        let _ = header.layout.is_sane();
    }
    let mut record = vec![0; data.len().next_multiple_of(512).max(512)];
    fill(&mut record[12..], data);
    record[..8].copy_from_slice(b"9foldJ\0\0");
    JournalRecord::seal(&mut record);
    let _ = JournalRecord::length(&record[..512], &IDENTITY, get64(&record, 32), get64(&record, 40));
    if let Some(it) = JournalRecord::decode(&record) {
        let again = it.encode(&IDENTITY);
        assert_eq!(JournalRecord::decode(&again), Some(it));
    }
    let mut block = vec![0; 8192];
    fill(&mut block, data);
    for mark in [b"9foldW\0\0", b"9foldS\0\0"] {
        block[..8].copy_from_slice(mark);
        if let Ok(label) = WormLabel::decode(&block) {
            let mut again = vec![0; 8192];
            label.encode(&mut again);
            assert_eq!(WormLabel::decode(&again).map(|again| again.block), Ok(label.block));
        }
        if let Ok(it) = DumpSuperblock::decode(&block) {
            let mut again = vec![0; 8192];
            it.encode(&mut again);
            assert_eq!(DumpSuperblock::decode(&again), Ok(it));
        }
    }
    let end = block.len() - TAG;
    fill(&mut block[end..], data);
    seal_block(&mut block);
    let identity = block[end + 32..end + 48].try_into().expect("16 bytes");
    if let Ok(tag) = BlockTag::open(&block, &identity) {
        assert_eq!(
            (BlockTag::made(&block), BlockTag::open(&block, &[9; 16]).is_ok()),
            (tag.made, identity == [9; 16])
        );
    }
    let mut sector = [0; 512];
    fill(&mut sector[16..], data);
    seal_sector(&mut sector, 3);
    assert!(is_sector(&sector, 3) && !is_sector(&sector, 4));
    for bytes in sector[16..].chunks_exact(16) {
        if let Some(row) = TableRow::get(bytes) {
            let mut again = [0; 16];
            row.put(&mut again);
            assert_eq!(TableRow::get(&again), Some(row));
        }
    }
}

fn fill(bytes: &mut [u8], data: &[u8]) {
    let len = bytes.len().min(data.len());
    bytes[..len].copy_from_slice(&data[..len]);
}

/// Writes the sum of a block, without looking at its tag.
fn seal_block(block: &mut [u8]) -> u32 {
    let end = block.len() - 4;
    let sum = sum(&block[..end]);
    put32(block, end, sum);
    sum
}

/// A part of a disk with its own sum.
#[derive(Clone)]
pub(crate) struct DiskUnit {
    /// On w; otherwise on c.
    pub(crate) on_worm: bool,
    /// Its first sectors: copies are changed together.
    pub(crate) at: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
    sum: UnitSum,
    /// Where its sum is also recorded: the unit, and the offset in it.
    pub(crate) noted: Vec<(usize, usize)>,
}

#[derive(Clone, Copy)]
enum UnitSum {
    Header,
    Record,
    /// The sector with this number of a table.
    Table(u64),
    /// The sector with this number of a bitmap.
    Bits(u64),
    Block,
}

impl DiskUnit {
    /// Updates its sum. Returns the new sum of a block.
    pub(crate) fn seal(&mut self) -> Option<u32> {
        match self.sum {
            UnitSum::Header => CacheHeader::seal(&mut self.bytes),
            UnitSum::Record => JournalRecord::seal(&mut self.bytes),
            UnitSum::Table(number) => seal_sector(&mut self.bytes, number),
            UnitSum::Bits(number) => {
                let number = number.to_le_bytes();
                let sum =
                    self.bytes[..504].iter().chain(&number).fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
                        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
                    });
                put64(&mut self.bytes, 504, sum);
            }
            UnitSum::Block => return Some(seal_block(&mut self.bytes)),
        }
        None
    }
}

/// Returns all valid units that an archive has written on these disks.
pub(crate) fn units(c: &[u8], w: &[u8]) -> Vec<DiskUnit> {
    let letters =
        [0, 8].map(|at| CacheHeader::decode(&c[at * 512..][..4096]).expect("both letters are right"));
    let letter = if letters[0].number > letters[1].number { 0 } else { 8 };
    let header = letters[letter / 8].clone();
    let (layout, per) = (&header.layout, header.layout.per_block());
    let mut units: Vec<DiskUnit> = Vec::new();
    let mut add = |on_worm: bool, at: Vec<u64>, sectors: u64, sum| {
        let disk = if on_worm { w } else { c };
        let bytes = disk[at[0] as usize * 512..][..sectors as usize * 512].to_vec();
        if bytes.iter().any(|byte| *byte != 0) {
            units.push(DiskUnit { on_worm, at, bytes, sum, noted: Vec::new() });
        }
    };
    let last = (c.len() as u64 / 512 / per - 1) * per;
    add(false, vec![letter as u64, last + letter as u64], 8, UnitSum::Header);
    let (mut at, mut number) = header.replay;
    while at < layout.journal_sectors() {
        let from = layout.journal.0 * per + at;
        let sector = &c[from as usize * 512..][..512];
        let Some(length) = JournalRecord::length(sector, &header.identity, header.incarnation, number) else {
            break;
        };
        add(false, vec![from], length / 512, UnitSum::Record);
        (at, number) = (at + length / 512, number + 1);
    }
    let slots = layout.slots.1;
    for n in 0..layout.rows.1.div_ceil(ROWS) {
        add(false, vec![layout.rows.0 * per + n], 1, UnitSum::Table(n));
    }
    for n in 0..slots.div_ceil(ROWS) {
        add(false, vec![layout.copies * per + n], 1, UnitSum::Table(n));
    }
    for (first, len) in
        [(layout.used_slots, slots), (layout.used_rows, 2 * slots), (layout.forwarded, 2 * slots)]
    {
        (0..len.div_ceil(4032)).for_each(|n| add(false, vec![first * per + n], 1, UnitSum::Bits(n)));
    }
    (0..w.len() as u64 / 512 / per).for_each(|n| add(true, vec![n * per], per, UnitSum::Block));
    (0..slots).for_each(|n| add(false, vec![(layout.slots.0 + n) * per], per, UnitSum::Block));
    notes(&mut units, layout);
    units
}

/// Finds the copies of the sums of blocks in slots: in rows, in tables or in the journal.
fn notes(units: &mut [DiskUnit], layout: &CacheLayout) {
    let mut found = Vec::new();
    for (n, unit) in units.iter().enumerate() {
        let step = match unit.sum {
            UnitSum::Table(_) => 16,
            UnitSum::Record => 8,
            _ => continue,
        };
        for place in (16..unit.bytes.len() - 15).step_by(step) {
            if let Some(TableRow { place: RowLocation::Here(slot), .. }) =
                TableRow::get(&unit.bytes[place..place + 16])
            {
                let at = layout.slots.0.saturating_add(slot).saturating_mul(layout.per_block());
                found.push((at, get32(&unit.bytes, place + 12), n, place + 12));
            }
        }
    }
    for unit in units.iter_mut().filter(|unit| !unit.on_worm && matches!(unit.sum, UnitSum::Block)) {
        let sum = get32(&unit.bytes, unit.bytes.len() - 4);
        let of_it = found.iter().filter(|(at, noted, ..)| *at == unit.at[0] && *noted == sum);
        unit.noted = of_it.map(|(.., n, place)| (*n, *place)).collect();
    }
}
