//! An archive on disks in memory, step by step.

mod document;
mod found;
mod grow;
mod in_place;
mod mend;
mod pace;
mod recover;
mod rot;
mod served;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use nine_block::{Ahead, Device, Error as Wrong, Io, Kind, Op as Asked, Ram, Shape};
use nine_proto::{SetAttr, Time, mode};

use crate::archive::{Archive, Ream, Settings};
use crate::fs::ROOT;
use crate::item::InodeAttributes;
use crate::jobs::Driver;
use crate::ptr::BlockPtr;

/// An archive, its driver and its disks.
pub(crate) struct Bench {
    pub(crate) archive: Archive,
    driver: Driver,
    pub(crate) c: Arc<dyn Device>,
    pub(crate) w: Arc<dyn Device>,
    settings: Settings,
    pub(crate) clock: Arc<AtomicI64>,
}

/// A disk with a hook for writes, which passes each write on or ends it itself.
struct Watched<F>(Arc<dyn Device>, F);

impl<F: Fn(Io) -> Option<Io> + Send + Sync + 'static> Device for Watched<F> {
    fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn submit(&self, io: Io) {
        let io = if io.op == Asked::Write { self.1(io) } else { Some(io) };
        io.into_iter().for_each(|io| self.0.submit(io));
    }
}

/// Returns a disk on which all writes fail after this number.
fn cut_after(disk: &Arc<dyn Device>, writes: u32) -> Arc<dyn Device> {
    let left = AtomicU32::new(writes);
    let one_less = |left: u32| left.checked_sub(1);
    let write = move |io: Io| match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
        Ok(_) => Some(io),
        Err(_) => {
            io.end(Err(Wrong::new(Kind::Poisoned, "the power is cut")));
            None
        }
    };
    Arc::new(Watched(disk.clone(), write))
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("disks of memory end at once"),
    }
}

impl Bench {
    pub(crate) fn new(sectors: u64, block: u32, fastworm: bool) -> Self {
        let (c, w): (Arc<dyn Device>, Arc<dyn Device>) =
            (Arc::new(Ram::new(sectors)), Arc::new(Ram::new(8 * sectors)));
        let clock = Arc::new(AtomicI64::new(1_795_000_000));
        let wall = clock.clone();
        let settings = Settings {
            memory: 4 << 20,
            dirty: 4 << 20,
            ahead: Ahead::Grow,
            zone: Some("UTC".into()),
            wall: Arc::new(move || Time { sec: wall.load(Ordering::Relaxed), nsec: 0 }),
            epoch: 0,
        };
        let ream = ream(block, fastworm);
        ready(Archive::ream(c.clone(), w.clone(), &ream, &settings)).unwrap();
        let (archive, driver) = ready(Archive::open(c.clone(), w.clone(), &settings)).unwrap();
        Self { archive, driver, c, w, settings, clock }
    }

    /// Creates a new archive on the present disks.
    pub(crate) fn make_again(&mut self) {
        let ream = ream(self.archive.0.cw.block() as u32, true);
        ready(Archive::ream(self.c.clone(), self.w.clone(), &ream, &self.settings)).unwrap();
        self.again();
    }

    /// Reopens the archive from the disks alone, as after a cut.
    pub(crate) fn again(&mut self) {
        let opened = Archive::open(self.c.clone(), self.w.clone(), &self.settings);
        (self.archive, self.driver) = ready(opened).unwrap();
    }

    /// Runs ready jobs; no time passes.
    pub(crate) fn turn(&mut self) {
        let _ = Pin::new(&mut self.driver).poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Runs a future, together with the jobs.
    pub(crate) fn run<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        for turn in 0..100_000 {
            if let Poll::Ready(result) = future.as_mut().poll(&mut cx) {
                return result;
            }
            let _ = Pin::new(&mut self.driver).poll(&mut cx);
            self.archive.tick(std::time::Duration::from_millis(20 * turn));
        }
        panic!("it never ends");
    }

