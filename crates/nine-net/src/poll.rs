//! Sockets without a runtime: threads that wait for results drive the connections themselves, with poll(2).
//!
//! In: futures to wait for ([`Reactor::block_on`]), futures to drive meanwhile ([`Reactor::spawn`]: the driver of a
//! connection), addresses. Out: results; [`PollSocket`]s, which are [`Transport`]s.
//!
//! One of the waiting threads leads: it runs the spawned futures and waits in poll(2) for their sockets and timers. The
//! others are parked until their own future is woken. A thread that leaves while there is no leader wakes the next one.
//! So a single thread needs no hop to another one, and several threads share a connection without an extra thread.
//!
//! Always holds: while threads wait, one of them leads or has been woken to lead. Wakers are called without a lock
//! held.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak, atomic::Ordering::SeqCst, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use socket2::{SockAddr, Socket as Raw};

use crate::dial::Addr;
use crate::end::{self, UnresolvedAddr};
use crate::env::{Clock, Env, Timer};
use crate::rt::Real;
use crate::sync::{AtomicBool, Bell, Mutex, MutexGuard, Parker, ThreadId, WatchedSocket, lock};
use crate::transport::{Peer, Proof, Transport};

/// Waits for sockets and timers on the threads that need them. Clones share one reactor; any thread may use any of
/// them. When the last clone is dropped, the spawned futures are dropped.
#[derive(Clone)]
pub struct Reactor(Arc<ReactorOwner>);

impl Reactor {
    /// Creates a reactor. It uses one descriptor.
    pub fn new() -> io::Result<Reactor> {
        let core = ReactorCore { bell: Bell::new()?, state: Mutex::default() };
        Ok(Reactor(Arc::new(ReactorOwner(Arc::new(core)))))
    }

