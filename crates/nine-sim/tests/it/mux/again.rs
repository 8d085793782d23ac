//! Links that break at the worst moment, repeatedly: a waiting request is served once, an unknown outcome is reported
//! as unknown, and an open file is found again.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::{poll_fn, ready};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, join_all};
use nine_io::Payload;
use nine_io::client::File;
use nine_io::server::{Answer, Core, FileServer, Gate, Later, Node, Reply, Req, ReqId, Service};
use nine_mux::{Boxed, Dial, Flags, Server, Spawn, Wait};
use nine_net::{Env, Peer, Transport};
use nine_proto::frame::{MSIZE_MAX, Split, split};
use nine_proto::msg::{Names, Tmsg};
use nine_proto::{
    Attr, Dialect, Errno, Fid, GetMask, LockRequest, LockStatus, LockType, NOGID, Op, OpenFlags, Qid, Tag,
    Walked, mode,
};
use nine_servers::Ram;
use nine_sim::{End, Links, Shape, World, seeds};

use crate::common::Raw;
use crate::mux::puppet::{Act, Puppet};
use crate::mux::world::{Muxed, cat, owner, ram, within};

/// A server on links that the test ends at will or after a given message. Clones share it.
#[derive(Clone)]
struct Site(Arc<Mutex<State>>);

struct State {
    service: Service,
    links: Arc<Links>,
    up: bool,
    /// Each of the next links ends after the server has got this many messages of this type.
    ends: VecDeque<(u8, usize)>,
    /// Number of next links that end right after their Rversion.
    brief: usize,
    wires: Vec<Weak<Mutex<Wire>>>,
}

#[derive(Default)]
struct Wire {
    cut: bool,
    waker: Option<Waker>,
}

struct Near {
    io: End,
    wire: Arc<Mutex<Wire>>,
    end: Option<(u8, usize)>,
    is_brief: bool,
    /// An incomplete message to the server.
    went: Vec<u8>,
    came: usize,
}

