//! An archive that is open: operations on its tree, the commits that make them durable, its dumps.
//!
//! In: operations, the time, devices. Out: results. The [`Driver`] does the background work.
//!
//! ```text
//! 9P (serve) -> attempt (again, until all it needs is in memory) -> fs -> memory
//!                                                        commit <---------|
//!                                            dump: copy, sweep --> cw --> c, w
//! ```
//! Always holds: the state's lock is never held during a device operation. Commits do not overlap. Changes reported as
//! durable are durable.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use nine_block::{Ahead, Cache, Cached, Device, Error as Wrong, Kind, Options};
use nine_io::server::xattr::XattrLimit;
use nine_proto::{Errno, Error, Result, Time};

use crate::cw::{
    BlockTag, CommitChanges, CommitFields, CreateOptions, Cw, NewestSuperblock, WaitingDump, WormLabel,
};
use crate::date::LocalZone;
use crate::dump::{self, LoadedDump};
use crate::follow;
use crate::fs::{ArchiveFs, FsResult, OperationStop};
use crate::grow::Grow;
use crate::hash::FixedMap;
use crate::item::{DecodedKey, DumpRecord, ItemKey};
use crate::jobs::{Driver, JobQueue, WaiterList, yield_now};
use crate::live::LiveFiles;
use crate::log::Log;
use crate::memory::BlockMemory;
use crate::ptr::BlockPtr;
use crate::scrub;
use crate::tree;
use crate::turns::Turns;
use crate::users::UserTable;

/// Ticks before the removal of a file is retried after a failure.
const REAP_AGAIN: u32 = 20;
/// Maximum size of /adm/users in bytes.
const USERS_TEXT_MAX: u32 = 4 << 20;
/// Changes older than this are committed.
const AGE: Duration = Duration::from_secs(5);

/// The wall clock: seconds and nanoseconds since 1970.
pub type Wall = Arc<dyn Fn() -> Time + Send + Sync>;

/// The options with which an archive is opened.
#[derive(Clone)]
pub struct Settings {
    /// Bytes of the block cache.
    pub memory: u64,
    /// Bytes of changes in memory before clients wait for the commit.
    pub dirty: u64,
    /// The read-ahead policy.
    pub ahead: Ahead,
    /// The time zone in which dumps are dated and scheduled, by its IANA name; `None`: the system's.
    pub zone: Option<String>,
    /// The source of file times.
    pub wall: Wall,
    /// The epoch of the lease under which the archive writes (docs/lease.md); 0: it needs no lease.
    pub epoch: u64,
}

/// The options with which a new archive is created.
#[derive(Clone, Debug)]
pub struct Ream {
    /// Its name, at most 64 bytes.
    pub name: String,
    /// Bytes of a block: 8, 16, 32 or 64 KiB.
    pub block: u32,
    /// Blocks read from w are not copied to c. Use this if both devices are equally fast.
    pub fastworm: bool,
    /// Slots have the seed's former order: for measurements.
    pub row_order: bool,
    /// The identity of the archive; it should be random.
    pub identity: [u8; 16],
    /// Owner and group of the root directory.
    pub owner: (u32, u32),
}

/// An open archive. Cheap to clone.
#[derive(Clone)]
pub struct Archive(pub(crate) Arc<ArchiveShared>);

pub(crate) struct ArchiveShared {
    pub(crate) cw: Cw,
    cache: Cache,
    pub(crate) cached: Cached,
    state: Mutex<ArchiveState>,
    jobs: JobQueue,
    /// The number of jobs that remove a file or part of one.
    removing: AtomicUsize,
    pub(crate) wall: Wall,
    pub(crate) zone: LocalZone,
    pub(crate) label: WormLabel,
    pub(crate) epoch: u64,
    pub(crate) log: Log,
}

