//! Compresses text while it is sent (RFC 9110, 8.4).

use std::io::Write;

use super::head::Codings;

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// `gzip`.
    Gzip,
    /// `zstd`.
    Zstd,
}

impl ContentCoding {
    /// The coding that the client prefers, by its weights, if it does not prefer none. With equal weights zstd.
    pub fn of(codings: Codings) -> Option<Self> {
        let Codings { gzip, zstd, identity } = codings;
        let (weight, coding) = if gzip > zstd { (gzip, Self::Gzip) } else { (zstd, Self::Zstd) };
        (weight > 0 && identity.is_none_or(|identity| weight >= identity)).then_some(coding)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// An encoder, whose output is in chunks (RFC 9112, 7.1).
pub struct ChunkEncoder(BodyEncoder);

enum BodyEncoder {
    Gzip(flate2::write::GzEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl ChunkEncoder {
    /// Starts an answer of `size` bytes. Fails if there is no memory.
    pub fn new(coding: ContentCoding, size: u64) -> std::io::Result<Self> {
        Ok(Self(match coding {
            ContentCoding::Gzip => {
                BodyEncoder::Gzip(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()))
            }
            ContentCoding::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1)?;
                // Browsers accept windows of at most 8 MiB (RFC 9659). A small window needs little memory.
                encoder.window_log(size.max(1).ilog2().clamp(10, 17) + 1)?;
                BodyEncoder::Zstd(encoder)
            }
        }))
    }

    /// Takes more input. Returns output to send, which may be empty.
    pub fn put(&mut self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        let made = match &mut self.0 {
            BodyEncoder::Gzip(encoder) => {
                encoder.write_all(bytes)?;
                std::mem::take(encoder.get_mut())
            }
            BodyEncoder::Zstd(encoder) => {
                encoder.write_all(bytes)?;
                std::mem::take(encoder.get_mut())
            }
        };
        Ok(if made.is_empty() { made } else { chunk(&made) })
    }

    /// Returns the rest of the output.
    pub fn end(self) -> std::io::Result<Vec<u8>> {
        let made = match self.0 {
            BodyEncoder::Gzip(encoder) => encoder.finish()?,
            BodyEncoder::Zstd(encoder) => encoder.finish()?,
        };
        let mut rest = if made.is_empty() { made } else { chunk(&made) };
        rest.extend_from_slice(b"0\r\n\r\n");
        Ok(rest)
    }
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// The bytes of chunks, by the letter of the format.
    fn joined(mut chunks: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let end = chunks.windows(2).position(|pair| pair == b"\r\n").expect("a line");
            let len = usize::from_str_radix(std::str::from_utf8(&chunks[..end]).unwrap(), 16).unwrap();
            chunks = &chunks[end + 2..];
            bytes.extend_from_slice(&chunks[..len]);
            assert_eq!(&chunks[len..len + 2], b"\r\n");
            chunks = &chunks[len + 2..];
            if len == 0 {
                assert!(chunks.is_empty());
                return bytes;
            }
        }
    }

    #[test]
    fn a_client_gets_the_coding_that_it_prefers() {
        for (gzip, zstd, identity, coding) in [
            (0, 0, None, None),
            (1000, 0, None, Some(ContentCoding::Gzip)),
            (1000, 1000, None, Some(ContentCoding::Zstd)),
            (1000, 500, None, Some(ContentCoding::Gzip)),
            (500, 1000, Some(0), Some(ContentCoding::Zstd)),
            (500, 0, Some(1000), None),
            (500, 0, Some(500), Some(ContentCoding::Gzip)),
        ] {
            let codings = Codings { gzip, zstd, identity };
            assert_eq!(ContentCoding::of(codings), coding, "{codings:?}");
        }
    }

    #[test]
    fn what_is_coded_is_the_same_again() {
        let text: Vec<u8> = (0..300_000u32).flat_map(|n| n.to_string().into_bytes()).collect();
        for coding in [ContentCoding::Gzip, ContentCoding::Zstd] {
            for size in [0, 1, text.len()] {
                let mut squeeze = ChunkEncoder::new(coding, size as u64).unwrap();
                let mut sent = Vec::new();
                for piece in text[..size].chunks(50_000) {
                    sent.extend(squeeze.put(piece).unwrap());
                }
                sent.extend(squeeze.end().unwrap());
                let coded = joined(&sent);
                let mut again = Vec::new();
                match coding {
                    ContentCoding::Gzip => {
                        flate2::read::GzDecoder::new(&*coded).read_to_end(&mut again).unwrap();
                    }
                    ContentCoding::Zstd => again = zstd::stream::decode_all(&*coded).unwrap(),
                }
                assert!(again == text[..size], "{coding:?} {size}");
                assert!(size < 1000 || coded.len() < size / 2);
            }
        }
    }
}
