//! A request out of the session: its frame, the nodes it names, and the dialect-free view of it.

use alloc::sync::Arc;
use core::fmt;

use super::CallId;
use crate::attr::{GetMask, LockRequest, LockType, Names, SetAttr, SetMask, Time, TimeSet};
use crate::dialect::{Base, Dialect};
use crate::dir::DirBuf;
use crate::error::{Errno, Error, Result};
use crate::frame;
use crate::ids::{Fid, NOFID, NOGID, NOUID, Qid};
use crate::msg::Tmsg;
use crate::op::{Make, Op, OpenFlags, Perm, RenameMode};
use crate::stat::{Stat, StatIds, device_numbers, mode, parse_device};

/// A request to serve. Owns its frame; [`Request::op`] is a view made on demand.
pub struct Request<N, F> {
    pub(super) id: CallId,
    /// `None`: a clunk that nobody asked for.
    pub(super) frame: Option<F>,
    pub(super) dialect: Dialect,
    /// Or NOFID.
    pub(super) number: Fid,
    pub(super) fid: Option<N>,
    pub(super) fid2: Option<N>,
    /// The cookie of a directory read in stat records, or the group of a Twstat.
    pub(super) extra: u64,
    /// Bytes asked for, within msize.
    pub(super) count: u32,
    pub(super) is_dir: bool,
    pub(super) changes: bool,
    /// Its open or create asks for ORCLOSE.
    pub(super) rclose: bool,
    pub(super) users: u32,
    /// A clunk that removes (ORCLOSE).
    pub(super) remove: bool,
}

impl<N, F: AsRef<[u8]>> Request<N, F> {
    pub(super) fn silent(id: CallId, node: N, remove: bool) -> Self {
        Self {
            id,
            frame: None,
            dialect: Dialect::P2000,
            number: NOFID,
            fid: Some(node),
            fid2: None,
            extra: 0,
            count: 0,
            is_dir: false,
            changes: false,
            rclose: false,
            users: 0,
            remove,
        }
    }

    /// A read or a write that the server itself makes, in the name of a fid whose node this is: `frame` is its message,
    /// in `dialect`; `count` are its bytes.
    pub fn own(id: CallId, frame: F, dialect: Dialect, node: N, count: u32) -> Self {
        Self { frame: Some(frame), dialect, count, ..Self::silent(id, node, false) }
    }

    /// Its name in the session.
    pub fn id(&self) -> CallId {
        self.id
    }

    /// What the client speaks.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The number of its fid. `None`: it has none, like an attach, or it is a silent clunk.
    pub fn fid_number(&self) -> Option<Fid> {
        (self.number != NOFID).then_some(self.number)
    }

    /// The number of its T-message. `None`: a silent clunk.
    pub fn number(&self) -> Option<u8> {
        self.frame.as_ref().map(|frame| frame::type_of(frame.as_ref()))
    }

    /// The node behind its fid.
    pub fn fid(&self) -> Option<&N> {
        self.fid.as_ref()
    }

    /// The node behind its second fid.
    pub fn fid2(&self) -> Option<&N> {
        self.fid2.as_ref()
    }

    /// The frame, if it has one.
    pub fn frame(&self) -> Option<&F> {
        self.frame.as_ref()
    }

    /// The frame, if it has one, to be moved to smaller memory.
    pub fn frame_mut(&mut self) -> Option<&mut F> {
        self.frame.as_mut()
    }

    /// Of a read: the bytes that the answer may have.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Where the answer to a `Readdir` goes.
    pub fn dir_buf(&self, names: Arc<dyn Names>) -> DirBuf {
        DirBuf::new(self.dialect, self.count as usize, names)
    }

    /// Whether it is a clunk that no client waits for.
    pub fn is_silent(&self) -> bool {
        self.frame.is_none()
    }

    /// Of a silent clunk: requests before it that are still being served.
    pub fn users(&self) -> u32 {
        self.users
    }

    /// Whether what it opens is to be removed at its clunk.
    pub fn rclose(&self) -> bool {
        self.rclose
    }

    /// The nodes it names.
    pub fn into_fids(self) -> [Option<N>; 2] {
        [self.fid, self.fid2]
    }

    /// Whether its fid is a directory.
    pub fn is_dir(&self) -> bool {
        self.is_dir
    }

    /// Whether it changes a file, or prepares to: what a read-only client may not do.
    pub fn changes(&self) -> bool {
        self.changes
    }

