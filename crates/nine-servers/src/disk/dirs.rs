//! Directory reading as a stream of entries with cookies.
//!
//! In: the cookie of the entry to continue after. Out: entries in a `DirBuf`. Each open directory holds one block of
//! entries as the host returned them. A read that continues from the last one only encodes entries, inline, until the
//! block is used up and the pool fetches the next. Any other cookie is a seek. So reading a directory takes linear
//! time, and at most one block of it is in memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, TryLockError};

use nine_io::server::Reply;
use nine_proto::mode::{S_IFLNK, S_IFMT};
use nine_proto::{Attr, DirBuf, Dirent, Errno, GetMask, Qid, Texts};

use super::attr::qid_type;
use super::dent::HostDentry;
use super::host::HostFs;
use super::{DiskFidKind, DiskFidState, DiskShared, ExecutionMode, OperationResult, locked};

/// An open directory.
pub(super) struct OpenHostDir {
    pub(super) dent: Arc<HostDentry>,
    pub(super) fd: Arc<OwnedFd>,
    stream: Mutex<DirReadState>,
}

impl OpenHostDir {
    pub(super) fn new(dent: Arc<HostDentry>, fd: OwnedFd) -> Self {
        Self { dent, fd: Arc::new(fd), stream: Mutex::default() }
    }
}

#[derive(Default)]
struct DirReadState {
    block: Block,
    /// The cookie of the last entry returned; 0 at the start.
    at: u64,
    /// The host has no more entries after `block`.
    end: bool,
}

/// Directory entries as the host returned them.
#[derive(Default)]
pub struct Block {
    bytes: Vec<u8>,
    next: usize,
}

/// One entry of a [`Block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostDirEntry<'a> {
    pub(super) ino: u64,
    pub(super) cookie: u64,
    pub(super) ty: u8,
    pub(super) name: &'a [u8],
}

impl Block {
    /// Bytes requested from the host at a time.
    pub const SIZE: usize = 32 * 1024;
    const DIRENT_HEAD_LEN: usize = 19;

    /// Appends an entry. `cookie` is the position after it; `ty` is as in `d_type`.
    pub fn push(&mut self, ino: u64, cookie: u64, ty: u8, name: &[u8]) {
        self.bytes.extend_from_slice(&ino.to_ne_bytes());
        self.bytes.extend_from_slice(&cookie.to_ne_bytes());
        // Some file systems allow 255 characters rather than bytes. None allows names of 64 KiB.
        let name = &name[..name.len().min(u16::MAX.into())];
        self.bytes.push(ty);
        self.bytes.extend_from_slice(&(name.len() as u16).to_ne_bytes());
        self.bytes.extend_from_slice(name);
    }

