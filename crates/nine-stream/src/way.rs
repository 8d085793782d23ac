//! One direction of a stream: the halves of its modules in order, what is at its end, and who waits to put.
//!
//! A put runs through all modules in the caller's task, under the direction's lock, so puts of several tasks come to
//! the end in the order in which they entered. What has to be done after that (wake somebody, run the other half of a
//! module) is gathered and done when nothing is locked any more.
//!
//! Always holds: whoever waits has been refused under the lock, and everything that makes room calls [`Way::pump`]
//! afterwards, which takes that lock: no wake-up is lost between the two. Locks are taken down before up, a
//! conversation's before those of what it is joined to or multiplexed on.

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
use crate::port::Swallow;
use crate::queue::{Limit, Queue};
use crate::wait::{Ticket, Waiters, wake};

/// The time, as far as the modules of a stream are concerned.
pub(crate) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// What is behind the last module.
pub(crate) trait End: Send {
    /// Takes a chain or refuses it.
    fn put(&mut self, chain: Chain, after: &mut After) -> Result<(), Chain>;

    /// Nothing more will come; why, if that is an error.
    fn hangup(&mut self, why: &Hangup, after: &mut After);

    /// Whether it refuses anything for now.
    fn is_full(&self) -> bool;

    /// The direction shall live on until it has been told of room, or of the end behind it.
    fn hold(&mut self, way: Waker) {
        let _ = way;
    }
}

/// What is to be done when a run is over.
#[derive(Default)]
pub(crate) struct After {
    /// To be woken when nothing is locked.
    pub(crate) wakes: Vec<Waker>,
    /// The direction is to be hung up.
    pub(crate) fault: Option<Fault>,
    /// Nobody wants what comes out any more.
    pub(crate) gone: bool,
    /// The other direction is to be pumped.
    pub(crate) kicked: bool,
    /// The direction ends in good order.
    pub(crate) finished: bool,
    /// Other directions that are to be ended when nothing is locked: for an error, or because nobody wants what comes
    /// out.
    ended: Vec<(Arc<Way>, Hangup)>,
}

impl After {
    /// Does it: nothing is locked any more.
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

/// How a stream has ended: in good order, or not.
pub(crate) type Hangup = Option<Fault>;

pub(crate) struct Way {
    state: Mutex<State>,
    /// Nothing comes out any more. The other direction looks at it with its own lock taken.
    ended: AtomicBool,
    clock: Clock,
    me: Weak<Way>,
}

pub(crate) struct State {
    links: Vec<Link>,
    end: Box<dyn End>,
    waiters: Waiters,
    hungup: Option<Hangup>,
    /// Is hung up when what waits in the modules has gone on.
    closing: bool,
    /// Modules that have passed on what they held, from the beginning.
    closed: usize,
    /// A message has begun and not ended.
    mid: bool,
    /// Nobody reads what comes out, but a module listens as long as the other direction lives.
    listens: bool,
    /// The other direction.
    other: Weak<Way>,
    /// The direction that ends in this one and in nothing else: it hangs up with it.
    feeder: Weak<Way>,
    /// Of whoever waits for something else before it puts.
    watcher: Option<Waker>,
}

/// A half of a module, in its place.
pub(crate) struct Link {
    name: &'static str,
    module: Box<dyn Module>,
    /// What it has passed on and the next one has refused.
    queue: Queue,
}

/// One run through the modules.
pub(crate) struct Run<'r> {
    end: &'r mut dyn End,
    pub(crate) clock: &'r (dyn Fn() -> Duration + Send + Sync),
    pub(crate) after: &'r mut After,
}

/// Puts a chain to the next module, or to the end behind the last one.
pub(crate) fn pass(rest: &mut [Link], run: &mut Run<'_>, chain: Chain) -> Result<(), Chain> {
    match rest.split_first_mut() {
        Some((link, rest)) => link.put(rest, run, chain),
        None => run.end.put(chain, run.after),
    }
}

impl Link {
    pub(crate) fn new(name: &'static str, module: Box<dyn Module>) -> Self {
        Self { name, module, queue: Queue::new(Limit::ONE) }
    }