impl Site {
    fn new(m: &Muxed, server: Arc<Ram>) -> Self {
        Self(Arc::new(Mutex::new(State {
            service: Service::new(server, Gate::default(), Core::default()),
            links: m.links.clone(),
            up: true,
            ends: VecDeque::new(),
            brief: 0,
            wires: Vec::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Returns a mountable server with -r, which is addressed in this dialect.
    fn server(&self, wait: Wait, dialect: Dialect) -> Server {
        let mut server = Server { wait: Some(wait), ..Server::new("far", Arc::new(self.clone())) };
        server.options.dialects = vec![dialect];
        server
    }

    fn cut(&self) {
        for wire in std::mem::take(&mut self.state().wires).iter().filter_map(Weak::upgrade) {
            wire.lock().unwrap().cut();
        }
    }

    /// Makes the server unreachable until `up`.
    fn down(&self) {
        self.state().up = false;
        self.cut();
    }

    fn up(&self) {
        self.state().up = true;
    }

    /// Makes the server reachable, on links that end like this, and then on one that stays.
    fn up_and_cut(&self, ends: &[(u8, usize)]) {
        self.state().ends = ends.iter().copied().collect();
        self.up();
    }
}

impl Dial for Site {
    fn dial(&self, spawn: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        let mut state = self.state();
        if !state.up {
            return Box::pin(ready(Err(io::Error::from_raw_os_error(111))));
        }
        let (io, far) = state.links.link(Shape::default());
        spawn.spawn(Box::pin(state.service.connect(Box::new(far))));
        let wire = Arc::<Mutex<Wire>>::default();
        state.wires.push(Arc::downgrade(&wire));
        let is_brief = state.brief > 0;
        state.brief = state.brief.saturating_sub(1);
        let near = Near { io, wire, end: state.ends.pop_front(), is_brief, went: Vec::new(), came: 0 };
        Box::pin(ready(Ok(Box::new(near) as Box<dyn Transport>)))
    }
}

impl Wire {
    fn cut(&mut self) {
        self.cut = true;
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

impl Near {
    fn is_cut(&self, cx: &Context<'_>) -> bool {
        let mut wire = self.wire.lock().unwrap();
        wire.waker = Some(cx.waker().clone());
        wire.cut
    }

    /// Records bytes that go to the server.
    fn note(&mut self, bytes: &[u8]) {
        self.went.extend_from_slice(bytes);
        while let Split::Whole(n) = split(&self.went, MSIZE_MAX).expect("the mux sends what is 9P") {
            let kind = self.went[4];
            self.went.drain(..n);
            if let Some((of, left)) = &mut self.end
                && *of == kind
            {
                *left -= 1;
                if *left == 0 {
                    self.end = None;
                    self.wire.lock().unwrap().cut();
                }
            }
        }
    }
}

fn reset<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
}

impl Transport for Near {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.is_cut(cx) {
            return reset();
        }
        // Only the Rversion arrives.
        if self.is_brief && self.came >= 19 {
            self.wire.lock().unwrap().cut();
            return Poll::Pending;
        }
        let read = self.io.poll_read(cx, buf);
        if let Poll::Ready(Ok(n)) = &read {
            self.came += n;
        }
        read
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.is_cut(cx) {
            return reset();
        }
        let wrote = self.io.poll_write(cx, bufs);
        if let Poll::Ready(Ok(n)) = &wrote {
            let bytes = bufs.iter().flat_map(|buf| buf.iter().copied()).take(*n).collect::<Vec<u8>>();
            self.note(&bytes);
        }
        wrote
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_close(cx)
    }

    fn peer(&self) -> &Peer {
        self.io.peer()
    }
}

/// Runs work in the background. The returned future waits for its output.
fn begin<T: 'static>(m: &Muxed, work: impl Future<Output = T> + 'static) -> LocalBoxFuture<'static, T> {
    let done = Rc::new(RefCell::new((None, None::<Waker>)));
    let told = done.clone();
    m.env.spawn(Box::pin(async move {
        let value = work.await;
        let mut told = told.borrow_mut();
        told.0 = Some(value);
        told.1.take().into_iter().for_each(Waker::wake);
    }));
    Box::pin(poll_fn(move |cx| {
        let mut done = done.borrow_mut();
        done.1 = Some(cx.waker().clone());
        done.0.take().map_or(Poll::Pending, Poll::Ready)
    }))
}

async fn pause(m: &Muxed, ms: u64) {
    begin(m, m.env.sleep_until(m.env.now() + Duration::from_millis(ms))).await;
}

/// Returns the output, which must be available within a minute.
async fn soon<T>(m: &Muxed, work: impl Future<Output = T>) -> T {
    m.soon(Duration::from_secs(60), work).await.expect("it ends within a minute")
}

async fn text(file: &File) -> Result<String, Errno> {
    let data = file.read(0, 1000).await.map_err(|error| error.errno())?;
    Ok(String::from_utf8_lossy(&data).into())
}

async fn raw_walk(raw: &mut Raw, fid: u32, newfid: u32, names: &[&[u8]]) {
    let walk = Tmsg::Walk { fid: Fid(fid), newfid: Fid(newfid), names: Names::Slice(names) };
    let walked = raw.call(1, walk).await;
    assert!(walked.starts_with("Rwalk"), "{walked}");
}

async fn raw_open(raw: &mut Raw, fid: u32, flags: u32) {
    let opened = raw.call(1, Tmsg::Lopen { fid: Fid(fid), flags }).await;
    assert!(opened.starts_with("Rlopen"), "{opened}");
}

/// Runs a test in a world with a site that speaks this dialect and is mounted with -r on `/far`.
fn world<F: Future<Output = ()> + 'static>(
    seed: u64,
    wait: Wait,
    dialect: Dialect,
    test: impl FnOnce(Muxed, Site) -> F + 'static,
) {
    let world = World::new(seed);
    let m = Muxed::new(&world);
    world.run(async move {
        let site = Site::new(&m, ram(FILES).await);
        m.space.mount(site.server(wait, dialect), "", &owner(), "/far", Flags::REPLACE).await.unwrap();
        test(m.clone(), site).await;
        m.clear().await;
    });
    world.settle();
}

const FILES: &[(&str, &str)] = &[("f", "text"), ("d/g", "deep"), ("d/h", "other")];
const TLOPEN: u8 = 12;
const TATTACH: u8 = 104;
const TWALK: u8 = 110;

#[test]
fn a_cut_between_rversion_and_rattach_leaves_nobody_waiting_for_another() {
    for seed in seeds(4) {
        world(seed, Wait::Ever, Dialect::L, |m, site| async move {
            let (client, root) = m.client(Dialect::L).await;
            let (other, its_root) = m.client(Dialect::U).await;
            let file = root.open("far/f", OpenFlags::READ).await.unwrap();
            let its_file = its_root.open("far/d/g", OpenFlags::READ).await.unwrap();
            site.down();
            let read = begin(&m, async move { text(&file).await });
            pause(&m, 1_500).await;
            site.up_and_cut(&[(TATTACH, 1)]);
            assert_eq!(soon(&m, read).await, Ok("text".into()));
            assert_eq!(soon(&m, text(&its_file)).await, Ok("deep".into()));
            assert_eq!(soon(&m, cat(&its_root, "far/d/h")).await, Ok("other".into()));
            drop((root, its_file, its_root));
            m.quiet(&client).await;
            m.quiet(&other).await;
        });
    }
}

#[test]
fn whoever_waits_is_woken_at_each_return_however_short_the_last_one_was() {
    for seed in seeds(8) {
        world(seed, Wait::Ever, Dialect::L, |m, site| async move {
            let (client, root) = m.client(Dialect::L).await;
            let root = Rc::new(root);
            let open = async |_| root.open("far/f", OpenFlags::READ).await.unwrap();
            let files = join_all((0..5).map(open)).await;
            site.down();
            let mut waits: Vec<_> =
                files.into_iter().map(|file| begin(&m, async move { text(&file).await })).collect();
            for _ in 0..3 {
                let root = root.clone();
                waits.push(begin(&m, async move {
                    text(&root.open("far/f", OpenFlags::READ).await.map_err(|error| error.errno())?).await
                }));
            }
            pause(&m, 1_500).await;
            site.state().brief = 5;
            site.up();
            for read in soon(&m, join_all(waits)).await {
                assert_eq!(read, Ok("text".into()));
            }
            drop(root);
            m.quiet(&client).await;
        });
    }
}

#[test]
fn a_second_cut_while_a_fid_comes_back_is_not_told_to_the_program() {
    let cuts: &[&[(u8, usize)]] = &[
        &[(TWALK, 1)],
        &[(TWALK, 2)],
        &[(TWALK, 1), (TWALK, 1), (TWALK, 2)],
        &[(TLOPEN, 1)],
        &[(TWALK, 1), (TLOPEN, 1), (TWALK, 2), (TLOPEN, 1)],
    ];
    for (seed, ends) in (0..).zip(cuts) {
        world(seed, Wait::Ever, Dialect::L, move |m, site| async move {
            let mut raw = m.raw().await;
            raw_walk(&mut raw, 1, 2, &[b"far", b"d", b"g"]).await;
            raw_walk(&mut raw, 1, 3, &[b"far"]).await;
            raw_open(&mut raw, 2, 0).await;
            let read = Tmsg::Read { fid: Fid(2), offset: 0, count: 100 };
            let rename = Tmsg::Rename { fid: Fid(2), dfid: Fid(3), name: b"G" };
            for (asked, answer) in [(read, "Rread"), (rename, "Rrename")] {
                site.down();
                raw.send(1, asked).await.unwrap();
                pause(&m, 1_500).await;
                site.up_and_cut(ends);
                let reply = soon(&m, raw.reply()).await;
                assert!(reply.starts_with(answer), "{reply}, after {ends:?}");
                site.state().ends.clear();
            }
            raw_walk(&mut raw, 1, 4, &[b"far", b"G"]).await;
            raw.hang_up();
        });
    }
}

#[test]
fn a_file_is_found_by_any_fid_that_is_older_than_its_name() {
    world(0, Wait::Ever, Dialect::L, |m, site| async move {
        let (client, root) = m.client(Dialect::L).await;
        let far = root.walk("far").await.unwrap();
        let (old, dir) = (root.walk("far/f").await.unwrap(), root.walk("far/d").await.unwrap());
        far.rename("f", &far, "F").await.unwrap();
        far.rename("d", &far, "D").await.unwrap();
        let cloned = old.walk("").await.unwrap();
        let opened = old.open("", OpenFlags::READ).await.unwrap();
        let below = dir.open("g", OpenFlags::READ).await.unwrap();
        let new = dir.open_or_create("new", OpenFlags::RDWR, 0o644).await.unwrap();
        new.write_all_at(0, b"made").await.unwrap();
        for _ in 0..2 {
            site.cut();
            assert_eq!(text(&opened).await, Ok("text".into()));
            assert_eq!(text(&below).await, Ok("deep".into()));
            assert_eq!(text(&new).await, Ok("made".into()));
            assert_eq!(cat(&cloned, "").await, Ok("text".into()));
            assert_eq!(cat(&dir, "h").await, Ok("other".into()));
        }
        drop((far, old, dir, cloned, opened, below, new, root));
        m.quiet(&client).await;
    });
}

#[test]
fn a_file_that_is_renamed_twice_by_one_fid_is_found_and_so_is_a_new_one_of_its_old_name() {
    world(0, Wait::Ever, Dialect::L, |m, site| async move {
        let (client, root) = m.client(Dialect::L).await;
        let mut raw = m.raw().await;
        raw_walk(&mut raw, 1, 2, &[b"far", b"f"]).await;
        raw_walk(&mut raw, 1, 3, &[b"far"]).await;
        let far = root.walk("far").await.unwrap();
        let file = far.open("f", OpenFlags::READ).await.unwrap();
        let renamed = raw.call(1, Tmsg::Rename { fid: Fid(2), dfid: Fid(3), name: b"b" }).await;
        assert!(renamed.starts_with("Rrename"), "{renamed}");
        let new = far.open_or_create("f", OpenFlags::RDWR, 0o644).await.unwrap();
        new.write_all_at(0, b"another").await.unwrap();
        let renamed = raw.call(1, Tmsg::Rename { fid: Fid(2), dfid: Fid(3), name: b"c" }).await;
        assert!(renamed.starts_with("Rrename"), "{renamed}");
        site.cut();
        assert_eq!(text(&file).await, Ok("text".into()));
        assert_eq!(text(&new).await, Ok("another".into()));
        raw_open(&mut raw, 2, 0).await;
        raw.hang_up();
        drop((far, file, new, root));
        m.quiet(&client).await;
    });
}

#[test]
fn a_twstat_names_a_file_twice_and_it_is_found() {
    for upstream in [Dialect::L, Dialect::U, Dialect::P2000] {
        world(0, Wait::Ever, upstream, |m, site| async move {
            let (client, root) = m.client(Dialect::U).await;
            let (by, file) =
                (root.walk("far/f").await.unwrap(), root.open("far/f", OpenFlags::READ).await.unwrap());
            by.rename_here(b"b").await.unwrap();
            let new = root.walk("far").await.unwrap();
            let new = new.open_or_create("f", OpenFlags::RDWR, 0o644).await.unwrap();
            new.write_all_at(0, b"another").await.unwrap();
            by.rename_here(b"c").await.unwrap();
            site.cut();
            assert_eq!(text(&file).await, Ok("text".into()));
            assert_eq!(text(&new).await, Ok("another".into()));
            assert_eq!(cat(&by, "").await, Ok("text".into()));
            drop((by, file, new, root));
            m.quiet(&client).await;
        });
    }
}

#[test]
fn ten_reads_of_one_fid_lose_their_patience_together() {
    world(0, Wait::AtMost(Duration::from_secs(30)), Dialect::L, |m, site| async move {
        let mut raw = m.raw().await;
        raw_walk(&mut raw, 1, 2, &[b"far", b"f"]).await;
        raw_open(&mut raw, 2, 0).await;
        site.down();
        let begun = m.env.now();
        for tag in 0..10 {
            raw.send(tag, Tmsg::Read { fid: Fid(2), offset: 0, count: 100 }).await.unwrap();
        }
        for _ in 0..10 {
            let reply = raw.reply().await;
            let took = m.env.now() - begun;
            assert!(reply.starts_with("Rlerror"), "{reply}");
            assert!(took >= Duration::from_secs(30) && took < Duration::from_secs(32), "{took:?}");
        }
        raw.hang_up();
    });
}

/// So many names that a server returns them in several blocks.
const MANY: usize = 3000;

async fn listed(prefix: &str) -> Arc<Ram> {
    let names: Vec<String> = (0..MANY).map(|n| format!("d/{prefix}{n:04}")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "")).collect();
    ram(&files).await
}

/// Returns the names of an open directory. The link is cut after a part of them.
async fn names_over_a_cut(dir: &File, mut cut: impl AsyncFnMut()) -> Result<Vec<String>, Errno> {
    let (mut names, mut cookie, mut is_cut) = (Vec::new(), 0, false);
    while let Some((entries, next)) =
        dir.read_dir_block(cookie, 8 * 1024).await.map_err(|error| error.errno())?
    {
        names.extend(entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()));
        cookie = next;
        if names.len() > MANY / 2 && !is_cut {
            is_cut = true;
            cut().await;
        }
    }
    Ok(names)
}

