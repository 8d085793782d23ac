//! Reconnection: restores the fids of servers that are mounted with `-r`.
//!
//! In: fids of such a mount, which register with their [`UpstreamConnection`]; connections that end; requests that were
//! in flight or come meanwhile. Out: the same fids on a new connection, walked to and opened again, or an error for
//! each fid that cannot be restored. Requests are repeated if that is safe.
//!
//! A connection has one reconnect task while there is something to restore. It dials at most once a second, and then
//! *replays* the fids, [`REPLAY`] at a time. A request does not wait for the replay: it restores its own fid first.
//! After an interruption the replay continues with the next fid, so that each fid is reached however often that
//! happens.
//!
//! Always holds: a restored fid refers to the same file as before, by its qid, or requests on it fail with ESTALE. The
//! qids of an equal server are unrelated; there only fids without state on the old server are restored. A request that
//! may have taken effect is not repeated. A server that is away costs at most one dial a second, however many requests
//! wait.

use std::collections::{HashMap, VecDeque};
use std::future::{pending, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::lock::Mutex as AsyncMutex;
use futures_util::stream::{self, StreamExt};
use nine_io::client::{Client, Error, heed};
use nine_io::server::{Later, Reply};
use nine_net::lock::{Mutex, lock};
use nine_proto::{Attr, Errno, GetMask, LockRequest, LockStatus, LockType, Op, OpenFlags, Qid, Time};

use crate::cfid::{ClientFid, OpenFidKind, UpstreamFid};
use crate::core::{ABSENT, MuxCore, refused};
use crate::outside::OutsideTasks;
use crate::serve::RequestRoute;
use crate::space::TreePath;
use crate::upstream::{REFUSED_MAX, TreeRoot, UpstreamConnection, UpstreamTree, is_refusal};
use crate::walk::steps;

/// Time that a request waits for a server that is away and mounted with `-r`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until the server is back.
    Ever,
    /// This long for each outage. Zero means one attempt to reach the server.
    AtMost(Duration),
}

/// The state of a reconnectable fid.
pub(crate) struct ReconnectableFid {
    lane: Arc<UpstreamConnection>,
    /// Its index in the connection's table.
    slot: OnceLock<usize>,
    /// The upstream's fid that represents it since its first connection ended.
    now: ArcSwapOption<UpstreamFid>,
    /// Held by the task or request that restores it.
    busy: AsyncMutex<()>,
    /// The connection on which it cannot be restored, and the error.
    verdict: Mutex<Option<(Weak<Client>, Error)>>,
    /// Number of moves in its tree before it was created.
    since: u64,
    /// Its place after a number of moves, and that number.
    place: Mutex<(TreePath, u64)>,
    marks: AtomicU8,
    /// The number of loss reports that its Tfsyncs need not repeat: see [`UnsyncedChanges`](crate::unsynced).
    pub(crate) reports_seen: AtomicU64,
    /// The attributes at its open, if there are equal servers.
    seen: OnceLock<AgreedAttributes>,
    /// The file's birth time, if its server has reported it (9P2000.L).
    birth: OnceLock<Time>,
}

/// The fid holds locks, or may hold them.
pub(crate) const LOCKED: u8 = 1;
/// A client has listed the directory.
pub(crate) const LISTED: u8 = 2;

/// The attributes in which equal servers must agree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AgreedAttributes {
    length: u64,
    mtime: Time,
    vers: u32,
}

impl AgreedAttributes {
    fn of(attr: &Attr) -> Self {
        Self { length: attr.size, mtime: attr.mtime, vers: attr.qid.vers }
    }
}

