//! nginx, a web server that sends files by sendfile(2), and takes them by PUT.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use nine_sim::delay::Side;
use rustix::process::geteuid;

use super::{Peer, find};
use crate::far::Far;

/// Serves `dir` with Debian's settings for files, in one process. Clients may store below `in/`. `run` is for what it
/// keeps itself. `None`: it is not installed.
pub fn start(far: &Far, dir: &Path, run: &Path) -> io::Result<Option<Peer>> {
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
    Ok(Some(Peer { child, port }))
}

/// A path as its configuration has it.
fn quoted(path: &Path) -> String {
    path.display().to_string().replace(' ', "\\ ")
}
