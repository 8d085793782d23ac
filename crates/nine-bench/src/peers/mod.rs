//! Servers and clients of other projects, as Debian packages them.

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

use crate::child::ChildProcess;

/// A running server of another project, at a port of its own.
pub struct PeerServer {
    pub child: ChildProcess,
    pub port: u16,
}

/// Finds a program, also in the directories of system administration programs.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs =
        std::env::split_paths(&path).chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    dirs.map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Returns the version of the package of an installed program, or `None` if the program is not
/// installed.
pub fn version(program: &str, package: &str) -> Option<String> {
    find(program)?;
    let said = Command::new("dpkg-query").args(["-W", "-f=${Version}", package]).output().ok()?;
    let version = String::from_utf8(said.stdout).ok()?;
    Some(if version.is_empty() { "unknown".into() } else { version })
}