#[test]
fn the_rest_of_a_half_read_directory_comes_after_a_cut_each_name_once() {
    for (upstream, is_union) in
        [(Dialect::P2000, false), (Dialect::U, false), (Dialect::P2000, true), (Dialect::U, true)]
    {
        let world = World::new(0);
        let m = Muxed::new(&world);
        world.run(async move {
            let site = Site::new(&m, listed("n").await);
            let far = site.server(Wait::Ever, upstream);
            m.space.mount(far, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
            let mut all: BTreeSet<String> = (0..MANY).map(|n| format!("n{n:04}")).collect();
            if is_union {
                let good = m.far("good", ram(&[("last", "")]).await, Shape::default());
                m.space.mount(good, "", &owner(), "/far/d", Flags::AFTER).await.unwrap();
                all.insert("last".into());
            }
            let (client, root) = m.client(Dialect::L).await;
            let dir = root.open("far/d", OpenFlags::READ).await.unwrap();
            let names = soon(&m, names_over_a_cut(&dir, async || site.cut())).await.unwrap();
            assert_eq!(names.len(), all.len(), "{upstream:?} {is_union}");
            assert!(names.into_iter().collect::<BTreeSet<_>>() == all, "{upstream:?} {is_union}");
            drop((dir, root));
            m.quiet(&client).await;
            m.clear().await;
        });
        world.settle();
    }
}

#[test]
fn a_directory_of_an_equal_server_does_not_go_on_for_another_one() {
    for (upstream, is_union) in
        [(Dialect::P2000, false), (Dialect::U, false), (Dialect::P2000, true), (Dialect::L, true)]
    {
        let world = World::new(0);
        let m = Muxed::new(&world);
        world.run(async move {
            let (site, equal) =
                (Site::new(&m, listed("n").await), Site::new(&m, ram(&[("pad", ""), ("d/e", "")]).await));
            let others: Vec<Arc<dyn Dial>> = vec![Arc::new(equal)];
            let far = Server { others, ..site.server(Wait::Ever, upstream) };
            m.space.mount(far, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
            if is_union {
                let good = m.far("good", ram(&[("last", "")]).await, Shape::default());
                m.space.mount(good, "", &owner(), "/far/d", Flags::AFTER).await.unwrap();
            }
            let (client, root) = m.client(Dialect::L).await;
            let dir = root.open("far/d", OpenFlags::READ).await.unwrap();
            let names = soon(&m, names_over_a_cut(&dir, async || site.down())).await;
            assert_eq!(names.map(|names| names.len()), Err(Errno::ESTALE), "{upstream:?} {is_union}");
            drop((dir, root));
            m.quiet(&client).await;
            m.clear().await;
        });
        world.settle();
    }
}

/// Open for appending, in .L.
const APPEND: u32 = 0o2001;

#[test]
fn what_was_never_sent_is_done_once_and_what_was_sent_is_called_unknown() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let puppet = Puppet::new(&m, |_, _| Act::Honest);
        let mut server = Server { wait: Some(Wait::Ever), ..puppet.server(&m, "far") };
        server.options.calls = 4;
        m.space.mount(server, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
        let mut raw = m.raw().await;
        for (fid, name) in [(2, &b"f"[..]), (3, b"d"), (4, b"d"), (5, b"g")] {
            raw_walk(&mut raw, 1, fid, &[b"far", name]).await;
        }
        raw_open(&mut raw, 2, 0).await;
        raw_open(&mut raw, 5, APPEND).await;
        puppet.does(|message, _| if let Tmsg::Read { .. } = message { Act::Hold } else { Act::Honest });
        for tag in 0..4 {
            raw.send(tag, Tmsg::Read { fid: Fid(2), offset: 0, count: 5 }).await.unwrap();
        }
        puppet.until(&m.env, |books| books.held.len() == 4).await;
        let write = Tmsg::Write { fid: Fid(5), offset: 0, data: nine_proto::msg::Data::Bytes(b"line") };
        raw.send(10, Tmsg::Mkdir { dfid: Fid(3), name: b"dnew", mode: 0o755, gid: 0 }).await.unwrap();
        raw.send(11, Tmsg::Lcreate { fid: Fid(4), name: b"new", flags: 2, mode: 0o644, gid: 0 })
            .await
            .unwrap();
        raw.send(12, write).await.unwrap();
        pause(&m, 100).await;
        let counts = || ["Tmkdir", "Tlcreate", "Twrite"].map(|label| puppet.count(label));
        assert_eq!(counts(), [0; 3], "they lie in the queue");
        puppet.does(|_, _| Act::Honest);
        puppet.hang_up();
        let mut came = HashMap::new();
        for _ in 0..7 {
            let reply = soon(&m, raw.reply()).await;
            let words: Vec<&str> = reply.split(' ').collect();
            came.insert(words[2].parse::<u16>().unwrap(), words[0].to_string());
        }
        assert_eq!([10, 11, 12].map(|tag| &*came[&tag]), ["Rmkdir", "Rlcreate", "Rwrite"]);
        assert!((0..4).all(|tag| came[&tag] == "Rread"), "{came:?}");
        assert_eq!(counts(), [1; 3]);
        raw.hang_up();
        // Requests that were sent may have been executed.
        let (client, root) = m.client(Dialect::L).await;
        let (dir, gone) = (root.walk("far/d").await.unwrap(), root.walk("far/f").await.unwrap());
        puppet.does(|message, _| match message {
            Tmsg::Mkdir { .. } | Tmsg::Remove { .. } => Act::LastWords(Vec::new()),
            _ => Act::Honest,
        });
        let made = soon(&m, dir.mkdir("dnew", 0o755, NOGID)).await;
        assert_eq!(made.map(drop).unwrap_err().errno(), Errno::EIO);
        assert_eq!(soon(&m, gone.remove()).await.unwrap_err().errno(), Errno::EIO);
        let (_wordy, its_root) = m.client(Dialect::U).await;
        let gone = soon(&m, its_root.walk("far/f")).await.unwrap();
        let said = soon(&m, gone.remove()).await.unwrap_err().to_string();
        assert!(said.contains("not known"), "{said}");
        assert_eq!(["Tmkdir", "Tremove"].map(|label| puppet.count(label)), [2, 2]);
        drop((dir, root));
        m.quiet(&client).await;
        m.clear().await;
    });
}

