//! Streams used by many threads at once, while other threads use all the processors.
//!
//! Every byte is checked by its position, every message by its number. Waiting threads are parked until a waker wakes
//! them. If a thread is never woken, the watchdog detects it and prints the state of each pipe.
#![cfg(not(nine_loom))]

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use nine_stream::{
    Block, CLASSES, Chain, Fault, Halves, Limit, Make, Module, Modules, Next, Pass, Pool, Stream, pipe,
};

/// Number of modules on both ends of each pipe.
const DEPTHS: [usize; 3] = [0, 1, 4];
/// Number of writing threads at each end.
const WRITERS: u64 = 2;
/// Memory for the data of all threads.
const MEMORY: usize = 2 << 20;
/// No correct run takes this long, even with little processor time.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn nothing_is_lost_beside_hogs() {
    run(Duration::from_secs(1));
}

#[test]
#[ignore = "half a minute: `--include-ignored` runs it"]
fn nothing_is_lost_beside_hogs_for_long() {
    run(Duration::from_secs(25));
}

fn run(time: Duration) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _hogs = Hogs::new();
    let pool = Pool::new(MEMORY);
    let until = Instant::now() + time;
    let (done, is_done) = channel();
    let mut pipes = Vec::new();
    let mut expected = 0;
    for depth in DEPTHS {
        let make = Make {
            limit: Limit { bytes: 64 << 10, blocks: 16 },
            modules: known(),
            ..Make::new(pool.clone())
        };
        let ends: [Stream; 2] = pipe(&make).into();
        for end in &ends {
            (0..depth).for_each(|_| end.push("turn").expect("pushed"));
        }
        let seen = Arc::new(Seen::default());
        for (side, end) in (0..).zip(&ends) {
            let mut begin = |who, work: fn(&Stream, &Seen, u64, Instant), n| {
                let (end, seen, done) = (end.clone(), seen.clone(), done.clone());
                thread::spawn(move || finish(&done, who, || work(&end, &seen, n, until)));
                expected += 1;
            };
            (0..WRITERS).for_each(|writer| begin("writer", write, writer));
            begin("reader", |end, seen, side, _| read(end, &seen.read[side as usize]), side);
            begin("pusher", |end, seen, _, until| push_and_pop(end, &seen.pushed, until), 0);
        }
        pipes.push((ends, seen));
    }
    for left in (1..=expected).rev() {
        match is_done.recv_timeout(time + PATIENCE) {
            Ok((_, Ok(()))) => {}
            Ok((who, Err(()))) => panic!("a {who} has failed{}", shown(&pipes)),
            Err(_) => panic!("{left} threads wait for ever{}", shown(&pipes)),
        }
    }
    let mut all = 0;
    for (ends, seen) in &pipes {
        for side in 0..2 {
            let (wrote, read) = (seen.wrote.load(Ordering::Relaxed), seen.read[side].load(Ordering::Relaxed));
            assert!(wrote > 0 && read > 0, "nothing has gone{}", shown(&pipes));
        }
        let read: u64 = seen.read.iter().map(|read| read.load(Ordering::Relaxed)).sum();
        assert_eq!(seen.wrote.load(Ordering::Relaxed), read, "messages are missing{}", shown(&pipes));
        assert!(seen.pushed.load(Ordering::Relaxed) > 0, "nothing was pushed{}", shown(&pipes));
        assert!(ends.iter().all(|end| end.waiting() == (0, 0) && !end.is_holding()), "{}", shown(&pipes));
        all += read;
    }
    drop(pipes);
    let again: Vec<_> = std::iter::from_fn(|| pool.try_alloc(CLASSES[6])).collect();
    assert_eq!(again.len(), MEMORY >> 20, "memory has not come back");
    println!("{all} messages in {time:?}");
}

/// The traffic of a pipe.
#[derive(Default)]
struct Seen {
    wrote: AtomicU64,
    /// Indexed by end.
    read: [AtomicU64; 2],
    pushed: AtomicU64,
    /// Number of writers that have ended.
    ended: AtomicU64,
}

fn shown(pipes: &[([Stream; 2], Arc<Seen>)]) -> String {
    let mut text = String::new();
    for (ends, seen) in pipes {
        let [wrote, a, b, pushed, ended] =
            [&seen.wrote, &seen.read[0], &seen.read[1], &seen.pushed, &seen.ended]
                .map(|n| n.load(Ordering::Relaxed));
        text += &format!("\nwrote {wrote}, read {a} and {b}, pushed {pushed}, {ended} writers have ended");
        for end in ends {
            let (waiting, full, holding) = (end.waiting(), end.is_full(), end.is_holding());
            let modules = end.modules().len();
            text += &format!("; {waiting:?} wait, full {full}, holding {holding}, {modules} modules");
        }
    }
    text
}

/// Reports the end of a thread to the watchdog, also after a panic.
fn finish(done: &Sender<(&'static str, Result<(), ()>)>, who: &'static str, work: impl FnOnce()) {
    struct Tell<'d>(&'d Sender<(&'static str, Result<(), ()>)>, &'static str);
    impl Drop for Tell<'_> {
        fn drop(&mut self) {
            let _ = self.0.send((self.1, if thread::panicking() { Err(()) } else { Ok(()) }));
        }
    }
    let _tell = Tell(done, who);
    work();
}

