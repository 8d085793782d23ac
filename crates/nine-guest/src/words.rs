//! Splits a text into words with Plan 9's quoting (docs/guest.md). Words are separated by blanks. Text between quotes
//! is a word or a part of one, and a doubled quote in it is a quote.

use alloc::string::String;
use alloc::vec::Vec;

/// Returns the words of a text. An unclosed quote ends with the text.
pub(crate) fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<String>, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\'' if quoted && chars.next_if_eq(&'\'').is_some() => word.get_or_insert_default().push('\''),
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            c if c.is_whitespace() && !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_one_word_and_a_doubled_quote_is_a_quote() {
        for (text, is) in [
            ("", &[][..]),
            ("  cat  a\tb\n", &["cat", "a", "b"]),
            ("cat 'a b' '' 'it''s'\n", &["cat", "a b", "", "it's"]),
            (
                "'HOME=/usr/glenda and more'\n'A=two\nlines'\nB=1",
                &["HOME=/usr/glenda and more", "A=two\nlines", "B=1"],
            ),
            ("''''", &["'"]),
            ("a 'b c", &["a", "b c"]),
        ] {
            assert_eq!(words(text), is, "{text}");
        }
    }
}
