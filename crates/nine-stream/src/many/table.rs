//! The table of conversations: their queued data, the state of each side, and the order of sending.
//!
//! In: received frames, chains from the streams above. Out: chains for those, batches of frames. Always holds: the sent
//! and received state of a conversation only advances. A number is removed when both sides have sent their last frame.
//! A conversation with something to send is in the ring, once. The table's lock is taken after those of a direction.
//! While it is held, no waker is woken, and no chain is put or dropped that others wait for.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::task::Wake;
use alloc::vec::Vec;
use core::mem;
use core::task::{Poll, Waker};

use super::Side;
use super::frame::{ConversationFrame, FRAME, FrameWriter, HelloFrame};
use crate::block::{Block, Chain};
use crate::lock::{Mutex, MutexGuard, lock};
use crate::module::Fault;
use crate::pool::Pool;
use crate::port::{ReadStore, StoreEnd, StreamPort};
use crate::queue::{Limit, Queue};
use crate::stream::{Make, Stream};
use crate::wait::{QueueTicket, WaiterQueue, wake};
use crate::way::{DirectionEnd, RunActions, StreamDirection, StreamHangup, hungup};

/// The window cost of a data frame besides its bytes: the size of its block.
const FRAME_COST: u32 = 128;
const _: () = assert!(2 * size_of::<Block>() <= FRAME_COST as usize);
/// The cost at which a batch ends. So a batch costs less than this plus one frame.
const BATCH_COST: u32 = FRAME as u32;

pub(super) struct SharedConversations {
    table: Mutex<ConversationTable>,
    make: Make,
}

pub(super) struct ConversationTable {
    here: HelloFrame,
    there: HelloFrame,
    /// The next number of this side; 0 if none is left.
    ours: u32,
    /// The next number of the other side; 0 if none is left.
    theirs: u32,
    entries: BTreeMap<u32, TableEntry>,
    /// Conversations with something to send, in turn.
    ring: VecDeque<u32>,
    /// Conversations whose stream may accept more.
    moving: VecDeque<u32>,
    /// Conversations that the other side has opened and no task has accepted.
    pub(super) opened: VecDeque<(u32, Stream)>,
    pub(super) acceptors: WaiterQueue,
    driver: Waker,
    /// Whether no handle can open or accept any more.
    left: bool,
    /// Set when the lower stream has ended.
    pub(super) over: Option<StreamHangup>,
}

/// One conversation.
struct TableEntry {
    up: Arc<StreamDirection>,
    down: Weak<StreamDirection>,
    /// Received data that its stream has not accepted.
    inbox: Queue,
    /// Its place among the waiters of the stream.
    ticket: QueueTicket,
    waker: Waker,
    /// Remaining window: the cost of the frames that may still be received.
    window: u32,
    /// Cost of the data that its stream has accepted and for which no credit has been sent.
    taken: u32,
    heard: SideProgress,
    /// The end that follows the data in the inbox.
    end: Option<StreamHangup>,
    outbox: Queue,
    /// Wakes the direction when there is room in the outbox.
    again: Waker,
    /// Remaining credit: the cost of the frames that may still be sent.
    credit: u32,
    /// Set when the outbox gets no more data.
    finished: Option<StreamHangup>,
    /// Whether the process has dropped the stream or hung it up.
    shut: bool,
    said: SideProgress,
    is_in_ring: bool,
}

/// The progress of one side in a conversation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SideProgress {
    Nothing,
    Open,
    End,
    Reset,
    Close,
}

fn cost(bytes: usize) -> u32 {
    FRAME_COST.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX))
}

/// Returns the next number of the same side; 0 if none is left.
fn after(number: u32) -> u32 {
    number.checked_add(2).unwrap_or(0)
}

/// Returns the error for an end frame with number 0.
pub(super) fn given_up(why: &Fault) -> Fault {
    Fault::new(format!("the other end has given up: {why}"))
}

