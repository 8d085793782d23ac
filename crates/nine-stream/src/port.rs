//! One end of a stream: a queue to read, and a direction to write.
//!
//! In: chains from the direction that ends here, and data to write. Out: data to read, and chains. Always holds: the
//! bytes of one read are contiguous in the stream, and so are those of one write. One reader and one writer proceed at
//! a time; the others wait in order.

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
use crate::wait::{QueueTicket, WaiterQueue, wake};
use crate::way::{DirectionEnd, RunActions, StreamDirection, StreamHangup, hungup};

/// Number of reads at the end before a read fails, so that a caller that ignores the end does not loop for ever.
const ENDS: u32 = 3;
/// Size of the largest block of a write, in bytes.
const WRITE: usize = CLASSES[4];

/// The data that has arrived at an end and waits to be read.
pub(crate) struct ReadStore(Mutex<ReadStoreState>);

struct ReadStoreState {
    queue: Queue,
    readers: WaiterQueue,
    /// Number of bytes that the first reader waits for, unless a message ends before.
    wanted: usize,
    hungup: Option<StreamHangup>,
    /// Number of reads that have found the end.
    ends: u32,
}

/// The result of a read.
enum ReadResult {
    Blocks(Chain),
    End,
}

/// The end of a direction whose data goes to a [`ReadStore`].
pub(crate) struct StoreEnd(pub(crate) Arc<ReadStore>);

impl DirectionEnd for StoreEnd {
    fn put(&mut self, chain: Chain, after: &mut RunActions) -> Result<(), Chain> {
        let mut state = lock(&self.0.0);
        let put = state.queue.put(chain);
        if state.is_readable(state.wanted) {
            after.wakes.extend(state.readers.first());
        }
        put
    }

    fn hangup(&mut self, why: &StreamHangup, after: &mut RunActions) {
        let mut state = lock(&self.0.0);
        state.hungup.get_or_insert_with(|| why.clone());
        after.wakes.extend(state.readers.first());
    }

    fn is_full(&self) -> bool {
        lock(&self.0.0).queue.has_refused()
    }
}

impl ReadStoreState {
    /// Whether there is a message, or `want` bytes, or no room for more.
    fn is_readable(&self, want: usize) -> bool {
        let Self { queue, hungup, .. } = self;
        !queue.is_empty() && (queue.has_message() || queue.bytes() >= want || queue.has_refused())
            || hungup.is_some()
    }

    /// Returns the end, because no more data will come.
    fn end(&mut self) -> Result<ReadResult, Fault> {
        self.ends = self.ends.saturating_add(1);
        match &self.hungup {
            Some(Some(fault)) => Err(fault.clone()),
            _ if self.ends > ENDS => Err(Fault::new("the stream is hung up")),
            _ => Ok(ReadResult::End),
        }
    }
}

impl ReadStore {
    pub(crate) fn new(limit: Limit) -> Arc<Self> {
        Arc::new(Self(Mutex::new(ReadStoreState {
            queue: Queue::new(limit),
            readers: WaiterQueue::default(),
            wanted: 0,
            hungup: None,
            ends: 0,
        })))
    }

    /// Takes the data for a read of `want` bytes, or the first block for `None`. Also returns whether refused callers
    /// must be woken.
    fn poll_take(
        &self,
        waker: Option<&Waker>,
        ticket: &mut QueueTicket,
        want: Option<usize>,
    ) -> (Poll<Result<ReadResult, Fault>>, bool) {
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
            false => Ok(ReadResult::Blocks(state.queue.take(want))),
        };
        let relieved = state.queue.relieved();
        let next = state.readers.first();
        drop(state);
        wake(next);
        (Poll::Ready(taken), relieved)
    }

    fn leave(&self, ticket: &mut QueueTicket) {
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

    /// Returns the numbers of queued bytes and blocks.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = lock(&self.0);
        (state.queue.bytes(), state.queue.blocks())
    }
}

