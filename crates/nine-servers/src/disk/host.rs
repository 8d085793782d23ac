//! The seam to the host: every call the disk server makes on files, and `Linux`, which makes them.
//!
//! In: descriptors and single names. Out: what the kernel says, errors as its errno. A simulation wraps `Linux` to
//! inject faults; nothing else of this crate calls the kernel about files.
//!
//! Always holds: a name is one component and never followed if it is a symbolic link, so no call leaves the directory
//! it is given. An empty name stands for the descriptor itself. Every call may be made from any thread; the event
//! loop makes only those marked *inline*, the others may wait for the disk.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nine_net::Placed;
use nine_proto::{LockType, Time};
use rustix::fs::{
    self, AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Timestamps, Uid, XattrFlags,
};
use rustix::io::ReadWriteFlags;
pub use rustix::io::{Errno, Result};
use rustix::pipe::SpliceFlags;

pub use super::dirs::Block;
use super::sys;

/// What statx(2) says about a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of stat(2)")]
pub struct Stat {
    pub dev: u64,
    pub ino: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    pub blksize: u32,
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// `None` where the file system does not keep it.
    pub btime: Option<Time>,
}

/// A range of a file that is or shall be locked; `length` 0 reaches to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLock {
    /// The kind.
    pub ty: LockType,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

/// How much of a range of a file is in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resident {
    /// All of it: it can be sent without waiting for the disk.
    All,
    /// Not all.
    Part,
    /// The kernel does not say; or says none, which where file systems are stacked means nothing.
    Unknown,
}

