//! Random operations from a seed, checked against the values that each sector may have.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nine_block::{Ahead, Cache, Cached, Device, Kind, Op, Options, Result};

use crate::cache::device::{Slow, data, numbers};
use crate::cache::{Random, poll};

const PER_BLOCK: u64 = 8;
/// The last block is short.
const SECTORS: u64 = 600 * PER_BLOCK + 3;

/// A device, the cache over it, and the expected content.
struct World {
    slow: Arc<Slow>,
    cached: Cached,
    sectors: Vec<Sector>,
    calls: Vec<Running>,
    next: u64,
    clock: u64,
    /// Number of barriers so far.
    barriers: u64,
    /// By number written: the barriers before the write began.
    began: Vec<u64>,
    /// By barrier: the sectors that must be complete on the device before any later write begins.
    must: BTreeMap<u64, BTreeMap<usize, u64>>,
    since_barrier: BTreeMap<usize, u64>,
    discards: Vec<(Range<u64>, u64)>,
    is_reserved: bool,
}

#[derive(Clone)]
struct Sector {
    /// The numbers that a read may find; if it is empty, any.
    may: BTreeSet<u64>,
    writing: Option<u64>,
    /// The number of the last successful write.
    settled: u64,
    /// The number that a successful flush has covered.
    floor: u64,
    discarded: u64,
}

struct Running {
    call: Pin<Box<dyn Future<Output = Result<Bytes>>>>,
    what: What,
}

enum What {
    Read(u64, Vec<BTreeSet<u64>>),
    Write(u64, u64, u64),
    Flush(u64, Vec<u64>),
}

impl World {
    fn new(cache: &Cache) -> Self {
        let slow = Arc::new(Slow::new(SECTORS));
        let cached = cache.over(slow.clone()).unwrap();
        let may = BTreeSet::from([0]);
        let sector = Sector { may, writing: None, settled: 0, floor: 0, discarded: 0 };
        Self {
            slow,
            cached,
            sectors: vec![sector; SECTORS as usize],
            calls: Vec::new(),
            next: 0,
            clock: 0,
            barriers: 0,
            began: vec![0],
            must: BTreeMap::new(),
            since_barrier: BTreeMap::new(),
            discards: Vec::new(),
            is_reserved: false,
        }
    }

    fn view(&self) -> &dyn Device {
        &self.cached
    }

    fn range(&self, random: &mut Random) -> (u64, u64) {
        // Mostly in a small part, so that blocks are found again.
        let end = if random.percent(70) { 60 * PER_BLOCK } else { SECTORS };
        let at = if random.percent(3) { SECTORS - 5 } else { random.below(end) };
        let most = if random.percent(20) { 100 } else { 20 };
        (at, (1 + random.below(most)).min(SECTORS - at))
    }

    fn of(&self, at: u64, count: u64) -> &[Sector] {
        &self.sectors[at as usize..(at + count) as usize]
    }

    fn write(&mut self, at: u64, count: u64, by_block: bool) {
        if self.of(at, count).iter().any(|sector| sector.writing.is_some()) {
            return;
        }
        self.next += 1;
        self.began.push(self.barriers);
        for n in at as usize..(at + count) as usize {
            self.sectors[n].writing = Some(self.next);
            for running in &mut self.calls {
                if let What::Read(from, may) = &mut running.what
                    && let Some(may) = n.checked_sub(*from as usize).and_then(|n| may.get_mut(n))
                    && !may.is_empty()
                {
                    may.insert(self.next);
                }
            }
        }
        let bytes = data(at, count, self.next);
        let call = match by_block {
            true => self.cached.put(at / PER_BLOCK, bytes),
            false => self.view().write(at, bytes),
        };
        self.calls.push(Running { call: Box::pin(call), what: What::Write(at, count, self.next) });
    }

    fn block(&self, block: u64) -> (u64, u64) {
        (block * PER_BLOCK, PER_BLOCK.min(SECTORS - block * PER_BLOCK))
    }

    fn read(&mut self, at: u64, count: u64, by_block: bool) {
        let may = self.of(at, count).iter().map(|sector| {
            let mut may = sector.may.clone();
            if !may.is_empty() {
                may.extend(sector.writing);
            }
            may
        });
        let may = may.collect();
        let call = match by_block {
            true => self.cached.get(at / PER_BLOCK),
            false => self.view().read(at, count),
        };
        self.calls.push(Running { call: Box::pin(call), what: What::Read(at, may) });
    }

