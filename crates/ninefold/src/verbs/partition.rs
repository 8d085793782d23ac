//! `partition run --on`, `ls` and `kill`: programs that other servers run, controlled through the files in their /part
//! (docs/part.md).
//!
//! In: the servers, a program and its arguments. Out: the programs' output, line by line; their exit status.
//!
//! Always holds: a server that fails or disconnects ends only its own program. The output of one program never waits
//! for another server, only for our own output.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::future::{Future, pending, poll_fn};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Task, Poll, Waker};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use futures_util::future::{Either, join, join_all, select};
use nine_io::client::File;
use nine_net::Env;
use nine_net::rt::{self, Signal};
use nine_proto::{Errno, OpenFlags};
use rustix::process::Signal as Number;
use serde_json::json;

use super::text;
use crate::cli;
use crate::config::{Config, Remote};
use crate::dial::{self, Sessions};
use crate::fail::{self, Interrupted, Program, Tally};
use crate::operand::Place;
use crate::output::{Output, table};
use crate::serve::part::give;

/// Runs the program on all servers until all have ended. Returns an error if one status is not 0.
pub fn run(args: cli::PartitionRun, config: &Config) -> Result<()> {
    let remote = config.remote(&args.remote)?.with_error_texts();
    let wrong = |why: &str| Err(Program { status: 2, error: Some(why.into()) }.into());
    let [program, words @ ..] = (match (&args.words[..], &args.program[..]) {
        (words, []) | ([], words) => words,
        _ => return wrong("--on: the servers show what they have; no SERVER stands before `--`"),
    }) else {
        return wrong("--on: write a program or an image that they shall run");
    };
    let job = Job {
        program: if args.there { Sent::Named(word(program)?) } else { Sent::Bytes(read(program)?) },
        argv: std::iter::once(Ok(name(program)?))
            .chain(words.iter().map(|of| word(of)))
            .collect::<Result<_>>()?,
        env: args.env.clone(),
        ctl: args.ctl.clone(),
        input: args.input,
    };
    let places = args.on.iter().map(|addr| partitions(addr, &remote)).collect::<Result<Vec<_>>>()?;
    let statuses = dial::run_waiting(remote, async |sessions| {
        let bell = Rc::<Bell>::default();
        let out = Out { stdout: RefCell::new(Output::new()), names: places.len() > 1 };
        let nodes: Vec<Node> = places.into_iter().map(|place| Node::new(place, bell.clone())).collect();
        let ends = async {
            match args.tree {
                None => join_all(nodes.iter().map(|node| node.run(&sessions, &job, &out))).await,
                Some(most) => grow(&sessions, &nodes, &job, &out, most).await,
            }
        };
        let ends = pin!(ends);
        let feeds = async {
            match job.input {
                // The rest of the input is not needed once all programs have ended.
                true => {
                    feed(&sessions.env(), &nodes, &bell).await;
                    pending().await
                }
                false => pending::<()>().await,
            }
        };
        let all = async {
            match select(ends, pin!(feeds)).await {
                Either::Left((ends, _)) => ends,
                Either::Right(((), _)) => unreachable!("it goes on for ever"),
            }
        };
        let mut signals = rt::signals()?;
        let mut all = pin!(all);
        let mut before = None;
        loop {
            match select(all.as_mut(), pin!(signals.next())).await {
                Either::Left((ends, _)) => {
                    out.stdout.borrow_mut().flush()?;
                    return ends.into_iter().collect::<Result<Vec<u8>>>();
                }
                // On the second signal, give up. The servers end the sessions when their files are closed.
                Either::Right((signal, _)) if before.is_some() => return Err(Interrupted(signal).into()),
                Either::Right((signal, _)) => {
                    before = Some(signal);
                    // Programs that have ended need no signal. Keep reading the output while the signals are sent.
                    let tells = join_all(nodes.iter().map(|node| node.tell(signal)));
                    if let Either::Left((ends, _)) = select(all.as_mut(), pin!(tells)).await {
                        out.stdout.borrow_mut().flush()?;
                        return ends.into_iter().collect();
                    }
                }
            }
        }
    })?;
    match statuses.into_iter().max() {
        None | Some(0) => Ok(()),
        Some(status) => Err(Program { status, error: None }.into()),
    }
}