impl SharedConversations {
    pub(super) fn new(here: HelloFrame, there: HelloFrame, make: Make) -> Self {
        let (ours, theirs) = if here.side == Side::Dialer { (1, 2) } else { (2, 1) };
        let table = ConversationTable {
            here,
            there,
            ours,
            theirs,
            entries: BTreeMap::new(),
            ring: VecDeque::new(),
            moving: VecDeque::new(),
            opened: VecDeque::new(),
            acceptors: WaiterQueue::default(),
            driver: Waker::noop().clone(),
            left: false,
            over: None,
        };
        Self { table: Mutex::new(table), make }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ConversationTable> {
        lock(&self.table)
    }

    /// Opens a conversation of this side.
    pub(super) fn open(self: &Arc<Self>) -> Result<(u32, Stream), Fault> {
        let mut table = self.lock();
        if let Some(over) = &table.over {
            return Err(hungup(over.clone()));
        }
        let most = table.here.conversations.min(table.there.conversations);
        let number = table.ours;
        if table.count(number) >= usize::from(most) {
            return Err(Fault::new(format!("{most} conversations are open, and no more may be")));
        }
        if number == 0 {
            return Err(Fault::new("every number has been used"));
        }
        table.ours = after(number);
        let stream = self.begin(&mut table, number, SideProgress::Nothing);
        let driver = table.ready(number);
        drop(table);
        wake(driver);
        Ok((number, stream))
    }

    fn begin(self: &Arc<Self>, table: &mut ConversationTable, number: u32, said: SideProgress) -> Stream {
        let make = &self.make;
        let store = ReadStore::new(make.limit);
        let shared = Arc::downgrade(self);
        let up = StreamDirection::new(&make.clock, |_| ConversationInput {
            to: StoreEnd(store.clone()),
            shared: shared.clone(),
            number,
        });
        let mut again = Waker::noop().clone();
        let down = StreamDirection::new(&make.clock, |waker| {
            again = waker;
            ConversationOutput { shared: shared.clone(), number }
        });
        StreamDirection::pair(&up, &down);
        let entry = TableEntry {
            up: up.clone(),
            down: Arc::downgrade(&down),
            inbox: Queue::new(Limit::ONE),
            ticket: None,
            waker: Arc::new(RoomWaker { shared, number }).into(),
            window: table.here.window,
            taken: 0,
            heard: SideProgress::Open,
            end: None,
            outbox: Queue::new(make.limit),
            again,
            credit: table.there.window,
            finished: None,
            shut: false,
            said,
            is_in_ring: false,
        };
        table.entries.insert(number, entry);
        Stream::of(make, StreamPort::new(store, up, down, Pool::new(0)))
    }

    /// Handles a received frame. An error is a violation by the other side, and ends the lower stream.
    pub(super) fn hear(self: &Arc<Self>, number: u32, frame: ConversationFrame) -> Result<(), Fault> {
        match (number, frame) {
            (0, ConversationFrame::End(Some(why))) => Err(given_up(&why)),
            (_, ConversationFrame::Open) => self.hear_open(number),
            (_, frame) => self.hear_of(number, frame),
        }
    }

    fn hear_open(self: &Arc<Self>, number: u32) -> Result<(), Fault> {
        let mut table = self.lock();
        if number == 0 || number != table.theirs {
            return Err(Fault::new(format!("conversation {number} is not the next one")));
        }
        if table.count(number) >= usize::from(table.here.conversations) {
            return Err(Fault::new(format!("conversation {number} is one too many")));
        }
        table.theirs = after(number);
        let stream = self.begin(&mut table, number, SideProgress::Open);
        if table.left {
            drop(table);
            self.reset(number, Fault::new("nobody accepts conversations"));
            return Ok(());
        }
        table.opened.push_back((number, stream));
        let acceptor = table.acceptors.first();
        drop(table);
        wake(acceptor);
        Ok(())
    }

    fn hear_of(&self, number: u32, frame: ConversationFrame) -> Result<(), Fault> {
        let mut table = self.lock();
        let most = table.there.window;
        let Some(entry) = table.entries.get_mut(&number) else {
            return Err(Fault::new(format!("conversation {number} is not open")));
        };
        let wrong = |what: &str| Err(Fault::new(format!("conversation {number}: {what}")));
        let mut ended = None;
        match frame {
            ConversationFrame::Data(block) if entry.heard == SideProgress::Open => {
                let Some(window) = entry.window.checked_sub(cost(block.len())) else {
                    return wrong("more has come than its window");
                };
                entry.window = window;
                entry.inbox.force(block.into());
            }
            ConversationFrame::Credit(more) if entry.heard < SideProgress::Reset => {
                match entry.credit.checked_add(more) {
                    Some(credit) if more > 0 && credit <= most => entry.credit = credit,
                    _ => return wrong("a credit of nothing, or beyond the window"),
                }
            }
            ConversationFrame::End(None) if entry.heard == SideProgress::Open => {
                entry.heard = SideProgress::End;
                entry.end = Some(None);
            }
            ConversationFrame::End(Some(why)) if entry.heard < SideProgress::Reset => {
                if entry.heard == SideProgress::Open {
                    entry.end = Some(Some(why.clone()));
                }
                entry.heard = SideProgress::Reset;
                ended = Some(Some(why));
            }
            // If this side has reset or closed the conversation, the other one need not send an end.
            ConversationFrame::Close
                if entry.heard < SideProgress::Close
                    && (entry.heard > SideProgress::Open || entry.said >= SideProgress::Reset) =>
            {
                entry.heard = SideProgress::Close;
                ended = Some(None);
            }
            ConversationFrame::Data(_) => return wrong("data behind its end"),
            ConversationFrame::Close => return wrong("closed in the middle, or twice"),
            _ => return wrong("a frame that has no place here"),
        }
        let down = ended.and_then(|why| Some((entry.down.upgrade()?, why)));
        let driver = table.ready(number);
        let gone = table.forget(number);
        drop(table);
        drop(gone);
        let mut after = RunActions::default();
        match down {
            Some((down, None)) => down.abandon(&mut after),
            Some((down, why)) => down.hangup(why, &mut after),
            None => {}
        }
        after.wakes.extend(driver);
        after.wake();
        self.carry_up(number);
        Ok(())
    }

    /// Passes a conversation's received data to its stream, as much as it accepts.
    fn carry_up(&self, number: u32) {
        loop {
            let mut table = self.lock();
            let is_over = table.over.is_some();
            let Some(entry) = table.entries.get_mut(&number) else { return };
            let up = entry.up.clone();
            let Some(block) = entry.inbox.pop() else {
                let end = entry.end.take();
                let gone = if is_over { table.entries.remove(&number) } else { None };
                drop(table);
                drop(gone);
                let mut after = RunActions::default();
                if let Some(why) = end {
                    up.hangup(why, &mut after);
                }
                after.wake();
                return;
            };
            let (waker, mut ticket) = (entry.waker.clone(), entry.ticket.take());
            drop(table);
            let bytes = block.len();
            let (mut given, mut after) = (Some(Chain::from(block)), RunActions::default());
            let polled = up.poll_put(&waker, &mut given, &mut ticket, &mut after);
            after.wake();
            let mut table = self.lock();
            let half = table.here.window / 2;
            let Some(entry) = table.entries.get_mut(&number) else { return };
            entry.ticket = ticket;
            match polled {
                Poll::Pending => {
                    given.into_iter().flatten().for_each(|block| entry.inbox.put_back(block));
                    return;
                }
                Poll::Ready(Ok(())) => {
                    entry.taken += cost(bytes);
                    let driver = if entry.taken >= half { table.ready(number) } else { None };
                    drop(table);
                    wake(driver);
                }
                Poll::Ready(Err(_)) => {
                    let gone = mem::replace(&mut entry.inbox, Queue::new(Limit::ONE));
                    drop(table);
                    drop(gone);
                }
            }
        }
    }

    /// Continues with the streams that may accept more.
    pub(super) fn move_on(&self) {
        loop {
            let Some(number) = self.lock().moving.pop_front() else { return };
            self.carry_up(number);
        }
    }

    /// Returns the next batch in the ring, if any.
    pub(super) fn turn(&self) -> Option<Chain> {
        let mut table = self.lock();
        loop {
            let number = table.ring.pop_front()?;
            let half = table.here.window / 2;
            let Some(entry) = table.entries.get_mut(&number) else { continue };
            entry.is_in_ring = false;
            let mut speech = FrameWriter::default();
            let dropped = entry.speak(number, half, &mut speech);
            let again = entry.outbox.relieved().then(|| entry.again.clone());
            let said = speech.chain();
            if !said.is_empty() {
                // There may be more.
                table.ready(number);
            }
            let gone = table.forget(number);
            drop(table);
            drop((dropped, gone));
            wake(again);
            if !said.is_empty() {
                return Some(said);
            }
            table = self.lock();
        }
    }

    /// Whether no conversation will send any more.
    pub(super) fn is_done(&self) -> bool {
        let table = self.lock();
        table.left && table.entries.is_empty()
    }

    /// Whether no conversation has data to deliver.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().entries.is_empty()
    }

