//! `serve`: its listeners, its signals and its log, seen from outside.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use nine_io::client::{Options, blocking};
use nine_net::Addr;
use nine_proto::{Errno, NOUID, OpenFlags, SetAttr};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use crate::common::{self, Server, ninefold, not_covered};

#[test]
fn it_says_what_it_serves_and_how_to_reach_it() {
    let server = Server::start();
    for text in
        ["serves disk:/", "/files\n", "ninefold ls unix:/", "mount -t 9p -o trans=unix", "aname=token:"]
    {
        assert!(server.banner.contains(text), "{text}: {}", server.banner);
    }
    let mode = server.socket().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn without_arguments_the_current_directory_is_served_to_its_user() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("here"), "").unwrap();
    let server = Server::in_dir(dir, &["serve"]);
    assert!(server.dir.path().join("ninefold.sock").exists(), "{}", server.banner);
    // Without an address and environment, client and server use the same socket.
    let output = ninefold(server.dir.path()).arg("ls").output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    assert!(listed.lines().any(|line| line == "here"), "{listed}");
    let again = ninefold(server.dir.path()).arg("serve").stdout(Stdio::null()).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("another server is there already"));
}

#[test]
fn loopback_reads_and_the_token_writes() {
    let server = Server::start();
    std::fs::write(server.files().join("f"), "old").unwrap();
    let tcp = server.addr("tcp!");
    assert_eq!(server.ok(["cat", &format!("{tcp}/f")]), "old");
    let said = server.fails(["rm", &format!("{tcp}/f")]);
    assert!(said.contains("Read-only file system") && said.contains("--token"), "{said}");
    assert!(
        server.fails(["ls", "--token", "0123456789abcdef", &tcp]).contains("The token may be an old one")
    );
    server.ok(["rm", "--token", &server.token(), &format!("{tcp}/f")]);
    assert!(!server.files().join("f").exists());
}

#[test]
fn another_user_reads_over_loopback_what_modes_let_all_others_read() {
    if !rustix::process::geteuid().is_root() {
        not_covered("only root can be another user");
        return;
    }
    let start = |words: &[&str], mode| {
        let words: Vec<&str> = [&["--http=http!127.0.0.1!0"], words].concat();
        let server = Server::with(&words);
        common::chmod(server.dir.path(), 0o755);
        for (name, perm) in [("open", 0o644), ("secret", 0o600)] {
            std::fs::write(server.files().join(name), name).unwrap();
            common::chmod(&server.files().join(name), perm);
        }
        common::chmod(&server.files(), mode);
        server
    };
    // By 9P and by HTTP.
    let reads = |server: &Server, uid, name: &str| {
        let mut cat = server.client();
        cat.args(["cat", &format!("{}/{name}", server.addr("tcp!"))]).uid(uid).gid(uid);
        let cat = cat.output().unwrap().stdout == name.as_bytes();
        let addr = server.addr("http://").replace("http://", "");
        let mut http = std::process::Command::new("bash");
        http.args(["-c", "exec 3<>/dev/tcp/$0/$1; printf \"GET /$2 HTTP/1.0\r\n\r\n\" >&3; cat <&3"]);
        http.args(addr.trim_end_matches('/').split(':')).arg(name).uid(uid).gid(uid);
        let http = String::from_utf8(http.output().unwrap().stdout).unwrap();
        assert!(http.starts_with("HTTP/1.1 "), "{http}");
        assert_eq!(cat, http.contains(" 200 ") && http.ends_with(name), "{http}");
        cat
    };
    let both = |server: &Server, uid| ["open", "secret"].map(|name| reads(server, uid, name));
    let server = start(&[], 0o755);
    assert_eq!((both(&server, 0), both(&server, 65_534)), ([true, true], [true, false]));
    assert!(!server.log().contains("its mode is"), "{}", server.log());
    let server = start(&[], 0o700);
    assert_eq!((both(&server, 0), both(&server, 65_534)), ([true, true], [false, false]));
    for (who, as_other) in [("none", false), ("all", true)] {
        let server = start(&["--local-users", who], 0o700);
        assert_eq!((both(&server, 0), both(&server, 65_534)), ([true; 2], [as_other; 2]), "{who}");
    }
}

