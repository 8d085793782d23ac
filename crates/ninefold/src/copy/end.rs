//! The two ends of a copy seen alike: a directory of this machine, or of a server; what is read from and written to.
//!
//! Always holds: names are single ones, and no link is followed below the directory a person named: what a server
//! lists cannot lead a copy out of its destination.

use std::fs::File;
use std::os::fd::AsFd;

use anyhow::{Result, bail};
use bytes::Bytes;
use nine_io::client::{Direction, Reader, Stream};
use nine_proto::{Attr, GetMask, Time, mode};

use super::sum::Sum;
use super::{local, remote, some_more, temp_name};
use crate::ancestors::DirectoryId;

/// What is copied beside the data.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    pub kind: Kind,
    /// The qid's path, or the number of the inode.
    pub id: u64,
    /// Permissions, 07777.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub mtime: Time,
    /// Names that it has.
    pub links: u64,
    /// The version of its qid and when its attributes changed last: what has both the same has not been changed. `None`
    /// where a server does not say it, and on this machine.
    pub state: Option<(u32, Time)>,
    /// To open or to read it does something: only who names it does so.
    pub is_event: bool,
    /// It may have holes: its blocks hold less than its length, or nobody says how much they hold.
    pub is_sparse: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Dir,
    File,
    Link,
    /// Pipes, devices, sockets: opening one may wait, or do something.
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

/// Whether so many blocks of 512 bytes hold less than the length of a file.
pub fn is_sparse(size: u64, blocks: u64) -> bool {
    blocks.saturating_mul(512) < size
}

impl Meta {
    /// Whether a copy of this has the same length and time of change, which some ends tell in whole seconds only.
    pub fn is_like(&self, kind: Kind, size: u64, mtime: Time) -> bool {
        let same_time = self.mtime.sec == mtime.sec && [self.mtime.nsec, 0].contains(&mtime.nsec);
        self.kind == kind && self.size == size && same_time
    }

    /// What the copy shall get. A program that runs as its owner must not become one that runs as somebody else.
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

/// One name in a directory; an error is of this name alone.
pub struct Found {
    pub name: Vec<u8>,
    pub meta: Result<Meta>,
}

impl Dir {
    /// Which one it is.
    pub fn id(&self) -> Result<DirectoryId> {
        match self {
            Dir::Local(dir) => dir.id(),
            Dir::Remote(dir) => Ok(dir.id()),
        }
    }

    /// What is in it.
    pub async fn listing(&self) -> Result<Listing> {
        Ok(match self {
            Dir::Local(dir) => Listing::Local(dir.listing()?),
            Dir::Remote(dir) => Listing::Remote(dir.listing().await?),
        })
    }

    /// The names in it.
    pub async fn names(&self) -> Result<Vec<Vec<u8>>> {
        match self {
            Dir::Local(dir) => dir.names(),
            Dir::Remote(dir) => dir.names().await,
        }
    }

    /// The directory of this name; the same again, if it is empty.
    pub async fn dir(&self, name: &[u8]) -> Result<Dir> {
        Ok(match self {
            Dir::Local(dir) => Dir::Local(dir.dir(name)?),
            Dir::Remote(dir) => Dir::Remote(dir.dir(name).await?),
        })
    }

    /// The same, made if it does not exist; and whether it did.
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

    /// What is known about this name; of the directory itself, if it is empty.
    pub async fn stat(&self, name: &[u8]) -> Result<Meta> {
        match self {
            Dir::Local(dir) => dir.stat(name),
            Dir::Remote(dir) => dir.stat(name).await,
        }
    }

    /// Whether ids of both are of the same files.
    pub fn same_world(&self, other: &Dir) -> bool {
        match (self, other) {
            (Dir::Local(_), Dir::Local(_)) => true,
            (Dir::Remote(a), Dir::Remote(b)) => a.same_session(b),
            _ => false,
        }
    }

    /// Whether both are one directory, perhaps seen from two sides: what is made in one is there in the other.
    pub async fn is(&self, other: &Dir) -> Result<bool> {
        let probe = self.create(temp_name().as_bytes(), &Aside::default()).await?;
        probe.ready().await?;
        let seen = other.stat(probe.name()).await.is_ok();
        probe.discard().await;
        Ok(seen)
    }

