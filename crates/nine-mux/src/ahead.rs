//! Read-ahead for clients that have none, on servers that are mounted with `-P`.
//!
//! In: the Treads of an open fid, in their order. Out, for each Tread: data that is available or in flight, or the
//! decision to pass the Tread on.
//!
//! The [`SERIAL`]th serial read of a fid starts a *run*. The run asks for the file's attributes. If they are those of a
//! regular file with more bytes, a [`Reader`] keeps a window of reads in flight. The window doubles when reads come
//! before their data, and halves when data stays unread for long. A seek ends the run and restarts the count of serial
//! reads. If the upstream's client has a clock, the window does not grow when data only waits longer in the queues of
//! the link, and it halves when other requests would have to wait long behind the data. After runs in vain, the next
//! one needs more serial reads to start. Any other unexpected event (an error, a shorter file, a lost connection) ends
//! the run, too. The next Tread is then passed on and meets the event itself.
//!
//! Only the clock runs by itself. All calls are started while a Tread is served, on behalf of its client.
//!
//! Always holds: the data that answers a Tread was requested at most [`AGE`] before it. It was also requested after the
//! reply to the latest write that passed through this mux. So data may be served while a write to it is in flight, as
//! if it were read before. A run requests nothing beyond the known length of the file. All runs together have at most
//! [`TOTAL`] bytes requested.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nine_io::Payload;
use nine_io::client::{Cancel, Error, File, Reader, heed};
use nine_io::server::{Answer, Reply, Req, Request};
use nine_net::lock::{Mutex, lock};
use nine_proto::{Attr, GetMask, Op, OpenFlags, Qid, Time, mode};

use crate::cfid::{ClientFid, UpstreamFid};
use crate::core::MuxCore;
use crate::outside::OutsideTasks;
use crate::serve::ForwardedMessage;
use crate::upstream::TreeRoot;

/// The state that all runs of a mux share.
#[derive(Default)]
pub(crate) struct RunRegistry {
    /// Number of runs. Checked when a write is answered; a run is counted before its first call.
    count: AtomicUsize,
    /// Bytes reserved by runs: requested and not consumed.
    reserved: AtomicUsize,
    /// The time while there are runs, in milliseconds. It lags by at most [`TICK`].
    now: AtomicU64,
    ticking: AtomicBool,
}

impl RunRegistry {
    fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    pub(crate) fn reserved(&self) -> usize {
        self.reserved.load(Ordering::SeqCst)
    }

    fn reserve(&self, bytes: usize) -> bool {
        let room = |reserved: usize| Some(reserved + bytes).filter(|all| *all <= TOTAL);
        self.reserved.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.reserved.fetch_sub(bytes, Ordering::SeqCst);
    }
}

/// The index of the equal server, and the qid path of a file there.
type ServerFileKey = (u16, u64);

/// The files of an upstream that are read ahead.
#[derive(Default)]
pub(crate) struct AheadFiles {
    any: AtomicUsize,
    runs: Mutex<HashMap<ServerFileKey, Vec<Weak<FidReadAhead>>>>,
    /// Bytes of served Treads that were requested ahead.
    pub(crate) served: AtomicU64,
    /// Bytes that were requested ahead in vain.
    pub(crate) dropped: AtomicU64,
}

impl AheadFiles {
    fn enter(&self, key: ServerFileKey, ahead: Weak<FidReadAhead>) {
        self.any.fetch_add(1, Ordering::SeqCst);
        lock(&self.runs).entry(key).or_default().push(ahead);
    }

