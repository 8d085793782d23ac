//! The memory that this program may use, and the default share of a block cache or a tree in memory.
//!
//! In: the machine's memory, the limits of this program's control groups (cgroups(7), both versions), and its limit of
//! address space. Out: the smallest of them. A cache gets an eighth of it: the machine needs memory for other programs,
//! and may have several archives.

use std::path::Path;

/// Minimum size of a cache, bytes.
const LEAST: u64 = 64 << 20;

/// Returns the default size of the block cache, bytes.
pub(super) fn share() -> u64 {
    (available() / 8).max(LEAST)
}

/// Returns the bytes of memory that this program may use.
pub fn available() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limits(&groups, |path| std::fs::read_to_string(path).ok());
    let own = rustix::process::getrlimit(rustix::process::Resource::As).current;
    limits.into_iter().chain([machine]).chain(own).min().unwrap_or(0)
}

/// Returns the limits of the control groups on these lines and of their ancestors. `read` returns a file's content.
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
        // The word `max` means no limit.
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
