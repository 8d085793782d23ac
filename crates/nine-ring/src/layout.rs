//! The first page of a channel: what is where.

use core::fmt;

use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sys::Memory;

/// The first bytes of a channel.
pub const MAGIC: [u8; 8] = *b"9P chan\n";
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a line of a ring.
pub(crate) const LINE: usize = 64;

const VERSION: u32 = 1;
const NAME: usize = 32;
const FEWEST_LINES: u32 = 64;
const MOST_LINES: u32 = 1 << 16;
const MOST_PAGES: u32 = (1 << 20) - 1;

/// Offsets of the words of the first page (docs/channels.md, "Memory").
pub(crate) mod at {
    pub(crate) const VERSION: usize = 8;
    pub(crate) const NEEDS: usize = 12;
    pub(crate) const SIZE: usize = 16;
    pub(crate) const KIND: usize = 24;
    pub(crate) const LINES: usize = 28;
    pub(crate) const UP: usize = 32;
    pub(crate) const DOWN: usize = 40;
    pub(crate) const ARENA: usize = 48;
    pub(crate) const PAGES: usize = 56;
    pub(crate) const NAME: usize = 64;
    pub(crate) const HEAD: usize = 96;
    pub(crate) const EPOCH: usize = 128;
    pub(crate) const SERVES: usize = 132;
    pub(crate) const CLOSED: usize = 136;
    pub(crate) const JOIN: usize = 192;
    pub(crate) const LEFT: usize = 196;
    pub(crate) const HOST_SLEEPS: usize = 256;
    pub(crate) const GUEST_SLEEPS: usize = 320;
    pub(crate) const UP_TAKEN: usize = 384;
    pub(crate) const DOWN_TAKEN: usize = 448;
}

/// What goes through a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes, as they come.
    Bytes,
    /// 9P: the guest asks, the host answers.
    GuestAsks,
    /// 9P: the host asks, the guest answers.
    HostAsks,
}

/// Bytes of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Place {
    /// The first, from the arena's beginning.
    pub at: u32,
    /// How many.
    pub count: u32,
}

/// What of a channel is where, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What goes through it.
    pub kind: Kind,
    /// Lines of each ring, a power of two.
    pub lines: u32,
    /// Pages of the arena.
    pub pages: u32,
    /// UTF-8 filled up with zeros.
    pub name: [u8; NAME],
    pub(crate) up: usize,
    pub(crate) down: usize,
    pub(crate) arena: usize,
    /// Bytes of the channel.
    pub size: usize,
}

/// Why memory is no channel that can be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// There is none, or it has not been opened yet.
    Magic,
    /// It is of this version, or needs what is not known here.
    Newer(u32),
    /// Its page contradicts itself or the memory.
    Layout,
    /// It was opened by nobody.
    Closed,
    /// No channel has this name.
    Name,
}

impl Layout {
    /// One channel by itself: the page, the rings, the arena.
    ///
    /// # Panics
    /// `lines` is no power of two from 64 to 65,536; there are 2^20 pages or more; the name is longer than 32 bytes.
    pub fn new(kind: Kind, lines: u32, pages: u32, name: &str) -> Self {
        let mut padded = [0; NAME];
        padded[..name.len()].copy_from_slice(name.as_bytes());
        let ring = (lines as usize * LINE).next_multiple_of(PAGE);
        let (up, down, arena) = (PAGE, PAGE + ring, PAGE + 2 * ring);
        let size = arena + pages as usize * PAGE;
        let layout = Self { kind, lines, pages, name: padded, up, down, arena, size };
        assert!(layout.is_sound(), "a layout that can be: {layout:?}");
        layout
    }

    /// What stands in the memory, whose beginning is that of the channel.
    pub fn read(memory: &Memory) -> Result<Self, Bad> {
        if memory.len() < PAGE {
            return Err(Bad::Magic);
        }
        // The magic came last, so what is read after it was written before it.
        if [4, 0].map(|at| memory.word(at).load(Acquire)) != Self::MAGIC_WORDS {
            return Err(Bad::Magic);
        }
        let mut page = [0; at::HEAD];
        memory.read(8, &mut page[8..]);
        let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from(word(at + 4)) << 32 | u64::from(word(at));
        if word(at::VERSION) != VERSION || word(at::NEEDS) != 0 {
            return Err(Bad::Newer(word(at::VERSION)));
        }
        let kind = match word(at::KIND) {
            0 => Kind::Bytes,
            1 => Kind::GuestAsks,
            2 => Kind::HostAsks,
            _ => return Err(Bad::Layout),
        };
        let offset = |at| usize::try_from(long(at)).map_err(|_| Bad::Layout);
        let layout = Self {
            kind,
            lines: word(at::LINES),
            pages: word(at::PAGES),
            name: page[at::NAME..at::NAME + NAME].try_into().expect("as many"),
            up: offset(at::UP)?,
            down: offset(at::DOWN)?,
            arena: offset(at::ARENA)?,
            size: offset(at::SIZE)?,
        };
        if layout.is_sound() && layout.size <= memory.len() { Ok(layout) } else { Err(Bad::Layout) }
    }

