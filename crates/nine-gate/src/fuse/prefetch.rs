//! Directory prefetch: when a program looks up one name after the other in a directory of a server far away, all files
//! of the directory but its subdirectories are looked up together, so that the next lookups need no round trip.
//!
//! In: lookups, with the time that they took; changes by this mount. Out: the fids and attributes of a directory's
//! files, for lookups within [`LIFE`]. In terms of the kernel's caches they are a reply that arrives late.
//!
//! Always holds: a prefetched file answers one lookup, and only if neither this mount nor the server has reported a
//! change of its name or of the file since the prefetch began. At most [`FILES_MAX`] fids are held, none for longer
//! than [`LIFE`].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use nine_io::client::{self, File};
use nine_proto::{Attr, Errno, OpenFlags, mode};

use super::nodes::{KernelNode, RequestEpoch, WANTED};
use super::ops::errno;
use super::write_behind::FAR;
use super::{Cache, FuseReply, MountState};

/// Number of lookups in a directory that start a prefetch.
const LOOKUPS: u32 = 2;
/// Lookups further apart are not counted together.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long prefetched files are kept, and the least time between two prefetches of a directory.
const LIFE: Duration = Duration::from_secs(5);
/// Maximum size of a directory listing that is prefetched, in bytes; about 1,000 names.
const LISTING_LEN_MAX: u32 = 64 * 1024;
/// Maximum number of prefetched files of a mount.
const FILES_MAX: usize = 8192;
/// Maximum number of directories whose lookups are counted.
const DIRS_MAX: usize = 1024;

/// See the module.
#[derive(Default)]
pub(super) struct DirectoryPrefetcher {
    dirs: RefCell<HashMap<u64, PrefetchedDir, foldhash::fast::FixedState>>,
    /// Files in `dirs`.
    files: Cell<usize>,
    /// Directories whose prefetch is to be started, each with its number.
    starts: RefCell<Vec<(u64, u64)>>,
    /// The number of prefetches so far.
    number: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

/// The lookups in a directory, and what was prefetched of it.
struct PrefetchedDir {
    /// Lookups that were sent to the server, and the time of the last one.
    lookups: u32,
    last: Duration,
    /// The latest prefetch: its number and time.
    latest: Option<(u64, Duration)>,
    found: Option<FoundFiles>,
}

struct FoundFiles {
    asked: RequestEpoch,
    /// When the request was sent.
    at: Duration,
    files: HashMap<Box<[u8]>, (File, Attr), foldhash::fast::FixedState>,
}

impl DirectoryPrefetcher {
    /// To be held while this mount changes names in a directory.
    pub(super) fn change(&self, dir: u64) -> ChangeGuard<'_> {
        ChangeGuard { prefetcher: self, dirs: vec![dir] }
    }

    /// To be held while this mount changes a file.
    pub(super) fn change_file(&self, node: &KernelNode) -> ChangeGuard<'_> {
        let dirs = if self.dirs.borrow().is_empty() { Vec::new() } else { node.dirs() };
        ChangeGuard { prefetcher: self, dirs }
    }

    fn forget(&self, dir: u64) {
        let mut dirs = self.dirs.borrow_mut();
        if let Some(dir) = dirs.get_mut(&dir) {
            self.drop_found(dir);
            // The results of a prefetch in flight are not used.
            dir.latest = dir.latest.map(|(_, time)| (0, time));
        }
    }

    fn drop_found(&self, dir: &mut PrefetchedDir) {
        if let Some(found) = dir.found.take() {
            self.files.set(self.files.get() - found.files.len());
        }
    }
}

impl MountState {
    /// Answers a lookup from prefetched files.
    pub(super) fn prefetched(&self, dir: u64, name: &[u8]) -> Option<FuseReply> {
        let mut dirs = self.prefetcher.dirs.borrow_mut();
        let known = dirs.get_mut(&dir)?;
        let found = known.found.as_mut()?;
        let (asked, age) = (found.asked, self.clock.now() - found.at);
        let nodes = self.nodes.borrow();
        let limit = self.good(|told| told.name(&nodes, dir)).min(LIFE);
        if age >= limit || asked.has_moves_since(nodes.asks()) || nodes.has_name_changed(asked, dir, name) {
            drop(nodes);
            self.prefetcher.drop_found(known);
            return None;
        }
        let (file, attr) = found.files.remove(name)?;
        self.prefetcher.files.set(self.prefetcher.files.get() - 1);
        if nodes.known(&attr).is_some_and(|node| nodes.has_file_changed(asked, node.id)) {
            return None;
        }
        drop((nodes, dirs));
        Some(self.found(asked, age, dir, name, file, &attr))
    }

