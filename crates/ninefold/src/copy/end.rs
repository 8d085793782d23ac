//! A common interface to both ends of a copy: a directory of this machine or of a server, its sources and sinks.
//!
//! Always holds: names are single path elements, and below the directory that the user named no link is followed. So a
//! server's listing cannot lead a copy out of its destination.

use std::fs::File;
use std::os::fd::AsFd;

use anyhow::{Result, bail};
use bytes::Bytes;
use nine_io::client::{Direction, Reader, Stream};
use nine_proto::{Attr, GetMask, Time, mode};

use super::{local, remote, temp_name};
use crate::ancestors::DirectoryId;

/// The metadata of a file.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    pub kind: Kind,
    /// The qid's path, or the inode number.
    pub id: u64,
    /// Permissions, 07777.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub mtime: Time,
    /// Number of hard links.
    pub links: u64,
    /// The qid's version and the time of the last attribute change: if both are equal, the file has not changed. `None`
    /// on this machine, and for servers that do not report them.
    pub state: Option<(u32, Time)>,
    /// An open or a read has side effects, so only a user who names the file may cause them.
    pub is_event: bool,
    /// The file may have holes: it has fewer blocks than its length needs, or the number is unknown.
    pub is_sparse: bool,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Dir,
    File,
    Link,
    /// Pipes, devices, sockets: an open may block or have side effects.
    Special,
}

impl Kind {
    pub fn of(st_mode: u32) -> Kind {
        match st_mode & mode::S_IFMT {
            mode::S_IFDIR => Kind::Dir,
            mode::S_IFREG => Kind::File,
            mode::S_IFLNK => Kind::Link,
            _ => Kind::Special,
        }
    }
}

impl From<&Attr> for Meta {
    fn from(attr: &Attr) -> Meta {
        let (kind, mode) = (Kind::of(attr.mode), attr.mode & 0o7777);
        Meta {
            kind,
            id: attr.qid.path,
            mode,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            mtime: attr.mtime,
            links: attr.nlink,
            state: attr.valid.has(GetMask::CTIME).then_some((attr.qid.vers, attr.ctime)),
            is_event: attr.qid.is_event(),
            is_sparse: !attr.valid.has(GetMask::BLOCKS) || is_sparse(attr.size, attr.blocks),
        }
    }
}

/// Returns whether this many blocks of 512 bytes hold less than the length of the file.
pub fn is_sparse(size: u64, blocks: u64) -> bool {
    blocks.saturating_mul(512) < size
}

impl Meta {
    /// Returns whether a copy has the same kind, length and modification time. Some ends have only whole seconds.
    pub fn is_like(&self, kind: Kind, size: u64, mtime: Time) -> bool {
        let same_time = self.mtime.sec == mtime.sec && [self.mtime.nsec, 0].contains(&mtime.nsec);
        self.kind == kind && self.size == size && same_time
    }

    /// Returns the mode for the copy. Without `preserve` the copy loses its set-id bits: it has another owner.
    pub fn mode_for(&self, preserve: bool) -> u32 {
        if preserve { self.mode } else { self.mode & 0o1777 }
    }
}

/// A directory.
#[derive(Clone)]
pub enum Dir {
    Local(local::Dir),
    Remote(remote::Dir),
}

/// An entry of a directory. An error concerns only this name.
pub struct Found {
    pub name: Vec<u8>,
    pub meta: Result<Meta>,
}

impl Dir {
    /// Returns the directory's identity.
    pub fn id(&self) -> Result<DirectoryId> {
        match self {
            Dir::Local(dir) => dir.id(),
            Dir::Remote(dir) => Ok(dir.id()),
        }
    }

    /// Starts to list the directory.
    pub async fn listing(&self) -> Result<Listing> {
        Ok(match self {
            Dir::Local(dir) => Listing::Local(dir.listing()?),
            Dir::Remote(dir) => Listing::Remote(dir.listing().await?),
        })
    }

