//! One conversation: the requests on its files, and its transport.
//!
//! Always holds: the thread that removes a request from a queue, under the conversation's lock, answers it while
//! nothing is locked. So no data goes to a flushed request. The driver's task makes and accepts calls. Reads and
//! writes run on the thread of the request, and on the driver's task if they had to wait. The lock of a conversation
//! is taken before that of a table. Two conversations are never locked together.

mod orders;

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use nine_io::server::ReqId;
use nine_io::synth::{Ask, Handle, Opening, Visitor};
use nine_io::{Called, Direct, Payload};
use nine_net::lock::{Mutex, lock};
use nine_net::{Clock, Conversation, Timer, Transport};
use nine_proto::{Errno, Error, OpenFlags, Result};

use super::carrier::{CallCarrier, poll_drain, poll_write_parts};
use super::datagrams::{self, RecentSenders};
use super::driver::{DriverJob, DriverWaker};
use super::policy::Want;
use super::share::{ShareRefusal, ShareUser, UserShare};
use super::stack::{Announced, Call, End, Later, Place, Setting};
use super::{NetProtocol, NetShared};
use orders::CtlOutcome;

/// How long written data may take to leave through the modules after the last close.
const LINGER_TIMEOUT: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct NetConversation {
    pub(super) number: u64,
    owner: Arc<Visitor>,
    pub(super) user: ShareUser,
    protocol: Arc<NetProtocol>,
    bell: Arc<DriverWaker>,
    state: Mutex<NetCallState>,
}

struct NetCallState {
    /// The number of open files except texts; `None` after the last close.
    opens: Option<usize>,
    phase: CallPhase,
    local: String,
    remote: String,
    /// The contents of `err`.
    error: String,
    reads: VecDeque<Ask>,
    writes: VecDeque<Ask>,
    /// Bytes of the first write that were sent.
    sent: usize,
    /// Written data may still be buffered in the transport.
    held: bool,
    /// Waiting opens of `listen`.
    openings: VecDeque<Opening>,
    /// The bytes reserved for the modules.
    modules: Vec<UserShare>,
    /// The bytes reserved for the stream that the first module created. It remains after a pop.
    pipeline: Option<UserShare>,
    /// In `headers` mode: the senders of recent datagrams.
    callers: Option<Box<RecentSenders>>,
    /// The local address set by `bind`.
    bound: Option<String>,
    /// Wakers of clients in this process: of a read, and of a write.
    callers_here: [Option<Waker>; 2],
    /// Bytes read and written.
    moved: [u64; 2],
}

enum CallPhase {
    /// Neither connected nor announced yet.
    Idle,
    /// A connect or an announce is in progress.
    Asking {
        ask: Ask,
        begun: Later<Result<StartedCall>>,
        says: &'static str,
    },
    Announced(Box<dyn Announced>),
    Connected {
        carrier: CallCarrier,
        ended: bool,
        /// The last read or write has failed.
        failed: bool,
    },
    /// The last file is closed, and written data is still being sent.
    Closing {
        carrier: CallCarrier,
        /// Created on the driver's task.
        late: Option<Timer>,
        closed: bool,
    },
    Over,
}

impl CallPhase {
    /// Returns the error for a connect or an announce in any phase but `Idle`.
    fn in_use(&self) -> Error {
        match self {
            Self::Over | Self::Closing { .. } => {
                Error::new(Errno::EPIPE, "hung up: another conversation is opened by clone")
            }
            _ => Error::new(Errno::EBUSY, "connection in use"),
        }
    }
}

/// The result of a connect or an announce.
enum StartedCall {
    Call(Call),
    Announced(Box<dyn Announced>),
}

/// Answers to be given while nothing is locked.
#[derive(Default)]
struct CallAnswers {
    asks: Vec<(Ask, CallReply)>,
    /// Accepted calls, with the opens that waited for them.
    calls: Vec<(Opening, Arc<ConversationCtlFile>)>,
    refused: Vec<(Opening, Error)>,
    callers_here: [Option<Waker>; 2],
}

enum CallReply {
    Read(Bytes),
    /// The number of bytes written, of a cancelled write.
    Wrote(usize),
    Done,
    No(Error),
}

