//! Regression tests: the shortest way to each fault that was found.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use nine_block::{Device, Io, Kind, Op, Shape};
use nine_io::server::FileServer;
use nine_proto::{Errno, SetAttr, Time, mode};

use super::{Bench, noise, ready};
use crate::archive::{Archive, ArchiveState};
use crate::fs::{OperationStop, ROOT};
use crate::item::{DecodedKey, DumpRecord, FileExtent, InodeAttributes, ItemKey};
use crate::ptr::{BlockPtr, NEW};
use crate::tree::{NodeStore, node};

/// Collects the keys of each leaf; all leaves are in memory.
fn leaves(state: &ArchiveState, at: BlockPtr, found: &mut Vec<Vec<Vec<u8>>>) {
    let block = state.fs.mem.node(at).unwrap();
    let node = node::NodeRef(&block);
    match node.level() {
        0 => found.push((0..node.len()).map(|i| node.key(i).to_vec()).collect()),
        _ => (0..node.len()).for_each(|i| leaves(state, node.child(i), found)),
    }
}

#[test]
fn a_file_with_another_name_stays_when_the_last_fid_goes() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "a", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 50_000));
    let archive = bench.archive.clone();
    let now = archive.time();
    bench.run(archive.attempt(|state| state.fs.link(ROOT, b"b", file, now))).unwrap();
    let live = archive.state().lives.get(file, ROOT, b"a");
    let unlink = |state: &mut ArchiveState| {
        let ArchiveState { fs, lives, .. } = state;
        let ino = fs.unlink(ROOT, b"a", Some(false), |ino| lives.has(ino), now)?;
        lives.lost(ino);
        Ok(())
    };
    bench.run(archive.attempt(unlink)).unwrap();
    drop(live);
    bench.settle();
    assert_eq!(bench.lookup(None, ROOT, "b"), Some(file));
    assert!(bench.read(None, file) == noise(1, 50_000));
    bench.check();
}

#[test]
fn a_size_and_its_time_change_in_one_step() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "a", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 42_412));
    bench.sync();
    bench.again();
    let archive = bench.archive.clone();
    let before = bench.run(archive.attempt(|state| state.fs.attributes(state.fs.mem.root, file))).unwrap();
    let (set, later) = (SetAttr { size: Some(25_995), ..SetAttr::default() }, Time { sec: 1 << 33, nsec: 0 });
    let mut stops = 0;
    let cut = |state: &mut ArchiveState| {
        let done = state.fs.set_attributes(file, &set, 0, later);
        if let (Err(OperationStop::Miss(_)), Ok(now)) = (&done, state.fs.attributes(state.fs.mem.root, file))
        {
            assert_eq!((now.size, now.mtime, now.ctime), (before.size, before.mtime, before.ctime));
            stops += 1;
        }
        done
    };
    bench.run(archive.attempt(cut)).unwrap();
    assert!(stops > 0, "the last block was in memory: this shows nothing");
    assert!(bench.read(None, file) == noise(1, 42_412)[..25_995]);
}

#[test]
fn a_file_of_many_pieces_is_cut_in_one_step() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "a", mode::S_IFREG);
    for n in (0..400).rev() {
        bench.write(file, n * 20_000, b"x");
    }
    bench.sync();
    let cut = |bench: &mut Bench, size| {
        bench.resize(file, size);
        let is_sheared = bench.archive.state().fs.is_sheared(file);
        assert!(is_sheared, "one step has done it all: this shows nothing");
    };
    cut(&mut bench, 5_000_000);
    let is_right = |bench: &mut Bench, dump, size: usize, tail: usize| {
        let read = bench.read(dump, file);
        assert_eq!(read.len(), size + tail);
        let mut expected = vec![0; size];
        (0..size.div_ceil(20_000)).for_each(|n| expected[n * 20_000] = b'x');
        assert!(read[..size] == expected && read[size..].iter().all(|byte| *byte == 0));
    };
    is_right(&mut bench, None, 5_000_000, 0);
    // A dump between the steps has the new size.
    let dump = bench.dump().generation;
    bench.check();
    // Growing over the remaining blocks shows zeros.
    bench.resize(file, 7_000_000);
    is_right(&mut bench, None, 5_000_000, 2_000_000);
    is_right(&mut bench, Some(dump), 5_000_000, 0);
    bench.check();
    // A power cut between them: the rest is removed after the next start.
    cut(&mut bench, 10);
    bench.sync();
    bench.again();
    bench.settle();
    assert!(!bench.archive.state().fs.is_sheared(file));
    is_right(&mut bench, None, 10, 0);
    is_right(&mut bench, Some(dump), 5_000_000, 0);
    bench.check();
}

