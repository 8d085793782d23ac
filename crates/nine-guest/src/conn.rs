//! Whole messages over one end of a channel, in order.
//!
//! In: messages to send, with notes about their data in the arena. Out: whole answers, in order of arrival; data in
//! the arena is referred to by its place. A violation of the rules of a channel or of message framing ends the
//! channel.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use nine_proto::frame::{self, HEADER, MSIZE_MIN};
use nine_proto::msg::Rmsg;
use nine_proto::{Dialect, Errno, Error, Result};
use nine_ring::{End, Fault, Guest, Kind, Life, MOST, Memory, Note, Piece, Place};

use crate::line::{Line, WaitFailure, WaitingLine};

/// The number of bytes of an Rread or Rreaddir before its data.
pub(crate) const DATA_AT: usize = HEADER + 4;

/// One end of a channel, for messages.
pub(crate) struct MessageChannel<L> {
    end: End,
    pub(crate) waiting: WaitingLine<L>,
    /// The largest message, in bytes.
    pub(crate) msize: u32,
    /// The last received piece.
    piece: Box<[u8; MOST]>,
    /// Pieces of messages that arrived in several, or several in one piece: at most a message and a piece.
    inbox: Vec<u8>,
    /// The length of the part of `inbox` already returned.
    told: usize,
    /// The reason why the channel has ended.
    ended: Option<Error>,
}

/// A received message.
pub(crate) struct ReceivedMessage {
    pub(crate) tag: u16,
    pub(crate) ty: u8,
    /// The place of its data, if that is in the arena.
    pub(crate) data: Option<Place>,
    /// Bytes that came through the ring.
    len: usize,
    /// It is in `piece` rather than in `inbox`.
    is_piece: bool,
}

impl<L: Line> MessageChannel<L> {
    /// Joins the channel in this memory, and waits until the host serves it.
    pub(crate) fn join(memory: Memory, mut waiting: WaitingLine<L>) -> Result<Self> {
        let end = knock(memory, &mut waiting)?;
        let piece = Box::new([0; MOST]);
        Ok(Self { end, waiting, msize: MSIZE_MIN, piece, inbox: Vec::new(), told: 0, ended: None })
    }

    /// Joins the channel again, in any state.
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

    /// Returns the memory of the whole channel.
    pub(crate) fn memory(&self) -> &Memory {
        self.end.place(Place::default()).expect("nothing is in every arena").0
    }

