//! Dumps as users see them: versions, differences, and restores.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;

use nine_proto::{GetMask, OpenFlags, Qid, SetAttr, Time, TimeSet};

use crate::common::{self, Server};
use crate::fs::site::Site;

/// Serves an archive without scheduled dumps, with a tree in it.
fn served() -> Server {
    let mut site = Site::new();
    site.ok("fs ream ./disk --size 300M");
    let server = site.serve("fs:./disk,schedule=off,zone=Europe/Berlin");
    let tree = server.dir.path().join("t");
    fs::create_dir_all(tree.join("sub/deep")).unwrap();
    for (name, text) in [("a", "one\n"), ("b", "two\n"), ("sub/x", "x\n"), ("sub/deep/y", "y\n")] {
        fs::write(tree.join(name), text).unwrap();
    }
    symlink("round", tree.join("round")).unwrap();
    common::chmod(&tree.join("a"), 0o640);
    common::set_mtime(&tree.join("a"), 1_000_000_000, 7);
    common::set_mtime(&tree.join("sub"), 1_000_000_001, 0);
    server.ok(["put", "-q", "-r", "t", "/archive/t"]);
    server
}

fn dump(server: &Server) -> String {
    server.ok(["fs", "dump"]).trim_end().into()
}

/// Splits a table's rows into words.
fn rows(said: &str) -> Vec<Vec<&str>> {
    said.lines().skip(1).map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn every_version_is_listed_and_what_was_removed_is_found() {
    let server = served();
    let first = dump(&server);
    server.fed(&["write", "/archive/t/a"], b"one\nand more\n");
    let second = dump(&server);
    let third = dump(&server);
    server.ok(["rm", "/archive/t/a"]);
    let fourth = dump(&server);
    server.ok(["mkdir", "/archive/t/a"]);

    let said = server.ok(["fs", "history", "/archive/t/a"]);
    let rows = rows(&said);
    let ends: Vec<_> = rows.iter().map(|row| (row[0], row[1], *row.last().unwrap())).collect();
    assert_eq!(
        ends,
        [
            ("now", "now", "directory"),
            (&*fourth, &*fourth, "removed"),
            (&*second, &*third, "file"),
            (&*first, &*first, "file"),
        ],
        "{said}"
    );
    assert!(rows[3].contains(&"2001-09-09") && rows[2].contains(&"13"), "{said}");
    // By a path in a dump, and as JSON.
    let said = server.ok(["fs", "history", "--json", &format!("/dump/{first}/t/a")]);
    let all: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&all[2]["dumps"], &all[2]["mode"]), (&2.into(), &"0640".into()));
    assert_eq!(all[3]["path"], format!("/dump/{first}/t/a"));
    assert_eq!((&all[0]["first"], &all[0]["now"]), (&serde_json::Value::Null, &true.into()));
    // A link is shown itself and not followed; a link on the path leads to no file in the dumps.
    let said = server.ok(["fs", "history", "/archive/t/round"]);
    assert!(said.trim_end().ends_with("link"), "{said}");
    let said = server.fails(["fs", "history", "/archive/t/round/x"]);
    assert!(said.contains("nor is it in any of 4 dumps"), "{said}");
    // A former file is now a directory.
    server.fed(&["write", "--create", "/archive/t/a/x"], b"x\n");
    let said = server.ok(["fs", "history", "/archive/t/a/x"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    let said = server.ok(["fs", "diff", &first, "/archive/t/a/x"]);
    assert!(said.ends_with("\n+ /archive/t/a/x\n"), "{said}");
    let said = server.fails(["fs", "restore", &first, "/archive/t/a/x"]);
    assert!(said.contains("it is not in this dump"), "{said}");
    // By address, where a token is needed.
    let there = format!("{}/archive/t/b", server.addr("tcp!"));
    let said = server.ok(["fs", "yesterday", "latest", &there]);
    assert_eq!(said.trim_end(), format!("{}/dump/{fourth}/t/b", server.addr("tcp!")));
    let said = server.ok(["fs", "yesterday", "-n", "0", "/archive/t/b", "/archive/t/sub"]);
    assert_eq!(said, format!("/dump/{fourth}/t/b\n/dump/{fourth}/t/sub\n"));

    for (words, why) in [
        (&["history", "/mux/ctl"][..], "it is in no archive"),
        (&["history", "/dump"], "these are the dumps themselves"),
        (&["history", "/archive/none"], "nor is it in any of 4 dumps"),
        (&["yesterday", "2026-13-01", "/archive/t"], "is no date: write 2026/1121"),
        (&["yesterday", "2020/0101", "/archive/t"], "there is no dump 2020/0101; the nearest: "),
        (&["yesterday", "/archive/t"], "there is no dump that old; the first one is "),
        (&["diff", "latest", "/archive/none"], "it is not there"),
        (&["restore", "latest", "/archive/t/none"], "it is not in this dump"),
    ] {
        let said = server.fails([&["fs"], words].concat());
        assert!(said.contains(why), "{words:?}: {said}");
    }
}

#[test]
fn what_differs_is_shown_by_name_and_by_line() {
    let server = served();
    let first = dump(&server);
    let none = server.ok(["fs", "diff", "today", "/archive/t"]);
    let head = format!("--- /dump/{first}/t\n+++ /archive/t\n");
    assert_eq!(none, "", "as diff(1): where nothing differs nothing is printed");
    server.fed(&["write", "/archive/t/a"], b"One\n");
    server.ok(["rm", "/archive/t/b"]);
    server.ok(["mkdir", "/archive/t/b"]);
    server.fed(&["write", "--create", "/archive/t/b/new\nline"], b"n\n");
    let odd = OsStr::from_bytes(b"/archive/t/\xff\x1b");
    let mut child = server.client();
    child.args(["write", "--create"]).arg(odd).stdin(std::process::Stdio::null());
    assert!(child.status().unwrap().success());
    server.ok(["rm", "-r", "/archive/t/sub/deep"]);
    let output = server.run(["fs", "diff", &first, "/archive/t"]);
    let said = output.stdout;
    let text = format!(
        "{head}~ /archive/t/a\n- /dump/{first}/t/b\n+ /archive/t/b/\n+ /archive/t/b/new\\nline\n\
         - /dump/{first}/t/sub/deep/\n- /dump/{first}/t/sub/deep/y\n"
    );
    let expected = [text.as_bytes(), b"+ /archive/t/\xff\\u{1b}\n"].concat();
    assert_eq!(String::from_utf8_lossy(&said), String::from_utf8_lossy(&expected));
    let said = server.ok(["fs", "diff", "--json", &first, "/archive/t"]);
    let all: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let words: Vec<_> = all.iter().map(|one| one["change"].as_str().unwrap()).collect();
    assert_eq!(words, ["changed", "kind", "added", "removed", "removed", "added"]);
    assert_eq!(all[5]["new-hex"], "2f617263686976652f742fff1b");

    let said = server.ok(["fs", "diff", "-u", &first, "/archive/t/a"]);
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].starts_with(&format!("--- /dump/{first}/t/a\t2001-09-09")), "{said}");
    assert_eq!(lines[2..], ["@@ -1 +1 @@", "-one", "+One"]);
    assert_eq!(server.ok(["fs", "yesterday", "-d", "--date", &first, "/archive/t/a"]), said);
    // Between two dumps; and files with different attributes only.
    let second = dump(&server);
    let said = server.ok(["fs", "diff", &first, "/archive/t/sub", "--to", &second]);
    assert!(said.contains(&format!("+++ /dump/{second}/t/sub\n- /dump/{first}/t/sub/deep/\n")), "{said}");
    let x = server.dir.path().join("t/sub/x");
    common::set_mtime(&x, 1_000_000_002, 0);
    server.ok(["put", "-q", "t/sub/x", "/archive/t/sub/x"]);
    let said = server.ok(["fs", "diff", &second, "/archive/t/sub"]);
    assert!(said.ends_with("\nm /archive/t/sub/x\n"), "{said}");
}

