//! The only unsafe code in this crate: system calls that rustix does not offer in the form needed here.
//!
//! In: borrowed descriptors, slices, plain numbers. Out: results with the kernel's errno. No pointer is kept after a
//! call returns. [`CredentialGuard`] changes the user of a thread; its invariants are stated there.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::{Errno, Result};

/// Reads at `offset` into the free capacity of `buf` and appends the bytes. With `nowait`, returns EAGAIN instead of
/// waiting for the disk.
pub(crate) fn pread(fd: BorrowedFd<'_>, buf: &mut Vec<u8>, offset: u64, nowait: bool) -> Result<usize> {
    let free = buf.spare_capacity_mut();
    let iov = libc::iovec { iov_base: free.as_mut_ptr().cast(), iov_len: free.len() };
    let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    let flags = if nowait { libc::RWF_NOWAIT } else { 0 };
    // SAFETY: `iov` names memory that `buf` owns. No other reference can reach it while `buf` is borrowed mutably.
    let n = unsafe { libc::preadv2(fd.as_raw_fd(), &iov, 1, offset, flags) };
    let n = usize::try_from(n).map_err(|_| errno())?;
    // SAFETY: the kernel has written the first `n` bytes of the free capacity, and `n` is at most its length.
    unsafe { buf.set_len(buf.len() + n) };
    Ok(n)
}

/// Changes the mode of the file `fd` refers to, also if opened with `O_PATH` (Linux 6.6; ENOSYS before).
pub(super) fn fchmodat2(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    // SAFETY: the path is a static C string; the kernel only reads it.
    done(unsafe {
        libc::syscall(libc::SYS_fchmodat2, fd.as_raw_fd(), c"".as_ptr(), mode, libc::AT_EMPTY_PATH)
    })
}

/// Checks whether the thread's user has these rights (`R_OK`...) to the file `fd` refers to.
pub(super) fn faccess(fd: BorrowedFd<'_>, rights: u32) -> Result<()> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
    // SAFETY: as above.
    done(unsafe { libc::syscall(libc::SYS_faccessat2, fd.as_raw_fd(), c"".as_ptr(), rights, flags) })
}

/// Returns how many pages of a range are in the page cache (Linux 6.5; ENOSYS before, EPERM for other users' files).
pub(super) fn cached_pages(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<u64> {
    let range = [offset, len];
    // `struct cachestat`: cached, dirty, under writeback, evicted, recently evicted.
    let mut stat = [0u64; 5];
    // SAFETY: `range` and `stat` have the layout of `struct cachestat_range` and `struct cachestat`, and live on.
    done(unsafe { libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), range.as_ptr(), stat.as_mut_ptr(), 0u32) })?;
    Ok(stat[0])
}

const SYS_CACHESTAT: libc::c_long = 451;

/// A record lock of fcntl(2). `ty` is `F_RDLCK`, `F_WRLCK` or `F_UNLCK`; `len` 0 means up to the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockRange {
    pub(super) ty: i16,
    pub(super) start: i64,
    pub(super) len: i64,
}

/// Sets or removes a lock of the open file description. Never waits (EAGAIN).
pub(super) fn ofd_lock(fd: BorrowedFd<'_>, range: LockRange) -> Result<()> {
    fcntl_lock(fd, libc::F_OFD_SETLK, range).map(drop)
}

/// Returns a lock that conflicts with `range`. Its `ty` is `F_UNLCK` if there is none.
pub(super) fn ofd_getlock(fd: BorrowedFd<'_>, range: LockRange) -> Result<LockRange> {
    fcntl_lock(fd, libc::F_OFD_GETLK, range)
}

fn fcntl_lock(fd: BorrowedFd<'_>, command: libc::c_int, range: LockRange) -> Result<LockRange> {
    let whence = libc::SEEK_SET as i16;
    let mut lock =
        libc::flock { l_type: range.ty, l_whence: whence, l_start: range.start, l_len: range.len, l_pid: 0 };
    // SAFETY: these two commands take a pointer to a `struct flock`, which lives on.
    done(unsafe { libc::fcntl(fd.as_raw_fd(), command, &mut lock) }.into())?;
    Ok(LockRange { ty: lock.l_type, start: lock.l_start, len: lock.l_len })
}

