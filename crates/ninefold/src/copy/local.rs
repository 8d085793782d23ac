//! The local end of a copy. Every name is looked up in an open directory, and never through a link.
//!
//! Always holds: a file that is being written has a temporary name until it is complete. If it is never completed, it
//! is removed or stays as a part.

use std::cell::Cell;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Result, bail};
use bytes::Bytes;
use nine_proto::Time;
use rustix::fs::{self, AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::Errno;

use super::end::{Aside, FilePiece, Found, Kind, Meta, Xattr, is_sparse};
use super::remote::lists_not_in;
use super::{some_more, temp_name};
use crate::ancestors::DirectoryId;

/// Size of one read, bytes.
const PIECE: u64 = 256 * 1024;
/// Number of names in one piece of a listing.
const NAMES: usize = 1024;
/// Flags to open directories, never through a link.
const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open directory. Methods without a description are as in `end::Dir`.
#[derive(Clone)]
pub struct Dir(Rc<OwnedFd>);

impl Dir {
    /// Opens the directory that the user names; follows links.
    pub fn named(path: &Path) -> Result<Dir> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(Dir(Rc::new(fs::openat(CWD, path, DIR.difference(OFlags::NOFOLLOW), Mode::empty())?)))
    }

    /// Returns the directory's identity.
    pub fn id(&self) -> Result<DirectoryId> {
        let stat = fs::fstat(&*self.0)?;
        Ok(DirectoryId { device: stat.st_dev, number: stat.st_ino })
    }

    pub fn listing(&self) -> Result<Listing> {
        Ok(Listing { dir: self.clone(), entries: fs::Dir::read_from(&*self.0)? })
    }

    /// Returns all names in the directory.
    pub fn names(&self) -> Result<Vec<Vec<u8>>> {
        let mut listing = self.listing()?;
        std::iter::from_fn(|| listing.name().transpose()).collect()
    }

    pub fn stat(&self, name: &[u8]) -> Result<Meta> {
        Ok(meta(&fs::statat(&*self.0, dot(name), AtFlags::SYMLINK_NOFOLLOW)?))
    }

    pub fn dir(&self, name: &[u8]) -> Result<Dir> {
        match fs::openat(&*self.0, dot(name), DIR, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) => {
                bail!("in its place stands something that is not a directory")
            }
            fd => Ok(Dir(Rc::new(fd?))),
        }
    }

    /// Opens or creates a directory. Also returns whether it existed.
    pub fn make_dir(&self, name: &[u8]) -> Result<(Dir, bool)> {
        match fs::mkdirat(&*self.0, name, Mode::RWXU) {
            Ok(()) => Ok((self.dir(name)?, false)),
            Err(Errno::EXIST) => Ok((self.dir(name)?, true)),
            Err(e) => Err(e.into()),
        }
    }

    pub fn readlink(&self, name: &[u8]) -> Result<Vec<u8>> {
        Ok(fs::readlinkat(&*self.0, name, Vec::new())?.into_bytes())
    }

    pub fn symlink(&self, name: &[u8], target: &[u8], meta: &Meta, preserve: bool) -> Result<()> {
        let temp = temp_name();
        fs::symlinkat(target, &*self.0, &*temp)?;
        if preserve {
            let (uid, gid) = (Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)));
            // Only root may do this; for other users the link keeps its owner.
            let _ = fs::chownat(&*self.0, &*temp, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
        }
        if let Err(e) = fs::renameat(&*self.0, &*temp, &*self.0, name) {
            let _ = fs::unlinkat(&*self.0, &*temp, AtFlags::empty());
            return Err(e.into());
        }
        // Not all file systems store times of links.
        let _ = fs::utimensat(&*self.0, name, &times(meta), AtFlags::SYMLINK_NOFOLLOW);
        Ok(())
    }

    pub fn open(&self, name: &[u8]) -> Result<File> {
        // Nonblocking, in case the file has been replaced by a pipe.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = fs::openat(&*self.0, name, flags, Mode::empty())?;
        if Kind::of(fs::fstat(&fd)?.st_mode) != Kind::File {
            bail!("it has become something that is not a plain file");
        }
        Ok(fd.into())
    }

    pub fn create(&self, name: &[u8], aside: &Aside) -> Result<Temp> {
        let new = |temp: Vec<u8>| -> rustix::io::Result<Temp> {
            let file = self.make(&temp, aside.read_back)?;
            Ok(Temp {
                file,
                had: 0,
                names: Some((self.0.clone(), temp, name.to_vec())),
                stays: Cell::new(false),
            })
        };
        let Some(part) = &aside.part else { return Ok(new(temp_name().into_bytes())?) };
        match new(part.clone()) {
            Err(Errno::EXIST) => {}
            made => return Ok(made?),
        }
        let Some((mut file, had)) = self.part(part, aside)? else {
            fs::unlinkat(&*self.0, &**part, AtFlags::empty())?;
            return Ok(new(part.clone())?);
        };
        file.seek(SeekFrom::Start(had))?;
        let names = Some((self.0.clone(), part.clone(), name.to_vec()));
        Ok(Temp { file, had, names, stays: Cell::new(true) })
    }

    fn make(&self, temp: &[u8], read_back: bool) -> rustix::io::Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | writing(read_back);
        Ok(fs::openat(&*self.0, temp, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Opens an existing part and returns its length. Returns `None` if it cannot be our part for this source. In a
    /// directory writable by others, a predictable name may be another user's file, or a link to one.
    fn part(&self, part: &[u8], aside: &Aside) -> Result<Option<(File, u64)>> {
        let st = fs::statat(&*self.0, part, AtFlags::SYMLINK_NOFOLLOW)?;
        if Kind::of(st.st_mode) != Kind::File {
            return Ok(None);
        }
        let file: File =
            fs::openat(&*self.0, part, writing(aside.read_back) | OFlags::NONBLOCK, Mode::empty())?.into();
        let st = fs::fstat(&file)?;
        let ours = st.st_uid == rustix::process::geteuid().as_raw() && st.st_nlink == 1;
        let size = st.st_size as u64;
        Ok((Kind::of(st.st_mode) == Kind::File && ours && size <= aside.size).then_some((file, size)))
    }

    pub fn open_in_place(&self, name: &[u8]) -> Result<Temp> {
        let fd = fs::openat(&*self.0, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Temp { file: fd.into(), had: 0, names: None, stays: Cell::new(false) })
    }

    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        Ok(fs::unlinkat(&*self.0, name, AtFlags::empty())?)
    }

    pub fn link(&self, name: &[u8], dir: &Dir, other: &[u8]) -> Result<()> {
        let temp = temp_name();
        fs::linkat(&*dir.0, other, &*self.0, &*temp, AtFlags::empty())?;
        let renamed = fs::renameat(&*self.0, &*temp, &*self.0, name);
        // If both names were the same file already, rename(2) does nothing and the temporary name stays.
        let _ = fs::unlinkat(&*self.0, &*temp, AtFlags::empty());
        Ok(renamed?)
    }

    pub fn dress(&self, name: &[u8], meta: &Meta) -> Result<()> {
        dress(self.open(name)?, meta, true)
    }

    pub fn set_xattrs(&self, all: &[Xattr], inherited: bool) -> usize {
        set_xattrs(&self.0, all, inherited.then_some(true))
    }

    pub fn set_mode(&self, mode: u32) -> Result<()> {
        Ok(fs::fchmod(&self.0, Mode::from_raw_mode(mode))?)
    }

    pub fn finish(&self, meta: &Meta, preserve: bool) -> Result<()> {
        dress(&self.0, meta, preserve)
    }
}

