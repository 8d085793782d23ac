//! Mirrors in worlds of faulty disks.

use std::sync::Arc;

use nine_block::{Device, Kind, Mirror, Op, Start};

use crate::common::*;

const SET: [u8; 16] = *b"the set of tests";
/// Sectors of a member before the mirrored ones.
const HEAD: u64 = 128;
const REGION: u32 = 8;

fn world(seed: u64, members: usize, sectors: u64) -> World {
    let disks = (0..members).map(|at| Disk::new(&format!("w{at}"), HEAD + sectors)).collect();
    let mut world = World::new(seed, disks);
    let devices = world.devices();
    world.run(Mirror::make_with(&devices, SET, REGION)).unwrap().unwrap();
    world
}

fn open(world: &mut World, start: Start) -> nine_block::Result<Mirror> {
    let (devices, told) = (world.devices(), world.told());
    world.run(Mirror::open(devices, start, told)).expect("the power is there")
}

fn keep(world: &mut World, mirror: &Mirror) {
    world.beside.push(Box::pin(mirror.clone().keep(rest())));
}

/// Runs until all members are in and equal.
fn settle(world: &mut World, mirror: &Mirror) {
    for _ in 0..10_000 {
        let status = mirror.status();
        let lines = status.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        if lines.clone().count() > 0 && lines.clone().all(|line| line.contains(" in;")) {
            return;
        }
        assert!((0..20).all(|_| world.turn()));
    }
    panic!("it is not settled: {}", mirror.status());
}

fn equal(world: &World, sectors: u64) {
    for at in HEAD..HEAD + sectors {
        let first = world.disks[0].peek(at);
        for disk in &world.disks[1..] {
            assert!(disk.peek(at) == first, "sector {at} differs on {}", disk.name());
        }
    }
}

fn device(mirror: &Mirror) -> Arc<dyn Device> {
    Arc::new(mirror.clone())
}

fn read_all(world: &mut World, mirror: &Mirror, sectors: u64) -> Vec<u64> {
    let data = world.run(device(mirror).read(0, sectors)).unwrap().unwrap();
    data.chunks(512).zip(0..).map(|(bytes, at)| tag(bytes, at)).collect()
}

/// If a member fails a flush, the others must keep the promise, wherever the power is cut.
#[test]
fn every_crash_point_of_a_flush_that_a_member_fails() {
    for (cut, failing) in (0..60).flat_map(|cut| [(cut, 0), (cut, 1)]) {
        let mut world = world(cut, 2, 16);
        let mut oracle = Oracle::default();
        let mirror = open(&mut world, Start::Careful).unwrap();
        let disk = device(&mirror);
        world.left = cut;
        world.disks[failing].fail(Op::Flush, Kind::Failed);
        // Marks are written already, so that the flush below is the one that fails.
        let mut script = |world: &mut World| -> Option<()> {
            let tag = oracle.begin(1, 4, world.now);
            world.run(disk.write(1, tagged(tag, 1, 4)))?.unwrap();
            oracle.acked(tag, world.now);
            let now = world.now;
            world.run(disk.flush())?.unwrap();
            oracle.flushed(now);
            Some(())
        };
        script(&mut world);
        world.cut(Keep::Nothing);
        let mirror = open(&mut world, Start::Careful).unwrap();
        for (at, tag) in read_all(&mut world, &mirror, 16).into_iter().enumerate() {
            oracle.survives(at as u64, tag).unwrap_or_else(|wrong| panic!("cut at {cut}: {wrong}"));
        }
    }
}

