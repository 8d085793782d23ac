//! A mirror with members that fail, return, lie, or are reserved by another owner.

use std::sync::Arc;

use nine_block::{Bare, Device, Error, Kind, Mirror, Op, Result, Start};

use crate::common::*;

const SET: [u8; 16] = *b"the set of tests";
const SECTORS: u64 = 32;
/// Sectors of a member before the mirrored ones.
const HEAD: u64 = 128;

/// Creates a mirror of equal members without marks.
fn mirror(members: usize) -> (World, Mirror, Arc<dyn Device>) {
    let disks = (0..members).map(|at| Disk::new(&format!("w{at}"), HEAD + SECTORS)).collect();
    let mut world = World::new(members as u64, disks);
    world.reorder = false;
    let devices = world.devices();
    world.run(Mirror::make_with(&devices, SET, 8)).unwrap().unwrap();
    let mirror = open(&mut world, Start::Careful).unwrap();
    keep(&mut world, &mirror);
    idle(&mut world);
    (world, mirror.clone(), Arc::new(mirror))
}

fn open(world: &mut World, start: Start) -> Result<Mirror> {
    let (devices, told) = (world.devices(), world.told());
    world.run(Mirror::open(devices, start, told)).unwrap()
}

fn keep(world: &mut World, mirror: &Mirror) {
    world.beside.push(Box::pin(mirror.clone().keep(rest())));
}

/// Runs long enough for all copies.
fn idle(world: &mut World) {
    (0..1000).for_each(|_| assert!(world.turn()));
}

fn write(world: &mut World, disk: &Arc<dyn Device>, tag: u64, at: u64, count: u64) -> Result<()> {
    world.run(disk.write(at, tagged(tag, at, count))).unwrap().map(drop)
}

fn read(world: &mut World, disk: &Arc<dyn Device>, at: u64) -> Result<u64> {
    world.run(disk.read(at, 1)).unwrap().map(|data| tag(&data, at))
}

fn on(world: &World, member: usize, at: u64) -> u64 {
    tag(&world.disks[member].peek(HEAD + at), at)
}

fn told(world: &World) -> Vec<String> {
    std::mem::take(&mut *world.told.lock().unwrap())
}

fn refusal(result: Result<Mirror>) -> String {
    result.map(drop).expect_err("it is refused").to_string()
}

#[test]
fn a_member_that_fails_is_set_aside_and_gets_only_what_it_missed() {
    let (mut world, mirror, disk) = mirror(2);
    write(&mut world, &disk, 1, 0, 32).unwrap();
    idle(&mut world);
    told(&world);
    world.disks[1].fail(Op::Write, Kind::Failed);
    write(&mut world, &disk, 2, 9, 4).unwrap();
    assert_eq!(told(&world), ["w1 is set aside: Failed as the test says"]);
    write(&mut world, &disk, 3, 30, 1).unwrap();
    assert_eq!((on(&world, 0, 30), on(&world, 1, 30)), (3, 1));
    let before = world.disks[0].reads();
    mirror.control(&["return", "1"]).unwrap();
    idle(&mut world);
    assert_eq!(told(&world), ["w1 gets what it missed", "w1 is in"]);
    assert_eq!((on(&world, 1, 9), on(&world, 1, 30), on(&world, 1, 0)), (2, 3, 1));
    assert_eq!(world.disks[0].reads() - before, 2, "regions 1 and 3 alone");
    assert!(mirror.status().contains("  1 in; 0 reads failed"), "{}", mirror.status());
}

#[test]
fn a_copy_goes_on_after_a_stop_where_it_was() {
    let (mut world, mirror, disk) = mirror(2);
    world.disks[1].always(Some(Kind::Down));
    for region in 0..4 {
        write(&mut world, &disk, region + 1, region * 8, 1).unwrap();
    }
    world.disks[1].always(None);
    world.beside.clear();
    world.run(mirror.bring_back(1, false)).unwrap().unwrap();
    drop((mirror, disk));
    world.cut(Keep::Nothing);
    let mirror = open(&mut world, Start::Careful).unwrap();
    assert!(mirror.status().contains("1 returning, 4 regions of 4 left"), "{}", mirror.status());
    keep(&mut world, &mirror);
    idle(&mut world);
    for region in 0..4 {
        assert_eq!(on(&world, 1, region * 8), region + 1);
    }
    assert!(mirror.status().contains("1 in;"), "{}", mirror.status());
}

