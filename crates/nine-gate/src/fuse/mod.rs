//! Mounts a tree of a 9P server as a file system of this kernel (fuse(4)), for programs that do not speak 9P.
//!
//! In: kernel requests from an open `/dev/fuse` that is mounted; a root of a 9P client. Out: answers, until the tree is
//! unmounted. [`Mount`] mounts.
//!
//! ```text
//! device -> take -> (at once) ---------------> answer
//!             `---> Running (a future, ops) ---'
//! ```
//! When the kernel interrupts a request, it is flushed (flush(5)). A request that only waits for an event or a lock is
//! flushed at once, others after [`GRACE`], because programs do not expect stat(2) to be interrupted. If the server
//! does not answer the flush within [`Options::patience`], the caller gets EINTR.
//!
//! Always holds: a request that expects an answer gets exactly one. If the kernel does not take an answer, the lookups
//! and the handle in it are undone.

mod abi;
mod change_log;
mod data;
mod dir;
mod fresh;
mod locks;
mod mount;
mod nodes;
mod notifier;
mod ops;
mod prefetch;
mod running;
pub mod space;
mod sys;
mod told;
mod write_behind;
mod xattr;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::future::{pending, poll_fn};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::{Either, join4, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use nine_io::client::File;
use nine_net::{Clock, Device, Env};
use nine_proto::{Errno, OpenFlags};

pub use mount::{Mount, MountOptions, MountedServer, mounted, unmount};

use abi::{AnswerBuffer, FuseFields, FuseHeader, init, op};
use dir::DirHandle;
use nodes::{KernelNode, NodeTable, RequestEpoch, WANTED};
use notifier::Notifier;
use prefetch::DirectoryPrefetcher;
use running::{InterruptWish, RunningRequest};
use told::ChangeForwarder;
use write_behind::{WriteBehind, WriteRun};

/// How long the kernel may cache names and attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// No caching: the kernel asks each time.
    Never,
    /// For this time.
    For(Duration),
    /// For [`LONG`] if the server publishes changes, else for [`SHORT`].
    Told,
}

/// See [`Cache::Told`].
pub const LONG: Duration = Duration::from_secs(3600);
/// See [`Cache::Told`].
pub const SHORT: Duration = Duration::from_secs(1);
/// How long an interrupted request of a plain file may go on before it is flushed.
pub const GRACE: Duration = Duration::from_secs(1);

/// Options of [`serve`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long the kernel caches names, attributes and pages.
    pub cache: Cache,
    /// The kernel may hold writes in its page cache until it writes them back or a program calls fsync(2).
    pub write_back: bool,
    /// Users other than the mounter have access, and the kernel checks permissions. New files are given to the user who
    /// creates them.
    pub all_users: bool,
    /// The kernel checks permissions, also the mounter's.
    pub checked: bool,
    /// If set, all files appear as owned by this user and group. A user namespace maps no other ids, and its kernel
    /// lets nobody write files of unmapped owners.
    pub owner: Option<(u32, u32)>,
    /// The kernel itself reads and writes open files of this process's disks where it can (FUSE passthrough).
    pub passthrough: bool,
    /// How long to wait for the answer to a flush.
    pub patience: Duration,
    /// A write of a file that is written sequentially need not wait for the answers to earlier ones, if the server is
    /// far away. Their errors are reported by a later write, fsync(2) or close(2). Has no effect together with
    /// `write_back` or [`Cache::Never`].
    pub write_behind: bool,
}

/// Maximum number of bytes in one READ or WRITE, and the same in pages.
const DATA: usize = 1 << 20;
const PAGES: u16 = 256;
/// Maximum number of bytes in a request.
const FRAME: usize = DATA + 4096;
/// Data of a WRITE up to this size is copied, which frees its buffer at once. In bytes.
const COPIED: usize = 32 << 10;
/// Free buffers that are kept for later requests.
const SPARE_BUFFERS_MAX: usize = 4;
/// Maximum number of requests in flight. Further requests get EAGAIN, except those that end something.
const REQUESTS: usize = 4096;
/// Maximum number of background requests of the kernel in flight (read-ahead, write-back), and the number from which it
/// holds back.
const BACKGROUND: u16 = 64;
const CONGESTED: u16 = 48;
/// Walks to one file while renames change its path. After the last one the caller gets ESTALE.
const WALK_ATTEMPTS: usize = 64;
/// Requests taken per poll, before other tasks of this core run.
const REQUESTS_PER_POLL: usize = 64;