#[test]
fn a_tree_comes_back_as_it_was_and_takes_nothing_away() {
    let server = served();
    let first = dump(&server);
    let dir = server.dir.path().to_path_buf();
    server.ok(["rm", "-r", "/archive/t"]);
    // A file of a removed directory: the directories on its path are restored, too.
    let said = server.ok(["fs", "restore", "latest", "/archive/t/sub/deep/y"]);
    assert_eq!(said, format!("/dump/{first}/t/sub/deep/y -> /archive/t/sub/deep/y: 1 file is back\n"));
    let said = server.ok(["fs", "restore", &first, "/archive/t"]);
    assert_eq!(said, format!("/dump/{first}/t -> /archive/t: 4 files are back\n"));
    server.ok(["get", "-q", "-r", "/archive/t", "back"]);
    common::assert_same(&dir.join("t"), &dir.join("back"));
    assert_eq!(fs::metadata(dir.join("back/sub")).unwrap().mtime(), 1_000_000_001);
    let again = server.ok(["fs", "restore", &first, "/archive/t"]);
    assert_eq!(again, format!("/archive/t: all of /dump/{first}/t is there\n"));

    // Differing files are not overwritten, and then nothing else is restored.
    server.fed(&["write", "/archive/t/a"], b"now\n");
    server.ok(["rm", "/archive/t/b"]);
    server.fed(&["write", "--create", "/archive/t/since"], b"new\n");
    let said = server.fails(["fs", "restore", &first, "/archive/t"]);
    assert!(
        said.contains("/archive/t/a: it differs\n")
            && said.contains("1 file differs, and nothing is restored"),
        "{said}"
    );
    assert!(!server.run(["stat", "/archive/t/b"]).status.success());
    let said = server.ok(["fs", "restore", &first, "/archive/t", "--to", "there"]);
    assert_eq!(said, format!("/dump/{first}/t -> there: 5 files are back\n"));
    common::assert_same(&dir.join("t"), &dir.join("there"));
    let said = server.ok(["fs", "restore", "--force", &first, "/archive/t"]);
    assert_eq!(
        said,
        format!("/dump/{first}/t -> /archive/t: 2 files are back; 1 that has come since stays\n")
    );
    assert_eq!(server.ok(["cat", "/archive/t/a", "/archive/t/b", "/archive/t/since"]), "one\ntwo\nnew\n");

    // A file of another kind in its place.
    server.ok(["rm", "/archive/t/b"]);
    server.ok(["mkdir", "/archive/t/b"]);
    server.ok(["rm", "-r", "/archive/t/sub"]);
    server.fed(&["write", "--create", "/archive/t/sub"], b"a file\n");
    let said = server.fails(["fs", "restore", &first, "/archive/t"]);
    assert!(said.contains("2 files differ"), "{said}");
    let said = server.fails(["fs", "restore", "--force", &first, "/archive/t"]);
    assert!(said.contains("/archive/t/b: a directory is there now"), "{said}");
    assert_eq!(server.ok(["cat", "/archive/t/sub/deep/y"]), "y\n");
    // The summary must not claim that it is restored.
    let output = server.run(["fs", "restore", "--force", &first, "/archive/t"]);
    let said = String::from_utf8_lossy(&output.stdout);
    let rest = "nothing is back; 1 that has come since stays; 1 failed\n";
    assert_eq!(said, format!("/dump/{first}/t -> /archive/t: {rest}"));
    assert_eq!(output.status.code(), Some(1));
    // No temporary files are left.
    assert_eq!(server.ok(["ls", "-a", "/archive/t"]), "a\nb\nround\nsince\nsub\n");
    let said = server.ok(["fs", "yesterday", "-c", &first, "/archive/t/a"]);
    assert!(said.contains("all of"), "{said}");
}

