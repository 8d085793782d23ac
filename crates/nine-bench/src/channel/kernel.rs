//! Writes by the Linux kernel's 9P client, in a machine with Debian's kernel, started by `cargo xtask guest`.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// Measures `times` writes of each size to a file of the server at this loopback port; microseconds of a write. The
/// inner error names the missing program or file.
pub(super) fn writes(
    port: u16,
    file: &str,
    sizes: &[usize],
    times: u32,
) -> io::Result<Result<Vec<f64>, String>> {
    let Some(cargo) = std::env::var_os("CARGO") else {
        return Ok(Err("a machine with Debian's kernel, which cargo starts: cargo run -p nine-bench".into()));
    };
    let sizes_all: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let script = format!(
        "set -e; modprobe 9pnet_fd; mkdir -p /tmp/m
         mount -t 9p -o trans=tcp,port={port},version=9p2000.L,msize=1048576,access=any 10.0.2.2 /tmp/m
         for n in {}; do
             dd if=/dev/zero of=/tmp/m/{file} bs=$n count={times} conv=notrunc 2>&1 |
                 sed -n 's/.* copied, \\([^ ]*\\) s.*/took \\1/p'
         done",
        sizes_all.join(" ")
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut run = Command::new(cargo);
    run.args(["xtask", "guest", "--timeout", "600", "--", "sh", "-c", &script]);
    let output = run.current_dir(root).env("LC_ALL", "C").stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let seconds = said.lines().filter_map(|line| line.trim().strip_prefix("took ")?.parse::<f64>().ok());
    let all: Vec<f64> = seconds.map(|took| took * 1e6 / f64::from(times)).collect();
    if output.status.success() && all.len() == sizes.len() {
        return Ok(Ok(all));
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Ok(Err(format!("the kernel's client: {}", why.lines().last().unwrap_or("it has said nothing"))))
}