    /// Where a link leads.
    pub async fn readlink(&self, name: &[u8]) -> Result<Vec<u8>> {
        match self {
            Dir::Local(dir) => dir.readlink(name),
            Dir::Remote(dir) => dir.readlink(name).await,
        }
    }

    /// Makes a link, in place of what is there; with its owner, if that is to be kept and can be given.
    pub async fn symlink(&self, name: &[u8], target: &[u8], meta: &Meta, preserve: bool) -> Result<()> {
        check(name)?;
        match self {
            Dir::Local(dir) => dir.symlink(name, target, meta, preserve),
            Dir::Remote(dir) => dir.symlink(name, target, meta, preserve).await,
        }
    }

    /// A plain file to read from `at` on.
    pub async fn open(&self, name: &[u8], meta: &Meta, at: u64) -> Result<Source> {
        Ok(match self {
            Dir::Local(dir) => {
                Source::Local { file: dir.open(name)?, at, size: meta.size, is_sparse: meta.is_sparse }
            }
            Dir::Remote(dir) => Source::Remote(dir.open(name, at, meta).await?),
        })
    }

    /// A file to write, which gets its name when it is whole.
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

    /// A file that is there to be written as it stands: one that is more than its content.
    pub async fn open_in_place(&self, name: &[u8]) -> Result<Sink> {
        Ok(match self {
            Dir::Local(dir) => Sink::Local(dir.open_in_place(name)?),
            Dir::Remote(dir) => Sink::Remote(dir.open_in_place(name).await?),
        })
    }

    /// Gives a file of another directory of the same end this name, too, in place of what is there.
    pub async fn link(&self, name: &[u8], dir: &Dir, other: &[u8]) -> Result<()> {
        check(name)?;
        match (self, dir) {
            (Dir::Local(here), Dir::Local(dir)) => here.link(name, dir, other),
            (Dir::Remote(here), Dir::Remote(dir)) => here.link(name, dir, other).await,
            _ => bail!("they are of two ends"),
        }
    }

    /// Gives the file of this name its mode, owner and time.
    pub async fn dress(&self, name: &[u8], meta: &Meta) -> Result<()> {
        match self {
            Dir::Local(dir) => dir.dress(name, meta),
            Dir::Remote(dir) => dir.dress(name, meta).await,
        }
    }

    /// Extended attributes of the directory itself; none where there are no such things.
    pub async fn xattrs(&self) -> Result<Vec<Xattr>> {
        match self {
            Dir::Local(_) => Ok(Vec::new()),
            Dir::Remote(dir) => dir.xattrs().await,
        }
    }

    /// Gives it these; how many it did not take.
    /// `inherited`: it is new, and has no access control lists but these.
    pub async fn set_xattrs(&self, all: &[Xattr], inherited: bool) -> Result<usize> {
        match self {
            Dir::Local(dir) => Ok(dir.set_xattrs(all, inherited)),
            Dir::Remote(dir) => dir.set_xattrs(all, inherited).await,
        }
    }

    /// Lets its owner write in it, until it gets its mode again: that mode, if it has changed. Only the owner can.
    pub async fn lift(&self) -> Option<u32> {
        let mode = self.stat(b"").await.ok()?.mode & 0o7777;
        if mode & OWNER_WRITES == OWNER_WRITES {
            return None;
        }
        self.set_mode(mode | OWNER_WRITES).await.ok().map(|()| mode)
    }

    /// Gives the directory itself this mode.
    pub async fn set_mode(&self, mode: u32) -> Result<()> {
        match self {
            Dir::Local(dir) => dir.set_mode(mode),
            Dir::Remote(dir) => dir.set_mode(mode).await,
        }
    }

    /// Gives the directory itself its mode and time, once it is filled.
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

/// What may be a name in a directory, whoever says so.
fn check(name: &[u8]) -> Result<()> {
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, b'/' | 0)) {
        bail!("no file can have this name");
    }
    Ok(())
}

/// The names of a directory, and what is known about each.
pub enum Listing {
    Local(local::Listing),
    Remote(remote::Listing),
}

