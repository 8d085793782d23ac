//! Upstreams: the servers that a mux is a client of, with one connection each, or as many as the mount allows.
//!
//! An [`UpstreamServer`] is an address. A [`UpstreamConnection`] is one connection to it, with one session and one fid
//! space. It is dialled when it is first needed, and again when it is needed after the connection has ended. A
//! [`UpstreamTree`] is the file tree of one aname. A [`TreeRoot`] is a fid for the root of a tree, on one connection,
//! for one user. It is attached when it is first needed.
//!
//! Always holds: only requests for an upstream's files wait for it. After a failed dial, the upstream is not tried
//! again for [`RETRY`]. Meanwhile requests for it fail at once with the same error.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::lock::{Mutex as AsyncMutex, OwnedMutexGuard};
use nine_io::client::{Client, Driver, Error, File, Meter, Options, ServerVersion};
use nine_io::limits::FairLimit;
use nine_io::server::Who;
use nine_net::lock::{Mutex, lock};
use nine_net::modules::TraceLog;
use nine_net::{Proof, Transport};
use nine_proto::{Errno, NOUID, Qid};

use crate::ahead::AheadFiles;
use crate::core::{MuxCore, refused};
use crate::fids::UPSTREAM_FIDS_MAX;
use crate::keep::{FidRegistry, RenameLog, Wait, is_passing, pulse};
use crate::outside::{OutsideCore, OutsideTasks};
use crate::pushed::{self, ModuleList};
use crate::qid::{QidAllocator, QidMap};
use crate::space::TreeId;
use crate::unsynced::UnsyncedChanges;

/// A boxed future that a user of this library supplies.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Connects to an upstream. Called for each connection, so that the address is resolved each time.
pub trait Dial: Send + Sync + 'static {
    /// Connects. The mux abandons the dial after [`GREETING`]. `spawn` starts tasks that the connection needs.
    fn dial(&self, spawn: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>>;

    /// Whether the mux may create missing mount points there.
    fn is_scratch(&self) -> bool {
        false
    }

    /// Whether the server gets a client's standing in the aname, which the mux then sets itself: see [`told`].
    fn is_told(&self) -> bool {
        false
    }
}

/// Spawns tasks on the core of the connection that they serve.
pub trait Spawn {
    /// Spawns a task.
    fn spawn(&self, task: Boxed<()>);
}

/// The user with which the mux attaches to an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum As {
    /// All clients of the mux appear as this user.
    User {
        /// The user's name; empty if the upstream knows the user by other means.
        name: Box<str>,
        /// The user's number.
        uid: Option<u32>,
    },
    /// Each client appears as itself, with its own root.
    Client,
}

/// The configuration of an upstream.
#[derive(Clone)]
pub struct Server {
    /// Its address, as messages show it.
    pub name: Arc<str>,
    /// Connects to it.
    pub dial: Arc<dyn Dial>,
    /// Equal servers with the same content, at most [`OTHERS_MAX`]. If one cannot be reached, the next is tried.
    pub others: Vec<Arc<dyn Dial>>,
    /// Options of its connections. A call beyond `calls` waits.
    pub options: Options,
    /// User name and number of the attaches that set up its modules ([`Client::change`]).
    pub user: (Box<str>, u32),
    /// Maximum number of connections. A client of the mux always uses the same one.
    pub lanes: u16,
    /// Maximum number of clients' fids on one connection: [`UPSTREAM_FIDS_MAX`] or less.
    pub fids: usize,
    /// Whether it is in this process and is no mux.
    pub local: bool,
    /// Whether regular files that are read serially are read ahead.
    pub ahead: bool,
    /// How long requests wait while it is away. Its fids are then restored after a reconnection. If `None`, requests
    /// fail.
    pub wait: Option<Wait>,
    /// Modules for its connections, unless others were set before it is mounted.
    pub pushed: Vec<String>,
    /// The log of the module `trace` on its connections.
    pub trace: TraceLog,
}

