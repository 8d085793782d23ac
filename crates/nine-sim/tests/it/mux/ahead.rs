//! Read-ahead for clients without it: it is faster, and no client reads different data than without it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::{join, join_all};
use nine_io::Payload;
use nine_io::client::{Client, File};
use nine_io::server::{Answer, Core, FileServer, Gate, Later, Node, Reply, Req, ReqId, Service};
use nine_mux::{AHEAD_MAX, Flags, Server, UpstreamStatus, Wait};
use nine_net::Env;
use nine_proto::msg::{Names, Tmsg};
use nine_proto::{Attr, Dialect, Errno, Fid, GetMask, NOUID, Op, OpenFlags, Qid, SetAttr, Walked, mode};
use nine_sim::{Shape, SimEnv, World, seeds};

use crate::common::Raw;
use crate::mux::world::{Muxed, owner, within};

/// A server with one file, `f`, which counts requests.
pub struct Tape(Mutex<Books>);

pub struct Books {
    pub data: Vec<u8>,
    qid: Qid,
    mode: u32,
    /// Reported instead of the real length.
    length: Option<u64>,
    /// The file's version is reported.
    versions: bool,
    /// O_TRUNC is obeyed.
    pub truncates: bool,
    does: Box<dyn FnMut(u64, u32) -> Act + Send>,
    reads: Vec<(u64, u32)>,
    pub getattrs: usize,
    held: Vec<(ReqId, Later)>,
}

/// Outcome of a Tread.
enum Act {
    Honest,
    Short(usize),
    Fail,
    Hold,
}

const ROOT: Qid = Qid { ty: Qid::DIR, vers: 0, path: 1 };

impl Tape {
    pub fn new(data: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Books {
            data,
            qid: Qid { ty: 0, vers: 1, path: 2 },
            mode: mode::S_IFREG | 0o666,
            length: None,
            versions: true,
            truncates: true,
            does: Box::new(|_, _| Act::Honest),
            reads: Vec::new(),
            getattrs: 0,
            held: Vec::new(),
        })))
    }

    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().expect("no panic while it is held")
    }

    fn does(&self, does: impl FnMut(u64, u32) -> Act + Send + 'static) {
        self.books().does = Box::new(does);
    }

    fn answer_all(&self) {
        let held = std::mem::take(&mut self.books().held);
        for (_, later) in held {
            let Op::Read { offset, count } = later.op() else { unreachable!("only reads are held") };
            let data = self.books().read(offset, count);
            later.respond(Ok(Reply::Read(Payload::from(data))));
        }
    }
}

impl Books {
    fn read(&self, offset: u64, count: u32) -> Vec<u8> {
        let from = (offset as usize).min(self.data.len());
        self.data[from..].iter().copied().take(count as usize).collect()
    }

    fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.data);
        self.qid.vers += u32::from(self.versions);
    }
}

impl FileServer for Tape {
    fn serve(&self, req: Req) -> Answer {
        let mut books = self.books();
        let reply = match req.op() {
            Op::Attach { .. } => Reply::Attach { qid: ROOT, node: Arc::new(ROOT) },
            Op::Walk { names } => {
                let mut qids = Walked::new();
                let node = req.node::<Qid>().expect("all nodes are");
                if !names.iter().all(|name| name == b"f") {
                    return req.now(Err(Errno::ENOENT.into()));
                }
                names.iter().for_each(|_| qids.push(books.qid));
                Reply::Walk { node: Some(if qids.is_empty() { node } else { Arc::new(books.qid) }), qids }
            }
            Op::Create { .. } => {
                books.change(Vec::clear);
                Reply::Open { qid: books.qid, iounit: 0, node: Arc::new(books.qid) }
            }
            Op::Open { flags } if flags.has(OpenFlags::TRUNC) && books.truncates => {
                books.change(Vec::clear);
                Reply::Open { qid: books.qid, iounit: 0, node: Arc::new(books.qid) }
            }
            Op::Open { .. } => Reply::Open { qid: books.qid, iounit: 0, node: Arc::new(books.qid) },
            Op::Read { offset, count } => {
                books.reads.push((offset, count));
                let mut data = books.read(offset, count);
                match (books.does)(offset, count) {
                    Act::Honest => {}
                    Act::Short(n) => data.truncate(n),
                    Act::Fail => return req.now(Err(Errno::EIO.into())),
                    Act::Hold => {
                        let id = req.id();
                        let (answer, later) = req.later();
                        books.held.push((id, later));
                        return answer;
                    }
                }
                Reply::Read(Payload::from(data))
            }
            Op::Write { offset, data } => {
                let (from, n) = (offset as usize, data.len());
                books.change(|all| {
                    all.resize(all.len().max(from + n), 0);
                    all[from..from + n].copy_from_slice(data);
                });
                Reply::Wrote(n as u32)
            }
            Op::Setattr { set } => {
                if let Some(size) = set.size {
                    books.change(|all| all.resize(size as usize, 0));
                }
                Reply::Done
            }
            Op::Getattr { .. } => {
                books.getattrs += 1;
                let qid = *req.node::<Qid>().expect("all nodes are");
                let size = books.length.unwrap_or(books.data.len() as u64);
                let (qid, mode) = if qid == ROOT { (ROOT, 0o40755) } else { (books.qid, books.mode) };
                Reply::Attr(Box::new(Attr { valid: GetMask::BASIC, qid, mode, size, ..Attr::default() }))
            }
            Op::Clunk => Reply::Done,
            _ => return req.now(Err(Errno::EOPNOTSUPP.into())),
        };
        drop(books);
        req.now(Ok(reply))
    }

