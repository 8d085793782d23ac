//! Every measurement of Ninefold: ours, the peer that a user would pick instead, and the physical limit, in turn.
//!
//! ```text
//! cargo run --release -p nine-bench -- LIST | NAME [--quick] [--only PART] [--json FILE] [--plots DIR]
//! ```
//! In: the name of an experiment. Out: progress on the standard error; a table and the line `result NAME key=value ...`
//! on the standard output. Always holds: whatever ends the program, its servers end with it (`child`) and its scratch
//! files go (`scratch`); a peer that is missing is said to be, and its keys are `na`.
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

use args::{Args, Pace};
use report::Report;

/// One experiment: a file or a folder of its own.
struct Experiment {
    name: &'static str,
    /// One line for LIST.
    what: &'static str,
    /// All of it, or the one part that is named.
    run: fn(Pace, Option<&str>) -> io::Result<Report>,
}

const EXPERIMENTS: &[Experiment] = &[
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
    match Args::parse(&words) {
        Ok(Args::List) => {
            for Experiment { name, what, .. } in EXPERIMENTS {
                println!("{name:12} {what}");
            }
            ExitCode::SUCCESS
        }
        Ok(Args::Run { name, pace, only, json, plots }) => match EXPERIMENTS
            .iter()
            .find(|one| name == one.name)
        {
            Some(experiment) => {
                let report = measure(experiment, pace, only.as_deref());
                ended(
                    report.and_then(|report| written(experiment, &report, json.as_deref(), plots.as_deref())),
                )
            }
            None => refused(&format!("there is no experiment `{name}`; LIST names them")),
        },
        Err(why) => refused(&why),
    }
}

fn measure(experiment: &Experiment, pace: Pace, only: Option<&str>) -> io::Result<Report> {
    scratch::sweep_on_signals()?;
    nine_net::rt::raise_nofile()?;
    place::remember();
    eprintln!("{}: {}; {}", experiment.name, experiment.what, pace.promise());
    if cfg!(debug_assertions) && pace != Pace::Tiny {
        eprintln!("{}: THIS IS A DEBUG BUILD: its figures mean nothing; use --release", experiment.name);
    }
    (experiment.run)(pace, only)
}

fn written(of: &Experiment, report: &Report, json: Option<&Path>, plots: Option<&Path>) -> io::Result<()> {
    print!("{}", report.text(of.name));
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

fn refused(why: &str) -> ExitCode {
    eprintln!("nine-bench: {why}\n{}", args::USAGE);
    ExitCode::from(2)
}
