//! The lean client: it encodes messages in advance and checks only the head of answers. It costs so little that the
//! server is measured, and it is the same for every server.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nine_proto::frame::{HEADER, Split, split, tag_of, type_of};
use nine_proto::msg::{Names, OnlyIds, Rmsg, Tmsg};
use nine_proto::{Dialect, Fid, NOFID, NOTAG, Tag};
use rustix::event::{Timespec, epoll};
use rustix::process::geteuid;

use crate::files::file_name;
use crate::server::SILENCE;

/// Size of one read, bytes.
const READ: usize = 256 * 1024;
/// Requests in flight during preparations.
const DEPTH: usize = 32;
/// First of the fids for many files.
const FIRST_FILE_FID: u32 = 10;

/// One blocking connection in 9P2000.L.
pub struct LeanConnection {
    stream: UnixStream,
    msize: u32,
}

impl LeanConnection {
    /// Negotiates `msize` and attaches fid 0 to the root of `aname`.
    pub fn attach(socket: &Path, msize: u32, aname: &str) -> io::Result<Self> {
        let mut conn = Self::bare(socket)?;
        conn.msize = msize;
        let version = Tmsg::Version { msize, version: Dialect::L.name().as_bytes() };
        conn.msize = conn.call_tagged(&version, NOTAG, |answer| match answer {
            Rmsg::Version { msize, .. } => Some(msize),
            _ => None,
        })?;
        let n_uname = OnlyIds(geteuid().as_raw());
        let attach = Tmsg::Attach { fid: Fid(0), afid: NOFID, uname: b"", aname: aname.as_bytes(), n_uname };
        conn.call(&attach)?;
        Ok(conn)
    }