    fn cancel(&self, id: ReqId, _: Option<&Node>) {
        let mut books = self.books();
        if let Some(at) = books.held.iter().position(|(other, _)| *other == id) {
            let (_, later) = books.held.swap_remove(at);
            drop(books);
            later.respond(Err(Errno::EINTR.into()));
        }
    }
}

/// A round trip of 50 ms, with a large window.
fn far() -> Shape {
    Shape { delay: Duration::from_millis(25), window: 16 << 20, piece: 1 << 20, ..Shape::default() }
}

/// Returns bytes in which adjacent pages differ.
fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|at| (at ^ (at >> 8) ^ (at >> 15)) as u8).collect()
}

async fn mount(m: &Muxed, server: Server) {
    let server = Server { ahead: true, ..server };
    m.space.mount(server, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
}

async fn mounted(m: &Muxed, tape: &Arc<Tape>, shape: Shape) {
    mount(m, m.far("far", tape.clone(), shape)).await;
}

/// Returns the status of the server that is read ahead.
fn status(m: &Muxed) -> UpstreamStatus {
    let upstreams = m.mux.status().upstreams;
    upstreams.into_iter().find(|upstream| &*upstream.name == "far").expect("it is mounted")
}

async fn sleep(env: &SimEnv, time: Duration) {
    env.sleep_until(env.now() + time).await;
}

/// Reads the file from `offset` on, with `count` bytes per read, one after the other.
async fn serially(file: &File, offset: u64, count: u32) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let data = file.read(offset + all.len() as u64, count).await.expect("it can be read");
        if data.is_empty() {
            return all;
        }
        all.extend_from_slice(&data);
    }
}

