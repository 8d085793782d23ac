//! Log lines for answers, in the combined format of Apache's and nginx' access logs.

use std::fmt::Write;
use std::time::Duration;

use super::civil::CivilTime;

/// A log entry about an answer.
pub struct Entry<'c> {
    /// The client's address.
    pub remote: &'c str,
    /// When the answer was written, since 1970.
    pub wall: Duration,
    /// The first line of the request.
    pub line: &'c [u8],
    /// The status of the answer.
    pub status: u16,
    /// Bytes of the answer, head included.
    pub bytes: u64,
    /// The client's Referer and User-Agent headers.
    pub referer: &'c [u8],
    /// See `referer`.
    pub agent: &'c [u8],
}

impl Entry<'_> {
    /// The line, with its newline.
    pub fn text(&self) -> String {
        let date = CivilTime::of(self.wall.as_secs() as i64).map_or("-".into(), |time| {
            let CivilTime { year, day, hour, minute, second, .. } = time;
            let month = time.month_name();
            format!("{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000")
        });
        let Self { remote, status, bytes, .. } = self;
        let mut text = format!("{remote} - - [{date}] ");
        quoted(&mut text, self.line);
        let _ = write!(text, " {status} {bytes} ");
        quoted(&mut text, self.referer);
        text.push(' ');
        quoted(&mut text, self.agent);
        text.push('\n');
        text
    }
}

/// Maximum number of bytes in client data written per field.
const SAID: usize = 1024;

/// Escapes client data so that it stays within its quotes. Empty data is `-`.
fn quoted(text: &mut String, said: &[u8]) {
    text.push('"');
    for byte in &said[..said.len().min(SAID)] {
        match byte {
            b'"' | b'\\' | 0..=31 | 127.. => drop(write!(text, "\\x{byte:02X}")),
            _ => text.push(char::from(*byte)),
        }
    }
    if said.is_empty() {
        text.push('-');
    }
    if said.len() > SAID {
        text.push_str("...");
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_says_stays_within_its_quotes() {
        let entry = Entry {
            remote: "10.0.0.1",
            wall: Duration::from_secs(784_111_777),
            line: b"GET /\"x\\ HTTP/1.1",
            status: 404,
            bytes: 12,
            referer: b"",
            agent: b"a\n10.0.0.2 - - \x1b[2J\xff",
        };
        let expected = concat!(
            r#"10.0.0.1 - - [06/Nov/1994:08:49:37 +0000] "GET /\x22x\x5C HTTP/1.1" 404 12 "-" "#,
            r#""a\x0A10.0.0.2 - - \x1B[2J\xFF""#,
            "\n"
        );
        assert_eq!(entry.text(), expected);
    }
}