/// After an orderly shutdown nothing is copied, so rot of a member is not copied either. After a crash the written
/// region is.
#[test]
fn an_orderly_end_leaves_nothing_to_make_equal() {
    for is_closed in [true, false] {
        let (mut world, mirror, disk) = mirror(2);
        idle(&mut world);
        write(&mut world, &disk, 1, 3, 2).unwrap();
        world.run(disk.flush()).unwrap().unwrap();
        if is_closed {
            world.run(mirror.close()).unwrap();
        }
        drop((mirror, disk));
        world.cut(Keep::Nothing);
        let again = open(&mut world, Start::Careful).unwrap();
        let status = (&again as &dyn Device).status();
        let to_copy = status.contains("to make equal");
        assert_eq!(to_copy, !is_closed, "{status}");
    }
}

#[test]
fn a_slow_member_holds_up_writes_and_never_reads() {
    let (mut world, _mirror, disk) = mirror(2);
    world.beside.clear();
    write(&mut world, &disk, 1, 0, 8).unwrap();
    let slow = world.disks.pop().unwrap();
    let mut call = Box::pin(disk.write(4, tagged(2, 4, 1)));
    for at in 0..8 {
        read(&mut world, &disk, at).ok().filter(|_| at != 4);
    }
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
    assert_eq!(slow.waiting(), 1);
    world.disks.push(slow);
    world.run(call).unwrap().unwrap();
}

#[test]
fn sectors_that_cannot_be_read_are_written_again() {
    let (mut world, mirror, disk) = mirror(2);
    write(&mut world, &disk, 1, 0, 8).unwrap();
    told(&world);
    world.disks[0].fail(Op::Read, Kind::Failed);
    assert_eq!(read(&mut world, &disk, 3), Ok(1));
    idle(&mut world);
    assert_eq!(told(&world), ["w0: sectors 3+1 were written again"]);
    // If that fails too, the member is out.
    world.disks[0].fail(Op::Read, Kind::Failed);
    world.disks[0].fail(Op::Write, Kind::Failed);
    assert_eq!(read(&mut world, &disk, 3), Ok(1));
    idle(&mut world);
    assert!(mirror.status().contains("0 out"), "{}", mirror.status());
}

#[test]
fn that_it_is_reserved_is_said_and_sets_nothing_aside() {
    let (mut world, mirror, disk) = mirror(2);
    for op in [Op::Write, Op::Read, Op::Flush] {
        world.disks[0].fail(op, Kind::Reserved);
        let result = match op {
            Op::Write => write(&mut world, &disk, 1, 0, 1),
            Op::Read => read(&mut world, &disk, 0).map(drop),
            _ => world.run(disk.flush()).unwrap().map(drop),
        };
        assert_eq!(result.unwrap_err().kind, Kind::Reserved);
        idle(&mut world);
    }
    assert!(!mirror.status().contains("out"), "{}", mirror.status());
    assert_eq!(on(&world, 0, 0), on(&world, 1, 0), "the first decides what is there");
}

#[test]
fn the_last_member_is_never_set_aside() {
    let (mut world, mirror, disk) = mirror(2);
    world.disks.iter().for_each(|disk| disk.always(Some(Kind::Failed)));
    assert_eq!(write(&mut world, &disk, 1, 0, 1).unwrap_err().kind, Kind::Failed);
    assert_eq!(read(&mut world, &disk, 0).unwrap_err().kind, Kind::Failed);
    world.disks.iter().for_each(|disk| disk.always(None));
    write(&mut world, &disk, 2, 0, 1).unwrap();
    idle(&mut world);
    assert_eq!((on(&world, 0, 0), on(&world, 1, 0)), (2, 2));
    assert!(!mirror.status().contains("out"), "{}", mirror.status());
}