/// A lock whose holder may append.
type AppendLock = AsyncMutex<()>;

pub(crate) struct UpstreamServer {
    pub(crate) id: u32,
    pub(crate) server: Server,
    /// One for each of the equal servers: their qids are unrelated.
    maps: Box<[QidMap]>,
    /// The versions that the equal servers have accepted.
    spoken: Box<[Arc<ServerVersion>]>,
    /// The modules on its connections.
    pub(crate) pushed: ModuleList,
    qids: Arc<QidAllocator>,
    core: Weak<MuxCore>,
    /// Maximum number of connections, the largest of all its mounts.
    pub(crate) most: AtomicU16,
    lanes: Mutex<HashMap<ConnectionKey, Arc<UpstreamConnection>>>,
    /// Whether it is a mux like this one, or may be one. It may be another server after a reconnection.
    is_mux: AtomicBool,
    pub(crate) dials: AtomicU32,
    /// Its files that are read ahead.
    pub(crate) ahead: AheadFiles,
    /// Whether it has missed a timeout and not answered since. Listings do not wait for it.
    silent: AtomicBool,
    /// Whether a task checks if it answers again.
    pub(crate) is_looked_at: AtomicBool,
    /// Changes that may be lost with its connections.
    pub(crate) unsynced: UnsyncedChanges,
    /// Locks for appends to files whose opens cannot request append mode, by server and qid path.
    appends: Mutex<HashMap<(u16, u64), Weak<AppendLock>>>,
}

/// Selects a connection. In a loop of muxes each round uses connections of its own, so that no request waits for one
/// that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionKey {
    pub(crate) hops: u8,
    pub(crate) index: u16,
}

pub(crate) struct UpstreamConnection {
    pub(crate) key: ConnectionKey,
    upstream: Weak<UpstreamServer>,
    state: AsyncMutex<ConnectionState>,
    /// The live client, readable without waiting.
    now: arc_swap::ArcSwapOption<Client>,
    /// Round-trip time of the last attach of a [`TreeRoot`], in microseconds; 0 if unknown.
    pub(crate) rtt_us: AtomicU64,
    /// The fids to restore after a reconnection, and the requests that wait for it.
    pub(crate) keeping: FidRegistry,
    /// The limit of clients' fids on it.
    pub(crate) fids: Arc<FairLimit>,
    /// Whether the server of the live connection has said that it is no mux.
    is_plain: AtomicBool,
}

#[derive(Default)]
struct ConnectionState {
    client: Option<Arc<Client>>,
    /// The index of the equal server that it is or was connected to.
    member: u16,
    /// The time of the last dial.
    since: Duration,
    /// The time until which the last error is valid, and that error.
    failed: Option<(Duration, Error)>,
    /// The last pause after a refusal.
    pause: Duration,
    /// Whether the error was logged.
    told: bool,
}

/// The tree of one aname of an upstream, for one user or for each client as itself.
pub(crate) struct UpstreamTree {
    pub(crate) id: TreeId,
    pub(crate) upstream: Arc<UpstreamServer>,
    pub(crate) aname: Box<str>,
    /// The user of all clients. `None`: each client as itself.
    pub(crate) user: Option<Arc<UserIdentity>>,
    pub(crate) core: Weak<MuxCore>,
    /// Whether its files are read ahead.
    pub(crate) ahead: bool,
    /// How long requests wait while the server is away. Its fids are then restored after a reconnection.
    pub(crate) wait: Option<Wait>,
    /// The renames of its files.
    pub(crate) moves: RenameLog,
    /// Whether it was unmounted. A new root is then not stored, because it would not be released any more.
    pub(crate) unmounted: AtomicBool,
}

/// A user and its roots. The user's clients share it. The roots are dropped with the last of its fids.
pub(crate) struct UserIdentity {
    pub(crate) name: Box<str>,
    pub(crate) uid: Option<u32>,
    pub(crate) standing: UserStanding,
    /// Whether it may change nothing.
    pub(crate) read_only: bool,
    roots: Mutex<HashMap<(TreeId, ConnectionKey), RootPlace>>,
}

