//! Channels, as clients and guests see them.

use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use nine_io::channel::{Asking, Serving};
use nine_io::client::{Cancel, Client, File, Options};
use nine_io::server::{Core, FileServer, Gate, Service, Who};
use nine_net::rt::Real;
use nine_net::shm::{Channel, MOST, Note, Waits};
use nine_net::{Env, Transport};
use nine_proto::{Dialect, Errno, NOGID, OpenFlags};
use nine_servers::shm::{CHANNELS_MAX, MEMORY_MAX};
use nine_servers::srv::POSTS_MAX;
use nine_servers::{Channels, Posts, Ram};

use crate::files::cons::refused;
use crate::files::world::{connect, content, errno, list};

const RDWR: OpenFlags = OpenFlags::RDWR;
const READ: OpenFlags = OpenFlags::READ;
const MINUTE: Duration = Duration::from_secs(60);

/// A server of channels that serves guests a tree in memory, and a directory for sockets.
struct ShmFixture {
    env: Real,
    server: Arc<Channels>,
    served: Arc<dyn FileServer>,
    posts: Arc<Posts>,
    dir: tempfile::TempDir,
}

fn world(main: impl AsyncFnOnce(&ShmFixture)) {
    nine_net::rt::block_on(async |env| {
        let served: Arc<dyn FileServer> = Arc::new(Ram::new(64 << 20));
        let tree = served.clone();
        let serves = move || Some(Service::new(tree.clone(), Gate::default(), Core::default()));
        let judge = |text: &str| Ok(text.into());
        let posts = Arc::new(Posts::new(env.clock(), |_, aname| aname == b"owner", judge));
        let (server, driver) = Channels::new(env.wall(), posts.clone(), serves);
        let told = |who: &mut Who, aname: &[u8]| {
            (who.owner, who.read_only) = (aname.starts_with(b"owner"), aname.ends_with(b"read-only"));
        };
        env.spawn(Box::pin(driver.run(env)));
        let (server, dir) = (Arc::new(server.told_by(told)), tempfile::tempdir().unwrap());
        let world = ShmFixture { env, server, served, posts, dir };
        main(&world).await;
        // No channel is left.
        until(|| world.server.count() == 0).await;
        assert!(world.posts.posted().is_empty(), "posts are left");
        assert_eq!(std::fs::read_dir(world.dir.path()).unwrap().count(), 0, "sockets are left");
    })
    .expect("a runtime");
}

/// Lets other tasks run until this is true.
async fn until(mut is_so: impl FnMut() -> bool) {
    poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if is_so() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl ShmFixture {
    async fn root_as(&self, aname: &str) -> File {
        self.root_of(self.server.clone(), aname).await
    }

    async fn root_of(&self, server: Arc<dyn FileServer>, aname: &str) -> File {
        connect(&self.env, server, Dialect::U).await.attach("", 0, aname).await.expect("attached")
    }

    async fn root(&self) -> File {
        self.root_as("owner").await
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn join(&self, name: &str) -> Channel {
        Channel::dial(&self.at(name), Waits::Adaptive, MINUTE).await.unwrap()
    }

    /// Joins a guest that is a client, and returns its root.
    async fn guest(&self, name: &str) -> File {
        self.client(Asking::new(self.join(name).await)).await
    }

    async fn client(&self, transport: impl Transport) -> File {
        let options = Options { dialects: vec![Dialect::L], ..Options::default() };
        let (client, driver) = Client::connect(transport, options).await.expect("a session");
        self.env.spawn(Box::pin(async move { drop(driver.await) }));
        client.attach("", rustix::process::geteuid().as_raw(), "").await.expect("attached")
    }

    /// Announces a channel at this name, after these control messages. Returns its ctl and its directory.
    async fn announced(&self, root: &File, name: &str, texts: &[&str]) -> (File, File) {
        let (ctl, dir) = made(root).await;
        for text in texts {
            say(&ctl, text).await.unwrap();
        }
        say(&ctl, &format!("announce '{}'", self.at(name).display())).await.unwrap();
        (ctl, dir)
    }
}

async fn made(root: &File) -> (File, File) {
    let ctl = root.open("clone", RDWR).await.unwrap();
    let number = ctl.read(0, 100).await.unwrap();
    let dir = root.walk(number.trim_ascii_end()).await.unwrap();
    (ctl, dir)
}

async fn say(ctl: &File, text: &str) -> nine_io::client::Result<()> {
    ctl.write(0, text.as_bytes()).await.map(drop)
}

async fn status(dir: &File) -> String {
    String::from_utf8(content(&dir.open("status", READ).await.unwrap()).await).unwrap()
}

/// Returns the value of a key in the status.
async fn value(dir: &File, key: &str) -> String {
    let status = status(dir).await;
    let mut words = status.split_whitespace();
    words.find(|word| *word == key).expect("a key");
    words.next().expect("a value").into()
}

fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 253) as u8).collect()
}