    fn leave(&self, key: ServerFileKey, ahead: &Weak<FidReadAhead>) {
        let mut runs = lock(&self.runs);
        if let Some(of) = runs.get_mut(&key)
            && let Some(at) = of.iter().position(|one| one.ptr_eq(ahead))
        {
            of.swap_remove(at);
            if of.is_empty() {
                runs.remove(&key);
            }
            self.any.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Returns the runs' states of one file. Drop them without holding a lock.
    fn of(&self, key: ServerFileKey) -> Vec<Arc<FidReadAhead>> {
        if self.any.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        lock(&self.runs).get(&key).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    fn all(&self) -> Vec<Arc<FidReadAhead>> {
        lock(&self.runs).values().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Handles a version of a file, or all its attributes, from a server. A run over an older version ends.
    pub(crate) fn seen(&self, root: &TreeRoot, raw: Qid, attr: Option<&Attr>) {
        for ahead in self.of((root.member, raw.path)) {
            let mut state = lock(&ahead.state);
            let known = state.run.as_ref().and_then(|run| run.known.as_ref());
            if known
                .is_some_and(|known| known.vers != raw.vers || attr.is_some_and(|attr| known.differs(attr)))
            {
                ahead.stop(&mut state);
            }
        }
    }
}

/// The read-ahead state of an open fid.
pub(crate) struct FidReadAhead {
    me: Weak<Self>,
    /// Maximum data in one Tread as the server set it at the open, in bytes.
    iounit: u32,
    waits: Arc<DataWaiters>,
    /// This lock is taken before the locks of [`AheadFiles`] and of clients.
    state: Mutex<AheadState>,
}

struct AheadState {
    /// The offset of the next serial read.
    next: u64,
    /// Number of consecutive serial reads.
    serial: u32,
    /// Number of serial reads that start a run.
    needed: u32,
    /// Bytes to request beyond `next`.
    limit: usize,
    /// Whether the file cannot be read ahead.
    never: bool,
    run: Option<ReadAheadRun>,
    /// The number of the latest run.
    number: u64,
    /// Number of claims so far.
    claimed: u64,
}

/// The wakers of Treads that wait for data, by the number of the claim. All are woken together.
#[derive(Default)]
struct DataWaiters(Mutex<HashMap<u64, Waker>>);

impl Wake for DataWaiters {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *lock(&self.0));
        wakers.into_values().for_each(Waker::wake);
    }
}

/// A run of reads ahead.
struct ReadAheadRun {
    number: u64,
    live: UpstreamFid,
    me: Weak<FidReadAhead>,
    runs: Arc<RunRegistry>,
    /// The time of the latest Tread.
    touched: u64,
    known: Option<CheckedAttr>,
    asking: Option<(u64, AttrRequest)>,
    stream: Option<RunData>,
}

type AttrRequest = Pin<Box<dyn Future<Output = Result<Attr, Error>> + Send>>;

/// The attributes that a run checks.
struct CheckedAttr {
    /// The time of the request for them.
    since: u64,
    vers: u32,
    size: u64,
    mtime: Time,
    is_regular: bool,
}

/// The data of a run.
struct RunData {
    reader: Reader<Arc<File>>,
    /// The length of the file, at which the run ends.
    size: u64,
    /// Data from the reader with its offset: only claimed data and the rest of a piece.
    ready: VecDeque<(u64, Bytes)>,
    /// The offset after the data in `ready`.
    front: u64,
    /// Pairs of offset and time: bytes below the offset were requested at that time or later.
    asked: VecDeque<(u64, u64)>,
    /// The offsets of the waiting Treads.
    claims: Vec<u64>,
    /// Whether a Tread had to wait since the limit was last checked. `looked` is the offset of that check.
    late: bool,
    looked: u64,
    reserved: usize,
    served: u64,
}

/// The treatment of a Tread.
enum TreadDecision {
    /// Pass the Tread on.
    Nothing,
    Data(Bytes),
    UnderWay(DataClaim),
}

/// A Tread that waits for data. If it is dropped before it is served, its run ends. Otherwise a client could have ever
/// more data requested, by sending reads and cancelling them.
struct DataClaim {
    ahead: Arc<FidReadAhead>,
    number: u64,
    run: u64,
    is_served: bool,
    client: u64,
    offset: u64,
    end: u64,
}

impl MuxCore {
    /// Serves a request on a fid that may be read ahead.
    pub(crate) fn forward_ahead(&self, req: Req, passed: ForwardedMessage) -> Answer {
        let Some(ahead) = &passed.cfid.ahead else { return self.forward(req, &passed) };
        let found = match req.op() {
            Op::Read { offset, count } => ahead.read(self, &passed, req.id().conn, offset, count),
            Op::Clunk | Op::Remove => {
                ahead.stop(&mut lock(&ahead.state));
                TreadDecision::Nothing
            }
            _ => TreadDecision::Nothing,
        };
        let mut claim = match found {
            TreadDecision::Nothing => return self.forward(req, &passed),
            TreadDecision::Data(data) => return req.now(Ok(Reply::Read(Payload::Bytes(data)))),
            TreadDecision::UnderWay(claim) => claim,
        };
        let (id, core) = (req.id(), self.arc());
        let (answer, later) = req.later();
        let job = async move {
            let data = heed(poll_fn(|cx| claim.poll(cx))).await;
            drop(claim);
            let result = match data {
                Err(error) => Err(error),
                Ok(Some(data)) => Ok(Reply::Read(Payload::Bytes(data))),
                Ok(None) => match core.asked(&later, &passed).await {
                    Err(error) if core.keeps(&error) => core.persist(&later, Some(error)).await,
                    result => result,
                },
            };
            later.respond(result.map_err(Error::into_reply));
        };
        self.jobs.begin(Some(id), Box::pin(job));
        answer
    }

    /// Handles a request that is about to be answered. If it may have changed a file, data requested before now is not
    /// served any more. The time when the request was sent does not matter: until its reply, a read may be ordered
    /// before it.
    pub(crate) fn changed(&self, req: &Request, reply: Option<&Reply>) {
        if reply.is_some() {
            self.tell(req);
        }
        if self.ahead.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let changed = |cfid: &ClientFid| {
            let live = cfid.live();
            for ahead in live.root.tree.upstream.ahead.of((live.root.member, live.raw.path)) {
                ahead.stop(&mut lock(&ahead.state));
            }
        };
        let does = match req.op() {
            // The holder of a lock must read all data written before the lock was granted.
            Op::Write { .. } | Op::Lock(_) => true,
            Op::Setattr { set } => set.size.is_some(),
            Op::Open { flags } => flags.has(OpenFlags::TRUNC),
            Op::Create { .. } => {
                if let Some(Reply::Open { node, .. }) = reply {
                    node.downcast_ref::<ClientFid>().into_iter().for_each(changed);
                }
                false
            }
            _ => false,
        };
        if does && let Ok(cfid) = req.node::<ClientFid>() {
            changed(&cfid);
        }
    }

    /// Ends idle runs after a tick. Returns whether any runs are left.
    fn tick_ahead(&self) -> bool {
        let now = self.ahead.now();
        for upstream in self.upstreams() {
            for ahead in upstream.ahead.all() {
                let mut state = lock(&ahead.state);
                if state.run.as_ref().is_some_and(|run| run.is_idle(now)) {
                    ahead.stop(&mut state);
                }
            }
        }
        if self.ahead.count.load(Ordering::SeqCst) > 0 {
            return true;
        }
        self.ahead.ticking.store(false, Ordering::SeqCst);
        // A new run may have started since, and found `ticking` set.
        self.ahead.count.load(Ordering::SeqCst) > 0 && !self.ahead.ticking.swap(true, Ordering::SeqCst)
    }
}

/// Advances the clock while there are runs. It holds no reference to the mux while it sleeps.
async fn ticks(core: Weak<MuxCore>, outside: Arc<OutsideTasks>) {
    let mut then = outside.now().await;
    loop {
        outside.within(TICK, pending::<()>()).await;
        let passed = outside.now().await.saturating_sub(then).as_millis() as u64;
        then += Duration::from_millis(passed);
        let Some(core) = core.upgrade() else { return };
        core.ahead.now.fetch_add(passed, Ordering::SeqCst);
        if !core.tick_ahead() {
            return;
        }
    }
}

impl FidReadAhead {
    /// Creates the state for an opened fid, if its file can be read ahead.
    pub(crate) fn of(root: &TreeRoot, raw: Qid, flags: OpenFlags, iounit: u32) -> Option<Arc<Self>> {
        let is_plain = raw.ty == 0 && flags.reads() && !flags.has(OpenFlags::DIRECT);
        (root.tree.ahead && is_plain).then(|| {
            Arc::new_cyclic(|me| Self {
                me: me.clone(),
                iounit,
                waits: Arc::default(),
                state: Mutex::new(AheadState {
                    next: 0,
                    serial: 0,
                    needed: SERIAL,
                    limit: BEGIN,
                    never: false,
                    run: None,
                    number: 0,
                    claimed: 0,
                }),
            })
        })
    }

    /// Handles the reply to a Tread that was passed on. The reply may be short.
    pub(crate) fn answered(&self, offset: u64, asked: u32, got: usize) {
        if got >= asked as usize {
            return;
        }
        let mut state = lock(&self.state);
        let is_latest = state.run.as_ref().is_none_or(|run| run.stream.is_none());
        if is_latest && state.next == offset.saturating_add(asked.into()) {
            state.next = offset + got as u64;
        }
    }

    fn read(
        &self,
        core: &MuxCore,
        passed: &ForwardedMessage,
        client: u64,
        offset: u64,
        count: u32,
    ) -> TreadDecision {
        if count == 0 {
            return TreadDecision::Nothing;
        }
        let live = passed.live();
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let stream = state.run.as_ref().and_then(|run| run.stream.as_ref());
        let edge = stream.map_or(state.next, |stream| stream.reader.edge().max(state.next));
        let is_serial = (state.next..=edge).contains(&offset);
        if !is_serial || state.run.as_ref().is_some_and(|run| !run.is_of(live)) {
            self.stop(state);
        }
        state.serial = if is_serial { state.serial.saturating_add(1) } else { 1 };
        self.find(state, core, live, client, offset, count).unwrap_or_else(|| {
            let most = count.min(live.root.client.iounit_max());
            state.next = offset.saturating_add(most.into());
            TreadDecision::Nothing
        })
    }

    fn find(
        &self,
        state: &mut AheadState,
        core: &MuxCore,
        live: &UpstreamFid,
        client: u64,
        offset: u64,
        count: u32,
    ) -> Option<TreadDecision> {
        if state.never || (state.run.is_none() && state.serial < state.needed) {
            return None;
        }
        let now = core.ahead.now();
        let run = match &mut state.run {
            Some(run) => run,
            none => {
                state.number += 1;
                none.insert(ReadAheadRun::new(core, live, &self.me, state.number))
            }
        };
        run.touched = now;
        if !self.polled(client, |cx| run.look(now, cx)) {
            self.stop(state);
            return None;
        }
        let CheckedAttr { since, size, is_regular, .. } = *run.known.as_ref()?;
        if !is_regular || offset >= size {
            state.never |= !is_regular;
            state.tire();
            self.stop(state);
            return None;
        }
        if run.stream.is_none() {
            run.stream = RunData::new(&core.ahead, live, self.iounit, offset, size, &mut state.limit);
        }
        let Some(stream) = &mut run.stream else {
            self.stop(state);
            return None;
        };
        let wanted = offset.saturating_add(count.into());
        let asked = stream.asked_at(offset).unwrap_or(now);
        // A short reply shows the end of the file, so the age of the attributes counts, too.
        let oldest = if wanted > size { asked.min(since) } else { asked };
        if now - oldest > AGE - TICK.as_millis() as u64 {
            self.stop(state);
            return None;
        }
        let end = wanted.min(size);
        state.next = end;
        stream.adapt(&core.ahead, live, end, now - asked, &mut state.limit);
        stream.claims.push(offset);
        let horizon = end.saturating_add(state.limit as u64);
        match self.polled(client, |cx| stream.poll_take(offset, end, horizon, now, cx)) {
            Poll::Ready(None) => {
                self.stop(state);
                None
            }
            Poll::Ready(Some(data)) => {
                state.serve(offset, data.len());
                Some(TreadDecision::Data(data))
            }
            Poll::Pending => {
                stream.late = true;
                let ahead = self.me.upgrade().expect("whoever calls it holds one");
                state.claimed += 1;
                let (number, run) = (state.claimed, state.number);
                Some(TreadDecision::UnderWay(DataClaim {
                    ahead,
                    number,
                    run,
                    is_served: false,
                    client,
                    offset,
                    end,
                }))
            }
        }
    }

    /// Polls on behalf of this client, even if the Tread that caused it is cancelled.
    fn polled<T>(&self, client: u64, mut f: impl FnMut(&mut Context<'_>) -> T) -> T {
        let waker = Waker::from(self.waits.clone());
        let mut once = Cancel::of(client).scope(poll_fn(|cx| Poll::Ready(f(cx))));
        match Pin::new(&mut once).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => value,
            Poll::Pending => unreachable!("it is ready at once"),
        }
    }

    /// Ends the run. Treads that wait for it are passed on.
    fn stop(&self, state: &mut AheadState) {
        let Some(run) = state.run.take() else { return };
        if let Some(stream) = &run.stream {
            let dropped = stream.reader.edge().saturating_sub(state.next);
            run.live.root.tree.upstream.ahead.dropped.fetch_add(dropped, Ordering::Relaxed);
            match stream.served < dropped {
                true => state.tire(),
                false => state.needed = SERIAL,
            }
        }
        drop(run);
        self.waits.clone().wake();
    }
}

impl AheadState {
    /// Handles a run in vain: the next one needs more serial reads.
    fn tire(&mut self) {
        self.needed = (self.needed * 2).min(SERIAL_MAX);
    }

    /// Handles data that is served to its Tread.
    fn serve(&mut self, offset: u64, n: usize) {
        let Some(run) = &mut self.run else { return };
        let Some(stream) = &mut run.stream else { return };
        run.live.root.tree.upstream.ahead.served.fetch_add(n as u64, Ordering::Relaxed);
        stream.served += n as u64;
        stream.give_up(offset, self.next);
        if self.next >= stream.size && stream.claims.is_empty() {
            // The next Tread finds the end of the file, or appended data, by itself.
            (self.run, self.serial, self.needed) = (None, 0, SERIAL);
        }
    }
}

impl DataClaim {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut guard = lock(&self.ahead.state);
        let state = &mut *guard;
        let Some(run) = state.run.as_mut().filter(|run| run.number == self.run) else {
            return Poll::Ready(None);
        };
        let (now, horizon) = (run.runs.now(), state.next.saturating_add(state.limit as u64));
        let Some(stream) = &mut run.stream else { return Poll::Ready(None) };
        lock(&self.ahead.waits.0).insert(self.number, cx.waker().clone());
        let take = |cx: &mut Context<'_>| stream.poll_take(self.offset, self.end, horizon, now, cx);
        let taken = ready!(self.ahead.polled(self.client, take));
        match &taken {
            Some(data) => {
                self.is_served = true;
                state.serve(self.offset, data.len());
            }
            None => self.ahead.stop(state),
        }
        Poll::Ready(taken)
    }
}

impl Drop for DataClaim {
    fn drop(&mut self) {
        lock(&self.ahead.waits.0).remove(&self.number);
        let mut state = lock(&self.ahead.state);
        if !self.is_served && state.run.as_ref().is_some_and(|run| run.number == self.run) {
            self.ahead.stop(&mut state);
        }
    }
}

impl ReadAheadRun {
    fn new(core: &MuxCore, live: &UpstreamFid, me: &Weak<FidReadAhead>, number: u64) -> Self {
        let runs = &core.ahead;
        runs.count.fetch_add(1, Ordering::SeqCst);
        live.root.tree.upstream.ahead.enter((live.root.member, live.raw.path), me.clone());
        if !runs.ticking.swap(true, Ordering::SeqCst) {
            core.jobs.begin(None, Box::pin(ticks(core.me.clone(), core.outside.clone())));
        }
        let (live, me, runs) = (live.clone(), me.clone(), runs.clone());
        Self { number, live, me, touched: runs.now(), runs, known: None, asking: None, stream: None }
    }