    /// Opens a connection without a session.
    pub fn bare(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Self { stream, msize: u32::MAX })
    }

    /// Sends a request and waits for the answer. An error answer becomes an error.
    pub fn call(&mut self, message: &Tmsg<'_>) -> io::Result<()> {
        self.call_tagged(message, Tag(0), |answer| (answer.number() == message.number() + 1).then_some(()))
    }

    /// Reads, and returns the number of bytes.
    pub fn read(&mut self, fid: Fid, offset: u64, count: u32) -> io::Result<usize> {
        self.call_tagged(&Tmsg::Read { fid, offset, count }, Tag(0), |answer| match answer {
            Rmsg::Read { data } => Some(data.bytes().len()),
            _ => None,
        })
    }

    /// Walks `newfid` to the file of this name; an empty name clones the fid.
    pub fn walk(&mut self, fid: Fid, newfid: Fid, name: &[u8]) -> io::Result<()> {
        let names: &[&[u8]] = if name.is_empty() { &[] } else { &[name] };
        self.call(&Tmsg::Walk { fid, newfid, names: Names::Slice(names) })
    }

    /// Walks a fid from the root down a path.
    pub fn walk_path(&mut self, newfid: Fid, path: &[&str]) -> io::Result<()> {
        let names: Vec<&[u8]> = path.iter().map(|name| name.as_bytes()).collect();
        self.call(&Tmsg::Walk { fid: Fid(0), newfid, names: Names::Slice(&names) })
    }

    /// Sends all these requests, [`DEPTH`] at a time, and waits for all answers.
    pub fn call_all(self, messages: impl Iterator<Item = Vec<u8>>) -> io::Result<Self> {
        let mut conn = self;
        let mut messages = messages.peekable();
        let mut answers = Vec::new();
        while messages.peek().is_some() {
            let batch: Vec<Vec<u8>> = messages.by_ref().take(DEPTH).collect();
            conn.stream.write_all(&batch.concat())?;
            for _ in &batch {
                conn.receive(&mut answers)?;
                if type_of(&answers) == RLERROR {
                    return Err(refused(&answers));
                }
            }
        }
        Ok(conn)
    }

    /// Performs an operation, one message after the other.
    pub fn perform(&mut self, cycle: &mut impl MessageCycle) -> io::Result<()> {
        let mut frame = Vec::new();
        for n in 0.. {
            frame.clear();
            if !cycle.put(n, &mut frame) {
                break;
            }
            let asked = type_of(&frame);
            self.stream.write_all(&frame)?;
            self.receive(&mut frame)?;
            if type_of(&frame) != asked + 1 {
                return Err(refused(&frame));
            }
        }
        Ok(())
    }

    /// Writes an encoded request and reads an answer of known length.
    pub fn exchange(&mut self, request: &[u8], answer: &mut [u8]) -> io::Result<()> {
        self.stream.write_all(request)?;
        self.stream.read_exact(answer)
    }

    /// Returns the socket.
    pub fn stream(&mut self) -> &mut UnixStream {
        &mut self.stream
    }

    fn call_tagged<T>(
        &mut self,
        message: &Tmsg<'_>,
        tag: Tag,
        take: impl Fn(Rmsg<'_>) -> Option<T>,
    ) -> io::Result<T> {
        let mut frame = encoded(message, tag);
        self.stream.write_all(&frame)?;
        self.receive(&mut frame)?;
        let (_, answer) = Rmsg::decode(&frame, Dialect::L).map_err(io::Error::other)?;
        take(answer).ok_or_else(|| refused(&frame))
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> io::Result<()> {
        receive(&mut self.stream, self.msize, frame)
    }
}

/// Reads one complete message.
pub fn receive(stream: &mut impl Read, msize: u32, frame: &mut Vec<u8>) -> io::Result<()> {
    frame.resize(HEADER, 0);
    stream.read_exact(frame)?;
    let (Split::Whole(size) | Split::Partial(size)) = split(frame, msize).map_err(io::Error::other)?;
    frame.resize(size, 0);
    stream.read_exact(&mut frame[HEADER..])
}

/// Encodes a message.
pub fn encoded(message: &Tmsg<'_>, tag: Tag) -> Vec<u8> {
    let mut frame = Vec::new();
    message.encode(tag, Dialect::L, &mut frame);
    frame
}

/// Encodes a walk from `dir` to the file of this number (`files`), to a fid of its own.
pub fn walk_to(dir: Fid, n: u32) -> Vec<u8> {
    let (tag, newfid) = on_file(n);
    encoded(&Tmsg::Walk { fid: dir, newfid, names: Names::Slice(&[file_name(n).as_bytes()]) }, tag)
}

/// Returns the tag and the fid for the file of this number.
pub fn on_file(n: u32) -> (Tag, Fid) {
    (Tag(n as u16 % DEPTH as u16), Fid(FIRST_FILE_FID + n))
}

/// An operation that is repeated: a sequence of messages.
pub trait MessageCycle {
    /// Appends message `n`. Returns false at the end of the sequence.
    fn put(&mut self, n: usize, out: &mut Vec<u8>) -> bool;
}

/// A fixed sequence of messages.
impl MessageCycle for Vec<Vec<u8>> {
    fn put(&mut self, n: usize, out: &mut Vec<u8>) -> bool {
        self.get(n).map(|message| out.extend_from_slice(message)).is_some()
    }
}

/// Connections that each have several operations in flight. A completed operation is followed by the next one.
pub struct CycleLoad<C> {
    lanes: Vec<LoadConnection<C>>,
    epoll: rustix::fd::OwnedFd,
    scratch: Vec<u8>,
}

struct LoadConnection<C> {
    stream: UnixStream,
    /// Operations by tag.
    slots: Vec<CycleSlot<C>>,
    /// The received part of an answer.
    partial: Vec<u8>,
    out: Vec<u8>,
    busy: usize,
}

struct CycleSlot<C> {
    cycle: C,
    next: usize,
    /// Type of the message in flight.
    asked: u8,
}

impl<C: MessageCycle> CycleSlot<C> {
    /// Sends the next message. Returns false at the end of the sequence.
    fn ask(&mut self, out: &mut Vec<u8>) -> bool {
        let at = out.len();
        let is_more = self.cycle.put(self.next, out);
        if is_more {
            (self.next, self.asked) = (self.next + 1, type_of(&out[at..]));
        }
        is_more
    }
}

impl<C: MessageCycle> CycleLoad<C> {
    /// Creates a load; `cycle` returns the operation for a connection and a tag.
    pub fn new(
        conns: Vec<LeanConnection>,
        depth: u16,
        mut cycle: impl FnMut(usize, Tag) -> C,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut lanes = Vec::with_capacity(conns.len());
        for LeanConnection { stream, .. } in conns {
            stream.set_nonblocking(true)?;
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            epoll::add(&epoll, &stream, epoll::EventData::new_u64(lanes.len() as u64), flags)?;
            let n = lanes.len();
            let slots =
                (0..depth).map(|tag| CycleSlot { cycle: cycle(n, Tag(tag)), next: 0, asked: 0 }).collect();
            lanes.push(LoadConnection { stream, slots, partial: Vec::new(), out: Vec::new(), busy: 0 });
        }
        Ok(Self { lanes, epoll, scratch: vec![0; READ] })
    }

    /// Runs the load for about this long, until no request is in flight. Returns the operations per second of all
    /// connections.
    pub fn run(&mut self, turn: Duration) -> io::Result<f64> {
        let begun = Instant::now();
        for lane in &mut self.lanes {
            for slot in &mut lane.slots {
                slot.ask(&mut lane.out);
            }
            lane.busy = lane.slots.len();
            lane.write()?;
        }
        let (mut busy, mut done, mut last) = (self.lanes.len(), 0, begun);
        let mut events = Vec::with_capacity(self.lanes.len());
        let patience = Timespec::try_from(SILENCE).map_err(io::Error::other)?;
        while busy > 0 {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience)) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the server is silent")),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let goes_on = begun.elapsed() < turn;
            for event in &events {
                let lane = &mut self.lanes[event.data.u64() as usize];
                if lane.busy > 0 {
                    done += lane.turn(&mut self.scratch, goes_on)?;
                    busy -= usize::from(lane.busy == 0);
                }
            }
            last = Instant::now();
        }
        Ok(done as f64 / last.duration_since(begun).as_secs_f64())
    }
}

