//! The file tree and its space accounting.
//!
//! In: names, offsets, bytes. Out: files, entries and data. A file is charged at its creation, a name when it is
//! added, and content and attributes by their length. A file's charge is released when neither a name nor a fid
//! refers to it.
//!
//! Always holds: a directory's entries are found by name and by cookie. Cookies follow the order in which names were
//! added; no new name gets a cookie that was used before. All calls happen under the server's one lock, except drops.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use nine_io::Payload;
use nine_io::server::Reply;
use nine_io::server::acl::{ACCESS, AclKind, PosixAcl};
use nine_proto::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use nine_proto::{
    Attr, DirBuf, Dirent, Errno, Error, GetMask, Qid, RenameMode, Result, SetAttr, Statfs, Texts, Time,
    TimeSet,
};

use super::lock;
use nine_io::server::locks::Ranges;

/// The maximum number of files and directories. Beyond it, ENOSPC.
const FILES_MAX: u64 = 1 << 20;
/// Bytes of memory that a tree leaves to the rest of the process. More than the 32 MiB from which an allocator always
/// asks the kernel.
const FREE_MEMORY_MIN: usize = 64 << 20;
/// Memory is probed again after this many more bytes.
const PROBE_STEP: u64 = 1 << 20;
/// The charge for a file besides its content, and for a name, in bytes.
const FILE_CHARGE_LEN: u64 = 512;

/// The limits and the present use. Beyond a limit, ENOSPC.
pub(super) struct TreeBudget {
    limit: u64,
    used: AtomicU64,
    files: AtomicU64,
    /// Up to this use, a probe has found enough memory left for the rest of the process.
    probed: AtomicU64,
}

/// A directory and a name in it.
pub(super) type EntryLocation = (Weak<RamInode>, Box<[u8]>);

/// A file. Its content stays charged until it is dropped.
pub(super) struct RamInode {
    path: u64,
    pub(super) space: Arc<TreeBudget>,
    state: Mutex<RamInodeState>,
}

pub(super) struct RamInodeState {
    pub(super) attr: Attr,
    /// The content, or the target of a link.
    pub(super) data: Vec<u8>,
    entries: BTreeMap<Box<[u8]>, (u64, Arc<RamInode>)>,
    /// Names by cookie.
    order: BTreeMap<u64, Box<[u8]>>,
    cookies: u64,
    pub(super) xattrs: BTreeMap<Box<[u8]>, Bytes>,
    pub(super) locks: Ranges,
    /// For an exclusive-use file: the number of the open that has it.
    pub(super) taken: Option<u64>,
    /// The name it was last given; the root has none.
    pub(super) place: EntryLocation,
}

impl RamInode {
    pub(super) fn new(
        space: &Arc<TreeBudget>,
        path: u64,
        mode: u32,
        (uid, gid): (u32, u32),
        place: EntryLocation,
    ) -> Result<Arc<Self>> {
        if space.files.load(Ordering::Relaxed) >= FILES_MAX {
            return Err(Errno::ENOSPC.into());
        }
        space.charge(FILE_CHARGE_LEN)?;
        space.files.fetch_add(1, Ordering::Relaxed);
        let now = now();
        let ty = match mode & S_IFMT {
            S_IFDIR => Qid::DIR,
            S_IFLNK => Qid::SYMLINK,
            _ => Qid::FILE,
        };
        let attr = Attr {
            valid: GetMask::ALL | GetMask::TEXTS,
            qid: Qid { ty, vers: 1, path },
            mode,
            uid,
            gid,
            nlink: if ty == Qid::DIR { 2 } else { 0 },
            blksize: 4096,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..Attr::default()
        };
        let state = RamInodeState {
            attr,
            data: Vec::new(),
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
            cookies: 2,
            xattrs: BTreeMap::new(),
            locks: Ranges::default(),
            taken: None,
            place,
        };
        Ok(Arc::new(Self { path, space: space.clone(), state: Mutex::new(state) }))
    }