    pub(crate) fn make(&mut self, dir: u64, name: &str, ty: u32) -> u64 {
        let archive = self.archive.clone();
        let now = archive.time();
        let it = InodeAttributes { mode: ty | 0o755, btime: now, mtime: now, ..InodeAttributes::default() };
        self.run(archive.attempt(|state| state.fs.make(dir, name.as_bytes(), it, b""))).unwrap()
    }

    pub(crate) fn symlink(&mut self, dir: u64, name: &str, target: &[u8]) -> u64 {
        let archive = self.archive.clone();
        let now = archive.time();
        let it = InodeAttributes {
            mode: mode::S_IFLNK | 0o777,
            btime: now,
            mtime: now,
            ..InodeAttributes::default()
        };
        self.run(archive.attempt(|state| state.fs.make(dir, name.as_bytes(), it, target))).unwrap()
    }

    pub(crate) fn target(&mut self, root: Option<u32>, ino: u64) -> Vec<u8> {
        let archive = self.archive.clone();
        self.run(archive.attempt(|state| state.fs.target(root_of(state, root), ino))).unwrap().into()
    }

    pub(crate) fn write(&mut self, ino: u64, offset: u64, data: &[u8]) {
        let archive = self.archive.clone();
        let now = archive.time();
        self.run(archive.attempt(|state| state.fs.write(ino, Some(offset), data, 0, now))).unwrap();
    }

    pub(crate) fn resize(&mut self, ino: u64, size: u64) {
        let archive = self.archive.clone();
        let now = archive.time();
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.run(archive.attempt(|state| state.fs.set_attributes(ino, &set, 0, now))).unwrap();
    }

    pub(crate) fn read(&mut self, root: Option<u32>, ino: u64) -> Vec<u8> {
        let archive = self.archive.clone();
        let mut all = Vec::new();
        loop {
            let offset = all.len() as u64;
            let read = |state: &mut crate::archive::ArchiveState| {
                let root = root_of(state, root);
                state.fs.read(root, ino, offset, 100_000)
            };
            let bytes = self.run(archive.attempt(read)).unwrap();
            if bytes.is_empty() {
                return all;
            }
            bytes.iter().for_each(|piece| all.extend_from_slice(piece));
        }
    }

    pub(crate) fn lookup(&mut self, root: Option<u32>, dir: u64, name: &str) -> Option<u64> {
        let archive = self.archive.clone();
        let found = archive.attempt(|state| {
            let root = root_of(state, root);
            state.fs.lookup(root, dir, name.as_bytes())
        });
        self.run(found).unwrap().map(|entry| entry.ino)
    }

    pub(crate) fn unlink(&mut self, dir: u64, name: &str) {
        let archive = self.archive.clone();
        let now = archive.time();
        self.run(archive.attempt(|state| state.fs.unlink(dir, name.as_bytes(), None, |_| false, now)))
            .unwrap();
    }

    pub(crate) fn sync(&mut self) {
        let archive = self.archive.clone();
        self.run(archive.sync()).unwrap();
    }

    pub(crate) fn dump(&mut self) -> crate::Dumped {
        let archive = self.archive.clone();
        self.run(archive.dump()).unwrap()
    }

    pub(crate) fn copied(&mut self) {
        let archive = self.archive.clone();
        self.run(archive.copied()).unwrap();
    }

    /// Like `copied`, but ignores errors on the way.
    pub(crate) fn copied_in_the_end(&mut self) {
        let archive = self.archive.clone();
        self.run(std::future::poll_fn(|_| match archive.dumps().iter().all(|dump| dump.copied) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }));
    }

    /// Checks that the archive is sound.
    pub(crate) fn check(&mut self) {
        let archive = self.archive.clone();
        let checked = self.run(archive.check(crate::Depth::Dumps)).unwrap();
        assert!(checked.faults.is_empty(), "{:#?}", checked.faults);
    }

    /// Runs until no background work is left.
    pub(crate) fn settle(&mut self) {
        let archive = self.archive.clone();
        let mut turns = 0;
        self.run(std::future::poll_fn(|_| {
            turns += 1;
            if turns > 200 && !archive.state().dumper.is_busy() { Poll::Ready(()) } else { Poll::Pending }
        }));
    }
}

