//! Serves a directory of the host.
//!
//! In: requests. Out: answers, inline if the kernel can give them from memory, else from the thread pool. One
//! function per operation serves both paths. Run *inline*, it returns EAGAIN instead of waiting. The request then
//! goes to the pool, where the same function runs again and may wait. An inline run that returns EAGAIN must not have
//! changed anything, except for bytes that the second run writes again.
//!
//! ```text
//! serve -> run(Inline) -> answer
//!              | EAGAIN, or an operation that writes to a journal
//!              `-> pool -> run(Pool) -> answer
//! ```
//!
//! Always holds: a fid refers to the same file for its whole life (`dent`). Nothing outside the root is reached. With
//! [`As::Client`], each call that the kernel checks permissions for runs with the client's rights, or is refused. On
//! a network file system even a lookup may wait. Requests for such files all go to the pool, also if the file system
//! is mounted below the root.

mod attr;
mod change;
mod dent;
mod dirs;
mod file;
pub mod host;
mod lock;
mod open;
pub(crate) mod pool;
pub(crate) mod sys;
mod users;
mod walk;
mod watch;
mod xattr;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Context;

use nine_io::changes::{Changes, Tap};
use nine_io::server::xattr::{XattrLimit, XattrValue};
use nine_io::server::{Answer, FileServer, Fill, Passage, Reply, Req, Request, StreamRequest};
use nine_io::{Called, Direct, Payload};
use nine_proto::{Attr, Errno, Error, NOGID, Names, Op, OpenFlags};
use rustix::fs::{CWD, Mode, OFlags};

use change::NewDirEntry;
use dent::{DentryTree, HostDentry};
pub use dirs::Block;
use dirs::OpenHostDir;
use file::{OpenHostFile, WriteSource};
pub use host::{HostFs, Linux};
use lock::RecordLockTable;
use pool::ThreadPool;
use sys::{CredentialGuard, UserCredentials};
use users::UserDatabase;
use xattr::XattrWriter;

/// The user whose rights requests have on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum As {
    /// The user of this process. New files belong to that user.
    #[default]
    Server,
    /// The user the client attached as: uid, gid and supplementary groups as in this host's user databases. Needs
    /// root. A uid without an entry gets group 65534 and no others; a name without an entry is refused.
    Client,
}

/// How a directory is served.
#[derive(Clone, Debug, Default)]
pub struct DiskOptions {
    /// Requests that would change something fail with EROFS.
    pub read_only: bool,
    /// The user whose rights requests have.
    pub identity: As,
    /// Allows opening devices and pipes, without waiting for the other end of a pipe. Otherwise the open fails with
    /// ENXIO. Clients that handle special files themselves, like Linux, open their own. Only positioned reads and
    /// writes reach the host's devices.
    pub devices: bool,
    /// The maximum number of pool threads; 0 means four per core, at most 32.
    pub threads: usize,
    /// The maximum number of descriptors cached for files that fids refer to. 0 means a quarter of the process'
    /// limit: open files may take half, and connections need some.
    pub handles: usize,
}

/// Returns the names of this host's users and groups, as /etc/passwd and /etc/group have them now.
pub fn names() -> Arc<dyn nine_proto::Names> {
    Arc::new(UserDatabase::load())
}

/// A directory of the host as a [`FileServer`].
///
/// Concurrency: `serve` never waits for the disk. It may be called from any threads at the same time.
///
/// The kernel applies the process' umask to new files. Where that clears bits the client asked for, the server sets
/// the mode again afterwards. To avoid the extra call, a server should start with umask 0.
pub struct Disk<H: HostFs = Linux> {
    inner: Arc<DiskShared<H>>,
    pool: ThreadPool,
    changes: Arc<Changes>,
}

struct DiskShared<H> {
    host: H,
    tree: DentryTree,
    read_only: bool,
    devices: bool,
    identity: As,
    server: UserCredentials,
    umask: u32,
    /// Devices that files were found on, and whether they are local: a lookup asks no other process or machine.
    devs: RwLock<Vec<(u64, bool)>>,
    /// The root's file system is in memory.
    in_memory: bool,
    /// Bytes held by fids of extended attributes.
    xattr_limit: XattrLimit,
    locks: RecordLockTable,
    users: Arc<UserDatabase>,
    next_open: AtomicU64,
}

