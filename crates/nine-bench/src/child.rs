//! Child processes: the servers of a run. The kernel kills them when this process ends, for whatever reason.
//!
//! Every child starts as this program with [`ROLE`] as its first word, and asks the kernel for SIGKILL at its parent's
//! death. Then it plays its role or executes another program, which inherits that setting. The setting depends on the
//! parent's thread, so only the main thread starts children: it ends last.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::{aoe, archive, channel, each, http, limit, ours};

/// First word of a child's command line; the second is the parent's pid.
pub const ROLE: &str = "__child";

/// Unit of processor time in /proc, on every Linux.
const TICK_MS: u64 = 10;

/// A child process, killed on drop.
pub struct ChildProcess(std::process::Child);

impl ChildProcess {
    /// Starts this program in a role. Returns when the role has called [`ready`].
    pub fn role(words: &[&OsStr]) -> io::Result<Self> {
        let mut child = Self(command(words)?.stdout(Stdio::piped()).spawn()?);
        let said = child.0.stdout.take().map(|mut out| out.read(&mut [0; 1]));
        match said {
            Some(Ok(1)) => Ok(child),
            _ => Err(io::Error::other(format!("{} did not start", words[0].display()))),
        }
    }

    /// Starts another program with its output in a file.
    pub fn program(words: &[&OsStr], log: &Path) -> io::Result<Self> {
        Self::placed(&[&[OsStr::new("exec")], words].concat(), log, |_| Ok(()))
    }

    /// Starts a role with its output in a file; `place` prepares the command.
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

    /// Returns whether the process has ended by itself.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// Waits until it ends by itself. Fails after `limit`.
    pub fn wait(&mut self, limit: Duration) -> io::Result<ExitStatus> {
        first_end(std::slice::from_ref(self), limit)?;
        self.0.wait()
    }

    /// Returns the processor time of all its threads, in user and kernel mode, without its children.
    pub fn cpu(&self) -> io::Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        // The name in parentheses may contain any character; utime and stime are the 12th and 13th field after it.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let stat = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            nanos += stat.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        }
        // `utime` is rounded down, and `schedstat` lacks ended threads. So the larger sum is closer to the truth.
        Ok(Duration::from_millis(ticks * TICK_MS).max(Duration::from_nanos(nanos)))
    }
}

/// Waits until one of the children ends. Fails after `limit`.
pub fn first_end(children: &[ChildProcess], limit: Duration) -> io::Result<()> {
    let open = |child: &ChildProcess| pidfd_open(child.pid(), PidfdFlags::empty());
    let fds = children.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    match poll(&mut polled, Some(&limit))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // This fails if the child has ended; then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(words: &[&OsStr]) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([ROLE, &std::process::id().to_string()]).args(words).stdin(Stdio::null());
    Ok(command)
}

/// Runs a child's role.
pub fn main(words: &[OsString]) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let [parent, role, rest @ ..] = &words[..] else { return Err(unknown()) };
    // The parent may have died before the call above.
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

/// Tells the parent that clients may connect.
pub fn ready() {
    println!();
}

fn unknown() -> io::Error {
    io::Error::other("this is no role")
}
