//! The change file itself: serves the requests for it.

use std::sync::Arc;

use bytes::Bytes;
use nine_proto::mode::S_IFREG;
use nine_proto::{Attr, Errno, Error, GetMask, Op, OpenFlags, Qid, Result, Statfs, Texts, Walked};

use super::line::Cursor;
use super::{NAME, Tap};
use crate::limits::ClientPrincipal;
use crate::payload::Payload;
use crate::server::{Answer, FileServer, Reply, Req, ReqId, Request};

/// The file's qid in every tree: `#chan` in ASCII, with upper bits that no mux changes.
const QID: Qid = Qid { ty: Qid::EVENT, vers: 0, path: 0x0023_6368_616e };

/// The node behind a fid of the file.
pub(crate) struct ChangeFileNode {
    tap: Tap,
    /// The position at which its reader starts; `None`: from now on.
    from: Option<Cursor>,
    /// The reader's number, if it is open.
    reader: Option<u64>,
}

/// A request for a change file.
pub(crate) enum ChangeFileRequest {
    /// It has a fid of the file.
    Of(Arc<ChangeFileNode>),
    /// It is a walk to the file, with this answer.
    Walk(Result<Reply>),
}

impl ChangeFileRequest {
    /// Returns the request as one of these, if it is one. `root`: its fid is a tree's root.
    pub(crate) fn of(server: &dyn FileServer, request: &Request, root: bool) -> Option<Self> {
        if let Ok(node) = request.node::<ChangeFileNode>() {
            return Some(Self::Of(node));
        }
        let from = root.then(|| place(request)).flatten()?;
        let tap = server.changes(request)?;
        // Lines name files in directories that not every user may list.
        let tap = if request.who().as_other { Err(Errno::EACCES.into()) } else { tap };
        Some(Self::Walk(tap.and_then(|tap| {
            let from = from?;
            let mut qids = Walked::new();
            qids.push(QID);
            Ok(Reply::Walk { qids, node: Some(Arc::new(ChangeFileNode { tap, from, reader: None })) })
        })))
    }

    pub(crate) fn serve(self, req: Req) -> Answer {
        match self {
            Self::Of(node) => node.serve(req),
            Self::Walk(reply) => req.now(reply),
        }
    }
}

/// Cancels a read. Returns whether the node is that of a change file.
pub(crate) fn cancel(node: &crate::server::Node, id: ReqId) -> bool {
    let Some(node) = node.downcast_ref::<ChangeFileNode>() else { return false };
    if let Some(reader) = node.reader {
        node.tap.changes.cancel(reader, id);
    }
    true
}

/// The answer to a read.
pub(super) fn reply(lines: Bytes) -> Reply {
    Reply::Read(Payload::Bytes(lines))
}

/// The position that a walk to the file names; `None`: it is no walk to the file.
fn place(request: &Request) -> Option<Result<Option<Cursor>>> {
    let Op::Walk { names } = request.op() else { return None };
    let mut names = names.iter();
    let (Some(name), None) = (names.next(), names.next()) else { return None };
    match name.strip_prefix(NAME.as_bytes())? {
        b"" => Some(Ok(None)),
        rest => {
            let cursor = Cursor::parse(rest.strip_prefix(b"=")?);
            let wrong = || Error::new(Errno::EINVAL, "a place in the changes is written EPOCH.N");
            Some(cursor.map(Some).ok_or_else(wrong))
        }
    }
}

impl ChangeFileNode {
    fn serve(&self, req: Req) -> Answer {
        let result = match req.op() {
            Op::Walk { names } if names.is_empty() => {
                let (tap, from) = (self.tap.clone(), self.from.clone());
                let node = Some(Arc::new(Self { tap, from, reader: None }) as crate::server::Node);
                Ok(Reply::Walk { qids: Walked::new(), node })
            }
            Op::Walk { .. } | Op::Readdir { .. } => Err(Errno::ENOTDIR.into()),
            Op::Open { flags } if flags.has(OpenFlags::DIRECTORY) => Err(Errno::ENOTDIR.into()),
            Op::Open { flags } if flags.changes() => Err(Errno::EACCES.into()),
            Op::Open { .. } => self.open(&req),
            Op::Read { .. } if req.count() == 0 => Ok(reply(Bytes::new())),
            Op::Read { .. } => match self.reader {
                Some(reader) => return self.read(reader, req),
                None => Err(Errno::EBADF.into()),
            },
            Op::Getattr { .. } => Ok(Reply::Attr(Box::new(attr()))),
            Op::Statfs => Ok(Reply::Statfs(Statfs { ty: Statfs::V9FS, namelen: 255, ..Statfs::default() })),
            Op::Clunk | Op::Fsync { .. } => Ok(Reply::Done),
            Op::Stream { .. } | Op::Sclose { .. } | Op::XattrWalk { .. } => Err(Errno::EOPNOTSUPP.into()),
            _ => Err(Errno::EPERM.into()),
        };
        req.now(result)
    }

    fn open(&self, req: &Request) -> Result<Reply> {
        let principal = ClientPrincipal::of(req.who());
        let reader = self.tap.changes.open(self.tap.base.clone(), self.from.as_ref(), &principal)?;
        let node = Self { tap: self.tap.clone(), from: self.from.clone(), reader: Some(reader) };
        Ok(Reply::Open { qid: QID, iounit: 0, node: Arc::new(node) })
    }

    fn read(&self, reader: u64, req: Req) -> Answer {
        let count = req.count();
        let (mut req, mut waits) = (Some(req), None);
        let read = self.tap.changes.read(reader, count, || {
            let (answer, later) = req.take().expect("asked once").later();
            waits = Some(answer);
            later
        });
        match (req, read) {
            (Some(req), Some(lines)) => req.now(lines.map(reply)),
            _ => waits.expect("what is not answered waits"),
        }
    }
}

impl Drop for ChangeFileNode {
    fn drop(&mut self) {
        if let Some(reader) = self.reader {
            self.tap.changes.close(reader);
        }
    }
}

fn attr() -> Attr {
    let texts = Texts { name: NAME.as_bytes().into(), target: Box::default(), owners: None };
    Attr {
        valid: GetMask::BASIC | GetMask::TEXTS,
        qid: QID,
        mode: S_IFREG | 0o444,
        nlink: 1,
        blksize: 4096,
        texts: Some(Box::new(texts)),
        ..Attr::default()
    }
}
