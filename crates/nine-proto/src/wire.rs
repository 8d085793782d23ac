//! Encodes and decodes the basic fields: integers, strings, qids. It knows nothing of messages.
//!
//! All integers are little-endian. A string is `count[2]` and that many bytes. [`Reader`] cannot over-read. [`Writer`]
//! patches `size[4]` when the message is complete. Strings stay bytes: Linux file names need not be UTF-8, and names
//! must pass through unchanged.

use alloc::vec::Vec;
use core::fmt;

use crate::dialect::Dialect;
use crate::ids::{Fid, Qid, Tag};

/// The bytes of a string in a frame. The manual says UTF-8; peers send any bytes.
pub type Str<'a> = &'a [u8];

/// A malformed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// `size[4]` is below 7 or above the agreed msize. Holds that size.
    Size(u32),
    /// A field reaches past the end of the message. Holds the message type.
    Short(u8),
    /// Bytes are left after the last field. Holds the message type.
    Trailing(u8),
    /// No message of this dialect and direction has this number.
    Type(u8),
    /// A count in the message exceeds its limit. Holds the message type.
    Count(u8),
    /// A stat record is inconsistent or malformed.
    Stat,
    /// The reply matches no outstanding request, or has the wrong type for it. Holds the message type.
    Reply(u8),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(n) => write!(f, "bad message size {n}"),
            Self::Short(ty) => write!(f, "message type {ty} is cut short"),
            Self::Trailing(ty) => write!(f, "message type {ty} has bytes after its end"),
            Self::Type(ty) => write!(f, "no message has type {ty} here"),
            Self::Count(ty) => write!(f, "message type {ty} has a count beyond its limit"),
            Self::Stat => f.write_str("malformed stat record"),
            Self::Reply(ty) => write!(f, "reply of type {ty} to nothing that was asked"),
        }
    }
}

impl core::error::Error for WireError {}

/// Decodes fields from the front of a message.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// The dialect, which decides the fields of a message.
    pub dialect: Dialect,
    ty: u8,
}

impl<'a> Reader<'a> {
    /// Creates a reader of `bytes`, which belong to a message of type `ty`.
    pub fn new(bytes: &'a [u8], ty: u8, dialect: Dialect) -> Self {
        Self { rest: bytes, dialect, ty }
    }

    /// Takes the next `n` bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(WireError::Short(self.ty))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(WireError::Short(self.ty))?;
        self.rest = rest;
        Ok(*head)
    }

    /// Takes an integer `[1]`.
    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[b]| b)
    }

    /// Takes an integer `[2]`.
    pub fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    /// Takes an integer `[4]`.
    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Takes an integer `[8]`.
    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Takes a string `[s]`.
    pub fn str(&mut self) -> Result<Str<'a>, WireError> {
        let n = self.u16()?;
        self.take(n.into())
    }

    /// Takes a `qid[13]`.
    pub fn qid(&mut self) -> Result<Qid, WireError> {
        Ok(Qid { ty: self.u8()?, vers: self.u32()?, path: self.u64()? })
    }

    /// Returns the error for a count that exceeds its limit in this message.
    pub fn count_error(&self) -> WireError {
        WireError::Count(self.ty)
    }

    /// Returns the bytes that are not decoded yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Checks that the message ends here.
    pub fn end(&self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Trailing(self.ty)) }
    }
}

/// Encodes one message at the end of a buffer, which may already hold others.
pub struct Writer<'a> {
    buf: &'a mut Vec<u8>,
    start: usize,
    /// The dialect, which decides the fields of a message.
    pub dialect: Dialect,
}

impl<'a> Writer<'a> {
    /// Starts a message: a `size[4]` to be patched, then `type[1] tag[2]`.
    pub fn message(buf: &'a mut Vec<u8>, ty: u8, tag: Tag, dialect: Dialect) -> Self {
        let mut w = Self { start: buf.len(), buf, dialect };
        w.u32(0);
        w.u8(ty);
        w.u16(tag.0);
        w
    }

    /// Ends the message. `payload` is the number of bytes that the caller sends after it; the size includes them.
    pub fn finish(self, payload: usize) {
        let size =
            u32::try_from(self.buf.len() - self.start + payload).expect("a message is bounded by msize");
        self.buf[self.start..self.start + 4].copy_from_slice(&size.to_le_bytes());
    }

    /// Starts a counted record (a stat): appends to `buf` without a message header.
    pub fn record(buf: &'a mut Vec<u8>, dialect: Dialect) -> Self {
        Self { start: buf.len(), buf, dialect }
    }

    /// Patches the `[2]` at the start of a record with the number of bytes after it.
    pub fn finish_record(self) {
        let size = u16::try_from(self.buf.len() - self.start - 2).expect("a stat record is below 64 KiB");
        self.buf[self.start..self.start + 2].copy_from_slice(&size.to_le_bytes());
    }

    /// Starts a record inside this message.
    pub fn nested(&mut self) -> Writer<'_> {
        Writer { start: self.buf.len(), dialect: self.dialect, buf: self.buf }
    }

    /// Appends an integer `[1]`.
    pub fn u8(&mut self, v: u8) {
        self.buf.push(v);
    }

    /// Appends an integer `[2]`.
    pub fn u16(&mut self, v: u16) {
        self.buf.extend_from_slice(&v.to_le_bytes());
    }

    /// Appends an integer `[4]`.
    pub fn u32(&mut self, v: u32) {
        self.buf.extend_from_slice(&v.to_le_bytes());
    }

    /// Appends an integer `[8]`.
    pub fn u64(&mut self, v: u64) {
        self.buf.extend_from_slice(&v.to_le_bytes());
    }

    /// Appends a string `[s]`. Panics if it exceeds 65,535 bytes: callers bound names to 255 bytes and texts by msize.
    pub fn str(&mut self, v: Str<'_>) {
        let n = u16::try_from(v.len()).expect("strings are bounded before they get here");
        self.u16(n);
        self.buf.extend_from_slice(v);
    }

    /// Appends raw bytes.
    pub fn bytes(&mut self, v: &[u8]) {
        self.buf.extend_from_slice(v);
    }

    /// Appends a `qid[13]`.
    pub fn qid(&mut self, v: Qid) {
        self.u8(v.ty);
        self.u32(v.vers);
        self.u64(v.path);
    }

    /// Appends a fid.
    pub fn fid(&mut self, v: Fid) {
        self.u32(v.0);
    }
}

/// Formats a [`Str`] for people. Control characters and bytes that are not UTF-8 are escaped.
pub fn show(s: Str<'_>) -> impl fmt::Display + '_ {
    struct EscapedStr<'a>(Str<'a>);
    impl fmt::Display for EscapedStr<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            for chunk in self.0.utf8_chunks() {
                for c in chunk.valid().chars() {
                    if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
                }
                write!(f, "{}", chunk.invalid().escape_ascii())?;
            }
            Ok(())
        }
    }
    EscapedStr(s)
}
