//! A synthetic tree as a file server: serves each request.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use nine_proto::mode::{S_IFDIR, S_IFREG};
use nine_proto::{
    Attr, DirBuf, Dirent, Errno, Error, GetMask, Op, OpenFlags, Qid, Result, Statfs, Texts, show,
};

use super::ask::ControlAudit;
use super::beyond::ForeignFile;
use super::{Ask, Dir, FileBehavior, Handle, Node, Tree, Visitor, WriteHandler};
use crate::audit;
use crate::direct::Direct;
use crate::server::{
    Answer, FileServer, Fill, Node as AnyNode, Passage, Reply, Req, ReqId, Request, StreamRequest, Who,
};
use crate::sync::{Mutex, lock};

/// The node behind a fid.
pub(super) struct FidNode {
    pub(super) at: Arc<TreePosition>,
    pub(super) visitor: Arc<Visitor>,
    pub(super) open: Option<OpenNode>,
}

/// A file by its path.
pub(super) struct TreePosition {
    /// `None`: the root.
    parent: Option<Arc<TreePosition>>,
    pub(super) name: Box<[u8]>,
    pub(super) node: Node,
    pub(super) qid: Qid,
}

pub(super) enum OpenNode {
    Dir(Vec<(Box<[u8]>, Attr)>),
    File(Arc<dyn Handle>),
    /// A file of another server, which may be open there or not.
    Inside(ForeignFile),
}

impl FileServer for Tree {
    fn serve(&self, req: Req) -> Answer {
        let Ok(here) = req.node::<FidNode>() else {
            let result = self.run(&req);
            return req.now(result);
        };
        if let Op::Walk { .. } = req.op() {
            return self.walk(req, &here);
        }
        if let Some((beyond, inside)) = here.inside() {
            return self.pass(req, &here, beyond, inside);
        }
        match (req.op(), &here.open, &here.at.node) {
            (Op::Read { .. } | Op::Write { .. } | Op::Fsync { .. }, Some(OpenNode::File(handle)), _) => {
                if let Some(result) = handle.now(&req) {
                    return req.now(result);
                }
                let (answer, later) = req.later();
                let does = match later.op() {
                    Op::Read { .. } => Handle::read,
                    Op::Write { .. } => Handle::write,
                    _ => Handle::sync,
                };
                let told = self.told_of(&here, &later);
                does(&**handle, self.asks.ask(later, here.visitor.clone(), told));
                answer
            }
            (Op::Open { flags }, _, Node::File(file)) if let FileBehavior::Handle(open, _) = &file.opens => {
                if let Err(error) = here.at.may_open(&here.visitor, flags) {
                    return req.now(Err(error));
                }
                let (answer, later) = req.later();
                open(self.asks.opening(later, here.visitor.clone(), here.at.clone(), flags));
                answer
            }
            _ => {
                let result = self.run(&req);
                req.now(result)
            }
        }
    }

    fn takes_placed(&self, node: &AnyNode) -> bool {
        let held = node.downcast_ref::<FidNode>();
        held.is_some_and(|held| match (&held.open, held.inside()) {
            (_, Some((beyond, inside))) => beyond.takes_placed(inside),
            (Some(OpenNode::File(handle)), _) => handle.is_sink(),
            _ => false,
        })
    }

    fn stream(&self, request: StreamRequest<'_>) -> Option<Box<dyn Passage>> {
        let (beyond, inside) = request.node.downcast_ref::<FidNode>()?.inside()?;
        beyond.stream(inside, &request)
    }

    fn can_fill(&self, node: &AnyNode) -> bool {
        let inside = node.downcast_ref::<FidNode>().and_then(FidNode::inside);
        inside.is_some_and(|(beyond, inside)| beyond.can_fill(inside))
    }

    fn fill(&self, fill: Fill) {
        let Ok(held) = fill.node.clone().downcast::<FidNode>() else { return };
        if let Some((beyond, inside)) = held.inside() {
            beyond.fill(inside, fill);
        }
    }

    fn direct(&self, node: &AnyNode, flags: OpenFlags) -> Option<Arc<dyn Direct>> {
        let held = node.downcast_ref::<FidNode>()?;
        match (&held.open, held.inside()) {
            (_, Some((beyond, inside))) => beyond.direct(inside, flags),
            (Some(OpenNode::File(handle)), _) => handle.clone().direct(flags),
            _ => None,
        }
    }

