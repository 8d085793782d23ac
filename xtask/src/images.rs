//! `cargo xtask images`: the images of machines (docs/guest.md), into `target/images`.
//!
//! They are built for a target without an operating system, if rustup has it or can download it. Otherwise they are
//! built for this host without its standard library, which needs no download and produces the same kind of image.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::steps::{Failed, Steps, cargo};
use crate::{HOST, root};

/// Target triple of the images.
pub const BARE: &str = "x86_64-unknown-none";

/// Builds all images. `host` forces the build for this host.
pub fn build(steps: &mut Steps, host: bool) -> Result<(), Failed> {
    let target = if host || !has_bare() { HOST } else { BARE };
    let made = root().join("images/target").join(target).join("release");
    let mut build = cargo(&["build", "--release", "--target", target, "--bins"]);
    steps.run("images", build.current_dir(root().join("images")).env_remove("CARGO_TARGET_DIR"))?;
    steps.call("images in target", "cargo xtask images", || {
        match copy(&made, &crate::target().join("images")) {
            Ok(names) => {
                println!("for {target}: {}", names.join(" "));
                true
            }
            Err(error) => {
                eprintln!("{}: {error}", made.display());
                false
            }
        }
    })
}

/// Runs clippy on the images.
pub fn lint(steps: &mut Steps) -> Result<(), Failed> {
    let target = if has_bare() { BARE } else { HOST };
    let mut lint =
        cargo(&["clippy", "--release", "--target", target, "--lib", "--bins", "--", "-D", "warnings"]);
    steps.run("lints of images", lint.current_dir(root().join("images")).env_remove("CARGO_TARGET_DIR"))
}

/// Whether rustup has, or can install, the target without an operating system.
pub fn has_bare() -> bool {
    let added = Command::new("rustup").args(["target", "add", BARE]).stdin(Stdio::null()).output();
    added.is_ok_and(|output| output.status.success())
}

/// Copies the programs of one directory. Each is replaced atomically, so a running one is not affected.
fn copy(from: &Path, to: &Path) -> std::io::Result<Vec<String>> {
    fs::create_dir_all(to)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join("images/src/bin"))? {
        let source = entry?.path();
        let Some(name) = source.file_stem().and_then(|name| name.to_str()) else { continue };
        let (new, old) = (to.join(format!(".{name}-{}", std::process::id())), to.join(name));
        fs::copy(from.join(name), &new)?;
        fs::rename(new, old)?;
        names.push(name.to_owned());
    }
    names.sort();
    Ok(names)
}
