//! The words of a line, as rc has them: blanks between, `'...'` around what is meant as it stands (a quote in it is
//! written twice), `#` for the rest of the line, `$NAME` and `${NAME}` for the value of a variable: always one word.

use std::fmt;

/// One word.
#[derive(Debug)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) sort: Sort,
}

/// What a word may mean beside itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Plain,
    /// It began with a bare `-` and has more.
    Flag,
    /// It is the first and began with a bare `NAME=`; its text is what came after.
    Assignment(String),
}

impl Word {
    pub(super) fn is_flag(&self) -> bool {
        self.sort == Sort::Flag
    }

    /// An Ethernet for a console.
    pub(super) fn is_console(&self) -> bool {
        self.text.starts_with("cec!")
    }

    /// An address of the web.
    pub(super) fn is_web(&self) -> bool {
        ["http!", "https!", "http://", "https://"].iter().any(|begin| self.text.starts_with(begin))
    }
}

/// The words of a line.
pub(super) fn words(line: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Vec<Word>, String> {
    let mut words: Vec<Word> = Vec::new();
    let mut rest = line.trim_start_matches(blank);
    while !rest.is_empty() && !rest.starts_with('#') {
        let mut sort = if rest.starts_with('-') { Sort::Flag } else { Sort::Plain };
        let name = name_of(rest);
        if words.is_empty() && !name.is_empty() && rest[name.len()..].starts_with('=') {
            sort = Sort::Assignment(name.into());
            rest = &rest[name.len() + 1..];
        }
        let mut text = String::new();
        while let Some(c) = rest.chars().next().filter(|c| !blank(*c)) {
            rest = match c {
                '\'' => quoted(rest, &mut text)?,
                '$' => expand(rest, &mut text, variable)?,
                c if c.is_control() => return Err("a control character; text is due".into()),
                c => {
                    text.push(c);
                    &rest[c.len_utf8()..]
                }
            };
            if text.len() > WORD_MAX {
                return Err(format!("a word is too long; it may have {WORD_MAX} bytes"));
            }
        }
        if sort == Sort::Flag && text.len() < 2 {
            sort = Sort::Plain;
        }
        words.push(Word { text, sort });
        rest = rest.trim_start_matches(blank);
    }
    Ok(words)
}

/// Takes `'...'` from the beginning.
fn quoted<'a>(rest: &'a str, text: &mut String) -> Result<&'a str, String> {
    let mut rest = &rest[1..];
    loop {
        let Some(end) = rest.find('\'') else {
            return Err("a `'` without its end; another one is due on the same line".into());
        };
        let inside = &rest[..end];
        if inside.contains(char::is_control) {
            return Err("a control character; text is due".into());
        }
        text.push_str(inside);
        rest = &rest[end + 1..];
        match rest.strip_prefix('\'') {
            Some(more) => {
                text.push('\'');
                rest = more;
            }
            None => return Ok(rest),
        }
    }
}

/// Takes `$NAME` or `${NAME}` from the beginning.
fn expand<'a>(
    rest: &'a str,
    text: &mut String,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<&'a str, String> {
    let after = &rest[1..];
    let (name, after) = match after.strip_prefix('{') {
        Some(inside) => match inside.split_once('}') {
            Some((name, after)) if !name.is_empty() && name_of(name) == name => (name, after),
            _ => return Err("`${` without a name and `}`; write ${NAME}".into()),
        },
        None => after.split_at(name_of(after).len()),
    };
    if name.is_empty() {
        return Err("`$` without a name; write $NAME, or '$' for a dollar".into());
    }
    let value = variable(name).ok_or_else(|| {
        format!("`${name}` is set nowhere; a line {name}=VALUE before this one, or the environment, sets it")
    })?;
    if value.contains(char::is_control) {
        return Err(format!("`${name}` has a control character in it; text is due"));
    }
    text.push_str(&value);
    Ok(after)
}

/// The name that stands at the beginning, or nothing.
fn name_of(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    if text.starts_with(|c: char| c.is_ascii_digit()) { "" } else { &text[..end] }
}

fn blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r')
}

/// A word as it is written in a script.
pub fn quote(word: &str) -> impl fmt::Display {
    struct Quoted<'a>(&'a str);
    impl fmt::Display for Quoted<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let means_itself = |c: char| !(blank(c) || matches!(c, '\'' | '$' | '=' | '#'));
            if !self.0.is_empty() && !self.0.starts_with('-') && self.0.chars().all(means_itself) {
                return f.write_str(self.0);
            }
            write!(f, "'{}'", self.0.replace('\'', "''"))
        }
    }
    Quoted(word)
}

/// Bytes of one word.
const WORD_MAX: usize = 4096;
