//! Parses and validates the head of a request (RFC 9112).
//!
//! In: the received bytes. Out: a [`Head`], a need for more bytes, or an error answer. Pure: no clock, no connection.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::range::Ranges;
use super::status::Status;

/// Maximum number of bytes in a head: request line and headers.
pub const HEAD: usize = 16 << 10;
/// Maximum number of headers of a request.
const HEADERS: usize = 96;

/// The parts of a request that affect its answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// Its length, in bytes.
    pub len: usize,
    /// The method.
    pub method: Method,
    /// The path, still encoded: a range of the head.
    pub path: Range<usize>,
    /// The query, after the '?'.
    pub query: Range<usize>,
    /// The host that the client names.
    pub host: Range<usize>,
    /// The connection stays open after the answer.
    pub keep: bool,
    /// HTTP/1.1: a body of unknown length may be chunked.
    pub chunks: bool,
    /// The body that follows the head.
    pub body: Body,
    /// Expect: the client waits for "100 Continue" before it sends the body.
    pub expects: bool,
    /// Range: only these bytes.
    pub ranges: Ranges,
    /// If-Range: the range only if the file has this tag or date. A range of the head.
    pub if_range: Range<usize>,
    /// If-None-Match: only if the file has none of these tags.
    pub if_none_match: Vec<Range<usize>>,
    /// If-Match: only if the file has one of these tags.
    pub if_match: Vec<Range<usize>>,
    /// If-Modified-Since: only if the file has changed since.
    pub if_modified_since: Range<usize>,
    /// If-Unmodified-Since: only if the file has not changed since.
    pub if_unmodified_since: Range<usize>,
    /// Accept-Encoding: encodings that the client accepts.
    pub codings: Codings,
    /// Accept: prefers JSON to HTML.
    pub json: bool,
    /// Referer: the page with the link, as the client reports it.
    pub referer: Range<usize>,
    /// User-Agent: the client's name for itself.
    pub agent: Range<usize>,
}

impl Head {
    /// Whether the answer includes its body.
    pub(super) fn is_whole(&self) -> bool {
        self.method != Method::Head
    }
}

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Send the file.
    Get,
    /// Send only the head of the answer.
    Head,
    /// Send the allowed methods.
    Options,
    /// A method of RFC 9110, 9.3 or RFC 5789 that is not supported here.
    Known,
    /// An unknown method.
    Other,
}

/// The body that follows the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// This many bytes.
    Bytes(u64),
    /// Chunks, up to the last one.
    Chunked,
}

/// Encodings that a client accepts, with their weights in thousandths (RFC 9110, 12.5.3); 0: not accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codings {
    /// `gzip`.
    pub gzip: u16,
    /// `zstd`.
    pub zstd: u16,
    /// No encoding. `None`: accepted, but not mentioned.
    pub identity: Option<u16>,
}

/// The weights of the names in list headers.
#[derive(Default)]
struct NameWeights<'h> {
    named: Vec<(&'h [u8], u16)>,
}

/// The result of parsing the received bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// An incomplete head.
    Part,
    /// A head.
    Whole(Box<Head>),
    /// Not a valid request: answer with this status and text.
    Wrong(Status, &'static str),
}

/// Parses a head at the front of `bytes`.
pub fn parse(bytes: &[u8]) -> Parsed {
    // Empty lines before a request are ignored (RFC 9112, 2.2).
    let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    if blank > 4 {
        return Parsed::Wrong(Status::BAD_REQUEST, "empty lines");
    }
    let bytes = &bytes[blank..];
    let mut room = [const { MaybeUninit::uninit() }; HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let len = match request.parse_with_uninit_headers(bytes, &mut room) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if bytes.len() >= HEAD => return too_large(bytes),
        Ok(httparse::Status::Partial) => return Parsed::Part,
        Err(httparse::Error::TooManyHeaders) => {
            return Parsed::Wrong(Status::HEADERS_TOO_LARGE, "a request has at most 96 headers");
        }
        Err(httparse::Error::Version) => {
            return Parsed::Wrong(Status::VERSION, "only HTTP/1.1 and HTTP/1.0 are spoken here");
        }
        Err(_) => return Parsed::Wrong(Status::BAD_REQUEST, "this is no request"),
    };
    if len > HEAD {
        return too_large(bytes);
    }
    match judge(bytes, &request, len) {
        Ok(head) if blank == 0 => Parsed::Whole(Box::new(head)),
        Ok(head) => Parsed::Whole(Box::new(shifted(head, blank))),
        Err((status, what)) => Parsed::Wrong(status, what),
    }
}

