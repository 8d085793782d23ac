//! Archives as users work with them: created, served, written, dumped, killed, and checked.

mod devices;
mod full;
mod history;
mod lost;
pub mod site;
mod turns;

use std::fs;
use std::io::Write;
use std::process::Stdio;

use rustix::process::Signal;
use site::Site;

use crate::common;

#[test]
fn what_was_dumped_stays_and_what_was_synced_survives() {
    let mut site = Site::new();
    let said = site.ok("fs ream ./disk --size 200M --name home");
    assert!(said.contains("archive home, blocks of 16 KiB\n") && said.contains(" /dump dump\n"), "{said}");
    let mut server = site.serve("fs:./disk");
    assert_eq!(server.ok(["ls", "/"]), "archive\ndump\nfs\nmux\n");
    let tree = server.dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for n in 0..50_usize {
        fs::write(tree.join(n.to_string()), vec![n as u8; n * 3001]).unwrap();
    }
    server.ok(["put", "-q", "-r", "tree", "/archive/tree"]);
    server.fed(&["write", "--create", "/archive/note"], b"one\n");
    let first = server.ok(["fs", "dump", "--wait"]);
    let first = first.trim_end();
    assert!(first.len() == 9 && first.as_bytes()[4] == b'/', "{first}");
    server.fed(&["write", "/archive/note"], b"two\n");
    server.ok(["rm", "-r", "/archive/tree"]);
    assert_eq!(server.ok(["cat", "/archive/note", &format!("/dump/{first}/note")]), "two\none\n");
    server.ok(["fs", "sync"]);
    server.signal(Signal::KILL);
    server.child.wait().unwrap();
    site.dir = site::taken(&mut server);

    let said = site.ok("fs check ./disk --dumps");
    assert!(said.ends_with(" is whole\n"), "{said}");
    let mut server = site.serve("fs:./disk");
    assert_eq!(server.ok(["cat", "/archive/note", &format!("/dump/{first}/note")]), "two\none\n");
    assert_eq!(server.ok(["ls", "/archive"]), "adm\nnote\n");
    let back = server.dir.path().join("back").display().to_string();
    server.ok(["get", "-q", "-r", &format!("/dump/{first}/tree"), &back]);
    common::assert_same(&server.dir.path().join("tree"), &server.dir.path().join("back"));
    let said = server.fails(["rm", &format!("/dump/{first}/note")]);
    assert!(said.contains("Read-only file system"), "{said}");
    // Another dump of the same day.
    let second = server.ok(["fs", "dump"]);
    assert_ne!(second.trim_end(), first);
    let said = server.ok(["fs", "dumps", "--json"]);
    let names: Vec<serde_json::Value> = said
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].clone())
        .collect();
    assert_eq!(names, [first, second.trim_end()]);
    assert!(server.ok(["fs", "dumps"]).starts_with("NAME"));
    assert_eq!(server.stop().0, Some(0));
    assert!(server.log().contains("archive home: all is in its place"), "{}", server.log());
}

#[test]
fn an_archive_keeps_to_9p_in_every_dialect() {
    let mut site = Site::new();
    site.ok("fs ream ./disk --size 300M");
    let server = site.serve("fs:./disk");
    let said = server.ok(["check-server", "/archive"]);
    for dialect in ["9P2000 ", "9P2000.u", "9P2000.L"] {
        let tally = said.lines().find(|line| line.starts_with(dialect) && line.contains(" passed, "));
        assert!(tally.is_some_and(|tally| tally.contains(" 0 failed, 0 skipped")), "{said}");
    }
}

