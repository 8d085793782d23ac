//! Conditions of a request (RFC 9110, chapter 13), which decide whether a file is sent.

use std::borrow::Cow;
use std::ops::Range;

use super::civil::parse_http;
use super::head::Head;

/// The result of the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The file is sent.
    Go,
    /// The client has the present file (304).
    Known,
    /// The file is not the one that the client requires (412).
    Failed,
}

/// The values of the condition headers; empty if absent.
#[derive(Clone, Debug, Default)]
pub struct Conditions<'h> {
    /// `If-Match`.
    pub matches: Cow<'h, [u8]>,
    /// `If-Unmodified-Since`.
    pub unmodified: &'h [u8],
    /// `If-None-Match`.
    pub none_match: Cow<'h, [u8]>,
    /// `If-Modified-Since`.
    pub modified: &'h [u8],
}

impl<'h> Conditions<'h> {
    /// The conditions of a head, which is at the start of `bytes`.
    pub fn of(head: &Head, bytes: &'h [u8]) -> Self {
        let list = |lines: &[Range<usize>]| match lines {
            [] => Cow::default(),
            [line] => Cow::Borrowed(&bytes[line.clone()]),
            // Several lines are one list (RFC 9110, 5.3).
            lines => {
                let lines: Vec<_> = lines.iter().map(|line| &bytes[line.clone()]).collect();
                Cow::Owned(lines.join(&b", "[..]))
            }
        };
        Self {
            matches: list(&head.if_match),
            unmodified: &bytes[head.if_unmodified_since.clone()],
            none_match: list(&head.if_none_match),
            modified: &bytes[head.if_modified_since.clone()],
        }
    }

    /// Whether there are no conditions.
    pub fn is_empty(&self) -> bool {
        [&*self.matches, self.unmodified, &*self.none_match, self.modified].iter().all(|said| said.is_empty())
    }

    /// Evaluates them in the order of RFC 9110, 13.2.2. `changed`: the file's last change, in seconds since 1970.
    pub fn judge(&self, tag: &str, changed: i64) -> Verdict {
        if !self.matches.is_empty() {
            if !names(&self.matches, tag, false) {
                return Verdict::Failed;
            }
        } else if date(self.unmodified).is_some_and(|date| changed > date) {
            return Verdict::Failed;
        }
        if !self.none_match.is_empty() {
            if names(&self.none_match, tag, true) {
                return Verdict::Known;
            }
        } else if date(self.modified).is_some_and(|date| changed <= date) {
            return Verdict::Known;
        }
        Verdict::Go
    }
}

/// Whether the client's part is of the present file (`If-Range`): by its tag alone.
///
/// A weak tag does not guarantee equal bytes. Nor does a date: a file may change twice within a second (RFC 9110,
/// 8.8.2.2 and 13.1.5). Each file has a tag, so no client needs the date.
pub fn is_same(if_range: &[u8], tag: &str) -> bool {
    if_range.is_empty() || if_range == tag.as_bytes()
}

/// Whether a list has this tag, or `*`. `weak`: weak tags match too.
fn names(list: &[u8], tag: &str, weak: bool) -> bool {
    let mut rest = list.trim_ascii();
    if rest == b"*" {
        return true;
    }
    while !rest.is_empty() {
        let is_weak = rest.starts_with(b"W/");
        let one = if is_weak { &rest[2..] } else { rest };
        if one.first() != Some(&b'"') {
            return false;
        }
        let Some(end) = one[1..].iter().position(|byte| *byte == b'"') else { return false };
        let (name, behind) = one.split_at(end + 2);
        if name == tag.as_bytes() && (weak || !is_weak) {
            return true;
        }
        let behind = behind.trim_ascii_start();
        rest = behind.strip_prefix(b",").unwrap_or(behind).trim_ascii_start();
    }
    false
}

fn date(value: &[u8]) -> Option<i64> {
    parse_http(std::str::from_utf8(value).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    #[test]
    fn who_has_the_file_is_told_so() {
        let judge = |list: &str| {
            Conditions { none_match: list.as_bytes().into(), ..Conditions::default() }.judge("\"a\"", 5)
        };
        for known in ["\"a\"", "*", "\"b\", \"a\"", "W/\"a\"", "\"b,\",W/\"a\" , \"c\""] {
            assert_eq!(judge(known), Verdict::Known, "{known}");
        }
        for other in ["\"b\"", "a", "\"a", "W/", "\"b\" \"", "\"A\""] {
            assert_eq!(judge(other), Verdict::Go, "{other}");
        }
        let since = |changed| {
            Conditions { modified: DATE.as_bytes(), ..Conditions::default() }.judge("\"a\"", changed)
        };
        assert_eq!(since(784_111_777), Verdict::Known);
        assert_eq!(since(784_111_778), Verdict::Go);
        let before = Conditions { modified: b"Thu, 16 Aug 1906 20:26:40 GMT", ..Conditions::default() };
        assert_eq!(before.judge("\"a\"", -2_000_000_000), Verdict::Known, "a time before 1970");
        assert_eq!(before.judge("\"a\"", -1), Verdict::Go);
        let both = Conditions {
            none_match: Cow::Borrowed(b"\"b\""),
            modified: DATE.as_bytes(),
            ..Conditions::default()
        };
        assert_eq!(both.judge("\"a\"", 0), Verdict::Go, "the tag counts alone");
        let wrong = Conditions { modified: b"yesterday", ..Conditions::default() };
        assert_eq!(wrong.judge("\"a\"", 0), Verdict::Go);
    }

    #[test]
    fn who_wants_another_file_than_this_one_does_not_get_it() {
        let judge = |list: &str| {
            Conditions { matches: list.as_bytes().into(), ..Conditions::default() }.judge("\"a\"", 5)
        };
        assert_eq!(judge("\"a\""), Verdict::Go);
        assert_eq!(judge("*"), Verdict::Go);
        assert_eq!(judge("W/\"a\""), Verdict::Failed);
        assert_eq!(judge("\"b\""), Verdict::Failed);
        let since = |changed| {
            Conditions { unmodified: DATE.as_bytes(), ..Conditions::default() }.judge("\"a\"", changed)
        };
        assert_eq!(since(784_111_777), Verdict::Go);
        assert_eq!(since(784_111_778), Verdict::Failed);
    }

    #[test]
    fn a_part_is_of_the_same_file_or_not_sent_alone() {
        for (if_range, same) in
            [("", true), ("\"a\"", true), ("\"b\"", false), ("W/\"a\"", false), (DATE, false), ("x", false)]
        {
            assert_eq!(is_same(if_range.as_bytes(), "\"a\""), same, "{if_range}");
        }
    }
}
