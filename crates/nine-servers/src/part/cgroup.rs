//! Control groups: one for each session, of version 2, of version 1, or of both what there is.
//!
//! In: where the hierarchies are (mounts, our own groups) and a session's limits. Out: a [`Group`]: where a process
//! joins, what it has used, and its end with everybody in it.
//!
//! All of it is files, so that a directory stands for the kernel in tests. Waits for the kernel, not for ever.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::policy::Limits;

/// Where groups can be made: a directory for each controller. Of version 2 all are the same one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Groups {
    /// Version 2: killed at once; and controllers, if it has any.
    unified: Option<PathBuf>,
    /// Controllers of version 2 that groups there have.
    has: Vec<String>,
    /// Version 1, by controller.
    split: BTreeMap<String, PathBuf>,
}

/// What all its processes have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    /// Microseconds as user, as system.
    pub(super) user: u64,
    pub(super) system: u64,
    /// The most bytes at once; 0: not known.
    pub(super) memory: u64,
    /// The kernel has killed for want of memory.
    pub(super) is_short: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Group {
    unified: Option<PathBuf>,
    has: Vec<String>,
    split: BTreeMap<String, PathBuf>,
}

impl Groups {
    /// Those of this machine.
    pub(super) fn find() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let mut found = Self::of(&text("/proc/self/mounts"), &text("/proc/self/cgroup"));
        let is_root = rustix::process::geteuid().is_root();
        found.settle(is_root);
        found
    }

    /// Where we are, by what the kernel lists.
    fn of(mounts: &str, own: &str) -> Self {
        let mut found = Self::default();
        for mount in mounts.lines() {
            let mut words = mount.split(' ').skip(1);
            let (Some(at), Some(kind), Some(options)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            // What a name space of groups hides is seen as the top.
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

    /// Finds out what may be used, and has version 2 give its controllers to groups of ours.
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
        // A group with processes in it gives none, unless it is the top: ours goes into one below, if it is alone.
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

    /// Whether a session's processes can be killed together, whatever they do.
    pub(super) fn kills(&self) -> bool {
        self.unified.is_some() || self.split.contains_key("freezer")
    }

    /// Whether groups have processors.
    pub(super) fn has_cpus(&self) -> bool {
        self.split.contains_key("cpuset")
            || self.unified.is_some() && self.has.iter().any(|of| of == "cpuset")
    }

    /// Makes one of this name. What cannot be made is left out, and said.
    pub(super) fn make(&self, name: &str, limits: &Limits, cpus: Option<&str>) -> Group {
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
        let mut group = Group { unified, has, split };
        group.limit("memory", &[("memory.max", "memory.limit_in_bytes", &limits.memory.to_string())]);
        // What is swapped out would not count; a kernel without swap has no such files.
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

    /// Ends what servers that are no more have left: groups of this prefix and a process that is not there.
    pub(super) fn sweep(&self, prefix: &str) {
        self.end_those(|name| {
            let pid = name.strip_prefix(prefix).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
            pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
        });
    }

    /// Ends all groups whose names begin so.
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

impl Group {
    /// Where a process is written to be in it.
    pub(super) fn joins(&self) -> Vec<String> {
        self.dirs().map(|dir| dir.join("cgroup.procs").display().to_string()).collect()
    }

    fn dirs(&self) -> impl Iterator<Item = &PathBuf> {
        self.unified.iter().chain(self.split.values())
    }

    /// Where this controller is, and of which version.
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

    /// Whether time is counted, of all its processes.
    pub(super) fn counts(&self) -> bool {
        self.unified.is_some() || self.has("cpuacct")
    }

    /// Sets files of a controller, by their names in version 2 and 1; it is left where one cannot be set, and that is
    /// said.
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

    /// Has those who are in it run on these processors.
    pub(super) fn moves(&self, cpus: &str) {
        if let Some((dir, _)) = self.dir("cpuset")
            && let Err(error) = fs::write(dir.join("cpuset.cpus"), cpus)
            // Who has ended meanwhile has none.
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

    pub(super) fn used(&self) -> Used {
        let mut used = Used::default();
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

    /// Kills everybody in it, also who is being made meanwhile.
    pub(super) fn kill(&self) {
        if let Some(dir) = &self.unified
            && fs::write(dir.join("cgroup.kill"), "1").is_ok()
        {
            return;
        }
        let Some(dir) = self.split.get("freezer").or(self.unified.as_ref()) else { return };
        // Nobody who is frozen makes another one; who is killed then goes when it is thawed.
        let freeze = |word: &str, number: &str| match self.split.contains_key("freezer") {
            true => drop(fs::write(dir.join("freezer.state"), word)),
            false => drop(fs::write(dir.join("cgroup.freeze"), number)),
        };
        freeze("FROZEN", "1");
        for _ in 0..PATIENCE {
            kill_all(&members(dir));
            let is_frozen =
                fs::read_to_string(dir.join("freezer.state")).map_or(true, |now| now.trim() == "FROZEN");
            if is_frozen {
                break;
            }
            thread::sleep(PAUSE);
        }
        kill_all(&members(dir));
        freeze("THAWED", "0");
    }

    /// Kills everybody in it, waits until they have gone, but not for ever, and removes it.
    pub(super) fn end(&self) {
        let late = Instant::now() + ENDS;
        while Instant::now() < late {
            self.kill();
            if self.dirs().all(|dir| members(dir).is_empty()) {
                break;
            }
            thread::sleep(PAUSE);
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
        // Where all at once are ended nobody is made meanwhile.
        let _ = fs::File::options()
            .write(true)
            .open(dir.join("cgroup.kill"))
            .and_then(|mut kill| kill.write_all(b"1"));
        for _ in 0..PATIENCE {
            match fs::remove_dir(dir) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    kill_all(&members(dir));
                    thread::sleep(PAUSE);
                }
                _ => break,
            }
        }
    }
}

/// Whether a group can be made there.
fn is_writable(dir: &Path) -> bool {
    let probe = dir.join(format!("ninefold-probe-{}", std::process::id()));
    // The kernel makes the files of a group.
    let is_group = fs::create_dir(&probe).is_ok() && probe.join("cgroup.procs").exists();
    fs::remove_dir(&probe).is_ok() && is_group
}

/// Whether this process is the only one there.
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
        // It may have gone.
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

/// The value of a key, one a line.
fn value(file: &Path, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    found.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// What sessions have a use for.
const CONTROLLERS: [&str; 5] = ["memory", "cpuacct", "cpuset", "pids", "freezer"];
/// Looks at whether somebody has gone.
const PATIENCE: usize = 500;
const PAUSE: Duration = Duration::from_millis(5);
/// For all of a group to go.
const ENDS: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory: 64 << 20, cpu: None, processes: 9 };

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
        let groups = Groups::of(&mounts, own);
        assert_eq!(groups.unified, Some(root.path().join("unified/us")));
        assert_eq!(groups.split["memory"], root.path().join("memory/us/here"));
        assert_eq!(groups.split["pids"], root.path().join("pids"), "the top is seen");
        assert_eq!(groups.split.len(), 2);
    }

    #[test]
    fn version_two_gets_its_limits_and_says_what_was_used() {
        let root = tempfile::tempdir().unwrap();
        let has = ["memory", "pids", "cpuset"].map(String::from).to_vec();
        let groups = Groups { unified: Some(root.path().into()), has, split: BTreeMap::new() };
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
        assert_eq!(group.used(), Used { user: 20, system: 10, memory: 4096, is_short: true });
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
        let groups = Groups { unified: None, has: Vec::new(), split: split.into() };
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
        assert_eq!(group.used(), Used { user: 5000, system: 3, memory: 0, is_short: false });
        fs::write(root.path().join("freezer/one/freezer.state"), "THAWED").unwrap();
        group.kill();
        assert_eq!(text("freezer/one/freezer.state"), "THAWED");
        assert!(!groups.make("two", &LIMITS, None).has("cpuset"), "processors are everybody's");
    }

    #[test]
    fn where_nothing_may_be_made_there_is_no_group() {
        let gone = PathBuf::from("/nowhere/at/all");
        let mut groups =
            Groups { unified: Some(gone.clone()), has: Vec::new(), split: [("pids".into(), gone)].into() };
        groups.settle(false);
        assert_eq!(groups, Groups::default());
        let group = groups.make("one", &LIMITS, None);
        assert!(!group.kills() && !group.counts() && group.joins().is_empty());
    }
}