/// The slot of a root. A caller holds the lock while it attaches.
type RootPlace = Arc<AsyncMutex<RootState>>;

#[derive(Default)]
struct RootState {
    root: Option<Arc<TreeRoot>>,
    /// The time until which the attach counts as failed, and the error.
    failed: Option<(Duration, Error)>,
}

pub(crate) struct TreeRoot {
    pub(crate) tree: Arc<UpstreamTree>,
    pub(crate) lane: Arc<UpstreamConnection>,
    /// The index of the equal server.
    pub(crate) member: u16,
    pub(crate) client: Arc<Client>,
    pub(crate) file: Arc<File>,
}

impl Server {
    /// Creates the configuration of a remote server with one connection. `name` is its name in messages.
    pub fn new(name: &str, dial: Arc<dyn Dial>) -> Self {
        let (name, others, options) = (name.into(), Vec::new(), Self::options());
        let user = (Box::default(), NOUID);
        let trace = TraceLog::default();
        let (lanes, fids, wait, pushed) = (1, UPSTREAM_FIDS_MAX, None, Vec::new());
        Self {
            name,
            dial,
            others,
            options,
            user,
            lanes,
            fids,
            local: false,
            wait,
            ahead: false,
            pushed,
            trace,
        }
    }

    /// Returns the default options for upstreams. One client of the mux can use a quarter of the budget, and the next
    /// client may have to wait for all of it. So the budget is smaller than for a client alone.
    pub fn options() -> Options {
        Options { budget: BUDGET, ..Options::default() }
    }
}

impl UpstreamServer {
    pub(crate) fn new(
        id: u32,
        mut server: Server,
        pushed: ModuleList,
        qids: Arc<QidAllocator>,
        core: Weak<MuxCore>,
    ) -> Self {
        let (is_mux, most) = (AtomicBool::new(!server.local), server.lanes);
        if let (None, Some(clock)) = (&server.options.meter, &server.options.clock) {
            server.options.meter = Some(Arc::new(Meter::new(clock.clone())));
        }
        Self {
            id,
            maps: (0..=server.others.len() as u32).map(|n| QidMap::new(id * (OTHERS_MAX + 1) + n)).collect(),
            spoken: (0..=server.others.len()).map(|_| Arc::default()).collect(),
            server,
            pushed,
            qids,
            core,
            most: AtomicU16::new(most),
            lanes: Mutex::default(),
            is_mux,
            dials: AtomicU32::new(0),
            ahead: AheadFiles::default(),
            silent: AtomicBool::new(false),
            is_looked_at: AtomicBool::new(false),
            unsynced: UnsyncedChanges::default(),
            appends: Mutex::default(),
        }
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    pub(crate) fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Returns the connection for requests of this client that have passed `hops` muxes.
    pub(crate) fn lane(self: &Arc<Self>, hops: u8, client: u64) -> Arc<UpstreamConnection> {
        let hops = if self.is_mux.load(Ordering::Relaxed) { hops } else { 0 };
        let index = (client % u64::from(self.most.load(Ordering::Relaxed).max(1))) as u16;
        let key = ConnectionKey { hops, index };
        lock(&self.lanes).entry(key).or_insert_with(|| Arc::new(UpstreamConnection::new(key, self))).clone()
    }

    pub(crate) fn lanes(&self) -> Vec<Arc<UpstreamConnection>> {
        let mut lanes: Vec<_> = lock(&self.lanes).values().cloned().collect();
        lanes.sort_by_key(|lane| (lane.key.hops, lane.key.index));
        lanes
    }

    /// Returns the lock for appends to this file.
    pub(crate) fn appends(&self, root: &TreeRoot, raw: Qid) -> Arc<AppendLock> {
        let mut appends = lock(&self.appends);
        let key = (root.member, raw.path);
        if let Some(turn) = appends.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        appends.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        appends.insert(key, Arc::downgrade(&turn));
        turn
    }

    /// Aborts all connections. Calls that wait for a reply fail with `reason`.
    pub(crate) fn abort(&self, reason: &str) {
        for client in self.lanes().iter().filter_map(|lane| lane.client()) {
            client.abort(io::Error::new(io::ErrorKind::ConnectionAborted, reason));
        }
    }
}

impl Drop for UpstreamServer {
    fn drop(&mut self) {
        self.maps.iter().for_each(|map| self.qids.give_back(map));
    }
}

impl UpstreamConnection {
    fn new(key: ConnectionKey, upstream: &Arc<UpstreamServer>) -> Self {
        Self {
            key,
            upstream: Arc::downgrade(upstream),
            state: AsyncMutex::default(),
            now: arc_swap::ArcSwapOption::empty(),
            rtt_us: AtomicU64::new(0),
            keeping: FidRegistry::default(),
            fids: FairLimit::new(upstream.server.fids),
            is_plain: AtomicBool::new(false),
        }
    }

