//! A ring of lines: one side writes pieces, the other reads them (docs/channels.md, "Rings").
//!
//! In: pieces of bytes with notes. Out: copies of them, in order. Always holds: the mark of a piece's first line is
//! written last, so a reader that sees the mark sees the whole piece. A line is rewritten only after its reader has
//! acknowledged it. The reader validates its own copy.

use core::fmt;

use crate::layout::{LINE, Layout, Place};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sys::Memory;

/// Maximum number of bytes of a piece in the ring.
pub const MOST: usize = FIRST_LINE_LEN + (PIECE_LINES_MAX - 1) * NEXT;

const PIECE_LINES_MAX: usize = 64;
/// Bytes of a piece in its first line, and in each further one.
const FIRST_LINE_LEN: usize = LINE - PIECE_HEAD_LEN;
const NEXT: usize = LINE - 4;
/// Bytes of the header in the first line, which precedes them.
const PIECE_HEAD_LEN: usize = 16;

const DATA: u8 = 1;
const ROOM_FLAG: u8 = 2;

/// The role of the arena in a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Note {
    /// The piece does not use the arena.
    #[default]
    None,
    /// The bytes of this range follow those of the piece.
    Data(Place),
    /// The data of the reply may be put into this range.
    Room(Place),
}

/// A piece that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of bytes in the ring.
    pub len: usize,
    /// The role of the arena. The range is validated: it is in the arena.
    pub note: Note,
}

/// A violation of the protocol by the other side. The channel must be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It acknowledged lines that were never written, or moved its acknowledgement back.
    Taken,
    /// A piece is too long or has unknown flags.
    Piece,
    /// A range is not in the arena.
    Place,
    /// A line of a piece is missing.
    Line,
}

/// The writing end of a ring.
#[derive(Debug)]
pub struct Writer {
    ring: LineRing,
    /// The number of the next line.
    next: u32,
    /// The last known acknowledgement of the reader.
    taken: u32,
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Reader {
    ring: LineRing,
    /// The number of the next line.
    next: u32,
}

#[derive(Debug)]
struct LineRing {
    memory: Memory,
    /// Offset of line 0 in the channel.
    first: usize,
    lines: u32,
    /// Offset of the reader's acknowledgement.
    taken: usize,
}

impl LineRing {
    fn line(&self, n: u32) -> usize {
        self.first + (n & (self.lines - 1)) as usize * LINE
    }
}

/// Returns the number of lines that are written and not acknowledged, from the ring's words. The result is at most the
/// number of lines, whatever the other side writes. A binary search reads few lines: the others stay in the caches of
/// the ring's users.
pub(crate) fn used(memory: &Memory, first: usize, lines: u32, taken: usize) -> u32 {
    let ring = LineRing { memory: memory.clone(), first, lines, taken };
    let from = memory.word(taken).load(Relaxed);
    let (mut used, mut free) = (0, lines);
    while used < free {
        let n = used + (free - used) / 2;
        let line = from.wrapping_add(n);
        if memory.word(ring.line(line)).load(Relaxed) == line.wrapping_add(1) {
            used = n + 1
        } else {
            free = n
        }
    }
    used
}

/// Returns the number of lines of a piece of `len` bytes.
fn lines(len: usize) -> u32 {
    1 + len.saturating_sub(FIRST_LINE_LEN).div_ceil(NEXT) as u32
}

impl Writer {
    pub(crate) fn new(memory: Memory, first: usize, lines: u32, taken: usize) -> Self {
        Self { ring: LineRing { memory, first, lines, taken }, next: 0, taken: 0 }
    }

    #[cfg(all(test, not(any(nine_loom, nine_shuttle))))]
    pub(crate) fn begin_at(&mut self, line: u32) {
        (self.next, self.taken) = (line, line);
        self.ring.memory.word(self.ring.taken).store(line, Release);
    }

    /// Whether a piece of `len` bytes fits now.
    pub fn has_room(&mut self, len: usize) -> Result<bool, Fault> {
        let room = |taken: u32| self.ring.lines - self.next.wrapping_sub(taken) >= lines(len);
        if room(self.taken) {
            return Ok(true);
        }
        let taken = self.ring.memory.word(self.ring.taken).load(Acquire);
        if taken.wrapping_sub(self.taken) > self.next.wrapping_sub(self.taken) {
            return Err(Fault::Taken);
        }
        let free = room(taken);
        self.taken = taken;
        Ok(free)
    }

