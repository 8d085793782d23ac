//! A watchdog for hanging tests. If no test starts a program for the length of the limit, it shows the running programs
//! and their logs, and aborts the test runner.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Several times the time that any test needs between two programs on a slow machine. All tests together may take
/// longer.
const LIMIT: Duration = Duration::from_mins(15);
const LAST_LINES: usize = 40;

/// Directories of running programs.
static HOMES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Time of the last program start.
static LAST_START: Mutex<Option<Instant>> = Mutex::new(None);

/// Reports a program start in this directory. The first start begins the watch, and each later one restarts the limit.
pub fn watch(home: &Path) {
    if LAST_START.lock().unwrap().replace(Instant::now()).is_none() {
        std::thread::spawn(|| {
            let left = || LAST_START.lock().unwrap().and_then(|last| LIMIT.checked_sub(last.elapsed()));
            while let Some(left) = left() {
                std::thread::park_timeout(left);
            }
            over();
        });
    }
    let mut homes = HOMES.lock().unwrap();
    if !homes.iter().any(|known| known == home) {
        homes.push(home.to_path_buf());
    }
}

fn over() -> ! {
    // Bypass the test runner, which buffers the output of tests.
    let mut said = format!("HANGS: no test has started a program for {LIMIT:?}\n");
    let children = children();
    for child in &children {
        said += &shown(child);
    }
    for log in HOMES.lock().unwrap().iter().flat_map(|home| logs(home)) {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        said += &format!("-- {}\n", log.display());
        said.extend(lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|line| format!("{line}\n")));
    }
    std::io::Write::write_all(&mut std::io::stderr(), said.as_bytes()).unwrap();
    for child in children {
        // This fails if the process has ended.
        let pid = child.parse().ok().and_then(Pid::from_raw);
        let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
    }
    std::process::abort()
}

/// Returns all processes below this one.
fn children() -> Vec<String> {
    let mut found = vec!["self".to_string()];
    let mut at = 0;
    while let Some(parent) = found.get(at) {
        let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        let lists: Vec<_> = tasks.map(|task| task.path().join("children")).collect();
        for list in lists {
            let list = std::fs::read_to_string(list).unwrap_or_default();
            found.extend(list.split_whitespace().map(str::to_string));
        }
        at += 1;
    }
    found.remove(0);
    found
}

/// Describes a process: its command line, and where each of its threads waits.
fn shown(pid: &str) -> String {
    let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut said = format!("-- {pid}: {}\n", words.replace('\0', " "));
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        said += &format!("{:16} {} {}\n", read("comm").trim_end(), read("wchan"), read("syscall").trim_end());
    }
    said
}

fn logs(home: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(home).into_iter().flatten().flatten().map(|entry| entry.path());
    names.filter(|path| path.to_string_lossy().ends_with("log")).collect()
}
