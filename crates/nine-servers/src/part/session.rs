//! One session: its configuration, the requests on its files, and its process while there is one.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use nine_io::quote;
use nine_io::server::{ReqId, Who};
use nine_io::synth::{Ask, Visitor};
use nine_net::lock::{Mutex, lock};
use nine_net::shm::Waits;
use nine_proto::{Errno, Error, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use super::policy::{self, SessionLimits, SessionRules, cpu_list};
use super::{PartShared, ProgramSpec, SessionWork, SessionWorkKind};

/// See the module.
pub(super) struct PartSession {
    pub(super) number: u64,
    pub(super) shared: Arc<PartShared>,
    pub(super) whose: SessionOwner,
    /// The rules at the time of its creation.
    pub(super) rules: Arc<SessionRules>,
    state: Mutex<SessionState>,
}

/// The user that sessions are counted for: by the uid, or by the name if there is none.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SessionUser(std::result::Result<u32, Box<str>>);

impl SessionUser {
    pub(super) fn of(who: &Who) -> Self {
        Self(who.uid.ok_or_else(|| who.name.clone()))
    }
}

/// The creator of a session.
pub(super) struct SessionOwner {
    /// The identity of its program on its channel, without an owner's rights.
    pub(super) who: Who,
    /// The kind of authentication, for the log.
    pub(super) proof: Box<str>,
}

impl SessionOwner {
    pub(super) fn of(visitor: &Visitor) -> Self {
        let who = &visitor.who;
        let proof = if who.owner { "the owner".into() } else { format!("{:?}", who.proof) };
        Self { who: Who { owner: false, ..Who::clone(who) }, proof: proof.into() }
    }

    fn is(&self, visitor: &Visitor) -> bool {
        visitor.owner || (self.who.uid, &self.who.name) == (visitor.who.uid, &visitor.who.name)
    }
}

impl fmt::Display for SessionOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.who.name)
    }
}

pub(super) struct SessionState {
    pub(super) phase: SessionPhase,
    /// The number of open files; `None` after the last close.
    opens: Option<usize>,
    is_persistent: bool,
    pub(super) limits: SessionLimits,
    /// Processors that belong to it alone.
    pub(super) cpus: BTreeSet<usize>,
    pub(super) channel: bool,
    pub(super) waits: Waits,
    argv: Vec<u8>,
    env: Vec<u8>,
    file: ExecFileState,
    /// The length of the program, if announced.
    length: Option<u64>,
    /// Its program is being sent to other servers.
    is_given: bool,
    /// A client with this key may write the session's program.
    key: Option<Box<str>>,
    /// The number of open `stdin`s; `None`: the input has ended.
    inputs: Option<usize>,
    pub(super) writes: VecDeque<Ask>,
    /// Bytes of the first write that were sent.
    pub(super) sent: usize,
    /// Reads of `stdout` and `stderr`.
    pub(super) reads: [VecDeque<Ask>; 2],
    /// The outputs have ended.
    pub(super) are_over: [bool; 2],
    waiting: VecDeque<Ask>,
    /// The program that runs, or has run.
    pub(super) program: Box<str>,
    pub(super) pid: Option<Pid>,
    pub(super) confined: Box<str>,
    /// The reason why it could not be started.
    failed: Box<str>,
    /// All its processes must be killed.
    pub(super) kill: bool,
    pub(super) task: Option<Waker>,
}

/// The file `exec`.
enum ExecFileState {
    None,
    /// A client is writing it.
    Writing,
    Written,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SessionPhase {
    Idle,
    Starting,
    Running,
    Finished(ProgramExit),
    Wiped,
}

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ProgramExit {
    /// The exit status, or the signal.
    pub(super) how: std::result::Result<i32, i32>,
    /// Milliseconds of user, system and real time.
    pub(super) times: [u64; 3],
    pub(super) memory: u64,
    pub(super) limit: Option<&'static str>,
}

impl fmt::Display for ProgramExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.how {
            Ok(status) => write!(f, "exit {status}")?,
            Err(number) => match SIGNALS.iter().find(|(_, signal)| signal.as_raw() == number) {
                Some((name, _)) => write!(f, "signal {name}")?,
                None => write!(f, "signal {number}")?,
            },
        }
        let [user, system, real] = self.times;
        write!(f, " user {user} system {system} real {real} memory {}", self.memory)?;
        self.limit.map_or(Ok(()), |limit| write!(f, " limit {limit}"))
    }
}

