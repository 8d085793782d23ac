//! Plans a request: checks a T-message against the tables before anything changes.
//!
//! In: a decoded message. Out: a `RequestPlan`, or the manual's error. Always holds: every check that does not need the
//! file server is made here.

use super::{
    Session, SessionFid, SessionFidKind, SessionFidState, already_open, duplicate_tag, request, unknown_fid,
};
use crate::dialect::Dialect;
use crate::error::{Errno, Error, Result};
use crate::frame::IOHDRSZ;
use crate::ids::{Fid, NOFID, NOTAG, Tag};
use crate::msg::Tmsg;
use crate::op::{OpenFlags, RenameMode, check_name};
use crate::stat::parse_device;

/// How a request uses its fid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FidUse {
    /// Shared with other requests.
    Shared,
    /// Shared with other requests, except of this kind. On success the fid moves.
    Moves,
    /// Exclusive. Afterwards the fid stays.
    Alone,
    /// Exclusive. Afterwards the fid ends.
    Ends,
}

/// A request's use of the tables. `plan` fills it and `admit` executes it.
pub(super) struct RequestPlan {
    pub(super) fid: Fid,
    pub(super) fid2: Fid,
    pub(super) newfid: Fid,
    pub(super) usage: FidUse,
    pub(super) flags: OpenFlags,
    pub(super) offset: u64,
    pub(super) count: u32,
    /// A value for the request: the directory cookie of a 9P2000 read, or the group of a Twstat.
    pub(super) extra: u64,
    /// Whether it is a Twstat that asks for stable storage and changes nothing.
    pub(super) is_sync: bool,
}

impl<N: Clone, F: AsRef<[u8]>> Session<N, F> {
    /// Makes the checks that do not depend on fids.
    pub(super) fn check(&self, tag: Tag, message: &Tmsg<'_>, dialect: Dialect) -> Result<()> {
        if self.dialect.is_none() {
            return Err(Error::new(Errno::EPROTO, "no version agreed: Tversion comes first"));
        }
        if self.calls.contains_key(&tag) || tag == NOTAG {
            return Err(duplicate_tag());
        }
        let l_only = message.number() < 100 || matches!(message, Tmsg::Renameat2 { .. });
        let not_l = matches!(
            message,
            Tmsg::Open { .. } | Tmsg::Create { .. } | Tmsg::Stat { .. } | Tmsg::Wstat { .. }
        );
        let streaming = matches!(message, Tmsg::Stream { .. } | Tmsg::Sclose { .. });
        if l_only != dialect.is_l() && (l_only || not_l) || streaming && !dialect.streaming {
            let text = alloc::format!("{} is not a message of {}", message.label(), dialect.name());
            return Err(Error::new(Errno::EOPNOTSUPP, text));
        }
        Ok(())
    }

