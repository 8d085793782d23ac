//! The archive over 9P: `main` is the present tree, and `dump` has all dumps.
//!
//! In: requests. Out: answers, at once if all blocks needed are in memory, otherwise by a job.
//!
//! The tree of `dump` has a directory for each year, which has one for each dump: /2026/1121. A dump can be read while
//! it is copied. No client can change anything in it.

mod change;
mod dumps;
mod node;
mod told;
mod who;

use std::sync::Arc;

use nine_io::Payload;
use nine_io::changes::Tap;
use nine_io::server::acl::AclKind;
use nine_io::server::locks::Wanted;
use nine_io::server::xattr::XattrValue;
use nine_io::server::{Answer, FileServer, Reply, Req, Request};
use nine_proto::{
    Dirent, Errno, Error, GetMask, LockStatus, Names, Op as Asked, OpenFlags, Qid, SetAttr, Statfs, Walked,
    mode,
};

use crate::archive::{Archive, ArchiveState};
use crate::fs::{FsResult, OperationStop, ROOT};
use crate::item::{APPEND, EXCLUSIVE};
use crate::users::{EXECUTE, READ, WRITE};
use node::{ArchiveNode, OpenedFile, TreeFile, TreeView};

impl FileServer for Archive {
    fn serve(&self, req: Req) -> Answer {
        let is_fsync = matches!(req.op(), Asked::Fsync { .. });
        if is_fsync {
            let (answer, later) = req.later();
            let archive = self.clone();
            self.begin(async move {
                let result = match later.node::<ArchiveNode>() {
                    Ok(_) => archive.sync().await.map(|()| Reply::Done),
                    Err(error) => Err(error),
                };
                later.respond(result);
            });
            return answer;
        }
        let stop = match self.once(&mut |state| self.perform_told(&req, state)) {
            Ok(reply) => return req.now(Ok(reply)),
            Err(OperationStop::Error(error)) => return req.now(Err(error)),
            Err(stop) => stop,
        };
        let (answer, later) = req.later();
        let archive = self.clone();
        self.begin(async move {
            let result = archive.again(stop, |state| archive.perform_told(&later, state)).await;
            let hurt = result.as_ref().err().filter(|error| error.errno == Errno::EIO).cloned();
            let node = later.node::<ArchiveNode>().ok().filter(|_| hurt.is_some());
            later.respond(result);
            if let (Some(ArchiveNode::File(file)), Some(error)) = (node.as_deref(), hurt)
                && !archive.state().ends()
            {
                archive.hurt(file.view.dump(), file.ino, &error).await;
            }
        });
        answer
    }

    /// Only for users that may read everything: a path reveals names in directories that others may not list.
    fn changes(&self, walk: &Request) -> Option<nine_proto::Result<Tap>> {
        let state = &mut *self.state();
        let node = walk.node::<ArchiveNode>().ok()?;
        if !self.person(walk, state).has_power() {
            return Some(Err(Errno::EACCES.into()));
        }
        match told::base(state, &node) {
            Ok(base) => Some(Ok(Tap { changes: state.changes.clone(), base })),
            Err(OperationStop::Error(error)) => Some(Err(error)),
            // This would need a read of the device, for a root that was just walked to.
            Err(_) => Some(Err(Errno::EAGAIN.into())),
        }
    }

    fn names(&self) -> Arc<dyn Names> {
        Arc::new(self.clone())
    }
}

/// Uses the present table of users, because connections keep this object for long. Must not be called with the state
/// locked.
impl Names for Archive {
    fn user(&self, uid: u32) -> String {
        self.state().users.user(uid)
    }

    fn group(&self, gid: u32) -> String {
        self.state().users.group(gid)
    }

    fn uid(&self, name: &[u8]) -> Option<u32> {
        self.state().users.uid(name)
    }

    fn gid(&self, name: &[u8]) -> Option<u32> {
        self.state().users.gid(name)
    }
}

