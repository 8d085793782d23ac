//! Control groups, one for each session, of version 2, of version 1, or of both.
//!
//! In: the hierarchies (mounts, this process' groups) and a session's limits. Out: a [`SessionCgroup`]: files to join
//! it, its resource use, and the end of all its processes.
//!
//! The interface is files only, so that tests use a directory instead of the kernel. Waits for the kernel, for a
//! limited time.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::policy::SessionLimits;

/// The places where groups can be created: a directory for each controller. In version 2 all are the same directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CgroupRoots {
    /// Version 2: for killing, and for its controllers if it has any.
    unified: Option<PathBuf>,
    /// Version 2 controllers that groups there have.
    has: Vec<String>,
    /// Version 1, by controller.
    split: BTreeMap<String, PathBuf>,
}

/// The resource use of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CgroupUsage {
    /// Microseconds of user and of system time.
    pub(super) user: u64,
    pub(super) system: u64,
    /// Peak memory in bytes; 0 if not known.
    pub(super) memory: u64,
    /// The kernel has killed a process for lack of memory.
    pub(super) is_short: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct SessionCgroup {
    unified: Option<PathBuf>,
    has: Vec<String>,
    split: BTreeMap<String, PathBuf>,
}

impl CgroupRoots {
    /// Returns those of this machine.
    pub(super) fn find() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let mut found = Self::of(&text("/proc/self/mounts"), &text("/proc/self/cgroup"));
        let is_root = rustix::process::geteuid().is_root();
        found.settle(is_root);
        found
    }

    /// Finds this process' groups in the kernel's lists.
    fn of(mounts: &str, own: &str) -> Self {
        let mut found = Self::default();
        for mount in mounts.lines() {
            let mut words = mount.split(' ').skip(1);
            let (Some(at), Some(kind), Some(options)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            // Inside a cgroup name space, a hidden group appears as the root.
            let place = |name: &str| {
                let group = own.lines().find_map(|line| {
                    let mut parts = line.splitn(3, ':').skip(1);
                    let (names, path) = (parts.next()?, parts.next()?);
                    names.split(',').any(|of| of == name).then_some(path)
                });
                let at = Path::new(at);
                let whole = at.join(group.unwrap_or_default().trim_start_matches('/'));
                if whole.is_dir() { whole } else { at.into() }
            };
            match kind {
                "cgroup2" => found.unified = Some(place("")),
                "cgroup" => {
                    let ours = options.split(',').filter(|name| CONTROLLERS.contains(name));
                    found.split.extend(ours.map(|name| (name.into(), place(name))));
                }
                _ => {}
            }
        }
        found
    }

    /// Determines the usable hierarchies, and enables version 2 controllers for our groups.
    fn settle(&mut self, is_root: bool) {
        self.split.retain(|_, dir| is_writable(dir));
        let Some(own) = self.unified.take() else { return };
        let wanted: Vec<String> = list(&own.join("cgroup.controllers"))
            .into_iter()
            .filter(|name| CONTROLLERS.contains(&&**name) && !self.split.contains_key(name))
            .collect();
        let gives = |dir: &Path| {
            wanted
                .iter()
                .for_each(|name| drop(fs::write(dir.join("cgroup.subtree_control"), format!("+{name}"))));
            list(&dir.join("cgroup.subtree_control"))
        };
        // A group that contains processes cannot enable controllers, unless it is the root. So this process moves to
        // a subgroup, if it is the only one in its group.
        let mut has = gives(&own);
        if !wanted.is_empty() && has.is_empty() && is_alone(&own) {
            let below = own.join("server");
            if fs::create_dir_all(&below).is_ok() && fs::write(below.join("cgroup.procs"), "0").is_ok() {
                has = gives(&own);
            }
        }
        let mut own = own;
        if !wanted.is_empty() && has.is_empty() && is_root {
            let top = own.ancestors().take_while(|dir| dir.join("cgroup.controllers").exists()).last();
            let ours = top.map(|top| top.join("ninefold"));
            if let Some(ours) = ours.filter(|ours| fs::create_dir_all(ours).is_ok()) {
                ours.parent().map(gives);
                (has, own) = (gives(&ours), ours);
            }
        }
        self.has = has.into_iter().filter(|name| wanted.contains(name)).collect();
        self.unified = is_writable(&own).then_some(own);
    }

    /// Returns whether all of a session's processes can be killed together.
    pub(super) fn kills(&self) -> bool {
        self.unified.is_some() || self.split.contains_key("freezer")
    }

    /// Returns whether groups can have processors (`cpuset`).
    pub(super) fn has_cpus(&self) -> bool {
        self.split.contains_key("cpuset")
            || self.unified.is_some() && self.has.iter().any(|of| of == "cpuset")
    }

    /// Creates a group with this name. Controllers that fail are left out, and that is logged.
    pub(super) fn make(&self, name: &str, limits: &SessionLimits, cpus: Option<&str>) -> SessionCgroup {
        let make = |dir: &PathBuf| {
            let dir = dir.join(name);
            match fs::create_dir(&dir) {
                Ok(()) => Some(dir),
                Err(error) => {
                    tracing::warn!("{}: a session is without this group: {error}", dir.display());
                    None
                }
            }
        };
        let split = self.split.iter().filter_map(|(of, dir)| Some((of.clone(), make(dir)?))).collect();
        let unified = self.unified.as_ref().and_then(make);
        let has = if unified.is_some() { self.has.clone() } else { Vec::new() };
        let mut group = SessionCgroup { unified, has, split };
        group.limit("memory", &[("memory.max", "memory.limit_in_bytes", &limits.memory.to_string())]);
        // Swap is not allowed, since it would not count. A kernel without swap does not have these files.
        if let Some((dir, version)) = group.dir("memory") {
            match version {
                2 => {
                    let _ = fs::write(dir.join("memory.swap.max"), "0");
                    let _ = fs::write(dir.join("memory.oom.group"), "1");
                }
                _ => drop(fs::write(dir.join("memory.memsw.limit_in_bytes"), limits.memory.to_string())),
            }
        }
        group.limit("pids", &[("pids.max", "pids.max", &limits.processes.to_string())]);
        match cpus {
            Some(cpus) => {
                let mems = self.split.get("cpuset").map(|dir| fs::read_to_string(dir.join("cpuset.mems")));
                let mems = mems.and_then(Result::ok).unwrap_or_default();
                let all: [(&str, &str, &str); 2] =
                    [("cpuset.cpus", "cpuset.cpus", cpus), ("", "cpuset.mems", mems.trim())];
                group.limit("cpuset", &all);
            }
            None => group.leave("cpuset"),
        }
        group
    }

    /// Ends groups left by servers that have ended: those with this prefix whose process no longer exists.
    pub(super) fn sweep(&self, prefix: &str) {
        self.end_those(|name| {
            let pid = name.strip_prefix(prefix).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
            pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
        });
    }

    /// Ends all groups with this prefix.
    pub(super) fn end_all(&self, prefix: &str) {
        self.end_those(|name| name.starts_with(prefix));
    }

    fn end_those(&self, is_meant: impl Fn(&str) -> bool) {
        for dir in self.unified.iter().chain(self.split.values()) {
            let Ok(entries) = fs::read_dir(dir) else { continue };
            let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
            for name in names.filter(|name| is_meant(name)) {
                end(&[dir.join(name)]);
            }
        }
    }
}