/// The user and groups that determine a thread's file permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UserCredentials {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Supplementary groups.
    pub(super) groups: Vec<u32>,
}

impl UserCredentials {
    /// Returns the identity of this process.
    pub(super) fn of_process() -> Result<Self> {
        Ok(Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: rustix::process::getgroups()?.into_iter().map(|gid| gid.as_raw()).collect(),
        })
    }

    /// Takes this identity for the current thread. `groups`: sets the supplementary groups too.
    fn apply(&self, groups: bool) -> Result<()> {
        if groups {
            // SAFETY: the pointer and the count are of one vector, which the kernel only reads. The raw system call
            // changes this thread alone; libc's wrapper would change all threads.
            done(unsafe { libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr()) })?;
        }
        for (call, id) in [(libc::SYS_setfsgid, self.gid), (libc::SYS_setfsuid, self.uid)] {
            // SAFETY: numbers only. The call reports no errors; a call with an invalid id returns the id in force.
            let now = unsafe {
                libc::syscall(call, id);
                libc::syscall(call, u32::MAX)
            };
            if now != i64::from(id) {
                return Err(Errno::PERM);
            }
        }
        Ok(())
    }
}

/// Capabilities of a thread: twice `struct __user_cap_data_struct` (effective, permitted, inheritable).
#[derive(Clone, Copy)]
struct ThreadCapabilities([[u32; 3]; 2]);

impl ThreadCapabilities {
    /// `struct __user_cap_header_struct`: version 3, this thread.
    const HEADER: [u32; 2] = [0x2008_0522, 0];

    fn of_thread() -> Result<Self> {
        let (mut header, mut caps) = (Self::HEADER, [[0; 3]; 2]);
        // SAFETY: both have the layout that version 3 of the call reads and writes, and live on.
        done(unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), caps.as_mut_ptr()) })?;
        Ok(Self(caps))
    }

    fn apply(self) -> Result<()> {
        let mut header = Self::HEADER;
        // SAFETY: as above; the kernel only reads the capabilities.
        done(unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), self.0.as_ptr()) })
    }

    /// Returns the same with none effective. They stay permitted and can be made effective again.
    fn resting(self) -> Self {
        Self(self.0.map(|[_, permitted, inheritable]| [0, permitted, inheritable]))
    }
}

/// While it lives, this thread's file operations have another user's rights. It cannot leave the thread.
#[must_use]
pub(super) struct CredentialGuard<'a> {
    server: &'a UserCredentials,
    groups: bool,
    /// The server's capabilities, made ineffective while the client is not root. A change of user alone leaves some
    /// in effect (file capabilities, `trusted` attributes, exemption from quotas).
    caps: Option<ThreadCapabilities>,
    thread: PhantomData<*const ()>,
}

impl<'a> CredentialGuard<'a> {
    /// Takes the identity of `client`. On failure nothing has changed. `server` is the thread's present identity,
    /// restored on drop.
    pub(super) fn enter(client: &UserCredentials, server: &'a UserCredentials) -> Result<Self> {
        let groups = client.groups != server.groups;
        let caps = if client.uid == 0 { None } else { Some(ThreadCapabilities::of_thread()?) };
        let guard = Self { server, groups, caps, thread: PhantomData };
        // On failure the guard is dropped, which undoes the changes made so far.
        client.apply(groups)?;
        if let Some(caps) = caps {
            caps.resting().apply()?;
        }
        Ok(guard)
    }
}

impl Drop for CredentialGuard<'_> {
    /// A thread that cannot restore its own identity would serve the next client with this client's rights. So abort.
    fn drop(&mut self) {
        let caps = self.caps.map_or(Ok(()), ThreadCapabilities::apply);
        if caps.and_then(|()| self.server.apply(self.groups)).is_err() {
            tracing::error!("a thread could not get its own user back");
            std::process::abort();
        }
    }
}

