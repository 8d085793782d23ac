//! Placement of threads on processors. On a virtual machine a wake-up across processors costs more than most of the
//! measured operations, so every row names its placement.

use std::io;
use std::sync::OnceLock;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuPlacement {
    /// Client and server share a processor: shows the cost of the software alone.
    Same,
    /// Client and server have a processor each.
    Cross,
    /// The kernel decides.
    Free,
}

impl CpuPlacement {
    pub fn label(self) -> &'static str {
        match self {
            Self::Same => "same core",
            Self::Cross => "cross",
            Self::Free => "free",
        }
    }

    /// Moves this thread to the client's processor, and these processes' threads to the server's.
    pub fn arrange(self, servers: &[Pid]) -> io::Result<()> {
        let all = processors();
        let (first, last) = (&all[..1], &all[all.len() - 1..]);
        let (client, server) = match self {
            Self::Same => (first, first),
            Self::Cross => (last, first),
            Self::Free => (all, all),
        };
        sched_setaffinity(None, &set(client))?;
        servers.iter().try_for_each(|&pid| move_threads(pid, "", &set(server)).map(drop))
    }
}

impl CpuPlacement {
    /// Moves this thread to the client's processor.
    pub fn stand_near(self) -> io::Result<()> {
        self.arrange(&[])
    }

    /// Moves this thread to the server's processor.
    pub fn stand_far(self) -> io::Result<()> {
        let all = processors();
        let mine = if self == Self::Free { all } else { &all[..1] };
        Ok(sched_setaffinity(None, &set(mine))?)
    }
}

/// Moves the threads of a process with this name prefix, and the threads they start later, to the processor of separate
/// clients. Returns whether there were any.
pub fn move_to_client(pid: Pid, name: &str) -> io::Result<bool> {
    let all = processors();
    move_threads(pid, name, &set(&all[all.len() - 1..]))
}

/// Records the usable processors, before any thread is pinned.
pub fn remember() {
    processors();
}

/// Returns the number of usable processors.
pub fn count() -> usize {
    processors().len()
}

fn processors() -> &'static [usize] {
    static ALL: OnceLock<Vec<usize>> = OnceLock::new();
    ALL.get_or_init(|| {
        let ours = sched_getaffinity(None).unwrap_or_default();
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| ours.is_set(cpu)).collect();
        if all.is_empty() { vec![0] } else { all }
    })
}

fn set(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    set
}

/// Moves all threads of a process with this name prefix. Threads that they start later inherit the placement.
fn move_threads(pid: Pid, name: &str, to: &CpuSet) -> io::Result<bool> {
    let mut is_any = false;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        if !std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.starts_with(name)) {
            continue;
        }
        let task = task.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        match task.map(|task| sched_setaffinity(Some(task), to)) {
            Some(Ok(())) => is_any = true,
            // The thread has ended meanwhile.
            None | Some(Err(rustix::io::Errno::SRCH)) => {}
            Some(Err(error)) => return Err(error.into()),
        }
    }
    Ok(is_any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_placed_by_their_names() {
        let stop = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            let tids = ["CPU 0/test", "IO 0/test"].map(|name| {
                let (say, tid) = std::sync::mpsc::channel();
                let stop = &stop;
                let thread = std::thread::Builder::new().name(name.into());
                let thread = thread.spawn_scoped(scope, move || {
                    say.send(rustix::thread::gettid()).unwrap();
                    stop.wait();
                });
                thread.unwrap();
                tid.recv().unwrap()
            });
            let before = sched_getaffinity(Some(tids[1])).unwrap();
            let itself = rustix::process::getpid();
            assert!(move_to_client(itself, "CPU 0/").unwrap() && !move_to_client(itself, "CPU 1/").unwrap());
            let last = &processors()[processors().len() - 1..];
            assert_eq!(sched_getaffinity(Some(tids[0])).unwrap(), set(last));
            assert_eq!(sched_getaffinity(Some(tids[1])).unwrap(), before);
            stop.wait();
        });
    }
}