impl NetConversation {
    /// Creates a conversation with an open ctl; connected, if `call` is an accepted call.
    pub(super) fn new(
        protocol: &Arc<NetProtocol>,
        number: u64,
        owner: Arc<Visitor>,
        call: Option<Call>,
    ) -> Arc<Self> {
        let mut state = NetCallState::new();
        if let Some(call) = call {
            state.begin(StartedCall::Call(call), &protocol.shared);
        }
        Arc::new_cyclic(|me: &Weak<Self>| Self {
            number,
            user: ShareUser::of(&owner.who),
            owner,
            protocol: protocol.clone(),
            bell: DriverWaker::new(me.clone(), &protocol.shared.queue),
            state: Mutex::new(state),
        })
    }

    /// Checks that this visitor may open its files.
    pub(super) fn may(&self, visitor: &Visitor) -> Result<()> {
        // Reading takes data out, so a read-only client may not open them either.
        let text = match visitor.owner || ShareUser::of(&visitor.who) == self.user {
            true if !visitor.who.read_only => return Ok(()),
            true => "permission denied: you may change nothing here",
            false => "permission denied: this conversation is another user's",
        };
        Err(Error::new(Errno::EACCES, text))
    }

    pub(super) fn local(&self) -> String {
        lock(&self.state).local.clone() + "\n"
    }

    pub(super) fn remote(&self) -> String {
        lock(&self.state).remote.clone() + "\n"
    }

    /// Returns the contents of `status`: state, waiting requests, bytes moved, and a line for each module.
    pub(super) fn status(&self) -> String {
        let state = lock(&self.state);
        let NetCallState { reads, writes, openings, moved: [read, wrote], .. } = &*state;
        let (word, modules) = match &state.phase {
            CallPhase::Idle | CallPhase::Over => ("Closed", String::new()),
            CallPhase::Asking { says, .. } => (*says, String::new()),
            CallPhase::Announced(_) => ("Listen", String::new()),
            CallPhase::Connected { carrier, failed: true, .. } => ("Closed", carrier.status()),
            CallPhase::Connected { carrier, ended: true, .. } => ("Close_wait", carrier.status()),
            CallPhase::Connected { carrier, .. } => ("Established", carrier.status()),
            CallPhase::Closing { carrier, .. } => ("Finwait1", carrier.status()),
        };
        let (reads, writes, listens) = (reads.len(), writes.len(), openings.len());
        format!("{word} qin {reads} qout {writes} listen {listens} in {read} out {wrote}\n{modules}")
    }

    /// Applies a change to the conversation, then performs reads and writes that can proceed.
    fn with<T>(&self, act: impl FnOnce(&mut NetCallState, &mut CallAnswers) -> T) -> T {
        let mut done = CallAnswers::default();
        let mut state = lock(&self.state);
        let acted = act(&mut state, &mut done);
        let waker = Waker::from(self.bell.clone());
        state.carry(&mut Context::from_waker(&waker), &mut done);
        drop(state);
        self.answer(done);
        acted
    }

    fn answer(&self, done: CallAnswers) {
        for (ask, said) in done.asks {
            match said {
                CallReply::Read(bytes) => ask.give(bytes),
                CallReply::Wrote(n) => ask.took(n),
                CallReply::Done => ask.done(Ok(())),
                CallReply::No(error) => ask.fail(error),
            }
        }
        for (opening, error) in done.refused {
            opening.fail(error);
        }
        done.callers_here.into_iter().flatten().for_each(Waker::wake);
        for (opening, ctl) in done.calls {
            // The opening was removed from the queue, so a flush of it waits for this answer.
            let _ = opening.becomes(&["..", &ctl.conv.number.to_string(), "ctl"], ctl);
        }
    }

    fn opened(&self) -> Result<()> {
        match &mut lock(&self.state).opens {
            Some(opens) => *opens += 1,
            None => return Err(Errno::ENOENT.into()),
        }
        Ok(())
    }

    /// Closes one of its files. The last close ends the conversation.
    fn closed(self: &Arc<Self>) {
        let mut done = CallAnswers::default();
        let mut state = lock(&self.state);
        state.opens = state.opens.map(|opens| opens - 1).filter(|&opens| opens > 0);
        if state.opens.is_some() {
            return;
        }
        self.protocol.forget(self.number);
        let gone = self.end(&mut state, &mut done);
        drop(state);
        drop(gone);
        self.answer(done);
    }

