//! Names of files, and other text that somebody else has chosen, as people may see them.

use alloc::vec::Vec;
use core::fmt::{self, Write};

/// Whether a character would change how the text around it looks: control characters, line and paragraph separators,
/// and the controls of bidirectional text (Unicode TR36, "Bidirectional Text Spoofing").
pub fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes a character, escaped if it is deceptive.
pub fn escape_char(c: char, out: &mut impl Write) -> fmt::Result {
    if is_deceptive(c) { write!(out, "{}", c.escape_default()) } else { out.write_char(c) }
}

/// A name for people: one line; deceptive characters and bytes that are no UTF-8 are escaped.
pub fn show_name(name: &[u8]) -> impl fmt::Display + '_ {
    struct ShownName<'a>(&'a [u8]);
    impl fmt::Display for ShownName<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            for chunk in self.0.utf8_chunks() {
                chunk.valid().chars().try_for_each(|c| escape_char(c, f))?;
                write!(f, "{}", chunk.invalid().escape_ascii())?;
            }
            Ok(())
        }
    }
    ShownName(name)
}

/// A name for programs: one line; deceptive characters are escaped, and bytes that are no UTF-8 stay as they are.
pub fn name_line(name: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match is_deceptive(c) {
                true => line.extend(c.escape_default().map(|c| c as u8)),
                false => line.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        line.extend_from_slice(chunk.invalid());
    }
    line
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_shown_name_is_one_line_that_reads_from_left_to_right() {
        for (name, text) in [
            ("plain \u{e9}\u{4e2d} \\ \"".as_bytes(), "plain \u{e9}\u{4e2d} \\ \""),
            (b"evil\n- plain", "evil\\n- plain"),
            (b"tab\tand\x1b[31m", "tab\\tand\\u{1b}[31m"),
            ("txt.\u{202e}exe".as_bytes(), "txt.\\u{202e}exe"),
            ("a\u{2066}b\u{2069}\u{200f}\u{61c}".as_bytes(), "a\\u{2066}b\\u{2069}\\u{200f}\\u{61c}"),
            ("a\u{85}b\u{2028}c".as_bytes(), "a\\u{85}b\\u{2028}c"),
            (b"latin \xe9", "latin \\xe9"),
        ] {
            assert_eq!(show_name(name).to_string(), text);
        }
    }

    #[test]
    fn a_line_keeps_bytes_that_are_no_text() {
        assert_eq!(name_line(b"latin \xe9\n\xff"), b"latin \xe9\\n\xff");
        assert_eq!(name_line("\u{4e2d}\u{202e}".as_bytes()), "\u{4e2d}\\u{202e}".as_bytes());
    }
}
