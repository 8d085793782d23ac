//! The console as files (cons(3)): keyboard and screen, time and names, and the program's log.
//!
//! In: requests, typed bytes, log texts, a [`Host`] and a clock. Out: answers, bytes for the screen, and a
//! notification when something changed. The creator of the console connects it to a terminal, if there is one.
//!
//! ```text
//! cons       read: at most one line, or raw bytes. Written: shown in order, each write whole
//! consctl    written: rawon, rawoff
//! null zero random       as on Plan 9
//! time       seconds; nanoseconds, ticks, ticks in a second
//! bintime    the last three as 8 bytes each, the highest first
//! cputime    milliseconds: of the program as user, as system, in all; of its children
//! pid ppid user hostowner sysname osversion
//! kmesg      the last 16 KiB of the log
//! kprint     log texts from the open on
//! ```
//! Numbers take 11 or 21 digits and a blank, as in Plan 9. Each read generates the contents.
//!
//! Always holds: a waiting request is in one queue. The thread that removes it, under the lock, answers it after
//! unlocking. So no line goes to a flushed request. Only the owner can type, show text and read the log.

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

use keys::KeyboardInput;
use log::ConsLog;

/// Bytes buffered for the screen, or one longer write. Further writes wait; an echo is dropped.
const OUTPUT_MAX: usize = 64 << 10;
/// The largest answer of `zero` and `random`, in bytes.
const READ_LEN_MAX: usize = 64 << 10;

/// Facts about the program and its machine, shown in the files.
pub struct Host {
    /// The process id.
    pub pid: u32,
    /// The parent's process id.
    pub ppid: u32,
    /// The name of the user that runs the program.
    pub owner: String,
    /// The name and version of the program.
    pub version: String,
    /// The machine's name.
    pub sysname: Box<dyn Fn() -> String + Send + Sync>,
    /// CPU time in milliseconds: user, system and total of the program, then the same of its children.
    pub cputime: Box<dyn Fn() -> [u64; 6] + Send + Sync>,
}

/// The file server of a console.
///
/// The number of waiting requests is bounded by the limits of the connections.
///
/// Concurrency: any number of requests at a time. A waiting request delays no other.
pub struct Cons {
    tree: Tree,
    shared: Arc<ConsShared>,
}

struct ConsShared {
    state: Mutex<ConsState>,
    log: Mutex<ConsLog>,
    /// The terminal itself echoes typed bytes.
    echoes: bool,
    changed: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct ConsState {
    keys: KeyboardInput,
    /// A client has read `cons` at least once.
    wanted: bool,
    output: BytesMut,
    /// The screen is closed.
    gone: bool,
    reads: VecDeque<Ask>,
    writes: VecDeque<Ask>,
    /// Open consctl files that have requested raw mode.
    raw: BTreeSet<u64>,
    /// The number of the latest opened consctl.
    next: u64,
}

/// Answers to be given while nothing is locked: bytes for a read, none for a write.
type ConsAnswers = Vec<(Ask, Result<Option<Bytes>>)>;

impl Cons {
    /// Creates a console. `told` sets the identity of a client from the aname, as for [`Tree::set_told`]. `echoes`:
    /// the terminal itself echoes typed bytes. `changed` is called when [`Cons::output`] may have something, or when
    /// [`Cons::is_raw`] or [`Cons::is_wanted`] may have changed. It must not wait.
    pub fn new(
        host: Host,
        clock: Arc<dyn Clock>,
        told: impl Fn(&mut Who, &[u8]) + Send + Sync + 'static,
        echoes: bool,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let wall = clock.wall();
        let (state, log, changed) = (Mutex::default(), Mutex::default(), Box::new(changed));
        let shared = Arc::new(ConsShared { state, log, echoes, changed });
        let mut tree = Tree::new(files(host, clock, &shared), wall).audited("cons");
        tree.set_told(told);
        Self { tree, shared }
    }

    /// Handles typed bytes.
    pub fn input(&self, bytes: &[u8]) {
        let echoes = !self.shared.echoes;
        self.shared.with(|state, _| {
            let echo = state.keys.typed(bytes, echoes);
            if !state.gone && state.output.len() + echo.len() <= OUTPUT_MAX {
                state.output.extend_from_slice(&echo);
            }
        });
    }

