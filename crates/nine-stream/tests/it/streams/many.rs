//! Many conversations on one stream, stepped by hand, with a multiplexor or raw bytes at the other end.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use nine_stream::{
    Block, Chain, Fault, Halves, Limits, Make, Many, Module, Modules, Next, Pass, Pool, Side, Stream, many,
    pipe,
};

use super::hands::{Task, make, now, read};

const SMALL: Limits = Limits { window: 4096, conversations: 4 };
/// Window cost of a frame besides its bytes.
const COST: usize = 128;

type Drive = Task<'static, Result<(), Fault>>;

/// A driver's task, and its result.
struct Driving(Option<Drive>, Option<Result<(), Fault>>);

impl Driving {
    fn new(driver: nine_stream::Driver) -> Self {
        fn goes_to_any_thread<T: Send>(future: T) -> T {
            future
        }
        let mut driving = Self(Some(Task::new(goes_to_any_thread(driver.drive()))), None);
        driving.step();
        driving
    }

    fn step(&mut self) {
        if let Some(task) = &mut self.0
            && let Some(ended) = task.step()
        {
            *self = Self(None, Some(ended));
        }
    }

    /// Runs it as often as it is woken. Returns whether it was.
    fn run(&mut self) -> bool {
        let mut ran = false;
        while self.0.as_ref().is_some_and(Task::is_woken) {
            self.step();
            ran = true;
        }
        ran
    }
}

/// Two multiplexors on a pipe.
struct Pair {
    many: [Many; 2],
    driving: [Driving; 2],
}

impl Pair {
    fn new(limits: [Limits; 2], make: &Make, lower: &Make) -> Self {
        let (a, b) = pipe(lower);
        let mut first = Task::new(many(a, Side::Dialer, limits[0], make));
        assert!(first.step().is_none());
        let (b, drive_b) = now(many(b, Side::Listener, limits[1], make)).unwrap();
        let (a, drive_a) = first.end().unwrap();
        Self { many: [a, b], driving: [Driving::new(drive_a), Driving::new(drive_b)] }
    }

    fn run(&mut self) {
        loop {
            let [a, b] = &mut self.driving;
            if !(a.run() | b.run()) {
                return;
            }
        }
    }

    /// Opens a conversation on one side, and accepts it on the other.
    fn open(&mut self, by: usize) -> (Stream, Stream) {
        let (number, opened) = self.many[by].open().unwrap();
        self.run();
        let (same, accepted) = now(self.many[1 - by].accept()).unwrap().unwrap();
        assert_eq!(number, same);
        (opened, accepted)
    }
}

/// A multiplexor with raw bytes at the other end.
struct Raw {
    many: Many,
    driving: Driving,
    peer: Stream,
}

fn hello(side: u8, window: u32, conversations: u16) -> Vec<u8> {
    let body = [&[1, side][..], &window.to_le_bytes(), &conversations.to_le_bytes()].concat();
    frame(1, 0, &body)
}

fn frame(kind: u8, number: u32, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u16).to_le_bytes()[..], &[kind], &number.to_le_bytes(), body].concat()
}

const OPEN: u8 = 2;
const PART: u8 = 3;
const LAST: u8 = 4;
const CREDIT: u8 = 5;
const END: u8 = 6;
const CLOSE: u8 = 7;

impl Raw {
    /// Creates the listener with these limits. The dialler's first bytes are `said`.
    fn new(limits: Limits, said: &[u8]) -> Result<Self, Fault> {
        let make = make(1 << 20, 10_000, Modules::default());
        let (a, peer) = pipe(&make);
        now(peer.put(Block::from(said.to_vec()))).unwrap();
        if said.is_empty() {
            peer.finish();
        }
        let (many, driver) = now(many(a, Side::Listener, limits, &make))?;
        let mut raw = Self { many, driving: Driving::new(driver), peer };
        let [first] = &raw.frames()[..] else { panic!("it says hello") };
        assert_eq!(first.0, 1);
        Ok(raw)
    }

    fn usual() -> Self {
        Self::new(SMALL, &hello(1, 4096, 4)).unwrap()
    }

    fn say(&mut self, bytes: Vec<u8>) {
        now(self.peer.put(Block::from(bytes))).unwrap();
        self.driving.run();
    }

    /// Returns the received frames: kind, number, body.
    fn frames(&mut self) -> Vec<(u8, u32, Vec<u8>)> {
        self.driving.run();
        let mut bytes = VecDeque::new();
        while let Poll::Ready(Ok(Some(block))) = self.peer.try_read_block() {
            bytes.extend(block.data());
            self.driving.run();
        }
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let header: Vec<u8> = bytes.drain(..7).collect();
            let size = u16::from_le_bytes([header[0], header[1]]);
            let number = u32::from_le_bytes(header[3..].try_into().unwrap());
            frames.push((header[2], number, bytes.drain(..usize::from(size)).collect()));
        }
        frames
    }

    fn kinds(&mut self) -> Vec<(u8, u32)> {
        self.frames().into_iter().map(|(kind, number, _)| (kind, number)).collect()
    }
}

fn message(bytes: Vec<u8>) -> Block {
    let mut block = Block::from(bytes);
    block.delim = true;
    block
}

fn plain() -> Make {
    make(16 << 10, 64, Modules::default())
}

/// Reads the available data. Returns the bytes, and the result if the end was reached.
fn all(stream: &Stream) -> (Vec<u8>, Option<Result<(), Fault>>) {
    let mut bytes = Vec::new();
    loop {
        match stream.try_read_block() {
            Poll::Ready(Ok(Some(block))) => bytes.extend_from_slice(block.data()),
            Poll::Ready(Ok(None)) => return (bytes, Some(Ok(()))),
            Poll::Ready(Err(fault)) => return (bytes, Some(Err(fault))),
            Poll::Pending => return (bytes, None),
        }
    }
}

#[test]
fn messages_go_both_ways_and_keep_their_borders() {
    let mut pair = Pair::new([SMALL; 2], &plain(), &plain());
    let (a, b) = pair.open(0);
    let (c, d) = pair.open(1);
    for (from, to, text) in [(&a, &b, "one"), (&b, &a, ""), (&c, &d, "three"), (&d, &c, "four")] {
        now(from.write(text.as_bytes())).unwrap();
        now(from.put(Block::from(vec![]))).unwrap();
        now(from.write(b"next")).unwrap();
        pair.run();
        assert_eq!(read(to, 100), text.as_bytes());
        assert_eq!(read(to, 2), b"ne");
        assert_eq!(read(to, 100), b"xt");
    }
    // A message larger than a frame and than the window.
    let large: Vec<u8> = (0..40_000u32).map(|n| n as u8).collect();
    let mut writer = Task::new(a.write(&large));
    let mut done = writer.step().is_some();
    let mut seen = Vec::new();
    while seen.len() < large.len() {
        pair.run();
        let Poll::Ready(Ok(Some(block))) = b.try_read_block() else { panic!("it stands still") };
        assert!(!block.delim || seen.len() + block.len() == large.len(), "one message");
        seen.extend_from_slice(block.data());
        done = done || writer.is_woken() && writer.step().is_some();
    }
    assert!(done && seen == large);
}

