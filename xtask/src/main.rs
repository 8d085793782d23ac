//! The project's own chores, so that a clone needs nothing but cargo.
//!
//! In: one verb on the command line. Out: lines on the terminal and an exit status. Every check either runs
//! or says in plain words that it did not and what is then not covered.

#![forbid(unsafe_code)]

mod aoe;
mod browser;
mod capi;
mod child;
mod diod;
mod dissector;
mod fuse;
mod guest;
mod http;
mod images;
mod mux;
mod netns;
mod package;
mod packages;
mod python;
mod recorder;
mod served;
mod steps;
mod stores;
mod test;
mod tidy;
mod tour;
mod v9fs;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use served::Program;
use steps::{Failed, Steps, cargo};

const HELP: &str = "\
The project's own chores.

Usage: cargo xtask VERB

  test [--all]              install what the tests need, then run every check but format and lints
                            (--all: also ignored tests, more simulated worlds, ten times the fuzzing)
  ci                        what a change must pass: format, lints, tidy, test (the same as .ci/run)
  tidy                      arrows between crates, places of tokio and unsafe, text, names, licences
  fuzz-smoke [ITERATIONS]   every fuzz target for a fixed number of inputs (default 500000 each)
  sim [--seed N] [--count N]
                            simulated worlds: one by its seed, or COUNT small ones a test (of large ones fewer)
  sim archive [--seed N] [--seeds N]
                            the archive's alone: disks whose power is cut, that fail, that lie, that are full
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
  package [--all]           the Debian package: made, judged by lintian, installed, upgraded and purged, and at work
                            under systemd in such a machine (--all: of the release build, as it is published)
  python                    the Python module, installed into target/python and judged by fsspec's suite, pandas,
                            pyarrow and zarr
  capi [--bless]            the library for C, into target/capi, and programs in C that use it
                            (--bless: writes its header anew)
  images [--host | --lint]  the images of machines, into target/images (--host: without a download, for this target;
                            --lint: what clippy says of them)
  tour                      a machine without an operating system says hello, reads a file and fetches a page
  bless                     write golden/ anew from what the code says now; then read the difference
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut steps = Steps::default();
    let ended = match args.as_slice() {
        ["test"] => test::run(&mut steps, false),
        ["test", "--all"] => test::run(&mut steps, true),
        ["ci"] => steps.run("ci", Command::new(root().join(".ci/run")).current_dir(root())),
        ["tidy"] => steps.call("tidy", "cargo xtask tidy", || tidy::run(root())),
        ["fuzz-smoke"] => fuzz_smoke(&mut steps, SMOKE),
        ["fuzz-smoke", n] if n.parse::<u64>().is_ok() => fuzz_smoke(&mut steps, n.parse().unwrap_or(SMOKE)),
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

/// This host's target, as machines and sanitizers know it.
const HOST: &str = "x86_64-unknown-linux-gnu";

fn wrong(args: &[&str]) -> ExitCode {
    eprintln!("xtask: not understood: {}\n\n{HELP}", args.join(" "));
    ExitCode::from(2)
}

fn fuzz_smoke(steps: &mut Steps, iterations: u64) -> Result<(), Failed> {
    let mut driver =
        cargo(&["run", "--release", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--", "all"]);
    driver.args(["--iterations", &iterations.to_string(), "--seed", "1"]);
    steps.run("fuzz smoke", &mut driver)
}

/// One of the steps with other people's clients, alone.
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

/// The worlds of the archive: about five cuts in each.
fn archive(steps: &mut Steps, env: &[(&str, String)]) -> Result<(), Failed> {
    let mut tests = cargo(&["test", "--profile", "worlds", "--package", "nine-sim", "--test", "archive"]);
    tests.envs(env.iter().map(|(name, value)| (name, value)));
    steps.run("power cuts", &mut tests)
}

fn bless(steps: &mut Steps) -> Result<(), Failed> {
    steps.run("bless", cargo(&["test", "--package", "nine-proto", "golden"]).env("BLESS", "1"))
}

/// `--seed N` and `--count N`, or `--seeds N`, as the environment that nine-sim's tests read.
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

/// The root of the repository: every command runs there, so that what is printed can be pasted there.
fn root() -> &'static Path {
    static ROOT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    ROOT.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        here.parent().unwrap_or(here).to_path_buf()
    })
}

/// Where cargo puts what it builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Inputs per fuzz target in a smoke run: about a second each.
const SMOKE: u64 = 500_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_becomes_the_environment_of_the_simulation() {
        let env = worlds(&["--seed", "7", "--count", "3"]);
        assert_eq!(env, Some(vec![("NINE_SEED", "7".to_string()), ("NINE_SEEDS", "3".to_string())]));
    }

    #[test]
    fn a_seed_that_is_no_number_is_refused() {
        assert_eq!(worlds(&["--seed", "seven"]), None);
        assert_eq!(worlds(&["--seed"]), None);
    }
}