    /// Returns its upstream, if that is still in use.
    pub(crate) fn upstream(&self) -> Option<Arc<UpstreamServer>> {
        self.upstream.upgrade()
    }

    /// Returns the client, if the connection is live.
    pub(crate) fn client(&self) -> Option<Arc<Client>> {
        self.now.load_full().filter(|client| client.dead().is_none())
    }

    /// Returns the client and the index of the equal server. Dials if needed.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        upstream: &Arc<UpstreamServer>,
        outside: &Arc<OutsideTasks>,
    ) -> Result<(Arc<Client>, u16), Error> {
        let mut state = self.state.lock().await;
        let gone = match state.client.take() {
            None => None,
            Some(client) => match client.dead() {
                None => {
                    state.client = Some(client.clone());
                    return Ok((client, state.member));
                }
                gone => gone,
            },
        };
        self.now.store(None);
        let now = outside.now().await;
        if let Some(gone) = gone.filter(|_| self.keeping.is_on()) {
            // A server that accepts and closes at once must not be dialled in a tight loop.
            state.failed = Some((state.since + RETRY, gone));
        }
        if let Some((until, error)) = state.failed.as_ref().filter(|(until, _)| now < *until) {
            self.keeping.failed(error, *until);
            return Err(error.clone());
        }
        state.since = now;
        let first = state.member;
        let all = upstream.maps.len() as u16;
        let mut failed = None;
        let place = outside.place(self.key.index);
        for member in (first..all).chain(0..first) {
            let reached = place.run(upstream.clone().reach(member, place.clone())).await;
            match reached.unwrap_or_else(|| Err(refused(Errno::EIO, "the core that dials has ended"))) {
                Ok((client, driver, _pushed)) => {
                    place.spawn(Box::pin(drive(Arc::downgrade(self), upstream.server.name.clone(), driver)));
                    if !upstream.server.local {
                        let (dialect, peer) = (client.dialect().name(), client.peer());
                        tracing::info!(upstream = %upstream.server.name, %peer, dialect, "connected");
                    }
                    let client = Arc::new(client);
                    // Do this before the new connection is used: a sync over it must see the loss.
                    if self.keeping.is_back(client.peer()) {
                        upstream.unsynced.reconnected(member != first);
                    }
                    self.is_plain.store(false, Ordering::Relaxed);
                    self.now.store(Some(client.clone()));
                    (state.client, state.member) = (Some(client.clone()), member);
                    (state.failed, state.told, state.pause) = (None, false, Duration::ZERO);
                    return Ok((client, member));
                }
                Err(error) => failed = Some(error),
            }
        }
        let error = failed.expect("there is a server to be tried");
        // The mount call reports the first failure. From the second dial on, the failure is logged once.
        if !std::mem::replace(&mut state.told, true) && upstream.dials.load(Ordering::Relaxed) > 1 {
            tracing::warn!(upstream = %upstream.server.name, "not reached: {error}");
        }
        // A server that is away may return soon. A server that refuses us is tried at growing intervals.
        state.pause = match is_refusal(&error) {
            true => (state.pause * 2).clamp(RETRY, REFUSED_MAX),
            false => Duration::ZERO,
        };
        let until = outside.now().await + state.pause.max(RETRY);
        self.keeping.failed(&error, until);
        state.failed = Some((until, error.clone()));
        Err(error)
    }
}

