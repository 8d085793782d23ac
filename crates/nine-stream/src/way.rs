//! One direction of a stream: the module halves in order, the end behind them, and the waiting callers.
//!
//! In: chains of blocks, hangups, wake-ups. Out: chains at the end, and wake-ups. A put runs through all modules in the
//! caller's task, under the direction's lock. So the puts of several tasks arrive in the order in which they took the
//! lock. Later actions (wake-ups, a run of the other half of a module) are collected and done when no lock is held.
//!
//! Always holds: a waiting caller was refused under the lock. Every event that makes room then calls
//! [`StreamDirection::pump`], which takes that lock. So no wake-up is lost between the two. Locks are taken down before
//! up; the locks of a conversation come before those of a stream that it is joined to or multiplexed on.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::task::Wake;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use crate::block::Chain;
use crate::lock::{Mutex, MutexGuard, lock};
use crate::module::{Control, Fault, Module, Next};
use crate::port::DiscardEnd;
use crate::queue::{Limit, Queue};
use crate::wait::{QueueTicket, WaiterQueue, wake};

/// The clock of a stream's modules.
pub(crate) type ModuleClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The end behind the last module.
pub(crate) trait DirectionEnd: Send {
    /// Takes a chain or refuses it.
    fn put(&mut self, chain: Chain, after: &mut RunActions) -> Result<(), Chain>;

    /// Ends the data. `why` is the error, if it did not end in good order.
    fn hangup(&mut self, why: &StreamHangup, after: &mut RunActions);

    /// Whether it refuses data now.
    fn is_full(&self) -> bool;

    /// Keeps the direction `way` alive until the end has signalled room or has ended itself.
    fn hold(&mut self, way: Waker) {
        let _ = way;
    }
}

/// The actions to take after a run.
#[derive(Default)]
pub(crate) struct RunActions {
    /// Wakers to wake when no lock is held.
    pub(crate) wakes: Vec<Waker>,
    /// An error with which to hang up the direction.
    pub(crate) fault: Option<Fault>,
    /// Whether the receiver of the direction's output is gone.
    pub(crate) gone: bool,
    /// Whether to pump the other direction.
    pub(crate) kicked: bool,
    /// Whether the direction ends in good order.
    pub(crate) finished: bool,
    /// Other directions to end when no lock is held: with an error, or because their receiver is gone.
    ended: Vec<(Arc<StreamDirection>, StreamHangup)>,
}

impl RunActions {
    /// Takes the collected actions. No lock may be held.
    pub(crate) fn wake(mut self) {
        while let Some((way, why)) = self.ended.pop() {
            match why {
                Some(_) => way.hangup(why, &mut self),
                None => way.abandon(&mut self),
            }
        }
        wake(self.wakes);
    }
}

/// The end of a stream: `None` if in good order, else the error.
pub(crate) type StreamHangup = Option<Fault>;

pub(crate) struct StreamDirection {
    state: Mutex<DirectionState>,
    /// Whether the direction has ended. The other direction reads it under its own lock.
    ended: AtomicBool,
    clock: ModuleClock,
    me: Weak<StreamDirection>,
}

pub(crate) struct DirectionState {
    links: Vec<ModuleLink>,
    end: Box<dyn DirectionEnd>,
    waiters: WaiterQueue,
    hungup: Option<StreamHangup>,
    /// Whether to hang up when the data in the modules has left.
    closing: bool,
    /// Number of modules, from the first on, that have passed on their data and are closed.
    closed: usize,
    /// Whether a message has started and not ended.
    mid: bool,
    /// Whether there is no reader, but a module needs the data while the other direction lives.
    listens: bool,
    /// The other direction of the stream.
    other: Weak<StreamDirection>,
    /// The direction that ends in this one and nowhere else. It is hung up together with this one.
    feeder: Weak<StreamDirection>,
    /// Waker of a task that waits for the end, while it waits for something else before its put.
    watcher: Option<Waker>,
}

/// One half of a module, and its queue.
pub(crate) struct ModuleLink {
    name: &'static str,
    module: Box<dyn Module>,
    /// Data that the module has passed on and the next one has refused.
    queue: Queue,
}

/// The context of one run through the modules.
pub(crate) struct ModuleRun<'r> {
    end: &'r mut dyn DirectionEnd,
    pub(crate) clock: &'r (dyn Fn() -> Duration + Send + Sync),
    pub(crate) after: &'r mut RunActions,
}