impl Archive {
    fn perform(&self, req: &Request, state: &mut ArchiveState) -> FsResult<Reply> {
        state.dumper.active = state.now;
        let op = req.op();
        match op {
            Asked::Auth { .. } => {
                return Err(Error::new(Errno::ENOENT, "authentication not required").into());
            }
            Asked::Attach { aname, .. } => {
                let attached = self.attach(req, state, aname);
                let (who, aname) = (&req.who().name, String::from_utf8_lossy(aname));
                match &attached {
                    Ok(_) => self.note(format_args!("{who} attaches to `{aname}`")),
                    Err(OperationStop::Error(why)) => {
                        self.note(format_args!("{who} may not attach to `{aname}`: {why}"))
                    }
                    // The request will be tried again.
                    Err(_) => {}
                }
                return attached;
            }
            _ => {}
        }
        let node = req.node::<ArchiveNode>()?;
        if let ArchiveNode::File(TreeFile { live: Some(live), ino, .. }) = &*node
            && *ino != ROOT
            && !state.lives.has_made(live)
            && !matches!(op, Asked::Clunk)
        {
            // Its inode number may belong to another file now.
            let text = "another machine has changed the archive meanwhile: open it again";
            return Err(Error::new(Errno::ESTALE, text).into());
        }
        match (&*node, &op) {
            (ArchiveNode::Xattr(value), &Asked::Read { offset, count }) => {
                let value = &value.bytes;
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(value.len());
                let to = from.saturating_add(count as usize).min(value.len());
                return Ok(Reply::Read(Payload::Bytes(value.slice(from..to))));
            }
            (ArchiveNode::PendingXattr(new), Asked::Write { offset, data }) => {
                return Ok(Reply::Wrote(new.input.write(*offset, data)?));
            }
            (ArchiveNode::PendingXattr(new), Asked::Clunk) => return self.store_xattr(req, state, new),
            (ArchiveNode::Xattr(_) | ArchiveNode::PendingXattr(_), Asked::Clunk | Asked::Remove) => {
                return Ok(Reply::Done);
            }
            (ArchiveNode::Xattr(_) | ArchiveNode::PendingXattr(_), _) => return Err(Errno::EBADF.into()),
            _ => {}
        }
        match op {
            Asked::Walk { names } => return self.walk(req, state, &node, names.iter()),
            Asked::Getattr { mask } => {
                let texts = mask.has(GetMask::TEXTS);
                return Ok(Reply::Attr(Box::new(self.attr(state, &node, texts)?)));
            }
            Asked::Statfs => return Ok(Reply::Statfs(self.statfs(state))),
            Asked::Readdir { cookie } => return self.readdir(req, state, &node, cookie),
            _ => {}
        }
        let ArchiveNode::File(file) = &*node else { return self.at_dumps(req, state, &node, &op) };
        let root = state.root(file.view)?;
        match op {
            Asked::Open { flags } => self.open_file(req, state, file, flags),
            Asked::Read { offset, count } => {
                Ok(Reply::Read(Payload::Pieces(state.fs.read(root, file.ino, offset, count)?)))
            }
            Asked::Readlink => match state.fs.attributes(root, file.ino)?.mode & mode::S_IFMT {
                mode::S_IFLNK => Ok(Reply::Target(state.fs.target(root, file.ino)?)),
                _ => Err(Errno::EINVAL.into()),
            },
            Asked::XattrWalk { name } => {
                let value = match name {
                    b"" => state.fs.xattrs(root, file.ino)?,
                    name if name.len() > 255 || name.contains(&0) => return Err(Errno::ENODATA.into()),
                    name => {
                        // As in Linux, access control lists can be read without read permission on the file.
                        if AclKind::of(name).is_none() {
                            self.may(req, state, file, READ)?;
                        }
                        state.fs.xattr(root, file.ino, name)?.ok_or(Errno::ENODATA)?
                    }
                };
                let size = value.len() as u64;
                let value = XattrValue::new(value.into(), req, &state.xattr_limit)?;
                Ok(Reply::Xattr { size, node: Arc::new(ArchiveNode::Xattr(value)) })
            }
            Asked::Lock(asked) => {
                let want = Wanted::of(req, file.open()?.number, &asked)?;
                let live = file.live.as_ref().ok_or(Errno::EOPNOTSUPP)?;
                let mut locks = live.locks();
                if locks.conflict(&want).is_some() {
                    return Ok(Reply::Lock(LockStatus::Blocked));
                }
                locks.replace(want, &live.lock_limit)?;
                Ok(Reply::Lock(LockStatus::Success))
            }
            Asked::Getlock(asked) => {
                let want = Wanted::of(req, file.open()?.number, &asked)?;
                Ok(match &file.live {
                    Some(live) => live.locks().getlock(&asked, &want),
                    None => nine_io::server::locks::Ranges::default().getlock(&asked, &want),
                })
            }
            Asked::Clunk => {
                file.release();
                Ok(Reply::Done)
            }
            Asked::Stream { .. } | Asked::Sclose { .. } => Err(Errno::EOPNOTSUPP.into()),
            _ if file.view != TreeView::Main => {
                if let Asked::Remove = op {
                    file.release();
                }
                Err(Errno::EROFS.into())
            }
            _ => self.change(req, state, file),
        }
    }

