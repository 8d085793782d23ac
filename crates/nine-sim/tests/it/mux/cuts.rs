//! Cut links: without -r, clients of that server get a fitting error, or none; with -r, an error occurs only where it
//! is unavoidable. Other clients are not affected.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::future::{poll_fn, ready};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, join, join_all};
use nine_io::client::{Client, Error, File, Options};
use nine_io::server::{Core, FileServer, Gate, Service};
use nine_mux::{Boxed, Dial, Flags, Server, Spawn, Wait};
use nine_net::{Env, Peer, Transport};
use nine_proto::frame::{MSIZE_MAX, Split, split};
use nine_proto::msg::{Names, OptionalU32, Tmsg};
use nine_proto::{Dialect, Errno, Fid, NOGID, NOUID, OpenFlags, SetAttr, Tag};
use nine_sim::{End, Links, Rng, Shape, World, seeds, tries_all};

use crate::common::Raw;
use crate::mux::world::{Muxed, cat, ls, owner, ram, within};

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
                        // The error must describe the event: not "no such file".
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
    assert!(cut > 40 || !tries_all(40), "only {cut} cuts");
}

/// A server on links that the test cuts. Clones share it.
#[derive(Clone)]
struct Site(Arc<Mutex<State>>);

struct State {
    service: Service,
    links: Arc<Links>,
    up: bool,
    /// For the next links.
    shape: Shape,
    /// Delay of its answers to Twalk and Tlopen.
    slow: Option<Duration>,
    /// Shapes of the next links, in order; after them `shape`.
    next: VecDeque<Shape>,
    wires: Vec<Weak<Mutex<Wire>>>,
    dials: u32,
}

#[derive(Default)]
struct Wire {
    cut: Option<Cut>,
    waker: Option<Waker>,
}

/// How a link ends for the mux. Data in flight to the server still arrives.
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
            next: VecDeque::new(),
            wires: Vec::new(),
            dials: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Returns a mountable server with -r.
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

    /// Makes the server unreachable until `up`.
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

    /// Returns the number of connections, and of their fids.
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
        let shape = state.next.pop_front().unwrap_or(state.shape.clone());
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
    /// Returns how the link was cut, or registers the waker.
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

/// Relays messages between the server and the mux. Answers to walks and opens, and to their flushes, take the slow
/// link.
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
    // A timer that is created again starts again. This creates one only.
    begin(m, m.env.sleep_until(m.env.now() + Duration::from_millis(ms))).await;
}

async fn text(file: &File) -> Result<String, Errno> {
    let data = file.read(0, 1000).await.map_err(|error| error.errno())?;
    Ok(String::from_utf8_lossy(&data).into())
}

/// Runs a test in a world with a site that is mounted with -r on `/far`, and a good server on `/good`. Then nothing may
/// be left.
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
                // Operations that were done, and those that may have been.
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

/// Returns whether it was done. An unknown outcome must be reported as such.
fn known<T>(result: Result<T, Error>) -> bool {
    result.inspect_err(|error| assert_eq!(error.errno(), Errno::EIO, "{error}")).is_ok()
}

async fn raw_walk(raw: &mut Raw, newfid: u32, names: &[&[u8]]) {
    let walk = Tmsg::Walk { fid: Fid(1), newfid: Fid(newfid), names: Names::Slice(names) };
    let walked = raw.call(1, walk).await;
    assert!(walked.starts_with("Rwalk"), "{walked}");
}

/// Cancels a request, which may be answered with EINTR before the Rflush.
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
                    Tmsg::Fsync { fid: Fid(2), datasync: OptionalU32(0) },
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
            // Another request waits for the same fid when the first one is cancelled.
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
            // The server answers the flush as slowly.
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
            // In half of the worlds: while its fids are being restored.
            if slow {
                site.up();
                pause(&m, seed * 137).await;
            }
            raw.hang_up();
            // A slow server is slow to flush, too.
            pause(&m, 1_000).await;
            assert_eq!(m.core.connected(), others);
            site.up();
            pause(&m, 5_000).await;
            // It is not even dialled, if no fid needs it.
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
        // This fid must be restored.
        raw_walk(&mut raw, 4, &[b"far"]).await;
        assert!(raw.call(1, Tmsg::Lopen { fid: Fid(3), flags: 0 }).await.starts_with("Rlopen"));
        site.down();
        pause(&m, 100).await;
        let said = within(&m.env, Duration::from_millis(10), raw.call(5, Tmsg::Remove { fid: Fid(2) })).await;
        assert!(said.starts_with("Rlerror tag 5"), "{said}");
        within(&m.env, Duration::from_millis(10), raw.call(5, Tmsg::Clunk { fid: Fid(3) })).await;
        // The numbers are free, whatever the answers were (remove(5), clunk(5)).
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
            // So that the mux notices.
            pause(&m, 100).await;
            let begun = m.env.now();
            // The covered directory is shown. A listing does not wait long.
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
            raw.send(7, Tmsg::Walk { fid: Fid(1), newfid: Fid(4), names: Names::Slice(&[b"far", b"f"]) })
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
            // The request had not been sent, and never is.
            site.up();
            pause(&m, 5_000).await;
            assert!(site.holds().1 <= 2, "{:?}", site.holds());
        });
    }
}