impl UpstreamServer {
    /// Connects to one of the equal servers.
    async fn reach(self: Arc<Self>, member: u16, place: OutsideCore) -> Result<NewConnection, Error> {
        let outside = &place.outside;
        let Server { name, dial, others, options, .. } = &self.server;
        let dial = member.checked_sub(1).map_or(dial, |other| &others[usize::from(other)]);
        self.dials.fetch_add(1, Ordering::Relaxed);
        let failed = |error: io::Error| Error::Transport { peer: name.clone(), error: Arc::new(error) };
        let late = |text: &str| failed(io::Error::new(io::ErrorKind::TimedOut, text));
        let begun = outside.now().await;
        let dialled = outside.within(GREETING, dial.dial(&place)).await;
        let transport = dialled.ok_or_else(|| late("no connection within 10 s"))?.map_err(failed)?;
        let rest = GREETING.saturating_sub(outside.now().await.saturating_sub(begun)).max(RETRY);
        let spoken = Some(self.spoken[usize::from(member)].clone());
        let options = Options { spoken, ..options.clone() };
        let greeted = outside.within(rest, Client::connect(transport, options)).await;
        let (client, mut driver) = greeted.ok_or_else(|| late("connected, but no answer within 10 s"))??;
        let pushed = pushed::begin(&self, outside, &client, &mut driver).await?;
        Ok((client, driver, pushed))
    }
}

/// Whether the server is there and refuses us. Waiting does not help then.
pub(crate) fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Transport { error, .. } | Error::Unsent { error, .. } => {
            error.kind() == io::ErrorKind::PermissionDenied
        }
        error => matches!(error, Error::Version { .. } | Error::Remote(_)),
    }
}

/// A new connection, its driver, and its modules.
type NewConnection = (Client, Driver, OwnedMutexGuard<Vec<String>>);

/// Drives a connection until it ends.
async fn drive(lane: Weak<UpstreamConnection>, name: Arc<str>, driver: Driver) {
    match driver.await {
        Ok(()) => tracing::debug!(upstream = %name, "closed"),
        Err(error) => {
            tracing::warn!(upstream = %name, "lost: {error}");
            let upstream = lane.upgrade().and_then(|lane| lane.upstream());
            if let (Some(core), Some(lane)) = (upstream.and_then(|of| of.core.upgrade()), lane.upgrade()) {
                core.lost(&lane);
            }
        }
    }
}

/// The proof for a user's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum UserStanding {
    /// None: the client only claims the name.
    Claimed,
    /// Proof by the kernel or a certificate, or the mux itself.
    Proven,
    /// The user has proven to be the owner of this mux.
    Owner,
}

impl UserStanding {
    pub(crate) fn of(who: &nine_io::server::Who) -> Self {
        match (who.owner, who.proof.is_identity()) {
            (true, _) => Self::Owner,
            (false, true) => Self::Proven,
            (false, false) => Self::Claimed,
        }
    }

    /// Formats the standing as an aname for servers that receive it.
    fn told(self, read_only: bool) -> String {
        let standing = match self {
            Self::Owner => OWNER,
            Self::Proven => PROVEN,
            Self::Claimed => CLAIMED,
        };
        if read_only { format!("{standing} {READ_ONLY}") } else { standing.into() }
    }
}

impl UserIdentity {
    pub(crate) fn new(name: &str, uid: Option<u32>) -> Self {
        Self {
            name: name.into(),
            uid,
            standing: UserStanding::Proven,
            read_only: false,
            roots: Mutex::default(),
        }
    }

