//! Checks the structure of a tree.
//!
//! In: its root. Out: its statistics, or the first violation. Nodes may have any bytes.

use std::collections::HashSet;

use super::node::{self, NodeRef};
use super::{NodeMiss, NodeStore};
use crate::ptr::BlockPtr;

/// The statistics of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeStats {
    /// Levels from the root down to the leaves.
    pub(crate) levels: u64,
    /// Number of leaves.
    pub(crate) leaves: u64,
    /// Number of branches.
    pub(crate) branches: u64,
    /// Cells of all leaves.
    pub(crate) cells: u64,
    /// Bytes of leaves that cells and their offsets take.
    pub(crate) used: u64,
    /// Bytes of leaves available to cells and their offsets.
    pub(crate) room: u64,
}

/// Why a check of a tree has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TreeFault {
    /// A node is not in memory.
    Miss(NodeMiss),
    /// This node is invalid.
    Wrong(BlockPtr, &'static str),
}

impl From<NodeMiss> for TreeFault {
    fn from(miss: NodeMiss) -> Self {
        Self::Miss(miss)
    }
}

/// Checks a whole tree. Every node is valid, and its keys are within the bounds that its parent gives. Each level is
/// one lower than that above, down to leaves at 0, of which only the root may be empty. No child is of a later
/// generation than its parent. No node occurs twice.
pub(crate) fn check<N: NodeStore>(nodes: &N, root: BlockPtr) -> Result<TreeStats, TreeFault> {
    let block = nodes.node(root)?;
    if block.len() < node::NODE_HEAD_LEN {
        return Err(TreeFault::Wrong(root, "no size of a node"));
    }
    let level = NodeRef(&block).level();
    let stats = TreeStats { levels: u64::from(level) + 1, ..TreeStats::default() };
    let mut check = NodeCheck { nodes, root, seen: HashSet::new(), stats };
    check.node(root, level, &[], None)?;
    Ok(check.stats)
}

struct NodeCheck<'a, N> {
    nodes: &'a N,
    root: BlockPtr,
    seen: HashSet<u64>,
    stats: TreeStats,
}

impl<N: NodeStore> NodeCheck<'_, N> {
    fn node(&mut self, at: BlockPtr, level: u8, low: &[u8], high: Option<&[u8]>) -> Result<(), TreeFault> {
        let wrong = |what| TreeFault::Wrong(at, what);
        let block = self.nodes.node(at)?;
        node::check(&block, level == 0).map_err(wrong)?;
        let node = NodeRef(&block);
        if node.level() != level {
            return Err(wrong("a wrong level"));
        }
        if !self.seen.insert(at.at) {
            return Err(wrong("a node that is there twice"));
        }
        if !node::within(node, low, high) {
            return Err(wrong("keys beyond the bounds that its parent gives"));
        }
        if node.len() == 0 && at != self.root {
            return Err(wrong("a leaf without cells"));
        }
        if level == 0 {
            self.stats.leaves += 1;
            self.stats.cells += node.len() as u64;
            self.stats.used += node.used() as u64;
            self.stats.room += node.room() as u64;
            return Ok(());
        }
        self.stats.branches += 1;
        for i in 0..node.len() {
            let child = node.child(i);
            if child.made > at.made {
                return Err(wrong("a child of a later generation"));
            }
            let low = if i == 0 { low } else { node.key(i) };
            let high = if i + 1 == node.len() { high } else { Some(node.key(i + 1)) };
            self.node(child, level - 1, low, high)?;
        }
        Ok(())
    }
}
