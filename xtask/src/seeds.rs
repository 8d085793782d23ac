//! Stored seeds of simulated worlds that once failed: `crates/nine-sim/seeds/NAME`. Each file has one line `TEST SEED`,
//! then lines that describe the fault.
//!
//! `quick`, `test` and `nightly` replay each of them. `nightly` adds one for each world that fails.

use std::fs;
use std::path::PathBuf;

use crate::built::TestProgram;
use crate::plan::CheckJob;

/// A world that once failed.
#[derive(Debug, PartialEq, Eq)]
pub struct KeptSeed {
    /// The path of the test, as libtest prints it.
    pub test: String,
    pub seed: u64,
}

/// Returns one job for each stored seed.
pub fn jobs(program: &TestProgram) -> Vec<CheckJob> {
    kept()
        .into_iter()
        .map(|KeptSeed { test, seed }| {
            let mut command = program.command();
            command.args(["--exact", &test]).env("NINE_SEED", seed.to_string());
            let again = format!("NINE_SEED={seed} cargo test -p nine-sim --test it -- --exact {test}");
            CheckJob::new(format!("kept seeds: {test} {seed}"), command).again(again)
        })
        .collect()
}

/// Returns the stored seeds, in the order of their file names.
pub fn kept() -> Vec<KeptSeed> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder())
        .map(|dir| dir.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    paths.sort();
    paths.retain(|path| path.extension().is_none());
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        parse(&text).unwrap_or_else(|| panic!("{}: the first line is not `TEST SEED`", path.display()))
    };
    paths.iter().map(read).collect()
}

fn parse(text: &str) -> Option<KeptSeed> {
    let (test, seed) = text.lines().next()?.split_once(' ')?;
    Some(KeptSeed { test: test.to_string(), seed: seed.trim().parse().ok()? })
}

/// Writes a file for each world that failed in the output of a test program. Returns the names of the files.
pub fn keep(output: &str) -> Vec<String> {
    let mut names = Vec::new();
    for KeptSeed { test, seed } in failed(output) {
        let name = format!("{}-{seed}", test.replace("::", "-"));
        let text = format!("{test} {seed}\n");
        if !folder().join(&name).exists() && fs::create_dir_all(folder()).is_ok() {
            let _ = fs::write(folder().join(&name), text);
        }
        names.push(name);
    }
    names
}

/// Finds the worlds that failed. libtest prints `---- TEST stdout ----` before the output of a failed test, and a world
/// prints its seed.
fn failed(output: &str) -> Vec<KeptSeed> {
    let mut test = None;
    let mut found: Vec<KeptSeed> = Vec::new();
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            test = Some(name.to_string());
        } else if let (Some(name), Some((_, rest))) = (&test, line.split_once("NINE_SEED=")) {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            if let Ok(seed) = digits.parse() {
                found.push(KeptSeed { test: name.clone(), seed });
                test = None;
            }
        }
    }
    found
}

fn folder() -> PathBuf {
    crate::root().join("crates/nine-sim/seeds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_of_failed_worlds_are_found_in_the_output() {
        let output = "running 2 tests\n\nfailures:\n\n---- mux::cuts::a stdout ----\n\
                      replay this world with: NINE_SEED=17 cargo test -p nine-sim\npanicked at NINE_SEED=17\n\
                      ---- fs::b stdout ----\nno seed here\n---- fs::c stdout ----\nNINE_SEED=4\n";
        let seed = |test: &str, seed| KeptSeed { test: test.into(), seed };
        assert_eq!(failed(output), [seed("mux::cuts::a", 17), seed("fs::c", 4)]);
    }

    #[test]
    fn kept_seeds_can_be_read() {
        kept();
        assert_eq!(parse("a::b 7\nwhy\n"), Some(KeptSeed { test: "a::b".into(), seed: 7 }));
        assert_eq!(parse("a::b seven\n"), None);
    }
}
