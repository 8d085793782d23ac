//! Our server, started for a step on a free port of the loopback. It accepts every client.

use std::path::PathBuf;
use std::time::Duration;

use crate::child::{Child, last_lines};

/// A server that runs until this is dropped.
pub struct Served {
    child: Child,
    /// TCP port on 127.0.0.1.
    pub port: u16,
    what: String,
}

impl Served {
    /// Starts `ninefold serve WHAT OPTION..` and waits until it is ready. `options` may include the addresses to listen
    /// at.
    pub fn start(program: &Program, what: &str, options: &[&str]) -> Result<Served, String> {
        let mut words = ["serve", what, "--config", "/dev/null"].to_vec();
        if !options.contains(&"--listen") {
            words.extend(["--listen", "tcp!127.0.0.1!0 -insecure"]);
        }
        words.extend(options);
        let words: Vec<String> = words.into_iter().map(String::from).collect();
        let mut child = Child::start(&program.0.display().to_string(), &words, false)?;
        let ready = child.wait_for("\nready\n", Duration::from_secs(60));
        let port = child.output().split("tcp!127.0.0.1!").nth(1).and_then(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        });
        match (ready, port) {
            (Ok(()), Some(port)) => Ok(Served { child, port, what: what.to_string() }),
            (ready, _) => {
                let why = ready.err().unwrap_or_else(|| "named no port".to_string());
                Err(format!("ninefold serve {what} {why}\n{}", last_lines(&child.output(), 20)))
            }
        }
    }

    /// Returns its HTTP address, if it has one.
    pub fn url(&self) -> Option<String> {
        let said = self.child.output();
        said.lines().find(|line| line.starts_with("http")).map(String::from)
    }

    /// Returns the end of its log, for a report.
    pub fn log(&mut self) -> String {
        self.child.catch_up();
        format!(
            "ninefold serve {}, the last of its log:\n{}",
            self.what,
            last_lines(&self.child.output(), 20)
        )
    }
}

/// The built command `ninefold`.
pub struct Program(pub PathBuf);

impl Program {
    /// Returns the program; with `published`, as it is packaged. Within a plan that has built the workspace, it is not
    /// built again: a separate build has fewer features, and would recompile most crates.
    pub fn built(steps: &mut crate::steps::Steps, published: bool) -> Result<Program, crate::steps::Failed> {
        let (profile, folder) = if published { ("dist", "dist") } else { ("dev", "debug") };
        Program::of(steps, profile, folder)
    }

    /// Returns the program as users build it.
    pub fn released(steps: &mut crate::steps::Steps) -> Result<Program, crate::steps::Failed> {
        Program::of(steps, "release", "release")
    }

    fn of(
        steps: &mut crate::steps::Steps,
        profile: &str,
        folder: &str,
    ) -> Result<Program, crate::steps::Failed> {
        if !crate::test::is_built() {
            let words = ["build", "--quiet", "--profile", profile, "--package", "ninefold"];
            steps.run("ninefold", &mut crate::steps::cargo(&words))?;
        }
        Ok(Program(crate::target().join(folder).join("ninefold")))
    }
}
