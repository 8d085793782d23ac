//! An initiator: a target's disk, as a state machine (`docs/aoe.md`, The initiator).
//!
//! In: operations, frames with the interface that they came on and who has sent them, the time. Out: frames, operations
//! that have ended, a deadline, what has happened. No clock, no link, no thread.
//!
//! ```text
//! submit -> fresh -> pieces cut to a path -> tags under way -> answered, or lost: again
//!              ^ held: a write over one of which copies may still be on their way
//! ```
//! Always holds: an operation ends once, at the latest when it has got nowhere for as long as patience lasts; a frame
//! that leaves has a tag that no other has; nothing is sent to a disk that has not said that it is the same one.

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

/// Operations that wait. One more ends at once, with [`Kind::Busy`]: nobody has that many under way but where nothing
/// is answered.
const WAITING: usize = 1 << 16;
/// Frames under way to one target, whatever it says that it queues.
const FRAMES: u16 = 256;
/// Ways to a target. Others are not used.
const PATHS: usize = 64;
/// How long a copy of a frame may still arrive after it was taken for lost: eight timeouts, within these bounds. That
/// is what switches and a target's queue hold.
const LINGER_LEAST: Duration = Duration::from_millis(200);
const LINGER_MOST: Duration = Duration::from_secs(2);
/// Copies that are remembered so long; the oldest is forgotten beyond it.
const COPIES: usize = 4096;
/// Events that nobody has asked for; the oldest is forgotten beyond it.
const EVENTS: usize = 64;
/// Until the target is found it is asked for at first after this, then after twice that, up to [`ASK_MOST`].
const ASK_FIRST: Duration = Duration::from_millis(50);
const ASK_MOST: Duration = Duration::from_secs(1);
/// Between questions where some interface has no way to it, and where each has.
const ASK_SOME: Duration = Duration::from_secs(2);
const ASK_ALL: Duration = Duration::from_secs(30);
/// How long a question of lists waits for its answer.
const LIST_PATIENCE: Duration = Duration::from_secs(2);
/// The least that a flush waits for its answer.
const FLUSH_LEAST: Duration = Duration::from_secs(1);
/// The least between two looks whether the path of a flush is well.
const FLUSH_LOOK: Duration = Duration::from_millis(10);
/// How long a flush may last at a target that is well otherwise.
const FLUSH_MOST: Duration = Duration::from_secs(600);
/// Questions to everybody that may be answered.
const QUERIES: usize = 4;

/// What an initiator begins with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Of the target.
    pub target: Address,
    /// How long nothing may come of an operation before it ends with [`Kind::Down`].
    pub patience: Duration,
    /// Chance, not to be guessed: what tags are made of.
    pub seed: u64,
}

impl Setup {
    /// Of this target, with a patience of 30 s.
    pub fn new(target: Address, seed: u64) -> Self {
        Self { target, patience: Duration::from_secs(30), seed }
    }
}

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The target has not answered yet.
    Opening,
    /// It is there.
    Up,
    /// It has not answered for as long as patience lasts. Operations end at once.
    Down,
    /// Another disk answers where this one was; so it says. Operations end at once.
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

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Event {
    Up(Identify),
    Down,
    /// Another disk is where this one was: its serial number.
    Other(String),
    /// It has another size: before, now.
    Resized(u64, u64),
    /// The target has said that it has started.
    Started,
    PathUp(Mac, usize),
    PathDown(Mac, usize),
    /// Only standard frames come through.
    PathSmall(Mac, usize),
}

/// What has happened, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub sent: u64,
    pub resent: u64,
    /// Answers that were taken.
    pub answered: u64,
    /// Answers to copies that had been given up.
    pub late: u64,
    /// Answers to nothing.
    pub unexpected: u64,
    /// Answers that do not fit the question, or of strangers.
    pub foreign: u64,
    /// Reads with fewer bytes than asked for.
    pub runts: u64,
    pub malformed: u64,
    /// Writes that have waited for copies of others.
    pub held: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, resent, answered, late, unexpected, foreign, runts, malformed, held } = self;
        write!(f, "sent {sent} resent {resent} answered {answered} late {late} unexpected {unexpected} ")?;
        write!(f, "foreign {foreign} runts {runts} malformed {malformed} held {held}")
    }
}

