//! All measurements of Ninefold. Each runs ours, the peer that a user would choose instead, and the physical limit, in
//! turns.
//!
//! ```text
//! cargo run --profile dist -p nine-bench -- LIST | NAME [--quick] [--only PART] [--json FILE] [--plots DIR]
//! ```
//! In: the name of an experiment. Out: progress on the standard error; a table and the line `result NAME key=value ...`
//! on the standard output. Always holds: however the program ends, its servers end with it (`child`) and its scratch
//! files are removed (`scratch`). A missing peer is reported, and its keys are `na`. Only the published profile `dist`
//! prints a result line, unless `--any-profile` is given.
#![deny(unsafe_code)]

mod aoe;
mod archive;
mod args;
mod channel;
mod child;
mod command;
mod each;
mod far;
mod files;
mod http;
mod limit;
mod mount;
mod mux;
mod ours;
mod parts;
mod peers;
mod place;
mod plot;
mod report;
mod rpc;
mod scratch;
mod server;
mod stats;
mod streaming;
mod streams;
mod sys;
mod turns;
mod wire;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use args::{BenchArgs, BenchPace};
use report::BenchReport;

/// One experiment: a file or a directory of its own.
struct BenchExperiment {
    name: &'static str,
    /// Description for LIST, one line.
    what: &'static str,
    /// Runs all parts, or the named one.
    run: fn(BenchPace, Option<&str>) -> io::Result<BenchReport>,
}

const EXPERIMENTS: &[BenchExperiment] = &[
    rpc::EXPERIMENT,
    mux::EXPERIMENT,
    streaming::EXPERIMENT,
    streams::EXPERIMENT,
    http::EXPERIMENT,
    aoe::EXPERIMENT,
    archive::EXPERIMENT,
    channel::EXPERIMENT,
    mount::EXPERIMENT,
];

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if words.first().is_some_and(|word| word == child::ROLE) {
        return ended(child::main(&words[1..]));
    }
    match BenchArgs::parse(&words) {
        Ok(BenchArgs::List) => {
            for BenchExperiment { name, what, .. } in EXPERIMENTS {
                println!("{name:12} {what}");
            }
            ExitCode::SUCCESS
        }
        Ok(BenchArgs::Run { name, pace, only, json, plots, any_profile }) => {
            match EXPERIMENTS.iter().find(|one| name == one.name) {
                Some(experiment) => {
                    let report = measure(experiment, pace, only.as_deref());
                    ended(report.and_then(|mut report| {
                        report.notes.insert(0, format!("built with profile `{PROFILE}`"));
                        let has_result = any_profile || PROFILE == PUBLISHED;
                        written(experiment, &report, json.as_deref(), plots.as_deref(), has_result)
                    }))
                }
                None => refused(&format!("there is no experiment `{name}`; LIST names them")),
            }
        }
        Err(why) => refused(&why),
    }
}

fn measure(experiment: &BenchExperiment, pace: BenchPace, only: Option<&str>) -> io::Result<BenchReport> {
    scratch::sweep_on_signals()?;
    nine_net::rt::raise_nofile()?;
    place::remember();
    let BenchExperiment { name, what, .. } = experiment;
    eprintln!("{name}: {what}; profile {PROFILE}; {}", pace.promise());
    if PROFILE != PUBLISHED && pace != BenchPace::Tiny {
        eprintln!("{name}: figures of profile `{PROFILE}` are not those of the published program: {DIST}");
    }
    (experiment.run)(pace, only)
}

fn written(
    of: &BenchExperiment,
    report: &BenchReport,
    json: Option<&Path>,
    plots: Option<&Path>,
    has_result: bool,
) -> io::Result<()> {
    print!("{}", report.table());
    if has_result {
        println!("{}", report.result(of.name));
    } else {
        eprintln!("nine-bench: no result line: profile `{PROFILE}`; {DIST}, or pass --any-profile");
    }
    if let Some(path) = json {
        std::fs::write(path, report.json(of.name))?;
    }
    plots.map_or(Ok(()), |dir| report.figures.iter().try_for_each(|figure| figure.write(dir)))
}

fn ended(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nine-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The profile that this program was built with.
const PROFILE: &str = env!("NINE_BENCH_PROFILE");
/// The profile of published programs.
const PUBLISHED: &str = "dist";
const DIST: &str = "use `cargo run --profile dist -p nine-bench`";

fn refused(why: &str) -> ExitCode {
    eprintln!("nine-bench: {why}\n{}", args::USAGE);
    ExitCode::from(2)
}
