//! Files that somebody has at hand: where each was met, who holds locks on it; and which are to be removed when the
//! last one lets go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nine_io::limits::FairLimit;
use nine_io::server::locks::{LOCKS_MAX, Ranges};

use crate::hash::Map;

/// A file at hand; shared by all fids that have it.
pub(crate) struct Live {
    pub(crate) ino: u64,
    /// The directory and the name by which it was met or moved last.
    place: Mutex<(u64, Box<[u8]>)>,
    locks: Mutex<Ranges>,
    /// Of record locks on all files.
    pub(crate) lock_limit: Arc<FairLimit>,
    /// By its number, the open file that has it alone.
    alone: Mutex<Option<u64>>,
    /// It has lost its last name.
    gone: AtomicBool,
    dropped: Arc<Mutex<Vec<(u64, bool)>>>,
}

/// All of them.
pub(crate) struct Lives {
    files: Map<u64, Weak<Live>>,
    /// Of their record locks.
    lock_limit: Arc<FairLimit>,
    /// Those that nobody has any more, and whether they are to be removed.
    dropped: Arc<Mutex<Vec<(u64, bool)>>>,
}

impl Default for Lives {
    fn default() -> Self {
        let (files, dropped) = (Map::default(), Arc::default());
        Self { files, lock_limit: FairLimit::new(LOCKS_MAX), dropped }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    /// Where it was met last.
    pub(crate) fn place(&self) -> (u64, Box<[u8]>) {
        lock(&self.place).clone()
    }

    pub(crate) fn locks(&self) -> MutexGuard<'_, Ranges> {
        lock(&self.locks)
    }

    /// Whether an open file has it alone.
    pub(crate) fn is_taken(&self) -> bool {
        lock(&self.alone).is_some()
    }

    /// This open file has it alone.
    pub(crate) fn take(&self, open: u64) {
        *lock(&self.alone) = Some(open);
    }

    /// This open file is closed.
    pub(crate) fn close(&self, open: u64) {
        lock(&self.alone).take_if(|taken| *taken == open);
        self.locks().release(open);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        lock(&self.dropped).push((self.ino, *self.gone.get_mut()));
    }
}

impl Lives {
    /// Whether it is one of these, and not of another archive in whose place this one is served.
    pub(crate) fn has_made(&self, live: &Live) -> bool {
        Arc::ptr_eq(&live.dropped, &self.dropped)
    }

    /// A file, met under this name.
    pub(crate) fn get(&mut self, ino: u64, dir: u64, name: &[u8]) -> Arc<Live> {
        if let Some(live) = self.files.get(&ino).and_then(Weak::upgrade) {
            return live;
        }
        let live = Arc::new(Live {
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

    /// Whether somebody has it.
    pub(crate) fn has(&self, ino: u64) -> bool {
        self.files.get(&ino).is_some_and(|live| live.strong_count() > 0)
    }

    /// It is here now.
    pub(crate) fn moved(&self, ino: u64, dir: u64, name: &[u8]) {
        if let Some(live) = self.files.get(&ino).and_then(Weak::upgrade) {
            *lock(&live.place) = (dir, name.into());
        }
    }

    /// It has lost a name; if that was the last, it goes with whoever has it, or soon.
    pub(crate) fn lost(&self, ino: u64) {
        match self.files.get(&ino).and_then(Weak::upgrade) {
            Some(live) => live.gone.store(true, Ordering::Relaxed),
            None => lock(&self.dropped).push((ino, true)),
        }
    }

    /// Whether some that are to be removed have not been asked for yet.
    pub(crate) fn has_lost(&self) -> bool {
        lock(&self.dropped).iter().any(|(_, gone)| *gone)
    }

    /// Files that nobody has any more, and that may have no name.
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
