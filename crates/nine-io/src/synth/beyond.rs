//! Another file server below a directory of the tree.
//!
//! In: requests for its files, and walks that cross over. Out: the same requests with nodes of that server, and its
//! answers with nodes of the tree.
//!
//! Always holds: a client that may not cross over gets no node of that server. A request that names files on both sides
//! fails (EXDEV). ".." from its root leads to its place in the tree.

use std::collections::HashMap;
use std::sync::Arc;

use nine_proto::{Attr, Errno, Op, OpenFlags, Qid, Result, Texts, Walked};

use super::serve::{FidNode, OpenNode, TreePosition, held};
use super::{Node, Tree, Visitor};
use crate::direct::Direct;
use crate::server::{
    Answer, FileServer, Fill, Node as AnyNode, Passage, Reply, Req, ReqId, Request, StreamRequest,
};
use crate::sync::{Mutex, lock};

/// A directory below which another file server answers, for walks that begin in the tree. One walk crosses over at most
/// once, and back at most once.
///
/// Qids are the server's own: the tree's have bit 47 set, those of a disk's files do not.
pub struct Beyond {
    server: Arc<dyn FileServer>,
    root: AnyNode,
    /// The attributes of the root, for listings of the directory above it.
    pub(super) attr: Attr,
    may: CrossingCheck,
}

type CrossingCheck = Box<dyn Fn(&Visitor) -> Result<()> + Send + Sync>;

impl Beyond {
    /// The tree below this node of a server, shown as a directory with these attributes.
    pub fn new(server: Arc<dyn FileServer>, root: AnyNode, attr: Attr) -> Self {
        Self { server, root, attr, may: Box::new(|_| Ok(())) }
    }

    /// Decides which clients may cross over; checked again for each request but reads, writes, fsyncs, clunks and
    /// removes.
    pub fn guarded(self, may: impl Fn(&Visitor) -> Result<()> + Send + Sync + 'static) -> Self {
        Self { may: Box::new(may), ..self }
    }

    pub(super) fn lets(&self, visitor: &Visitor) -> Result<()> {
        (self.may)(visitor)
    }

    fn is_root(&self, qid: Qid) -> bool {
        qid.is_dir() && qid.path == self.attr.qid.path
    }
}

impl From<Beyond> for Node {
    fn from(beyond: Beyond) -> Self {
        Self::Server(Arc::new(beyond))
    }
}

/// A file of the other server.
#[derive(Clone)]
pub(super) struct ForeignFile {
    node: AnyNode,
    is_root: bool,
}

/// Unanswered walks that crossed over to another server from fids of the tree.
#[derive(Default)]
pub(super) struct ForeignWalks(Mutex<HashMap<ReqId, (Arc<Beyond>, AnyNode)>>);

impl FidNode {
    /// The other server and its file.
    pub(super) fn inside(&self) -> Option<(&Arc<Beyond>, &ForeignFile)> {
        match (&self.at.node, &self.open) {
            (Node::Server(beyond), Some(OpenNode::Inside(inside))) => Some((beyond, inside)),
            _ => None,
        }
    }

    fn put(self: &Arc<Self>, at: &Arc<TreePosition>, inside: ForeignFile) -> AnyNode {
        held(at.clone(), self.visitor.clone(), Some(OpenNode::Inside(inside)))
    }
}

impl Tree {
    /// Returns its root for this client, and the root's attributes, for a [`Beyond`] in another tree.
    pub fn top(&self, visitor: Visitor) -> (AnyNode, Attr) {
        let at = Arc::new(TreePosition::root(&self.root));
        let attr = self.attr(&at);
        (held(at, Arc::new(visitor), None), attr)
    }

    pub(super) fn walk(&self, req: Req, here: &Arc<FidNode>) -> Answer {
        let way = WalkRoute::of(&req, here);
        match way {
            WalkRoute::Done(result) => req.now(result),
            WalkRoute::Across(at, beyond, from, qids) => self.across(req, here, (&at, &beyond, from), qids),
        }
    }

