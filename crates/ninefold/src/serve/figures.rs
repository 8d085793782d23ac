//! Metrics for `/metrics`: of the process, by the names of Prometheus' own clients; of 9P clients; and of archives.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use nine_fs::Figure;
use nine_gate::http::Figures;
use nine_io::server::Core;
use rustix::process::{Resource, getrlimit};

use crate::archive::Archives;

/// Returns a function that produces the lines. Values that the kernel does not provide are left out.
pub fn of(core: Core, archives: Arc<Archives>) -> Figures {
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let booted = fs::read_to_string("/proc/stat").ok().and_then(|stat| booted(&stat));
    Arc::new(move || {
        let mut text = String::new();
        let mut line = |name: &str, kind: &str, help: &str, value: Option<f64>| {
            let Some(value) = value else { return };
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        };
        let stat = fs::read_to_string("/proc/self/stat").ok();
        let field = |n: usize| stat.as_deref().and_then(|stat| field(stat, n));
        let cpu = field(14).zip(field(15)).map(|(user, system)| (user + system) / ticks);
        let start = field(22).zip(booted).map(|(start, booted)| booted + start / ticks);
        let resident = field(24).map(|pages| pages * rustix::param::page_size() as f64);
        let most = getrlimit(Resource::Nofile).current.map(|most| most as f64);
        line("process_cpu_seconds_total", "counter", "Processor time, of user and system.", cpu);
        line("process_start_time_seconds", "gauge", "When it started, since 1970.", start);
        line("process_resident_memory_bytes", "gauge", "Memory that is resident.", resident);
        line("process_open_fds", "gauge", "Descriptors that are open.", open_fds());
        line("process_max_fds", "gauge", "Descriptors that may be open.", most);
        let clients = Some(core.connected() as f64);
        line("ninefold_9p_clients", "gauge", "Clients of 9P that are connected.", clients);
        archives_of(&archives.figures(), &mut text);
        text
    })
}

/// Writes the figures of all archives, grouped by figure.
fn archives_of(all: &[(String, Vec<Figure>)], text: &mut String) {
    let figures = all.first().map_or(&[][..], |(_, figures)| figures);
    for (n, Figure { name, help, .. }) in figures.iter().enumerate() {
        let kind = if figures[n].is_counter() { "counter" } else { "gauge" };
        let _ =
            writeln!(text, "# HELP ninefold_archive_{name} {help}\n# TYPE ninefold_archive_{name} {kind}");
        for (archive, figures) in all {
            let value = figures[n].value;
            let _ = writeln!(text, "ninefold_archive_{name}{{archive={archive:?}}} {value}");
        }
    }
}

/// Returns the boot time from `/proc/stat`, in seconds since 1970.
fn booted(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()
}

/// Returns a field numbered as in proc_pid_stat(5). The fields follow the program's name, which may contain any
/// character.
fn field(stat: &str, n: usize) -> Option<f64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(n.checked_sub(3)?)?.parse().ok()
}

/// Returns the number of open descriptors: the directory's size since Linux 6.2. Before that, its entries are counted,
/// without the one open for counting.
fn open_fds() -> Option<f64> {
    let size = fs::metadata("/proc/self/fd").ok()?.size();
    let counted = || fs::read_dir("/proc/self/fd").map(|dir| dir.count() - 1).ok();
    if size > 0 { Some(size as f64) } else { counted().map(|count| count as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_a_name_like_fields() {
        let stat = "42 (a) 7 (b) S 1 2 3";
        assert_eq!(
            (field(stat, 4), field(stat, 6), field(stat, 7), field(stat, 1)),
            (Some(1.0), Some(3.0), None, None)
        );
        assert_eq!(booted("cpu 1 2\nbtime 1700000000\n"), Some(1.7e9));
    }

    #[test]
    fn this_process_has_all_of_them() {
        let text = of(Core::default(), Arc::default())();
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 6, "{text}");
        assert!(text.contains("\nninefold_9p_clients 0\n"), "{text}");
    }
}