    /// Returns all names in the directory.
    pub async fn names(&self) -> Result<Vec<Vec<u8>>> {
        match self {
            Dir::Local(dir) => dir.names(),
            Dir::Remote(dir) => dir.names().await,
        }
    }

    /// Opens the directory of this name; for an empty name, this directory again.
    pub async fn dir(&self, name: &[u8]) -> Result<Dir> {
        Ok(match self {
            Dir::Local(dir) => Dir::Local(dir.dir(name)?),
            Dir::Remote(dir) => Dir::Remote(dir.dir(name).await?),
        })
    }

    /// Opens the directory of this name, or creates it. Also returns whether it existed.
    pub async fn make_dir(&self, name: &[u8]) -> Result<(Dir, bool)> {
        if name.is_empty() {
            return Ok((self.dir(name).await?, true));
        }
        check(name)?;
        Ok(match self {
            Dir::Local(dir) => dir.make_dir(name).map(|(dir, was)| (Dir::Local(dir), was))?,
            Dir::Remote(dir) => dir.make_dir(name).await.map(|(dir, was)| (Dir::Remote(dir), was))?,
        })
    }

    /// Returns the metadata of this name; for an empty name, of the directory itself.
    pub async fn stat(&self, name: &[u8]) -> Result<Meta> {
        match self {
            Dir::Local(dir) => dir.stat(name),
            Dir::Remote(dir) => dir.stat(name).await,
        }
    }

    /// Returns whether equal ids in both mean the same file.
    pub fn same_world(&self, other: &Dir) -> bool {
        match (self, other) {
            (Dir::Local(_), Dir::Local(_)) => true,
            (Dir::Remote(a), Dir::Remote(b)) => a.same_session(b),
            _ => false,
        }
    }

    /// Returns whether both are the same directory, perhaps seen through two servers. Creates a temporary file in one
    /// to look for it in the other.
    pub async fn is(&self, other: &Dir) -> Result<bool> {
        let probe = self.create(temp_name().as_bytes(), &Aside::default()).await?;
        probe.ready().await?;
        let seen = other.stat(probe.name()).await.is_ok();
        probe.discard().await;
        Ok(seen)
    }

    /// Returns the target of a link.
    pub async fn readlink(&self, name: &[u8]) -> Result<Vec<u8>> {
        match self {
            Dir::Local(dir) => dir.readlink(name),
            Dir::Remote(dir) => dir.readlink(name).await,
        }
    }

    /// Creates a link, replacing an existing file. With `preserve`, sets its owner if possible.
    pub async fn symlink(&self, name: &[u8], target: &[u8], meta: &Meta, preserve: bool) -> Result<()> {
        check(name)?;
        match self {
            Dir::Local(dir) => dir.symlink(name, target, meta, preserve),
            Dir::Remote(dir) => dir.symlink(name, target, meta, preserve).await,
        }
    }

    /// Opens a plain file for reading from offset `at`.
    pub async fn open(&self, name: &[u8], meta: &Meta, at: u64) -> Result<Source> {
        Ok(match self {
            Dir::Local(dir) => {
                Source::Local { file: dir.open(name)?, at, size: meta.size, is_sparse: meta.is_sparse }
            }
            Dir::Remote(dir) => Source::Remote(dir.open(name, at, meta).await?),
        })
    }

    /// Creates a file for writing, which gets its name when it is complete.
    pub async fn create(&self, name: &[u8], aside: &Aside) -> Result<Sink> {
        check(name)?;
        Ok(match self {
            Dir::Local(dir) => Sink::Local(dir.create(name, aside)?),
            Dir::Remote(dir) => Sink::Remote(dir.create(name, aside).await?),
        })
    }

    /// Removes a file.
    pub async fn unlink(&self, name: &[u8]) -> Result<()> {
        match self {
            Dir::Local(dir) => dir.unlink(name),
            Dir::Remote(dir) => dir.unlink(name).await,
        }
    }

