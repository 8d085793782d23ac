//! The project's tasks, so that a clone needs only cargo.
//!
//! In: one verb on the command line. Out: lines on the terminal and an exit status. Each check either runs, or reports
//! that it did not run and which behaviour is therefore not covered.

#![forbid(unsafe_code)]

mod aoe;
mod browser;
mod built;
mod capi;
mod cases;
mod child;
mod diod;
mod dissector;
mod fuse;
mod green;
mod guest;
mod http;
mod images;
mod language;
mod mux;
mod netns;
mod nightly;
mod package;
mod packages;
mod plan;
mod python;
mod quick;
mod recorder;
mod report;
mod seeds;
mod served;
mod steps;
mod stores;
mod test;
mod tidy;
mod tour;
mod v9fs;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use served::Program;
use steps::{Failed, Steps, cargo};

const HELP: &str = "\
The project's own chores.

Usage: cargo xtask VERB

Every change:
  quick [CRATE..]           the checks that tell soonest whether a change is right: format, tidy, lints, unit tests, few
                            simulated worlds, a smoke set of the command; of the crates that changed since the last run
                            that passed, or of those named
  test                      every test a change must pass; installs what the tests need
  ci                        format, lints, tidy and test (the same as .ci/run)
  nightly [--for TIME] [--clock TIME] [--dirty]
                            every check there is for this commit, in as many runs as it takes; no check starts after
                            --for (2h, 90m), checks by the clock last --clock each (20m)
  nightly --report [COMMIT] the table of what has run on a commit
  cases --dir DIR [PART]    programs that each show something that must hold

