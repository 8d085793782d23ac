//! What a request changes, for who reads the tree's changes: said before it is served, told when it has succeeded.

use std::sync::Arc;

use nine_io::changes::{Change, Path};
use nine_io::server::Request;
use nine_proto::{Op, OpenFlags};

use super::Node;
use super::tree::{Inode, Place};

/// What will have changed. Of what has no name any more nothing.
pub(super) fn changes(req: &Request) -> Vec<Change> {
    told(req).unwrap_or_default()
}

fn told(req: &Request) -> Option<Vec<Change>> {
    let node = req.node::<Node>().ok()?;
    let (inode, at) = match &*node {
        Node::File { inode, at, .. } => (inode, at.clone()),
        Node::NewXattr { inode, .. } if matches!(req.op(), Op::Clunk) => {
            return Some(vec![Change::Attr(path(inode, &inode.lock().place.clone())?)]);
        }
        _ => return None,
    };
    let own = || path(inode, &at);
    Some(match req.op() {
        Op::Create { name, flags, .. } if inode.child(name).is_ok() => match flags.has(OpenFlags::TRUNC) {
            true => vec![Change::Write(within(inode, name))],
            false => Vec::new(),
        },
        Op::Create { name, .. } | Op::Make { name, .. } => vec![Change::Create(within(inode, name))],
        Op::Open { flags } if flags.has(OpenFlags::TRUNC) => vec![Change::Write(own()?)],
        Op::Write { data, .. } if !data.is_empty() => vec![Change::Write(own()?)],
        Op::Setattr { set } => {
            let mut all = vec![if set.size.is_some() { Change::Write(own()?) } else { Change::Attr(own()?) }];
            if let Some(new) = set.name {
                let (dir, old) = inode.place(&at).ok()?;
                all.extend(moved(within(&dir, &old), within(&dir, new)));
            }
            all
        }
        Op::Rename { name } => {
            moved(own()?, within(req.node2::<Node>().ok()?.inode().ok()?, name)).into_iter().collect()
        }
        Op::RenameAt { old, new } => {
            let to = within(req.node2::<Node>().ok()?.inode().ok()?, new);
            moved(within(inode, old), to).into_iter().collect()
        }
        Op::Unlink { name, .. } => vec![Change::Remove(within(inode, name))],
        Op::Remove => vec![Change::Remove(own()?)],
        _ => Vec::new(),
    })
}

fn moved(old: Path, new: Path) -> Option<Change> {
    (old != new).then_some(Change::Move(old, new))
}

/// Where a file is now, if it is anywhere.
pub(super) fn path(inode: &Arc<Inode>, at: &Place) -> Option<Path> {
    if inode.is_root() {
        return Some(b"/"[..].into());
    }
    let (dir, name) = inode.place(at).ok()?;
    Some(within(&dir, &name))
}

/// Where this name of a directory is. A directory with names in it has its own.
fn within(dir: &Arc<Inode>, name: &[u8]) -> Path {
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