    /// Makes the remaining checks that do not need the file server, and determines the use of each fid.
    pub(super) fn plan(&self, message: &Tmsg<'_>, dialect: Dialect) -> Result<RequestPlan> {
        let mut plan = RequestPlan {
            fid: NOFID,
            fid2: NOFID,
            newfid: NOFID,
            usage: FidUse::Shared,
            flags: OpenFlags(0),
            offset: 0,
            count: 0,
            extra: 0,
            is_sync: false,
        };
        match *message {
            Tmsg::Auth { afid, .. } => plan.newfid = new(afid)?,
            Tmsg::Attach { fid, afid, .. } => {
                plan.newfid = new(fid)?;
                plan.fid2 = afid;
                if afid != NOFID && self.here(afid)?.kind != SessionFidKind::Auth {
                    return Err(Error::new(Errno::EINVAL, "afid is not from Tauth"));
                }
            }
            Tmsg::Walk { fid, newfid, names } => {
                let entry = self.file(fid)?;
                if !names.is_empty() {
                    directory(entry)?;
                    // An open fid can be cloned: the Linux client does so. Only .L allows names, too.
                    if entry.open.is_some() && !dialect.is_l() {
                        return Err(already_open());
                    }
                }
                for name in names.iter().filter(|&name| name != b"..") {
                    check_name(name)?;
                }
                plan.fid = fid;
                plan.count = names.len() as u32;
                if newfid == fid { plan.usage = FidUse::Alone } else { plan.newfid = new(newfid)? }
            }
            Tmsg::Open { .. } | Tmsg::Lopen { .. } | Tmsg::Create { .. } | Tmsg::Lcreate { .. }
                if self.opens >= self.opens_max =>
            {
                return Err(Error::new(Errno::ENFILE, "too many open files"));
            }
            Tmsg::Open { fid, mode } => plan.open(self.file(fid)?, fid, OpenFlags::from_mode(mode))?,
            Tmsg::Lopen { fid, flags } => {
                let flags = OpenFlags(flags & OpenFlags::WIRE.0 & !(OpenFlags::CREAT | OpenFlags::EXCL).0);
                plan.open(self.file(fid)?, fid, flags)?;
            }
            Tmsg::Create { fid, name, perm, mode, extension } => {
                plan.create(self.file(fid)?, fid, name, OpenFlags::from_mode(mode))?;
                plan.fid2 = self.check_special(perm, extension.0, dialect)?;
            }
            Tmsg::Lcreate { fid, name, flags, .. } => {
                plan.create(self.file(fid)?, fid, name, OpenFlags(flags & OpenFlags::WIRE.0))?;
            }
            Tmsg::Symlink { dfid, name, .. }
            | Tmsg::Mknod { dfid, name, .. }
            | Tmsg::Mkdir { dfid, name, .. }
            | Tmsg::Unlinkat { dirfid: dfid, name, .. } => {
                directory(self.file(dfid)?)?;
                check_name(name)?;
                plan.fid = dfid;
            }
            Tmsg::Link { dfid, fid, name } | Tmsg::Rename { fid: dfid, dfid: fid, name } => {
                // In Tlink `dfid` is the directory. In Trename it is the message's `dfid`, here `fid`.
                let dir = if matches!(message, Tmsg::Link { .. }) { dfid } else { fid };
                directory(self.file(dir)?)?;
                check_name(name)?;
                (plan.fid, plan.fid2) = (dfid, fid);
            }
            Tmsg::Renameat2 { flags, .. } if RenameMode::from_flags(flags).is_none() => {
                return Err(Error::new(Errno::EINVAL, "flags are 0, 1 or 2"));
            }
            Tmsg::Renameat { olddirfid, oldname, newdirfid, newname }
            | Tmsg::Renameat2 { olddirfid, oldname, newdirfid, newname, .. } => {
                directory(self.file(olddirfid)?)?;
                directory(self.file(newdirfid)?)?;
                check_name(oldname)?;
                check_name(newname)?;
                (plan.fid, plan.fid2) = (olddirfid, newdirfid);
            }
            Tmsg::Read { fid, offset, count } => {
                let entry = self.here(fid)?;
                open_for_reading(entry)?;
                plan.count = count.min(self.msize - IOHDRSZ);
                plan.offset = offset;
                plan.fid = fid;
                if entry.qid.is_dir() && entry.kind == SessionFidKind::File {
                    plan.extra = match entry.dir.as_deref() {
                        _ if dialect.is_l() => return Err(Errno::EISDIR.into()),
                        _ if offset == 0 => 0,
                        Some(last) if last.end == offset => last.cookie,
                        _ => return Err(Error::new(Errno::EINVAL, "bad offset in directory read")),
                    };
                }
            }
            Tmsg::Readdir { fid, count, .. } => {
                let entry = self.file(fid)?;
                directory(entry)?;
                if entry.open.is_none() {
                    return Err(Error::new(Errno::EBADF, "directory is not open"));
                }
                plan.count = count.min(self.msize - IOHDRSZ);
                plan.fid = fid;
            }
            Tmsg::Write { fid, data, .. } => {
                open_for_writing(self.here(fid)?)?;
                plan.count = data.bytes().len() as u32;
                plan.fid = fid;
            }
            Tmsg::Stream { fid, isread, .. } => {
                let entry = self.file(fid)?;
                if entry.qid.is_dir() {
                    return Err(Errno::EISDIR.into());
                }
                plan.flags = match isread {
                    0 => open_for_writing(entry).map(|()| OpenFlags::WRITE)?,
                    1 => open_for_reading(entry).map(|()| OpenFlags::READ)?,
                    _ => return Err(Error::new(Errno::EINVAL, "isread is 0 or 1")),
                };
                plan.fid = fid;
            }
            Tmsg::Clunk { fid } | Tmsg::Remove { fid } => {
                self.here(fid)?;
                (plan.fid, plan.usage) = (fid, FidUse::Ends);
            }
            Tmsg::Wstat { fid, ref stat } => {
                let qid = self.file(fid)?.qid;
                let gid = request::check_wstat(stat, qid, dialect, &*self.names)?;
                plan.is_sync = request::is_sync(stat, &request::set_of_stat(stat, gid, qid.is_dir()));
                plan.extra = gid.into();
                plan.fid = fid;
            }
            Tmsg::Lock { fid, ty, .. } | Tmsg::Getlock { fid, ty, .. } => {
                if ty > 2 {
                    return Err(Error::new(Errno::EINVAL, "no such lock type"));
                }
                if self.file(fid)?.open.is_none() {
                    return Err(Error::new(Errno::EBADF, "fid is not open"));
                }
                plan.fid = fid;
            }
            Tmsg::Xattrwalk { fid, newfid, .. } => {
                self.file(fid)?;
                (plan.fid, plan.newfid) = (fid, new(newfid)?);
            }
            Tmsg::Xattrcreate { fid, .. } => {
                if self.file(fid)?.open.is_some() {
                    return Err(already_open());
                }
                (plan.fid, plan.usage) = (fid, FidUse::Moves);
            }
            Tmsg::Setattr { fid, atime, mtime, .. } => {
                if atime.nsec.max(mtime.nsec) >= 1_000_000_000 {
                    return Err(Error::new(Errno::EINVAL, "a second has 1,000,000,000 nanoseconds"));
                }
                self.file(fid)?;
                plan.fid = fid;
            }
            Tmsg::Statfs { fid }
            | Tmsg::Readlink { fid }
            | Tmsg::Getattr { fid, .. }
            | Tmsg::Fsync { fid, .. }
            | Tmsg::Sclose { fid, .. }
            | Tmsg::Stat { fid } => {
                self.file(fid)?;
                plan.fid = fid;
            }
            Tmsg::Version { .. } | Tmsg::Flush { .. } => unreachable!("handled before"),
        }
        Ok(plan)
    }

