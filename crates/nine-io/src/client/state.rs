//! What the handles of a client and its driver share: the session, the output, and who waits for what.
//!
//! In: messages of [`Call`](super::call::Call)s and frames from the driver. Out: bytes in [`State::out`] and wakers,
//! which [`Shared::with`] wakes after it has let go of the lock.
//!
//! Always holds: every queue here is bounded. Calls under way are at most `Options::calls`, orphans included; their
//! messages and largest possible answers together are at most `Options::budget` bytes, unless one call alone is
//! larger; what does not fit waits, each client's calls in their order and the clients in turn (`share`), and
//! is dropped with its future. Clunks in waiting are bounded by the fids.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker, ready};

use bytes::Bytes;
use nine_proto::msg::{Data, Tmsg};
use nine_proto::session::client::{ClientSession, Event, Intent};
use nine_proto::{Dialect, Errno, Fid, NOTAG, Names, OpenFlags, Tag, WireError};

use super::Options;
use super::answer::Answer;
use super::error::{Error, Result};
use super::forward::{FlushLimits, Forwarded};
use super::meter::Meter;
use super::out::Out;
use super::share::{Ledger, Shares, Size};
use super::truncate::TruncationCheck;
use crate::direct::Directs;
use crate::sync::{Mutex, lock};

/// What a message and its answer are charged at least, bytes.
const SMALL: usize = 1024;
/// A call that costs no more than this does not wait behind one that finds no room, bytes.
const OVERTAKES: usize = 8 * 1024;
/// What the answer to a message is charged whose answer is text of any length, bytes.
const TEXT: usize = 68 * 1024;

pub(crate) struct Shared {
    pub(crate) peer: Arc<str>,
    pub(crate) meter: Option<Arc<Meter>>,
    state: Mutex<State>,
    /// Bytes have come or gone since it was asked last.
    pub(crate) moved: AtomicBool,
    /// Somebody has wanted to change the conversation: the driver looks whether the time has come.
    pub(crate) border: AtomicBool,
    /// Data connections do not come about: none is tried before this time, ms. 0: they may; all ones: for good.
    pub(crate) no_streams: AtomicU64,
    /// Something is pushed on the conversation.
    pub(crate) piped: AtomicBool,
    pub(crate) truncation: TruncationCheck,
    /// Whether the server knows Trenameat2, once that has been looked at.
    pub(crate) has_renameat2: OnceLock<bool>,
    /// Open files of a server in this process.
    pub(crate) directs: Option<Arc<Directs>>,
}

pub(crate) struct State {
    pub(crate) session: ClientSession,
    /// Messages the driver has not taken yet; bounded by the budget and one small message per tag.
    pub(crate) out: Out,
    /// Sleeps while there is nothing to send, or while the transport takes no more.
    pub(crate) driver: Option<Waker>,
    /// The transport takes no more: it will wake the driver, new messages need not.
    pub(crate) blocked: bool,
    /// No handle is left: end when everything has been answered.
    pub(crate) closing: bool,
    /// Do not wait for the answers.
    pub(crate) hurry: bool,
    pub(crate) agreed: bool,
    dead: Option<Error>,
    peer: Arc<str>,
    meter: Option<Arc<Meter>>,
    names: Arc<dyn Names>,
    /// By tag.
    sent: Vec<Sent>,
    calls: Vec<Slot>,
    free: Vec<usize>,
    /// Calls without room, by ticket; as many as there are futures and clients that wait. Whose turn it is, `shares`
    /// knows.
    queue: BTreeMap<u64, Queued>,
    ticket: u64,
    shares: Shares,
    /// Whose turn it is when there is room for one.
    turn: Size,
    /// Somebody waits for room, and not for its own share of it.
    full: bool,
    /// Bytes that calls under way may need.
    charged: usize,
    budget: usize,
    /// Fids nobody wants any more, waiting for a tag or for the end of an orphan.
    clunks: VecDeque<Fid>,
    wakes: Vec<Waker>,
    /// Answers to what was passed on, to be told when the lock is free.
    told: Vec<Told>,
    /// What [`State::tick`] has counted.
    now: u32,
    /// Calls of [`State::beat`] since something moved.
    silent: u32,
    border: Border,
}

