//! Synthetic trees, as clients see them in every dialect.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use nine_io::client::{Client, Error, File, Options};
use nine_io::server::{Anonymous, Core, Gate, Service, Who};
use nine_io::synth::{Ask, Beyond, Dir, File as Made, Handle, Node, Opening, Tree, Visitor};
use nine_net::{Peer, Proof, Reactor, pipe};
use nine_proto::{Dialect, Errno, GetMask, NOUID, OpenFlags, SetAttr};

const ALL: [Dialect; 3] = [Dialect::L, Dialect::U, Dialect::P2000];

/// A client of a tree, admitted with `proof`.
struct World {
    reactor: Reactor,
    tree: Arc<Tree>,
}

impl World {
    fn new(root: Dir) -> Self {
        let tree = Tree::new(root, Duration::from_secs(1_800_000_000));
        Self { reactor: Reactor::new().unwrap(), tree: Arc::new(tree) }
    }

    fn attach(&self, dialect: Dialect, proof: Proof) -> File {
        let peer = |proof| Peer { addr: "pipe".into(), proof };
        let (near, far) = pipe(peer(Proof::None), peer(proof));
        let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
        let service = Service::new(self.tree.clone(), gate, Core::default());
        self.reactor.spawn(service.connect(Box::new(far)));
        let options = Options { dialects: vec![dialect], ..Options::default() };
        let (client, driver) = self.wait(Client::connect(near, options)).unwrap();
        self.reactor.spawn(async { drop(driver.await) });
        self.wait(client.attach("", NOUID, "")).unwrap()
    }

    fn owner(&self, dialect: Dialect) -> File {
        let (uid, gid) = nine_net::own_ids();
        self.attach(dialect, Proof::Unix { uid, gid })
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.reactor.block_on(future)
    }

    fn read(&self, root: &File, path: &str) -> Result<Bytes, Error> {
        self.wait(async { root.open(path, OpenFlags::READ).await?.read(0, 4096).await })
    }

    fn names(&self, dir: &File) -> Vec<String> {
        self.wait(async {
            let mut names = Vec::new();
            let mut reading = dir.read_dir().await.unwrap();
            while let Some(entry) = reading.next().await {
                names.push(String::from_utf8_lossy(&entry.unwrap().name).into_owned());
            }
            names
        })
    }
}

fn errno<T>(result: Result<T, Error>) -> Errno {
    result.err().expect("an error").errno()
}

#[test]
fn what_is_read_is_made_at_the_open_and_stays_until_the_clunk() {
    let opens = Arc::new(AtomicUsize::new(0));
    let counted = opens.clone();
    let text = move |_: &_| format!("open {}\n", counted.fetch_add(1, Ordering::Relaxed) + 1);
    let world = World::new(Dir::new().file("n", Made::text(text)));
    for dialect in ALL {
        let root = world.owner(dialect);
        opens.store(0, Ordering::Relaxed);
        let (one, two) = world.wait(async {
            (root.open("n", OpenFlags::READ).await.unwrap(), root.open("n", OpenFlags::READ).await.unwrap())
        });
        for _ in 0..2 {
            assert_eq!(world.wait(one.read(0, 100)).unwrap(), "open 1\n");
            assert_eq!(world.wait(two.read(5, 100)).unwrap(), "2\n");
        }
        assert_eq!(world.wait(one.read(1 << 40, 100)).unwrap(), "");
        let attr = world.wait(one.getattr(GetMask::BASIC)).unwrap();
        assert_eq!((attr.size, attr.mode), (0, 0o100_444));
        assert_eq!(attr.mtime.sec, 1_800_000_000);
    }
}

