//! One vocabulary inside: what may be asked of a file server, and what it may answer, whatever dialect the client
//! speaks.
//!
//! Shaped like .L. A request has one fid, some have a second one; the server finds behind each the node it gave when
//! it made the fid. Where 9P2000 and .L differ for the client but not for the file (Tstat and Tgetattr), there is one
//! operation; where they differ for the file (Tcreate moves its fid, Tmkdir does not), there are two.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use crate::attr::{Attr, GetMask, LockRequest, LockStatus, LockType, SetAttr, Statfs, mask};
use crate::dir::DirBuf;
use crate::error::{Errno, Error, Result};
use crate::ids::Qid;
use crate::msg::{MAXWELEM, Names as WalkNames};
use crate::wire::Str;

/// A request as a file server sees it. `fid` and `fid2` below are the nodes that travel beside it.
#[derive(Clone, Debug)]
pub enum Op<'a> {
    /// Begin authentication (`Reply::Auth`); refused with an error where none is needed.
    Auth {
        /// Who it shall be for; empty when only `uid` counts.
        uname: Str<'a>,
        /// Which tree.
        aname: Str<'a>,
        /// Numeric user or `NOUID`.
        uid: u32,
    },
    /// Make a fid for the root of a tree (`Reply::Attach`). `fid2`: the node of the afid, if there is one.
    Attach {
        /// Who asks; empty when only `uid` counts.
        uname: Str<'a>,
        /// Which tree.
        aname: Str<'a>,
        /// Numeric user or `NOUID`.
        uid: u32,
    },
    /// Go down from `fid` (`Reply::Walk`). No names: another fid for the same file.
    Walk {
        /// At most 16; ".." is legal and at the root leads nowhere.
        names: WalkNames<'a>,
    },
    /// Prepare `fid` for reads and writes (`Reply::Open`).
    Open {
        /// How.
        flags: OpenFlags,
    },
    /// Make a file in the directory `fid` and open it: the fid moves to it (`Reply::Open`).
    Create {
        /// Its name.
        name: Str<'a>,
        /// What to make; `fid2` is the file to link to for [`Make::Link`].
        make: Make<'a>,
        /// How to open it.
        flags: OpenFlags,
        /// Its permissions.
        perm: Perm,
        /// Its group, or `NOGID` for that of the directory.
        gid: u32,
    },
    /// Make a file in the directory `fid`, which stays where it is (`Reply::Made`).
    Make {
        /// Its name.
        name: Str<'a>,
        /// What to make; `fid2` is the file to link to for [`Make::Link`].
        make: Make<'a>,
        /// Its permissions.
        perm: Perm,
        /// Its group, or `NOGID` for that of the directory.
        gid: u32,
    },
    /// Move the file `fid` into the directory `fid2` (`Done`). `fid` goes with it, and so does every fid below.
    Rename {
        /// Its new name.
        name: Str<'a>,
    },
    /// Move `old` in the directory `fid` to `new` in the directory `fid2` (`Done`).
    RenameAt {
        /// Its name now.
        old: Str<'a>,
        /// Its new name.
        new: Str<'a>,
        /// What happens to a file that has the new name already. A server that cannot do it answers EINVAL.
        how: RenameMode,
    },
    /// Remove a name from the directory `fid` (`Done`).
    Unlink {
        /// The name.
        name: Str<'a>,
        /// Whether it must be a directory (`AT_REMOVEDIR`); if not, it must not be one.
        dir: bool,
    },
    /// Remove the file `fid` (`Done`); the fid is gone in any case.
    Remove,
    /// Where the symbolic link `fid` leads (`Reply::Target`).
    Readlink,
    /// Attributes (`Reply::Attr`).
    Getattr {
        /// Which.
        mask: GetMask,
    },
    /// Change attributes: all or none (`Done`).
    Setattr {
        /// What to change.
        set: SetAttr<'a>,
    },
    /// Entries of the open directory `fid` (`Reply::Dir`), put into the [`DirBuf`] that travels with the request.
    Readdir {
        /// 0, or the cookie of the last entry the client has.
        cookie: u64,
    },
    /// Bytes of the open file `fid` (`Reply::Read`); fewer than asked at the end of the file, none beyond it.
    Read {
        /// First byte.
        offset: u64,
        /// At most this many.
        count: u32,
    },
    /// Change bytes of the open file `fid` (`Reply::Wrote`).
    Write {
        /// First byte; without meaning for append-only files.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// Offer a connection that carries the bytes of the open file `fid` in order (`Reply::Stream`).
    Stream {
        /// From the server, not to it.
        read: bool,
        /// First byte.
        offset: u64,
    },
    /// How the stream of `fid` has ended, once it has (`Reply::Sclosed`).
    Sclose {
        /// Bytes after which it ends: all ones when reading is "at the end of the file", when writing what the client
        /// has sent.
        count: u64,
    },
    /// Reply when the file is on stable storage (`Done`).
    Fsync {
        /// Content only, not times.
        datasync: bool,
    },
    /// Take or release a record lock (`Reply::Lock`). Never waits: a lock that is held is `Blocked`.
    Lock(LockRequest<'a>),
    /// Who would be in the way (`Reply::Getlock`).
    Getlock(LockRequest<'a>),
    /// Make a fid from which an extended attribute can be read; no name: the list of names (`Reply::Xattr`).
    XattrWalk {
        /// Which, or empty.
        name: Str<'a>,
    },
    /// Turn `fid` into a place to write an extended attribute, which is stored by the clunk (`Reply::Moved`).
    XattrCreate {
        /// Which.
        name: Str<'a>,
        /// How many bytes will be written.
        size: u64,
        /// `XATTR_CREATE` 1, `XATTR_REPLACE` 2. Size 0 with exactly `XATTR_REPLACE` removes the attribute: so does
        /// Linux say removexattr(2). Size 0 with other flags stores an empty value.
        flags: u32,
    },
    /// About the file system (`Reply::Statfs`).
    Statfs,
    /// The fid is gone, whatever is answered (`Done`).
    Clunk,
}

/// How a rename treats a file that has the new name already (rename(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    #[default]
    Replace,
    /// It stays, and the rename fails (EEXIST).
    NoReplace,
    /// It gets the old name. Without one the rename fails (ENOENT).
    Exchange,
}

impl RenameMode {
    /// As Trenameat2 and renameat2(2) have it.
    pub fn flags(self) -> u32 {
        match self {
            Self::Replace => 0,
            Self::NoReplace => 1,
            Self::Exchange => 2,
        }
    }

    /// `None`: flags that are not known, or exclude each other.
    pub fn from_flags(flags: u32) -> Option<Self> {
        [Self::Replace, Self::NoReplace, Self::Exchange].into_iter().find(|mode| mode.flags() == flags)
    }
}

/// What a new file shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make<'a> {
    /// A plain file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link to this.
    Symlink(Str<'a>),
    /// Another name for the file `fid2`.
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
    /// 07777.
    pub bits: u32,
    /// The rule of open(5): what the directory does not permit to a class, the new file does not either. Without it,
    /// the client has applied a umask.
    pub inherit: bool,
    /// Of [`Qid::SPECIAL`], as DM bits. A server that does not know them makes a plain file.
    pub special: u8,
}

impl Perm {
    /// The bits of the new file in a directory of these permissions.
    pub fn in_dir(self, dir_mode: u32, is_dir: bool) -> u32 {
        let all = if is_dir { 0o777 } else { 0o666 };
        if self.inherit { self.bits & (!all | (dir_mode & all)) } else { self.bits }
    }

    /// As Tcreate has them, and Tlcreate by the extension of [`SetAttr::special`](crate::SetAttr::special).
    pub fn on_the_wire(self) -> u32 {
        self.bits | u32::from(self.special) << 24
    }
}

mask! {
    /// How a file is opened: Tlopen's flags (the octal numbers of x86 Linux), and two of 9P2000 that Linux lacks.
    OpenFlags(u32) {
        /// Read only: no bit at all.
        READ = 0;
        /// Write only.
        WRITE = 1;
        /// Both.
        RDWR = 2;
        /// Make it if it is not there.
        CREAT = 0o100;
        /// It must not be there.
        EXCL = 0o200;
        /// Cut it to length 0.
        TRUNC = 0o1000;
        /// Writes go to the end.
        APPEND = 0o2000;
        /// Do not wait for the other end of a pipe.
        NONBLOCK = 0o4000;
        /// Writes are on stable storage when answered.
        DSYNC = 0o10000;
        /// Past the page cache.
        DIRECT = 0o40000;
        /// It must be a directory.
        DIRECTORY = 0o200000;
        /// It must not be a symbolic link.
        NOFOLLOW = 0o400000;
        /// Do not change the access time.
        NOATIME = 0o1000000;
        /// Like DSYNC, with the attributes.
        SYNC = 0o4010000;
        /// Every bit above: what a client's Tlopen can ask a server for. Linux sends others (NOCTTY, FASYNC,
        /// LARGEFILE, CLOEXEC) that it means for itself.
        WIRE = 0o5_657_303;
        /// For execution: a read that needs execute permission (OEXEC).
        EXEC = 1 << 30;
        /// Remove it at the clunk (ORCLOSE); the session does it, the server only checks the permission.
        RCLOSE = 1 << 31;
    }
}

impl OpenFlags {
    /// Whether reads are asked for.
    pub fn reads(self) -> bool {
        self.0 & 3 != 1
    }

    /// Whether writes are asked for.
    pub fn writes(self) -> bool {
        matches!(self.0 & 3, 1 | 2)
    }

    /// Whether opening changes the file, or may.
    pub fn changes(self) -> bool {
        self.writes() || self.0 & (Self::TRUNC | Self::RCLOSE | Self::CREAT).0 != 0
    }

    /// The flags of a 9P2000 mode byte (open(5)). OCEXEC is the client's own business.
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

    /// The mode byte that asks for the same, as far as one can; `u` adds the bit that only .u knows (OAPPEND).
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

    /// The bits that Tlopen knows.
    pub fn to_wire(self) -> u32 {
        self.0 & !(Self::EXEC | Self::RCLOSE).0
    }
}

/// The answer of a file server. `N` is a node, what the server keeps behind a fid; `P` is data.
#[derive(Debug)]
pub enum Reply<N, P> {
    /// It is done.
    Done,
    /// Of `Auth`.
    Auth {
        /// Its type has `Qid::AUTH`.
        qid: Qid,
        /// Behind the afid.
        node: N,
    },
    /// Of `Attach`.
    Attach {
        /// Of the root.
        qid: Qid,
        /// Behind the new fid.
        node: N,
    },
    /// Of `Walk`: a node exactly if all names were walked.
    Walk {
        /// Of each name that was walked.
        qids: Walked,
        /// Behind the new fid.
        node: Option<N>,
    },
    /// Of `Open` and `Create`.
    Open {
        /// Of the open file, which need not be the file that was opened (a clone file).
        qid: Qid,
        /// Bytes that are read or written in one piece, 0 = not said.
        iounit: u32,
        /// Behind the fid from now on.
        node: N,
    },
    /// Of `Make`.
    Made(Qid),
    /// Of `XattrCreate`: behind the fid from now on.
    Moved(N),
    /// Of `Readlink`.
    Target(Box<[u8]>),
    /// Of `Getattr`. Boxed: it would be the largest by far.
    Attr(Box<Attr>),
    /// Of `Readdir`.
    Dir(DirBuf),
    /// Of `Read`.
    Read(P),
    /// Of `Write`: bytes taken.
    Wrote(u32),
    /// Of `Stream`: a dial string, a space, a one-use token.
    Stream(Vec<u8>),
    /// Of `Sclose`.
    Sclosed {
        /// Bytes that were sent, or that are stored.
        count: u64,
        /// Why there are no more, or 0.
        errno: u32,
        /// The same in words, or empty. On the wire at most 128 bytes.
        ename: Box<str>,
    },
    /// Of `Lock`.
    Lock(LockStatus),
    /// Of `Getlock`: the lock in the way, or the request's own with `Unlock`.
    Getlock {
        /// `Unlock`: nothing is in the way.
        ty: LockType,
        /// First byte.
        start: u64,
        /// Bytes.
        length: u64,
        /// The owner's process.
        proc_id: u32,
        /// The owner's host.
        client_id: Box<[u8]>,
    },
    /// Of `XattrWalk`.
    Xattr {
        /// Bytes to read.
        size: u64,
        /// Behind the new fid.
        node: N,
    },
    /// Of `Statfs`.
    Statfs(Statfs),
}

/// The qids of a walk, in order.
#[derive(Clone)]
pub struct Walked(Steps);

#[derive(Clone)]
enum Steps {
    /// As many as most walks have, without an allocation.
    Few([Qid; FEW], u8),
    Many(Vec<Qid>),
}

const FEW: usize = 4;

impl Walked {
    /// No name walked yet.
    pub const fn new() -> Self {
        Self(Steps::Few([Qid { ty: 0, vers: 0, path: 0 }; FEW], 0))
    }

    /// One more name was walked; at most 16, as many as a request can have.
    pub fn push(&mut self, qid: Qid) {
        match &mut self.0 {
            Steps::Few(qids, len) if usize::from(*len) < FEW => {
                qids[usize::from(*len)] = qid;
                *len += 1;
            }
            Steps::Few(qids, _) => {
                let mut many = Vec::with_capacity(MAXWELEM);
                many.extend_from_slice(qids);
                many.push(qid);
                self.0 = Steps::Many(many);
            }
            Steps::Many(many) => many.push(qid),
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
            Steps::Few(qids, len) => &qids[..usize::from(*len)],
            Steps::Many(many) => many,
        }
    }
}

impl fmt::Debug for Walked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// What every name in a directory must satisfy: not empty, not "." or "..", at most 255 bytes, no '/', no NUL.
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