    /// Whether the run still reads the fid's present file, on a live connection.
    fn is_of(&self, live: &UpstreamFid) -> bool {
        Arc::ptr_eq(&self.live.file, &live.file) && live.root.client.dead().is_none()
    }

    fn is_idle(&self, now: u64) -> bool {
        now - self.touched > AGE && self.stream.as_ref().is_none_or(|stream| stream.claims.is_empty())
    }

    /// Checks that the file is unchanged as far as known, and asks for its attributes at intervals.
    fn look(&mut self, now: u64, cx: &mut Context<'_>) -> bool {
        loop {
            if let Some((since, asking)) = &mut self.asking {
                let Poll::Ready(attr) = asking.as_mut().poll(cx) else { return true };
                let Ok(attr) = attr else { return false };
                let known = CheckedAttr::of(&attr, *since);
                if self.known.as_ref().is_some_and(|before| !before.is(&known)) {
                    return false;
                }
                (self.known, self.asking) = (Some(known), None);
            }
            if self.known.as_ref().is_some_and(|known| now - known.since < ATTR_INTERVAL_MS) {
                return true;
            }
            let file = self.live.file.clone();
            let asking: AttrRequest = Box::pin(async move { file.getattr(GetMask::BASIC).await });
            self.asking = Some((now, asking));
        }
    }
}

impl Drop for ReadAheadRun {
    fn drop(&mut self) {
        let root = &self.live.root;
        root.tree.upstream.ahead.leave((root.member, self.live.raw.path), &self.me);
        self.runs.count.fetch_sub(1, Ordering::SeqCst);
        self.stream.iter().for_each(|stream| self.runs.give_back(stream.reserved));
        // The reads in flight are flushed.
        root.tree.core.upgrade().inspect(|core| core.flushed());
    }
}

impl CheckedAttr {
    fn of(attr: &Attr, since: u64) -> Self {
        let is_known = attr.valid.has(GetMask::SIZE) && attr.valid.has(GetMask::MODE) && attr.size > 0;
        let is_regular = is_known && attr.mode & mode::S_IFMT == mode::S_IFREG && attr.qid.ty == 0;
        let Attr { size, mtime, qid: Qid { vers, .. }, .. } = *attr;
        Self { since, vers, size, mtime, is_regular }
    }

