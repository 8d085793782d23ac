//! A synthetic tree in the root of another file server, under a name that no listing shows.
//!
//! In: requests for both. Out: walks to the name lead into the tree; all other requests go to the server, whose nodes
//! stay its own. So a request for its files costs one comparison more.
//!
//! Always holds: only the owner finds the tree. Its ".." leads no further up than to the tree's root.

use std::sync::Arc;

use nine_proto::{Errno, Names, Op, OpenFlags, Result, Walked};

use super::serve::{FidNode, TreePosition, held};
use super::{Tree, Visitor};
use crate::changes::Tap;
use crate::direct::Direct;
use crate::server::{self, Answer, FileServer, Fill, Passage, Reply, Req, ReqId, Request, StreamRequest};

/// A file server and the tree that its owner finds under a name in each root. The server must be no synthetic tree.
pub struct HiddenTree {
    server: Arc<dyn FileServer>,
    name: Box<[u8]>,
    tree: Tree,
}

impl HiddenTree {
    /// Hides `tree` under a name in the root of `server`. The name should begin with `#`: a server's file of this name
    /// cannot be reached.
    pub fn new(server: Arc<dyn FileServer>, name: &str, tree: Tree) -> Self {
        Self { server, name: name.as_bytes().into(), tree }
    }

    /// Walks from the server's root into the tree. `None`: the walk does not lead there.
    fn enter(&self, req: &Request) -> Option<Result<Reply>> {
        let Op::Walk { names } = req.op() else { return None };
        let who = req.who();
        let is_owner = who.owner && !who.as_other;
        let mut names = names.iter();
        if names.next() != Some(&self.name) || !is_owner || !req.is_at_root() {
            return None;
        }
        let visitor = Arc::new(Visitor { owner: true, who: who.clone() });
        let mut at = Arc::new(TreePosition::hidden_root(&self.tree.root, &self.name));
        let mut qids = Walked::new();
        qids.push(at.qid);
        for name in names {
            match at.walk(name, &visitor) {
                Ok(next) => at = next,
                Err(_) => return Some(Ok(Reply::Walk { qids, node: None })),
            }
            qids.push(at.qid);
        }
        Some(Ok(Reply::Walk { qids, node: Some(held(at, visitor, None)) }))
    }

    /// Returns the server behind this node: the tree or the other one.
    fn server_of(&self, node: &server::Node) -> &dyn FileServer {
        if node.is::<FidNode>() { &self.tree } else { &*self.server }
    }
}

impl FileServer for HiddenTree {
    fn serve(&self, req: Req) -> Answer {
        let is_own = req.is_node::<FidNode>();
        if req.has_node2() && req.is_node2::<FidNode>() != is_own {
            return req.now(Err(Errno::EXDEV.into()));
        }
        if is_own {
            return self.tree.serve(req);
        }
        match self.enter(&req) {
            Some(result) => req.now(result),
            None => self.server.serve(req),
        }
    }

    fn cancel(&self, id: ReqId, node: Option<&server::Node>) {
        match node {
            Some(own) if own.is::<FidNode>() => self.tree.cancel(id, node),
            _ => self.server.cancel(id, node),
        }
    }

    fn stream(&self, request: StreamRequest<'_>) -> Option<Box<dyn Passage>> {
        self.server_of(request.node).stream(request)
    }

    fn direct(&self, node: &server::Node, flags: OpenFlags) -> Option<Arc<dyn Direct>> {
        self.server_of(node).direct(node, flags)
    }

    fn takes_placed(&self, node: &server::Node) -> bool {
        self.server_of(node).takes_placed(node)
    }

    fn can_fill(&self, node: &server::Node) -> bool {
        self.server_of(node).can_fill(node)
    }

    fn fill(&self, fill: Fill) {
        let is_own = fill.node.is::<FidNode>();
        if is_own { self.tree.fill(fill) } else { self.server.fill(fill) }
    }

    fn changes(&self, walk: &Request) -> Option<Result<Tap>> {
        if walk.is_node::<FidNode>() { None } else { self.server.changes(walk) }
    }

    fn has_descriptors(&self) -> bool {
        self.server.has_descriptors()
    }

    fn names(&self) -> Arc<dyn Names> {
        self.server.names()
    }
}
