//! btrfs, which has snapshots: a file system in a file, mounted by a loop device.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::find;

/// A file system with one subvolume; unmounted on drop.
pub struct BtrfsVolume {
    program: PathBuf,
    mount: PathBuf,
}

impl BtrfsVolume {
    /// Creates a file system of `mib` MiB in this directory. The inner error is the reason why that is not possible.
    pub fn new(run: &Path, mib: u64) -> io::Result<Result<Self, String>> {
        let (Some(make), Some(program)) = (find("mkfs.btrfs"), find("btrfs")) else {
            return Ok(Err("it is not installed (Debian package btrfs-progs)".into()));
        };
        let (image, mount) = (run.join("btrfs"), run.join("mounted"));
        File::create(&image)?.set_len(mib << 20)?;
        std::fs::create_dir(&mount)?;
        let mut mounts = Command::new("mount");
        mounts.args(["-t", "btrfs", "-o", "loop,noatime"]).arg(&image).arg(&mount);
        let made = perform(Command::new(make).arg("--quiet").arg(&image)).and_then(|()| perform(&mut mounts));
        if let Err(why) = made {
            return Ok(Err(why.to_string()));
        }
        let it = Self { program, mount };
        it.subvolume(&["create".as_ref(), &it.tree()])?;
        Ok(Ok(it))
    }

    /// Returns the directory that snapshots are taken of.
    pub fn tree(&self) -> PathBuf {
        self.mount.join("tree")
    }

    /// Takes a read-only snapshot of this name and makes it durable; seconds.
    pub fn snapshot(&self, name: &str) -> io::Result<f64> {
        let begun = Instant::now();
        self.subvolume(&["snapshot".as_ref(), "-r".as_ref(), &self.tree(), &self.mount.join(name)])?;
        rustix::fs::syncfs(File::open(&self.mount)?)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn subvolume(&self, words: &[&Path]) -> io::Result<()> {
        perform(Command::new(&self.program).arg("subvolume").args(words))
    }
}

impl Drop for BtrfsVolume {
    fn drop(&mut self) {
        // A lazy unmount: open files stay usable until they are closed.
        let _ = perform(Command::new("umount").arg("--lazy").arg(&self.mount));
    }
}

fn perform(command: &mut Command) -> io::Result<()> {
    let out = command.stdin(Stdio::null()).output()?;
    match out.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&out.stderr).trim().to_string())),
    }
}