#[test]
fn a_clunk_waits_for_nobody() {
    world(0, Wait::Ever, Dialect::L, |m, site| async move {
        let mut raw = m.raw().await;
        raw_walk(&mut raw, 1, 2, &[b"far", b"f"]).await;
        raw_walk(&mut raw, 1, 3, &[b"far", b"f"]).await;
        raw_open(&mut raw, 2, 2).await;
        site.down();
        for after in [0, 2_500] {
            pause(&m, after).await;
            let fid = Fid(if after == 0 { 2 } else { 3 });
            let clunk = m.soon(Duration::from_millis(10), raw.call(1, Tmsg::Clunk { fid })).await;
            assert_eq!(clunk.as_deref(), Some("Rclunk tag 1"));
        }
        site.up();
        raw.hang_up();
    });
}

/// A server of two long files, `a` and `b`, each filled with one byte. It can hold requests back.
struct Slate(Mutex<Slates>);

struct Slates {
    byte: u8,
    holds: Holds,
    held: Vec<(ReqId, Later)>,
    /// Number of requested bytes, and of those whose reads were cancelled.
    asked: u64,
    cancelled: u64,
    wrote: Vec<u64>,
}

/// Decides whether a request to this file is held back.
type Holds = Box<dyn FnMut(&Op<'_>, &Qid) -> bool + Send>;

const ROOT: Qid = Qid { ty: Qid::DIR, vers: 0, path: 1 };
const LENGTH: u64 = 1 << 30;

impl Slate {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Slates {
            byte: b'.',
            holds: Box::new(|_, _| false),
            held: Vec::new(),
            asked: 0,
            cancelled: 0,
            wrote: Vec::new(),
        })))
    }

    fn books(&self) -> MutexGuard<'_, Slates> {
        self.0.lock().unwrap()
    }

    /// Sets which requests are held back from now on.
    fn holds(&self, holds: impl FnMut(&Op<'_>, &Qid) -> bool + Send + 'static) {
        self.books().holds = Box::new(holds);
    }

    fn answer_all(&self) {
        let held = std::mem::take(&mut self.books().held);
        for (_, later) in held {
            let reply = self.books().reply(&later.op(), later.node::<Qid>().unwrap());
            later.respond(reply);
        }
    }
}

