//! Open and create: from a dent to an open file.
//!
//! In: a walked node, and flags. Out: a node with an open file description of its own. The file that is opened is the
//! one the dent refers to, also if its name was changed, replaced or removed meanwhile. An open never waits for the
//! other end of a pipe. Devices and pipes are refused unless the server allows them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nine_io::server::Reply;
use nine_proto::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK};
use nine_proto::{Errno, Make, NOGID, OpenFlags};
use rustix::fs::{Mode, OFlags};

use super::change::NewDirEntry;
use super::dent::{HostDentry, HostFileIdentity};
use super::dirs::OpenHostDir;
use super::file::OpenHostFile;
use super::host::{self, HostFs, Stat};
use super::{DiskFidKind, DiskFidState, DiskShared, ExecutionMode, OperationResult};

impl<H: HostFs> DiskShared<H> {
    /// Opens a fid. Runs inline if the names are cached and the file is not truncated.
    pub(super) fn open(
        &self,
        node: &DiskFidState,
        flags: OpenFlags,
        how: ExecutionMode,
    ) -> OperationResult<Reply> {
        let DiskFidKind::Path(dent) = &node.kind else { return Err(Errno::EBADF.into()) };
        self.may_open(dent.ty())?;
        if how == ExecutionMode::Inline && flags.has(OpenFlags::TRUNC) {
            return Err(Errno::EAGAIN.into());
        }
        if flags.has(OpenFlags::RCLOSE)
            && let Some(dir) = dent.parent()
        {
            let fd = self.tree.handle(&self.host, how, &dir)?;
            let _client = self.become_client(&node.view, NOGID)?;
            self.host.access(fd.as_fd(), W_OK | X_OK)?;
        }
        let path = self.tree.handle(&self.host, how, dent)?;
        let name = dent.place();
        let dir = match (&name, how) {
            (Some((dir, _)), ExecutionMode::Inline) => Some(self.tree.handle(&self.host, how, dir)?),
            _ => None,
        };
        let client = self.become_client(&node.view, NOGID)?;
        if flags.has(OpenFlags::EXEC) && !dent.is_dir() {
            self.host.access(path.as_fd(), X_OK)?;
        }
        let oflags = host_flags(flags, dent.is_dir());
        let fd = match (dir, &name) {
            // By name, which the kernel can resolve from its cache alone. On any error the pool opens the file of the
            // dent.
            (Some(dir), Some((_, name))) => {
                let opened = self.host.open(dir.as_fd(), name, oflags, Mode::empty(), true);
                opened.map_err(|_| Errno::EAGAIN)?
            }
            _ if how == ExecutionMode::Inline => return Err(Errno::EAGAIN.into()),
            _ => self.open_itself(&path, oflags)?,
        };
        drop(client);
        let st = self.host.stat(fd.as_fd(), b"")?;
        if how == ExecutionMode::Inline && HostFileIdentity::of(&st) != dent.id {
            // The name may refer to another file by now. The pool opens the file of the dent.
            return Err(Errno::EAGAIN.into());
        }
        Ok(self.opened(node, dent.clone(), fd, flags, &st))
    }

    fn open_itself(&self, path: &OwnedFd, flags: OFlags) -> OperationResult<OwnedFd> {
        let open = |flags| self.tree.with_room(ExecutionMode::Pool, || self.host.reopen(path.as_fd(), flags));
        match open(flags) {
            // Only owners may set O_NOATIME; for others it is dropped.
            Err(host::Errno::PERM) if flags.contains(OFlags::NOATIME) => Ok(open(flags - OFlags::NOATIME)?),
            result => Ok(result?),
        }
    }

    fn may_open(&self, ty: u32) -> OperationResult<()> {
        match ty {
            S_IFREG | S_IFDIR => Ok(()),
            S_IFLNK => Err(Errno::ELOOP.into()),
            S_IFSOCK => Err(Errno::ENXIO.into()),
            _ if self.devices => Ok(()),
            _ => Err(Errno::ENXIO.into()),
        }
    }

    fn opened(
        &self,
        node: &DiskFidState,
        dent: Arc<HostDentry>,
        fd: OwnedFd,
        flags: OpenFlags,
        st: &Stat,
    ) -> Reply {
        let kind = if dent.is_dir() {
            DiskFidKind::Dir(Box::new(OpenHostDir::new(dent, fd)))
        } else {
            let number = self.next_open.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            DiskFidKind::File(Box::new(OpenHostFile::new(dent, fd, number, flags)))
        };
        Reply::Open { qid: self.qid(st), iounit: 0, node: node.with(kind) }
    }

