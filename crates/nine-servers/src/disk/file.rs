//! Open files: read, write, fsync, clunk.
//!
//! In: offsets and counts. Out: file data. Data in the page cache is returned inline: a large range as a range of the
//! file, which the socket sends without a copy, a small one as bytes. Other reads go to the pool. A read that the
//! cache could serve only in part is not answered short; the pool reads all of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use nine_io::Payload;
use nine_io::server::{Fill, Reply};
use nine_net::Placed;
use nine_proto::mode::S_IFREG;
use nine_proto::{Errno, NOGID, OpenFlags};
use rustix::fs::OFlags;

use super::dent::HostDentry;
use super::host::{self, HostFs, Linux, Resident};
use super::{DiskFidKind, DiskFidState, DiskShared, ExecutionMode, OperationResult, locked};
use crate::probe::CacheProbe;

/// A range of at least this many bytes, all in the page cache, is sent from there without a copy. Below it a copy is
/// cheaper.
const FROM_CACHE: u32 = 16 * 1024;
/// If less is left of the file, at least this many bytes are requested.
const READ_LEN_MIN: u32 = 4096;
/// Streams do not keep pages of files of at least this size in the page cache. Bytes.
const UNCACHED_FILE_MIN: u64 = 64 << 20;

/// An open file other than a directory.
pub(super) struct OpenHostFile {
    pub(super) dent: Arc<HostDentry>,
    /// A number unique among open files; its record locks carry it.
    pub(super) number: u64,
    pub(super) writes: bool,
    pub(super) reads: bool,
    /// It has or had record locks.
    pub(super) locked: AtomicBool,
    /// `None` after the clunk.
    fd: Mutex<Option<Arc<OwnedFd>>>,
    /// Writes append, or must be on the disk before they are answered. They are not done on the event loop.
    slow_writes: bool,
    probe: CacheProbe,
}

impl OpenHostFile {
    pub(super) fn new(dent: Arc<HostDentry>, fd: OwnedFd, number: u64, flags: OpenFlags) -> Self {
        Self {
            dent,
            number,
            writes: flags.writes(),
            reads: flags.reads(),
            locked: AtomicBool::new(false),
            fd: Mutex::new(Some(Arc::new(fd))),
            slow_writes: flags.has(OpenFlags::APPEND) || flags.has(OpenFlags::DSYNC),
            probe: CacheProbe::default(),
        }
    }

    pub(super) fn fd(&self) -> OperationResult<Arc<OwnedFd>> {
        Ok(locked(&self.fd).clone().ok_or(Errno::EBADF)?)
    }

    fn is_regular(&self) -> bool {
        self.dent.ty() == S_IFREG
    }

    fn missed(&self) -> super::OperationFailure {
        self.probe.missed();
        Errno::EAGAIN.into()
    }
}

impl DiskFidState {
    /// Returns whether data may be moved from a pipe into the file at any offset.
    pub(super) fn can_fill(&self) -> bool {
        matches!(&self.kind, DiskFidKind::File(file) if file.writes && file.is_regular() && !file.slow_writes)
    }
}

impl<H: HostFs> DiskShared<H> {
    /// Prepares a file to be read once, in order. Pages of a large file are the first to be evicted from the page
    /// cache.
    pub(super) fn passes(&self, node: &DiskFidState) {
        let DiskFidKind::File(file) = &node.kind else { return };
        let Ok(fd) = file.fd() else { return };
        let looks = file.is_regular() && self.is_local(&file.dent, ExecutionMode::Inline);
        if looks && self.host.stat(fd.as_fd(), b"").is_ok_and(|st| st.size >= UNCACHED_FILE_MIN) {
            // Kernels before 6.3 ignore this.
            let _ = rustix::fs::fadvise(&*fd, 0, None, rustix::fs::Advice::NoReuse);
        }
    }

    /// Moves data from a pipe into an open file, with the client's rights. Returns the number of bytes stored, also
    /// on error.
    pub(super) fn fill(&self, fill: &Fill) -> (usize, OperationResult<()>) {
        let mut stored = 0;
        let moved = self.fill_from(fill, &mut stored);
        (stored, moved)
    }