impl Listing {
    /// The next ones, some hundred; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<Found>>> {
        match self {
            Listing::Local(listing) => listing.next(),
            Listing::Remote(listing) => listing.next().await,
        }
    }
}

/// A file that is read, from some place on.
pub enum Source {
    Local { file: File, at: u64, size: u64, is_sparse: bool },
    Remote(remote::Opened),
}

impl Source {
    /// What is known about it now.
    pub async fn stat(&self) -> Result<Meta> {
        match self {
            Source::Local { file, .. } => local::stat(file),
            Source::Remote(opened) => {
                opened.ready().await?;
                Ok(Meta::from(&opened.file.getattr(GetMask::BASIC).await?))
            }
        }
    }

    /// Its extended attributes: those of a server's file.
    pub async fn xattrs(&self) -> Result<Vec<Xattr>> {
        match self {
            Source::Local { .. } => Ok(Vec::new()),
            Source::Remote(opened) => {
                opened.ready().await?;
                remote::xattrs(&opened.file).await
            }
        }
    }

    /// Where it is read from.
    fn at(&self) -> u64 {
        match self {
            Source::Local { at, .. } => *at,
            Source::Remote(opened) => opened.at,
        }
    }

    /// It is open, or why not.
    pub async fn ready(&self) -> Result<()> {
        match self {
            Source::Local { .. } => Ok(()),
            Source::Remote(opened) => opened.ready().await,
        }
    }

    /// Whether it may have holes.
    fn is_sparse(&self) -> bool {
        match self {
            Source::Local { is_sparse, .. } => *is_sparse,
            Source::Remote(opened) => opened.is_sparse,
        }
    }

    /// The length it has, as far as is known.
    fn size(&self) -> u64 {
        match self {
            Source::Local { size, .. } => *size,
            Source::Remote(opened) => opened.size,
        }
    }

    /// What is before that place.
    pub fn before(&self) -> Reading<'_> {
        match self {
            Source::Local { file, at, .. } => Reading::local(file, 0, *at),
            Source::Remote(opened) => Reading::remote(&opened.file, opened.at),
        }
    }

    /// The bytes from `from` on, which is at or behind the place where it was opened.
    fn reading_from(&self, from: u64) -> Reading<'_> {
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

    /// What follows.
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
    /// So many zeros.
    Hole(u64),
}

impl FilePiece {
    fn len(&self) -> u64 {
        match self {
            FilePiece::Data(data) => data.len() as u64,
            FilePiece::Hole(len) => *len,
        }
    }
}

/// Bytes that begin at `at` of a file, taken apart at its pages: those that are all zeros are holes. Of a page that is
/// there only in part, that part counts.
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

/// So many zeros are a hole of a file of this machine, bytes.
const PAGE: usize = 4096;
/// So many zeros are not sent to a server, bytes: behind a hole the next write waits for those before it, so that the
/// length of a part is the number of bytes received.
const HOLE_MIN: u64 = 64 * 1024;
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// So many zeros, in pieces.
fn zeros(len: u64) -> impl Iterator<Item = Bytes> {
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

    /// From the beginning.
    fn remote(file: &'f nine_io::client::File, end: u64) -> Self {
        Reading { first: Bytes::new(), rest: Rest::Remote(Box::new(Reader::new(file, 0, end).until(end))) }
    }

    /// The next one; `None` at the end.
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

    /// The next bytes, or the next zeros that need not be stored. This machine knows the holes of its files; in bytes
    /// of a server, which begin at `at`, zeros are looked for.
    async fn next_sparse(&mut self, at: u64) -> Result<Vec<FilePiece>> {
        if let (true, Rest::Local { file, at, size, .. }) = (self.first.is_empty(), &mut self.rest) {
            let piece = local::next_sparse(file, *at, *size)?;
            *at += piece.as_ref().map_or(0, FilePiece::len);
            return Ok(piece.into_iter().collect());
        }
        Ok(self.next().await?.map_or_else(Vec::new, |data| split_zeros(&data, at)))
    }

    /// The next bytes straight into a file of this machine; says how many, and `None` at the end. What has no way of
    /// its own is written like any other piece.
    async fn receive(&mut self, into: &local::Temp, at: u64) -> Result<Option<usize>> {
        if let (true, Rest::Stream(stream)) = (self.first.is_empty(), &mut self.rest) {
            return Ok(stream.receive(into.file().as_fd(), at).await?);
        }
        let Some(data) = self.next().await? else { return Ok(None) };
        into.write_at(&data, at)?;
        Ok(Some(data.len()))
    }
}

