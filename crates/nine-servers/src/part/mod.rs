//! Partitions as files (`docs/part.md`): clients upload programs, run them, and read and write their standard files.
//!
//! In: requests, a [`Policy`], and the service on a program's channel. Out: answers; processes, each confined before
//! it becomes a program ([`launch()`]); and a [`Driver`], on whose core processes are watched and their pipes are read
//! and written.
//!
//! ```text
//! clone        opening it creates a session; the open file is then N/ctl
//! N/ctl        reads as the number N; accepts control messages
//! N/argv       arguments    N/env      variables     N/exec   the program
//! N/stdin      its input    N/stdout   N/stderr      its output
//! N/wait       its end      N/status   its state     N/fs     its directory
//! ```
//!
//! Always holds: no client code runs in the server's process. A session whose files are closed leaves no process and
//! no file behind. The thread that removes a request from a queue, under the session's lock, answers it while nothing
//! is locked. Operations that may wait for a disk or for the kernel run beside the cores.
//!
//! Lock order: a session, then the table.

mod cgroup;
mod cpus;
mod files;
mod host;
mod launch;
mod policy;
mod remove;
mod session;

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, DirBuilder, File};
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use nine_io::Direct;
pub use nine_io::quote::{quote, words};
use nine_io::server::{Answer, FileServer, Fill, Node, Passage, Req, ReqId, Service, StreamRequest, Who};
use nine_io::synth::{self, Ask, Beyond, Dir, Opening, Tree, Visitor};
use nine_net::Env;
use nine_net::lock::{Mutex, lock};
use nine_proto::{Attr, Errno, Error, Names, OpenFlags, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::disk::pool::ThreadPool;
use crate::disk::{Disk, DiskOptions};
use cgroup::CgroupRoots;
use cpus::CpuAllocator;
use files::{OutputFile, SessionCtlFile, SessionOpen, StdinFile, WaitFile, WordListFile};
use launch::{GuardPlan, ProcessLauncher};
pub use launch::{Rights, VERB, confined, launch};
pub use policy::Policy;
use policy::{SessionRules, WatchedSessionRules};
use session::{PartSession, SessionUser, WordListKind};

/// The file server of partitions.
///
/// Concurrency: any number of requests at a time. A waiting request delays no other.
pub struct Parts {
    tree: Tree,
    shared: Arc<PartShared>,
}

/// State shared by all sessions of a server.
struct PartShared {
    rules: WatchedSessionRules,
    /// The uid and gid that programs run with, if not the server's; and the user's name.
    user: Option<(u32, u32)>,
    user_name: String,
    /// The directory of the sessions' directories, locked as long as the server exists.
    base: PathBuf,
    _lock: OwnedFd,
    /// The prefix of this server's control groups and directories.
    name: String,
    groups: CgroupRoots,
    launcher: ProcessLauncher,
    cpus: Arc<CpuAllocator>,
    pool: ThreadPool,
    /// Pools for ending sessions and for removing their directories, which may be slow. No request waits behind them.
    ends: ThreadPool,
    removes: ThreadPool,
    /// Serves the sessions' directories.
    disk: Arc<Disk>,
    outside: Outside,
    table: Mutex<SessionTable>,
    queue: Mutex<SessionWorkQueue>,
}

/// Services that a server of partitions needs.
pub struct Outside {
    /// Returns the service on a program's channel, if there is one.
    pub serves: Box<dyn Fn() -> Option<Service> + Send + Sync>,
    /// Runs machine images.
    pub machines: Option<Box<dyn Machines>>,
    /// Sends a program to other servers, on the driver's core. The error names the servers that did not get it.
    pub spread: Option<Box<Spreads>>,
}

/// See [`Outside`].
pub type Spreads =
    dyn Fn(Spread) -> Pin<Box<dyn Future<Output = std::result::Result<(), String>>>> + Send + Sync;

/// Returns the part of a program that starts at an offset.
pub type Pieces = Box<dyn Fn(u64) -> Pin<Box<dyn Future<Output = io::Result<Vec<u8>>>>>>;

/// A program to be sent to sessions of other servers.
pub struct Spread {
    /// The length of the program in bytes.
    pub length: u64,
    /// Reads the program.
    pub pieces: Pieces,
    /// The number of servers that get it from this one. Each of them forwards it to a part of the others.
    pub most: usize,
    /// The addresses of the sessions, with their keys. Each is on one of the policy's servers.
    pub to: Vec<String>,
}

#[derive(Default)]
struct SessionTable {
    /// The number of the next session.
    next: u64,
    sessions: BTreeMap<u64, SessionEntry>,
    /// Sessions being created, with their users.
    making: BTreeMap<u64, SessionUser>,
    /// Persistent sessions, which exist without open files.
    kept: BTreeMap<u64, Arc<PartSession>>,
}

/// A session in the table.
#[derive(Clone)]
struct SessionEntry {
    session: Weak<PartSession>,
    dir: synth::Node,
    user: SessionUser,
}

/// Work for the driver.
#[derive(Default)]
struct SessionWorkQueue {
    due: VecDeque<SessionWork>,
    driver: Option<Waker>,
    ended: bool,
}

/// Work for a session. The request is answered when it is done.
struct SessionWork(Arc<PartSession>, SessionWorkKind, Ask);

enum SessionWorkKind {
    Launch(ProgramSpec),
    /// The number of servers to send to directly, and all addresses.
    Spread(usize, Vec<String>),
}

/// A program to be run, with its arguments and variables.
struct ProgramSpec {
    /// `None`: the program written to the session.
    path: Option<String>,
    words: Vec<String>,
    env: Vec<(String, String)>,
}

/// Runs machine images ([`machine::image_end`](crate::machine::image_end)). The processes are launched and confined
/// like other programs.
pub trait Machines: Send + Sync + 'static {
    /// Returns the program that runs this image with these arguments and this environment, within a number of bytes
    /// of memory. It also returns the rights it needs besides the policy's. It uses the session's standard files, and
    /// the channel if there is one. Waits for the disk.
    fn machine(&self, image: &Path, start: &Start) -> io::Result<Machine>;
}

