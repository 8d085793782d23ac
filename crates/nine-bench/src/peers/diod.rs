//! diod, the 9P server that Debian has. It serves 9P2000.L alone, in messages of 65,512 bytes at most, with 16 threads
//! for each tree and one more for each connection.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use crate::child::Child;
use crate::server::{SILENCE, Server};

/// The largest message it agrees to.
const MSIZE: u32 = 65_512;

/// Serves `dir` with its own defaults, but for authentication, which it would do with munge. As the only user it may
/// leave out what it otherwise does at each request to become that user, which makes it faster.
/// `None`: it is not installed.
pub fn start(dir: &Path, sockets: &Path) -> io::Result<Option<Server>> {
    let Some(program) = find() else { return Ok(None) };
    let socket = sockets.join("diod");
    let uid = geteuid().as_raw().to_string();
    let words = [
        program.as_os_str(),
        OsStr::new("-f"),
        OsStr::new("-n"),
        OsStr::new("-c"),
        OsStr::new("/dev/null"),
        OsStr::new("-u"),
        OsStr::new(&uid),
        OsStr::new("-l"),
        socket.as_os_str(),
        OsStr::new("-e"),
        dir.as_os_str(),
    ];
    let log = sockets.join("diod.log");
    let mut child = Child::program(&words, &log)?;
    let begun = Instant::now();
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        if child.has_ended()? || begun.elapsed() > SILENCE {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            return Err(io::Error::other(format!("diod did not start: {}", said.trim())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(Some(Server::peer(child, socket, dir.display().to_string(), MSIZE)))
}

/// The version of the package; `None`: there is none.
pub fn version() -> Option<String> {
    find()?;
    let said = Command::new("dpkg-query").args(["-W", "-f=${Version}", "diod"]).output().ok()?;
    let version = String::from_utf8(said.stdout).ok()?;
    Some(if version.is_empty() { "unknown".into() } else { version })
}

fn find() -> Option<std::path::PathBuf> {
    ["/usr/sbin/diod", "/usr/local/sbin/diod"]
        .map(std::path::PathBuf::from)
        .into_iter()
        .find(|path| path.exists())
}