/// Answers to be given while nothing is locked: bytes for a read, a count for a write.
#[derive(Default)]
pub(super) struct SessionAnswers(Vec<(Ask, Result<SessionReply>)>);

enum SessionReply {
    /// Bytes independent of the offset.
    Read(Bytes),
    /// The whole contents, read at the offset.
    Whole(Bytes),
    Wrote(usize),
}

impl SessionAnswers {
    pub(super) fn read(&mut self, asks: impl IntoIterator<Item = Ask>, bytes: &Bytes) {
        self.0.extend(asks.into_iter().map(|ask| (ask, Ok(SessionReply::Read(bytes.clone())))));
    }

    fn whole(&mut self, asks: impl IntoIterator<Item = Ask>, bytes: &Bytes) {
        self.0.extend(asks.into_iter().map(|ask| (ask, Ok(SessionReply::Whole(bytes.clone())))));
    }

    pub(super) fn wrote(&mut self, ask: Option<Ask>, n: usize) {
        self.0.extend(ask.map(|ask| (ask, Ok(SessionReply::Wrote(n)))));
    }

    pub(super) fn fail(&mut self, asks: impl IntoIterator<Item = Ask>, error: &Error) {
        self.0.extend(asks.into_iter().map(|ask| (ask, Err(error.clone()))));
    }

    pub(super) fn give(self) {
        for (ask, said) in self.0 {
            match said {
                Ok(SessionReply::Read(bytes)) => ask.give(bytes),
                Ok(SessionReply::Whole(bytes)) => ask.give_from(&bytes),
                Ok(SessionReply::Wrote(n)) => ask.took(n),
                Err(error) => ask.fail(error),
            }
        }
    }
}

impl PartSession {
    /// Creates a session with one open file.
    pub(super) fn new(
        shared: &Arc<PartShared>,
        number: u64,
        visitor: &Visitor,
        rules: Arc<SessionRules>,
    ) -> Arc<Self> {
        let state = SessionState {
            phase: SessionPhase::Idle,
            opens: Some(1),
            is_persistent: false,
            limits: rules.policy.limits,
            cpus: BTreeSet::new(),
            channel: false,
            waits: Waits::Adaptive,
            argv: Vec::new(),
            env: Vec::new(),
            file: ExecFileState::None,
            length: None,
            is_given: false,
            key: None,
            inputs: Some(0),
            writes: VecDeque::new(),
            sent: 0,
            reads: Default::default(),
            are_over: [false; 2],
            waiting: VecDeque::new(),
            program: Box::default(),
            pid: None,
            confined: Box::default(),
            failed: Box::default(),
            kill: false,
            task: None,
        };
        let (shared, whose, state) = (shared.clone(), SessionOwner::of(visitor), Mutex::new(state));
        Arc::new(Self { number, shared, whose, rules, state })
    }

