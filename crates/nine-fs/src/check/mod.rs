//! Checks an archive: its trees, its rows and slots, and their agreement.
//!
//! In: a snapshot of the last commit, held while clients go on (cw's `hold`). Out: messages about each fault, and
//! possible repairs. A check changes nothing. It stores only data that it must compare: about a hundred bytes for each
//! file.

mod mend;
mod rows;

use std::collections::BTreeMap;

use nine_io::server::acl::AclKind;
use nine_proto::{Errno, Error, Result, mode};

use crate::archive::Archive;
use crate::cw::{BlockTag, CommitSnapshot, TAG};
use crate::fs::ROOT;
use crate::hash::FixedMap;
use crate::item::{
    ACCESS_ACL, CookieEntry, DEFAULT_ACL, DecodedKey, FileExtent, InodeAttributes, ItemKey, NameEntry,
};
use crate::ptr::BlockPtr;
use crate::tree::node::{self, NodeRef};

pub use mend::Repaired;
pub(crate) use mend::TreeRepair;

/// Maximum number of faults reported. Beyond that only their existence is.
const FAULTS_MAX: usize = 100;
/// Maximum number of repairs returned; the next check finds the others.
const MENDS_MAX: usize = 10_000;
/// The limit of counters.
const COUNT_MAX: u64 = (1 << 63) - 1;
/// Bytes that are read between two pauses.
const CHECK_READ_LEN: u64 = 128 << 10;
/// Maximum number of dumps searched for an older version of a lost block, newest first.
const DUMPS: usize = 64;

/// How much is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// The present tree: names, links, counts.
    Quick,
    /// Also the trees of waiting dumps, the rows and the slots; of files only which blocks they have.
    Names,
    /// Also the content of all files, on c and on w.
    Blocks,
    /// Also all dumps: all of w that anything points to.
    Dumps,
}

/// The findings of a check.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Descriptions of the faults. If there are none, the archive is sound.
    pub faults: Vec<String>,
    /// Inodes of the present tree.
    pub files: u64,
    /// Blocks that were read.
    pub blocks: u64,
    /// The depth of the check; `None` before it has begun.
    pub depth: Option<Depth>,
    /// Possible repairs.
    pub(crate) mends: Vec<TreeRepair>,
}

impl Checked {
    fn fault(&mut self, text: impl FnOnce() -> String) {
        match self.faults.len() {
            FAULTS_MAX => self.faults.push("... and more".into()),
            n if n > FAULTS_MAX => {}
            _ => self.faults.push(text()),
        }
    }

    fn mend(&mut self, mend: TreeRepair) {
        if self.mends.len() < MENDS_MAX && !self.mends.contains(&mend) {
            self.mends.push(mend);
        }
    }

    /// Returns a summary in one line.
    pub fn said(&self) -> String {
        let Self { faults, files, blocks, depth, .. } = self;
        let skipped = match depth {
            Some(Depth::Dumps) => "",
            Some(Depth::Blocks) => ", dumps not looked at (--dumps)",
            _ => ", content and dumps not looked at (--blocks, --dumps)",
        };
        let verdict = match faults.len() {
            0 if skipped.is_empty() => "it is whole".into(),
            0 => "what was looked at is whole".into(),
            n if n > FAULTS_MAX => format!("more than {FAULTS_MAX} faults"),
            n => format!("{n} faults"),
        };
        format!("{files} files, {blocks} blocks read{skipped}: {verdict}")
    }
}

/// A directory entry: directory and cookie.
type EntryPosition = (u64, u64);

/// The data collected about an inode.
#[derive(Default)]
struct InodeFacts {
    it: Option<InodeAttributes>,
    /// There are items of the inode itself, not only names that lead to it.
    is_there: bool,
    has_names: bool,
    names: u32,
    /// The first of its names; for directories also all others.
    first: EntryPosition,
    more: Vec<EntryPosition>,
    /// The file type that the first name gives.
    kind: u8,
    subdirectories: u32,
    entries: u64,
    cookies: u64,
    /// The largest cookie.
    last_cookie: u64,
    blocks: u64,
    /// The number of the block after the last extent.
    next: u64,
    inline: u64,
    orphan: bool,
    /// [`ACCESS_ACL`] and [`DEFAULT_ACL`], as found among its attributes.
    acls: u32,
    /// Bytes of the names and values of its extended attributes.
    xattrs: u64,
}