    /// Ends the input: reads get an end of file after the buffered input.
    pub fn end(&self) {
        self.shared.with(|state, _| state.keys.end());
    }

    /// Returns whether a client has ever read `cons`.
    pub fn is_wanted(&self) -> bool {
        lock(&self.shared.state).wanted
    }

    /// Returns whether raw mode is on: input is read byte by byte and not echoed.
    pub fn is_raw(&self) -> bool {
        !lock(&self.shared.state).raw.is_empty()
    }

    /// Takes at most `max` bytes for the screen; empty if there are none now.
    pub fn output(&self, max: usize) -> Bytes {
        self.shared.with(|state, _| {
            let n = max.min(state.output.len());
            state.output.split_to(n).freeze()
        })
    }

    /// Closes the screen: writes fail with EIO.
    pub fn no_output(&self) {
        self.shared.with(|state, _| {
            state.gone = true;
            state.output.clear();
        });
    }

    /// Appends to the log. Must not be called with locks held that answering a request needs.
    pub fn log(&self, text: &[u8]) {
        self.shared.logged(|log, answers| log.push(text, answers));
    }

    /// Returns the number of waiting reads and writes.
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

impl ConsShared {
    /// Applies a change to the state, then answers the requests that can proceed.
    fn with<T>(&self, act: impl FnOnce(&mut ConsState, &mut ConsAnswers) -> T) -> T {
        let mut answers = ConsAnswers::new();
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

    fn logged<T>(&self, act: impl FnOnce(&mut ConsLog, &mut ConsAnswers) -> T) -> T {
        let mut answers = ConsAnswers::new();
        let done = act(&mut lock(&self.log), &mut answers);
        answer(answers);
        done
    }
}

fn answer(answers: ConsAnswers) {
    for (ask, answer) in answers {
        match answer {
            Ok(Some(bytes)) => ask.give(bytes),
            Ok(None) => ask.done(Ok(())),
            Err(error) => ask.fail(error),
        }
    }
}

impl ConsState {
    /// The properties of the state that `changed` reports.
    fn seen(&self) -> (bool, bool, bool) {
        (self.wanted, !self.raw.is_empty(), self.output.is_empty())
    }

