//! Operations that change the tree: create, rename, unlink, remove.
//!
//! In: directories as dents, names. Out: changes to the host's tree and to the dents. All of it runs in the pool. A
//! rename holds the tree lock (`moving`) from its lookup of the names until the dents have moved. So no walk descends
//! through a half-made rename. Renames by other programs on the host are detected and answered with ESTALE.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nine_io::server::Reply;
use nine_io::server::acl::DEFAULT;
use nine_proto::{Errno, Make, NOGID, Perm, Qid, RenameMode};
use rustix::fs::{Mode, OFlags, RenameFlags};

use super::dent::{HostDentry, HostFileIdentity};
use super::host::{self, HostFs};
use super::{AttachView, DiskFidKind, DiskFidState, DiskShared, ExecutionMode, OperationResult};

/// A directory entry to be created.
pub(super) struct NewDirEntry<'a> {
    pub(super) name: &'a [u8],
    pub(super) make: Make<'a>,
    /// The link's target file, for `Make::Link`.
    pub(super) other: Option<Arc<DiskFidState>>,
    pub(super) perm: Perm,
    pub(super) gid: u32,
}

impl<H: HostFs> DiskShared<H> {
    /// Creates a file without opening it.
    pub(super) fn make(&self, node: &DiskFidState, new: &NewDirEntry<'_>) -> OperationResult<Qid> {
        let &NewDirEntry { name, make, ref other, perm, gid } = new;
        plain(perm.special)?;
        let dir_fd = self.any_fd(node, ExecutionMode::Pool)?;
        let linked = match (make, other) {
            (Make::Link, Some(other)) => Some(self.any_fd(other, ExecutionMode::Pool)?),
            (Make::Link, None) => return Err(Errno::EINVAL.into()),
            _ => None,
        };
        let dir = dir_fd.as_fd();
        let is_dir = make == Make::Dir;
        let bits = if perm.inherit { perm.in_dir(self.host.stat(dir, b"")?.mode, is_dir) } else { perm.bits };
        let _client = self.become_client(&node.view, gid)?;
        match make {
            Make::File => self.host.mknod(dir, name, nine_proto::mode::S_IFREG | bits, 0, 0)?,
            Make::Dir => self.host.mkdir(dir, name, bits)?,
            Make::Symlink(target) => self.host.symlink(target, dir, name)?,
            Make::Node { ty, major, minor } => self.host.mknod(dir, name, ty | bits, major, minor)?,
            Make::Link => {
                let file = linked.expect("set for links above");
                self.host.link(file.as_fd(), dir, name)?;
            }
        }
        let st = self.host.stat(dir, name)?;
        // Bits that the umask cleared. mkdir also ignores set-id bits, but may have inherited one from the parent.
        let umask = self.umask_in(dir);
        let lost = bits & if is_dir { umask | 0o6000 } else { umask };
        if lost != 0 && !matches!(make, Make::Symlink(_) | Make::Link) {
            let open = || self.host.open(dir, name, OFlags::PATH, Mode::empty(), false);
            let fd = self.tree.with_room(ExecutionMode::Pool, open)?;
            // If the umask does not apply, the kernel has applied a default access control list.
            let bits = if umask == 0 { st.mode & 0o777 | bits & 0o7000 } else { bits };
            self.host.chmod(fd.as_fd(), st.mode & 0o7000 | bits)?;
            return Ok(self.qid(&self.host.stat(fd.as_fd(), b"")?));
        }
        Ok(self.qid(&st))
    }

    /// Returns the bits that the umask clears for new files in a directory. None if the directory has a default
    /// access control list, which replaces the umask (acl(5)).
    pub(super) fn umask_in(&self, dir: BorrowedFd<'_>) -> u32 {
        // Every list is longer than this buffer. Its contents do not matter here.
        let has_list = || matches!(self.host.getxattr(dir, DEFAULT, &mut [0]), Err(host::Errno::RANGE));
        if self.umask == 0 || has_list() { 0 } else { self.umask }
    }

    pub(super) fn rename(
        &self,
        node: &DiskFidState,
        dir: &DiskFidState,
        name: &[u8],
    ) -> OperationResult<Reply> {
        let dent = node.dent()?;
        let (from, old) = node.place()?;
        let to = dir.dent()?;
        self.move_name(&node.view, (&from, &old), (to, name), Some(dent), RenameFlags::empty())?;
        Ok(Reply::Done)
    }

    pub(super) fn rename_at(
        &self,
        from: &DiskFidState,
        old: &[u8],
        to: &DiskFidState,
        new: &[u8],
        how: RenameMode,
    ) -> OperationResult<Reply> {
        let flags = RenameFlags::from_bits_retain(how.flags());
        self.move_name(&from.view, (from.dent()?, old), (to.dent()?, new), None, flags)?;
        Ok(Reply::Done)
    }

