//! An archive without a cache device beside one with a cache, on files of the same file system. New data is made
//! durable, then dumped, until the dump is on the worm.

use std::io;
use std::time::Instant;

use super::serve::ArchiveShape;
use super::stand::ArchiveTestbed;
use super::{ArchiveContest, bulk, work};
use crate::place::CpuPlacement;
use crate::report::{BenchReport, ReportRow};

const FILE: &str = "large";

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    CpuPlacement::Free.arrange(&[])?;
    let size = contest.large();
    let mib = size >> 20;
    // Each dump contains the file; there is one dump for each round and one before.
    let rounds = contest.rounds() as u64;
    let worm = mib * (rounds + 3) + 1024;
    let alone = ArchiveTestbed::archive(ArchiveShape::of(0, worm))?;
    let cached =
        ArchiveTestbed::archive(ArchiveShape { fastworm: true, ..ArchiveShape::of(mib * 3 + 256, worm) })?;
    let row = |what: String, unit| ReportRow { what, unit, ..ReportRow::default() };
    let mut write = row(format!("no cache / with one: write and fsync, {mib} MiB"), "GB/s");
    let mut dump = row(format!("no cache / with one: a dump of {mib} MiB until it is on the worm"), "s");
    let mut both = row(format!("no cache / with one: {mib} MiB written, synced and dumped"), "MiB/s");
    for round in 0..=rounds {
        for (stand, is_ours) in [(&alone, true), (&cached, false)] {
            let begun = Instant::now();
            let written = bulk::write_new(stand, FILE, size)?;
            let synced = Instant::now();
            stand.tell("dump wait")?;
            let (dumped, all) = (synced.elapsed().as_secs_f64(), begun.elapsed().as_secs_f64());
            work::settled(stand)?;
            // The first round is a warm-up: it touches blocks for the first time.
            if round == 0 {
                continue;
            }
            for (row, value) in [(&mut write, written), (&mut dump, dumped), (&mut both, mib as f64 / all)] {
                if is_ours { row.ours.push(value) } else { row.peer.push(value) }
            }
        }
    }
    report.key("no_cache_write_and_dump_vs_cached", both.vs_peer());
    report.extend(vec![write, dump, both]);
    Ok(())
}
