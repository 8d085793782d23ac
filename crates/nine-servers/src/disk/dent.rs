//! The part of the host's tree that fids refer to: one `HostDentry` for each name a fid was walked to.
//!
//! In: a directory's dent and a name. Out: the dent of the file there, and an `O_PATH` descriptor for it. Dents keep
//! their descriptors in a cache of fixed size. After an eviction the file is opened again relative to its parent. It
//! must be the same file, else ESTALE.
//!
//! Always holds:
//! - A dent refers to one file for its whole life: device, inode and birth time never change. No fid changes its
//!   identity.
//! - Names are opened one component at a time below a directory's descriptor, never through a symbolic link. So no
//!   path leaves the root. ".." is the dent's parent, and the root has none.
//! - A rename through this server moves the dent. Dents below it move too, since they point to their parents.
//!
//! Concurrency: any thread. Lookups and descents exclude renames (`still`). The event loop does not wait for a
//! rename; the request goes to the pool. Lock order: still, table, place. The handle lock is taken alone.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, Weak,
};

use nine_proto::mode::{S_IFDIR, S_IFMT};
use rustix::fs::{Mode, OFlags};

use super::ExecutionMode;
use super::host::{Errno, HostFs, Result, Stat};

/// The values that identify a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostFileIdentity {
    pub(super) dev: u64,
    pub(super) ino: u64,
    /// Birth time; distinguishes a reused inode number from its former file.
    born_sec: i64,
    born_nsec: u32,
    /// `S_IFMT` bits.
    ty: u32,
}

impl HostFileIdentity {
    pub(super) fn of(st: &Stat) -> Self {
        let (born_sec, born_nsec) = st.btime.map_or((0, 0), |t| (t.sec, t.nsec));
        Self { dev: st.dev, ino: st.ino, born_sec, born_nsec, ty: st.mode & S_IFMT }
    }
}

/// At most this many directories above a file are opened again on the event loop; more are opened by the pool.
const REOPENED_INLINE: usize = 16;

/// A name that a fid refers to. See the module.
pub(super) struct HostDentry {
    pub(super) id: HostFileIdentity,
    place: Mutex<DentryLocation>,
    handle: Mutex<Option<Arc<OwnedFd>>>,
    /// It was used since the cache's clock hand last passed.
    used: AtomicBool,
    /// Its name was removed, or now refers to another file.
    gone: AtomicBool,
    table: Arc<DentryTable>,
}

struct DentryLocation {
    /// `None`: the root, or a dent that is being dropped.
    parent: Option<Arc<HostDentry>>,
    name: Box<[u8]>,
}

/// The root and every live dent below it.
pub(super) struct DentryTree {
    pub(super) root: Arc<HostDentry>,
    table: Arc<DentryTable>,
    handles: HandleCache,
    moves: RwLock<()>,
}

impl DentryTree {
    /// Returns a tree with this root. It caches at most `handles` descriptors besides the root's.
    pub(super) fn new(fd: OwnedFd, st: &Stat, handles: usize) -> Self {
        let table = Arc::new(DentryTable::default());
        let place = DentryLocation { parent: None, name: b"/"[..].into() };
        let root = HostDentry::new(HostFileIdentity::of(st), place, table.clone());
        *lock(&root.handle) = Some(Arc::new(fd));
        Self { root: Arc::new(root), table, handles: HandleCache::new(handles), moves: RwLock::new(()) }
    }