impl Slates {
    fn reply(&mut self, op: &Op<'_>, qid: Arc<Qid>) -> nine_proto::Result<Reply> {
        Ok(match op {
            Op::Walk { names } => {
                let mut qids = Walked::new();
                let mut node = qid;
                for name in names.iter() {
                    let [byte @ (b'a' | b'b')] = name else { return Err(Errno::ENOENT.into()) };
                    node = Arc::new(Qid { ty: 0, vers: 1, path: (*byte).into() });
                    qids.push(*node);
                }
                Reply::Walk { qids, node: Some(node) }
            }
            Op::Open { .. } => Reply::Open { qid: *qid, iounit: 0, node: qid },
            Op::Read { count, .. } => Reply::Read(Payload::from(vec![self.byte; *count as usize])),
            Op::Write { data, .. } => {
                self.wrote.push(qid.path);
                Reply::Wrote(data.len() as u32)
            }
            Op::Getattr { .. } => {
                let mode = if qid.is_dir() { 0o40755 } else { mode::S_IFREG | 0o666 };
                let attr = Attr { valid: GetMask::BASIC, qid: *qid, mode, size: LENGTH, ..Attr::default() };
                Reply::Attr(Box::new(attr))
            }
            Op::Lock(_) => Reply::Lock(LockStatus::Success),
            Op::Clunk => Reply::Done,
            _ => return Err(Errno::EOPNOTSUPP.into()),
        })
    }
}

