//! rsync, with its own daemon, which needs no shell.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use nine_sim::delay::Side;
use rustix::process::geteuid;

use super::{PeerServer, find};
use crate::far::RemoteLink;

/// Serves `dir` read-only, as the module `files`. `None` if it is not installed.
pub fn start(far: &RemoteLink, dir: &Path, run: &Path) -> io::Result<Option<PeerServer>> {
    let Some(program) = find("rsync") else { return Ok(None) };
    let (conf, log, port) = (run.join("rsyncd.conf"), run.join("rsyncd.log"), far.free_port(Side::There)?);
    // If root starts it, it would switch to a user that may not read here. For other users this is
    // not possible nor necessary.
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
    Ok(Some(PeerServer { child, port }))
}

/// Downloads a directory recursively, preserving modes and times.
pub fn get_tree(server: SocketAddr, path: &str, to: &Path) -> Vec<OsString> {
    let from = format!("rsync://{server}/files/{path}/");
    vec!["rsync".into(), "-a".into(), from.into(), to.into()]
}