#[test]
fn a_server_that_comes_back_slow_keeps_up_with_whoever_asks() {
    const EACH: usize = 200;
    world(0, Wait::Ever, FILES, |m, site| async move {
        let mut clients = Vec::new();
        for n in 0..3 {
            let (client, root) = m.client(Dialect::L).await;
            let dir = root.walk("far").await.unwrap();
            let name = format!("c{n}");
            let made = dir.open_or_create(&name, OpenFlags::RDWR, 0o644).await.unwrap();
            made.write_all_at(0, name.as_bytes()).await.unwrap();
            let files = join_all((0..EACH).map(|_| dir.open(&name, OpenFlags::READ))).await;
            let files: Vec<File> = files.into_iter().collect::<Result<_, _>>().unwrap();
            clients.push((client, root, dir, name, files));
        }
        // The tree's root, the clients' roots, and the open files.
        let all = site.holds().1;
        assert!(all > 3 * EACH);
        // A fid takes 4 s from now on, a root 2 s: all of them 22 s.
        site.state().slow = Some(Duration::from_secs(2));
        let over = Cell::new(false);
        let cuts = async {
            for _ in 0..4 {
                site.cut(Cut::Reset);
                pause(&m, 9_000).await;
            }
            over.set(true);
        };
        let served = clients.iter().enumerate().map(async |(c, (_, root, dir, name, files))| {
            let (mut at, mut quick) = (c * 17, 0);
            while !over.get() {
                let file = &files[at % EACH];
                at += 67;
                // The link may be cut once before it is restored.
                let limit = Duration::from_secs(16);
                assert_eq!(within(&m.env, limit, text(file)).await, Ok(name.clone()));
                for _ in 0..20 {
                    let (begun, dials) = (m.env.now(), site.dials());
                    assert_eq!(text(file).await, Ok(name.clone()));
                    let took = m.env.now() - begun;
                    if site.dials() == dials {
                        assert!(took <= Duration::from_millis(20), "once it is back: {took:?}");
                        quick += 1;
                    }
                    let good = within(&m.env, Duration::from_millis(20), cat(root, "good/f")).await;
                    assert_eq!(good, Ok("good".into()));
                }
                let opened = within(&m.env, Duration::from_secs(20), dir.open(name, OpenFlags::READ)).await;
                opened.unwrap();
            }
            quick
        });
        let (quick, ()) = join(join_all(served), cuts).await;
        assert!(quick.iter().all(|&quick| quick >= 40), "{quick:?} reads were quick");
        pause(&m, 16_000).await;
        let holds = site.holds();
        assert!(
            holds.0 == 1 && (3 * EACH + 1..=all).contains(&holds.1),
            "not all came back in 25 s: {holds:?}"
        );
        assert_eq!(site.dials(), 5);
        site.state().slow = None;
        site.cut(Cut::Reset);
        for (client, root, dir, _, files) in clients {
            drop((root, dir, files));
            m.quiet(&client).await;
        }
    });
}

#[test]
fn whoever_waits_is_woken_by_the_connection_that_lasts() {
    for seed in seeds(10) {
        for breaks in (15..60).step_by(3) {
            world(seed, Wait::Ever, FILES, move |m, site| async move {
                let (client, root) = m.client(Dialect::L).await;
                let file = root.open("far/f", OpenFlags::READ).await.unwrap();
                site.state().next =
                    (0..4).map(|_| Shape { breaks_after: Some(breaks), ..Shape::default() }).collect();
                site.cut(Cut::Reset);
                let read = m.soon(Duration::from_secs(20), text(&file)).await;
                assert_eq!(read, Some(Ok("text".into())), "after {breaks} bytes");
                drop((file, root));
                m.quiet(&client).await;
            });
        }
    }
}

