//! Writes the heads of answers.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use super::civil::CivilTime;
use super::status::Status;

/// The Date and Server lines, updated once a second.
pub(super) struct DateHeader {
    second: Cell<u64>,
    line: RefCell<String>,
}

impl DateHeader {
    pub(super) fn new() -> Self {
        Self { second: Cell::new(u64::MAX), line: RefCell::default() }
    }

    /// Appends the lines. `wall`: the time since 1970.
    fn write(&self, wall: Duration, to: &mut Vec<u8>) {
        if self.second.replace(wall.as_secs()) != wall.as_secs() {
            // A year above 9999 means that the clock is wrong. An answer without a clock has no date (RFC 9110, 6.6.1).
            let date = CivilTime::of(wall.as_secs() as i64);
            let date = date.map_or(String::new(), |date| format!("Date: {}\r\n", date.http()));
            *self.line.borrow_mut() = format!("Server: ninefold\r\n{date}");
        }
        to.extend_from_slice(self.line.borrow().as_bytes());
    }
}

/// The state of the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterAnswer {
    /// It stays open, the default of HTTP/1.1.
    Stays,
    /// It stays open, with a header that says so to an HTTP/1.0 client.
    Kept,
    /// It is closed.
    Closed,
}

/// Starts a head. Header lines and [`end`] must follow.
pub(super) fn begin(to: &mut Vec<u8>, status: Status, date: &DateHeader, wall: Duration, after: AfterAnswer) {
    to.extend_from_slice(b"HTTP/1.1 ");
    number(to, status.number().into());
    to.push(b' ');
    to.extend_from_slice(status.text().as_bytes());
    to.extend_from_slice(b"\r\n");
    date.write(wall, to);
    match after {
        AfterAnswer::Stays => {}
        AfterAnswer::Kept => to.extend_from_slice(b"Connection: keep-alive\r\n"),
        AfterAnswer::Closed => to.extend_from_slice(b"Connection: close\r\n"),
    }
}

/// Appends a header.
pub(super) fn line(to: &mut Vec<u8>, name: &str, value: &[u8]) {
    to.extend_from_slice(name.as_bytes());
    to.extend_from_slice(b": ");
    to.extend_from_slice(value);
    to.extend_from_slice(b"\r\n");
}

/// Appends the length of the body.
pub(super) fn length(to: &mut Vec<u8>, length: u64) {
    to.extend_from_slice(b"Content-Length: ");
    number(to, length);
    to.extend_from_slice(b"\r\n");
}

/// Appends the empty line.
pub(super) fn end(to: &mut Vec<u8>) {
    to.extend_from_slice(b"\r\n");
}

fn number(to: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    to.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_what_it_was_told() {
        let date = DateHeader::new();
        let mut head = Vec::new();
        begin(&mut head, Status::PARTIAL, &date, Duration::from_secs(784_111_777), AfterAnswer::Closed);
        length(&mut head, 0);
        length(&mut head, u64::MAX);
        line(&mut head, "A", b"b");
        end(&mut head);
        let expected = "HTTP/1.1 206 Partial Content\r\nServer: ninefold\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                        Connection: close\r\nContent-Length: 0\r\nContent-Length: 18446744073709551615\r\nA: b\r\n\r\n";
        assert_eq!(String::from_utf8(head).unwrap(), expected);
        let mut later = Vec::new();
        begin(&mut later, Status::OK, &date, Duration::from_secs(784_111_778), AfterAnswer::Stays);
        assert!(String::from_utf8(later).unwrap().contains("08:49:38"));
    }
}
