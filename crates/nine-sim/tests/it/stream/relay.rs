//! Streams through a mux: relayed if its server has them, otherwise converted to reads and writes; and the effect of
//! losing one of the four connections.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nine_io::client::{Direction, Error, File, Options};
use nine_io::server::{Core, FileServer};
use nine_mux::{As, Boxed, Dial, Flags, Local, Mux, Owner, Server, Space, Spawn, Wait};
use nine_net::{Env, Transport};
use nine_proto::{Dialect, Errno, Numeric, OpenFlags};
use nine_servers::Ram;
use nine_sim::{Rng, Shape, World, seeds};

use crate::stream::book::{Book, Plan};
use crate::stream::talk::{Data, Talk};
use crate::stream::world::{Fate, Site, far, near, pattern};

/// Variants of a client's stream.
#[derive(Clone, Copy, Debug)]
struct Made {
    /// The mux offers streams to its clients.
    front: bool,
    /// Its server has streams.
    back: bool,
    wait: Option<Wait>,
    /// Its files are read ahead.
    ahead: bool,
}

const RELAY: Made = Made { front: true, back: true, wait: None, ahead: false };
const CONVERTED: Made = Made { back: false, ..RELAY };

/// A mux whose root is a recording server.
#[derive(Clone)]
struct Hall {
    book: Arc<Book>,
    /// The mux's side for clients, and the server.
    front: Site,
    back: Site,
    space: Space,
    mux: Mux,
    made: Made,
    /// Tasks before anything is mounted.
    tasks: usize,
    shape: Arc<Mutex<Shape>>,
}

struct Way {
    back: Arc<crate::stream::world::Ways>,
    shape: Arc<Mutex<Shape>>,
}

impl Dial for Way {
    fn dial(&self, _: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        // A fault applies to one connection only.
        let again = Shape { breaks_after: None, ..self.shape.lock().unwrap().clone() };
        let shape = std::mem::replace(&mut *self.shape.lock().unwrap(), again);
        let near = self.back.connect(shape);
        Box::pin(async { Ok(Box::new(near) as Box<dyn Transport>) })
    }
}

impl Hall {
    fn new(world: &World, made: Made, first: Shape) -> Self {
        let book = Book::new(world);
        let server: Arc<dyn FileServer> = book.clone();
        let back = if made.back { Site::new(world, server) } else { Site::plain(world, server) };
        let mux =
            Mux::new(Local::scratch("ram:", Arc::new(Ram::new(1 << 20)), Core::default()), Arc::new(Numeric));
        world.env().spawn(Box::pin(mux.run(world.env(), &[])));
        let server: Arc<dyn FileServer> = Arc::new(mux.clone());
        let front = if made.front { Site::new(world, server) } else { Site::plain(world, server) };
        let space = mux.space(nine_mux::MAIN, Owner::default());
        back.fate(Fate::Come(Shape { window: 1 << 20, ..far(4) }));
        let shape = Arc::new(Mutex::new(first));
        let hall = Self { book, front, back, space: space.clone(), mux, made, tasks: 0, shape };
        let dial = Arc::new(Way { back: hall.back.ways.clone(), shape: hall.shape.clone() });
        let options = Options { dialects: vec![Dialect::L], ..Server::options() };
        let options = Options { clock: Some(world.env().clock()), ..options };
        let options = options.with_streams(hall.back.ways.clone());
        let server = Server { options, wait: made.wait, ahead: made.ahead, ..Server::new("back", dial) };
        let owner = As::User { name: "".into(), uid: None };
        world.settle();
        let tasks = world.tasks();
        world.run(async move {
            space.mount(server, "", &owner, "/", Flags::REPLACE).await.unwrap();
        });
        Self { tasks, ..hall }
    }

