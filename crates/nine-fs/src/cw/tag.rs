//! The tag, the last 64 bytes of a block: its kind, owner and address (docs/disk.md, "Blocks").
//!
//! In: the bytes of a block. Out: whether it is the expected block. No bytes cause a panic.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

/// Bytes of a tag.
pub(crate) const TAG: usize = 64;

/// Identifies a file system: random, chosen when it is created.
pub(crate) type FsIdentity = [u8; 16];

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BlockKind {
    File = 1,
    Leaf = 2,
    Branch = 3,
    Super = 4,
    Label = 5,
}

/// The contents of a tag, without the identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockTag {
    pub(crate) kind: BlockKind,
    /// The generation in which the block was created.
    pub(crate) made: u32,
    /// Its address.
    pub(crate) at: u64,
    /// The inode for a file's block; for a node the inode of its first key.
    pub(crate) owner: u64,
    /// The number of the block in its file; the level of a node.
    pub(crate) index: u64,
}

/// Returns the CRC-32C of `bytes`.
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(Crc32Iscsi, bytes) as u32
}

impl BlockTag {
    /// Writes the tag, without the sum, into the end of a block.
    pub(crate) fn put(self, block: &mut [u8], identity: &FsIdentity) {
        let end = block.len();
        let tag = &mut block[end - TAG..];
        tag.fill(0);
        (tag[0], tag[1]) = (self.kind as u8, 1);
        tag[4..8].copy_from_slice(&self.made.to_le_bytes());
        tag[8..16].copy_from_slice(&self.at.to_le_bytes());
        tag[16..24].copy_from_slice(&self.owner.to_le_bytes());
        tag[24..32].copy_from_slice(&self.index.to_le_bytes());
        tag[32..48].copy_from_slice(identity);
    }

    /// Writes the tag and the sum into the end of a block with complete content. Returns the sum.
    pub(crate) fn seal(self, block: &mut [u8], identity: &FsIdentity) -> u32 {
        self.put(block, identity);
        let end = block.len();
        let sum = sum(&block[..end - 4]);
        block[end - 4..].copy_from_slice(&sum.to_le_bytes());
        sum
    }

    /// Returns whether the tag of a block says that it is a node.
    pub(crate) fn is_node(block: &[u8]) -> bool {
        matches!(block[block.len() - TAG], 2 | 3)
    }

    /// Returns the generation in the tag of a block.
    pub(crate) fn made(block: &[u8]) -> u32 {
        let at = block.len() - TAG + 4;
        u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"))
    }

    /// Returns the owner and the index in the tag of a block.
    pub(crate) fn whose(block: &[u8]) -> (u64, u64) {
        let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
        let tag = block.len() - TAG;
        (word(tag + 16), word(tag + 24))
    }

    /// Returns the tag of a block if its sum and identity are right, or else a description of the mismatch.
    pub(crate) fn open(block: &[u8], identity: &FsIdentity) -> Result<Self, &'static str> {
        let end = block.len();
        if sum(&block[..end - 4]).to_le_bytes() != block[end - 4..] {
            return Err("its sum is wrong");
        }
        let tag = &block[end - TAG..];
        if tag[32..48] != *identity {
            return Err("it is another file system's");
        }
        let kind = match tag[0] {
            1 => BlockKind::File,
            2 => BlockKind::Leaf,
            3 => BlockKind::Branch,
            4 => BlockKind::Super,
            5 => BlockKind::Label,
            _ => return Err("it is of no known kind"),
        };
        if tag[1] != 1 {
            return Err("it is of a newer version");
        }
        let word = |at: usize| u64::from_le_bytes(tag[at..at + 8].try_into().expect("eight bytes"));
        let made = u32::from_le_bytes(tag[4..8].try_into().expect("four bytes"));
        Ok(Self { kind, made, at: word(8), owner: word(16), index: word(24) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_known_again_and_no_bit_of_it_may_differ() {
        let tag = BlockTag { kind: BlockKind::Leaf, made: 7, at: 1 << 47, owner: 3, index: 2 };
        let mut block: Vec<u8> = (0..8192).map(|n| (n * 7) as u8).collect();
        let sum = tag.seal(&mut block, &[9; 16]);
        assert_eq!(block[8188..], sum.to_le_bytes());
        assert_eq!(BlockTag::open(&block, &[9; 16]), Ok(tag));
        assert_eq!(BlockTag::open(&block, &[8; 16]), Err("it is another file system's"));
        for bit in (0..8192 * 8).step_by(61) {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BlockTag::open(&block, &[9; 16]), Err("its sum is wrong"));
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn the_sum_is_the_castagnoli_one() {
        assert_eq!(sum(b"123456789"), 0xe306_9283);
    }
}