fn ream(block: u32, fastworm: bool) -> Ream {
    Ream { name: "test".into(), block, fastworm, row_order: false, identity: [7; 16], owner: (1000, 1000) }
}

fn root_of(state: &crate::archive::ArchiveState, dump: Option<u32>) -> BlockPtr {
    dump.map_or(state.fs.mem.root, |generation| state.dumps[&generation].record.root)
}

pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn what_is_written_and_synced_is_there_after_a_cut() {
    for block in [8192, 16384, 65536] {
        let mut bench = Bench::new(1 << 18, block, true);
        let dir = bench.make(ROOT, "dir", mode::S_IFDIR);
        let small = bench.make(dir, "small", mode::S_IFREG);
        let large = bench.make(dir, "large", mode::S_IFREG);
        bench.write(small, 0, b"hello");
        let data = noise(1, 700_000);
        for (n, piece) in data.chunks(70_001).enumerate() {
            bench.write(large, n as u64 * 70_001, piece);
        }
        bench.check();
        let lost = bench.make(dir, "lost", mode::S_IFREG);
        assert!(bench.read(None, lost).is_empty());
        bench.again();
        bench.check();
        assert_eq!(bench.lookup(None, ROOT, "dir"), Some(dir));
        assert_eq!(bench.read(None, small), b"hello");
        assert!(bench.read(None, large) == data);
        assert_eq!(bench.lookup(None, dir, "lost"), None);
    }
}

/// Lengths of link targets around the limit of inline content, and the maximum, for blocks of 8, 16 and 64 KiB.
const TARGETS: [usize; 7] = [1, 100, 1920, 1921, 3968, 3969, 4095];

fn long_target(len: usize) -> Vec<u8> {
    noise(len as u64, len).iter().map(|byte| byte | 1).collect()
}

fn assert_targets(bench: &mut Bench, dump: Option<u32>) {
    for len in TARGETS {
        let link = bench.lookup(dump, ROOT, &format!("link{len}")).unwrap();
        assert!(bench.target(dump, link) == long_target(len), "{len} of {dump:?}");
    }
}

#[test]
fn links_with_long_targets_outlast_cuts_dumps_and_their_removal() {
    for block in [8192, 16384, 65536] {
        let mut bench = Bench::new(1 << 18, block, true);
        for len in TARGETS {
            bench.symlink(ROOT, &format!("link{len}"), &long_target(len));
        }
        assert_targets(&mut bench, None);
        bench.check();
        // The power is cut between their creation and the dump.
        bench.sync();
        let lost = bench.symlink(ROOT, "lost", &long_target(4095));
        assert!(bench.target(None, lost) == long_target(4095));
        bench.again();
        assert_eq!(bench.lookup(None, ROOT, "lost"), None);
        assert_targets(&mut bench, None);
        bench.check();
        let dump = bench.dump();
        bench.copied();
        bench.settle();
        TARGETS.iter().for_each(|len| bench.unlink(ROOT, &format!("link{len}")));
        bench.check();
        bench.sync();
        bench.again();
        assert_targets(&mut bench, Some(dump.generation));
        bench.check();
        let archive = bench.archive.clone();
        assert_eq!(archive.state().fs.blocks, 0);
    }
}

#[test]
fn an_older_program_refuses_a_link_with_a_long_target() {
    let mut bench = Bench::new(1 << 18, 16384, true);
    let old = bench.symlink(ROOT, "old", &long_target(3968));
    let new = bench.symlink(ROOT, "new", &long_target(3969));
    let archive = bench.archive.clone();
    let mut of =
        |ino| bench.run(archive.attempt(|state| state.fs.attributes(state.fs.mem.root, ino))).unwrap();
    let (old, new) = (of(old), of(new));
    // The first versions treated unknown flags (8 and above) as damage.
    assert_eq!((old.flags, old.blocks, new.flags, new.blocks), (0, 0, 8, 1));
}

