//! The start parameters of a machine: `hvm_start_info` of PVH, with its memory map and command line.
//!
//! In: bytes of the machine's memory. Out: how to wait, and the memory for the heap. Other entries are skipped. All
//! of it is read before the heap exists, and is not needed later.

use crate::line::Wait;

/// The start parameters of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StartParameters {
    /// How to wait for the host.
    pub(super) wait: Wait,
    /// The address and length of the heap, in bytes.
    pub(super) heap: (u64, u64),
    /// The end of the machine's memory.
    pub(super) end: u64,
}

const MAGIC: u64 = 0x336e_c578;
/// Offsets in `hvm_start_info`.
const VERSION: u64 = 4;
const WORDS: u64 = 24;
const MAP: u64 = 40;
const ENTRIES: u64 = 48;
/// The length of a memory map entry, the offset of its type, and the type of RAM.
const ENTRY: u64 = 24;
const KIND: u64 = 16;
const RAM: u64 = 1;
/// The maximum number of entries read, and of command line bytes.
const ENTRIES_MAX: u64 = 256;
const WORDS_LEN_MAX: u64 = 4096;
/// Memory below this address is mapped from the start.
const MAPPED: u64 = 1 << 32;

impl StartParameters {
    /// Reads the parameters. `image` is the end of the image; `peek` returns a byte of memory, if it exists.
    pub(super) fn read(
        info: u64,
        image: u64,
        peek: impl Fn(u64) -> Option<u8>,
    ) -> Result<Self, &'static str> {
        let number = |at: u64, len: u64| {
            (0..len).rev().try_fold(0, |number, n| Some(number << 8 | u64::from(peek(at.checked_add(n)?)?)))
        };
        let is_info = number(info, 4) == Some(MAGIC) && number(info.saturating_add(VERSION), 4) >= Some(1);
        let (Some(map), Some(entries), true) =
            (number(info.saturating_add(MAP), 8), number(info.saturating_add(ENTRIES), 4), is_info)
        else {
            return Err("the machine was not told what memory it has");
        };
        let mut start = Self { wait: Wait::default(), heap: (0, 0), end: 0 };
        for at in (0..entries.min(ENTRIES_MAX)).filter_map(|n| map.checked_add(n * ENTRY)) {
            let (Some(base), Some(len), Some(RAM)) =
                (number(at, 8), number(at.saturating_add(8), 8), number(at.saturating_add(KIND), 4))
            else {
                continue;
            };
            let end = base.saturating_add(len);
            start.end = start.end.max(end);
            let Some(base) = base.max(image).checked_next_multiple_of(4096) else { continue };
            let len = end.min(MAPPED).saturating_sub(base);
            if len > start.heap.1 {
                start.heap = (base, len);
            }
        }
        if start.heap.1 == 0 {
            return Err("the machine has no memory beside its image");
        }
        if let Some(words) = number(info.saturating_add(WORDS), 8) {
            let said = |n| words.checked_add(n).and_then(&peek).filter(|byte| *byte != 0);
            start.hear((0..WORDS_LEN_MAX).map_while(said));
        }
        Ok(start)
    }

    /// Parses words separated by blanks. The last one of an option counts.
    fn hear(&mut self, mut words: impl Iterator<Item = u8>) {
        loop {
            let (mut word, mut len) = ([0; 16], 0);
            let end = words.find(|byte| {
                if *byte != b' '
                    && let Some(place) = word.get_mut(len)
                {
                    *place = *byte;
                }
                len += usize::from(*byte != b' ');
                *byte == b' '
            });
            match word.get(..len) {
                Some(b"wait=poll") => self.wait = Wait::Poll,
                Some(b"wait=interrupt") => self.wait = Wait::Interrupt,
                Some(b"wait=adaptive") => self.wait = Wait::Adaptive,
                _ => {}
            }
            if end.is_none() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const AT: u64 = 0x9000;
    const IMAGE: u64 = 0x25_1234;

    /// Returns memory with an info at `AT`.
    fn memory(map: &[(u64, u64, u64)], words: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut add = |number: u64, len: usize| bytes.extend_from_slice(&number.to_le_bytes()[..len]);
        [
            (MAGIC, 4),
            (1, 4),
            (0, 4),
            (0, 4),
            (0, 8),
            (AT + 0x100, 8),
            (0, 8),
            (AT + 0x800, 8),
            (map.len() as u64, 4),
        ]
        .iter()
        .for_each(|(number, len)| add(*number, *len));
        bytes.resize(0x100, 0);
        bytes.extend_from_slice(words);
        bytes.resize(0x800, 0);
        for (base, len, kind) in map {
            [*base, *len, *kind].iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Result<StartParameters, &'static str> {
        StartParameters::read(AT, IMAGE, |at| bytes.get(usize::try_from(at.checked_sub(AT)?).ok()?).copied())
    }

    #[test]
    fn the_heap_is_the_largest_memory_behind_the_image_that_is_mapped() {
        let map = [(0, 0x9fc00, 1), (0x10_0000, 31 << 20, 1), (0x20_0000, 1 << 31, 2), (1 << 32, 1 << 40, 1)];
        let start = read(&memory(&map, b"")).unwrap();
        assert_eq!(start.heap, (0x25_2000, (32 << 20) - 0x25_2000));
        assert_eq!(start.end, (1 << 32) + (1 << 40));
    }

    #[test]
    fn the_last_word_that_is_known_counts() {
        let wait = |words| read(&memory(&[(0, 1 << 30, 1)], words)).unwrap().wait;
        for (words, is) in [
            (&b""[..], Wait::Adaptive),
            (b"wait=poll", Wait::Poll),
            (b"quiet  wait=interrupt await=poll wait=", Wait::Interrupt),
            (b"wait=poll a-word-that-is-much-longer-than-any-that-is-known wait=adaptive ", Wait::Adaptive),
            (b"wait=interrupt-and-more wait=poll\0 wait=interrupt", Wait::Poll),
        ] {
            assert_eq!(wait(words), is);
        }
    }

    #[test]
    fn an_info_that_says_nothing_or_nonsense_ends_with_a_reason() {
        let good = memory(&[(0, 1 << 30, 1)], b"");
        assert!(read(&good[..0x40]).is_err() && read(&[]).is_err());
        let spoilt = |at: usize, byte| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            read(&bytes).is_err()
        };
        assert!(spoilt(0, 0) && spoilt(4, 0) && spoilt(48, 0) && spoilt(47, 0xff));
        let all = [(u64::MAX, u64::MAX, 1), (0, 0x10_0000, 1)];
        assert!(read(&memory(&all, b"")).is_err());
    }
}