    /// What is asked.
    pub fn op(&self) -> Op<'_> {
        let Some(frame) = &self.frame else {
            return if self.remove { Op::Remove } else { Op::Clunk };
        };
        let (_, message) = Tmsg::decode(frame.as_ref(), self.dialect).expect("it was decoded when it came");
        match message {
            Tmsg::Auth { uname, aname, n_uname, .. } => Op::Auth { uname, aname, uid: n_uname.0 },
            Tmsg::Attach { uname, aname, n_uname, .. } => Op::Attach { uname, aname, uid: n_uname.0 },
            Tmsg::Walk { names, .. } => Op::Walk { names },
            Tmsg::Open { mode, .. } => Op::Open { flags: OpenFlags::from_mode(mode) },
            Tmsg::Lopen { flags, .. } => Op::Open {
                flags: OpenFlags(flags & OpenFlags::WIRE.0 & !(OpenFlags::CREAT | OpenFlags::EXCL).0),
            },
            Tmsg::Create { name, perm, mode, extension, .. } => Op::Create {
                name,
                make: special(perm, extension.0, self.dialect),
                flags: OpenFlags::from_mode(mode),
                perm: Perm {
                    bits: mode::permissions(perm),
                    inherit: self.dialect.base == Base::P2000,
                    special: special_bits(perm),
                },
                gid: NOGID,
            },
            Tmsg::Lcreate { name, flags, mode, gid, .. } => Op::Create {
                name,
                make: Make::File,
                flags: OpenFlags(flags & OpenFlags::WIRE.0),
                perm: plain(mode),
                gid,
            },
            Tmsg::Symlink { name, target, gid, .. } => {
                Op::Make { name, make: Make::Symlink(target), perm: plain(0o777), gid }
            }
            Tmsg::Mknod { name, mode: st_mode, major, minor, gid, .. } => {
                let ty = st_mode & mode::S_IFMT;
                let make = match ty {
                    mode::S_IFREG | 0 => Make::File,
                    _ => Make::Node { ty, major, minor },
                };
                Op::Make { name, make, perm: plain(st_mode), gid }
            }
            Tmsg::Mkdir { name, mode, gid, .. } => Op::Make { name, make: Make::Dir, perm: plain(mode), gid },
            Tmsg::Link { name, .. } => Op::Make { name, make: Make::Link, perm: plain(0), gid: NOGID },
            Tmsg::Rename { name, .. } => Op::Rename { name },
            Tmsg::Renameat { oldname, newname, .. } => {
                Op::RenameAt { old: oldname, new: newname, how: RenameMode::Replace }
            }
            Tmsg::Renameat2 { oldname, newname, flags, .. } => {
                let how = RenameMode::from_flags(flags).expect("`plan` has checked them");
                Op::RenameAt { old: oldname, new: newname, how }
            }
            Tmsg::Unlinkat { name, flags, .. } => Op::Unlink { name, dir: flags & AT_REMOVEDIR != 0 },
            Tmsg::Readlink { .. } => Op::Readlink,
            Tmsg::Getattr { mask, .. } => Op::Getattr { mask: GetMask(mask & GetMask::ALL.0) },
            Tmsg::Stat { .. } => Op::Getattr { mask: GetMask::BASIC | GetMask::TEXTS },
            Tmsg::Setattr { valid, mode, uid, gid, size, atime, mtime, .. } => {
                Op::Setattr { set: set_of_l(valid, mode, uid, gid, size, atime, mtime) }
            }
            Tmsg::Wstat { stat, .. } => match set_of_stat(&stat, self.extra as u32, self.is_dir) {
                set if is_sync(&stat, &set) => Op::Fsync { datasync: false },
                set => Op::Setattr { set },
            },
            Tmsg::Read { .. } if self.is_dir => Op::Readdir { cookie: self.extra },
            Tmsg::Read { offset, .. } => Op::Read { offset, count: self.count },
            Tmsg::Readdir { offset, .. } => Op::Readdir { cookie: offset },
            Tmsg::Write { offset, data, .. } => Op::Write { offset, data: data.bytes() },
            Tmsg::Stream { isread, offset, .. } => Op::Stream { read: isread == 1, offset },
            Tmsg::Sclose { count, .. } => Op::Sclose { count },
            Tmsg::Fsync { datasync, .. } => Op::Fsync { datasync: datasync.0 != 0 },
            Tmsg::Lock { ty, flags, start, length, proc_id, client_id, .. } => {
                Op::Lock(LockRequest { ty: lock_type(ty), flags, start, length, proc_id, client_id })
            }
            Tmsg::Getlock { ty, start, length, proc_id, client_id, .. } => {
                Op::Getlock(LockRequest { ty: lock_type(ty), flags: 0, start, length, proc_id, client_id })
            }
            Tmsg::Xattrwalk { name, .. } => Op::XattrWalk { name },
            Tmsg::Xattrcreate { name, size, flags, .. } => Op::XattrCreate { name, size, flags },
            Tmsg::Statfs { .. } => Op::Statfs,
            Tmsg::Remove { .. } => Op::Remove,
            Tmsg::Clunk { .. } if self.remove => Op::Remove,
            Tmsg::Clunk { .. } => Op::Clunk,
            Tmsg::Version { .. } | Tmsg::Flush { .. } => unreachable!("the session answers these itself"),
        }
    }
}

impl<N, F: AsRef<[u8]>> fmt::Debug for Request<N, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tag {} {:?}", self.id.tag, self.op())
    }
}

