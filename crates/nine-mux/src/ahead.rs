//! Read-ahead for clients that have none: what servers that are mounted with `-P` are asked for before it is wanted.
//!
//! In: the Treads of an open fid, in their order. Out, for each: data that is there or under way, or that the Tread is
//! passed on as it came.
//!
//! The [`SERIAL`]th serial read of a fid begins a *run*: the attributes are asked for beside it, and when they are
//! those of a regular file with more bytes, a [`Reader`] has a window of them under way. The window doubles when reads
//! come before their data, and halves when data lies for long. A seek ends the run, and the reads are counted anew; if
//! a run was in vain, more of them begin the next one. Whatever else is unexpected (an error, a file that is shorter, a
//! connection that is gone) ends it, too: then a Tread meets it that is passed on as it came.
//!
//! Nothing happens by itself but the clock: all calls are begun while a Tread is served, as that client's.
//!
//! Always holds: what answers a Tread was asked for at most [`AGE`] before it, and after the answer to the latest write
//! that passed through. So data may be served while a write to it is under way, as if it were read before. Nothing is
//! asked for behind the length that the file is known to have. All runs together ask for at most [`TOTAL`] bytes.

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

use crate::cfid::{CFid, Live};
use crate::core::Core;
use crate::outside::Outside;
use crate::serve::Passed;
use crate::upstream::Root;

/// What the runs of a mux share.
#[derive(Default)]
pub(crate) struct Runs {
    /// How many there are. Looked at when a write is answered: it is there before the first call of a run.
    count: AtomicUsize,
    /// Bytes that they may have under way and not taken.
    reserved: AtomicUsize,
    /// The time while there are any, milliseconds: late by [`TICK`] at most.
    now: AtomicU64,
    ticking: AtomicBool,
}

impl Runs {
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

/// Which of the equal servers, and the path of a file's qid there.
type Key = (u16, u64);

/// The files of an upstream that are read ahead.
#[derive(Default)]
pub(crate) struct Files {
    any: AtomicUsize,
    runs: Mutex<HashMap<Key, Vec<Weak<Ahead>>>>,
    /// Bytes that were asked for ahead of their reads.
    pub(crate) served: AtomicU64,
    /// Bytes that were asked for in vain.
    pub(crate) dropped: AtomicU64,
}

impl Files {
    fn enter(&self, key: Key, ahead: Weak<Ahead>) {
        self.any.fetch_add(1, Ordering::SeqCst);
        lock(&self.runs).entry(key).or_default().push(ahead);
    }