/// The power is cut between any two steps of writes, flushes, clearing of marks, a failure and a return.
#[test]
fn every_crash_point_keeps_what_was_flushed_and_makes_members_equal() {
    const SECTORS: u64 = 40;
    let script = |world: &mut World, oracle: &mut Oracle| -> Option<()> {
        let mirror = {
            let (devices, told) = (world.devices(), world.told());
            world.run(Mirror::open(devices, Start::Careful, told))?.unwrap()
        };
        keep(world, &mirror);
        let disk = device(&mirror);
        let mut write = |world: &mut World, at: u64, count: u64| -> Option<()> {
            let tag = oracle.begin(at, count, world.now);
            world.run(disk.write(at, tagged(tag, at, count)))?.unwrap();
            oracle.acked(tag, world.now);
            Some(())
        };
        write(world, 0, 3)?;
        write(world, 5, 10)?;
        world.disks[1].fail(Op::Write, Kind::Failed);
        write(world, 1, 4)?;
        write(world, 30, 10)?;
        let now = world.now;
        world.run(disk.flush())?.unwrap();
        oracle.flushed(now);
        write_more(world, oracle, &disk)?;
        drop(world.run(mirror.bring_back(1, false))?);
        write_more(world, oracle, &disk)?;
        let now = world.now;
        world.run(disk.flush())?.unwrap();
        oracle.flushed(now);
        write_more(world, oracle, &disk)
    };
    fn write_more(world: &mut World, oracle: &mut Oracle, disk: &Arc<dyn Device>) -> Option<()> {
        for at in [2, 12, 33] {
            let tag = oracle.begin(at, 4, world.now);
            world.run(disk.write(at, tagged(tag, at, 4)))?.unwrap();
            oracle.acked(tag, world.now);
        }
        Some(())
    }
    let mut ended = 0;
    for cut in 0..2000 {
        if ended > 3 {
            break;
        }
        for (keeps, seed) in [(Keep::Nothing, 1), (Keep::All, 2), (Keep::Some, 3), (Keep::Some, 4 + cut)] {
            let mut world = world(seed, 2, SECTORS);
            let mut oracle = Oracle::default();
            world.left = cut;
            if script(&mut world, &mut oracle).is_some() {
                ended += 1;
            }
            world.cut(keeps);
            let context = format!("cut at {cut}, {keeps:?}, seed {seed}");
            let mirror =
                open(&mut world, Start::Careful).unwrap_or_else(|error| panic!("{context}: {error}"));
            let before = read_all(&mut world, &mirror, SECTORS);
            keep(&mut world, &mirror);
            if mirror.status().contains("1 out") {
                world.run(mirror.bring_back(1, false)).unwrap().unwrap();
            }
            settle(&mut world, &mirror);
            equal(&world, SECTORS);
            let after = read_all(&mut world, &mirror, SECTORS);
            assert_eq!(before, after, "{context}");
            for (at, tag) in after.iter().enumerate() {
                oracle.survives(at as u64, *tag).unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
            }
        }
    }
    assert!(ended > 3, "not all of it was cut through");
}

/// The result of an operation.
type Ending = std::pin::Pin<Box<dyn Future<Output = nine_block::Result<bytes::Bytes>>>>;

/// An operation in flight: a write or a read with its tag or sector, a flush, or a look; and when it was submitted.
enum Under {
    Write(u64),
    Flush,
    Look,
    Read(u64, u64),
}

/// Runs concurrent operations with members that fail and return, and cuts, repeatedly. Members may lose unflushed data;
/// then only flushed data is promised.
fn random_world(seed: u64, loses: bool) {
    let mut rng = Rng(seed ^ 0x5eed);
    let members = 2 + rng.below(2) as usize;
    let sectors = 24 + rng.below(60);
    let mut world = world(seed, members, sectors);
    let mut oracle = Oracle::default();
    let mut start_failures = 0;
    for _ in 0..4 {
        // Perhaps a member is missing.
        let missing = rng.one_in(4).then(|| rng.below(members as u64) as usize);
        if let Some(missing) = missing {
            world.disks[missing].always(Some(Kind::Down));
        }
        let mut opened = open(&mut world, Start::Careful);
        if opened.is_err() {
            start_failures += 1;
            world.disks.iter().for_each(|disk| disk.always(None));
            opened = open(&mut world, Start::Careful);
        }
        // Labels of an event that could not be made durable may call other members out. They look like those of a
        // member that has continued alone, which no member has done here.
        if opened.as_ref().is_err_and(|error| error.text.contains("gone on alone")) {
            opened = open_newest(&mut world);
        }
        let mirror = opened.unwrap_or_else(|error| panic!("seed {seed}: all are there, and {error}"));
        let seen = read_all(&mut world, &mirror, sectors);
        for (at, tag) in seen.iter().enumerate() {
            oracle.survives(at as u64, *tag).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        }
        keep(&mut world, &mirror);
        world.left = 50 + rng.below(600);
        run_load(&mut world, &mut rng, &mut oracle, &mirror, seed, loses);
        let keeps = [Keep::Nothing, Keep::All, Keep::Some][rng.below(3) as usize];
        drop(mirror);
        world.cut(keeps);
        oracle.restart(world.now);
    }
    let mut opened = open(&mut world, Start::Careful);
    if opened.as_ref().is_err_and(|error| error.text.contains("gone on alone")) {
        opened = open_newest(&mut world);
    }
    let mirror = opened.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    keep(&mut world, &mirror);
    for member in 0..members {
        drop(world.run(mirror.bring_back(member, false)));
    }
    settle(&mut world, &mirror);
    equal(&world, sectors);
    for (at, tag) in read_all(&mut world, &mirror, sectors).into_iter().enumerate() {
        oracle
            .survives(at as u64, tag)
            .unwrap_or_else(|wrong| panic!("seed {seed}, {start_failures}: {wrong}"));
    }
}

