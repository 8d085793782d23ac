//! An archive without a cache device.

use std::sync::atomic::{AtomicBool, AtomicU64};

use nine_block::{FakeWorm, Growing, Nothing};

use super::*;
use crate::Recover;
use crate::cw::{self, BlockTag};
use crate::ptr::NEW;

/// Returns a disk, and a counter of the sectors written to it.
fn counting(sectors: u64) -> (Arc<dyn Device>, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let counts = count.clone();
    let write = move |io: Io| {
        counts.fetch_add(io.count, Ordering::Relaxed);
        Some(io)
    };
    (Arc::new(Watched(Arc::new(Ram::new(sectors)), write)), count)
}

/// Returns a disk that loses writes of some blocks but acknowledges them, a switch for that, and the sector of the last
/// lost write.
fn losing(
    sectors: u64,
    loses: impl Fn(&BlockTag) -> bool + Send + Sync + 'static,
) -> (Arc<dyn Device>, Arc<AtomicBool>, Arc<AtomicU64>) {
    let disk: Arc<dyn Device> = Arc::new(Ram::new(sectors));
    let (is_to, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (under, does, at) = (disk.clone(), is_to.clone(), last.clone());
    let write = move |io: Io| {
        if !does.load(Ordering::Relaxed) {
            return Some(io);
        }
        let mut data = ready(under.read(io.at, io.count)).unwrap().to_vec();
        for ((new, old), n) in io.data.chunks(8192).zip(data.chunks_mut(8192)).zip(0..) {
            match BlockTag::open(new, &[7; 16]) {
                Ok(tag) if loses(&tag) => at.store(io.at + n * 16, Ordering::Relaxed),
                _ => old.copy_from_slice(new),
            }
        }
        let written = ready(under.write(io.at, data.into()));
        io.end(written);
        None
    };
    (Arc::new(Watched(disk, write)), is_to, last)
}

pub(super) fn bench(w: Arc<dyn Device>) -> Bench {
    let mut bench = Bench::new(1 << 18, 8192, true);
    (bench.c, bench.w) = (Arc::new(Nothing), w);
    bench.make_again();
    bench
}

/// Writes in pieces, as a client does.
fn fill(bench: &mut Bench, file: u64, from: u64, data: &[u8]) {
    for (n, piece) in (0..).zip(data.chunks(1 << 17)) {
        bench.write(file, from + (n << 17), piece);
    }
}

#[test]
fn dumps_stay_as_they_were_whatever_is_written_behind_them() {
    let mut bench = bench(Arc::new(Ram::new(1 << 17)));
    let mut kept = Vec::new();
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    let mut now = noise(0, 3_000_000);
    bench.write(file, 0, &now);
    for round in 1..8 {
        let at = (round * 311_111) as usize;
        let piece = noise(round, 70_000 * round as usize % 300_000);
        bench.write(file, at as u64, &piece);
        now[at..at + piece.len()].copy_from_slice(&piece);
        if round % 2 == 0 {
            bench.sync();
        }
        let other = bench.make(ROOT, &format!("other{round}"), mode::S_IFREG);
        bench.write(other, 0, &noise(round + 100, 100_000));
        if round > 2 {
            bench.unlink(ROOT, &format!("other{}", round - 2));
        }
        kept.push((bench.dump(), now.clone()));
        if round % 3 == 0 {
            bench.copied();
            bench.settle();
            bench.check();
        }
        if round % 3 == 1 {
            bench.again();
        }
    }
    bench.copied_in_the_end();
    bench.settle();
    bench.check();
    bench.again();
    for (dump, was) in &kept {
        assert!(bench.read(Some(dump.generation), file) == *was, "{}", dump.name);
    }
    assert!(bench.read(None, file) == now);
    assert_eq!(bench.archive.state().waiting.len(), 0);
    let archive = bench.archive.clone();
    bench.run(archive.scrub()).unwrap();
    assert!(bench.archive.status().contains("cache none, "), "{}", bench.archive.status());
}

#[test]
fn what_stays_is_written_once() {
    let (disk, written) = counting(1 << 18);
    let mut bench = bench(disk);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    // Syncs in the middle of a block: the next blocks lie elsewhere, but need not be copied for that.
    let data = noise(1, 40_000_000);
    for (n, piece) in data.chunks(1_000_000).enumerate() {
        bench.write(file, n as u64 * 1_000_000, piece);
        if n % 7 == 3 {
            bench.sync();
        }
    }
    bench.sync();
    let before = written.load(Ordering::Relaxed);
    let dump = bench.dump();
    bench.copied();
    let written = (written.load(Ordering::Relaxed) - before) * 512;
    assert!(written < 2_000_000, "{written} bytes to dump {}", data.len());
    assert!(bench.read(Some(dump.generation), file) == data);
    bench.settle();
    bench.check();
    assert!(bench.archive.dumps()[0].blocks > 40_000_000 / 8192);
}

#[test]
fn what_is_scattered_comes_together_in_a_dump() {
    let (disk, written) = counting(1 << 15);
    let mut bench = bench(disk);
    let archive = bench.archive.clone();
    // Of a group of blocks every other one is free, and no others are.
    let small = |n: u64| format!("small{n}");
    for n in 0..600 {
        let file = bench.make(ROOT, &small(n), mode::S_IFREG);
        bench.write(file, 0, &noise(n, 8000));
    }
    bench.sync();
    for n in (0..600).step_by(2) {
        let file = bench.lookup(None, ROOT, &small(n)).unwrap();
        bench.unlink(ROOT, &small(n));
        archive.reap(file);
    }
    bench.settle();
    bench.sync();
    let in_between = bench.make(ROOT, "in between", mode::S_IFREG);
    let (free, _) = archive.0.cw.room();
    fill(&mut bench, in_between, 0, &noise(5, (free as usize - 320) * 8128));
    bench.sync();
    let large = bench.make(ROOT, "large", mode::S_IFREG);
    let data = noise(7, 90 * 8128);
    fill(&mut bench, large, 0, &data);
    bench.sync();
    bench.unlink(ROOT, "in between");
    archive.reap(in_between);
    bench.settle();
    bench.sync();
    let before = written.load(Ordering::Relaxed);
    let dump = bench.dump();
    bench.copied();
    let written = (written.load(Ordering::Relaxed) - before) / 16;
    assert!((60..200).contains(&written), "{written} blocks written");
    bench.settle();
    bench.check();
    assert!(bench.read(Some(dump.generation), large) == data);
    assert!(bench.read(None, large) == data);
}

#[test]
fn what_is_removed_before_a_dump_gives_its_room_back() {
    let mut bench = bench(Arc::new(Ram::new(1 << 15)));
    let archive = bench.archive.clone();
    let left = |archive: &Archive| archive.0.cw.worm_left(0);
    let before = left(&archive);
    for round in 0..6 {
        let file = bench.make(ROOT, "file", mode::S_IFREG);
        fill(&mut bench, file, 0, &noise(round, 8_000_000));
        bench.sync();
        assert!(left(&archive) + 900 < before);
        bench.unlink(ROOT, "file");
        archive.reap(file);
        bench.settle();
        bench.sync();
    }
    assert!(left(&archive) + 40 > before, "{} of {before}", left(&archive));
    // Only blocks that no dump has are lost when it is full.
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    let full = (0..200).find_map(|n| {
        let write = archive
            .attempt(|state| state.fs.write(file, Some(n * 100_000), &noise(n, 100_000), 0, Time::default()));
        bench.run(write).err()
    });
    assert_eq!(full.unwrap().errno, nine_proto::Errno::ENOSPC);
    bench.check();
}

#[test]
fn it_grows_with_its_device() {
    let small: Arc<dyn Device> = Arc::new(Ram::new(1 << 15));
    let growing = Arc::new(Growing::new(small.clone()));
    let mut bench = bench(growing.clone());
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    fill(&mut bench, file, 0, &noise(1, 8_000_000));
    bench.dump();
    bench.copied();
    growing.add(Arc::new(Ram::new(1 << 16))).unwrap();
    let archive = bench.archive.clone();
    let before = archive.0.cw.worm_left(0);
    bench.run(archive.command("grow")).unwrap();
    assert!(archive.0.cw.worm_left(0) > before + 3900);
    fill(&mut bench, file, 8_000_000, &noise(2, 24_000_000));
    let dump = bench.dump();
    // As after a cut.
    bench.again();
    bench.copied_in_the_end();
    bench.settle();
    bench.check();
    assert!(bench.read(Some(dump.generation), file)[8_000_000..] == noise(2, 24_000_000));
    let archive = bench.archive.clone();
    bench.run(archive.close()).unwrap();
    let refused = ready(Archive::open(bench.c.clone(), small, &bench.settings)).map(drop).unwrap_err();
    assert!(refused.to_string().contains("what has been put behind it is missing"), "{refused}");
}

#[test]
fn what_was_read_ahead_is_not_taken_for_what_a_dump_has() {
    let w: Arc<dyn Device> = Arc::new(Ram::new(1 << 15));
    let mut bench = bench(w.clone());
    // Block by block: after a joint read with an error, all of its blocks are dropped.
    (bench.settings.memory, bench.settings.ahead) = (32 << 20, Ahead::Seed);
    bench.again();
    bench.dump();
    bench.copied();
    let mut follower = Bench::new(1 << 18, 8192, true);
    (follower.archive, follower.driver) = ready(Archive::follow(w, &bench.settings)).unwrap();
    let mut kept = Vec::new();
    for round in 0..30 {
        let file = bench.make(ROOT, &format!("file{round}"), mode::S_IFREG);
        bench.write(file, 0, &noise(round, 200_000));
        kept.push((bench.dump(), file));
        bench.copied();
        // After the blocks of the dump come blocks that are not kept.
        let archive = bench.archive.clone();
        let other = bench.make(ROOT, "other", mode::S_IFREG);
        fill(&mut bench, other, 0, &noise(round + 100, 1_500_000));
        bench.sync();
        follower.archive.tick(std::time::Duration::from_secs(6 * (round + 1)));
        follower.settle();
        for ((dump, file), n) in kept.iter().zip(0..) {
            assert!(bench.read(Some(dump.generation), *file) == noise(n, 200_000), "{round}: {n}");
            assert!(follower.read(Some(dump.generation), *file) == noise(n, 200_000), "{round}: {n}");
        }
        bench.unlink(ROOT, "other");
        archive.reap(other);
        bench.settle();
        bench.sync();
    }
}

#[test]
fn what_a_disk_has_not_written_is_not_left_in_a_dump() {
    let (disk, loses, last) = losing(1 << 15, |tag| tag.kind == cw::BlockKind::File);
    let mut bench = bench(disk.clone());
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    // Until its address had an older block of the same file, index and generation.
    let is_older = |sector| {
        let block = ready(disk.read(sector, 16)).unwrap();
        BlockTag::open(&block, &[7; 16])
            .is_ok_and(|tag| (tag.kind, tag.owner, tag.at) == (cw::BlockKind::File, file, sector / 16))
    };
    let found = (0..4000).any(|n| {
        loses.store(n > 1000, Ordering::Relaxed);
        bench.write(file, 0, &noise(n, 8128));
        bench.sync();
        n > 1000 && is_older(last.load(Ordering::Relaxed))
    });
    assert!(found);
    loses.store(false, Ordering::Relaxed);
    let dump = bench.dump();
    let archive = bench.archive.clone();
    assert!(bench.run(archive.copied()).is_err());
    let why = archive.state().dumper.why_not().map(String::from);
    assert!(why.as_ref().is_some_and(|why| why.contains("another block is in its place")), "{why:?}");
    bench.again();
    let archive = bench.archive.clone();
    let read = |state: &mut crate::archive::ArchiveState| {
        let root = root_of(state, Some(dump.generation));
        state.fs.read(root, file, 0, 100)
    };
    assert!(bench.run(archive.attempt(read)).is_err());
}

#[test]
fn a_node_that_has_not_come_to_its_place_is_copied_again() {
    let (disk, loses, last) = losing(1 << 15, |tag| tag.kind != cw::BlockKind::File && tag.at < NEW);
    let mut bench = bench(disk);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 100_000));
    let dump = bench.dump();
    loses.store(true, Ordering::Relaxed);
    let archive = bench.archive.clone();
    assert!(bench.run(archive.copied()).is_err());
    assert!(last.load(Ordering::Relaxed) > 0);
    loses.store(false, Ordering::Relaxed);
    bench.copied_in_the_end();
    bench.settle();
    bench.again();
    bench.check();
    assert!(bench.read(Some(dump.generation), file) == noise(1, 100_000));
}