One check alone:
  tidy                      dependencies between crates, places of tokio and unsafe, text, names, licences, language
  language [--bless | NAME..]
                            the measures of names, comments and documents beside their goals; of a crate or document
                            also each place (--bless: writes the better numbers into xtask/language.toml)
  sim [--seed N] [--count N]
                            simulated worlds: one by its seed, or COUNT small ones a test (of large ones fewer)
  sim archive [--seed N] [--seeds N]
                            the archive's alone: disks whose power is cut, that fail, that lie, that are full
  worlds --for TIME         simulated worlds with ever new seeds until the time is up
  fuzz-smoke [ITERATIONS]   every fuzz target for a fixed number of inputs (default 50000 each)
  fuzz --for TIME           every fuzz target with ever new seeds until the time is up
  sanitizer address|thread  tests under the compiler's sanitizer
  no-std                    crates that need no operating system, built and linked without std
  guest [--timeout S] [--share DIR] [--qemu WORD].. -- COMMAND..
                            a command in a virtual machine with Debian's kernel and this host's files
  v9fs [--all] [PART]       the Linux kernel's 9P client at work on our servers, in such a machine
                            (PART: the checks whose names hold it; mux: over a mux of foreign servers)
  diod                      diod's programs against our server
  aoe [--all]               ATA over Ethernet: our initiator against vblade, our targets under the Linux kernel's driver
                            and aoetools, all of it under wireshark's eyes
  fuse [PART]               fsx, pjdfstest, git, a compiler, a data base and editors in our mounts on this host
                            (PART: the checks whose names hold it)
  dissector                 wireshark's dissector reads all that we say
  http                      requests and judges of others, curl, wget, wrk and ab against our web server
  browser                   the pages of our web server in Debian's chromium
  stores                    an archive on object stores of others: versitygw and moto, which are fetched
  package [--quick | --all] the Debian package: made, judged by lintian, installed, upgraded and purged, and at work
                            under systemd in such a machine (--quick: without that; --all: of the build for publication)
  python                    the Python module, installed into target/python and judged by fsspec's suite, pandas,
                            pyarrow and zarr
  capi [--bless]            the library for C, into target/capi, and programs in C that use it
                            (--bless: writes its header anew)
  images [--host | --lint]  the images of machines, into target/images (--host: without a download, for this target;
                            --lint: what clippy says of them)
  tour                      a machine without an operating system says hello, reads a file and fetches a page
  packages [--all], tools   installs what the checks call: Debian packages; fsx and pjdfstest
  bless                     write golden/ anew from what the code says now; then read the difference
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut steps = Steps::default();
    let ended = match args.as_slice() {
        ["test"] => return test::run(),
        ["quick", crates @ ..] if !crates.iter().any(|word| word.starts_with('-')) => {
            return quick::run(crates);
        }
        ["nightly", "--report", commit @ ..] if commit.len() < 2 => {
            return nightly::report_verb(commit.first().copied());
        }
        ["nightly", options @ ..] => match nightly_options(options) {
            Some(options) => return nightly::run(&options),
            None => return wrong(&args),
        },
        ["cases", "--dir", dir, part @ ..] if part.len() < 2 => {
            return cases::run(&mut steps, dir, &part.concat());
        }
        ["packages"] => packages::install(&mut steps, false),
        ["packages", "--all"] => packages::install(&mut steps, true),
        ["tools"] => v9fs::tools(&mut steps),
        ["no-std"] => test::no_std_checks(&mut steps),
        ["worlds", "--for", time] if duration(time).is_some() => {
            nightly::worlds(&mut steps, duration(time).unwrap_or_default().as_secs())
        }
        ["fuzz", "--for", time] if duration(time).is_some() => {
            nightly::fuzz(&mut steps, duration(time).unwrap_or_default().as_secs())
        }
        ["sanitizer", flag @ ("address" | "thread")] => nightly::sanitizer(&mut steps, flag),
        ["ci"] => steps.run("ci", Command::new(root().join(".ci/run")).current_dir(root())),
        ["tidy"] => steps.call("tidy", "cargo xtask tidy", || tidy::run(root())),
        ["language", "--bless"] => return language::bless(root()),
        ["language", names @ ..] if !names.iter().any(|name| name.starts_with('-')) => {
            return language::show(root(), names);
        }
        ["fuzz-smoke"] => steps.run("fuzz smoke", &mut fuzz_command(&test::SMOKE.to_string(), 1)),
        ["fuzz-smoke", n] if n.parse::<u64>().is_ok() => steps.run("fuzz smoke", &mut fuzz_command(n, 1)),
        ["python"] => Program::built(&mut steps, false).and_then(|program| python::run(&mut steps, &program)),
        ["capi"] => Program::built(&mut steps, false).and_then(|program| capi::run(&mut steps, &program)),
        ["capi", "--bless"] => capi::bless(&mut steps),
        ["images"] => images::build(&mut steps, false),
        ["images", "--host"] => images::build(&mut steps, true),
        ["images", "--lint"] => images::lint(&mut steps),
        ["tour"] => tour::run(&mut steps),
        ["bless"] => bless(&mut steps),
        ["guest", words @ ..] => match guest::verb(words) {
            Some(status) => return status,
            None => return wrong(&args),
        },
        ["aoe"] => clients(&mut steps, false, |steps, program| aoe::run(steps, program, false)),
        ["aoe", "--all"] => clients(&mut steps, true, |steps, program| aoe::run(steps, program, true)),
        ["diod"] => clients(&mut steps, false, diod::run),
        ["fuse", part @ ..] if part.len() < 2 => {
            clients(&mut steps, false, |steps, program| fuse::run(steps, program, &part.concat()))
        }
        ["dissector"] => clients(&mut steps, false, dissector::run),
        ["http"] => clients(&mut steps, true, http::run),
        ["browser"] => packages::install(&mut steps, true)
            .and_then(|()| Program::built(&mut steps, false))
            .and_then(|program| browser::run(&mut steps, &program)),
        ["package", "--quick"] => packages::install(&mut steps, false)
            .and_then(|()| Program::built(&mut steps, false))
            .and_then(|program| package::run(&mut steps, &program, false, false)),
        ["package"] => packages::install(&mut steps, false)
            .and_then(|()| Program::built(&mut steps, false))
            .and_then(|program| package::run(&mut steps, &program, false, true)),
        ["package", "--all"] => packages::install(&mut steps, false)
            .and_then(|()| Program::built(&mut steps, true))
            .and_then(|program| package::run(&mut steps, &program, true, true)),
        ["stores"] => Program::built(&mut steps, false).and_then(|program| stores::run(&mut steps, &program)),
        ["v9fs", "--all", part @ ..] if part.len() < 2 => {
            clients(&mut steps, true, |steps, program| v9fs::run(steps, program, true, &part.concat()))
        }
        ["v9fs", part @ ..] if part.len() < 2 => {
            clients(&mut steps, false, |steps, program| v9fs::run(steps, program, false, &part.concat()))
        }
        ["sim", "archive", options @ ..] => match worlds(options) {
            Some(env) => archive(&mut steps, &env),
            None => return wrong(&args),
        },
        ["sim", options @ ..] => match worlds(options) {
            Some(env) => sim(&mut steps, &env),
            None => return wrong(&args),
        },
        [] | ["help" | "-h" | "--help", ..] | [_, "-h" | "--help"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => return wrong(&args),
    };
    steps.report();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed) => ExitCode::FAILURE,
    }
}

/// This host's target triple, for images and sanitizers.
const HOST: &str = "x86_64-unknown-linux-gnu";

