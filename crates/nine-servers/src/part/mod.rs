//! Partitions as files (`docs/part.md`): programs that who may writes here, runs, feeds and reads.
//!
//! In: requests, a [`Policy`], and what a program's channel shows. Out: answers; processes, each confined before it is
//! a program ([`launch`]); and a [`Driver`], on whose core their ends are read, written and waited for.
//!
//! ```text
//! clone        opening it makes a session; what is open then is N/ctl
//! N/ctl        reads as the number N; takes texts
//! N/argv       words        N/env      variables     N/exec   the program
//! N/stdin      its input    N/stdout   N/stderr      its output
//! N/wait       its end      N/status   how it is   N/fs     its directory
//! ```
//!
//! Always holds: nothing runs in the server's process but the server; a session whose files are closed leaves nobody
//! and nothing behind; who takes a request out of a queue, under the lock of its session, answers it when nothing is
//! locked; what may wait for a disk or for the kernel is done beside the cores.
//!
//! Locks: a session's, then the table's.

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

use crate::disk::pool::Pool;
use crate::disk::{Disk, DiskOptions};
use cgroup::Groups;
use cpus::Cpus;
use files::{Ctl, Input, Opened, Output, Text, Wait};
use launch::{Guard, Launcher};
pub use launch::{Rights, VERB, confined, launch};
pub use policy::Policy;
use policy::{Rules, Watched};
use session::{Session, User, Words};

/// The file server of partitions.
///
/// Concurrency: any number of requests at a time; what waits holds up nobody.
pub struct Parts {
    tree: Tree,
    shared: Arc<Shared>,
}

/// What all sessions of a server share.
struct Shared {
    rules: Watched,
    /// As whom programs run, if not as the server; and how that one is called.
    user: Option<(u32, u32)>,
    user_name: String,
    /// Where the directories are; locked as long as the server is there.
    base: PathBuf,
    _lock: OwnedFd,
    /// What groups and directories of this server are called.
    name: String,
    groups: Groups,
    launcher: Launcher,
    cpus: Arc<Cpus>,
    pool: Pool,
    /// For what ends sessions, and for their directories, which take their time: nobody who asks waits behind it.
    ends: Pool,
    removes: Pool,
    /// The directories as files.
    disk: Arc<Disk>,
    outside: Outside,
    table: Mutex<Table>,
    queue: Mutex<Queue>,
}

/// What a server of partitions is given.
pub struct Outside {
    /// What a program's channel shows, while there is anything.
    pub serves: Box<dyn Fn() -> Option<Service> + Send + Sync>,
    /// Who runs images.
    pub machines: Option<Box<dyn Machines>>,
    /// Who gives a program to other servers, on the driver's core; the error says to whom it was not given.
    pub spread: Option<Box<Spreads>>,
}

/// See [`Outside`].
pub type Spreads =
    dyn Fn(Spread) -> Pin<Box<dyn Future<Output = std::result::Result<(), String>>>> + Send + Sync;

/// What a program has from here on, a piece of it.
pub type Pieces = Box<dyn Fn(u64) -> Pin<Box<dyn Future<Output = io::Result<Vec<u8>>>>>>;

/// A program for sessions of other servers.
pub struct Spread {
    /// Bytes of it.
    pub length: u64,
    /// The program.
    pub pieces: Pieces,
    /// Servers that get it from here; each gives it to its share of the others.
    pub most: usize,
    /// Directories of sessions, with their keys. Each is one of the policy's servers.
    pub to: Vec<String>,
}

#[derive(Default)]
struct Table {
    /// The number of the session that is made next.
    next: u64,
    sessions: BTreeMap<u64, Known>,
    /// Those that are being made, and whose they are.
    making: BTreeMap<u64, User>,
    /// Those that stay when nobody has them open.
    kept: BTreeMap<u64, Arc<Session>>,
}

/// A session in the table.
#[derive(Clone)]
struct Known {
    session: Weak<Session>,
    dir: synth::Node,
    user: User,
}

