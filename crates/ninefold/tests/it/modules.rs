//! Modules that users push on live connections, over real sockets, with a relay between that records the bytes.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nine_io::client::{Options, blocking::Client};
use nine_proto::{NOGID, OpenFlags};

use crate::common::{self, Server, Stop};

/// The text to look for on the wire.
const SECRET: &[u8] = b"nobody between shall read this";

/// Starts a server with a certificate, on loopback.
fn far(more: &[&str]) -> Server {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("files")).unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    fs::write(dir.path().join("cert.pem"), made.cert.pem()).unwrap();
    common::secret(&dir.path().join("key.pem"), &made.signing_key.serialize_pem());
    let line =
        ["serve", "files", "--listen", "tcp!127.0.0.1!0 -insecure", "--cert", "cert.pem", "--key", "key.pem"];
    Server::in_dir(dir, &[&line, more].concat())
}

fn port(server: &Server) -> u16 {
    server.addr("tcp!").rsplit('!').next().unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// A listener that relays and records everything.
struct Relay {
    port: u16,
    seen: Arc<Mutex<Vec<u8>>>,
    connections: Arc<AtomicUsize>,
}

impl Relay {
    fn new(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, connections) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::<AtomicUsize>::default());
        let (keeps, counts) = (seen.clone(), connections.clone());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) =
                    (near.unwrap(), TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], to))).unwrap());
                counts.fetch_add(1, Ordering::Relaxed);
                for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)]
                {
                    let seen = keeps.clone();
                    std::thread::spawn(move || {
                        let mut buf = vec![0; 1 << 16];
                        while let Ok(n @ 1..) = from.read(&mut buf) {
                            seen.lock().unwrap().extend_from_slice(&buf[..n]);
                            if to.write_all(&buf[..n]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Self { port, seen, connections }
    }

    /// Returns the bytes since the previous call.
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn has_secret(seen: &[u8]) -> bool {
    seen.windows(SECRET.len()).any(|part| part == SECRET)
}

/// Starts a mux with these lines that trusts the far server's certificate.
fn mux(far: &Server, lines: &str) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join(".config/ninefold");
    fs::create_dir_all(&config).unwrap();
    let cert = far.dir.path().join("cert.pem");
    fs::write(config.join("config.toml"), format!("[client]\nca = '{}'\n", cert.display())).unwrap();
    let listen = format!("listen unix!{}\n", dir.path().join("s").display());
    fs::write(dir.path().join("home.ns"), format!("{listen}{lines}")).unwrap();
    Server::in_dir(dir, &["serve", "home.ns"])
}

#[test]
fn zstd_and_tls_are_pushed_while_the_files_are_used_and_no_byte_is_lost() {
    let far = far(&[]);
    let relay = Relay::new(port(&far));
    let server = format!("tcp!127.0.0.1!{}", relay.port);
    let mux = mux(&far, &format!("mount -n 2 {server} /far\n"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (mux, server, over, stop, relay) = (&mux, &*server, Stop(&stop), &stop, &relay);
        let users: Vec<_> = (0..3u8)
            .map(|user| {
                scope.spawn(move || {
                    let addr = format!("unix!{}", mux.socket().display()).parse().unwrap();
                    let client = Client::dial(&addr, Duration::from_secs(10), Options::default()).unwrap();
                    let root = client.attach("", nine_proto::NOUID, "").unwrap();
                    let file = root.walk("far").unwrap();
                    let file = file.create(user.to_string(), OpenFlags::RDWR, 0o644, NOGID).unwrap();
                    let mut rounds = 0u32;
                    while !stop.load(Ordering::Relaxed) || rounds < 3 {
                        let data: Vec<u8> =
                            (0..200_000u32).map(|at| ((at * (rounds + 7)) >> 5) as u8 ^ user).collect();
                        file.write_all_at(0, &data).unwrap();
                        let mut seen = vec![0; data.len()];
                        assert_eq!(file.read_at(0, &mut seen).unwrap(), data.len());
                        assert!(seen == data, "user {user}, round {rounds}");
                        rounds += 1;
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            for text in ["zstd", "tls localhost", "trace", "throttle 100M"] {
                let words: Vec<_> = ["mux", "push", server].into_iter().chain(text.split(' ')).collect();
                mux.ok(words);
            }
            let number = mux.ok(["ls", "/mux/servers"]).lines().last().unwrap().to_owned();
            let status = mux.ok(["cat", &format!("/mux/servers/{number}/status")]);
            assert!(status.contains("\nmodules zstd, tls localhost, trace, throttle 100M\n"), "{status}");
            assert!(mux.ok(["cat", &format!("/mux/servers/{number}/trace")]).contains(" bytes: "));
            relay.take();
            mux.fed(&["write", "--create", "/far/secret"], SECRET);
            assert_eq!(mux.ok(["cat", "/far/secret"]).as_bytes(), SECRET);
            assert!(!has_secret(&relay.take()), "it passed in plain under tls");
            for _ in 0..4 {
                mux.ok(["mux", "pop", server]);
            }
            assert_eq!(mux.ok(["cat", "/far/secret"]).as_bytes(), SECRET);
            assert!(has_secret(&relay.take()), "the relay sees nothing at all");
        }
        let said = mux.fails(["mux", "pop", server]);
        assert!(said.contains("there is no module to pop"), "{said}");
        drop(over);
        users.into_iter().for_each(|user| user.join().unwrap());
    });
    assert_eq!(relay.connections.load(Ordering::Relaxed), 2, "no connection was lost on the way");
}

#[test]
fn a_new_connection_begins_with_what_was_pushed() {
    let far = far(&[]);
    let relay = Relay::new(port(&far));
    let server = format!("tcp!127.0.0.1!{}", relay.port);
    // The push line may stand anywhere.
    let mux = mux(&far, &format!("mount {server} /far\npush {server} zstd 2\n"));
    let mounts = mux.ok(["cat", "/mux/mounts"]);
    assert!(mounts.starts_with(&format!("push {server} zstd 2\nmount {server} /far\n")), "{mounts}");
    let size = 8 << 20;
    fs::write(far.files().join("zeros"), vec![0; size]).unwrap();
    for _ in 0..2 {
        relay.take();
        let got = mux.run(["cat", "/far/zeros"]);
        assert!(got.status.success() && got.stdout == vec![0; size]);
        let passed = relay.take().len();
        assert!(passed < size / 50, "{passed} bytes for {size} zeros: something goes past zstd");
        mux.ok(["mux", "hangup", &server]);
    }
    mux.ok(["mux", "pop", &server]);
    assert!(!mux.ok(["cat", "/mux/mounts"]).contains("push"));
    let got = mux.run(["cat", "/far/zeros"]);
    assert!(got.status.success() && relay.take().len() > size, "the relay sees nothing at all");
}

#[test]
fn a_verb_pushes_before_it_says_anything_else() {
    let far = far(&[]);
    let relay = Relay::new(port(&far));
    fs::write(far.files().join("f"), SECRET).unwrap();
    let file = format!("9p://localhost:{}/f", relay.port);
    let cat = |more: &[&str]| far.run([&["cat"], more, &[&file]].concat());
    let output = cat(&["--push", "tls", "--ca", "cert.pem"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.stdout, SECRET);
    assert!(!has_secret(&relay.take()));
    let output = cat(&["--push", "zstd,trace", "--push", "throttle 1M"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no module is called \"trace\""));
    assert_eq!(cat(&["--push", "zstd,throttle 1M"]).stdout, SECRET);
    // A server that cannot be verified gets no secrets.
    let other = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    fs::write(far.dir.path().join("other.pem"), other.cert.pem()).unwrap();
    relay.take();
    for (more, said) in [
        (&["--push", "tls", "--ca", "other.pem"][..], "certificate"),
        (&["--push", "tls"], "--ca FILE"),
        (&["--push", "zstd 99"], "is no level"),
    ] {
        let output = cat(more);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && stderr.contains(said), "{more:?}: {stderr}");
        assert!(!has_secret(&relay.take()), "{more:?}");
    }
    // A server without a certificate, and its error text.
    let plain = Server::start();
    let said = plain.fails(["ls", "--push", "tls localhost", "--ca", "/dev/null", "/"]);
    assert!(said.contains("/dev/null"), "{said}");
    fs::copy(far.dir.path().join("cert.pem"), plain.dir.path().join("cert.pem")).unwrap();
    let said = plain.fails(["ls", "--push", "tls localhost", "--ca", "cert.pem", "/"]);
    assert!(said.contains("push tls localhost: "), "{said}");
}

#[test]
fn a_push_that_comes_to_nothing_is_told_and_changes_nothing() {
    let far = far(&[]);
    fs::write(far.files().join("f"), "here").unwrap();
    let server = format!("tcp!127.0.0.1!{}", port(&far));
    let mux = mux(&far, &format!("mount -n 2 {server} /far\n"));
    for (words, said) in [
        // The certificate is for another name, which is only detected in the TLS handshake.
        (&["tls", "example.org"][..], "certificate"),
        (&["zstd", "99"], "is no level"),
        (&["nothing"], "no module is called"),
    ] {
        let error = mux.fails([&["mux", "push", &server], words].concat());
        assert!(error.contains(said), "{words:?}: {error}");
        assert!(!mux.ok(["cat", "/mux/mounts"]).contains("push"));
        assert_eq!(mux.ok(["cat", "/far/f"]), "here");
    }
    mux.ok(["mux", "push", &server, "zstd"]);
    let error = mux.fails(["mux", "push", &server, "zstd"]);
    assert!(error.contains("zstd is there already"), "{error}");
    // A 9P server without modules.
    let bare = TcpListener::bind("127.0.0.1:0").unwrap();
    let bare = refusing(bare);
    let error = mux.fails(["ls", "--push", "zstd", &format!("9p://127.0.0.1:{}/", bare.0)]);
    assert!(error.contains("push zstd: "), "{error}");
}

#[test]
fn a_token_is_not_shown_before_the_tls_that_is_asked_for() {
    let far = far(&[]);
    for (push, shows) in
        [("tls", false), ("zstd,tls", false), (" tls localhost", false), ("zstd, tls", false), ("zstd", true)]
    {
        let (port, seen) = refusing(TcpListener::bind("127.0.0.1:0").unwrap());
        let addr = format!("9p://secrettokenofsome@localhost:{port}/");
        let said = far.fails(["ls", "--ca", "cert.pem", "--push", push, &addr]);
        assert!(said.contains("push "), "{push:?}: {said}");
        let seen = seen.lock().unwrap();
        // If encryption was not requested, the token is sent as without modules.
        assert_eq!(seen.windows(6).any(|part| part == b"secret"), shows, "{push:?}");
    }
}

/// Starts a 9P server that refuses attaches without a token, and records the messages.
fn refusing(listener: TcpListener) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let (port, seen) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<u8>>>::default());
    let keeps = seen.clone();
    std::thread::spawn(move || {
        let (mut conn, _) = listener.accept().unwrap();
        let mut size = [0; 4];
        while conn.read_exact(&mut size).is_ok() {
            let mut message = vec![0; u32::from_le_bytes(size) as usize - 4];
            conn.read_exact(&mut message).unwrap();
            keeps.lock().unwrap().extend_from_slice(&message);
            let tag = [message[1], message[2]];
            let (kind, body) = match message[0] {
                100 => (101, [&message[3..7], &[8, 0], b"9P2000.L"].concat()),
                // Tauth: return an afid.
                102 => (103, vec![0; 13]),
                118 => (119, message[message.len() - 4..].to_vec()),
                // Refuse everything else.
                _ => (7, 13u32.to_le_bytes().to_vec()),
            };
            let size = (7 + body.len() as u32).to_le_bytes();
            if conn.write_all(&[&size[..], &[kind], &tag, &body].concat()).is_err() {
                return;
            }
        }
    });
    (port, seen)
}

#[test]
fn a_file_has_no_data_connection_where_something_is_pushed() {
    let far = far(&[]);
    fs::write(far.files().join("big"), vec![7; 12 << 20]).unwrap();
    let file = format!("9p://127.0.0.1:{}/big", port(&far));
    let connections = |more: &[&str]| {
        let before = far.log().matches(" connected ").count();
        let got = far.run([&["cat"], more, &[&file]].concat());
        assert!(got.status.success() && got.stdout == vec![7; 12 << 20]);
        far.log().matches(" connected ").count() - before
    };
    assert_eq!(connections(&[]), 2);
    for module in ["zstd", "throttle 1G"] {
        assert_eq!(connections(&["--push", module]), 1, "{module}");
    }
    assert_eq!(connections(&[]), 2);
}

#[test]
fn a_listener_has_modules_of_its_own_and_wrong_lines_are_told() {
    let far = far(&[]);
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix!{}", dir.path().join("s").display());
    fs::write(dir.path().join("home.ns"), format!("push {socket} trace\nlisten {socket}\nmount ram: /x\n"))
        .unwrap();
    let server = Server::in_dir(dir, &["serve", "home.ns"]);
    let status = server.ok(["cat", "--aname", "#conversation", "/status"]);
    assert!(status.starts_with("trace ") && status.ends_with(" messages\n"), "{status}");
    let trace = server.ok(["cat", "--aname", "#conversation", "/trace"]);
    assert!(trace.lines().count() > 3 && trace.contains(" <- "), "{trace}");

    let lines = "mount ram: /x\nmount tcp!127.0.0.1!1 /y\npush\npush tcp!127.0.0.1!1\npush ram: zstd\n\
                 push tcp!127.0.0.1!1 nothing\npush tcp!127.0.0.1!2 zstd\npop tcp!127.0.0.1!1\n\
                 listen unix!t\npush unix!t zstd\npush unix!t throttle much\n";
    fs::write(far.dir.path().join("home.ns"), lines).unwrap();
    let said = far.fails(["serve", "home.ns"]);
    for wrong in [
        "home.ns:3:1: `push` with no word; write: push SERVER MODULE [ARGUMENTS]",
        "home.ns:4:1: `push` without a module",
        "home.ns:5:6: ram: is in this process",
        "home.ns:6:1: no module is called \"nothing\": there are fault throttle tls trace zstd",
        "home.ns:7:6: `tcp!127.0.0.1!2`: no line mounts or listens there",
        "home.ns:8:1: `pop` is for a mux that runs",
        "home.ns:10:13: `zstd`: a listener begins with",
        "home.ns:11:22: invalid size `much`",
    ] {
        assert!(said.contains(wrong), "{wrong}: {said}");
    }
}
