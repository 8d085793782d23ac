//! Our FUSE mount under third-party suites and programs, on this host.

use std::fs;
use std::process::Command;

use crate::guest::scratch;
use crate::packages;
use crate::served::Program;
use crate::steps::{Failed, Steps};
use crate::v9fs;

/// Runs the checks. `only` selects those whose names contain it.
pub fn run(steps: &mut Steps, program: &Program, only: &str) -> Result<(), Failed> {
    if !packages::is_root() || !std::path::Path::new("/dev/fuse").exists() {
        steps.not_covered("mounts by FUSE under suites of others (must be root, with /dev/fuse)".into());
        return Ok(());
    }
    v9fs::tools(steps)?;
    steps.call("mounts by FUSE", "cargo xtask fuse", || match work(program, only) {
        Ok(is_right) => is_right,
        Err(why) => {
            eprintln!("{why}");
            false
        }
    })
}

fn work(program: &Program, only: &str) -> Result<bool, String> {
    let place = scratch("fuse")?;
    let share = place.0.join("share");
    fs::create_dir_all(&share).map_err(|e| format!("{}: {e}", share.display()))?;
    v9fs::lend(&share)?;
    let texts = [
        ("checks.sh", v9fs::CHECKS),
        ("fuse.sh", SCRIPT),
        ("fsx.toml", v9fs::FSX),
        ("fsx-mmap.toml", v9fs::FSX_MMAP),
    ];
    for (name, text) in texts.into_iter().chain([("pjdfstest.toml", v9fs::PJDFSTEST)]) {
        fs::write(share.join(name), text).map_err(|e| format!("{name}: {e}"))?;
    }
    // Its mounts end with its name space.
    let mut script = Command::new("unshare");
    script.args(["--mount", "--propagation", "private", "--", "bash"]).arg(share.join("fuse.sh"));
    script.arg(&share).arg(&program.0).arg(only);
    let ended = script.status().map_err(|e| format!("cannot start unshare: {e}"))?;
    Ok(ended.success())
}

const SCRIPT: &str = include_str!("../guest/fuse.sh");
