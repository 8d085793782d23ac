//! `partition run`: runs a program that inherits a channel (docs/channels.md), or a machine (docs/guest.md), and serves
//! it a tree.
//!
//! In: the tree, the program or image, and its arguments. Out: its exit status, as [`Program`].
//!
//! Always holds: all resources are open before the program starts. A program inherits the channel and its standard
//! files and nothing else. We do not kill it, but pass signals on. A machine ends with us.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::future::{Future, pending};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use futures_util::future::{Either, FutureExt, abortable, select};
use nine_io::channel::serve_all;
use nine_io::server::{Core, Gate, Service};
use nine_net::shm::{Channel, Inherited, Kind, LINES, Layout, PAGES};
use nine_net::{Env, Peer, Proof, rt};
use nine_proto::GetMask;
use nine_servers::machine::{self, Accel, Computer, Machine};
use nine_servers::part::{self, Rights};
use rustix::process::{Pid, PidfdFlags, Signal, getegid, geteuid, getpgrp, pidfd_open, pidfd_send_signal};
use rustix::termios;

use super::kinds::Servers;
use super::{Export, Opened, Served, console};
use crate::archive::Archives;
use crate::cli::{self, AccelChoice};
use crate::config::{Config, Remote, Serving};
use crate::dial::{Sessions, within};
use crate::fail::{self, Program};
use crate::operand::{Place, ServerAddr};

/// Time for last requests after a program has ended. Its child processes cannot hold the channel for longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The work to run.
struct Work<'a> {
    /// The tree that it sees; the default server if `None`.
    export: Option<Export>,
    program: &'a OsString,
    words: &'a [OsString],
    /// Set for an image: end of the memory that the image itself occupies.
    image: Option<u64>,
}

impl<'a> Work<'a> {
    fn of(args: &'a cli::PartitionRun) -> Result<Self> {
        let Some((program, words)) = args.program.split_first() else {
            let wrong = |why: String| Program { status: 2, error: Some(why) };
            let [image, words @ ..] = &args.words[..] else {
                return Err(wrong("write an image, or `--` and a program".into()).into());
            };
            let Some(end) = image_end(image).map_err(|error| cannot(image, &error))? else {
                let image = image.display();
                let why = format!("{image}: this is no image (docs/guest.md); a program stands behind `--`");
                return Err(wrong(why).into());
            };
            return Ok(Self { export: None, program: image, words, image: Some(end) });
        };
        let export = match &args.words[..] {
            [] => None,
            [word] => {
                let word = word.to_str().ok_or_else(|| anyhow!("{}: is no text", word.display()))?;
                Some(word.parse().map_err(|why: String| anyhow!("{word}: {why}"))?)
            }
            [_, word, ..] => bail!("{}: one SERVER stands before `--`, at most", word.display()),
        };
        // A bare name is looked up in PATH. A file that cannot be read may still be executable.
        let image = match image_end(program) {
            _ if Path::new(program).components().count() == 1 => None,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(cannot(program, &error).into());
            }
            end => end.unwrap_or(None),
        };
        Ok(Self { export, program, words, image })
    }
}

/// Returns the end of the memory that an image occupies, or `None` if the file is not an image. Fails if the file
/// cannot be read, or is an image that no machine can start.
fn image_end(path: &OsString) -> io::Result<Option<u64>> {
    let file = File::open(path)?;
    let about = file.metadata()?;
    if about.is_file() { machine::image_end(&file, about.len()) } else { Ok(None) }
}

/// Returns the error that a shell gives for a file that cannot be run.
fn cannot(path: &OsString, error: &io::Error) -> Program {
    let (status, why) = match error.kind() {
        io::ErrorKind::NotFound => (127, "there is no such program".into()),
        _ => (126, fail::plain(&error.to_string()).to_owned()),
    };
    Program { status, error: Some(format!("{}: {why}", path.display())) }
}