    pub(super) fn is_root(&self) -> bool {
        self.path == 1
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RamInodeState> {
        lock(&self.state)
    }

    pub(super) fn qid(&self) -> Qid {
        self.lock().attr.qid
    }

    pub(super) fn mode(&self) -> u32 {
        self.lock().attr.mode
    }

    pub(super) fn is_dir(&self) -> bool {
        self.mode() & S_IFMT == S_IFDIR
    }

    /// Returns its directory and its name there: those it was walked to, or the new ones if it was moved.
    pub(super) fn place(self: &Arc<Self>, walked: &EntryLocation) -> Result<(Arc<Self>, Box<[u8]>)> {
        if self.is_root() {
            return Err(Errno::EBUSY.into());
        }
        let moved = self.lock().place.clone();
        for (dir, name) in [walked, &moved] {
            if let Some(dir) = dir.upgrade()
                && dir.child(name).is_ok_and(|there| Arc::ptr_eq(&there, self))
            {
                return Ok((dir, name.clone()));
            }
        }
        Err(Errno::ENOENT.into())
    }

    pub(super) fn child(self: &Arc<Self>, name: &[u8]) -> Result<Arc<Self>> {
        let state = self.lock();
        match name {
            _ if state.attr.mode & S_IFMT != S_IFDIR => Err(Errno::ENOTDIR.into()),
            b".." => Ok(state.place.0.upgrade().unwrap_or_else(|| self.clone())),
            name => Ok(state.entries.get(name).ok_or(Errno::ENOENT)?.1.clone()),
        }
    }

    pub(super) fn attr(&self) -> Attr {
        let state = self.lock();
        let size = state.data.len() as u64;
        let target = if state.attr.qid.is_symlink() { state.data.as_slice().into() } else { Box::default() };
        let texts = Texts { name: state.place.1.clone(), target, owners: None };
        let data_version = state.attr.qid.vers.into();
        Attr {
            size,
            blocks: size.div_ceil(512),
            data_version,
            texts: Some(Box::new(texts)),
            ..state.attr.clone()
        }
    }

    /// Sets attributes. Steps that can fail come first: the name, then the length.
    pub(super) fn setattr(self: &Arc<Self>, walked: &EntryLocation, set: &SetAttr<'_>) -> Result<()> {
        if set.size.is_some() && self.mode() & S_IFMT != S_IFREG {
            return Err(if self.is_dir() { Errno::EISDIR } else { Errno::EINVAL }.into());
        }
        let place = set.name.map(|new| Ok::<_, Error>((self.place(walked)?, new))).transpose()?;
        if let Some(((dir, _), new)) = &place
            && dir.child(new).is_ok_and(|there| !Arc::ptr_eq(&there, self))
        {
            return Err(Errno::EEXIST.into());
        }
        if let Some(size) = set.size {
            let state = self.lock();
            let grows = state.attr.qid.ty & Qid::APPEND != 0
                && set.special.is_none_or(|bits| bits & Qid::APPEND != 0);
            if grows && size < state.data.len() as u64 {
                return Err(Error::new(Errno::EPERM, "the file is append-only"));
            }
            drop(state);
            self.resize(size)?;
        }
        if let Some(((dir, old), new)) = place {
            dir.rename(&old, &dir, new, RenameMode::Replace)?;
        }
        let mut state = self.lock();
        if let Some(bits) = set.mode
            && let Some(mut list) = state.acl(AclKind::Access)?
        {
            list.set_mode(bits);
            state.xattrs.insert(ACCESS.into(), list.encode().into());
        }
        let attr = &mut state.attr;
        attr.qid.ty =
            set.special.map_or(attr.qid.ty, |bits| attr.qid.ty & !Qid::SPECIAL | bits & Qid::SPECIAL);
        attr.mode = set.mode.map_or(attr.mode, |bits| attr.mode & S_IFMT | bits & 0o7777);
        (attr.uid, attr.gid) = (set.uid.unwrap_or(attr.uid), set.gid.unwrap_or(attr.gid));
        for (field, set) in [(&mut attr.atime, set.atime), (&mut attr.mtime, set.mtime)] {
            match set {
                Some(TimeSet::Now) => *field = now(),
                Some(TimeSet::To(time)) => *field = time,
                None => {}
            }
        }
        attr.ctime = now();
        Ok(())
    }

    /// Returns an access control list of the file.
    pub(super) fn acl(&self, kind: AclKind) -> Result<Option<PosixAcl>> {
        self.lock().acl(kind)
    }

    /// Sets or removes a list, and the mode bits that follow from an access list. An access list equivalent to mode
    /// bits is not stored.
    pub(super) fn set_acl(&self, kind: AclKind, list: Option<&PosixAcl>) -> Result<()> {
        if kind == AclKind::Default && !self.is_dir() {
            return if list.is_some() { Err(Errno::EACCES.into()) } else { Ok(()) };
        }
        let stored = list.filter(|list| kind == AclKind::Default || list.is_extended());
        self.store_xattr(kind.name(), stored.map(|list| list.encode().into()))?;
        if let (AclKind::Access, Some(list)) = (kind, list) {
            let attr = &mut self.lock().attr;
            attr.mode = attr.mode & !0o777 | list.mode_bits();
        }
        Ok(())
    }

    /// Sets an attribute, or removes it if `value` is `None`. It need not exist.
    pub(super) fn store_xattr(&self, name: &[u8], value: Option<Bytes>) -> Result<()> {
        let mut state = self.lock();
        let cost = |value: &Bytes| (name.len() + value.len()) as u64;
        self.space.charge(value.as_ref().map_or(0, cost))?;
        let old = match value {
            Some(value) => state.xattrs.insert(name.into(), value),
            None => state.xattrs.remove(name),
        };
        self.space.release(old.as_ref().map_or(0, cost));
        Ok(())
    }

    pub(super) fn link(self: &Arc<Self>, name: &[u8], inode: &Arc<Self>) -> Result<()> {
        match self.child(name) {
            Ok(_) => return Err(Errno::EEXIST.into()),
            Err(error) if error.errno != Errno::ENOENT => return Err(error),
            Err(_) if self.lock().attr.nlink == 0 => return Err(Errno::ENOENT.into()),
            Err(_) => self.space.charge(FILE_CHARGE_LEN)?,
        }
        let links = u64::from(!inode.is_dir());
        inode.lock().attr.nlink += links;
        self.enter(name, inode, None);
        Ok(())
    }

    /// Removes a name and returns the cookie of its entry.
    pub(super) fn unlink(self: &Arc<Self>, name: &[u8]) -> Result<Option<u64>> {
        let gone = self.child(name)?;
        if !gone.lock().entries.is_empty() {
            return Err(Errno::ENOTEMPTY.into());
        }
        let cookie = self.leave(name, &gone);
        self.space.release(FILE_CHARGE_LEN);
        let is_dir = gone.is_dir();
        let mut state = gone.lock();
        state.attr.nlink = if is_dir { 0 } else { state.attr.nlink - 1 };
        state.attr.ctime = now();
        Ok(cookie)
    }

    /// Renames a file. A name that replaces another keeps its cookie, so that a reader of the directory does not see
    /// it twice.
    pub(super) fn rename(
        self: &Arc<Self>,
        old: &[u8],
        to: &Arc<Self>,
        new: &[u8],
        how: RenameMode,
    ) -> Result<()> {
        let moved = self.child(old)?;
        moved.is_not_above(to)?;
        let cookie = match to.child(new) {
            Ok(_) if how == RenameMode::NoReplace => return Err(Errno::EEXIST.into()),
            Ok(there) if Arc::ptr_eq(&there, &moved) => return Ok(()),
            Ok(there) if how == RenameMode::Exchange => {
                there.is_not_above(self)?;
                let (old_cookie, new_cookie) = (self.leave(old, &moved), to.leave(new, &there));
                self.enter(old, &there, old_cookie);
                to.enter(new, &moved, new_cookie);
                return Ok(());
            }
            Err(error) if how == RenameMode::Exchange => return Err(error),
            Ok(there) => match (there.is_dir(), moved.is_dir()) {
                (true, false) => return Err(Errno::EISDIR.into()),
                (false, true) => return Err(Errno::ENOTDIR.into()),
                _ => to.unlink(new)?,
            },
            Err(error) if error.errno != Errno::ENOENT => return Err(error),
            Err(_) if to.lock().attr.nlink == 0 => return Err(Errno::ENOENT.into()),
            Err(_) => None,
        };
        self.leave(old, &moved);
        to.enter(new, &moved, cookie);
        Ok(())
    }

    /// # Errors
    /// EINVAL: the directory is this inode, or below it.
    fn is_not_above(self: &Arc<Self>, dir: &Arc<Self>) -> Result<()> {
        let mut at = Some(dir.clone());
        while let Some(dir) = at {
            if Arc::ptr_eq(&dir, self) {
                return Err(Errno::EINVAL.into());
            }
            at = dir.lock().place.0.upgrade();
        }
        Ok(())
    }

    /// Adds a name, with the cookie of a replaced entry or a new one.
    fn enter(self: &Arc<Self>, name: &[u8], inode: &Arc<Self>, cookie: Option<u64>) {
        let is_dir = inode.is_dir();
        let mut state = self.lock();
        state.cookies += u64::from(cookie.is_none());
        let cookie = cookie.unwrap_or(state.cookies);
        state.entries.insert(name.into(), (cookie, inode.clone()));
        state.order.insert(cookie, name.into());
        state.attr.nlink += u64::from(is_dir);
        state.touch();
        drop(state);
        let mut state = inode.lock();
        state.place = (Arc::downgrade(self), name.into());
        // The names count as attributes of the file (link(2), and most systems at a rename(2)).
        state.attr.ctime = now();
    }

    /// Removes a name and returns its cookie. The inode still records the directory, for ".." of a removed directory.
    fn leave(&self, name: &[u8], inode: &Self) -> Option<u64> {
        let is_dir = inode.is_dir();
        let mut state = self.lock();
        let cookie = state.entries.remove(name).map(|(cookie, _)| cookie);
        cookie.iter().for_each(|cookie| drop(state.order.remove(cookie)));
        state.attr.nlink -= u64::from(is_dir);
        state.touch();
        cookie
    }

    pub(super) fn readdir(self: &Arc<Self>, cookie: u64, mut buf: DirBuf) -> DirBuf {
        let state = self.lock();
        let up = state.place.0.upgrade().map_or(state.attr.qid, |dir| dir.qid());
        for (name, at, qid) in [(&b"."[..], 1, state.attr.qid), (b"..", 2, up)] {
            if cookie < at && !buf.push(&Dirent { qid, cookie: at, ty: 4, name }, None) {
                return buf;
            }
        }
        for (&cookie, name) in state.order.range((Excluded(cookie.max(2)), Unbounded)) {
            let attr = state.entries[name].1.attr();
            let entry = Dirent { qid: attr.qid, cookie, ty: Dirent::type_of_mode(attr.mode), name };
            if !buf.push(&entry, Some(&attr)) {
                break;
            }
        }
        buf
    }

    pub(super) fn read(&self, offset: u64, count: u32) -> Payload {
        Payload::Bytes(Bytes::copy_from_slice(part(&self.lock().data, offset, count)))
    }

    pub(super) fn write(&self, append: bool, offset: u64, data: &[u8]) -> Result<Reply> {
        // As in write(2), writing no bytes changes nothing, at any offset.
        if data.is_empty() {
            return Ok(Reply::Wrote(0));
        }
        let mut state = self.lock();
        let append = append || state.attr.qid.ty & Qid::APPEND != 0;
        let offset = if append { state.data.len() as u64 } else { offset };
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
        if end > state.data.len() as u64 {
            self.space.resize(&mut state, end)?;
        }
        state.data[offset as usize..end as usize].copy_from_slice(data);
        state.touch();
        Ok(Reply::Wrote(data.len() as u32))
    }

    pub(super) fn resize(&self, size: u64) -> Result<()> {
        let mut state = self.lock();
        self.space.resize(&mut state, size)?;
        state.touch();
        Ok(())
    }
}

impl Drop for RamInode {
    /// Loops instead of recursing: a tree may be deeper than the stack.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let xattrs: usize = state.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.space.release(FILE_CHARGE_LEN + (state.data.len() + xattrs) as u64);
        self.space.files.fetch_sub(1, Ordering::Relaxed);
        let mut below: Vec<_> = std::mem::take(&mut state.entries).into_values().collect();
        while let Some((_, inode)) = below.pop() {
            self.space.release(FILE_CHARGE_LEN);
            if let Some(mut inode) = Arc::into_inner(inode) {
                let state = inode.state.get_mut().unwrap_or_else(PoisonError::into_inner);
                below.extend(std::mem::take(&mut state.entries).into_values());
            }
        }
    }
}

