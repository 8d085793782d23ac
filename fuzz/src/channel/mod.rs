//! Channels of shared memory whose other side may write anything at any time: the rings of both ends, 9P over either
//! end of the runtime's implementation, and the guest's library.
//!
//! In: bytes, read as a list of actions of four bytes: actions of an honest peer, actions of the side under test, and
//! writes into the memory between two actions or between two reads of the side under test. Checks: nobody reads outside
//! the channel or without end; an honest peer's data arrives whole and in order as long as it was not overwritten; an
//! end is reported once and stays.

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

/// Lines of a ring: one page.
const LINES: u32 = 64;
const UP: usize = PAGE;
const DOWN: usize = 2 * PAGE;
const ARENA: usize = 3 * PAGE;

fn layout(pages: u32) -> Layout {
    Layout::new(Kind::GuestAsks, LINES, pages, "fuzz")
}

/// Purpose of a part of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The constant part of the first page.
    Page,
    Lives,
    Sleeps,
    /// From guest to host, with the position up to which it is read.
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

/// A word to write into the memory.
#[derive(Clone, Copy, Debug)]
struct Scribble {
    at: usize,
    value: u32,
    /// The value is added to the present one.
    adds: bool,
}

impl Scribble {
    /// Returns a write somewhere within `size` bytes. `after` is the rest of the input.
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

/// Observes the memory accesses of the side under test: how often, where, and which writes happen in between.
#[derive(Clone, Default)]
struct Eyes(Rc<RefCell<Seen>>);

#[derive(Default)]
struct Seen {
    /// The side under test is running.
    open: bool,
    /// Size of the memory that it may access.
    size: usize,
    looks: usize,
    armed: Vec<(usize, Scribble)>,
}

impl Eyes {
    /// Observes the accesses of this thread to a channel of `size` bytes.
    fn of(size: usize) -> Self {
        let eyes = Self(Rc::new(RefCell::new(Seen { size, ..Seen::default() })));
        let seen = eyes.0.clone();
        fuzz::beside(Some(Box::new(move |memory, at, len| seen.borrow_mut().look(memory, at, len))));
        eyes
    }

    /// Runs the side under test, which may make at most `most` accesses.
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

    /// Runs another side's code in between, without observation.
    fn shut<T>(&self, turn: impl FnOnce() -> T) -> T {
        let open = std::mem::replace(&mut self.0.borrow_mut().open, false);
        let out = turn();
        self.0.borrow_mut().open = open;
        out
    }

    fn resize(&self, size: usize) {
        self.0.borrow_mut().size = size;
    }

    /// Schedules a write before the access after `after` others.
    fn arm(&self, after: usize, scribble: Scribble) {
        self.0.borrow_mut().armed.push((after, scribble));
    }

    /// Whether a write to this part is scheduled.
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
        // Only this one and that of the thread's hook are left.
        if Rc::strong_count(&self.0) <= 2 {
            fuzz::beside(None);
        }
    }
}

/// Returns the bytes of piece `n`, which differ from those of other pieces, and its note for an arena of `arena` bytes.
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

/// Returns bytes that depend on position and number.
fn some(n: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + n as usize * 31) as u8).collect()
}

/// Offsets in the first page that either side writes.
const WORDS: [usize; 9] = [128, 132, 136, 192, 196, 256, 320, 384, 448];

/// Edge cases of numbers.
const EDGES: [u32; 12] = [0, 1, 2, 3, 63, 64, 65, 4096, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX];
