//! The console as files (cons(3)): a keyboard and a screen, time and names, and what the program has logged.
//!
//! In: requests; what is typed; what is logged; a [`Host`] and a clock. Out: answers, what is for the screen, and word
//! that one of these is due. Which terminal it is, and whether there is one, is for whoever makes the console to know.
//!
//! ```text
//! cons       read: one line at most, or, raw, what has come. Written: shown, in order, each write whole
//! consctl    written: rawon, rawoff
//! null zero random       as everywhere
//! time       seconds; nanoseconds, ticks, ticks in a second
//! bintime    the last three as 8 bytes each, the highest first
//! cputime    milliseconds: of the program as user, as system, in all; of its children
//! pid ppid user hostowner sysname osversion
//! kmesg      the last 16 KiB of what was logged
//! kprint     what is logged from the open on
//! ```
//! Numbers have 11 digits and a blank, or 21 and a blank, as in Plan 9. What is read is made by each read.
//!
//! Always holds: a request that waits is in one queue, and who takes it out, under the lock, answers it when nothing is
//! locked: no line goes to a request that nobody waits for. Only the owner types, shows and reads the log.

mod keys;
mod log;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::Context;

use bytes::{Bytes, BytesMut};
use nine_io::server::{Answer, FileServer, Node, Reply, Req, ReqId, Request, Who};
use nine_io::synth::{Ask, Dir, File, Handle, Tree, Visitor};
use nine_io::{Called, Direct, Payload};
use nine_net::lock::{Mutex, lock};
use nine_net::{Clock, Placed};
use nine_proto::{Errno, Error, Op, OpenFlags, Result};

use keys::Keys;
use log::Log;

/// Bytes for the screen that wait, or one write that is longer; who writes more waits. An echo is left out then.
const OUTPUT_MAX: usize = 64 << 10;
/// Bytes of one answer of `zero` and `random`.
const PIECE: usize = 64 << 10;

/// What the files say of the program and its machine.
pub struct Host {
    /// Of the process.
    pub pid: u32,
    /// Of its parent.
    pub ppid: u32,
    /// The name of the user that runs it.
    pub owner: String,
    /// The name and version of the program.
    pub version: String,
    /// The machine's name.
    pub sysname: Box<dyn Fn() -> String + Send + Sync>,
    /// Milliseconds: of the program as user, as system, in all; the same of its children.
    pub cputime: Box<dyn Fn() -> [u64; 6] + Send + Sync>,
}

/// The file server of a console.
///
/// How many requests wait is for the limits of the connections.
///
/// Concurrency: any number of requests at a time; what waits holds up nobody.
pub struct Cons {
    tree: Tree,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    log: Mutex<Log>,
    /// The terminal shows what is typed by itself.
    echoes: bool,
    changed: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    keys: Keys,
    /// Somebody has wanted what is typed.
    wanted: bool,
    output: BytesMut,
    /// There is no screen any more.
    gone: bool,
    reads: VecDeque<Ask>,
    writes: VecDeque<Ask>,
    /// Open consctl files that have asked for raw bytes.
    raw: BTreeSet<u64>,
    /// The number of the consctl that is opened next.
    next: u64,
}

/// Answers that are given when nothing is locked: of a read its bytes, of a write none.
type Answers = Vec<(Ask, Result<Option<Bytes>>)>;

impl Cons {
    /// `told` says who attaches by the aname that is asked for, as for [`Tree::set_told`]. `echoes`: the terminal shows
    /// what is typed by itself. `changed` is called when [`Cons::output`] may have something, or [`Cons::is_raw`] or
    /// [`Cons::is_wanted`] may be another; it must not wait.
    pub fn new(
        host: Host,
        clock: Arc<dyn Clock>,
        told: impl Fn(&mut Who, &[u8]) + Send + Sync + 'static,
        echoes: bool,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let wall = clock.wall();
        let (state, log, changed) = (Mutex::default(), Mutex::default(), Box::new(changed));
        let shared = Arc::new(Shared { state, log, echoes, changed });
        let mut tree = Tree::new(files(host, clock, &shared), wall).audited("cons");
        tree.set_told(told);
        Self { tree, shared }
    }

