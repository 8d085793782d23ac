//! restic, a backup program: it finds changed files by size and time, and stores them in content-defined pieces.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::find;

/// A repository on this machine, encrypted as always.
pub struct ResticRepository {
    program: PathBuf,
    run: PathBuf,
}

impl ResticRepository {
    /// Creates a repository in this directory. `None` if restic is not installed.
    pub fn new(run: &Path) -> io::Result<Option<Self>> {
        let Some(program) = find("restic") else { return Ok(None) };
        let it = Self { program, run: run.into() };
        it.perform(&["init".as_ref()])?;
        Ok(Some(it))
    }

    /// Runs a backup of this name; seconds.
    pub fn backup(&self, dir: &Path, name: &str) -> io::Result<f64> {
        self.timed(&["backup".as_ref(), "--tag".as_ref(), name.as_ref(), dir])
    }

    /// Restores a file from the backup of this name; seconds.
    pub fn read(&self, file: &Path, name: &str) -> io::Result<f64> {
        self.timed(&["dump".as_ref(), "--tag".as_ref(), name.as_ref(), "latest".as_ref(), file])
    }

    /// Reads and verifies all stored data; seconds.
    pub fn check(&self) -> io::Result<f64> {
        self.timed(&["check".as_ref(), "--read-data".as_ref()])
    }

    /// Returns the size of all its files, bytes.
    pub fn stored(&self) -> io::Result<u64> {
        let (mut dirs, mut bytes) = (vec![self.run.join("repository")], 0);
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir)? {
                let entry = entry?;
                match entry.file_type()?.is_dir() {
                    true => dirs.push(entry.path()),
                    false => bytes += entry.metadata()?.len(),
                }
            }
        }
        Ok(bytes)
    }

    fn timed(&self, words: &[&Path]) -> io::Result<f64> {
        let begun = Instant::now();
        self.perform(words)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn perform(&self, words: &[&Path]) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("--quiet").arg("--repo").arg(self.run.join("repository"));
        command.arg("--cache-dir").arg(self.run.join("cache")).args(words);
        let out = command.env("RESTIC_PASSWORD", "bench").stdin(Stdio::null()).output()?;
        match out.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(String::from_utf8_lossy(&out.stderr).trim().to_string())),
        }
    }
}

/// Returns the version of the package, or `None` if it is not installed.
pub fn version() -> Option<String> {
    super::version("restic", "restic")
}
