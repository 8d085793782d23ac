//! Keys and values of the tree (docs/disk.md, "The tree").
//!
//! In: numbers and names. Out: bytes as they lie in a node, and back. Keys sort as bytes do: all of an inode before the
//! next one, its kinds by their numbers, each kind by its own number or name. What is decoded may be any
//! bytes: what this program would never write is `None`, not a panic.

mod field;
mod key;
mod value;

#[cfg(test)]
mod tests;

pub(crate) use key::{Key, Kind, PIECE, PIECES_MOST, What};
pub(crate) use value::{
    ACCESS_ACL, APPEND, Attributes, DEFAULT_ACL, DumpRecord, EXCLUSIVE, EXTENT_MOST, Entry, Extent,
    LONG_TARGET, Named, Usage,
};
