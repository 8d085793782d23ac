//! Reconnection: what comes back when a server that is mounted with `-r` has been away.
//!
//! In: fids of such a mount, which register with their [`Lane`]; connections that end; requests that were under way, or
//! come meanwhile. Out: the same fids on a new connection, walked to and opened again, or each with its own reason why
//! not; requests asked again where that is safe.
//!
//! A lane has one *mender* while there is something to bring back: it dials, once a second, and then *replays* the
//! fids, [`REPLAY`] at a time. A request does not wait for that: it brings its own fid back first. The replay goes on
//! where the last one was cut off, so that each fid has its turn however often that happens.
//!
//! Always holds: a fid stands for the file it stood for before, by qid, or answers ESTALE; on an equal server, whose
//! qids say nothing, only what has no state there. What may have been done already is not done again. A server that is
//! away costs one dial a second, however many wait for it.

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

use crate::cfid::{CFid, Live, Open};
use crate::core::{Core, refused};
use crate::outside::Outside;
use crate::serve::Way;
use crate::space::Place;
use crate::upstream::{Lane, REFUSED_MAX, Root, Tree, is_refusal};
use crate::walk::steps;

/// How long a request waits for a server that is away and mounted with `-r`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until it is back.
    Ever,
    /// So long, each time that it is away; zero: no longer than one attempt to reach it.
    AtMost(Duration),
}

/// What a fid has that comes back.
pub(crate) struct Kept {
    lane: Arc<Lane>,
    /// Its number in the lane.
    slot: OnceLock<usize>,
    /// What stands for it since its first connection went.
    now: ArcSwapOption<Live>,
    /// Who brings it back.
    busy: AsyncMutex<()>,
    /// Why it cannot stand for anything on this connection.
    verdict: Mutex<Option<(Weak<Client>, Error)>>,
    /// Moves in its tree before it was made.
    since: u64,
    /// Where it was after so many of them.
    place: Mutex<(Place, u64)>,
    marks: AtomicU8,
    /// Reports of lost changes that its Tfsyncs need not repeat: see [`UnsyncedChanges`](crate::unsynced).
    pub(crate) reports_seen: AtomicU64,
    /// As it was when it was opened, where there are equal servers.
    seen: OnceLock<Seen>,
    /// The file's birth time, once its server has told it (9P2000.L).
    birth: OnceLock<Time>,
}

/// It holds locks, or may.
pub(crate) const LOCKED: u8 = 1;
/// It has been listed.
pub(crate) const LISTED: u8 = 2;

/// What equal servers must agree on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    length: u64,
    mtime: Time,
    vers: u32,
}

impl Seen {
    fn of(attr: &Attr) -> Self {
        Self { length: attr.size, mtime: attr.mtime, vers: attr.qid.vers }
    }
}

