//! One end of a stream: a queue that is read, a direction that is written.
//!
//! Always holds: the bytes of one read follow each other in the stream, and so do those of one write: one reader and
//! one writer have their turn at a time, the others wait in order.

use alloc::sync::Arc;
use core::future::{Future, poll_fn};
use core::mem;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use crate::block::{Block, Chain};
use crate::lock::{Mutex, lock};
use crate::module::Fault;
use crate::pool::{CLASSES, Pool};
use crate::queue::{Limit, Queue};
use crate::wait::{Ticket, Waiters, wake};
use crate::way::{After, End, Hangup, Way, hungup};

/// Reads that find the end before one is an error: who does not look at it shall not go on for ever.
const ENDS: u32 = 3;
/// The largest block that a write makes, bytes.
const WRITE: usize = CLASSES[4];

/// What has come to an end and waits to be read.
pub(crate) struct Store(Mutex<State>);

struct State {
    queue: Queue,
    readers: Waiters,
    /// Bytes that the first of them wants at once, unless a message ends before.
    wanted: usize,
    hungup: Option<Hangup>,
    /// Reads that have found the end.
    ends: u32,
}

/// What a reader takes out.
enum Taken {
    Blocks(Chain),
    End,
}

/// The end of a direction that comes to a [`Store`].
pub(crate) struct ToStore(pub(crate) Arc<Store>);

impl End for ToStore {
    fn put(&mut self, chain: Chain, after: &mut After) -> Result<(), Chain> {
        let mut state = lock(&self.0.0);
        let put = state.queue.put(chain);
        if state.is_readable(state.wanted) {
            after.wakes.extend(state.readers.first());
        }
        put
    }

    fn hangup(&mut self, why: &Hangup, after: &mut After) {
        let mut state = lock(&self.0.0);
        state.hungup.get_or_insert_with(|| why.clone());
        after.wakes.extend(state.readers.first());
    }

    fn is_full(&self) -> bool {
        lock(&self.0.0).queue.has_refused()
    }
}

impl State {
    /// Whether there is a message, or as many bytes as are wanted, or no room for more.
    fn is_readable(&self, want: usize) -> bool {
        let Self { queue, hungup, .. } = self;
        !queue.is_empty() && (queue.has_message() || queue.bytes() >= want || queue.has_refused())
            || hungup.is_some()
    }

    /// Nothing will come any more.
    fn end(&mut self) -> Result<Taken, Fault> {
        self.ends = self.ends.saturating_add(1);
        match &self.hungup {
            Some(Some(fault)) => Err(fault.clone()),
            _ if self.ends > ENDS => Err(Fault::new("the stream is hung up")),
            _ => Ok(Taken::End),
        }
    }
}

impl Store {
    pub(crate) fn new(limit: Limit) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            queue: Queue::new(limit),
            readers: Waiters::default(),
            wanted: 0,
            hungup: None,
            ends: 0,
        })))
    }

    /// Takes out what a read of `want` bytes is to have; `None`: the first block. And whether those who were refused
    /// are to be told.
    fn poll_take(
        &self,
        waker: Option<&Waker>,
        ticket: &mut Ticket,
        want: Option<usize>,
    ) -> (Poll<Result<Taken, Fault>>, bool) {
        let mut state = lock(&self.0);
        let wanted = want.unwrap_or(0);
        let is_turn = state.readers.is_turn(ticket);
        if !is_turn || !state.is_readable(wanted) {
            let Some(waker) = waker else { return (Poll::Pending, false) };
            if is_turn {
                state.wanted = wanted;
            }
            state.readers.wait(ticket, waker);
            return (Poll::Pending, false);
        }
        state.readers.leave(ticket);
        let taken = match state.queue.is_empty() {
            true => state.end(),
            false => Ok(Taken::Blocks(state.queue.take(want))),
        };
        let relieved = state.queue.relieved();
        let next = state.readers.first();
        drop(state);
        wake(next);
        (Poll::Ready(taken), relieved)
    }

    fn leave(&self, ticket: &mut Ticket) {
        if ticket.is_none() {
            return;
        }
        let mut state = lock(&self.0);
        let next = if state.readers.leave(ticket) { state.readers.first() } else { None };
        drop(state);
        wake(next);
    }

    pub(crate) fn clear(&self) {
        lock(&self.0).queue.clear();
    }

    /// Bytes and blocks that wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = lock(&self.0);
        (state.queue.bytes(), state.queue.blocks())
    }
}

/// One end. See the module.
pub(crate) struct Port {
    /// What is read here.
    pub(crate) store: Arc<Store>,
    /// What fills it.
    pub(crate) from: Arc<Way>,
    /// What is written here.
    pub(crate) to: Arc<Way>,
    pub(crate) pool: Pool,
    writers: Arc<Mutex<Writers>>,
}

#[derive(Default)]
struct Writers {
    waiting: Waiters,
    writing: bool,
}

impl Port {
    pub(crate) fn new(store: Arc<Store>, from: Arc<Way>, to: Arc<Way>, pool: Pool) -> Self {
        Self { store, from, to, pool, writers: Arc::default() }
    }

