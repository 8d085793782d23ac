//! Blocks in the cache: which ones are held, what a hit costs, and how they leave.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nine_block::{Ahead, Cache, Cached, Device, Kind, Op, Options, Ram};

use crate::cache::device::{Slow, data};
use crate::cache::{Random, now, poll};

const BLOCK: u64 = 4096;

fn options(blocks: u64) -> Options {
    Options { block: BLOCK, memory: blocks * BLOCK, ahead: Ahead::Never, ..Options::default() }
}

fn over_slow(blocks: u64, sectors: u64) -> (Cache, Arc<Slow>, Cached) {
    let (cache, slow) = (Cache::new(options(blocks)), Arc::new(Slow::new(sectors)));
    let cached = cache.over(slow.clone()).unwrap();
    (cache, slow, cached)
}

/// Reads a hot set of half the cache three times, then scans ten times the cache, then reads the hot set again. LRU, or
/// any order of use shorter than the scan, would hold nothing of it.
#[test]
fn a_hot_set_survives_a_scan() {
    let cache = Cache::new(options(1000));
    let cached = cache.over(Arc::new(Ram::new(20_000 * 8))).unwrap();
    let read = |blocks: std::ops::Range<u64>| {
        let before = cache.stats();
        blocks.for_each(|block| drop(now(cached.get(block)).unwrap()));
        cache.stats().hits - before.hits
    };
    assert_eq!((read(0..500), read(0..500), read(0..500)), (0, 500, 500));
    assert_eq!(read(5000..15_000), 0);
    assert_eq!(read(0..500), 500);
    let stats = cache.stats();
    assert_eq!((stats.held, stats.misses), (1000, 10_500));
}

/// A forgotten block frees its room; a dirty one, or one being read, is not touched.
#[test]
fn what_is_forgotten_is_not_held() {
    let (cache, slow, cached) = over_slow(1000, 100 * 8);
    cached.keep(1, Bytes::from(vec![1; BLOCK as usize]));
    let device: &dyn Device = &cached;
    now(device.write(2 * 8, vec![2; BLOCK as usize].into())).unwrap();
    let mut reading = cached.get(3);
    assert!(poll(&mut reading).is_none());
    assert_eq!(cache.stats().held, 3);
    (0..5).for_each(|block| cached.forget(block));
    assert_eq!((cache.stats().held, cache.stats().dirty), (2, 1));
    slow.end_all();
    now(reading).unwrap();
    assert!(now(cached.get(2)).unwrap().iter().all(|byte| *byte == 2));
    assert!(poll(&mut cached.get(1)).is_none(), "it has to be read");
    slow.end_all();
}

/// The data of a read-ahead is as of when it was read.
#[test]
fn what_is_forgotten_while_it_is_read_ahead_is_not_kept() {
    let cache = Cache::new(Options { ahead: Ahead::Seed, ..options(1000) });
    let slow = Arc::new(Slow::new(100 * 8));
    let cached = cache.over(slow.clone()).unwrap();
    for block in 0..2 {
        let call = cached.get(block);
        cached.forget(block + 3);
        slow.end_all();
        now(call).unwrap();
    }
    assert!(cached.hit(3).is_some() && cached.hit(4).is_none());
    let mut again = cached.get(4);
    assert!(poll(&mut again).is_none(), "it has to be read");
    slow.end_all();
    now(again).unwrap();
}

/// Blocks that were read together share memory. That memory is bounded whatever happens to the blocks. A block that is
/// used again gets its own memory.
#[test]
fn what_is_left_of_runs_keeps_no_memory_without_end() {
    let cache = Cache::new(options(1000));
    let cached = cache.over(Arc::new(Ram::new(100_000 * 8))).unwrap();
    let device: &dyn Device = &cached;
    for run in 0..3000 {
        now(device.read(run * 16 * 8, 16 * 8)).unwrap();
        (run * 16 + 1..run * 16 + 16).for_each(|block| cached.forget(block));
        assert!(cache.stats().lent <= 1250, "{}", cache.stats());
    }
    assert!(cache.stats().lent > 1000, "{}", cache.stats());
    let hot = 90_000;
    // Blocks that are read alone are not lent.
    let alone = |blocks: std::ops::Range<u64>| blocks.for_each(|block| drop(now(cached.get(block)).unwrap()));
    alone(60_000..62_000);
    assert_eq!(cache.stats().lent, 0);
    now(device.read(hot * 8, 16 * 8)).unwrap();
    for round in 0..3 {
        alone(hot..hot + 2);
        alone(70_000 + round * 100..70_100 + round * 100);
    }
    assert_eq!(cache.stats().lent, 16);
    alone(62_000..64_000);
    let before = cache.stats();
    alone(hot..hot + 2);
    assert_eq!((cache.stats().hits - before.hits, before.lent), (2, 0));
}

