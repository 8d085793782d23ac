//! The state that a client's handles share with its driver: the session, the output, and the waiting calls.
//!
//! In: messages of [`ClientCall`](super::call::ClientCall)s, and frames from the driver. Out: bytes in
//! [`ClientState::out`], and wakers, which [`ClientShared::with`] wakes after it has released the lock.
//!
//! Always holds: every queue here is bounded. At most `Options::calls` calls are in flight, orphans included. Their
//! messages and largest answers need at most `Options::budget` bytes together, unless one call alone needs more.
//! Further calls wait: each client's in order, the clients in turn (`share`). A dropped future removes its call.
//! Waiting clunks are bounded by the fids.

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
use super::forward::{FlushLimits, ForwardedRequest};
use super::meter::Meter;
use super::out::OutgoingMessages;
use super::share::{CallShares, CallSize, CallTotals};
use super::truncate::TruncationCheck;
use crate::direct::DirectFiles;
use crate::sync::{Mutex, lock};

/// Minimum charge for a message and its answer, in bytes.
const CALL_CHARGE_MIN: usize = 1024;
/// A call that costs at most this need not wait behind a larger one that does not fit, in bytes.
const OVERTAKES: usize = 8 * 1024;
/// Charge for an answer that is text of any length, in bytes.
const TEXT_CHARGE_LEN: usize = 68 * 1024;

pub(crate) struct ClientShared {
    pub(crate) peer: Arc<str>,
    pub(crate) meter: Option<Arc<Meter>>,
    state: Mutex<ClientState>,
    /// Bytes have moved since the last check.
    pub(crate) moved: AtomicBool,
    /// A change of modules was requested, so the driver checks whether it is due.
    pub(crate) border: AtomicBool,
    /// Time in ms before which no data connection is tried, because one has failed. 0: never failed; all ones: never
    /// again.
    pub(crate) no_streams: AtomicU64,
    /// Modules are pushed on the connection.
    pub(crate) piped: AtomicBool,
    pub(crate) truncation: TruncationCheck,
    /// Whether the server knows Trenameat2, once this was checked.
    pub(crate) has_renameat2: OnceLock<bool>,
    /// The opened files of a server in this process.
    pub(crate) directs: Option<Arc<DirectFiles>>,
}

pub(crate) struct ClientState {
    pub(crate) session: ClientSession,
    /// Messages that the driver has not taken yet; bounded by the budget and one small message per tag.
    pub(crate) out: OutgoingMessages,
    /// The sleeping driver: it has nothing to send, or the transport takes no more.
    pub(crate) driver: Option<Waker>,
    /// The transport takes no more. It will wake the driver, so new messages need not.
    pub(crate) blocked: bool,
    /// No handle is left: end when all requests are answered.
    pub(crate) closing: bool,
    /// End without waiting for the answers.
    pub(crate) hurry: bool,
    pub(crate) agreed: bool,
    dead: Option<Error>,
    peer: Arc<str>,
    meter: Option<Arc<Meter>>,
    names: Arc<dyn Names>,
    /// Messages sent, by tag.
    sent: Vec<SentMessage>,
    calls: Vec<CallSlot>,
    free: Vec<usize>,
    /// Calls that wait for room, by ticket; as many as there are waiting futures and forwarded requests. `shares` knows
    /// their order.
    queue: BTreeMap<u64, QueuedCall>,
    ticket: u64,
    shares: CallShares,
    /// The size of call that is served next if only one fits.
    turn: CallSize,
    /// A call waits for room in general, not for its client's share.
    full: bool,
    /// Bytes charged for calls in flight.
    charged: usize,
    budget: usize,
    /// Unneeded fids that wait for a tag or for the end of an orphan.
    clunks: VecDeque<Fid>,
    wakes: Vec<Waker>,
    /// Answers to forwarded requests, to be delivered without the lock.
    told: Vec<ForwardedAnswer>,
    /// The number of calls of [`ClientState::tick`].
    now: u32,
    /// Calls of [`ClientState::beat`] since bytes last moved.
    silent: u32,
    border: SwitchState,
}

