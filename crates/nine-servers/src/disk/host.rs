//! The host interface: every call the disk server makes on files, and `Linux`, the implementation.
//!
//! In: descriptors and single names. Out: the kernel's results, with errors as its errno. A simulation wraps `Linux`
//! to inject faults. The rest of the disk server makes no system calls on served files, except `watch` and a hint in
//! `file`.
//!
//! Always holds: a name is one component, and is not followed if it is a symbolic link, so no call leaves the
//! directory it is given. An empty name means the descriptor itself. Each call may be made from any thread. The event
//! loop makes only the calls marked *inline*; the others may wait for the disk.

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

/// The attributes of a file as statx(2) returns them.
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
    /// Birth time; `None` if the file system does not store it.
    pub btime: Option<Time>,
}

/// A range of a file that is locked or to be locked. `length` 0 means up to the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLock {
    /// The kind of lock.
    pub ty: LockType,
    /// The first byte.
    pub start: u64,
    /// The number of bytes.
    pub length: u64,
}

/// How much of a range of a file is in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resident {
    /// All of it: it can be sent without waiting for the disk.
    All,
    /// Not all of it.
    Part,
    /// The kernel does not report it, or reports no pages. The latter means nothing on stacked file systems.
    Unknown,
}

/// The operations the disk server needs from its host. The comments name the system calls of [`Linux`].
#[allow(missing_docs, reason = "the names of the system calls")]
pub trait HostFs: Send + Sync + 'static {
    /// openat2; *inline* with `RESOLVE_CACHED` (EAGAIN: it would wait, or enter another file system). The name is
    /// never `..` and contains no `/`.
    fn open(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        flags: OFlags,
        mode: Mode,
        cached: bool,
    ) -> Result<OwnedFd>;
    /// Opens the file behind an `O_PATH` descriptor, also if it was renamed or removed.
    fn reopen(&self, file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd>;
    /// statx; *inline* for the descriptor itself.
    fn stat(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Stat>;
    /// faccessat2 with the rights of the thread: `R_OK` 4, `W_OK` 2, `X_OK` 1. *Inline*.
    fn access(&self, file: BorrowedFd<'_>, rights: u32) -> Result<()>;
    fn readlink(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>>;
    fn mkdir(&self, dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<()>;
    /// `mode` includes the file type.
    fn mknod(&self, dir: BorrowedFd<'_>, name: &[u8], mode: u32, major: u32, minor: u32) -> Result<()>;
    fn symlink(&self, target: &[u8], dir: BorrowedFd<'_>, name: &[u8]) -> Result<()>;
    /// Creates another name for the file behind `file`.
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
    /// getdents64: appends the next entries to `block`; none at the end of the directory.
    fn getdents(&self, dir: BorrowedFd<'_>, block: &mut Block) -> Result<()>;
    /// lseek of a directory to a cookie. *Inline*.
    fn seek(&self, dir: BorrowedFd<'_>, cookie: u64) -> Result<()>;
    /// Appends data at `offset` to `buf`, at most its free capacity. *Inline* with `nowait` (EAGAIN: not cached).
    fn pread(&self, file: BorrowedFd<'_>, buf: &mut Vec<u8>, offset: u64, nowait: bool) -> Result<usize>;
    /// *Inline* with `nowait`.
    fn pwrite(&self, file: BorrowedFd<'_>, data: &[u8], offset: u64, nowait: bool) -> Result<usize>;
    /// The same for bytes in memory shared with a client, which may change them meanwhile.
    fn pwrite_placed(&self, file: BorrowedFd<'_>, data: &Placed, offset: u64, nowait: bool) -> Result<usize> {
        self.pwrite(file, &data.to_vec(data.len()), offset, nowait)
    }
    /// Moves at least one and at most `len` bytes from a pipe into a file (splice(2)). Returns the number of bytes.
    fn fill(&self, file: BorrowedFd<'_>, pipe: BorrowedFd<'_>, offset: u64, len: usize) -> Result<usize>;
    /// fsync(2), or fdatasync(2).
    fn fsync(&self, file: BorrowedFd<'_>, data_only: bool) -> Result<()>;
    fn statfs(&self, file: BorrowedFd<'_>) -> Result<nine_proto::Statfs>;
    fn getxattr(&self, file: BorrowedFd<'_>, name: &[u8], buf: &mut [u8]) -> Result<usize>;
    fn listxattr(&self, file: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize>;
    fn setxattr(&self, file: BorrowedFd<'_>, name: &[u8], value: &[u8], flags: u32) -> Result<()>;
    fn removexattr(&self, file: BorrowedFd<'_>, name: &[u8]) -> Result<()>;
    /// Sets or removes a lock of this open file description. Never waits (EAGAIN, EACCES).
    fn lock(&self, file: BorrowedFd<'_>, lock: HostLock) -> Result<()>;
    /// Returns a lock that conflicts with this one, if there is any.
    fn getlock(&self, file: BorrowedFd<'_>, lock: HostLock) -> Result<Option<HostLock>>;
    /// Returns how much of a range is in the page cache. *Inline*.
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
            // A lookup in another file system may wait for a network or another process, without limit.
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
        // In pwritev2(2), offset -1 means the current file position.
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
            // Both words of the kernel's fsid, which `StatFs` hides.
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
            // Pages still being read count as cached. The last byte of a range is read last, so this checks that it
            // has arrived.
            Ok(_) => match sys::pread(file, &mut Vec::with_capacity(1), offset + len - 1, true) {
                Ok(1) => Resident::All,
                _ => Resident::Part,
            },
        }
    }
}

/// Returns the path under which the kernel reaches the file behind a descriptor.
fn proc_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

fn range(lock: HostLock) -> Result<sys::LockRange> {
    let number = |n: u64| i64::try_from(n).map_err(|_| Errno::OVERFLOW);
    let ty = match lock.ty {
        LockType::Read => libc::F_RDLCK,
        LockType::Write => libc::F_WRLCK,
        LockType::Unlock => libc::F_UNLCK,
    };
    Ok(sys::LockRange { ty: ty as i16, start: number(lock.start)?, len: number(lock.length)? })
}
