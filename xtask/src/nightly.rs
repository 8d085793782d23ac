//! `cargo xtask nightly`: every check for one commit, in as many runs as necessary.
//!
//! In: a clean working tree, and the time limit of this run. Out: `target/nightly/COMMIT.json`, with the outcome,
//! seconds, time and machine of each check. A check that passed on this commit is not repeated; one that was cut off or
//! failed is. Checks by the clock (simulated worlds, fuzzing) add up their seconds and continue with the next seed.
//!
//! Always holds: the file is written after each check, so that a run may end at any moment.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::plan::{CheckJob, JobOutcome, JobResult, WHOLE_MACHINE};
use crate::report::{MeasuredTimes, SecondsTable};
use crate::steps::{Failed, Steps, cargo};
use crate::test::{self, verb};
use crate::{HOST, seeds};

/// Options of the verb.
pub struct NightlyOptions {
    /// No check starts after this time.
    pub limit: Option<Duration>,
    /// Seconds for each check by the clock.
    pub clock: u64,
    /// Runs although files differ from the commit. The record says so.
    pub allows_dirty: bool,
}

/// The results of one commit.
struct NightlyRecord {
    path: PathBuf,
    checks: Map<String, Value>,
}

impl NightlyRecord {
    fn open(commit: &str) -> NightlyRecord {
        let path = crate::target().join("nightly").join(format!("{commit}.json"));
        let known = fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let checks = known.and_then(|value| value["checks"].as_object().cloned()).unwrap_or_default();
        NightlyRecord { path, checks }
    }

    fn has_passed(&self, name: &str) -> bool {
        self.checks.get(name).is_some_and(|check| check["outcome"] == "passed")
    }

    /// Adds a result, and writes the file whole.
    fn add(&mut self, result: &JobResult) {
        let outcome = match result.outcome {
            JobOutcome::Passed => "passed",
            JobOutcome::Failed => "failed",
            JobOutcome::TimedOut => "timed out",
            JobOutcome::NotStarted => return,
        };
        let earlier =
            self.checks.get(&result.name).map_or(0.0, |check| check["seconds"].as_f64().unwrap_or(0.0));
        let seconds = result.took.as_secs_f64() + if is_by_clock(&result.name) { earlier } else { 0.0 };
        let mut check = json!({
            "outcome": outcome, "seconds": (seconds * 10.0).round() / 10.0, "ended": now(), "machine": machine(),
        });
        let missing: Vec<&str> = result
            .output
            .lines()
            .filter_map(|line| line.split_once(test::NOT_COVERED))
            .map(|(_, check)| check)
            .collect();
        if !missing.is_empty() {
            check["not covered"] = json!(missing);
        }
        let figures: Vec<&str> = result.output.lines().filter(|line| line.starts_with("result ")).collect();
        if !figures.is_empty() {
            check["figures"] = json!(figures);
        }
        self.checks.insert(result.name.clone(), check);
        self.write();
    }

    fn write(&self) {
        let text = format!("{:#}\n", json!({ "checks": self.checks }));
        let new = self.path.with_extension("json.new");
        let dir = self.path.parent().expect("it lies in target/nightly");
        let written = fs::create_dir_all(dir).and_then(|()| fs::write(&new, text));
        if let Err(e) = written.and_then(|()| fs::rename(&new, &self.path)) {
            eprintln!("xtask: {}: {e}; this run is not recorded", self.path.display());
        }
    }
}

/// Runs the checks that have not passed yet on this commit.
pub fn run(options: &NightlyOptions) -> ExitCode {
    let Some(commit) = commit() else {
        eprintln!("xtask: nightly needs a git checkout");
        return ExitCode::from(2);
    };
    if is_dirty() && !options.allows_dirty {
        eprintln!("xtask: files differ from commit {commit}: commit them, or pass --dirty");
        return ExitCode::from(2);
    }
    let mut record = NightlyRecord::open(&commit);
    let started = Instant::now();
    let measured = MeasuredTimes::read();
    let jobs: Vec<CheckJob> = checks(options).into_iter().filter(|job| is_needed(job, &record)).collect();
    let until = options.limit.map(|limit| started + limit);
    let (ended, results) = test::all_until(jobs, &SecondsTable::budget("nightly"), until, |result| {
        if is_by_clock(&result.name) {
            for name in seeds::keep(&result.output) {
                println!("kept: crates/nine-sim/seeds/{name}");
            }
        }
        record.add(result);
        match (result.name.as_str(), result.outcome) {
            ("build", JobOutcome::Passed) => {
                let tests = test::tests(&measured, true);
                tests.into_iter().filter(|job| is_needed(job, &record)).collect()
            }
            _ => Vec::new(),
        }
    });
    measured.record(&results);
    report(&commit);
    ended
}