#[test]
fn directories_list_what_is_there_and_qids_stay() {
    let live = Arc::new(Mutex::new(vec!["1", "2"]));
    let shown = live.clone();
    let users = Dir::new().live(move |_| {
        let users = shown.lock().unwrap();
        users.iter().map(|user| (user.to_string(), Node::from(Made::text(|_| "x".into())))).collect()
    });
    let world = World::new(Dir::new().dir("users", users).file("a", Made::text(|_| String::new())));
    let mut seen = Vec::new();
    for dialect in ALL {
        let root = world.owner(dialect);
        assert_eq!(world.names(&root), ["users", "a"]);
        let users = world.wait(root.walk("users")).unwrap();
        assert_eq!(world.names(&users), ["1", "2"]);
        live.lock().unwrap().push("3");
        assert_eq!(world.names(&users), ["1", "2", "3"], "another open");
        live.lock().unwrap().truncate(2);
        assert_eq!(errno(world.wait(root.walk("users/3"))), Errno::ENOENT);
        assert_eq!(errno(world.wait(root.walk("a/x"))), Errno::ENOTDIR);
        let up =
            world.wait(root.walk("users/1/../../../a")).or_else(|_| world.wait(root.walk("users/../../a")));
        seen.push((world.wait(root.walk("users/2")).unwrap().qid(), up.unwrap().qid()));
    }
    assert!(seen.windows(2).all(|two| two[0] == two[1]) && seen[0].0.path >> 48 == 0, "{seen:?}");
    assert_ne!(seen[0].0.path, seen[0].1.path);
}

#[test]
fn many_entries_are_made_as_they_are_read() {
    const ALL_OF_THEM: u64 = 20_000;
    let made = Arc::new(AtomicUsize::new(0));
    let (counted, gone) = (made.clone(), Arc::new(AtomicUsize::new(0)));
    let gone_now = gone.clone();
    let list = move |from: u64, most: usize, _: &_| {
        let gone = gone_now.load(Ordering::Relaxed) as u64;
        let there = (from.max(gone)..ALL_OF_THEM).filter(|n| n % 7 != 3).take(most);
        let page: Vec<_> = there.map(|n| (n, Node::from(Dir::new()))).collect();
        counted.fetch_add(page.len(), Ordering::Relaxed);
        page
    };
    let root = Dir::new().file("clone", Made::text(|_| String::new())).numbered(list);
    let world = World::new(root);
    for dialect in ALL {
        gone.store(0, Ordering::Relaxed);
        let root = world.owner(dialect);
        let names = world.names(&root);
        let all = (0..ALL_OF_THEM).filter(|n| n % 7 != 3).map(|n| n.to_string());
        assert_eq!(names, ["clone".to_string()].into_iter().chain(all).collect::<Vec<_>>());
        made.store(0, Ordering::Relaxed);
        world.wait(async {
            let mut reading = root.read_dir().await.unwrap();
            for name in ["clone", "0", "1"] {
                let entry = reading.next().await.unwrap().unwrap();
                assert_eq!(String::from_utf8_lossy(&entry.name), name);
            }
            assert!(made.load(Ordering::Relaxed) < 10_000, "so many as one answer has room for");
            // Entries that are removed meanwhile are not listed, and no remaining entry is left out.
            gone.store(19_990, Ordering::Relaxed);
            let mut last = None;
            while let Some(entry) = reading.next().await {
                last = Some(String::from_utf8_lossy(&entry.unwrap().name).into_owned());
            }
            assert_eq!(last.as_deref(), Some("19999"));
        });
    }
}

