//! The kernel's messages over /dev/fuse and their answers (fuse(4), Linux' include/uapi/linux/fuse.h, 7.31 and later):
//! numbers, and fields in the order and the byte order of this machine.
//!
//! In: the bytes of one request. Out: its head and its fields, one after the other; the bytes of an answer. A missing
//! field is `None`, never a panic.

use std::time::Duration;

use nine_proto::{Attr, Statfs, Time};

/// The version spoken here. Kernels with newer minor versions understand it.
pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 40;
/// The oldest minor version with all required features (Linux 5.4).
pub(super) const MINOR_MIN: u32 = 31;

/// Bytes before the fields of a request, and of an answer.
pub(super) const IN: usize = 40;
pub(super) const OUT: usize = 16;
/// Bytes of a WRITE's fields. Its data follows.
pub(super) const WRITE_IN: usize = 40;

/// Requests.
pub(super) mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
}

/// Features that the kernel offers and we accept in INIT.
pub(super) mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
}

/// Which attributes SETATTR changes.
pub(super) mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// How the kernel has a file open.
pub(super) mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NONSEEKABLE: u32 = 1 << 2;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const STREAM: u32 = 1 << 4;
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// GETATTR: the file handle is valid.
pub(super) const GETATTR_FH: u32 = 1;
/// WRITE: comes from the page cache, not directly from the program with the handle.
pub(super) const WRITE_CACHE: u32 = 1;
/// WRITE: set-id bits are to be cleared.
pub(super) const WRITE_KILL_SUIDGID: u32 = 4;
/// SETXATTR: the set-group-id bit is to be cleared, because the caller is not in the file's group.
pub(super) const SETXATTR_KILL_SGID: u32 = 1;
/// ACCESS: to execute, to write, to read (access(2)).
pub(super) mod access {
    pub const EXECUTE: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const READ: u32 = 4;
}
/// RELEASE: the locks of flock(2) are to be released.
pub(super) const RELEASE_FLOCK_UNLOCK: u32 = 2;
/// FSYNC: only the data, and the metadata needed to read it.
pub(super) const FSYNC_DATA: u32 = 1;
/// SETLK: a lock of flock(2).
pub(super) const LK_FLOCK: u32 = 1;
/// Codes of unsolicited messages to the kernel.
pub(super) const INVAL_INODE: i32 = 2;
pub(super) const INVAL_ENTRY: i32 = 3;
/// INVAL_ENTRY: the kernel looks the name up again. Programs that have it open, or work in it, are not affected.
pub(super) const EXPIRE_ONLY: u32 = 1;

/// The head of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct FuseHeader {
    pub op: u32,
    /// Names the request.
    pub unique: u64,
    /// The file it is about; 1 is the root.
    pub node: u64,
    /// The caller.
    pub uid: u32,
    pub gid: u32,
    /// The caller's thread; 0: it has none here.
    pub pid: u32,
}

impl FuseHeader {
    /// Parses the head. `None`: these bytes are not a request.
    pub(super) fn of(bytes: &[u8]) -> Option<(Self, FuseFields<'_>)> {
        let mut words = FuseFields(bytes);
        let len = words.u32()?;
        let head = Self {
            op: words.u32()?,
            unique: words.u64()?,
            node: words.u64()?,
            uid: words.u32()?,
            gid: words.u32()?,
            pid: words.u32()?,
        };
        // Fields of later versions.
        words.u32()?;
        (len as usize == bytes.len()).then_some((head, words))
    }
}

/// The unparsed fields of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct FuseFields<'a>(pub &'a [u8]);

impl<'a> FuseFields<'a> {
    pub(super) fn u32(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*word))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*word))
    }

    /// Takes a text that ends with a zero byte.
    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Some(text)
    }
}

/// An answer under construction.
#[derive(Debug, Default)]
pub(super) struct AnswerBuffer(pub Vec<u8>);

impl AnswerBuffer {
    pub(super) fn u32(mut self, word: u32) -> Self {
        self.0.extend_from_slice(&word.to_ne_bytes());
        self
    }

    pub(super) fn u64(mut self, word: u64) -> Self {
        self.0.extend_from_slice(&word.to_ne_bytes());
        self
    }

    pub(super) fn u16(mut self, word: u16) -> Self {
        self.0.extend_from_slice(&word.to_ne_bytes());
        self
    }

