//! Modules: pushed, popped, full, wrong, with a window, with a timer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nine_stream::{Block, Chain, Control, Fault, Halves, Module, Modules, Next, Pass, Stream, pipe};

use super::hands::{Task, make, now, read};

/// Adds a byte in front on the way down and takes it away on the way up.
struct Mark(u8, bool);

impl Module for Mark {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let Self(mark, down) = *self;
        let mut out = Chain::default();
        for mut block in chain {
            let delim = block.delim;
            if down {
                block = [&[mark], block.data()].concat().into();
                block.delim = delim;
            } else if block.data().first() == Some(&mark) {
                block.advance(1);
            } else {
                return Err(Fault::new("no mark"));
            }
            out.push(block);
        }
        next.put(out);
        Ok(())
    }

    fn control(&mut self, text: &str, _: &mut Next<'_, '_>) -> Control {
        match text.strip_prefix("mark ").map(str::parse) {
            Some(Ok(mark)) => {
                self.0 = mark;
                Control::Taken
            }
            Some(Err(_)) => Control::Refused(Fault::new("a mark is a number")),
            None => Control::NotMine,
        }
    }

    fn status(&self) -> String {
        self.0.to_string()
    }
}

fn known() -> Modules {
    let mark = |arguments: &str| {
        let mark = arguments.parse().map_err(|_| Fault::new("mark N"))?;
        Ok(Halves { up: Box::new(Mark(mark, false)), down: Box::new(Mark(mark, true)) })
    };
    let pass = |_: &str| Ok(Halves { up: Box::new(Pass), down: Box::new(Pass) });
    Modules::default().with("mark", mark).with("pass", pass)
}

#[test]
fn modules_lie_on_top_of_each_other_and_are_undone_in_reverse() {
    let (a, b) = pipe(&make(1000, 100, known()));
    for (n, stream) in [&a, &b].into_iter().enumerate() {
        stream.control(b"push mark 1").unwrap();
        stream.control(b"push pass\n").unwrap();
        stream.control(b" push mark 2 ").unwrap();
        let names = stream.modules();
        assert_eq!(names.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["mark", "pass", "mark"], "{n}");
        assert_eq!((&names[0].1[..], &names[2].1[..]), ("2", "1"));
    }
    now(a.write(b"text")).unwrap();
    assert_eq!(read(&b, 100), b"text");
    b.control(b"pop").unwrap();
    now(a.write(b"text")).unwrap();
    assert_eq!(read(&b, 100), b"\x02text");
    b.control(b"pop").unwrap();
    b.control(b"pop").unwrap();
    now(a.write(b"text")).unwrap();
    assert_eq!(read(&b, 100), b"\x01\x02text");
    assert_eq!(b.control(b"pop").unwrap_err().to_string(), "there is no module to pop");
}

#[test]
fn control_texts_are_wrong_in_many_ways_and_never_harm() {
    let (a, b) = pipe(&make(1000, 100, known()));
    a.push("mark 1").unwrap();
    b.push("mark 1").unwrap();
    for (text, said) in [
        (&b"push nothing"[..], "no module is called \"nothing\": there are mark pass"),
        (b"push", "no module is called \"\": there are mark pass"),
        (b"push mark", "mark N"),
        (b"mark 300", "a mark is a number"),
        (b"\xff\xfe", "a control text is text"),
        (b"", "no module knows \"\""),
        (b"pop it", "no module knows \"pop it\""),
        (b"hangup now", "no module knows \"hangup now\""),
        (b"\0\0", "no module knows \"\\0\\0\""),
    ] {
        assert_eq!(a.control(text).unwrap_err().to_string(), said);
    }
    now(a.write(b"text")).unwrap();
    assert_eq!(read(&b, 100), b"text");
    a.control(b"mark 7").unwrap();
    now(a.write(b"text")).unwrap();
    assert_eq!(now(b.read(&mut [0; 9])).unwrap_err().to_string(), "mark: no mark");
    // The error hangs up both ends.
    assert!(now(a.write(b"x")).is_err());
    assert!(now(b.write(b"x")).is_err());
    assert!(a.control(b"hangup").is_ok());
}

