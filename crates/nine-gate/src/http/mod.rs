//! A web server all of whose disk and network are files of a name space (Hickey, section 6.2).
//!
//! In: the root of the tree that is shown, and a network's directory; both of 9P clients. Out: a [`Server`], which
//! announces an address by that network's files, takes calls by opening `listen`, and reads and writes `data`. It dials
//! nothing and opens no file of the host.
//!
//! ```text
//! listen -> converse -> head -> path -> files (walk, getattr, open) -> answer
//!              |                                   | read
//!              `--------- data <- write -----------'
//! ```
//! Conversations are threads of the program's own ([`Schedule`] says whose turn it is). Where the servers are in this
//! process their open files are called (see [`nine_io::Direct`]), and a range of a file goes from the page cache to the
//! socket without a copy.

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

use answer::Date;
use count::Counts;
use files::{FRESH, Files};
use proven::Proven;
use threads::Threads;
use turns::ClientTurns;
use work::WorkPool;

/// Takes a line about each answer; must not wait.
pub type Log = Arc<dyn Fn(&log::Entry<'_>) + Send + Sync>;
/// Makes lines for `/metrics`, in the same format; must not wait.
pub type Figures = Arc<dyn Fn() -> String + Send + Sync>;

/// Says which archives the tree has whose dumps it has, too; must not wait.
pub type Pairs = Arc<dyn Fn() -> Vec<Pair> + Send + Sync>;

/// Whether a caller is the user who serves, or root, by the addresses of a conversation: this end, the other end. Must
/// not wait.
pub type IsOwner = Arc<dyn Fn(&str, &str) -> bool + Send + Sync>;

/// Callers within this machine are of different users.
#[derive(Clone)]
pub struct LocalUsers {
    /// Which callers see the tree that is served.
    pub is_owner: IsOwner,
    /// The tree that all other callers see; `None`: they see nothing.
    pub others: Option<Arc<File>>,
}

/// How files are served.
#[derive(Clone)]
pub struct Options {
    /// Who goes first where not all can.
    pub schedule: Schedule,
    /// Conversations at once; more wait to be accepted.
    pub connections: usize,
    /// Files that are kept open.
    pub files: usize,
    /// Reads under way at once that wait for a disk of this machine; the others have their turns by the schedule.
    pub reads: usize,
    /// Names of the files that stand for their directory.
    pub index: Vec<String>,
    /// Directories without such a file are listed.
    pub listing: bool,
    /// Paths that are not there for anybody, without the first '/'.
    pub hidden: Vec<String>,
    /// The names this server answers to, beside addresses in digits and `localhost`; `None`: any. Without it a page of
    /// anybody's may make a browser read what only this machine is to see (DNS rebinding).
    pub hosts: Option<Vec<String>>,
    /// What other users of this machine see; `None`: the same as all.
    pub local_users: Option<LocalUsers>,
    /// What is pushed on every conversation before anything is said: `tls`.
    pub push: Option<String>,
    /// What those see who have proven who they are to what is pushed. `None`: what all see.
    pub trees: Option<Arc<dyn Trees>>,
    /// Who is told of each answer.
    pub log: Option<Log>,
    /// The directory of a mux's own files, whose `metrics` are a part of ours.
    pub mux: Option<Arc<File>>,
    /// What else `/metrics` says.
    pub figures: Option<Figures>,
    /// Where archives and their dumps are.
    pub archives: Option<Pairs>,
    /// For a head, from its first byte on, and for a body.
    pub patience: Duration,
    /// For the next request.
    pub idle: Duration,
    /// For a client that takes nothing, and an upstream that does not answer.
    pub stall: Duration,
}

/// What a name space has that is for nobody who comes this way: what makes or takes something when it is opened, or
/// changes how this program runs.
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
    /// Of which all keep `all` now.
    fn files(&self, root: Arc<File>, all: &Rc<Cell<usize>>) -> Files {
        let hidden = self.hidden.clone();
        Files::new(root, self.files, all.clone(), move |path| is_hidden(&hidden, path))
    }
}

/// A server that has announced its address. See the module.
pub struct Server {
    site: Rc<Site>,
    announced: Announced,
    local: String,
}

/// What the conversations share.
struct Site {
    options: Options,
    /// For everybody; `None`: one must have proven who one is.
    files: Option<Rc<Files>>,
    /// For other users of this machine, if they see another tree.
    others: Option<Rc<Files>>,
    proven: Proven,
    /// Files that are kept open, for whomever.
    kept: Rc<Cell<usize>>,
    threads: Threads,
    clock: Arc<dyn Clock>,
    date: Date,
    counts: Counts,
    /// Since when it stops.
    stopping: Cell<Option<Duration>>,
    /// How many calls had come when that was looked at last.
    called: Cell<u64>,
    /// Nobody is accepted any more.
    closed: Cell<bool>,
    /// Answers that are being compressed.
    squeezing: Cell<usize>,
    /// Pages that are being made and sent.
    pages: ClientTurns,
    /// Directories that are being read.
    listing: ClientTurns,
    /// Permits for jobs of `work`.
    working: ClientTurns,
    /// Threads for long work.
    work: WorkPool,
    /// Where archives are, and when that was asked.
    archives: RefCell<Option<(Duration, Rc<[Pair]>)>>,
}

