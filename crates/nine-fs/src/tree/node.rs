//! A node of the tree, as it lies in a block (docs/disk.md, "The tree").
//!
//! In: the content of a block. Out: its cells in the order of their keys, to be read or changed.
//!
//! Always holds: [`check`] takes any bytes. All else takes only what it has let pass, and leaves it so. A content is
//! shorter than 2^16 bytes, so a place fits into two; all sums are of `usize`.

use std::cmp::Ordering;
use std::ops::Range;

use crate::ptr::Ptr;

/// Bytes before the places of the cells.
pub(crate) const HEAD: usize = 16;
/// Bytes of a place.
const PLACE: usize = 2;
/// Bytes of a cell before its key.
const SIZES: usize = 4;
/// Bytes of a pointer, the value of a branch's cell.
pub(crate) const POINTER: usize = 12;
/// The most bytes of a key.
pub(crate) const KEY_MOST: usize = 300;
/// The most levels of a tree.
pub(crate) const LEVELS: usize = 16;

// Where the fields of the head are.
const LEN: usize = 0;
const BEGIN: usize = 2;
const HOLES: usize = 4;
const LEVEL: usize = 6;

/// Whether these bytes are a node, and one of this kind; else what is wrong.
pub(crate) fn check(content: &[u8], is_leaf: bool) -> Result<(), &'static str> {
    let must = |holds: bool, wrong| if holds { Ok(()) } else { Err(wrong) };
    must((HEAD..=usize::from(u16::MAX)).contains(&content.len()), "no size of a node")?;
    let node = Node(content);
    must((node.level() == 0) == is_leaf, "a leaf for a branch, or a branch for a leaf")?;
    must(usize::from(node.level()) < LEVELS, "too high a level")?;
    must(content[LEVEL + 1..HEAD].iter().all(|byte| *byte == 0), "bytes of the head that are not 0")?;
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
        must(key <= KEY_MOST && size <= node.cell_most(), "a cell that is too large")?;
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

/// The cells of a node.
pub(crate) fn cells(content: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let node = Node(content);
    (0..node.len()).map(move |i| node.cell(i))
}

/// The children of a branch, each with the key from which it goes on.
pub(crate) fn children(content: &[u8]) -> impl Iterator<Item = (&[u8], Ptr)> {
    let node = Node(content);
    (0..node.len()).map(move |i| (node.key(i), node.child(i)))
}

/// Whether the keys of a node are within these bounds. A branch's first one stands for the lower bound.
pub(crate) fn within(node: Node<'_>, low: &[u8], high: Option<&[u8]>) -> bool {
    let first = if node.level() == 0 { 0 } else { 1 };
    node.len() <= first || low <= node.key(first) && high.is_none_or(|high| node.key(node.len() - 1) < high)
}

/// A pointer as a value.
pub(crate) fn pointer(to: Ptr) -> [u8; POINTER] {
    let mut bytes = [0; POINTER];
    bytes[..8].copy_from_slice(&to.at.to_le_bytes());
    bytes[8..].copy_from_slice(&to.made.to_le_bytes());
    bytes
}

/// Bytes of a cell.
pub(crate) fn size(key: &[u8], value: &[u8]) -> usize {
    SIZES + key.len() + value.len()
}

/// Where the place of a cell is.
fn slot(i: usize) -> usize {
    HEAD + PLACE * i
}

/// A node that is read.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a>(pub(crate) &'a [u8]);

impl<'a> Node<'a> {
    /// Cells.
    pub(crate) fn len(self) -> usize {
        self.word(LEN)
    }

    /// 0 of a leaf.
    pub(crate) fn level(self) -> u8 {
        self.0[LEVEL]
    }

    /// Bytes for cells and their places.
    pub(crate) fn room(self) -> usize {
        self.0.len() - HEAD
    }

    /// The most bytes of a cell.
    pub(crate) fn cell_most(self) -> usize {
        self.room() / 4
    }

    /// Bytes of the room that are free, wherever they are.
    pub(crate) fn free(self) -> usize {
        self.gap() + self.word(HOLES)
    }

    /// Bytes of the room that are not free.
    pub(crate) fn used(self) -> usize {
        self.room() - self.free()
    }

    /// Whether one more cell of this size has room.
    pub(crate) fn fits(self, size: usize) -> bool {
        size + PLACE <= self.free()
    }

    /// The key of a cell, and its value.
    pub(crate) fn cell(self, i: usize) -> (&'a [u8], &'a [u8]) {
        let at = self.place(i);
        let key = self.word(at);
        self.0[at + SIZES..at + SIZES + key + self.word(at + 2)].split_at(key)
    }