#[test]
fn the_console_is_for_the_owner_and_says_what_is_wrong() {
    let mut site = Site::new();
    site.ok("fs ream ./a --size 100M --name a");
    site.ok("fs ream ./b --size 100M --name b");
    let lines = "mount fs:./a /a\nmount fs:./b,schedule=off /b\nmount fs:./a /dump dump\nmount fsctl: /fs\n";
    fs::write(site.path("x.ns"), lines).unwrap();
    let mut server = site.serve("x.ns");
    let said = server.fails(["fs", "status"]);
    assert!(said.contains("which archive? --name: a, b"), "{said}");
    let said = server.fails(["fs", "sync", "--name", "c"]);
    assert!(said.contains("no archive `c`; there are: a, b"), "{said}");
    assert!(server.ok(["fs", "status", "--name", "a"]).contains("next dump at "));
    assert!(!server.ok(["fs", "status", "--name", "b"]).contains("next dump at "));
    server.ok(["fs", "ctl", "--name", "a", "newuser", "glenda"]);
    assert!(server.ok(["cat", "/fs/a/users"]).contains(":glenda:glenda:"));
    assert!(server.ok(["cat", "/a/adm/users"]).contains(":glenda:glenda:"));
    assert!(!server.ok(["cat", "/fs/b/users"]).contains("glenda"));
    let said = server.fails(["fs", "ctl", "--name", "a", "fish"]);
    assert!(said.contains("`fish` is no command"), "{said}");
    assert!(server.ok(["fs", "ctl", "--name", "a"]).contains("\nsync "));
    // The same word is the same archive, wherever it is mounted.
    server.fed(&["write", "--create", "/a/x"], b"x\n");
    let name = server.ok(["fs", "dump", "--name", "a"]);
    assert_eq!(server.ok(["cat", &format!("/dump/{}/x", name.trim_end())]), "x\n");
    let disk = server.dir.path().join("b").display().to_string();
    let said = server.fails(["mux", "mount", &format!("fs:{disk},schedule=05:00"), "/again"]);
    assert!(said.contains("open with other options"), "{said}");
    // An archive that is mounted later is opened then, by a thread of its own.
    let later = format!("fs:{}", server.dir.path().join("later").display());
    let said = server.fails(["mux", "mount", &later, "/later"]);
    assert!(said.contains("`ninefold fs ream` makes one"), "{said}");
    server.ok(["fs", "ream", "./later", "--size", "100M", "--name", "later"]);
    server.ok(["mux", "mount", "-c", &later, "/later"]);
    server.fed(&["write", "--create", "/later/x"], b"later\n");
    assert_eq!(server.ok(["cat", "/later/x"]), "later\n");
    // A client without a proof cannot control it.
    let tcp = server.addr("tcp!");
    let said = server.fails(["fs", "sync", "--name", "a", &format!("{tcp}/")]);
    assert!(said.contains("only its owner tells"), "{said}");
    assert_eq!(server.stop().0, Some(0));
}

#[test]
fn the_default_one_is_made_at_its_first_use() {
    let mut site = Site::new();
    let mut server = site.serve("fs:");
    let log = server.log();
    assert!(log.contains("a new archive: ") && log.contains("state/ninefold/archive"), "{log}");
    server.fed(&["write", "--create", "/archive/x"], b"x\n");
    assert_eq!(server.stop().0, Some(0));
    site.dir = site::taken(&mut server);
    let mut server = site.serve("fs:");
    assert_eq!(server.ok(["cat", "/archive/x"]), "x\n");
    assert!(!server.log().contains("a new archive"));
    // While it is served, no other program can open it.
    let said = server.fails(["fs", "check"]);
    assert!(said.contains("another program has it"), "{said}");
    assert_eq!(server.stop().0, Some(0));
}

#[test]
fn the_console_is_talked_with_line_by_line() {
    let mut site = Site::new();
    site.ok("fs ream ./disk --size 100M --name home");
    let server = site.serve("fs:./disk,schedule=off");
    let talk = |input: &[u8]| {
        let mut con = server.client();
        con.args(["fs", "con"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut con = con.spawn().unwrap();
        con.stdin.take().unwrap().write_all(input).unwrap();
        let output = con.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), said, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (_, said, wrong) = talk(
        b"check quick wait
check wait
log
",
    );
    assert!(
        said.starts_with(
            "ok
ok
"
        ) && said.contains(
            " is whole
"
        ),
        "{said}{wrong}"
    );
    let status = server.ok(["fs", "status"]);
    assert!(status.contains("next scrub at ") && status.contains("last check: "), "{status}");
    let (status, said, _) = talk(
        b"help

status
dump
stats
exit
nothing
",
    );
    for part in ["shown: cache dumps hurt ", "path INODE", "name home\n", "\nok\n", "\ndumps "] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(status, Some(0));
    // Errors are reported, and the next line is read.
    let (status, said, wrong) = talk(b"dunp\nd\xff\nsync\n");
    assert!(wrong.contains("`dunp` is no command") && said == "ok\n", "{said}{wrong}");
    assert_eq!(status, Some(1));
    // No text from a server moves the cursor.
    let (_, _, wrong) = talk(b"du\x1b[2Jnp\n");
    assert!(wrong.contains(r"`du\u{1b}[2Jnp` is no command") && !wrong.contains('\u{1b}'), "{wrong}");
}