async fn put(channel: &mut Channel, bytes: &[u8]) {
    for piece in bytes.chunks(MOST) {
        poll_fn(|cx| channel.poll_put(cx, piece, Note::None)).await.unwrap();
    }
    channel.settle();
}

async fn take(channel: &mut Channel) -> Option<Vec<u8>> {
    let mut piece = vec![0; MOST];
    let taken = poll_fn(|cx| channel.poll_take(cx, &mut piece)).await.unwrap()?;
    piece.truncate(taken.len);
    Some(piece)
}

#[test]
fn bytes_of_a_channel_are_a_file() {
    world(async |world| {
        let root = world.root().await;
        let texts = ["kind bytes", "name lab", "lines 64", "size 0", "wait interrupt"];
        let (ctl, dir) = world.announced(&root, "a b", &texts).await;
        let said = status(&dir).await;
        let whole = "Listen kind bytes name lab wait interrupt lines 64 pages 0 guests 0 1 \
                     epoch 0 join 0 taken 0 0 used 0 0 in 0 out 0 qin 0 qout 0\n";
        assert_eq!(said, whole);
        let data = dir.open("data", RDWR).await.unwrap();
        // A read before the guest joins waits for it.
        let early = data.read(0, 100);
        let guest = async {
            let mut guest = world.join("a b").await;
            assert_eq!(guest.layout().name(), "lab");
            put(&mut guest, b"hello").await;
            guest
        };
        let (early, mut guest) = futures_util::future::join(early, guest).await;
        assert_eq!(early.unwrap(), &b"hello"[..]);
        // Unread data is in the rings: 5 bytes in one line, 100 in two.
        data.write(0, &[7; 100]).await.unwrap();
        put(&mut guest, b"first").await;
        let said = status(&dir).await;
        assert!(said.contains(" taken 1 0 used 1 2 in 5 out 100 "), "{said}");
        assert_eq!(take(&mut guest).await.unwrap(), [7; 100]);
        assert_eq!(data.read(0, 100).await.unwrap(), &b"first"[..]);
        let said = status(&dir).await;
        assert!(said.contains(" taken 2 2 used 0 0 in 10 out 100 "), "{said}");
        // More than the rings hold, in both directions.
        let bytes = noise(300_000);
        let write = async {
            let mut at = 0;
            while at < bytes.len() {
                at += data.write(0, &bytes[at..]).await.unwrap() as usize;
            }
        };
        let read = async {
            let mut got = Vec::new();
            while got.len() < bytes.len() {
                got.extend(take(&mut guest).await.unwrap());
            }
            got
        };
        let ((), got) = futures_util::future::join(write, read).await;
        assert!(got == bytes);
        let read = async {
            let mut got = Vec::new();
            while got.len() < bytes.len() {
                got.extend_from_slice(&data.read(0, 100_000).await.unwrap());
            }
            got
        };
        let (got, ()) = futures_util::future::join(read, put(&mut guest, &bytes)).await;
        assert!(got == bytes);
        let said = status(&dir).await;
        assert!(said.starts_with("Established kind bytes") && said.contains("epoch 1 join 1"), "{said}");
        assert!(said.contains(" in 300010 out 300100 "), "{said}");
        // Data sent before the end is read.
        put(&mut guest, b"last").await;
        drop(guest);
        assert_eq!(data.read(0, 100).await.unwrap(), &b"last"[..]);
        assert_eq!(data.read(0, 100).await.unwrap(), &b""[..]);
        refused(Dialect::U, data.write(0, b"x").await, Errno::EPIPE, "hung up");
        drop(ctl);
        assert!(data.read(0, 100).await.unwrap().is_empty(), "as long as data is open it is there");
    });
}