/// Overwrites the front area, and recovers it.
fn recovered(bench: &mut Bench) -> crate::Recovered {
    let archive = bench.archive.clone();
    bench.run(archive.close()).unwrap();
    let (c, w, settings) = (bench.c.clone(), bench.w.clone(), bench.settings.clone());
    let first = ready(crate::cw::Cw::label(&*w)).unwrap().first();
    for at in [2, first - 1] {
        ready(w.write(at * 16, vec![0; 16 * 512].into())).unwrap();
    }
    assert!(ready(Archive::open(c.clone(), w.clone(), &settings)).is_err());
    let how = Recover { dump: None, fastworm: Some(true), random: 77 };
    let recovered = bench.run(Archive::recover(c, w, &settings, &how)).unwrap();
    bench.again();
    recovered
}

#[test]
fn a_recovery_finds_what_is_free_among_dumps() {
    for rot in [false, true] {
        let mut bench = bench(Arc::new(Ram::new(1 << 15)));
        let mut kept = Vec::new();
        for round in 0..if rot { 2 } else { 12 } {
            let archive = bench.archive.clone();
            let other = bench.make(ROOT, "other", mode::S_IFREG);
            fill(&mut bench, other, 0, &noise(round + 100, 4_000_000));
            bench.sync();
            let file = bench.make(ROOT, &format!("file{round}"), mode::S_IFREG);
            bench.write(file, 0, &noise(round, 200_000));
            bench.unlink(ROOT, "other");
            archive.reap(other);
            bench.settle();
            kept.push((bench.dump(), file));
            bench.copied();
            bench.settle();
        }
        bench.sync();
        let before = bench.archive.0.cw.worm_left(0);
        if rot {
            // For the oldest dump alone.
            let root = bench.archive.state().dumps[&kept.remove(0).0.generation].record.root;
            ready(bench.w.write(root.at * 16, vec![0; 512 * 16].into())).unwrap();
        }
        recovered(&mut bench);
        let after = bench.archive.0.cw.worm_left(0);
        // If the blocks of a dump are not known, nothing before the end of all blocks is free.
        assert!(if rot { after + 900 < before } else { after + 20 > before }, "{after} of {before}");
        let last = bench.make(ROOT, "last", mode::S_IFREG);
        fill(&mut bench, last, 0, &noise(99, if rot { 1_000_000 } else { 8_000_000 }));
        kept.push((bench.dump(), last));
        bench.copied();
        bench.settle();
        bench.again();
        for (n, (dump, file)) in kept.iter().enumerate() {
            let first = bench.read(Some(dump.generation), *file);
            let was = if *file == last { 99 } else { n as u64 + u64::from(rot) };
            assert!(first == noise(was, first.len()) && first.len() >= 200_000, "{}", dump.name);
        }
        if !rot {
            bench.check();
        }
    }
}

