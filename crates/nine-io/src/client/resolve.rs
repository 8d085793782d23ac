//! Paths with symbolic links: a 9P server walks to a link, and its client follows it.
//!
//! In: the root of a tree, a path. Out: the file at the path, and the names that lead to it, without links and ".."; or
//! open files, and directories in which to create something, as open(2) and mkdir(2) find them. Absolute links start at
//! this root, and no link leads out of it.

use nine_proto::msg::MAXWELEM;
use nine_proto::{Attr, Base, Errno, GetMask, OpenFlags};

use super::error::{Error, Result};
use super::file::File;

/// Maximum number of links followed for one path, as in Linux; one more is ELOOP.
const LINKS: usize = 40;

impl File {
    /// Walks to `path` below this root and follows links, the last one only if `follow`. Returns the file and the names
    /// that lead to it. Without links it is one walk, and so it is in 9P2000, which has no links.
    pub async fn resolve(&self, path: impl AsRef<[u8]>, follow: bool) -> Result<(Self, Vec<Vec<u8>>)> {
        let path = path.as_ref();
        let plain = || names(path).map(<[u8]>::to_vec).collect::<Vec<_>>();
        // A ".." after a link depends on the link's target.
        let dotted = names(path).any(|name| name == b"..");
        let first = match self.walk(path).await {
            Ok(file) if !(dotted || follow && file.qid().is_symlink()) => return Ok((file, plain())),
            Err(error) if !may_be_link(&error, path) => return Err(error),
            other => other,
        };
        if self.client().dialect().base == Base::P2000 {
            return first.map(|file| (file, plain()));
        }
        let mut todo: Vec<Vec<u8>> = plain();
        todo.reverse();
        let mut done: Vec<Vec<u8>> = Vec::new();
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == b".." {
                done.pop();
                continue;
            }
            done.push(name);
            let file = self.walk(done.join(&b'/')).await?;
            if !file.qid().is_symlink() || (todo.is_empty() && !follow) {
                continue;
            }
            links += 1;
            if links > LINKS {
                return Err(nine_proto::Error::from(Errno::ELOOP).into());
            }
            let target = file.readlink().await?;
            if target.starts_with(b"/") {
                done.clear();
            } else {
                done.pop();
            }
            todo.extend(names(&target).rev().map(<[u8]>::to_vec));
        }
        Ok((self.walk(done.join(&b'/')).await?, done))
    }

    /// [`File::resolve`], and the file's attributes. Without links it is one round trip if the session orders dependent
    /// requests (`.s`).
    pub async fn find(&self, path: impl AsRef<[u8]>, follow: bool, mask: GetMask) -> Result<(Self, Attr)> {
        let path = path.as_ref();
        if !names(path).any(|name| name == b"..") {
            match self.walk_attr(path, mask).await {
                Ok((file, attr)) if !(follow && file.qid().is_symlink()) => return Ok((file, attr)),
                Err(error) if !may_be_link(&error, path) => return Err(error),
                _ => {}
            }
        }
        let (file, _) = self.resolve(path, follow).await?;
        let attr = file.getattr(mask).await?;
        Ok((file, attr))
    }

    /// Returns the directory of `path`, with links followed, and the last name: for files to be created, renamed or
    /// removed.
    ///
    /// # Errors
    /// EINVAL if the path does not end in a proper name: `/`, `.` or `..`.
    pub async fn parent<'p>(&self, path: &'p [u8]) -> Result<(Self, &'p [u8])> {
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
        let at = path[..end].iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        let (dir, name) = path[..end].split_at(at);
        if matches!(name, b"" | b"." | b"..") {
            return Err(Error::refused(Errno::EINVAL, "it must have a name of its own, not /, . or .."));
        }
        Ok((self.resolve(dir, true).await?.0, name))
    }

    /// Opens the file at `path` as open(2) does, with links followed, and returns its attributes. With `CREAT` a
    /// missing file is created with the permissions `perm`; with `EXCL` it must be missing. Directories are not opened
    /// (EISDIR), and with `NOFOLLOW` neither is a link at the end (ELOOP).
    pub async fn open_at(&self, path: &[u8], flags: OpenFlags, perm: u32) -> Result<(Self, Attr)> {
        let how = OpenFlags(flags.0 & !(OpenFlags::CREAT | OpenFlags::EXCL).0);
        let follow = !flags.has(OpenFlags::NOFOLLOW);
        let file = match self.find(path, follow, GetMask::BASIC).await {
            Ok(_) if flags.has(OpenFlags::CREAT) && flags.has(OpenFlags::EXCL) => {
                return Err(nine_proto::Error::from(Errno::EEXIST).into());
            }
            Ok((_, attr)) if attr.qid.is_symlink() => {
                return Err(nine_proto::Error::from(Errno::ELOOP).into());
            }
            Ok((_, attr)) if attr.qid.is_dir() => return Err(nine_proto::Error::from(Errno::EISDIR).into()),
            Ok((file, attr)) => {
                let file = file.open_here(how).await?;
                if !how.has(OpenFlags::TRUNC) {
                    return Ok((file, attr));
                }
                file
            }
            Err(error) if flags.has(OpenFlags::CREAT) && error.errno() == Errno::ENOENT => {
                let (dir, name) = self.parent(path).await?;
                dir.open_or_create(name, how | OpenFlags(flags.0 & OpenFlags::EXCL.0), perm).await?
            }
            Err(error) => return Err(error),
        };
        let attr = file.getattr(GetMask::BASIC).await?;
        Ok((file, attr))
    }
}

/// Whether a link on the path may be the reason why a walk failed: the walk reached it and could not go on. If one
/// Twalk was not enough, the next one may have failed with another error.
pub fn may_be_link(error: &Error, path: &[u8]) -> bool {
    match error.errno() {
        Errno::ENOTDIR | Errno::ELOOP => true,
        Errno::ENOENT => names(path).count() > MAXWELEM,
        _ => false,
    }
}

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&b| b == b'/').filter(|name| !matches!(*name, b"" | b"."))
}
