//! A node of the tree, as it lies in a block (docs/disk.md, "The tree").
//!
//! In: the content of a block. Out: its cells in the order of their keys, for reading and changing.
//!
//! Always holds: [`check`] takes any bytes. All other functions require a node that it has accepted, and leave it
//! valid. A content is shorter than 2^16 bytes, so offsets fit into two bytes. All sums are computed in `usize`.

use std::cmp::Ordering;
use std::ops::Range;

use crate::ptr::BlockPtr;

/// Bytes before the cell offsets.
pub(crate) const NODE_HEAD_LEN: usize = 16;
/// Bytes of a cell offset.
const PLACE: usize = 2;
/// Bytes of a cell before its key.
const SIZES: usize = 4;
/// Bytes of a pointer, the value of a branch's cell.
pub(crate) const POINTER: usize = 12;
/// Maximum bytes of a key.
pub(crate) const KEY_MAX: usize = 300;
/// Maximum levels of a tree.
pub(crate) const LEVELS: usize = 16;

// Offsets of the fields of the head.
const LEN: usize = 0;
const BEGIN: usize = 2;
const HOLES: usize = 4;
const LEVEL: usize = 6;

/// Checks that these bytes are a valid leaf or branch. The error describes the first violation.
pub(crate) fn check(content: &[u8], is_leaf: bool) -> Result<(), &'static str> {
    let must = |holds: bool, wrong| if holds { Ok(()) } else { Err(wrong) };
    must((NODE_HEAD_LEN..=usize::from(u16::MAX)).contains(&content.len()), "no size of a node")?;
    let node = NodeRef(content);
    must((node.level() == 0) == is_leaf, "a leaf for a branch, or a branch for a leaf")?;
    must(usize::from(node.level()) < LEVELS, "too high a level")?;
    must(
        content[LEVEL + 1..NODE_HEAD_LEN].iter().all(|byte| *byte == 0),
        "bytes of the head that are not 0",
    )?;
    let begin = node.word(BEGIN);
    must(slot(node.len()) <= begin, "cells that begin before their places end")?;
    must(begin <= content.len(), "cells that begin behind the end")?;
    must(is_leaf || node.len() > 0, "a branch without children")?;
    let mut cells = Vec::with_capacity(node.len());
    for i in 0..node.len() {
        let at = node.place(i);
        must(begin <= at && at + SIZES <= content.len(), "a cell at a wrong place")?;
        let (key, value) = (node.word(at), node.word(at + 2));
        let size = SIZES + key + value;
        must(at + size <= content.len(), "a cell that goes beyond the end")?;
        must(key <= KEY_MAX && size <= node.cell_most(), "a cell that is too large")?;
        must(is_leaf || value == POINTER, "a branch's value that is no pointer")?;
        must(is_leaf || i > 0 || key == 0, "a branch's first key that is not empty")?;
        must(i == 0 || node.key(i - 1) < node.key(i), "keys that do not rise")?;
        cells.push((at, at + size));
    }
    cells.sort_unstable();
    must(cells.windows(2).all(|two| two[0].1 <= two[1].0), "cells that overlap")?;
    let sum: usize = cells.iter().map(|(at, end)| end - at).sum();
    must(begin + node.word(HOLES) + sum == content.len(), "a wrong number of free bytes")
}

/// Returns the cells of a node.
pub(crate) fn cells(content: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let node = NodeRef(content);
    (0..node.len()).map(move |i| node.cell(i))
}

/// Returns the children of a branch, each with its lowest key.
pub(crate) fn children(content: &[u8]) -> impl Iterator<Item = (&[u8], BlockPtr)> {
    let node = NodeRef(content);
    (0..node.len()).map(move |i| (node.key(i), node.child(i)))
}

/// Returns whether the keys of a node are within these bounds. The first key of a branch is not checked: it stands for
/// the lower bound.
pub(crate) fn within(node: NodeRef<'_>, low: &[u8], high: Option<&[u8]>) -> bool {
    let first = if node.level() == 0 { 0 } else { 1 };
    node.len() <= first || low <= node.key(first) && high.is_none_or(|high| node.key(node.len() - 1) < high)
}

/// Encodes a pointer as a value.
pub(crate) fn pointer(to: BlockPtr) -> [u8; POINTER] {
    let mut bytes = [0; POINTER];
    bytes[..8].copy_from_slice(&to.at.to_le_bytes());
    bytes[8..].copy_from_slice(&to.made.to_le_bytes());
    bytes
}

/// Returns the bytes of a cell.
pub(crate) fn size(key: &[u8], value: &[u8]) -> usize {
    SIZES + key.len() + value.len()
}