#[test]
fn a_guest_that_asks_gets_what_is_served_and_then_the_next_one() {
    world(async |world| {
        let root = world.root().await;
        let (ctl, dir) = world.announced(&root, "s", &[]).await;
        let bytes = noise(1_000_000);
        for n in 0..3 {
            let guest = world.guest("s").await;
            assert_eq!(value(&dir, "join").await, "1", "each has memory of its own");
            let file = guest.create(format!("f{n}"), RDWR, 0o644, NOGID).await.unwrap();
            assert_eq!(file.write_at(0, &bytes).await.unwrap(), bytes.len());
            assert!(content(&file).await == bytes);
            // Further guests wait.
            assert!(status(&dir).await.starts_with("Established"));
        }
        let direct = connect(&world.env, world.served.clone(), Dialect::L).await;
        assert_eq!(list(&direct.attach("", 0, "").await.unwrap()).await, ["f0", "f1", "f2"]);
        // The channel stays while a guest is joined, without open files; then its socket is removed.
        let guest = world.guest("s").await;
        drop((ctl, dir));
        assert_eq!(list(&guest).await.len(), 3);
        assert_eq!(world.server.count(), 1);
        drop(guest);
        until(|| world.server.count() == 0).await;
        assert!(Channel::dial(&world.at("s"), Waits::Poll, MINUTE).await.is_err());
    });
}

#[test]
fn several_guests_have_a_channel_at_once_and_each_its_own_memory() {
    world(async |world| {
        let root = world.root().await;
        let (ctl, dir) = world.announced(&root, "s", &["guests 3", "lines 64", "size 16"]).await;
        let none = status(&dir).await;
        assert!(none.starts_with("Listen kind client") && none.contains(" guests 0 3 in 0 "), "{none}");
        let bytes = noise(200_000);
        let mut guests = Vec::new();
        for n in 0..3 {
            let guest = world.guest("s").await;
            let file = guest.create(format!("f{n}"), RDWR, 0o644, NOGID).await.unwrap();
            guests.push((guest, file));
        }
        let all = guests.iter().map(async |(_, file)| {
            assert_eq!(file.write_at(0, &bytes).await.unwrap(), bytes.len());
            assert!(content(file).await == bytes);
        });
        futures_util::future::join_all(all).await;
        let said = status(&dir).await;
        let lines: Vec<_> = said.lines().collect();
        assert!(lines.len() == 4 && lines[0].contains(" guests 3 3 in "), "{said}");
        for (line, n) in lines[1..].iter().zip(1..) {
            assert!(line.starts_with(&format!("guest {n} epoch 1 join 1 taken ")), "{said}");
            assert!(line.ends_with(" used 0 0"), "{said}");
        }
        // One more guest can join after any of them has gone.
        let goes = async {
            assert!(status(&dir).await.contains(" guests 3 3 "));
            drop(guests.remove(1));
        };
        let (fourth, ()) = futures_util::future::join(world.guest("s"), goes).await;
        assert_eq!(list(&fourth).await.len(), 3);
        let said = status(&dir).await;
        assert!(
            said.contains("\nguest 1 ") && !said.contains("\nguest 2 ") && said.contains("\nguest 4 "),
            "{said}"
        );
        // A guest that violates the protocol, or has only connected, does not affect the others.
        drop(fourth);
        let mut bad = world.join("s").await;
        put(&mut bad, b"\xff\xff\xff\xff rubbish").await;
        while take(&mut bad).await.is_some() {}
        drop((bad, std::os::unix::net::UnixStream::connect(world.at("s")).unwrap()));
        assert!(content(&guests[0].1).await == bytes && content(&guests[1].1).await == bytes);
        // All of them get a hangup.
        say(&ctl, "hangup").await.unwrap();
        for (guest, _) in &guests {
            assert!(guest.walk("none").await.unwrap_err().is_disconnect());
        }
        assert!(status(&dir).await.starts_with("Closed"));

        // It stays as long as one of them is joined.
        let (ctl, dir) = world.announced(&root, "t", &["guests 2"]).await;
        let (one, two) = (world.guest("t").await, world.guest("t").await);
        drop((ctl, dir, one));
        assert_eq!(list(&two).await.len(), 3);
        assert!(Path::exists(&world.at("t")));
        drop(two);
        until(|| !Path::exists(&world.at("t"))).await;

        // Memory is reserved for all guests. Channels of other kinds have one guest.
        let (ctl, _) = made(&root).await;
        let announce = format!("announce {}", world.at("u").display());
        for text in ["guests 64", "size 8192"] {
            say(&ctl, text).await.unwrap();
        }
        refused(Dialect::U, say(&ctl, &announce).await, Errno::ENOMEM, "make this one smaller");
        for text in ["kind bytes", "kind server"] {
            say(&ctl, text).await.unwrap();
            refused(Dialect::U, say(&ctl, &announce).await, Errno::EINVAL, "those of `kind client`");
        }
        say(&ctl, "kind client").await.unwrap();
        say(&ctl, "connect x").await.unwrap();
        refused(Dialect::U, say(&ctl, &announce).await, Errno::EINVAL, "without `connect`");
    });
}