/// How far a change of the conversation's modules is.
enum Border {
    /// There is none.
    Far,
    /// Nothing more is sent; who waits until all is answered.
    Near(Option<Waker>),
    /// The last message in the old form is under way: its call, and what its answer makes true.
    Reached(usize, String),
    /// It has been answered: the transport is to be told, then the call's answer.
    Crossed(usize, String, Result<Answer>),
    /// Nothing is under way, and nothing has been said: the transport is to be told, then who waits.
    Here(String, Waker),
    /// The transport is being told.
    Telling(Waker),
    /// What the transport has said to that.
    Told(Result<()>),
}

#[derive(Clone, Copy, Default)]
struct Sent {
    /// Index in `calls`; `None`: nobody waits.
    call: Option<usize>,
    cost: usize,
    /// The most data that the answer may carry, or say that it took.
    count: u32,
    /// When it was flushed.
    flushed: Option<u32>,
    /// It may change something.
    changes: bool,
    /// For which client; 0: for us.
    share: u64,
    /// When it was asked, for the meter; 0: nobody looks.
    begun: u64,
}

enum Slot {
    Free,
    Waits { at: At, waiter: Waiter },
    Done { answer: Result<Answer>, made: Option<Fid> },
}

/// Who waits for an answer.
pub(crate) enum Waiter {
    /// A future.
    Waker(Waker),
    /// Nobody: it is told. Boxed, for most slots are of futures.
    Forward(Box<Forwarded>),
    /// [`State::forward`] will say; for a request of this client.
    Unknown(u64),
}

struct Told {
    forwarded: Box<Forwarded>,
    answer: Result<Answer>,
    made: Option<Fid>,
}

/// Where a call waits.
#[derive(Clone, Copy)]
enum At {
    /// For room, with this ticket.
    Queue(u64),
    /// For its answer.
    Tag(Tag),
}

/// A call without room: complete but for its tag.
struct Queued {
    call: usize,
    message: Vec<u8>,
    payload: Option<Bytes>,
    intent: Intent,
    sent: Sent,
}

impl Waiter {
    /// The client it waits for.
    fn share(&self) -> u64 {
        match self {
            Self::Forward(forwarded) => forwarded.client(),
            Self::Unknown(client) => *client,
            Self::Waker(_) => super::cancel::client(),
        }
    }
}

impl Shared {
    pub(crate) fn new(peer: &str, options: &Options, directs: Option<Arc<Directs>>) -> Self {
        let peer: Arc<str> = peer.into();
        let mut session = ClientSession::new(options.calls);
        let mut out = Out::default();
        session.version(options.msize, &options.dialects).encode(NOTAG, Dialect::P2000, &mut out.heads);
        let state = Mutex::new(State {
            session,
            out,
            driver: None,
            blocked: false,
            closing: false,
            hurry: false,
            agreed: false,
            dead: None,
            peer: peer.clone(),
            meter: options.meter.clone(),
            names: options.names.clone(),
            sent: Vec::new(),
            calls: Vec::new(),
            free: Vec::new(),
            queue: BTreeMap::new(),
            ticket: 0,
            shares: Shares::default(),
            turn: Size::Small,
            full: false,
            charged: 0,
            budget: options.budget,
            clunks: VecDeque::new(),
            wakes: Vec::new(),
            told: Vec::new(),
            now: 0,
            silent: 0,
            border: Border::Far,
        });
        let [moved, border, piped] = [const { AtomicBool::new(false) }; 3];
        let meter = options.meter.clone();
        Self {
            peer,
            meter,
            state,
            moved,
            border,
            no_streams: AtomicU64::new(0),
            truncation: TruncationCheck::default(),
            has_renameat2: OnceLock::new(),
            piped,
            directs,
        }
    }

    /// Does something with the state, then wakes and tells whom it concerns: the driver if there is something new for
    /// it and it sleeps, so at most once per batch.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = lock(&self.state);
        let result = f(&mut state);
        let driver = if state.has_work() { state.driver.take() } else { None };
        let wakes = std::mem::take(&mut state.wakes);
        let told = std::mem::take(&mut state.told);
        drop(state);
        driver.into_iter().chain(wakes).for_each(Waker::wake);
        for Told { forwarded, answer, made } in told {
            forwarded.tell(answer, made);
        }
        result
    }
}

impl State {
    fn has_work(&self) -> bool {
        (!self.out.is_empty() && !self.blocked) || self.dead.is_some() || self.is_finished()
    }

    /// Nothing will ever be sent or received again.
    pub(crate) fn is_finished(&self) -> bool {
        let answered = self.session.calls() == 0 && self.clunks.is_empty();
        self.closing && (answered || self.hurry) && self.out.is_empty()
    }

