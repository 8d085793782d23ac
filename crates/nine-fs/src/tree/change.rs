//! Changes of the tree.
//!
//! In: a key, and its new value or none. Out: the changed tree, perhaps with another root; or a [`NodeMiss`], and
//! nothing changed.
//!
//! First the path to the leaf is read, so that nothing can be missing later. Then the leaf is changed, and each branch
//! above it that must change. If a node keeps its address, so do all nodes above it, because the parents of a node of
//! the current generation are of the current generation.

use super::node::{KEY_MAX, LEVELS, NodeMut, NodeRef, pointer, size};
use super::path::{NodePath, PathNode};
use super::{NodeMiss, NodeStore, create};
use crate::ptr::BlockPtr;

/// Sets the value of a key.
///
/// # Panics
/// If the key is longer than [`KEY_MAX`], or key and value are larger than a quarter of a node. That is a bug of the
/// caller.
pub(crate) fn put<N: NodeStore>(
    nodes: &mut N,
    root: &mut BlockPtr,
    key: &[u8],
    value: &[u8],
) -> Result<(), NodeMiss> {
    let (path, block) = NodePath::to(nodes, *root, key)?;
    let fits = key.len() <= KEY_MAX && size(key, value) <= NodeRef(&block).cell_most();
    assert!(fits, "a key of {} bytes, a value of {}", key.len(), value.len());
    drop(block);
    let PathNode { at: mut was, index } = path.leaf();
    let (mut at, mut node) = change(nodes, was);
    let mut new = None;
    if path.found && value.len() <= node.node().value(index).len() {
        node.overwrite(index, value);
    } else {
        if path.found {
            node.remove(index);
        }
        new = insert(nodes, at, index, key, value);
    }
    for step in path.branches().iter().rev() {
        if at == was && new.is_none() {
            return Ok(());
        }
        let (now, mut node) = change(nodes, step.at);
        node.set_ptr(step.index, at);
        (was, at) = (step.at, now);
        new = new.and_then(|(key, right)| insert(nodes, at, step.index + 1, &key, &pointer(right)));
    }
    *root = match new {
        Some((key, right)) => above(nodes, at, &key, right),
        None => at,
    };
    Ok(())
}

/// Removes a key and its value. Returns false if the key is not there.
///
/// A node that becomes empty is freed. A node less than a third full is merged with a neighbour, if the neighbour is in
/// memory and both together leave a quarter free.
pub(crate) fn delete<N: NodeStore>(nodes: &mut N, root: &mut BlockPtr, key: &[u8]) -> Result<bool, NodeMiss> {
    let (path, block) = NodePath::to(nodes, *root, key)?;
    drop(block);
    if !path.found {
        return Ok(false);
    }
    let PathNode { at: mut was, index } = path.leaf();
    let (mut at, mut node) = change(nodes, was);
    node.remove(index);
    for step in path.branches().iter().rev() {
        let empty = NodeRef(&have(nodes, at)).len() == 0;
        let joined = if empty { None } else { join(nodes, *step, at) };
        if empty {
            nodes.free_node(at);
        } else if joined.is_none() && at == was {
            return Ok(true);
        }
        let (now, mut node) = change(nodes, step.at);
        match joined {
            Some((left, index)) => {
                node.set_ptr(index, left);
                node.remove_child(index + 1);
            }
            None if empty => node.remove_child(step.index),
            None => node.set_ptr(step.index, at),
        }
        (was, at) = (step.at, now);
    }
    *root = lower(nodes, at);
    Ok(true)
}

/// Inserts a cell into a node of the current generation. If the node has no room, it is split. Then returns the new
/// right node and its lowest key.
fn insert<N: NodeStore>(
    nodes: &mut N,
    at: BlockPtr,
    i: usize,
    key: &[u8],
    value: &[u8],
) -> Option<(Vec<u8>, BlockPtr)> {
    let (_, mut node) = change(nodes, at);
    if node.node().fits(size(key, value)) {
        node.insert(i, key, value);
        return None;
    }
    let block = have(nodes, at);
    let old = NodeRef(&block);
    let level = old.level();
    let cut = old.cut(i, key, size(key, value));
    // The number of old cells that stay in the left node.
    let stay = if i < cut { cut - 1 } else { cut };
    let last = if i + 1 == cut { key } else { old.key(stay - 1) };
    let first = if i == cut { key } else { old.key(stay) };
    let from = if level == 0 { between(last, first) } else { first }.to_vec();
    let (right, content) = nodes.new_node(level, owner(first));
    let mut node = NodeMut::empty(content, level);
    node.append(old, stay..old.len());
    drop(block);
    if i >= cut {
        node.insert(i - cut, key, value);
    }
    if level > 0 {
        node.empty_first_key();
    }
    let (_, mut node) = change(nodes, at);
    node.truncate(stay);
    if i < cut {
        node.insert(i, key, value);
    }
    Some((from, right))
}

