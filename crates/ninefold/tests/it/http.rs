//! `serve` for browsers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::common::{self, Server, ninefold, not_covered};

/// Returns the URL that the server prints for browsers.
fn url(server: &Server) -> &str {
    server.banner.lines().find(|line| line.starts_with("http")).expect("an address")
}

/// Sends a request with this head. Returns the whole answer, over a connection that is then closed.
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
    assert!(server.banner.contains("browsers of this user and root read"), "{}", server.banner);
    let answer = get(&server, "/a.txt");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello"), "{answer}");
    assert!(get(&server, "/").contains("./a.txt"));
    assert!(get(&server, "/metrics").contains("\nninefold_http_responses_total{class=\"2xx\"} 2\n"));
    // Browsers cannot write, and another host name is refused.
    assert!(ask(&server, "PUT /a.txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0").contains(" 405 "));
    assert!(ask(&server, "GET / HTTP/1.1\r\nHost: evil.example").contains(" 421 "));
    // Of a single directory no file is hidden, whatever its name.
    std::fs::create_dir(server.files().join("net")).unwrap();
    std::fs::write(server.files().join("net/#f#"), "of a directory").unwrap();
    assert!(get(&server, "/net/%23f%23").ends_with("of a directory"));
    // 9P serves the same files.
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
    // The web server's own name space is separate.
    let out = server.run(["ls", "/net/tcp"]);
    assert!(out.status.success());
}

#[test]
fn metrics_are_those_of_the_process_and_on_this_machine_of_its_servers() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix!{}", dir.path().join("s").display());
    let text = format!("mount ram: /\nlisten {socket}\nlisten http!127.0.0.1!0\nlisten http!*!0 -insecure\n");
    std::fs::write(dir.path().join("w.ns"), text).unwrap();
    let server = Server::in_dir(dir, &["serve", "w.ns"]);
    let metrics = get(&server, "/metrics");
    let line =
        |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    assert_eq!(line("ninefold_mux_server_connections{server=\"ram:\"}"), Some(1.0), "{metrics}");
    assert!(line("process_resident_memory_bytes") > Some(1e6) && line("process_open_fds") > Some(3.0));
    let elsewhere = server.banner.lines().find(|line| line.starts_with("http://HOST")).unwrap();
    let port: u16 = elsewhere.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\nprocess_open_fds ") && !answer.contains("ninefold_mux"), "{answer}");
}

#[test]
fn answers_are_logged_and_the_file_may_be_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("access.log");
    let mut server = Server::with(&["--http=http!127.0.0.1!0", "--access-log", log.to_str().unwrap()]);
    let wait_for = |path: &std::path::Path, word: &str| {
        while !std::fs::read_to_string(path).is_ok_and(|text| text.contains(word)) {
            std::thread::yield_now();
        }
    };
    get(&server, "/first");
    wait_for(&log, "\"GET /first HTTP/1.1\" 404 ");
    std::fs::rename(&log, dir.path().join("old")).unwrap();
    server.signal(rustix::process::Signal::HUP);
    while !log.exists() {
        std::thread::yield_now();
    }
    get(&server, "/second");
    wait_for(&log, "\"GET /second HTTP/1.1\" 404 ");
    get(&server, "/last");
    assert_eq!(server.stop().0, Some(0));
    assert!(std::fs::read_to_string(&log).unwrap().contains("\"GET /last HTTP/1.1\" 404 "));
}

#[test]
fn visits_of_browsers_are_no_events_of_an_audit() {
    let server = Server::with(&["--http=http!127.0.0.1!0", "--audit", "audit"]);
    std::fs::write(server.files().join("a.txt"), "hello").unwrap();
    for _ in 0..3 {
        assert!(get(&server, "/a.txt").ends_with("hello"));
    }
    // An attach of a user is logged.
    assert!(server.run(["cat", "/a.txt"]).status.success());
    let told = || std::fs::read_to_string(server.dir.path().join("audit")).unwrap();
    common::until("it is told", || told().contains("\"event\":\"attach\""));
    assert!(!told().contains("\"event\":\"ctl\""), "{}", told());
}

#[test]
fn over_tls_it_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    std::fs::write(dir.path().join("cert.pem"), made.cert.pem()).unwrap();
    common::secret(&dir.path().join("key.pem"), &made.signing_key.serialize_pem());
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
        return not_covered("https (there is no curl)");
    };
    assert!(out.stdout == content, "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn who_has_a_certificate_sees_what_he_would_by_9p() {
    if Command::new("curl").arg("--version").output().is_err() {
        return not_covered("client certificates (there is no curl)");
    }
    for addr in ["localhost", "*"] {
        let dir = tempfile::tempdir().unwrap();
        for name in ["localhost", "alice", "bob", "mallory", "alice "] {
            let made = rcgen::generate_simple_self_signed([name.to_string()]).unwrap();
            std::fs::write(dir.path().join(format!("{name}.pem")), made.cert.pem()).unwrap();
            common::secret(&dir.path().join(format!("{name}.key")), &made.signing_key.serialize_pem());
        }
        let pem = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join("ca.pem"), pem("alice.pem") + &pem("bob.pem") + &pem("alice .pem"))
            .unwrap();
        for tree in ["main", "lab"] {
            std::fs::create_dir(dir.path().join(tree)).unwrap();
            std::fs::write(dir.path().join(tree).join("f"), tree).unwrap();
        }
        std::fs::write(dir.path().join("ns"), "mount disk:main /\nspace lab alice\nmount disk:lab /\n")
            .unwrap();
        let socket = format!("unix!{}", dir.path().join("s").display());
        let http = format!("--http=https!{addr}!0");
        let words = ["serve", "ns", "--listen", &socket, &http, "--cert", "localhost.pem", "--key"];
        let server = Server::in_dir(dir, &[&words[..], &["localhost.key", "--client-ca", "ca.pem"]].concat());
        let url = url(&server).replace("HOST", "localhost");
        let run = |name: Option<&str>| {
            let mut curl = Command::new("curl");
            curl.current_dir(&server.dir).args(["-sS", "--cacert", "localhost.pem"]).arg(format!("{url}f"));
            if let Some(name) = name {
                curl.args(["--cert", &format!("{name}.pem"), "--key", &format!("{name}.key")]);
            }
            curl.output().unwrap()
        };
        let get = |name| String::from_utf8(run(name).stdout).unwrap();
        assert_eq!(get(Some("alice")), "lab");
        assert_eq!(get(Some("bob")), "main");
        assert_eq!(get(Some("alice ")), "main", "it is another name");
        // Our authorities do not know this certificate.
        let refused = run(Some("mallory"));
        assert!(
            refused.stdout.is_empty() && String::from_utf8_lossy(&refused.stderr).contains("alert"),
            "{refused:?}"
        );
        match addr {
            "localhost" => assert_eq!(get(None), "main"),
            _ => assert!(get(None).contains("show a certificate")),
        }
    }
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