/// Returns the root of the archive, for requests that no verb sends.
fn archive(server: &Server) -> nine_io::client::blocking::File {
    let addr: nine_net::Addr = format!("unix!{}", server.socket().display()).parse().unwrap();
    let client = nine_io::client::blocking::Client::dial(&addr, LIMIT, Default::default()).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    client.attach("", uid, "").unwrap().walk("archive").unwrap()
}

#[test]
fn what_is_there_keeps_its_mode_unless_it_is_forced() {
    let server = served();
    let first = dump(&server);
    let archive = archive(&server);
    let mode = |path: &str| archive.walk(path).unwrap().getattr(GetMask::BASIC).unwrap().mode & 0o777;
    // Directories that were open to all are now read-only.
    for path in ["t/b", "t/sub"] {
        let set = SetAttr { mode: Some(0o500), ..SetAttr::default() };
        archive.walk(path).unwrap().setattr(&set).unwrap();
    }
    server.ok(["rm", "/archive/t/sub/x"]);
    let said = server.ok(["fs", "restore", &first, "/archive/t"]);
    let kept = "1 file is back; 2 have other modes, owners or times, which stay\n";
    assert_eq!(said, format!("/dump/{first}/t -> /archive/t: {kept}"));
    assert_eq!((mode("t/b"), mode("t/sub"), mode("t/sub/x")), (0o500, 0o500, 0o644));
    let said = server.ok(["fs", "restore", "--force", &first, "/archive/t"]);
    assert!(said.ends_with(": 0 files are back, 2 have mode, owner and time again\n"), "{said}");
    assert_eq!((mode("t/b"), mode("t/sub")), (0o644, 0o755));
}

