//! Blocks in memory: what has changed and no commit has taken yet, what a commit has in hand, and what the block cache
//! has of the rest.
//!
//! In: blocks that are wanted or changed. Out: them, or which are not here; at a commit all that has changed.
//!
//! Always holds: a block of an older generation is never changed, it gets a successor; all changes between two commits
//! are in one of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use nine_block::Cached;

use crate::cw::{Changed, Cw, Kind, TAG, Tag};
use crate::hash::Map;
use crate::ptr::{NEW, Ptr};
use crate::tree::node::Node;
use crate::tree::{Miss, Nodes};

/// See the module.
pub(crate) struct Memory {
    pub(crate) cw: Cw,
    pub(crate) cached: Cached,
    /// The current one.
    pub(crate) generation: u32,
    /// The root of the tree.
    pub(crate) root: Ptr,
    /// Changed since the last commit began.
    open: Map<u64, Open>,
    /// What the commit under way has.
    closing: Map<u64, Bytes>,
    /// Known to commits, and not wanted any more.
    freed: Vec<u64>,
    /// What the operation that is at work has seen: it stays until that ends.
    pins: RefCell<Map<u64, Bytes>>,
    /// Nodes that will be wanted behind the one that the operation at work has missed.
    soon: RefCell<Vec<Ptr>>,
    /// There is something to be read ahead, by whoever has let go of the lock.
    ahead: Cell<bool>,
    /// Addresses whose blocks have changed or are others' by now, and when; as far back as somebody fetches blocks.
    stale: Map<u64, u64>,
    /// Rises with each of these.
    stamp: u64,
    /// Those who fetch, by the stamp at which they began.
    fetching: BTreeMap<u64, usize>,
    /// Addresses that are remembered before those that nobody needs are forgotten.
    stale_most: usize,
}

/// Addresses that are always remembered.
const STALE: usize = 4096;

struct Open {
    block: Arc<Vec<u8>>,
    kind: Kind,
    made: u32,
    owner: u64,
    index: u64,
    /// A commit has it already, in an older version.
    known: bool,
}

/// A block's content, without its tag.
pub(crate) enum Block {
    Open(Arc<Vec<u8>>),
    Kept(Bytes),
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let block: &[u8] = match self {
            Self::Open(block) => block,
            Self::Kept(block) => block,
        };
        &block[..block.len() - TAG]
    }
}

impl Block {
    /// Whether it is a node of the tree.
    fn is_node(&self) -> bool {
        match self {
            Self::Open(block) => Tag::is_node(block),
            Self::Kept(block) => Tag::is_node(block),
        }
    }

    /// These bytes of it: without a copy, if nobody will change them.
    pub(crate) fn slice(&self, from: usize, to: usize) -> Bytes {
        match self {
            Self::Open(block) => Bytes::copy_from_slice(&block[from..to]),
            Self::Kept(block) => block.slice(from..to),
        }
    }
}

impl Memory {
    pub(crate) fn new(cw: Cw, cached: Cached) -> Self {
        let fields = cw.fields();
        Self {
            cw,
            cached,
            generation: fields.generation,
            root: fields.root,
            open: Map::default(),
            closing: Map::default(),
            freed: Vec::new(),
            pins: RefCell::default(),
            soon: RefCell::default(),
            ahead: Cell::new(false),
            stale: Map::default(),
            stamp: 0,
            fetching: BTreeMap::new(),
            stale_most: STALE,
        }
    }

    /// Somebody fetches blocks from now on: what he fetches is as of this stamp, and may be stale later.
    pub(crate) fn begin_fetch(&mut self) -> u64 {
        *self.fetching.entry(self.stamp).or_default() += 1;
        self.stamp
    }

    /// What is read from now on is right as of this.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// He has ended.
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

    /// Whether the block that was fetched from there since may be another by now.
    pub(crate) fn is_stale(&self, at: u64, since: u64) -> bool {
        self.stale.get(&at).is_some_and(|stamp| *stamp > since)
    }