#[test]
fn a_fid_below_a_directory_that_was_renamed_is_found() {
    world(0, Wait::Ever, FILES, move |m, site| async move {
        let (client, root) = m.client(Dialect::L).await;
        let far = root.walk("far").await.unwrap();
        let d = root.walk("far/d").await.unwrap();
        far.rename("d", &far, "D").await.unwrap();
        let g = d.open("g", OpenFlags::READ).await.unwrap();
        site.cut(Cut::Reset);
        assert_eq!(text(&g).await, Ok("deep".into()));
        drop((far, d, g, root));
        m.quiet(&client).await;
    });
}

#[test]
fn a_fid_renamed_after_its_directory_is_found() {
    world(0, Wait::Ever, FILES, move |m, site| async move {
        let (client, root) = m.client(Dialect::L).await;
        let far = root.walk("far").await.unwrap();
        let d = root.walk("far/d").await.unwrap();
        let g = d.open("g", OpenFlags::READ).await.unwrap();
        far.rename("d", &far, "D").await.unwrap();
        d.rename("g", &d, "G").await.unwrap();
        site.cut(Cut::Reset);
        assert_eq!(text(&g).await, Ok("deep".into()));
        drop((far, d, g, root));
        m.quiet(&client).await;
    });
}

#[test]
fn a_fid_renamed_twice_is_found() {
    for (n, dialect) in [Dialect::L, Dialect::U, Dialect::P2000].into_iter().enumerate() {
        world(n as u64, Wait::Ever, FILES, move |m, site| async move {
            let (client, root) = m.client(dialect).await;
            let f = root.walk("far/f").await.unwrap();
            let open = root.open("far/f", OpenFlags::READ).await.unwrap();
            let far = root.walk("far").await.unwrap();
            if dialect == Dialect::L {
                let message = |name| nine_proto::msg::Tmsg::Rename { fid: f.fid(), dfid: far.fid(), name };
                client.ask(message(b"f1")).await.unwrap();
                client.ask(message(b"f2")).await.unwrap();
            } else {
                f.rename_here(b"f1").await.unwrap();
                f.rename_here(b"f2").await.unwrap();
            }
            site.cut(Cut::Reset);
            assert_eq!(text(&open).await, Ok("text".into()), "{dialect:?}");
            drop((far, f, open, root));
            m.quiet(&client).await;
        });
    }
}

#[test]
fn each_request_waits_as_long_as_it_was_told() {
    world(0, Wait::AtMost(Duration::from_secs(5)), FILES, move |m, site| async move {
        let (client, root) = m.client(Dialect::L).await;
        let file = root.open("far/f", OpenFlags::READ).await.unwrap();
        site.down();
        let took = join_all((0..5).map(async |_| {
            let begun = m.env.now();
            file.read(0, 10).await.unwrap_err();
            m.env.now() - begun
        }))
        .await;
        let most = took.iter().max().unwrap();
        assert!(*most < Duration::from_secs(6), "{took:?}");
        site.up();
        drop((file, root));
        m.quiet(&client).await;
    });
}

#[test]
fn a_clunk_waits_for_nobody() {
    world(0, Wait::Ever, FILES, move |m, site| async move {
        let (client, root) = m.client(Dialect::L).await;
        let file = root.open("far/f", OpenFlags::READ).await.unwrap();
        let walked = root.walk("far/f").await.unwrap();
        site.down();
        pause(&m, 100).await;
        let closed = m.soon(Duration::from_secs(2), walked.close()).await;
        assert!(matches!(closed, Some(Ok(()))), "{closed:?}");
        let closed = m.soon(Duration::from_secs(2), file.close()).await;
        assert!(matches!(closed, Some(Ok(()))), "{closed:?}");
        site.up();
        drop(root);
        m.quiet(&client).await;
    });
}