    /// Sets the waker for new work.
    pub(super) fn watch(&self, waker: &Waker) {
        let waker = waker.clone();
        let last = mem::replace(&mut self.lock().driver, waker);
        drop(last);
    }

    /// Ends a conversation with an error.
    pub(super) fn reset(&self, number: u32, why: Fault) {
        let mut table = self.lock();
        let Some(entry) = table.entries.get_mut(&number) else { return };
        let (up, down) = (entry.up.clone(), entry.down.upgrade());
        entry.finished = Some(Some(why.clone()));
        let driver = table.ready(number);
        drop(table);
        end_both(&up, down, why, driver);
    }

    /// Notes that no handle can open or accept any more.
    pub(super) fn leave(&self) {
        let mut table = self.lock();
        table.left = true;
        let refused = mem::take(&mut table.opened);
        let driver = table.driver.clone();
        drop(table);
        for (number, stream) in refused {
            self.reset(number, Fault::new("nobody accepts conversations"));
            drop(stream);
        }
        wake([driver]);
    }

    /// Handles the end of the lower stream: nothing more is sent, and the end follows the received data.
    pub(super) fn end(&self, why: &StreamHangup) {
        let mut table = self.lock();
        table.over.get_or_insert_with(|| why.clone());
        let fault = hungup(why.clone());
        let numbers: Vec<u32> = table.entries.keys().copied().collect();
        let mut downs = Vec::new();
        for entry in table.entries.values_mut() {
            if entry.heard == SideProgress::Open {
                entry.end = Some(Some(fault.clone()));
            }
            (entry.heard, entry.said) = (SideProgress::Close, SideProgress::Close);
            downs.extend(entry.down.upgrade());
        }
        table.moving.extend(numbers);
        let mut after = RunActions::default();
        after.wakes.extend(table.acceptors.first());
        drop(table);
        downs.into_iter().for_each(|down| down.hangup(Some(fault.clone()), &mut after));
        after.wake();
    }

