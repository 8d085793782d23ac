//! Devices made of others, over memory: each behaves like a plain disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use bytes::Bytes;
use nine_block::{
    Bare, Concat, Device, FakeWorm, Growing, Interleave, Io, Kind, Nothing, Op, Part, Ram, ReadOnly, SECTOR,
    Shape,
};

use crate::common::*;

fn ram(sectors: u64) -> Arc<dyn Device> {
    Arc::new(Ram::new(sectors))
}

fn now<T>(future: impl Future<Output = T>) -> T {
    World::new(0, Vec::new()).run(future).expect("there is no cut")
}

fn kind<T: std::fmt::Debug>(result: nine_block::Result<T>) -> Kind {
    result.expect_err("it fails").kind
}

/// Compares random writes and reads with an array.
fn like_an_array(device: Arc<dyn Device>, sectors: u64, seed: u64) {
    assert_eq!(device.shape().sectors, sectors, "{}", device.name());
    let mut rng = Rng(seed);
    let mut model = vec![0u8; (sectors * SECTOR) as usize];
    for _ in 0..300 {
        let at = rng.below(sectors + 1);
        let count = rng.below(sectors - at + 1);
        let bytes = (at * SECTOR) as usize..((at + count) * SECTOR) as usize;
        if rng.one_in(2) {
            let data: Vec<u8> = (0..bytes.len()).map(|_| rng.bits() as u8).collect();
            model[bytes].copy_from_slice(&data);
            now(device.write(at, data.into())).unwrap();
        } else {
            assert!(now(device.read(at, count)).unwrap() == model[bytes], "{} {at}+{count}", device.name());
        }
    }
    assert_eq!(kind(now(device.read(sectors, 1))), Kind::Range);
    assert_eq!(kind(now(device.read(u64::MAX, 2))), Kind::Range);
    assert_eq!(kind(now(device.write(sectors - 1, vec![0; 1024].into()))), Kind::Range);
    now(device.flush()).unwrap();
    now(device.look()).unwrap();
}

#[test]
fn made_of_others_they_are_like_one_disk() {
    let three = || vec![ram(10), ram(23), ram(7)];
    like_an_array(Arc::new(Concat::new(three()).unwrap()), 40, 1);
    let growing = Growing::new(ram(20));
    three().into_iter().for_each(|device| growing.add(device).unwrap());
    like_an_array(Arc::new(growing), 60, 3);
    like_an_array(Arc::new(Concat::new(vec![ram(10), Arc::new(Nothing), ram(5)]).unwrap()), 15, 2);
    for block in [1, 2, 3, 7] {
        let device = Interleave::new(three(), block).unwrap();
        like_an_array(Arc::new(device), 7 / u64::from(block) * u64::from(block) * 3, 3);
    }
    like_an_array(Arc::new(Part::new(ram(30), "p".into(), 5, 20).unwrap()), 20, 4);
    like_an_array(Arc::new(Bare::new(three())), 7, 5);
    let inner = Interleave::new(vec![Arc::new(Concat::new(three()).unwrap()), ram(50)], 4).unwrap();
    like_an_array(Arc::new(Part::new(Arc::new(inner), "p".into(), 3, 70).unwrap()), 70, 6);
}

#[test]
fn interleaved_blocks_lie_in_turns() {
    let (a, b) = (ram(8), ram(8));
    let device: Arc<dyn Device> = Arc::new(Interleave::new(vec![a.clone(), b.clone()], 2).unwrap());
    now(device.write(0, tagged(1, 0, 16))).unwrap();
    let tags = |device: &Arc<dyn Device>| -> Vec<u64> {
        let data = now(device.read(0, 8)).unwrap();
        data.chunks(512).map(|sector| u64::from_le_bytes(sector[8..16].try_into().unwrap())).collect()
    };
    assert_eq!(tags(&a), [0, 1, 4, 5, 8, 9, 12, 13]);
    assert_eq!(tags(&b), [2, 3, 6, 7, 10, 11, 14, 15]);
}