    /// Returns whether this is its key. Compares in constant time.
    pub(super) fn has(&self, key: &str) -> bool {
        let same = |of: &str| {
            of.len() == key.len() && of.bytes().zip(key.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
        };
        self.step(|state, _| state.key.as_deref().is_some_and(same))
    }

    /// Counts one more open file, for this visitor, who may have the session's key.
    pub(super) fn open(&self, visitor: &Visitor, has_key: bool) -> Result<()> {
        if !has_key {
            self.is_of(visitor)?;
        }
        let mut state = lock(&self.state);
        let opens = state.opens.as_mut().ok_or(Errno::ENOENT)?;
        *opens += 1;
        Ok(())
    }

    fn is_of(&self, visitor: &Visitor) -> Result<()> {
        match self.whose.is(visitor) {
            true => Ok(()),
            false => Err(Error::new(Errno::EACCES, format!("session {} is of {}", self.number, self.whose))),
        }
    }

    /// Checks that this visitor may use files of its directory.
    pub(super) fn may_see(&self, visitor: &Visitor) -> Result<()> {
        self.is_of(visitor)?;
        self.step(|state, _| if state.phase == SessionPhase::Wiped { Err(over()) } else { Ok(()) })
    }

    pub(super) fn closed(&self) {
        let mut state = lock(&self.state);
        let left = state.opens.map_or(0, |opens| opens - 1);
        state.opens = (left > 0 || state.is_persistent).then_some(left);
        let task = state.task.take();
        drop(state);
        task.into_iter().for_each(Waker::wake);
    }

    /// Wipes the session, since the server ends.
    pub(super) fn abandon(&self) {
        self.with(|state, answers| state.wipe(answers));
    }

    /// Changes the session, answers requests, and wakes its task.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut SessionState, &mut SessionAnswers) -> T) -> T {
        let mut answers = SessionAnswers::default();
        let mut state = lock(&self.state);
        let done = change(&mut state, &mut answers);
        let task = state.task.take();
        drop(state);
        answers.give();
        task.into_iter().for_each(Waker::wake);
        done
    }

    /// The same for the task itself, which is not woken.
    pub(super) fn step<T>(&self, step: impl FnOnce(&mut SessionState, &mut SessionAnswers) -> T) -> T {
        let mut answers = SessionAnswers::default();
        let done = step(&mut lock(&self.state), &mut answers);
        answers.give();
        done
    }

