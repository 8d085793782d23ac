//! Tests that the disk satisfies its file head, and that each fault occurs.
//!
//! In: seeds. Out: violations. An oracle knows each write since the last cut.

use std::time::Duration;

use nine_block::{Op, Result, SECTOR};
use nine_net::Env;

use super::*;
use crate::world::{World, seeds, tries_all};

const SECTORS: u64 = 48;

/// Returns a sector that names its write.
fn sector(number: u64, at: u64) -> Vec<u8> {
    [number.to_le_bytes(), at.to_le_bytes()].concat().repeat(SECTOR as usize / 16)
}

fn data(number: u64, at: u64, count: u64) -> Bytes {
    (at..at + count).flat_map(|at| sector(number, at)).collect()
}

/// Returns the number of the write that a sector names; 0: none.
fn number(bytes: &[u8], at: u64) -> std::result::Result<u64, String> {
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let right = if number == 0 { bytes.iter().all(|byte| *byte == 0) } else { bytes == sector(number, at) };
    right.then_some(number).ok_or_else(|| format!("sector {at} is of no write"))
}

/// Knows each write since the last cut, and the guarantees.
struct Oracle {
    now: u64,
    number: u64,
    writes: Vec<Written>,
    /// Numbers of the writes that the last cut left, by disk and sector.
    base: Vec<Vec<u64>>,
    wrong: Option<String>,
    worm: bool,
}

struct Written {
    disk: usize,
    sectors: Range<u64>,
    number: u64,
    begun: u64,
    ended: Option<u64>,
    flushed: bool,
    /// A flush has failed since the write.
    poisoned: bool,
}

impl Oracle {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn flushed(&mut self, disk: usize, submitted: u64, well: bool) {
        for write in self.writes.iter_mut().filter(|write| write.disk == disk) {
            match well {
                true if write.ended.is_some_and(|ended| ended < submitted) => write.flushed = !write.poisoned,
                true => {}
                false => write.poisoned |= !write.flushed,
            }
        }
    }

    /// Checks that the found write is not older than one that must be visible: none of those began after it had
    /// completed.
    fn judge(&mut self, disk: usize, at: u64, bytes: &[u8], must: impl Fn(&Written) -> bool) -> u64 {
        let found = number(bytes, at).unwrap_or_else(|wrong| {
            self.wrong.get_or_insert(wrong);
            0
        });
        let here: Vec<&Written> =
            self.writes.iter().filter(|write| write.disk == disk && write.sectors.contains(&at)).collect();
        let ended = match here.iter().find(|write| write.number == found) {
            Some(write) => write.ended.unwrap_or(u64::MAX),
            None if found == self.base[disk][at as usize] => 0,
            None => {
                self.wrong.get_or_insert(format!("sector {at} is of write {found}"));
                0
            }
        };
        if let Some(lost) = here.iter().find(|write| write.begun > ended && must(write)) {
            self.wrong.get_or_insert(format!("sim{disk} {at} is of {found}, and {} is lost", lost.number));
        }
        found
    }
}

/// Submits a random operation to a random disk.
fn submit(disks: &[Disk], oracle: &Arc<Mutex<Oracle>>, rng: &mut Rng) {
    let index = rng.below(disks.len());
    let count = 1 + rng.below(8) as u64;
    let at = rng.below((SECTORS - count) as usize) as u64;
    let told = oracle.clone();
    let (begun, io) = match rng.below(8) {
        0 => {
            let begun = oracle.lock().unwrap().tick();
            let done =
                move |result: Result<Bytes>| told.lock().unwrap().flushed(index, begun, result.is_ok());
            (begun, Io::other(Op::Flush, 0, 0, done))
        }
        1 | 2 => {
            let begun = oracle.lock().unwrap().tick();
            let done = move |result: Result<Bytes>| {
                let Ok(data) = result else { return };
                let mut oracle = told.lock().unwrap();
                for (at, bytes) in (at..).zip(data.chunks(SECTOR as usize)) {
                    let must =
                        |write: &Written| write.ended.is_some_and(|ended| ended < begun) && !write.poisoned;
                    oracle.judge(index, at, bytes, must);
                }
            };
            (begun, Io::read(at, count, done))
        }
        _ => {
            let mut oracle = oracle.lock().unwrap();
            oracle.number += 1;
            let (begun, number) = (oracle.tick(), oracle.number);
            let sectors = at..at + count;
            let (flushed, poisoned) = (false, false);
            oracle.writes.push(Written {
                disk: index,
                sectors,
                number,
                begun,
                ended: None,
                flushed,
                poisoned,
            });
            let done = move |result: Result<Bytes>| {
                let mut oracle = told.lock().unwrap();
                let now = oracle.tick();
                if result.is_ok() {
                    let write = oracle.writes.iter_mut().find(|write| write.number == number);
                    write.expect("it was begun").ended = Some(now);
                }
            };
            (begun, Io::write(at, data(number, at, count), done))
        }
    };
    assert!(begun > 0);
    disks[index].submit(io);
}

