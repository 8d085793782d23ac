//! How long a verb waits: not at all after a signal; and a silent server is reported.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::fs::FallocateFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Server, ended_within};

/// Waits for the end of a process that was told to end.
fn ends_soon(child: &mut Child) -> std::process::ExitStatus {
    ended_within(child, Duration::from_secs(10)).unwrap_or_else(|| {
        child.kill().unwrap();
        panic!("it does not end")
    })
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Creates a sparse file of 64 GiB.
fn endless(server: &Server) {
    std::fs::File::create(server.files().join("endless")).unwrap().set_len(64 << 30).unwrap();
}

/// Whether this process ignores SIGINT: bit 1 of SigIgn in proc_pid_status(5).
fn ignores_interrupts() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & 2 != 0
}

#[test]
fn a_signal_ends_write_and_cat_while_they_wait_for_a_pipe() {
    let server = Server::start();
    endless(&server);
    // A shell without job control starts background programs with SIGINT ignored, and they pass that on.
    let ends = match ignores_interrupts() {
        true => {
            eprintln!("NOT COVERED: SIGINT ends write and cat: this test was started with SIGINT ignored");
            &[Signal::TERM][..]
        }
        false => &[Signal::INT, Signal::TERM],
    };
    for &end in ends {
        let mut write =
            server.client().args(["write", "--create", "/f"]).stdin(Stdio::piped()).spawn().unwrap();
        // The received data is stored; now the command waits for more.
        write.stdin.as_mut().unwrap().write_all(b"some").unwrap();
        while !std::fs::read(server.files().join("f")).is_ok_and(|text| text == b"some") {
            std::thread::yield_now();
        }
        signal(&write, end);
        assert_eq!(ends_soon(&mut write).signal(), Some(end.as_raw()));
        std::fs::remove_file(server.files().join("f")).unwrap();
        let mut cat = server.client().args(["cat", "/endless"]).stdout(Stdio::piped()).spawn().unwrap();
        cat.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
        signal(&cat, end);
        assert_eq!(ends_soon(&mut cat).signal(), Some(end.as_raw()));
    }
}

#[test]
fn a_second_signal_ends_a_copy_that_waits_for_a_pipe() {
    let server = Server::start();
    endless(&server);
    // A link like /dev/stdout.
    std::os::unix::fs::symlink("/proc/self/fd/1", server.dir.path().join("out")).unwrap();
    let mut get = server.client();
    get.args(["get", "/endless", "out"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut get = get.spawn().unwrap();
    get.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    // Two simultaneous signals count as one.
    let ended = (0..200).find_map(|_| {
        signal(&get, Signal::INT);
        ended_within(&mut get, Duration::from_millis(50))
    });
    assert_eq!(ended.expect("it ends").code(), Some(130));
    assert!(server.dir.path().join("out").is_symlink());
}

#[test]
fn a_silent_server_is_waited_for_aloud_and_with_patience_not_for_ever() {
    let server = Server::start();
    // The zeros are allocated, not holes, so the copy grows as they arrive.
    let large = std::fs::File::create(server.files().join("large")).unwrap();
    rustix::fs::fallocate(&large, FallocateFlags::empty(), 0, 2 << 30).unwrap();
    let get = |words: &[&str], to: &str| {
        let mut get = server.client();
        get.args(["get", "/large", to]).args(words).stderr(Stdio::piped());
        get.spawn().unwrap()
    };
    let (mut waits, mut gives_up) = (get(&[], "a"), get(&["-q", "--patience", "2"], "b"));
    // The lengths of the incomplete files.
    let half = || -> Vec<u64> {
        let names = server.dir.path().read_dir().unwrap().map(|entry| entry.unwrap());
        let half = names.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b".ninefold-"));
        half.map(|entry| entry.metadata().unwrap().len()).collect()
    };
    while half().iter().filter(|&&len| len > 0).count() < 2 {
        std::thread::yield_now();
    }
    server.signal(Signal::STOP);
    assert_eq!(ends_soon(&mut gives_up).code(), Some(1));
    let mut said = String::new();
    gives_up.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("no answer for 3 s") && !said.contains("waiting"), "{said}");
    let mut lines = BufReader::new(waits.stderr.take().unwrap()).lines();
    let word = format!("waiting for unix!{}, 10 s", server.socket().display());
    let first = lines.by_ref().map(Result::unwrap).find(|line| line.contains("waiting")).unwrap();
    assert!(first.ends_with(&word), "{first}");
    server.signal(Signal::CONT);
    // The copy continues where it was.
    let before = half();
    while half() == before {
        assert!(waits.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    signal(&waits, Signal::INT);
    assert_eq!(ends_soon(&mut waits).code(), Some(130));
}
