//! A partition's own files (docs/guest.md, "What a machine is served"): arguments, environment, standard files, exit
//! status and clock.
//!
//! In: requests; three files of the host. Out: answers, the exit status, and reads and writes of the host files. Each
//! host file has a thread, since a terminal or a pipe may block.
//!
//! Always holds: a read or a write waits in one queue. The thread that removes it, under the lock, answers it while
//! nothing is locked. Input without a reader is buffered. A thread ends with the tree, unless it is blocked in a
//! system call.

use std::collections::VecDeque;
use std::fs::File as HostFile;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use bytes::Bytes;
use nine_io::Payload;
use nine_io::quote::quote;
use nine_io::server::{Answer, FileServer, Node, Reply, Req, ReqId, Request};
use nine_io::synth::{Ask, Dir, File, Handle, Tree};
use nine_net::Clock;
use nine_proto::{Errno, Error, Op, Result};

use super::told::OnceSignal;

/// The maximum number of bytes read from the host at once.
const HOST_READ_MAX: usize = 64 << 10;

/// The three standard files of a partition on the host.
#[derive(Debug)]
pub struct Stdio {
    /// Its standard input is read from here.
    pub stdin: OwnedFd,
    /// Its standard output is written here.
    pub stdout: OwnedFd,
    /// Its standard error is written here.
    pub stderr: OwnedFd,
}

/// The file server of a partition's own files.
///
/// The number of waiting requests is bounded by the limits of its one connection.
pub struct Own {
    tree: Tree,
    streams: Vec<Arc<StdioStream>>,
    exit: Arc<OnceSignal<u8>>,
}

impl Own {
    /// Creates the files of a partition with these arguments, the first its name, and these variables, `NAME=VALUE`.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(argv: &[String], env: &[String], stdio: Stdio, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let words: Vec<String> = argv.iter().map(|word| quote(word)).collect();
        let argv = words.join(" ") + "\n";
        let env: String = env.iter().map(|variable| quote(variable) + "\n").collect();
        let wall = clock.wall();
        let Stdio { stdin, stdout, stderr } = stdio;
        let stdin = StdioStream::start("stdin", stdin, StdioStream::reads)?;
        let stdout = StdioStream::start("stdout", stdout, StdioStream::writes)?;
        let stderr = StdioStream::start("stderr", stderr, StdioStream::writes)?;
        let exit = Arc::<OnceSignal<u8>>::default();
        let (status, time) = (exit.clone(), Arc::new(ClockFile(clock)));
        let stream = |stream: &Arc<StdioStream>, mode| {
            let stream = stream.clone();
            File::opened(move |_, _| Ok(Box::new(OpenStdioFile(stream.clone())))).mode(mode).event()
        };
        let root = Dir::new()
            .file("argv", File::text(move |_| argv.clone()))
            .file("env", File::text(move |_| env.clone()))
            .file("stdin", stream(&stdin, 0o400))
            .file("stdout", stream(&stdout, 0o200))
            .file("stderr", stream(&stderr, 0o200))
            .file(
                "exit",
                File::opened(move |_, _| Ok(Box::new(OpenExitFile(status.clone())))).mode(0o200).event(),
            )
            .file("clock", File::opened(move |_, _| Ok(Box::new(OpenClockFile(time.clone())))).mode(0o444));
        // The channel has no other clients.
        let tree = Tree::new(root, wall).owned_by(|_, _| true);
        Ok(Self { tree, streams: vec![stdin, stdout, stderr], exit })
    }

    /// Returns the exit status, if the partition has written one.
    pub fn status(&self) -> Option<u8> {
        self.exit.get()
    }

    /// Waits until the partition has written an exit status.
    pub async fn exited(&self) -> u8 {
        self.exit.heard().await
    }
}

impl FileServer for Own {
    fn serve(&self, req: Req) -> Answer {
        self.tree.serve(req)
    }

    fn cancel(&self, id: ReqId, node: Option<&Node>) {
        self.tree.cancel(id, node);
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        for stream in &self.streams {
            let mut state = stream.state();
            state.closed = true;
            let asks = std::mem::take(&mut state.asks);
            drop(state);
            drop(asks);
            stream.changed.notify_all();
        }
    }
}

/// A standard file and the requests waiting for it.
#[derive(Default)]
struct StdioStream {
    state: Mutex<StdioState>,
    changed: Condvar,
}

#[derive(Default)]
struct StdioState {
    asks: VecDeque<Ask>,
    /// Bytes read that no request has taken yet.
    have: Bytes,
    /// The end of file, or the error that ended the file.
    over: Option<std::result::Result<(), Errno>>,
    closed: bool,
}