    /// The key of a cell.
    pub(crate) fn key(self, i: usize) -> &'a [u8] {
        let at = self.place(i);
        &self.0[at + SIZES..at + SIZES + self.word(at)]
    }

    /// The value of a cell.
    pub(crate) fn value(self, i: usize) -> &'a [u8] {
        self.cell(i).1
    }

    /// The cell that has this key, or the one before which it would be.
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

    /// A branch's child.
    pub(crate) fn child(self, i: usize) -> Ptr {
        let value = self.value(i);
        let (mut at, mut made) = ([0; 8], [0; 4]);
        at.copy_from_slice(&value[..8]);
        made.copy_from_slice(&value[8..POINTER]);
        Ptr { at: u64::from_le_bytes(at), made: u32::from_le_bytes(made) }
    }

    /// Into how many cells on the left a node is cut that has no room for a new cell: the new one is counted, and is
    /// cell `i` of all.
    ///
    /// Keys that come in rising order fill nodes: behind the last of its group, the new one ends the left part if it
    /// has room there, else it begins the right one. Otherwise both parts are about as large. As no cell is
    /// larger than a quarter, neither part is empty, and each has room for its cells.
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

    /// Bytes between the places and the cells.
    fn gap(self) -> usize {
        self.word(BEGIN) - slot(self.len())
    }

    /// Where a cell is.
    fn place(self, i: usize) -> usize {
        self.word(slot(i))
    }

    /// Bytes of a cell.
    fn size(self, i: usize) -> usize {
        let at = self.place(i);
        SIZES + self.word(at) + self.word(at + 2)
    }

    /// Two bytes as a number.
    fn word(self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.0[at], self.0[at + 1]]))
    }
}

/// What keys have in common that are mostly made in rising order: inode and kind (docs/disk.md).
fn group(key: &[u8]) -> &[u8] {
    &key[..key.len().min(9)]
}

/// A node that is changed.
pub(crate) struct NodeMut<'a>(pub(crate) &'a mut [u8]);

impl<'a> NodeMut<'a> {
    /// One without cells.
    pub(crate) fn empty(content: &'a mut [u8], level: u8) -> Self {
        content[..HEAD].fill(0);
        content[LEVEL] = level;
        let mut node = Self(content);
        node.set(BEGIN, node.0.len());
        node
    }

    /// The same, to be read.
    pub(crate) fn node(&self) -> Node<'_> {
        Node(self.0)
    }

    /// Has a new cell before cell `i`: it must fit, and its key must be between its neighbours'.
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

    /// Writes another value over that of a cell. It must not be longer; a longer one is a cell removed and inserted.
    pub(crate) fn overwrite(&mut self, i: usize, value: &[u8]) {
        let (key, old) = self.node().cell(i);
        let (key, shorter) = (key.len(), old.len() - value.len());
        let at = self.node().place(i);
        self.0[at + SIZES + key..at + SIZES + key + value.len()].copy_from_slice(value);
        self.set(at + 2, value.len());
        self.give(shorter);
    }

    /// Has a branch's child at another place.
    pub(crate) fn set_ptr(&mut self, i: usize, to: Ptr) {
        self.overwrite(i, &pointer(to));
    }

    /// Has a cell no more.
    pub(crate) fn remove(&mut self, i: usize) {
        let (len, size) = (self.node().len(), self.node().size(i));
        self.0.copy_within(slot(i + 1)..slot(len), slot(i));
        self.set(LEN, len - 1);
        self.give(size);
    }

    /// Has a branch's child no more. What was behind the first becomes the first.
    pub(crate) fn remove_child(&mut self, i: usize) {
        self.remove(i);
        if i == 0 && self.node().len() > 0 {
            self.empty_first_key();
        }
    }

    /// As the first key of a branch is.
    pub(crate) fn empty_first_key(&mut self) {
        let (at, key) = (self.node().place(0), self.node().key(0).len());
        let value = at + SIZES + key;
        self.0.copy_within(value..value + POINTER, at + SIZES);
        self.set(at, 0);
        self.give(key);
    }

    /// Keeps so many cells, and no others.
    pub(crate) fn truncate(&mut self, len: usize) {
        let gone = (len..self.node().len()).map(|i| self.node().size(i)).sum();
        self.set(LEN, len);
        self.give(gone);
    }

    /// Has cells of another behind its own: they must fit.
    pub(crate) fn append(&mut self, of: Node<'_>, cells: Range<usize>) {
        for (key, value) in cells.map(|i| of.cell(i)) {
            self.insert(self.node().len(), key, value);
        }
    }

    /// Has all free bytes in one piece before the cells.
    fn compact(&mut self) {
        let begin = self.node().word(BEGIN);
        let old = self.0[begin..].to_vec();
        let mut end = self.0.len();
        for i in 0..self.node().len() {
            let from = self.node().place(i) - begin;
            let size = SIZES + Node(&old).word(from) + Node(&old).word(from + 2);
            end -= size;
            self.0[end..end + size].copy_from_slice(&old[from..from + size]);
            self.set(slot(i), end);
        }
        self.set(BEGIN, end);
        self.set(HOLES, 0);
    }

    /// So many bytes among the cells have become free.
    fn give(&mut self, bytes: usize) {
        self.set(HOLES, self.node().word(HOLES) + bytes);
    }

    /// Writes a number into two bytes. It is below 2^16: a place or a number of bytes in a content.
    fn set(&mut self, at: usize, number: usize) {
        self.0[at..at + 2].copy_from_slice(&(number as u16).to_le_bytes());
    }
}