#[test]
fn a_set_without_its_newest_member_is_refused() {
    let (mut world, _, disk) = mirror(2);
    world.disks[1].fail(Op::Write, Kind::Down);
    write(&mut world, &disk, 1, 0, 1).unwrap();
    world.run(disk.flush()).unwrap().unwrap();
    world.cut(Keep::Nothing);
    // The old member alone does not know what it has missed.
    world.disks[0].always(Some(Kind::Down));
    let text = refusal(open(&mut world, Start::Careful));
    assert_eq!(text, "{w0w1}: w0 may have what is newer, and cannot be used: Down as the test says");
    world.disks[0].always(None);
    world.disks[1].always(Some(Kind::Down));
    let mirror = open(&mut world, Start::Careful).expect("the new one knows that the other is out");
    drop(mirror);
    // By order the old one starts, and then both have continued alone.
    world.disks[1].always(None);
    world.disks[0].always(Some(Kind::Down));
    let mirror = open(&mut world, Start::Anyway).unwrap();
    write(&mut world, &(Arc::new(mirror) as Arc<dyn Device>), 2, 0, 1).unwrap();
    world.disks[0].always(None);
    let text = refusal(open(&mut world, Start::Careful));
    assert!(text.ends_with("has gone on alone: one member has to be named as the right one"), "{text}");
    let mirror = open(&mut world, Start::From(1)).unwrap();
    let disk: Arc<dyn Device> = Arc::new(mirror.clone());
    assert_eq!(read(&mut world, &disk, 0), Ok(2));
    keep(&mut world, &mirror);
    assert!(world.run(mirror.bring_back(0, false)).unwrap().is_err(), "what is on it would be lost");
    world.run(mirror.bring_back(0, true)).unwrap().unwrap();
    idle(&mut world);
    assert_eq!((on(&world, 0, 0), mirror.status().contains("0 in;")), (2, true));
    drop(mirror);
    open(&mut world, Start::Careful).unwrap();
}

#[test]
fn members_of_others_are_refused() {
    let (mut world, _, _) = mirror(2);
    world.disks.swap(0, 1);
    let text = refusal(open(&mut world, Start::Anyway));
    assert_eq!(text, "{w1w0}: w1 is member 2 of 2, and stands here as 1 of 2");
    let devices = world.devices();
    let error = world.run(Mirror::make(&devices, SET)).unwrap().unwrap_err();
    assert_eq!(&*error.text, "w1: it is member 1 of a mirror already");
    world.disks = vec![Disk::new("new", 500)];
    let text = refusal(open(&mut world, Start::Anyway));
    assert!(text.contains("no label of a mirror is on it"), "{text}");
}

#[test]
fn a_new_disk_in_the_place_of_another_gets_everything() {
    let (mut world, _, disk) = mirror(3);
    write(&mut world, &disk, 1, 0, 32).unwrap();
    world.run(disk.flush()).unwrap().unwrap();
    drop(disk);
    world.cut(Keep::All);
    world.disks[0] = Disk::new("new", 300);
    assert!(refusal(open(&mut world, Start::Careful)).contains("new may have what is newer"));
    let mirror = open(&mut world, Start::Anyway).unwrap();
    keep(&mut world, &mirror);
    let error = world.run(mirror.bring_back(0, false)).unwrap().unwrap_err();
    assert!(error.text.contains("`new` makes it a member"), "{error}");
    world.disks[0].resize(100);
    let error = world.run(mirror.bring_back(0, true)).unwrap().unwrap_err();
    assert!(error.text.contains("it has 100 sectors, and 160 are needed"), "{error}");
    world.disks[0].resize(160);
    world.run(mirror.bring_back(0, true)).unwrap().unwrap();
    idle(&mut world);
    assert!((0..32).all(|at| on(&world, 0, at) == 1));
    drop(mirror);
    let mirror = open(&mut world, Start::Careful).unwrap();
    assert!(!mirror.status().contains("out"), "{}", mirror.status());
}

#[test]
fn a_new_disk_that_goes_before_it_has_everything_still_gets_it() {
    let (mut world, mirror, disk) = mirror(2);
    write(&mut world, &disk, 1, 0, 32).unwrap();
    idle(&mut world);
    world.beside.clear();
    world.run(mirror.set_aside(1)).unwrap().unwrap();
    (0..32).for_each(|at| world.disks[1].lie(HEAD + at, 0));
    world.run(mirror.bring_back(1, true)).unwrap().unwrap();
    world.run(mirror.set_aside(1)).unwrap().unwrap();
    world.run(mirror.bring_back(1, false)).unwrap().unwrap();
    keep(&mut world, &mirror);
    idle(&mut world);
    assert!((0..32).all(|at| on(&world, 1, at) == 1));
}

