//! The types of message fields. Each one decodes, encodes and prints itself.

use core::fmt;

use crate::attr::{Attr, GetMask, SetMask, Statfs, Time};
use crate::ids::{Fid, NOUID, Qid, Tag};
use crate::stat::Stat;
use crate::wire::{Reader, Str, WireError, Writer, show};

/// The maximum number of names in one Twalk (fcall(2)).
pub const MAXWELEM: usize = 16;

/// A field of a message.
pub(super) trait MessageField<'a>: Sized {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError>;
    fn put(&self, w: &mut Writer<'_>);
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

macro_rules! plain {
    ($($ty:ty: $r:ident => $get:expr; $w:ident, $v:ident => $put:expr;)*) => {$(
        impl<'a> MessageField<'a> for $ty {
            fn get($r: &mut Reader<'a>) -> Result<Self, WireError> {
                Ok($get)
            }
            fn put(&self, $w: &mut Writer<'_>) {
                let $v = *self;
                $put
            }
            fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
    )*};
}

plain! {
    u8: r => r.u8()?; w, v => w.u8(v);
    u32: r => r.u32()?; w, v => w.u32(v);
    u64: r => r.u64()?; w, v => w.u64(v);
    Tag: r => Tag(r.u16()?); w, v => w.u16(v.0);
    Fid: r => Fid(r.u32()?); w, v => w.fid(v);
    Qid: r => r.qid()?; w, v => w.qid(v);
}

impl<'a> MessageField<'a> for Str<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        r.str()
    }
    fn put(&self, w: &mut Writer<'_>) {
        w.str(self);
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", show(self))
    }
}

/// `count[4] data[count]`: file data. If the data is sent from elsewhere, only its count is known here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Data<'a> {
    /// The bytes.
    Bytes(&'a [u8]),
    /// The number of bytes, which follow the message (see `encode_before`).
    Count(u32),
}

impl<'a> Data<'a> {
    /// Returns the bytes of a decoded message. Empty for `Count`.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Count(_) => &[],
        }
    }

    fn count(self) -> u32 {
        match self {
            Self::Bytes(bytes) => u32::try_from(bytes.len()).expect("data is bounded by msize"),
            Self::Count(count) => count,
        }
    }
}

impl fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.count())
    }
}

impl<'a> MessageField<'a> for Data<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let count = r.u32()?;
        r.take(count as usize).map(Self::Bytes)
    }
    fn put(&self, w: &mut Writer<'_>) {
        w.u32(self.count());
        if let Self::Bytes(bytes) = self {
            w.bytes(bytes);
        }
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.count())
    }
}

/// A number that .u and .L have (`n_uname`). In 9P2000 it reads as `NOUID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnlyIds(pub u32);

impl<'a> MessageField<'a> for OnlyIds {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        if r.dialect.has_ids() { r.u32().map(Self) } else { Ok(Self(NOUID)) }
    }
    fn put(&self, w: &mut Writer<'_>) {
        if w.dialect.has_ids() {
            w.u32(self.0);
        }
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == NOUID { f.write_str("none") } else { write!(f, "{}", self.0) }
    }
}

/// A number that only .u has (Rerror's `errno`). In other dialects it reads as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnlyU(pub u32);

