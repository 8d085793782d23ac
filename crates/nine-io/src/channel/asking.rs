//! The client's end of a channel.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use nine_net::shm::{Arena, Channel, Gauge, Incoming, MOST, Note, Place};
use nine_net::{Peer, Transport};

use super::heads::HeadTracker;
use super::{ArenaSender, RVERSION, SMALL, TFLUSH, TREAD, TREADDIR, TWRITE, WRITE_HEAD, send, word};

/// See the module. Uses at most one arena range for each tag.
pub struct Asking {
    channel: Channel,
    incoming: Incoming,
    under_way: ArenaRequests,
    going: RequestProgress,
    /// Bytes to send that are not in a piece yet.
    stage: Box<[u8; MOST]>,
    staged: usize,
}

/// Unanswered requests, as far as they use an arena range.
struct ArenaRequests {
    arena: Arena,
    /// Follows the answers.
    heads: HeadTracker,
    /// Arena ranges of requests, by tag.
    places: HashMap<u16, Place>,
    /// The flushed tag of each Tflush, by the tag of the Tflush.
    flushes: HashMap<u16, u16>,
    /// The range that is freed once the latest answer has been read.
    answered: Option<Place>,
}

/// The state of the request that is being written.
#[derive(Debug)]
enum RequestProgress {
    /// This many bytes of its head are there.
    Head([u8; WRITE_HEAD], usize),
    /// This many bytes are left, which go through the ring.
    Ring(usize),
    /// A read, with a range for the data of its answer.
    Room { head: [u8; WRITE_HEAD], place: Place },
    /// A write with its data in this range; `done` bytes are there.
    Arena { head: [u8; WRITE_HEAD], place: Place, done: usize },
}

impl RequestProgress {
    const NEXT: Self = Self::Head([0; WRITE_HEAD], 0);
}

impl Asking {
    /// The client's end of a joined channel.
    pub fn new(channel: Channel) -> Self {
        Self {
            under_way: ArenaRequests {
                arena: Arena::new(channel.layout().pages),
                heads: HeadTracker::default(),
                places: HashMap::new(),
                flushes: HashMap::new(),
                answered: None,
            },
            channel,
            incoming: Incoming::default(),
            going: RequestProgress::NEXT,
            stage: Box::new([0; MOST]),
            staged: 0,
        }
    }

    /// Returns the use of the arena.
    pub fn gauge(&self) -> Gauge {
        self.under_way.arena.gauge()
    }

    /// Bytes of state that it holds beside the channel. They are bounded by the number of unanswered requests.
    pub fn held(&self) -> usize {
        let ArenaRequests { places, flushes, .. } = &self.under_way;
        self.staged + places.len() * size_of::<(u16, Place)>() + flushes.len() * size_of::<(u16, u16)>()
    }

    /// Decides, when the head of a request is complete, where the rest goes.
    fn headed(&mut self) {
        let RequestProgress::Head(head, have) = &self.going else { return };
        let (head, have) = (*head, *have);
        let size = word(&head) as usize;
        let tag = u16::from_le_bytes([head[5], head[6]]);
        if head[4] == TFLUSH && have == 9 {
            self.under_way.flushes.insert(tag, u16::from_le_bytes([head[7], head[8]]));
        }
        let data = have == WRITE_HEAD && matches!(head[4], TWRITE | TREAD | TREADDIR);
        let count = if data { word(&head[19..]) } else { 0 };
        let fits = match head[4] {
            TWRITE => size == WRITE_HEAD + count as usize,
            _ => size == WRITE_HEAD,
        };
        // If a client uses a tag twice, the second request gets no range.
        let ArenaRequests { arena, places, .. } = &mut self.under_way;
        let free = count as usize >= SMALL && fits && !places.contains_key(&tag);
        if let Some(place) = free.then(|| arena.take(count)).flatten() {
            places.insert(tag, place);
            self.going = match head[4] {
                TWRITE => RequestProgress::Arena { head, place, done: 0 },
                _ => RequestProgress::Room { head, place },
            };
            return;
        }
        self.stage[self.staged..self.staged + have].copy_from_slice(&head[..have]);
        self.staged += have;
        self.going = if size > have { RequestProgress::Ring(size - have) } else { RequestProgress::NEXT };
    }
}

