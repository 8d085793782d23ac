//! The two ends of a copy seen alike: a directory of this machine, or of a server; what is read from and written to.
//!
//! Always holds: names are single ones, and no link is followed below the directory a person named: what a server
//! lists cannot lead a copy out of its destination.

use anyhow::{Result, bail};
use bytes::Bytes;
use nine_io::client::{Reader, Writer};
use nine_proto::{Attr, Time, mode};

use super::{local, remote, temp_name};

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
        }
    }
}

impl Meta {
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
    /// What is in it.
    pub async fn list(&self) -> Result<Vec<Found>> {
        match self {
            Dir::Local(dir) => dir.list(),
            Dir::Remote(dir) => dir.list().await,
        }
    }

    /// The directory of this name; the same again, if it is empty.
    pub async fn dir(&self, name: &[u8]) -> Result<Dir> {
        Ok(match self {
            Dir::Local(dir) => Dir::Local(dir.dir(name)?),
            Dir::Remote(dir) => Dir::Remote(dir.dir(name).await?),
        })
    }

    /// The same, made if it does not exist.
    pub async fn make_dir(&self, name: &[u8]) -> Result<Dir> {
        if name.is_empty() {
            return self.dir(name).await;
        }
        check(name)?;
        Ok(match self {
            Dir::Local(dir) => Dir::Local(dir.make_dir(name)?),
            Dir::Remote(dir) => Dir::Remote(dir.make_dir(name).await?),
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
        let probe = self.create(temp_name().as_bytes()).await?;
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

    /// Makes a link, in place of what is there.
    pub async fn symlink(&self, name: &[u8], target: &[u8], meta: &Meta) -> Result<()> {
        check(name)?;
        match self {
            Dir::Local(dir) => dir.symlink(name, target, meta),
            Dir::Remote(dir) => dir.symlink(name, target, meta).await,
        }
    }

    /// A plain file to read.
    pub async fn open(&self, name: &[u8], meta: &Meta) -> Result<Source> {
        Ok(match self {
            Dir::Local(dir) => Source::Local(dir.open(name)?),
            Dir::Remote(dir) => Source::Remote(dir.open(name).await?, meta.size),
        })
    }

    /// A file to write, which gets its name when it is whole.
    pub async fn create(&self, name: &[u8]) -> Result<Sink> {
        check(name)?;
        Ok(match self {
            Dir::Local(dir) => Sink::Local(dir.create(name)?),
            Dir::Remote(dir) => Sink::Remote(dir.create(name).await?),
        })
    }

    /// A file that is there to be written as it stands: one that is more than its content.
    pub async fn open_in_place(&self, name: &[u8]) -> Result<Sink> {
        Ok(match self {
            Dir::Local(dir) => Sink::Local(dir.open_in_place(name)?),
            Dir::Remote(dir) => Sink::Remote(dir.open_in_place(name).await?),
        })
    }

    /// Gives the directory itself its mode and time, once it is filled.
    pub async fn finish(&self, meta: &Meta, preserve: bool) -> Result<()> {
        match self {
            Dir::Local(dir) => dir.finish(meta, preserve),
            Dir::Remote(dir) => dir.finish(meta, preserve).await,
        }
    }
}

/// What may be a name in a directory, whoever says so.
fn check(name: &[u8]) -> Result<()> {
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, b'/' | 0)) {
        bail!("no file can have this name");
    }
    Ok(())
}

/// A file that is read.
pub enum Source {
    Local(std::fs::File),
    Remote(nine_io::client::File, u64),
}

/// A file that is written. Dropped before [`Sink::keep`], it leaves nothing behind.
pub enum Sink {
    Local(local::Temp),
    Remote(remote::Temp),
}

impl Sink {
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

/// Moves all data; `progress` is told of each piece.
pub async fn pump(source: &Source, sink: &Sink, mut progress: impl FnMut(usize)) -> Result<()> {
    let mut reader = match source {
        Source::Local(_) => None,
        Source::Remote(file, size) => Some(Reader::new(file, 0, *size)),
    };
    let mut writer = match sink {
        Sink::Local(_) => None,
        Sink::Remote(temp) => Some(Writer::new(temp.file(), 0)),
    };
    loop {
        let data = match (source, &mut reader) {
            (_, Some(reader)) => reader.next().await.transpose()?,
            (Source::Local(file), _) => local::read(file)?,
            (Source::Remote(..), None) => unreachable!("a remote source has a reader"),
        };
        let Some(data) = data else { break };
        progress(Bytes::len(&data));
        match (sink, &mut writer) {
            (_, Some(writer)) => writer.push(data).await?,
            (Sink::Local(temp), _) => temp.write(&data)?,
            (Sink::Remote(_), None) => unreachable!("a remote sink has a writer"),
        }
    }
    if let Some(writer) = &mut writer {
        writer.finish().await?;
    }
    Ok(())
}
