//! The audit log: events of the target [`TARGET`]. There is one for each attach, and one for each text written to a
//! control file of an [audited](crate::synth::Tree::audited) tree.
//!
//! Always holds: a text or an aname has at most [`TEXT_MAX`] characters, and `...` if it was cut. It contains no secret
//! ([`line`]), and no character that could end its line or move a cursor. A subscriber must not block: events are
//! emitted where requests are served.

use std::fmt::Write;

use nine_proto::show;

/// The target of these events.
pub const TARGET: &str = "audit";
/// Characters of a text that the log shows.
pub const TEXT_MAX: usize = 256;

/// Returns a text of several lines as one line, without the parts that may be secret: tokens in addresses
/// (`9p://TOKEN@HOST`) and in anames (`token:HEX`).
pub fn line(text: &[u8]) -> String {
    let mut line = String::new();
    for (n, word) in text.split(|&byte| is_blank(byte)).filter(|word| !word.is_empty()).enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(line, "{}{}", if n == 0 { "" } else { " " }, show(&open(word)));
        if line.len() > 4 * TEXT_MAX {
            break;
        }
    }
    if line.chars().count() > TEXT_MAX {
        line = line.chars().take(TEXT_MAX).chain("...".chars()).collect();
    }
    line
}

/// Returns a word without anything that is a secret in an aname or in an address, whichever the word is.
fn open(word: &[u8]) -> Vec<u8> {
    let mut secret = vec![false; word.len()];
    let mut at = 0;
    while let Some(found) = find(&word[at..], b"token:") {
        let from = at + found + b"token:".len();
        at = word[from..].iter().position(|&byte| byte == b'/').map_or(word.len(), |end| from + end);
        secret[from..at].fill(true);
    }
    let mut at = 0;
    while let Some(found) = find(&word[at..], b"://") {
        let host = at + found + 3;
        // As a dialer parses it: the part before the last `@` of a host, or of the whole word.
        let end = word[host..].iter().position(|&byte| byte == b'/' || byte == b',');
        let end = end.map_or(word.len(), |end| host + end);
        at = word[host..end].iter().rposition(|&byte| byte == b'@').map_or(host, |end| host + end);
        secret[host..at].fill(true);
    }
    let mut open = Vec::with_capacity(word.len());
    for (n, &byte) in word.iter().enumerate() {
        match secret[n] {
            false => open.push(byte),
            true if n > 0 && secret[n - 1] => {}
            true => open.extend(b"..."),
        }
    }
    open
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|part| part == what)
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_and_no_control_character_is_told() {
        for (text, told) in [
            ("mount 9p://00ff@h:5 /n", "mount 9p://...@h:5 /n"),
            ("mount -r 9p://00ff@h,9p+tls://00ff@h2 /n", "mount -r 9p://...@h,9p+tls://...@h2 /n"),
            ("mount tcp!h /n token:00ff/x", "mount tcp!h /n token:.../x"),
            ("mount tcp!h /n token:00ff/a://b", "mount tcp!h /n token:.../a://b"),
            ("token:00ff/a/token:00fe", "token:.../a/token:..."),
            ("9p://00ff@h/token:00fe,9p://00fd@h", "9p://...@h/token:...//...@h"),
            ("9p://00token:ff@h", "9p://..."),
            ("token:00ff", "token:..."),
            ("bind /a@b /c\nunmount /d\n", "bind /a@b /c unmount /d"),
            ("connect 10.0.0.1!80", "connect 10.0.0.1!80"),
            ("a\u{1b}[2Jb\u{7}", "a\\u{1b}[2Jb\\u{7}"),
            ("http://a/b@c", "http://a/b@c"),
        ] {
            assert_eq!(line(text.as_bytes()), told);
        }
        assert_eq!(line(b"\xff"), "\\xff");
        let long = line("\u{1}".repeat(100_000).as_bytes());
        assert!(long.len() <= TEXT_MAX + 3 && long.ends_with("..."));
    }
}