#[test]
fn serial_reads_over_a_long_link_wait_rarely() {
    let mut took = Vec::new();
    for ahead in [false, true] {
        let world = World::new(1);
        let m = Muxed::new(&world);
        took.push(world.run(async move {
            let data = bytes(8 << 20);
            let tape = Tape::new(data.clone());
            let server = Server { ahead, ..m.far("far", tape.clone(), far()) };
            m.space.mount(server, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
            let (_client, root) = m.client(Dialect::L).await;
            let file = root.open("far/f", OpenFlags::READ).await.unwrap();
            let begun = m.env.now();
            assert!(serially(&file, 0, u32::MAX).await == data);
            let took = m.env.now() - begun;
            let served = status(&m).ahead_served;
            if ahead {
                assert!(served > (data.len() - 3 * 32 * 1024) as u64, "{served} bytes");
                assert_eq!(status(&m).ahead_dropped, 0);
            } else {
                assert_eq!((served, tape.books().getattrs), (0, 0));
            }
            took
        }));
    }
    eprintln!("without {:?}, with {:?}", took[0], took[1]);
    assert!(took[1] * 8 < took[0], "{took:?}");
}

#[test]
fn every_byte_is_right_in_any_dialect_at_any_offset_and_size() {
    for seed in seeds(24) {
        let world = World::new(seed);
        let mut rng = world.rng();
        let m = Muxed::new(&world);
        world.run(async move {
            let data = bytes(rng.below(3 << 20));
            let tape = Tape::new(data.clone());
            let dialects = [Dialect::L, Dialect::U, Dialect::P2000];
            let mut server = m.far("far", tape, far());
            server.options.dialects = vec![dialects[rng.below(3)]];
            server.options.msize = 4096 + rng.below(200_000) as u32;
            mount(&m, server).await;
            let (_client, root) = m.client(dialects[rng.below(3)]).await;
            let file = root.open("far/f", OpenFlags::READ).await.unwrap();
            for _ in 0..4 {
                let offset = rng.below(data.len() + 1);
                let count = 1 + rng.below(40_000) as u32;
                let count = if data.len() - offset > 100_000 { count.max(5000) } else { count };
                assert!(serially(&file, offset as u64, count).await == data[offset..], "NINE_SEED={seed}");
            }
        });
    }
}

/// Opens the file in a client that keeps several of its Treads in flight.
async fn open_raw(m: &Muxed) -> Raw {
    let mut raw = m.raw().await;
    let walk = Tmsg::Walk { fid: Fid(1), newfid: Fid(2), names: Names::Slice(&[b"far", b"f"]) };
    assert!(raw.call(1, walk).await.starts_with("Rwalk"));
    assert!(raw.call(1, Tmsg::Lopen { fid: Fid(2), flags: 0 }).await.starts_with("Rlopen"));
    raw
}

fn tread(offset: usize, count: usize) -> Tmsg<'static> {
    Tmsg::Read { fid: Fid(2), offset: offset as u64, count: count as u32 }
}

/// Returns the tag and the data of an Rread; `None` for an error.
async fn rread(raw: &mut Raw) -> (u16, Option<Vec<u8>>) {
    let frame = raw.receive().await.unwrap();
    let tag = u16::from_le_bytes([frame[5], frame[6]]);
    (tag, (frame[4] == 117).then(|| frame[11..].to_vec()))
}

#[test]
fn many_reads_under_way_are_serial_and_each_gets_its_own_bytes() {
    const COUNT: usize = 30_000;
    const DEPTH: usize = 16;
    let world = World::new(1);
    let m = Muxed::new(&world);
    world.run(async move {
        let data = bytes(6 << 20);
        let tape = Tape::new(data.clone());
        mounted(&m, &tape, far()).await;
        let mut raw = open_raw(&m).await;
        let all = data.len().div_ceil(COUNT);
        let (mut sent, mut came) = (0, 0);
        while came < all {
            while sent < all && sent - came < DEPTH {
                raw.send(sent as u16, tread(sent * COUNT, COUNT)).await.unwrap();
                sent += 1;
            }
            let (tag, got) = rread(&mut raw).await;
            let from = usize::from(tag) * COUNT;
            assert!(got.unwrap() == data[from..data.len().min(from + COUNT)], "read {tag}");
            came += 1;
        }
        let passed = tape.books().reads.iter().filter(|(_, count)| *count == COUNT as u32).count();
        assert!(passed <= 2 * DEPTH, "{passed} reads were passed on as they came");
        assert_eq!(status(&m).ahead_dropped, 0);
    });
}

#[test]
fn seeks_find_their_bytes_and_make_it_careful() {
    for seed in seeds(20) {
        let world = World::new(seed);
        let mut rng = world.rng();
        let m = Muxed::new(&world);
        world.run(async move {
            let data = bytes(2 << 20);
            let tape = Tape::new(data.clone());
            mounted(&m, &tape, Shape::default()).await;
            let (_client, root) = m.client(Dialect::L).await;
            let file = root.open("far/f", OpenFlags::READ).await.unwrap();
            for _ in 0..60 {
                let mut at = rng.below(data.len());
                for _ in 0..rng.below(6) {
                    let count = 1 + rng.below(20_000);
                    let got = file.read(at as u64, count as u32).await.unwrap();
                    assert!(got == data[at..data.len().min(at + count)], "NINE_SEED={seed}");
                    at += got.len();
                }
            }
            // Two sequential reads and a seek, repeatedly: soon no data is fetched in vain.
            for round in 0..200 {
                let at = (round % 7) * 250_000;
                for n in 0..3 {
                    file.read((at + n * 1000) as u64, 1000).await.unwrap();
                }
            }
            let before = status(&m).ahead_dropped;
            for round in 0..200 {
                let at = (round % 7) * 250_000;
                for n in 0..3 {
                    file.read((at + n * 1000) as u64, 1000).await.unwrap();
                }
            }
            assert_eq!(status(&m).ahead_dropped, before, "NINE_SEED={seed}");
        });
    }
}