    fn attach(&self, req: &Request, state: &mut ArchiveState, aname: &[u8]) -> FsResult<Reply> {
        self.person(req, state).attach()?;
        if state.closed_to_new {
            return Err(Error::new(Errno::EBUSY, "attach is off: its owner lets nobody new in").into());
        }
        let mut names = aname.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let mut node = match names.next() {
            None | Some(b"main") => ArchiveNode::main(state),
            Some(b"dump") => Arc::new(ArchiveNode::Dumps),
            Some(_) => {
                return Err(
                    Error::new(Errno::ENOENT, "it has the trees `main` and `dump`, and no other").into()
                );
            }
        };
        for name in names {
            nine_proto::check_name(name)?;
            node = self.step(req, state, &node, name)?;
        }
        let qid = self.qid(state, &node)?;
        Ok(Reply::Attach { qid, node })
    }

    fn walk(
        &self,
        req: &Request,
        state: &mut ArchiveState,
        from: &Arc<ArchiveNode>,
        names: impl Iterator<Item = impl AsRef<[u8]>>,
    ) -> FsResult<Reply> {
        let (mut node, mut qids) = (from.walked(), Walked::new());
        for name in names {
            match self.step(req, state, &node, name.as_ref()) {
                Ok(next) => node = next,
                Err(OperationStop::Error(error)) if qids.is_empty() => return Err(error.into()),
                Err(OperationStop::Error(_)) => return Ok(Reply::Walk { qids, node: None }),
                Err(stop) => return Err(stop),
            }
            qids.push(self.qid(state, &node)?);
        }
        Ok(Reply::Walk { qids, node: Some(node) })
    }

    /// Walks one name.
    fn step(
        &self,
        req: &Request,
        state: &mut ArchiveState,
        node: &Arc<ArchiveNode>,
        name: &[u8],
    ) -> FsResult<Arc<ArchiveNode>> {
        let ArchiveNode::File(file) = &**node else { return self.step_in_dumps(state, node, name) };
        let root = state.root(file.view)?;
        let it = state.fs.attributes(root, file.ino)?;
        if !it.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        self.person(req, state).may(&state.fs, (root, file.ino), &it, EXECUTE)?;
        if name == b".." {
            return match (file.view, file.ino) {
                (TreeView::Dump(generation), ROOT) => Ok(self.above_dump(state, generation)),
                (view, _) => state.meet(view, it.parent, it.parent, b".."),
            };
        }
        let entry = state.fs.lookup(root, file.ino, name)?.ok_or(Errno::ENOENT)?;
        state.meet(file.view, entry.ino, file.ino, name)
    }

    fn open_file(
        &self,
        req: &Request,
        state: &mut ArchiveState,
        file: &TreeFile,
        flags: OpenFlags,
    ) -> FsResult<Reply> {
        let root = state.root(file.view)?;
        let it = state.fs.attributes(root, file.ino)?;
        let changes = flags.changes();
        match it.mode & mode::S_IFMT {
            mode::S_IFDIR if changes => return Err(Errno::EISDIR.into()),
            mode::S_IFDIR => {}
            _ if flags.has(OpenFlags::DIRECTORY) => return Err(Errno::ENOTDIR.into()),
            mode::S_IFREG => {}
            mode::S_IFLNK => return Err(Errno::ELOOP.into()),
            _ => return Err(Errno::ENXIO.into()),
        }
        if changes && file.view != TreeView::Main {
            return Err(Errno::EROFS.into());
        }
        let want = match flags.0 & 3 {
            _ if flags.has(OpenFlags::EXEC) => EXECUTE,
            0 => READ,
            1 => WRITE,
            _ => READ | WRITE,
        };
        let want = if flags.has(OpenFlags::TRUNC) { want | WRITE } else { want };
        self.person(req, state).may(&state.fs, (root, file.ino), &it, want)?;
        let alone = file.live.as_ref().filter(|_| it.flags & EXCLUSIVE != 0);
        if alone.is_some_and(|live| live.is_taken()) {
            return Err(nine_proto::Error::new(Errno::EBUSY, "exclusive use: somebody has it open").into());
        }
        // Truncation of an append-only file is ignored without an error (open(5)).
        let is_cut = flags.has(OpenFlags::TRUNC) && it.flags & APPEND == 0;
        // An empty file is truncated too, because O_TRUNC marks its times for update (open(2)).
        if is_cut && it.mode & mode::S_IFMT == mode::S_IFREG {
            self.is_well(state)?;
            let by = self.person(req, state).number();
            self.set_attributes(state, file.ino, &SetAttr { size: Some(0), ..SetAttr::default() }, by)?;
        }
        let opened = OpenedFile {
            number: state.number(),
            append: flags.has(OpenFlags::APPEND),
            writes: flags.writes(),
        };
        let node = Arc::new(ArchiveNode::File(TreeFile { open: Some(opened), ..file.clone() }));
        let qid = self.qid(state, &node)?;
        alone.inspect(|live| live.take(opened.number));
        Ok(Reply::Open { qid, iounit: 0, node })
    }