#[test]
fn the_whole_ends_when_all_parts_have_with_the_first_error() {
    let disks = vec![Disk::new("w0", 4), Disk::new("w1", 4)];
    let mut world = World::new(1, disks.clone());
    let device: Arc<dyn Device> = Arc::new(Concat::new(world.devices()).unwrap());
    disks[1].fail(Op::Write, Kind::Down);
    disks[0].fail(Op::Write, Kind::Failed);
    let mut call = Box::pin(device.write(2, tagged(1, 2, 4)));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    disks[1].step(0, &mut world.rng);
    assert!(call.as_mut().poll(&mut cx).is_pending());
    disks[0].step(0, &mut world.rng);
    assert_eq!(kind(world.run(call).unwrap()), Kind::Down);
}

#[test]
fn a_concatenation_grows_at_its_end() {
    let disks = vec![Disk::new("w0", 4), Disk::new("w1", 4)];
    let mut world = World::new(1, disks.clone());
    let device: Arc<dyn Device> = Arc::new(Concat::new(world.devices()).unwrap());
    disks[0].resize(9);
    disks[1].resize(6);
    world.run(device.look()).unwrap().unwrap();
    assert_eq!(device.shape().sectors, 10);
    world.run(device.write(3, tagged(1, 3, 7))).unwrap().unwrap();
    assert_eq!(tag(&disks[1].peek(5), 9), 1);
}

#[test]
fn partitions_by_numbers_and_names() {
    let place = |part: Part, disk: &Arc<dyn Device>| -> (u64, u64) {
        let (part, zeros): (Arc<dyn Device>, _) = (Arc::new(part), Bytes::from(vec![0; 512 * 1000]));
        now(disk.write(0, zeros)).unwrap();
        now(part.write(0, tagged(7, 0, 1))).unwrap();
        let data = now(disk.read(0, 1000)).unwrap();
        let at = data.chunks(512).position(|sector| sector[0] == 7).unwrap();
        (at as u64, part.shape().sectors)
    };
    let disk = ram(1000);
    // Pieces of whole blocks.
    assert_eq!(place(Part::numbered(disk.clone(), 25, 50, 4).unwrap(), &disk), (200, 400));
    assert_eq!(place(Part::numbered(disk.clone(), 0, 100, 1).unwrap(), &disk), (0, 1000));
    assert_eq!(kind(Part::numbered(disk.clone(), 0, 50, 16).map(drop)), Kind::Range);
    assert_eq!(place(Part::numbered(disk.clone(), 25, 120, 4).unwrap(), &disk), (100, 480));
    assert_eq!(kind(Part::numbered(disk.clone(), 80, 50, 4).map(drop)), Kind::Range);
    assert_eq!(kind(Part::numbered(disk.clone(), 0, u64::MAX, 4).map(drop)), Kind::Range);
    let named = |text: &str, name: &str| {
        let mut table = text.as_bytes().to_vec();
        table.resize(512, 0);
        now(disk.write(1, table.into())).unwrap();
        now(Part::named(disk.clone(), name))
    };
    let table = "part fossil 63 800\npart swap 800 1000\npart odd 9\n";
    assert_eq!(place(named(table, "swap").unwrap(), &disk), (800, 200));
    let error = named(table, "cache").map(drop).unwrap_err();
    assert_eq!(&*error.text, "no partition `cache` of ram1000; there are fossil, swap");
    assert_eq!(kind(named("part x 9 3\n", "x").map(drop)), Kind::Range);
    assert_eq!(kind(named("part x 9 3000\n", "x").map(drop)), Kind::Range);
    assert!(named("", "x").map(drop).unwrap_err().text.starts_with("no table of partitions"));
}

