//! Parses text into a tree.

use std::sync::Arc;

use super::{ALONE, Arg, BUFFER, DEPTH_MOST, DEVICES_MOST, LISTS, OLD, PREFIXES, TEXT_MOST};
use super::{Tree, What, Wrong};

/// Parses an expression. `words` are the devices with names longer than a letter; `ram` need not be among them.
///
/// # Panics
/// If a word is not a small letter followed by small letters or digits, or begins with a letter that can precede
/// another device. That is a bug of the caller.
pub fn parse(text: &str, words: &[&str]) -> Result<Tree, Wrong> {
    for word in words {
        let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_word = word.len() > 1 && word.starts_with(|c: char| c.is_ascii_lowercase());
        assert!(
            is_word && word.bytes().all(is_part) && !word.starts_with(|c| OLD.contains(c)),
            "`{word}` cannot be a word of expressions"
        );
    }
    let mut parser = ExpressionParser { text, words, at: 0, devices: 0, depth: 0, list: false, iter: None };
    if text.len() > TEXT_MOST {
        return Err(parser.wrong(TEXT_MOST, format!("an expression has at most {TEXT_MOST} bytes")));
    }
    let tree = parser.device()?;
    parser.blanks();
    if parser.at < text.len() {
        let text = format!("expected the end, not {}", parser.here());
        return Err(parser.wrong(parser.at, text));
    }
    Ok(tree)
}

struct ExpressionParser<'a> {
    text: &'a str,
    words: &'a [&'a str],
    at: usize,
    devices: usize,
    depth: usize,
    /// Inside a list; its devices may be repeated.
    list: bool,
    iter: Option<ListIterator>,
}

/// The iterator of the list device that is being parsed.
#[derive(Clone, Copy)]
struct ListIterator {
    /// Its position, from `<` to after `>`.
    at: usize,
    end: usize,
    now: u64,
    last: u64,
}