/// Creates a root above two nodes.
fn above<N: NodeStore>(nodes: &mut N, left: BlockPtr, key: &[u8], right: BlockPtr) -> BlockPtr {
    let level = NodeRef(&have(nodes, left)).level() + 1;
    assert!(usize::from(level) < LEVELS, "a tree of {level} levels");
    let (at, content) = nodes.new_node(level, 0);
    let mut node = NodeMut::empty(content, level);
    node.insert(0, &[], &pointer(left));
    node.insert(1, key, &pointer(right));
    at
}

/// Removes superfluous roots: those with a single child, as far as they are in memory, and those without one.
fn lower<N: NodeStore>(nodes: &mut N, mut root: BlockPtr) -> BlockPtr {
    while let Ok(block) = nodes.node(root) {
        let node = NodeRef(&block);
        let next = match node.len() {
            0 if node.level() > 0 => None,
            1 if node.level() > 0 => Some(node.child(0)),
            _ => break,
        };
        drop(block);
        nodes.free_node(root);
        root = next.unwrap_or_else(|| create(nodes));
    }
    root
}

/// Merges the node at `at`, if it is little used, with a neighbour. Returns the address of the merged node, and the
/// index of the right one in the parent. The parent is not updated.
fn join<N: NodeStore>(nodes: &mut N, parent: PathNode, at: BlockPtr) -> Option<(BlockPtr, usize)> {
    let block = have(nodes, at);
    let node = NodeRef(&block);
    if node.used() >= node.room() / 3 {
        return None;
    }
    let above = have(nodes, parent.at);
    let above = NodeRef(&above);
    let right = |i: &usize| (1..above.len()).contains(i);
    for index in [parent.index, parent.index + 1].into_iter().filter(right) {
        let other = above.child(if index == parent.index { index - 1 } else { index });
        let Ok(beside) = nodes.node(other) else { continue };
        if NodeRef(&beside).level() != node.level() {
            continue;
        }
        let key = if node.level() == 0 { &[] } else { above.key(index) };
        if node.used() + NodeRef(&beside).used() + key.len() > node.room() / 4 * 3 {
            continue;
        }
        let (left, right) = if index == parent.index { (other, at) } else { (at, other) };
        drop((block, beside));
        let from = have(nodes, right);
        let cells = NodeRef(&from);
        let (left, mut node) = change(nodes, left);
        if cells.level() == 0 {
            node.append(cells, 0..cells.len());
        } else {
            node.insert(node.node().len(), key, cells.value(0));
            node.append(cells, 1..cells.len());
        }
        drop(from);
        nodes.free_node(right);
        return Some((left, index - 1));
    }
    None
}

/// Returns a node for changing, and its new address.
fn change<N: NodeStore>(nodes: &mut N, at: BlockPtr) -> (BlockPtr, NodeMut<'_>) {
    match nodes.node_mut(at) {
        Ok((at, content)) => (at, NodeMut(content)),
        Err(NodeMiss(at, _)) => unreachable!("{at:?} was in memory"),
    }
}

/// Returns a node that is in memory.
fn have<N: NodeStore>(nodes: &N, at: BlockPtr) -> N::Block {
    nodes.node(at).unwrap_or_else(|NodeMiss(at, _)| unreachable!("{at:?} was in memory"))
}

/// Returns the inode of a key: its first 8 bytes, or 0 if it has fewer.
fn owner(key: &[u8]) -> u64 {
    key.first_chunk().map_or(0, |inode| u64::from_be_bytes(*inode))
}

/// Returns a short key that is greater than `last` and not greater than `first`. It still contains the inode.
fn between<'a>(last: &[u8], first: &'a [u8]) -> &'a [u8] {
    let same = last.iter().zip(first).take_while(|(a, b)| a == b).count();
    &first[..(same + 1).max(8).min(first.len())]
}