impl FileServer for Slate {
    fn serve(&self, req: Req) -> Answer {
        let op = req.op();
        if let Op::Attach { .. } = op {
            return req.now(Ok(Reply::Attach { qid: ROOT, node: Arc::new(ROOT) }));
        }
        let Ok(qid) = req.node::<Qid>() else { return req.now(Err(Errno::EOPNOTSUPP.into())) };
        let mut books = self.books();
        if let Op::Read { count, .. } = op {
            books.asked += u64::from(count);
        }
        if (books.holds)(&op, &qid) {
            let id = req.id();
            let (answer, later) = req.later();
            books.held.push((id, later));
            return answer;
        }
        let reply = books.reply(&op, qid);
        drop(books);
        req.now(reply)
    }

    fn cancel(&self, id: ReqId, _: Option<&Node>) {
        let mut books = self.books();
        if let Some(at) = books.held.iter().position(|(other, _)| *other == id) {
            let (_, later) = books.held.swap_remove(at);
            if let Op::Read { count, .. } = later.op() {
                books.cancelled += u64::from(count);
            }
            drop(books);
            later.respond(Err(Errno::EINTR.into()));
        }
    }
}

#[test]
fn reads_that_are_taken_back_leave_little_asked_for_ahead() {
    const COUNT: u32 = 64 * 1024 - 24;
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let slate = Slate::new();
        let server = Server { ahead: true, ..m.far("far", slate.clone(), Shape::default()) };
        m.space.mount(server, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
        let mut raw = m.raw().await;
        raw_walk(&mut raw, 1, 2, &[b"far", b"a"]).await;
        raw_open(&mut raw, 2, 0).await;
        let mut next = 0;
        for _ in 0..8 {
            let read = raw.call(1, Tmsg::Read { fid: Fid(2), offset: next, count: COUNT }).await;
            assert!(read.starts_with("Rread"));
            next += u64::from(COUNT);
        }
        slate.holds(|op, _| matches!(op, Op::Read { .. }));
        for _ in 0..1_000 {
            raw.send(1, Tmsg::Read { fid: Fid(2), offset: next, count: COUNT }).await.unwrap();
            raw.send(2, Tmsg::Flush { oldtag: Tag(1) }).await.unwrap();
            while !raw.reply().await.starts_with("Rflush tag 2") {}
            next += u64::from(COUNT);
        }
        // Count the requests that the mux has not cancelled.
        slate.holds(|_, _| false);
        slate.answer_all();
        pause(&m, 1_000).await;
        let wanted = {
            let books = slate.books();
            books.asked - books.cancelled
        };
        assert!(wanted < 8 << 20, "{wanted} bytes that nobody reads");
        raw.hang_up();
        m.clear().await;
    });
}

