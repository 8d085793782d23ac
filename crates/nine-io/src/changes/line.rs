//! The lines of a change file (docs/changes.md): their meaning and their format.

use std::borrow::Cow;

use nine_proto::{Errno, Error, Result, check_name};

use crate::quote;

/// The path of a file from the root of the tree: a `/` before each name; the root itself is `/`.
pub type Path = Box<[u8]>;

/// A change of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new name.
    Create(Path),
    /// A name is gone, with everything below it.
    Remove(Path),
    /// The content or the length of a file has changed.
    Write(Path),
    /// Attributes of a file have changed: permissions, owners, times, extended attributes.
    Attr(Path),
    /// A name, and everything below it, has moved to another name. The file that had the new name is gone.
    Move(Path, Path),
    /// The changes from this number up to, but without, this line's own number are lost.
    Lost(u64),
    /// From now on the server does not notice changes that others make in or below this directory.
    Blind(Path),
    /// The server notices them again. Changes in between are unknown.
    Sees(Path),
}

/// A position in the order of changes, at which a reader can continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The instance of the server for which the number is valid: at most 32 hexadecimal digits.
    pub epoch: Box<str>,
    /// The first change that the reader has not received.
    pub next: u64,
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// The reader's position: the first line after an open.
    Here(Cursor),
    /// A change and its number.
    Change(u64, Change),
}

impl Cursor {
    /// The name of the change file that starts at this position.
    pub fn name(&self) -> String {
        format!("{}={}.{}", super::NAME, self.epoch, self.next)
    }

    /// Parses the part of such a name after the `=`; `None` if it is invalid.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (epoch, next) = std::str::from_utf8(text).ok()?.split_once('.')?;
        Some(Self { epoch: checked_epoch(epoch)?, next: number(next.as_bytes())? })
    }
}

impl Change {
    /// Returns the change for a reader whose root is at `base`, a path of this tree; `None` if it is outside.
    pub fn seen_from(&self, base: &[u8]) -> Option<Cow<'_, Self>> {
        if base == b"/" {
            return Some(Cow::Borrowed(self));
        }
        // Paths at or below the base count. Of names above it, changes affect the base itself.
        let inner = |path: &[u8]| below(path, base).map(Path::from);
        let comes = |path: &[u8]| inner(path).or_else(|| below(base, path).map(|_| b"/"[..].into()));
        let change = match self {
            Self::Write(_) | Self::Attr(_) => self.map(inner)?,
            _ => self.map(comes)?,
        };
        Some(Cow::Owned(change))
    }

    /// Replaces each path by `to(path)`; `None` if no path is left. A move with one path left is a removal or a
    /// creation.
    pub fn map(&self, to: impl Fn(&[u8]) -> Option<Path>) -> Option<Self> {
        Some(match self {
            Self::Create(path) => Self::Create(to(path)?),
            Self::Remove(path) => Self::Remove(to(path)?),
            Self::Write(path) => Self::Write(to(path)?),
            Self::Attr(path) => Self::Attr(to(path)?),
            Self::Move(old, new) => match (to(old), to(new)) {
                (Some(old), Some(new)) => Self::Move(old, new),
                (Some(old), None) => Self::Remove(old),
                (None, new) => Self::Create(new?),
            },
            Self::Lost(from) => Self::Lost(*from),
            Self::Blind(path) => Self::Blind(to(path)?),
            Self::Sees(path) => Self::Sees(to(path)?),
        })
    }

    /// Whether it changes content or attributes only, so that repeating it adds nothing.
    pub(super) fn is_of_content(&self) -> bool {
        matches!(self, Self::Write(_) | Self::Attr(_))
    }

    /// Bytes of its paths.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Create(path) | Self::Remove(path) | Self::Write(path) | Self::Attr(path) => path.len(),
            Self::Blind(path) | Self::Sees(path) => path.len(),
            Self::Move(old, new) => old.len() + new.len(),
            Self::Lost(_) => 0,
        }
    }
}