#[test]
fn what_has_two_files_waits_over_several_cuts() {
    let (mut done, mut all) = (0, 0);
    for seed in seeds(30) {
        let told = Rc::new(Cell::new(false));
        let is_done = told.clone();
        world(seed, Wait::Ever, FILES, move |m, site| async move {
            let (client, root) = m.client(Dialect::L).await;
            let (far, d) = (root.walk("far").await.unwrap(), root.walk("far/d").await.unwrap());
            site.state().shape.delay = Duration::from_millis(20);
            site.down();
            pause(&m, 100).await;
            let cuts = async {
                pause(&m, 1_000).await;
                site.up();
                let dials = site.dials();
                while site.dials() == dials {
                    pause(&m, 1).await;
                }
                // One of the two names is back, or both, or the rename is in flight.
                pause(&m, 120 + 6 * seed).await;
                site.cut(Cut::Reset);
            };
            let (renamed, ()) = join(far.rename("f", &d, "F"), cuts).await;
            let there = cat(&root, "far/d/F").await;
            if known(renamed) {
                assert_eq!(there, Ok("text".into()));
                told.set(true);
            }
            assert_ne!(there.is_ok(), cat(&root, "far/f").await.is_ok());
            drop((far, d, root));
            m.quiet(&client).await;
        });
        done += usize::from(is_done.get());
        all += 1;
    }
    assert!(2 * done > all || !tries_all(30), "{done} of {all} are known to be done");
}

/// Possible states of a name: no file, or a file with these bytes.
type States = BTreeSet<Option<Vec<u8>>>;

/// A client that works in its own directory, and its knowledge about it.
struct Worker {
    n: usize,
    m: Muxed,
    site: Site,
    rng: Rng,
    dialect: Dialect,
    /// Whether requests fail while the server is away.
    fails: bool,
    dir: File,
    names: Vec<States>,
    open: Vec<Option<Handle>>,
    counts: Counts,
}

struct Handle {
    file: File,
    appends: bool,
    /// The connections of the first and the last unsynced write.
    unsynced: Option<(u32, u32)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    done: usize,
    unknown: usize,
}

const NAMES: usize = 4;

impl Worker {
    async fn work(mut self) -> (Self, Counts) {
        for _ in 0..70 {
            let n = self.rng.below(NAMES);
            match self.rng.below(14) {
                0 | 1 => self.create(n).await,
                2..=4 => self.write(n).await,
                5 | 6 => self.read(n).await,
                7 => self.truncate(n).await,
                8 => self.open_anew(n).await,
                9 => self.remove(n).await,
                10 => self.rename(n).await,
                11 => self.list().await,
                12 => self.append(n).await,
                _ => self.sync(n).await,
            }
            pause(&self.m, self.rng.below(400) as u64).await;
        }
        self.open.clear();
        let counts = self.counts;
        (self, counts)
    }

    /// For operations that may be repeated: they succeed, unless requests fail while the server is away.
    fn must<T>(&mut self, what: &str, result: Result<T, Error>) -> Option<T> {
        let is_away = |error: &Error| {
            let known = [Errno::ECONNRESET, Errno::ECONNREFUSED, Errno::ETIMEDOUT];
            // 9P2000 has no error numbers.
            self.fails && (known.contains(&error.errno()) || error.to_string().ends_with("waited for 2 s"))
        };
        match result {
            Ok(value) => {
                self.counts.done += 1;
                Some(value)
            }
            Err(error) if is_away(&error) => {
                self.counts.unknown += 1;
                None
            }
            Err(error) => panic!("client {} ({}): {what}: {error}", self.n, self.dialect.name()),
        }
    }

    /// For operations that must not be repeated.
    fn may<T>(&mut self, what: &str, result: Result<T, Error>) -> Option<T> {
        match result {
            Err(error)
                if error.errno() == Errno::EIO
                    && (self.dialect.is_l() || error.to_string().contains("it is not known")) =>
            {
                self.counts.unknown += 1;
                None
            }
            other => self.must(what, other),
        }
    }

    /// Records that a change was made, or may have been.
    fn then(&mut self, n: usize, is_known: bool, change: impl Fn(&Option<Vec<u8>>) -> Option<Vec<u8>>) {
        let after: States = self.names[n].iter().map(change).collect();
        match is_known {
            true => self.names[n] = after,
            false => self.names[n].extend(after),
        }
    }

    /// Records whether the name was found.
    fn found(&mut self, n: usize, is_there: bool) {
        self.names[n].retain(|state| state.is_some() == is_there);
        assert!(!self.names[n].is_empty(), "client {}: n{n} is there: {is_there}; that cannot be", self.n);
    }

    fn name(n: usize) -> String {
        format!("n{n}")
    }

    /// Opens a file that may exist, unless it is open.
    async fn handle(&mut self, n: usize, flags: OpenFlags) -> bool {
        if self.open[n].is_some() {
            return true;
        }
        match self.dir.open(Self::name(n), flags).await {
            Err(error) if error.errno() == Errno::ENOENT => self.found(n, false),
            opened => {
                if let Some(file) = self.must("open", opened) {
                    self.found(n, true);
                    let appends = flags.has(OpenFlags::APPEND);
                    self.open[n] = Some(Handle { file, appends, unsynced: None });
                }
            }
        }
        self.open[n].is_some()
    }

