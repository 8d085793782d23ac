//! `cargo xtask tour`: a demonstration of a machine without an operating system. It prints a greeting, reads a file of
//! this repository, and fetches a page through its host's network.

use std::fs;
use std::process::{Command, Stdio};

use crate::guest::scratch;
use crate::images;
use crate::packages;
use crate::root;
use crate::served::{Program, Served};
use crate::steps::{Failed, Steps};

/// Builds what the demonstration needs, and runs it.
pub fn run(steps: &mut Steps) -> Result<(), Failed> {
    packages::install(steps, false)?;
    images::build(steps, false)?;
    let program = Program::built(steps, false)?;
    steps.call("tour", "cargo xtask tour", || match show(&program) {
        Ok(is_well) => is_well,
        Err(why) => {
            eprintln!("{why}");
            false
        }
    })
}

fn show(program: &Program) -> Result<bool, String> {
    let here = root().display().to_string();
    let served = Served::start(program, &here, &["--listen", "tcp!127.0.0.1!0", "--http=http!127.0.0.1!0"])?;
    let url = served.url().ok_or("ninefold serve names no address for browsers")?;
    let space = scratch("tour")?;
    let script = space.0.join("tour.ns");
    let policy = space.0.join("tour.policy");
    // The guest does not own the network.
    let lines = format!(
        "mount 'disk:{}' /files\nmount 'net:{}' /net\n",
        here.replace('\'', "''"),
        policy.display().to_string().replace('\'', "''"),
    );
    fs::write(&policy, "allow dial *!loopback!*\n")
        .and_then(|()| fs::write(&script, lines))
        .map_err(|error| format!("{}: {error}", script.display()))?;
    let mut command = Command::new(&program.0);
    command.args(["partition", "run"]).arg(&script).arg("--").arg(crate::target().join("images/tour"));
    command.args(["files/README.md", &format!("{}LICENSE-MIT", url.trim_end())]);
    let ended = command.stdin(Stdio::null()).status().map_err(|error| error.to_string())?;
    Ok(ended.success())
}