/// The configuration of a machine to be started.
pub struct Start<'a> {
    /// The arguments, with the name first.
    pub words: &'a [String],
    /// Names and values.
    pub env: &'a [(String, String)],
    /// The maximum memory in bytes.
    pub memory: u64,
    /// Whether it has a channel.
    pub channel: bool,
}

/// The program of a [`Machines`].
pub struct Machine {
    /// Its path.
    pub program: PathBuf,
    /// The arguments, with the name first.
    pub words: Vec<String>,
    /// Rights besides those of the policy.
    pub rights: Rights,
}

impl Parts {
    /// Creates a server without sessions. `wall`, time since 1970, is the time of its files. Directories are created
    /// in `dir` unless the policy names another one. This process' own program must call [`launch()`] for the argument
    /// [`VERB`]. Without its driver nothing runs.
    ///
    /// # Errors
    /// The reason why programs cannot be run here.
    pub fn new(
        policy: Policy,
        wall: Duration,
        dir: &Path,
        outside: Outside,
    ) -> std::result::Result<(Self, Driver), String> {
        let (user, user_name) = user(&policy)?;
        let rules = SessionRules::new(policy)?;
        let policy = &rules.policy;
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("{PREFIX}{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let dir = policy.fs.as_deref().map_or(dir, Path::new);
        sweep(dir);
        if let Some(ids) = user {
            reachable(dir, ids, &user_name)?;
        }
        let base = dir.join(&name);
        let held = made(&base).map_err(|error| format!("{}: {error}", base.display()))?;
        let options = DiskOptions { threads: THREADS, handles: HANDLES, ..DiskOptions::default() };
        let disk = Disk::open(&base, options).map_err(|error| format!("{}: {error}", base.display()))?;
        let disk = Arc::new(disk);
        let groups = CgroupRoots::find();
        groups.sweep(PREFIX);
        if !groups.kills() {
            tracing::warn!(
                "no control group can be made here: what leaves its program's process group outlives it"
            );
        }
        if std::process::id() == 1 {
            tracing::warn!(
                "this server is process 1, and nobody waits for what programs leave behind: start it by an init"
            );
        }
        let text = base.to_str().ok_or_else(|| format!("{}: it is no text", base.display()))?;
        let guard = GuardPlan { groups: groups.clone(), prefix: format!("{name}-"), base: text.into() };
        let launcher =
            ProcessLauncher::new(guard).map_err(|error| format!("no program can be started: {error}"))?;
        let (pool, ends, removes) =
            (ThreadPool::new(THREADS), ThreadPool::new(END_THREADS), ThreadPool::new(END_THREADS));
        // Starts one thread of each pool now. After that a push never fails, so that no core does their work.
        if [&ends, &removes].iter().any(|of| of.push(0, Box::new(|| ())).is_err()) {
            return Err("no thread can be started".into());
        }
        let shared = Arc::new(PartShared {
            rules: WatchedSessionRules::new(rules),
            user,
            user_name,
            base,
            _lock: held,
            name,
            cpus: Arc::new(CpuAllocator::new(groups.has_cpus())),
            groups,
            launcher,
            pool,
            ends,
            removes,
            disk,
            outside,
            table: Mutex::default(),
            queue: Mutex::default(),
        });
        let (clones, lists, finds) = (shared.clone(), shared.clone(), shared.clone());
        let clone = synth::File::opened_later(move |opening| clones.clone_session(opening), |_| false);
        let root = Dir::new()
            .file("clone", clone.mode(0o666).event())
            .numbered(move |from, most, _| {
                let table = lock(&lists.table);
                let all = table.sessions.range(from..).take(most);
                all.map(|(number, known)| (*number, known.dir.clone())).collect()
            })
            .found(move |name, _| {
                let (name, key) = name.split_once('.').map_or((name, None), |(name, key)| (name, Some(key)));
                let number = name.parse().ok().filter(|number: &u64| number.to_string() == name)?;
                let SessionEntry { session, dir, .. } = lock(&finds.table).sessions.get(&number)?.clone();
                match key {
                    None => Some(dir),
                    Some(key) => {
                        session.upgrade().filter(|session| session.has(key)).map(|of| keyed(&of).into())
                    }
                }
            });
        let driver = Driver(shared.clone());
        Ok((Self { tree: Tree::new(root, wall).audited("part"), shared }, driver))
    }

    /// Sets a function that updates the client's identity from the aname, as for [`Tree::set_told`].
    pub fn told_by(mut self, told: impl Fn(&mut Who, &[u8]) + Send + Sync + 'static) -> Self {
        self.tree.set_told(told);
        self
    }

    /// Returns the number of sessions.
    pub fn count(&self) -> usize {
        lock(&self.shared.table).sessions.len()
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        let mut table = lock(&self.shared.table);
        let (kept, all) = (std::mem::take(&mut table.kept), table.sessions.values());
        let all: Vec<Arc<PartSession>> = all.filter_map(|known| known.session.upgrade()).collect();
        drop(table);
        all.iter().for_each(|session| session.abandon());
        drop((all, kept));
        let mut queue = lock(&self.shared.queue);
        queue.ended = true;
        let (due, driver) = (std::mem::take(&mut queue.due), queue.driver.take());
        drop(queue);
        drop(due);
        driver.into_iter().for_each(Waker::wake);
    }
}

impl FileServer for Parts {
    fn serve(&self, req: Req) -> Answer {
        self.tree.serve(req)
    }

