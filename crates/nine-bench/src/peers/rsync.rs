//! rsync, and the daemon of its own that it speaks to without a shell.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use nine_sim::delay::Side;
use rustix::process::geteuid;

use super::{Peer, find};
use crate::far::Far;

/// Serves `dir` for reading, as the module `files`. `None`: it is not installed.
pub fn start(far: &Far, dir: &Path, run: &Path) -> io::Result<Option<Peer>> {
    let Some(program) = find("rsync") else { return Ok(None) };
    let (conf, log, port) = (run.join("rsyncd.conf"), run.join("rsyncd.log"), far.free_port(Side::There)?);
    // As root it would become somebody else who may not read here; another user cannot, and need not.
    let who = if geteuid().is_root() { "uid = 0\ngid = 0\n" } else { "" };
    let text = format!(
        "use chroot = no\nlog file = {}\n[files]\npath = {}\nread only = yes\n{who}",
        run.join("rsyncd.said").display(),
        dir.display(),
    );
    std::fs::write(&conf, text)?;
    let (ip, at) = (far.server().to_string(), port.to_string());
    let options = ["--daemon", "--no-detach", "--address", &ip, "--port", &at, "--config"];
    let mut words: Vec<OsString> = vec![program.into()];
    words.extend(options.map(OsString::from));
    words.push(conf.into());
    let mut child = far.start(Side::There, &words, &log)?;
    far.wait_for(&mut child, Side::There, port, &log)?;
    Ok(Some(Peer { child, port }))
}

/// Fetches a directory with all that is in it, modes and times as they are.
pub fn get_tree(server: SocketAddr, path: &str, to: &Path) -> Vec<OsString> {
    let from = format!("rsync://{server}/files/{path}/");
    vec!["rsync".into(), "-a".into(), from.into(), to.into()]
}