/// A hot set survives an interleaved scan, even if each block is read sector by sector.
#[test]
fn a_hot_set_survives_a_scan_by_sectors() {
    let cache = Cache::new(options(1000));
    let cached = cache.over(Arc::new(Ram::new(20_000 * 8))).unwrap();
    let device: &dyn Device = &cached;
    let mut random = Random::new(1);
    (0..3000).for_each(|n| drop(now(cached.get(n % 500))));
    let mut missed = 0;
    for sector in 5000 * 8..15_000 * 8 {
        now(device.read(sector, 1)).unwrap();
        let before = cache.stats().misses;
        now(cached.get(random.below(500))).unwrap();
        missed += cache.stats().misses - before;
    }
    assert_eq!(missed, 0);
}

#[test]
fn a_hit_copies_nothing() {
    let (_, slow, cached) = over_slow(128, 800);
    let mut first = cached.get(3);
    assert!(poll(&mut first).is_none());
    slow.end_all();
    let first = now(first).unwrap();
    assert_eq!(now(cached.get(3)).unwrap().as_ptr(), first.as_ptr());
    let device: &dyn Device = &cached;
    assert_eq!(now(device.read(26, 2)).unwrap().as_ptr(), first[1024..].as_ptr());
    let put = data(8, 8, 1);
    now(cached.put(1, put.clone())).unwrap();
    assert_eq!(cached.hit(1).unwrap().as_ptr(), put.as_ptr());
}

#[test]
fn many_misses_of_a_block_are_one_read() {
    let (cache, slow, cached) = over_slow(128, 800);
    let calls: Vec<_> = (0..10).map(|_| cached.get(3)).collect();
    assert_eq!(slow.inner().counts[0], 1);
    slow.end_all();
    calls.into_iter().for_each(|call| assert!(now(call).is_ok()));
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.joined), (1, 9));
}

#[test]
fn a_read_that_comes_late_is_not_taken_for_a_later_one() {
    let (_, slow, cached) = over_slow(128, 80_000);
    let first = cached.get(3);
    now(cached.put(3, data(24, 8, 1))).unwrap();
    assert!(now(first).is_ok(), "it has what was written");
    let mut random = Random::new(0);
    let mut flush = cached.flush();
    while poll(&mut flush).is_none() {
        assert!(slow.end(1, None, &mut random));
    }
    for block in 1000..1500 {
        drop(cached.get(block));
        assert!(slow.end(1, None, &mut random));
    }
    assert!(cached.hit(3).is_none());
    let mut again = cached.get(3);
    slow.end(0, None, &mut random);
    assert!(poll(&mut again).is_none());
    slow.end_all();
    assert_eq!(crate::cache::device::numbers(24, &now(again).unwrap()), [1; 8]);
}

#[test]
fn missing_neighbours_are_read_together() {
    let (_, slow, cached) = over_slow(128, 800);
    let device: &dyn Device = &cached;
    now(cached.put(5, data(40, 8, 1))).unwrap();
    let read = device.read(3, 100);
    // The device's maximum is 64 sectors; block 5 is in the cache.
    assert_eq!(slow.inner().counts[0], 2);
    slow.end_all();
    assert_eq!(now(read).unwrap().len(), 100 * 512);
}

