//! One channel: its configuration, the requests on its files, and the connection to its guest while no other client
//! has it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::iter;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nine_io::quote;
use nine_io::server::{ReqId, Service};
use nine_io::synth::{Ask, Handle};
use nine_net::Transport;
use nine_net::lock::{Mutex, lock};
use nine_net::shm::{Gauge, Kind, LINES, Layout, PAGES, Waits, Watch};
use nine_proto::{Errno, Error, Result};

use super::end::{ChannelCounters, WakerSlot};
use super::{PendingAnnounce, ShmShared, TEXT_MAX};
use crate::srv::Posted;

/// The largest answer of `data`, in bytes.
pub(super) const DATA_READ_MAX: usize = 64 << 10;
/// A prefix for the name of a post, in place of a channel's name.
const POST: &str = "/srv/";
/// The maximum length of a name in bytes; it is stored in the channel's first page.
const NAME_MAX: usize = 32;
/// The maximum number of guests of one channel.
const GUESTS_MAX: usize = 64;
/// The maximum number of pages in an arena; addresses in it have 32 bits.
const PAGES_MAX: u32 = (1 << 20) - 1;

/// See the module.
pub(super) struct ShmChannel {
    number: u64,
    shared: Arc<ShmShared>,
    state: Mutex<ChannelState>,
    /// Bytes from the guest and to it.
    pub(super) moved: Arc<ChannelCounters>,
}

struct ChannelState {
    how: ChannelConfig,
    phase: ChannelPhase,
    /// The number of open `ctl` and `data`; `None` after the last close.
    opens: Option<usize>,
    /// Bytes of memory reserved for its guests.
    memory: usize,
    /// Its guests, by numbers that are not reused.
    guests: BTreeMap<u64, GuestEntry>,
    /// The number of the next guest.
    next: u64,
    /// Its post in `/srv`.
    posted: Option<Posted>,
    end: GuestConnection,
    reads: VecDeque<Ask>,
    writes: VecDeque<Ask>,
    /// Bytes of the first write that were sent.
    sent: usize,
    /// The tasks that serve it: one for the socket, and one for each guest.
    wakers: Vec<Waker>,
}

#[derive(Default)]
struct GuestEntry {
    /// `None`: it has not joined.
    watch: Option<Watch>,
    /// The use of its arena, if the host allocates in it (`kind server`).
    arena: Option<Gauge>,
    /// The waker of the task waiting on its connection.
    waker: WakerSlot,
}

/// A guest's slot in a channel, from before it connects until it has gone.
pub(super) struct GuestSlot {
    chan: Arc<ShmChannel>,
    number: u64,
    /// The waker of the task waiting on its connection.
    pub(super) waker: WakerSlot,
}

/// The configuration of a channel.
#[derive(Clone)]
pub(super) struct ChannelConfig {
    pub(super) kind: Kind,
    pub(super) waits: Waits,
    /// The channel or post to which its guest's bytes are relayed.
    pub(super) to: Option<Box<str>>,
    name: Box<str>,
    lines: u32,
    pages: u32,
    /// The maximum number of guests at a time.
    guests: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChannelPhase {
    /// Not announced.
    Idle,
    Announcing,
    /// No guest has joined.
    Listen,
    /// A guest has joined.
    Joined,
    /// It has ended.
    Over,
}

/// The connection to the guest, unless the guest is a client of this server.
enum GuestConnection {
    None,
    Here(Box<dyn Transport>),
    /// Another client or channel has the connection.
    Taken,
}

/// Answers to be given while nothing is locked: bytes for a read, a count for a write.
type ChannelAnswers = Vec<(Ask, Result<ChannelReply>)>;

enum ChannelReply {
    Read(Bytes),
    Wrote(usize),
}

impl ChannelConfig {
    pub(super) fn layout(&self) -> Layout {
        Layout::new(self.kind, self.lines, self.pages, &self.name)
    }
}

impl ShmChannel {
    /// Creates a channel with an open ctl.
    pub(super) fn new(shared: &Arc<ShmShared>, number: u64) -> Arc<Self> {
        let how = ChannelConfig {
            kind: Kind::GuestAsks,
            waits: Waits::default(),
            to: None,
            name: Box::default(),
            lines: LINES,
            pages: PAGES,
            guests: 1,
        };
        let state = ChannelState {
            how,
            phase: ChannelPhase::Idle,
            opens: Some(1),
            memory: 0,
            guests: BTreeMap::new(),
            next: 1,
            posted: None,
            end: GuestConnection::None,
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            sent: 0,
            wakers: Vec::new(),
        };
        Arc::new(Self { number, shared: shared.clone(), state: Mutex::new(state), moved: Arc::default() })
    }

