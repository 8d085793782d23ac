//! The server's end of a channel.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll, ready};

use nine_net::shm::{Channel, Incoming, MOST, Note, Place};
use nine_net::{Peer, Placed, Transport};

use super::heads::HeadTracker;
use super::lent::LentChannel;
use super::{ArenaSender, READ_HEAD, RREAD, RREADDIR, SMALL, WRITE_HEAD, send, word};

/// Maximum number of offered ranges for answers that are stored at once. Beyond them, the data of answers goes through
/// the ring.
pub const ROOMS: usize = 1024;

/// See the module.
pub struct Serving {
    channel: LentChannel,
    incoming: Incoming,
    heads: HeadTracker,
    /// Arena ranges for the data of answers, by tag: at most [`ROOMS`].
    rooms: HashMap<u16, Place>,
    going: AnswerProgress,
    /// Bytes to send that are not in a piece yet.
    stage: Box<[u8; MOST]>,
    staged: usize,
}

/// The state of the answer that is being written.
#[derive(Debug)]
enum AnswerProgress {
    /// This many bytes of its head are there.
    Head([u8; READ_HEAD], usize),
    /// This many bytes are left, which go through the ring.
    Ring(usize),
    /// An answer with its data in this range; `done` bytes are there.
    Arena { head: [u8; READ_HEAD], place: Place, done: usize },
}

impl AnswerProgress {
    const NEXT: Self = Self::Head([0; READ_HEAD], 0);
}

impl Serving {
    /// The server's end of a channel that a guest has joined.
    pub fn new(channel: Channel) -> Self {
        Self::of(channel.into())
    }

    /// Bytes of state that it holds beside the channel.
    pub fn held(&self) -> usize {
        self.staged + self.rooms.len() * size_of::<(u16, Place)>()
    }

    pub(super) fn of(channel: LentChannel) -> Self {
        Self {
            channel,
            incoming: Incoming::default(),
            heads: HeadTracker::default(),
            rooms: HashMap::new(),
            going: AnswerProgress::NEXT,
            stage: Box::new([0; MOST]),
            staged: 0,
        }
    }

    /// Decides, when the head of an answer is complete, where the rest goes.
    fn headed(&mut self) {
        let AnswerProgress::Head(head, have) = &self.going else { return };
        let (head, have) = (*head, *have);
        let size = word(&head) as usize;
        let tag = u16::from_le_bytes([head[5], head[6]]);
        if have == READ_HEAD {
            let room = self.rooms.remove(&tag);
            let count = word(&head[7..]);
            if let Some(room) = room.filter(|room| count <= room.count && count as usize >= SMALL) {
                self.going = AnswerProgress::Arena { head, place: Place { count, ..room }, done: 0 };
                return;
            }
        } else if matches!(head[4], RREAD | RREADDIR) && self.rooms.contains_key(&tag) && size >= READ_HEAD {
            return;
        } else if !self.rooms.is_empty() {
            self.rooms.remove(&tag);
        }
        self.stage[self.staged..self.staged + have].copy_from_slice(&head[..have]);
        self.staged += have;
        self.going = if size > have { AnswerProgress::Ring(size - have) } else { AnswerProgress::NEXT };
    }
}

/// Handles an incoming piece: its messages and its note.
fn came(heads: &mut HeadTracker, rooms: &mut HashMap<u16, Place>, bytes: &[u8], note: Note) {
    heads.pass(bytes, |_, tag| {
        // The range of a tag's earlier request is not valid for the next one.
        if !rooms.is_empty() {
            rooms.remove(&tag);
        }
    });
    match note {
        Note::None => {}
        Note::Data(place) => heads.skip(place.count as usize),
        Note::Room(place) if bytes.len() == WRITE_HEAD && rooms.len() < ROOMS => {
            rooms.insert(u16::from_le_bytes([bytes[5], bytes[6]]), place);
        }
        // A range offered with anything but a read is ignored, and so are ranges above the limit.
        Note::Room(_) => {}
    }
}

