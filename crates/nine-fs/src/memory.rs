//! Blocks in memory: changed blocks that no commit has taken yet, the blocks of the commit in progress, and all others
//! in the block cache.
//!
//! In: reads and changes of blocks. Out: the blocks, or which of them are missing; at a commit all changed blocks.
//!
//! Always holds: a block of an older generation is never changed, but replaced by a new one. All changes made between
//! two commits are in the second one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use nine_block::Cached;

use crate::cw::{BlockKind, BlockTag, ChangedBlock, Cw, TAG};
use crate::hash::FixedMap;
use crate::ptr::{BlockPtr, NEW};
use crate::tree::node::NodeRef;
use crate::tree::{NodeMiss, NodeStore};

/// The blocks of an archive that are in memory.
pub(crate) struct BlockMemory {
    pub(crate) cw: Cw,
    pub(crate) cached: Cached,
    /// The current generation.
    pub(crate) generation: u32,
    /// The root of the tree.
    pub(crate) root: BlockPtr,
    /// Blocks changed since the last commit began.
    open: FixedMap<u64, OpenBlock>,
    /// Blocks of the commit in progress.
    closing: FixedMap<u64, Bytes>,
    /// Freed blocks that commits know.
    freed: Vec<u64>,
    /// Blocks that the present operation has read. They stay until it ends.
    pins: RefCell<FixedMap<u64, Bytes>>,
    /// Nodes that the present operation will probably need after the one it has missed.
    soon: RefCell<Vec<BlockPtr>>,
    /// A read-ahead is due; it begins when the lock is released.
    ahead: Cell<bool>,
    /// Addresses whose blocks have changed or been freed, with the stamp of the change. They reach back to the oldest
    /// fetch.
    stale: FixedMap<u64, u64>,
    /// Rises with each entry of `stale`.
    stamp: u64,
    /// Fetches in progress, by the stamp at which they began.
    fetching: BTreeMap<u64, usize>,
    /// The number of entries of `stale` at which old ones are discarded.
    stale_most: usize,
}

/// Entries of `stale` that are always allowed.
const STALE: usize = 4096;

struct OpenBlock {
    block: Arc<Vec<u8>>,
    kind: BlockKind,
    made: u32,
    owner: u64,
    index: u64,
    /// An earlier commit has an older version of it.
    known: bool,
}

/// The content of a block, without its tag.
pub(crate) enum BlockContent {
    Open(Arc<Vec<u8>>),
    Kept(Bytes),
}

impl Deref for BlockContent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let block: &[u8] = match self {
            Self::Open(block) => block,
            Self::Kept(block) => block,
        };
        &block[..block.len() - TAG]
    }
}

impl BlockContent {
    /// Returns whether the tag says that it is a node.
    fn is_node(&self) -> bool {
        match self {
            Self::Open(block) => BlockTag::is_node(block),
            Self::Kept(block) => BlockTag::is_node(block),
        }
    }

    /// Returns a range of bytes; without copying, if the block cannot change.
    pub(crate) fn slice(&self, from: usize, to: usize) -> Bytes {
        match self {
            Self::Open(block) => Bytes::copy_from_slice(&block[from..to]),
            Self::Kept(block) => block.slice(from..to),
        }
    }
}

impl BlockMemory {
    pub(crate) fn new(cw: Cw, cached: Cached) -> Self {
        let fields = cw.fields();
        Self {
            cw,
            cached,
            generation: fields.generation,
            root: fields.root,
            open: FixedMap::default(),
            closing: FixedMap::default(),
            freed: Vec::new(),
            pins: RefCell::default(),
            soon: RefCell::default(),
            ahead: Cell::new(false),
            stale: FixedMap::default(),
            stamp: 0,
            fetching: BTreeMap::new(),
            stale_most: STALE,
        }
    }

    /// Begins a fetch of blocks. Its blocks are valid as of the returned stamp, and may become stale.
    pub(crate) fn begin_fetch(&mut self) -> u64 {
        *self.fetching.entry(self.stamp).or_default() += 1;
        self.stamp
    }

    /// Returns the stamp as of which blocks read from now on are valid.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Ends the fetch that has begun at this stamp.
    pub(crate) fn end_fetch(&mut self, stamp: u64) {
        if let Some(count) = self.fetching.get_mut(&stamp) {
            *count -= 1;
            if *count == 0 {
                self.fetching.remove(&stamp);
            }
        }
        if self.fetching.is_empty() {
            self.stale.clear();
        }
    }

    /// Returns whether the block at `at` may have changed since the stamp `since`.
    pub(crate) fn is_stale(&self, at: u64, since: u64) -> bool {
        self.stale.get(&at).is_some_and(|stamp| *stamp > since)
    }

