//! A limit on the memory of a process including its page cache: a memory cgroup, version 1 or 2.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// A cgroup; removed on drop, which must come after the end of its processes.
pub struct MemoryCgroup {
    dir: PathBuf,
}

impl MemoryCgroup {
    /// Creates a cgroup with this limit. Returns `None` if the system does not have them or does not allow it.
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

    /// Moves a process into the cgroup.
    pub fn hold(&self, pid: Pid) -> io::Result<()> {
        fs::write(self.dir.join("cgroup.procs"), pid.to_string())
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // A process in it may have ended, but not be reaped yet.
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Empties the machine's page cache. Fails without the permission.
pub fn drop_caches() -> io::Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "1")
}
