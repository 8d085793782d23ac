//! The B-tree: keys and values, both bytes, in nodes of one block each (docs/disk.md, "The tree").
//!
//! In: a root, a key, and a store of nodes ([`NodeStore`]). Out: cells, or a changed tree.
//!
//! Always holds: if a node is not in memory, a function returns [`NodeMiss`] and has changed nothing. The caller
//! fetches the node and calls it again. Nodes of older generations are never changed, so the root of a dump identifies
//! the dump for ever. The store returns only nodes that [`node::check`] has accepted.

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
pub(crate) use check::{TreeFault, TreeStats, check};

use crate::ptr::BlockPtr;
use node::{NodeMut, NodeRef};
use path::{IterDirection, NodePath};

/// A store of nodes, some of which are in memory.
///
/// Nodes that it returns stay in memory until the present function of the tree ends. The function drops all
/// [`NodeStore::Block`]s of a node before it changes or frees the node.
pub(crate) trait NodeStore {
    /// The content of a node, valid while it is held.
    type Block: Deref<Target = [u8]>;

    /// Returns the content of a node, or [`NodeMiss`] if it is not in memory.
    fn node(&self, at: BlockPtr) -> Result<Self::Block, NodeMiss>;

    /// Hints that this node will be needed soon after the one just missed.
    fn soon(&self, _at: BlockPtr) {}

    /// Returns a node for changing: its new address, and its content. A node of an older generation gets a new address,
    /// and this call gives up the old one.
    fn node_mut(&mut self, at: BlockPtr) -> Result<(BlockPtr, &mut [u8]), NodeMiss>;

    /// Creates a node of this level (0: leaf), with a content of zeros. The owner is the inode of its first key.
    fn new_node(&mut self, level: u8, owner: u64) -> (BlockPtr, &mut [u8]);

    /// Frees a node.
    fn free_node(&mut self, at: BlockPtr);
}

/// A node is not in memory, and nothing was changed: fetch it and try again. With a level: the node is there, but is
/// not of this level as it must be, so the device is corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeMiss(pub(crate) BlockPtr, pub(crate) Option<u8>);

/// Creates an empty tree. Returns its root.
pub(crate) fn create<N: NodeStore>(nodes: &mut N) -> BlockPtr {
    let (at, content) = nodes.new_node(0, 0);
    NodeMut::empty(content, 0);
    at
}

/// Looks up a key, and passes its value to `with`.
pub(crate) fn get<N: NodeStore, T>(
    nodes: &N,
    root: BlockPtr,
    key: &[u8],
    with: impl FnOnce(&[u8]) -> T,
) -> Result<Option<T>, NodeMiss> {
    let (path, leaf) = NodePath::to(nodes, root, key)?;
    Ok(path.found.then(|| with(NodeRef(&leaf).value(path.leaf().index))))
}

/// Finds the last cell with a key not greater than `key`.
pub(crate) fn floor<N: NodeStore, T>(
    nodes: &N,
    root: BlockPtr,
    key: &[u8],
    with: impl FnOnce(&[u8], &[u8]) -> T,
) -> Result<Option<T>, NodeMiss> {
    let (mut with, mut result) = (Some(with), None);
    back(nodes, root, key, |key, value| {
        result = with.take().map(|with| with(key, value));
        false
    })?;
    Ok(result)
}

/// Calls `each` for the cells from a key on, in order, until it returns false.
///
/// After a [`NodeMiss`] `each` may already have seen some cells. The caller starts again, or after the last key that
/// `each` got.
pub(crate) fn range<N: NodeStore>(
    nodes: &N,
    root: BlockPtr,
    from: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), NodeMiss> {
    let (mut path, leaf) = NodePath::to(nodes, root, from)?;
    let (mut next, mut first) = (Some(leaf), path.leaf().index);
    while let Some(leaf) = next {
        let node = NodeRef(&leaf);
        let mut cells = (first..node.len()).map(|i| node.cell(i));
        if !cells.all(|(key, value)| each(key, value)) {
            return Ok(());
        }
        (next, first) = (path.turn(nodes, IterDirection::On)?, 0);
    }
    Ok(())
}

/// Calls `each` for the cells from a key back to the first, like [`range`].
pub(crate) fn back<N: NodeStore>(
    nodes: &N,
    root: BlockPtr,
    from: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), NodeMiss> {
    let (mut path, leaf) = NodePath::to(nodes, root, from)?;
    let (mut next, mut end) = (Some(leaf), path.leaf().index + usize::from(path.found));
    while let Some(leaf) = next {
        let node = NodeRef(&leaf);
        let mut cells = (0..node.len().min(end)).rev().map(|i| node.cell(i));
        if !cells.all(|(key, value)| each(key, value)) {
            return Ok(());
        }
        (next, end) = (path.turn(nodes, IterDirection::Back)?, usize::MAX);
    }
    Ok(())
}

/// Ensures that the path to a key is in memory.
pub(crate) fn touch<N: NodeStore>(nodes: &N, root: BlockPtr, key: &[u8]) -> Result<(), NodeMiss> {
    NodePath::to(nodes, root, key).map(|_| ())
}