/// The state of a check of one tree.
struct CheckWalk<'a> {
    archive: &'a Archive,
    held: &'a CommitSnapshot,
    depth: Depth,
    /// The dump that is checked; `None`: the present tree.
    dump: Option<u32>,
    checked: Checked,
    files: BTreeMap<u64, InodeFacts>,
    /// Names without a cookie so far, by directory and cookie; the values are inodes.
    entries: FixedMap<EntryPosition, u64>,
    /// Cookies that disagree with their names.
    odd: Vec<EntryPosition>,
    /// The recorded usage of users.
    usage: BTreeMap<u32, u64>,
    /// Rows that any tree points to, and the generations in the pointers.
    rows: FixedMap<u64, u32>,
    /// Addresses of this tree, each of which may occur only once.
    own: crate::hash::FixedSet<u64>,
    /// A part of this tree could not be read, so counts are not compared.
    partial: bool,
    /// A part of some tree could not be read.
    blind: bool,
    read: u64,
}

impl Archive {
    /// Checks the archive as of the last commit, while clients go on. Changes nothing.
    ///
    /// # Errors
    /// EBUSY if a scrub or another check is running, or if so much has changed that the snapshot was lost. EINTR if it
    /// was stopped. EIO if nothing can be committed. Unreadable data is not an error of this function, but a fault that
    /// it reports.
    pub async fn check(&self, depth: Depth) -> Result<Checked> {
        self.sync().await?;
        self.begin_scrub("check".into(), 0)?;
        let done = self.check_now(depth).await;
        let how = match &done {
            Ok(checked) => checked.said(),
            Err(error) => error.to_string(),
        };
        self.end_reading(&how);
        done
    }

    /// The same for the console: faults are logged.
    pub(crate) async fn check_and_tell(&self, depth: Depth) -> Result<()> {
        let checked = self.check(depth).await?;
        checked.faults.iter().for_each(|fault| self.error(format_args!("check: {fault}")));
        match checked.faults.is_empty() {
            true => Ok(()),
            false => Err(Error::new(Errno::EIO, checked.said())),
        }
    }

    async fn check_now(&self, depth: Depth) -> Result<Checked> {
        let held = self.0.cw.hold();
        let mut walk = CheckWalk::new(self, &held, depth);
        walk.tree(held.fields.root).await?;
        walk.names();
        walk.numbers();
        walk.checked.files = walk.files.len() as u64;
        let waiting: Vec<_> = held.fields.waiting.iter().map(|it| (it.generation, it.root)).collect();
        let dumps: Vec<_> = {
            let state = &*self.state();
            let is_old = |(generation, root): &(u32, BlockPtr)| {
                *generation < held.fields.generation
                    && root.row().is_none()
                    && waiting.iter().all(|(waiting, _)| waiting != generation)
            };
            state
                .dumps
                .iter()
                .map(|(generation, dump)| (*generation, dump.record.root))
                .filter(is_old)
                .collect()
        };
        if depth >= Depth::Names {
            for (generation, root) in waiting {
                walk.other(generation, root).await?;
            }
            walk.table().await?;
        }
        if depth == Depth::Dumps {
            for (generation, root) in dumps {
                walk.other(generation, root).await?;
            }
        }
        Ok(walk.checked)
    }
}

impl<'a> CheckWalk<'a> {
    fn new(archive: &'a Archive, held: &'a CommitSnapshot, depth: Depth) -> Self {
        Self {
            archive,
            held,
            depth,
            dump: None,
            checked: Checked { depth: Some(depth), ..Checked::default() },
            files: BTreeMap::new(),
            entries: FixedMap::default(),
            odd: Vec::new(),
            usage: BTreeMap::new(),
            rows: FixedMap::default(),
            own: crate::hash::FixedSet::default(),
            partial: false,
            blind: false,
            read: 0,
        }
    }

    /// Checks the tree of a dump. Its faults remain, because a dump is never changed.
    async fn other(&mut self, generation: u32, root: BlockPtr) -> Result<()> {
        let mut walk = CheckWalk::new(self.archive, self.held, self.depth);
        walk.dump = Some(generation);
        walk.checked = std::mem::take(&mut self.checked);
        walk.rows = std::mem::take(&mut self.rows);
        let mends = walk.checked.mends.len();
        walk.tree(root).await?;
        walk.names();
        walk.checked.mends.truncate(mends);
        self.blind |= walk.partial;
        (self.checked, self.rows) = (walk.checked, walk.rows);
        Ok(())
    }

