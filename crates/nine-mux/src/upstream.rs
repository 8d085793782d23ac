//! Upstreams: servers that a mux is a client of, by one connection each, or as many as their mount allows.
//!
//! An [`Upstream`] is an address. A [`Lane`] of it is one connection: one session, one fid space; it is dialled when it
//! is first needed, and again when it is needed after it has died. A [`Tree`] is what one aname of it shows. A [`Root`]
//! is a fid for the root of a tree, on one lane, of one user; it is attached when it is first needed.
//!
//! Always holds: nobody waits for an upstream but those who need it. One that cannot be dialled is not tried again for
//! [`RETRY`]; meanwhile whoever needs it is told why at once.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::lock::{Mutex as AsyncMutex, OwnedMutexGuard};
use nine_io::client::{Client, Driver, Error, File, Meter, Options};
use nine_io::limits::FairLimit;
use nine_io::server::Who;
use nine_net::lock::{Mutex, lock};
use nine_net::modules::TraceLog;
use nine_net::{Proof, Transport};
use nine_proto::{Errno, NOUID, Qid};

use crate::ahead::Files;
use crate::core::{Core, refused};
use crate::fids::UPSTREAM_FIDS_MAX;
use crate::keep::{Keeping, Moves, Wait, is_passing, pulse};
use crate::outside::{Outside, Place};
use crate::pushed::{self, Words};
use crate::qid::{Map, Qids};
use crate::space::TreeId;
use crate::unsynced::UnsyncedChanges;

/// A future of a library's user.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How an upstream is reached: called for every connection, so that its address is resolved anew each time.
pub trait Dial: Send + Sync + 'static {
    /// A connection, within 20 s. What must live beside it can be spawned.
    fn dial(&self, spawn: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>>;

    /// Whether mount points that are missing may be made there.
    fn is_scratch(&self) -> bool {
        false
    }

    /// Whether it is told by the aname, which is the mux' own then, what stands behind a client's name: see [`told`].
    fn is_told(&self) -> bool {
        false
    }
}

/// Where tasks are spawned: on the core of the connection that they are for.
pub trait Spawn {
    /// Has a task spawned.
    fn spawn(&self, task: Boxed<()>);
}

/// As whom an upstream is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum As {
    /// Every client of the mux is this user.
    User {
        /// Its name; empty where the upstream knows from elsewhere.
        name: Box<str>,
        /// Its number.
        uid: Option<u32>,
    },
    /// Each client as itself, each with a root of its own.
    Client,
}

/// What is known of an upstream before it is dialled.
#[derive(Clone)]
pub struct Server {
    /// What it is called in messages: its address.
    pub name: Arc<str>,
    /// How it is reached.
    pub dial: Arc<dyn Dial>,
    /// Servers of the same content, at most [`OTHERS_MAX`]: the next one is tried when one cannot be reached.
    pub others: Vec<Arc<dyn Dial>>,
    /// How it is spoken to. One call more than `calls` waits.
    pub options: Options,
    /// As whom the files of its connections are attached: name and number ([`Client::change`]).
    pub user: (Box<str>, u32),
    /// Connections at most: one client of the mux keeps to one of them.
    pub lanes: u16,
    /// Fids that the clients of the mux hold on one of them, at most: [`UPSTREAM_FIDS_MAX`], or fewer.
    pub fids: usize,
    /// It is in this process, and no mux.
    pub local: bool,
    /// Regular files that are read serially are read ahead.
    pub ahead: bool,
    /// Requests wait for it while it is away, and fids come back with it; else they fail.
    pub wait: Option<Wait>,
    /// What is pushed on its connections when nobody has said anything else before it is mounted.
    pub pushed: Vec<String>,
    /// What the module `trace` has seen on its connections.
    pub trace: TraceLog,
}

/// Whoever has it goes on.
type Turn = AsyncMutex<()>;