    /// While the guard is held, this server renames nothing. Inline it returns EAGAIN instead of waiting.
    pub(super) fn still(&self, how: ExecutionMode) -> Result<RwLockReadGuard<'_, ()>> {
        if how == ExecutionMode::Pool {
            return Ok(self.moves.read().unwrap_or_else(PoisonError::into_inner));
        }
        match self.moves.try_read() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(error)) => Ok(error.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Errno::AGAIN),
        }
    }

    /// While the guard is held, one rename has exclusive use of the tree.
    pub(super) fn moving(&self) -> RwLockWriteGuard<'_, ()> {
        self.moves.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the `O_PATH` descriptor of a dent. Takes `still` if it has to open anything.
    pub(super) fn handle(
        &self,
        host: &impl HostFs,
        how: ExecutionMode,
        dent: &Arc<HostDentry>,
    ) -> Result<Arc<OwnedFd>> {
        if let Some(fd) = dent.cached() {
            return Ok(fd);
        }
        let _still = self.still(how)?;
        self.handle_still(host, how, dent)
    }

    /// Like [`DentryTree::handle`], for a caller that holds `still` or `moving`. Opens with the server's own rights: a
    /// file that was walked to stays reachable, as if its descriptor had stayed open.
    pub(super) fn handle_still(
        &self,
        host: &impl HostFs,
        how: ExecutionMode,
        dent: &Arc<HostDentry>,
    ) -> Result<Arc<OwnedFd>> {
        if let Some(fd) = dent.cached() {
            return Ok(fd);
        }
        let mut closed = vec![dent.clone()];
        let mut fd = loop {
            let last = closed.last().expect("it begins with one and only grows");
            if last.gone.load(Ordering::Acquire) {
                return Err(Errno::STALE);
            }
            let parent = last.parent().ok_or(Errno::STALE)?;
            match parent.cached() {
                Some(fd) => break fd,
                None if how == ExecutionMode::Inline && closed.len() >= REOPENED_INLINE => {
                    return Err(Errno::AGAIN);
                }
                None => closed.push(parent),
            }
        };
        while let Some(dent) = closed.pop() {
            let opened = self.open_path(host, how, &fd, &dent.name()).map_err(|error| match error {
                Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Errno::STALE,
                error => error,
            })?;
            if HostFileIdentity::of(&host.stat(opened.as_fd(), b"")?) != dent.id {
                return Err(Errno::STALE);
            }
            fd = self.keep(&dent, opened);
        }
        Ok(fd)
    }

    /// Looks up `name` in a directory, with `still` held. Returns the dent and its current attributes.
    pub(super) fn step(
        &self,
        host: &impl HostFs,
        how: ExecutionMode,
        dir: &Arc<HostDentry>,
        dir_fd: &OwnedFd,
        name: &[u8],
    ) -> Result<(Arc<HostDentry>, Stat)> {
        let fd = self.open_path(host, how, dir_fd, name)?;
        let st = host.stat(fd.as_fd(), b"")?;
        let dent = self.intern(dir, name, HostFileIdentity::of(&st));
        self.keep(&dent, fd);
        Ok((dent, st))
    }

    /// Returns the dent of this file under this name. A dent of another file there is marked gone. Needs `still`.
    pub(super) fn intern(&self, dir: &Arc<HostDentry>, name: &[u8], id: HostFileIdentity) -> Arc<HostDentry> {
        let key = self.table.key(dir, name);
        let mut map = lock(&self.table.map);
        let old = map.get(&key).and_then(Weak::upgrade);
        if let Some(old) = old.as_ref().filter(|old| old.id == id && old.is_at(dir, name)) {
            return old.clone();
        }
        let place = DentryLocation { parent: Some(dir.clone()), name: name.into() };
        let dent = Arc::new(HostDentry::new(id, place, self.table.clone()));
        map.insert(key, Arc::downgrade(&dent));
        drop(map);
        // After the map's lock is released: dropping a dent takes it.
        if let Some(old) = old.filter(|old| old.is_at(dir, name)) {
            old.gone.store(true, Ordering::Release);
        }
        dent
    }

    /// Returns the dent under this name, if a fid refers to it.
    pub(super) fn known(&self, dir: &Arc<HostDentry>, name: &[u8]) -> Option<Arc<HostDentry>> {
        let key = self.table.key(dir, name);
        let found = lock(&self.table.map).get(&key).and_then(Weak::upgrade);
        found.filter(|dent| dent.is_at(dir, name))
    }

    /// Records that the name of this dent was removed. Its descriptor stays cached as long as a fid refers to it.
    pub(super) fn forget(&self, dent: &HostDentry) {
        dent.gone.store(true, Ordering::Release);
        dent.leave_table();
    }

    /// Records that the file of this dent was renamed, with `moving` held. A dent known under the new name is marked
    /// gone. If other programs have moved directories so that the dents would form a cycle, this dent is marked gone
    /// instead.
    pub(super) fn rekey(&self, dent: &Arc<HostDentry>, dir: &Arc<HostDentry>, name: &[u8]) {
        if dir.is_below(dent) {
            return self.forget(dent);
        }
        if let Some(old) = self.known(dir, name).filter(|old| !Arc::ptr_eq(old, dent)) {
            self.forget(&old);
        }
        dent.leave_table();
        let place = DentryLocation { parent: Some(dir.clone()), name: name.into() };
        let former = std::mem::replace(&mut *lock(&dent.place), place);
        lock(&self.table.map).insert(self.table.key(dir, name), Arc::downgrade(dent));
        drop(former);
    }

    /// Records that the files of two names were exchanged, with `moving` held. `this` had the first name and `that`
    /// the second. Dents of other files under these names are marked gone, and dents that would form a cycle.
    pub(super) fn exchange(
        &self,
        (from, old, this): (&Arc<HostDentry>, &[u8], HostFileIdentity),
        (to, new, that): (&Arc<HostDentry>, &[u8], HostFileIdentity),
    ) {
        let exchanged = [(self.known(from, old), this, to, new), (self.known(to, new), that, from, old)];
        exchanged.iter().filter_map(|(dent, ..)| dent.as_ref()).for_each(|dent| dent.leave_table());
        for (dent, id, dir, name) in exchanged {
            match dent {
                Some(dent) if dent.id == id => self.rekey(&dent, dir, name),
                Some(dent) => self.forget(&dent),
                None => {}
            }
        }
    }

    /// Opens a name with `O_PATH`.
    pub(super) fn open_path(
        &self,
        host: &impl HostFs,
        how: ExecutionMode,
        dir: &OwnedFd,
        name: &[u8],
    ) -> Result<OwnedFd> {
        let cached = how == ExecutionMode::Inline;
        let open = || host.open(dir.as_fd(), name, OFlags::PATH, Mode::empty(), cached);
        self.with_room(how, open)
    }

    /// Calls `open`. If descriptors have run out, it closes half of the cached ones and tries once more, in the pool
    /// only.
    pub(super) fn with_room<T>(&self, how: ExecutionMode, open: impl Fn() -> Result<T>) -> Result<T> {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) if how == ExecutionMode::Inline => Err(Errno::AGAIN),
            Err(Errno::MFILE | Errno::NFILE) if self.handles.shrink() => open(),
            result => result,
        }
    }

    /// Caches a descriptor for a dent. If the dent already has one by now, that one is returned.
    fn keep(&self, dent: &Arc<HostDentry>, fd: OwnedFd) -> Arc<OwnedFd> {
        dent.used.store(true, Ordering::Relaxed);
        let mut handle = lock(&dent.handle);
        if let Some(fd) = &*handle {
            return fd.clone();
        }
        let fd = Arc::new(fd);
        *handle = Some(fd.clone());
        drop(handle);
        self.handles.add(Arc::downgrade(dent));
        fd
    }
}

