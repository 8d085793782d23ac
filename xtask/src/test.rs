//! `cargo xtask test`: everything a change must pass but format and lints, from a clone with only a Rust
//! toolchain.
//!
//! Order: what fails soonest comes first. What this machine cannot check is said, never skipped in silence.

use std::process::{Command, Stdio};

use crate::images::{self, BARE};
use crate::served::Program;
use crate::steps::{Failed, Steps, cargo};
use crate::{
    HOST, aoe, browser, capi, diod, dissector, fuse, http, package, packages, python, stores, tidy, v9fs,
};

/// Runs every step; `all` adds what is too long for each change.
pub fn run(steps: &mut Steps, all: bool) -> Result<(), Failed> {
    packages::install(steps, all)?;
    steps.call("tidy", "cargo xtask tidy", || tidy::run(crate::root()))?;
    let mut tests = cargo(&["test", "--workspace"]);
    if all {
        tests.args(["--", "--include-ignored"]);
    }
    steps.run("tests", &mut tests)?;
    // As the tests have built them: a build that runs faster takes longer than it saves.
    let mut cuts = cargo(&["test", "--workspace", "--test", "archive"]);
    steps.run("power cuts", cuts.env("NINE_SEEDS", CUT_WORLDS.to_string()))?;
    no_std(steps)?;
    others(steps, all)?;
    wake_ups(steps, all)?;
    if all {
        sanitizers(steps)?;
        crate::sim(steps, &[("NINE_SEEDS", "1000".to_string())])?;
    }
    crate::fuzz_smoke(steps, if all { 10 * crate::SMOKE } else { crate::SMOKE })
}

/// Programs that are not ours, as clients of our server.
fn others(steps: &mut Steps, all: bool) -> Result<(), Failed> {
    let program = if all { Program::built(steps, true)? } else { Program::tested() };
    diod::run(steps, &program)?;
    dissector::run(steps, &program)?;
    capi::run(steps, &program)?;
    python::run(steps, &program)?;
    fuse::run(steps, &program, "")?;
    aoe::run(steps, &program, all)?;
    package::run(steps, &program, all, all)?;
    if all {
        http::run(steps, &program)?;
        browser::run(steps, &program)?;
        stores::run(steps, &program)?;
    }
    v9fs::run(steps, &program, all, "")
}

/// Every order in which threads can meet at a wait and its wake-up, by loom; of disks and channels always, of channels
/// by shuttle too, which goes further into some orders instead of a little into all.
fn wake_ups(steps: &mut Steps, all: bool) -> Result<(), Failed> {
    let mut tests = cargo(&["test", "--release", "--lib", "-p", "nine-ring", "any_order"]);
    tests.env("RUSTFLAGS", "--cfg nine_shuttle").env("CARGO_TARGET_DIR", "target/shuttle");
    steps.run("wake-ups of channels", &mut tests)?;
    let mut tests = cargo(&["test", "--release", "--lib"]);
    tests.args(["-p", "nine-block", "-p", "nine-ring"]);
    if all {
        for room in ["nine-gate", "nine-io", "nine-mux", "nine-net", "nine-servers", "nine-stream"] {
            tests.args(["-p", room]);
        }
    }
    tests.arg("any_order");
    tests.env("RUSTFLAGS", "--cfg nine_loom").env("CARGO_TARGET_DIR", "target/loom");
    steps.run("wake-ups", &mut tests)
}

/// The tests that touch memory of others and threads, under the compiler's own checks. std is built anew where its
/// source can be had, so that ThreadSanitizer sees its locks too: without that it takes them for races.
fn sanitizers(steps: &mut Steps) -> Result<(), Failed> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")) {
        steps.not_covered("AddressSanitizer and ThreadSanitizer (this host is not x86_64 Linux)".to_string());
        return Ok(());
    }
    sanitizer(steps, "AddressSanitizer", "address", "target/asan", &["--target", HOST])?;
    let source = Command::new("rustup").args(["component", "add", "rust-src"]).stdin(Stdio::null()).output();
    if !source.is_ok_and(|output| output.status.success()) {
        steps.not_covered("ThreadSanitizer (rustup cannot add rust-src, so std cannot be built)".to_string());
        return Ok(());
    }
    sanitizer(steps, "ThreadSanitizer", "thread", "target/tsan", &["-Zbuild-std", "--target", HOST])
}

fn sanitizer(
    steps: &mut Steps,
    name: &str,
    flag: &str,
    target: &str,
    arguments: &[&str],
) -> Result<(), Failed> {
    // Both are unstable options; the variable lets a stable toolchain have them.
    let checked = |command: &mut Command| {
        command.args(arguments).env("RUSTC_BOOTSTRAP", "1");
        command.env("RUSTFLAGS", format!("-Zsanitizer={flag}")).env("CARGO_TARGET_DIR", target);
    };
    // The tests of nine-guest run them.
    let mut examples = cargo(&["build", "-p", "nine-guest", "--features", "linux", "--examples"]);
    checked(&mut examples);
    steps.run(&format!("{name}: guests"), &mut examples)?;
    let mut tests = cargo(&["test", "--lib", "--tests"]);
    checked(&mut tests);
    for room in ["nine-ring", "nine-guest", "nine-io", "nine-net", "nine-servers", "nine-sim"] {
        tests.args(["-p", room]);
    }
    steps.run(name, &mut tests)
}

/// nine-proto needs neither std nor an operating system: it links and runs without std on this host, and it
/// builds for bare metal where rustup can bring that target.
fn no_std(steps: &mut Steps) -> Result<(), Failed> {
    let probe = ["run", "--release", "--quiet", "--manifest-path", "xtask/nostd-probe/Cargo.toml"];
    steps.run("no_std on the host", &mut cargo(&probe))?;
    if !images::has_bare() {
        steps.not_covered(format!(
            "nine-proto, nine-ring, nine-guest and nine-stream on bare metal (rustup cannot add {BARE})"
        ));
        return Ok(());
    }
    let rooms = ["nine-proto", "nine-ring", "nine-guest", "nine-stream"].map(|room| ["--package", room]);
    let build = ["build", "--no-default-features", "--target", BARE];
    steps.run("no_std on bare metal", cargo(&build).args(rooms.concat()))
}

/// A thousand cuts.
const CUT_WORLDS: u64 = 220;