    async fn create(&mut self, n: usize) {
        let made = self.dir.open_or_create(Self::name(n), OpenFlags::RDWR, 0o644).await;
        let made = self.may("create", made);
        self.then(n, made.is_some(), |state| Some(state.clone().unwrap_or_default()));
        self.open[n] = made.map(|file| Handle { file, appends: false, unsynced: None });
    }

    fn bytes(&mut self) -> Vec<u8> {
        let (first, length) = (self.rng.bits() as u8, 1 + self.rng.below(3000));
        (0..length).map(|at| first.wrapping_add((at / 7) as u8)).collect()
    }

    async fn write(&mut self, n: usize) {
        if !self.handle(n, OpenFlags::RDWR).await {
            return;
        }
        let data = self.bytes();
        let length = self.names[n].iter().flatten().map(Vec::len).max().unwrap_or(0);
        let at = self.rng.below(length + 50);
        let handle = self.open[n].as_mut().unwrap();
        let (appends, result) = (handle.appends, handle.file.write_all_at(at as u64, &data).await);
        let dials = self.site.dials();
        let first = handle.unsynced.map_or(dials, |(first, _)| first);
        // After an error the client knows that already.
        handle.unsynced = if result.is_ok() { Some((first, dials)) } else { handle.unsynced };
        let wrote = if appends { self.may("append", result) } else { self.must("write", result) };
        self.then(n, wrote.is_some(), |state| {
            let mut all = state.clone()?;
            let at = if appends { all.len() } else { at };
            all.resize(all.len().max(at + data.len()), 0);
            all[at..at + data.len()].copy_from_slice(&data);
            Some(all)
        });
    }

    async fn read(&mut self, n: usize) {
        if !self.handle(n, OpenFlags::RDWR).await {
            return;
        }
        let mut all = vec![0; 256 * 1024];
        let result = self.open[n].as_ref().unwrap().file.read_at(0, &mut all).await;
        let Some(length) = self.must("read", result) else { return };
        all.truncate(length);
        let state = Some(all);
        assert!(self.names[n].contains(&state), "client {}: n{n} has other bytes", self.n);
        self.names[n] = [state].into();
    }

    async fn truncate(&mut self, n: usize) {
        if !self.handle(n, OpenFlags::RDWR).await {
            return;
        }
        let size = self.rng.below(4000);
        let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        let result = self.open[n].as_ref().unwrap().file.setattr(&set).await;
        let is_known = self.must("truncate", result).is_some();
        self.then(n, is_known, |state| {
            let mut all = state.clone()?;
            all.resize(size, 0);
            Some(all)
        });
    }

    /// With O_TRUNC.
    async fn open_anew(&mut self, n: usize) {
        self.open[n] = None;
        if self.handle(n, OpenFlags::RDWR | OpenFlags::TRUNC).await {
            self.then(n, true, |state| state.as_ref().map(|_| Vec::new()));
        } else if self.fails {
            self.then(n, false, |state| state.as_ref().map(|_| Vec::new()));
        }
    }

    async fn remove(&mut self, n: usize) {
        self.open[n] = None;
        match self.dir.walk(Self::name(n)).await {
            Err(error) if error.errno() == Errno::ENOENT => self.found(n, false),
            walked => {
                let Some(file) = self.must("walk", walked) else { return };
                self.found(n, true);
                let removed = file.remove().await;
                let is_known = self.may("remove", removed).is_some();
                self.then(n, is_known, |_| None);
            }
        }
    }

    async fn is_there(&mut self, n: usize) -> Option<bool> {
        let is_there = match self.dir.walk(Self::name(n)).await {
            Err(error) if error.errno() == Errno::ENOENT => false,
            walked => self.must("walk", walked).map(|_| true)?,
        };
        self.found(n, is_there);
        Some(is_there)
    }