impl<'a> MessageField<'a> for OnlyU {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        if r.dialect.is_u() { r.u32().map(Self) } else { Ok(Self(0)) }
    }
    fn put(&self, w: &mut Writer<'_>) {
        if w.dialect.is_u() {
            w.u32(self.0);
        }
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A number at the end of a message that older clients leave out (Tfsync's `datasync`). If absent it reads as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionalU32(pub u32);

impl<'a> MessageField<'a> for OptionalU32 {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        if r.rest().is_empty() { Ok(Self(0)) } else { r.u32().map(Self) }
    }
    fn put(&self, w: &mut Writer<'_>) {
        w.u32(self.0);
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A string that only .u has (Tcreate's `extension`). In other dialects it reads as empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnlyUStr<'a>(pub Str<'a>);

impl<'a> MessageField<'a> for OnlyUStr<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        if r.dialect.is_u() { r.str().map(Self) } else { Ok(Self(b"")) }
    }
    fn put(&self, w: &mut Writer<'_>) {
        if w.dialect.is_u() {
            w.str(self.0);
        }
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show(f)
    }
}

/// `nwname[2] nwname*(wname[s])`: at most 16 names. Decoding checks them; iteration needs no allocation.
#[derive(Clone, Copy)]
pub enum Names<'a> {
    /// Names in a received frame.
    Wire {
        /// The number of names.
        count: u16,
        /// `wname[s]` after `wname[s]`.
        bytes: &'a [u8],
    },
    /// Names that a client sends, at most 16.
    Slice(&'a [Str<'a>]),
}

impl<'a> Names<'a> {
    /// Returns the number of names.
    pub fn len(self) -> usize {
        match self {
            Self::Wire { count, .. } => count.into(),
            Self::Slice(names) => names.len(),
        }
    }

    /// Whether there are no names.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the names after the first `n`.
    #[must_use]
    pub fn after(self, n: usize) -> Self {
        let n = n.min(self.len());
        match self {
            Self::Wire { count, bytes } => {
                let before: usize = self.iter().take(n).map(|name| 2 + name.len()).sum();
                Self::Wire { count: count - n as u16, bytes: &bytes[before..] }
            }
            Self::Slice(names) => Self::Slice(&names[n..]),
        }
    }

    /// Iterates over the names in order.
    pub fn iter(self) -> impl Iterator<Item = Str<'a>> + Clone {
        let (mut wire, slice): (&[u8], &[Str<'a>]) = match self {
            Self::Wire { bytes, .. } => (bytes, &[]),
            Self::Slice(names) => (&[], names),
        };
        let wire = core::iter::from_fn(move || {
            let (len, rest) = wire.split_first_chunk::<2>()?;
            let (name, rest) = rest.split_at(u16::from_le_bytes(*len).into());
            wire = rest;
            Some(name)
        });
        wire.chain(slice.iter().copied())
    }
}

impl PartialEq for Names<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show(f)
    }
}

impl<'a> MessageField<'a> for Names<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let count = r.u16()?;
        if usize::from(count) > MAXWELEM {
            return Err(r.count_error());
        }
        let all = r.rest();
        for _ in 0..count {
            r.str()?;
        }
        Ok(Self::Wire { count, bytes: &all[..all.len() - r.rest().len()] })
    }
    fn put(&self, w: &mut Writer<'_>) {
        assert!(self.len() <= MAXWELEM, "a walk has at most 16 names");
        w.u16(self.len() as u16);
        for name in self.iter() {
            w.str(name);
        }
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("'")?;
        for (i, name) in self.iter().enumerate() {
            if i > 0 {
                f.write_str("/")?;
            }
            write!(f, "{}", show(name))?;
        }
        f.write_str("'")
    }
}

/// `nwqid[2] nwqid*(qid[13])`: at most 16 qids.
#[derive(Clone, Copy)]
pub enum Qids<'a> {
    /// Qids in a received frame, a multiple of 13 bytes.
    Wire(&'a [u8]),
    /// Qids that a server sends, at most 16.
    Slice(&'a [Qid]),
}

impl<'a> Qids<'a> {
    /// Returns the number of qids.
    pub fn len(self) -> usize {
        match self {
            Self::Wire(bytes) => bytes.len() / Qid::SIZE,
            Self::Slice(qids) => qids.len(),
        }
    }

    /// Whether there are no qids.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Iterates over the qids in order.
    pub fn iter(self) -> impl Iterator<Item = Qid> + 'a {
        let (wire, slice): (&[u8], &[Qid]) = match self {
            Self::Wire(bytes) => (bytes, &[]),
            Self::Slice(qids) => (&[], qids),
        };
        let wire = wire.chunks_exact(Qid::SIZE).map(|b| Qid {
            ty: b[0],
            vers: u32::from_le_bytes([b[1], b[2], b[3], b[4]]),
            path: u64::from_le_bytes([b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12]]),
        });
        wire.chain(slice.iter().copied())
    }
}

impl PartialEq for Qids<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Qids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show(f)
    }
}