    /// What was read from there is not what is there.
    pub(crate) fn give_up(&mut self, at: u64) {
        let Some(oldest) = self.fetching.keys().next() else { return };
        self.stamp += 1;
        self.stale.insert(at, self.stamp);
        if self.stale.len() > self.stale_most {
            self.stale.retain(|_, stamp| *stamp > *oldest);
            self.stale_most = STALE.max(2 * self.stale.len());
        }
    }

    /// Bytes of a block's content.
    pub(crate) fn content(&self) -> usize {
        self.cw.block() - TAG
    }

    /// Slots that commits will take of those that are free: the next one, and the one under way until it has.
    pub(crate) fn promised(&self) -> u64 {
        self.cw.promised()
    }

    /// Blocks that have changed since the last commit began, and blocks that are to be freed with them.
    pub(crate) fn changed(&self) -> (usize, usize) {
        (self.open.len(), self.freed.len())
    }

    /// Whether there is nothing to commit.
    pub(crate) fn is_clean(&self) -> bool {
        self.open.is_empty() && self.freed.is_empty()
    }

    /// The operation at work has ended, or begins anew with these at hand.
    pub(crate) fn unpin(&mut self, have: impl IntoIterator<Item = (u64, Bytes)>) {
        let pins = self.pins.get_mut();
        pins.clear();
        pins.extend(have);
    }

    /// A block, if it is in memory; it stays until the operation at work has ended.
    pub(crate) fn get(&self, at: Ptr) -> Result<Block, Miss> {
        if let Some(block) = self.own(at) {
            return Ok(block);
        }
        let block = self.kept(at)?;
        self.pins.borrow_mut().insert(at.at, block.clone());
        Ok(Block::Kept(block))
    }

    /// A block, if it is in memory; it may go at once.
    pub(crate) fn glance(&self, at: Ptr) -> Result<Block, Miss> {
        self.own(at).map_or_else(|| self.kept(at).map(Block::Kept), Ok)
    }

    /// What has changed, or is pinned.
    fn own(&self, at: Ptr) -> Option<Block> {
        if let Some(open) = self.open.get(&at.at) {
            return Some(Block::Open(open.block.clone()));
        }
        let kept = self.closing.get(&at.at).cloned().or_else(|| self.pins.borrow().get(&at.at).cloned());
        kept.map(Block::Kept)
    }

    /// What the block cache has.
    fn kept(&self, at: Ptr) -> Result<Bytes, Miss> {
        let (block, ahead) = self.cached.glance(at.at).ok_or(Miss(at, None))?;
        if ahead {
            self.ahead.set(true);
        }
        Ok(block)
    }

    /// What will be wanted behind the node that was missed: said once.
    pub(crate) fn takes_soon(&self) -> Vec<Ptr> {
        self.soon.take()
    }

    /// Whether there is something to be read ahead: said once.
    pub(crate) fn takes_ahead(&self) -> bool {
        self.ahead.take()
    }

    /// Whether it may be changed where it is.
    pub(crate) fn is_current(&self, at: Ptr) -> bool {
        at.at >= NEW && at.made == self.generation
    }

    /// The same of a block of a file: without a cache device none that a commit has is written again, so that what
    /// follows one another lies beside each other when it is dumped.
    pub(crate) fn may_change(&self, at: Ptr) -> bool {
        self.is_current(at) && (!self.cw.in_place() || self.open.contains_key(&at.at))
    }

    /// A new block, all zeros, beside another one if possible.
    ///
    /// # Panics
    /// If there are no rows: who makes blocks has asked for room before.
    pub(crate) fn grow(&mut self, near: Option<u64>, kind: Kind, owner: u64, index: u64) -> (Ptr, &mut [u8]) {
        // What is written together lies together: the addresses of no two commits follow one another.
        let follows = |near: u64| self.open.contains_key(&near) && crate::cw::follows(near + 1);
        let apart = self.cw.in_place() && near.is_some_and(|near| !follows(near));
        let at = self.cw.grow(near, apart).expect("there was room before this began");
        let at = Ptr { at, made: self.generation };
        let block = vec![0; self.cw.block()];
        let content = self.content();
        let open = self.insert(at, block, (kind, owner, index), false);
        (at, &mut Arc::get_mut(&mut open.block).expect("it is new")[..content])
    }

