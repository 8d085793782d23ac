//! Modules: pushed, popped, full, faulty, with a window, with a timer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nine_stream::{Block, Chain, Control, Fault, Halves, Module, Modules, Next, Pass, Stream, pipe};

use super::hands::{Task, make, now, read};

/// Prepends a byte on the way down and removes it on the way up.
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
    // In a pipe, the other end's module without the mark runs in the writer's own put.
    assert_eq!(now(a.write(b"text")).unwrap_err().to_string(), "mark: no mark");
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
    // Each of the six modules between holds one chain. Then the first refuses the next ones.
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

/// Sends a last message.
struct Last(bool);

impl Module for Last {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        next.put(chain);
        Ok(())
    }

    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        if self.0 {
            next.put(Block::from(b"end".to_vec()));
        }
        Ok(())
    }
}

#[test]
fn modules_are_closed_one_after_the_other_each_when_all_before_it_has_come() {
    let clock = Arc::new(AtomicU64::new(0));
    let read_clock = clock.clone();
    let late = |_: &str| Ok(Halves { up: Box::new(Pass), down: Box::new(Late::default()) });
    let last = |_: &str| Ok(Halves { up: Box::new(Last(false)), down: Box::new(Last(true)) });
    let mut make = make(1000, 100, Modules::default().with("late", late).with("last", last));
    make.clock = Arc::new(move || Duration::from_millis(read_clock.load(Ordering::Relaxed)));
    let (a, b) = pipe(&make);
    a.push("late").unwrap();
    a.push("last").unwrap();
    now(a.write(b"one")).unwrap();
    now(a.write(b"two")).unwrap();
    a.hangup();
    assert_eq!(a.push("last").unwrap_err().to_string(), "the stream is hung up");
    assert_eq!(a.pop().unwrap_err().to_string(), "the stream is hung up");
    assert!(Task::new(b.read_block()).step().is_none());
    clock.store(1000, Ordering::Relaxed);
    assert_eq!(a.deadline(), Some(Duration::from_millis(1000)));
    a.tick();
    for text in ["one", "two", "end"] {
        assert_eq!(now(b.read_block()).unwrap().unwrap().data(), text.as_bytes());
    }
    assert!(now(b.read_block()).unwrap().is_none());
}

#[test]
fn a_pipe_that_one_end_has_closed_gives_the_other_all_that_was_on_its_way() {
    let last = |_: &str| Ok(Halves { up: Box::new(Last(true)), down: Box::new(Last(true)) });
    let (a, b) = pipe(&make(10, 1, Modules::default().with("last", last)));
    for stream in [&a, &b] {
        stream.push("last").unwrap();
        stream.push("last").unwrap();
    }
    let sent = std::iter::from_fn(|| a.try_put(Block::from(vec![1; 8])).ok()).count();
    now(b.put(Block::from(vec![2; 8]))).unwrap();
    assert!(b.try_put(Block::from(vec![2; 8])).is_ok(), "it waits in a module");
    drop(a);
    let mut seen = 0;
    while let Some(block) = now(b.read_block()).expect("the end is a good one") {
        seen += usize::from(block.data() == [1; 8]);
    }
    assert_eq!(seen, sent);
}

#[test]
fn there_are_only_so_many_modules_and_a_due_one_that_is_blocked_wants_no_time() {
    let late =
        |_: &str| Ok(Halves { up: Box::new(Pass), down: Box::new(Late { more: 1, ..Late::default() }) });
    let clock = Arc::new(AtomicU64::new(0));
    let read_clock = clock.clone();
    let mut make = make(10, 1, known().with("late", late));
    make.clock = Arc::new(move || Duration::from_millis(read_clock.load(Ordering::Relaxed)));
    let (a, b) = pipe(&make);
    for _ in 0..nine_stream::DEEPEST {
        b.push("pass").unwrap();
    }
    assert!(b.push("pass").unwrap_err().to_string().contains("no more"));
    (0..nine_stream::DEEPEST).for_each(|_| b.pop().unwrap());
    a.push("late").unwrap();
    for n in 0..3 {
        now(a.write(&[n; 8])).unwrap();
    }
    clock.store(9000, Ordering::Relaxed);
    a.tick();
    // One is with the reader, one is in the module's queue, and one is held and due.
    assert_eq!(a.deadline(), None);
    let seen: Vec<u8> = (0..3).map(|_| now(b.read_block()).unwrap().unwrap().data()[0]).collect();
    assert_eq!(seen, [0, 1, 2]);
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

/// A window of messages. The upper half delivers and acknowledges only while there is room above. The lower half sends
/// only as much as is acknowledged.
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
        for mut block in chain {
            if self.down {
                self.shared.lock().unwrap().held.push_back(block);
                continue;
            }
            match block.data().first() {
                Some(&ACK) => {
                    self.shared.lock().unwrap().unacked -= 1;
                    next.kick();
                }
                _ => {
                    block.advance(1);
                    // Data always goes upstream at once. Only the acknowledgement is withheld.
                    next.put(block);
                    self.shared.lock().unwrap().to_ack += 1;
                    if !next.is_full() {
                        next.kick();
                    }
                }
            }
        }
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
        let mut out: Vec<Block> = (0..std::mem::take(&mut shared.to_ack)).map(|_| vec![ACK].into()).collect();
        while shared.unacked < WINDOW
            && let Some(block) = shared.held.pop_front()
        {
            shared.unacked += 1;
            let mut sent = Block::from([&[DATA], block.data()].concat());
            sent.delim = block.delim;
            out.push(sent);
        }
        // Release the lock before passing data on: the other end may answer at once.
        drop(shared);
        out.into_iter().for_each(|block| next.put(block));
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.holds()
    }

    fn holds(&self) -> bool {
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
    // One waits at the reader and is acknowledged, a window of them is in flight, and one is held.
    assert!(sent <= 2 * WINDOW + 2, "{sent}");
    let mut waiting = Task::waiting(a.put(Block::from(vec![2; 8])));
    let mut got = 0;
    while got < sent {
        assert_eq!(now(b.read_block()).unwrap().unwrap().data(), [1; 8]);
        got += 1;
    }
    assert!(waiting.is_woken() && waiting.step().is_some());
    assert_eq!(now(b.read_block()).unwrap().unwrap().data(), [2; 8]);
    // The other direction works any number of times, too.
    for n in 0..100u8 {
        now(b.put(Block::from(vec![n]))).unwrap();
        assert_eq!(now(a.read_block()).unwrap().unwrap().data(), [n]);
    }
}

/// Holds everything for a second.
#[derive(Default)]
pub struct Late {
    held: VecDeque<(Duration, Chain)>,
    /// The number of chains that it accepts beyond two.
    more: usize,
}

impl Module for Late {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.held.push_back((next.now() + Duration::from_secs(1), chain));
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.held.len() >= 2 + self.more
    }

    fn holds(&self) -> bool {
        !self.held.is_empty()
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
    // It is busy until then. A closed stream lives until the module accepts the data; then it passes everything on.
    assert!(stream.pop().is_err());
    drop(stream);
    let taker = Task::waiting(device.take());
    clock.store(1500, Ordering::Relaxed);
    device.tick();
    drop(taker);
    assert_eq!(now(device.take()).unwrap().unwrap().data(), b"two");
    assert_eq!(now(device.take()).unwrap().unwrap().data(), b"three");
    assert!(now(device.take()).unwrap().is_none());
}