#[test]
fn a_client_that_only_claims_to_be_root_is_nobody_and_makes_plain_files() {
    if !rustix::process::geteuid().is_root() {
        not_covered("only root serves with the clients' rights");
        return;
    }
    use std::os::unix::fs::MetadataExt;
    let start = |words: &[&str]| {
        let words = [&["--as", "client", "--listen", "tcp!127.0.0.1!0 -insecure"], words].concat();
        let server = Server::with(&words);
        common::chmod(&server.files(), 0o777);
        server
    };
    let attach = |server: &Server| {
        let addr = server.banner.lines().rfind(|line| line.starts_with("tcp!")).unwrap();
        let client =
            blocking::Client::dial(&addr.parse().unwrap(), Duration::from_secs(60), Options::default());
        client.unwrap().attach("root", 0, "").unwrap()
    };
    let owner = |server: &Server, name: &str| server.files().join(name).metadata().unwrap().uid();
    let server = start(&[]);
    let root = attach(&server);
    let made = root.create("f", OpenFlags::WRITE, 0o666, nine_proto::NOGID).unwrap();
    assert_eq!(owner(&server, "f"), 65_534);
    let refused = |done: nine_io::client::Result<()>| assert_eq!(done.unwrap_err().errno(), Errno::EPERM);
    for mode in [0o4755, 0o2755] {
        refused(root.create("g", OpenFlags::WRITE, mode, nine_proto::NOGID).map(drop));
        refused(made.setattr(&SetAttr { mode: Some(mode), ..SetAttr::default() }));
    }
    refused(root.mkdir("d", 0o4777, nine_proto::NOGID).map(drop));
    // The set-group-ID bit of a directory grants no rights.
    root.mkdir("d", 0o2777, nine_proto::NOGID).unwrap();
    made.setattr(&SetAttr { mode: Some(0o1600), ..SetAttr::default() }).unwrap();
    assert!(!server.files().join("g").exists());
    let server = start(&["--squash", "no"]);
    let root = attach(&server);
    root.create("f", OpenFlags::WRITE, 0o4755, nine_proto::NOGID).unwrap();
    assert_eq!(owner(&server, "f"), 0);
    assert_eq!(server.files().join("f").metadata().unwrap().mode() & 0o7777, 0o4755);
}

#[test]
fn a_directory_that_is_closed_to_others_is_named_at_the_start() {
    let start = |words: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        common::chmod(dir.path(), 0o700);
        let line = [&["serve", ".", "--listen", "tcp!127.0.0.1!0"], words].concat();
        Server::in_dir(dir, &line).log()
    };
    let log = start(&[]);
    assert_eq!(
        log.matches("its mode is 0700, so over loopback only this user, root and").count(),
        1,
        "{log}"
    );
    let log = start(&["--local-users", "all"]);
    assert!(log.contains("its mode is 0700, and over loopback every user of this machine reads it"), "{log}");
    let log = start(&["--local-users=none"]);
    assert!(!log.contains("its mode is"), "{log}");
}

#[test]
fn a_read_only_server_changes_nothing_for_anybody() {
    let server = Server::with(&["--read-only"]);
    std::fs::write(server.files().join("f"), "").unwrap();
    assert!(server.fails(["rm", "/f"]).contains("Read-only file system"));
    assert!(server.fails(["mkdir", "/d"]).contains("Read-only file system"));
}

#[test]
fn a_tree_in_memory_is_a_server_too() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix!{}", dir.path().join("s").display());
    let server = Server::in_dir(dir, &["serve", "ram:1M", "--listen", &socket]);
    server.fed(&["write", "--create", "/f"], b"text");
    assert_eq!(server.ok(["cat", "/f"]), "text");
}