/// How a file is written before it has its name.
#[derive(Default)]
pub struct Aside {
    /// As a part of this name, continued if it is there; `None`: nobody shall find it again.
    pub part: Option<Vec<u8>>,
    /// The length it shall have; a part that is longer is none.
    pub size: u64,
    /// It is read again before it is kept.
    pub read_back: bool,
}

/// A file that is written. Dropped before [`Sink::keep`], it leaves nothing behind but a part that can be continued.
pub enum Sink {
    Local(local::Temp),
    Remote(remote::Temp),
}

impl Sink {
    /// From where on it is written: what is before that is there.
    pub fn start(&self) -> u64 {
        match self {
            Sink::Local(temp) => temp.had,
            Sink::Remote(temp) => temp.start(),
        }
    }

    /// Whether it is a file of ours that reads as zeros where nothing was written.
    fn takes_holes(&self) -> bool {
        match self {
            Sink::Local(temp) => temp.is_plain(),
            Sink::Remote(temp) => temp.is_new(),
        }
    }

    /// Whether a part of it was there.
    pub fn is_continued(&self) -> bool {
        match self {
            Sink::Local(temp) => temp.had > 0,
            Sink::Remote(temp) => temp.had > 0,
        }
    }

    /// Whether it stays if it is dropped.
    pub fn stays(&self, stays: bool) {
        match self {
            Sink::Local(temp) => temp.stays.set(stays),
            Sink::Remote(temp) => temp.stays.set(stays),
        }
    }

    /// What has been written, and was there.
    pub fn reading(&self, end: u64) -> Reading<'_> {
        match self {
            Sink::Local(temp) => Reading::local(temp.file(), 0, end),
            Sink::Remote(temp) => Reading::remote(temp.file(), end),
        }
    }

    /// It is made, or why not.
    pub async fn ready(&self) -> Result<()> {
        match self {
            Sink::Local(_) => Ok(()),
            Sink::Remote(temp) => temp.ready().await,
        }
    }

    /// Gives it these; how many it did not take.
    pub async fn set_xattrs(&self, all: &[Xattr]) -> Result<usize> {
        match self {
            Sink::Local(temp) => Ok(local::set_xattrs(temp.file(), all, Some(false))),
            Sink::Remote(temp) => remote::set_xattrs(temp.file(), all, true).await,
        }
    }

    /// The name it has until it is whole.
    fn name(&self) -> &[u8] {
        match self {
            Sink::Local(temp) => temp.name(),
            Sink::Remote(temp) => temp.name(),
        }
    }

    /// Removes it now; dropped, it is removed some time later.
    async fn discard(self) {
        if let Sink::Remote(temp) = self {
            temp.discard().await;
        }
    }

    /// All data has come: it gets its mode, its time, and its name.
    pub async fn keep(self, meta: &Meta, preserve: bool) -> Result<()> {
        match self {
            Sink::Local(temp) => temp.keep(meta, preserve),
            Sink::Remote(temp) => temp.keep(meta, preserve).await,
        }
    }
}

/// What [`pump`] does beside moving data.
pub struct Pumped<'a, F> {
    /// Told of each piece.
    pub progress: F,
    /// Of all that is moved.
    pub sum: Option<&'a mut Sum>,
    /// The sink is a part: what has been written is worth to be continued.
    pub part: bool,
    /// Bytes before this place of the file have been counted and summed: 0.
    pub seen: u64,
}

/// Why data could not be moved, and on which side.
#[derive(Debug)]
pub struct PumpError {
    pub at_sink: bool,
    pub error: anyhow::Error,
    /// Only the data connection of the sink broke: everything before this place of the file is stored.
    resume_at: Option<u64>,
}

impl From<anyhow::Error> for PumpError {
    /// One of the source.
    fn from(error: anyhow::Error) -> Self {
        Self { at_sink: false, error, resume_at: None }
    }
}

