//! Requests that take more than one message: those that create files in unions, and those for which the upstream's
//! dialect has no equivalent message. Requests that a dialect cannot express are refused with EOPNOTSUPP.

use std::sync::Arc;

use futures_util::lock::Mutex as AsyncMutex;
use nine_io::client::{Answer as Got, Error as Failed, File, heed};
use nine_io::server::{Later, Reply};
use nine_proto::msg::{Data, Tmsg};
use nine_proto::{
    Base, Errno, GetMask, Make, Op, OpenFlags, Perm, Qid, RenameMode, SetAttr, Texts, Time, TimeSet, mode,
};

use crate::cfid::{AttachContext, ClientFid, OpenFidKind, PathStep, UpstreamFid};
use crate::core::{MuxCore, refused};
use crate::keep::WaitDeadline;
use crate::message::may_exist;
use crate::serve::second;
use crate::space::{MountPoint, TreePath};
use crate::union::UnionListing;
use crate::walk::{LastNameRule, WalkPosition};

impl MuxCore {
    /// Creates a file and opens it. In a union, a name that any member has counts as existing.
    #[expect(clippy::too_many_arguments, reason = "they are the fields of the request")]
    pub(crate) async fn create(
        &self,
        cfid: &Arc<ClientFid>,
        name: &[u8],
        make: Make<'_>,
        flags: OpenFlags,
        perm: Perm,
        gid: u32,
        req: &Later,
    ) -> Result<ClientFid, Failed> {
        let may_be_there = make == Make::File && may_exist(flags);
        if let Some(there) = self.in_union(cfid, name).await? {
            if !may_be_there {
                return Err(Failed::Remote(Errno::EEXIST.into()));
            }
            let flags = OpenFlags(flags.0 & !(OpenFlags::CREAT | OpenFlags::EXCL).0);
            let file = there.file.open("", flags).await?;
            let pos = WalkPosition { raw: file.qid(), file: Arc::new(file), ..there };
            return Ok(self.made(cfid, pos, flags));
        }
        let dir = self.creating(cfid).await?;
        let step = PathStep::child(&dir.step, dir.place().child(name));
        let file = match make {
            Make::File if may_be_there => self.open_or_create(&dir, name, flags, perm, gid).await?,
            Make::File => self.create_file(&dir, name, flags, perm, gid).await?,
            _ => {
                self.make(&dir, name, make, perm, gid, req).await?;
                let file = dir.file.walk(name).await?;
                if make == Make::Link { file.open_here(flags).await? } else { file }
            }
        };
        let raw = file.qid();
        let (root, file) = (dir.root.clone(), Arc::new(file));
        let pos = WalkPosition { step, crossed: None, away: None, root, file, raw };
        if make != Make::Dir {
            return Ok(self.made(cfid, pos, flags));
        }
        let made = self.cfid(&cfid.by, pos);
        match UnionListing::open(self, &made).await {
            Ok(listing) => {
                Ok(ClientFid { open: Some(OpenFidKind::Here(Box::new(AsyncMutex::new(listing)))), ..made })
            }
            Err(error) => {
                // Its permissions do not let us read it: remove it again.
                let _ = dir.file.unlink(name, true).await;
                Err(error)
            }
        }
    }

    /// Opens a file, and creates it if it does not exist. If Tcreate only creates new files, this is the algorithm of
    /// create(2).
    async fn open_or_create(
        &self,
        dir: &WalkPosition,
        name: &[u8],
        flags: OpenFlags,
        perm: Perm,
        gid: u32,
    ) -> Result<File, Failed> {
        if dir.file.client().dialect().is_l() {
            let bits = self.permissions(dir, perm, false).await?;
            return dir.file.create(name, flags, bits, gid).await;
        }
        match dir.file.open(name, flags).await {
            Err(error) if error.errno() == Errno::ENOENT => {}
            other => return other,
        }
        match self.create_file(dir, name, flags, perm, gid).await {
            // Another client has created it meanwhile.
            Err(error) if error.errno() == Errno::EEXIST => dir.file.open(name, flags).await,
            other => other,
        }
    }

    /// Creates a file that does not exist.
    async fn create_file(
        &self,
        dir: &WalkPosition,
        name: &[u8],
        flags: OpenFlags,
        perm: Perm,
        gid: u32,
    ) -> Result<File, Failed> {
        let bits = self.permissions(dir, perm, false).await?;
        let file = dir.file.create(name, flags | OpenFlags::EXCL, bits, gid).await?;
        if self.is_masked(dir, perm, false).await? {
            grant(&file, bits).await;
        }
        Ok(file)
    }