    fn put(&mut self, rest: &mut [Link], run: &mut Run<'_>, chain: Chain) -> Result<(), Chain> {
        self.drain(rest, run);
        if !self.queue.is_empty() || self.module.is_full() {
            return Err(chain);
        }
        self.call(rest, run, |module, next| module.put(chain, next));
        Ok(())
    }

    /// Passes on what has been refused.
    fn drain(&mut self, rest: &mut [Link], run: &mut Run<'_>) {
        while let Some(block) = self.queue.pop() {
            if let Err(refused) = pass(rest, run, block.into()) {
                refused.into_iter().for_each(|block| self.queue.put_back(block));
                return;
            }
        }
    }

    fn call(
        &mut self,
        rest: &mut [Link],
        run: &mut Run<'_>,
        f: impl FnOnce(&mut dyn Module, &mut Next<'_, '_>) -> Result<(), Fault>,
    ) {
        let mut next = Next { queue: &mut self.queue, rest, run };
        if let Err(fault) = f(&mut *self.module, &mut next) {
            let name = self.name;
            run.after.fault.get_or_insert_with(|| Fault::new(format!("{name}: {fault}")));
        }
    }
}

impl Way {
    /// Without modules. `end` is told what pumps the direction.
    pub(crate) fn new<E: End + 'static>(clock: &Clock, end: impl FnOnce(Waker) -> E) -> Arc<Self> {
        Arc::new_cyclic(|way: &Weak<Self>| {
            let end = Box::new(end(Arc::new(Again(way.clone())).into()));
            let state = State {
                links: Vec::new(),
                end,
                waiters: Waiters::default(),
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

    /// These are the two directions of one stream.
    pub(crate) fn pair(up: &Arc<Self>, down: &Arc<Self>) {
        up.lock().other = Arc::downgrade(down);
        down.lock().other = Arc::downgrade(up);
    }

    /// Where this one ends nothing else does.
    pub(crate) fn feeds(self: &Arc<Self>, into: &Arc<Self>) {
        into.lock().feeder = Arc::downgrade(self);
    }

    /// Takes a chain through the modules, or leaves it where it is and waits: `waker` is woken when there is room, in
    /// the order of those who wait.
    pub(crate) fn poll_put(
        &self,
        waker: &Waker,
        chain: &mut Option<Chain>,
        ticket: &mut Ticket,
        after: &mut After,
    ) -> Poll<Result<(), Hangup>> {
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
            // It is why, or would have been too late anyway.
            state.waiters.leave(ticket);
            return Poll::Ready(Err(why));
        }
        state.mid = mid;
        if state.waiters.leave(ticket) {
            after.wakes.extend(state.waiters.first());
        }
        Poll::Ready(Ok(()))
    }

    /// [`Way::poll_put`] of a task of its own.
    pub(crate) async fn put(&self, chain: Chain) -> Result<(), Fault> {
        let mut chain = Some(chain);
        let mut waiting = Waiting { way: self, ticket: None };
        poll_fn(|cx: &mut Context<'_>| {
            let mut after = After::default();
            let polled = self.poll_put(cx.waker(), &mut chain, &mut waiting.ticket, &mut after);
            after.wake();
            polled.map_err(hungup)
        })
        .await
    }

    /// Puts what can be put now, or gives it back.
    pub(crate) fn try_put(&self, chain: Chain) -> Result<(), (Chain, Option<Fault>)> {
        let (mut given, mut ticket, mut after) = (Some(chain), None, After::default());
        let polled = self.poll_put(Waker::noop(), &mut given, &mut ticket, &mut after);
        self.leave(&mut ticket);
        after.wake();
        match polled {
            Poll::Ready(Ok(())) => Ok(()),
            Poll::Ready(Err(why)) => Err((given.unwrap_or_default(), Some(hungup(why)))),
            Poll::Pending => Err((given.unwrap_or_default(), None)),
        }
    }

    /// Whoever waits, waits with another waker.
    pub(crate) fn wait_on(&self, ticket: &mut Ticket, waker: &Waker) {
        if ticket.is_some() {
            self.lock().waiters.wait(ticket, waker);
        }
    }

    /// Waits no more.
    pub(crate) fn leave(&self, ticket: &mut Ticket) {
        if ticket.is_none() {
            return;
        }
        let mut state = self.lock();
        let next = if state.waiters.leave(ticket) { state.waiters.first() } else { None };
        drop(state);
        wake(next);
    }

    /// There is room at the end, or something has happened that a module waits for: what waits in the modules goes on,
    /// and so does who waits to put.
    pub(crate) fn pump(&self) {
        let mut after = After::default();
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

    /// When [`Way::tick`] is to be called at the latest.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let fed = self.closing_feeder().and_then(|feeder| feeder.deadline());
        let state = self.lock();
        if state.hungup.is_some() {
            return fed;
        }
        // What has something to pass on waits for room, not for the time.
        let ready = state.links.iter().filter(|link| link.queue.is_empty());
        ready.filter_map(|link| link.module.deadline()).chain(fed).min()
    }

    /// The time has come.
    pub(crate) fn tick(&self) {
        if let Some(feeder) = self.closing_feeder() {
            feeder.pump();
        }
        self.pump();
    }

    /// The direction that ends in this one, if it is closing: its own stream may have gone, so its time is ours.
    fn closing_feeder(&self) -> Option<Arc<Self>> {
        let feeder = self.lock().feeder.upgrade()?;
        let closing = feeder.lock().closing;
        closing.then_some(feeder)
    }

    /// Why nothing is let in any more, if so; else `waker` is woken when it is. One task at a time waits for it.
    pub(crate) fn poll_end(&self, waker: &Waker) -> Poll<Hangup> {
        let mut state = self.lock();
        if state.is_ending() {
            return Poll::Ready(state.hungup.clone().flatten());
        }
        state.watcher = Some(waker.clone());
        Poll::Pending
    }

    /// Nobody waits for the end any more.
    pub(crate) fn forget_watcher(&self) {
        let old = self.lock().watcher.take();
        drop(old);
    }

    /// Nothing is let in any more. In good order what waits in the modules still goes on, and each passes on what it
    /// holds; after an error it is gone.
    pub(crate) fn hangup(&self, why: Hangup, after: &mut After) {
        let mut state = self.lock();
        match why {
            None => self.close(&mut state, after),
            fault => self.end(&mut state, fault, after),
        }
    }

    /// Nothing is let in any more, and the modules are not asked for what they hold.
    pub(crate) fn stop(&self, after: &mut After) {
        let mut state = self.lock();
        state.closed = state.links.len();
        self.close(&mut state, after);
    }

    /// Nobody reads what comes out any more. Where a module of the other direction, which is closing, waits for what
    /// comes here, it still comes here until that has ended, and `true` is said.
    pub(crate) fn listen_on(&self, after: &mut After) -> bool {
        let other = self.lock().other.upgrade();
        if !other.is_some_and(|other| other.lock().hears()) {
            return false;
        }
        let mut state = self.lock();
        if state.hungup.is_none() {
            state.listens = true;
            core::mem::replace(&mut state.end, Box::new(Swallow)).hangup(&None, after);
            after.wakes.extend(self.me.upgrade().map(Waker::from));
        }
        true
    }

    /// Nobody wants what comes out.
    pub(crate) fn abandon(&self, after: &mut After) {
        let mut state = self.lock();
        let gone = core::mem::take(&mut state.links);
        self.end(&mut state, None, after);
        drop(state);
        // A module may have anything to do when it goes.
        drop(gone);
    }

    /// Ends in good order, as far as that goes now; [`Way::pump`] goes on. A module is closed when all before it has
    /// come to it, and it takes what comes.
    fn close(&self, state: &mut State, after: &mut After) {
        if state.hungup.is_some() {
            return;
        }
        if !core::mem::replace(&mut state.closing, true) {
            after.wakes.extend(state.all_waiting());
            state.end.hold(self.me.upgrade().map_or(Waker::noop().clone(), Waker::from));
        }
        let mut closed = state.closed;
        // What waits for something that comes the other way, and for no time, waits for ever then.
        let alone = state.other.upgrade().is_none_or(|other| other.ended.load(Ordering::SeqCst));
        let is_stuck =
            move |link: &Link| alone && link.module.deadline().is_none() && !link.module.waits_for_room();
        // What waits before a module that will never take it.
        let dam = move |links: &[Link], at: usize| -> Option<&'static str> {
            let next = links.get(at + 1).filter(|next| next.queue.is_empty() && is_stuck(next))?;
            next.module.is_full().then_some(next.name)
        };
        let done = self.run(state, after, |links, run| {
            loop {
                for at in (0..links.len().min(closed + 1)).rev() {
                    let [link, rest @ ..] = &mut links[at..] else { continue };
                    link.drain(rest, run);
                    if alone && link.queue.is_empty() {
                        // It may have waited for the room that there is now.
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

    fn end(&self, state: &mut State, why: Hangup, after: &mut After) {
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

    /// Whether a put of who has this place would be refused.
    pub(crate) fn is_full(&self, ticket: &Ticket) -> bool {
        let state = self.lock();
        if state.is_ending() {
            // It would be told that.
            return false;
        }
        !state.waiters.is_turn(ticket)
            || match state.links.first() {
                Some(link) => !link.queue.is_empty() || link.module.is_full(),
                None => state.end.is_full(),
            }
    }

    /// Whether it has ended, or is about to.
    pub(crate) fn is_ending(&self) -> bool {
        self.lock().is_ending()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Runs the modules, and does what their errors ask for.
    pub(crate) fn run<T>(
        &self,
        state: &mut State,
        after: &mut After,
        f: impl FnOnce(&mut [Link], &mut Run<'_>) -> T,
    ) -> T {
        // What asks for something to be done asks it of this direction, and may run below another one.
        let asked = |after: &mut After| {
            let take = core::mem::take::<bool>;
            (after.fault.take(), take(&mut after.gone), take(&mut after.kicked), take(&mut after.finished))
        };
        let outer = asked(after);
        let State { links, end, .. } = state;
        let done = f(links, &mut Run { end: &mut **end, clock: &*self.clock, after });
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

/// Pumps a direction as long as it is there.
struct Again(Weak<Way>);

impl Wake for Way {
    fn wake(self: Arc<Self>) {
        self.pump();
    }
}

impl Wake for Again {
    fn wake(self: Arc<Self>) {
        if let Some(way) = self.0.upgrade() {
            way.pump();
        }
    }
}

impl State {
    pub(crate) fn is_ending(&self) -> bool {
        self.hungup.is_some() || self.closing
    }

    /// Whether a message is under way, or blocks wait in a module.
    pub(crate) fn is_busy(&self) -> bool {
        let mid = |link: &Link| link.module.is_full() || link.module.is_mid();
        self.mid || self.is_holding() || self.links.iter().any(mid)
    }

    /// Whether something waits in a module. After the end nothing does: it will go nowhere.
    pub(crate) fn is_holding(&self) -> bool {
        self.hungup.is_none() && self.links.iter().any(|link| !link.queue.is_empty() || link.module.holds())
    }

    /// Whether a module still has something that depends on what the other direction brings.
    fn hears(&self) -> bool {
        self.hungup.is_none() && self.links.iter().any(|link| link.module.hears())
    }

    fn all_waiting(&mut self) -> impl Iterator<Item = Waker> {
        self.waiters.all().into_iter().map(|(_, waker)| waker).chain(self.watcher.take())
    }

    pub(crate) fn links(&mut self) -> &mut Vec<Link> {
        &mut self.links
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.links.iter().map(|link| (link.name, link.module.status()))
    }
}

impl Link {
    pub(crate) fn control(&mut self, rest: &mut [Link], run: &mut Run<'_>, text: &str) -> Control {
        let mut next = Next { queue: &mut self.queue, rest, run };
        self.module.control(text, &mut next)
    }
}

/// What who puts is told.
pub(crate) fn hungup(why: Hangup) -> Fault {
    why.unwrap_or_else(|| Fault::new("the stream is hung up"))
}

/// Leaves when it goes.
struct Waiting<'w> {
    way: &'w Way,
    ticket: Ticket,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.way.leave(&mut self.ticket);
    }
}