#[test]
fn a_dump_does_not_wait_for_the_next_tick() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "a", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 50_000));
    let archive = bench.archive.clone();
    let mut rest = pin!(archive.rest(std::future::pending()));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);
    assert!(rest.as_mut().poll(&mut cx).is_pending());
    // No tick from here on.
    let mut dump = pin!(archive.dump());
    while dump.as_mut().poll(&mut cx).is_pending() {
        bench.turn();
    }
    assert!(woken.0.load(Ordering::Relaxed) && rest.as_mut().poll(&mut cx).is_ready());
    let mut copied = pin!(archive.copied());
    assert!((0..1000).any(|_| {
        bench.turn();
        copied.as_mut().poll(&mut cx).is_ready()
    }));
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn who_is_connected_knows_of_new_users() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let (archive, names) = (bench.archive.clone(), FileServer::names(&bench.archive));
    assert_eq!(names.uid(b"glenda"), None);
    bench.run(archive.command("newuser glenda")).unwrap();
    let uid = names.uid(b"glenda").unwrap();
    assert_eq!(names.user(uid), "glenda");
}

#[test]
fn one_superblock_of_a_segment_is_enough() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let mut generations = Vec::new();
    for n in 0..3 {
        bench.make(ROOT, &format!("{n}"), mode::S_IFREG);
        generations.push(bench.dump().generation);
        bench.copied();
    }
    bench.settle();
    bench.sync();
    let of = |bench: &Bench| {
        let state = &*bench.archive.state();
        let of = |generation| {
            let DumpRecord { segment, blocks, .. } = state.dumps[generation].record;
            (segment, blocks)
        };
        generations.iter().map(of).collect::<Vec<_>>()
    };
    let before = of(&bench);
    for (segment, _) in &before {
        ready(bench.w.write(segment * 16, vec![0x5a; 8192].into())).unwrap();
    }
    bench.again();
    assert!(before.iter().all(|(segment, blocks)| *segment > 0 && *blocks > 0));
    assert_eq!(of(&bench), before);
}

#[test]
fn a_file_too_large_for_one_step_goes_though_nobody_has_it() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "a", mode::S_IFREG);
    (0..100).for_each(|n| bench.write(file, n * 20_000, b"x"));
    bench.sync();
    bench.unlink(ROOT, "a");
    bench.archive.state().lives.lost(file);
    bench.settle();
    bench.sync();
    bench.settle();
    assert!(bench.archive.state().fs.orphans().unwrap().is_empty());
    assert_eq!(bench.archive.state().fs.blocks, 0);
    bench.check();
}

#[test]
fn a_name_that_is_alone_in_its_leaf_is_renamed() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let dir = bench.make(ROOT, "dir", mode::S_IFDIR);
    let pad = "x".repeat(230);
    for n in 0..200 {
        bench.make(dir, &format!("{n:04}{pad}"), mode::S_IFREG);
    }
    bench.sync();
    let mut all = Vec::new();
    {
        let state = bench.archive.state();
        leaves(&state, state.fs.mem.root, &mut all);
    }
    let is_name = |key: &Vec<u8>| matches!(ItemKey::parse(key), Some(DecodedKey::Name(of, _)) if of == dir);
    let leaf = all.iter().filter(|leaf| leaf.len() > 8 && leaf.iter().all(is_name)).nth(2).unwrap();
    let names: Vec<String> = leaf.iter().map(|key| String::from_utf8(key[9..].to_vec()).unwrap()).collect();
    let (old, others) = names.split_last().unwrap();
    others.iter().for_each(|name| bench.unlink(dir, name));
    bench.sync();
    bench.again();
    let (archive, new) = (bench.archive.clone(), format!("{old}y"));
    let now = archive.time();
    let rename = |state: &mut ArchiveState| {
        state.fs.rename((dir, old.as_bytes()), (dir, new.as_bytes()), |_| false, now, |_| Ok(()))
    };
    bench.run(archive.attempt(rename)).unwrap();
    bench.check();
}

