//! What a partition's main is given, by a host that has the files of one in memory.

use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

use nine_guest::{Clock, Errno, Error, How, Outcome, Partition, Process};

use crate::host::Host;
use crate::space::Hosts;

const OWN: &[(&str, &str)] = &[
    ("argv", "cat 'a b' ''\n"),
    ("env", "HOME=/usr/glenda\n'TEXT=it''s = two'\nnonsense\n"),
    ("stdin", "one\ntwo\n"),
    ("stdout", ""),
    ("stderr", ""),
    ("exit", ""),
    ("clock", "1500000000 7\n"),
];

/// A main's partition, and what its host has when it has ended.
fn run<T: Outcome>(main: impl FnOnce(&mut Partition<Process>) -> T) -> Host {
    let mut hosts = Hosts::default();
    let own = Rc::into_inner(hosts.add(OWN)).unwrap().into_inner();
    let root = Rc::into_inner(hosts.add(&[("motd", "hello")])).unwrap().into_inner();
    let join = |name: &str| Err(Error::new(Errno::ENOENT, format!("no channel {name}")));
    let mut partition = Partition::new(own, Some(root), Box::new(join)).unwrap();
    let outcome = main(&mut partition);
    partition.end(outcome).unwrap();
    drop(partition);
    hosts.end().remove(0)
}

fn file(host: &Host, name: &str) -> String {
    let node = host.files.0.iter().find(|node| node.name == name).unwrap();
    String::from_utf8(node.bytes.clone()).unwrap()
}

#[test]
fn a_main_is_given_its_words_its_files_and_the_time() {
    let host = run(|part| {
        assert_eq!(part.args, ["cat", "a b", ""]);
        let env: Vec<_> = part.env.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        assert_eq!(env, [("HOME", "/usr/glenda"), ("TEXT", "it's = two")]);
        assert_eq!(part.space.read("/motd", 10).unwrap(), b"hello");
        assert_eq!(part.space.read("/self/clock", 100).unwrap(), b"1500000000 7\n");
        let time = Clock { since_1970: Duration::from_millis(1500), steady: Duration::from_nanos(7) };
        assert_eq!([part.clock().unwrap(), part.clock().unwrap()], [time, time]);
        assert_eq!(part.mount("disk", "/disk", How::Replace).unwrap_err().ename(), "no channel disk");
        for line in ["one\n", "two\n"] {
            assert_eq!(part.stdin.line().unwrap().as_deref(), Some(line));
        }
        let mut text = [0; 3];
        assert_eq!((part.stdin.read(&mut text).unwrap(), &text), (3, b"one"));
    });
    assert_eq!((file(&host, "exit"), file(&host, "stderr")), ("0".into(), "".into()));
}

/// A host that keeps to offsets has what was written last, so that two messages leave other bytes than one.
#[test]
fn a_line_is_one_message_and_the_rest_waits_for_the_end() {
    let host = run(|part| {
        let words = ["line", "parts"];
        write!(part.stdout, "a {} of", words[0]).unwrap();
        writeln!(part.stdout, " several {}", words[1]).unwrap();
        part.stdout.write_str("x").unwrap();
        7
    });
    assert_eq!(
        (file(&host, "stdout"), file(&host, "exit")),
        ("x line of several parts\n".into(), "7".into())
    );
    let host = run(|part| part.stdout.write(&[b'x'; 10_000]));
    assert_eq!(file(&host, "stdout"), "x".repeat(8192));
}

#[test]
fn an_error_is_said_and_is_status_1() {
    let host = run(|_| Err::<(), _>("it has failed"));
    assert_eq!((file(&host, "stderr"), file(&host, "exit")), ("cat: it has failed\n".into(), "1".into()));
    assert_eq!(file(&run(|_| Ok::<_, Error>(255)), "exit"), "255");
    assert_eq!(file(&run(|_| Ok::<_, Error>(20)), "exit"), "20");
}