    /// Counts a lookup that was sent to the server at `begun` and is answered. May start a prefetch.
    pub(super) fn looked_up(&self, dir: u64, begun: Duration) {
        let now = self.clock.now();
        if now - begun < FAR || self.options.cache == Cache::Never {
            return;
        }
        let this = &self.prefetcher;
        let mut dirs = this.dirs.borrow_mut();
        if dirs.len() >= DIRS_MAX && !dirs.contains_key(&dir) {
            dirs.retain(|_, dir| dir.found.is_some() || now - dir.last < PAUSE_MAX);
            if dirs.len() >= DIRS_MAX {
                return;
            }
        }
        let new = || PrefetchedDir { lookups: 0, last: now, latest: None, found: None };
        let known = dirs.entry(dir).or_insert_with(new);
        known.lookups = if begun.saturating_sub(known.last) < PAUSE_MAX { known.lookups + 1 } else { 1 };
        known.last = now;
        let is_due = known.latest.is_none_or(|(_, time)| now - time >= LIFE);
        if known.lookups < LOOKUPS || !is_due || this.files.get() >= FILES_MAX {
            return;
        }
        this.number.set(this.number.get() + 1);
        known.latest = Some((this.number.get(), now));
        this.starts.borrow_mut().push((dir, this.number.get()));
        this.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Prefetches, forever.
    pub(super) async fn prefetch(&self) -> Infallible {
        let mut running = FuturesUnordered::new();
        poll_fn(|cx| {
            for (dir, number) in self.prefetcher.starts.take() {
                running.push(self.prefetch_dir(dir, number));
            }
            self.prefetcher.waker.replace(Some(cx.waker().clone()));
            while let Poll::Ready(Some(())) = running.poll_next_unpin(cx) {}
            Poll::Pending
        })
        .await
    }

    async fn prefetch_dir(&self, dir: u64, number: u64) {
        let this = &self.prefetcher;
        // An error will be met by the lookups themselves.
        let Ok(found) = self.find_files(dir).await else { return };
        let is_wanted = |known: &PrefetchedDir| known.latest.is_some_and(|(latest, _)| latest == number);
        match this.dirs.borrow_mut().get_mut(&dir) {
            Some(known) if is_wanted(known) && this.files.get() + found.files.len() <= FILES_MAX => {
                this.drop_found(known);
                this.files.set(this.files.get() + found.files.len());
                known.found = Some(found);
            }
            _ => return,
        }
        self.clock.sleep_until(self.clock.now() + LIFE).await;
        if let Some(known) = this.dirs.borrow_mut().get_mut(&dir).filter(|known| is_wanted(known)) {
            this.drop_found(known);
        }
    }

    async fn find_files(&self, dir: u64) -> Result<FoundFiles, Errno> {
        let parent = self.file(dir).await?;
        let (asked, at) = (self.asks(), self.clock.now());
        let walked = async {
            let listing = parent.open("", OpenFlags::READ).await?;
            let block = listing.read_dir_block(0, LISTING_LEN_MAX).await?;
            let entries = block.map(|(entries, _)| entries).unwrap_or_default();
            let walks = entries.into_iter().filter(|entry| !entry.is_dir()).map(async |entry| {
                let walked = parent.walk_attr(&entry.name, WANTED).await;
                walked.ok().map(|file| (entry.name, file))
            });
            client::Result::Ok(join_all(walks).await)
        };
        // A failed walk is repeated by the lookup.
        let walked = walked.await.map_err(errno)?.into_iter().flatten();
        // A file with several names may be changed by another name, and a directory by names below it. The server
        // reports such changes by paths that are not known here.
        let is_alone = |attr: &Attr| attr.nlink == 1 && attr.mode & mode::S_IFMT != mode::S_IFDIR;
        Ok(FoundFiles { asked, at, files: walked.filter(|(_, (_, attr))| is_alone(attr)).collect() })
    }
}

/// A change by this mount in flight. When it ends, also by an interrupt, files that were prefetched before are
/// forgotten.
pub(super) struct ChangeGuard<'a> {
    prefetcher: &'a DirectoryPrefetcher,
    dirs: Vec<u64>,
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.dirs.iter().for_each(|dir| self.prefetcher.forget(*dir));
    }
}