    fn go_on(&mut self, answers: &mut ConsAnswers) {
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

/// Builds the files. Clients other than the owner can only read, and read no input, output or log of others.
fn files(host: Host, clock: Arc<dyn Clock>, shared: &Arc<ConsShared>) -> Dir {
    let Host { pid, ppid, owner, version, sysname, cputime } = host;
    let (time, bintime, random) = (clock.clone(), clock.clone(), clock);
    let (cons, consctl, kmesg, kprint) = (shared.clone(), shared.clone(), shared.clone(), shared.clone());
    let opened = |open: fn(&Arc<ConsShared>) -> Result<Box<dyn Handle>>, shared: Arc<ConsShared>| {
        File::opened(move |_, _| open(&shared))
    };
    Dir::new()
        .file("bintime", made(move |_, _| ticks(&*bintime).map(u64::to_be_bytes).concat().into()).mode(0o644))
        .file("cons", opened(|shared| Ok(Box::new(OpenScreen(shared.clone()))), cons).mode(0o600).consuming())
        .file("consctl", opened(ConsCtlFile::open, consctl).mode(0o200))
        .file("cputime", made(move |_, _| cputime().map(number).concat().into()))
        .file("hostowner", made(move |_, _| owner.clone().into()))
        .file("kmesg", made(move |_, _| lock(&kmesg.log).end()).mode(0o400))
        .file("kprint", opened(KprintFile::open, kprint).mode(0o400).event())
        .file("null", File::opened(|_, _| Ok(Box::new(NullFile))))
        .file("osversion", made(move |_, _| version.clone().into()))
        .file("pid", made(move |_, _| number(pid.into()).into()))
        .file("ppid", made(move |_, _| number(ppid.into()).into()))
        .file("random", endless(move |bytes| random.entropy(bytes)))
        .file("sysname", made(move |_, _| sysname().into()))
        .file("time", made(move |_, _| seconds(&*time).into()).mode(0o644))
        .file("user", made(|visitor, _| visitor.who.name.to_string().into()))
        .file("zero", endless(|_| {}))
}

/// The contents of `time`.
fn seconds(clock: &dyn Clock) -> String {
    number(clock.wall().as_secs()) + &ticks(clock).map(|n| format!("{n:>21} ")).concat()
}

/// Returns nanoseconds since 1970, ticks since an arbitrary time, and ticks per second.
fn ticks(clock: &dyn Clock) -> [u64; 3] {
    let nanoseconds = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    [nanoseconds(clock.wall()), nanoseconds(clock.now()), 1_000_000_000]
}

fn number(n: u64) -> String {
    format!("{n:>11} ")
}

/// Returns a file with contents generated at each read. Mode 0444.
fn made(make: impl Fn(&Visitor, u32) -> Bytes + Send + Sync + 'static) -> File {
    let make: Arc<ContentMaker> = Arc::new(make);
    File::opened(move |_, _| Ok(Box::new(GeneratedFile { make: make.clone(), endless: false }))).mode(0o444)
}

/// Returns a file without an end. Marked as an event file, so that copies of a tree skip it.
fn endless(fill: impl Fn(&mut [u8]) + Send + Sync + 'static) -> File {
    let make: Arc<ContentMaker> = Arc::new(move |_, count| {
        let mut bytes = vec![0; READ_LEN_MAX.min(count as usize)];
        fill(&mut bytes);
        bytes.into()
    });
    File::opened(move |_, _| Ok(Box::new(GeneratedFile { make: make.clone(), endless: true })))
        .mode(0o444)
        .event()
}

/// The reader, and the number of bytes requested.
type ContentMaker = dyn Fn(&Visitor, u32) -> Bytes + Send + Sync;

struct GeneratedFile {
    make: Arc<ContentMaker>,
    /// Reads ignore the offset.
    endless: bool,
}

impl Handle for GeneratedFile {
    fn read(&self, ask: Ask) {
        let bytes = (self.make)(&ask.visitor, ask.count);
        if self.endless { ask.give(bytes) } else { ask.give_from(&bytes) }
    }

    fn write(&self, ask: Ask) {
        ask.fail(Error::new(Errno::EPERM, "the clock is the host's, which alone sets it"));
    }
}

struct NullFile;

impl Handle for NullFile {
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

impl Direct for NullFile {
    fn read(&self, _: Option<&mut Context<'_>>, _: u64, _: u32) -> Called<Payload> {
        Called::Done(Ok(Payload::EMPTY))
    }

    fn write_now(&self, _: u64, data: &Payload) -> Called<usize> {
        Called::Done(Ok(data.len()))
    }
}

/// An open `cons`.
struct OpenScreen(Arc<ConsShared>);

impl Handle for OpenScreen {
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
        // A request in neither queue is being answered.
        true
    }
}

/// An open `consctl`.
struct ConsCtlFile {
    shared: Arc<ConsShared>,
    number: u64,
}

impl ConsCtlFile {
    fn open(shared: &Arc<ConsShared>) -> Result<Box<dyn Handle>> {
        let number = {
            let mut state = lock(&shared.state);
            state.next += 1;
            state.next
        };
        Ok(Box::new(Self { shared: shared.clone(), number }))
    }
}

impl Handle for ConsCtlFile {
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

impl Drop for ConsCtlFile {
    fn drop(&mut self) {
        self.shared.with(|state, _| state.set_raw(self.number, false));
    }
}

/// An open `kprint`.
struct KprintFile {
    shared: Arc<ConsShared>,
    number: u64,
}

impl KprintFile {
    fn open(shared: &Arc<ConsShared>) -> Result<Box<dyn Handle>> {
        let number = lock(&shared.log).open()?;
        Ok(Box::new(Self { shared: shared.clone(), number }))
    }
}

impl Handle for KprintFile {
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

impl Drop for KprintFile {
    fn drop(&mut self) {
        // Waiting requests are dropped, and so answered, after unlocking.
        let gone = lock(&self.shared.log).close(self.number);
        drop(gone);
    }
}
