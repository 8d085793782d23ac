//! What takes more than one message: making files in unions, and requests for which the upstream's dialect has no
//! message of the same meaning. What cannot be said in it at all is refused with EOPNOTSUPP.

use std::sync::Arc;

use nine_io::client::{Error as Failed, File};
use nine_io::server::{Later, Reply};
use nine_proto::msg::Tmsg;
use nine_proto::{Errno, GetMask, Make, Op, OpenFlags, Perm, Qid, Texts, mode};

use crate::cfid::{CFid, Open, Step};
use crate::core::{Core, refused};
use crate::keep::UNSYNCED;
use crate::message::may_exist;
use crate::serve::second;
use crate::space::Place;
use crate::walk::{Last, Pos};

impl Core {
    /// Makes a file and opens it. In a union, a name that any member has exists.
    #[expect(clippy::too_many_arguments, reason = "they are the fields of the request")]
    pub(crate) async fn create(
        &self,
        cfid: &Arc<CFid>,
        name: &[u8],
        make: Make<'_>,
        flags: OpenFlags,
        perm: Perm,
        gid: u32,
        req: &Later,
    ) -> Result<CFid, Failed> {
        let may_be_there = make == Make::File && may_exist(flags);
        if let Some(there) = self.in_union(cfid, name).await? {
            if !may_be_there {
                return Err(Failed::Remote(Errno::EEXIST.into()));
            }
            let flags = OpenFlags(flags.0 & !(OpenFlags::CREAT | OpenFlags::EXCL).0);
            let file = there.file.open("", flags).await?;
            let pos = Pos { raw: file.qid(), file: Arc::new(file), ..there };
            return Ok(self.made(cfid, pos, flags));
        }
        let dir = self.creating(cfid).await?;
        let step = Step::child(&dir.step, name, dir.place().child(name));
        let file = if make == Make::File {
            let perm = self.permissions(&dir, perm, false).await?;
            let is_l = dir.file.client().dialect().is_l();
            match may_be_there {
                // Tcreate makes new files only.
                true if !is_l => dir.file.open_or_create(name, flags, perm).await?,
                true => dir.file.create(name, flags, perm, gid).await?,
                false => dir.file.create(name, flags | OpenFlags::EXCL, perm, gid).await?,
            }
        } else {
            self.make(&dir, name, make, perm, gid, req).await?;
            let file = dir.file.walk(name).await?;
            if matches!(make, Make::Dir | Make::Link) { file.open_here(flags).await? } else { file }
        };
        let raw = file.qid();
        let pos = Pos { step, crossed: None, root: dir.root, file: Arc::new(file), raw };
        Ok(self.made(cfid, pos, flags))
    }

    fn made(&self, cfid: &CFid, pos: Pos, flags: OpenFlags) -> CFid {
        CFid { open: Some(Open::There(flags)), ..self.cfid(&cfid.by, pos) }
    }