impl HostDentry {
    fn new(id: HostFileIdentity, place: DentryLocation, table: Arc<DentryTable>) -> Self {
        let (used, gone) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { id, place: Mutex::new(place), handle: Mutex::new(None), used, gone, table }
    }

    /// Returns its directory; the root has none.
    pub(super) fn parent(&self) -> Option<Arc<HostDentry>> {
        lock(&self.place).parent.clone()
    }

    /// Returns its directory and its name there; `None` for the root.
    pub(super) fn place(&self) -> Option<(Arc<HostDentry>, Box<[u8]>)> {
        let place = lock(&self.place);
        Some((place.parent.clone()?, place.name.clone()))
    }

    /// Returns its name in its directory; "/" for the root.
    pub(super) fn name(&self) -> Box<[u8]> {
        lock(&self.place).name.clone()
    }

    /// Returns the path from the root; `None` if it or a directory above it is gone.
    pub(super) fn path(&self) -> Option<Box<[u8]>> {
        let (mut names, mut place) = (Vec::new(), self.place());
        if self.is_gone() {
            return None;
        }
        while let Some((dir, name)) = place {
            if dir.is_gone() {
                return None;
            }
            names.push(name);
            place = dir.place();
        }
        let path: Vec<u8> = names.iter().rev().flat_map(|name| [b"/", &**name]).flatten().copied().collect();
        Some(if path.is_empty() { b"/"[..].into() } else { path.into() })
    }

    /// Returns the `S_IFMT` bits of its mode.
    pub(super) fn ty(&self) -> u32 {
        self.id.ty
    }

    pub(super) fn is_dir(&self) -> bool {
        self.id.ty == S_IFDIR
    }

    /// Returns whether it was removed through this server, or found replaced.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Returns whether it is `top` or below it.
    pub(super) fn is_below(self: &Arc<Self>, top: &Arc<Self>) -> bool {
        let mut at = Some(self.clone());
        while let Some(dent) = at {
            if Arc::ptr_eq(&dent, top) {
                return true;
            }
            at = dent.parent();
        }
        false
    }

    /// Closes the cached descriptor of a removed file if only one fid, which is being clunked, refers to it.
    pub(super) fn close_if_last(self: &Arc<Self>) {
        if Arc::strong_count(self) == 1 {
            drop(lock(&self.handle).take());
        }
    }

