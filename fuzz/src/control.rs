//! Control texts for streams and conversations in use.
//!
//! In: bytes, read as a list of actions: a text for one end, or for both when nothing is in flight; a message; a read;
//! time. Checks: a refused text changes nothing; as long as both ends have the same modules, and none is lossy, the
//! bytes written to one end come out of the other.

use std::io::IoSlice;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_io::frame9p;
use nine_net::modules::{Trace, TraceLog, modules};
use nine_net::{Clock, Conversation, Peer, Pipe, Proof, Timer, Transport};
use nine_stream::{Block, Limit, Make, Pool, Stream};

/// Runs the actions on a pipe or on two conversations, then reads the rest.
pub fn control(data: &[u8]) {
    let Some((first, moves)) = data.split_first() else { return };
    let hand = Hand::default();
    let known = modules().with("trace", Trace(TraceLog::default())).with("frame9p", frame9p::open);
    if first & 1 == 0 {
        let limit = Limit { bytes: 1 << usize::from(first >> 4), blocks: 8 };
        let clock = hand.clone();
        let make = Make {
            limit,
            modules: known,
            clock: Arc::new(move || *clock.0.lock().expect("no panic")),
            ..Make::new(Pool::new(0))
        };
        let (a, b) = nine_stream::pipe(&make);
        World::new([a, b], hand).play(moves);
    } else {
        let peer = || Peer { addr: "fuzz".into(), proof: Proof::None };
        let (a, b) = nine_net::pipe(peer(), peer());
        let end = |pipe| Conversation::new(pipe, known.clone(), Arc::new(hand.clone()));
        World::new([a, b].map(end), hand).play(moves);
    }
}

/// An end that accepts control texts.
trait Side {
    fn control(&mut self, text: &[u8]) -> Result<(), String>;
    fn shows(&self) -> String;
    /// Writes bytes. Returns how many were accepted.
    fn put(&mut self, bytes: &[u8]) -> usize;
    /// Returns the available bytes; `None` if there are none. An error and the end count as the same.
    fn read(&mut self) -> Option<Result<Vec<u8>, ()>>;
    /// Lets delayed blocks continue if they are due. Returns when the next one is due.
    fn go_on(&mut self, hand: &Hand) -> Option<Duration>;
}

impl Side for Stream {
    fn control(&mut self, text: &[u8]) -> Result<(), String> {
        Stream::control(self, text).map_err(|fault| fault.to_string())
    }

    fn shows(&self) -> String {
        format!("{:?}", self.modules())
    }

    fn put(&mut self, bytes: &[u8]) -> usize {
        let mut block = Block::from(bytes.to_vec());
        block.delim = true;
        if self.try_put(block).is_ok() { bytes.len() } else { 0 }
    }

    fn read(&mut self) -> Option<Result<Vec<u8>, ()>> {
        assert!(self.waiting().1 < 4096, "{:?} wait", self.waiting());
        match self.try_read_block() {
            Poll::Ready(Ok(Some(block))) => Some(Ok(block.data().to_vec())),
            Poll::Ready(_) => Some(Err(())),
            Poll::Pending => None,
        }
    }

    fn go_on(&mut self, _: &Hand) -> Option<Duration> {
        self.tick();
        self.deadline()
    }
}

impl Side for Conversation<Pipe> {
    fn control(&mut self, text: &[u8]) -> Result<(), String> {
        let text = str::from_utf8(text).map_err(|error| error.to_string())?;
        let seen = self.check(text);
        let done = Transport::control(self, text).map_err(|fault| fault.to_string());
        assert!(
            seen.is_ok() || done.is_err() || text.trim() == "hangup",
            "{text:?} is refused, and then done"
        );
        done
    }

    fn shows(&self) -> String {
        self.status()
    }

    fn put(&mut self, bytes: &[u8]) -> usize {
        match self.poll_write(&mut nobody(), &[IoSlice::new(bytes)]) {
            Poll::Ready(Ok(n)) => n,
            _ => 0,
        }
    }

    fn read(&mut self) -> Option<Result<Vec<u8>, ()>> {
        let mut buf = [0; 999];
        match self.poll_read(&mut nobody(), &mut buf) {
            Poll::Ready(Ok(0) | Err(_)) => Some(Err(())),
            Poll::Ready(Ok(n)) => Some(Ok(buf[..n].to_vec())),
            Poll::Pending => None,
        }
    }

    fn go_on(&mut self, hand: &Hand) -> Option<Duration> {
        hand.1.lock().expect("no panic").take();
        let _ = self.poll_flush(&mut nobody());
        // Timers for received data are requested by the reader.
        *hand.1.lock().expect("no panic")
    }
}

struct World<S> {
    ends: [S; 2],
    hand: Hand,
    sent: [Vec<u8>; 2],
    seen: [Vec<u8>; 2],
    /// For each module that is at both ends: whether it passes all bytes.
    pushed: Vec<bool>,
    /// The ends have different modules, or one has ended.
    broken: bool,
}

impl<S: Side> World<S> {
    fn new(ends: [S; 2], hand: Hand) -> Self {
        let (sent, seen) = Default::default();
        Self { ends, hand, sent, seen, pushed: Vec::new(), broken: false }
    }

