//! How a program starts: in a process of its own, which gives up rights step by step and then becomes the program.
//!
//! In: at the server, a [`Plan`] and descriptors, sent over a socket that is the new process's standard input. Out:
//! what confines it ([`Confined`]), then the end of the socket when it is the program; or why it is not.
//!
//! ```text
//! >  PLAN (one line of JSON), with descriptors: standard input, and four of a channel
//! <  confined WORD...        all but the last step is done
//! <  failed ERRNO TEXT       and it ends
//! ```
//! A program that its own server's process starts, and that inherits more than that, has its plan as a word instead
//! ([`confined`]), and says what went wrong on its standard error.
//!
//! One more process of the same program is the *guard* of a server: it waits until that has ended, whichever way, and
//! then ends what is left in the server's groups and removes its directories.
//!
//! Always holds: what the process inherits are its standard files and what it was sent; all steps are done in a process
//! of one thread; nothing of the server's environment comes there.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    Scope, path_beneath_rules,
};
use nine_net::lock::{Mutex, lock};
use rustix::fs::{Mode, OFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::{Gid, Resource, Rlimit, Signal, Uid};
use rustix::thread::CpuSet;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use serde::{Deserialize, Serialize};

use super::cgroup::Groups;

/// The word by which a program that has this room in it becomes the launcher ([`launch`]).
pub const VERB: &str = "partition-launch";

/// What the launcher is to do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Whose end is its own.
    pub(super) parent: u32,
    /// A path, or a name to be looked for.
    pub(super) program: String,
    pub(super) words: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) dir: String,
    /// Files by which it joins its groups.
    pub(super) joins: Vec<String>,
    /// User and group, if not the server's.
    pub(super) user: Option<(u32, u32)>,
    /// Seconds, bytes and processes, each where no group sees to it.
    pub(super) cpu: Option<u64>,
    pub(super) space: Option<u64>,
    pub(super) processes: Option<u64>,
    /// Empty: any.
    pub(super) cpus: Vec<usize>,
    /// Paths: read and executed, read, all.
    pub(super) programs: Vec<String>,
    pub(super) reads: Vec<String>,
    pub(super) writes: Vec<String>,
    pub(super) network: bool,
    /// It stays on its processors by itself: no group sees to it.
    pub(super) stays: bool,
    /// It may be root, as who starts it is; and changes nobody's rights to files.
    pub(super) root: bool,
    /// It shall not run where something lacks.
    pub(super) strict: bool,
    /// A channel is sent with it.
    pub(super) channel: bool,
}

/// What a guard is to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Guard {
    /// Where the server makes groups, and how their names begin.
    pub(super) groups: Groups,
    pub(super) prefix: String,
    /// Where its directories are.
    pub(super) base: String,
}

/// What comes over the socket.
#[derive(Serialize, Deserialize)]
enum Order {
    Run(Plan),
    Guard(Guard),
}

/// A process that is becoming a program.
pub(super) struct Launched {
    pub(super) child: Child,
    /// Where it says how far it is.
    pub(super) says: UnixStream,
    /// Its standard input, output and error.
    pub(super) ends: [OwnedFd; 3],
}

type Job = Box<dyn FnOnce() + Send>;

/// The thread that starts processes: they end with the thread that has started them. And the guard, which goes when
/// this does.
pub(super) struct Launcher {
    jobs: mpsc::Sender<Job>,
    guard: Arc<Mutex<Option<UnixStream>>>,
}

impl Drop for Launcher {
    fn drop(&mut self) {
        drop(lock(&self.guard).take());
    }
}

impl Launcher {
    pub(super) fn new(guard: Guard) -> io::Result<Self> {
        let (jobs, due) = mpsc::channel::<Job>();
        let work = move || due.into_iter().for_each(|job| job());
        thread::Builder::new().name("part-launch".into()).spawn(work)?;
        let (ours, mut child) = guards(&guard)?;
        let held = Arc::new(Mutex::new(Some(ours)));
        let place = held.clone();
        let keep = move || loop {
            let ended = child.wait();
            if lock(&place).is_none() {
                return;
            }
            tracing::error!("the guard has ended, and another one is started: {ended:?}");
            let (ours, next) = loop {
                thread::sleep(AGAIN);
                match guards(&guard) {
                    Ok(made) => break made,
                    Err(error) => tracing::error!("no guard: what this server leaves will stay: {error}"),
                }
            };
            child = next;
            let mut place = lock(&place);
            // Where the server has ended meanwhile this one ends, too.
            if place.is_some() {
                *place = Some(ours);
            }
        };
        thread::Builder::new().name("part-guard".into()).spawn(keep)?;
        Ok(Self { jobs, guard: held })
    }

