//! The conversations by their numbers: what waits for each, what each side has said of it, and whose turn it is.
//!
//! Always holds: what a conversation has said and heard goes forward only; a number is forgotten when both sides have
//! said their last word; whoever has something to say is in the ring, once. The lock is taken behind those of a
//! direction, and nothing is woken, put or dropped that others wait for while it is held.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::task::Wake;
use alloc::vec::Vec;
use core::mem;
use core::task::{Poll, Waker};

use super::Side;
use super::frame::{FRAME, Frame, Hello, Speech};
use crate::block::{Block, Chain};
use crate::lock::{Mutex, MutexGuard, lock};
use crate::module::Fault;
use crate::pool::Pool;
use crate::port::{Port, Store, ToStore};
use crate::queue::{Limit, Queue};
use crate::stream::{Make, Stream};
use crate::wait::{Ticket, Waiters, wake};
use crate::way::{After, End, Hangup, Way, hungup};

/// What a data frame costs of a window besides its bytes: what its block takes.
const FRAME_COST: u32 = 128;
const _: () = assert!(2 * size_of::<Block>() <= FRAME_COST as usize);
/// A turn ends when it has cost as much: so it costs less than this and a frame.
const TURN: u32 = FRAME as u32;

pub(super) struct Shared {
    table: Mutex<Table>,
    make: Make,
}

pub(super) struct Table {
    here: Hello,
    there: Hello,
    /// The next number of this side; 0 when there is none.
    ours: u32,
    /// The next number of the other side; 0 when there is none.
    theirs: u32,
    entries: BTreeMap<u32, Entry>,
    /// Who has something to say, in turn.
    ring: VecDeque<u32>,
    /// Whose stream may take more.
    moving: VecDeque<u32>,
    /// What the other side has opened and nobody has accepted.
    pub(super) opened: VecDeque<(u32, Stream)>,
    pub(super) acceptors: Waiters,
    driver: Waker,
    /// Nobody opens or accepts any more.
    left: bool,
    /// The lower stream has ended.
    pub(super) over: Option<Hangup>,
}

/// One conversation.
struct Entry {
    up: Arc<Way>,
    down: Weak<Way>,
    /// What has come and its stream has not taken.
    inbox: Queue,
    /// Its place where it waits to be taken.
    ticket: Ticket,
    waker: Waker,
    /// So much more may come.
    window: u32,
    /// What its stream has taken and the other side has not been told of.
    taken: u32,
    heard: Said,
    /// The end that comes behind what is in the inbox.
    end: Option<Hangup>,
    outbox: Queue,
    /// Goes on when there is room in the outbox.
    again: Waker,
    /// So much more may go.
    credit: u32,
    /// Nothing more comes to the outbox.
    finished: Option<Hangup>,
    /// The process has dropped the stream, or has hung it up.
    shut: bool,
    said: Said,
    is_in_ring: bool,
}

/// How far a side has come in a conversation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Nothing,
    Open,
    End,
    Reset,
    Close,
}

fn cost(bytes: usize) -> u32 {
    FRAME_COST.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX))
}

/// The number after this one of the same side; 0 when there is none.
fn after(number: u32) -> u32 {
    number.checked_add(2).unwrap_or(0)
}

/// What an end of number 0 comes to.
pub(super) fn given_up(why: &Fault) -> Fault {
    Fault::new(format!("the other end has given up: {why}"))
}

impl Shared {
    pub(super) fn new(here: Hello, there: Hello, make: Make) -> Self {
        let (ours, theirs) = if here.side == Side::Dialer { (1, 2) } else { (2, 1) };
        let table = Table {
            here,
            there,
            ours,
            theirs,
            entries: BTreeMap::new(),
            ring: VecDeque::new(),
            moving: VecDeque::new(),
            opened: VecDeque::new(),
            acceptors: Waiters::default(),
            driver: Waker::noop().clone(),
            left: false,
            over: None,
        };
        Self { table: Mutex::new(table), make }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// A conversation of this side's.
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
        let stream = self.begin(&mut table, number, Said::Nothing);
        let driver = table.ready(number);
        drop(table);
        wake(driver);
        Ok((number, stream))
    }

