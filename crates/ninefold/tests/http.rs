//! `serve` for browsers.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use common::{Server, ninefold};

/// Where a server says that browsers find it.
fn url(server: &Server) -> &str {
    server.banner.lines().find(|line| line.starts_with("http")).expect("an address")
}

/// What it answers to this, all of it, over a connection that is closed then.
fn ask(server: &Server, head: &str) -> String {
    let addr = url(server).trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "{head}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(server: &Server, path: &str) -> String {
    ask(server, &format!("GET {path} HTTP/1.1\r\nHost: localhost"))
}

#[test]
fn a_directory_is_served_to_browsers_beside_9p() {
    let server = Server::with(&["--http=http!127.0.0.1!0"]);
    std::fs::write(server.files().join("a.txt"), "hello").unwrap();
    assert!(server.banner.contains("browsers of this machine read"), "{}", server.banner);
    let answer = get(&server, "/a.txt");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello"), "{answer}");
    assert!(get(&server, "/").contains("./a.txt"));
    assert!(get(&server, "/metrics").contains("\nninefold_http_responses_total{class=\"2xx\"} 2\n"));
    // Nobody writes this way, and another name is another server.
    assert!(ask(&server, "PUT /a.txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0").contains(" 405 "));
    assert!(ask(&server, "GET / HTTP/1.1\r\nHost: evil.example").contains(" 421 "));
    // 9P serves the same.
    assert_eq!(server.run(["cat", "/a.txt"]).stdout, b"hello");
}

#[test]
fn a_name_space_is_shown_without_what_is_not_for_browsers() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    std::fs::write(dir.path().join("files/x"), "in a name space").unwrap();
    let text = "mount ram: /\nmount disk:files /data\nmount net: /net\nmount cons: /cons\n\
                listen unix!s\nlisten http!127.0.0.1!0 -host files.lab\n";
    std::fs::write(
        dir.path().join("w.ns"),
        text.replace("unix!s", &format!("unix!{}", dir.path().join("s").display())),
    )
    .unwrap();
    let server = Server::in_dir(dir, &["serve", "w.ns"]);
    assert!(get(&server, "/data/x").ends_with("in a name space"));
    assert!(ask(&server, "GET /data/x HTTP/1.1\r\nHost: files.lab").contains(" 200 "));
    let root = get(&server, "/");
    assert!(root.contains("./data/") && !root.contains("./net/") && !root.contains("./cons/"), "{root}");
    for hidden in ["/net/", "/net/tcp/clone", "/cons/cons", "/mux/ctl"] {
        assert!(get(&server, hidden).contains(" 404 "), "{hidden}");
    }
    // Its own name space is nobody else's.
    let out = server.run(["ls", "/net/tcp"]);
    assert!(out.status.success());
}

#[test]
fn answers_are_logged_and_the_file_may_be_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("access.log");
    let server = Server::with(&["--http=http!127.0.0.1!0", "--access-log", log.to_str().unwrap()]);
    let wait_for = |path: &std::path::Path, word: &str| {
        while !std::fs::read_to_string(path).is_ok_and(|text| text.contains(word)) {
            std::thread::yield_now();
        }
    };
    get(&server, "/first");
    wait_for(&log, "\"GET /first HTTP/1.1\" 404 ");
    std::fs::rename(&log, dir.path().join("old")).unwrap();
    server.signal(rustix::process::Signal::HUP);
    // Until the signal has come, lines go to the old one.
    while !log.exists() {
        get(&server, "/second");
    }
    wait_for(&log, "\"GET /second HTTP/1.1\" 404 ");
}

#[test]
fn over_tls_it_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    std::fs::write(dir.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(dir.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    let content: Vec<u8> = (0..2_000_000u32).map(|n| (n / 7) as u8).collect();
    std::fs::write(dir.path().join("files/f"), &content).unwrap();
    let socket = format!("unix!{}", dir.path().join("s").display());
    let words = [
        "serve",
        "files",
        "--listen",
        &socket,
        "--http=https!localhost!0",
        "--cert",
        "cert.pem",
        "--key",
        "key.pem",
    ];
    let server = Server::in_dir(dir, &words);
    let Ok(out) = Command::new("curl")
        .args(["-sS", "--cacert"])
        .arg(server.dir.path().join("cert.pem"))
        .arg(format!("{}f", url(&server)))
        .output()
    else {
        eprintln!("NOT COVERED: https (there is no curl)");
        return;
    };
    assert!(out.stdout == content, "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn what_cannot_be_served_is_said_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let out = ninefold(dir.path()).arg("serve").args(words).output().unwrap();
        assert!(!out.status.success());
        String::from_utf8(out.stderr).unwrap()
    };
    let said = run(&[".", "--http=https!localhost!0", "--listen", "unix!s"]);
    assert!(said.contains("an https! listener needs --cert and --key"), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = format!("--http=http!127.0.0.1!{}", taken.local_addr().unwrap().port());
    let said = run(&[".", &addr, "--listen", "unix!s"]);
    assert!(said.contains("in use"), "{said}");
    let said = run(&[".", "--http=http!127.0.0.1!x"]);
    assert!(said.contains("`x` is not a port"), "{said}");
}