impl<'a> MessageField<'a> for Qids<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let count = usize::from(r.u16()?);
        if count > MAXWELEM {
            return Err(r.count_error());
        }
        r.take(count * Qid::SIZE).map(Self::Wire)
    }
    fn put(&self, w: &mut Writer<'_>) {
        assert!(self.len() <= MAXWELEM, "a walk has at most 16 qids");
        w.u16(self.len() as u16);
        for qid in self.iter() {
            w.qid(qid);
        }
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, qid) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{qid}")?;
        }
        f.write_str("]")
    }
}

/// `n[2] stat[n]`: the length appears twice, and both values must agree.
impl<'a> MessageField<'a> for Stat<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let n = r.u16()?;
        let mut inner = Reader::new(r.take(n.into())?, 0, r.dialect);
        let stat = Stat::decode(&mut inner)?;
        inner.end().map_err(|_| WireError::Stat)?;
        Ok(stat)
    }
    fn put(&self, w: &mut Writer<'_>) {
        let mut outer = w.nested();
        outer.u16(0);
        self.encode(outer.nested());
        outer.finish_record();
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// `sec[8] nsec[8]`.
impl<'a> MessageField<'a> for Time {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let sec = r.u64()? as i64;
        Ok(Self { sec, nsec: r.u64()?.min(u64::from(u32::MAX)) as u32 })
    }
    fn put(&self, w: &mut Writer<'_>) {
        w.u64(self.sec as u64);
        w.u64(self.nsec.into());
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.sec, self.nsec)
    }
}

impl<'a> MessageField<'a> for SetMask {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        r.u32().map(Self)
    }
    fn put(&self, w: &mut Writer<'_>) {
        w.u32(self.0);
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The 153 bytes after the header of an Rgetattr.
impl<'a> MessageField<'a> for Attr {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            valid: GetMask(r.u64()? & GetMask::ALL.0),
            qid: r.qid()?,
            mode: r.u32()?,
            uid: r.u32()?,
            gid: r.u32()?,
            nlink: r.u64()?,
            rdev: r.u64()?,
            size: r.u64()?,
            blksize: r.u64()?,
            blocks: r.u64()?,
            atime: Time::get(r)?,
            mtime: Time::get(r)?,
            ctime: Time::get(r)?,
            btime: Time::get(r)?,
            generation: r.u64()?,
            data_version: r.u64()?,
            texts: None,
        })
    }
    fn put(&self, w: &mut Writer<'_>) {
        w.u64(self.valid.0 & GetMask::ALL.0);
        w.qid(self.qid);
        for v in [self.mode, self.uid, self.gid] {
            w.u32(v);
        }
        for v in [self.nlink, self.rdev, self.size, self.blksize, self.blocks] {
            w.u64(v);
        }
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            time.put(w);
        }
        w.u64(self.generation);
        w.u64(self.data_version);
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "valid {:#x} q {} m {:#o} uid {} gid {} nlink {} rdev {:#x} size {} blksize {} blocks {} at ",
            self.valid.0,
            self.qid,
            self.mode,
            self.uid,
            self.gid,
            self.nlink,
            self.rdev,
            self.size,
            self.blksize,
            self.blocks
        )?;
        self.atime.show(f)?;
        f.write_str(" mt ")?;
        self.mtime.show(f)?;
        f.write_str(" ct ")?;
        self.ctime.show(f)
    }
}

impl<'a> MessageField<'a> for Statfs {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            ty: r.u32()?,
            bsize: r.u32()?,
            blocks: r.u64()?,
            bfree: r.u64()?,
            bavail: r.u64()?,
            files: r.u64()?,
            ffree: r.u64()?,
            fsid: r.u64()?,
            namelen: r.u32()?,
        })
    }
    fn put(&self, w: &mut Writer<'_>) {
        w.u32(self.ty);
        w.u32(self.bsize);
        for v in [self.blocks, self.bfree, self.bavail, self.files, self.ffree, self.fsid] {
            w.u64(v);
        }
        w.u32(self.namelen);
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "type {:#x} bsize {} blocks {} bfree {} bavail {} files {} ffree {} fsid {:#x} namelen {}",
            self.ty,
            self.bsize,
            self.blocks,
            self.bfree,
            self.bavail,
            self.files,
            self.ffree,
            self.fsid,
            self.namelen
        )
    }
}