    /// Ends all conversations because the driver is gone.
    pub(super) fn give_up(&self) {
        self.end(&Some(Fault::new("nobody drives the conversations")));
        let entries = mem::take(&mut self.lock().entries);
        let fault = hungup(self.lock().over.clone().flatten());
        for entry in entries.into_values() {
            end_both(&entry.up, entry.down.upgrade(), fault.clone(), None);
        }
    }
}

fn end_both(up: &StreamDirection, down: Option<Arc<StreamDirection>>, why: Fault, driver: Option<Waker>) {
    let mut after = RunActions::default();
    if let Some(down) = down {
        down.hangup(Some(why.clone()), &mut after);
    }
    up.hangup(Some(why), &mut after);
    after.wakes.extend(driver);
    after.wake();
}

impl ConversationTable {
    /// Counts the conversations of the side that this number belongs to.
    fn count(&self, number: u32) -> usize {
        self.entries.keys().filter(|other| *other % 2 == number % 2).count()
    }

    /// Puts a conversation into the ring, because it may have something to send. Returns the waker if it was not in the
    /// ring.
    fn ready(&mut self, number: u32) -> Option<Waker> {
        let entry = self.entries.get_mut(&number)?;
        if entry.said == SideProgress::Close || mem::replace(&mut entry.is_in_ring, true) {
            return None;
        }
        self.ring.push_back(number);
        Some(self.driver.clone())
    }

    /// Removes a conversation if both sides have sent their last frame.
    fn forget(&mut self, number: u32) -> Option<TableEntry> {
        let entry = self.entries.get(&number)?;
        let done =
            self.over.is_none() && entry.said == SideProgress::Close && entry.heard == SideProgress::Close;
        if done { self.entries.remove(&number) } else { None }
    }
}

impl TableEntry {
    /// Writes the frames of one batch. Returns the dropped outbox after a reset. `half` is half of the window, the
    /// threshold for credit.
    fn speak(&mut self, number: u32, half: u32, speech: &mut FrameWriter) -> Option<Queue> {
        let mut say = |frame| speech.say(number, frame);
        if self.said == SideProgress::Nothing {
            say(ConversationFrame::Open);
            self.said = SideProgress::Open;
        }
        let is_reset = self.heard >= SideProgress::Reset || matches!(self.finished, Some(Some(_)));
        let dropped = is_reset.then(|| mem::replace(&mut self.outbox, Queue::new(Limit::ONE)));
        if self.heard == SideProgress::Open && self.said < SideProgress::Reset && self.taken >= half {
            say(ConversationFrame::Credit(self.taken));
            self.window += mem::take(&mut self.taken);
        }
        let mut spent = 0;
        while spent < BATCH_COST
            && let Some(block) = self.part()
        {
            spent += cost(block.len());
            say(ConversationFrame::Data(block));
        }
        match &self.finished {
            _ if self.heard >= SideProgress::Reset => {}
            Some(Some(why)) if self.said < SideProgress::Reset => {
                say(ConversationFrame::End(Some(why.clone())));
                self.said = SideProgress::Reset;
            }
            Some(None) if self.said == SideProgress::Open && self.outbox.is_empty() => {
                say(ConversationFrame::End(None));
                self.said = SideProgress::End;
            }
            _ => {}
        }
        if self.shut
            && self.said < SideProgress::Close
            && (self.said >= SideProgress::End || self.heard >= SideProgress::Reset)
        {
            say(ConversationFrame::Close);
            self.said = SideProgress::Close;
        }
        dropped
    }

