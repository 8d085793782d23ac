//! The server's end of the runtime's implementation: alone, and with a file server that has another client, too.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use nine_io::channel::{ROOMS, Serving};
use nine_io::server::{Anonymous, Connection, Core, Gate, Service};
use nine_net::shm::Waits;
use nine_net::{Pipe, Transport, rt};
use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Dialect, Fid, NOFID, NOTAG, Tag};
use nine_ring::{End, MOST, Memory, Note, Place};
use nine_servers::Ram;

use super::transport::{self, LOOKS, nobody, peer, tread, twrite};
use super::{Eyes, Part, Scribble, piece, some};

/// Runs the actions.
pub fn serving(data: &[u8]) {
    let Some((&first, moves)) = data.split_first() else { return };
    rt::block_on(async |_| {
        let all = transport::served(waits(first)).await;
        let most = MOST + ROOMS * size_of::<(u16, Place)>();
        match (first & 1, all) {
            (0, all) => transport::play(all, (Serving::held, most), false, moves),
            (_, (judged, guest, memory)) => World::new(Box::new(judged), guest, memory).play(moves),
        }
    })
    .expect("a runtime");
}

pub(super) fn waits(first: u8) -> Waits {
    [Waits::Poll, Waits::Interrupt, Waits::Adaptive][usize::from(first >> 1) % 3]
}

/// A file server with one client by a channel and one by a pipe.
struct World {
    connection: Pin<Box<Connection>>,
    has_ended: bool,
    guest: End,
    memory: Memory,
    eyes: Eyes,
    core: Core,
    other: Other,
    /// Content of the file. `None` after a protocol violation.
    file: Option<Vec<u8>>,
    /// Expected answers, in order.
    waiting: VecDeque<(u16, Answer)>,
    heard: Vec<u8>,
    n: u32,
}

enum Answer {
    Read(Vec<u8>),
    Wrote(u32),
    Done,
}

impl World {
    fn new(transport: Box<dyn Transport>, guest: End, memory: Memory) -> Self {
        let core = Core::with_budget(BUDGET);
        let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
        let service = Service::new(Arc::new(Ram::new(FILES)), gate, core.clone());
        let eyes = Eyes::of(memory.len());
        let connection = Box::pin(service.connect(transport));
        let mut world = Self {
            connection,
            has_ended: false,
            guest,
            memory,
            eyes,
            core,
            other: Other::new(&service),
            file: Some(Vec::new()),
            waiting: VecDeque::new(),
            heard: Vec::new(),
            n: 0,
        };
        world.ask(0, &Tmsg::Version { msize: MSIZE, version: b"9P2000.L" });
        world.ask(0, &attach(0));
        world.ask(0, &Tmsg::Lcreate { fid: Fid(0), name: b"f", flags: 2, mode: 0o666, gid: 0 });
        world.turn();
        assert!(world.waiting.is_empty(), "an honest guest is served");
        world
    }

    fn play(mut self, mut moves: &[u8]) {
        let mut moved = 0u32;
        while let Some((&[kind, a, b, c], rest)) = moves.split_first_chunk::<4>() {
            moves = rest;
            match kind % 16 {
                0..=3 => self.write(a, usize::from(b) * 32, c),
                4..=7 => self.read(a, u32::from(b) * 32, c),
                8..=10 => self.turn(),
                11 => self.scribble(usize::from(kind >> 4), [a, b, c], rest),
                12 => self.lie(piece([a, b, c], c.into(), self.guest.layout().arena_len() as u32)),
                // Any message, with any note about the arena.
                13 => self.lie((
                    rest[..rest.len().min(usize::from(b) + 7)].to_vec(),
                    piece([a, b, c], 0, 60_000).1,
                )),
                14 if a < 32 => self.guest.end(),
                14 => self.lie((tread(a.into(), u32::from(b) << 8), Note::Room(place(b, c)))),
                _ => self.lie((twrite(a.into(), &[])[..23].to_vec(), Note::Data(place(b, c)))),
            }
            moved += 1;
            if moved.is_multiple_of(16) {
                self.other.ask();
            }
        }
        self.turn();
        self.turn();
        assert!(
            self.file.is_none() || self.has_ended || self.waiting.is_empty(),
            "what was asked is answered"
        );
        self.other.ask();
    }

