//! Files in use: the path under which each was reached, its record locks, and whether it is to be removed when its last
//! fid is clunked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nine_io::limits::FairLimit;
use nine_io::server::locks::{LOCKS_MAX, Ranges};

use crate::hash::FixedMap;

/// A file in use, shared by all its fids.
pub(crate) struct LiveFile {
    pub(crate) ino: u64,
    /// The directory and name by which it was reached first, or moved to last.
    place: Mutex<(u64, Box<[u8]>)>,
    locks: Mutex<Ranges>,
    /// The limit of record locks on all files.
    pub(crate) lock_limit: Arc<FairLimit>,
    /// The number of the open file that has exclusive use of it.
    alone: Mutex<Option<u64>>,
    /// It has lost a name, perhaps its last.
    gone: AtomicBool,
    dropped: Arc<Mutex<Vec<(u64, bool)>>>,
}

/// All files in use.
pub(crate) struct LiveFiles {
    files: FixedMap<u64, Weak<LiveFile>>,
    /// The limit of record locks on all of them.
    lock_limit: Arc<FairLimit>,
    /// Files no longer in use, and whether they are to be removed.
    dropped: Arc<Mutex<Vec<(u64, bool)>>>,
}

impl Default for LiveFiles {
    fn default() -> Self {
        let (files, dropped) = (FixedMap::default(), Arc::default());
        Self { files, lock_limit: FairLimit::new(LOCKS_MAX), dropped }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LiveFile {
    /// Returns the directory and the name of the file.
    pub(crate) fn place(&self) -> (u64, Box<[u8]>) {
        lock(&self.place).clone()
    }

    pub(crate) fn locks(&self) -> MutexGuard<'_, Ranges> {
        lock(&self.locks)
    }

    /// Returns whether an open file has exclusive use of it.
    pub(crate) fn is_taken(&self) -> bool {
        lock(&self.alone).is_some()
    }

    /// Gives an open file exclusive use.
    pub(crate) fn take(&self, open: u64) {
        *lock(&self.alone) = Some(open);
    }

    /// Closes an open file: releases its exclusive use and its locks.
    pub(crate) fn close(&self, open: u64) {
        lock(&self.alone).take_if(|taken| *taken == open);
        self.locks().release(open);
    }
}

impl Drop for LiveFile {
    fn drop(&mut self) {
        lock(&self.dropped).push((self.ino, *self.gone.get_mut()));
    }
}

impl LiveFiles {
    /// Returns whether `live` belongs to this archive, not to another one that was served in its place.
    pub(crate) fn has_made(&self, live: &LiveFile) -> bool {
        Arc::ptr_eq(&live.dropped, &self.dropped)
    }

    /// Returns a file by its inode. If it was not in use, `dir` and `name` become its path.
    pub(crate) fn get(&mut self, ino: u64, dir: u64, name: &[u8]) -> Arc<LiveFile> {
        if let Some(live) = self.files.get(&ino).and_then(Weak::upgrade) {
            return live;
        }
        let live = Arc::new(LiveFile {
            ino,
            place: Mutex::new((dir, name.into())),
            locks: Mutex::default(),
            lock_limit: self.lock_limit.clone(),
            alone: Mutex::default(),
            gone: AtomicBool::new(false),
            dropped: self.dropped.clone(),
        });
        self.files.insert(ino, Arc::downgrade(&live));
        live
    }

    /// Returns whether the file is in use.
    pub(crate) fn has(&self, ino: u64) -> bool {
        self.files.get(&ino).is_some_and(|live| live.strong_count() > 0)
    }

    /// Records that a file was moved.
    pub(crate) fn moved(&self, ino: u64, dir: u64, name: &[u8]) {
        if let Some(live) = self.files.get(&ino).and_then(Weak::upgrade) {
            *lock(&live.place) = (dir, name.into());
        }
    }

    /// Records that a file has lost a name. It is dropped at once if it is not in use, or else with its last user.
    pub(crate) fn lost(&self, ino: u64) {
        match self.files.get(&ino).and_then(Weak::upgrade) {
            Some(live) => live.gone.store(true, Ordering::Relaxed),
            None => lock(&self.dropped).push((ino, true)),
        }
    }

    /// Returns whether files that are to be removed have not been taken by [`dropped`](Self::dropped) yet.
    pub(crate) fn has_lost(&self) -> bool {
        lock(&self.dropped).iter().any(|(_, gone)| *gone)
    }

    /// Takes the inodes that are no longer in use and may have no name.
    pub(crate) fn dropped(&mut self) -> Vec<u64> {
        let dropped = std::mem::take(&mut *lock(&self.dropped));
        for (ino, _) in &dropped {
            if !self.has(*ino) {
                self.files.remove(ino);
            }
        }
        dropped.into_iter().filter_map(|(ino, gone)| gone.then_some(ino)).collect()
    }
}