/// An unreadable sector affects only its own readers.
#[test]
fn a_bad_block_does_not_spoil_its_neighbours() {
    let (_, slow, cached) = over_slow(128, 800);
    let device: &dyn Device = &cached;
    let whole = device.read(0, 32);
    let good = cached.get(2);
    slow.end(0, Some(Kind::Failed), &mut Random::new(0));
    for _ in 0..4 {
        let is_bad = slow.inner().under_way[0].io.at == 8;
        slow.end(0, is_bad.then_some(Kind::Failed), &mut Random::new(0));
    }
    assert!(now(good).is_ok());
    assert_eq!(now(whole).unwrap_err().kind, Kind::Failed);
    assert!(cached.hit(0).is_some() && cached.hit(1).is_none());
}

#[test]
fn what_is_read_at_a_time_is_limited() {
    let (cache, slow, cached) = over_slow(128, 8000);
    let calls: Vec<_> = (0..40).map(|block| cached.get(block * 3)).collect();
    let stats = cache.stats();
    assert_eq!((stats.held, stats.passed), (16, 24));
    slow.end_all();
    calls.into_iter().for_each(|call| assert!(now(call).is_ok()));
    assert_eq!(cache.stats().held, 16);
}

#[test]
fn dirty_neighbours_are_written_together() {
    let (cache, slow, cached) = over_slow(1000, 8000);
    let mut order: Vec<u64> = (0..64).collect();
    let mut random = Random::new(5);
    (1..order.len()).for_each(|n| order.swap(n, random.below(n as u64 + 1) as usize));
    order.into_iter().for_each(|block| drop(now(cached.put(block, data(block * 8, 8, 1))).unwrap()));
    let flush = cached.flush();
    slow.end_all();
    now(flush).unwrap();
    assert_eq!(slow.inner().counts, [0, 8, 1]);
    assert_eq!((cache.stats().written, cache.stats().writes, cache.stats().dirty), (64, 8, 0));
}

#[test]
fn a_device_that_does_not_answer_leaves_room_to_others() {
    let (cache, _gone, stuck) = over_slow(256, 8000);
    let slow = Arc::new(Slow::new(8000));
    let well = cache.over(slow.clone()).unwrap();
    let put = |cached: &Cached, block: u64| cached.put(block, data(block * 8, 8, 1));
    let mut calls: Vec<_> = (0..300).map(|block| put(&stuck, block)).collect();
    let waiting = calls.iter_mut().filter_map(|call| poll(call).is_none().then_some(())).count();
    assert_eq!(waiting, 300 - 48);
    for block in 0..300 {
        let mut call = put(&well, block);
        while poll(&mut call).is_none() {
            assert!(slow.end(0, None, &mut Random::new(0)), "it waits for another device");
            if let Some(result) = poll(&mut call) {
                result.unwrap();
                break;
            }
        }
    }
}

#[test]
fn what_is_old_is_written_and_what_is_new_is_not() {
    let (cache, slow, cached) = over_slow(1000, 8000);
    let tick = |second| cached.tick(Duration::from_secs(second), Duration::from_secs(5));
    now(cached.put(1, data(8, 8, 1))).unwrap();
    (10..15).for_each(tick);
    assert_eq!(slow.inner().counts[1], 0);
    tick(15);
    now(cached.put(2, data(16, 8, 1))).unwrap();
    slow.end_all();
    assert_eq!((slow.inner().counts[1], cache.stats().dirty), (1, 1));
}

#[test]
fn a_cached_device_is_as_large_as_it_is_seen_to_be() {
    let (_, slow, cached) = over_slow(128, 803);
    let device: &dyn Device = &cached;
    let look = || {
        let look = device.look();
        slow.end_all();
        now(look).unwrap();
        device.shape().sectors
    };
    now(device.write(800, data(800, 3, 1))).ok();
    slow.end_all();
    {
        let mut inner = slow.inner();
        inner.shape.sectors = 1000;
        inner.content.resize(1000, 9);
        inner.complete.resize(1000, 0);
    }
    assert_eq!(now(device.read(800, 4)).unwrap_err().kind, Kind::Range);
    // Its last block is dirty and short, so it is written to the device first.
    assert_eq!(look(), 1000);
    assert_eq!(slow.inner().counts[1], 1);
    let read = device.read(800, 8);
    slow.end_all();
    assert_eq!(crate::cache::device::numbers(800, &now(read).unwrap()), [1, 1, 1, 9, 9, 9, 9, 9]);
}

