//! Channels of shared memory, of which the other side writes anything, at any time: the rings of both ends, 9P over
//! either end of the runtime's, and the guest's library.
//!
//! In: bytes, read as a list of moves of four bytes: what an honest peer does, what who is judged does, and what is
//! written into the memory between two moves, or between two looks of who is judged. What judges: nobody looks outside
//! the channel or for ever; what an honest peer has said comes whole and in order for as long as nothing was written
//! over it, whatever else was; an end is said once and stays.

mod asking;
mod guest;
mod ring;
mod serving;
mod transport;

use std::cell::RefCell;
use std::rc::Rc;

use nine_ring::{Kind, Layout, Memory, Note, PAGE, Place, fuzz};

pub use asking::asking;
pub use guest::guest;
pub use ring::ring;
pub use serving::serving;

/// Lines of a ring: a page of them.
const LINES: u32 = 64;
const UP: usize = PAGE;
const DOWN: usize = 2 * PAGE;
const ARENA: usize = 3 * PAGE;

fn layout(pages: u32) -> Layout {
    Layout::new(Kind::GuestAsks, LINES, pages, "fuzz")
}

/// What something in the memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// What never changes.
    Page,
    Lives,
    Sleeps,
    /// From guest to host, with what is taken of it.
    Up,
    Down,
    Arena,
}

impl Part {
    fn of(at: usize) -> Self {
        match at {
            128..256 => Self::Lives,
            256..384 => Self::Sleeps,
            384..448 | UP..DOWN => Self::Up,
            448..512 | DOWN..ARENA => Self::Down,
            ARENA.. => Self::Arena,
            _ => Self::Page,
        }
    }
}

/// A word to be written over another one.
#[derive(Clone, Copy, Debug)]
struct Scribble {
    at: usize,
    value: u32,
    /// Onto what is there.
    adds: bool,
}

impl Scribble {
    /// Somewhere within `size` bytes; `after` it are more bytes of the input.
    fn new([a, b, c]: [u8; 3], after: &[u8], size: usize) -> Self {
        let line = 64 * usize::from(b % LINES as u8) + 4 * usize::from(c % 4);
        let at = match a % 8 {
            0 => WORDS[usize::from(b) % WORDS.len()],
            1 => 4 * usize::from(b % 24),
            2 | 3 => UP + line,
            4 | 5 => DOWN + line,
            6 => ARENA + 4 * usize::from(b),
            _ => 4 * usize::from(u16::from_le_bytes([b, c])),
        };
        let word = after.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        let (value, adds) = match a / 8 % 4 {
            0 => (EDGES[usize::from(c) % EDGES.len()], false),
            1 => (u32::from(c).wrapping_sub(128), true),
            2 => (word & 0xfff, false),
            _ => (word, false),
        };
        Self { at: (at % (size - 3)) & !3, value, adds }
    }

    fn part(self) -> Part {
        Part::of(self.at)
    }

    fn write(self, memory: &Memory) {
        let mut word = [0; 4];
        memory.read(self.at, &mut word);
        let before = if self.adds { u32::from_le_bytes(word) } else { 0 };
        memory.write(self.at, &before.wrapping_add(self.value).to_le_bytes());
    }
}

/// The eyes of who is judged: how often he looks, where, and what is changed under them.
#[derive(Clone, Default)]
struct Eyes(Rc<RefCell<Seen>>);

#[derive(Default)]
struct Seen {
    /// He has the turn.
    open: bool,
    /// Bytes that are his business.
    size: usize,
    looks: usize,
    armed: Vec<(usize, Scribble)>,
}

impl Eyes {
    /// Of this thread, on a channel of `size` bytes.
    fn of(size: usize) -> Self {
        let eyes = Self(Rc::new(RefCell::new(Seen { size, ..Seen::default() })));
        let seen = eyes.0.clone();
        fuzz::beside(Some(Box::new(move |memory, at, len| seen.borrow_mut().look(memory, at, len))));
        eyes
    }

    /// His turn: he looks at most so many times.
    fn turn<T>(&self, most: usize, turn: impl FnOnce() -> T) -> T {
        let mut seen = self.0.borrow_mut();
        (seen.open, seen.looks) = (true, 0);
        drop(seen);
        let out = turn();
        let mut seen = self.0.borrow_mut();
        seen.open = false;
        assert!(seen.looks <= most, "{} looks in one turn", seen.looks);
        out
    }

    /// Somebody else's turn amid his.
    fn shut<T>(&self, turn: impl FnOnce() -> T) -> T {
        let open = std::mem::replace(&mut self.0.borrow_mut().open, false);
        let out = turn();
        self.0.borrow_mut().open = open;
        out
    }

    fn resize(&self, size: usize) {
        self.0.borrow_mut().size = size;
    }

    /// Will be written before the look after so many others.
    fn arm(&self, after: usize, scribble: Scribble) {
        self.0.borrow_mut().armed.push((after, scribble));
    }

    /// Whether this part is going to be written to.
    fn is_armed(&self, part: Part) -> bool {
        self.0.borrow().armed.iter().any(|(_, scribble)| scribble.part() == part)
    }
}

impl Seen {
    fn look(&mut self, memory: &Memory, at: usize, len: usize) {
        if !self.open {
            return;
        }
        assert!(at + len <= self.size, "{len} bytes at {at} of {}", self.size);
        self.looks += 1;
        self.armed.retain_mut(|(after, scribble)| {
            if *after == 0 {
                scribble.write(memory);
            }
            *after = after.wrapping_sub(1);
            *after != usize::MAX
        });
    }
}

impl Drop for Eyes {
    fn drop(&mut self) {
        // The last one but that of the thread.
        if Rc::strong_count(&self.0) <= 2 {
            fuzz::beside(None);
        }
    }
}

/// Bytes of a piece, none of them the next piece's, and what it says of an arena of so many bytes.
fn piece([a, b, c]: [u8; 3], n: u32, arena: u32) -> (Vec<u8>, Note) {
    let len = match a % 4 {
        0 | 1 => b % 49,
        2 => b,
        _ => return (some(n, (usize::from(b) << 4 | usize::from(c)).min(nine_ring::MOST)), Note::None),
    };
    let at = (u32::from(c) * 61).min(arena);
    let place = Place { at, count: (u32::from(b) * 33).min(arena - at) };
    let note = [Note::None, Note::Data(place), Note::Room(place)][usize::from(a / 4 % 3)];
    (some(n, len.into()), note)
}

/// Bytes that differ from place to place and from number to number.
fn some(n: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + n as usize * 31) as u8).collect()
}

/// What either side writes of the first page.
const WORDS: [usize; 9] = [128, 132, 136, 192, 196, 256, 320, 384, 448];

/// Where numbers break.
const EDGES: [u32; 12] = [0, 1, 2, 3, 63, 64, 65, 4096, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX];