    /// Returns the next entry and the offset of the one after it.
    fn peek(&self) -> Option<(HostDirEntry<'_>, usize)> {
        let (ino, rest) = self.bytes[self.next..].split_first_chunk()?;
        let (cookie, rest) = rest.split_first_chunk()?;
        let (&[ty], rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let name = &rest[..u16::from_ne_bytes(*len).into()];
        let entry =
            HostDirEntry { ino: u64::from_ne_bytes(*ino), cookie: u64::from_ne_bytes(*cookie), ty, name };
        Some((entry, self.next + Self::DIRENT_HEAD_LEN + name.len()))
    }

    fn is_empty(&self) -> bool {
        self.next == self.bytes.len()
    }
}

impl<H: HostFs> DiskShared<H> {
    /// Reads entries after `cookie`. Runs inline while the block lasts and no attributes are asked for.
    pub(super) fn readdir(
        &self,
        node: &DiskFidState,
        cookie: u64,
        mut buf: DirBuf,
        how: ExecutionMode,
    ) -> OperationResult<Reply> {
        let DiskFidKind::Dir(dir) = &node.kind else { return Err(Errno::ENOTDIR.into()) };
        let inline = how == ExecutionMode::Inline;
        let mut stream = match dir.stream.try_lock() {
            Ok(stream) => stream,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) if inline => return Err(Errno::EAGAIN.into()),
            Err(TryLockError::WouldBlock) => locked(&dir.stream),
        };
        let stream = &mut *stream;
        // Cookie 0 rereads the directory, also if the last read returned no entry.
        let elsewhere = cookie != stream.at || cookie == 0 && (stream.end || !stream.block.is_empty());
        if inline && (elsewhere || buf.wants_attrs()) {
            return Err(Errno::EAGAIN.into());
        }
        if elsewhere {
            self.host.seek(dir.fd.as_fd(), cookie)?;
            *stream = DirReadState { at: cookie, ..DirReadState::default() };
        }
        let from = stream.at;
        loop {
            while let Some((entry, next)) = stream.block.peek() {
                match self.push_entry(node, dir, entry, &mut buf, how) {
                    Ok(true) => {}
                    Ok(false) => return Ok(Reply::Dir(buf)),
                    Err(_) if stream.at != from => return Ok(Reply::Dir(buf)),
                    Err(fail) => return Err(fail),
                }
                (stream.at, stream.block.next) = (entry.cookie, next);
            }
            if stream.end {
                return Ok(Reply::Dir(buf));
            }
            let some = stream.at != from;
            if inline {
                return if some { Ok(Reply::Dir(buf)) } else { Err(Errno::EAGAIN.into()) };
            }
            stream.block = Block::default();
            match self.host.getdents(dir.fd.as_fd(), &mut stream.block) {
                Ok(()) => stream.end = stream.block.is_empty(),
                // Entries already read are returned first. The next read gets the error again.
                Err(_) if some => return Ok(Reply::Dir(buf)),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn push_entry(
        &self,
        node: &DiskFidState,
        dir: &OpenHostDir,
        entry: HostDirEntry<'_>,
        buf: &mut DirBuf,
        how: ExecutionMode,
    ) -> OperationResult<bool> {
        let special = match entry.name {
            b"." => Some(dir.dent.clone()),
            b".." => Some(self.parent_in(&node.view, &dir.dent)),
            _ => None,
        };
        let HostDirEntry { cookie, name, ty, .. } = entry;
        if let Some(dent) = special {
            let path = self.qid_path(dent.id.dev, dent.id.ino);
            return Ok(buf
                .push(&Dirent { qid: Qid { ty: Qid::DIR, vers: 0, path }, cookie, ty: DT_DIR, name }, None));
        }
        if !buf.wants_attrs() && ty != DT_UNKNOWN {
            let qid = Qid {
                ty: qid_type(u32::from(ty) << 12),
                vers: 0,
                path: self.qid_path(dir.dent.id.dev, entry.ino),
            };
            return Ok(buf.push(&Dirent { qid, cookie, ty, name }, None));
        }
        if how == ExecutionMode::Inline {
            return Err(Errno::EAGAIN.into());
        }
        let Ok(attr) = self.attr_of_entry(dir, name, buf.wants_attrs()) else {
            // The file was removed meanwhile, or has no readable attributes. A .L directory lists it nevertheless.
            let qid = Qid { ty: 0, vers: 0, path: self.qid_path(dir.dent.id.dev, entry.ino) };
            return Ok(buf.push(&Dirent { qid, cookie, ty, name }, None));
        };
        let entry = Dirent { qid: attr.qid, cookie, ty: Dirent::type_of_mode(attr.mode), name };
        Ok(buf.push(&entry, Some(&attr)))
    }

    fn attr_of_entry(&self, dir: &OpenHostDir, name: &[u8], texts: bool) -> OperationResult<Attr> {
        let mut attr = self.attr(&self.host.stat(dir.fd.as_fd(), name)?);
        if texts {
            let is_link = attr.mode & S_IFMT == S_IFLNK;
            let target = if is_link { self.host.readlink(dir.fd.as_fd(), name)? } else { Vec::new() };
            attr.texts = Some(Box::new(Texts { name: name.into(), target: target.into(), owners: None }));
            attr.valid |= GetMask::TEXTS;
        }
        Ok(attr)
    }
}

const DT_UNKNOWN: u8 = 0;
const DT_DIR: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_gives_back_what_was_pushed() {
        let mut block = Block::default();
        block.push(1, 11, 4, b"a");
        block.push(u64::MAX, 12, 8, &[b'x'; 765]);
        let (first, next) = block.peek().unwrap();
        assert_eq!(first, HostDirEntry { ino: 1, cookie: 11, ty: 4, name: b"a" });
        block.next = next;
        let (second, next) = block.peek().unwrap();
        assert_eq!((second.ino, second.name.len()), (u64::MAX, 765));
        block.next = next;
        assert!(block.is_empty() && block.peek().is_none());
    }
}
