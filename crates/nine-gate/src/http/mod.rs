//! A web server whose disk and network are files of a name space (Hickey, section 6.2).
//!
//! In: the root of the tree to serve, and a network's directory; both of 9P clients. Out: a [`Server`]. It announces an
//! address through that network's files, accepts calls by opening `listen`, and reads and writes `data`. It dials
//! nothing and opens no file of the host.
//!
//! ```text
//! listen -> converse -> head -> path -> files (walk, getattr, open) -> answer
//!              |                                   | read
//!              `--------- data <- write -----------'
//! ```
//! Connections are the program's own threads ([`Schedule`] decides which runs next). Open files of servers in this
//! process are called directly (see [`nine_io::Direct`]), and a range of a file goes from the page cache to the socket
//! without a copy.

mod answer;
pub mod body;
pub mod calendar;
mod civil;
mod conn;
mod count;
mod files;
pub mod head;
pub mod list;
pub mod log;
mod order;
mod past;
pub mod path;
pub mod pick;
mod proven;
pub mod range;
pub mod since;
mod squeeze;
mod status;
mod threads;
mod turns;
mod work;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use nine_io::client::{Announced, File, Net, Result};
use nine_net::{Clock, Env};
use nine_proto::Errno;

pub use order::Schedule;
pub use past::Pair;
pub use proven::Trees;
pub use status::Status;

use answer::DateHeader;
use count::HttpCounters;
use files::{FRESH, OpenFiles};
use proven::ProvenTrees;
use threads::ConnectionThreads;
use turns::ClientTurns;
use work::WorkPool;

