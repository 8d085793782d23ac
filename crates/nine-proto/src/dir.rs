//! Directory data in both formats: Rreaddir of .L, and the stat records that Rread carries in 9P2000 and .u.
//!
//! In: typed entries that a server pushes into a [`DirBuf`] until it is full; the server does not see the dialect. Out:
//! encoded bytes, which a client decodes with [`Entries`].

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::attr::{Attr, Names};
use crate::dialect::Dialect;
use crate::ids::Qid;
use crate::stat::{Stat, mode};
use crate::wire::{Reader, Str, WireError, Writer};

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// The file's qid. Its version may be 0 here.
    pub qid: Qid,
    /// Opaque position *after* this entry, to continue from. Never 0, which is the start of the directory.
    pub cookie: u64,
    /// `d_type` of Linux: 4 directory, 8 file, 10 symbolic link, 0 unknown.
    pub ty: u8,
    /// Its name.
    pub name: Str<'a>,
}

impl Dirent<'_> {
    /// Returns the `d_type` of a Linux mode.
    pub fn type_of_mode(st_mode: u32) -> u8 {
        ((st_mode & mode::S_IFMT) >> 12) as u8
    }
}

/// The attributes that a stat record needs beside the entry.
pub type DirentAttr<'a> = Option<&'a Attr>;

/// The encoded entries for one client, limited to the bytes that it asked for.
pub struct DirBuf {
    bytes: Vec<u8>,
    limit: usize,
    last: u64,
    refused: bool,
    dialect: Dialect,
    names: Arc<dyn Names>,
}

impl DirBuf {
    /// Creates an empty buffer for `limit` bytes.
    pub fn new(dialect: Dialect, limit: usize, names: Arc<dyn Names>) -> Self {
        Self { bytes: Vec::new(), limit, last: 0, refused: false, dialect, names }
    }

    /// Whether the client's dialect needs the attributes of every entry. Such a dialect has no "." and "..".
    pub fn wants_attrs(&self) -> bool {
        !self.dialect.is_l()
    }

    /// Appends an entry. Returns `false` if it does not fit; the next read then starts with it. Push until `false` or
    /// the end of the directory: an answer without entries means the end. In a dialect of stat records, an entry
    /// without `attr` (a file that was just removed) is left out.
    pub fn push(&mut self, entry: &Dirent<'_>, attr: DirentAttr<'_>) -> bool {
        debug_assert!(entry.cookie != 0, "cookie 0 is the beginning");
        let before = self.bytes.len();
        if self.dialect.is_l() {
            let mut w = Writer::record(&mut self.bytes, self.dialect);
            w.qid(entry.qid);
            w.u64(entry.cookie);
            w.u8(entry.ty);
            w.str(entry.name);
        } else if let (Some(attr), false) = (attr, matches!(entry.name, b"." | b"..")) {
            attr.encode_stat(entry.name, &*self.names, Writer::record(&mut self.bytes, self.dialect));
        }
        if self.bytes.len() > self.limit {
            self.bytes.truncate(before);
            self.refused = true;
            return false;
        }
        self.last = entry.cookie;
        true
    }

    /// Returns the encoded entries.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the cookie of the last entry that fitted, or 0 if none did.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Whether not even one entry fits into the bytes that the client asked for.
    pub fn too_small(&self) -> bool {
        self.refused && self.bytes.is_empty()
    }
}

impl fmt::Debug for DirBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirBuf {{ {} of {} bytes }}", self.bytes.len(), self.limit)
    }
}

/// Decodes the entries of directory data. The iterator ends after the error of the first malformed record.
pub struct Entries<'a> {
    rest: Reader<'a>,
}

impl<'a> Entries<'a> {
    /// Creates the iterator over the data of an Rreaddir (.L), or of an Rread of a directory.
    pub fn new(data: &'a [u8], dialect: Dialect) -> Self {
        Self { rest: Reader::new(data, 0, dialect) }
    }

    fn one(&mut self) -> Result<(Dirent<'a>, Option<Stat<'a>>), WireError> {
        let r = &mut self.rest;
        if r.dialect.is_l() {
            return Ok((Dirent { qid: r.qid()?, cookie: r.u64()?, ty: r.u8()?, name: r.str()? }, None));
        }
        let stat = Stat::decode(r)?;
        let ty = Dirent::type_of_mode(mode::from_dm(stat.mode));
        Ok((Dirent { qid: stat.qid, cookie: 0, ty, name: stat.name }, Some(stat)))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<(Dirent<'a>, Option<Stat<'a>>), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.rest().is_empty() {
            return None;
        }
        let item = self.one();
        if item.is_err() {
            self.rest = Reader::new(&[], 0, self.rest.dialect);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Numeric;

    fn entry(name: Str<'_>, cookie: u64) -> Dirent<'_> {
        Dirent { qid: Qid { ty: 0, vers: 0, path: cookie }, cookie, ty: 8, name }
    }

    #[test]
    fn an_entry_that_does_not_fit_is_not_half_there() {
        let mut dir = DirBuf::new(Dialect::L, 60, Arc::new(Numeric));
        assert!(dir.push(&entry(b"first", 1), None));
        assert!(dir.push(&entry(b"second", 2), None));
        assert!(!dir.push(&entry(b"third", 3), None));
        let names: Vec<_> = Entries::new(dir.bytes(), Dialect::L).map(|e| e.unwrap().0.name).collect();
        assert_eq!(names, [&b"first"[..], b"second"]);
        assert_eq!((dir.last(), dir.too_small()), (2, false));
    }

    #[test]
    fn stat_records_leave_out_dot_entries_and_vanished_files() {
        let attr = Attr { mode: mode::S_IFREG, ..Attr::default() };
        let mut dir = DirBuf::new(Dialect::P2000, 200, Arc::new(Numeric));
        assert!(dir.push(&entry(b".", 1), Some(&attr)));
        assert!(dir.push(&entry(b"gone", 2), None));
        assert!(dir.push(&entry(b"here", 3), Some(&attr)));
        let names: Vec<_> = Entries::new(dir.bytes(), Dialect::P2000).map(|e| e.unwrap().0.name).collect();
        assert_eq!(names, [b"here"]);
    }

    #[test]
    fn a_buffer_too_small_for_one_entry_says_so() {
        let mut dir = DirBuf::new(Dialect::L, 10, Arc::new(Numeric));
        assert!(!dir.push(&entry(b"name", 1), None));
        assert!(dir.too_small());
    }

    #[test]
    fn malformed_data_ends_with_one_error() {
        let mut dir = DirBuf::new(Dialect::L, 100, Arc::new(Numeric));
        dir.push(&entry(b"name", 1), None);
        let cut = &dir.bytes()[..dir.bytes().len() - 1];
        let items: Vec<_> = Entries::new(cut, Dialect::L).collect();
        assert_eq!(items.len(), 1);
        assert!(items[0].is_err());
    }
}