impl Disk {
    /// Serves the directory at `path`. Needs /proc.
    ///
    /// # Errors
    /// The directory cannot be opened. `PermissionDenied`: [`As::Client`] without root.
    pub fn open(path: impl AsRef<Path>, options: DiskOptions) -> io::Result<Self> {
        Self::with_host(Linux, path, options)
    }
}

impl<H: HostFs> Disk<H> {
    /// Like [`Disk::open`], through another host. The root itself and /etc are opened without it.
    pub fn with_host(host: H, path: impl AsRef<Path>, options: DiskOptions) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path.as_ref(), flags, Mode::empty())?;
        let server = UserCredentials::of_process()?;
        if options.identity == As::Client && server.uid != 0 {
            let text = "serving with the clients' rights needs root";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let st = host.stat(root.as_fd(), b"")?;
        let fs_type = host.statfs(root.as_fd())?.ty;
        let handles = if options.handles == 0 { default_handles() } else { options.handles };
        let threads = if options.threads == 0 { ThreadPool::default_size() } else { options.threads };
        let inner = DiskShared {
            host,
            tree: DentryTree::new(root, &st, handles),
            read_only: options.read_only,
            devices: options.devices,
            identity: options.identity,
            server,
            umask: process_umask()?,
            devs: RwLock::new(vec![(st.dev, !REMOTE.contains(&fs_type))]),
            in_memory: MEMORY.contains(&fs_type),
            xattr_limit: XattrLimit::default(),
            locks: RecordLockTable::default(),
            users: Arc::new(UserDatabase::load()),
            next_open: AtomicU64::new(0),
        };
        let changes = watch::changes(inner.tree.root.cached().expect("the root's descriptor is kept"));
        Ok(Self { inner: Arc::new(inner), pool: ThreadPool::new(threads), changes })
    }
}

impl<H: HostFs> Disk<H> {
    /// Returns the node and the attributes of the directory at these names below the root, for servers that pass
    /// requests on (`synth::Beyond`). Requests below it have the rights of `user` (uid and gid, no other groups), or
    /// of this process if `None`. Waits for the disk.
    ///
    /// # Errors
    /// The directory cannot be reached.
    pub fn below(
        &self,
        names: &[&str],
        user: Option<(u32, u32)>,
    ) -> nine_proto::Result<(nine_io::server::Node, Attr)> {
        let ident = user.map(|(uid, gid)| UserCredentials { uid, gid, groups: Vec::new() });
        self.inner.below(names, ident).map_err(|fail| fail.0)
    }
}

impl<H: HostFs> FileServer for Disk<H> {
    fn serve(&self, req: Req) -> Answer {
        let op = req.op();
        if may_be_inline(&op) && !req.was_called() {
            match self.inner.run(&req, op, ExecutionMode::Inline) {
                Err(OperationFailure(error)) if error.errno == Errno::EAGAIN => {}
                result => return req.now(result.map_err(|fail| fail.0)),
            }
        }
        let client = req.id().conn;
        let (answer, later) = req.later();
        let inner = self.inner.clone();
        let job = Box::new(move || {
            let result = inner.run(&later, later.op(), ExecutionMode::Pool).map_err(|fail| fail.0);
            later.respond(result);
        });
        // A full pool returns the job. Dropping it answers the request.
        drop(self.pool.push(client, job));
        answer
    }

    /// With the clients' rights, only an owner gets the changes: their paths contain names that other users may not
    /// list.
    fn changes(&self, walk: &Request) -> Option<nine_proto::Result<Tap>> {
        let node = walk.node::<DiskFidState>().ok()?;
        if node.view.ident.is_some() && !walk.who().owner {
            return Some(Err(Errno::EACCES.into()));
        }
        let base = node.view.root.path().ok_or_else(|| Errno::ENOENT.into());
        Some(base.map(|base| Tap { changes: self.changes.clone(), base }))
    }

    fn has_descriptors(&self) -> bool {
        true
    }

    /// Streams are read by offset. A large file that is streamed once should not stay in the page cache.
    fn stream(&self, request: StreamRequest<'_>) -> Option<Box<dyn Passage>> {
        if let Some(node) = request.node.downcast_ref::<DiskFidState>().filter(|_| request.read) {
            self.inner.passes(node);
        }
        None
    }