    /// Asserts that nothing is left of any client, at the mux or behind it.
    fn at_rest(self, world: &World) {
        // With periodic checks it never settles.
        let hall = self.clone();
        world.run(async move { hall.front.sleep(Duration::from_secs(60)).await });
        for core in [&self.front.service.core, &self.back.service.core] {
            assert_eq!(core.borrowed(), 0);
        }
        assert_eq!(self.front.service.core.connected(), 0);
        assert_eq!(self.book.under_way(), 0);
        let status = self.mux.status();
        // A mount that reconnects is checked periodically.
        let pulse = usize::from(self.made.wait.is_some());
        assert!(status.jobs_now <= pulse);
        for connection in status.upstreams.iter().flat_map(|upstream| &upstream.connections) {
            assert!(connection.calls <= pulse && connection.waiting == 0);
        }
        let hall = self.clone();
        world.run(async move { hall.space.unmount(None, "/").await.unwrap() });
        world.settle();
        assert_eq!(self.back.service.core.connected(), 0, "the mux lets go of a server that is unmounted");
        assert!(world.tasks() <= self.tasks + BACKBONE, "{} tasks, {} before", world.tasks(), self.tasks);
        self.book.assert_clean(0);
    }
}

/// Tasks of the mux's own tree, which starts with the first mount.
const BACKBONE: usize = 2;

const SIZE: usize = 9 << 20;

async fn read(file: &File, from: usize) -> Result<Vec<u8>, Error> {
    let mut all = Vec::new();
    let mut stream = file.stream(from as u64, Direction::Read).await?;
    while let Some(data) = stream.next().await {
        all.extend_from_slice(&data?);
    }
    Ok(all)
}

async fn write(file: &File, bytes: &[u8]) -> Result<u64, Error> {
    let mut stream = file.stream(0, Direction::Write).await?;
    for piece in bytes.chunks(200_000) {
        stream.push(piece.to_vec().into()).await?;
    }
    stream.sclose().await
}

#[test]
fn every_way_a_stream_is_made_brings_every_byte() {
    let wait = Some(Wait::Ever);
    for made in [
        RELAY,
        CONVERTED,
        Made { front: false, ..RELAY },
        Made { front: false, ..CONVERTED },
        Made { wait, ..RELAY },
        Made { wait, ..CONVERTED },
        Made { ahead: true, ..RELAY },
        Made { ahead: true, ..CONVERTED },
        Made { wait, ahead: true, ..CONVERTED },
    ] {
        for seed in seeds(1) {
            let world = World::new(seed);
            let hall = Hall::new(&world, made, far(4));
            let h = hall.clone();
            world.run(async move {
                let bytes = pattern(SIZE);
                h.book.put("f", &bytes);
                h.book.put("g", b"");
                h.front.fate(Fate::Come(Shape { window: 1 << 20, ..far(2) }));
                let (client, root) = h.front.client(far(2), h.front.options()).await;
                let file = root.open("f", OpenFlags::READ).await.unwrap();
                assert!(read(&file, 0).await.unwrap() == bytes, "{made:?}");
                let out = root.open("g", OpenFlags::WRITE).await.unwrap();
                assert_eq!(write(&out, &bytes).await.unwrap(), SIZE as u64);
                assert!(h.book.get("g") == bytes, "{made:?}");
                let relayed = if made.front && made.back && made.wait.is_none() { 2 } else { 0 };
                assert_eq!(h.front.offers().len(), if made.front { 2 } else { 0 });
                assert_eq!(h.back.offers().len(), relayed, "{made:?}");
                out.close().await.unwrap();
                file.close().await.unwrap();
                assert_eq!(client.fids(), 1);
            });
            hall.at_rest(&world);
        }
    }
}

/// Amount of data: more than the mux reads before it has a data connection itself.
const CARRIED: usize = 6 << 20;

