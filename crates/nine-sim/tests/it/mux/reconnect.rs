//! Servers that disconnect and return, mounted with `-r`.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use nine_io::client::{Client, File};
use nine_io::server::{Core, FileServer, Gate, Service};
use nine_mux::{Boxed, Dial, Flags, Server, Spawn, Wait};
use nine_net::{Env, Peer, Transport};
use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{
    Attr, Dialect, Errno, GetMask, LockRequest, LockStatus, LockType, OpenFlags, SetAttr, Time,
};
use nine_servers::Ram;
use nine_sim::{Links, Shape, World, seeds};

use crate::mux::puppet::{Act, Puppet, qid, reply};
use crate::mux::world::{Muxed, cat, ls, owner, put, ram};

/// The address of a server, which can be unreachable, and the connections to it.
#[derive(Clone)]
pub struct Place(Arc<Mutex<State>>);

struct State {
    /// The server; `None` if it is unreachable.
    service: Option<Service>,
    links: Arc<Links>,
    shape: Shape,
    wires: Vec<Arc<Mutex<Wire>>>,
    dials: u32,
    /// Every dial is refused, as by a server that rejects our certificate.
    refuses: bool,
}

#[derive(Default)]
struct Wire {
    fate: Fate,
    wakers: Vec<Waker>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Fate {
    #[default]
    Good,
    Cut,
    /// Accepts everything and sends nothing.
    Silent,
}

impl Place {
    pub fn new(m: &Muxed, server: &Arc<impl FileServer>, shape: Shape) -> Self {
        let state = State {
            service: Some(served(server.clone())),
            links: m.links.clone(),
            shape,
            wires: Vec::new(),
            dials: 0,
            refuses: false,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    pub fn server(&self, name: &str, wait: Wait) -> Server {
        Server { wait: Some(wait), ..Server::new(name, Arc::new(self.clone())) }
    }

    pub fn become_of(&self, fate: Fate) {
        let wires = self.0.lock().unwrap().wires.clone();
        for wire in wires {
            let wakers = {
                let mut wire = wire.lock().unwrap();
                if wire.fate != Fate::Cut {
                    wire.fate = fate;
                }
                std::mem::take(&mut wire.wakers)
            };
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Makes the server unreachable.
    pub fn down(&self) {
        self.0.lock().unwrap().service = None;
        self.become_of(Fate::Cut);
    }

    pub fn up(&self, server: &Arc<impl FileServer>) {
        self.0.lock().unwrap().service = Some(served(server.clone()));
    }

    /// Ends the connections, and sets whether dials are refused.
    fn refuse(&self, refuses: bool) {
        self.0.lock().unwrap().refuses = refuses;
        self.become_of(Fate::Cut);
    }

    pub fn cut(&self) {
        self.become_of(Fate::Cut);
    }

    fn dials(&self) -> u32 {
        self.0.lock().unwrap().dials
    }
}

fn served(server: Arc<dyn FileServer>) -> Service {
    Service::new(server, Gate::default(), Core::default())
}

impl Dial for Place {
    fn dial(&self, spawn: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        let mut state = self.0.lock().unwrap();
        state.dials += 1;
        if state.refuses {
            return Box::pin(async { Err(io::Error::new(io::ErrorKind::PermissionDenied, "revoked")) });
        }
        let Some(service) = &state.service else {
            return Box::pin(async { Err(io::Error::from_raw_os_error(111)) });
        };
        let (near, far) = state.links.link(state.shape.clone());
        spawn.spawn(Box::pin(service.connect(Box::new(far))));
        let wire = Arc::<Mutex<Wire>>::default();
        state.wires.push(wire.clone());
        let io: Box<dyn Transport> = Box::new(Cuttable { io: Box::new(near), wire });
        Box::pin(async { Ok(io) })
    }
}

struct Cuttable {
    io: Box<dyn Transport>,
    wire: Arc<Mutex<Wire>>,
}

impl Cuttable {
    /// Returns the outcome of an operation; `None` if the link decides.
    fn fate<T>(&self, cx: &mut Context<'_>) -> Option<Poll<io::Result<T>>> {
        let mut wire = self.wire.lock().unwrap();
        match wire.fate {
            Fate::Good => {
                if !wire.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                    wire.wakers.push(cx.waker().clone());
                }
                None
            }
            Fate::Cut => Some(Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))),
            Fate::Silent => {
                wire.wakers.push(cx.waker().clone());
                Some(Poll::Pending)
            }
        }
    }
}

impl Transport for Cuttable {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.fate(cx).unwrap_or_else(|| self.io.poll_read(cx, buf))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.wire.lock().unwrap().fate == Fate::Silent {
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        self.fate(cx).unwrap_or_else(|| self.io.poll_write(cx, bufs))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_close(cx)
    }