/// The data that the lock protects.
pub(crate) struct ArchiveState {
    pub(crate) fs: ArchiveFs,
    pub(crate) lives: LiveFiles,
    pub(crate) xattr_limit: XattrLimit,
    pub(crate) users: Arc<UserTable>,
    /// All dumps by generation, including those that are not on w yet.
    pub(crate) dumps: BTreeMap<u32, LoadedDump>,
    /// The dumps that are not on w yet, oldest first.
    pub(crate) waiting: Vec<WaitingDump>,
    pub(crate) newest: NewestSuperblock,
    pub(crate) next_worm: u64,
    /// For the next commit.
    pub(crate) forward: Vec<crate::cw::CopiedBlock>,
    pub(crate) swept: Vec<u64>,
    /// The fields of the next commit differ, although no block has changed.
    pub(crate) noted: bool,
    /// The number of the commit that takes the present changes.
    pub(crate) epoch: u64,
    /// The number of the last durable commit.
    pub(crate) durable: u64,
    pub(crate) committing: bool,
    /// Another commit was requested.
    pub(crate) wanted: bool,
    /// The tick at which the oldest uncommitted change was first seen.
    pub(crate) dirty_since: Option<Duration>,
    /// Tasks that wait for a commit or for free slots.
    pub(crate) waiters: WaiterList,
    /// How often a commit has failed because a device has no storage left.
    pub(crate) found_full: u64,
    /// The error after which nothing changes any more.
    pub(crate) stopped: Option<Wrong>,
    /// The state of a follower: another server writes the dumps.
    pub(crate) follows: Option<follow::FollowerState>,
    pub(crate) grow: Option<Grow>,
    pub(crate) turns: Option<Turns>,
    /// The epoch in the newest superblock.
    pub(crate) newest_epoch: u64,
    /// New clients are refused.
    pub(crate) closed_to_new: bool,
    pub(crate) dumper: dump::CopyState,
    pub(crate) scrubber: scrub::ScrubState,
    pub(crate) now: Duration,
    /// The number of files opened so far.
    opened: u64,
    /// The inode of /adm/users, if it exists; and whether the file has changed since it was read.
    users_file: Option<u64>,
    users_changed: bool,
    /// The changes that subscribers read.
    pub(crate) changes: Arc<nine_io::changes::Changes>,
    /// Names of directories by inode, as they were found last.
    pub(crate) names: FixedMap<u64, Box<[u8]>>,
}

/// Converts a device error for clients.
pub(crate) fn errno(error: &Wrong) -> Error {
    let errno = match error.kind {
        Kind::ReadOnly | Kind::Reserved => Errno::EROFS,
        Kind::Full => Errno::ENOSPC,
        _ => Errno::EIO,
    };
    Error::new(errno, error.text.to_string())
}

impl Archive {
    /// Creates a new archive, which overwrites both devices. If c has no sectors, the archive has no cache device, and
    /// w must be rewritable.
    ///
    /// # Errors
    /// Errors of the devices; a device is too small.
    pub async fn ream(
        c: Arc<dyn Device>,
        w: Arc<dyn Device>,
        ream: &Ream,
        settings: &Settings,
    ) -> nine_block::Result<()> {
        let time = (settings.wall)();
        let making = CreateOptions {
            block: ream.block,
            fastworm: ream.fastworm,
            row_order: ream.row_order,
            identity: ream.identity,
            time,
            name: ream.name.clone(),
        };
        let cw = Cw::ream(c, w, making).await?;
        let memory =
            BlockMemory::new(cw.clone(), Cache::new(options(&cw, settings)).over(Arc::new(cw.clone()))?);
        let mut fs = ArchiveFs::new(memory, settings.dirty);
        fs.begin(ream.owner.0, ream.owner.1, time);
        let users = UserTable::default().to_string();
        fs.put_users(&users, time).expect("everything is new, and in memory");
        fs.settle().expect("everything is new, and in memory");
        let (blocks, freed) = fs.mem.close();
        let fields = CommitFields { root: fs.mem.root, next_inode: fs.next_inode, ..cw.fields() };
        cw.commit(&CommitChanges { blocks, freed, fields, ..Default::default() }).await?;
        cw.tidy(true).await
    }

    /// Returns the name of the archive on this worm, its block size in bytes and its creation time.
    ///
    /// # Errors
    /// There is no archive.
    pub async fn label(w: &dyn Device) -> nine_block::Result<(String, u32, Time)> {
        let WormLabel { name, block, made, .. } = Cw::label(w).await?;
        Ok((name, block, made))
    }