/// Reads all of a stream of fid 2. Returns whether that was all, as far as it can be known.
async fn carry_out(talk: &mut Talk, mut data: Data, bytes: &[u8], site: &Site) -> (usize, bool, u32) {
    let tag = talk.begin_close(2, u64::MAX).await;
    let (come, ended) = data.rest().await;
    assert!(bytes.starts_with(&come));
    let told = site.within(Duration::from_secs(15), talk.verdict(tag)).await.expect("a verdict in time");
    let (count, errno, _) = told.expect("the stream is there");
    assert!(count as usize >= come.len() && count as usize <= bytes.len());
    let whole = ended.is_ok() && (count as usize, errno) == (come.len(), 0);
    assert!(!whole || come == bytes, "{} of {} bytes look whole", come.len(), bytes.len());
    (come.len(), whole, errno)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Session,
    Data,
    BackSession,
    BackData,
}

fn moment(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => rng.below(200) as u64,
        1 => rng.below(CARRIED + 1000) as u64,
        2 => (4 << 20) + rng.below(100_000) as u64,
        _ => rng.below(2 << 20) as u64,
    }
}

#[test]
fn whichever_connection_goes_nobody_is_told_more_than_is_so() {
    const CUTS: [Cut; 4] = [Cut::Session, Cut::Data, Cut::BackSession, Cut::BackData];
    for seed in seeds(48) {
        let cut = CUTS[seed as usize % 4];
        let reads = seed / 4 % 2 == 0;
        let made = if seed / 8 % 3 == 2 { CONVERTED } else { RELAY };
        let world = World::new(seed);
        let mut rng = world.rng();
        let hall = Hall::new(&world, made, Shape { window: 1 << 20, ..far(4) });
        // The existing connection is cut at a given time.
        let shape = Shape { breaks_after: Some(moment(&mut rng)), window: 1 << 20, ..far(4) };
        let h = hall.clone();
        world.run(async move {
            let bytes = pattern(CARRIED);
            h.book.put("f", if reads { &bytes } else { b"" });
            if rng.one_in(2) {
                h.book.plan(Plan { late: Some(Duration::from_millis(2)), ..Plan::default() });
            }
            let mut talk = h.front.talk().await;
            talk.open(2, "f", 2).await;
            let token = talk.stream(2, reads, 0).await.unwrap();
            let mine = if cut == Cut::Data { shape.clone() } else { Shape { window: 1 << 20, ..near() } };
            if cut == Cut::BackData {
                h.back.fate(if rng.one_in(3) { Fate::Held(shape) } else { Fate::Come(shape) });
            }
            let mut data = Data::new(h.front.ways.connect(mine));
            let shown = data.write(format!("9PS1{token}").as_bytes()).await.is_ok();
            if cut == Cut::BackSession {
                let (env, mux) = (h.front.env.clone(), h.mux.clone());
                let time = Duration::from_micros(rng.below(120_000) as u64);
                env.clone().spawn(Box::pin(async move {
                    env.sleep_until(env.now() + time).await;
                    mux.hangup("back", "cut by the test");
                }));
            }
            if cut == Cut::Session {
                h.front.sleep(Duration::from_micros(rng.below(120_000) as u64)).await;
                drop(talk);
                let end = async {
                    if reads {
                        drop(data.rest().await);
                    } else {
                        while data.write(&[0; 10_000]).await.is_ok() {}
                    }
                };
                h.front.within(Duration::from_secs(2), end).await.expect("the stream goes with its session");
                return;
            }
            let errno = if reads {
                let (_, whole, errno) = carry_out(&mut talk, data, &bytes, &h.front).await;
                assert!(whole || errno != 0 || cut == Cut::Data);
                errno
            } else {
                let mut sent = 0;
                for piece in bytes.chunks(100_000) {
                    if !shown || data.write(piece).await.is_err() {
                        break;
                    }
                    sent += piece.len();
                }
                data.close().await;
                let told = h.front.within(Duration::from_secs(15), talk.close(2, sent as u64)).await;
                let (count, errno, _) = told.expect("a verdict in time").unwrap();
                let count = count as usize;
                assert!(count <= sent + 100_000 && (errno != 0 || count >= sent));
                assert!(h.book.get("f")[..count] == bytes[..count], "{count} bytes are not stored");
                if cut == Cut::Data && sent > 200_000 {
                    // Data that reached the mux is stored and reported: the link holds less than a MiB.
                    assert!(count + (2 << 20) > sent, "{count} of {sent} are told");
                }
                errno
            };
            if cut == Cut::BackSession && errno == 0 {
                // It was not cut in time.
                return;
            }
            // The file can have another stream, unless its connection is gone.
            h.book.plan(Plan::default());
            h.back.fate(Fate::Come(Shape { window: 1 << 20, ..far(4) }));
            if cut == Cut::BackSession && errno != 0 {
                // The files are gone, so the clunks may fail.
                let _ = talk.clunk(2).await;
                let _ = talk.clunk(1).await;
                h.front.sleep(nine_mux::RETRY).await;
                talk.attach(1).await.unwrap();
                talk.open(2, "f", 2).await;
            }
            h.book.put("f", &bytes);
            talk.clunk(2).await.unwrap();
            talk.open(2, "f", 2).await;
            let token = talk.stream(2, true, 0).await.unwrap();
            let data = h.front.data(&token).await;
            let (come, whole, errno) = carry_out(&mut talk, data, &bytes, &h.front).await;
            assert!((come, whole, errno) == (CARRIED, true, 0), "{come} bytes, errno {errno}");
        });
        hall.at_rest(&world);
    }
}