    pub(crate) fn dead(&self) -> Option<&Error> {
        self.dead.as_ref()
    }

    /// A fid number for a message that makes one.
    pub(crate) fn fid(&mut self) -> Result<Fid> {
        self.session
            .fid()
            .ok_or_else(|| Error::refused(Errno::EMFILE, "too many open files on this connection"))
    }

    /// Sends a call, or queues it while there is no room. What comes out names it from now on.
    pub(crate) fn begin(
        &mut self,
        message: &Tmsg<'_>,
        payload: Option<Bytes>,
        waiter: Waiter,
    ) -> Result<usize> {
        self.begin_now(message, payload, waiter, false)
    }

    /// The same; `alone`: there is nothing else under way, and it does not wait behind those that wait.
    fn begin_now(
        &mut self,
        message: &Tmsg<'_>,
        payload: Option<Bytes>,
        waiter: Waiter,
        alone: bool,
    ) -> Result<usize> {
        if let Some(dead) = &self.dead {
            return Err(dead.unsent());
        }
        let call = self.free_call();
        let share = waiter.share();
        let (cost, count) = (self.cost(message), asked(message));
        let begun = self.meter.as_ref().map_or(0, |meter| meter.begun());
        let changes = changes(message);
        let sent = Sent { call: Some(call), cost, count, flushed: None, changes, share, begun };
        let passes = !self.full || sent.cost <= OVERTAKES;
        let room = match self.border {
            Border::Far => passes && !self.shares.waits(share) && self.fits(sent.cost) && self.may(&sent),
            _ => alone,
        };
        let mut queued = Vec::new();
        let buf = if room { &mut self.out.heads } else { &mut queued };
        let start = buf.len();
        let extra = payload.as_ref().map_or(0, Bytes::len);
        message.encode_before(extra, NOTAG, self.session.dialect(), buf);
        if buf.len() - start + extra > self.session.msize() as usize {
            buf.truncate(start);
            self.free.push(call);
            self.unsent(message);
            let text = "the request does not fit into a message of this connection";
            return Err(Error::refused(Errno::E2BIG, text));
        }
        let intent = message.into();
        let at = if room {
            At::Tag(self.sends(start, payload, intent, sent))
        } else {
            self.ticket += 1;
            self.queue.insert(self.ticket, Queued { call, message: queued, payload, intent, sent });
            self.shares.wait(share, self.ticket, size_of(sent.cost));
            self.full |= !self.fits(sent.cost);
            At::Queue(self.ticket)
        };
        self.calls[call] = Slot::Waits { at, waiter };
        Ok(call)
    }

    /// The call was begun for this.
    pub(crate) fn forward(&mut self, call: usize, forwarded: Box<Forwarded>) {
        if let Slot::Waits { waiter, .. } = &mut self.calls[call] {
            *waiter = Waiter::Forward(forwarded);
        }
    }

    /// The answer of a call, when it is there; the call is over then.
    pub(crate) fn poll(&mut self, call: usize, waker: &Waker) -> Poll<Result<Answer>> {
        match &mut self.calls[call] {
            Slot::Waits { waiter, .. } => {
                match waiter {
                    Waiter::Waker(old) => old.clone_from(waker),
                    _ => unreachable!("a future polls its own call only"),
                }
                Poll::Pending
            }
            _ => Poll::Ready(self.take(call).0),
        }
    }

    /// Nobody needs the call any more, but somebody waits for what became of it: its answer if there is one before
    /// its Rflush, else EINTR, and then it has not happened (flush(5)).
    pub(crate) fn flush(&mut self, call: usize) {
        let Slot::Waits { at, .. } = self.calls[call] else { return };
        match at {
            At::Queue(ticket) => {
                let orphan = self.dequeue(ticket);
                self.complete(call, Err(interrupted()), None);
                self.clunk(orphan);
            }
            // A Tclunk is not flushed, but nobody waits for it for ever, either.
            At::Tag(tag) => self.send_flush(tag),
        }
    }

    /// As [`State::flush`], for requests that were passed on and that `is` names; whether there were any.
    pub(crate) fn flush_forwarded(&mut self, is: impl Fn(&Forwarded) -> bool) -> bool {
        let named = |slot: &Slot| match slot {
            Slot::Waits { waiter: Waiter::Forward(forwarded), .. } => is(forwarded),
            _ => false,
        };
        let mut any = false;
        for call in 0..self.calls.len() {
            if named(&self.calls[call]) {
                self.flush(call);
                any = true;
            }
        }
        any
    }