    /// Opens an existing file to overwrite it in place, because it is more than its content (a device, for example).
    pub async fn open_in_place(&self, name: &[u8]) -> Result<Sink> {
        Ok(match self {
            Dir::Local(dir) => Sink::Local(dir.open_in_place(name)?),
            Dir::Remote(dir) => Sink::Remote(dir.open_in_place(name).await?),
        })
    }

    /// Creates a hard link to a file in another directory of the same end, replacing an existing file.
    pub async fn link(&self, name: &[u8], dir: &Dir, other: &[u8]) -> Result<()> {
        check(name)?;
        match (self, dir) {
            (Dir::Local(here), Dir::Local(dir)) => here.link(name, dir, other),
            (Dir::Remote(here), Dir::Remote(dir)) => here.link(name, dir, other).await,
            _ => bail!("they are of two ends"),
        }
    }

    /// Sets mode, owner and time of the file with this name.
    pub async fn dress(&self, name: &[u8], meta: &Meta) -> Result<()> {
        match self {
            Dir::Local(dir) => dir.dress(name, meta),
            Dir::Remote(dir) => dir.dress(name, meta).await,
        }
    }

    /// Returns the extended attributes of the directory itself; empty if they are not supported.
    pub async fn xattrs(&self) -> Result<Vec<Xattr>> {
        match self {
            Dir::Local(_) => Ok(Vec::new()),
            Dir::Remote(dir) => dir.xattrs().await,
        }
    }

    /// Sets these extended attributes. Returns how many could not be set. With `inherited`, the directory is new, and
    /// access control lists that are not among them are removed.
    pub async fn set_xattrs(&self, all: &[Xattr], inherited: bool) -> Result<usize> {
        match self {
            Dir::Local(dir) => Ok(dir.set_xattrs(all, inherited)),
            Dir::Remote(dir) => dir.set_xattrs(all, inherited).await,
        }
    }

    /// Makes the directory writable for its owner. Returns the previous mode if it was changed. Only the owner can do
    /// this.
    pub async fn lift(&self) -> Option<u32> {
        let mode = self.stat(b"").await.ok()?.mode & 0o7777;
        if mode & OWNER_WRITES == OWNER_WRITES {
            return None;
        }
        self.set_mode(mode | OWNER_WRITES).await.ok().map(|()| mode)
    }

    /// Sets the mode of the directory itself.
    pub async fn set_mode(&self, mode: u32) -> Result<()> {
        match self {
            Dir::Local(dir) => dir.set_mode(mode),
            Dir::Remote(dir) => dir.set_mode(mode).await,
        }
    }

    /// Sets mode and time of the directory itself, after it was filled.
    pub async fn finish(&self, meta: &Meta, preserve: bool) -> Result<()> {
        match self {
            Dir::Local(dir) => dir.finish(meta, preserve),
            Dir::Remote(dir) => dir.finish(meta, preserve).await,
        }
    }
}

/// The mode bits that a directory's owner needs to create, rename and remove names in it.
const OWNER_WRITES: u32 = 0o300;

/// An extended attribute: its name and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// Fails unless this can be a name in a directory, wherever it comes from.
fn check(name: &[u8]) -> Result<()> {
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, b'/' | 0)) {
        bail!("no file can have this name");
    }
    Ok(())
}

/// A listing of a directory with the metadata of each name.
pub enum Listing {
    Local(local::Listing),
    Remote(remote::Listing),
}

impl Listing {
    /// Returns the next entries, some hundred; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<Found>>> {
        match self {
            Listing::Local(listing) => listing.next(),
            Listing::Remote(listing) => listing.next().await,
        }
    }
}

/// A file that is read from some offset on.
pub enum Source {
    Local { file: File, at: u64, size: u64, is_sparse: bool },
    Remote(remote::Opened),
}