    /// Runs `future` to its end on this thread, and drives the spawned futures meanwhile.
    ///
    /// # Panics
    /// If a future that this reactor drives calls it. A panic of a spawned future propagates here too, on the thread
    /// that leads at that time; that future does not run again.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        // Without a deadline only the result ends the wait.
        self.wait(future, None).expect("no deadline")
    }

    /// The same for at most `limit`. Returns `None` after that, and drops `future`.
    pub fn block_on_for<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        self.wait(future, Some(end::after(limit)))
    }

    /// Drives `future` while a thread waits in [`Reactor::block_on`], and only then. It must not own a clone of the
    /// reactor: neither would ever be dropped.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let core = &self.0.0;
        let mut state = core.lock();
        let id = state.new_id();
        let future = Mutex::new(Some(Box::pin(future) as Pin<Box<_>>));
        let job =
            Arc::new(ReactorJob { id, future, queued: AtomicBool::new(false), core: Arc::downgrade(core) });
        state.jobs.insert(id, job.clone());
        drop(state);
        job.wake();
    }

    /// Completes when `limit` has passed.
    pub fn sleep(&self, limit: Duration) -> Sleep {
        let core = self.0.0.clone();
        let id = core.lock().new_id();
        Sleep { core, key: (end::after(limit), id) }
    }

    /// The clock of this machine with timers of this reactor, for futures that it drives.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(ReactorClock(self.0.0.clone()))
    }

    /// Dials `addr`, like [`Socket::connect`](crate::Socket::connect). Blocks this thread, and drives nothing
    /// meanwhile.
    pub fn connect(&self, addr: &Addr, limit: Duration) -> io::Result<PollSocket> {
        match dial(addr, end::after(limit)) {
            Ok((raw, peer)) => Ok(self.adopt(raw, peer)),
            Err(e) if e.kind() == io::ErrorKind::TimedOut => Err(end::tried(addr, end::too_late(limit))),
            Err(e) => Err(end::tried(addr, e)),
        }
    }

    /// The same as a future, for addresses that need no name resolution. It never blocks a thread.
    pub fn connecting(
        &self,
        addr: &Addr,
        limit: Duration,
    ) -> impl Future<Output = io::Result<PollSocket>> + Send + use<> {
        let (reactor, addr, mut late) = (self.clone(), addr.clone(), self.sleep(limit));
        async move {
            let UnresolvedAddr::Known(at) = end::place(&addr)? else {
                let why = "a name is to be resolved first";
                return Err(end::tried(&addr, io::Error::new(io::ErrorKind::InvalidInput, why)));
            };
            let raw = end::connect(&at).map_err(|e| end::tried(&addr, e))?;
            let mut socket = reactor.adopt(raw, Peer { addr: String::new(), proof: Proof::None });
            reactor.0.0.spent(socket.id, WRITE);
            let connected = poll_fn(|cx| match Pin::new(&mut late).poll(cx) {
                Poll::Ready(()) => Poll::Ready(Err(end::too_late(limit))),
                Poll::Pending => socket.poll_connected(cx, &at),
            });
            socket.peer = connected.await.map_err(|e| end::tried(&addr, e))?;
            Ok(socket)
        }
    }

    /// Takes over a connected stream socket, and makes it non-blocking.
    pub fn from_parts(&self, fd: OwnedFd, peer: Peer) -> io::Result<PollSocket> {
        let raw = Raw::from(fd);
        raw.set_nonblocking(true)?;
        Ok(self.adopt(raw, peer))
    }

    fn adopt(&self, raw: Raw, peer: Peer) -> PollSocket {
        let (core, raw) = (self.0.0.clone(), Arc::new(raw));
        let mut state = core.lock();
        let id = state.new_id();
        let sides = [SocketSide { ready: false, waker: None }, SocketSide { ready: true, waker: None }];
        state.sources.insert(id, SocketSource { raw: raw.clone(), sides });
        drop(state);
        PollSocket { raw, id, core, peer }
    }

    fn wait<F: Future>(&self, future: F, deadline: Option<Instant>) -> Option<F::Output> {
        let core = &self.0.0;
        let me = Arc::new(BlockedThread {
            thread: Parker::here(),
            notified: AtomicBool::new(false),
            core: Arc::downgrade(core),
        });
        let busy = core.lock().leader == Some(me.thread.id());
        assert!(!busy, "block_on inside a future that the same reactor drives");
        let waker = Waker::from(me.clone());
        let mut seat = LeaderSeat { core, me: &me, leads: false };
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(result);
            }
            while !me.notified.swap(false, SeqCst) {
                let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
                match left {
                    Some(Duration::ZERO) => return None,
                    _ if seat.lead() => core.turn(&me, left),
                    left => me.thread.park(left),
                }
            }
        }
    }
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.0.lock();
        write!(f, "Reactor({} sockets, {} futures)", state.sources.len(), state.jobs.len())
    }
}

/// A stream socket that waits with its [`Reactor`]. Any thread may drive it, one at a time.
pub struct PollSocket {
    raw: Arc<Raw>,
    id: u64,
    core: Arc<ReactorCore>,
    peer: Peer,
}

impl PollSocket {
    /// Runs `call` when the socket is ready in a direction. If it would block, waits again.
    fn poll_io(
        &mut self,
        cx: &mut Context<'_>,
        side: usize,
        mut call: impl FnMut(&Raw) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while self.core.ready(self.id, side, cx.waker()) {
            match call(&self.raw) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.core.spent(self.id, side),
                done => return Poll::Ready(done),
            }
        }
        Poll::Pending
    }
}

impl PollSocket {
    /// The result of connecting: the peer's identity.
    fn poll_connected(&mut self, cx: &mut Context<'_>, at: &SockAddr) -> Poll<io::Result<Peer>> {
        while self.core.ready(self.id, WRITE, cx.waker()) {
            match end::connected(&self.raw, at) {
                Err(e) if e.kind() == io::ErrorKind::NotConnected => self.core.spent(self.id, WRITE),
                done => return Poll::Ready(done),
            }
        }
        Poll::Pending
    }
}