    /// Passes the rest of a walk on. `qids` are those of the names that the tree has walked.
    fn across(
        &self,
        req: Req,
        here: &Arc<FidNode>,
        (at, beyond, from): (&Arc<TreePosition>, &Arc<Beyond>, ForeignFile),
        qids: Walked,
    ) -> Answer {
        let Op::Walk { names } = req.op() else { unreachable!("the caller has looked") };
        let (walked, is_all) = (qids.len(), qids.len() == names.len());
        let rest = names.after(walked);
        let leads_up = rest.iter().any(|name| name == b"..");
        let rest: Vec<Box<[u8]>> = rest.iter().filter(|_| leads_up).map(Into::into).collect();
        let (id, is_new) = (req.id(), here.inside().is_none());
        if is_new {
            lock(&self.crossing.0).insert(id, (beyond.clone(), from.node.clone()));
        }
        let (here, at, of, crossing) = (here.clone(), at.clone(), beyond.clone(), self.crossing.clone());
        let is_root = from.is_root;
        let back = move |result: Result<Reply>| {
            if is_new {
                lock(&crossing.0).remove(&id);
            }
            let (theirs, node) = match result {
                Ok(Reply::Walk { qids, node }) => (qids, node),
                Ok(_) => return Err(Errno::EIO.into()),
                Err(error) if walked == 0 || is_all => return Err(error),
                Err(_) => (Walked::new(), None),
            };
            let (mut qids, mut ends) = (qids, is_root);
            for (n, &qid) in (1..).zip(theirs.iter()) {
                qids.push(qid);
                ends = of.is_root(qid);
                if ends && rest.get(n).is_some_and(|next| &**next == b"..") {
                    return Ok(out(&here, &at, qids, &rest[n..]));
                }
            }
            let node = node.map(|node| here.put(&at, ForeignFile { node, is_root: ends }));
            Ok(Reply::Walk { qids, node })
        };
        beyond.server.serve(req.passed([Some(from.node), None], walked, back))
    }

    /// Passes on a request for a file of the other server.
    pub(super) fn pass(
        &self,
        req: Req,
        here: &Arc<FidNode>,
        beyond: &Beyond,
        inside: &ForeignFile,
    ) -> Answer {
        let op = req.op();
        let ends =
            matches!(op, Op::Read { .. } | Op::Write { .. } | Op::Fsync { .. } | Op::Clunk | Op::Remove);
        // The root, once open, is still the root.
        let is_root = inside.is_root && matches!(op, Op::Open { .. });
        if let Err(error) = if ends { Ok(()) } else { beyond.lets(&here.visitor) } {
            return req.now(Err(error));
        }
        let other = match req.has_node2().then(|| req.node2::<FidNode>()) {
            None => None,
            Some(other) => match other.as_ref().map(|other| other.inside()) {
                Ok(Some((of, other))) if std::ptr::eq(&**of, beyond) => Some(other.node.clone()),
                _ => return req.now(Err(Errno::EXDEV.into())),
            },
        };
        let (here, node, was_root) = (here.clone(), inside.node.clone(), inside.is_root);
        let back = move |result: Result<Reply>| {
            let reply = match result? {
                Reply::Attr(mut attr) if was_root => {
                    attr.texts.get_or_insert_with(|| Box::new(Texts::default())).name = here.at.name.clone();
                    Reply::Attr(attr)
                }
                reply => reply,
            };
            Ok(reply.map_node(|made| match Arc::ptr_eq(&made, &node) {
                true => here.clone(),
                false => here.put(&here.at, ForeignFile { node: made, is_root }),
            }))
        };
        beyond.server.serve(req.passed([Some(inside.node.clone()), other], 0, back))
    }