#[test]
fn nothing_is_pushed_or_popped_in_the_middle_of_a_message() {
    let (a, b) = pipe(&make(1000, 100, known()));
    let block = |delim| {
        let mut block = Block::from(b"part".to_vec());
        block.delim = delim;
        block
    };
    now(a.put(block(false))).unwrap();
    for stream in [&a, &b] {
        assert_eq!(stream.push("pass").unwrap_err().to_string(), "a message is under way");
    }
    now(a.put(block(true))).unwrap();
    a.push("pass").unwrap();
    b.push("pass").unwrap();
    now(b.put(block(false))).unwrap();
    assert!(a.pop().is_err() && b.pop().is_err());
    now(b.put(block(true))).unwrap();
    a.pop().unwrap();
    b.pop().unwrap();
}

#[test]
fn what_a_full_queue_refuses_waits_in_the_module_above_and_goes_on_by_itself() {
    let (a, b) = pipe(&make(100, 100, known()));
    for _ in 0..3 {
        a.push("mark 9").unwrap();
        b.push("mark 9").unwrap();
    }
    now(a.write(&[5; 97])).unwrap();
    // One in each of the six modules between, the first refuses what follows.
    let mut put = 0;
    while a.try_put(Block::from(vec![6; 20])).is_ok() {
        put += 1;
    }
    assert_eq!(put, 6);
    let writer = Task::waiting(a.put(Block::from(vec![7; 20])));
    assert_eq!(read(&b, 97), [5; 97]);
    assert!(writer.end().is_ok());
    let mut seen = Vec::new();
    while seen.len() < 140 {
        seen.extend(read(&b, 20));
    }
    assert_eq!(seen, [vec![6; 120], vec![7; 20]].concat());
}

#[test]
fn what_waits_in_modules_arrives_though_its_writer_has_closed() {
    for hangup in [false, true] {
        let make = make(10, 1, known());
        let (a, b) = pipe(&make);
        for stream in [&a, &b] {
            stream.push("mark 1").unwrap();
            stream.push("mark 2").unwrap();
        }
        let mut sent = 0;
        while a.try_put(Block::from(vec![sent; 8])).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, 5, "one at the end and one in each module");
        if hangup {
            a.hangup();
            assert!(now(a.write(b"more")).is_err());
        }
        drop(a);
        assert!(now(b.write(b"nobody")).is_err());
        let seen: Vec<u8> = std::iter::from_fn(|| Some(now(b.read_block()).unwrap()?.data()[0])).collect();
        assert_eq!(seen, [0, 1, 2, 3, 4]);
    }
}

#[test]
fn what_waits_in_modules_goes_when_nobody_will_ever_read_it() {
    let make = make(10, 1, known());
    let (a, b) = pipe(&make);
    a.push("pass").unwrap();
    let put = || {
        let mut block = make.pool.try_alloc(1 << 20)?;
        block.fill(b"12345678");
        a.try_put(block).ok()
    };
    assert_eq!(std::iter::from_fn(put).count(), 2);
    drop(a);
    drop(b);
    let all: Vec<_> = std::iter::from_fn(|| make.pool.try_alloc(1 << 20)).collect();
    assert_eq!(all.len(), 4, "all memory has come back");
}

/// A window of messages: the upper half delivers and acknowledges only while there is room above, the lower half sends
/// no more than are acknowledged.
struct Window {
    shared: Arc<Mutex<Shared>>,
    down: bool,
}

#[derive(Default)]
struct Shared {
    unacked: u32,
    to_ack: u32,
    held: VecDeque<Block>,
}

const WINDOW: u32 = 4;
const DATA: u8 = b'd';
const ACK: u8 = b'a';

impl Module for Window {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let mut shared = self.shared.lock().unwrap();
        for mut block in chain {
            if self.down {
                shared.held.push_back(block);
                continue;
            }
            match block.data().first() {
                Some(&ACK) => {
                    shared.unacked -= 1;
                    next.kick();
                }
                _ => {
                    block.advance(1);
                    // Always upstream, never asleep: what is withheld is the acknowledgement.
                    next.put(block);
                    shared.to_ack += 1;
                    if !next.is_full() {
                        next.kick();
                    }
                }
            }
        }
        drop(shared);
        if self.down { self.resume(next) } else { Ok(()) }
    }

    fn resume(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let mut shared = self.shared.lock().unwrap();
        if !self.down {
            if shared.to_ack > 0 {
                next.kick();
            }
            return Ok(());
        }
        while shared.to_ack > 0 {
            shared.to_ack -= 1;
            next.put(Block::from(vec![ACK]));
        }
        while shared.unacked < WINDOW
            && let Some(block) = shared.held.pop_front()
        {
            shared.unacked += 1;
            let mut out = Block::from([&[DATA], block.data()].concat());
            out.delim = block.delim;
            next.put(out);
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.down && !self.shared.lock().unwrap().held.is_empty()
    }
}

