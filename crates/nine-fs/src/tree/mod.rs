//! The tree: keys and values, both bytes, in nodes of one block each (docs/disk.md, "The tree").
//!
//! In: a root, a key, and whatever has the nodes ([`Nodes`]). Out: cells, or a changed tree.
//!
//! Always holds: a node that is not in memory ends a function with [`Miss`]; then nothing was changed, and the same is
//! asked again when it has come. Nodes of older generations are never changed, so the root of a dump is the dump for
//! ever. Nodes are right ([`node::check`]) before they come here.

mod change;
#[cfg(test)]
mod check;
pub(crate) mod node;
mod path;
#[cfg(test)]
mod tests;

use std::ops::Deref;

pub(crate) use change::{delete, put};
#[cfg(test)]
pub(crate) use check::{Fault, Stats, check};

use crate::ptr::Ptr;
use node::{Node, NodeMut};
use path::{Path, Way};

/// Where nodes are kept: in memory, or not.
///
/// While one function of the tree is at work, what it has been given stays in memory. It drops all [`Nodes::Block`]s of
/// a node before it changes or frees it.
pub(crate) trait Nodes {
    /// A node's content, for as long as it is held.
    type Block: Deref<Target = [u8]>;

    /// The content of a node, or that it is not in memory.
    fn node(&self, at: Ptr) -> Result<Self::Block, Miss>;

    /// This one will be wanted next, behind one that has just been missed.
    fn soon(&self, _at: Ptr) {}

    /// The same, to be changed: where it may be changed from now on (another place, if it is of an older generation:
    /// the old one is given up by this call), and its content.
    fn node_mut(&mut self, at: Ptr) -> Result<(Ptr, &mut [u8]), Miss>;

    /// A new one of this level (0: leaf), its content all zeros. The owner is the inode of its first key.
    fn new_node(&mut self, level: u8, owner: u64) -> (Ptr, &mut [u8]);

    /// It is not wanted any more.
    fn free_node(&mut self, at: Ptr);
}

/// A node that is wanted is not in memory: nothing was changed. Fetch it and ask again. With a level: it is there, and
/// not of this level, as it must be; the disks are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Miss(pub(crate) Ptr, pub(crate) Option<u8>);

/// A tree without cells: its root.
pub(crate) fn create<N: Nodes>(nodes: &mut N) -> Ptr {
    let (at, content) = nodes.new_node(0, 0);
    NodeMut::empty(content, 0);
    at
}

/// The value of a key, if it has one.
pub(crate) fn get<N: Nodes, T>(
    nodes: &N,
    root: Ptr,
    key: &[u8],
    with: impl FnOnce(&[u8]) -> T,
) -> Result<Option<T>, Miss> {
    let (path, leaf) = Path::to(nodes, root, key)?;
    Ok(path.found.then(|| with(Node(&leaf).value(path.leaf().index))))
}

/// The last cell whose key is not behind this one.
pub(crate) fn floor<N: Nodes, T>(
    nodes: &N,
    root: Ptr,
    key: &[u8],
    with: impl FnOnce(&[u8], &[u8]) -> T,
) -> Result<Option<T>, Miss> {
    let (mut with, mut result) = (Some(with), None);
    back(nodes, root, key, |key, value| {
        result = with.take().map(|with| with(key, value));
        false
    })?;
    Ok(result)
}

/// The cells from this key on, in order, as long as `each` is true.
///
/// After a [`Miss`] it may have been called already: whoever asks again begins anew, or behind the last key it was
/// given.
pub(crate) fn range<N: Nodes>(
    nodes: &N,
    root: Ptr,
    from: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), Miss> {
    let (mut path, leaf) = Path::to(nodes, root, from)?;
    let (mut next, mut first) = (Some(leaf), path.leaf().index);
    while let Some(leaf) = next {
        let node = Node(&leaf);
        let mut cells = (first..node.len()).map(|i| node.cell(i));
        if !cells.all(|(key, value)| each(key, value)) {
            return Ok(());
        }
        (next, first) = (path.turn(nodes, Way::On)?, 0);
    }
    Ok(())
}

/// The cells from this key back to the first, as [`range`].
pub(crate) fn back<N: Nodes>(
    nodes: &N,
    root: Ptr,
    from: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), Miss> {
    let (mut path, leaf) = Path::to(nodes, root, from)?;
    let (mut next, mut end) = (Some(leaf), path.leaf().index + usize::from(path.found));
    while let Some(leaf) = next {
        let node = Node(&leaf);
        let mut cells = (0..node.len().min(end)).rev().map(|i| node.cell(i));
        if !cells.all(|(key, value)| each(key, value)) {
            return Ok(());
        }
        (next, end) = (path.turn(nodes, Way::Back)?, usize::MAX);
    }
    Ok(())
}

/// Has the way to a key in memory.
pub(crate) fn touch<N: Nodes>(nodes: &N, root: Ptr, key: &[u8]) -> Result<(), Miss> {
    Path::to(nodes, root, key).map(|_| ())
}
