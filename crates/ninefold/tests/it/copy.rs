//! `get`, `put`, `cp`: trees copied there and back, bit for bit, and the mistakes that must never happen.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Server, assert_same, chmod, ended_within, set_mtime, tree};

/// Creates a tree with the sources of this project and all kinds of files.
fn source(to: &Path) {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::create_dir(to).unwrap();
    // Use a copy, because the original may change meanwhile.
    assert!(Command::new("cp").arg("-a").arg(crates).arg(to.join("crates")).status().unwrap().success());
    fs::create_dir_all(to.join("empty/below")).unwrap();
    fs::write(to.join("nothing"), "").unwrap();
    fs::write(to.join("large"), vec![0x5a; 5_000_001]).unwrap();
    fs::write(to.join("page"), vec![1; 4096]).unwrap();
    fs::write(to.join(OsStr::from_bytes(b"not \xff utf8")), "x").unwrap();
    fs::write(to.join("white \n space"), "y").unwrap();
    symlink("nothing", to.join("link")).unwrap();
    symlink("/etc/passwd", to.join("far")).unwrap();
    symlink("no such file", to.join("dangling")).unwrap();
    symlink("..", to.join("empty/loop")).unwrap();
    chmod(&to.join("page"), 0o440);
    chmod(&to.join("nothing"), 0o755);
    set_mtime(&to.join("page"), 1_000_000_000, 123_456_789);
    set_mtime(&to.join("link"), 1_100_000_000, 5);
    chmod(&to.join("empty/below"), 0o555);
    set_mtime(&to.join("empty/below"), 900_000_000, 7);
    set_mtime(&to.join("empty"), 800_000_000, 0);
}

#[test]
fn a_source_tree_comes_back_bit_for_bit() {
    let server = Server::start();
    let (src, back) = (server.dir.path().join("src"), server.dir.path().join("back"));
    source(&src);
    server.ok(["put", "-r", "src", "/there"]);
    assert_same(&src, &server.files().join("there"));
    server.ok(["get", "-r", "/there", "back"]);
    assert_same(&src, &back);
    server.ok(["cp", "-r", ":/there", &format!("unix:{}/again", server.socket().display())]);
    assert_same(&src, &server.files().join("again"));
    // Onto existing files: nothing is added, nothing is lost.
    server.ok(["cp", "-rp", "src/", ":/there/../"]);
    assert_same(&src, &server.files().join("src"));
    server.ok(["cp", "-r", "src", ":/"]);
    assert_same(&src, &server.files().join("src"));
}

#[test]
fn names_decide_where_a_copy_goes() {
    let server = Server::start();
    let files = server.files();
    let at = server.dir.path().to_owned();
    fs::write(at.join("a"), "A").unwrap();
    fs::write(at.join("b"), "B").unwrap();
    fs::create_dir(files.join("d")).unwrap();
    server.ok(["put", "a", "/new"]);
    server.ok(["put", "a", "/d"]);
    server.ok(["cp", "a", "b", ":/d"]);
    server.ok(["get", "/d/b", "c"]);
    fs::create_dir(at.join("in")).unwrap();
    server.ok(["get", "/d/b", "in"]);
    server.ok(["cp", "-r", ":/d/.", "in"]);
    let read = |path: &str| fs::read_to_string(at.join(path)).unwrap();
    assert_eq!(
        (read("files/new"), read("files/d/a"), read("files/d/b")),
        ("A".into(), "A".into(), "B".into())
    );
    assert_eq!((read("c"), read("in/b"), read("in/a")), ("B".into(), "B".into(), "A".into()));
    for (line, said) in [
        (&["get", "/d"][..], "-r copies it"),
        (&["cp", "a", "b", ":/new"], "Not a directory"),
        (&["get", "/none"], "/none: No such file"),
        (&["put", "none", "/x"], "none: No such file"),
        (&["get", "/new", "no/such/dir"], "No such file"),
        (&["put", "a", "/no/such/dir"], "No such file"),
    ] {
        let stderr = server.fails(line);
        assert!(stderr.contains(said), "{line:?}: {stderr}");
    }
}

#[test]
fn nothing_is_written_through_a_link_that_the_server_gave() {
    let server = Server::start();
    let outside = server.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), "safe").unwrap();
    // First the server has links; the next time a directory and a file with the same names.
    fs::create_dir(server.files().join("t")).unwrap();
    symlink(&outside, server.files().join("t/d")).unwrap();
    symlink(outside.join("f"), server.files().join("t/f")).unwrap();
    server.ok(["get", "-r", "/t"]);
    fs::remove_file(server.files().join("t/d")).unwrap();
    fs::remove_file(server.files().join("t/f")).unwrap();
    fs::create_dir(server.files().join("t/d")).unwrap();
    fs::write(server.files().join("t/d/f"), "evil").unwrap();
    fs::write(server.files().join("t/f"), "evil").unwrap();
    let said = server.fails(["get", "-r", "/t"]);
    assert!(said.contains("/t/d: in its place stands something that is not a directory"), "{said}");
    assert_eq!(fs::read_to_string(outside.join("f")).unwrap(), "safe");
    assert_eq!(
        fs::read_to_string(server.dir.path().join("t/f")).unwrap(),
        "evil",
        "the link itself is replaced"
    );
}