    /// Opens the archive on these devices, in the state of its last commit. The caller must poll the returned
    /// [`Driver`].
    ///
    /// # Errors
    /// A message for people.
    pub async fn open(
        c: Arc<dyn Device>,
        w: Arc<dyn Device>,
        settings: &Settings,
    ) -> nine_block::Result<(Self, Driver)> {
        Self::open_as(c, w, settings, None).await
    }

    /// The same, but with `stopped` nothing changes, for that reason.
    pub(crate) async fn open_as(
        c: Arc<dyn Device>,
        w: Arc<dyn Device>,
        settings: &Settings,
        stopped: Option<Wrong>,
    ) -> nine_block::Result<(Self, Driver)> {
        let label = Cw::label(&*w).await?;
        Self::on(Cw::open(c, w).await?, label, settings, stopped).await
    }

    /// The same for a cached worm that is open.
    pub(crate) async fn on(
        cw: Cw,
        label: WormLabel,
        settings: &Settings,
        stopped: Option<Wrong>,
    ) -> nine_block::Result<(Self, Driver)> {
        let (archive, driver) = Self::of(cw, label, settings, stopped)?;
        archive.load().await.map_err(|error| Wrong::new(Kind::Failed, error))?;
        Ok((archive, driver))
    }

    /// Creates the archive without reading anything of its tree.
    pub(crate) fn of(
        cw: Cw,
        label: WormLabel,
        settings: &Settings,
        stopped: Option<Wrong>,
    ) -> nine_block::Result<(Self, Driver)> {
        let bad = |text: String| Wrong::new(Kind::Unsupported, text);
        let zone = match &settings.zone {
            Some(name) => LocalZone::new(name).map_err(bad)?,
            None => LocalZone::local(),
        };
        let cache = Cache::new(options(&cw, settings));
        let cached = cache.over(Arc::new(cw.clone()))?;
        let fields = cw.fields();
        if fields.root.made == 0 {
            let text = "it was not made to the end: make it again";
            return Err(Wrong::new(Kind::Unsupported, text).of(cw.name()));
        }
        let memory = BlockMemory::new(cw.clone(), cached.clone());
        let state = ArchiveState {
            fs: ArchiveFs::new(memory, settings.dirty.min(cw.entries_most() as u64 / 4 * cw.block() as u64)),
            lives: LiveFiles::default(),
            xattr_limit: XattrLimit::default(),
            users: Arc::default(),
            dumps: BTreeMap::new(),
            waiting: fields.waiting,
            newest: fields.newest,
            next_worm: fields.next_worm,
            forward: Vec::new(),
            swept: Vec::new(),
            noted: false,
            epoch: 1,
            found_full: 0,
            durable: 0,
            committing: false,
            wanted: false,
            dirty_since: None,
            waiters: WaiterList::default(),
            stopped,
            follows: None,
            grow: None,
            turns: None,
            newest_epoch: 0,
            closed_to_new: false,
            dumper: dump::CopyState::default(),
            scrubber: scrub::ScrubState::default(),
            now: Duration::ZERO,
            opened: 0,
            users_file: None,
            users_changed: false,
            changes: nine_io::changes::Changes::new(),
            names: FixedMap::default(),
        };
        let (jobs, wall) = (JobQueue::default(), settings.wall.clone());
        let driver = jobs.driver();
        let (state, removing) = (Mutex::new(state), AtomicUsize::new(0));
        let (epoch, log) = (settings.epoch, Log::new(jobs.clone()));
        let inner = ArchiveShared { cw, cache, cached, state, jobs, removing, wall, zone, label, epoch, log };
        Ok((Self(Arc::new(inner)), driver))
    }