    /// Checks a Tcreate of a special file in .u. Returns the fid to link to, or NOFID. A device must have a valid
    /// extension.
    fn check_special(&self, perm: u32, extension: &[u8], dialect: Dialect) -> Result<Fid> {
        use crate::stat::mode::{DMDEVICE, DMLINK};
        if !dialect.is_u() {
            return Ok(NOFID);
        }
        if perm & DMDEVICE != 0 {
            parse_device(extension).ok_or_else(|| Error::new(Errno::EINVAL, "bad device extension"))?;
        }
        if perm & DMLINK == 0 {
            return Ok(NOFID);
        }
        let fid = linked(extension).ok_or_else(|| Error::new(Errno::EINVAL, "bad link extension: a fid"))?;
        self.file(fid)?;
        Ok(fid)
    }

    /// Returns the entry of a fid that is usable now.
    pub(super) fn here(&self, fid: Fid) -> Result<&SessionFid<N>> {
        match self.fids.get(&fid) {
            Some(entry) if entry.state == SessionFidState::Here => Ok(entry),
            Some(entry) if entry.state == SessionFidState::Alone => {
                Err(Error::new(Errno::EBUSY, "fid is being walked"))
            }
            _ => Err(unknown_fid()),
        }
    }

    /// Returns the entry of a fid that refers to a file, not to authentication or an attribute.
    fn file(&self, fid: Fid) -> Result<&SessionFid<N>> {
        let entry = self.here(fid)?;
        if entry.kind == SessionFidKind::File {
            Ok(entry)
        } else {
            Err(Error::new(Errno::EBADF, "fid is not a file"))
        }
    }
}

impl RequestPlan {
    fn open<N>(&mut self, entry: &SessionFid<N>, fid: Fid, flags: OpenFlags) -> Result<()> {
        if entry.open.is_some() {
            return Err(already_open());
        }
        if entry.qid.is_dir() && flags.changes() {
            return Err(Errno::EISDIR.into());
        }
        (self.fid, self.flags, self.usage) = (fid, flags, FidUse::Moves);
        Ok(())
    }

    fn create<N>(&mut self, entry: &SessionFid<N>, fid: Fid, name: &[u8], flags: OpenFlags) -> Result<()> {
        directory(entry)?;
        if entry.open.is_some() {
            return Err(already_open());
        }
        check_name(name)?;
        (self.fid, self.flags, self.usage) = (fid, flags, FidUse::Moves);
        Ok(())
    }
}

/// Returns the fid that a Tcreate of a link (.u) links to.
pub(super) fn linked(extension: &[u8]) -> Option<Fid> {
    core::str::from_utf8(extension).ok()?.trim().parse().ok().map(Fid)
}

fn directory<N>(entry: &SessionFid<N>) -> Result<()> {
    if entry.qid.is_dir() { Ok(()) } else { Err(Errno::ENOTDIR.into()) }
}

fn open_for_reading<N>(entry: &SessionFid<N>) -> Result<()> {
    let reads = entry.open.is_some_and(OpenFlags::reads);
    if reads { Ok(()) } else { Err(Error::new(Errno::EBADF, "fid is not open for reading")) }
}

fn open_for_writing<N>(entry: &SessionFid<N>) -> Result<()> {
    let writes = entry.open.is_some_and(OpenFlags::writes);
    if writes { Ok(()) } else { Err(Error::new(Errno::EBADF, "fid is not open for writing")) }
}

fn new(fid: Fid) -> Result<Fid> {
    if fid == NOFID { Err(Error::new(Errno::EINVAL, "nofid cannot be made")) } else { Ok(fid) }
}