trait AtSink<T> {
    /// An error is one of the sink.
    fn at_sink(self) -> Result<T, PumpError>;
}

impl<T, E: Into<anyhow::Error>> AtSink<T> for Result<T, E> {
    fn at_sink(self) -> Result<T, PumpError> {
        self.map_err(|error| PumpError { at_sink: true, error: error.into(), resume_at: None })
    }
}

/// A stream to a file of a server, from `start` on.
struct SinkStream<'f> {
    start: u64,
    stream: Stream<&'f nine_io::client::File>,
}

impl<'f> SinkStream<'f> {
    /// Where a part shall be continued, its length says how much of it is there.
    fn new(temp: &'f remote::Temp, start: u64, end: u64, part: bool) -> Self {
        let begin = if part { Stream::straight } else { Stream::begin };
        Self { start, stream: begin(temp.file(), start, end, Direction::Write) }
    }

    /// The error of the sink that this error of the stream is.
    fn error(&self, error: nine_io::client::Error) -> PumpError {
        let broken = matches!(error, nine_io::client::Error::Stream { .. });
        let resume_at = broken.then(|| self.start + self.stream.moved());
        PumpError { at_sink: true, error: error.into(), resume_at }
    }
}

/// Moves all data from the place where the source was opened. Returns the place where it ended. Data goes through this
/// program's memory only to be summed, or if one side has no better way. When the data connection of the sink breaks,
/// it continues behind the bytes that are stored.
pub async fn pump(
    source: &Source,
    sink: &Sink,
    also: Pumped<'_, impl FnMut(usize)>,
) -> Result<u64, PumpError> {
    let (mut also, mut from) = (also, source.at());
    let moved = loop {
        match move_all(source, sink, from, &mut also).await {
            Err(PumpError { error, resume_at: Some(at), .. }) => {
                tracing::warn!("{error}: writing on from byte {at}");
                from = at;
            }
            moved => break moved,
        }
    };
    // Where it could not even be opened, or the other one not be made, that is why nothing has come.
    source.ready().await?;
    sink.ready().await.at_sink()?;
    moved
}

async fn move_all(
    source: &Source,
    sink: &Sink,
    from: u64,
    also: &mut Pumped<'_, impl FnMut(usize)>,
) -> Result<u64, PumpError> {
    let (mut reading, mut at) = (source.reading_from(from), from);
    match (sink, source) {
        _ if source.is_sparse() && sink.takes_holes() => return move_sparse(source, sink, from, also).await,
        (Sink::Local(temp), _) if also.sum.is_none() && temp.is_plain() => {
            // An error of the 9P client is about the source, any other about the local file that is written.
            let received = |error: anyhow::Error| {
                let at_sink = !error.is::<nine_io::client::Error>();
                PumpError { at_sink, error, resume_at: None }
            };
            while let Some(n) = reading.receive(temp, at).await.map_err(received)? {
                at += n as u64;
                also.moved(at, n);
                temp.stays.set(also.part);
            }
        }
        (Sink::Local(temp), _) => {
            while let Some(data) = reading.next().await? {
                temp.write(&data).at_sink()?;
                at += data.len() as u64;
                also.add(at, &data);
                temp.stays.set(also.part);
            }
        }
        (Sink::Remote(temp), _) => {
            let end = source.size();
            let mut sent = SinkStream::new(temp, at, end, also.part);
            let part = also.part;
            let stays = |sent: &SinkStream<'_>| {
                if part && sent.stream.moved() > 0 {
                    temp.stays.set(true);
                }
            };
            match source {
                Source::Local { file, .. } if also.sum.is_none() => loop {
                    let most = some_more(at, end).min(SENT) as usize;
                    let n = sent.stream.send(file.as_fd(), at, most).await;
                    stays(&sent);
                    let n = n.map_err(|error| sent.error(error))?;
                    if n == 0 {
                        break;
                    }
                    at += n as u64;
                    also.moved(at, n);
                },
                _ => {
                    while let Some(data) = reading.next().await? {
                        at += data.len() as u64;
                        also.add(at, &data);
                        let pushed = sent.stream.push(data).await;
                        stays(&sent);
                        pushed.map_err(|error| sent.error(error))?;
                    }
                }
            }
            sent.stream.finish().await.map_err(|error| sent.error(error))?;
        }
    }
    Ok(at)
}

