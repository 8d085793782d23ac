//! The deterministic driver: it runs every target on stable Rust and needs no installation.
//!
//! In: a target's name, a seed and a number of iterations. Out: nothing, or the input that broke the target: on the
//! terminal with the command that replays it, and as a file in `artifacts/`. An input depends only on (target, seed,
//! iteration) and the corpus, so it can be generated again without the earlier ones.

#![forbid(unsafe_code)]

mod mutate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nine_fuzz::{TARGETS, Target};

const HELP: &str = "\
Feeds mutated messages to the fuzz targets.

Usage: nine-fuzz NAME|all [--iterations N] [--seed S] [--at I]
       nine-fuzz NAME FILE        run one input, such as a file in artifacts/

  --iterations N   inputs per target (default 500000); of all, slow targets get fewer
  --seed S         another seed, other inputs (default 1)
  --at I           only the input of iteration I
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(plan) = Plan::parse(&args) else {
        let names: Vec<&str> = TARGETS.iter().map(|(name, ..)| *name).collect();
        eprintln!("{HELP}\nTargets: {}", names.join(" "));
        return ExitCode::from(2);
    };
    let ended = match &plan.file {
        Some(file) => plan.targets.iter().try_for_each(|target| one_file(target, file)),
        None => {
            let corpus = corpus();
            canary(&corpus, plan.seed);
            plan.targets.iter().try_for_each(|target| many(target, &corpus, &plan))
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}

struct Plan {
    targets: Vec<Target>,
    /// Run all targets, each with its share of the inputs.
    all: bool,
    from: u64,
    to: u64,
    seed: u64,
    file: Option<PathBuf>,
}

impl Plan {
    fn parse(args: &[String]) -> Option<Plan> {
        let (name, mut rest) = args.split_first()?;
        let targets: Vec<Target> =
            TARGETS.iter().filter(|(t, ..)| name == "all" || name == t).copied().collect();
        let mut plan = Plan { targets, all: name == "all", from: 0, to: 500_000, seed: 1, file: None };
        while let Some((option, more)) = rest.split_first() {
            let number = || more.first().and_then(|word| word.parse::<u64>().ok());
            match option.as_str() {
                "--iterations" => plan.to = number()?,
                "--seed" => plan.seed = number()?,
                "--at" => (plan.from, plan.to) = (number()?, number()? + 1),
                file if rest.len() == 1 => {
                    plan.file = Some(file.into());
                    return Some(plan);
                }
                _ => return None,
            }
            rest = &more[1..];
        }
        (name == "all" || !plan.targets.is_empty()).then_some(plan)
    }
}

fn one_file(target: &Target, file: &Path) -> Result<(), String> {
    let input = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    (target.1)(&input);
    Ok(())
}

fn many(target: &Target, corpus: &[Vec<u8>], plan: &Plan) -> Result<(), String> {
    let (name, f, slow) = *target;
    let to = if plan.all { plan.to / slow } else { plan.to };
    let start = Instant::now();
    let watch = watch(name, plan.seed);
    for i in plan.from..to {
        watch.store(i, Ordering::Relaxed);
        let input = mutate::input(corpus, name, plan.seed, i);
        if catch_unwind(AssertUnwindSafe(|| f(&input))).is_err() {
            return Err(broken(name, plan.seed, i, &input));
        }
    }
    watch.store(DONE, Ordering::Relaxed);
    let inputs = to.saturating_sub(plan.from);
    println!("{name}: {inputs} inputs, seed {}, {:.1} s", plan.seed, start.elapsed().as_secs_f64());
    Ok(())
}

/// Checks that the mutations find a planted bug. Otherwise a run without findings means nothing.
fn canary(corpus: &[Vec<u8>], seed: u64) {
    let bug = |input: &[u8]| input.len() > 19 && input[4] == 100 && input[7..11] == [0xff; 4];
    let found = (0..1_000_000).any(|i| bug(&mutate::input(corpus, "canary", seed, i)));
    assert!(found, "the planted bug was not found: the mutations of the driver are too weak");
}

/// Ends the program if one input takes too long. Prints the iteration, which identifies the input.
fn watch(name: &'static str, seed: u64) -> std::sync::Arc<AtomicU64> {
    let at = std::sync::Arc::new(AtomicU64::new(0));
    let watched = at.clone();
    std::thread::spawn(move || {
        let mut last = u64::MAX - 1;
        loop {
            std::thread::sleep(PATIENCE);
            match watched.load(Ordering::Relaxed) {
                DONE => return,
                i if i == last => {
                    eprintln!(
                        "{name}: seed {seed}: iteration {i} does not end; again: {}",
                        again(name, seed, i)
                    );
                    std::process::exit(1);
                }
                i => last = i,
            }
        }
    });
    at
}

fn broken(name: &str, seed: u64, i: u64, input: &[u8]) -> String {
    let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
    let dir = here().join("artifacts");
    let file = dir.join(format!("{name}-{seed}-{i}"));
    let kept = std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&file, input));
    let kept = match kept {
        Ok(()) => format!("kept in {}", file.display()),
        Err(e) => format!("not kept: {}: {e}", file.display()),
    };
    format!("{name}: seed {seed}, iteration {i}: {hex}\n{kept}; again: {}", again(name, seed, i))
}

fn again(name: &str, seed: u64, i: u64) -> String {
    format!("cargo run --release --manifest-path fuzz/Cargo.toml -- {name} --seed {seed} --at {i}")
}

/// Returns the inputs from which mutation starts: the golden messages and the files in `seeds`. They are sorted,
/// because inputs depend on the order.
fn corpus() -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> =
        ["../golden", "seeds"].iter().flat_map(|dir| files(&here().join(dir))).collect();
    files.sort();
    let mut corpus = Vec::new();
    for file in files {
        let Ok(bytes) = std::fs::read(&file) else { continue };
        match std::str::from_utf8(&bytes) {
            Ok(text) if !file.starts_with(here().join("seeds")) => {
                corpus.extend(text.lines().filter_map(golden))
            }
            _ => corpus.push(bytes),
        }
    }
    corpus
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect()
}

/// Returns the bytes of a golden line, `dialect hex`. Other lines are printed forms.
fn golden(line: &str) -> Option<Vec<u8>> {
    let (_, hex) = line.split_once(' ')?;
    let pairs =
        hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    let bytes: Vec<u8> = pairs.collect::<Option<_>>()?;
    (hex.len() % 2 == 0 && bytes.len() >= 7).then_some(bytes)
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// An input that takes longer counts as endless.
const PATIENCE: Duration = Duration::from_secs(30);

const DONE: u64 = u64::MAX;