    /// Returns an error with the reason if the channel has ended.
    #[inline]
    pub(crate) fn is_alive(&self) -> Result<()> {
        match &self.ended {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Returns the memory used for received messages, in bytes.
    pub(crate) fn held(&self) -> usize {
        self.inbox.capacity()
    }

    /// Tells the host that nothing more is sent.
    pub(crate) fn leave(&mut self) {
        self.end.end();
        self.ring();
    }

    /// Ends the channel after an invalid answer to `what`.
    #[cold]
    pub(crate) fn broken(&mut self, what: &str) -> Error {
        self.fail(Error::new(
            Errno::EPROTO,
            alloc::format!("the host's answer to {what} is none: the channel ends"),
        ))
    }

    /// Ends the channel because the host does not answer.
    #[cold]
    pub(crate) fn give_up(&mut self) -> Error {
        self.fail(Error::new(Errno::ETIMEDOUT, "the host answers nothing, no flush either: the channel ends"))
    }

    /// Sends a piece, after waiting for room.
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

    /// Sends a piece. Returns `false` if there is no room now.
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

    /// Waits for the next message. `None` at the timeout; the message may still arrive later.
    #[inline]
    pub(crate) fn answer(&mut self) -> Result<Option<ReceivedMessage>> {
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
                    return Ok(Some(ReceivedMessage::new(&self.piece[..len], None, true)));
                }
                Note::None => self.keep(len),
                // The arena holds as many bytes as the count field says.
                Note::Data(place)
                    if is_next
                        && len == DATA_AT
                        && size == len + place.count as usize
                        && self.piece[HEADER..len] == place.count.to_le_bytes() =>
                {
                    return Ok(Some(ReceivedMessage::new(&self.piece[..len], Some(place), true)));
                }
                Note::Data(_) | Note::Room(_) => return Err(self.broken("a request")),
            }
        }
    }

    /// Returns the part of an answer that came through the ring, at least its head. Valid until the next call of
    /// `answer`.
    #[inline]
    pub(crate) fn bytes(&self, answer: &ReceivedMessage) -> &[u8] {
        if answer.is_piece {
            &self.piece[..answer.len]
        } else {
            &self.inbox[self.told - answer.len..self.told]
        }
    }

    /// Returns whether it is this message. For messages without fields.
    pub(crate) fn is(&self, answer: &ReceivedMessage, message: &Rmsg<'_>) -> bool {
        let said = Rmsg::decode(self.bytes(answer), Dialect::L);
        answer.data.is_none() && said.is_ok_and(|(_, said)| said.number() == message.number())
    }

    /// Returns the first message of the inbox, if it is complete.
    fn whole(&mut self) -> Result<Option<ReceivedMessage>> {
        let rest = &self.inbox[self.told..];
        match frame::split(rest, self.msize) {
            Ok(frame::Split::Whole(size)) => {
                let answer = ReceivedMessage::new(&rest[..size], None, false);
                self.told += size;
                Ok(Some(answer))
            }
            Ok(frame::Split::Partial(_)) => Ok(None),
            Err(error) => Err(self.fail(Error::new(Errno::EPROTO, alloc::format!("the host sends {error}")))),
        }
    }

    /// Appends the last piece to the unparsed input.
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

    /// Waits. Returns `false` at the timeout.
    fn wait(
        &mut self,
        since: &mut Option<Duration>,
        there: impl Fn(&mut End) -> Result<bool, Fault>,
    ) -> Result<bool> {
        self.is_alive()?;
        let look = |end: &mut End| {
            // Read first: if the host has ended, everything it wrote is visible to `there`.
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
            Err(WaitFailure::Late) => return Ok(false),
            Ok(Err(error)) => error,
            Err(WaitFailure::Gone) => gone(),
        };
        Err(self.fail(failed))
    }

    #[cold]
    fn fault(&mut self, fault: Fault) -> Error {
        self.fail(Error::new(Errno::EPROTO, alloc::format!("{fault}")))
    }

    /// Ends the channel with this error. The host notices when this side joins again or leaves.
    #[cold]
    pub(crate) fn fail(&mut self, error: Error) -> Error {
        self.ended = Some(error.clone());
        error
    }
}

/// Joins a channel, and checks that it is one of files.
fn knock<L: Line>(memory: Memory, waiting: &mut WaitingLine<L>) -> Result<End> {
    let no = |errno, why: &dyn core::fmt::Display| Error::new(errno, alloc::format!("{why}"));
    let mut guest = Guest::join(memory).map_err(|bad| no(Errno::ENOTCONN, &bad))?;
    if guest.must_ring() {
        waiting.line.ring();
    }
    let asleep = |guest: &Guest, asleep| if asleep { guest.may_sleep() } else { guest.is_awake() };
    let end = waiting.until(&mut guest, &mut None, |guest| guest.served(), asleep);
    let end = end.map_err(|missed| match missed {
        WaitFailure::Gone => gone(),
        WaitFailure::Late => no(Errno::ETIMEDOUT, &"the host serves nobody who joins its channel"),
    })?;
    match end.layout().kind {
        Kind::GuestAsks => Ok(end),
        kind => Err(no(Errno::EINVAL, &format_args!("a channel of {kind:?}: here the guest asks for files"))),
    }
}

impl ReceivedMessage {
    /// `bytes` must contain a whole header.
    fn new(bytes: &[u8], data: Option<Place>, is_piece: bool) -> Self {
        Self { tag: frame::tag_of(bytes).0, ty: frame::type_of(bytes), data, len: bytes.len(), is_piece }
    }
}

const ANOTHER: &str = "the channel has another host, or serves another guest: join it again";
const ENDED: &str = "the host has closed the channel";

fn gone() -> Error {
    Error::new(Errno::ECONNRESET, "the host of the channel has gone")
}
