//! Lines of a file of changes.

use nine_io::changes::{Change, Cursor, Line, parse_line};

/// Any bytes are a line or not. A parsed line is written as one line with the same meaning, and its paths have no `..`.
pub fn changes(data: &[u8]) {
    if let Some(cursor) = Cursor::parse(data) {
        assert_eq!(
            cursor.name().strip_prefix("#changes=").and_then(|rest| Cursor::parse(rest.as_bytes())),
            Some(cursor)
        );
    }
    for text in data.split(|&byte| byte == b'\n') {
        let Ok(line) = parse_line(text) else { continue };
        let mut written = Vec::new();
        line.encode(&mut written);
        assert_eq!(written.iter().position(|&byte| byte == b'\n'), Some(written.len() - 1));
        assert_eq!(parse_line(&written[..written.len() - 1]), Ok(line.clone()));
        let Line::Change(_, change) = line else { continue };
        change.map(|path| {
            assert!(path.starts_with(b"/") && !path.split(|&byte| byte == b'/').any(|name| name == b".."));
            None
        });
        // A change seen from a directory below has paths relative to it.
        if let Some(seen) = change.seen_from(b"/a") {
            assert_eq!(matches!(change, Change::Lost(_)), matches!(*seen, Change::Lost(_)));
        }
    }
}