    /// Starts one, with these descriptors of a channel, and says so there.
    pub(super) fn start(
        &self,
        plan: Plan,
        channel: Option<[OwnedFd; 4]>,
        done: impl FnOnce(io::Result<Launched>) + Send + 'static,
    ) {
        // The thread is there as long as this is.
        let _ = self.jobs.send(Box::new(move || done(start(plan, channel))));
    }
}

/// This very program, to become another one.
fn launcher(theirs: UnixStream) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(VERB).env_clear().current_dir("/").stdin(Stdio::from(OwnedFd::from(theirs)));
    command
}

/// A guard, and the end of a socket whose other one it has.
fn guards(guard: &Guard) -> io::Result<(UnixStream, Child)> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = launcher(theirs).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    send(&ours, &Order::Guard(guard.clone()), &[])?;
    Ok((ours, child))
}

fn start(plan: Plan, channel: Option<[OwnedFd; 4]>) -> io::Result<Launched> {
    let (ours, theirs) = UnixStream::pair()?;
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let (stdin, input) = pipe()?;
    let (output, stdout) = pipe()?;
    let (error, stderr) = pipe()?;
    let mut child = launcher(theirs).stdout(stdout).stderr(stderr).spawn()?;
    ours.set_write_timeout(Some(PATIENCE))?;
    let fds: Vec<OwnedFd> = [stdin].into_iter().chain(channel.into_iter().flatten()).collect();
    if let Err(error) = send(&ours, &Order::Run(plan), &fds) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok(Launched { child, says: ours, ends: [input, output, error] })
}

fn send(socket: &UnixStream, order: &Order, fds: &[OwnedFd]) -> io::Result<()> {
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let n = rustix::net::sendmsg(socket, &[IoSlice::new(&line)], &mut beside, SendFlags::NOSIGNAL)?;
    (&mut &*socket).write_all(&line[n..])
}

/// What a program may do that [`confined`] starts.
#[derive(Clone, Debug, Default)]
pub struct Rights {
    /// Paths that it reads and executes, beside those of a policy that says nothing.
    pub programs: Vec<String>,
    /// Paths that it reads.
    pub reads: Vec<String>,
    /// Paths with which it does what it likes.
    pub writes: Vec<String>,
}

/// A command that becomes this program with these words, in `/` and with this environment: with no other rights, and
/// gone when this thread has ended, whichever way. It inherits what is open and not to be closed by exec(2). The
/// program of this process has [`launch`] behind [`VERB`].
pub fn confined(
    program: &str,
    words: &[String],
    env: Vec<(String, String)>,
    rights: Rights,
) -> io::Result<Command> {
    let plan = Plan {
        parent: std::process::id(),
        program: program.into(),
        words: [&[program.to_owned()], words].concat(),
        env,
        dir: "/".into(),
        programs: super::policy::PROGRAMS.map(Into::into).into_iter().chain(rights.programs).collect(),
        reads: rights.reads,
        writes: rights.writes,
        root: true,
        ..Plan::default()
    };
    let mut command = Command::new("/proc/self/exe");
    command.arg(VERB).arg(serde_json::to_string(&plan)?).env_clear();
    Ok(command)
}

/// Becomes the program of [`confined`].
fn become_known(plan: &str) -> ExitCode {
    let plan = serde_json::from_str(plan).map_err(|error| of("the plan")(io::Error::from(error)));
    let ended = plan.and_then(|plan: Plan| {
        confine(&plan)?;
        exec(&plan, &[])
    });
    let Err((what, error)) = ended;
    eprintln!("{what}: {error}");
    ExitCode::FAILURE
}

