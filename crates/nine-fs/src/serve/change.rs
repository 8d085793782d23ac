//! Requests that change `main`.

use std::sync::Arc;

use nine_io::server::acl::{AclKind, PosixAcl};
use nine_io::server::xattr::{XATTR_CREATE, XATTR_REPLACE, XattrInput};
use nine_io::server::{Reply, Request};
use nine_proto::{Errno, Make, NOGID, Op as Asked, OpenFlags, Perm, Qid, RenameMode, SetAttr, TimeSet, mode};

use super::node::{ArchiveNode, OpenedFile, PendingXattr, TreeFile, TreeView};
use crate::archive::{Archive, ArchiveState, errno};
use crate::fs::{ArchiveFs, FsResult, NewAcls, OperationStop, TARGET_MAX};
use crate::item::{APPEND, InodeAttributes};
use crate::users::{EXECUTE, WRITE};

/// The sticky bit of a directory.
const STICKY: u32 = 0o1000;

impl Archive {
    /// Checks that changes are still possible.
    pub(super) fn is_well(&self, state: &ArchiveState) -> FsResult<()> {
        match &state.stopped {
            Some(error) => Err(errno(error).into()),
            None => Ok(()),
        }
    }

    pub(super) fn change(&self, req: &Request, state: &mut ArchiveState, file: &TreeFile) -> FsResult<Reply> {
        self.is_well(state)?;
        let (op, now) = (req.op(), self.time());
        let person = self.person(req, state);
        let by = person.number();
        match op {
            Asked::Write { offset, data } => {
                let offset = if file.open()?.append { None } else { Some(offset) };
                state.fs.write(file.ino, offset, data, by, now)?;
                self.written(state, file.ino);
                Ok(Reply::Wrote(data.len() as u32))
            }
            Asked::Create { name, make, flags, perm, gid } => {
                let reuse = make == Make::File && flags.has(OpenFlags::CREAT) && !flags.has(OpenFlags::EXCL);
                let root = state.fs.mem.root;
                let parent = state.fs.attributes(root, file.ino)?;
                person.may(&state.fs, (root, file.ino), &parent, EXECUTE)?;
                let there = state.fs.lookup(root, file.ino, name)?;
                if let Some(old) = there.filter(|_| reuse) {
                    let ArchiveNode::File(old) = &*state.meet(TreeView::Main, old.ino, file.ino, name)?
                    else {
                        unreachable!("what is met is a file")
                    };
                    return self.open_file(req, state, old, flags);
                }
                let ino = self.make(req, state, file.ino, name, (make, perm, gid))?;
                let node = state.meet(TreeView::Main, ino, file.ino, name)?;
                let node = match (&*node, make) {
                    (ArchiveNode::File(made), Make::File | Make::Dir) => {
                        // Open it regardless of its permissions, because this client has created it.
                        let append = flags.has(OpenFlags::APPEND);
                        let open = OpenedFile { number: state.number(), append, writes: flags.writes() };
                        Arc::new(ArchiveNode::File(TreeFile { open: Some(open), ..made.clone() }))
                    }
                    // Other kinds of files cannot be read, so the fid only moves to the new file.
                    _ => node,
                };
                let qid = self.qid(state, &node)?;
                if let ArchiveNode::File(TreeFile { live: Some(live), open: Some(open), .. }) = &*node
                    && qid.ty & Qid::EXCL != 0
                {
                    live.take(open.number);
                }
                Ok(Reply::Open { qid, iounit: 0, node })
            }
            Asked::Make { name, make, perm, gid } => {
                let ino = self.make(req, state, file.ino, name, (make, perm, gid))?;
                let made = state.meet(TreeView::Main, ino, file.ino, name)?;
                Ok(Reply::Made(self.qid(state, &made)?))
            }
            Asked::Rename { name } => {
                let (dir, old) = file.place(state)?;
                let to = self.second(req)?;
                self.rename(req, state, (dir, &old), (to, name), RenameMode::Replace)
            }
            Asked::RenameAt { old, new, how } => {
                let to = self.second(req)?;
                self.rename(req, state, (file.ino, old), (to, new), how)
            }
            Asked::Unlink { name, dir } => self.unlink(req, state, file.ino, name, Some(dir)),
            Asked::Remove => {
                file.release();
                let (dir, name) = file.place(state)?;
                self.unlink(req, state, dir, &name, None)
            }
            Asked::Setattr { set } => self.setattr(req, state, file, &set),
            // Attributes in `system.` have a meaning (xattr(7)). Those without one here are refused.
            Asked::XattrCreate { name, .. }
                if name.starts_with(b"system.") && AclKind::of(name).is_none() =>
            {
                Err(Errno::EOPNOTSUPP.into())
            }
            Asked::XattrCreate { name, size, flags } => {
                let input = XattrInput::new(name, size, flags, req, &state.xattr_limit)?;
                let root = state.fs.mem.root;
                let it = state.fs.attributes(root, file.ino)?;
                match AclKind::of(name) {
                    Some(_) if it.mode & mode::S_IFMT == mode::S_IFLNK => {
                        return Err(Errno::EOPNOTSUPP.into());
                    }
                    // The same rule as for chmod(2).
                    Some(_) if !person.leads(&it) => return Err(Errno::EPERM.into()),
                    Some(_) => {}
                    None => person.may(&state.fs, (root, file.ino), &it, WRITE)?,
                }
                Ok(Reply::Moved(Arc::new(ArchiveNode::PendingXattr(PendingXattr::new(file, input)))))
            }
            _ => Err(Errno::EBADF.into()),
        }
    }