/// Runs three lives of two disks. Returns the first violation, and the counters.
fn lives(seed: u64, worm: bool, faults: &[(Fault, usize)]) -> (Option<String>, Counts) {
    let mut rng = Rng::new(seed);
    let power = Power::new(rng.bits());
    let mut disks = vec![power.disk(SECTORS), power.add(SECTORS, worm)];
    let at_once = rng.one_in(8);
    for disk in &disks {
        disk.at_once(at_once);
        faults.iter().for_each(|(fault, one_in)| disk.chance(*fault, *one_in));
    }
    let base = vec![vec![0; SECTORS as usize]; 2];
    let oracle = Oracle { now: 0, number: 0, writes: Vec::new(), base, wrong: None, worm };
    let oracle = Arc::new(Mutex::new(oracle));
    for _ in 0..3 {
        let (busy, steps) = (1 + rng.below(3), rng.below(120));
        for _ in 0..steps {
            if power.waiting() < 12 && rng.one_in(busy) {
                submit(&disks, &oracle, &mut rng);
            } else if rng.one_in(100) {
                disks.iter().for_each(Disk::release);
            } else {
                power.step();
            }
        }
        // A simulated cut is judged like a real one.
        let fate = power.fate();
        look(&power.after(fate).disks(), &oracle);
        power.cut();
        disks = disks.iter().map(Disk::reopen).collect();
        let found = look(&disks, &oracle);
        let mut oracle = oracle.lock().unwrap();
        oracle.writes.clear();
        oracle.base = found;
        if oracle.wrong.is_some() {
            println!("seed {seed}:\n{}", power.log());
            break;
        }
    }
    let mut counts = disks[0].counts();
    counts += &disks[1].counts();
    let wrong = oracle.lock().unwrap().wrong.take();
    (wrong, counts)
}

fn look(disks: &[Disk], oracle: &Arc<Mutex<Oracle>>) -> Vec<Vec<u64>> {
    let mut oracle = oracle.lock().unwrap();
    let look = |(index, disk): (usize, &Disk)| {
        let image = disk.snapshot();
        let sectors = (0..SECTORS).map(|at| {
            let found = oracle.judge(index, at, &image.read(at, 1), |write| write.flushed);
            let kept = !oracle.worm || index == 0 || [0, found].contains(&oracle.base[1][at as usize]);
            if image.is_written(at) != (found > 0) || !kept {
                oracle.wrong.get_or_insert(format!("sim{index} {at}: is it written?"));
            }
            found
        });
        sectors.collect()
    };
    disks.iter().enumerate().map(look).collect()
}

fn run<T>(disk: &Disk, future: impl Future<Output = T>) -> T {
    disk.power().run(10_000, future).expect("it ends")
}

fn device(disk: &Disk) -> &dyn Device {
    disk
}

fn write(disk: &Disk, number: u64, at: u64, count: u64) -> Result<Bytes> {
    run(disk, device(disk).write(at, data(number, at, count)))
}

fn read(disk: &Disk, at: u64, count: u64) -> std::result::Result<Vec<u64>, Kind> {
    let bytes = run(disk, device(disk).read(at, count)).map_err(|error| error.kind)?;
    Ok((at..).zip(bytes.chunks(SECTOR as usize)).map(|(at, bytes)| number(bytes, at).unwrap()).collect())
}

fn flush(disk: &Disk) -> std::result::Result<(), Kind> {
    run(disk, device(disk).flush()).map(drop).map_err(|error| error.kind)
}

fn kind(result: Result<Bytes>) -> Option<Kind> {
    result.err().map(|error| error.kind)
}