/// Prints the sessions of a server as a table.
pub fn ls(args: cli::PartitionLs, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?.with_error_texts();
    let place = partitions(args.addr.as_deref().unwrap_or(OsStr::new("/")), &remote)?;
    dial::run(remote, async |sessions| {
        let dir = walk(&sessions, &place).await?;
        let mut rows = Vec::new();
        let mut numbers = Vec::new();
        for entry in super::sorted(&dir, None).await? {
            numbers.extend(std::str::from_utf8(&entry.name).ok().and_then(|name| name.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        let mut out = Output::new();
        for number in numbers {
            // The session was removed meanwhile.
            let Ok(status) = text(&dir, &format!("{number}/status")).await else { continue };
            let words = words(&status);
            let of = |key: &str| {
                words.iter().position(|word| word == key).and_then(|at| words.get(at + 1)).cloned()
            };
            let [user, program] = ["user", "program"].map(|key| {
                // The key `user` may occur twice: the last one is the processor time after the end.
                let at = if key == "user" { words.iter().rposition(|word| word == key) } else { None };
                at.and_then(|at| words.get(at + 1)).cloned().or(of(key)).unwrap_or_default()
            });
            let state = words.first().cloned().unwrap_or_default();
            let ended = if state == "Finished" {
                words.get(1..3).unwrap_or_default().join(" ")
            } else {
                String::new()
            };
            if args.json {
                let line = json!({ "session": number, "user": user, "program": program, "state": state, "end": ended });
                out.json(&line)?;
            } else {
                rows.push(vec![number.to_string(), user, program, format!("{state} {ended}").trim().into()]);
            }
        }
        if !args.json {
            out.print(table(&rows))?;
        }
        out.flush()?;
        Ok(Tally::default())
    })
}

/// Ends a session.
pub fn kill(args: cli::PartitionKill, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?.with_error_texts();
    let place = partitions(&args.addr, &remote)?;
    dial::run(remote, async |sessions| {
        let dir = walk(&sessions, &place).await?;
        let ctl = dir.open(format!("{}/ctl", args.number), OpenFlags::WRITE).await;
        let ctl = ctl.map_err(|error| match error.errno() {
            Errno::ENOENT => anyhow!("{place}: there is no session {}", args.number),
            _ => error.into(),
        })?;
        ctl.write(0, b"kill").await?;
        let status = words(&text(&dir, &format!("{}/status", args.number)).await?);
        if status.windows(2).any(|pair| pair == ["type", "persistent"]) {
            ctl.write(0, b"wipe").await?;
        }
        ctl.close().await?;
        Ok(Tally::default())
    })
}

/// Like running all nodes directly, but servers pass the program on to each other.
async fn grow(sessions: &Sessions, nodes: &[Node], job: &Job, out: &Out, most: u32) -> Vec<Result<u8>> {
    let made = join_all(nodes.iter().map(|node| node.unless_stopped(node.make(sessions, job)))).await;
    let mut there = nodes.iter().zip(&made).filter_map(|(node, made)| Some((node, made.as_ref().ok()?)));
    if let (Some((first, session)), Sent::Bytes(bytes)) = (there.next(), &job.program) {
        let spread = async {
            let mut to = Vec::new();
            for (node, Made { number, ctl, .. }) in there {
                let mut key = [0; 16];
                sessions.env().entropy(&mut key);
                let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
                ctl.write(0, format!("key {key}").as_bytes()).await?;
                to.push(quote(&format!("{}/{number}.{key}", node.name)));
            }
            send(sessions, &session.dir, bytes).await?;
            if !to.is_empty() {
                session.ctl.write(0, format!("clone {most} {}", to.join(" ")).as_bytes()).await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        if let Err(error) = first.unless_stopped(spread).await {
            // Servers that did not get the program get it from this client.
            fail::note(format_args!("{}: {error:#}; it goes to the others from here", first.name));
        }
    }
    let goes = nodes.iter().zip(made).map(|(node, made)| async {
        let ended = match made {
            Ok(made) => node.unless_stopped(node.go(sessions, job, out, made)).await,
            Err(error) => Err(error),
        };
        node.settle(ended)
    });
    join_all(goes).await
}

/// The work for every server.
struct Job {
    program: Sent,
    argv: Vec<String>,
    env: Vec<String>,
    ctl: Vec<String>,
    /// Send our standard input to the programs.
    input: bool,
}

enum Sent {
    Bytes(Vec<u8>),
    /// A program that the server has.
    Named(String),
}

/// One server, and the state of its program.
struct Node {
    place: Place,
    name: String,
    /// The ctl file of its session, while the program runs.
    ctl: RefCell<Option<Rc<File>>>,
    input: RefCell<Option<Rc<File>>>,
    /// Input that the program has not taken yet.
    queue: RefCell<VecDeque<Rc<Vec<u8>>>>,
    has_begun: Cell<bool>,
    /// Set when the server is given up: exit status and reason.
    stop: Cell<Option<(u8, &'static str)>>,
    /// Woken when any of these changes.
    bell: Rc<Bell>,
}

/// A new session.
struct Made {
    number: String,
    ctl: Rc<File>,
    dir: File,
}

impl Node {
    fn new(place: Place, bell: Rc<Bell>) -> Self {
        let (name, stop) = (place.to_string(), Cell::new(None));
        let (ctl, input, queue, has_begun) = Default::default();
        Self { place, name, ctl, input, queue, has_begun, stop, bell }
    }

    /// Runs the program and returns its exit status. Errors concern only our own output.
    async fn run(&self, sessions: &Sessions, job: &Job, out: &Out) -> Result<u8> {
        let ended = async { self.go(sessions, job, out, self.make(sessions, job).await?).await };
        self.settle(self.unless_stopped(ended).await)
    }

    /// Awaits `work`, unless this server is given up.
    async fn unless_stopped<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        match select(pin!(self.bell.until(|| self.stop.get())), pin!(work)).await {
            Either::Left(((status, why), _)) => Err(Stopped { status, why }.into()),
            Either::Right((done, _)) => done,
        }
    }

    fn stop(&self, status: u8, why: &'static str) {
        self.stop.set(Some((status, why)));
        self.bell.ring();
    }

    /// Turns the result into an exit status, and reports errors.
    fn settle(&self, ended: Result<u8>) -> Result<u8> {
        self.has_begun.set(true);
        self.ctl.take();
        self.input.take();
        self.bell.ring();
        match ended {
            Ok(status) => Ok(status),
            Err(error) if error.is::<fail::Stdout>() => Err(error),
            Err(error) => {
                fail::note(format_args!("{}: {error:#}", self.name));
                let refused = error.downcast_ref::<Refused>().map(|refused| refused.0);
                let stopped = error.downcast_ref::<Stopped>().map(|stopped| stopped.status);
                Ok(refused.or(stopped).unwrap_or(GONE))
            }
        }
    }

    /// Creates a session and sets it up, without its program.
    async fn make(&self, sessions: &Sessions, job: &Job) -> Result<Made> {
        let part = walk(sessions, &self.place).await?;
        let ctl = Rc::new(part.open("clone", OpenFlags::RDWR).await?);
        let number = ctl.read(0, 64).await?;
        let number = std::str::from_utf8(&number)?.trim().to_owned();
        let dir = part.walk(&number).await?;
        for line in &job.ctl {
            ctl.write(0, line.as_bytes()).await.with_context(|| line.clone())?;
        }
        put(&dir, "argv", quoted(&job.argv).as_bytes()).await?;
        if !job.env.is_empty() {
            put(&dir, "env", quoted(&job.env).as_bytes()).await?;
        }
        Ok(Made { number, ctl, dir })
    }

    /// Runs the program in a session until it ends.
    async fn go(&self, sessions: &Sessions, job: &Job, out: &Out, Made { ctl, dir, .. }: Made) -> Result<u8> {
        let exec = match &job.program {
            Sent::Bytes(bytes) => {
                send(sessions, &dir, bytes).await?;
                "exec".into()
            }
            Sent::Named(name) => format!("exec {}", quote(name)),
        };
        let input = Rc::new(dir.open("stdin", OpenFlags::WRITE).await?);
        let stdout = dir.open("stdout", OpenFlags::READ).await?;
        let stderr = dir.open("stderr", OpenFlags::READ).await?;
        let wait = dir.open("wait", OpenFlags::READ).await?;
        if let Err(error) = ctl.write(0, exec.as_bytes()).await {
            let status = match error.errno() {
                _ if error.is_disconnect() => return Err(error.into()),
                Errno::ENOENT => 127,
                _ => 126,
            };
            return Err(anyhow!(error).context(Refused(status)));
        }
        *self.ctl.borrow_mut() = Some(ctl.clone());
        // Dropping the input file gives a program without input an EOF.
        *self.input.borrow_mut() = job.input.then_some(input);
        self.has_begun.set(true);
        self.bell.ring();
        let (shown, complained) = join(out.copy(self, &stdout, false), out.copy(self, &stderr, true)).await;
        shown?;
        complained?;
        let line = wait.read(0, 1024).await?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let said = words(&line);
        let limit = said.iter().position(|word| word == "limit").and_then(|at| said.get(at + 1));
        if let Some(limit) = limit {
            fail::note(format_args!("{}: it has reached its limit: {limit}", self.name));
        }
        match &said[..] {
            [how, status, ..] if how == "exit" => Ok(status.parse::<u8>().unwrap_or(GONE)),
            [how, signal, ..] if how == "signal" => Ok(number_of(signal).map_or(GONE, |number| 128 + number)),
            _ => bail!("this is no end: {line}"),
        }
    }

    /// Sends a signal to the program. If the program has not started yet, it will not be started.
    async fn tell(&self, signal: Signal) {
        let (name, number) = match signal {
            Signal::Interrupt => ("INT", 2),
            Signal::Terminate => ("TERM", 15),
            Signal::Hangup => ("HUP", 1),
        };
        if !self.has_begun.get() {
            return self.stop(128 + number, "it had not begun when a signal came, and is given up");
        }
        let ctl = self.ctl.borrow().clone();
        if let Some(ctl) = ctl {
            let _ = ctl.write(0, format!("signal {name}").as_bytes()).await;
        }
    }
}

/// The server did not start the program; with the exit status.
#[derive(Debug)]
struct Refused(u8);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not started")
    }
}

/// The server was given up, with the exit status.
#[derive(Debug)]
struct Stopped {
    status: u8,
    why: &'static str,
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.why)
    }
}

impl std::error::Error for Stopped {}

/// Sends our copy of a program to a session.
async fn send(sessions: &Sessions, dir: &File, bytes: &[u8]) -> Result<()> {
    give(&sessions.env(), dir, bytes.len() as u64, async |at| Ok(&bytes[at as usize..])).await
}

/// Sends our standard input to all programs, when each has started or failed. A slower program has a queue. If the
/// queue is full, it delays the others for a limited time; then its server is given up.
async fn feed(env: &impl Env, nodes: &[Node], bell: &Bell) {
    bell.until(|| nodes.iter().all(|node| node.has_begun.get()).then_some(())).await;
    let reads = async {
        while let Some(piece) = next_piece().await {
            let piece = Rc::new(piece);
            room(env, nodes, bell).await;
            let give = |node: &Node| node.queue.borrow_mut().push_back(piece.clone());
            nodes.iter().filter(|node| node.is_fed()).for_each(give);
            bell.ring();
        }
        // An empty piece means EOF.
        nodes.iter().for_each(|node| node.queue.borrow_mut().push_back(Rc::default()));
        bell.ring();
    };
    join(reads, join_all(nodes.iter().map(Node::take_all))).await;
}

/// Waits until every queue has room for a piece.
async fn room(env: &impl Env, nodes: &[Node], bell: &Bell) {
    let is_full = |node: &&Node| node.is_fed() && node.queue.borrow().len() >= QUEUE;
    let is_room = || (!nodes.iter().any(|node| is_full(&node))).then_some(());
    while dial::within(env, PATIENCE, bell.until(is_room)).await.is_none() {
        // Give a server up only if others have room and wait for it.
        if nodes.iter().any(|node| node.is_fed() && !is_full(&node)) {
            let why = "it takes no input, for which others wait, and is given up";
            nodes.iter().filter(is_full).for_each(|node| node.stop(GONE, why));
        }
    }
}

impl Node {
    fn is_fed(&self) -> bool {
        self.input.borrow().is_some() && self.stop.get().is_none()
    }

    /// Writes the queue to the program until EOF.
    async fn take_all(&self) {
        let next = || match self.is_fed() {
            true => self.queue.borrow().front().cloned(),
            false => Some(Rc::default()),
        };
        loop {
            let piece = self.bell.until(next).await;
            let input = self.input.borrow().clone().filter(|_| !piece.is_empty());
            let Some(input) = input else { break };
            let write = async { Ok(input.write_all_at(0, &piece).await?) };
            if self.unless_stopped(write).await.is_err() {
                break;
            }
            self.queue.borrow_mut().pop_front();
            self.bell.ring();
        }
        // The program takes no more input; the others continue.
        self.input.take();
        self.bell.ring();
    }
}

/// A condition that futures of this thread can wait for.
#[derive(Default)]
struct Bell(RefCell<Vec<Waker>>);

impl Bell {
    fn ring(&self) {
        self.0.take().into_iter().for_each(Waker::wake);
    }

    async fn until<T>(&self, ready: impl Fn() -> Option<T>) -> T {
        let poll = |cx: &mut Task<'_>| {
            let mut wakers = self.0.borrow_mut();
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            drop(wakers);
            ready().map_or(Poll::Pending, Poll::Ready)
        };
        poll_fn(poll).await
    }
}

