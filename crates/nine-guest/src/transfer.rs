//! File data: small amounts in the ring, others through the arena, large ones in several requests at once.
//!
//! Always holds: a place of the arena is reserved from before the request until its answer. When a call returns, all
//! its requests were answered, or the channel has ended.

use core::ops::{Bound, RangeBounds};
use core::ptr::NonNull;

use nine_proto::frame::HEADER;
use nine_proto::msg::Rmsg;
use nine_proto::{Errno, Error, Result, mode};
use nine_ring::{Memory, Note, PAGE, Place};

use crate::client::{Client, File, error_of};
use crate::conn::{DATA_AT, ReceivedMessage};
use crate::flush::{RequestOutcome, TAGS_MAX, late};
use crate::line::Line;
use crate::lot::OwnedNumber;

/// Bytes of the arena, which the host sees in place: writes from here and reads to here are not copied. Dropping it,
/// on any thread, gives the bytes back.
///
/// The host may change the bytes at any time.
#[derive(Debug)]
pub struct Buffer {
    number: OwnedNumber,
    memory: Memory,
    /// The offset of its start in the memory.
    at: usize,
    place: Place,
}

/// The source or the target of a transfer.
enum TransferData<'a> {
    /// Reads to these bytes.
    In(&'a mut [u8]),
    /// Writes from these bytes.
    Out(&'a [u8]),
    /// Reads to the arena.
    Room(Place),
    /// Writes from the arena.
    Data(Place),
}

/// An in-flight request.
#[derive(Clone, Copy)]
struct TransferRequest {
    ty: u8,
    /// Its offset in the transfer, and its length in bytes.
    at: usize,
    len: usize,
    /// The place of its bytes in the arena.
    place: Option<Place>,
    /// The place was allocated for this request alone.
    is_own: bool,
}

const TREADDIR: u8 = 40;
const TREAD: u8 = 116;
const TWRITE: u8 = 118;
/// The length of a Tread, a Treaddir or a Twrite before its data.
const REQUEST_HEAD_LEN: usize = HEADER + 16;
/// From this length on, data goes through the arena. Shorter data fits into two lines of the ring, which the host
/// gets as soon as one line and a line of the arena.
const ARENA_DATA_MIN: usize = 86;
/// The maximum length copied into the arena for one request, in bytes.
const ARENA_COPY_MAX: usize = 256 << 10;

impl<L: Line> Client<L> {
    /// Reads from an open file at `offset`, and returns the number of bytes. It is smaller than requested at the end
    /// of the file, or, for a special file, if less was available.
    pub fn read(&mut self, file: &File, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.transfer(file, offset, TransferData::In(into))
    }

    /// Writes to an open file at `offset`, and returns the number of bytes; less if the host accepts no more.
    pub fn write(&mut self, file: &File, offset: u64, from: &[u8]) -> Result<usize> {
        self.transfer(file, offset, TransferData::Out(from))
    }

    /// Allocates room in the arena. `ENOBUFS`: there is not enough now, or there are 4,096 buffers already.
    pub fn buffer(&mut self, len: usize) -> Result<Buffer> {
        let full = || {
            Error::new(Errno::ENOBUFS, "the channel's arena is full: drop buffers, or ask for fewer bytes")
        };
        self.sweep();
        let len = u32::try_from(len).map_err(|_| full())?;
        let number = self.buffers.take().ok_or_else(full)?;
        let Some(place) = self.arena.take(len) else {
            self.buffers.forget(number);
            return Err(full());
        };
        let n = number.get() as usize;
        if n == self.lent.len() {
            self.lent.push(place);
        }
        self.lent[n] = place;
        let (memory, at) = self.conn.end().place(place).expect("the arena is in the channel");
        Ok(Buffer { number, memory: memory.clone(), at, place })
    }

    /// Writes a part of a buffer to an open file at `offset`, without a copy. Returns the number of bytes; less if
    /// the host accepts no more. `ESTALE`: the buffer is not of this channel.
    ///
    /// # Panics
    /// If the buffer does not contain the part.
    pub fn write_from(
        &mut self,
        file: &File,
        offset: u64,
        buffer: &Buffer,
        part: impl RangeBounds<usize>,
    ) -> Result<usize> {
        self.transfer(file, offset, TransferData::Data(self.part(buffer, part)?))
    }

    /// Reads from an open file at `offset` into a part of a buffer. Returns the number of bytes; see
    /// [`Client::read`].
    ///
    /// # Panics
    /// If the buffer does not contain the part.
    pub fn read_into(
        &mut self,
        file: &File,
        offset: u64,
        buffer: &mut Buffer,
        part: impl RangeBounds<usize>,
    ) -> Result<usize> {
        self.transfer(file, offset, TransferData::Room(self.part(buffer, part)?))
    }

    /// Reads entries of a directory after the one with this cookie, or from this offset on.
    pub(crate) fn read_entries(&mut self, dir: &File, offset: u64, into: &mut [u8]) -> Result<usize> {
        let ty = if self.dialect().is_l() { TREADDIR } else { TREAD };
        let unit = into.len();
        self.in_turn(ty, dir, offset, &mut TransferData::In(into), unit)
    }

    fn part(&self, buffer: &Buffer, part: impl RangeBounds<usize>) -> Result<Place> {
        if !self.buffers.has(&buffer.number) {
            return Err(Error::new(Errno::ESTALE, "the buffer is of a channel that was laid out anew"));
        }
        let begin = match part.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at + 1,
            Bound::Unbounded => 0,
        };
        let end = match part.end_bound() {
            Bound::Included(&at) => at + 1,
            Bound::Excluded(&at) => at,
            Bound::Unbounded => buffer.len(),
        };
        assert!(begin <= end && end <= buffer.len(), "{begin}..{end} of a buffer of {}", buffer.len());
        Ok(Place { at: buffer.place.at + begin as u32, count: (end - begin) as u32 })
    }

    /// Transfers all of it, in as many requests as it needs. They are in flight together only for a regular file,
    /// whose data does not depend on the time of the request.
    #[inline]
    fn transfer(&mut self, file: &File, offset: u64, mut bytes: TransferData<'_>) -> Result<usize> {
        let (total, ty) = (bytes.len(), bytes.ty());
        let mut unit = self.unit(file);
        if matches!(bytes, TransferData::In(_) | TransferData::Out(_)) {
            unit = unit.min(ARENA_COPY_MAX);
        }
        if total <= unit {
            return self.in_turn(ty, file, offset, &mut bytes, unit);
        }
        if unit > PAGE {
            unit -= unit % PAGE;
        }
        if !self.is_plain(file, offset, ty)? {
            return self.in_turn(ty, file, offset, &mut bytes, unit);
        }
        let mut done = 0;
        loop {
            let more = match self.together(ty, file, offset, &mut bytes, done, unit) {
                // The bytes transferred before are reported first. The next call gets the error.
                Err(_) if done > 0 && self.is_alive().is_ok() => 0,
                more => more?,
            };
            done += more;
            if done == total || more == 0 {
                return Ok(done);
            }
            // The host accepts less per request than it announced.
            if !more.is_multiple_of(unit) {
                unit = more % unit;
            }
        }
    }

    /// Sends one request after the other, each of at most `unit` bytes, until one is answered short.
    #[inline]
    fn in_turn(
        &mut self,
        ty: u8,
        file: &File,
        offset: u64,
        bytes: &mut TransferData<'_>,
        unit: usize,
    ) -> Result<usize> {
        let fid = self.number(file)?;
        let total = bytes.len();
        let mut done = 0;
        loop {
            let tag = self.tag()?;
            let len = unit.min(total - done);
            let asked = self.ask(ty, tag, fid, offset, bytes, done, len, true)?;
            let asked = asked.expect("who is alone waits for room");
            let came = match self.answer() {
                Ok(RequestOutcome::Answer(answer)) => self.settle(&answer, &asked, bytes),
                Ok(RequestOutcome::Flushed(_)) => Ok(Err(late())),
                Err(error) => Err(error),
            };
            self.give(&asked);
            match came? {
                Ok(came) => {
                    done += came;
                    // The caller continues after the last entry's cookie.
                    if came < asked.len || done == total || ty == TREADDIR {
                        return Ok(done);
                    }
                }
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether requests for parts of the file may be in flight together.
    fn is_plain(&mut self, file: &File, offset: u64, ty: u8) -> Result<bool> {
        let qid = file.qid();
        if qid.is_dir() || qid.is_event() || file.appends() {
            return Ok(false);
        }
        let known = self.stat(file)?;
        let is_plain = known.mode & mode::S_IFMT == mode::S_IFREG;
        // Files with generated content have length 0.
        Ok(is_plain && (ty == TWRITE || known.size > offset))
    }

    /// Sends requests for the bytes from `from` on, each of at most `unit`, with as many in flight as there are tags.
    /// Returns the number of contiguous bytes transferred.
    fn together(
        &mut self,
        ty: u8,
        file: &File,
        offset: u64,
        bytes: &mut TransferData<'_>,
        from: usize,
        unit: usize,
    ) -> Result<usize> {
        let mut under_way = [None; TAGS_MAX as usize];
        let fid = self.number(file)?;
        let (mut next, mut end, mut error) = (from, bytes.len(), None);
        let done = loop {
            // If in-flight requests are being flushed, nothing more is sent until they have ended.
            let is_any = under_way.iter().any(Option::is_some);
            if !(is_any && self.under_way.is_flushing()) {
                let sent = self.ask_all(ty, fid, offset, bytes, &mut next, end, unit, &mut under_way);
                match sent {
                    Ok(()) if under_way.iter().any(Option::is_some) => {}
                    sent => break sent,
                }
            }
            let (tag, answer) = match self.answer() {
                Ok(RequestOutcome::Answer(answer)) => (answer.tag, Some(answer)),
                Ok(RequestOutcome::Flushed(tag)) => (tag, None),
                Err(error) => break Err(error),
            };
            // The answer to a Tversion would have no such tag.
            let asked = under_way.get_mut(usize::from(tag)).and_then(Option::take);
            let Some(asked) = asked else { break Err(self.conn.broken("nothing")) };
            let came = answer.map_or(Ok(Err(late())), |answer| self.settle(&answer, &asked, bytes));
            self.give(&asked);
            match came {
                Ok(Ok(came)) if came < asked.len && asked.at + came < end => {
                    (end, error) = (asked.at + came, None);
                }
                Ok(Err(failed)) if asked.at < end => (end, error) = (asked.at, Some(failed)),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        // Requests left over when the channel has ended.
        under_way.into_iter().flatten().for_each(|asked| self.give(&asked));
        done?;
        match error {
            Some(error) if end == from => Err(error),
            _ => Ok(end - from),
        }
    }

    /// Sends requests for the bytes between `next` and `end`, as many as may be in flight.
    #[allow(clippy::too_many_arguments, reason = "the words of a message, and who remembers them")]
    fn ask_all(
        &mut self,
        ty: u8,
        fid: u32,
        offset: u64,
        bytes: &TransferData<'_>,
        next: &mut usize,
        end: usize,
        unit: usize,
        under_way: &mut [Option<TransferRequest>; TAGS_MAX as usize],
    ) -> Result<()> {
        let mut count = under_way.iter().flatten().count();
        while count < under_way.len() && *next < end {
            let mut tag = self.tag()?;
            while under_way[usize::from(tag)].is_some() {
                tag = self.tag()?;
            }
            let len = unit.min(end - *next);
            let Some(asked) = self.ask(ty, tag, fid, offset, bytes, *next, len, count == 0)? else { break };
            *next += asked.len;
            under_way[usize::from(tag)] = Some(asked);
            count += 1;
        }
        Ok(())
    }

    /// Sends one request. `None`: there is no room until another one is answered.
    #[allow(clippy::too_many_arguments, reason = "the words of a message")]
    fn ask(
        &mut self,
        ty: u8,
        tag: u16,
        fid: u32,
        offset: u64,
        bytes: &TransferData<'_>,
        at: usize,
        len: usize,
        is_alone: bool,
    ) -> Result<Option<TransferRequest>> {
        let mut asked = TransferRequest { ty, at, len, place: None, is_own: false };
        match bytes {
            TransferData::Room(all) | TransferData::Data(all) => {
                asked.place = Some(Place { at: all.at + at as u32, count: len as u32 });
            }
            TransferData::In(_) | TransferData::Out(_) if len < ARENA_DATA_MIN => {}
            TransferData::In(_) | TransferData::Out(_) => match self.pages(len, is_alone) {
                Some(place) => {
                    (asked.place, asked.is_own, asked.len) = (Some(place), true, place.count as usize);
                }
                None if is_alone => {}
                None => return Ok(None),
            },
        }
        let len = asked.len;
        let is_write = ty == TWRITE;
        let head = head(ty, tag, fid, offset + at as u64, len, if is_write { len } else { 0 });
        let note = match asked.place {
            None => Note::None,
            Some(place) if is_write => Note::Data(place),
            Some(place) => Note::Room(place),
        };
        if let (TransferData::Out(from), Some(place)) = (bytes, asked.place) {
            let (memory, to) = self.conn.end().place(place).expect("the arena is in the channel");
            memory.write(to, &from[at..at + len]);
        }
        let sent = match bytes {
            // Data in the message takes several pieces. Waiting for their room is not allowed while other answers may
            // arrive.
            TransferData::Out(_) if asked.place.is_none() && !is_alone => Ok(false),
            TransferData::Out(from) if asked.place.is_none() && len > 0 => {
                self.out.clear();
                self.out.extend_from_slice(&head);
                self.out.extend_from_slice(&from[at..at + len]);
                self.conn.send_long(&self.out).map(|()| true)
            }
            _ if is_alone => self.conn.send(&head, note).map(|()| true),
            _ => self.conn.try_send(&head, note),
        };
        match sent {
            Ok(true) => self.under_way.insert(tag),
            _ => self.give(&asked),
        }
        Ok(sent?.then_some(asked))
    }

    /// Checks an answer and stores its data.
    #[inline]
    fn settle(
        &mut self,
        answer: &ReceivedMessage,
        asked: &TransferRequest,
        bytes: &mut TransferData<'_>,
    ) -> Result<Result<usize>> {
        let came = self.count(answer, asked)?;
        if let Ok(came) = came {
            self.fetch(answer, asked, bytes, came);
        }
        Ok(came)
    }

    /// Returns the number of bytes in an answer, at most as many as requested, or the file's error. The outer error:
    /// it is not a valid answer to this request.
    #[inline]
    fn count(&mut self, answer: &ReceivedMessage, asked: &TransferRequest) -> Result<Result<usize>> {
        let bytes = self.conn.bytes(answer);
        if answer.ty == asked.ty + 1 && bytes.len() >= DATA_AT {
            let count =
                u32::from_le_bytes([bytes[HEADER], bytes[HEADER + 1], bytes[HEADER + 2], bytes[HEADER + 3]]);
            let is_here = match (answer.data, asked.place) {
                (Some(data), Some(room)) => asked.ty != TWRITE && data.at == room.at,
                (Some(_), None) => false,
                (None, _) if asked.ty == TWRITE => bytes.len() == DATA_AT,
                (None, _) => bytes.len() == DATA_AT + count as usize,
            };
            if is_here && count as usize <= asked.len {
                return Ok(Ok(count as usize));
            }
        } else if answer.data.is_none()
            && let Ok((_, message)) = Rmsg::decode(bytes, self.dialect())
            && let Some(error) = error_of(&message)
        {
            return Ok(Err(error));
        }
        Err(self.conn.broken(if asked.ty == TWRITE { "Twrite" } else { "Tread" }))
    }

    /// Stores the data of a read in its target.
    fn fetch(
        &self,
        answer: &ReceivedMessage,
        asked: &TransferRequest,
        bytes: &mut TransferData<'_>,
        came: usize,
    ) {
        let inline = || &self.conn.bytes(answer)[DATA_AT..];
        let of = |place| self.conn.end().place(place).expect("the arena is in the channel");
        match bytes {
            TransferData::In(into) => {
                let into = &mut into[asked.at..asked.at + came];
                match answer.data {
                    Some(data) => {
                        let (memory, at) = of(data);
                        memory.read(at, into);
                    }
                    None => into.copy_from_slice(inline()),
                }
            }
            TransferData::Room(_) if answer.data.is_none() => {
                let (memory, at) = of(asked.place.expect("room was told"));
                memory.write(at, inline());
            }
            TransferData::Room(_) | TransferData::Out(_) | TransferData::Data(_) => {}
        }
    }

    /// Allocates pages for at most `len` bytes. Fewer if no in-flight request will free any.
    fn pages(&mut self, len: usize, is_alone: bool) -> Option<Place> {
        let mut len = len as u32;
        loop {
            if let Some(place) = self.arena.take(len) {
                return Some(place);
            }
            if !is_alone {
                return None;
            }
            self.sweep();
            if let Some(place) = self.arena.take(len) {
                return Some(place);
            }
            len = len.div_ceil(2).next_multiple_of(PAGE as u32).min(len - 1);
            if len < PAGE as u32 {
                return None;
            }
        }
    }

    fn give(&mut self, asked: &TransferRequest) {
        if let (Some(place), true) = (asked.place, asked.is_own) {
            self.arena.give(place);
        }
    }

    /// Frees the arena's parts of dropped buffers.
    fn sweep(&mut self) {
        while let Some(number) = self.buffers.dropped() {
            self.arena.give(self.lent[number as usize]);
            self.buffers.give(number);
        }
    }
}

/// Returns `size[4] type[1] tag[2] fid[4] offset[8] count[4]`, for a message with `behind` more bytes.
#[inline]
fn head(ty: u8, tag: u16, fid: u32, offset: u64, count: usize, behind: usize) -> [u8; REQUEST_HEAD_LEN] {
    let mut head = [0; REQUEST_HEAD_LEN];
    head[..4].copy_from_slice(&((REQUEST_HEAD_LEN + behind) as u32).to_le_bytes());
    head[4] = ty;
    head[5..7].copy_from_slice(&tag.to_le_bytes());
    head[7..11].copy_from_slice(&fid.to_le_bytes());
    head[11..19].copy_from_slice(&offset.to_le_bytes());
    head[19..].copy_from_slice(&(count as u32).to_le_bytes());
    head
}

impl TransferData<'_> {
    fn len(&self) -> usize {
        match self {
            Self::In(bytes) => bytes.len(),
            Self::Out(bytes) => bytes.len(),
            Self::Room(place) | Self::Data(place) => place.count as usize,
        }
    }

    fn ty(&self) -> u8 {
        if matches!(self, Self::In(_) | Self::Room(_)) { TREAD } else { TWRITE }
    }
}

impl Buffer {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.place.count as usize
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns its place in the arena.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Copies bytes out of the buffer.
    ///
    /// # Panics
    /// If they are outside the buffer.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.memory.read(self.of(at, into.len()), into);
    }

    /// Copies bytes into the buffer.
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn write(&mut self, at: usize, from: &[u8]) {
        self.memory.write(self.of(at, from.len()), from);
    }

    /// Fills a part with one byte.
    ///
    /// # Panics
    /// If the part is outside the buffer.
    pub fn fill(&mut self, at: usize, len: usize, byte: u8) {
        self.memory.fill(self.of(at, len), len, byte);
    }

    /// Returns the address of `len` bytes at `at`, for a system call or a device that uses them in place. No
    /// reference to them may be created, since the host may write there at any time. Valid as long as the buffer.
    ///
    /// # Panics
    /// If they are outside the buffer.
    pub fn address(&self, at: usize, len: usize) -> NonNull<u8> {
        self.memory.address(self.of(at, len), len)
    }

    fn of(&self, at: usize, len: usize) -> usize {
        assert!(
            at <= self.len() && len <= self.len() - at,
            "{len} bytes at {at} of a buffer of {}",
            self.len()
        );
        self.at + at
    }
}