    /// Ends the conversation for its clients. Written data is still sent if there is room among the lingering
    /// conversations. Otherwise the transport is returned, for the caller to drop after unlocking.
    fn end(self: &Arc<Self>, state: &mut NetCallState, done: &mut CallAnswers) -> CallPhase {
        let mut gone = state.end(done);
        if let CallPhase::Connected { carrier: CallCarrier::Messages(messages), .. } = &mut gone
            && let Some(running) = messages.running.take()
        {
            running.leave(self.protocol.shared.lingers.take(&self.user, 1).ok());
        }
        let CallPhase::Connected { carrier: carrier @ CallCarrier::Bytes(_), .. } = gone else {
            return gone;
        };
        let closing = CallPhase::Closing { carrier, late: None, closed: false };
        if !self.protocol.shared.keep(self) {
            return closing;
        }
        state.phase = closing;
        // Timers belong to the driver's core, as sockets do.
        Waker::from(self.bell.clone()).wake();
        CallPhase::Over
    }

    fn read(&self, ask: Ask) {
        if ask.count == 0 {
            return ask.give(Bytes::new());
        }
        self.with(|state, _| state.reads.push_back(ask));
    }

    fn write(&self, ask: Ask) {
        self.with(|state, done| match self.may_go(state, &ask.data) {
            Ok(()) => state.writes.push_back(ask),
            Err(error) => done.asks.push((ask, CallReply::No(error))),
        });
    }

    /// A read by a client in this process. Possible on a connection without modules, if no request for a read is
    /// queued.
    fn read_directly(&self, cx: &mut Context<'_>, count: u32) -> Called<Payload> {
        let mut state = lock(&self.state);
        if !state.reads.is_empty() || count == 0 || !state.is_bare() {
            return Called::Message;
        }
        match state.poll_read(cx, count as usize) {
            Poll::Ready(read) => Called::Done(read.map(Payload::Bytes)),
            Poll::Pending => {
                state.callers_here[0] = Some(cx.waker().clone());
                Called::Waits
            }
        }
    }

    /// A write by a client in this process, under the same conditions.
    fn write_directly(&self, cx: &mut Context<'_>, parts: &[Payload]) -> Called<usize> {
        let mut state = lock(&self.state);
        let NetCallState {
            phase: CallPhase::Connected { carrier: CallCarrier::Bytes(line), .. },
            writes,
            ..
        } = &mut *state
        else {
            return Called::Message;
        };
        if !writes.is_empty() || !line.is_bare() {
            return Called::Message;
        }
        Called::Done(match poll_write_parts(line, cx, parts) {
            Poll::Pending => {
                state.callers_here[1] = Some(cx.waker().clone());
                return Called::Waits;
            }
            Poll::Ready(Ok(n)) => {
                state.moved[1] += n as u64;
                Ok(n)
            }
            Poll::Ready(Err(error)) => Err(state.breaks(error)),
        })
    }

    /// In `headers` mode, checks that a datagram goes to the sender of a recent one, or to an address the policy
    /// allows.
    fn may_go(&self, state: &NetCallState, data: &[u8]) -> Result<()> {
        let Some(callers) = &state.callers else { return Ok(()) };
        let Some(to) = datagrams::end_of(data) else {
            let text = "after `headers` a datagram begins with the 52 bytes of its headers";
            return Err(Error::new(Errno::EINVAL, text));
        };
        // The kernel takes an unspecified address for the loopback.
        if to.ip().is_unspecified() {
            return Err(Error::new(Errno::EINVAL, "the headers of a datagram name no address to send it to"));
        }
        if callers.has(to) {
            return Ok(());
        }
        let (network, place) = (self.protocol.network.name(), Place::Ip(to));
        self.protocol.shared.policy.known().check(Want::Dial, network, &place, &self.owner.who)
    }

