//! The environment of a partition, with hosts written by hand: `self`, and its name space.

use std::fmt::Write;

use nine_guest::{Client, Errno, Error, How, Join, OWN, Outcome, Partition, Process, Result};

use crate::guest::host::{HostFiles, HostThread, TestHost, several, some};

type ProcessPartition = Partition<Process>;

/// Starts a partition with this input and without the file `but` of `self`. Returns it and its hosts, that of `self`
/// first.
fn started(stdin: &[u8], but: &str) -> (ProcessPartition, Vec<HostThread>) {
    let ready = |name: &str, files: &mut HostFiles| {
        if name != "self" {
            return files.put("data", name.as_bytes());
        }
        files.put("argv", b"prog 'a b' it''s ''\n");
        files.put("env", b"HOME=/usr/glenda\n'A=two words'\nnothing\n");
        files.put("stdin", stdin);
        files.put("clock", b"1700000000000000001 42");
        ["stdout", "stderr", "exit"]
            .iter()
            .filter(|name| **name != but)
            .for_each(|name| files.put(name, b""));
    };
    let (clients, hosts) = several(&["self", "root", "more"], ready);
    let [own, root, more]: [Client<Process>; 3] = clients.try_into().ok().unwrap();
    let mut late = [Err(Errno::ETIMEDOUT.into()), Ok(more)].into_iter();
    let join: Box<Join<Process>> = Box::new(move |name| {
        assert_eq!(name, "more");
        late.next().expect("it is joined once")
    });
    let mut kept = None;
    let part = Partition::new(own, Some(root), join, |last| kept = Some(last)).unwrap();
    assert!(kept.is_some());
    (part, hosts)
}

/// Ends a partition with this outcome. Returns the host of `self`.
fn ended(mut part: ProcessPartition, mut hosts: Vec<HostThread>, outcome: impl Outcome) -> TestHost {
    part.end(outcome).unwrap();
    drop(part);
    let own = hosts.remove(0).join();
    hosts.into_iter().for_each(|host| drop(host.join()));
    own
}

/// Returns the contents of stdout, stderr and exit.
fn said(host: &TestHost) -> [&str; 3] {
    ["stdout", "stderr", "exit"].map(|name| std::str::from_utf8(host.files.bytes(name)).unwrap())
}

#[test]
fn a_partition_has_its_words_its_files_and_a_clock() {
    let (mut part, hosts) = started(b"", "");
    assert_eq!(part.args, ["prog", "a b", "its", ""]);
    let env = [("HOME", "/usr/glenda"), ("A", "two words")].map(|(a, b)| (a.to_string(), b.to_string()));
    assert_eq!((&part.env[..], part.name()), (&env[..], "prog"));
    assert_eq!(part.space.read("data", 100).unwrap(), b"root");
    assert_eq!(part.mount("more", "/more", How::Replace).unwrap_err().errno, Errno::ETIMEDOUT);
    let nowhere = "/more".repeat(1000);
    assert_eq!(part.mount("more", &nowhere, How::Replace).unwrap_err().errno, Errno::ENAMETOOLONG);
    for (name, at) in [("more", "/more"), ("more", "/again"), ("root", "/root")] {
        part.mount(name, at, How::Replace).unwrap();
        assert_eq!(part.space.read(&format!("{at}/data"), 100).unwrap(), name.as_bytes());
    }
    // The partition's own files stay, even under a mount.
    part.space.bind("/more", OWN, How::Replace).unwrap();
    part.stdout.write(b"still there\n").unwrap();
    let clock = part.clock().unwrap();
    assert_eq!((clock.since_1970.as_nanos(), clock.steady.as_nanos()), (1_700_000_000_000_000_001, 42));
    let own = ended(part, hosts, ());
    assert_eq!(said(&own), ["still there\n", "", "0"]);
}

#[test]
fn lines_that_are_whole_are_written_at_once_and_the_rest_at_4_kib() {
    let (mut part, hosts) = started(b"", "");
    let long = vec![b'x'; 5000];
    for bytes in [&b"one\ntwo\nthr"[..], b"ee", b"\n", b"", &long, b"y\n", b"the rest"] {
        part.stdout.write(bytes).unwrap();
    }
    let n = 1;
    write!(part.stdout, ", more and {n}").unwrap();
    let own = ended(part, hosts, 7);
    let text = ["one\ntwo\nthree\n", &"x".repeat(5000), "y\nthe rest, more and 1"].concat();
    assert_eq!(said(&own), [&text, "", "7"]);
    assert_eq!(own.session.writes, [8, 6, 4096, 906, 20, 1]);
}

#[test]
fn what_cannot_be_said_is_an_error_and_the_status_says_so() {
    let (mut part, hosts) = started(b"", "stdout");
    part.stdout.write(b"no line yet").unwrap();
    assert!(writeln!(part.stdout, ", now it is one").is_err());
    let error = part.stdout.flush().unwrap_err();
    assert_eq!(error.errno, Errno::ENOENT, "{error}");
    // The error is returned once.
    part.stdout.flush().unwrap();
    writeln!(part.stdout, "lost").unwrap_err();
    part.end(()).unwrap();
    drop(part);
    let own = hosts.into_iter().map(HostThread::join).next().unwrap();
    assert_eq!(own.files.bytes("exit"), b"1");
    assert!(own.files.bytes("stderr").starts_with(b"prog: "));
}

#[test]
fn a_main_ends_with_nothing_a_status_or_why_it_failed() {
    fn ends(outcome: impl Outcome) -> [String; 3] {
        let (mut part, hosts) = started(b"", "");
        part.stdout.write(b"before it ").unwrap();
        said(&ended(part, hosts, outcome)).map(String::from)
    }
    assert_eq!(ends(()), ["before it ", "", "0"]);
    assert_eq!(ends(255), ["before it ", "", "255"]);
    assert_eq!(ends(Result::<u8>::Ok(10)), ["before it ", "", "10"]);
    assert_eq!(
        ends(Result::<()>::Err(Error::new(Errno::EIO, "it broke"))),
        ["before it ", "prog: it broke\n", "1"]
    );
}

#[test]
fn input_comes_by_lines_and_by_bytes() {
    let long = "y".repeat(9000);
    let (mut part, hosts) = started(format!("one\n\ntwo {long}\nbytes\nlast").as_bytes(), "");
    let mut line = || part.stdin.line().unwrap();
    assert_eq!((line().unwrap(), line().unwrap()), ("one\n".into(), "\n".into()));
    assert_eq!(line().unwrap(), format!("two {long}\n"));
    let mut few = [0; 3];
    let len = part.stdin.read(&mut few).unwrap();
    assert!(len > 0 && b"byt".starts_with(&few[..len]));
    assert_eq!(part.stdin.line().unwrap().unwrap(), "bytes\n"[len..]);
    assert_eq!(part.stdin.line().unwrap().unwrap(), "last");
    assert!(part.stdin.line().unwrap().is_none() && part.stdin.read(&mut few).unwrap() == 0);
    ended(part, hosts, ());
}

#[test]
fn a_line_has_an_end() {
    let mut endless = some((1 << 20) + 10_000);
    endless.iter_mut().for_each(|byte| *byte |= 0x80);
    let (mut part, hosts) = started(&endless, "");
    for _ in 0..2 {
        assert_eq!(part.stdin.line().unwrap_err().errno, Errno::EFBIG);
    }
    // Received input is not lost.
    let mut all = vec![0; endless.len()];
    let mut at = 0;
    while let len @ 1.. = part.stdin.read(&mut all[at..]).unwrap() {
        at += len;
    }
    assert!(all == endless);
    ended(part, hosts, ());
}