#[test]
fn a_mount_that_comes_back_does_so_under_a_stream() {
    for seed in seeds(8) {
        let world = World::new(seed);
        let mut rng = world.rng();
        let made = Made { wait: Some(Wait::Ever), back: seed % 2 == 0, ahead: seed % 3 == 0, front: true };
        let hall = Hall::new(&world, made, Shape { window: 1 << 20, ..far(4) });
        let h = hall.clone();
        world.run(async move {
            let bytes = pattern(CARRIED);
            let reads = rng.one_in(2);
            h.book.put("f", if reads { &bytes } else { b"" });
            let mut talk = h.front.talk().await;
            talk.open(2, "f", 2).await;
            let token = talk.stream(2, reads, 0).await.unwrap();
            let (env, mux) = (h.front.env.clone(), h.mux.clone());
            let time = Duration::from_micros(rng.below(100_000) as u64);
            env.clone().spawn(Box::pin(async move {
                env.sleep_until(env.now() + time).await;
                mux.hangup("back", "cut by the test");
            }));
            let mut data = h.front.data(&token).await;
            if reads {
                let (_, whole, errno) = carry_out(&mut talk, data, &bytes, &h.front).await;
                assert!(whole, "errno {errno}");
            } else {
                data.write(&bytes).await.unwrap();
                data.close().await;
                let all = CARRIED as u64;
                assert_eq!(talk.close(2, all).await, Ok((all, 0, String::new())));
                assert!(h.book.get("f") == bytes);
            }
        });
        hall.at_rest(&world);
    }
}

