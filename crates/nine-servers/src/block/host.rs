//! A disk backed by a file or a block device of the host.
//!
//! In: a path. Out: a [`Device`]. Small reads from the page cache and small writes that it takes run at once. The
//! rest goes to threads, so that `submit` never waits.
//!
//! Always holds: one program at a time has it open for writing, unless it is shared. Flushed data is on the disk.
//! After a flush has failed, every flush fails, since the kernel forgets which pages it could not write.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use nine_block::{Device, Error, Io, Kind, Op, SECTOR, Shape};
use rustix::fs::{Advice, FallocateFlags, FlockOperation, SeekFrom};
use rustix::io::Errno;

use super::flush::FlushQueue;
use crate::disk::pool::ThreadPool;
use crate::disk::sys;
use crate::probe::CacheProbe;

/// Pool threads: as many requests as a disk can use in parallel.
const THREADS: usize = 16;
/// The largest useful operation, in sectors: one megabyte.
const IO_SECTORS_MAX: u32 = 2048;
/// Operations up to this size are copied from or to the page cache by the caller, in bytes. Larger copies would delay
/// it: a megabyte has taken 38 ms where the kernel had to find pages. Threads also copy in parallel.
const INLINE_COPY_MAX: usize = 64 << 10;

/// See the module.
pub struct HostDisk {
    inner: Arc<HostDiskShared>,
    pool: ThreadPool,
}

struct HostDiskShared {
    path: PathBuf,
    fd: OwnedFd,
    /// For small reads: the kernel does no readahead on it. A hole of 8 MiB that readahead filled with zeros has
    /// taken 26 ms.
    few: OwnedFd,
    is_device: bool,
    read_only: bool,
    /// The number of sectors that are written atomically.
    atom: u32,
    sectors: AtomicU64,
    /// See [`Device::unbacked`]; the value of the latest check.
    unbacked: AtomicU64,
    /// A thread is checking it.
    is_looking: AtomicBool,
    flushes: FlushQueue,
    probe: CacheProbe,
}

impl HostDisk {
    /// Opens a file or a block device.
    ///
    /// # Errors
    /// Those of open(2), with the path. `ResourceBusy` if another program has locked it. `InvalidInput` if it is
    /// neither a file nor a block device.
    pub fn open(path: &Path, read_only: bool) -> io::Result<Self> {
        Self::open_as(path, read_only, true)
    }

    /// Opens it read-only without a lock, while another program may have it open exclusively.
    ///
    /// # Errors
    /// As [`open`](Self::open), but for `ResourceBusy`.
    pub fn watch(path: &Path) -> io::Result<Self> {
        Self::open_as(path, true, false)
    }

    /// Opens a file for writing by several programs of this machine, which coordinate through its contents.
    ///
    /// # Errors
    /// As [`open`](Self::open), but for `ResourceBusy`. `InvalidInput` for a block device, since cached reads would
    /// miss the writes of another machine.
    pub fn share(path: &Path) -> io::Result<Self> {
        if !std::fs::metadata(path)?.is_file() {
            let text = "several programs share a regular file, or a target on an Ethernet";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {text}", path.display())));
        }
        Self::open_as(path, false, false)
    }

    fn open_as(path: &Path, read_only: bool, locked: bool) -> io::Result<Self> {
        let said = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let inner = HostDiskShared::open(path, read_only, locked).map_err(said)?;
        Ok(Self { inner: Arc::new(inner), pool: ThreadPool::new(THREADS) })
    }

    /// Runs an operation on a pool thread.
    fn later(
        &self,
        io: Io,
        does: impl FnOnce(&HostDiskShared, &Io) -> nine_block::Result<Bytes> + Send + 'static,
    ) {
        let (inner, mut waits) = (self.inner.clone(), QueuedDiskIo(Some(io)));
        let job = Box::new(move || {
            let io = waits.0.take().expect("it waits until now");
            let result = does(&inner, &io);
            io.end(result);
        });
        // If the pool's queue is full, dropping the job fails the operation.
        drop(self.pool.push(0, job));
    }

