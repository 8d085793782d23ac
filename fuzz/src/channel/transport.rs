//! Either 9P transport over a channel, driven by hand, with an honest end at the other side.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use nine_io::channel::{Asking, Serving};
use nine_net::shm::{Channel, Given, Waits};
use nine_net::{Peer, Proof, Transport};
use nine_ring::linux::{self, Passed};
use nine_ring::{End, Guest, Life, MOST, Memory, Note, Place};

use super::{Eyes, Part, Scribble, layout, piece, some};

/// Returns the server's end, and a guest that has joined.
pub(super) async fn served(waits: Waits) -> (Serving, End, Memory) {
    let (host, memory) = opened(waits);
    let guest = Guest::join(memory.clone()).expect("a channel");
    let mut host = host;
    poll_fn(|cx| host.poll_join(cx)).await.expect("it has joined");
    (Serving::new(host), guest.served().expect("it was served"), memory)
}

fn opened(waits: Waits) -> (Channel, Memory) {
    let (ours, _) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let (channel, Given { memory, .. }) =
        Channel::open(layout(PAGES), waits, ours.into(), peer()).expect("opened");
    (channel, linux::map(memory).expect("mapped"))
}

/// Returns the client's end, and a host that serves it.
pub(super) async fn asked(waits: Waits) -> (Asking, End, Memory) {
    let (memory, file) = linux::create(layout(PAGES).size).expect("a memory file");
    let mut host = End::open(memory.clone(), layout(PAGES));
    let (_life, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let bell = || linux::Bell::new().expect("a bell");
    let wait = bell();
    let passed =
        Passed { memory: file, wait: wait.try_clone().expect("a bell"), ring: bell(), life: theirs.into() };
    let mut joining = pin!(Channel::join(passed, waits, peer()));
    let guest = poll_fn(|cx| {
        let guest = joining.as_mut().poll(cx);
        if host.life() == Life::Another {
            host.serve();
            wait.ring();
        }
        guest
    });
    let guest = guest.await.expect("it is served");
    (Asking::new(guest), host, memory)
}

pub(super) fn peer() -> Peer {
    Peer { addr: "fuzz".into(), proof: Proof::None }
}

pub(super) fn nobody() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Runs the actions on the transport of a server or, with `asks`, of a client. The number of bytes that it holds must
/// never exceed `most`.
pub(super) fn play<T: Transport>(
    (judged, honest, memory): (T, End, Memory),
    (held, most): (fn(&T) -> usize, usize),
    asks: bool,
    mut moves: &[u8],
) {
    let eyes = Eyes::of(memory.len());
    let mut world = World {
        judged,
        honest,
        memory,
        eyes,
        asks,
        said: Some(VecDeque::new()),
        wrote: Some(VecDeque::new()),
        left: Vec::new(),
        written: 0,
        heard: 0,
        sent: VecDeque::new(),
        asked: BTreeMap::new(),
        rooms: BTreeMap::new(),
        is_over: false,
        has_ended: false,
        placed: 0,
        n: 0,
    };
    while let Some((&[kind, a, b, c], rest)) = moves.split_first_chunk::<4>() {
        moves = rest;
        match kind % 16 {
            0..=3 => world.say([a, b, c]),
            4..=6 => world.read(1 + usize::from(a) * usize::from(b % 64)),
            7 => world.placed(usize::from(a) * 32),
            8..=10 => world.write([a, b, c]),
            11 | 12 => world.hear(),
            13 => world.scribble(usize::from(kind >> 4), [a, b, c], rest),
            14 if a < 64 => world.leave(),
            14 => world.read(MOST),
            // An unchanged piece, of any message.
            _ if a < 128 => world.lie(piece([a, b, c], c.into(), world.honest.layout().arena_len() as u32)),
            _ => world.lie((rest[..rest.len().min(usize::from(b))].to_vec(), Note::None)),
        }
        assert!(held(&world.judged) <= most, "{} bytes are kept", held(&world.judged));
    }
    world.settle();
}

struct World<T> {
    judged: T,
    honest: End,
    memory: Memory,
    eyes: Eyes,
    /// The side under test is the client.
    asks: bool,
    /// Bytes that the honest end has sent and that were not read. `None` after a protocol violation.
    said: Option<VecDeque<u8>>,
    /// Bytes that the side under test was given to write and that the honest end has not received.
    wrote: Option<VecDeque<u8>>,
    /// The rest of a message that the side under test has not accepted.
    left: Vec<u8>,
    written: usize,
    heard: usize,
    /// Sent requests by the offset of their last byte: tags and kinds.
    sent: VecDeque<(usize, u16, Ask)>,
    /// Requests that were received and not answered.
    asked: BTreeMap<u16, Ask>,
    /// Arena locations for their data.
    rooms: BTreeMap<u16, Place>,
    /// The honest end has announced its end.
    is_over: bool,
    /// The side under test has announced its end.
    has_ended: bool,
    /// Arena locations used since everything was read.
    placed: u32,
    n: u32,
}

#[derive(Clone, Copy)]
enum Ask {
    Read(u32),
    Write(u32),
    Clunk,
}

impl<T: Transport> World<T> {
    /// The honest end sends a message, if there is room.
    fn say(&mut self, [a, b, c]: [u8; 3]) {
        if self.is_over || self.said.is_none() || self.honest.has_room(700) != Ok(true) {
            return;
        }
        self.n += 1;
        let some = |len| some(self.n, len);
        let count = u32::from(b) * 32;
        let (pieces, data) = if self.asks {
            let Some((tag, ask)) = self.asked.pop_first() else { return };
            let room = self.rooms.remove(&tag);
            match (ask, room) {
                (Ask::Read(most), Some(room)) if a & 1 == 0 => {
                    let data = some(count.min(most) as usize);
                    let place = Place { at: room.at, count: data.len() as u32 };
                    (vec![(rread(tag, &data)[..11].to_vec(), Note::Data(place))], data)
                }
                (Ask::Read(most), _) if a & 2 == 0 => {
                    (cut(rread(tag, &some((b % 128).min(most as u8) as usize)), c), Vec::new())
                }
                (Ask::Write(count), _) => (cut(message(119, tag, &count.to_le_bytes()), c), Vec::new()),
                _ => (cut(message(7, tag, &[5, 0, 0, 0]), c), Vec::new()),
            }
        } else {
            let tag = (self.n % 200) as u16;
            // Rooms for answers are in the second half of the arena, written data in the first.
            let room = 8192 * (4 + u32::from(tag % 4));
            if self.asked.keys().any(|&asked| asked % 4 == tag % 4) {
                return;
            }
            if self.said.as_ref().is_some_and(VecDeque::is_empty) {
                self.placed = 0;
            }
            let at = 8192 * self.placed;
            // A room is free after its answer was received.
            let is_heard = self.left.is_empty() && self.wrote.as_ref().is_some_and(VecDeque::is_empty);
            match a % 4 {
                0 if is_heard => {
                    self.asked.insert(tag, Ask::Read(count));
                    (vec![(tread(tag, count), Note::Room(Place { at: room, count }))], Vec::new())
                }
                1 if self.placed < 4 => {
                    self.placed += 1;
                    let data = some(count as usize);
                    (vec![(twrite(tag, &data)[..23].to_vec(), Note::Data(Place { at, count }))], data)
                }
                2 => {
                    self.asked.insert(tag, Ask::Read(count));
                    (cut(tread(tag, count), c), Vec::new())
                }
                _ => (cut(twrite(tag, &some(b.into())), c), Vec::new()),
            }
        };
        let said = self.said.as_mut().expect("nobody has lied");
        for (bytes, note) in pieces {
            if let Note::Data(place) = note {
                let (memory, at) = self.honest.place(place).expect("in the arena");
                memory.write(at, &data);
            }
            assert_eq!(self.honest.put(&bytes, note), Ok(true), "there was room");
            said.extend(&bytes);
        }
        said.extend(&data);
    }

    /// The honest end sends an arbitrary piece.
    fn lie(&mut self, (bytes, note): (Vec<u8>, Note)) {
        self.said = None;
        self.wrote = None;
        _ = self.honest.put(&bytes, note);
    }

    fn read(&mut self, len: usize) {
        let mut buf = vec![0; len.max(1)];
        let read = self.eyes.turn(LOOKS, || self.judged.poll_read(&mut nobody(), &mut buf));
        self.came(read.map_ok(|n| buf[..n].to_vec()));
    }

    fn placed(&mut self, len: usize) {
        if let Some(placed) = self.eyes.turn(LOOKS, || self.judged.take_placed(len)) {
            assert_eq!(placed.len(), len);
            self.came(Poll::Ready(Ok(placed.to_vec(len))));
        }
    }

    fn came(&mut self, read: Poll<io::Result<Vec<u8>>>) {
        match &read {
            Poll::Ready(Ok(bytes)) if !bytes.is_empty() => {
                assert!(!self.has_ended, "{} bytes come behind the end", bytes.len());
            }
            Poll::Ready(_) => self.has_ended = true,
            Poll::Pending => {}
        }
        let Some(said) = &mut self.said else { return };
        match read {
            Poll::Ready(Ok(bytes)) if bytes.is_empty() => {
                assert!(self.is_over && said.is_empty(), "an early end")
            }
            Poll::Ready(Ok(bytes)) => {
                assert!(said.drain(..bytes.len()).eq(bytes), "other bytes than were said")
            }
            Poll::Ready(Err(error)) => panic!("nobody has lied: {error}"),
            Poll::Pending => {}
        }
    }

    /// The side under test continues its message, or begins another one.
    fn write(&mut self, [a, b, c]: [u8; 3]) {
        if self.left.is_empty() {
            self.n += 1;
            let count = u32::from(b) * 32;
            let data = some(self.n, count as usize);
            if self.asks {
                let tag = (self.n % u32::from(TAGS)) as u16;
                if self.asked.contains_key(&tag) || self.sent.iter().any(|(_, sent, _)| *sent == tag) {
                    return;
                }
                let ask = [Ask::Read(count), Ask::Write(count), Ask::Clunk][usize::from(a) % 3];
                self.left = match ask {
                    Ask::Read(count) => tread(tag, count),
                    Ask::Write(_) => twrite(tag, &data),
                    Ask::Clunk => message(120, tag, &[0; 4]),
                };
                self.sent.push_back((self.written + self.left.len(), tag, ask));
            } else {
                self.left = match self.asked.pop_first() {
                    Some((tag, Ask::Read(most))) => rread(tag, &data[..data.len().min(most as usize)]),
                    _ => message(121, 300, &[]),
                };
            }
        }
        let most = 1 + usize::from(c) * usize::from(a & 15);
        let part = &self.left[..self.left.len().min(most)];
        let took = self.eyes.turn(LOOKS, || self.judged.poll_write(&mut nobody(), &[IoSlice::new(part)]));
        if let Poll::Ready(Ok(n)) = took {
            assert!((1..=part.len()).contains(&n));
            self.written += n;
            let taken = self.left.drain(..n);
            self.wrote.iter_mut().for_each(|wrote| wrote.extend(taken.as_slice()));
        }
        if let Poll::Ready(Err(error)) = &took {
            assert!(self.wrote.is_none() || self.is_over, "{error}");
            // It is unknown how much was accepted before the error.
            self.wrote = None;
        }
        if a & 1 == 0 {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let flushed = self.eyes.turn(LOOKS, || self.judged.poll_flush(&mut nobody()));
        assert!(self.wrote.is_none() || !matches!(flushed, Poll::Ready(Err(_))) || self.is_over);
    }

    /// The honest end receives a piece. Returns whether there was one.
    fn hear(&mut self) {
        let mut bytes = [0; MOST];
        let took = self.honest.take(&mut bytes);
        let Some(wrote) = &mut self.wrote else { return };
        let Some(piece) = took.expect("nobody has lied") else { return };
        let mut bytes = bytes[..piece.len].to_vec();
        match piece.note {
            Note::None => {}
            Note::Data(place) => {
                let (memory, at) = self.honest.place(place).expect("in the arena");
                let mut data = vec![0; place.count as usize];
                memory.read(at, &mut data);
                bytes.extend(data);
            }
            Note::Room(place) => {
                let tag = u16::from_le_bytes([bytes[5], bytes[6]]);
                assert!(self.rooms.insert(tag, place).is_none(), "a tag has one room");
            }
        }
        self.heard += bytes.len();
        assert!(
            wrote.len() >= bytes.len() && wrote.drain(..bytes.len()).eq(bytes),
            "other bytes than were written"
        );
        while let Some(&(end, tag, ask)) = self.sent.front()
            && end <= self.heard
        {
            self.sent.pop_front();
            self.asked.insert(tag, ask);
        }
    }

    fn scribble(&mut self, after: usize, how: [u8; 3], rest: &[u8]) {
        let scribble = Scribble::new(how, rest, self.memory.len());
        match after {
            0..8 => scribble.write(&self.memory),
            after => self.eyes.arm(after * after - 64, scribble),
        }
        if !matches!(scribble.part(), Part::Page | Part::Sleeps) {
            (self.said, self.wrote) = (None, None);
        }
    }

    fn leave(&mut self) {
        self.honest.end();
        self.is_over = true;
    }

    /// Runs until all in-flight data has arrived.
    fn settle(mut self) {
        for _ in 0..SETTLES {
            let is_read = self.said.as_ref().is_none_or(VecDeque::is_empty);
            let is_heard = self.is_over || self.wrote.as_ref().is_none_or(VecDeque::is_empty);
            if is_read && is_heard && (self.left.is_empty() || self.is_over || self.wrote.is_none()) {
                break;
            }
            self.read(9000);
            if !self.left.is_empty() {
                self.write([1, 0, 255]);
            }
            self.flush();
            self.hear();
        }
        assert!(self.said.is_none_or(|said| said.is_empty()), "what was said comes");
        assert!(self.is_over || self.wrote.is_none_or(|wrote| wrote.is_empty()), "what was written comes");
    }
}

fn cut(bytes: Vec<u8>, at: u8) -> Vec<(Vec<u8>, Note)> {
    let (first, rest) = bytes.split_at(bytes.len().min(usize::from(at % 40)));
    [first, rest].map(|part| (part.to_vec(), Note::None)).to_vec()
}

pub(super) fn message(number: u8, tag: u16, rest: &[u8]) -> Vec<u8> {
    let size = 7 + rest.len() as u32;
    [&size.to_le_bytes()[..], &[number], &tag.to_le_bytes(), rest].concat()
}

pub(super) fn twrite(tag: u16, data: &[u8]) -> Vec<u8> {
    message(118, tag, &[&[0; 12][..], &(data.len() as u32).to_le_bytes(), data].concat())
}

pub(super) fn tread(tag: u16, count: u32) -> Vec<u8> {
    message(116, tag, &[&[0; 12][..], &count.to_le_bytes()].concat())
}

fn rread(tag: u16, data: &[u8]) -> Vec<u8> {
    message(117, tag, &[&(data.len() as u32).to_le_bytes()[..], data].concat())
}

/// Two pages for each of eight requests.
pub(super) const PAGES: u32 = 16;

/// Maximum number of a client's in-flight requests.
pub(super) const TAGS: u16 = 40;

/// Maximum number of accesses in one call: for a full ring, and those before it sleeps.
pub(super) const LOOKS: usize = 4096;

/// More rounds than in-flight data can need.
const SETTLES: usize = 1000;