impl ReconnectableFid {
    /// Creates the state for a new fid of this root, if its mount reconnects.
    pub(crate) fn of(root: &TreeRoot, place: TreePath) -> Option<Box<Self>> {
        root.tree.wait?;
        let since = root.tree.moves.end();
        Some(Box::new(Self {
            lane: root.lane.clone(),
            slot: OnceLock::new(),
            now: ArcSwapOption::empty(),
            busy: AsyncMutex::default(),
            verdict: Mutex::default(),
            since,
            place: Mutex::new((place, since)),
            marks: AtomicU8::new(0),
            reports_seen: AtomicU64::new(root.tree.upstream.unsynced.reported()),
            seen: OnceLock::new(),
            birth: OnceLock::new(),
        }))
    }

    /// Returns the present place.
    pub(crate) fn place(&self, tree: &UpstreamTree) -> TreePath {
        let mut place = lock(&self.place);
        let (at, since) = &mut *place;
        (*since, *at) = tree.moves.now(at, *since);
        at.clone()
    }

    /// Returns the present place of a file that was at `place` when this fid was created.
    pub(crate) fn moved(&self, tree: &UpstreamTree, place: &TreePath) -> TreePath {
        tree.moves.now(place, self.since).1
    }

    pub(crate) fn now(&self) -> Option<Arc<UpstreamFid>> {
        self.now.load_full()
    }

    /// Registers the fid for restoration.
    pub(crate) fn register(&self, cfid: &Arc<ClientFid>) {
        self.slot.get_or_init(|| self.lane.keeping.enter(Arc::downgrade(cfid)));
    }

    pub(crate) fn mark(&self, mark: u8) {
        self.marks.fetch_or(mark, Ordering::Relaxed);
    }

    fn unmark(&self, mark: u8) {
        self.marks.fetch_and(!mark, Ordering::Relaxed);
    }

    fn is(&self, mark: u8) -> bool {
        self.marks.load(Ordering::Relaxed) & mark != 0
    }

    /// Notes that a lock was taken, or that all locks were released.
    pub(crate) fn locked(&self, lock: &LockRequest<'_>, status: LockStatus) {
        if status == LockStatus::Success {
            match lock.ty {
                LockType::Unlock if lock.start == 0 && lock.length == 0 => self.unmark(LOCKED),
                LockType::Unlock => {}
                _ => self.mark(LOCKED),
            }
        }
    }

    pub(crate) fn see(&self, attr: &Attr) {
        self.seen.get_or_init(|| AgreedAttributes::of(attr));
    }

    /// Stores the birth time, if these attributes have one.
    pub(crate) fn see_birth(&self, attr: &Attr) {
        if attr.valid.has(GetMask::BTIME) {
            self.birth.get_or_init(|| attr.btime);
        }
    }

    /// Copies the birth time from another fid for the same file.
    pub(crate) fn same_birth(&self, of: &Self) {
        if let Some(&birth) = of.birth.get() {
            self.birth.get_or_init(|| birth);
        }
    }
}

impl Drop for ReconnectableFid {
    fn drop(&mut self) {
        self.slot.get().into_iter().for_each(|&slot| self.lane.keeping.leave(slot));
    }
}

/// The latest [`MOVES_MAX`] renames of a tree's files, so that older fids find their files.
#[derive(Default)]
pub(crate) struct RenameLog {
    /// Number of moves so far.
    end: AtomicU64,
    log: Mutex<VecDeque<(TreePath, TreePath)>>,
}

impl RenameLog {
    /// Appends renames. No reader sees a part of them.
    pub(crate) fn push(&self, renames: &[(&TreePath, &TreePath)]) {
        let mut log = lock(&self.log);
        for &(old, new) in renames {
            if log.len() == MOVES_MAX {
                log.pop_front();
            }
            log.push_back((old.clone(), new.clone()));
        }
        self.end.fetch_add(renames.len() as u64, Ordering::SeqCst);
    }

    fn end(&self) -> u64 {
        self.end.load(Ordering::SeqCst)
    }

    /// Returns the number of moves so far, and the present place of a file that was at `place` after `since` moves.
    fn now(&self, place: &TreePath, since: u64) -> (u64, TreePath) {
        if since == self.end() {
            return (since, place.clone());
        }
        let log = lock(&self.log);
        let end = self.end();
        let mut now = place.clone();
        for (old, new) in log.iter().skip(log.len().saturating_sub((end - since) as usize)) {
            if now.is_within(old) {
                now = now.moved(old, new);
            }
        }
        (end, now)
    }
}