    /// Executes a control message, of a client that may have opened `ctl` by the key.
    pub(super) fn control(self: &Arc<Self>, ask: Ask, has_key: bool) {
        let words = text(&ask).and_then(|text| quote::words(text.trim_matches('\0')));
        let words = match words {
            Ok(words) => words,
            Err(error) => return ask.fail(error),
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let done = match words[..] {
            [] => Ok(()),
            [word, ..] if has_key && !BY_KEY.contains(&word) => {
                let text = format!("who has the key writes {}", BY_KEY.join(" or "));
                Err(Error::new(Errno::EACCES, text))
            }
            ["exec", ref rest @ ..] => match self.exec(rest) {
                Ok(exec) => {
                    return self.shared.due(SessionWork(self.clone(), SessionWorkKind::Launch(exec), ask));
                }
                Err(error) => Err(error),
            },
            ["clone", most, ref to @ ..] => match self.may_spread(most, to) {
                Ok(spread) => return self.shared.due(SessionWork(self.clone(), spread, ask)),
                Err(error) => Err(error),
            },
            ["type", how @ ("normal" | "persistent")] => self.with(|state, _| match state.phase {
                SessionPhase::Wiped => Err(over()),
                _ => {
                    state.is_persistent = how == "persistent";
                    self.shared.keep(self, state.is_persistent);
                    Ok(())
                }
            }),
            ["wipe"] => self.with(|state, answers| {
                state.wipe(answers);
                self.shared.keep(self, false);
                Ok(())
            }),
            ["cpus", list] => {
                let (of, list) = (self.clone(), list.to_owned());
                return self.shared.aside(self.number, move || ask.done(of.dedicate(&list)));
            }
            _ => self.with(|state, _| state.control(&words)),
        };
        ask.done(done);
    }

    /// Checks that its program can be sent to these addresses.
    fn may_spread(&self, most: &str, to: &[&str]) -> Result<SessionWorkKind> {
        let most = positive(most)?;
        let known = &self.rules.policy.nodes;
        let is_known = |to: &&str| {
            let (node, session) = to.rsplit_once('/')?;
            let (number, key) = session.split_once('.')?;
            (known.iter().any(|of| of == node) && number.parse::<u64>().is_ok() && is_key(key)).then_some(())
        };
        if to.is_empty() {
            return Err(wrong("clone N ADDR/SESSION.KEY..."));
        }
        if let Some(other) = to.iter().find(|to| is_known(to).is_none()) {
            let text = format!("{other}: this is no session of a server that `nodes` of the policy names");
            return Err(Error::new(Errno::EACCES, text));
        }
        self.step(|state, _| match state.file {
            ExecFileState::Written if state.is_given => Err(busy("its program is being given to others")),
            ExecFileState::Written => {
                state.is_given = true;
                Ok(SessionWorkKind::Spread(most as usize, to.iter().map(|&to| to.into()).collect()))
            }
            _ => Err(nothing()),
        })
    }

    /// Records that the program is no longer being sent.
    pub(super) fn given(&self) {
        self.step(|state, _| state.is_given = false);
    }

    /// Gives it exclusive processors. Waits for the kernel.
    fn dedicate(&self, list: &str) -> Result<()> {
        let cpus = policy::cpus(list).map_err(|why| wrong(&why))?;
        self.step(|state, _| state.may_set())?;
        self.shared.cpus.dedicate(self.number, &self.rules.online, &cpus)?;
        // A program that was started meanwhile may have missed them. The session owns them nevertheless.
        self.with(|state, _| {
            state.may_set()?;
            state.cpus = cpus;
            Ok(())
        })
    }

    /// Checks that a program can be run, and returns it.
    fn exec(&self, words: &[&str]) -> Result<ProgramSpec> {
        self.with(|state, _| {
            match state.phase {
                SessionPhase::Idle => {}
                SessionPhase::Wiped => return Err(over()),
                _ => return Err(busy("a session runs one program, once: another one is made by clone")),
            }
            let argv = list(&state.argv, "argv")?;
            let env = list(&state.env, "env")?.into_iter().map(|word| match word.split_once('=') {
                Some((name, value)) if !name.is_empty() && !word.contains('\0') => {
                    Ok((name.into(), value.into()))
                }
                _ => Err(wrong(&format!("env: `{}`: write NAME=VALUE", word.escape_debug()))),
            });
            let env = env.collect::<Result<Vec<_>>>()?;
            let (path, words) = match *words {
                [] => match state.file {
                    ExecFileState::None => return Err(nothing()),
                    ExecFileState::Writing => return Err(busy("exec is open still: close it first")),
                    ExecFileState::Written => {
                        (None, if argv.is_empty() { vec!["exec".into()] } else { argv })
                    }
                },
                [path] => (Some(path.to_owned()), if argv.is_empty() { vec![path.into()] } else { argv }),
                [path, ..] => (Some(path.to_owned()), words.iter().map(|&word| word.into()).collect()),
            };
            if words.iter().any(|word| word.contains('\0')) {
                return Err(wrong("argv: a word has a zero in it"));
            }
            state.phase = SessionPhase::Starting;
            // An earlier `kill` had no process to end.
            state.kill = false;
            state.program = path.as_deref().unwrap_or("exec").into();
            state.failed = Box::default();
            Ok(ProgramSpec { path, words, env })
        })
    }

    /// Records why a program does not run.
    pub(super) fn failed(&self, error: &Error) {
        self.with(|state, answers| {
            if state.phase == SessionPhase::Starting {
                state.phase = SessionPhase::Idle;
            }
            state.failed = error.to_string().into();
            state.pid = None;
            if state.is_over() {
                state.refuse(answers);
            }
        });
    }

    /// Returns the contents of `argv` or `env`.
    pub(super) fn words(&self, of: WordListKind) -> Bytes {
        self.step(|state, _| of.of(state).clone().into())
    }

    /// Writes to `argv` or `env`.
    pub(super) fn write(&self, of: WordListKind, ask: Ask) {
        let done = self.with(|state, _| {
            state.may_set()?;
            let words = of.of(state);
            let at = usize::try_from(ask.offset).unwrap_or(usize::MAX);
            match at {
                0 => words.clear(),
                at if at != words.len() => {
                    return Err(wrong(&format!(
                        "it has {} bytes: write behind them, or anew from 0",
                        words.len()
                    )));
                }
                _ => {}
            }
            if words.len() + ask.data.len() > WORDS_MAX {
                return Err(Error::new(Errno::E2BIG, format!("it has at most {WORDS_MAX} bytes")));
            }
            words.extend_from_slice(&ask.data);
            Ok(())
        });
        ask.done(done);
    }

    /// Marks the program's file as being written. Returns its length if announced.
    pub(super) fn begin_program(&self) -> Result<Option<u64>> {
        self.with(|state, _| {
            state.may_write()?;
            state.file = ExecFileState::Writing;
            Ok(state.length)
        })
    }

    /// Records the end of the upload. An incomplete program may be written again.
    pub(super) fn end_program(&self, is_whole: bool) {
        self.with(|state, _| {
            state.file = if is_whole { ExecFileState::Written } else { ExecFileState::None }
        });
    }

    pub(super) fn open_input(&self) -> Result<()> {
        self.with(|state, _| {
            let inputs = state.inputs.as_mut();
            *inputs.ok_or_else(|| Error::new(Errno::EPIPE, "the input has ended"))? += 1;
            Ok(())
        })
    }

    pub(super) fn close_input(&self) {
        self.with(|state, _| state.inputs = state.inputs.map(|inputs| inputs - 1).filter(|&left| left > 0));
    }

    /// Queues a write of `stdin`.
    pub(super) fn input(&self, ask: Ask) {
        self.with(|state, answers| match state.phase {
            SessionPhase::Finished(_) | SessionPhase::Wiped => answers.fail([ask], &over()),
            _ if state.inputs.is_none() => answers.fail([ask], &over()),
            _ if state.writes.len() >= WAITING_MAX => answers.fail([ask], &crowded()),
            _ => state.writes.push_back(ask),
        });
    }

    /// Queues a read of `stdout` or `stderr`.
    pub(super) fn output(&self, which: usize, ask: Ask) {
        self.with(|state, answers| match state.phase {
            _ if state.are_over[which] || state.phase == SessionPhase::Wiped => {
                answers.read([ask], &Bytes::new())
            }
            _ if state.reads[which].len() >= WAITING_MAX => answers.fail([ask], &crowded()),
            _ => state.reads[which].push_back(ask),
        });
    }

    /// Queues a read of `wait`.
    pub(super) fn wait(&self, ask: Ask) {
        self.with(|state, answers| match state.phase {
            SessionPhase::Finished(end) => answers.whole([ask], &line(end)),
            SessionPhase::Wiped => answers.fail([ask], &over()),
            _ if state.waiting.len() >= WAITING_MAX => answers.fail([ask], &crowded()),
            _ => state.waiting.push_back(ask),
        });
    }

    pub(super) fn cancel(&self, id: ReqId) {
        self.with(|state, answers| {
            let gone: Error = Errno::EINTR.into();
            if let Some(at) = state.writes.iter().position(|ask| ask.id() == id) {
                let sent = if at == 0 { std::mem::take(&mut state.sent) } else { 0 };
                let ask = state.writes.remove(at);
                return if sent > 0 { answers.wrote(ask, sent) } else { answers.fail(ask, &gone) };
            }
            let [out, err] = &mut state.reads;
            for queue in [out, err, &mut state.waiting] {
                if let Some(at) = queue.iter().position(|ask| ask.id() == id) {
                    answers.fail(queue.remove(at), &gone);
                }
            }
        });
    }

    pub(super) fn status(&self) -> String {
        self.step(|state, _| {
            let mut text = match state.phase {
                SessionPhase::Idle | SessionPhase::Starting => "Initializing".into(),
                SessionPhase::Running => "Running".into(),
                SessionPhase::Finished(end) => format!("Finished {end}"),
                SessionPhase::Wiped => "Wiped".into(),
            };
            let SessionLimits { memory, cpu, processes } = state.limits;
            let kind = if state.is_persistent { "persistent" } else { "normal" };
            let channel = if state.channel { "on" } else { "off" };
            let whose = quote::quote(&self.whose.who.name);
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                " user {whose} type {kind} channel {channel} most {memory} processes {processes}"
            );
            let _ = cpu.map_or(Ok(()), |cpu| write!(text, " cpu {cpu}"));
            if !state.cpus.is_empty() {
                let _ = write!(text, " cpus {}", cpu_list(&state.cpus));
            }
            if !state.program.is_empty() {
                let _ = write!(text, " program {}", quote::quote(&state.program));
            }
            let _ = state.pid.map_or(Ok(()), |pid| write!(text, " pid {}", pid.as_raw_nonzero()));
            if !state.confined.is_empty() {
                let _ = write!(text, " confined {}", state.confined);
            }
            let _ =
                write!(text, " dir {}", quote::quote(&self.shared.place(self.number).display().to_string()));
            if !state.failed.is_empty() {
                let _ = write!(text, " failed {}", quote::quote(&state.failed));
            }
            text + "\n"
        })
    }
}

