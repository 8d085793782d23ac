//! Removes a directory tree that a program may have made in any shape.
//!
//! In: a directory of this server. Out: it is removed; or an error.
//!
//! Always holds: the stack and the number of open descriptors do not depend on the depth. Nested directories are
//! moved up to the top and removed from there. No link is followed. Missing permissions of the owner are added first.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

/// See the module. Waits for the disk.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    let root = open(CWD, &std::ffi::CString::new(dir.as_os_str().as_encoded_bytes())?)?;
    let mut moved = 0;
    loop {
        let (mut is_empty, mut last) = (true, None);
        let mut goes_on = false;
        each(&root, |name| {
            is_empty = false;
            match clear(&root, name, &mut moved) {
                Ok(()) => goes_on = true,
                Err(error) => last = Some(error),
            }
        })?;
        if is_empty {
            break;
        }
        // A whole pass removed nothing.
        if let Some(error) = last.filter(|_| !goes_on) {
            return Err(error.into());
        }
    }
    Ok(unlinkat(CWD, dir, AtFlags::REMOVEDIR)?)
}

/// Removes one entry. Directories inside it are first moved up to `root`.
fn clear(root: &OwnedFd, name: &CStr, moved: &mut u64) -> rustix::io::Result<()> {
    if gone(root.as_fd(), name)? {
        return Ok(());
    }
    let dir = open(root, name)?;
    each(&dir, |inner| {
        if gone(dir.as_fd(), inner) == Ok(false) {
            *moved += 1;
            let to = format!(".{moved}");
            let again = || open(&dir, inner).and_then(|_| renameat(&dir, inner, root, &*to));
            // An entry that cannot be moved keeps its directory from being removed.
            let _ = renameat(&dir, inner, root, &*to).or_else(|_| again());
        }
    })?;
    unlinkat(root, name, AtFlags::REMOVEDIR)
}

/// Removes a file or an empty directory. Returns false for a directory that is not empty.
fn gone(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<bool> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        // It is a directory.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    match unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens a directory, after it gave the owner all permissions.
fn open(dir: impl AsFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = openat(&dir, name, flags | OFlags::PATH, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&path)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // chmod does not work on an `O_PATH` descriptor itself. The directory may belong to another user; then it
        // fails.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&path));
        let _ = rustix::fs::chmod(path, mode | Mode::RWXU);
    }
    openat(&path, c".", flags | OFlags::RDONLY, Mode::empty())
}

fn each(dir: &OwnedFd, mut entry: impl FnMut(&CStr)) -> rustix::io::Result<()> {
    for found in Dir::read_from(dir)? {
        let found = found?;
        if ![c".", c".."].contains(&found.file_name()) {
            entry(found.file_name());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_directory_of_any_depth_goes_and_nothing_else() {
        let world = tempfile::tempdir().unwrap();
        let (dir, other) = (world.path().join("dir"), world.path().join("other"));
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join("kept"), "").unwrap();
        fs::create_dir(&dir).unwrap();
        for at in ["", "wide", "wide/a", "wide/b"] {
            fs::create_dir_all(dir.join(at)).unwrap();
            fs::write(dir.join(at).join("file"), "").unwrap();
            symlink(&other, dir.join(at).join("link")).unwrap();
        }
        fs::set_permissions(dir.join("wide/a"), fs::Permissions::from_mode(0o000)).unwrap();
        // Deeper than the longest path, and than the stack.
        let mut at = open(CWD, &std::ffi::CString::new(dir.to_str().unwrap()).unwrap()).unwrap();
        for _ in 0..4_000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open(&at, c"d").unwrap();
        }
        let small = std::thread::Builder::new().stack_size(64 << 10);
        small.spawn(move || remove(&dir)).unwrap().join().unwrap().unwrap();
        assert_eq!(fs::read_dir(world.path()).unwrap().count(), 1);
        assert!(other.join("kept").exists());
        // A link is not removed in place of a directory.
        symlink(&other, world.path().join("link")).unwrap();
        assert!(remove(&world.path().join("link")).is_err() && other.join("kept").exists());
    }
}
