//! Values: attributes, extents, entries of directories, dumps, what users have.
//!
//! In: one of them. Out: its bytes, of the length that its kind has, and back. What is decoded is encoded as
//! the same bytes.

use nine_proto::{Qid, Time, mode};

use super::field::{In, Out, made};
use crate::date::Day;
use crate::ptr::{NEW, Ptr};

/// Blocks of the longest extent.
pub(crate) const EXTENT_MOST: u32 = 4096;

/// The number of a block in a file is below this.
pub(super) const NUMBERS: u64 = 1 << 52;

/// Flag of a file: it only grows at its end.
pub(crate) const APPEND: u32 = 1;
/// Flag of a file: one opens it at a time.
pub(crate) const EXCLUSIVE: u32 = 2;
/// Flag of a file: dumps do not need it.
pub(crate) const TEMPORARY: u32 = 4;
/// Flag of a symbolic link: its target is in blocks. An older program, which would find no target, does not know it and
/// refuses the inode.
pub(crate) const LONG_TARGET: u32 = 8;
/// Flag of an inode: it has an access control list, without which its mode says too much or too little. An older
/// program, which would not heed the list, does not know the flag and refuses the inode.
pub(crate) const ACCESS_ACL: u32 = 16;
/// Flag of a directory: it has a default access control list.
pub(crate) const DEFAULT_ACL: u32 = 32;
/// All that are known.
const FLAGS: u32 = APPEND | EXCLUSIVE | TEMPORARY | LONG_TARGET | ACCESS_ACL | DEFAULT_ACL;

/// Flags, and the bits of a qid's type that say the same.
const SPECIAL: [(u32, u8); 3] = [(APPEND, Qid::APPEND), (EXCLUSIVE, Qid::EXCL), (TEMPORARY, Qid::TMP)];

/// The attributes of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// Type and permissions as in stat(2).
    pub(crate) mode: u32,
    /// Owner.
    pub(crate) uid: u32,
    /// Group.
    pub(crate) gid: u32,
    /// Who changed it last.
    pub(crate) muid: u32,
    /// Names that it has.
    pub(crate) links: u32,
    /// [`APPEND`], [`EXCLUSIVE`], [`TEMPORARY`], [`LONG_TARGET`], [`ACCESS_ACL`], [`DEFAULT_ACL`].
    pub(crate) flags: u32,
    /// Bytes, below 2^63; of a directory entries.
    pub(crate) size: u64,
    /// Version of the content.
    pub(crate) version: u64,
    /// The directory in which it was entered last.
    pub(crate) parent: u64,
    /// Of a device.
    pub(crate) major: u32,
    /// Of a device.
    pub(crate) minor: u32,
    /// Of a directory: the last cookie given.
    pub(crate) cookies: u64,
    /// Accessed.
    pub(crate) atime: Time,
    /// Changed.
    pub(crate) mtime: Time,
    /// Attributes changed.
    pub(crate) ctime: Time,
    /// Made.
    pub(crate) btime: Time,
    /// Blocks of its own.
    pub(crate) blocks: u64,
}

impl Attributes {
    /// As they lie in the tree.
    pub(crate) fn encode(&self) -> [u8; 120] {
        Out::new()
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

    /// What lies there.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = In(bytes);
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
        // What is counted can be counted further.
        let counted = [attributes.size, attributes.version, attributes.cookies, attributes.blocks];
        let can_be = counted.iter().all(|count| *count < 1 << 63) && attributes.blocks < NEW;
        let right = known && is_kind(attributes.kind()) && can_be && attributes.links < u32::MAX >> 1;
        rest.end(attributes).filter(|_| right)
    }

    /// Its type, as in readdir.
    pub(crate) fn kind(&self) -> u8 {
        (self.mode >> 12) as u8
    }

    /// The bits of a qid's type that a client may ask for.
    pub(crate) fn special(&self) -> u8 {
        SPECIAL.iter().filter(|(flag, _)| self.flags & flag != 0).fold(0, |bits, (_, bit)| bits | bit)
    }

    /// Of a plain file; others have none. No stored file is exclusive and temporary: see [`Qid::EVENT`].
    pub(crate) fn set_special(&mut self, bits: u8) {
        let bits = if bits & Qid::EVENT == Qid::EVENT { bits & !Qid::TMP } else { bits };
        if self.mode & mode::S_IFMT == mode::S_IFREG {
            for (flag, bit) in SPECIAL {
                self.flags = self.flags & !flag | if bits & bit != 0 { flag } else { 0 };
            }
        }
    }

