//! Whole messages through one end of a channel, one after the other.
//!
//! In: messages to send, with what they say of the arena. Out: the answers as they come, whole; what lies in the
//! arena is told by its place. Whatever breaks the rules of a channel or of a message's frame ends the channel.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use nine_proto::frame::{self, HEADER, MSIZE_MIN};
use nine_proto::msg::Rmsg;
use nine_proto::{Dialect, Errno, Error, Result};
use nine_ring::{End, Fault, Guest, Kind, Life, MOST, Memory, Note, Piece, Place};

use crate::line::{Line, Missed, Waiting};

/// Bytes of an Rread or Rreaddir before its data.
pub(crate) const DATA_AT: usize = HEADER + 4;

/// One end of a channel, by which messages go.
pub(crate) struct Conn<L> {
    end: End,
    pub(crate) waiting: Waiting<L>,
    /// The largest message.
    pub(crate) msize: u32,
    /// The last piece that came.
    piece: Box<[u8; MOST]>,
    /// Pieces of messages that came in several, or several in one: at most a message and a piece.
    inbox: Vec<u8>,
    /// What of it was told.
    told: usize,
    /// Why there is nothing more.
    ended: Option<Error>,
}

/// A message that has come.
pub(crate) struct Answer {
    pub(crate) tag: u16,
    pub(crate) ty: u8,
    /// Where its data is, if it is in the arena.
    pub(crate) data: Option<Place>,
    /// Bytes that came through the ring.
    len: usize,
    /// It is the last piece.
    is_piece: bool,
}

impl<L: Line> Conn<L> {
    /// Joins the channel in that memory, and waits until the host serves it.
    pub(crate) fn join(memory: Memory, mut waiting: Waiting<L>) -> Result<Self> {
        let end = knock(memory, &mut waiting)?;
        let piece = Box::new([0; MOST]);
        Ok(Self { end, waiting, msize: MSIZE_MIN, piece, inbox: Vec::new(), told: 0, ended: None })
    }

    /// Joins the channel again, whatever has become of it.
    pub(crate) fn rejoin(&mut self) -> Result<()> {
        self.ended = Some(Error::new(Errno::ENOTCONN, "the channel is not joined: join it again"));
        self.end = knock(self.memory().clone(), &mut self.waiting)?;
        self.inbox.clear();
        (self.told, self.msize, self.ended) = (0, MSIZE_MIN, None);
        Ok(())
    }

    pub(crate) fn end(&self) -> &End {
        &self.end
    }

    /// All of the channel.
    pub(crate) fn memory(&self) -> &Memory {
        self.end.place(Place::default()).expect("nothing is in every arena").0
    }