    /// This has been typed.
    pub fn input(&self, bytes: &[u8]) {
        let echoes = !self.shared.echoes;
        self.shared.with(|state, _| {
            let echo = state.keys.typed(bytes, echoes);
            if !state.gone && state.output.len() + echo.len() <= OUTPUT_MAX {
                state.output.extend_from_slice(&echo);
            }
        });
    }

    /// Nothing more will be typed: reads find the end.
    pub fn end(&self) {
        self.shared.with(|state, _| state.keys.end());
    }

    /// Whether anybody has ever wanted what is typed.
    pub fn is_wanted(&self) -> bool {
        lock(&self.shared.state).wanted
    }

    /// Whether what is typed is wanted byte by byte, and not shown.
    pub fn is_raw(&self) -> bool {
        !lock(&self.shared.state).raw.is_empty()
    }

    /// Takes the next bytes for the screen, at most so many; none: there are none now.
    pub fn output(&self, max: usize) -> Bytes {
        self.shared.with(|state, _| {
            let n = max.min(state.output.len());
            state.output.split_to(n).freeze()
        })
    }

    /// There is no screen any more: writes fail with EIO.
    pub fn no_output(&self) {
        self.shared.with(|state, _| {
            state.gone = true;
            state.output.clear();
        });
    }

    /// Something has been logged. Whoever logs may hold locks that answers need: not to be called from there.
    pub fn log(&self, text: &[u8]) {
        self.shared.logged(|log, answers| log.push(text, answers));
    }

    /// Reads and writes that wait.
    pub fn waiting(&self) -> usize {
        let state = lock(&self.shared.state);
        let waiting = state.reads.len() + state.writes.len();
        drop(state);
        waiting + lock(&self.shared.log).waiting()
    }
}

impl FileServer for Cons {
    fn serve(&self, req: Req) -> Answer {
        self.tree.serve(req)
    }

    fn direct(&self, node: &Node, flags: OpenFlags) -> Option<Arc<dyn Direct>> {
        self.tree.direct(node, flags)
    }

    fn takes_placed(&self, node: &Node) -> bool {
        self.tree.takes_placed(node)
    }

    fn cancel(&self, id: ReqId, node: Option<&Node>) {
        self.tree.cancel(id, node);
    }
}

impl Shared {
    /// Something happens to the console, and what can go on then does.
    fn with<T>(&self, act: impl FnOnce(&mut State, &mut Answers) -> T) -> T {
        let mut answers = Answers::new();
        let mut state = lock(&self.state);
        let before = state.seen();
        let done = act(&mut state, &mut answers);
        state.go_on(&mut answers);
        let is_same = state.seen() == before;
        drop(state);
        answer(answers);
        if !is_same {
            (self.changed)();
        }
        done
    }

    fn logged<T>(&self, act: impl FnOnce(&mut Log, &mut Answers) -> T) -> T {
        let mut answers = Answers::new();
        let done = act(&mut lock(&self.log), &mut answers);
        answer(answers);
        done
    }
}

fn answer(answers: Answers) {
    for (ask, answer) in answers {
        match answer {
            Ok(Some(bytes)) => ask.give(bytes),
            Ok(None) => ask.done(Ok(())),
            Err(error) => ask.fail(error),
        }
    }
}

impl State {
    /// What the owner of the terminal is told to look at again.
    fn seen(&self) -> (bool, bool, bool) {
        (self.wanted, !self.raw.is_empty(), self.output.is_empty())
    }

    fn go_on(&mut self, answers: &mut Answers) {
        while let Some(ask) = self.reads.front() {
            let Some(bytes) = self.keys.take(ask.count as usize) else { break };
            answers.extend(self.reads.pop_front().map(|ask| (ask, Ok(Some(bytes)))));
        }
        while let Some(ask) = self.writes.front() {
            let is_full = !self.output.is_empty() && self.output.len() + ask.data.len() > OUTPUT_MAX;
            let written = match self.gone {
                true => Err(Error::new(Errno::EIO, "the console has no screen")),
                false if is_full => break,
                false => {
                    self.output.extend_from_slice(&ask.data);
                    Ok(None)
                }
            };
            answers.extend(self.writes.pop_front().map(|ask| (ask, written)));
        }
    }