/// Answers the kernel's requests until the tree is unmounted.
///
/// # Errors
/// The device failed, or this kernel's FUSE is older than Linux 5.4.
pub async fn serve<E: Env>(env: E, device: OwnedFd, root: File, options: Options) -> io::Result<()> {
    let write = Rc::new(device.try_clone()?);
    let mut device = Device::new(device)?;
    let root = Rc::new(root);
    let told = match options.cache {
        Cache::Told => ChangeForwarder::begin(&root, &write, options.write_back, &env.clock()).await?,
        Cache::Never | Cache::For(_) => None,
    };
    let (told, watch) = told.unzip();
    let attr = root.getattr(WANTED).await.map_err(io::Error::from)?;
    let has_locks = locks::has_locks(&root).await;
    let mut seed = [0; 8];
    env.entropy(&mut seed);
    let gate = Rc::new(MountState {
        clock: env.clock(),
        device: write,
        options,
        nodes: RefCell::new(NodeTable::new(root.clone(), &attr)),
        handles: RefCell::default(),
        next: Cell::new(1),
        wishes: RefCell::default(),
        has_locks,
        passes: Cell::new(false),
        has_long_setxattr: Cell::new(false),
        checks_lists: Cell::new(false),
        lock_notifier: OnceCell::new(),
        told,
        behind: WriteBehind::default(),
        prefetcher: DirectoryPrefetcher::default(),
        scratch: RefCell::default(),
        name: format!("fuse-{:016x}", u64::from_ne_bytes(seed)),
    });
    let mut buffers = RequestBuffers::default();
    let mut running = FuturesUnordered::new();
    let turns = poll_fn(|cx| gate.turn(cx, &mut device, &mut buffers, &mut running));
    let listens = pin!(async {
        match (&gate.told, watch) {
            (Some(told), Some(watch)) => told.listen(root, watch, &gate.nodes, &gate.clock).await,
            _ => pending().await,
        }
    });
    let sweeps = pin!(nodes::sweep(&gate.nodes, &gate.clock));
    let (answers, prefetches) = (pin!(gate.sweep_runs()), pin!(gate.prefetch()));
    match select(turns, join4(listens, sweeps, answers, prefetches)).await {
        Either::Left((ended, _)) => ended,
        Either::Right(((never, ..), _)) => match never {},
    }
}

/// The state shared by all requests of a mount.
struct MountState {
    clock: Arc<dyn Clock>,
    device: Rc<OwnedFd>,
    options: Options,
    nodes: RefCell<NodeTable>,
    handles: RefCell<HashMap<u64, Rc<OpenHandle>, foldhash::fast::FixedState>>,
    /// The next handle's number.
    next: Cell<u64>,
    /// Interrupt handles of waiting requests, by request number.
    wishes: RefCell<HashMap<u64, Rc<InterruptWish>, foldhash::fast::FixedState>>,
    /// The server has record locks.
    has_locks: bool,
    /// Sends invalidations for locks. Created for the first one. The notifier of `told` may wait for pages that a
    /// silent server has to send, and locks of other files must not wait with it.
    lock_notifier: OnceCell<Notifier>,
    /// The subscription to the server's changes, if it publishes them.
    told: Option<ChangeForwarder>,
    /// Writes that were answered early.
    behind: WriteBehind,
    /// Files of directories in which programs look up many.
    prefetcher: DirectoryPrefetcher,
    /// The kernel accepts passthrough files of the host.
    passes: Cell<bool>,
    /// SETXATTR has two more fields.
    has_long_setxattr: Cell<bool>,
    /// The kernel asks for access control lists and checks permissions by them.
    checks_lists: Cell<bool>,
    /// A buffer for reads that are answered at once.
    scratch: RefCell<Vec<u8>>,
    /// Identifies this mount as a lock owner to the server.
    name: String,
}

/// An open file or directory of a program.
enum OpenHandle {
    File(FileHandle),
    Dir(DirHandle),
}

