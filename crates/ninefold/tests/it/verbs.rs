//! Verbs that show and change a server's files: output, messages, exit statuses.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;

use crate::common::{Server, chmod, ninefold, set_mtime};

#[test]
fn ls_lists_names_attributes_and_trees() {
    let server = Server::start();
    let files = server.files();
    std::fs::create_dir_all(files.join("d/e")).unwrap();
    std::fs::write(files.join("b"), "12345").unwrap();
    std::fs::write(files.join(".hidden"), "").unwrap();
    symlink("b", files.join("l")).unwrap();
    chmod(&files.join("b"), 0o640);
    set_mtime(&files.join("b"), 951_782_400, 0);
    assert_eq!(server.ok(["ls"]), "b\nd\nl\n");
    assert_eq!(server.ok(["ls", "-a", "/"]), ".hidden\nb\nd\nl\n");
    assert_eq!(server.ok(["ls", "-R", "/d", "/b"]), "/b\n\n/d:\ne\n\n/d/e:\n");
    let long = server.ok(["ls", "-l", "/"]);
    let line = |name: &str| long.lines().find(|line| line.ends_with(name)).expect(name).to_string();
    assert!(
        line(" b").starts_with("-rw-r----- 1 ") && line(" b").contains(" 5 2000-02-29 00:00:00Z "),
        "{long}"
    );
    assert!(line(" d").starts_with("drwx") && line(" l -> b").starts_with("lrwxrwxrwx"), "{long}");
    for line in server.ok(["ls", "--json", "/"]).lines() {
        let entry: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(entry["name"].is_string() && entry["type"].is_string(), "{line}");
    }
}

#[test]
fn ls_l_of_many_files_has_them_all() {
    const FILES: usize = 5_000;
    let server = Server::start();
    for i in 0..FILES {
        std::fs::write(server.files().join(format!("{i:05}")), "").unwrap();
    }
    let long = server.ok(["ls", "-l", "/"]);
    let names: Vec<_> = long.lines().map(|line| line.rsplit(' ').next().unwrap().to_string()).collect();
    assert_eq!(names, (0..FILES).map(|i| format!("{i:05}")).collect::<Vec<_>>());
}

#[test]
fn links_are_followed_where_content_is_meant() {
    let server = Server::start();
    let files = server.files();
    std::fs::create_dir(files.join("d")).unwrap();
    std::fs::write(files.join("d/f"), "text").unwrap();
    symlink("d", files.join("to-d")).unwrap();
    symlink("/to-d/f", files.join("d/absolute")).unwrap();
    symlink("../../../d/f", files.join("d/up")).unwrap();
    symlink("loop", files.join("loop")).unwrap();
    for path in ["/to-d/f", "/d/absolute", "/d/up", "/d/../d/./f", "//d///f"] {
        assert_eq!(server.ok(["cat", path]), "text", "{path}");
    }
    assert!(server.fails(["cat", "/loop"]).contains("Too many levels of symbolic links"));
    assert!(server.ok(["stat", "/to-d"]).contains("Type: link"));
}

#[test]
fn names_that_are_not_utf8_survive_every_verb() {
    let server = Server::start();
    let name = |prefix: &[u8]| OsStr::from_bytes(&[prefix, b"\xff\xfe"].concat()).to_owned();
    std::fs::write(server.files().join(name(b"")), "x").unwrap();
    let listed = server.run(["ls"]).stdout;
    assert_eq!(listed, b"\xff\xfe\n");
    let mut words = [name(b"/"), name(b"/d")];
    assert_eq!(server.ok([OsStr::new("cat"), &words[0]]), "x");
    server.ok([OsStr::new("mv"), &words[0], &words[1]]);
    words[0] = name(b":/d");
    server.ok([OsStr::new("get"), &words[0]]);
    assert_eq!(std::fs::read(server.dir.path().join(name(b"d"))).unwrap(), b"x");
    let missing = server.fails([OsStr::new("rm"), &name(b"/none")]);
    assert!(missing.contains(r"/none\xff\xfe: No such file"), "{missing}");
    server.ok([OsStr::new("rm"), &name(b"/d")]);
    let json = server.ok(["ls", "--json"]);
    assert_eq!(json, "");
}

