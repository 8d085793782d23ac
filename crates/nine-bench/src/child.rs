//! Child processes: the servers of a run. The kernel ends them when we end, whatever ends us.
//!
//! Every child begins as this program with [`ROLE`] in front, asks the kernel for SIGKILL at its parent's death, and
//! then plays its role or becomes another program, which keeps that. So children are made by the main thread, which
//! ends last.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::{aoe, archive, channel, each, http, limit, ours};

/// The first word of a child's command line; the second is its parent.
pub const ROLE: &str = "__child";

/// In which /proc tells processor time, on every Linux.
const TICK_MS: u64 = 10;

/// A child. Dropping it ends it.
pub struct Child(std::process::Child);

impl Child {
    /// This program in a role; returns when the role has said [`ready`].
    pub fn role(words: &[&OsStr]) -> io::Result<Self> {
        let mut child = Self(command(words)?.stdout(Stdio::piped()).spawn()?);
        let said = child.0.stdout.take().map(|mut out| out.read(&mut [0; 1]));
        match said {
            Some(Ok(1)) => Ok(child),
            _ => Err(io::Error::other(format!("{} did not start", words[0].display()))),
        }
    }

    /// Another program, its output in a file.
    pub fn program(words: &[&OsStr], log: &Path) -> io::Result<Self> {
        Self::placed(&[&[OsStr::new("exec")], words].concat(), log, |_| Ok(()))
    }

    /// A role, its output in a file; `place` says where it runs.
    pub fn placed(
        words: &[&OsStr],
        log: &Path,
        place: impl FnOnce(&mut Command) -> io::Result<()>,
    ) -> io::Result<Self> {
        let log = std::fs::File::create(log)?;
        let mut command = command(words)?;
        place(&mut command)?;
        Ok(Self(command.stdout(log.try_clone()?).stderr(log).spawn()?))
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// Waits until it has ended by itself; it is an error if that takes longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> io::Result<ExitStatus> {
        first_end(std::slice::from_ref(self), limit)?;
        self.0.wait()
    }

    /// Processor time that it has had, of all its threads and of the kernel for them; of its children nothing.
    pub fn cpu(&self) -> io::Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        // The name, in parentheses, may hold anything; utime and stime are the twelfth and thirteenth field behind it.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let stat = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            nanos += stat.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        }
        // The first is rounded down, the second leaves out threads that have ended: the larger one is nearer.
        Ok(Duration::from_millis(ticks * TICK_MS).max(Duration::from_nanos(nanos)))
    }
}

/// Waits until one of them has ended; it is an error if that takes longer than `limit`.
pub fn first_end(children: &[Child], limit: Duration) -> io::Result<()> {
    let open = |child: &Child| pidfd_open(child.pid(), PidfdFlags::empty());
    let fds = children.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    match poll(&mut polled, Some(&limit))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended: there is nothing more to do then.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(words: &[&OsStr]) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([ROLE, &std::process::id().to_string()]).args(words).stdin(Stdio::null());
    Ok(command)
}

/// What a child does.
pub fn main(words: &[OsString]) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let [parent, role, rest @ ..] = &words[..] else { return Err(unknown()) };
    // It may have died before we asked.
    let alive = rustix::process::getppid().map(|pid| pid.to_string());
    if alive.as_deref().map(OsStr::new) != Some(parent) {
        return Ok(());
    }
    match (role.to_str(), rest) {
        (Some("serve"), [dir, socket]) => ours::serve(Path::new(dir), Path::new(socket), true),
        (Some("serve-bare"), [dir, socket]) => ours::serve(Path::new(dir), Path::new(socket), false),
        (Some("ram"), sockets) => ours::ram(sockets),
        (Some("mute"), sockets) => ours::mute(sockets),
        (Some("mux"), [script, socket]) => ours::mux(Path::new(script), Path::new(socket), true),
        (Some("channel"), [script, sockets]) => channel::serve(Path::new(script), Path::new(sockets)),
        (Some("mux-bare"), [script, socket]) => ours::mux(Path::new(script), Path::new(socket), false),
        (Some("archive"), [dir, shape, socket]) => archive::serve(Path::new(dir), shape, Path::new(socket)),
        (Some("web"), [dir, addr]) => ours::web(Path::new(dir), addr, false),
        (Some("web-srpt"), [dir, addr]) => ours::web(Path::new(dir), addr, true),
        (Some("web-threads"), [dir, addr]) => http::serve(Path::new(dir), addr, true),
        (Some("web-events"), [dir, addr]) => http::serve(Path::new(dir), addr, false),
        (Some("echo"), [socket]) => limit::echo(Path::new(socket)),
        (Some("relay"), [socket, to]) => limit::relay(Path::new(socket), Path::new(to)),
        (Some("gate"), [socket]) => limit::gate(Path::new(socket)),
        (Some("frames"), [interface]) => aoe::answer(interface),
        (Some("bulk"), [socket, file]) => limit::bulk(Path::new(socket), Path::new(file)),
        (Some("each"), [address, program @ ..]) => each::serve(address, program),
        (Some("exec"), [program, args @ ..]) => Err(Command::new(program).args(args).exec()),
        _ => Err(unknown()),
    }
}

/// Tells the parent that clients may come.
pub fn ready() {
    println!();
}

fn unknown() -> io::Error {
    io::Error::other("this is no role")
}