    fn made(&self, cfid: &ClientFid, pos: WalkPosition, flags: OpenFlags) -> ClientFid {
        ClientFid { open: Some(OpenFidKind::There(flags)), ..self.cfid(&cfid.by, pos) }
    }

    /// Creates a file without opening it.
    pub(crate) async fn make(
        &self,
        dir: &WalkPosition,
        name: &[u8],
        make: Make<'_>,
        perm: Perm,
        gid: u32,
        req: &Later,
    ) -> Result<Qid, Failed> {
        let bits = self.permissions(dir, perm, make == Make::Dir).await?;
        let raw = match make {
            Make::File => self.create_file(dir, name, OpenFlags::READ, perm, gid).await?.qid(),
            Make::Dir => {
                let qid = dir.file.mkdir(name, bits, gid).await?;
                if self.is_masked(dir, perm, true).await? {
                    grant(&dir.file.walk(name).await?, bits).await;
                }
                qid
            }
            Make::Symlink(target) => dir.file.symlink(name, target, gid).await?,
            Make::Link => {
                let target = second(req)?;
                if !target.client().is_same(dir.file.client()) {
                    return Err(refused(Errno::EXDEV, "the files are on different servers"));
                }
                dir.file.link(name, &target).await?;
                target.qid()
            }
            Make::Node { ty, major, minor } => dir.file.mknod(name, ty | bits, (major, minor), gid).await?,
        };
        Ok(self.qids.map(dir.root.map(), raw))
    }