    fn flush(&self, io: Io) {
        if !self.inner.flushes.push(io) {
            return;
        }
        let inner = self.inner.clone();
        let sync = move || {
            let wrong = |text: &str| inner.wrong(Kind::Poisoned, text);
            inner.flushes.run(|| Ok(rustix::fs::fdatasync(&inner.fd)?), wrong);
            inner.look_at_storage();
        };
        if self.pool.push(0, Box::new(sync)).is_err() {
            self.inner.flushes.give_up();
        }
    }
}

/// An operation waiting for a thread.
struct QueuedDiskIo(Option<Io>);

impl Drop for QueuedDiskIo {
    fn drop(&mut self) {
        if let Some(io) = self.0.take() {
            io.fail(Kind::Busy, "too much waits for the disk");
        }
    }
}

impl HostDiskShared {
    fn open(path: &Path, read_only: bool, locked: bool) -> io::Result<Self> {
        let kind = std::fs::metadata(path)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is neither a file nor a block device",
            ));
        }
        let is_device = kind.is_block_device();
        // O_EXCL fails for a device that is mounted, or that another program has open exclusively.
        let exclusive = if is_device && !read_only { libc::O_EXCL } else { 0 };
        let file = File::options().read(true).write(!read_only).custom_flags(exclusive).open(path)?;
        let lock = if read_only {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        if locked {
            rustix::fs::flock(&file, lock).map_err(|errno| match errno {
                Errno::WOULDBLOCK => io::Error::new(io::ErrorKind::ResourceBusy, "another program has it"),
                errno => errno.into(),
            })?;
        }
        let few = File::options().read(true).open(path)?;
        let (one, other) = (rustix::fs::fstat(&file)?, rustix::fs::fstat(&few)?);
        if (one.st_dev, one.st_ino) != (other.st_dev, other.st_ino) {
            return Err(io::Error::other("it was replaced while it was opened: try again"));
        }
        rustix::fs::fadvise(&few, 0, None, Advice::Random)?;
        let atom = match is_device {
            true => rustix::fs::ioctl_blksszget(&file)? / SECTOR as u32,
            false => 1,
        };
        let inner = Self {
            path: path.into(),
            fd: file.into(),
            few: few.into(),
            is_device,
            read_only,
            atom: atom.max(1),
            sectors: AtomicU64::new(0),
            unbacked: AtomicU64::new(0),
            is_looking: AtomicBool::new(false),
            flushes: FlushQueue::default(),
            probe: CacheProbe::default(),
        };
        inner.look()?;
        inner.look_at_storage();
        Ok(inner)
    }

    /// Reads the current size. Bytes after the last whole sector do not count.
    fn look(&self) -> io::Result<()> {
        let bytes = match self.is_device {
            true => rustix::fs::seek(&self.fd, SeekFrom::End(0))?,
            false => rustix::fs::fstat(&self.fd)?.st_size as u64,
        };
        self.sectors.store(bytes / SECTOR, Ordering::Release);
        Ok(())
    }

    fn shape(&self) -> Shape {
        Shape {
            sectors: self.sectors.load(Ordering::Acquire),
            atom: self.atom,
            most: IO_SECTORS_MAX,
            read_only: self.read_only,
            durable: true,
        }
    }

    fn wrong(&self, kind: Kind, error: impl std::fmt::Display) -> Error {
        Error::new(kind, format!("{}: {error}", self.path.display()))
    }

    /// Reads the rest of the operation; `data` holds bytes read before. `None` with `now`: it would have to wait.
    fn read(&self, io: &Io, data: &mut Vec<u8>, now: bool) -> Option<nine_block::Result<Bytes>> {
        let fd = if io.bytes() <= INLINE_COPY_MAX { &self.few } else { &self.fd };
        data.reserve_exact(io.bytes() - data.len());
        while data.len() < io.bytes() {
            let at = io.at * SECTOR + data.len() as u64;
            match sys::pread(fd.as_fd(), data, at, now) {
                Ok(0) => {
                    let text = format!("it ends before byte {at}: it has become shorter");
                    return Some(Err(self.wrong(Kind::Range, text)));
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if now => return None,
                Err(Errno::OPNOTSUPP) if now => {
                    self.probe.unknown(false);
                    return None;
                }
                Err(error) => return Some(Err(self.wrong(Kind::Failed, error))),
            }
        }
        // The capacity may exceed the requested size.
        data.truncate(io.bytes());
        Some(Ok(std::mem::take(data).into()))
    }

    fn write(&self, io: &Io, now: bool) -> Option<nine_block::Result<Bytes>> {
        let (mut at, mut rest) = (io.at * SECTOR, &io.data[..]);
        let flags =
            if now { rustix::io::ReadWriteFlags::NOWAIT } else { rustix::io::ReadWriteFlags::empty() };
        while !rest.is_empty() {
            match rustix::io::pwritev2(&self.fd, &[io::IoSlice::new(rest)], at, flags) {
                Ok(0) => return Some(Err(self.wrong(Kind::Failed, "it takes nothing"))),
                Ok(n) => (at, rest) = (at + n as u64, &rest[n..]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if now => return None,
                Err(Errno::OPNOTSUPP) if now => {
                    self.probe.unknown(true);
                    return None;
                }
                Err(error @ (Errno::NOSPC | Errno::DQUOT)) => {
                    return Some(Err(self.wrong(Kind::Full, error)));
                }
                Err(error) => return Some(Err(self.wrong(Kind::Failed, error))),
            }
        }
        Some(Ok(Bytes::new()))
    }

    /// Determines how many bytes of holes the file system has no room for.
    fn look_at_storage(&self) {
        if self.is_device || self.read_only {
            return;
        }
        if let (Ok(stat), Ok(fs)) = (rustix::fs::fstat(&self.fd), rustix::fs::fstatvfs(&self.fd)) {
            let holes = (stat.st_size as u64).saturating_sub(stat.st_blocks as u64 * SECTOR);
            let unbacked = holes.saturating_sub(fs.f_bavail.saturating_mul(fs.f_frsize));
            self.unbacked.store(unbacked, Ordering::Release);
        }
    }

    fn discard(&self, io: &Io) -> nine_block::Result<Bytes> {
        if self.is_device {
            return Err(
                self.wrong(Kind::Unsupported, "a block device of the host is not told what it need not keep")
            );
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.fd, flags, io.at * SECTOR, io.count * SECTOR) {
            Ok(()) => Ok(Bytes::new()),
            Err(Errno::OPNOTSUPP) => Err(self.wrong(Kind::Unsupported, "its file system knows no holes")),
            Err(error) => Err(self.wrong(Kind::Failed, error)),
        }
    }
}

impl Device for HostDisk {
    fn shape(&self) -> Shape {
        self.inner.shape()
    }

    fn name(&self) -> String {
        format!("w\"{}\"", self.inner.path.display())
    }

    /// Returns the value of the latest check and starts a new one on a thread, since the file system may delay it.
    fn unbacked(&self) -> u64 {
        if !self.inner.is_looking.swap(true, Ordering::AcqRel) {
            let inner = self.inner.clone();
            let look = move || {
                inner.look_at_storage();
                inner.is_looking.store(false, Ordering::Release);
            };
            if self.pool.push(0, Box::new(look)).is_err() {
                self.inner.is_looking.store(false, Ordering::Release);
            }
        }
        self.inner.unbacked.load(Ordering::Acquire)
    }

    fn submit(&self, io: Io) {
        let inner = &*self.inner;
        if let Err(error) = io.judge(&inner.shape()) {
            return io.end(Err(error.of(inner.path.display())));
        }
        match io.op {
            Op::Read => {
                let mut data = Vec::new();
                if io.bytes() <= INLINE_COPY_MAX && inner.probe.looks() {
                    if let Some(read) = inner.read(&io, &mut data, true) {
                        inner.probe.hit();
                        return io.end(read);
                    }
                    inner.probe.missed();
                }
                self.later(io, move |inner, io| inner.read(io, &mut data, false).expect("it waits"));
            }
            Op::Write => {
                if io.bytes() <= INLINE_COPY_MAX
                    && inner.probe.writes()
                    && let Some(written) = inner.write(&io, true)
                {
                    return io.end(written);
                }
                self.later(io, |inner, io| inner.write(io, false).expect("it waits"));
            }
            Op::Flush => self.flush(io),
            Op::Discard => self.later(io, HostDiskShared::discard),
            Op::Look => self.later(io, |inner, _| {
                inner.look().map(|()| Bytes::new()).map_err(|error| inner.wrong(Kind::Failed, error))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(call: impl Future<Output = nine_block::Result<Bytes>>) -> nine_block::Result<Bytes> {
        nine_net::rt::block_on(async |_| call.await).unwrap()
    }

    fn disk(sectors: u64) -> (tempfile::TempDir, PathBuf, Arc<dyn Device>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        File::create(&path).unwrap().set_len(sectors * SECTOR + 100).unwrap();
        let disk: Arc<dyn Device> = Arc::new(HostDisk::open(&path, false).unwrap());
        (dir, path, disk)
    }

    #[test]
    fn what_is_written_is_read_and_stands_in_the_file() {
        let (_dir, path, disk) = disk(100);
        assert_eq!(disk.shape().sectors, 100);
        let data = Bytes::from((0..20 * SECTOR).map(|n| (n / 7) as u8).collect::<Vec<_>>());
        wait(disk.write(70, data.clone())).unwrap();
        wait(disk.flush()).unwrap();
        assert_eq!(wait(disk.read(70, 20)).unwrap(), data);
        assert_eq!(std::fs::read(path).unwrap()[70 * 512..90 * 512], data);
        wait(disk.discard(70, 10)).unwrap();
        assert!(wait(disk.read(70, 10)).unwrap().iter().all(|byte| *byte == 0));
        assert_eq!(wait(disk.read(81, 20)).unwrap_err().kind, Kind::Range);
        assert_eq!(wait(disk.read(u64::MAX, 2)).unwrap_err().kind, Kind::Range);
    }

    #[test]
    fn a_file_of_the_host_keeps_the_rules_of_a_device() {
        let (_dir, _, disk) = disk(100);
        let judged = nine_net::rt::block_on(async |_| nine_block::conform::check(&*disk, 40).await);
        assert_eq!(judged.unwrap(), Ok(()));
    }

    #[test]
    fn a_sparse_file_says_what_its_file_system_has_no_room_for() {
        let (dir, _, small) = disk(10);
        assert_eq!(small.unbacked(), 0);
        let free = rustix::fs::statvfs(dir.path()).map(|fs| fs.f_bavail * fs.f_frsize).unwrap();
        let path = dir.path().join("large");
        File::create(&path).unwrap().set_len(free + (64 << 30)).unwrap();
        let large: Arc<dyn Device> = Arc::new(HostDisk::open(&path, false).unwrap());
        // Other programs may use some of it meanwhile.
        assert!(large.unbacked() > 32 << 30, "{}", large.unbacked());
        assert_eq!(
            HostDisk::open(&path, true).err().map(|error| error.kind()),
            Some(io::ErrorKind::ResourceBusy)
        );
        drop(large);
        assert_eq!(HostDisk::open(&path, true).unwrap().unbacked(), 0, "it is not written");
    }

    #[test]
    fn growth_and_loss_are_noticed() {
        let (_dir, path, disk) = disk(10);
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(20 * SECTOR).unwrap();
        assert_eq!(wait(disk.read(10, 1)).unwrap_err().kind, Kind::Range);
        wait(disk.look()).unwrap();
        assert_eq!(wait(disk.read(10, 10)).unwrap().len(), 5120);
        file.set_len(SECTOR).unwrap();
        let error = wait(disk.read(10, 10)).unwrap_err();
        assert!(error.kind == Kind::Range && error.text.contains("shorter"), "{error}");
    }

    #[test]
    fn one_program_writes_and_others_neither_read_nor_write() {
        let (dir, path, disk) = disk(10);
        for read_only in [false, true] {
            let error = HostDisk::open(&path, read_only).err().expect("it is taken");
            assert_eq!(error.kind(), io::ErrorKind::ResourceBusy, "{error}");
        }
        drop(disk);
        let first: Arc<dyn Device> = Arc::new(HostDisk::open(&path, true).unwrap());
        let _second = HostDisk::open(&path, true).unwrap();
        let error = wait(first.write(0, Bytes::from_static(&[0; 512]))).unwrap_err();
        assert_eq!(error.kind, Kind::ReadOnly);
        assert!(HostDisk::open(dir.path(), false).is_err());
    }
}
