//! The server framework: connections on one side, a [`FileServer`] on the other.
//!
//! ```text
//! Transport -> rx -> Session -> gate -> FileServer::serve(Req) -> Answer -> Session -> tx -> Transport
//! ```
//! A [`Service`] is the configuration of a listener: its server, its [`Gate`] and its limits. Connections share a
//! [`Core`]: buffers, the memory budget, the list of connected clients.

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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
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
pub use seen::{ClientStatus, ClientTotals};
pub use stream::{
    Course, Fill, LULL, OFFER_TIME, OFFERS, OFFERS_ALL, Passage, StreamRequest, Streams, TOKEN_TIME, lost,
};

use crate::limits::{ClientPrincipal, FairLimit, FairShare};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, lock};
use memory::MemoryBudget;
use seen::PublishedStatus;
use unattached::{UnattachedConnection, UnattachedQueue};

/// The supported dialects, best first.
pub const DIALECTS: &[Dialect] = &[Dialect::L, Dialect::U, Dialect::P2000];

/// The supported dialects of a service with streams, best first.
const STREAMING: &[Dialect] =
    &[Dialect::LS, Dialect::US, Dialect::P2000S, Dialect::L, Dialect::U, Dialect::P2000];

/// Default budget in bytes that the connections of a core may hold above their floors. One connection may hold a
/// quarter of the rest (see [`Connection`]).
pub const BUDGET: usize = 256 * 1024 * 1024;

/// How long a retiring server waits after the last request before it drains.
pub const QUIET: Duration = Duration::from_millis(250);
/// How long a retiring server waits at most, if clients never stop sending requests.
pub const LEAVE: Duration = Duration::from_secs(2);

/// The configuration that a connection is served with. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    /// The file server.
    pub server: Arc<dyn FileServer>,
    /// The access rules.
    pub gate: Arc<Gate>,
    /// If set, every client has this identity, whatever it claims.
    pub known: Option<Arc<Who>>,
    /// The limits of one client.
    pub limits: Limits,
    /// The dialects that are offered, best first.
    pub dialects: &'static [Dialect],
    /// The state that connections share.
    pub core: Core,
    /// Its clients are in this process: the log reports them at the debug level only.
    pub own: bool,
    /// The core that serves its clients: see [`Who::seat`].
    pub seat: u16,
    /// The settings of its streams, if it offers any.
    pub streams: Option<Streams>,
    /// Every connection carries a stream; none is a 9P client.
    pub only_streams: bool,
    /// The modules that clients may push on their connections, if any.
    pub pushed: Option<Pushed>,
    /// The modules that every connection starts with. They are taken from `pushed` and known to be valid.
    pub begins: Arc<[String]>,
}

impl Service {
    /// A service with all dialects and the default limits.
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

    /// Adds the streaming dialects. Clients may then ask for data connections, which arrive at the same listener and
    /// are served by [`Service::welcome`].
    #[must_use]
    pub fn with_streams(self, streams: Streams) -> Self {
        Self { dialects: STREAMING, streams: Some(streams), ..self }
    }

    /// Lets clients push modules on their connections, through the connection's `ctl` file ([`CONVERSATION`]).
    #[must_use]
    pub fn with_modules(self, pushed: Pushed) -> Self {
        Self { pushed: Some(pushed), ..self }
    }

    /// Returns the task that serves one client.
    pub fn connect(&self, transport: Box<dyn Transport>) -> Connection {
        Connection::new(self, transport)
    }
}

/// State that connections share, on one core or on several. Clones share the same state.
#[derive(Clone)]
pub struct Core {
    shared: Arc<CoreState>,
}