/// Becomes the program that it is told over the standard input, or by a word; returns if that is not possible.
pub fn launch() -> ExitCode {
    if let Some(plan) = std::env::args().nth(2) {
        return become_known(&plan);
    }
    // What has come by descriptors that somebody left open is not for the program.
    let begun = nine_ring::linux::close_all_on_exec().and_then(|()| {
        let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        Ok(UnixStream::from(socket))
    });
    let Ok(mut socket) = begun else { return ExitCode::FAILURE };
    let (order, fds) = match receive(&socket) {
        Ok(came) => came,
        Err(_) => return ExitCode::FAILURE,
    };
    let plan = match order {
        Order::Run(plan) => plan,
        Order::Guard(guard) => return watch(&socket, &guard),
    };
    let Err((what, error)) = become_it(&socket, plan, fds);
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    // Nobody is there to be told.
    let _ = writeln!(socket, "failed {errno} {what}");
    ExitCode::FAILURE
}

enum Never {}

type Failed = (String, io::Error);

fn of<E: Into<io::Error>>(what: &str) -> impl FnOnce(E) -> Failed {
    move |error| (what.into(), error.into())
}

/// Waits for the end of the server, and does what it has not done.
fn watch(mut socket: &UnixStream, guard: &Guard) -> ExitCode {
    // A terminal's ^C is not for it; where it cannot go out of that, its end is the machine's as before.
    let _ = rustix::process::setsid();
    let _ = io::copy(&mut socket, &mut io::sink());
    guard.groups.end_all(&guard.prefix);
    let base = Path::new(&guard.base);
    if is_ours(base) {
        let _ = super::remove::remove(base);
    }
    ExitCode::SUCCESS
}

fn become_it(mut socket: &UnixStream, plan: Plan, fds: Vec<OwnedFd>) -> Result<Never, Failed> {
    let mut fds = fds.into_iter();
    let Some(stdin) = fds.next() else {
        return Err(of("the plan")(io::Error::from(io::ErrorKind::InvalidData)));
    };
    rustix::stdio::dup2_stdin(&stdin).map_err(of("standard input"))?;
    drop(stdin);
    let channel: Vec<OwnedFd> = fds.collect();
    let confined = confine(&plan)?;
    if plan.strict
        && let Some((_, what)) = STRICT.iter().find(|(word, _)| !confined.contains(word))
    {
        return Err((
            format!("strict: there is no {what} here"),
            io::Error::from_raw_os_error(libc::EOPNOTSUPP),
        ));
    }
    writeln!(socket, "confined {}", confined.join(" ")).map_err(of("the server"))?;
    exec(&plan, &channel)
}

/// The last step.
fn exec(plan: &Plan, channel: &[OwnedFd]) -> Result<Never, Failed> {
    let mut command = Command::new(&plan.program);
    let name = plan.words.first().unwrap_or(&plan.program);
    command.arg0(name).args(plan.words.iter().skip(1)).env_clear().envs(plan.env.iter().cloned());
    if let [memory, wait, ring, life] = channel {
        let (name, value) = nine_net::shm::variable([memory, wait, ring, life].map(AsRawFd::as_raw_fd));
        command.env(name, value);
    }
    // Somebody else's process may have what was just written, open for writing, until it is a program itself.
    for _ in 0..BUSY {
        let error = command.exec();
        if error.kind() != io::ErrorKind::ExecutableFileBusy {
            return Err((why(plan, &error), error));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(of("it is being written")(io::Error::from_raw_os_error(libc::ETXTBSY)))
}

/// Why a program cannot be run.
fn why(plan: &Plan, error: &io::Error) -> String {
    let name = plan.words.first().filter(|_| plan.program.ends_with("/exec")).unwrap_or(&plan.program);
    match error.raw_os_error() {
        Some(libc::ENOENT) if Path::new(&plan.program).exists() => {
            format!("{name}: what it is interpreted by is not there")
        }
        Some(libc::ENOENT) => format!("{name}: there is no such program"),
        Some(libc::ENOEXEC) => format!("{name}: this is no program"),
        Some(libc::EACCES) => format!("{name}: it may not be executed here: see `programs` of the policy"),
        _ => format!("{name}: {error}"),
    }
}

/// The order, and what was sent with it.
fn receive(socket: &UnixStream) -> io::Result<(Order, Vec<OwnedFd>)> {
    let (mut line, mut fds, mut piece) = (Vec::new(), Vec::new(), vec![0; 64 << 10]);
    while line.last() != Some(&b'\n') {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        // Those of a channel are handed on.
        let came = rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut piece)],
            &mut beside,
            RecvFlags::empty(),
        )?;
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(sent) = message {
                fds.extend(sent);
            }
        }
        if came.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.extend_from_slice(&piece[..came.bytes]);
    }
    Ok((serde_json::from_slice(&line)?, fds))
}

