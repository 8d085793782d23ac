//! Mirrors with several failures at once, partial failures, or failures during other work.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_block::{
    Bare, Concat, Device, Guard, Io, Kind, Mirror, Op, Pause, Proof, Ram, Result, Right, Shape, Start,
};

use crate::common::*;

const SET: [u8; 16] = *b"the set of tests";
const SECTORS: u64 = 32;
/// Sectors of a member before the mirrored ones.
const HEAD: u64 = 128;

/// A disk with sectors that are unreadable until they are written.
struct Bad {
    of: Arc<Disk>,
    sectors: Mutex<BTreeSet<u64>>,
}

impl Bad {
    fn new(of: &Arc<Disk>, sectors: &[u64]) -> Arc<Self> {
        Arc::new(Self { of: of.clone(), sectors: Mutex::new(sectors.iter().copied().collect()) })
    }
}

impl Device for Bad {
    fn shape(&self) -> Shape {
        self.of.shape()
    }

    fn submit(&self, io: Io) {
        let mut sectors = self.sectors.lock().unwrap();
        if io.op == Op::Read && sectors.range(io.at..io.end_at()).next().is_some() {
            return io.fail(Kind::Failed, "a sector is bad");
        }
        if io.op == Op::Write {
            sectors.retain(|at| !(io.at..io.end_at()).contains(at));
        }
        self.of.submit(io);
    }

    fn name(&self) -> String {
        self.of.name()
    }
}

fn world(members: usize, sectors: u64) -> World {
    let disks = (0..members).map(|at| Disk::new(&format!("w{at}"), HEAD + sectors)).collect();
    let mut world = World::new(members as u64, disks);
    world.reorder = false;
    let devices = world.devices();
    world.run(Mirror::make_with(&devices, SET, 8)).unwrap().unwrap();
    world
}

/// Creates a mirror of equal members without marks.
fn mirror(members: usize) -> (World, Mirror, Arc<dyn Device>) {
    let mut world = world(members, SECTORS);
    let mirror = open(&mut world, Start::Careful).unwrap();
    keep(&mut world, &mirror);
    idle(&mut world);
    (world, mirror.clone(), Arc::new(mirror))
}

fn open(world: &mut World, start: Start) -> Result<Mirror> {
    let devices = world.devices();
    open_with(world, devices, start)
}

fn open_with(world: &mut World, devices: Vec<Arc<dyn Device>>, start: Start) -> Result<Mirror> {
    let told = world.told();
    world.run(Mirror::open(devices, start, told)).unwrap()
}

fn device(mirror: &Mirror) -> Arc<dyn Device> {
    Arc::new(mirror.clone())
}

fn keep(world: &mut World, mirror: &Mirror) {
    world.beside.push(Box::pin(mirror.clone().keep(rest())));
}

/// Runs long enough for all copies.
fn idle(world: &mut World) {
    (0..1000).for_each(|_| assert!(world.turn()));
}

fn until(world: &mut World, mut done: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if done() {
            return;
        }
        assert!(world.turn());
    }
    panic!("it does not come to that");
}

fn write(world: &mut World, disk: &Arc<dyn Device>, tag: u64, at: u64, count: u64) -> Result<()> {
    world.run(disk.write(at, tagged(tag, at, count))).unwrap().map(drop)
}

fn read(world: &mut World, disk: &Arc<dyn Device>, at: u64) -> Result<u64> {
    world.run(disk.read(at, 1)).unwrap().map(|data| tag(&data, at))
}

fn flush(world: &mut World, disk: &Arc<dyn Device>) -> std::result::Result<(), Kind> {
    world.run(disk.flush()).unwrap().map(drop).map_err(|error| error.kind)
}

fn on(world: &World, member: usize, at: u64) -> u64 {
    tag(&world.disks[member].peek(HEAD + at), at)
}

/// Silently replaces sectors of a member with those of another write.
fn back(world: &mut World, member: usize, tag: u64, at: u64, count: u64) {
    let disk = &world.disks[member];
    disk.submit(Io::write(HEAD + at, tagged(tag, at, count), |result| drop(result.unwrap())));
    disk.step(disk.waiting() - 1, &mut world.rng);
}

fn told(world: &World) -> Vec<String> {
    std::mem::take(&mut *world.told.lock().unwrap())
}

fn ready<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

#[test]
fn bad_sectors_of_two_members_are_healed_each_by_the_others() {
    let (mut world, mirror, disk) = mirror(3);
    write(&mut world, &disk, 1, 0, 32).unwrap();
    world.disks[0].lie(HEAD + 3, 9);
    world.disks[1].lie(HEAD + 20, 8);
    world.disks[1].lie(HEAD + 21, 8);
    told(&world);
    mirror.control(&["scrub", "heal"]).unwrap();
    idle(&mut world);
    assert!((0..3).all(|member| (0..32).all(|at| on(&world, member, at) == 1)));
    assert_eq!(
        told(&world),
        [
            "w0: sectors 3+1 differ, and are healed",
            "w1: sectors 20+2 differ, and are healed",
            "{w0w1w2} is compared: 3 sectors differ"
        ]
    );
}

