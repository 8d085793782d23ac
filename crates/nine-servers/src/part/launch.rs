//! Program start: a process of its own gives up rights step by step and then becomes the program.
//!
//! In, at the server: a [`LaunchPlan`] and descriptors, sent over a socket that is the new process's standard input.
//! Out: the list of confinements, then the end of the socket when the process is the program; or an error.
//!
//! ```text
//! >  PLAN (one line of JSON), with descriptors: standard input, and four of a channel
//! <  confined WORD...        all but the last step is done
//! <  failed ERRNO TEXT       and it ends
//! ```
//! A program that the server's process itself starts, and that inherits more descriptors, has its plan as an argument
//! instead ([`confined`]). It reports errors on its standard error.
//!
//! One more process of the same executable is the *guard* of a server. It waits until the server has ended for any
//! reason. Then it ends the server's remaining groups and removes its directories.
//!
//! Always holds: the process inherits only its standard files and the descriptors it was sent. All steps run in a
//! process with one thread. Nothing of the server's environment reaches it.

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

use super::cgroup::CgroupRoots;

/// The argument with which the executable must call [`launch`].
pub const VERB: &str = "partition-launch";

/// The launcher's instructions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct LaunchPlan {
    /// The pid of the process it must end with.
    pub(super) parent: u32,
    /// A path, or a name to be searched for.
    pub(super) program: String,
    pub(super) words: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) dir: String,
    /// Files to which it writes to join its groups.
    pub(super) joins: Vec<String>,
    /// uid and gid, if not the server's.
    pub(super) user: Option<(u32, u32)>,
    /// Seconds, bytes and processes; each only if no group limits it.
    pub(super) cpu: Option<u64>,
    pub(super) space: Option<u64>,
    pub(super) processes: Option<u64>,
    /// Empty: any processor.
    pub(super) cpus: Vec<usize>,
    /// Paths with access: read and execute; read; everything.
    pub(super) programs: Vec<String>,
    pub(super) reads: Vec<String>,
    pub(super) writes: Vec<String>,
    pub(super) network: bool,
    /// Forbids it to change its processors, since no group confines it to them.
    pub(super) stays: bool,
    /// It may run as root, if its starter does. It must not change permissions of files.
    pub(super) root: bool,
    /// It must not run if a confinement is unavailable.
    pub(super) strict: bool,
    /// A channel is sent with the plan.
    pub(super) channel: bool,
}

/// The guard's instructions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct GuardPlan {
    /// The hierarchies of the server's groups, and the prefix of their names.
    pub(super) groups: CgroupRoots,
    pub(super) prefix: String,
    /// The directory of the sessions' directories.
    pub(super) base: String,
}

/// The message sent over the socket.
#[derive(Serialize, Deserialize)]
enum LauncherMessage {
    Run(LaunchPlan),
    Guard(GuardPlan),
}

/// A process that is becoming a program.
pub(super) struct LaunchedProcess {
    pub(super) child: Child,
    /// The socket for the launcher's messages.
    pub(super) says: UnixStream,
    /// Our ends of its standard input, output and error.
    pub(super) ends: [OwnedFd; 3],
}

type LaunchJob = Box<dyn FnOnce() + Send>;

/// The thread that starts processes, which are killed when their starting thread ends; and the guard, which ends when
/// this is dropped.
pub(super) struct ProcessLauncher {
    jobs: mpsc::Sender<LaunchJob>,
    guard: Arc<Mutex<Option<UnixStream>>>,
}

impl Drop for ProcessLauncher {
    fn drop(&mut self) {
        drop(lock(&self.guard).take());
    }
}

impl ProcessLauncher {
    pub(super) fn new(guard: GuardPlan) -> io::Result<Self> {
        let (jobs, due) = mpsc::channel::<LaunchJob>();
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
                thread::sleep(GUARD_RETRY_DELAY);
                match guards(&guard) {
                    Ok(made) => break made,
                    Err(error) => tracing::error!("no guard: what this server leaves will stay: {error}"),
                }
            };
            child = next;
            let mut place = lock(&place);
            // If the server has ended meanwhile, the new guard's socket is dropped and it ends too.
            if place.is_some() {
                *place = Some(ours);
            }
        };
        thread::Builder::new().name("part-guard".into()).spawn(keep)?;
        Ok(Self { jobs, guard: held })
    }

    /// Starts a process with these descriptors of a channel, and calls `done` with it.
    pub(super) fn start(
        &self,
        plan: LaunchPlan,
        channel: Option<[OwnedFd; 4]>,
        done: impl FnOnce(io::Result<LaunchedProcess>) + Send + 'static,
    ) {
        // The thread lives as long as `self`.
        let _ = self.jobs.send(Box::new(move || done(start(plan, channel))));
    }
}