    /// Whether it has not ended; else why.
    #[inline]
    pub(crate) fn is_alive(&self) -> Result<()> {
        match &self.ended {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Bytes of messages that have come in part, or were told.
    pub(crate) fn held(&self) -> usize {
        self.inbox.capacity()
    }

    /// Says that nothing more is sent.
    pub(crate) fn leave(&mut self) {
        self.end.end();
        self.ring();
    }

    /// Ends it: the host has answered what nobody can make sense of.
    #[cold]
    pub(crate) fn broken(&mut self, what: &str) -> Error {
        self.fail(Error::new(
            Errno::EPROTO,
            alloc::format!("the host's answer to {what} is none: the channel ends"),
        ))
    }

    /// Ends it: nobody waits for the host any more.
    #[cold]
    pub(crate) fn give_up(&mut self) -> Error {
        self.fail(Error::new(Errno::ETIMEDOUT, "the host answers nothing, no flush either: the channel ends"))
    }

    /// Sends a piece; where there is no room for it, waits.
    #[inline]
    pub(crate) fn send(&mut self, bytes: &[u8], note: Note) -> Result<()> {
        self.send_since(bytes, note, &mut None)
    }

    fn send_since(&mut self, bytes: &[u8], note: Note, since: &mut Option<Duration>) -> Result<()> {
        while !self.try_send(bytes, note)? {
            if !self.wait(since, |end| end.has_room(bytes.len()))? {
                return Err(self.give_up());
            }
        }
        Ok(())
    }

    /// Sends a piece. `false`: there is no room for it now.
    #[inline]
    pub(crate) fn try_send(&mut self, bytes: &[u8], note: Note) -> Result<bool> {
        let sent = self.end.put(bytes, note).map_err(|fault| self.fault(fault))?;
        if sent {
            self.ring();
        }
        Ok(sent)
    }

    /// Sends a message in as many pieces as it needs.
    pub(crate) fn send_long(&mut self, bytes: &[u8]) -> Result<()> {
        let mut since = None;
        bytes.chunks(MOST).try_for_each(|part| self.send_since(part, Note::None, &mut since))
    }

    /// The next message; waits for it. `None`: one's patience has ended, and it may come nevertheless.
    #[inline]
    pub(crate) fn answer(&mut self) -> Result<Option<Answer>> {
        let mut since = None;
        loop {
            if self.told < self.inbox.len()
                && let Some(answer) = self.whole()?
            {
                return Ok(Some(answer));
            }
            let Some(Piece { len, note }) = self.take(&mut since)? else { return Ok(None) };
            let is_next = self.told == self.inbox.len();
            let size = self.piece.first_chunk().map_or(0, |size| u32::from_le_bytes(*size) as usize);
            match note {
                Note::None if is_next && len == size && len >= HEADER && len <= self.msize as usize => {
                    return Ok(Some(Answer::new(&self.piece[..len], None, true)));
                }
                Note::None => self.keep(len),
                // As many bytes as its own count are in the arena.
                Note::Data(place)
                    if is_next
                        && len == DATA_AT
                        && size == len + place.count as usize
                        && self.piece[HEADER..len] == place.count.to_le_bytes() =>
                {
                    return Ok(Some(Answer::new(&self.piece[..len], Some(place), true)));
                }
                Note::Data(_) | Note::Room(_) => return Err(self.broken("a request")),
            }
        }
    }

    /// What of an answer came through the ring: at least its head. It is there until the next one is asked for.
    #[inline]
    pub(crate) fn bytes(&self, answer: &Answer) -> &[u8] {
        if answer.is_piece {
            &self.piece[..answer.len]
        } else {
            &self.inbox[self.told - answer.len..self.told]
        }
    }

    /// Whether it is one of those that say nothing but what they are.
    pub(crate) fn is(&self, answer: &Answer, message: &Rmsg<'_>) -> bool {
        let said = Rmsg::decode(self.bytes(answer), Dialect::L);
        answer.data.is_none() && said.is_ok_and(|(_, said)| said.number() == message.number())
    }

    /// The first message of the inbox, if it is whole.
    fn whole(&mut self) -> Result<Option<Answer>> {
        let rest = &self.inbox[self.told..];
        match frame::split(rest, self.msize) {
            Ok(frame::Split::Whole(size)) => {
                let answer = Answer::new(&rest[..size], None, false);
                self.told += size;
                Ok(Some(answer))
            }
            Ok(frame::Split::Partial(_)) => Ok(None),
            Err(error) => Err(self.fail(Error::new(Errno::EPROTO, alloc::format!("the host sends {error}")))),
        }
    }

    /// Puts the last piece behind what is not told yet.
    fn keep(&mut self, len: usize) {
        self.inbox.drain(..self.told);
        self.told = 0;
        self.inbox.extend_from_slice(&self.piece[..len]);
    }

    #[inline]
    fn take(&mut self, since: &mut Option<Duration>) -> Result<Option<Piece>> {
        loop {
            if let Some(piece) = self.end.take(&mut self.piece[..]).map_err(|fault| self.fault(fault))? {
                self.ring();
                return Ok(Some(piece));
            }
            if !self.wait(since, |end| Ok(end.is_ready()))? {
                return Ok(None);
            }
        }
    }

    #[inline]
    fn ring(&mut self) {
        if self.end.must_ring() {
            self.waiting.line.ring();
        }
    }

    /// Waits. `false`: one's patience has ended.
    fn wait(
        &mut self,
        since: &mut Option<Duration>,
        there: impl Fn(&mut End) -> Result<bool, Fault>,
    ) -> Result<bool> {
        self.is_alive()?;
        let look = |end: &mut End| {
            // Looked at first: what an ended host has written was there before.
            let life = end.life();
            match (there(end), life) {
                (Err(fault), _) => Some(Err(Error::new(Errno::EPROTO, alloc::format!("{fault}")))),
                (Ok(_), Life::Another) => Some(Err(Error::new(Errno::ECONNRESET, ANOTHER))),
                (Ok(true), _) => Some(Ok(())),
                (Ok(false), Life::Ended) => Some(Err(Error::new(Errno::EPIPE, ENDED))),
                (Ok(false), Life::Same) => None,
            }
        };
        let asleep = |end: &End, asleep| if asleep { end.may_sleep() } else { end.is_awake() };
        let failed = match self.waiting.until(&mut self.end, since, look, asleep) {
            Ok(Ok(())) => return Ok(true),
            Err(Missed::Late) => return Ok(false),
            Ok(Err(error)) => error,
            Err(Missed::Gone) => gone(),
        };
        Err(self.fail(failed))
    }

    #[cold]
    fn fault(&mut self, fault: Fault) -> Error {
        self.fail(Error::new(Errno::EPROTO, alloc::format!("{fault}")))
    }

    /// Ends it for this reason. The host hears of it when this side joins again, or leaves.
    #[cold]
    pub(crate) fn fail(&mut self, error: Error) -> Error {
        self.ended = Some(error.clone());
        error
    }
}

/// Joins a channel of files.
fn knock<L: Line>(memory: Memory, waiting: &mut Waiting<L>) -> Result<End> {
    let no = |errno, why: &dyn core::fmt::Display| Error::new(errno, alloc::format!("{why}"));
    let mut guest = Guest::join(memory).map_err(|bad| no(Errno::ENOTCONN, &bad))?;
    if guest.must_ring() {
        waiting.line.ring();
    }
    let asleep = |guest: &Guest, asleep| if asleep { guest.may_sleep() } else { guest.is_awake() };
    let end = waiting.until(&mut guest, &mut None, |guest| guest.served(), asleep);
    let end = end.map_err(|missed| match missed {
        Missed::Gone => gone(),
        Missed::Late => no(Errno::ETIMEDOUT, &"the host serves nobody who joins its channel"),
    })?;
    match end.layout().kind {
        Kind::GuestAsks => Ok(end),
        kind => Err(no(Errno::EINVAL, &format_args!("a channel of {kind:?}: here the guest asks for files"))),
    }
}

impl Answer {
    /// Of bytes that have a whole head.
    fn new(bytes: &[u8], data: Option<Place>, is_piece: bool) -> Self {
        Self { tag: frame::tag_of(bytes).0, ty: frame::type_of(bytes), data, len: bytes.len(), is_piece }
    }
}

const ANOTHER: &str = "the channel has another host, or serves another guest: join it again";
const ENDED: &str = "the host has closed the channel";

fn gone() -> Error {
    Error::new(Errno::ECONNRESET, "the host of the channel has gone")
}