#[test]
fn its_dumps_are_enough_to_go_on_from() {
    let mut bench = bench(Arc::new(Ram::new(1 << 16)));
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    let mut kept = Vec::new();
    for round in 0..4 {
        bench.write(file, round * 200_000, &noise(round, 500_000));
        let dump = bench.dump();
        bench.copied();
        kept.push((dump, bench.read(None, file)));
    }
    bench.write(file, 0, &noise(9, 5_000_000));
    bench.sync();
    let recovered = recovered(&mut bench);
    assert_eq!((&recovered.dump, recovered.dumps), (&kept[3].0.name, 4));
    bench.check();
    bench.write(file, 0, &noise(10, 5_000_000));
    bench.dump();
    bench.copied();
    bench.settle();
    bench.check();
    for (dump, was) in &kept {
        assert!(bench.read(Some(dump.generation), file) == *was, "{}", dump.name);
    }
}

#[test]
fn another_follows_it() {
    let w: Arc<dyn Device> = Arc::new(Ram::new(1 << 16));
    let mut bench = bench(w.clone());
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 500_000));
    bench.dump();
    bench.copied();
    let (follower, driver) = ready(Archive::follow(w, &bench.settings)).unwrap();
    bench.write(file, 100, &noise(2, 500_000));
    let dump = bench.dump();
    bench.copied();
    let now = bench.read(None, file);
    let mut other = Bench::new(1 << 18, 8192, true);
    (other.archive, other.driver) = (follower.clone(), driver);
    other.archive.tick(std::time::Duration::from_secs(6));
    other.settle();
    assert_eq!(follower.dumps().len(), 2);
    assert!(other.read(Some(dump.generation), file) == now);
    assert!(other.read(None, file) == now);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let nothing: Arc<dyn Device> = Arc::new(Nothing);
    let disk = || -> Arc<dyn Device> { Arc::new(Ram::new(1 << 16)) };
    let said = |result: nine_block::Result<(Archive, Driver)>| result.map(drop).unwrap_err().to_string();
    let cached = Bench::new(1 << 18, 8192, true);
    let refused = said(ready(Archive::open(nothing.clone(), cached.w.clone(), &cached.settings)));
    assert!(refused.contains("has a cache device"), "{refused}");
    let alone = bench(disk());
    let refused = said(ready(Archive::open(disk(), alone.w.clone(), &alone.settings)));
    assert!(refused.contains("`c n WORM`"), "{refused}");
    let how = Recover { dump: None, fastworm: Some(true), random: 1 };
    for (c, w) in [(&nothing, &cached.w), (&disk(), &alone.w)] {
        assert!(ready(Archive::recover(c.clone(), w.clone(), &alone.settings, &how)).is_err());
    }
    let refused = ready(Archive::copy_worm(&alone.w, &disk(), |_, _| {})).unwrap_err();
    assert!(refused.to_string().contains("the whole device"), "{refused}");
    let once: Arc<dyn Device> = Arc::new(ready(FakeWorm::make(disk(), 16)).unwrap());
    let refused =
        ready(Archive::ream(nothing.clone(), once, &ream(8192, true), &alone.settings)).unwrap_err();
    assert!(refused.to_string().contains("written once"), "{refused}");
    let small: Arc<dyn Device> = Arc::new(Ram::new(1 << 11));
    let refused = ready(Archive::ream(nothing, small, &ream(8192, true), &alone.settings)).unwrap_err();
    assert!(refused.to_string().contains("at least"), "{refused}");
}