/// Returns a command that runs this executable as a launcher.
fn launcher(theirs: UnixStream) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(VERB).env_clear().current_dir("/").stdin(Stdio::from(OwnedFd::from(theirs)));
    command
}

/// Starts a guard. Returns our end of its socket.
fn guards(guard: &GuardPlan) -> io::Result<(UnixStream, Child)> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = launcher(theirs).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    send(&ours, &LauncherMessage::Guard(guard.clone()), &[])?;
    Ok((ours, child))
}

fn start(plan: LaunchPlan, channel: Option<[OwnedFd; 4]>) -> io::Result<LaunchedProcess> {
    let (ours, theirs) = UnixStream::pair()?;
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let (stdin, input) = pipe()?;
    let (output, stdout) = pipe()?;
    let (error, stderr) = pipe()?;
    let mut child = launcher(theirs).stdout(stdout).stderr(stderr).spawn()?;
    ours.set_write_timeout(Some(PLAN_TIMEOUT))?;
    let fds: Vec<OwnedFd> = [stdin].into_iter().chain(channel.into_iter().flatten()).collect();
    if let Err(error) = send(&ours, &LauncherMessage::Run(plan), &fds) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok(LaunchedProcess { child, says: ours, ends: [input, output, error] })
}

fn send(socket: &UnixStream, order: &LauncherMessage, fds: &[OwnedFd]) -> io::Result<()> {
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

/// The rights of a program started by [`confined`].
#[derive(Clone, Debug, Default)]
pub struct Rights {
    /// Paths to read and execute, besides the default `programs` of a policy.
    pub programs: Vec<String>,
    /// Paths to read.
    pub reads: Vec<String>,
    /// Paths with every access.
    pub writes: Vec<String>,
}

/// Returns a command that becomes this program with these arguments, in `/` and with this environment. It has only
/// `rights`, and is killed when the current thread ends. It inherits all descriptors that are not closed by exec(2).
/// This process' own executable must call [`launch`] for the argument [`VERB`].
pub fn confined(
    program: &str,
    words: &[String],
    env: Vec<(String, String)>,
    rights: Rights,
) -> io::Result<Command> {
    let plan = LaunchPlan {
        parent: std::process::id(),
        program: program.into(),
        words: [&[program.to_owned()], words].concat(),
        env,
        dir: "/".into(),
        programs: super::policy::PROGRAMS.map(Into::into).into_iter().chain(rights.programs).collect(),
        reads: rights.reads,
        writes: rights.writes,
        root: true,
        ..LaunchPlan::default()
    };
    let mut command = Command::new("/proc/self/exe");
    command.arg(VERB).arg(serde_json::to_string(&plan)?).env_clear();
    Ok(command)
}

/// Becomes the program of [`confined`].
fn become_known(plan: &str) -> ExitCode {
    let plan = serde_json::from_str(plan).map_err(|error| of("the plan")(io::Error::from(error)));
    let ended = plan.and_then(|plan: LaunchPlan| {
        confine(&plan)?;
        exec(&plan, &[])
    });
    let Err((what, error)) = ended;
    eprintln!("{what}: {error}");
    ExitCode::FAILURE
}

/// Becomes the program of a plan from the standard input or from an argument. Returns only on failure.
pub fn launch() -> ExitCode {
    if let Some(plan) = std::env::args().nth(2) {
        return become_known(&plan);
    }
    // The program must not get descriptors that the server's parent left open.
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
        LauncherMessage::Run(plan) => plan,
        LauncherMessage::Guard(guard) => return watch(&socket, &guard),
    };
    let Err((what, error)) = become_it(&socket, plan, fds);
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    // The error does not matter if the server has ended.
    let _ = writeln!(socket, "failed {errno} {what}");
    ExitCode::FAILURE
}

enum NoReturn {}

type LaunchStepError = (String, io::Error);

fn of<E: Into<io::Error>>(what: &str) -> impl FnOnce(E) -> LaunchStepError {
    move |error| (what.into(), error.into())
}

/// Waits for the end of the server, and then cleans up for it.
fn watch(mut socket: &UnixStream, guard: &GuardPlan) -> ExitCode {
    // A terminal's ^C must not reach it. If setsid fails, it stays in the server's session.
    let _ = rustix::process::setsid();
    let _ = io::copy(&mut socket, &mut io::sink());
    guard.groups.end_all(&guard.prefix);
    let base = Path::new(&guard.base);
    if is_ours(base) {
        let _ = super::remove::remove(base);
    }
    ExitCode::SUCCESS
}