    /// Reads the parts of the tree that stay in memory. Then resumes the work that the last run has left, unless
    /// nothing may change.
    pub(crate) async fn load(&self) -> Result<()> {
        self.knows_epoch().await.map_err(|error| errno(&error))?;
        if self.0.epoch != 0 {
            self.0.cw.opened_by(self.0.epoch).await.map_err(|error| errno(&error))?;
        }
        self.attempt(|state| state.fs.load_usage()).await?;
        let dumps = self.attempt(|state| state.find_dumps()).await?;
        let dumps = self.known_dumps(dumps).await.map_err(|error| errno(&error))?;
        self.state().dumps = dumps;
        if let Err(error) = self.load_users().await {
            self.warn(format_args!(
                "/adm/users is not taken, the users are the five that there always are: {error}"
            ));
        }
        let orphans = self.attempt(|state| state.fs.orphans()).await?;
        if self.state().stopped.is_none() {
            orphans.into_iter().for_each(|ino| self.reap(ino));
        }
        self.begin_copies();
        let archive = self.clone();
        self.0.jobs.begin(async move {
            if let Err(error) = archive.0.cw.find_copies().await {
                archive.warn(format_args!("copies of a former life are not used: {error}"));
            }
        });
        Ok(())
    }

    /// Tells subscribers that another archive is served in the place of this one.
    pub fn ends_changes(&self) {
        self.state().changes.over();
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ArchiveState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.jobs.begin(work);
    }

    pub(crate) fn time(&self) -> Time {
        (self.0.wall)()
    }

    /// Returns the statistics of the block cache.
    pub fn cache_stats(&self) -> nine_block::Stats {
        self.0.cache.stats()
    }

    /// Tries an operation once, with the blocks that are in memory.
    pub(crate) fn once<T>(&self, op: &mut impl FnMut(&mut ArchiveState) -> FsResult<T>) -> FsResult<T> {
        self.once_with(|_| (), op)
    }

    /// The same, after `prepare` has run on the memory.
    fn once_with<T>(
        &self,
        prepare: impl FnOnce(&mut BlockMemory),
        op: &mut impl FnMut(&mut ArchiveState) -> FsResult<T>,
    ) -> FsResult<T> {
        let (result, ahead) = {
            let state = &mut *self.state();
            prepare(&mut state.fs.mem);
            let mut result = op(state);
            let soon = state.fs.mem.takes_soon();
            if let Err(OperationStop::Node(nodes)) = &mut result {
                nodes.extend(soon);
            }
            state.fs.mem.unpin([]);
            self.after(state);
            (result, state.fs.mem.takes_ahead())
        };
        if ahead {
            self.0.cached.go_on();
        }
        result
    }

    /// Requests a commit if many blocks have changed.
    fn after(&self, state: &mut ArchiveState) {
        let half = state.fs.most() / 2;
        let (open, freed) = state.fs.mem.changed();
        if open >= half || freed >= half {
            self.want_commit(state);
        }
    }

    /// Runs an operation, and repeats it until all blocks that it needs are in memory.
    pub(crate) async fn attempt<T>(&self, mut op: impl FnMut(&mut ArchiveState) -> FsResult<T>) -> Result<T> {
        match self.once(&mut op) {
            Ok(done) => Ok(done),
            Err(OperationStop::Error(error)) => Err(error),
            Err(stop) => self.again(stop, op).await,
        }
    }

    /// The same, after a first try that has ended with `stop`.
    pub(crate) async fn again<T>(
        &self,
        mut stop: OperationStop,
        mut op: impl FnMut(&mut ArchiveState) -> FsResult<T>,
    ) -> Result<T> {
        // Fetched blocks, and the stamp as of which each is valid.
        let mut have: FixedMap<u64, (Bytes, u64)> = FixedMap::default();
        let mut fetching: Option<BlockFetch> = None;
        loop {
            if matches!(stop, OperationStop::Miss(_) | OperationStop::Node(_)) {
                let stamp = fetching.get_or_insert_with(|| BlockFetch::new(self)).now();
                for (at, block) in self.fetch(stop).await? {
                    have.insert(at, (block, stamp));
                }
            } else {
                // This may take long, and other operations run meanwhile.
                have.clear();
                fetching = None;
                self.clear(stop).await?;
            }
            let prepare = |mem: &mut BlockMemory| {
                have.retain(|at, (_, stamp)| !mem.is_stale(*at, *stamp));
                mem.unpin(have.iter().map(|(at, (block, _))| (*at, block.clone())));
            };
            let result = self.once_with(prepare, &mut op);
            stop = match result {
                Ok(done) => return Ok(done),
                Err(OperationStop::Error(error)) => return Err(error),
                Err(stop) => stop,
            };
        }
    }

