//! Publishes the changes of `main` to subscribers. The changes of a request are determined before it runs, and
//! published with it.
//!
//! Paths begin with the name of the tree, `/main` or `/dump`, which a subscriber to that tree does not see. Nodes do
//! not know their paths. The names of parent directories are searched, and cached while they are valid.

use std::cell::RefCell;

use nine_io::changes::{self, Change, Path, Places};
use nine_io::server::{Reply, Request};
use nine_proto::Op as Asked;

use super::node::{ArchiveNode, TreeFile, TreeView};
use crate::archive::{Archive, ArchiveState};
use crate::fs::{FsResult, OperationStop, ROOT};

/// Maximum number of cached names of directories; then the cache is cleared.
const CACHED_NAMES_MAX: usize = 1 << 16;

/// The trees as they appear in changes.
const MAIN: &[u8] = b"/main";
const DUMP: &[u8] = b"/dump";

impl Archive {
    /// Performs the request. Its changes are published before any other request can change anything.
    pub(super) fn perform_told(&self, req: &Request, state: &mut ArchiveState) -> FsResult<Reply> {
        if !state.changes.is_on() {
            return self.perform(req, state);
        }
        let told = told(req, state)?;
        let reply = self.perform(req, state)?;
        state.changes.tell_all(told);
        Ok(reply)
    }
}

impl ArchiveState {
    /// Publishes a new dump, such as `2026/1121`.
    pub(crate) fn tell_dump(&self, name: &str) {
        self.changes.tell(|| Change::Create([DUMP, b"/", name.as_bytes()].concat().into()));
    }

    /// Returns the name of a directory in its parent.
    fn name_of(&mut self, parent: u64, ino: u64) -> FsResult<Box<[u8]>> {
        let root = self.fs.mem.root;
        if let Some(name) = self.names.get(&ino)
            && self.fs.lookup(root, parent, name)?.is_some_and(|there| there.ino == ino)
        {
            return Ok(name.clone());
        }
        let mut found = None;
        self.fs.entries(root, parent, 0, |_, named| {
            if named.ino == ino {
                found = Some(Box::from(named.name));
            }
            found.is_none()
        })?;
        let name: Box<[u8]> = found.ok_or(nine_proto::Errno::ENOENT)?;
        if self.names.len() >= CACHED_NAMES_MAX {
            self.names.clear();
        }
        self.names.insert(ino, name.clone());
        Ok(name)
    }

    /// Returns the path of a name in a directory.
    fn path(&mut self, dir: u64, name: &[u8]) -> FsResult<Path> {
        let (mut at, mut names) = (dir, vec![Box::from(name)]);
        while at != ROOT {
            let parent = self.fs.attributes(self.fs.mem.root, at)?.parent;
            names.push(self.name_of(parent, at)?);
            at = parent;
        }
        names.push(MAIN[1..].into());
        let path: Vec<u8> = names.iter().rev().flat_map(|name| [b"/", &**name]).flatten().copied().collect();
        Ok(path.into())
    }
}

/// Returns the path of a node that is the root of an attach.
pub(super) fn base(state: &mut ArchiveState, node: &ArchiveNode) -> FsResult<Path> {
    Ok(match node {
        ArchiveNode::Dumps => DUMP.into(),
        ArchiveNode::Year(year) => [DUMP, format!("/{year:04}").as_bytes()].concat().into(),
        ArchiveNode::File(file) if file.view == TreeView::Main => own(state, file)?,
        // A dump never changes.
        ArchiveNode::File(_) => [DUMP, b"/#"].concat().into(),
        ArchiveNode::Xattr(_) | ArchiveNode::PendingXattr(_) => return Err(nine_proto::Errno::EBADF.into()),
    })
}

fn own(state: &mut ArchiveState, file: &TreeFile) -> FsResult<Path> {
    if file.ino == ROOT {
        return Ok(MAIN.into());
    }
    let (dir, name) = file.place(state)?;
    state.path(dir, &name)
}

fn told(req: &Request, state: &mut ArchiveState) -> FsResult<Vec<Change>> {
    let (op, stop) = (req.op(), RefCell::new(None));
    let Ok(node) = req.node::<ArchiveNode>() else { return Ok(Vec::new()) };
    let changes = match (&*node, &op) {
        (ArchiveNode::PendingXattr(new), Asked::Clunk) => {
            let path = new.place().map(|(dir, name)| state.path(dir, &name));
            heed(&stop, path.unwrap_or_else(|| Ok(MAIN.into()))).map(Change::Attr).into_iter().collect()
        }
        (ArchiveNode::File(file), _) if file.view == TreeView::Main => {
            changes::of(&op, &RequestLocations { req, file, state: RefCell::new(state), stop: &stop })
        }
        _ => Vec::new(),
    };
    match stop.into_inner() {
        // The file is not there, and the request will report that.
        None | Some(OperationStop::Error(_)) => Ok(changes),
        Some(stop) => Err(stop),
    }
}

/// Returns the result, or stores the error in `stop`.
fn heed<T>(stop: &RefCell<Option<OperationStop>>, found: FsResult<T>) -> Option<T> {
    found.map_err(|why| *stop.borrow_mut() = Some(why)).ok()
}

struct RequestLocations<'r> {
    req: &'r Request,
    file: &'r TreeFile,
    state: RefCell<&'r mut ArchiveState>,
    stop: &'r RefCell<Option<OperationStop>>,
}

impl Places for RequestLocations<'_> {
    fn own(&self) -> Option<Path> {
        heed(self.stop, own(&mut self.state.borrow_mut(), self.file))
    }

    fn within(&self, name: &[u8]) -> Option<Path> {
        heed(self.stop, self.state.borrow_mut().path(self.file.ino, name))
    }

    fn beside(&self, name: &[u8]) -> Option<Path> {
        let state = &mut *self.state.borrow_mut();
        let (dir, _) = heed(self.stop, self.file.place(state))?;
        heed(self.stop, state.path(dir, name))
    }

    fn other(&self, name: &[u8]) -> Option<Path> {
        let node = self.req.node2::<ArchiveNode>().ok()?;
        let ArchiveNode::File(TreeFile { view: TreeView::Main, ino, .. }) = &*node else { return None };
        heed(self.stop, self.state.borrow_mut().path(*ino, name))
    }
}