/// Receives one entry per answer; must not block.
pub type Log = Arc<dyn Fn(&log::Entry<'_>) + Send + Sync>;
/// Writes further lines for `/metrics`, in the same format; must not block.
pub type Figures = Arc<dyn Fn() -> String + Send + Sync>;

/// Returns the archives whose dumps are in the tree too; must not block.
pub type Pairs = Arc<dyn Fn() -> Vec<Pair> + Send + Sync>;

/// Whether the caller is root or the user of this process. Takes the local and the remote address of a connection. Must
/// not block.
pub type IsOwner = Arc<dyn Fn(&str, &str) -> bool + Send + Sync>;

/// Distinguishes local callers by their users.
#[derive(Clone)]
pub struct LocalUsers {
    /// Decides which callers see the served tree.
    pub is_owner: IsOwner,
    /// The tree for all other local callers. `None`: they see nothing.
    pub others: Option<Arc<File>>,
}

/// Options of a [`Server`].
#[derive(Clone)]
pub struct Options {
    /// The order in which connections are served under load.
    pub schedule: Schedule,
    /// Maximum number of connections at once. Further ones wait to be accepted.
    pub connections: usize,
    /// Maximum number of files kept open.
    pub files: usize,
    /// Maximum number of concurrent reads from disks of this machine. Others wait, in the order of the schedule.
    pub reads: usize,
    /// Names of index files, which are sent in place of their directory.
    pub index: Vec<String>,
    /// Whether directories without an index file are listed.
    pub listing: bool,
    /// Paths that no client sees, without the first '/'.
    pub hidden: Vec<String>,
    /// The host names of this server, besides numeric addresses and `localhost`. `None`: any. Without this list any web
    /// page could make a browser read files meant for this machine only (DNS rebinding).
    pub hosts: Option<Vec<String>>,
    /// The tree for other users of this machine. `None`: the common one.
    pub local_users: Option<LocalUsers>,
    /// A module that is pushed on each connection before its first byte: `tls`.
    pub push: Option<String>,
    /// The trees of clients that authenticated to the pushed module. `None`: they see the common one.
    pub trees: Option<Arc<dyn Trees>>,
    /// Receives an entry about each answer.
    pub log: Option<Log>,
    /// The directory of a mux's own files. Its `metrics` are appended to ours.
    pub mux: Option<Arc<File>>,
    /// Further lines of `/metrics`.
    pub figures: Option<Figures>,
    /// The locations of archives and their dumps.
    pub archives: Option<Pairs>,
    /// Timeout of a head, from its first byte on, and of a body.
    pub patience: Duration,
    /// Timeout of the next request.
    pub idle: Duration,
    /// Timeout of a client that reads nothing, and of an upstream that does not answer.
    pub stall: Duration,
}

/// Paths that a web client must not reach: files that create or consume something when opened, or that control this
/// program.
pub const HIDDEN: &[&str] = &["net", "cons", "srv", "shm", "part", "mux/ctl", "fs/ctl"];

impl Default for Options {
    fn default() -> Self {
        Self {
            schedule: Schedule::Fifo,
            connections: 10_000,
            files: 4096,
            reads: 16,
            index: vec!["index.html".into()],
            listing: true,
            hidden: HIDDEN.iter().map(|&path| path.into()).collect(),
            hosts: None,
            local_users: None,
            push: None,
            trees: None,
            log: None,
            mux: None,
            figures: None,
            archives: None,
            patience: Duration::from_secs(20),
            idle: Duration::from_secs(75),
            stall: Duration::from_secs(60),
        }
    }
}

impl Options {
    /// `all`: the number of files that all trees keep open.
    fn files(&self, root: Arc<File>, all: &Rc<Cell<usize>>) -> OpenFiles {
        let hidden = self.hidden.clone();
        OpenFiles::new(root, self.files, all.clone(), move |path| is_hidden(&hidden, path))
    }
}

/// A server whose address is announced. See the module.
pub struct Server {
    site: Rc<SiteState>,
    announced: Announced,
    local: String,
}

/// The state shared by all connections.
struct SiteState {
    options: Options,
    /// The tree for all clients. `None`: a client must authenticate.
    files: Option<Rc<OpenFiles>>,
    /// The tree for other users of this machine, if they see a different one.
    others: Option<Rc<OpenFiles>>,
    proven: ProvenTrees,
    /// Files kept open, of all trees.
    kept: Rc<Cell<usize>>,
    threads: ConnectionThreads,
    clock: Arc<dyn Clock>,
    date: DateHeader,
    counts: HttpCounters,
    /// When the shutdown began.
    stopping: Cell<Option<Duration>>,
    /// The calls counted at the last check.
    called: Cell<u64>,
    /// No further connections are accepted.
    closed: Cell<bool>,
    /// Answers in compression.
    squeezing: Cell<usize>,
    /// Permits for pages that are generated and sent.
    pages: ClientTurns,
    /// Permits for directories that are read.
    listing: ClientTurns,
    /// Permits for jobs of `work`.
    working: ClientTurns,
    /// Threads for long work.
    work: WorkPool,
    /// The locations of archives, and when they were requested.
    archives: RefCell<Option<(Duration, Rc<[Pair]>)>>,
}

impl Server {
    /// Announces `at` (`tcp!*!8080`) on the network `net` to serve the tree below `root`. Without a root, only
    /// authenticated clients see anything ([`Options::trees`]).
    pub async fn open(
        net: &Net,
        at: &str,
        root: Option<File>,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let announced = net.announce(at).await?;
        let local = announced.local().await?;
        let (kept, workers) = (Rc::default(), WorkPool::default_size());
        let others = options.local_users.as_ref().and_then(|users| users.others.clone());
        let site = SiteState {
            files: root.map(|root| Rc::new(options.files(root.into(), &kept))),
            others: others.map(|root| Rc::new(options.files(root, &kept))),
            kept,
            proven: ProvenTrees::default(),
            squeezing: Cell::new(0),
            pages: ClientTurns::new(PAGES, PAGES / 2),
            listing: ClientTurns::new(LISTING, LISTING),
            working: ClientTurns::new(workers, workers),
            work: WorkPool::new(workers),
            archives: RefCell::default(),
            threads: ConnectionThreads::new(options.schedule, options.reads.max(1)),
            options,
            clock,
            date: DateHeader::new(),
            counts: HttpCounters::default(),
            stopping: Cell::new(None),
            called: Cell::new(0),
            closed: Cell::new(false),
        };
        Ok(Self { site: Rc::new(site), announced, local })
    }

    /// The address, in the network's notation.
    pub fn local(&self) -> &str {
        &self.local
    }

    /// Serves until `stop` is ready. Then it answers all requests that arrived before, also on connections that are not
    /// yet accepted. It returns when all answers are sent, or after `within`.
    pub async fn run(self, env: &impl Env, stop: impl Future<Output = ()>, within: Duration) {
        let Self { site, announced, .. } = self;
        let threads = site.threads.clone();
        let announced = Rc::new(announced);
        let accepts = (0..ACCEPTING).map(|_| accept(site.clone(), announced.clone()));
        let mut accepting = Some(Box::pin(join_all(accepts)));
        drop(announced);
        let mut running = pin!(threads.run(|| site.clock.now()));
        let mut stopping = pin!(stopping(env, &site, stop, within));
        poll_fn(|cx| {
            let ended = stopping.as_mut().poll(cx);
            // Dropping this closes the listener.
            accepting.take_if(|accepting| site.is_closed() || accepting.as_mut().poll(cx).is_ready());
            let _ = running.as_mut().poll(cx);
            ended
        })
        .await;
        threads.end();
    }
}

/// Ends late connections and closes unused files, once a second; more often during shutdown.
async fn stopping(env: &impl Env, site: &SiteState, stop: impl Future<Output = ()>, within: Duration) {
    let mut stop = pin!(stop);
    let mut end = None;
    loop {
        let until = env.now() + if end.is_none() { SWEEP } else { SWEEP / 10 };
        let mut sleep = env.sleep_until(until);
        poll_fn(|cx| {
            if end.is_none() && stop.as_mut().poll(cx).is_ready() {
                end = Some(env.now() + within);
                site.stopping.set(Some(env.now()));
                site.threads.hurry(env.now() + STOP_GRACE);
                return Poll::Ready(());
            }
            sleep.as_mut().poll(cx)
        })
        .await;
        if end.is_some() {
            // Even on a busy machine, input that has arrived is read before a connection is found late.
            rounds(POLL_ROUNDS_MAX).await;
            site.close_when_quiet(env.now(), within);
        }
        site.threads.sweep(env.now());
        site.files.iter().chain(&site.others).for_each(|files| files.sweep(env.now()));
        site.proven.sweep(env.now());
        if let Some(end) = end
            && (site.is_closed() && site.threads.live() == 0 || env.now() >= end)
        {
            return;
        }
    }
}

/// Executor rounds after which every socket has been polled.
const POLL_ROUNDS_MAX: usize = 1000;
/// Maximum number of pages generated and sent at once, half of them for one client. Each may need some megabytes.
const PAGES: usize = 256;
/// Maximum number of directories read at once, a slice of each.
const LISTING: usize = 2;
/// Concurrent reads of `listen`: on a busy core each accept takes time.
const ACCEPTING: usize = 16;
/// The interval between checks for late connections.
const SWEEP: Duration = Duration::from_secs(1);
/// How long after the stop an idle connection still waits for a request, and the listener for connections. Those that
/// reached this machine before the stop arrive within this time.
const STOP_GRACE: Duration = Duration::from_millis(100);
/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Lets everything else on this core run this many times.
async fn rounds(mut left: usize) {
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn accept(site: Rc<SiteState>, announced: Rc<Announced>) {
    let mut lacks = false;
    loop {
        site.threads.fewer(site.options.connections).await;
        match announced.listen().await {
            Ok(incoming) => {
                lacks = false;
                site.counts.called();
                let site = site.clone();
                let threads = site.threads.clone();
                threads.spawn(|number, card| conn::converse(site, number, card, incoming));
            }
            // The resource is free again when a connection has closed.
            Err(error)
                if matches!(error.errno(), Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EAGAIN) =>
            {
                if !std::mem::replace(&mut lacks, true) {
                    tracing::warn!("http: nobody can be let in for now: {error}");
                }
                site.clock.sleep_until(site.clock.now() + ACCEPT_PAUSE).await;
            }
            Err(error) => {
                tracing::error!("http: nobody is let in any more: {error}");
                return;
            }
        }
    }
}

/// Whether a path is hidden from all clients.
fn is_hidden(hidden: &[String], names: &[u8]) -> bool {
    // An internal name of the mux, which no listing shows.
    names.starts_with(b"#hops=")
        || hidden.iter().any(|hidden| {
            names.strip_prefix(hidden.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        })
}

impl SiteState {
    /// The time at which the present poll of the threads began.
    fn now(&self) -> Duration {
        self.threads.now()
    }

    fn is_stopping(&self) -> bool {
        self.stopping.get().is_some()
    }

    /// Whether the listener is closed.
    fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// After the stop, closes the listener when no more calls arrive: those that wait in the kernel were made before
    /// it. Because they could arrive one by one without end, they get at most half of `within`.
    fn close_when_quiet(&self, now: Duration, within: Duration) {
        let Some(stop) = self.stopping.get() else { return };
        let calls = self.counts.calls();
        if self.called.replace(calls) == calls && now >= stop + STOP_GRACE || now >= stop + within / 2 {
            self.closed.set(true);
        }
    }

    fn is_hidden(&self, names: &[u8]) -> bool {
        is_hidden(&self.options.hidden, names)
    }

    /// The locations of the archives and dumps that are not hidden; cached for a second.
    fn archives(&self) -> Rc<[Pair]> {
        let Some(archives) = &self.options.archives else { return Rc::default() };
        let now = self.now();
        let mut known = self.archives.borrow_mut();
        if let Some((asked, pairs)) = &*known
            && now < *asked + FRESH
        {
            return pairs.clone();
        }
        let may = |pair: &Pair| !self.is_hidden(&pair.archive) && !self.is_hidden(&pair.dumps);
        let pairs: Rc<[Pair]> = archives().into_iter().filter(may).collect();
        *known = Some((now, pairs.clone()));
        pairs
    }

    /// Whether a request names one of our hosts.
    fn is_us(&self, host: &[u8]) -> bool {
        let Some(hosts) = &self.options.hosts else { return true };
        let host = host.trim_ascii();
        let name = match host {
            [b'[', ..] => return true,
            _ => host.split(|byte| *byte == b':').next().unwrap_or_default(),
        };
        // Numeric addresses cannot be rebound, and HTTP/1.0 has no host.
        let is_digits = name.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
        let known = hosts.iter().map(String::as_str).chain(["localhost"]);
        is_digits || known.into_iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
    }

    fn metrics(&self) -> String {
        let figures = self.options.figures.as_ref().map_or(String::new(), |figures| figures());
        self.counts.text(self.threads.live(), self.kept.get()) + &figures
    }

    /// A random text for boundaries and nonces.
    fn word(&self) -> String {
        let mut bytes = [0; 16];
        self.clock.entropy(&mut bytes);
        format!("{:032x}", u128::from_ne_bytes(bytes))
    }
}
