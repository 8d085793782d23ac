//! Values: attributes, extents, directory entries, dumps, usage of users.
//!
//! In: one of them. Out: its bytes, of a fixed length for most kinds, and the reverse. A decoded value encodes to the
//! same bytes.

use nine_proto::{Qid, Time, mode};

use super::field::{FieldReader, FieldWriter, made};
use crate::date::CalendarDay;
use crate::ptr::{BlockPtr, NEW};

/// Maximum number of blocks of an extent.
pub(crate) const EXTENT_MAX: u32 = 4096;

/// Numbers of blocks in a file are below this.
pub(super) const NUMBERS: u64 = 1 << 52;

/// Flag of a file: append only.
pub(crate) const APPEND: u32 = 1;
/// Flag of a file: exclusive use, one open at a time.
pub(crate) const EXCLUSIVE: u32 = 2;
/// Flag of a file: temporary, not needed in dumps.
pub(crate) const TEMPORARY: u32 = 4;
/// Flag of a symbolic link: its target is in blocks. An older program would find an empty target; it does not know the
/// flag, and so refuses the inode.
pub(crate) const LONG_TARGET: u32 = 8;
/// Flag of an inode: it has an access control list, and its mode alone does not give the permissions. An older program
/// would ignore the list; it does not know the flag, and so refuses the inode.
pub(crate) const ACCESS_ACL: u32 = 16;
/// Flag of a directory: it has a default access control list.
pub(crate) const DEFAULT_ACL: u32 = 32;
/// All known flags.
const FLAGS: u32 = APPEND | EXCLUSIVE | TEMPORARY | LONG_TARGET | ACCESS_ACL | DEFAULT_ACL;

/// Flags, and the corresponding bits of a qid's type.
const SPECIAL: [(u32, u8); 3] = [(APPEND, Qid::APPEND), (EXCLUSIVE, Qid::EXCL), (TEMPORARY, Qid::TMP)];

/// The attributes of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InodeAttributes {
    /// Type and permissions as in stat(2).
    pub(crate) mode: u32,
    /// Owner.
    pub(crate) uid: u32,
    /// Group.
    pub(crate) gid: u32,
    /// The user that changed it last.
    pub(crate) muid: u32,
    /// Number of names.
    pub(crate) links: u32,
    /// [`APPEND`], [`EXCLUSIVE`], [`TEMPORARY`], [`LONG_TARGET`], [`ACCESS_ACL`], [`DEFAULT_ACL`].
    pub(crate) flags: u32,
    /// Bytes, below 2^63; number of entries of a directory.
    pub(crate) size: u64,
    /// The version of the content.
    pub(crate) version: u64,
    /// The directory in which it was entered last.
    pub(crate) parent: u64,
    /// For a device.
    pub(crate) major: u32,
    /// For a device.
    pub(crate) minor: u32,
    /// For a directory: the last cookie given.
    pub(crate) cookies: u64,
    /// Access time.
    pub(crate) atime: Time,
    /// Time of the last change of the content.
    pub(crate) mtime: Time,
    /// Time of the last change of the attributes.
    pub(crate) ctime: Time,
    /// Creation time.
    pub(crate) btime: Time,
    /// Blocks of its content.
    pub(crate) blocks: u64,
}

impl InodeAttributes {
    /// Encodes them as in the tree.
    pub(crate) fn encode(&self) -> [u8; 120] {
        FieldWriter::new()
            .u32(self.mode)
            .u32(self.uid)
            .u32(self.gid)
            .u32(self.muid)
            .u32(self.links)
            .u32(self.flags)
            .u64(self.size)
            .u64(self.version)
            .u64(self.parent)
            .u32(self.major)
            .u32(self.minor)
            .u64(self.cookies)
            .time(self.atime)
            .time(self.mtime)
            .time(self.ctime)
            .time(self.btime)
            .u64(self.blocks)
            .done()
    }

    /// Decodes them. `None`: they are invalid, or have an unknown flag.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = FieldReader(bytes);
        let attributes = Self {
            mode: rest.u32()?,
            uid: rest.u32()?,
            gid: rest.u32()?,
            muid: rest.u32()?,
            links: rest.u32()?,
            flags: rest.u32()?,
            size: rest.u64()?,
            version: rest.u64()?,
            parent: rest.u64()?,
            major: rest.u32()?,
            minor: rest.u32()?,
            cookies: rest.u64()?,
            atime: rest.time()?,
            mtime: rest.time()?,
            ctime: rest.time()?,
            btime: rest.time()?,
            blocks: rest.u64()?,
        };
        let known = attributes.mode >> 16 == 0 && attributes.flags & !FLAGS == 0;
        // These are incremented later, so they must not overflow.
        let counted = [attributes.size, attributes.version, attributes.cookies, attributes.blocks];
        let can_be = counted.iter().all(|count| *count < 1 << 63) && attributes.blocks < NEW;
        let right = known && is_kind(attributes.kind()) && can_be && attributes.links < u32::MAX >> 1;
        rest.end(attributes).filter(|_| right)
    }

    /// Returns the file type, as in readdir.
    pub(crate) fn kind(&self) -> u8 {
        (self.mode >> 12) as u8
    }

    /// Returns the bits of a qid's type that a client can set.
    pub(crate) fn special(&self) -> u8 {
        SPECIAL.iter().filter(|(flag, _)| self.flags & flag != 0).fold(0, |bits, (_, bit)| bits | bit)
    }

    /// Sets these bits; only regular files have them. A stored file is never both exclusive and temporary: see
    /// [`Qid::EVENT`].
    pub(crate) fn set_special(&mut self, bits: u8) {
        let bits = if bits & Qid::EVENT == Qid::EVENT { bits & !Qid::TMP } else { bits };
        if self.mode & mode::S_IFMT == mode::S_IFREG {
            for (flag, bit) in SPECIAL {
                self.flags = self.flags & !flag | if bits & bit != 0 { flag } else { 0 };
            }
        }
    }

    /// Returns whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.mode & mode::S_IFMT == mode::S_IFDIR
    }
}

