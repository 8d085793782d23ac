//! Ranges of bytes (RFC 9110, chapter 14).

use super::head::number;

/// Maximum number of ranges of a request. With more, the whole file is sent (RFC 9110, 14.2).
pub const MOST: usize = 16;

/// The ranges of a `Range` header. Empty: no valid ranges, so the whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<RangeSpec>);

/// One range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeSpec {
    /// From this byte to that one, or to the end of the file if it comes before.
    From(u64, u64),
    /// This many bytes at the end.
    Last(u64),
}

/// The parts of a file to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All of it.
    All,
    /// These, as `(first byte, bytes)`, in the order of the request. No two of them overlap or touch.
    Parts(Vec<(u64, u64)>),
    /// No range lies in the file.
    Nothing,
}

impl Ranges {
    /// Parses a header. A malformed one, or one with too many ranges, gives no ranges.
    pub fn parse(value: &[u8]) -> Self {
        let list = value.trim_ascii();
        let Some((unit, list)) = list.split_at_checked(6) else { return Self::default() };
        if !unit.eq_ignore_ascii_case(b"bytes=") {
            return Self::default();
        }
        let words = list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        let mut all = Vec::new();
        for word in words.filter(|word| !word.is_empty()) {
            if all.len() == MOST {
                return Self::default();
            }
            match spec(word) {
                Some(spec) => all.push(spec),
                None => return Self::default(),
            }
        }
        Self(all)
    }

    /// Whether there are no ranges.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The parts of a file of this size.
    pub fn of(&self, size: u64) -> Wanted {
        // A Content-Range cannot express a part of an empty file. A suffix, and a range from the first byte on, are
        // nevertheless satisfied: by the whole file (RFC 9110, 14.1.2).
        if self.is_empty() || size == 0 && self.0.iter().any(|spec| spec.takes_nothing()) {
            return Wanted::All;
        }
        let mut parts: Vec<(u64, u64)> = Vec::new();
        for spec in &self.0 {
            let (from, to) = match *spec {
                RangeSpec::From(from, to) => (from, to.min(size.saturating_sub(1)).saturating_add(1)),
                RangeSpec::Last(n) => (size.saturating_sub(n), size),
            };
            if from >= size || from >= to {
                continue;
            }
            // Ranges that overlap or touch are merged, in the place of the first of them.
            let (mut from, mut to) = (from, to);
            let mut place = None;
            let mut at = 0;
            while let Some(&(begin, len)) = parts.get(at) {
                if begin <= to && from <= begin + len {
                    (from, to) = (from.min(begin), to.max(begin + len));
                    parts.remove(at);
                    place = Some(place.unwrap_or(at));
                    // The merged range may touch one that was skipped.
                    at = 0;
                } else {
                    at += 1;
                }
            }
            parts.insert(place.unwrap_or(parts.len()).min(parts.len()), (from, to - from));
        }
        match &*parts {
            [] => Wanted::Nothing,
            _ => Wanted::Parts(parts),
        }
    }
}

impl RangeSpec {
    /// Whether an empty file satisfies it.
    fn takes_nothing(self) -> bool {
        match self {
            Self::From(from, _) => from == 0,
            Self::Last(n) => n > 0,
        }
    }
}

fn spec(word: &[u8]) -> Option<RangeSpec> {
    let dash = word.iter().position(|byte| *byte == b'-')?;
    match (&word[..dash], &word[dash + 1..]) {
        ([], []) => None,
        // A number too large for any file counts as its end.
        ([], last) => digits(last).map(RangeSpec::Last),
        (from, []) => Some(RangeSpec::From(digits(from)?, u64::MAX)),
        (from, to) => {
            Some((digits(from)?, digits(to)?)).filter(|(f, t)| f <= t).map(|(f, t)| RangeSpec::From(f, t))
        }
    }
}

/// A number, capped to the largest one.
fn digits(word: &[u8]) -> Option<u64> {
    word.iter().all(u8::is_ascii_digit).then(|| number(word).unwrap_or(u64::MAX)).filter(|_| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, size: u64) -> Wanted {
        Ranges::parse(text.as_bytes()).of(size)
    }

    fn parts(list: &[(u64, u64)]) -> Wanted {
        Wanted::Parts(list.to_vec())
    }

    #[test]
    fn ranges_are_cut_to_the_file() {
        for (text, wanted) in [
            ("bytes=0-0", parts(&[(0, 1)])),
            ("Bytes= 2-4 ", parts(&[(2, 3)])),
            ("bytes=5-", parts(&[(5, 5)])),
            ("bytes=5-100", parts(&[(5, 5)])),
            ("bytes=-3", parts(&[(7, 3)])),
            ("bytes=-30", parts(&[(0, 10)])),
            ("bytes=0-9", parts(&[(0, 10)])),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=99999999999999999999-", Wanted::Nothing),
            ("bytes=0-99999999999999999999", parts(&[(0, 10)])),
            ("bytes=10-12,3-3", parts(&[(3, 1)])),
        ] {
            assert_eq!(of(text, 10), wanted, "{text}");
        }
        for all in ["bytes=0-", "bytes=0-99", "bytes=-1", "bytes=-500", "bytes=5-,-1"] {
            assert_eq!(of(all, 0), Wanted::All, "{all} of an empty file");
        }
        for none in ["bytes=5-", "bytes=-0", "bytes=1-2,-0"] {
            assert_eq!(of(none, 0), Wanted::Nothing, "{none} of an empty file");
        }
        assert_eq!(of("bytes=1-18446744073709551615", u64::MAX), parts(&[(1, u64::MAX - 1)]));
    }

    #[test]
    fn what_overlaps_is_sent_once() {
        for (text, wanted) in [
            ("bytes=0-1,4-5", parts(&[(0, 2), (4, 2)])),
            ("bytes=4-5,0-1", parts(&[(4, 2), (0, 2)])),
            ("bytes=0-1,2-3", parts(&[(0, 4)])),
            ("bytes=0-1,4-5,1-4", parts(&[(0, 6)])),
            ("bytes=6-7,0-1,4-5,1-4", parts(&[(0, 8)])),
            ("bytes=0-,0-,0-", parts(&[(0, 10)])),
        ] {
            assert_eq!(of(text, 10), wanted, "{text}");
        }
        let many = format!("bytes={}", "0-9,".repeat(1000));
        assert_eq!(of(&many, 100), Wanted::All, "thousands are not worked through");
    }

    #[test]
    fn what_is_wrong_is_as_if_it_were_not_there() {
        for text in [
            "",
            "bytes",
            "bytes=",
            "lines=0-1",
            "bytes=a-",
            "bytes=3-2",
            "bytes=--2",
            "bytes=1",
            "bytes=0-1,x",
        ] {
            assert_eq!(of(text, 10), Wanted::All, "{text}");
        }
    }
}
