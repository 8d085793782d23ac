//! A tree's changes as a file (docs/changes.md): [`NAME`], below the root of a tree whose server knows of them.
//!
//! In: what a server says has changed ([`Changes::tell`]), and requests. Out: lines for each reader, who waits for
//! them. A server has one [`Changes`] and gives it out for its roots ([`FileServer::changes`]); the framework does the
//! rest: no server sees a request for the file. A client reads it as a [`Watch`].
//!
//! Always holds: while nobody reads, what a server tells costs a look at a flag; answers are given when nothing is
//! locked.

mod file;
mod line;
mod log;
mod of;
mod watch;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use nine_proto::{Errno, Result};

use crate::limits::ClientPrincipal;
#[cfg(doc)]
use crate::server::FileServer;
use crate::server::{Later, ReqId};
use crate::sync::{Mutex, lock};

pub(crate) use file::{Asked, cancel};
pub use line::{Change, Cursor, Line, Path, below, join, parse_line};
use log::Log;
pub use log::{BLIND_MAX, BYTES_MAX, OVERHEAD, PATHS_MAX, READERS_MAX};
pub use of::{Places, of};
pub use watch::Watch;

/// What the file is called. With `=EPOCH.N` behind it ([`Cursor::name`]) it begins at that place.
pub const NAME: &str = "#changes";

/// What a server knows of its changes. Paths are those of its whole tree.
pub struct Changes {
    /// Somebody reads, or did a while ago.
    on: AtomicBool,
    log: Mutex<Log<Later>>,
    begin: Box<Begin>,
}

/// Called when somebody reads who is the first.
type Begin = dyn Fn(&Arc<Changes>) + Send + Sync;

/// The changes of a tree: of a server's, those at and below a directory of it.
#[derive(Clone)]
pub struct Tap {
    /// The server's.
    pub changes: Arc<Changes>,
    /// The tree's root.
    pub base: Path,
}

impl Changes {
    /// Of a server that makes all changes itself.
    pub fn new() -> Arc<Self> {
        Self::watched(|changes| changes.ready())
    }

    /// Of a server that has to look for them: `begin` is called when somebody begins to read and nobody did, on his
    /// thread. Readers wait for [`Changes::ready`].
    pub fn watched(begin: impl Fn(&Arc<Self>) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self::made(begin))
    }

    /// The same for who is to be found by it.
    pub fn made(begin: impl Fn(&Arc<Self>) + Send + Sync + 'static) -> Self {
        // A word for this life: what is found by chance is as good as another server's secret.
        let epoch = format!("{:016x}", RandomState::new().build_hasher().finish());
        let (on, log) = (AtomicBool::new(false), Mutex::new(Log::new(epoch.into())));
        Self { on, log, begin: Box::new(begin) }
    }

    /// Whether somebody wants to be told.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Something has changed: asked for what it is if somebody wants to be told. Never waits.
    pub fn tell(&self, change: impl FnOnce() -> Change) {
        if self.is_on() {
            self.tell_all([change()]);
        }
    }

    /// The same of several, in their order.
    pub fn tell_all(&self, changes: impl IntoIterator<Item = Change>) {
        self.with(|log| changes.into_iter().for_each(|change| log.push(change)));
    }

    /// Nobody knows what has changed until now.
    pub fn forget(&self) {
        self.tell(|| Change::Lost(0));
    }

    /// What changes from now on is told.
    pub fn ready(&self) {
        self.with(Log::ready);
    }

    /// Ends it if nobody reads. Whether it has ended: then nothing need be told until somebody reads again.
    pub fn end(&self) -> bool {
        self.with(Log::end)
    }

    /// Nothing is told any more, and who reads is told that (ESTALE).
    pub fn over(&self) {
        self.with(Log::over);
    }

    /// How many read.
    pub fn readers(&self) -> usize {
        lock(&self.log).readers()
    }

    /// Changes the log and answers those for whom there is something then.
    fn with<T>(&self, change: impl FnOnce(&mut Log<Later>) -> T) -> T {
        let (result, answers) = {
            let mut log = lock(&self.log);
            let result = change(&mut log);
            self.on.store(log.is_on(), Ordering::Relaxed);
            (result, log.answers())
        };
        for (later, read) in answers {
            later.respond(read.map(file::reply));
        }
        result
    }

    fn open(self: &Arc<Self>, base: Path, from: Option<&Cursor>, principal: &ClientPrincipal) -> Result<u64> {
        let (reader, begins) = self.with(|log| log.open(base, from, principal))?;
        if begins {
            (self.begin)(self);
        }
        Ok(reader)
    }

    fn close(&self, reader: u64) {
        for later in self.with(|log| log.close(reader)) {
            later.respond(Err(Errno::EIO.into()));
        }
    }

    /// What there is for a reader, or, if that is nothing, what shall wait for it.
    fn read(&self, reader: u64, count: u32, later: impl FnOnce() -> Later) -> Option<Result<Bytes>> {
        let mut log = lock(&self.log);
        let read = log.read(reader, count);
        if read.is_none() {
            log.wait(reader, count, later());
        }
        read
    }

    fn cancel(&self, reader: u64, id: ReqId) {
        let later = lock(&self.log).take(reader, |later| later.id() == id);
        if let Some(later) = later {
            later.respond(Err(Errno::EINTR.into()));
        }
    }
}