impl SessionCgroup {
    /// Returns the files to which a process writes to join the group.
    pub(super) fn joins(&self) -> Vec<String> {
        self.dirs().map(|dir| dir.join("cgroup.procs").display().to_string()).collect()
    }

    fn dirs(&self) -> impl Iterator<Item = &PathBuf> {
        self.unified.iter().chain(self.split.values())
    }

    /// Returns the directory of a controller, and the version.
    fn dir(&self, controller: &str) -> Option<(&Path, u8)> {
        let split = self.split.get(controller).map(|dir| (dir.as_path(), 1));
        let unified = self.unified.as_deref().filter(|_| self.has.iter().any(|name| name == controller));
        split.or(unified.map(|dir| (dir, 2)))
    }

    pub(super) fn has(&self, controller: &str) -> bool {
        self.dir(controller).is_some()
    }

    pub(super) fn kills(&self) -> bool {
        self.unified.is_some() || self.has("freezer")
    }

    /// Returns whether the CPU time of all its processes is counted.
    pub(super) fn counts(&self) -> bool {
        self.unified.is_some() || self.has("cpuacct")
    }

    /// Sets files of a controller, by their names in version 2 and in version 1. If one fails, the controller is left
    /// out, and that is logged.
    fn limit(&mut self, controller: &str, files: &[(&str, &str, &str)]) {
        let Some((dir, version)) = self.dir(controller) else { return };
        let failed = files.iter().find_map(|(two, one, value)| {
            let file = dir.join(if version == 2 { two } else { one });
            let set = if file == dir { Ok(()) } else { fs::write(&file, value) };
            set.err().map(|error| format!("{}: {error}", file.display()))
        });
        if let Some(why) = failed {
            tracing::warn!("a session's group is without {controller}: {why}");
            self.leave(controller);
        }
    }

    /// Moves the group's processes to these processors.
    pub(super) fn moves(&self, cpus: &str) {
        if let Some((dir, _)) = self.dir("cpuset")
            && let Err(error) = fs::write(dir.join("cpuset.cpus"), cpus)
            // A group that has ended meanwhile has no directory.
            && dir.exists()
        {
            tracing::warn!("{}: it does not go to processors {cpus}: {error}", dir.display());
        }
    }

