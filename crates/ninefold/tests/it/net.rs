//! The network of a name space, as used by programs that only know files.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use nine_io::client::{Options, blocking};
use nine_net::{Addr, Env};
use nine_proto::{Dialect, Errno, NOUID, OpenFlags};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::common::{self, Server};

const LIMIT: Duration = Duration::from_secs(60);

fn serve(lines: &str, cores: &str) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("unix!{}", dir.path().join("s").display());
    std::fs::write(dir.path().join("home.ns"), lines).unwrap();
    std::fs::write(dir.path().join("policy"), "allow any unix!/*\ndeny any *!*!*\n").unwrap();
    Server::in_dir(dir, &["serve", "home.ns", "--listen", &listen, "--cores", cores])
}

/// Returns the root, for a client that stays connected.
fn root(server: &Server) -> blocking::File {
    let addr: Addr = format!("unix!{}", server.socket().display()).parse().unwrap();
    let client = blocking::Client::dial(&addr, LIMIT, Options::default()).unwrap();
    client.attach("", NOUID, "").unwrap()
}

/// Starts a web server that answers once, with the request.
fn web() -> (String, thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = thread::spawn(move || {
        let (mut call, _) = listener.accept().unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            call.read_exact(&mut byte).unwrap();
            asked.extend(byte);
        }
        call.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 300000\r\n\r\n").unwrap();
        call.write_all(&[b'x'; 300_000]).unwrap();
        String::from_utf8(asked).unwrap()
    });
    (format!("connect 127.0.0.1!{port}\n"), served)
}

#[test]
fn a_web_page_is_fetched_by_reading_and_writing_files() {
    for cores in ["1", "3"] {
        let server = serve("mount net: /net\n", cores);
        let root = root(&server);
        let (connect, web) = web();
        let ctl = root.open("net/tcp/clone", OpenFlags::RDWR).unwrap();
        assert_eq!(&*ctl.read(0, 100).unwrap(), b"0");
        assert_eq!(
            server.ok(["ls", "/net/tcp/0"]),
            "ctl\ndata\nerr\nlisten\nlocal\nremote\nstatus\n",
            "the files of a conversation"
        );
        server.fed(&["write", "/net/tcp/0/ctl"], connect.as_bytes());
        server.fed(&["write", "/net/tcp/0/data"], b"GET /page HTTP/1.0\r\nHost: here\r\n\r\n");
        let answer = server.ok(["cat", "/net/tcp/0/data"]);
        assert_eq!(web.join().unwrap(), "GET /page HTTP/1.0\r\nHost: here\r\n\r\n");
        let body = answer.strip_prefix("HTTP/1.0 200 OK\r\nContent-Length: 300000\r\n\r\n").expect("a head");
        assert!(body.len() == 300_000 && body.bytes().all(|byte| byte == b'x'));
        assert!(server.ok(["cat", "/net/tcp/0/status"]).starts_with("Close_wait "));
        assert_eq!(server.ok(["cat", "/net/tcp/0/remote"]), connect["connect ".len()..]);
        ctl.close().unwrap();
        assert_eq!(server.ok(["ls", "/net/tcp"]), "clone\nstats\n");
    }
}

#[test]
fn what_is_refused_is_said_in_words() {
    let server = serve("mount net: /net\nmount net:policy /strict\n", "1");
    let root = root(&server);
    let _ctl = root.open("net/tcp/clone", OpenFlags::RDWR).unwrap();
    let _strict = root.open("strict/tcp/clone", OpenFlags::RDWR).unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (net, text, said) in [
        ("/net", format!("connect 127.0.0.1!{closed}"), "connection refused"),
        (
            "/net",
            "connect 10.1.2.3!80".into(),
            "the policy of this server does not allow to dial tcp!10.1.2.3!80",
        ),
        ("/net", "fly".into(), "unknown control request"),
        (
            "/strict",
            "connect 127.0.0.1!80".into(),
            "the policy of this server does not allow to dial tcp!127.0.0.1!80",
        ),
    ] {
        let mut write = server.client();
        write.args(["write", &format!("{net}/tcp/0/ctl")]).stdin(Stdio::piped()).stderr(Stdio::null());
        let mut write = write.spawn().unwrap();
        write.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(!write.wait().unwrap().success(), "{text}");
        // The dialect has only numbers for errors; the text is in the file.
        assert_eq!(server.ok(["cat", &format!("{net}/tcp/0/err")]), said);
    }
    // A copy of a tree opens no files with side effects.
    let copied = server.run(["cp", "-r", ":/net", "copy"]);
    let said = String::from_utf8(copied.stderr).unwrap();
    assert!(copied.status.success(), "{said}");
    assert!(said.contains("/net/tcp/clone: an event is not copied"), "{said}");
    assert!(said.contains("/net/tcp/0/data: an event is not copied"), "{said}");
    assert_eq!(server.ok(["ls", "/net/tcp"]), "0\nclone\nstats\n");
}