    /// Writes a piece. Returns false if there is no room now.
    ///
    /// # Panics
    /// If the piece is longer than [`MOST`].
    #[inline]
    pub fn put(&mut self, bytes: &[u8], note: Note) -> Result<bool, Fault> {
        assert!(bytes.len() <= MOST, "a piece of {} bytes", bytes.len());
        if !self.has_room(bytes.len())? {
            return Ok(false);
        }
        let memory = &self.ring.memory;
        let (here, rest) = bytes.split_at(bytes.len().min(FIRST_LINE_LEN));
        let mut n = self.next;
        for part in rest.chunks(NEXT) {
            n = n.wrapping_add(1);
            let line = self.ring.line(n);
            memory.write(line + 4, part);
            memory.word(line).store(n.wrapping_add(1), Relaxed);
        }
        let (flags, place) = match note {
            Note::None => (0, Place::default()),
            Note::Data(place) => (DATA, place),
            Note::Room(place) => (ROOM_FLAG, place),
        };
        // Copy the whole line: its length is a constant, that of the piece is not.
        let mut head = [0; LINE - 4];
        head[..2].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
        head[2] = flags;
        head[4..8].copy_from_slice(&place.at.to_le_bytes());
        head[8..12].copy_from_slice(&place.count.to_le_bytes());
        head[12..12 + here.len()].copy_from_slice(here);
        let line = self.ring.line(self.next);
        memory.write(line + 4, &head);
        memory.word(line).store(self.next.wrapping_add(1), Release);
        self.next = n.wrapping_add(1);
        Ok(true)
    }

    /// Whether the reader has acknowledged everything.
    pub fn is_drained(&self) -> bool {
        self.ring.memory.word(self.ring.taken).load(Acquire) == self.next
    }
}

impl Reader {
    pub(crate) fn new(memory: Memory, first: usize, lines: u32, taken: usize) -> Self {
        Self { ring: LineRing { memory, first, lines, taken }, next: 0 }
    }

    #[cfg(all(test, not(any(nine_loom, nine_shuttle))))]
    pub(crate) fn begin_at(&mut self, line: u32) {
        self.next = line;
    }

    /// Whether a piece is available.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.ring.memory.word(self.ring.line(self.next)).load(Acquire) == self.next.wrapping_add(1)
    }

    /// Reads a piece, if one is available. Its bytes are copied to the start of `into`.
    ///
    /// # Panics
    /// If `into` is shorter than [`MOST`].
    #[inline]
    pub fn take(&mut self, layout: &Layout, into: &mut [u8]) -> Result<Option<Piece>, Fault> {
        if !self.is_ready() {
            return Ok(None);
        }
        let memory = &self.ring.memory;
        let mut head = [0; LINE - 4];
        memory.read(self.ring.line(self.next) + 4, &mut head);
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let len = usize::from(u16::from_le_bytes([head[0], head[1]]));
        if len > MOST {
            return Err(Fault::Piece);
        }
        let place = Place { at: word(4), count: word(8) };
        let note = match head[2] {
            0 => Note::None,
            DATA => Note::Data(place),
            ROOM_FLAG => Note::Room(place),
            _ => return Err(Fault::Piece),
        };
        if note != Note::None && layout.place(place).is_none() {
            return Err(Fault::Place);
        }
        into[..FIRST_LINE_LEN].copy_from_slice(&head[PIECE_HEAD_LEN - 4..]);
        let mut n = self.next;
        if len > FIRST_LINE_LEN {
            for part in into[FIRST_LINE_LEN..len].chunks_mut(NEXT) {
                n = n.wrapping_add(1);
                let line = self.ring.line(n);
                // The acquired mark of the first line makes this one visible.
                if memory.word(line).load(Relaxed) != n.wrapping_add(1) {
                    return Err(Fault::Line);
                }
                memory.read(line + 4, part);
            }
        }
        self.next = n.wrapping_add(1);
        memory.word(self.ring.taken).store(self.next, Release);
        Ok(Some(Piece { len, note }))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Taken => "the other side of the channel says it has taken what was not written",
            Self::Piece => "the other side of the channel wrote a piece that cannot be",
            Self::Place => "the other side of the channel named a place outside the arena",
            Self::Line => "the other side of the channel wrote a piece without all of its lines",
        })
    }
}

impl core::error::Error for Fault {}
