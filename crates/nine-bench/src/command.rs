//! The command `ninefold`, as users run it.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns the path of the command beside this program. If cargo started this program, builds the
/// command first.
pub fn program() -> io::Result<PathBuf> {
    let this = std::env::current_exe()?;
    // Test programs are one directory deeper.
    let beside = this.ancestors().skip(1).take(2).map(|dir| dir.join("ninefold"));
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", "ninefold"]).stdin(Stdio::null());
        build.args(["--profile", env!("NINE_BENCH_PROFILE")]);
        if !build.current_dir(env!("CARGO_MANIFEST_DIR")).status()?.success() {
            return Err(io::Error::other("the command ninefold cannot be built"));
        }
    }
    let found = beside.clone().find(|path| path.is_file());
    found.ok_or_else(|| {
        io::Error::other("no `ninefold` beside this program: cargo build --profile dist -p ninefold")
    })
}