#[test]
fn what_was_flushed_is_there_after_a_cut_or_what_is_newer() {
    let mut all = Counts::default();
    for seed in seeds(4000) {
        let (wrong, counts) = lives(seed, seed % 3 == 0, &[]);
        assert_eq!(wrong, None, "seed {seed}");
        all += &counts;
    }
    assert!(all.faults.is_empty());
    assert!(all.cuts.len() == Fate::ALL.len() || all.cuts.values().sum::<u64>() < 1000, "{all:?}");
    assert!(all.kept > 0 && all.dropped > 0 && all.torn > 0, "{all:?}");
}

#[test]
fn what_was_flushed_is_there_also_where_operations_fail_and_get_stuck() {
    let mut all = Counts::default();
    let faults = [(Fault::Read, 40), (Fault::Write, 20), (Fault::Flush, 10), (Fault::Stick, 100)];
    for seed in seeds(4000) {
        let (wrong, counts) = lives(seed, seed % 3 == 0, &faults);
        assert_eq!(wrong, None, "seed {seed}");
        all += &counts;
    }
    assert!(!tries_all(4000) || faults.iter().all(|(fault, _)| all.faults.contains_key(fault)), "{all:?}");
}

#[test]
fn a_flush_that_forgets_a_write_is_caught_and_so_is_each_silent_fault() {
    for fault in [Fault::Forget, Fault::Lose, Fault::Misdirect, Fault::Flip] {
        let caught = (0..100).filter(|seed| lives(*seed, false, &[(fault, 10)]).0.is_some()).count();
        assert!(caught > 10, "{fault:?} is caught in {caught} of 100");
    }
}

#[test]
fn what_is_read_when_all_is_flushed_is_read_after_a_cut() {
    for seed in seeds(500) {
        let mut rng = Rng::new(seed);
        let disk = Disk::new(seed, SECTORS);
        for number in 1..30 {
            let (at, count) = (rng.below(40) as u64, 1 + rng.below(8) as u64);
            disk.submit(Io::write(at, data(number, at, count), |_| ()));
            disk.step();
        }
        disk.power().settle();
        flush(&disk).unwrap();
        let before = read(&disk, 0, SECTORS).unwrap();
        disk.power().cut();
        assert_eq!(read(&disk.reopen(), 0, SECTORS).unwrap(), before, "seed {seed}");
    }
}

#[test]
fn what_had_happened_before_what_was_flushed_does_not_come_over_it() {
    let mut happened = 0;
    for seed in 0..50 {
        let disk = Disk::new(seed, 8);
        disk.at(Fault::Stick, 0..1, 1);
        disk.submit(Io::write(0, data(1, 0, 2), |_| ()));
        let last = if read(&disk, 0, 1) == Ok(vec![1]) { 2 } else { 1 };
        happened += last - 1;
        write(&disk, 2, 0, 1).unwrap();
        flush(&disk).unwrap();
        disk.power().cut_as(Fate::All);
        assert_eq!(read(&disk.reopen(), 0, 2), Ok(vec![last, 1]), "seed {seed}");
    }
    assert!(happened > 10 && happened < 40, "{happened}");
}

#[test]
fn a_write_is_torn_between_sectors_and_only_there() {
    let mut torn = 0;
    for seed in 0..200 {
        let disk = Disk::new(seed, SECTORS);
        disk.submit(Io::write(0, data(7, 0, 32), |_| ()));
        disk.power().cut_as(Fate::Each);
        let left = read(&disk.reopen(), 0, 32).unwrap();
        torn += u64::from(left.contains(&7) && left.contains(&0));
        assert_eq!(disk.counts().torn, u64::from(left.contains(&7) && left.contains(&0)));
    }
    assert!(torn > 20, "{torn}");
}

