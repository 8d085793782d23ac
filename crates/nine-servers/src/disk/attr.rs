//! Attributes: qids, getattr, setattr, statfs.
//!
//! In: the host's attributes of a file. Out: the 9P attributes. For files on the root's file system the qid path is
//! the inode number. For file systems mounted below it, the top bit is set and the rest is a hash of device and
//! inode. The version changes with the change time and the size, so at each change that the host's clock can resolve.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nine_io::server::Reply;
use nine_proto::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use nine_proto::{Attr, Errno, GetMask, NOGID, Qid, SetAttr, Statfs, Texts, Time, TimeSet};
use rustix::fs::{OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use super::host::{HostFs, Stat};
use super::{DiskFidKind, DiskFidState, DiskShared, ExecutionMode, OperationResult};

impl<H: HostFs> DiskShared<H> {
    pub(super) fn qid(&self, st: &Stat) -> Qid {
        let vers = mix(mix(st.ctime.sec as u64) ^ u64::from(st.ctime.nsec) ^ st.size.rotate_left(32)) as u32;
        // Version 0 would mean that the server counts no versions.
        Qid { ty: qid_type(st.mode), vers: vers.max(1), path: self.qid_path(st.dev, st.ino) }
    }

    pub(super) fn qid_path(&self, dev: u64, ino: u64) -> u64 {
        let of_root = dev == self.tree.root.id.dev && ino & FOREIGN == 0;
        if of_root { ino } else { mix(mix(dev) ^ ino) | FOREIGN }
    }

    pub(super) fn attr(&self, st: &Stat) -> Attr {
        let btime = if st.btime.is_some() { GetMask::BTIME } else { GetMask(0) };
        Attr {
            valid: GetMask::BASIC | btime,
            qid: self.qid(st),
            mode: st.mode,
            uid: st.uid,
            gid: st.gid,
            nlink: st.nlink.into(),
            rdev: st.rdev,
            size: st.size,
            blksize: st.blksize.into(),
            blocks: st.blocks,
            atime: st.atime,
            mtime: st.mtime,
            ctime: st.ctime,
            btime: st.btime.unwrap_or_default(),
            ..Attr::default()
        }
    }

    /// Uses the descriptor of an open file, so it works for files without a name. Inline unless a link's target is
    /// asked for.
    pub(super) fn getattr(
        &self,
        node: &DiskFidState,
        mask: GetMask,
        how: ExecutionMode,
    ) -> OperationResult<Reply> {
        let dent = node.dent()?;
        let texts = mask.has(GetMask::TEXTS);
        if texts && dent.ty() == S_IFLNK && how == ExecutionMode::Inline {
            return Err(Errno::EAGAIN.into());
        }
        let fd = self.any_fd(node, how)?;
        let mut attr = self.attr(&self.host.stat(fd.as_fd(), b"")?);
        if texts {
            let target = if dent.ty() == S_IFLNK { self.host.readlink(fd.as_fd(), b"")? } else { Vec::new() };
            let name = if Arc::ptr_eq(dent, &node.view.root) { b"/"[..].into() } else { dent.name() };
            attr.texts = Some(Box::new(Texts { name, target: target.into(), owners: None }));
            attr.valid |= GetMask::TEXTS;
        }
        Ok(Reply::Attr(Box::new(attr)))
    }

    /// Applies all of the changes or none, as far as the host allows. Reversible steps come first and are undone if a
    /// later step fails. The length cannot be undone and comes last. Order: name, owner, mode, times, length.
    pub(super) fn setattr(&self, node: &DiskFidState, set: SetAttr<'_>) -> OperationResult<Reply> {
        let dent = node.dent()?;
        let fd = self.any_fd(node, ExecutionMode::Pool)?;
        let before = self.host.stat(fd.as_fd(), b"")?;
        super::change::plain(set.special.unwrap_or_default())?;
        match (set.size, before.mode & S_IFMT) {
            (None, _) | (_, S_IFREG) => {}
            (_, S_IFDIR) => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        let sized = set
            .size
            .map(|size| Ok::<_, super::OperationFailure>((self.writable(node, &fd)?, size)))
            .transpose()?;
        let place = set.name.map(|_| node.place()).transpose()?;
        let renamed = match (&place, set.name) {
            (Some((dir, old)), Some(new)) if **old != *new => Some((dir, old, new)),
            _ => None,
        };
        if let Some((dir, old, new)) = renamed {
            self.move_name(&node.view, (dir, old), (dir, new), Some(dent), RenameFlags::NOREPLACE)?;
        }
        let result = self.set_in_place(node, &set, &fd, &before, sized);
        if let (Err(_), Some((dir, old, new))) = (&result, renamed) {
            let back = self.move_name(&node.view, (dir, new), (dir, old), Some(dent), RenameFlags::NOREPLACE);
            if back.is_err() {
                tracing::warn!("a setattr failed half-way and its new name could not be taken back");
            }
        }
        result.map(|()| Reply::Done)
    }

    fn set_in_place(
        &self,
        node: &DiskFidState,
        set: &SetAttr<'_>,
        fd: &OwnedFd,
        before: &Stat,
        sized: Option<(Arc<OwnedFd>, u64)>,
    ) -> OperationResult<()> {
        let _client = self.become_client(&node.view, NOGID)?;
        let (fd, host) = (fd.as_fd(), &self.host);
        let owned = set.uid.is_some() || set.gid.is_some();
        if owned {
            host.chown(fd, set.uid, set.gid)?;
        }
        let times = (set.atime.is_some() || set.mtime.is_some())
            .then(|| Timestamps { last_access: timespec(set.atime), last_modification: timespec(set.mtime) });
        let rest = || {
            if let Some(mode) = set.mode {
                host.chmod(fd, mode & 0o7777)?;
            }
            if let Some(times) = &times {
                host.utimens(fd, times)?;
            }
            if let Some((file, size)) = &sized {
                host.truncate(file.as_fd(), *size)?;
            }
            Ok::<_, super::OperationFailure>(())
        };
        if let Err(fail) = rest() {
            // Undoing a step may be refused. Then the step had been refused as well, or permissions have changed
            // meanwhile.
            let then = |time: Time| timespec(Some(TimeSet::To(time)));
            if times.is_some() {
                let times =
                    Timestamps { last_access: then(before.atime), last_modification: then(before.mtime) };
                let _ = host.utimens(fd, &times);
            }
            if owned {
                let _ = host.chown(fd, set.uid.and(Some(before.uid)), set.gid.and(Some(before.gid)));
            }
            if owned || set.mode.is_some() {
                let _ = host.chmod(fd, before.mode & 0o7777);
            }
            return Err(fail);
        }
        if let (Some(times), Some(_)) = (&times, &sized) {
            // Setting the length has changed the modification time again.
            host.utimens(fd, times)?;
        }
        Ok(())
    }

    /// Returns a writable descriptor: the open file's, or a new one if the client may write.
    fn writable(&self, node: &DiskFidState, fd: &Arc<OwnedFd>) -> OperationResult<Arc<OwnedFd>> {
        if let DiskFidKind::File(file) = &node.kind
            && file.writes
        {
            return file.fd();
        }
        let _client = self.become_client(&node.view, NOGID)?;
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        Ok(Arc::new(self.tree.with_room(ExecutionMode::Pool, || self.host.reopen(fd.as_fd(), flags))?))
    }

    pub(super) fn statfs(&self, node: &DiskFidState) -> OperationResult<Reply> {
        let fd = self.any_fd(node, ExecutionMode::Pool)?;
        // Programs infer a mount's features from `f_type`. The host's own type would promise features that 9P lacks.
        Ok(Reply::Statfs(Statfs { ty: Statfs::V9FS, ..self.host.statfs(fd.as_fd())? }))
    }
}

/// The qid type of a Linux mode.
pub(super) fn qid_type(mode: u32) -> u8 {
    match mode & S_IFMT {
        S_IFDIR => Qid::DIR,
        S_IFLNK => Qid::SYMLINK,
        _ => Qid::FILE,
    }
}

fn timespec(time: Option<TimeSet>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(TimeSet::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(TimeSet::To(Time { sec, nsec })) => {
            Timespec { tv_sec: sec, tv_nsec: nsec.min(999_999_999).into() }
        }
    }
}

/// Marks qid paths that are not inode numbers of the root's file system.
const FOREIGN: u64 = 1 << 63;

/// Hashes a number to 64 bits (the finisher of splitmix64). The result is the same in every run, so qids stay stable.
fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}