#[test]
fn a_name_is_one_line_and_moves_nothing() {
    let server = Server::start();
    for name in ["evil\n- plain", "esc\u{1b}[31m", "txt.\u{202e}exe", "plain \\ \u{e9}"] {
        std::fs::write(server.files().join(name), "").unwrap();
    }
    let names = ["esc\\u{1b}[31m", "evil\\n- plain", "plain \\ \u{e9}", "txt.\\u{202e}exe"];
    let listed = server.ok(["ls"]);
    assert_eq!(listed.lines().collect::<Vec<_>>(), names);
    let tree = server.ok(["tree", "/"]);
    assert!(names.iter().all(|name| tree.contains(&format!("── {name}\n"))), "{tree}");
    let missing = server.fails(["cat", "/no\n\u{202e}"]);
    assert!(missing.contains("/no\\n\\u{202e}: No such file"), "{missing}");
    // JSON has the unescaped name, for programs.
    assert!(server.ok(["ls", "--json"]).contains(r#""name":"evil\n- plain""#));
}

#[test]
fn an_error_names_the_path_that_failed() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("home.ns"), "mount ram:1M /full\nmount ram: /r\n").unwrap();
    std::fs::write(dir.path().join("big"), vec![7; 3 << 20]).unwrap();
    let listen = format!("unix!{}", dir.path().join("s").display());
    let server = Server::in_dir(dir, &["serve", "home.ns", "--listen", &listen]);
    server.fed(&["write", "--create", "/r/f"], b"f");
    server.ok(["mkdir", "/r/d"]);
    for (line, said) in [
        (&["mv", "/r/f", "/r/none/g"][..], "ninefold: mv: /r/none/g: No such file or directory\n"),
        (&["mv", "/r/none", "/r/g"], "ninefold: mv: /r/none: No such file or directory\n"),
        (&["mv", "/r/d", "/r/f"], "ninefold: mv: /r/f: Not a directory\n"),
        (&["put", "big", "/full/f"], "ninefold: put: /full/f: No space left on device (at the server)\n"),
        (&["put", "big", "/full"], "ninefold: put: /full/big: No space left on device (at the server)\n"),
        (&["tree", "/nope"], "ninefold: tree: /nope: No such file or directory\n"),
        (&["put", "none", "/full"], "ninefold: put: none: No such file or directory\n"),
        (&["get", "/r/f", "/dev/full/f"], "ninefold: get: /dev/full/f: Not a directory\n"),
    ] {
        let stderr = server.fails(line);
        assert!(stderr.ends_with(said), "{line:?}: {stderr}");
    }
    assert_eq!(server.run(["tree", "/nope"]).stdout, b"");
    let none = format!("unix:{}/none", server.dir.path().display());
    for line in [&["ls", &none][..], &["ls", "--server", &none, "/"]] {
        let said = server.fails(line);
        assert_eq!(said.lines().next().unwrap().matches("/none").count(), 1, "{said}");
    }
}

#[test]
fn changes_are_what_they_say() {
    let server = Server::start();
    let files = server.files();
    server.ok(["mkdir", "-p", "/a/b/c"]);
    server.ok(["mkdir", "-p", "/a/b/c"]);
    server.ok(["mkdir", "-m", "1777", "/t"]);
    assert_eq!(files.join("t").metadata().unwrap().permissions().mode() & 0o7777, 0o1777);
    server.fed(&["write", "--create", "/a/f"], b"one\n");
    server.fed(&["write", "-a", "/a/f"], b"two\n");
    assert_eq!(server.ok(["cat", "/a/f"]), "one\ntwo\n");
    server.fed(&["write", "/a/f"], b"three");
    assert_eq!(server.ok(["cat", "/a/f", "/a/f"]), "threethree");
    server.ok(["mv", "/a/f", "/a/b"]);
    server.ok(["mv", "/a/b/f", "/a/b/g"]);
    assert_eq!(std::fs::read(files.join("a/b/g")).unwrap(), b"three");
    assert_eq!(server.ok(["tree", "/a"]), "/a\n└── b\n    ├── c\n    └── g\n\n2 directories, 1 files\n");
    assert_eq!(server.ok(["tree", "-L", "1", "/a"]), "/a\n└── b\n\n1 directories, 0 files\n");
    std::os::unix::fs::symlink("..", files.join("a/up")).unwrap();
    server.ok(["rm", "-r", "/a"]);
    server.ok(["rm", "-f", "/a"]);
    assert!(!files.join("a").exists() && files.join("t").exists());
}