    fn cancel(&self, id: ReqId, node: Option<&AnyNode>) {
        let here = node.and_then(|node| node.downcast_ref::<FidNode>());
        if self.cancel_crossing(id) {
            return;
        }
        if let Some((beyond, inside)) = here.and_then(FidNode::inside) {
            return beyond.cancel(inside, id);
        }
        let is_taken = here.is_some_and(|here| match (&here.open, &here.at.node) {
            (Some(OpenNode::File(handle)), _) => handle.cancel(id),
            (None, Node::File(file)) => matches!(&file.opens, FileBehavior::Handle(_, cancel) if cancel(id)),
            _ => false,
        });
        if !is_taken {
            self.asks.answer(id, Err(Errno::EINTR.into()));
        }
    }
}

impl Tree {
    /// Prepares the audit event of a request that writes a text to a control file.
    fn told_of(&self, here: &FidNode, request: &Request) -> Option<Box<ControlAudit>> {
        let name = self.audited.filter(|_| here.at.name.ends_with(b"ctl"))?;
        let Op::Write { data, .. } = request.op() else { return None };
        let (file, owner) = (here.at.path(name), here.visitor.owner);
        Some(Box::new(ControlAudit { file, text: audit::line(data), owner }))
    }

    fn run(&self, req: &Request) -> Result<Reply> {
        let op = req.op();
        match op {
            Op::Auth { .. } => return Err(Error::new(Errno::ENOENT, "authentication not required")),
            Op::Attach { aname, .. } => {
                let mut who = Who::clone(req.who());
                (self.told)(&mut who, aname);
                let visitor = Arc::new(Visitor { owner: who.owner, who: Arc::new(who) });
                let at = Arc::new(TreePosition::root(&self.root));
                return Ok(Reply::Attach { qid: at.qid, node: held(at, visitor, None) });
            }
            _ => {}
        }
        let here = req.node::<FidNode>()?;
        let (at, visitor) = (&here.at, &here.visitor);
        match op {
            Op::Open { flags } => {
                let open = self.open(at, visitor, flags)?;
                Ok(Reply::Open {
                    qid: at.qid,
                    iounit: 0,
                    node: held(at.clone(), visitor.clone(), Some(open)),
                })
            }
            Op::Readdir { cookie } => match &here.open {
                Some(OpenNode::Dir(entries)) => {
                    Ok(Reply::Dir(self.readdir(&here, entries, cookie, req.dir_buf(self.names()))))
                }
                _ => Err(Errno::EBADF.into()),
            },
            Op::Getattr { .. } => Ok(Reply::Attr(Box::new(self.attr(at)))),
            // Truncation to zero, as by a shell's `>`: a file of messages is empty already.
            Op::Setattr { set } if set.size == Some(0) && set.name.is_none() && set.mode.is_none() => {
                at.may(visitor, 2).map(|()| Reply::Done)
            }
            Op::Fsync { .. } | Op::Clunk => Ok(Reply::Done),
            Op::Statfs => {
                Ok(Reply::Statfs(Statfs { ty: V9FS_MAGIC, bsize: 4096, namelen: 255, ..Statfs::default() }))
            }
            Op::Readlink => Err(Errno::EINVAL.into()),
            Op::XattrWalk { .. } | Op::XattrCreate { .. } | Op::Lock(_) | Op::Getlock(_) => {
                Err(Errno::EOPNOTSUPP.into())
            }
            Op::Read { .. } | Op::Write { .. } => Err(Errno::EBADF.into()),
            // A program makes the files: clients cannot change them.
            _ => Err(Errno::EPERM.into()),
        }
    }

    fn open(&self, at: &Arc<TreePosition>, visitor: &Arc<Visitor>, flags: OpenFlags) -> Result<OpenNode> {
        at.may_open(visitor, flags)?;
        match &at.node {
            Node::Dir(dir) => {
                let entries = dir.entries(visitor).into_iter().map(|(name, node)| {
                    let at = TreePosition::child(at, name.as_bytes(), node);
                    let attr = self.attr(&at);
                    (at.name, attr)
                });
                Ok(OpenNode::Dir(entries.collect()))
            }
            Node::File(file) => match &file.opens {
                FileBehavior::Text(text, on_write) => {
                    let text = if flags.reads() { text(visitor).into() } else { Bytes::new() };
                    let text = Arc::new(Mutex::new(text));
                    Ok(OpenNode::File(Arc::new(TextHandle { text, on_write: on_write.clone() })))
                }
                FileBehavior::Handle(..) => Err(Errno::EIO.into()),
            },
            // A walk there yields a file of that server.
            Node::Server(_) => Err(Errno::EIO.into()),
        }
    }

