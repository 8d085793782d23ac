//! Read-ahead, measured by counts, beside the rule of the old file server and none.

use std::sync::Arc;

use nine_block::{Ahead, Cache, Cached, Device, Kind, Op, Options, Stats};

use crate::cache::device::{Slow, data};
use crate::cache::{Random, now, poll};

const BLOCKS: u64 = 2000;

fn over_slow(ahead: Ahead, blocks: u64) -> (Cache, Arc<Slow>, Cached) {
    let slow = Arc::new(Slow::new(BLOCKS * 16));
    slow.inner().shape.most = 2048;
    let cache = Cache::new(Options { memory: blocks * 8192, ahead, ..Options::default() });
    let cached = cache.over(slow.clone()).unwrap();
    (cache, slow, cached)
}

/// Reads blocks one after the other. Returns how often a read had to wait. At each wait the device ends all operations.
fn read(slow: &Slow, cached: &Cached, blocks: impl IntoIterator<Item = u64>) -> usize {
    let mut rounds = 0;
    for block in blocks {
        let mut call = cached.get(block);
        if poll(&mut call).is_none() {
            rounds += 1;
            slow.end_all();
            now(call).unwrap();
        }
    }
    rounds
}

fn sequential(ahead: Ahead) -> (usize, u64, Stats) {
    let (cache, slow, cached) = over_slow(ahead, 4000);
    let rounds = read(&slow, &cached, 0..BLOCKS);
    let reads = slow.inner().counts[0];
    (rounds, reads, cache.stats())
}

/// Counts the waits and the reads of the device for 2000 blocks in order.
#[test]
fn reading_ahead_saves_waits_and_reads() {
    let (rounds, reads, _) = sequential(Ahead::Never);
    assert_eq!((rounds, reads), (2000, 2000));
    let (rounds, reads, stats) = sequential(Ahead::Seed);
    assert_eq!((rounds, reads, stats.ahead_used), (54, 2000, 1998));
    let (rounds, reads, stats) = sequential(Ahead::Grow);
    assert_eq!((rounds, reads, stats.ahead_used), (12, 23, 1998));
}

/// The same for reads of the device, each of which hits a block or waits.
#[test]
fn a_hit_that_asks_for_more_begins_it() {
    for (ahead, rounds, reads) in [(Ahead::Seed, 54, 2000), (Ahead::Grow, 12, 23)] {
        let (cache, slow, cached) = over_slow(ahead, 4000);
        let device: &dyn Device = &cached;
        let mut waited = 0;
        for block in 0..BLOCKS {
            let mut call = device.read(block * 16, 16);
            if poll(&mut call).is_none() {
                waited += 1;
                slow.end_all();
                now(call).unwrap();
            }
        }
        assert_eq!((waited, slow.inner().counts[0], cache.stats().misses), (rounds, reads, 2));
    }
}

/// Read-aheads that had to wait for others were not evicted, so the window stays.
#[test]
fn what_was_not_begun_yet_makes_no_window_smaller() {
    let slow = Arc::new(Slow::new(BLOCKS * 16));
    // Block by block, so that most of a window waits.
    let cache = Cache::new(Options { memory: 4000 * 8192, largest: 8192, ..Options::default() });
    let cached = cache.over(slow.clone()).unwrap();
    read(&slow, &cached, (0..100).flat_map(|n| [n, 1000 + n]));
    // One stream has all read-aheads that may be in flight, and the other's wait behind them.
    (100..300).find(|block| cached.hit(*block).is_none()).unwrap();
    let under_way = slow.inner().under_way.len();
    let misses = cache.stats().misses;
    for block in 1100..1400 {
        let mut call = cached.get(block);
        if poll(&mut call).is_none() {
            slow.end(under_way, None, &mut Random::new(0));
            now(call).unwrap();
        }
    }
    assert!(cache.stats().misses > misses + 50);
    slow.end_all();
    let rounds = read(&slow, &cached, 1400..1900);
    assert!(rounds <= 3, "{rounds}");
}

#[test]
fn streams_that_take_turns_are_read_ahead_each() {
    let (cache, slow, cached) = over_slow(Ahead::Grow, 4000);
    let rounds = read(&slow, &cached, (0..400).flat_map(|n| [n, 500 + n, 1000 + n, 1500 + n]));
    assert!(rounds < 60, "{rounds}");
    assert!(cache.stats().misses <= 12, "two each to be seen");
}

#[test]
fn nothing_is_read_ahead_of_reads_here_and_there() {
    let (cache, slow, cached) = over_slow(Ahead::Grow, 4000);
    read(&slow, &cached, (0..BLOCKS).map(|n| n * 617 % BLOCKS));
    assert_eq!(cache.stats().ahead, 0);
}

#[test]
fn never_more_is_under_way_than_the_limit_nor_behind_the_end() {
    for (ahead, most) in [(Ahead::Seed, 20), (Ahead::Grow, 8)] {
        let (_, slow, cached) = over_slow(ahead, 100_000);
        for block in 0..BLOCKS {
            let mut call = cached.get(block);
            assert!(slow.inner().under_way.len() <= most + 1);
            while poll(&mut call).is_none() && slow.end(0, None, &mut Random::new(0)) {}
        }
        slow.end_all();
        let submitted = &slow.inner().submitted;
        assert!(submitted.iter().all(|(_, at, sectors)| at + sectors.len() as u64 <= BLOCKS * 16));
    }
}

#[test]
fn no_more_than_an_eighth_of_the_memory_is_read_ahead() {
    let (cache, slow, cached) = over_slow(Ahead::Grow, 256);
    // Each stream begins, and none continues.
    for stream in 0..16 {
        read(&slow, &cached, (0..3).map(|n| stream * 100 + n));
        let stats = cache.stats();
        assert!(stats.ahead - stats.ahead_used - stats.ahead_in_vain <= 32, "{stats}");
    }
}

#[test]
fn nothing_is_read_ahead_while_too_much_is_dirty() {
    let (cache, slow, cached) = over_slow(Ahead::Grow, 128);
    let other = cache.over(Arc::new(Slow::new(8000))).unwrap();
    for (cached, from) in [(&cached, 1000), (&other, 0)] {
        (from..from + 24).for_each(|block| drop(poll(&mut cached.put(block, data(block * 16, 16, 1)))));
    }
    for block in 0..10 {
        let call = cached.get(block);
        let at = slow.inner().under_way.iter().position(|pending| pending.io.op == Op::Read).unwrap();
        slow.end(at, None, &mut Random::new(0));
        now(call).unwrap();
    }
    assert_eq!(cache.stats().ahead, 0);
}

#[test]
fn a_failure_ahead_is_nobodys_until_somebody_wants_it() {
    let (_, slow, cached) = over_slow(Ahead::Grow, 4000);
    read(&slow, &cached, [0]);
    let call = cached.get(1);
    slow.end(0, None, &mut Random::new(0));
    now(call).unwrap();
    let wanted = cached.get(3);
    while slow.end(0, Some(Kind::Failed), &mut Random::new(0)) {}
    assert_eq!(now(wanted).unwrap_err().kind, Kind::Failed);
    read(&slow, &cached, 0..10);
}