fn too_large(bytes: &[u8]) -> Parsed {
    match bytes[..HEAD].contains(&b'\n') {
        true => Parsed::Wrong(Status::HEADERS_TOO_LARGE, "the head of a request has at most 16 KiB"),
        false => Parsed::Wrong(Status::TARGET_TOO_LONG, "the target of a request has less than 16 KiB"),
    }
}

/// Moves the ranges of a head that follows blank lines.
fn shifted(mut head: Head, by: usize) -> Head {
    head.len += by;
    let places = [
        &mut head.path,
        &mut head.query,
        &mut head.host,
        &mut head.referer,
        &mut head.agent,
        &mut head.if_range,
        &mut head.if_modified_since,
        &mut head.if_unmodified_since,
    ];
    for place in places.into_iter().chain(&mut head.if_match).chain(&mut head.if_none_match) {
        *place = place.start + by..place.end + by;
    }
    head
}

type HeadRefusal = (Status, &'static str);

fn judge(bytes: &[u8], request: &httparse::Request<'_, '_>, len: usize) -> Result<Head, HeadRefusal> {
    let place = |part: &[u8]| {
        // httparse returns slices of its input.
        let at = part.as_ptr() as usize - bytes.as_ptr() as usize;
        at..at + part.len()
    };
    let bad = |what| (Status::BAD_REQUEST, what);
    let newer = request.version == Some(1);
    let target = request.path.unwrap_or_default();
    let name = request.method.unwrap_or_default();
    let (path, authority) = match name {
        // RFC 9112, 3.2.3.
        "CONNECT" => (&target[target.len()..], Some(target)),
        _ => split_target(target).ok_or(bad("the target of a request is a path"))?,
    };
    if authority.is_some_and(|authority| !is_host(authority.as_bytes())) {
        return Err(bad("the target's host is none"));
    }
    let query_at = path.find('?').unwrap_or(path.len());
    let (path, query) = path.split_at(query_at);
    let query = query.strip_prefix('?').unwrap_or("");
    let method = match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "OPTIONS" => Method::Options,
        "POST" | "PUT" | "DELETE" | "PATCH" | "TRACE" | "CONNECT" => Method::Known,
        _ => Method::Other,
    };
    if target == "*" && method != Method::Options {
        return Err(bad("the target of a request is a path"));
    }
    let mut head = Head {
        len,
        method,
        path: place(path.as_bytes()),
        query: if query.is_empty() { 0..0 } else { place(query.as_bytes()) },
        host: authority.map_or(0..0, |authority| place(authority.as_bytes())),
        keep: newer,
        chunks: newer,
        body: Body::Bytes(0),
        expects: false,
        ranges: Ranges::default(),
        if_range: 0..0,
        if_none_match: Vec::new(),
        if_match: Vec::new(),
        if_modified_since: 0..0,
        if_unmodified_since: 0..0,
        codings: Codings::default(),
        json: false,
        referer: 0..0,
        agent: 0..0,
    };
    let (mut hosts, mut lengths, mut codings) = (0, 0, Vec::new());
    let (mut accepts, mut encodings) = (NameWeights::default(), NameWeights::default());
    for header in request.headers.iter() {
        let value = header.value;
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        // Compares lengths first, since most headers are none of these.
        match header.name.len() {
            4 if is("host") => {
                hosts += 1;
                if !is_host(value) {
                    return Err(bad("the host is none"));
                }
                if authority.is_none() {
                    head.host = place(value);
                }
            }
            5 if is("range") => head.ranges = Ranges::parse(value),
            6 if is("accept") => accepts.read(value),
            6 if is("expect") => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err((Status::EXPECTATION, "only 100-continue can be expected"));
                }
                head.expects = newer;
            }
            7 if is("referer") => head.referer = place(value),
            10 if is("user-agent") => head.agent = place(value),
            8 if is("if-range") => head.if_range = place(value),
            8 if is("if-match") => head.if_match.push(place(value)),
            10 if is("connection") => {
                for word in words(value) {
                    if word.eq_ignore_ascii_case(b"close") {
                        head.keep = false;
                    } else if word.eq_ignore_ascii_case(b"keep-alive") && !newer {
                        head.keep = true;
                    }
                }
            }
            13 if is("if-none-match") => head.if_none_match.push(place(value)),
            14 if is("content-length") => {
                let number = number(value).ok_or(bad("the content-length is no number"))?;
                if lengths > 0 && head.body != Body::Bytes(number) {
                    return Err(bad("two lengths"));
                }
                lengths += 1;
                head.body = Body::Bytes(number);
            }
            15 if is("accept-encoding") => encodings.read(value),
            17 if is("transfer-encoding") => {
                codings.extend(words(value));
            }
            17 if is("if-modified-since") => head.if_modified_since = place(value),
            19 if is("if-unmodified-since") => head.if_unmodified_since = place(value),
            _ => {}
        }
    }
    if let Some((last, others)) = codings.split_last() {
        // If chunked is not the last coding, the body has no known end (RFC 9112, 6.3).
        let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
        if lengths > 0 || !newer || !is_chunked(last) || others.iter().any(|other| is_chunked(other)) {
            return Err(bad("the end of the body cannot be known"));
        }
        if !others.is_empty() {
            return Err((Status::NOT_IMPLEMENTED, "only chunked is known as a transfer-encoding"));
        }
        head.body = Body::Chunked;
    }
    if hosts > 1 || (hosts == 0 && newer) {
        return Err(bad("a request has one host"));
    }
    head.codings = encodings.codings();
    head.json = accepts.prefer_json();
    Ok(head)
}