    fn differs(&self, attr: &Attr) -> bool {
        (attr.valid.has(GetMask::SIZE) && attr.size != self.size)
            || (attr.valid.has(GetMask::MTIME) && attr.mtime != self.mtime)
    }

    fn is(&self, other: &Self) -> bool {
        (self.vers, self.size, self.mtime) == (other.vers, other.size, other.mtime)
    }
}

impl RunData {
    /// Starts a stream at `offset`, if it can reserve its memory.
    fn new(
        runs: &RunRegistry,
        live: &UpstreamFid,
        iounit: u32,
        offset: u64,
        size: u64,
        limit: &mut usize,
    ) -> Option<Self> {
        let reader = Reader::new(live.file.clone(), offset, size).until(size).in_pieces(iounit);
        let piece = reader.piece_max() as usize;
        *limit = (*limit).clamp(piece, limit_max(live, piece));
        let reserved = *limit + piece;
        runs.reserve(reserved).then(|| Self {
            reader,
            size,
            ready: VecDeque::new(),
            front: offset,
            asked: VecDeque::new(),
            claims: Vec::new(),
            late: false,
            looked: offset,
            reserved,
            served: 0,
        })
    }

    /// Returns the time of the request for `offset`, or an earlier time.
    fn asked_at(&self, offset: u64) -> Option<u64> {
        self.asked.iter().find(|(edge, _)| offset < *edge).map(|(_, time)| *time)
    }