#[test]
fn appends_wait_for_those_to_the_same_file_only() {
    for wait in [None, Some(Wait::Ever)] {
        let world = World::new(0);
        let m = Muxed::new(&world);
        world.run(async move {
            let slate = Slate::new();
            let mut server = Server { wait, ..m.far("far", slate.clone(), Shape::default()) };
            server.options.dialects = vec![Dialect::P2000];
            m.space.mount(server, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
            let (client, root) = m.client(Dialect::L).await;
            let flags = OpenFlags::WRITE | OpenFlags::APPEND;
            let open = async |path| Rc::new(root.open(path, flags).await.unwrap());
            let (a, b) = (open("far/a").await, open("far/b").await);
            slate.holds(|op, qid| matches!(op, Op::Write { .. }) && qid.path == u64::from(b'a'));
            let append = |file: &Rc<File>| {
                let file = file.clone();
                begin(&m, async move { file.write(0, b"line").await.map_err(|error| error.errno()) })
            };
            let stuck = [append(&a), append(&a)];
            pause(&m, 100).await;
            for _ in 0..3 {
                assert_eq!(within(&m.env, Duration::from_millis(100), append(&b)).await, Ok(4));
            }
            assert_eq!(slate.books().held.len(), 1, "the second waits for the first");
            slate.holds(|_, _| false);
            slate.answer_all();
            assert_eq!(join_all(stuck).await, [Ok(4), Ok(4)]);
            assert_eq!(slate.books().wrote, [b"b", b"b", b"b", b"a", b"a"].map(|name| u64::from(name[0])));
            drop((a, b, root));
            m.quiet(&client).await;
            m.clear().await;
        });
    }
}

#[test]
fn whoever_takes_a_lock_reads_what_was_written_before() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let slate = Slate::new();
        let server = Server { ahead: true, ..m.far("far", slate.clone(), Shape::default()) };
        m.space.mount(server, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
        let (client, root) = m.client(Dialect::L).await;
        let file = root.open("far/a", OpenFlags::RDWR).await.unwrap();
        let mut next = 0;
        for _ in 0..8 {
            assert!(file.read(next, 10_000).await.unwrap() == vec![b'.'; 10_000]);
            next += 10_000;
        }
        slate.books().byte = b'!';
        let lock =
            LockRequest { ty: LockType::Read, flags: 0, start: 0, length: 0, proc_id: 1, client_id: b"host" };
        assert_eq!(file.lock(&lock).await.unwrap(), LockStatus::Success);
        assert!(file.read(next, 10_000).await.unwrap() == vec![b'!'; 10_000], "what was read ahead");
        drop((file, root));
        m.quiet(&client).await;
        m.clear().await;
    });
}

#[test]
fn a_name_given_by_others_is_no_obstacle_to_a_twstat() {
    for upstream in [Dialect::L, Dialect::U] {
        world(0, Wait::Ever, upstream, |m, site| async move {
            let (client, root) = m.client(Dialect::L).await;
            let (other, its_root) = m.client(Dialect::U).await;
            let far = root.walk("far").await.unwrap();
            let old = its_root.walk("far/f").await.unwrap();
            far.rename("f", &far, "b").await.unwrap();
            old.rename_here(b"c").await.unwrap();
            site.cut();
            assert_eq!(cat(&old, "").await, Ok("text".into()));
            assert_eq!(cat(&far, "c").await, Ok("text".into()));
            drop((far, old, root, its_root));
            m.quiet(&client).await;
            m.quiet(&other).await;
        });
    }
}

#[test]
fn a_mount_point_that_is_older_than_the_name_of_its_directory_is_found() {
    for is_union in [false, true] {
        world(0, Wait::Ever, Dialect::L, move |m, site| async move {
            m.space.bind("/far/d", "/b", Flags::REPLACE.with_create()).await.unwrap();
            if is_union {
                let good = m.far("good", ram(&[("last", "")]).await, Shape::default());
                m.space.mount(good, "", &owner(), "/b", Flags::AFTER).await.unwrap();
            }
            let (client, root) = m.client(Dialect::L).await;
            let (far, old) = (root.walk("far").await.unwrap(), root.walk("b").await.unwrap());
            far.rename("d", &far, "D").await.unwrap();
            let cloned = old.walk("").await.unwrap();
            let below = old.open("g", OpenFlags::READ).await.unwrap();
            for _ in 0..2 {
                site.cut();
                assert_eq!(cat(&cloned, "h").await, Ok("other".into()), "{is_union}");
                assert_eq!(text(&below).await, Ok("deep".into()), "{is_union}");
                assert_eq!(cat(&old, "h").await, Ok("other".into()), "{is_union}");
            }
            drop((far, old, cloned, below, root));
            m.quiet(&client).await;
        });
    }
}

