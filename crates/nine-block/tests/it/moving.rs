//! A device that moves to another one while it is read and written, in worlds of faulty disks.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nine_block::{Device, Io, Kind, Moving, Op, Shape};

use crate::common::*;

/// A disk with its own reference count, so that its holders can be counted.
struct Given(Arc<Disk>);

impl Device for Given {
    fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn submit(&self, io: Io) {
        self.0.submit(io);
    }

    fn name(&self) -> String {
        self.0.name()
    }
}

fn given(disk: &Arc<Disk>) -> Arc<dyn Device> {
    Arc::new(Given(disk.clone()))
}

fn world(seed: u64, old: u64, new: u64) -> (World, Moving) {
    let world = World::new(seed, vec![Disk::new("old", old), Disk::new("new", new)]);
    let moving = Moving::new(given(&world.disks[0]));
    (world, moving)
}

type Moved = Arc<Mutex<Option<nine_block::Result<Arc<dyn Device>>>>>;

/// Starts a move in the background.
fn moves(world: &mut World, moving: &Moving) -> Moved {
    let (moving, to, moved) = (moving.clone(), given(&world.disks[1]), Moved::default());
    let told = moved.clone();
    world.beside.push(Box::pin(async move {
        let result = moving.move_to(to, rest()).await;
        *told.lock().unwrap() = Some(result);
    }));
    moved
}

type Under = (u64, u64, u64, Pin<Box<dyn Future<Output = nine_block::Result<Bytes>> + Send>>);

/// Reads, writes and flushes until the move has ended; then reads everything.
fn use_it(world: &mut World, moving: &Moving, moved: &Moved, sectors: u64) -> Oracle {
    let disk: Arc<dyn Device> = Arc::new(moving.clone());
    let (mut oracle, mut under, mut behind) = (Oracle::default(), Vec::<(u8, Under)>::new(), 0);
    let mut cx = Context::from_waker(Waker::noop());
    while behind < 200 || !under.is_empty() {
        behind += u64::from(moved.lock().unwrap().is_some());
        if under.len() < 6 && behind < 200 {
            let now = world.now;
            // Around the ends of pieces.
            let at = [0, 1020, 2044, sectors - 6][world.rng.below(4) as usize] + world.rng.below(4);
            let count = 1 + world.rng.below(3).min(sectors - at - 1);
            under.push(match world.rng.below(5) {
                0 => (0, (now, 0, 0, Box::pin(disk.flush()))),
                1 | 2 => (1, (now, at, count, Box::pin(disk.read(at, count)))),
                _ => {
                    let tag = oracle.begin(at, count, now);
                    (2, (now, tag, 0, Box::pin(disk.write(at, tagged(tag, at, count)))))
                }
            });
        }
        assert!(world.turn());
        let now = world.now;
        under.retain_mut(|(what, (begun, at, _, call))| {
            let Poll::Ready(result) = pin!(call).poll(&mut cx) else { return true };
            match (*what, result.unwrap()) {
                (0, _) => oracle.flushed(*begun),
                (1, data) => {
                    for (sector, at) in data.chunks(512).zip(*at..) {
                        oracle.read(at, tag(sector, at), *begun).unwrap();
                    }
                }
                _ => oracle.acked(*at, now),
            }
            false
        });
    }
    let now = world.now + 1;
    let data = world.run(disk.read(0, sectors)).unwrap().unwrap();
    for (sector, at) in data.chunks(512).zip(0..) {
        oracle.read(at, tag(sector, at), now).unwrap();
    }
    oracle
}

#[test]
fn what_is_read_and_written_while_it_moves_is_right_and_nothing_fails() {
    for seed in 0..24 {
        let (mut world, moving) = world(seed, 3000, 5000);
        let moved = moves(&mut world, &moving);
        let oracle = use_it(&mut world, &moving, &moved, 3000);
        let old = moved.lock().unwrap().take().unwrap().unwrap();
        assert_eq!((old.name(), moving.name(), moving.shape().sectors), ("old".into(), "new".into(), 5000));
        // The old device is not used any more, and has no other holders.
        assert_eq!((Arc::strong_count(&old), world.disks[0].waiting()), (1, 0));
        // Flushed data is on the new device.
        world.cut(Keep::Nothing);
        for at in 0..3000 {
            oracle.survives(at, tag(&world.disks[1].peek(at), at)).unwrap();
        }
    }
}

#[test]
fn where_the_new_one_fails_the_old_one_goes_on() {
    for (seed, op) in (0..24).map(|seed| (seed, [Op::Write, Op::Flush][(seed % 2) as usize])) {
        let (mut world, moving) = world(seed, 3000, 3000);
        let moved = moves(&mut world, &moving);
        for _ in 0..seed / 2 {
            world.turn();
        }
        world.disks[1].fail(op, Kind::Failed);
        use_it(&mut world, &moving, &moved, 3000);
        let error = moved.lock().unwrap().take().unwrap().map(|old| old.name());
        let error = error.expect_err(&format!("{seed} {op:?}"));
        assert_eq!((error.kind, moving.name()), (Kind::Failed, "old".into()));
        assert!(!moving.status().contains("moves"));
    }
}

/// An incomplete copy does not look like the disk.
#[test]
fn until_the_end_the_new_one_does_not_begin_like_the_old_one() {
    let (mut world, moving) = world(1, 3000, 3000);
    let disk: Arc<dyn Device> = Arc::new(moving.clone());
    world.run(disk.write(0, tagged(1, 0, 3000))).unwrap().unwrap();
    world.disks[1].lie(0, 7);
    let moved = moves(&mut world, &moving);
    while world.disks[1].peek(2999)[0] == 0 {
        assert!(world.turn() && world.disks[1].peek(0)[0] != 1);
        assert!(moved.lock().unwrap().is_none());
    }
    assert!(moving.status().starts_with("old moves to new: "), "{}", moving.status());
    assert_eq!(world.disks[1].peek(0), [0; 512]);
    while moved.lock().unwrap().is_none() {
        assert!(world.turn());
    }
    assert_eq!(world.disks[1].peek(0), world.disks[0].peek(0));
}

#[test]
fn what_it_cannot_be_it_does_not_move_to() {
    let (mut world, moving) = world(1, 3000, 2999);
    let error = world.run(moving.move_to(given(&world.disks[1]), rest())).unwrap().err().unwrap();
    assert!(error.text.contains("2999 sectors, and 3000 are needed"), "{error}");
    world.disks.push(Disk::new("other", 90_000));
    world.disks.iter().for_each(|disk| disk.resize(90_000));
    let moved = moves(&mut world, &moving);
    assert!((0..5).all(|_| world.turn()));
    let error = world.run(moving.move_to(given(&world.disks[2]), rest())).unwrap().err().unwrap();
    assert_eq!(&*error.text, "old: it moves already");
    assert!(moved.lock().unwrap().is_none());
}
