//! Files and directories: operations of clients, each as one change of the tree.
//!
//! In: inodes, names, offsets, bytes, the time. Out: results; or an [`OperationStop`], which names the blocks to fetch
//! first, or says that there is no room. Then nothing was changed, and the same operation can be tried again.
//!
//! Always holds: an operation is done completely or not at all, and so is its commit. Before its first change all
//! blocks that it needs are in memory, and there is room for all that it allocates.

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
use crate::item::{DecodedKey, InodeAttributes, ItemKey, UserUsage};
use crate::memory::BlockMemory;
use crate::ptr::BlockPtr;
use crate::tree::{self, NodeMiss};
use crate::users::ADM;

pub(crate) use acl::{NewAcls, flag as acl_flag};
pub(crate) use file::{SIZE_MAX, TARGET_MAX};

/// The inode of the root directory.
pub(crate) const ROOT: u64 = 1;

/// Number of users with changed usage after which operations wait for the commit.
const USED: usize = 64;

/// Inode numbers are below this.
pub(crate) const INODES: u64 = 1 << 44;

/// Bytes charged for each file besides its blocks.
pub(crate) const OWN: u64 = 512;

/// Why an operation has stopped.
#[derive(Debug)]
pub(crate) enum OperationStop {
    /// These blocks of files are not in memory.
    Miss(Vec<BlockPtr>),
    /// The first of these nodes is not in memory, or is no node. The others will be needed soon.
    Node(Vec<BlockPtr>),
    /// The page of the table of rows with this row is not in memory.
    Page(u64),
    /// A step is done; other operations may run before the next.
    Again,
    /// So many blocks have changed that the operation must wait for a commit.
    Wait,
    /// The cache device has no free slots.
    Full,
    /// The owner's quota is exhausted.
    Quota,
    Error(Error),
}

/// The result of an operation.
pub(crate) type FsResult<T> = Result<T, OperationStop>;

impl From<NodeMiss> for OperationStop {
    fn from(NodeMiss(at, level): NodeMiss) -> Self {
        let Some(level) = level else { return Self::Node(vec![at]) };
        let text =
            format!("node {:#x} is not of level {level}, as it must be: see `ninefold fs check`", at.at);
        tracing::error!("{text}");
        Self::Error(Error::new(Errno::EIO, text))
    }
}

impl From<Errno> for OperationStop {
    fn from(errno: Errno) -> Self {
        Self::Error(errno.into())
    }
}

impl From<Error> for OperationStop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The file system, and the usage of its users.
pub(crate) struct ArchiveFs {
    pub(crate) mem: BlockMemory,
    /// The next inode number.
    pub(crate) next_inode: u64,
    /// Blocks of all files.
    pub(crate) blocks: u64,
    usage: BTreeMap<u32, UserUsage>,
    /// Users whose usage has changed since the last commit.
    used: BTreeSet<u32>,
    /// Number of changed blocks at which operations wait for the commit.
    most: usize,
    /// Files that may have blocks beyond their size.
    sheared: BTreeSet<u64>,
    /// The error while a commit waits for storage below its devices. Operations that need room fail meanwhile.
    pub(crate) full: Option<nine_block::Error>,
}

/// Logs an inconsistency of the tree that no check has caught, and returns it as an error.
fn broken(ino: u64, text: &str) -> OperationStop {
    tracing::error!("inode {ino}: {text}");
    OperationStop::Error(Error::new(Errno::EIO, format!("inode {ino}: {text}: see `ninefold fs check`")))
}

impl ArchiveFs {
    pub(crate) fn new(mem: BlockMemory, dirty_most: u64) -> Self {
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

    /// Returns the number of changed blocks at which operations wait for the commit.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Returns whether [`settle`](Self::settle) has anything to do.
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.used.is_empty()
    }

    /// Creates the tree of a new file system, with its root directory.
    pub(crate) fn begin(&mut self, uid: u32, gid: u32, now: Time) {
        self.mem.root = tree::create(&mut self.mem);
        let root = InodeAttributes {
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
            ..InodeAttributes::default()
        };
        self.next_inode = ROOT + 1;
        self.set(ROOT, &root);
    }

    /// Creates or replaces /adm/users. Returns its inode.
    pub(crate) fn put_users(&mut self, text: &str, now: Time) -> FsResult<u64> {
        let (uid, gid) = (ADM, ADM);
        let new = InodeAttributes {
            uid,
            gid,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..InodeAttributes::default()
        };
        let mut at = ROOT;
        for (name, mode) in [(&b"adm"[..], mode::S_IFDIR | 0o775), (b"users", mode::S_IFREG | 0o664)] {
            at = match self.lookup(self.mem.root, at, name)? {
                Some(entry) => entry.ino,
                None => self.make(at, name, InodeAttributes { mode, ..new }, b"")?,
            };
        }
        self.set_attributes(at, &SetAttr { size: Some(0), ..SetAttr::default() }, uid, now)?;
        self.write(at, Some(0), text.as_bytes(), uid, now)?;
        Ok(at)
    }