#[test]
fn a_stalled_reader_holds_up_nobody_and_no_more_than_its_window_and_its_queues() {
    let limits = Limits { window: 64 << 10, conversations: 4 };
    // The memory and the queue of the lower stream are smaller than the stalled data.
    let mut pair = Pair::new([limits; 2], &plain(), &make(8 << 10, 16, Modules::default()));
    let (stalled, reader) = pair.open(0);
    let (busy, eager) = pair.open(0);
    let mut put = 0u32;
    while stalled.try_put(message(vec![put as u8; 1000])).is_ok() {
        put += 1;
        pair.run();
    }
    let bytes = put as usize * 1000;
    let window = (64 << 10) / (1000 + COST) * 1000;
    // Sixteen messages wait to be sent. The reader's queue has accepted less than half a window, so no credit was sent.
    assert_eq!(bytes, window + 16_000);
    let mut waiting = Task::waiting(stalled.write(&[0xee; 500]));
    let piece: Vec<u8> = (0..5000u32).map(|n| (n % 251) as u8).collect();
    for _ in 0..1000 {
        let mut writer = Task::new(busy.write(&piece));
        let mut done = writer.step().is_some();
        let mut seen = Vec::new();
        while seen.len() < piece.len() {
            pair.run();
            let Poll::Ready(Ok(Some(block))) = eager.try_read_block() else { panic!("it is held up") };
            seen.extend_from_slice(block.data());
        }
        pair.run();
        done = done || writer.step().is_some();
        assert!(done && seen == piece);
    }
    assert!(!waiting.is_woken());
    // The stalled conversation loses no data.
    for n in 0..put {
        pair.run();
        assert_eq!(read(&reader, 2000), vec![n as u8; 1000], "{n}");
    }
    assert!(waiting.is_woken() && waiting.step().is_some());
    pair.run();
    assert_eq!(read(&reader, 2000), [0xee; 500]);
}

#[test]
fn nothing_goes_without_credit_and_what_is_taken_comes_back() {
    let mut raw = Raw::usual();
    let (number, stream) = raw.many.open().unwrap();
    assert_eq!(number, 2);
    now(stream.write(&[7; 10_000])).unwrap();
    let frames = raw.frames();
    assert_eq!((frames[0].0, frames[0].1), (OPEN, 2));
    let data = |frames: &[(u8, u32, Vec<u8>)]| frames.iter().map(|frame| frame.2.len()).sum::<usize>();
    assert_eq!(data(&frames[1..]), 4096 - COST);
    assert!(frames[1..].iter().all(|frame| frame.0 == PART));
    raw.say(frame(CREDIT, 2, &(COST as u32).to_le_bytes()));
    assert!(raw.frames().is_empty(), "a frame of nothing is not worth it");
    raw.say(frame(CREDIT, 2, &1u32.to_le_bytes()));
    assert_eq!(raw.frames(), [(PART, 2, vec![7])]);
    raw.say(frame(CREDIT, 2, &4096u32.to_le_bytes()));
    raw.say(frame(CREDIT, 2, &3000u32.to_le_bytes()));
    let last = raw.frames().pop().unwrap();
    assert_eq!(last.0, LAST);

    // In the other direction, credit comes for half a window or more, and only for data that the stream has accepted.
    let mut raw = Raw::new(SMALL, &hello(1, 4096, 4)).unwrap();
    raw.say([frame(OPEN, 1, &[]), frame(LAST, 1, &[1; 1900])].concat());
    assert!(raw.frames().is_empty());
    raw.say(frame(LAST, 1, &[2; 100]));
    let credit = raw.frames().pop().unwrap();
    assert_eq!((credit.0, credit.2), (CREDIT, 2256u32.to_le_bytes().to_vec()));
    // After the end no credit is needed.
    raw.say([frame(LAST, 1, &[1; 3000]), frame(END, 1, &[])].concat());
    assert!(raw.frames().is_empty());
}

#[test]
fn what_is_on_its_way_at_a_close_arrives_and_then_the_end() {
    for drop_it in [true, false] {
        let mut pair = Pair::new([SMALL; 2], &plain(), &plain());
        let (a, b) = pair.open(0);
        let (other, same) = pair.open(0);
        let mut sent = 0u32;
        while a.try_put(message(vec![sent as u8; 1000])).is_ok() {
            sent += 1;
            pair.run();
        }
        now(b.write(b"unread")).unwrap();
        if drop_it {
            drop(a)
        } else {
            a.hangup()
        }
        pair.run();
        for n in 0..sent {
            assert_eq!(read(&b, 2000), vec![n as u8; 1000]);
            pair.run();
        }
        assert!(now(b.read_block()).unwrap().is_none());
        assert_eq!(now(b.write(b"nobody")).unwrap_err().to_string(), "the stream is hung up");
        now(same.write(b"alive")).unwrap();
        pair.run();
        assert_eq!(read(&other, 100), b"alive");
        drop(b);
        pair.run();
        for _ in 0..3 {
            pair.many[0].open().expect("the number of the first one is free");
        }
        assert!(pair.many[0].open().is_err());
    }
}

#[test]
fn a_stream_that_has_finished_still_reads() {
    let mut pair = Pair::new([SMALL; 2], &plain(), &plain());
    let (a, b) = pair.open(0);
    now(a.write(b"question")).unwrap();
    a.finish();
    pair.run();
    assert_eq!(all(&b), (b"question".to_vec(), Some(Ok(()))));
    for _ in 0..20 {
        now(b.write(&[5; 1000])).unwrap();
        pair.run();
        assert_eq!(read(&a, 2000), [5; 1000]);
    }
    drop(b);
    pair.run();
    assert_eq!(all(&a), (vec![], Some(Ok(()))));
}

