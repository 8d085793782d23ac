//! The stream formats outside 9P messages: the offer in an Rstream, and the first bytes of a data connection.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The first bytes of a data connection. Read as a `size[4]` they exceed every message.
pub const MAGIC: [u8; 4] = *b"9PS1";
/// Length of a token in hexadecimal digits.
pub const TOKEN: usize = 32;

/// Encodes the data of an Rstream: a dial string, a space, a one-use token.
pub fn offer(dial: &str, token: [u8; 16]) -> Vec<u8> {
    let hex: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{dial} {hex}").into_bytes()
}

/// Decodes an offer: its dial string, and the bytes that the data connection must start with.
pub fn accept(offer: &[u8]) -> Option<(&str, Vec<u8>)> {
    let (dial, token) = core::str::from_utf8(offer).ok()?.split_once(' ')?;
    let good = !dial.is_empty() && token.len() == TOKEN && token.bytes().all(|b| b.is_ascii_hexdigit());
    good.then(|| [&MAGIC[..], token.as_bytes()].concat()).map(|begin| (dial, begin))
}

/// Decodes the token that a data connection presents. `None` if it is not lower-case hexadecimal.
pub fn token(shown: &[u8; TOKEN]) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(shown.chunks(2)) {
        let digit = |b: u8| (b as char).to_digit(16).filter(|_| !b.is_ascii_uppercase());
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_that_is_accepted_shows_its_token() {
        let made = core::array::from_fn(|i| (i * 17) as u8);
        let offer = offer("tcp!*!564", made);
        let (dial, begin) = accept(&offer).expect("an offer");
        assert_eq!((dial, begin.len()), ("tcp!*!564", MAGIC.len() + TOKEN));
        let shown = begin.strip_prefix(&MAGIC).and_then(<[u8]>::first_chunk).expect("a token");
        assert_eq!(token(shown), Some(made));
    }

    #[test]
    fn what_is_no_dial_string_and_token_is_no_offer() {
        let hex = "0123456789abcdef0123456789abcdef";
        for text in [
            "",
            " ",
            "tcp!*!564",
            hex,
            "tcp!*!564 0123",
            &format!(" {hex}"),
            &format!("x {hex}0"),
            &format!("x  {hex}"),
        ] {
            assert_eq!(accept(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(accept(b"\xff 0123456789abcdef0123456789abcdef"), None);
        assert_eq!(token(b"0123456789ABCDEF0123456789abcdef"), None);
        assert_eq!(token(b"0123456789abcdeg0123456789abcdef"), None);
    }
}
