//! Files of a 9P server as a file system of this kernel (fuse(4)), for programs that know nothing of 9P.
//!
//! In: requests of the kernel from an open `/dev/fuse` that is mounted; a root of a 9P client. Out: answers, until it
//! is unmounted. [`Mount`] mounts.
//!
//! ```text
//! device -> take -> (at once) ---------------> answer
//!             `---> Running (a future, ops) ---'
//! ```
//! What the kernel interrupts is flushed (flush(5)): at once where waiting is all it does, else after [`GRACE`], since
//! programs do not expect stat(2) to be interrupted; after [`Options::patience`] more its caller is let go in any case.
//!
//! Always holds: one answer to each request; what the kernel was not told, because nobody waited any more, is undone.

mod abi;
mod change_log;
mod dir;
mod fresh;
mod locks;
mod mount;
mod nodes;
mod notifier;
mod ops;
mod running;
pub mod space;
mod sys;
mod told;
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
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use nine_io::Payload;
use nine_io::client::File;
use nine_net::{Clock, Device, Env};
use nine_proto::{Errno, OpenFlags};

pub use mount::{Mount, MountOptions, unmount};

use abi::{Fields, Head, Out, init, op};
use dir::Dir;
use nodes::{Node, Nodes, RequestEpoch, WANTED};
use notifier::Notifier;
use running::{Running, Wish};
use told::Told;

/// How long the kernel believes what it has been told of names and attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Not at all: each is asked for again.
    Never,
    /// So long.
    For(Duration),
    /// [`LONG`] where the server tells of changes, else [`SHORT`].
    Told,
}

/// See [`Cache::Told`].
pub const LONG: Duration = Duration::from_secs(3600);
/// See [`Cache::Told`].
pub const SHORT: Duration = Duration::from_secs(1);
/// For an interrupted request of a plain file to end by itself, before it is flushed.
pub const GRACE: Duration = Duration::from_secs(1);

/// How a tree is shown.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long names, attributes and pages are kept.
    pub cache: Cache,
    /// Writes wait in the kernel's page cache until it sees fit, or fsync(2).
    pub write_back: bool,
    /// Others than the mounter come, and the kernel checks their permissions: what they make is to be theirs.
    pub all_users: bool,
    /// The kernel checks permissions, for the mounter too.
    pub checked: bool,
    /// All files are shown as of this user and this group. A mount of a user's own name space knows no others: what it
    /// cannot name, its kernel lets nobody write.
    pub owner: Option<(u32, u32)>,
    /// Open files of disks of this process are read and written by the kernel itself, where it can.
    pub passthrough: bool,
    /// For a flushed request to be answered.
    pub patience: Duration,
}

/// Bytes of one READ or WRITE at most: as many pages as the kernel gives a request.
const DATA: usize = 1 << 20;
const PAGES: u16 = 256;
/// Bytes of the largest request.
const FRAME: usize = DATA + 4096;
/// Data of a WRITE up to this size is copied, so that its buffer is free; bytes.
const COPIED: usize = 32 << 10;
/// Buffers that wait for their next request; more are freed.
const SPARE: usize = 4;
/// Requests under way. The next ones are refused (EAGAIN), but those that end something.
const REQUESTS: usize = 4096;
/// Requests of the kernel's own (read-ahead, write-back) under way, and from how many on it holds back.
const BACKGROUND: u16 = 64;
const CONGESTED: u16 = 48;
/// Walks to one file while renames change its path. After the last one the caller gets ESTALE.
const WALK_ATTEMPTS: usize = 64;
/// Requests taken before others of the core have their turn.
const TURN: usize = 64;

/// Answers the kernel's requests until the tree is unmounted.
///
/// # Errors
/// The device failed, or this kernel's FUSE is older than Linux 5.4.
pub async fn serve<E: Env>(env: E, device: OwnedFd, root: File, options: Options) -> io::Result<()> {
    let write = Rc::new(device.try_clone()?);
    let mut device = Device::new(device)?;
    let root = Rc::new(root);
    let told = match options.cache {
        Cache::Told => Told::begin(&root, &write, options.write_back, &env.clock()).await?,
        Cache::Never | Cache::For(_) => None,
    };
    let (told, watch) = told.unzip();
    let attr = root.getattr(WANTED).await.map_err(io::Error::from)?;
    let has_locks = locks::has_locks(&root).await;
    let mut seed = [0; 8];
    env.entropy(&mut seed);
    let gate = Rc::new(Gate {
        clock: env.clock(),
        device: write,
        options,
        nodes: RefCell::new(Nodes::new(root.clone(), &attr)),
        handles: RefCell::default(),
        next: Cell::new(1),
        wishes: RefCell::default(),
        has_locks,
        passes: Cell::new(false),
        has_long_setxattr: Cell::new(false),
        checks_lists: Cell::new(false),
        lock_notifier: OnceCell::new(),
        told,
        scratch: RefCell::default(),
        name: format!("fuse-{:016x}", u64::from_ne_bytes(seed)),
    });
    let mut buffers = Buffers::default();
    let mut running = FuturesUnordered::new();
    let turns = poll_fn(|cx| gate.turn(cx, &mut device, &mut buffers, &mut running));
    let listens = pin!(async {
        match (&gate.told, watch) {
            (Some(told), Some(watch)) => told.listen(root, watch, &gate.nodes, &gate.clock).await,
            _ => pending().await,
        }
    });
    let sweeps = pin!(nodes::sweep(&gate.nodes, &gate.clock));
    match select(turns, select(listens, sweeps)).await {
        Either::Left((ended, _)) => ended,
        Either::Right((Either::Left((never, _)) | Either::Right((never, _)), _)) => match never {},
    }
}

