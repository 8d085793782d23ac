//! The guest's library, with a host that runs whenever the guest sleeps.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use nine_guest::{Buffer, Client, Dialect, Errno, File, Line, OpenFlags, Options, Qid, Result, Wait};
use nine_proto::msg::{Data, Qids, Rmsg, Tmsg};
use nine_proto::{Attr, Tag, mode};
use nine_ring::{End, Life, MOST, Memory, Note, Place, linux};

use super::transport::{PAGES, message};
use super::{Eyes, Scribble, layout, piece};

/// Runs the actions: the first half are calls, the others actions of the host.
pub fn guest(data: &[u8]) {
    let Some((&first, moves)) = data.split_first() else { return };
    let (calls, tricks) = moves.split_at(moves.len() / 8 * 4);
    let (memory, _file) = linux::create(layout(PAGES).size).expect("a memory file");
    let eyes = Eyes::of(memory.len());
    let host = Host {
        end: End::open(memory.clone(), layout(PAGES)),
        memory: memory.clone(),
        eyes: eyes.clone(),
        tricks: tricks.to_vec(),
        at: 0,
        patience: usize::from(first >> 2),
        inbox: Vec::new(),
        file: Vec::new(),
        lies: Rc::default(),
        inline: first & 2 != 0,
        is_awaited: first & 4 != 0,
    };
    let lies = host.lies.clone();
    let wait = if first & 1 == 0 { Wait::Interrupt } else { Wait::Adaptive };
    let msize = [4096, 1 << 20][usize::from(first >> 7)];
    // Half of the guests have a timeout of 2 s. Each sleep takes 1 s, in which the host runs once.
    let patience = (first & 4 != 0).then_some(Duration::from_secs(2));
    let options = Options { wait, dialect: Dialect::L, msize, patience };
    let joined = eyes.turn(LOOKS, || Client::join(memory, Bed(RefCell::new(host), Cell::default()), options));
    match joined {
        Ok(client) => World {
            client,
            msize,
            eyes,
            lies,
            file: Vec::new(),
            open: None,
            buffer: None,
            has_rejoined: false,
        }
        .play(calls),
        Err(error) => assert!(lies.get(), "{error}"),
    }
}

struct World {
    client: Client<Bed>,
    msize: u32,
    eyes: Eyes,
    /// Whether the host has ever violated the protocol.
    lies: Rc<Cell<bool>>,
    /// Content of the file.
    file: Vec<u8>,
    open: Option<File>,
    buffer: Option<Buffer>,
    has_rejoined: bool,
}

impl World {
    fn play(mut self, mut calls: &[u8]) {
        let eyes = self.eyes.clone();
        while let Some((&[kind, a, b, c], rest)) = calls.split_first_chunk::<4>() {
            calls = rest;
            let dead = self.client.is_alive().err();
            let mut done = eyes.turn(LOOKS, || self.call(kind, usize::from(a) * 64, usize::from(b) * 200, c));
            if done.as_ref().is_err_and(|error| error.errno == Errno::ESTALE) {
                // The file was opened before the guest joined again.
                assert!(self.has_rejoined);
                (self.open, done) = (None, Ok(()));
            }
            assert!(done.is_ok() || self.lies.get(), "{done:?} of an honest host");
            assert!(self.client.held() <= 4 * self.msize as usize + 2 * MOST, "{} bytes", self.client.held());
            let is_alive = eyes.turn(0, || self.client.is_alive());
            match dead {
                Some(dead) if !is_again(kind) => {
                    assert_eq!(is_alive, Err(dead), "who has ended begins again")
                }
                _ => {}
            }
        }
        eyes.turn(LOOKS, || drop((self.open, self.buffer, self.client)));
    }

