//! This machine's end of a copy. Every name is looked up in a directory that is open, and never through a link.
//!
//! Always holds: a file that is being written has a name of its own until it is whole; if it never is, that name goes.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Result, bail};
use bytes::Bytes;
use nine_proto::Time;
use rustix::fs::{self, AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid};
use rustix::io::Errno;

use super::end::{Found, Kind, Meta};
use super::temp_name;

/// Read at once, bytes.
const PIECE: usize = 256 * 1024;
/// How directories are opened, never through a link.
const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open directory.
#[derive(Clone)]
pub struct Dir(Rc<OwnedFd>);

impl Dir {
    /// The one that a person names; links are followed.
    pub fn named(path: &Path) -> Result<Dir> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(Dir(Rc::new(fs::openat(CWD, path, DIR.difference(OFlags::NOFOLLOW), Mode::empty())?)))
    }

    pub fn list(&self) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        for entry in fs::Dir::read_from(&*self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                found.push(Found { name: name.to_vec(), meta: self.stat(name) });
            }
        }
        Ok(found)
    }

    pub fn stat(&self, name: &[u8]) -> Result<Meta> {
        let st = fs::statat(&*self.0, dot(name), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Meta {
            kind: Kind::of(st.st_mode),
            id: st.st_ino,
            mode: st.st_mode & 0o7777,
            uid: st.st_uid,
            gid: st.st_gid,
            size: st.st_size as u64,
            mtime: Time { sec: st.st_mtime, nsec: st.st_mtime_nsec as u32 },
        })
    }

    pub fn dir(&self, name: &[u8]) -> Result<Dir> {
        match fs::openat(&*self.0, dot(name), DIR, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) => {
                bail!("in its place stands something that is not a directory")
            }
            fd => Ok(Dir(Rc::new(fd?))),
        }
    }

    pub fn make_dir(&self, name: &[u8]) -> Result<Dir> {
        match fs::mkdirat(&*self.0, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => self.dir(name),
            Err(e) => Err(e.into()),
        }
    }

    pub fn readlink(&self, name: &[u8]) -> Result<Vec<u8>> {
        Ok(fs::readlinkat(&*self.0, name, Vec::new())?.into_bytes())
    }

    pub fn symlink(&self, name: &[u8], target: &[u8], meta: &Meta) -> Result<()> {
        let temp = temp_name();
        fs::symlinkat(target, &*self.0, &*temp)?;
        if let Err(e) = fs::renameat(&*self.0, &*temp, &*self.0, name) {
            let _ = fs::unlinkat(&*self.0, &*temp, AtFlags::empty());
            return Err(e.into());
        }
        // A file system that keeps no times of links is good enough.
        let _ = fs::utimensat(&*self.0, name, &times(meta), AtFlags::SYMLINK_NOFOLLOW);
        Ok(())
    }

    pub fn open(&self, name: &[u8]) -> Result<File> {
        // Should it have become a pipe since it was looked at, opening does not wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = fs::openat(&*self.0, name, flags, Mode::empty())?;
        if Kind::of(fs::fstat(&fd)?.st_mode) != Kind::File {
            bail!("it has become something that is not a plain file");
        }
        Ok(fd.into())
    }

    pub fn create(&self, name: &[u8]) -> Result<Temp> {
        let temp = temp_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&*self.0, &*temp, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Temp { file: fd.into(), names: Some((self.0.clone(), temp, name.to_vec())) })
    }

    pub fn open_in_place(&self, name: &[u8]) -> Result<Temp> {
        let fd = fs::openat(&*self.0, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Temp { file: fd.into(), names: None })
    }

    pub fn finish(&self, meta: &Meta, preserve: bool) -> Result<()> {
        dress(&self.0, meta, preserve)
    }
}

/// A file that is being written.
pub struct Temp {
    file: File,
    /// Its directory, its name for now, and the one it shall have; `None`: it had its name before.
    names: Option<(Rc<OwnedFd>, String, Vec<u8>)>,
}

impl Temp {
    /// Empty: it had its name before.
    pub fn name(&self) -> &[u8] {
        self.names.as_ref().map_or(b"", |(_, temp, _)| temp.as_bytes())
    }

    pub fn write(&self, data: &[u8]) -> Result<()> {
        Ok((&self.file).write_all(data)?)
    }

    pub fn keep(mut self, meta: &Meta, preserve: bool) -> Result<()> {
        let Some((dir, temp, name)) = &self.names else { return Ok(()) };
        dress(&self.file, meta, preserve)?;
        fs::renameat(&**dir, &**temp, &**dir, &**name)?;
        self.names = None;
        Ok(())
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if let Some((dir, temp, _)) = &self.names {
            let _ = fs::unlinkat(&**dir, &**temp, AtFlags::empty());
        }
    }
}

/// The next piece of a file; `None` at its end.
pub fn read(mut file: &File) -> Result<Option<Bytes>> {
    let mut piece = vec![0; PIECE];
    let n = file.read(&mut piece)?;
    piece.truncate(n);
    Ok((n > 0).then(|| piece.into()))
}

/// Owner first, for a change of owner takes set-id bits away; time last.
fn dress(fd: impl rustix::fd::AsFd, meta: &Meta, preserve: bool) -> Result<()> {
    let mut mode = meta.mode_for(preserve);
    if preserve {
        match fs::fchown(&fd, Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid))) {
            // Only root may give files away; then nobody else's set-id program is made, either.
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