/// Puts a chain to the next module, or to the end behind the last one.
pub(crate) fn pass(rest: &mut [ModuleLink], run: &mut ModuleRun<'_>, chain: Chain) -> Result<(), Chain> {
    match rest.split_first_mut() {
        Some((link, rest)) => link.put(rest, run, chain),
        None => run.end.put(chain, run.after),
    }
}

impl ModuleLink {
    pub(crate) fn new(name: &'static str, module: Box<dyn Module>) -> Self {
        Self { name, module, queue: Queue::new(Limit::ONE) }
    }

    fn put(&mut self, rest: &mut [ModuleLink], run: &mut ModuleRun<'_>, chain: Chain) -> Result<(), Chain> {
        self.drain(rest, run);
        if !self.queue.is_empty() || self.module.is_full() {
            return Err(chain);
        }
        self.call(rest, run, |module, next| module.put(chain, next));
        Ok(())
    }

    /// Passes on the refused data.
    fn drain(&mut self, rest: &mut [ModuleLink], run: &mut ModuleRun<'_>) {
        while let Some(block) = self.queue.pop() {
            if let Err(refused) = pass(rest, run, block.into()) {
                refused.into_iter().for_each(|block| self.queue.put_back(block));
                return;
            }
        }
    }

    fn call(
        &mut self,
        rest: &mut [ModuleLink],
        run: &mut ModuleRun<'_>,
        f: impl FnOnce(&mut dyn Module, &mut Next<'_, '_>) -> Result<(), Fault>,
    ) {
        let mut next = Next { queue: &mut self.queue, rest, run };
        if let Err(fault) = f(&mut *self.module, &mut next) {
            let name = self.name;
            run.after.fault.get_or_insert_with(|| Fault::new(format!("{name}: {fault}")));
        }
    }
}

