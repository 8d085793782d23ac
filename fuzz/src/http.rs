//! A browser's input: heads, bodies, paths, ranges, conditions.

use nine_gate::http::body::Passing;
use nine_gate::http::head::{Body, HEAD, Head, Parsed, parse};
use nine_gate::http::path::{decode, encode};
use nine_gate::http::range::Wanted;
use nine_gate::http::since::{Conditions, is_same};

/// Parses requests one after the other, as on a connection.
pub fn http(data: &[u8]) {
    let mut rest = data;
    while let Parsed::Whole(head) = parse(rest) {
        judge(&head, rest);
        rest = &rest[head.len..];
        match pass(head.body, rest) {
            Some(n) => rest = &rest[n..],
            None => return,
        }
    }
    // An incomplete head is below the maximum length.
    assert!(!matches!(parse(rest), Parsed::Part) || rest.len() <= HEAD + 8);
}

fn judge(head: &Head, bytes: &[u8]) {
    assert!(head.len <= bytes.len() && head.len <= HEAD + 4);
    let lists = head.if_match.iter().chain(&head.if_none_match);
    for place in [&head.path, &head.query, &head.host, &head.if_range].into_iter().chain(lists) {
        assert!(place.end <= head.len);
    }
    // A prefix of a head is not a head.
    assert!(head.len > HEAD || matches!(parse(&bytes[..head.len - 1]), Parsed::Part));
    if let Ok(path) = decode(&bytes[head.path.clone()]) {
        let names: Vec<&[u8]> = path.names.split(|b| *b == b'/').collect();
        let is_name = |name: &&[u8]| !matches!(*name, b"" | b"." | b"..") && !name.contains(&0);
        assert!(path.names.is_empty() || names.iter().all(is_name));
        let again: String = names.iter().map(|name| format!("/{}", encode(name))).collect();
        assert_eq!(decode(again.as_bytes()).map(|path| path.names), Ok(path.names));
    }
    for size in [0, 1, 1000, u64::MAX] {
        let Wanted::Parts(parts) = head.ranges.of(size) else { continue };
        assert!(!parts.is_empty());
        for (n, (from, len)) in parts.iter().enumerate() {
            assert!(*len > 0 && from.checked_add(*len).is_some_and(|end| end <= size));
            assert!(parts[..n].iter().all(|(f, l)| f + l < *from || from + len < *f), "{parts:?}");
        }
    }
    let conditions = Conditions::of(head, bytes);
    conditions.judge("\"1-2\"", 0);
    is_same(&bytes[head.if_range.clone()], "\"1-2\"");
    assert!(head.chunks || head.body != Body::Chunked);
}

/// Returns the end of a body. It must not depend on how the bytes are divided.
fn pass(body: Body, bytes: &[u8]) -> Option<usize> {
    let ends = [1, 7, usize::MAX].map(|most| {
        let (mut passing, mut at) = (Passing::new(body), 0usize);
        while !passing.is_over() {
            let piece = &bytes[at..bytes.len().min(at.saturating_add(most))];
            if piece.is_empty() {
                return None;
            }
            at += passing.pass(piece).ok()?;
        }
        Some(at)
    });
    assert_eq!(ends[0], ends[1]);
    assert_eq!(ends[0], ends[2]);
    ends[0]
}