#[test]
fn each_fate_leaves_what_it_says() {
    let written = |disks: &[Disk]| {
        let each = disks.iter().map(|disk| (0..8).filter(|at| disk.snapshot().is_written(*at)).collect());
        each.collect::<Vec<Vec<u64>>>()
    };
    for seed in 0..50 {
        let power = Power::new(seed);
        let disks = [power.disk(8), power.disk(8)];
        for at in 0..8 {
            write(&disks[at as usize % 2], 1, at, 1).unwrap();
        }
        let left = |fate| written(&power.after(fate).disks());
        let all = vec![vec![0, 2, 4, 6], vec![1, 3, 5, 7]];
        assert_eq!(left(Fate::All), all);
        assert_eq!(left(Fate::Nothing), [[0u64; 0]; 2]);
        assert_eq!(left(Fate::Last), [vec![], vec![7]]);
        let one = left(Fate::OneDisk);
        assert!(one == [all[0].clone(), vec![]] || one == [vec![], all[1].clone()]);
        assert_eq!(left(Fate::AllButOne).concat().len(), 7);
        let mut prefix = left(Fate::Prefix).concat();
        prefix.sort_unstable();
        assert_eq!(prefix, (0..prefix.len() as u64).collect::<Vec<_>>());
        assert_eq!(written(&disks), [[0u64; 0]; 2], "here nothing has happened");
    }
}

#[test]
fn who_had_a_disk_before_a_cut_has_it_no_more() {
    for seed in 0..50 {
        let disk = Disk::new(seed, 8);
        let ended = Arc::new(Mutex::new(Vec::new()));
        let told = ended.clone();
        disk.submit(Io::read(0, 1, move |result| told.lock().unwrap().push(kind(result))));
        disk.power().cut();
        assert!(matches!(ended.lock().unwrap()[..], [Some(Kind::Down | Kind::Failed)]));
        assert_eq!(kind(write(&disk, 1, 0, 1)), Some(Kind::Down));
        let new = disk.reopen();
        assert_eq!(kind(write(&disk.clone(), 1, 0, 1)), Some(Kind::Down));
        assert_eq!(kind(write(&new, 2, 0, 1)), None);
        assert_eq!(read(&disk.reopen(), 0, 1), Ok(vec![2]), "it is the one who has it now");
        assert_eq!(kind(write(&new, 3, 0, 1)), None);
        // A program is killed.
        new.submit(Io::write(1, data(4, 1, 1), |_| ()));
        let newer = new.reopen();
        assert_eq!(kind(write(&new, 5, 0, 1)), Some(Kind::Down));
        assert_eq!(newer.waiting(), 0);
        let found = read(&newer, 0, 2).unwrap();
        flush(&newer).unwrap();
        newer.power().cut_as(Fate::Nothing);
        assert_eq!(read(&newer.reopen(), 0, 2), Ok(found), "what the next one found is flushed");
    }
}

#[test]
fn a_sector_that_cannot_be_read_can_be_when_it_is_written() {
    let disk = Disk::new(1, 8);
    write(&disk, 1, 0, 8).unwrap();
    flush(&disk).unwrap();
    disk.spoil(2..4);
    disk.at(Fault::Read, 6..7, 1);
    for at in [2, 3, 6] {
        assert_eq!(read(&disk, at, 1), Err(Kind::Failed));
    }
    assert_eq!(read(&disk, 0, 2), Ok(vec![1, 1]));
    write(&disk, 2, 3, 1).unwrap();
    write(&disk, 2, 6, 1).unwrap();
    assert_eq!(read(&disk, 6, 2), Ok(vec![2, 1]));
    assert_eq!(read(&disk, 3, 1), Ok(vec![2]));
    disk.power().cut_as(Fate::Nothing);
    assert_eq!(read(&disk.reopen(), 3, 1), Err(Kind::Failed), "it was not written after all");
}

#[test]
fn a_write_that_fails_may_be_there_in_part() {
    let mut parts = [0; 3];
    for seed in 0..100 {
        let disk = Disk::new(seed, 8);
        disk.at(Fault::Write, 3..4, 1);
        write(&disk, 1, 4, 4).unwrap();
        assert_eq!(kind(write(&disk, 2, 0, 4)), Some(Kind::Failed));
        let found = read(&disk, 0, 4).unwrap();
        parts[usize::from(found.contains(&2)) + usize::from(!found.contains(&0))] += 1;
        assert_eq!(kind(write(&disk, 3, 0, 4)), None);
    }
    assert!(parts[0] > 0 && parts[1] > 0, "{parts:?}");
}

