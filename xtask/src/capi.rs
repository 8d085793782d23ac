//! The C library: built and installed into `target/capi`. Its header is compared with cbindgen's output, and C programs
//! are compiled against it, shared and static, and run against a server.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::child::last_lines;
use crate::guest::scratch;
use crate::packages;
use crate::root;
use crate::served::{Program, Served};
use crate::steps::{Failed, Steps, cargo};

/// Version of the program that generates the header.
const CBINDGEN: &str = "0.29.4";
const HEADER: &str = "ninefold_client.h";
/// Compiler options: all warnings are errors.
const STRICT: &[&str] = &["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"];
/// Expected output of `examples/tour.c`.
const TOUR: &str = "\
read: from C
written: 16777216
the same: yes
large: 16777216 bytes
names: 2
through the mux: hello from C
walked: 100
and no more: 0
errno 2: /none: No such file or directory
";

pub fn run(steps: &mut Steps, program: &Program) -> Result<(), Failed> {
    if !crate::test::is_built() {
        steps.run("libninefold", &mut cargo(&["build", "--quiet", "--package", "ninefold-capi"]))?;
    }
    match made_header() {
        Ok(made) => steps.call("the header of C", "cargo xtask capi", || {
            let here = fs::read_to_string(header()).unwrap_or_default();
            if here != made {
                eprintln!("{} is not what the source says: cargo xtask capi --bless", header().display());
            }
            here == made
        })?,
        Err(why) => steps.not_covered(format!("whether capi/include/{HEADER} is current ({why})")),
    }
    steps.call("libninefold in target/capi", "cargo xtask capi", || told(lay_out()))?;
    for (name, needs) in [("cc", "C"), ("pkg-config", "C, as pkg-config finds it")] {
        if packages::program(name).is_none() {
            steps.not_covered(format!("programs in {needs} ({name} is not installed)"));
            return Ok(());
        }
    }
    steps.call("programs in C", "cargo xtask capi", || told(programs(program)))
}

/// Regenerates the header.
pub fn bless(steps: &mut Steps) -> Result<(), Failed> {
    steps.call("the header of C", "cargo xtask capi --bless", || {
        let written = made_header();
        told(
            written.and_then(|text| {
                fs::write(header(), text).map_err(|e| format!("{}: {e}", header().display()))
            }),
        )
    })
}

fn told(result: Result<(), String>) -> bool {
    if let Err(why) = &result {
        eprintln!("{why}");
    }
    result.is_ok()
}

fn header() -> PathBuf {
    root().join("capi/include").join(HEADER)
}

fn home() -> PathBuf {
    crate::target().join("capi")
}

/// Returns the header that cbindgen generates from the source. cbindgen is fetched once.
fn made_header() -> Result<String, String> {
    let tools = packages::cache().join(format!("cbindgen-{CBINDGEN}"));
    let cbindgen = tools.join("bin/cbindgen");
    if !cbindgen.exists() {
        println!("==> cbindgen: it is fetched");
        let mut install =
            cargo(&["install", "--quiet", "--locked", "--debug", "cbindgen", "--version", CBINDGEN]);
        install.arg("--root").arg(&tools).env_remove("CARGO_TARGET_DIR");
        said(&mut install)
            .map_err(|why| format!("cbindgen cannot be fetched: {}", last_lines(&why, 1).trim()))?;
    }
    let mut make = Command::new(cbindgen);
    said(make.args(["--quiet", "--config", "cbindgen.toml", "src/sys.rs"]).current_dir(root().join("capi")))
}

/// Installs the library, its header and its pkg-config file below a prefix.
fn lay_out() -> Result<(), String> {
    let (from, to) = (crate::target().join("debug"), home());
    let failed = |e: std::io::Error| format!("{}: {e}", to.display());
    for dir in ["include", "lib/pkgconfig"] {
        fs::create_dir_all(to.join(dir)).map_err(failed)?;
    }
    let capi = root().join("capi");
    for (source, at) in [
        (header(), "include/ninefold_client.h"),
        (capi.join("ninefold.pc"), "lib/pkgconfig/ninefold.pc"),
        (from.join("libninefold.a"), "lib/libninefold.a"),
        (from.join("libninefold.so"), "lib/libninefold.so.0"),
    ] {
        fs::copy(&source, to.join(at)).map_err(|e| format!("{}: {e}", source.display()))?;
    }
    let link = to.join("lib/libninefold.so");
    let _ = fs::remove_file(&link);
    symlink("libninefold.so.0", link).map_err(failed)
}

/// Runs the example, whose output must match, and a program that must get an error for each misuse.
fn programs(program: &Program) -> Result<(), String> {
    let place = scratch("capi")?;
    let socket = place.0.join("socket");
    let listen = format!("unix!{}", socket.display());
    let listen = ["--listen", "tcp!127.0.0.1!0 -insecure", "--listen", &listen];
    let mut served = Served::start(program, "ram:", &listen)?;
    let url = format!("9p://127.0.0.1:{}", served.port);
    let all = || -> Result<(), String> {
        for is_static in [false, true] {
            let tour = said(built(&place.0, "examples/tour.c", is_static)?.arg(&url))?;
            if tour != TOUR {
                return Err(format!("the tour has said:\n{tour}"));
            }
            print!("{}", said(built(&place.0, "tests/edges.c", is_static)?.arg(&url).arg(&socket))?);
        }
        Ok(())
    };
    all().map_err(|why| format!("{why}\n{}", served.log()))
}

/// Compiles a C program, and returns the command that runs it.
fn built(place: &Path, source: &str, is_static: bool) -> Result<Command, String> {
    let mut config = Command::new("pkg-config");
    config.args(["--cflags", "--libs"]).env("PKG_CONFIG_PATH", home().join("lib/pkgconfig"));
    config.args(is_static.then_some("--static")).arg("ninefold");
    let mut words: Vec<String> = said(&mut config)?.split_whitespace().map(String::from).collect();
    if is_static {
        for word in words.iter_mut().filter(|word| *word == "-lninefold") {
            *word = "-l:libninefold.a".into();
        }
    }
    let made = place.join(if is_static { "static" } else { "shared" });
    said(
        Command::new("cc")
            .args(STRICT)
            .arg("-o")
            .arg(&made)
            .arg(root().join("capi").join(source))
            .args(words),
    )?;
    let mut program = Command::new(made);
    program.env("LD_LIBRARY_PATH", home().join("lib"));
    Ok(program)
}

/// Returns the output of a program, which must succeed.
fn said(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{name}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(format!("{name}: {}\n{out}{err}", output.status))
}
