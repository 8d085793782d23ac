//! An initiator, the client of a target's disk, as a state machine (`docs/aoe.md`, The initiator).
//!
//! In: operations, frames with their interface and sender, the time. Out: frames, completed operations, a deadline,
//! events. No clock, no link, no thread.
//!
//! ```text
//! submit -> fresh -> pieces cut to a path -> tags under way -> answered, or lost: again
//!              ^ held: a write over one of which copies may still be on their way
//! ```
//! Always holds: an operation ends exactly once, and fails if no progress is made for `patience`; a sent frame has a
//! tag that no other in-flight frame has; nothing is written to or read from a disk before its identity is checked.

mod hear;
mod jobs;
mod send;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use nine_block::{Error, Io, Kind, Op, Result, Shape};
use nine_net::ether::Mac;

use crate::frame::{Address, Interface, Out, sectors_of};
use crate::identify::Identify;
use crate::path::Path;
use crate::rtt::Rtt;
use jobs::{Job, Piece, Work};

/// Maximum number of pending operations. Further ones fail with [`Kind::Busy`]. The limit is only reached if the target
/// does not answer.
const WAITING: usize = 1 << 16;
/// Maximum number of in-flight frames to one target, whatever queue length it announces.
const FRAMES: u16 = 256;
/// Maximum number of paths to a target. Further ones are not used.
const PATHS: usize = 64;
/// How long a copy of a frame may still arrive after the frame was considered lost: eight timeouts, within these
/// bounds. Switches and a target's queue may delay it so long.
const LINGER_LEAST: Duration = Duration::from_millis(200);
const LINGER_MOST: Duration = Duration::from_secs(2);
/// Maximum number of remembered copies. Beyond it the oldest is forgotten.
const COPIES: usize = 4096;
/// Maximum number of unread events. Beyond it the oldest is dropped.
const EVENTS: usize = 64;
/// Initial interval between broadcasts for a target that is not found. It doubles up to [`ASK_MOST`].
const ASK_FIRST: Duration = Duration::from_millis(50);
const ASK_MOST: Duration = Duration::from_secs(1);
/// Interval between broadcasts if some interface has no path to the target, and if each has one.
const ASK_SOME: Duration = Duration::from_secs(2);
const ASK_ALL: Duration = Duration::from_secs(30);
/// Timeout of a mask, reserve or config request.
const LIST_PATIENCE: Duration = Duration::from_secs(2);
/// Minimum timeout of a flush.
const FLUSH_LEAST: Duration = Duration::from_secs(1);
/// Minimum interval between probes of a path while a flush is in flight on it.
const FLUSH_LOOK: Duration = Duration::from_millis(10);
/// Maximum duration of a flush if the target is otherwise responsive.
const FLUSH_MOST: Duration = Duration::from_secs(600);
/// Maximum number of broadcasts whose answers are accepted.
const QUERIES: usize = 4;

/// Parameters of an initiator.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The target's address.
    pub target: Address,
    /// How long an operation may make no progress before it fails with [`Kind::Down`].
    pub patience: Duration,
    /// An unpredictable random number, from which tags are generated.
    pub seed: u64,
}

impl Setup {
    /// Creates parameters with a `patience` of 30 s.
    pub fn new(target: Address, seed: u64) -> Self {
        Self { target, patience: Duration::from_secs(30), seed }
    }
}

/// State of the connection to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The target has not answered yet.
    Opening,
    /// The target is connected.
    Up,
    /// The target has not answered for `patience`. Operations fail at once.
    Down,
    /// Another disk answers at this address; its serial number. Operations fail at once.
    Other(String),
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opening => write!(f, "opening"),
            Self::Up => write!(f, "up"),
            Self::Down => write!(f, "down"),
            Self::Other(serial) => write!(f, "taken by another disk, serial {serial:?}"),
        }
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Event {
    Up(Identify),
    Down,
    /// Another disk answers at this address; its serial number.
    Other(String),
    /// The size in sectors has changed: before, now.
    Resized(u64, u64),
    /// The target has announced that it has started.
    Started,
    PathUp(Mac, usize),
    PathDown(Mac, usize),
    /// Only frames of standard size pass on the path.
    PathSmall(Mac, usize),
}

/// Frame counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub sent: u64,
    pub resent: u64,
    /// Accepted answers.
    pub answered: u64,
    /// Answers to copies that were considered lost.
    pub late: u64,
    /// Answers to no request.
    pub unexpected: u64,
    /// Answers that do not fit their request, or come from an unknown address.
    pub foreign: u64,
    /// Reads answered with fewer bytes than requested.
    pub runts: u64,
    pub malformed: u64,
    /// Writes that waited for copies of other writes.
    pub held: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, resent, answered, late, unexpected, foreign, runts, malformed, held } = self;
        write!(f, "sent {sent} resent {resent} answered {answered} late {late} unexpected {unexpected} ")?;
        write!(f, "foreign {foreign} runts {runts} malformed {malformed} held {held}")
    }
}