    fn cancel(&self, id: ReqId, node: Option<&Node>) {
        self.tree.cancel(id, node);
    }

    fn stream(&self, request: StreamRequest<'_>) -> Option<Box<dyn Passage>> {
        self.tree.stream(request)
    }

    fn direct(&self, node: &Node, flags: OpenFlags) -> Option<Arc<dyn Direct>> {
        self.tree.direct(node, flags)
    }

    fn takes_placed(&self, node: &Node) -> bool {
        self.tree.takes_placed(node)
    }

    fn can_fill(&self, node: &Node) -> bool {
        self.tree.can_fill(node)
    }

    fn fill(&self, fill: Fill) {
        self.tree.fill(fill);
    }

    /// Those of files in the sessions' directories.
    fn has_descriptors(&self) -> bool {
        true
    }

    fn names(&self) -> Arc<dyn Names> {
        self.shared.disk.names()
    }
}

/// Starts programs, watches them, and reads and writes their pipes, on the core where it runs. It ends with the
/// server.
#[must_use]
pub struct Driver(Arc<PartShared>);

impl Driver {
    /// Runs until the server is dropped.
    pub async fn run(self, env: impl Env + Clone) {
        let next = || {
            poll_fn(|cx| {
                let mut queue = lock(&self.0.queue);
                match queue.due.pop_front() {
                    Some(work) => Poll::Ready(Some(work)),
                    None if queue.ended => Poll::Ready(None),
                    None => {
                        queue.driver = Some(cx.waker().clone());
                        Poll::Pending
                    }
                }
            })
        };
        while let Some(SessionWork(session, what, ask)) = next().await {
            match what {
                SessionWorkKind::Launch(exec) => {
                    env.spawn(Box::pin(host::run(env.clone(), session, exec, ask)))
                }
                SessionWorkKind::Spread(most, to) => {
                    env.spawn(Box::pin(host::spread(session, most, to, ask)))
                }
            }
        }
    }
}

impl PartShared {
    fn clone_session(self: &Arc<Self>, opening: Opening) {
        if !opening.flags.writes() {
            return opening.fail(Error::new(Errno::EACCES, "clone is opened for reading and writing"));
        }
        let shared = self.clone();
        self.aside(opening.id().conn, move || match shared.new_session(&opening.visitor) {
            Ok(session) => {
                // If the open was flushed, the session is dropped here.
                let (number, ctl) = (
                    session.number.to_string(),
                    Arc::new(SessionCtlFile::new(SessionOpen::of(session), false)),
                );
                drop(opening.becomes(&[&number, "ctl"], ctl));
            }
            Err(error) => opening.fail(error),
        });
    }