/// Runs the program or machine to its end. Returns an error if the status is not 0.
pub fn run(args: cli::PartitionRun, config: &Config) -> Result<()> {
    let work = Work::of(&args)?;
    if work.image.is_none() && !args.channels.is_empty() {
        bail!("--channel: a program has one channel; an image may have several");
    }
    let qemu = work.image.map(|end| qemu(&args, work.program, end)).transpose()?;
    let mut serving = config.serving(&Serving::default())?;
    serving.read_only = Some(args.read_only || serving.read_only.unwrap_or(false));
    let remote = config.remote(&args.remote)?;
    let mut prepare = |export: Export| Served::prepare(export, config, &mut serving);
    let root = work.export.clone().map(&mut prepare).transpose()?;
    let others: Vec<(String, Served)> = (args.channels.iter())
        .map(|(name, export)| Ok((name.clone(), prepare(export.clone())?)))
        .collect::<Result<_>>()?;
    let ended = rt::block_on(async |env| {
        let (core, archives) = (Core::default(), Arc::<Archives>::default());
        let opened = async {
            let root = match &root {
                Some(served) => served.open(env, &serving, &core, &[], &archives).await?,
                None => default_server(env, &serving, remote, &archives).await?,
            };
            let mut all = vec![(machine::ROOT.to_owned(), root)];
            for (name, served) in &others {
                all.push((name.clone(), served.open(env, &serving, &core, &[], &archives).await?));
            }
            anyhow::Ok(all)
        };
        let opened = opened.await;
        let ended = match &opened {
            Ok(opened) => match &qemu {
                Some(qemu) => host_machine(env, &args, &work, qemu, (&serving, opened), core).await.map(Some),
                None => host(env, &args, &work, &serving, &opened[0].1, core).await.map(Some),
            },
            Err(_) => Ok(None),
        };
        let closed = archives.close(&env).await;
        opened?;
        let ended = ended?;
        closed.map(|()| ended.expect("it was opened"))
    });
    console::end();
    match ended?? {
        0 => Ok(()),
        status => Err(Program { status, error: None }.into()),
    }
}

/// Finds QEMU for this image, and checks that the image fits in the configured memory.
fn qemu(args: &cli::PartitionRun, image: &OsString, end: u64) -> Result<PathBuf, Program> {
    let image = image.display();
    if end >> 20 >= args.memory.into() {
        let why = format!("{image}: the image needs {} MiB: --memory", (end >> 20) + 1);
        return Err(Program { status: 126, error: Some(why) });
    }
    machine::found(&args.qemu).ok_or_else(|| {
        let qemu = args.qemu.display();
        let why = format!(
            "{image}: a machine needs QEMU, and there is no {qemu} (Debian: qemu-system-x86); programs run without"
        );
        Program { status: 126, error: Some(why) }
    })
}

/// Returns the exit status in a shell's form.
pub(super) fn status(status: ExitStatus) -> u8 {
    let status = status.code().or(status.signal().map(|signal| 128 + signal));
    status.expect("it has ended one way or the other") as u8
}

/// Mounts the default server below a mux, which attaches there once for each attach of the program. If this command
/// itself was started with a channel, its host is the default server.
async fn default_server(
    env: rt::Real,
    serving: &Serving,
    remote: Remote,
    archives: &Arc<Archives>,
) -> Result<Opened> {
    let servers = Servers::new(serving, remote.clone(), env, 1, archives.clone());
    let place = Place::parse("/".as_ref(), &remote)?;
    let sessions = Sessions::new(remote.clone(), env);
    if place.addr != ServerAddr::Inherited {
        // Report an error of this server now, in the same form as elsewhere.
        sessions.find(&place, true, GetMask::BASIC).await.context(place.clone())?;
    }
    let server = servers.of(std::slice::from_ref(&place), &sessions)?;
    let path = String::from_utf8(place.path).map_err(|_| anyhow!("the server's path is no text"))?;
    Opened::elsewhere(env, &servers, server, &remote, &path).await
}

/// Returns the identity of the client at a channel: the user of this process, because no other process has the memory.
fn peer(program: &OsString) -> Peer {
    let proof = Proof::Unix { uid: geteuid().as_raw(), gid: getegid().as_raw() };
    Peer { addr: format!("partition!{}", program.display()), proof }
}