    /// Renames on the host and moves the dents. `expected` is the file that the old name must refer to.
    pub(super) fn move_name(
        &self,
        view: &AttachView,
        (from, old): (&Arc<HostDentry>, &[u8]),
        (to, new): (&Arc<HostDentry>, &[u8]),
        expected: Option<&Arc<HostDentry>>,
        flags: RenameFlags,
    ) -> OperationResult<()> {
        // Dropped only after the tree lock is released: deleting a large replaced file takes long.
        let replaced;
        let _moving = self.tree.moving();
        let from_fd = self.tree.handle_still(&self.host, ExecutionMode::Pool, from)?;
        let to_fd = self.tree.handle_still(&self.host, ExecutionMode::Pool, to)?;
        let id = HostFileIdentity::of(&self.host.stat(from_fd.as_fd(), old)?);
        if expected.is_some_and(|dent| dent.id != id || dent.is_gone()) {
            return Err(Errno::ESTALE.into());
        }
        let moved = self.tree.known(from, old);
        // If both names are links to one file, the host keeps both.
        replaced = match self.tree.open_path(&self.host, ExecutionMode::Pool, &to_fd, new) {
            Ok(fd) => Some(fd),
            Err(host::Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        let target = replaced.as_ref().map(|fd| self.host.stat(fd.as_fd(), b"")).transpose()?;
        let same_file = target.is_some_and(|st| HostFileIdentity::of(&st) == id);
        let is_exchange = flags.contains(RenameFlags::EXCHANGE);
        if !is_exchange {
            self.pin(to, new);
        }
        {
            let _client = self.become_client(view, NOGID)?;
            self.host.rename((from_fd.as_fd(), old), (to_fd.as_fd(), new), flags)?;
        }
        if same_file {
            return Ok(());
        }
        if is_exchange {
            let target = target.map(|st| HostFileIdentity::of(&st));
            self.tree.exchange((from, old, id), (to, new, target.unwrap_or(id)));
            return Ok(());
        }
        match moved {
            Some(dent) if dent.id == id => self.tree.rekey(&dent, to, new),
            stranger => {
                if let Some(dent) = self.tree.known(to, new) {
                    self.tree.forget(&dent);
                }
                if let Some(dent) = stranger {
                    self.tree.forget(&dent);
                }
            }
        }
        Ok(())
    }

    pub(super) fn unlink(&self, node: &DiskFidState, name: &[u8], is_dir: bool) -> OperationResult<Reply> {
        let dir = node.dent()?;
        let dir_fd = self.any_fd(node, ExecutionMode::Pool)?;
        {
            let _still = self.tree.still(ExecutionMode::Pool)?;
            self.pin(dir, name);
        }
        let client = self.become_client(&node.view, NOGID)?;
        self.host.unlink(dir_fd.as_fd(), name, is_dir)?;
        drop(client);
        // The lock was not held during the unlink, since deleting a large file takes long. Another client may have
        // moved the dent or created the name again meanwhile.
        let _still = self.tree.still(ExecutionMode::Pool)?;
        if let Some(dent) = self.tree.known(dir, name)
            && self.host.stat(dir_fd.as_fd(), name).map(|st| HostFileIdentity::of(&st)) != Ok(dent.id)
        {
            self.tree.forget(&dent);
        }
        Ok(Reply::Done)
    }

    /// Removes a fid's file by the name it was walked to, and clunks the fid in any case.
    pub(super) fn remove(&self, node: &DiskFidState) -> OperationResult<Reply> {
        let result = self.remove_name(node);
        self.clunk(node, ExecutionMode::Pool)?;
        result.map(|()| Reply::Done)
    }

    fn remove_name(&self, node: &DiskFidState) -> OperationResult<()> {
        if self.read_only {
            return Err(Errno::EROFS.into());
        }
        if !matches!(node.kind, DiskFidKind::Path(_) | DiskFidKind::File(_) | DiskFidKind::Dir(_)) {
            return Err(Errno::EPERM.into());
        }
        let dent = node.dent()?;
        // Held until the name is removed, so that no client can put another file under it. The fid holds a reference
        // to the file, so its deletion, which may take long, does not happen here.
        let _still = self.tree.still(ExecutionMode::Pool)?;
        let (dir, name) = node.place()?;
        let dir_fd = self.tree.handle_still(&self.host, ExecutionMode::Pool, &dir)?;
        let _file = self.tree.handle_still(&self.host, ExecutionMode::Pool, dent);
        if dent.is_gone() || HostFileIdentity::of(&self.host.stat(dir_fd.as_fd(), &name)?) != dent.id {
            return Err(Errno::ENOENT.into());
        }
        self.pin(&dir, &name);
        let client = self.become_client(&node.view, NOGID)?;
        self.host.unlink(dir_fd.as_fd(), &name, dent.is_dir())?;
        drop(client);
        self.tree.forget(dent);
        Ok(())
    }

    /// Opens a handle for fids on a name about to be removed. A file without a name cannot be opened again.
    fn pin(&self, dir: &Arc<HostDentry>, name: &[u8]) -> Option<Arc<HostDentry>> {
        let dent = self.tree.known(dir, name)?;
        match self.tree.handle_still(&self.host, ExecutionMode::Pool, &dent) {
            Ok(_) | Err(host::Errno::STALE) => {}
            Err(error) => tracing::debug!(%error, "fids on a file that is being removed will be stale"),
        }
        Some(dent)
    }
}

/// Refuses append-only and exclusive-use files. The host has neither; clients would overwrite a plain file that was
/// created instead. Temporary files (DMTMP) are created like any other.
pub(super) fn plain(special: u8) -> Result<(), nine_proto::Error> {
    if special & (Qid::APPEND | Qid::EXCL) != 0 {
        let text = "a disk keeps no append-only and no exclusive files";
        return Err(nine_proto::Error::new(Errno::EOPNOTSUPP, text));
    }
    Ok(())
}