/// The fids to restore on a connection, and the requests that wait for it.
#[derive(Default)]
pub(crate) struct FidRegistry {
    on: AtomicBool,
    state: Mutex<RegistryState>,
}

#[derive(Default)]
struct RegistryState {
    /// The registered fids. Their number is bounded by the clients' fids.
    slots: Vec<Option<Weak<ClientFid>>>,
    free: Vec<usize>,
    /// The next slot for the replay.
    at: usize,
    /// The waiting requests, by number, and their wakers.
    waiting: HashMap<u64, Option<Waker>>,
    waited: u64,
    /// The error of the last dial, and the time until which no other is made.
    failed: Option<(Error, Duration)>,
    mending: bool,
    /// Whether the reconnect task has not failed yet.
    trying: bool,
    /// The server's address of the latest client. The errors of that client share it.
    peer: Option<Arc<str>>,
}

impl FidRegistry {
    /// Marks the connection as reconnectable. Returns false if it was before.
    pub(crate) fn begin(&self) -> bool {
        !self.on.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(crate) fn failed(&self, error: &Error, until: Duration) {
        let is_news = {
            let mut state = lock(&self.state);
            let is_news = state.failed.is_none() || state.trying || is_refusal(error);
            (state.failed, state.trying) = (Some((error.clone(), until)), false);
            is_news
        };
        if is_news {
            self.wake();
        }
    }

    /// Notes that the connection is established. Returns whether there was an earlier one.
    pub(crate) fn is_back(&self, peer: &Arc<str>) -> bool {
        let is_again = {
            let mut state = lock(&self.state);
            (state.failed, state.trying) = (None, false);
            state.peer.replace(peer.clone()).is_some()
        };
        self.wake();
        is_again
    }

    /// Returns the number of fids, the number of waiting requests, and the error if the server is away.
    pub(crate) fn seen(&self) -> (usize, usize, Option<String>) {
        let state = lock(&self.state);
        let away = state.failed.as_ref().map(|(error, _)| error.to_string());
        (state.slots.len() - state.free.len(), state.waiting.len(), away)
    }

    /// Wakes the waiting requests to check again.
    pub(crate) fn wake(&self) {
        let wakers: Vec<_> = lock(&self.state).waiting.values_mut().filter_map(Option::take).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether an error with this address comes from the latest connection.
    fn was(&self, peer: &Arc<str>) -> bool {
        lock(&self.state).peer.as_ref().is_some_and(|latest| Arc::ptr_eq(latest, peer))
    }

    fn enter(&self, cfid: Weak<ClientFid>) -> usize {
        let mut state = lock(&self.state);
        match state.free.pop() {
            Some(slot) => {
                state.slots[slot] = Some(cfid);
                slot
            }
            None => {
                state.slots.push(Some(cfid));
                state.slots.len() - 1
            }
        }
    }

    fn leave(&self, slot: usize) {
        let mut state = lock(&self.state);
        state.slots[slot] = None;
        state.free.push(slot);
        if state.free.len() == state.slots.len() {
            (state.slots, state.free) = (Vec::new(), Vec::new());
        }
    }

    /// Returns the next fid of the replay.
    fn next(&self) -> Option<Arc<ClientFid>> {
        let mut state = lock(&self.state);
        let slot = state.at.checked_rem(state.slots.len())?;
        state.at = slot + 1;
        state.slots[slot].as_ref()?.upgrade()
    }

    fn len(&self) -> usize {
        lock(&self.state).slots.len()
    }

    /// Whether there is a reason to reconnect. If not, the reconnect task must stop.
    fn is_needed(&self) -> bool {
        let mut state = lock(&self.state);
        let is_needed = !state.waiting.is_empty() || state.slots.len() > state.free.len();
        state.mending &= is_needed;
        is_needed
    }

    /// Whether the caller must start the reconnect task.
    fn start(&self) -> bool {
        let mut state = lock(&self.state);
        let is_new = !std::mem::replace(&mut state.mending, true);
        state.trying |= is_new;
        is_new
    }

    /// Returns the error for requests that would wait in vain because the server refuses us.
    fn refusal(&self) -> Option<Error> {
        let known = lock(&self.state).failed.clone();
        let (error, _) = known.filter(|(error, _)| is_refusal(error))?;
        Some(refused(Errno::EACCES, &error.to_string()))
    }

    fn is_trying(&self) -> bool {
        let state = lock(&self.state);
        state.trying || (state.mending && state.failed.is_none())
    }

    fn stop(&self) {
        lock(&self.state).mending = false;
    }

    /// Returns the error for a request whose wait was in vain. Its number is one of an absent server, never one that a
    /// file could have: the address of a socket that does not exist is no missing file.
    fn reason(&self, limit: Duration) -> Error {
        let known = lock(&self.state).failed.clone();
        let (errno, text) = known.map_or_else(
            || (Errno::ETIMEDOUT, "the server is not there".into()),
            |(error, _)| (error.errno(), error.to_string()),
        );
        let errno = if ABSENT.contains(&errno) { errno } else { Errno::ETIMEDOUT };
        match limit.as_secs() {
            0 => refused(errno, &text),
            waited => refused(errno, &format!("{text}; waited for {waited} s")),
        }
    }
}

/// A request that waits for a connection.
struct ConnectionWait<'k> {
    keeping: &'k FidRegistry,
    number: u64,
}

impl<'k> ConnectionWait<'k> {
    fn new(keeping: &'k FidRegistry) -> Self {
        let mut state = lock(&keeping.state);
        state.waited += 1;
        let number = state.waited;
        state.waiting.insert(number, None);
        Self { keeping, number }
    }