/// The same for a source that may have holes, into a file that has nothing where the source is read from: zeros are not
/// written, and at the end it gets its length.
async fn move_sparse(
    source: &Source,
    sink: &Sink,
    from: u64,
    also: &mut Pumped<'_, impl FnMut(usize)>,
) -> Result<u64, PumpError> {
    let (mut reading, mut at, part) = (source.reading_from(from), from, also.part);
    // Up to here it is written, or has been.
    let mut written = at;
    let mut sent = match sink {
        Sink::Local(_) => None,
        Sink::Remote(temp) => Some(SinkStream::new(temp, at, source.size(), part)),
    };
    loop {
        let pieces = reading.next_sparse(at).await?;
        if pieces.is_empty() {
            break;
        }
        for piece in pieces {
            let from = at;
            at += piece.len();
            let data = match piece {
                FilePiece::Hole(len) => {
                    also.zeros(at, len);
                    continue;
                }
                FilePiece::Data(data) => data,
            };
            also.add(at, &data);
            match (sink, &mut sent) {
                (Sink::Remote(temp), Some(sent)) => {
                    if from - written >= HOLE_MIN {
                        sent.stream.finish().await.map_err(|error| sent.error(error))?;
                        *sent = SinkStream::new(temp, from, source.size(), part);
                    } else {
                        for zeros in zeros(from - written) {
                            sent.stream.push(zeros).await.map_err(|error| sent.error(error))?;
                        }
                    }
                    let pushed = sent.stream.push(data).await;
                    if part && sent.stream.moved() > 0 {
                        temp.stays.set(true);
                    }
                    pushed.map_err(|error| sent.error(error))?;
                }
                (Sink::Local(temp), _) => {
                    temp.write_at(&data, from).at_sink()?;
                    temp.stays.set(part);
                }
                (Sink::Remote(_), None) => unreachable!("made above"),
            }
            written = at;
        }
    }
    if let Some(sent) = &mut sent {
        sent.stream.finish().await.map_err(|error| sent.error(error))?;
    }
    match sink {
        _ if written == at => {}
        Sink::Local(temp) => temp.set_len(at).at_sink()?,
        Sink::Remote(temp) => temp.set_len(at).await.at_sink()?,
    }
    Ok(at)
}

impl<F: FnMut(usize)> Pumped<'_, F> {
    /// The `len` bytes before `at` are zeros.
    fn zeros(&mut self, at: u64, len: u64) {
        let new = self.new_before(at, len);
        (self.progress)(usize::try_from(new).unwrap_or(usize::MAX));
        if let Some(sum) = &mut self.sum {
            zeros(new).for_each(|zeros| sum.add(&zeros));
        }
    }

    /// The bytes before `at` are `data`.
    fn add(&mut self, at: u64, data: &Bytes) {
        let new = self.new_before(at, data.len() as u64) as usize;
        (self.progress)(new);
        if let Some(sum) = &mut self.sum {
            sum.add(&data[data.len() - new..]);
        }
    }

    /// `n` bytes before `at` were moved, and need not be summed.
    fn moved(&mut self, at: u64, n: usize) {
        let new = self.new_before(at, n as u64) as usize;
        (self.progress)(new);
    }

    /// How many of the `n` bytes before `at` are seen for the first time.
    fn new_before(&mut self, at: u64, n: u64) -> u64 {
        let new = n.min(at.saturating_sub(self.seen));
        self.seen = self.seen.max(at);
        new
    }
}

/// Sent from a file at once, bytes: then progress shows.
const SENT: u64 = 1 << 20;

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
        // A piece that begins within a page.
        let all = split_zeros(&Bytes::copy_from_slice(&data), 8000);
        assert_eq!(all, [FilePiece::Hole(4288), page(4288, 8384), FilePiece::Hole(11_616)]);
        assert_eq!(split_zeros(&Bytes::from(vec![7; 9000]), 4000), [text(0, 9000)]);
        assert_eq!(split_zeros(&Bytes::new(), 0), []);
    }
}