pub(crate) struct Upstream {
    pub(crate) id: u32,
    pub(crate) server: Server,
    /// One for each of the equal servers: their qids have nothing in common.
    maps: Box<[Map]>,
    /// What is pushed on its connections.
    pub(crate) pushed: Words,
    qids: Arc<Qids>,
    core: Weak<Core>,
    /// Lanes at most, of all that have mounted it.
    pub(crate) most: AtomicU16,
    lanes: Mutex<HashMap<LaneKey, Arc<Lane>>>,
    /// Whether it is a mux like this one, once it is known.
    is_mux: OnceLock<bool>,
    pub(crate) dials: AtomicU32,
    /// What is read ahead.
    pub(crate) ahead: Files,
    /// It has not answered in time, and not since: listings do not wait for it.
    silent: AtomicBool,
    /// Somebody sees whether it answers again.
    pub(crate) is_looked_at: AtomicBool,
    /// Changes that it may lose with its connections.
    pub(crate) unsynced: UnsyncedChanges,
    /// Whoever writes to the end of a file where no open can ask for that: one after the other, by the path of its qid.
    appends: Mutex<HashMap<(u16, u64), Weak<Turn>>>,
}

/// A loop of muxes uses connections of their own for each time round, so that no request waits for what it holds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LaneKey {
    pub(crate) hops: u8,
    pub(crate) index: u16,
}

pub(crate) struct Lane {
    pub(crate) key: LaneKey,
    upstream: Weak<Upstream>,
    state: AsyncMutex<Connection>,
    /// The live client, to be looked at without waiting.
    now: arc_swap::ArcSwapOption<Client>,
    /// Round-trip time of what was asked last by [`Root`]s, microseconds; 0: not known.
    pub(crate) rtt_us: AtomicU64,
    /// What comes back with it, and who waits for that.
    pub(crate) keeping: Keeping,
    /// Of fids that clients hold on it.
    pub(crate) fids: Arc<FairLimit>,
}

#[derive(Default)]
struct Connection {
    client: Option<Arc<Client>>,
    /// Which of the equal servers it is, or was.
    member: u16,
    /// When it was dialled.
    since: Duration,
    /// Why it could not be dialled, and until when that counts.
    failed: Option<(Duration, Error)>,
    /// The last pause after a refusal.
    pause: Duration,
    /// Who reads the log knows that.
    told: bool,
}

/// One aname of an upstream, as one user or each.
pub(crate) struct Tree {
    pub(crate) id: TreeId,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) aname: Box<str>,
    /// Everybody, or `None`: each client as itself.
    pub(crate) user: Option<Arc<Ident>>,
    pub(crate) core: Weak<Core>,
    /// Its files are read ahead.
    pub(crate) ahead: bool,
    /// Its fids come back with its server; requests wait so long.
    pub(crate) wait: Option<Wait>,
    /// Where its files have been moved to.
    pub(crate) moves: Moves,
    /// Nobody would let go of another root: whoever still needs one has it alone.
    pub(crate) unmounted: AtomicBool,
}

/// A user, and the roots that it has. Shared by the user's clients; when the last of its fids goes, so do its roots.
pub(crate) struct Ident {
    pub(crate) name: Box<str>,
    pub(crate) uid: Option<u32>,
    pub(crate) standing: Standing,
    /// May change nothing.
    pub(crate) read_only: bool,
    roots: Mutex<HashMap<(TreeId, LaneKey), RootPlace>>,
}

/// A root, or the place for one: whoever attaches it holds the lock.
type RootPlace = Arc<AsyncMutex<RootState>>;

#[derive(Default)]
struct RootState {
    root: Option<Arc<Root>>,
    /// The server did not answer the attach, and until when that counts.
    failed: Option<(Duration, Error)>,
}

pub(crate) struct Root {
    pub(crate) tree: Arc<Tree>,
    pub(crate) lane: Arc<Lane>,
    /// Which of the equal servers.
    pub(crate) member: u16,
    pub(crate) client: Arc<Client>,
    pub(crate) file: Arc<File>,
}

impl Server {
    /// A server of another process or machine, one connection of it; `name` is what messages call it.
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

    /// How upstreams are spoken to. One client of the mux can have a quarter of what is under way at a server, and who
    /// comes next may wait for all of it: so it is less here than for a client alone.
    pub fn options() -> Options {
        Options { budget: BUDGET, ..Options::default() }
    }
}