/// One end of a stream.
pub(crate) struct StreamPort {
    /// The data to read here.
    pub(crate) store: Arc<ReadStore>,
    /// The direction that fills `store`.
    pub(crate) from: Arc<StreamDirection>,
    /// The direction that is written here.
    pub(crate) to: Arc<StreamDirection>,
    pub(crate) pool: Pool,
    writers: Arc<Mutex<WriterQueue>>,
}

#[derive(Default)]
struct WriterQueue {
    waiting: WaiterQueue,
    writing: bool,
}

impl StreamPort {
    pub(crate) fn new(
        store: Arc<ReadStore>,
        from: Arc<StreamDirection>,
        to: Arc<StreamDirection>,
        pool: Pool,
    ) -> Self {
        Self { store, from, to, pool, writers: Arc::default() }
    }

    /// Reads into `buf` until it is full or a message ends. 0 means an empty message or the end.
    pub(crate) async fn read(&self, buf: &mut [u8]) -> Result<usize, Fault> {
        let ReadResult::Blocks(chain) = self.take(Some(buf.len())).await? else { return Ok(0) };
        let mut n = 0;
        for block in chain {
            buf[n..n + block.len()].copy_from_slice(block.data());
            n += block.len();
        }
        Ok(n)
    }

    /// Reads the first block without a copy. `None` is the end.
    pub(crate) async fn read_block(&self) -> Result<Option<Block>, Fault> {
        let ReadResult::Blocks(mut chain) = self.take(None).await? else { return Ok(None) };
        Ok(chain.pop())
    }

    /// Reads the first block, if there is one and no other reader waits.
    pub(crate) fn try_read_block(&self) -> Poll<Result<Option<Block>, Fault>> {
        let (taken, relieved) = self.store.poll_take(None, &mut None, None);
        if relieved {
            self.from.pump();
        }
        taken.map_ok(|taken| match taken {
            ReadResult::Blocks(mut chain) => chain.pop(),
            ReadResult::End => None,
        })
    }