/// Returns the position of a cell's offset.
fn slot(i: usize) -> usize {
    NODE_HEAD_LEN + PLACE * i
}

/// A node for reading.
#[derive(Clone, Copy)]
pub(crate) struct NodeRef<'a>(pub(crate) &'a [u8]);

impl<'a> NodeRef<'a> {
    /// Returns the number of cells.
    pub(crate) fn len(self) -> usize {
        self.word(LEN)
    }

    /// Returns the level; 0 for a leaf.
    pub(crate) fn level(self) -> u8 {
        self.0[LEVEL]
    }

    /// Returns the bytes available to cells and their offsets.
    pub(crate) fn room(self) -> usize {
        self.0.len() - NODE_HEAD_LEN
    }

    /// Returns the maximum bytes of a cell.
    pub(crate) fn cell_most(self) -> usize {
        self.room() / 4
    }

    /// Returns the free bytes, including holes.
    pub(crate) fn free(self) -> usize {
        self.gap() + self.word(HOLES)
    }

    /// Returns the used bytes.
    pub(crate) fn used(self) -> usize {
        self.room() - self.free()
    }

    /// Returns whether there is room for another cell of this size.
    pub(crate) fn fits(self, size: usize) -> bool {
        size + PLACE <= self.free()
    }

    /// Returns the key and the value of a cell.
    pub(crate) fn cell(self, i: usize) -> (&'a [u8], &'a [u8]) {
        let at = self.place(i);
        let key = self.word(at);
        self.0[at + SIZES..at + SIZES + key + self.word(at + 2)].split_at(key)
    }

    /// Returns the key of a cell.
    pub(crate) fn key(self, i: usize) -> &'a [u8] {
        let at = self.place(i);
        &self.0[at + SIZES..at + SIZES + self.word(at)]
    }

    /// Returns the value of a cell.
    pub(crate) fn value(self, i: usize) -> &'a [u8] {
        self.cell(i).1
    }

    /// Returns the index of the cell with this key, or else the index at which it would be inserted.
    pub(crate) fn search(self, key: &[u8]) -> Result<usize, usize> {
        let mut among = 0..self.len();
        while !among.is_empty() {
            let middle = among.start + among.len() / 2;
            match self.key(middle).cmp(key) {
                Ordering::Less => among.start = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => among.end = middle,
            }
        }
        Err(among.start)
    }

    /// Returns a child of a branch.
    pub(crate) fn child(self, i: usize) -> BlockPtr {
        let value = self.value(i);
        let (mut at, mut made) = ([0; 8], [0; 4]);
        at.copy_from_slice(&value[..8]);
        made.copy_from_slice(&value[8..POINTER]);
        BlockPtr { at: u64::from_le_bytes(at), made: u32::from_le_bytes(made) }
    }

    /// Returns how many cells go to the left when a full node is split. The new cell is counted, at index `i`.
    ///
    /// Keys that arrive in rising order fill nodes. If the new cell comes after the last of its group, the left part
    /// ends with it if it fits there; otherwise the right part begins with it. In all other cases both parts get about
    /// the same size. No cell is larger than a quarter, so neither part is empty, and each has room for its cells.
    pub(crate) fn cut(self, i: usize, key: &[u8], size: usize) -> usize {
        let size_of = |cell: usize| match cell.cmp(&i) {
            Ordering::Less => self.size(cell) + PLACE,
            Ordering::Equal => size + PLACE,
            Ordering::Greater => self.size(cell - 1) + PLACE,
        };
        let same = |cell: usize| group(self.key(cell)) == group(key);
        if i == self.len() || i > 0 && same(i - 1) && !same(i) {
            let left: usize = (0..=i).map(size_of).sum();
            return if left <= self.room() { i + 1 } else { i };
        }
        let half = (self.used() + size + PLACE) / 2;
        let (mut left, mut count) = (0, 0);
        while left < half {
            left += size_of(count);
            count += 1;
        }
        count
    }

    /// Returns the bytes between the offsets and the cells.
    fn gap(self) -> usize {
        self.word(BEGIN) - slot(self.len())
    }

    /// Returns the offset of a cell.
    fn place(self, i: usize) -> usize {
        self.word(slot(i))
    }

    /// Returns the bytes of a cell.
    fn size(self, i: usize) -> usize {
        let at = self.place(i);
        SIZES + self.word(at) + self.word(at + 2)
    }

    /// Returns two bytes as a number.
    fn word(self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.0[at], self.0[at + 1]]))
    }
}

