//! A scratch directory with disks; its archives are alternately served and checked.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::{Server, ninefold};

pub struct Site {
    pub dir: tempfile::TempDir,
}

/// Takes the directory of a server that has ended.
pub fn taken(server: &mut Server) -> tempfile::TempDir {
    std::mem::replace(&mut server.dir, tempfile::tempdir().unwrap())
}

impl Site {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = ninefold(self.dir.path());
        command.args(words).stdin(Stdio::null());
        command
    }

    /// Runs a command that must succeed. Returns its output.
    pub fn ok(&self, line: &str) -> String {
        self.ok_words(&line.split(' ').collect::<Vec<_>>())
    }

    pub fn ok_words(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.is_empty(), "{words:?}: {:?}: {stderr}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command that must fail. Returns its error text.
    pub fn fails(&self, line: &str) -> String {
        self.fails_words(&line.split(' ').collect::<Vec<_>>())
    }

    pub fn fails_words(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{words:?}: {:?}", output.status);
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Serves an archive here, on a unix socket and loopback TCP. The server gets the directory.
    pub fn serve(&mut self, what: &str) -> Server {
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap());
        let socket = format!("unix!{}", dir.path().join("s").display());
        Server::in_dir(dir, &["serve", what, "--listen", &socket, "--listen", "tcp!127.0.0.1!0"])
    }
}