#[test]
fn a_tree_in_memory_refuses_a_write_when_there_is_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix!{}", dir.path().join("s").display());
    let mut server = Server::in_dir(dir, &["serve", "ram:8G", "--listen", &socket]);
    let addr: Addr = format!("unix!{}", server.socket().display()).parse().unwrap();
    let dial = || {
        let options = Options { msize: 1 << 20, ..Options::default() };
        let client = blocking::Client::dial(&addr, Duration::from_secs(60), options).unwrap();
        client.attach("", NOUID, "").unwrap()
    };
    let root = dial();
    // 256 MiB more than it has mapped now.
    let pid = Pid::from_child(&server.child);
    let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let mapped = pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
    let limit = Rlimit { current: Some(mapped + (256 << 20)), maximum: None };
    prlimit(Some(pid), Resource::As, limit).unwrap();
    let data = vec![b'x'; 1 << 19];
    // With one growing file, and with many files.
    for files in [1, 1024] {
        let mut refused = None;
        for n in 0..1024u64 {
            let file = format!("{files}-{}", n % files);
            let file = match n < files {
                true => root.create(file.as_str(), OpenFlags::RDWR, 0o600, nine_proto::NOGID),
                false => root.open(file.as_str(), OpenFlags::RDWR),
            };
            let offset = if files == 1 { n << 19 } else { 0 };
            refused = file.and_then(|file| file.write(offset, &data)).err();
            if refused.is_some() {
                break;
            }
        }
        let error = refused.expect("half a gigabyte has no room");
        assert!([Errno::ENOMEM, Errno::ENOSPC].contains(&error.errno()), "{error}");
        // It still serves new clients.
        let first = dial().open(format!("{files}-0").as_str(), OpenFlags::READ).unwrap();
        assert_eq!(&*first.read(0, 1).unwrap(), b"x");
        // A removed file releases its memory.
        first.remove().unwrap();
    }
    assert!(server.child.try_wait().unwrap().is_none(), "{}", server.log());
}

#[test]
fn sigterm_ends_it_in_order_and_takes_the_socket_along() {
    let mut server = Server::start();
    // A client with an idle connection.
    let mut idle = server.client().args(["write", "--create", "/f"]).stdin(Stdio::piped()).spawn().unwrap();
    let stream = UnixStream::connect(server.socket()).unwrap();
    let (status, rest) = server.stop();
    assert_eq!((status, rest.as_str()), (Some(0), ""), "{}", server.log());
    assert!(!server.socket().exists());
    drop((stream, idle.stdin.take()));
    idle.wait().unwrap();
}

#[test]
fn a_signal_during_the_start_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix!{}", dir.path().join("s").display());
    for _ in 0..20 {
        let mut serve = ninefold(dir.path());
        serve.args(["serve", "--listen", &socket]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = serve.spawn().unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        // Before it catches signals, one ends it at once; afterwards it shuts down in order.
        assert!(matches!(child.wait().unwrap().code(), None | Some(0)));
        assert!(!dir.path().join("s").exists());
    }
}

#[test]
fn a_second_server_on_a_socket_is_refused_and_a_dead_one_s_is_taken_over() {
    let mut server = Server::start();
    let socket = format!("unix!{}", server.socket().display());
    let second = server.fails(["serve", "--listen", &socket]);
    assert!(
        second.contains("ninefold: serve: ") && second.contains("a server answers here already"),
        "{second}"
    );
    assert_eq!(server.ok(["ls"]), "", "the first one still serves");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    assert!(server.socket().exists(), "it was killed");
    let dir = tempfile::tempdir().unwrap();
    let next = Server::in_dir(dir, &["serve", "--listen", &socket]);
    assert!(next.banner.contains("ready"));
}

#[test]
fn an_open_door_is_refused_unless_it_is_meant() {
    let server = Server::start();
    let said = server.fails(["serve", "--listen", "tcp!*!0"]);
    assert!(said.contains("read and change all files") && said.contains("-insecure"), "{said}");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "").unwrap();
    let open = Server::in_dir(dir, &["serve", "--listen", "tcp!*!0 -insecure"]);
    assert!(open.banner.contains("INSECURE") && open.log().contains("INSECURE"));
    let port = open.addr("tcp!*!").split('!').nth(2).unwrap().to_string();
    open.ok(["rm", &format!("9p://127.0.0.1:{port}/f")]);
    assert!(!open.dir.path().join("f").exists());
}

