//! Network name spaces, for programs on simulated separate machines.

use std::io::Read;
use std::process::{Child, Command, Stdio};

/// A network name space, which exists as long as a process in it.
pub struct Space(pub Child);

impl Space {
    pub fn new() -> Result<Self, String> {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", "echo in; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = unshare.stderr(Stdio::null()).spawn().map_err(|error| format!("unshare: {error}"))?;
        let mut said = [0; 3];
        let read = child.stdout.as_mut().expect("piped").read_exact(&mut said);
        let space = Self(child);
        read.map(|()| space).map_err(|_| "this user may make no network name spaces".into())
    }

    /// Returns the command, run inside the name space.
    pub fn within(&self, command: &Command) -> Command {
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(format!("--net=/proc/{}/ns/net", self.0.id())).arg(command.get_program());
        nsenter.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => nsenter.env(name, value),
                None => nsenter.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            nsenter.current_dir(dir);
        }
        nsenter
    }

    pub fn ip(&self, words: &str) -> Result<(), String> {
        let mut ip = Command::new("ip");
        let output = self.within(ip.args(words.split(' '))).output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("ip {words}: {said}")) }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // This fails if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