    /// Counts one tick. Answers EINTR to requests that have waited for their Rflush for as long as `limits` says; their
    /// tags stay in use until the server answers. Returns how many Rflushes are overdue, and how many are not yet.
    pub(crate) fn tick(&mut self, limits: FlushLimits) -> (usize, usize) {
        self.now = self.now.wrapping_add(1);
        let (mut overdue, mut waiting) = (0, 0);
        for index in 0..self.sent.len() {
            let Some(since) = self.sent[index].flushed else { continue };
            let waited = self.now.wrapping_sub(since);
            *(if waited < limits.overdue { &mut waiting } else { &mut overdue }) += 1;
            let Some(call) = self.sent[index].call else { continue };
            let changes = self.sent[index].changes
                || matches!(&self.calls[call], Slot::Waits { waiter: Waiter::Forward(by), .. } if by.takes());
            if waited >= (if changes { limits.changes } else { limits.reads }) {
                self.sent[index].call = None;
                self.complete(call, Err(interrupted()), None);
            }
        }
        (overdue, waiting)
    }

    /// Some time has passed, and something has `moved` meanwhile or not: asks for a sign of life if not. Says how often
    /// in a row that was so.
    pub(crate) fn beat(&mut self, moved: bool) -> u32 {
        self.silent = if moved { 0 } else { self.silent + 1 };
        if self.silent > 0
            && self.dead.is_none()
            && matches!(self.border, Border::Far)
            && let Some(tag) = self.session.ping()
        {
            Tmsg::Flush { oldtag: NOTAG }.encode(tag, self.session.dialect(), &mut self.out.heads);
        }
        self.silent
    }

    /// A call is taken back that has not been sent.
    fn dequeue(&mut self, ticket: u64) -> Option<Fid> {
        let queued = self.queue.remove(&ticket)?;
        self.shares.take_back(queued.sent.share, ticket);
        self.session.unsent(queued.intent)
    }

    fn send_flush(&mut self, tag: Tag) {
        let now = self.now;
        self.sent[usize::from(tag.0)].flushed.get_or_insert(now);
        if let Some(flush) = self.session.cancel(tag) {
            Tmsg::Flush { oldtag: tag }.encode(flush, self.session.dialect(), &mut self.out.heads);
        }
    }

    /// Nobody waits for the call any more: it is taken back, or what it has made is.
    pub(crate) fn abandon(&mut self, call: usize) {
        let orphan = match self.calls[call] {
            Slot::Waits { at, .. } => {
                self.calls[call] = Slot::Free;
                self.free.push(call);
                match at {
                    At::Queue(ticket) => self.dequeue(ticket),
                    At::Tag(tag) => {
                        self.sent[usize::from(tag.0)].call = None;
                        self.send_flush(tag);
                        None
                    }
                }
            }
            _ => self.take(call).1,
        };
        self.clunk(orphan);
    }

    /// A message was prepared and never begun.
    pub(crate) fn unsent(&mut self, message: &Tmsg<'_>) {
        let orphan = self.session.unsent(message);
        self.clunk(orphan);
    }

    /// Forgets a fid, and tells the server when there is a tag for it.
    pub(crate) fn clunk(&mut self, fid: impl IntoIterator<Item = Fid>) {
        if self.dead.is_none() {
            self.clunks.extend(fid);
            self.pump();
        }
    }