    fn barrier(&mut self) {
        self.barriers += 1;
        self.must.insert(self.barriers, std::mem::take(&mut self.since_barrier));
    }

    fn flush(&mut self) {
        self.barrier();
        let settled = self.sectors.iter().map(|sector| sector.settled).collect();
        let call = self.cached.flush();
        self.calls.push(Running { call: Box::pin(call), what: What::Flush(self.clock, settled) });
    }

    fn discard(&mut self, at: u64, count: u64) {
        if self.of(at, count).iter().any(|sector| sector.writing.is_some()) {
            return;
        }
        for n in at as usize..(at + count) as usize {
            let sector = &mut self.sectors[n];
            sector.may.clear();
            (sector.floor, sector.settled, sector.discarded) = (0, 0, self.clock);
            self.since_barrier.remove(&n);
            self.must.values_mut().for_each(|must| {
                must.remove(&n);
            });
        }
        for running in &mut self.calls {
            if let What::Read(from, may) = &mut running.what {
                (*from..)
                    .zip(may)
                    .filter(|(n, _)| (at..at + count).contains(n))
                    .for_each(|(_, may)| may.clear());
            }
        }
        let (from, to) = (at.div_ceil(PER_BLOCK), (at + count) / PER_BLOCK);
        if from < to {
            self.discards.push((from * PER_BLOCK..to * PER_BLOCK, self.barriers));
        }
        let mut call = self.view().discard(at, count);
        assert!(poll(&mut call).is_some_and(|result| result.is_ok()));
    }

    /// Checks the order of the operations submitted to the device.
    fn judge_order(&mut self) {
        let submitted = std::mem::take(&mut self.slow.inner().submitted);
        for (op, at, numbers) in submitted {
            let behind = match op {
                Op::Write => numbers.iter().map(|number| self.began[*number as usize]).max().unwrap(),
                Op::Discard => {
                    let range = at..at + numbers.len() as u64;
                    let is_in = |of: &Range<u64>| range.start <= of.start && of.end <= range.end;
                    // Several discards may have been joined, or one may repeat an earlier one.
                    let Some((_, behind)) = self.discards.iter().find(|(of, _)| is_in(of)).cloned() else {
                        continue;
                    };
                    self.discards.retain(|(of, also)| !(is_in(of) && *also == behind));
                    behind
                }
                _ => continue,
            };
            let inner = self.slow.inner();
            for (barrier, must) in self.must.range_mut(..=behind) {
                for (n, number) in std::mem::take(must) {
                    let has = inner.complete[n];
                    assert!(
                        has >= number,
                        "{op:?} at {at} passed barrier {barrier}: sector {n} has {has}, not {number}"
                    );
                }
            }
        }
    }

    /// Takes the operations that have ended.
    fn collect(&mut self) {
        let mut ended = Vec::new();
        self.calls.retain_mut(|running| match poll(&mut running.call) {
            Some(result) => {
                ended.push((std::mem::replace(&mut running.what, What::Write(0, 0, 0)), result));
                false
            }
            None => true,
        });
        ended.into_iter().for_each(|(what, result)| self.ended(what, result));
    }

    fn ended(&mut self, what: What, result: Result<Bytes>) {
        match (what, result) {
            (What::Read(at, may), Ok(data)) => {
                let found = numbers(at, &data);
                assert_eq!(found.len(), may.len());
                for ((at, found), may) in (at..).zip(found).zip(may) {
                    assert!(
                        may.is_empty() || may.contains(&found),
                        "sector {at} reads {found}, may be {may:?}"
                    );
                }
            }
            (What::Write(at, count, number), result) => {
                for n in at as usize..(at + count) as usize {
                    let sector = &mut self.sectors[n];
                    sector.writing = None;
                    match result {
                        Ok(_) => {
                            sector.may = BTreeSet::from([number]);
                            sector.settled = number;
                            self.since_barrier.insert(n, number);
                        }
                        Err(_) if !sector.may.is_empty() => drop(sector.may.insert(number)),
                        Err(_) => {}
                    }
                }
            }
            (What::Flush(since, settled), Ok(_)) => {
                for (sector, settled) in self.sectors.iter_mut().zip(settled) {
                    if sector.discarded < since {
                        sector.floor = sector.floor.max(settled);
                    }
                }
            }
            _ => {}
        }
    }

    /// Checks that a power cut loses nothing that was flushed.
    fn judge_cut(&self, random: &mut Random) {
        let left = self.slow.inner().cut(random);
        for (n, (sector, left)) in self.sectors.iter().zip(left).enumerate() {
            assert!(
                left >= sector.floor,
                "a cut left {left} of sector {n}, where {} was flushed",
                sector.floor
            );
        }
    }