    /// Cancels a walk at the other server. Returns whether it had crossed over.
    pub(super) fn cancel_crossing(&self, id: ReqId) -> bool {
        let found = lock(&self.crossing.0).get(&id).cloned();
        found.inspect(|(beyond, node)| beyond.server.cancel(id, Some(node))).is_some()
    }
}

/// The tree's part of a walk.
enum WalkRoute {
    Done(Result<Reply>),
    /// The walk goes on from a file of another server, to which these qids' names have led.
    Across(Arc<TreePosition>, Arc<Beyond>, ForeignFile, Walked),
}

impl WalkRoute {
    fn of(req: &Request, here: &FidNode) -> Self {
        let Op::Walk { names } = req.op() else { unreachable!("the caller has looked") };
        let (mut at, mut qids, mut rest) = (here.at.clone(), Walked::new(), names.iter());
        let mut inside = here.inside().map(|(_, inside)| inside.clone());
        if let Err(error) = here.inside().map_or(Ok(()), |(beyond, _)| beyond.lets(&here.visitor)) {
            return Self::Done(Err(error));
        }
        loop {
            let next = rest.next();
            if let (Some(from), Node::Server(beyond)) = (&inside, &at.node)
                && !(from.is_root && next == Some(b".."))
            {
                let (from, beyond) = (from.clone(), beyond.clone());
                return Self::Across(at, beyond, from, qids);
            }
            let Some(name) = next else {
                let node = held(at, here.visitor.clone(), None);
                return Self::Done(Ok(Reply::Walk { qids, node: Some(node) }));
            };
            let found = at.walk(name, &here.visitor).and_then(|at| match &at.node {
                Node::Server(beyond) => beyond.lets(&here.visitor).map(|()| at),
                _ => Ok(at),
            });
            match found {
                Ok(next) => at = next,
                Err(error) if qids.is_empty() => return Self::Done(Err(error)),
                Err(_) => return Self::Done(Ok(Reply::Walk { qids, node: None })),
            }
            qids.push(at.qid);
            inside = match &at.node {
                Node::Server(beyond) => Some(ForeignFile { node: beyond.root.clone(), is_root: true }),
                _ => None,
            };
        }
    }
}

/// Finishes a walk that has come back to the other server's root and leads out of it.
fn out(here: &FidNode, at: &Arc<TreePosition>, mut qids: Walked, names: &[Box<[u8]>]) -> Reply {
    let mut at = at.clone();
    for name in names {
        // It does not cross over again.
        match at.walk(name, &here.visitor) {
            Ok(next) if !matches!(next.node, Node::Server(_)) => at = next,
            _ => return Reply::Walk { qids, node: None },
        }
        qids.push(at.qid);
    }
    Reply::Walk { qids, node: Some(held(at, here.visitor.clone(), None)) }
}

/// Passes on the remaining methods of a file server.
impl Beyond {
    pub(super) fn takes_placed(&self, inside: &ForeignFile) -> bool {
        self.server.takes_placed(&inside.node)
    }

    pub(super) fn direct(&self, inside: &ForeignFile, flags: OpenFlags) -> Option<Arc<dyn Direct>> {
        self.server.direct(&inside.node, flags)
    }

    pub(super) fn stream(
        &self,
        inside: &ForeignFile,
        request: &StreamRequest<'_>,
    ) -> Option<Box<dyn Passage>> {
        let StreamRequest { read, offset, conn, .. } = *request;
        self.server.stream(StreamRequest { node: &inside.node, read, offset, conn })
    }

    pub(super) fn can_fill(&self, inside: &ForeignFile) -> bool {
        self.server.can_fill(&inside.node)
    }

    pub(super) fn fill(&self, inside: &ForeignFile, mut fill: Fill) {
        fill.node = inside.node.clone();
        self.server.fill(fill);
    }

    pub(super) fn cancel(&self, inside: &ForeignFile, id: ReqId) {
        self.server.cancel(id, Some(&inside.node));
    }
}