#[test]
fn links_come_back_as_whose_they_were() {
    let server = served();
    let archive = archive(&server);
    let owner = SetAttr { uid: Some(1234), gid: Some(1235), ..SetAttr::default() };
    archive.walk("t/round").unwrap().setattr(&owner).unwrap();
    let first = dump(&server);
    server.ok(["rm", "-r", "/archive/t"]);
    server.ok(["fs", "restore", &first, "/archive/t"]);
    let attr = archive.walk("t/round").unwrap().getattr(GetMask::BASIC).unwrap();
    assert_eq!((attr.uid, attr.gid), (1234, 1235));
    let again = server.ok(["fs", "restore", "--force", &first, "/archive/t"]);
    assert_eq!(again, format!("/archive/t: all of /dump/{first}/t is there\n"));
    // A different owner alone is detected and restored.
    archive.walk("t/round").unwrap().setattr(&SetAttr { uid: Some(1), ..SetAttr::default() }).unwrap();
    let said = server.ok(["fs", "diff", &first, "/archive/t"]);
    assert!(said.ends_with("\nm /archive/t/round\n"), "{said}");
    server.ok(["fs", "restore", "--force", &first, "/archive/t"]);
    assert_eq!(archive.walk("t/round").unwrap().getattr(GetMask::BASIC).unwrap().uid, 1234);
}

#[test]
fn a_link_that_leads_elsewhere_is_another_version_however_old_it_is() {
    let server = served();
    let (archive, odd) = (archive(&server), OsStr::from_bytes(b"/archive/t/\xff"));
    let tree = archive.walk("t").unwrap();
    let then =
        SetAttr { mtime: Some(TimeSet::To(Time { sec: 1_000_000_000, nsec: 0 })), ..SetAttr::default() };
    let mut dumps = Vec::new();
    for target in ["v1", "v2"] {
        let _ = tree.unlink("current", false);
        tree.symlink("current", target, nine_proto::NOGID).unwrap();
        tree.walk("current").unwrap().setattr(&then).unwrap();
        dumps.push(dump(&server));
    }
    let said = server.ok(["fs", "history", "/archive/t/current"]);
    let ends: Vec<_> = rows(&said).iter().map(|row| (row[0].to_owned(), row[1].to_owned())).collect();
    let [first, second] = &dumps[..] else { unreachable!() };
    assert_eq!(ends, [(second.clone(), "now".into()), (first.clone(), first.clone())], "{said}");
    // A path that is not UTF-8.
    tree.symlink(b"\xff", "x", nine_proto::NOGID).unwrap();
    let output = server.run([OsStr::new("fs"), OsStr::new("history"), OsStr::new("--json"), odd]);
    let one: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(one["path-hex"], "2f617263686976652f742fff");
}

