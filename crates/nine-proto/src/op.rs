//! Operations on a file server and their replies, independent of the client's dialect.
//!
//! The operations are shaped like .L. A request has one fid, some have a second one. For each fid the server gets the
//! node that it supplied when the fid was created. If 9P2000 and .L differ for the client but not for the file (Tstat
//! and Tgetattr), there is one operation. If they differ for the file (Tcreate moves its fid, Tmkdir does not), there
//! are two.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use crate::attr::{Attr, GetMask, LockRequest, LockStatus, LockType, SetAttr, Statfs, mask};
use crate::dir::DirBuf;
use crate::error::{Errno, Error, Result};
use crate::ids::Qid;
use crate::msg::{MAXWELEM, Names as WalkNames};
use crate::wire::Str;

/// A request to a file server. Below, `fid` and `fid2` mean the nodes that accompany it.
#[derive(Clone, Debug)]
pub enum Op<'a> {
    /// Start authentication (`Reply::Auth`). A server that needs none returns an error.
    Auth {
        /// The user to authenticate; empty if only `uid` counts.
        uname: Str<'a>,
        /// The tree to attach to.
        aname: Str<'a>,
        /// Numeric user, or `NOUID`.
        uid: u32,
    },
    /// Create a fid for the root of a tree (`Reply::Attach`). `fid2` is the node of the afid, if there is one.
    Attach {
        /// The user; empty if only `uid` counts.
        uname: Str<'a>,
        /// The tree to attach to.
        aname: Str<'a>,
        /// Numeric user, or `NOUID`.
        uid: u32,
    },
    /// Walk from `fid` (`Reply::Walk`). Without names, the new fid is for the same file.
    Walk {
        /// At most 16 names. ".." is legal; at the root it leads to the root.
        names: WalkNames<'a>,
    },
    /// Prepare `fid` for reads and writes (`Reply::Open`).
    Open {
        /// The access modes and flags.
        flags: OpenFlags,
    },
    /// Create a file in the directory `fid` and open it. The fid moves to the new file (`Reply::Open`).
    Create {
        /// Its name.
        name: Str<'a>,
        /// The kind of file. For [`Make::Link`], `fid2` is the file to link to.
        make: Make<'a>,
        /// The flags to open it with.
        flags: OpenFlags,
        /// Its permissions.
        perm: Perm,
        /// Its group, or `NOGID` for the group of the directory.
        gid: u32,
    },
    /// Create a file in the directory `fid`. The fid stays at the directory (`Reply::Made`).
    Make {
        /// Its name.
        name: Str<'a>,
        /// The kind of file. For [`Make::Link`], `fid2` is the file to link to.
        make: Make<'a>,
        /// Its permissions.
        perm: Perm,
        /// Its group, or `NOGID` for the group of the directory.
        gid: u32,
    },
    /// Move the file `fid` into the directory `fid2` (`Done`). `fid` and all fids below it follow the file.
    Rename {
        /// Its new name.
        name: Str<'a>,
    },
    /// Move `old` in the directory `fid` to `new` in the directory `fid2` (`Done`).
    RenameAt {
        /// Its present name.
        old: Str<'a>,
        /// Its new name.
        new: Str<'a>,
        /// The treatment of an existing file with the new name. A server answers EINVAL to a mode that it does not
        /// support.
        how: RenameMode,
    },
    /// Remove a name from the directory `fid` (`Done`).
    Unlink {
        /// The name.
        name: Str<'a>,
        /// Whether the name must be a directory (`AT_REMOVEDIR`). If false, it must not be one.
        dir: bool,
    },
    /// Remove the file `fid` (`Done`). The fid ends even if this fails.
    Remove,
    /// Read the target of the symbolic link `fid` (`Reply::Target`).
    Readlink,
    /// Read attributes (`Reply::Attr`).
    Getattr {
        /// The requested attributes.
        mask: GetMask,
    },
    /// Change attributes: all or none of them (`Done`).
    Setattr {
        /// The changes.
        set: SetAttr<'a>,
    },
    /// List entries of the open directory `fid` (`Reply::Dir`). The entries go into the [`DirBuf`] of the request.
    Readdir {
        /// 0, or the cookie of the last entry that the client has.
        cookie: u64,
    },
    /// Read bytes of the open file `fid` (`Reply::Read`): fewer than requested at the end of the file, none after it.
    Read {
        /// Offset of the first byte.
        offset: u64,
        /// Maximum number of bytes.
        count: u32,
    },
    /// Write bytes to the open file `fid` (`Reply::Wrote`).
    Write {
        /// Offset of the first byte. Ignored for append-only files.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// Offer a connection that carries the bytes of the open file `fid` in order (`Reply::Stream`).
    Stream {
        /// The direction: true if the data flows from the server to the client.
        read: bool,
        /// Offset of the first byte.
        offset: u64,
    },
    /// Wait for the end of the stream of `fid` and report how it ended (`Reply::Sclosed`).
    Sclose {
        /// Number of bytes after which the stream ends. For a read, all ones mean the end of the file. For a write, it
        /// is the number of bytes that the client has sent.
        count: u64,
    },
    /// Reply when the file is on stable storage (`Done`).
    Fsync {
        /// Store only the content, not the times.
        datasync: bool,
    },
    /// Take or release a record lock (`Reply::Lock`). The server never waits: if another owner holds the lock it
    /// answers `Blocked`.
    Lock(LockRequest<'a>),
    /// Report a lock that conflicts with this one (`Reply::Getlock`).
    Getlock(LockRequest<'a>),
    /// Create a fid to read an extended attribute, or the list of names if `name` is empty (`Reply::Xattr`).
    XattrWalk {
        /// The attribute's name, or empty.
        name: Str<'a>,
    },
    /// Prepare `fid` for writing an extended attribute, which the clunk stores (`Reply::Moved`).
    XattrCreate {
        /// The attribute's name.
        name: Str<'a>,
        /// The number of bytes that the client will write.
        size: u64,
        /// `XATTR_CREATE` 1, `XATTR_REPLACE` 2. Size 0 with exactly `XATTR_REPLACE` removes the attribute: Linux sends
        /// this for removexattr(2). Size 0 with other flags stores an empty value.
        flags: u32,
    },
    /// Report on the file system (`Reply::Statfs`).
    Statfs,
    /// End the fid, whatever the reply (`Done`).
    Clunk,
}

/// The treatment of an existing file with the new name in a rename (rename(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// The file is replaced.
    #[default]
    Replace,
    /// The file stays and the rename fails (EEXIST).
    NoReplace,
    /// The file gets the old name. If there is no such file, the rename fails (ENOENT).
    Exchange,
}

impl RenameMode {
    /// Returns the flags of Trenameat2 and renameat2(2).
    pub fn flags(self) -> u32 {
        match self {
            Self::Replace => 0,
            Self::NoReplace => 1,
            Self::Exchange => 2,
        }
    }

    /// Returns the mode for these flags. `None` if they are unknown or exclude each other.
    pub fn from_flags(flags: u32) -> Option<Self> {
        [Self::Replace, Self::NoReplace, Self::Exchange].into_iter().find(|mode| mode.flags() == flags)
    }
}

/// The kind of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make<'a> {
    /// A plain file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link with this target.
    Symlink(Str<'a>),
    /// A hard link to the file `fid2`.
    Link,
    /// A device, pipe or socket.
    Node {
        /// `S_IFBLK`, `S_IFCHR`, `S_IFIFO` or `S_IFSOCK`.
        ty: u32,
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
}

/// Permissions of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Perm {
    /// Permission bits (07777).
    pub bits: u32,
    /// Whether the rule of open(5) applies: a new file gets no permission that the directory does not give to the same
    /// class. If false, the client has already applied a umask.
    pub inherit: bool,
    /// Bits of [`Qid::SPECIAL`], which are also the DM bits shifted right by 24. A server that does not support them
    /// creates a plain file.
    pub special: u8,
}

impl Perm {
    /// Returns the permission bits of a new file in a directory with the mode `dir_mode`.
    pub fn in_dir(self, dir_mode: u32, is_dir: bool) -> u32 {
        let all = if is_dir { 0o777 } else { 0o666 };
        if self.inherit { self.bits & (!all | (dir_mode & all)) } else { self.bits }
    }

    /// Returns the bits as Tcreate sends them, and Tlcreate with the extension
    /// [`SetAttr::special`](crate::SetAttr::special).
    pub fn on_the_wire(self) -> u32 {
        self.bits | u32::from(self.special) << 24
    }
}

mask! {
    /// Flags of an open: those of Tlopen (the octal numbers of x86 Linux), and two of 9P2000 that Linux lacks.
    OpenFlags(u32) {
        /// Read only; no bit is set.
        READ = 0;
        /// Write only.
        WRITE = 1;
        /// Read and write.
        RDWR = 2;
        /// Create the file if it does not exist.
        CREAT = 0o100;
        /// Fail if the file exists.
        EXCL = 0o200;
        /// Truncate the file to length 0.
        TRUNC = 0o1000;
        /// Writes append to the end of the file.
        APPEND = 0o2000;
        /// Do not wait for the other end of a pipe.
        NONBLOCK = 0o4000;
        /// A write is on stable storage before its reply.
        DSYNC = 0o10000;
        /// Bypass the page cache.
        DIRECT = 0o40000;
        /// Fail if it is not a directory.
        DIRECTORY = 0o200000;
        /// Fail if it is a symbolic link.
        NOFOLLOW = 0o400000;
        /// Do not change the access time.
        NOATIME = 0o1000000;
        /// Like DSYNC, including the attributes.
        SYNC = 0o4010000;
        /// All the bits above: those of a client's Tlopen that concern a server. Linux sends others (NOCTTY, FASYNC,
        /// LARGEFILE, CLOEXEC), which matter only to the client.
        WIRE = 0o5_657_303;
        /// Open for execution: a read that needs execute permission (OEXEC).
        EXEC = 1 << 30;
        /// Remove the file at the clunk (ORCLOSE). The session removes it; the server only checks the permission.
        RCLOSE = 1 << 31;
    }
}

impl OpenFlags {
    /// Whether the flags include reading.
    pub fn reads(self) -> bool {
        self.0 & 3 != 1
    }

    /// Whether the flags include writing.
    pub fn writes(self) -> bool {
        matches!(self.0 & 3, 1 | 2)
    }

    /// Whether the open changes the file or permits changes.
    pub fn changes(self) -> bool {
        self.writes() || self.0 & (Self::TRUNC | Self::RCLOSE | Self::CREAT).0 != 0
    }

    /// Converts a 9P2000 mode byte (open(5)). OCEXEC concerns only the client and is ignored.
    pub fn from_mode(mode: u8) -> Self {
        let mut flags = match mode & 3 {
            0 => Self::READ,
            1 => Self::WRITE,
            2 => Self::RDWR,
            _ => Self::EXEC,
        };
        for (bit, flag) in [(0x10, Self::TRUNC), (0x40, Self::RCLOSE), (0x80, Self::APPEND)] {
            if mode & bit != 0 {
                flags |= flag;
            }
        }
        flags
    }

    /// Converts to a mode byte as far as possible. `u` adds the bit that only .u has (OAPPEND).
    pub fn to_mode(self, u: bool) -> u8 {
        let mut mode = if self.has(Self::EXEC) { 3 } else { (self.0 & 3) as u8 };
        for (bit, flag, known) in
            [(0x10, Self::TRUNC, true), (0x40, Self::RCLOSE, true), (0x80, Self::APPEND, u)]
        {
            if known && self.has(flag) {
                mode |= bit;
            }
        }
        mode
    }

    /// Returns the bits that Tlopen has.
    pub fn to_wire(self) -> u32 {
        self.0 & !(Self::EXEC | Self::RCLOSE).0
    }
}

/// The reply of a file server. `N` is a node, the server's value for a fid. `P` is data.
#[derive(Debug)]
pub enum Reply<N, P> {
    /// Success without a result.
    Done,
    /// Reply to `Auth`.
    Auth {
        /// The qid, whose type has `Qid::AUTH`.
        qid: Qid,
        /// The node of the afid.
        node: N,
    },
    /// Reply to `Attach`.
    Attach {
        /// The qid of the root.
        qid: Qid,
        /// The node of the new fid.
        node: N,
    },
    /// Reply to `Walk`. It has a node if and only if all names were walked.
    Walk {
        /// The qids of the names that were walked.
        qids: Walked,
        /// The node of the new fid.
        node: Option<N>,
    },
    /// Reply to `Open` and `Create`.
    Open {
        /// The qid of the open file, which may differ from the file of the request (a clone file).
        qid: Qid,
        /// Number of bytes that one message can transfer atomically; 0 if not specified.
        iounit: u32,
        /// The new node of the fid.
        node: N,
    },
    /// Reply to `Make`.
    Made(Qid),
    /// Reply to `XattrCreate`: the new node of the fid.
    Moved(N),
    /// Reply to `Readlink`.
    Target(Box<[u8]>),
    /// Reply to `Getattr`. Boxed because it is by far the largest.
    Attr(Box<Attr>),
    /// Reply to `Readdir`.
    Dir(DirBuf),
    /// Reply to `Read`.
    Read(P),
    /// Reply to `Write`: the number of bytes that were accepted.
    Wrote(u32),
    /// Reply to `Stream`: a dial string, a space, a one-use token.
    Stream(Vec<u8>),
    /// Reply to `Sclose`.
    Sclosed {
        /// Number of bytes that were sent or stored.
        count: u64,
        /// The error that ended the stream early, or 0.
        errno: u32,
        /// The error text, or empty. On the wire at most 128 bytes.
        ename: Box<str>,
    },
    /// Reply to `Lock`.
    Lock(LockStatus),
    /// Reply to `Getlock`: the conflicting lock, or the request's own values with `Unlock`.
    Getlock {
        /// `Unlock` if there is no conflict.
        ty: LockType,
        /// First byte.
        start: u64,
        /// Length in bytes.
        length: u64,
        /// The owner's process.
        proc_id: u32,
        /// The owner's host.
        client_id: Box<[u8]>,
    },
    /// Reply to `XattrWalk`.
    Xattr {
        /// Number of bytes to read.
        size: u64,
        /// The node of the new fid.
        node: N,
    },
    /// Reply to `Statfs`.
    Statfs(Statfs),
}

/// The qids of a walk, in order.
#[derive(Clone)]
pub struct Walked(QidList);

#[derive(Clone)]
enum QidList {
    /// Room for the qids of most walks, without an allocation.
    Few([Qid; INLINE_QIDS_MAX], u8),
    Many(Vec<Qid>),
}

const INLINE_QIDS_MAX: usize = 4;

impl Walked {
    /// Creates an empty list.
    pub const fn new() -> Self {
        Self(QidList::Few([Qid { ty: 0, vers: 0, path: 0 }; INLINE_QIDS_MAX], 0))
    }

    /// Appends the qid of another name. A request has at most 16.
    pub fn push(&mut self, qid: Qid) {
        match &mut self.0 {
            QidList::Few(qids, len) if usize::from(*len) < INLINE_QIDS_MAX => {
                qids[usize::from(*len)] = qid;
                *len += 1;
            }
            QidList::Few(qids, _) => {
                let mut many = Vec::with_capacity(MAXWELEM);
                many.extend_from_slice(qids);
                many.push(qid);
                self.0 = QidList::Many(many);
            }
            QidList::Many(many) => many.push(qid),
        }
    }
}

impl Default for Walked {
    fn default() -> Self {
        Self::new()
    }
}

impl core::ops::Deref for Walked {
    type Target = [Qid];
    fn deref(&self) -> &[Qid] {
        match &self.0 {
            QidList::Few(qids, len) => &qids[..usize::from(*len)],
            QidList::Many(many) => many,
        }
    }
}

impl fmt::Debug for Walked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Checks a name of a directory entry: at most 255 bytes (ENAMETOOLONG); not empty, ".", or "..", and without '/' and
/// NUL (EINVAL).
pub fn check_name(name: Str<'_>) -> Result<()> {
    if name.len() > 255 {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|&b| b == b'/' || b == 0) {
        return Err(Error::new(Errno::EINVAL, "bad file name"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_a_directory_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert_eq!(check_name(name).unwrap_err().errno, Errno::EINVAL);
        }
        assert_eq!(check_name(&[b'x'; 256]).unwrap_err().errno, Errno::ENAMETOOLONG);
        for name in [&b"..."[..], b" ", b"\xff", &[b'x'; 255]] {
            assert_eq!(check_name(name), Ok(()));
        }
    }

    #[test]
    fn a_new_file_gets_no_more_than_its_directory_permits() {
        let perm = Perm { bits: 0o777, inherit: true, special: 0 };
        assert_eq!(perm.in_dir(0o750, false), 0o751);
        assert_eq!(perm.in_dir(0o750, true), 0o750);
        assert_eq!(Perm { inherit: false, ..perm }.in_dir(0, true), 0o777);
    }

    #[test]
    fn modes_and_flags_say_the_same() {
        for mode in [0u8, 1, 2, 3, 0x11, 0x42, 0x53, 0x81] {
            assert_eq!(OpenFlags::from_mode(mode).to_mode(true), mode);
            assert_eq!(OpenFlags::from_mode(mode).to_mode(false), mode & !0x80);
        }
        assert!(OpenFlags::from_mode(3).reads());
        assert!(!OpenFlags::WRITE.reads() && OpenFlags::RDWR.writes());
    }
}