    /// One frame of the server; `owner` owns its bytes, if they may be kept without a copy.
    pub(crate) fn receive(&mut self, frame: &[u8], owner: Option<&Bytes>) -> Result<(), WireError> {
        if self.dead.is_some() {
            // Everybody has been told already.
            return Ok(());
        }
        match self.session.receive(frame)? {
            Event::Ask(version) => version.encode(NOTAG, Dialect::P2000, &mut self.out.heads),
            Event::Agreed => self.agreed = true,
            Event::NoDialect => self.die(Error::Version { peer: self.peer.clone() }),
            Event::Answer { tag, reply, made, ended } => {
                let sent = &mut self.sent[usize::from(tag.0)];
                if Answer::count(&reply).is_some_and(|count| count > sent.count) {
                    return Err(WireError::Count(reply.number()));
                }
                let call = sent.call.take();
                if let Some(meter) = &self.meter {
                    meter.ended(std::mem::take(&mut sent.begun));
                }
                if ended {
                    let cost = std::mem::take(&mut sent.cost);
                    let share = std::mem::take(&mut sent.share);
                    sent.flushed = None;
                    self.charged -= cost;
                    self.shares.ended(share, cost);
                }
                match call {
                    Some(call) => {
                        let answer = Answer::of(reply, owner, self.session.dialect(), &*self.names);
                        self.answered(call, answer, made);
                    }
                    None => self.clunks.extend(made),
                }
            }
            Event::Flushed { tag, clunk, .. } => {
                let sent = std::mem::take(&mut self.sent[usize::from(tag.0)]);
                self.charged -= sent.cost;
                self.shares.ended(sent.share, sent.cost);
                if let Some(call) = sent.call {
                    self.complete(call, Err(interrupted()), None);
                }
                self.clunks.extend(clunk);
            }
            Event::Nothing => {}
        }
        if let Border::Near(waker) = &mut self.border
            && self.session.calls() == 0
        {
            self.wakes.extend(waker.take());
        }
        self.pump();
        Ok(())
    }

    fn answered(&mut self, call: usize, answer: Result<Answer>, made: Option<Fid>) {
        match &mut self.border {
            Border::Reached(last, words) if *last == call => {
                self.border = Border::Crossed(call, std::mem::take(words), answer);
            }
            _ => self.complete(call, answer, made),
        }
    }

    /// Has nothing more sent, and waits until everything has been answered.
    fn poll_near(&mut self, waker: &Waker, near: &mut bool) -> Poll<Result<()>> {
        if let Some(dead) = &self.dead {
            return Poll::Ready(Err(dead.unsent()));
        }
        if !*near && !matches!(self.border, Border::Far) {
            let text = "the conversation is being changed already";
            return Poll::Ready(Err(Error::refused(Errno::EBUSY, text)));
        }
        *near = true;
        self.border = Border::Near(Some(waker.clone()));
        if self.session.calls() > 0 { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    /// Has the transport told when everything has been answered.
    pub(crate) fn poll_here(&mut self, words: &str, waker: &Waker, near: &mut bool) -> Poll<Result<()>> {
        match std::mem::replace(&mut self.border, Border::Far) {
            Border::Told(told) if *near => {
                self.pump();
                return Poll::Ready(told);
            }
            Border::Here(words, _) if *near => {
                self.border = Border::Here(words, waker.clone());
                return Poll::Pending;
            }
            Border::Telling(_) if *near => {
                self.border = Border::Telling(waker.clone());
                return Poll::Pending;
            }
            other => self.border = other,
        }
        ready!(self.poll_near(waker, near))?;
        self.border = Border::Here(words.to_owned(), waker.clone());
        self.wakes.extend(self.driver.take());
        Poll::Pending
    }

    /// Sends the last message before the border when everything has been answered; nothing more is sent meanwhile.
    /// `near`: whether this caller has begun to wait for that.
    pub(crate) fn poll_border(
        &mut self,
        message: &Tmsg<'_>,
        words: &str,
        waker: &Waker,
        near: &mut bool,
    ) -> Poll<Result<usize>> {
        ready!(self.poll_near(waker, near))?;
        let begun = self.begin_now(message, None, Waiter::Waker(waker.clone()), true);
        self.border = match &begun {
            Ok(call) => Border::Reached(*call, words.to_owned()),
            Err(_) => {
                *near = false;
                Border::Far
            }
        };
        Poll::Ready(begun)
    }

    /// Nobody wants to cross the border any more. An error: its last message is under way.
    pub(crate) fn leave_border(&mut self) -> bool {
        // What has been told may have come about.
        if matches!(
            self.border,
            Border::Reached(..) | Border::Crossed(..) | Border::Telling(_) | Border::Told(Ok(()))
        ) {
            return false;
        }
        self.border = Border::Far;
        self.pump();
        true
    }

    /// What the transport is to be told, when the last message has been answered. An answer that is an error changes
    /// nothing.
    pub(crate) fn crossing(&mut self) -> Option<String> {
        match &mut self.border {
            Border::Crossed(_, words, Ok(_)) => Some(std::mem::take(words)),
            Border::Crossed(_, _, Err(_)) => {
                self.crossed();
                None
            }
            _ => None,
        }
    }

    /// The transport has been told: everything goes on.
    pub(crate) fn crossed(&mut self) {
        if let Border::Crossed(call, _, answer) = std::mem::replace(&mut self.border, Border::Far) {
            self.complete(call, answer, None);
            self.pump();
        }
    }

    /// What the transport is to be told that the server knows nothing of.
    pub(crate) fn take_here(&mut self) -> Option<String> {
        let Border::Here(words, waker) = &mut self.border else { return None };
        let words = std::mem::take(words);
        self.border = Border::Telling(waker.clone());
        Some(words)
    }

    pub(crate) fn is_here(&self) -> bool {
        matches!(self.border, Border::Here(..))
    }

    /// It has been told.
    pub(crate) fn told_here(&mut self, told: Result<()>) {
        let Border::Telling(waker) = &self.border else { return };
        self.wakes.push(waker.clone());
        self.border = Border::Told(told);
    }

    /// The connection is gone: every waiter learns why, and so does every later call.
    pub(crate) fn die(&mut self, error: Error) {
        if self.dead.is_some() {
            return;
        }
        for call in 0..self.calls.len() {
            match &self.calls[call] {
                Slot::Waits { at: At::Queue(_), .. } => self.complete(call, Err(error.unsent()), None),
                // Who has flushed it does not wait for another connection.
                Slot::Waits { at: At::Tag(tag), .. } if self.sent[usize::from(tag.0)].flushed.is_some() => {
                    self.complete(call, Err(interrupted()), None);
                }
                Slot::Waits { .. } => self.complete(call, Err(error.clone()), None),
                _ => {}
            }
        }
        match std::mem::replace(&mut self.border, Border::Far) {
            Border::Near(Some(waker)) | Border::Here(_, waker) | Border::Telling(waker) => {
                self.wakes.push(waker)
            }
            _ => {}
        }
        self.queue.clear();
        self.clunks.clear();
        self.out = Out::default();
        self.dead = Some(error);
    }

    /// Gives the message at `start` of the output its tag. There is room.
    fn sends(&mut self, start: usize, payload: Option<Bytes>, intent: Intent, sent: Sent) -> Tag {
        let tag = self.session.call(intent).expect("there is room, or nobody would come here");
        self.out.heads[start + 5..start + 7].copy_from_slice(&tag.0.to_le_bytes());
        if let Some(payload) = payload {
            self.out.payload(payload);
        }
        self.charged += sent.cost;
        self.shares.begun(sent.share, sent.cost);
        self.note(tag, sent);
        tag
    }

    fn free_call(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.calls.push(Slot::Free);
            self.calls.len() - 1
        })
    }

