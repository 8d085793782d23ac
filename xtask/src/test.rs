//! `cargo xtask test`: everything a change must pass but format and lints, from a clone with only a Rust
//! toolchain.
//!
//! Order: what fails soonest comes first. What this machine cannot check is said, never skipped in silence.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::steps::{Failed, Steps, cargo};
use crate::tidy;

/// Runs every step; `all` adds what is too long for each change.
pub fn run(steps: &mut Steps, all: bool) -> Result<(), Failed> {
    install(steps)?;
    steps.call("tidy", "cargo xtask tidy", || tidy::run(crate::root()))?;
    let mut tests = cargo(&["test", "--workspace"]);
    if all {
        tests.args(["--", "--include-ignored"]);
    }
    steps.run("tests", &mut tests)?;
    no_std(steps)?;
    if all {
        wake_ups(steps)?;
        crate::sim(steps, &[("NINE_SEEDS", "1000".to_string())])?;
    }
    crate::fuzz_smoke(steps, if all { 10 * crate::SMOKE } else { crate::SMOKE })
}

/// Every order in which two threads can meet at a wake-up, by loom.
fn wake_ups(steps: &mut Steps) -> Result<(), Failed> {
    let mut tests = cargo(&["test", "--release", "--package", "nine-io", "--lib", "order"]);
    tests.env("RUSTFLAGS", "--cfg nine_loom").env("CARGO_TARGET_DIR", "target/loom");
    steps.run("wake-ups", &mut tests)
}

/// Installs the Debian packages that tests call, where we may; elsewhere says what is missing.
fn install(steps: &mut Steps) -> Result<(), Failed> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !on_path(need.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    if is_root() && on_path("apt-get") {
        let script = "apt-get install -qy --no-install-recommends \"$@\" \
                      || { apt-get update -q && apt-get install -qy --no-install-recommends \"$@\"; }";
        let mut apt = Command::new("sh");
        apt.env("DEBIAN_FRONTEND", "noninteractive").args(["-c", script, "apt"]).args(&packages);
        return steps.run("packages", apt.stdin(Stdio::null()));
    }
    for need in missing {
        steps.not_covered(format!("{} (package {} is not installed)", need.covers, need.package));
    }
    Ok(())
}

/// nine-proto needs neither std nor an operating system: it links and runs without std on this host, and it
/// builds for bare metal where rustup can bring that target.
fn no_std(steps: &mut Steps) -> Result<(), Failed> {
    let probe = ["run", "--release", "--quiet", "--manifest-path", "xtask/nostd-probe/Cargo.toml"];
    steps.run("no_std on the host", &mut cargo(&probe))?;
    let target = Command::new("rustup").args(["target", "add", BARE]).stdin(Stdio::null()).output();
    if !target.is_ok_and(|output| output.status.success()) {
        steps.not_covered(format!(
            "nine-proto on bare metal (rustup cannot add {BARE}); it ran without std here"
        ));
        return Ok(());
    }
    steps.run("no_std on bare metal", &mut cargo(&["build", "--package", "nine-proto", "--target", BARE]))
}

/// A program that some test calls.
struct Need {
    program: &'static str,
    package: &'static str,
    covers: &'static str,
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    Path::new("/proc/self").metadata().is_ok_and(|meta| meta.uid() == 0)
}

const BARE: &str = "x86_64-unknown-none";

const NEEDS: &[Need] = &[];
