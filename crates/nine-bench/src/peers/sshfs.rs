//! sshfs, which mounts files of an sshd (sftp) by FUSE, with its default settings.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use super::find;

/// Returns the words that mount `from`, of the server at this address, on `on`, with this key, in
/// the foreground.
pub fn words(server: SocketAddr, key: &Path, from: &Path, on: &Path) -> io::Result<Vec<OsString>> {
    let program = find("sshfs").ok_or_else(|| io::Error::other("it is not installed"))?;
    let mut identity = OsString::from("IdentityFile=");
    identity.push(key);
    let mut place = OsString::from(format!("{}:", server.ip()));
    place.push(from);
    let mut words: Vec<OsString> = vec![program.into()];
    words.extend(["-f", "-F", "/dev/null", "-p", &server.port().to_string()].map(OsString::from));
    let options =
        ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "IdentitiesOnly=yes"];
    words.extend(options.iter().flat_map(|option| ["-o", option]).map(OsString::from));
    words.extend(["-o".into(), identity, place, on.into()]);
    Ok(words)
}