fn wrong(args: &[&str]) -> ExitCode {
    eprintln!("xtask: not understood: {}\n\n{HELP}", args.join(" "));
    ExitCode::from(2)
}

/// Returns the command that runs every fuzz target with this many inputs each.
pub fn fuzz_command(inputs: &str, seed: u64) -> Command {
    let mut driver =
        cargo(&["run", "--release", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--", "all"]);
    driver.args(["--iterations", inputs, "--seed", &seed.to_string()]);
    driver
}

/// Runs one of the steps with third-party clients.
fn clients(
    steps: &mut Steps,
    all: bool,
    step: impl FnOnce(&mut Steps, &Program) -> Result<(), Failed>,
) -> Result<(), Failed> {
    packages::install(steps, all)?;
    let program = Program::built(steps, all)?;
    step(steps, &program)
}

fn sim(steps: &mut Steps, env: &[(&str, String)]) -> Result<(), Failed> {
    let mut tests = cargo(&["test", "--profile", "worlds", "--package", "nine-sim"]);
    tests.envs(env.iter().map(|(name, value)| (name, value)));
    steps.run("simulation", &mut tests)
}

/// Runs the archive's worlds: about five power cuts in each.
fn archive(steps: &mut Steps, env: &[(&str, String)]) -> Result<(), Failed> {
    let mut tests =
        cargo(&["test", "--profile", "worlds", "--package", "nine-sim", "--test", "it", "archive::"]);
    tests.envs(env.iter().map(|(name, value)| (name, value)));
    steps.run("power cuts", &mut tests)
}

fn bless(steps: &mut Steps) -> Result<(), Failed> {
    steps.run("bless", cargo(&["test", "--package", "nine-proto", "golden"]).env("BLESS", "1"))
}

/// Translates `--seed N` and `--count N`, or `--seeds N`, into the environment that nine-sim's tests read.
fn worlds(options: &[&str]) -> Option<Vec<(&'static str, String)>> {
    let mut env = Vec::new();
    for pair in options.chunks(2) {
        let &[option, value] = pair else { return None };
        let name = match option {
            "--seed" => "NINE_SEED",
            "--count" | "--seeds" => "NINE_SEEDS",
            _ => return None,
        };
        value.parse::<u64>().ok()?;
        env.push((name, value.to_string()));
    }
    Some(env)
}

fn nightly_options(words: &[&str]) -> Option<nightly::NightlyOptions> {
    let mut options = nightly::NightlyOptions { limit: None, clock: 20 * 60, allows_dirty: false };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--dirty" => options.allows_dirty = true,
            "--for" => options.limit = Some(duration(words.next()?)?),
            "--clock" => options.clock = duration(words.next()?)?.as_secs(),
            _ => return None,
        }
    }
    Some(options)
}

/// Parses a number of seconds, or with the suffix h, m or s.
fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = match text.strip_suffix(['h', 'm', 's']) {
        Some(digits) => (digits, &text[digits.len()..]),
        None => (text, "s"),
    };
    let seconds = match unit {
        "h" => 3600,
        "m" => 60,
        _ => 1,
    };
    Some(Duration::from_secs(digits.parse::<u64>().ok()?.checked_mul(seconds)?))
}

/// The root of the repository. Every command runs there, so that printed commands can be pasted there.
fn root() -> &'static Path {
    static ROOT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    ROOT.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        here.parent().unwrap_or(here).to_path_buf()
    })
}

/// Cargo's target directory.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_becomes_the_environment_of_the_simulation() {
        let env = worlds(&["--seed", "7", "--count", "3"]);
        assert_eq!(env, Some(vec![("NINE_SEED", "7".to_string()), ("NINE_SEEDS", "3".to_string())]));
    }

    #[test]
    fn durations_have_units() {
        let seconds = |text| duration(text).map(|time| time.as_secs());
        assert_eq!(
            [seconds("2h"), seconds("90m"), seconds("5s"), seconds("7")],
            [7200, 5400, 5, 7].map(Some)
        );
        assert_eq!([seconds("h"), seconds("2d"), seconds("-1")], [None; 3]);
    }

    #[test]
    fn options_of_nightly_may_come_in_any_order() {
        let options = nightly_options(&["--dirty", "--clock", "1m", "--for", "2h"]).unwrap();
        assert_eq!(
            (options.limit, options.clock, options.allows_dirty),
            (Some(Duration::from_secs(7200)), 60, true)
        );
        assert!(nightly_options(&["--for"]).is_none());
    }

    #[test]
    fn a_seed_that_is_no_number_is_refused() {
        assert_eq!(worlds(&["--seed", "seven"]), None);
        assert_eq!(worlds(&["--seed"]), None);
    }
}
