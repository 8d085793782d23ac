//! The examples as separate programs, in Rust and in C. The C header is a second guest, written from
//! docs/channels.md.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nine_ring::linux::{self, Passed, VARIABLE};

use crate::guest::host::{HostBehaviour, MILD, TestChannel, TestHost, some};

pub const PLAIN: &[&str] = &["-O2"];
pub const SANITIZED: &[&str] = &["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Compiles a program of `examples` or `tests`.
pub fn compiled(source: &str, flags: &[&str], name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let made = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-std=gnu11", "-I"])
        .arg(here.join("include"))
        .args(flags)
        .arg("-o")
        .args([&program, &here.join(source)])
        .output()
        .expect("a C compiler, called cc: this test needs one (apt-get install gcc libc6-dev)");
    assert!(made.status.success(), "cc {source}: {}", String::from_utf8_lossy(&made.stderr));
    program
}

/// Runs a program with a host of this behaviour behind a socket. Returns its output and the host.
fn dialled(
    program: &Path,
    args: &[&str],
    input: &[u8],
    temper: HostBehaviour,
    pages: u32,
) -> (Output, TestHost) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let host = std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let channel = TestChannel::new(64, pages);
        let [ring, wait] = [&channel.bells[0], &channel.bells[1]];
        let mut host = channel.host(temper, socket.into());
        Passed::send(&channel.file, wait, ring, &host.life).unwrap();
        host.files.0[2].bytes = b"what is in the file\n".repeat(10_000);
        host.serve();
        host
    });
    // Far longer than it takes, unless it sleeps through its answer.
    let mut child = Command::new("timeout")
        .arg("300")
        .arg(program)
        .arg("-s")
        .arg(&path)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join().unwrap();
    (output, host.join().unwrap())
}

fn good(output: &Output) -> &[u8] {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    &output.stdout
}

/// An example of this crate in Rust, which `cargo test` builds beside this test.
fn built(name: &str) -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let program = here.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(program.exists(), "{}: cargo build -p nine-guest --examples makes it", program.display());
    program
}

/// Copies files of the host in both directions, and measures writes to a null file.
fn cat_and_null(cat: &Path, null: &Path) {
    let tempers = [
        MILD,
        HostBehaviour { inline: true, cut: 29, ..MILD },
        HostBehaviour { msize: 8192, most: 5000, ..MILD },
        HostBehaviour { msize: 512, cut: 3, ..MILD },
    ];
    for temper in tempers {
        let (output, host) = dialled(cat, &["data"], b"", temper, 64);
        assert!(good(&output) == host.files.0[2].bytes);
        let text = some(200_000);
        let (output, host) = dialled(cat, &["-w", "sub/new"], &text, temper, 64);
        good(&output);
        let new = host.files.0.last().unwrap();
        assert!((new.name, new.parent) == ("new", 1) && new.bytes == text);
    }
    // A polling host answers just when the guest is about to sleep.
    for (args, pages, poll) in [
        (&["null", "0", "1000"][..], 0, false),
        (&["-i", "null", "0", "5000"], 0, true),
        (&["-i", "null", "100", "300"], 0, false),
        (&["-p", "null", "5000", "300"], 0, false),
        (&["null", "300000", "20"], 256, false),
        (&["-z", "null", "300000", "20"], 256, false),
        (&["-z", "-i", "null", "0", "20"], 1, false),
    ] {
        let (output, host) = dialled(null, args, b"", HostBehaviour { poll, ..MILD }, pages);
        let size = args[args.len() - 2];
        let text = String::from_utf8(good(&output).to_vec()).unwrap();
        assert!(text.starts_with(&format!("{size} ")) && text.ends_with(" us\n"), "{text}");
        assert_eq!(host.session.placed > 0, pages > 0, "{args:?}");
    }
}

#[test]
fn programs_in_rust_read_and_write_files_of_the_host() {
    cat_and_null(&built("cat"), &built("null"));
    let (output, _) = dialled(&built("cat"), &["nothing"], b"", MILD, 64);
    let why = "cat: No such file or directory\n";
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(1), why));
}

#[test]
fn programs_in_c_read_and_write_files_of_the_host() {
    for (flags, name) in [(PLAIN, "plain"), (SANITIZED, "sanitized")] {
        let cat = compiled("examples/cat.c", flags, &format!("cat-{name}"));
        let null = compiled("examples/null.c", flags, &format!("null-{name}"));
        cat_and_null(&cat, &null);
        for (args, why) in [
            (&["nothing"][..], "cat: Twalk: No such file or directory\n"),
            (&["denied"], "cat: Tlopen: Permission denied\n"),
            (&["-w", "sub/.."], "cat: Tlcreate: bad file name\n"),
        ] {
            let (output, _) = dialled(&cat, args, b"x", MILD, 64);
            assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(1), why));
        }
    }
}

#[test]
fn the_header_compiles_after_any_other_header() {
    let dir = tempfile::tempdir().unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let compile = |name: &str, first: &str| {
        let source = dir.path().join(name);
        let text = format!("{first}\n#include <ninefold.h>\nint main(void) {{ return 0; }}\n");
        std::fs::write(&source, text).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Wextra", "-Werror", "-std=gnu11", "-fsyntax-only", "-I"]).arg(&include);
        let output = compiler.arg(&source).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for first in ["", "#include <err.h>", "#include <poll.h>", "#include <stdlib.h>", "#define _GNU_SOURCE"] {
        let (compiles, errors) = compile("a.c", first);
        assert!(compiles, "{first}: {errors}");
    }
    // A program that asks for strict C gets one message that names the flag.
    let (compiles, errors) = compile("strict.c", "#define _POSIX_C_SOURCE 1\n#include <err.h>");
    assert!(!compiles && errors.contains("compile with -std=gnu11"), "{errors}");
}

#[test]
fn a_program_inherits_its_channel() {
    let in_c = compiled("examples/cat.c", PLAIN, "cat-inherits");
    for cat in [in_c, built("cat")] {
        let channel = TestChannel::new(64, 16);
        let (passed, life) = channel.pass();
        let mut host = channel.host(MILD, life);
        host.files.0[2].bytes = some(100_000);
        let host = std::thread::spawn(move || {
            host.serve();
            host
        });
        for fd in [passed.memory.as_fd(), passed.wait.as_fd(), passed.ring.as_fd(), passed.life.as_fd()] {
            linux::keep_through_exec(fd, true).unwrap();
        }
        let variable = Passed::variable(passed.numbers());
        let output = Command::new(&cat).arg("data").env(VARIABLE, variable).output().unwrap();
        drop(passed);
        assert!(good(&output) == host.join().unwrap().files.0[2].bytes);
        for wrong in ["3:4:5", "3:4:5:x", "3:4:5:5", "997:998:999:1000", ""] {
            let output = Command::new(&cat).arg("data").env(VARIABLE, wrong).output().unwrap();
            let why = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.code() == Some(1) && why.starts_with("cat: NINEFOLD_CHANNEL"),
                "{wrong}: {why}"
            );
        }
    }
}
