//! A private network name space. Everything in it disappears with it, however this process ends.

use std::process::Command;
use std::time::Duration;

use crate::child::Child;

pub struct Netns {
    /// The process that holds it open.
    _held: Child,
    /// The id of that process.
    pub id: String,
}

impl Netns {
    pub fn new() -> Result<Self, String> {
        let words = ["--net", "sh", "-c", "echo $$; exec sleep infinity"].map(String::from);
        let mut held = Child::start("unshare", &words, false)?;
        // If it fails, its output has the reason.
        let _ = held.wait_for("\n", Duration::from_secs(20));
        let id = held.output().trim().to_string();
        if id.parse::<u32>().is_err() {
            return Err(format!("no network name space can be made here: {id}"));
        }
        Ok(Self { _held: held, id })
    }

    /// Returns the command prefix that runs a program in the name space.
    pub fn enter(&self) -> Vec<String> {
        vec!["nsenter".to_string(), format!("--net=/proc/{}/ns/net", self.id)]
    }

    /// Starts a program in the name space, beside this process.
    pub fn start(&self, words: &[&str]) -> Result<Child, String> {
        let mut all = self.enter();
        all.extend(words.iter().map(ToString::to_string));
        Child::start(&all[0], &all[1..], false)
    }

    /// Returns a command that runs a program in the name space. The caller adds the program and its arguments.
    pub fn command(&self) -> Command {
        let all = self.enter();
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]);
        command
    }

    /// Runs `ip` with arguments separated by blanks.
    pub fn ip(&self, words: &str) -> Result<(), String> {
        said(self.command().arg("ip").args(words.split(' '))).map(|_| ())
    }
}

/// Returns the output of a program, which must succeed.
pub fn said(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}: {complaint}", output.status))
}