    fn note(&mut self, tag: Tag, sent: Sent) {
        let index = usize::from(tag.0);
        if self.sent.len() <= index {
            self.sent.resize(index + 1, Sent::default());
        }
        self.sent[index] = sent;
    }

    fn complete(&mut self, call: usize, answer: Result<Answer>, made: Option<Fid>) {
        match std::mem::replace(&mut self.calls[call], Slot::Free) {
            Slot::Waits { waiter: Waiter::Waker(waker), .. } => {
                self.calls[call] = Slot::Done { answer, made };
                self.wakes.push(waker);
            }
            Slot::Waits { waiter: Waiter::Forward(forwarded), .. } => {
                self.free.push(call);
                self.told.push(Told { forwarded, answer, made });
            }
            _ => unreachable!("a call is completed once"),
        }
    }

    fn take(&mut self, call: usize) -> (Result<Answer>, Option<Fid>) {
        self.free.push(call);
        match std::mem::replace(&mut self.calls[call], Slot::Free) {
            Slot::Done { answer, made } => (answer, made),
            _ => unreachable!("only an answer is taken"),
        }
    }

    /// Uses the room there is: clunks first, for they make room elsewhere, then small and large calls in turn, each
    /// kind in the order of its clients' turns.
    fn pump(&mut self) {
        if self.dead.is_some() || !matches!(self.border, Border::Far) {
            return;
        }
        for _ in 0..self.clunks.len() {
            if self.session.calls() >= self.session.limit() {
                return;
            }
            let Some(fid) = self.clunks.pop_front() else { break };
            if self.session.is_haunted(fid) {
                self.clunks.push_back(fid);
                continue;
            }
            let clunk = Tmsg::Clunk { fid };
            let tag = self.session.call(&clunk).expect("the limit was looked at just now");
            clunk.encode(tag, self.session.dialect(), &mut self.out.heads);
            self.note(tag, Sent::default());
        }
        self.full = false;
        // Both in turn, so that neither holds the other up. What the first one waits for, those behind it wait for.
        let mut turns = [Size::Small, Size::Large].map(|size| self.shares.turns(size));
        while turns != [0, 0] {
            for size in [self.turn, self.turn.other()] {
                let left = &mut turns[size as usize];
                let Some((_, ticket)) = self.shares.next(size).filter(|_| *left > 0) else {
                    *left = 0;
                    continue;
                };
                let Some(sent) = self.queue.get(&ticket).map(|queued| queued.sent) else {
                    // Taken back meanwhile.
                    self.shares.served(size);
                    continue;
                };
                if !self.fits(sent.cost) || (self.full && size == Size::Large) {
                    self.full = true;
                    *left = 0;
                } else if !self.may(&sent) {
                    self.shares.pass(size);
                    *left -= 1;
                } else {
                    self.shares.served(size);
                    *left = self.shares.turns(size);
                    self.turn = size.other();
                    self.send_queued(ticket);
                }
            }
        }
    }

