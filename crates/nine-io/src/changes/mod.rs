//! The changes of a tree as a file (docs/changes.md): [`NAME`], below the root of a tree, if its server publishes
//! changes.
//!
//! In: changes reported by a server ([`Changes::tell`]), and requests. Out: lines for each reader that waits for them.
//! A server has one [`Changes`] and returns it for its roots ([`FileServer::changes`]). The framework does the rest: no
//! server gets a request for the file. A client reads it as a [`Watch`].
//!
//! Always holds: without readers, a reported change costs one check of a flag. Answers are sent without a lock.

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

pub(crate) use file::{ChangeFileRequest, cancel};
pub use line::{Change, Cursor, Line, Path, below, join, parse_line};
use log::ReaderLog;
pub use log::{BLIND_MAX, BYTES_MAX, OVERHEAD, PATHS_MAX, READERS_MAX};
pub use of::{Places, of};
pub use watch::Watch;

/// The name of the file. With `=EPOCH.N` appended ([`Cursor::name`]) it starts at that change.
pub const NAME: &str = "#changes";

/// The change publisher of a server. Paths are those of its whole tree.
pub struct Changes {
    /// The log records changes: there are readers, or there were some a while ago.
    on: AtomicBool,
    log: Mutex<ReaderLog<Later>>,
    begin: Box<RecordStartHook>,
}

/// Called when a reader opens the file while the log does not record.
type RecordStartHook = dyn Fn(&Arc<Changes>) + Send + Sync;

/// A subscription to the changes of a tree: those at and below a directory of the server's tree.
#[derive(Clone)]
pub struct Tap {
    /// The server's publisher.
    pub changes: Arc<Changes>,
    /// The root of the subscribed tree.
    pub base: Path,
}

impl Changes {
    /// For a server that makes all changes itself.
    pub fn new() -> Arc<Self> {
        Self::watched(|changes| changes.ready())
    }

    /// For a server that has to watch for changes. `begin` is called on the reader's thread when a reader opens the
    /// file and the log does not record. Readers wait for [`Changes::ready`].
    pub fn watched(begin: impl Fn(&Arc<Self>) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self::made(begin))
    }

    /// Like [`Changes::watched`], without an `Arc`.
    pub fn made(begin: impl Fn(&Arc<Self>) + Send + Sync + 'static) -> Self {
        // The epoch of this instance: random, so that it differs from any other instance's.
        let epoch = format!("{:016x}", RandomState::new().build_hasher().finish());
        let (on, log) = (AtomicBool::new(false), Mutex::new(ReaderLog::new(epoch.into())));
        Self { on, log, begin: Box::new(begin) }
    }

    /// Whether changes must be reported.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Reports a change. `change` is called only if the log records. Never waits.
    pub fn tell(&self, change: impl FnOnce() -> Change) {
        if self.is_on() {
            self.tell_all([change()]);
        }
    }

    /// Reports several changes, in order.
    pub fn tell_all(&self, changes: impl IntoIterator<Item = Change>) {
        self.with(|log| changes.into_iter().for_each(|change| log.push(change)));
    }

    /// Reports that unknown changes may have happened until now.
    pub fn forget(&self) {
        self.tell(|| Change::Lost(0));
    }

    /// Reports that all changes from now on will be reported.
    pub fn ready(&self) {
        self.with(ReaderLog::ready);
    }

    /// Stops recording if there are no readers. Returns whether it has stopped: then changes need not be reported until
    /// the next reader.
    pub fn end(&self) -> bool {
        self.with(ReaderLog::end)
    }

    /// Ends publishing for good. Readers get ESTALE.
    pub fn over(&self) {
        self.with(ReaderLog::over);
    }

    /// The number of readers.
    pub fn readers(&self) -> usize {
        lock(&self.log).readers()
    }

    /// Modifies the log, and then answers the waiting reads for which it has lines.
    fn with<T>(&self, change: impl FnOnce(&mut ReaderLog<Later>) -> T) -> T {
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

    /// Returns the lines for a reader; if there are none, queues the request that `later` makes.
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
