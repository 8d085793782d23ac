//! nginx, a web server that sends files by sendfile(2) and receives them by PUT.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use nine_sim::delay::Side;
use rustix::process::geteuid;

use super::{PeerServer, find};
use crate::child::ChildProcess;
use crate::far::RemoteLink;

/// Serves `dir` with Debian's settings for files, in one process. Clients may upload below `in/`. `run` is for its own
/// files. `None` if it is not installed.
pub fn start(far: &RemoteLink, dir: &Path, run: &Path) -> io::Result<Option<PeerServer>> {
    let Some(program) = find("nginx") else { return Ok(None) };
    let (conf, log, port) = (run.join("nginx.conf"), run.join("nginx.log"), far.free_port(Side::There)?);
    let user = if geteuid().is_root() { "user root;" } else { "" };
    let (ip, dir, own) = (far.server(), quoted(dir), quoted(run));
    let places: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|what| format!("{what}_temp_path {own}/nginx-{what};\n"))
        .collect();
    let text = format!(
        "daemon off;\nmaster_process off;\n{user}\npid {own}/nginx.pid;\nerror_log stderr;\n\
         events {{}}\n\
         http {{\n{places}access_log off;\nsendfile on;\ntcp_nopush on;\n\
         default_type application/octet-stream;\nclient_max_body_size 0;\n\
         server {{\nlisten {ip}:{port};\nroot {dir};\n\
         location /in/ {{ dav_methods PUT; }}\n}}\n}}\n"
    );
    std::fs::write(&conf, text)?;
    let words: [OsString; 7] =
        [program.into(), "-p".into(), run.into(), "-c".into(), conf.into(), "-e".into(), "stderr".into()];
    let mut child = far.start(Side::There, &words, &log)?;
    far.wait_for(&mut child, Side::There, port, &log)?;
    Ok(Some(PeerServer { child, port }))
}

/// Serves `dir` at an address of this machine, as one process that caches open files.
pub fn local(dir: &Path, run: &Path, addr: SocketAddr) -> io::Result<ChildProcess> {
    let program = find("nginx").ok_or(io::ErrorKind::NotFound)?;
    let (conf, log) = (run.join("web.conf"), run.join("web.log"));
    let user = if geteuid().is_root() { "user root;" } else { "" };
    let (dir, own) = (quoted(dir), quoted(run));
    let text = format!(
        "daemon off;\nmaster_process off;\n{user}\npid {own}/web.pid;\nerror_log stderr;\n\
         events {{ worker_connections 16384; }}\n\
         http {{\naccess_log off;\nsendfile on;\ntcp_nopush on;\nkeepalive_requests 100000000;\n\
         open_file_cache max=10000 inactive=60s;\nopen_file_cache_valid 60s;\n\
         default_type application/octet-stream;\nserver {{\nlisten {addr} backlog=4096;\nroot {dir};\n}}\n}}\n"
    );
    std::fs::write(&conf, text)?;
    let words: [OsString; 7] =
        [program.into(), "-p".into(), run.into(), "-c".into(), conf.into(), "-e".into(), "stderr".into()];
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let mut child = ChildProcess::program(&words, &log)?;
    while TcpStream::connect(addr).is_err() {
        if child.has_ended()? {
            return Err(io::Error::other(format!("nginx: {}", std::fs::read_to_string(&log)?)));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(child)
}

/// Quotes a path for its configuration.
fn quoted(path: &Path) -> String {
    path.display().to_string().replace(' ', "\\ ")
}