impl Transport for PollSocket {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let done = self.poll_io(cx, READ, |raw| end::recv(raw, buf));
        // A short read has emptied the socket: the next read asks poll(2) first.
        if matches!(done, Poll::Ready(Ok(n)) if 0 < n && n < buf.len()) {
            self.core.spent(self.id, READ);
        }
        done
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll_io(cx, WRITE, |raw| end::send(raw, bufs))
    }

    fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(end::close(&self.raw))
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl fmt::Debug for PollSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PollSocket").field(&self.peer).finish()
    }
}

impl Drop for PollSocket {
    fn drop(&mut self) {
        let mut state = self.core.lock();
        let source = state.sources.remove(&self.id);
        // The leader may use the descriptor in poll(2). It must release it, so that the peer sees the end now.
        self.core.ring(&state);
        drop(state);
        // Wakers are dropped without the lock.
        drop(source);
    }
}

/// The future of [`Reactor::sleep`].
pub struct Sleep {
    core: Arc<ReactorCore>,
    key: (Instant, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.key.0 <= Instant::now() {
            return Poll::Ready(());
        }
        let mut state = self.core.lock();
        let old = state.timers.insert(self.key, cx.waker().clone());
        self.core.ring(&state);
        drop(state);
        drop(old);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let old = self.core.lock().timers.remove(&self.key);
        drop(old);
    }
}

/// See [`Reactor::clock`].
struct ReactorClock(Arc<ReactorCore>);

impl Clock for ReactorClock {
    fn now(&self) -> Duration {
        Real.now()
    }

    fn wall(&self) -> Duration {
        Real.wall()
    }

    fn sleep_until(&self, deadline: Duration) -> Timer {
        let id = self.0.lock().new_id();
        let at = end::after(deadline.saturating_sub(self.now()));
        Box::pin(Sleep { core: self.0.clone(), key: (at, id) })
    }

    fn entropy(&self, buf: &mut [u8]) {
        Real.entropy(buf);
    }
}

/// Ends with the last [`Reactor`]. Drops the spawned futures, whose sockets would otherwise keep the core alive.
struct ReactorOwner(Arc<ReactorCore>);

impl Drop for ReactorOwner {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let (jobs, ready) = (std::mem::take(&mut state.jobs), std::mem::take(&mut state.ready));
        drop(state);
        drop(ready);
        for job in jobs.into_values() {
            let future = lock(&job.future).take();
            drop(future);
        }
    }
}

struct ReactorCore {
    /// Rung to bring the leader back from poll(2).
    bell: Bell,
    state: Mutex<ReactorState>,
}

/// The tables grow only with the sockets, timers, futures and threads of the callers.
#[derive(Default)]
struct ReactorState {
    next_id: u64,
    sources: BTreeMap<u64, SocketSource>,
    timers: BTreeMap<(Instant, u64), Waker>,
    jobs: BTreeMap<u64, Arc<ReactorJob>>,
    /// Woken jobs, each at most once.
    ready: VecDeque<Arc<ReactorJob>>,
    leader: Option<ThreadId>,
    /// The leader is in poll(2), or about to be: a change of this state must ring the bell.
    polling: bool,
    /// Waiting threads that do not lead.
    parked: Vec<Arc<BlockedThread>>,
}

impl ReactorState {
    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// A socket, with the state of its two directions.
struct SocketSource {
    raw: Arc<Raw>,
    sides: [SocketSide; 2],
}

struct SocketSide {
    /// The next call will probably not block.
    ready: bool,
    waker: Option<Waker>,
}

impl ReactorCore {
    fn lock(&self) -> MutexGuard<'_, ReactorState> {
        lock(&self.state)
    }

    fn ring(&self, state: &ReactorState) {
        if state.polling {
            self.bell.ring();
        }
    }