    fn set_raw(&mut self, number: u64, raw: bool) {
        let _ = if raw { self.raw.insert(number) } else { self.raw.remove(&number) };
        self.keys.set_raw(!self.raw.is_empty());
    }
}

/// The files. Those of others are for reading, and for nothing that anybody else has typed, shown or logged.
fn files(host: Host, clock: Arc<dyn Clock>, shared: &Arc<Shared>) -> Dir {
    let Host { pid, ppid, owner, version, sysname, cputime } = host;
    let (time, bintime, random) = (clock.clone(), clock.clone(), clock);
    let (cons, consctl, kmesg, kprint) = (shared.clone(), shared.clone(), shared.clone(), shared.clone());
    let opened = |open: fn(&Arc<Shared>) -> Result<Box<dyn Handle>>, shared: Arc<Shared>| {
        File::opened(move |_, _| open(&shared))
    };
    Dir::new()
        .file("bintime", made(move |_, _| ticks(&*bintime).map(u64::to_be_bytes).concat().into()).mode(0o644))
        .file("cons", opened(|shared| Ok(Box::new(Screen(shared.clone()))), cons).mode(0o600).consuming())
        .file("consctl", opened(Ctl::open, consctl).mode(0o200))
        .file("cputime", made(move |_, _| cputime().map(number).concat().into()))
        .file("hostowner", made(move |_, _| owner.clone().into()))
        .file("kmesg", made(move |_, _| lock(&kmesg.log).end()).mode(0o400))
        .file("kprint", opened(Kprint::open, kprint).mode(0o400).event())
        .file("null", File::opened(|_, _| Ok(Box::new(Null))))
        .file("osversion", made(move |_, _| version.clone().into()))
        .file("pid", made(move |_, _| number(pid.into()).into()))
        .file("ppid", made(move |_, _| number(ppid.into()).into()))
        .file("random", endless(move |bytes| random.entropy(bytes)))
        .file("sysname", made(move |_, _| sysname().into()))
        .file("time", made(move |_, _| seconds(&*time).into()).mode(0o644))
        .file("user", made(|visitor, _| visitor.who.name.to_string().into()))
        .file("zero", endless(|_| {}))
}

/// `time`.
fn seconds(clock: &dyn Clock) -> String {
    number(clock.wall().as_secs()) + &ticks(clock).map(|n| format!("{n:>21} ")).concat()
}

/// Nanoseconds since 1970, ticks since some time, ticks in a second.
fn ticks(clock: &dyn Clock) -> [u64; 3] {
    let nanoseconds = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    [nanoseconds(clock.wall()), nanoseconds(clock.now()), 1_000_000_000]
}

fn number(n: u64) -> String {
    format!("{n:>11} ")
}

/// A file whose content each read makes. Mode 0444.
fn made(make: impl Fn(&Visitor, u32) -> Bytes + Send + Sync + 'static) -> File {
    let make: Arc<Make> = Arc::new(make);
    File::opened(move |_, _| Ok(Box::new(Made { make: make.clone(), endless: false }))).mode(0o444)
}

/// One without an end; of no use to whoever copies a tree.
fn endless(fill: impl Fn(&mut [u8]) + Send + Sync + 'static) -> File {
    let make: Arc<Make> = Arc::new(move |_, count| {
        let mut bytes = vec![0; PIECE.min(count as usize)];
        fill(&mut bytes);
        bytes.into()
    });
    File::opened(move |_, _| Ok(Box::new(Made { make: make.clone(), endless: true }))).mode(0o444).event()
}

/// Of whom, and how many bytes are wanted.
type Make = dyn Fn(&Visitor, u32) -> Bytes + Send + Sync;

struct Made {
    make: Arc<Make>,
    /// Offsets say nothing.
    endless: bool,
}

impl Handle for Made {
    fn read(&self, ask: Ask) {
        let bytes = (self.make)(&ask.visitor, ask.count);
        if self.endless { ask.give(bytes) } else { ask.give_from(&bytes) }
    }

