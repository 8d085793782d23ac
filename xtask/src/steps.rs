//! Steps of a long task. Each is named before it starts, and timed. The first that fails ends the task and prints the
//! command that runs it alone.
//!
//! The output of commands is passed through unchanged: a cold build takes minutes, and silence looks like a hang.

use std::process::Command;
use std::time::{Duration, Instant};

/// A step has failed. The failure was printed.
#[derive(Debug)]
pub struct Failed;

/// The steps that have run, with their times.
#[derive(Default)]
pub struct Steps {
    done: Vec<(String, Duration, &'static str)>,
    missing: Vec<String>,
}

impl Steps {
    /// Runs a command as a step.
    pub fn run(&mut self, name: &str, command: &mut Command) -> Result<(), Failed> {
        let shown = shown(command);
        println!("==> {name}: {shown}");
        self.call(name, &shown, || {
            match command.status() {
                Ok(status) if status.success() => return true,
                Ok(status) => eprintln!("{name}: {status}"),
                Err(e) => eprintln!("{name}: cannot start {}: {e}", command.get_program().display()),
            }
            false
        })
    }

    /// Runs a function as a step; `again` is the command that runs this step alone.
    pub fn call(&mut self, name: &str, again: &str, f: impl FnOnce() -> bool) -> Result<(), Failed> {
        let start = Instant::now();
        let ok = f();
        let took = start.elapsed();
        self.done.push((name.to_string(), took, if ok { "ok" } else { "FAILED" }));
        if ok {
            println!("==> {name}: ok in {:.1} s", took.as_secs_f64());
            return Ok(());
        }
        eprintln!("==> {name}: FAILED after {:.1} s; to run it again: {again}", took.as_secs_f64());
        Err(Failed)
    }

    /// Reports that something cannot be checked here, at once and again at the end.
    pub fn not_covered(&mut self, what: String) {
        println!("==> NOT COVERED: {what}");
        self.missing.push(what);
    }

    /// Prints the table of step times, if there was more than one.
    pub fn report(&self) {
        if self.done.len() < 2 {
            return;
        }
        println!("\n{:<28} {:>8}", "step", "seconds");
        for (name, took, end) in &self.done {
            println!("{name:<28} {:>8.1}  {end}", took.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|(_, took, _)| *took).sum();
        println!("{:<28} {:>8.1}", "all", total.as_secs_f64());
        for what in &self.missing {
            println!("not covered: {what}");
        }
    }
}

/// Returns a command that runs the present cargo at the root of the repository.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::root()).args(args);
    command
}

/// Returns the command as a person would type it at the root of the repository.
pub fn shown(command: &Command) -> String {
    let program = command.get_program();
    let name = std::path::Path::new(program).file_name().unwrap_or(program);
    let mut words: Vec<String> = Vec::new();
    for (key, value) in command.get_envs() {
        words.extend(value.map(|value| format!("{}={}", key.display(), value.display())));
    }
    words.push(name.display().to_string());
    words.extend(command.get_args().map(|arg| arg.display().to_string()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_would_be_typed() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["test", "-p", "nine-sim"]).env("NINE_SEED", "7");
        assert_eq!(shown(&command), "NINE_SEED=7 cargo test -p nine-sim");
    }

    #[test]
    fn a_failing_step_fails_and_is_in_the_report() {
        let mut steps = Steps::default();
        assert!(steps.run("no", &mut Command::new("false")).is_err());
        assert_eq!(steps.done[0].2, "FAILED");
    }
}