    /// Renames to a free name. The open file moves with it.
    async fn rename(&mut self, n: usize) {
        let to = self.rng.below(NAMES);
        if to == n || self.is_there(n).await != Some(true) || self.is_there(to).await != Some(false) {
            return;
        }
        self.open[to] = None;
        let renamed = self.dir.rename(Self::name(n), &self.dir, Self::name(to)).await;
        let files = self.names[n].clone();
        if self.may("rename", renamed).is_some() {
            (self.names[to], self.names[n]) = (files, [None].into());
            self.open[to] = self.open[n].take();
        } else {
            self.open[n] = None;
            self.names[to].extend(files);
            self.names[n].insert(None);
            // It must have exactly one of the two names.
            while let Some(is_there) = self.is_there(n).await {
                if self.is_there(to).await == Some(!is_there) {
                    break;
                }
                assert!(self.fails, "client {}: it is in two places, or in none", self.n);
            }
        }
    }

    async fn list(&mut self) {
        let listed = async {
            let mut names = Vec::new();
            let dir = self.dir.walk("").await?;
            let mut entries = dir.read_dir().await?;
            while let Some(entry) = entries.next().await {
                names.push(String::from_utf8_lossy(&entry?.name).to_string());
            }
            Ok(names)
        };
        let listed = listed.await;
        let Some(names) = self.must("list", listed) else { return };
        assert!(names.iter().collect::<BTreeSet<_>>().len() == names.len(), "{names:?}");
        for n in 0..NAMES {
            self.found(n, names.contains(&Self::name(n)));
        }
    }

    async fn append(&mut self, n: usize) {
        // 9P2000 has no append mode.
        if self.dialect != Dialect::P2000 {
            self.open[n] = None;
            self.handle(n, OpenFlags::RDWR | OpenFlags::APPEND).await;
            self.write(n).await;
        }
    }

    async fn sync(&mut self, n: usize) {
        let Some(handle) = &mut self.open[n] else { return };
        let (wrote, before) = (handle.unsynced.take(), self.site.dials());
        let synced = handle.file.fsync(false).await;
        let after = self.site.dials();
        match &synced {
            Ok(()) => {
                assert!(wrote.is_none_or(|(first, _)| first == before), "client {}: n{n} was synced", self.n);
            }
            Err(error)
                if error.errno() == Errno::EIO
                    && (self.dialect.is_l() || error.to_string().contains("not synced")) =>
            {
                // The change may be one of attributes, by an earlier fid, or of another file of the server.
                assert!(after > 1, "client {}: n{n} was not lost", self.n);
                // It is still not synced: another loss is another error.
                handle.unsynced = wrote.map(|_| (after, after));
            }
            Err(_) => {
                self.open[n] = None;
                self.must("fsync", synced);
            }
        }
    }
}

/// Cuts links in every way until the clients are done.
async fn havoc(m: Muxed, site: Site, mut rng: Rng, over: Rc<Cell<bool>>) -> u32 {
    let mut cuts = 0;
    while !over.get() {
        pause(&m, rng.below(2_500) as u64).await;
        let how = [Cut::Reset, Cut::Closed][rng.below(2)];
        cuts += 1;
        match rng.below(5) {
            0 => site.cut(how),
            1 => {
                site.down();
                pause(&m, rng.below(3_000) as u64).await;
                site.up();
            }
            // During the replay, repeatedly.
            2 => {
                for _ in 0..3 {
                    site.cut(how);
                    let dials = site.dials();
                    while site.dials() == dials && !over.get() {
                        pause(&m, 1).await;
                    }
                    pause(&m, rng.below(40) as u64).await;
                }
                site.cut(how);
            }
            // Data in flight is lost in both directions.
            3 => {
                let shapes = 1 + rng.below(3);
                for _ in 0..shapes {
                    let shape = site.state().shape.clone();
                    let breaks_after = Some(20 + rng.below(4000) as u64);
                    site.state().next.push_back(Shape { breaks_after, ..shape });
                }
                site.cut(how);
            }
            _ => drop(m.mux.hangup("far", "the test has hung up")),
        }
    }
    site.up();
    site.state().next.clear();
    cuts
}

