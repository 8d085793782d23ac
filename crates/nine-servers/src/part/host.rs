//! The task of one program, from `exec` until no client can ask for it any more.
//!
//! In: the program to run, and requests on the session's files. Out: a launched process, its input and output, its
//! end. No process of it is left behind.

use std::fs::{self, File};
use std::future::{Future, poll_fn};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nine_io::channel::serve_all;
use nine_io::server::Service;
use nine_io::synth::Ask;
use nine_net::lock::{Mutex, lock};
use nine_net::shm::{Channel, Kind, LINES, Layout, PAGES};
use nine_net::{Env, Peer, Proof, Socket, Timer, Transport, Waited};
use nine_proto::{Errno, Error, Result};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::cgroup::{CgroupUsage, SessionCgroup};
use super::launch::{LaunchPlan, LaunchedProcess, is_program};
use super::session::{
    PartSession, ProgramExit, SessionAnswers, SessionOwner, SessionPhase, SessionState, error_of, over,
};
use super::{PartShared, Pieces, ProgramSpec, Spread, Start};

/// Runs a program. The request is answered when it runs, or with the reason why it does not.
pub(super) async fn run(env: impl Env + Clone, session: Arc<PartSession>, exec: ProgramSpec, ask: Ask) {
    let shown = shown(&exec.words);
    // A client with the session's key may differ from the session's creator.
    let asks = SessionOwner::of(&ask.visitor);
    let mut program = match begin(&env, &session, exec).await {
        Ok(program) => program,
        Err(error) => {
            let (user, proof) = (&asks, &asks.proof);
            tracing::info!(session = session.number, %user, %proof, words = %shown, "not started: {error}");
            session.failed(&error);
            return ask.fail(error);
        }
    };
    let limits = session.step(|state, _| state.limits);
    let (user, proof, name) = (&asks, &asks.proof, &program.name);
    tracing::info!(
        session = session.number, %user, %proof, program = %name, words = %shown, pid = program.pid.as_raw_nonzero(),
        runs_as = %session.shared.user_name, memory = limits.memory, cpu = limits.cpu, processes = limits.processes,
        confined = %program.confined, "started"
    );
    let began = env.now();
    session.with(|state, _| {
        // A session that was wiped meanwhile stays wiped.
        if state.phase == SessionPhase::Starting {
            state.phase = SessionPhase::Running;
        }
        (state.pid, state.confined) = (Some(program.pid), program.confined.clone().into());
    });
    ask.done(Ok(()));
    let mut piece = vec![0; OUTPUT_READ_MAX];
    poll_fn(|cx| program.poll_end(cx, &env, &session, &mut piece)).await;
    let end = program.reap(&session, env.now() - began).await;
    tracing::info!(session = session.number, user = %session.whose, program = %program.name, "ended: {end}");
    session.with(|state, answers| state.finish(end, answers));
    program.has_ended = true;
    poll_fn(|cx| program.poll_rest(cx, &session, &mut piece)).await;
}

/// Sends a session's program to other servers, in pieces.
pub(super) async fn spread(session: Arc<PartSession>, most: usize, to: Vec<String>, ask: Ask) {
    let done = give(&session, most, to, &ask).await;
    session.given();
    ask.done(done);
}

async fn give(session: &PartSession, most: usize, to: Vec<String>, ask: &Ask) -> Result<()> {
    let (shared, number) = (session.shared.clone(), session.number);
    let spread = shared.outside.spread.as_ref().ok_or(Errno::EOPNOTSUPP)?;
    let path = shared.dir(number).join("exec");
    let opened = aside(&shared, number, move || {
        let file = File::open(path)?;
        Ok((file.metadata()?.len(), Arc::new(file)))
    });
    let (length, file) = opened.await.map_err(|error: io::Error| error_of(&error))?;
    let asks = SessionOwner::of(&ask.visitor);
    let (user, proof) = (&asks, &asks.proof);
    tracing::info!(session = number, %user, %proof, to = %shown(&to), "its program is given to others");
    let of = shared.clone();
    let pieces: Pieces = Box::new(move |at| {
        let (of, file) = (of.clone(), file.clone());
        let read = move || {
            let mut piece = vec![0; UPLOAD_WRITE_LEN];
            let n = file.read_at(&mut piece, at)?;
            piece.truncate(n);
            Ok(piece)
        };
        Box::pin(async move { aside(&of, number, read).await })
    });
    let done = spread(Spread { length, pieces, most, to }).await;
    done.map_err(|why| Error::new(Errno::EIO, why))
}

