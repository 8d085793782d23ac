//! Words of a text in Plan 9's quoting (quote(2)). Blanks separate words. Quoted text is a word or part of one, and
//! inside quotes a doubled quote stands for one quote.

use nine_proto::{Errno, Error, Result};

/// Splits a text into its words.
///
/// # Errors
/// EINVAL if a quote is not closed.
pub fn words(text: &str) -> Result<Vec<String>> {
    let is_text = "what is between blanks and quotes, which are ASCII, is text";
    Ok(words_of(text.as_bytes())?.into_iter().map(|word| String::from_utf8(word).expect(is_text)).collect())
}

/// Splits bytes that need not be UTF-8, such as names on Linux, into words.
///
/// # Errors
/// EINVAL if a quote is not closed.
pub fn words_of(bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<Vec<u8>>, false);
    let mut bytes = bytes.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\'' if quoted && bytes.next_if_eq(&b'\'').is_some() => word.get_or_insert_default().push(b'\''),
            b'\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            byte if is_blank(byte) && !quoted => words.extend(word.take()),
            byte => word.get_or_insert_default().push(byte),
        }
    }
    if quoted {
        return Err(Error::new(Errno::EINVAL, "a quote is not closed"));
    }
    words.extend(word);
    Ok(words)
}

/// Quotes a text if necessary, so that it is one word.
pub fn quote(text: &str) -> String {
    match text.is_empty() || text.bytes().any(needs_quotes) {
        true => format!("'{}'", text.replace('\'', "''")),
        false => text.into(),
    }
}

/// Appends bytes as one word, quoted if necessary.
pub fn quote_into(bytes: &[u8], out: &mut Vec<u8>) {
    let quoted = bytes.is_empty() || bytes.iter().copied().any(needs_quotes);
    out.extend(quoted.then_some(b'\''));
    for &byte in bytes {
        out.extend((byte == b'\'').then_some(byte));
        out.push(byte);
    }
    out.extend(quoted.then_some(b'\''));
}

fn needs_quotes(byte: u8) -> bool {
    is_blank(byte) || byte == b'\''
}

/// Whether isspace(3) accepts it, in ASCII.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
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
        for word in ["", "a", "a b", "it's", "'", "''", " ", "a\tb", "\u{b}", "ä\u{a0}ö"] {
            assert_eq!(words(&quote(word)).unwrap(), [word]);
            let mut bytes = Vec::new();
            quote_into(word.as_bytes(), &mut bytes);
            assert_eq!(bytes, quote(word).as_bytes());
        }
        assert_eq!(quote("/run/s"), "/run/s");
    }
}