    /// Whether a direction is ready. If not, `waker` is called when it is.
    fn ready(&self, id: u64, side: usize, waker: &Waker) -> bool {
        let mut state = self.lock();
        // A socket is in the table until it is dropped.
        let side = &mut state.sources.get_mut(&id).expect("a source per socket").sides[side];
        if side.ready {
            return true;
        }
        let old = side.waker.replace(waker.clone());
        self.ring(&state);
        drop(state);
        drop(old);
        false
    }

    fn spent(&self, id: u64, side: usize) {
        if let Some(source) = self.lock().sources.get_mut(&id) {
            source.sides[side].ready = false;
        }
    }

    /// One round of the leader: runs the woken jobs, then waits in poll(2), for at most `limit`, and not at all if
    /// there is work.
    fn turn(&self, me: &BlockedThread, limit: Option<Duration>) {
        let woken = self.lock().ready.len();
        for _ in 0..woken {
            // One by one: a panic of one leaves the others in the queue.
            let job = self.lock().ready.pop_front();
            job.into_iter().for_each(ReactorJob::run);
        }
        let mut state = self.lock();
        if me.notified.load(SeqCst) {
            return;
        }
        let timer = state.timers.keys().next().map(|(at, _)| at.saturating_duration_since(Instant::now()));
        let limit = match state.ready.is_empty() {
            true => timer.into_iter().chain(limit).min(),
            false => Some(Duration::ZERO),
        };
        let watched: Vec<WatchedSocket> =
            state.sources.iter().filter_map(|(&id, s)| Some((id, s.raw.clone(), s.wanted()?))).collect();
        state.polling = true;
        drop(state);

        let mut came = self.bell.wait(&watched, limit);

        let mut wakers = Vec::new();
        let mut state = self.lock();
        state.polling = false;
        if came.next().is_some_and(|bell| !bell.is_empty()) {
            self.bell.silence();
        }
        for ((id, ..), came) in watched.iter().zip(came) {
            if let Some(source) = state.sources.get_mut(id) {
                source.came(came, &mut wakers);
            }
        }
        let now = Instant::now();
        while let Some(timer) = state.timers.first_entry().filter(|timer| timer.key().0 <= now) {
            wakers.push(timer.remove());
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl SocketSource {
    /// The events to request from poll(2), if any.
    fn wanted(&self) -> Option<PollFlags> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, self.sides[READ].waker.is_some());
        wanted.set(PollFlags::OUT, self.sides[WRITE].waker.is_some());
        (!wanted.is_empty()).then_some(wanted)
    }

    fn came(&mut self, events: PollFlags, wakers: &mut Vec<Waker>) {
        let broken = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        for (side, event) in self.sides.iter_mut().zip([PollFlags::IN, PollFlags::OUT]) {
            if events.intersects(event | broken) {
                side.ready = true;
                wakers.extend(side.waker.take());
            }
        }
    }
}

/// A spawned future.
struct ReactorJob {
    id: u64,
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    /// It is in the queue of woken jobs already.
    queued: AtomicBool,
    core: Weak<ReactorCore>,
}

impl ReactorJob {
    /// Called by the leader only.
    fn run(self: Arc<Self>) {
        // A swap: a waker that found the flag set has queued nothing, so this run must see everything done before that
        // wake.
        self.queued.swap(false, SeqCst);
        // Taken out while it runs, so that a future that panics does not run again.
        let Some(mut future) = lock(&self.future).take() else { return };
        let waker = Waker::from(self.clone());
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            *lock(&self.future) = Some(future);
        } else if let Some(core) = self.core.upgrade() {
            core.lock().jobs.remove(&self.id);
        }
    }
}

impl Wake for ReactorJob {
    fn wake(self: Arc<Self>) {
        let Some(core) = self.core.upgrade() else { return };
        if !self.queued.swap(true, SeqCst) {
            let mut state = core.lock();
            state.ready.push_back(self);
            core.ring(&state);
        }
    }
}