    /// Reports a fault of this tree.
    fn fault(&mut self, text: impl FnOnce() -> String) {
        let (archive, dump) = (self.archive, self.dump);
        self.checked.fault(|| text() + &archive.state().dump_name(dump));
    }

    fn wrong(&mut self, text: impl FnOnce() -> String, mend: TreeRepair) {
        self.fault(text);
        self.checked.mend(mend);
    }

    /// Counts `blocks` as read, and waits until they may be. Fails if the check was stopped or the snapshot lost.
    async fn pause(&mut self, blocks: u64) -> Result<()> {
        self.checked.blocks += blocks;
        self.archive.state().scrubber.has_read(blocks);
        self.read += blocks * self.held.block() as u64;
        if self.read >= CHECK_READ_LEN && self.archive.scrub_pause(std::mem::take(&mut self.read)).await {
            return Err(Error::new(Errno::EINTR, "the check was stopped"));
        }
        match self.held.is_there() {
            true => Ok(()),
            false => {
                let text = "so much has changed meanwhile that the moment could not be held: check again when less is";
                Err(Error::new(Errno::EBUSY, text))
            }
        }
    }

    async fn tree(&mut self, root: BlockPtr) -> Result<()> {
        // The nodes to check: pointer, level, bounds.
        type Next = (BlockPtr, Option<u8>, Vec<u8>, Option<Vec<u8>>);
        let mut next: Vec<Next> = vec![(root, None, Vec::new(), None)];
        while let Some((at, level, low, high)) = next.pop() {
            if !self.pointed(at) {
                // The nodes below it are checked already, and a loop of pointers would never end.
                self.partial = true;
                continue;
            }
            self.pause(1).await?;
            let is_it = |block: &bytes::Bytes| {
                if !BlockTag::is_node(block) || BlockTag::made(block) != at.made {
                    return Err("it is another block than what points to it says".into());
                }
                let node = NodeRef(&block[..block.len() - TAG]);
                let level = level.unwrap_or(node.level());
                match level == node.level() && node::within(node, &low, high.as_deref()) {
                    true => Ok(()),
                    false => Err(String::from("it is none of its place in the tree")),
                }
            };
            let read = self.held.blocks(at.at, 1).await.map_err(|error| error.to_string());
            let block = match read.and_then(|block| is_it(&block).map(|()| block)) {
                Ok(block) => block,
                Err(why) => {
                    let ino = |key: &[u8]| key.first_chunk().map_or(0, |ino| u64::from_be_bytes(*ino));
                    let (from, to) = (ino(&low), high.as_deref().map(ino));
                    self.partial = true;
                    self.fault(|| {
                        let to = to.map_or("the last".into(), |to| to.to_string());
                        format!("node {:#x}, what is of inodes {from} to {to}, is lost: {why}", at.at)
                    });
                    continue;
                }
            };
            let content = &block[..block.len() - TAG];
            let node = NodeRef(content);
            if node.level() == 0 {
                for (key, value) in node::cells(content) {
                    self.cell(key, value).await?;
                }
                continue;
            }
            let children: Vec<(&[u8], BlockPtr)> = node::children(content).collect();
            for (i, (key, child)) in children.iter().enumerate().rev() {
                if child.made > at.made {
                    self.fault(|| format!("node {:#x} is older than one below it", at.at));
                }
                let low = if i == 0 { low.clone() } else { key.to_vec() };
                let high = children.get(i + 1).map(|(key, _)| key.to_vec()).or_else(|| high.clone());
                next.push((*child, Some(node.level() - 1), low, high));
            }
        }
        self.blind |= self.partial;
        Ok(())
    }

    /// Notes a pointer. Returns false if another pointer of this tree has the same address.
    fn pointed(&mut self, at: BlockPtr) -> bool {
        match at.row() {
            Some(row) => {
                self.rows.insert(row, at.made);
            }
            None if !self.held.is_written(at.at) => {
                self.fault(|| format!("something points to {} of w, where nothing is written", at.at));
            }
            None => {}
        }
        let is_first = self.own.insert(at.at);
        if !is_first {
            self.fault(|| format!("block {:#x} is there twice", at.at));
        }
        is_first
    }

    /// Returns the entry of an inode that has an item of its own.
    fn known(&mut self, ino: u64) -> &mut InodeFacts {
        let known = self.files.entry(ino).or_default();
        known.is_there = true;
        known
    }