/// Writes messages of any length: the writer's name, a number, the length, and bytes derived from them.
fn write(end: &Stream, seen: &Seen, writer: u64, until: Instant) {
    let mut random = Random(writer + 1);
    let mut number = 0u64;
    while number == 0 || Instant::now() < until {
        let len = match random.below(8) {
            0 => random.below(100_000),
            1 => 0,
            _ => random.below(2000),
        };
        let message = message(writer, number, len);
        if random.below(4) == 0 {
            // Cancelled when it must wait: then nothing of it arrives.
            let mut block = Block::from(message);
            block.delim = true;
            match once(end.put(block)) {
                Poll::Ready(put) => put.expect("put"),
                Poll::Pending => continue,
            }
        } else {
            wait(end.write(&message)).expect("written");
        }
        number += 1;
        seen.wrote.fetch_add(1, Ordering::Relaxed);
    }
    // The last message in each direction announces the end.
    seen.ended.fetch_add(1, Ordering::SeqCst);
    let last = message(writer, u64::MAX, 0);
    wait(end.write(&last)).expect("written");
}

fn message(writer: u64, number: u64, len: u64) -> Vec<u8> {
    let mut message = [writer, number, len].map(u64::to_le_bytes).concat();
    message.extend((0..len).map(|at| (writer + number + at) as u8));
    message
}

fn read(end: &Stream, read: &AtomicU64) {
    let mut random = Random(99);
    let mut next = [0; WRITERS as usize];
    let mut left = WRITERS;
    let mut bytes = Vec::new();
    while left > 0 {
        if random.below(8) == 0 {
            // Cancelled when it must wait: then nothing is taken.
            if let Poll::Ready(block) = once(end.read_block()) {
                take(&mut bytes, block, &mut next, &mut left, read);
            }
            continue;
        }
        let block = wait(end.read_block());
        take(&mut bytes, block, &mut next, &mut left, read);
    }
    assert!(bytes.is_empty(), "half a message is left");
}

fn take(
    bytes: &mut Vec<u8>,
    block: Result<Option<Block>, Fault>,
    next: &mut [u64],
    left: &mut u64,
    read: &AtomicU64,
) {
    let block = block.expect("read").expect("nobody has ended it");
    bytes.extend(block.data());
    if !block.delim {
        return;
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let (writer, number, len) = (word(0), word(8), word(16));
    assert!(*bytes == message(writer, number, len), "message {number} of writer {writer} is broken");
    if number == u64::MAX {
        *left -= 1;
    } else {
        let next = &mut next[writer as usize];
        assert_eq!(number, *next, "of writer {writer}");
        *next += 1;
        read.fetch_add(1, Ordering::Relaxed);
    }
    bytes.clear();
}

/// Pushes and pops modules while messages pass.
fn push_and_pop(end: &Stream, pushed: &AtomicU64, until: Instant) {
    let base = end.modules().len();
    let mut mine = 0;
    loop {
        let over = Instant::now() >= until && pushed.load(Ordering::Relaxed) > 0;
        if over && mine == 0 {
            assert_eq!(end.modules().len(), base);
            return;
        }
        let did = if mine > 0 && (over || mine == 3) { end.pop() } else { end.push("pass") };
        match did {
            Ok(()) if end.modules().len() > base + mine => {
                mine += 1;
                pushed.fetch_add(1, Ordering::Relaxed);
            }
            Ok(()) => mine -= 1,
            Err(fault) => {
                assert_eq!(fault.to_string(), "a message is under way");
                thread::yield_now();
            }
        }
    }
}

/// Adds one to every byte that goes down, and subtracts one from every byte that comes up.
struct Turn(u8);

impl Module for Turn {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let mut out = Chain::default();
        for block in chain {
            let mut turned =
                Block::from(block.data().iter().map(|byte| byte.wrapping_add(self.0)).collect::<Vec<u8>>());
            turned.delim = block.delim;
            out.push(turned);
        }
        next.put(out);
        Ok(())
    }
}

fn known() -> Modules {
    let turn = |_: &str| Ok(Halves { up: Box::new(Turn(u8::MAX)), down: Box::new(Turn(1)) });
    let pass = |_: &str| Ok(Halves { up: Box::new(Pass), down: Box::new(Pass) });
    Modules::default().with("turn", turn).with("pass", pass)
}

/// Threads that only consume processor time. They end when this is dropped.
struct Hogs(Arc<AtomicBool>);

impl Hogs {
    fn new() -> Self {
        let over = Arc::<AtomicBool>::default();
        let cores = thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..2 * cores {
            let over = over.clone();
            thread::spawn(move || while !over.load(Ordering::Relaxed) {});
        }
        Self(over)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Parks until it is woken. The watchdog detects a thread that stays parked.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::park(),
        }
    }
}

/// Polls once and drops the future.
fn once<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}