/// The state of a change of modules. The border is the switch point between the old and the new form.
enum SwitchState {
    /// No change.
    Far,
    /// Nothing more is sent. The waker is that of the caller, which waits until all requests are answered.
    Near(Option<Waker>),
    /// The last message in the old form is in flight: its call, and the text to apply after its answer.
    Reached(usize, String),
    /// It has been answered: the driver must switch the transport, and then complete the call.
    Crossed(usize, String, Result<Answer>),
    /// A change at this end only. All requests are answered: the driver must switch the transport, then wake the
    /// caller.
    Here(String, Waker),
    /// The driver is switching the transport.
    Telling(Waker),
    /// The result of the switch.
    Told(Result<()>),
}

#[derive(Clone, Copy, Default)]
struct SentMessage {
    /// Index in `calls`; `None`: no call waits for the answer.
    call: Option<usize>,
    cost: usize,
    /// The maximum data that the answer may carry, or report as taken.
    count: u32,
    /// The tick at which it was flushed.
    flushed: Option<u32>,
    /// It may change something at the server.
    changes: bool,
    /// The client that it is charged to; 0: this client itself.
    share: u64,
    /// The time of the request, for the meter; 0: not measured.
    begun: u64,
}

enum CallSlot {
    Free,
    Waits { at: WaitStage, waiter: AnswerWaiter },
    Done { answer: Result<Answer>, made: Option<Fid> },
}

/// The receiver of an answer.
pub(crate) enum AnswerWaiter {
    /// A future.
    Waker(Waker),
    /// A forwarded request. Boxed, because most slots belong to futures.
    Forward(Box<ForwardedRequest>),
    /// To be set by [`ClientState::forward`], for a request of this client.
    Unknown(u64),
}

struct ForwardedAnswer {
    forwarded: Box<ForwardedRequest>,
    answer: Result<Answer>,
    made: Option<Fid>,
}

/// The stage of a waiting call.
#[derive(Clone, Copy)]
enum WaitStage {
    /// It waits for room, with this ticket.
    Queue(u64),
    /// It waits for its answer.
    Tag(Tag),
}

/// A call that waits for room: complete except for its tag.
struct QueuedCall {
    call: usize,
    message: Vec<u8>,
    payload: Option<Bytes>,
    intent: Intent,
    sent: SentMessage,
}

impl AnswerWaiter {
    /// The client that the call is charged to.
    fn share(&self) -> u64 {
        match self {
            Self::Forward(forwarded) => forwarded.client(),
            Self::Unknown(client) => *client,
            Self::Waker(_) => super::cancel::client(),
        }
    }
}