#[test]
fn a_wrong_policy_ends_the_start() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("home.ns"), "mount net:policy /net\n").unwrap();
    std::fs::write(dir.path().join("policy"), "allow all\n").unwrap();
    let done =
        common::ninefold(dir.path()).args(["serve", "home.ns"]).current_dir(dir.path()).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(!done.status.success() && said.contains("policy: line 1: write allow|deny"), "{said}");
}

#[test]
fn a_changed_policy_is_followed_and_a_wrong_one_is_not() {
    let server = serve("mount net:policy /net\n", "1");
    let root = root(&server);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ctl = root.open("net/tcp/clone", OpenFlags::RDWR).unwrap();
    let is_asked = || {
        let error = ctl.write(0, format!("connect 127.0.0.1!{closed}").as_bytes()).unwrap_err();
        match error.errno() {
            Errno::EACCES => false,
            Errno::ECONNREFUSED => true,
            _ => panic!("{error}"),
        }
    };
    let until = |is_so: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < LIMIT, "it has not come");
        }
    };
    assert!(!is_asked());
    let policy = server.dir.path().join("policy");
    std::fs::write(&policy, "allow dial *!loopback!*\n").unwrap();
    until(&is_asked);
    std::fs::write(&policy, "allow nobody\n").unwrap();
    until(&|| {
        assert!(is_asked());
        server.log().contains("the policy stays as it was: line 1: write allow|deny")
    });
    assert!(is_asked());
}

#[test]
fn files_are_served_and_reached_by_il() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    let large: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(dir.path().join("files/large"), &large).unwrap();
    let unix = format!("unix!{}", dir.path().join("s").display());
    let listens = ["--listen", &unix, "--listen", "il!127.0.0.1!0 -insecure"];
    let served = Server::in_dir(dir, &[&["serve", "files"], &listens[..]].concat());
    let addr = served.addr("il!");
    assert!(
        served.run(["cat", &format!("{addr}/large")]).stdout == large,
        "what is read is not what is there"
    );
    let note = format!("{addr}/note");
    let (output, mut input) = std::io::pipe().unwrap();
    let mut write = served.client();
    let mut write = write.args(["write", "--create", &note]).stdin(output).spawn().unwrap();
    input.write_all(b"by il").unwrap();
    drop(input);
    assert!(write.wait().unwrap().success());
    assert_eq!(std::fs::read(served.files().join("note")).unwrap(), b"by il");
    // Also below a mux.
    let mux = serve(&format!("mount {addr} /n\n"), "1");
    assert!(
        mux.run(["cat", "/n/large"]).stdout == large,
        "what is read by way of the mux is not what is there"
    );
}

#[test]
#[ignore = "half a minute"]
fn ten_thousand_conversations_are_open_at_once() {
    const ALL: usize = 10_000;
    let limit = nine_net::rt::raise_nofile().unwrap();
    // One user may use half of the descriptors for conversations.
    assert!(limit / 2 >= ALL as u64, "this test wants {ALL} conversations, of {limit} descriptors");
    let server = serve("mount net: /net\n", "1");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("tcp!127.0.0.1!{}", listener.local_addr().unwrap().port());
    let accepts = thread::spawn(move || {
        let calls: Vec<_> = (0..ALL).map(|_| listener.accept().unwrap().0).collect();
        // Send each call its number, in the order of the calls.
        for (n, mut call) in calls.iter().enumerate() {
            call.write_all(&(n as u32).to_le_bytes()).unwrap();
        }
        calls
    });
    let addr: Addr = format!("unix!{}", server.socket().display()).parse().unwrap();
    nine_net::rt::block_on(async |env| {
        let socket = nine_net::Socket::connect(&addr, LIMIT).await.unwrap();
        let (client, driver) = nine_io::client::Client::connect(socket, Options::default()).await.unwrap();
        env.spawn(Box::pin(async { drop(driver.await) }));
        let root = client.attach("", NOUID, "").await.unwrap();
        let net = nine_io::client::Net::new(root.walk("net").await.unwrap());
        let mut calls = Vec::new();
        for _ in 0..ALL {
            calls.push(net.dial(&to).await.unwrap());
        }
        let stats = root.open("net/tcp/stats", OpenFlags::READ).await.unwrap().read(0, 100).await.unwrap();
        assert!(stats.starts_with(b"conversations 10000 of 20000\n"), "{stats:?}");
        let mut numbers = Vec::new();
        for call in &calls {
            let number = call.data.read(0, 100).await.unwrap();
            numbers.push(u32::from_le_bytes(number[..].try_into().unwrap()));
        }
        assert!(numbers.iter().copied().eq(0..ALL as u32), "each call has its own answer");
    })
    .unwrap();
    drop(accepts.join().unwrap());
}