struct FileHandle {
    node: Rc<KernelNode>,
    file: Rc<File>,
    /// Its writes in flight, or the last ones.
    run: RefCell<Option<Rc<WriteRun>>>,
    /// The same file opened without `APPEND`, or with it: for writes of the other kind. Opened when first needed.
    other: RefCell<Option<Rc<File>>>,
    /// The same file opened for writing. flock(2) allows an exclusive lock on a file that is open for reading.
    locker: RefCell<Option<Rc<File>>>,
    /// Reads bypass the kernel's pages (`DIRECT_IO`): each READ is one Tread, which may wait.
    is_event: bool,
    /// The positions, if the kernel keeps none.
    stream: Option<StreamPosition>,
}

/// The positions of an open file for which the kernel sends offset 0 with every request (`FOPEN_STREAM`). With a
/// position of its own, the kernel would make a write wait for a blocked read of the same descriptor.
///
/// Servers count a text by offset: a read continues after the last one, until the end. A write starts a new question:
/// the next read starts at the beginning of the answer. The program cannot seek here, so this stands for its seek.
#[derive(Default)]
struct StreamPosition {
    read: Cell<u64>,
    write: Cell<u64>,
}

impl StreamPosition {
    /// Advances the read position after a read at `offset`, unless a write has reset it meanwhile.
    fn has_read(&self, offset: u64, bytes: usize) {
        if self.read.get() == offset {
            self.read.set(offset.saturating_add(bytes as u64));
        }
    }

    /// Advances the write position and resets the read position to 0.
    fn has_written(&self, offset: u64, bytes: usize) {
        self.write.set(offset.saturating_add(bytes as u64));
        self.read.set(0);
    }
}

/// The answer to a request, and the references that it gives to the kernel.
#[derive(Default)]
struct FuseReply {
    bytes: Vec<u8>,
    /// Numbers of the files that the answer names, one lookup each.
    told: Vec<u64>,
    /// The handle that the answer opens.
    opened: Option<u64>,
}

/// The answer to a request, or its error number.
type FuseResult = Result<FuseReply, Errno>;

/// Reusable buffers for requests.
#[derive(Clone, Default)]
struct RequestBuffers {
    spare: Rc<RefCell<Vec<BytesMut>>>,
}

impl RequestBuffers {
    fn take(&self) -> BytesMut {
        self.spare.borrow_mut().pop().unwrap_or_else(|| BytesMut::zeroed(FRAME))
    }

    fn give(&self, buffer: BytesMut) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_BUFFERS_MAX && buffer.len() == FRAME {
            spare.push(buffer);
        }
    }
}

/// The data of a WRITE. When it is dropped, its buffer is reused.
struct WriteData {
    data: Bytes,
    whole: Option<(Bytes, RequestBuffers)>,
}

impl Drop for WriteData {
    fn drop(&mut self) {
        self.data = Bytes::new();
        if let Some((whole, buffers)) = self.whole.take()
            && let Ok(buffer) = whole.try_into_mut()
        {
            buffers.give(buffer);
        }
    }
}