/// Returns `path` relative to `dir`, if it is at or below it. Both start at the same root.
pub fn below<'p>(path: &'p [u8], dir: &[u8]) -> Option<&'p [u8]> {
    match path.strip_prefix(dir)? {
        b"" => Some(b"/"),
        _ if dir == b"/" => Some(path),
        rest if rest.starts_with(b"/") => Some(rest),
        _ => None,
    }
}

/// Appends a path to the path of a directory.
pub fn join(place: &[u8], path: &[u8]) -> Path {
    match (place, path) {
        (b"/", path) => path.into(),
        (place, b"/") => place.into(),
        (place, path) => [place, path].concat().into(),
    }
}

impl Line {
    /// Appends the line with its newline.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Here(Cursor { epoch, next }) => out.extend(format!("here {epoch} {next}").bytes()),
            Self::Change(number, change) => {
                let (word, paths) = match change {
                    Change::Create(path) => ("create", [Some(path), None]),
                    Change::Remove(path) => ("remove", [Some(path), None]),
                    Change::Write(path) => ("write", [Some(path), None]),
                    Change::Attr(path) => ("attr", [Some(path), None]),
                    Change::Move(old, new) => ("move", [Some(old), Some(new)]),
                    Change::Blind(path) => ("blind", [Some(path), None]),
                    Change::Sees(path) => ("sees", [Some(path), None]),
                    Change::Lost(_) => ("lost", [None, None]),
                };
                out.extend(format!("{number} {word}").bytes());
                if let Change::Lost(from) = change {
                    out.extend(format!(" {from}").bytes());
                }
                for path in paths.into_iter().flatten() {
                    out.push(b' ');
                    quote::quote_into(&escape(path), out);
                }
            }
        }
        out.push(b'\n');
    }
}

/// Parses a line without its newline.
///
/// # Errors
/// EPROTO if it is no line of docs/changes.md. A reader treats that like `lost`.
pub fn parse_line(line: &[u8]) -> Result<Line> {
    parse(line).ok_or_else(|| Error::new(Errno::EPROTO, "this is no line of changes"))
}

fn parse(line: &[u8]) -> Option<Line> {
    let words = quote::words_of(line).ok()?;
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    Some(match *words {
        [b"here", epoch, next] => {
            let epoch = checked_epoch(std::str::from_utf8(epoch).ok()?)?;
            Line::Here(Cursor { epoch, next: number(next)? })
        }
        [n, b"move", old, new] => Line::Change(number(n)?, Change::Move(path(old)?, path(new)?)),
        [n, b"lost", from] => Line::Change(number(n)?, Change::Lost(number(from)?)),
        [n, word, of] => {
            let of = path(of)?;
            let change = match word {
                b"create" => Change::Create(of),
                b"remove" => Change::Remove(of),
                b"write" => Change::Write(of),
                b"attr" => Change::Attr(of),
                b"blind" => Change::Blind(of),
                b"sees" => Change::Sees(of),
                _ => return None,
            };
            Line::Change(number(n)?, change)
        }
        _ => return None,
    })
}

fn checked_epoch(text: &str) -> Option<Box<str>> {
    let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (is_hex && (1..=32).contains(&text.len())).then(|| text.into())
}

/// A decimal number: digits only.
fn number(text: &[u8]) -> Option<u64> {
    let is_number = text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// Parses a path, and checks that its names are legal, so that it cannot mislead a reader.
fn path(word: &[u8]) -> Option<Path> {
    let path = unescape(word)?;
    let names = path.strip_prefix(b"/")?;
    let is_path = names.is_empty() || names.split(|&byte| byte == b'/').all(|name| check_name(name).is_ok());
    is_path.then(|| path.into())
}

/// Escapes a newline as `\n` and a backslash as `\\`, so that a newline in a name does not end the line.
fn escape(path: &[u8]) -> Cow<'_, [u8]> {
    if !path.iter().any(|byte| matches!(byte, b'\n' | b'\\')) {
        return Cow::Borrowed(path);
    }
    let mut escaped = Vec::with_capacity(path.len() + 8);
    for &byte in path {
        match byte {
            b'\n' => escaped.extend(b"\\n"),
            b'\\' => escaped.extend(b"\\\\"),
            byte => escaped.push(byte),
        }
    }
    Cow::Owned(escaped)
}