    /// Cancels a request. Bytes it has written are reported; requests behind it proceed.
    fn cancel(&self, id: ReqId) -> bool {
        self.with(|state, done| {
            if let Some(at) = state.reads.iter().position(|ask| ask.id() == id) {
                done.asks.extend(state.reads.remove(at).map(|ask| (ask, CallReply::No(Errno::EINTR.into()))));
            }
            if let Some(at) = state.writes.iter().position(|ask| ask.id() == id) {
                let sent = if at == 0 { mem::take(&mut state.sent) } else { 0 };
                if let (0, CallPhase::Connected { carrier: CallCarrier::Messages(messages), .. }) =
                    (at, &mut state.phase)
                {
                    messages.give_up();
                }
                let said = if sent > 0 { CallReply::Wrote(sent) } else { CallReply::No(Errno::EINTR.into()) };
                done.asks.extend(state.writes.remove(at).map(|ask| (ask, said)));
            }
            if matches!(&state.phase, CallPhase::Asking { ask, .. } if ask.id() == id)
                && let CallPhase::Asking { ask, .. } = mem::replace(&mut state.phase, CallPhase::Idle)
            {
                done.asks.push((ask, CallReply::No(Errno::EINTR.into())));
            }
        });
        // A request in no queue is being answered.
        true
    }

    /// Handles an open of `listen`.
    pub(super) fn listen(&self, opening: Opening) {
        let mut state = lock(&self.state);
        match &state.phase {
            CallPhase::Announced(_) => state.openings.push_back(opening),
            CallPhase::Over => {
                drop(state);
                return opening.fail(Error::new(Errno::ECONNABORTED, "listen hungup"));
            }
            _ => {
                drop(state);
                return opening.fail(Error::new(Errno::EINVAL, "not announced"));
            }
        }
        drop(state);
        Waker::from(self.bell.clone()).wake();
    }

    /// Cancels an open of `listen`. If it is no longer queued, it is being answered with a call.
    pub(super) fn cancel_listen(&self, id: ReqId) -> bool {
        let mut state = lock(&self.state);
        let at = state.openings.iter().position(|opening| opening.id() == id);
        let opening = at.and_then(|at| state.openings.remove(at));
        drop(state);
        if let Some(opening) = opening {
            opening.fail(Errno::EINTR.into());
        }
        true
    }
}

impl DriverJob for NetConversation {
    fn turn(&self, cx: &mut Context<'_>) {
        let mut done = CallAnswers::default();
        let mut state = lock(&self.state);
        if let CallPhase::Asking { begun, .. } = &mut state.phase
            && let Poll::Ready(begun) = begun.as_mut().poll(cx)
            && let CallPhase::Asking { ask, .. } = mem::replace(&mut state.phase, CallPhase::Idle)
        {
            let said = match begun {
                Ok(begun) => {
                    state.error.clear();
                    state.begin(begun, &self.protocol.shared);
                    CallReply::Done
                }
                Err(error) => {
                    state.error = error.to_string();
                    CallReply::No(error)
                }
            };
            done.asks.push((ask, said));
        }
        state.accept(cx, &self.protocol, &mut done);
        state.carry(cx, &mut done);
        let is_left = matches!(state.phase, CallPhase::Closing { .. })
            && state.linger(cx, &*self.protocol.shared.clock).is_ready();
        drop(state);
        if is_left {
            self.protocol.shared.let_go(self);
        }
        self.answer(done);
    }
}

impl NetCallState {
    fn new() -> Self {
        Self {
            opens: Some(1),
            phase: CallPhase::Idle,
            local: "::!0".into(),
            remote: "::!0".into(),
            error: String::new(),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            sent: 0,
            held: false,
            openings: VecDeque::new(),
            modules: Vec::new(),
            pipeline: None,
            callers: None,
            bound: None,
            callers_here: [None, None],
            moved: [0; 2],
        }
    }

    /// Records an error of the transport.
    fn breaks(&mut self, error: io::Error) -> Error {
        self.error = plain(&error);
        if let CallPhase::Connected { failed, .. } = &mut self.phase {
            *failed = true;
        }
        failed(error)
    }