#[test]
fn a_reset_says_why_and_harms_no_other() {
    for (by, has_finished) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut pair = Pair::new([SMALL; 2], &plain(), &plain());
        let (a, b) = pair.open(0);
        let (c, d) = pair.open(0);
        now(a.write(b"before")).unwrap();
        pair.run();
        while a.try_put(message(vec![1; 1000])).is_ok() {
            pair.run();
        }
        let writer = Task::waiting(a.write(b"more"));
        if has_finished {
            b.finish();
            pair.run();
        }
        pair.many[by].reset(1, Fault::new("enough"));
        pair.run();
        assert_eq!(writer.end().unwrap_err().to_string(), "enough");
        let (bytes, end) = all(&b);
        assert_eq!(&bytes[..6], b"before");
        // The side that resets reads no more. The other one reads the data that has arrived.
        let end = end.or_else(|| {
            pair.run();
            all(&b).1
        });
        assert_eq!(end, Some(Err(Fault::new("enough"))));
        let end = if has_finished { Ok(()) } else { Err(Fault::new("enough")) };
        assert_eq!(all(&a).1, Some(end));
        assert!(now(b.write(b"x")).is_err());
        now(c.write(b"alive")).unwrap();
        pair.run();
        assert_eq!(read(&d, 100), b"alive");
        // A number counts until both ends are closed.
        let more: Vec<_> = (0..2).map(|_| pair.many[0].open().unwrap()).collect();
        drop(a);
        pair.run();
        assert!(pair.many[0].open().is_err());
        drop(b);
        pair.run();
        assert_eq!(pair.many[0].open().unwrap().0, more[1].0 + 2);
        pair.many[0].reset(1, Fault::new("long gone"));
        pair.many[0].reset(999, Fault::new("never there"));
    }
}

#[test]
fn what_waits_to_be_sent_is_thrown_away_by_a_reset() {
    for by_peer in [false, true] {
        let mut raw = Raw::new(SMALL, &hello(1, 1 << 20, 4)).unwrap();
        let (number, stream) = raw.many.open().unwrap();
        if by_peer {
            raw.frames();
        }
        stream.try_put(message(vec![1; 100_000])).unwrap();
        if by_peer {
            now(raw.peer.put(Block::from(frame(END, number, b"no")))).unwrap();
            drop(stream);
            assert_eq!(raw.kinds(), [(CLOSE, number)]);
        } else {
            raw.many.reset(number, Fault::new("no"));
            assert_eq!(raw.kinds(), [(OPEN, number), (END, number)]);
        }
    }
}

#[test]
fn what_has_finished_both_ways_can_still_be_reset() {
    let mut raw = Raw::usual();
    let (number, stream) = raw.many.open().unwrap();
    stream.try_put(message(vec![1; 10_000])).unwrap();
    stream.finish();
    raw.say(frame(END, number, &[]));
    assert_eq!(raw.kinds(), [(OPEN, number), (PART, number)]);
    assert!(now(stream.read_block()).unwrap().is_none());
    raw.many.reset(number, Fault::new("no"));
    assert_eq!(raw.frames(), [(END, number, b"no".to_vec())]);
}

#[test]
fn a_reset_says_something_and_not_too_much() {
    let mut raw = Raw::usual();
    for (why, said) in [("", "no reason was given".to_string()), (&"é".repeat(200), "é".repeat(128))] {
        let (number, stream) = raw.many.open().unwrap();
        raw.frames();
        raw.many.reset(number, Fault::new(why));
        assert_eq!(raw.frames(), [(END, number, said.into_bytes())]);
        drop(stream);
        assert_eq!(raw.frames(), [(CLOSE, number, vec![])]);
        raw.say(frame(CLOSE, number, &[]));
    }
    assert!(raw.driving.1.is_none());
}

#[test]
fn opens_from_both_sides_at_once_are_two_conversations() {
    let mut pair = Pair::new([SMALL; 2], &plain(), &plain());
    let (ones, twos): (Vec<_>, Vec<_>) =
        (0..4).map(|_| (pair.many[0].open().unwrap(), pair.many[1].open().unwrap())).unzip();
    for (streams, text) in [(&ones, 1), (&twos, 2)] {
        for (number, stream) in streams {
            now(stream.write(&[text, *number as u8])).unwrap();
        }
    }
    pair.run();
    for (opened, to, first, text) in [(ones, 1, 1, 1), (twos, 0, 2, 2)] {
        for (n, (number, stream)) in opened.into_iter().enumerate() {
            assert_eq!(number, first + 2 * n as u32);
            let (same, accepted) = now(pair.many[to].accept()).unwrap().unwrap();
            assert_eq!(number, same);
            assert_eq!(read(&accepted, 9), [text, number as u8]);
            now(accepted.write(b"back")).unwrap();
            pair.run();
            assert_eq!(read(&stream, 9), b"back");
        }
    }
}

#[test]
fn one_more_than_either_side_takes_is_refused_on_the_spot() {
    let limits = |conversations| Limits { window: 4096, conversations };
    for mine in [2, 9] {
        let mut pair = Pair::new([limits(mine), limits(11 - mine)], &plain(), &plain());
        let mut opened: Vec<_> = (0..2).map(|_| pair.many[0].open().unwrap()).collect();
        let refused = pair.many[0].open().err().unwrap();
        assert_eq!(refused.to_string(), "2 conversations are open, and no more may be");
        // A conversation that was not accepted still counts, although its opener is gone and it was reset.
        pair.many[0].reset(1, Fault::new("changed my mind"));
        opened.clear();
        pair.run();
        assert!(pair.many[0].open().is_err());
        drop(now(pair.many[1].accept()).unwrap());
        pair.run();
        assert_eq!(pair.many[0].open().unwrap().0, 5);
        pair.run();
        assert!(pair.driving.iter().all(|driving| driving.1.is_none()));
    }
}

#[test]
fn who_waits_for_a_conversation_is_told_in_order() {
    let mut pair = Pair::new([SMALL; 2], &plain(), &plain());
    let [dialer, listener] = pair.many.clone();
    let mut tasks: Vec<_> = (0..4).map(|_| Task::waiting(listener.accept())).collect();
    let _opened = [dialer.open().unwrap(), dialer.open().unwrap()];
    pair.run();
    assert!(tasks[0].is_woken() && !tasks[1].is_woken());
    drop(tasks.remove(0));
    let (number, _kept) = tasks.remove(0).end().unwrap().unwrap();
    let (next, _kept) = tasks.remove(0).end().unwrap().unwrap();
    assert_eq!((number, next), (1, 3));
    pair.driving[1] = Driving(None, None);
    assert_eq!(tasks.remove(0).end().err().unwrap().to_string(), "nobody drives the conversations");
}

