//! The first page of a channel: the positions of its parts.

use core::fmt;

use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sys::Memory;

/// The magic number at the start of a channel.
pub const MAGIC: [u8; 8] = *b"9P chan\n";
/// Size of a page, in bytes.
pub const PAGE: usize = 4096;
/// Size of a line of a ring, in bytes.
pub(crate) const LINE: usize = 64;

const VERSION: u32 = 1;
const NAME: usize = 32;
const RING_LINES_MIN: u32 = 64;
const RING_LINES_MAX: u32 = 1 << 16;
const MEMORY_PAGES_MAX: u32 = (1 << 20) - 1;

/// Offsets of the fields of the first page (docs/channels.md, "Memory").
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

/// The contents of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A byte stream.
    Bytes,
    /// 9P: the guest is the client and the host the server.
    GuestAsks,
    /// 9P: the host is the client and the guest the server.
    HostAsks,
}

/// A range of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Place {
    /// Offset of the first byte in the arena.
    pub at: u32,
    /// Number of bytes.
    pub count: u32,
}

/// The validated positions of a channel's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The contents of the channel.
    pub kind: Kind,
    /// Number of lines of each ring, a power of two.
    pub lines: u32,
    /// Number of pages of the arena.
    pub pages: u32,
    /// The name: UTF-8, padded with zeros.
    pub name: [u8; NAME],
    pub(crate) up: usize,
    pub(crate) down: usize,
    pub(crate) arena: usize,
    /// Size of the channel, in bytes.
    pub size: usize,
}

/// The reason why a channel in memory cannot be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// There is no channel, or it is not open yet.
    Magic,
    /// The channel has this version, which is unknown, or needs unknown features.
    Newer(u32),
    /// The page is inconsistent or does not fit the memory.
    Layout,
    /// No host has opened the channel.
    Closed,
    /// No channel has this name.
    Name,
}

impl Layout {
    /// Creates the layout of a single channel: the page, the rings, the arena.
    ///
    /// # Panics
    /// If `lines` is not a power of two from 64 to 65,536, there are 2^20 pages or more, or the name is longer than 32
    /// bytes.
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

    /// Reads and validates the layout from memory that starts with a channel.
    pub fn read(memory: &Memory) -> Result<Self, Bad> {
        if memory.len() < PAGE {
            return Err(Bad::Magic);
        }
        // The magic number is written last. Acquiring it makes the other fields visible.
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

    /// Finds the channel of this name among channels that lie back to back. Returns the number of channels before it,
    /// and its memory.
    ///
    /// Fails with [`Bad::Name`] if no channel has the name before the first page that is not a channel's.
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
            // `read` has checked that the size is at least a page and within the memory.
            at += layout.size;
            before += 1;
        }
        Err(Bad::Name)
    }

    /// Returns the name without the padding. Invalid UTF-8 ends it.
    pub fn name(&self) -> &str {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(NAME);
        let name = &self.name[..end];
        core::str::from_utf8(name).unwrap_or_else(|bad| {
            core::str::from_utf8(&name[..bad.valid_up_to()]).expect("valid up to there")
        })
    }

    /// Returns the size of the arena, in bytes.
    pub fn arena_len(&self) -> usize {
        self.pages as usize * PAGE
    }

    /// Returns the size of each ring, in bytes.
    pub(crate) fn ring_len(&self) -> usize {
        self.lines as usize * LINE
    }

    /// Returns the offset of a range in the channel. `None` if it is not in the arena.
    pub(crate) fn place(&self, place: Place) -> Option<usize> {
        let end = place.at as usize + place.count as usize;
        (end <= self.arena_len()).then(|| self.arena + place.at as usize)
    }

    /// Writes the page except the magic number, and zeros the shared words.
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

    /// Writes the magic number. This is the last step of opening a channel.
    pub(crate) fn write_magic(memory: &Memory) {
        let [second, first] = Self::MAGIC_WORDS;
        memory.word(0).store(first, Relaxed);
        memory.word(4).store(second, Release);
    }

    /// The second word of the magic number, and the first.
    const MAGIC_WORDS: [u32; 2] = {
        let [a, b, c, d, e, f, g, h] = MAGIC;
        [u32::from_le_bytes([e, f, g, h]), u32::from_le_bytes([a, b, c, d])]
    };

    fn is_sound(&self) -> bool {
        let ring = self.ring_len();
        let within = |at: usize, len: usize, unit: usize| {
            at.is_multiple_of(unit) && at >= PAGE && at <= self.size && len <= self.size - at
        };
        (RING_LINES_MIN..=RING_LINES_MAX).contains(&self.lines)
            && self.lines.is_power_of_two()
            && self.pages <= MEMORY_PAGES_MAX
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