/// Every step but the last.
fn confine(plan: &Plan) -> Result<Vec<&'static str>, Failed> {
    let mut confined = vec!["user"];
    for file in &plan.joins {
        let mut file = fs::File::options().write(true).open(file).map_err(of("its control group"))?;
        file.write_all(b"0").map_err(of("its control group"))?;
    }
    let limit = |resource, most: u64| {
        // Nobody raises what is lower already.
        let now = rustix::process::getrlimit(resource).maximum;
        let most = now.map_or(most, |now| now.min(most));
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
    };
    limit(Resource::Core, 0).map_err(of("its limits"))?;
    limit(Resource::Nofile, NOFILE).map_err(of("its limits"))?;
    for (resource, most) in [(Resource::As, plan.space), (Resource::Nproc, plan.processes)] {
        most.map_or(Ok(()), |most| limit(resource, most)).map_err(of("its limits"))?;
    }
    if let Some(cpu) = plan.cpu {
        // The first one is a signal that says what it is about.
        let most = Rlimit { current: Some(cpu), maximum: Some(cpu.saturating_add(1)) };
        rustix::process::setrlimit(Resource::Cpu, most).map_err(of("its limits"))?;
    }
    if !plan.cpus.is_empty() {
        let mut set = CpuSet::new();
        plan.cpus.iter().for_each(|&cpu| set.set(cpu));
        rustix::thread::sched_setaffinity(None, &set).map_err(of("its processors"))?;
    }
    rustix::process::setsid().map_err(of("its session"))?;
    rustix::process::umask(Mode::from_bits_truncate(0o022));
    // It may lie where its user would not come; and is not looked for again.
    let dir = rustix::fs::open(&*plan.dir, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::PATH, Mode::empty());
    rustix::process::fchdir(dir.map_err(of("its directory"))?).map_err(of("its directory"))?;
    if let Some((uid, gid)) = plan.user {
        rustix::thread::set_thread_groups(&[]).map_err(of("its user"))?;
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(of("its user"))?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(of("its user"))?;
    }
    if rustix::process::geteuid().is_root() && !plan.root {
        return Err(("it would run as root".into(), io::Error::from_raw_os_error(libc::EPERM)));
    }
    drop_capabilities().map_err(of("its capabilities"))?;
    // Another user is another matter: before, this would be forgotten.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(of("its end"))?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32);
    if parent != Some(plan.parent) {
        return Err(("the server has ended".into(), io::Error::from_raw_os_error(libc::ESRCH)));
    }
    rustix::thread::set_no_new_privs(true).map_err(of("no_new_privs"))?;
    confined.extend(
        landlocked(plan).map_err(|error| ("landlock".into(), io::Error::other(error)))?.then_some("landlock"),
    );
    // Who is a user of his own has files of his own.
    let keeps = plan.root || plan.user.is_none();
    let filters = [Some(filter(plan.network)), Some(clone3()), keeps.then(|| keeping(plan.root))];
    let stays = plan.stays.then(|| forbidden([libc::SYS_sched_setaffinity]));
    let filters = filters.into_iter().chain([stays]).flatten().collect::<Result<Vec<_>, _>>();
    let filters = filters.map_err(|error| ("seccomp".into(), io::Error::other(error)))?;
    let is_filtered = filters.iter().all(|filter| seccompiler::apply_filter(filter).is_ok());
    confined.extend(is_filtered.then_some("seccomp"));
    Ok(confined)
}

