//! A request from the session to the file server: its frame, its nodes, and its dialect-free view.

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

/// A request to serve. It owns its frame. [`Request::op`] decodes the frame on demand.
pub struct Request<N, F> {
    pub(super) id: CallId,
    /// `None` for a silent clunk, which no client sent.
    pub(super) frame: Option<F>,
    pub(super) dialect: Dialect,
    /// The number of its fid, or NOFID.
    pub(super) number: Fid,
    pub(super) fid: Option<N>,
    pub(super) fid2: Option<N>,
    /// The cookie of a directory read in stat records, or the group of a Twstat.
    pub(super) extra: u64,
    /// Requested bytes, limited by msize.
    pub(super) count: u32,
    pub(super) is_dir: bool,
    pub(super) changes: bool,
    /// Whether its open or create has ORCLOSE.
    pub(super) rclose: bool,
    pub(super) users: u32,
    /// Whether the clunk removes the file (ORCLOSE).
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

    /// Creates a read or write of the server itself, on behalf of a fid with this `node`. `frame` is its message in
    /// `dialect`. `count` is its number of data bytes.
    pub fn own(id: CallId, frame: F, dialect: Dialect, node: N, count: u32) -> Self {
        Self { frame: Some(frame), dialect, count, ..Self::silent(id, node, false) }
    }

    /// Returns its id in the session.
    pub fn id(&self) -> CallId {
        self.id
    }

    /// Returns the client's dialect.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Returns the number of its fid. `None` if it has no fid, like an attach, or is a silent clunk.
    pub fn fid_number(&self) -> Option<Fid> {
        (self.number != NOFID).then_some(self.number)
    }

    /// Returns the type number of its T-message. `None` for a silent clunk.
    pub fn number(&self) -> Option<u8> {
        self.frame.as_ref().map(|frame| frame::type_of(frame.as_ref()))
    }

    /// Returns the node of its fid.
    pub fn fid(&self) -> Option<&N> {
        self.fid.as_ref()
    }

    /// Returns the node of its second fid.
    pub fn fid2(&self) -> Option<&N> {
        self.fid2.as_ref()
    }

    /// Returns its frame. `None` for a silent clunk.
    pub fn frame(&self) -> Option<&F> {
        self.frame.as_ref()
    }

    /// Returns its frame, so that the caller can move it to smaller memory.
    pub fn frame_mut(&mut self) -> Option<&mut F> {
        self.frame.as_mut()
    }

    /// Returns the maximum number of data bytes of a read's reply.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Creates the buffer for the reply to a `Readdir`.
    pub fn dir_buf(&self, names: Arc<dyn Names>) -> DirBuf {
        DirBuf::new(self.dialect, self.count as usize, names)
    }

    /// Whether it is a clunk that no client sent or waits for.
    pub fn is_silent(&self) -> bool {
        self.frame.is_none()
    }

    /// Returns the number of earlier requests in service on the fid of a silent clunk.
    pub fn users(&self) -> u32 {
        self.users
    }

    /// Whether its open or create asks for removal at the clunk (ORCLOSE).
    pub fn rclose(&self) -> bool {
        self.rclose
    }

    /// Returns the nodes of its two fids.
    pub fn into_fids(self) -> [Option<N>; 2] {
        [self.fid, self.fid2]
    }

    /// Whether its fid is a directory.
    pub fn is_dir(&self) -> bool {
        self.is_dir
    }

    /// Whether it changes a file or permits changes. Read-only clients may not send it.
    pub fn changes(&self) -> bool {
        self.changes
    }

    /// Decodes the operation.
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

/// Checks that a Twstat changes only permitted fields (stat(5)). Returns the number of the new group, or `NOGID`.
pub(super) fn check_wstat(stat: &Stat<'_>, qid: Qid, dialect: Dialect, names: &dyn Names) -> Result<u32> {
    let untouched = Stat::DONT_TOUCH;
    let fixed = (stat.ty, stat.dev, stat.qid) == (untouched.ty, untouched.dev, untouched.qid);
    // When Linux renames a file, it sends itself as the last modifier.
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

/// Whether all fields of a Twstat are "don't touch". This requests stable storage (stat(5)).
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

/// Returns the kind of file that a Tcreate creates: a file or directory in 9P2000; in .u the mode bits and the
/// extension decide.
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