    /// Checks after the waker is stored: the connection may have just been established.
    fn poll<T>(&self, cx: &mut Context<'_>, look: impl FnOnce() -> Option<T>) -> Poll<T> {
        lock(&self.keeping.state).waiting.insert(self.number, Some(cx.waker().clone()));
        look().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for ConnectionWait<'_> {
    fn drop(&mut self) {
        lock(&self.keeping.state).waiting.remove(&self.number);
    }
}

/// The deadline for waiting for servers that are away. Set when the first wait starts.
#[derive(Default)]
pub(crate) struct WaitDeadline(Option<Duration>);

impl MuxCore {
    /// Handles the end of a connection.
    pub(crate) fn lost(&self, lane: &Arc<UpstreamConnection>) {
        if lane.keeping.is_on() && lane.keeping.is_needed() {
            self.mend(lane);
        }
    }

    /// Waits for the connection of a tree, as long as its mount requests.
    pub(crate) async fn wait_for(
        &self,
        tree: &UpstreamTree,
        lane: &Arc<UpstreamConnection>,
        wait: Wait,
        patience: &mut WaitDeadline,
    ) -> Result<(), Error> {
        if lane.client().is_some() {
            return Ok(());
        }
        let waits = ConnectionWait::new(&lane.keeping);
        self.mend(lane);
        let look = || match lane.client() {
            Some(_) => Some(Ok(())),
            None if tree.unmounted.load(Ordering::SeqCst) => {
                Some(Err(refused(Errno::ESTALE, "the server is not there, and was unmounted")))
            }
            None => lane.keeping.refusal().map(Err),
        };
        let back = poll_fn(|cx| waits.poll(cx, look));
        match wait {
            Wait::Ever => heed(back).await?,
            Wait::AtMost(Duration::ZERO) => {
                let mut back = pin!(back);
                let tried = poll_fn(|cx| match back.as_mut().poll(cx) {
                    Poll::Pending if !lane.keeping.is_trying() => Poll::Ready(None),
                    poll => poll.map(Some),
                });
                heed(tried).await?.unwrap_or_else(|| Err(lane.keeping.reason(Duration::ZERO)))
            }
            Wait::AtMost(limit) => {
                let now = heed(self.outside.now()).await?;
                let rest = patience.0.get_or_insert(now + limit).saturating_sub(now);
                let back = heed(self.outside.within(rest, back)).await?;
                back.unwrap_or_else(|| Err(lane.keeping.reason(limit)))
            }
        }
    }