/// The path of a target, and the authority if it has one (RFC 9112, 3.2).
fn split_target(target: &str) -> Option<(&str, Option<&str>)> {
    if target.starts_with('/') || target == "*" {
        return Some((target, None));
    }
    let scheme = target.get(..7).filter(|s| s.eq_ignore_ascii_case("http://")).map(|_| 7);
    let scheme = scheme.or(target.get(..8).filter(|s| s.eq_ignore_ascii_case("https://")).map(|_| 8));
    let rest = &target[scheme?..];
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    Some((&rest[end..], Some(&rest[..end]))).filter(|_| end > 0)
}

/// Whether this is `HOST[:PORT]` (RFC 9110, 7.2; RFC 3986, 3.2.2), or empty.
fn is_host(host: &[u8]) -> bool {
    let (name, port) = match host.iter().rposition(|byte| *byte == b':').filter(|_| !host.ends_with(b"]")) {
        Some(at) => (&host[..at], &host[at + 1..]),
        None => (host, &b""[..]),
    };
    let is_name = match name {
        [b'[', address @ .., b']'] => {
            address.contains(&b':')
                && address.iter().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'))
        }
        name => name.iter().all(|b| b.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(b)),
    };
    is_name && port.iter().all(u8::is_ascii_digit)
}

fn words(list: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Parses a number of digits only.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

/// Splits a list item into its name and weight in thousandths (RFC 9110, 12.4.2). An invalid weight counts as absent.
fn weighed(word: &[u8]) -> (&[u8], u16) {
    let mut parts = word.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let name = parts.next().unwrap_or_default();
    let q = parts.find_map(|part| part.strip_prefix(b"q=").or(part.strip_prefix(b"Q=")));
    (name, q.and_then(weight).unwrap_or(1000))
}

/// Parses `0`, `0.5`, `1.000` into thousandths.
fn weight(text: &[u8]) -> Option<u16> {
    let (whole, digits) = match text {
        [whole @ (b'0' | b'1')] => (*whole, &b""[..]),
        [whole @ (b'0' | b'1'), b'.', digits @ ..] if digits.len() <= 3 => (*whole, digits),
        _ => return None,
    };
    let mut weight = u16::from(whole - b'0');
    for at in 0..3 {
        let digit = digits.get(at).copied().unwrap_or(b'0');
        if !digit.is_ascii_digit() {
            return None;
        }
        weight = 10 * weight + u16::from(digit - b'0');
    }
    (weight <= 1000).then_some(weight)
}

impl<'h> NameWeights<'h> {
    fn read(&mut self, value: &'h [u8]) {
        self.named.extend(words(value).filter(|word| !word.is_empty()).map(weighed));
    }

    /// The weight of the first of `names` that the list has. Callers put the more specific names first.
    fn of(&self, names: &[&str]) -> Option<u16> {
        names.iter().find_map(|name| {
            self.named
                .iter()
                .find(|(of, _)| of.eq_ignore_ascii_case(name.as_bytes()))
                .map(|(_, weight)| *weight)
        })
    }

    fn codings(&self) -> Codings {
        let any = self.of(&["*"]);
        Codings {
            gzip: self.of(&["gzip", "x-gzip"]).or(any).unwrap_or(0),
            zstd: self.of(&["zstd"]).or(any).unwrap_or(0),
            // A `*` does not request identity, but may refuse it.
            identity: self.of(&["identity"]).or(any.filter(|weight| *weight == 0)),
        }
    }

    fn prefer_json(&self) -> bool {
        let json = self.of(&["application/json", "application/*", "*/*"]).unwrap_or(0);
        json > self.of(&["text/html", "text/*", "*/*"]).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Head {
        match parse(text.as_bytes()) {
            Parsed::Whole(head) => *head,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn wrong(text: &str) -> u16 {
        match parse(text.as_bytes()) {
            Parsed::Wrong(status, _) => status.number(),
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn a_head_is_found_whole_whatever_stands_before_and_behind_it() {
        let text = "GET /a/b?c=d HTTP/1.1\r\nHost: x:80\r\nAccept-Encoding: gzip;q=0, zstd\r\n\r\nGET /";
        for blank in ["", "\r\n", "\n\r\n"] {
            let text = format!("{blank}{text}");
            let head = whole(&text);
            assert_eq!(&text[head.path.clone()], "/a/b");
            assert_eq!(&text[head.query.clone()], "c=d");
            assert_eq!(&text[head.host.clone()], "x:80");
            assert_eq!(&text[head.len..], "GET /");
            assert_eq!(head.codings, Codings { gzip: 0, zstd: 1000, identity: None });
            assert!(head.keep && head.chunks && head.body == Body::Bytes(0));
            for len in blank.len()..head.len {
                assert_eq!(parse(&text.as_bytes()[..len]), Parsed::Part, "{len}");
            }
        }
    }

    #[test]
    fn a_target_may_name_the_host_itself() {
        let text = "GET HTTP://other/x HTTP/1.1\r\nHost: x\r\n\r\n";
        let head = whole(text);
        assert_eq!((&text[head.path], &text[head.host]), ("/x", "other"));
        let text = "GET http://other?y HTTP/1.1\r\nHost: x\r\n\r\n";
        let head = whole(text);
        assert_eq!((&text[head.path], &text[head.query], &text[head.host]), ("", "y", "other"));
        for target in ["x", "http:///x", "http://", "*", "x:80"] {
            assert_eq!(wrong(&format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n")), 400, "{target}");
        }
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_perhaps_a_port() {
        let with = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        for host in ["x", "X-1.y:80", "127.0.0.1:8080", "[::1]", "[::ffff:1.2.3.4]:80", "", "x:", "%41b"] {
            whole(&with(host));
        }
        for host in ["no host", "a/b", "u@x", "a, b", "x:y", "::1", "[::1", "[]", "[x]", "x:80:80", "\u{e4}"]
        {
            assert_eq!(wrong(&with(host)), 400, "{host}");
        }
        let text = "CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_eq!(whole(text).method, Method::Known);
        assert_eq!(wrong("CONNECT /x HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
    }

    #[test]
    fn a_list_in_pieces_is_never_half_of_it() {
        let twice =
            |name: &str| format!("GET / HTTP/1.1\r\nHost: x\r\n{name}: \"a\"\r\n{name}: \"b\"\r\n\r\n");
        let said =
            |lists: &[Range<usize>], text: &str| lists.iter().map(|at| text[at.clone()].into()).collect();
        let (matches, none) = (twice("If-Match"), twice("If-None-Match"));
        let both: [Vec<String>; 2] =
            [said(&whole(&matches).if_match, &matches), said(&whole(&none).if_none_match, &none)];
        assert!(both.iter().all(|said| said[..] == ["\"a\"", "\"b\""]), "{both:?}");
        let text = "GET / HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nAccept-Encoding: zstd\r\n\r\n";
        assert_eq!(whole(text).codings, Codings { gzip: 1000, zstd: 1000, identity: None });
    }

    #[test]
    fn the_connection_stays_as_its_version_and_the_client_say() {
        for (line, more, keep) in [
            ("HTTP/1.1", "", true),
            ("HTTP/1.1", "Connection: x, Close\r\n", false),
            ("HTTP/1.0", "", false),
            ("HTTP/1.0", "Connection: Keep-Alive\r\n", true),
        ] {
            assert_eq!(whole(&format!("GET / {line}\r\nHost: x\r\n{more}\r\n")).keep, keep, "{line} {more}");
        }
        assert!(!whole("GET / HTTP/1.0\r\n\r\n").chunks);
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let with = |headers: &str| format!("GET / HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        for (headers, status) in [
            ("Host: y\r\n", 400),
            ("Content-Length: 3\r\nContent-Length: 4\r\n", 400),
            ("Content-Length: +3\r\n", 400),
            ("Content-Length: 3, 3\r\n", 400),
            ("Content-Length: 99999999999999999999\r\n", 400),
            ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", 400),
            ("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", 400),
            ("Transfer-Encoding: gzip, chunked\r\n", 501),
            ("Transfer-Encoding: chunked, gzip\r\n", 400),
            ("Transfer-Encoding: gzip\r\n", 400),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400),
            ("Expect: tea\r\n", 417),
            ("Host : x\r\n", 400),
            (" folded: x\r\n", 400),
        ] {
            assert_eq!(wrong(&with(headers)), status, "{headers}");
        }
        assert_eq!(wrong("GET / HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(wrong("GET / HTTP/2.0\r\n\r\n"), 505);
        assert_eq!(wrong("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
        let body = whole(&with("Content-Length: 3\r\nContent-Length: 3\r\n")).body;
        assert_eq!(body, Body::Bytes(3));
    }

    #[test]
    fn endless_heads_have_an_end() {
        let long = format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}", "x".repeat(HEAD));
        assert_eq!(wrong(&long), 431);
        assert_eq!(wrong(&format!("{long}\r\n\r\n")), 431);
        let path = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(HEAD));
        assert_eq!((wrong(&path), wrong(&path[..HEAD + 3])), (414, 414));
        assert_eq!(wrong(&format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(100))), 431);
        assert_eq!(wrong("\r\n\r\n\r\n"), 400);
    }

    #[test]
    fn who_would_rather_have_json_says_so() {
        for (accept, json) in [
            ("application/json", true),
            ("text/html,application/json;q=0.9", false),
            ("text/html;q=0.5, application/json", true),
            ("*/*", false),
            ("application/*", true),
            ("application/json;q=0.5, */*;q=0.9", false),
            ("text/html;q=0, */*", true),
            ("text/html\r\nAccept: application/json;q=0.9", false),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n");
            assert_eq!(whole(&text).json, json, "{accept}");
        }
    }

    #[test]
    fn a_weight_has_three_digits_at_most() {
        for (text, weight) in [
            ("0", Some(0)),
            ("0.", Some(0)),
            ("0.001", Some(1)),
            ("0.29", Some(290)),
            ("1", Some(1000)),
            ("1.000", Some(1000)),
            ("1.001", None),
            ("0.0001", None),
            ("2", None),
            (".5", None),
            ("0.x", None),
            ("NaN", None),
            ("", None),
        ] {
            assert_eq!(super::weight(text.as_bytes()), weight, "{text}");
        }
    }
}