#[test]
fn short_answers_and_errors_in_the_middle_change_nothing() {
    for seed in seeds(30) {
        let world = World::new(seed);
        let mut rng = world.rng();
        let m = Muxed::new(&world);
        world.run(async move {
            let data = bytes(1 << 20);
            let tape = Tape::new(data.clone());
            mounted(&m, &tape, far()).await;
            let (bad, mut dice) = (rng.below(data.len()) as u64, rng.fork());
            // An unreadable byte, as on a bad disk; otherwise some reads are short.
            tape.does(move |offset, count| match dice.below(4) {
                _ if (offset..offset + u64::from(count)).contains(&bad) && offset < bad => {
                    Act::Short((bad - offset) as usize)
                }
                _ if offset == bad => Act::Fail,
                0 => Act::Short(1 + dice.below(count as usize)),
                _ => Act::Honest,
            });
            let (_client, root) = m.client(Dialect::L).await;
            let file = root.open("far/f", OpenFlags::READ).await.unwrap();
            let mut at = 0;
            while at < data.len() {
                match file.read(at as u64, 1 + rng.below(30_000) as u32).await {
                    Ok(got) => {
                        assert!(!got.is_empty() && *got == data[at..at + got.len()], "NINE_SEED={seed}");
                        assert!(!(at..at + got.len()).contains(&(bad as usize)), "NINE_SEED={seed}");
                        at += got.len();
                    }
                    Err(error) => {
                        assert_eq!((at as u64, error.errno()), (bad, Errno::EIO), "NINE_SEED={seed}");
                        at += 1;
                    }
                }
            }
        });
    }
}