    fn call(&mut self, kind: u8, offset: usize, len: usize, seed: u8) -> Result<()> {
        let client = &mut self.client;
        if is_again(kind) {
            self.has_rejoined = true;
            return client.reconnect();
        }
        let Some(file) = &self.open else {
            let root = client.attach("glenda", "")?;
            self.open = Some(client.open(&root, "a/b", OpenFlags::RDWR)?);
            return Ok(());
        };
        let from = offset.min(self.file.len());
        let there = &self.file[from..(offset + len).clamp(from, self.file.len())];
        match kind % 16 {
            0..=2 => {
                let mut into = vec![0; len];
                let n = client.read(file, offset as u64, &mut into)?;
                assert!(n <= len && (self.lies.get() || into[..n] == *there), "what was written is read");
            }
            3..=5 => {
                let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(3).wrapping_add(seed)).collect();
                let n = client.write(file, offset as u64, &bytes)?;
                assert!(n == len || n < len && self.lies.get());
                put(&mut self.file, offset, &bytes);
            }
            6 => {
                self.buffer = None;
                self.buffer = Some(client.buffer(len.max(1))?);
            }
            7 | 8 => {
                let Some(buffer) = &mut self.buffer else { return Ok(()) };
                buffer.write(0, &[seed]);
                let n = client.write_from(file, offset as u64, buffer, ..1)?;
                assert!(n == 1 || self.lies.get());
                put(&mut self.file, offset, &[seed]);
            }
            9 | 10 => {
                let Some(buffer) = &mut self.buffer else { return Ok(()) };
                let n = client.read_into(file, offset as u64, buffer, ..)?;
                let mut came = vec![0; n];
                buffer.read(0, &mut came);
                let there = &self.file[from..(offset + buffer.len()).clamp(from, self.file.len())];
                assert!(self.lies.get() || came == there, "what was written is there");
            }
            11 => {
                let known = client.stat(file)?;
                assert!(known.size == self.file.len() as u64 || self.lies.get());
            }
            12 => client.read_dir(file, |_| true)?,
            13 => client.clunk(self.open.take().expect("it is open"))?,
            _ => drop(client.walk(file, "x/y")?),
        }
        Ok(())
    }
}

fn is_again(kind: u8) -> bool {
    kind.is_multiple_of(32) && kind > 0
}

fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        file.resize(file.len().max(offset + bytes.len()), 0);
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// The guest's sleep, in which the host runs.
struct Bed(RefCell<Host>, Cell<Duration>);

impl Line for Bed {
    fn ring(&self) {}

    fn sleep(&self) -> bool {
        let mut host = self.0.borrow_mut();
        let eyes = host.eyes.clone();
        eyes.shut(|| host.turn())
    }

    fn now(&self) -> Duration {
        self.1.get()
    }

    fn sleep_until(&self, _: Duration) -> bool {
        self.1.set(self.1.get() + Duration::from_secs(1));
        self.sleep()
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn looks(&self) -> u32 {
        2
    }
}

struct Host {
    end: End,
    memory: Memory,
    eyes: Eyes,
    tricks: Vec<u8>,
    at: usize,
    /// Time slices before the first action.
    patience: usize,
    inbox: Vec<u8>,
    file: Vec<u8>,
    lies: Rc<Cell<bool>>,
    inline: bool,
    /// The guest has a timeout.
    is_awaited: bool,
}

impl Host {
    /// Runs the host for one time slice. Returns false if it is gone.
    fn turn(&mut self) -> bool {
        if self.end.life() == Life::Another {
            self.end.serve();
            self.inbox.clear();
            return true;
        }
        if self.patience > 0 || self.at == self.tricks.len() && !self.lies.get() {
            self.patience = self.patience.saturating_sub(1);
            let has_answered = self.answer_all();
            assert!(has_answered || self.lies.get(), "it sleeps, and has asked nothing");
            return has_answered;
        }
        let rest = &self.tricks[self.at..];
        let Some((&[kind, a, b, c], rest)) = rest.split_first_chunk::<4>() else {
            self.at = self.tricks.len();
            return !self.lies.get();
        };
        self.at += 4;
        let scribble = Scribble::new([a, b, c], rest, self.memory.len());
        let bytes = rest[..rest.len().min(usize::from(b))].to_vec();
        match kind % 8 {
            // Nothing: the guest was woken in vain, or waits too long.
            0 => self.lies.set(self.lies.get() || self.is_awaited),
            1..=3 => _ = self.answer_all(),
            4 => {
                self.lies.set(true);
                scribble.write(&self.memory);
            }
            5 => {
                self.lies.set(true);
                self.eyes.arm(usize::from(kind >> 3) * usize::from(c & 7), scribble);
            }
            6 => {
                self.lies.set(true);
                let (bytes, note) = piece([a, b, c], c.into(), self.end.layout().arena_len() as u32);
                _ = self.end.put(&bytes, note);
            }
            _ => {
                // A nearly valid answer to a request.
                self.lies.set(true);
                let mut asked = [0; MOST];
                let Ok(Some(piece)) = self.end.take(&mut asked) else { return true };
                let tag = u16::from_le_bytes([asked[5], asked[6]]);
                let mut answer = message(asked[4].wrapping_add(1), tag, &bytes);
                let mut note = Note::None;
                if let (Note::Room(place), 0..128) = (piece.note, a) {
                    let count = u32::from(c) * 16;
                    answer = message(117, tag, &count.to_le_bytes());
                    answer[..4].copy_from_slice(&(11 + count).to_le_bytes());
                    note = Note::Data(Place { at: place.at.wrapping_add(u32::from(a / 16)), count });
                } else if a & 1 == 0 && answer.len() >= 11 {
                    let count = answer.len() as u32 - 11;
                    answer[7..11].copy_from_slice(&count.to_le_bytes());
                }
                _ = self.end.put(&answer, note);
            }
        }
        true
    }

