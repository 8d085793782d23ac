//! Parts: incomplete files under names that a later copy finds again.
//!
//! In: the final name of a file, and the metadata of its source. Out: the name of its part, `.NAME.ninefold-` and 16
//! digits; and an index of the directory that is copied to.
//!
//! Always holds: the digits depend on the name, the source's length and its modification time. So a part is only
//! continued from the source it was begun with. A part's name has at most 255 bytes and never stands for two files.

use std::collections::HashMap;

use nine_proto::Time;
use ring::digest::{SHA256, digest};

use super::end::{Found, Kind, Meta};

/// Separates the name from the digits.
const MARK: &[u8] = b".ninefold-";
/// Hex digits of 64 bits.
const DIGITS: usize = 16;
/// Longest part of the name that fits into 255 bytes.
const STEM: usize = 255 - 1 - MARK.len() - DIGITS;

/// Returns the name of the part for the file `new`.
pub fn name(new: &[u8], source: &Meta) -> Vec<u8> {
    let Time { sec, nsec } = source.mtime;
    of(new, &[&source.size.to_le_bytes()[..], &sec.to_le_bytes(), &nsec.to_le_bytes()].concat())
}

/// Returns the name of the marker beside the directory `new` until it is complete. `source` is its source's path as the
/// user writes it.
pub fn mark(new: &[u8], source: &[u8]) -> Vec<u8> {
    of(new, source)
}

fn of(new: &[u8], identity: &[u8]) -> Vec<u8> {
    [b".", &*stem(new), MARK, digits(&[new, b"/", identity].concat()).as_bytes()].concat()
}

/// Returns the name, shortened with digits of its own if it is too long.
fn stem(new: &[u8]) -> Vec<u8> {
    if new.len() <= STEM {
        return new.to_vec();
    }
    let mut cut = STEM - 1 - DIGITS;
    while std::str::from_utf8(new).is_ok_and(|text| !text.is_char_boundary(cut)) {
        cut -= 1;
    }
    [&new[..cut], b"~", digits(new).as_bytes()].concat()
}

/// Returns the stem in a part's name; `None` if the name is not one of a part.
fn stem_of(part: &[u8]) -> Option<&[u8]> {
    let (rest, digits) = part.split_at_checked(part.len().checked_sub(DIGITS)?)?;
    let stem = rest.strip_prefix(b".")?.strip_suffix(MARK)?;
    let hex = |b: &u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    (!stem.is_empty() && digits.iter().all(hex)).then_some(stem)
}

/// Returns a hash of 64 bits. Collisions are too rare to matter.
fn digits(text: &[u8]) -> String {
    let sum = digest(&SHA256, text);
    sum.as_ref().iter().take(DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// An index of the directory that is copied to.
#[derive(Default)]
pub struct There {
    /// Kind, length and modification time of files and links.
    files: HashMap<Vec<u8>, (Kind, u64, Time)>,
    /// Names of parts, by their stem.
    parts: HashMap<Vec<u8>, Vec<Vec<u8>>>,
}

impl There {
    /// Adds entries of the directory.
    pub fn extend(&mut self, found: Vec<Found>) {
        for Found { name, meta } in found {
            let Ok(meta) = meta else { continue };
            if meta.kind == Kind::File {
                self.part(&name);
            }
            if matches!(meta.kind, Kind::File | Kind::Link) {
                self.files.insert(name, (meta.kind, meta.size, meta.mtime));
            }
        }
    }

    /// Adds a name if it is one of a part.
    pub fn part(&mut self, name: &[u8]) {
        if let Some(stem) = stem_of(name) {
            self.parts.entry(stem.to_vec()).or_default().push(name.to_vec());
        }
    }

    /// Returns whether the file or link of this name has its source's kind, length and time.
    pub fn has(&self, new: &[u8], source: &Meta) -> bool {
        self.files.get(new).is_some_and(|&(kind, size, mtime)| source.is_like(kind, size, mtime))
    }

    /// Returns the names of all parts of this file.
    pub fn parts_of(&self, new: &[u8]) -> &[Vec<u8>] {
        self.parts.get(&stem(new)).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(size: u64, sec: i64) -> Meta {
        let mtime = Time { sec, nsec: 7 };
        Meta {
            kind: Kind::File,
            id: 1,
            mode: 0o644,
            uid: 0,
            gid: 0,
            size,
            mtime,
            links: 1,
            state: None,
            is_event: false,
            is_sparse: false,
        }
    }

    #[test]
    fn a_part_is_of_one_name_and_one_source() {
        let part = name(b"f", &source(1, 2));
        assert_eq!(part, name(b"f", &source(1, 2)));
        assert_eq!(stem_of(&part), Some(&b"f"[..]));
        let others = [name(b"f", &source(2, 2)), name(b"f", &source(1, 3)), name(b"g", &source(1, 2))];
        assert!(!others.contains(&part));
    }

    #[test]
    fn names_of_any_length_have_parts_of_their_own() {
        let long = |last: &str| format!("{}{last}", "\u{e4}".repeat(127)).into_bytes();
        let (a, b) = (long("a"), long("b"));
        assert_eq!((a.len(), STEM), (255, 228));
        for new in [&a, &b, &vec![b'x'; 255], &vec![b'x'; 228], &vec![b'x'; 229]] {
            let part = name(new, &source(1, 2));
            assert!(part.len() <= 255 && stem_of(&part) == Some(&stem(new)), "{}", part.len());
        }
        assert_ne!(stem(&a), stem(&b));
        assert!(std::str::from_utf8(&name(&a, &source(1, 2))).is_ok());
    }

    #[test]
    fn what_is_no_part_is_not_taken_for_one() {
        for other in [
            &b".ninefold-0123456789abcdef"[..],
            b"..ninefold-0123456789abcdef",
            b"f.ninefold-0123456789abcdef",
            b".f.ninefold-0123456789abcdeF",
            b".f.ninefold-0123456789abcde",
            b".f",
            b"",
        ] {
            assert_eq!(stem_of(other), None, "{}", other.escape_ascii());
        }
        let mut there = There::default();
        there.part(&name(b"f", &source(1, 2)));
        assert_eq!((there.parts_of(b"f").len(), there.parts_of(b"g").len()), (1, 0));
    }
}