impl<C: MessageCycle> LoadConnection<C> {
    /// Processes received answers and sends the next messages. Returns the number of completed operations.
    fn turn(&mut self, scratch: &mut [u8], goes_on: bool) -> io::Result<u64> {
        let mut done = 0;
        loop {
            let have = self.partial.len();
            scratch[..have].copy_from_slice(&self.partial);
            let n = match self.stream.read(&mut scratch[have..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            let mut rest = &scratch[..have + n];
            while let Split::Whole(size) = split(rest, u32::MAX).map_err(io::Error::other)? {
                done += self.take(&rest[..size], goes_on)?;
                rest = &rest[size..];
            }
            self.partial.clear();
            self.partial.extend_from_slice(rest);
            if have + n < scratch.len() {
                break;
            }
        }
        self.write()?;
        Ok(done)
    }

    fn take(&mut self, answer: &[u8], goes_on: bool) -> io::Result<u64> {
        // Tversion has no tag; no other message is in flight with it.
        let tag = if tag_of(answer) == NOTAG { Tag(0) } else { tag_of(answer) };
        let slot = self.slots.get_mut(usize::from(tag.0)).ok_or_else(|| refused(answer))?;
        if type_of(answer) != slot.asked + 1 {
            return Err(refused(answer));
        }
        if slot.ask(&mut self.out) {
            return Ok(0);
        }
        slot.next = 0;
        if goes_on {
            slot.ask(&mut self.out);
        } else {
            self.busy -= 1;
        }
        Ok(1)
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(n) => drop(self.out.drain(..n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn refused(answer: &[u8]) -> io::Error {
    let shown = match Rmsg::decode(answer, Dialect::L) {
        Ok((tag, answer)) => answer.with_tag(tag).to_string(),
        Err(error) => error.to_string(),
    };
    io::Error::other(format!("the server answered {shown}"))
}

const RLERROR: u8 = 7;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// A server that answers one connection's requests from a table of types and lengths.
    fn echo(answers: &'static [(u8, usize)]) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; HEADER];
            while stream.read_exact(&mut head).is_ok() {
                let size = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
                stream.read_exact(&mut vec![0; size - HEADER]).unwrap();
                let (_, len) = answers.iter().find(|(ty, _)| *ty == head[4]).unwrap();
                let mut answer = vec![0; *len];
                answer[..4].copy_from_slice(&(*len as u32).to_le_bytes());
                answer[4] = head[4] + 1;
                answer[5..7].copy_from_slice(&head[5..7]);
                stream.write_all(&answer).unwrap();
            }
        });
        (dir, socket)
    }

    fn cycle(tag: Tag) -> Vec<Vec<u8>> {
        let walk = Tmsg::Walk { fid: Fid(0), newfid: Fid(9), names: Names::Slice(&[]) };
        vec![encoded(&walk, tag), encoded(&Tmsg::Clunk { fid: Fid(9) }, tag)]
    }

    #[test]
    fn every_operation_that_begins_ends_and_is_counted() {
        let (_dir, socket) = echo(&[(110, 9), (120, 7)]);
        let mut load =
            CycleLoad::new(vec![LeanConnection::bare(&socket).unwrap()], 4, |_, tag| cycle(tag)).unwrap();
        for _ in 0..2 {
            assert!(load.run(Duration::ZERO).unwrap() > 0.0);
            assert!(load.lanes[0].busy == 0 && load.lanes[0].slots.iter().all(|slot| slot.next == 0));
        }
    }

    #[test]
    fn an_answer_to_something_else_is_an_error() {
        let (_dir, socket) = echo(&[(110, 9), (120, 7)]);
        let wrong = |tag| vec![encoded(&Tmsg::Clunk { fid: Fid(1) }, Tag(tag)); 1];
        let mut load =
            CycleLoad::new(vec![LeanConnection::bare(&socket).unwrap()], 1, |_, _| wrong(7)).unwrap();
        assert!(load.run(Duration::ZERO).is_err());
    }
}