    fn mend(&self, lane: &Arc<UpstreamConnection>) {
        if lane.keeping.start() {
            let mender = mender(self.me.clone(), self.outside.clone(), Arc::downgrade(lane));
            self.jobs.begin(None, Box::pin(mender));
        }
    }

    /// Makes one attempt to reconnect and restore all fids. Returns the pause before the next attempt, or `None` if
    /// none is needed.
    async fn bring_back(&self, lane: &Arc<UpstreamConnection>) -> Option<Duration> {
        let upstream = lane.upstream().filter(|_| lane.keeping.is_needed())?;
        let Ok((client, _)) = lane.connect(&upstream, &self.outside).await else {
            let until = lock(&lane.keeping.state).failed.as_ref().map(|(_, until)| *until);
            let rest = until.unwrap_or_default().saturating_sub(self.outside.now().await);
            return Some(rest.clamp(SHORT, REFUSED_MAX));
        };
        self.replay(lane, &client).await;
        lane.keeping.stop();
        // The connection may have ended before `stop`, and then no other task reconnects.
        (client.dead().is_some() && lane.keeping.start()).then_some(Duration::ZERO)
    }

    /// Restores the fids of a connection, as long as the new connection lasts.
    async fn replay(&self, lane: &Arc<UpstreamConnection>, client: &Client) {
        let (back, gone) = (AtomicUsize::new(0), AtomicUsize::new(0));
        stream::iter(0..lane.keeping.len())
            .for_each_concurrent(REPLAY, async |_| {
                let next = || lane.keeping.next();
                let Some(cfid) = client.dead().is_none().then(next).flatten() else { return };
                let counted = match self.revive(&cfid, None).await {
                    Ok(()) => &back,
                    Err(error) if error.is_disconnect() => return,
                    Err(_) => &gone,
                };
                counted.fetch_add(1, Ordering::Relaxed);
            })
            .await;
        let (back, gone) = (back.into_inner(), gone.into_inner());
        tracing::info!(upstream = %client.peer(), files = back, lost = gone, "its files are back");
    }

    /// Restores a fid after its connection has ended. With `patience` it waits for the server, and for another task
    /// that restores the same fid.
    pub(crate) async fn revive(
        &self,
        cfid: &ClientFid,
        patience: Option<&mut WaitDeadline>,
    ) -> Result<(), Error> {
        let Some(kept) = &cfid.kept else { return Ok(()) };
        let old = cfid.live();
        let (tree, is_dead) = (old.root.tree.clone(), old.root.client.dead().is_some());
        drop(old);
        if !is_dead {
            return Ok(());
        }
        let _one = match (patience, tree.wait) {
            (Some(patience), Some(wait)) => {
                // Wait before taking `busy`: other requests have their own deadlines, and the reconnect task must not
                // wait.
                let lane = tree.upstream.lane(cfid.by.hops, cfid.by.client);
                self.wait_for(&tree, &lane, wait, patience).await?;
                heed(kept.busy.lock()).await?
            }
            _ => match kept.busy.try_lock() {
                Some(one) => one,
                None => return Ok(()),
            },
        };
        let old = cfid.live();
        if old.root.client.dead().is_none() {
            return Ok(());
        }
        let root = self.root(&cfid.by, tree.id, None).await?;
        if let Some((of, error)) = &*lock(&kept.verdict)
            && of.as_ptr() == Arc::as_ptr(&root.client)
        {
            return Err(error.clone());
        }
        match self.again(cfid, kept, &old, &root).await {
            Ok(live) => {
                kept.now.store(Some(Arc::new(live)));
                Ok(())
            }
            Err(error) => {
                if !error.is_disconnect() && !is_passing(error.errno()) {
                    tracing::debug!("{} did not come back: {error}", cfid.step.path());
                    *lock(&kept.verdict) = Some((Arc::downgrade(&root.client), error.clone()));
                }
                Err(error)
            }
        }
    }