/// Returns the proof that all sectors are of this write.
fn proof(number: u64, at: u64) -> Option<Proof> {
    Some(Proof::new(1, move |n, sector| *sector == tagged(number, at + n, 1)))
}

#[test]
fn whoever_knows_what_is_right_gets_it_from_the_member_that_has_it_and_the_others_are_healed() {
    let (mut world, _, disk) = mirror(2);
    let devices: Vec<Arc<dyn Device>> = vec![disk, Arc::new(Ram::new(8))];
    let disk: Arc<dyn Device> = Arc::new(Concat::new(devices).unwrap());
    write(&mut world, &disk, 1, 0, 40).unwrap();
    idle(&mut world);
    back(&mut world, 0, 9, 3, 1);
    back(&mut world, 1, 8, 20, 1);
    told(&world);
    // Neither member has all of these, so the data is returned as from a single disk, and the reader verifies it.
    let (all, known) = (world.run(disk.read_proven(0, 32, proof(1, 0))).unwrap(), proof(1, 0).unwrap());
    assert!(!known.holds(&all.unwrap()));
    assert!(told(&world).is_empty());
    for at in [0, 16] {
        assert!(world.run(disk.read_proven(at, 16, proof(1, at))).unwrap().is_ok());
        idle(&mut world);
    }
    assert_eq!(told(&world), ["w0: sectors 0+16 were written again"]);
    assert_eq!(world.run(disk.read_proven(0, 40, proof(1, 0))).unwrap().unwrap(), tagged(1, 0, 40));
    // The second member is read only after the first was found wrong.
    back(&mut world, 0, 9, 21, 1);
    assert!(world.run(disk.read_proven(0, 20, proof(1, 0))).unwrap().is_ok());
    let rest = world.run(disk.read_proven(20, 12, proof(1, 20))).unwrap().unwrap();
    assert!(!proof(1, 20).unwrap().holds(&rest));
    assert_eq!((on(&world, 1, 20), on(&world, 0, 21), on(&world, 1, 21)), (8, 9, 1));
}

#[test]
fn what_is_written_meanwhile_is_not_healed_away() {
    let (mut world, _, disk) = mirror(2);
    write(&mut world, &disk, 1, 0, 8).unwrap();
    let old = world.run(disk.read_proven(0, 8, proof(2, 0))).unwrap();
    assert_eq!(old.unwrap(), tagged(1, 0, 8), "no member proves, and nothing is healed");
    idle(&mut world);
    assert!((0..2).all(|member| on(&world, member, 0) == 1));
    // The sectors were written after the proof was made; on the first member only while they are read.
    back(&mut world, 0, 2, 0, 8);
    let reading = disk.read_proven(0, 8, proof(1, 0));
    let written = disk.write(0, tagged(3, 0, 8));
    drop(world.run(reading).unwrap());
    world.run(written).unwrap().unwrap();
    idle(&mut world);
    assert!((0..2).all(|member| (0..8).all(|at| on(&world, member, at) == 3)));
}

#[test]
fn a_worm_in_a_mirror_that_cannot_be_healed_stays_in() {
    let mut world = world(2, SECTORS);
    let worms: Vec<Arc<Once>> =
        world.devices().into_iter().map(|disk| Arc::new(Once(disk, AtomicBool::new(false)))).collect();
    let devices: Vec<Arc<dyn Device>> = vec![worms[0].clone(), worms[1].clone()];
    let mirror = open_with(&mut world, devices, Start::Careful).unwrap();
    let disk = device(&mirror);
    keep(&mut world, &mirror);
    write(&mut world, &disk, 1, 0, 8).unwrap();
    idle(&mut world);
    worms.iter().for_each(|worm| worm.1.store(true, Relaxed));
    back(&mut world, 0, 9, 3, 1);
    told(&world);
    assert!(world.run(disk.read_proven(0, 8, proof(1, 0))).unwrap().is_ok());
    idle(&mut world);
    let said = told(&world);
    assert!(said.len() == 1 && said[0].contains("lacks what cannot be read"), "{said:?}");
    assert!(mirror.status().contains("0 in"), "{}", mirror.status());
}

/// A device that refuses to rewrite mirrored sectors, once this is set.
struct Once(Arc<dyn Device>, AtomicBool);

impl Device for Once {
    fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn submit(&self, io: Io) {
        if io.op == Op::Write && io.at >= HEAD && self.1.load(Relaxed) {
            return io.fail(Kind::ReadOnly, "it is written already");
        }
        self.0.submit(io);
    }

    fn name(&self) -> String {
        self.0.name()
    }
}