#[test]
fn a_fast_writer_and_a_slow_one_take_turns() {
    let make = make(1 << 20, 10_000, Modules::default());
    let lower = super::hands::make(1000, 4, Modules::default());
    let (a, peer) = pipe(&lower);
    now(peer.put(Block::from(hello(1, 1 << 20, 9)))).unwrap();
    let (many, driver) = now(many(a, Side::Listener, Limits::default(), &make)).unwrap();
    let streams: Vec<_> = (0..3).map(|_| many.open().unwrap().1).collect();
    for _ in 0..10 {
        now(streams[0].put(message(vec![2; 60_000]))).unwrap();
        (0..5).for_each(|_| now(streams[1].put(message(vec![4; 5000]))).unwrap());
    }
    now(streams[2].put(message(vec![6; 1]))).unwrap();
    let mut driving = Driving::new(driver);
    let mut order = Vec::new();
    let mut bytes = Vec::new();
    while let Poll::Ready(Ok(Some(block))) = peer.try_read_block() {
        bytes.extend_from_slice(block.data());
        driving.run();
    }
    let mut at = 17 - 2;
    while at < bytes.len() {
        let size = usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        if [PART, LAST].contains(&bytes[at + 2]) {
            order.push((bytes[at + 3], size));
        }
        at += 7 + size;
    }
    // A turn ends at 16 KiB or shortly after: at four of the smaller messages.
    let turns: Vec<u8> = order.chunk_by(|a, b| a.0 == b.0).map(|turn| turn[0].0).collect();
    assert_eq!(turns[..9], [2, 4, 6, 2, 4, 2, 4, 2, 4]);
    let both = turns.iter().rposition(|number| *number == 4).unwrap();
    for turn in order.chunk_by(|a, b| a.0 == b.0).take(both) {
        assert!(turn.iter().map(|(_, size)| size).sum::<usize>() < 32 << 10, "{turn:?}");
    }
    assert_eq!(order.iter().map(|(_, size)| size).sum::<usize>(), 850_001);
}

#[test]
fn frames_may_be_cut_anywhere() {
    let said = [
        hello(1, 4096, 4),
        frame(OPEN, 1, &[]),
        frame(PART, 1, b"ab"),
        frame(LAST, 1, b"cd"),
        frame(LAST, 1, b""),
        frame(OPEN, 3, &[]),
        frame(LAST, 3, b"ef"),
        frame(END, 1, &[]),
    ]
    .concat();
    for size in [1, 2, 3, 7, 8, 1000] {
        let make = make(1 << 20, 10_000, Modules::default());
        let (a, peer) = pipe(&make);
        for piece in said.chunks(size) {
            now(peer.put(Block::from(piece.to_vec()))).unwrap();
            now(peer.put(Block::from(vec![]))).unwrap();
        }
        let (many, driver) = now(many(a, Side::Listener, SMALL, &make)).unwrap();
        let mut driving = Driving::new(driver);
        driving.run();
        let (_, one) = now(many.accept()).unwrap().unwrap();
        let (_, three) = now(many.accept()).unwrap().unwrap();
        assert_eq!(read(&one, 9), b"abcd");
        assert_eq!(read(&one, 9), b"");
        assert!(now(one.read_block()).unwrap().is_none());
        assert_eq!(read(&three, 9), b"ef");
    }
}

#[test]
fn what_is_no_hello_begins_nothing() {
    for (said, fault) in [
        (frame(OPEN, 1, &[]), "the first frame is no hello"),
        (frame(1, 1, &hello(1, 4096, 4)[7..]), "the first frame is no hello"),
        (hello(0, 4096, 4), "both ends have dialled, or neither has"),
        (hello(2, 4096, 4), "a hello of another version, or of no side"),
        (frame(1, 0, &[2, 1, 0, 16, 0, 0, 4, 0]), "a hello of another version, or of no side"),
        (hello(1, 4095, 4), "the window of the other end is too small"),
        (frame(1, 0, &[1, 1]), "a frame of kind 1 has no 2 bytes"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(), "no frame is of kind 255"),
        (vec![], "the lower stream has ended before a hello"),
        (frame(END, 0, b"no"), "the other end has given up: no"),
    ] {
        assert_eq!(Raw::new(SMALL, &said).err().expect(fault).to_string(), fault);
    }
}

#[test]
fn what_must_not_be_said_ends_the_lower_stream() {
    let open = || frame(OPEN, 1, &[]);
    let reset = || frame(END, 1, b"why");
    let part = |n: usize| frame(PART, 1, &vec![1; n]);
    let credit = |n: u32| frame(CREDIT, 1, &n.to_le_bytes());
    let cases: Vec<(Vec<Vec<u8>>, &str)> = vec![
        (vec![hello(1, 4096, 4)], "conversation 0 is not open"),
        (
            vec![open(), frame(1, 1, &[1, 1, 0, 16, 0, 0, 1, 0])],
            "conversation 1: a frame that has no place here",
        ),
        (vec![frame(0, 1, &[])], "no frame is of kind 0"),
        (vec![frame(8, 1, &[])], "no frame is of kind 8"),
        (vec![frame(OPEN, 1, &[0])], "a frame of kind 2 has no 1 bytes"),
        (vec![open(), frame(CLOSE, 1, &[0])], "a frame of kind 7 has no 1 bytes"),
        (vec![open(), part(0)], "a frame of kind 3 has no 0 bytes"),
        (vec![open(), part((16 << 10) + 1)], "a frame of kind 3 has no 16385 bytes"),
        (vec![open(), frame(LAST, 1, &[0; (16 << 10) + 1])], "a frame of kind 4 has no 16385 bytes"),
        (vec![open(), frame(CREDIT, 1, &[1])], "a frame of kind 5 has no 1 bytes"),
        (vec![open(), frame(END, 1, &[b'x'; 257])], "a frame of kind 6 has no 257 bytes"),
        (vec![frame(OPEN, 0, &[])], "conversation 0 is not the next one"),
        (vec![frame(OPEN, 2, &[])], "conversation 2 is not the next one"),
        (vec![frame(OPEN, 3, &[])], "conversation 3 is not the next one"),
        (vec![open(), open()], "conversation 1 is not the next one"),
        (vec![open(), frame(OPEN, u32::MAX, &[])], "conversation 4294967295 is not the next one"),
        ((0..5).map(|n| frame(OPEN, 2 * n + 1, &[])).collect(), "conversation 9 is one too many"),
        (vec![part(1)], "conversation 1 is not open"),
        (vec![frame(LAST, 4, &[1])], "conversation 4 is not open"),
        (vec![frame(END, 0, &[])], "conversation 0 is not open"),
        (vec![frame(CREDIT, 0, &[1, 0, 0, 0])], "conversation 0 is not open"),
        (vec![open(), part(4096 - COST + 1)], "conversation 1: more has come than its window"),
        (vec![open(), credit(1)], "conversation 1: a credit of nothing, or beyond the window"),
        (vec![open(), credit(0)], "conversation 1: a credit of nothing, or beyond the window"),
        (vec![open(), credit(u32::MAX)], "conversation 1: a credit of nothing, or beyond the window"),
        (vec![open(), frame(END, 1, &[]), part(1)], "conversation 1: data behind its end"),
        (vec![open(), reset(), part(1)], "conversation 1: data behind its end"),
        (
            vec![open(), frame(END, 1, &[]), frame(END, 1, &[])],
            "conversation 1: a frame that has no place here",
        ),
        (vec![open(), reset(), reset()], "conversation 1: a frame that has no place here"),
        (vec![open(), reset(), credit(1)], "conversation 1: a frame that has no place here"),
        (vec![open(), frame(CLOSE, 1, &[])], "conversation 1: closed in the middle, or twice"),
        (
            vec![open(), reset(), frame(CLOSE, 1, &[]), frame(CLOSE, 1, &[])],
            "conversation 1: closed in the middle, or twice",
        ),
        (vec![frame(END, 0, b"had it")], "the other end has given up: had it"),
    ];
    for (said, fault) in cases {
        let mut raw = Raw::usual();
        let (_, stream) = raw.many.open().unwrap();
        let mut unread = Task::waiting(stream.read_block());
        said.into_iter().for_each(|bytes| raw.say(bytes));
        let last = raw.frames().pop().unwrap();
        assert_eq!((last.0, last.1, String::from_utf8(last.2).unwrap()), (END, 0, fault.into()));
        assert!(matches!(raw.peer.try_read_block(), Poll::Ready(_)), "the lower stream has ended");
        assert!(unread.is_woken());
        assert_eq!(unread.step().unwrap().unwrap_err().to_string(), fault);
        assert_eq!(now(stream.write(b"x")).unwrap_err().to_string(), fault);
        while let Ok(Some((_, opened))) = now(raw.many.accept()) {
            drop(opened);
            raw.driving.run();
        }
        assert_eq!(now(raw.many.accept()).err().unwrap().to_string(), fault);
        assert_eq!(raw.many.open().err().unwrap().to_string(), fault);
        assert_eq!(raw.driving.1.unwrap().unwrap_err().to_string(), fault);
    }
}