#[test]
fn an_upstream_that_fails_gives_its_errno_and_what_is_stored() {
    for (made, seed) in [RELAY, CONVERTED].into_iter().flat_map(|made| seeds(6).map(move |seed| (made, seed)))
    {
        let world = World::new(seed);
        let mut rng = world.rng();
        let hall = Hall::new(&world, made, Shape { window: 1 << 20, ..far(4) });
        let h = hall.clone();
        world.run(async move {
            let bytes = pattern(CARRIED);
            let at = [0, 1000, 3_000_000, (4 << 20) + 1, 5_000_000][rng.below(5)];
            let mut talk = h.front.talk().await;
            if rng.one_in(2) {
                h.book.put("f", &bytes);
                talk.open(2, "f", 2).await;
                h.book.plan(Plan { bad_from: Some(at as u64), ..Plan::default() });
                let token = talk.stream(2, true, 0).await.unwrap();
                let data = h.front.data(&token).await;
                let (come, _, errno) = carry_out(&mut talk, data, &bytes, &h.front).await;
                assert_eq!((come, errno), (at, Errno::EIO.0), "{made:?}");
            } else {
                h.book.put("f", b"");
                talk.open(2, "f", 2).await;
                h.book.plan(Plan { room: Some(at as u64), ..Plan::default() });
                let token = talk.stream(2, false, 0).await.unwrap();
                let mut data = h.front.data(&token).await;
                for piece in bytes.chunks(50_000) {
                    if data.write(piece).await.is_err() {
                        break;
                    }
                }
                data.close().await;
                let (count, errno, _) = talk.close(2, CARRIED as u64).await.unwrap();
                assert_eq!((count, errno), (at as u64, Errno::ENOSPC.0), "{made:?}");
                assert!(h.book.get("f")[..] == bytes[..at]);
            }
            h.book.plan(Plan::default());
        });
        hall.at_rest(&world);
    }
}

#[test]
fn what_a_tsclose_says_holds_through_a_mux() {
    for (made, seed) in
        [RELAY, CONVERTED].into_iter().flat_map(|made| seeds(12).map(move |seed| (made, seed)))
    {
        let world = World::new(seed);
        let mut rng = world.rng();
        let hall = Hall::new(&world, made, Shape { window: 1 << 20, ..far(4) });
        let h = hall.clone();
        world.run(async move {
            let bytes = pattern(CARRIED);
            let mut talk = h.front.talk().await;
            h.book.put("f", if seed % 2 == 0 { &bytes } else { b"" });
            talk.open(2, "f", 2).await;
            let token = talk.stream(2, seed % 2 == 0, 0).await.unwrap();
            let mut data = h.front.data(&token).await;
            if seed % 2 == 0 {
                let mut come = Vec::new();
                for _ in 0..rng.below(20) {
                    come.extend_from_slice(&data.read(100_000).await.unwrap());
                }
                let stop = [0, come.len(), rng.below(CARRIED), CARRIED][rng.below(4)] as u64;
                let tag = talk.begin_close(2, stop).await;
                let (rest, _) = data.rest().await;
                come.extend_from_slice(&rest);
                assert_eq!(talk.verdict(tag).await, Ok((come.len() as u64, 0, String::new())), "{made:?}");
                assert!(bytes.starts_with(&come) && come.len() as u64 >= stop);
            } else {
                // It sends a count, and leaves the connection open.
                let sent = [0, 10, 1_000_000, (4 << 20) + 1000][rng.below(4)];
                data.write(&bytes[..sent]).await.unwrap();
                let said = if rng.one_in(3) { sent / 2 } else { sent } as u64;
                let told = h.front.within(Duration::from_secs(2), talk.close(2, said)).await;
                let (count, errno, _) = told.expect("so many have come and are stored").unwrap();
                assert!(errno == 0 && count >= said && count <= sent as u64, "{made:?}");
                assert!(h.book.get("f")[..count as usize] == bytes[..count as usize]);
            }
            // The clunk of a fid whose stream is over, or is not.
            h.front.within(Duration::from_secs(1), talk.clunk(2)).await.expect("at once").unwrap();
        });
        hall.at_rest(&world);
    }
}

#[test]
fn what_comes_in_drops_is_passed_on_soon() {
    for (made, held) in [(RELAY, true), (RELAY, false), (CONVERTED, false)] {
        let world = World::new(4);
        let mut rng = world.rng();
        let hall = Hall::new(&world, made, far(4));
        let h = hall.clone();
        world.run(async move {
            h.book.put("f", b"");
            let shape = Shape { window: 5_000, ..far(4) };
            h.back.fate(if held { Fate::Held(shape) } else { Fate::Come(shape) });
            let mut talk = h.front.talk().await;
            talk.open(2, "f", 1).await;
            let token = talk.stream(2, false, 0).await.unwrap();
            let mut data = h.front.data(&token).await;
            let (bytes, mut sent) = (pattern(1 << 20), 0);
            for _ in 0..10 {
                let n = 1 + rng.below(100_000);
                data.write(&bytes[sent..sent + n]).await.unwrap();
                sent += n;
                h.front.sleep(Duration::from_secs(2)).await;
                let there = h.book.get("f");
                assert!(there == bytes[..sent], "{made:?}: {} of {sent} are stored", there.len());
            }
            data.close().await;
            assert_eq!(talk.close(2, sent as u64).await, Ok((sent as u64, 0, String::new())));
        });
        hall.at_rest(&world);
    }
}

