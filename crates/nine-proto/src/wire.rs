//! Integers, strings and qids on the wire, and nothing about messages.
//!
//! Little-endian throughout. A string is `count[2]` and that many bytes. [`Reader`] cannot over-read; [`Writer`]
//! patches `size[4]` when the message is complete. Strings stay bytes: Linux file names need not be UTF-8, and a name
//! must survive the way through us unchanged.

use alloc::vec::Vec;
use core::fmt;

use crate::dialect::Dialect;
use crate::ids::{Fid, Qid, Tag};

/// A string as it stands in the frame. UTF-8 by the manual, any bytes in practice.
pub type Str<'a> = &'a [u8];

/// The bytes are wrong: there is nothing to answer, the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// `size[4]` is below 7 or above what was agreed; the size it said.
    Size(u32),
    /// A field reaches past the end of the message; the message type.
    Short(u8),
    /// Bytes are left after the last field; the message type.
    Trailing(u8),
    /// No message of this dialect and direction has this number.
    Type(u8),
    /// A count in the message is beyond its limit; the message type.
    Count(u8),
    /// A stat record contradicts itself.
    Stat,
    /// The peer answered a request that was not asked, or with the wrong message; the message type.
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

/// Takes fields off the front of a message.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// Decides which fields exist.
    pub dialect: Dialect,
    ty: u8,
}

impl<'a> Reader<'a> {
    /// A reader of `bytes`, which belong to a message of type `ty`.
    pub fn new(bytes: &'a [u8], ty: u8, dialect: Dialect) -> Self {
        Self { rest: bytes, dialect, ty }
    }

    /// The next `n` bytes.
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

    /// `[1]`.
    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[b]| b)
    }

    /// `[2]`.
    pub fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    /// `[4]`.
    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    /// `[8]`.
    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    /// `[s]`.
    pub fn str(&mut self) -> Result<Str<'a>, WireError> {
        let n = self.u16()?;
        self.take(n.into())
    }

    /// `qid[13]`.
    pub fn qid(&mut self) -> Result<Qid, WireError> {
        Ok(Qid { ty: self.u8()?, vers: self.u32()?, path: self.u64()? })
    }

    /// A count beyond the limit of this message.
    pub fn count_error(&self) -> WireError {
        WireError::Count(self.ty)
    }

    /// What has not been taken yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The message must end here.
    pub fn end(&self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Trailing(self.ty)) }
    }
}

/// Appends one message to a buffer that may already hold others.
pub struct Writer<'a> {
    buf: &'a mut Vec<u8>,
    start: usize,
    /// Decides which fields exist.
    pub dialect: Dialect,
}

impl<'a> Writer<'a> {
    /// Begins a message: `size[4]` to be patched, `type[1] tag[2]`.
    pub fn message(buf: &'a mut Vec<u8>, ty: u8, tag: Tag, dialect: Dialect) -> Self {
        let mut w = Self { start: buf.len(), buf, dialect };
        w.u32(0);
        w.u8(ty);
        w.u16(tag.0);
        w
    }

    /// Ends the message; `payload` more bytes will follow from elsewhere and count into its size.
    pub fn finish(self, payload: usize) {
        let size =
            u32::try_from(self.buf.len() - self.start + payload).expect("a message is bounded by msize");
        self.buf[self.start..self.start + 4].copy_from_slice(&size.to_le_bytes());
    }

    /// Begins a counted record (a stat) inside other bytes: appends to `buf` without a message head.
    pub fn record(buf: &'a mut Vec<u8>, dialect: Dialect) -> Self {
        Self { start: buf.len(), buf, dialect }
    }

    /// Patches the `[2]` at the start of a record with the number of bytes after it.
    pub fn finish_record(self) {
        let size = u16::try_from(self.buf.len() - self.start - 2).expect("a stat record is below 64 KiB");
        self.buf[self.start..self.start + 2].copy_from_slice(&size.to_le_bytes());
    }

    /// A record inside this message.
    pub fn nested(&mut self) -> Writer<'_> {
        Writer { start: self.buf.len(), dialect: self.dialect, buf: self.buf }
    }

    /// `[1]`.
    pub fn u8(&mut self, v: u8) {
        self.buf.push(v);
    }

    /// `[2]`.
    pub fn u16(&mut self, v: u16) {
        self.buf.extend_from_slice(&v.to_le_bytes());
    }

    /// `[4]`.
    pub fn u32(&mut self, v: u32) {
        self.buf.extend_from_slice(&v.to_le_bytes());
    }

    /// `[8]`.
    pub fn u64(&mut self, v: u64) {
        self.buf.extend_from_slice(&v.to_le_bytes());
    }

    /// `[s]`. A string beyond 65,535 bytes cannot be said; callers have bounded it (names 255, texts by msize).
    pub fn str(&mut self, v: Str<'_>) {
        let n = u16::try_from(v.len()).expect("strings are bounded before they get here");
        self.u16(n);
        self.buf.extend_from_slice(v);
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, v: &[u8]) {
        self.buf.extend_from_slice(v);
    }

    /// `qid[13]`.
    pub fn qid(&mut self, v: Qid) {
        self.u8(v.ty);
        self.u32(v.vers);
        self.u64(v.path);
    }

    /// A fid.
    pub fn fid(&mut self, v: Fid) {
        self.u32(v.0);
    }
}

/// Prints a [`Str`] for people: as text where it is UTF-8 and printable, escaped where not.
pub fn show(s: Str<'_>) -> impl fmt::Display + '_ {
    struct Show<'a>(Str<'a>);
    impl fmt::Display for Show<'_> {
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
    Show(s)
}