#[test]
fn a_dump_stays_as_it_was_and_comes_to_w() {
    for fastworm in [true, false] {
        let mut bench = Bench::new(1 << 18, 8192, fastworm);
        let file = bench.make(ROOT, "file", mode::S_IFREG);
        let gone = bench.make(ROOT, "gone", mode::S_IFREG);
        let (first, second) = (noise(1, 300_000), noise(2, 300_000));
        bench.write(file, 0, &first);
        bench.write(gone, 0, &second);
        let one = bench.dump();
        assert_eq!(one.name, "2026/1118");
        // While it is copied, and afterwards.
        bench.write(file, 1000, b"changed");
        bench.unlink(ROOT, "gone");
        let mut now = first.clone();
        now[1000..1007].copy_from_slice(b"changed");
        for turn in 0..3 {
            assert!(bench.read(None, file) == now, "{turn}");
            assert!(bench.read(Some(one.generation), file) == first);
            assert!(bench.read(Some(one.generation), gone) == second);
            assert_eq!(bench.lookup(None, ROOT, "gone"), None);
            assert_eq!(bench.lookup(Some(one.generation), ROOT, "gone"), Some(gone));
            match turn {
                0 => {
                    bench.check();
                    bench.copied();
                    bench.settle();
                    bench.check();
                }
                _ => {
                    bench.sync();
                    bench.again();
                }
            }
        }
        assert!(bench.archive.dumps()[0].copied && bench.archive.dumps()[0].blocks > 70);
        assert!(bench.archive.0.cw.forwarded().is_empty());
        // c holds only what has changed since, not blocks that are on w.
        let (_, used) = bench.archive.0.cw.slots();
        assert!(used < 10, "{used} slots");
        let two = bench.dump();
        assert_eq!(two.name, "2026/11181");
        bench.copied();
        bench.settle();
        bench.again();
        assert!(bench.read(Some(two.generation), file) == now);
        assert!(bench.read(Some(one.generation), file) == first);
    }
}

#[test]
fn many_dumps_wait_and_are_copied_in_order() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    let mut dumps = Vec::new();
    for n in 0..20u64 {
        bench.write(file, n * 5000, &noise(n, 20_000));
        let archive = bench.archive.clone();
        let content = bench.read(None, file);
        let time = archive.time();
        let day = archive.0.zone.day_of(time.sec);
        let _ = day;
        dumps.push((bench.dump().generation, content));
        bench.clock.fetch_add(3600, Ordering::Relaxed);
    }
    bench.copied();
    bench.settle();
    bench.sync();
    bench.again();
    for (generation, content) in &dumps {
        assert!(bench.read(Some(*generation), file) == *content, "{generation}");
    }
    assert!(bench.archive.0.cw.forwarded().is_empty());
}

#[test]
fn files_are_cut_and_grow_with_zeros() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    let mut model: Vec<u8> = Vec::new();
    let mut x = 12345u64;
    let mut random = move |most: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % most
    };
    for step in 0..400 {
        match random(10) {
            0 => {
                let size = random(400_000) as usize;
                bench.resize(file, size as u64);
                model.resize(size, 0);
            }
            1 => {
                let size = random(3000) as usize;
                bench.resize(file, size as u64);
                model.resize(size, 0);
            }
            2 => drop(bench.dump()),
            3 => {
                bench.copied();
                bench.settle();
            }
            4 => {
                bench.sync();
                bench.again();
            }
            _ => {
                let at = random(300_000) as usize;
                let at = if random(3) == 0 { at % 3000 } else { at };
                let data = noise(step, random(60_000) as usize + 1);
                bench.write(file, at as u64, &data);
                model.resize(model.len().max(at + data.len()), 0);
                model[at..at + data.len()].copy_from_slice(&data);
            }
        }
        if step % 7 == 0 {
            bench.check();
            assert!(bench.read(None, file) == model, "step {step}");
        }
    }
    assert!(bench.read(None, file) == model);
}