impl MountState {
    /// Polls the requests in flight and takes new ones from the device.
    fn turn(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        device: &mut Device,
        buffers: &mut RequestBuffers,
        running: &mut FuturesUnordered<RunningRequest>,
    ) -> Poll<io::Result<()>> {
        for _ in 0..REQUESTS_PER_POLL {
            while let Poll::Ready(Some(())) = running.poll_next_unpin(cx) {}
            let mut buffer = buffers.take();
            let read = device.poll_read(cx, &mut buffer);
            let len = match read {
                Poll::Ready(Ok(len)) => len,
                other => {
                    buffers.give(buffer);
                    match other {
                        Poll::Ready(Err(error)) => match rustix::io::Errno::from_io_error(&error) {
                            // ENOENT: the kernel withdrew the request before it was read.
                            Some(rustix::io::Errno::NOENT) => continue,
                            Some(rustix::io::Errno::NODEV) => return Poll::Ready(Ok(())),
                            _ => return Poll::Ready(Err(error)),
                        },
                        _ => return Poll::Pending,
                    }
                }
            };
            let Some((head, fields)) = FuseHeader::of(&buffer[..len]) else {
                return Poll::Ready(Err(botched("a request that is none")));
            };
            let ends = matches!(head.op, op::FORGET | op::BATCH_FORGET | op::INTERRUPT)
                || matches!(head.op, op::RELEASE | op::RELEASEDIR | op::FLUSH | op::DESTROY);
            match head.op {
                _ if running.len() >= REQUESTS && !ends => self.answer(head.unique, Err(Errno::EAGAIN)),
                op::DESTROY => return Poll::Ready(Ok(())),
                op::INIT => self.init(head, fields)?,
                op::WRITE => {
                    let work = self.write_request(len, buffer, buffers);
                    self.run(head, work, running);
                    continue;
                }
                op::READ if self.read_at_once(head, fields) => {}
                _ => {
                    if let Some(work) = self.request(head, fields) {
                        self.run(head, work, running);
                    }
                }
            }
            buffers.give(buffer);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Answers INIT: agrees with the kernel on a version and features.
    fn init(&self, head: FuseHeader, mut fields: FuseFields<'_>) -> io::Result<()> {
        let mut words = [0; 5];
        for word in words.iter_mut().take(4) {
            *word = fields.u32().ok_or_else(|| botched("INIT without its fields"))?;
        }
        words[4] = fields.u32().unwrap_or(0);
        let [major, minor, ahead, flags, flags2] = words;
        if major < abi::MAJOR || major == abi::MAJOR && minor < abi::MINOR_MIN {
            self.answer(head.unique, Err(Errno::EPROTO));
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("the kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.4) or later is needed"),
            ));
        }
        if major > abi::MAJOR {
            // The kernel asks again with our version.
            self.send(head.unique, 0, &AnswerBuffer::default().u32(abi::MAJOR).u32(abi::MINOR).0);
            return Ok(());
        }
        let offered = u64::from(flags) | u64::from(flags2) << 32;
        let mut wanted = init::ASYNC_READ
            | init::ATOMIC_O_TRUNC
            | init::BIG_WRITES
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::DONT_MASK
            | init::SETXATTR_EXT
            | init::CACHE_SYMLINKS
            | init::HANDLE_KILLPRIV_V2
            | init::INIT_EXT
            | init::HAS_EXPIRE_ONLY
            | init::DIRECT_IO_ALLOW_MMAP;
        let told = self.told.as_ref();
        if offered & init::HAS_EXPIRE_ONLY == 0 {
            told.inspect(|told| told.give_up());
        }
        // With published changes the kernel need not infer changes from times, by which it would drop its own writes.
        wanted |= if told.is_some_and(ChangeForwarder::is_on) {
            init::EXPLICIT_INVAL_DATA
        } else {
            init::AUTO_INVAL_DATA
        };
        // If the kernel checks modes, it must check access control lists too: the group bits of a mode are the list's
        // mask.
        if self.options.all_users || self.options.checked {
            wanted |= init::POSIX_ACL;
        }
        if self.has_locks {
            wanted |= init::POSIX_LOCKS | init::FLOCK_LOCKS;
        }
        if self.options.write_back {
            wanted |= init::WRITEBACK_CACHE;
        } else if self.options.passthrough {
            wanted |= init::PASSTHROUGH;
        }
        let agreed = offered & wanted;
        self.passes.set(agreed & init::PASSTHROUGH != 0);
        self.has_long_setxattr.set(agreed & init::SETXATTR_EXT != 0);
        self.checks_lists.set(agreed & init::POSIX_ACL != 0);
        let stacked = u32::from(self.passes.get());
        let out = AnswerBuffer::default()
            .u32(abi::MAJOR)
            .u32(abi::MINOR.min(minor))
            .u32(ahead.max(DATA as u32))
            .u32(agreed as u32)
            .u16(BACKGROUND)
            .u16(CONGESTED)
            .u32(DATA as u32)
            .u32(1)
            .u16(PAGES)
            .u16(0)
            .u32((agreed >> 32) as u32)
            .u32(stacked);
        let mut bytes = out.0;
        bytes.resize(64, 0);
        self.send(head.unique, 0, &bytes);
        Ok(())
    }

    /// The epoch of a request that is about to be sent.
    fn asks(&self) -> RequestEpoch {
        self.nodes.borrow().asks()
    }

    /// How long the kernel may cache a name, if the request for it was sent at `asked`.
    fn good_name(&self, asked: RequestEpoch, dir: u64, name: &[u8]) -> Duration {
        let nodes = self.nodes.borrow();
        match nodes.has_name_changed(asked, dir, name) {
            true => Duration::ZERO,
            false => self.good(|told| told.name(&nodes, dir)),
        }
    }