#[test]
fn what_two_do_not_agree_on_is_healed_only_if_the_first_shall_be_right() {
    let (mut world, mirror, disk) = mirror(2);
    write(&mut world, &disk, 1, 0, 32).unwrap();
    world.disks[0].lie(HEAD + 3, 0);
    told(&world);
    mirror.control(&["scrub", "heal"]).unwrap();
    idle(&mut world);
    assert_eq!((on(&world, 0, 3), on(&world, 1, 3)), (0, 1));
    assert_eq!(told(&world), ["w1: sectors 3+1 differ", "{w0w1} is compared: 1 sectors differ"]);
    mirror.control(&["scrub", "heal", "first"]).unwrap();
    idle(&mut world);
    assert_eq!((on(&world, 0, 3), on(&world, 1, 3)), (0, 0));
}

#[test]
fn a_scrub_writes_again_what_cannot_be_read_and_only_that() {
    let mut world = world(2, SECTORS);
    let bad = Bad::new(&world.disks[1], &[]);
    let devices: Vec<Arc<dyn Device>> = vec![world.disks[0].clone(), bad.clone()];
    let mirror = open_with(&mut world, devices, Start::Careful).unwrap();
    let disk = device(&mirror);
    keep(&mut world, &mirror);
    write(&mut world, &disk, 1, 0, 32).unwrap();
    idle(&mut world);
    bad.sectors.lock().unwrap().extend([HEAD + 5, HEAD + 6]);
    back(&mut world, 1, 2, 9, 1);
    told(&world);
    mirror.control(&["scrub"]).unwrap();
    idle(&mut world);
    let all = [
        "w1: sectors 5+2 were written again",
        "w1: sectors 9+1 differ",
        "{w0w1} is compared: 3 sectors differ",
    ];
    assert_eq!(told(&world), all);
    assert_eq!((on(&world, 1, 5), on(&world, 1, 9)), (1, 2));
}

/// No remaining member has done its flush, so the data is lost until it is written again.
#[test]
fn a_flush_that_all_failed_is_not_forgotten() {
    let (mut world, mirror, disk) = mirror(2);
    write(&mut world, &disk, 1, 0, 8).unwrap();
    assert_eq!(flush(&mut world, &disk), Ok(()));
    world.beside.clear();
    write(&mut world, &disk, 2, 0, 8).unwrap();
    world.disks[0].fail(Op::Flush, Kind::Down);
    world.disks[1].fail(Op::Flush, Kind::Poisoned);
    assert_eq!(flush(&mut world, &disk), Err(Kind::Poisoned));
    back(&mut world, 1, 1, 0, 8);
    for _ in 0..3 {
        assert_eq!(flush(&mut world, &disk), Err(Kind::Poisoned));
    }
    assert!(mirror.status().contains("what was written before is not written again"), "{}", mirror.status());
    write(&mut world, &disk, 3, 0, 5).unwrap();
    assert_eq!(flush(&mut world, &disk), Err(Kind::Poisoned));
    keep(&mut world, &mirror);
    idle(&mut world);
    assert_eq!((on(&world, 0, 6), on(&world, 1, 6)), (2, 2), "members are equal in any case");
    write(&mut world, &disk, 3, 5, 3).unwrap();
    assert_eq!(flush(&mut world, &disk), Ok(()));
    assert!(told(&world).iter().any(|text| text.starts_with("w1 could not flush, nor could others")));
}

#[test]
fn a_flush_that_one_failed_while_another_was_reserved_is_not_forgotten() {
    let (mut world, mirror, disk) = mirror(2);
    write(&mut world, &disk, 1, 0, 8).unwrap();
    assert_eq!(flush(&mut world, &disk), Ok(()));
    world.beside.clear();
    write(&mut world, &disk, 2, 0, 8).unwrap();
    world.disks[0].fail(Op::Flush, Kind::Poisoned);
    world.disks[1].fail(Op::Flush, Kind::Reserved);
    // And the label write too.
    world.disks[1].fail(Op::Write, Kind::Reserved);
    assert_eq!(flush(&mut world, &disk), Err(Kind::Reserved));
    back(&mut world, 0, 1, 0, 8);
    assert_eq!(flush(&mut world, &disk), Ok(()));
    assert!(mirror.status().contains("0 out: Poisoned"), "{}", mirror.status());
    assert_eq!(read(&mut world, &disk, 3), Ok(2));
    keep(&mut world, &mirror);
    world.run(mirror.bring_back(0, false)).unwrap().unwrap();
    idle(&mut world);
    assert!((0..8).all(|at| on(&world, 0, at) == 2));
}

