//! A child process that runs beside a step.
//!
//! Its output is stored, waiting for it has a timeout, and dropping it kills it by its id. If the system has
//! setpriv(1), the kernel also kills it when this process is killed or the thread that started it ends.

use std::io::{PipeReader, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A child process, with the output that it has written to stdout and stderr.
pub struct Child {
    child: std::process::Child,
    pieces: Receiver<Vec<u8>>,
    said: Vec<u8>,
    show: bool,
}

impl Child {
    /// Starts a program. With `show`, its output is also printed.
    pub fn start(program: &str, arguments: &[String], show: bool) -> Result<Child, String> {
        let (output, input) = std::io::pipe().map_err(|e| format!("pipe: {e}"))?;
        let mut command = Command::new(program);
        if crate::packages::on_path("setpriv") {
            command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--", program]);
        }
        command.args(arguments).current_dir(crate::root()).stdin(Stdio::null());
        command.stdout(input.try_clone().map_err(|e| format!("pipe: {e}"))?).stderr(input);
        let child = command.spawn().map_err(|e| format!("cannot start {program}: {e}"))?;
        // The command holds the write ends of the pipe. The output does not end while it lives.
        drop(command);
        let (sender, pieces) = channel();
        std::thread::spawn(move || {
            each_piece(output, |piece| sender.send(piece.to_vec()).is_ok());
        });
        Ok(Child { child, pieces, said: Vec::new(), show })
    }

    /// Waits until the output contains `word`. The error includes the actual output.
    pub fn wait_for(&mut self, word: &str, limit: Duration) -> Result<(), String> {
        let until = Instant::now() + limit;
        while !self.output().contains(word) {
            if !self.next_piece(until)? {
                return Err(format!("ended before it said {word:?}"));
            }
        }
        Ok(())
    }

    /// Waits until the output and the process have ended.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let until = Instant::now() + limit;
        while self.next_piece(until)? {}
        self.child.wait().map_err(|e| e.to_string())
    }

    /// Reads the available output without waiting.
    pub fn catch_up(&mut self) {
        while let Ok(true) = self.next_piece(Instant::now()) {}
    }

    /// Returns the output that was read so far.
    pub fn output(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.said)
    }

    /// Sends a signal, named as in kill(1).
    pub fn signal(&self, signal: &str) -> Result<(), String> {
        let id = self.child.id().to_string();
        let status = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", signal, &id]).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("kill -s {signal}: {status}")),
            Err(e) => Err(format!("sh: {e}")),
        }
    }

    /// Reads the next piece of the output. Returns false at its end.
    fn next_piece(&mut self, until: Instant) -> Result<bool, String> {
        match self.pieces.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(piece) => {
                if self.show {
                    let mut out = std::io::stdout();
                    // Continue to serve the child even if our own output is closed.
                    let _ = out.write_all(&piece).and_then(|()| out.flush());
                }
                self.said.extend(piece);
                Ok(true)
            }
            Err(RecvTimeoutError::Disconnected) => Ok(false),
            Err(RecvTimeoutError::Timeout) => Err("did not end in time".to_string()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // This fails only for a process that was already waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes each piece of the output to `f`, until the end or until `f` returns false.
fn each_piece(mut output: PipeReader, mut f: impl FnMut(&[u8]) -> bool) {
    let mut buffer = [0; 16 << 10];
    while let Ok(n @ 1..) = output.read(&mut buffer) {
        if !f(&buffer[..n]) {
            return;
        }
    }
}

/// Returns the last lines of a text, each after a bar, for a report.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(count);
    lines[from..].iter().map(|line| format!("  | {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        Child::start("sh", &["-c".to_string(), script.to_string()], false).unwrap()
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn both_outputs_are_kept_and_the_status_told() {
        let mut child = shell("echo one; echo two >&2; exit 3");
        assert_eq!(child.wait(LONG).unwrap().code(), Some(3));
        assert_eq!(child.output(), "one\ntwo\n");
    }

    #[test]
    fn a_word_is_waited_for() {
        let mut child = shell("echo ready; exec sleep 1000");
        child.wait_for("ready", LONG).unwrap();
        let mut child = shell("echo no");
        assert!(child.wait_for("ready", LONG).unwrap_err().contains("ended before"));
    }

    #[test]
    fn one_that_does_not_end_is_killed_by_its_id() {
        let mut child = shell("echo here; exec sleep 1000");
        child.wait_for("here", LONG).unwrap();
        assert!(child.wait(Duration::ZERO).unwrap_err().contains("in time"));
        let process = format!("/proc/{}", child.child.id());
        assert!(std::path::Path::new(&process).exists());
        drop(child);
        assert!(!std::path::Path::new(&process).exists());
    }
}