    /// The same for a file's attributes.
    fn good_attr(&self, asked: RequestEpoch, node: u64) -> Duration {
        let nodes = self.nodes.borrow();
        match nodes.has_file_changed(asked, node) {
            true => Duration::ZERO,
            false => self.good(|told| told.file(&nodes, node)),
        }
    }

    fn good(&self, told: impl FnOnce(&ChangeForwarder) -> Duration) -> Duration {
        match (self.options.cache, &self.told) {
            (Cache::Never, _) => Duration::ZERO,
            (Cache::For(time), _) => time,
            (Cache::Told, None) => SHORT,
            (Cache::Told, Some(how)) => told(how),
        }
    }

    /// See [`ChangeForwarder::mark_unsettled`].
    fn mark_unsettled(&self, dir: u64, name: &[u8], files: impl IntoIterator<Item = Rc<KernelNode>>) {
        if let Some(told) = &self.told {
            told.mark_unsettled((dir, name.into()), files);
        }
    }

    /// Sends an answer. If the kernel does not take it, undoes the lookups and the handle in it.
    fn answer(&self, unique: u64, outcome: FuseResult) {
        match outcome {
            Ok(reply) => {
                if self.send(unique, 0, &reply.bytes) {
                    return;
                }
                for node in reply.told {
                    self.nodes.borrow_mut().forget(node, 1);
                }
                if let Some(handle) = reply.opened {
                    self.close(handle);
                }
            }
            Err(errno) => {
                // The kernel accepts no other numbers; those above are internal to it.
                let known = if (1..512).contains(&errno.0) { errno } else { Errno::EIO };
                self.send(unique, -(known.0 as i32), &[]);
            }
        }
    }

    /// Writes an answer. Returns `false` if the kernel does not take it.
    fn send(&self, unique: u64, error: i32, bytes: &[u8]) -> bool {
        let head =
            AnswerBuffer::default().u32((abi::OUT + bytes.len()) as u32).u32(error as u32).u64(unique).0;
        let sent = rustix::io::writev(&self.device, &[IoSlice::new(&head), IoSlice::new(bytes)]);
        match sent {
            Ok(_) => true,
            Err(error) => {
                // ENOENT: the request was withdrawn. ENODEV: the tree is unmounted.
                if !matches!(error, rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) {
                    tracing::error!("the kernel refuses an answer: {error}");
                }
                false
            }
        }
    }

    fn handle(&self, number: u64) -> Result<Rc<OpenHandle>, Errno> {
        self.handles.borrow().get(&number).cloned().ok_or(Errno::EBADF)
    }

    fn node(&self, id: u64) -> Result<Rc<KernelNode>, Errno> {
        self.nodes.borrow().get(id).ok_or(Errno::ESTALE)
    }

    /// Returns a fid for a file that the kernel knows.
    async fn file(&self, id: u64) -> Result<Rc<File>, Errno> {
        self.file_of(&*self.node(id)?).await
    }

    /// The same; walks to the file again if it has no fid.
    async fn file_of(&self, node: &KernelNode) -> Result<Rc<File>, Errno> {
        for _ in 0..WALK_ATTEMPTS {
            if let Some(file) = self.nodes.borrow().fid(node) {
                return Ok(file);
            }
            let asked = self.asks();
            // ESTALE: the file has no path, or its names form a loop.
            let (above, path) = self.nodes.borrow().path_from_held(node).ok_or(Errno::ESTALE)?;
            let error = match above.walk_attr(&path, WANTED).await {
                Ok((file, attr)) if node.is(&attr) => {
                    let file = Rc::new(file);
                    self.nodes.borrow_mut().hold(asked, node, file.clone());
                    return Ok(file);
                }
                Ok(_) => Errno::ESTALE,
                Err(error) if error.errno() == Errno::ENOENT => Errno::ENOENT,
                Err(error) => return Err(error.errno()),
            };
            // The server may have executed a rename whose reply is in flight: then the path was from before it.
            if !poll_fn(|cx| self.nodes.borrow_mut().poll_rename_end(asked, cx)).await {
                return Err(error);
            }
        }
        Err(Errno::ESTALE)
    }
}

fn botched(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("/dev/fuse: {what}"))
}