/// Reads the next piece of our standard input; `None` at EOF. The end of the process does not wait for the reading
/// thread.
async fn next_piece() -> Option<Vec<u8>> {
    let place = Arc::new(Mutex::new((None, None::<Waker>)));
    let put = place.clone();
    let read = move || {
        let mut piece = vec![0; PIECE];
        let n = io::stdin().read(&mut piece).unwrap_or(0);
        piece.truncate(n);
        let mut put = put.lock().unwrap_or_else(PoisonError::into_inner);
        put.0 = Some(piece);
        put.1.take().into_iter().for_each(Waker::wake);
    };
    thread::Builder::new().name("input".into()).spawn(read).ok()?;
    let piece = poll_fn(|cx| {
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        place.1 = Some(cx.waker().clone());
        place.0.take().map_or(Poll::Pending, Poll::Ready)
    });
    Some(piece.await).filter(|piece| !piece.is_empty())
}

/// The destination of the programs' output.
struct Out {
    stdout: RefCell<Output>,
    /// Prefix lines with the server's name.
    names: bool,
}

impl Out {
    async fn copy(&self, node: &Node, file: &File, is_error: bool) -> Result<()> {
        let mut line = Vec::new();
        loop {
            let piece = file.read(0, PIECE as u32).await;
            let bytes = piece.as_deref().unwrap_or_default();
            if !self.names {
                self.put(bytes, is_error)?;
            } else {
                line.extend_from_slice(bytes);
                let whole = line.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
                let cut = if line.len() > LINE_MAX { line.len() } else { whole };
                let rest = line.split_off(cut);
                let done = std::mem::replace(&mut line, rest);
                self.lines(node, &done, is_error)?;
            }
            match piece {
                Ok(piece) if !piece.is_empty() => {}
                ended => {
                    self.lines(node, &line, is_error)?;
                    return Ok(ended.map(drop)?);
                }
            }
        }
    }