    fn begin(&mut self, begun: StartedCall, shared: &NetShared) {
        match begun {
            StartedCall::Announced(place) => {
                self.local = place.local();
                self.phase = CallPhase::Announced(place);
            }
            StartedCall::Call(Call { end, local, remote }) => {
                (self.local, self.remote) = (local, remote);
                let carrier = match end {
                    End::Messages(messages) => CallCarrier::Messages(messages),
                    End::Bytes(line) => {
                        let (modules, clock) = (shared.pushable.clone(), shared.clock.clone());
                        let line = Conversation::new(line, modules, clock);
                        CallCarrier::Bytes(line.with_queue(shared.limits.queue))
                    }
                };
                self.phase = CallPhase::Connected { carrier, ended: false, failed: false };
            }
        }
    }

    /// Ends the conversation: all waiting requests are answered. Returns the phase it was in, for the caller to drop.
    fn end(&mut self, done: &mut CallAnswers) -> CallPhase {
        let hungup = || Error::new(Errno::EPIPE, "i/o on hungup channel");
        done.asks.extend(self.reads.drain(..).map(|ask| (ask, CallReply::Read(Bytes::new()))));
        done.asks.extend(self.writes.drain(..).map(|ask| (ask, CallReply::No(hungup()))));
        let gone = || Error::new(Errno::ECONNABORTED, "listen hungup");
        done.refused.extend(self.openings.drain(..).map(|opening| (opening, gone())));
        done.callers_here = mem::take(&mut self.callers_here);
        self.sent = 0;
        if matches!(self.phase, CallPhase::Closing { .. }) {
            return CallPhase::Over;
        }
        match mem::replace(&mut self.phase, CallPhase::Over) {
            CallPhase::Asking { ask, .. } => {
                done.asks.push((ask, CallReply::No(hungup())));
                CallPhase::Over
            }
            phase => phase,
        }
    }

    /// Accepts calls for waiting opens of `listen` only. Other calls stay in the kernel's queue.
    fn accept(&mut self, cx: &mut Context<'_>, protocol: &Arc<NetProtocol>, done: &mut CallAnswers) {
        let CallPhase::Announced(place) = &mut self.phase else { return };
        while let Some(opening) = self.openings.front() {
            // Checked first, so that no call is accepted without room for it.
            let room = match protocol.room(&ShareUser::of(&opening.visitor.who)) {
                Ok(room) => room,
                Err(error) => {
                    done.refused.extend(self.openings.pop_front().map(|opening| (opening, error)));
                    continue;
                }
            };
            match place.poll_accept(cx) {
                Poll::Pending => return,
                Poll::Ready(Err(error)) => {
                    self.error = error.to_string();
                    drop(self.end(done));
                    return;
                }
                Poll::Ready(Ok(call)) => {
                    let ctl =
                        ConversationCtlFile::first(protocol.made(opening.visitor.clone(), room, Some(call)));
                    done.calls.extend(self.openings.pop_front().map(|opening| (opening, Arc::new(ctl))));
                }
            }
        }
    }

