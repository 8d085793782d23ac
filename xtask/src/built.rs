//! The test programs that cargo has built, as jobs.
//!
//! In: the messages of `cargo build --workspace --all-targets` (cargo's "External tools" chapter). Out: a job for the
//! unit tests of each crate, and one for each module of its integration tests. Modules of one program therefore run in
//! parallel, each in its own process.
//!
//! A build of all targets, not only of tests, produces the libraries for C, the examples and the command in the same
//! run with the same features. So nothing is built twice.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::plan::CheckJob;
use crate::report::MeasuredTimes;
use crate::steps::cargo;

/// A test program.
pub struct TestProgram {
    pub package: String,
    /// `lib`, `bin` or `test`.
    pub kind: String,
    /// The target's name: `it` for integration tests.
    pub target: String,
    pub executable: PathBuf,
    manifest_dir: PathBuf,
}

/// Returns the command `cargo ARGUMENTS`, which writes its messages to the file `messages`.
pub fn build_command(arguments: &[&str], messages: &Path) -> Command {
    let mut build = Command::new("sh");
    // A pipe would have to be read while other jobs run. A file needs no reader.
    build.args(["-c", "out=$1; shift; exec \"$@\" >\"$out\"", "sh"]).arg(messages);
    build.arg(cargo(&[]).get_program()).args(arguments).arg("--message-format=json-render-diagnostics");
    build.current_dir(crate::root());
    build
}

/// Reads the messages of a build.
///
/// # Errors
/// The file cannot be read.
pub fn test_programs(messages: &Path) -> Result<Vec<TestProgram>, String> {
    let text = std::fs::read_to_string(messages).map_err(|e| format!("{}: {e}", messages.display()))?;
    let mut programs: Vec<TestProgram> =
        text.lines().filter_map(|line| test_program(&serde_json::from_str(line).ok()?)).collect();
    programs.sort_by(|a, b| (&a.package, &a.kind, &a.target).cmp(&(&b.package, &b.kind, &b.target)));
    Ok(programs)
}

fn test_program(message: &Value) -> Option<TestProgram> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let manifest_dir = manifest.parent()?.to_path_buf();
    let kind = match message["target"]["kind"][0].as_str()? {
        "bin" => "bin",
        "test" => "test",
        "example" | "bench" => return None,
        _ => "lib",
    };
    // The folder of a crate has the crate's name. This also holds for capi and xtask.
    let package = manifest_dir.file_name()?.to_str()?.to_string();
    let target = message["target"]["name"].as_str()?.to_string();
    Some(TestProgram { package, kind: kind.into(), target, executable, manifest_dir })
}

impl TestProgram {
    /// Returns the jobs of this program. `includes_ignored` adds the tests that are marked as ignored.
    ///
    /// # Errors
    /// The program cannot list its tests.
    pub fn jobs(&self, measured: &MeasuredTimes, includes_ignored: bool) -> Result<Vec<CheckJob>, String> {
        let group = format!("tests of {}", self.package);
        let mut jobs = Vec::new();
        let ignored: &[&str] = if includes_ignored { &["--include-ignored"] } else { &[] };
        if self.kind != "test" || self.target != "it" {
            let subject = if self.kind == "test" { self.target.clone() } else { "unit".to_string() };
            let mut command = self.command();
            command.args(ignored);
            jobs.push(CheckJob::new(format!("{group}: {subject}"), command).again(self.again("")));
        } else {
            for (module, tests) in modules(&self.list()?) {
                let mut command = self.command();
                command.arg("--exact").args(ignored).args(&tests);
                let again = self.again(&format!(" {module}::"));
                jobs.push(CheckJob::new(format!("{group}: {module}"), command).again(again));
            }
        }
        for job in &mut jobs {
            job.expected = UNKNOWN_SECONDS;
            measured.apply(job);
        }
        Ok(jobs)
    }

    /// Returns the command that runs the program as cargo does.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.manifest_dir).env("CARGO_MANIFEST_DIR", &self.manifest_dir);
        command
    }

    /// Returns the crate's name, as cargo knows it.
    pub fn crate_name(&self) -> String {
        if self.package == "capi" { "ninefold-capi".into() } else { self.package.clone() }
    }

    /// Returns the command that a person types to run this program.
    fn again(&self, filter: &str) -> String {
        let package = self.crate_name();
        match self.kind.as_str() {
            "test" => format!("cargo test -p {package} --test {}{filter}", self.target),
            "bin" => format!("cargo test -p {package} --bins"),
            _ => format!("cargo test -p {package} --lib"),
        }
    }

    fn list(&self) -> Result<String, String> {
        let mut list = self.command();
        list.args(["--list", "--format", "terse"]).stdin(Stdio::null());
        let output = list.output().map_err(|e| format!("{}: {e}", self.executable.display()))?;
        if !output.status.success() {
            return Err(format!("{} --list: {}", self.executable.display(), output.status));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Groups the tests of a listing by module, in the order of the listing.
fn modules(listing: &str) -> Vec<(String, Vec<String>)> {
    let mut modules: Vec<(String, Vec<String>)> = Vec::new();
    for test in listing.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.rsplit_once("::").map_or("main", |(module, _)| module);
        match modules.iter_mut().find(|(name, _)| name == module) {
            Some((_, tests)) => tests.push(test.to_string()),
            None => modules.push((module.to_string(), vec![test.to_string()])),
        }
    }
    modules
}

/// Assumed seconds of a job without a measurement: it starts before the short ones.
const UNKNOWN_SECONDS: f64 = 30.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_grouped_by_their_module() {
        let listing = "mux::a: test\nfs::b: test\nmux::c::d: test\nalone: test\nx: benchmark\n";
        let expected: Vec<(String, Vec<String>)> = [
            ("mux", vec!["mux::a"]),
            ("fs", vec!["fs::b"]),
            ("mux::c", vec!["mux::c::d"]),
            ("main", vec!["alone"]),
        ]
        .map(|(name, tests)| (name.to_string(), tests.into_iter().map(String::from).collect()))
        .into();
        assert_eq!(modules(listing), expected);
    }

    #[test]
    fn only_test_programs_are_taken_from_the_messages_of_a_build() {
        let line = |test: bool, kind: &str| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": "/x/crates/nine-io/Cargo.toml",
                "profile": { "test": test }, "executable": "/x/target/debug/deps/it-1",
                "target": { "kind": [kind], "name": "it" }
            })
        };
        assert!(test_program(&line(false, "test")).is_none());
        assert!(test_program(&line(true, "example")).is_none());
        let program = test_program(&line(true, "test")).unwrap();
        assert_eq!((program.package.as_str(), program.kind.as_str()), ("nine-io", "test"));
        assert_eq!(program.again(" mux::"), "cargo test -p nine-io --test it mux::");
    }
}