#[test]
fn failures_say_what_on_what_and_the_others_go_on() {
    let server = Server::start();
    std::fs::write(server.files().join("f"), "f").unwrap();
    std::fs::create_dir(server.files().join("d")).unwrap();
    let output = server.run(["cat", "/x", "/f", "/d"]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b"f"[..]));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "ninefold: cat: /x: No such file or directory\nninefold: cat: /d: Is a directory\n"
    );
    for (line, said) in [
        (&["ls", "/f/x"][..], "ninefold: ls: /f/x: Not a directory\n"),
        (&["rm", "/"], "ninefold: rm: /: it must have a name"),
        (&["rm", "/d"], "ninefold: rm: /d: Is a directory; -r"),
        (&["mkdir", "/d"], "ninefold: mkdir: /d: File exists\n"),
        (&["mkdir", "/x/y"], "ninefold: mkdir: /x/y: No such file or directory\n"),
        (&["mkdir", "-p", "/f/y"], "ninefold: mkdir: /f/y: Not a directory\n"),
        (&["mv", "/x", "/y"], "ninefold: mv: /x: No such file or directory\n"),
        (&["mv", "/f", "/d", "/f"], "ninefold: mv: /f: Not a directory\n"),
        (&["mv", "/f", "/d", "/none"], "ninefold: mv: /none: No such file or directory\n"),
        (&["stat", ""], "an empty word names no file"),
        (&["write", "/x"], "ninefold: write: /x: No such file or directory\n"),
        (&["cp", "a", "b"], "both ends are of this machine"),
        (&["cp", "tcp!h!x/f", "b"], "not a number"),
    ] {
        let stderr = server.fails(line);
        assert!(stderr.contains(said), "{line:?}: {stderr}");
    }
    assert_eq!(server.run(["frob"]).status.code(), Some(2));
    let (short, long) = (server.ok(["ls", "-h"]), server.ok(["ls", "--help"]));
    assert!(short.contains("--server") && !short.contains("--msize") && long.contains("--msize"), "{short}");
}

#[test]
fn without_a_server_it_says_how_to_start_one() {
    let dir = tempfile::tempdir().unwrap();
    let none = format!("unix:{}/none", dir.path().display());
    let output = ninefold(dir.path()).args(["ls", "--server", &none, "/a", "/b"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("No such file or directory") && said.contains("`ninefold serve` starts one"),
        "{said}"
    );
    assert_eq!(said.matches("ninefold:").count(), 1, "said once for all operands: {said}");
    // Nothing listens at port 564 of these addresses.
    for (addr, url) in
        [("9p://127.9.5.64/", "9p://127.9.5.64:5640/"), ("tcp!127.9.5.64", "9p://127.9.5.64:5640/")]
    {
        let output = ninefold(dir.path()).args(["ls", addr]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains("Connection refused") && said.contains(&format!("try {url}.")),
            "{addr}: {said}"
        );
    }
}

#[test]
fn reasons_are_told_once_and_in_plain_words() {
    let mut server = Server::start();
    let mut write = server.client();
    write.args(["write", "--create", "/f"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut write = write.spawn().unwrap();
    while !server.files().join("f").exists() {
        std::thread::yield_now();
    }
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    // More than a pipe holds: data read after the server is gone cannot be written.
    let _ = write.stdin.take().unwrap().write_all(&[0; 200_000]);
    let said = String::from_utf8(write.wait_with_output().unwrap().stderr).unwrap();
    let lost = ["Connection reset by peer", "Broken pipe", "the server closed the connection"];
    assert_eq!(lost.iter().map(|text| said.matches(text).count()).sum::<usize>(), 1, "{said}");
    assert!(!said.contains("os error"), "{said}");
    let dir = server.dir.path();
    let output = ninefold(dir).args(["put", "none", "tcp!127.0.0.1!1/x"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("none: No such file") && !said.contains("os error"), "{said}");
    let server = Server::start();
    std::fs::write(server.files().join("f"), "f").unwrap();
    let said = server.fails(["get", "/f", "/proc/self/f"]);
    assert!(said.contains("/f: No such file or directory\n"), "{said}");
}

#[test]
fn a_reader_who_goes_away_ends_it_quietly() {
    let server = Server::start();
    for i in 0..4_000 {
        std::fs::write(server.files().join(format!("{i:060}")), "").unwrap();
    }
    let mut child = server.client().arg("ls").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.is_empty()), (Some(141), true));
}

#[test]
fn every_dialect_does_the_daily_work() {
    let server = Server::start();
    for dialect in ["L", "u", "9P2000"] {
        let run = |line: &[&str]| server.ok(line.iter().chain(&["--dialect", dialect]));
        run(&["mkdir", "/d"]);
        server.fed(&["write", "--create", "/d/f", "--dialect", dialect], b"text");
        run(&["mv", "/d/f", "/d/g"]);
        assert_eq!(run(&["cat", "/d/g"]), "text", "{dialect}");
        assert!(run(&["ls", "-l", "/d"]).contains(" 4 "), "{dialect}");
        run(&["rm", "-r", "/d"]);
    }
    assert_eq!(server.ok(["ls"]), "");
}

#[test]
fn completions_and_man_pages_come_from_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let output = ninefold(dir.path()).args(["completions", "bash"]).output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("_ninefold"));
    assert!(ninefold(dir.path()).args(["man", "pages"]).status().unwrap().success());
    let page = std::fs::read_to_string(dir.path().join("pages/ninefold-serve.1")).unwrap();
    assert!(page.contains("read\\-only"), "{page}");
}