    fn lines(&self, node: &Node, bytes: &[u8], is_error: bool) -> Result<()> {
        let mut text = Vec::new();
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            text.extend_from_slice(node.name.as_bytes());
            text.extend_from_slice(b": ");
            text.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
            text.push(b'\n');
        }
        self.put(&text, is_error)
    }

    fn put(&self, bytes: &[u8], is_error: bool) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if is_error {
            // If the standard error fails, there is no way to report that.
            let _ = io::stderr().write_all(bytes);
            return Ok(());
        }
        let mut stdout = self.stdout.borrow_mut();
        stdout.bytes(bytes)?;
        stdout.flush()
    }
}

/// Returns the place of the partitions that a word names.
fn partitions(word: &OsStr, remote: &Remote) -> Result<Place> {
    let place = Place::parse(word, remote)?;
    let is_root = place.path.iter().all(|&byte| byte == b'/');
    Ok(if is_root { place.below(b"part") } else { place })
}

async fn walk(sessions: &Sessions, place: &Place) -> Result<File> {
    match sessions.walk(place, true).await {
        Err(error)
            if error.downcast_ref::<nine_io::client::Error>().is_some_and(|e| e.errno() == Errno::ENOENT) =>
        {
            bail!(
                "there are no partitions: a line `mount part:POLICY /part` of its name space file makes them"
            )
        }
        other => other,
    }
}