    fn readdir(&self, held: &FidNode, entries: &[(Box<[u8]>, Attr)], cookie: u64, mut buf: DirBuf) -> DirBuf {
        let at = &held.at;
        let up = at.parent.as_ref().map_or(at.qid, |parent| parent.qid);
        for (name, here, qid) in [(&b"."[..], 1, at.qid), (b"..", 2, up)] {
            if cookie < here && !buf.push(&Dirent { qid, cookie: here, ty: 4, name }, None) {
                return buf;
            }
        }
        let skip = usize::try_from(cookie.saturating_sub(2)).unwrap_or(usize::MAX);
        for (here, (name, attr)) in (3..).zip(entries).skip(skip) {
            let entry = Dirent { qid: attr.qid, cookie: here, ty: Dirent::type_of_mode(attr.mode), name };
            if !buf.push(&entry, Some(attr)) {
                return buf;
            }
        }
        let Node::Dir(dir) = &at.node else { return buf };
        let Some(list) = &dir.numbered else { return buf };
        let mut from = cookie.checked_sub(NUMBERED).map_or(0, |last| last + 1);
        loop {
            let page = list(from, PAGE, &held.visitor);
            let Some((last, _)) = page.last() else { return buf };
            from = last + 1;
            for (n, node) in page {
                let child = TreePosition::child(at, n.to_string().as_bytes(), node);
                let attr = self.attr(&child);
                let (ty, name) = (Dirent::type_of_mode(attr.mode), &child.name);
                if !buf.push(&Dirent { qid: attr.qid, cookie: NUMBERED + n, ty, name }, Some(&attr)) {
                    return buf;
                }
            }
        }
    }

    pub(super) fn attr(&self, at: &TreePosition) -> Attr {
        let texts = Some(Box::new(Texts { name: at.name.clone(), ..Texts::default() }));
        if let Node::Server(beyond) = &at.node {
            return Attr { valid: beyond.attr.valid | GetMask::TEXTS, texts, ..beyond.attr.clone() };
        }
        let (uid, gid) = self.ids;
        Attr {
            valid: GetMask::BASIC | GetMask::TEXTS,
            qid: at.qid,
            mode: at.mode(),
            uid,
            gid,
            nlink: if at.qid.is_dir() { 2 } else { 1 },
            size: match &at.node {
                Node::File(file) => file.size.as_ref().map_or(0, |size| size()),
                Node::Dir(_) | Node::Server(_) => 0,
            },
            blksize: 4096,
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            texts,
            ..Attr::default()
        }
    }
}

pub(super) fn held(at: Arc<TreePosition>, visitor: Arc<Visitor>, open: Option<OpenNode>) -> AnyNode {
    Arc::new(FidNode { at, visitor, open })
}

impl TreePosition {
    pub(super) fn root(dir: &Arc<Dir>) -> Self {
        let qid = Qid { ty: Qid::DIR, vers: 0, path: 0 };
        Self { parent: None, name: b"/"[..].into(), node: Node::Dir(dir.clone()), qid }
    }

    /// The root under this name in the root of another server, whose files have other qids.
    pub(super) fn hidden_root(dir: &Arc<Dir>, name: &[u8]) -> Self {
        let qid = Qid { ty: Qid::DIR, vers: 0, path: made_path(0, name) };
        Self { parent: None, name: name.into(), node: Node::Dir(dir.clone()), qid }
    }

    fn child(parent: &Arc<TreePosition>, name: &[u8], node: Node) -> Self {
        let ty = match &node {
            Node::Dir(_) => Qid::DIR,
            Node::Server(beyond) => {
                let qid = beyond.attr.qid;
                return Self { parent: Some(parent.clone()), name: name.into(), node, qid };
            }
            Node::File(file) if file.event => Qid::EVENT,
            Node::File(_) => Qid::FILE,
        };
        let qid = Qid { ty, vers: 0, path: made_path(parent.qid.path, name) };
        Self { parent: Some(parent.clone()), name: name.into(), node, qid }
    }