/// Builds and installs are done in each run: their files may have gone.
fn is_needed(job: &CheckJob, record: &NightlyRecord) -> bool {
    is_preparation(&job.name) || is_by_clock(&job.name) || !record.has_passed(&job.name)
}

fn is_preparation(name: &str) -> bool {
    ["packages", "tools", "build", "build for publication"].contains(&name)
}

/// Prints the results of a commit as a table for docs/testing.md.
pub fn report(commit: &str) {
    let record = NightlyRecord::open(commit);
    println!("\n| check | outcome | seconds | ended |\n|---|---|---|---|");
    let mut groups: Vec<(String, String, f64, String)> = Vec::new();
    for (name, check) in &record.checks {
        let text = |key: &str| check[key].as_str().unwrap_or_default().to_string();
        let (group, outcome) = (crate::report::group(name).to_string(), text("outcome"));
        let seconds = check["seconds"].as_f64().unwrap_or(0.0);
        match groups.iter_mut().find(|(other, ..)| *other == group) {
            Some((_, worst, sum, ended)) => {
                *sum += seconds;
                *ended = text("ended").max(ended.clone());
                if worst == "passed" && outcome != "passed" {
                    *worst = format!("{outcome}: {name}");
                }
            }
            None if outcome == "passed" => groups.push((group, outcome, seconds, text("ended"))),
            None => groups.push((group, format!("{outcome}: {name}"), seconds, text("ended"))),
        }
    }
    let total: f64 = groups.iter().map(|(_, _, seconds, _)| seconds).sum();
    for (group, outcome, seconds, ended) in groups {
        println!("| {group} | {outcome} | {seconds:.0} | {ended} |");
    }
    println!("| all of commit {commit} | | {total:.0} | |");
    for (name, check) in &record.checks {
        for missing in check["not covered"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            println!("not covered ({name}): {missing}");
        }
    }
}

/// The verb `nightly --report [COMMIT]`.
pub fn report_verb(named: Option<&str>) -> ExitCode {
    match named.map(String::from).or_else(commit) {
        Some(commit) => {
            report(&commit);
            ExitCode::SUCCESS
        }
        None => ExitCode::from(2),
    }
}

/// Every check, in the order in which they start: those that fail soonest, then the longest.
fn checks(options: &NightlyOptions) -> Vec<CheckJob> {
    let clock = options.clock.to_string();
    let machine = |job: CheckJob| CheckJob { timeout: HOURS, ..job.load(WHOLE_MACHINE) };
    let mut jobs = vec![
        verb("packages", &["packages", "--all"]).load(0.0),
        verb("tidy", &["tidy"]),
        test::build(),
        published_build(),
        test::doc_tests(),
        verb("tools", &["tools"]),
    ];
    jobs.extend(test::no_std());
    for (name, words) in [
        ("diod's programs", &["diod"][..]),
        ("dissector", &["dissector"]),
        ("libninefold", &["capi"]),
        ("python", &["python"]),
        ("mounts by FUSE", &["fuse"]),
    ] {
        jobs.push(CheckJob {
            timeout: HOURS,
            ..verb(name, words).needs("build").needs("tools").needs("packages")
        });
    }
    for (name, words) in [
        ("AoE with others", &["aoe", "--all"][..]),
        ("web server", &["http"]),
        ("browser", &["browser"]),
        ("object stores", &["stores"]),
        ("package", &["package", "--all"]),
        ("Linux 9P client", &["v9fs", "--all"]),
    ] {
        let job =
            verb(name, words).needs("build for publication").needs("build").needs("tools").needs("packages");
        jobs.push(CheckJob { timeout: HOURS, ..job });
    }
    jobs.extend(test::wake_ups(LOOM).into_iter().map(machine));
    jobs.push(machine(verb("simulated worlds", &["worlds", "--for", &clock])));
    jobs.push(machine(verb("fuzz", &["fuzz", "--for", &clock])));
    jobs.push(machine(verb("AddressSanitizer", &["sanitizer", "address"])));
    jobs.push(machine(verb("ThreadSanitizer", &["sanitizer", "thread"])));
    for name in EXPERIMENTS {
        let mut bench = Command::new(crate::target().join("dist/nine-bench"));
        bench.arg(name).current_dir(crate::root());
        let job =
            CheckJob::new(format!("bench: {name}"), bench).needs("build for publication").needs("packages");
        jobs.push(machine(job.again(format!("cargo run --profile dist -p nine-bench -- {name}"))));
    }
    let count = jobs.len();
    for (at, job) in jobs.iter_mut().enumerate() {
        job.expected = LATER * (count - at) as f64;
    }
    jobs
}