impl Drop for PartSession {
    fn drop(&mut self) {
        self.shared.forget(self.number);
    }
}

impl SessionState {
    /// Returns whether no client can ask for anything any more.
    pub(super) fn is_over(&self) -> bool {
        self.phase == SessionPhase::Wiped || self.opens.is_none()
    }

    fn may_set(&self) -> Result<()> {
        match self.phase {
            SessionPhase::Idle => Ok(()),
            SessionPhase::Wiped => Err(over()),
            _ => Err(busy("that is said before the program runs")),
        }
    }

    /// Checks that its program may be written.
    fn may_write(&self) -> Result<()> {
        self.may_set()?;
        match self.file {
            ExecFileState::None => Ok(()),
            ExecFileState::Writing => Err(busy("exec is being written")),
            ExecFileState::Written => {
                Err(Error::new(Errno::EEXIST, "exec was written already: it is written once"))
            }
        }
    }

    fn control(&mut self, words: &[&str]) -> Result<()> {
        match *words {
            ["signal", name] => {
                let number = name.parse().ok();
                let of =
                    |(known, signal): &&(&str, Signal)| *known == name || Some(signal.as_raw()) == number;
                let signal = SIGNALS.iter().find(of).map(|(_, signal)| *signal);
                let signal =
                    signal.ok_or_else(|| wrong(&format!("`{name}`: write TERM, INT, KILL, HUP ...")))?;
                let pid = self.pid.ok_or_else(|| Error::new(Errno::ESRCH, "no program runs"))?;
                kill_process_group(pid, signal).map_err(|error| error_of(&error.into()))
            }
            ["kill"] => {
                self.kill = true;
                Ok(())
            }
            ["key", key] if is_key(key) => {
                self.may_set()?;
                self.key = Some(key.into());
                Ok(())
            }
            ["length", n] => {
                self.may_write()?;
                let n = n.parse().map_err(|_| wrong(&format!("`{n}` is no length")))?;
                self.length = if n > EXEC_MAX { return Err(too_big()) } else { Some(n) };
                Ok(())
            }
            ["close"] => {
                self.inputs = None;
                Ok(())
            }
            ["memory", size] => {
                self.may_set()?;
                let size = policy::size(size).map_err(|why| wrong(&why))?;
                lower(&mut self.limits.memory, size, "memory")
            }
            ["processes", n] => {
                self.may_set()?;
                let n = policy::processes(n).map_err(|why| wrong(&why))?;
                lower(&mut self.limits.processes, n, "processes")
            }
            ["cpu", seconds] => {
                self.may_set()?;
                let mut cpu = self.limits.cpu.unwrap_or(u64::MAX);
                lower(&mut cpu, policy::seconds(seconds).map_err(|why| wrong(&why))?, "cpu")?;
                self.limits.cpu = Some(cpu);
                Ok(())
            }
            ["channel", how @ ("on" | "off")] => {
                self.may_set()?;
                self.channel = how == "on";
                Ok(())
            }
            ["wait", how] => {
                self.may_set()?;
                self.waits = Waits::of(how).ok_or_else(|| wrong("write wait poll, interrupt or adaptive"))?;
                Ok(())
            }
            _ => {
                let shown: String = words.join(" ").escape_debug().take(ERROR_WORD_LEN_MAX).collect();
                Err(wrong(&format!("`{shown}`: write {KNOWN}")))
            }
        }
    }