#[test]
fn pipes_are_left_alone_and_the_rest_goes_on() {
    let server = Server::start();
    let dir = server.files().join("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("z"), "z").unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, dir.join("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let output = server.run(["get", "-r", "/d"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("/d/pipe: a pipe"), "{said}");
    assert_eq!(fs::read(server.dir.path().join("d/z")).unwrap(), b"z");
    assert!(!server.dir.path().join("d/pipe").exists());
}

#[test]
fn what_fails_is_told_and_leaves_nothing_half_done() {
    let server = Server::start();
    let at = server.dir.path();
    fs::create_dir_all(server.files().join("t/sub")).unwrap();
    fs::write(server.files().join("t/sub/f"), "f").unwrap();
    fs::write(server.files().join("t/x"), "x").unwrap();
    // A directory is in the place of a file to copy.
    fs::create_dir_all(at.join("t/x")).unwrap();
    let said = server.fails(["get", "-r", "/t"]);
    assert!(said.contains("/t/x: Is a directory") && said.contains("1 files are copied, 1 failed"), "{said}");
    assert_eq!(tree(&at.join("t")).len(), 4, "no temporary file stays: {:?}", tree(&at.join("t")));
    fs::create_dir_all(server.files().join("p/x")).unwrap();
    fs::create_dir_all(at.join("p")).unwrap();
    fs::write(at.join("p/x"), "x").unwrap();
    let said = server.fails(["put", "-r", "p", "/"]);
    assert!(said.contains("p/x: Is a directory"), "{said}");
    assert_eq!(tree(&server.files().join("p")).len(), 2, "{:?}", tree(&server.files().join("p")));
}

#[test]
fn an_interrupted_copy_leaves_no_file() {
    let server = Server::start();
    let at = server.dir.path();
    // A slow pipe cannot be copied. A long file with many holes can, and takes a while in either direction.
    let big = fs::File::create(at.join("big")).unwrap();
    (0..8192_u64).for_each(|n| big.write_all_at(b"x", n << 20).unwrap());
    fs::hard_link(at.join("big"), server.files().join("big")).unwrap();
    for (line, dir) in
        [(&["get", "/big", "got"][..], at.to_owned()), (&["put", "big", "/put"], server.files())]
    {
        let mut child = server.client().args(line).stderr(Stdio::piped()).spawn().unwrap();
        let half = || {
            let names = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
            names.into_iter().any(|name| name.as_bytes().starts_with(b".ninefold-"))
        };
        while !half() {
            assert!(child.try_wait().unwrap().is_none(), "{line:?}");
            std::thread::yield_now();
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{line:?}");
        assert!(String::from_utf8_lossy(&output.stderr).ends_with(": interrupted\n"));
        assert!(!half() && !at.join("got").exists() && !server.files().join("put").exists(), "{line:?}");
    }
}

/// Runs a copy that must end with this text. A copy without an end is killed before the disk is full.
fn ends_with(mut child: Command, said: &str) {
    let mut child = child.stderr(Stdio::piped()).spawn().unwrap();
    if ended_within(&mut child, Duration::from_secs(20)).is_none() {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains(said), "{:?}: {stderr}", output.status);
}

#[test]
fn a_copy_into_a_part_of_itself_ends() {
    const SAID: &str = "cannot copy a directory into itself";
    let server = Server::with(&["--token-file", "token"]);
    let files = server.files();
    let fresh = || {
        for old in fs::read_dir(&files).unwrap() {
            fs::remove_dir_all(old.unwrap().path()).unwrap();
        }
        fs::create_dir_all(files.join("self/deep")).unwrap();
        fs::write(files.join("self/deep/f"), "f").unwrap();
    };
    let there = format!("{}/self/all", server.addr("tcp!"));
    for (line, copied) in [
        (&["cp", "-r", ":/", ":/self/all"][..], "self/all/self/deep/f"),
        (&["cp", "-r", ":/self", ":/self/deep"], "self/deep/self/deep/f"),
        (&["cp", "-r", ":/.", ":/self/deep"], "self/deep/self"),
        (&["cp", "-r", ":/", ":/self/all", "--dialect", "9P2000"], "self/all/self/deep/f"),
        // Two sessions with one server.
        (&["cp", "-r", "--token-file", "../token", ":/", &there], "self/all/self/deep/f"),
        // The served tree is also on this machine.
        (&["get", "-r", "/", "self/back"], "self/back/self/deep/f"),
        (&["get", "-r", "/self", "self/deep"], "self/deep/self/deep/f"),
        (&["put", "-r", ".", "/self/back"], "self/back/self/deep/f"),
        (&["put", "-r", ".", "/self/back", "--dialect", "u"], "self/back/self/deep/f"),
    ] {
        fresh();
        let mut command = server.client();
        command.current_dir(&files).args(line);
        ends_with(command, SAID);
        assert!(files.join(copied).exists(), "{line:?}: the rest is copied: {:?}", tree(&files).keys());
        let all = format!("{:?}", tree(&files).keys());
        assert!(!all.contains(".ninefold-"), "{line:?}: {all}");
    }
    for line in [&["cp", "-r", ":/self", ":/"][..], &["get", "-r", "/self"], &["put", "-r", "self", "/"]] {
        fresh();
        let mut command = server.client();
        command.current_dir(&files).args(line);
        ends_with(command, SAID);
        assert_eq!(tree(&files).len(), 4, "{line:?}");
    }
}

#[test]
fn a_directory_that_only_looks_like_the_copy_is_copied() {
    let server = Server::start();
    fs::create_dir_all(server.files().join("a/a/a")).unwrap();
    fs::write(server.files().join("a/a/a/f"), "f").unwrap();
    for dir in ["a", "a/a", "a/a/a"] {
        chmod(&server.files().join(dir), 0o700);
    }
    server.ok(["get", "-r", "/a"]);
    assert_same(&server.files().join("a"), &server.dir.path().join("a"));
    server.ok(["put", "-r", "a", "/b"]);
    assert_same(&server.dir.path().join("a"), &server.files().join("b"));
}

#[test]
fn a_file_is_not_copied_onto_itself() {
    let server = Server::start();
    fs::write(server.files().join("f"), "f").unwrap();
    for to in [":/f", ":/", ":/../f"] {
        let said = server.fails(["cp", ":/f", to]);
        assert!(said.contains("same file"), "{to}: {said}");
    }
    server.ok(["cp", ":/f", ":/g"]);
    server.ok(["cp", ":/f", ":/g"]);
}

#[test]
fn older_dialects_copy_what_they_can_say() {
    let server = Server::start();
    let at = server.dir.path().to_owned();
    fs::create_dir_all(at.join("src/d/e")).unwrap();
    fs::write(at.join("src/d/f"), vec![7; 300_000]).unwrap();
    fs::write(at.join("src/g"), "g").unwrap();
    for name in ["src/d/f", "src/g", "src/d/e", "src/d", "src"] {
        set_mtime(&at.join(name), 1_200_000_000, 0);
    }
    for dialect in ["u", "9P2000"] {
        server.ok(["put", "-r", "src", &format!("/{dialect}"), "--dialect", dialect]);
        assert_same(&at.join("src"), &server.files().join(dialect));
        server.ok(["put", "-r", "src/.", &format!("/{dialect}"), "--dialect", dialect]);
        assert_same(&at.join("src"), &server.files().join(dialect));
        server.ok(["get", "-r", &format!("/{dialect}"), "--dialect", dialect]);
        assert_same(&at.join("src"), &at.join(dialect));
    }
}

#[test]
fn a_file_that_is_more_than_its_content_is_written_as_it_stands() {
    let server = Server::start();
    fs::write(server.files().join("f"), "to the void").unwrap();
    server.ok(["get", "/f", "/dev/null"]);
    assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
}

#[test]
fn holes_of_a_file_stay_holes_on_either_way() {
    const LEN: u64 = 300 << 20;
    let server = Server::start();
    let (at, there) = (server.dir.path().to_owned(), server.files());
    fs::create_dir(at.join("src")).unwrap();
    let make = |name: &str, pieces: &[u64]| {
        let file = fs::File::create(at.join("src").join(name)).unwrap();
        file.set_len(LEN).unwrap();
        pieces.iter().for_each(|at| file.write_all_at(&[b'x'; 6000], *at).unwrap());
    };
    // Data inside, at both ends, too close together for a hole on a server, and no data.
    make("within", &[150_000_001]);
    make("ends", &[0, 40 << 10, LEN - 6000]);
    make("none", &[]);
    let assert_sparse = |top: &Path| {
        assert_same(&at.join("src"), top);
        for name in ["within", "ends", "none"] {
            let meta = fs::metadata(top.join(name)).unwrap();
            assert!(meta.blocks() < 1024, "{}: {} blocks for {LEN} bytes", top.display(), meta.blocks());
        }
    };
    server.ok(["put", "-r", "src", "/put"]);
    assert_sparse(&there.join("put"));
    server.ok(["put", "-r", "--verify", "src", "/verified"]);
    assert_sparse(&there.join("verified"));
    server.ok(["get", "-r", "/put", "got"]);
    assert_sparse(&at.join("got"));
    server.ok(["cp", "-r", "--verify", ":/put", ":/copied"]);
    assert_sparse(&there.join("copied"));
    // Onto an existing file, in a dialect that writes in place and does not know blocks.
    fs::write(there.join("within"), vec![1; 1 << 20]).unwrap();
    for line in [["put", "src/within", "/within"], ["get", "/within", "old"]] {
        server.ok([&line[..], &["--dialect", "9P2000"]].concat());
    }
    for path in [there.join("within"), at.join("old")] {
        assert!(fs::read(&path).unwrap() == fs::read(at.join("src/within")).unwrap(), "{}", path.display());
    }
    assert!(fs::metadata(at.join("old")).unwrap().blocks() < 1024);
}
