//! Words of a text as Plan 9 writes them (quote(2)): between blanks; what is between quotes is one word, or part of
//! one, and a doubled quote there is a quote.

use nine_proto::{Errno, Error, Result};

/// The words of a text.
///
/// # Errors
/// A quote that is not closed.
pub fn words(text: &str) -> Result<Vec<String>> {
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
    if quoted {
        return Err(Error::new(Errno::EINVAL, "a quote is not closed"));
    }
    words.extend(word);
    Ok(words)
}

/// A text as one word.
pub fn quote(text: &str) -> String {
    match text.is_empty() || text.contains(|c: char| c.is_whitespace() || c == '\'') {
        true => format!("'{}'", text.replace('\'', "''")),
        false => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_one_word_and_a_doubled_quote_is_a_quote() {
        for (text, is) in [
            ("", &[][..]),
            ("  a  b\t c\n", &["a", "b", "c"]),
            ("connect '/run/a b'", &["connect", "/run/a b"]),
            ("'it''s' it''s", &["it's", "its"]),
            ("/run/'a b'/c", &["/run/a b/c"]),
            ("a '' b", &["a", "", "b"]),
            ("''''", &["'"]),
        ] {
            assert_eq!(words(text).unwrap(), is, "{text}");
        }
        for text in ["'", "a 'b", "'a''"] {
            assert!(words(text).is_err(), "{text}");
        }
        for word in ["", "a", "a b", "it's", "'", "''", " ", "a\tb"] {
            assert_eq!(words(&quote(word)).unwrap(), [word]);
        }
        assert_eq!(quote("/run/s"), "/run/s");
    }
}