#[test]
fn files_that_are_no_regular_ones_are_never_read_ahead() {
    type Kind = (&'static str, u32, u8, Option<u64>);
    let regular = mode::S_IFREG | 0o666;
    let kinds: &[Kind] = &[
        ("length 0, as in /proc", regular, 0, Some(0)),
        ("a device", 0o20666, 0, None),
        ("a fifo", 0o10666, 0, None),
        ("append-only", regular, Qid::APPEND, None),
        ("exclusive", regular, Qid::EXCL, None),
    ];
    for &(name, mode, ty, length) in kinds {
        let world = World::new(1);
        let m = Muxed::new(&world);
        world.run(async move {
            let data = bytes(1 << 20);
            let tape = Tape::new(data.clone());
            (tape.books().mode, tape.books().length) = (mode, length);
            tape.books().qid.ty = ty;
            mounted(&m, &tape, Shape::default()).await;
            let (_client, root) = m.client(Dialect::L).await;
            let file = root.open("far/f", OpenFlags::READ).await.unwrap();
            assert!(serially(&file, 0, 10_000).await == data, "{name}");
            let wanted = (0..data.len()).step_by(10_000).map(|at| (at as u64, 10_000));
            let wanted: Vec<_> = wanted.chain([(data.len() as u64, 10_000)]).collect();
            assert_eq!(tape.books().reads, wanted, "{name}");
            assert!(tape.books().getattrs <= 1, "{name}");
        });
    }
}

#[test]
fn nothing_is_asked_for_behind_the_end() {
    let world = World::new(1);
    let m = Muxed::new(&world);
    world.run(async move {
        let data = bytes(300_000);
        let tape = Tape::new(data.clone());
        mounted(&m, &tape, Shape::default()).await;
        let (_client, root) = m.client(Dialect::L).await;
        let file = root.open("far/f", OpenFlags::READ).await.unwrap();
        assert!(serially(&file, 0, 10_000).await == data);
        assert!(status(&m).ahead_served > 200_000);
        let behind = |(offset, count): &&(u64, u32)| offset + u64::from(*count) > data.len() as u64;
        assert_eq!(
            tape.books().reads.iter().filter(behind).copied().collect::<Vec<_>>(),
            [(300_000, 10_000)]
        );
        // Another client extends the file. The next read at the end sees it.
        tape.books().change(|all| all.extend_from_slice(b"more"));
        assert_eq!(*file.read(300_000, 100).await.unwrap(), *b"more");
        assert_eq!(*file.read(300_004, 100).await.unwrap(), *b"");
    });
}

#[test]
fn a_file_that_others_make_shorter_or_longer_is_seen_so() {
    for versions in [true, false] {
        let world = World::new(1);
        let m = Muxed::new(&world);
        world.run(async move {
            let tape = Tape::new(bytes(4 << 20));
            tape.books().versions = versions;
            mounted(&m, &tape, far()).await;
            let (_client, root) = m.client(Dialect::L).await;
            let file = root.open("far/f", OpenFlags::READ).await.unwrap();
            let (mut at, mut rounds) = (0, 0);
            while rounds < 60 {
                at += file.read(at, 10_000).await.unwrap().len() as u64;
                rounds += 1;
            }
            // A change at the server is known after a while.
            tape.books().change(|all| all.truncate(1_000_000));
            sleep(&m.env, Duration::from_millis(2500)).await;
            assert!(serially(&file, at, 10_000).await == bytes(1_000_000)[at as usize..]);
            // A change through the mux is known at once.
            at = 0;
            while at < 300_000 {
                at += file.read(at, 10_000).await.unwrap().len() as u64;
            }
            let (_other, elsewhere) = m.client(Dialect::P2000).await;
            let writer = elsewhere.walk("far/f").await.unwrap();
            writer.setattr(&SetAttr { size: Some(at + 5), ..SetAttr::default() }).await.unwrap();
            assert!(serially(&file, at, 10_000).await == bytes(1_000_000)[at as usize..at as usize + 5]);
        });
    }
}

#[test]
fn whatever_changes_a_file_through_the_mux_is_seen_by_the_next_read() {
    for way in ["write", "own write", "setattr", "open", "create"] {
        for dialect in [Dialect::L, Dialect::P2000] {
            let world = World::new(1);
            let m = Muxed::new(&world);
            world.run(async move {
                let tape = Tape::new(bytes(1 << 20));
                tape.books().versions = false;
                mounted(&m, &tape, Shape::default()).await;
                let (_client, root) = m.client(Dialect::L).await;
                let file = root.open("far/f", OpenFlags::RDWR).await.unwrap();
                for n in 0..30 {
                    file.read(n * 1000, 1000).await.unwrap();
                }
                let served = status(&m).ahead_served;
                assert!(served > 0);
                let (_other, elsewhere) = m.client(dialect).await;
                let other = elsewhere.walk("far/f").await.unwrap();
                let dir = elsewhere.walk("far").await.unwrap();
                match way {
                    "write" => {
                        let other = other.open_here(OpenFlags::WRITE).await.unwrap();
                        other.write(30_000, &[7; 1000]).await.map(drop)
                    }
                    "own write" => file.write(30_000, &[7; 1000]).await.map(drop),
                    "setattr" => other.setattr(&SetAttr { size: Some(30_500), ..SetAttr::default() }).await,
                    "open" => other.open_here(OpenFlags::WRITE | OpenFlags::TRUNC).await.map(drop),
                    _ => dir.create("f", OpenFlags::WRITE, 0o644, nine_proto::NOGID).await.map(drop),
                }
                .unwrap();
                let now = tape.books().read(30_000, 1000);
                assert_ne!(now, bytes(31_000)[30_000..]);
                assert!(*file.read(30_000, 1000).await.unwrap() == *now, "{way}");
                assert_eq!(status(&m).ahead_served, served, "{way}");
            });
        }
    }
}

#[test]
fn another_version_is_seen_when_somebody_asks_and_after_a_second_in_any_case() {
    for asked in [true, false] {
        let world = World::new(1);
        let m = Muxed::new(&world);
        world.run(async move {
            let tape = Tape::new(bytes(1 << 20));
            mounted(&m, &tape, Shape::default()).await;
            let (_client, root) = m.client(Dialect::L).await;
            let (_other, elsewhere) = m.client(Dialect::P2000).await;
            let file = root.open("far/f", OpenFlags::READ).await.unwrap();
            let mut at = 0;
            for _ in 0..5 {
                at += file.read(at, 1000).await.unwrap().len() as u64;
            }
            tape.books().change(|all| all.fill(7));
            let begun = m.env.now();
            if asked {
                elsewhere.walk("far/f").await.unwrap();
            }
            let limit = if asked { Duration::from_millis(100) } else { Duration::from_millis(1500) };
            let mut old = 0;
            while *file.read(at, 1000).await.unwrap() != [7; 1000] {
                assert!(m.env.now() - begun < limit, "it is still the old one");
                sleep(&m.env, Duration::from_millis(50)).await;
                at += 1000;
                old += 1;
            }
            assert_eq!(asked, old == 0, "{old} reads of the old one");
        });
    }
}

#[test]
fn what_has_lain_too_long_is_not_served() {
    let world = World::new(1);
    let m = Muxed::new(&world);
    world.run(async move {
        let tape = Tape::new(bytes(4 << 20));
        // Neither version nor length shows the change.
        tape.books().versions = false;
        mounted(&m, &tape, Shape::default()).await;
        let (_client, root) = m.client(Dialect::L).await;
        let file = root.open("far/f", OpenFlags::READ).await.unwrap();
        let mut at = 0;
        for _ in 0..10 {
            at += file.read(at, 1000).await.unwrap().len() as u64;
        }
        let served = status(&m).ahead_served;
        assert!(served > 0);
        tape.books().change(|all| all.fill(7));
        assert_ne!(*file.read(at, 1000).await.unwrap(), [7; 1000], "it was there");
        sleep(&m.env, Duration::from_millis(1800)).await;
        sleep(&m.env, Duration::from_millis(500)).await;
        assert_eq!(*file.read(at + 1000, 1000).await.unwrap(), [7; 1000]);
        assert!(status(&m).ahead_dropped > 0);
        // A client that stops reading leaves nothing behind.
        m.all_settled().await;
        assert_eq!(m.mux.status().ahead, 0);
    });
}

/// The written values of a block, which determine the values that may be read.
#[derive(Default)]
struct Block {
    /// The value, when its write began, and when it was answered.
    written: Vec<(u8, Duration, Option<Duration>)>,
}

impl Block {
    /// Whether a read between these times may return this value, if a change is visible after at most `late`.
    fn may_be(&self, value: u8, begun: Duration, ended: Duration, late: Duration) -> bool {
        (0..self.written.len()).any(|i| {
            let (of, since, _) = self.written[i];
            let over =
                self.written[i + 1..].iter().any(|(.., until)| until.is_some_and(|t| t + late < begun));
            of == value && since <= ended && !over
        })
    }
}

#[test]
fn a_file_that_another_client_writes_is_read_as_it_was_at_some_moment() {
    const BLOCK: usize = 8192;
    const BLOCKS: usize = 128;
    let mut served = 0;
    for seed in seeds(30) {
        let world = World::new(seed);
        let mut rng = world.rng();
        let m = Muxed::new(&world);
        served += world.run(async move {
            let tape = Tape::new(vec![0; BLOCK * BLOCKS]);
            tape.books().versions = rng.below(2) == 0;
            let shape = Shape { delay: Duration::from_millis(1 + rng.below(30) as u64), ..far() };
            mounted(&m, &tape, shape.clone()).await;
            // In half of the worlds the server is changed directly, without the mux.
            let direct = rng.below(2) == 0;
            let late = if direct { Duration::from_millis(2500) } else { Duration::ZERO };
            let first = || Block { written: vec![(0, Duration::ZERO, Some(Duration::ZERO))] };
            let blocks: Arc<Mutex<Vec<Block>>> = Arc::new(Mutex::new((0..BLOCKS).map(|_| first()).collect()));
            let done = Arc::new(Mutex::new(false));
            let (_client, root) = m.client(Dialect::L).await;
            let (_other, elsewhere) = match direct {
                true => straight(&m, &tape, shape).await,
                false => m.client([Dialect::L, Dialect::P2000][rng.below(2)]).await,
            };
            let path = if direct { "f" } else { "far/f" };
            let mut dice = rng.fork();
            let write = async {
                let file = elsewhere.open(path, OpenFlags::WRITE).await.unwrap();
                let mut value = 0u8;
                while !*done.lock().unwrap() {
                    sleep(&m.env, Duration::from_millis(dice.below(60) as u64)).await;
                    value = value.wrapping_add(1);
                    let block = dice.below(BLOCKS);
                    blocks.lock().unwrap()[block].written.push((value, m.env.now(), None));
                    let data = [value; BLOCK];
                    assert_eq!(file.write((block * BLOCK) as u64, &data).await.unwrap(), BLOCK as u32);
                    let mut blocks = blocks.lock().unwrap();
                    blocks[block].written.last_mut().unwrap().2 = Some(m.env.now());
                }
            };
            let read = async {
                let file = root.open("far/f", OpenFlags::READ).await.unwrap();
                for _ in 0..6 {
                    let count = 4096 + rng.below(20_000);
                    let mut at = rng.below(BLOCK * 4);
                    while at < BLOCK * BLOCKS {
                        let begun = m.env.now();
                        let data = file.read(at as u64, count as u32).await.unwrap();
                        let ended = m.env.now();
                        let blocks = blocks.lock().unwrap();
                        for (i, &value) in data.iter().enumerate() {
                            let block = (at + i) / BLOCK;
                            assert!(
                                blocks[block].may_be(value, begun, ended, late),
                                "NINE_SEED={seed}: {value} at {} between {begun:?} and {ended:?} of {:?}",
                                at + i,
                                blocks[block].written
                            );
                        }
                        at += data.len();
                    }
                }
                *done.lock().unwrap() = true;
            };
            join(write, read).await;
            status(&m).ahead_served
        });
    }
    assert!(served > 1 << 20, "it was hardly ever read ahead: {served} bytes");
}

/// Returns a client of the server itself.
async fn straight(m: &Muxed, tape: &Arc<Tape>, shape: Shape) -> (Client, File) {
    let service = Service::new(tape.clone(), Gate::default(), Core::default());
    let (near, far) = m.links.link(shape);
    m.env.spawn(Box::pin(service.connect(Box::new(far))));
    let (client, driver) = Client::connect(near, nine_io::client::Options::default()).await.unwrap();
    m.env.spawn(Box::pin(async { drop(driver.await) }));
    let root = client.attach("", NOUID, "").await.unwrap();
    (client, root)
}

#[test]
fn a_link_that_is_cut_in_the_middle_is_an_error_or_with_reconnection_none() {
    for seed in seeds(60) {
        let world = World::new(seed);
        let mut rng = world.rng();
        let m = Muxed::new(&world);
        world.run(async move {
            let data = bytes(2 << 20);
            let tape = Tape::new(data.clone());
            let comes_back = seed % 2 == 0;
            let shape = Shape { breaks_after: Some(200_000 + rng.below(1 << 20) as u64), ..far() };
            let server = m.far("far", tape, shape);
            mount(&m, Server { wait: comes_back.then_some(Wait::Ever), ..server }).await;
            let (_client, root) = m.client(Dialect::L).await;
            let (mut at, mut cut) = (0, 0);
            'again: while at < data.len() {
                assert!(cut < 1000, "NINE_SEED={seed}: it comes no further than {at}");
                let file = match root.open("far/f", OpenFlags::READ).await {
                    Ok(file) => file,
                    Err(error) => {
                        assert!(!comes_back, "NINE_SEED={seed}: {error}");
                        cut += 1;
                        sleep(&m.env, nine_mux::RETRY).await;
                        continue;
                    }
                };
                while at < data.len() {
                    let count = 1 + rng.below(30_000);
                    match within(&m.env, Duration::from_secs(20), file.read(at as u64, count as u32)).await {
                        Ok(got) => {
                            assert!(!got.is_empty() && *got == data[at..at + got.len()], "NINE_SEED={seed}");
                            at += got.len();
                        }
                        Err(error) => {
                            assert!(!comes_back, "NINE_SEED={seed}: {error}");
                            let what = error.to_string();
                            let is_so = ["reset", "closed", "pipe"].iter().any(|word| what.contains(word));
                            assert!(is_so, "NINE_SEED={seed}: {what}");
                            cut += 1;
                            sleep(&m.env, nine_mux::RETRY).await;
                            continue 'again;
                        }
                    }
                }
            }
            assert!(comes_back || cut > 0, "NINE_SEED={seed}: it was never cut");
        });
    }
}

