//! The server framework: connections on one side, a [`FileServer`] on the other.
//!
//! ```text
//! Transport -> rx -> Session -> gate -> FileServer::serve(Req) -> Answer -> Session -> tx -> Transport
//! ```
//! A [`Service`] is what a listener hands out: which server, through which [`Gate`], within which limits. Its
//! [`Core`] is shared by its connections: buffers, the memory budget, who is connected.

pub mod acl;
mod conn;
mod desk;
mod gate;
mod listen;
pub mod locks;
mod memory;
mod req;
mod rx;
mod seen;
mod stream;
mod trees;
mod tx;
mod unattached;
pub mod xattr;

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use nine_net::{Env, Pushed, Transport};
use nine_proto::Dialect;
use nine_proto::session::server::Limits;

pub use conn::{
    CEILING, Connection, FIDS_ALL, FIDS_FLOOR, FLOOR, OPENS_FLOOR, OUTSTANDING, SHORT, TURN_BYTES,
    TURN_MESSAGES,
};
pub use desk::{ANAME as CONVERSATION, check_cost};
pub use gate::{Anonymous, Asks, Gate, NOBODY, Policy, Right, is_ours};
pub use listen::{Door, Entrance, GREETING, HANDSHAKE, Seat, Tls, listen};
pub use req::{Answer, FileServer, Later, Node, Reply, Req, ReqId, Request, Who};
pub use seen::ClientStatus;
pub use stream::{
    Course, Fill, LULL, OFFER_TIME, OFFERS, OFFERS_ALL, Passage, StreamRequest, Streams, TOKEN_TIME, lost,
};

use crate::limits::FairLimit;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, lock};
use memory::Memory;
use seen::Seen;
use unattached::{UnattachedConnection, UnattachedQueue};

/// The dialects we speak, best first.
pub const DIALECTS: &[Dialect] = &[Dialect::L, Dialect::U, Dialect::P2000];

/// The same where there are streams.
const STREAMING: &[Dialect] =
    &[Dialect::LS, Dialect::US, Dialect::P2000S, Dialect::L, Dialect::U, Dialect::P2000];

/// Bytes that the connections of a core may hold above their floors, unless told otherwise. Each may have a quarter of
/// what is left (see [`Connection`]).
pub const BUDGET: usize = 256 * 1024 * 1024;

/// When a server ends: so long after the last request nobody is in the midst of anything.
pub const QUIET: Duration = Duration::from_millis(250);
/// The same for clients that never cease to ask.
pub const LEAVE: Duration = Duration::from_secs(2);

/// What a connection is served with. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    /// Who answers.
    pub server: Arc<dyn FileServer>,
    /// Who may ask.
    pub gate: Arc<Gate>,
    /// Whoever comes in here is this one, whatever he says.
    pub known: Option<Arc<Who>>,
    /// What one client may hold.
    pub limits: Limits,
    /// Which dialects are offered.
    pub dialects: &'static [Dialect],
    /// What the connections of this core share.
    pub core: Core,
    /// Its clients are of this process: that they come and go is worth a word to nobody but who debugs.
    pub own: bool,
    /// Where its clients sit: see [`Who::seat`].
    pub seat: u16,
    /// How streams are offered, if they are.
    pub streams: Option<Streams>,
    /// Who comes in here carries a stream and nothing else.
    pub only_streams: bool,
    /// What clients may push on their connections, if anything.
    pub pushed: Option<Pushed>,
    /// What is pushed on every connection from the beginning: of `pushed`, and known to be right.
    pub begins: Arc<[String]>,
}

impl Service {
    /// All dialects and the default limits.
    pub fn new(server: Arc<dyn FileServer>, gate: Gate, core: Core) -> Self {
        let (gate, limits) = (Arc::new(gate), Limits::default());
        Self {
            server,
            gate,
            known: None,
            limits,
            dialects: DIALECTS,
            core,
            own: false,
            seat: 0,
            streams: None,
            only_streams: false,
            pushed: None,
            begins: Arc::default(),
        }
    }

    /// The same with the streaming dialects: clients may ask for data connections, which come in like clients and are
    /// served by [`Service::welcome`].
    #[must_use]
    pub fn with_streams(self, streams: Streams) -> Self {
        Self { dialects: STREAMING, streams: Some(streams), ..self }
    }

