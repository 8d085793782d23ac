//! The keyboard: turns typed bytes into lines.
//!
//! In: typed bytes, and how many bytes a reader wants. Out: the echo for the screen; lines, or single bytes in raw
//! mode. No lock, no clock.
//!
//! Always holds: at most [`INPUT_MAX`] bytes are buffered, including the line being typed. Further bytes are dropped
//! and ring the terminal's bell. The last byte of the buffer is reserved for the end of a line.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// The maximum number of unread bytes.
pub(super) const INPUT_MAX: usize = 16 << 10;

/// See the module.
#[derive(Default)]
pub(super) struct KeyboardInput {
    /// The line being typed.
    line: Vec<u8>,
    ready: VecDeque<InputChunk>,
    /// Bytes of `line` and `ready`; an end of file counts as one.
    kept: usize,
    raw: bool,
    ended: bool,
}

/// Input for one reader, taken in one read or in several.
struct InputChunk {
    /// Empty: an end of file.
    bytes: BytesMut,
    /// Further raw bytes are appended to it.
    raw: bool,
}

impl KeyboardInput {
    /// Handles typed bytes and returns the echo. If `echoes` is false, the echo is at most the bell.
    pub(super) fn typed(&mut self, bytes: &[u8], echoes: bool) -> Vec<u8> {
        let (mut echo, mut dropped) = (Vec::new(), false);
        if self.ended {
            return echo;
        }
        for &byte in bytes {
            dropped |= !self.key(byte, &mut echo);
        }
        if self.raw || !echoes {
            echo.clear();
        }
        if dropped {
            echo.push(BELL);
        }
        echo
    }

    /// Handles one byte. Returns false if there was no room.
    fn key(&mut self, byte: u8, echo: &mut Vec<u8>) -> bool {
        let room = INPUT_MAX - self.kept;
        if self.raw {
            return room > 0 && self.push(&[byte], true);
        }
        match byte {
            b'\n' | b'\r' => {
                if room == 0 {
                    return false;
                }
                self.line.push(b'\n');
                self.kept += 1;
                self.end_line();
                echo.push(b'\n');
            }
            END if self.line.is_empty() => return room > 0 && self.push(b"", false),
            END => self.end_line(),
            KILL => {
                self.kept -= self.line.len();
                self.line.clear();
                echo.extend_from_slice(b"^U\n");
            }
            BACKSPACE | DELETE => {
                let before = self.line.len();
                // Removes the bytes of one UTF-8 character: at most three continuation bytes, and the first byte.
                while self.line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) && before - self.line.len() < 4
                {
                }
                self.kept -= before - self.line.len();
                if self.line.len() < before {
                    echo.extend_from_slice(b"\x08 \x08");
                }
            }
            _ => {
                if room < 2 {
                    return false;
                }
                self.line.push(byte);
                self.kept += 1;
                match byte {
                    // Control characters are shown as ^X, so that the terminal does not interpret them.
                    0..0x20 if byte != b'\t' => echo.extend_from_slice(&[b'^', byte + b'@']),
                    _ => echo.push(byte),
                }
            }
        }
        true
    }

    /// Completes the line being typed.
    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        self.kept -= line.len();
        self.push(&line, false);
    }

    fn push(&mut self, bytes: &[u8], raw: bool) -> bool {
        self.kept += bytes.len().max(1);
        match self.ready.back_mut() {
            Some(last) if raw && last.raw => last.bytes.extend_from_slice(bytes),
            _ => self.ready.push_back(InputChunk { bytes: bytes.into(), raw }),
        }
        true
    }

    /// Switches between raw mode and lines. Raw mode first makes the line typed so far available.
    pub(super) fn set_raw(&mut self, raw: bool) {
        if raw && !self.line.is_empty() {
            self.end_line();
        }
        if let Some(last) = self.ready.back_mut() {
            last.raw &= raw;
        }
        self.raw = raw;
    }

    /// Ends the input.
    pub(super) fn end(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
        self.ended = true;
    }

    /// Takes at most `count` bytes of one line, or of raw input. Empty at an end of file; `None` if nothing was typed
    /// yet.
    pub(super) fn take(&mut self, count: usize) -> Option<Bytes> {
        let Some(first) = self.ready.front_mut() else {
            return self.ended.then(Bytes::new);
        };
        let part = first.bytes.split_to(count.min(first.bytes.len())).freeze();
        self.kept -= part.len().max(1);
        if first.bytes.is_empty() {
            self.ready.pop_front();
        }
        Some(part)
    }
}