    pub(super) fn status(&self) -> String {
        let state = lock(&self.state);
        let word = match state.phase {
            ChannelPhase::Idle | ChannelPhase::Over => "Closed",
            ChannelPhase::Announcing => "Announcing",
            ChannelPhase::Listen => "Listen",
            ChannelPhase::Joined => "Established",
        };
        let ChannelConfig { kind, waits, name, lines, pages, guests: most, .. } = &state.how;
        let kind = KINDS.iter().find(|(_, of)| of == kind).map_or("", |(word, _)| word);
        let waits = WAITS.iter().find(|(_, of)| of == waits).map_or("", |(word, _)| word);
        let [came, went] = self.moved.bytes();
        let (name, reads, writes) = (quote::quote(name), state.reads.len(), state.writes.len());
        let here = state.guests.iter().filter(|(_, guest)| guest.watch.is_some());
        let (n, is_one) = (here.clone().count(), *most == 1);
        let one = if is_one {
            format!(" {}", here.clone().next().map_or(&GuestEntry::default(), |(_, one)| one))
        } else {
            String::new()
        };
        let first = format!(
            "{word} kind {kind} name {name} wait {waits} lines {lines} pages {pages} guests {n} {most}{one} \
             in {came} out {went} qin {reads} qout {writes}\n"
        );
        let rest = here.filter(|_| !is_one).map(|(number, guest)| format!("guest {number} {guest}\n"));
        iter::once(first).chain(rest).collect()
    }

    pub(super) fn open(&self) -> Result<()> {
        match &mut lock(&self.state).opens {
            Some(opens) => *opens += 1,
            None => return Err(Errno::ENOENT.into()),
        }
        Ok(())
    }

    fn closed(&self) {
        let mut state = lock(&self.state);
        state.opens = state.opens.map(|opens| opens - 1).filter(|&opens| opens > 0);
        let tasks = std::mem::take(&mut state.wakers);
        drop(state);
        tasks.into_iter().for_each(Waker::wake);
    }

    /// Ends the channel for all clients. A connected guest gets a hangup.
    pub(super) fn hang_up(&self) {
        self.moved.end();
        let mut answers = ChannelAnswers::new();
        let mut state = lock(&self.state);
        state.phase = ChannelPhase::Over;
        let gone = (std::mem::replace(&mut state.end, GuestConnection::None), state.posted.take());
        let guests = std::mem::take(&mut state.guests);
        state.refuse(&mut answers);
        let tasks = std::mem::take(&mut state.wakers);
        drop(state);
        drop(gone);
        answer(answers);
        guests.into_values().for_each(|guest| guest.waker.wake());
        tasks.into_iter().for_each(Waker::wake);
    }

    /// Executes a control message.
    fn control(self: &Arc<Self>, ask: Ask) {
        match text(&ask).and_then(quote::words).and_then(|words| self.order(&words)) {
            Ok(None) => ask.done(Ok(())),
            Ok(Some(path)) => {
                self.shared.announce(PendingAnnounce {
                    chan: self.clone(),
                    at: Path::new(&path).into(),
                    ask,
                });
            }
            Err(error) => ask.fail(error),
        }
    }