    /// Creates a session by the present version of the policy. Waits for the disk.
    fn new_session(self: &Arc<Self>, visitor: &Visitor) -> Result<Arc<PartSession>> {
        let rules = self.rules.now();
        let policy = &rules.policy;
        policy.may(&visitor.who)?;
        let user = SessionUser::of(&visitor.who);
        let mut table = lock(&self.table);
        let all = table.sessions.values().map(|known| &known.user).chain(table.making.values());
        let (all, his) = all.fold((0, 0), |(all, his), of| (all + 1, his + usize::from(*of == user)));
        let full = match () {
            () if all >= policy.number => {
                Some(format!("there are {all} sessions, and the policy allows no more"))
            }
            () if his >= policy.each() && !visitor.owner => {
                Some(format!("{his} sessions are yours, and the policy allows one user no more"))
            }
            () => None,
        };
        if let Some(text) = full {
            drop(table);
            return Err(Error::new(Errno::ENFILE, text));
        }
        let number = table.next;
        table.next += 1;
        table.making.insert(number, user.clone());
        drop(table);
        let made = self.make(number).map_err(|error| session::error_of(&error));
        let made = made.and_then(|_| self.disk.below(&[&number.to_string(), PROGRAM_DIR_NAME], self.user));
        let done = made.map(|fs| {
            let session = PartSession::new(self, number, visitor, rules);
            let (of, dir) = (Arc::downgrade(&session), directory(&session, fs).into());
            (session, SessionEntry { session: of, dir, user })
        });
        let mut table = lock(&self.table);
        table.making.remove(&number);
        let done = done.map(|(session, known)| {
            table.sessions.insert(number, known);
            session
        });
        drop(table);
        done.inspect_err(|_| drop(remove::remove(&self.dir(number))))
    }

    /// Keeps a session that has no open files, or stops that.
    fn keep(&self, session: &Arc<PartSession>, is_kept: bool) {
        let mut table = lock(&self.table);
        let before = match is_kept {
            true => table.kept.insert(session.number, session.clone()),
            false => table.kept.remove(&session.number),
        };
        drop(table);
        drop(before);
    }

    /// Removes a dropped session from the tables, and ends its processes and its directory.
    fn forget(&self, number: u64) {
        let gone = lock(&self.table).sessions.remove(&number);
        drop(gone);
        let (dir, cpus) = (self.dir(number), self.cpus.clone());
        self.end(number, move || cpus.forget(number));
        let remove = move || {
            if let Err(error) = remove::remove(&dir) {
                tracing::warn!("{}: it is not removed: {error}", dir.display());
            }
        };
        if let Err(job) = self.removes.push(number, Box::new(remove)) {
            job();
        }
    }

    /// Runs a job that ends a session.
    fn end(&self, number: u64, job: impl FnOnce() + Send + 'static) {
        // The queue has room for more jobs than there are sessions, and a thread exists.
        if let Err(job) = self.ends.push(number, Box::new(job)) {
            job();
        }
    }

