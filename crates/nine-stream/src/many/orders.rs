//! A driver and the tasks above it, in all orders. A lost wake-up shows as a deadlock.

use alloc::vec;
use alloc::vec::Vec;

use loom::future::block_on;
use loom::thread;

use crate::{Block, Device, Limit, Limits, Make, Many, Pool, Side, Stream, many};

/// Starts a driver on a lower stream that has already received a hello.
fn driven() -> (Many, Device, thread::JoinHandle<bool>) {
    let (lower, device) = Stream::new(&Make::new(Pool::new(0)));
    let hello: [u8; 15] = [8, 0, 1, 0, 0, 0, 0, 1, 1, 0, 16, 0, 0, 4, 0];
    device.try_put(Block::from(hello.to_vec())).unwrap();
    let make = Make { limit: Limit { bytes: 1, blocks: 1 }, ..Make::new(Pool::new(0)) };
    let Ok((many, driver)) = block_on(many(lower, Side::Listener, Limits::default(), &make)) else {
        panic!("hello")
    };
    block_on(device.take()).unwrap();
    (many, device, thread::spawn(move || block_on(driver.drive()).is_ok()))
}

fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 100_000;
    model.check(f);
}

#[test]
fn what_is_put_and_closed_is_sent_in_any_order() {
    model(1, || {
        let (many, device, driver) = driven();
        let writer = thread::spawn(move || {
            let (_, stream) = many.open().unwrap();
            (0..2).for_each(|n| block_on(stream.put(Block::from(vec![n]))).unwrap());
        });
        let mut seen = Vec::new();
        while !seen.ends_with(&[7, 2, 0, 0, 0]) {
            seen.extend_from_slice(block_on(device.take()).unwrap().unwrap().data());
        }
        assert_eq!(seen.len(), 5 * 7 + 2);
        device.try_put(Block::from(vec![0, 0, 7, 2, 0, 0, 0])).unwrap();
        assert!(block_on(device.take()).unwrap().is_none());
        writer.join().unwrap();
        assert!(driver.join().unwrap());
    });
}

#[test]
fn what_comes_is_accepted_and_read_in_any_order() {
    model(2, || {
        let (many, device, driver) = driven();
        let reader = thread::spawn(move || {
            let (_, stream) = block_on(many.accept()).unwrap().unwrap();
            let seen = [(); 3].map(|()| block_on(stream.read_block()).unwrap().map(|block| block.data()[0]));
            assert_eq!(seen, [Some(5), Some(6), None]);
        });
        device.try_put(Block::from(vec![0, 0, 2, 1, 0, 0, 0])).unwrap();
        device.try_put(Block::from(vec![1, 0, 4, 1, 0, 0, 0, 5])).unwrap();
        device.try_put(Block::from(vec![1, 0, 4, 1, 0, 0, 0, 6, 0, 0, 6, 1, 0, 0, 0])).unwrap();
        reader.join().unwrap();
        device.try_put(Block::from(vec![0, 0, 7, 1, 0, 0, 0])).unwrap();
        assert!(driver.join().unwrap());
    });
}