    fn direct(&self, node: &nine_io::server::Node, flags: OpenFlags) -> Option<Arc<dyn Direct>> {
        let node = node.clone().downcast::<DiskFidState>().ok()?;
        // On a network file system even a lookup may wait.
        let is_local = node.dent().is_ok_and(|dent| self.inner.is_local(dent, ExecutionMode::Inline));
        is_local
            .then(|| Arc::new(LocalOpenFile { inner: self.inner.clone(), node, flags }) as Arc<dyn Direct>)
    }

    fn takes_placed(&self, node: &nine_io::server::Node) -> bool {
        node.downcast_ref::<DiskFidState>().is_some_and(|node| matches!(node.kind, DiskFidKind::File(_)))
    }

    fn can_fill(&self, node: &nine_io::server::Node) -> bool {
        !self.inner.read_only && node.downcast_ref::<DiskFidState>().is_some_and(DiskFidState::can_fill)
    }

    fn fill(&self, fill: Fill) {
        let (inner, client) = (self.inner.clone(), fill.conn);
        let job = Box::new(move || {
            let (stored, result) = inner.fill(&fill);
            fill.done(stored, result.map_err(|fail| fail.0));
        });
        // A full pool returns the job. Dropping it answers the request.
        drop(self.pool.push(client, job));
    }

    fn names(&self) -> Arc<dyn Names> {
        self.inner.users.clone()
    }
}

/// An open file for a client in this process. Reads and writes that would wait are left to messages.
struct LocalOpenFile<H> {
    inner: Arc<DiskShared<H>>,
    node: Arc<DiskFidState>,
    flags: OpenFlags,
}

impl<H: HostFs> Direct for LocalOpenFile<H> {
    fn read(&self, _: Option<&mut Context<'_>>, offset: u64, count: u32) -> Called<Payload> {
        match self.flags.reads().then(|| self.inner.read(&self.node, offset, count, ExecutionMode::Inline)) {
            Some(result) => called(result),
            None => Called::Message,
        }
    }

    fn write_now(&self, offset: u64, data: &Payload) -> Called<usize> {
        let data = match data {
            Payload::Bytes(data) => WriteSource::Bytes(data),
            Payload::Placed(data) => WriteSource::Placed(data),
            Payload::Pieces(_) | Payload::File { .. } => return Called::Message,
        };
        if !self.flags.writes() || self.inner.read_only {
            return Called::Message;
        }
        let written = self.inner.write(&self.node, offset, data, ExecutionMode::Inline);
        called(written.map(|reply| match reply {
            Reply::Wrote(n) => n as usize,
            _ => unreachable!("a write is answered with how much was written"),
        }))
    }

    fn backing(&self) -> Option<Arc<OwnedFd>> {
        match &self.node.kind {
            DiskFidKind::File(file) => file.fd().ok(),
            _ => None,
        }
    }
}

fn called<T>(done: OperationResult<T>) -> Called<T> {
    match done {
        Err(OperationFailure(error)) if error.errno == Errno::EAGAIN => Called::Message,
        done => Called::Done(done.map_err(|fail| fail.0)),
    }
}

/// Where an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExecutionMode {
    /// On the event loop: it returns EAGAIN instead of waiting. See the module for changes before that.
    Inline,
    /// On a pool thread, which may wait.
    Pool,
}

/// Returns whether an operation is worth trying inline. Operations that write to a journal, or are rare and may wait,
/// are not.
fn may_be_inline(op: &Op<'_>) -> bool {
    matches!(
        op,
        Op::Walk { .. }
            | Op::Open { .. }
            | Op::Getattr { .. }
            | Op::Readdir { .. }
            | Op::Read { .. }
            | Op::Write { .. }
            | Op::Clunk
    )
}

/// Returns whether a read-only server refuses the operation.
fn changes(op: &Op<'_>) -> bool {
    match op {
        Op::Open { flags } => flags.changes(),
        Op::Create { .. }
        | Op::Make { .. }
        | Op::Rename { .. }
        | Op::RenameAt { .. }
        | Op::Unlink { .. }
        | Op::Setattr { .. }
        | Op::Write { .. }
        | Op::XattrCreate { .. } => true,
        _ => false,
    }
}