    /// Adapts the window, if there were enough reads since the last check. `age` is the time since the request for the
    /// data that is read now, in milliseconds.
    fn adapt(&mut self, runs: &RunRegistry, live: &UpstreamFid, next: u64, age: u64, limit: &mut usize) {
        if next < self.looked + *limit as u64 {
            return;
        }
        self.looked = next;
        let late = std::mem::take(&mut self.late);
        let piece = self.reader.piece_max() as usize;
        let twice = (*limit * 2).min(limit_max(live, piece)).max(*limit);
        // Data that came before it was read tells nothing about the link.
        let trips = self.reader.trips().filter(|_| late);
        let (is_quick, is_slow) = trips.map_or((true, false), |(trip, fastest)| {
            (trip < fastest * 3 / 2 + QUEUE_DELAY, trip > fastest * 3 + 4 * QUEUE_DELAY)
        });
        if age > AGE * 3 / 4 || is_slow {
            *limit = (*limit / 2).max(piece);
        } else if late && age < AGE / 2 && is_quick {
            let more = (twice + piece).saturating_sub(self.reserved);
            if runs.reserve(more) {
                self.reserved += more;
                *limit = twice;
            }
        }
    }

    /// Returns the bytes from `offset` to `end` when they are available, and requests the bytes before `horizon`.
    /// `None` if there is an error or there are fewer bytes.
    fn poll_take(
        &mut self,
        offset: u64,
        end: u64,
        horizon: u64,
        now: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Bytes>> {
        let taken = loop {
            self.reader.set_window(horizon.saturating_sub(self.front) as usize);
            if self.front >= end {
                self.reader.begin(cx);
                break Poll::Ready(Some(self.cut(offset, end)));
            }
            match self.reader.poll_next(cx) {
                Poll::Pending => break Poll::Pending,
                Poll::Ready(Some(Ok(data))) => {
                    let at = self.front;
                    self.front += data.len() as u64;
                    self.ready.push_back((at, data));
                }
                Poll::Ready(Some(Err(_)) | None) => break Poll::Ready(None),
            }
        };
        match self.asked.back_mut() {
            Some((edge, time)) if *time == now => *edge = self.reader.edge(),
            _ => self.asked.push_back((self.reader.edge(), now)),
        }
        taken
    }

    /// Returns available bytes. Bytes within one piece are not copied.
    fn cut(&self, offset: u64, end: u64) -> Bytes {
        let mut whole = BytesMut::new();
        for (at, data) in &self.ready {
            let (from, to) = (offset.max(*at), end.min(at + data.len() as u64));
            if from < to {
                let part = data.slice((from - at) as usize..(to - at) as usize);
                if part.len() as u64 == end - offset {
                    return part;
                }
                whole.reserve(if whole.is_empty() { (end - offset) as usize } else { 0 });
                whole.extend_from_slice(&part);
            }
        }
        whole.freeze()
    }

    /// Removes the claim at `offset`, and frees data that no Tread can ask for any more.
    fn give_up(&mut self, offset: u64, next: u64) {
        self.claims.retain(|claim| *claim != offset);
        let low = self.claims.iter().copied().min().unwrap_or(next).min(next);
        while self.ready.front().is_some_and(|(at, data)| at + data.len() as u64 <= low) {
            self.ready.pop_front();
        }
        while self.asked.front().is_some_and(|(edge, _)| *edge <= low) {
            self.asked.pop_front();
        }
    }
}

/// Returns the maximum window of a run: half of its client's share.
fn limit_max(live: &UpstreamFid, piece: usize) -> usize {
    let options = &live.root.tree.upstream.server.options;
    AHEAD_WINDOW_MAX.min(options.window).min(options.budget / 8).min(AHEAD_PIECES_MAX * piece).max(piece)
}

/// Number of serial reads that start a run.
const SERIAL: u32 = 2;
/// Maximum of that number, after many runs in vain.
const SERIAL_MAX: u32 = 64;
/// The first window of a run, in bytes.
const BEGIN: usize = 256 * 1024;
/// Queues of a link that no window can avoid.
const QUEUE_DELAY: Duration = Duration::from_millis(10);
/// Maximum window, in bytes.
const AHEAD_WINDOW_MAX: usize = 8 << 20;
/// Maximum window, in pieces: a server may have set a small iounit.
const AHEAD_PIECES_MAX: usize = 64;
/// Maximum reserved bytes of all runs of a mux.
pub const TOTAL: usize = 64 << 20;
/// Maximum age of served data, in milliseconds.
const AGE: u64 = 2000;
/// Interval of requests for the attributes, in milliseconds.
const ATTR_INTERVAL_MS: u64 = 1000;
const TICK: Duration = Duration::from_millis(250);