/// What all requests share.
struct Gate {
    clock: Arc<dyn Clock>,
    device: Rc<OwnedFd>,
    options: Options,
    nodes: RefCell<Nodes>,
    handles: RefCell<HashMap<u64, Rc<Handle>, foldhash::fast::FixedState>>,
    /// The next handle's number.
    next: Cell<u64>,
    /// Of requests that wait: to be interrupted, by their numbers.
    wishes: RefCell<HashMap<u64, Rc<Wish>, foldhash::fast::FixedState>>,
    /// The server has record locks.
    has_locks: bool,
    /// For invalidations at locks, from the first one on. It is not that of `told`, which may wait for pages that a
    /// silent server is asked for: locks of other files must not wait with it.
    lock_notifier: OnceCell<Notifier>,
    /// What the server tells of changes, if it does.
    told: Option<Told>,
    /// The kernel takes files of the host.
    passes: Cell<bool>,
    /// SETXATTR has two more words.
    has_long_setxattr: Cell<bool>,
    /// The kernel asks for access control lists and checks permissions by them.
    checks_lists: Cell<bool>,
    /// For what is read at once.
    scratch: RefCell<Vec<u8>>,
    /// Whose locks these are, to the server.
    name: String,
}

/// What a program has open.
enum Handle {
    File(Open),
    Dir(Dir),
}

struct Open {
    node: Rc<Node>,
    file: File,
    /// The same without `APPEND`, or with it: for writes that ask for the other. Opened when there is one.
    other: RefCell<Option<Rc<File>>>,
    /// The same for writing, for an exclusive lock of flock(2) on what is open for reading.
    locker: RefCell<Option<Rc<File>>>,
    /// Reads deliver events: one Tread each, and they wait.
    is_event: bool,
    /// Where the kernel keeps no position.
    stream: Option<StreamPosition>,
}

/// The positions of an open file for which the kernel sends offset 0 with every request (`FOPEN_STREAM`). The kernel's
/// own position would have a read that waits hold up a write to the same descriptor.
///
/// Servers count a text by offset: a read goes on behind the last one, and ends. A write begins a new question: the
/// next read has the answer from its beginning, as if the program had seeked, which it cannot do here.
#[derive(Default)]
struct StreamPosition {
    read: Cell<u64>,
    write: Cell<u64>,
}

impl StreamPosition {
    /// A read at `offset` has brought so many bytes. A write meanwhile has set the position anew.
    fn has_read(&self, offset: u64, bytes: usize) {
        if self.read.get() == offset {
            self.read.set(offset.saturating_add(bytes as u64));
        }
    }

    /// A write at `offset` has taken so many bytes.
    fn has_written(&self, offset: u64, bytes: usize) {
        self.write.set(offset.saturating_add(bytes as u64));
        self.read.set(0);
    }
}

/// What is answered, and what that has told the kernel.
#[derive(Default)]
struct Reply {
    bytes: Vec<u8>,
    /// Files.
    told: Vec<u64>,
    /// A handle.
    opened: Option<u64>,
}

/// A number for the kernel.
type Outcome = Result<Reply, Errno>;

/// Memory for requests.
#[derive(Clone, Default)]
struct Buffers {
    spare: Rc<RefCell<Vec<BytesMut>>>,
}

impl Buffers {
    fn take(&self) -> BytesMut {
        self.spare.borrow_mut().pop().unwrap_or_else(|| BytesMut::zeroed(FRAME))
    }

    fn give(&self, buffer: BytesMut) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE && buffer.len() == FRAME {
            spare.push(buffer);
        }
    }
}

/// The data of a WRITE, whose buffer is used again when it has been written.
struct Written {
    data: Bytes,
    whole: Option<(Bytes, Buffers)>,
}

impl Drop for Written {
    fn drop(&mut self) {
        self.data = Bytes::new();
        if let Some((whole, buffers)) = self.whole.take()
            && let Ok(buffer) = whole.try_into_mut()
        {
            buffers.give(buffer);
        }
    }
}

