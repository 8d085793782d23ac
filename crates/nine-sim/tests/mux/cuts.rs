//! Links that are cut: without -r who uses that server gets an error that says so, or none; with -r only those get one
//! who must. Nobody else notices.

use std::cell::{Cell, RefCell};
use std::future::{poll_fn, ready};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, join, join_all};
use nine_io::client::{Error, File};
use nine_io::server::{Core, FileServer, Gate, Service};
use nine_mux::{Boxed, Dial, Flags, Server, Spawn, Wait};
use nine_net::{Env, Peer, Transport};
use nine_proto::frame::{MSIZE_MAX, Split, split};
use nine_proto::msg::{Names, Tmsg};
use nine_proto::{Dialect, Errno, Fid, NOGID, NOUID, OpenFlags, Tag};
use nine_sim::{End, Links, Rng, Shape, World, seeds};

use crate::common::Raw;
use crate::world::{Muxed, cat, ls, owner, ram, within};

#[test]
fn a_cut_link_hurts_its_own_server_only_and_is_dialled_anew() {
    let mut cut = 0;
    for seed in seeds(40) {
        let world = World::new(seed);
        let mut rng = world.rng();
        let m = Muxed::new(&world);
        let service = Service::new(
            world.run(async { ram(&[("f", "text"), ("d/g", "deep")]).await }),
            Gate::default(),
            Core::default(),
        );
        let far = service.clone();
        cut += world.run(async move {
            let good = m.far("good", ram(&[("f", "good")]).await, Shape::default());
            m.space.mount(good, "", &owner(), "/good", Flags::REPLACE).await.unwrap();
            let shape = Shape {
                breaks_after: Some(2000 + rng.below(4000) as u64),
                piece: 1 + rng.below(500),
                delay: Duration::from_micros(rng.below(3000) as u64),
                ..Shape::default()
            };
            let server = m.far_service("cut", far, shape);
            m.space.mount(server, "", &owner(), "/cut", Flags::REPLACE).await.unwrap();
            let dialect = [Dialect::L, Dialect::U, Dialect::P2000][rng.below(3)];
            let (client, root) = m.client(dialect).await;
            let (mut cut, mut reached) = (0, 0);
            for n in 0..60u64 {
                let name = format!("cut/f{n}");
                let work = async {
                    let dir = root.walk("cut").await?;
                    let file = dir.open_or_create(format!("f{n}"), OpenFlags::RDWR, 0o644).await?;
                    file.write_all_at(0, name.as_bytes()).await?;
                    file.close().await?;
                    let file = root.open(&name, OpenFlags::READ).await?;
                    file.read(0, 100).await
                };
                match within(&m.env, Duration::from_secs(60), work).await {
                    Ok(text) => {
                        assert_eq!(text, name.as_bytes());
                        reached += 1;
                    }
                    Err(error) => {
                        // No lie: not "there is no such file", but what has happened.
                        let what = error.to_string();
                        assert!(
                            what.contains("reset") || what.contains("closed") || what.contains("pipe"),
                            "{what}"
                        );
                        cut += 1;
                        m.env.sleep_until(m.env.now() + nine_mux::RETRY).await;
                    }
                }
                let good = within(&m.env, Duration::from_millis(20), cat(&root, "good/f")).await;
                assert_eq!(good, Ok("good".into()));
            }
            assert!(cut == 0 || reached > 0, "it was never reached again");
            drop(root);
            m.quiet(&client).await;
            m.all_settled().await;
            m.clear().await;
            cut
        });
        world.settle();
        assert_eq!((service.core.connected(), service.core.borrowed()), (0, 0), "NINE_SEED={seed}");
    }
    assert!(cut > 40, "only {cut} cuts");
}

/// A server on links that the test cuts; clones are the same.
#[derive(Clone)]
struct Site(Arc<Mutex<State>>);