/// Looks up a user in the system's databases, by uid or by name. Slow: it may query a directory service. An error
/// does not mean that the user does not exist: a user that cannot be looked up may have rights and groups.
pub(super) fn lookup(uid: Option<u32>, name: &[u8]) -> Result<Option<(CString, u32, u32)>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut buf = vec![0 as libc::c_char; 256 * 1024];
    let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
    let mut found = std::ptr::null_mut();
    let (entry_at, buf_at, len) = (entry.as_mut_ptr(), buf.as_mut_ptr(), buf.len());
    // SAFETY: all pointers are to memory of the stated size that outlives the call.
    let status = unsafe {
        match uid {
            Some(uid) => libc::getpwuid_r(uid, entry_at, buf_at, len, &mut found),
            None => libc::getpwnam_r(name.as_ptr(), entry_at, buf_at, len, &mut found),
        }
    };
    match status {
        // The four results by which getpwnam(3) reports that there is no such user.
        0 | libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM if found.is_null() => return Ok(None),
        0 => {}
        error => return Err(Errno::from_raw_os_error(error)),
    }
    // SAFETY: found: the entry is filled in, and its name is a C string inside `buf`, which still lives.
    let (entry, name) = unsafe {
        let entry = entry.assume_init();
        (entry, std::ffi::CStr::from_ptr(entry.pw_name))
    };
    Ok(Some((name.to_owned(), entry.pw_uid, entry.pw_gid)))
}

/// Returns the groups of a user. Slow, like [`lookup`].
pub(super) fn groups_of(name: &CString, gid: u32) -> Vec<u32> {
    let mut groups = vec![0; 64];
    loop {
        let mut n = groups.len() as libc::c_int;
        // SAFETY: `groups` has room for `n` numbers, and the name is a C string.
        let result = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &mut n) };
        let n = n.max(0) as usize;
        if result >= 0 {
            groups.truncate(n);
            return groups;
        }
        groups.resize(n.max(groups.len() * 2), 0);
    }
}

fn done(result: libc::c_long) -> Result<()> {
    if result == -1 { Err(errno()) } else { Ok(()) }
}

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_thread_is_another_user_only_inside_the_guard() {
        if !rustix::process::geteuid().is_root() {
            not_covered("user mapping needs root");
            return;
        }
        let server = UserCredentials::of_process().unwrap();
        let client = UserCredentials { uid: 65534, gid: 65534, groups: vec![7, 9] };
        let dir = tempfile::tempdir().unwrap();
        let chmod = |path: &std::path::Path, mode| {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        };
        chmod(dir.path(), 0o777);
        let owner_of = |name: &str| {
            std::fs::write(dir.path().join(name), b"").unwrap();
            let meta = std::fs::metadata(dir.path().join(name)).unwrap();
            (meta.uid(), meta.gid())
        };
        let groups = dir.path().join("group's");
        std::fs::write(&groups, "x").unwrap();
        std::os::unix::fs::chown(&groups, Some(0), Some(9)).unwrap();
        chmod(&groups, 0o040);
        let guard = CredentialGuard::enter(&client, &server).unwrap();
        assert_eq!(std::fs::read(&groups).unwrap(), b"x");
        assert!(std::fs::write(&groups, "y").is_err());
        assert_eq!(rustix::process::getgroups().unwrap().len(), 2);
        assert_eq!(owner_of("theirs"), (65534, 65534));
        drop(guard);
        assert_eq!(UserCredentials::of_process().unwrap(), server);
        assert_eq!(owner_of("ours"), (server.uid, server.gid));
    }

    #[test]
    fn a_switch_that_fails_changes_nothing() {
        if !rustix::process::geteuid().is_root() {
            not_covered("user mapping needs root");
            return;
        }
        let server = UserCredentials::of_process().unwrap();
        // An id that no user can have.
        let impossible = UserCredentials { uid: u32::MAX, gid: 65534, groups: vec![] };
        assert!(CredentialGuard::enter(&impossible, &server).is_err());
        assert_eq!(UserCredentials::of_process().unwrap(), server);
    }

    #[test]
    fn users_are_found_by_number_and_by_name() {
        let (name, uid, gid) = lookup(Some(0), b"").unwrap().unwrap();
        assert_eq!((name.as_bytes(), uid), (&b"root"[..], 0));
        assert_eq!(lookup(None, b"root").unwrap().unwrap().1, 0);
        assert!(groups_of(&name, gid).contains(&gid));
        assert!(lookup(None, b"no-such-user-here").unwrap().is_none());
    }

    /// Writes to stderr directly, since the test runner hides the output of a passing test.
    fn not_covered(what: &str) {
        std::io::Write::write_all(&mut std::io::stderr(), format!("NOT COVERED: {what}\n").as_bytes())
            .unwrap();
    }
}
