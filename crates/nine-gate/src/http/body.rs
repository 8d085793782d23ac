//! Skips an unwanted request body, to find the start of the next request.
//!
//! Pure: takes bytes, and returns how many of them belong to the body.

use super::head::Body;

/// Maximum number of bytes skipped. A client that sends more is disconnected after the answer.
pub const MOST: u64 = 1 << 20;
/// Maximum number of bytes in a line between chunks, and of all trailers.
const LINE: usize = 4 << 10;

/// The position in a body.
#[derive(Debug)]
pub struct Passing {
    at: BodyPosition,
    /// Bytes skipped so far.
    passed: u64,
    /// The received part of a line.
    line: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
enum BodyPosition {
    /// In a body with this many bytes left.
    Bytes(u64),
    /// In the line before a chunk.
    Size,
    /// In a chunk with this many bytes left.
    Chunk(u64),
    /// In the end of line after a chunk.
    Behind,
    /// In the trailers, after this many bytes of them.
    Trailers(usize),
    Over,
}

/// The body is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// Malformed chunks.
    Chunks,
    /// The body is longer than [`MOST`] bytes.
    Large,
}

impl Passing {
    /// Starts at the beginning of a body.
    pub fn new(body: Body) -> Self {
        let at = match body {
            Body::Bytes(0) => BodyPosition::Over,
            Body::Bytes(n) => BodyPosition::Bytes(n),
            Body::Chunked => BodyPosition::Size,
        };
        Self { at, passed: 0, line: Vec::new() }
    }

    /// Whether the body is complete.
    pub fn is_over(&self) -> bool {
        self.at == BodyPosition::Over
    }

    /// Returns how many of these bytes belong to the body: all of them, unless it is complete then.
    pub fn pass(&mut self, bytes: &[u8]) -> Result<usize, Bad> {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_over() {
            let n = match &mut self.at {
                BodyPosition::Bytes(left) | BodyPosition::Chunk(left) => {
                    let n = (*left).min(rest.len() as u64);
                    *left -= n;
                    n as usize
                }
                _ => self.take_line(rest)?,
            };
            self.passed += n as u64;
            if self.passed > MOST {
                return Err(Bad::Large);
            }
            rest = &rest[n..];
            match self.at {
                BodyPosition::Bytes(0) => self.at = BodyPosition::Over,
                BodyPosition::Chunk(0) => self.at = BodyPosition::Behind,
                _ => {}
            }
        }
        Ok(bytes.len() - rest.len())
    }

    /// Takes a line, or the available part of one.
    fn take_line(&mut self, bytes: &[u8]) -> Result<usize, Bad> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let n = end.map_or(bytes.len(), |end| end + 1);
        if self.line.len() + n > LINE {
            return Err(Bad::Chunks);
        }
        self.line.extend_from_slice(&bytes[..n]);
        if end.is_none() {
            return Ok(n);
        }
        let line = std::mem::take(&mut self.line);
        // A bare LF does not end a line in chunked coding: other implementations differ about it.
        let line = line.strip_suffix(b"\r\n").filter(|line| !line.contains(&b'\r')).ok_or(Bad::Chunks)?;
        self.at = match self.at {
            BodyPosition::Size => match size(line)? {
                0 => BodyPosition::Trailers(0),
                n => BodyPosition::Chunk(n),
            },
            BodyPosition::Behind if line.is_empty() => BodyPosition::Size,
            BodyPosition::Trailers(_) if line.is_empty() => BodyPosition::Over,
            BodyPosition::Trailers(before) if before + line.len() < LINE => {
                BodyPosition::Trailers(before + line.len() + 2)
            }
            _ => return Err(Bad::Chunks),
        };
        Ok(n)
    }
}

/// Parses `SIZE[;EXTENSIONS]`, in hex.
fn size(line: &[u8]) -> Result<u64, Bad> {
    // Blanks are allowed only before an extension (RFC 9112, 7.1.1).
    let digits = line.iter().position(|byte| *byte == b';').map_or(line, |at| line[..at].trim_ascii_end());
    let is_hex = (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(digits).ok().filter(|_| is_hex).ok_or(Bad::Chunks)?;
    u64::from_str_radix(text, 16).map_err(|_| Bad::Chunks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The input after the body, for any division into pieces.
    fn left(body: Body, bytes: &str) -> Result<Option<String>, Bad> {
        let mut results = Vec::new();
        for piece in [1, 2, 3, 7, usize::MAX] {
            let mut passing = Passing::new(body);
            let mut behind = bytes.as_bytes();
            let result = loop {
                if passing.is_over() {
                    break Ok(Some(String::from_utf8(behind.to_vec()).unwrap()));
                }
                if behind.is_empty() {
                    break Ok(None);
                }
                match passing.pass(&behind[..piece.min(behind.len())]) {
                    Ok(n) => behind = &behind[n..],
                    Err(bad) => break Err(bad),
                }
            };
            results.push(result);
        }
        assert!(results.iter().all(|result| *result == results[0]), "{bytes:?}: {results:?}");
        results.remove(0)
    }

    #[test]
    fn the_next_request_is_found_behind_a_body() {
        let next = |body, bytes| assert_eq!(left(body, bytes), Ok(Some("GET".into())), "{bytes:?}");
        next(Body::Bytes(0), "GET");
        next(Body::Bytes(5), "helloGET");
        next(Body::Chunked, "0\r\n\r\nGET");
        next(Body::Chunked, "5\r\nhello\r\n00A;x=\"y\"\r\n0123456789\r\n0\r\n\r\nGET");
        next(Body::Chunked, "1 ;y\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\nGET");
        assert_eq!(left(Body::Bytes(5), "hell"), Ok(None));
        assert_eq!(left(Body::Chunked, "5\r\nhello\r\n0\r\n"), Ok(None));
    }

    #[test]
    fn what_are_no_chunks_is_refused() {
        for bytes in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "+1\r\n",
            "0x1\r\nx\r\n",
            "1\nx\r\n",
            "1\r\nxx\r\n",
            "1\r\nx\n",
            "11111111111111111\r\n",
            ";\r\n",
            "1\rx\r\n",
            " 1\r\nx\r\n",
            "1 \r\nx\r\n",
            "1;a\rb\r\nx\r\n",
        ] {
            assert_eq!(left(Body::Chunked, bytes), Err(Bad::Chunks), "{bytes:?}");
        }
        assert_eq!(left(Body::Chunked, &format!("1;{}", "x".repeat(5000))), Err(Bad::Chunks));
        assert_eq!(left(Body::Chunked, &format!("0\r\n{}", "A: bbbb\r\n".repeat(1000))), Err(Bad::Chunks));
    }

    #[test]
    fn large_bodies_are_not_passed_over() {
        let mut passing = Passing::new(Body::Bytes(MOST + 1));
        let piece = vec![0; MOST as usize];
        assert_eq!(passing.pass(&piece), Ok(piece.len()));
        assert_eq!(passing.pass(b"x"), Err(Bad::Large));
        let mut passing = Passing::new(Body::Chunked);
        assert_eq!(passing.pass(b"ffffffffffffffff\r\n"), Ok(18));
        assert_eq!(passing.pass(&piece), Err(Bad::Large));
    }
}