    fn leave(&self, key: Key, ahead: &Weak<Ahead>) {
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

    /// Those of one file. To be dropped without a lock.
    fn of(&self, key: Key) -> Vec<Arc<Ahead>> {
        if self.any.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        lock(&self.runs).get(&key).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    fn all(&self) -> Vec<Arc<Ahead>> {
        lock(&self.runs).values().flatten().filter_map(Weak::upgrade).collect()
    }

    /// A server has said which version a file has now, or all of its attributes.
    pub(crate) fn seen(&self, root: &Root, raw: Qid, attr: Option<&Attr>) {
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

/// What is read ahead for an open fid.
pub(crate) struct Ahead {
    me: Weak<Self>,
    /// The most data in one Tread, as the server said at the open, bytes.
    iounit: u32,
    waits: Arc<Waits>,
    /// Taken before the locks of [`Files`] and of clients.
    state: Mutex<State>,
}

struct State {
    /// Where a serial read begins.
    next: u64,
    /// Serial reads in a row.
    serial: u32,
    /// So many begin a run.
    needed: u32,
    /// Bytes to be asked for behind `next`.
    limit: usize,
    /// It is no file to be read ahead.
    never: bool,
    run: Option<Run>,
    /// Of the latest run.
    number: u64,
    /// Claims there have been.
    claimed: u64,
}

/// Where Treads wait for data, by the number of the claim: woken all together.
#[derive(Default)]
struct Waits(Mutex<HashMap<u64, Waker>>);

impl Wake for Waits {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *lock(&self.0));
        wakers.into_values().for_each(Waker::wake);
    }
}

/// See the module.
struct Run {
    number: u64,
    live: Live,
    me: Weak<Ahead>,
    runs: Arc<Runs>,
    /// When the latest Tread came.
    touched: u64,
    known: Option<Known>,
    asking: Option<(u64, Asking)>,
    stream: Option<Stream>,
}

type Asking = Pin<Box<dyn Future<Output = Result<Attr, Error>> + Send>>;

/// The attributes that matter.
struct Known {
    /// When they were asked for.
    since: u64,
    vers: u32,
    size: u64,
    mtime: Time,
    is_regular: bool,
}

/// The bytes of a run.
struct Stream {
    reader: Reader<Arc<File>>,
    /// The length of the file: there it ends.
    size: u64,
    /// What the reader has given, and where it begins; only what is claimed, and the rest of a piece.
    ready: VecDeque<(u64, Bytes)>,
    /// Where it goes on.
    front: u64,
    /// Below the first number all was asked for not before the second: a time.
    asked: VecDeque<(u64, u64)>,
    /// Where the Treads begin that wait.
    claims: Vec<u64>,
    /// One of them had to wait since the limit was looked at, which was here.
    late: bool,
    looked: u64,
    reserved: usize,
    served: u64,
}

/// What becomes of a Tread.
enum Found {
    /// It is passed on as it came.
    Nothing,
    Data(Bytes),
    UnderWay(Claim),
}

/// A Tread that waits for data. Dropping it gives it up, and the run with it: what was asked for behind it would never
/// be read, and whoever asks and takes back would have ever more asked for.
struct Claim {
    ahead: Arc<Ahead>,
    number: u64,
    run: u64,
    is_served: bool,
    client: u64,
    offset: u64,
    end: u64,
}

impl Core {
    /// A request to a fid that may be read ahead.
    pub(crate) fn forward_ahead(&self, req: Req, passed: Passed) -> Answer {
        let Some(ahead) = &passed.cfid.ahead else { return self.forward(req, &passed) };
        let found = match req.op() {
            Op::Read { offset, count } => ahead.read(self, &passed, req.id().conn, offset, count),
            Op::Clunk | Op::Remove => {
                ahead.stop(&mut lock(&ahead.state));
                Found::Nothing
            }
            _ => Found::Nothing,
        };
        let mut claim = match found {
            Found::Nothing => return self.forward(req, &passed),
            Found::Data(data) => return req.now(Ok(Reply::Read(Payload::Bytes(data)))),
            Found::UnderWay(claim) => claim,
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

    /// A request is about to be answered: if it may have changed a file, nothing that was asked for before is served
    /// any more. When it was sent matters not: until its answer, a read may be before it.
    pub(crate) fn changed(&self, req: &Request, reply: Option<&Reply>) {
        if reply.is_some() {
            self.tell(req);
        }
        if self.ahead.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let changed = |cfid: &CFid| {
            let live = cfid.live();
            for ahead in live.root.tree.upstream.ahead.of((live.root.member, live.raw.path)) {
                ahead.stop(&mut lock(&ahead.state));
            }
        };
        let does = match req.op() {
            // Who has a lock reads what was written before it was given.
            Op::Write { .. } | Op::Lock(_) => true,
            Op::Setattr { set } => set.size.is_some(),
            Op::Open { flags } => flags.has(OpenFlags::TRUNC),
            Op::Create { .. } => {
                if let Some(Reply::Open { node, .. }) = reply {
                    node.downcast_ref::<CFid>().into_iter().for_each(changed);
                }
                false
            }
            _ => false,
        };
        if does && let Ok(cfid) = req.node::<CFid>() {
            changed(&cfid);
        }
    }

    /// Some time has passed: runs that nobody reads end. Whether there are any left.
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
        // One may have begun since, and found it ticking.
        self.ahead.count.load(Ordering::SeqCst) > 0 && !self.ahead.ticking.swap(true, Ordering::SeqCst)
    }
}

/// The clock, while there are runs. Holds nothing of the mux while it sleeps.
async fn ticks(core: Weak<Core>, outside: Arc<Outside>) {
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

impl Ahead {
    /// For a fid that was opened like this, if its file can be read ahead.
    pub(crate) fn of(root: &Root, raw: Qid, flags: OpenFlags, iounit: u32) -> Option<Arc<Self>> {
        let is_plain = raw.ty == 0 && flags.reads() && !flags.has(OpenFlags::DIRECT);
        (root.tree.ahead && is_plain).then(|| {
            Arc::new_cyclic(|me| Self {
                me: me.clone(),
                iounit,
                waits: Arc::default(),
                state: Mutex::new(State {
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

    /// A Tread that was passed on is answered, perhaps with fewer bytes than it asked for.
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

    fn read(&self, core: &Core, passed: &Passed, client: u64, offset: u64, count: u32) -> Found {
        if count == 0 {
            return Found::Nothing;
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
            Found::Nothing
        })
    }

    fn find(
        &self,
        state: &mut State,
        core: &Core,
        live: &Live,
        client: u64,
        offset: u64,
        count: u32,
    ) -> Option<Found> {
        if state.never || (state.run.is_none() && state.serial < state.needed) {
            return None;
        }
        let now = core.ahead.now();
        let run = match &mut state.run {
            Some(run) => run,
            none => {
                state.number += 1;
                none.insert(Run::new(core, live, &self.me, state.number))
            }
        };
        run.touched = now;
        if !self.polled(client, |cx| run.look(now, cx)) {
            self.stop(state);
            return None;
        }
        let Known { since, size, is_regular, .. } = *run.known.as_ref()?;
        if !is_regular || offset >= size {
            state.never |= !is_regular;
            state.tire();
            self.stop(state);
            return None;
        }
        if run.stream.is_none() {
            run.stream = Stream::new(&core.ahead, live, self.iounit, offset, size, &mut state.limit);
        }
        let Some(stream) = &mut run.stream else {
            self.stop(state);
            return None;
        };
        let wanted = offset.saturating_add(count.into());
        let asked = stream.asked_at(offset).unwrap_or(now);
        // A short answer says where the file ends.
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
                Some(Found::Data(data))
            }
            Poll::Pending => {
                stream.late = true;
                let ahead = self.me.upgrade().expect("whoever calls it holds one");
                state.claimed += 1;
                let (number, run) = (state.claimed, state.number);
                Some(Found::UnderWay(Claim { ahead, number, run, is_served: false, client, offset, end }))
            }
        }
    }

    /// Polls as this client, whatever becomes of the request that is the reason.
    fn polled<T>(&self, client: u64, mut f: impl FnMut(&mut Context<'_>) -> T) -> T {
        let waker = Waker::from(self.waits.clone());
        let mut once = Cancel::of(client).scope(poll_fn(|cx| Poll::Ready(f(cx))));
        match Pin::new(&mut once).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => value,
            Poll::Pending => unreachable!("it is ready at once"),
        }
    }

    /// Ends the run: who waits for it passes its Tread on.
    fn stop(&self, state: &mut State) {
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

impl State {
    /// A run was in vain.
    fn tire(&mut self) {
        self.needed = (self.needed * 2).min(SERIAL_MAX);
    }

    /// Data goes to the Tread that claimed it.
    fn serve(&mut self, offset: u64, n: usize) {
        let Some(run) = &mut self.run else { return };
        let Some(stream) = &mut run.stream else { return };
        run.live.root.tree.upstream.ahead.served.fetch_add(n as u64, Ordering::Relaxed);
        stream.served += n as u64;
        stream.give_up(offset, self.next);
        if self.next >= stream.size && stream.claims.is_empty() {
            // The next Tread finds the end, or what was added, by itself.
            (self.run, self.serial, self.needed) = (None, 0, SERIAL);
        }
    }
}

impl Claim {
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

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.ahead.waits.0).remove(&self.number);
        let mut state = lock(&self.ahead.state);
        if !self.is_served && state.run.as_ref().is_some_and(|run| run.number == self.run) {
            self.ahead.stop(&mut state);
        }
    }
}

impl Run {
    fn new(core: &Core, live: &Live, me: &Weak<Ahead>, number: u64) -> Self {
        let runs = &core.ahead;
        runs.count.fetch_add(1, Ordering::SeqCst);
        live.root.tree.upstream.ahead.enter((live.root.member, live.raw.path), me.clone());
        if !runs.ticking.swap(true, Ordering::SeqCst) {
            core.jobs.begin(None, Box::pin(ticks(core.me.clone(), core.outside.clone())));
        }
        let (live, me, runs) = (live.clone(), me.clone(), runs.clone());
        Self { number, live, me, touched: runs.now(), runs, known: None, asking: None, stream: None }
    }

    /// Whether it still reads what stands for its fid, by a connection that is there.
    fn is_of(&self, live: &Live) -> bool {
        Arc::ptr_eq(&self.live.file, &live.file) && live.root.client.dead().is_none()
    }

    fn is_idle(&self, now: u64) -> bool {
        now - self.touched > AGE && self.stream.as_ref().is_none_or(|stream| stream.claims.is_empty())
    }

    /// Looks whether the file is the same as before, as far as has been heard, and asks again from time to time.
    fn look(&mut self, now: u64, cx: &mut Context<'_>) -> bool {
        loop {
            if let Some((since, asking)) = &mut self.asking {
                let Poll::Ready(attr) = asking.as_mut().poll(cx) else { return true };
                let Ok(attr) = attr else { return false };
                let known = Known::of(&attr, *since);
                if self.known.as_ref().is_some_and(|before| !before.is(&known)) {
                    return false;
                }
                (self.known, self.asking) = (Some(known), None);
            }
            if self.known.as_ref().is_some_and(|known| now - known.since < AGAIN) {
                return true;
            }
            let file = self.live.file.clone();
            let asking: Asking = Box::pin(async move { file.getattr(GetMask::BASIC).await });
            self.asking = Some((now, asking));
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let root = &self.live.root;
        root.tree.upstream.ahead.leave((root.member, self.live.raw.path), &self.me);
        self.runs.count.fetch_sub(1, Ordering::SeqCst);
        self.stream.iter().for_each(|stream| self.runs.give_back(stream.reserved));
        // What is under way is flushed.
        root.tree.core.upgrade().inspect(|core| core.flushed());
    }
}

impl Known {
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

impl Stream {
    /// From `offset` on, if there is room for it.
    fn new(runs: &Runs, live: &Live, iounit: u32, offset: u64, size: u64, limit: &mut usize) -> Option<Self> {
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

    /// When what is at `offset` was asked for, or before.
    fn asked_at(&self, offset: u64) -> Option<u64> {
        self.asked.iter().find(|(edge, _)| offset < *edge).map(|(_, time)| *time)
    }

    /// Asks for more or less from now on, if there were enough reads since it was looked at last. `age`: how long ago
    /// what is read now was asked for.
    fn adapt(&mut self, runs: &Runs, live: &Live, next: u64, age: u64, limit: &mut usize) {
        if next < self.looked + *limit as u64 {
            return;
        }
        self.looked = next;
        let late = std::mem::take(&mut self.late);
        let piece = self.reader.piece_max() as usize;
        let twice = (*limit * 2).min(limit_max(live, piece)).max(*limit);
        if age > AGE * 3 / 4 {
            *limit = (*limit / 2).max(piece);
        } else if late && age < AGE / 2 {
            let more = (twice + piece).saturating_sub(self.reserved);
            if runs.reserve(more) {
                self.reserved += more;
                *limit = twice;
            }
        }
    }

    /// The bytes from `offset` to `end`, when they are there; asks for what comes before `horizon`. `None`: there is an
    /// error, or there are fewer.
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

    /// Bytes that are there: in one piece without a copy.
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

    /// The Tread that began at `offset` waits no more; what nobody can ask for any more goes.
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

/// The most that a run has under way: half of what its client may have at most.
fn limit_max(live: &Live, piece: usize) -> usize {
    let options = &live.root.tree.upstream.server.options;
    WINDOW.min(options.window).min(options.budget / 8).min(PIECES * piece).max(piece)
}

/// Serial reads that begin a run.
const SERIAL: u32 = 2;
/// And at most, after many in vain.
const SERIAL_MAX: u32 = 64;
/// What a run has under way in the beginning, bytes.
const BEGIN: usize = 256 * 1024;
/// And at most.
const WINDOW: usize = 4 << 20;
/// And pieces at most: a server may have said that it likes small ones.
const PIECES: usize = 64;
/// What all runs of a mux may have under way and not taken, bytes.
pub const TOTAL: usize = 64 << 20;
/// What was asked for longer ago is not served, milliseconds.
const AGE: u64 = 2000;
/// The attributes are asked for again after so long, milliseconds.
const AGAIN: u64 = 1000;
const TICK: Duration = Duration::from_millis(250);