fn unescape(word: &[u8]) -> Option<Vec<u8>> {
    let mut path = Vec::with_capacity(word.len());
    let mut bytes = word.iter().copied();
    while let Some(byte) = bytes.next() {
        path.push(match byte {
            b'\\' => match bytes.next()? {
                b'n' => b'\n',
                b'\\' => b'\\',
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &[u8]) -> Path {
        text.into()
    }

    fn written(line: &Line) -> Vec<u8> {
        let mut bytes = Vec::new();
        line.encode(&mut bytes);
        assert_eq!(bytes.pop(), Some(b'\n'));
        assert!(!bytes.contains(&b'\n'));
        bytes
    }

    #[test]
    fn a_line_is_read_as_it_was_written_whatever_the_names_are() {
        for name in
            [&b"/"[..], b"/a", b"/a b/it's", b"/new\nline", b"/back\\slash\\n", b"/\xff\xfe", b"/'", b"/\x0b"]
        {
            let path = path(name);
            for change in [
                Change::Create(path.clone()),
                Change::Remove(path.clone()),
                Change::Write(path.clone()),
                Change::Attr(path.clone()),
                Change::Blind(path.clone()),
                Change::Sees(path.clone()),
                Change::Move(path.clone(), path.clone()),
                Change::Lost(7),
            ] {
                let line = Line::Change(u64::MAX, change);
                assert_eq!(parse_line(&written(&line)).unwrap(), line);
            }
        }
        let cursor = Cursor { epoch: "00c0ffee".into(), next: 17 };
        assert_eq!(written(&Line::Here(cursor.clone())), b"here 00c0ffee 17");
        assert_eq!(Cursor::parse(cursor.name().strip_prefix("#changes=").unwrap().as_bytes()), Some(cursor));
    }

    #[test]
    fn what_is_no_line_is_refused() {
        for line in [
            &b""[..],
            b"here",
            b"here x 1",
            b"here 0123456789abcdef0123456789abcdef0 1",
            b"1 create",
            b"1 create a",
            b"1 create /a /b",
            b"1 create /../etc",
            b"1 create //a",
            b"1 create /a/",
            b"1 create '/a",
            b"1 create /a\\x",
            b"1 create /a\\",
            b"-1 create /a",
            b"+1 create /a",
            b"18446744073709551616 create /a",
            b"1 shout /a",
            b"1 lost /a",
            b"1 move /a",
        ] {
            assert!(parse_line(line).is_err(), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn a_change_is_seen_from_a_directory_as_it_concerns_it() {
        let seen = |change: Change| change.seen_from(b"/a/b").map(Cow::into_owned);
        let (within, at, above, beside) = (b"/a/b/c", b"/a/b", b"/a", b"/a/bc");
        assert_eq!(seen(Change::Create(path(within))), Some(Change::Create(path(b"/c"))));
        assert_eq!(seen(Change::Remove(path(at))), Some(Change::Remove(path(b"/"))));
        assert_eq!(seen(Change::Remove(path(above))), Some(Change::Remove(path(b"/"))));
        assert_eq!(seen(Change::Attr(path(above))), None);
        assert_eq!(seen(Change::Write(path(beside))), None);
        assert_eq!(seen(Change::Move(path(within), path(beside))), Some(Change::Remove(path(b"/c"))));
        assert_eq!(seen(Change::Move(path(beside), path(within))), Some(Change::Create(path(b"/c"))));
        assert_eq!(seen(Change::Move(path(above), path(b"/x"))), Some(Change::Remove(path(b"/"))));
        assert_eq!(seen(Change::Blind(path(b"/"))), Some(Change::Blind(path(b"/"))));
        assert_eq!(seen(Change::Lost(3)), Some(Change::Lost(3)));
        let whole = Change::Write(path(b"/x"));
        assert_eq!(whole.seen_from(b"/").as_deref(), Some(&whole));
        let there = |change: &Change| change.map(|path| Some(join(b"/n/lab", path))).unwrap();
        assert_eq!(there(&whole), Change::Write(path(b"/n/lab/x")));
        assert_eq!(there(&Change::Attr(path(b"/"))), Change::Attr(path(b"/n/lab")));
    }
}