impl Source {
    /// Returns its current metadata.
    pub async fn stat(&self) -> Result<Meta> {
        match self {
            Source::Local { file, .. } => local::stat(file),
            Source::Remote(opened) => {
                opened.ready().await?;
                Ok(Meta::from(&opened.file.getattr(GetMask::BASIC).await?))
            }
        }
    }

    /// Returns the extended attributes of a server's file; empty for a local file.
    pub async fn xattrs(&self) -> Result<Vec<Xattr>> {
        match self {
            Source::Local { .. } => Ok(Vec::new()),
            Source::Remote(opened) => {
                opened.ready().await?;
                remote::xattrs(&opened.file).await
            }
        }
    }

    /// Returns the offset at which reading begins.
    pub(super) fn at(&self) -> u64 {
        match self {
            Source::Local { at, .. } => *at,
            Source::Remote(opened) => opened.at,
        }
    }

    /// Waits until the file is open, or returns why it is not.
    pub async fn ready(&self) -> Result<()> {
        match self {
            Source::Local { .. } => Ok(()),
            Source::Remote(opened) => opened.ready().await,
        }
    }

    /// Returns whether the file may have holes.
    pub(super) fn is_sparse(&self) -> bool {
        match self {
            Source::Local { is_sparse, .. } => *is_sparse,
            Source::Remote(opened) => opened.is_sparse,
        }
    }

    /// Returns the length, as far as it is known.
    pub(super) fn size(&self) -> u64 {
        match self {
            Source::Local { size, .. } => *size,
            Source::Remote(opened) => opened.size,
        }
    }

    /// Returns a reader of the bytes before the offset.
    pub fn before(&self) -> Reading<'_> {
        match self {
            Source::Local { file, at, .. } => Reading::local(file, 0, *at),
            Source::Remote(opened) => Reading::remote(&opened.file, opened.at),
        }
    }

    /// Returns a reader of the bytes from `from` on, which is not before the source's offset.
    pub(super) fn reading_from(&self, from: u64) -> Reading<'_> {
        if from == self.at() {
            return self.reading();
        }
        let rest = match self {
            Source::Local { file, size, .. } => Rest::Local { file, at: from, size: *size, end: u64::MAX },
            Source::Remote(opened) => {
                Rest::Stream(Box::new(Stream::begin(&opened.file, from, opened.size, Direction::Read)))
            }
        };
        Reading { first: Bytes::new(), rest }
    }

    /// Returns a reader of the bytes from the offset on.
    pub fn reading(&self) -> Reading<'_> {
        match self {
            Source::Local { file, at, size, .. } => Reading {
                first: Bytes::new(),
                rest: Rest::Local { file, at: *at, size: *size, end: u64::MAX },
            },
            Source::Remote(remote::Opened { file, at, size, first, at_end, .. }) => {
                let rest = || {
                    Rest::Stream(Box::new(Stream::begin(
                        file,
                        at + first.len() as u64,
                        *size,
                        Direction::Read,
                    )))
                };
                Reading { first: first.clone(), rest: if *at_end { Rest::Nothing } else { rest() } }
            }
        }
    }
}

/// A piece of a file that may have holes.
#[derive(Debug, PartialEq, Eq)]
pub enum FilePiece {
    Data(Bytes),
    /// A run of this many zeros.
    Hole(u64),
}

impl FilePiece {
    pub(super) fn len(&self) -> u64 {
        match self {
            FilePiece::Data(data) => data.len() as u64,
            FilePiece::Hole(len) => *len,
        }
    }
}

/// Splits bytes that begin at offset `at` at the file's pages. Pages of zeros become holes. The first and the last page
/// may be incomplete; then the available part is checked.
fn split_zeros(data: &Bytes, at: u64) -> Vec<FilePiece> {
    let (mut pieces, mut from) = (Vec::new(), 0);
    let page_end = |from: usize| data.len().min(from + PAGE - (at as usize + from) % PAGE);
    let is_zero = |from: usize| data[from..page_end(from)] == ZEROS[..page_end(from) - from];
    while from < data.len() {
        let (begin, zero) = (from, is_zero(from));
        while from < data.len() && is_zero(from) == zero {
            from = page_end(from);
        }
        pieces.push(if zero {
            FilePiece::Hole((from - begin) as u64)
        } else {
            FilePiece::Data(data.slice(begin..from))
        });
    }
    pieces
}

