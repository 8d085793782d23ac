//! Threads at the queues, the turns and the memory of a stream, in all orders. After a lost wake-up the model finds a
//! deadlock.

use alloc::boxed::Box;
use alloc::vec;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Waker};

use loom::future::block_on;
use loom::thread;

use crate::{Block, CLASSES, Control, Fault, Halves, Limit, Make, Module, Modules, Next, Pool, Stream, pipe};

/// Parameters of streams with queues of one block.
fn make(modules: Modules) -> Make {
    Make { limit: Limit { bytes: 1, blocks: 1 }, modules, ..Make::new(Pool::new(0)) }
}

fn block(byte: u8) -> Block {
    let mut block = Block::from(vec![byte]);
    block.delim = true;
    block
}

fn next(stream: &Stream) -> Option<u8> {
    block_on(stream.read_block()).expect("in good order").map(|block| block.data()[0])
}

/// Polls once and drops the future.
fn give_up<T>(future: impl Future<Output = T>) -> bool {
    pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Explores a model up to this number of preemptions, because it is too large to explore fully.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(f);
}

#[test]
fn a_writer_that_was_refused_is_woken_in_any_order() {
    model(4, || {
        let (a, b) = pipe(&make(Modules::default()));
        let writer = thread::spawn(move || (1..=3).for_each(|n| block_on(a.put(block(n))).unwrap()));
        assert_eq!([next(&b), next(&b), next(&b), next(&b)], [Some(1), Some(2), Some(3), None]);
        writer.join().unwrap();
    });
}

#[test]
fn two_writers_are_both_served_in_any_order() {
    model(3, || {
        let (a, b) = pipe(&make(Modules::default()));
        let writers = [1, 2].map(|n| {
            let a = a.clone();
            thread::spawn(move || block_on(a.put(block(n))).unwrap())
        });
        drop(a);
        let seen = [next(&b), next(&b)];
        assert!(seen == [Some(1), Some(2)] || seen == [Some(2), Some(1)]);
        assert_eq!(next(&b), None);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}

#[test]
fn two_readers_get_one_block_each_in_any_order() {
    model(3, || {
        let (a, b) = pipe(&make(Modules::default()));
        let readers = [b.clone(), b].map(|b| thread::spawn(move || next(&b)));
        (1..=2).for_each(|n| block_on(a.put(block(n))).unwrap());
        let seen = readers.map(|reader| reader.join().unwrap());
        assert!(seen == [Some(1), Some(2)] || seen == [Some(2), Some(1)]);
    });
}

#[test]
fn who_gives_up_takes_nobodys_turn_in_any_order() {
    model(3, || {
        let (a, b) = pipe(&make(Modules::default()));
        block_on(a.put(block(1))).unwrap();
        let (one, two) = (a.clone(), a);
        let quitter = thread::spawn(move || give_up(one.put(block(2))));
        let writer = thread::spawn(move || block_on(two.put(block(3))).unwrap());
        let mut seen = vec![next(&b)];
        seen.push(next(&b));
        if quitter.join().unwrap() {
            seen.push(next(&b));
        }
        writer.join().unwrap();
        assert!(seen.contains(&Some(1)) && seen.contains(&Some(3)), "{seen:?}");
        assert_eq!(next(&b), None);
    });
}

#[test]
fn a_hangup_reaches_whoever_waits_in_any_order() {
    model(3, || {
        let (a, b) = pipe(&make(Modules::default()));
        block_on(a.put(block(1))).unwrap();
        let other = b.clone();
        let writer = thread::spawn(move || block_on(a.put(block(2))).is_ok());
        let hangup = thread::spawn(move || other.hangup());
        let seen = next(&b);
        assert_eq!(seen, Some(1));
        let second = next(&b);
        hangup.join().unwrap();
        let put = writer.join().unwrap();
        assert_eq!(put, second.is_some());
    });
}

#[test]
fn memory_that_comes_back_wakes_who_waits_for_it_in_any_order() {
    loom::model(|| {
        const LARGEST: usize = CLASSES[CLASSES.len() - 1];
        let pool = Pool::new(0);
        let mut whole = pool.try_alloc(LARGEST).unwrap();
        whole.fill(b"ab");
        // Two blocks leave one memory, possibly at once.
        let half = whole.split_to(1);
        let leaver = thread::spawn(move || drop(half));
        let waiter = {
            let pool = pool.clone();
            thread::spawn(move || drop(block_on(pool.alloc(LARGEST))))
        };
        drop(whole);
        leaver.join().unwrap();
        waiter.join().unwrap();
        assert!(pool.try_alloc(LARGEST).is_some());
    });
}

/// Refuses data until the other half has received some.
struct Gate {
    shared: std::sync::Arc<loom::sync::Mutex<bool>>,
    down: bool,
}

impl Module for Gate {
    fn put(&mut self, chain: crate::Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        if !self.down {
            *self.shared.lock().unwrap() = true;
            next.kick();
        }
        next.put(chain);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.down && !*self.shared.lock().unwrap()
    }

    fn control(&mut self, _: &str, _: &mut Next<'_, '_>) -> Control {
        Control::NotMine
    }
}

#[test]
fn a_half_that_was_kicked_lets_who_waits_go_on_in_any_order() {
    model(3, || {
        let gate = |_: &str| {
            let shared = std::sync::Arc::new(loom::sync::Mutex::new(false));
            let half = |down| Box::new(Gate { shared: shared.clone(), down });
            Ok(Halves { up: half(false), down: half(true) })
        };
        let (stream, device) = Stream::new(&make(Modules::default().with("gate", gate)));
        stream.push("gate").unwrap();
        let writer = {
            let stream = stream.clone();
            thread::spawn(move || block_on(stream.put(block(2))).unwrap())
        };
        let opener = thread::spawn(move || {
            block_on(device.put(block(1))).unwrap();
            device
        });
        writer.join().unwrap();
        let device = opener.join().unwrap();
        assert_eq!(block_on(device.take()).unwrap().unwrap().data(), [2]);
        drop(stream);
    });
}

#[test]
fn a_module_is_pushed_between_two_messages_in_any_order() {
    model(3, || {
        let pass = |_: &str| Ok(Halves { up: Box::new(crate::Pass), down: Box::new(crate::Pass) });
        let (a, b) = pipe(&make(Modules::default().with("pass", pass)));
        let pusher = {
            let (a, b) = (a.clone(), b.clone());
            thread::spawn(move || {
                // Refused while a module holds data, never half done.
                for stream in [&a, &b] {
                    if stream.push("pass").is_ok() {
                        assert_eq!(stream.modules().len(), 1);
                    }
                }
            })
        };
        let writer = thread::spawn(move || (1..=2).for_each(|n| block_on(a.put(block(n))).unwrap()));
        assert_eq!([next(&b), next(&b)], [Some(1), Some(2)]);
        writer.join().unwrap();
        pusher.join().unwrap();
    });
}