    /// Returns the file with this name in a union. `None` if there is none, or the directory is no union.
    pub(crate) async fn in_union(
        &self,
        cfid: &ClientFid,
        name: &[u8],
    ) -> Result<Option<WalkPosition>, Failed> {
        if !cfid.is_union() {
            return Ok(None);
        }
        let space = cfid.by.named.space();
        match self
            .walk_pos(&space, &cfid.by, WalkPosition::of(cfid), &[name], LastNameRule::Crossed, |_| {})
            .await
        {
            Ok(pos) => Ok(Some(pos)),
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Applies the rule of open(5) for a server that does not: one of .u or .L. Returns the permissions to send.
    async fn permissions(&self, dir: &WalkPosition, perm: Perm, is_dir: bool) -> Result<u32, Failed> {
        if !perm.inherit || dir.file.client().dialect().base == Base::P2000 {
            return Ok(perm.on_the_wire());
        }
        let attr = dir.file.getattr(GetMask::MODE).await?;
        let bits = perm.in_dir(attr.mode & 0o777, is_dir);
        Ok(Perm { bits, ..perm }.on_the_wire())
    }

    /// Whether a server of 9P2000 would apply that rule although the client does not want it.
    async fn is_masked(&self, dir: &WalkPosition, perm: Perm, is_dir: bool) -> Result<bool, Failed> {
        if perm.inherit || dir.file.client().dialect().base != Base::P2000 {
            return Ok(false);
        }
        let attr = dir.file.getattr(GetMask::MODE).await?;
        let masked = Perm { inherit: true, ..perm }.in_dir(attr.mode & 0o777, is_dir);
        Ok((masked ^ perm.bits) & 0o777 != 0)
    }

    /// Serves a request for which the upstream's dialect has no equivalent message.
    pub(crate) async fn translate(
        &self,
        cfid: &Arc<ClientFid>,
        op: Op<'_>,
        req: &Later,
    ) -> Result<Reply, Failed> {
        let live = cfid.live();
        let file = &*live.file;
        Ok(match op {
            Op::Getattr { mask } => {
                let mut attr = file.getattr(mask).await?;
                if mask.has(GetMask::TEXTS) && attr.mode & mode::S_IFMT == mode::S_IFLNK {
                    let texts = attr.texts.get_or_insert_with(Box::<Texts>::default);
                    if texts.target.is_empty() {
                        texts.target = file.readlink().await?;
                    }
                }
                Reply::Attr(self.attr(cfid, Box::new(attr), mask))
            }
            Op::Setattr { set: SetAttr { name: Some(name), .. } } if self.has_sibling(cfid, name).await? => {
                return Err(Failed::Remote(Errno::EEXIST.into()));
            }
            Op::Setattr { set } if set.name.is_some() && file.client().dialect().is_l() => {
                let name = set.name.unwrap_or_default();
                let rest = SetAttr { name: None, ..set };
                let before = cfid.step().called();
                self.rename_here(cfid, name).await?;
                if rest != SetAttr::default()
                    && let Err(error) = file.setattr(&rest).await
                {
                    // All changes or none (stat(5)), as far as two requests can do that.
                    self.rename_here(cfid, &before).await?;
                    return Err(error);
                }
                Reply::Done
            }
            Op::Setattr { set } if set.size.is_some() && live.raw.is_dir() => {
                return Err(Failed::Remote(Errno::EISDIR.into()));
            }
            Op::Setattr { set } => {
                file.setattr_of(live.raw, &self.timed(set).await).await?;
                if let Some(name) = set.name {
                    let here = &cfid.step().covered;
                    self.moved(here, &here.parent().child(name));
                }
                Reply::Done
            }
            Op::Write { offset, .. } => Reply::Wrote(self.write(cfid, &live, offset, req).await?),
            Op::Fsync { datasync } => {
                let (unsynced, key) = (&live.root.tree.upstream.unsynced, (live.root.member, live.raw.path));
                let number = match &cfid.kept {
                    None => None,
                    Some(kept) => Some(unsynced.begin_sync(key, &kept.reports_seen).ok_or_else(|| {
                        let text = "the connection was lost after changes that were not synced: \
                            the server may have lost them";
                        refused(Errno::EIO, text)
                    })?),
                };
                let mut synced = file.fsync(datasync).await;
                let is_open = matches!(cfid.open, Some(OpenFidKind::There(_)));
                if let Err(error) = &synced
                    && matches!(error.errno(), Errno::EBADF | Errno::EINVAL)
                    && file.client().dialect().is_l()
                    && !is_open
                    && !req.dialect().is_l()
                {
                    // A Twstat may sync any fid, a Tfsync only an open one.
                    synced = async { file.open("", OpenFlags::READ).await?.fsync(datasync).await }.await;
                }
                synced?;
                number.iter().for_each(|&number| unsynced.finish_sync(key, number, datasync));
                Reply::Done
            }
            // Its files cannot be links (readlink(2)).
            Op::Readlink if file.client().dialect().base == Base::P2000 => {
                return Err(refused(Errno::EINVAL, "not a symbolic link"));
            }
            Op::Readlink => Reply::Target(file.readlink().await?),
            Op::Rename { name } => {
                let to = req.node2::<ClientFid>().map_err(Failed::Remote)?;
                self.rename(cfid, &to, name).await?;
                Reply::Done
            }
            Op::RenameAt { old, new, how } => {
                let to = req.node2::<ClientFid>().map_err(Failed::Remote)?;
                self.rename_at(cfid, old, &to, new, how).await?;
                Reply::Done
            }
            Op::Unlink { name, dir } => {
                file.unlink(name, dir).await?;
                Reply::Done
            }
            Op::Lock(lock) => {
                let status = file.lock(&lock).await?;
                cfid.kept.iter().for_each(|kept| kept.locked(&lock, status));
                Reply::Lock(status)
            }
            Op::Getlock(lock) => {
                let got = file.getlock(&lock).await?;
                let nine_io::client::Getlock { ty, start, length, proc_id, client_id } = got;
                Reply::Getlock { ty, start, length, proc_id, client_id }
            }
            // The client of the Linux kernel then invents the values (v9fs_statfs). It would pass any other error on.
            Op::Statfs => return Err(refused(Errno::ENOSYS, "only 9P2000.L tells about file systems")),
            _ => return Err(refused(Errno::EOPNOTSUPP, "the server's dialect cannot say that")),
        })
    }

    /// Replaces "now" by the present time, because a Twstat cannot leave it to the server. In a truncation the server
    /// sets the times itself, also for a client that may not set them.
    async fn timed<'a>(&self, mut set: SetAttr<'a>) -> SetAttr<'a> {
        if set.size.is_some() && set.mtime == Some(TimeSet::Now) {
            set.mtime = None;
        }
        if [set.atime, set.mtime].contains(&Some(TimeSet::Now)) {
            let wall = self.outside.wall().await;
            let now = Time { sec: wall.as_secs() as i64, nsec: wall.subsec_nanos() };
            for time in [&mut set.atime, &mut set.mtime] {
                if *time == Some(TimeSet::Now) {
                    *time = Some(TimeSet::To(now));
                }
            }
        }
        set
    }