    /// Marks blocks that were fetched from this address as stale.
    pub(crate) fn give_up(&mut self, at: u64) {
        let Some(oldest) = self.fetching.keys().next() else { return };
        self.stamp += 1;
        self.stale.insert(at, self.stamp);
        if self.stale.len() > self.stale_most {
            self.stale.retain(|_, stamp| *stamp > *oldest);
            self.stale_most = STALE.max(2 * self.stale.len());
        }
    }

    /// Returns the bytes of a block's content.
    pub(crate) fn content(&self) -> usize {
        self.cw.block() - TAG
    }

    /// Returns the free slots that the commit in progress and the next one will take.
    pub(crate) fn promised(&self) -> u64 {
        self.cw.promised()
    }

    /// Returns how many blocks have changed since the last commit began, and how many will be freed.
    pub(crate) fn changed(&self) -> (usize, usize) {
        (self.open.len(), self.freed.len())
    }

    /// Returns whether no block has changed or been freed.
    pub(crate) fn is_clean(&self) -> bool {
        self.open.is_empty() && self.freed.is_empty()
    }

    /// Releases the blocks of the operation that has ended. `have` are those at hand for the next.
    pub(crate) fn unpin(&mut self, have: impl IntoIterator<Item = (u64, Bytes)>) {
        let pins = self.pins.get_mut();
        pins.clear();
        pins.extend(have);
    }

    /// Returns a block, if it is in memory, and pins it until the present operation ends.
    pub(crate) fn get(&self, at: BlockPtr) -> Result<BlockContent, NodeMiss> {
        if let Some(block) = self.own(at) {
            return Ok(block);
        }
        let block = self.kept(at)?;
        self.pins.borrow_mut().insert(at.at, block.clone());
        Ok(BlockContent::Kept(block))
    }

    /// Returns a block, if it is in memory, without pinning it.
    pub(crate) fn glance(&self, at: BlockPtr) -> Result<BlockContent, NodeMiss> {
        self.own(at).map_or_else(|| self.kept(at).map(BlockContent::Kept), Ok)
    }

    /// Returns a changed or pinned block.
    fn own(&self, at: BlockPtr) -> Option<BlockContent> {
        if let Some(open) = self.open.get(&at.at) {
            return Some(BlockContent::Open(open.block.clone()));
        }
        let kept = self.closing.get(&at.at).cloned().or_else(|| self.pins.borrow().get(&at.at).cloned());
        kept.map(BlockContent::Kept)
    }

    /// Returns a block from the block cache.
    fn kept(&self, at: BlockPtr) -> Result<Bytes, NodeMiss> {
        let (block, ahead) = self.cached.glance(at.at).ok_or(NodeMiss(at, None))?;
        if ahead {
            self.ahead.set(true);
        }
        Ok(block)
    }

    /// Takes the list of nodes that will be needed soon.
    pub(crate) fn takes_soon(&self) -> Vec<BlockPtr> {
        self.soon.take()
    }

    /// Returns whether a read-ahead is due, and resets that.
    pub(crate) fn takes_ahead(&self) -> bool {
        self.ahead.take()
    }

    /// Returns whether the block may be changed in place.
    pub(crate) fn is_current(&self, at: BlockPtr) -> bool {
        at.at >= NEW && at.made == self.generation
    }

    /// The same for a file's block. Without a cache device it also must not be in any commit yet, so that consecutive
    /// blocks are still adjacent when they are dumped.
    pub(crate) fn may_change(&self, at: BlockPtr) -> bool {
        self.is_current(at) && (!self.cw.in_place() || self.open.contains_key(&at.at))
    }

    /// Creates a block of zeros, at the address after `near` if possible.
    ///
    /// # Panics
    /// If no row is free. The caller must have checked for room.
    pub(crate) fn grow(
        &mut self,
        near: Option<u64>,
        kind: BlockKind,
        owner: u64,
        index: u64,
    ) -> (BlockPtr, &mut [u8]) {
        // Blocks of one commit lie together, so consecutive addresses must not span two commits.
        let follows = |near: u64| self.open.contains_key(&near) && crate::cw::follows(near + 1);
        let apart = self.cw.in_place() && near.is_some_and(|near| !follows(near));
        let at = self.cw.grow(near, apart).expect("there was room before this began");
        let at = BlockPtr { at, made: self.generation };
        let block = vec![0; self.cw.block()];
        let content = self.content();
        let open = self.insert(at, block, (kind, owner, index), false);
        (at, &mut Arc::get_mut(&mut open.block).expect("it is new")[..content])
    }

    fn insert(
        &mut self,
        at: BlockPtr,
        block: Vec<u8>,
        (kind, owner, index): (BlockKind, u64, u64),
        known: bool,
    ) -> &mut OpenBlock {
        let mut block = block;
        let tag = BlockTag { kind, made: at.made, at: at.at, owner, index };
        tag.put(&mut block, self.cw.identity());
        let open = OpenBlock { block: Arc::new(block), kind, made: at.made, owner, index, known };
        self.pins.get_mut().remove(&at.at);
        self.open.insert(at.at, open);
        self.cw.promise(1);
        self.open.get_mut(&at.at).expect("it was put there")
    }