struct State {
    service: Service,
    links: Arc<Links>,
    up: bool,
    /// Of the next links.
    shape: Shape,
    /// Its answers to Twalk and Tlopen take so long.
    slow: Option<Duration>,
    wires: Vec<Weak<Mutex<Wire>>>,
    dials: u32,
}

#[derive(Default)]
struct Wire {
    cut: Option<Cut>,
    waker: Option<Waker>,
}

/// How a link ends for the mux. What is on its way to the server arrives all the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    Reset,
    /// The server hangs up.
    Closed,
}

struct Near {
    io: End,
    wire: Arc<Mutex<Wire>>,
}

impl Site {
    fn new(m: &Muxed, server: Arc<dyn FileServer>) -> Self {
        Self(Arc::new(Mutex::new(State {
            service: Service::new(server, Gate::default(), Core::default()),
            links: m.links.clone(),
            up: true,
            shape: Shape::default(),
            slow: None,
            wires: Vec::new(),
            dials: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// What mounts it with -r.
    fn server(&self, wait: Wait) -> Server {
        Server { wait: Some(wait), ..Server::new("far", Arc::new(self.clone())) }
    }

    fn cut(&self, how: Cut) {
        for wire in std::mem::take(&mut self.state().wires).iter().filter_map(Weak::upgrade) {
            let waker = {
                let mut wire = wire.lock().unwrap();
                wire.cut = Some(how);
                wire.waker.take()
            };
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Nobody answers there until it is `up` again.
    fn down(&self) {
        self.state().up = false;
        self.cut(Cut::Reset);
    }

    fn up(&self) {
        self.state().up = true;
    }

    fn dials(&self) -> u32 {
        self.state().dials
    }

    /// Connections, and the fids on all of them.
    fn holds(&self) -> (usize, usize) {
        let clients = self.state().service.core.clients();
        (clients.len(), clients.iter().map(|client| client.fids).sum())
    }
}

impl Dial for Site {
    fn dial(&self, spawn: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        let mut state = self.state();
        state.dials += 1;
        if !state.up {
            return Box::pin(ready(Err(io::Error::from_raw_os_error(111))));
        }
        let shape = state.shape.clone();
        let (io, far) = state.links.link(shape.clone());
        match state.slow {
            None => spawn.spawn(Box::pin(state.service.connect(Box::new(far)))),
            Some(delay) => {
                let (here, there) = state.links.link(Shape { delay: Duration::ZERO, ..shape.clone() });
                let long = state.links.link(Shape { delay, ..shape });
                spawn.spawn(Box::pin(state.service.connect(Box::new(there))));
                spawn.spawn(Box::pin(detour(far, here, long)));
            }
        }
        let wire = Arc::<Mutex<Wire>>::default();
        state.wires.push(Arc::downgrade(&wire));
        Box::pin(ready(Ok(Box::new(Near { io, wire }) as Box<dyn Transport>)))
    }
}

impl Near {
    /// What has become of the link, or the waker is there to be told.
    fn cut(&self, cx: &Context<'_>) -> Option<Cut> {
        let mut wire = self.wire.lock().unwrap();
        wire.waker = Some(cx.waker().clone());
        wire.cut
    }
}

impl Transport for Near {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        match self.cut(cx) {
            None => self.io.poll_read(cx, buf),
            Some(Cut::Closed) => Poll::Ready(Ok(0)),
            Some(Cut::Reset) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self.cut(cx) {
            None => self.io.poll_write(cx, bufs),
            Some(_) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_close(cx)
    }

    fn peer(&self) -> &Peer {
        self.io.peer()
    }
}

/// Passes on what a server and the mux say; what answers walks and opens, or their flushes, takes the long way.
async fn detour(mut near: End, mut far: End, (mut out, mut back): (End, End)) {
    let [mut forth, mut came, mut long, mut late, mut home] = [const { Vec::new() }; 5];
    let passed = poll_fn(|cx| {
        loop {
            let mut moved = pull(cx, &mut near, &mut forth)? + pull(cx, &mut far, &mut came)?;
            moved += pull(cx, &mut back, &mut late)?;
            while let Split::Whole(n) = split(&came, MSIZE_MAX).expect("the server sends what is 9P") {
                let is_slow = SLOW.contains(&came[4]);
                if is_slow { &mut long } else { &mut home }.extend(came.drain(..n));
            }
            while let Split::Whole(n) = split(&late, MSIZE_MAX).expect("it was cut into messages before") {
                home.extend(late.drain(..n));
            }
            moved += push(cx, &mut far, &mut forth)? + push(cx, &mut out, &mut long)?;
            moved += push(cx, &mut near, &mut home)?;
            if moved == 0 {
                return Poll::<io::Result<()>>::Pending;
            }
        }
    });
    passed.await.expect_err("it ends with one of the links");
}

/// Rlerror, Rlopen, Rflush, Rwalk.
const SLOW: [u8; 4] = [7, 13, 109, 111];

fn pull(cx: &mut Context<'_>, from: &mut End, into: &mut Vec<u8>) -> io::Result<usize> {
    let mut buf = [0; 16 * 1024];
    match from.poll_read(cx, &mut buf) {
        Poll::Ready(Ok(0)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Poll::Ready(Ok(n)) => {
            into.extend_from_slice(&buf[..n]);
            Ok(n)
        }
        Poll::Ready(Err(error)) => Err(error),
        Poll::Pending => Ok(0),
    }
}

fn push(cx: &mut Context<'_>, to: &mut End, from: &mut Vec<u8>) -> io::Result<usize> {
    if from.is_empty() {
        return Ok(0);
    }
    match to.poll_write(cx, &[IoSlice::new(from)]) {
        Poll::Ready(Ok(n)) => {
            from.drain(..n);
            Ok(n)
        }
        Poll::Ready(Err(error)) => Err(error),
        Poll::Pending => Ok(0),
    }
}

/// Goes on by itself; what comes of it can be waited for beside other things.
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
    // A timer that is asked again is another one: this asks once.
    begin(m, m.env.sleep_until(m.env.now() + Duration::from_millis(ms))).await;
}

async fn text(file: &File) -> Result<String, Errno> {
    let data = file.read(0, 1000).await.map_err(|error| error.errno())?;
    Ok(String::from_utf8_lossy(&data).into())
}

/// Runs a test in a world with a site that is mounted with -r on `/far`, and a good server on `/good`; then nothing is
/// left anywhere.
fn world<F: Future<Output = ()> + 'static>(
    seed: u64,
    wait: Wait,
    files: &'static [(&'static str, &'static str)],
    test: impl FnOnce(Muxed, Site) -> F + 'static,
) {
    let world = World::new(seed);
    let m = Muxed::new(&world);
    let site = world.run(async move {
        let site = Site::new(&m, ram(files).await);
        m.space.mount(site.server(wait), "", &owner(), "/far", Flags::REPLACE).await.unwrap();
        let good = m.far("good", ram(&[("f", "good")]).await, Shape::default());
        m.space.mount(good, "", &owner(), "/good", Flags::REPLACE).await.unwrap();
        test(m.clone(), site.clone()).await;
        m.clear().await;
        site
    });
    world.settle();
    assert_eq!(site.holds(), (0, 0), "NINE_SEED={seed}");
    assert_eq!(site.state().service.core.borrowed(), 0, "NINE_SEED={seed}");
}

const FILES: &[(&str, &str)] = &[("f", "text"), ("d/g", "deep"), ("d/h", "other")];

#[test]
fn ten_cuts_a_minute_lose_nothing_do_nothing_twice_and_leave_nothing() {
    for seed in seeds(2) {
        world(seed, Wait::Ever, FILES, move |m, site| async move {
            let mut rng = Rng::new(seed);
            let (client, root) = m.client(Dialect::L).await;
            let far = root.walk("far").await.unwrap();
            let holds = |m: &Muxed| {
                let status = m.mux.status();
                let fids: usize = m.core.clients().iter().map(|client| client.fids).sum();
                (site.holds(), fids, m.core.connected(), status.jobs_now)
            };
            let base = holds(&m);
            let over = Cell::new(false);
            let workers = (0..4).map(|n| (n, rng.fork())).map(async |(n, mut rng)| {
                far.mkdir(format!("w{n}"), 0o755, NOGID).await.unwrap();
                let dialect = [Dialect::L, Dialect::U][n % 2];
                let (client, root) = m.client(dialect).await;
                let dir = root.walk(format!("far/w{n}")).await.unwrap();
                let log = OpenFlags::RDWR | OpenFlags::APPEND;
                let file = dir.open_or_create("data", OpenFlags::RDWR, 0o644).await.unwrap();
                drop(dir.open_or_create("log", OpenFlags::RDWR, 0o644).await.unwrap());
                let log = dir.open("log", log).await.unwrap();
                // What was done, and what may have been.
                let (mut lines, mut dirs) = (Vec::new(), Vec::new());
                for turn in 0u32.. {
                    if over.get() {
                        break;
                    }
                    let data = format!("{n}: {turn:06}");
                    file.write_all_at(0, data.as_bytes()).await.unwrap();
                    assert_eq!(text(&file).await, Ok(data.clone()));
                    lines.push((
                        format!("{turn:06}\n"),
                        known(log.write(0, format!("{turn:06}\n").as_bytes()).await),
                    ));
                    if turn % 8 == 0 {
                        dirs.push((turn, known(dir.mkdir(format!("d{turn}"), 0o755, NOGID).await)));
                    }
                    pause(&m, rng.below(60) as u64).await;
                }
                let mut all = vec![0; 1 << 20];
                let length = log.read_at(0, &mut all).await.unwrap();
                let mut rest = std::str::from_utf8(&all[..length]).unwrap();
                for (line, is_done) in &lines {
                    match rest.strip_prefix(&**line) {
                        Some(after) => rest = after,
                        None => assert!(!is_done, "{line} is not where it was written"),
                    }
                }
                assert_eq!(rest, "", "something was written twice");
                let names = ls(&dir, "").await.unwrap();
                for (turn, is_done) in &dirs {
                    let name = format!("d{turn}");
                    assert!(!is_done || names.contains(&name), "{name} was made, and is not there");
                }
                let unknown = lines.iter().filter(|(_, is_done)| !is_done).count();
                drop((file, log, dir, root));
                m.quiet(&client).await;
                (lines.len(), unknown)
            });
            let workers: Vec<_> = workers.collect();
            let cuts = async {
                for _ in 0..30 {
                    pause(&m, 5_000 + rng.below(2_000) as u64).await;
                    site.cut([Cut::Reset, Cut::Closed][rng.below(2)]);
                }
                over.set(true);
            };
            let (did, ()) = join(join_all(workers), cuts).await;
            let unknown: usize = did.iter().map(|(_, unknown)| unknown).sum();
            assert!(did.iter().all(|(lines, _)| *lines > 1000), "{did:?}");
            assert!(unknown <= 30 * 4, "{unknown} lines of which nobody knows");
            assert!(site.dials() <= 31, "{} dials", site.dials());
            pause(&m, 3_000).await;
            assert_eq!(holds(&m), base, "NINE_SEED={seed}");
            drop((far, root));
            m.quiet(&client).await;
        });
    }
}

/// Whether it was done; what is not known has to be said so.
fn known<T>(result: Result<T, Error>) -> bool {
    result.inspect_err(|error| assert_eq!(error.errno(), Errno::EIO, "{error}")).is_ok()
}

async fn raw_walk(raw: &mut Raw, newfid: u32, names: &[&[u8]]) {
    let walk = Tmsg::Walk { fid: Fid(1), newfid: Fid(newfid), names: Names::Slice(names) };
    let walked = raw.call(1, walk).await;
    assert!(walked.starts_with("Rwalk"), "{walked}");
}

/// Takes a request back; it says EINTR before, or nothing.
async fn flush(raw: &mut Raw, oldtag: u16) {
    let mut said = raw.call(oldtag + 1000, Tmsg::Flush { oldtag: Tag(oldtag) }).await;
    if said == format!("Rlerror tag {oldtag} ecode {}", Errno::EINTR.0) {
        said = raw.reply().await;
    }
    assert_eq!(said, format!("Rflush tag {}", oldtag + 1000));
}

fn raw_read() -> Tmsg<'static> {
    Tmsg::Read { fid: Fid(2), offset: 0, count: 100 }
}

#[test]
fn what_waits_is_flushed_at_once_and_has_not_happened() {
    for seed in seeds(10) {
        world(seed, Wait::Ever, FILES, move |m, site| async move {
            let mut raw = m.raw().await;
            raw_walk(&mut raw, 2, &[b"far", b"f"]).await;
            raw_walk(&mut raw, 3, &[b"far", b"d"]).await;
            assert!(raw.call(1, Tmsg::Lopen { fid: Fid(2), flags: 2 }).await.starts_with("Rlopen"));
            site.down();
            for after in [0, 10, 3_000] {
                for asked in [
                    raw_read(),
                    Tmsg::Mkdir { dfid: Fid(3), name: b"new", mode: 0o755, gid: 0 },
                    Tmsg::Walk { fid: Fid(1), newfid: Fid(9), names: Names::Slice(&[b"far", b"f"]) },
                    Tmsg::Walk { fid: Fid(3), newfid: Fid(9), names: Names::Slice(&[b"g"]) },
                    Tmsg::Fsync { fid: Fid(2), datasync: 0 },
                    Tmsg::Remove { fid: Fid(3) },
                ] {
                    let removes = matches!(asked, Tmsg::Remove { .. });
                    if removes && after != 3_000 {
                        continue;
                    }
                    raw.send(5, asked).await.unwrap();
                    pause(&m, after).await;
                    within(&m.env, Duration::from_millis(10), flush(&mut raw, 5)).await;
                }
            }
            // Somebody waits for the same fid when another one gives up.
            raw.send(5, raw_read()).await.unwrap();
            raw.send(7, raw_read()).await.unwrap();
            pause(&m, 500).await;
            within(&m.env, Duration::from_millis(10), flush(&mut raw, 5)).await;
            site.up();
            let read = within(&m.env, Duration::from_secs(2), raw.reply()).await;
            assert!(read.starts_with("Rread tag 7"), "{read}");
            raw_walk(&mut raw, 9, &[b"far", b"d"]).await;
            let (_client, root) = m.client(Dialect::L).await;
            assert_eq!(ls(&root, "far/d").await.unwrap(), ["g", "h"]);
            raw.hang_up();
        });
    }
}

#[test]
fn a_flush_ends_what_is_being_brought_back() {
    for delay in [1, 700, 1_500, 2_500, 3_500, 4_500] {
        world(delay, Wait::Ever, FILES, move |m, site| async move {
            let mut raw = m.raw().await;
            raw_walk(&mut raw, 2, &[b"far", b"f"]).await;
            assert!(raw.call(1, Tmsg::Lopen { fid: Fid(2), flags: 2 }).await.starts_with("Rlopen"));
            site.state().slow = Some(Duration::from_secs(2));
            site.cut(Cut::Reset);
            raw.send(5, raw_read()).await.unwrap();
            pause(&m, delay).await;
            // The server flushes as slowly.
            within(&m.env, Duration::from_millis(2_010), flush(&mut raw, 5)).await;
            let read = within(&m.env, Duration::from_secs(10), raw.call(5, raw_read())).await;
            assert!(read.starts_with("Rread tag 5"), "{read}");
            site.state().slow = None;
            site.cut(Cut::Reset);
            raw.hang_up();
        });
    }
}

#[test]
fn a_client_that_hangs_up_while_it_waits_leaves_no_fid() {
    for seed in seeds(10) {
        world(seed, Wait::Ever, FILES, move |m, site| async move {
            let (base, others) = (site.holds(), m.core.connected());
            let mut raw = m.raw().await;
            raw_walk(&mut raw, 2, &[b"far", b"f"]).await;
            raw_walk(&mut raw, 3, &[b"far", b"d"]).await;
            assert!(raw.call(1, Tmsg::Lopen { fid: Fid(2), flags: 2 }).await.starts_with("Rlopen"));
            let slow = seed % 2 == 0;
            site.state().slow = slow.then_some(Duration::from_millis(300));
            site.down();
            raw.send(5, raw_read()).await.unwrap();
            raw.send(6, Tmsg::Mkdir { dfid: Fid(3), name: b"new", mode: 0o755, gid: 0 }).await.unwrap();
            raw.send(7, Tmsg::Walk { fid: Fid(3), newfid: Fid(4), names: Names::Slice(&[b"g"]) })
                .await
                .unwrap();
            raw.send(8, Tmsg::Clunk { fid: Fid(3) }).await.unwrap();
            pause(&m, 2_500).await;
            // Half of the worlds: while they are brought back.
            if slow {
                site.up();
                pause(&m, seed * 137).await;
            }
            raw.hang_up();
            // A slow server flushes slowly.
            pause(&m, 1_000).await;
            assert_eq!(m.core.connected(), others);
            site.up();
            pause(&m, 5_000).await;
            // Not even dialled, if nobody needs it.
            let now = site.holds();
            assert!(now == (0, 0) || now.0 == 1 && now.1 <= base.1, "{now:?} are left of {base:?}");
            assert_eq!(m.mux.status().jobs_now, 1, "the pulse of the lane");
            let (client, root) = m.client(Dialect::L).await;
            assert_eq!(cat(&root, "far/f").await, Ok("text".into()));
            drop(root);
            m.quiet(&client).await;
        });
    }
}

#[test]
fn what_is_removed_while_it_is_away_is_removed_once_it_is_back() {
    for (seed, dialect) in seeds(3).zip([Dialect::L, Dialect::U, Dialect::P2000]) {
        world(seed, Wait::Ever, FILES, move |m, site| async move {
            let (client, root) = m.client(dialect).await;
            let (f, g) = (root.walk("far/f").await.unwrap(), root.walk("far/d/g").await.unwrap());
            let h = root.open("far/d/h", OpenFlags::READ).await.unwrap();
            site.down();
            pause(&m, 100).await;
            // There is nothing to clunk any more.
            assert!(within(&m.env, Duration::from_millis(10), g.close()).await.is_ok());
            let up = async {
                pause(&m, 3_000).await;
                site.up();
            };
            let (removed, ((), removed_open)) = join(f.remove(), join(up, h.remove())).await;
            removed.unwrap();
            removed_open.unwrap();
            assert_eq!(ls(&root, "far").await.unwrap(), ["d"]);
            assert_eq!(ls(&root, "far/d").await.unwrap(), ["g"]);
            drop(root);
            m.quiet(&client).await;
        });
    }
}

#[test]
fn whoever_does_not_wait_has_not_removed_and_has_no_fid() {
    world(0, Wait::AtMost(Duration::ZERO), FILES, move |m, site| async move {
        let mut raw = m.raw().await;
        raw_walk(&mut raw, 2, &[b"far", b"f"]).await;
        raw_walk(&mut raw, 3, &[b"far", b"d", b"g"]).await;
        // Something is to be brought back.
        raw_walk(&mut raw, 4, &[b"far"]).await;
        assert!(raw.call(1, Tmsg::Lopen { fid: Fid(3), flags: 0 }).await.starts_with("Rlopen"));
        site.down();
        pause(&m, 100).await;
        let said = within(&m.env, Duration::from_millis(10), raw.call(5, Tmsg::Remove { fid: Fid(2) })).await;
        assert!(said.starts_with("Rlerror tag 5"), "{said}");
        within(&m.env, Duration::from_millis(10), raw.call(5, Tmsg::Clunk { fid: Fid(3) })).await;
        // The numbers are free, whatever was said (remove(5), clunk(5)).
        site.up();
        pause(&m, 2_000).await;
        raw_walk(&mut raw, 2, &[b"far", b"f"]).await;
        raw_walk(&mut raw, 3, &[b"far", b"d", b"g"]).await;
        raw.hang_up();
    });
}

#[test]
fn walks_and_attaches_into_the_mount_wait_as_they_are_told() {
    for (seed, limit) in seeds(3).zip([None, Some(0), Some(5)]) {
        let wait = limit.map_or(Wait::Ever, |limit| Wait::AtMost(Duration::from_secs(limit)));
        world(seed, wait, FILES, move |m, site| async move {
            let (client, root) = m.client(Dialect::U).await;
            let there = root.walk("far").await.unwrap();
            site.down();
            // So that it is found out.
            pause(&m, 100).await;
            let begun = m.env.now();
            // What is covered is shown; who lists does not wait long.
            let names = within(&m.env, Duration::from_millis(1_100), ls(&root, "")).await.unwrap();
            assert_eq!(names, ["far", "good"]);
            let asks = join(root.walk("far/d/g"), client.attach("u", NOUID, "/far/d"));
            match limit {
                None => {
                    let up = async {
                        pause(&m, 10_000).await;
                        site.up();
                    };
                    let ((walked, attached), ()) = join(asks, up).await;
                    assert_eq!(cat(&attached.unwrap(), "g").await, Ok("deep".into()));
                    drop(walked.unwrap());
                }
                Some(limit) => {
                    let (walked, attached) = asks.await;
                    let took = (m.env.now() - begun).as_secs();
                    assert!((limit..limit + 3).contains(&took), "{took} s");
                    for error in [walked.unwrap_err(), attached.unwrap_err()] {
                        let said = error.to_string();
                        assert!(said.contains("refused") || said.contains("reset"), "{said}");
                    }
                    site.up();
                    pause(&m, 1_000).await;
                    assert_eq!(cat(&root, "far/f").await, Ok("text".into()));
                }
            }
            drop((root, there));
            m.quiet(&client).await;
        });
    }
}

#[test]
fn a_mux_that_ends_waits_for_no_server_that_is_away() {
    for seed in seeds(5) {
        world(seed, Wait::Ever, FILES, move |m, site| async move {
            let mut raw = m.raw().await;
            raw_walk(&mut raw, 2, &[b"far", b"f"]).await;
            raw_walk(&mut raw, 3, &[b"far", b"d"]).await;
            assert!(raw.call(1, Tmsg::Lopen { fid: Fid(2), flags: 2 }).await.starts_with("Rlopen"));
            site.down();
            raw.send(5, raw_read()).await.unwrap();
            raw.send(6, Tmsg::Mkdir { dfid: Fid(3), name: b"new", mode: 0o755, gid: 0 }).await.unwrap();
            raw.send(7, Tmsg::Walk { fid: Fid(1), newfid: Fid(4), names: Names::Slice(&[b"far"]) })
                .await
                .unwrap();
            pause(&m, 2_500).await;
            m.core.drain();
            let begun = m.env.now();
            let mut said = Vec::new();
            for _ in 0..3 {
                said.push(raw.reply().await);
            }
            said.sort();
            let interrupted = |tag| format!("Rlerror tag {tag} ecode {}", Errno::EINTR.0);
            assert_eq!(said, [interrupted(5), interrupted(6), interrupted(7)]);
            assert_eq!(raw.reply().await, "UnexpectedEof");
            assert!(m.env.now() - begun < Duration::from_millis(20));
            pause(&m, 100).await;
            assert_eq!(m.core.connected(), 0);
            // It had not been sent, and never is.
            site.up();
            pause(&m, 5_000).await;
            assert!(site.holds().1 <= 2, "{:?}", site.holds());
        });
    }
}
