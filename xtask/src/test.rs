//! `cargo xtask test`: everything that a change must pass except format and lints, from a clone with only a Rust
//! toolchain.
//!
//! First the whole workspace is built once. Then test programs and the checks with third-party programs run in
//! parallel, each as a process, the longest first. A check that cannot run on this machine is reported.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::built::{self, TestProgram};
use crate::plan::{CheckJob, JobOutcome, JobPlan, JobResult};
use crate::report::{self, MeasuredTimes, SecondsTable, TestCount};
use crate::steps::{Failed, Steps, cargo};
use crate::{green, seeds, target};

/// Runs every job, prints the table, and closes with the number of tests.
pub fn run() -> ExitCode {
    let measured = MeasuredTimes::read();
    let tree = green::tree();
    let mut jobs =
        vec![verb("packages", &["packages"]).load(0.0), verb("tidy", &["tidy"]), build(), doc_tests()];
    jobs.extend(no_std());
    jobs.extend(wake_ups(&["nine-block", "nine-ring"]));
    jobs.extend(fuzz(SMOKE));
    jobs.extend(others());
    for job in &mut jobs {
        measured.apply(job);
    }
    // All other jobs wait for it.
    if let Some(build) = jobs.iter_mut().find(|job| job.name == "build") {
        build.expected = f64::MAX;
    }
    let (ended, results) = all(jobs, &SecondsTable::budget("test"), |result| match result.name.as_str() {
        "build" if result.outcome == JobOutcome::Passed => tests(&measured, false),
        _ => Vec::new(),
    });
    measured.record(&results);
    if ended == ExitCode::SUCCESS {
        green::record(tree);
    }
    ended
}

/// Runs jobs to their end, then prints the table and the number of tests.
pub fn all(
    jobs: Vec<CheckJob>,
    budget: &SecondsTable,
    more: impl FnMut(&JobResult) -> Vec<CheckJob>,
) -> (ExitCode, Vec<JobResult>) {
    all_until(jobs, budget, None, more)
}

/// The same; no job starts after `until`.
pub fn all_until(
    jobs: Vec<CheckJob>,
    budget: &SecondsTable,
    until: Option<Instant>,
    more: impl FnMut(&JobResult) -> Vec<CheckJob>,
) -> (ExitCode, Vec<JobResult>) {
    let started = Instant::now();
    let mut plan = match JobPlan::new(&target().join("xtask/log"), processors()) {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("xtask: {why}");
            return (ExitCode::FAILURE, Vec::new());
        }
    };
    plan.until = until;
    jobs.into_iter().for_each(|job| plan.add(job));
    let results = plan.run(more);
    let mut count = TestCount::default();
    let mut not_covered = Vec::new();
    for result in &results {
        count.add(&result.output);
        not_covered.extend(
            result.output.lines().filter_map(|line| Some(line.split_once(NOT_COVERED)?.1.to_string())),
        );
    }
    not_covered.sort();
    not_covered.dedup();
    report::print(&results, budget, started.elapsed().as_secs_f64(), &not_covered);
    println!("{}", count.line());
    let passed = results.iter().all(|result| result.outcome == JobOutcome::Passed);
    (if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }, results)
}

/// Builds every target of the workspace once: tests, libraries, examples and the command.
pub fn build() -> CheckJob {
    let command = built::build_command(&["build", "--workspace", "--all-targets"], &messages());
    CheckJob::build("build", command).again("cargo build --workspace --all-targets")
}

fn messages() -> PathBuf {
    let dir = target().join("xtask");
    let _ = std::fs::create_dir_all(&dir);
    dir.join("build.json")
}

/// Returns the test programs of the last build.
///
/// # Errors
/// There is no such build.
pub fn programs() -> Result<Vec<TestProgram>, String> {
    built::test_programs(&messages())
}

/// Returns a job for each part of the built test programs. For a program that cannot list its tests, it returns a job
/// that fails with the reason.
pub fn tests(measured: &MeasuredTimes, includes_ignored: bool) -> Vec<CheckJob> {
    let programs = match programs() {
        Ok(programs) => programs,
        Err(why) => return vec![says(&why)],
    };
    let mut jobs = Vec::new();
    // nine-bench's tests take minutes, and run nightly.
    let is_left = |program: &&TestProgram| {
        includes_ignored || program.package != "nine-bench" || program.kind != "test"
    };
    for program in programs.iter().filter(is_left) {
        match program.jobs(measured, includes_ignored) {
            Ok(more) => jobs.extend(more),
            Err(why) => jobs.push(says(&why)),
        }
        if program.package == "nine-sim" && program.target == "it" {
            jobs.extend(seeds::jobs(program));
            jobs.extend(power_cuts(program, measured));
        }
    }
    jobs.retain(|job| job.name != "tests of nine-sim: archive::cuts");
    for job in &mut jobs {
        job.needs.push("packages".into());
    }
    jobs
}