    fn begin(self: &Arc<Self>, table: &mut Table, number: u32, said: Said) -> Stream {
        let make = &self.make;
        let store = Store::new(make.limit);
        let shared = Arc::downgrade(self);
        let up = Way::new(&make.clock, |_| In { to: ToStore(store.clone()), shared: shared.clone(), number });
        let mut again = Waker::noop().clone();
        let down = Way::new(&make.clock, |waker| {
            again = waker;
            Out { shared: shared.clone(), number }
        });
        Way::pair(&up, &down);
        let entry = Entry {
            up: up.clone(),
            down: Arc::downgrade(&down),
            inbox: Queue::new(Limit::ONE),
            ticket: None,
            waker: Arc::new(Moves { shared, number }).into(),
            window: table.here.window,
            taken: 0,
            heard: Said::Open,
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
        Stream::of(make, Port::new(store, up, down, Pool::new(0)))
    }

    /// What the other side says. An error: it must not, and the lower stream ends.
    pub(super) fn hear(self: &Arc<Self>, number: u32, frame: Frame) -> Result<(), Fault> {
        match (number, frame) {
            (0, Frame::End(Some(why))) => Err(given_up(&why)),
            (_, Frame::Open) => self.hear_open(number),
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
        let stream = self.begin(&mut table, number, Said::Open);
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

    fn hear_of(&self, number: u32, frame: Frame) -> Result<(), Fault> {
        let mut table = self.lock();
        let most = table.there.window;
        let Some(entry) = table.entries.get_mut(&number) else {
            return Err(Fault::new(format!("conversation {number} is not open")));
        };
        let wrong = |what: &str| Err(Fault::new(format!("conversation {number}: {what}")));
        let mut ended = None;
        match frame {
            Frame::Data(block) if entry.heard == Said::Open => {
                let Some(window) = entry.window.checked_sub(cost(block.len())) else {
                    return wrong("more has come than its window");
                };
                entry.window = window;
                entry.inbox.force(block.into());
            }
            Frame::Credit(more) if entry.heard < Said::Reset => match entry.credit.checked_add(more) {
                Some(credit) if more > 0 && credit <= most => entry.credit = credit,
                _ => return wrong("a credit of nothing, or beyond the window"),
            },
            Frame::End(None) if entry.heard == Said::Open => {
                entry.heard = Said::End;
                entry.end = Some(None);
            }
            Frame::End(Some(why)) if entry.heard < Said::Reset => {
                if entry.heard == Said::Open {
                    entry.end = Some(Some(why.clone()));
                }
                entry.heard = Said::Reset;
                ended = Some(Some(why));
            }
            // What this side has reset or closed, the other one need not end.
            Frame::Close
                if entry.heard < Said::Close && (entry.heard > Said::Open || entry.said >= Said::Reset) =>
            {
                entry.heard = Said::Close;
                ended = Some(None);
            }
            Frame::Data(_) => return wrong("data behind its end"),
            Frame::Close => return wrong("closed in the middle, or twice"),
            _ => return wrong("a frame that has no place here"),
        }
        let down = ended.and_then(|why| Some((entry.down.upgrade()?, why)));
        let driver = table.ready(number);
        let gone = table.forget(number);
        drop(table);
        drop(gone);
        let mut after = After::default();
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

    /// Brings what has come for a conversation to its stream, as much as that takes.
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
                let mut after = After::default();
                if let Some(why) = end {
                    up.hangup(why, &mut after);
                }
                after.wake();
                return;
            };
            let (waker, mut ticket) = (entry.waker.clone(), entry.ticket.take());
            drop(table);
            let bytes = block.len();
            let (mut given, mut after) = (Some(Chain::from(block)), After::default());
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

    /// Goes on where a stream that has refused may take more.
    pub(super) fn move_on(&self) {
        loop {
            let Some(number) = self.lock().moving.pop_front() else { return };
            self.carry_up(number);
        }
    }

    /// What the next one in the ring has to say.
    pub(super) fn turn(&self) -> Option<Chain> {
        let mut table = self.lock();
        loop {
            let number = table.ring.pop_front()?;
            let half = table.here.window / 2;
            let Some(entry) = table.entries.get_mut(&number) else { continue };
            entry.is_in_ring = false;
            let mut speech = Speech::default();
            let dropped = entry.speak(number, half, &mut speech);
            let again = entry.outbox.relieved().then(|| entry.again.clone());
            let said = speech.chain();
            if !said.is_empty() {
                // Perhaps there is more.
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

    /// Whether nobody will say anything any more.
    pub(super) fn is_done(&self) -> bool {
        let table = self.lock();
        table.left && table.entries.is_empty()
    }

    /// Whether nobody is left whom something has to be brought.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().entries.is_empty()
    }

    /// Who is to be woken when there is something to carry.
    pub(super) fn watch(&self, waker: &Waker) {
        let waker = waker.clone();
        let last = mem::replace(&mut self.lock().driver, waker);
        drop(last);
    }

    /// Ends one for an error.
    pub(super) fn reset(&self, number: u32, why: Fault) {
        let mut table = self.lock();
        let Some(entry) = table.entries.get_mut(&number) else { return };
        let (up, down) = (entry.up.clone(), entry.down.upgrade());
        entry.finished = Some(Some(why.clone()));
        let driver = table.ready(number);
        drop(table);
        end_both(&up, down, why, driver);
    }

    /// Nobody opens or accepts any more.
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

    /// The lower stream has ended: nothing more goes, and behind what has come is the end.
    pub(super) fn end(&self, why: &Hangup) {
        let mut table = self.lock();
        table.over.get_or_insert_with(|| why.clone());
        let fault = hungup(why.clone());
        let numbers: Vec<u32> = table.entries.keys().copied().collect();
        let mut downs = Vec::new();
        for entry in table.entries.values_mut() {
            if entry.heard == Said::Open {
                entry.end = Some(Some(fault.clone()));
            }
            (entry.heard, entry.said) = (Said::Close, Said::Close);
            downs.extend(entry.down.upgrade());
        }
        table.moving.extend(numbers);
        let mut after = After::default();
        after.wakes.extend(table.acceptors.first());
        drop(table);
        downs.into_iter().for_each(|down| down.hangup(Some(fault.clone()), &mut after));
        after.wake();
    }

    /// Nobody carries anything any more.
    pub(super) fn give_up(&self) {
        self.end(&Some(Fault::new("nobody drives the conversations")));
        let entries = mem::take(&mut self.lock().entries);
        let fault = hungup(self.lock().over.clone().flatten());
        for entry in entries.into_values() {
            end_both(&entry.up, entry.down.upgrade(), fault.clone(), None);
        }
    }
}

fn end_both(up: &Way, down: Option<Arc<Way>>, why: Fault, driver: Option<Waker>) {
    let mut after = After::default();
    if let Some(down) = down {
        down.hangup(Some(why.clone()), &mut after);
    }
    up.hangup(Some(why), &mut after);
    after.wakes.extend(driver);
    after.wake();
}

impl Table {
    /// Conversations of the side that has this number.
    fn count(&self, number: u32) -> usize {
        self.entries.keys().filter(|other| *other % 2 == number % 2).count()
    }

    /// It may have something to say. Who is to be told, if it is news.
    fn ready(&mut self, number: u32) -> Option<Waker> {
        let entry = self.entries.get_mut(&number)?;
        if entry.said == Said::Close || mem::replace(&mut entry.is_in_ring, true) {
            return None;
        }
        self.ring.push_back(number);
        Some(self.driver.clone())
    }

    /// Takes it out if both sides have said their last word.
    fn forget(&mut self, number: u32) -> Option<Entry> {
        let entry = self.entries.get(&number)?;
        let done = self.over.is_none() && entry.said == Said::Close && entry.heard == Said::Close;
        if done { self.entries.remove(&number) } else { None }
    }
}

impl Entry {
    /// Says what is to be said in one turn; what is thrown away comes back. `half`: of the window, for credit.
    fn speak(&mut self, number: u32, half: u32, speech: &mut Speech) -> Option<Queue> {
        let mut say = |frame| speech.say(number, frame);
        if self.said == Said::Nothing {
            say(Frame::Open);
            self.said = Said::Open;
        }
        let is_reset = self.heard >= Said::Reset || matches!(self.finished, Some(Some(_)));
        let dropped = is_reset.then(|| mem::replace(&mut self.outbox, Queue::new(Limit::ONE)));
        if self.heard == Said::Open && self.said < Said::Reset && self.taken >= half {
            say(Frame::Credit(self.taken));
            self.window += mem::take(&mut self.taken);
        }
        let mut spent = 0;
        while spent < TURN
            && let Some(block) = self.part()
        {
            spent += cost(block.len());
            say(Frame::Data(block));
        }
        match &self.finished {
            _ if self.heard >= Said::Reset => {}
            Some(Some(why)) if self.said < Said::Reset => {
                say(Frame::End(Some(why.clone())));
                self.said = Said::Reset;
            }
            Some(None) if self.said == Said::Open && self.outbox.is_empty() => {
                say(Frame::End(None));
                self.said = Said::End;
            }
            _ => {}
        }
        if self.shut && self.said < Said::Close && (self.said >= Said::End || self.heard >= Said::Reset) {
            say(Frame::Close);
            self.said = Said::Close;
        }
        dropped
    }

    /// What goes next of the outbox and for which there is credit.
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

/// The end of a conversation's way up: its queue, and the other side shall know why it is not read.
struct In {
    to: ToStore,
    shared: Weak<Shared>,
    number: u32,
}

impl End for In {
    fn put(&mut self, chain: Chain, after: &mut After) -> Result<(), Chain> {
        self.to.put(chain, after)
    }

    fn hangup(&mut self, why: &Hangup, after: &mut After) {
        self.to.hangup(why, after);
        let Some(shared) = self.shared.upgrade() else { return };
        let mut table = shared.lock();
        let Some(entry) = table.entries.get_mut(&self.number) else { return };
        match why {
            Some(_) => entry.finished = Some(why.clone()),
            None => entry.shut |= entry.heard == Said::Open,
        }
        after.wakes.extend(table.ready(self.number));
    }

    fn is_full(&self) -> bool {
        self.to.is_full()
    }
}

/// The end of a conversation's way down.
struct Out {
    shared: Weak<Shared>,
    number: u32,
}

impl End for Out {
    fn put(&mut self, chain: Chain, after: &mut After) -> Result<(), Chain> {
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

    fn hangup(&mut self, why: &Hangup, after: &mut After) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut table = shared.lock();
        let Some(entry) = table.entries.get_mut(&self.number) else { return };
        entry.finished.get_or_insert_with(|| why.clone());
        // It may have been held by this.
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

/// The last close.
impl Drop for Out {
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

/// Tells the driver that a stream may take more.
struct Moves {
    shared: Weak<Shared>,
    number: u32,
}

impl Wake for Moves {
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