#[test]
fn a_guest_that_answers_is_dialled_by_its_name() {
    world(async |world| {
        let root = world.root().await;
        let (_ctl, dir) = world.announced(&root, "s", &["kind server", "name disk"]).await;
        let why = |name| world.server.dial(name).err().unwrap().to_string();
        assert_eq!(why("none"), "no channel is called none");
        assert_eq!(why("disk"), "no guest has joined the channel disk");
        for _ in 0..2 {
            serve_at(world, "s", None).await;
            until_joined(&dir).await;
            let there = world.client(world.server.dial("disk").unwrap()).await;
            assert_eq!(why("disk"), "another client has the channel disk");
            let bytes = noise(500_000);
            let file = there.create("f", RDWR, 0o644, NOGID).await.unwrap();
            assert_eq!(file.write_at(0, &bytes).await.unwrap(), bytes.len());
            assert!(content(&file).await == bytes);
            // The arena is the asking side's, that is the host's, and every request was answered.
            let said = status(&dir).await;
            assert!(said.contains(" used 0 0 arena 0 in "), "{said}");
            drop((file, there));
            while status(&dir).await.starts_with("Established") {}
        }
        // A guest that goes before a client has dialled it makes room for the next.
        drop(world.join("s").await);
        while status(&dir).await.starts_with("Established") {}
        serve_at(world, "s", None).await;
        until_joined(&dir).await;
        assert!(world.server.dial("disk").is_ok());
        drop(dir);
    });
}

/// Joins a guest that serves a tree of its own.
async fn serve_at(world: &ShmFixture, name: &str, server: Option<Arc<dyn FileServer>>) {
    let server = server.unwrap_or_else(|| Arc::new(Ram::new(16 << 20)));
    let channel = world.join(name).await;
    let gate = Gate { anonymous: nine_io::server::Anonymous::Trusted, ..Gate::default() };
    let service = Service::new(server, gate, Core::default());
    world.env.spawn(service_task(service, channel));
}

fn service_task(service: Service, channel: Channel) -> nine_net::Task {
    Box::pin(async move { service.connect(Box::new(Serving::new(channel))).await })
}

async fn until_joined(dir: &File) {
    while !status(dir).await.starts_with("Established") {}
}

