//! What is told of who does what: events of the target [`TARGET`], one for each attach, and for each text that is
//! written to a control file of a tree that says so ([`Tree::audited`](crate::synth::Tree::audited)).
//!
//! Always holds: nothing secret is in a text or an aname ([`line`]), nor a character that could end its line or move a
//! cursor, and it has at most [`TEXT_MAX`] characters. Who collects them must not wait: they are told where requests
//! are served.

use std::fmt::Write;

use nine_proto::show;

/// The target of these events.
pub const TARGET: &str = "audit";
/// Characters that are told of a text.
pub const TEXT_MAX: usize = 256;

/// A text of several lines as one, without what may be secret in it: tokens in addresses (`9p://TOKEN@HOST`) and in
/// anames (`token:HEX`).
pub fn line(text: &[u8]) -> String {
    let mut line = String::new();
    for (n, word) in text.split(|&byte| is_blank(byte)).filter(|word| !word.is_empty()).enumerate() {
        // A String takes whatever is written to it.
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

/// A word without its secrets.
fn open(word: &[u8]) -> Vec<u8> {
    let mut open = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = find(rest, b"://") {
        let (scheme, host) = rest.split_at(at + 3);
        open.extend(scheme);
        // As whoever dials it reads it: what stands before the last `@` of what names a host, or of all.
        let end = host.iter().position(|&byte| byte == b'/' || byte == b',').unwrap_or(host.len());
        rest = match host[..end].iter().rposition(|&byte| byte == b'@') {
            Some(secret) => {
                open.extend(HIDDEN);
                &host[secret..]
            }
            None => host,
        };
    }
    match find(rest, b"token:") {
        Some(at) => {
            let end = rest[at..].iter().position(|&byte| byte == b'/').map_or(rest.len(), |end| at + end);
            open.extend(&rest[..at + 6]);
            open.extend(HIDDEN);
            open.extend(&rest[end..]);
        }
        None => open.extend(rest),
    }
    open
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|part| part == what)
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

const HIDDEN: &[u8] = b"...";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_and_no_control_character_is_told() {
        for (text, told) in [
            ("mount 9p://00ff@h:5 /n", "mount 9p://...@h:5 /n"),
            ("mount -r 9p://00ff@h,9p+tls://00ff@h2 /n", "mount -r 9p://...@h,9p+tls://...@h2 /n"),
            ("mount tcp!h /n token:00ff/x", "mount tcp!h /n token:.../x"),
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