/// Blocks of a file with consecutive addresses and one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileExtent {
    /// The first block.
    pub(crate) at: BlockPtr,
    /// The number of blocks, 1 to [`EXTENT_MAX`].
    pub(crate) count: u32,
}

impl FileExtent {
    /// Returns `count` of its blocks, after the first `skip`.
    pub(crate) fn split(self, skip: u32, count: u32) -> Self {
        let inside = skip.checked_add(count).is_some_and(|end| end <= self.count);
        assert!(count > 0 && inside, "blocks {skip}+{count} of {}", self.count);
        Self { at: BlockPtr { at: self.at.at + u64::from(skip), ..self.at }, count }
    }

    /// Encodes it as in the tree.
    pub(crate) fn encode(self) -> [u8; 16] {
        FieldWriter::new().u64(self.at.at).u32(self.count).u32(self.at.made).done()
    }

    /// Decodes it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = FieldReader(bytes);
        let (at, count, made) = (rest.u64()?, rest.u32()?, made(rest.u32()?)?);
        let end = at.checked_add(u64::from(count))?;
        // All blocks are on w, or none is.
        let right = (1..=EXTENT_MAX).contains(&count) && (at >= NEW || end <= NEW);
        rest.end(Self { at: BlockPtr { at, made }, count }).filter(|_| right)
    }
}

/// A directory entry, as it is found by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameEntry {
    /// Its inode.
    pub(crate) ino: u64,
    /// Its cookie.
    pub(crate) cookie: u64,
    /// Its file type, as in readdir.
    pub(crate) kind: u8,
}

impl NameEntry {
    /// Encodes it as in the tree.
    pub(crate) fn encode(self) -> [u8; 17] {
        FieldWriter::new().u64(self.ino).u64(self.cookie).put([self.kind]).done()
    }

    /// Decodes it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = FieldReader(bytes);
        let (ino, cookie, [kind]) = (rest.u64()?, rest.u64()?, rest.take()?);
        rest.end(Self { ino, cookie, kind }).filter(|_| ino > 0 && is_kind(kind))
    }
}

/// A directory entry, as it is found by its cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CookieEntry<'a> {
    /// Its inode.
    pub(crate) ino: u64,
    /// Its file type, as in readdir.
    pub(crate) kind: u8,
    /// Its name, of 1 to 255 bytes.
    pub(crate) name: &'a [u8],
}

impl<'a> CookieEntry<'a> {
    /// Encodes it as in the tree.
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.ino.to_le_bytes()[..], &[self.kind], self.name].concat()
    }

    /// Decodes it.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = FieldReader(bytes);
        let (ino, [kind], name) = (rest.u64()?, rest.take()?, rest.name()?);
        Some(Self { ino, kind, name }).filter(|_| ino > 0 && is_kind(kind))
    }
}

/// A dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DumpRecord {
    /// The root of its tree.
    pub(crate) root: BlockPtr,
    /// When it was taken.
    pub(crate) time: Time,
    /// Its date, in the time zone of the server when it was taken.
    pub(crate) day: CalendarDay,
    /// Its number among the dumps of that date.
    pub(crate) number: u32,
    /// The first block of its segment.
    pub(crate) segment: u64,
    /// Blocks of its segment.
    pub(crate) blocks: u64,
}

impl DumpRecord {
    /// Encodes it as in the tree.
    pub(crate) fn encode(&self) -> [u8; 52] {
        FieldWriter::new()
            .u64(self.root.at)
            .u32(self.root.made)
            .u32(0)
            .time(self.time)
            .day(self.day)
            .u32(self.number)
            .u64(self.segment)
            .u64(self.blocks)
            .done()
    }

    /// Decodes it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = FieldReader(bytes);
        let (at, made, zero) = (rest.u64()?, made(rest.u32()?)?, rest.u32()?);
        let record = Self {
            root: BlockPtr { at, made },
            time: rest.time()?,
            day: rest.day()?,
            number: rest.u32()?,
            segment: rest.u64()?,
            blocks: rest.u64()?,
        };
        rest.end(record).filter(|_| zero == 0)
    }
}

/// The usage of a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserUsage {
    /// Bytes that the user's files take.
    pub(crate) bytes: u64,
    /// The quota in bytes; 0: no limit.
    pub(crate) most: u64,
}

impl UserUsage {
    /// Encodes it as in the tree.
    pub(crate) fn encode(self) -> [u8; 16] {
        FieldWriter::new().u64(self.bytes).u64(self.most).done()
    }

    /// Decodes it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = FieldReader(bytes);
        let usage = Self { bytes: rest.u64()?, most: rest.u64()? };
        rest.end(usage).filter(|usage| usage.bytes < 1 << 63)
    }
}

/// Returns whether `kind` is a type of readdir: fifo, character device, directory, block device, file, symbolic link or
/// socket.
fn is_kind(kind: u8) -> bool {
    matches!(kind, 1 | 2 | 4 | 6 | 8 | 10 | 12)
}