    async fn take(&self, want: Option<usize>) -> Result<ReadResult, Fault> {
        let mut reader = WaitingReader { store: &self.store, ticket: None };
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

    /// Writes all of `data` as one message. If the write is cancelled halfway, the stream is hung up, so that no reader
    /// takes half a message for a whole one.
    pub(crate) async fn write(&self, data: &[u8]) -> Result<usize, Fault> {
        let mut writing = self.turn().await;
        let mut rest = data;
        loop {
            let put = self.write_part(&mut rest, &mut writing.watches).await;
            if put.is_err() && mem::take(&mut writing.mid) {
                // This direction has ended by itself. The other one is not affected.
                let mut after = RunActions::default();
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

    /// Puts the next block of the data.
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

    /// Puts a chain when it is this writer's turn.
    pub(crate) async fn put(&self, chain: Chain) -> Result<(), Fault> {
        let _turn = self.turn().await;
        self.to.put(chain).await
    }

    /// Like [`StreamPort::put`], if no other writer waits and there is room now.
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

    async fn turn(&self) -> WaitingWriter<'_> {
        let turn = WriterTurn { writers: self.writers.clone(), ticket: None, has: false };
        let mut writing = WaitingWriter { port: self, mid: false, watches: false, turn };
        poll_fn(|cx| writing.turn.poll(cx.waker())).await;
        writing
    }

    /// Creates a polled reader.
    pub(crate) fn reading(&self) -> Reading {
        Reading { store: self.store.clone(), from: self.from.clone(), ticket: None }
    }

    /// Creates a polled writer. With `takes_turns` it waits for other writers, as those of a process do.
    pub(crate) fn putting(&self, takes_turns: bool) -> Putting {
        let turn = || WriterTurn { writers: self.writers.clone(), ticket: None, has: false };
        Putting { to: self.to.clone(), turn: takes_turns.then(turn), ticket: None }
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        [self.to.deadline(), self.from.deadline()].into_iter().flatten().min()
    }

    pub(crate) fn hangup(&self, why: &StreamHangup) {
        let mut after = RunActions::default();
        self.to.hangup(why.clone(), &mut after);
        self.from.hangup(why.clone(), &mut after);
        after.wake();
    }
}

/// A waiting reader. Leaves the queue when dropped.
struct WaitingReader<'p> {
    store: &'p ReadStore,
    ticket: QueueTicket,
}

impl Drop for WaitingReader<'_> {
    fn drop(&mut self) {
        self.store.leave(&mut self.ticket);
    }
}

/// A reader that keeps its place in the queue between polls. It is served in its turn, and woken when data is
/// available. Dropping it leaves the queue. It does not keep the stream open.
pub struct Reading {
    store: Arc<ReadStore>,
    from: Arc<StreamDirection>,
    ticket: QueueTicket,
}

impl Reading {
    /// Reads `want` bytes, or fewer if a message ends before, or the first block for `None`. `Ok(None)` is the end.
    /// After several reads at the end, the next is an error. If the stream was hung up with an error, the first read
    /// returns it.
    pub fn poll(&mut self, cx: &mut Context<'_>, want: Option<usize>) -> Poll<Result<Option<Chain>, Fault>> {
        let (taken, relieved) = self.store.poll_take(Some(cx.waker()), &mut self.ticket, want);
        if relieved {
            self.from.pump();
        }
        taken.map_ok(|taken| match taken {
            ReadResult::Blocks(chain) => Some(chain),
            ReadResult::End => None,
        })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.store.leave(&mut self.ticket);
    }
}

/// A writer that keeps its place in the queue between polls, like [`Reading`]. A chain is put whole or not at all, so
/// cancelling is harmless.
pub struct Putting {
    to: Arc<StreamDirection>,
    turn: Option<WriterTurn>,
    ticket: QueueTicket,
}

impl Putting {
    /// Puts `chain`. The option is empty after success, and the chain is gone after an error. While the option has a
    /// chain, this writer keeps its turn. To cancel, drop the writer.
    pub fn poll(&mut self, cx: &mut Context<'_>, chain: &mut Option<Chain>) -> Poll<Result<(), Fault>> {
        if let Some(turn) = &mut self.turn
            && turn.poll(cx.waker()).is_pending()
        {
            return Poll::Pending;
        }
        let mut after = RunActions::default();
        let polled = self.to.poll_put(cx.waker(), chain, &mut self.ticket, &mut after);
        after.wake();
        if polled.is_ready() {
            self.turn.iter_mut().for_each(WriterTurn::leave);
        }
        polled.map_err(hungup)
    }
}

impl Drop for Putting {
    fn drop(&mut self) {
        self.to.leave(&mut self.ticket);
    }
}

/// A writer's place in the queue, or its turn. Dropping it leaves the queue or ends the turn.
struct WriterTurn {
    writers: Arc<Mutex<WriterQueue>>,
    ticket: QueueTicket,
    has: bool,
}

impl WriterTurn {
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

impl Drop for WriterTurn {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A writer in its turn, or waiting for it.
struct WaitingWriter<'p> {
    port: &'p StreamPort,
    mid: bool,
    /// Whether it has also waited for the end.
    watches: bool,
    /// Dropped last.
    turn: WriterTurn,
}

impl Drop for WaitingWriter<'_> {
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

/// The end of a direction without a reader, while a module below it still needs the data.
pub(crate) struct DiscardEnd;

impl DirectionEnd for DiscardEnd {
    fn put(&mut self, _: Chain, _: &mut RunActions) -> Result<(), Chain> {
        Ok(())
    }

    fn hangup(&mut self, _: &StreamHangup, _: &mut RunActions) {}

    fn is_full(&self) -> bool {
        false
    }
}

/// The end of a direction that continues in another one. It joins pipes.
pub(crate) struct JoinedEnd {
    /// The direction that continues.
    pub(crate) to: Arc<StreamDirection>,
    /// Pumps the direction that ends here.
    pub(crate) again: Waker,
    pub(crate) ticket: QueueTicket,
}

impl DirectionEnd for JoinedEnd {
    fn put(&mut self, chain: Chain, after: &mut RunActions) -> Result<(), Chain> {
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

    fn hangup(&mut self, why: &StreamHangup, after: &mut RunActions) {
        // This waker may have kept the direction alive.
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