/// The command, the library and the measurements as they are published.
fn published_build() -> CheckJob {
    let words = ["build", "--profile", "dist", "-p", "ninefold", "-p", "nine-bench"];
    CheckJob::build("build for publication", cargo(&words))
}

fn is_by_clock(name: &str) -> bool {
    ["simulated worlds", "fuzz"].contains(&name)
}

/// The verb `worlds`: rounds of simulated worlds with ever new seeds until the time is up.
pub fn worlds(steps: &mut Steps, seconds: u64) -> Result<(), Failed> {
    let messages = crate::target().join("xtask/worlds.json");
    let words = ["build", "--profile", "worlds", "-p", "nine-sim", "--tests"];
    steps.run("build of worlds", &mut crate::built::build_command(&words, &messages))?;
    let programs = crate::built::test_programs(&messages).unwrap_or_default();
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut failed = false;
    let mut first = next_seed("worlds");
    while Instant::now() < until {
        for program in &programs {
            let mut round = program.command();
            round.env("NINE_FIRST_SEED", first.to_string()).env("NINE_SEEDS", WORLDS_PER_ROUND.to_string());
            failed |= steps.run(&format!("worlds from seed {first}"), &mut round).is_err();
        }
        first += WORLDS_PER_ROUND;
        keep_next_seed("worlds", first);
    }
    if failed { Err(Failed) } else { Ok(()) }
}

/// The verb `fuzz`: rounds of every target with ever new seeds until the time is up.
pub fn fuzz(steps: &mut Steps, seconds: u64) -> Result<(), Failed> {
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut seed = next_seed("fuzz").max(2);
    while Instant::now() < until {
        let inputs = INPUTS_PER_ROUND.to_string();
        let mut round = crate::fuzz_command(&inputs, seed);
        steps.run(&format!("fuzz with seed {seed}"), &mut round)?;
        seed += 1;
        keep_next_seed("fuzz", seed);
    }
    Ok(())
}

/// Where rounds go on: a commit's first run begins where the last commit's ended, so that seeds do not repeat.
fn next_seed(kind: &str) -> u64 {
    let text = fs::read_to_string(crate::target().join(format!("nightly/{kind}.next"))).unwrap_or_default();
    text.trim().parse().unwrap_or(FIRST_SEED)
}

fn keep_next_seed(kind: &str, seed: u64) {
    let path = crate::target().join(format!("nightly/{kind}.next"));
    let _ = fs::create_dir_all(path.parent().expect("it lies in target/nightly"));
    // If it is lost, seeds are tried twice.
    let _ = fs::write(path, seed.to_string());
}

/// Runs the tests that involve shared memory and threads under one of the compiler's sanitizers. For ThreadSanitizer,
/// std is rebuilt so that its locks are instrumented; otherwise they are reported as races.
pub fn sanitizer(steps: &mut Steps, flag: &str) -> Result<(), Failed> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")) {
        steps.not_covered(format!("the sanitizer `{flag}` (this host is not x86_64 Linux)"));
        return Ok(());
    }
    let mut arguments = vec!["--target", HOST];
    if flag == "thread" {
        let source =
            Command::new("rustup").args(["component", "add", "rust-src"]).stdin(Stdio::null()).output();
        if !source.is_ok_and(|output| output.status.success()) {
            steps.not_covered(
                "ThreadSanitizer (rustup cannot add rust-src, so std cannot be built)".to_string(),
            );
            return Ok(());
        }
        arguments.insert(0, "-Zbuild-std");
    }
    let checked = |command: &mut Command| {
        // Both are unstable options; the variable lets a stable toolchain have them.
        command.args(&arguments).env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", format!("-Zsanitizer={flag}"));
        command.env("CARGO_TARGET_DIR", format!("target/{flag}-sanitizer"));
    };
    // The tests of nine-guest run them.
    let mut examples = cargo(&["build", "-p", "nine-guest", "--features", "linux", "--examples"]);
    checked(&mut examples);
    steps.run(&format!("sanitizer {flag}: guests"), &mut examples)?;
    let mut tests = cargo(&["test", "--lib", "--tests"]);
    checked(&mut tests);
    tests.args(SANITIZED.iter().flat_map(|name| ["-p", name]));
    steps.run(&format!("sanitizer {flag}"), &mut tests)
}