    /// Serves a write on a fid that [`follows`].
    async fn write(
        &self,
        cfid: &ClientFid,
        live: &UpstreamFid,
        offset: u64,
        req: &Later,
    ) -> Result<u32, Failed> {
        let Some(OpenFidKind::There(flags)) = &cfid.open else {
            return Err(Failed::Remote(Errno::EBADF.into()));
        };
        let (file, client) = (&live.file, &live.root.client);
        let mut data = req.data().unwrap_or_default();
        data.truncate(client.iounit_max() as usize);
        let appends = flags.has(OpenFlags::APPEND);
        // Only writers that bypass this mux can come between the getattr and the write.
        let turn = live.root.tree.upstream.appends(&live.root, live.raw);
        let _turn = if appends { Some(heed(turn.lock()).await?) } else { None };
        let offset = if appends { file.getattr(GetMask::SIZE).await?.size } else { offset };
        let message = Tmsg::Write { fid: file.fid(), offset, data: Data::Count(data.len() as u32) };
        let wrote = match client.ask_with(message, Some(data)).await? {
            Got::Wrote(n) => n,
            _ => return Err(Failed::Remote(Errno::EPROTO.into())),
        };
        if flags.has(OpenFlags::DSYNC) {
            file.fsync(true).await?;
        }
        Ok(wrote)
    }

    /// Moves a file into a union, onto a bound name, or in a dialect without Trename.
    async fn rename(&self, cfid: &ClientFid, to: &ClientFid, name: &[u8]) -> Result<(), Failed> {
        let from = &cfid.step().covered;
        let (place, into) = self.target(from, to, name).await?;
        let live = cfid.live();
        let client = &live.root.client;
        if !into.client().is_same(client) || (!client.dialect().is_l() && place.parent() != from.parent()) {
            return Err(refused(Errno::EXDEV, "this server cannot move the file there"));
        }
        let name = place.name();
        if client.dialect().is_l() {
            client.ask(Tmsg::Rename { fid: live.file.fid(), dfid: into.fid(), name }).await?;
        } else {
            live.file.rename_here(name).await?;
        }
        self.moved(from, &place);
        Ok(())
    }

    /// Moves the file of this name in the first member of a union that has it.
    async fn rename_at(
        &self,
        cfid: &ClientFid,
        old: &[u8],
        to: &ClientFid,
        new: &[u8],
        how: RenameMode,
    ) -> Result<(), Failed> {
        let space = cfid.by.named.space();
        let found = self
            .walk_pos(&space, &cfid.by, WalkPosition::of(cfid), &[old], LastNameRule::Covered, |_| {})
            .await?;
        let from = &found.step.covered;
        if space.within(from).is_some() {
            return Err(busy());
        }
        let (_, dir, _) = self.enter_place(&cfid.by, &from.parent()).await?;
        if how != RenameMode::Replace {
            let there = self.find(&to.by, WalkPosition::of(to), new).await?;
            match (how, there) {
                (RenameMode::NoReplace, Some(_)) => return Err(Failed::Remote(Errno::EEXIST.into())),
                (RenameMode::Exchange, None) => return Err(Failed::Remote(Errno::ENOENT.into())),
                (RenameMode::Exchange, Some(there)) if space.within(&there.step.covered).is_some() => {
                    return Err(busy());
                }
                _ => {}
            }
        }
        let (place, into) = self.target(from, to, new).await?;
        if !into.client().is_same(dir.client()) {
            return Err(refused(Errno::EXDEV, "the files are on different servers"));
        }
        if how != RenameMode::Replace && !found.root.file.has_renameat2().await {
            return Err(refused(Errno::EINVAL, "this server only renames without flags"));
        }
        dir.rename_with(old, &into, place.name(), how).await?;
        match how {
            RenameMode::Exchange => self.exchanged(from, &place),
            _ => self.moved(from, &place),
        }
        Ok(())
    }