/// What the driver is to do: each once.
#[derive(Default)]
struct Queue {
    due: VecDeque<Work>,
    driver: Option<Waker>,
    ended: bool,
}

/// Of a session, for its driver: who asked is answered.
struct Work(Arc<Session>, What, Ask);

enum What {
    Launch(Exec),
    /// To how many at once, and to whom in all.
    Spread(usize, Vec<String>),
}

/// What is to run, with which words and variables.
struct Exec {
    /// `None`: what was written to the session.
    path: Option<String>,
    words: Vec<String>,
    env: Vec<(String, String)>,
}

/// How an image ([`machine::image_end`](crate::machine::image_end)) runs: by whoever knows machines. Its processes are
/// launched and confined as programs are.
pub trait Machines: Send + Sync + 'static {
    /// The program that runs this image with these words and this environment, within so many bytes of memory; and
    /// what it may beside what the policy says. Waits for the disk. Its standard files are those of the session, and so
    /// is its channel, if it has one.
    fn machine(&self, image: &Path, start: &Start) -> io::Result<Machine>;
}

/// What an image is started with.
pub struct Start<'a> {
    /// The first one is its name.
    pub words: &'a [String],
    /// Names and values.
    pub env: &'a [(String, String)],
    /// Bytes.
    pub memory: u64,
    /// Whether there is a channel, which shows it something.
    pub channel: bool,
}

/// See [`Machines`].
pub struct Machine {
    /// A path.
    pub program: PathBuf,
    /// The first one is its name.
    pub words: Vec<String>,
    /// Beside what the policy says.
    pub rights: Rights,
}