#[test]
fn the_newest_name_of_a_directory_is_renamed_after_a_start() {
    for count in 100..125 {
        let mut bench = Bench::new(1 << 18, 8192, true);
        let dir = bench.make(ROOT, "dir", mode::S_IFDIR);
        for n in 0..count {
            bench.make(dir, &format!("{n:0>40}"), mode::S_IFREG);
        }
        bench.sync();
        bench.again();
        let (archive, old) = (bench.archive.clone(), format!("{:0>40}", count - 1));
        let now = archive.time();
        let rename = |state: &mut ArchiveState| {
            state.fs.rename((dir, old.as_bytes()), (dir, b"new"), |_| false, now, |_| Ok(()))
        };
        bench.run(archive.attempt(rename)).unwrap();
        bench.check();
    }
}

#[test]
fn a_name_and_more_change_together_or_not_at_all() {
    let mut bench = Bench::new(60_000, 8192, true);
    let (file, dir) = (bench.make(ROOT, "file", mode::S_IFREG), bench.make(ROOT, "dir", mode::S_IFDIR));
    let (archive, now) = (bench.archive.clone(), bench.archive.time());
    let mut to = |name: &str, allows: bool| {
        let mut asked = 0;
        let done = bench.run(archive.attempt(|state| {
            let also = |_: &mut crate::fs::ArchiveFs| {
                asked += 1;
                if allows { Ok(()) } else { Err(Errno::EPERM.into()) }
            };
            state.fs.rename((ROOT, b"file"), (ROOT, name.as_bytes()), |_| false, now, also)
        }));
        (done.map_err(|error| error.errno), asked, bench.lookup(None, ROOT, "file"))
    };
    assert_eq!(to("dir", true), (Err(Errno::EISDIR), 0, Some(file)));
    assert_eq!(to("new", false), (Err(Errno::EPERM), 1, Some(file)));
    assert_eq!(to("new", true), (Ok((file, None)), 1, None));
    assert_eq!(bench.lookup(None, ROOT, "dir"), Some(dir));
}

#[test]
fn a_file_of_many_pieces_is_renamed_and_cut_in_one_step() {
    let mut bench = Bench::new(200_000, 8192, true);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    (0..300).for_each(|n| bench.write(file, 2 * n * 8128, &[7; 8128]));
    bench.sync();
    bench.again();
    let (archive, now) = (bench.archive.clone(), bench.archive.time());
    let set = SetAttr { size: Some(10_000), ..SetAttr::default() };
    bench
        .run(archive.attempt(|state| {
            let also = |fs: &mut crate::fs::ArchiveFs| fs.set_attributes(file, &set, 0, now);
            state.fs.rename((ROOT, b"file"), (ROOT, b"new"), |_| false, now, also)
        }))
        .unwrap();
    assert_eq!((bench.lookup(None, ROOT, "file"), bench.lookup(None, ROOT, "new")), (None, Some(file)));
    let mut all = vec![7; 8128];
    all.resize(10_000, 0);
    assert_eq!(bench.read(None, file), all);
}