    fn leave(&mut self, controller: &str) {
        if let Some(dir) = self.split.remove(controller) {
            let _ = fs::remove_dir(dir);
        }
        self.has.retain(|name| name != controller);
    }

    pub(super) fn used(&self) -> CgroupUsage {
        let mut used = CgroupUsage::default();
        if let Some((dir, version)) = self.dir("memory") {
            let (most, events) = match version {
                2 => ("memory.peak", "memory.events"),
                _ => ("memory.max_usage_in_bytes", "memory.oom_control"),
            };
            used.memory = number(&dir.join(most));
            used.is_short = value(&dir.join(events), "oom_kill") > 0;
        }
        match (self.split.get("cpuacct"), &self.unified) {
            (Some(dir), _) => {
                used.user = number(&dir.join("cpuacct.usage_user")) / 1000;
                used.system = number(&dir.join("cpuacct.usage_sys")) / 1000;
            }
            (None, Some(dir)) => {
                used.user = value(&dir.join("cpu.stat"), "user_usec");
                used.system = value(&dir.join("cpu.stat"), "system_usec");
            }
            (None, None) => {}
        }
        used
    }

    /// Kills all processes in the group, including those forked meanwhile.
    pub(super) fn kill(&self) {
        if let Some(dir) = &self.unified
            && fs::write(dir.join("cgroup.kill"), "1").is_ok()
        {
            return;
        }
        let Some(dir) = self.split.get("freezer").or(self.unified.as_ref()) else { return };
        // A frozen process cannot fork. A killed process ends when it is thawed.
        let freeze = |word: &str, number: &str| match self.split.contains_key("freezer") {
            true => drop(fs::write(dir.join("freezer.state"), word)),
            false => drop(fs::write(dir.join("cgroup.freeze"), number)),
        };
        freeze("FROZEN", "1");
        for _ in 0..EXIT_CHECKS_MAX {
            kill_all(&members(dir));
            let is_frozen =
                fs::read_to_string(dir.join("freezer.state")).map_or(true, |now| now.trim() == "FROZEN");
            if is_frozen {
                break;
            }
            thread::sleep(EXIT_CHECK_INTERVAL);
        }
        kill_all(&members(dir));
        freeze("THAWED", "0");
    }

    /// Kills all processes, waits for a limited time until they have ended, and removes the group.
    pub(super) fn end(&self) {
        let late = Instant::now() + GROUP_EXIT_TIMEOUT;
        while Instant::now() < late {
            self.kill();
            if self.dirs().all(|dir| members(dir).is_empty()) {
                break;
            }
            thread::sleep(EXIT_CHECK_INTERVAL);
        }
        end(&self.dirs().cloned().collect::<Vec<_>>());
        if let Some(dir) = self.dirs().find(|dir| dir.exists()) {
            tracing::warn!("{}: a session's group does not end", dir.display());
        }
    }
}

/// Ends groups by their directories.
fn end(dirs: &[PathBuf]) {
    for dir in dirs {
        // cgroup.kill also covers processes forked meanwhile.
        let _ = fs::File::options()
            .write(true)
            .open(dir.join("cgroup.kill"))
            .and_then(|mut kill| kill.write_all(b"1"));
        for _ in 0..EXIT_CHECKS_MAX {
            match fs::remove_dir(dir) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    kill_all(&members(dir));
                    thread::sleep(EXIT_CHECK_INTERVAL);
                }
                _ => break,
            }
        }
    }
}

/// Returns whether a group can be created there.
fn is_writable(dir: &Path) -> bool {
    let probe = dir.join(format!("ninefold-probe-{}", std::process::id()));
    // In a group, the kernel has created these files.
    let is_group = fs::create_dir(&probe).is_ok() && probe.join("cgroup.procs").exists();
    fs::remove_dir(&probe).is_ok() && is_group
}

/// Returns whether this process is the only one there.
fn is_alone(dir: &Path) -> bool {
    let us = rustix::process::getpid();
    members(dir) == [us]
}

