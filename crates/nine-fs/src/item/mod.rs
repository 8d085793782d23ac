//! Keys and values of the tree (docs/disk.md, "The tree").
//!
//! In: numbers and names. Out: bytes as they lie in a node, and the reverse. Keys sort as bytes: all items of an inode
//! come before the next inode's; its kinds are ordered by number, and the items of a kind by number or name. Decoding
//! accepts any bytes: those that this program never writes give `None`, not a panic.

mod field;
mod key;
mod value;

#[cfg(test)]
mod tests;

pub(crate) use key::{DecodedKey, ItemKey, ItemKind, XATTR_PIECE_LEN, XATTR_PIECES_MAX};
pub(crate) use value::{
    ACCESS_ACL, APPEND, CookieEntry, DEFAULT_ACL, DumpRecord, EXCLUSIVE, EXTENT_MAX, FileExtent,
    InodeAttributes, LONG_TARGET, NameEntry, UserUsage,
};
