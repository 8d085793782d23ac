//! The table of seconds at the end of a run: each group of jobs with its budget, and a last line that names each group
//! beyond twice its budget. Machines differ, so exceeding a budget is never a failure.
//!
//! In: job results, `xtask/budget.toml`. Out: lines on the terminal, and `target/xtask/times.json`, by which the next
//! run starts the longest jobs first.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::plan::{CheckJob, JobOutcome, JobResult};

/// Seconds by name.
pub struct SecondsTable(BTreeMap<String, f64>);

impl SecondsTable {
    /// The budgets of one section of `xtask/budget.toml`: `"name" = seconds` lines.
    pub fn budget(section: &str) -> SecondsTable {
        SecondsTable(parse_budget(include_str!("../budget.toml"), section))
    }

    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }
}

/// Times of jobs in earlier runs: on this machine, else those that are part of the sources.
pub struct MeasuredTimes(Map<String, Value>);

impl MeasuredTimes {
    pub fn read() -> MeasuredTimes {
        let mut times = parse_times(include_str!("../times.json"));
        times.extend(parse_times(&fs::read_to_string(times_file()).unwrap_or_default()));
        MeasuredTimes(times)
    }

    /// Seconds from start to end.
    pub fn seconds(&self, name: &str) -> Option<f64> {
        self.0.get(name)?["seconds"].as_f64()
    }

    /// Sets how long a job is expected to take, and how many processors it keeps busy.
    pub fn apply(&self, job: &mut CheckJob) {
        let Some(seconds) = self.seconds(&job.name) else { return };
        job.expected = seconds;
        if let Some(cpu) = self.0[&job.name]["cpu"].as_f64().filter(|_| !job.has_fixed_load) {
            job.load = (cpu / seconds.max(0.1)).clamp(LEAST_LOAD, MOST_LOAD);
        }
    }

    /// Records the times of passed jobs.
    pub fn record(mut self, results: &[JobResult]) {
        let tenths = |time: Duration| (time.as_secs_f64() * 10.0).round() / 10.0;
        for result in results.iter().filter(|result| result.outcome == JobOutcome::Passed) {
            let times = json!({ "seconds": tenths(result.took), "cpu": tenths(result.cpu) });
            self.0.insert(result.name.clone(), times);
        }
        let path = times_file();
        let _ = fs::create_dir_all(path.parent().expect("it lies in target/xtask"));
        // Only the order of the next run depends on it.
        let _ = fs::write(path, format!("{:#}\n", Value::Object(self.0)));
    }
}

fn parse_times(text: &str) -> Map<String, Value> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// A job that only waits still starts processes.
const LEAST_LOAD: f64 = 0.2;
/// Two threads of a test program leave room for a job that waits.
const MOST_LOAD: f64 = 1.8;

fn times_file() -> PathBuf {
    crate::target().join("xtask/times.json")
}

fn parse_budget(text: &str, section: &str) -> BTreeMap<String, f64> {
    let mut is_here = false;
    let mut found = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_here = name == section;
        } else if let Some((name, seconds)) =
            line.split_once('=').filter(|_| is_here && !line.starts_with('#'))
        {
            let seconds =
                seconds.trim().parse().expect("budget.toml is part of this program: a test reads it");
            found.insert(name.trim().trim_matches('"').to_string(), seconds);
        }
    }
    found
}

/// The group of a job: the part of its name before `: `.
pub fn group(name: &str) -> &str {
    name.split_once(": ").map_or(name, |(group, _)| group)
}