#[test]
fn two_guests_are_connected_and_nobody_between_them_looks() {
    world(async |world| {
        let root = world.root().await;
        let (_server, below) = world.announced(&root, "server", &["kind server", "name disk"]).await;
        let (_client, above) = world.announced(&root, "client", &["connect disk"]).await;
        // There is no guest to connect to, so this one gets a hangup.
        let mut alone = Asking::new(world.join("client").await);
        let end = poll_fn(|cx| alone.poll_read(cx, &mut [0; 4096])).await;
        assert!(matches!(end, Ok(0) | Err(_)));
        drop(alone);
        let tree: Arc<dyn FileServer> = Arc::new(Ram::new(16 << 20));
        let bytes = noise(700_000);
        for n in 0..2 {
            serve_at(world, "server", Some(tree.clone())).await;
            until_joined(&below).await;
            let guest = world.guest("client").await;
            let file = guest.create(format!("f{n}"), RDWR, 0o644, NOGID).await.unwrap();
            assert_eq!(file.write_at(0, &bytes).await.unwrap(), bytes.len());
            assert!(content(&file).await == bytes);
            assert_eq!(list(&guest).await.len(), n + 1);
            drop((file, guest));
            while status(&below).await.starts_with("Established") {}
        }
        let [came, went] = [value(&above, "in").await, value(&below, "out").await];
        assert!(came == went && came.parse::<usize>().unwrap() > 2 * bytes.len(), "{came} {went}");
        // The same for bytes.
        let (_a, first) = world.announced(&root, "a", &["kind bytes", "name a"]).await;
        let (_b, _) = world.announced(&root, "b", &["kind bytes", "connect a"]).await;
        let mut one = world.join("a").await;
        until_joined(&first).await;
        let mut two = world.join("b").await;
        put(&mut two, b"to you").await;
        assert_eq!(take(&mut one).await.unwrap(), b"to you");
        put(&mut one, b"and back").await;
        assert_eq!(take(&mut two).await.unwrap(), b"and back");
        let data = first.open("data", RDWR).await.unwrap();
        refused(Dialect::U, data.read(0, 10).await, Errno::EBUSY, "another channel is connected");
        drop(one);
        assert_eq!(take(&mut two).await, None);
    });
}