    fn peer(&self) -> &Peer {
        self.io.peer()
    }
}

/// Runs work in the background. The returned future waits for its output.
fn begin<T: Send + 'static>(
    m: &Muxed,
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> {
    let done = Arc::new(Mutex::new((None, None::<Waker>)));
    let told = done.clone();
    m.env.spawn(Box::pin(async move {
        let value = work.await;
        let waker = {
            let mut told = told.lock().unwrap();
            told.0 = Some(value);
            told.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }));
    std::future::poll_fn(move |cx| {
        let mut done = done.lock().unwrap();
        match done.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                done.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    })
}

async fn pause(m: &Muxed, ms: u64) {
    m.env.sleep_until(m.env.now() + Duration::from_millis(ms)).await;
}

async fn text(file: &File) -> Result<String, Errno> {
    let data = file.read(0, 1000).await.map_err(|error| error.errno())?;
    Ok(String::from_utf8_lossy(&data).into())
}

/// Runs a test in a world with a client and one server, which is mounted on `/far`.
fn world<F: Future<Output = ()> + 'static>(
    seed: u64,
    wait: Wait,
    dialect: Dialect,
    test: impl FnOnce(Muxed, Place, Arc<Ram>, Client, File) -> F + 'static,
) {
    let world = World::new(seed);
    let m = Muxed::new(&world);
    world.run(async move {
        let server = ram(&[("f", "text"), ("d/g", "deep"), ("d/h", "other"), ("d/e/", "")]).await;
        let place = Place::new(&m, &server, Shape::default());
        m.space.mount(place.server("far", wait), "", &owner(), "/far", Flags::REPLACE).await.unwrap();
        let (client, root) = m.client(dialect).await;
        test(m.clone(), place, server, client, root).await;
        m.clear().await;
    });
    world.settle();
}

#[test]
fn whatever_is_open_comes_back_and_requests_wait_for_it() {
    for (seed, dialect) in seeds(3).zip([Dialect::L, Dialect::U, Dialect::P2000]) {
        world(seed, Wait::Ever, dialect, move |m, place, server, client, root| async move {
            let walked = root.walk("far/d").await.unwrap();
            let (read, written) = (
                root.open("far/d/g", OpenFlags::READ).await.unwrap(),
                root.open("far/f", OpenFlags::RDWR | OpenFlags::TRUNC).await.unwrap(),
            );
            written.write_all_at(0, b"before").await.unwrap();
            place.down();
            let read = Arc::new(read);
            let waits = begin(&m, {
                let read = read.clone();
                async move { text(&read).await }
            });
            pause(&m, 5_000).await;
            assert!(place.dials() <= 1 + 6, "{} dials in 5 s", place.dials());
            place.up(&server);
            assert_eq!(waits.await, Ok("deep".into()));
            // It is not truncated again.
            assert_eq!(text(&written).await, Ok("before".into()));
            written.write_all_at(6, b" and after").await.unwrap();
            assert_eq!(cat(&walked, "h").await, Ok("other".into()));
            assert_eq!(cat(&root, "far/f").await, Ok("before and after".into()));
            drop((read, written, walked));
            m.quiet(&client).await;
        });
    }
}

#[test]
fn who_does_not_want_to_wait_is_told_why() {
    for (seed, limit) in seeds(2).zip([0, 7]) {
        let wait = Wait::AtMost(Duration::from_secs(limit));
        world(seed, wait, Dialect::U, move |m, place, server, client, root| async move {
            let file = root.open("far/f", OpenFlags::READ).await.unwrap();
            place.down();
            let begun = m.env.now();
            let error = file.read(0, 10).await.unwrap_err();
            let took = m.env.now() - begun;
            assert!(took >= Duration::from_secs(limit) && took < Duration::from_secs(limit + 1), "{took:?}");
            let said = error.to_string();
            assert!(said.contains("reset") || said.contains("refused"), "{said}");
            let said = root.walk("far/f").await.unwrap_err().to_string();
            assert!(said.contains("reset") || said.contains("refused"), "{said}");
            // It still reconnects, and without a request.
            place.up(&server);
            pause(&m, 2_000).await;
            assert_eq!(text(&file).await, Ok("text".into()));
            drop(file);
            m.quiet(&client).await;
        });
    }
}

#[test]
fn a_refusal_is_an_error_at_once_with_growing_pauses_between_dials() {
    for (seed, wait) in seeds(2).zip([Wait::Ever, Wait::AtMost(Duration::from_secs(300))]) {
        world(seed, wait, Dialect::L, move |m, place, _server, client, root| async move {
            let file = root.open("far/f", OpenFlags::READ).await.unwrap();
            pause(&m, 2_000).await;
            place.refuse(true);
            let before = place.dials();
            for _ in 0..40 {
                let begun = m.env.now();
                assert_eq!(text(&file).await, Err(Errno::EACCES));
                assert_eq!(root.walk("far/f").await.unwrap_err().errno(), Errno::EACCES);
                assert!(m.env.now() - begun < Duration::from_millis(100));
                pause(&m, 3_000).await;
            }
            // 120 s: after 1, 2, 4, 8, 16, 32 and 60.
            let dials = place.dials() - before;
            assert!((5..=8).contains(&dials), "{dials} dials");
            place.refuse(false);
            pause(&m, 61_000).await;
            assert_eq!(text(&file).await, Ok("text".into()));
            drop(file);
            m.quiet(&client).await;
        });
    }
}

#[test]
fn a_file_with_the_same_qid_and_a_later_birth_is_stale() {
    for is_open in [true, false] {
        let world = World::new(0);
        let m = Muxed::new(&world);
        world.run(async move {
            let birth = Arc::new(AtomicI64::new(1));
            let born = birth.clone();
            let puppet = Puppet::new(&m, move |message, tag| match message {
                Tmsg::Getattr { .. } => {
                    let btime = Time { sec: born.load(Ordering::Relaxed), nsec: 0 };
                    let valid = GetMask::BASIC | GetMask::BTIME;
                    let attr = Attr { valid, qid: qid(b"f1"), btime, nlink: 1, ..Attr::default() };
                    Act::Say(reply(tag, &Rmsg::Getattr { attr }))
                }
                _ => Act::Honest,
            });
            let server = Server { wait: Some(Wait::Ever), ..puppet.server(&m, "far") };
            m.space.mount(server, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
            let (client, root) = m.client(Dialect::L).await;
            let file = match is_open {
                true => root.open("far/f1", OpenFlags::RDWR).await.unwrap(),
                false => root.walk("far/f1").await.unwrap(),
            };
            if !is_open {
                file.getattr(GetMask::BASIC).await.unwrap();
            }
            pause(&m, 100).await;
            let used = async || match is_open {
                true => file.write(0, b"text").await.map(drop),
                false => file.getattr(GetMask::BASIC).await.map(drop),
            };
            puppet.hang_up();
            pause(&m, 2_000).await;
            used().await.expect("the same file");
            birth.store(2, Ordering::Relaxed);
            let writes = puppet.count("Twrite");
            puppet.hang_up();
            pause(&m, 2_000).await;
            assert_eq!(used().await.unwrap_err().errno(), Errno::ESTALE);
            assert_eq!(puppet.count("Twrite"), writes, "nothing is written to the other file");
            drop(file);
            m.quiet(&client).await;
            m.clear().await;
        });
    }
}

#[test]
fn a_server_that_says_nothing_any_more_is_given_up_and_dialled_again() {
    world(0, Wait::Ever, Dialect::L, |m, place, _server, client, root| async move {
        let file = root.open("far/f", OpenFlags::READ).await.unwrap();
        pause(&m, 100_000).await;
        assert_eq!(place.dials(), 1, "silence alone is no death");
        place.become_of(Fate::Silent);
        let begun = m.env.now();
        assert_eq!(text(&file).await, Ok("text".into()));
        let took = m.env.now() - begun;
        assert!(took <= nine_mux::BEAT * 4 + Duration::from_millis(10), "{took:?}");
        drop(file);
        m.quiet(&client).await;
    });
}

#[test]
fn a_file_that_is_another_one_or_none_is_stale_and_the_others_are_not() {
    world(0, Wait::Ever, Dialect::U, |m, place, server, client, root| async move {
        let f = root.open("far/f", OpenFlags::READ).await.unwrap();
        let g = root.open("far/d/g", OpenFlags::READ).await.unwrap();
        let d = root.walk("far/d").await.unwrap();
        place.down();
        crate::mux::world::fill(&(server.clone() as Arc<dyn FileServer>), &[]).await;
        // While it was away one file was replaced and another removed.
        let direct = direct(&m, &server).await;
        direct.walk("f").await.unwrap().remove().await.unwrap();
        direct.walk("d/h").await.unwrap().remove().await.unwrap();
        put(&direct, "f", "another").await;
        place.up(&server);
        assert_eq!(text(&f).await, Err(Errno::ESTALE));
        assert_eq!(text(&g).await, Ok("deep".into()));
        assert_eq!(cat(&d, "g").await, Ok("deep".into()));
        assert_eq!(cat(&root, "far/f").await, Ok("another".into()));
        // An empty server at the same address.
        place.down();
        place.up(&ram(&[]).await);
        assert_eq!(text(&g).await, Err(Errno::ESTALE));
        assert_eq!(ls(&root, "far").await.unwrap(), Vec::<String>::new());
        // The original server again.
        place.down();
        place.up(&server);
        assert_eq!(text(&g).await, Ok("deep".into()));
        drop((f, g, d, direct));
        m.quiet(&client).await;
    });
}

/// Returns a client of the server itself.
async fn direct(m: &Muxed, server: &Arc<Ram>) -> File {
    let (near, far) = m.links.link(Shape::default());
    m.env.spawn(Box::pin(served(server.clone()).connect(Box::new(far))));
    let (client, driver) = Client::connect(near, nine_io::client::Options::default()).await.unwrap();
    m.env.spawn(Box::pin(async { drop(driver.await) }));
    client.attach("u", nine_proto::NOUID, "").await.unwrap()
}

#[test]
fn what_may_have_been_done_is_not_done_twice() {
    world(0, Wait::Ever, Dialect::L, |m, place, server, client, root| async move {
        let dir = Arc::new(root.walk("far/d").await.unwrap());
        place.become_of(Fate::Silent);
        let waits = begin(&m, {
            let dir = dir.clone();
            async move { dir.mkdir("new", 0o755, nine_proto::NOGID).await }
        });
        pause(&m, 100).await;
        place.cut();
        let error = match waits.await {
            Err(error) => error,
            Ok(_) => panic!("nobody can know that"),
        };
        assert_eq!(error.errno(), Errno::EIO, "{error}");
        // Requests that arrive while it is away were not sent, so they are executed once.
        place.down();
        let waits = begin(&m, {
            let dir = dir.clone();
            async move { dir.mkdir("later", 0o755, nine_proto::NOGID).await.map(drop) }
        });
        pause(&m, 3_000).await;
        place.up(&server);
        waits.await.unwrap();
        drop(dir);
        m.quiet(&client).await;
    });
}

#[test]
fn locks_and_unsynced_writes_are_lost_with_a_word() {
    world(0, Wait::Ever, Dialect::L, |m, place, server, client, root| async move {
        let locked = root.open("far/f", OpenFlags::RDWR).await.unwrap();
        let written = root.open("far/d/g", OpenFlags::RDWR).await.unwrap();
        let lock = LockRequest {
            ty: LockType::Write,
            flags: 0,
            start: 0,
            length: 10,
            proc_id: 1,
            client_id: b"host",
        };
        assert_eq!(locked.lock(&lock).await.unwrap(), LockStatus::Success);
        written.write_all_at(0, b"DEEP").await.unwrap();
        place.down();
        place.up(&server);
        assert_eq!(text(&locked).await, Err(Errno::ESTALE));
        assert_eq!(text(&written).await, Ok("DEEP".into()));
        assert_eq!(written.fsync(false).await.unwrap_err().errno(), Errno::EIO);
        written.fsync(false).await.unwrap();
        place.cut();
        written.fsync(false).await.unwrap();
        drop((locked, written));
        m.quiet(&client).await;
    });
}

#[test]
fn a_file_below_a_directory_that_was_renamed_is_found() {
    world(0, Wait::Ever, Dialect::L, |m, place, _server, client, root| async move {
        let g = root.open("far/d/g", OpenFlags::READ).await.unwrap();
        let far = root.walk("far").await.unwrap();
        far.rename("d", &far, "D").await.unwrap();
        let dir = root.walk("far/D").await.unwrap();
        dir.rename("g", &far, "G").await.unwrap();
        place.cut();
        assert_eq!(text(&g).await, Ok("deep".into()));
        assert_eq!(cat(&dir, "h").await, Ok("other".into()));
        drop((g, far, dir));
        m.quiet(&client).await;
    });
}

#[test]
fn a_link_that_flaps_ten_times_a_minute_loses_nothing() {
    for seed in seeds(4) {
        world(seed, Wait::Ever, Dialect::L, |m, place, _server, client, root| async move {
            let dir = root.walk("far/d").await.unwrap();
            let mut files = Vec::new();
            for n in 0..300 {
                let file = dir.open_or_create(format!("n{n}"), OpenFlags::RDWR, 0o644).await.unwrap();
                file.write_all_at(0, format!("{n}").as_bytes()).await.unwrap();
                files.push(file);
            }
            for round in 0..10 {
                place.cut();
                for (n, file) in files.iter().enumerate() {
                    assert_eq!(text(file).await, Ok(format!("{n}")), "round {round}");
                }
                pause(&m, 6_000).await;
            }
            assert!(place.dials() <= 12, "{} dials", place.dials());
            drop((dir, files));
            m.quiet(&client).await;
        });
    }
}

#[test]
fn a_replay_that_is_cut_again_and_again_goes_on_where_it_was() {
    world(0, Wait::Ever, Dialect::L, |m, place, _server, client, root| async move {
        let dir = root.walk("far/d").await.unwrap();
        let mut files = Vec::new();
        for n in 0..3000 {
            let file = dir.open_or_create(format!("n{n}"), OpenFlags::RDWR, 0o644).await.unwrap();
            files.push(file);
        }
        // So slow that a replay takes seconds. It is cut after two.
        place.0.lock().unwrap().shape = Shape { delay: Duration::from_millis(40), ..Shape::default() };
        for _ in 0..5 {
            place.cut();
            pause(&m, 2_000).await;
        }
        // A request need not wait for the restoration of other files.
        let begun = m.env.now();
        assert_eq!(text(&files[1500]).await, Ok(String::new()));
        assert!(m.env.now() - begun < Duration::from_secs(3), "{:?}", m.env.now() - begun);
        pause(&m, 20_000).await;
        let fids = || m.mux.status().upstreams.iter().map(|of| of.connections[0].fids).max().unwrap();
        assert!(fids() >= 3000, "{} came back", fids());
        drop((dir, files));
        m.quiet(&client).await;
    });
}

#[test]
fn an_equal_server_takes_over_what_has_no_state() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let files = [("same", "text"), ("changed", "one"), ("d/x", "1")];
        let (a, b) = (ram(&[("pad", "")]).await, ram(&[]).await);
        let (direct_a, direct_b) = (direct(&m, &a).await, direct(&m, &b).await);
        let then = Time { sec: 1_000_000_000, nsec: 5 };
        for of in [&direct_a, &direct_b] {
            for (name, content) in files {
                put(of, name, content).await;
            }
        }
        put(&direct_b, "changed", "two!").await;
        for of in [&direct_a, &direct_b] {
            for name in ["same", "changed", "d/x"] {
                let set = SetAttr { mtime: Some(nine_proto::TimeSet::To(then)), ..SetAttr::default() };
                of.walk(name).await.unwrap().setattr(&set).await.unwrap();
            }
        }
        let version = async |of: &File| of.walk("same").await.unwrap().qid().vers;
        assert_eq!(version(&direct_a).await, version(&direct_b).await, "the same history");
        let (near, far) = (Place::new(&m, &a, Shape::default()), Place::new(&m, &b, Shape::default()));
        let others: Vec<Arc<dyn Dial>> = vec![Arc::new(far.clone())];
        let server = Server { others, ..near.server("a,b", Wait::Ever) };
        m.space.mount(server, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
        let (client, root) = m.client(Dialect::L).await;
        let same = root.open("far/same", OpenFlags::READ).await.unwrap();
        let changed = root.open("far/changed", OpenFlags::READ).await.unwrap();
        let written = root.open("far/d/x", OpenFlags::RDWR).await.unwrap();
        let dir = root.walk("far/d").await.unwrap();
        let before = same.qid();
        assert_eq!(far.dials(), 0);
        near.down();
        assert_eq!(text(&same).await, Ok("text".into()));
        assert_eq!(text(&changed).await, Err(Errno::ESTALE));
        assert_eq!(text(&written).await, Err(Errno::ESTALE));
        assert_eq!(cat(&dir, "x").await, Ok("1".into()));
        // A walk now reaches a file that is another one for the client.
        let again = root.walk("far/same").await.unwrap();
        assert_ne!(again.qid().path, before.path);
        assert_eq!(far.dials(), 1);
        drop((same, changed, written, dir, again, direct_a, direct_b));
        m.quiet(&client).await;
        m.clear().await;
    });
    world.settle();
}

#[test]
fn a_client_that_goes_away_while_its_files_come_back_leaves_nothing() {
    world(0, Wait::Ever, Dialect::L, |m, place, server, client, root| async move {
        let mut files = Vec::new();
        for n in 0..500 {
            let name = format!("n{n}");
            let file = root.walk("far").await.unwrap();
            files.push(file.open_or_create(name, OpenFlags::RDWR, 0o644).await.unwrap());
        }
        place.down();
        let first = files.swap_remove(0);
        let waits = begin(&m, async move { first.read(0, 10).await });
        pause(&m, 1_500).await;
        client.abort(io::ErrorKind::ConnectionAborted.into());
        assert!(waits.await.is_err());
        place.up(&server);
        drop((files, root, client));
        pause(&m, 5_000).await;
        let status = m.mux.status();
        let far = status.upstreams.iter().find(|of| &*of.name == "far").unwrap();
        let fids: u32 = far.connections.iter().map(|connection| connection.fids).sum();
        assert!(fids <= 2, "{fids} fids are left");
        assert_eq!(status.jobs_now, 1, "the pulse of the lane");
    });
}

#[test]
fn a_hundred_and_fifty_thousand_open_files_come_back_while_others_are_served() {
    const CLIENTS: usize = 10;
    const EACH: usize = 15_000;
    let world = World::new(0);
    // A client may have a quarter of the free fids.
    let mut m = Muxed::new(&world);
    m.core = Core::with_budget(1 << 30);
    world.run(async move {
        let server = ram(&[("live", "live")]).await;
        let delay = Duration::from_millis(2);
        let place = Place::new(&m, &server, Shape { delay, ..Shape::default() });
        // Only our own connections may have so many fids.
        place.0.lock().unwrap().service = Some(Service { own: true, ..served(server.clone()) });
        m.space.mount(place.server("far", Wait::Ever), "", &owner(), "/far", Flags::REPLACE).await.unwrap();
        let good = m.far("good", ram(&[("f", "good")]).await, Shape::default());
        m.space.mount(good, "", &owner(), "/good", Flags::REPLACE).await.unwrap();
        let mut clients = Vec::new();
        for n in 0..CLIENTS {
            let (client, root) = m.client(Dialect::L).await;
            let dir = root.walk("far").await.unwrap();
            let name = format!("c{n}");
            dir.open_or_create(&name, OpenFlags::RDWR, 0o644)
                .await
                .unwrap()
                .write(0, name.as_bytes())
                .await
                .unwrap();
            let open = |_| dir.open(&name, OpenFlags::READ);
            let files: Vec<File> = stream::iter(0..EACH).map(open).buffered(256).try_collect().await.unwrap();
            drop(dir);
            clients.push((client, root, name, files));
        }
        let (client, root) = m.client(Dialect::L).await;
        let live = root.open("far/live", OpenFlags::READ).await.unwrap();
        let took = async |of: &str| {
            let begun = m.env.now();
            match of {
                "live" => assert_eq!(text(&live).await, Ok("live".into())),
                path => assert_eq!(cat(&root, path).await, Ok("good".into())),
            }
            m.env.now() - begun
        };
        let usual = (took("live").await, took("good/f").await);
        place.cut();
        let fids = || m.mux.status().upstreams.iter().map(|of| of.connections[0].fids).max().unwrap();
        // The first request restores its file.
        took("live").await;
        let (mut slowest, mut served) = ((Duration::ZERO, Duration::ZERO), 0);
        while (fids() as usize) < CLIENTS * EACH {
            slowest = (slowest.0.max(took("live").await), slowest.1.max(took("good/f").await));
            served += 1;
            assert!(m.env.now() < Duration::from_secs(600), "{} of them are back", fids());
        }
        assert!(served > 100, "they came back before anybody could be served: {served}");
        assert!(slowest.0 <= 2 * usual.0, "a live request takes {:?}, and took {:?}", usual.0, slowest.0);
        assert!(slowest.1 <= 2 * usual.1, "who has nothing to do with it: {:?}, {:?}", usual.1, slowest.1);
        assert_eq!(place.dials(), 2);
        for (client, root, name, mut files) in clients {
            for file in files.iter().step_by(1499) {
                assert_eq!(text(file).await, Ok(name.clone()));
            }
            files.clear();
            drop(root);
            m.quiet(&client).await;
        }
        drop((live, root));
        m.quiet(&client).await;
        m.clear().await;
    });
    world.settle();
}