/// When the first member fails, one of the two others lacks the data of a write that failed everywhere, and the other
/// has it.
#[test]
fn members_are_equal_after_the_first_has_gone() {
    let (mut world, mirror, disk) = mirror(3);
    write(&mut world, &disk, 1, 0, 32).unwrap();
    idle(&mut world);
    world.run(mirror.set_aside(2)).unwrap().unwrap();
    write(&mut world, &disk, 1, 24, 8).unwrap();
    world.run(mirror.bring_back(2, true)).unwrap().unwrap();
    until(&mut world, || mirror.status().contains("returning, 3"));
    world.disks[0].fail(Op::Write, Kind::Reserved);
    write(&mut world, &disk, 2, 24, 8).unwrap_err();
    until(&mut world, || mirror.status().contains("2 returning, 0") || mirror.status().contains("2 in;"));
    world.run(mirror.set_aside(0)).unwrap().unwrap();
    idle(&mut world);
    assert!(mirror.status().contains("2 in;"), "{}", mirror.status());
    assert!((0..32).all(|at| on(&world, 1, at) == on(&world, 2, at)));
}

#[test]
fn it_does_not_grow_beyond_a_member_that_is_out() {
    let (mut world, mirror, disk) = mirror(2);
    world.disks[0].resize(HEAD + 64);
    world.run(mirror.set_aside(1)).unwrap().unwrap();
    for sectors in [HEAD + SECTORS, 10] {
        world.disks[1].resize(sectors);
        world.run(disk.look()).unwrap().unwrap();
        assert_eq!(disk.shape().sectors, SECTORS);
    }
    world.disks[1].resize(HEAD + 40);
    world.run(disk.look()).unwrap().unwrap();
    assert_eq!(disk.shape().sectors, 40, "it is known to be large enough");
    world.run(mirror.bring_back(1, false)).unwrap().unwrap();
    idle(&mut world);
    assert!(mirror.status().contains("1 in;"), "{}", mirror.status());
}

#[test]
fn a_new_member_that_was_of_another_mirror_leaves_nothing_of_it() {
    for turns in 0..2 {
        let mut other = world(2, SECTORS);
        let mirror = open(&mut other, Start::Careful).unwrap();
        keep(&mut other, &mirror);
        for _ in 0..5 + turns {
            other.run(mirror.set_aside(0)).unwrap().unwrap();
            idle(&mut other);
            other.run(mirror.bring_back(0, true)).unwrap().unwrap();
            idle(&mut other);
        }
        other.cut(Keep::All);
        let mut world = World::new(7, vec![Disk::new("v0", HEAD + SECTORS), Disk::new("v1", HEAD + SECTORS)]);
        let devices = world.devices();
        world.run(Mirror::make_with(&devices, *b"another set here", 8)).unwrap().unwrap();
        world.cut(Keep::All);
        world.disks[1] = other.disks.remove(1);
        world.disks[1].always(Some(Kind::Down));
        let mirror = open(&mut world, Start::Anyway).unwrap();
        world.disks[1].always(None);
        write(&mut world, &device(&mirror), 1, 0, 8).unwrap();
        world.run(mirror.bring_back(1, true)).unwrap().unwrap();
        // In the middle of the copies.
        world.cut(Keep::Nothing);
        let mirror = open(&mut world, Start::Careful).unwrap();
        keep(&mut world, &mirror);
        idle(&mut world);
        assert!(mirror.status().contains("1 in;"), "{}", mirror.status());
        assert_eq!(on(&world, 1, 3), 1);
    }
}

#[test]
fn the_member_that_is_named_as_right_is_right() {
    let (mut world, _, disk) = mirror(2);
    write(&mut world, &disk, 1, 0, 8).unwrap();
    world.cut(Keep::All);
    back(&mut world, 0, 0, 0, 8);
    let mirror = open(&mut world, Start::From(1)).unwrap();
    let disk = device(&mirror);
    assert_eq!(read(&mut world, &disk, 3), Ok(1));
    keep(&mut world, &mirror);
    idle(&mut world);
    assert_eq!((on(&world, 0, 3), on(&world, 1, 3)), (0, 1), "it is told to return, or keeps what it has");
    world.run(mirror.bring_back(0, false)).unwrap().unwrap();
    idle(&mut world);
    assert!((0..8).all(|at| on(&world, 0, at) == 1), "it gets everything, and not only what is marked");
}

