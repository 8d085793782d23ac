//! File attributes in the form of .L, which all dialects are converted from and to.

use alloc::boxed::Box;
use alloc::string::{String, ToString};

use crate::ids::{NOGID, NOUID, Qid};
use crate::wire::Str;

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nsec: u32,
}

/// The attributes of a file (Rgetattr). A field without its bit in `valid` is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// The fields that are valid.
    pub valid: GetMask,
    /// Its qid.
    pub qid: Qid,
    /// `st_mode` of Linux: type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u64,
    /// Device number, `makedev` of Linux, for device files.
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// Preferred size of reads and writes, bytes.
    pub blksize: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of attributes.
    pub ctime: Time,
    /// Creation time.
    pub btime: Time,
    /// Generation number, which tells apart files that used the same inode number.
    pub generation: u64,
    /// Version of the content: a counter of its changes.
    pub data_version: u64,
    /// Texts that only Rstat needs. Requested with [`GetMask::TEXTS`].
    pub texts: Option<Box<Texts>>,
}

/// The strings of a stat record that have no numeric form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// The file's name in its directory; `/` for the root.
    pub name: Box<[u8]>,
    /// Target of a symbolic link (.u `extension`).
    pub target: Box<[u8]>,
    /// Names of the owner, the group and the last modifier, if the server has names and no numbers. If `None`, the
    /// session asks its [`Names`].
    pub owners: Option<[Box<[u8]>; 3]>,
}

impl Texts {
    /// Returns the total length in bytes.
    pub fn len(&self) -> usize {
        let owners = self.owners.iter().flatten().map(|owner| owner.len()).sum::<usize>();
        self.name.len() + self.target.len() + owners
    }

    /// Whether all texts are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

macro_rules! mask {
    ($(#[$doc:meta])* $mask:ident($int:ty) { $($(#[$fdoc:meta])* $name:ident = $value:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $mask(pub $int);

        impl $mask {
            $($(#[$fdoc])* pub const $name: Self = Self($value);)*

            /// Whether all bits of `other` are set.
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
        }

        impl core::ops::BitOr for $mask {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl core::ops::BitOrAssign for $mask {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }
    };
}
pub(crate) use mask;

mask! {
    /// Requested or valid attributes (Tgetattr `request_mask`, Rgetattr `valid`).
    GetMask(u64) {
        /// Mode.
        MODE = 1;
        /// Hard links.
        NLINK = 2;
        /// Owner.
        UID = 4;
        /// Group.
        GID = 8;
        /// Device number.
        RDEV = 0x10;
        /// Last read.
        ATIME = 0x20;
        /// Last change of content.
        MTIME = 0x40;
        /// Last change of attributes.
        CTIME = 0x80;
        /// Inode number.
        INO = 0x100;
        /// Length.
        SIZE = 0x200;
        /// Allocated blocks.
        BLOCKS = 0x400;
        /// Creation.
        BTIME = 0x800;
        /// Generation.
        GEN = 0x1000;
        /// Content version.
        DATA_VERSION = 0x2000;
        /// The fields of stat(2).
        BASIC = 0x7ff;
        /// All bits that are sent on the wire.
        ALL = 0x3fff;
        /// [`Attr::texts`]. Never sent on the wire.
        TEXTS = 1 << 63;
    }
}

mask! {
    /// Which attributes Tsetattr changes.
    SetMask(u32) {
        /// Permission bits.
        MODE = 1;
        /// Owner.
        UID = 2;
        /// Group.
        GID = 4;
        /// Length.
        SIZE = 8;
        /// Access time: now, or the given value with `ATIME_SET`.
        ATIME = 0x10;
        /// Modification time: now, or the given value with `MTIME_SET`.
        MTIME = 0x20;
        /// Attribute change time: now.
        CTIME = 0x40;
        /// `atime` is a given value.
        ATIME_SET = 0x80;
        /// `mtime` is a given value.
        MTIME_SET = 0x100;
    }
}

/// A new time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSet {
    /// The current time of the server's clock.
    Now,
    /// This time.
    To(Time),
}

/// A change of attributes. `None` leaves an attribute as it is. A server makes all the changes or none (stat(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr<'a> {
    /// New name in the same directory (Twstat). The name must not exist.
    pub name: Option<Str<'a>>,
    /// New permission bits (07777).
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<TimeSet>,
    /// New modification time.
    pub mtime: Option<TimeSet>,
    /// New bits of [`Qid::SPECIAL`], only together with `mode`. 9P2000 sends them with the permissions. In .L they are
    /// extra bits of `mode` in Tsetattr and Tlcreate, at the positions of the DM bits. No other .L peer uses those
    /// positions. In a Tsetattr, [`mode::DMAUTH`] marks that they are present.
    pub special: Option<u8>,
}

/// Information about a file system (Rstatfs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Kind of file system (`f_type`).
    pub ty: u32,
    /// Block size, bytes.
    pub bsize: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for users.
    pub bavail: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Identifier of the file system.
    pub fsid: u64,
    /// Longest name, bytes.
    pub namelen: u32,
}

impl Statfs {
    /// The `f_type` that Linux shows for a 9P mount.
    pub const V9FS: u32 = 0x0102_1997;
}

/// A record lock (Tlock, Tgetlock; fcntl(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest<'a> {
    /// The requested lock.
    pub ty: LockType,
    /// `P9_LOCK_FLAGS_BLOCK` 1, `P9_LOCK_FLAGS_RECLAIM` 2.
    pub flags: u32,
    /// First byte.
    pub start: u64,
    /// Length in bytes. 0 means to the end of the file, however it grows.
    pub length: u64,
    /// The owner's process on its host.
    pub proc_id: u32,
    /// The owner's host.
    pub client_id: Str<'a>,
}

/// Kinds of record lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockType {
    /// Shared.
    Read = 0,
    /// Exclusive.
    Write = 1,
    /// No lock: a request to release, or the answer that the range is free.
    Unlock = 2,
}

/// Result of a Tlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockStatus {
    /// The lock was taken (or released).
    Success = 0,
    /// Another owner holds the lock. The client may ask again.
    Blocked = 1,
    /// The request failed.
    Error = 2,
    /// The server is recovering locks.
    Grace = 3,
}

/// Translates between the numbers and the names of users and groups. A dialect with text needs it when the server has
/// numbers, and the reverse. Methods must not block: look up directory services beforehand, off the event loop.
pub trait Names: Send + Sync {
    /// Returns the user's name.
    fn user(&self, uid: u32) -> String {
        number(uid)
    }
    /// Returns the group's name.
    fn group(&self, gid: u32) -> String {
        number(gid)
    }
    /// Returns the user's number, or `None` if the name is unknown.
    fn uid(&self, name: Str<'_>) -> Option<u32> {
        parse(name)
    }
    /// Returns the group's number, or `None` if the name is unknown.
    fn gid(&self, name: Str<'_>) -> Option<u32> {
        parse(name)
    }
}

/// A [`Names`] that uses decimal numbers as names.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numeric;

impl Names for Numeric {}

fn number(id: u32) -> String {
    if id == NOUID || id == NOGID { "none".to_string() } else { id.to_string() }
}

fn parse(name: Str<'_>) -> Option<u32> {
    core::str::from_utf8(name).ok()?.parse().ok()
}