/// The answer to a mask, reserve or config request: the error of its header, and its arguments.
pub type Answer = (Option<u8>, Vec<u8>);
/// The callback that receives it.
pub type Told = Box<dyn FnOnce(Result<Answer>) + Send>;

/// A completed operation. The caller must finish it without a lock; see [`Ended::tell`].
pub enum Ended {
    /// An operation.
    Io(Io, Result<Bytes>),
    /// A mask, reserve or config request.
    List(Told, Result<Answer>),
}

impl Ended {
    /// Calls the completion callback.
    pub fn tell(self) {
        match self {
            Self::Io(io, result) => io.end(result),
            Self::List(told, result) => told(result),
        }
    }
}

/// An in-flight frame, by its tag.
struct Sent {
    what: What,
    path: usize,
    at: Duration,
    order: u64,
    deadline: Duration,
    /// Number of later frames that are already answered.
    overtaken: u8,
}

enum What {
    Piece(Piece),
    /// An identify request on one path.
    Probe,
    /// A read of the first sectors, on a path that is reduced to small frames.
    LargeProbe,
    /// A frame that was sent again or given up: the sectors that it may still write (start, count), and the job of a
    /// flush.
    Copy(u64, u64, Option<u64>),
}

/// An initiator. Its owner passes frames in with `receive`, and sends the frames of `transmit`.
pub struct Initiator {
    setup: Setup,
    ports: Vec<Interface>,
    state: State,
    known: Option<Identify>,
    /// The target's queue length in frames, and the number of sectors that it takes in a frame.
    buffers: usize,
    takes: u8,
    paths: Vec<Path>,
    /// Indices of `paths` in round-robin order: the first address of each interface, then the second, and so on.
    turns: Vec<usize>,
    turn: usize,
    tags: HashMap<u32, Sent>,
    timers: BTreeSet<(Duration, u32)>,
    /// Number of pieces among `tags`.
    under_way: usize,
    copies: VecDeque<(Duration, u32)>,
    queries: VecDeque<u32>,
    query_at: Duration,
    query_pause: Duration,
    started_at: Option<Duration>,
    /// The error that the target answered to an identify request.
    refused: Option<Error>,
    jobs: HashMap<u64, Job>,
    next_job: u64,
    fresh: VecDeque<u64>,
    again: VecDeque<Piece>,
    held: Vec<u64>,
    flushes: Rtt,
    /// Number of completed writes, and the number of them that a flush covers.
    writes: u64,
    flushed: u64,
    /// Number of reboots that may have lost unflushed writes; the number that flushes have failed for; the number for
    /// which such a failure was delivered.
    losses: u64,
    says: u64,
    told: u64,
    /// Since when operations, or the first connection, wait; when the target was heard last.
    waits: Option<Duration>,
    heard: Duration,
    audit_at: Duration,
    out: VecDeque<Out>,
    ended: VecDeque<Ended>,
    events: VecDeque<Event>,
    chance: u64,
    counts: Counts,
}