    /// It is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.mode & mode::S_IFMT == mode::S_IFDIR
    }
}

/// Blocks of a file, with addresses in a row and of one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first.
    pub(crate) at: Ptr,
    /// How many, 1 to [`EXTENT_MOST`].
    pub(crate) count: u32,
}

impl Extent {
    /// Some of its blocks, behind the first `skip`.
    pub(crate) fn split(self, skip: u32, count: u32) -> Self {
        let inside = skip.checked_add(count).is_some_and(|end| end <= self.count);
        assert!(count > 0 && inside, "blocks {skip}+{count} of {}", self.count);
        Self { at: Ptr { at: self.at.at + u64::from(skip), ..self.at }, count }
    }

    /// As it lies in the tree.
    pub(crate) fn encode(self) -> [u8; 16] {
        Out::new().u64(self.at.at).u32(self.count).u32(self.at.made).done()
    }

    /// What lies there.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = In(bytes);
        let (at, count, made) = (rest.u64()?, rest.u32()?, made(rest.u32()?)?);
        let end = at.checked_add(u64::from(count))?;
        // All on w, or none.
        let right = (1..=EXTENT_MOST).contains(&count) && (at >= NEW || end <= NEW);
        rest.end(Self { at: Ptr { at, made }, count }).filter(|_| right)
    }
}

/// A file of a directory, as it is found by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its inode.
    pub(crate) ino: u64,
    /// By which it is found too.
    pub(crate) cookie: u64,
    /// Its type, as in readdir.
    pub(crate) kind: u8,
}

impl Entry {
    /// As it lies in the tree.
    pub(crate) fn encode(self) -> [u8; 17] {
        Out::new().u64(self.ino).u64(self.cookie).put([self.kind]).done()
    }

    /// What lies there.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = In(bytes);
        let (ino, cookie, [kind]) = (rest.u64()?, rest.u64()?, rest.take()?);
        rest.end(Self { ino, cookie, kind }).filter(|_| ino > 0 && is_kind(kind))
    }
}

/// A file of a directory, as it is found by its cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named<'a> {
    /// Its inode.
    pub(crate) ino: u64,
    /// Its type, as in readdir.
    pub(crate) kind: u8,
    /// Its name, of 1 to 255 bytes.
    pub(crate) name: &'a [u8],
}

impl<'a> Named<'a> {
    /// As it lies in the tree.
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.ino.to_le_bytes()[..], &[self.kind], self.name].concat()
    }

    /// What lies there.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = In(bytes);
        let (ino, [kind], name) = (rest.u64()?, rest.take()?, rest.name()?);
        Some(Self { ino, kind, name }).filter(|_| ino > 0 && is_kind(kind))
    }
}

/// A dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DumpRecord {
    /// The root of its tree.
    pub(crate) root: Ptr,
    /// When it was.
    pub(crate) time: Time,
    /// The date of that in the zone of then.
    pub(crate) day: Day,
    /// Its number among the dumps of that date.
    pub(crate) number: u32,
    /// The first block of its segment.
    pub(crate) segment: u64,
    /// Blocks of its segment.
    pub(crate) blocks: u64,
}

impl DumpRecord {
    /// As it lies in the tree.
    pub(crate) fn encode(&self) -> [u8; 52] {
        Out::new()
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

    /// What lies there.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = In(bytes);
        let (at, made, zero) = (rest.u64()?, made(rest.u32()?)?, rest.u32()?);
        let record = Self {
            root: Ptr { at, made },
            time: rest.time()?,
            day: rest.day()?,
            number: rest.u32()?,
            segment: rest.u64()?,
            blocks: rest.u64()?,
        };
        rest.end(record).filter(|_| zero == 0)
    }
}

/// What a user has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Bytes that his files take.
    pub(crate) bytes: u64,
    /// The most that they may; 0: any.
    pub(crate) most: u64,
}

impl Usage {
    /// As it lies in the tree.
    pub(crate) fn encode(self) -> [u8; 16] {
        Out::new().u64(self.bytes).u64(self.most).done()
    }

    /// What lies there.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = In(bytes);
        let usage = Self { bytes: rest.u64()?, most: rest.u64()? };
        rest.end(usage).filter(|usage| usage.bytes < 1 << 63)
    }
}

/// A type of readdir: fifo, character device, directory, block device, file, symbolic link, socket.
fn is_kind(kind: u8) -> bool {
    matches!(kind, 1 | 2 | 4 | 6 | 8 | 10 | 12)
}