/// Writes a whole file.
async fn put(dir: &File, name: &str, bytes: &[u8]) -> Result<()> {
    let file = dir.open(name, OpenFlags::WRITE).await?;
    file.write_all_at(0, bytes).await?;
    Ok(file.close().await?)
}

/// Reads a program, found like in a shell.
fn read(program: &OsStr) -> Result<Vec<u8>> {
    let path = match program.as_bytes().contains(&b'/') {
        true => Some(PathBuf::from(program)),
        false => std::env::var_os("PATH").and_then(|all| {
            std::env::split_paths(&all).map(|dir| dir.join(program)).find(|path| path.is_file())
        }),
    };
    let shown = Path::new(program).display();
    let found = path.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound)).and_then(fs::read);
    found.map_err(|error| {
        let (status, why) = match error.kind() {
            io::ErrorKind::NotFound => (127, "there is no such program".into()),
            _ => (126, fail::plain(&error.to_string()).to_owned()),
        };
        Program { status, error: Some(format!("{shown}: {why}")) }.into()
    })
}

/// Returns the name of the program for its arguments.
fn name(program: &OsString) -> Result<String> {
    word(Path::new(program).file_name().unwrap_or(program))
}

fn word(word: &OsStr) -> Result<String> {
    let text = word.to_str().map(Into::into);
    text.ok_or_else(|| anyhow!("{}: words for another machine are UTF-8", Path::new(word).display()))
}

