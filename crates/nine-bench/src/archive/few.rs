//! A disk with a limit on reads in flight; further reads wait in the order of arrival.
//!
//! In: any operations. Out: the same, to the disk below. Normally a disk chooses its number of read threads itself;
//! here a measurement sets the limit.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nine_block::{Device, Io, Op, Shape};

pub(super) struct LimitedDevice(Arc<LimitedDeviceShared>);

struct LimitedDeviceShared {
    of: Arc<dyn Device>,
    most: u64,
    queue: Mutex<LimitedQueue>,
}

#[derive(Default)]
struct LimitedQueue {
    waiting: VecDeque<Io>,
    under_way: u64,
    /// A thread is starting waiting operations; others need not.
    is_served: bool,
}

impl LimitedDevice {
    /// Limits a disk to `most` reads in flight.
    pub fn new(of: Arc<dyn Device>, most: u64) -> Self {
        Self(Arc::new(LimitedDeviceShared { of, most, queue: Mutex::default() }))
    }
}

impl LimitedDeviceShared {
    fn queue(&self) -> MutexGuard<'_, LimitedQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts waiting operations up to the limit. If a read ends during that, the running call starts the next one.
fn serve(inner: &Arc<LimitedDeviceShared>) {
    let mut queue = inner.queue();
    if queue.is_served {
        return;
    }
    queue.is_served = true;
    while queue.under_way < inner.most
        && let Some(io) = queue.waiting.pop_front()
    {
        queue.under_way += 1;
        drop(queue);
        let (at, count, ends) = (io.at, io.count, inner.clone());
        inner.of.submit(Io::read(at, count, move |result| {
            io.end(result);
            ends.queue().under_way -= 1;
            serve(&ends);
        }));
        queue = inner.queue();
    }
    queue.is_served = false;
}

impl Device for LimitedDevice {
    fn shape(&self) -> Shape {
        self.0.of.shape()
    }

    fn submit(&self, io: Io) {
        if io.op != Op::Read {
            return self.0.of.submit(io);
        }
        self.0.queue().waiting.push_back(io);
        serve(&self.0);
    }

    fn name(&self) -> String {
        self.0.of.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    /// Holds every operation until the test ends it.
    #[derive(Default)]
    struct ManualDevice(Mutex<Vec<Io>>);

    impl Device for ManualDevice {
        fn shape(&self) -> Shape {
            Shape { sectors: 100, atom: 1, most: 1, read_only: false, durable: true }
        }

        fn submit(&self, io: Io) {
            self.0.lock().unwrap().push(io);
        }

        fn name(&self) -> String {
            "slow".into()
        }
    }

    #[test]
    fn as_many_reads_as_it_may_in_their_order_and_writes_beside_them() {
        let slow = Arc::new(ManualDevice::default());
        let few = LimitedDevice::new(slow.clone(), 2);
        let ended = Arc::new(Mutex::new(Vec::new()));
        for at in 0..5 {
            let ended = ended.clone();
            few.submit(Io::read(at, 1, move |read| ended.lock().unwrap().push((at, read.is_ok()))));
        }
        few.submit(Io::write(9, Bytes::from(vec![0; 512]), |_| ()));
        let under_way = || slow.0.lock().unwrap().iter().map(|io| io.at).collect::<Vec<_>>();
        assert_eq!(under_way(), [0, 1, 9]);
        while !under_way().is_empty() {
            let first = slow.0.lock().unwrap().remove(0);
            // One is dropped, which ends it, too.
            if first.at != 3 {
                first.end(Ok(Bytes::from(vec![0; 512])));
            }
            assert!(under_way().iter().filter(|at| **at != 9).count() <= 2);
        }
        let ended = ended.lock().unwrap();
        assert_eq!(ended[..], [(0, true), (1, true), (2, true), (3, false), (4, true)]);
    }
}