impl Gate {
    /// Goes on with what is under way, and takes what has come.
    fn turn(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        device: &mut Device,
        buffers: &mut Buffers,
        running: &mut FuturesUnordered<Running>,
    ) -> Poll<io::Result<()>> {
        for _ in 0..TURN {
            while let Poll::Ready(Some(())) = running.poll_next_unpin(cx) {}
            let mut buffer = buffers.take();
            let read = device.poll_read(cx, &mut buffer);
            let len = match read {
                Poll::Ready(Ok(len)) => len,
                other => {
                    buffers.give(buffer);
                    match other {
                        Poll::Ready(Err(error)) => match rustix::io::Errno::from_io_error(&error) {
                            // It was taken back before we have seen it.
                            Some(rustix::io::Errno::NOENT) => continue,
                            Some(rustix::io::Errno::NODEV) => return Poll::Ready(Ok(())),
                            _ => return Poll::Ready(Err(error)),
                        },
                        _ => return Poll::Pending,
                    }
                }
            };
            let Some((head, fields)) = Head::of(&buffer[..len]) else {
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

    /// Agrees with the kernel on what is spoken.
    fn init(&self, head: Head, mut fields: Fields<'_>) -> io::Result<()> {
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
            // It asks again, in ours.
            self.send(head.unique, 0, &Out::default().u32(abi::MAJOR).u32(abi::MINOR).0);
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
        // Who is told of changes needs not guess from times, and so not forget what he writes himself.
        wanted |=
            if told.is_some_and(Told::is_on) { init::EXPLICIT_INVAL_DATA } else { init::AUTO_INVAL_DATA };
        // Whoever checks modes must check access control lists too: the group's bits of a mode are the list's mask.
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
        let out = Out::default()
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

    /// How long a name is good that was asked for then.
    fn good_name(&self, asked: RequestEpoch, dir: u64, name: &[u8]) -> Duration {
        let nodes = self.nodes.borrow();
        match nodes.has_name_changed(asked, dir, name) {
            true => Duration::ZERO,
            false => self.good(|told| told.name(&nodes, dir)),
        }
    }

    /// The same of attributes.
    fn good_attr(&self, asked: RequestEpoch, node: u64) -> Duration {
        let nodes = self.nodes.borrow();
        match nodes.has_file_changed(asked, node) {
            true => Duration::ZERO,
            false => self.good(|told| told.file(&nodes, node)),
        }
    }

    fn good(&self, told: impl FnOnce(&Told) -> Duration) -> Duration {
        match (self.options.cache, &self.told) {
            (Cache::Never, _) => Duration::ZERO,
            (Cache::For(time), _) => time,
            (Cache::Told, None) => SHORT,
            (Cache::Told, Some(how)) => told(how),
        }
    }

    /// See [`Told::mark_unsettled`].
    fn mark_unsettled(&self, dir: u64, name: &[u8], files: impl IntoIterator<Item = Rc<Node>>) {
        if let Some(told) = &self.told {
            told.mark_unsettled((dir, name.into()), files);
        }
    }

    /// Sends an answer, and undoes what it tells where nobody waits for it any more.
    fn answer(&self, unique: u64, outcome: Outcome) {
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
                // The kernel knows no other numbers, and its own are above.
                let known = if (1..512).contains(&errno.0) { errno } else { Errno::EIO };
                self.send(unique, -(known.0 as i32), &[]);
            }
        }
    }

    /// Whether somebody has taken the answer.
    fn send(&self, unique: u64, error: i32, bytes: &[u8]) -> bool {
        let head = Out::default().u32((abi::OUT + bytes.len()) as u32).u32(error as u32).u64(unique).0;
        let sent = rustix::io::writev(&self.device, &[IoSlice::new(&head), IoSlice::new(bytes)]);
        match sent {
            Ok(_) => true,
            Err(error) => {
                // ENOENT: the request was taken back. ENODEV: it is unmounted.
                if !matches!(error, rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) {
                    tracing::error!("the kernel refuses an answer: {error}");
                }
                false
            }
        }
    }

    fn handle(&self, number: u64) -> Result<Rc<Handle>, Errno> {
        self.handles.borrow().get(&number).cloned().ok_or(Errno::EBADF)
    }

    fn node(&self, id: u64) -> Result<Rc<Node>, Errno> {
        self.nodes.borrow().get(id).ok_or(Errno::ESTALE)
    }

    /// A fid for a file that the kernel knows.
    async fn file(&self, id: u64) -> Result<Rc<File>, Errno> {
        self.file_of(&*self.node(id)?).await
    }

    /// The same: it is walked to again where it has let go of it.
    async fn file_of(&self, node: &Node) -> Result<Rc<File>, Errno> {
        for _ in 0..WALK_ATTEMPTS {
            if let Some(file) = self.nodes.borrow().fid(node) {
                return Ok(file);
            }
            let asked = self.asks();
            // Names that lead round, or are no more.
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
