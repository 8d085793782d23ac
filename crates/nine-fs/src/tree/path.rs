//! A path from the root to a leaf.
//!
//! In: a key, then a direction. Out: one leaf after the other, and the child that was taken in each branch above.
//!
//! Always holds: each node is one level lower than the one before it, or an error is returned. So a path ends.

use super::node::{LEVELS, NodeRef};
use super::{NodeMiss, NodeStore};
use crate::ptr::BlockPtr;

/// The nodes of the path, the root first.
pub(super) struct NodePath {
    steps: [PathNode; LEVELS],
    len: usize,
    /// Whether the leaf has the key.
    pub(super) found: bool,
}

/// A node of the path.
#[derive(Clone, Copy, Default)]
pub(super) struct PathNode {
    /// Its address.
    pub(super) at: BlockPtr,
    /// The child that was taken; in the leaf the first cell that is not before the key.
    pub(super) index: usize,
}

/// Number of children after a missing one that are reported to [`NodeStore::soon`].
const SOON_CHILDREN_MAX: usize = 31;

/// The direction of an iteration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IterDirection {
    On,
    Back,
}

impl NodePath {
    /// Descends to the leaf that has the key, or would have it.
    pub(super) fn to<N: NodeStore>(
        nodes: &N,
        root: BlockPtr,
        key: &[u8],
    ) -> Result<(Self, N::Block), NodeMiss> {
        let mut path = Self { steps: [PathNode::default(); LEVELS], len: 0, found: false };
        let mut found = false;
        let leaf = path.down(nodes, root, |node| {
            let place = node.search(key);
            found = place.is_ok();
            // The first key of a branch is empty, so no key is before it.
            place.unwrap_or_else(|i| if node.level() == 0 { i } else { i - 1 })
        })?;
        path.found = found;
        Ok((path, leaf))
    }

    /// Moves to the next leaf in this direction. `None`: there is none.
    pub(super) fn turn<N: NodeStore>(
        &mut self,
        nodes: &N,
        way: IterDirection,
    ) -> Result<Option<N::Block>, NodeMiss> {
        while self.len > 1 {
            self.len -= 1;
            let step = &mut self.steps[self.len - 1];
            let block = nodes.node(step.at)?;
            let node = NodeRef(&block);
            let index = match way {
                IterDirection::On => Some(step.index + 1).filter(|index| *index < node.len()),
                IterDirection::Back => step.index.checked_sub(1),
            };
            if let Some(index) = index {
                step.index = index;
                let choose = |node: NodeRef<'_>| {
                    if way == IterDirection::On { 0 } else { node.len().saturating_sub(1) }
                };
                let next = self.down(nodes, node.child(index), choose);
                if next.is_err() && way == IterDirection::On {
                    (index + 1..node.len())
                        .take(SOON_CHILDREN_MAX)
                        .for_each(|index| nodes.soon(node.child(index)));
                }
                return next.map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the step of the leaf.
    pub(super) fn leaf(&self) -> PathNode {
        self.steps[self.len - 1]
    }

    /// Returns the branches, the root first.
    pub(super) fn branches(&self) -> &[PathNode] {
        &self.steps[..self.len - 1]
    }

    /// Descends from `at` to a leaf.
    fn down<N: NodeStore>(
        &mut self,
        nodes: &N,
        mut at: BlockPtr,
        mut choose: impl FnMut(NodeRef<'_>) -> usize,
    ) -> Result<N::Block, NodeMiss> {
        let mut above: Option<u8> = match self.len {
            0 => None,
            len => Some(NodeRef(&nodes.node(self.steps[len - 1].at)?).level()),
        };
        loop {
            let block = nodes.node(at)?;
            let node = NodeRef(&block);
            let level = node.level();
            if let Some(above) = above.filter(|above| *above != level + 1) {
                return Err(NodeMiss(at, Some(above - 1)));
            }
            above = Some(level);
            let index = choose(node);
            self.steps[self.len] = PathNode { at, index };
            self.len += 1;
            if level == 0 {
                return Ok(block);
            }
            at = node.child(index);
        }
    }
}
