//! One conversation: what has been asked of its files, and what carries it.
//!
//! Always holds: whoever takes a request out of a queue, under the conversation's lock, answers it, when nothing is
//! locked; so no byte goes to a request that nobody waits for. Calls are made and taken by the driver's task, bytes are
//! carried by whoever asks. The lock of a conversation is taken before that of a table, never two of them.

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

use super::carrier::{Carrier, poll_drain, poll_write_parts};
use super::datagrams::{self, Callers};
use super::driver::{Bell, Job};
use super::policy::Want;
use super::share::{Lack, Share, User};
use super::stack::{Announced, Call, End, Later, Place, Setting};
use super::{Protocol, Shared};
use orders::Order;

/// For what was written to leave through the modules when everybody has closed.
const LINGER: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Conv {
    pub(super) number: u64,
    owner: Arc<Visitor>,
    pub(super) user: User,
    protocol: Arc<Protocol>,
    bell: Arc<Bell>,
    state: Mutex<State>,
}

struct State {
    /// Open files of it but texts; `None`: the last one has been closed.
    opens: Option<usize>,
    phase: Phase,
    local: String,
    remote: String,
    /// What `err` shows.
    error: String,
    reads: VecDeque<Ask>,
    writes: VecDeque<Ask>,
    /// Bytes of the first write that have gone.
    sent: usize,
    /// What was written may still be held back below.
    held: bool,
    /// Opens of `listen` that wait.
    openings: VecDeque<Opening>,
    /// What the modules may hold.
    modules: Vec<Share>,
    /// What the first one has made of the connection, and stays when it has been popped.
    pipeline: Option<Share>,
    /// With headers: who has sent something.
    callers: Option<Box<Callers>>,
    /// What `bind` said.
    bound: Option<String>,
    /// Who has called from this process, and waits: to read, and to write.
    callers_here: [Option<Waker>; 2],
    /// Bytes read and written.
    moved: [u64; 2],
}

enum Phase {
    /// Nothing has been asked for.
    Idle,
    /// A connect or an announce is under way.
    Asking {
        ask: Ask,
        begun: Later<Result<Begun>>,
        says: &'static str,
    },
    Announced(Box<dyn Announced>),
    Connected {
        carrier: Carrier,
        ended: bool,
        /// The last read or write of it has failed.
        failed: bool,
    },
    /// Everybody has closed, and not everything has left.
    Closing {
        carrier: Carrier,
        /// Made by the first turn.
        late: Option<Timer>,
        closed: bool,
    },
    Over,
}

impl Phase {
    /// Why nothing can begin in any but the first one.
    fn in_use(&self) -> Error {
        match self {
            Self::Over | Self::Closing { .. } => {
                Error::new(Errno::EPIPE, "hung up: another conversation is opened by clone")
            }
            _ => Error::new(Errno::EBUSY, "connection in use"),
        }
    }
}

/// What a text brings.
enum Begun {
    Call(Call),
    Announced(Box<dyn Announced>),
}

/// Answers that are given when nothing is locked.
#[derive(Default)]
struct Done {
    asks: Vec<(Ask, Said)>,
    /// Calls, and who waits for one.
    calls: Vec<(Opening, Arc<Ctl>)>,
    refused: Vec<(Opening, Error)>,
    callers_here: [Option<Waker>; 2],
}

enum Said {
    Read(Bytes),
    /// So much of it.
    Wrote(usize),
    Done,
    No(Error),
}

impl Conv {
    /// One whose maker has its ctl open; of a call that has been taken.
    pub(super) fn new(
        protocol: &Arc<Protocol>,
        number: u64,
        owner: Arc<Visitor>,
        call: Option<Call>,
    ) -> Arc<Self> {
        let mut state = State::new();
        if let Some(call) = call {
            state.begin(Begun::Call(call), &protocol.shared);
        }
        Arc::new_cyclic(|me: &Weak<Self>| Self {
            number,
            user: User::of(&owner.who),
            owner,
            protocol: protocol.clone(),
            bell: Bell::new(me.clone(), &protocol.shared.queue),
            state: Mutex::new(state),
        })
    }