#[test]
fn a_full_resync_takes_no_member_out() {
    const SECTORS: u64 = 2048;
    let mut world = world(3, SECTORS);
    let mirror = open(&mut world, Start::Careful).unwrap();
    let disk = device(&mirror);
    keep(&mut world, &mirror);
    until(&mut world, || !mirror.status().contains("make equal"));
    write(&mut world, &disk, 1, 0, 1024).unwrap();
    write(&mut world, &disk, 1, 1024, 1024).unwrap();
    idle(&mut world);
    world.disks[1].lie(HEAD + 1500, 7);
    world.disks[2].lie(HEAD + 20, 7);
    told(&world);
    mirror.control(&["resync", "full"]).unwrap();
    let text = mirror.control(&["scrub"]).unwrap_err().to_string();
    assert_eq!(text, "{w0w1w2}: a full resync runs; `stop` stops it");
    assert!(mirror.control(&["resync", "full", "1"]).is_err());
    until(&mut world, || {
        let status = mirror.status();
        assert!(!status.contains("out") && !status.contains("returning"), "{status}");
        let busy = status.lines().filter(|line| line.contains("to make equal"));
        for line in busy.clone() {
            let left = line.split_once("in, ").and_then(|(_, rest)| rest.split(' ').next());
            assert!(left.and_then(|left| left.parse().ok()).is_some_and(|left: u64| left <= 64), "{line}");
        }
        assert!(busy.count() <= 1, "one at a time: {status}");
        !status.contains("resync")
    });
    let said = told(&world);
    let all: Vec<&str> = said.iter().map(|line| line.split(" from those").next().unwrap_or(line)).collect();
    let differed = ["w1: 1 sectors differed", "w2: 1 sectors differed"];
    assert_eq!(all, [differed[0], "w1 has got everything", differed[1], "w2 has got everything"]);
    for at in 0..SECTORS {
        assert!((1..3).all(|member| on(&world, member, at) == 1));
    }
    // If the first is named, it leaves for a moment; the only member cannot.
    mirror.control(&["resync", "full", "0"]).unwrap();
    until(&mut world, || mirror.status().contains("0 returning"));
    until(&mut world, || mirror.status().contains("0 in;"));
    world.run(mirror.set_aside(1)).unwrap().unwrap();
    world.run(mirror.set_aside(2)).unwrap().unwrap();
    told(&world);
    mirror.control(&["resync", "full", "0"]).unwrap();
    idle(&mut world);
    assert_eq!(told(&world), ["w0 is not set aside: as it was told to"]);
}

/// Sectors that are unreadable on the first member are still right on the others.
#[test]
fn a_full_resync_loses_nothing_that_only_the_others_have() {
    let mut world = world(2, SECTORS);
    let bad = Bad::new(&world.disks[0], &[]);
    let devices: Vec<Arc<dyn Device>> = vec![bad.clone(), world.disks[1].clone()];
    let mirror = open_with(&mut world, devices, Start::Careful).unwrap();
    let disk = device(&mirror);
    keep(&mut world, &mirror);
    write(&mut world, &disk, 1, 0, 32).unwrap();
    idle(&mut world);
    bad.sectors.lock().unwrap().insert(HEAD + 10);
    world.disks[1].lie(HEAD + 20, 7);
    mirror.control(&["resync", "full"]).unwrap();
    until(&mut world, || mirror.status().contains("1 in, "));
    assert_eq!(read(&mut world, &disk, 10), Ok(1));
    until(&mut world, || !mirror.status().contains("resync"));
    assert!((0..32).all(|at| (on(&world, 0, at), on(&world, 1, at)) == (1, 1)));
    assert!(mirror.status().contains("1 in;"), "{}", mirror.status());
}

#[test]
fn labels_do_not_share_a_physical_sector_and_one_may_be_unreadable() {
    for (bad, member) in [0, 8, 64, 65].into_iter().flat_map(|bad| [(bad, 0), (bad, 1)]) {
        let (mut world, mirror, disk) = mirror(2);
        assert!(
            world.disks[0].peek(0).starts_with(b"9mirror") || world.disks[0].peek(8).starts_with(b"9mirror")
        );
        assert_eq!(world.disks[0].peek(1), [0; 512]);
        write(&mut world, &disk, 1, 0, 8).unwrap();
        // Each label has another event.
        world.run(mirror.set_aside(1 - member)).unwrap().unwrap();
        write(&mut world, &disk, 2, 4, 1).unwrap();
        flush(&mut world, &disk).unwrap();
        drop((mirror, disk));
        world.cut(Keep::Nothing);
        let mut devices = world.devices();
        devices[member] = Bad::new(&world.disks[member], &[bad]);
        let mirror = open_with(&mut world, devices, Start::Careful).unwrap();
        let disk = device(&mirror);
        assert_eq!(read(&mut world, &disk, 4), Ok(2), "{bad} of {member}");
        keep(&mut world, &mirror);
        drop(world.run(mirror.bring_back(1 - member, false)).unwrap());
        idle(&mut world);
        assert!(
            (0..2).all(|member| mirror.status().contains(&format!("{member} in;"))),
            "{}",
            mirror.status()
        );
        assert_eq!((on(&world, 0, 4), on(&world, 1, 4)), (2, 2));
        world.cut(Keep::Nothing);
        open(&mut world, Start::Careful).unwrap();
    }
}