fn quoted(words: &[String]) -> String {
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

fn quote(word: &str) -> String {
    nine_servers::part::quote(word)
}

/// Splits a line into words; an invalid line has none.
fn words(line: &str) -> Vec<String> {
    nine_servers::part::words(line).unwrap_or_default()
}

/// Returns the number of a signal; `None` for an unknown name from a server.
fn number_of(name: &str) -> Option<u8> {
    let known = [
        ("HUP", Number::HUP),
        ("INT", Number::INT),
        ("QUIT", Number::QUIT),
        ("ABRT", Number::ABORT),
        ("KILL", Number::KILL),
        ("USR1", Number::USR1),
        ("USR2", Number::USR2),
        ("SEGV", Number::SEGV),
        ("PIPE", Number::PIPE),
        ("TERM", Number::TERM),
        ("XCPU", Number::XCPU),
        ("XFSZ", Number::XFSZ),
        ("SYS", Number::SYS),
    ];
    let found = known.iter().find(|(of, _)| *of == name).map(|(_, signal)| signal.as_raw());
    found
        .or(name.parse().ok())
        .and_then(|number| u8::try_from(number).ok())
        .filter(|of| (1..=64).contains(of))
}

/// Exit status for a program on a lost server.
const GONE: u8 = 255;
/// Size of one read or write, bytes.
const PIECE: usize = 64 << 10;
/// Limit of queued pieces of input for one program.
const QUEUE: usize = 16;
/// Longest wait for a program with a full queue.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest line that is shown in one piece.
const LINE_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_one_and_no_status_that_is_none() {
        assert_eq!([number_of("KILL"), number_of("64"), number_of("1")], [Some(9), Some(64), Some(1)]);
        assert!(["128", "0", "65", "-1", "384", "x"].iter().all(|of| number_of(of).is_none()));
    }
}