/// Root without them has his files and nothing else; and no program gives any back.
fn drop_capabilities() -> rustix::io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    let may = capabilities(None)?.effective.contains(CapabilitySet::SETPCAP);
    for one in CapabilitySet::all().iter().filter(|_| may) {
        match rustix::thread::remove_capability_from_bounding_set(one) {
            // This kernel has no such one.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Lets this process reach the files of the plan alone; whether the kernel can do that.
fn landlocked(plan: &Plan) -> Result<bool, landlock::RulesetError> {
    let all = AccessFs::from_all(ABI_KNOWN);
    let devices = AccessFs::ReadFile | AccessFs::WriteFile;
    let restricted = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(ABI_KNOWN))?
        .create()?
        .add_rules(path_beneath_rules(&plan.programs, AccessFs::from_read(ABI_KNOWN)))?
        .add_rules(path_beneath_rules(&plan.reads, AccessFs::ReadFile | AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(&plan.writes, all))?
        .add_rules(path_beneath_rules(DEVICES, devices))?
        .restrict_self()?;
    Ok(restricted.ruleset != RulesetStatus::NotEnforced)
}

type Filter = Result<BpfProgram, seccompiler::BackendError>;

/// What a program has no business with: EPERM.
fn filter(network: bool) -> Filter {
    let when = |arg, op, value| SeccompCondition::new(arg, SeccompCmpArgLen::Dword, op, value);
    let mut spaces = Vec::new();
    for flag in NAMESPACES {
        let has = when(0, SeccompCmpOp::MaskedEq(flag as u64), flag as u64)?;
        spaces.push(SeccompRule::new(vec![has])?);
    }
    let push = SeccompRule::new(vec![when(1, SeccompCmpOp::Eq, libc::TIOCSTI)?])?;
    let mut judged = vec![(libc::SYS_clone, spaces), (libc::SYS_ioctl, vec![push])];
    if !network {
        // Those of unix, too: no rule of files keeps a program from one at a path. Datagrams of a pair go there, too.
        judged.push((libc::SYS_socket, Vec::new()));
        let mut pairs = Vec::new();
        for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
            pairs.push(SeccompRule::new(vec![when(1, SeccompCmpOp::MaskedEq(0xf), kind as u64)?])?);
        }
        judged.push((libc::SYS_socketpair, pairs));
    }
    let all = FORBIDDEN.iter().copied();
    #[cfg(target_arch = "x86_64")]
    let all = all.chain(FORBIDDEN_X86.iter().copied()).chain((512..=547).map(|call| call | X32));
    denied(all.map(|call| (call, Vec::new())).chain(judged))
}

/// The rights to a file, its owner and its times are changed by nobody: by a path, or, if `all`, in any way. No rule of
/// files keeps a program from that.
fn keeping(all: bool) -> Filter {
    let given = SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
    // Without a path it is of an open file.
    let times = if all { Vec::new() } else { vec![SeccompRule::new(vec![given])?] };
    let calls = KEPT.iter().chain(KEPT_OPEN.iter().filter(|_| all)).copied();
    #[cfg(target_arch = "x86_64")]
    let calls = calls.chain(KEPT_X86.iter().copied());
    denied(calls.map(|call| (call, Vec::new())).chain([(libc::SYS_utimensat, times)]))
}

fn forbidden(calls: impl IntoIterator<Item = i64>) -> Filter {
    denied(calls.into_iter().map(|call| (call, Vec::new())))
}

/// EPERM for these, where one of the rules says so or there is none; by all their numbers.
fn denied(calls: impl IntoIterator<Item = (i64, Vec<SeccompRule>)>) -> Filter {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.into_iter().collect();
    #[cfg(target_arch = "x86_64")]
    {
        let others: Vec<_> = rules.iter().map(|(call, rules)| (call | X32, rules.clone())).collect();
        rules.extend(others);
    }
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32), arch()?)?
        .try_into()
}

/// What it asks for lies in memory, and is not seen: libraries do without.
fn clone3() -> Filter {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32), arch()?)?
        .try_into()
}

fn arch() -> Result<seccompiler::TargetArch, seccompiler::BackendError> {
    std::env::consts::ARCH.try_into()
}

/// Whether the kernel might run this: a script, or an ELF of this machine. A library would have a shell run all else.
pub(super) fn is_program(head: &[u8]) -> bool {
    let machines: &[u8] = if cfg!(target_arch = "x86_64") { &[62, 3] } else { &[183, 40] };
    let is_elf = || head.starts_with(b"\x7fELF") && matches!(head[16], 2 | 3) && machines.contains(&head[18]);
    head.starts_with(b"#!") || head.len() >= 52 && is_elf()
}

/// Whether a directory is ours, and a directory.
pub(super) fn is_ours(dir: &Path) -> bool {
    let meta = fs::symlink_metadata(dir);
    meta.is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw())
}

/// For the launcher to take its plan.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before another guard is started.
const AGAIN: Duration = Duration::from_millis(100);
/// Attempts at a program that somebody has open for writing.
const BUSY: usize = 100;
/// Open files of a process.
const NOFILE: u64 = 1024;
/// The newest that is asked for: an older kernel does what it can.
const ABI_KNOWN: ABI = ABI::V6;
/// Words of what `strict` wants, and what they are.
const STRICT: [(&str, &str); 2] = [("landlock", "Landlock"), ("seccomp", "seccomp")];
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// A bit of the numbers of calls of x32.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWCGROUP,
];

