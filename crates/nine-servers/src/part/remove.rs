//! The end of a directory and of all that is below it, whatever a program has made there.
//!
//! In: a directory of ours. Out: it is not there any more; or why.
//!
//! Always holds: the stack, and the descriptors that are open, are as many for any depth: what lies deeper is moved up
//! beside the rest, and has its turn there. No link is followed. What its user may not read or change, he may then.

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
        // Nothing of it could be removed.
        if let Some(error) = last.filter(|_| !goes_on) {
            return Err(error.into());
        }
    }
    Ok(unlinkat(CWD, dir, AtFlags::REMOVEDIR)?)
}

/// Removes one entry. Directories in it are entries of `root` then.
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
            // What cannot be moved is in the way of its directory.
            let _ = renameat(&dir, inner, root, &*to).or_else(|_| again());
        }
    })?;
    unlinkat(root, name, AtFlags::REMOVEDIR)
}

/// Removes a file or an empty directory; whether it was that.
fn gone(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<bool> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        // A directory.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    match unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens a directory, whose owner has all rights to it from then on.
fn open(dir: impl AsFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = openat(&dir, name, flags | OFlags::PATH, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&path)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // A descriptor of a path changes nothing by itself; it may be somebody else's.
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
        // Deeper than a path can say, and than a stack is.
        let mut at = open(CWD, &std::ffi::CString::new(dir.to_str().unwrap()).unwrap()).unwrap();
        for _ in 0..4_000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open(&at, c"d").unwrap();
        }
        let small = std::thread::Builder::new().stack_size(64 << 10);
        small.spawn(move || remove(&dir)).unwrap().join().unwrap().unwrap();
        assert_eq!(fs::read_dir(world.path()).unwrap().count(), 1);
        assert!(other.join("kept").exists());
        // Nor does a link stand for a directory.
        symlink(&other, world.path().join("link")).unwrap();
        assert!(remove(&world.path().join("link")).is_err() && other.join("kept").exists());
    }
}
