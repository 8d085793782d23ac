//! Child processes: the servers of a run. The kernel ends them when we end, whatever ends us.
//!
//! Every child begins as this program with [`ROLE`] in front, asks the kernel for SIGKILL at its parent's death, and
//! then plays its role or becomes another program, which keeps that. So children are made by the main thread, which
//! ends last.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};

use crate::{limit, ours};

/// The first word of a child's command line; the second is its parent.
pub const ROLE: &str = "__child";

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
        let log = std::fs::File::create(log)?;
        let words = [&[OsStr::new("exec")], words].concat();
        let child = command(&words)?.stdout(log.try_clone()?).stderr(log).spawn()?;
        Ok(Self(child))
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
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
        (Some("serve"), [dir, socket]) => ours::serve(Path::new(dir), Path::new(socket)),
        (Some("ram"), sockets) => ours::ram(sockets),
        (Some("mute"), sockets) => ours::mute(sockets),
        (Some("mux"), [script, socket]) => ours::mux(Path::new(script), Path::new(socket)),
        (Some("echo"), [socket]) => limit::echo(Path::new(socket)),
        (Some("relay"), [socket, to]) => limit::relay(Path::new(socket), Path::new(to)),
        (Some("bulk"), [socket, file]) => limit::bulk(Path::new(socket), Path::new(file)),
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