    /// Writes the lost blocks again.
    fn heal(&mut self) {
        for block in self.cached.lost().expect("few enough to be known") {
            let (at, count) = self.block(block);
            self.write(at, count, true);
        }
    }

    fn step(&mut self, random: &mut Random, failing: u64) {
        self.clock += 1;
        let (at, count) = self.range(random);
        let block = at / PER_BLOCK;
        match random.below(100) {
            0..25 if self.calls.len() < 80 => self.write(at, count, false),
            25..32 if self.calls.len() < 80 => {
                let (at, count) = self.block(block);
                self.write(at, count, true);
            }
            32..45 => self.read(at, count, false),
            45..52 => {
                let (at, count) = self.block(block);
                self.read(at, count, true);
            }
            52..54 => {
                self.barrier();
                self.cached.barrier();
            }
            54 => self.flush(),
            55 => self.discard(at, count),
            56..58 => self.cached.tick(Duration::from_secs(self.clock), Duration::from_secs(200)),
            58 if failing > 0 => self.heal(),
            59 if failing > 0 => {
                self.is_reserved = random.percent(5);
                if !self.is_reserved {
                    self.cached.resume();
                }
            }
            60 => self.judge_cut(random),
            _ => {
                let len = self.slow.inner().under_way.len() as u64;
                if len > 0 {
                    let which = random.below(len) as usize;
                    let op = self.slow.inner().under_way[which].io.op;
                    let is_reserved = self.is_reserved && matches!(op, Op::Write | Op::Flush);
                    let fail = random.percent(failing).then_some(Kind::Failed);
                    self.slow.end(which, if is_reserved { Some(Kind::Reserved) } else { fail }, random);
                }
            }
        }
        self.judge_order();
        self.collect();
    }

    /// Ends all faults, and checks the final content.
    fn finish(&mut self, random: &mut Random) {
        self.is_reserved = false;
        self.cached.resume();
        for _ in 0..4 {
            self.clock += 1;
            self.settle();
            self.heal();
            self.settle();
            self.flush();
            self.settle();
        }
        assert!(self.calls.is_empty(), "{} wait for ever", self.calls.len());
        assert_eq!(self.cached.lost(), Some(Vec::new()));
        for _ in 0..3 {
            self.judge_cut(random);
        }
        for (n, sector) in self.sectors.iter().enumerate() {
            assert!(sector.may.is_empty() || sector.floor == sector.settled, "sector {n} was not flushed");
        }
        let (slow, sectors) = (self.slow.inner(), &self.sectors);
        for (n, (sector, has)) in sectors.iter().zip(&slow.content).enumerate() {
            assert!(
                sector.may.is_empty() || sector.may.contains(has),
                "sector {n} is {has}, not {:?}",
                sector.may
            );
        }
    }

    fn settle(&mut self) {
        loop {
            self.judge_order();
            self.collect();
            if !self.slow.end(0, None, &mut Random::new(1)) {
                break;
            }
        }
    }
}

/// Runs two devices that share a cache much too small for them.
fn run(seed: u64) {
    let mut random = Random::new(seed);
    let ahead = [Ahead::Never, Ahead::Seed, Ahead::Grow][seed as usize % 3];
    let failing = [0, 1, 10][seed as usize / 3 % 3];
    let block = PER_BLOCK * 512;
    let cache = Cache::new(Options { block, memory: 128 * block, shards: 4, largest: 16 * block, ahead });
    let mut worlds = [World::new(&cache), World::new(&cache)];
    for _ in 0..1200 {
        let which = random.below(2) as usize;
        worlds[which].step(&mut random, failing);
        let stats = cache.stats();
        assert!(stats.held <= stats.most && stats.dirty <= stats.most * 3 / 4, "too much is held: {stats:?}");
    }
    for world in &mut worlds {
        world.finish(&mut random);
    }
    let stats = cache.stats();
    assert_eq!(stats.dirty, 0, "{stats}");
    assert!(stats.held <= stats.most && stats.evictions > 0 && stats.writes < stats.written, "{stats}");
}

#[test]
fn hundreds_of_worlds() {
    let seeds = match std::env::var("NINE_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("NINE_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..200,
    };
    for seed in seeds {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("again: NINE_SEED={seed} cargo test -p nine-block --test it hundreds_of_worlds");
            std::panic::resume_unwind(panic);
        }
    }
}