#[test]
fn a_channel_is_posted_as_long_as_it_is_there() {
    world(async |world| {
        let (root, srv) = (world.root().await, world.root_of(world.posts.clone(), "owner").await);
        let (ctl, dir) = made(&root).await;
        let refuses = async |text: &str, errno, said: &str| {
            refused(Dialect::U, say(&ctl, text).await, errno, said);
        };
        refuses("post lab", Errno::EINVAL, "whose guest answers: `kind server`").await;
        say(&ctl, "kind server").await.unwrap();
        refuses("post lab", Errno::EINVAL, "has a name").await;
        say(&ctl, "name disk").await.unwrap();
        refuses("post lab", Errno::ENOTCONN, "not announced").await;
        say(&ctl, &format!("announce {}", world.at("s").display())).await.unwrap();
        refuses("post a/b", Errno::EINVAL, "bad file name").await;
        refuses("post", Errno::EINVAL, "`post`: what a channel knows is").await;
        // Another client's post is not replaced.
        let create = async |name: &str, text: &[u8]| {
            let file = srv.create(name, OpenFlags::WRITE, 0o644, NOGID).await.unwrap();
            file.write(0, text).await.unwrap();
        };
        create("taken", b"tcp!h").await;
        refuses("post taken", Errno::EEXIST, "something is posted as taken").await;
        let mut all = Vec::new();
        all.extend((1..POSTS_MAX).map(|n| world.posts.post(&n.to_string(), "x").unwrap()));
        refuses("post lab", Errno::ENFILE, "there are 1000 posts").await;
        drop(all);
        say(&ctl, "post lab").await.unwrap();
        refuses("post more", Errno::EBUSY, "posted already").await;
        assert_eq!(list(&srv).await, ["lab", "taken"]);
        assert_eq!(content(&srv.open("lab", READ).await.unwrap()).await, b"/shm/disk\n");
        let other = world.root_of(world.posts.clone(), "").await;
        assert_eq!(errno(other.unlink("lab", false).await), Errno::EACCES);

        // Another guest is connected to the channel of the post. If the post is not a channel or does not exist, it
        // gets a hangup.
        let (_client, above) = world.announced(&root, "client", &["connect /srv/lab"]).await;
        serve_at(world, "s", None).await;
        until_joined(&dir).await;
        let guest = world.guest("client").await;
        let bytes = noise(300_000);
        let file = guest.create("f", RDWR, 0o644, NOGID).await.unwrap();
        assert_eq!(file.write_at(0, &bytes).await.unwrap(), bytes.len());
        assert!(content(&file).await == bytes);
        drop((file, guest));
        for (name, post) in [("t", "taken"), ("n", "none")] {
            let (_ctl, _) = world.announced(&root, name, &[&format!("connect /srv/{post}")]).await;
            let mut alone = Asking::new(world.join(name).await);
            let end = poll_fn(|cx| alone.poll_read(cx, &mut [0; 4096])).await;
            assert!(matches!(end, Ok(0) | Err(_)));
        }

        // A removed post may be posted again under any name. A new owner of the name keeps it.
        srv.unlink("lab", false).await.unwrap();
        say(&ctl, "post again").await.unwrap();
        srv.unlink("again", false).await.unwrap();
        create("again", b"tcp!other").await;
        say(&ctl, "post lab").await.unwrap();
        assert_eq!(list(&srv).await, ["again", "lab", "taken"]);
        // It is removed with its channel: by a hangup, or when the channel has no open files.
        say(&ctl, "hangup").await.unwrap();
        assert_eq!(list(&srv).await, ["again", "taken"]);
        refuses("post lab", Errno::EPIPE, "hung up").await;
        let (ctl, _) = world.announced(&root, "u", &["kind server", "name u"]).await;
        say(&ctl, "post lab").await.unwrap();
        drop(ctl);
        until(|| world.posts.get("lab").is_none()).await;
        for name in ["again", "taken"] {
            srv.unlink(name, false).await.unwrap();
        }
        drop(above);
    });
}

#[test]
fn texts_are_understood_or_it_is_said_what_is_due() {
    world(async |world| {
        let root = world.root().await;
        let (ctl, dir) = made(&root).await;
        let refuses = async |text: &str, errno, said: &str| {
            refused(Dialect::U, say(&ctl, text).await, errno, said);
        };
        for (text, said) in [
            ("", "short control request"),
            ("kind fish", "`fish`: write kind client"),
            ("wait long", "write wait poll"),
            ("lines 65", "a power of two"),
            ("lines 131072", "a power of two"),
            ("size 1048576", "a number of pages"),
            ("size -1", "a number of pages"),
            ("guests 0", "a number from 1 to 64"),
            ("guests 65", "a number from 1 to 64"),
            ("name a/b", "a name is that of a file"),
            ("name ''", "a name is that of a file"),
            ("name 123456789012345678901234567890123", "at most 32 bytes"),
            ("announce s", "begins with `/`"),
            ("announce", "`announce`: what a channel knows is"),
            ("push zstd", "`push`: what a channel knows is"),
            ("kind bytes\nlines 64", "one control request at a time"),
            ("name 'a", "a quote is not closed"),
        ] {
            refuses(text, Errno::EINVAL, said).await;
        }
        refuses(&"x".repeat(1025), Errno::EINVAL, "at most 1024 bytes").await;
        let data = dir.open("data", RDWR).await.unwrap();
        refused(Dialect::U, data.read(0, 10).await, Errno::EIO, "`kind bytes`");
        say(&ctl, "kind bytes").await.unwrap();
        refused(Dialect::U, data.read(0, 10).await, Errno::ENOTCONN, "not announced");
        say(&ctl, "name one").await.unwrap();
        say(&ctl, "name one").await.unwrap();
        let (other, _) = made(&root).await;
        refused(Dialect::U, say(&other, "name one").await, Errno::EEXIST, "another channel is called one");
        say(&ctl, "name two").await.unwrap();
        say(&other, "name one").await.unwrap();
        drop(other);
        until(|| world.server.count() == 1).await;
        say(&ctl, "name one").await.unwrap();
        // After a failed announcement, another path can be announced.
        let nowhere = format!("announce {}/none/s", world.dir.path().display());
        assert_eq!(errno(say(&ctl, &nowhere).await), Errno::ENOENT);
        say(&ctl, &format!("announce {}", world.at("s").display())).await.unwrap();
        refuses("lines 64", Errno::EBUSY, "the channel is announced").await;
        refuses(&format!("announce {}", world.at("t").display()), Errno::EBUSY, "the channel is announced")
            .await;
        // Two channels at one path.
        let (other, _) = made(&root).await;
        let same = say(&other, &format!("announce {}", world.at("s").display())).await;
        assert_eq!(errno(same), Errno::EADDRINUSE);
        say(&ctl, "hangup").await.unwrap();
        refuses("lines 64", Errno::EPIPE, "hung up").await;
        assert!(status(&dir).await.starts_with("Closed"));
        assert!(data.read(0, 10).await.unwrap().is_empty());
        until(|| !Path::exists(&world.at("s"))).await;
    });
}