impl Upstream {
    pub(crate) fn new(id: u32, mut server: Server, pushed: Words, qids: Arc<Qids>, core: Weak<Core>) -> Self {
        let (is_mux, most) = (OnceLock::new(), server.lanes);
        if server.local {
            is_mux.get_or_init(|| false);
        }
        if let (None, Some(clock)) = (&server.options.meter, &server.options.clock) {
            server.options.meter = Some(Arc::new(Meter::new(clock.clone())));
        }
        Self {
            id,
            maps: (0..=server.others.len() as u32).map(|n| Map::new(id * (OTHERS_MAX + 1) + n)).collect(),
            server,
            pushed,
            qids,
            core,
            most: AtomicU16::new(most),
            lanes: Mutex::default(),
            is_mux,
            dials: AtomicU32::new(0),
            ahead: Files::default(),
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

    /// The lane for requests that have come over so many muxes, of the clients of this number.
    pub(crate) fn lane(self: &Arc<Self>, hops: u8, client: u64) -> Arc<Lane> {
        let hops = if self.is_mux.get() == Some(&false) { 0 } else { hops };
        let index = (client % u64::from(self.most.load(Ordering::Relaxed).max(1))) as u16;
        let key = LaneKey { hops, index };
        lock(&self.lanes).entry(key).or_insert_with(|| Arc::new(Lane::new(key, self))).clone()
    }

    pub(crate) fn lanes(&self) -> Vec<Arc<Lane>> {
        let mut lanes: Vec<_> = lock(&self.lanes).values().cloned().collect();
        lanes.sort_by_key(|lane| (lane.key.hops, lane.key.index));
        lanes
    }

    /// Whose turn it is to write to the end of this file.
    pub(crate) fn appends(&self, root: &Root, raw: Qid) -> Arc<Turn> {
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

    /// Ends every connection: what waits for an answer learns `reason`.
    pub(crate) fn abort(&self, reason: &str) {
        for client in self.lanes().iter().filter_map(|lane| lane.client()) {
            client.abort(io::Error::new(io::ErrorKind::ConnectionAborted, reason));
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.maps.iter().for_each(|map| self.qids.give_back(map));
    }
}

impl Lane {
    fn new(key: LaneKey, upstream: &Arc<Upstream>) -> Self {
        Self {
            key,
            upstream: Arc::downgrade(upstream),
            state: AsyncMutex::default(),
            now: arc_swap::ArcSwapOption::empty(),
            rtt_us: AtomicU64::new(0),
            keeping: Keeping::default(),
            fids: FairLimit::new(upstream.server.fids),
        }
    }

    /// Its server, unless that is used no more.
    pub(crate) fn upstream(&self) -> Option<Arc<Upstream>> {
        self.upstream.upgrade()
    }

    /// The client, if there is a live one now.
    pub(crate) fn client(&self) -> Option<Arc<Client>> {
        self.now.load_full().filter(|client| client.dead().is_none())
    }

    /// The client, dialled if need be, and which of the equal servers it is.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        upstream: &Arc<Upstream>,
        outside: &Arc<Outside>,
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
            // Whoever accepts and hangs up at once is not asked without end.
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
                    // Before the new connection is in use: a sync over it must see the loss.
                    if self.keeping.is_back(client.peer()) {
                        upstream.unsynced.reconnected(member != first);
                    }
                    self.now.store(Some(client.clone()));
                    (state.client, state.member) = (Some(client.clone()), member);
                    (state.failed, state.told, state.pause) = (None, false, Duration::ZERO);
                    return Ok((client, member));
                }
                Err(error) => failed = Some(error),
            }
        }
        let error = failed.expect("there is a server to be tried");
        // The first time whoever mounts it is told, and from then on whoever walks there.
        if !std::mem::replace(&mut state.told, true) && upstream.dials.load(Ordering::Relaxed) > 1 {
            tracing::warn!(upstream = %upstream.server.name, "not reached: {error}");
        }
        // A server that is away may be back soon. One that refuses us is tried with growing pauses.
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

impl Upstream {
    /// A new connection to one of the equal servers.
    async fn reach(self: Arc<Self>, member: u16, place: Place) -> Result<Reached, Error> {
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
        let greeted = outside.within(rest, Client::connect(transport, options.clone())).await;
        let (client, mut driver) = greeted.ok_or_else(|| late("connected, but no answer within 10 s"))??;
        let pushed = pushed::begin(&self, outside, &client, &mut driver).await?;
        Ok((client, driver, pushed))
    }
}

/// Whether a server is there and lets nobody in as we come: waiting does not change that.
pub(crate) fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Transport { error, .. } | Error::Unsent { error, .. } => {
            error.kind() == io::ErrorKind::PermissionDenied
        }
        error => matches!(error, Error::Version { .. } | Error::Remote(_)),
    }
}