    fn write(&self, ask: Ask) {
        ask.fail(Error::new(Errno::EPERM, "the clock is the host's, which alone sets it"));
    }
}

struct Null;

impl Handle for Null {
    fn now(&self, request: &Request) -> Option<Result<Reply>> {
        match request.op() {
            Op::Read { .. } => Some(Ok(Reply::Read(Payload::EMPTY))),
            Op::Write { data, .. } => {
                let len = request.placed().map_or(data.len(), Placed::len);
                Some(Ok(Reply::Wrote(len as u32)))
            }
            _ => None,
        }
    }

    fn is_sink(&self) -> bool {
        true
    }

    fn direct(self: Arc<Self>, _: OpenFlags) -> Option<Arc<dyn Direct>> {
        Some(self)
    }
}

impl Direct for Null {
    fn read(&self, _: Option<&mut Context<'_>>, _: u64, _: u32) -> Called<Payload> {
        Called::Done(Ok(Payload::EMPTY))
    }

    fn write_now(&self, _: u64, data: &Payload) -> Called<usize> {
        Called::Done(Ok(data.len()))
    }
}

/// An open `cons`.
struct Screen(Arc<Shared>);

impl Handle for Screen {
    fn read(&self, ask: Ask) {
        if ask.count == 0 {
            return ask.give(Bytes::new());
        }
        self.0.with(|state, _| {
            state.wanted = true;
            state.reads.push_back(ask);
        });
    }

    fn write(&self, ask: Ask) {
        self.0.with(|state, _| state.writes.push_back(ask));
    }

    fn cancel(&self, id: ReqId) -> bool {
        self.0.with(|state, answers| {
            for queue in [&mut state.reads, &mut state.writes] {
                let at = queue.iter().position(|ask| ask.id() == id);
                let ask = at.and_then(|at| queue.remove(at));
                answers.extend(ask.map(|ask| (ask, Err(Errno::EINTR.into()))));
            }
        });
        // If it was in none, it is being answered.
        true
    }
}

/// An open `consctl`.
struct Ctl {
    shared: Arc<Shared>,
    number: u64,
}

impl Ctl {
    fn open(shared: &Arc<Shared>) -> Result<Box<dyn Handle>> {
        let number = {
            let mut state = lock(&shared.state);
            state.next += 1;
            state.next
        };
        Ok(Box::new(Self { shared: shared.clone(), number }))
    }
}

impl Handle for Ctl {
    fn write(&self, ask: Ask) {
        let done = ask.lines().and_then(|lines| {
            let words: Vec<&str> = lines.into_iter().map(str::trim).collect();
            if words.is_empty() || words.iter().any(|word| !matches!(*word, "rawon" | "rawoff")) {
                return Err(Error::new(Errno::EINVAL, "write rawon or rawoff"));
            }
            self.shared.with(|state, _| {
                for word in words {
                    if word == "rawoff" {
                        state.raw.clear();
                    }
                    state.set_raw(self.number, word == "rawon");
                }
            });
            Ok(())
        });
        ask.done(done);
    }
}

impl Drop for Ctl {
    fn drop(&mut self) {
        self.shared.with(|state, _| state.set_raw(self.number, false));
    }
}

/// An open `kprint`.
struct Kprint {
    shared: Arc<Shared>,
    number: u64,
}

impl Kprint {
    fn open(shared: &Arc<Shared>) -> Result<Box<dyn Handle>> {
        let number = lock(&shared.log).open()?;
        Ok(Box::new(Self { shared: shared.clone(), number }))
    }
}

impl Handle for Kprint {
    fn read(&self, ask: Ask) {
        if ask.count == 0 {
            return ask.give(Bytes::new());
        }
        self.shared.logged(|log, answers| log.read(self.number, ask, answers));
    }

    fn cancel(&self, id: ReqId) -> bool {
        self.shared.logged(|log, answers| {
            answers.extend(log.take(self.number, id).map(|ask| (ask, Err(Errno::EINTR.into()))));
        });
        true
    }
}

impl Drop for Kprint {
    fn drop(&mut self) {
        // Dropped when nothing is locked: what waits is answered then.
        let gone = lock(&self.shared.log).close(self.number);
        drop(gone);
    }
}