    async fn cell(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let Some(what) = ItemKey::parse(key) else {
            self.fault(|| format!("a key that is none: {key:02x?}"));
            self.partial = true;
            return Ok(());
        };
        let (mut is_right, mut mend) = (true, None);
        match what {
            DecodedKey::Attributes(ino) => {
                let it = InodeAttributes::decode(value);
                is_right = it.is_some();
                self.known(ino).it = it;
            }
            DecodedKey::Inline(ino) => {
                let known = self.known(ino);
                known.inline = value.len() as u64;
                is_right = known.it.is_none_or(|it| value.len() as u64 <= it.size);
            }
            DecodedKey::Name(dir, name) => match NameEntry::decode(value) {
                Some(NameEntry { ino, cookie, kind }) => self.named((dir, cookie), ino, kind),
                None => {
                    let known = self.known(dir);
                    known.has_names = true;
                    (is_right, mend) = (false, Some(TreeRepair::Cell(ItemKey::name(dir, name).to_vec())));
                }
            },
            DecodedKey::Cookie(dir, cookie) => {
                let known = self.known(dir);
                (known.has_names, known.cookies) = (true, known.cookies + 1);
                known.last_cookie = known.last_cookie.max(cookie);
                let named = CookieEntry::decode(value).map(|named| named.ino);
                (is_right, mend) = (named.is_some(), Some(TreeRepair::Pair(dir, cookie)));
                if self.entries.remove(&(dir, cookie)) != named {
                    self.odd.push((dir, cookie));
                }
            }
            DecodedKey::Extent(ino, block) => match FileExtent::decode(value) {
                Some(extent) => {
                    let known = self.known(ino);
                    is_right = block >= known.next;
                    known.next = block + u64::from(extent.count);
                    known.blocks += u64::from(extent.count);
                    for n in 0..extent.count {
                        self.pointed(extent.split(n, 1).at);
                    }
                    if self.depth >= Depth::Blocks {
                        self.content((ino, block), extent).await?;
                    }
                }
                None => (is_right, self.partial) = (false, true),
            },
            DecodedKey::Orphan(ino) => self.files.entry(ino).or_default().orphan = true,
            DecodedKey::Dump(_) => is_right = crate::item::DumpRecord::decode(value).is_some(),
            DecodedKey::Usage(uid) => {
                let usage = crate::item::UserUsage::decode(value);
                is_right = usage.is_some();
                self.usage.extend(usage.map(|usage| (uid, usage.bytes)));
            }
            DecodedKey::Xattr(ino, name, piece) => {
                if let Some(kind) = AclKind::of(name).filter(|_| piece == 0) {
                    self.known(ino).acls |= crate::fs::acl_flag(kind);
                }
                let name = if piece == 0 { name.len() } else { 0 };
                self.known(ino).xattrs += (name + value.len()) as u64;
            }
        }
        if !is_right {
            self.fault(|| format!("{what:?} makes no sense"));
            mend.into_iter().for_each(|mend| self.checked.mend(mend));
        }
        Ok(())
    }

    fn named(&mut self, at: EntryPosition, ino: u64, kind: u8) {
        let is_dir = u32::from(kind) << 12 == mode::S_IFDIR;
        let known = self.files.entry(ino).or_default();
        known.names += 1;
        match known.names {
            1 => (known.first, known.kind) = (at, kind),
            _ if is_dir => known.more.push(at),
            _ => {}
        }
        let dir = self.known(at.0);
        (dir.has_names, dir.entries) = (true, dir.entries + 1);
        dir.subdirectories += u32::from(is_dir);
        self.entries.insert(at, ino);
    }

    /// Reads blocks of a file, one by one if one is wrong.
    async fn content(&mut self, (ino, block): (u64, u64), extent: FileExtent) -> Result<()> {
        let step = ((1 << 20) / self.held.block()) as u32;
        for first in (0..extent.count).step_by(step as usize) {
            let count = step.min(extent.count - first);
            self.pause(count.into()).await?;
            let part = extent.split(first, count);
            let all = self.held.blocks(part.at.at, count.into()).await;
            let is_right = |bytes: &bytes::Bytes, n: u64| BlockTag::whose(bytes) == (ino, n);
            let of = |n: u32| block + u64::from(first + n);
            if let Ok(all) = all
                && all
                    .chunks_exact(self.held.block())
                    .zip(0..)
                    .all(|(bytes, n)| is_right(&all.slice_ref(bytes), of(n)))
            {
                continue;
            }
            for n in 0..count {
                let at = part.split(n, 1).at;
                let why = match self.held.blocks(at.at, 1).await {
                    Ok(bytes) if is_right(&bytes, of(n)) => continue,
                    Ok(_) => "it is another one's".into(),
                    Err(error) => error.to_string(),
                };
                self.lost(ino, of(n), at, &why).await?;
            }
        }
        Ok(())
    }