/// A process, with our ends of its pipes.
struct RunningProgram {
    name: String,
    child: Child,
    pid: Pid,
    /// Ready when the process has ended.
    ending: Waited,
    confined: String,
    /// `None`: its input is closed.
    input: Option<Waited>,
    /// `None`: at the end of the output.
    outputs: [Option<Waited>; 2],
    group: SessionCgroup,
    /// The time of the next check of its limits.
    look: Option<Timer>,
    cpu: Option<u64>,
    limit: Option<&'static str>,
    is_killed: bool,
    has_ended: bool,
}

/// The state prepared before the process is started.
struct PreparedLaunch {
    plan: LaunchPlan,
    group: SessionCgroup,
    name: String,
}

async fn begin(env: &impl Env, session: &Arc<PartSession>, exec: ProgramSpec) -> Result<RunningProgram> {
    let shared = &session.shared;
    let (limits, is_channel, waits) = session.step(|state, _| (state.limits, state.channel, state.waits));
    let ready = {
        let of = session.clone();
        aside(shared, session.number, move || prepare(&of, exec, &limits, is_channel)).await
    };
    let PreparedLaunch { mut plan, group, name } = ready?;
    let ended = |group: &SessionCgroup| {
        let (group, cpus, number) = (group.clone(), shared.cpus.clone(), session.number);
        shared.end(number, move || {
            cpus.leaves(number);
            group.end();
        });
    };
    let channel = match is_channel {
        false => None,
        true => match (shared.outside.serves)() {
            None => {
                ended(&group);
                return Err(Error::new(Errno::EIO, "nothing is served any more that a channel could show"));
            }
            Some(service) => {
                // The program has the identity of the session's creator, but never the owner's rights.
                let service = Service { known: Some(Arc::new(session.whose.who.clone())), ..service };
                let opened = (|| {
                    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
                    let addr = format!("part!{}", session.number);
                    let peer = Peer { addr, proof: session.whose.who.proof.clone() };
                    let layout = Layout::new(Kind::GuestAsks, LINES, PAGES, "");
                    let (channel, given) = Channel::open(layout, waits, ours.into(), peer)?;
                    Ok((channel, given.to_send(theirs.into())))
                })();
                let opened = opened.map_err(|error: io::Error| error_of(&error));
                let (channel, given) = opened.inspect_err(|_| ended(&group))?;
                env.spawn(Box::pin(async move { drop(serve_all(&service, channel).await) }));
                Some(given)
            }
        },
    };
    plan.channel = channel.is_some();
    let (put, launched) = later();
    shared.launcher.start(plan, channel, put);
    let launched = match launched.await {
        Ok(launched) => become_program(env, session, launched).await.map_err(|error| {
            // The kernel gives no error when it kills for lack of memory.
            match group.used().is_short || error.errno == Errno::EIO && limits.memory < LAUNCH_MEMORY_MIN {
                true => {
                    let text = format!("memory {}: no program begins with so little", limits.memory);
                    Error::new(Errno::ENOMEM, text)
                }
                false => error,
            }
        }),
        Err(error) => Err(error_of(&error)),
    };
    let (child, pid, StartedProcess { mut confined, ending, input, outputs }) =
        launched.inspect_err(|_| ended(&group))?;
    for word in ["memory", "pids", "cpuset"].iter().filter(|of| group.has(of)) {
        confined = confined + "," + word;
    }
    if group.kills() {
        confined += ",kill";
    }
    let looks = limits.cpu.is_some() && group.counts() || group.has("memory");
    let look = looks.then(|| env.sleep_until(env.now() + LIMIT_CHECK_INTERVAL));
    let (is_killed, has_ended, limit) = (false, false, None);
    let cpu = limits.cpu;
    Ok(RunningProgram {
        name,
        child,
        pid,
        ending,
        confined,
        input,
        outputs,
        group,
        look,
        cpu,
        limit,
        is_killed,
        has_ended,
    })
}