impl ArenaSender for Serving {
    fn poll_push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.staged > 0 {
            ready!(self.channel.poll_put(cx, &self.stage[..self.staged], Note::None))?;
            self.staged = 0;
        }
        if let AnswerProgress::Arena { head, place, done } = &self.going
            && *done == place.count as usize
        {
            ready!(self.channel.poll_put(cx, head, Note::Data(*place)))?;
            self.going = AnswerProgress::NEXT;
        }
        Poll::Ready(Ok(()))
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        match &mut self.going {
            AnswerProgress::Head(head, have) => {
                // Read beyond the tag only in answers that are known to have data.
                let need = if *have >= 7 { READ_HEAD } else { 7 };
                let n = (need - *have).min(bytes.len());
                head[*have..*have + n].copy_from_slice(&bytes[..n]);
                *have += n;
                if *have == need {
                    self.headed();
                }
                n
            }
            AnswerProgress::Ring(left) => {
                let n = (*left).min(bytes.len()).min(MOST - self.staged);
                self.stage[self.staged..self.staged + n].copy_from_slice(&bytes[..n]);
                (self.staged, *left) = (self.staged + n, *left - n);
                if *left == 0 {
                    self.going = AnswerProgress::NEXT;
                }
                n
            }
            AnswerProgress::Arena { place, done, .. } => {
                let n = (place.count as usize - *done).min(bytes.len());
                let (memory, at) = self.channel.place(*place).expect("looked at when it came");
                memory.write(at + *done, &bytes[..n]);
                *done += n;
                n
            }
        }
    }

    fn is_full(&self) -> bool {
        match &self.going {
            AnswerProgress::Arena { place, done, .. } => *done == place.count as usize,
            _ => self.staged + READ_HEAD > MOST,
        }
    }
}

impl Transport for Serving {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let Self { channel, incoming, heads, rooms, .. } = self;
        incoming.poll_read(channel, cx, buf, |bytes, note| {
            came(heads, rooms, bytes, note);
            Ok(())
        })
    }

    fn take_placed(&mut self, len: usize) -> Option<Placed> {
        self.incoming.take_placed(&self.channel, len)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        send(self, cx, bufs)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let pushed = self.poll_push(cx);
        self.channel.settle();
        pushed
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_push(cx))?;
        self.channel.close();
        Poll::Ready(Ok(()))
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.channel.poll_gone(cx)
    }

    fn poll_read_placed(
        &mut self,
        cx: &mut Context<'_>,
        head: &[u8; READ_HEAD],
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<Option<usize>>> {
        ready!(self.poll_push(cx))?;
        let AnswerProgress::Head(_, 0) = self.going else { return Poll::Ready(Ok(None)) };
        let tag = u16::from_le_bytes([head[5], head[6]]);
        let Some(&room) = self.rooms.get(&tag) else { return Poll::Ready(Ok(None)) };
        if len > room.count as usize || len < SMALL {
            return Poll::Ready(Ok(None));
        }
        let (memory, at) = self.channel.place(room).expect("looked at when it came");
        let mut done = 0;
        while done < len {
            match memory.read_at(at + done, len - done, file, offset + done as u64, false) {
                Ok(0) => break,
                Ok(n) => done += n,
                // The caller's own read meets the error again and can report it.
                Err(_) if done == 0 => return Poll::Ready(Ok(None)),
                Err(_) => break,
            }
        }
        self.rooms.remove(&tag);
        let mut head = *head;
        head[..4].copy_from_slice(&((READ_HEAD + done) as u32).to_le_bytes());
        head[7..].copy_from_slice(&(done as u32).to_le_bytes());
        if done > 0 {
            let count = done as u32;
            self.going = AnswerProgress::Arena { head, place: Place { count, ..room }, done };
        } else {
            self.stage[..READ_HEAD].copy_from_slice(&head);
            self.staged = READ_HEAD;
        }
        Poll::Ready(Ok(Some(done)))
    }

    fn peer(&self) -> &Peer {
        self.channel.peer()
    }
}
