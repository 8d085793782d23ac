//! A path from the root to a leaf.
//!
//! In: a key, then a direction. Out: one leaf after the other, and the child that was taken in each branch above.
//!
//! Always holds: each node is one level lower than the one before it, or an error is returned. So a path ends.

use super::node::{LEVELS, Node};
use super::{Miss, Nodes};
use crate::ptr::Ptr;

/// The nodes of the path, the root first.
pub(super) struct Path {
    steps: [Step; LEVELS],
    len: usize,
    /// Whether the leaf has the key.
    pub(super) found: bool,
}

/// A node of the path.
#[derive(Clone, Copy, Default)]
pub(super) struct Step {
    /// Its address.
    pub(super) at: Ptr,
    /// The child that was taken; in the leaf the first cell that is not before the key.
    pub(super) index: usize,
}

/// Number of children after a missing one that are reported to [`Nodes::soon`].
const SOON: usize = 31;

/// The direction of an iteration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    On,
    Back,
}

impl Path {
    /// Descends to the leaf that has the key, or would have it.
    pub(super) fn to<N: Nodes>(nodes: &N, root: Ptr, key: &[u8]) -> Result<(Self, N::Block), Miss> {
        let mut path = Self { steps: [Step::default(); LEVELS], len: 0, found: false };
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
    pub(super) fn turn<N: Nodes>(&mut self, nodes: &N, way: Way) -> Result<Option<N::Block>, Miss> {
        while self.len > 1 {
            self.len -= 1;
            let step = &mut self.steps[self.len - 1];
            let block = nodes.node(step.at)?;
            let node = Node(&block);
            let index = match way {
                Way::On => Some(step.index + 1).filter(|index| *index < node.len()),
                Way::Back => step.index.checked_sub(1),
            };
            if let Some(index) = index {
                step.index = index;
                let choose = |node: Node<'_>| if way == Way::On { 0 } else { node.len().saturating_sub(1) };
                let next = self.down(nodes, node.child(index), choose);
                if next.is_err() && way == Way::On {
                    (index + 1..node.len()).take(SOON).for_each(|index| nodes.soon(node.child(index)));
                }
                return next.map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the step of the leaf.
    pub(super) fn leaf(&self) -> Step {
        self.steps[self.len - 1]
    }

    /// Returns the branches, the root first.
    pub(super) fn branches(&self) -> &[Step] {
        &self.steps[..self.len - 1]
    }

    /// Descends from `at` to a leaf.
    fn down<N: Nodes>(
        &mut self,
        nodes: &N,
        mut at: Ptr,
        mut choose: impl FnMut(Node<'_>) -> usize,
    ) -> Result<N::Block, Miss> {
        let mut above: Option<u8> = match self.len {
            0 => None,
            len => Some(Node(&nodes.node(self.steps[len - 1].at)?).level()),
        };
        loop {
            let block = nodes.node(at)?;
            let node = Node(&block);
            let level = node.level();
            if let Some(above) = above.filter(|above| *above != level + 1) {
                return Err(Miss(at, Some(above - 1)));
            }
            above = Some(level);
            let index = choose(node);
            self.steps[self.len] = Step { at, index };
            self.len += 1;
            if level == 0 {
                return Ok(block);
            }
            at = node.child(index);
        }
    }
}
