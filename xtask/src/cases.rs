//! `cargo xtask cases --dir DIR [PATTERN]`: runs programs, each of which checks one claim.
//!
//! In: a folder. A case is an executable file whose name has a dash. Its exit status is 0 if the claim holds, 1 if not,
//! 2 if it cannot run on this machine; its last line gives the reason. Out: a line for each case, and the counts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::child::Child;
use crate::served::Program;
use crate::steps::Steps;

/// Runs the cases of `dir` with `pattern` in their names, on the release build.
pub fn run(steps: &mut Steps, dir: &str, pattern: &str) -> ExitCode {
    let cases = match find(Path::new(dir), pattern) {
        Ok(cases) if cases.is_empty() => {
            eprintln!("xtask: no case in {dir} has a name that holds `{pattern}`");
            return ExitCode::from(2);
        }
        Ok(cases) => cases,
        Err(why) => {
            eprintln!("xtask: {why}");
            return ExitCode::from(2);
        }
    };
    let program = match std::env::var_os("NINEFOLD") {
        Some(path) => Program(path.into()),
        None => match Program::released(steps) {
            Ok(program) => program,
            Err(_) => return ExitCode::FAILURE,
        },
    };
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for case in cases {
        let started = Instant::now();
        let (outcome, last) = one(&case, &program);
        match outcome {
            "pass" => passed += 1,
            "skip" => skipped += 1,
            _ => failed += 1,
        }
        let name = case.file_name().unwrap_or_default().display().to_string();
        println!("{outcome}  {name:<60} {:>3} s  {last}", started.elapsed().as_secs());
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn find(dir: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let is_case = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().display().to_string();
        let runs = path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
        runs && name.contains('-') && name.contains(pattern)
    };
    let mut cases: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_case).collect();
    cases.sort();
    Ok(cases)
}

/// Runs a case. Returns its outcome and the last line of its output.
fn one(case: &Path, program: &Program) -> (&'static str, String) {
    let source = crate::root().display().to_string();
    // Killing the child ends timeout(1), which kills the case and its children.
    let words = [
        format!("NINEFOLD={}", program.0.display()),
        format!("NINEFOLD_SOURCE={source}"),
        "timeout".into(),
        "-k".into(),
        "10".into(),
        CASE_TIMEOUT.as_secs().to_string(),
        case.display().to_string(),
    ];
    let ended = Child::start("env", &words, false).and_then(|mut child| {
        let status = child.wait(CASE_TIMEOUT + Duration::from_secs(20))?;
        Ok((status, child.output().lines().last().unwrap_or_default().to_string()))
    });
    match ended {
        Ok((status, last)) => match status.code() {
            Some(0) => ("pass", last),
            Some(2) => ("skip", last),
            Some(124 | 137) => ("FAIL", format!("no end after {} s; {last}", CASE_TIMEOUT.as_secs())),
            _ => ("FAIL", last),
        },
        Err(why) => ("FAIL", why),
    }
}

/// A case that runs longer fails.
const CASE_TIMEOUT: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    fn case(dir: &Path, name: &str, script: &str) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn the_status_and_the_last_line_of_a_case_are_reported() {
        let dir = crate::guest::scratch("cases").unwrap();
        let program = Program("/bin/true".into());
        let end = |script: &str| one(&case(&dir.0, "a-case", script), &program);
        assert_eq!(end("echo first; echo \"$NINEFOLD\""), ("pass", "/bin/true".to_string()));
        assert_eq!(end("echo saw 1, wanted 2; exit 1"), ("FAIL", "saw 1, wanted 2".to_string()));
        assert_eq!(end("echo not root; exit 2"), ("skip", "not root".to_string()));
    }

    #[test]
    fn only_programs_with_a_dash_in_their_name_are_cases() {
        let dir = crate::guest::scratch("cases-names").unwrap();
        case(&dir.0, "run", "");
        case(&dir.0, "mux-one", "");
        case(&dir.0, "archive-two", "");
        fs::write(dir.0.join("no-program"), "").unwrap();
        let names = |pattern: &str| -> Vec<String> {
            let found = find(&dir.0, pattern).unwrap();
            found.iter().map(|path| path.file_name().unwrap().display().to_string()).collect()
        };
        assert_eq!(names(""), ["archive-two", "mux-one"]);
        assert_eq!(names("mux"), ["mux-one"]);
    }
}