impl<H: HostFs> DiskShared<H> {
    fn run(&self, req: &Request, op: Op<'_>, how: ExecutionMode) -> OperationResult<Reply> {
        if self.read_only && changes(&op) {
            return Err(Errno::EROFS.into());
        }
        if let Op::Auth { .. } = op {
            return Err(Error::new(Errno::ENOENT, "authentication not required").into());
        }
        if let Op::Attach { aname, .. } = op {
            return self.attach(req.who(), aname);
        }
        let node = req.node::<DiskFidState>()?;
        if let Ok(dent) = node.dent()
            && !self.is_local(dent, how)
            && how == ExecutionMode::Inline
        {
            return Err(Errno::EAGAIN.into());
        }
        match op {
            Op::Auth { .. } | Op::Attach { .. } => unreachable!("they have no node"),
            Op::Walk { names } => self.walk(&node, names, how),
            Op::Open { flags } => self.open(&node, flags, how),
            Op::Create { name, make, flags, perm, gid } => {
                self.create(&node, &NewDirEntry { name, make, other: req.node2().ok(), perm, gid }, flags)
            }
            Op::Make { name, make, perm, gid } => self
                .make(&node, &NewDirEntry { name, make, other: req.node2().ok(), perm, gid })
                .map(Reply::Made),
            Op::Rename { name } => self.rename(&node, &*req.node2::<DiskFidState>()?, name),
            Op::RenameAt { old, new, how } => {
                self.rename_at(&node, old, &*req.node2::<DiskFidState>()?, new, how)
            }
            Op::Unlink { name, dir } => self.unlink(&node, name, dir),
            // Remove clunks the fid in any case, so the read-only check is inside.
            Op::Remove => self.remove(&node),
            Op::Readlink => self.readlink(&node, how),
            Op::Getattr { mask } => self.getattr(&node, mask, how),
            Op::Setattr { set } => self.setattr(&node, set),
            Op::Readdir { cookie } => self.readdir(&node, cookie, req.dir_buf(self.users.clone()), how),
            Op::Read { offset, count } => self.read(&node, offset, count, how).map(Reply::Read),
            Op::Write { offset, data } => {
                let data = req.placed().map_or(WriteSource::Bytes(data), WriteSource::Placed);
                self.write(&node, offset, data, how)
            }
            Op::Fsync { datasync } => self.fsync(&node, datasync),
            Op::Lock(lock) => self.lock(&node, req, lock),
            Op::Getlock(lock) => self.getlock(&node, req, lock),
            Op::XattrWalk { name } => self.xattr_walk(&node, req, name),
            Op::XattrCreate { name, size, flags } => self.xattr_create(&node, req, name, size, flags),
            Op::Statfs => self.statfs(&node),
            Op::Clunk => self.clunk(&node, how),
            Op::Stream { .. } | Op::Sclose { .. } => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    /// Returns whether the file is on a local file system. Inline, an unknown device counts as remote; the pool looks
    /// it up.
    fn is_local(&self, dent: &Arc<HostDentry>, how: ExecutionMode) -> bool {
        let known = |devs: &[(u64, bool)]| devs.iter().find(|seen| seen.0 == dent.id.dev).map(|seen| seen.1);
        if let Some(local) = known(&self.devs.read().unwrap_or_else(PoisonError::into_inner)) {
            return local;
        }
        if how == ExecutionMode::Inline {
            return false;
        }
        let fd = self.tree.handle(&self.host, how, dent);
        let Ok(statfs) = fd.and_then(|fd| self.host.statfs(fd.as_fd())) else { return false };
        let local = !REMOTE.contains(&statfs.ty);
        let mut devs = self.devs.write().unwrap_or_else(PoisonError::into_inner);
        if devs.len() < DEVS_MAX && known(&devs).is_none() {
            devs.push((dent.id.dev, local));
        }
        local
    }

    /// Takes the client's identity for this thread, if the server is configured so. `gid` is the group for a file
    /// about to be created. It is used if the client is a member, or root.
    fn become_client<'a>(
        &'a self,
        view: &AttachView,
        gid: u32,
    ) -> OperationResult<Option<CredentialGuard<'a>>> {
        let Some(ident) = &view.ident else { return Ok(None) };
        let mut ident = std::borrow::Cow::Borrowed(ident);
        if gid != NOGID && gid != ident.gid && (ident.uid == 0 || ident.groups.contains(&gid)) {
            ident.to_mut().gid = gid;
        }
        if *ident == self.server {
            return Ok(None);
        }
        Ok(Some(CredentialGuard::enter(&ident, &self.server)?))
    }

