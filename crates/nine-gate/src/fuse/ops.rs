//! Translates FUSE requests to 9P.
//!
//! In: a request's head and fields. Out: a [`RequestWork`], whose outcome is the answer; none if the request expects no
//! answer. A server's error becomes the caller's errno.

use std::borrow::Cow;
use std::future::Future;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use nine_io::client::{Error, File};
use nine_proto::{Attr, Qid, RenameMode, SetAttr, Statfs, Time, TimeSet, mode};

use super::abi::{self, fattr, fopen};
use super::dir::DOTS;
use super::locks::LockInput;
use super::nodes::{CAPABILITY, EntryKey, FileIoMode, WANTED};
use super::running::RequestWork;
use super::*;

/// `O_ACCMODE`.
const ACCESS: u32 = 3;
/// The flags of open(2) that are passed to the server.
const FLAGS: u32 = ACCESS
    | OpenFlags::TRUNC.0
    | OpenFlags::APPEND.0
    | OpenFlags::NONBLOCK.0
    | OpenFlags::SYNC.0
    | OpenFlags::DIRECT.0
    | OpenFlags::NOATIME.0;

pub(super) fn errno(error: Error) -> Errno {
    error.errno()
}

fn work(future: impl Future<Output = FuseResult> + 'static) -> Option<RequestWork> {
    Some(RequestWork { future: Box::pin(future), grace: GRACE })
}

pub(super) fn done(bytes: AnswerBuffer) -> FuseResult {
    Ok(FuseReply { bytes: bytes.0, ..FuseReply::default() })
}

/// The error for a request with missing fields.
pub(super) const SHORT_OF_FIELDS: Errno = Errno::EIO;

impl MountState {
    /// Adds a request to those in flight.
    pub(super) fn run(
        self: &Rc<Self>,
        head: FuseHeader,
        work: RequestWork,
        running: &mut FuturesUnordered<RunningRequest>,
    ) {
        running.push(RunningRequest::new(self.clone(), head.unique, work));
    }

    /// Wraps a request that changes names or extended attributes: files that were prefetched before its end are
    /// forgotten.
    fn guarded(
        self: &Rc<Self>,
        head: FuseHeader,
        mut fields: FuseFields<'_>,
        work: RequestWork,
    ) -> RequestWork {
        let (mut dirs, mut file) = (vec![head.node], None);
        match head.op {
            op::SYMLINK | op::MKNOD | op::MKDIR | op::UNLINK | op::RMDIR | op::CREATE => {}
            // The directory of the new name.
            op::RENAME | op::RENAME2 => dirs.extend(fields.u64()),
            // The file that gets another name.
            op::LINK => file = fields.u64(),
            op::SETXATTR | op::REMOVEXATTR => (dirs, file) = (Vec::new(), Some(head.node)),
            _ => return work,
        }
        let gate = self.clone();
        let future = Box::pin(async move {
            let node = file.and_then(|id| gate.node(id).ok());
            let _changed = node.map(|node| gate.prefetcher.change_file(&node));
            let _names: Vec<_> = dirs.into_iter().map(|dir| gate.prefetcher.change(dir)).collect();
            work.future.await
        });
        RequestWork { future, grace: work.grace }
    }

    /// Starts a request. `None`: it is done, or expects no answer.
    pub(super) fn request(self: &Rc<Self>, head: FuseHeader, fields: FuseFields<'_>) -> Option<RequestWork> {
        match head.op {
            op::FORGET => {
                let mut fields = fields;
                self.nodes.borrow_mut().forget(head.node, fields.u64().unwrap_or(0));
                None
            }
            op::BATCH_FORGET => {
                let mut fields = fields;
                fields.u64()?;
                let mut nodes = self.nodes.borrow_mut();
                while let (Some(node), Some(times)) = (fields.u64(), fields.u64()) {
                    nodes.forget(node, times);
                }
                None
            }
            op::INTERRUPT => {
                let mut fields = fields;
                self.interrupt(fields.u64()?);
                None
            }
            _ => {
                let asked = self.asked(head, fields).or_else(|| work(async { Err(SHORT_OF_FIELDS) }))?;
                Some(self.guarded(head, fields, asked))
            }
        }
    }

