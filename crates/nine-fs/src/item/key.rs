//! Keys: an inode, a kind, and the part that distinguishes the items of that kind.
//!
//! In: these three. Out: bytes with the same order, and the reverse. Creating a key from an invalid name panics; the
//! caller must have checked the name.

use std::fmt;
use std::ops::Deref;

use super::field::{FieldReader, is_name, made};
use super::value::NUMBERS;

/// Maximum bytes of a key.
const KEY_MAX: usize = 300;

/// Bytes of a piece of an extended attribute; only the last piece may be shorter.
pub(crate) const XATTR_PIECE_LEN: usize = 1024;

/// Maximum number of pieces of an extended attribute.
pub(crate) const XATTR_PIECES_MAX: u16 = 64;

/// The kind of an item of an inode. The last three kinds belong to inode 0, and to no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum ItemKind {
    /// Its attributes.
    Attributes = 1,
    /// Its content, if that is short.
    Inline = 2,
    /// A directory entry, by name.
    Name = 3,
    /// The same entry, by cookie.
    Cookie = 4,
    /// A piece of an extended attribute.
    Xattr = 5,
    /// The address of some of its blocks.
    Extent = 6,
    /// A file without a name.
    Orphan = 16,
    /// A dump.
    Dump = 17,
    /// The usage of a user.
    Usage = 18,
}

/// A decoded key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodedKey<'a> {
    /// The attributes of an inode.
    Attributes(u64),
    /// The inline content of an inode.
    Inline(u64),
    /// Directory, name.
    Name(u64, &'a [u8]),
    /// Directory, cookie.
    Cookie(u64, u64),
    /// Inode, name of an extended attribute, number of the piece.
    Xattr(u64, &'a [u8], u16),
    /// Inode, number of the extent's first block in the file.
    Extent(u64, u64),
    /// An inode without a name.
    Orphan(u64),
    /// The dump of a generation.
    Dump(u32),
    /// The usage of a user.
    Usage(u32),
}

#[cfg(any(test, feature = "fuzz"))]
impl DecodedKey<'_> {
    /// Returns the encoded key.
    pub(crate) fn key(self) -> ItemKey {
        match self {
            DecodedKey::Attributes(ino) => ItemKey::attributes(ino),
            DecodedKey::Inline(ino) => ItemKey::inline(ino),
            DecodedKey::Name(dir, name) => ItemKey::name(dir, name),
            DecodedKey::Cookie(dir, cookie) => ItemKey::cookie(dir, cookie),
            DecodedKey::Xattr(ino, name, piece) => ItemKey::xattr(ino, name, piece),
            DecodedKey::Extent(ino, block) => ItemKey::extent(ino, block),
            DecodedKey::Orphan(ino) => ItemKey::orphan(ino),
            DecodedKey::Dump(generation) => ItemKey::dump(generation),
            DecodedKey::Usage(uid) => ItemKey::usage(uid),
        }
    }
}

/// An encoded key, stored inline.
#[derive(Clone, Copy)]
pub(crate) struct ItemKey {
    len: u16,
    bytes: [u8; KEY_MAX],
}

impl ItemKey {
    /// The key of the attributes of an inode.
    pub(crate) fn attributes(ino: u64) -> Self {
        Self::start_of(ino, ItemKind::Attributes)
    }

    /// The key of the inline content of an inode.
    pub(crate) fn inline(ino: u64) -> Self {
        Self::start_of(ino, ItemKind::Inline)
    }

    /// The key of a directory entry by its name. Panics unless the name has 1 to 255 bytes.
    pub(crate) fn name(dir: u64, name: &[u8]) -> Self {
        assert!(is_name(name), "a name of {} bytes", name.len());
        Self::start_of(dir, ItemKind::Name).with(name)
    }

    /// The key of a directory entry by its cookie.
    pub(crate) fn cookie(dir: u64, cookie: u64) -> Self {
        Self::start_of(dir, ItemKind::Cookie).with(&cookie.to_be_bytes())
    }

