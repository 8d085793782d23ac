//! A small lexer for Rust source: enough to tell code, comments and strings apart.
//!
//! In: the text of a file. Out: its tokens in order, each with the lines it covers. White space and block comments are
//! dropped. Always holds: no input makes the lexer panic; an unclosed literal or comment ends with the file.

/// The kinds of tokens that the measures distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A name or a keyword. Raw identifiers keep their `r#`.
    Ident,
    Lifetime,
    /// A string, a character or a number.
    Literal,
    /// One character of punctuation.
    Punct,
    /// A line comment that is the first thing on its line, with its slashes.
    Comment,
    /// A line comment behind code, with its slashes.
    TrailingComment,
}

/// One token, with the first and the last line that it covers, counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceToken<'a> {
    pub kind: TokenKind,
    pub text: &'a str,
    pub line: usize,
    pub end_line: usize,
}

impl SourceToken<'_> {
    /// Whether this is a comment of either kind.
    pub fn is_comment(&self) -> bool {
        matches!(self.kind, TokenKind::Comment | TokenKind::TrailingComment)
    }

    /// Whether this is a name or keyword, or a punctuation mark, with this text.
    pub fn is(&self, text: &str) -> bool {
        matches!(self.kind, TokenKind::Ident | TokenKind::Punct) && self.text == text
    }
}

/// Splits a file into tokens.
pub fn tokens(text: &str) -> Vec<SourceToken<'_>> {
    let mut tokens: Vec<SourceToken> = Vec::with_capacity(text.len() / 4);
    let (mut at, mut line) = (0, 1);
    while let Some(&byte) = text.as_bytes().get(at) {
        if byte == b'\n' {
            line += 1;
        }
        if byte.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let rest = &text[at..];
        let (kind, length) = token_at(rest);
        let newlines = match kind {
            None | Some(TokenKind::Literal) => rest[..length].bytes().filter(|b| *b == b'\n').count(),
            _ => 0,
        };
        let kind = match kind {
            Some(TokenKind::Comment) if tokens.last().is_some_and(|last| last.end_line == line) => {
                Some(TokenKind::TrailingComment)
            }
            kind => kind,
        };
        if let Some(kind) = kind {
            tokens.push(SourceToken { kind, text: &rest[..length], line, end_line: line + newlines });
        }
        line += newlines;
        at += length;
    }
    tokens
}

/// The kind and the length of the token that starts here; a block comment has no kind.
fn token_at(rest: &str) -> (Option<TokenKind>, usize) {
    let bytes = rest.as_bytes();
    match bytes[0] {
        b'/' if bytes.get(1) == Some(&b'/') => {
            (Some(TokenKind::Comment), rest.find('\n').unwrap_or(rest.len()))
        }
        b'/' if bytes.get(1) == Some(&b'*') => (None, block_comment(bytes)),
        b'"' => (Some(TokenKind::Literal), quoted(bytes, 1, b'"')),
        b'\'' => character_or_lifetime(rest),
        b'0'..=b'9' => (Some(TokenKind::Literal), number(bytes)),
        b'b' | b'c' | b'r' => match prefixed_literal(rest) {
            Some(length) => (Some(TokenKind::Literal), length),
            None => (Some(TokenKind::Ident), identifier(rest)),
        },
        b'_' | b'a'..=b'z' | b'A'..=b'Z' | 0x80.. => match identifier(rest) {
            0 => (Some(TokenKind::Punct), rest.chars().next().map_or(1, char::len_utf8)),
            length => (Some(TokenKind::Ident), length),
        },
        _ => (Some(TokenKind::Punct), 1),
    }
}

/// The length of a block comment. Block comments nest.
fn block_comment(bytes: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

/// The length of a literal with escapes; its content starts at `from`.
fn quoted(bytes: &[u8], from: usize, quote: u8) -> usize {
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The length of a literal with a prefix: `b".."`, `c".."`, `r".."`, `br#".."#`, `cr".."` or `b'.'`.
fn prefixed_literal(rest: &str) -> Option<usize> {
    let bytes = rest.as_bytes();
    let is_raw = |at: usize| bytes.get(at) == Some(&b'r');
    let prefix = usize::from(bytes[0] != b'r');
    if is_raw(prefix) {
        let hashes = bytes[prefix + 1..].iter().take_while(|b| **b == b'#').count();
        let open = prefix + 1 + hashes;
        if bytes.get(open) != Some(&b'"') {
            return None;
        }
        let close = format!("\"{}", "#".repeat(hashes));
        return Some(rest[open + 1..].find(&close).map_or(rest.len(), |at| open + 1 + at + close.len()));
    }
    match bytes.get(1) {
        Some(b'"') => Some(quoted(bytes, 2, b'"')),
        Some(b'\'') if bytes[0] == b'b' => Some(quoted(bytes, 2, b'\'')),
        _ => None,
    }
}

fn character_or_lifetime(rest: &str) -> (Option<TokenKind>, usize) {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) => (Some(TokenKind::Literal), quoted(rest.as_bytes(), 1, b'\'')),
        (_, Some((at, '\''))) => (Some(TokenKind::Literal), at + 1),
        (Some((at, first)), _) if is_name_start(first) => {
            (Some(TokenKind::Lifetime), at + identifier(&rest[at..]))
        }
        _ => (Some(TokenKind::Punct), 1),
    }
}