impl ExpressionParser<'_> {
    fn device(&mut self) -> Result<Tree, Wrong> {
        self.blanks();
        let at = self.at;
        self.devices += 1;
        if self.devices > DEVICES_MOST {
            return Err(self.wrong(at, format!("more than {DEVICES_MOST} devices")));
        }
        self.depth += 1;
        if self.depth > DEPTH_MOST {
            return Err(self.wrong(at, format!("more than {DEPTH_MOST} devices within each other")));
        }
        let tree = self.what().map(|what| match what {
            // Brackets around a single device.
            What::Of("(" | "[" | "{", mut of) if of.len() == 1 => Tree { at, ..of.remove(0) },
            what => Tree { at, what },
        });
        self.depth -= 1;
        tree
    }

    fn what(&mut self) -> Result<What, Wrong> {
        let at = self.at;
        let word = self.word();
        if let Some((name, open, close)) = LISTS.iter().find(|(name, ..)| *name == word) {
            if name.len() > 1 {
                self.blanks();
                self.expect(*open)?;
            }
            return Ok(What::Of(name, self.list(*close)?));
        }
        if let Some((name, count)) = PREFIXES.iter().find(|(name, _)| *name == word) {
            let of = (0..*count).map(|_| self.device()).collect::<Result<_, _>>()?;
            return Ok(What::Of(name, of));
        }
        if ALONE.contains(&word.as_str()) {
            return Ok(What::Leaf(word, Arg::None));
        }
        if word == "p" {
            let of = Box::new(self.device()?);
            self.blanks();
            if self.peek() == Some('"') {
                return Ok(What::Named(of, self.quoted()?));
            }
            let base = self.number("a number or \"name\" of a partition")?;
            self.expect('.')?;
            return Ok(What::Part(of, base, self.number("a number")?));
        }
        if word == BUFFER {
            self.blanks();
            let at = self.at;
            let number = self.number("a number of bytes, as 64M")?;
            let bytes = number.checked_mul(1 << self.unit());
            let bytes = bytes.ok_or_else(|| self.wrong(at, "more bytes than can be counted".into()))?;
            return Ok(What::Buffer(bytes, Box::new(self.device()?)));
        }
        if word.is_empty() || !word.starts_with(|c: char| c.is_ascii_lowercase()) {
            self.at = at;
            let text =
                format!("expected a device (a letter, a word, or one of `( [ {{`), not {}", self.here());
            return Err(self.wrong(at, text));
        }
        let arg = match self.peek() {
            Some('"') => Arg::Text(self.quoted()?),
            Some('/') => Arg::Text(self.path()?),
            _ => {
                let mut numbers = vec![self.number(&format!("a number or \"name\" behind `{word}`"))?];
                while self.peek() == Some('.') && numbers.len() < 3 {
                    self.at += 1;
                    numbers.push(self.number("a number")?);
                }
                Arg::Numbers(numbers)
            }
        };
        Ok(What::Leaf(word, arg))
    }

    /// Returns the power of two of the unit after a number of bytes; 0 without a unit.
    fn unit(&mut self) -> u32 {
        let mut rest = self.text[self.at..].chars();
        let (Some(unit), after) = (rest.next(), rest.next()) else { return 0 };
        // A small letter may begin the next device: `buffer 64p(w0)0.50`.
        let is_argument = |c: char| c.is_ascii_alphanumeric() || "\"/<".contains(c);
        let is_device = unit.is_ascii_lowercase() && (OLD.contains(unit) || after.is_some_and(is_argument));
        let power = nine_text::size_unit(unit).filter(|_| !is_device);
        self.at += usize::from(power.is_some());
        power.unwrap_or(0)
    }

    /// Takes the longest known word, or else one character.
    fn word(&mut self) -> String {
        let rest = &self.text[self.at..];
        let words =
            self.words.iter().copied().chain(["bare", "ro", BUFFER]).filter(|word| rest.starts_with(word));
        let known = words.max_by_key(|word| word.len());
        let word = known.or_else(|| rest.chars().next().map(|c| &rest[..c.len_utf8()])).unwrap_or_default();
        self.at += word.len();
        word.into()
    }

    /// Parses devices up to the closing bracket. A device with an iterator is repeated.
    fn list(&mut self, close: char) -> Result<Vec<Tree>, Wrong> {
        let outer = (std::mem::replace(&mut self.list, true), self.iter.take());
        let mut of = Vec::new();
        loop {
            self.blanks();
            if self.peek() == Some(close) && !of.is_empty() {
                self.at += 1;
                break;
            }
            if self.peek().is_none_or(|c| ")]}".contains(c)) {
                let or = if of.is_empty() { String::new() } else { format!(" or `{close}`") };
                return Err(self.wrong(self.at, format!("expected a device{or}, not {}", self.here())));
            }
            let begin = self.at;
            of.push(self.device()?);
            while let Some(iter) = self.iter.as_mut().filter(|iter| iter.now != iter.last) {
                iter.now = if iter.now < iter.last { iter.now + 1 } else { iter.now - 1 };
                self.at = begin;
                of.push(self.device()?);
            }
            self.iter = None;
        }
        (self.list, self.iter) = outer;
        Ok(of)
    }

    fn number(&mut self, expected: &str) -> Result<u64, Wrong> {
        if self.peek() != Some('<') {
            return self.digits(expected);
        }
        let at = self.at;
        if let Some(iter) = self.iter {
            if iter.at != at {
                return Err(self.wrong(at, "a second iterator in one device of a list".into()));
            }
            self.at = iter.end;
            return Ok(iter.now);
        }
        if !self.list {
            return Err(
                self.wrong(at, "an iterator stands in ( ), [ ] or { }, whose devices it repeats".into())
            );
        }
        self.at += 1;
        let now = self.digits("a number")?;
        self.expect('-')?;
        let last = self.digits("a number")?;
        self.expect('>')?;
        self.iter = Some(ListIterator { at, end: self.at, now, last });
        Ok(now)
    }

    fn digits(&mut self, expected: &str) -> Result<u64, Wrong> {
        let rest = &self.text[self.at..];
        let len = rest.bytes().take_while(u8::is_ascii_digit).count();
        if len == 0 {
            return Err(self.wrong(self.at, format!("expected {expected}, not {}", self.here())));
        }
        let number = rest[..len].parse();
        let number = number.map_err(|_| self.wrong(self.at, format!("`{}` is too large", &rest[..len])))?;
        self.at += len;
        Ok(number)
    }

    fn quoted(&mut self) -> Result<String, Wrong> {
        let at = self.at;
        let rest = &self.text[at + 1..];
        let Some(len) = rest.find(['"']) else {
            return Err(self.wrong(at, "no `\"` ends this".into()));
        };
        let name = &rest[..len];
        if let Some(bad) = name.find(char::is_control) {
            return Err(self.wrong(at + 1 + bad, "a control character in a name".into()));
        }
        if name.is_empty() {
            return Err(self.wrong(at, "an empty name".into()));
        }
        self.at += len + 2;
        Ok(name.into())
    }

    fn path(&mut self) -> Result<String, Wrong> {
        let rest = &self.text[self.at..];
        let ends = |c: char| c.is_whitespace() || "()[]{}<>\"".contains(c);
        let path = &rest[..rest.find(ends).unwrap_or(rest.len())];
        if let Some(bad) = path.find(char::is_control) {
            return Err(self.wrong(self.at + bad, "a control character in a name".into()));
        }
        self.at += path.len();
        Ok(path.into())
    }

    fn expect(&mut self, wanted: char) -> Result<(), Wrong> {
        if self.peek() != Some(wanted) {
            return Err(self.wrong(self.at, format!("expected `{wanted}`, not {}", self.here())));
        }
        self.at += wanted.len_utf8();
        Ok(())
    }

    fn blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    /// Returns the character here, for messages.
    fn here(&self) -> String {
        self.peek().map_or_else(|| "the end".into(), |c| format!("`{}`", c.escape_debug()))
    }

    fn wrong(&self, at: usize, text: String) -> Wrong {
        Wrong { expr: Arc::from(self.text), at, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match parse(text, &["ram", "store", "s3"]) {
            Ok(tree) => tree.to_string(),
            Err(wrong) => wrong.to_string(),
        }
    }

    #[test]
    fn expressions_of_old_file_servers() {
        for (text, wanted) in [
            ("cp(e565.0)0.3276800{e565.1e545.1}", "cp(e565.0)0.3276800{e565.1e545.1}"),
            ("ce565.0{e565.1e545.1}", "ce565.0{e565.1e545.1}"),
            ("cpw00.25j(w5w3w4)(r<0-3>)", "cp(w0)0.25"),
            ("cp(w0)0.25j(w5w3w4)(r<0-3>)", "cp(w0)0.25j(w5w3w4)(r0r1r2r3)"),
            ("[h<3-1>.0]", "[h3.0h2.0h1.0]"),
            ("(p(w0)<0-1>.50)", "(p(w0)0.50p(w0)1.50)"),
            ("((w1.2.3))", "w1.2.3"),
            ("fpw\"a b\"0.100", "fp(w\"a b\")0.100"),
            ("fw/tmp/x", "fw\"/tmp/x\""),
            ("(o n)", "(on)"),
            ("xn", "xn"),
            ("pw1\"fossil\"", "p(w1)\"fossil\""),
            ("{ram7 ro(store\"k\")}", "{ram7rostore\"k\"}"),
            ("bare{w1}", "bare{w1}"),
            ("c w1 s3\"attic/a?size=1T&region=x\"", "cw1s3\"attic/a?size=1T&region=x\""),
            ("[(w<0-1>)(w<2-3>)]", "[(w0w1)(w2w3)]"),
            ("b5", "b5"),
            ("buffer 64M{w1 w2}", "buffer 64M {w1w2}"),
            ("buffer 64m{w1 w2}", "buffer 64M {w1w2}"),
            ("buffer 2t w1", "buffer 2T w1"),
            ("buffer 64m1", "buffer 64 m1"),
            ("buffer 64p(w0)0.50", "buffer 64 p(w0)0.50"),
            ("bare{buffer1048576e1.0 buffer 3000 n}", "bare{buffer 1M e1.0buffer 3000 n}"),
            ("(buffer <1-2>K w0)", "(buffer 1K w0buffer 2K w0)"),
        ] {
            if text != "cpw00.25j(w5w3w4)(r<0-3>)" {
                assert_eq!(shown(text), wanted, "{text}");
            } else {
                // A device that ends in a number would take the numbers of its partition.
                assert!(
                    shown(text)
                        .starts_with("column 9: expected a number or \"name\" of a partition, not `j`")
                );
            }
        }
    }

    #[test]
    fn what_is_wrong_is_pointed_at() {
        for (text, column, said) in [
            ("", 1, "expected a device (a letter, a word, or one of `( [ {`), not the end"),
            ("{e1.0", 6, "expected a device or `}`, not the end"),
            ("{e1.0)", 6, "expected a device or `}`, not `)`"),
            ("()", 2, "expected a device, not `)`"),
            ("e1.", 4, "expected a number, not the end"),
            ("ew", 2, "expected a number or \"name\" behind `e`, not `w`"),
            ("cw0", 4, "expected a device (a letter, a word, or one of `( [ {`), not the end"),
            ("w0w1", 3, "expected the end, not `w`"),
            ("é", 1, "expected a device (a letter, a word, or one of `( [ {`), not `é`"),
            ("(w\"é\"é)", 6, "expected a device (a letter, a word, or one of `( [ {`), not `é`"),
            ("w<0-1>", 2, "an iterator stands in ( ), [ ] or { }, whose devices it repeats"),
            ("(w<0-1>.<0-1>)", 9, "a second iterator in one device of a list"),
            ("(w<01>)", 6, "expected `-`, not `>`"),
            ("w\"x", 2, "no `\"` ends this"),
            ("w99999999999999999999", 2, "`99999999999999999999` is too large"),
            ("(w<0-9999>)", 2, "more than 256 devices"),
            ("buffer", 7, "expected a number of bytes, as 64M, not the end"),
            ("buffer 1M", 10, "expected a device (a letter, a word, or one of `( [ {`), not the end"),
            ("buffer 99999999T w1", 8, "more bytes than can be counted"),
            ("pw1.2.30", 9, "expected a number or \"name\" of a partition, not the end"),
        ] {
            let wrong = parse(text, &["ram"]).expect_err(text);
            assert_eq!((wrong.column(), wrong.text.as_str()), (column, said), "{text}");
        }
        let deep = "f".repeat(40);
        assert!(
            shown(&deep).starts_with("column 33: more than 32 devices within each other"),
            "{}",
            shown(&deep)
        );
        assert_eq!(shown("{e1.0)"), "column 6: expected a device or `}`, not `)`\n    {e1.0)\n         ^");
    }
}