#[test]
fn a_scrub_finds_who_lies() {
    let (mut world, mirror, disk) = mirror(3);
    write(&mut world, &disk, 1, 0, 32).unwrap();
    world.disks[0].lie(HEAD + 7, 9);
    told(&world);
    mirror.control(&["scrub"]).unwrap();
    idle(&mut world);
    assert_eq!(told(&world), ["w0: sectors 7+1 differ", "{w0w1w2} is compared: 1 sectors differ"]);
    mirror.control(&["scrub", "heal"]).unwrap();
    idle(&mut world);
    let healed = ["w0: sectors 7+1 differ, and are healed", "{w0w1w2} is compared: 1 sectors differ"];
    assert_eq!(told(&world), healed);
    assert_eq!(on(&world, 0, 7), 1, "two against one");
    mirror.control(&["scrub"]).unwrap();
    idle(&mut world);
    assert_eq!(told(&world), ["{w0w1w2} is compared: 0 sectors differ"]);
}

#[test]
fn it_grows_with_its_smallest_member() {
    let (mut world, mirror, disk) = mirror(2);
    world.disks[0].resize(HEAD + 50);
    world.run(disk.look()).unwrap().unwrap();
    assert_eq!(disk.shape().sectors, SECTORS);
    world.disks[1].resize(HEAD + 44);
    world.disks[0].lie(HEAD + 40, 1);
    world.run(disk.look()).unwrap().unwrap();
    assert_eq!(disk.shape().sectors, 44);
    write(&mut world, &disk, 5, 43, 1).unwrap();
    idle(&mut world);
    assert_eq!(world.disks[0].peek(HEAD + 40), world.disks[1].peek(HEAD + 40));
    drop((mirror, disk));
    world.cut(Keep::Nothing);
    let mirror = open(&mut world, Start::Careful).unwrap();
    assert_eq!(mirror.shape().sectors, 44);
    // A member that shrinks is set aside.
    world.disks[1].resize(HEAD + 40);
    let disk: Arc<dyn Device> = Arc::new(mirror.clone());
    world.run(disk.look()).unwrap().unwrap();
    assert!(mirror.status().contains("1 out: it has 168 sectors, and 172 are needed"), "{}", mirror.status());
}

#[test]
fn marks_that_are_not_right_are_all_set() {
    let (mut world, mirror, disk) = mirror(2);
    drop((mirror, disk));
    world.cut(Keep::All);
    world.disks[1].lie(HEAD + 20, 7);
    world.disks[1].lie(64, 0);
    let mirror = open(&mut world, Start::Careful).unwrap();
    assert!(mirror.status().contains("1 in, 4 regions to make equal"), "{}", mirror.status());
    keep(&mut world, &mirror);
    idle(&mut world);
    assert_eq!(world.disks[0].peek(HEAD + 20), world.disks[1].peek(HEAD + 20));
}

#[test]
fn words_that_are_not_known_are_answered_with_those_that_are() {
    let (_world, mirror, _) = mirror(2);
    for words in [&[][..], &["return"], &["return", "2"], &["resink"], &["scrub", "it"]] {
        let error: Error = mirror.control(words).unwrap_err();
        assert!(error.kind == Kind::Unsupported && error.text.contains("it knows return N"), "{error}");
    }
    assert!(mirror.control(&["1", "x"]).unwrap_err().text.starts_with("w1: knows no `x`"));
}

#[test]
fn a_bare_mirror_writes_from_the_last_to_the_first() {
    let disks = vec![Disk::new("w0", 8), Disk::new("w1", 8)];
    let mut world = World::new(1, disks.clone());
    let bare: Arc<dyn Device> = Arc::new(Bare::new(world.devices()));
    let mut call = Box::pin(bare.write(0, tagged(1, 0, 1)));
    assert_eq!((disks[0].waiting(), disks[1].waiting()), (0, 1));
    disks[1].step(0, &mut world.rng);
    assert_eq!((disks[0].waiting(), disks[1].waiting()), (1, 0));
    world.run(&mut call).unwrap().unwrap();
    disks[1].fail(Op::Write, Kind::Failed);
    assert!(world.run(bare.write(1, tagged(2, 1, 1))).unwrap().is_err());
    assert_eq!(tag(&disks[0].peek(1), 1), 2, "all are written");
    disks[0].fail(Op::Read, Kind::Failed);
    assert_eq!(world.run(bare.read(0, 1)).unwrap().unwrap(), tagged(1, 0, 1));
}