    /// Reads the usage of all users.
    pub(crate) fn load_usage(&mut self) -> FsResult<()> {
        let mut usage = BTreeMap::new();
        tree::range(&self.mem, self.mem.root, &ItemKey::usage(0), |key, value| {
            let Some(DecodedKey::Usage(uid)) = ItemKey::parse(key) else { return false };
            if let Some(it) = UserUsage::decode(value) {
                usage.insert(uid, it);
            }
            true
        })?;
        self.usage = usage;
        Ok(())
    }

    /// Returns an inode's attributes, in the tree with this root.
    pub(crate) fn attributes(&self, root: BlockPtr, ino: u64) -> FsResult<InodeAttributes> {
        let found = tree::get(&self.mem, root, &ItemKey::attributes(ino), InodeAttributes::decode)?;
        match found {
            Some(Some(attributes)) => Ok(attributes),
            Some(None) => Err(broken(ino, "its attributes make no sense")),
            None => Err(Errno::ESTALE.into()),
        }
    }

    /// Returns an inode's attributes, in the current tree.
    fn own(&self, ino: u64) -> FsResult<InodeAttributes> {
        self.attributes(self.mem.root, ino)
    }

    fn set(&mut self, ino: u64, to: &InodeAttributes) {
        self.put(&ItemKey::attributes(ino), &to.encode());
    }

    /// Ensures that all nodes on the paths to these keys are in memory.
    pub(crate) fn touch(&self, keys: &[&[u8]]) -> FsResult<()> {
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

    /// Checks that `blocks` more blocks may change, without using the reserve for removals.
    ///
    /// # Errors
    /// ENOSPC, while the devices have no storage left below.
    pub(crate) fn room(&self, blocks: u64) -> FsResult<()> {
        if let Some(error) = &self.full {
            return Err(errno(error).into());
        }
        self.room_behind(blocks, self.mem.cw.kept_back())
    }

    /// The same for operations that free blocks. They may use the reserve.
    fn room_to_remove(&self) -> FsResult<()> {
        self.room_behind(16, 0)
    }

    pub(crate) fn room_behind(&self, blocks: u64, kept_back: u64) -> FsResult<()> {
        let (open, freed) = self.mem.changed();
        // A commit that waits for storage takes no further changes, but removals go on.
        let most = if self.full.is_some() { 2 * self.most } else { self.most };
        if open >= most || freed >= most || self.used.len() >= USED {
            return Err(OperationStop::Wait);
        }
        // Each change of a node may split each node above it once. Each user's usage is a change too.
        let need = blocks + 16 + 4 * self.used.len() as u64;
        let (slots, rows) = self.mem.cw.room();
        match slots >= self.mem.promised() + need + kept_back && rows >= need + kept_back {
            true => Ok(()),
            false => Err(OperationStop::Full),
        }
    }

    /// Checks that a user's files may take `more` bytes more.
    fn quota(&self, uid: u32, more: u64) -> FsResult<()> {
        let over = |usage: &UserUsage| usage.most != 0 && usage.bytes.saturating_add(more) > usage.most;
        match self.usage.get(&uid).is_some_and(over) {
            true => Err(OperationStop::Quota),
            false => Ok(()),
        }
    }

    fn charge(&mut self, uid: u32, more: u64, less: u64) {
        if more != less {
            let usage = self.usage.entry(uid).or_insert(UserUsage { bytes: 0, most: 0 });
            usage.bytes = usage.bytes.saturating_add(more).saturating_sub(less);
            self.used.insert(uid);
        }
    }

    /// Returns each user's bytes and quota.
    pub(crate) fn usage(&self) -> impl Iterator<Item = (u32, UserUsage)> + '_ {
        self.usage.iter().map(|(uid, usage)| (*uid, *usage))
    }

    /// Sets the quota of a user in bytes; 0: no limit.
    pub(crate) fn set_quota(&mut self, uid: u32, most: u64) {
        self.usage.entry(uid).or_insert(UserUsage { bytes: 0, most: 0 }).most = most;
        self.used.insert(uid);
    }

    /// Writes the changed usage into the tree, before a commit.
    pub(crate) fn settle(&mut self) -> FsResult<()> {
        for uid in self.used.clone() {
            let key = ItemKey::usage(uid);
            self.touch(&[&key])?;
            let usage = self.usage[&uid];
            match usage {
                UserUsage { bytes: 0, most: 0 } => {
                    self.delete(&key);
                    self.usage.remove(&uid);
                }
                usage => self.put(&key, &usage.encode()),
            }
            self.used.remove(&uid);
        }
        Ok(())
    }

    /// Discards changes of usage that could not be written into the tree.
    pub(crate) fn forget_used(&mut self) {
        self.used.clear();
    }

    /// Returns the bytes of a block, as charged and as reported to clients.
    pub(crate) fn block(&self) -> u64 {
        self.mem.cw.block() as u64
    }

    /// Changes attributes, including the size of a regular file, but not the name.
    pub(crate) fn set_attributes(
        &mut self,
        ino: u64,
        set: &SetAttr<'_>,
        muid: u32,
        now: Time,
    ) -> FsResult<()> {
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