fn run_load(world: &mut World, rng: &mut Rng, oracle: &mut Oracle, mirror: &Mirror, seed: u64, loses: bool) {
    let disk = device(mirror);
    let sectors = disk.shape().sectors;
    let members = world.disks.len() as u64;
    let mut under: Vec<(Under, u64, Ending)> = Vec::new();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if under.len() < 5 && rng.one_in(3) {
            let at = rng.below(sectors);
            let count = 1 + rng.below((sectors - at).min(12));
            let (what, call) = match rng.below(8) {
                0..4 => {
                    let tag = oracle.begin(at, count, world.now);
                    (Under::Write(tag), disk.write(at, tagged(tag, at, count)))
                }
                4 => (Under::Flush, disk.flush()),
                5 => (Under::Look, disk.look()),
                _ => (Under::Read(at, count), disk.read(at, count)),
            };
            under.push((what, world.now, Box::pin(call)));
        }
        match rng.below(150) {
            0 => {
                let op = [Op::Read, Op::Write, Op::Flush][rng.below(3) as usize];
                let kinds =
                    [Kind::Failed, Kind::Failed, Kind::Down, Kind::Poisoned, Kind::Busy, Kind::Reserved];
                let kind = kinds[rng.below(6) as usize];
                world.disks[rng.below(members) as usize].fail(op, kind);
            }
            1 if rng.one_in(3) => world.disks[rng.below(members) as usize].always(Some(Kind::Down)),
            2 | 3 => world.disks.iter().for_each(|disk| disk.always(None)),
            4..7 => drop(mirror.control(&["return", &rng.below(members).to_string()])),
            7 if rng.one_in(4) => drop(mirror.control(&["scrub", "heal"])),
            8 if rng.one_in(4) => drop(mirror.control(&["resync", "full"])),
            9 if rng.one_in(4) => {
                drop(mirror.control(&["resync", "full", &rng.below(members).to_string()]));
            }
            11 | 12 if loses => world.disks[rng.below(members) as usize].lose(),
            10 if rng.one_in(4) => drop(mirror.control(&["stop"])),
            _ => {}
        }
        if !world.turn() {
            return;
        }
        let mut at = 0;
        while at < under.len() {
            let std::task::Poll::Ready(result) = under[at].2.as_mut().poll(&mut cx) else {
                at += 1;
                continue;
            };
            let (what, submitted, _) = under.swap_remove(at);
            match (what, result) {
                (Under::Write(tag), Ok(_)) => oracle.acked(tag, world.now),
                (Under::Read(at, count), Ok(data)) if !loses => {
                    for (at, bytes) in (at..at + count).zip(data.chunks(512)) {
                        let wrong = |wrong| panic!("seed {seed}, step {}: {wrong}", world.now);
                        oracle.read(at, tag(bytes, at), submitted).unwrap_or_else(wrong);
                    }
                }
                (Under::Flush, Ok(_)) => oracle.flushed(submitted),
                _ => {}
            }
        }
    }
}

/// Opens the mirror with the member with the newest label by which it is in.
fn open_newest(world: &mut World) -> nine_block::Result<Mirror> {
    let label = |number: usize| {
        let labels = [0, 8].map(|at| world.disks[number].peek(at));
        let labels = labels.into_iter().filter(|label| label.starts_with(b"9mirror"));
        let event = |label: &[u8]| u64::from_le_bytes(label[24..32].try_into().unwrap());
        let newest = labels.max_by_key(|label| event(label))?;
        (newest[56 + 16 * number] == 0).then(|| event(&newest))
    };
    let number = (0..world.disks.len()).max_by_key(|number| label(*number)).unwrap();
    open(world, Start::From(number))
}

fn seeds(of: u64) -> std::ops::Range<u64> {
    let seeds = std::env::var("NINE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(of);
    let first = std::env::var("NINE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    first..first + seeds
}

#[test]
fn random_worlds_lose_nothing() {
    seeds(150).for_each(|seed| random_world(seed, false));
}

#[test]
fn random_worlds_of_disks_that_lose_what_they_do_not_flush() {
    seeds(100).for_each(|seed| random_world(seed, true));
}