    /// Reads into `buf`: as much as it holds, or up to where a message ends. 0: an empty message, or the end.
    pub(crate) async fn read(&self, buf: &mut [u8]) -> Result<usize, Fault> {
        let Taken::Blocks(chain) = self.take(Some(buf.len())).await? else { return Ok(0) };
        let mut n = 0;
        for block in chain {
            buf[n..n + block.len()].copy_from_slice(block.data());
            n += block.len();
        }
        Ok(n)
    }

    /// The first block, as it is. `None`: the end.
    pub(crate) async fn read_block(&self) -> Result<Option<Block>, Fault> {
        let Taken::Blocks(mut chain) = self.take(None).await? else { return Ok(None) };
        Ok(chain.pop())
    }

    /// The first block, if there is one and nobody waits for it.
    pub(crate) fn try_read_block(&self) -> Poll<Result<Option<Block>, Fault>> {
        let (taken, relieved) = self.store.poll_take(None, &mut None, None);
        if relieved {
            self.from.pump();
        }
        taken.map_ok(|taken| match taken {
            Taken::Blocks(mut chain) => chain.pop(),
            Taken::End => None,
        })
    }

    async fn take(&self, want: Option<usize>) -> Result<Taken, Fault> {
        let mut reader = Reader { store: &self.store, ticket: None };
        let mut relieved = false;
        let taken = poll_fn(|cx| {
            let (polled, low) = self.store.poll_take(Some(cx.waker()), &mut reader.ticket, want);
            relieved = low;
            polled
        })
        .await;
        if relieved {
            self.from.pump();
        }
        taken
    }

    /// Writes all of `data` as one message. Whoever gives up in the middle of one hangs the stream up: nobody shall
    /// take half a message for a whole one.
    pub(crate) async fn write(&self, data: &[u8]) -> Result<usize, Fault> {
        let mut writing = self.turn().await;
        let mut rest = data;
        loop {
            let put = self.write_part(&mut rest, &mut writing.watches).await;
            if put.is_err() && mem::take(&mut writing.mid) {
                // It has ended by itself; what comes the other way has nothing to do with that.
                let mut after = After::default();
                self.to.hangup(Some(half()), &mut after);
                after.wake();
            }
            put?;
            writing.mid = !rest.is_empty();
            if !writing.mid {
                return Ok(data.len());
            }
        }
    }

    /// Puts the next block of what is to be written.
    async fn write_part(&self, rest: &mut &[u8], watches: &mut bool) -> Result<(), Fault> {
        let part = rest.len().min(WRITE);
        let mut alloc = pin!(self.pool.alloc(part));
        let mut block = poll_fn(|cx| match alloc.as_mut().poll(cx) {
            Poll::Ready(block) => Poll::Ready(Ok(block)),
            Poll::Pending => {
                *watches = true;
                self.to.poll_end(cx.waker()).map(|why| Err(hungup(why)))
            }
        })
        .await?;
        *rest = &rest[block.fill(&rest[..part])..];
        block.delim = rest.is_empty();
        self.to.put(block.into()).await
    }

    /// Puts a chain in the turn of a writer.
    pub(crate) async fn put(&self, chain: Chain) -> Result<(), Fault> {
        let _turn = self.turn().await;
        self.to.put(chain).await
    }

    /// [`Port::put`], if it is nobody else's turn and there is room now.
    pub(crate) fn try_put(&self, chain: Chain) -> Result<(), (Chain, Option<Fault>)> {
        if self.is_writing() { Err((chain, None)) } else { self.to.try_put(chain) }
    }

    /// Whether a put would have to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.is_writing() || self.to.is_full(&None)
    }

    fn is_writing(&self) -> bool {
        let writers = lock(&self.writers);
        writers.writing || !writers.waiting.is_turn(&None)
    }

    async fn turn(&self) -> Writing<'_> {
        let turn = Turn { writers: self.writers.clone(), ticket: None, has: false };
        let mut writing = Writing { port: self, mid: false, watches: false, turn };
        poll_fn(|cx| writing.turn.poll(cx.waker())).await;
        writing
    }

    /// Who reads here from now on, poll by poll.
    pub(crate) fn reading(&self) -> Reading {
        Reading { store: self.store.clone(), from: self.from.clone(), ticket: None }
    }

    /// Who puts here from now on, poll by poll; a process takes turns with others that write.
    pub(crate) fn putting(&self, takes_turns: bool) -> Putting {
        let turn = || Turn { writers: self.writers.clone(), ticket: None, has: false };
        Putting { to: self.to.clone(), turn: takes_turns.then(turn), ticket: None }
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        [self.to.deadline(), self.from.deadline()].into_iter().flatten().min()
    }

    pub(crate) fn hangup(&self, why: &Hangup) {
        let mut after = After::default();
        self.to.hangup(why.clone(), &mut after);
        self.from.hangup(why.clone(), &mut after);
        after.wake();
    }
}

/// Who waits to read; leaves when it goes.
struct Reader<'p> {
    store: &'p Store,
    ticket: Ticket,
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.store.leave(&mut self.ticket);
    }
}

