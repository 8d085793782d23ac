//! The Python module: built and installed as a user does it, into a virtual environment, and tested there by fsspec's
//! suite for file systems, pandas, pyarrow and zarr, and checked by mypy and ruff.
//!
//! All files are in `target/python`. Python and the packages are looked up at the start. If they are missing, that is
//! reported.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::child::last_lines;
use crate::root;
use crate::served::Program;
use crate::steps::{Failed, Steps};

pub fn run(steps: &mut Steps, program: &Program) -> Result<(), Failed> {
    let python = match environment() {
        Ok(python) => python,
        Err(why) => {
            steps.not_covered(format!("the Python module, under fsspec, pandas, pyarrow and zarr ({why})"));
            return Ok(());
        }
    };
    let tool = |words: &[&str]| {
        let mut command = Command::new(&python);
        command.arg("-m").args(words).current_dir(root().join("python")).stdin(Stdio::null());
        command.env("CARGO_TARGET_DIR", home()).env("NINEFOLD_BIN", &program.0);
        command
    };
    let install = ["pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--force-reinstall"];
    let light = ["--disable-pip-version-check", "--config-settings=build-args=--profile dev", "."];
    let mut install = tool(&[&install[..], &light].concat());
    // The build tools of the module are in the environment, too.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = python.parent().map(Path::to_path_buf).into_iter().chain(std::env::split_paths(&path));
    install.env("PATH", std::env::join_paths(dirs).unwrap_or(path.clone()));
    steps.run("python: pip install", &mut install)?;
    steps.run("python: lints", &mut tool(&["ruff", "check", "--quiet", "."]))?;
    steps.run("python: format", &mut tool(&["ruff", "format", "--quiet", "--check", "."]))?;
    steps.run("python: types", &mut tool(&["mypy"]))?;
    steps.run("python: tests", &mut tool(&["pytest", "-q", "-rs"]))
}

fn home() -> PathBuf {
    crate::target().join("python")
}

/// Returns the interpreter of an environment with exactly the packages of `python/requirements.txt`.
fn environment() -> Result<PathBuf, String> {
    let wanted = root().join("python/requirements.txt");
    let wanted = fs::read_to_string(&wanted).map_err(|e| format!("{}: {e}", wanted.display()))?;
    let place = home().join("venv");
    let (python, has) = (place.join("bin/python"), place.join("requirements.txt"));
    if fs::read_to_string(&has).is_ok_and(|has| has == wanted) {
        return Ok(python);
    }
    let new_enough = "import sys; sys.exit(sys.version_info < (3, 11))";
    said(Command::new("python3").args(["-c", new_enough]), "python3 is missing, or older than 3.11")?;
    println!("==> python: its packages are fetched");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(home()).map_err(|e| format!("{}: {e}", home().display()))?;
    said(Command::new("python3").args(["-m", "venv"]).arg(&place), "python3 makes no environment")?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]);
    said(pip.arg("python/requirements.txt").current_dir(root()), "its packages cannot be fetched")?;
    fs::write(&has, wanted).map_err(|e| format!("{}: {e}", has.display()))?;
    Ok(python)
}

fn said(command: &mut Command, what: &str) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{what}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("{what}: {}", last_lines(&words, 1).trim()))
}