/// The power cuts of the archive, in parts that run side by side.
fn power_cuts(program: &TestProgram, measured: &MeasuredTimes) -> Vec<CheckJob> {
    let part = |number: u64| {
        let (first, count) = (number * CUT_WORLDS / CUT_PARTS, CUT_WORLDS / CUT_PARTS);
        let mut command = program.command();
        command.arg("archive::cuts::").env("NINE_FIRST_SEED", first.to_string());
        command.env("NINE_SEEDS", count.to_string());
        let again = "cargo test -p nine-sim --test it archive::cuts::";
        let again = format!("NINE_FIRST_SEED={first} NINE_SEEDS={count} {again}");
        let mut job =
            CheckJob::new(format!("power cuts: from seed {first}"), command).again(again).expected(60.0);
        measured.apply(&mut job);
        job
    };
    (0..CUT_PARTS).map(part).collect()
}

pub fn says(why: &str) -> CheckJob {
    let mut command = Command::new("sh");
    command.args(["-c", "echo \"$0\"; exit 1", why]);
    CheckJob::new("tests", command)
}

/// A verb of this program as a job. It uses the programs of the workspace build.
pub fn verb(name: &str, words: &[&str]) -> CheckJob {
    // The name of the running program, even if the build has replaced its file.
    let mut command = Command::new("/proc/self/exe");
    command.args(words).current_dir(crate::root()).env(BUILT, "1");
    CheckJob::new(name, command).again(format!("cargo xtask {}", words.join(" ")))
}

/// Checks with third-party programs as clients of our server.
fn others() -> Vec<CheckJob> {
    let tools = || verb("tools", &["tools"]).load(SMALL_BUILD);
    let checks = [
        verb("diod's programs", &["diod"]),
        verb("dissector", &["dissector"]),
        verb("libninefold", &["capi"]),
        verb("python", &["python"]),
        verb("mounts by FUSE", &["fuse"]).needs("tools"),
        verb("AoE with others", &["aoe"]),
        verb("package", &["package", "--quick"]),
        verb("Linux 9P client", &["v9fs"]),
    ];
    let checks = checks.into_iter().map(|job| job.needs("build").needs("packages"));
    std::iter::once(tools()).chain(checks).collect()
}

/// The examples in the documentation of the crates.
pub fn doc_tests() -> CheckJob {
    CheckJob::new("doc tests", cargo(&["test", "--workspace", "--doc", "--quiet"]))
        .load(SMALL_BUILD)
        .needs("build")
}

/// Explores the interleavings of threads at a wait and its wake-up: all of them with loom, and for channels also some
/// longer ones with shuttle. Both builds share a folder, because only crates that use one of the two flags differ.
pub fn wake_ups(crates: &[&str]) -> Vec<CheckJob> {
    let mut shuttle = cargo(&["test", "--release", "--lib", "-p", "nine-ring", "any_order"]);
    shuttle.env("RUSTFLAGS", "--cfg nine_shuttle").env("CARGO_TARGET_DIR", "target/models");
    let mut loom = cargo(&["test", "--release", "--lib"]);
    loom.args(crates.iter().flat_map(|name| ["-p", name])).arg("any_order");
    loom.env("RUSTFLAGS", "--cfg nine_loom").env("CARGO_TARGET_DIR", "target/models");
    [("wake-ups: shuttle", shuttle), ("wake-ups: loom", loom)]
        .map(|(name, command)| CheckJob::new(name, command).load(SMALL_BUILD))
        .into()
}

/// Checks that nine-proto needs neither std nor an operating system. It links and runs without std on this host, and
/// builds for bare metal if rustup can install that target.
pub fn no_std() -> Vec<CheckJob> {
    vec![verb("no_std", &["no-std"]).load(SMALL_BUILD).needs("build")]
}

/// Every fuzz target for a fixed number of inputs.
pub fn fuzz(inputs: u64) -> Vec<CheckJob> {
    vec![verb("fuzz smoke", &["fuzz-smoke", &inputs.to_string()]).load(SMALL_BUILD)]
}

/// The verb `no-std`.
pub fn no_std_checks(steps: &mut Steps) -> Result<(), Failed> {
    use crate::images::{self, BARE};
    let probe = ["run", "--release", "--quiet", "--manifest-path", "xtask/nostd-probe/Cargo.toml"];
    steps.run("no_std on the host", &mut cargo(&probe))?;
    if !images::has_bare() {
        steps.not_covered(format!(
            "nine-proto, nine-ring, nine-guest and nine-stream on bare metal (rustup cannot add {BARE})"
        ));
        return Ok(());
    }
    let crates = ["nine-proto", "nine-ring", "nine-guest", "nine-stream"].map(|name| ["--package", name]);
    let build = ["build", "--no-default-features", "--target", BARE];
    steps.run("no_std on bare metal", cargo(&build).args(crates.concat()))
}

/// Returns the number of processors of this machine, which is the capacity of a plan.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get)
}

/// Whether this program was started by a plan that has built the workspace.
pub fn is_built() -> bool {
    std::env::var_os(BUILT).is_some()
}

/// Load of a small build. It would use more, but beside another job it fills gaps.
const SMALL_BUILD: f64 = 1.0;
/// Set for verbs that a plan starts.
const BUILT: &str = "XTASK_BUILT";
/// Start of a line that names a check that could not run.
pub const NOT_COVERED: &str = "==> NOT COVERED: ";
/// Inputs for each fuzz target.
pub const SMOKE: u64 = 50_000;
/// Worlds of the archive: about five power cuts in each.
const CUT_WORLDS: u64 = 220;
const CUT_PARTS: u64 = 4;