    /// `struct fuse_attr`. `node` replaces an inode number of 0, which a server without numbers reports.
    pub(super) fn attr(self, node: u64, attr: &Attr) -> Self {
        let second = |time: Time| time.sec as u64;
        let ino = if attr.qid.path == 0 { node } else { attr.qid.path };
        self.u64(ino)
            .u64(attr.size)
            .u64(attr.blocks)
            .u64(second(attr.atime))
            .u64(second(attr.mtime))
            .u64(second(attr.ctime))
            .u32(attr.atime.nsec)
            .u32(attr.mtime.nsec)
            .u32(attr.ctime.nsec)
            .u32(attr.mode)
            .u32(u32::try_from(attr.nlink).unwrap_or(u32::MAX))
            .u32(attr.uid)
            .u32(attr.gid)
            .u32(attr.rdev as u32)
            .u32(u32::try_from(attr.blksize).unwrap_or(u32::MAX))
            .u32(0)
    }

    /// `struct fuse_attr_out`.
    pub(super) fn attr_for(self, good: Duration, node: u64, attr: &Attr) -> Self {
        self.u64(good.as_secs()).u32(good.subsec_nanos()).u32(0).attr(node, attr)
    }

    /// `struct fuse_entry_out`: how long the name and the attributes are valid, and the attributes.
    pub(super) fn entry(self, good: [Duration; 2], node: u64, attr: &Attr) -> Self {
        self.entry_head(good, node).attr(node, attr)
    }

    /// Node 0: the name does not exist. `good`: how long that is valid.
    pub(super) fn no_entry(self, good: Duration) -> Self {
        self.entry_head([good; 2], 0).attr(0, &Attr::default())
    }

    fn entry_head(self, [name, attr]: [Duration; 2], node: u64) -> Self {
        // Numbers are never reused, so the generation is 0.
        let out = self.u64(node).u64(0).u64(name.as_secs()).u64(attr.as_secs());
        out.u32(name.subsec_nanos()).u32(attr.subsec_nanos())
    }

    /// `struct fuse_open_out`.
    pub(super) fn open(self, handle: u64, flags: u32, backing: u32) -> Self {
        self.u64(handle).u32(flags).u32(backing)
    }

    /// `struct fuse_dirent`. `next`: the position after this entry.
    pub(super) fn entry_name(mut self, ino: u64, next: u64, ty: u8, name: &[u8]) -> Self {
        self = self.u64(ino).u64(next).u32(name.len() as u32).u32(ty.into());
        self.0.extend_from_slice(name);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self
    }

    /// `struct fuse_statfs_out`.
    pub(super) fn statfs(self, about: &Statfs) -> Self {
        let size = about.bsize.max(512);
        self.u64(about.blocks)
            .u64(about.bfree)
            .u64(about.bavail)
            .u64(about.files)
            .u64(about.ffree)
            .u32(size)
            .u32(about.namelen)
            .u32(size)
            .u32(0)
            .u64(0)
            .u64(0)
            .u64(0)
    }
}

/// Bytes of a READDIR entry for a name of `name` bytes. READDIRPLUS adds [`ENTRY`].
pub(super) fn entry_size(name: usize) -> usize {
    (24 + name).next_multiple_of(8)
}

/// `struct fuse_entry_out`, bytes.
pub(super) const ENTRY: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_sizes_of_the_kernels_structures() {
        let attr = Attr::default();
        assert_eq!(AnswerBuffer::default().attr(1, &attr).0.len(), 88);
        assert_eq!(AnswerBuffer::default().attr_for(Duration::ZERO, 1, &attr).0.len(), 104);
        assert_eq!(AnswerBuffer::default().entry([Duration::ZERO; 2], 1, &attr).0.len(), ENTRY);
        assert_eq!(AnswerBuffer::default().no_entry(Duration::ZERO).0.len(), ENTRY);
        assert_eq!(AnswerBuffer::default().open(1, 0, 0).0.len(), 16);
        assert_eq!(AnswerBuffer::default().statfs(&Statfs::default()).0.len(), 80);
        for name in [&b"a"[..], b"12345678", b"123456789"] {
            assert_eq!(AnswerBuffer::default().entry_name(1, 1, 8, name).0.len(), entry_size(name.len()));
        }
    }

    #[test]
    fn what_is_no_request_is_none() {
        let whole = AnswerBuffer::default()
            .u32(48)
            .u32(1)
            .u64(7)
            .u64(1)
            .u32(5)
            .u32(0)
            .u64(9)
            .u32(0x0061_6263)
            .u32(0)
            .0;
        let (head, mut fields) = FuseHeader::of(&whole).expect("a request");
        assert_eq!((head.op, head.unique, head.node, head.uid), (1, 7, 1, 5));
        assert_eq!((fields.text(), fields.0.len()), (Some(&b"cba"[..]), 4));
        assert_eq!((fields.u64(), fields.u32(), fields.text()), (None, Some(0), None));
        assert!((0..whole.len()).all(|len| FuseHeader::of(&whole[..len]).is_none()));
    }
}