#[test]
fn whatever_is_cut_the_files_are_as_their_clients_were_told() {
    let (mut all, mut cuts, mut worlds) = (Counts::default(), 0, 0);
    for seed in seeds(40) {
        let (fails, dialects) = (seed % 4 == 3, [Dialect::L, Dialect::U, Dialect::P2000]);
        let wait = if fails { Wait::AtMost(Duration::from_secs(2)) } else { Wait::Ever };
        let counts = Rc::new(Cell::new((Counts::default(), 0)));
        let told = counts.clone();
        world(seed, wait, FILES, move |m, site| async move {
            let mut rng = Rng::new(seed);
            {
                let mut state = site.state();
                // .L, or a weaker dialect.
                state.service.dialects =
                    [&[Dialect::L][..], &[Dialect::L], &[Dialect::U], &[Dialect::P2000]][rng.below(4)];
                state.shape.delay = Duration::from_millis(1 + rng.below(15) as u64);
                state.shape.piece = 1 + rng.below(2000);
            }
            m.mux.hangup("far", "for another dialect");
            pause(&m, 1_500).await;
            let over = Rc::new(Cell::new(false));
            let (mut clients, mut work) = (Vec::new(), Vec::new());
            for n in 0..3 {
                let dialect = dialects[rng.below(3)];
                let (client, root) = m.client(dialect).await;
                let far = root.walk("far").await.unwrap();
                far.mkdir(format!("c{n}"), 0o755, NOGID).await.unwrap();
                let dir = far.walk(format!("c{n}")).await.unwrap();
                let names = vec![States::from([None]); NAMES];
                let open = (0..NAMES).map(|_| None).collect();
                let (m, site, rng) = (m.clone(), site.clone(), rng.fork());
                let counts = Counts::default();
                let worker = Worker { n, m: m.clone(), site, rng, dialect, fails, dir, names, open, counts };
                work.push(begin(&m, worker.work()));
                clients.push(client);
            }
            let havoc = begin(&m, havoc(m.clone(), site.clone(), rng.fork(), over.clone()));
            let done = m.soon(Duration::from_secs(1_000), join_all(work)).await;
            let done = done.unwrap_or_else(|| panic!("somebody waits for ever: NINE_SEED={seed}"));
            over.set(true);
            let cuts = havoc.await;
            // The server itself, without a mux.
            let (near, far) = m.links.link(Shape::default());
            let service = site.state().service.connect(Box::new(far));
            m.env.spawn(Box::pin(service));
            let (own, driver) = Client::connect(near, Options::default()).await.unwrap();
            m.env.spawn(Box::pin(async { drop(driver.await) }));
            let direct = own.attach("u", NOUID, "").await.unwrap();
            let mut counts = Counts::default();
            for (worker, of) in &done {
                counts = Counts { done: counts.done + of.done, unknown: counts.unknown + of.unknown };
                for (n, states) in worker.names.iter().enumerate() {
                    let path = format!("c{}/{}", worker.n, Worker::name(n));
                    let mut bytes = vec![0; 256 * 1024];
                    let is = match direct.open(&path, OpenFlags::READ).await {
                        Err(error) => {
                            assert_eq!(error.errno(), Errno::ENOENT);
                            None
                        }
                        Ok(file) => {
                            let length = file.read_at(0, &mut bytes).await.unwrap();
                            bytes.truncate(length);
                            Some(bytes)
                        }
                    };
                    assert!(states.contains(&is), "{path} is not as it was told");
                }
            }
            told.set((counts, cuts));
            drop((done, direct, own));
            for client in clients {
                m.quiet(&client).await;
            }
            pause(&m, 3_000).await;
            let holds = site.holds();
            assert!(holds.0 <= 1 && holds.1 <= 2, "{holds:?} are left");
            assert_eq!(m.mux.status().jobs_now, 1, "the pulse of the lane");
        });
        let (of, some) = counts.get();
        (cuts, worlds) = (cuts + some, worlds + 1);
        all = Counts { done: all.done + of.done, unknown: all.unknown + of.unknown };
    }
    // A world without cuts, or where everything fails, proves little.
    assert!(worlds == 1 || cuts > 5 * worlds && all.done > 10 * all.unknown, "{cuts} cuts, {all:?}");
}

/// The contents of a page over time: start of the write, its answer, the byte.
type Page = Vec<(Duration, Option<Duration>, u8)>;

