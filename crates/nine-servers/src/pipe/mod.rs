//! Pipes as files: two streams joined at the device end (`docs/streams.md`, `docs/namespace.md`).
//!
//! In: requests, the modules that may be pushed, a clock. Out: answers, at once or when the other end has acted; a
//! [`Driver`] for modules that need timers.
//!
//! ```text
//! clone        opening it creates a pipe; the open file is then N/ctl
//! N/data       one end: each write is one message, a read ends at the end of a message
//! N/data1      the other end
//! N/ctl        reads as the number N; accepts control messages of a stream, for the end data
//! N/ctl1       the same for the end data1
//! N/status     for each end: its state, buffered data and waiting requests, its modules from the top
//! ```
//! A pipe exists as long as one of its files other than `status` is open. The last close of an end's `data` hangs up;
//! an open `ctl` does not prevent that. Numbers are not reused, so no client can open another pipe by an old number.
//! Every client with write access may use every pipe. Read-only clients can open `status` alone, since a read of data
//! removes messages.
//!
//! Always holds: the thread that removes a request from the queue of its end, under the pipe's lock, answers it,
//! whether with data or because of a flush. So no data goes to a flushed request. No operation on a stream blocks:
//! after each event of a pipe, all requests that can proceed are answered. Answers are given while nothing is locked.
//!
//! Lock order: a pipe, then one of the tables; never two pipes.

mod due;
mod pair;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use nine_io::server::{Answer, FileServer, Node, Req, ReqId, Who, check_cost};
use nine_io::synth::{self, Ask, Dir, File, Handle, Opening, Tree};
use nine_net::Clock;
use nine_net::lock::{Mutex, lock};
use nine_proto::{Errno, Error, Result};
use nine_stream::{Make, Modules, Pool};

pub use due::Driver;
use due::PipeDeadlines;
use pair::{PipePair, PipeSide};

/// The maximum length of a control message, in bytes.
const TEXT_MAX: usize = 1024;
/// Bytes that the modules of all pipes of a server may hold. At the limit a push fails with ENOMEM.
const MODULES_MAX: usize = 256 << 20;

/// The file server of pipes.
///
/// Each direction of a pipe buffers at most 256 KiB and 256 messages, or one larger message. Writes wait for room,
/// reads for data. The number of waiting requests is bounded by the limits of the connections.
///
/// Concurrency: requests of one pipe are serialized, those of different pipes are not.
pub struct Pipes {
    tree: Tree,
    shared: Arc<PipeShared>,
}

/// State shared by all pipes of a server.
struct PipeShared {
    make: Make,
    clock: Arc<dyn Clock>,
    /// The maximum number of pipes.
    most: usize,
    /// Bytes reserved for the modules of all pipes.
    modules: AtomicUsize,
    table: Mutex<PipeTable>,
    due: PipeDeadlines,
}

#[derive(Default)]
struct PipeTable {
    /// The number of the next pipe.
    next: u64,
    pipes: BTreeMap<u64, (Weak<PipePair>, synth::Node)>,
}

impl Pipes {
    /// Creates a server with at most `most` pipes, on whose ends `modules` can be pushed. The driver must be spawned.
    /// Without it, a module with a timer (`throttle`) holds its data until another event of the pipe. It ends when
    /// the server and all pipes are dropped.
    pub fn new(modules: Modules, clock: Arc<dyn Clock>, most: usize) -> (Self, Driver) {
        let time = clock.clone();
        let make = Make { modules, clock: Arc::new(move || time.now()), ..Make::new(Pool::new(0)) };
        let shared = Arc::new(PipeShared {
            make,
            clock: clock.clone(),
            most,
            modules: AtomicUsize::new(0),
            table: Mutex::default(),
            due: PipeDeadlines::default(),
        });
        let (clones, lists) = (shared.clone(), shared.clone());
        let root = Dir::new()
            .file(
                "clone",
                File::opened_later(move |opening| clones.clone_pipe(opening), |_| false).consuming(),
            )
            .live(move |_| {
                let table = lock(&lists.table);
                table.pipes.iter().map(|(number, (_, dir))| (number.to_string(), dir.clone())).collect()
            });
        let driver = Driver::new(&shared);
        (Self { tree: Tree::new(root, clock.wall()), shared }, driver)
    }

    /// Sets a function that updates the client's identity from the aname, as for [`Tree::set_told`].
    pub fn told_by(mut self, told: impl Fn(&mut Who, &[u8]) + Send + Sync + 'static) -> Self {
        self.tree.set_told(told);
        self
    }

    /// Returns the number of pipes.
    pub fn count(&self) -> usize {
        lock(&self.shared.table).pipes.len()
    }

