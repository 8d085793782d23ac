//! Decodes the path of a request to names of a tree.
//!
//! Always holds: the result is the root or below it, for any input. No name is empty, "." or "..", or contains a '/' or
//! NUL.

/// A decoded path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Names, separated by '/'; empty: the root.
    pub names: Box<[u8]>,
    /// It ends with '/', so a directory is meant.
    pub is_dir: bool,
}

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It is malformed.
    Malformed,
    /// No file can have this name.
    Nowhere,
}

/// Decodes a path (RFC 3986, 2.1): once, and each name separately.
pub fn decode(path: &[u8]) -> Result<Path, Wrong> {
    let mut names: Vec<u8> = Vec::with_capacity(path.len());
    let mut is_dir = true;
    for name in path.split(|byte| *byte == b'/').skip(1) {
        let begin = names.len();
        if begin > 0 {
            names.push(b'/');
        }
        let from = names.len();
        unescape(name, &mut names)?;
        match &names[from..] {
            // Repeated slashes count as one, and "." is dropped.
            b"" | b"." => {
                names.truncate(begin);
                is_dir = true;
            }
            b".." => {
                names.truncate(begin);
                if names.is_empty() {
                    return Err(Wrong::Malformed);
                }
                names.truncate(names.iter().rposition(|byte| *byte == b'/').unwrap_or(0));
                is_dir = true;
            }
            name if name.iter().any(|byte| matches!(byte, b'/' | 0)) => return Err(Wrong::Nowhere),
            _ => is_dir = false,
        }
    }
    Ok(Path { names: names.into(), is_dir })
}

/// Decodes escapes. Each '%' must start two hex digits.
fn unescape(name: &[u8], to: &mut Vec<u8>) -> Result<(), Wrong> {
    let digits =
        |pair: &[u8]| std::str::from_utf8(pair).is_ok_and(|pair| pair.bytes().all(|b| b.is_ascii_hexdigit()));
    let mut rest = name;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        if !rest.get(at + 1..at + 3).is_some_and(digits) {
            return Err(Wrong::Malformed);
        }
        rest = &rest[at + 3..];
    }
    to.extend(percent_encoding::percent_decode(name));
    Ok(())
}

/// Joins the names of a directory and of an entry in it.
pub fn below(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut names = Vec::with_capacity(dir.len() + 1 + name.len());
    names.extend_from_slice(dir);
    if !dir.is_empty() {
        names.push(b'/');
    }
    names.extend_from_slice(name);
    names
}

/// Encodes a name for a path.
pub fn encode(name: &[u8]) -> String {
    percent_encoding::percent_encode(name, ESCAPED).to_string()
}

/// All characters but those that RFC 3986 calls unreserved.
const ESCAPED: &percent_encoding::AsciiSet =
    &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str) -> (String, bool) {
        let path = decode(path.as_bytes()).expect(path);
        (String::from_utf8(path.names.into()).unwrap(), path.is_dir)
    }

    #[test]
    fn names_are_decoded_once() {
        for (path, expected, is_dir) in [
            ("/", "", true),
            ("", "", true),
            ("/a/b", "a/b", false),
            ("/a/b/", "a/b", true),
            ("//a///b", "a/b", false),
            ("/a/./b/.", "a/b", true),
            ("/%61%20b", "a b", false),
            ("/%2561", "%61", false),
            ("/a+b", "a+b", false),
            ("/...", "...", false),
            ("/a/../b", "b", false),
            ("/a/b/..", "a", true),
            ("/a/%2e%2E/b", "b", false),
        ] {
            assert_eq!(names(path), (expected.into(), is_dir), "{path}");
        }
    }

    #[test]
    fn nothing_leads_out_of_the_tree() {
        for path in ["/..", "/a/../..", "/%2e%2e/etc", "/.%2e/x", "/a/%2e%2e/%2E./x", "/./..", "//.."] {
            assert_eq!(decode(path.as_bytes()), Err(Wrong::Malformed), "{path}");
        }
        for path in ["/a%2fb", "/..%2f..%2fetc", "/%00", "/a%00.txt", "/%2F"] {
            assert_eq!(decode(path.as_bytes()), Err(Wrong::Nowhere), "{path}");
        }
        for path in ["/%", "/%2", "/%zz", "/%+1", "/a%2"] {
            assert_eq!(decode(path.as_bytes()), Err(Wrong::Malformed), "{path}");
        }
        // Other spellings of dots and slashes are names.
        for path in ["/%c0%ae%c0%ae/x", "/..\\x", "/%252e%252e/x", "/%u002e%u002e"] {
            if let Ok(path) = decode(path.as_bytes()) {
                assert!(path.names.split(|b| *b == b'/').all(|name| name != b".." && !name.is_empty()));
            }
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_to_the_same() {
        let every: Vec<u8> = (1..=255u8).filter(|byte| *byte != b'/').collect();
        let path = decode(format!("/{}", encode(&every)).as_bytes()).unwrap();
        assert_eq!(&*path.names, &*every);
    }
}