    /// Performs queued writes and reads as far as possible now.
    fn carry(&mut self, cx: &mut Context<'_>, done: &mut CallAnswers) {
        let CallPhase::Connected { carrier, failed: broken, .. } = &mut self.phase else {
            let not = |error: &str| {
                let text = if error.is_empty() { "not connected" } else { error };
                CallReply::No(Error::new(Errno::ENOTCONN, text))
            };
            let over = matches!(self.phase, CallPhase::Over | CallPhase::Closing { .. });
            let read = || if over { CallReply::Read(Bytes::new()) } else { not(&self.error) };
            done.asks.extend(self.reads.drain(..).map(|ask| (ask, read())));
            done.asks.extend(self.writes.drain(..).map(|ask| (ask, not(&self.error))));
            return;
        };
        if !self.writes.is_empty() {
            done.callers_here[1] = self.callers_here[1].take();
        }
        while !self.writes.is_empty() {
            match carrier.poll_write(cx, &self.writes, self.sent) {
                Poll::Pending => break,
                // Only this write is invalid; others may follow.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.sent = 0;
                    done.asks.extend(self.writes.pop_front().map(|ask| (ask, CallReply::No(failed(error)))));
                }
                Poll::Ready(Err(error)) => {
                    self.error = plain(&error);
                    (self.sent, *broken) = (0, true);
                    let error = failed(error);
                    done.asks.extend(self.writes.drain(..).map(|ask| (ask, CallReply::No(error.clone()))));
                }
                Poll::Ready(Ok(n)) => {
                    self.held = true;
                    self.moved[1] += n as u64;
                    self.sent += n;
                    // An empty message is a message too. It is sent by itself.
                    let mut first = true;
                    while let Some(ask) = self.writes.front().filter(|ask| first || !ask.data.is_empty())
                        && let Some(rest) = self.sent.checked_sub(ask.data.len())
                    {
                        (self.sent, first) = (rest, false);
                        done.asks.extend(self.writes.pop_front().map(|ask| (ask, CallReply::Done)));
                    }
                }
            }
        }
        if self.held && self.writes.is_empty() {
            // The next write or read gets an error of the flush.
            self.held = carrier.poll_flush(cx).is_pending();
        }
        if !self.reads.is_empty() {
            // A direct read waits until the queued requests for reads are answered.
            done.callers_here[0] = self.callers_here[0].take();
        }
        while let Some(ask) = self.reads.front() {
            let count = ask.count as usize;
            let said = match self.poll_read(cx, count) {
                Poll::Pending => return,
                Poll::Ready(Ok(bytes)) => CallReply::Read(bytes),
                Poll::Ready(Err(error)) => CallReply::No(error),
            };
            done.asks.extend(self.reads.pop_front().map(|ask| (ask, said)));
        }
    }

    /// Reads at most `most` bytes of received data; empty at the end. ENOTCONN if it is not connected.
    fn poll_read(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<Result<Bytes>> {
        let CallPhase::Connected { carrier, ended, failed: broken } = &mut self.phase else {
            return Poll::Ready(Err(Error::new(Errno::ENOTCONN, "not connected")));
        };
        match ready!(carrier.poll_read(cx, most)) {
            Ok(bytes) => {
                *ended |= bytes.is_none();
                *broken &= bytes.is_none();
                if let (Some(callers), Some(bytes)) = (&mut self.callers, &bytes) {
                    callers.note(bytes);
                }
                let bytes = bytes.unwrap_or_default();
                self.moved[0] += bytes.len() as u64;
                Poll::Ready(Ok(bytes))
            }
            Err(error) => Poll::Ready(Err(self.breaks(error))),
        }
    }

    /// Returns whether it is a connection without modules.
    fn is_bare(&self) -> bool {
        matches!(&self.phase, CallPhase::Connected { carrier: CallCarrier::Bytes(line), .. } if line.is_bare())
    }

    /// Continues to close a conversation after the last close. Ready when it is over.
    fn linger(&mut self, cx: &mut Context<'_>, clock: &dyn Clock) -> Poll<()> {
        let CallPhase::Closing { carrier, late, closed } = &mut self.phase else {
            return Poll::Ready(());
        };
        let late = late.get_or_insert_with(|| clock.sleep_until(clock.now() + LINGER_TIMEOUT));
        let left = match carrier {
            CallCarrier::Bytes(line) => {
                *closed = *closed || line.poll_close(cx).is_ready();
                *closed && poll_drain(line, cx).is_ready()
            }
            CallCarrier::Messages(_) => true,
        };
        if left || late.as_mut().poll(cx).is_ready() {
            self.phase = CallPhase::Over;
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn headers(&mut self, shared: &NetShared, done: &mut CallAnswers) -> Result<()> {
        let not = || Error::new(Errno::EINVAL, "not announced");
        let CallPhase::Announced(place) = &mut self.phase else { return Err(not()) };
        let call = place.headers().map_err(failed)?;
        self.callers = Some(Box::default());
        // From now on `data` alone gets the datagrams. Waiting opens of `listen` fail.
        done.refused.extend(self.openings.drain(..).map(|opening| (opening, not())));
        self.begin(StartedCall::Call(call), shared);
        Ok(())
    }

    fn set(&mut self, setting: Setting) -> Result<()> {
        match &mut self.phase {
            CallPhase::Connected { carrier: CallCarrier::Bytes(line), .. } => {
                line.device().set(setting).map_err(failed)
            }
            CallPhase::Connected { .. } => Err(Errno::EOPNOTSUPP.into()),
            _ => Err(Error::new(Errno::ENOTCONN, "not connected")),
        }
    }

    /// Executes a control message for the modules: push, pop, or a message of one module.
    fn module(&mut self, text: &str, shared: &Arc<NetShared>, user: &ShareUser) -> Result<CtlOutcome> {
        let unknown = || Error::new(Errno::EINVAL, "unknown control request");
        let verb = text.split_whitespace().next();
        let changes = matches!(verb, Some("push" | "pop"));
        let CallPhase::Connected { carrier, .. } = &mut self.phase else {
            return Err(if changes { Error::new(Errno::ENOTCONN, "not connected") } else { unknown() });
        };
        if !changes && carrier.status().is_empty() {
            return Err(unknown());
        }
        if changes && !self.writes.is_empty() {
            return Err(Error::new(Errno::EBUSY, "a message is under way"));
        }
        let said = |fault: nine_stream::Fault| Error::new(Errno::EINVAL, fault.to_string());
        match carrier {
            CallCarrier::Bytes(line) => {
                let cost = if changes { line.check(text).map_err(said)? } else { 0 };
                let of_module = match text.trim().split_once(' ') {
                    Some(("push", module)) => shared.pushable.cost(module).map_err(said)?.min(cost),
                    _ => 0,
                };
                let take = |bytes| {
                    shared.modules.take(user, bytes).map_err(|lack| {
                        let whose = if lack == ShareRefusal::All {
                            "all conversations"
                        } else {
                            "your conversations"
                        };
                        let most = shared.limits.modules >> if lack == ShareRefusal::All { 20 } else { 21 };
                        let text = format!(
                            "the modules of {whose} may hold {most} MiB, and have no room for this one"
                        );
                        Error::new(Errno::ENOMEM, text)
                    })
                };
                let pipeline = if cost > of_module { Some(take(cost - of_module)?) } else { None };
                let share = take(of_module)?;
                line.control(text).map_err(said)?;
                match verb {
                    Some("push") => {
                        self.modules.push(share);
                        self.pipeline = pipeline.or(self.pipeline.take());
                    }
                    Some("pop") => drop(self.modules.pop()),
                    _ => {}
                }
            }
            // The modules of a message line belong to the network.
            CallCarrier::Messages(_) if changes => {
                let text = "modules are pushed on and popped off connections, not where messages are carried";
                return Err(Error::new(Errno::EOPNOTSUPP, text));
            }
            CallCarrier::Messages(messages) => messages.line.stream.control(text.as_bytes()).map_err(said)?,
        }
        // The module may send something first.
        self.held = true;
        Ok(CtlOutcome::Done)
    }
}

/// An open `ctl`, also if opened through `clone` or `listen`.
pub(super) struct ConversationCtlFile {
    conv: Arc<NetConversation>,
    number: Bytes,
}

impl ConversationCtlFile {
    pub(super) fn open(conv: Arc<NetConversation>) -> Result<Self> {
        conv.opened()?;
        Ok(Self::first(conv))
    }

    /// For an open that is already counted in `opens`.
    pub(super) fn first(conv: Arc<NetConversation>) -> Self {
        let number = conv.number.to_string().into();
        Self { conv, number }
    }
}

impl Handle for ConversationCtlFile {
    fn read(&self, ask: Ask) {
        ask.give_from(&self.number);
    }

    fn write(&self, ask: Ask) {
        self.conv.control(ask);
    }

    fn cancel(&self, id: ReqId) -> bool {
        self.conv.cancel(id)
    }
}

impl Drop for ConversationCtlFile {
    fn drop(&mut self) {
        self.conv.closed();
    }
}

/// An open `data` or `err`.
pub(super) struct OpenDataFile {
    conv: Arc<NetConversation>,
    is_data: bool,
}

impl OpenDataFile {
    pub(super) fn data(conv: Arc<NetConversation>) -> Result<Self> {
        conv.opened()?;
        Ok(Self { conv, is_data: true })
    }

    pub(super) fn error(conv: Arc<NetConversation>) -> Result<Self> {
        conv.opened()?;
        Ok(Self { conv, is_data: false })
    }
}

impl Handle for OpenDataFile {
    fn read(&self, ask: Ask) {
        if self.is_data {
            return self.conv.read(ask);
        }
        let text = lock(&self.conv.state).error.clone();
        ask.give_from(&text.into());
    }

    fn write(&self, ask: Ask) {
        match self.is_data {
            true => self.conv.write(ask),
            false => ask.fail(Errno::EPERM.into()),
        }
    }

    fn cancel(&self, id: ReqId) -> bool {
        self.conv.cancel(id)
    }

    fn direct(self: Arc<Self>, flags: OpenFlags) -> Option<Arc<dyn Direct>> {
        self.is_data.then(|| Arc::new(LocalDataFile { opened: self, flags }) as Arc<dyn Direct>)
    }
}

/// An open `data` for a client in this process.
struct LocalDataFile {
    opened: Arc<OpenDataFile>,
    flags: OpenFlags,
}

impl Direct for LocalDataFile {
    fn read(&self, cx: Option<&mut Context<'_>>, _: u64, count: u32) -> Called<Payload> {
        match cx {
            Some(cx) if self.flags.reads() => self.opened.conv.read_directly(cx, count),
            // As a message, the read waits or is refused.
            _ => Called::Message,
        }
    }

    fn write(&self, cx: &mut Context<'_>, _: u64, data: &[Payload]) -> Called<usize> {
        match self.flags.writes() {
            true => self.opened.conv.write_directly(cx, data),
            false => Called::Message,
        }
    }
}

impl Drop for OpenDataFile {
    fn drop(&mut self) {
        self.conv.closed();
    }
}

/// Converts an I/O error to a 9P error with Plan 9's text.
pub(super) fn failed(error: io::Error) -> Error {
    use io::ErrorKind as Kind;
    if let Some(said) = error.get_ref().and_then(|said| said.downcast_ref::<Error>()) {
        return said.clone();
    }
    let errno = match (number(&error), error.kind()) {
        (Some(number), _) => Errno(number.unsigned_abs()),
        (_, Kind::ConnectionRefused) => Errno::ECONNREFUSED,
        (_, Kind::TimedOut) => Errno::ETIMEDOUT,
        (_, Kind::HostUnreachable) => Errno::EHOSTUNREACH,
        (_, Kind::NetworkUnreachable) => Errno::ENETUNREACH,
        (_, Kind::AddrInUse) => Errno::EADDRINUSE,
        (_, Kind::AddrNotAvailable) => Errno::EADDRNOTAVAIL,
        (_, Kind::PermissionDenied) => Errno::EACCES,
        (_, Kind::NotFound) => Errno::ENOENT,
        (_, Kind::InvalidInput) => Errno::EINVAL,
        (_, Kind::Unsupported) => Errno::EOPNOTSUPP,
        (_, Kind::ResourceBusy) => Errno::EAGAIN,
        (_, Kind::BrokenPipe) => Errno::EPIPE,
        (_, Kind::ConnectionReset) => Errno::ECONNRESET,
        _ => Errno::EIO,
    };
    Error::new(errno, plain(&error))
}

/// Returns the kernel's errno of an error, also if the error wraps it.
fn number(error: &io::Error) -> Option<i32> {
    let behind = error.get_ref().and_then(|said| said.source()?.downcast_ref::<io::Error>());
    error.raw_os_error().or_else(|| behind?.raw_os_error())
}

fn plain(error: &io::Error) -> String {
    use io::ErrorKind as Kind;
    match number(error) {
        Some(libc::EMFILE) => return "too many open files: this server has no descriptor left".into(),
        Some(libc::ENFILE) => return "too many open files: this machine has no descriptor left".into(),
        _ => {}
    }
    let text = match error.kind() {
        Kind::ConnectionRefused => "connection refused",
        Kind::TimedOut => "connection timed out",
        Kind::ConnectionReset => "connection reset",
        Kind::BrokenPipe => "i/o on hungup channel",
        Kind::HostUnreachable => "host unreachable",
        Kind::NetworkUnreachable => "network unreachable",
        Kind::AddrInUse => "address in use",
        Kind::AddrNotAvailable => "address not available",
        Kind::PermissionDenied => "permission denied",
        _ => return error.to_string(),
    };
    text.into()
}
