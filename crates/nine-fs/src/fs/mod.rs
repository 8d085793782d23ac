//! Files and directories: what a request changes, as one change of the tree.
//!
//! In: inodes, names, offsets, bytes, the time. Out: what is there; or which blocks are to be fetched first, or that
//! there is no room: then nothing was changed, and the same may be asked again.
//!
//! Always holds: an operation is done or not done, and a commit has all of it or nothing; everything it needs is in
//! memory and all it takes has room before its first change.

mod acl;
mod dir;
mod file;
mod gone;
mod mend;
mod xattr;

use std::collections::{BTreeMap, BTreeSet};

use nine_io::server::acl::ACCESS;
use nine_proto::{Errno, Error, SetAttr, Time, TimeSet, mode};

use crate::archive::errno;
use crate::item::{Attributes, Key, Usage, What};
use crate::memory::Memory;
use crate::ptr::Ptr;
use crate::tree::{self, Miss};
use crate::users::ADM;

pub(crate) use acl::{NewAcls, flag as acl_flag};
pub(crate) use file::{SIZE_MOST, TARGET_MOST};

/// The root directory.
pub(crate) const ROOT: u64 = 1;

/// Users whose numbers may have changed before operations wait for the commit.
const USED: usize = 64;

/// Inode numbers are below this.
pub(crate) const INODES: u64 = 1 << 44;

/// What a file is charged for itself, beside its blocks, bytes.
pub(crate) const OWN: u64 = 512;

/// Why an operation has not been done.
#[derive(Debug)]
pub(crate) enum Stop {
    /// These blocks of files are not in memory.
    Miss(Vec<Ptr>),
    /// The first of these nodes is not, or what is there is none; the others will be wanted behind it.
    Node(Vec<Ptr>),
    /// The page of this row's table is not in memory.
    Page(u64),
    /// A step of it is done: others may have their turn.
    Again,
    /// So much has changed that the commit comes first.
    Wait,
    /// The cache device has no room.
    Full,
    /// The owner's files take all that they may.
    Quota,
    Error(Error),
}

/// Of an operation.
pub(crate) type Op<T> = Result<T, Stop>;