    /// The key of a piece of an extended attribute. Panics unless the name has 1 to 255 bytes, none of them 0.
    pub(crate) fn xattr(ino: u64, name: &[u8], piece: u16) -> Self {
        assert!(is_name(name) && !name.contains(&0), "a name of {} bytes, or with 0 in it", name.len());
        assert!(piece < XATTR_PIECES_MAX, "piece {piece}");
        Self::start_of(ino, ItemKind::Xattr).with(name).with(&[0]).with(&piece.to_be_bytes())
    }

    /// The key of the extent that begins with this block of a file.
    pub(crate) fn extent(ino: u64, block: u64) -> Self {
        Self::start_of(ino, ItemKind::Extent).with(&block.to_be_bytes())
    }

    /// The key of a file without a name.
    pub(crate) fn orphan(ino: u64) -> Self {
        Self::start_of(0, ItemKind::Orphan).with(&ino.to_be_bytes())
    }

    /// The key of the dump of a generation.
    pub(crate) fn dump(generation: u32) -> Self {
        Self::start_of(0, ItemKind::Dump).with(&generation.to_be_bytes())
    }

    /// The key of the usage of a user.
    pub(crate) fn usage(uid: u32) -> Self {
        Self::start_of(0, ItemKind::Usage).with(&uid.to_be_bytes())
    }

    /// Returns a lower bound of the keys of an inode.
    pub(crate) fn start(ino: u64) -> Self {
        Self { len: 0, bytes: [0; KEY_MAX] }.with(&ino.to_be_bytes())
    }

    /// Returns a key after all items of an inode, and before those of the next one.
    pub(crate) fn end(ino: u64) -> Self {
        Self::start(ino).with(&[u8::MAX])
    }

    /// Returns a lower bound of the keys of this kind of an inode.
    pub(crate) fn start_of(ino: u64, kind: ItemKind) -> Self {
        Self::start(ino).with(&[kind as u8])
    }

    /// Returns a key after all items of this kind of an inode, and before those of the next kind.
    #[cfg(test)]
    pub(crate) fn end_of(ino: u64, kind: ItemKind) -> Self {
        Self::start(ino).with(&[kind as u8 + 1])
    }

    /// Decodes a key. `None`: it is invalid.
    pub(crate) fn parse(bytes: &[u8]) -> Option<DecodedKey<'_>> {
        let mut rest = FieldReader(bytes);
        let ino = u64::from_be_bytes(rest.take()?);
        let [kind] = rest.take()?;
        let what = match (ino, kind) {
            (0, 16) => DecodedKey::Orphan(u64::from_be_bytes(rest.take()?)),
            (0, 17) => DecodedKey::Dump(made(u32::from_be_bytes(rest.take()?))?),
            (0, 18) => DecodedKey::Usage(u32::from_be_bytes(rest.take()?)),
            (0, _) => return None,
            (_, 1) => DecodedKey::Attributes(ino),
            (_, 2) => DecodedKey::Inline(ino),
            (_, 3) => DecodedKey::Name(ino, rest.name()?),
            (_, 4) => DecodedKey::Cookie(ino, u64::from_be_bytes(rest.take()?)),
            (_, 5) => {
                let (name, piece) = std::mem::take(&mut rest.0).split_last_chunk()?;
                let (name, piece) = (name.strip_suffix(&[0])?, u16::from_be_bytes(*piece));
                let right = is_name(name) && !name.contains(&0) && piece < XATTR_PIECES_MAX;
                right.then_some(DecodedKey::Xattr(ino, name, piece))?
            }
            (_, 6) => {
                DecodedKey::Extent(ino, Some(u64::from_be_bytes(rest.take()?)).filter(|n| *n < NUMBERS)?)
            }
            _ => return None,
        };
        rest.end(what)
    }

    fn with(mut self, more: &[u8]) -> Self {
        let len = usize::from(self.len);
        self.bytes[len..len + more.len()].copy_from_slice(more);
        self.len += more.len() as u16;
        self
    }
}

impl Deref for ItemKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for ItemKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::parse(self) {
            Some(what) => what.fmt(f),
            None => write!(f, "{:02x?}", &**self),
        }
    }
}