impl Parts {
    /// None yet. Files are as old as `wall`, time since 1970; directories are made in `dir` if the policy names no
    /// other; the rest it is given. The program of this process has [`launch`] behind [`VERB`]. Without its driver
    /// nothing ever runs.
    ///
    /// # Errors
    /// It may not run programs here: why.
    pub fn new(
        policy: Policy,
        wall: Duration,
        dir: &Path,
        outside: Outside,
    ) -> std::result::Result<(Self, Driver), String> {
        let (user, user_name) = user(&policy)?;
        let rules = Rules::new(policy)?;
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
        let groups = Groups::find();
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
        let guard = Guard { groups: groups.clone(), prefix: format!("{name}-"), base: text.into() };
        let launcher = Launcher::new(guard).map_err(|error| format!("no program can be started: {error}"))?;
        let (pool, ends, removes) = (Pool::new(THREADS), Pool::new(ENDS), Pool::new(ENDS));
        // One thread of each there is from now on, so that no core ever does their work.
        if [&ends, &removes].iter().any(|of| of.push(0, Box::new(|| ())).is_err()) {
            return Err("no thread can be started".into());
        }
        let shared = Arc::new(Shared {
            rules: Watched::new(rules),
            user,
            user_name,
            base,
            _lock: held,
            name,
            cpus: Arc::new(Cpus::new(groups.has_cpus())),
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
                let Known { session, dir, .. } = lock(&finds.table).sessions.get(&number)?.clone();
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

    /// What the aname tells of who attaches, as for [`Tree::set_told`].
    pub fn told_by(mut self, told: impl Fn(&mut Who, &[u8]) + Send + Sync + 'static) -> Self {
        self.tree.set_told(told);
        self
    }

    /// Sessions that there are.
    pub fn count(&self) -> usize {
        lock(&self.shared.table).sessions.len()
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        let mut table = lock(&self.shared.table);
        let (kept, all) = (std::mem::take(&mut table.kept), table.sessions.values());
        let all: Vec<Arc<Session>> = all.filter_map(|known| known.session.upgrade()).collect();
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

    /// Those of the sessions' directories.
    fn has_descriptors(&self) -> bool {
        true
    }

    fn names(&self) -> Arc<dyn Names> {
        self.shared.disk.names()
    }
}

/// Starts programs, and reads, writes and waits for their ends, on the core where it runs. It ends with the server.
#[must_use]
pub struct Driver(Arc<Shared>);

impl Driver {
    /// See above.
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
        while let Some(Work(session, what, ask)) = next().await {
            match what {
                What::Launch(exec) => env.spawn(Box::pin(host::run(env.clone(), session, exec, ask))),
                What::Spread(most, to) => env.spawn(Box::pin(host::spread(session, most, to, ask))),
            }
        }
    }
}

impl Shared {
    fn clone_session(self: &Arc<Self>, opening: Opening) {
        if !opening.flags.writes() {
            return opening.fail(Error::new(Errno::EACCES, "clone is opened for reading and writing"));
        }
        let shared = self.clone();
        self.aside(opening.id().conn, move || match shared.new_session(&opening.visitor) {
            Ok(session) => {
                // Who does not want it any more has dropped it.
                let (number, ctl) =
                    (session.number.to_string(), Arc::new(Ctl::new(Opened::of(session), false)));
                drop(opening.becomes(&[&number, "ctl"], ctl));
            }
            Err(error) => opening.fail(error),
        });
    }

    /// Makes one, by the policy as it is now. Waits for the disk.
    fn new_session(self: &Arc<Self>, visitor: &Visitor) -> Result<Arc<Session>> {
        let rules = self.rules.now();
        let policy = &rules.policy;
        policy.may(&visitor.who)?;
        let user = User::of(&visitor.who);
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
        let made = made.and_then(|_| self.disk.below(&[&number.to_string(), PLACE], self.user));
        let done = made.map(|fs| {
            let session = Session::new(self, number, visitor, rules);
            let (of, dir) = (Arc::downgrade(&session), directory(&session, fs).into());
            (session, Known { session: of, dir, user })
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

    /// A session is there, or not, when nobody has it open.
    fn keep(&self, session: &Arc<Session>, is_kept: bool) {
        let mut table = lock(&self.table);
        let before = match is_kept {
            true => table.kept.insert(session.number, session.clone()),
            false => table.kept.remove(&session.number),
        };
        drop(table);
        drop(before);
    }

    /// What a session leaves behind.
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

    /// Does what ends a session.
    fn end(&self, number: u64, job: impl FnOnce() + Send + 'static) {
        // There are fewer sessions than have room there, as above.
        if let Err(job) = self.ends.push(number, Box::new(job)) {
            job();
        }
    }

    /// Something is to be done by the driver.
    fn due(&self, work: Work) {
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

    /// Does what may wait for the disk.
    fn aside(&self, client: u64, job: impl FnOnce() + Send + 'static) {
        if let Err(job) = self.pool.push(client, Box::new(job)) {
            job();
        }
    }

    fn dir(&self, number: u64) -> PathBuf {
        self.base.join(number.to_string())
    }

    /// Where a session's program works.
    fn place(&self, number: u64) -> PathBuf {
        self.dir(number).join(PLACE)
    }

    /// Makes a session's directories, and gives them to whom they belong. Waits for the disk.
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

    /// Makes the file of a session's program.
    fn program(&self, number: u64) -> io::Result<File> {
        self.make(number)?;
        let path = self.dir(number).join("exec");
        // One that was not written to its end. Somebody may be writing it still.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = File::options().write(true).create_new(true).mode(0o700).open(&path)?;
        self.give(&path)?;
        Ok(file)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = remove::remove(&self.base);
    }
}

/// Opens a session for a visitor, who may have its key.
fn opened(visitor: &Visitor, session: &Weak<Session>, has_key: bool) -> Result<Opened> {
    let session = session.upgrade().ok_or(Errno::ENOENT)?;
    session.shared.rules.known().policy.may(&visitor.who)?;
    session.open(visitor, has_key)?;
    Ok(Opened::of(session))
}

/// What who has the key of a session may do with it.
fn keyed(session: &Arc<Session>) -> Dir {
    let ctl = Arc::downgrade(session);
    let ctl =
        synth::File::opened(move |visitor, _| Ok(Box::new(Ctl::new(opened(visitor, &ctl, true)?, true))));
    Dir::new().file("ctl", ctl.event()).file("exec", exec(session, true))
}

fn exec(session: &Arc<Session>, has_key: bool) -> synth::File {
    let session = Arc::downgrade(session);
    let open = move |opening: Opening| match opened(&opening.visitor, &session, has_key) {
        Ok(session) => files::Exec::open(session, opening),
        Err(error) => opening.fail(error),
    };
    synth::File::opened_later(open, |_| false).mode(0o222).event()
}

/// The directory of a session, as its program has it.
fn place(session: &Arc<Session>, (root, attr): (Node, Attr)) -> Beyond {
    let disk = session.shared.disk.clone();
    let session = Arc::downgrade(session);
    Beyond::new(disk, root, attr).guarded(move |visitor| {
        let session = session.upgrade().ok_or(Errno::ENOENT)?;
        session.shared.rules.known().policy.may(&visitor.who)?;
        session.may_see(visitor)
    })
}

/// The files of a session, whose directory is `fs`. They do not keep it.
fn directory(session: &Arc<Session>, fs: (Node, Attr)) -> Dir {
    let handle = |make: fn(Opened) -> Result<Box<dyn synth::Handle>>| {
        let session = Arc::downgrade(session);
        synth::File::opened(move |visitor, _| make(opened(visitor, &session, false)?)).event()
    };
    let status = Arc::downgrade(session);
    let status =
        synth::File::text(move |_| status.upgrade().map(|session| session.status()).unwrap_or_default());
    Dir::new()
        .file("ctl", handle(|session| Ok(Box::new(Ctl::new(session, false)))))
        .file("argv", handle(|session| Ok(Box::new(Text(session, Words::Argv)))))
        .file("env", handle(|session| Ok(Box::new(Text(session, Words::Env)))))
        .file("exec", exec(session, false))
        .file("stdin", handle(Input::open).mode(0o222))
        .file("stdout", handle(|session| Ok(Box::new(Output(session, 0)))).mode(0o444))
        .file("stderr", handle(|session| Ok(Box::new(Output(session, 1)))).mode(0o444))
        .file("wait", handle(|session| Ok(Box::new(Wait(session)))).mode(0o444))
        .file("status", status.event())
        .with("fs", place(session, fs).into())
}

/// As whom programs run.
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

/// Whether programs of this user come to a directory: each above it must let them.
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

/// Takes a directory for this server.
fn locked(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = rustix::fs::open(dir, flags, Mode::empty())?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// Makes the directory of this server, and takes it.
fn made(dir: &Path) -> io::Result<OwnedFd> {
    for _ in 0..ATTEMPTS {
        match DirBuilder::new().mode(0o711).create(dir) {
            // Another server that starts may take it for one that was left: it goes, and is made again.
            Ok(()) => match locked(dir) {
                Ok(lock) if is_there(dir, &lock) => return Ok(lock),
                _ => {}
            },
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        std::thread::sleep(PAUSE);
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Whether this is what stands at the path.
fn is_there(path: &Path, dir: &OwnedFd) -> bool {
    let there = fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()));
    there.ok() == rustix::fs::fstat(dir).map(|stat| (stat.st_dev, stat.st_ino)).ok()
}

/// Removes what servers that are no more have left.
fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if is_named
            && launch::is_ours(&path)
            // Nobody takes it until it has gone.
            && let Ok(lock) = locked(&path)
            && is_there(&path, &lock)
            && let Err(error) = remove::remove(&path)
        {
            tracing::warn!("{}: it was left, and is not removed: {error}", path.display());
        }
    }
}

/// How the names of groups and directories begin.
const PREFIX: &str = "ninefold-part-";
/// A session's directory, in that of its own.
const PLACE: &str = "fs";
/// For disks and the kernel.
const THREADS: usize = 8;
/// For the ends of sessions; and for their directories.
const ENDS: usize = 2;
/// Attempts at a directory of its own.
const ATTEMPTS: usize = 1000;
const PAUSE: Duration = Duration::from_millis(1);
/// Descriptors of files in the sessions' directories that are kept.
const HANDLES: usize = 256;