    /// Kills the program and ends the session.
    fn wipe(&mut self, answers: &mut SessionAnswers) {
        self.kill = true;
        self.is_persistent = false;
        self.phase = SessionPhase::Wiped;
        self.refuse(answers);
    }

    /// Answers all waiting requests: reads of output with its end, the others with an error.
    pub(super) fn refuse(&mut self, answers: &mut SessionAnswers) {
        let [out, err] = &mut self.reads;
        answers.read(out.drain(..).chain(err.drain(..)), &Bytes::new());
        answers.fail(self.writes.drain(..).chain(self.waiting.drain(..)), &over());
        self.sent = 0;
    }

    /// Records the end of the program.
    pub(super) fn finish(&mut self, end: ProgramExit, answers: &mut SessionAnswers) {
        self.pid = None;
        if self.phase != SessionPhase::Wiped {
            self.phase = SessionPhase::Finished(end);
        }
        answers.whole(self.waiting.drain(..), &line(end));
        answers.fail(self.writes.drain(..), &over());
        self.sent = 0;
    }

    /// Returns whether the program's input must be closed after the queued writes.
    pub(super) fn input_ends(&self) -> bool {
        self.inputs.is_none()
    }
}

/// A file of words.
#[derive(Clone, Copy)]
pub(super) enum WordListKind {
    Argv,
    Env,
}