    /// Its path, below a root of this name, for people.
    fn path(&self, root: &str) -> String {
        match &self.parent {
            Some(parent) => format!("{}/{}", parent.path(root), show(&self.name)),
            None => root.into(),
        }
    }

    pub(super) fn walk(
        self: &Arc<TreePosition>,
        name: &[u8],
        visitor: &Visitor,
    ) -> Result<Arc<TreePosition>> {
        let dir = match &self.node {
            Node::Dir(_) | Node::Server(_) if name == b".." => {
                return Ok(self.parent.as_ref().unwrap_or(self).clone());
            }
            Node::Dir(dir) => dir,
            Node::File(_) | Node::Server(_) => return Err(Errno::ENOTDIR.into()),
        };
        self.may(visitor, 1)?;
        let node = dir.entry(name, visitor).ok_or(Errno::ENOENT)?;
        Ok(Arc::new(TreePosition::child(self, name, node)))
    }

    /// Finds the file that these names lead to from this file's directory.
    pub(super) fn beside(&self, names: &[&str], visitor: &Visitor) -> Result<Arc<TreePosition>> {
        let parent = self.parent.clone().ok_or(Errno::ENOENT)?;
        names.iter().try_fold(parent, |at, name| at.walk(name.as_bytes(), visitor))
    }

    fn may_open(&self, visitor: &Visitor, flags: OpenFlags) -> Result<()> {
        let exec = if flags.has(OpenFlags::EXEC) { 1 } else { 0 };
        let reads = if flags.reads() { 4 } else { 0 };
        let writes = if flags.writes() || flags.has(OpenFlags::TRUNC) { 2 } else { 0 };
        self.may(visitor, if exec != 0 { exec } else { reads } | writes)?;
        match &self.node {
            _ if flags.has(OpenFlags::RCLOSE) => Err(Errno::EPERM.into()),
            Node::Dir(_) if flags.changes() => Err(Errno::EISDIR.into()),
            Node::File(_) if flags.has(OpenFlags::DIRECTORY) => Err(Errno::ENOTDIR.into()),
            Node::File(file) if file.consuming && visitor.who.read_only => {
                Err(Error::new(Errno::EACCES, "permission denied: you may change nothing here"))
            }
            _ => Ok(()),
        }
    }

    fn mode(&self) -> u32 {
        match &self.node {
            Node::Dir(dir) => S_IFDIR | dir.mode,
            Node::Server(beyond) => beyond.attr.mode,
            Node::File(file) => S_IFREG | file.mode,
        }
    }

    /// Checks that all of these bits (4 read, 2 write, 1 execute) are permitted.
    fn may(&self, visitor: &Visitor, bits: u32) -> Result<()> {
        let digit = if visitor.owner { self.mode() >> 6 } else { self.mode() };
        if digit & bits == bits { Ok(()) } else { Err(Errno::EACCES.into()) }
    }
}

/// An open text file: its text as of the open or as the latest write left it, and the function that handles writes.
struct TextHandle {
    text: Arc<Mutex<Bytes>>,
    on_write: Option<WriteHandler>,
}

impl Handle for TextHandle {
    fn read(&self, ask: Ask) {
        let text = lock(&self.text).clone();
        ask.give_from(&text);
    }

    fn write(&self, mut ask: Ask) {
        ask.text = Some(self.text.clone());
        match &self.on_write {
            Some(on_write) => on_write(ask),
            None => ask.fail(Errno::EPERM.into()),
        }
    }
}

/// Returns the qid path of the file of this name in the directory with the qid path `parent`.
fn made_path(parent: u64, name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(parent);
    hasher.write(name);
    hasher.finish() & (MADE - 1) | MADE
}

/// Marks the qid paths of the tree's files: those of a disk's files do not reach this bit.
const MADE: u64 = 1 << 47;
/// The cookie of entry number 0 ([`Dir::numbered`]); the cookies of other entries are below it.
const NUMBERED: u64 = 1 << 24;
/// Maximum number of numbered entries that are requested at once.
const PAGE: usize = 64;

/// The type that statfs(2) shows for a 9P mount.
const V9FS_MAGIC: u32 = 0x0102_1997;