impl From<Miss> for Stop {
    fn from(Miss(at, level): Miss) -> Self {
        let Some(level) = level else { return Self::Node(vec![at]) };
        let text =
            format!("node {:#x} is not of level {level}, as it must be: see `ninefold fs check`", at.at);
        tracing::error!("{text}");
        Self::Error(Error::new(Errno::EIO, text))
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Error(errno.into())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The tree as files, and who uses how much of it.
pub(crate) struct Fs {
    pub(crate) mem: Memory,
    /// The next inode number.
    pub(crate) next_inode: u64,
    /// Blocks of files.
    pub(crate) blocks: u64,
    usage: BTreeMap<u32, Usage>,
    /// Users whose numbers have changed since the last commit.
    used: BTreeSet<u32>,
    /// Blocks that may have changed before operations wait.
    most: usize,
    /// Files behind whose size there may be blocks.
    sheared: BTreeSet<u64>,
    /// Why the commit waits, while its devices have no room below: nothing that needs room begins.
    pub(crate) full: Option<nine_block::Error>,
}

/// What was found wrong in a tree that all checks have let pass.
fn broken(ino: u64, text: &str) -> Stop {
    tracing::error!("inode {ino}: {text}");
    Stop::Error(Error::new(Errno::EIO, format!("inode {ino}: {text}: see `ninefold fs check`")))
}

impl Fs {
    pub(crate) fn new(mem: Memory, dirty_most: u64) -> Self {
        let fields = mem.cw.fields();
        let most = ((dirty_most / mem.cw.block() as u64) as usize).max(64);
        Self {
            next_inode: fields.next_inode,
            blocks: fields.blocks,
            mem,
            usage: BTreeMap::new(),
            used: BTreeSet::new(),
            most,
            sheared: BTreeSet::new(),
            full: None,
        }
    }

    /// Blocks that may have changed before operations wait.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Whether [`settle`](Self::settle) has something to do.
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.used.is_empty()
    }

    /// The first tree: its root directory.
    pub(crate) fn begin(&mut self, uid: u32, gid: u32, now: Time) {
        self.mem.root = tree::create(&mut self.mem);
        let root = Attributes {
            mode: mode::S_IFDIR | 0o755,
            uid,
            gid,
            muid: uid,
            links: 2,
            version: 1,
            parent: ROOT,
            cookies: 2,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..Attributes::default()
        };
        self.next_inode = ROOT + 1;
        self.set(ROOT, &root);
    }

    /// Makes or replaces /adm/users: its inode.
    pub(crate) fn put_users(&mut self, text: &str, now: Time) -> Op<u64> {
        let (uid, gid) = (ADM, ADM);
        let new =
            Attributes { uid, gid, atime: now, mtime: now, ctime: now, btime: now, ..Attributes::default() };
        let mut at = ROOT;
        for (name, mode) in [(&b"adm"[..], mode::S_IFDIR | 0o775), (b"users", mode::S_IFREG | 0o664)] {
            at = match self.lookup(self.mem.root, at, name)? {
                Some(entry) => entry.ino,
                None => self.make(at, name, Attributes { mode, ..new }, b"")?,
            };
        }
        self.set_attributes(at, &SetAttr { size: Some(0), ..SetAttr::default() }, uid, now)?;
        self.write(at, Some(0), text.as_bytes(), uid, now)?;
        Ok(at)
    }

    /// Reads who uses how much.
    pub(crate) fn load_usage(&mut self) -> Op<()> {
        let mut usage = BTreeMap::new();
        tree::range(&self.mem, self.mem.root, &Key::usage(0), |key, value| {
            let Some(What::Usage(uid)) = Key::parse(key) else { return false };
            if let Some(it) = Usage::decode(value) {
                usage.insert(uid, it);
            }
            true
        })?;
        self.usage = usage;
        Ok(())
    }

    /// An inode's attributes, in the tree of this root.
    pub(crate) fn attributes(&self, root: Ptr, ino: u64) -> Op<Attributes> {
        let found = tree::get(&self.mem, root, &Key::attributes(ino), Attributes::decode)?;
        match found {
            Some(Some(attributes)) => Ok(attributes),
            Some(None) => Err(broken(ino, "its attributes make no sense")),
            None => Err(Errno::ESTALE.into()),
        }
    }

    /// Of the current tree.
    fn own(&self, ino: u64) -> Op<Attributes> {
        self.attributes(self.mem.root, ino)
    }

    fn set(&mut self, ino: u64, to: &Attributes) {
        self.put(&Key::attributes(ino), &to.encode());
    }

    /// Everything on the way to these keys is in memory.
    pub(crate) fn touch(&self, keys: &[&[u8]]) -> Op<()> {
        keys.iter().try_for_each(|key| Ok(tree::touch(&self.mem, self.mem.root, key)?))
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        let mut root = self.mem.root;
        tree::put(&mut self.mem, &mut root, key, value).expect("its way was touched before");
        self.mem.root = root;
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let mut root = self.mem.root;
        let was = tree::delete(&mut self.mem, &mut root, key).expect("its way was touched before");
        self.mem.root = root;
        was
    }

    /// Whether so many blocks may change more, with what is kept back for removals.
    ///
    /// # Errors
    /// ENOSPC, while the devices have no room below.
    pub(crate) fn room(&self, blocks: u64) -> Op<()> {
        if let Some(error) = &self.full {
            return Err(errno(error).into());
        }
        self.room_behind(blocks, self.mem.cw.kept_back())
    }

    /// The same for what gives room back.
    fn room_to_remove(&self) -> Op<()> {
        self.room_behind(16, 0)
    }

    pub(crate) fn room_behind(&self, blocks: u64, kept_back: u64) -> Op<()> {
        let (open, freed) = self.mem.changed();
        // A commit that waits for room takes nothing more, and removals go on.
        let most = if self.full.is_some() { 2 * self.most } else { self.most };
        if open >= most || freed >= most || self.used.len() >= USED {
            return Err(Stop::Wait);
        }
        // Each change of a node may split those above it, once; and each user's number is a change.
        let need = blocks + 16 + 4 * self.used.len() as u64;
        let (slots, rows) = self.mem.cw.room();
        match slots >= self.mem.promised() + need + kept_back && rows >= need + kept_back {
            true => Ok(()),
            false => Err(Stop::Full),
        }
    }

    /// Whether this user's files may take so many bytes more.
    fn quota(&self, uid: u32, more: u64) -> Op<()> {
        let over = |usage: &Usage| usage.most != 0 && usage.bytes.saturating_add(more) > usage.most;
        match self.usage.get(&uid).is_some_and(over) {
            true => Err(Stop::Quota),
            false => Ok(()),
        }
    }

    fn charge(&mut self, uid: u32, more: u64, less: u64) {
        if more != less {
            let usage = self.usage.entry(uid).or_insert(Usage { bytes: 0, most: 0 });
            usage.bytes = usage.bytes.saturating_add(more).saturating_sub(less);
            self.used.insert(uid);
        }
    }

    /// How many bytes a user's files take, and the most that they may.
    pub(crate) fn usage(&self) -> impl Iterator<Item = (u32, Usage)> + '_ {
        self.usage.iter().map(|(uid, usage)| (*uid, *usage))
    }