/// Alignment of holes in local files, bytes.
const PAGE: usize = 4096;
/// Shorter runs of zeros are sent to a server, bytes. After a hole, the next write waits for all earlier ones, so that
/// the length of a part stays the number of bytes received.
pub(super) const HOLE_MIN: u64 = 64 * 1024;
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Yields this many zeros, in pieces.
pub(super) fn zeros(len: u64) -> impl Iterator<Item = Bytes> {
    let step = ZEROS.len() as u64;
    (0..len.div_ceil(step)).map(move |n| Bytes::from_static(&ZEROS[..(len - n * step).min(step) as usize]))
}

/// Pieces of a file, in order.
pub struct Reading<'f> {
    first: Bytes,
    rest: Rest<'f>,
}

enum Rest<'f> {
    Nothing,
    Local { file: &'f File, at: u64, size: u64, end: u64 },
    Remote(Box<Reader<&'f nine_io::client::File>>),
    Stream(Box<Stream<&'f nine_io::client::File>>),
}

impl<'f> Reading<'f> {
    fn local(file: &'f File, at: u64, end: u64) -> Self {
        Reading { first: Bytes::new(), rest: Rest::Local { file, at, size: end, end } }
    }

    /// Reads from the start of the file.
    fn remote(file: &'f nine_io::client::File, end: u64) -> Self {
        Reading { first: Bytes::new(), rest: Rest::Remote(Box::new(Reader::new(file, 0, end).until(end))) }
    }

    /// Returns the next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if !self.first.is_empty() {
            return Ok(Some(std::mem::take(&mut self.first)));
        }
        match &mut self.rest {
            Rest::Nothing => Ok(None),
            Rest::Local { at, end, .. } if at == end => Ok(None),
            Rest::Local { file, at, size, end } => {
                let mut data = local::read_at(file, *at, *size)?;
                if let Some(data) = &mut data {
                    data.truncate((*end - *at).min(data.len() as u64) as usize);
                    *at += data.len() as u64;
                }
                Ok(data)
            }
            Rest::Remote(reader) => Ok(reader.next().await.transpose()?),
            Rest::Stream(stream) => Ok(stream.next().await.transpose()?),
        }
    }

    /// Returns the next bytes, or the next zeros that need not be stored. For local files the kernel knows the holes.
    /// In bytes from a server, which begin at `at`, this searches for zeros.
    pub(super) async fn next_sparse(&mut self, at: u64) -> Result<Vec<FilePiece>> {
        if let (true, Rest::Local { file, at, size, .. }) = (self.first.is_empty(), &mut self.rest) {
            let piece = local::next_sparse(file, *at, *size)?;
            *at += piece.as_ref().map_or(0, FilePiece::len);
            return Ok(piece.into_iter().collect());
        }
        Ok(self.next().await?.map_or_else(Vec::new, |data| split_zeros(&data, at)))
    }

    /// Moves the next bytes directly into a local file, if the source can do that, else like any other piece. Returns
    /// their number; `None` at the end.
    pub(super) async fn receive(&mut self, into: &local::Temp, at: u64) -> Result<Option<usize>> {
        if let (true, Rest::Stream(stream)) = (self.first.is_empty(), &mut self.rest) {
            return Ok(stream.receive(into.file().as_fd(), at).await?);
        }
        let Some(data) = self.next().await? else { return Ok(None) };
        into.write_at(&data, at)?;
        Ok(Some(data.len()))
    }
}

/// How a file is written before it gets its name.
#[derive(Default)]
pub struct Aside {
    /// Write to the part of this name and continue it if it exists. `None`: use a temporary file with a random name.
    pub part: Option<Vec<u8>>,
    /// Expected length. A longer file cannot be a part.
    pub size: u64,
    /// The file will be read back before it gets its name.
    pub read_back: bool,
}

