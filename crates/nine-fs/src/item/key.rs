//! Keys: an inode, a kind, and the part that distinguishes the items of that kind.
//!
//! In: these three. Out: bytes with the same order, and the reverse. Creating a key from an invalid name panics; the
//! caller must have checked the name.

use std::fmt;
use std::ops::Deref;

use super::field::{In, is_name, made};
use super::value::NUMBERS;

/// Maximum bytes of a key.
const KEY_MOST: usize = 300;

/// Bytes of a piece of an extended attribute; only the last piece may be shorter.
pub(crate) const PIECE: usize = 1024;

/// Maximum number of pieces of an extended attribute.
pub(crate) const PIECES_MOST: u16 = 64;

/// The kind of an item of an inode. The last three kinds belong to inode 0, and to no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Kind {
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
pub(crate) enum What<'a> {
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
impl What<'_> {
    /// Returns the encoded key.
    pub(crate) fn key(self) -> Key {
        match self {
            What::Attributes(ino) => Key::attributes(ino),
            What::Inline(ino) => Key::inline(ino),
            What::Name(dir, name) => Key::name(dir, name),
            What::Cookie(dir, cookie) => Key::cookie(dir, cookie),
            What::Xattr(ino, name, piece) => Key::xattr(ino, name, piece),
            What::Extent(ino, block) => Key::extent(ino, block),
            What::Orphan(ino) => Key::orphan(ino),
            What::Dump(generation) => Key::dump(generation),
            What::Usage(uid) => Key::usage(uid),
        }
    }
}

/// An encoded key, stored inline.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    len: u16,
    bytes: [u8; KEY_MOST],
}

impl Key {
    /// The key of the attributes of an inode.
    pub(crate) fn attributes(ino: u64) -> Self {
        Self::start_of(ino, Kind::Attributes)
    }

    /// The key of the inline content of an inode.
    pub(crate) fn inline(ino: u64) -> Self {
        Self::start_of(ino, Kind::Inline)
    }

    /// The key of a directory entry by its name. Panics unless the name has 1 to 255 bytes.
    pub(crate) fn name(dir: u64, name: &[u8]) -> Self {
        assert!(is_name(name), "a name of {} bytes", name.len());
        Self::start_of(dir, Kind::Name).with(name)
    }

    /// The key of a directory entry by its cookie.
    pub(crate) fn cookie(dir: u64, cookie: u64) -> Self {
        Self::start_of(dir, Kind::Cookie).with(&cookie.to_be_bytes())
    }

    /// The key of a piece of an extended attribute. Panics unless the name has 1 to 255 bytes, none of them 0.
    pub(crate) fn xattr(ino: u64, name: &[u8], piece: u16) -> Self {
        assert!(is_name(name) && !name.contains(&0), "a name of {} bytes, or with 0 in it", name.len());
        assert!(piece < PIECES_MOST, "piece {piece}");
        Self::start_of(ino, Kind::Xattr).with(name).with(&[0]).with(&piece.to_be_bytes())
    }

    /// The key of the extent that begins with this block of a file.
    pub(crate) fn extent(ino: u64, block: u64) -> Self {
        Self::start_of(ino, Kind::Extent).with(&block.to_be_bytes())
    }

    /// The key of a file without a name.
    pub(crate) fn orphan(ino: u64) -> Self {
        Self::start_of(0, Kind::Orphan).with(&ino.to_be_bytes())
    }

    /// The key of the dump of a generation.
    pub(crate) fn dump(generation: u32) -> Self {
        Self::start_of(0, Kind::Dump).with(&generation.to_be_bytes())
    }

    /// The key of the usage of a user.
    pub(crate) fn usage(uid: u32) -> Self {
        Self::start_of(0, Kind::Usage).with(&uid.to_be_bytes())
    }

    /// Returns a lower bound of the keys of an inode.
    pub(crate) fn start(ino: u64) -> Self {
        Self { len: 0, bytes: [0; KEY_MOST] }.with(&ino.to_be_bytes())
    }

    /// Returns a key after all items of an inode, and before those of the next one.
    pub(crate) fn end(ino: u64) -> Self {
        Self::start(ino).with(&[u8::MAX])
    }

    /// Returns a lower bound of the keys of this kind of an inode.
    pub(crate) fn start_of(ino: u64, kind: Kind) -> Self {
        Self::start(ino).with(&[kind as u8])
    }

    /// Returns a key after all items of this kind of an inode, and before those of the next kind.
    #[cfg(test)]
    pub(crate) fn end_of(ino: u64, kind: Kind) -> Self {
        Self::start(ino).with(&[kind as u8 + 1])
    }

    /// Decodes a key. `None`: it is invalid.
    pub(crate) fn parse(bytes: &[u8]) -> Option<What<'_>> {
        let mut rest = In(bytes);
        let ino = u64::from_be_bytes(rest.take()?);
        let [kind] = rest.take()?;
        let what = match (ino, kind) {
            (0, 16) => What::Orphan(u64::from_be_bytes(rest.take()?)),
            (0, 17) => What::Dump(made(u32::from_be_bytes(rest.take()?))?),
            (0, 18) => What::Usage(u32::from_be_bytes(rest.take()?)),
            (0, _) => return None,
            (_, 1) => What::Attributes(ino),
            (_, 2) => What::Inline(ino),
            (_, 3) => What::Name(ino, rest.name()?),
            (_, 4) => What::Cookie(ino, u64::from_be_bytes(rest.take()?)),
            (_, 5) => {
                let (name, piece) = std::mem::take(&mut rest.0).split_last_chunk()?;
                let (name, piece) = (name.strip_suffix(&[0])?, u16::from_be_bytes(*piece));
                let right = is_name(name) && !name.contains(&0) && piece < PIECES_MOST;
                right.then_some(What::Xattr(ino, name, piece))?
            }
            (_, 6) => What::Extent(ino, Some(u64::from_be_bytes(rest.take()?)).filter(|n| *n < NUMBERS)?),
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

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::parse(self) {
            Some(what) => what.fmt(f),
            None => write!(f, "{:02x?}", &**self),
        }
    }
}
