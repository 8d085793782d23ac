//! A line typed at a server: its echo, its editing, its end.
//!
//! In: bytes. Out: the echo; complete lines. Always holds: a line has at most [`LINE_MAX`] bytes.

/// Maximum number of bytes in a line. Further bytes are ignored.
pub(crate) const LINE_MAX: usize = 512;

/// The effect of a byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ByteEffect {
    /// No complete line yet.
    More,
    /// A line, without its end.
    Line(Vec<u8>),
    /// ^D on an empty line.
    End,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LineEditor {
    bytes: Vec<u8>,
    /// The last byte was a carriage return: a newline after it belongs to the same line end.
    returned: bool,
}

impl LineEditor {
    /// Handles a typed byte, and appends its echo. `veiled`: each byte is echoed as `#`, and there is no editing.
    pub(crate) fn typed(&mut self, byte: u8, veiled: bool, echo: &mut Vec<u8>) -> ByteEffect {
        let returned = std::mem::replace(&mut self.returned, byte == b'\r');
        match byte {
            b'\n' if returned => {}
            b'\r' | b'\n' => {
                if !veiled {
                    echo.extend(b"\r\n");
                }
                return ByteEffect::Line(std::mem::take(&mut self.bytes));
            }
            // As in Plan 9's servers, every byte belongs to the password.
            _ if veiled => {
                if self.bytes.len() < LINE_MAX {
                    self.bytes.push(byte);
                    echo.push(b'#');
                }
            }
            EOT if self.bytes.is_empty() => return ByteEffect::End,
            BACKSPACE | DELETE => self.take_back(echo),
            KILL => {
                while !self.bytes.is_empty() {
                    self.take_back(echo);
                }
            }
            0..b' ' if byte != b'\t' => {}
            _ if self.bytes.len() == LINE_MAX => echo.push(BELL),
            _ => {
                self.bytes.push(byte);
                echo.push(byte);
            }
        }
        ByteEffect::More
    }

    /// Deletes a character, which may have several bytes.
    fn take_back(&mut self, echo: &mut Vec<u8>) {
        if self.bytes.is_empty() {
            return;
        }
        while self.bytes.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
        echo.extend(b"\x08 \x08");
    }
}

const EOT: u8 = 4;
const BELL: u8 = 7;
const BACKSPACE: u8 = 8;
const KILL: u8 = 0x15;
const DELETE: u8 = 0x7f;

#[cfg(test)]
mod tests {
    use super::*;

    fn type_all(bytes: &[u8], veiled: bool) -> (Vec<ByteEffect>, Vec<u8>) {
        let (mut line, mut echo) = (LineEditor::default(), Vec::new());
        let typed = bytes.iter().map(|byte| line.typed(*byte, veiled, &mut echo));
        let typed = typed.filter(|typed| *typed != ByteEffect::More).collect();
        (typed, echo)
    }

    fn line(text: &str) -> ByteEffect {
        ByteEffect::Line(text.into())
    }

    #[test]
    fn a_line_ends_as_any_machine_ends_it() {
        let (typed, echo) = type_all(b"a\rb\nc\r\n\nd", false);
        assert_eq!(typed, ["a", "b", "c", ""].map(line));
        assert_eq!(echo, b"a\r\nb\r\nc\r\n\r\nd");
    }

    #[test]
    fn what_is_typed_is_taken_back_by_characters_and_as_a_whole() {
        let (typed, echo) = type_all("a\u{e9}\x7f\x08\x08b\x15c\x01d\r".as_bytes(), false);
        assert_eq!(typed, [line("cd")]);
        assert_eq!(String::from_utf8(echo).unwrap(), "a\u{e9}\x08 \x08\x08 \x08b\x08 \x08cd\r\n");
        assert_eq!(type_all(b"\x04", false).0, [ByteEffect::End]);
        assert_eq!(type_all(b"a\x04\r", false).0, [line("a")]);
    }

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(type_all(b"ab\x08\r\n", true), (vec![line("ab\x08")], b"###".to_vec()));
    }

    #[test]
    fn a_long_line_is_answered_by_a_bell() {
        let (typed, echo) = type_all(&[&[b'x'; LINE_MAX + 2][..], b"\r"].concat(), false);
        assert_eq!(typed, [ByteEffect::Line(vec![b'x'; LINE_MAX])]);
        assert_eq!(echo.iter().filter(|byte| **byte == BELL).count(), 2);
    }
}
