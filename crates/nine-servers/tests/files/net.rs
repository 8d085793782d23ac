//! The network as its clients see it: real sockets on the loopback, and a network in the test's hands where the world
//! would not do as it is told.

use std::future::{Future, pending, poll_fn, ready};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use nine_io::client::{self, Cancel, Client, File, Result};
use nine_io::server::FileServer;
use nine_net::rt::Real;
use nine_net::{Env, Peer, Pipe, Proof, Transport, pipe};
use nine_proto::{Dialect, Errno, OpenFlags};
use nine_servers::Net;
use nine_servers::net::{
    Announced, Call, Datagrams, End, Later, Network, Place, Policy, Setting, Tcp, Unix, Wire,
};

use crate::world::{ALL, connect, errno, list};

const RDWR: OpenFlags = OpenFlags::RDWR;
const READ: OpenFlags = OpenFlags::READ;

struct World {
    env: Real,
    server: Arc<Net>,
    held: Arc<Held>,
}

fn world(main: impl AsyncFnOnce(&World)) {
    // Names are looked up where more than the loopback may be reached.
    limited(1000, "allow any *!loopback!*\nallow dial held!10.9.9.9!1".parse().unwrap(), main);
}

fn limited(most: usize, policy: Policy, main: impl AsyncFnOnce(&World)) {
    nine_net::rt::block_on(async |env| {
        let held = Arc::<Held>::default();
        let networks: Vec<Arc<dyn Network>> = vec![
            Arc::new(Tcp),
            Arc::new(Datagrams::udp(env.clock())),
            Arc::new(Datagrams::il(env.clock())),
            Arc::new(Unix),
            held.clone(),
        ];
        let (server, driver) = Net::new(networks, policy, nine_net::modules::modules(), env.clock(), most);
        let ended = Arc::new(AtomicUsize::new(0));
        let counted = ended.clone();
        env.spawn(Box::pin(async move {
            driver.await;
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        let world = World { env, server: Arc::new(server), held };
        main(&world).await;
        let root = world.root().await;
        for network in ["tcp", "udp", "il", "unix", "held"] {
            until_gone(&root, network).await;
        }
        drop(root);
        drop(world);
        // Nobody waits for a server that has gone.
        until(|| ended.load(Ordering::Relaxed) == 1).await;
    })
    .expect("a runtime");
}

impl World {
    async fn root(&self) -> File {
        self.root_in(Dialect::L).await
    }

    async fn root_in(&self, dialect: Dialect) -> File {
        self.client(dialect).await.attach("", 0, "").await.expect("attached")
    }

    async fn client(&self, dialect: Dialect) -> Client {
        let server: Arc<dyn FileServer> = self.server.clone();
        connect(&self.env, server, dialect).await
    }
}

/// A network whose calls come and go when the test says so; a call is the end of a pipe, named by its number.
#[derive(Default)]
struct Held {
    dialled: AtomicUsize,
    dropped: Arc<AtomicUsize>,
    /// The other ends of calls that were made.
    others: Arc<Mutex<Vec<Pipe>>>,
    /// Calls that will be taken.
    calls: Arc<Mutex<Vec<Pipe>>>,
}

impl Network for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn resolve(&self, text: &str, _: bool) -> Later<io::Result<Vec<Place>>> {
        let places = match text.parse::<SocketAddr>() {
            Ok(at) => Ok(vec![Place::Ip(at)]),
            Err(_) if text == "many" => {
                Ok([9, 1].map(|port| Place::Ip(([127, 0, 0, 1], port).into())).into())
            }
            Err(_) => Err(io::Error::new(io::ErrorKind::NotFound, "can't translate address")),
        };
        Box::pin(ready(places))
    }

    /// Port 1 answers, 2 never does, 9 refuses.
    fn dial(&self, to: Place) -> Later<io::Result<Call>> {
        self.dialled.fetch_add(1, Ordering::Relaxed);
        let (others, going) = (self.others.clone(), Going(self.dropped.clone()));
        Box::pin(async move {
            let _going = going;
            match to {
                Place::Ip(at) if at.port() == 1 => {
                    let (near, far) = two();
                    others.lock().unwrap().push(far);
                    Ok(call(near))
                }
                Place::Ip(at) if at.port() == 2 => pending().await,
                _ => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        })
    }

    fn announce(&self, _: Place) -> Later<io::Result<Box<dyn Announced>>> {
        Box::pin(ready(Ok(Box::new(Calls(self.calls.clone())) as _)))
    }
}

struct Going(Arc<AtomicUsize>);

impl Drop for Going {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Calls(Arc<Mutex<Vec<Pipe>>>);

impl Announced for Calls {
    fn local(&self) -> String {
        "here!7".into()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Call>> {
        match self.0.lock().unwrap().pop() {
            Some(near) => Poll::Ready(Ok(call(near))),
            None => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

/// An end of a pipe as a call.
struct Held1(Pipe);

impl Transport for Held1 {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.poll_read(cx, buf)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, bufs)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_close(cx)
    }

    fn peer(&self) -> &Peer {
        self.0.peer()
    }
}

impl Wire for Held1 {
    fn set(&mut self, _: Setting) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn two() -> (Pipe, Pipe) {
    let peer = || Peer { addr: "held".into(), proof: Proof::None };
    pipe(peer(), peer())
}

fn call(near: Pipe) -> Call {
    Call { end: End::Bytes(Box::new(Held1(near))), local: "here!1".into(), remote: "there!2".into() }
}

async fn until(mut is_so: impl FnMut() -> bool) {
    poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if is_so() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

async fn until_gone(root: &File, network: &str) {
    loop {
        let names = list(&root.walk(network).await.unwrap()).await;
        if names == ["clone", "stats"] {
            return;
        }
    }
}

async fn text(file: &File) -> String {
    String::from_utf8(file.read(0, 8000).await.unwrap().to_vec()).unwrap()
}

async fn shown(dir: &File, name: &str) -> String {
    text(&dir.open(name, READ).await.unwrap()).await
}

/// A new conversation: its ctl, and its directory.
async fn made(root: &File, network: &str) -> (File, File) {
    let ctl = root.open(format!("{network}/clone").as_str(), RDWR).await.unwrap();
    let dir = root.walk(format!("{network}/{}", text(&ctl).await).as_str()).await.unwrap();
    (ctl, dir)
}

async fn say(ctl: &File, words: &str) -> Result<()> {
    ctl.write(0, words.as_bytes()).await.map(|n| assert_eq!(n as usize, words.len()))
}

/// Calls that are taken at an address of the loopback: ctl, directory, and `connect` with the port.
async fn announced(root: &File) -> (File, File, String) {
    let (ctl, dir) = made(root, "tcp").await;
    say(&ctl, "announce 127.0.0.1!0").await.unwrap();
    let local = shown(&dir, "local").await;
    let port: u16 = local.trim_end().strip_prefix("127.0.0.1!").expect("an address").parse().expect("a port");
    (ctl, dir, format!("connect 127.0.0.1!{port}"))
}

#[test]
fn a_call_is_made_taken_used_and_ended_in_every_dialect() {
    world(async |world| {
        for dialect in ALL {
            let root = world.root_in(dialect).await;
            assert_eq!(list(&root).await, ["cs", "dns", "held", "il", "tcp", "udp", "unix"]);
            let (served, serving, connect) = announced(&root).await;
            assert!(shown(&serving, "status").await.starts_with("Listen "));
            let (ctl, dir) = made(&root, "tcp").await;
            assert!(shown(&dir, "status").await.starts_with("Closed "));
            assert_eq!(
                list(&dir).await,
                ["ctl", "data", "err", "listen", "local", "remote", "status"],
                "the files of a conversation"
            );
            say(&ctl, &format!("{connect}\n")).await.unwrap();
            assert!(shown(&dir, "status").await.starts_with("Established "));
            let taken = serving.open("listen", RDWR).await.unwrap();
            let other = root.walk(format!("tcp/{}", text(&taken).await).as_str()).await.unwrap();
            assert_eq!(taken.qid(), other.walk("ctl").await.unwrap().qid(), "it is the ctl of the call");
            assert_eq!(shown(&dir, "local").await, shown(&other, "remote").await);
            assert_eq!(shown(&dir, "remote").await, shown(&serving, "local").await);
            say(&taken, &format!("accept {}", text(&taken).await)).await.unwrap();

            let (a, b) = (dir.open("data", RDWR).await.unwrap(), other.open("data", RDWR).await.unwrap());
            a.write(0, b"hello").await.unwrap();
            assert_eq!(b.read(0, 100).await.unwrap(), "hello");
            b.write(77, b"hello yourself").await.unwrap();
            assert_eq!(a.read(99, 5).await.unwrap(), "hello", "an offset means nothing");
            assert_eq!(a.read(0, 100).await.unwrap(), " yourself");
            let status = shown(&dir, "status").await;
            assert!(status.contains(" in 14 out 5"), "{status}");
            say(&taken, "hangup").await.unwrap();
            assert_eq!(a.read(0, 100).await.unwrap(), "", "the end");
            assert!(shown(&dir, "status").await.starts_with("Close_wait "));
            assert_eq!(b.read(0, 100).await.unwrap(), "");
            assert!(b.write(0, b"x").await.is_err(), "hung up");
            say(&served, "hangup").await.unwrap();
            assert!(serving.open("listen", RDWR).await.is_err(), "nobody listens any more");
        }
    });
}

#[test]
fn what_is_refused_is_told_and_the_conversation_can_be_used_again() {
    world(async |world| {
        let root = world.root_in(Dialect::U).await;
        let (served, _, connect) = announced(&root).await;
        drop(served);
        until_gone(&root, "tcp").await;
        let (ctl, dir) = made(&root, "tcp").await;
        let error = say(&ctl, &connect).await.unwrap_err();
        assert_eq!(
            (error.errno(), error.to_string().contains("connection refused")),
            (Errno::ECONNREFUSED, true)
        );
        let err = dir.open("err", READ).await.unwrap();
        assert_eq!(text(&err).await, "connection refused");
        let data = dir.open("data", RDWR).await.unwrap();
        assert_eq!(errno(data.read(0, 1).await), Errno::ENOTCONN);
        let error = say(&ctl, "connect 127.0.0.1").await.unwrap_err();
        assert!(error.to_string().contains("ADDRESS!PORT"), "{error}");
        let error = say(&ctl, "connect 127.0.0.1!no-such-service").await.unwrap_err();
        assert!(error.to_string().contains("unknown service no-such-service"), "{error}");
        let (_keeps, _, connect) = announced(&root).await;
        say(&ctl, &connect).await.unwrap();
        let error = say(&ctl, &connect).await.unwrap_err();
        assert!(error.to_string().contains("connection in use"), "{error}");
        assert_eq!(text(&err).await, "");
        for (words, says) in [
            ("", "short control request"),
            ("\n", "short control request"),
            ("dance", "unknown control request"),
            ("connect", "an address is due"),
            ("connect 1.2.3.4!1 5000", "cannot be chosen"),
            ("ttl many", "a number from 0 to 255"),
            ("a\nb", "one control request"),
            ("push nothing", "no module is called"),
            ("pop", "no module to pop"),
        ] {
            let error = say(&ctl, words).await.unwrap_err();
            assert!(error.to_string().contains(says), "{words:?}: {error}");
        }
        for words in ["keepalive", "keepalive 5000", "ttl 7", "tos 16"] {
            say(&ctl, words).await.unwrap();
        }
        // Any bytes at all.
        for seed in 0..500_u32 {
            let bytes: Vec<u8> =
                (0..seed % 40).map(|i| (seed.wrapping_mul(2_654_435_761) >> (i % 24)) as u8).collect();
            let _ = ctl.write(0, &bytes).await;
        }
        assert!(ctl.write(0, &[b'a'; 5000]).await.is_err());
        assert!(shown(&dir, "status").await.starts_with("Established "));
    });
}

#[test]
fn what_the_policy_forbids_is_never_dialled() {
    world(async |world| {
        let root = world.root_in(Dialect::U).await;
        let (ctl, _) = made(&root, "held").await;
        let error = say(&ctl, "connect 10.0.0.1:1").await.unwrap_err();
        assert_eq!(error.errno(), Errno::EACCES);
        assert!(error.to_string().contains("does not allow to dial held!10.0.0.1!1"), "{error}");
        assert_eq!(errno(say(&ctl, "announce 10.0.0.1:1").await), Errno::EACCES);
        assert_eq!(world.held.dialled.load(Ordering::Relaxed), 0);
        let (ctl, _) = made(&root, "tcp").await;
        assert_eq!(errno(say(&ctl, "announce *!0").await), Errno::EACCES);
        assert_eq!(errno(say(&ctl, "announce 0").await), Errno::EACCES);
        let (ctl, _) = made(&root, "unix").await;
        assert_eq!(errno(say(&ctl, "connect /run/anything").await), Errno::EACCES);
        // The next place of a name is tried.
        let (ctl, dir) = made(&root, "held").await;
        say(&ctl, "connect many").await.unwrap();
        assert_eq!(world.held.dialled.load(Ordering::Relaxed), 2);
        assert_eq!(shown(&dir, "remote").await, "there!2\n");
        let error = say(&made(&root, "held").await.0, "connect nobody").await.unwrap_err();
        assert!(error.to_string().contains("can't translate address"), "{error}");
    });
}

/// Polls a request until it has arrived, and flushes it.
async fn flushed<T>(
    world: &World,
    arrived: impl Fn() -> bool,
    request: impl Future<Output = Result<T>>,
) -> Errno {
    let cancel = Cancel::default();
    let mut request = pin!(cancel.clone().scope(Box::pin(request)));
    let first = poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if arrived() {
            cancel.cancel();
        }
        request.as_mut().poll(cx)
    });
    let _ = world;
    errno(first.await)
}

#[test]
fn a_blocked_connect_read_or_listen_is_flushed_at_once() {
    world(async |world| {
        for dialect in ALL {
            let root = world.root_in(dialect).await;
            let (ctl, dir) = made(&root, "held").await;
            let (dialled, dropped) = (world.held.dialled.load(Ordering::Relaxed), &world.held.dropped);
            let before = dropped.load(Ordering::Relaxed);
            let arrived = || world.held.dialled.load(Ordering::Relaxed) > dialled;
            assert_eq!(flushed(world, arrived, say(&ctl, "connect 127.0.0.1:2")).await, Errno::EINTR);
            assert_eq!(dropped.load(Ordering::Relaxed), before + 1, "the dial is given up");
            assert!(shown(&dir, "status").await.starts_with("Closed "));
            // While it is under way ctl and status can be read.
            let mut connect = pin!(say(&ctl, "connect 127.0.0.1:2"));
            let mut status = String::new();
            while !status.starts_with("Syn_sent ") {
                let mut shown = pin!(shown(&dir, "status"));
                status = poll_fn(|cx| {
                    assert!(connect.as_mut().poll(cx).is_pending());
                    shown.as_mut().poll(cx)
                })
                .await;
            }
            say(&ctl, "hangup").await.unwrap();
            assert!(connect.await.is_err());

            let (ctl, dir) = made(&root, "held").await;
            say(&ctl, "connect 127.0.0.1:1").await.unwrap();
            let data = dir.open("data", RDWR).await.unwrap();
            let polls = AtomicUsize::new(0);
            let some = || polls.fetch_add(1, Ordering::Relaxed) > 50;
            assert_eq!(flushed(world, some, data.read(0, 10)).await, Errno::EINTR);
            let mut other = world.held.others.lock().unwrap().pop().unwrap();
            sent(&mut other, b"for the next").await;
            assert_eq!(data.read(0, 100).await.unwrap(), "for the next", "the flushed one has taken nothing");

            let (ctl, dir) = made(&root, "held").await;
            say(&ctl, "announce 127.0.0.1:7").await.unwrap();
            let polls = AtomicUsize::new(0);
            let some = || polls.fetch_add(1, Ordering::Relaxed) > 50;
            assert_eq!(flushed(world, some, dir.open("listen", RDWR)).await, Errno::EINTR);
            let (near, _far) = two();
            world.held.calls.lock().unwrap().push(near);
            let taken = dir.open("listen", RDWR).await.unwrap();
            assert!(text(&taken).await.parse::<u64>().is_ok());
            // Who waits for a call when the place goes is told.
            let mut listen = pin!(dir.open("listen", RDWR));
            let mut status = String::new();
            while !status.contains(" listen 1 ") {
                let mut shown = pin!(shown(&dir, "status"));
                status = poll_fn(|cx| {
                    assert!(listen.as_mut().poll(cx).is_pending());
                    shown.as_mut().poll(cx)
                })
                .await;
            }
            drop(ctl);
            assert!(listen.await.is_err());
        }
    });
}

async fn sent(to: &mut impl Transport, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let n = poll_fn(|cx| to.poll_write(cx, &[io::IoSlice::new(bytes)])).await.unwrap();
        bytes = &bytes[n..];
    }
}

async fn received(from: &mut impl Transport, n: usize) -> Vec<u8> {
    let mut buf = vec![0; n];
    let mut had = 0;
    while had < n {
        match poll_fn(|cx| from.poll_read(cx, &mut buf[had..])).await.unwrap() {
            0 => break,
            more => had += more,
        }
    }
    buf.truncate(had);
    buf
}

#[test]
fn a_write_that_is_flushed_says_how_much_of_it_has_gone() {
    world(async |world| {
        let root = world.root().await;
        let (ctl, dir) = made(&root, "held").await;
        say(&ctl, "connect 127.0.0.1:1").await.unwrap();
        let data = dir.open("data", RDWR).await.unwrap();
        let mut other = world.held.others.lock().unwrap().pop().unwrap();
        // More than a pipe keeps: the rest waits.
        let whole: Vec<u8> = (0..700_000_u32).map(|n| n as u8).collect();
        let mut gone = 0;
        loop {
            let cancel = Cancel::default();
            let piece = &whole[gone..];
            let mut write = pin!(cancel.clone().scope(Box::pin(data.write(0, piece))));
            let mut polls = 0;
            let wrote = poll_fn(|cx| {
                cx.waker().wake_by_ref();
                polls += 1;
                if polls > 200 {
                    cancel.cancel();
                }
                write.as_mut().poll(cx)
            })
            .await;
            match wrote {
                Ok(n) => gone += n as usize,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::EINTR);
                    break;
                }
            }
        }
        assert!((256 << 10..whole.len()).contains(&gone), "{gone}");
        let mut write = pin!(data.write(0, &whole[gone..gone + 10]));
        let got = {
            let mut received = pin!(received(&mut other, gone + 10));
            let mut wrote = false;
            poll_fn(|cx| {
                wrote = wrote || write.as_mut().poll(cx).is_ready();
                received.as_mut().poll(cx)
            })
            .await
        };
        assert_eq!(got, &whole[..gone + 10]);
    });
}

#[test]
fn who_opens_clone_and_never_closes_takes_half_and_no_more() {
    limited(100, Policy::default(), async |world| {
        let as_user = async |uid| world.client(Dialect::L).await.attach("", uid, "").await.unwrap();
        let (greedy, again, other) = (as_user(1000).await, as_user(1000).await, as_user(1001).await);
        let mut had = Vec::new();
        loop {
            match greedy.open("tcp/clone", RDWR).await {
                Ok(ctl) => had.push(ctl),
                Err(error) => {
                    assert_eq!(error.errno(), Errno::ENFILE);
                    break;
                }
            }
        }
        assert_eq!(had.len(), 50);
        for _ in 0..10_000 - had.len() {
            assert!(again.open("tcp/clone", RDWR).await.is_err());
        }
        assert_eq!(errno(other.open("tcp/clone", READ).await), Errno::EACCES, "who may only read");
        let (_ctl, dir) = made(&other, "tcp").await;
        assert_eq!(shown(&other, "tcp/stats").await, "conversations 51 of 100\nmade 51\n");
        drop(dir);
        had.clear();
        drop((greedy, again));
        until_one(&other).await;
    });
}

async fn until_one(root: &File) {
    while !shown(root, "tcp/stats").await.starts_with("conversations 1 of") {}
}

#[test]
fn a_conversation_is_its_openers() {
    world(async |world| {
        let client = world.client(Dialect::L).await;
        let (mine, yours) =
            (client.attach("", 1000, "").await.unwrap(), client.attach("", 1001, "").await.unwrap());
        let (ctl, dir) = made(&mine, "tcp").await;
        let number = text(&ctl).await;
        for file in ["ctl", "data", "err", "listen"] {
            let path = format!("tcp/{number}/{file}");
            let how = if file == "err" { READ } else { RDWR };
            assert_eq!(errno(yours.open(path.as_str(), how).await), Errno::EACCES, "{file}");
        }
        assert!(shown(&yours, &format!("tcp/{number}/status")).await.starts_with("Closed "));
        dir.open("ctl", RDWR).await.unwrap();
        // What has gone is not found, whoever looks.
        drop(ctl);
        until_gone(&mine, "tcp").await;
        assert_eq!(errno(mine.walk(format!("tcp/{number}").as_str()).await), Errno::ENOENT);
    });
}

#[test]
fn modules_are_pushed_by_ctl() {
    world(async |world| {
        let root = world.root_in(Dialect::U).await;
        let (_served, serving, connect) = announced(&root).await;
        let (ctl, dir) = made(&root, "tcp").await;
        say(&ctl, &connect).await.unwrap();
        let taken = serving.open("listen", RDWR).await.unwrap();
        let other = root.walk(format!("tcp/{}", text(&taken).await).as_str()).await.unwrap();
        for end in [&ctl, &taken] {
            say(end, "push zstd 3").await.unwrap();
        }
        assert!(shown(&dir, "status").await.lines().nth(1).is_some_and(|line| line.starts_with("zstd")));
        let (a, b) = (dir.open("data", RDWR).await.unwrap(), other.open("data", RDWR).await.unwrap());
        a.write(0, &[7; 100_000]).await.unwrap();
        let mut had = 0;
        while had < 100_000 {
            let bytes = b.read(0, 100_000).await.unwrap();
            assert!(!bytes.is_empty() && bytes.iter().all(|&byte| byte == 7));
            had += bytes.len();
        }
        for end in [&ctl, &taken] {
            say(end, "pop").await.unwrap();
        }
        b.write(0, b"plain").await.unwrap();
        assert_eq!(a.read(0, 100).await.unwrap(), "plain");
        // What has been written arrives, whoever closes first.
        for end in [&ctl, &taken] {
            say(end, "push zstd").await.unwrap();
        }
        a.write(0, b"last words").await.unwrap();
        drop((a, ctl, dir));
        assert_eq!(b.read(0, 100).await.unwrap(), "last words");
        assert_eq!(b.read(0, 100).await.unwrap(), "");
    });
}

#[test]
fn unix_sockets_are_called_by_their_paths() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let policy = format!("allow any unix!{}/*", dir.path().display()).parse().unwrap();
    limited(10, policy, async |world| {
        let root = world.root().await;
        let (served, serving) = made(&root, "unix").await;
        say(&served, &format!("announce {}", path.display())).await.unwrap();
        assert_eq!(shown(&serving, "local").await, format!("{}\n", path.display()));
        let (ctl, dir) = made(&root, "unix").await;
        say(&ctl, &format!("connect {}", path.display())).await.unwrap();
        let taken = serving.open("listen", RDWR).await.unwrap();
        let other = root.walk(format!("unix/{}", text(&taken).await).as_str()).await.unwrap();
        assert_eq!(shown(&dir, "remote").await, format!("{}\n", path.display()));
        dir.open("data", RDWR).await.unwrap().write(0, b"hi").await.unwrap();
        assert_eq!(other.open("data", RDWR).await.unwrap().read(0, 9).await.unwrap(), "hi");
        assert_eq!(errno(say(&ctl, "tos 3").await), Errno::EOPNOTSUPP);
        drop(served);
        until(|| !path.exists()).await;
    });
}

#[test]
fn cs_says_what_to_open_and_what_to_write_there() {
    world(async |world| {
        for dialect in ALL {
            let root = world.root_in(dialect).await;
            let cs = root.open("cs", RDWR).await.unwrap();
            for (question, answer) in [
                ("tcp!127.0.0.1!80", "/net/tcp/clone 127.0.0.1!80"),
                ("net!127.0.0.1!564\n", "/net/tcp/clone 127.0.0.1!564"),
                ("net!127.0.0.1!9fs", "/net/tcp/clone 127.0.0.1!564"),
                ("tcp!*!8080", "/net/tcp/clone *!8080"),
                ("127.0.0.1", "/net/tcp/clone 127.0.0.1"),
                ("tcp!::1!80", "/net/tcp/clone ::1!80"),
                ("unix!/run/x!y", "/net/unix/clone /run/x!y"),
            ] {
                cs.write(5, question.as_bytes()).await.unwrap();
                let first = cs.read(0, 200).await.unwrap();
                assert_eq!(first, answer, "{question}");
                assert_eq!(cs.read(first.len() as u64, 200).await.unwrap(), "", "no more");
                assert_eq!(cs.read(5, 3).await.unwrap(), &answer[5..8]);
            }
            for (question, says) in [
                ("snail!host!1", "unknown network snail: there are net, tcp, udp, il, unix"),
                ("!sys=helix ip", "no network database"),
                ("tcp!", "NETWORK!HOST!SERVICE"),
                ("tcp!127.0.0.1!nothing", "unknown service nothing"),
            ] {
                let error = cs.write(0, question.as_bytes()).await.unwrap_err();
                assert!(dialect.is_l() || error.to_string().contains(says), "{question}: {error}");
                assert_eq!(cs.read(0, 200).await.unwrap(), "", "the old answer has gone");
            }
            let dns = root.open("dns", RDWR).await.unwrap();
            dns.write(0, b"127.0.0.1 ip").await.unwrap();
            assert_eq!(dns.read(0, 200).await.unwrap(), "127.0.0.1 ip 127.0.0.1");
            assert!(dns.write(0, b"localhost mx").await.is_err());
        }
    });
}

#[test]
fn a_thousand_conversations_are_open_at_once() {
    limited(4000, Policy::default(), async |world| {
        nine_net::rt::raise_nofile().unwrap();
        let root = world.root().await;
        let (_served, serving, connect) = announced(&root).await;
        let mut ends = Vec::new();
        for _ in 0..900 {
            let (ctl, dir) = made(&root, "tcp").await;
            say(&ctl, &connect).await.unwrap();
            let taken = serving.open("listen", RDWR).await.unwrap();
            let other = root.walk(format!("tcp/{}", text(&taken).await).as_str()).await.unwrap();
            ends.push((ctl, dir.open("data", RDWR).await.unwrap(), other.open("data", RDWR).await.unwrap()));
        }
        for (n, (_, a, _)) in ends.iter().enumerate() {
            a.write(0, n.to_string().as_bytes()).await.unwrap();
        }
        for (n, (.., b)) in ends.iter().enumerate().rev() {
            assert_eq!(b.read(0, 10).await.unwrap(), n.to_string());
        }
    });
}

#[test]
fn programs_dial_announce_listen_accept_and_reject_over_any_client() {
    world(async |world| {
        for dialect in ALL {
            let net = client::Net::new(world.root_in(dialect).await);
            let served = net.announce("tcp!127.0.0.1!0").await.unwrap();
            let at = served.local().await.unwrap();
            let here = net.dial(&format!("tcp!{at}")).await.unwrap();
            let there = served.listen().await.unwrap().accept().await.unwrap();
            assert_eq!(here.remote().await.unwrap(), at);
            assert_eq!(here.local().await.unwrap(), there.remote().await.unwrap());
            here.data.write(0, b"hi").await.unwrap();
            assert_eq!(there.data.read(0, 9).await.unwrap(), "hi");
            here.hangup().await.unwrap();
            assert_eq!(there.data.read(0, 9).await.unwrap(), "");

            let here = net.dial(&format!("net!{at}")).await.unwrap();
            served.listen().await.unwrap().reject("not today").await.unwrap();
            assert_eq!(here.data.read(0, 9).await.unwrap(), "");
            drop(served);
            let refused = async || net.dial(&format!("tcp!{at}")).await.map(drop);
            while refused().await.is_ok() {}
            assert_eq!(errno(refused().await), Errno::ECONNREFUSED);
            assert!(net.dial("snail!host!1").await.is_err());
        }
    });
}

#[test]
fn what_was_written_arrives_though_the_writer_has_left_something_unread() {
    world(async |world| {
        let root = world.root().await;
        let (_served, serving, connect) = announced(&root).await;
        for _ in 0..20 {
            let (ctl, dir) = made(&root, "tcp").await;
            say(&ctl, &connect).await.unwrap();
            let taken = serving.open("listen", RDWR).await.unwrap();
            let other = root.walk(format!("tcp/{}", text(&taken).await).as_str()).await.unwrap();
            let (a, b) = (dir.open("data", RDWR).await.unwrap(), other.open("data", RDWR).await.unwrap());
            a.write(0, b"a question, and more").await.unwrap();
            assert_eq!(b.read(0, 10).await.unwrap(), "a question");
            b.write(0, &[7; 200_000]).await.unwrap();
            drop((b, taken, other));
            let mut had = 0;
            loop {
                let bytes = a.read(0, 50_000).await.unwrap();
                if bytes.is_empty() {
                    break;
                }
                had += bytes.len();
            }
            assert_eq!(had, 200_000);
        }
    });
}

#[test]
fn il_carries_messages_in_order_and_says_who_does_not_answer() {
    world(async |world| {
        for dialect in ALL {
            let net = client::Net::new(world.root_in(dialect).await);
            let served = net.announce("il!127.0.0.1!0").await.unwrap();
            let at = served.local().await.unwrap();
            let here = net.dial(&format!("il!{at}")).await.unwrap();
            let there = served.listen().await.unwrap().accept().await.unwrap();
            assert_eq!(here.remote().await.unwrap(), at);
            assert!(shown(&here.dir, "status").await.contains("\nil "), "its module has a line");
            for n in 0..300_u32 {
                here.data.write(0, &n.to_le_bytes()).await.unwrap();
                if n % 3 == 0 {
                    there.data.write(0, &n.to_le_bytes()).await.unwrap();
                }
            }
            for n in 0..300_u32 {
                assert_eq!(
                    there.data.read(0, 100).await.unwrap(),
                    &n.to_le_bytes()[..],
                    "a read is a message"
                );
                if n % 3 == 0 {
                    assert_eq!(here.data.read(0, 2).await.unwrap(), &n.to_le_bytes()[..2]);
                    assert_eq!(here.data.read(0, 9).await.unwrap(), &n.to_le_bytes()[2..], "what was left");
                }
            }
            assert!(here.data.write(0, &[0; 100_000]).await.is_err(), "more than a message");
            here.data.write(0, b"the last").await.unwrap();
            drop(here);
            assert_eq!(there.data.read(0, 100).await.unwrap(), "the last");
            assert_eq!(there.data.read(0, 100).await.unwrap(), "", "the end");
        }
    });
}

#[test]
fn udp_carries_datagrams_by_calls_and_with_headers() {
    world(async |world| {
        let root = world.root_in(Dialect::U).await;
        let net = client::Net::new(world.root().await);
        let served = net.announce("udp!127.0.0.1!0").await.unwrap();
        let at = served.local().await.unwrap();
        let (one, two) =
            (net.dial(&format!("udp!{at}")).await.unwrap(), net.dial(&format!("udp!{at}")).await.unwrap());
        one.data.write(0, b"from one").await.unwrap();
        let first = served.listen().await.unwrap().accept().await.unwrap();
        two.data.write(0, b"from two, and more").await.unwrap();
        let second = served.listen().await.unwrap().accept().await.unwrap();
        assert_eq!(first.data.read(0, 100).await.unwrap(), "from one");
        assert_eq!(second.data.read(0, 8).await.unwrap(), "from two");
        two.data.write(0, b"again").await.unwrap();
        assert_eq!(second.data.read(0, 100).await.unwrap(), "again", "the rest of a datagram has gone");
        first.data.write(0, b"answer").await.unwrap();
        assert_eq!(one.data.read(0, 100).await.unwrap(), "answer");

        let (ctl, dir) = made(&root, "udp").await;
        assert!(say(&ctl, "headers").await.is_err(), "not announced");
        say(&ctl, "announce 127.0.0.1!0").await.unwrap();
        let at = shown(&dir, "local").await;
        say(&ctl, "headers").await.unwrap();
        let data = dir.open("data", RDWR).await.unwrap();
        let caller = net.dial(&format!("udp!{}", at.trim_end())).await.unwrap();
        caller.data.write(0, b"hello").await.unwrap();
        let came = data.read(0, 1000).await.unwrap();
        assert_eq!(came.len(), 52 + 5);
        assert_eq!(&came[52..], b"hello");
        let port = u16::from_be_bytes([came[48], came[49]]);
        // All of 127/8 is here: by which of them it came need not be said.
        assert!(caller.local().await.unwrap().ends_with(&format!("!{port}")));
        let mut back = came[..52].to_vec();
        back.extend(b"hello yourself");
        data.write(0, &back).await.unwrap();
        assert_eq!(caller.data.read(0, 100).await.unwrap(), "hello yourself");
    });
}

#[test]
fn who_calls_and_resets_ends_nothing() {
    world(async |world| {
        let root = world.root().await;
        let (_served, serving, connect) = announced(&root).await;
        let to: SocketAddr = connect["connect ".len()..].replace('!', ":").parse().unwrap();
        let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let over = over.clone();
                std::thread::spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let Ok(call) = std::net::TcpStream::connect(to) else { continue };
                        // Closed at once, and with a reset.
                        let _ = rustix::net::sockopt::set_socket_linger(&call, Some(Duration::ZERO));
                    }
                })
            })
            .collect();
        for _ in 0..300 {
            drop(serving.open("listen", RDWR).await.expect("it listens on"));
        }
        over.store(true, Ordering::Relaxed);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert!(shown(&serving, "status").await.starts_with("Listen "));
    });
}