#[test]
fn hangup_reaches_guests_and_whoever_waits() {
    world(async |world| {
        let root = world.root().await;
        // A channel of 9P.
        let (ctl, _) = world.announced(&root, "s", &[]).await;
        let guest = world.guest("s").await;
        assert!(list(&guest).await.is_empty());
        say(&ctl, "hangup").await.unwrap();
        assert!(guest.walk("none").await.unwrap_err().is_disconnect());
        // A channel of bytes: with a guest that does not read, and without a guest.
        for joins in [true, false] {
            let (ctl, dir) = world.announced(&root, "b", &["kind bytes", "lines 64"]).await;
            let data = dir.open("data", RDWR).await.unwrap();
            let _guest = if joins { Some(world.join("b").await) } else { None };
            let bytes = noise(20_000);
            let hangs = async {
                while value(&dir, "qout").await != "1" || value(&dir, "qin").await != "1" {}
                say(&ctl, "hangup").await.unwrap();
            };
            let all = futures_util::future::join3(data.read(0, 10), data.write(0, &bytes), hangs);
            let (read, wrote, ()) = all.await;
            assert!(read.unwrap().is_empty());
            assert_eq!(errno(wrote), Errno::EPIPE);
            drop((ctl, data));
            until(|| !Path::exists(&world.at("b"))).await;
        }
    });
}

/// Returns the result of a call that checks for its cancellation at every poll.
async fn looking<T>(call: impl Future<Output = T> + Unpin, beside: impl Future<Output = ()>) -> T {
    let mut call = call;
    let called = poll_fn(|cx| {
        cx.waker().wake_by_ref();
        call.poll_unpin(cx)
    });
    futures_util::future::join(called, beside).await.0
}

#[test]
fn a_read_or_write_that_waits_is_flushed() {
    world(async |world| {
        let root = world.root().await;
        let (_ctl, dir) = world.announced(&root, "b", &["kind bytes", "lines 64"]).await;
        let data = dir.open("data", RDWR).await.unwrap();
        let mut guest = world.join("b").await;
        let cancel = Cancel::default();
        let waits = async {
            while value(&dir, "qin").await != "1" {}
            cancel.cancel();
        };
        let read = cancel.clone().scope(Box::pin(data.read(0, 10)));
        assert_eq!(errno(looking(read, waits).await), Errno::EINTR);
        // It has taken no bytes.
        put(&mut guest, b"for the next one").await;
        assert_eq!(data.read(0, 100).await.unwrap(), &b"for the next one"[..]);
        // A cancelled write reports the number of bytes sent.
        let (cancel, bytes) = (Cancel::default(), noise(20_000));
        let waits = async {
            while value(&dir, "out").await == "0" {}
            cancel.cancel();
        };
        let wrote = cancel.clone().scope(Box::pin(data.write(0, &bytes)));
        let gone = looking(wrote, waits).await.unwrap() as usize;
        assert!(gone > 0 && gone < bytes.len());
        let mut got = Vec::new();
        while got.len() < gone {
            got.extend(take(&mut guest).await.unwrap());
        }
        assert!(got == bytes[..gone]);
    });
}

