//! A network name space of one's own. What is made in it goes with it, however we end.

use std::process::Command;
use std::time::Duration;

use crate::child::Child;

pub struct Netns {
    /// What waits in it.
    _held: Child,
    /// The id of that.
    pub id: String,
}

impl Netns {
    pub fn new() -> Result<Self, String> {
        let words = ["--net", "sh", "-c", "echo $$; exec sleep infinity"].map(String::from);
        let mut held = Child::start("unshare", &words, false)?;
        // Its end says so as well: what it has said is the reason then.
        let _ = held.wait_for("\n", Duration::from_secs(20));
        let id = held.output().trim().to_string();
        if id.parse::<u32>().is_err() {
            return Err(format!("no network name space can be made here: {id}"));
        }
        Ok(Self { _held: held, id })
    }

    /// The words before those of a program that is to run in it.
    pub fn enter(&self) -> Vec<String> {
        vec!["nsenter".to_string(), format!("--net=/proc/{}/ns/net", self.id)]
    }

    /// A program in it, beside us.
    pub fn start(&self, words: &[&str]) -> Result<Child, String> {
        let mut all = self.enter();
        all.extend(words.iter().map(ToString::to_string));
        Child::start(&all[0], &all[1..], false)
    }

    /// A program in it, whose words are to be added.
    pub fn command(&self) -> Command {
        let all = self.enter();
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]);
        command
    }

    /// `ip`, with words between blanks.
    pub fn ip(&self, words: &str) -> Result<(), String> {
        said(self.command().arg("ip").args(words.split(' '))).map(|_| ())
    }
}

/// What a program says, if it succeeds.
pub fn said(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}: {complaint}", output.status))
}