/// A new connection, who moves its bytes, and the modules that it has.
type Reached = (Client, Driver, OwnedMutexGuard<Vec<String>>);

/// Moves the bytes of a connection until it ends.
async fn drive(lane: Weak<Lane>, name: Arc<str>, driver: Driver) {
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

/// What stands behind a user's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Standing {
    /// Nothing.
    Claimed,
    /// The kernel, or a certificate; or it is ourselves.
    Proven,
    /// It is the owner of this mux, and has proven it here.
    Owner,
}

impl Standing {
    pub(crate) fn of(who: &nine_io::server::Who) -> Self {
        match (who.owner, who.proof.is_identity()) {
            (true, _) => Self::Owner,
            (false, true) => Self::Proven,
            (false, false) => Self::Claimed,
        }
    }

    /// As the aname of a server that is told.
    fn told(self, read_only: bool) -> String {
        let standing = match self {
            Self::Owner => OWNER,
            Self::Proven => PROVEN,
            Self::Claimed => CLAIMED,
        };
        if read_only { format!("{standing} {READ_ONLY}") } else { standing.into() }
    }
}

impl Ident {
    pub(crate) fn new(name: &str, uid: Option<u32>) -> Self {
        Self { name: name.into(), uid, standing: Standing::Proven, read_only: false, roots: Mutex::default() }
    }

    /// Its root of a tree on the lane for clients of this number, whose requests have come over so many muxes.
    pub(crate) async fn root(
        &self,
        tree: &Arc<Tree>,
        hops: u8,
        client: u64,
        outside: &Arc<Outside>,
    ) -> Result<Arc<Root>, Error> {
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
        let root = Arc::new(Root::new(tree, &lane, (client, member), file?));
        *place = RootState { root: Some(root.clone()), failed: None };
        tree.upstream.set_silent(false);
        Ok(root)
    }

