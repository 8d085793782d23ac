//! Bitmaps, and their form on a disk: docs/block.md, "Bits on a disk".

use bytes::Bytes;

use crate::device::SECTOR;

/// Bits in a sector of a map.
pub(crate) const PER_SECTOR: u64 = 4032;

/// Words of bits in a sector.
const WORDS: usize = 63;

/// A bitmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    words: Vec<u64>,
    len: u64,
}

impl Bits {
    /// Creates a bitmap of `len` bits, all 0.
    pub fn new(len: u64) -> Self {
        Self { words: vec![0; len.div_ceil(64) as usize], len }
    }

    /// Returns the number of bits.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Changes the number of bits; new ones are 0.
    pub fn resize(&mut self, len: u64) {
        self.words.resize(len.div_ceil(64) as usize, 0);
        self.len = len;
    }

    /// Returns whether a bit is 1.
    pub fn has(&self, bit: u64) -> bool {
        self.words[(bit / 64) as usize] & (1 << (bit % 64)) != 0
    }

    /// Sets a bit to 1.
    ///
    /// # Panics
    /// If there is no such bit. That is a bug of the caller.
    pub fn set(&mut self, bit: u64) {
        assert!(bit < self.len, "bit {bit} of {}", self.len);
        self.words[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    /// Sets a bit to 0.
    pub fn unset(&mut self, bit: u64) {
        self.words[(bit / 64) as usize] &= !(1 << (bit % 64));
    }

    /// Sets all bits to 1.
    pub fn fill(&mut self) {
        (0..self.len).for_each(|bit| self.set(bit));
    }

    /// Sets all bits to 0.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Returns the bits that are 1, in rising order.
    pub fn ones(&self) -> impl Iterator<Item = u64> + '_ {
        let words = self.words.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(at, word)| {
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| at as u64 * 64 + bit)
        })
    }

    /// Returns the number of bits that are 1.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns whether all bits are 0.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Clears the bits that are 0 in `other`.
    pub fn keep(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(to, from)| *to &= from);
    }

    /// Clears the bits that are 1 in `other`.
    pub fn without(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(to, from)| *to &= !from);
    }

    /// Sets the bits that are 1 in `other`.
    pub fn add(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(to, from)| *to |= from);
    }

    /// Returns the sectors of the map.
    pub fn sectors(&self) -> u64 {
        self.len.div_ceil(PER_SECTOR)
    }

    fn part(&self, sector: u64) -> &[u64] {
        let from = sector as usize * WORDS;
        &self.words[from..(from + WORDS).min(self.words.len())]
    }

    /// Returns a sector of the map, as it lies on a disk.
    pub fn sector(&self, sector: u64) -> Bytes {
        let mut bytes = vec![0; SECTOR as usize];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.part(sector)) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let sum = sum(&bytes[..504], Some(sector));
        bytes[504..].copy_from_slice(&sum.to_le_bytes());
        bytes.into()
    }

    /// Returns whether the sum of a sector of a map is right.
    pub fn is_right(sector: u64, bytes: &[u8]) -> bool {
        sum(&bytes[..504], Some(sector)).to_le_bytes() == bytes[504..512]
    }

    /// Reads a sector of the map from a disk. If its sum is wrong, sets all its bits to 1 and returns false.
    pub fn take(&mut self, sector: u64, bytes: &[u8]) -> bool {
        let right = Self::is_right(sector, bytes);
        let from = sector * PER_SECTOR;
        for bit in from..(from + PER_SECTOR).min(self.len) {
            let at = (bit - from) as usize;
            match !right || bytes[at / 8] & (1 << (at % 8)) != 0 {
                true => self.set(bit),
                false => self.unset(bit),
            }
        }
        right
    }

    /// Returns the sectors of the map in which this has a 1 that `other` has not.
    pub fn more_than(&self, other: &Self) -> Vec<u64> {
        let more =
            |sector: &u64| self.part(*sector).iter().zip(other.part(*sector)).any(|(a, b)| a & !b != 0);
        (0..self.sectors()).filter(more).collect()
    }

    /// Returns the sectors of the map that differ.
    pub fn unlike(&self, other: &Self) -> Vec<u64> {
        (0..self.sectors()).filter(|sector| self.part(*sector) != other.part(*sector)).collect()
    }

    /// Copies a sector of the map from `other`.
    pub fn copy(&mut self, other: &Self, sector: u64) {
        let from = sector as usize * WORDS;
        let part = other.part(sector);
        self.words[from..from + part.len()].copy_from_slice(part);
    }
}

/// Returns the FNV-1a sum, which detects accidental changes only.
pub(crate) fn sum(bytes: &[u8], number: Option<u64>) -> u64 {
    let number = number.map(u64::to_le_bytes);
    let bytes = bytes.iter().chain(number.iter().flatten());
    bytes
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_read_as_it_was_written() {
        for len in [1, 63, 64, 4031, 4032, 4033, 9000] {
            let mut bits = Bits::new(len);
            (0..len).filter(|bit| bit % 7 == 3 || bit + 1 == len).for_each(|bit| bits.set(bit));
            let mut read = Bits::new(len);
            for sector in 0..bits.sectors() {
                assert!(read.take(sector, &bits.sector(sector)));
            }
            assert_eq!(read, bits);
            assert_eq!(read.ones().count() as u64, read.count());
        }
    }

    #[test]
    fn what_is_not_right_counts_as_ones() {
        let mut read = Bits::new(5000);
        assert!(!read.take(1, &[0; 512]));
        assert_eq!(read.count(), 5000 - PER_SECTOR);
        assert!(!read.take(0, &Bits::new(5000).sector(1)), "another's place");
        assert_eq!(read.count(), 5000);
    }
}