struct CoreState {
    memory: MemoryBudget,
    /// Fids of all connections above their floors.
    fids: Arc<FairLimit>,
    opens: AtomicUsize,
    opens_max: usize,
    /// No new clients are accepted.
    retiring: AtomicBool,
    draining: AtomicBool,
    /// Counts the calls of [`Core::judge_again`].
    judged: AtomicU64,
    /// Live connections, to be woken when the core drains.
    connections: Mutex<HashMap<u64, Waker>>,
    /// The published status of each connection.
    seen: Mutex<HashMap<u64, Arc<PublishedStatus>>>,
    /// The sums of the connections that have ended. Locked after `seen`.
    ended: Mutex<ClientTotals>,
    /// Live listeners, to be woken likewise.
    listeners: Mutex<HashMap<u64, Waker>>,
    /// Open offers of streams.
    offers: stream::StreamOffers,
    /// Connected clients, from accept to the last clunk.
    guests: AtomicUsize,
    /// The clients that have not attached yet.
    unattached: UnattachedQueue,
    /// The places of attached clients and of data connections: as many as the first listener has. Without listeners
    /// there is no limit.
    places: OnceLock<Arc<FairLimit>>,
    /// Tasks that wait until there are no clients.
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
    /// A core with a budget of `budget` bytes above the floors of its connections.
    pub fn with_budget(budget: usize) -> Self {
        Self::with_limits(budget, FIDS_ALL)
    }

    /// A core with these limits of bytes and fids above the floors of its connections.
    pub fn with_limits(budget: usize, fids: usize) -> Self {
        Self {
            shared: Arc::new(CoreState {
                memory: MemoryBudget::new(budget),
                fids: FairLimit::new(fids),
                opens: AtomicUsize::new(0),
                opens_max: opens_max(),
                retiring: AtomicBool::new(false),
                draining: AtomicBool::new(false),
                judged: AtomicU64::new(0),
                connections: Mutex::new(HashMap::new()),
                seen: Mutex::new(HashMap::new()),
                ended: Mutex::default(),
                listeners: Mutex::new(HashMap::new()),
                offers: stream::StreamOffers::default(),
                guests: AtomicUsize::new(0),
                unattached: UnattachedQueue::default(),
                places: OnceLock::new(),
                drained: Mutex::new(Vec::new()),
            }),
        }
    }

    /// Ends every listener, and serves the connected clients until none has sent a request for [`QUIET`], or for
    /// [`LEAVE`] at most. So clients can finish short sequences of requests. Call [`Self::drain`] afterwards.
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

    /// Makes every connection finish its outstanding requests, read no more, and end. No new connections are accepted.
    pub fn drain(&self) {
        self.shared.retiring.store(true, Ordering::SeqCst);
        self.shared.draining.store(true, Ordering::SeqCst);
        for waker in lock(&self.shared.connections).values().chain(lock(&self.shared.listeners).values()) {
            waker.wake_by_ref();
        }
    }

    /// Asks each gate's [`Policy`] again about every connection. A connection is closed if its certificate is no longer
    /// valid. It is also closed if it may no longer attach to one of its trees, or has lost write access to one.
    pub fn judge_again(&self) {
        self.shared.judged.fetch_add(1, Ordering::SeqCst);
        lock(&self.shared.connections).values().for_each(Waker::wake_by_ref);
    }