#[test]
fn who_waits_for_what_does_not_come_holds_up_nobody() {
    const ALL: usize = 600;
    nine_net::rt::raise_nofile().unwrap();
    let server = serve("mount net: /net\n", "1");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("tcp!127.0.0.1!{}", listener.local_addr().unwrap().port());
    let accepts = thread::spawn(move || (0..ALL).map(|_| listener.accept().unwrap().0).collect::<Vec<_>>());
    let addr: Addr = format!("unix!{}", server.socket().display()).parse().unwrap();
    nine_net::rt::block_on(async |env| {
        let mut calls = Vec::new();
        let mut roots = Vec::new();
        for _ in 0..3 {
            let socket = nine_net::Socket::connect(&addr, LIMIT).await.unwrap();
            let (client, driver) =
                nine_io::client::Client::connect(socket, Options::default()).await.unwrap();
            env.spawn(Box::pin(async { drop(driver.await) }));
            roots.push(client.attach("", NOUID, "").await.unwrap());
            let net = nine_io::client::Net::new(roots.last().unwrap().walk("net").await.unwrap());
            for _ in 0..ALL / 3 {
                calls.push(net.dial(&to).await.unwrap());
            }
        }
        let mut others = accepts.join().unwrap();
        // Each has a large read in flight, which waits.
        let mut reads: Vec<_> = calls.iter().map(|call| Box::pin(call.data.read(0, 128 << 10))).collect();
        std::future::poll_fn(|cx| {
            assert!(reads.iter_mut().all(|read| read.as_mut().poll(cx).is_pending()));
            std::task::Poll::Ready(())
        })
        .await;
        // Other operations of all of them still work.
        for call in [&calls[0], &calls[ALL / 2], &calls[ALL - 1]] {
            assert!(!call.ctl.read(0, 10).await.unwrap().is_empty());
        }
        for at in [ALL - 1, ALL / 2, 7] {
            others[at].write_all(b"come").unwrap();
            assert_eq!(reads[at].as_mut().await.unwrap(), "come");
        }
        // Complete all other reads, in any order of waiting.
        for (n, other) in others.iter_mut().enumerate().filter(|(n, _)| ![ALL - 1, ALL / 2, 7].contains(n)) {
            other.write_all(&(n as u32).to_le_bytes()).unwrap();
        }
        for (n, read) in reads.iter_mut().enumerate().filter(|(n, _)| ![ALL - 1, ALL / 2, 7].contains(n)) {
            assert_eq!(read.as_mut().await.unwrap(), &(n as u32).to_le_bytes()[..]);
        }
    })
    .unwrap();
}

/// Limits a server to its current number of descriptors (`None`), or restores the given limit.
fn descriptors(server: &Server, limit: Option<Rlimit>) -> Rlimit {
    let pid = Pid::from_child(&server.child);
    let now = getrlimit(Resource::Nofile);
    let limit = limit.unwrap_or_else(|| {
        let has = |n: &u64| std::path::Path::new(&format!("/proc/{pid}/fd/{n}")).symlink_metadata().is_ok();
        Rlimit { current: (0..).find(|n| !has(n)), ..now }
    });
    prlimit(Some(pid), Resource::Nofile, limit).unwrap()
}