/// Blocks of a truncated or removed file are freed in the background, and are charged until then.
#[test]
fn who_has_removed_may_write_though_his_quota_was_full() {
    let mut bench = Bench::new(200_000, 8192, true);
    let archive = bench.archive.clone();
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    archive.state().fs.set_quota(0, 300 * 8192);
    // Every other block: each is an extent, so that they take more than one step to remove.
    let blocks = |n: u64| 2 * n * 8128;
    let fill = |bench: &mut Bench, file| (0..280).for_each(|n| bench.write(file, blocks(n), &[7; 8128]));
    fill(&mut bench, file);
    let (now, set) = (archive.time(), SetAttr { size: Some(0), ..SetAttr::default() });
    bench.run(archive.attempt(|state| archive.set_attributes(state, file, &set, 0))).unwrap();
    assert!(archive.state().fs.is_sheared(file));
    fill(&mut bench, file);
    let other = bench.make(ROOT, "other", mode::S_IFREG);
    bench
        .run(archive.attempt(|state| {
            let ino = state.fs.unlink(ROOT, b"file", None, |_| false, now)?;
            state.lives.lost(ino);
            Ok(())
        }))
        .unwrap();
    fill(&mut bench, other);
    let write = archive.attempt(|state| state.fs.write(other, Some(blocks(290)), &[7; 30 * 8128], 0, now));
    assert_eq!(bench.run(write).unwrap_err().errno, Errno::EDQUOT);
}

#[test]
fn a_scan_is_not_asked_again_for_each_node() {
    let mut bench = Bench::new(200_000, 8192, true);
    let dir = bench.make(ROOT, "dir", mode::S_IFDIR);
    for n in 0..5000 {
        bench.make(dir, &format!("{n:0>40}"), mode::S_IFREG);
    }
    bench.sync();
    bench.again();
    let (archive, mut tries, mut names) = (bench.archive.clone(), 0, 0);
    let scan = archive.attempt(|state| {
        (tries, names) = (tries + 1, 0);
        state.fs.entries(state.fs.mem.root, dir, 2, |_, _| {
            names += 1;
            true
        })
    });
    bench.run(scan).unwrap();
    assert_eq!(names, 5000);
    assert!(tries < 12, "{tries} tries, where half a hundred nodes were missing");
}

#[test]
fn a_node_of_w_names_no_row() {
    let mut bench = Bench::new(1 << 18, 8192, false);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 300_000));
    let one = bench.dump();
    bench.copied();
    bench.settle();
    let root = bench.archive.state().dumps[&one.generation].record.root;
    let cw = bench.archive.0.cw.clone();
    let block = bench.run(cw.blocks(root.at, 1)).unwrap();
    for (key, value) in node::cells(&block[..block.len() - 64]) {
        if let Some(DecodedKey::Extent(..)) = ItemKey::parse(key) {
            assert!(FileExtent::decode(value).unwrap().at.at < NEW);
        }
    }
}

/// The operation has fetched its blocks, and then waits. Meanwhile another one writes the same block and is answered.
#[test]
fn an_operation_that_waits_undoes_nothing() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "a", mode::S_IFREG);
    bench.write(file, 0, &[1; 40_000]);
    bench.sync();
    bench.again();
    let archive = bench.archive.clone();
    let now = archive.time();
    let mut has_all = false;
    let mut slow = Box::pin(archive.attempt(move |state| {
        if !has_all {
            state.fs.read(state.fs.mem.root, file, 0, 20_000)?;
            has_all = true;
            return Err(OperationStop::Again);
        }
        state.fs.write(file, Some(10), b"x", 0, now)
    }));
    assert!(slow.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    bench.write(file, 0, &[2; 40_000]);
    bench.sync();
    bench.run(slow).unwrap();
    let content = bench.read(None, file);
    assert_eq!((content[0], content[10], content[11]), (2, b'x', 2));
}

/// Runs a future without any tick.
fn without_ticks<T>(bench: &mut Bench, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..1000 {
        if let Poll::Ready(result) = future.as_mut().poll(&mut cx) {
            return result;
        }
        let _ = Pin::new(&mut bench.driver).poll(&mut cx);
    }
    panic!("it never ends without a tick");
}