#[test]
fn a_flush_that_fails_loses_what_later_flushes_do_not_bring_back() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..100 {
        let disk = Disk::new(seed, 8);
        write(&disk, 1, 0, 4).unwrap();
        disk.at(Fault::Flush, 0..0, 1);
        assert_eq!(flush(&disk), Err(Kind::Poisoned));
        write(&disk, 2, 4, 4).unwrap();
        assert_eq!(flush(&disk), Ok(()));
        disk.power().cut_as(Fate::All);
        let disk = disk.reopen();
        assert_eq!(read(&disk, 4, 4), Ok(vec![2; 4]));
        match read(&disk, 0, 1).unwrap()[0] {
            0 => lost += 1,
            _ => kept += 1,
        }
    }
    assert!(lost > 20 && kept > 20, "{lost} {kept}");
}

#[test]
fn a_bit_flips_and_nobody_is_told() {
    let disk = Disk::new(1, 8);
    disk.at(Fault::Flip, 0..8, 1);
    write(&disk, 1, 0, 4).unwrap();
    let ones = |disk: &Disk| {
        let each =
            (0..4).flat_map(|at| disk.peek(at).iter().map(|byte| byte.count_ones()).collect::<Vec<_>>());
        each.sum::<u32>()
    };
    let right: u32 = data(1, 0, 4).iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(ones(&disk).abs_diff(right), 1);
    write(&disk, 2, 0, 4).unwrap();
    let right = ones(&disk);
    disk.flip(3, 100);
    assert_eq!(ones(&disk).abs_diff(right), 1);
}

#[test]
fn a_write_is_lost_or_goes_elsewhere_and_nobody_is_told() {
    for seed in 0..50 {
        let disk = Disk::new(seed, 64);
        disk.at(Fault::Lose, 0..4, 1);
        disk.at(Fault::Misdirect, 4..8, 1);
        write(&disk, 1, 0, 4).unwrap();
        assert_eq!(disk.power().after(Fate::All).disks()[0].snapshot().sectors(), 0);
        write(&disk, 2, 4, 4).unwrap();
        let image = disk.power().after(Fate::All).disks()[0].snapshot();
        assert_eq!(image.sectors(), 4);
        assert_ne!(image.written().next(), Some(4..8));
        write(&disk, 3, 0, 8).unwrap();
        assert_eq!(read(&disk, 0, 8), Ok(vec![3; 8]));
    }
}

#[test]
fn what_is_stuck_ends_when_it_is_released() {
    for at_once in [false, true] {
        let disk = Disk::new(1, 8);
        disk.at_once(at_once);
        disk.at(Fault::Stick, 0..1, 1);
        let ended = Arc::new(Mutex::new(0));
        let told = ended.clone();
        disk.submit(Io::write(0, data(1, 0, 1), move |_| *told.lock().unwrap() += 1));
        disk.power().settle();
        assert_eq!((*ended.lock().unwrap(), disk.stuck()), (0, 1));
        disk.release();
        assert_eq!(*ended.lock().unwrap(), u32::from(at_once));
        disk.power().settle();
        assert_eq!((*ended.lock().unwrap(), disk.stuck()), (1, 0));
        assert_eq!(read(&disk, 0, 1), Ok(vec![1]));
    }
}

#[test]
fn a_disk_that_has_grown_is_larger_when_it_is_looked() {
    let disk = Disk::new(1, 8);
    disk.grow(16);
    assert_eq!(disk.shape().sectors, 8);
    assert_eq!(kind(write(&disk, 1, 8, 1)), Some(Kind::Range));
    run(&disk, device(&disk).look()).unwrap();
    assert_eq!(disk.shape().sectors, 16);
    assert_eq!(kind(write(&disk, 1, 8, 1)), None);
}

#[test]
fn a_worm_takes_each_sector_once_and_reads_no_other() {
    let disk = Disk::worm(1, 16);
    assert_eq!(read(&disk, 0, 1), Err(Kind::Unwritten));
    write(&disk, 1, 0, 4).unwrap();
    assert_eq!(kind(write(&disk, 2, 3, 2)), Some(Kind::ReadOnly));
    assert_eq!(kind(run(&disk, device(&disk).discard(0, 4))), Some(Kind::ReadOnly));
    assert_eq!(read(&disk, 0, 5), Err(Kind::Unwritten));
    assert_eq!(read(&disk, 0, 4), Ok(vec![1; 4]));
    flush(&disk).unwrap();
    write(&disk, 3, 4, 4).unwrap();
    disk.power().cut_as(Fate::Nothing);
    let disk = disk.reopen();
    assert_eq!(kind(write(&disk, 4, 3, 1)), Some(Kind::ReadOnly));
    assert_eq!(read(&disk, 4, 1), Err(Kind::Unwritten), "what is lost was not written");
    write(&disk, 5, 4, 4).unwrap();
    disk.power().cut_as(Fate::All);
    let disk = disk.reopen();
    assert_eq!(kind(write(&disk, 6, 4, 4)), Some(Kind::ReadOnly));
    assert_eq!(read(&disk, 0, 8), Ok([[1; 4], [5; 4]].concat()));
    disk.poke(0, sector(9, 0));
    assert_eq!(read(&disk, 0, 1), Ok(vec![9]), "who damages on purpose may");
}