    /// Sends a request without data.
    fn ask(&mut self, tag: u16, message: &Tmsg<'_>) {
        let mut bytes = Vec::new();
        let tag = if matches!(message, Tmsg::Version { .. }) { NOTAG } else { Tag(tag) };
        message.encode(tag, Dialect::L, &mut bytes);
        assert_eq!(self.guest.put(&bytes, Note::None), Ok(true));
        self.waiting.push_back((tag.0, Answer::Done));
    }

    /// Returns the tag and the arena location of the next request, if one may be sent.
    fn next(&mut self, count: usize) -> Option<(u16, Place)> {
        let is_free = self.waiting.len() < 8 && self.guest.has_room(MOST / 2) == Ok(true);
        if self.file.is_none() || !is_free {
            return None;
        }
        self.n += 1;
        let at = 8192 * (self.n % 8);
        Some((self.n as u16 % 8, Place { at, count: count as u32 }))
    }

    fn write(&mut self, offset: u8, len: usize, how: u8) {
        let Some((tag, place)) = self.next(len) else { return };
        let data = some(self.n, len);
        let offset = usize::from(offset) * 16;
        let mut message = twrite(tag, &data);
        message[11..19].copy_from_slice(&(offset as u64).to_le_bytes());
        let file = self.file.as_mut().expect("nobody has lied");
        let to = offset + data.len();
        if !data.is_empty() {
            file.resize(file.len().max(to), 0);
            file[offset..to].copy_from_slice(&data);
        }
        if how & 1 == 0 {
            let (memory, at) = self.guest.place(place).expect("in the arena");
            memory.write(at, &data);
            assert_eq!(self.guest.put(&message[..23], Note::Data(place)), Ok(true));
        } else if len < MOST / 2 - 23 {
            let (first, rest) = message.split_at(usize::from(how) % message.len());
            for part in [first, rest] {
                assert_eq!(self.guest.put(part, Note::None), Ok(true));
            }
        } else {
            // It is too long for the ring's free space.
            self.file = None;
            return;
        }
        self.waiting.push_back((tag, Answer::Wrote(len as u32)));
    }

    fn read(&mut self, offset: u8, count: u32, how: u8) {
        let Some((tag, place)) = self.next(count as usize) else { return };
        let offset = usize::from(offset) * 16;
        let mut message = tread(tag, count);
        message[11..19].copy_from_slice(&(offset as u64).to_le_bytes());
        let note = if how & 1 == 0 { Note::Room(place) } else { Note::None };
        assert_eq!(self.guest.put(&message, note), Ok(true));
        let file = self.file.as_ref().expect("nobody has lied");
        let from = offset.min(file.len());
        let data = file[from..(from + count as usize).min(file.len())].to_vec();
        self.waiting.push_back((tag, Answer::Read(data)));
    }

    fn turn(&mut self) {
        for _ in 0..16 {
            if !self.has_ended {
                let connection = self.connection.as_mut();
                self.has_ended = self.eyes.turn(TURN, || connection.poll(&mut nobody()).is_ready());
            }
            assert!(self.core.borrowed() <= BUDGET, "{} bytes are borrowed", self.core.borrowed());
            self.hear();
        }
    }