impl WordListKind {
    fn of(self, state: &mut SessionState) -> &mut Vec<u8> {
        match self {
            Self::Argv => &mut state.argv,
            Self::Env => &mut state.env,
        }
    }
}

/// Writes data to the program's file at an offset. Fails beyond the announced length.
pub(super) fn store(file: &File, length: Option<u64>, offset: u64, data: &[u8]) -> Result<()> {
    let end = offset.saturating_add(data.len() as u64);
    if end > EXEC_MAX {
        return Err(too_big());
    }
    if let Some(length) = length.filter(|&length| end > length) {
        return Err(wrong(&format!("it was to have {length} bytes")));
    }
    std::os::unix::fs::FileExt::write_all_at(file, data, offset).map_err(|error| error_of(&error))
}

fn too_big() -> Error {
    Error::new(Errno::EFBIG, format!("a program has at most {} MiB", EXEC_MAX >> 20))
}

fn nothing() -> Error {
    Error::new(Errno::ENOENT, "no program was written to exec, or not all of it")
}

pub(super) fn error_of(error: &io::Error) -> Error {
    let errno = error.raw_os_error().and_then(|number| u32::try_from(number).ok()).map(Errno);
    let text = error.to_string();
    let text = text.split(" (os error ").next().unwrap_or_default();
    Error::new(errno.unwrap_or(Errno::EIO), text.to_owned())
}

fn line(end: ProgramExit) -> Bytes {
    format!("{end}\n").into()
}

/// Returns the one control message of a write.
fn text(ask: &Ask) -> Result<&str> {
    if ask.data.len() > TEXT_MAX {
        return Err(wrong(&format!("a control request has at most {TEXT_MAX} bytes")));
    }
    match *ask.lines()? {
        [] => Ok(""),
        [line] => Ok(line),
        _ => Err(wrong("one control request at a time")),
    }
}

fn list(bytes: &[u8], of: &str) -> Result<Vec<String>> {
    let text = std::str::from_utf8(bytes).map_err(|_| wrong(&format!("{of}: this is no text")))?;
    let words = quote::words(text).map_err(|error| wrong(&format!("{of}: {error}")))?;
    match words.len() {
        0..=WORD_COUNT_MAX => Ok(words),
        n => Err(Error::new(Errno::E2BIG, format!("{of}: {n} words, and {WORD_COUNT_MAX} are the most"))),
    }
}