    fn insert(
        &mut self,
        at: Ptr,
        block: Vec<u8>,
        (kind, owner, index): (Kind, u64, u64),
        known: bool,
    ) -> &mut Open {
        let mut block = block;
        let tag = Tag { kind, made: at.made, at: at.at, owner, index };
        tag.put(&mut block, self.cw.identity());
        let open = Open { block: Arc::new(block), kind, made: at.made, owner, index, known };
        self.pins.get_mut().remove(&at.at);
        self.open.insert(at.at, open);
        self.cw.promise(1);
        self.open.get_mut(&at.at).expect("it was put there")
    }

    /// A block of the current generation, to be changed where it is; `whole`: what it has now does not matter.
    pub(crate) fn change(&mut self, at: Ptr, what: (Kind, u64, u64), whole: bool) -> Result<&mut [u8], Miss> {
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

    /// Nothing points to this block any more.
    pub(crate) fn free(&mut self, at: Ptr) {
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

    /// All that has changed, for a commit: data in the order of files, then nodes. It can be read until
    /// [`closed`](Self::closed).
    pub(crate) fn close(&mut self) -> (Vec<Changed>, Vec<u64>) {
        assert!(self.closing.is_empty(), "one commit at a time");
        let mut blocks: Vec<Changed> = Vec::with_capacity(self.open.len());
        for (at, open) in std::mem::take(&mut self.open) {
            // Who has fetched what was there before must fetch it again.
            self.give_up(at);
            let block = Arc::try_unwrap(open.block).unwrap_or_else(|shared| shared.to_vec());
            let at = Ptr { at, made: open.made };
            let Open { kind, owner, index, .. } = open;
            blocks.push(Changed { at, kind, owner, index, block: block.into() });
        }
        blocks.sort_unstable_by_key(|it| (it.kind != Kind::File, it.owner, it.index, it.at.at));
        self.closing = blocks.iter().map(|it| (it.at.at, it.block.clone())).collect();
        (blocks, std::mem::take(&mut self.freed))
    }

    /// The commit is durable. Dumps have these places from now on: without a cache device somebody else may have had
    /// them, and what he had may have been read ahead.
    pub(crate) fn closed(&mut self, places: impl Iterator<Item = u64>) {
        if self.cw.in_place() {
            places.for_each(|place| self.cached.forget(place));
        }
        for (at, block) in self.closing.drain() {
            self.cached.keep(at, block);
        }
    }
}

/// The inode of a node's first key.
pub(crate) fn owner(content: &[u8]) -> u64 {
    let node = Node(content);
    let first = usize::from(node.level() > 0);
    let key = if first < node.len() { node.key(first) } else { &[] };
    key.first_chunk().map_or(0, |ino| u64::from_be_bytes(*ino))
}

/// The kind of a node of this level.
fn kind_of(level: u8) -> Kind {
    if level == 0 { Kind::Leaf } else { Kind::Branch }
}

impl Nodes for Memory {
    type Block = Block;

    fn node(&self, at: Ptr) -> Result<Block, Miss> {
        // What is no node is asked for again: then it is an error of whoever fetches it.
        self.get(at).and_then(|block| if block.is_node() { Ok(block) } else { Err(Miss(at, None)) })
    }

    fn soon(&self, at: Ptr) {
        if self.own(at).is_none() {
            self.soon.borrow_mut().push(at);
        }
    }

    fn node_mut(&mut self, at: Ptr) -> Result<(Ptr, &mut [u8]), Miss> {
        let old = self.node(at)?;
        let level = Node(&old).level();
        let what = (kind_of(level), owner(&old), u64::from(level));
        if self.is_current(at) {
            drop(old);
            return Ok((at, self.change(at, what, false)?));
        }
        let (to, content) = self.grow(None, what.0, what.1, what.2);
        content.copy_from_slice(&old);
        Ok((to, content))
    }

    fn new_node(&mut self, level: u8, owner: u64) -> (Ptr, &mut [u8]) {
        self.grow(None, kind_of(level), owner, u64::from(level))
    }

    fn free_node(&mut self, at: Ptr) {
        self.free(at);
    }
}