/// The commit of the checkout, shortened.
fn commit() -> Option<String> {
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn is_dirty() -> bool {
    git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|text| !text.is_empty())
}

fn git(words: &[&str]) -> Option<String> {
    let output =
        Command::new("git").arg("-C").arg(crate::root()).args(words).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Processors and kernel: figures depend on them most.
fn machine() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("", |(_, m)| m);
    format!("{} x {model}, Linux {}", test::processors(), kernel.trim())
}

/// UTC, to the minute.
fn now() -> String {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M"]).stdin(Stdio::null()).output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Crates with concurrency models for loom.
const LOOM: &[&str] = &[
    "nine-block",
    "nine-ring",
    "nine-gate",
    "nine-io",
    "nine-mux",
    "nine-net",
    "nine-servers",
    "nine-stream",
];
const SANITIZED: &[&str] = &["nine-ring", "nine-guest", "nine-io", "nine-net", "nine-servers", "nine-sim"];
/// The experiments of nine-bench.
const EXPERIMENTS: &[&str] =
    &["rpc", "mux", "streaming", "streams", "http", "aoe", "archive", "channel", "mount"];
/// Smaller seeds are those that the other runs try.
const FIRST_SEED: u64 = 1000;
const WORLDS_PER_ROUND: u64 = 40;
const INPUTS_PER_ROUND: u64 = 200_000;
/// A check that hangs is killed after this time.
const HOURS: Duration = Duration::from_secs(2 * 3600);
/// Seconds added for each place in the list, so that checks start in its order whatever they were measured to take.
const LATER: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;

    fn result(name: &str, outcome: JobOutcome, seconds: u64, output: &str) -> JobResult {
        let (took, cpu) = (Duration::from_secs(seconds), Duration::ZERO);
        JobResult { name: name.into(), outcome, took, cpu, output: output.into() }
    }

    fn record(name: &str) -> NightlyRecord {
        let dir = crate::guest::scratch(name).unwrap();
        let path = dir.0.join("record.json");
        std::mem::forget(dir);
        NightlyRecord { path, checks: Map::new() }
    }

    #[test]
    fn passed_checks_are_not_needed_again_and_failed_ones_are() {
        let mut record = record("nightly-passed");
        record.add(&result("tidy", JobOutcome::Passed, 1, ""));
        record.add(&result("python", JobOutcome::Failed, 1, ""));
        let job = |name: &str| CheckJob::new(name, Command::new("true"));
        assert!(!is_needed(&job("tidy"), &record));
        assert!(is_needed(&job("python"), &record));
        assert!(is_needed(&job("never run"), &record));
        fs::remove_dir_all(record.path.parent().unwrap()).unwrap();
    }

    #[test]
    fn seconds_by_the_clock_add_up_and_seconds_of_a_repeated_check_do_not() {
        let mut record = record("nightly-clock");
        for _ in 0..2 {
            record.add(&result("fuzz", JobOutcome::Passed, 5, ""));
            record.add(&result("python", JobOutcome::Failed, 5, ""));
        }
        assert_eq!(record.checks["fuzz"]["seconds"], 10.0);
        assert_eq!(record.checks["python"]["seconds"], 5.0);
        fs::remove_dir_all(record.path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_was_not_covered_and_figures_stand_in_the_record() {
        let mut record = record("nightly-text");
        record.add(&result("aoe", JobOutcome::Passed, 1, "==> NOT COVERED: vblade\nresult aoe a=1\n"));
        assert_eq!(record.checks["aoe"]["not covered"], json!(["vblade"]));
        assert_eq!(record.checks["aoe"]["figures"], json!(["result aoe a=1"]));
        let text = fs::read_to_string(&record.path).unwrap();
        assert!(serde_json::from_str::<Value>(&text).is_ok());
        fs::remove_dir_all(record.path.parent().unwrap()).unwrap();
    }
}