#[test]
fn small_frames_and_churn_make_nothing_grow() {
    // A window of the smallest frames: the size of their blocks counts.
    let mut raw = Raw::new(SMALL, &hello(1, 4096, 4)).unwrap();
    raw.say(frame(OPEN, 1, &[]));
    let (_, stream) = now(raw.many.accept()).unwrap().unwrap();
    let mut put = 0;
    while raw.driving.1.is_none() && now(raw.peer.put(Block::from(frame(LAST, 1, &[])))).is_ok() {
        raw.driving.run();
        put += 1;
        assert!(put < 20_000, "it takes all");
    }
    // The queue of the stream, half of which comes back as credit, and the window.
    assert!(put <= 10_000 + 2 * 32 + 2, "{put}");
    drop(stream);

    // Conversations start and end, but none is accepted.
    let mut raw = Raw::usual();
    for n in [1, 3, 5, 7] {
        raw.say([frame(OPEN, n, &[]), frame(END, n, b"gone"), frame(CLOSE, n, &[])].concat());
    }
    assert!(raw.frames().is_empty());
    raw.say(frame(OPEN, 9, &[]));
    let fault = Fault::new("conversation 9 is one too many");
    assert_eq!(raw.frames(), [(END, 0, fault.to_string().into_bytes())]);
    // The remaining conversations can still be accepted.
    for _ in 0..4 {
        let (_, stream) = now(raw.many.accept()).unwrap().unwrap();
        assert_eq!(all(&stream).1, Some(Err(Fault::new("gone"))));
    }
    assert_eq!(raw.driving.1, Some(Err(fault)));
}

#[test]
fn a_conversation_that_does_not_listen_drops_what_comes_within_its_window() {
    let mut raw = Raw::usual();
    raw.say(frame(OPEN, 1, &[]));
    drop(now(raw.many.accept()).unwrap().unwrap());
    assert_eq!(raw.kinds(), [(END, 1), (CLOSE, 1)]);
    raw.say([frame(PART, 1, &[1; 3000]), frame(CREDIT, 1, &[1; 4])].concat());
    assert_eq!(raw.kinds(), [(END, 0)], "that credit is not a good one");

    let mut raw = Raw::usual();
    raw.say(frame(OPEN, 1, &[]));
    drop(now(raw.many.accept()).unwrap().unwrap());
    raw.frames();
    raw.say(frame(PART, 1, &[1; 3900]));
    assert!(raw.frames().is_empty());
    raw.say(frame(CLOSE, 1, &[]));
    assert!(raw.driving.1.is_none());
    raw.say(frame(PART, 1, &[1]));
    assert_eq!(raw.driving.1.take().unwrap().unwrap_err().to_string(), "conversation 1 is not open");

    let mut raw = Raw::usual();
    raw.say(frame(OPEN, 1, &[]));
    drop(now(raw.many.accept()).unwrap().unwrap());
    raw.say([frame(PART, 1, &[1; 3900]), frame(PART, 1, &[1; 100])].concat());
    assert!(raw.driving.1.take().unwrap().unwrap_err().to_string().contains("its window"));
}

#[test]
fn when_the_lower_stream_ends_all_have_what_has_come_and_then_its_reason() {
    for why in [Some(Fault::new("the cable is cut")), None] {
        let said = why.clone().unwrap_or(Fault::new("the lower stream has ended"));
        let (lower, device) = Stream::new(&make(1 << 20, 1000, Modules::default()));
        now(device.put(Block::from(hello(1, 4096, 4)))).unwrap();
        let (many, driver) = now(many(lower, Side::Listener, SMALL, &plain())).unwrap();
        let mut driving = Driving::new(driver);
        let (_, ours) = many.open().unwrap();
        now(device.put(Block::from(frame(OPEN, 1, &[])))).unwrap();
        driving.run();
        let (_, theirs) = now(many.accept()).unwrap().unwrap();
        for _ in 0..3 {
            now(device.put(Block::from(frame(LAST, 1, &[5; 1000])))).unwrap();
        }
        now(device.put(Block::from(frame(LAST, 2, b"whole")))).unwrap();
        now(device.put(Block::from(frame(END, 2, &[])))).unwrap();
        driving.run();
        while ours.try_put(message(vec![1; 1000])).is_ok() {
            driving.run();
        }
        let writer = Task::waiting(ours.write(b"more"));
        let acceptor = Task::waiting(many.accept());
        device.hangup(why);
        driving.run();
        assert_eq!(writer.end().unwrap_err(), said);
        assert_eq!(acceptor.end().err().unwrap(), said);
        assert_eq!(many.open().err().unwrap(), said);
        assert_eq!(all(&theirs), (vec![5; 3000], Some(Err(said.clone()))));
        assert_eq!(all(&ours), (b"whole".to_vec(), Some(Ok(()))), "that one had ended before");
        assert_eq!(driving.1, Some(Err(said)));
    }
}