impl ArenaRequests {
    /// Handles an incoming piece. If its answer does not use the range, the range is freed now, else once the data was
    /// read.
    fn came(&mut self, bytes: &[u8], note: Note) -> io::Result<()> {
        let (places, flushes, arena) = (&mut self.places, &mut self.flushes, &mut self.arena);
        let mut last = None;
        self.heads.pass(bytes, |number, tag| {
            let flushed = flushes.remove(&tag).and_then(|old| places.remove(&old));
            flushed.into_iter().for_each(|place| arena.give(place));
            if number == RVERSION {
                places.drain().for_each(|(_, place)| arena.give(place));
            }
            last.take().into_iter().for_each(|place| arena.give(place));
            last = places.remove(&tag);
        });
        let Note::Data(place) = note else {
            last.into_iter().for_each(|place| arena.give(place));
            return Ok(());
        };
        self.heads.skip(place.count as usize);
        let room = last.filter(|room| place.at == room.at && place.count <= room.count);
        let why = "the server answers into a place it was not given";
        self.answered = Some(room.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, why))?);
        Ok(())
    }

    /// All incoming bytes have been read.
    fn has_read(&mut self) {
        self.answered.take().into_iter().for_each(|place| self.arena.give(place));
    }
}

/// Bytes of a message's head that decide where the rest goes; `head` has at least seven.
fn need(head: &[u8; WRITE_HEAD]) -> usize {
    let need = match head[4] {
        TFLUSH => 9,
        TWRITE | TREAD | TREADDIR => WRITE_HEAD,
        _ => 7,
    };
    need.min((word(head) as usize).max(7))
}

impl ArenaSender for Asking {
    fn poll_push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.staged > 0 {
            ready!(self.channel.poll_put(cx, &self.stage[..self.staged], Note::None))?;
            self.staged = 0;
        }
        let (head, note) = match &self.going {
            RequestProgress::Room { head, place } => (head, Note::Room(*place)),
            RequestProgress::Arena { head, place, done } if *done == place.count as usize => {
                (head, Note::Data(*place))
            }
            _ => return Poll::Ready(Ok(())),
        };
        ready!(self.channel.poll_put(cx, head, note))?;
        self.going = RequestProgress::NEXT;
        Poll::Ready(Ok(()))
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        match &mut self.going {
            RequestProgress::Head(head, have) => {
                // Read beyond the tag (and a flush's old tag) only in messages that are known to have data.
                let need = if *have >= 7 { need(head) } else { 7 };
                let n = (need - *have).min(bytes.len());
                head[*have..*have + n].copy_from_slice(&bytes[..n]);
                *have += n;
                if *have >= 7 && *have == self::need(head) {
                    self.headed();
                }
                n
            }
            RequestProgress::Ring(left) => {
                let n = (*left).min(bytes.len()).min(MOST - self.staged);
                self.stage[self.staged..self.staged + n].copy_from_slice(&bytes[..n]);
                (self.staged, *left) = (self.staged + n, *left - n);
                if *left == 0 {
                    self.going = RequestProgress::NEXT;
                }
                n
            }
            RequestProgress::Arena { place, done, .. } => {
                let n = (place.count as usize - *done).min(bytes.len());
                let (memory, at) = self.channel.place(*place).expect("the arena's own");
                memory.write(at + *done, &bytes[..n]);
                *done += n;
                n
            }
            RequestProgress::Room { .. } => unreachable!("it is put before anything else is taken"),
        }
    }

    fn is_full(&self) -> bool {
        match &self.going {
            RequestProgress::Arena { place, done, .. } => *done == place.count as usize,
            RequestProgress::Room { .. } => true,
            _ => self.staged + WRITE_HEAD > MOST,
        }
    }
}

impl Transport for Asking {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let Self { channel, incoming, under_way, .. } = self;
        let read = incoming.poll_read(channel, cx, buf, |bytes, note| under_way.came(bytes, note));
        if incoming.is_empty() {
            under_way.has_read();
        }
        read
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

    fn peer(&self) -> &Peer {
        self.channel.peer()
    }
}