#[test]
fn a_full_cache_dumps_itself_or_says_so() {
    let mut bench = Bench::new(60_000, 8192, true);
    let archive = bench.archive.clone();
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    let now = archive.time();
    for at in 0.. {
        without_ticks(&mut bench, archive.sync()).unwrap();
        if archive.state().fs.room(10).is_err() {
            break;
        }
        let block = [7; 8128];
        let write = archive.attempt(|state| state.fs.write(file, Some(at * 8128), &block, 0, now));
        without_ticks(&mut bench, write).unwrap();
    }
    for n in 0..40 {
        let it = InodeAttributes {
            mode: mode::S_IFREG | 0o755,
            btime: now,
            mtime: now,
            ..InodeAttributes::default()
        };
        let name = format!("{n:0>200}");
        bench.run(archive.attempt(|state| state.fs.make(ROOT, name.as_bytes(), it, b""))).unwrap();
    }
    assert!(!archive.dumps().is_empty(), "the cache went to w");
    bench.settle();
    bench.check();
}

type Range = Arc<Mutex<Option<(u64, u64)>>>;

/// A device that fails one kind of operation in a range.
struct Bad {
    device: Arc<dyn Device>,
    op: Op,
    kind: Kind,
    /// The first sector, and the one after the last.
    range: Range,
}

impl Bad {
    fn over(device: &Arc<dyn Device>, op: Op, kind: Kind) -> (Arc<dyn Device>, Range) {
        let range = Range::default();
        (Arc::new(Self { device: device.clone(), op, kind, range: range.clone() }), range)
    }
}

impl Device for Bad {
    fn shape(&self) -> Shape {
        self.device.shape()
    }

    fn name(&self) -> String {
        self.device.name()
    }

    fn submit(&self, io: Io) {
        let range = *self.range.lock().unwrap();
        match io.op == self.op && range.is_some_and(|(from, to)| io.at < to && from < io.end_at()) {
            true => io.fail(self.kind, "on purpose"),
            false => self.device.submit(io),
        }
    }
}

#[test]
fn a_dump_with_one_superblock_is_a_dump() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 100_000));
    bench.sync();
    let (w, range) = Bad::over(&bench.w, Op::Write, Kind::Failed);
    bench.w = w;
    *range.lock().unwrap() = Some((2 * 16, 2 * 16 + 1));
    bench.again();
    let dump = bench.dump();
    bench.copied();
    bench.settle();
    bench.sync();
    bench.again();
    assert!(bench.read(Some(dump.generation), file) == noise(1, 100_000));
}

#[test]
fn a_cache_that_cannot_be_read_for_a_while_costs_no_room_on_w() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 100_000));
    bench.sync();
    let (c, range) = Bad::over(&bench.c, Op::Read, Kind::Down);
    bench.c = c;
    bench.again();
    let archive = bench.archive.clone();
    bench.dump();
    let slots = (1 << 18) - archive.0.cw.slots().0 * 16 - 200;
    *range.lock().unwrap() = Some((slots, u64::MAX));
    let mut turns = 0;
    bench.run(std::future::poll_fn(|_| {
        turns += 1;
        if turns > 10_000 { Poll::Ready(()) } else { Poll::Pending }
    }));
    assert!(archive.state().next_worm < 200);
    *range.lock().unwrap() = None;
    bench.copied_in_the_end();
    bench.settle();
    bench.check();
}

#[test]
fn a_device_that_is_busy_at_the_start_loses_no_commit() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 100_000));
    bench.sync();
    let (c, range) = Bad::over(&bench.c, Op::Read, Kind::Busy);
    let slots = (1 << 18) - bench.archive.0.cw.slots().0 * 16 - 200;
    *range.lock().unwrap() = Some((slots, (1 << 18) - 16));
    let opened = ready(Archive::open(c, bench.w.clone(), &bench.settings)).map(drop);
    assert_eq!(opened.unwrap_err().kind, Kind::Busy);
    bench.again();
    assert_eq!(bench.lookup(None, ROOT, "file"), Some(file));
}