    /// Returns the place of a file after a rename to `name`, and the directory there. In a union this is the member
    /// that shows the name, else the member that has the file, else the member for new files. So a rename never hides
    /// the new name. If a file is bound on the name, the name stands for that file.
    async fn target(
        &self,
        from: &TreePath,
        to: &ClientFid,
        name: &[u8],
    ) -> Result<(TreePath, Arc<File>), Failed> {
        let space = to.by.named.space();
        let pos = WalkPosition::of(to);
        let shown = match to.is_union() {
            true => self.find(&to.by, pos.clone(), name).await?.map(|there| there.step.covered.clone()),
            false => None,
        };
        let here = || Some(from.parent()).filter(|here| to.is_union() && pos.places().contains(here));
        let mut place = match shown.or_else(|| Some(here()?.child(name))) {
            Some(place) => place,
            None => {
                let creating = self.creating(to).await?;
                let place = creating.place().child(name);
                if space.within(&place).is_none() {
                    return Ok((place, creating.file));
                }
                place
            }
        };
        if let Some(head) = space.head(&place)
            && let [bound] = &*head.members
        {
            let (_, _, raw) = self.enter_place(&to.by, &bound.to).await?;
            if raw.is_dir() {
                return Err(busy());
            }
            place = bound.to.clone();
        } else if space.within(&place).is_some() {
            return Err(busy());
        }
        let (_, dir, _) = self.enter_place(&to.by, &place.parent()).await?;
        Ok((place, dir))
    }

    /// Returns the file of this name in a directory, ignoring mounts on it. `None` if no member has the name.
    async fn find(
        &self,
        by: &AttachContext,
        dir: WalkPosition,
        name: &[u8],
    ) -> Result<Option<WalkPosition>, Failed> {
        match self.walk_pos(&by.named.space(), by, dir, &[name], LastNameRule::Covered, |_| {}).await {
            Ok(pos) => Ok(Some(pos)),
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the file's directory is a union now in which another file has this name. A Twstat never replaces a file
    /// (stat(5)).
    async fn has_sibling(&self, cfid: &ClientFid, name: &[u8]) -> Result<bool, Failed> {
        let Some((parent, head)) = self.union_above(cfid) else { return Ok(false) };
        let dir = self.cross(&cfid.by, parent, head, &mut WaitDeadline::default()).await?;
        let there = self.find(&cfid.by, dir, name).await?;
        Ok(there.is_some_and(|there| there.step.covered != cfid.step().covered))
    }

    /// Returns the directory in which a file was walked to, if that is a union now.
    pub(crate) fn union_above(&self, cfid: &ClientFid) -> Option<(Arc<PathStep>, Arc<MountPoint>)> {
        let parent = cfid.step().parent.clone()?;
        let head = cfid.by.named.space().head(&parent.covered)?.clone();
        (head.members.len() > 1).then_some((parent, head))
    }

    /// Renames a file in its directory, in a dialect without Twstat.
    async fn rename_here(&self, cfid: &ClientFid, name: &[u8]) -> Result<(), Failed> {
        let step = cfid.step();
        let (from, called) = (&step.covered, step.called());
        let (_, dir, _) = self.enter_place(&cfid.by, &from.parent()).await?;
        // Another client may have moved it.
        if dir.walk(&called).await?.qid().path != cfid.live().raw.path {
            return Err(Failed::Remote(Errno::ENOENT.into()));
        }
        // Twstat never replaces a file (stat(5)); Trename does.
        match dir.walk(name).await {
            Ok(_) => return Err(Failed::Remote(Errno::EEXIST.into())),
            Err(error) if error.errno() == Errno::ENOENT => {}
            Err(error) => return Err(error),
        }
        let live = cfid.live();
        let message = Tmsg::Rename { fid: live.file.fid(), dfid: dir.fid(), name };
        live.root.client.ask(message).await?;
        self.moved(&from.parent().child(&called), &from.parent().child(name));
        cfid.step.renamed.store(Some(Arc::new(name.into())));
        Ok(())
    }
}

/// Whether each write needs extra messages: the file is open for appending or for synchronous writes, and Topen could
/// not express that. Not every server of .u knows OAPPEND.
pub(crate) fn follows(cfid: &ClientFid, live: &UpstreamFid) -> bool {
    let flags = match &cfid.open {
        Some(OpenFidKind::There(flags)) => *flags,
        _ => return false,
    };
    let said = live.root.client.dialect().is_l();
    !said && (flags.has(OpenFlags::APPEND) || flags.has(OpenFlags::DSYNC))
}

fn busy() -> Failed {
    refused(Errno::EBUSY, "is a mount point, or has one below it")
}

/// Sets the requested permissions of a new file. If the server refuses, the file keeps fewer.
async fn grant(file: &File, bits: u32) {
    let _ = file.setattr(&SetAttr { mode: Some(bits & 0o777), ..SetAttr::default() }).await;
}