    /// Fetches the missing blocks.
    async fn fetch(&self, stop: OperationStop) -> Result<Vec<(u64, Bytes)>> {
        let (mut blocks, are_nodes) = match stop {
            OperationStop::Miss(blocks) => (blocks, false),
            OperationStop::Node(nodes) => (nodes, true),
            _ => return Ok(Vec::new()),
        };
        if are_nodes {
            let first = blocks[0];
            blocks.retain(|at| *at == first || at.at < self.0.cw.end());
        }
        if let Some(at) = blocks.iter().find(|at| at.at >= self.0.cw.end()) {
            let text = format!("there is no block {:#x}", at.at);
            return Err(self.unreadable(*at, &Wrong::new(Kind::Failed, text)));
        }
        // Read adjacent blocks together.
        let runs = blocks.chunk_by(|one, next| one.at + 1 == next.at);
        let calls: Vec<_> = runs
            .flat_map(|run| {
                let from = run[0].at;
                run.iter().copied().zip(self.0.cached.get_all(from..from + run.len() as u64))
            })
            .collect();
        let mut have = Vec::with_capacity(calls.len());
        for (n, (at, call)) in calls.into_iter().enumerate() {
            let is_it =
                |block: &Bytes| BlockTag::made(block) == at.made && (!are_nodes || BlockTag::is_node(block));
            match call.await {
                Ok(block) if is_it(&block) => have.push((at.at, block)),
                // A prefetched node. If an operation needs it, its own fetch reports the error.
                _ if are_nodes && n > 0 => {}
                Err(error) => return Err(self.unreadable(at, &error)),
                Ok(_) => {
                    let text = format!("block {:#x} is another one than what points to it says", at.at);
                    return Err(self.unreadable(at, &Wrong::new(Kind::Failed, text)));
                }
            }
        }
        Ok(have)
    }

    /// Waits until the operation can be tried again.
    async fn clear(&self, stop: OperationStop) -> Result<()> {
        match stop {
            OperationStop::Miss(_) | OperationStop::Node(_) => Ok(()),
            OperationStop::Page(row) => self.0.cw.load_row(row).await.map_err(|error| errno(&error)),
            OperationStop::Again => {
                yield_now().await;
                Ok(())
            }
            OperationStop::Wait => {
                let has_changes = self.state().has_changes();
                self.sync().await?;
                if !has_changes {
                    self.next_tick().await;
                }
                Ok(())
            }
            OperationStop::Full => Box::pin(self.find_room()).await,
            // A file's quota is charged until its removal is complete.
            OperationStop::Quota
                if self.0.removing.load(Ordering::Relaxed) > 0 || self.state().lives.has_lost() =>
            {
                self.next_tick().await;
                Ok(())
            }
            OperationStop::Quota => Err(Errno::EDQUOT.into()),
            OperationStop::Error(error) => Err(error),
        }
    }

    /// Logs that a block could not be read, and returns the error for clients.
    fn unreadable(&self, at: BlockPtr, error: &Wrong) -> Error {
        self.error(format_args!("{error} (generation {})", at.made));
        match error.kind {
            // The block itself may be intact.
            Kind::Down | Kind::Busy => Error::new(Errno::ETIMEDOUT, error.text.to_string()),
            _ => errno(error),
        }
    }