#[test]
fn what_is_read_ahead_over_cuts_is_what_was_there() {
    const PAGE: usize = 4096;
    const PAGES: usize = 192;
    let (mut served, mut all) = (0, 0);
    for seed in seeds(12) {
        let of = Rc::new(Cell::new(0));
        let told = of.clone();
        world(seed, Wait::Ever, FILES, move |m, site| async move {
            let mut rng = Rng::new(seed);
            let server = Server { ahead: true, name: "ahead".into(), ..site.server(Wait::Ever) };
            m.space.mount(server, "", &owner(), "/ahead", Flags::REPLACE).await.unwrap();
            site.state().shape = Shape {
                delay: Duration::from_millis(5 + rng.below(30) as u64),
                window: 4 << 20,
                ..Shape::default()
            };
            site.cut(Cut::Reset);
            let (writes, reads) = (m.client(Dialect::L).await, m.client(Dialect::L).await);
            let dir = writes.1.walk("ahead").await.unwrap();
            let file = dir.open_or_create("tape", OpenFlags::RDWR, 0o644).await.unwrap();
            file.write_all_at(0, &vec![0; PAGES * PAGE]).await.unwrap();
            let pages: Rc<RefCell<Vec<Page>>> =
                Rc::new(RefCell::new(vec![vec![(Duration::ZERO, Some(Duration::ZERO), 0)]; PAGES]));
            let over = Rc::new(Cell::new(false));
            let write = {
                let (m, pages, over, mut rng) = (m.clone(), pages.clone(), over.clone(), rng.fork());
                begin(&m.clone(), async move {
                    for byte in 1..=u8::MAX {
                        if over.get() {
                            break;
                        }
                        let page = rng.below(PAGES);
                        pages.borrow_mut()[page].push((m.env.now(), None, byte));
                        file.write_all_at((page * PAGE) as u64, &[byte; PAGE]).await.unwrap();
                        pages.borrow_mut()[page].last_mut().unwrap().1 = Some(m.env.now());
                        pause(&m, rng.below(300) as u64).await;
                    }
                    file
                })
            };
            let cuts = {
                let (m, site, over, mut rng) = (m.clone(), site.clone(), over.clone(), rng.fork());
                begin(&m.clone(), async move {
                    while !over.get() {
                        pause(&m, 200 + rng.below(2_500) as u64).await;
                        site.cut([Cut::Reset, Cut::Closed][rng.below(2)]);
                    }
                })
            };
            let tape = reads.1.open("ahead/tape", OpenFlags::READ).await.unwrap();
            for _ in 0..8 {
                let mut at = 0;
                while at < PAGES * PAGE {
                    let begun = m.env.now();
                    let data = tape.read(at as u64, 20_000).await.unwrap();
                    assert!(!data.is_empty(), "it ends at {at}");
                    let pages = pages.borrow();
                    for (i, byte) in data.iter().enumerate() {
                        let page = &pages[(at + i) / PAGE];
                        let answered = |(_, answered, _): &(_, Option<Duration>, _)| {
                            answered.is_some_and(|answered| answered < begun)
                        };
                        let oldest = page.iter().rposition(answered).expect("it was written first");
                        let may_be: Vec<u8> = page[oldest..].iter().map(|(.., byte)| *byte).collect();
                        assert!(may_be.contains(byte), "byte {}: {byte}, not of {may_be:?}", at + i);
                    }
                    at += data.len();
                }
                assert_eq!(tape.read(at as u64, 1).await.unwrap().len(), 0);
            }
            over.set(true);
            cuts.await;
            drop((write.await, tape, dir));
            let upstreams = m.mux.status().upstreams;
            told.set(upstreams.iter().find(|of| &*of.name == "ahead").unwrap().ahead_served);
            for (client, root) in [writes, reads] {
                drop(root);
                m.quiet(&client).await;
            }
        });
        served += of.get();
        all += (PAGES * PAGE) as u64;
    }
    assert!(served > all, "{served} bytes were read ahead");
}

#[test]
fn unmount_frees_who_waits() {
    world(0, Wait::Ever, FILES, move |m, site| async move {
        let (client, root) = m.client(Dialect::L).await;
        let file = root.open("far/f", OpenFlags::READ).await.unwrap();
        site.down();
        let work = async { m.soon(Duration::from_secs(60), join(text(&file), cat(&root, "far/f"))).await };
        let unmounts = async {
            pause(&m, 3_000).await;
            within(&m.env, Duration::from_secs(25), m.space.unmount(None, "/far")).await.unwrap();
        };
        let (got, ()) = join(work, unmounts).await;
        let (open, walk) = got.expect("nobody waits for what is not there any more");
        assert_eq!(open.unwrap_err(), Errno::ESTALE);
        assert!(walk.is_err());
        site.up();
        drop((file, root));
        m.quiet(&client).await;
    });
}

#[test]
fn who_does_not_wait_finds_a_server_that_is_back() {
    world(0, Wait::AtMost(Duration::ZERO), FILES, move |m, site| async move {
        let (client, root) = m.client(Dialect::L).await;
        cat(&root, "far/f").await.unwrap();
        site.down();
        cat(&root, "far/f").await.unwrap_err();
        pause(&m, 5_000).await;
        site.up();
        cat(&root, "far/f").await.unwrap();
        drop(root);
        m.quiet(&client).await;
    });
}