/// Clears the umask, so that files get the modes that clients ask for, and raises the limit of open files. Only for
/// this process, not for programs it starts.
pub(super) fn settle() {
    rustix::process::umask(rustix::fs::Mode::empty());
    if let Err(error) = rt::raise_nofile() {
        tracing::warn!("the limit of open files stays as it is: {error}");
    }
}

pub(super) fn gate(serving: &Serving) -> Gate {
    Gate { read_only: serving.read_only.unwrap_or(false), ..Gate::default() }
}

/// Starts the machine and serves it until it ends.
async fn host_machine(
    env: rt::Real,
    args: &cli::PartitionRun,
    work: &Work<'_>,
    qemu: &Path,
    (serving, opened): (&Serving, &[(String, Opened)]),
    core: Core,
) -> Result<u8> {
    let mut signals = rt::signals()?;
    // In a session, the path is a temporary file of the server, so use the given name.
    let name = args.name.as_ref().unwrap_or(work.program).display();
    let not_run = |why: String| Program { status: 126, error: Some(format!("{name}: {why}")) };
    let accels: &[Accel] = match args.accel {
        AccelChoice::Auto => &[Accel::Kvm, Accel::Tcg],
        AccelChoice::Kvm => &[Accel::Kvm],
        AccelChoice::Tcg => &[Accel::Tcg],
    };
    let argv = std::iter::once(args.name.as_ref().unwrap_or(work.program)).chain(work.words);
    let argv: Vec<String> = argv
        .map(|word| {
            word.to_str().map(Into::into).ok_or_else(|| not_run(format!("{} is no text", word.display())))
        })
        .collect::<Result<_, _>>()?;
    let standard = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
    let stdio = machine::Stdio {
        stdin: standard(io::stdin().as_fd())?,
        stdout: standard(io::stdout().as_fd())?,
        stderr: standard(io::stderr().as_fd())?,
    };
    let own = Arc::new(machine::Own::new(&argv, &args.env, stdio, env.clock())?);
    // QEMU starts in another directory.
    let image = std::path::absolute(work.program)?.into_os_string();
    let shows = opened.iter().map(|(name, opened)| {
        (name.clone(), Service::new(opened.server.clone(), gate(serving), core.clone()))
    });
    let mut machine = Machine {
        qemu: qemu.into(),
        computer: Computer {
            image: image.clone().into(),
            memory: args.memory,
            wait: args.wait.into(),
            accel: Accel::Tcg,
            more: args.qemu_word.clone(),
        },
        shows: shows.collect(),
        own,
        words: standard(io::stderr().as_fd())?,
        peer: peer(work.program),
    };
    settle();
    let tried = |accel: Accel, why: &str| match args.name {
        None => fail::note(format_args!("{name}: not with {accel}: {why}")),
        // A client of a remote session does not choose the acceleration, so its user is not notified.
        Some(_) => tracing::info!("{name}: not with {accel}: {why}"),
    };
    let ended = async {
        let command = |qemu: &Path, words: &[OsString]| confined(qemu, words, &image, &args.qemu_word);
        let running = machine.start(&env, accels, command, tried).await?;
        tracing::info!(image = %name, accel = %running.accel, "a machine runs");
        io::Result::Ok(running.ended(&env).await)
    };
    let (status, qemu) = match select(pin!(ended), pin!(signals.next())).await {
        Either::Left((ended, _)) => ended?,
        // The machine ends with the dropped future.
        Either::Right((signal, _)) => return Ok(128 + number(signal)),
    };
    status.ok_or_else(|| {
        let why = match qemu.signal() {
            Some(signal) => format!("it has ended without a status: QEMU was ended by signal {signal}"),
            // QEMU exited by itself, without an error.
            None if qemu.success() => {
                "it has ended without a status: by a triple fault, or it was switched off".into()
            }
            None => "it has ended without a status".into(),
        };
        Program { status: 125, error: Some(format!("{name}: {why}")) }.into()
    })
}