impl StdioStream {
    fn start(name: &str, file: OwnedFd, work: fn(&Self, HostFile)) -> io::Result<Arc<Self>> {
        let stream = Arc::new(Self::default());
        let of = stream.clone();
        thread::Builder::new().name(name.into()).spawn(move || work(&of, file.into()))?;
        Ok(stream)
    }

    fn state(&self) -> MutexGuard<'_, StdioState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a request. `None`: the file server is dropped.
    fn wanted(&self) -> Option<MutexGuard<'_, StdioState>> {
        let state = self.state();
        let idle = |state: &mut StdioState| state.asks.is_empty() && !state.closed;
        let state = self.changed.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        (!state.closed).then_some(state)
    }

    /// The thread of a file that is read.
    fn reads(&self, mut file: HostFile) {
        let mut buf = vec![0; HOST_READ_MAX];
        while let Some(state) = self.wanted() {
            if state.over.is_some() {
                return;
            }
            let most = state.asks.front().map_or(0, |ask| ask.count as usize).min(HOST_READ_MAX);
            drop(state);
            let came = file.read(&mut buf[..most]);
            let mut state = self.state();
            match came {
                Ok(0) => state.over = Some(Ok(())),
                Ok(n) => state.have = Bytes::copy_from_slice(&buf[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => state.over = Some(Err(errno(&error))),
            }
            let ready = state.ready();
            drop(state);
            ready.into_iter().for_each(|(ask, result)| answer(ask, result));
        }
    }

    /// The thread of a file that is written.
    fn writes(&self, mut file: HostFile) {
        while let Some(mut state) = self.wanted() {
            let ask = state.asks.pop_front().expect("somebody waits");
            drop(state);
            let wrote = file.write_all(&ask.data).map_err(|error| Error::from(errno(&error)));
            ask.done(wrote);
        }
    }

    fn ask(&self, ask: Ask) {
        let mut state = self.state();
        state.asks.push_back(ask);
        let ready = state.ready();
        drop(state);
        self.changed.notify_all();
        ready.into_iter().for_each(|(ask, result)| answer(ask, result));
    }
}

impl StdioState {
    /// Returns the reads that can be answered now.
    fn ready(&mut self) -> Vec<(Ask, Result<Bytes>)> {
        let mut ready = Vec::new();
        while !self.asks.is_empty() && (!self.have.is_empty() || self.over.is_some()) {
            let ask = self.asks.pop_front().expect("there is one");
            let result = match self.over {
                Some(Err(errno)) if self.have.is_empty() => Err(errno.into()),
                _ => Ok(self.have.split_to(self.have.len().min(ask.count as usize))),
            };
            ready.push((ask, result));
        }
        ready
    }
}

fn answer(ask: Ask, result: Result<Bytes>) {
    match result {
        Ok(bytes) => ask.give(bytes),
        Err(error) => ask.fail(error),
    }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, |code| Errno(code as u32))
}

/// An open standard file.
struct OpenStdioFile(Arc<StdioStream>);

impl Handle for OpenStdioFile {
    fn read(&self, ask: Ask) {
        if ask.count == 0 {
            return ask.give(Bytes::new());
        }
        self.0.ask(ask);
    }

    fn write(&self, ask: Ask) {
        self.0.ask(ask);
    }

    fn cancel(&self, id: ReqId) -> bool {
        let mut state = self.0.state();
        let at = state.asks.iter().position(|ask| ask.id() == id);
        let ask = at.and_then(|at| state.asks.remove(at));
        drop(state);
        // A write in progress is not waited for: a terminal may block it for any time.
        ask.map(|ask| ask.fail(Errno::EINTR.into())).is_some()
    }
}

/// An open `exit`.
struct OpenExitFile(Arc<OnceSignal<u8>>);

impl Handle for OpenExitFile {
    fn write(&self, ask: Ask) {
        let Ok(status) = ask.text().unwrap_or_default().trim().parse() else {
            return ask.fail(Error::new(Errno::EINVAL, "a status is a number from 0 to 255"));
        };
        self.0.tell(status);
        ask.done(Ok(()));
    }
}

struct ClockFile(Arc<dyn Clock>);

/// An open `clock`.
struct OpenClockFile(Arc<ClockFile>);

impl Handle for OpenClockFile {
    fn now(&self, request: &Request) -> Option<Result<Reply>> {
        let Op::Read { offset, .. } = request.op() else { return None };
        if offset > 0 {
            return Some(Ok(Reply::Read(Payload::Bytes(Bytes::new()))));
        }
        let clock = &self.0.0;
        let text = format!("{} {}\n", clock.wall().as_nanos(), clock.now().as_nanos());
        Some(Ok(Reply::Read(Payload::Bytes(text.into()))))
    }
}
