//! Splits a line into words, as rc does. Blanks separate words. `'...'` quotes text literally (a quote in it is written
//! twice). `#` starts a comment. `$NAME` and `${NAME}` yield the value of a variable, always as one word.

use std::fmt;

/// One word.
#[derive(Debug)]
pub(super) struct ScriptWord {
    pub(super) text: String,
    pub(super) sort: WordKind,
}

/// The meaning of a word beside its text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WordKind {
    Plain,
    /// It starts with an unquoted `-` and has more characters.
    Flag,
    /// It is the first word and starts with an unquoted `NAME=`. Its text is the part after that.
    Assignment(String),
}

impl ScriptWord {
    pub(super) fn is_flag(&self) -> bool {
        self.sort == WordKind::Flag
    }

    /// Whether it is the Ethernet address of a console listener.
    pub(super) fn is_console(&self) -> bool {
        self.text.starts_with("cec!")
    }

    /// Whether it is the address of a web listener.
    pub(super) fn is_web(&self) -> bool {
        ["http!", "https!", "http://", "https://"].iter().any(|begin| self.text.starts_with(begin))
    }
}

/// Splits a line into words. `Err` is a message for the user.
pub(super) fn words(
    line: &str,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<ScriptWord>, String> {
    let mut words: Vec<ScriptWord> = Vec::new();
    let mut rest = line.trim_start_matches(blank);
    while !rest.is_empty() && !rest.starts_with('#') {
        let mut sort = if rest.starts_with('-') { WordKind::Flag } else { WordKind::Plain };
        let name = name_of(rest);
        if words.is_empty() && !name.is_empty() && rest[name.len()..].starts_with('=') {
            sort = WordKind::Assignment(name.into());
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
        if sort == WordKind::Flag && text.len() < 2 {
            sort = WordKind::Plain;
        }
        words.push(ScriptWord { text, sort });
        rest = rest.trim_start_matches(blank);
    }
    Ok(words)
}

/// Takes `'...'` from the start.
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

/// Takes `$NAME` or `${NAME}` from the start.
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

/// Returns the variable name at the start, or an empty string.
fn name_of(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    if text.starts_with(|c: char| c.is_ascii_digit()) { "" } else { &text[..end] }
}

fn blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r')
}

/// Formats a word as it is written in a script.
pub fn quote(word: &str) -> impl fmt::Display {
    struct QuotedWord<'a>(&'a str);
    impl fmt::Display for QuotedWord<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let means_itself = |c: char| !(blank(c) || matches!(c, '\'' | '$' | '=' | '#'));
            if !self.0.is_empty() && !self.0.starts_with('-') && self.0.chars().all(means_itself) {
                return f.write_str(self.0);
            }
            write!(f, "'{}'", self.0.replace('\'', "''"))
        }
    }
    QuotedWord(word)
}

/// Maximum length of a word, in bytes.
const WORD_MAX: usize = 4096;