    /// The same with modules that clients may push on their connections, by their own `ctl` ([`CONVERSATION`]).
    #[must_use]
    pub fn with_modules(self, pushed: Pushed) -> Self {
        Self { pushed: Some(pushed), ..self }
    }

    /// The task that serves one client.
    pub fn connect(&self, transport: Box<dyn Transport>) -> Connection {
        Connection::new(self, transport)
    }
}

/// What connections share, on one core or on several. Clones are the same.
#[derive(Clone)]
pub struct Core {
    shared: Arc<Shared>,
}

struct Shared {
    memory: Memory,
    /// Fids of all connections above their floors.
    fids: Arc<FairLimit>,
    opens: AtomicUsize,
    opens_max: usize,
    /// No new clients.
    retiring: AtomicBool,
    draining: AtomicBool,
    /// How often everybody was to be judged again.
    judged: AtomicU64,
    /// Live connections, to be woken when the core drains.
    connections: Mutex<HashMap<u64, Waker>>,
    /// What may be seen of them.
    seen: Mutex<HashMap<u64, Arc<Seen>>>,
    /// Listeners, likewise.
    listeners: Mutex<HashMap<u64, Waker>>,
    /// Streams that are offered.
    offers: stream::Offers,
    /// Clients from accept to the last clunk.
    guests: AtomicUsize,
    /// Those of them that have not attached.
    unattached: UnattachedQueue,
    /// Who waits until there are none.
    drained: Mutex<Vec<Waker>>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("connected", &self.connected()).finish_non_exhaustive()
    }
}

impl Default for Core {
    fn default() -> Self {
        Self::with_budget(BUDGET)
    }
}

impl Core {
    /// A core whose connections may hold `budget` bytes above their floors.
    pub fn with_budget(budget: usize) -> Self {
        Self::with_limits(budget, FIDS_ALL)
    }

