//! `cargo xtask quick [CRATE...]`: the checks that detect most errors of a change soonest.
//!
//! In: the named crates, or those that changed since the last run that passed. Out: format, tidy, lints of the changed
//! crates, unit tests of them and of the crates that depend on them, short integration tests of the changed crates, the
//! simulators with few seeds, each seed that once failed, and a smoke set of the command.

use std::process::ExitCode;

use crate::built::TestProgram;
use crate::plan::{CheckJob, JobOutcome, JobResult};
use crate::report::{self, MeasuredTimes, SecondsTable};
use crate::steps::cargo;
use crate::test::{self, verb};
use crate::{green, seeds};

/// `named`: crates to check instead of those that changed.
pub fn run(named: &[&str]) -> ExitCode {
    let tree = green::tree();
    let (changed, reached) = match scope(named) {
        Ok(scope) => scope,
        Err(why) => {
            eprintln!("xtask: {why}");
            return ExitCode::from(2);
        }
    };
    let shown = |names: &[String]| if names.is_empty() { "none".to_string() } else { names.join(" ") };
    println!("changed crates: {}\nand those that depend on them: {}", shown(&changed), shown(&reached));
    let mut jobs =
        vec![verb("tidy", &["tidy"]), CheckJob::new("format", cargo(&["fmt", "--all", "--check"]))];
    if !reached.is_empty() {
        jobs.push(test::build().expected(f64::MAX));
    }
    if !changed.is_empty() {
        let mut lints = cargo(&["clippy", "--all-targets", "--quiet"]);
        lints.args(changed.iter().flat_map(|name| ["-p", name])).args(["--", "-D", "warnings"]);
        jobs.push(CheckJob::build("lints", lints));
    }
    let measured = MeasuredTimes::read();
    let budget = SecondsTable::budget("quick");
    let (ended, results) = test::all(jobs, &budget, |result: &JobResult| {
        if result.name != "build" || result.outcome != JobOutcome::Passed {
            return Vec::new();
        }
        match test::programs() {
            Ok(programs) => tests(&programs, &changed, &reached, &measured),
            Err(why) => vec![test::says(&why)],
        }
    });
    let run: f64 = results
        .iter()
        .filter(|r| report::group(&r.name).starts_with("tests of") || r.name.starts_with("kept seeds"))
        .map(|r| r.took.as_secs_f64())
        .sum();
    println!("seconds of tests: {run:.0}");
    if ended == ExitCode::SUCCESS && named.is_empty() {
        green::record(tree);
    }
    ended
}

/// Returns the changed crates, and all crates that must be tested.
fn scope(named: &[&str]) -> Result<(Vec<String>, Vec<String>), String> {
    if named.is_empty() {
        return match green::changed() {
            Some(files) => green::crates_of(&files),
            None => {
                println!("no earlier run has passed here: every crate counts as changed");
                green::crates_of(&["Cargo.toml".to_string()])
            }
        };
    }
    let folder = |name: &&str| match *name {
        "capi" | "xtask" => format!("{name}/"),
        name => format!("crates/{name}/"),
    };
    if let Some(name) = named.iter().find(|name| !crate::root().join(folder(name)).is_dir()) {
        return Err(format!("there is no crate `{name}` in this workspace"));
    }
    green::crates_of(&named.iter().map(folder).collect::<Vec<_>>())
}

fn tests(
    programs: &[TestProgram],
    changed: &[String],
    reached: &[String],
    measured: &MeasuredTimes,
) -> Vec<CheckJob> {
    let mut jobs = Vec::new();
    let has = |names: &[String], program: &TestProgram| names.contains(&program.crate_name());
    for program in programs.iter().filter(|program| has(reached, program)) {
        let all = match program.jobs(measured, false) {
            Ok(all) => all,
            Err(why) => {
                jobs.push(test::says(&why));
                continue;
            }
        };
        let is_smoke = |job: &CheckJob| match program.package.as_str() {
            _ if program.kind != "test" => true,
            "nine-sim" => {
                program.target == "it"
                    && !LONG.iter().any(|name| job.name == format!("tests of nine-sim: {name}"))
            }
            "ninefold" => SMOKE.iter().any(|name| job.name == format!("tests of ninefold: {name}")),
            _ => has(changed, program) && measured.seconds(&job.name).is_some_and(|seconds| seconds <= SHORT),
        };
        jobs.extend(all.into_iter().filter(is_smoke).map(|mut job| {
            job.command.env("NINE_SEEDS", FEW_SEEDS.to_string());
            job
        }));
        if program.package == "nine-sim" && program.target == "it" {
            jobs.extend(seeds::jobs(program));
        }
    }
    jobs
}

/// Modules of the command's tests that take a few seconds together: serving, copying, mounting a name space, an
/// archive.
const SMOKE: &[&str] = &["serve", "verbs", "copy", "config", "namespace", "pipe"];
/// Simulators that take long even with few seeds. Only `test` runs them.
const LONG: &[&str] = &["mux::reconnect", "dialects::suite"];
/// Maximum seconds of an integration test that runs when its crate has changed.
const SHORT: f64 = 5.0;
/// Number of worlds for a test with small worlds.
const FEW_SEEDS: u64 = 2;