    /// Whether this visitor may open its files.
    pub(super) fn may(&self, visitor: &Visitor) -> Result<()> {
        // Who may change nothing takes nothing out of it either.
        let text = match visitor.owner || User::of(&visitor.who) == self.user {
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

    /// What `status` shows: how it is, what waits, what has gone, and a line for each module.
    pub(super) fn status(&self) -> String {
        let state = lock(&self.state);
        let State { reads, writes, openings, moved: [read, wrote], .. } = &*state;
        let (word, modules) = match &state.phase {
            Phase::Idle | Phase::Over => ("Closed", String::new()),
            Phase::Asking { says, .. } => (*says, String::new()),
            Phase::Announced(_) => ("Listen", String::new()),
            Phase::Connected { carrier, failed: true, .. } => ("Closed", carrier.status()),
            Phase::Connected { carrier, ended: true, .. } => ("Close_wait", carrier.status()),
            Phase::Connected { carrier, .. } => ("Established", carrier.status()),
            Phase::Closing { carrier, .. } => ("Finwait1", carrier.status()),
        };
        let (reads, writes, listens) = (reads.len(), writes.len(), openings.len());
        format!("{word} qin {reads} qout {writes} listen {listens} in {read} out {wrote}\n{modules}")
    }

    /// Something happens to it, and what can go on then does.
    fn with<T>(&self, act: impl FnOnce(&mut State, &mut Done) -> T) -> T {
        let mut done = Done::default();
        let mut state = lock(&self.state);
        let acted = act(&mut state, &mut done);
        let waker = Waker::from(self.bell.clone());
        state.carry(&mut Context::from_waker(&waker), &mut done);
        drop(state);
        self.answer(done);
        acted
    }

    fn answer(&self, done: Done) {
        for (ask, said) in done.asks {
            match said {
                Said::Read(bytes) => ask.give(bytes),
                Said::Wrote(n) => ask.took(n),
                Said::Done => ask.done(Ok(())),
                Said::No(error) => ask.fail(error),
            }
        }
        for (opening, error) in done.refused {
            opening.fail(error);
        }
        done.callers_here.into_iter().flatten().for_each(Waker::wake);
        for (opening, ctl) in done.calls {
            // Nobody else answers it: of what is not in the queue any more, who flushes it is told that it is answered.
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

    /// One of its files is closed; with the last one the conversation ends.
    fn closed(self: &Arc<Self>) {
        let mut done = Done::default();
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

    /// It is over for those who have it open. What was written leaves, as long as there is room for such; what carried
    /// it else is returned, to be dropped when nothing is locked.
    fn end(self: &Arc<Self>, state: &mut State, done: &mut Done) -> Phase {
        let mut gone = state.end(done);
        if let Phase::Connected { carrier: Carrier::Messages(messages), .. } = &mut gone
            && let Some(running) = messages.running.take()
        {
            running.leave(self.protocol.shared.lingers.take(&self.user, 1).ok());
        }
        let Phase::Connected { carrier: carrier @ Carrier::Bytes(_), .. } = gone else { return gone };
        let closing = Phase::Closing { carrier, late: None, closed: false };
        if !self.protocol.shared.keep(self) {
            return closing;
        }
        state.phase = closing;
        // Timers belong to the driver's core, as sockets do.
        Waker::from(self.bell.clone()).wake();
        Phase::Over
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
            Err(error) => done.asks.push((ask, Said::No(error))),
        });
    }

    /// A read by a client of this process: of bare bytes, if nobody has asked by message before.
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

    /// Likewise a write.
    fn write_directly(&self, cx: &mut Context<'_>, parts: &[Payload]) -> Called<usize> {
        let mut state = lock(&self.state);
        let State { phase: Phase::Connected { carrier: Carrier::Bytes(line), .. }, writes, .. } = &mut *state
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

    /// With headers a datagram may go to who has sent one, and where the policy allows to call.
    fn may_go(&self, state: &State, data: &[u8]) -> Result<()> {
        let Some(callers) = &state.callers else { return Ok(()) };
        let Some(to) = datagrams::end_of(data) else {
            let text = "after `headers` a datagram begins with the 52 bytes of its headers";
            return Err(Error::new(Errno::EINVAL, text));
        };
        // The kernel takes it for the loopback.
        if to.ip().is_unspecified() {
            return Err(Error::new(Errno::EINVAL, "the headers of a datagram name no address to send it to"));
        }
        if callers.has(to) {
            return Ok(());
        }
        let (network, place) = (self.protocol.network.name(), Place::Ip(to));
        self.protocol.shared.policy.known().check(Want::Dial, network, &place, &self.owner.who)
    }

    /// Nobody wants the answer to this request any more. What it has done is said; those behind it go on.
    fn cancel(&self, id: ReqId) -> bool {
        self.with(|state, done| {
            if let Some(at) = state.reads.iter().position(|ask| ask.id() == id) {
                done.asks.extend(state.reads.remove(at).map(|ask| (ask, Said::No(Errno::EINTR.into()))));
            }
            if let Some(at) = state.writes.iter().position(|ask| ask.id() == id) {
                let sent = if at == 0 { mem::take(&mut state.sent) } else { 0 };
                if let (0, Phase::Connected { carrier: Carrier::Messages(messages), .. }) =
                    (at, &mut state.phase)
                {
                    messages.give_up();
                }
                let said = if sent > 0 { Said::Wrote(sent) } else { Said::No(Errno::EINTR.into()) };
                done.asks.extend(state.writes.remove(at).map(|ask| (ask, said)));
            }
            if matches!(&state.phase, Phase::Asking { ask, .. } if ask.id() == id)
                && let Phase::Asking { ask, .. } = mem::replace(&mut state.phase, Phase::Idle)
            {
                done.asks.push((ask, Said::No(Errno::EINTR.into())));
            }
        });
        // If it is not here its answer is on its way.
        true
    }

    /// An open of `listen`.
    pub(super) fn listen(&self, opening: Opening) {
        let mut state = lock(&self.state);
        match &state.phase {
            Phase::Announced(_) => state.openings.push_back(opening),
            Phase::Over => {
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

    /// One of these is flushed. If it is not here any more, a call is on its way to it.
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

impl Job for Conv {
    fn turn(&self, cx: &mut Context<'_>) {
        let mut done = Done::default();
        let mut state = lock(&self.state);
        if let Phase::Asking { begun, .. } = &mut state.phase
            && let Poll::Ready(begun) = begun.as_mut().poll(cx)
            && let Phase::Asking { ask, .. } = mem::replace(&mut state.phase, Phase::Idle)
        {
            let said = match begun {
                Ok(begun) => {
                    state.error.clear();
                    state.begin(begun, &self.protocol.shared);
                    Said::Done
                }
                Err(error) => {
                    state.error = error.to_string();
                    Said::No(error)
                }
            };
            done.asks.push((ask, said));
        }
        state.accept(cx, &self.protocol, &mut done);
        state.carry(cx, &mut done);
        let is_left = matches!(state.phase, Phase::Closing { .. })
            && state.linger(cx, &*self.protocol.shared.clock).is_ready();
        drop(state);
        if is_left {
            self.protocol.shared.let_go(self);
        }
        self.answer(done);
    }
}

impl State {
    fn new() -> Self {
        Self {
            opens: Some(1),
            phase: Phase::Idle,
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

    /// What carries it has failed.
    fn breaks(&mut self, error: io::Error) -> Error {
        self.error = plain(&error);
        if let Phase::Connected { failed, .. } = &mut self.phase {
            *failed = true;
        }
        failed(error)
    }

    fn begin(&mut self, begun: Begun, shared: &Shared) {
        match begun {
            Begun::Announced(place) => {
                self.local = place.local();
                self.phase = Phase::Announced(place);
            }
            Begun::Call(Call { end, local, remote }) => {
                (self.local, self.remote) = (local, remote);
                let carrier = match end {
                    End::Messages(messages) => Carrier::Messages(messages),
                    End::Bytes(line) => {
                        let (modules, clock) = (shared.pushable.clone(), shared.clock.clone());
                        let line = Conversation::new(line, modules, clock);
                        Carrier::Bytes(line.with_queue(shared.limits.queue))
                    }
                };
                self.phase = Phase::Connected { carrier, ended: false, failed: false };
            }
        }
    }

    /// It is over: all that wait are told. What carried it is left to be let go.
    fn end(&mut self, done: &mut Done) -> Phase {
        let hungup = || Error::new(Errno::EPIPE, "i/o on hungup channel");
        done.asks.extend(self.reads.drain(..).map(|ask| (ask, Said::Read(Bytes::new()))));
        done.asks.extend(self.writes.drain(..).map(|ask| (ask, Said::No(hungup()))));
        let gone = || Error::new(Errno::ECONNABORTED, "listen hungup");
        done.refused.extend(self.openings.drain(..).map(|opening| (opening, gone())));
        done.callers_here = mem::take(&mut self.callers_here);
        self.sent = 0;
        if matches!(self.phase, Phase::Closing { .. }) {
            return Phase::Over;
        }
        match mem::replace(&mut self.phase, Phase::Over) {
            Phase::Asking { ask, .. } => {
                done.asks.push((ask, Said::No(hungup())));
                Phase::Over
            }
            phase => phase,
        }
    }

    /// Takes calls for those who wait for one, and none else: they are the kernel's till then.
    fn accept(&mut self, cx: &mut Context<'_>, protocol: &Arc<Protocol>, done: &mut Done) {
        let Phase::Announced(place) = &mut self.phase else { return };
        while let Some(opening) = self.openings.front() {
            // Before a call is taken for which there is no room.
            let room = match protocol.room(&User::of(&opening.visitor.who)) {
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
                    let ctl = Ctl::first(protocol.made(opening.visitor.clone(), room, Some(call)));
                    done.calls.extend(self.openings.pop_front().map(|opening| (opening, Arc::new(ctl))));
                }
            }
        }
    }

    /// Writes and reads what can be written and read now.
    fn carry(&mut self, cx: &mut Context<'_>, done: &mut Done) {
        let Phase::Connected { carrier, failed: broken, .. } = &mut self.phase else {
            let not = |error: &str| {
                let text = if error.is_empty() { "not connected" } else { error };
                Said::No(Error::new(Errno::ENOTCONN, text))
            };
            let over = matches!(self.phase, Phase::Over | Phase::Closing { .. });
            let read = || if over { Said::Read(Bytes::new()) } else { not(&self.error) };
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
                // This one cannot be; others can.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.sent = 0;
                    done.asks.extend(self.writes.pop_front().map(|ask| (ask, Said::No(failed(error)))));
                }
                Poll::Ready(Err(error)) => {
                    self.error = plain(&error);
                    (self.sent, *broken) = (0, true);
                    let error = failed(error);
                    done.asks.extend(self.writes.drain(..).map(|ask| (ask, Said::No(error.clone()))));
                }
                Poll::Ready(Ok(n)) => {
                    self.held = true;
                    self.moved[1] += n as u64;
                    self.sent += n;
                    // An empty message is one, too: it goes by itself.
                    let mut first = true;
                    while let Some(ask) = self.writes.front().filter(|ask| first || !ask.data.is_empty())
                        && let Some(rest) = self.sent.checked_sub(ask.data.len())
                    {
                        (self.sent, first) = (rest, false);
                        done.asks.extend(self.writes.pop_front().map(|ask| (ask, Said::Done)));
                    }
                }
            }
        }
        if self.held && self.writes.is_empty() {
            // An error is told to who writes or reads next.
            self.held = carrier.poll_flush(cx).is_pending();
        }
        if !self.reads.is_empty() {
            // Who has called waits for what a message has asked for first.
            done.callers_here[0] = self.callers_here[0].take();
        }
        while let Some(ask) = self.reads.front() {
            let count = ask.count as usize;
            let said = match self.poll_read(cx, count) {
                Poll::Pending => return,
                Poll::Ready(Ok(bytes)) => Said::Read(bytes),
                Poll::Ready(Err(error)) => Said::No(error),
            };
            done.asks.extend(self.reads.pop_front().map(|ask| (ask, said)));
        }
    }

    /// What has come, at most so much; nothing: the end. Of what is connected.
    fn poll_read(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<Result<Bytes>> {
        let Phase::Connected { carrier, ended, failed: broken } = &mut self.phase else {
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

    /// Whether it carries bytes, and nothing has been pushed.
    fn is_bare(&self) -> bool {
        matches!(&self.phase, Phase::Connected { carrier: Carrier::Bytes(line), .. } if line.is_bare())
    }

    /// Goes on with an end that everybody has closed: Ready when nothing is left of it.
    fn linger(&mut self, cx: &mut Context<'_>, clock: &dyn Clock) -> Poll<()> {
        let Phase::Closing { carrier, late, closed } = &mut self.phase else {
            return Poll::Ready(());
        };
        let late = late.get_or_insert_with(|| clock.sleep_until(clock.now() + LINGER));
        let left = match carrier {
            Carrier::Bytes(line) => {
                *closed = *closed || line.poll_close(cx).is_ready();
                *closed && poll_drain(line, cx).is_ready()
            }
            Carrier::Messages(_) => true,
        };
        if left || late.as_mut().poll(cx).is_ready() {
            self.phase = Phase::Over;
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn headers(&mut self, shared: &Shared, done: &mut Done) -> Result<()> {
        let not = || Error::new(Errno::EINVAL, "not announced");
        let Phase::Announced(place) = &mut self.phase else { return Err(not()) };
        let call = place.headers().map_err(failed)?;
        self.callers = Some(Box::default());
        // From now on nobody else takes what comes there, nor do those who wait for a call.
        done.refused.extend(self.openings.drain(..).map(|opening| (opening, not())));
        self.begin(Begun::Call(call), shared);
        Ok(())
    }

    fn set(&mut self, setting: Setting) -> Result<()> {
        match &mut self.phase {
            Phase::Connected { carrier: Carrier::Bytes(line), .. } => {
                line.device().set(setting).map_err(failed)
            }
            Phase::Connected { .. } => Err(Errno::EOPNOTSUPP.into()),
            _ => Err(Error::new(Errno::ENOTCONN, "not connected")),
        }
    }

    /// A text for the modules: push, pop, or what one of them knows.
    fn module(&mut self, text: &str, shared: &Arc<Shared>, user: &User) -> Result<Order> {
        let unknown = || Error::new(Errno::EINVAL, "unknown control request");
        let verb = text.split_whitespace().next();
        let changes = matches!(verb, Some("push" | "pop"));
        let Phase::Connected { carrier, .. } = &mut self.phase else {
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
            Carrier::Bytes(line) => {
                let cost = if changes { line.check(text).map_err(said)? } else { 0 };
                let of_module = match text.trim().split_once(' ') {
                    Some(("push", module)) => shared.pushable.cost(module).map_err(said)?.min(cost),
                    _ => 0,
                };
                let take = |bytes| {
                    shared.modules.take(user, bytes).map_err(|lack| {
                        let whose =
                            if lack == Lack::All { "all conversations" } else { "your conversations" };
                        let most = shared.limits.modules >> if lack == Lack::All { 20 } else { 21 };
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
            // What is there belongs to the network.
            Carrier::Messages(_) if changes => {
                let text = "modules are pushed on and popped off connections, not where messages are carried";
                return Err(Error::new(Errno::EOPNOTSUPP, text));
            }
            Carrier::Messages(messages) => messages.line.stream.control(text.as_bytes()).map_err(said)?,
        }
        // It may have something to say first.
        self.held = true;
        Ok(Order::Done)
    }
}

/// An open `ctl`, by whatever way.
pub(super) struct Ctl {
    conv: Arc<Conv>,
    number: Bytes,
}

impl Ctl {
    pub(super) fn open(conv: Arc<Conv>) -> Result<Self> {
        conv.opened()?;
        Ok(Self::first(conv))
    }

    /// Of the one that has made it, and is counted.
    pub(super) fn first(conv: Arc<Conv>) -> Self {
        let number = conv.number.to_string().into();
        Self { conv, number }
    }
}

impl Handle for Ctl {
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

impl Drop for Ctl {
    fn drop(&mut self) {
        self.conv.closed();
    }
}

/// An open `data` or `err`.
pub(super) struct Opened {
    conv: Arc<Conv>,
    is_data: bool,
}

impl Opened {
    pub(super) fn data(conv: Arc<Conv>) -> Result<Self> {
        conv.opened()?;
        Ok(Self { conv, is_data: true })
    }

    pub(super) fn error(conv: Arc<Conv>) -> Result<Self> {
        conv.opened()?;
        Ok(Self { conv, is_data: false })
    }
}

impl Handle for Opened {
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
        self.is_data.then(|| Arc::new(Here { opened: self, flags }) as Arc<dyn Direct>)
    }
}

/// The same for a client of this process.
struct Here {
    opened: Arc<Opened>,
    flags: OpenFlags,
}

impl Direct for Here {
    fn read(&self, cx: Option<&mut Context<'_>>, _: u64, count: u32) -> Called<Payload> {
        match cx {
            Some(cx) if self.flags.reads() => self.opened.conv.read_directly(cx, count),
            // It is refused there, or waits.
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

impl Drop for Opened {
    fn drop(&mut self) {
        self.conv.closed();
    }
}

/// An error of the world, as Plan 9 says it.
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

/// The number that the kernel gave, to who said what was tried, too.
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