/// The atom of a disk is also the atom of each hundredth of it.
#[test]
fn pieces_of_a_disk_are_aligned() {
    let disk = Arc::new(Atoms(Ram::new(1_953_525_168)));
    let part = Part::numbered(disk, 50, 50, 16).unwrap();
    assert_eq!((part.shape().atom, part.shape().sectors), (8, 976_762_400));
}

/// A disk with sectors of 4096 bytes.
struct Atoms(Ram);

impl Device for Atoms {
    fn shape(&self) -> Shape {
        Shape { atom: 8, ..self.0.shape() }
    }

    fn submit(&self, io: Io) {
        self.0.submit(io);
    }

    fn name(&self) -> String {
        "atoms".into()
    }
}

/// A disk that shrinks after this number of looks.
struct Shrinks(Arc<dyn Device>, AtomicU64);

impl Device for Shrinks {
    fn shape(&self) -> Shape {
        let looks = self.1.fetch_update(SeqCst, SeqCst, |left| Some(left.saturating_sub(1))).unwrap();
        Shape { sectors: if looks == 0 { 0 } else { 4 }, ..self.0.shape() }
    }

    fn submit(&self, io: Io) {
        match self.1.load(SeqCst) {
            0 => io.fail(Kind::Range, "it has become smaller"),
            _ => self.0.submit(io),
        }
    }

    fn name(&self) -> String {
        "shrinks".into()
    }
}

#[test]
fn what_a_concatenation_has_acknowledged_it_has_done() {
    for looks in 0..20 {
        for (at, count) in [(6, 2), (2, 4)] {
            let (first, last) = (Disk::new("w0", 4), ram(4));
            let mut world = World::new(looks, vec![first.clone()]);
            let shrinks = Arc::new(Shrinks(last.clone(), AtomicU64::new(u64::MAX)));
            let device: Arc<dyn Device> =
                Arc::new(Concat::new(vec![world.devices().remove(0), shrinks.clone()]).unwrap());
            shrinks.1.store(looks, SeqCst);
            match world.run(device.write(at, tagged(1, at, count))).unwrap() {
                Ok(_) => assert_eq!(tag(&now(last.read((at + count) - 5, 1)).unwrap(), at + count - 1), 1),
                Err(error) => assert_eq!(error.kind, Kind::Range),
            }
        }
    }
}

#[test]
fn what_is_not_written_is_not_written() {
    let disk = ram(4);
    now(disk.write(0, tagged(1, 0, 4))).unwrap();
    let device: Arc<dyn Device> = Arc::new(ReadOnly::new(disk));
    assert_eq!(now(device.read(1, 2)).unwrap(), tagged(1, 1, 2));
    assert_eq!(kind(now(device.write(0, tagged(2, 0, 1)))), Kind::ReadOnly);
    assert_eq!(kind(now(device.discard(0, 1))), Kind::ReadOnly);
    now(device.flush()).unwrap();
    let none: Arc<dyn Device> = Arc::new(Nothing);
    assert_eq!(kind(now(none.read(0, 1))), Kind::Range);
    now(none.flush()).unwrap();
}

#[test]
fn a_block_of_a_worm_is_written_once() {
    let disk = ram(100);
    assert_eq!(kind(now(FakeWorm::open(disk.clone())).map(drop)), Kind::Failed);
    let worm: Arc<dyn Device> = Arc::new(now(FakeWorm::make(disk.clone(), 4)).unwrap());
    assert_eq!(worm.shape().sectors, 92);
    assert_eq!(kind(now(worm.read(0, 1))), Kind::Unwritten);
    now(worm.write(4, tagged(1, 4, 8))).unwrap();
    assert_eq!(now(worm.read(5, 6)).unwrap(), tagged(1, 5, 6));
    assert_eq!(kind(now(worm.read(5, 8))), Kind::Unwritten);
    assert_eq!(kind(now(worm.write(8, tagged(2, 8, 8)))), Kind::ReadOnly);
    assert_eq!(kind(now(worm.write(2, tagged(2, 2, 4)))), Kind::Unsupported);
    assert_eq!(kind(now(worm.discard(4, 4))), Kind::ReadOnly);
    now(worm.write(12, tagged(3, 12, 4))).unwrap();
    drop(worm);
    assert_eq!(kind(now(FakeWorm::make(disk.clone(), 4)).map(drop)), Kind::Failed);
    let worm: Arc<dyn Device> = Arc::new(now(FakeWorm::open(disk)).unwrap());
    assert_eq!(now(worm.read(4, 8)).unwrap(), tagged(1, 4, 8));
    assert_eq!(kind(now(worm.write(4, tagged(2, 4, 4)))), Kind::ReadOnly);
    now(worm.write(88, tagged(4, 88, 4))).unwrap();
}