/// Returns the command that runs QEMU with this image and with the user's extra words, confined to the rights it needs.
fn confined(qemu: &Path, words: &[OsString], image: &OsString, more: &[OsString]) -> io::Result<Command> {
    let text =
        |word: &OsStr| word.to_str().map(Into::into).ok_or_else(|| io::Error::other("a path is no text"));
    let words = words.iter().map(|word| text(word)).collect::<io::Result<Vec<String>>>()?;
    let path = std::env::var("PATH").unwrap_or_default();
    let qemu: String = text(qemu.as_os_str())?;
    let named = more.iter().filter_map(|word| word.to_str()).flat_map(|word| word.split(','));
    let named = named.filter_map(|part| part.strip_prefix("path=")).map(Into::into);
    let (reads, writes) = (vec![text(image)?], named.chain(["/dev/kvm".into()]).collect());
    let rights = Rights { programs: vec![qemu.clone()], reads, writes };
    part::confined(&qemu, &words, vec![("PATH".into(), path)], rights)
}

fn number(signal: rt::Signal) -> u8 {
    match signal {
        rt::Signal::Interrupt => 2,
        rt::Signal::Terminate => 15,
        rt::Signal::Hangup => 1,
    }
}

/// Starts the program and serves it until it ends.
async fn host(
    env: rt::Real,
    args: &cli::PartitionRun,
    work: &Work<'_>,
    serving: &Serving,
    opened: &Opened,
    core: Core,
) -> Result<u8> {
    let (program, words) = (work.program, work.words);
    let mut signals = rt::signals()?;
    let layout = Layout::new(Kind::GuestAsks, LINES, PAGES, "");
    let (ours, theirs) = UnixStream::pair()?;
    let (channel, given) = Channel::open(layout, args.wait.into(), ours.into(), peer(program))?;
    let child = start(program, words, given.for_child(theirs.into())?)?;
    let service = Service::new(opened.server.clone(), gate(serving), core);
    // The program may close the channel and continue without it.
    let served = serve_all(&service, channel).map(|_| Ok(()));
    attend(env, child, &mut signals, served).await
}

/// Serves a program until it ends, and passes signals on to it. The service may end earlier; its error ends the wait.
pub(super) async fn attend(
    env: rt::Real,
    mut child: Child,
    signals: &mut rt::Signals,
    served: impl Future<Output = io::Result<()>>,
) -> Result<u8> {
    let pid = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    settle();
    let mut served = pin!(served);
    let (mut ended, end) = abortable(pending::<()>());
    let waiter = thread::Builder::new().name("program".into()).spawn(move || {
        let status = child.wait();
        end.abort();
        status
    })?;
    let mut is_served = true;
    loop {
        let signal = pin!(signals.next());
        let program = select(&mut ended, signal);
        let came = match is_served {
            true => match select(&mut served, program).await {
                Either::Left((gone, _)) => {
                    gone?;
                    is_served = false;
                    continue;
                }
                Either::Right((came, _)) => came,
            },
            false => program.await,
        };
        let Either::Right((signal, _)) = came else { break };
        // This fails if the program has just ended; then it needs no signal.
        if let Some(signal) = passed_on(signal) {
            let _ = pidfd_send_signal(&pid, signal);
        }
    }
    if is_served {
        within(&env, PATIENCE, served).await;
    }
    Ok(status(waiter.join().expect("it only waits")?))
}

fn start(program: &OsString, words: &[OsString], channel: Inherited) -> Result<Child> {
    let (name, value) = channel.variable();
    let child = Command::new(program).args(words).env(name, value).spawn();
    Ok(child.map_err(|error| cannot(program, &error))?)
}

/// Returns the signal to pass on, if any. A terminal sends its ^C to both processes already.
fn passed_on(signal: rt::Signal) -> Option<Signal> {
    let is_shown_here = || {
        let terminal = File::open(TERMINAL).ok();
        terminal.and_then(|terminal| termios::tcgetpgrp(terminal).ok()) == Some(getpgrp())
    };
    match signal {
        rt::Signal::Interrupt if is_shown_here() => None,
        rt::Signal::Interrupt => Some(Signal::INT),
        rt::Signal::Terminate => Some(Signal::TERM),
        rt::Signal::Hangup => Some(Signal::HUP),
    }
}

/// The controlling terminal, if there is one.
const TERMINAL: &str = "/dev/tty";