/// The source has a bad sector: everything else is copied, and the missing sector is known.
#[test]
fn a_member_returns_beside_a_bad_sector_of_the_source() {
    for end in 0..3 {
        let mut world = world(2, SECTORS);
        let bad = Bad::new(&world.disks[0], &[]);
        let devices: Vec<Arc<dyn Device>> = vec![bad.clone(), world.disks[1].clone()];
        let mirror = open_with(&mut world, devices, Start::Careful).unwrap();
        let disk = device(&mirror);
        keep(&mut world, &mirror);
        write(&mut world, &disk, 1, 0, 32).unwrap();
        idle(&mut world);
        world.run(mirror.set_aside(1)).unwrap().unwrap();
        write(&mut world, &disk, 2, 0, 32).unwrap();
        bad.sectors.lock().unwrap().insert(HEAD + 10);
        told(&world);
        world.run(mirror.bring_back(1, false)).unwrap().unwrap();
        idle(&mut world);
        let all = [
            "w1 gets what it missed",
            "w1 lacks what cannot be read: a sector is bad",
            "w1 has everything but 1 sectors that cannot be read: it is in when they are written, or no other is",
        ];
        assert_eq!(told(&world), all);
        assert!((0..32).all(|at| on(&world, 1, at) == if at == 10 { 1 } else { 2 }));
        assert!(mirror.status().contains("left, lacks 1 sectors"), "{}", mirror.status());
        // No reader gets old data.
        assert!(read(&mut world, &disk, 10).is_err());
        assert_eq!(read(&mut world, &disk, 11), Ok(2));
        match end {
            0 => {
                write(&mut world, &disk, 3, 10, 1).unwrap();
                idle(&mut world);
                assert!(mirror.status().contains("1 in;"), "{}", mirror.status());
            }
            1 => {
                world.disks[0].always(Some(Kind::Down));
                write(&mut world, &disk, 3, 30, 1).unwrap();
                assert_eq!((read(&mut world, &disk, 30), read(&mut world, &disk, 11)), (Ok(3), Ok(2)));
                assert!(told(&world).iter().any(|text| text.contains("1 sectors that no other could read")));
                world.disks[0].always(None);
                world.run(mirror.bring_back(0, false)).unwrap().unwrap();
                idle(&mut world);
                assert!((0..32).all(|at| on(&world, 0, at) == on(&world, 1, at)));
            }
            _ => {
                drop((mirror, disk));
                flush_all(&mut world);
                world.cut(Keep::Nothing);
                let devices: Vec<Arc<dyn Device>> =
                    vec![Bad::new(&world.disks[0], &[HEAD + 10]), world.disks[1].clone()];
                let mirror = open_with(&mut world, devices, Start::Careful).unwrap();
                keep(&mut world, &mirror);
                idle(&mut world);
                assert!(
                    mirror.status().contains("1 returning, 0 regions of 4 left, lacks 1"),
                    "{}",
                    mirror.status()
                );
                let disk = device(&mirror);
                assert!(read(&mut world, &disk, 10).is_err(), "nor after a start");
            }
        }
    }
}

fn flush_all(world: &mut World) {
    for disk in world.devices() {
        world.run(disk.flush()).unwrap().unwrap();
    }
}

#[test]
fn writes_do_not_wait_for_a_member_that_is_asked() {
    let (mut world, mirror, disk) = mirror(2);
    world.run(mirror.set_aside(1)).unwrap().unwrap();
    idle(&mut world);
    let slow = world.disks.pop().unwrap();
    let mut returns = Box::pin(mirror.bring_back(1, false));
    // It is asked for its size, its labels and its marks.
    for step in 0..4 {
        assert!(ready(&mut returns).is_none());
        assert_eq!(slow.waiting(), 1, "step {step}");
        write(&mut world, &disk, step + 1, 0, 8).unwrap();
        slow.step(0, &mut world.rng);
    }
    world.disks.push(slow);
    world.run(returns).unwrap().unwrap();
    idle(&mut world);
    assert_eq!(on(&world, 1, 0), 4, "what was written meanwhile is marked");
}

#[test]
fn who_looks_shares_it_and_holds_up_nobody() {
    let (mut world, _mirror, disk) = mirror(2);
    world.beside.clear();
    let slow = world.disks.pop().unwrap();
    let mut first = Box::pin(disk.look());
    let mut more: Vec<_> = (0..3).map(|_| Box::pin(disk.look())).collect();
    (0..10).for_each(|_| assert!(world.turn()));
    assert_eq!(slow.waiting(), 1, "one is asked, and that has not answered");
    let mut call = Box::pin(disk.write(0, tagged(1, 0, 1)));
    for _ in 0..20 {
        assert!(world.turn());
        while slow.waiting() > 1 {
            slow.step(1, &mut world.rng);
        }
    }
    ready(&mut call).expect("it does not wait for the look").unwrap();
    slow.step(0, &mut world.rng);
    ready(&mut first).expect("all have looked").unwrap();
    assert!(more.iter_mut().all(|look| ready(look).is_none()), "they came later");
    assert_eq!(slow.waiting(), 1);
    slow.step(0, &mut world.rng);
    (0..10).for_each(|_| assert!(world.turn()));
    assert!(more.iter_mut().all(|look| ready(look).is_some()));
}

