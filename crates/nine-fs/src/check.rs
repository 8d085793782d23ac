//! Whether an archive is whole: its trees, its rows and slots, and that they say the same.
//!
//! In: an archive in which nothing changes meanwhile. Out: what is wrong, in words. Nothing is mended, and nothing is
//! kept but what has to be compared: for each file some hundred bytes.

use std::collections::BTreeMap;

use nine_proto::{Errno, Error, Result, mode};

use crate::archive::{Archive, errno};
use crate::cw::{TAG, Tag};
use crate::fs::ROOT;
use crate::hash::{Map, Set};
use crate::item::{Attributes, Entry, Extent, Key, Named, What};
use crate::ptr::{NEW, Ptr};
use crate::tree::node::{self, Node};

/// Faults that are told; of more there is only said that there are.
const MOST: usize = 100;

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The tree, the rows and slots; of files which blocks they have.
    Names,
    /// The content of all files too, as it lies on c and w.
    Blocks,
    /// The same of all dumps: all of w that is pointed to.
    Dumps,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// What is wrong. Nothing: it is whole.
    pub faults: Vec<String>,
    /// Inodes of the current tree.
    pub files: u64,
    /// Blocks that were read.
    pub blocks: u64,
}

impl Checked {
    fn fault(&mut self, text: impl FnOnce() -> String) {
        match self.faults.len() {
            MOST => self.faults.push("... and more".into()),
            n if n > MOST => {}
            _ => self.faults.push(text()),
        }
    }
}

/// What is known of an inode.
#[derive(Default)]
struct Known {
    it: Option<Attributes>,
    names: u32,
    subdirectories: u32,
    entries: u64,
    cookies: u64,
    blocks: u64,
    /// The block behind the last extent.
    next: u64,
    orphan: bool,
    /// Bytes of its attributes' names and values.
    xattrs: u64,
}

/// What a walk gathers.
struct Walk<'a> {
    archive: &'a Archive,
    depth: Depth,
    checked: Checked,
    files: BTreeMap<u64, Known>,
    /// Names that were seen, each by directory, cookie, inode; and those that cookies lead to.
    entries: Map<(u64, u64), u64>,
    /// Rows that something points to, of any tree.
    rows: Set<u64>,
    /// Of this tree: none is there twice.
    own: Set<u64>,
    next_worm: u64,
}

impl Archive {
    /// Looks whether all is as it must be.
    ///
    /// # Errors
    /// EAGAIN if something has changed meanwhile; EIO if nothing can be committed. What cannot be read is no error of
    /// this but a fault that it tells.
    pub async fn check(&self, depth: Depth) -> Result<Checked> {
        self.sync().await?;
        let (before, root, waiting, dumps, next_worm, usage, blocks) = {
            let state = &*self.state();
            let waiting: Vec<Ptr> = state.waiting.iter().map(|waiting| waiting.root).collect();
            let dumps: Vec<Ptr> = state.dumps.values().map(|dump| dump.record.root).collect();
            let usage: BTreeMap<u32, u64> = state.fs.usage().map(|(uid, it)| (uid, it.bytes)).collect();
            (state.moment(), state.fs.mem.root, waiting, dumps, state.next_worm, usage, state.fs.blocks)
        };
        let mut walk = Walk {
            archive: self,
            depth,
            checked: Checked::default(),
            files: BTreeMap::new(),
            entries: Map::default(),
            rows: Set::default(),
            own: Set::default(),
            next_worm,
        };
        walk.tree(root).await?;
        walk.names();
        walk.numbers(&usage, blocks, self.0.cw.block() as u64);
        walk.checked.files = walk.files.len() as u64;
        for root in waiting {
            walk.other(root).await?;
        }
        if depth == Depth::Dumps {
            for root in dumps {
                walk.other(root).await?;
            }
        }
        let Walk { mut checked, rows, .. } = walk;
        for fault in self.0.cw.check_rows(&rows).await.map_err(|error| errno(&error))? {
            checked.fault(|| fault);
        }
        match self.state().moment() == before {
            true => Ok(checked),
            false => Err(Error::new(Errno::EAGAIN, "it was changed while it was checked")),
        }
    }
}