    fn is_at(&self, dir: &Arc<Self>, name: &[u8]) -> bool {
        let place = lock(&self.place);
        place.parent.as_ref().is_some_and(|parent| Arc::ptr_eq(parent, dir)) && *place.name == *name
    }

    /// Returns its descriptor if it is cached.
    pub(super) fn cached(&self) -> Option<Arc<OwnedFd>> {
        let fd = lock(&self.handle).clone()?;
        self.used.store(true, Ordering::Relaxed);
        Some(fd)
    }

    /// Removes its entry from the table, if the entry is still its own. An entry whose dent is dead is removed as
    /// well.
    fn leave_table(&self) {
        let place = lock(&self.place);
        let Some(parent) = &place.parent else { return };
        let key = self.table.key(parent, &place.name);
        drop(place);
        let mut map = lock(&self.table.map);
        if map.get(&key).is_some_and(|weak| weak.strong_count() == 0 || std::ptr::eq(weak.as_ptr(), self)) {
            map.remove(&key);
        }
    }
}

impl Drop for HostDentry {
    /// Loops instead of recursing: a tree may be deeper than the stack.
    fn drop(&mut self) {
        self.leave_table();
        let mut next = lock(&self.place).parent.take();
        while let Some(mut parent) = next.and_then(Arc::into_inner) {
            parent.leave_table();
            next = parent.place.get_mut().unwrap_or_else(PoisonError::into_inner).parent.take();
        }
    }
}

/// Finds every live dent by a hash of its parent's address and its name. The hash is keyed and 64 bits wide. If two
/// names collide, the later one takes the entry and the earlier one is not found again, which is harmless. The size
/// is that of the live dents, which the sessions' fid limits bound.
#[derive(Default)]
struct DentryTable {
    map: Mutex<HashMap<u64, Weak<HostDentry>, BuildHasherDefault<PassThroughHasher>>>,
    hasher: RandomState,
}

impl DentryTable {
    fn key(&self, dir: &Arc<HostDentry>, name: &[u8]) -> u64 {
        self.hasher.hash_one((Arc::as_ptr(dir).addr(), name))
    }
}

/// A pass-through hasher for keys that are hashes already.
#[derive(Default)]
struct PassThroughHasher(u64);

impl Hasher for PassThroughHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// The cached descriptors, evicted by the clock algorithm: a descriptor used since the hand last passed gets another
/// round. At the limit the next unused one is closed. Descriptors of removed files are skipped as long as that leaves
/// half of the cache for others: they could not be opened again.
struct HandleCache {
    ring: Mutex<VecDeque<Weak<HostDentry>>>,
    most: usize,
}

impl HandleCache {
    fn new(most: usize) -> Self {
        Self { ring: Mutex::default(), most: most.max(2) }
    }

    fn add(&self, dent: Weak<HostDentry>) {
        let mut ring = lock(&self.ring);
        // Each call drops up to two dead entries, so that they never far outnumber the live ones.
        for _ in 0..2 {
            let next = ring.pop_front();
            ring.extend(next.filter(|dent| dent.strong_count() > 0));
        }
        let excess = (ring.len() + 1).saturating_sub(self.most);
        let closed = Self::evict(&mut ring, excess);
        ring.push_back(dent);
        drop(ring);
        // Closing a descriptor, or dropping the last reference to a dent, takes time and other locks.
        drop(closed);
    }

    fn shrink(&self) -> bool {
        let mut ring = lock(&self.ring);
        let half = ring.len().div_ceil(2);
        let closed = Self::evict(&mut ring, half);
        drop(ring);
        closed.iter().any(|(_, fd)| fd.is_some())
    }

    /// Takes `n` descriptors out of the ring. The caller must drop the result after it unlocks the ring.
    fn evict(
        ring: &mut VecDeque<Weak<HostDentry>>,
        n: usize,
    ) -> Vec<(Arc<HostDentry>, Option<Arc<OwnedFd>>)> {
        let mut closed = Vec::new();
        let mut kept_gone = ring.len() / 2;
        let mut freed = 0;
        for _ in 0..ring.len() * 2 {
            if freed == n {
                break;
            }
            let Some(weak) = ring.pop_front() else { break };
            let Some(dent) = weak.upgrade() else {
                freed += 1;
                continue;
            };
            let spare = dent.is_gone() && kept_gone > 0;
            if spare || dent.used.swap(false, Ordering::Relaxed) {
                kept_gone -= usize::from(spare);
                ring.push_back(weak);
                closed.push((dent, None));
                continue;
            }
            let fd = lock(&dent.handle).take();
            closed.push((dent, fd));
            freed += 1;
        }
        closed
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