#[test]
fn only_the_owner_has_channels() {
    world(async |world| {
        let root = world.root().await;
        let (_ctl, dir) = world.announced(&root, "s", &[]).await;
        let number = list(&root).await;
        assert_eq!(number, ["0", "clone"]);
        let other = world.root_as("").await;
        assert_eq!(errno(other.open("clone", RDWR).await), Errno::EACCES);
        for name in ["0/ctl", "0/data"] {
            assert_eq!(errno(other.open(name, RDWR).await), Errno::EACCES);
            assert_eq!(errno(other.open(name, READ).await), Errno::EACCES);
        }
        assert!(status(&other.walk("0").await.unwrap()).await.starts_with("Listen"));
        let reader = world.root_as("owner read-only").await;
        refused(Dialect::U, reader.open("clone", RDWR).await, Errno::EACCES, "you may change nothing");
        refused(Dialect::U, reader.open("0/data", READ).await, Errno::EACCES, "you may change nothing");
        refused(Dialect::U, root.open("clone", READ).await, Errno::EACCES, "for reading and writing");
        drop(dir);
    });
}

#[test]
fn there_are_as_many_channels_and_as_much_memory_as_may_be() {
    world(async |world| {
        let root = world.root().await;
        let (big, _) = made(&root).await;
        // Besides the rings and a page.
        let pages = MEMORY_MAX / 4096 - 3;
        for text in ["lines 64".into(), format!("size {}", pages + 1)] {
            say(&big, &text).await.unwrap();
        }
        let announce = |name| format!("announce {}", world.at(name).display());
        refused(Dialect::U, say(&big, &announce("s")).await, Errno::ENOMEM, "channels have 0 of 1024 MiB");
        say(&big, &format!("size {pages}")).await.unwrap();
        say(&big, &announce("s")).await.unwrap();
        let (small, _) = made(&root).await;
        refused(Dialect::U, say(&small, &announce("t")).await, Errno::ENOMEM, "let one go");
        drop(big);
        until(|| world.server.count() == 1).await;
        say(&small, &announce("t")).await.unwrap();
        let mut all = Vec::new();
        for _ in 1..CHANNELS_MAX {
            all.push(root.open("clone", RDWR).await.unwrap());
        }
        refused(Dialect::U, root.open("clone", RDWR).await, Errno::ENFILE, "there are 256 channels");
        all.pop();
        until(|| world.server.count() < CHANNELS_MAX).await;
        assert!(root.open("clone", RDWR).await.is_ok());
    });
}

#[test]
fn a_guest_that_breaks_the_rules_ends_its_own_channel() {
    world(async |world| {
        let root = world.root().await;
        let (_ctl, dir) = world.announced(&root, "s", &[]).await;
        let (_b, bytes) = world.announced(&root, "b", &["kind bytes"]).await;
        let data = bytes.open("data", RDWR).await.unwrap();
        let mut other = world.join("b").await;
        for rubbish in [&b"\xff\xff\xff\xff rubbish"[..], b"\x07\0\0\0\0\0\0", &[0; 64]] {
            let mut guest = world.join("s").await;
            put(&mut guest, rubbish).await;
            // Its channel ends, and the next guest can join.
            while take(&mut guest).await.is_some() {}
            drop(guest);
            assert!(list(&world.guest("s").await).await.is_empty());
        }
        while status(&dir).await.starts_with("Established") {}
        // A guest that connects and sends nothing, and one that goes before it has joined.
        drop(std::os::unix::net::UnixStream::connect(world.at("s")).unwrap());
        assert!(list(&world.guest("s").await).await.is_empty());
        put(&mut other, b"still here").await;
        assert_eq!(data.read(0, 100).await.unwrap(), &b"still here"[..]);
    });
}