    /// The memory of the channel of this name, of several that lie one behind the other, and how many lie before it.
    ///
    /// Fails with [`Bad::Name`] if there is none before the first page that is no channel's.
    #[cfg(not(all(test, any(nine_loom, nine_shuttle))))]
    pub fn find(memory: &Memory, name: &str) -> Result<(u32, Memory), Bad> {
        let (mut at, mut before) = (0, 0);
        while let Some(rest) = memory.part(at, memory.len() - at) {
            let layout = match Self::read(&rest) {
                Err(Bad::Magic) => break,
                layout => layout?,
            };
            if layout.name() == name {
                return Ok((before, rest.part(0, layout.size).expect("it is in the memory")));
            }
            // A page at least, and not beyond the memory: both were looked at.
            at += layout.size;
            before += 1;
        }
        Err(Bad::Name)
    }

    /// Its name, without the zeros. Whatever is no UTF-8 ends it.
    pub fn name(&self) -> &str {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(NAME);
        let name = &self.name[..end];
        core::str::from_utf8(name).unwrap_or_else(|bad| {
            core::str::from_utf8(&name[..bad.valid_up_to()]).expect("valid up to there")
        })
    }

    /// Bytes of the arena.
    pub fn arena_len(&self) -> usize {
        self.pages as usize * PAGE
    }

    /// Bytes of each ring.
    pub(crate) fn ring_len(&self) -> usize {
        self.lines as usize * LINE
    }

    /// Where that place is in the channel, if it is in the arena.
    pub(crate) fn place(&self, place: Place) -> Option<usize> {
        let end = place.at as usize + place.count as usize;
        (end <= self.arena_len()).then(|| self.arena + place.at as usize)
    }

    /// Writes the page but for its magic, and the words that begin as zeros.
    pub(crate) fn write(&self, memory: &Memory) {
        let mut page = [0; at::HEAD];
        let mut word = |at: usize, value: u32| page[at..at + 4].copy_from_slice(&value.to_le_bytes());
        word(at::VERSION, VERSION);
        word(at::KIND, self.kind as u32);
        word(at::LINES, self.lines);
        word(at::PAGES, self.pages);
        let mut long =
            |at: usize, value: usize| page[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
        long(at::SIZE, self.size);
        long(at::UP, self.up);
        long(at::DOWN, self.down);
        long(at::ARENA, self.arena);
        page[at::NAME..at::NAME + NAME].copy_from_slice(&self.name);
        memory.clear(at::HEAD, PAGE - at::HEAD);
        memory.write(8, &page[8..]);
    }

    /// The last step: now there is a channel.
    pub(crate) fn write_magic(memory: &Memory) {
        let [second, first] = Self::MAGIC_WORDS;
        memory.word(0).store(first, Relaxed);
        memory.word(4).store(second, Release);
    }

    /// The second word and the first.
    const MAGIC_WORDS: [u32; 2] = {
        let [a, b, c, d, e, f, g, h] = MAGIC;
        [u32::from_le_bytes([e, f, g, h]), u32::from_le_bytes([a, b, c, d])]
    };

    fn is_sound(&self) -> bool {
        let ring = self.ring_len();
        let within = |at: usize, len: usize, unit: usize| {
            at.is_multiple_of(unit) && at >= PAGE && at <= self.size && len <= self.size - at
        };
        (FEWEST_LINES..=MOST_LINES).contains(&self.lines)
            && self.lines.is_power_of_two()
            && self.pages <= MOST_PAGES
            && self.size.is_multiple_of(PAGE)
            && within(self.up, ring, LINE)
            && within(self.down, ring, LINE)
            && within(self.arena, self.arena_len(), PAGE)
    }
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("there is no channel in this memory"),
            Self::Newer(version) => {
                write!(f, "the channel is of version {version}: this program knows {VERSION}")
            }
            Self::Layout => f.write_str("the channel's first page contradicts itself"),
            Self::Closed => f.write_str("nobody has opened this channel"),
            Self::Name => f.write_str("no channel in this memory has this name"),
        }
    }
}

impl core::error::Error for Bad {}