    /// Returns the directory of the second fid.
    fn second(&self, req: &Request) -> FsResult<u64> {
        match &*req.node2::<ArchiveNode>()? {
            ArchiveNode::File(TreeFile { view: TreeView::Main, ino, .. }) => Ok(*ino),
            ArchiveNode::File(_) | ArchiveNode::Dumps | ArchiveNode::Year(_) => Err(Errno::EXDEV.into()),
            _ => Err(Errno::EBADF.into()),
        }
    }

    fn make(
        &self,
        req: &Request,
        state: &mut ArchiveState,
        dir: u64,
        name: &[u8],
        (make, perm, gid): (Make<'_>, Perm, u32),
    ) -> FsResult<u64> {
        let (person, now) = (self.person(req, state), self.time());
        let root = state.fs.mem.root;
        let parent = state.fs.attributes(root, dir)?;
        person.may(&state.fs, (root, dir), &parent, WRITE | EXECUTE)?;
        let ty = match make {
            Make::Link => {
                let linked = self.second(req)?;
                state.fs.link(dir, name, linked, now)?;
                state.lives.moved(linked, dir, name);
                return Ok(linked);
            }
            Make::Dir => mode::S_IFDIR,
            Make::Symlink(b"") => return Err(Errno::ENOENT.into()),
            Make::Symlink(target) if target.len() > TARGET_MAX => {
                return Err(Errno::ENAMETOOLONG.into());
            }
            Make::Symlink(_) => mode::S_IFLNK,
            Make::Node { ty, .. } => match ty {
                mode::S_IFIFO | mode::S_IFSOCK => ty,
                mode::S_IFBLK | mode::S_IFCHR if person.has_power() => ty,
                mode::S_IFBLK | mode::S_IFCHR => return Err(Errno::EPERM.into()),
                _ => return Err(Errno::EINVAL.into()),
            },
            Make::File => mode::S_IFREG,
        };
        person.may_create()?;
        let list = match ty {
            mode::S_IFLNK => None,
            _ => state.fs.acl(root, dir, &parent, AclKind::Default)?,
        };
        let (acls, bits) = match (make, &list) {
            (Make::Symlink(_), _) => (NewAcls::default(), 0o777),
            // The default list replaces the directory's permissions. It also replaces the umask, which the client
            // applies.
            (_, Some(list)) => NewAcls::inherit(list, perm.bits & 0o7777, make == Make::Dir),
            (_, None) => (NewAcls::default(), perm.in_dir(parent.mode, make == Make::Dir) & 0o7777),
        };
        // As in Linux, a directory with the set-group-ID bit gives its group to new files.
        let set_gid = parent.mode & 0o2000 != 0;
        let bits = if set_gid && make == Make::Dir { bits | 0o2000 } else { bits };
        let gid = if gid == NOGID || set_gid { parent.gid } else { gid };
        let (major, minor) = if let Make::Node { major, minor, .. } = make { (major, minor) } else { (0, 0) };
        let by = person.number();
        let mut it = InodeAttributes {
            mode: ty | bits,
            uid: by,
            gid,
            muid: by,
            major,
            minor,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..InodeAttributes::default()
        };
        it.set_special(perm.special);
        let content = if let Make::Symlink(target) = make { target } else { b"" };
        let made = state.fs.make_with(dir, name, it, content, &acls)?;
        self.renamed(state, name);
        Ok(made)
    }

    /// Checks that the user may remove a name from a directory. In a sticky directory that needs the owner of the file
    /// or of the directory.
    fn may_take(&self, req: &Request, state: &ArchiveState, dir: u64, name: &[u8]) -> FsResult<()> {
        let person = self.person(req, state);
        let root = state.fs.mem.root;
        let parent = state.fs.attributes(root, dir)?;
        person.may(&state.fs, (root, dir), &parent, WRITE | EXECUTE)?;
        if parent.mode & STICKY == 0 || person.owns(&parent) {
            return Ok(());
        }
        let there = state.fs.lookup(state.fs.mem.root, dir, name)?.ok_or(Errno::ENOENT)?;
        let it = state.fs.attributes(state.fs.mem.root, there.ino)?;
        if person.owns(&it) { Ok(()) } else { Err(Errno::EPERM.into()) }
    }

    fn unlink(
        &self,
        req: &Request,
        state: &mut ArchiveState,
        dir: u64,
        name: &[u8],
        only: Option<bool>,
    ) -> FsResult<Reply> {
        self.may_take(req, state, dir, name)?;
        let ArchiveState { fs, lives, .. } = state;
        let ino = fs.unlink(dir, name, only, |ino| lives.has(ino), self.time())?;
        lives.lost(ino);
        self.renamed(state, name);
        Ok(Reply::Done)
    }

    fn rename(
        &self,
        req: &Request,
        state: &mut ArchiveState,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        how: RenameMode,
    ) -> FsResult<Reply> {
        self.may_take(req, state, from.0, from.1)?;
        match self.may_take(req, state, to.0, to.1) {
            // No file exists there yet.
            Err(OperationStop::Error(error)) if error.errno == Errno::ENOENT => {}
            may => may?,
        }
        let there = match how {
            RenameMode::Replace => None,
            _ => state.fs.lookup(state.fs.mem.root, to.0, to.1)?,
        };
        let ArchiveState { fs, lives, .. } = state;
        match (how, there) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT.into()),
            (RenameMode::Exchange, Some(_)) => {
                let (this, that) = fs.exchange(from, to, self.time())?;
                lives.moved(this, to.0, to.1);
                lives.moved(that, from.0, from.1);
                self.renamed(state, from.1);
                self.renamed(state, to.1);
                return Ok(Reply::Done);
            }
            _ => {}
        }
        let (ino, gone) = fs.rename(from, to, |ino| lives.has(ino), self.time(), |_| Ok(()))?;
        lives.moved(ino, to.0, to.1);
        gone.into_iter().for_each(|gone| lives.lost(gone));
        self.renamed(state, from.1);
        self.renamed(state, to.1);
        Ok(Reply::Done)
    }

    fn setattr(
        &self,
        req: &Request,
        state: &mut ArchiveState,
        file: &TreeFile,
        set: &SetAttr<'_>,
    ) -> FsResult<Reply> {
        let (person, now, root) = (self.person(req, state), self.time(), state.fs.mem.root);
        let it = state.fs.attributes(root, file.ino)?;
        let by = person.number();
        if let Some(size) = set.size {
            match it.mode & mode::S_IFMT {
                mode::S_IFREG => {}
                mode::S_IFDIR => return Err(Errno::EISDIR.into()),
                _ => return Err(Errno::EINVAL.into()),
            }
            if size > crate::fs::SIZE_MAX {
                return Err(Errno::EFBIG.into());
            }
            let grows = it.flags & APPEND != 0 && set.special.is_none_or(|bits| bits & Qid::APPEND != 0);
            if grows && size < it.size {
                return Err(nine_proto::Error::new(Errno::EPERM, "the file is append-only").into());
            }
            // A file that was opened for writing may be truncated even if the permission is gone, as ftruncate(2)
            // allows.
            if !file.open.is_some_and(|open| open.writes) {
                person.may(&state.fs, (root, file.ino), &it, WRITE)?;
            }
        }
        let explicit = |set: Option<TimeSet>| matches!(set, Some(TimeSet::To(_)));
        if set.mode.is_some() && !person.leads(&it) {
            return Err(Errno::EPERM.into());
        }
        if set.uid.is_some_and(|uid| uid != it.uid) && !person.has_power() {
            return Err(Errno::EPERM.into());
        }
        if set.gid.is_some_and(|gid| gid != it.gid && !(person.owns(&it) && person.is_member(gid))) {
            return Err(Errno::EPERM.into());
        }
        if (explicit(set.atime) || explicit(set.mtime)) && !person.leads(&it) {
            return Err(Errno::EPERM.into());
        }
        if (set.atime.is_some() || set.mtime.is_some()) && !person.leads(&it) {
            person.may(&state.fs, (root, file.ino), &it, WRITE)?;
        }
        let mut place = None;
        if let Some(new) = set.name {
            let (dir, old) = file.place(state)?;
            match state.fs.lookup(root, dir, new)? {
                Some(there) if there.ino != file.ino => return Err(Errno::EEXIST.into()),
                _ => {}
            }
            self.may_take(req, state, dir, &old)?;
            place = Some((dir, old, new));
        }
        let has_more = SetAttr { name: None, ..*set } != SetAttr::default();
        match place.filter(|(_, old, new)| **old != **new) {
            Some((dir, old, new)) => {
                self.changing(state, file.ino, set, |ArchiveState { fs, lives, .. }| {
                    let also = |fs: &mut ArchiveFs| match has_more {
                        true => fs.set_attributes(file.ino, set, by, now),
                        false => Ok(()),
                    };
                    fs.rename((dir, &old), (dir, new), |ino| lives.has(ino), now, also).map(drop)
                })?;
                state.lives.moved(file.ino, dir, new);
                self.renamed(state, &old);
                self.renamed(state, new);
            }
            None if has_more => self.set_attributes(state, file.ino, set, by)?,
            None => {}
        }
        Ok(Reply::Done)
    }

    /// Changes attributes. Blocks beyond a smaller size are removed in the background.
    pub(crate) fn set_attributes(
        &self,
        state: &mut ArchiveState,
        ino: u64,
        set: &SetAttr<'_>,
        by: u32,
    ) -> FsResult<()> {
        self.changing(state, ino, set, |state| state.fs.set_attributes(ino, set, by, self.time()))
    }

    /// Runs a change of attributes, and starts the removal of blocks beyond a smaller size.
    fn changing(
        &self,
        state: &mut ArchiveState,
        ino: u64,
        set: &SetAttr<'_>,
        change: impl FnOnce(&mut ArchiveState) -> FsResult<()>,
    ) -> FsResult<()> {
        // There is one job for each file, even if it is truncated repeatedly.
        let has_job = state.fs.is_sheared(ino);
        change(state)?;
        if set.size.is_some() {
            self.written(state, ino);
        }
        if state.fs.is_sheared(ino) && !has_job {
            self.reap(ino);
        }
        Ok(())
    }

    /// Stores a new attribute when its fid is clunked. An incomplete value changes nothing.
    pub(super) fn store_xattr(
        &self,
        req: &Request,
        state: &mut ArchiveState,
        new: &PendingXattr,
    ) -> FsResult<Reply> {
        self.is_well(state)?;
        let (name, flags, value) = (new.input.name(), new.input.flags(), new.input.value()?);
        let Some(kind) = AclKind::of(name) else {
            state.fs.set_xattr(new.ino, name, &value, flags, self.time())?;
            return Ok(Reply::Done);
        };
        let list = PosixAcl::parse(&value)?;
        let it = state.fs.attributes(state.fs.mem.root, new.ino)?;
        match state.fs.acl(state.fs.mem.root, new.ino, &it, kind)? {
            Some(_) if flags == XATTR_CREATE => return Err(Errno::EEXIST.into()),
            None if flags == XATTR_REPLACE && list.is_some() => return Err(Errno::ENODATA.into()),
            // As in Linux, removing a list that is not there is not an error.
            None if list.is_none() => return Ok(Reply::Done),
            _ => {}
        }
        let keeps_set_gid = self.person(req, state).is_member(it.gid);
        state.fs.set_acl(new.ino, kind, list.as_ref(), keeps_set_gid, self.time())?;
        Ok(Reply::Done)
    }
}