    /// Parses and executes a control message. Returns the path of an announcement that must follow.
    fn order(self: &Arc<Self>, words: &[String]) -> Result<Option<String>> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            [] => return Err(wrong("short control request")),
            ["hangup"] => self.hang_up(),
            ["announce", path] if !path.starts_with('/') || path.contains(char::is_control) => {
                return Err(wrong("the path of a socket is due, which begins with `/`"));
            }
            ["announce", path] => {
                let mut state = lock(&self.state);
                state.may_set()?;
                let ChannelConfig { kind, to, guests, .. } = &state.how;
                if *guests > 1 && (*kind != Kind::GuestAsks || to.is_some()) {
                    return Err(wrong(
                        "several guests at once are those of `kind client`, without `connect`",
                    ));
                }
                let bytes = state.how.layout().size * guests;
                self.shared.reserve(bytes)?;
                (state.memory, state.phase) = (bytes, ChannelPhase::Announcing);
                return Ok(Some(path.into()));
            }
            ["name", name] => {
                let legal = !name.is_empty() && nine_proto::check_name(name.as_bytes()).is_ok();
                if !legal || name.len() > NAME_MAX || name.contains(char::is_control) {
                    return Err(wrong("a name is that of a file, of at most 32 bytes"));
                }
                let mut state = lock(&self.state);
                state.may_set()?;
                self.shared.name(self, &state.how.name, name)?;
                state.how.name = name.into();
            }
            ["kind", word] => {
                let kind = known(&KINDS, word, "kind client, kind server or kind bytes")?;
                self.set(|how| how.kind = kind)?;
            }
            ["wait", word] => {
                let waits = known(&WAITS, word, "wait poll, wait interrupt or wait adaptive")?;
                self.set(|how| how.waits = waits)?;
            }
            ["lines", n] => match n.parse::<u32>() {
                Ok(n) if n.is_power_of_two() && (64..=65_536).contains(&n) => {
                    self.set(|how| how.lines = n)?
                }
                _ => return Err(wrong("lines: a power of two from 64 to 65536 is due")),
            },
            ["size", n] => match n.parse::<u32>() {
                Ok(n) if n <= PAGES_MAX => self.set(|how| how.pages = n)?,
                _ => return Err(wrong("size: a number of pages up to 1048575 is due")),
            },
            ["guests", n] => match n.parse::<usize>() {
                Ok(n) if (1..=GUESTS_MAX).contains(&n) => self.set(|how| how.guests = n)?,
                _ => return Err(wrong("guests: a number from 1 to 64 is due")),
            },
            ["connect", name] => self.set(|how| how.to = Some(name.into()))?,
            ["post", name] => {
                let mut state = lock(&self.state);
                state.may_post()?;
                state.posted = Some(self.shared.post(name, &state.how.name)?);
            }
            [word, ..] => {
                let known = "kind, name, lines, size, wait, guests, connect, announce, post, each with one \
                             word, and hangup";
                return Err(wrong(&format!("`{word}`: what a channel knows is {known}")));
            }
        }
        Ok(None)
    }

    fn set(&self, set: impl FnOnce(&mut ChannelConfig)) -> Result<()> {
        let mut state = lock(&self.state);
        state.may_set()?;
        set(&mut state.how);
        Ok(())
    }

    /// Records the result of an announcement. Returns the configuration if the channel may be served.
    pub(super) fn announced(&self, done: bool) -> Option<ChannelConfig> {
        let mut state = lock(&self.state);
        if state.phase != ChannelPhase::Announcing {
            return None;
        }
        state.phase = if done { ChannelPhase::Listen } else { ChannelPhase::Idle };
        if !done {
            let bytes = std::mem::take(&mut state.memory);
            drop(state);
            self.shared.give_back(bytes);
            return None;
        }
        Some(state.how.clone())
    }

    /// Returns the result of a future. `None` if the channel ends first, or has no open files and no guest.
    pub(super) async fn until_over<T>(&self, of: impl Future<Output = T>) -> Option<T> {
        let mut of = pin!(of);
        poll_fn(|cx| {
            if self.is_over(cx) {
                return Poll::Ready(None);
            }
            of.as_mut().poll(cx).map(Some)
        })
        .await
    }

    fn is_over(&self, cx: &mut Context<'_>) -> bool {
        let mut state = lock(&self.state);
        state.wait(cx);
        state.phase == ChannelPhase::Over || state.opens.is_none() && state.phase != ChannelPhase::Joined
    }

    /// Waits for a free guest slot and takes it.
    pub(super) async fn turn(self: &Arc<Self>) -> GuestSlot {
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            if state.guests.len() >= state.how.guests {
                state.wait(cx);
                return Poll::Pending;
            }
            let (number, guest) = (state.next, GuestEntry::default());
            let waker = guest.waker.clone();
            state.next += 1;
            state.guests.insert(number, guest);
            Poll::Ready(GuestSlot { chan: self.clone(), number, waker })
        })
        .await
    }

    /// Offers the connection to a client that takes it. Returns when the connection is dropped or has ended.
    pub(super) async fn lend(&self, end: Box<dyn Transport>) {
        let late = self.put(end);
        drop(late);
        let mut gone = None;
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            state.wait(cx);
            let is_gone = match &mut state.end {
                GuestConnection::None => return Poll::Ready(()),
                GuestConnection::Taken => false,
                GuestConnection::Here(end) => end.poll_hangup(cx).is_ready(),
            };
            if !is_gone {
                return Poll::Pending;
            }
            gone = Some(std::mem::replace(&mut state.end, GuestConnection::None));
            Poll::Ready(())
        })
        .await;
    }

    /// Serves `data` with the connection of a channel of bytes, until `data` and `ctl` are closed. Or offers it to
    /// another channel that takes it.
    pub(super) async fn carry(&self, end: Box<dyn Transport>) {
        let late = self.put(end);
        drop(late);
        let mut piece = vec![0; DATA_READ_MAX];
        poll_fn(|cx| {
            let mut answers = ChannelAnswers::new();
            let mut state = lock(&self.state);
            state.wait(cx);
            let is_over = state.opens.is_none() && !matches!(state.end, GuestConnection::Taken);
            let done = is_over || matches!(state.end, GuestConnection::None);
            if !done {
                state.go_on(cx, &mut piece, &mut answers);
            }
            drop(state);
            answer(answers);
            if done { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Stores the connection. Returns it if the channel has ended.
    fn put(&self, end: Box<dyn Transport>) -> Option<Box<dyn Transport>> {
        let mut state = lock(&self.state);
        if state.phase == ChannelPhase::Over {
            return Some(end);
        }
        state.end = GuestConnection::Here(end);
        None
    }

    /// Returns the connection to the guest of the channel or post `to`. The error is the reason why there is none.
    pub(super) fn connected(&self, to: &str, kind: Kind) -> std::result::Result<Box<dyn Transport>, String> {
        match to.strip_prefix(POST) {
            None => self.shared.take(to, kind),
            Some(post) => self.shared.take(&self.shared.posted(post)?, kind),
        }
    }

    /// Returns the service for guests that are clients.
    pub(super) fn service(&self) -> Option<Service> {
        (self.shared.serves)()
    }

    /// Takes the connection to its guest, for a client that needs this kind. The error is the reason why there is
    /// none.
    pub(super) fn take(&self, kind: Kind) -> std::result::Result<Box<dyn Transport>, String> {
        let mut answers = ChannelAnswers::new();
        let mut state = lock(&self.state);
        let name = state.how.name.clone();
        if state.how.kind != kind {
            let word = KINDS.iter().find(|(_, of)| *of == kind).map_or("", |(word, _)| word);
            return Err(format!("the channel {name} is not of the kind {word}"));
        }
        let end = match std::mem::replace(&mut state.end, GuestConnection::None) {
            GuestConnection::Here(end) => end,
            GuestConnection::None => return Err(format!("no guest has joined the channel {name}")),
            GuestConnection::Taken => {
                state.end = GuestConnection::Taken;
                return Err(format!("another client has the channel {name}"));
            }
        };
        state.end = GuestConnection::Taken;
        state.refuse(&mut answers);
        drop(state);
        answer(answers);
        Ok(end)
    }

    /// Records that the client of the connection has dropped it.
    pub(super) fn came_back(&self) {
        let mut state = lock(&self.state);
        if matches!(state.end, GuestConnection::Taken) {
            state.end = GuestConnection::None;
        }
        let tasks = std::mem::take(&mut state.wakers);
        drop(state);
        tasks.into_iter().for_each(Waker::wake);
    }

    /// Queues a read or a write of `data`.
    fn transfer(&self, ask: Ask, queue: fn(&mut ChannelState) -> &mut VecDeque<Ask>) {
        let mut state = lock(&self.state);
        let refused = match (&state.phase, &state.end) {
            _ if state.how.kind != Kind::Bytes => {
                Some(Error::new(Errno::EIO, "9P goes through this channel: `kind bytes` is one with data"))
            }
            (ChannelPhase::Idle | ChannelPhase::Announcing, _) => {
                Some(Error::new(Errno::ENOTCONN, "the channel is not announced"))
            }
            (ChannelPhase::Over, _) => Some(over()),
            (_, GuestConnection::Taken) => {
                Some(Error::new(Errno::EBUSY, "another channel is connected to this one"))
            }
            _ => None,
        };
        match refused {
            None => queue(&mut state).push_back(ask),
            Some(error) => {
                drop(state);
                // A read gets the end of file.
                return match error.errno {
                    Errno::EPIPE if ask.data.is_empty() => ask.give(Bytes::new()),
                    _ => ask.fail(error),
                };
            }
        }
        let tasks = std::mem::take(&mut state.wakers);
        drop(state);
        tasks.into_iter().for_each(Waker::wake);
    }

    fn cancel(&self, id: ReqId) {
        let mut answers = ChannelAnswers::new();
        let mut state = lock(&self.state);
        let ChannelState { reads, writes, sent, .. } = &mut *state;
        if let Some(at) = reads.iter().position(|ask| ask.id() == id) {
            answers.extend(reads.remove(at).map(|ask| (ask, Err(Errno::EINTR.into()))));
        } else if let Some(at) = writes.iter().position(|ask| ask.id() == id) {
            let gone = if at == 0 { std::mem::take(sent) } else { 0 };
            let said = if gone > 0 { Ok(ChannelReply::Wrote(gone)) } else { Err(Errno::EINTR.into()) };
            answers.extend(writes.remove(at).map(|ask| (ask, said)));
        }
        drop(state);
        answer(answers);
    }
}

impl GuestSlot {
    /// Records that the guest has joined.
    pub(super) fn joined(&self, watch: Watch) {
        self.set(|guest| guest.watch = Some(watch));
    }

    /// Records that the host allocates in its arena.
    pub(super) fn has_arena(&self, gauge: Gauge) {
        self.set(|guest| guest.arena = Some(gauge));
    }

    fn set(&self, set: impl FnOnce(&mut GuestEntry)) {
        let mut state = lock(&self.chan.state);
        state.guests.get_mut(&self.number).map(set);
        state.count();
    }
}

impl Drop for GuestSlot {
    fn drop(&mut self) {
        let mut state = lock(&self.chan.state);
        state.guests.remove(&self.number);
        state.count();
        let tasks = std::mem::take(&mut state.wakers);
        drop(state);
        tasks.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Display for GuestEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |what: fn(&Watch) -> [u32; 2]| self.watch.as_ref().map_or([0; 2], what);
        let ([epoch, join], [up, down], [upward, downward]) =
            (of(Watch::lives), of(Watch::taken), of(Watch::used));
        write!(f, "epoch {epoch} join {join} taken {up} {down} used {upward} {downward}")?;
        self.arena.as_ref().map_or(Ok(()), |gauge| write!(f, " arena {}", gauge.pages()))
    }
}

impl Drop for ShmChannel {
    fn drop(&mut self) {
        let state = lock(&self.state);
        self.shared.forget(self.number, &state.how.name, state.memory);
    }
}

impl ChannelState {
    /// Registers this task to be woken at a change.
    fn wait(&mut self, cx: &Context<'_>) {
        if !self.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.wakers.push(cx.waker().clone());
        }
    }

    /// Updates the phase after guests have joined or gone.
    fn count(&mut self) {
        if self.phase != ChannelPhase::Over {
            let is_here = self.guests.values().any(|guest| guest.watch.is_some());
            self.phase = if is_here { ChannelPhase::Joined } else { ChannelPhase::Listen };
        }
    }

    fn may_set(&self) -> Result<()> {
        match self.phase {
            ChannelPhase::Idle => Ok(()),
            ChannelPhase::Over => Err(ended()),
            _ => Err(Error::new(Errno::EBUSY, "the channel is announced: that is said before")),
        }
    }

    fn may_post(&self) -> Result<()> {
        match self.phase {
            ChannelPhase::Over => Err(ended()),
            _ if self.how.kind != Kind::HostAsks => {
                Err(wrong("what is posted is a channel whose guest answers: `kind server`"))
            }
            _ if self.how.name.is_empty() => Err(wrong("a channel that is posted has a name: `name NAME`")),
            ChannelPhase::Idle | ChannelPhase::Announcing => {
                Err(Error::new(Errno::ENOTCONN, "the channel is not announced: it is posted then"))
            }
            _ if self.posted.as_ref().is_some_and(Posted::is_there) => {
                Err(Error::new(Errno::EBUSY, "the channel is posted already: remove that post first"))
            }
            _ => Ok(()),
        }
    }

    /// Answers all queued requests: reads with the end of file, writes with an error.
    fn refuse(&mut self, answers: &mut ChannelAnswers) {
        answers.extend(self.reads.drain(..).map(|ask| (ask, Ok(ChannelReply::Read(Bytes::new())))));
        answers.extend(self.writes.drain(..).map(|ask| (ask, Err(over()))));
        self.sent = 0;
    }

    /// Performs queued writes and reads as far as possible now.
    fn go_on(&mut self, cx: &mut Context<'_>, piece: &mut [u8], answers: &mut ChannelAnswers) {
        let ChannelState { end: GuestConnection::Here(end), reads, writes, sent, .. } = self else { return };
        let has_gone = !writes.is_empty() && end.poll_hangup(cx).is_ready();
        while let Some(ask) = writes.front() {
            let rest = &ask.data[*sent..];
            let said = match () {
                () if has_gone => Err(over()),
                () if rest.is_empty() => Ok(ChannelReply::Wrote(*sent)),
                () => match end.poll_write(cx, &[IoSlice::new(rest)]) {
                    Poll::Pending => break,
                    Poll::Ready(Ok(n)) => {
                        *sent += n;
                        continue;
                    }
                    Poll::Ready(Err(_)) => Err(over()),
                },
            };
            *sent = 0;
            answers.extend(writes.pop_front().map(|ask| (ask, said)));
        }
        // Rings pending doorbells. If the guest has gone, the next write fails.
        let _ = end.poll_flush(cx);
        while let Some(ask) = reads.front() {
            let room = piece.len().min(ask.count as usize);
            let said = match end.poll_read(cx, &mut piece[..room]) {
                Poll::Pending => break,
                Poll::Ready(Ok(n)) => Ok(ChannelReply::Read(Bytes::copy_from_slice(&piece[..n]))),
                Poll::Ready(Err(error)) => Err(Error::new(Errno::EIO, error.to_string())),
            };
            answers.extend(reads.pop_front().map(|ask| (ask, said)));
        }
    }
}

fn answer(answers: ChannelAnswers) {
    for (ask, said) in answers {
        match said {
            Ok(ChannelReply::Read(bytes)) => ask.give(bytes),
            Ok(ChannelReply::Wrote(n)) => ask.took(n),
            Err(error) => ask.fail(error),
        }
    }
}

/// An open `ctl` or `clone`.
pub(super) struct ChannelCtlFile {
    chan: Arc<ShmChannel>,
    number: Bytes,
}

impl ChannelCtlFile {
    /// Wraps a channel; this open is counted already.
    pub(super) fn new(chan: Arc<ShmChannel>) -> Self {
        let number = format!("{}\n", chan.number).into();
        Self { chan, number }
    }
}

impl Handle for ChannelCtlFile {
    fn read(&self, ask: Ask) {
        ask.give_from(&self.number);
    }

    fn write(&self, ask: Ask) {
        self.chan.control(ask);
    }
}

impl Drop for ChannelCtlFile {
    fn drop(&mut self) {
        self.chan.closed();
    }
}

/// An open `data`.
pub(super) struct ChannelDataFile(Arc<ShmChannel>);

impl ChannelDataFile {
    /// Wraps a channel; this open is counted already.
    pub(super) fn new(chan: Arc<ShmChannel>) -> Self {
        Self(chan)
    }
}

impl Handle for ChannelDataFile {
    fn read(&self, ask: Ask) {
        if ask.count == 0 {
            return ask.give(Bytes::new());
        }
        self.0.transfer(ask, |state| &mut state.reads);
    }

    fn write(&self, ask: Ask) {
        if ask.data.is_empty() {
            return ask.done(Ok(()));
        }
        self.0.transfer(ask, |state| &mut state.writes);
    }

    fn cancel(&self, id: ReqId) -> bool {
        self.0.cancel(id);
        true
    }
}

impl Drop for ChannelDataFile {
    fn drop(&mut self) {
        self.0.closed();
    }
}

/// Returns the one control message of a write.
fn text(ask: &Ask) -> Result<&str> {
    if ask.data.len() > TEXT_MAX {
        return Err(wrong(&format!("a control request has at most {TEXT_MAX} bytes")));
    }
    match *ask.lines()? {
        [] => Ok(""),
        [line] => Ok(line.trim_matches('\0')),
        _ => Err(wrong("one control request at a time")),
    }
}

fn known<T: Copy>(words: &[(&str, T)], word: &str, what: &str) -> Result<T> {
    let found = words.iter().find(|(of, _)| *of == word).map(|(_, value)| *value);
    found.ok_or_else(|| wrong(&format!("`{word}`: write {what}")))
}

fn wrong(text: &str) -> Error {
    Error::new(Errno::EINVAL, text)
}

/// The error for a change of an ended channel.
fn ended() -> Error {
    Error::new(Errno::EPIPE, "hung up: another channel is made by clone")
}

/// The error for a transfer on an ended channel.
fn over() -> Error {
    Error::new(Errno::EPIPE, "hung up")
}

const KINDS: [(&str, Kind); 3] =
    [("client", Kind::GuestAsks), ("server", Kind::HostAsks), ("bytes", Kind::Bytes)];
const WAITS: [(&str, Waits); 3] =
    [("poll", Waits::Poll), ("interrupt", Waits::Interrupt), ("adaptive", Waits::Adaptive)];