fn members(dir: &Path) -> Vec<Pid> {
    let pids = list(&dir.join("cgroup.procs"));
    pids.iter().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

fn kill_all(all: &[Pid]) {
    for &pid in all {
        // The process may have ended.
        let _ = kill_process(pid, Signal::KILL);
    }
}

fn list(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().map(Into::into).collect()
}

fn number(file: &Path) -> u64 {
    fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Returns the value of a key in a file with one key on each line.
fn value(file: &Path, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    found.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// The controllers that sessions use.
const CONTROLLERS: [&str; 5] = ["memory", "cpuacct", "cpuset", "pids", "freezer"];
/// The number of checks whether processes have ended.
const EXIT_CHECKS_MAX: usize = 500;
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// How long all processes of a group may take to end.
const GROUP_EXIT_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SessionLimits = SessionLimits { memory: 64 << 20, cpu: None, processes: 9 };

    #[test]
    fn hierarchies_are_found_by_mounts_and_our_own_groups() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path().display();
        for dir in ["memory/us/here", "pids", "unified/us"] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        let mounts = format!(
            "proc /proc proc rw 0 0\ncg {at}/memory cgroup rw,memory 0 0\ncg {at}/pids cgroup rw,pids 0 0\n\
             cg {at}/systemd cgroup rw,name=systemd 0 0\ncg2 {at}/unified cgroup2 rw 0 0\n"
        );
        let own = "4:memory:/us/here\n3:pids:/hidden/from/us\n1:name=systemd:/x\n0::/us\n";
        let groups = CgroupRoots::of(&mounts, own);
        assert_eq!(groups.unified, Some(root.path().join("unified/us")));
        assert_eq!(groups.split["memory"], root.path().join("memory/us/here"));
        assert_eq!(groups.split["pids"], root.path().join("pids"), "the top is seen");
        assert_eq!(groups.split.len(), 2);
    }

    #[test]
    fn version_two_gets_its_limits_and_says_what_was_used() {
        let root = tempfile::tempdir().unwrap();
        let has = ["memory", "pids", "cpuset"].map(String::from).to_vec();
        let groups = CgroupRoots { unified: Some(root.path().into()), has, split: BTreeMap::new() };
        let group = groups.make("one", &LIMITS, Some("0,1"));
        let dir = root.path().join("one");
        let text = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
        assert_eq!((&*text("memory.max"), &*text("memory.swap.max")), ("67108864", "0"));
        assert_eq!((&*text("pids.max"), &*text("cpuset.cpus")), ("9", "0,1"));
        assert_eq!(group.joins(), [dir.join("cgroup.procs").display().to_string()]);
        for (name, text) in [
            ("cpu.stat", "usage_usec 30\nuser_usec 20\nsystem_usec 10\n"),
            ("memory.peak", "4096\n"),
            ("memory.events", "low 0\noom 1\noom_kill 1\n"),
        ] {
            fs::write(dir.join(name), text).unwrap();
        }
        assert_eq!(group.used(), CgroupUsage { user: 20, system: 10, memory: 4096, is_short: true });
        group.kill();
        assert_eq!(text("cgroup.kill"), "1");
        assert!(groups.kills() && group.has("memory") && !group.has("freezer"));
    }

    #[test]
    fn version_one_gets_them_hierarchy_by_hierarchy() {
        let root = tempfile::tempdir().unwrap();
        let names = ["memory", "pids", "cpuacct", "cpuset", "freezer"];
        let split = names.map(|name| {
            fs::create_dir(root.path().join(name)).unwrap();
            (name.to_owned(), root.path().join(name))
        });
        fs::write(root.path().join("cpuset/cpuset.mems"), "0\n").unwrap();
        let groups = CgroupRoots { unified: None, has: Vec::new(), split: split.into() };
        let group = groups.make("one", &LIMITS, Some("1"));
        let text = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();
        assert_eq!(text("memory/one/memory.limit_in_bytes"), "67108864");
        assert_eq!(text("cpuset/one/cpuset.cpus") + &text("cpuset/one/cpuset.mems"), "10");
        assert_eq!(group.joins().len(), 5);
        for (path, text) in [
            ("cpuacct/one/cpuacct.usage_user", "5000000\n"),
            ("cpuacct/one/cpuacct.usage_sys", "3000\n"),
            ("memory/one/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"),
        ] {
            fs::write(root.path().join(path), text).unwrap();
        }
        assert_eq!(group.used(), CgroupUsage { user: 5000, system: 3, memory: 0, is_short: false });
        fs::write(root.path().join("freezer/one/freezer.state"), "THAWED").unwrap();
        group.kill();
        assert_eq!(text("freezer/one/freezer.state"), "THAWED");
        assert!(!groups.make("two", &LIMITS, None).has("cpuset"), "processors are everybody's");
    }

    #[test]
    fn where_nothing_may_be_made_there_is_no_group() {
        let gone = PathBuf::from("/nowhere/at/all");
        let mut groups = CgroupRoots {
            unified: Some(gone.clone()),
            has: Vec::new(),
            split: [("pids".into(), gone)].into(),
        };
        groups.settle(false);
        assert_eq!(groups, CgroupRoots::default());
        let group = groups.make("one", &LIMITS, None);
        assert!(!group.kills() && !group.counts() && group.joins().is_empty());
    }
}