#[test]
fn hangup_sends_what_modules_hold() {
    world(async |world| {
        let root = world.root().await;
        let (_served, serving, connect) = announced(&root).await;
        let (ctl, dir) = made(&root, "tcp").await;
        say(&ctl, &connect).await.unwrap();
        let taken = serving.open("listen", RDWR).await.unwrap();
        let other = root.walk(format!("tcp/{}", text(&taken).await).as_str()).await.unwrap();
        say(&ctl, "push throttle 400K").await.unwrap();
        let (a, b) = (dir.open("data", RDWR).await.unwrap(), other.open("data", RDWR).await.unwrap());
        for _ in 0..3 {
            a.write(0, &[7; 30_000]).await.unwrap();
        }
        say(&ctl, "hangup").await.unwrap();
        assert!(a.write(0, b"more").await.is_err());
        assert_eq!(a.read(0, 10).await.unwrap(), "");
        drop((a, dir, ctl));
        let mut had = 0;
        loop {
            match b.read(0, 50_000).await.unwrap().len() {
                0 => break,
                n => had += n,
            }
        }
        assert_eq!(had, 90_000);
    });
}

#[test]
fn a_policy_is_asked_about_the_place_that_is_really_meant() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    for name in ["app", "secret"] {
        std::fs::create_dir(top.join(name)).unwrap();
    }
    let _secret = std::os::unix::net::UnixListener::bind(top.join("secret/s")).unwrap();
    std::os::unix::fs::symlink("../secret/s", top.join("app/link")).unwrap();
    let loopback = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = loopback.local_addr().unwrap().port();
    let at = top.display();
    for policy in [
        format!(
            "deny any unix!{at}/secret/*\nallow any unix!{at}/*\ndeny dial *!loopback!*\nallow dial tcp!*!*"
        ),
        format!("allow any unix!{at}/app/*\ndeny any *!127.0.0.0/8!*\ndeny any *!::1!*\nallow dial tcp!*!*"),
        "deny any *!::ffff:127.0.0.0/104!*\ndeny any *!::1!*\nallow dial tcp!*!*".into(),
        "deny any *!*!*\nallow any unix!*\nallow any tcp!*!*".into(),
    ] {
        limited(100, policy.parse().unwrap(), async |world| {
            let root = world.root().await;
            for path in ["secret/s", "secret//s", "./secret/s", "app/../secret/s", "app/link"] {
                let (ctl, _) = made(&root, "unix").await;
                let said = errno(say(&ctl, &format!("connect {at}/{path}")).await);
                assert_eq!(said, Errno::EACCES, "{policy}: {path}");
            }
            for host in ["127.0.0.1", "0.0.0.0", "::", "::ffff:0.0.0.0", "::ffff:127.0.0.1"] {
                let (ctl, _) = made(&root, "tcp").await;
                let said = errno(say(&ctl, &format!("connect {host}!{port}")).await);
                assert_eq!(said, Errno::EACCES, "{policy}: {host}");
            }
        });
    }
    // And where no more than the loopback may be reached no name goes out.
    limited(100, Policy::default(), async |world| {
        let root = world.root().await;
        let (ctl, _) = made(&root, "tcp").await;
        assert_eq!(errno(say(&ctl, "connect secret.example!80").await), Errno::EACCES);
        for (file, question) in
            [("cs", "tcp!secret.example!80"), ("cs", "secret.example"), ("dns", "secret.example ip")]
        {
            let file = root.open(file, RDWR).await.unwrap();
            assert_eq!(errno(file.write(0, question.as_bytes()).await), Errno::EACCES, "{question}");
        }
        let cs = root.open("cs", RDWR).await.unwrap();
        cs.write(0, b"tcp!localhost!80").await.unwrap();
    });
}