    /// Returns a block of the current generation for changing. With `whole` its old content is not read.
    pub(crate) fn change(
        &mut self,
        at: BlockPtr,
        what: (BlockKind, u64, u64),
        whole: bool,
    ) -> Result<&mut [u8], NodeMiss> {
        debug_assert!(self.is_current(at), "what is older is never changed");
        let content = self.content();
        if !self.open.contains_key(&at.at) {
            let mut block = vec![0; self.cw.block()];
            if !whole {
                let old = self.get(at)?;
                block[..content].copy_from_slice(&old);
            }
            self.insert(at, block, what, true);
        }
        let open = self.open.get_mut(&at.at).expect("it is there by now");
        Ok(&mut Arc::make_mut(&mut open.block)[..content])
    }

    /// Frees a block that nothing points to any more.
    pub(crate) fn free(&mut self, at: BlockPtr) {
        if !self.is_current(at) {
            return;
        }
        self.give_up(at.at);
        let open = self.open.remove(&at.at);
        self.cw.break_promise(u64::from(open.is_some()));
        match open {
            Some(open) if !open.known => self.cw.forget(at.at),
            _ => {
                self.freed.push(at.at);
                self.closing.remove(&at.at);
                self.cached.forget(at.at);
            }
        }
    }

    /// Takes all changed and freed blocks for a commit: first files' blocks in file order, then nodes. They stay
    /// readable until [`closed`](Self::closed).
    pub(crate) fn close(&mut self) -> (Vec<ChangedBlock>, Vec<u64>) {
        assert!(self.closing.is_empty(), "one commit at a time");
        let mut blocks: Vec<ChangedBlock> = Vec::with_capacity(self.open.len());
        for (at, open) in std::mem::take(&mut self.open) {
            // Fetches of the old content must be repeated.
            self.give_up(at);
            let block = Arc::try_unwrap(open.block).unwrap_or_else(|shared| shared.to_vec());
            let at = BlockPtr { at, made: open.made };
            let OpenBlock { kind, owner, index, .. } = open;
            blocks.push(ChangedBlock { at, kind, owner, index, block: block.into() });
        }
        blocks.sort_unstable_by_key(|it| (it.kind != BlockKind::File, it.owner, it.index, it.at.at));
        self.closing = blocks.iter().map(|it| (it.at.at, it.block.clone())).collect();
        (blocks, std::mem::take(&mut self.freed))
    }

    /// Ends a durable commit. `places` are addresses of w that dumps now use. In place the block cache may hold older
    /// blocks from there, by read-ahead.
    pub(crate) fn closed(&mut self, places: impl Iterator<Item = u64>) {
        if self.cw.in_place() {
            places.for_each(|place| self.cached.forget(place));
        }
        for (at, block) in self.closing.drain() {
            self.cached.keep(at, block);
        }
    }
}

/// Returns the inode in a node's first key.
pub(crate) fn owner(content: &[u8]) -> u64 {
    let node = NodeRef(content);
    let first = usize::from(node.level() > 0);
    let key = if first < node.len() { node.key(first) } else { &[] };
    key.first_chunk().map_or(0, |ino| u64::from_be_bytes(*ino))
}

/// Returns the kind of a node at this level.
fn kind_of(level: u8) -> BlockKind {
    if level == 0 { BlockKind::Leaf } else { BlockKind::Branch }
}

impl NodeStore for BlockMemory {
    type Block = BlockContent;

    fn node(&self, at: BlockPtr) -> Result<BlockContent, NodeMiss> {
        // A block that is no node counts as missing. Its fetch then reports the error.
        self.get(at).and_then(|block| if block.is_node() { Ok(block) } else { Err(NodeMiss(at, None)) })
    }

    fn soon(&self, at: BlockPtr) {
        if self.own(at).is_none() {
            self.soon.borrow_mut().push(at);
        }
    }

    fn node_mut(&mut self, at: BlockPtr) -> Result<(BlockPtr, &mut [u8]), NodeMiss> {
        let old = self.node(at)?;
        let level = NodeRef(&old).level();
        let what = (kind_of(level), owner(&old), u64::from(level));
        if self.is_current(at) {
            drop(old);
            return Ok((at, self.change(at, what, false)?));
        }
        let (to, content) = self.grow(None, what.0, what.1, what.2);
        content.copy_from_slice(&old);
        Ok((to, content))
    }

    fn new_node(&mut self, level: u8, owner: u64) -> (BlockPtr, &mut [u8]) {
        self.grow(None, kind_of(level), owner, u64::from(level))
    }

    fn free_node(&mut self, at: BlockPtr) {
        self.free(at);
    }
}