#[test]
fn what_has_come_is_brought_to_a_slow_reader_though_the_lower_stream_has_ended() {
    let (lower, device) = Stream::new(&make(1 << 20, 1000, Modules::default()));
    now(device.put(Block::from(hello(1, 4096, 4)))).unwrap();
    let (many, driver) = now(many(lower, Side::Listener, SMALL, &make(1000, 1, Modules::default()))).unwrap();
    let mut driving = Driving::new(driver);
    for number in [1, 3, 5] {
        now(device.put(Block::from(frame(OPEN, number, &[])))).unwrap();
        for n in 0..3 {
            now(device.put(Block::from(frame(LAST, number, &[n; 900])))).unwrap();
        }
    }
    // A reset after a good end applies to the other direction.
    now(device.put(Block::from([frame(END, 5, &[]), frame(END, 5, b"enough")].concat()))).unwrap();
    now(device.put(Block::from(frame(PART, 1, &[9; 900])[..100].to_vec()))).unwrap();
    device.finish();
    driving.run();
    let (_, slow) = now(many.accept()).unwrap().unwrap();
    let (_, gone) = now(many.accept()).unwrap().unwrap();
    let (_, whole) = now(many.accept()).unwrap().unwrap();
    for n in 0..3 {
        assert!(driving.1.is_none());
        assert_eq!(read(&slow, 1000), [n; 900]);
        assert_eq!(read(&whole, 1000), [n; 900]);
        driving.run();
    }
    assert!(now(whole.read_block()).unwrap().is_none(), "that one had ended before");
    let fault = Fault::new("the lower stream has ended in the middle of a frame");
    assert_eq!(now(slow.read(&mut [0])).unwrap_err(), fault);
    assert!(driving.1.is_none());
    drop(gone);
    driving.run();
    assert_eq!(driving.1, Some(Err(fault)));
}

#[test]
fn a_peer_that_does_not_read_stops_writers_and_nobody_else() {
    let lower = make(2000, 8, Modules::default());
    let (a, peer) = pipe(&lower);
    now(peer.put(Block::from(hello(1, 1 << 20, 9)))).unwrap();
    let (many, driver) = now(many(a, Side::Listener, SMALL, &plain())).unwrap();
    let mut driving = Driving::new(driver);
    let (_, ours) = many.open().unwrap();
    let mut put = 0;
    while ours.try_put(message(vec![1; 1000])).is_ok() {
        driving.run();
        put += 1;
    }
    assert!(put <= 40, "{put}");
    // Reading continues, for one window: no credit can be sent.
    now(peer.put(Block::from(frame(OPEN, 1, &[])))).unwrap();
    driving.run();
    let (_, theirs) = now(many.accept()).unwrap().unwrap();
    for n in 0..3 {
        now(peer.put(Block::from(frame(LAST, 1, &[n; 1000])))).unwrap();
        driving.run();
        assert_eq!(read(&theirs, 2000), [n; 1000]);
    }
    drop((ours, theirs));
    let mut last = 0;
    while let Poll::Ready(Ok(Some(block))) = peer.try_read_block() {
        last += block.len();
        driving.run();
    }
    assert!(last > put * 1000);
}

#[test]
fn a_writer_that_waits_holds_the_memory_of_nobody_else() {
    let upper = Make { pool: Pool::new(0), ..make(3 << 20, 10_000, Modules::default()) };
    let mut pair = Pair::new([SMALL; 2], &upper, &plain());
    let (stalled, _unread) = pair.open(0);
    let (busy, eager) = pair.open(0);
    let data = vec![1; 8 << 20];
    let mut writer = Task::waiting(stalled.write(&data));
    pair.run();
    while writer.is_woken() {
        assert!(writer.step().is_none());
        pair.run();
    }
    now(busy.write(&[2; 3000])).unwrap();
    pair.run();
    assert_eq!(read(&eager, 5000), [2; 3000]);
}

#[test]
fn what_a_peer_has_said_before_it_hung_up_is_heard_though_nothing_can_be_sent() {
    let mut raw = Raw::new(Limits::default(), &hello(1, 4096, 4)).unwrap();
    now(raw.peer.put(Block::from(frame(OPEN, 1, &[])))).unwrap();
    for n in 0..100 {
        now(raw.peer.put(Block::from(frame(LAST, 1, &[n; 9])))).unwrap();
    }
    now(raw.peer.put(Block::from(frame(END, 1, &[])))).unwrap();
    let (_, ours) = raw.many.open().unwrap();
    raw.peer.hangup();
    raw.driving.run();
    let (_, theirs) = now(raw.many.accept()).unwrap().unwrap();
    let (bytes, end) = all(&theirs);
    assert_eq!((bytes.len(), end), (900, Some(Ok(()))));
    assert!(now(ours.write(b"x")).is_err());
}

#[test]
fn what_waits_in_modules_arrives_though_its_writer_has_closed() {
    let modules =
        Modules::default().with("pass", |_: &str| Ok(Halves { up: Box::new(Pass), down: Box::new(Pass) }));
    let mut pair = Pair::new([SMALL; 2], &make(10, 1, modules), &plain());
    let (a, b) = pair.open(0);
    a.push("pass").unwrap();
    a.push("pass").unwrap();
    let mut sent = 0;
    while a.try_put(message(vec![sent; 8])).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 3, "one waits to be sent, and one in each module");
    drop(a);
    for n in 0..3 {
        pair.run();
        assert_eq!(read(&b, 9), [n; 8]);
    }
    pair.run();
    assert!(now(b.read_block()).unwrap().is_none());
}

#[test]
fn nobody_left_to_accept_means_that_the_last_conversation_ends_it() {
    let mut pair = Pair::new([SMALL; 2], &plain(), &plain());
    let (a, b) = pair.open(0);
    let (_, waits) = pair.many[0].open().unwrap();
    pair.run();
    let Pair { many: [dialer, listener], mut driving } = pair;
    drop(listener);
    let mut run = || while driving.iter_mut().any(Driving::run) {};
    run();
    assert_eq!(all(&waits).1, Some(Err(Fault::new("nobody accepts conversations"))));
    let (_, refused) = dialer.open().unwrap();
    run();
    assert_eq!(all(&refused).1, Some(Err(Fault::new("nobody accepts conversations"))));
    now(a.write(b"alive")).unwrap();
    run();
    assert_eq!(read(&b, 9), b"alive");
    drop((waits, refused, a));
    run();
    let acceptor = Task::waiting(dialer.accept());
    drop(b);
    run();
    assert!(acceptor.end().unwrap().is_none());
    assert_eq!(dialer.open().err().unwrap().to_string(), "the stream is hung up");
    assert_eq!(driving.map(|driving| driving.1), [Some(Ok(())), Some(Ok(()))]);
}

/// A waker that uses all the streams as soon as it is woken.
struct Prod(Many, Vec<Stream>, AtomicBool);

impl Wake for Prod {
    fn wake(self: Arc<Self>) {
        if self.2.swap(true, Ordering::Relaxed) {
            return;
        }
        self.0.reset(9999, Fault::new("nobody"));
        self.0.reset(1, Fault::new("woken"));
        for stream in &self.1 {
            stream.is_full();
            stream.is_ending();
            let _ = stream.try_put(message(vec![1]));
        }
        self.2.store(false, Ordering::Relaxed);
    }
}