#[test]
fn what_cannot_be_compared_is_listed_by_itself() {
    let server = served();
    let first = dump(&server);
    // An exclusive-use file that is open elsewhere: only the change of its attributes is known.
    let file = archive(&server).walk("t/a").unwrap();
    file.setattr(&SetAttr { mode: Some(0o640), special: Some(Qid::EXCL), ..SetAttr::default() }).unwrap();
    let held = file.open("", OpenFlags::READ).unwrap();
    let said = server.ok(["fs", "history", "/archive/t/a"]);
    let ends = |said: &str| rows(said).iter().map(|row| format!("{} {}", row[0], row[1])).collect::<Vec<_>>();
    assert_eq!(ends(&said), ["now now".into(), format!("{first} {first}")], "{said}");
    held.close().unwrap();
    let said = server.ok(["fs", "history", "/archive/t/a"]);
    assert_eq!(ends(&said), [format!("{first} now")], "{said}");
}

#[test]
fn names_of_one_file_and_what_is_written_on_it_come_back() {
    let server = served();
    let archive = archive(&server);
    let (tree, file) = (archive.walk("t").unwrap(), archive.walk("t/a").unwrap());
    tree.walk("sub").unwrap().link("another", &file).unwrap();
    file.set_xattr("user.said", b"of a", 0).unwrap();
    tree.set_xattr("user.said", b"of t", 0).unwrap();
    dump(&server);
    server.ok(["rm", "-r", "/archive/t"]);
    let said = server.ok(["fs", "restore", "latest", "/archive/t"]);
    assert!(said.ends_with("6 files are back\n"), "{said}");
    let mask = GetMask::BASIC;
    let (a, other) = (archive.walk("t/a").unwrap(), archive.walk("t/sub/another").unwrap());
    let (a, attr, other) = (&a, a.getattr(mask).unwrap(), other.getattr(mask).unwrap());
    assert_eq!((attr.nlink, attr.qid), (2, other.qid));
    assert_eq!(a.xattr("user.said").unwrap(), b"of a");
    assert_eq!(archive.walk("t").unwrap().xattr("user.said").unwrap(), b"of t");
    assert_eq!((attr.mode & 0o777, attr.mtime.sec), (0o640, 1_000_000_000));
    // And to another place.
    server.ok(["fs", "restore", "latest", "/archive/t", "--to", "here"]);
    let meta = fs::metadata(server.dir.path().join("here/sub/another")).unwrap();
    assert_eq!((meta.nlink(), meta.mtime()), (2, 1_000_000_000));
}