impl Walk<'_> {
    /// Another tree: its nodes and blocks.
    async fn other(&mut self, root: Ptr) -> Result<()> {
        let archive = self.archive;
        let mut walk = Walk {
            archive,
            depth: self.depth,
            checked: std::mem::take(&mut self.checked),
            files: BTreeMap::new(),
            entries: Map::default(),
            rows: std::mem::take(&mut self.rows),
            own: Set::default(),
            next_worm: self.next_worm,
        };
        walk.tree(root).await?;
        walk.names();
        (self.checked, self.rows) = (walk.checked, walk.rows);
        Ok(())
    }

    async fn tree(&mut self, root: Ptr) -> Result<()> {
        // The nodes to come: pointer, level, bounds.
        type Next = (Ptr, Option<u8>, Vec<u8>, Option<Vec<u8>>);
        let mut next: Vec<Next> = vec![(root, None, Vec::new(), None)];
        while let Some((at, level, low, high)) = next.pop() {
            if !self.pointed(at) {
                // What is below it is known; and it could be there very often.
                continue;
            }
            let block = match self.archive.0.cached.get(at.at).await {
                Ok(block) => block,
                Err(error) => {
                    self.checked.fault(|| format!("node {:#x}: {error}", at.at));
                    continue;
                }
            };
            self.checked.blocks += 1;
            if !Tag::is_node(&block) || Tag::made(&block) != at.made {
                self.checked
                    .fault(|| format!("node {:#x} is another block than what points to it says", at.at));
                continue;
            }
            let content = &block[..block.len() - TAG];
            let node = Node(content);
            if level.is_some_and(|level| level != node.level()) || !node::within(node, &low, high.as_deref())
            {
                self.checked.fault(|| format!("node {:#x} is none of its place in the tree", at.at));
                continue;
            }
            if node.level() == 0 {
                for (key, value) in node::cells(content) {
                    self.cell(key, value).await?;
                }
                continue;
            }
            let children: Vec<(&[u8], Ptr)> = node::children(content).collect();
            for (i, (key, child)) in children.iter().enumerate().rev() {
                if child.made > at.made {
                    self.checked.fault(|| format!("node {:#x} is older than one below it", at.at));
                }
                let low = if i == 0 { low.clone() } else { key.to_vec() };
                let high = children.get(i + 1).map(|(key, _)| key.to_vec()).or_else(|| high.clone());
                next.push((*child, Some(node.level() - 1), low, high));
            }
        }
        Ok(())
    }

    /// Something points there. False: it did before.
    fn pointed(&mut self, at: Ptr) -> bool {
        match at.row() {
            Some(row) => {
                self.rows.insert(row);
            }
            None if !self.archive.0.cw.is_written(at.at, self.next_worm) => {
                self.checked
                    .fault(|| format!("something points to {} of w, where nothing is written", at.at));
            }
            None => {}
        }
        let is_first = self.own.insert(at.at);
        if !is_first {
            self.checked.fault(|| format!("block {:#x} is there twice", at.at));
        }
        is_first
    }

    async fn cell(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let Some(what) = Key::parse(key) else {
            self.checked.fault(|| format!("a key that is none: {key:02x?}"));
            return Ok(());
        };
        let mut is_right = true;
        match what {
            What::Attributes(ino) => {
                let it = Attributes::decode(value);
                is_right = it.is_some();
                self.files.entry(ino).or_default().it = it;
            }
            What::Inline(ino) => {
                let size = self.files.get(&ino).and_then(|known| known.it).map_or(0, |it| it.size);
                is_right = value.len() as u64 <= size;
            }
            What::Name(dir, _) => match Entry::decode(value) {
                Some(Entry { ino, cookie, kind }) => {
                    let known = self.files.entry(ino).or_default();
                    known.names += 1;
                    let dir_known = self.files.entry(dir).or_default();
                    dir_known.entries += 1;
                    dir_known.subdirectories += u32::from(u32::from(kind) << 12 == mode::S_IFDIR);
                    self.entries.insert((dir, cookie), ino);
                }
                None => is_right = false,
            },
            What::Cookie(dir, cookie) => match Named::decode(value) {
                Some(named) => {
                    self.files.entry(dir).or_default().cookies += 1;
                    is_right = self.entries.remove(&(dir, cookie)) == Some(named.ino);
                }
                None => is_right = false,
            },
            What::Extent(ino, block) => match Extent::decode(value) {
                Some(extent) => {
                    let known = self.files.entry(ino).or_default();
                    is_right = block >= known.next;
                    known.next = block + u64::from(extent.count);
                    known.blocks += u64::from(extent.count);
                    for n in 0..extent.count {
                        self.pointed(extent.split(n, 1).at);
                    }
                    if self.depth != Depth::Names {
                        self.read(ino, extent).await;
                    }
                }
                None => is_right = false,
            },
            What::Orphan(ino) => self.files.entry(ino).or_default().orphan = true,
            What::Dump(_) => is_right = crate::item::DumpRecord::decode(value).is_some(),
            What::Usage(_) => is_right = crate::item::Usage::decode(value).is_some(),
            What::Xattr(ino, name, piece) => {
                let name = if piece == 0 { name.len() } else { 0 };
                self.files.entry(ino).or_default().xattrs += (name + value.len()) as u64;
            }
        }
        if !is_right {
            self.checked.fault(|| format!("{what:?} makes no sense"));
        }
        Ok(())
    }

    /// Reads blocks of a file, each by itself if one is wrong.
    async fn read(&mut self, ino: u64, extent: Extent) {
        let cw = &self.archive.0.cw;
        let step = ((1 << 20) / cw.block()) as u32;
        for first in (0..extent.count).step_by(step as usize) {
            let count = step.min(extent.count - first);
            self.checked.blocks += u64::from(count);
            if cw.blocks(extent.at.at + u64::from(first), count.into()).await.is_ok() {
                continue;
            }
            for n in first..first + count {
                if let Err(error) = cw.blocks(extent.at.at + u64::from(n), 1).await {
                    self.checked.fault(|| format!("inode {ino}: {error}"));
                }
            }
        }
    }

    /// Names, links and cookies say the same.
    fn names(&mut self) {
        let content = self.archive.0.cw.block() as u64 - TAG as u64;
        let left = self.entries.len();
        if left > 0 {
            self.checked.fault(|| format!("{left} names without a cookie"));
        }
        for (ino, known) in &self.files {
            let Some(it) = known.it else {
                if !known.orphan {
                    self.checked
                        .fault(|| format!("inode {ino}: there is something of it, but no attributes"));
                }
                continue;
            };
            let links = match it.is_dir() {
                true if *ino == ROOT || known.names > 0 => 2 + known.subdirectories,
                true => 0,
                false => known.names,
            };
            if it.links != links || (it.is_dir() && known.names > 1) {
                self.checked.fault(|| format!("inode {ino}: {} links, where there are {links}", it.links));
            }
            if links == 0 && !known.orphan {
                self.checked.fault(|| format!("inode {ino}: it has no name, and nobody would remove it"));
            }
            let behind = known.next > it.size.div_ceil(content);
            if links > 0 && behind != known.orphan && !it.is_dir() {
                let text =
                    if behind { "there are blocks behind its size" } else { "it would be cut, and is" };
                self.checked.fault(|| format!("inode {ino}: {text}"));
            }
            if it.is_dir() && (it.size != known.entries || known.cookies != known.entries) {
                self.checked.fault(|| {
                    format!(
                        "inode {ino}: {} entries, {} cookies, {} said",
                        known.entries, known.cookies, it.size
                    )
                });
            }
            if it.blocks != known.blocks {
                self.checked.fault(|| format!("inode {ino}: {} blocks, {} said", known.blocks, it.blocks));
            }
        }
    }

    /// What is counted is right.
    fn numbers(&mut self, usage: &BTreeMap<u32, u64>, blocks: u64, block: u64) {
        let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
        let mut all = 0;
        for (ino, known) in &self.files {
            let Some(it) = known.it else { continue };
            all += it.blocks;
            let own = if *ino == ROOT { 0 } else { crate::fs::OWN };
            let sum = sums.entry(it.uid).or_default();
            *sum = sum.saturating_add(own + it.blocks * block + known.xattrs);
        }
        if all != blocks {
            self.checked.fault(|| format!("{all} blocks of files, {blocks} said"));
        }
        for (uid, bytes) in &sums {
            let said = usage.get(uid).copied().unwrap_or(0);
            if said != *bytes {
                self.checked.fault(|| format!("user {uid}: {bytes} bytes, {said} said"));
            }
        }
    }
}

impl crate::cw::Cw {
    /// Whether rows and slots are used exactly where something points to them.
    async fn check_rows(&self, pointed: &Set<u64>) -> nine_block::Result<Vec<String>> {
        let mut faults = Vec::new();
        let mut slots = Set::default();
        for row in self.used_rows() {
            let place = self.place_of(row).await?;
            let is_forwarded = self.worm_of(row).await?.is_some();
            match place {
                Some(slot) if !slots.insert(slot) => faults.push(format!("slot {slot} is used twice")),
                Some(slot) if self.in_place() && !self.is_written(slot, 0) => {
                    faults.push(format!("row {row} is in place {slot}, which is free"));
                }
                _ => {}
            }
            if !pointed.contains(&row) && !is_forwarded {
                faults.push(format!("nothing points to row {row} ({:#x})", NEW + row));
            }
        }
        let used: Set<u64> = self.used_rows().into_iter().collect();
        for row in pointed {
            if !used.contains(row) {
                faults.push(format!("something points to row {row}, which is free"));
            }
        }
        // In place those that dumps have are used too.
        let (_, said) = self.slots();
        if said != slots.len() as u64 {
            faults.push(format!("{} slots are used, {said} said", slots.len()));
        }
        Ok(faults)
    }
}