    /// Opens the same file in the same way on another connection.
    async fn again(
        &self,
        cfid: &ClientFid,
        kept: &ReconnectableFid,
        old: &UpstreamFid,
        root: &Arc<TreeRoot>,
    ) -> Result<UpstreamFid, Error> {
        let stale = |text: &str| refused(Errno::ESTALE, text);
        let is_same = root.member == old.root.member;
        let flags = match &cfid.open {
            Some(OpenFidKind::There(flags)) => Some(reopened(*flags)),
            Some(OpenFidKind::Attribute) => {
                return Err(stale("the connection went while the attribute was open"));
            }
            Some(OpenFidKind::Here(_)) | None => None,
        };
        if kept.is(LOCKED) {
            return Err(stale("its locks were lost with the connection"));
        }
        if flags.is_some() && old.raw.is_event() {
            return Err(stale("what was open went with the connection: it was no content"));
        }
        if !is_same && flags.is_some_and(OpenFlags::changes) {
            return Err(stale("it was open for writing, and its server was replaced by an equal one"));
        }
        if !is_same && flags.is_some() && cfid.is_dir() && kept.is(LISTED) {
            return Err(stale("it was being listed, and its server was replaced by an equal one"));
        }
        let not_there = |error: Error| match error.errno() {
            Errno::ENOENT if !error.is_disconnect() => stale("the server is back, and the file is not"),
            _ => error,
        };
        let (mut file, raw) = self.enter(root, &cfid.place()).await.map_err(not_there)?;
        if Arc::ptr_eq(&file, &root.file) {
            file = Arc::new(steps(&root.file, &[]).await.map_err(|stop| stop.error)?.0);
        }
        let is_it = if is_same { is_file(raw, old.raw) } else { raw.ty == old.raw.ty };
        if !is_it {
            return Err(stale("the server is back, and has another file there"));
        }
        let live = UpstreamFid { root: root.clone(), file, raw };
        if let Some(birth) = kept.birth.get().filter(|_| is_same) {
            // The server may have reused the qid's number for another file.
            let attr = live.file.getattr(GetMask::BASIC | GetMask::BTIME).await?;
            if attr.valid.has(GetMask::BTIME) && attr.btime != *birth {
                return Err(stale("the server is back, and has another file there, made later"));
            }
        }
        let Some(flags) = flags else { return Ok(live) };
        if !is_same && !cfid.is_dir() {
            let attr = live.file.getattr(GetMask::BASIC).await?;
            if kept.seen.get() != Some(&AgreedAttributes::of(&attr)) {
                return Err(stale("it is not the same on the equal server"));
            }
        }
        let Ok(file) = Arc::try_unwrap(live.file) else { unreachable!("it was walked to just now") };
        let file = file.open_here(flags).await?;
        let raw = file.qid();
        if is_same && !is_file(raw, old.raw) {
            return Err(stale("the server is back, and opens another file"));
        }
        Ok(UpstreamFid { file: Arc::new(file), raw, ..live })
    }

    /// Asks for the birth time of a newly opened file if it is not known. The client does not wait for it.
    pub(crate) fn learn_birth(&self, reply: &Reply) {
        let Reply::Open { node, .. } = reply else { return };
        let Ok(cfid) = node.clone().downcast::<ClientFid>() else { return };
        let live = UpstreamFid::clone(&cfid.live());
        let is_unknown = cfid.kept.as_ref().is_some_and(|kept| kept.birth.get().is_none());
        if !is_unknown || !live.root.client.dialect().is_l() || live.raw.is_event() {
            return;
        }
        let cfid = Arc::downgrade(&cfid);
        let learn = async move {
            let attr = live.file.getattr(GetMask::BASIC | GetMask::BTIME).await;
            drop(live);
            if let (Ok(attr), Some(cfid)) = (attr, cfid.upgrade()) {
                cfid.kept.iter().for_each(|kept| kept.see_birth(&attr));
            }
        };
        self.jobs.begin(None, Box::pin(learn));
    }