    fn fill_from(&self, fill: &Fill, stored: &mut usize) -> OperationResult<()> {
        let node = fill.node.downcast_ref::<DiskFidState>().ok_or(Errno::EIO)?;
        let DiskFidKind::File(file) = &node.kind else { return Err(Errno::EBADF.into()) };
        let fd = file.fd()?;
        let _client = self.become_client(&node.view, NOGID)?;
        while *stored < fill.len {
            let at = fill.offset + *stored as u64;
            match self.host.fill(fd.as_fd(), fill.pipe(), at, fill.len - *stored) {
                Ok(0) => return Err(Errno::EIO.into()),
                Ok(n) => *stored += n,
                // If the file system does not support splice, use writes.
                Err(host::Errno::INVAL) => return self.fill_by_copy(&fd, fill, stored),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn fill_by_copy(&self, fd: &OwnedFd, fill: &Fill, stored: &mut usize) -> OperationResult<()> {
        let mut piece = vec![0; 64 * 1024];
        while *stored < fill.len {
            let most = piece.len().min(fill.len - *stored);
            let n = rustix::io::retry_on_intr(|| rustix::io::read(fill.pipe(), &mut piece[..most]))?;
            let mut rest = &piece[..n];
            while !rest.is_empty() {
                let at = fill.offset + *stored as u64;
                let n = self.host.pwrite(fd.as_fd(), rest, at, false)?;
                if n == 0 {
                    return Err(Errno::EIO.into());
                }
                *stored += n;
                rest = &rest[n..];
            }
            if n == 0 {
                return Err(Errno::EIO.into());
            }
        }
        Ok(())
    }

    pub(super) fn read(
        &self,
        node: &DiskFidState,
        offset: u64,
        count: u32,
        how: ExecutionMode,
    ) -> OperationResult<Payload> {
        match &node.kind {
            DiskFidKind::File(file) => self.read_file(file, offset, count, how),
            DiskFidKind::Xattr(xattr) => {
                let value = &xattr.bytes;
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(value.len());
                let to = from.saturating_add(count as usize).min(value.len());
                Ok(Payload::Bytes(value.slice(from..to)))
            }
            DiskFidKind::Dir(_) => Err(Errno::EISDIR.into()),
            DiskFidKind::Path(_) | DiskFidKind::NewXattr(_) => Err(Errno::EBADF.into()),
        }
    }

    /// Returns whether the content is always in memory (except for swap), so that no probe is needed.
    fn is_in_memory(&self, file: &OpenHostFile) -> bool {
        self.in_memory && file.dent.id.dev == self.tree.root.id.dev
    }

    fn read_file(
        &self,
        file: &OpenHostFile,
        offset: u64,
        count: u32,
        how: ExecutionMode,
    ) -> OperationResult<Payload> {
        let in_memory = self.is_in_memory(file);
        let inline = how == ExecutionMode::Inline && !in_memory;
        if inline && !(file.is_regular() && file.probe.looks()) {
            return Err(Errno::EAGAIN.into());
        }
        let fd = file.fd()?;
        let size = || self.host.stat(fd.as_fd(), b"").map(|st| st.size);
        let mut want = count;
        if count >= FROM_CACHE && file.is_regular() {
            let left = size()?.saturating_sub(offset).min(count.into()) as u32;
            // The file may be longer than its length: many files in /proc have length 0.
            want = left.max(READ_LEN_MIN);
            if left >= FROM_CACHE {
                let resident = || self.host.resident(fd.as_fd(), offset, want.into());
                match if in_memory { Resident::All } else { resident() } {
                    Resident::All => {
                        file.probe.hit();
                        let resident = if in_memory { always } else { still };
                        return Ok(Payload::File { file: fd, offset, len: want, resident });
                    }
                    Resident::Part if inline => return Err(file.missed()),
                    _ => {}
                }
            }
        }
        if want == 0 {
            return Ok(Payload::EMPTY);
        }
        let mut buf = Vec::with_capacity(want as usize);
        match self.host.pread(fd.as_fd(), &mut buf, offset, inline) {
            Ok(n) if inline && n < want as usize && offset + (n as u64) < size()? => Err(file.missed()),
            Ok(_) => {
                if inline {
                    file.probe.hit();
                }
                // The capacity may exceed the requested size. A payload must not.
                buf.truncate(count as usize);
                Ok(buf.into())
            }
            Err(host::Errno::AGAIN) if inline => Err(file.missed()),
            Err(host::Errno::OPNOTSUPP) if inline => {
                file.probe.unknown(false);
                Err(Errno::EAGAIN.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes with the client's rights: the kernel clears set-id bits after a write by another user, and enforces
    /// quotas. If an inline write was partial, the pool repeats all of it: the same bytes at the same offset.
    pub(super) fn write(
        &self,
        node: &DiskFidState,
        offset: u64,
        data: WriteSource<'_>,
        how: ExecutionMode,
    ) -> OperationResult<Reply> {
        let file = match (&node.kind, data) {
            (DiskFidKind::File(file), _) => file,
            (DiskFidKind::NewXattr(new), WriteSource::Bytes(data)) => {
                return Ok(Reply::Wrote(new.input.write(offset, data)?));
            }
            _ => return Err(Errno::EBADF.into()),
        };
        if data.is_empty() {
            return Ok(Reply::Wrote(0));
        }
        let inline = how == ExecutionMode::Inline && !(self.is_in_memory(file) && file.is_regular());
        if inline && (file.slow_writes || !file.is_regular() || !file.probe.writes()) {
            return Err(Errno::EAGAIN.into());
        }
        let fd = file.fd()?;
        let _client = self.become_client(&node.view, NOGID)?;
        let written = match data {
            WriteSource::Bytes(data) => self.host.pwrite(fd.as_fd(), data, offset, inline),
            WriteSource::Placed(data) => self.host.pwrite_placed(fd.as_fd(), data, offset, inline),
        };
        match written {
            Ok(n) if inline && n < data.len() => Err(Errno::EAGAIN.into()),
            Ok(n) => Ok(Reply::Wrote(n as u32)),
            Err(host::Errno::OPNOTSUPP) if inline => {
                file.probe.unknown(true);
                Err(Errno::EAGAIN.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn fsync(&self, node: &DiskFidState, data_only: bool) -> OperationResult<Reply> {
        let fd = match &node.kind {
            DiskFidKind::Path(dent) if dent.is_dir() || dent.ty() == S_IFREG => {
                let path = self.any_fd(node, ExecutionMode::Pool)?;
                let open = || self.host.reopen(path.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK);
                Arc::new(self.tree.with_room(ExecutionMode::Pool, open)?)
            }
            DiskFidKind::Path(_) => return Ok(Reply::Done),
            _ => self.any_fd(node, ExecutionMode::Pool)?,
        };
        self.host.fsync(fd.as_fd(), data_only)?;
        Ok(Reply::Done)
    }

    /// Clunks a fid. Closing may wait for the disk if the file was written, or if this is the last use of a removed
    /// file.
    pub(super) fn clunk(&self, node: &DiskFidState, how: ExecutionMode) -> OperationResult<Reply> {
        let inline = how == ExecutionMode::Inline;
        match &node.kind {
            DiskFidKind::File(file) => {
                let locked_ranges = file.locked.load(Ordering::Acquire);
                if inline && (file.writes || locked_ranges || file.dent.is_gone()) {
                    return Err(Errno::EAGAIN.into());
                }
                if locked_ranges {
                    self.locks.release(&self.host, file);
                }
                drop(locked(&file.fd).take());
            }
            DiskFidKind::Path(dent) if inline && dent.is_gone() => return Err(Errno::EAGAIN.into()),
            DiskFidKind::Path(dent) if dent.is_gone() => dent.close_if_last(),
            DiskFidKind::NewXattr(_) if inline => return Err(Errno::EAGAIN.into()),
            DiskFidKind::NewXattr(new) => self.store_xattr(node, new)?,
            DiskFidKind::Path(_) | DiskFidKind::Dir(_) | DiskFidKind::Xattr(_) => {}
        }
        Ok(Reply::Done)
    }
}

/// The data of a write.
#[derive(Clone, Copy)]
pub(super) enum WriteSource<'a> {
    /// Bytes from the message.
    Bytes(&'a [u8]),
    /// Bytes in memory shared with the client.
    Placed(&'a Placed),
}

impl WriteSource<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(data) => data.len(),
            Self::Placed(data) => data.len(),
        }
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns whether a range still waiting for a slow client is cached. Asks this host, even if the server uses
/// another.
fn still(file: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
    matches!(Linux.resident(file, offset, len), Resident::All)
}

/// Like `still`, for a file system in memory.
fn always(_: BorrowedFd<'_>, _: u64, _: u64) -> bool {
    true
}