/// A reader that keeps its place between polls: of those who wait at one end it is the one to be served in its turn,
/// and is woken once there is something. It leaves its place when it is dropped, and keeps nothing open.
pub struct Reading {
    store: Arc<Store>,
    from: Arc<Way>,
    ticket: Ticket,
}

impl Reading {
    /// `want` bytes, or as many as there are before a message ends; with `None` the first block. `Ok(None)`: the end;
    /// after some of these the end is an error, and at once if the stream was hung up for one.
    pub fn poll(&mut self, cx: &mut Context<'_>, want: Option<usize>) -> Poll<Result<Option<Chain>, Fault>> {
        let (taken, relieved) = self.store.poll_take(Some(cx.waker()), &mut self.ticket, want);
        if relieved {
            self.from.pump();
        }
        taken.map_ok(|taken| match taken {
            Taken::Blocks(chain) => Some(chain),
            Taken::End => None,
        })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.store.leave(&mut self.ticket);
    }
}

/// A writer that keeps its place between polls, as [`Reading`] does. A chain is put whole or not at all, so giving up
/// harms nobody.
pub struct Putting {
    to: Arc<Way>,
    turn: Option<Turn>,
    ticket: Ticket,
}

impl Putting {
    /// Puts `chain`, which is taken out of the option when it is done, or gone with an error. While it is there the
    /// writer has its turn: who gives up without an end drops this.
    pub fn poll(&mut self, cx: &mut Context<'_>, chain: &mut Option<Chain>) -> Poll<Result<(), Fault>> {
        if let Some(turn) = &mut self.turn
            && turn.poll(cx.waker()).is_pending()
        {
            return Poll::Pending;
        }
        let mut after = After::default();
        let polled = self.to.poll_put(cx.waker(), chain, &mut self.ticket, &mut after);
        after.wake();
        if polled.is_ready() {
            self.turn.iter_mut().for_each(Turn::leave);
        }
        polled.map_err(hungup)
    }
}

impl Drop for Putting {
    fn drop(&mut self) {
        self.to.leave(&mut self.ticket);
    }
}

/// A place among those who write at one end, or their turn; left when it is dropped.
struct Turn {
    writers: Arc<Mutex<Writers>>,
    ticket: Ticket,
    has: bool,
}

impl Turn {
    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        if self.has {
            return Poll::Ready(());
        }
        let mut writers = lock(&self.writers);
        if writers.writing || !writers.waiting.is_turn(&self.ticket) {
            writers.waiting.wait(&mut self.ticket, waker);
            return Poll::Pending;
        }
        writers.waiting.leave(&mut self.ticket);
        writers.writing = true;
        self.has = true;
        Poll::Ready(())
    }

    fn leave(&mut self) {
        let mut writers = lock(&self.writers);
        let had = mem::take(&mut self.has);
        writers.writing &= !had;
        let left = writers.waiting.leave(&mut self.ticket);
        let next = if left || had { writers.waiting.first() } else { None };
        drop(writers);
        wake(next);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Who writes, or waits to.
struct Writing<'p> {
    port: &'p Port,
    mid: bool,
    /// It has waited for the end, too.
    watches: bool,
    /// Left last.
    turn: Turn,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if self.mid {
            self.port.hangup(&Some(half()));
        }
        if self.watches {
            self.port.to.forget_watcher();
        }
    }
}

fn half() -> Fault {
    Fault::new("a write was given up in the middle of a message")
}

/// The end of a direction whose reader has gone while a module below still listens.
pub(crate) struct Swallow;

impl End for Swallow {
    fn put(&mut self, _: Chain, _: &mut After) -> Result<(), Chain> {
        Ok(())
    }

    fn hangup(&mut self, _: &Hangup, _: &mut After) {}

    fn is_full(&self) -> bool {
        false
    }
}

/// The end of a direction that goes on in another one: the way in which pipes are joined.
pub(crate) struct Joined {
    /// Where it goes on.
    pub(crate) to: Arc<Way>,
    /// Pumps the direction that ends here.
    pub(crate) again: Waker,
    pub(crate) ticket: Ticket,
}

impl End for Joined {
    fn put(&mut self, chain: Chain, after: &mut After) -> Result<(), Chain> {
        let mut given = Some(chain);
        match self.to.poll_put(&self.again, &mut given, &mut self.ticket, after) {
            Poll::Ready(Ok(())) => Ok(()),
            Poll::Ready(Err(why)) => {
                after.gone |= why.is_none();
                after.fault = after.fault.take().or(why);
                Ok(())
            }
            Poll::Pending => Err(given.unwrap_or_default()),
        }
    }

    fn hangup(&mut self, why: &Hangup, after: &mut After) {
        // It may have been held by this.
        self.again = Waker::noop().clone();
        self.to.hangup(why.clone(), after);
    }

    fn is_full(&self) -> bool {
        self.to.is_full(&self.ticket)
    }

    fn hold(&mut self, way: Waker) {
        self.again = way;
        self.to.wait_on(&mut self.ticket, &self.again);
    }
}