/// Checks a Twstat against what may be changed (stat(5)) and resolves the group's name. The group, or `NOGID`.
pub(super) fn check_wstat(stat: &Stat<'_>, qid: Qid, dialect: Dialect, names: &dyn Names) -> Result<u32> {
    let untouched = Stat::DONT_TOUCH;
    let fixed = (stat.ty, stat.dev, stat.qid) == (untouched.ty, untouched.dev, untouched.qid);
    // Linux names itself as the last modifier of what it renames.
    let muid = stat.muid.is_empty() || !stat.name.is_empty();
    if !fixed || !muid || (!dialect.is_u() && !stat.uid.is_empty()) {
        return Err(Error::new(Errno::EPERM, "wstat may not change type, dev, qid, uid or muid"));
    }
    if stat.mode != u32::MAX && (stat.mode & mode::DMDIR != 0) != qid.is_dir() {
        return Err(Error::new(Errno::EPERM, "wstat may not turn a file into a directory or back"));
    }
    if qid.is_dir() && !matches!(stat.length, 0 | u64::MAX) {
        return Err(Error::new(Errno::EISDIR, "a directory has length 0"));
    }
    if !stat.name.is_empty() {
        crate::op::check_name(stat.name)?;
    }
    match stat.gid {
        b"" => Ok(stat.ids.gid),
        name => names.gid(name).ok_or_else(|| Error::new(Errno::EINVAL, "no such group")),
    }
}

/// Whether all fields of a Twstat are "don't touch": it asks for stable storage (stat(5)).
pub(super) fn is_sync(stat: &Stat<'_>, set: &SetAttr<'_>) -> bool {
    *set == SetAttr::default() && stat.mode == u32::MAX
}

pub(super) fn set_of_stat<'a>(stat: &Stat<'a>, gid: u32, is_dir: bool) -> SetAttr<'a> {
    let time = |sec: u32| (sec != u32::MAX).then(|| TimeSet::To(Time { sec: sec.into(), nsec: 0 }));
    let StatIds { uid, .. } = stat.ids;
    SetAttr {
        name: (!stat.name.is_empty()).then_some(stat.name),
        mode: (stat.mode != u32::MAX).then(|| mode::permissions(stat.mode)),
        special: (stat.mode != u32::MAX).then(|| special_bits(stat.mode)),
        uid: (uid != NOUID).then_some(uid),
        gid: (gid != NOGID).then_some(gid),
        size: (stat.length != u64::MAX && !is_dir).then_some(stat.length),
        atime: time(stat.atime),
        mtime: time(stat.mtime),
    }
}

fn set_of_l(
    valid: SetMask,
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    atime: Time,
    mtime: Time,
) -> SetAttr<'static> {
    let time = |now: SetMask, set: SetMask, to| match (valid.has(set), valid.has(now)) {
        (true, true) => Some(TimeSet::To(to)),
        (false, true) => Some(TimeSet::Now),
        _ => None,
    };
    SetAttr {
        name: None,
        mode: valid.has(SetMask::MODE).then_some(mode & 0o7777),
        special: (valid.has(SetMask::MODE) && mode & mode::DMAUTH != 0).then(|| special_bits(mode)),
        uid: (valid.has(SetMask::UID) && uid != NOUID).then_some(uid),
        gid: (valid.has(SetMask::GID) && gid != NOGID).then_some(gid),
        size: valid.has(SetMask::SIZE).then_some(size),
        atime: time(SetMask::ATIME, SetMask::ATIME_SET, atime),
        mtime: time(SetMask::MTIME, SetMask::MTIME_SET, mtime),
    }
}

/// What a Tcreate makes: in 9P2000 a file or a directory, in .u whatever its mode bits and extension say.
fn special<'a>(perm: u32, extension: &'a [u8], dialect: Dialect) -> Make<'a> {
    let node = |ty| Make::Node { ty, major: 0, minor: 0 };
    match perm {
        _ if perm & mode::DMDIR != 0 => Make::Dir,
        _ if !dialect.is_u() => Make::File,
        _ if perm & mode::DMSYMLINK != 0 => Make::Symlink(extension),
        _ if perm & mode::DMLINK != 0 => Make::Link,
        _ if perm & mode::DMNAMEDPIPE != 0 => node(mode::S_IFIFO),
        _ if perm & mode::DMSOCKET != 0 => node(mode::S_IFSOCK),
        _ if perm & mode::DMDEVICE != 0 => {
            let (block, rdev) = parse_device(extension).expect("checked when it came");
            let (major, minor) = device_numbers(rdev);
            Make::Node { ty: if block { mode::S_IFBLK } else { mode::S_IFCHR }, major, minor }
        }
        _ => Make::File,
    }
}

fn plain(st_mode: u32) -> Perm {
    Perm { bits: st_mode & 0o7777, inherit: false, special: special_bits(st_mode) }
}

fn special_bits(dm: u32) -> u8 {
    (dm >> 24) as u8 & Qid::SPECIAL
}

fn lock_type(ty: u8) -> LockType {
    match ty {
        0 => LockType::Read,
        1 => LockType::Write,
        _ => LockType::Unlock,
    }
}

const AT_REMOVEDIR: u32 = 0x200;
