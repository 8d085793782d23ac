//! A limit on the memory of a process, page cache and all: a memory cgroup, of version 1 or 2, whichever there is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// Goes when it is dropped, after what was in it.
pub struct Cage {
    dir: PathBuf,
}

impl Cage {
    /// With room for so many bytes. `None`: this machine has no such thing, or does not let us.
    pub fn new(name: &str, bytes: u64) -> Option<Self> {
        let name = format!("nine-bench-{}-{name}", std::process::id());
        let made = |root: &str, limit: &str| {
            let dir = Path::new(root).join(&name);
            fs::create_dir(&dir).ok()?;
            let cage = Self { dir };
            fs::write(cage.dir.join(limit), bytes.to_string()).ok()?;
            Some(cage)
        };
        made("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            .or_else(|| made("/sys/fs/cgroup", "memory.max"))
    }

    /// From now on this process lives there.
    pub fn hold(&self, pid: Pid) -> io::Result<()> {
        fs::write(self.dir.join("cgroup.procs"), pid.to_string())
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        // Whoever was in it has ended, and is perhaps not gone yet.
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Empties the page cache of all. An error: we may not.
pub fn drop_caches() -> io::Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "1")
}