/// The state available once the process is the program.
struct StartedProcess {
    confined: String,
    ending: Waited,
    input: Option<Waited>,
    outputs: [Option<Waited>; 2],
}

/// Waits until a process has become the program. A process that fails to is killed.
async fn become_program(
    env: &impl Env,
    session: &PartSession,
    launched: LaunchedProcess,
) -> Result<(Child, Pid, StartedProcess)> {
    let LaunchedProcess { mut child, says, ends: [input, output, error] } = launched;
    let pid = Pid::from_child(&child);
    let open = |confined| -> io::Result<StartedProcess> {
        let ending = Waited::reading(pidfd_open(pid, PidfdFlags::empty())?)?;
        let outputs = [Some(Waited::reading(output)?), Some(Waited::reading(error)?)];
        Ok(StartedProcess { confined, ending, input: Some(Waited::writing(input)?), outputs })
    };
    let parts = hear(env, says).await.and_then(|confined| open(confined).map_err(|error| error_of(&error)));
    match parts {
        Ok(parts) => Ok((child, pid, parts)),
        Err(error) => {
            // It has ended, or has not become the program.
            let _ = child.kill();
            session.shared.end(session.number, move || drop(child.wait()));
            Err(error)
        }
    }
}

/// Checks and creates everything that is needed before the process. Waits for the disk.
fn prepare(
    session: &PartSession,
    mut exec: ProgramSpec,
    limits: &super::policy::SessionLimits,
    channel: bool,
) -> Result<PreparedLaunch> {
    let of = |error: io::Error| error_of(&error);
    let PartSession { shared, number, rules, .. } = session;
    let (number, policy) = (*number, &rules.policy);
    let dir = shared.make(number).map_err(of)?;
    let file = exec.path.is_none().then(|| shared.dir(number).join("exec"));
    let mut plan = LaunchPlan {
        parent: std::process::id(),
        words: std::mem::take(&mut exec.words),
        dir: text(&dir)?,
        user: shared.user,
        programs: policy.programs.clone(),
        reads: policy.reads.clone(),
        writes: vec![text(&dir)?],
        network: policy.network,
        strict: policy.strict,
        ..LaunchPlan::default()
    };
    plan.program = match (&file, exec.path.take()) {
        (Some(file), _) => text(file)?,
        (None, path) => path.unwrap_or_default(),
    };
    if let Some(file) = &file {
        let head = head(file).map_err(of)?;
        if is_image(file).map_err(of)? {
            let machines = shared.outside.machines.as_ref();
            let machines = machines.ok_or_else(|| {
                Error::new(Errno::EOPNOTSUPP, "this is the image of a machine, and machines are not run here")
            })?;
            let start = Start { words: &plan.words, env: &exec.env, memory: limits.memory, channel };
            let machine = machines.machine(file, &start).map_err(of)?;
            plan.programs.extend(machine.rights.programs);
            plan.reads.extend(machine.rights.reads);
            plan.writes.extend(machine.rights.writes);
            (plan.program, plan.words) = (text(&machine.program)?, machine.words);
            // The environment is among the machine's arguments. QEMU itself gets none of it.
            exec.env.clear();
        } else if !is_program(&head) {
            let name = plan.words.first().unwrap_or(&plan.program);
            return Err(Error::new(Errno::ENOEXEC, format!("{name}: this is no program")));
        }
    }
    plan.programs.extend(file.as_deref().map(text).transpose()?);
    plan.env = vec![
        ("PATH".into(), PATH.into()),
        ("HOME".into(), plan.dir.clone()),
        ("TMPDIR".into(), plan.dir.clone()),
        ("NINEFOLD_PART".into(), number.to_string()),
    ];
    plan.env.extend(exec.env);
    let cpus = shared.cpus.of(number, &rules.online)?;
    let list = super::policy::cpu_list(&cpus);
    let group = shared.groups.make(&format!("{}-{number}", shared.name), limits, Some(&list));
    shared.cpus.joins(number, &rules.online, &group);
    plan.joins = group.joins();
    if !group.has("cpuset") && (shared.groups.has_cpus() || policy.cpus.is_some()) {
        (plan.cpus, plan.stays) = (cpus.into_iter().collect(), true);
    }
    plan.cpu = limits.cpu;
    plan.space = (!group.has("memory")).then_some(limits.memory);
    plan.processes = (!group.has("pids")).then_some(limits.processes);
    if policy.strict
        && let Some(lacks) =
            ["memory", "pids"].iter().find(|of| !group.has(of)).or((!group.kills()).then_some(&"kill"))
    {
        shared.cpus.leaves(number);
        group.end();
        return Err(Error::new(Errno::EOPNOTSUPP, format!("strict: no control group has {lacks} here")));
    }
    Ok(PreparedLaunch { name: plan.program.clone(), plan, group })
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str().map(Into::into);
    text.ok_or_else(|| Error::new(Errno::EINVAL, "the directory of sessions has a name that is no text"))
}

