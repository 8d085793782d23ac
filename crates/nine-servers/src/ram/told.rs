//! Determines a request's changes for the tree's change file, before the request runs. They are published if it
//! succeeds.

use std::sync::Arc;

use nine_io::changes::{self, Change, Path, Places};
use nine_io::server::Request;
use nine_proto::{Op, OpenFlags};

use super::RamFidState;
use super::tree::{EntryLocation, RamInode};

/// Returns the changes a request will make. A file without a name causes none.
pub(super) fn changes(req: &Request) -> Vec<Change> {
    let Ok(node) = req.node::<RamFidState>() else { return Vec::new() };
    let (inode, at) = match &*node {
        RamFidState::File { inode, at, .. } => (inode, at.clone()),
        RamFidState::NewXattr { inode, .. } if matches!(req.op(), Op::Clunk) => {
            let at = inode.lock().place.clone();
            return path(inode, &at).map(Change::Attr).into_iter().collect();
        }
        _ => return Vec::new(),
    };
    match req.op() {
        Op::Create { name, flags, .. } if inode.child(name).is_ok() => match flags.has(OpenFlags::TRUNC) {
            true => vec![Change::Write(within(inode, name))],
            false => Vec::new(),
        },
        op => changes::of(&op, &RequestPlaces { req, inode, at }),
    }
}

struct RequestPlaces<'r> {
    req: &'r Request,
    inode: &'r Arc<RamInode>,
    at: EntryLocation,
}

impl Places for RequestPlaces<'_> {
    fn own(&self) -> Option<Path> {
        path(self.inode, &self.at)
    }

    fn within(&self, name: &[u8]) -> Option<Path> {
        Some(within(self.inode, name))
    }

    fn beside(&self, name: &[u8]) -> Option<Path> {
        Some(within(&self.inode.place(&self.at).ok()?.0, name))
    }

    fn other(&self, name: &[u8]) -> Option<Path> {
        Some(within(self.req.node2::<RamFidState>().ok()?.inode().ok()?, name))
    }
}

/// Returns the current path of a file; `None` if it has no name.
pub(super) fn path(inode: &Arc<RamInode>, at: &EntryLocation) -> Option<Path> {
    if inode.is_root() {
        return Some(b"/"[..].into());
    }
    let (dir, name) = inode.place(at).ok()?;
    Some(within(&dir, &name))
}

/// Returns the path of a name in a directory. Only a directory that is linked itself can contain names.
fn within(dir: &Arc<RamInode>, name: &[u8]) -> Path {
    let (mut dir, mut names) = (dir.clone(), vec![Box::<[u8]>::from(name)]);
    while !dir.is_root() {
        let (above, name) = dir.lock().place.clone();
        names.push(name);
        let Some(above) = above.upgrade() else { break };
        dir = above;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    path.into()
}