    async fn attach(
        &self,
        tree: &Tree,
        lane: &Lane,
        client: &Client,
        hops: u8,
        outside: &Outside,
    ) -> Result<File, Error> {
        let begun = outside.now().await;
        // Where a mount has an aname, that tells of everybody but the owner.
        let tells = self.standing == Standing::Owner || tree.aname.is_empty();
        let told = tree.upstream.server.dial.is_told() && tells;
        let told = match told {
            true => Some(self.standing.told(self.read_only)),
            // No aname gives a client back what its door took away.
            false if tree.upstream.server.dial.is_told() && self.read_only => {
                Some(format!("{} {READ_ONLY}", tree.aname))
            }
            false => None,
        };
        let aname = told.as_deref().unwrap_or(&tree.aname);
        let file = client.attach(&self.name, self.uid.unwrap_or(NOUID), aname).await?;
        let took = outside.now().await.saturating_sub(begun).as_micros();
        lane.rtt_us.store(u64::try_from(took).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        hop(&tree.upstream, file, hops + 1).await
    }

    /// Gives it a root that it has been attached to already.
    pub(crate) fn admit(&self, tree: &Arc<Tree>, lane: &Arc<Lane>, client: (Arc<Client>, u16), file: File) {
        let root = Root::new(tree, lane, client, file);
        let state = RootState { root: Some(Arc::new(root)), failed: None };
        lock(&self.roots).insert((tree.id, lane.key), Arc::new(AsyncMutex::new(state)));
    }

    /// Forgets the roots of a tree that is mounted no more.
    pub(crate) fn forget(&self, tree: TreeId) {
        lock(&self.roots).retain(|(of, _), _| *of != tree);
    }
}

/// Tells a server that is a mux like this one over how many of them this root's requests come: see [`HOPS_MAX`].
/// Others know no such name.
async fn hop(upstream: &Upstream, root: File, hops: u8) -> Result<File, Error> {
    if upstream.is_mux.get() == Some(&false) {
        return Ok(root);
    }
    match root.walk(format!("{HOPS}{hops}")).await {
        // There are servers to whom every name is a file.
        Ok(again) if (again.qid().path, again.qid().ty) == (root.qid().path, root.qid().ty) => {
            upstream.is_mux.get_or_init(|| true);
            Ok(again)
        }
        // These say nothing about the name.
        Err(error) if error.is_disconnect() || is_passing(error.errno()) => Err(error),
        Err(error) if error.errno() == Errno::ELOOP => {
            Err(refused(Errno::ELOOP, "the mounts lead round in a loop"))
        }
        // Whatever words a server has for a name that it does not have.
        _ => {
            upstream.is_mux.get_or_init(|| false);
            Ok(root)
        }
    }
}

impl Root {
    fn new(tree: &Arc<Tree>, lane: &Arc<Lane>, (client, member): (Arc<Client>, u16), file: File) -> Self {
        if tree.wait.is_some()
            && lane.keeping.begin()
            && let Some(core) = tree.core.upgrade()
        {
            let pulse = pulse(core.outside.clone(), Arc::downgrade(lane));
            core.jobs.begin(None, Box::pin(pulse));
        }
        Self { tree: tree.clone(), lane: lane.clone(), member, client, file: Arc::new(file) }
    }

    /// The map of its server's qids.
    pub(crate) fn map(&self) -> &Map {
        &self.tree.upstream.maps[usize::from(self.member)]
    }

    pub(crate) fn qid(&self) -> Qid {
        self.file.qid()
    }
}

/// What stands behind a user's name, as the first word of the aname with which he comes to a server that
/// [is told](Dial::is_told); and a second word.
const OWNER: &str = "owner";
const PROVEN: &str = "proven";
const CLAIMED: &str = "claimed";
const READ_ONLY: &str = "read-only";

/// Whether this is the aname of an owner, at a server that [is told](Dial::is_told).
pub fn is_owner(aname: &[u8]) -> bool {
    aname.split(|byte| *byte == b' ').next() == Some(OWNER.as_bytes())
}

/// What a server that [is told](Dial::is_told) knows of who comes by this aname: the mux' own connection proves nothing
/// of its clients.
pub fn told(who: &mut Who, aname: &[u8]) {
    let mut words = aname.split(|byte| *byte == b' ');
    let standing = words.next().unwrap_or_default();
    who.owner = standing == OWNER.as_bytes();
    if !who.owner && standing != PROVEN.as_bytes() {
        who.proof = Proof::None;
    }
    who.read_only |= words.any(|word| word == READ_ONLY.as_bytes());
}

/// The name that leads from a mux's root to the same root, for requests that have come over so many muxes. No listing
/// shows it.
pub(crate) const HOPS: &str = "#hops=";
/// Muxes that a request may come over: in a loop of mounts, a walk ends here.
pub const HOPS_MAX: u8 = 8;
/// Bytes that requests to an upstream and their answers may need together: eight of the largest, so that the quarter of
/// one client is two of them.
pub const BUDGET: usize = 8 * ((1 << 20) + 1024);
/// Time for a first contact: the connection and Tversion, or the attach.
pub const GREETING: Duration = Duration::from_secs(10);
/// Servers of the same content beside the first.
pub const OTHERS_MAX: u32 = 15;
/// The longest pause between two tries of a server that refuses us.
pub const REFUSED_MAX: Duration = Duration::from_secs(60);
/// For how long an upstream that cannot be reached is not tried again.
pub const RETRY: Duration = Duration::from_secs(1);