    /// Returns a descriptor of the node's file: the open one if the file is open, else an `O_PATH` one.
    fn any_fd(&self, node: &DiskFidState, how: ExecutionMode) -> OperationResult<Arc<OwnedFd>> {
        match &node.kind {
            DiskFidKind::Path(dent) => Ok(self.tree.handle(&self.host, how, dent)?),
            DiskFidKind::File(file) => file.fd(),
            DiskFidKind::Dir(dir) => Ok(dir.fd.clone()),
            DiskFidKind::Xattr(_) | DiskFidKind::NewXattr(_) => Err(Errno::EBADF.into()),
        }
    }
}

/// The state behind a fid.
struct DiskFidState {
    view: Arc<AttachView>,
    kind: DiskFidKind,
}

/// State shared by all fids of one attach.
struct AttachView {
    /// The root of the attach; ".." does not go above it.
    root: Arc<HostDentry>,
    /// `None`: requests have the server's own rights.
    ident: Option<UserCredentials>,
}

enum DiskFidKind {
    /// A walked fid that is not open.
    Path(Arc<HostDentry>),
    File(Box<OpenHostFile>),
    Dir(Box<OpenHostDir>),
    /// The value of an extended attribute, or the list of attribute names.
    Xattr(Box<XattrValue>),
    NewXattr(Box<XattrWriter>),
}

impl DiskFidState {
    /// Returns the file the node refers to; EBADF for attributes.
    fn dent(&self) -> OperationResult<&Arc<HostDentry>> {
        match &self.kind {
            DiskFidKind::Path(dent) => Ok(dent),
            DiskFidKind::File(file) => Ok(&file.dent),
            DiskFidKind::Dir(dir) => Ok(&dir.dent),
            DiskFidKind::Xattr(_) | DiskFidKind::NewXattr(_) => Err(Errno::EBADF.into()),
        }
    }

    /// Returns the file's directory and name. EBUSY for the root of the attach, which cannot be moved or removed.
    fn place(&self) -> OperationResult<(Arc<HostDentry>, Box<[u8]>)> {
        let dent = self.dent()?;
        let place = if Arc::ptr_eq(dent, &self.view.root) { None } else { dent.place() };
        Ok(place.ok_or(Errno::EBUSY)?)
    }

    /// Returns another node of the same attach.
    fn with(&self, kind: DiskFidKind) -> Arc<Self> {
        Arc::new(Self { view: self.view.clone(), kind })
    }
}

/// The reason an operation failed: the kernel's errno, or an error text of this server.
#[derive(Debug)]
struct OperationFailure(Error);

type OperationResult<T> = Result<T, OperationFailure>;

impl From<host::Errno> for OperationFailure {
    fn from(error: host::Errno) -> Self {
        Self(Errno(error.raw_os_error().unsigned_abs()).into())
    }
}

impl From<Errno> for OperationFailure {
    fn from(error: Errno) -> Self {
        Self(error.into())
    }
}

impl From<Error> for OperationFailure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A quarter of the process' descriptor limit, at most 2^19. The rest is for open files and connections.
fn default_handles() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    usize::try_from(limit.current.unwrap_or(u64::MAX) / 4).unwrap_or(usize::MAX).min(1 << 19)
}

/// Reads the umask from /proc. umask(2) would have to change it to read it.
fn process_umask() -> io::Result<u32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let value = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    Ok(value.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o777))
}

/// Remembered devices. Requests for files on other devices always go to the pool.
const DEVS_MAX: usize = 64;
/// `f_type` of file systems in memory: tmpfs, ramfs. They do not support `RWF_NOWAIT`, and do not need it.
const MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];
/// `f_type` of file systems that ask another process or machine: NFS, FUSE, CIFS, SMB2, 9P, Ceph, AFS.
const REMOTE: [u32; 7] =
    [0x6969, 0x6573_5546, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x00c3_6400, 0x5346_414f];
