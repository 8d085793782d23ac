//! `check-server` as users run it: on our own server, on a read-only one, and without a server.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::common::{Server, ninefold};

#[test]
fn our_server_passes_and_nothing_of_the_suite_stays() {
    let server = Server::start();
    let said = server.ok(["check-server", "/"]);
    for dialect in ["9P2000 ", "9P2000.u", "9P2000.L"] {
        let tally = said.lines().find(|line| line.starts_with(dialect) && line.contains(" passed, "));
        let tally = tally.unwrap_or_else(|| panic!("{dialect}: {said}"));
        assert!(tally.contains(" passed, 0 failed"), "{said}");
    }
    assert!(
        said.contains("skip  open/exclusive_use_opens_once: the server has no exclusive-use files"),
        "{said}"
    );
    assert!(!said.contains(" ok "), "only --verbose tells what passes: {said}");
    assert_eq!(server.files().read_dir().unwrap().count(), 0);
}

#[test]
fn a_dialect_a_group_and_a_directory_can_be_chosen() {
    let server = Server::start();
    std::fs::create_dir_all(server.files().join("a/b")).unwrap();
    let said = server.ok(["check-server", "--dialect", "L", "--only", "readdir/", "--verbose", "/a/b"]);
    let lines: Vec<&str> = said.lines().collect();
    let (tally, cases) = lines.split_last().expect("a tally");
    assert!(
        cases.len() > 10 && cases.iter().all(|line| line.starts_with("9P2000.L  ok    readdir/")),
        "{said}"
    );
    assert_eq!(*tally, format!("9P2000.L  {} passed, 0 failed, 0 skipped", cases.len()));
    assert_eq!(server.files().join("a/b").read_dir().unwrap().count(), 0);
}

#[test]
fn a_server_that_may_be_read_gets_the_cases_that_only_read() {
    let server = Server::start();
    let url = format!("9p://{}/", server.addr("tcp!").trim_start_matches("tcp!").replace('!', ":"));
    let output = server.run(["check-server", "--json", &url]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, cases) = lines.split_last().expect("a summary");
    let count = |word| cases.iter().filter(|case| case["outcome"] == word).count();
    assert!(count("pass") > 100 && count("skip") > 200 && count("fail") == 0, "{summary}");
    assert_eq!(summary["good"], true);
    assert!(cases.iter().filter(|case| case["outcome"] == "skip").all(|case| case["reason"] != ""), "{said}");
    // With the token the server is writable, too.
    let url = url.replace("9p://", &format!("9p://{}@", server.token()));
    let said = server.ok(["check-server", "--only", "create/", &url]);
    assert!(said.contains(" 0 failed") && !said.contains("no directory"), "{said}");
}

#[test]
fn a_server_that_is_none_is_status_2_with_the_reason() {
    let home = tempfile::tempdir().unwrap();
    let run = |addr: &str| {
        let output = ninefold(home.path()).args(["check-server", "--timeout", "5", addr]).output().unwrap();
        assert!(output.stdout.is_empty());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = run("unix!/nobody/here");
    assert!(status == Some(2) && said.contains("ninefold: check-server: no connection"), "{status:?} {said}");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = format!("tcp!127.0.0.1!{}", listener.local_addr().unwrap().port());
    let web = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        // The content of the request does not matter.
        let _ = client.read(&mut [0; 100]).unwrap();
        client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let (status, said) = run(&addr);
    web.join().unwrap();
    assert!(
        status == Some(2) && said.contains("does not speak 9P") && said.contains("HTTP/1.1 400"),
        "{said}"
    );
}

#[test]
fn the_list_has_every_case_with_its_clause_and_is_the_same_every_time() {
    let home = tempfile::tempdir().unwrap();
    let list = |words: &[&str]| {
        let output = ninefold(home.path()).args(["check-server", "--list"]).args(words).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        String::from_utf8(output.stdout).unwrap()
    };
    let all = list(&[]);
    assert_eq!(all, list(&[]));
    let names: Vec<&str> = all.lines().step_by(2).collect();
    assert!(names.len() > 200 && names.contains(&"walk/partial_makes_no_fid (all)"), "{all}");
    assert!(all.lines().skip(1).step_by(2).all(|clause| clause.starts_with("    ") && clause.len() > 20));
    assert_eq!(list(&["--json"]).lines().count(), names.len());
    assert!(list(&["--only", "flush/"]).lines().step_by(2).all(|name| name.starts_with("flush/")));
}