/// How an answer to a question of lists looks: the error of its header, and its arguments.
pub type Answer = (Option<u8>, Vec<u8>);
/// Who is told of it.
pub type Told = Box<dyn FnOnce(Result<Answer>) + Send>;

/// What is over, for whoever ends it without a lock.
pub enum Ended {
    /// An operation.
    Io(Io, Result<Bytes>),
    /// A question of lists.
    List(Told, Result<Answer>),
}

impl Ended {
    /// Tells whoever waits.
    pub fn tell(self) {
        match self {
            Self::Io(io, result) => io.end(result),
            Self::List(told, result) => told(result),
        }
    }
}

/// A frame under way, by its tag.
struct Sent {
    what: What,
    path: usize,
    at: Duration,
    order: u64,
    deadline: Duration,
    /// So many that were sent later have come back.
    overtaken: u8,
}

enum What {
    Piece(Piece),
    /// Identify, on one path.
    Probe,
    /// A read of the first sectors, on a path of small frames.
    LargeProbe,
    /// Another copy was sent, or nobody waits any more: sectors that it may still write, the flush that it is of.
    Copy(u64, u64, Option<u64>),
}

/// See the module.
pub struct Initiator {
    setup: Setup,
    ports: Vec<Interface>,
    state: State,
    known: Option<Identify>,
    /// Frames that the target queues, sectors of a frame that it takes.
    buffers: usize,
    takes: u8,
    paths: Vec<Path>,
    /// Places in `paths`: interfaces by turns, then addresses.
    turns: Vec<usize>,
    turn: usize,
    tags: HashMap<u32, Sent>,
    timers: BTreeSet<(Duration, u32)>,
    /// Pieces among the tags.
    under_way: usize,
    copies: VecDeque<(Duration, u32)>,
    queries: VecDeque<u32>,
    query_at: Duration,
    query_pause: Duration,
    started_at: Option<Duration>,
    /// What it has said instead of who it is.
    refused: Option<Error>,
    jobs: HashMap<u64, Job>,
    next_job: u64,
    fresh: VecDeque<u64>,
    again: VecDeque<Piece>,
    held: Vec<u64>,
    flushes: Rtt,
    /// Writes that are done, and those of them that a flush has covered.
    writes: u64,
    flushed: u64,
    /// How often some that no flush had covered may have been lost; how often flushes say so, and have said so.
    losses: u64,
    says: u64,
    told: u64,
    /// Since when somebody waits; and when the target was heard last.
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
    /// Looks for a target on these interfaces.
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

    /// Where it is.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What the target says of itself, once it has.
    pub fn identify(&self) -> Option<&Identify> {
        self.known.as_ref()
    }

    /// What has happened, in frames.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What has happened since this was asked last; of many, the latest.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether something has happened.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// What is over.
    pub fn ended(&mut self) -> Option<Ended> {
        let over = self.ended.pop_front();
        // Flushes that were submitted before do not know of it.
        if matches!(&over, Some(Ended::Io(_, Err(Error { kind: Kind::Poisoned, .. })))) {
            self.told = self.says;
        }
        over
    }

    /// The disk, as far as is known: of no sectors before the target has answered.
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

    /// For people: a line for the target, and one for each path.
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

    /// When [`Initiator::transmit`] is to be called at the latest.
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

    /// Begins an operation.
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

    /// Asks about the lists of the target: `command` is mask, reserve or config, `body` its arguments. What is not
    /// answered within 2 s, as a config test that fails, ends with [`Kind::Down`].
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

    /// It is over: whatever waits ends with [`Kind::Down`].
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

    /// A tag that no frame has.
    fn tag(&mut self) -> u32 {
        loop {
            let tag = self.bits() as u32 | 1 << 31;
            if !self.tags.contains_key(&tag) && !self.queries.contains(&tag) {
                return tag;
            }
        }
    }

    /// An interface is another by now.
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