impl ClientShared {
    pub(crate) fn new(peer: &str, options: &Options, directs: Option<Arc<DirectFiles>>) -> Self {
        let peer: Arc<str> = peer.into();
        let mut session = ClientSession::new(options.calls);
        let mut out = OutgoingMessages::default();
        let before = options.spoken.as_ref().and_then(|spoken| spoken.get());
        let version = session.version_as_before(options.msize, &options.dialects, before);
        version.encode(NOTAG, Dialect::P2000, &mut out.heads);
        let state = Mutex::new(ClientState {
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
            shares: CallShares::default(),
            turn: CallSize::Small,
            full: false,
            charged: 0,
            budget: options.budget,
            clunks: VecDeque::new(),
            wakes: Vec::new(),
            told: Vec::new(),
            now: 0,
            silent: 0,
            border: SwitchState::Far,
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

    /// Runs `f` on the state, then wakes the waiting tasks and delivers answers. Wakes the driver if it sleeps and has
    /// new work, so at most once per batch.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut ClientState) -> R) -> R {
        let mut state = lock(&self.state);
        let result = f(&mut state);
        let driver = if state.has_work() { state.driver.take() } else { None };
        let wakes = std::mem::take(&mut state.wakes);
        let told = std::mem::take(&mut state.told);
        drop(state);
        driver.into_iter().chain(wakes).for_each(Waker::wake);
        for ForwardedAnswer { forwarded, answer, made } in told {
            forwarded.tell(answer, made);
        }
        result
    }
}

impl ClientState {
    fn has_work(&self) -> bool {
        (!self.out.is_empty() && !self.blocked) || self.dead.is_some() || self.is_finished()
    }

    /// Whether nothing more will be sent or received.
    pub(crate) fn is_finished(&self) -> bool {
        let answered = self.session.calls() == 0 && self.clunks.is_empty();
        self.closing && (answered || self.hurry) && self.out.is_empty()
    }

    pub(crate) fn dead(&self) -> Option<&Error> {
        self.dead.as_ref()
    }

    /// Returns a new fid number for a message.
    pub(crate) fn fid(&mut self) -> Result<Fid> {
        self.session
            .fid()
            .ok_or_else(|| Error::refused(Errno::EMFILE, "too many open files on this connection"))
    }

    /// Sends a call, or queues it if there is no room. Returns the number of the call.
    pub(crate) fn begin(
        &mut self,
        message: &Tmsg<'_>,
        payload: Option<Bytes>,
        waiter: AnswerWaiter,
    ) -> Result<usize> {
        self.begin_now(message, payload, waiter, false)
    }

    /// The same; with `alone`, nothing else is in flight, and the call does not wait behind queued ones.
    fn begin_now(
        &mut self,
        message: &Tmsg<'_>,
        payload: Option<Bytes>,
        waiter: AnswerWaiter,
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
        let sent = SentMessage { call: Some(call), cost, count, flushed: None, changes, share, begun };
        let passes = !self.full || sent.cost <= OVERTAKES;
        let room = match self.border {
            SwitchState::Far => {
                passes && !self.shares.waits(share) && self.fits(sent.cost) && self.may(&sent)
            }
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
            WaitStage::Tag(self.sends(start, payload, intent, sent))
        } else {
            self.ticket += 1;
            self.queue.insert(self.ticket, QueuedCall { call, message: queued, payload, intent, sent });
            self.shares.wait(share, self.ticket, size_of(sent.cost));
            self.full |= !self.fits(sent.cost);
            WaitStage::Queue(self.ticket)
        };
        self.calls[call] = CallSlot::Waits { at, waiter };
        Ok(call)
    }

    /// Sets the forwarded request for which the call was begun.
    pub(crate) fn forward(&mut self, call: usize, forwarded: Box<ForwardedRequest>) {
        if let CallSlot::Waits { waiter, .. } = &mut self.calls[call] {
            *waiter = AnswerWaiter::Forward(forwarded);
        }
    }

    /// Returns the answer of a call when it has arrived, which ends the call.
    pub(crate) fn poll(&mut self, call: usize, waker: &Waker) -> Poll<Result<Answer>> {
        match &mut self.calls[call] {
            CallSlot::Waits { waiter, .. } => {
                match waiter {
                    AnswerWaiter::Waker(old) => old.clone_from(waker),
                    _ => unreachable!("a future polls its own call only"),
                }
                Poll::Pending
            }
            _ => Poll::Ready(self.take(call).0),
        }
    }

    /// Flushes a call whose result is still awaited. The result is its answer if that comes before the Rflush, else
    /// EINTR, and then it has not happened (flush(5)).
    pub(crate) fn flush(&mut self, call: usize) {
        let CallSlot::Waits { at, .. } = self.calls[call] else { return };
        match at {
            WaitStage::Queue(ticket) => {
                let orphan = self.dequeue(ticket);
                self.complete(call, Err(interrupted()), None);
                self.clunk(orphan);
            }
            // A Tclunk is not flushed, but its caller need not wait forever either.
            WaitStage::Tag(tag) => self.send_flush(tag),
        }
    }

    /// As [`ClientState::flush`], for the forwarded requests that `is` selects. Returns whether there were any.
    pub(crate) fn flush_forwarded(&mut self, is: impl Fn(&ForwardedRequest) -> bool) -> bool {
        let named = |slot: &CallSlot| match slot {
            CallSlot::Waits { waiter: AnswerWaiter::Forward(forwarded), .. } => is(forwarded),
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
                || matches!(&self.calls[call], CallSlot::Waits { waiter: AnswerWaiter::Forward(by), .. } if by.takes());
            if waited >= (if changes { limits.changes } else { limits.reads }) {
                self.sent[index].call = None;
                self.complete(call, Err(interrupted()), None);
            }
        }
        (overdue, waiting)
    }

    /// Records whether bytes have `moved` since the last call, and requests a sign of life if not. Returns for how many
    /// calls in a row none have moved.
    pub(crate) fn beat(&mut self, moved: bool) -> u32 {
        self.silent = if moved { 0 } else { self.silent + 1 };
        if self.silent > 0
            && self.dead.is_none()
            && matches!(self.border, SwitchState::Far)
            && let Some(tag) = self.session.ping()
        {
            Tmsg::Flush { oldtag: NOTAG }.encode(tag, self.session.dialect(), &mut self.out.heads);
        }
        self.silent
    }

    /// Removes a call that has not been sent.
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

    /// Abandons a call whose future was dropped: takes it back, or clunks the fid that it has made.
    pub(crate) fn abandon(&mut self, call: usize) {
        let orphan = match self.calls[call] {
            CallSlot::Waits { at, .. } => {
                self.calls[call] = CallSlot::Free;
                self.free.push(call);
                match at {
                    WaitStage::Queue(ticket) => self.dequeue(ticket),
                    WaitStage::Tag(tag) => {
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

    /// Releases the fid of a message that was prepared and never begun.
    pub(crate) fn unsent(&mut self, message: &Tmsg<'_>) {
        let orphan = self.session.unsent(message);
        self.clunk(orphan);
    }

    /// Forgets a fid, and clunks it when there is a tag for that.
    pub(crate) fn clunk(&mut self, fid: impl IntoIterator<Item = Fid>) {
        if self.dead.is_none() {
            self.clunks.extend(fid);
            self.pump();
        }
    }

    /// Handles one frame of the server. `owner` owns its bytes, if they may be shared without a copy.
    pub(crate) fn receive(&mut self, frame: &[u8], owner: Option<&Bytes>) -> Result<(), WireError> {
        if self.dead.is_some() {
            // All calls have failed already.
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
        if let SwitchState::Near(waker) = &mut self.border
            && self.session.calls() == 0
        {
            self.wakes.extend(waker.take());
        }
        self.pump();
        Ok(())
    }

    fn answered(&mut self, call: usize, answer: Result<Answer>, made: Option<Fid>) {
        match &mut self.border {
            SwitchState::Reached(last, words) if *last == call => {
                self.border = SwitchState::Crossed(call, std::mem::take(words), answer);
            }
            _ => self.complete(call, answer, made),
        }
    }

    /// Stops sending, and waits until all requests are answered.
    fn poll_near(&mut self, waker: &Waker, near: &mut bool) -> Poll<Result<()>> {
        if let Some(dead) = &self.dead {
            return Poll::Ready(Err(dead.unsent()));
        }
        if !*near && !matches!(self.border, SwitchState::Far) {
            let text = "the conversation is being changed already";
            return Poll::Ready(Err(Error::refused(Errno::EBUSY, text)));
        }
        *near = true;
        self.border = SwitchState::Near(Some(waker.clone()));
        if self.session.calls() > 0 { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    /// Lets the driver switch the transport when all requests are answered, and waits for the result.
    pub(crate) fn poll_here(&mut self, words: &str, waker: &Waker, near: &mut bool) -> Poll<Result<()>> {
        match std::mem::replace(&mut self.border, SwitchState::Far) {
            SwitchState::Told(told) if *near => {
                self.pump();
                return Poll::Ready(told);
            }
            SwitchState::Here(words, _) if *near => {
                self.border = SwitchState::Here(words, waker.clone());
                return Poll::Pending;
            }
            SwitchState::Telling(_) if *near => {
                self.border = SwitchState::Telling(waker.clone());
                return Poll::Pending;
            }
            other => self.border = other,
        }
        ready!(self.poll_near(waker, near))?;
        self.border = SwitchState::Here(words.to_owned(), waker.clone());
        self.wakes.extend(self.driver.take());
        Poll::Pending
    }

    /// Sends the last message in the old form when all requests are answered; nothing else is sent meanwhile. `near`
    /// records that this caller has begun to wait.
    pub(crate) fn poll_border(
        &mut self,
        message: &Tmsg<'_>,
        words: &str,
        waker: &Waker,
        near: &mut bool,
    ) -> Poll<Result<usize>> {
        ready!(self.poll_near(waker, near))?;
        let begun = self.begin_now(message, None, AnswerWaiter::Waker(waker.clone()), true);
        self.border = match &begun {
            Ok(call) => SwitchState::Reached(*call, words.to_owned()),
            Err(_) => {
                *near = false;
                SwitchState::Far
            }
        };
        Poll::Ready(begun)
    }

    /// Abandons a change of modules. Returns false if it is too late: the last message was sent, or this end is
    /// switching.
    pub(crate) fn leave_border(&mut self) -> bool {
        // The switch may have happened already.
        if matches!(
            self.border,
            SwitchState::Reached(..)
                | SwitchState::Crossed(..)
                | SwitchState::Telling(_)
                | SwitchState::Told(Ok(()))
        ) {
            return false;
        }
        self.border = SwitchState::Far;
        self.pump();
        true
    }

    /// Returns the text to apply at the transport, once the last message has been answered. An error answer changes
    /// nothing.
    pub(crate) fn crossing(&mut self) -> Option<String> {
        match &mut self.border {
            SwitchState::Crossed(_, words, Ok(_)) => Some(std::mem::take(words)),
            SwitchState::Crossed(_, _, Err(_)) => {
                self.crossed();
                None
            }
            _ => None,
        }
    }

    /// The transport has switched: completes the call, and sends again.
    pub(crate) fn crossed(&mut self) {
        if let SwitchState::Crossed(call, _, answer) = std::mem::replace(&mut self.border, SwitchState::Far) {
            self.complete(call, answer, None);
            self.pump();
        }
    }

    /// Takes the text of a change at this end only.
    pub(crate) fn take_here(&mut self) -> Option<String> {
        let SwitchState::Here(words, waker) = &mut self.border else { return None };
        let words = std::mem::take(words);
        self.border = SwitchState::Telling(waker.clone());
        Some(words)
    }

    pub(crate) fn is_here(&self) -> bool {
        matches!(self.border, SwitchState::Here(..))
    }

    /// Records the result of that change.
    pub(crate) fn told_here(&mut self, told: Result<()>) {
        let SwitchState::Telling(waker) = &self.border else { return };
        self.wakes.push(waker.clone());
        self.border = SwitchState::Told(told);
    }

    /// The connection is gone: every waiting and every later call fails with `error`. Only waiting calls whose request
    /// was flushed fail as interrupted.
    pub(crate) fn die(&mut self, error: Error) {
        if self.dead.is_some() {
            return;
        }
        for call in 0..self.calls.len() {
            match &self.calls[call] {
                CallSlot::Waits { at: WaitStage::Queue(_), .. } => {
                    self.complete(call, Err(error.unsent()), None)
                }
                // A caller that has flushed the request does not wait for another connection.
                CallSlot::Waits { at: WaitStage::Tag(tag), .. }
                    if self.sent[usize::from(tag.0)].flushed.is_some() =>
                {
                    self.complete(call, Err(interrupted()), None);
                }
                CallSlot::Waits { .. } => self.complete(call, Err(error.clone()), None),
                _ => {}
            }
        }
        match std::mem::replace(&mut self.border, SwitchState::Far) {
            SwitchState::Near(Some(waker)) | SwitchState::Here(_, waker) | SwitchState::Telling(waker) => {
                self.wakes.push(waker)
            }
            _ => {}
        }
        self.queue.clear();
        self.clunks.clear();
        self.out = OutgoingMessages::default();
        self.dead = Some(error);
    }

    /// Tags and queues the message at `start` of the output. There must be room.
    fn sends(&mut self, start: usize, payload: Option<Bytes>, intent: Intent, sent: SentMessage) -> Tag {
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
            self.calls.push(CallSlot::Free);
            self.calls.len() - 1
        })
    }

    fn note(&mut self, tag: Tag, sent: SentMessage) {
        let index = usize::from(tag.0);
        if self.sent.len() <= index {
            self.sent.resize(index + 1, SentMessage::default());
        }
        self.sent[index] = sent;
    }

    fn complete(&mut self, call: usize, answer: Result<Answer>, made: Option<Fid>) {
        match std::mem::replace(&mut self.calls[call], CallSlot::Free) {
            CallSlot::Waits { waiter: AnswerWaiter::Waker(waker), .. } => {
                self.calls[call] = CallSlot::Done { answer, made };
                self.wakes.push(waker);
            }
            CallSlot::Waits { waiter: AnswerWaiter::Forward(forwarded), .. } => {
                self.free.push(call);
                self.told.push(ForwardedAnswer { forwarded, answer, made });
            }
            _ => unreachable!("a call is completed once"),
        }
    }

    fn take(&mut self, call: usize) -> (Result<Answer>, Option<Fid>) {
        self.free.push(call);
        match std::mem::replace(&mut self.calls[call], CallSlot::Free) {
            CallSlot::Done { answer, made } => (answer, made),
            _ => unreachable!("only an answer is taken"),
        }
    }

    /// Uses the available room: clunks first, for they free resources elsewhere, then small and large calls
    /// alternately, each kind in the order of the clients' turns.
    fn pump(&mut self) {
        if self.dead.is_some() || !matches!(self.border, SwitchState::Far) {
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
            self.note(tag, SentMessage::default());
        }
        self.full = false;
        // Alternate, so that neither size delays the other. If the first call of a size does not fit, the others wait
        // too.
        let mut turns = [CallSize::Small, CallSize::Large].map(|size| self.shares.turns(size));
        while turns != [0, 0] {
            for size in [self.turn, self.turn.other()] {
                let left = &mut turns[size as usize];
                let Some((_, ticket)) = self.shares.next(size).filter(|_| *left > 0) else {
                    *left = 0;
                    continue;
                };
                let Some(sent) = self.queue.get(&ticket).map(|queued| queued.sent) else {
                    // It was taken back meanwhile.
                    self.shares.served(size);
                    continue;
                };
                if !self.fits(sent.cost) || (self.full && size == CallSize::Large) {
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

    /// Sends a queued call, for which there is room.
    fn send_queued(&mut self, ticket: u64) {
        let QueuedCall { call, message, payload, intent, sent } =
            self.queue.remove(&ticket).expect("looked at just now");
        let start = self.out.heads.len();
        self.out.heads.extend_from_slice(&message);
        let tag = self.sends(start, payload, intent, sent);
        if let CallSlot::Waits { at, .. } = &mut self.calls[call] {
            *at = WaitStage::Tag(tag);
        }
    }

    /// Whether a call stays within its client's share.
    fn may(&self, sent: &SentMessage) -> bool {
        let all = CallTotals { calls: self.session.calls(), bytes: self.charged };
        let most = CallTotals { calls: self.session.limit(), bytes: self.budget };
        self.shares.may(sent.share, sent.cost, all, most)
    }

    fn fits(&self, cost: usize) -> bool {
        self.session.calls() < self.session.limit()
            && (self.charged == 0 || self.charged + cost <= self.budget)
    }

    /// The charge for a call: its message, and the largest answer.
    fn cost(&self, message: &Tmsg<'_>) -> usize {
        let msize = self.session.msize() as usize;
        match message {
            Tmsg::Read { count, .. } | Tmsg::Readdir { count, .. } => CALL_CHARGE_MIN + *count as usize,
            Tmsg::Write { data, .. } => CALL_CHARGE_MIN + data_len(data) as usize,
            Tmsg::Stat { .. } | Tmsg::Readlink { .. } | Tmsg::Getlock { .. } | Tmsg::Stream { .. } => {
                CALL_CHARGE_MIN + TEXT_CHARGE_LEN.min(msize)
            }
            _ => CALL_CHARGE_MIN,
        }
    }
}

/// Small calls do not wait behind large ones.
fn size_of(cost: usize) -> CallSize {
    if cost <= OVERTAKES { CallSize::Small } else { CallSize::Large }
}

/// The error of a call that was flushed before it happened, or that has waited too long for its Rflush.
pub(crate) fn interrupted() -> Error {
    Error::refused(Errno::EINTR, "interrupted")
}

/// The maximum data that the answer may carry, or report as taken.
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