    /// There is room for a call that has waited.
    fn send_queued(&mut self, ticket: u64) {
        let Queued { call, message, payload, intent, sent } =
            self.queue.remove(&ticket).expect("looked at just now");
        let start = self.out.heads.len();
        self.out.heads.extend_from_slice(&message);
        let tag = self.sends(start, payload, intent, sent);
        if let Slot::Waits { at, .. } = &mut self.calls[call] {
            *at = At::Tag(tag);
        }
    }

    /// Whether a call stays within its client's share.
    fn may(&self, sent: &Sent) -> bool {
        let all = Ledger { calls: self.session.calls(), bytes: self.charged };
        let most = Ledger { calls: self.session.limit(), bytes: self.budget };
        self.shares.may(sent.share, sent.cost, all, most)
    }

    fn fits(&self, cost: usize) -> bool {
        self.session.calls() < self.session.limit()
            && (self.charged == 0 || self.charged + cost <= self.budget)
    }

    /// What a call may need: its message on the way out, and the largest answer to it.
    fn cost(&self, message: &Tmsg<'_>) -> usize {
        let msize = self.session.msize() as usize;
        match message {
            Tmsg::Read { count, .. } | Tmsg::Readdir { count, .. } => SMALL + *count as usize,
            Tmsg::Write { data, .. } => SMALL + data_len(data) as usize,
            Tmsg::Stat { .. } | Tmsg::Readlink { .. } | Tmsg::Getlock { .. } | Tmsg::Stream { .. } => {
                SMALL + TEXT.min(msize)
            }
            _ => SMALL,
        }
    }
}

/// Small calls do not wait behind large ones.
fn size_of(cost: usize) -> Size {
    if cost <= OVERTAKES { Size::Small } else { Size::Large }
}

/// Of a call that was flushed and has not happened, or that nobody could wait for any longer.
pub(crate) fn interrupted() -> Error {
    Error::refused(Errno::EINTR, "interrupted")
}

/// The most data that the answer may carry, or say that it took.
fn asked(message: &Tmsg<'_>) -> u32 {
    match message {
        Tmsg::Read { count, .. } | Tmsg::Readdir { count, .. } => *count,
        Tmsg::Write { data, .. } => data_len(data),
        _ => 0,
    }
}

/// Whether it may change something at the server.
fn changes(message: &Tmsg<'_>) -> bool {
    let once = |flags: OpenFlags| flags.has(OpenFlags::TRUNC) || flags.has(OpenFlags::RCLOSE);
    match message {
        Tmsg::Open { mode, .. } => once(OpenFlags::from_mode(*mode)),
        Tmsg::Lopen { flags, .. } => once(OpenFlags(*flags)),
        Tmsg::Version { .. }
        | Tmsg::Walk { .. }
        | Tmsg::Read { .. }
        | Tmsg::Readdir { .. }
        | Tmsg::Readlink { .. }
        | Tmsg::Stat { .. }
        | Tmsg::Getattr { .. }
        | Tmsg::Getlock { .. }
        | Tmsg::Statfs { .. }
        | Tmsg::Xattrwalk { .. }
        | Tmsg::Attach { .. } => false,
        _ => true,
    }
}

fn data_len(data: &Data<'_>) -> u32 {
    match data {
        Data::Bytes(bytes) => bytes.len() as u32,
        Data::Count(count) => *count,
    }
}