fn become_it(
    mut socket: &UnixStream,
    plan: LaunchPlan,
    fds: Vec<OwnedFd>,
) -> Result<NoReturn, LaunchStepError> {
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

/// The last step: executes the program.
fn exec(plan: &LaunchPlan, channel: &[OwnedFd]) -> Result<NoReturn, LaunchStepError> {
    let mut command = Command::new(&plan.program);
    let name = plan.words.first().unwrap_or(&plan.program);
    command.arg0(name).args(plan.words.iter().skip(1)).env_clear().envs(plan.env.iter().cloned());
    if let [memory, wait, ring, life] = channel {
        let (name, value) = nine_net::shm::variable([memory, wait, ring, life].map(AsRawFd::as_raw_fd));
        command.env(name, value);
    }
    // A process forked by another thread may still have a new program open for writing, until that process calls exec
    // itself.
    for _ in 0..EXEC_TRIES_MAX {
        let error = command.exec();
        if error.kind() != io::ErrorKind::ExecutableFileBusy {
            return Err((why(plan, &error), error));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(of("it is being written")(io::Error::from_raw_os_error(libc::ETXTBSY)))
}

/// Returns the reason why a program cannot be executed.
fn why(plan: &LaunchPlan, error: &io::Error) -> String {
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

/// Receives the instructions and descriptors.
fn receive(socket: &UnixStream) -> io::Result<(LauncherMessage, Vec<OwnedFd>)> {
    let (mut line, mut fds, mut piece) = (Vec::new(), Vec::new(), vec![0; 64 << 10]);
    while line.last() != Some(&b'\n') {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        // Not close-on-exec: the channel's descriptors are inherited by the program.
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

/// Does every step but the last. Returns the list of confinements.
fn confine(plan: &LaunchPlan) -> Result<Vec<&'static str>, LaunchStepError> {
    let mut confined = vec!["user"];
    for file in &plan.joins {
        let mut file = fs::File::options().write(true).open(file).map_err(of("its control group"))?;
        file.write_all(b"0").map_err(of("its control group"))?;
    }
    let limit = |resource, most: u64| {
        // A lower limit that is already in force stays.
        let now = rustix::process::getrlimit(resource).maximum;
        let most = now.map_or(most, |now| now.min(most));
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
    };
    limit(Resource::Core, 0).map_err(of("its limits"))?;
    limit(Resource::Nofile, OPEN_FILES_MAX).map_err(of("its limits"))?;
    for (resource, most) in [(Resource::As, plan.space), (Resource::Nproc, plan.processes)] {
        most.map_or(Ok(()), |most| limit(resource, most)).map_err(of("its limits"))?;
    }
    if let Some(cpu) = plan.cpu {
        // The soft limit sends SIGXCPU, from which the cause is known.
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
    // Opened before the change of user, which may have no access to its parents.
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
    // After the change of user, which clears this setting.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(of("its end"))?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32);
    if parent != Some(plan.parent) {
        return Err(("the server has ended".into(), io::Error::from_raw_os_error(libc::ESRCH)));
    }
    rustix::thread::set_no_new_privs(true).map_err(of("no_new_privs"))?;
    confined.extend(
        landlocked(plan).map_err(|error| ("landlock".into(), io::Error::other(error)))?.then_some("landlock"),
    );
    // A program with a uid of its own owns its files and may change their permissions.
    let keeps = plan.root || plan.user.is_none();
    let filters = [Some(filter(plan.network)), Some(clone3()), keeps.then(|| keeping(plan.root))];
    let stays = plan.stays.then(|| forbidden([libc::SYS_sched_setaffinity]));
    let filters = filters.into_iter().chain([stays]).flatten().collect::<Result<Vec<_>, _>>();
    let filters = filters.map_err(|error| ("seccomp".into(), io::Error::other(error)))?;
    let is_filtered = filters.iter().all(|filter| seccompiler::apply_filter(filter).is_ok());
    confined.extend(is_filtered.then_some("seccomp"));
    Ok(confined)
}

/// Without capabilities, root has only the rights to its own files. No program can regain them.
fn drop_capabilities() -> rustix::io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    let may = capabilities(None)?.effective.contains(CapabilitySet::SETPCAP);
    for one in CapabilitySet::all().iter().filter(|_| may) {
        match rustix::thread::remove_capability_from_bounding_set(one) {
            // The kernel does not have this capability.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Restricts this process to the files of the plan. Returns whether the kernel supports that.
fn landlocked(plan: &LaunchPlan) -> Result<bool, landlock::RulesetError> {
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

type FilterResult = Result<BpfProgram, seccompiler::BackendError>;

/// Returns a filter of system calls that programs have no use for: EPERM.
fn filter(network: bool) -> FilterResult {
    let when = |arg, op, value| SeccompCondition::new(arg, SeccompCmpArgLen::Dword, op, value);
    let mut spaces = Vec::new();
    for flag in NAMESPACES {
        let has = when(0, SeccompCmpOp::MaskedEq(flag as u64), flag as u64)?;
        spaces.push(SeccompRule::new(vec![has])?);
    }
    let push = SeccompRule::new(vec![when(1, SeccompCmpOp::Eq, libc::TIOCSTI)?])?;
    let mut judged = vec![(libc::SYS_clone, spaces), (libc::SYS_ioctl, vec![push])];
    if !network {
        // Unix sockets too: Landlock does not keep a program from connecting to one by its path. Nor do datagram
        // pairs, which can be connected to other sockets.
        judged.push((libc::SYS_socket, Vec::new()));
        let mut pairs = Vec::new();
        for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
            pairs.push(SeccompRule::new(vec![when(1, SeccompCmpOp::MaskedEq(0xf), kind as u64)?])?);
        }
        judged.push((libc::SYS_socketpair, pairs));
    }
    let all = FORBIDDEN_CALLS.iter().copied();
    #[cfg(target_arch = "x86_64")]
    let all = all.chain(FORBIDDEN_X86.iter().copied()).chain((512..=547).map(|call| call | X32));
    denied(all.map(|call| (call, Vec::new())).chain(judged))
}

/// Returns a filter of changes to permissions, owners and times of files: by a path, or in every way if `all`.
/// Landlock does not cover those.
fn keeping(all: bool) -> FilterResult {
    let given = SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
    // Without a path it applies to an open file.
    let times = if all { Vec::new() } else { vec![SeccompRule::new(vec![given])?] };
    let calls = PATH_CHANGE_CALLS.iter().chain(KEPT_OPEN.iter().filter(|_| all)).copied();
    #[cfg(target_arch = "x86_64")]
    let calls = calls.chain(KEPT_X86.iter().copied());
    denied(calls.map(|call| (call, Vec::new())).chain([(libc::SYS_utimensat, times)]))
}

fn forbidden(calls: impl IntoIterator<Item = i64>) -> FilterResult {
    denied(calls.into_iter().map(|call| (call, Vec::new())))
}

/// Returns EPERM for these calls, if one of the rules matches or there are none; also for their x32 numbers.
fn denied(calls: impl IntoIterator<Item = (i64, Vec<SeccompRule>)>) -> FilterResult {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.into_iter().collect();
    #[cfg(target_arch = "x86_64")]
    {
        let others: Vec<_> = rules.iter().map(|(call, rules)| (call | X32, rules.clone())).collect();
        rules.extend(others);
    }
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32), arch()?)?
        .try_into()
}

/// The flags of clone3 are in memory, where a filter cannot see them. With ENOSYS, libraries use clone.
fn clone3() -> FilterResult {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32), arch()?)?
        .try_into()
}

fn arch() -> Result<seccompiler::TargetArch, seccompiler::BackendError> {
    std::env::consts::ARCH.try_into()
}

/// Returns whether the kernel can run this: a script, or an ELF file for this machine. On other files libc's execvp
/// would start a shell.
pub(super) fn is_program(head: &[u8]) -> bool {
    let machines: &[u8] = if cfg!(target_arch = "x86_64") { &[62, 3] } else { &[183, 40] };
    let is_elf = || head.starts_with(b"\x7fELF") && matches!(head[16], 2 | 3) && machines.contains(&head[18]);
    head.starts_with(b"#!") || head.len() >= 52 && is_elf()
}

/// Returns whether this is a directory owned by this user.
pub(super) fn is_ours(dir: &Path) -> bool {
    let meta = fs::symlink_metadata(dir);
    meta.is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw())
}

/// How long the launcher may take to accept its plan.
const PLAN_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before another guard is started.
const GUARD_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Attempts to execute a program that is still open for writing.
const EXEC_TRIES_MAX: usize = 100;
/// The maximum number of a process' open files.
const OPEN_FILES_MAX: u64 = 1024;
/// The newest requested Landlock ABI. Older kernels enforce what they support.
const ABI_KNOWN: ABI = ABI::V6;
/// The confinements that `strict` requires, with their names.
const STRICT: [(&str, &str); 2] = [("landlock", "Landlock"), ("seccomp", "seccomp")];
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// The bit in numbers of x32 system calls.
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

const FORBIDDEN_CALLS: &[i64] = &[
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
    // Objects of these outlive a session, and are shared with other processes.
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
/// Changes by a path.
const PATH_CHANGE_CALLS: &[i64] = &[
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
/// Changes of an open file.
const KEPT_OPEN: &[i64] = &[libc::SYS_fchmod, libc::SYS_fchown, libc::SYS_fsetxattr, libc::SYS_fremovexattr];
/// Calls that libc does not name yet.
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

    /// Runs code in a thread with these filters.
    fn within(filters: &[FilterResult], what: impl FnOnce() + Send) {
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
                // Without root the bounding set cannot be reduced, but no capability can be gained.
                assert!(line.ends_with("\t0000000000000000") || key == "CapBnd" && us != Some(0), "{line}");
            }
        });
    }

    const NOW: rustix::fs::Timespec = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 };
}