fn lower(limit: &mut u64, to: u64, of: &str) -> Result<()> {
    if to > *limit {
        return Err(Error::new(Errno::EPERM, format!("{of}: it is {limit}, and may only be lowered")));
    }
    *limit = to;
    Ok(())
}

/// Returns whether a key is long enough to be unguessable, and consists of letters and digits.
fn is_key(word: &str) -> bool {
    (16..=64).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn positive(word: &str) -> Result<u64> {
    word.parse().ok().filter(|&n| n > 0).ok_or_else(|| wrong(&format!("`{word}` is no number above 0")))
}

pub(super) fn wrong(text: &str) -> Error {
    Error::new(Errno::EINVAL, text)
}

pub(super) fn busy(text: &str) -> Error {
    Error::new(Errno::EBUSY, text)
}

/// The error for a session that has ended.
pub(super) fn over() -> Error {
    Error::new(Errno::EPIPE, "it is over")
}

fn crowded() -> Error {
    Error::new(Errno::EAGAIN, format!("{WAITING_MAX} wait here already"))
}

/// Control messages that the key allows.
const BY_KEY: [&str; 2] = ["length", "clone"];
const KNOWN: &str = "exec [PATH [WORD...]], length N, signal NAME, kill, close, type normal, type persistent, wipe, \
     memory SIZE, cpu SECONDS, processes N, cpus LIST, channel on, channel off, wait HOW, key WORD, \
     clone N ADDR/SESSION.KEY...";
const SIGNALS: [(&str, Signal); 16] = [
    ("TERM", Signal::TERM),
    ("INT", Signal::INT),
    ("KILL", Signal::KILL),
    ("HUP", Signal::HUP),
    ("QUIT", Signal::QUIT),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("STOP", Signal::STOP),
    ("CONT", Signal::CONT),
    ("WINCH", Signal::WINCH),
    ("SEGV", Signal::SEGV),
    ("ABRT", Signal::ABORT),
    ("PIPE", Signal::PIPE),
    ("XCPU", Signal::XCPU),
    ("XFSZ", Signal::XFSZ),
    ("SYS", Signal::SYS),
];
/// The maximum length of a control message in bytes.
const TEXT_MAX: usize = 32 << 10;
/// The maximum length of an unknown message in its error.
const ERROR_WORD_LEN_MAX: usize = 64;
/// The maximum length of `argv` and of `env` in bytes, and their maximum number of words.
const WORDS_MAX: usize = 128 << 10;
const WORD_COUNT_MAX: usize = 4096;
/// The maximum length of a program in bytes.
const EXEC_MAX: u64 = 256 << 20;
/// The maximum number of requests waiting at one file.
const WAITING_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_one_line() {
        let end = ProgramExit { how: Ok(3), times: [1, 2, 30], memory: 4096, limit: None };
        assert_eq!(&*line(end), b"exit 3 user 1 system 2 real 30 memory 4096\n");
        let end = ProgramExit { how: Err(9), memory: 0, limit: Some("memory"), ..end };
        assert_eq!(end.to_string(), "signal KILL user 1 system 2 real 30 memory 0 limit memory");
        assert!(ProgramExit { how: Err(34), ..end }.to_string().starts_with("signal 34 "));
    }

    #[test]
    fn limits_are_lowered_and_never_raised() {
        let mut limit = 10;
        assert!(lower(&mut limit, 11, "memory").is_err() && lower(&mut limit, 10, "memory").is_ok());
        assert!(lower(&mut limit, 3, "memory").is_ok() && lower(&mut limit, 4, "memory").is_err());
    }

    #[test]
    fn words_are_text_and_not_too_many() {
        assert_eq!(list(b"sh -c 'echo a b'\n", "argv").unwrap(), ["sh", "-c", "echo a b"]);
        assert!(list(&[0xff], "argv").unwrap_err().to_string().contains("no text"));
        assert!(list(b"'x", "env").unwrap_err().to_string().starts_with("env: "));
        assert_eq!(list("x ".repeat(5000).as_bytes(), "argv").unwrap_err().errno, Errno::E2BIG);
    }
}