impl Initiator {
    /// Creates an initiator, which looks for its target on these interfaces.
    pub fn new(now: Duration, setup: Setup, ports: Vec<Interface>) -> Self {
        Self {
            chance: setup.seed,
            setup,
            ports,
            state: State::Opening,
            known: None,
            buffers: 1,
            takes: 0,
            paths: Vec::new(),
            turns: Vec::new(),
            turn: 0,
            tags: HashMap::new(),
            timers: BTreeSet::new(),
            under_way: 0,
            copies: VecDeque::new(),
            queries: VecDeque::new(),
            query_at: now,
            query_pause: ASK_FIRST,
            started_at: None,
            refused: None,
            jobs: HashMap::new(),
            next_job: 0,
            fresh: VecDeque::new(),
            again: VecDeque::new(),
            held: Vec::new(),
            flushes: Rtt::default(),
            writes: 0,
            flushed: 0,
            losses: 0,
            says: 0,
            told: 0,
            waits: Some(now),
            heard: now,
            audit_at: now,
            out: VecDeque::new(),
            ended: VecDeque::new(),
            events: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// Returns the state of the target.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the target's identify data, or `None` before it has answered.
    pub fn identify(&self) -> Option<&Identify> {
        self.known.as_ref()
    }

    /// Returns the frame counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the oldest unread event. At most the latest 64 are stored.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether there are unread events.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the next completed operation.
    pub fn ended(&mut self) -> Option<Ended> {
        let over = self.ended.pop_front();
        // Flushes submitted before this point must fail, too: their caller does not know of the loss.
        if matches!(&over, Some(Ended::Io(_, Err(Error { kind: Kind::Poisoned, .. })))) {
            self.told = self.says;
        }
        over
    }

    /// Returns the disk's shape. It has no sectors before the target has answered.
    pub fn shape(&self) -> Shape {
        let largest = self.paths.iter().map(Path::most).max().unwrap_or(2);
        let known = self.known.as_ref();
        Shape {
            sectors: known.map_or(0, |disk| disk.sectors),
            atom: 1,
            most: u32::from(largest.max(1)) * self.buffers as u32,
            read_only: false,
            durable: known.is_some_and(|disk| disk.flush_ext),
        }
    }

    /// Returns text for people: lines for the target, and one for each path.
    pub fn status(&self) -> String {
        let Setup { target, .. } = self.setup;
        let mut text = format!("e{target} {} {} sectors", self.state, self.shape().sectors);
        if let Some(Identify { serial, model, .. }) = &self.known {
            let durable = if self.shape().durable { "durable" } else { "no durable flush" };
            text += &format!(" serial {serial:?} model {model:?} {durable}");
        }
        let (waiting, way) = (self.jobs.len(), self.under_way);
        text += &format!("\n  {waiting} operations, {way} of {} frames\n", self.buffers);
        text += &format!("  frames {}\n", self.counts);
        for path in &self.paths {
            let Interface { mac, mtu } = self.ports[path.port];
            text += &format!(
                "  {mac} (mtu {mtu}) {} {} sectors {} rtt {} us window {} of {}\n",
                path.mac,
                if path.live { "up" } else { "down" },
                path.sectors,
                path.rtt.mean().as_micros(),
                path.out.len(),
                path.window.may(),
            );
        }
        text
    }

    /// Returns the latest time at which [`Initiator::transmit`] must be called.
    pub fn deadline(&self) -> Duration {
        let timer = self.timers.first().map(|(at, _)| *at);
        let copy = self.copies.front().map(|(at, _)| *at);
        let probe = self.paths.iter().filter_map(|path| path.probe_at).min();
        let audit = (!self.jobs.is_empty()).then_some(self.audit_at);
        let all = [timer, copy, probe, audit, self.gives_up_at()];
        all.into_iter().flatten().fold(self.query_at, Duration::min)
    }

    fn gives_up_at(&self) -> Option<Duration> {
        let is_waiting = matches!(self.state, State::Opening | State::Up);
        let since = self.waits.filter(|_| is_waiting)?;
        Some(since.max(self.heard).saturating_add(self.setup.patience))
    }

    /// Starts an operation. If it cannot be accepted, it completes with an error.
    pub fn submit(&mut self, now: Duration, io: Io) {
        let down = "the target does not answer";
        let refused = match &self.state {
            _ if io.op == Op::Discard => {
                Some(Error::new(Kind::Unsupported, "a disk of AoE does not discard"))
            }
            State::Down => Some(self.refused.clone().unwrap_or_else(|| Error::new(Kind::Down, down))),
            State::Other(serial) => Some(other(serial)),
            State::Up => io.judge(&self.shape()).err(),
            State::Opening => None,
        };
        let refused = refused.or_else(|| {
            let text = format!("{WAITING} operations wait already");
            (self.jobs.len() >= WAITING).then(|| Error::new(Kind::Busy, text))
        });
        match refused {
            Some(error) => self.ended.push_back(Ended::Io(io, Err(error.of(self.name())))),
            None if io.count == 0 && matches!(io.op, Op::Read | Op::Write) => {
                self.ended.push_back(Ended::Io(io, Ok(Bytes::new())));
            }
            None => {
                if io.op == Op::Look {
                    self.query_at = now;
                }
                self.enter(now, Work::Io(io));
            }
        }
    }

    /// Sends a mask, reserve or config request (`command`, with the arguments `body`) and passes the answer to `told`.
    /// Fails with [`Kind::Down`] if there is no answer within 2 s. A failed config test has no answer.
    pub fn ask(&mut self, now: Duration, command: u8, body: Vec<u8>, told: Told) {
        let is_busy = self.jobs.len() >= WAITING;
        if is_busy || !matches!(self.state, State::Opening | State::Up) {
            let (kind, text) = match is_busy {
                true => (Kind::Busy, "too many operations wait already"),
                false => (Kind::Down, "the target does not answer"),
            };
            let error = Error::new(kind, text).of(self.name());
            return self.ended.push_back(Ended::List(told, Err(error)));
        }
        self.enter(now, Work::List { command, body, told });
    }

    /// Shuts down: all pending operations fail with [`Kind::Down`].
    pub fn close(&mut self, now: Duration, why: &str) {
        self.state = State::Down;
        self.fail_all(now, &Error::new(Kind::Down, why));
    }

    fn name(&self) -> String {
        format!("e{}", self.setup.target)
    }

    fn happens(&mut self, event: Event) {
        if self.events.len() >= EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn bits(&mut self) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.chance ^ (self.chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns an unused tag. Bit 31 is set.
    fn tag(&mut self) -> u32 {
        loop {
            let tag = self.bits() as u32 | 1 << 31;
            if !self.tags.contains_key(&tag) && !self.queries.contains(&tag) {
                return tag;
            }
        }
    }

    /// Updates the address and MTU of an interface.
    pub fn is_now(&mut self, port: usize, interface: Interface) {
        self.ports[port] = interface;
        for path in self.paths.iter_mut().filter(|path| path.port == port) {
            path.fits(sectors_of(interface.mtu).min(self.takes));
        }
    }
}

fn other(serial: &str) -> Error {
    Error::new(
        Kind::Failed,
        format!("another disk answers, of serial number {serial:?}: nothing is sent to it"),
    )
}

#[cfg(test)]
mod tests;