#[test]
fn what_is_discarded_may_be_anything_until_it_is_written() {
    let mut same = 0;
    for seed in 0..100 {
        let disk = Disk::new(seed, 16);
        write(&disk, 1, 0, 16).unwrap();
        run(&disk, device(&disk).discard(0, 12)).unwrap();
        same += u32::from(disk.peek(0) == sector(1, 0));
        assert_eq!(read(&disk, 12, 4), Ok(vec![1; 4]));
        write(&disk, 2, 2, 2).unwrap();
        flush(&disk).unwrap();
        disk.power().cut();
        assert_eq!(read(&disk.reopen(), 2, 2), Ok(vec![2; 2]));
    }
    assert!(same > 0 && same < 100, "{same}");
}

#[test]
fn a_disk_comes_back_with_what_it_had() {
    let disk = Disk::new(1, 8);
    write(&disk, 1, 0, 8).unwrap();
    flush(&disk).unwrap();
    let old = disk.snapshot();
    write(&disk, 2, 0, 4).unwrap();
    flush(&disk).unwrap();
    let back = disk.restore(&old);
    assert_eq!(read(&back, 0, 8), Ok(vec![1; 8]));
    assert_eq!(kind(write(&disk, 3, 0, 1)), Some(Kind::Down));
}

#[test]
fn one_seed_is_one_disk() {
    let story = |seed| {
        let disk = Disk::new(seed, 64);
        (0..40).for_each(|at| disk.submit(Io::write(at, data(1, at, 8), |_| ())));
        (0..30).for_each(|_| assert!(disk.step()));
        disk.power().cut();
        (disk.power().log(), disk.reopen().snapshot().read(0, 64))
    };
    assert_eq!(story(1), story(1));
    assert_ne!(story(1).0, story(2).0);
}

#[test]
fn only_what_was_written_takes_memory() {
    let disk = Disk::new(1, 50 << 21);
    let last = disk.shape().sectors - 32;
    write(&disk, 1, last, 32).unwrap();
    run(&disk, device(&disk).discard(0, last)).unwrap();
    flush(&disk).unwrap();
    assert!(disk.snapshot().sectors() <= 40);
}

#[test]
fn a_world_steps_a_disk_when_there_is_something_to_do() {
    let world = World::new(3);
    let (env, disk) = (world.env(), Disk::new(3, 8));
    let (power, clock) = (disk.power().clone(), env.clone());
    env.spawn(Box::pin(async move {
        loop {
            power.busy().await;
            clock.sleep_until(clock.now() + Duration::from_millis(1)).await;
            power.step();
        }
    }));
    world.run(async move {
        device(&disk).write(0, data(1, 0, 1)).await.unwrap();
        assert_eq!(device(&disk).read(0, 1).await, Ok(data(1, 0, 1)));
        assert!(env.now() >= Duration::from_millis(2));
    });
}

/// A measurement: a thousand worlds of 2000 writes of 16 KiB.
#[test]
#[ignore = "takes seconds"]
fn a_thousand_worlds_take_seconds() {
    let content = Bytes::from(vec![7; 16 << 10]);
    for seed in 0..1000 {
        let (mut rng, disk) = (Rng::new(seed), Disk::new(seed, 50 << 21));
        for i in 0..2000 {
            disk.submit(Io::write(32 * rng.below(3000) as u64, content.clone(), |_| ()));
            if i % 20 == 0 {
                disk.submit(Io::other(Op::Flush, 0, 0, |_| ()));
            }
            if i % 4 > 0 {
                disk.step();
                disk.step();
            }
        }
        disk.power().cut();
        assert!(disk.snapshot().sectors() > 0);
    }
}