    /// The same for requests that expect an answer. `None`: fields are missing.
    fn asked(self: &Rc<Self>, head: FuseHeader, mut f: FuseFields<'_>) -> Option<RequestWork> {
        let gate = self.clone();
        let id = head.node;
        match head.op {
            op::LOOKUP => {
                let name = Box::from(f.text()?);
                work(async move { gate.lookup(id, name).await })
            }
            op::GETATTR => {
                let (flags, _, handle) = (f.u32()?, f.u32()?, f.u64()?);
                let handle = (flags & abi::GETATTR_FH != 0).then_some(handle);
                work(async move { gate.getattr(id, handle).await })
            }
            op::SETATTR => {
                let set = SetattrInput::of(&mut f)?;
                work(async move { gate.setattr(id, set).await })
            }
            op::READLINK => work(async move {
                let target = gate.file(id).await?.readlink().await.map_err(errno)?;
                Ok(FuseReply { bytes: target.into(), ..FuseReply::default() })
            }),
            op::SYMLINK => {
                let (name, target) = (Box::from(f.text()?), Box::<[u8]>::from(f.text()?));
                work(async move {
                    let dir = gate.file(id).await?;
                    dir.symlink(&name, &target, head.gid).await.map_err(errno)?;
                    gate.made(head, name, 0).await
                })
            }
            op::MKNOD => {
                let (st_mode, rdev, umask, _) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                let name = Box::from(f.text()?);
                work(async move {
                    let st_mode = st_mode & !gate.umask(id, umask).await?;
                    let dir = gate.file(id).await?;
                    let device = ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00));
                    dir.mknod(&name, st_mode, device, head.gid).await.map_err(errno)?;
                    gate.made(head, name, st_mode).await
                })
            }
            op::MKDIR => {
                let (perm, umask) = (f.u32()?, f.u32()?);
                let name = Box::from(f.text()?);
                work(async move {
                    let perm = perm & !gate.umask(id, umask).await?;
                    let dir = gate.file(id).await?;
                    dir.mkdir(&name, perm & 0o7777, head.gid).await.map_err(errno)?;
                    gate.made(head, name, 0).await
                })
            }
            op::UNLINK | op::RMDIR => {
                let name = Box::<[u8]>::from(f.text()?);
                let is_dir = head.op == op::RMDIR;
                work(async move {
                    gate.file(id).await?.unlink(&name, is_dir).await.map_err(errno)?;
                    let mut nodes = gate.nodes.borrow_mut();
                    let removed = nodes.at(id, &name);
                    nodes.unnamed(id, &name);
                    nodes.binding_changed(id, &name);
                    // Its fid may be of the removed name.
                    removed.iter().for_each(|node| nodes.moved(node));
                    Ok(FuseReply::default())
                })
            }
            op::RENAME | op::RENAME2 => {
                let to = f.u64()?;
                let flags = if head.op == op::RENAME2 { f.u64()? as u32 } else { 0 };
                let (old, new) = (Box::<[u8]>::from(f.text()?), Box::<[u8]>::from(f.text()?));
                work(async move { gate.rename((id, old), (to, new), flags).await })
            }
            op::LINK => {
                let old = f.u64()?;
                let name = Box::<[u8]>::from(f.text()?);
                work(async move {
                    let (dir, target) = (gate.file(id).await?, gate.file(old).await?);
                    dir.link(&name, &target).await.map_err(errno)?;
                    gate.lookup(id, name).await
                })
            }
            op::OPEN => {
                let flags = f.u32()?;
                work(async move { gate.open(id, flags).await })
            }
            op::CREATE => {
                let (flags, perm, umask, _) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                let name = Box::from(f.text()?);
                work(async move {
                    let perm = perm & !gate.umask(id, umask).await?;
                    gate.create(head, flags, perm, name).await
                })
            }
            op::READ => {
                let (handle, offset, size) = (f.u64()?, f.u64()?, f.u32()?);
                let handle = self.handle(handle);
                let is_event = matches!(handle.as_deref(), Ok(OpenHandle::File(open)) if open.is_event);
                let grace = if is_event { Duration::ZERO } else { GRACE };
                let read = async move { data::read(&gate, handle?, offset, size.min(DATA as u32)).await };
                Some(RequestWork { grace, ..work(read)? })
            }
            op::STATFS => work(async move {
                let about = match gate.file(id).await?.statfs().await {
                    // Programs do not expect this error of statfs(2). Linux' 9P client makes up the same values.
                    Err(error) if matches!(error.errno(), Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                        Statfs { bsize: 4096, namelen: 255, ..Statfs::default() }
                    }
                    about => about.map_err(errno)?,
                };
                done(AnswerBuffer::default().statfs(&about))
            }),
            op::ACCESS => {
                let asks = f.u32()?;
                work(async move { gate.access(id, asks).await })
            }
            op::RELEASE | op::RELEASEDIR => {
                let (handle, _, flags, owner) = (f.u64()?, f.u32()?, f.u32()?, f.u64()?);
                work(async move {
                    gate.settle_for_release(handle).await;
                    if flags & abi::RELEASE_FLOCK_UNLOCK != 0 {
                        gate.unlock(handle, owner, true).await;
                    }
                    gate.close(handle);
                    Ok(FuseReply::default())
                })
            }
            op::FSYNC | op::FSYNCDIR => {
                let (handle, flags) = (f.u64()?, f.u32()?);
                work(async move {
                    let handle = gate.handle(handle)?;
                    let file = match &*handle {
                        OpenHandle::File(open) => {
                            gate.settle_for_sync(open).await?;
                            &open.file
                        }
                        OpenHandle::Dir(dir) => dir.file(),
                    };
                    file.fsync(flags & abi::FSYNC_DATA != 0).await.map_err(errno)?;
                    Ok(FuseReply::default())
                })
            }
            op::FLUSH => {
                let (handle, _, owner) = (f.u64()?, f.u64()?, f.u64()?);
                work(async move {
                    let settled = gate.settle_for_close(handle, head.pid).await;
                    gate.unlock(handle, owner, false).await;
                    settled.map(|()| FuseReply::default())
                })
            }
            op::SETXATTR => {
                let (size, flags) = (f.u32()?, f.u32()?);
                let more = if self.has_long_setxattr.get() { (f.u32()?, f.u32()?).0 } else { 0 };
                let name = Box::<[u8]>::from(f.text()?);
                let value = Box::<[u8]>::from(f.0.get(..size as usize)?);
                let kills_set_gid = more & abi::SETXATTR_KILL_SGID != 0;
                work(async move { gate.set_xattr(id, &name, &value, flags, kills_set_gid).await })
            }
            op::GETXATTR | op::LISTXATTR => {
                let (size, _) = (f.u32()?, f.u32()?);
                let name = if head.op == op::GETXATTR { Some(Box::<[u8]>::from(f.text()?)) } else { None };
                work(async move { gate.xattr(id, name.as_deref(), size as usize).await })
            }
            op::REMOVEXATTR => {
                let name = Box::<[u8]>::from(f.text()?);
                work(async move { gate.remove_xattr(id, &name).await })
            }
            op::OPENDIR => work(async move { gate.open_dir(id).await }),
            op::READDIR | op::READDIRPLUS => {
                let (handle, place, size) = (f.u64()?, f.u64()?, f.u32()?);
                let plus = head.op == op::READDIRPLUS;
                work(
                    async move { gate.readdir(id, handle, place, size.min(DATA as u32) as usize, plus).await },
                )
            }
            op::GETLK | op::SETLK | op::SETLKW => {
                let lock = LockInput::of(&mut f)?;
                match head.op {
                    op::GETLK => work(async move { gate.getlock(lock).await }),
                    op::SETLK => work(async move { gate.lock(lock, false).await }),
                    _ => {
                        let wait = work(async move { gate.lock(lock, true).await })?;
                        Some(RequestWork { grace: Duration::ZERO, ..wait })
                    }
                }
            }
            _ => work(async { Err(Errno::ENOSYS) }),
        }
    }

    async fn lookup(&self, dir: u64, name: Box<[u8]>) -> FuseResult {
        if let Some(reply) = self.prefetched(dir, &name) {
            return Ok(reply);
        }
        let parent = self.file(dir).await?;
        let (asked, begun) = (self.asks(), self.clock.now());
        let walked = parent.walk_attr(&name, WANTED).await.map_err(errno);
        self.looked_up(dir, begun);
        match walked {
            Ok((file, attr)) => Ok(self.found(asked, Duration::ZERO, dir, &name, file, &attr)),
            Err(Errno::ENOENT) => {
                // Lost changes invalidate all known names, but not the absent ones.
                let good = self.good_name(asked, dir, &name);
                match if self.told.is_some() { good.min(SHORT) } else { good } {
                    Duration::ZERO => Err(Errno::ENOENT),
                    good => done(AnswerBuffer::default().no_entry(good)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Answers RENAME and RENAME2. Not every server supports the flags of renameat2(2). For RENAME_NOREPLACE on a plain
    /// file there is a fallback: link the new name, which no server does over an existing file, then remove the old
    /// name.
    async fn rename(
        &self,
        (from, old): (u64, Box<[u8]>),
        (to, new): (u64, Box<[u8]>),
        flags: u32,
    ) -> FuseResult {
        let how = RenameMode::from_flags(flags).ok_or(Errno::EINVAL)?;
        // The kernel moves the files that have these names now. A lookup in flight may change the table meanwhile.
        let [known, other] = [(from, &old), (to, &new)].map(|(dir, name)| self.nodes.borrow().at(dir, name));
        let (dir, into) = (self.file(from).await?, self.file(to).await?);
        // For the fallback below. The walk comes before the guard, because walks may wait for renames in flight.
        let target = match &known {
            Some(node) if how == RenameMode::NoReplace && node.is_plain() => Some(self.file_of(node).await?),
            _ => None,
        };
        let places = [(from, old.clone()), (to, new.clone())];
        let rename = RenameGuard::new(self, places, [&known, &other]);
        let done = match how {
            RenameMode::Replace => dir.rename(&old, &into, &new).await,
            _ if self.file(nodes::ROOT).await?.has_renameat2().await => {
                dir.rename_with(&old, &into, &new, how).await
            }
            _ => Err(nine_proto::Error::from(Errno::EINVAL).into()),
        };
        match (done.map_err(errno), target) {
            // A server without rename flags may have links.
            (Err(Errno::EINVAL), Some(target)) => {
                match into.link(&new, &target).await.map_err(errno) {
                    // The server has no hard links.
                    Err(Errno::EPERM | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EMLINK) => {
                        return Err(Errno::EINVAL);
                    }
                    linked => linked?,
                }
                if let Err(error) = dir.unlink(&old, false).await {
                    // Else the file would keep both names although the caller gets an error.
                    into.unlink(&new, false).await.map_err(errno)?;
                    return Err(error.errno());
                }
            }
            (done, ..) => done?,
        }
        let mut nodes = self.nodes.borrow_mut();
        nodes.unnamed(from, &old);
        nodes.unnamed(to, &new);
        let exchanged = other.as_ref().filter(|_| how == RenameMode::Exchange);
        for (moved, dir, name) in [(known.as_ref(), to, &new), (exchanged, from, &old)] {
            if let Some(moved) = moved {
                nodes.named(dir, name, moved);
            }
        }
        drop(nodes);
        drop(rename);
        Ok(FuseReply::default())
    }

    /// Adds a file to the kernel's known files, and returns the reply that names it. `age`: since it was requested, if
    /// that was before the kernel's request.
    pub(super) fn found(
        &self,
        asked: RequestEpoch,
        age: Duration,
        dir: u64,
        name: &[u8],
        file: File,
        attr: &Attr,
    ) -> FuseReply {
        let node = self.tell(asked, dir, name, file, attr);
        let bytes = self.entry(AnswerBuffer::default(), (asked, age), dir, name, &node, attr).0;
        FuseReply { bytes, told: vec![node.id], opened: None }
    }

    fn entry(
        &self,
        out: AnswerBuffer,
        (asked, age): (RequestEpoch, Duration),
        dir: u64,
        name: &[u8],
        node: &KernelNode,
        attr: &Attr,
    ) -> AnswerBuffer {
        let name = self.good_name(asked, dir, name);
        let (shown, good) = self.shown(asked, node, attr);
        let good = [name, good.min(name)].map(|good| good.saturating_sub(age));
        out.entry(good, node.id, &shown)
    }

    fn tell(&self, asked: RequestEpoch, dir: u64, name: &[u8], file: File, attr: &Attr) -> Rc<KernelNode> {
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes.told(asked, Rc::new(file), attr);
        let names = nodes.names(&node).len();
        let other = nodes.named_by_reply(asked, dir, name, &node);
        // The reply contradicts the table: another client has renamed, and the server has not published that yet.
        let has_moved = node.is_dir() && names > 0 && nodes.names(&node).len() > names;
        if other.is_some() || has_moved {
            self.mark_unsettled(dir, name, other.into_iter().chain([node.clone()]));
        }
        node
    }

    /// Answers a request that has created `name`. The new file is given to the caller.
    async fn made(&self, head: FuseHeader, name: Box<[u8]>, st_mode: u32) -> FuseResult {
        let parent = self.node(head.node)?;
        let dir = self.file_of(&parent).await?;
        let asked = self.asks();
        let (file, mut attr) = dir.walk_attr(&name, WANTED).await.map_err(errno)?;
        self.give(&parent, &file, &mut attr, head, st_mode).await?;
        Ok(self.found(asked, Duration::ZERO, head.node, &name, file, &attr))
    }

    /// Gives a new file in `dir` to the user who created it through this mount. The change of owner clears its set-id
    /// bits. If `perm` has such bits, they are set again.
    async fn give(
        &self,
        dir: &KernelNode,
        file: &File,
        attr: &mut Attr,
        head: FuseHeader,
        perm: u32,
    ) -> Result<(), Errno> {
        // In a set-group-id directory the group is the directory's (mkdir(2)).
        let gid = if dir.mode.get() & 0o2000 != 0 { attr.gid } else { head.gid };
        if !self.options.all_users || (attr.uid, attr.gid) == (head.uid, gid) {
            return Ok(());
        }
        match file.setattr(&SetAttr { uid: Some(head.uid), gid: Some(gid), ..SetAttr::default() }).await {
            Ok(()) => {}
            // The server does not allow our user to change owners.
            Err(error) if matches!(error.errno(), Errno::EPERM | Errno::EOPNOTSUPP) => {
                // The file stays ours. With set-id bits, its program would run as our user.
                if attr.mode & 0o6000 != 0 && attr.mode & mode::S_IFMT == mode::S_IFREG {
                    let set = SetAttr { mode: Some(attr.mode & 0o1777), ..SetAttr::default() };
                    file.setattr(&set).await.map_err(errno)?;
                    attr.mode &= !0o6000;
                }
                return Ok(());
            }
            Err(error) => return Err(error.errno()),
        }
        if perm & 0o6000 != 0 && attr.mode & mode::S_IFMT != mode::S_IFDIR {
            let set = SetAttr { mode: Some(attr.mode & 0o7777), ..SetAttr::default() };
            file.setattr(&set).await.map_err(errno)?;
        }
        *attr = file.getattr(WANTED).await.map_err(errno)?;
        Ok(())
    }

    async fn getattr(&self, id: u64, handle: Option<u64>) -> FuseResult {
        let node = self.node(id)?;
        // An open file may have no name left. At a server whose fids are paths only the open fid still leads to it.
        let handle = handle.and_then(|handle| self.handle(handle).ok());
        let asked = self.asks();
        let attr = match handle.as_deref() {
            Some(OpenHandle::File(open)) => open.file.getattr(WANTED).await,
            _ => self.file_of(&node).await?.getattr(WANTED).await,
        };
        self.attr(asked, &node, &attr.map_err(errno)?)
    }

    fn attr(&self, asked: RequestEpoch, node: &KernelNode, attr: &Attr) -> FuseResult {
        node.seen(attr);
        let (shown, good) = self.shown(asked, node, attr);
        done(AnswerBuffer::default().attr_for(good, node.id, &shown))
    }

    /// The attributes as the kernel sees them, and how long it may cache them.
    fn shown<'a>(&self, asked: RequestEpoch, node: &KernelNode, attr: &'a Attr) -> (Cow<'a, Attr>, Duration) {
        let mut shown = Cow::Borrowed(attr);
        if let Some((uid, gid)) = self.options.owner {
            shown = Cow::Owned(Attr { uid, gid, ..attr.clone() });
        }
        let good = match node.tail_at(asked) {
            Some(end) => {
                shown.to_mut().size = attr.size.max(end);
                Duration::ZERO
            }
            None => self.good_attr(asked, node.id),
        };
        node.has_attr.set(node.has_attr.get() || !good.is_zero());
        (shown, good)
    }

    async fn setattr(&self, id: u64, set: SetattrInput) -> FuseResult {
        let node = self.node(id)?;
        let _change = self.prefetcher.change_file(&node);
        self.settle(&node).await?;
        let handle = set.handle.and_then(|handle| self.handle(handle).ok());
        // ftruncate(2): the open file may be writable where a new open by path is refused.
        let open = match handle.as_deref() {
            Some(OpenHandle::File(open)) if set.attr.size.is_some() => Some(&open.file),
            _ => None,
        };
        let mut attr = set.attr;
        if set.kills && attr.mode.is_none() && node.is_plain() && node.mode.get() & 0o6000 != 0 {
            attr.mode = Some(without_set_id(node.mode.get()));
        }
        if attr != SetAttr::default() {
            match open {
                Some(file) => file.setattr(&attr).await.map_err(errno)?,
                None => self.file_of(&node).await?.setattr(&attr).await.map_err(errno)?,
            }
        }
        if attr.size.is_some() {
            node.written.set(true);
            node.tail.take();
        }
        let asked = self.asks();
        let attr = match open {
            Some(file) => file.getattr(WANTED).await.map_err(errno)?,
            None => self.file_of(&node).await?.getattr(WANTED).await.map_err(errno)?,
        };
        self.attr(asked, &node, &attr)
    }

    async fn open(&self, id: u64, flags: u32) -> FuseResult {
        let node = self.node(id)?;
        let how = self.flags(flags);
        let is_cut = flags & OpenFlags::TRUNC.0 != 0;
        let _change = is_cut.then(|| self.prefetcher.change_file(&node));
        if is_cut {
            self.settle(&node).await?;
            node.tail.take();
        }
        let file = self.file_of(&node).await?.open("", how).await.map_err(errno)?;
        let (fopen, backing) = self.how(&node, &file, flags);
        // Close-to-open: an open shows the file's present length (nfs(5)).
        let is_cached =
            fopen & (fopen::KEEP_CACHE | fopen::DIRECT_IO) == 0 && self.options.cache != Cache::Never;
        let version = file.qid().vers;
        if is_cached && (version == 0 || version != node.attr_version.get()) {
            self.forget_attr(&node);
        }
        let open = FileHandle::new(node, file, fopen);
        self.opened(OpenHandle::File(open), AnswerBuffer::default(), fopen, backing)
    }

    /// The flags with which a file is opened at the server.
    fn flags(&self, flags: u32) -> OpenFlags {
        let mut flags = flags & FLAGS;
        if self.options.write_back {
            // The kernel knows the end of the file, and it reads pages that it writes in part.
            flags &= !OpenFlags::APPEND.0;
            if flags & ACCESS == OpenFlags::WRITE.0 {
                flags = flags & !ACCESS | OpenFlags::RDWR.0;
            }
        }
        OpenFlags(flags)
    }

    /// Decides how the kernel opens this file. Returns the flags for its answer and the number of the host's file, or
    /// 0.
    fn how(&self, node: &KernelNode, file: &File, flags: u32) -> (u32, u32) {
        let qid = file.qid();
        if !matches!(*node.mode_of_io.borrow(), FileIoMode::Passed(..)) {
            if qid.is_event() {
                return (fopen::DIRECT_IO | fopen::NONSEEKABLE | fopen::STREAM, 0);
            }
            // A file without a length and a version is generated when it is read.
            let is_made = qid.vers == 0 && node.size.get() == 0 && flags & ACCESS == OpenFlags::READ.0;
            if is_made && node.is_plain() {
                return (fopen::DIRECT_IO, 0);
            }
        }
        let mut io = node.mode_of_io.borrow_mut();
        // The kernel does not let a program clear O_APPEND on a passthrough file.
        if self.passes.get()
            && flags & OpenFlags::APPEND.0 == 0
            && matches!(*io, FileIoMode::Closed)
            && let Some(host) = file.backing()
        {
            match sys::BackingFile::new(&self.device, host.as_fd()) {
                Ok(backing) => *io = FileIoMode::Passed(0, backing),
                Err(error) => {
                    tracing::info!("files are not handed to the kernel: {error}");
                    self.passes.set(false);
                }
            }
        }
        if let FileIoMode::Passed(handles, backing) = &mut *io {
            *handles += 1;
            return (fopen::PASSTHROUGH, backing.id());
        }
        *io = match *io {
            FileIoMode::Asked(handles) => FileIoMode::Asked(handles + 1),
            _ => FileIoMode::Asked(1),
        };
        drop(io);
        let has_pages = node.has_pages_of(qid.vers, self.clock.now(), self.clock.wall());
        let is_same = match &self.told {
            // A server without versions would have published a change.
            Some(told) if qid.vers == 0 && told.keeps(&self.nodes.borrow(), node) => node.was_open.get(),
            // A change is published by one name only, and the kernel does not compare times in this mode.
            Some(_) if node.links.get() > 1 => false,
            _ => has_pages,
        };
        node.was_open.set(true);
        let keeps = is_same && !node.stale.replace(false) && flags & OpenFlags::TRUNC.0 == 0;
        if keeps && self.options.cache != Cache::Never {
            return (fopen::KEEP_CACHE, 0);
        }
        // The kernel drops the pages when it gets the answer.
        node.has_pages.set(false);
        (0, 0)
    }

    /// Answers with a new handle, after the fields in `out`.
    pub(super) fn opened(
        &self,
        handle: OpenHandle,
        out: AnswerBuffer,
        flags: u32,
        backing: u32,
    ) -> FuseResult {
        let number = self.next.get();
        self.next.set(number + 1);
        self.handles.borrow_mut().insert(number, Rc::new(handle));
        let bytes = out.open(number, flags, backing).0;
        Ok(FuseReply { bytes, told: Vec::new(), opened: Some(number) })
    }

    /// Removes a handle that the kernel has released.
    pub(super) fn close(&self, number: u64) {
        let closed = self.handles.borrow_mut().remove(&number);
        // `mode_of_io` does not count handles that bypass the kernel's pages.
        if let Some(OpenHandle::File(open)) = closed.as_deref()
            && !open.is_event
        {
            let mut io = open.node.mode_of_io.borrow_mut();
            match &mut *io {
                FileIoMode::Asked(handles) | FileIoMode::Passed(handles, _) if *handles > 1 => *handles -= 1,
                _ => *io = FileIoMode::Closed,
            }
        }
    }

    async fn create(&self, head: FuseHeader, flags: u32, perm: u32, name: Box<[u8]>) -> FuseResult {
        let dir = self.node(head.node)?;
        let how = OpenFlags(self.flags(flags).0 | flags & OpenFlags::EXCL.0);
        let parent = self.file_of(&dir).await?;
        let file = parent.create(&name, how, perm & 0o7777, head.gid).await.map_err(errno)?;
        let asked = self.asks();
        let (walked, mut attr) = parent.walk_attr(&name, WANTED).await.map_err(errno)?;
        if attr.qid.path != file.qid().path {
            // Another client has put a different file there.
            return Err(Errno::ESTALE);
        }
        if attr.mode & mode::S_IFMT != mode::S_IFREG || i64::try_from(attr.size).is_err() {
            // The kernel would silently drop both the file and the handle.
            return Err(Errno::EIO);
        }
        self.give(&dir, &walked, &mut attr, head, perm).await?;
        let node = self.tell(asked, head.node, &name, walked, &attr);
        if how.has(OpenFlags::EXCL) {
            self.seen_without(&node, CAPABILITY);
        }
        let (fopen, backing) = self.how(&node, &file, flags);
        let entry =
            self.entry(AnswerBuffer::default(), (asked, Duration::ZERO), head.node, &name, &node, &attr);
        let told = vec![node.id];
        let open = FileHandle::new(node, file, fopen);
        let reply = self.opened(OpenHandle::File(open), entry, fopen, backing)?;
        Ok(FuseReply { told, ..reply })
    }

    async fn readdir(&self, id: u64, handle: u64, mut place: u64, size: usize, plus: bool) -> FuseResult {
        let handle = self.handle(handle)?;
        let OpenHandle::Dir(dir) = &*handle else { return Err(Errno::ENOTDIR) };
        let head = if plus { abi::ENTRY } else { 0 };
        let mut left = size;
        let mut out = AnswerBuffer::default();
        for (n, name) in [&b"."[..], b".."].into_iter().enumerate().skip(place.min(DOTS) as usize) {
            let Some(rest) = left.checked_sub(head + abi::entry_size(name.len())) else { return done(out) };
            left = rest;
            place = n as u64 + 1;
            if plus {
                // The kernel resolves these two itself.
                out = out.no_entry(Duration::ZERO);
            }
            out = out.entry_name(id, place, DIRECTORY, name);
        }
        let room = |entry: &nine_io::client::Entry| {
            let rest = left.checked_sub(head + abi::entry_size(entry.name.len()));
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        let entries = dir.entries(place, room).await.map_err(errno)?;
        let mut told = Vec::new();
        if !plus {
            for (entry, next) in &entries {
                out = out.entry_name(ino(entry.qid), *next, entry.ty, &entry.name);
            }
            return done(out);
        }
        let parent = self.file(id).await?;
        let asked = self.asks();
        let walked = entries.iter().map(|(entry, _)| parent.walk_attr(&entry.name, WANTED));
        for (walked, (entry, next)) in join_all(walked).await.into_iter().zip(&entries) {
            out = match walked {
                Ok((file, attr)) => {
                    let node = self.tell(asked, id, &entry.name, file, &attr);
                    told.push(node.id);
                    self.entry(out, (asked, Duration::ZERO), id, &entry.name, &node, &attr)
                }
                Err(error) if error.is_disconnect() => {
                    for node in told {
                        self.nodes.borrow_mut().forget(node, 1);
                    }
                    return Err(error.errno());
                }
                // Removed meanwhile, or not accessible: only the name is listed. A lookup of it reports the error.
                Err(_) => out.no_entry(Duration::ZERO),
            };
            out = out.entry_name(ino(entry.qid), *next, entry.ty, &entry.name);
        }
        Ok(FuseReply { bytes: out.0, told, opened: None })
    }
}

/// A rename in flight. When it ends, also by failure or by an interrupt, replies and fids from before it become
/// invalid.
struct RenameGuard<'a> {
    gate: &'a MountState,
    places: [EntryKey; 2],
    files: Vec<Rc<KernelNode>>,
}

impl<'a> RenameGuard<'a> {
    fn new(gate: &'a MountState, places: [EntryKey; 2], files: [&Option<Rc<KernelNode>>; 2]) -> Self {
        let this = Self { gate, places, files: files.into_iter().flatten().cloned().collect() };
        this.mark_unsettled();
        gate.nodes.borrow_mut().begin_rename();
        this
    }

    fn mark_unsettled(&self) {
        for (dir, name) in &self.places {
            self.gate.mark_unsettled(*dir, name, self.files.clone());
        }
    }
}

impl Drop for RenameGuard<'_> {
    fn drop(&mut self) {
        self.mark_unsettled();
        let mut nodes = self.gate.nodes.borrow_mut();
        self.files.iter().for_each(|file| nodes.moved(file));
        self.places.iter().for_each(|(dir, name)| nodes.binding_changed(*dir, name));
        nodes.end_rename();
    }
}

/// The inode number of a directory entry. A file for which the server has none gets a stand-in, because programs skip
/// entries with 0.
fn ino(qid: Qid) -> u64 {
    if qid.path == 0 { u32::MAX.into() } else { qid.path }
}

/// `DT_DIR`.
const DIRECTORY: u8 = 4;

impl FileHandle {
    /// `fopen`: the flags of the answer to the kernel.
    fn new(node: Rc<KernelNode>, file: File, fopen: u32) -> Self {
        let is_event = fopen & fopen::DIRECT_IO != 0;
        let stream = (fopen & fopen::STREAM != 0).then(StreamPosition::default);
        let (file, run) = (Rc::new(file), RefCell::default());
        Self { node, file, run, other: RefCell::default(), locker: RefCell::default(), is_event, stream }
    }
}

/// The permissions that write(2) and truncate(2) leave, unless root calls them. A set-group-id bit without the group's
/// execute bit stays: it does not set the group.
pub(super) fn without_set_id(st_mode: u32) -> u32 {
    let kills_group = st_mode & 0o2010 == 0o2010;
    st_mode & 0o7777 & !0o4000 & !(if kills_group { 0o2000 } else { 0 })
}

/// `struct fuse_setattr_in`.
struct SetattrInput {
    handle: Option<u64>,
    attr: SetAttr<'static>,
    /// Set-id bits are to be cleared.
    kills: bool,
}

impl SetattrInput {
    fn of(f: &mut FuseFields<'_>) -> Option<Self> {
        let (valid, _, handle, size, _) = (f.u32()?, f.u32()?, f.u64()?, f.u64()?, f.u64()?);
        let (atime, mtime, _) = (f.u64()?, f.u64()?, f.u64()?);
        let (atime_nsec, mtime_nsec, _) = (f.u32()?, f.u32()?, f.u32()?);
        let (st_mode, _, uid, gid, _) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?, f.u32()?);
        let is = |bit| valid & bit != 0;
        let time = |bit, now, sec: u64, nsec| match (is(bit), is(now)) {
            (false, _) => None,
            (true, true) => Some(TimeSet::Now),
            (true, false) => Some(TimeSet::To(Time { sec: sec as i64, nsec })),
        };
        let attr = SetAttr {
            mode: is(fattr::MODE).then_some(st_mode & 0o7777),
            uid: is(fattr::UID).then_some(uid),
            gid: is(fattr::GID).then_some(gid),
            size: is(fattr::SIZE).then_some(size),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, atime, atime_nsec),
            mtime: time(fattr::MTIME, fattr::MTIME_NOW, mtime, mtime_nsec),
            ..SetAttr::default()
        };
        Some(Self { handle: is(fattr::FH).then_some(handle), attr, kills: is(fattr::KILL_SUIDGID) })
    }
}