impl Kept {
    /// For a new fid of this root, which is here now.
    pub(crate) fn of(root: &Root, place: Place) -> Option<Box<Self>> {
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

    /// Where it is now.
    pub(crate) fn place(&self, tree: &Tree) -> Place {
        let mut place = lock(&self.place);
        let (at, since) = &mut *place;
        (*since, *at) = tree.moves.now(at, *since);
        at.clone()
    }

    /// Where a file is now that was here when this fid was made.
    pub(crate) fn moved(&self, tree: &Tree, place: &Place) -> Place {
        tree.moves.now(place, self.since).1
    }

    pub(crate) fn now(&self) -> Option<Arc<Live>> {
        self.now.load_full()
    }

    /// The fid is there, and shall come back.
    pub(crate) fn register(&self, cfid: &Arc<CFid>) {
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

    /// A lock was taken, or all of them were let go.
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
        self.seen.get_or_init(|| Seen::of(attr));
    }

    /// Remembers the birth time, if these attributes have one.
    pub(crate) fn see_birth(&self, attr: &Attr) {
        if attr.valid.has(GetMask::BTIME) {
            self.birth.get_or_init(|| attr.btime);
        }
    }

    /// Another fid for the same file has the same birth time.
    pub(crate) fn same_birth(&self, of: &Self) {
        if let Some(&birth) = of.birth.get() {
            self.birth.get_or_init(|| birth);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.slot.get().into_iter().for_each(|&slot| self.lane.keeping.leave(slot));
    }
}

/// Where files of a tree have been moved to, so that fids walked to before find them: the latest [`MOVES_MAX`].
#[derive(Default)]
pub(crate) struct Moves {
    /// How many there have been.
    end: AtomicU64,
    log: Mutex<VecDeque<(Place, Place)>>,
}

impl Moves {
    /// Nobody sees some of them done.
    pub(crate) fn push(&self, renames: &[(&Place, &Place)]) {
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

    /// How many there have been by now, and where a file is then that was here after so many.
    fn now(&self, place: &Place, since: u64) -> (u64, Place) {
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

/// What comes back with a lane, and who waits for it.
#[derive(Default)]
pub(crate) struct Keeping {
    on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Fids; as many as clients have.
    slots: Vec<Option<Weak<CFid>>>,
    free: Vec<usize>,
    /// Where the replay is.
    at: usize,
    /// Those who wait, by number, and what wakes them.
    waiting: HashMap<u64, Option<Waker>>,
    waited: u64,
    /// Why it is not there, and until when it is not tried again.
    failed: Option<(Error, Duration)>,
    mending: bool,
    /// The mender has not failed yet.
    trying: bool,
    /// The latest client's own copy of the server's address, which its errors have.
    peer: Option<Arc<str>>,
}

impl Keeping {
    /// It is to be kept from now on; `false`: it was before.
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

    /// The connection is there. Returns whether there was an earlier one.
    pub(crate) fn is_back(&self, peer: &Arc<str>) -> bool {
        let is_again = {
            let mut state = lock(&self.state);
            (state.failed, state.trying) = (None, false);
            state.peer.replace(peer.clone()).is_some()
        };
        self.wake();
        is_again
    }

    /// Fids, who waits, and why it is not there.
    pub(crate) fn seen(&self) -> (usize, usize, Option<String>) {
        let state = lock(&self.state);
        let away = state.failed.as_ref().map(|(error, _)| error.to_string());
        (state.slots.len() - state.free.len(), state.waiting.len(), away)
    }

    /// Whoever waits looks again.
    pub(crate) fn wake(&self) {
        let wakers: Vec<_> = lock(&self.state).waiting.values_mut().filter_map(Option::take).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether this is of an error of the latest connection.
    fn was(&self, peer: &Arc<str>) -> bool {
        lock(&self.state).peer.as_ref().is_some_and(|latest| Arc::ptr_eq(latest, peer))
    }

    fn enter(&self, cfid: Weak<CFid>) -> usize {
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

    /// The next fid of the round.
    fn next(&self) -> Option<Arc<CFid>> {
        let mut state = lock(&self.state);
        let slot = state.at.checked_rem(state.slots.len())?;
        state.at = slot + 1;
        state.slots[slot].as_ref()?.upgrade()
    }

    fn len(&self) -> usize {
        lock(&self.state).slots.len()
    }

    /// Whether there is anything to bring it back for; if not, whoever mends it stops.
    fn is_needed(&self) -> bool {
        let mut state = lock(&self.state);
        let is_needed = !state.waiting.is_empty() || state.slots.len() > state.free.len();
        state.mending &= is_needed;
        is_needed
    }

    /// Whether the caller is to mend.
    fn start(&self) -> bool {
        let mut state = lock(&self.state);
        let is_new = !std::mem::replace(&mut state.mending, true);
        state.trying |= is_new;
        is_new
    }

    /// The error for requests that would wait in vain, if the server refuses us.
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

    /// What is answered when it has been waited for in vain.
    fn reason(&self, limit: Duration) -> Error {
        let known = lock(&self.state).failed.clone();
        let (errno, text) = known.map_or_else(
            || (Errno::ETIMEDOUT, "the server is not there".into()),
            |(error, _)| (error.errno(), error.to_string()),
        );
        match limit.as_secs() {
            0 => refused(errno, &text),
            waited => refused(errno, &format!("{text}; waited for {waited} s")),
        }
    }
}

/// Somebody who waits for a lane.
struct Waits<'k> {
    keeping: &'k Keeping,
    number: u64,
}

impl<'k> Waits<'k> {
    fn new(keeping: &'k Keeping) -> Self {
        let mut state = lock(&keeping.state);
        state.waited += 1;
        let number = state.waited;
        state.waiting.insert(number, None);
        Self { keeping, number }
    }

    /// Looks after the waker is there: it may just have come.
    fn poll<T>(&self, cx: &mut Context<'_>, look: impl FnOnce() -> Option<T>) -> Poll<T> {
        lock(&self.keeping.state).waiting.insert(self.number, Some(cx.waker().clone()));
        look().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        lock(&self.keeping.state).waiting.remove(&self.number);
    }
}

/// Until when somebody waits for servers that are away: known when the first wait begins.
#[derive(Default)]
pub(crate) struct Patience(Option<Duration>);

impl Core {
    /// A connection has ended.
    pub(crate) fn lost(&self, lane: &Arc<Lane>) {
        if lane.keeping.is_on() && lane.keeping.is_needed() {
            self.mend(lane);
        }
    }

    /// Until the lane of a tree is there, as patiently as its mount asks for.
    pub(crate) async fn wait_for(
        &self,
        tree: &Tree,
        lane: &Arc<Lane>,
        wait: Wait,
        patience: &mut Patience,
    ) -> Result<(), Error> {
        if lane.client().is_some() {
            return Ok(());
        }
        let waits = Waits::new(&lane.keeping);
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

    fn mend(&self, lane: &Arc<Lane>) {
        if lane.keeping.start() {
            let mender = mender(self.me.clone(), self.outside.clone(), Arc::downgrade(lane));
            self.jobs.begin(None, Box::pin(mender));
        }
    }

    /// One attempt to have a lane back with all its fids; says how long to wait for the next.
    async fn bring_back(&self, lane: &Arc<Lane>) -> Option<Duration> {
        let upstream = lane.upstream().filter(|_| lane.keeping.is_needed())?;
        let Ok((client, _)) = lane.connect(&upstream, &self.outside).await else {
            let until = lock(&lane.keeping.state).failed.as_ref().map(|(_, until)| *until);
            let rest = until.unwrap_or_default().saturating_sub(self.outside.now().await);
            return Some(rest.clamp(SHORT, REFUSED_MAX));
        };
        self.replay(lane, &client).await;
        lane.keeping.stop();
        // It may have gone before that, and nobody else was to mend.
        (client.dead().is_some() && lane.keeping.start()).then_some(Duration::ZERO)
    }

    /// Brings the fids of a lane back, as far as the connection lasts.
    async fn replay(&self, lane: &Arc<Lane>, client: &Client) {
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

    /// Brings a fid back after its connection has gone. Who is patient waits for the server, and for others who bring
    /// the same fid back.
    pub(crate) async fn revive(&self, cfid: &CFid, patience: Option<&mut Patience>) -> Result<(), Error> {
        let Some(kept) = &cfid.kept else { return Ok(()) };
        let old = cfid.live();
        let (tree, is_dead) = (old.root.tree.clone(), old.root.client.dead().is_some());
        drop(old);
        if !is_dead {
            return Ok(());
        }
        let _one = match (patience, tree.wait) {
            (Some(patience), Some(wait)) => {
                // Not with the fid in hand: others have a patience of their own, and the mender none.
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

    /// The same file by another connection, open as it was.
    async fn again(&self, cfid: &CFid, kept: &Kept, old: &Live, root: &Arc<Root>) -> Result<Live, Error> {
        let stale = |text: &str| refused(Errno::ESTALE, text);
        let is_same = root.member == old.root.member;
        let flags = match &cfid.open {
            Some(Open::There(flags)) => Some(reopened(*flags)),
            Some(Open::Attribute) => return Err(stale("the connection went while the attribute was open")),
            Some(Open::Here(_)) | None => None,
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
        let live = Live { root: root.clone(), file, raw };
        if let Some(birth) = kept.birth.get().filter(|_| is_same) {
            // The server may have given the qid's number to another file.
            let attr = live.file.getattr(GetMask::BASIC | GetMask::BTIME).await?;
            if attr.valid.has(GetMask::BTIME) && attr.btime != *birth {
                return Err(stale("the server is back, and has another file there, made later"));
            }
        }
        let Some(flags) = flags else { return Ok(live) };
        if !is_same && !cfid.is_dir() {
            let attr = live.file.getattr(GetMask::BASIC).await?;
            if kept.seen.get() != Some(&Seen::of(&attr)) {
                return Err(stale("it is not the same on the equal server"));
            }
        }
        let Ok(file) = Arc::try_unwrap(live.file) else { unreachable!("it was walked to just now") };
        let file = file.open_here(flags).await?;
        let raw = file.qid();
        if is_same && !is_file(raw, old.raw) {
            return Err(stale("the server is back, and opens another file"));
        }
        Ok(Live { file: Arc::new(file), raw, ..live })
    }

    /// Asks for the birth time of a file that has just been opened, if it is not known. The client does not wait for
    /// it.
    pub(crate) fn learn_birth(&self, reply: &Reply) {
        let Reply::Open { node, .. } = reply else { return };
        let Ok(cfid) = node.clone().downcast::<CFid>() else { return };
        let live = Live::clone(&cfid.live());
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

    /// A request whose connection went: with this reason after it was sent, or before. Asks again where that is safe,
    /// until there is an answer.
    pub(crate) async fn persist(&self, req: &Later, mut lost: Option<Error>) -> Result<Reply, Error> {
        let mut patience = Patience::default();
        let mut last = refused(Errno::ECONNRESET, "the connection went, again and again");
        // A connection that is cut while a request is on its way is one thing, a server that always cuts it another.
        for _ in 0..REPEATS {
            let cfid = req.node::<CFid>().ok();
            let repeat = repeats(&req.op(), cfid.as_deref());
            if let (Op::Clunk, Repeat::Over, Some(cfid)) = (req.op(), &repeat, &cfid)
                && cfid.live().root.client.dead().is_some()
            {
                return Ok(Reply::Done);
            }
            if let Some(error) = lost.take().filter(|error| !matches!(error, Error::Unsent { .. })) {
                match repeat {
                    Repeat::Yes => last = error,
                    Repeat::Over => return Ok(Reply::Done),
                    Repeat::No => return Err(unknown(&error)),
                }
            }
            let mut revived = Ok(());
            for cfid in cfid.iter().chain(&req.node2::<CFid>().ok()) {
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
                // One of its files has gone again.
                Way::Later => {}
                way => match self.once(req, way).await {
                    Err(error) if self.keeps(&error) => {
                        if !matches!(error, Error::Unsent { .. }) {
                            // It was there, and is away again.
                            patience = Patience::default();
                        }
                        lost = Some(error);
                    }
                    result => return result,
                },
            }
        }
        Err(lost.unwrap_or(last))
    }

    /// Whether it says that a connection has gone that comes back.
    pub(crate) fn keeps(&self, error: &Error) -> bool {
        let (Error::Transport { peer, .. } | Error::Unsent { peer, .. } | Error::Protocol { peer, .. }) =
            error
        else {
            return false;
        };
        let of = |lane: Arc<Lane>| lane.keeping.is_on() && lane.keeping.was(peer);
        self.upstreams().iter().any(|upstream| upstream.lanes().into_iter().any(of))
    }
}

/// See the module. Holds nothing of the mux while it sleeps.
async fn mender(core: Weak<Core>, outside: Arc<Outside>, lane: Weak<Lane>) {
    loop {
        let (Some(core), Some(lane)) = (core.upgrade(), lane.upgrade()) else { return };
        let Some(rest) = core.bring_back(&lane).await else { return };
        drop((core, lane));
        outside.within(rest, pending::<()>()).await;
    }
}

/// Looks whether a lane is alive, as long as there is one.
pub(crate) async fn pulse(outside: Arc<Outside>, lane: Weak<Lane>) {
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

/// How a file is opened that was open like this.
fn reopened(flags: OpenFlags) -> OpenFlags {
    let once = OpenFlags::CREAT | OpenFlags::EXCL | OpenFlags::TRUNC | OpenFlags::RCLOSE;
    OpenFlags(flags.0 & !once.0)
}

fn is_file(raw: Qid, old: Qid) -> bool {
    (raw.path, raw.ty) == (old.path, old.ty)
}

/// Whether another attempt on the same connection may do better.
pub(crate) fn is_passing(errno: Errno) -> bool {
    [Errno::EINTR, Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::EAGAIN].contains(&errno)
}

/// Of a request that was sent and not answered.
enum Repeat {
    Yes,
    /// Whatever became of it, it is done.
    Over,
    /// It may have been done, and must not be done twice.
    No,
}

fn repeats(op: &Op<'_>, cfid: Option<&CFid>) -> Repeat {
    let appends = || match cfid.map(|cfid| (&cfid.open, cfid.first.raw.ty)) {
        Some((Some(Open::There(flags)), ty)) => flags.has(OpenFlags::APPEND) || ty & Qid::APPEND != 0,
        _ => true,
    };
    // To open or to read it does something, each time.
    let is_event = cfid.is_some_and(|cfid| cfid.first.raw.is_event());
    match op {
        Op::Open { .. } | Op::Read { .. } | Op::Write { .. } if is_event => Repeat::No,
        Op::Clunk if !matches!(cfid.map(|cfid| &cfid.open), Some(Some(Open::Attribute))) => Repeat::Over,
        Op::Write { .. } if !appends() => Repeat::Yes,
        Op::Setattr { set } if set.name.is_none() => Repeat::Yes,
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
        | Op::XattrWalk { .. } => Repeat::Yes,
        _ => Repeat::No,
    }
}

fn unknown(error: &Error) -> Error {
    refused(Errno::EIO, &format!("{error}; it is not known whether this was done"))
}

/// Fids that are brought back at once.
pub const REPLAY: usize = 128;
/// How often a request is asked again whose connection goes.
const REPEATS: u32 = 100;
/// Moves of a tree that are remembered.
const MOVES_MAX: usize = 4096;
/// A connection that has been silent for so long is asked for a sign of life.
pub const BEAT: Duration = Duration::from_secs(10);
/// And is given up after so many times that.
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
            let lane = Arc::new((Keeping::default(), AtomicBool::new(false)));
            let comes = lane.clone();
            let thread = loom::thread::spawn(move || {
                comes.1.store(true, Ordering::SeqCst);
                comes.0.is_back(&"server".into());
            });
            let waits = Waits::new(&lane.0);
            let look = || lane.1.load(Ordering::SeqCst).then_some(());
            block_on(poll_fn(|cx| waits.poll(cx, look)));
            thread.join().unwrap();
        });
    }
}