#[test]
fn nothing_is_locked_while_somebody_is_woken() {
    let mut pair = Pair::new([SMALL; 2], &plain(), &plain());
    let (a, b) = pair.open(0);
    let (c, d) = pair.open(0);
    let (e, f) = pair.open(1);
    let streams = [&a, &b, &c, &d, &e, &f];
    let prod =
        |many: &Many| Arc::new(Prod(many.clone(), streams.map(Stream::clone).into(), AtomicBool::new(false)));
    let wakers = pair.many.each_ref().map(|many| Waker::from(prod(many)));
    let mut accepting: Vec<_> = pair.many.iter().map(|many| Box::pin(many.accept())).collect();
    let mut reading: Vec<_> = [&a, &b, &d, &e].map(|stream| Box::pin(stream.read_block())).into();
    let mut ready = 0;
    for (n, waker) in wakers.iter().enumerate() {
        let cx = &mut Context::from_waker(waker);
        ready += usize::from(accepting[n].as_mut().poll(cx).is_ready());
        ready += usize::from(reading[n].as_mut().poll(cx).is_ready());
        ready += usize::from(reading[n + 2].as_mut().poll(cx).is_ready());
    }
    assert_eq!(ready, 0);
    while c.try_put(message(vec![1; 1000])).is_ok() {}
    let mut writing = Box::pin(c.write(b"waits"));
    assert!(writing.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
    let _opened = [pair.many[0].open().unwrap(), pair.many[1].open().unwrap()];
    let [one, other] = &mut pair.driving;
    while one.run() | other.run() {}
    one.0 = None;
    while other.run() {}
    assert!(now(f.write(b"x")).is_err());
    drop((accepting, reading, writing));
    assert_eq!(all(&a).1, Some(Err(Fault::new("woken"))));
}

#[test]
fn a_driver_that_goes_takes_all_with_it() {
    let mut pair = Pair::new([SMALL; 2], &plain(), &plain());
    let (a, b) = pair.open(0);
    let reader = Task::waiting(a.read_block());
    let Pair { many: [dialer, _listener], driving: [one, mut other] } = pair;
    drop(one);
    let fault = Fault::new("nobody drives the conversations");
    assert_eq!(reader.end().unwrap_err(), fault);
    assert_eq!(now(a.write(b"x")).unwrap_err(), fault);
    assert_eq!(dialer.open().err().unwrap(), fault);
    other.run();
    assert_eq!(all(&b).1, Some(Err(Fault::new("the lower stream has ended"))));
}

/// Inverts all bits, and refuses an empty message.
struct Not;

impl Module for Not {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        if chain.iter().all(Block::is_empty) {
            return Err(Fault::new("empty"));
        }
        for block in chain {
            let mut turned = Block::from(block.data().iter().map(|byte| !byte).collect::<Vec<_>>());
            turned.delim = block.delim;
            next.put(turned);
        }
        Ok(())
    }
}

#[test]
fn modules_are_pushed_on_one_conversation_and_their_faults_reset_it() {
    let modules = Modules::default()
        .with("up", |_: &str| Ok(Halves { up: Box::new(Not), down: Box::new(Pass) }))
        .with("down", |_: &str| Ok(Halves { up: Box::new(Pass), down: Box::new(Not) }));
    for on in ["up", "down"] {
        let mut pair = Pair::new([SMALL; 2], &make(16 << 10, 64, modules.clone()), &plain());
        let (a, b) = pair.open(0);
        let (c, d) = pair.open(1);
        if on == "up" {
            b.push("up").unwrap()
        } else {
            a.push("down").unwrap()
        }
        now(a.write(&[1, 2])).unwrap();
        now(c.write(&[1, 2])).unwrap();
        pair.run();
        assert_eq!((read(&b, 9), read(&d, 9)), (vec![!1, !2], vec![1, 2]));
        // The error is reported even if there is no more data to write.
        b.finish();
        let _ = now(a.write(&[]));
        pair.run();
        let fault = Fault::new(format!("{on}: empty"));
        assert_eq!(all(&b).1, Some(Err(fault.clone())));
        assert_eq!(all(&a).1, Some(Err(fault)));
        now(c.write(&[3])).unwrap();
        pair.run();
        assert_eq!(read(&d, 9), [3]);
    }
}

/// A pseudo-random sequence from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % below
    }
}

/// One direction of a conversation: the data that was put and not read yet.
#[derive(Default)]
struct Way {
    sent: VecDeque<u8>,
    borders: VecDeque<usize>,
    put: usize,
    read: usize,
    is_finished: bool,
    ended: bool,
}

/// The expected state of a conversation.
struct Model {
    ends: [Option<Stream>; 2],
    /// From end 0 to 1, and back.
    ways: [Way; 2],
}

impl Model {
    fn put(&mut self, from: usize, most: usize, dice: &mut Dice) {
        let Some(stream) = &self.ends[from] else { return };
        let (first, len) = (dice.roll(256), [0, 1, 50, 700, 3000, 30_000][dice.roll(6)]);
        let bytes: Vec<u8> = (0..len).map(|n| (first + n * 7 + n / 256) as u8).collect();
        let mut block = Block::from(bytes.clone());
        block.delim = bytes.is_empty() || dice.roll(2) == 0;
        let way = &mut self.ways[from];
        let delim = block.delim;
        match stream.try_put(block) {
            Ok(()) => {
                assert!(!way.is_finished);
                way.put += bytes.len();
                way.sent.extend(bytes);
                if delim {
                    way.borders.push_back(way.put);
                }
                assert!(way.sent.len() <= most, "{} bytes are under way", way.sent.len());
            }
            Err((_, None)) => {}
            Err((_, Some(_))) => {
                assert!(way.is_finished || self.ends[1 - from].is_none(), "nobody has ended it")
            }
        }
    }

    /// Reads a block. Returns whether there was one.
    fn get(&mut self, to: usize) -> bool {
        let Some(stream) = &self.ends[to] else { return false };
        let way = &mut self.ways[1 - to];
        match stream.try_read_block() {
            Poll::Ready(Ok(Some(block))) => {
                let expected: Vec<u8> = way.sent.drain(..block.len()).collect();
                assert!(block.data() == expected, "other bytes");
                way.read += block.len();
                let border = way.borders.front() == Some(&way.read);
                assert!(way.borders.front().is_none_or(|next| *next >= way.read), "a border is missing");
                assert!(border || !block.delim, "a border too many");
                if block.delim {
                    way.borders.pop_front();
                }
                true
            }
            Poll::Ready(Ok(None)) => {
                assert!(way.is_finished && way.sent.is_empty() && way.borders.is_empty(), "an early end");
                way.ended = true;
                false
            }
            Poll::Ready(Err(fault)) => {
                assert!(way.ended, "nothing was reset: {fault}");
                false
            }
            Poll::Pending => false,
        }
    }

    /// Ends the data from there, or drops the stream.
    fn end(&mut self, from: usize, drop_it: bool) {
        let Some(stream) = &self.ends[from] else { return };
        self.ways[from].is_finished = true;
        if drop_it {
            self.ends[from] = None;
        } else {
            stream.finish();
        }
    }
}

