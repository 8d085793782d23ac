//! `archive`: the cached worm beside the disk server on the same file system, and its dumps beside restic.
//!
//! In: two sparse files beside the build, and a directory there. Out: rows and keys, each from the file that measures
//! it. Client and servers are processes; the kernel places them, unless a row names a placement.

mod alone;
mod bulk;
mod cost;
mod crash;
mod create;
mod few;
mod history;
mod lookup;
mod old;
mod pause;
mod random;
mod seed;
mod serve;
mod stand;
mod store;
mod takeover;
mod unpack;
mod upkeep;
mod work;

use std::cell::RefCell;
use std::io;

use crate::BenchExperiment;
use crate::args::BenchPace;
use crate::parts::{ExperimentPart, chosen};
use crate::peers::restic;
use crate::report::BenchReport;

pub use serve::serve;
pub use unpack::source;

pub const EXPERIMENT: BenchExperiment = BenchExperiment {
    name: "archive",
    what: "large files, many small files, dumps, history; against the disk server and restic",
    run,
};

const PARTS: [ExperimentPart<ArchiveContest>; 14] = [
    ("bulk", bulk::measure),
    ("random", random::measure),
    ("create", create::measure),
    ("unpack", unpack::measure),
    ("pause", pause::measure),
    ("cost", cost::measure),
    ("history", history::measure),
    ("old", old::measure),
    ("lookup", lookup::measure),
    ("seed", seed::measure),
    ("store", store::measure),
    ("upkeep", upkeep::measure),
    ("alone", alone::measure),
    ("takeover", takeover::measure),
];

const KEYS: [&str; 23] = [
    "seqread_vs_disk",
    "seqwrite_vs_disk",
    "create_vs_disk",
    "dump_pause_p99_ms",
    "dump_pause_growth",
    "dump_cost",
    "dump_restic_speedup",
    "open_old_vs_today",
    "lookup_1m_vs_1k",
    "crash_start_s",
    "seqread_uncached_vs_disk",
    "remove_vs_disk",
    "dump_copied_restic_speedup",
    "seqread_uncached_warm_vs_disk",
    "rand4k_read_vs_disk",
    "rand4k_write_vs_disk",
    "unpack_vs_disk",
    "memory_per_million_files_mib",
    "store_cold_read_vs_download",
    "scrub_keeps",
    "resync_keeps",
    "no_cache_write_and_dump_vs_cached",
    "takeover_s",
];

/// Size of one read or write of a client, bytes.
const CLIENT_IO_LEN: usize = 256 * 1024;

struct ArchiveContest {
    pace: BenchPace,
    /// Times of all starts after a crash, seconds.
    crashes: RefCell<Vec<f64>>,
}

impl ArchiveContest {
    /// Returns the size of the large file, bytes.
    fn large(&self) -> u64 {
        self.pace.of(1024, 512, 4) << 20
    }

    /// Returns the number of rounds of long measurements.
    fn rounds(&self) -> usize {
        self.pace.of(9, 3, 1)
    }
}

fn run(pace: BenchPace, only: Option<&str>) -> io::Result<BenchReport> {
    let parts = chosen(&PARTS, only)?;
    let (mut report, contest) =
        (BenchReport::default(), ArchiveContest { pace, crashes: RefCell::default() });
    let restic = restic::version();
    say(&mut report, restic.as_deref());
    for (name, measure) in parts {
        let begun = std::time::Instant::now();
        measure(&contest, &mut report)?;
        eprintln!("  {name}: {:.0} s", begun.elapsed().as_secs_f64());
    }
    let crashes = contest.crashes.into_inner();
    report.key("crash_start_s", crashes.into_iter().reduce(f64::max));
    report.order(&KEYS);
    report.keys.push(("rounds", pace.rounds().to_string()));
    report.keys.push(("restic", restic.unwrap_or("na".into())));
    Ok(report)
}

fn say(report: &mut BenchReport, restic: Option<&str>) {
    let shape = serve::ArchiveShape::of(0, 0);
    report.notes.push(format!(
        "ours: blocks of {} KiB, {} MiB of memory; cache and worm are two sparse files beside the build; who serves \
         and who asks run where the kernel wants, unless a row says otherwise",
        shape.block, shape.memory
    ));
    report
        .notes
        .push("peer: our disk server on a directory of the same file system, with the same client".into());
    report.notes.push("limit: the same bytes by system calls of one thread, with no protocol".into());
    report.notes.push(match restic {
        Some(version) => format!("peer of dumps: restic {version}, a repository on the same file system"),
        None => "peer of dumps: restic is MISSING (Debian package restic): its keys are na".into(),
    });
}

/// Returns incompressible bytes.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(step).collect()
}