    /// Waits for the next tick, or for any other wake-up of the waiters.
    pub(crate) async fn next_tick(&self) {
        let mut first = true;
        poll_fn(|cx| {
            if std::mem::replace(&mut first, false) {
                self.state().waiters.add(cx.waker());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Advances the clock to `now`, measured from an arbitrary start: commits old changes and begins scheduled work.
    /// Call it every [`pause`](Self::pause).
    pub fn tick(&self, now: Duration) {
        {
            let state = &mut *self.state();
            state.now = now;
            if state.has_changes() {
                let since = *state.dirty_since.get_or_insert(now);
                if now.saturating_sub(since) >= AGE {
                    self.want_commit(state);
                }
            }
        }
        self.tick_dumps(now);
        self.tick_scrub();
        self.tick_following(now);
        self.reap_dropped();
        if std::mem::take(&mut self.state().users_changed) {
            let archive = self.clone();
            self.begin(async move {
                if let Err(error) = archive.load_users().await {
                    archive.warn(format_args!("/adm/users is not taken: {error}"));
                }
            });
        }
    }

    /// Returns the maximum time until the next tick.
    pub fn pause(&self) -> Duration {
        let state = &*self.state();
        let works = !state.waiting.is_empty() || state.scrubber.is_busy();
        if works { Duration::from_millis(20) } else { Duration::from_millis(500) }
    }

    /// Waits between two ticks. Returns when `sleep` ends, which should last for [`pause`](Self::pause), or when a dump
    /// or a scrub has begun.
    pub async fn rest(&self, sleep: impl Future<Output = ()>) {
        let mut sleep = pin!(sleep);
        let waits = |state: &ArchiveState| !state.waiting.is_empty() || state.scrubber.is_busy();
        let before = waits(&self.state());
        poll_fn(|cx| {
            if sleep.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let state = &mut *self.state();
            if waits(state) && !before {
                return Poll::Ready(());
            }
            state.waiters.add(cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Closes the archive: makes all changes durable, writes a checkpoint and ends the [`Driver`]. Dumps that are not
    /// on w yet are copied after the next open.
    ///
    /// # Errors
    /// The changes could not be made durable.
    pub async fn close(&self) -> Result<()> {
        self.stop_copies();
        self.state().scrubber.stop();
        let result = self.sync().await;
        // From here on nothing changes, so no commit runs beside the last checkpoint.
        let well = poll_fn(|cx| {
            let state = &mut *self.state();
            if state.stopped.is_some() {
                return Poll::Ready(false);
            }
            let works = state.dumper.is_busy() || state.scrubber.is_busy();
            if !state.committing && !works && !state.has_changes() {
                state.committing = true;
                state.stopped = Some(Wrong::new(Kind::ReadOnly, "the archive is being closed"));
                state.waiters.wake();
                return Poll::Ready(true);
            }
            if state.has_changes() {
                self.want_commit(state);
            }
            state.waiters.add(cx.waker());
            Poll::Pending
        })
        .await;
        let tidied = if well { self.0.cw.tidy(true).await.map_err(|error| errno(&error)) } else { Ok(()) };
        self.0.jobs.close();
        result.and(tidied)
    }

    /// Removes a file in the background if it has no name and is not in use, or the blocks beyond its size.
    pub(crate) fn reap(&self, ino: u64) {
        let archive = self.clone();
        self.0.removing.fetch_add(1, Ordering::Relaxed);
        self.begin(async move {
            // The next start finds and removes the rest.
            let step = |state: &mut ArchiveState| {
                let waits = state.lives.has(ino) && !state.fs.is_sheared(ino);
                if waits || state.ends() || state.fs.reap(ino)? { Ok(()) } else { Err(OperationStop::Again) }
            };
            let done = archive.attempt(step).await;
            archive.0.removing.fetch_sub(1, Ordering::Relaxed);
            if let Err(error) = done {
                archive
                    .warn(format_args!("inode {ino}: what is to be removed of it is still there: {error}"));
                for _ in 0..REAP_AGAIN {
                    archive.next_tick().await;
                }
                // Removal of blocks beyond the size does not wait until the file is no longer in use.
                let again = {
                    let state = &mut *archive.state();
                    let again = state.fs.is_sheared(ino) && !state.ends();
                    if !again {
                        state.lives.lost(ino);
                    }
                    again
                };
                if again {
                    archive.reap(ino);
                }
            }
        });
    }

    /// Notes that the content of a file has changed.
    pub(crate) fn written(&self, state: &mut ArchiveState, ino: u64) {
        state.users_changed |= state.users_file == Some(ino);
    }

    /// Notes that a name has changed: /adm/users may now be another file.
    pub(crate) fn renamed(&self, state: &mut ArchiveState, name: &[u8]) {
        state.users_changed |= name == b"users" || name == b"adm";
    }

    /// Reads /adm/users, if it exists.
    pub(crate) async fn load_users(&self) -> Result<()> {
        let find = |state: &mut ArchiveState| {
            let root = state.fs.mem.root;
            let mut at = crate::fs::ROOT;
            for name in [&b"adm"[..], b"users"] {
                match state.fs.lookup(root, at, name)? {
                    Some(entry) => at = entry.ino,
                    None => return Ok(None),
                }
            }
            Ok(Some((at, state.fs.read(root, at, 0, USERS_TEXT_MAX)?)))
        };
        let Some((ino, pieces)) = self.attempt(find).await? else { return Ok(()) };
        let text: Vec<u8> = pieces.into_iter().flatten().collect();
        let text = String::from_utf8_lossy(&text);
        let users = UserTable::parse(&text).map_err(|why| Error::new(Errno::EINVAL, why));
        let state = &mut *self.state();
        state.users_file = Some(ino);
        state.users = Arc::new(users?);
        Ok(())
    }

    fn reap_dropped(&self) {
        let dropped = self.state().lives.dropped();
        dropped.into_iter().for_each(|ino| self.reap(ino));
    }
}

impl ArchiveState {
    /// Returns whether no new work should begin.
    pub(crate) fn ends(&self) -> bool {
        self.stopped.is_some() || self.dumper.is_stopped()
    }

    /// Returns whether there is anything to commit.
    pub(crate) fn has_changes(&self) -> bool {
        self.noted
            || !self.fs.mem.is_clean()
            || self.fs.is_unsettled()
            || !self.forward.is_empty()
            || !self.swept.is_empty()
    }

    /// Returns the number of commits since the start.
    pub(crate) fn commits(&self) -> u64 {
        self.epoch - 1
    }

    /// Returns whether a commit is in progress.
    pub(crate) fn is_committing(&self) -> bool {
        self.committing
    }

    pub(crate) fn fields(&self) -> CommitFields {
        CommitFields {
            generation: self.fs.mem.generation,
            root: self.fs.mem.root,
            next_inode: self.fs.next_inode,
            next_worm: self.next_worm,
            newest: self.newest,
            blocks: self.fs.blocks,
            waiting: self.waiting.clone(),
        }
    }

    /// Notes that the tree has been replaced, so its users may differ.
    pub(crate) fn users_may_be_others(&mut self) {
        self.users_changed = true;
    }

    /// Notes the inode of /adm/users.
    pub(crate) fn is_users_file(&mut self, ino: u64) {
        self.users_file = Some(ino);
    }

    /// Returns a new number for an open file.
    pub(crate) fn number(&mut self) -> u64 {
        self.opened += 1;
        self.opened
    }

    fn find_dumps(&self) -> FsResult<BTreeMap<u32, LoadedDump>> {
        let mut found = BTreeMap::new();
        tree::range(&self.fs.mem, self.fs.mem.root, &ItemKey::dump(1), |key, value| {
            let Some(DecodedKey::Dump(generation)) = ItemKey::parse(key) else { return false };
            if let Some(record) = DumpRecord::decode(value) {
                found.insert(generation, LoadedDump { record });
            }
            true
        })?;
        Ok(found)
    }
}

/// A fetch of blocks in progress: blocks that change meanwhile are remembered.
struct BlockFetch<'a>(&'a Archive, u64);

impl<'a> BlockFetch<'a> {
    fn new(archive: &'a Archive) -> Self {
        let stamp = archive.state().fs.mem.begin_fetch();
        Self(archive, stamp)
    }

    /// Returns the stamp as of which blocks fetched from now on are valid.
    fn now(&self) -> u64 {
        self.0.state().fs.mem.stamp()
    }
}

impl Drop for BlockFetch<'_> {
    fn drop(&mut self) {
        self.0.state().fs.mem.end_fetch(self.1);
    }
}

fn options(cw: &Cw, settings: &Settings) -> Options {
    let block = cw.block() as u64;
    let ahead = if cw.may_read_ahead() { settings.ahead } else { Ahead::Never };
    Options { block, memory: settings.memory, ahead, ..Options::default() }
}