/// The last block is being read, or cannot be written, during a look.
#[test]
fn who_looks_at_a_device_that_grows_waits_or_is_told_why_not() {
    let grown = |slow: &Slow| {
        let mut inner = slow.inner();
        inner.shape.sectors = 1000;
        inner.content.resize(1000, 0);
        inner.complete.resize(1000, 0);
    };
    let (_, slow, cached) = over_slow(128, 803);
    let device: &dyn Device = &cached;
    let (read, mut look) = (cached.get(100), device.look());
    grown(&slow);
    slow.end(1, None, &mut Random::new(0));
    assert!(poll(&mut look).is_none(), "the block is read as it was before");
    slow.end_all();
    now(look).unwrap();
    assert_eq!((now(read).unwrap().len(), device.shape().sectors), (1536, 1000));

    for kind in [Kind::Failed, Kind::Reserved] {
        let (_, slow, cached) = over_slow(128, 803);
        let device: &dyn Device = &cached;
        now(cached.put(100, data(800, 3, 1))).unwrap();
        grown(&slow);
        let look = device.look();
        slow.end(0, None, &mut Random::new(0));
        slow.end(0, Some(kind), &mut Random::new(0));
        let wanted = if kind == Kind::Failed { Kind::Poisoned } else { kind };
        assert_eq!((now(look).unwrap_err().kind, device.shape().sectors), (wanted, 803));
        let flush = device.flush();
        assert_eq!(now(flush).unwrap_err().kind, kind, "that is still told");
    }
}

#[test]
fn small_caches_serve_few_devices() {
    let cache = Cache::new(options(128));
    let device = || Arc::new(Ram::new(8));
    let mut open: Vec<Cached> = (0..6).map(|_| cache.over(device()).unwrap()).collect();
    assert_eq!(cache.over(device()).err().unwrap().kind, Kind::Unsupported);
    now(open[0].put(0, data(0, 8, 1))).unwrap();
    assert_eq!(cache.stats().dirty, 1);
    open.remove(0);
    assert_eq!(cache.stats().dirty, 0, "what nobody can flush is forgotten");
    assert!(cache.over(device()).is_ok());
}

#[test]
fn people_can_read_it() {
    let cache = Cache::new(options(128));
    let cached = cache.over(Arc::new(Ram::new(1600))).unwrap();
    now(cached.put(0, data(0, 8, 1))).unwrap();
    now(cached.get(0)).unwrap();
    now(cached.get(1)).unwrap();
    let expected = "blocks 2 of 128, of 4096 bytes, 1 dirty, 0 in runs\n\
                    read 1 hits, 1 misses, 0 joined, 0 passed, 0 evicted\n\
                    written 0 in 0 writes\nread ahead 0, 0 used, 0 in vain\n";
    assert_eq!(cache.stats().to_string(), expected);
    assert_eq!(cached.status(), "ram1600 cached, 1 blocks dirty\n  ram1600 1600 sectors\n");
}

#[test]
fn nothing_is_asked_of_the_device_that_it_cannot_do() {
    let (_, slow, cached) = over_slow(128, 800);
    let device: &dyn Device = &cached;
    assert_eq!(now(cached.get(100)).unwrap_err().kind, Kind::Range);
    assert_eq!(now(cached.put(0, Bytes::new())).unwrap_err().kind, Kind::Range);
    assert_eq!(now(device.read(799, 2)).unwrap_err().kind, Kind::Range);
    assert_eq!(now(device.read(u64::MAX, 2)).unwrap_err().kind, Kind::Range);
    slow.inner().shape.read_only = true;
    assert_eq!(now(cached.put(0, data(0, 8, 1))).unwrap_err().kind, Kind::ReadOnly);
    assert_eq!(now(device.write(0, data(0, 1, 1))).unwrap_err().kind, Kind::ReadOnly);
    assert!(now(device.read(5, 0)).unwrap().is_empty());
    assert!(slow.inner().submitted.iter().all(|(op, ..)| *op != Op::Write));
}