#[test]
fn a_write_is_a_message_of_lines_and_only_who_may_writes() {
    let said = Arc::new(Mutex::new(Vec::<String>::new()));
    let heard = said.clone();
    let ctl = Made::text(|visitor| format!("owner {}\n", visitor.owner)).on_write(move |ask| {
        let result = ask.lines().and_then(|lines| {
            if lines.contains(&"bad") {
                return Err(nine_proto::Error::new(Errno::EINVAL, "bad is not known"));
            }
            heard.lock().unwrap().extend(lines.iter().map(|line| line.to_string()));
            Ok(())
        });
        ask.done(result);
    });
    let world = World::new(Dir::new().file("ctl", ctl));
    for dialect in ALL {
        said.lock().unwrap().clear();
        let root = world.owner(dialect);
        let ctl = world.wait(root.open("ctl", OpenFlags::WRITE | OpenFlags::TRUNC)).unwrap();
        assert_eq!(world.wait(ctl.write(7, b"one\n\ntwo")).unwrap(), 8);
        let error = world.wait(ctl.write(0, b"bad\n")).unwrap_err();
        // .L carries only the number, 9P2000 only the text.
        if dialect != Dialect::P2000 {
            assert_eq!(error.errno(), Errno::EINVAL);
        }
        if !dialect.is_l() {
            assert!(error.to_string().contains("bad is not known"), "{error}");
        }
        assert!(world.wait(ctl.write(0, b"\xff")).is_err());
        assert_eq!(*said.lock().unwrap(), ["one", "two"]);
        world.wait(root.walk("ctl")).unwrap();
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        world.wait(async { root.walk("ctl").await.unwrap().setattr(&cut).await }).unwrap();
        assert_eq!(world.read(&root, "ctl").unwrap(), "owner true\n");
        // Another user.
        let root = world.attach(dialect, Proof::None);
        assert_eq!(world.read(&root, "ctl").unwrap(), "owner false\n");
        assert_eq!(errno(world.wait(root.open("ctl", OpenFlags::WRITE))), Errno::EACCES);
        assert_eq!(errno(world.wait(root.mkdir("d", 0o755, nine_proto::NOGID))), Errno::EPERM);
    }
}

