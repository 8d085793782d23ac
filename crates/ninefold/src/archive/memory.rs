//! How much memory this program may use, and how much of it a block cache or a tree in memory may have by default.
//!
//! In: what the machine has, the limits of the control groups that this program is in (cgroups(7), both versions), and
//! its own limit of address space. Out: the least of them; an eighth of it for a cache: a machine has use for its
//! memory beside the archive, and may have several.

use std::path::Path;

/// It is a cache at least from here on, bytes.
const LEAST: u64 = 64 << 20;

/// Bytes of the block cache, unless told otherwise.
pub(super) fn share() -> u64 {
    (available() / 8).max(LEAST)
}

/// Bytes of memory that this program may use.
pub fn available() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limits(&groups, |path| std::fs::read_to_string(path).ok());
    let own = rustix::process::getrlimit(rustix::process::Resource::As).current;
    limits.into_iter().chain([machine]).chain(own).min().unwrap_or(0)
}

/// What the groups of these lines and those above them say; `read` has the contents of a file.
fn limits(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Vec<u64> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (top, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let place = Path::new(top).join(group.trim_start_matches('/'));
        let above = place.ancestors().take_while(|place| place.starts_with(top));
        // `max` is no number: no limit.
        found.extend(above.filter_map(|place| read(&place.join(file))?.trim().parse::<u64>().ok()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_above_counts() {
        let groups = "3:cpu,cpuacct:/x\n2:memory:/a/b\n0::/c/d\nno line\n";
        let read = |path: &Path| match path.to_str().unwrap() {
            "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes" => Some("9223372036854771712\n".into()),
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes" => Some("4096\n".into()),
            "/sys/fs/cgroup/c/d/memory.max" => Some("max\n".into()),
            "/sys/fs/cgroup/c/memory.max" => Some("8192\n".into()),
            _ => None,
        };
        assert_eq!(limits(groups, read), [9_223_372_036_854_771_712, 4096, 8192]);
        assert!(share() >= LEAST && available() > 0);
    }
}