    /// Creates a file and opens it. An existing file is opened only if the client asks for that (CREAT without EXCL,
    /// as Linux clients do), else EEXIST.
    pub(super) fn create(
        &self,
        node: &DiskFidState,
        new: &NewDirEntry<'_>,
        flags: OpenFlags,
    ) -> OperationResult<Reply> {
        if new.make != Make::File {
            return self.create_other(node, new, flags);
        }
        let &NewDirEntry { name, perm, gid, .. } = new;
        super::change::plain(perm.special)?;
        let DiskFidKind::Path(dir) = &node.kind else { return Err(Errno::EBADF.into()) };
        let dir_fd = self.tree.handle(&self.host, ExecutionMode::Pool, dir)?;
        let bits = perm.in_dir(self.host.stat(dir_fd.as_fd(), b"")?.mode, false);
        let client = self.become_client(&node.view, gid)?;
        let oflags = host_flags(flags, false);
        let (fresh, mode) = (oflags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(bits));
        let open = || self.host.open(dir_fd.as_fd(), name, fresh, mode, false);
        let exclusive = flags.has(OpenFlags::EXCL) || !flags.has(OpenFlags::CREAT);
        let fd = match self.tree.with_room(ExecutionMode::Pool, open) {
            Ok(fd) => {
                if bits & self.umask_in(dir_fd.as_fd()) != 0 {
                    self.host.chmod(fd.as_fd(), bits)?;
                }
                fd
            }
            Err(host::Errno::EXIST) if !exclusive => {
                // Opens the file that was checked: meanwhile the name may refer to a device.
                let there = self.tree.open_path(&self.host, ExecutionMode::Pool, &dir_fd, name)?;
                let ty = self.host.stat(there.as_fd(), b"")?.mode & S_IFMT;
                if ty == S_IFDIR {
                    return Err(Errno::EISDIR.into());
                }
                self.may_open(ty)?;
                self.open_itself(&there, oflags)?
            }
            Err(error) => return Err(error.into()),
        };
        drop(client);
        let st = self.host.stat(fd.as_fd(), b"")?;
        let _still = self.tree.still(ExecutionMode::Pool)?;
        let dent = self.tree.intern(dir, name, HostFileIdentity::of(&st));
        Ok(self.opened(node, dent, fd, flags, &st))
    }

    /// Creates a file other than a regular one and moves the fid to it. Only a directory is also opened; the others
    /// have nothing to read.
    fn create_other(
        &self,
        node: &DiskFidState,
        new: &NewDirEntry<'_>,
        flags: OpenFlags,
    ) -> OperationResult<Reply> {
        let &NewDirEntry { name, make, .. } = new;
        if make == Make::Dir && flags.changes() {
            return Err(Errno::EISDIR.into());
        }
        let qid = self.make(node, new)?;
        let dent = {
            let _still = self.tree.still(ExecutionMode::Pool)?;
            let dir = node.dent()?;
            let dir_fd = self.tree.handle_still(&self.host, ExecutionMode::Pool, dir)?;
            self.tree.step(&self.host, ExecutionMode::Pool, dir, &dir_fd, name)?.0
        };
        let there = node.with(DiskFidKind::Path(dent));
        if make == Make::Dir {
            self.open(&there, flags, ExecutionMode::Pool)
        } else {
            Ok(Reply::Open { qid, iounit: 0, node: there })
        }
    }
}

/// Returns the host's open flags. `O_DIRECT` is left out, since a client cannot know the alignment it needs.
fn host_flags(flags: OpenFlags, is_dir: bool) -> OFlags {
    let mut to = OFlags::NONBLOCK | OFlags::NOCTTY;
    to |= match (flags.reads(), flags.writes()) {
        _ if is_dir => OFlags::RDONLY | OFlags::DIRECTORY,
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    for (flag, host) in [
        (OpenFlags::TRUNC, OFlags::TRUNC),
        (OpenFlags::APPEND, OFlags::APPEND),
        (OpenFlags::DSYNC, OFlags::DSYNC),
        (OpenFlags::SYNC, OFlags::SYNC),
        (OpenFlags::DIRECTORY, OFlags::DIRECTORY),
        (OpenFlags::NOATIME, OFlags::NOATIME),
    ] {
        if flags.has(flag) {
            to |= host;
        }
    }
    to
}

const W_OK: u32 = 2;
const X_OK: u32 = 1;