    /// Repeats a request after its connection has ended, if that is safe, until it has a reply. `lost` is the error, if
    /// the request was sent or was about to be.
    pub(crate) async fn persist(&self, req: &Later, mut lost: Option<Error>) -> Result<Reply, Error> {
        let mut patience = WaitDeadline::default();
        let mut last = refused(Errno::ECONNRESET, "the connection went, again and again");
        // The limit tells a server that always closes the connection from one that did so during a request.
        for _ in 0..REPEATS {
            let cfid = req.node::<ClientFid>().ok();
            let repeat = repeats(&req.op(), cfid.as_deref());
            if let (Op::Clunk, RepeatDecision::Over, Some(cfid)) = (req.op(), &repeat, &cfid)
                && cfid.live().root.client.dead().is_some()
            {
                return Ok(Reply::Done);
            }
            if let Some(error) = lost.take().filter(|error| !matches!(error, Error::Unsent { .. })) {
                match repeat {
                    RepeatDecision::Yes => last = error,
                    RepeatDecision::Over => return Ok(Reply::Done),
                    RepeatDecision::No => return Err(unknown(&error)),
                }
            }
            let mut revived = Ok(());
            for cfid in cfid.iter().chain(&req.node2::<ClientFid>().ok()) {
                if revived.is_ok() {
                    revived = self.revive(cfid, Some(&mut patience)).await;
                }
            }
            match revived {
                Err(error) if error.is_disconnect() => {
                    last = error;
                    let _ = heed(self.outside.within(SHORT, pending::<()>())).await?;
                    continue;
                }
                revived => revived?,
            }
            if let Some(cfid) = &cfid {
                self.arrive_for(req, cfid).await?;
            }
            match self.way(req) {
                // The connection of one of its files has ended again.
                RequestRoute::Later => {}
                way => match self.once(req, way).await {
                    Err(error) if self.keeps(&error) => {
                        if !matches!(error, Error::Unsent { .. }) {
                            // The server was back and is away again: start a new wait.
                            patience = WaitDeadline::default();
                        }
                        lost = Some(error);
                    }
                    result => return result,
                },
            }
        }
        Err(lost.unwrap_or(last))
    }