#[test]
fn attributes_are_charged_and_bounded() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "a", mode::S_IFREG);
    let archive = bench.archive.clone();
    let (now, value) = (archive.time(), vec![1; 65_536]);
    let mut set = |n: u32, value: &[u8], flags| {
        let name = format!("user.{n}");
        bench.run(archive.attempt(|state| state.fs.set_xattr(file, name.as_bytes(), value, flags, now)))
    };
    let before = archive.state().fs.usage().map(|(_, usage)| usage.bytes).sum::<u64>();
    (0..3).for_each(|n| set(n, &value, 0).unwrap());
    assert!(set(3, &value, 0).is_err());
    let after = archive.state().fs.usage().map(|(_, usage)| usage.bytes).sum::<u64>();
    assert_eq!(after - before, 3 * (65_536 + 6));
    set(1, b"", 2).unwrap();
    set(3, &value, 0).unwrap();
    bench.check();
    bench.unlink(ROOT, "a");
    bench.settle();
    bench.check();
}

/// A device that counts writes.
struct Written(Arc<dyn Device>, AtomicU64);

impl Device for Written {
    fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn submit(&self, io: Io) {
        self.1.fetch_add(u64::from(io.op == Op::Write), Ordering::Relaxed);
        self.0.submit(io);
    }
}

#[test]
fn what_is_read_from_w_is_kept_together_and_found_after_a_start() {
    let mut bench = Bench::new(60_000, 8192, false);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    bench.write(file, 0, &vec![7; 400 * 8128]);
    bench.dump();
    bench.copied();
    // As after a cut: copies that no checkpoint has recorded are lost.
    bench.again();
    let c = Arc::new(Written(bench.c.clone(), AtomicU64::new(0)));
    let writes = || c.1.swap(0, Ordering::Relaxed);
    bench.c = c.clone();
    bench.again();
    writes();
    assert_eq!(bench.read(None, file).len(), 400 * 8128);
    assert!((1..60).contains(&writes()), "400 blocks, and nodes");
    let archive = bench.archive.clone();
    bench.run(archive.close()).unwrap();
    bench.again();
    bench.settle();
    writes();
    assert_eq!(bench.read(None, file).len(), 400 * 8128);
    assert_eq!(writes(), 0, "they are there");
}

#[test]
fn more_than_the_cache_has_room_for_goes_through_it_to_the_worm() {
    let mut bench = Bench::new(32_768, 16_384, true);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    let archive = bench.archive.clone();
    // Many concurrent writes, as of clients.
    let now = archive.time();
    let pieces: Vec<Vec<u8>> = (0..100).map(|n| noise(n, 1 << 20)).collect();
    for some in (0..100).collect::<Vec<u64>>().chunks(20) {
        let writes = some.iter().map(|n| {
            let piece = &pieces[*n as usize];
            Box::pin(archive.attempt(move |state| state.fs.write(file, Some(n << 20), piece, 0, now)))
        });
        let mut writes: Vec<_> = writes.map(Some).collect();
        bench.run(std::future::poll_fn(|cx| {
            for write in &mut writes {
                if let Some(Poll::Ready(done)) = write.as_mut().map(|write| write.as_mut().poll(cx)) {
                    done.unwrap();
                    *write = None;
                }
            }
            if writes.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        }));
    }
    bench.sync();
    bench.check();
    assert!(bench.read(None, file) == pieces.concat());
}

#[test]
fn a_full_cache_does_not_wait_for_a_sweep_that_has_no_room() {
    let mut bench = Bench::new(1 << 15, 8192, true);
    bench.sync();
    let archive = bench.archive.clone();
    archive.state().dumper.dirty_now();
    let (slots, _) = archive.0.cw.slots();
    archive.0.cw.promise(slots);
    let said = bench.run(archive.find_room()).unwrap_err();
    assert_eq!(said.errno, Errno::ENOSPC);
    archive.0.cw.break_promise(slots);
    bench.settle();
    bench.check();
}