    /// Reports a lost block of a file: the file's path, and a dump with an older version.
    async fn lost(&mut self, ino: u64, block: u64, at: BlockPtr, why: &str) -> Result<()> {
        if self.checked.faults.len() > FAULTS_MAX {
            return Ok(());
        }
        let path = self.archive.path_of(self.dump, ino).await;
        let mut text = format!("{path}: block {block} of inode {ino} is lost: {why}");
        if self.dump.is_none() {
            text += &match self.had(ino, block, at).await {
                Some(dump) => format!("; dump {dump} has an older one"),
                None => "; no dump has an older one".into(),
            };
            text += " (`ninefold fs history`)";
        }
        self.fault(|| text);
        Ok(())
    }

    /// Finds the newest dump that has a readable, different version of this block.
    async fn had(&self, ino: u64, block: u64, lost: BlockPtr) -> Option<String> {
        let dumps: Vec<u32> = self.archive.state().dumps.keys().rev().take(DUMPS).copied().collect();
        let mut tried = vec![lost];
        for dump in dumps {
            let find = |state: &mut crate::archive::ArchiveState| {
                let root = state.dumps.get(&dump).ok_or(Errno::ENOENT)?.record.root;
                state.fs.block_at(root, ino, block)
            };
            let Ok(Some(at)) = self.archive.attempt(find).await else { continue };
            if tried.contains(&at) {
                continue;
            }
            tried.push(at);
            let read = self.held.blocks(at.at, 1).await;
            if read.is_ok_and(|bytes| BlockTag::whose(&bytes) == (ino, block)) {
                let dumps = self.archive.dumps();
                return dumps.into_iter().find(|it| it.generation == dump).map(|it| it.name);
            }
        }
        None
    }

    /// Compares names, links and cookies.
    fn names(&mut self) {
        if self.partial {
            // Findings may be consequences of the lost part.
            self.checked.mends.clear();
            return self.fault(|| "as not all of it can be read, names and counts are not compared".into());
        }
        for ((dir, cookie), _) in std::mem::take(&mut self.entries) {
            self.wrong(
                || format!("inode {dir}: a name without its cookie {cookie}"),
                TreeRepair::Pair(dir, cookie),
            );
        }
        for (dir, cookie) in std::mem::take(&mut self.odd) {
            self.wrong(
                || format!("inode {dir}: cookie {cookie} without its name"),
                TreeRepair::Pair(dir, cookie),
            );
        }
        let files = std::mem::take(&mut self.files);
        for (ino, known) in &files {
            match known.it {
                Some(it) => self.of_inode(*ino, known, &it),
                None => self.of_nothing(*ino, known),
            }
        }
        self.files = files;
    }

    /// Reports an inode without attributes.
    fn of_nothing(&mut self, ino: u64, known: &InodeFacts) {
        if known.is_there && !known.orphan {
            let dir = known.has_names || u32::from(known.kind) << 12 == mode::S_IFDIR;
            let kind = match (dir, known.kind) {
                (true, _) => (mode::S_IFDIR >> 12) as u8,
                (false, 0) => (mode::S_IFREG >> 12) as u8,
                (false, kind) => kind,
            };
            let content = self.held.block() as u64 - TAG as u64;
            let size = if dir { known.entries } else { known.inline.max(known.next.saturating_mul(content)) };
            let (size, cookies) = (size.min(COUNT_MAX), known.last_cookie.min(COUNT_MAX));
            self.wrong(
                || format!("inode {ino}: there is something of it, but no attributes"),
                TreeRepair::Attributes { ino, kind, size, cookies, parent: known.first.0 },
            );
        } else if known.names > 0 {
            for (dir, cookie) in [known.first].into_iter().chain(known.more.iter().copied()) {
                self.wrong(
                    || format!("inode {dir}: a name leads to inode {ino}, which is not there"),
                    TreeRepair::Name(dir, cookie),
                );
            }
        }
    }