#[test]
fn browsers_see_what_was() {
    let mut site = Site::new();
    site.ok("fs ream ./disk --size 300M");
    let lines = format!(
        "mount fs:{},schedule=off /archive\nmount fs:{} /dump dump\nmount fsctl: /fs\n\
         listen http!127.0.0.1!0\n",
        site.path("disk").display(),
        site.path("disk").display()
    );
    fs::write(site.path("x.ns"), lines).unwrap();
    let server = site.serve("x.ns");
    server.ok(["mkdir", "/archive/t"]);
    server.ok(["mux", "bind", "/archive/t", "/letters"]);
    server.fed(&["write", "--create", "/archive/t/a"], b"one\n");
    let first = dump(&server);
    let url = server.banner.lines().find(|line| line.starts_with("http")).unwrap();
    let get = |path: &str| {
        let addr = url.trim_start_matches("http://").trim_end_matches('/');
        let mut stream = std::net::TcpStream::connect(addr).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(get("/archive/t/").contains("./a?versions"));
    for path in ["/archive/t/a?versions", "/letters/a?versions"] {
        let said = get(path);
        let row = format!("{first} to now</th><td class=\"n\" title=\"4 bytes\">4 B</td>");
        assert!(said.contains(&row) && said.contains(&format!("\"/dump/{first}/t/a\"")), "{said}");
    }
    assert!(get(&format!("/dump/{}/", &first[..4])).contains(&format!("\"./{}/\"", &first[5..])));
    assert!(get(&format!("/dump/{first}/t/a")).ends_with("\r\n\r\none\n"));
    assert!(!get("/mux/").contains("versions"));
}

/// Longer than anything here takes, unless it hangs.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(30);

#[test]
fn an_archive_behind_other_muxes_is_found_where_it_is() {
    let mut home = served();
    let first = dump(&home);
    let mut site = Site::new();
    let lines = format!(
        "mount ram: /\nmount -c disk:{} /disk\nmount {} /n/home\nbind /n/home/archive /letters\n",
        site.dir.path().display(),
        home.addr("unix!"),
    );
    fs::write(site.path("x.ns"), lines).unwrap();
    let mut server = site.serve("x.ns");
    let said = server.ok(["fs", "yesterday", &first, "/n/home/archive/t/a"]);
    assert_eq!(said, format!("/n/home/dump/{first}/t/a\n"));
    let said = server.ok(["fs", "history", "/n/home/archive/t/a"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    // A user's file that imitates a mux is not trusted.
    let fake = server.dir.path().join("mux");
    fs::create_dir(&fake).unwrap();
    fs::write(fake.join("mounts"), "mount fs: /\nmount fs: /dump dump\n").unwrap();
    let said = server.fails(["fs", "history", "/disk/x"]);
    assert!(said.contains("it is in no archive"), "{said}");
    // If nothing announces the dumps, the user may name them.
    let said = server.ok([
        "fs",
        "yesterday",
        "--dump",
        "/n/home/dump",
        "--archive",
        "/letters",
        "latest",
        "/letters/t/b",
    ]);
    assert_eq!(said, format!("/n/home/dump/{first}/t/b\n"));
    let said = server.fails([
        "fs",
        "diff",
        "17:30",
        "/letters/t",
        "--dump",
        "/n/home/dump",
        "--archive",
        "/letters",
    ]);
    assert!(said.contains("nothing says at which time"), "{said}");
    // A server that disconnects.
    assert_eq!(home.stop().0, Some(0));
    let output = server.run(["fs", "history", "/n/home/archive/t/a"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(server.stop().0, Some(0));
}

#[test]
fn thousands_of_dumps_of_any_server_are_looked_through() {
    let server = Server::start();
    let put = |path: &str, text: &str| {
        let path = server.files().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        common::set_mtime(&path, 1_000_000_000 + text.len() as i64, 0);
    };
    for number in 1..=3000 {
        put(&format!("old/2026/0101{number}/f"), &"x".repeat(number / 1000));
    }
    put("old/2025/1231/g", "");
    put("live/f", "xxx");
    fs::create_dir_all(server.files().join("old/lost+found/0101")).unwrap();
    let of = ["--dump", "/old", "--archive", "/live"];
    let output = server.run([&["fs", "history", "/live/f"][..], &of].concat());
    // The command shows its progress if it takes long.
    let (said, how_far) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(how_far.lines().all(|line| line.ends_with(" dumps so far")), "{how_far}");
    let rows = rows(&said);
    let ends: Vec<_> = rows.iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(
        ends,
        [
            ("2026/01013000", "now"),
            ("2026/01012000", "2026/01012999"),
            ("2026/01011000", "2026/01011999"),
            ("2026/01011", "2026/0101999"),
        ],
        "{said}"
    );
    let said = server.ok([&["fs", "yesterday", "2026-01-01", "/live/f"][..], &of].concat());
    assert_eq!(said, "/old/2026/01013000/f\n");
    // By names alone.
    fs::rename(server.files().join("old"), server.files().join("dump")).unwrap();
    fs::rename(server.files().join("live"), server.files().join("archive")).unwrap();
    assert_eq!(server.ok(["fs", "yesterday", "2025-12-31", "/archive/g"]), "/dump/2025/1231/g\n");
    let said = server.ok(["fs", "restore", "2025/1231", "/archive/g"]);
    assert_eq!(said, "/dump/2025/1231/g -> /archive/g: 1 file is back\n");
}

/// Runs a command as the user nobody in the server's directory. Checks its exit status and returns its output.
#[track_caller]
fn as_nobody(server: &Server, words: &[&str], status: i32) -> String {
    let mut command = server.client();
    let output = command.args(words).uid(65_534).gid(65_534).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
    said.into_owned()
}

/// The modes and names below a directory of the server, as `tree` and `ls -l` show them.
fn modes(server: &Server, dirs: &[&str]) -> Vec<String> {
    let all = dirs.iter().flat_map(|dir| {
        let said = server.ok(["ls", "-l", dir]);
        let lines: Vec<String> = said
            .lines()
            .filter_map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                Some(format!("{} {}", words.first()?, words.last()?))
            })
            .collect();
        lines
    });
    all.collect()
}

#[test]
fn a_directory_that_its_owner_may_not_write_is_restored_by_him() {
    if !rustix::process::geteuid().is_root() {
        common::not_covered("files of another user: only root can be another user");
        return;
    }
    let mut site = Site::new();
    site.ok("fs ream ./disk --size 200M");
    let dir = std::mem::replace(&mut site.dir, tempfile::tempdir().unwrap());
    common::chmod(dir.path(), 0o777);
    let socket = format!("unix!{}", dir.path().join("s").display());
    let serve = ["serve", "fs:./disk,schedule=off", "--as", "client", "--socket-mode", "666"];
    let server = Server::in_dir(dir, &[&serve[..], &["--listen", &socket]].concat());
    server.ok(["mkdir", "-m", "777", "/archive/pub"]);
    let tree = server.dir.path().join("t");
    fs::create_dir_all(tree.join("d/e")).unwrap();
    for name in ["d/f", "d/e/g"] {
        fs::write(tree.join(name), "x\n").unwrap();
    }
    for name in ["d/e", "d", ""] {
        common::chmod(&tree.join(name), 0o555);
    }
    let closed = ["dr-xr-xr-x t", "dr-xr-xr-x d", "dr-xr-xr-x e", "-rw-r--r-- f", "-rw-r--r-- g"];
    let dirs = ["/archive/pub", "/archive/pub/t", "/archive/pub/t/d", "/archive/pub/t/d/e"];
    as_nobody(&server, &["put", "-q", "-r", "t", "/archive/pub/t"], 0);
    assert_eq!(modes(&server, &dirs), closed);
    let first = dump(&server);
    let restore = ["fs", "restore", &first];

    // Restore the whole tree, a directory in an existing one, a file, and a file without its directory.
    for (gone, what) in [
        ("/archive/pub/t", "/archive/pub/t"),
        ("/archive/pub/t/d", "/archive/pub/t"),
        ("/archive/pub/t/d/f", "/archive/pub/t"),
        ("/archive/pub/t/d/e", "/archive/pub/t/d/e"),
        ("/archive/pub/t/d/f", "/archive/pub/t/d/f"),
        ("/archive/pub/t/d/e", "/archive/pub/t/d/e/g"),
    ] {
        server.ok(["rm", "-r", gone]);
        as_nobody(&server, &[&restore[..], &[what]].concat(), 0);
        assert_eq!(modes(&server, &dirs), closed, "{gone}");
    }
    // A file with other content, and a file in place of a directory.
    server.fed(&["write", "/archive/pub/t/d/f"], b"other\n");
    server.ok(["rm", "-r", "/archive/pub/t/d/e"]);
    server.fed(&["write", "--create", "/archive/pub/t/d/e"], b"a file\n");
    as_nobody(&server, &[&restore[..], &["/archive/pub/t"]].concat(), 1);
    as_nobody(&server, &[&restore[..], &["--force", "/archive/pub/t"]].concat(), 0);
    assert_eq!(modes(&server, &dirs), closed);
    assert_eq!(server.ok(["cat", "/archive/pub/t/d/f"]), "x\n");
    // To another place: into an existing directory only with --force.
    let to = ["--to", ":/archive/pub/t", "/archive/pub/t/d/e"];
    let said = as_nobody(&server, &[&restore[..], &to].concat(), 1);
    assert!(said.contains("Permission denied"), "{said}");
    as_nobody(&server, &[&restore[..], &["--force"], &to].concat(), 0);
    assert_eq!(modes(&server, &dirs[..2]), ["dr-xr-xr-x t", "dr-xr-xr-x d", "dr-xr-xr-x e"]);
    // Copy into existing directories, on both sides. The named destination itself must be writable.
    server.ok(["rm", "-r", "/archive/pub/t/e"]);
    server.ok(["mkdir", "-m", "777", "/archive/pub/into"]);
    fs::create_dir(server.dir.path().join("into")).unwrap();
    common::chmod(&server.dir.path().join("into"), 0o777);
    for _ in 0..2 {
        as_nobody(&server, &["get", "-q", "-r", "/archive/pub/t", "into"], 0);
        as_nobody(&server, &["cp", "-q", "-r", ":/archive/pub/t", ":/archive/pub/into"], 0);
        as_nobody(&server, &["put", "-q", "-r", "t", "/archive/pub"], 0);
    }
    as_nobody(&server, &["cp", "-q", "-r", ":/archive/pub/t", ":/archive/pub/into/t"], 1);
    let here = server.dir.path().join("into/t");
    for name in ["", "d", "d/e"] {
        assert_eq!(fs::metadata(here.join(name)).unwrap().mode() & 0o777, 0o555, "{name}");
    }
    assert_eq!(
        modes(&server, &["/archive/pub/into", "/archive/pub/into/t/d"]),
        [closed[0], closed[2], closed[3]]
    );
    server.ok(["rm", "-r", "/archive/pub/into"]);
    assert_eq!(modes(&server, &dirs), closed);
    // Another user may not restore it.
    server.ok(["rm", "/archive/pub/t/d/f"]);
    let mut other = server.client();
    other.args([&restore[..], &["/archive/pub/t"]].concat()).uid(1).gid(1);
    let output = other.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(modes(&server, &dirs[..3]), closed[..3]);
}

#[test]
fn access_control_lists_come_back_and_no_others() {
    let server = served();
    let list = |other: u8| {
        let entry = |tag: u8, perm: u8, id: u32| [&[tag, 0, perm, 0][..], &id.to_le_bytes()].concat();
        let entries = [(1, 6, u32::MAX), (2, 6, 1235), (4, 4, u32::MAX), (16, 6, u32::MAX)];
        let mut value = vec![2, 0, 0, 0];
        entries.into_iter().for_each(|(tag, perm, id)| value.extend(entry(tag, perm, id)));
        value.extend(entry(32, other, u32::MAX));
        value
    };
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    let root = archive(&server);
    let file = root.walk("t/a").unwrap();
    file.set_xattr(access, &list(0), 0).unwrap();
    let first = dump(&server);
    // Both files are removed, and the directory gets a default list that the dump does not have.
    server.ok(["rm", "/archive/t/a"]);
    server.ok(["rm", "/archive/t/b"]);
    root.walk("t").unwrap().set_xattr(default, &list(4), 0).unwrap();
    server.ok(["fs", "restore", &first, "/archive/t"]);
    let of = |name: &str| root.walk(format!("t/{name}")).unwrap().xattr(access);
    assert_eq!(of("a").unwrap(), list(0));
    assert!(of("b").is_err());
}