#[test]
fn wrong_words_are_explained() {
    let server = Server::start();
    for (line, text) in [
        (&["serve", "/no/such"][..], "/no/such: No such file or directory"),
        (&["serve", "a", "b"], "several servers"),
        (&["serve", "--listen", "tls!127.0.0.1!0"], "`ninefold keys init && ninefold keys server NAME`"),
        (&["serve", "--listen", "*:0"], "`ninefold keys init && ninefold keys server NAME`"),
    ] {
        let said = server.fails(line);
        assert!(said.contains(text), "{said}");
    }
    let output = server.run(["serve", "net:"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is no server"));
    let output = server.run(["serve", "a", "--http", "127.0.0.1:8080"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--http='http!127.0.0.1!8080'"));
    let output = server.run(["ls", "--token", "hunter2", "9p://127.0.0.1:1/"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("16 letters and digits"));
}

#[test]
fn a_flood_of_events_is_cut_in_the_log_and_counted() {
    const CLIENTS: usize = 300;
    let mut server = Server::start();
    for _ in 0..CLIENTS {
        UnixStream::connect(server.socket()).unwrap();
    }
    // Connects after all of them.
    server.ok(["ls"]);
    server.stop();
    let log = server.log();
    let held =
        |line: &str| -> Option<usize> { line.split("... and ").nth(1)?.split(' ').next()?.parse().ok() };
    let held_back: usize = log.lines().filter_map(held).sum();
    let shown = log.lines().filter(|line| line.contains(" connected ") || line.contains(" closed ")).count();
    // Each client connects and disconnects.
    assert_eq!(shown + held_back, 2 * (CLIENTS + 1), "{log}");
    assert!(held_back > 0, "{log}");
}

#[test]
fn the_log_can_be_json_and_names_connection_and_user() {
    let mut server = Server::with(&["--log", "debug", "--log-format", "json"]);
    server.ok(["ls"]);
    server.stop();
    let log = server.log();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let attached = lines.iter().find(|line| line["message"] == "attached").expect(&log);
    assert!(attached["conn"].is_u64() && attached["user"].is_string(), "{attached}");
}

/// Starts a server on loopback TLS, with a certificate in `cert.pem`.
fn tls(words: &[&str]) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    std::fs::write(dir.path().join("cert.pem"), made.cert.pem()).unwrap();
    common::secret(&dir.path().join("key.pem"), &made.signing_key.serialize_pem());
    std::fs::write(dir.path().join("f"), "secret").unwrap();
    let mut line = vec!["serve", "--cert", "cert.pem", "--key", "key.pem", "--listen", "tls!127.0.0.1!0"];
    line.extend(["--token-file", "token"]);
    line.extend(words);
    Server::in_dir(dir, &line)
}

#[test]
fn tls_on_loopback_reads_unless_certificates_count() {
    let server = tls(&[]);
    let port = server.addr("tls!").split('!').nth(2).unwrap().to_string();
    let readers =
        "other users of this machine what file modes let others read; clients with the token also write";
    assert!(server.banner.contains(readers), "{}", server.banner);
    let file = format!("9p+tls://localhost:{port}/f");
    assert_eq!(server.ok(["cat", "--ca", "cert.pem", &file]), "secret");
    let server = tls(&["--client-ca", "cert.pem"]);
    let port = server.addr("tls!").split('!').nth(2).unwrap().to_string();
    assert!(server.banner.contains("clients with a certificate or the token read and"), "{}", server.banner);
    let file = format!("9p+tls://localhost:{port}/f");
    let said = server.fails(["cat", "--ca", "cert.pem", &file]);
    assert!(said.contains("does not let us in") && said.contains("--token HEX"), "{said}");
    assert_eq!(server.ok(["cat", "--ca", "cert.pem", "--token-file", "token", &file]), "secret");
}

#[test]
fn who_does_not_come_in_is_told_what_to_try() {
    let server = tls(&[]);
    let port = server.addr("tls!").split('!').nth(2).unwrap().to_string();
    let said = server.fails(["ls", "--ca", "other.pem", &format!("9p+tls://localhost:{port}/")]);
    assert!(said.contains("other.pem: No such file"), "{said}");
    let other = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    std::fs::write(server.dir.path().join("other.pem"), other.cert.pem()).unwrap();
    let said = server.fails(["ls", "--ca", "other.pem", &format!("9p+tls://localhost:{port}/")]);
    assert!(said.contains("--pin FINGERPRINT") && !said.contains("another user"), "{said}");
    assert_eq!(said.matches(&port).count(), 1, "{said}");
    let said = server.fails(["ls", &format!("9p://127.0.0.1:{port}/")]);
    assert!(said.contains("try 9p+tls://"), "{said}");
}

#[test]
fn over_a_unix_socket_nobody_is_somebody_else() {
    if !rustix::process::geteuid().is_root() {
        not_covered("who serves may be anybody, and only root can be another user");
        return;
    }
    let server = Server::with(&["--as", "client", "--socket-mode", "666"]);
    common::chmod(server.dir.path(), 0o755);
    let mut ls = server.client();
    ls.args(["ls", "--user", "root"]).uid(65_534);
    let output = ls.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--user can name nobody else") && !said.contains("token"), "{said}");
}

#[test]
fn tls_needs_the_right_certificate_and_a_token() {
    let mut server = tls(&[]);
    let port = server.addr("tls!").split('!').nth(2).unwrap().to_string();
    let file = format!("9p+tls://localhost:{port}/f");
    assert_eq!(server.ok(["cat", "--ca", "cert.pem", "--token-file", "token", &file]), "secret");
    server.ok(["rm", "--ca", "cert.pem", "--token-file", "token", &file]);
    let said = server.fails(["ls", "--pin", &"ab".repeat(32), &file]);
    assert!(said.contains("certificate"), "{said}");
    let said = server.fails(["ls", &file]);
    assert!(said.contains("--ca FILE"), "{said}");
    // All clients have closed TLS properly.
    server.signal(Signal::TERM);
    assert!(server.child.wait().unwrap().success());
    let log = server.log();
    assert!(log.contains("closed by the client") && !log.contains("close_notify"), "{log}");
}

#[test]
fn sighup_reads_the_configuration_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("c.toml");
    std::fs::write(&config, "log = 'warn'\n").unwrap();
    let socket = format!("unix!{}", dir.path().join("s").display());
    let mut server = Server::in_dir(dir, &["serve", "--config", "c.toml", "--listen", &socket]);
    server.ok(["ls"]);
    assert_eq!(server.log(), "");
    std::fs::write(&config, "log = 'info'\n").unwrap();
    server.signal(Signal::HUP);
    while !server.log().contains("read again") {
        std::thread::yield_now();
    }
    server.ok(["ls"]);
    std::fs::write(&config, "lag = 'info'\n").unwrap();
    server.signal(Signal::HUP);
    while !server.log().contains("unknown field") {
        std::thread::yield_now();
    }
    assert_eq!(server.stop().0, Some(0));
    assert!(server.log().contains(" attached "));
}

#[test]
fn several_cores_share_the_clients_and_drain_together() {
    let mut server = Server::with(&["--cores", "3"]);
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
    std::fs::write(server.files().join("f"), &data).unwrap();
    let readers: Vec<_> = (0..12)
        .map(|_| server.client().args(["cat", "/f"]).stdout(Stdio::piped()).spawn().unwrap())
        .collect();
    for reader in readers {
        let output = reader.wait_with_output().unwrap();
        assert!(output.status.success() && output.stdout == data);
    }
    // Idle clients, some on each core, do not delay the end.
    let idle: Vec<_> = (0..6).map(|_| UnixStream::connect(server.socket()).unwrap()).collect();
    kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();
    assert!(server.child.wait().unwrap().success());
    assert!(!server.socket().exists());
    drop(idle);
}

#[test]
fn a_socket_for_others_needs_their_own_rights() {
    let dir = tempfile::tempdir().unwrap();
    let line = ["serve", "ram:", "--listen", "unix!s", "--socket-mode", "666"];
    let refused = ninefold(dir.path()).args(line).stdin(Stdio::null()).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--as client"));
    if !rustix::process::geteuid().is_root() {
        not_covered("--as client needs root");
        return;
    }
    let server = Server::with(&["--as", "client", "--socket-mode", "666"]);
    assert_eq!(server.socket().metadata().unwrap().permissions().mode() & 0o777, 0o666);
}