    /// Returns its root of a tree on this client's connection for requests that have passed `hops` muxes. Attaches if
    /// needed.
    pub(crate) async fn root(
        &self,
        tree: &Arc<UpstreamTree>,
        hops: u8,
        client: u64,
        outside: &Arc<OutsideTasks>,
    ) -> Result<Arc<TreeRoot>, Error> {
        let lane = tree.upstream.lane(hops, client);
        let place = {
            let mut roots = lock(&self.roots);
            match tree.unmounted.load(Ordering::Relaxed) {
                true => RootPlace::default(),
                false => roots.entry((tree.id, lane.key)).or_default().clone(),
            }
        };
        let mut place = place.lock().await;
        if let Some(root) = &place.root
            && root.client.dead().is_none()
        {
            return Ok(root.clone());
        }
        place.root = None;
        let begun = outside.now().await;
        if let Some((_, error)) = place.failed.as_ref().filter(|(until, _)| begun < *until) {
            return Err(error.clone());
        }
        let (client, member) = lane.connect(&tree.upstream, outside).await?;
        let rest = GREETING.saturating_sub(outside.now().await.saturating_sub(begun)).max(RETRY);
        let attached = self.attach(tree, &lane, &client, hops, outside);
        let Some(file) = outside.within(rest, attached).await else {
            let error = refused(Errno::ETIMEDOUT, "the server is connected, and does not answer the attach");
            place.failed = Some((outside.now().await + RETRY, error.clone()));
            tree.core.upgrade().iter().for_each(|core| core.flushed());
            return Err(error);
        };
        let root = Arc::new(TreeRoot::new(tree, &lane, (client, member), file?));
        *place = RootState { root: Some(root.clone()), failed: None };
        tree.upstream.set_silent(false);
        Ok(root)
    }

    async fn attach(
        &self,
        tree: &UpstreamTree,
        lane: &UpstreamConnection,
        client: &Client,
        hops: u8,
        outside: &OutsideTasks,
    ) -> Result<File, Error> {
        let begun = outside.now().await;
        // A mount with its own aname sends the standing only for the owner.
        let tells = self.standing == UserStanding::Owner || tree.aname.is_empty();
        let told = tree.upstream.server.dial.is_told() && tells;
        let told = match told {
            true => Some(self.standing.told(self.read_only)),
            // An aname must not restore rights that a read-only listener has removed.
            false if tree.upstream.server.dial.is_told() && self.read_only => {
                Some(format!("{} {READ_ONLY}", tree.aname))
            }
            false => None,
        };
        let aname = told.as_deref().unwrap_or(&tree.aname);
        let file = client.attach(&self.name, self.uid.unwrap_or(NOUID), aname).await?;
        let took = outside.now().await.saturating_sub(begun).as_micros();
        lane.rtt_us.store(u64::try_from(took).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        hop(&tree.upstream, lane, file, hops + 1).await
    }

    /// Stores a root that is attached already.
    pub(crate) fn admit(
        &self,
        tree: &Arc<UpstreamTree>,
        lane: &Arc<UpstreamConnection>,
        client: (Arc<Client>, u16),
        file: File,
    ) {
        let root = TreeRoot::new(tree, lane, client, file);
        let state = RootState { root: Some(Arc::new(root)), failed: None };
        lock(&self.roots).insert((tree.id, lane.key), Arc::new(AsyncMutex::new(state)));
    }

    /// Drops the roots of a tree that is no longer mounted.
    pub(crate) fn forget(&self, tree: TreeId) {
        lock(&self.roots).retain(|(of, _), _| *of != tree);
    }
}

/// Sends the number of muxes that this root's requests pass to a server that is a mux, too: see [`HOPS_MAX`]. Other
/// servers do not have the name. Each connection is asked: a server may come back as a mux.
async fn hop(
    upstream: &UpstreamServer,
    lane: &UpstreamConnection,
    root: File,
    hops: u8,
) -> Result<File, Error> {
    if upstream.server.local || lane.is_plain.load(Ordering::Relaxed) {
        return Ok(root);
    }
    let learn = |is_mux| {
        if lane.client().is_some_and(|client| client.is_same(root.client())) {
            upstream.is_mux.store(is_mux, Ordering::Relaxed);
            lane.is_plain.store(!is_mux, Ordering::Relaxed);
        }
    };
    match root.walk(format!("{HOPS}{hops}")).await {
        // Some servers accept every name as a file. A mux returns the same root.
        Ok(again) if (again.qid().path, again.qid().ty) == (root.qid().path, root.qid().ty) => {
            learn(true);
            Ok(again)
        }
        // These errors do not show whether the name exists.
        Err(error) if error.is_disconnect() || is_passing(error.errno()) => Err(error),
        Err(error) if error.errno() == Errno::ELOOP => {
            Err(refused(Errno::ELOOP, "the mounts lead round in a loop"))
        }
        // Any other error means that the server does not have the name.
        _ => {
            learn(false);
            Ok(root)
        }
    }
}

impl TreeRoot {
    fn new(
        tree: &Arc<UpstreamTree>,
        lane: &Arc<UpstreamConnection>,
        (client, member): (Arc<Client>, u16),
        file: File,
    ) -> Self {
        if tree.wait.is_some()
            && lane.keeping.begin()
            && let Some(core) = tree.core.upgrade()
        {
            let pulse = pulse(core.outside.clone(), Arc::downgrade(lane));
            core.jobs.begin(None, Box::pin(pulse));
        }
        Self { tree: tree.clone(), lane: lane.clone(), member, client, file: Arc::new(file) }
    }