/// The length of a number; a range such as `0..9` ends before its dots.
fn number(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        let is_fraction = *byte == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
        if !byte.is_ascii_alphanumeric() && *byte != b'_' && !is_fraction {
            break;
        }
        at += 1;
    }
    at
}

/// The length of a name; `r#` before it belongs to it. Zero if no name starts here.
fn identifier(rest: &str) -> usize {
    let raw = if rest.starts_with("r#") && rest[2..].starts_with(is_name_start) { 2 } else { 0 };
    if !rest[raw..].starts_with(is_name_start) {
        return 0;
    }
    let bytes = rest.as_bytes();
    let mut at = raw;
    while bytes.get(at).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_') {
        at += 1;
    }
    // The rest of a name that is not ASCII alone.
    let is_end = |c: char| !c.is_alphanumeric() && c != '_';
    rest[at..].find(is_end).map_or(rest.len(), |length| at + length)
}

fn is_name_start(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens as `kind:text`, with one letter for the kind.
    fn spelled(text: &str) -> Vec<String> {
        let letter = |kind| match kind {
            TokenKind::Ident => 'i',
            TokenKind::Lifetime => 't',
            TokenKind::Literal => 'l',
            TokenKind::Punct => 'p',
            TokenKind::Comment => 'c',
            TokenKind::TrailingComment => 'e',
        };
        tokens(text).iter().map(|token| format!("{}:{}", letter(token.kind), token.text)).collect()
    }

    #[test]
    fn strings_may_hold_comments_and_escaped_quotes() {
        assert_eq!(spelled(r#"f("a // \" b") // c"#), ["i:f", "p:(", r#"l:"a // \" b""#, "p:)", "e:// c"]);
        assert_eq!(spelled(r#""\\" x"#), [r#"l:"\\""#, "i:x"]);
        assert_eq!(spelled(r#"b"\"" c"x" y"#), [r#"l:b"\"""#, r#"l:c"x""#, "i:y"]);
    }

    #[test]
    fn raw_strings_end_at_their_own_number_of_hashes() {
        assert_eq!(spelled(r###"r#"a " \"# x"###), [r###"l:r#"a " \"#"###, "i:x"]);
        assert_eq!(spelled(r###"br##"a "# b"## x"###), [r###"l:br##"a "# b"##"###, "i:x"]);
        assert_eq!(spelled(r#"cr"\" x"#), [r#"l:cr"\""#, "i:x"]);
        assert_eq!(spelled("r#struct raw br"), ["i:r#struct", "i:raw", "i:br"]);
    }

    #[test]
    fn block_comments_nest() {
        assert_eq!(spelled("a /* b /* c */ \" d */ e"), ["i:a", "i:e"]);
        assert_eq!(spelled("a /* /* */"), ["i:a"]);
        assert_eq!(spelled("a /*/ b */ c"), ["i:a", "i:c"]);
    }

    #[test]
    fn characters_are_not_lifetimes() {
        assert_eq!(spelled("'\"' '\\'' b'\\'' x"), ["l:'\"'", "l:'\\''", "l:b'\\''", "i:x"]);
        assert_eq!(spelled("'\\u{1F600}' 'é' 'a' '_'"), ["l:'\\u{1F600}'", "l:'é'", "l:'a'", "l:'_'"]);
        assert_eq!(spelled("&'a str"), ["p:&", "t:'a", "i:str"]);
        assert_eq!(spelled("'outer: loop"), ["t:'outer", "p::", "i:loop"]);
        assert_eq!(spelled("<'_, 'static>"), ["p:<", "t:'_", "p:,", "t:'static", "p:>"]);
    }

    #[test]
    fn numbers_end_before_ranges_and_methods() {
        assert_eq!(spelled("0..9"), ["l:0", "p:.", "p:.", "l:9"]);
        assert_eq!(spelled("1.5_f32 0x_ff.max"), ["l:1.5_f32", "l:0x_ff", "p:.", "i:max"]);
    }

    #[test]
    fn tokens_know_their_lines() {
        let lines: Vec<_> = tokens("a\n\"x\ny\" // t\n// o\n/* \n */ b // u")
            .iter()
            .map(|token| (token.kind, token.line, token.end_line))
            .collect();
        let expected = [
            (TokenKind::Ident, 1, 1),
            (TokenKind::Literal, 2, 3),
            (TokenKind::TrailingComment, 3, 3),
            (TokenKind::Comment, 4, 4),
            (TokenKind::Ident, 6, 6),
            (TokenKind::TrailingComment, 6, 6),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn unclosed_literals_end_with_the_file() {
        for text in ["\"a", "r#\"a\"", "/* a", "'", "'\\", "b'", "\"\\", "b\"", "r#", "é“"] {
            let covered = tokens(text);
            assert!(covered.iter().all(|token| !token.text.is_empty()), "{text}");
        }
    }
}
