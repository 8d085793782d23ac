//! Reads files that control access: exports, policies, authorities, revocation lists, keys, tokens and passwords.
//!
//! In: a path. Out: the open file or its text, or the reason to reject it; and a [`FileStamp`], which shows a change.
//!
//! Always holds: only root and one user can have written an accepted file. Opening a FIFO or a device never blocks.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Maximum number of bytes in one file.
const FILE_MAX: u64 = 1 << 20;
/// Write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;
/// In a directory with this bit only the owner of a file can replace it.
const STICKY: u32 = 0o1000;

/// Reads an access file that only root and the user of this process can write. Blocks on the disk.
///
/// # Errors
/// A message to be put behind the file's name: the file cannot be read, is not a regular file, is larger than 1 MiB, or
/// others can change it.
pub fn read_rights(path: &Path) -> Result<String, String> {
    read_rights_of(path, Some(rustix::process::geteuid().as_raw()))
}

/// The same for another user's server. `None`: files of any owner are accepted.
///
/// # Errors
/// As [`read_rights`].
pub fn read_rights_of(path: &Path, uid: Option<u32>) -> Result<String, String> {
    let mut text = String::new();
    let file = open_rights_of(path, uid)?;
    file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > FILE_MAX {
        return Err("too long; it has at most 1 MiB".into());
    }
    Ok(text)
}

/// Opens an access file of any length, or with bytes that are not text. Blocks on the disk.
///
/// # Errors
/// As [`read_rights`].
pub fn open_rights(path: &Path) -> Result<File, String> {
    open_rights_of(path, Some(rustix::process::geteuid().as_raw()))
}

fn open_rights_of(path: &Path, uid: Option<u32>) -> Result<File, String> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file =
        File::options().read(true).custom_flags(flags).open(path).map_err(|error| error.to_string())?;
    let meta = file.metadata().map_err(|error| error.to_string())?;
    if !meta.is_file() {
        return Err("a regular file is due".into());
    }
    check_owner(path, meta.uid(), uid, "it is another user's")?;
    if meta.mode() & OTHERS_WRITE != 0 {
        return Err(format!("others can change who may do what; try: chmod go-w {}", path.display()));
    }
    // A user who can replace the file, or the link to it, can change its contents.
    let target = path.canonicalize().map_err(|error| error.to_string())?;
    for dir in [path.parent(), target.parent()].into_iter().flatten() {
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let meta = fs::metadata(dir).map_err(|error| error.to_string())?;
        check_owner(dir, meta.uid(), uid, &format!("its directory {} is another user's", dir.display()))?;
        if meta.mode() & OTHERS_WRITE != 0 && meta.mode() & STICKY == 0 {
            return Err(format!(
                "others can replace this file in its directory, and change who may do what; try: chmod go-w {}",
                dir.display()
            ));
        }
    }
    Ok(file)
}

fn check_owner(path: &Path, owner: u32, uid: Option<u32>, what: &str) -> Result<(), String> {
    match uid {
        Some(uid) if owner != 0 && owner != uid => {
            Err(format!("{what}, who could change who may do what; try: chown {uid} {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Number, length and times of a file. A change of the file changes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp(u64, u64, [(i64, i64); 2]);

impl FileStamp {
    /// `None`: the file does not exist, or its attributes cannot be read.
    pub fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        let times = [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())];
        Some(Self(meta.ino(), meta.len(), times))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_that_others_can_change_or_replace_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [path, link, inner] = ["f", "link", "inner"].map(|name| dir.path().join(name));
        fs::write(&path, "a line\n").unwrap();
        fs::create_dir(&inner).unwrap();
        symlink(&path, &link).unwrap();
        symlink(&path, inner.join("link")).unwrap();
        let refused = |path: &Path, why: &str| {
            let error = read_rights(path).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        for path in [&path, &link, &inner.join("link")] {
            assert_eq!(read_rights(path).unwrap(), "a line\n");
        }
        for mode in [0o666, 0o620, 0o602] {
            set_mode(&path, mode);
            refused(&path, "others can change who may do what; try: chmod go-w");
            refused(&link, "others can change who may do what; try: chmod go-w");
        }
        set_mode(&path, 0o600);
        // The directory of a link matters as much as that of its target.
        set_mode(&inner, 0o777);
        refused(&inner.join("link"), "others can replace this file in its directory");
        set_mode(&inner, 0o1777);
        assert!(read_rights(&inner.join("link")).is_ok(), "a sticky directory, like /tmp");
        set_mode(&inner, 0o755);
        set_mode(dir.path(), 0o777);
        refused(&inner.join("link"), "others can replace this file in its directory");
        set_mode(dir.path(), 0o700);
        // Opening a FIFO without a writer would block.
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::from(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        refused(&fifo, "a regular file is due");
        refused(dir.path(), "a regular file is due");
        refused(Path::new("/dev/null"), "a regular file is due");
        fs::write(&path, vec![b'x'; FILE_MAX as usize + 1]).unwrap();
        refused(&path, "too long");
        // A file of root is valid for every user, another user's for that user alone.
        fs::write(&path, "a line\n").unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(read_rights_of(&path, Some(own + 1)).is_ok(), own == 0);
        if own == 0 {
            std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
            refused(&path, "it is another user's, who could change who may do what; try: chown 0");
            assert!(read_rights_of(&path, Some(4711)).is_ok());
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
            std::os::unix::fs::chown(dir.path(), Some(4711), None).unwrap();
            refused(&path, "is another user's, who could change who may do what");
        }
    }
}