const END: u8 = 0x04;
const BELL: u8 = 0x07;
const BACKSPACE: u8 = 0x08;
const KILL: u8 = 0x15;
const DELETE: u8 = 0x7f;

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keys: &mut KeyboardInput, text: &str) -> String {
        String::from_utf8(keys.typed(text.as_bytes(), true)).unwrap()
    }

    fn all(keys: &mut KeyboardInput) -> Vec<String> {
        let texts = std::iter::from_fn(|| keys.take(INPUT_MAX));
        let texts = texts.take(100).map(|text| String::from_utf8(text.to_vec()).unwrap());
        texts.collect()
    }

    #[test]
    fn keys_become_lines_and_are_shown() {
        let mut keys = KeyboardInput::default();
        assert_eq!(typed(&mut keys, "one\rtw"), "one\ntw");
        assert_eq!(all(&mut keys), ["one\n"]);
        assert_eq!(typed(&mut keys, "o\x1b\tx\n\n"), "o^[\tx\n\n");
        assert_eq!(all(&mut keys), ["two\x1b\tx\n", "\n"]);
        assert_eq!(keys.kept, 0);
    }

    #[test]
    fn a_line_is_corrected_until_it_is_whole() {
        let mut keys = KeyboardInput::default();
        assert_eq!(typed(&mut keys, "wrong\x15good\x7f\x08ld\n"), "wrong^U\ngood\x08 \x08\x08 \x08ld\n");
        assert_eq!(typed(&mut keys, "\x08a€\x08b\n"), "a€\x08 \x08b\n");
        assert_eq!(all(&mut keys), ["gold\n", "ab\n"]);
        // Continuation bytes without a first byte are removed by four.
        keys.typed(b"xx\x80\x80\x80\x80\x80\x08\n", true);
        assert_eq!(&*keys.take(100).unwrap(), b"xx\x80\n");
        assert_eq!(keys.kept, 0);
    }

    #[test]
    fn control_d_ends_a_line_or_is_the_end_once() {
        let mut keys = KeyboardInput::default();
        assert_eq!(typed(&mut keys, "half\x04\x04more\n"), "halfmore\n");
        assert_eq!(all(&mut keys), ["half", "", "more\n"]);
        assert_eq!(keys.take(10), None);
        typed(&mut keys, "last");
        keys.end();
        assert_eq!(&*keys.take(10).unwrap(), b"last");
        assert_eq!((&*keys.take(10).unwrap(), &*keys.take(10).unwrap()), (&b""[..], &b""[..]));
        assert_eq!(typed(&mut keys, "too late\n"), "");
    }

    #[test]
    fn raw_bytes_come_as_they_are() {
        let mut keys = KeyboardInput::default();
        typed(&mut keys, "line\nbegun");
        keys.set_raw(true);
        assert_eq!(typed(&mut keys, "\x04\x15"), "");
        assert_eq!(typed(&mut keys, "\r\x7f"), "");
        assert_eq!(all(&mut keys), ["line\n", "begun", "\x04\x15\r\x7f"]);
        typed(&mut keys, "abc");
        keys.set_raw(false);
        typed(&mut keys, "d\n");
        assert_eq!(&*keys.take(2).unwrap(), b"ab");
        assert_eq!(all(&mut keys), ["c", "d\n"]);
        assert_eq!(keys.kept, 0);
    }

    #[test]
    fn what_nobody_reads_has_a_limit_and_the_bell_says_so() {
        let mut keys = KeyboardInput::default();
        let long = "x".repeat(INPUT_MAX + 5);
        let echo = typed(&mut keys, &long);
        assert_eq!((echo.len(), echo.ends_with("x\x07")), (INPUT_MAX, true));
        assert_eq!(keys.typed(b"y", false), b"\x07");
        // A line can still be ended and corrected.
        assert_eq!(typed(&mut keys, "\x08z\n"), "\x08 \x08z\n");
        assert_eq!(typed(&mut keys, "\n\x04\x04"), "\x07");
        assert_eq!(keys.take(INPUT_MAX).unwrap().len(), INPUT_MAX);
        assert_eq!(keys.kept, 0);
        // Ends of file alone are limited too.
        assert_eq!(typed(&mut keys, &"\x04".repeat(INPUT_MAX)), "");
        assert_eq!(typed(&mut keys, "\x04"), "\x07");
        assert_eq!(keys.ready.len(), INPUT_MAX);
        keys.set_raw(true);
        assert_eq!(typed(&mut keys, "a"), "\x07");
    }
}