    /// Whether the error means the loss of a reconnectable connection.
    pub(crate) fn keeps(&self, error: &Error) -> bool {
        let (Error::Transport { peer, .. } | Error::Unsent { peer, .. } | Error::Protocol { peer, .. }) =
            error
        else {
            return false;
        };
        let of = |lane: Arc<UpstreamConnection>| lane.keeping.is_on() && lane.keeping.was(peer);
        self.upstreams().iter().any(|upstream| upstream.lanes().into_iter().any(of))
    }
}

/// The reconnect task of a connection. It holds no reference to the mux while it sleeps.
async fn mender(core: Weak<MuxCore>, outside: Arc<OutsideTasks>, lane: Weak<UpstreamConnection>) {
    loop {
        let (Some(core), Some(lane)) = (core.upgrade(), lane.upgrade()) else { return };
        let Some(rest) = core.bring_back(&lane).await else { return };
        drop((core, lane));
        outside.within(rest, pending::<()>()).await;
    }
}

/// Checks at intervals that a connection is alive, as long as the connection exists.
pub(crate) async fn pulse(outside: Arc<OutsideTasks>, lane: Weak<UpstreamConnection>) {
    loop {
        outside.within(BEAT, pending::<()>()).await;
        let Some(lane) = lane.upgrade() else { return };
        if let Some(client) = lane.client()
            && client.beat() >= SILENT
        {
            let text = format!("silent for {} s", (BEAT * SILENT).as_secs());
            client.abort(io::Error::new(io::ErrorKind::TimedOut, text));
        }
    }
}

/// Returns the flags to reopen a file that was opened with these flags.
fn reopened(flags: OpenFlags) -> OpenFlags {
    let once = OpenFlags::CREAT | OpenFlags::EXCL | OpenFlags::TRUNC | OpenFlags::RCLOSE;
    OpenFlags(flags.0 & !once.0)
}

fn is_file(raw: Qid, old: Qid) -> bool {
    (raw.path, raw.ty) == (old.path, old.ty)
}

/// Whether another attempt on the same connection may succeed.
pub(crate) fn is_passing(errno: Errno) -> bool {
    [Errno::EINTR, Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::EAGAIN].contains(&errno)
}

/// The treatment of a request that was sent and not answered.
enum RepeatDecision {
    Yes,
    /// It counts as done, whatever happened.
    Over,
    /// It may have taken effect and must not be repeated.
    No,
}

fn repeats(op: &Op<'_>, cfid: Option<&ClientFid>) -> RepeatDecision {
    let appends = || match cfid.map(|cfid| (&cfid.open, cfid.first.raw.ty)) {
        Some((Some(OpenFidKind::There(flags)), ty)) => flags.has(OpenFlags::APPEND) || ty & Qid::APPEND != 0,
        _ => true,
    };
    // Each open or read of an event file has an effect.
    let is_event = cfid.is_some_and(|cfid| cfid.first.raw.is_event());
    match op {
        Op::Open { .. } | Op::Read { .. } | Op::Write { .. } if is_event => RepeatDecision::No,
        Op::Clunk if !matches!(cfid.map(|cfid| &cfid.open), Some(Some(OpenFidKind::Attribute))) => {
            RepeatDecision::Over
        }
        Op::Write { .. } if !appends() => RepeatDecision::Yes,
        Op::Setattr { set } if set.name.is_none() => RepeatDecision::Yes,
        Op::Auth { .. }
        | Op::Attach { .. }
        | Op::Walk { .. }
        | Op::Open { .. }
        | Op::Read { .. }
        | Op::Readdir { .. }
        | Op::Getattr { .. }
        | Op::Readlink
        | Op::Statfs
        | Op::Fsync { .. }
        | Op::Lock(_)
        | Op::Getlock(_)
        | Op::XattrWalk { .. } => RepeatDecision::Yes,
        _ => RepeatDecision::No,
    }
}

fn unknown(error: &Error) -> Error {
    refused(Errno::EIO, &format!("{error}; it is not known whether this was done"))
}

/// Number of fids that are restored concurrently.
pub const REPLAY: usize = 128;
/// Maximum number of repetitions of a request.
const REPEATS: u32 = 100;
/// Maximum number of recorded moves of a tree.
const MOVES_MAX: usize = 4096;
/// A connection that is silent for this time is sent a ping.
pub const BEAT: Duration = Duration::from_secs(10);
/// Number of such intervals after which a silent connection is aborted.
const SILENT: u32 = 3;
pub(crate) const SHORT: Duration = Duration::from_millis(10);

#[cfg(all(test, nine_loom))]
mod tests {
    use super::*;
    use loom::future::block_on;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;

    #[test]
    fn who_waits_for_a_server_is_woken_when_it_is_back_in_any_order() {
        loom::model(|| {
            let lane = Arc::new((FidRegistry::default(), AtomicBool::new(false)));
            let comes = lane.clone();
            let thread = loom::thread::spawn(move || {
                comes.1.store(true, Ordering::SeqCst);
                comes.0.is_back(&"server".into());
            });
            let waits = ConnectionWait::new(&lane.0);
            let look = || lane.1.load(Ordering::SeqCst).then_some(());
            block_on(poll_fn(|cx| waits.poll(cx, look)));
            thread.join().unwrap();
        });
    }
}