impl Server {
    /// Announces `at` (`tcp!*!8080`) on the network `net`, to serve the tree below `root`; without one, nothing to who
    /// has not proven who he is ([`Options::trees`]).
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
        let site = Site {
            files: root.map(|root| Rc::new(options.files(root.into(), &kept))),
            others: others.map(|root| Rc::new(options.files(root, &kept))),
            kept,
            proven: Proven::default(),
            squeezing: Cell::new(0),
            pages: ClientTurns::new(PAGES, PAGES / 2),
            listing: ClientTurns::new(LISTING, LISTING),
            working: ClientTurns::new(workers, workers),
            work: WorkPool::new(workers),
            archives: RefCell::default(),
            threads: Threads::new(options.schedule, options.reads.max(1)),
            options,
            clock,
            date: Date::new(),
            counts: Counts::default(),
            stopping: Cell::new(None),
            called: Cell::new(0),
            closed: Cell::new(false),
        };
        Ok(Self { site: Rc::new(site), announced, local })
    }

    /// The address, as the network writes it.
    pub fn local(&self) -> &str {
        &self.local
    }

    /// Serves until `stop` is there. Then it answers every request that has come by that time, also on connections
    /// which wait to be accepted, and ends when all answers have left, or after `within`.
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
            // With it the address is given up.
            accepting.take_if(|accepting| site.is_closed() || accepting.as_mut().poll(cx).is_ready());
            let _ = running.as_mut().poll(cx);
            ended
        })
        .await;
        threads.end();
    }
}

/// Once a second ends those that are late, and closes files; after the stop more often.
async fn stopping(env: &impl Env, site: &Site, stop: impl Future<Output = ()>, within: Duration) {
    let mut stop = pin!(stop);
    let mut end = None;
    loop {
        let until = env.now() + if end.is_none() { SWEEP } else { SWEEP / 10 };
        let mut sleep = env.sleep_until(until);
        poll_fn(|cx| {
            if end.is_none() && stop.as_mut().poll(cx).is_ready() {
                end = Some(env.now() + within);
                site.stopping.set(Some(env.now()));
                site.threads.hurry(env.now() + GRACE);
                return Poll::Ready(());
            }
            sleep.as_mut().poll(cx)
        })
        .await;
        if end.is_some() {
            // Even on a busy machine, input that has arrived is read before a connection is found late.
            rounds(ROUNDS).await;
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

/// Turns of the executor after which it has looked at every socket.
const ROUNDS: usize = 1000;
/// Pages that are made and sent at once, of which one client may have half: each may need some megabytes.
const PAGES: usize = 256;
/// Directories that are read at once, a slice of each.
const LISTING: usize = 2;
/// Calls that are waited for at once: where the core is busy, to take one takes its time.
const ACCEPTING: usize = 16;
/// How often it is looked who is late.
const SWEEP: Duration = Duration::from_secs(1);
/// How long after the stop an idle connection still waits for a request, and the listener for connections: those that
/// reached this machine before the stop arrive within it.
const GRACE: Duration = Duration::from_millis(100);
/// After an accept that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// Lets everything else on this core run so many times.
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

async fn accept(site: Rc<Site>, announced: Rc<Announced>) {
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
            // What lacks is there again when somebody has gone.
            Err(error)
                if matches!(error.errno(), Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EAGAIN) =>
            {
                if !std::mem::replace(&mut lacks, true) {
                    tracing::warn!("http: nobody can be let in for now: {error}");
                }
                site.clock.sleep_until(site.clock.now() + PAUSE).await;
            }
            Err(error) => {
                tracing::error!("http: nobody is let in any more: {error}");
                return;
            }
        }
    }
}

/// Whether a path is not there for anybody.
fn is_hidden(hidden: &[String], names: &[u8]) -> bool {
    // A name of the mux' own, which no listing shows.
    names.starts_with(b"#hops=")
        || hidden.iter().any(|hidden| {
            names.strip_prefix(hidden.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        })
}

impl Site {
    /// As of this turn of the threads.
    fn now(&self) -> Duration {
        self.threads.now()
    }

    fn is_stopping(&self) -> bool {
        self.stopping.get().is_some()
    }

    /// Whether the address has been given up.
    fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// After the stop, the address is given up when no more calls come: those that wait in the kernel were made before
    /// it. One by one they might never end, so half of the time of the stop is for them.
    fn close_when_quiet(&self, now: Duration, within: Duration) {
        let Some(stop) = self.stopping.get() else { return };
        let calls = self.counts.calls();
        if self.called.replace(calls) == calls && now >= stop + GRACE || now >= stop + within / 2 {
            self.closed.set(true);
        }
    }

    fn is_hidden(&self, names: &[u8]) -> bool {
        is_hidden(&self.options.hidden, names)
    }

    /// Where archives and their dumps are that may be seen; believed for a second.
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

    /// Whether a request is for us, by the host it names.
    fn is_us(&self, host: &[u8]) -> bool {
        let Some(hosts) = &self.options.hosts else { return true };
        let host = host.trim_ascii();
        let name = match host {
            [b'[', ..] => return true,
            _ => host.split(|byte| *byte == b':').next().unwrap_or_default(),
        };
        // Nobody rebinds digits, and HTTP/1.0 knows no host.
        let is_digits = name.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
        let known = hosts.iter().map(String::as_str).chain(["localhost"]);
        is_digits || known.into_iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
    }

    fn metrics(&self) -> String {
        let figures = self.options.figures.as_ref().map_or(String::new(), |figures| figures());
        self.counts.text(self.threads.live(), self.kept.get()) + &figures
    }

    /// A word that nobody else has said.
    fn word(&self) -> String {
        let mut bytes = [0; 16];
        self.clock.entropy(&mut bytes);
        format!("{:032x}", u128::from_ne_bytes(bytes))
    }
}