    /// Answers all received requests. Returns whether there were any.
    fn answer_all(&mut self) -> bool {
        let mut bytes = [0; MOST];
        let mut is_any = false;
        while self.end.has_room(MOST) == Ok(true)
            && let Ok(Some(piece)) = self.end.take(&mut bytes)
        {
            is_any = true;
            self.inbox.extend_from_slice(&bytes[..piece.len]);
            let mut room = None;
            match piece.note {
                Note::None => {}
                Note::Room(place) => room = Some(place),
                Note::Data(place) => {
                    let (memory, at) = self.end.place(place).expect("in the arena");
                    let begin = self.inbox.len();
                    self.inbox.resize(begin + place.count as usize, 0);
                    memory.read(at, &mut self.inbox[begin..]);
                }
            }
            while let Some(size) = self.inbox.first_chunk().map(|size| u32::from_le_bytes(*size) as usize)
                && size <= self.inbox.len()
                && size >= 7
            {
                let message: Vec<u8> = self.inbox.drain(..size).collect();
                self.answer(&message, room);
            }
        }
        is_any
    }

    fn answer(&mut self, asked: &[u8], room: Option<Place>) {
        let Ok((tag, asked)) = Tmsg::decode(asked, Dialect::L) else {
            return assert!(self.lies.get(), "a client knows how to ask");
        };
        let qid = Qid { ty: 0, vers: 0, path: 1 };
        let qids = [qid; 16];
        let data: Vec<u8>;
        let answer = match asked {
            Tmsg::Version { msize, version } => Rmsg::Version { msize, version },
            Tmsg::Attach { .. } => Rmsg::Attach { qid },
            Tmsg::Walk { names, .. } => Rmsg::Walk { qids: Qids::Slice(&qids[..names.len()]) },
            Tmsg::Lopen { .. } => Rmsg::Lopen { qid, iounit: 0 },
            Tmsg::Getattr { .. } => {
                let size = self.file.len() as u64;
                Rmsg::Getattr { attr: Attr { qid, mode: mode::S_IFREG | 0o644, size, ..Attr::default() } }
            }
            Tmsg::Read { offset, count, .. } => {
                let from = (offset as usize).min(self.file.len());
                let to = (from + count as usize).min(self.file.len());
                data = self.file[from..to].to_vec();
                return self.answer_read(tag, &data, room);
            }
            Tmsg::Write { offset, data, .. } => {
                // A corrupt answer may have been returned as a request.
                if offset < 1 << 20 {
                    put(&mut self.file, offset as usize, data.bytes());
                }
                Rmsg::Write { count: data.bytes().len() as u32 }
            }
            Tmsg::Readdir { .. } => Rmsg::Readdir { data: Data::Bytes(b"") },
            Tmsg::Clunk { .. } => Rmsg::Clunk {},
            Tmsg::Flush { .. } => Rmsg::Flush {},
            _ => Rmsg::Lerror { ecode: 95 },
        };
        let mut bytes = Vec::new();
        answer.encode(tag, Dialect::L, &mut bytes);
        self.say(&bytes);
    }

    fn answer_read(&mut self, tag: Tag, data: &[u8], room: Option<Place>) {
        let mut bytes = Vec::new();
        Rmsg::Read { data: Data::Bytes(data) }.encode(tag, Dialect::L, &mut bytes);
        match room {
            Some(room) if !self.inline => {
                let place = Place { at: room.at, count: data.len() as u32 };
                let (memory, at) = self.end.place(place).expect("in the arena");
                memory.write(at, data);
                _ = self.end.put(&bytes[..11], Note::Data(place));
            }
            _ => self.say(&bytes),
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(MOST) {
            if self.end.put(part, Note::None) != Ok(true) {
                // The guest does not read it now, and would get it later.
                self.lies.set(true);
            }
        }
    }
}

/// Maximum number of accesses in one call, which may move 256 KiB in many requests.
const LOOKS: usize = 1 << 20;