/// Wherever the power is cut, flushed data is there, and is not written again.
#[test]
fn a_worm_stays_one_after_each_cut() {
    for cut in 0..60 {
        for keeps in [Keep::Nothing, Keep::All, Keep::Some] {
            let mut world = World::new(cut, vec![Disk::new("w0", 60)]);
            world.run(FakeWorm::make(world.devices().remove(0), 2)).unwrap().unwrap();
            let mut flushed = Vec::new();
            world.left = cut;
            let mut script = |world: &mut World| -> Option<()> {
                let worm = world.run(FakeWorm::open(world.devices().remove(0)))?.unwrap();
                let worm: Arc<dyn Device> = Arc::new(worm);
                for at in [0, 6, 2] {
                    let calls =
                        [worm.write(at, tagged(at + 1, at, 2)), worm.write(at + 10, tagged(9, at + 10, 2))];
                    for call in calls {
                        world.run(call)?.unwrap();
                    }
                    world.run(worm.flush())?.unwrap();
                    flushed.push(at);
                }
                Some(())
            };
            let done = script(&mut world).is_some();
            world.cut(keeps);
            world.disks[0].resize(80);
            let worm = world.run(FakeWorm::open(world.devices().remove(0))).unwrap().unwrap();
            let worm: Arc<dyn Device> = Arc::new(worm);
            for at in flushed {
                assert_eq!(
                    world.run(worm.read(at, 2)).unwrap().unwrap(),
                    tagged(at + 1, at, 2),
                    "cut at {cut}"
                );
                assert_eq!(kind(world.run(worm.write(at, tagged(5, at, 2))).unwrap()), Kind::ReadOnly);
            }
            assert!(!done || cut > 10);
        }
    }
}

#[test]
fn what_comes_behind_a_device_changes_nothing_of_what_is_there() {
    let mut world = World::new(3, vec![Disk::new("w0", 16), Disk::new("w1", 16)]);
    let devices = world.devices();
    let growing = Arc::new(Growing::new(devices[0].clone()));
    let disk: Arc<dyn Device> = growing.clone();
    assert_eq!(disk.name(), "w0");
    world.run(disk.write(0, tagged(1, 0, 16))).unwrap().unwrap();
    // A read that began before ends without the new device.
    let reading = disk.read(0, 16);
    growing.add(devices[1].clone()).unwrap();
    assert_eq!(world.run(reading).unwrap().unwrap(), tagged(1, 0, 16));
    assert_eq!((disk.shape().sectors, disk.name()), (32, "(w0w1)".into()));
    world.run(disk.write(12, tagged(2, 12, 8))).unwrap().unwrap();
    assert_eq!(world.run(disk.read(0, 20)).unwrap().unwrap(), [tagged(1, 0, 12), tagged(2, 12, 8)].concat());
    for bad in [Arc::new(Nothing) as Arc<dyn Device>, Arc::new(ReadOnly::new(ram(8)))] {
        assert!(growing.add(bad).is_err());
    }
    assert_eq!(disk.shape().sectors, 32);
}