/// A thread in [`Reactor::block_on`].
struct BlockedThread {
    thread: Parker,
    /// Its future was woken.
    notified: AtomicBool,
    core: Weak<ReactorCore>,
}

impl Wake for BlockedThread {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.notified.swap(true, SeqCst) {
            return;
        }
        // The leader checks `notified` and sets `polling` under one hold of the lock. If it holds the lock first, this
        // thread sees `polling` and rings. Otherwise the leader sees `notified` and does not poll.
        if let Some(core) = self.core.upgrade() {
            let state = core.lock();
            if state.leader == Some(self.thread.id()) {
                core.ring(&state);
                return;
            }
        }
        self.thread.unpark();
    }
}

/// A thread's part in the election, which ends when it is dropped.
struct LeaderSeat<'a> {
    core: &'a ReactorCore,
    me: &'a Arc<BlockedThread>,
    leads: bool,
}

impl LeaderSeat<'_> {
    /// Takes the lead if it is free. Returns whether this thread leads. If not, it may park: it will be woken.
    fn lead(&mut self) -> bool {
        if self.leads {
            return true;
        }
        let mut state = self.core.lock();
        if state.leader.is_none() {
            state.leader = Some(self.me.thread.id());
            state.parked.retain(|parked| !Arc::ptr_eq(parked, self.me));
            self.leads = true;
        } else if !state.parked.iter().any(|parked| Arc::ptr_eq(parked, self.me)) {
            state.parked.push(self.me.clone());
        }
        self.leads
    }
}

impl Drop for LeaderSeat<'_> {
    fn drop(&mut self) {
        let mut state = self.core.lock();
        state.parked.retain(|parked| !Arc::ptr_eq(parked, self.me));
        if self.leads {
            state.leader = None;
            // A panic within a round may have left it set.
            state.polling = false;
        }
        if let (None, Some(next)) = (state.leader, state.parked.first()) {
            next.thread.unpark();
        }
    }
}

fn dial(addr: &Addr, deadline: Instant) -> io::Result<(Raw, Peer)> {
    let places = match end::place(addr)? {
        UnresolvedAddr::Known(at) => vec![at],
        UnresolvedAddr::Named(host, port) => lookup(host.into(), port, deadline)?,
    };
    let mut last = io::Error::other("the name has no address");
    for (n, at) in places.iter().enumerate() {
        let now = Instant::now();
        let share = deadline.saturating_duration_since(now) / (places.len() - n) as u32;
        match dial_one(at, now + share) {
            Err(e) => last = e,
            done => return done,
        }
    }
    Err(last)
}

fn dial_one(at: &SockAddr, deadline: Instant) -> io::Result<(Raw, Peer)> {
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let raw = loop {
        match end::connect(at) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => thread::sleep(left()?.min(end::BACKLOG_PAUSE)),
            begun => break begun?,
        }
    };
    loop {
        let limit = Timespec::try_from(left()?).ok();
        let _ = rustix::event::poll(&mut [PollFd::new(&raw, PollFlags::OUT)], limit.as_ref());
        match end::connected(&raw, at) {
            Err(e) if e.kind() == io::ErrorKind::NotConnected => {}
            done => return done.map(|peer| (raw, peer)),
        }
    }
}

/// Resolves a name on a separate thread, since the resolver has no deadline. A late lookup ends by itself.
fn lookup(host: String, port: u16, deadline: Instant) -> io::Result<Vec<SockAddr>> {
    let (send, receive) = mpsc::sync_channel(1);
    thread::Builder::new().name("lookup".into()).spawn(move || {
        let _ = send.send(end::lookup(&host, port));
    })?;
    match receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(found) => found,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

const READ: usize = 0;
const WRITE: usize = 1;

#[cfg(all(test, nine_loom))]
mod orders;
#[cfg(all(test, not(nine_loom)))]
mod tests;
