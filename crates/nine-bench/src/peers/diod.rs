//! diod, the 9P server in Debian. It serves only 9P2000.L, in messages of at most 65,512 bytes, with 16 threads for
//! each tree and one more for each connection.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nine_sim::delay::Side;
use rustix::process::geteuid;

use super::{PeerServer, find};
use crate::child::ChildProcess;
use crate::far::RemoteLink;
use crate::server::{MeasuredServer, SILENCE};

/// The largest message size it agrees to.
const MSIZE: u32 = 65_512;

/// Serves `dir` at a socket. `None` if it is not installed.
pub fn start(dir: &Path, sockets: &Path) -> io::Result<Option<MeasuredServer>> {
    let socket = sockets.join("diod");
    let Some(words) = words(dir, &["-l".into(), socket.clone().into()]) else { return Ok(None) };
    let log = sockets.join("diod.log");
    let mut child = ChildProcess::program(&words.iter().map(OsString::as_os_str).collect::<Vec<_>>(), &log)?;
    let begun = Instant::now();
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        if child.has_ended()? || begun.elapsed() > SILENCE {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            return Err(io::Error::other(format!("diod did not start: {}", said.trim())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(Some(MeasuredServer::peer(child, socket, dir.display().to_string(), MSIZE)))
}

/// Serves `dir` at a port of the far side, with a process for each client. A diod that listens itself looks up the name
/// of each client's address, and closes the connection if there is none.
pub fn start_far(far: &RemoteLink, dir: &Path, run: &Path) -> io::Result<Option<PeerServer>> {
    let (log, port) = (run.join("diod.log"), far.free_port(Side::There)?);
    let at = format!("{}:{port}", far.server());
    let Some(words) = words(dir, &["-r", "0", "-w", "1"].map(OsString::from)) else { return Ok(None) };
    let mut child = far.role(Side::There, &[&["each".into(), at.into()], &words[..]].concat(), &log)?;
    far.wait_for(&mut child, Side::There, port, &log)?;
    Ok(Some(PeerServer { child, port }))
}

/// Returns its words: default settings, but without authentication (by munge). Running as the only user, it need not
/// change its identity for each request, which makes it faster.
fn words(dir: &Path, clients: &[OsString]) -> Option<Vec<OsString>> {
    let uid = geteuid().as_raw().to_string();
    let mut words: Vec<OsString> = vec![find("diod")?.into()];
    words.extend(["-f", "-n", "-c", "/dev/null", "-L", "stderr", "-u", &uid].map(OsString::from));
    words.extend_from_slice(clients);
    words.extend(["-e".into(), dir.into()]);
    Some(words)
}

/// Returns the version of the package, or `None` if it is not installed.
pub fn version() -> Option<String> {
    super::version("diod", "diod")
}