    fn play(mut self, mut moves: &[u8]) {
        let mut n = 0u8;
        while let Some((&[kind, a], rest)) = moves.split_first_chunk::<2>() {
            let side = usize::from(kind & 1);
            let (text, after) = match kind / 2 % 8 {
                0 | 1 => {
                    let (text, after) = rest.split_at(usize::from(a % 32).min(rest.len()));
                    (Some(text), after)
                }
                2..=4 => (Some(TEXTS[usize::from(a) % TEXTS.len()]), rest),
                _ => (None, rest),
            };
            moves = after;
            match (text, kind / 2 % 8) {
                (Some(text), 1 | 3) => self.rude(side, text),
                (Some(text), _) => self.both(text),
                (None, 5) => _ = self.read(side),
                (None, 6) => self.hand.advance(Duration::from_millis(a.into())),
                (None, _) => {
                    n = n.wrapping_add(1);
                    let bytes = vec![n; usize::from(a) + 1];
                    let taken = self.ends[side].put(&bytes);
                    self.sent[side].extend(&bytes[..taken]);
                }
            }
        }
        self.settle();
    }

    /// Sends a text to one end, whatever is in flight.
    fn rude(&mut self, side: usize, text: &[u8]) {
        let end = &mut self.ends[side];
        let before = end.shows();
        match end.control(text) {
            Ok(()) => self.broken = true,
            Err(_) => assert_eq!(end.shows(), before, "{text:?} is refused and changes something"),
        }
    }

    /// Sends a text to both ends when nothing is in flight.
    fn both(&mut self, text: &[u8]) {
        self.settle();
        let done = [0, 1].map(|side| {
            let end = &mut self.ends[side];
            let before = end.shows();
            let done = end.control(text);
            assert!(done.is_ok() || end.shows() == before, "{text:?} is refused and changes something");
            done
        });
        if self.broken {
            return;
        }
        assert_eq!(done[0].is_ok(), done[1].is_ok(), "{}: {done:?}", String::from_utf8_lossy(text));
        if done[0].is_err() {
            return;
        }
        let text = String::from_utf8_lossy(text);
        match text.split_ascii_whitespace().next() {
            // With frame9p, the bytes written are not whole messages.
            Some("push") => {
                self.pushed.push(!["loss", "cut", "frame9p"].iter().any(|word| text.contains(word)))
            }
            Some("pop") => _ = self.pushed.pop(),
            _ => self.broken = true,
        }
    }

    fn read(&mut self, side: usize) -> bool {
        match self.ends[side].read() {
            Some(Ok(bytes)) => {
                if !self.broken {
                    self.seen[side].extend(bytes);
                }
                true
            }
            Some(Err(())) => {
                assert!(self.broken || self.is_lossy(), "an end, and nobody has ended it");
                self.broken = true;
                false
            }
            None => false,
        }
    }

    fn is_lossy(&self) -> bool {
        self.pushed.contains(&false)
    }

    /// Reads everything, however long it takes, and compares.
    fn settle(&mut self) {
        let mut quiet = false;
        for round in 0.. {
            if self.broken && round > 1000 {
                // Bytes that zstd takes for its own format may expand to gigabytes.
                break;
            }
            assert!(round < 100_000, "it never comes to rest");
            let mut due = Vec::new();
            let mut came = false;
            for side in 0..2 {
                due.extend(self.ends[side].go_on(&self.hand));
                self.hand.1.lock().expect("no panic").take();
                came |= self.read(side);
                due.extend(self.hand.1.lock().expect("no panic").take());
            }
            if came {
                quiet = false;
                continue;
            }
            let now = *self.hand.0.lock().expect("no panic");
            // The other end has not seen what one end just released.
            match due.into_iter().filter(|due| *due > now).min() {
                Some(due) => self.hand.advance(due - now),
                None if quiet => break,
                None => {
                    quiet = true;
                    continue;
                }
            }
            quiet = false;
        }
        for (from, to) in [(0, 1), (1, 0)] {
            let (sent, seen) = (std::mem::take(&mut self.sent[from]), std::mem::take(&mut self.seen[to]));
            if !self.broken && !self.is_lossy() {
                assert!(sent == seen, "from {from} came {} bytes instead of {}", seen.len(), sent.len());
            }
        }
        // Bytes that were lost or delayed here do not belong to the next text.
        self.broken |= self.is_lossy();
    }
}

/// The time, and the earliest deadline that is waited for.
#[derive(Clone, Default)]
struct Hand(Arc<Mutex<Duration>>, Arc<Mutex<Option<Duration>>>);

impl Hand {
    fn advance(&self, by: Duration) {
        let mut now = self.0.lock().expect("no panic");
        *now = now.saturating_add(by);
    }
}

impl Clock for Hand {
    fn now(&self) -> Duration {
        *self.0.lock().expect("no panic")
    }

    fn wall(&self) -> Duration {
        self.now()
    }

    fn sleep_until(&self, deadline: Duration) -> Timer {
        let hand = self.clone();
        Box::pin(std::future::poll_fn(move |_| {
            if hand.now() >= deadline {
                return Poll::Ready(());
            }
            let mut first = hand.1.lock().expect("no panic");
            *first = Some(first.map_or(deadline, |other| other.min(deadline)));
            Poll::Pending
        }))
    }

    fn entropy(&self, _: &mut [u8]) {}
}

fn nobody() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

const TEXTS: [&[u8]; 20] = [
    b"push zstd",
    b"push zstd 1",
    b"push throttle 1K",
    b"push throttle 1M/s",
    b"push fault delay 20",
    b"push fault",
    b"push trace",
    b"pop",
    b"pop\n",
    b"pop",
    b"push fault loss 3",
    b"push fault cut 500",
    b"push frame9p",
    b"hangup",
    b"push",
    b"push zstd 99",
    b"push tls",
    b"push fault delay 18446744073709551615",
    b"push throttle 0",
    b"pop zstd",
];