#[test]
fn a_scrub_holds_up_neither_copies_nor_marks() {
    let mut world = world(2, 1 << 17);
    let mirror = open(&mut world, Start::Careful).unwrap();
    let disk = device(&mirror);
    keep(&mut world, &mirror);
    until(&mut world, || !mirror.status().contains("make equal"));
    mirror.control(&["scrub"]).unwrap();
    // Later regions, then earlier ones.
    for (tag, at) in [(1, 100_000), (2, 8)] {
        world.disks[1].fail(Op::Write, Kind::Failed);
        write(&mut world, &disk, tag, at, 1).unwrap();
        world.run(mirror.bring_back(1, false)).unwrap().unwrap();
        until(&mut world, || mirror.status().contains("1 in"));
        assert!(mirror.status().contains("scrub at"), "{}", mirror.status());
        assert_eq!(on(&world, 1, at), tag);
    }
    let marks =
        |world: &World| (64..128).any(|at| world.disks[0].peek(at)[..504].iter().any(|byte| *byte != 0));
    assert!(marks(&world));
    until(&mut world, || !mirror.status().contains("scrub at"));
    assert!(!marks(&world), "a scrub of {} pieces clears them", (1 << 17) / 1024);
}

#[test]
fn a_member_that_was_missing_at_a_start_may_return() {
    let (mut world, _, disk) = mirror(2);
    write(&mut world, &disk, 1, 0, 8).unwrap();
    flush(&mut world, &disk).unwrap();
    drop(disk);
    world.cut(Keep::All);
    world.disks[0].always(Some(Kind::Down));
    let mirror = open(&mut world, Start::Anyway).unwrap();
    world.disks[0].always(None);
    world.run(mirror.bring_back(0, false)).unwrap().unwrap();
}

#[test]
fn that_a_member_is_reserved_ends_a_scrub_and_nothing_is_written() {
    let (mut world, mirror, disk) = mirror(2);
    write(&mut world, &disk, 1, 0, 32).unwrap();
    idle(&mut world);
    back(&mut world, 1, 2, 3, 1);
    told(&world);
    world.disks[1].fail(Op::Read, Kind::Reserved);
    mirror.control(&["scrub", "heal", "first"]).unwrap();
    idle(&mut world);
    assert_eq!(on(&world, 1, 3), 2);
    assert_eq!(told(&world), ["{w0w1} is not gone on with: Reserved as the test says"]);
    // A copy does not use the next member for this error, and no member is set aside.
    world.run(mirror.set_aside(1)).unwrap().unwrap();
    write(&mut world, &disk, 3, 3, 1).unwrap();
    world.run(mirror.bring_back(1, false)).unwrap().unwrap();
    told(&world);
    world.disks[0].fail(Op::Read, Kind::Reserved);
    idle(&mut world);
    assert_eq!(
        told(&world),
        ["w1 lacks what cannot be read: Reserved as the test says", "w1 is in"],
        "it is tried again"
    );
    assert_eq!(on(&world, 1, 3), 3);
}

#[test]
fn a_member_that_is_busy_is_not_set_aside() {
    let (mut world, mirror, disk) = mirror(2);
    for (op, member) in [(Op::Write, 0), (Op::Write, 1), (Op::Flush, 1)] {
        world.disks[member].fail(op, Kind::Busy);
        let result = match op {
            Op::Write => write(&mut world, &disk, 1, 0, 8).map_err(|error| error.kind),
            _ => flush(&mut world, &disk),
        };
        assert_eq!(result, Err(Kind::Busy));
        idle(&mut world);
    }
    world.disks[0].fail(Op::Read, Kind::Busy);
    read(&mut world, &disk, 0).unwrap();
    idle(&mut world);
    assert!(!mirror.status().contains("out"), "{}", mirror.status());
}

#[test]
fn a_bare_mirror_says_that_a_member_is_reserved() {
    let disks = vec![Disk::new("w0", 8), Disk::new("w1", 8)];
    let mut world = World::new(1, disks.clone());
    let bare: Arc<dyn Device> = Arc::new(Bare::new(world.devices()));
    disks[0].fail(Op::Read, Kind::Reserved);
    assert_eq!(world.run(bare.read(0, 1)).unwrap().unwrap_err().kind, Kind::Reserved);
}

#[test]
fn disks_may_be_large_and_not_too_large() {
    let mut world = World::new(1, Vec::new());
    let mut make = |sectors: u64| {
        let disks: Vec<Arc<dyn Device>> = (0..2).map(|_| Arc::new(Ram::new(sectors)) as _).collect();
        world.run(Mirror::make(&disks, SET)).unwrap()?;
        world.run(Mirror::open(disks, Start::Careful, Arc::new(|_| ()))).unwrap()
    };
    let most = (1 << 31) * 258_048;
    for sectors in [(1 << 48) - 1, HEAD + most] {
        let mirror = make(sectors).unwrap();
        assert_eq!(mirror.shape().sectors, sectors - HEAD);
    }
    assert_eq!(make(HEAD + most + 1).map(drop).unwrap_err().kind, Kind::Unsupported);
}