const FORBIDDEN: &[i64] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_vhangup,
    // What is made by these stays when a session has ended, and is others'.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];
/// By a path.
const KEPT: &[i64] = &[
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    SETXATTRAT,
    REMOVEXATTRAT,
    FILE_SETATTR,
];
/// Of an open file.
const KEPT_OPEN: &[i64] = &[libc::SYS_fchmod, libc::SYS_fchown, libc::SYS_fsetxattr, libc::SYS_fremovexattr];
/// Newer than the library's names.
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const FILE_SETATTR: i64 = 469;
#[cfg(target_arch = "x86_64")]
const KEPT_X86: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
#[cfg(target_arch = "x86_64")]
const FORBIDDEN_X86: &[i64] =
    &[libc::SYS_kexec_file_load, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt, libc::SYS_uselib];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_script_or_an_elf_of_this_machine() {
        assert!(is_program(b"#!/bin/sh\n"));
        assert!(is_program(&std::fs::read("/proc/self/exe").unwrap()[..64]));
        for other in [&b""[..], b"echo hi\n", b"\x7fELF", &[b"\x7fELF\x02\x01", &[0; 60][..]].concat()] {
            assert!(!is_program(other));
        }
    }

    #[test]
    fn filters_are_made_for_this_machine() {
        for program in [filter(true), filter(false), clone3(), keeping(true), keeping(false)] {
            let len = program.unwrap().len();
            assert!(len > 5 && len < 4096, "{len}");
        }
    }

    /// What happens in a thread that has these filters.
    fn within(filters: &[Filter], what: impl FnOnce() + Send) {
        let filters: Vec<_> = filters.iter().map(|filter| filter.as_ref().unwrap()).collect();
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                rustix::thread::set_no_new_privs(true).unwrap();
                drop_capabilities().unwrap();
                filters.into_iter().for_each(|filter| seccompiler::apply_filter(filter).unwrap());
                what();
            });
            thread.join().unwrap();
        });
    }

    fn is_denied<T>(done: io::Result<T>) -> bool {
        done.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM))
    }

    #[test]
    fn no_socket_reaches_a_path_and_pairs_of_streams_stay() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("s");
        let _listens = std::os::unix::net::UnixListener::bind(&at).unwrap();
        within(&[filter(false)], || {
            assert!(is_denied(UnixStream::connect(&at)));
            assert!(is_denied(std::os::unix::net::UnixDatagram::pair()));
            assert!(UnixStream::pair().is_ok());
            assert!(is_denied(std::net::UdpSocket::bind("127.0.0.1:0")));
        });
        within(&[filter(true)], || assert!(UnixStream::connect(&at).is_ok()));
    }

    #[test]
    fn nobodys_rights_are_changed_by_a_path() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("file");
        let file = fs::File::create(&at).unwrap();
        let mode = || fs::Permissions::from_mode(0o600);
        let us = Some(rustix::process::geteuid().as_raw());
        let by_path = || {
            assert!(is_denied(fs::set_permissions(&at, mode())) && is_denied(chown(&at, us, None)));
            let times = rustix::fs::Timestamps { last_access: NOW, last_modification: NOW };
            let set = rustix::fs::utimensat(rustix::fs::CWD, &at, &times, rustix::fs::AtFlags::empty());
            assert!(is_denied(set.map_err(Into::into)));
            let set = rustix::fs::setxattr(&at, "user.x", b"x", rustix::fs::XattrFlags::empty());
            assert!(is_denied(set.map_err(Into::into)));
        };
        within(&[keeping(false)], || {
            by_path();
            assert!(
                file.set_permissions(mode()).is_ok()
                    && file.set_modified(std::time::SystemTime::now()).is_ok()
            );
        });
        within(&[keeping(true)], || {
            by_path();
            assert!(is_denied(file.set_permissions(mode())));
            assert!(is_denied(file.set_modified(std::time::SystemTime::now())));
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            for key in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                let line = status.lines().find(|line| line.starts_with(key)).unwrap();
                // Who is not root keeps what he might be given, and is given nothing.
                assert!(line.ends_with("\t0000000000000000") || key == "CapBnd" && us != Some(0), "{line}");
            }
        });
    }

    const NOW: rustix::fs::Timespec = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 };
}
