//! Recognizes machine images (docs/guest.md, "Images"): ELF files with a PVH note.
//!
//! The file is not trusted. Ranges outside it, or more than an image may have, are rejected.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// The maximum size of an image, in bytes.
pub const MOST: u64 = 64 << 20;
/// The highest address up to which an image may be loaded.
const LOAD_ADDRESS_MAX: u64 = 1 << 30;
/// The maximum number of segments examined, and of bytes of notes.
const SEGMENTS_MAX: u16 = 64;
const NOTES_LEN_MAX: u64 = 64 << 10;

const ELF_HEADER_LEN: usize = 64;
const PROGRAM_HEADER_LEN: usize = 56;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
/// The owner and type of the note: PHYS32_ENTRY.
const OWNER: &[u8] = b"Xen\0";
const ENTRY: u32 = 18;

/// Returns the end of the memory that an image itself needs, in bytes. `None`: the file is not an image. An error of
/// kind `InvalidData`: it is an image, but no machine can run it.
pub fn image_end(file: &impl FileExt, len: u64) -> io::Result<Option<u64>> {
    let mut head = [0; ELF_HEADER_LEN];
    if len < ELF_HEADER_LEN as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut head, 0)?;
    // 64 bits, little-endian; for x86-64.
    if head[..6] != *b"\x7fELF\x02\x01" || half(&head, 18) != 62 {
        return Ok(None);
    }
    let (at, size, count) = (long(&head, 32), half(&head, 54), half(&head, 56).min(SEGMENTS_MAX));
    if usize::from(size) != PROGRAM_HEADER_LEN
        || range(at, PROGRAM_HEADER_LEN as u64 * u64::from(count), len).is_none()
    {
        return Ok(None);
    }
    let mut segments = vec![0; PROGRAM_HEADER_LEN * usize::from(count)];
    file.read_exact_at(&mut segments, at)?;
    let segments = || segments.chunks_exact(PROGRAM_HEADER_LEN);
    let mut is_one = false;
    for note in segments().filter(|segment| word(segment, 0) == PT_NOTE) {
        let Some(range) = range(long(note, 8), long(note, 32).min(NOTES_LEN_MAX), len) else { continue };
        let mut notes = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut notes, range.start)?;
        is_one |= has_entry(&notes);
    }
    let bad = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    if !is_one {
        return Ok(None);
    }
    if len > MOST {
        return bad("the image is larger than 64 MiB");
    }
    let mut highest = 0;
    for load in segments().filter(|segment| word(segment, 0) == PT_LOAD) {
        match long(load, 24).checked_add(long(load, 40)) {
            Some(end @ ..=LOAD_ADDRESS_MAX) => highest = highest.max(end),
            _ => return bad("the image wants to be loaded above 1 GiB"),
        }
        if range(long(load, 8), long(load, 32), len).is_none() {
            return bad("the image is not whole");
        }
    }
    Ok(Some(highest))
}

fn has_entry(notes: &[u8]) -> bool {
    let mut rest = notes;
    while rest.len() >= 12 {
        let [owner, desc, kind] = [0, 4, 8].map(|at| word(rest, at));
        let owner_end = 12 + owner as usize;
        let next = 12u64 + u64::from(owner).next_multiple_of(4) + u64::from(desc).next_multiple_of(4);
        if kind == ENTRY && desc >= 4 && rest.get(12..owner_end) == Some(OWNER) {
            return true;
        }
        rest = usize::try_from(next).ok().and_then(|next| rest.get(next..)).unwrap_or_default();
    }
    false
}

/// Returns the range, if it lies within the file.
fn range(at: u64, count: u64, len: u64) -> Option<Range<u64>> {
    let end = at.checked_add(count)?;
    (end <= len).then_some(at..end)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file with these bytes.
    struct BytesFile<'a>(&'a [u8]);

    impl FileExt for BytesFile<'_> {
        fn read_at(&self, mut buf: &mut [u8], offset: u64) -> io::Result<usize> {
            let from = usize::try_from(offset).unwrap().min(self.0.len());
            io::Write::write(&mut buf, &self.0[from..])
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
            unreachable!("nothing is written")
        }
    }

    fn judged(bytes: &[u8]) -> Option<Option<u64>> {
        image_end(&BytesFile(bytes), bytes.len() as u64).ok()
    }

    /// An image with one byte of code, to be loaded at `to`.
    pub(in super::super) fn image(to: u64) -> Vec<u8> {
        let mut bytes = vec![0; ELF_HEADER_LEN + 2 * PROGRAM_HEADER_LEN];
        let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
        put(0, b"\x7fELF\x02\x01");
        put(18, &62u16.to_le_bytes());
        put(32, &(ELF_HEADER_LEN as u64).to_le_bytes());
        put(54, &(PROGRAM_HEADER_LEN as u16).to_le_bytes());
        put(56, &2u16.to_le_bytes());
        let end = (ELF_HEADER_LEN + 2 * PROGRAM_HEADER_LEN) as u64;
        for (n, kind, at, len, to) in [(0, PT_LOAD, end + 20, 1u64, to), (1, PT_NOTE, end, 20, 0)] {
            let segment = ELF_HEADER_LEN + n * PROGRAM_HEADER_LEN;
            put(segment, &kind.to_le_bytes());
            put(segment + 8, &at.to_le_bytes());
            put(segment + 24, &to.to_le_bytes());
            put(segment + 32, &len.to_le_bytes());
            put(segment + 40, &len.to_le_bytes());
        }
        for word in [4, 4, ENTRY, u32::from_le_bytes(*b"Xen\0"), 0x10_0000] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.push(0xf4);
        bytes
    }

    #[test]
    fn an_image_is_known_by_its_note() {
        let whole = image(1 << 20);
        assert_eq!(judged(&whole), Some(Some((1 << 20) + 1)));
        // Memory beyond the file's data counts too.
        let mut larger = whole.clone();
        larger[ELF_HEADER_LEN + 40 + 3] = 2;
        assert_eq!(judged(&larger), Some(Some((1 << 20) + (2 << 24) + 1)));
        let mut other = whole.clone();
        let note = ELF_HEADER_LEN + 2 * PROGRAM_HEADER_LEN + 8;
        other[note] = 17;
        assert_eq!(judged(&other), Some(None));
        for program in
            [&b""[..], b"#!/bin/sh\necho it is a program, and longer than any head of an ELF file\n\n"]
        {
            assert_eq!(judged(program), Some(None));
        }
        let itself = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(judged(&itself), Some(None));
    }

    #[test]
    fn an_image_that_cannot_be_loaded_is_refused() {
        assert_eq!(judged(&image(1 << 30)), None);
        assert_eq!(judged(&image(u64::MAX)), None);
        let whole = image(1 << 20);
        assert_eq!(judged(&whole[..whole.len() - 1]), None);
        assert!(image_end(&BytesFile(&whole), MOST + 1).is_err());
    }

    #[test]
    fn whatever_is_spoiled_or_missing_is_an_image_or_none() {
        let whole = image(1 << 20);
        for len in 0..whole.len() {
            judged(&whole[..len]);
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                judged(&bytes);
            }
        }
    }
}