fn pending<T>(read: &mut std::pin::Pin<Box<impl Future<Output = Result<T, Error>>>>) {
    assert!(read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

/// Reads wait until the test answers them.
#[derive(Default)]
struct Waiting(Mutex<Vec<Ask>>);

struct Waits(Arc<Waiting>);

impl Handle for Waits {
    fn read(&self, ask: Ask) {
        self.0.0.lock().unwrap().push(ask);
    }
}

#[test]
fn a_read_may_wait_and_a_flush_ends_it() {
    let waiting = Arc::new(Waiting::default());
    let held = waiting.clone();
    let world =
        World::new(Dir::new().file("news", Made::opened(move |_, _| Ok(Box::new(Waits(held.clone()))))));
    for dialect in ALL {
        let root = world.owner(dialect);
        let news = world.wait(root.open("news", OpenFlags::RDWR)).unwrap();
        let mut read = Box::pin(news.read(0, 4));
        pending(&mut read);
        // A later request is answered, so this one has arrived.
        world.wait(root.getattr(GetMask::BASIC)).unwrap();
        pending(&mut read);
        let ask = waiting.0.lock().unwrap().pop().expect("it has arrived");
        assert!(ask.is_wanted());
        ask.give(Bytes::from_static(b"news!"));
        assert_eq!(world.wait(read).unwrap(), "news");
        let mut read = Box::pin(news.read(0, 4));
        pending(&mut read);
        world.wait(root.getattr(GetMask::BASIC)).unwrap();
        drop(read);
        // The client's Tflush is answered, and then so is this request.
        world.wait(root.getattr(GetMask::BASIC)).unwrap();
        let ask = waiting.0.lock().unwrap().pop().expect("it has arrived");
        assert!(!ask.is_wanted(), "it was flushed");
        ask.fail(Errno::EIO.into());
        assert_eq!(errno(world.wait(news.write(0, b"x"))), Errno::EBADF, "this handle takes none");
        let mut read = Box::pin(news.read(0, 4));
        pending(&mut read);
        world.wait(root.getattr(GetMask::BASIC)).unwrap();
        drop(waiting.0.lock().unwrap().pop().expect("it has arrived"));
        assert_eq!(errno(world.wait(read)), Errno::EIO, "one that is dropped is answered");
    }
}

/// Its content is its name.
struct Named(&'static str);

impl Handle for Named {
    fn read(&self, ask: Ask) {
        ask.give_from(&Bytes::from_static(self.0.as_bytes()));
    }
}

#[test]
fn an_open_may_wait_be_flushed_and_become_another_file() {
    let (waiting, flushed) = (Arc::new(Mutex::new(Vec::<Opening>::new())), Arc::new(AtomicUsize::new(0)));
    let (held, told) = (waiting.clone(), flushed.clone());
    let listen = Made::opened_later(
        move |opening| held.lock().unwrap().push(opening),
        move |_| {
            told.fetch_add(1, Ordering::Relaxed);
            false
        },
    );
    let calls = Dir::new().live(|_| {
        let ctl = Made::opened(|_, _| Ok(Box::new(Named("7"))));
        vec![("7".into(), Node::from(Dir::new().file("ctl", ctl)))]
    });
    let world = World::new(Dir::new().dir("calls", calls.file("listen", listen.event())));
    for dialect in ALL {
        flushed.store(0, Ordering::Relaxed);
        let root = world.owner(dialect);
        let arrive = || {
            world.wait(root.getattr(GetMask::BASIC)).unwrap();
            waiting.lock().unwrap().pop().expect("it has arrived")
        };
        assert!(world.wait(root.walk("calls/listen")).unwrap().qid().is_event());
        let mut open = Box::pin(root.open("calls/listen", OpenFlags::RDWR));
        pending(&mut open);
        world.wait(root.getattr(GetMask::BASIC)).unwrap();
        pending(&mut open);
        let call = arrive();
        assert!(call.flags.reads() && call.flags.writes() && call.visitor.owner);
        assert!(call.becomes(&["7", "ctl"], Arc::new(Named("7"))).is_ok());
        let ctl = world.wait(open).unwrap();
        assert_eq!(world.wait(ctl.read(0, 9)).unwrap(), "7");
        assert_eq!(ctl.qid(), world.wait(root.walk("calls/7/ctl")).unwrap().qid());

        let mut open = Box::pin(root.open("calls/listen", OpenFlags::READ));
        pending(&mut open);
        world.wait(root.getattr(GetMask::BASIC)).unwrap();
        pending(&mut open);
        let call = arrive();
        drop(open);
        world.wait(root.getattr(GetMask::BASIC)).unwrap();
        assert!(call.opened(Arc::new(Named("late"))).is_err(), "what came for nobody comes back");
        assert_eq!(flushed.load(Ordering::Relaxed), 1);

        let mut open = Box::pin(root.open("calls/listen", OpenFlags::READ));
        pending(&mut open);
        world.wait(root.getattr(GetMask::BASIC)).unwrap();
        pending(&mut open);
        arrive().fail(Errno::ECONNABORTED.into());
        assert!(world.wait(open).is_err());
    }
}

/// Another tree, to be mounted as `x` of a tree.
fn beyond(root: Dir) -> Beyond {
    let who = Who { name: "rob".into(), owner: true, ..Who::none(Proof::None) };
    let tree = Tree::new(root, Duration::from_secs(1_700_000_000));
    let (node, mut attr) = tree.top(Visitor { who: Arc::new(who), owner: true });
    attr.mode = 0o040_700;
    Beyond::new(Arc::new(tree), node, attr)
}

#[test]
fn another_server_answers_below_a_directory() {
    let text = |text: &'static str| Made::text(move |_| text.into());
    let written = Arc::new(Mutex::new(String::new()));
    let writes = written.clone();
    let takes = text("b").on_write(move |ask| {
        *writes.lock().unwrap() += ask.text().unwrap();
        ask.done(Ok(()));
    });
    let inner = Dir::new().dir("d", Dir::new().file("b", takes)).file("a", text("inner"));
    let tree = Dir::new().file("a", text("outer")).with("x", beyond(inner).into());
    let world = World::new(Dir::new().dir("t", tree).file("top", text("top")));
    for dialect in ALL {
        let root = world.owner(dialect);
        assert_eq!(world.names(&world.wait(root.walk("t")).unwrap()), ["a", "x"]);
        let x = world.wait(root.walk("t/x")).unwrap();
        assert_eq!(world.names(&x), ["d", "a"]);
        let attr = world.wait(x.getattr(GetMask::BASIC)).unwrap();
        assert_eq!((attr.mode, attr.mtime.sec), (0o040_555, 1_700_000_000));
        // Down in one walk and in several; up in the same ways.
        for (from, path, says) in [
            ("", "t/x/a", "inner"),
            ("t", "x/d/b", "b"),
            ("t/x", "a", "inner"),
            ("t/x/d", "b", "b"),
            ("t/x/d", "../a", "inner"),
            ("t/x", "../a", "outer"),
            ("t/x/d", "../../a", "outer"),
            ("t/x/d", "../../../top", "top"),
            ("", "t/x/d/../../../top", "top"),
            ("", "t/x/../a", "outer"),
        ] {
            let from = world.wait(root.walk(from)).unwrap();
            assert_eq!(world.read(&from, path).unwrap(), says, "{dialect:?} {path}");
        }
        assert_eq!(errno(world.wait(root.walk("t/x/no/b"))), Errno::ENOENT);
        assert_eq!(errno(world.wait(x.walk("no"))), Errno::ENOENT);
        written.lock().unwrap().clear();
        world.wait(async { x.open("d/b", OpenFlags::WRITE).await.unwrap().write(0, b"it").await }).unwrap();
        assert_eq!(*written.lock().unwrap(), "it");
    }
}

#[test]
fn a_flush_reaches_the_server_beyond() {
    let waiting = Arc::new(Waiting::default());
    let held = waiting.clone();
    let inner = Dir::new().file("news", Made::opened(move |_, _| Ok(Box::new(Waits(held.clone())))));
    let world = World::new(Dir::new().with("x", beyond(inner).into()));
    let root = world.owner(Dialect::L);
    let news = world.wait(root.open("x/news", OpenFlags::RDWR)).unwrap();
    let mut read = Box::pin(news.read(0, 4));
    pending(&mut read);
    world.wait(root.getattr(GetMask::BASIC)).unwrap();
    waiting.0.lock().unwrap().pop().expect("it has arrived").give(Bytes::from_static(b"news!"));
    assert_eq!(world.wait(read).unwrap(), "news");
    let mut read = Box::pin(news.read(0, 4));
    pending(&mut read);
    world.wait(root.getattr(GetMask::BASIC)).unwrap();
    drop(read);
    world.wait(root.getattr(GetMask::BASIC)).unwrap();
    assert!(!waiting.0.lock().unwrap().pop().expect("it has arrived").is_wanted(), "it was flushed");
}

#[test]
fn who_is_not_let_across_has_nothing_of_it_and_no_request_names_two_places() {
    let is_open = Arc::new(AtomicUsize::new(1));
    let asked = is_open.clone();
    let inner = || Dir::new().dir("d", Dir::new()).file("a", Made::text(|_| "a".into()));
    let guarded = beyond(inner()).guarded(move |_| match asked.load(Ordering::Relaxed) {
        0 => Err(Errno::EACCES.into()),
        _ => Ok(()),
    });
    let world = World::new(Dir::new().with("x", guarded.into()).with("y", beyond(inner()).into()));
    let root = world.owner(Dialect::L);
    let (x, y) = world.wait(async { (root.walk("x").await.unwrap(), root.walk("y").await.unwrap()) });
    let a = world.wait(root.walk("x/a")).unwrap();
    assert_eq!(errno(world.wait(x.rename("a", &y, "b"))), Errno::EXDEV);
    assert_eq!(errno(world.wait(x.rename("a", &root, "b"))), Errno::EXDEV);
    assert_eq!(errno(world.wait(x.rename("a", &x, "b"))), Errno::EPERM, "that server's answer");
    let open = world.wait(root.open("x/a", OpenFlags::READ)).unwrap();
    is_open.store(0, Ordering::Relaxed);
    assert_eq!(errno(world.wait(root.walk("x"))), Errno::EACCES);
    assert_eq!(errno(world.wait(x.walk("a"))), Errno::EACCES);
    assert_eq!(errno(world.wait(a.getattr(GetMask::BASIC))), Errno::EACCES);
    assert_eq!(world.wait(open.read(0, 9)).unwrap(), "a", "it was opened before");
    assert_eq!(world.read(&root, "y/a").unwrap(), "a");
}
