//! `ninefold watch`: changes, line by line.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use crate::common::Server;

/// The running verb and its output.
struct Watching {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watching {
    fn start(server: &Server, words: &[&str]) -> Self {
        let mut command = server.client();
        let mut child = command.arg("watch").args(words).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.lines.read_line(&mut line).unwrap() > 0, "it has ended");
        line.trim_end().into()
    }

    /// Returns the first line with this suffix.
    fn until(&mut self, end: &str) -> String {
        loop {
            let line = self.line();
            if line.ends_with(end) {
                return line;
            }
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn watch_tells_what_changes_and_goes_on_where_another_was() {
    let server = Server::start();
    let files = server.files();
    let mut all = Watching::start(&server, &[]);
    let here = all.until("");
    assert!(here.starts_with("here "), "{here}");
    let epoch = here.split(' ').nth(1).unwrap().to_owned();
    std::fs::create_dir(files.join("d")).unwrap();
    std::fs::write(files.join("d/it's new"), "text").unwrap();
    let created = all.until(" create '/d/it''s new'");
    let next = created.split(' ').next().unwrap().parse::<u64>().unwrap() + 1;
    drop(all);
    std::fs::rename(files.join("d/it's new"), files.join("d/old")).unwrap();
    std::fs::write(files.join("beside"), "").unwrap();
    let from = format!("{epoch}.{next}");
    let mut rest = Watching::start(&server, &["--json", "--from", &from, "/d"]);
    assert_eq!(rest.line(), format!(r#"{{"change":"here","epoch":"{epoch}","number":{next}}}"#));
    let moved = rest.until(r#""path":"/d/it's new","to":"/d/old"}"#);
    assert!(moved.starts_with(r#"{"change":"move","number":"#), "{moved}");
    std::fs::remove_file(files.join("d/old")).unwrap();
    // Changes outside the directory are not reported.
    loop {
        let line = rest.line();
        assert!(!line.contains("beside"), "{line}");
        if line.contains(r#""change":"remove""#) {
            break;
        }
    }
    let said = server.fails(["watch", "--from", "x"]);
    assert!(said.contains("EPOCH.N"), "{said}");
}

#[test]
fn a_name_space_tells_what_archives_tell_and_their_dumps() {
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("unix!{}", dir.path().join("s").display());
    let lines = "mount fs:,schedule=off /archive\nmount fs: /dump dump\nmount fsctl: /fs\nmount ram: /tmp\n";
    std::fs::write(dir.path().join("home.ns"), lines).unwrap();
    let server = Server::in_dir(dir, &["serve", "home.ns", "--listen", &listen]);
    server.ok(["mkdir", "/archive/d"]);
    let mut told = Watching::start(&server, &[]);
    // Both trees of the archive are watched, in any order.
    let mut heard = std::collections::BTreeSet::from([" sees /archive", " sees /dump", " sees /tmp"]);
    while !heard.is_empty() {
        let line = told.line();
        heard.retain(|end| !line.ends_with(end));
    }
    server.fed(&["write", "--create", "/archive/d/file"], b"text");
    told.until(" create /archive/d/file");
    told.until(" write /archive/d/file");
    server.ok(["mv", "/archive/d", "/archive/e"]);
    told.until(" move /archive/d /archive/e");
    server.ok(["rm", "/archive/e/file"]);
    told.until(" remove /archive/e/file");
    server.fed(&["write", "--create", "/tmp/file"], b"text");
    told.until(" create /tmp/file");
    let dump = server.ok(["fs", "dump"]);
    told.until(&format!(" create /dump/{}", dump.trim_end().trim_start_matches("/dump/")));
}