/// A listing of a directory with the metadata of each name.
pub struct Listing {
    dir: Dir,
    entries: fs::Dir,
}

impl Listing {
    /// Returns the next entries; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Vec<Found>>> {
        let mut found = Vec::new();
        while found.len() < NAMES
            && let Some(name) = self.name()?
        {
            match self.dir.stat(&name) {
                // The file was removed meanwhile.
                Err(e) if e.downcast_ref() == Some(&Errno::NOENT) => {}
                meta => found.push(Found { name, meta }),
            }
        }
        Ok((!found.is_empty()).then_some(found))
    }

    fn name(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            let Some(entry) = self.entries.next().transpose()? else { return Ok(None) };
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                return Ok(Some(name.to_vec()));
            }
        }
    }
}

/// A file that is being written. Methods without a description are as in `end::Sink`.
pub struct Temp {
    file: File,
    /// Bytes that existed before.
    pub had: u64,
    /// Its directory, temporary name and final name; `None` if it is written under its own name.
    names: Option<(Rc<OwnedFd>, Vec<u8>, Vec<u8>)>,
    /// If it is dropped, it stays as a part.
    pub stays: Cell<bool>,
}

impl Temp {
    /// Returns the temporary name; empty if it is written under its own name.
    pub fn name(&self) -> &[u8] {
        self.names.as_ref().map_or(b"", |(_, temp, _)| temp)
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn write(&self, data: &[u8]) -> Result<()> {
        Ok((&self.file).write_all(data)?)
    }

    /// Returns whether it is a file of ours, which can be written at any offset.
    pub fn is_plain(&self) -> bool {
        self.names.is_some()
    }

    pub fn write_at(&self, data: &[u8], at: u64) -> Result<()> {
        Ok(self.file.write_all_at(data, at)?)
    }

    /// Sets the length: zeros follow the last bytes written.
    pub fn set_len(&self, len: u64) -> Result<()> {
        Ok(self.file.set_len(len)?)
    }

    pub fn keep(mut self, meta: &Meta, preserve: bool) -> Result<()> {
        let Some((dir, temp, name)) = &self.names else { return Ok(()) };
        dress(&self.file, meta, preserve)?;
        match fs::renameat(&**dir, &**temp, &**dir, &**name) {
            // Another copy of the same source into the same part has completed it first.
            Err(Errno::NOENT) if is_at(&self.file, dir, name) => {}
            renamed => renamed?,
        }
        self.names = None;
        Ok(())
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if let Some((dir, temp, _)) = &self.names
            && !self.stays.get()
        {
            let _ = fs::unlinkat(&**dir, &**temp, AtFlags::empty());
        }
    }
}

/// Returns whether the file has this name.
fn is_at(file: &File, dir: &OwnedFd, name: &[u8]) -> bool {
    let here = fs::fstat(file).map(|st| (st.st_dev, st.st_ino));
    let there = fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(|st| (st.st_dev, st.st_ino));
    here.is_ok() && here == there
}

/// Sets these attributes of an open file. Returns how many could not be set. `inherited` is set for a new file and says
/// whether it is a directory; then inherited access control lists that are not among the attributes are removed.
pub fn set_xattrs(fd: impl rustix::fd::AsFd, all: &[Xattr], inherited: Option<bool>) -> usize {
    let lists = inherited.map_or(Vec::new(), |is_dir| lists_not_in(all, is_dir));
    // If a list cannot be removed, there is none: the lists of a new file belong to its owner, which we are.
    for list in lists {
        let _ = fs::fremovexattr(&fd, list);
    }
    let set = |(name, value): &&Xattr| fs::fsetxattr(&fd, &**name, value, XattrFlags::empty()).is_err();
    all.iter().filter(set).count()
}

/// Returns the flags to open a file for writing, and for reading if it is compared later.
fn writing(read_back: bool) -> OFlags {
    let access = if read_back { OFlags::RDWR } else { OFlags::WRONLY };
    access | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// Returns the metadata of an open file.
pub fn stat(file: &File) -> Result<Meta> {
    Ok(meta(&fs::fstat(file)?))
}

/// Reads the next piece of a file of about `size` bytes; `None` at its end.
pub fn read_at(file: &File, at: u64, size: u64) -> Result<Option<Bytes>> {
    let mut piece = vec![0; some_more(at, size).min(PIECE) as usize];
    let n = loop {
        match file.read_at(&mut piece, at) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    piece.truncate(n);
    Ok((n > 0).then(|| piece.into()))
}

/// Reads the next piece of a file that may have holes, or returns the hole that comes next; `None` at its end.
pub fn next_sparse(file: &File, at: u64, size: u64) -> Result<Option<FilePiece>> {
    let data_end = match fs::seek(file, fs::SeekFrom::Data(at)) {
        Ok(data) if data > at => return Ok(Some(FilePiece::Hole(data - at))),
        Ok(_) => fs::seek(file, fs::SeekFrom::Hole(at)).unwrap_or(u64::MAX),
        // No data follows.
        Err(Errno::NXIO) => {
            let end = stat(file)?.size;
            return Ok((end > at).then(|| FilePiece::Hole(end - at)));
        }
        // The file system does not report holes.
        Err(_) => u64::MAX,
    };
    let mut data = read_at(file, at, size)?;
    if let Some(data) = &mut data {
        data.truncate(data_end.saturating_sub(at).clamp(1, data.len() as u64) as usize);
    }
    Ok(data.map(FilePiece::Data))
}

fn meta(st: &fs::Stat) -> Meta {
    Meta {
        kind: Kind::of(st.st_mode),
        id: st.st_ino,
        mode: st.st_mode & 0o7777,
        uid: st.st_uid,
        gid: st.st_gid,
        size: st.st_size as u64,
        mtime: Time { sec: st.st_mtime, nsec: st.st_mtime_nsec as u32 },
        links: st.st_nlink,
        state: None,
        is_event: false,
        is_sparse: is_sparse(st.st_size as u64, st.st_blocks as u64),
    }
}

/// Sets owner, mode and time. Owner first, because a change of owner clears set-id bits; time last.
fn dress(fd: impl rustix::fd::AsFd, meta: &Meta, preserve: bool) -> Result<()> {
    let mut mode = meta.mode_for(preserve);
    if preserve {
        match fs::fchown(&fd, Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid))) {
            // Only root may change the owner. Then set-id bits are dropped, as the owner is another one.
            Err(Errno::PERM) => mode &= 0o1777,
            result => result?,
        }
    }
    fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
    Ok(fs::futimens(&fd, &times(meta))?)
}

fn times(meta: &Meta) -> Timestamps {
    let mtime = Timespec { tv_sec: meta.mtime.sec, tv_nsec: meta.mtime.nsec.into() };
    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: mtime }
}

fn dot(name: &[u8]) -> &[u8] {
    if name.is_empty() { b"." } else { name }
}