#[test]
fn any_order_of_what_several_conversations_do_keeps_bytes_and_borders() {
    let mut bytes = 0;
    for seed in 1..=20u64 {
        // Printed if the test fails.
        println!("seed {seed}");
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let limits = |dice: &mut Dice| Limits { window: 4096 << dice.roll(5), conversations: 3 };
        let limits = [limits(&mut dice), limits(&mut dice)];
        let upper = make(1000 << dice.roll(6), 1 + dice.roll(40), Modules::default());
        let lower = make(500 << dice.roll(6), 1 + dice.roll(20), Modules::default());
        let mut pair = Pair::new(limits, &upper, &lower);
        let mut models: Vec<(u32, Model)> = Vec::new();
        let mut finished = 0;
        for _ in 0..1500 {
            let end = dice.roll(2);
            match dice.roll(40) {
                0 => {
                    let ours = models.iter().filter(|(number, _)| *number as usize % 2 != end).count();
                    match pair.many[end].open() {
                        Ok((number, stream)) => {
                            assert!(ours < 3);
                            let mut ends = [None, None];
                            ends[end] = Some(stream);
                            models.push((number, Model { ends, ways: Default::default() }));
                        }
                        Err(_) => assert!(ours + finished >= 3),
                    }
                }
                1 => {
                    if let Some(Ok(Some((number, stream)))) = Task::new(pair.many[end].accept()).step() {
                        let (_, model) = models.iter_mut().find(|(other, _)| *other == number).unwrap();
                        model.ends[end] = Some(stream);
                    }
                }
                2..=9 => drop(pair.driving[end].run()),
                _ if models.is_empty() => {}
                action => {
                    let at = dice.roll(models.len());
                    let (number, model) = &mut models[at];
                    // Half the conversations have a reader that is often away.
                    let is_slow = *number % 4 < 2 && dice.roll(10) > 0;
                    match action {
                        10 => model.end(end, false),
                        // Drop a stream only when its other end will send no more.
                        11 if model.ways[1 - end].ended => model.end(end, true),
                        12..=24 if !is_slow => drop(model.get(end)),
                        _ => {
                            // A window; two queues, each with one chain that exceeds it; and the data below.
                            let window = limits[1 - end].window as usize;
                            let most =
                                window + 2 * upper.limit.bytes.max(30_000) + lower.limit.bytes + (64 << 10);
                            model.put(end, most, &mut dice);
                        }
                    }
                }
            }
            let count = models.len();
            models.retain(|(_, model)| {
                model.ends.iter().any(Option::is_some) || !model.ways.iter().all(|way| way.is_finished)
            });
            finished += count - models.len();
        }
        // Then everything is read, and no data is missing.
        loop {
            pair.run();
            let mut more = false;
            for end in 0..2 {
                while let Some(Ok(Some((number, stream)))) = Task::new(pair.many[end].accept()).step() {
                    models.iter_mut().find(|(other, _)| *other == number).unwrap().1.ends[end] = Some(stream);
                    more = true;
                }
            }
            for (_, model) in &mut models {
                more |= model.get(0) | model.get(1);
            }
            if !more {
                break;
            }
        }
        for (number, model) in &models {
            for (to, way) in [(1, &model.ways[0]), (0, &model.ways[1])] {
                assert!(way.sent.is_empty() || model.ends[to].is_none(), "{number} stands still");
            }
        }
        bytes += models.iter().flat_map(|(_, model)| &model.ways).map(|way| way.read).sum::<usize>();
        drop(models);
        pair.run();
        for end in 0..2 {
            let opened: Vec<_> =
                (0..3).map(|_| pair.many[end].open().expect("all numbers are free")).collect();
            drop(opened);
        }
        let Pair { many, mut driving } = pair;
        drop(many);
        while driving.iter_mut().any(Driving::run) {}
        assert!(driving.iter().all(|driving| driving.1 == Some(Ok(()))));
    }
    assert!(bytes > 5 << 20, "{bytes}");
}

#[test]
fn whatever_a_peer_makes_up_ends_in_a_fault_at_worst() {
    let mut outcomes = [0; 2];
    for seed in 1..=400u64 {
        println!("seed {seed}");
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut raw = Raw::usual();
        let (mut streams, mut next) = (Vec::new(), 1);
        raw.say(frame(OPEN, 1, &[]));
        let mut known = vec![1];
        for _ in 0..1 + dice.roll(60) {
            let number = match dice.roll(200) {
                0 => dice.roll(1 << 32) as u32,
                1 => 0,
                _ => known[dice.roll(known.len())],
            };
            let kind = match dice.roll(200) {
                0 => dice.roll(256) as u8,
                roll => [OPEN, LAST, PART, PART, PART, LAST, LAST, LAST, LAST, CREDIT, END, CLOSE][roll % 12],
            };
            let mut said = match kind {
                OPEN if dice.roll(20) > 0 => {
                    next += 2;
                    known.push(next);
                    frame(OPEN, next, &[])
                }
                PART | LAST => frame(kind, number, &vec![7; 1 + dice.roll(300)]),
                CREDIT => frame(CREDIT, number, &(1 + dice.roll(20) as u32).to_le_bytes()),
                END if dice.roll(2) == 0 => frame(END, number, b"why"),
                _ => frame(kind, number, &[]),
            };
            if dice.roll(60) == 0 {
                let at = dice.roll(said.len());
                said[at] ^= 1 << dice.roll(8);
            }
            let is_heard = now(raw.peer.put(Block::from(said))).is_ok();
            raw.driving.run();
            match dice.roll(8) {
                0 => streams.extend(raw.many.open().inspect(|(number, _)| known.push(*number))),
                1 => streams.extend(Task::new(raw.many.accept()).step().and_then(Result::ok).flatten()),
                2 if !streams.is_empty() => drop(streams.swap_remove(dice.roll(streams.len()))),
                _ => {}
            }
            for (_, stream) in &streams {
                let _ = stream.try_put(message(vec![1; dice.roll(3000)]));
                if dice.roll(3) == 0 {
                    all(stream);
                }
                assert!(stream.waiting().0 <= 4096);
            }
            raw.driving.run();
            if !is_heard {
                break;
            }
            raw.frames();
        }
        let has_ended = raw.many.open().is_err_and(|fault| !fault.to_string().contains("no more may be"));
        outcomes[usize::from(has_ended)] += 1;
        if has_ended {
            assert!(streams.iter().all(|(_, stream)| {
                all(stream);
                raw.driving.run();
                all(stream).1.is_some()
            }));
            while let Ok(Some(_)) = now(raw.many.accept()) {}
            drop(streams);
            raw.driving.run();
            assert!(raw.driving.1.is_some_and(|ended| ended.is_err()));
        }
    }
    assert!(outcomes.iter().all(|count| *count > 20), "{outcomes:?}");
}