    /// Makes a file and does not open it.
    pub(crate) async fn make(
        &self,
        dir: &Pos,
        name: &[u8],
        make: Make<'_>,
        perm: Perm,
        gid: u32,
        req: &Later,
    ) -> Result<Qid, Failed> {
        let bits = self.permissions(dir, perm, make == Make::Dir).await?;
        let raw = match make {
            Make::File => dir.file.create(name, OpenFlags::READ | OpenFlags::EXCL, bits, gid).await?.qid(),
            Make::Dir => dir.file.mkdir(name, bits, gid).await?,
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

    /// What has this name in a union, if it is one.
    pub(crate) async fn in_union(&self, cfid: &CFid, name: &[u8]) -> Result<Option<Pos>, Failed> {
        if !cfid.is_union() {
            return Ok(None);
        }
        let space = cfid.by.named.space();
        match self.walk_pos(&space, &cfid.by, Pos::of(cfid), &[name], Last::Crossed, |_| {}).await {
            Ok(pos) => Ok(Some(pos)),
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The rule of open(5), for a server that does not know it.
    async fn permissions(&self, dir: &Pos, perm: Perm, is_dir: bool) -> Result<u32, Failed> {
        if !perm.inherit || !dir.file.client().dialect().is_l() {
            return Ok(perm.bits);
        }
        let attr = dir.file.getattr(GetMask::MODE).await?;
        Ok(perm.in_dir(attr.mode & 0o777, is_dir))
    }

    /// A request for which the upstream's dialect has no message of the same meaning.
    pub(crate) async fn translate(&self, cfid: &Arc<CFid>, op: Op<'_>, req: &Later) -> Result<Reply, Failed> {
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
            Op::Setattr { set } if set.name.is_some() && file.client().dialect().is_l() => {
                let name = set.name.unwrap_or_default();
                let rest = nine_proto::SetAttr { name: None, ..set };
                let before = cfid.step.called();
                self.rename_here(cfid, name).await?;
                if rest != nine_proto::SetAttr::default()
                    && let Err(error) = file.setattr(&rest).await
                {
                    // All of it or nothing (stat(5)): as far as two requests can.
                    self.rename_here(cfid, &before).await?;
                    return Err(error);
                }
                Reply::Done
            }
            Op::Setattr { set } => {
                file.setattr(&set).await?;
                if let Some(name) = set.name {
                    self.moved(&cfid.step.covered, &cfid.step.covered.parent().child(name));
                }
                Reply::Done
            }
            Op::Fsync { datasync } => {
                let kept = cfid.kept.as_ref();
                if kept.is_some_and(|kept| kept.is_doubtful()) {
                    let text = "the connection went after writes that were not synced: they may be lost";
                    return Err(refused(Errno::EIO, text));
                }
                // What is written from now on is not synced by this.
                let unsynced = kept.is_some_and(|kept| kept.unmark(UNSYNCED));
                if let Err(error) = file.fsync(datasync).await {
                    kept.filter(|_| unsynced).inspect(|kept| kept.mark(UNSYNCED));
                    return Err(error);
                }
                Reply::Done
            }
            Op::Readlink => Reply::Target(file.readlink().await?),
            Op::Rename { name } => {
                let to = req.node2::<CFid>().map_err(Failed::Remote)?;
                self.rename(cfid, &to, name).await?;
                Reply::Done
            }
            Op::RenameAt { old, new } => {
                let to = req.node2::<CFid>().map_err(Failed::Remote)?;
                self.rename_at(cfid, old, &to, new).await?;
                Reply::Done
            }
            Op::Unlink { name, dir } => {
                file.unlink(name, dir).await?;
                self.removed(&cfid.place().child(name));
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
            Op::Statfs => Reply::Statfs(file.statfs().await?),
            _ => return Err(refused(Errno::EOPNOTSUPP, "the server's dialect cannot say that")),
        })
    }

    /// Moves a file into a union, or where there is no Trename.
    async fn rename(&self, cfid: &CFid, to: &CFid, name: &[u8]) -> Result<(), Failed> {
        let from = &cfid.step.covered;
        let (place, into) = self.target(from, to).await?;
        if cfid.by.named.space().within(&place.child(name)).is_some() {
            return Err(refused(Errno::EBUSY, "is a mount point, or has one below it"));
        }
        let live = cfid.live();
        let client = &live.root.client;
        if !into.client().is_same(client) || (!client.dialect().is_l() && place != from.parent()) {
            return Err(refused(Errno::EXDEV, "this server cannot move the file there"));
        }
        if client.dialect().is_l() {
            client.ask(Tmsg::Rename { fid: live.file.fid(), dfid: into.fid(), name }).await?;
        } else {
            cfid.live().file.setattr(&nine_proto::SetAttr { name: Some(name), ..Default::default() }).await?;
        }
        self.moved(from, &place.child(name));
        Ok(())
    }

    /// Moves what the first member of a union has under this name.
    async fn rename_at(&self, cfid: &CFid, old: &[u8], to: &CFid, new: &[u8]) -> Result<(), Failed> {
        let space = cfid.by.named.space();
        let found = self.walk_pos(&space, &cfid.by, Pos::of(cfid), &[old], Last::Covered, |_| {}).await?;
        let from = &found.step.covered;
        let (_, dir, _) = self.enter_place(&cfid.by, &from.parent()).await?;
        let (place, into) = self.target(from, to).await?;
        let place = place.child(new);
        if [from, &place].iter().any(|place| space.within(place).is_some()) {
            return Err(refused(Errno::EBUSY, "is a mount point, or has one below it"));
        }
        if !into.client().is_same(dir.client()) {
            return Err(refused(Errno::EXDEV, "the files are on different servers"));
        }
        dir.rename(old, &into, new).await?;
        self.moved(from, &place);
        Ok(())
    }

    /// The directory that a file is moved to: of a union the one that it is in, else the one that takes new files.
    async fn target(&self, from: &Place, to: &CFid) -> Result<(Place, Arc<File>), Failed> {
        let here = from.parent();
        if to.is_union() && Pos::of(to).places().contains(&here) {
            let (_, file, _) = self.enter_place(&to.by, &here).await?;
            return Ok((here, file));
        }
        let pos = self.creating(to).await?;
        Ok((pos.place().clone(), pos.file))
    }

    /// Gives a file another name in its directory, where there is no Twstat.
    async fn rename_here(&self, cfid: &CFid, name: &[u8]) -> Result<(), Failed> {
        let from = &cfid.step.covered;
        let (_, dir, _) = self.enter_place(&cfid.by, &from.parent()).await?;
        // Somebody may have moved it.
        if dir.walk(cfid.step.called()).await?.qid().path != cfid.live().raw.path {
            return Err(Failed::Remote(Errno::ENOENT.into()));
        }
        // Twstat never replaces (stat(5)), Trename does.
        match dir.walk(name).await {
            Ok(_) => return Err(Failed::Remote(Errno::EEXIST.into())),
            Err(error) if error.errno() == Errno::ENOENT => {}
            Err(error) => return Err(error),
        }
        let live = cfid.live();
        let message = Tmsg::Rename { fid: live.file.fid(), dfid: dir.fid(), name };
        live.root.client.ask(message).await?;
        self.moved(&from.parent().child(&cfid.step.called()), &from.parent().child(name));
        cfid.step.renamed.store(Some(Arc::new(name.into())));
        Ok(())
    }
}