    fn of_inode(&mut self, ino: u64, known: &InodeFacts, it: &InodeAttributes) {
        let content = self.held.block() as u64 - TAG as u64;
        let links = match it.is_dir() {
            true if ino == ROOT || known.names > 0 => 2 + known.subdirectories,
            true => 0,
            false => known.names,
        };
        if it.is_dir() && known.names > 1 {
            let all = || [known.first].into_iter().chain(known.more.iter().copied());
            let stays = all().find(|(dir, _)| *dir == it.parent).unwrap_or(known.first);
            for (dir, cookie) in all().filter(|at| *at != stays) {
                self.wrong(
                    || format!("inode {ino}: a directory with two names"),
                    TreeRepair::Name(dir, cookie),
                );
            }
        }
        if links == 0 && !known.orphan {
            self.wrong(
                || format!("inode {ino}: it has no name, and nobody would remove it"),
                TreeRepair::Found(ino),
            );
        } else if it.links != links {
            self.wrong(
                || format!("inode {ino}: {} links, where there are {links}", it.links),
                TreeRepair::Links(ino, links),
            );
        }
        let behind = !it.is_dir() && known.next > it.size.div_ceil(content);
        if links > 0 && behind && !known.orphan {
            self.wrong(
                || format!("inode {ino}: there are blocks behind its size"),
                TreeRepair::Noted(ino, true),
            );
        } else if links > 0 && !behind && known.orphan {
            self.wrong(|| format!("inode {ino}: it would be cut, and is"), TreeRepair::Noted(ino, false));
        }
        if it.is_dir() && (it.size != known.entries || known.cookies != known.entries) {
            self.wrong(
                || {
                    let InodeFacts { entries, cookies, .. } = known;
                    format!("inode {ino}: {entries} entries, {cookies} cookies, {} said", it.size)
                },
                TreeRepair::Entries(ino, known.entries),
            );
        }
        if it.is_dir() && it.cookies < known.last_cookie {
            self.wrong(
                || format!("inode {ino}: cookie {} is there, {} said", known.last_cookie, it.cookies),
                TreeRepair::Cookies(ino, known.last_cookie.min(COUNT_MAX)),
            );
        }
        if it.is_dir() && ino != ROOT && known.names == 1 && it.parent != known.first.0 {
            self.wrong(
                || format!("inode {ino}: it is in inode {}, {} said", known.first.0, it.parent),
                TreeRepair::Parent(ino, known.first.0),
            );
        }
        let said = it.flags & (ACCESS_ACL | DEFAULT_ACL);
        if said != known.acls {
            self.wrong(
                || format!("inode {ino}: flags {} of access control lists, {said} said", known.acls),
                TreeRepair::Acls(ino, known.acls),
            );
        }
        if it.blocks != known.blocks {
            self.wrong(
                || format!("inode {ino}: {} blocks, {} said", known.blocks, it.blocks),
                TreeRepair::Blocks(ino, known.blocks),
            );
        }
    }

    /// Compares the totals.
    fn numbers(&mut self) {
        if self.partial {
            return;
        }
        let block = self.held.block() as u64;
        let mut sums: BTreeMap<u32, u64> = self.usage.keys().map(|uid| (*uid, 0)).collect();
        let mut all = 0;
        for (ino, known) in &self.files {
            let Some(it) = known.it else { continue };
            all += known.blocks;
            let own = if *ino == ROOT { 0 } else { crate::fs::OWN };
            let sum = sums.entry(it.uid).or_default();
            *sum = sum.saturating_add(own + known.blocks * block + known.xattrs);
        }
        let said = self.held.fields.blocks;
        // A follower does not know the total.
        if all != said && self.archive.state().follows.is_none() {
            self.wrong(|| format!("{all} blocks of files, {said} said"), TreeRepair::All(all));
        }
        for (uid, bytes) in sums {
            let said = self.usage.get(&uid).copied().unwrap_or(0);
            if said != bytes {
                self.wrong(
                    || format!("user {uid}: {bytes} bytes, {said} said"),
                    TreeRepair::Usage(uid, bytes),
                );
            }
        }
        let last = self.files.iter().rfind(|(_, known)| known.is_there).map_or(ROOT, |(ino, _)| *ino);
        let next = self.held.fields.next_inode;
        if last >= next && last >= crate::fs::INODES {
            self.fault(|| format!("inode {last} is there, and no number is as large"));
        } else if last >= next {
            self.wrong(
                || format!("inode {last} is there, and {next} would be given"),
                TreeRepair::Next(last + 1),
            );
        }
    }
}