    /// Returns the map of its server's qids.
    pub(crate) fn map(&self) -> &QidMap {
        &self.tree.upstream.maps[usize::from(self.member)]
    }

    pub(crate) fn qid(&self) -> Qid {
        self.file.qid()
    }
}

/// The standing of a user: the first word of the aname for a server that [receives it](Dial::is_told). `READ_ONLY` is
/// the second word.
const OWNER: &str = "owner";
const PROVEN: &str = "proven";
const CLAIMED: &str = "claimed";
const READ_ONLY: &str = "read-only";

/// Whether this is an owner's aname, at a server that [receives the standing](Dial::is_told).
pub fn is_owner(aname: &[u8]) -> bool {
    aname.split(|byte| *byte == b' ').next() == Some(OWNER.as_bytes())
}

/// Sets the standing of a client from this aname, at a server that [receives it](Dial::is_told). The mux's own
/// connection proves nothing about the mux's clients.
pub fn told(who: &mut Who, aname: &[u8]) {
    let mut words = aname.split(|byte| *byte == b' ');
    let standing = words.next().unwrap_or_default();
    who.owner = standing == OWNER.as_bytes();
    if !who.owner && standing != PROVEN.as_bytes() {
        who.proof = Proof::None;
    }
    who.read_only |= words.any(|word| word == READ_ONLY.as_bytes());
}

/// The name by which a request from a mux walks from a root to the same root. The number of muxes that the request has
/// passed follows. No listing shows it.
pub(crate) const HOPS: &str = "#hops=";
/// Maximum number of muxes that a request may pass. A walk in a loop of mounts ends here.
pub const HOPS_MAX: u8 = 8;
/// Maximum memory for requests to an upstream and their replies, in bytes. It holds eight messages of maximum size, so
/// that one client's quarter holds two.
pub const BUDGET: usize = 8 * ((1 << 20) + 1024);
/// Timeout for a first contact: the connection and Tversion, or the attach.
pub const GREETING: Duration = Duration::from_secs(10);
/// Maximum number of equal servers besides the first.
pub const OTHERS_MAX: u32 = 15;
/// Maximum pause between two dials of a server that refuses us.
pub const REFUSED_MAX: Duration = Duration::from_secs(60);
/// Time after a failed dial during which an upstream is not dialled again.
pub const RETRY: Duration = Duration::from_secs(1);