impl RamInodeState {
    fn acl(&self, kind: AclKind) -> Result<Option<PosixAcl>> {
        self.xattrs.get(kind.name()).map_or(Ok(None), |value| PosixAcl::parse(value))
    }

    fn touch(&mut self) {
        (self.attr.mtime, self.attr.ctime) = (now(), now());
        self.attr.qid.vers = self.attr.qid.vers.wrapping_add(1).max(1);
    }
}

impl TreeBudget {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.max(FILE_CHARGE_LEN),
            used: AtomicU64::new(0),
            files: AtomicU64::new(0),
            probed: AtomicU64::new(0),
        })
    }

    pub(super) fn charge(&self, bytes: u64) -> Result<()> {
        let add = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.limit);
        let charged = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let used = charged.map_err(|_| Errno::ENOSPC)? + bytes;
        let probed = self.probed.load(Ordering::Relaxed);
        if used <= probed {
            return Ok(());
        }
        if !has_memory(bytes) {
            self.release(bytes);
            return Err(no_memory());
        }
        self.probed.store(used + PROBE_STEP, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn release(&self, bytes: u64) {
        let used = self.used.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        // Other parts of the process may use the released memory.
        self.probed.fetch_min(used + PROBE_STEP, Ordering::Relaxed);
    }

    /// Extends the content with zeros or truncates it, if there is room.
    fn resize(&self, state: &mut RamInodeState, size: u64) -> Result<()> {
        let old = state.data.len() as u64;
        self.charge(size.saturating_sub(old))?;
        // The limit may exceed the machine's memory.
        let more = usize::try_from(size.saturating_sub(old)).unwrap_or(usize::MAX);
        // A growing vector doubles its capacity, if that leaves enough memory.
        let capacity = state.data.capacity() as u64;
        let spare = if capacity < size { (capacity * 2).saturating_sub(size) } else { 0 };
        let reserved = match spare <= PROBE_STEP || has_memory(spare) {
            true => state.data.try_reserve(more),
            false => state.data.try_reserve_exact(more),
        };
        if reserved.is_err() {
            self.release(size.saturating_sub(old));
            return Err(no_memory());
        }
        self.release(old.saturating_sub(size));
        state.data.resize(size as usize, 0);
        state.data.shrink_to(size as usize * 2);
        Ok(())
    }

    pub(super) fn statfs(&self) -> Statfs {
        let free = (self.limit - self.used.load(Ordering::Relaxed)) / 4096;
        let ffree = FILES_MAX - self.files.load(Ordering::Relaxed);
        let (ty, bsize, namelen) = (Statfs::V9FS, 4096, 255);
        let blocks = self.limit / 4096;
        Statfs { ty, bsize, blocks, bfree: free, bavail: free, files: FILES_MAX, ffree, fsid: 0, namelen }
    }
}

/// Returns whether this many bytes can be allocated and [`FREE_MEMORY_MIN`] beside them. That is for allocations whose
/// failure aborts the process: names, messages, connections.
fn has_memory(bytes: u64) -> bool {
    let Some(all) = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(FREE_MEMORY_MIN)) else {
        return false;
    };
    // This reserves address space only; no page is touched.
    Vec::<u8>::new().try_reserve_exact(all).is_ok()
}

fn no_memory() -> Error {
    Error::new(Errno::ENOMEM, "the server has no memory left for this")
}

/// Returns the bytes of a read.
pub(super) fn part(bytes: &[u8], offset: u64, count: u32) -> &[u8] {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    &bytes[from..from.saturating_add(count as usize).min(bytes.len())]
}

pub(super) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
}
