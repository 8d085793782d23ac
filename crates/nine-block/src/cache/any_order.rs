//! All interleavings of a few threads. Each thread ends the device's operations before it waits, so that every
//! operation ends; a thread that still waits must then be woken.

use std::sync::Arc;

use bytes::Bytes;
use loom::future::block_on;
use loom::thread::spawn;

use super::{Ahead, Cache, Cached, Options};
use crate::device::{Device, Io, Op, SECTOR, Shape};
use crate::sync::{Mutex, check, lock};

/// A device with operations that any thread can end.
#[derive(Default)]
struct Parked(Mutex<(Vec<Io>, Vec<Op>)>);

impl Parked {
    fn end_all(&self) {
        loop {
            let Some(io) = lock(&self.0).0.pop() else { return };
            let data = if io.op == Op::Read { vec![7; io.bytes()].into() } else { Bytes::new() };
            io.end(Ok(data));
        }
    }

    fn count(&self, op: Op) -> usize {
        lock(&self.0).1.iter().filter(|done| **done == op).count()
    }
}

impl Device for Parked {
    fn shape(&self) -> Shape {
        Shape { sectors: 4, atom: 1, most: 1, read_only: false, durable: true }
    }

    fn name(&self) -> String {
        "parked".into()
    }

    fn submit(&self, io: Io) {
        let mut state = lock(&self.0);
        state.1.push(io.op);
        state.0.push(io);
    }
}

/// Returns a cache of 8 blocks, of which at most one is dirty.
fn cached() -> (Arc<Parked>, Cached) {
    let device = Arc::<Parked>::default();
    let options =
        Options { block: SECTOR, memory: 8 * SECTOR, shards: 1, largest: SECTOR, ahead: Ahead::Never };
    let cached = Cache::new(options).over(device.clone()).expect("there is room for one");
    (device, cached)
}

fn data(byte: u8) -> Bytes {
    vec![byte; SECTOR as usize].into()
}

#[test]
fn who_misses_a_block_that_is_read_waits_for_that_read_in_any_order() {
    check(|| {
        let (device, cached) = cached();
        let (its, other) = (device.clone(), cached.clone());
        let reader = spawn(move || {
            let call = other.get(0);
            its.end_all();
            assert_eq!(block_on(call), Ok(data(7)));
        });
        let call = cached.get(0);
        device.end_all();
        assert_eq!(block_on(call), Ok(data(7)));
        reader.join().expect("it has not failed");
        assert_eq!(device.count(Op::Read), 1);
    });
}

#[test]
fn who_writes_while_there_is_no_room_is_woken_in_any_order() {
    check(|| {
        let (device, cached) = cached();
        assert!(block_on(cached.put(0, data(0))).is_ok());
        let (its, other) = (device.clone(), cached.clone());
        let writer = spawn(move || {
            let call = other.put(1, data(1));
            its.end_all();
            assert!(block_on(call).is_ok());
        });
        let call = cached.put(2, data(2));
        device.end_all();
        assert!(block_on(call).is_ok());
        writer.join().expect("it has not failed");
    });
}

#[test]
fn a_flush_has_what_was_written_before_and_ends_in_any_order() {
    check(|| {
        let (device, cached) = cached();
        assert!(block_on(cached.put(0, data(0))).is_ok());
        let (its, other) = (device.clone(), cached.clone());
        let flusher = spawn(move || {
            let call = other.flush();
            its.end_all();
            assert!(block_on(call).is_ok());
            assert!(its.count(Op::Write) >= 1);
        });
        let call = cached.put(0, data(1));
        device.end_all();
        assert!(block_on(call).is_ok());
        flusher.join().expect("it has not failed");
        assert_eq!(cached.hit(0), Some(data(1)));
    });
}

#[test]
fn of_a_block_that_is_read_and_changed_in_parts_no_change_is_lost_in_any_order() {
    check(|| {
        let device = Arc::<Parked>::default();
        let options =
            Options { block: 2 * SECTOR, memory: 64 * SECTOR, shards: 1, largest: 1, ahead: Ahead::Never };
        let cached = Cache::new(options).over(device.clone()).expect("there is room for one");
        let (its, other) = (device.clone(), cached.clone());
        let write = |cached: &Cached, device: &Parked, at: u64, byte: u8| {
            let call = (cached as &dyn Device).write(at, data(byte));
            device.end_all();
            assert!(block_on(call).is_ok());
        };
        let writer = spawn(move || write(&other, &its, 0, 1));
        write(&cached, &device, 1, 2);
        writer.join().expect("it has not failed");
        assert_eq!(cached.hit(0), Some([data(1), data(2)].concat().into()));
    });
}
