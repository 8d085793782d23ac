//! Other people's servers and clients, as Debian packages them.

pub mod btrfs;
pub mod curl;
pub mod diod;
pub mod nbdkit;
pub mod nginx;
pub mod rclone;
pub mod restic;
pub mod rsync;
pub mod sftp;
pub mod sshfs;
pub mod vblade;

use std::path::PathBuf;
use std::process::Command;

use crate::child::Child;

/// A server of theirs that has been started at a port of its own.
pub struct Peer {
    pub child: Child,
    pub port: u16,
}

/// Where a program is. Those for administrators are found for everybody.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs =
        std::env::split_paths(&path).chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    dirs.map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// The version of a package whose program this is; `None`: it is not there.
pub fn version(program: &str, package: &str) -> Option<String> {
    find(program)?;
    let said = Command::new("dpkg-query").args(["-W", "-f=${Version}", package]).output().ok()?;
    let version = String::from_utf8(said.stdout).ok()?;
    Some(if version.is_empty() { "unknown".into() } else { version })
}
