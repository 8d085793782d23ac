//! A ring of lines: one side writes pieces, the other one takes them (docs/channels.md, "Rings").
//!
//! Always holds: the mark of a piece's first line is written last, so whoever sees it sees the piece; a line is written
//! again only when its reader has said that he is done with it; what the reader judges is his own copy.

use core::fmt;

use crate::layout::{LINE, Layout, Place};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sys::Memory;

/// Bytes of a piece that may lie in the ring.
pub const MOST: usize = FIRST + (MOST_LINES - 1) * NEXT;

const MOST_LINES: usize = 64;
/// Bytes of a piece in its first line, and in each further one.
const FIRST: usize = LINE - HEAD;
const NEXT: usize = LINE - 4;
/// Bytes before them in the first line.
const HEAD: usize = 16;

const DATA: u8 = 1;
const ROOM: u8 = 2;

/// What a piece says of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Note {
    /// Nothing.
    #[default]
    None,
    /// The bytes there come behind those of the piece.
    Data(Place),
    /// The answer's data may be put there.
    Room(Place),
}

/// What has been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes that lay in the ring.
    pub len: usize,
    /// And what the arena has to do with it; the place is in the arena.
    pub note: Note,
}

/// How the other side has broken the rules: the channel ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is done with lines that were never written, or not any more with some.
    Taken,
    /// A piece is longer than a piece can be, or has flags that are not known.
    Piece,
    /// A place is not in the arena.
    Place,
    /// A line of a piece is missing.
    Line,
}

/// The end of a ring that is written.
#[derive(Debug)]
pub struct Writer {
    ring: Ring,
    /// The next line.
    next: u32,
    /// What the reader was done with when we last looked.
    taken: u32,
}

/// The end of a ring that is read.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    /// The next line.
    next: u32,
}

#[derive(Debug)]
struct Ring {
    memory: Memory,
    /// Of line 0, in the channel.
    first: usize,
    lines: u32,
    /// The word that says what the reader is done with.
    taken: usize,
}

impl Ring {
    fn line(&self, n: u32) -> usize {
        self.first + (n & (self.lines - 1)) as usize * LINE
    }
}

/// Lines that are written and not taken, as the words of their ring have it, whoever writes there. At most all of them,
/// and found in as few looks as their number has bits: whoever uses the ring keeps the lines that are not looked at.
pub(crate) fn used(memory: &Memory, first: usize, lines: u32, taken: usize) -> u32 {
    let ring = Ring { memory: memory.clone(), first, lines, taken };
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

/// Lines of a piece of so many bytes.
fn lines(len: usize) -> u32 {
    1 + len.saturating_sub(FIRST).div_ceil(NEXT) as u32
}

impl Writer {
    pub(crate) fn new(memory: Memory, first: usize, lines: u32, taken: usize) -> Self {
        Self { ring: Ring { memory, first, lines, taken }, next: 0, taken: 0 }
    }

    #[cfg(all(test, not(any(nine_loom, nine_shuttle))))]
    pub(crate) fn begin_at(&mut self, line: u32) {
        (self.next, self.taken) = (line, line);
        self.ring.memory.word(self.ring.taken).store(line, Release);
    }

    /// Whether a piece of `len` bytes could be put now.
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

    /// Puts a piece. `false`: there is no room for it now.
    ///
    /// # Panics
    /// It is longer than [`MOST`].
    #[inline]
    pub fn put(&mut self, bytes: &[u8], note: Note) -> Result<bool, Fault> {
        assert!(bytes.len() <= MOST, "a piece of {} bytes", bytes.len());
        if !self.has_room(bytes.len())? {
            return Ok(false);
        }
        let memory = &self.ring.memory;
        let (here, rest) = bytes.split_at(bytes.len().min(FIRST));
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
            Note::Room(place) => (ROOM, place),
        };
        // All of a line at once: its length is known here, that of the bytes is not.
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

    /// Whether the reader is done with everything.
    pub fn is_drained(&self) -> bool {
        self.ring.memory.word(self.ring.taken).load(Acquire) == self.next
    }
}

impl Reader {
    pub(crate) fn new(memory: Memory, first: usize, lines: u32, taken: usize) -> Self {
        Self { ring: Ring { memory, first, lines, taken }, next: 0 }
    }

    #[cfg(all(test, not(any(nine_loom, nine_shuttle))))]
    pub(crate) fn begin_at(&mut self, line: u32) {
        self.next = line;
    }

    /// Whether a piece has come.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.ring.memory.word(self.ring.line(self.next)).load(Acquire) == self.next.wrapping_add(1)
    }

    /// Takes a piece, if one has come: its bytes are the first of `into`.
    ///
    /// # Panics
    /// `into` is shorter than [`MOST`].
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
            ROOM => Note::Room(place),
            _ => return Err(Fault::Piece),
        };
        if note != Note::None && layout.place(place).is_none() {
            return Err(Fault::Place);
        }
        into[..FIRST].copy_from_slice(&head[HEAD - 4..]);
        let mut n = self.next;
        if len > FIRST {
            for part in into[FIRST..len].chunks_mut(NEXT) {
                n = n.wrapping_add(1);
                let line = self.ring.line(n);
                // Seen with the first line's mark.
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