#[test]
fn a_flushed_read_that_waits_is_answered_at_once_and_hurts_nobody() {
    const COUNT: usize = 30_000;
    let world = World::new(1);
    let m = Muxed::new(&world);
    world.run(async move {
        let data = bytes(4 << 20);
        let tape = Tape::new(data.clone());
        mounted(&m, &tape, Shape::default()).await;
        let mut raw = open_raw(&m).await;
        for n in 0..8 {
            raw.send(n as u16, tread(n * COUNT, COUNT)).await.unwrap();
            assert!(rread(&mut raw).await.1.unwrap() == data[n * COUNT..][..COUNT]);
        }
        assert!(status(&m).ahead_served > 0);
        tape.does(|_, _| Act::Hold);
        // As many as there is data for, then three that wait.
        let (mut sent, mut came) = (8, 8);
        loop {
            raw.send(sent as u16, tread(sent * COUNT, COUNT)).await.unwrap();
            sent += 1;
            match m.soon(Duration::from_millis(100), rread(&mut raw)).await {
                Some((tag, got)) => {
                    assert!(got.unwrap() == data[usize::from(tag) * COUNT..][..COUNT]);
                    came += 1;
                }
                None if sent - came == 3 => break,
                None => {}
            }
        }
        // The middle one is cancelled, while the server answers no read.
        let oldtag = nine_proto::Tag(came as u16 + 1);
        let flushed = m.soon(Duration::from_millis(100), raw.call(200, Tmsg::Flush { oldtag })).await;
        assert!(flushed.expect("nobody waits for the server").starts_with("Rflush tag 200"));
        tape.does(|_, _| Act::Honest);
        tape.answer_all();
        for _ in 0..2 {
            let (tag, got) = rread(&mut raw).await;
            assert_ne!(tag, oldtag.0);
            assert!(got.unwrap() == data[usize::from(tag) * COUNT..][..COUNT]);
        }
        // It is requested again, with the data after it.
        for n in [came + 1, sent, sent + 1] {
            raw.send(5, tread(n * COUNT, COUNT)).await.unwrap();
            assert!(rread(&mut raw).await.1.unwrap() == data[n * COUNT..][..COUNT]);
        }
    });
}