    /// Queues work for the driver.
    fn due(&self, work: SessionWork) {
        let mut queue = lock(&self.queue);
        if queue.ended {
            drop(queue);
            return work.2.fail(Errno::EIO.into());
        }
        queue.due.push_back(work);
        let driver = queue.driver.take();
        drop(queue);
        driver.into_iter().for_each(Waker::wake);
    }

    /// Runs a job that may wait for the disk.
    fn aside(&self, client: u64, job: impl FnOnce() + Send + 'static) {
        if let Err(job) = self.pool.push(client, Box::new(job)) {
            job();
        }
    }

    fn dir(&self, number: u64) -> PathBuf {
        self.base.join(number.to_string())
    }

    /// Returns the working directory of a session's program.
    fn place(&self, number: u64) -> PathBuf {
        self.dir(number).join(PROGRAM_DIR_NAME)
    }

    /// Creates a session's directories and gives them to their user. Waits for the disk.
    fn make(&self, number: u64) -> io::Result<PathBuf> {
        let place = self.place(number);
        for (dir, mode) in [(self.dir(number), 0o711), (place.clone(), 0o700)] {
            match DirBuilder::new().mode(mode).create(&dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        self.give(&place)?;
        Ok(place)
    }

    fn give(&self, path: &Path) -> io::Result<()> {
        let Some((uid, gid)) = self.user else { return Ok(()) };
        std::os::unix::fs::lchown(path, Some(uid), Some(gid))
    }

    /// Creates the file of a session's program.
    fn program(&self, number: u64) -> io::Result<File> {
        self.make(number)?;
        let path = self.dir(number).join("exec");
        // Removes an incompletely written one, which may still be open.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = File::options().write(true).create_new(true).mode(0o700).open(&path)?;
        self.give(&path)?;
        Ok(file)
    }
}

impl Drop for PartShared {
    fn drop(&mut self) {
        let _ = remove::remove(&self.base);
    }
}

/// Opens a session for a visitor, who may have its key.
fn opened(visitor: &Visitor, session: &Weak<PartSession>, has_key: bool) -> Result<SessionOpen> {
    let session = session.upgrade().ok_or(Errno::ENOENT)?;
    session.shared.rules.known().policy.may(&visitor.who)?;
    session.open(visitor, has_key)?;
    Ok(SessionOpen::of(session))
}

/// Returns the files for clients that have the session's key.
fn keyed(session: &Arc<PartSession>) -> Dir {
    let ctl = Arc::downgrade(session);
    let ctl = synth::File::opened(move |visitor, _| {
        Ok(Box::new(SessionCtlFile::new(opened(visitor, &ctl, true)?, true)))
    });
    Dir::new().file("ctl", ctl.event()).file("exec", exec(session, true))
}

fn exec(session: &Arc<PartSession>, has_key: bool) -> synth::File {
    let session = Arc::downgrade(session);
    let open = move |opening: Opening| match opened(&opening.visitor, &session, has_key) {
        Ok(session) => files::ExecFile::open(session, opening),
        Err(error) => opening.fail(error),
    };
    synth::File::opened_later(open, |_| false).mode(0o222).event()
}

/// Returns the session's directory, with the program's rights.
fn place(session: &Arc<PartSession>, (root, attr): (Node, Attr)) -> Beyond {
    let disk = session.shared.disk.clone();
    let session = Arc::downgrade(session);
    Beyond::new(disk, root, attr).guarded(move |visitor| {
        let session = session.upgrade().ok_or(Errno::ENOENT)?;
        session.shared.rules.known().policy.may(&visitor.who)?;
        session.may_see(visitor)
    })
}

/// Returns the files of a session; `fs` is its directory. They hold no reference to the session.
fn directory(session: &Arc<PartSession>, fs: (Node, Attr)) -> Dir {
    let handle = |make: fn(SessionOpen) -> Result<Box<dyn synth::Handle>>| {
        let session = Arc::downgrade(session);
        synth::File::opened(move |visitor, _| make(opened(visitor, &session, false)?)).event()
    };
    let status = Arc::downgrade(session);
    let status =
        synth::File::text(move |_| status.upgrade().map(|session| session.status()).unwrap_or_default());
    Dir::new()
        .file("ctl", handle(|session| Ok(Box::new(SessionCtlFile::new(session, false)))))
        .file("argv", handle(|session| Ok(Box::new(WordListFile(session, WordListKind::Argv)))))
        .file("env", handle(|session| Ok(Box::new(WordListFile(session, WordListKind::Env)))))
        .file("exec", exec(session, false))
        .file("stdin", handle(StdinFile::open).mode(0o222))
        .file("stdout", handle(|session| Ok(Box::new(OutputFile(session, 0)))).mode(0o444))
        .file("stderr", handle(|session| Ok(Box::new(OutputFile(session, 1)))).mode(0o444))
        .file("wait", handle(|session| Ok(Box::new(WaitFile(session)))).mode(0o444))
        .file("status", status.event())
        .with("fs", place(session, fs).into())
}

/// Returns the user that programs run as.
fn user(policy: &Policy) -> std::result::Result<(Option<(u32, u32)>, String), String> {
    let own = rustix::process::geteuid().as_raw();
    let name = policy.user.as_deref();
    let found =
        name.map(|name| policy::passwd(name).ok_or_else(|| format!("user {name}: there is no such user")));
    match (own, found.transpose()?) {
        (0, None) => {
            Err("the server runs as root: `user NAME` in the policy says as whom programs run".into())
        }
        (0, Some((0, _))) => Err("user root: programs do not run as root".into()),
        (0, Some(ids)) => Ok((Some(ids), name.unwrap_or_default().into())),
        (_, Some((uid, _))) if uid != own => {
            Err(format!("user {}: only root runs programs as somebody else", name.unwrap_or_default()))
        }
        _ => Ok((None, own.to_string())),
    }
}

/// Checks that the user of the programs may pass through every directory above `dir`.
fn reachable(dir: &Path, (uid, gid): (u32, u32), name: &str) -> std::result::Result<(), String> {
    let whole = dir.canonicalize().map_err(|error| format!("{}: {error}", dir.display()))?;
    for above in whole.ancestors() {
        let meta = fs::metadata(above).map_err(|error| format!("{}: {error}", above.display()))?;
        let bit = match () {
            () if meta.uid() == uid => 0o100,
            () if meta.gid() == gid => 0o010,
            () => 0o001,
        };
        if meta.mode() & bit == 0 {
            let (dir, above) = (dir.display(), above.display());
            return Err(format!(
                "{dir}: {name} does not come through {above}: `fs DIR` in the policy names another place"
            ));
        }
    }
    Ok(())
}

/// Opens and locks a directory for this server.
fn locked(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = rustix::fs::open(dir, flags, Mode::empty())?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// Creates and locks the directory of this server.
fn made(dir: &Path) -> io::Result<OwnedFd> {
    for _ in 0..DIR_TRIES_MAX {
        match DirBuilder::new().mode(0o711).create(dir) {
            // Another starting server may remove it as left over before it is locked. Then it is created again.
            Ok(()) => match locked(dir) {
                Ok(lock) if is_there(dir, &lock) => return Ok(lock),
                _ => {}
            },
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        std::thread::sleep(DIR_RETRY_DELAY);
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Returns whether `dir` is still at this path.
fn is_there(path: &Path, dir: &OwnedFd) -> bool {
    let there = fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()));
    there.ok() == rustix::fs::fstat(dir).map(|stat| (stat.st_dev, stat.st_ino)).ok()
}

/// Removes directories left by servers that have ended.
fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if is_named
            && launch::is_ours(&path)
            // The lock stays until the directory is removed.
            && let Ok(lock) = locked(&path)
            && is_there(&path, &lock)
            && let Err(error) = remove::remove(&path)
        {
            tracing::warn!("{}: it was left, and is not removed: {error}", path.display());
        }
    }
}

/// The prefix of the names of groups and directories.
const PREFIX: &str = "ninefold-part-";
/// The name of the program's directory inside the session's.
const PROGRAM_DIR_NAME: &str = "fs";
/// Threads that wait for disks and the kernel.
const THREADS: usize = 8;
/// Threads of the pool that ends sessions, and of the one that removes directories.
const END_THREADS: usize = 2;
/// Attempts to create the server's directory.
const DIR_TRIES_MAX: usize = 1000;
const DIR_RETRY_DELAY: Duration = Duration::from_millis(1);
/// The number of cached descriptors of files in the sessions' directories.
const HANDLES: usize = 256;