    fn hear(&mut self) {
        let mut bytes = [0; MOST];
        while let Ok(Some(piece)) = self.guest.take(&mut bytes) {
            if self.file.is_none() {
                continue;
            }
            self.heard.extend_from_slice(&bytes[..piece.len]);
            match piece.note {
                Note::None => {}
                Note::Room(place) => panic!("an answer has room: {place:?}"),
                Note::Data(place) => {
                    let tag = u16::from_le_bytes([bytes[5], bytes[6]]);
                    assert_eq!(place.at, 8192 * u32::from(tag), "the place of its request");
                    let (memory, at) = self.guest.place(place).expect("in the arena");
                    let begin = self.heard.len();
                    self.heard.resize(begin + place.count as usize, 0);
                    memory.read(at, &mut self.heard[begin..]);
                }
            }
        }
        while self.file.is_some()
            && let Some(size) = self.heard.first_chunk().map(|size| u32::from_le_bytes(*size) as usize)
            && size <= self.heard.len()
        {
            let message: Vec<u8> = self.heard.drain(..size).collect();
            let (tag, answer) = Rmsg::decode(&message, Dialect::L).expect("an answer");
            let (asked, expected) = self.waiting.pop_front().expect("it was asked");
            assert_eq!(tag.0, asked, "answers come in order where nothing waits");
            match (expected, answer) {
                (Answer::Read(expected), Rmsg::Read { data }) => {
                    assert!(data.bytes() == expected, "what was written")
                }
                (Answer::Wrote(expected), Rmsg::Write { count }) => assert_eq!(expected, count),
                (Answer::Done, Rmsg::Version { .. } | Rmsg::Attach { .. } | Rmsg::Lcreate { .. }) => {}
                (_, answer) => panic!("{answer:?}"),
            }
        }
    }

    fn lie(&mut self, (bytes, note): (Vec<u8>, Note)) {
        self.file = None;
        _ = self.guest.put(&bytes[..bytes.len().min(MOST)], note);
    }

    fn scribble(&mut self, after: usize, how: [u8; 3], rest: &[u8]) {
        let scribble = Scribble::new(how, rest, self.memory.len());
        match after {
            0..6 => scribble.write(&self.memory),
            after => self.eyes.arm(after * after - 36, scribble),
        }
        if !matches!(scribble.part(), Part::Page | Part::Sleeps) {
            self.file = None;
        }
    }
}

/// A client that does not use the channel.
struct Other {
    connection: Pin<Box<Connection>>,
    pipe: Pipe,
}

impl Other {
    fn new(service: &Service) -> Self {
        let (pipe, far) = nine_net::pipe(peer(), peer());
        let mut other = Self { connection: Box::pin(service.connect(Box::new(far))), pipe };
        other.asks(NOTAG, &Tmsg::Version { msize: MSIZE, version: b"9P2000.L" });
        other.asks(Tag(1), &attach(0));
        other
    }

    /// Sends a request, which is answered at once.
    fn ask(&mut self) {
        self.asks(Tag(1), &Tmsg::Getattr { fid: Fid(0), mask: 0x7ff });
    }

    fn asks(&mut self, tag: Tag, message: &Tmsg<'_>) {
        let mut bytes = Vec::new();
        message.encode(tag, Dialect::L, &mut bytes);
        let wrote = self.pipe.poll_write(&mut nobody(), &[IoSlice::new(&bytes)]);
        assert!(matches!(wrote, Poll::Ready(Ok(n)) if n == bytes.len()));
        let mut answer = [0; 300];
        for _ in 0..8 {
            assert!(self.connection.as_mut().poll(&mut nobody()).is_pending(), "he has done nothing");
            if let Poll::Ready(n) = self.pipe.poll_read(&mut nobody(), &mut answer) {
                let n = n.expect("the pipe is there");
                let (theirs, answer) = Rmsg::decode(&answer[..n], Dialect::L).expect("an answer");
                assert_eq!((theirs, answer.number()), (tag, message.number() + 1));
                return;
            }
        }
        panic!("he is not answered");
    }
}

fn attach(fid: u32) -> Tmsg<'static> {
    Tmsg::Attach { fid: Fid(fid), afid: NOFID, uname: b"u", aname: b"", n_uname: nine_proto::msg::OnlyIds(1) }
}

fn place(b: u8, c: u8) -> Place {
    Place { at: u32::from(c) * 64, count: u32::from(b) * 256 }
}

const MSIZE: u32 = 16 << 10;
/// Size of files in bytes.
const FILES: u64 = 1 << 20;
/// Memory budget of the connections, in bytes.
const BUDGET: usize = 1 << 20;
/// Maximum number of accesses in one time slice of a connection: 64 messages.
const TURN: usize = 4 * LOOKS;