impl StreamDirection {
    /// Creates a direction without modules. `end` gets the waker that pumps the direction.
    pub(crate) fn new<E: DirectionEnd + 'static>(
        clock: &ModuleClock,
        end: impl FnOnce(Waker) -> E,
    ) -> Arc<Self> {
        Arc::new_cyclic(|way: &Weak<Self>| {
            let end = Box::new(end(Arc::new(DirectionPump(way.clone())).into()));
            let state = DirectionState {
                links: Vec::new(),
                end,
                waiters: WaiterQueue::default(),
                hungup: None,
                closing: false,
                closed: 0,
                mid: false,
                listens: false,
                other: Weak::new(),
                feeder: Weak::new(),
                watcher: None,
            };
            Self {
                state: Mutex::new(state),
                ended: AtomicBool::new(false),
                clock: clock.clone(),
                me: way.clone(),
            }
        })
    }

    /// Joins the two directions of one stream.
    pub(crate) fn pair(up: &Arc<Self>, down: &Arc<Self>) {
        up.lock().other = Arc::downgrade(down);
        down.lock().other = Arc::downgrade(up);
    }

    /// Notes that this direction feeds `into`, and nothing else.
    pub(crate) fn feeds(self: &Arc<Self>, into: &Arc<Self>) {
        into.lock().feeder = Arc::downgrade(self);
    }

    /// Puts a chain through the modules. If there is no room, the chain stays in place. `waker` is then woken when
    /// there is room, in the order of the waiters.
    pub(crate) fn poll_put(
        &self,
        waker: &Waker,
        chain: &mut Option<Chain>,
        ticket: &mut QueueTicket,
        after: &mut RunActions,
    ) -> Poll<Result<(), StreamHangup>> {
        let mut state = self.lock();
        if state.is_ending() {
            state.waiters.leave(ticket);
            return Poll::Ready(Err(state.hungup.clone().flatten()));
        }
        let Some(given) = chain.take().filter(|given| !given.is_empty()) else {
            return Poll::Ready(Ok(()));
        };
        let mid = !given.ends_message();
        let refused = match state.waiters.is_turn(ticket) {
            true => self.run(&mut state, after, |links, run| pass(links, run, given)).err(),
            false => Some(given),
        };
        if let Some(refused) = refused {
            *chain = Some(refused);
            state.waiters.wait(ticket, waker);
            return Poll::Pending;
        }
        if let Some(why) = state.hungup.clone() {
            // The hangup is the reason, or the chain came too late anyway.
            state.waiters.leave(ticket);
            return Poll::Ready(Err(why));
        }
        state.mid = mid;
        if state.waiters.leave(ticket) {
            after.wakes.extend(state.waiters.first());
        }
        Poll::Ready(Ok(()))
    }

    /// Runs [`StreamDirection::poll_put`] as a future.
    pub(crate) async fn put(&self, chain: Chain) -> Result<(), Fault> {
        let mut chain = Some(chain);
        let mut waiting = RoomWait { way: self, ticket: None };
        poll_fn(|cx: &mut Context<'_>| {
            let mut after = RunActions::default();
            let polled = self.poll_put(cx.waker(), &mut chain, &mut waiting.ticket, &mut after);
            after.wake();
            polled.map_err(hungup)
        })
        .await
    }

    /// Puts a chain if there is room now. Otherwise returns it.
    pub(crate) fn try_put(&self, chain: Chain) -> Result<(), (Chain, Option<Fault>)> {
        let (mut given, mut ticket, mut after) = (Some(chain), None, RunActions::default());
        let polled = self.poll_put(Waker::noop(), &mut given, &mut ticket, &mut after);
        self.leave(&mut ticket);
        after.wake();
        match polled {
            Poll::Ready(Ok(())) => Ok(()),
            Poll::Ready(Err(why)) => Err((given.unwrap_or_default(), Some(hungup(why)))),
            Poll::Pending => Err((given.unwrap_or_default(), None)),
        }
    }

    /// Replaces the waker of a waiter.
    pub(crate) fn wait_on(&self, ticket: &mut QueueTicket, waker: &Waker) {
        if ticket.is_some() {
            self.lock().waiters.wait(ticket, waker);
        }
    }

    /// Stops waiting.
    pub(crate) fn leave(&self, ticket: &mut QueueTicket) {
        if ticket.is_none() {
            return;
        }
        let mut state = self.lock();
        let next = if state.waiters.leave(ticket) { state.waiters.first() } else { None };
        drop(state);
        wake(next);
    }

    /// Continues after room at the end was made, or after an event that a module waits for. Data in the modules moves
    /// on, and the first waiter is woken.
    pub(crate) fn pump(&self) {
        let mut after = RunActions::default();
        let mut state = self.lock();
        if state.hungup.is_none() {
            self.run(&mut state, &mut after, |links, run| {
                for at in (0..links.len()).rev() {
                    let [link, rest @ ..] = &mut links[at..] else { continue };
                    link.drain(rest, run);
                    if link.queue.is_empty() {
                        link.call(rest, run, |module, next| module.resume(next));
                    }
                }
            });
            after.wakes.extend(state.waiters.first());
            if state.closing {
                self.close(&mut state, &mut after);
            }
        }
        let over =
            state.listens && state.other.upgrade().is_none_or(|other| other.ended.load(Ordering::SeqCst));
        drop(state);
        if over {
            self.abandon(&mut after);
        }
        after.wake();
    }

    /// Returns the time by which [`StreamDirection::tick`] must be called.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let fed = self.closing_feeder().and_then(|feeder| feeder.deadline());
        let state = self.lock();
        if state.hungup.is_some() {
            return fed;
        }
        // A module with refused data waits for room, not for the time.
        let ready = state.links.iter().filter(|link| link.queue.is_empty());
        ready.filter_map(|link| link.module.deadline()).chain(fed).min()
    }

    /// Continues when a deadline has passed.
    pub(crate) fn tick(&self) {
        if let Some(feeder) = self.closing_feeder() {
            feeder.pump();
        }
        self.pump();
    }

    /// Returns the feeding direction, if it is closing. Its own stream may be gone, so this direction handles its
    /// deadlines.
    fn closing_feeder(&self) -> Option<Arc<Self>> {
        let feeder = self.lock().feeder.upgrade()?;
        let closing = feeder.lock().closing;
        closing.then_some(feeder)
    }

    /// Returns the hangup if the direction accepts no more data. Otherwise `waker` is woken when it ends. Only one task
    /// at a time can wait.
    pub(crate) fn poll_end(&self, waker: &Waker) -> Poll<StreamHangup> {
        let mut state = self.lock();
        if state.is_ending() {
            return Poll::Ready(state.hungup.clone().flatten());
        }
        state.watcher = Some(waker.clone());
        Poll::Pending
    }

    /// Drops the waker of a task that waited for the end.
    pub(crate) fn forget_watcher(&self) {
        let old = self.lock().watcher.take();
        drop(old);
    }

    /// Stops accepting data. In good order, the data in the modules still moves on, and each module passes on its data.
    /// After an error the data is dropped.
    pub(crate) fn hangup(&self, why: StreamHangup, after: &mut RunActions) {
        let mut state = self.lock();
        match why {
            None => self.close(&mut state, after),
            fault => self.end(&mut state, fault, after),
        }
    }

    /// Stops accepting data without closing the modules.
    pub(crate) fn stop(&self, after: &mut RunActions) {
        let mut state = self.lock();
        state.closed = state.links.len();
        self.close(&mut state, after);
    }

    /// Handles the loss of the reader. If a closing module of the other direction needs the data of this one, this
    /// direction stays open until the other has ended. Returns whether that is so.
    pub(crate) fn listen_on(&self, after: &mut RunActions) -> bool {
        let other = self.lock().other.upgrade();
        if !other.is_some_and(|other| other.lock().hears()) {
            return false;
        }
        let mut state = self.lock();
        if state.hungup.is_none() {
            state.listens = true;
            core::mem::replace(&mut state.end, Box::new(DiscardEnd)).hangup(&None, after);
            after.wakes.extend(self.me.upgrade().map(Waker::from));
        }
        true
    }

    /// Ends the direction because its receiver is gone.
    pub(crate) fn abandon(&self, after: &mut RunActions) {
        let mut state = self.lock();
        let gone = core::mem::take(&mut state.links);
        self.end(&mut state, None, after);
        drop(state);
        // Dropping a module may run any code, so do it without the lock.
        drop(gone);
    }

    /// Ends in good order, as far as possible now. [`StreamDirection::pump`] continues it. A module is closed when all
    /// data before it has arrived and it accepts it.
    fn close(&self, state: &mut DirectionState, after: &mut RunActions) {
        if state.hungup.is_some() {
            return;
        }
        if !core::mem::replace(&mut state.closing, true) {
            after.wakes.extend(state.all_waiting());
            state.end.hold(self.me.upgrade().map_or(Waker::noop().clone(), Waker::from));
        }
        let mut closed = state.closed;
        // After the end of the other direction, a module that waits for its data, and for no time, waits for ever.
        let alone = state.other.upgrade().is_none_or(|other| other.ended.load(Ordering::SeqCst));
        let is_stuck = move |link: &ModuleLink| {
            alone && link.module.deadline().is_none() && !link.module.waits_for_room()
        };
        // Returns the name of a module that will never take the data before it.
        let dam = move |links: &[ModuleLink], at: usize| -> Option<&'static str> {
            let next = links.get(at + 1).filter(|next| next.queue.is_empty() && is_stuck(next))?;
            next.module.is_full().then_some(next.name)
        };
        let done = self.run(state, after, |links, run| {
            loop {
                for at in (0..links.len().min(closed + 1)).rev() {
                    let [link, rest @ ..] = &mut links[at..] else { continue };
                    link.drain(rest, run);
                    if alone && link.queue.is_empty() {
                        // It may have waited for the room that is available now.
                        link.call(rest, run, |module, next| module.resume(next));
                    }
                }
                for (at, link) in links.iter().enumerate().take(closed + 1) {
                    let holds = at < closed && link.module.holds();
                    if link.queue.is_empty() && !holds {
                        continue;
                    }
                    let why = match dam(links, at) {
                        Some(name) if !link.queue.is_empty() => {
                            Some(format!("{name}: what comes will never leave"))
                        }
                        None if link.queue.is_empty() && is_stuck(link) => {
                            Some(format!("{}: what it holds will never leave", link.name))
                        }
                        _ => None,
                    };
                    if let Some(why) = why {
                        run.after.fault.get_or_insert_with(|| Fault::new(why));
                    }
                    return false;
                }
                let [link, rest @ ..] = &mut links[closed..] else { return true };
                if link.module.is_full() && !is_stuck(link) {
                    return false;
                }
                closed += 1;
                link.call(rest, run, |module, next| module.close(next));
            }
        });
        state.closed = closed;
        if done {
            self.end(state, None, after);
        }
    }

    fn end(&self, state: &mut DirectionState, why: StreamHangup, after: &mut RunActions) {
        if state.hungup.is_some() {
            return;
        }
        after.wakes.extend(state.all_waiting());
        state.end.hangup(&why, after);
        after.ended.extend(state.feeder.upgrade().map(|feeder| (feeder, why.clone())));
        state.hungup = Some(why);
        self.ended.store(true, Ordering::SeqCst);
        after.wakes.extend(state.other.upgrade().map(Waker::from));
    }

    /// Whether a put of the waiter with this ticket would be refused.
    pub(crate) fn is_full(&self, ticket: &QueueTicket) -> bool {
        let state = self.lock();
        if state.is_ending() {
            // A put would return the end at once.
            return false;
        }
        !state.waiters.is_turn(ticket)
            || match state.links.first() {
                Some(link) => !link.queue.is_empty() || link.module.is_full(),
                None => state.end.is_full(),
            }
    }

    /// Whether it has ended or is closing.
    pub(crate) fn is_ending(&self) -> bool {
        self.lock().is_ending()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, DirectionState> {
        lock(&self.state)
    }

    /// Runs the modules, and handles the actions that they requested.
    pub(crate) fn run<T>(
        &self,
        state: &mut DirectionState,
        after: &mut RunActions,
        f: impl FnOnce(&mut [ModuleLink], &mut ModuleRun<'_>) -> T,
    ) -> T {
        // Requests concern this direction. It may run inside the run of another one, so save the requests for that.
        let asked = |after: &mut RunActions| {
            let take = core::mem::take::<bool>;
            (after.fault.take(), take(&mut after.gone), take(&mut after.kicked), take(&mut after.finished))
        };
        let outer = asked(after);
        let DirectionState { links, end, .. } = state;
        let done = f(links, &mut ModuleRun { end: &mut **end, clock: &*self.clock, after });
        let (fault, gone, kicked, finished) = asked(after);
        (after.fault, after.gone, after.kicked, after.finished) = outer;
        let other = if kicked || fault.is_some() { state.other.upgrade() } else { None };
        if let Some(fault) = fault {
            after.ended.extend(other.clone().map(|other| (other, Some(fault.clone()))));
            self.end(state, Some(fault), after);
        }
        if gone {
            self.end(state, None, after);
        }
        after.wakes.extend(other.filter(|_| kicked).map(Waker::from));
        if finished && !state.is_ending() {
            self.close(state, after);
        }
        done
    }
}

/// Pumps a direction as long as it exists.
struct DirectionPump(Weak<StreamDirection>);

impl Wake for StreamDirection {
    fn wake(self: Arc<Self>) {
        self.pump();
    }
}

impl Wake for DirectionPump {
    fn wake(self: Arc<Self>) {
        if let Some(way) = self.0.upgrade() {
            way.pump();
        }
    }
}

impl DirectionState {
    pub(crate) fn is_ending(&self) -> bool {
        self.hungup.is_some() || self.closing
    }

    /// Whether a message is incomplete, or a module holds blocks.
    pub(crate) fn is_busy(&self) -> bool {
        let mid = |link: &ModuleLink| link.module.is_full() || link.module.is_mid();
        self.mid || self.is_holding() || self.links.iter().any(mid)
    }

    /// Whether a module holds data. Never after the end, because the data cannot leave any more.
    pub(crate) fn is_holding(&self) -> bool {
        self.hungup.is_none() && self.links.iter().any(|link| !link.queue.is_empty() || link.module.holds())
    }

    /// Whether a module still depends on data of the other direction.
    fn hears(&self) -> bool {
        self.hungup.is_none() && self.links.iter().any(|link| link.module.hears())
    }

    fn all_waiting(&mut self) -> impl Iterator<Item = Waker> {
        self.waiters.all().into_iter().map(|(_, waker)| waker).chain(self.watcher.take())
    }

    pub(crate) fn links(&mut self) -> &mut Vec<ModuleLink> {
        &mut self.links
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.links.iter().map(|link| (link.name, link.module.status()))
    }
}

impl ModuleLink {
    pub(crate) fn control(
        &mut self,
        rest: &mut [ModuleLink],
        run: &mut ModuleRun<'_>,
        text: &str,
    ) -> Control {
        let mut next = Next { queue: &mut self.queue, rest, run };
        self.module.control(text, &mut next)
    }
}

/// Returns the error for a caller that puts.
pub(crate) fn hungup(why: StreamHangup) -> Fault {
    why.unwrap_or_else(|| Fault::new("the stream is hung up"))
}

/// Leaves the queue of waiters when dropped.
struct RoomWait<'w> {
    way: &'w StreamDirection,
    ticket: QueueTicket,
}

impl Drop for RoomWait<'_> {
    fn drop(&mut self) {
        self.way.leave(&mut self.ticket);
    }
}
