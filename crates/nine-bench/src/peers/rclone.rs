//! rclone, which mounts many kinds of storage by FUSE: here an sftp server.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use super::find;

/// Mounts `from`, of the sftp server at this address, on `on`, with this key, in the foreground. Written data stays in
/// its cache in `own` and is not uploaded during the run, so that other contestants are not disturbed. Shell access is
/// off; with it, rclone would checksum each file after reading it.
pub fn words(
    server: SocketAddr,
    key: &Path,
    from: &Path,
    on: &Path,
    own: &Path,
) -> io::Result<Vec<OsString>> {
    let program = find("rclone").ok_or_else(|| io::Error::other("it is not installed"))?;
    let mut words: Vec<OsString> = vec![program.into()];
    words.extend(["mount", "--config", "/dev/null", "--vfs-cache-mode", "writes"].map(OsString::from));
    words.extend(["--vfs-write-back", "1h", "--sftp-host", &server.ip().to_string()].map(OsString::from));
    words
        .extend(["--sftp-port", &server.port().to_string(), "--sftp-shell-type", "none"].map(OsString::from));
    words.extend(["--sftp-key-file".into(), key.into(), "--cache-dir".into(), own.into()]);
    let mut place = OsString::from(":sftp:");
    place.push(from);
    words.extend([place, on.into()]);
    Ok(words)
}