/// Prints the table. `elapsed` is the time of the whole run: jobs ran side by side.
pub fn print(results: &[JobResult], budget: &SecondsTable, elapsed: f64, not_covered: &[String]) {
    let mut groups: Vec<(&str, f64, &str)> = Vec::new();
    for result in results {
        let (name, seconds) = (group(&result.name), result.took.as_secs_f64());
        let outcome = match result.outcome {
            JobOutcome::Passed => "ok",
            JobOutcome::Failed => "FAILED",
            JobOutcome::TimedOut => "TIMED OUT",
            JobOutcome::NotStarted => "not started",
        };
        match groups.iter_mut().find(|(other, ..)| *other == name) {
            Some((_, sum, worst)) => {
                *sum += seconds;
                *worst = if *worst == "ok" { outcome } else { worst };
            }
            None => groups.push((name, seconds, outcome)),
        }
    }
    println!("\n{:<28} {:>8} {:>8}", "step", "seconds", "budget");
    let mut over = Vec::new();
    for (name, seconds, outcome) in &groups {
        let wanted = budget.get(name);
        let shown = wanted.map_or("-".to_string(), |wanted| format!("{wanted:.0}"));
        println!("{name:<28} {seconds:>8.1} {shown:>8}  {outcome}");
        if wanted.is_some_and(|wanted| *seconds > 2.0 * wanted) {
            over.push(format!("{name} ({seconds:.0} s of {shown})"));
        }
    }
    let wanted = budget.get("all").map_or("-".to_string(), |wanted| format!("{wanted:.0}"));
    println!("{:<28} {elapsed:>8.1} {wanted:>8}  side by side", "all");
    for missing in not_covered {
        println!("not covered: {missing}");
    }
    let failed: Vec<&str> =
        results.iter().filter(|r| r.outcome != JobOutcome::Passed).map(|r| r.name.as_str()).collect();
    if !failed.is_empty() {
        println!("failed: {}", failed.join(", "));
    }
    if !over.is_empty() {
        println!("more than twice the budget: {}", over.join(", "));
    }
}

/// Counts of tests: libtest prints one `test result:` line for each program.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TestCount {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

impl TestCount {
    /// Adds the counts that stand in the output of one job.
    pub fn add(&mut self, output: &str) {
        for line in output.lines().filter_map(|line| line.trim().strip_prefix("test result: ")) {
            for part in line.split([';', '.']) {
                let mut words = part.split_whitespace();
                let (Some(number), Some(outcome)) =
                    (words.next().and_then(|n| n.parse::<u64>().ok()), words.next())
                else {
                    continue;
                };
                match outcome {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    "ignored" => self.ignored += number,
                    _ => {}
                }
            }
        }
    }

    /// The closing line of a run.
    pub fn line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.ignored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_programs_are_added() {
        let mut count = TestCount::default();
        count.add(
            "running 3 tests\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out\n",
        );
        count.add("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n");
        assert_eq!(count, TestCount { passed: 4, failed: 2, ignored: 1 });
        assert_eq!(count.line(), "4 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn every_section_of_the_budget_can_be_read() {
        for section in ["test", "quick", "nightly"] {
            assert!(SecondsTable::budget(section).get("all").is_some(), "{section}");
        }
    }

    #[test]
    fn the_times_in_the_sources_can_be_read() {
        assert!(!parse_times(include_str!("../times.json")).is_empty());
    }

    #[test]
    fn a_job_that_mostly_waits_has_a_small_load() {
        let times = parse_times(
            r#"{"waits": {"seconds": 100.0, "cpu": 10.0}, "works": {"seconds": 10.0, "cpu": 20.0}}"#,
        );
        let load = |name: &str| {
            let mut job = CheckJob::new(name, std::process::Command::new("true"));
            MeasuredTimes(times.clone()).apply(&mut job);
            (job.load, job.expected)
        };
        assert_eq!(load("waits"), (LEAST_LOAD, 100.0));
        assert_eq!(load("works"), (MOST_LOAD, 10.0));
        assert_eq!(load("unknown"), (1.0, 0.0));
    }

    #[test]
    fn a_budget_belongs_to_its_section() {
        let text = "[a]\n# x = 1\n\"one: two\" = 3\n[b]\none = 4.5\n";
        assert_eq!(parse_budget(text, "a"), BTreeMap::from([("one: two".to_string(), 3.0)]));
        assert_eq!(parse_budget(text, "b"), BTreeMap::from([("one".to_string(), 4.5)]));
    }

    #[test]
    fn jobs_are_grouped_by_the_words_before_the_colon() {
        assert_eq!(
            (group("tests of nine-sim: mux"), group("fuzz smoke")),
            ("tests of nine-sim", "fuzz smoke")
        );
    }
}