/// Returns whether a file is a machine image.
fn is_image(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    Ok(crate::machine::image_end(&file, len)?.is_some())
}

/// Returns the start of a program, which determines its type.
fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(PROGRAM_HEAD_LEN).read_to_end(&mut head)?;
    Ok(head)
}

/// Reads the launcher's messages until it is the program. Returns the confinement.
async fn hear(env: &impl Env, says: std::os::unix::net::UnixStream) -> Result<String> {
    let of = |error: io::Error| error_of(&error);
    says.set_nonblocking(true).map_err(of)?;
    let peer = Peer { addr: "launcher".into(), proof: Proof::None };
    let mut socket = Socket::from_parts(says.into(), peer).map_err(of)?;
    let mut late = env.sleep_until(env.now() + EXEC_TIMEOUT);
    let (mut said, mut piece) = (Vec::new(), [0; 1024]);
    loop {
        let came = poll_fn(|cx| match socket.poll_read(cx, &mut piece) {
            Poll::Pending if late.as_mut().poll(cx).is_ready() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
            Poll::Ready(came) => Poll::Ready(Some(came)),
        });
        match came.await {
            None => return Err(Error::new(Errno::ETIMEDOUT, "it has not begun to run in 10 s")),
            Some(Ok(0) | Err(_)) => break,
            Some(Ok(n)) => said.extend_from_slice(&piece[..n]),
        }
    }
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().last().unwrap_or_default();
    if let Some((number, text)) = last.strip_prefix("failed ").and_then(|rest| rest.split_once(' ')) {
        let errno = number.parse().map_or(Errno::EIO, Errno);
        let why = io::Error::from_raw_os_error(number.parse().unwrap_or(libc::EIO));
        let text = if text.contains(": ") { text.into() } else { format!("{text}: {}", error_of(&why)) };
        return Err(Error::new(errno, text));
    }
    let confined = last.strip_prefix("confined ");
    let confined = confined.ok_or_else(|| Error::new(Errno::EIO, "the launcher has ended without a word"))?;
    for (word, what) in [("landlock", "Landlock"), ("seccomp", "seccomp")] {
        if !confined.split(' ').any(|of| of == word) {
            tracing::warn!("this kernel has no {what}: programs are confined without it");
        }
    }
    Ok(confined.replace(' ', ","))
}