    /// Takes the next part of the outbox for which there is credit.
    fn part(&mut self) -> Option<Block> {
        let mut block = self.outbox.pop()?;
        while block.is_empty() && !block.delim {
            block = self.outbox.pop()?;
        }
        let room = self.credit.saturating_sub(FRAME_COST) as usize;
        if self.credit < FRAME_COST || room == 0 && !block.is_empty() {
            self.outbox.put_back(block);
            return None;
        }
        let n = block.len().min(FRAME).min(room);
        self.credit -= cost(n);
        if n == block.len() {
            return Some(block);
        }
        let part = block.split_to(n);
        self.outbox.put_back(block);
        Some(part)
    }
}

/// The receiving end of a conversation: its queue. A hangup is reported to the other side.
struct ConversationInput {
    to: StoreEnd,
    shared: Weak<SharedConversations>,
    number: u32,
}

impl DirectionEnd for ConversationInput {
    fn put(&mut self, chain: Chain, after: &mut RunActions) -> Result<(), Chain> {
        self.to.put(chain, after)
    }

    fn hangup(&mut self, why: &StreamHangup, after: &mut RunActions) {
        self.to.hangup(why, after);
        let Some(shared) = self.shared.upgrade() else { return };
        let mut table = shared.lock();
        let Some(entry) = table.entries.get_mut(&self.number) else { return };
        match why {
            Some(_) => entry.finished = Some(why.clone()),
            None => entry.shut |= entry.heard == SideProgress::Open,
        }
        after.wakes.extend(table.ready(self.number));
    }

    fn is_full(&self) -> bool {
        self.to.is_full()
    }
}

/// The sending end of a conversation.
struct ConversationOutput {
    shared: Weak<SharedConversations>,
    number: u32,
}

impl DirectionEnd for ConversationOutput {
    fn put(&mut self, chain: Chain, after: &mut RunActions) -> Result<(), Chain> {
        let Some(shared) = self.shared.upgrade() else {
            after.gone = true;
            return Ok(());
        };
        let mut table = shared.lock();
        let Some(entry) = table.entries.get_mut(&self.number) else {
            after.gone = true;
            return Ok(());
        };
        entry.outbox.put(chain)?;
        after.wakes.extend(table.ready(self.number));
        Ok(())
    }

    fn hangup(&mut self, why: &StreamHangup, after: &mut RunActions) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut table = shared.lock();
        let Some(entry) = table.entries.get_mut(&self.number) else { return };
        entry.finished.get_or_insert_with(|| why.clone());
        // This waker may have kept the direction alive.
        after.wakes.push(mem::replace(&mut entry.again, Waker::noop().clone()));
        after.wakes.extend(table.ready(self.number));
    }

    fn is_full(&self) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        let table = shared.lock();
        table.entries.get(&self.number).is_some_and(|entry| entry.outbox.has_refused())
    }

    fn hold(&mut self, way: Waker) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut table = shared.lock();
        if let Some(entry) = table.entries.get_mut(&self.number) {
            entry.again = way;
        }
    }
}

/// Handles the last close.
impl Drop for ConversationOutput {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut table = shared.lock();
        let Some(entry) = table.entries.get_mut(&self.number) else { return };
        entry.shut = true;
        let driver = table.ready(self.number);
        drop(table);
        wake(driver);
    }
}

/// Wakes the driver when a stream may accept more.
struct RoomWaker {
    shared: Weak<SharedConversations>,
    number: u32,
}

impl Wake for RoomWaker {
    fn wake(self: Arc<Self>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut table = shared.lock();
        let driver = table.driver.clone();
        if !table.moving.contains(&self.number) {
            table.moving.push_back(self.number);
        }
        drop(table);
        wake([driver]);
    }
}