    /// The same, with so many fids above their floors.
    pub fn with_limits(budget: usize, fids: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                memory: Memory::new(budget),
                fids: FairLimit::new(fids),
                opens: AtomicUsize::new(0),
                opens_max: opens_max(),
                retiring: AtomicBool::new(false),
                draining: AtomicBool::new(false),
                judged: AtomicU64::new(0),
                connections: Mutex::new(HashMap::new()),
                seen: Mutex::new(HashMap::new()),
                listeners: Mutex::new(HashMap::new()),
                offers: stream::Offers::default(),
                guests: AtomicUsize::new(0),
                unattached: UnattachedQueue::default(),
                drained: Mutex::new(Vec::new()),
            }),
        }
    }

    /// Ends every listener, and serves on the clients that are here until none has asked for anything for [`QUIET`], or
    /// for [`LEAVE`] at most, so that who is in the midst of a few requests comes to their end. [`Self::drain`] is due
    /// then.
    pub async fn retire(&self, env: &impl Env) {
        self.shared.retiring.store(true, Ordering::SeqCst);
        lock(&self.shared.listeners).values().for_each(Waker::wake_by_ref);
        let (begun, mut asked) = (env.now(), Vec::new());
        let mut quiet_at = begun + QUIET;
        while self.guests().max(self.connected()) > 0 && env.now() < quiet_at.min(begun + LEAVE) {
            env.sleep_until(env.now() + QUIET / 8).await;
            let now: Vec<_> = self.clients().iter().map(|client| (client.id, client.requests)).collect();
            if now != asked {
                quiet_at = env.now() + QUIET;
                asked = now;
            }
        }
    }

    /// Has every connection finish what it has been asked, read nothing more, and end; there are no new ones.
    pub fn drain(&self) {
        self.shared.retiring.store(true, Ordering::SeqCst);
        self.shared.draining.store(true, Ordering::SeqCst);
        for waker in lock(&self.shared.connections).values().chain(lock(&self.shared.listeners).values()) {
            waker.wake_by_ref();
        }
    }

    /// Has every connection whose gate has a [`Policy`] judged again: one whose certificate is not good any more, or
    /// that may not have one of its trees, or only read what it might change, is ended.
    pub fn judge_again(&self) {
        self.shared.judged.fetch_add(1, Ordering::SeqCst);
        lock(&self.shared.connections).values().for_each(Waker::wake_by_ref);
    }

    /// Completes when every client has gone that came in by [`listen`], its last clunk included.
    pub async fn drained(&self) {
        poll_fn(|cx| {
            lock(&self.shared.drained).push(cx.waker().clone());
            if self.guests() == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// How many clients are connected.
    pub fn connected(&self) -> usize {
        lock(&self.shared.connections).len()
    }

    /// The clients that are connected, by number.
    pub fn clients(&self) -> Vec<ClientStatus> {
        let mut all: Vec<_> = lock(&self.shared.seen).iter().map(|(&id, seen)| seen.status(id)).collect();
        all.sort_unstable_by_key(|client| client.id);
        all
    }

    /// Bytes that connections hold above their floors.
    pub fn borrowed(&self) -> usize {
        self.shared.memory.borrowed()
    }

    fn retiring(&self) -> bool {
        self.shared.retiring.load(Ordering::SeqCst)
    }

    fn draining(&self) -> bool {
        self.shared.draining.load(Ordering::SeqCst)
    }

    fn judged(&self) -> u64 {
        self.shared.judged.load(Ordering::SeqCst)
    }

    fn offers(&self) -> &stream::Offers {
        &self.shared.offers
    }

    fn fids(&self) -> &Arc<FairLimit> {
        &self.shared.fids
    }

    fn memory(&self) -> &Memory {
        &self.shared.memory
    }

    /// Open files that nobody has.
    fn free_opens(&self) -> usize {
        self.shared.opens_max.saturating_sub(self.shared.opens.load(Ordering::Relaxed))
    }

    /// A connection that had `old` open files has `new` now.
    fn opened(&self, old: usize, new: usize) {
        if new > old {
            self.shared.opens.fetch_add(new - old, Ordering::Relaxed);
        } else if old > new {
            self.shared.opens.fetch_sub(old - new, Ordering::Relaxed);
        }
    }

    /// Counts a client, whom the transport proves or not, until the guard is dropped.
    fn guest(&self, is_proven: bool) -> Guest {
        self.shared.guests.fetch_add(1, Ordering::SeqCst);
        Guest { core: self.clone(), entry: self.unattached().enter(is_proven) }
    }

    fn unattached(&self) -> &UnattachedQueue {
        &self.shared.unattached
    }

    fn guests(&self) -> usize {
        self.shared.guests.load(Ordering::SeqCst)
    }

    /// A new connection's face.
    fn introduce(&self, id: u64, peer: &str) -> Arc<Seen> {
        let seen = Arc::new(Seen::new(peer));
        lock(&self.shared.seen).insert(id, seen.clone());
        seen
    }

    fn enter(&self, id: u64, waker: &Waker) {
        lock(&self.shared.connections).insert(id, waker.clone());
    }

    fn enter_listener(&self, id: u64, waker: &Waker) {
        lock(&self.shared.listeners).insert(id, waker.clone());
    }

    fn leave(&self, id: u64) {
        self.memory().forget(id);
        lock(&self.shared.connections).remove(&id);
        lock(&self.shared.seen).remove(&id);
        lock(&self.shared.listeners).remove(&id);
    }

    /// Numbers connections through the whole process, so that a log line names one.
    fn next_id(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// One client, from accept to its last clunk.
struct Guest {
    core: Core,
    entry: Arc<UnattachedConnection>,
}

impl Guest {
    /// Runs the task of the client to its end, or until another client needs its place and it has not attached.
    async fn serve(self, client: impl Future<Output = ()>) {
        let mut client = pin!(client);
        poll_fn(|cx| match client.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => self.entry.poll_evicted(cx),
        })
        .await;
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.core.unattached().leave(&self.entry);
        let shared = &self.core.shared;
        if shared.guests.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::mem::take(&mut *lock(&shared.drained)).into_iter().for_each(Waker::wake);
        }
    }
}

/// Open files of servers that have descriptors for them, of all clients together: half of the descriptors this process
/// may have, for each may need one; the rest is for connections and the servers' own use.
fn opens_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit / 2).unwrap_or(usize::MAX))
}