    /// The most that a user's files may take; 0: any.
    pub(crate) fn set_quota(&mut self, uid: u32, most: u64) {
        self.usage.entry(uid).or_insert(Usage { bytes: 0, most: 0 }).most = most;
        self.used.insert(uid);
    }

    /// What is kept beside the tree goes into it, before a commit.
    pub(crate) fn settle(&mut self) -> Op<()> {
        for uid in self.used.clone() {
            let key = Key::usage(uid);
            self.touch(&[&key])?;
            let usage = self.usage[&uid];
            match usage {
                Usage { bytes: 0, most: 0 } => {
                    self.delete(&key);
                    self.usage.remove(&uid);
                }
                usage => self.put(&key, &usage.encode()),
            }
            self.used.remove(&uid);
        }
        Ok(())
    }

    /// What could not be settled is not.
    pub(crate) fn forget_used(&mut self) {
        self.used.clear();
    }

    /// Bytes of a block as clients see it in blocks of 512.
    pub(crate) fn block(&self) -> u64 {
        self.mem.cw.block() as u64
    }

    /// Changes attributes, the size of a regular file among them; not the name.
    pub(crate) fn set_attributes(&mut self, ino: u64, set: &SetAttr<'_>, muid: u32, now: Time) -> Op<()> {
        let mut it = self.own(ino)?;
        let taker = set.uid.filter(|uid| *uid != it.uid);
        let beside = match taker {
            Some(_) => OWN + self.xattr_bytes(self.mem.root, ino)?,
            None => 0,
        };
        taker.map_or(Ok(()), |uid| self.quota(uid, beside + it.blocks * self.block()))?;
        let acl = set.mode.map_or(Ok(None), |bits| self.acl_with_mode(ino, &it, bits))?;
        if let Some(acl) = &acl {
            self.touch_pieces(ino, ACCESS, acl.len())?;
            self.room(16)?;
        }
        match set.size.filter(|size| *size != it.size) {
            Some(size) => self.resize(ino, &mut it, size)?,
            None => self.room(1)?,
        }
        if let Some(uid) = taker {
            let bytes = beside + it.blocks * self.block();
            self.charge(it.uid, 0, bytes);
            self.charge(uid, bytes, 0);
            it.uid = uid;
        }
        it.mode = set.mode.map_or(it.mode, |bits| it.mode & mode::S_IFMT | bits & 0o7777);
        acl.into_iter().for_each(|acl| self.put_pieces(ino, ACCESS, &acl));
        set.special.into_iter().for_each(|bits| it.set_special(bits));
        it.gid = set.gid.unwrap_or(it.gid);
        let mtime = set.mtime.or(set.size.map(|_| TimeSet::Now));
        for (field, set) in [(&mut it.atime, set.atime), (&mut it.mtime, mtime)] {
            match set {
                Some(TimeSet::Now) => *field = now,
                Some(TimeSet::To(time)) => *field = time,
                None => {}
            }
        }
        (it.ctime, it.muid) = (now, muid);
        self.set(ino, &it);
        Ok(())
    }
}