    /// Completes when all clients accepted by [`listen`] are gone, including their last clunks.
    pub async fn drained(&self) {
        poll_fn(|cx| {
            lock(&self.shared.drained).push(cx.waker().clone());
            if self.guests() == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// The number of connected clients.
    pub fn connected(&self) -> usize {
        lock(&self.shared.connections).len()
    }

    /// The connected clients, by number.
    pub fn clients(&self) -> Vec<ClientStatus> {
        let mut all: Vec<_> = lock(&self.shared.seen).iter().map(|(&id, seen)| seen.status(id)).collect();
        all.sort_unstable_by_key(|client| client.id);
        all
    }

    /// The sums of all clients since the start, connected or not.
    pub fn totals(&self) -> ClientTotals {
        let seen = lock(&self.shared.seen);
        let ended = *lock(&self.shared.ended);
        seen.iter().fold(ended, |sum, (&id, seen)| sum.with(&seen.status(id)))
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

    fn offers(&self) -> &stream::StreamOffers {
        &self.shared.offers
    }

    fn fids(&self) -> &Arc<FairLimit> {
        &self.shared.fids
    }

    fn memory(&self) -> &MemoryBudget {
        &self.shared.memory
    }

    /// The number of open files that may still be opened.
    fn free_opens(&self) -> usize {
        self.shared.opens_max.saturating_sub(self.shared.opens.load(Ordering::Relaxed))
    }

    /// Records that a connection with `old` open files has `new` now.
    fn opened(&self, old: usize, new: usize) {
        if new > old {
            self.shared.opens.fetch_add(new - old, Ordering::Relaxed);
        } else if old > new {
            self.shared.opens.fetch_sub(old - new, Ordering::Relaxed);
        }
    }

    /// Counts a client until the guard is dropped. `is_proven`: the transport proves the client.
    fn guest(&self, is_proven: bool) -> ConnectedClient {
        self.shared.guests.fetch_add(1, Ordering::SeqCst);
        ConnectedClient { core: self.clone(), entry: self.unattached().enter(is_proven) }
    }

    /// Sets the number of places, unless another listener has.
    fn limit_places(&self, places: usize) {
        let _ = self.shared.places.set(FairLimit::new(places));
    }

    /// Takes a place for a data connection. `None`: there is no limit.
    ///
    /// # Errors
    /// EAGAIN: this principal has its share of the places, or the listener would close the connection at once.
    fn take_data_place(&self, principal: &ClientPrincipal) -> nine_proto::Result<Option<FairShare>> {
        let full = |places: &Arc<FairLimit>| self.guests() >= listen::unproven_places(places.capacity());
        if self.shared.places.get().is_some_and(full) {
            return Err(nine_proto::Error::new(
                nine_proto::Errno::EAGAIN,
                "all places of connections are taken",
            ));
        }
        self.take_place(principal)
    }

    /// Takes a place for a client that attaches. `None`: there is no limit.
    ///
    /// # Errors
    /// EAGAIN: more than half of the places are taken, and this principal has its share of them.
    fn take_place(&self, principal: &ClientPrincipal) -> nine_proto::Result<Option<FairShare>> {
        let Some(places) = self.shared.places.get() else { return Ok(None) };
        let text = "this client has as many connections as the server allows it now";
        places
            .take_one(principal)
            .map(Some)
            .ok_or_else(|| nine_proto::Error::new(nine_proto::Errno::EAGAIN, text))
    }

    fn unattached(&self) -> &UnattachedQueue {
        &self.shared.unattached
    }

    fn guests(&self) -> usize {
        self.shared.guests.load(Ordering::SeqCst)
    }

    /// Registers the published status of a new connection.
    fn introduce(&self, id: u64, peer: &str) -> Arc<PublishedStatus> {
        let seen = Arc::new(PublishedStatus::new(peer));
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
        {
            let mut seen = lock(&self.shared.seen);
            if let Some(gone) = seen.remove(&id) {
                let mut ended = lock(&self.shared.ended);
                *ended = ended.with(&gone.status(id));
            }
        }
        lock(&self.shared.listeners).remove(&id);
    }

    /// Numbers connections throughout the process, so that a number in the log is unique.
    fn next_id(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// One client, from accept to its last clunk.
struct ConnectedClient {
    core: Core,
    entry: Arc<UnattachedConnection>,
}

impl ConnectedClient {
    /// Runs the client's task to its end, or until it is evicted for another client before it has attached.
    async fn serve(self, client: impl Future<Output = ()>) {
        let mut client = pin!(client);
        poll_fn(|cx| match client.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => self.entry.poll_evicted(cx),
        })
        .await;
    }
}

impl Drop for ConnectedClient {
    fn drop(&mut self) {
        self.core.unattached().leave(&self.entry);
        let shared = &self.core.shared;
        if shared.guests.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::mem::take(&mut *lock(&shared.drained)).into_iter().for_each(Waker::wake);
        }
    }
}

/// Maximum number of open files of all clients together, if the open files of the server may need descriptors: half of
/// the descriptor limit. The rest is for connections and the servers' own use.
fn opens_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit / 2).unwrap_or(usize::MAX))
}