    fn readdir(
        &self,
        req: &Request,
        state: &mut ArchiveState,
        node: &ArchiveNode,
        cookie: u64,
    ) -> FsResult<Reply> {
        let mut buf = req.dir_buf(state.users.clone());
        let stats = buf.wants_attrs();
        let own = self.qid(state, node)?;
        let up = self.qid_above(state, node)?;
        for (name, at, qid) in [(&b"."[..], 1, own), (b"..", 2, up)] {
            if !stats && cookie < at && !buf.push(&Dirent { qid, cookie: at, ty: 4, name }, None) {
                return Ok(Reply::Dir(buf));
            }
        }
        let ArchiveNode::File(file) = node else {
            for (at, (name, node)) in (3..).zip(self.list_dumps(state, node)) {
                if at <= cookie {
                    continue;
                }
                // A dump is listed even if its root cannot be read. The root is read only if the client wants
                // attributes.
                let attr = match stats.then(|| self.attr(state, &node, true)).transpose() {
                    Err(OperationStop::Error(_)) => None,
                    attr => attr?,
                };
                let entry =
                    Dirent { qid: self.qid_in_list(state, &node), cookie: at, ty: 4, name: name.as_bytes() };
                if !buf.push(&entry, attr.as_ref()) {
                    break;
                }
            }
            return Ok(Reply::Dir(buf));
        };
        let root = state.root(file.view)?;
        let (fs, view, mut stop) = (&state.fs, file.view, None);
        fs.entries(root, file.ino, cookie.max(2), |cookie, named| {
            let mut qid =
                Qid { ty: node::qid_type(u32::from(named.kind) << 12), vers: 0, path: view.path(named.ino) };
            let mut attr = None;
            if stats {
                match node::attr_of(fs, view, root, named.ino, named.name) {
                    Ok(it) => {
                        qid = it.qid;
                        attr = Some(it);
                    }
                    Err(error) => {
                        stop = Some(error);
                        return false;
                    }
                }
            }
            buf.push(&Dirent { qid, cookie, ty: named.kind, name: named.name }, attr.as_ref())
        })?;
        match stop {
            // Return the entries found so far. An empty answer would mean the end of the directory.
            Some(stop) if buf.bytes().is_empty() => Err(stop),
            _ => Ok(Reply::Dir(buf)),
        }
    }

    fn statfs(&self, state: &ArchiveState) -> Statfs {
        let block = state.fs.block();
        let worm = self.0.cw.worm_blocks();
        let (slots, used) = self.0.cw.slots();
        // Free space is the room on w after the blocks on c that still have to be copied. It is also limited by the
        // free slots on c while copies fail.
        let left = self.0.cw.worm_left(state.next_worm);
        let on_c = (slots - used).saturating_sub(self.0.cw.kept_back());
        // It is also limited by the storage that the devices have left.
        let (c, w) = self.0.cw.devices();
        let [c_lacks, w_lacks] = [c, w].map(|device| device.unbacked().div_ceil(block));
        let (left, on_c) = (left.saturating_sub(w_lacks), on_c.saturating_sub(c_lacks));
        let free = if state.dumper.can_copy() && c_lacks == 0 { left } else { left.min(on_c) };
        Statfs {
            ty: Statfs::V9FS,
            bsize: block as u32,
            blocks: worm,
            bfree: free,
            bavail: free,
            files: 1 << 44,
            ffree: (1 << 44) - state.fs.next_inode,
            fsid: u64::from_le_bytes(self.0.cw.identity()[..8].try_into().expect("eight bytes")),
            namelen: 255,
        }
    }
}