impl RunningProgram {
    /// Moves input and output until the process has ended.
    fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
        env: &impl Env,
        session: &PartSession,
        piece: &mut [u8],
    ) -> Poll<()> {
        session.step(|state, answers| {
            state.task = Some(cx.waker().clone());
            self.feed(cx, state, answers);
            self.drain(cx, state, piece, answers);
            let wants = state.kill || state.is_over();
            if wants && !self.is_killed {
                self.kill(session);
            }
        });
        while let Some(look) = &mut self.look {
            if look.as_mut().poll(cx).is_pending() {
                break;
            }
            self.look = Some(env.sleep_until(env.now() + LIMIT_CHECK_INTERVAL));
            let CgroupUsage { user, system, is_short, .. } = self.group.used();
            let is_late = self.cpu.is_some_and(|cpu| user + system >= cpu.saturating_mul(1_000_000));
            if (is_short || is_late) && !self.is_killed {
                self.limit = Some(if is_short { "memory" } else { "cpu" });
                self.kill(session);
            }
        }
        self.ending.poll_readable(cx).map(drop)
    }

    /// After the process has ended, serves its remaining output until it is used up or no client can read it.
    fn poll_rest(&mut self, cx: &mut Context<'_>, session: &PartSession, piece: &mut [u8]) -> Poll<()> {
        session.step(|state, answers| {
            state.task = Some(cx.waker().clone());
            self.input = None;
            self.drain(cx, state, piece, answers);
            if state.is_over() {
                state.refuse(answers);
                state.are_over = [true; 2];
                return Poll::Ready(());
            }
            if state.are_over == [true; 2] { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    fn feed(&mut self, cx: &mut Context<'_>, state: &mut SessionState, answers: &mut SessionAnswers) {
        while let (Some(input), Some(ask)) = (&mut self.input, state.writes.front()) {
            match input.poll_write(cx, &ask.data[state.sent..]) {
                Poll::Pending => return,
                Poll::Ready(Ok(n)) => {
                    state.sent += n;
                    if state.sent == ask.data.len() {
                        let sent = std::mem::take(&mut state.sent);
                        let ask = state.writes.pop_front();
                        answers.wrote(ask, sent);
                    }
                }
                // The program has closed its input.
                Poll::Ready(Err(_)) => self.input = None,
            }
        }
        if self.input.is_none() {
            answers.fail(state.writes.drain(..), &over());
            state.sent = 0;
        }
        if state.input_ends() {
            self.input = None;
        }
    }

    fn drain(
        &mut self,
        cx: &mut Context<'_>,
        state: &mut SessionState,
        piece: &mut [u8],
        answers: &mut SessionAnswers,
    ) {
        for (at, place) in self.outputs.iter_mut().enumerate() {
            while let (Some(output), Some(ask)) = (&mut *place, state.reads[at].front()) {
                let room = piece.len().min(ask.count as usize);
                let came = match self.has_ended {
                    false => output.poll_read(cx, &mut piece[..room]),
                    // The program has ended, so a read returns the rest without waiting.
                    true => {
                        Poll::Ready(rustix::io::read(output.as_fd(), &mut piece[..room]).map_err(Into::into))
                    }
                };
                match came {
                    Poll::Pending => break,
                    Poll::Ready(Ok(n @ 1..)) => {
                        let ask = state.reads[at].pop_front();
                        answers.read(ask, &Bytes::copy_from_slice(&piece[..n]));
                    }
                    Poll::Ready(_) => *place = None,
                }
            }
            if place.is_none() {
                state.are_over[at] = true;
                answers.read(state.reads[at].drain(..), &Bytes::new());
            }
        }
    }

    /// Kills it and all processes it has started, on another thread, since the kernel may be slow.
    fn kill(&mut self, session: &PartSession) {
        self.is_killed = true;
        let (group, pid) = (self.group.clone(), self.pid);
        // The process has not been reaped, so its process group id is not reused.
        let _ = kill_process_group(pid, Signal::KILL);
        session.shared.end(session.number, move || group.kill());
    }

    /// Reaps the process after it has ended, kills its other processes, and returns how it ended.
    async fn reap(&mut self, session: &PartSession, real: Duration) -> ProgramExit {
        let stat =
            fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero())).unwrap_or_default();
        // Kills the rest of the process group while the id is still reserved.
        let _ = kill_process_group(self.pid, Signal::KILL);
        session.step(|state, _| state.pid = None);
        let status = self.child.wait();
        let (group, cpus, number) = (self.group.clone(), session.shared.cpus.clone(), session.number);
        let (put, used) = later();
        session.shared.end(number, move || {
            group.kill();
            let used = group.used();
            cpus.leaves(number);
            group.end();
            put(used);
        });
        let used = used.await;
        let how = match status {
            Ok(status) => {
                use std::os::unix::process::ExitStatusExt;
                status.code().ok_or_else(|| status.signal().unwrap_or_default())
            }
            Err(_) => Ok(255),
        };
        let [user, system] = match self.group.counts() {
            true => [used.user / 1000, used.system / 1000],
            false => times(&stat),
        };
        let limit = match how {
            _ if self.limit.is_some() => self.limit,
            _ if used.is_short => Some("memory"),
            Err(libc::SIGXCPU) => Some("cpu"),
            Err(libc::SIGKILL)
                if self.cpu.is_some_and(|cpu| user + system >= cpu.saturating_mul(1000))
                    && !self.is_killed =>
            {
                Some("cpu")
            }
            _ => None,
        };
        let real = u64::try_from(real.as_millis()).unwrap_or(u64::MAX);
        ProgramExit { how, times: [user, system, real], memory: used.memory, limit }
    }
}

/// Returns milliseconds of user and system time of a process and its reaped children, from its line in /proc.
fn times(stat: &str) -> [u64; 2] {
    // The process name may contain any characters.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: Vec<u64> =
        rest.split_whitespace().skip(11).take(4).filter_map(|word| word.parse().ok()).collect();
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    match ticks[..] {
        [user, system, users, systems] => [user + users, system + systems].map(|n| n * 1000 / per_second),
        _ => [0; 2],
    }
}

/// Formats words for the log: shortened, on one line.
fn shown(words: &[String]) -> String {
    let mut shown = String::new();
    for word in words {
        shown += if shown.is_empty() { "" } else { " " };
        shown.extend(nine_io::quote::quote(word).escape_debug());
        if shown.len() > LOGGED_ARGS_MAX {
            let cut = (0..=LOGGED_ARGS_MAX).rev().find(|&at| shown.is_char_boundary(at)).unwrap_or(0);
            shown.truncate(cut);
            return shown + "...";
        }
    }
    shown
}

type ResultSlot<T> = Arc<Mutex<(Option<T>, Option<Waker>)>>;

/// Returns a one-shot channel: a function that any thread may call, and a future.
fn later<T: Send>() -> (impl FnOnce(T) + Send, impl Future<Output = T>) {
    let place = ResultSlot::<T>::default();
    let to = place.clone();
    let put = move |what| {
        let mut to = lock(&to);
        to.0 = Some(what);
        let waker = to.1.take();
        drop(to);
        waker.into_iter().for_each(Waker::wake);
    };
    let comes = poll_fn(move |cx| {
        let mut place = lock(&place);
        place.1 = Some(cx.waker().clone());
        place.0.take().map_or(Poll::Pending, Poll::Ready)
    });
    (put, comes)
}

/// Runs a job that may wait on another thread.
async fn aside<T: Send + 'static>(
    shared: &PartShared,
    client: u64,
    job: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (put, comes) = later();
    shared.aside(client, move || put(job()));
    comes.await
}

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The largest answer of an output, in bytes.
const OUTPUT_READ_MAX: usize = 64 << 10;
/// Bytes at the start of a program that determine its type.
const PROGRAM_HEAD_LEN: u64 = 64;
/// The size of the pieces in which a program is sent to other servers, in bytes.
const UPLOAD_WRITE_LEN: usize = 1 << 20;
/// The memory in bytes that the launching process needs to work.
const LAUNCH_MEMORY_MIN: u64 = 16 << 20;
/// How long a process may take to become the program.
const EXEC_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between checks of limits.
const LIMIT_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum length of arguments in the log, in bytes.
const LOGGED_ARGS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 0 1 2 3 4 100 50 20 10 20 0 1 0";
        let per_second = rustix::param::clock_ticks_per_second();
        assert_eq!(times(stat), [120 * 1000 / per_second, 60 * 1000 / per_second]);
        assert_eq!(times("nothing"), [0; 2]);
    }

    #[test]
    fn words_of_the_log_are_one_short_line() {
        let words = |all: &[&str]| shown(&all.iter().map(|&word| word.into()).collect::<Vec<_>>());
        assert_eq!(words(&["sh", "-c", "a\nb"]), "sh -c \\'a\\nb\\'");
        assert!(words(&["ä".repeat(1000).as_str(), "x"]).len() <= LOGGED_ARGS_MAX + 3);
    }
}
