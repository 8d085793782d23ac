//! Channels of shared memory as users meet them: `shm!` in place of other addresses.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{Server, ended_within};

/// Starts a server with one listener.
fn served(line: &[&str]) -> Server {
    served_by("", line)
}

/// Like [`served`], with this option for how its channels wait.
fn served_by(way: &str, line: &[&str]) -> Server {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    let listen = format!("shm!{}{way}", dir.path().join("s").display());
    Server::in_dir(dir, &[&["serve", "--listen", &listen], line].concat())
}

/// Returns the address of a file on the server.
fn at(server: &Server, path: &str) -> String {
    format!("shm:{}/{path}", server.dir.path().join("s").display())
}

fn noise(len: usize) -> Vec<u8> {
    let mut seed = 88172645463325252u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as u8
    };
    (0..len).map(|_| next()).collect()
}

fn put(server: &Server, name: &str, bytes: &[u8]) -> PathBuf {
    let path = server.dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn files_go_to_and_fro_through_shared_memory() {
    let server = served(&["files"]);
    assert!(
        server.banner.contains("ninefold ls shm:/") && server.banner.contains("this user"),
        "{}",
        server.banner
    );
    let (big, odd) = (noise(9_000_001), noise(700));
    put(&server, "big", &big);
    put(&server, "odd", &odd);
    for (name, bytes) in [("big", &big), ("odd", &odd)] {
        server.ok(["cp", name, &at(&server, name)]);
        assert!(std::fs::read(server.files().join(name)).unwrap() == *bytes, "{name} came whole");
        server.ok(["cp", &at(&server, name), "back"]);
        assert!(std::fs::read(server.dir.path().join("back")).unwrap() == *bytes, "{name} came back whole");
    }
    assert_eq!(server.ok(["ls", &at(&server, "")]), "big\nodd\n");
    server.fed(&["write", "--create", &at(&server, "new")], b"words\n");
    assert_eq!(server.ok(["cat", &at(&server, "new")]), "words\n");
    let log = server.log();
    assert!(log.contains("attached") && log.contains("peer=shm!/"), "{log}");
}

#[test]
fn the_suite_of_cases_passes_over_a_channel() {
    let server = served(&["files"]);
    let said = server.ok(["check-server", &at(&server, "")]);
    let tallies: Vec<_> = said.lines().filter(|line| line.contains(" passed, 0 failed")).collect();
    assert_eq!(tallies.len(), 3, "{said}");
    // Some thousand channels were opened and closed.
    let fds = std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap().count();
    assert!(fds < 40, "{fds} descriptors are left");
}

#[test]
fn a_mux_has_a_channel_on_either_side() {
    let below = served(&["files"]);
    let dir = tempfile::tempdir().unwrap();
    let mount = format!("mount shm!{} /n/there\nmount cons: /dev\n", below.dir.path().join("s").display());
    std::fs::write(dir.path().join("home.ns"), mount).unwrap();
    let listen = format!("shm!{}", dir.path().join("s").display());
    let server = Server::in_dir(dir, &["serve", "home.ns", "--listen", &listen]);
    let bytes = noise(3_000_000);
    put(&server, "big", &bytes);
    server.ok(["cp", "big", &at(&server, "n/there/big")]);
    assert!(std::fs::read(below.files().join("big")).unwrap() == bytes);
    server.ok(["cp", &at(&server, "n/there/big"), "back"]);
    assert!(std::fs::read(server.dir.path().join("back")).unwrap() == bytes);
    server.fed(&["write", &at(&server, "dev/null")], &bytes);
    assert_eq!(server.ok(["cat", &at(&server, "dev/null")]), "");
}

#[test]
fn a_server_that_is_killed_is_noticed_by_who_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("home.ns"), "mount cons: /dev\n").unwrap();
    let listen = format!("shm!{}", dir.path().join("s").display());
    let mut server = Server::in_dir(dir, &["serve", "home.ns", "--listen", &listen]);
    // A read of the log never ends.
    let mut waits = server.client();
    waits.args(["cat", &at(&server, "dev/kprint")]).stdout(Stdio::null());
    let mut waits = waits.spawn().unwrap();
    while !server.log().contains("attached") {
        assert!(waits.try_wait().unwrap().is_none(), "{}", server.log());
        std::thread::yield_now();
    }
    server.signal(Signal::KILL);
    server.child.wait().unwrap();
    let ended = ended_within(&mut waits, Duration::from_secs(60));
    assert!(ended.is_some_and(|status| !status.success()));
    assert!(server.fails(["ls", &at(&server, "")]).contains("Is a server running there?"));
}

#[test]
fn who_connects_and_does_not_join_is_in_nobodys_way() {
    let server = served(&["files"]);
    let silent: Vec<_> = (0..50).map(|_| UnixStream::connect(server.dir.path().join("s")).unwrap()).collect();
    assert_eq!(server.ok(["ls", &at(&server, "")]), "");
    drop(silent);
    assert_eq!(server.ok(["ls", &at(&server, "")]), "");
}

#[test]
fn either_end_waits_as_it_is_told() {
    let bytes = noise(2_000_001);
    for way in ["poll", "interrupt", "adaptive"] {
        let server = served_by(&format!(" -{way}"), &["files"]);
        put(&server, "big", &bytes);
        server.ok(["cp", "--waits", way, "big", &at(&server, "there")]);
        assert!(std::fs::read(server.files().join("there")).unwrap() == bytes, "{way}");
        // A mount waits as the program's option selects, and a listener in a file as its line says.
        let dir = tempfile::tempdir().unwrap();
        let (above, below) = (dir.path().join("s"), server.dir.path().join("s"));
        let script = format!("mount shm!{} /n\nlisten shm!{} -{way}\n", below.display(), above.display());
        std::fs::write(dir.path().join("home.ns"), script).unwrap();
        std::fs::write(dir.path().join("config"), format!("[client]\nwaits = '{way}'\n")).unwrap();
        let mux = Server::in_dir(dir, &["serve", "home.ns", "--config", "config"]);
        mux.ok(["cp", &at(&mux, "n/there"), "back"]);
        assert!(std::fs::read(mux.dir.path().join("back")).unwrap() == bytes, "{way}");
    }
    let server = served(&["files"]);
    let wrong = [
        (&["ls", "--waits", "never"][..], "interrupt"),
        (&["serve", "--listen", "tcp!127.0.0.1!0 -poll", "files"], "channels of shared memory alone wait so"),
    ];
    for (line, says) in wrong {
        let output = server.client().args(line).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(says), "{line:?}: {said}");
    }
}

#[test]
fn who_dials_a_socket_of_another_kind_is_told_the_right_one() {
    let server = served(&["files"]);
    let said = server.fails(["ls", &at(&server, "").replacen("shm:", "unix:", 1)]);
    assert!(said.contains("dial it as shm!"), "{said}");

    let plain = server.dir.path().join("plain");
    let listen = format!("unix!{}", plain.display());
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    let _unix = Server::in_dir(dir, &["serve", "--listen", &listen, "files"]);
    let said = server.fails(["ls", &format!("shm:{}", plain.display())]);
    assert!(said.contains("has given no channel in 5 s") && said.contains("unix!"), "{said}");

    for (says, told) in [(&b""[..], "has hung up without giving"), (b"220 mail ready", "gives no channels")] {
        let path = server.dir.path().join(told.len().to_string());
        let listener = UnixListener::bind(&path).unwrap();
        let door = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.write_all(says).unwrap();
        });
        let said = server.fails(["ls", &format!("shm:{}", path.display())]);
        assert!(said.contains(told), "{said}");
        door.join().unwrap();
    }
}