#[test]
fn without_descriptors_calls_are_refused_in_words_and_those_that_come_wait() {
    let server = serve("mount net: /net\n", "1");
    let addr: Addr = format!("unix!{}", server.socket().display()).parse().unwrap();
    nine_net::rt::block_on(async |env| {
        let socket = nine_net::Socket::connect(&addr, LIMIT).await.unwrap();
        let (client, driver) = nine_io::client::Client::connect(socket, Options::default()).await.unwrap();
        env.spawn(Box::pin(async { drop(driver.await) }));
        let root = client.attach("", NOUID, "").await.unwrap();
        let net = nine_io::client::Net::new(root.walk("net").await.unwrap());
        let served = net.announce("tcp!127.0.0.1!0").await.unwrap();
        let at = served.local().await.unwrap();
        let mut listen = Box::pin(served.listen());
        let before = descriptors(&server, None);
        let mut call = std::net::TcpStream::connect(at.replace('!', ":")).unwrap();
        for (network, words) in [
            ("tcp", format!("connect {at}")),
            ("tcp", "connect 127.0.0.1!9 0".into()),
            ("tcp", "announce 127.0.0.1!0".into()),
            ("udp", "connect 127.0.0.1!9".into()),
            ("udp", "announce 127.0.0.1!0".into()),
            ("il", "connect 127.0.0.1!9".into()),
            ("il", "announce 127.0.0.1!0".into()),
        ] {
            let ctl = root.open(format!("net/{network}/clone").as_str(), OpenFlags::RDWR).await.unwrap();
            let error = ctl.write(0, words.as_bytes()).await.unwrap_err();
            assert_eq!(error.errno(), Errno::EMFILE, "{network} {words}: {error}");
            let number = ctl.read(0, 100).await.unwrap();
            let err = format!("net/{network}/{}/err", String::from_utf8_lossy(&number));
            let said = root.open(err.as_str(), OpenFlags::READ).await.unwrap().read(0, 100).await.unwrap();
            assert!(said.starts_with(b"too many open files"), "{network} {words}: {said:?}");
        }
        // The incoming call stays queued until there is a descriptor for it.
        while !server.log().contains("new connections wait") {
            let waits =
                std::future::poll_fn(|cx| std::task::Poll::Ready(listen.as_mut().poll(cx).is_pending()));
            assert!(waits.await, "there was no descriptor");
            root.walk("net").await.unwrap();
        }
        descriptors(&server, Some(before));
        let there = listen.await.unwrap().accept().await.unwrap();
        call.write_all(b"it has waited").unwrap();
        assert_eq!(there.data.read(0, 100).await.unwrap(), "it has waited");
        assert_eq!(server.log().matches("new connections wait").count(), 1);
    })
    .unwrap();
}

#[test]
fn without_a_policy_the_network_is_the_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix!{}", dir.path().join("s").display());
    let lines = format!("listen {socket}\nlisten tcp!127.0.0.1!0 -insecure\nmount net: /net\n");
    std::fs::write(dir.path().join("home.ns"), lines).unwrap();
    let server = Server::in_dir(dir, &["serve", "home.ns"]);
    // The owner's uid proves nothing at this listener.
    let addr: Addr = server.addr("tcp").parse().unwrap();
    let options = Options { dialects: vec![Dialect::U], ..Options::default() };
    let client = blocking::Client::dial(&addr, LIMIT, options).unwrap();
    let stranger = client.attach("glenda", rustix::process::geteuid().as_raw(), "").unwrap();
    for file in ["net/tcp/clone", "net/udp/clone", "net/unix/clone", "net/cs", "net/dns"] {
        let error = stranger.open(file, OpenFlags::RDWR).unwrap_err();
        assert_eq!(error.errno(), Errno::EACCES, "{file}: {error}");
        root(&server).open(file, OpenFlags::RDWR).unwrap();
    }
}

#[test]
fn a_policy_that_others_can_change_or_that_is_a_fifo_ends_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy");
    for word in ["net", "part"] {
        std::fs::write(dir.path().join("home.ns"), format!("mount {word}:policy /x\n")).unwrap();
        let said = || {
            let mut serve = common::ninefold(dir.path());
            serve.args(["serve", "home.ns"]).current_dir(dir.path()).stderr(Stdio::piped());
            let mut child = serve.spawn().unwrap();
            let status = common::ended_within(&mut child, LIMIT);
            if status.is_none() {
                child.kill().unwrap();
            }
            let status = status.expect("it waits for a writer of the FIFO");
            assert!(!status.success(), "{word}");
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            said
        };
        std::fs::write(&policy, "").unwrap();
        common::chmod(&policy, 0o666);
        let refused = said();
        assert!(refused.contains("policy: others can change who may do what; try: chmod go-w"), "{refused}");
        std::fs::remove_file(&policy).unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &policy, kind, mode, 0).unwrap();
        let refused = said();
        assert!(refused.contains("policy: a regular file is due"), "{refused}");
        std::fs::remove_file(&policy).unwrap();
    }
}