#[test]
fn a_slow_client_takes_little_of_the_mux_and_holds_up_nobody() {
    const SLOW: u32 = 12;
    for made in [RELAY, CONVERTED] {
        let world = World::new(1);
        let hall = Hall::new(&world, made, Shape { window: 1 << 20, ..far(4) });
        let h = hall.clone();
        world.run(async move {
            let bytes = pattern(CARRIED);
            h.book.put("f", &bytes);
            h.back.fate(Fate::Come(Shape { window: 64 * 1024, ..far(4) }));
            let mut talk = h.front.talk().await;
            let mut slow = Vec::new();
            for fid in 2..2 + SLOW {
                talk.open(fid, "f", 2).await;
                let token = talk.stream(fid, true, 0).await.unwrap();
                let mut data = h.front.data(&token).await;
                data.read(1000).await.unwrap();
                slow.push(data);
            }
            h.front.sleep(Duration::from_secs(2)).await;
            // Data that was read and has not arrived is charged to a budget, or on a link.
            let known = h.front.service.core.borrowed() + h.back.service.core.borrowed();
            let each = (h.book.moved() as usize).saturating_sub(known) / SLOW as usize;
            assert!(each < 1 << 20, "{made:?}: {each} bytes of each are in nobody's books");
            for _ in 0..3 {
                let begun = h.front.env.now();
                let mut other = h.front.talk().await;
                other.open(2, "f", 0).await;
                assert_eq!(other.read(2, 0, 10_000).await.unwrap().len(), 10_000);
                let token = other.stream(2, true, (5 << 20) + 500_000).await.unwrap();
                let (come, _) = h.front.data(&token).await.rest().await;
                assert!(come == bytes[(5 << 20) + 500_000..]);
                let took = h.front.env.now() - begun;
                assert!(took < Duration::from_secs(1), "{made:?}: it took {took:?}");
            }
        });
        hall.at_rest(&world);
    }
}

#[test]
fn three_clients_and_many_small_streams_at_once() {
    for made in [RELAY, CONVERTED] {
        let world = World::new(2);
        let hall = Hall::new(&world, made, Shape { window: 1 << 20, ..far(4) });
        let h = hall.clone();
        world.run(async move {
            for n in 0..5 {
                h.book.put(&format!("f{n}"), &pattern(3_000 * n + 7));
            }
            let one = async |n: usize| {
                let mut talk = h.front.talk().await;
                for k in 0..70u32 {
                    let name = format!("f{}", (n + k as usize) % 5);
                    let bytes = h.book.get(&name);
                    talk.open(10 + k, &name, 2).await;
                    let token = talk.stream(10 + k, true, 0).await.unwrap();
                    let tag = talk.begin_close(10 + k, u64::MAX).await;
                    let (come, _) = h.front.data(&token).await.rest().await;
                    assert!(come == bytes);
                    let verdict = talk.verdict(tag).await;
                    assert_eq!(verdict, Ok((bytes.len() as u64, 0, String::new())), "{made:?} {k}");
                    // Most stay open, as with a client that reads many files.
                    if k % 5 == 0 {
                        talk.clunk(10 + k).await.unwrap();
                    }
                }
            };
            futures_util::future::join3(one(0), one(1), one(2)).await;
        });
        hall.at_rest(&world);
    }
}