#[test]
fn a_half_read_directory_that_is_renamed_goes_on_after_a_cut() {
    for (upstream, is_union) in [(Dialect::P2000, false), (Dialect::P2000, true), (Dialect::L, true)] {
        let world = World::new(0);
        let m = Muxed::new(&world);
        world.run(async move {
            let site = Site::new(&m, listed("n").await);
            let server = site.server(Wait::Ever, upstream);
            m.space.mount(server, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
            m.space.bind("/far/d", "/u", Flags::REPLACE).await.unwrap();
            if is_union {
                let good = m.far("good", ram(&[("last", "")]).await, Shape::default());
                m.space.mount(good, "", &owner(), "/u", Flags::AFTER).await.unwrap();
            }
            let (client, root) = m.client(Dialect::L).await;
            let far = Rc::new(root.walk("far").await.unwrap());
            let dir = root.open("u", OpenFlags::READ).await.unwrap();
            let renames = async || {
                far.rename("d", &far, "D").await.unwrap();
                site.cut();
            };
            let names = soon(&m, names_over_a_cut(&dir, renames)).await.unwrap();
            assert_eq!(names.len(), MANY + usize::from(is_union), "{upstream:?}");
            drop((far, dir, root));
            m.quiet(&client).await;
            m.clear().await;
        });
        world.settle();
    }
}

#[test]
fn a_walk_through_a_union_loses_its_patience_once() {
    world(0, Wait::AtMost(Duration::from_secs(5)), Dialect::L, |m, site| async move {
        m.space.bind("/far", "/u", Flags::REPLACE).await.unwrap();
        m.space.bind("/far/d", "/u", Flags::AFTER).await.unwrap();
        let (client, root) = m.client(Dialect::L).await;
        let dir = root.walk("u").await.unwrap();
        site.down();
        for from in [&root, &dir] {
            let begun = m.env.now();
            let name = if std::ptr::eq(from, &root) { "u/g" } else { "g" };
            assert!(from.walk(name).await.is_err());
            let took = m.env.now() - begun;
            assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(6), "{took:?}");
        }
        drop((dir, root));
        m.quiet(&client).await;
    });
}

#[test]
fn patience_begins_anew_when_a_request_was_sent_and_lost() {
    const TREAD: u8 = 116;
    world(0, Wait::AtMost(Duration::from_secs(30)), Dialect::L, |m, site| async move {
        let (client, root) = m.client(Dialect::L).await;
        let file = Rc::new(root.open("far/f", OpenFlags::READ).await.unwrap());
        site.down();
        let reads = file.clone();
        let read = begin(&m, async move { text(&reads).await });
        pause(&m, 28_000).await;
        site.up_and_cut(&[(TREAD, 1); 6]);
        let begun = m.env.now();
        assert_eq!(soon(&m, read).await, Ok("text".into()));
        assert!(m.env.now() - begun > Duration::from_secs(4), "the links have ended one after the other");
        drop((file, root));
        m.quiet(&client).await;
    });
}

#[test]
fn dot_dot_leads_to_where_a_directory_is_now() {
    world(0, Wait::Ever, Dialect::L, |m, site| async move {
        let (client, root) = m.client(Dialect::L).await;
        let far = root.walk("far").await.unwrap();
        far.mkdir("a", 0o755, NOGID).await.unwrap();
        let a = far.walk("a").await.unwrap();
        a.mkdir("x", 0o755, NOGID).await.unwrap();
        let x = far.walk("a/x").await.unwrap();
        far.rename("a", &far, "b").await.unwrap();
        far.mkdir("a", 0o755, NOGID).await.unwrap();
        for cut in [false, true] {
            if cut {
                site.cut();
            }
            let now = far.walk("b").await.unwrap().qid().path;
            assert_eq!(x.walk("..").await.unwrap().qid().path, now);
            assert_eq!(x.walk("../../b").await.unwrap().qid().path, now);
            assert_eq!(x.walk("../..").await.unwrap().qid().path, far.qid().path);
            assert_eq!(x.walk("../../..").await.unwrap().qid().path, root.qid().path);
        }
        drop((x, a, far, root));
        m.quiet(&client).await;
    });
}

#[test]
fn who_has_flushed_does_not_wait_for_another_connection() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let puppet = Puppet::new(&m, |_, _| Act::Honest);
        let server = Server { wait: Some(Wait::Ever), ..puppet.server(&m, "far") };
        m.space.mount(server, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
        let mut raw = m.raw().await;
        raw_walk(&mut raw, 1, 2, &[b"far", b"f"]).await;
        raw_open(&mut raw, 2, 0).await;
        puppet.does(|message, _| match message {
            Tmsg::Read { .. } | Tmsg::Flush { .. } => Act::Silent,
            _ => Act::Honest,
        });
        raw.send(5, Tmsg::Read { fid: Fid(2), offset: 0, count: 10 }).await.unwrap();
        pause(&m, 100).await;
        raw.send(6, Tmsg::Flush { oldtag: Tag(5) }).await.unwrap();
        pause(&m, 100).await;
        puppet.does(|_, _| Act::Silent);
        m.mux.hangup("far", "the test says so");
        let reply = soon(&m, raw.reply()).await;
        assert!(reply.starts_with("Rflush tag 6"), "{reply}");
        raw.hang_up();
        m.clear().await;
    });
}