#[test]
fn a_client_that_vanishes_leaves_nothing_behind() {
    let world = World::new(1);
    let m = Muxed::new(&world);
    world.run(async move {
        let data = bytes(4 << 20);
        let tape = Tape::new(data.clone());
        mounted(&m, &tape, far()).await;
        let fids = async || {
            sleep(&m.env, Duration::from_millis(10)).await;
            m.all_settled().await;
            status(&m).connections[0].fids
        };
        let before = fids().await;
        for reads in 0..8 {
            let mut raw = open_raw(&m).await;
            for n in 0..reads {
                raw.send(n as u16, tread(n * 30_000, 30_000)).await.unwrap();
                rread(&mut raw).await;
            }
            tape.does(|_, _| Act::Hold);
            for n in reads..2 * reads {
                raw.send(n as u16, tread(n * 30_000, 30_000)).await.unwrap();
            }
            sleep(&m.env, Duration::from_millis(10 * reads as u64)).await;
            raw.hang_up();
            let gone = async { while fids().await > before || m.mux.status().ahead > 0 {} };
            within(&m.env, Duration::from_secs(5), gone).await;
            assert_eq!(tape.books().held.len(), 0);
            tape.does(|_, _| Act::Honest);
        }
    });
}

#[test]
fn all_files_together_have_a_limit() {
    const FILES: usize = 400;
    let world = World::new(1);
    let m = Muxed::new(&world);
    world.run(async move {
        let data = bytes(2 << 20);
        let tape = Tape::new(data.clone());
        mounted(&m, &tape, Shape::default()).await;
        let (_client, root) = m.client(Dialect::L).await;
        let files = join_all((0..FILES).map(|_| root.open("far/f", OpenFlags::READ))).await;
        let read = async |file: &File| {
            let (mut at, mut most) = (0, 0);
            while at < 120_000 {
                let got = file.read(at as u64, 30_000).await.unwrap();
                assert!(*got == data[at..at + got.len()]);
                at += got.len();
                most = most.max(m.mux.status().ahead);
            }
            most
        };
        let files: Vec<File> = files.into_iter().map(|file| file.unwrap()).collect();
        let most = join_all(files.iter().map(read)).await.into_iter().max().unwrap();
        assert!(most <= AHEAD_MAX && most > AHEAD_MAX - (1 << 20), "{most} bytes");
        // Files without a buffer are still read and, when the others have become idle, read ahead.
        sleep(&m.env, Duration::from_secs(3)).await;
        assert_eq!(m.mux.status().ahead, 0);
        let before = status(&m).ahead_served;
        assert!(serially(&files[FILES - 1], 120_000, 30_000).await == data[120_000..]);
        assert!(status(&m).ahead_served > before);
    });
}