/// What the disk server asks of its host. The comments name the system calls of [`Linux`].
#[allow(missing_docs, reason = "the names of the system calls")]
pub trait HostFs: Send + Sync + 'static {
    /// openat2; *inline* with `RESOLVE_CACHED` (EAGAIN: it would wait, or enter another file system). Never with `..`
    /// or `/` in the name.
    fn open(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        flags: OFlags,
        mode: Mode,
        cached: bool,
    ) -> Result<OwnedFd>;
    /// Opens the very file behind an `O_PATH` descriptor, whatever its name is by now.
    fn reopen(&self, file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd>;
    /// statx; *inline* for the descriptor itself.
    fn stat(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Stat>;
    /// faccessat2 with the rights of the thread: `R_OK` 4, `W_OK` 2, `X_OK` 1. *Inline*.
    fn access(&self, file: BorrowedFd<'_>, rights: u32) -> Result<()>;
    fn readlink(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>>;
    fn mkdir(&self, dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<()>;
    /// `mode` with the type.
    fn mknod(&self, dir: BorrowedFd<'_>, name: &[u8], mode: u32, major: u32, minor: u32) -> Result<()>;
    fn symlink(&self, target: &[u8], dir: BorrowedFd<'_>, name: &[u8]) -> Result<()>;
    /// Another name for the very file behind `file`.
    fn link(&self, file: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> Result<()>;
    fn rename(
        &self,
        from: (BorrowedFd<'_>, &[u8]),
        to: (BorrowedFd<'_>, &[u8]),
        flags: RenameFlags,
    ) -> Result<()>;
    fn unlink(&self, dir: BorrowedFd<'_>, name: &[u8], is_dir: bool) -> Result<()>;
    fn chmod(&self, file: BorrowedFd<'_>, mode: u32) -> Result<()>;
    fn chown(&self, file: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()>;
    fn utimens(&self, file: BorrowedFd<'_>, times: &Timestamps) -> Result<()>;
    fn truncate(&self, file: BorrowedFd<'_>, size: u64) -> Result<()>;
    /// getdents64: the next entries, appended to `block`; none at the end.
    fn getdents(&self, dir: BorrowedFd<'_>, block: &mut Block) -> Result<()>;
    /// lseek of a directory to a cookie. *Inline*.
    fn seek(&self, dir: BorrowedFd<'_>, cookie: u64) -> Result<()>;
    /// Appends what is at `offset` to `buf`, at most its free capacity. *Inline* with `nowait` (EAGAIN: not cached).
    fn pread(&self, file: BorrowedFd<'_>, buf: &mut Vec<u8>, offset: u64, nowait: bool) -> Result<usize>;
    /// *Inline* with `nowait`.
    fn pwrite(&self, file: BorrowedFd<'_>, data: &[u8], offset: u64, nowait: bool) -> Result<usize>;
    /// The same for bytes that lie with a client, who may change them meanwhile.
    fn pwrite_placed(&self, file: BorrowedFd<'_>, data: &Placed, offset: u64, nowait: bool) -> Result<usize> {
        self.pwrite(file, &data.to_vec(data.len()), offset, nowait)
    }
    /// Moves up to `len` bytes, at least one, of those in a pipe into a file (splice(2)). Says how many.
    fn fill(&self, file: BorrowedFd<'_>, pipe: BorrowedFd<'_>, offset: u64, len: usize) -> Result<usize>;
    /// fsync(2), or fdatasync(2).
    fn fsync(&self, file: BorrowedFd<'_>, data_only: bool) -> Result<()>;
    fn statfs(&self, file: BorrowedFd<'_>) -> Result<nine_proto::Statfs>;
    fn getxattr(&self, file: BorrowedFd<'_>, name: &[u8], buf: &mut [u8]) -> Result<usize>;
    fn listxattr(&self, file: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize>;
    fn setxattr(&self, file: BorrowedFd<'_>, name: &[u8], value: &[u8], flags: u32) -> Result<()>;
    fn removexattr(&self, file: BorrowedFd<'_>, name: &[u8]) -> Result<()>;
    /// Sets or removes a lock of this open file description; never waits (EAGAIN, EACCES).
    fn lock(&self, file: BorrowedFd<'_>, lock: HostLock) -> Result<()>;
    /// The lock in the way of this one.
    fn getlock(&self, file: BorrowedFd<'_>, lock: HostLock) -> Result<Option<HostLock>>;
    /// How much of a range is in the page cache. *Inline*.
    fn resident(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> Resident;
}

/// The host this program runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux;

impl HostFs for Linux {
    fn open(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        flags: OFlags,
        mode: Mode,
        cached: bool,
    ) -> Result<OwnedFd> {
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        if cached {
            // Another file system may ask a network, or another process, and never hear anything.
            resolve |= ResolveFlags::CACHED | ResolveFlags::NO_XDEV;
        }
        match fs::openat2(dir, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::XDEV) if cached => Err(Errno::AGAIN),
            result => result,
        }
    }

    fn reopen(&self, file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
        fs::open(proc_path(file), flags | OFlags::CLOEXEC, Mode::empty())
    }

    fn stat(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Stat> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let st = fs::statx(dir, name, flags, fs::StatxFlags::BASIC_STATS | fs::StatxFlags::BTIME)?;
        let time = |t: fs::StatxTimestamp| Time { sec: t.tv_sec, nsec: t.tv_nsec };
        let has_btime = st.stx_mask & fs::StatxFlags::BTIME.bits() != 0;
        Ok(Stat {
            dev: fs::makedev(st.stx_dev_major, st.stx_dev_minor),
            ino: st.stx_ino,
            mode: st.stx_mode.into(),
            nlink: st.stx_nlink,
            uid: st.stx_uid,
            gid: st.stx_gid,
            rdev: fs::makedev(st.stx_rdev_major, st.stx_rdev_minor),
            size: st.stx_size,
            blksize: st.stx_blksize,
            blocks: st.stx_blocks,
            atime: time(st.stx_atime),
            mtime: time(st.stx_mtime),
            ctime: time(st.stx_ctime),
            btime: has_btime.then(|| time(st.stx_btime)),
        })
    }

    fn access(&self, file: BorrowedFd<'_>, rights: u32) -> Result<()> {
        sys::faccess(file, rights)
    }

    fn readlink(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>> {
        fs::readlinkat(dir, name, Vec::new()).map(|target| target.into_bytes())
    }

    fn mkdir(&self, dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<()> {
        fs::mkdirat(dir, name, Mode::from_raw_mode(mode))
    }

    fn mknod(&self, dir: BorrowedFd<'_>, name: &[u8], mode: u32, major: u32, minor: u32) -> Result<()> {
        let (ty, mode) = (FileType::from_raw_mode(mode), Mode::from_raw_mode(mode & 0o7777));
        fs::mknodat(dir, name, ty, mode, fs::makedev(major, minor))
    }

    fn symlink(&self, target: &[u8], dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        fs::symlinkat(target, dir, name)
    }

    fn link(&self, file: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        fs::linkat(fs::CWD, proc_path(file), dir, name, AtFlags::SYMLINK_FOLLOW)
    }

    fn rename(
        &self,
        (from_dir, from): (BorrowedFd<'_>, &[u8]),
        (to_dir, to): (BorrowedFd<'_>, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        fs::renameat_with(from_dir, from, to_dir, to, flags)
    }

    fn unlink(&self, dir: BorrowedFd<'_>, name: &[u8], is_dir: bool) -> Result<()> {
        fs::unlinkat(dir, name, if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() })
    }

    fn chmod(&self, file: BorrowedFd<'_>, mode: u32) -> Result<()> {
        match sys::fchmodat2(file, mode) {
            Err(Errno::NOSYS) => fs::chmod(proc_path(file), Mode::from_raw_mode(mode)),
            result => result,
        }
    }

    fn chown(&self, file: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        fs::chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH)
    }

    fn utimens(&self, file: BorrowedFd<'_>, times: &Timestamps) -> Result<()> {
        fs::utimensat(file, c"", times, AtFlags::EMPTY_PATH)
    }

    fn truncate(&self, file: BorrowedFd<'_>, size: u64) -> Result<()> {
        fs::ftruncate(file, size)
    }

    fn getdents(&self, dir: BorrowedFd<'_>, block: &mut Block) -> Result<()> {
        let mut space = Vec::with_capacity(Block::SIZE);
        let mut entries = fs::RawDir::new(dir, space.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let ty = (entry.file_type().as_raw_mode() >> 12) as u8;
            block.push(entry.ino(), entry.next_entry_cookie(), ty, entry.file_name().to_bytes());
            if entries.is_buffer_empty() {
                break;
            }
        }
        Ok(())
    }

    fn seek(&self, dir: BorrowedFd<'_>, cookie: u64) -> Result<()> {
        fs::seek(dir, fs::SeekFrom::Start(cookie)).map(drop)
    }

    fn pread(&self, file: BorrowedFd<'_>, buf: &mut Vec<u8>, offset: u64, nowait: bool) -> Result<usize> {
        sys::pread(file, buf, offset, nowait)
    }

    fn pwrite(&self, file: BorrowedFd<'_>, data: &[u8], offset: u64, nowait: bool) -> Result<usize> {
        let flags = if nowait { ReadWriteFlags::NOWAIT } else { ReadWriteFlags::empty() };
        // The kernel takes all ones for "where the last write ended".
        i64::try_from(offset).map_err(|_| Errno::INVAL)?;
        rustix::io::pwritev2(file, &[std::io::IoSlice::new(data)], offset, flags)
    }

    fn pwrite_placed(&self, file: BorrowedFd<'_>, data: &Placed, offset: u64, nowait: bool) -> Result<usize> {
        data.write_at(file, offset, nowait)
    }

    fn fill(&self, file: BorrowedFd<'_>, pipe: BorrowedFd<'_>, mut offset: u64, len: usize) -> Result<usize> {
        i64::try_from(offset).map_err(|_| Errno::INVAL)?;
        loop {
            match rustix::pipe::splice(pipe, None, file, Some(&mut offset), len, SpliceFlags::MOVE) {
                Err(Errno::INTR) => {}
                moved => return moved,
            }
        }
    }

    fn fsync(&self, file: BorrowedFd<'_>, data_only: bool) -> Result<()> {
        if data_only { fs::fdatasync(file) } else { fs::fsync(file) }
    }

    fn statfs(&self, file: BorrowedFd<'_>) -> Result<nine_proto::Statfs> {
        let st = fs::fstatfs(file)?;
        Ok(nine_proto::Statfs {
            ty: st.f_type as u32,
            bsize: st.f_bsize as u32,
            blocks: st.f_blocks,
            bfree: st.f_bfree,
            bavail: st.f_bavail,
            files: st.f_files,
            ffree: st.f_ffree,
            // The kernel's two words, which `StatFs` hides.
            fsid: fs::fstatvfs(file)?.f_fsid,
            namelen: st.f_namelen as u32,
        })
    }

    fn getxattr(&self, file: BorrowedFd<'_>, name: &[u8], buf: &mut [u8]) -> Result<usize> {
        fs::getxattr(proc_path(file), name, buf)
    }

    fn listxattr(&self, file: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize> {
        fs::listxattr(proc_path(file), buf)
    }

    fn setxattr(&self, file: BorrowedFd<'_>, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        fs::setxattr(proc_path(file), name, value, XattrFlags::from_bits_retain(flags))
    }

    fn removexattr(&self, file: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        fs::removexattr(proc_path(file), name)
    }

    fn lock(&self, file: BorrowedFd<'_>, lock: HostLock) -> Result<()> {
        sys::ofd_lock(file, range(lock)?)
    }

    fn getlock(&self, file: BorrowedFd<'_>, lock: HostLock) -> Result<Option<HostLock>> {
        let found = sys::ofd_getlock(file, range(lock)?)?;
        let ty = match found.ty.into() {
            libc::F_RDLCK => LockType::Read,
            libc::F_WRLCK => LockType::Write,
            _ => return Ok(None),
        };
        Ok(Some(HostLock { ty, start: found.start as u64, length: found.len as u64 }))
    }

    fn resident(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> Resident {
        let page = rustix::param::page_size() as u64;
        let pages = (offset + len).div_ceil(page) - offset / page;
        match sys::cached_pages(file, offset, len) {
            Err(_) | Ok(0) => Resident::Unknown,
            Ok(cached) if cached < pages => Resident::Part,
            // Pages that are only just being read count as cached; the last byte of a range is read last.
            Ok(_) => match sys::pread(file, &mut Vec::with_capacity(1), offset + len - 1, true) {
                Ok(1) => Resident::All,
                _ => Resident::Part,
            },
        }
    }
}

/// The name under which the kernel reaches the very file behind a descriptor.
fn proc_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

fn range(lock: HostLock) -> Result<sys::Range> {
    let number = |n: u64| i64::try_from(n).map_err(|_| Errno::OVERFLOW);
    let ty = match lock.ty {
        LockType::Read => libc::F_RDLCK,
        LockType::Write => libc::F_WRLCK,
        LockType::Unlock => libc::F_UNLCK,
    };
    Ok(sys::Range { ty: ty as i16, start: number(lock.start)?, len: number(lock.length)? })
}