/// A file that is being written. If it is dropped before [`Sink::keep`], it is removed, unless it is a part that can be
/// continued.
pub enum Sink {
    Local(local::Temp),
    Remote(remote::Temp),
}

impl Sink {
    /// Returns the offset at which writing begins; the bytes before it exist already.
    pub fn start(&self) -> u64 {
        match self {
            Sink::Local(temp) => temp.had,
            Sink::Remote(temp) => temp.start(),
        }
    }

    /// Returns whether it is a new file, which reads as zeros where nothing was written.
    pub(super) fn takes_holes(&self) -> bool {
        match self {
            Sink::Local(temp) => temp.is_plain(),
            Sink::Remote(temp) => temp.is_new(),
        }
    }

    /// Returns whether it continues an existing part.
    pub fn is_continued(&self) -> bool {
        match self {
            Sink::Local(temp) => temp.had > 0,
            Sink::Remote(temp) => temp.had > 0,
        }
    }

    /// Sets whether the file stays if it is dropped.
    pub fn stays(&self, stays: bool) {
        match self {
            Sink::Local(temp) => temp.stays.set(stays),
            Sink::Remote(temp) => temp.stays.set(stays),
        }
    }

    /// Returns a reader of the file up to `end`: new and earlier bytes.
    pub fn reading(&self, end: u64) -> Reading<'_> {
        match self {
            Sink::Local(temp) => Reading::local(temp.file(), 0, end),
            Sink::Remote(temp) => Reading::remote(temp.file(), end),
        }
    }

    /// Waits until the file is created, or returns why it is not.
    pub async fn ready(&self) -> Result<()> {
        match self {
            Sink::Local(_) => Ok(()),
            Sink::Remote(temp) => temp.ready().await,
        }
    }

    /// Sets these extended attributes. Returns how many could not be set.
    pub async fn set_xattrs(&self, all: &[Xattr]) -> Result<usize> {
        match self {
            Sink::Local(temp) => Ok(local::set_xattrs(temp.file(), all, Some(false))),
            Sink::Remote(temp) => remote::set_xattrs(temp.file(), all, true).await,
        }
    }

    /// Returns the name that it has until it is complete.
    fn name(&self) -> &[u8] {
        match self {
            Sink::Local(temp) => temp.name(),
            Sink::Remote(temp) => temp.name(),
        }
    }

    /// Removes the file now; a drop removes it later.
    async fn discard(self) {
        if let Sink::Remote(temp) = self {
            temp.discard().await;
        }
    }

    /// Completes the file: sets its mode and time and gives it its name.
    pub async fn keep(self, meta: &Meta, preserve: bool) -> Result<()> {
        match self {
            Sink::Local(temp) => temp.keep(meta, preserve),
            Sink::Remote(temp) => temp.keep(meta, preserve).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_taken_out_of_a_piece_at_the_pages_of_its_file() {
        let text = |from: usize, to: usize| FilePiece::Data(Bytes::from(vec![7; to - from]));
        let mut data = vec![0; 20_000];
        data[5000] = 7;
        let page = |from: usize, to: usize| FilePiece::Data(Bytes::copy_from_slice(&data[from..to]));
        let all = split_zeros(&Bytes::copy_from_slice(&data), 0);
        assert_eq!(all, [FilePiece::Hole(4096), page(4096, 8192), FilePiece::Hole(11_808)]);
        // Data that begins within a page.
        let all = split_zeros(&Bytes::copy_from_slice(&data), 8000);
        assert_eq!(all, [FilePiece::Hole(4288), page(4288, 8384), FilePiece::Hole(11_616)]);
        assert_eq!(split_zeros(&Bytes::from(vec![7; 9000]), 4000), [text(0, 9000)]);
        assert_eq!(split_zeros(&Bytes::new(), 0), []);
    }
}