    /// Returns the number of waiting reads and writes.
    pub fn waiting(&self) -> usize {
        let pairs: Vec<_> = lock(&self.shared.table).pipes.values().map(|(pair, _)| pair.clone()).collect();
        pairs.iter().filter_map(Weak::upgrade).map(|pair| pair.waiting()).sum()
    }
}

impl FileServer for Pipes {
    fn serve(&self, req: Req) -> Answer {
        self.tree.serve(req)
    }

    fn cancel(&self, id: ReqId, node: Option<&Node>) {
        self.tree.cancel(id, node);
    }
}

impl PipeShared {
    /// Creates a pipe and opens its ctl.
    fn clone_pipe(self: &Arc<Self>, opening: Opening) {
        let mut table = lock(&self.table);
        if table.pipes.len() >= self.most {
            let text = format!("there are {} pipes, and no more may be", self.most);
            drop(table);
            return opening.fail(Error::new(Errno::ENFILE, text));
        }
        let number = table.next;
        table.next += 1;
        let pair = PipePair::new(self, number);
        table.pipes.insert(number, (Arc::downgrade(&pair), directory(&pair).into()));
        drop(table);
        let ctl = Arc::new(PipeCtlFile::new(pair, PipeSide::Data));
        // The open cannot have been flushed: it is being served now.
        let _ = opening.becomes(&[&number.to_string(), "ctl"], ctl);
    }

    fn pair(&self, number: u64) -> Option<Arc<PipePair>> {
        lock(&self.table).pipes.get(&number)?.0.upgrade()
    }

    /// Removes a dropped pipe from the tables.
    fn forget(&self, number: u64, due: Option<Duration>) {
        self.due.change(number, due, None);
        let gone = lock(&self.table).pipes.remove(&number);
        drop(gone);
    }
}

/// Returns the files of a pipe. They hold no reference to it.
fn directory(pair: &Arc<PipePair>) -> Dir {
    let data = |which| {
        let pair = Arc::downgrade(pair);
        File::opened(move |_, _| PipeDataFile::open(there(&pair)?, which).map(|data| Box::new(data) as _))
            .consuming()
    };
    let ctl = |which| {
        let pair = Arc::downgrade(pair);
        File::opened(move |_, _| Ok(Box::new(PipeCtlFile::new(there(&pair)?, which)))).consuming()
    };
    let status = Arc::downgrade(pair);
    Dir::new()
        .file("ctl", ctl(PipeSide::Data))
        .file("ctl1", ctl(PipeSide::Data1))
        .file("data", data(PipeSide::Data))
        .file("data1", data(PipeSide::Data1))
        .file("status", File::text(move |_| there(&status).map(|pair| pair.status()).unwrap_or_default()))
}

fn there(pair: &Weak<PipePair>) -> Result<Arc<PipePair>> {
    pair.upgrade().ok_or(Errno::ENOENT.into())
}

/// An open `data` or `data1`.
struct PipeDataFile {
    pair: Arc<PipePair>,
    which: PipeSide,
}

impl PipeDataFile {
    fn open(pair: Arc<PipePair>, which: PipeSide) -> Result<Self> {
        pair.open(which)?;
        Ok(Self { pair, which })
    }
}

impl Handle for PipeDataFile {
    fn read(&self, ask: Ask) {
        if ask.count == 0 {
            return ask.give(Bytes::new());
        }
        self.pair.read(self.which, ask);
    }

    fn write(&self, ask: Ask) {
        self.pair.write(self.which, ask);
    }

    fn cancel(&self, id: ReqId) -> bool {
        self.pair.cancel(id);
        true
    }
}

impl Drop for PipeDataFile {
    fn drop(&mut self) {
        self.pair.close(self.which);
    }
}

/// An open `ctl`, `ctl1` or `clone`.
struct PipeCtlFile {
    pair: Arc<PipePair>,
    which: PipeSide,
    number: Bytes,
}

impl PipeCtlFile {
    fn new(pair: Arc<PipePair>, which: PipeSide) -> Self {
        let number = format!("{}\n", pair.number()).into();
        Self { pair, which, number }
    }
}

impl Handle for PipeCtlFile {
    fn read(&self, ask: Ask) {
        ask.give_from(&self.number);
    }

    fn write(&self, ask: Ask) {
        let allowed = |text| check_cost(text, ask.visitor.who.is_proven()).map(|()| text);
        let done = text(&ask).and_then(allowed).and_then(|text| self.pair.control(self.which, text));
        ask.done(done);
    }
}

/// Returns the one control message of a write.
fn text(ask: &Ask) -> Result<&str> {
    if ask.data.len() > TEXT_MAX {
        return Err(Error::new(Errno::EINVAL, format!("a text has at most {TEXT_MAX} bytes")));
    }
    match *ask.lines()? {
        [line] => Ok(line.trim()),
        _ => Err(Error::new(Errno::EINVAL, "one text at a time: push NAME ARGUMENTS, pop, hangup")),
    }
}