#[test]
fn a_module_with_a_window_withholds_acknowledgements_while_nobody_reads() {
    let window = |_: &str| {
        let shared = Arc::<Mutex<Shared>>::default();
        let half = |down| Box::new(Window { shared: shared.clone(), down });
        Ok(Halves { up: half(false), down: half(true) })
    };
    let (a, b) = pipe(&make(10, 1, Modules::default().with("window", window)));
    a.push("window").unwrap();
    b.push("window").unwrap();
    let mut sent = 0;
    while a.try_put(Block::from(vec![1; 8])).is_ok() {
        sent += 1;
        assert!(sent < 100);
    }
    // One waits at the reader and is acknowledged, a window of them is under way, one is held.
    assert!(sent <= 2 * WINDOW + 2, "{sent}");
    let mut waiting = Task::waiting(a.put(Block::from(vec![2; 8])));
    let mut got = 0;
    while got < sent {
        assert_eq!(now(b.read_block()).unwrap().unwrap().data(), [1; 8]);
        got += 1;
    }
    assert!(waiting.is_woken() && waiting.step().is_some());
    assert_eq!(now(b.read_block()).unwrap().unwrap().data(), [2; 8]);
    // The other way, too, as often as one likes.
    for n in 0..100u8 {
        now(b.put(Block::from(vec![n]))).unwrap();
        assert_eq!(now(a.read_block()).unwrap().unwrap().data(), [n]);
    }
}

/// Holds everything for a second.
#[derive(Default)]
struct Late {
    held: VecDeque<(Duration, Chain)>,
}

impl Module for Late {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.held.push_back((next.now() + Duration::from_secs(1), chain));
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.held.len() >= 2
    }

    fn deadline(&self) -> Option<Duration> {
        self.held.front().map(|(due, _)| *due)
    }

    fn resume(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        while !next.is_full()
            && let Some((due, _)) = self.held.front()
            && *due <= next.now()
            && let Some((_, chain)) = self.held.pop_front()
        {
            next.put(chain);
        }
        Ok(())
    }

    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.held.drain(..).for_each(|(_, chain)| next.put(chain));
        Ok(())
    }
}

#[test]
fn a_module_with_a_timer_goes_on_when_its_time_comes() {
    let late = |_: &str| Ok(Halves { up: Box::new(Pass), down: Box::new(Late::default()) });
    let mut make = make(1000, 100, Modules::default().with("late", late));
    let clock = Arc::new(AtomicU64::new(0));
    let read_clock = clock.clone();
    make.clock = Arc::new(move || Duration::from_millis(read_clock.load(Ordering::Relaxed)));
    let (stream, device) = Stream::new(&make);
    stream.push("late").unwrap();
    assert_eq!(device.deadline(), None);
    now(stream.write(b"one")).unwrap();
    clock.store(500, Ordering::Relaxed);
    now(stream.write(b"two")).unwrap();
    let third = Task::waiting(stream.write(b"three"));
    assert_eq!(device.deadline(), Some(Duration::from_millis(1000)));
    device.tick();
    let taker = Task::waiting(device.take());
    clock.store(1000, Ordering::Relaxed);
    device.tick();
    assert_eq!(taker.end().unwrap().unwrap().data(), b"one");
    third.end().unwrap();
    assert_eq!(device.deadline(), Some(Duration::from_millis(1500)));
    // It is busy until then, and what it holds when the stream is closed goes with it.
    assert!(stream.pop().is_err());
    drop(stream);
    assert_eq!(now(device.take()).unwrap().unwrap().data(), b"two");
    assert_eq!(now(device.take()).unwrap().unwrap().data(), b"three");
    assert!(now(device.take()).unwrap().is_none());
}