#[test]
fn words_stop_and_slow_down_what_runs_and_status_counts() {
    let (mut world, mirror, disk) = mirror(2);
    world.beside.clear();
    assert!(mirror.control(&["stop"]).unwrap_err().text.contains("nothing runs"));
    mirror.control(&["scrub"]).unwrap();
    let text = mirror.control(&["scrub", "heal"]).unwrap_err().to_string();
    assert_eq!(text, "{w0w1}: a scrub runs; `stop` stops it");
    assert!(mirror.control(&["resync", "full"]).unwrap_err().text.contains("a scrub runs"));
    mirror.control(&["stop"]).unwrap();
    assert!(!mirror.status().contains("scrub"));
    assert!(mirror.control(&["speed", "fast"]).is_err());

    let paces = Arc::new(Mutex::new(Vec::new()));
    let seen = paces.clone();
    let pauses = rest();
    let rest = Arc::new(move |pause: Pause| {
        seen.lock().unwrap().push(pause);
        pauses(pause)
    });
    world.beside.push(Box::pin(mirror.clone().keep(rest)));
    for speed in [None, Some("40"), Some("0")] {
        speed.into_iter().for_each(|speed| mirror.control(&["speed", speed]).unwrap());
        mirror.control(&["scrub"]).unwrap();
        idle(&mut world);
    }
    let moved: Vec<_> =
        paces.lock().unwrap().iter().filter(|pause| **pause != Pause::Idle).copied().collect();
    assert_eq!(moved, [Pause::Moved(32), Pause::Paced(32, 40), Pause::Paced(32, 0)]);

    write(&mut world, &disk, 1, 0, 8).unwrap();
    read(&mut world, &disk, 0).unwrap();
    idle(&mut world);
    world.disks[1].fail(Op::Flush, Kind::Failed);
    flush(&mut world, &disk).unwrap();
    world.run(mirror.bring_back(1, false)).unwrap().unwrap();
    idle(&mut world);
    world.disks[1].fail(Op::Write, Kind::Failed);
    // The write of its mark fails.
    write(&mut world, &disk, 1, 0, 8).unwrap();
    let status = mirror.status();
    let lines: Vec<_> =
        status.lines().filter_map(|line| line.split_once("mended; ")).map(|line| line.1).collect();
    let all = [
        "1 reads, 2 writes, 0 failed, 0 flushes failed, 0 sectors copied",
        // Equal sectors are not written.
        "0 reads, 1 writes, 1 failed, 1 flushes failed, 0 sectors copied",
    ];
    assert_eq!(lines, all, "{status}");
}

/// Writes by the mirror itself also need the right, and no member is set aside for the lack of it.
#[test]
fn without_the_right_to_write_a_mirror_writes_nothing_by_itself_and_nobody_is_set_aside() {
    let mut world = world(2, SECTORS);
    let now = Arc::new(AtomicU64::new(0));
    let clock = now.clone();
    let right = Right::new(1, Arc::new(move || Duration::from_secs(clock.load(Relaxed))));
    let right = Arc::new(right);
    let guards = |world: &World| -> Vec<Arc<dyn Device>> {
        let guard = |device| Arc::new(Guard::below(device, right.clone())) as Arc<dyn Device>;
        world.devices().into_iter().map(guard).collect()
    };
    right.extend(Duration::from_secs(10));
    let devices = guards(&world);
    let mirror = open_with(&mut world, devices, Start::Careful).unwrap();
    let disk = device(&mirror);
    keep(&mut world, &mirror);
    write(&mut world, &disk, 1, 0, 8).unwrap();
    // Everything is to be copied to the second member; then the right expires.
    mirror.control(&["resync", "full", "1"]).unwrap();
    now.store(10, Relaxed);
    let image = |world: &World| -> Vec<_> {
        let sectors = |disk: &Arc<Disk>| (0..HEAD + SECTORS).map(|at| disk.peek(at)).collect::<Vec<_>>();
        world.disks.iter().map(sectors).collect()
    };
    idle(&mut world);
    let before = image(&world);
    idle(&mut world);
    assert!(image(&world) == before, "it writes without the right");
    assert_eq!(write(&mut world, &disk, 2, 0, 1).unwrap_err().kind, Kind::Busy);
    assert!(!mirror.status().contains("out"), "{}", mirror.status());
    // When the right is extended, everything continues.
    right.extend(Duration::from_secs(20));
    write(&mut world, &disk, 3, 8, 8).unwrap();
    until(&mut world, || !mirror.status().contains("regions to make equal"));
    assert_eq!((0..16).map(|at| on(&world, 1, at)).collect::<Vec<_>>(), [[1; 8], [3; 8]].concat());
    right.lose("another has it");
    assert_eq!(write(&mut world, &disk, 4, 0, 1).unwrap_err().kind, Kind::Reserved);
    assert!(!mirror.status().contains("out"), "{}", mirror.status());
}