/// Returns the prefix of a key within which keys mostly arrive in rising order: inode and kind (docs/disk.md).
fn group(key: &[u8]) -> &[u8] {
    &key[..key.len().min(9)]
}

/// A node for changing.
pub(crate) struct NodeMut<'a>(pub(crate) &'a mut [u8]);

impl<'a> NodeMut<'a> {
    /// Initializes a node without cells.
    pub(crate) fn empty(content: &'a mut [u8], level: u8) -> Self {
        content[..NODE_HEAD_LEN].fill(0);
        content[LEVEL] = level;
        let mut node = Self(content);
        node.set(BEGIN, node.0.len());
        node
    }

    /// Returns the node for reading.
    pub(crate) fn node(&self) -> NodeRef<'_> {
        NodeRef(self.0)
    }

    /// Inserts a cell before cell `i`. The cell must fit, and its key must be between those of its neighbours.
    pub(crate) fn insert(&mut self, i: usize, key: &[u8], value: &[u8]) {
        let size = size(key, value);
        assert!(self.node().fits(size), "no room for a cell of {size} bytes");
        if self.node().gap() < size + PLACE {
            self.compact();
        }
        let len = self.node().len();
        let at = self.node().word(BEGIN) - size;
        self.set(at, key.len());
        self.set(at + 2, value.len());
        let (to_key, to_value) = self.0[at + SIZES..at + size].split_at_mut(key.len());
        to_key.copy_from_slice(key);
        to_value.copy_from_slice(value);
        self.0.copy_within(slot(i)..slot(len), slot(i + 1));
        self.set(slot(i), at);
        self.set(BEGIN, at);
        self.set(LEN, len + 1);
    }

    /// Replaces the value of a cell with one that is not longer. For a longer one remove the cell and insert it again.
    pub(crate) fn overwrite(&mut self, i: usize, value: &[u8]) {
        let (key, old) = self.node().cell(i);
        let (key, shorter) = (key.len(), old.len() - value.len());
        let at = self.node().place(i);
        self.0[at + SIZES + key..at + SIZES + key + value.len()].copy_from_slice(value);
        self.set(at + 2, value.len());
        self.give(shorter);
    }

    /// Sets the pointer to a child.
    pub(crate) fn set_ptr(&mut self, i: usize, to: BlockPtr) {
        self.overwrite(i, &pointer(to));
    }

    /// Removes a cell.
    pub(crate) fn remove(&mut self, i: usize) {
        let (len, size) = (self.node().len(), self.node().size(i));
        self.0.copy_within(slot(i + 1)..slot(len), slot(i));
        self.set(LEN, len - 1);
        self.give(size);
    }

    /// Removes a child from a branch. If it was the first, the next one becomes the first.
    pub(crate) fn remove_child(&mut self, i: usize) {
        self.remove(i);
        if i == 0 && self.node().len() > 0 {
            self.empty_first_key();
        }
    }

    /// Empties the key of the first cell, as the first cell of a branch must have it.
    pub(crate) fn empty_first_key(&mut self) {
        let (at, key) = (self.node().place(0), self.node().key(0).len());
        let value = at + SIZES + key;
        self.0.copy_within(value..value + POINTER, at + SIZES);
        self.set(at, 0);
        self.give(key);
    }

    /// Removes all cells but the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        let gone = (len..self.node().len()).map(|i| self.node().size(i)).sum();
        self.set(LEN, len);
        self.give(gone);
    }

    /// Appends cells of another node. They must fit.
    pub(crate) fn append(&mut self, of: NodeRef<'_>, cells: Range<usize>) {
        for (key, value) in cells.map(|i| of.cell(i)) {
            self.insert(self.node().len(), key, value);
        }
    }

    /// Moves all free bytes to one gap before the cells.
    fn compact(&mut self) {
        let begin = self.node().word(BEGIN);
        let old = self.0[begin..].to_vec();
        let mut end = self.0.len();
        for i in 0..self.node().len() {
            let from = self.node().place(i) - begin;
            let size = SIZES + NodeRef(&old).word(from) + NodeRef(&old).word(from + 2);
            end -= size;
            self.0[end..end + size].copy_from_slice(&old[from..from + size]);
            self.set(slot(i), end);
        }
        self.set(BEGIN, end);
        self.set(HOLES, 0);
    }

    /// Counts bytes among the cells as free.
    fn give(&mut self, bytes: usize) {
        self.set(HOLES, self.node().word(HOLES) + bytes);
    }

    /// Writes a number into two bytes. It is an offset or a length in a content, and so below 2^16.
    fn set(&mut self, at: usize, number: usize) {
        self.0[at..at + 2].copy_from_slice(&(number as u16).to_le_bytes());
    }
}
