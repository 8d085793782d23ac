//! The loss of a client while a dump is copied. It has eight operations in flight on one connection at random offsets.
//! The time of the copy is compared with the time before and after it. Then the same for a file read from end to end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::serve::ArchiveShape;
use super::stand::ArchiveTestbed;
use super::work::{self, BlockAccess};
use super::{ArchiveContest, bulk};
use crate::place::CpuPlacement;
use crate::report::{BenchReport, BenchTurn, ReportRow};
use crate::turns::read_whole;

const DEPTH: u16 = 8;
/// The client's file, and the dumped file.
const WORK: &str = "work";
const WORK_SIZE: u64 = 32 << 20;
const TREE: &str = "tree";
/// The file that is written anew.
const NEW: &str = "new";

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    CpuPlacement::Free.arrange(&[])?;
    let mib = contest.pace.of(256, 64, 2);
    let stand = ArchiveTestbed::archive(ArchiveShape::of(mib * 4 + 256, mib * 40 + 1024))?;
    work::write(&stand.server(), WORK, 0, WORK_SIZE, 1)?;
    let kinds = [("read 64 KiB", 64, None), ("read 4 KiB", 4, None), ("write 4 KiB", 4, Some(1))];
    let mut worst = None;
    for (what, kib, writes) in kinds {
        let blocks = |tag| BlockAccess::new(tag, WORK_SIZE, kib << 10, writes);
        let mut load = work::load(&stand.server(), WORK, DEPTH, blocks)?;
        let mut row = ReportRow {
            what: format!("{what}, depth {DEPTH}, {mib} MiB are copied / not"),
            unit: "k/s",
            ..ReportRow::default()
        };
        for round in 0..contest.pace.of(7, 3, 1) {
            work::write(&stand.server(), TREE, 0, mib << 20, round)?;
            stand.sync()?;
            let idle = contest.pace.turn() * 4;
            let before = load.run(idle)?;
            let during = while_copied(&stand, || load.run(contest.pace.turn()))?;
            work::settled(&stand)?;
            let after = load.run(idle)?;
            row.ours.push(during.iter().sum::<f64>() / during.len() as f64 / 1e3);
            row.peer.push((before + after) / 2e3);
        }
        let lost = row.vs_peer().map(|share| 1.0 - share);
        worst = worst.into_iter().chain(lost).reduce(f64::max);
        report.push(row);
    }
    report.key("dump_cost", worst);
    drop(stand);
    sequential(contest, report)
}

/// Measures one client that rereads a file in memory, then one that writes files anew.
fn sequential(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    let copied = contest.pace.of(contest.large() >> 20, 128, 4);
    let (mib, tree) = ((copied / 8).max(1), copied << 20);
    let size = mib << 20;
    let stand = ArchiveTestbed::archive(ArchiveShape::of(copied * 4 + 256, copied * 10 + 1024))?;
    work::write(&stand.server(), WORK, 0, size, 1)?;
    let kinds: [(&str, BenchTurn<'_>); 2] = [
        ("read", Box::new(|| read_whole(&stand.server(), WORK, size)?())),
        ("write and fsync", Box::new(|| bulk::write_new(&stand, NEW, size))),
    ];
    for (what, mut turn) in kinds {
        let mut row = ReportRow {
            what: format!("sequential {what}, {mib} MiB, {copied} MiB are copied / not"),
            unit: "GB/s",
            ..ReportRow::default()
        };
        let what = format!("a dump of {copied} MiB: copied, beside a sequential {what}");
        let mut copy = ReportRow { what, unit: "s", ..ReportRow::default() };
        for round in 0..contest.pace.of(3, 2, 1) {
            work::write(&stand.server(), TREE, 0, tree, 10 + round)?;
            stand.sync()?;
            turn()?;
            let before = turn()?;
            let begun = Instant::now();
            let during = while_copied(&stand, &mut turn)?;
            copy.ours.push(begun.elapsed().as_secs_f64());
            work::settled(&stand)?;
            row.ours.push(during.iter().sum::<f64>() / during.len() as f64);
            row.peer.push((before + turn()?) / 2.0);
        }
        report.extend(vec![row, copy]);
    }
    Ok(())
}

/// Returns the figures of turns until a dump is copied. A turn that ends after the copy does not count.
fn while_copied(stand: &ArchiveTestbed, mut turn: impl FnMut() -> io::Result<f64>) -> io::Result<Vec<f64>> {
    let (done, mut during) = (AtomicBool::new(false), Vec::new());
    let tell = stand.teller("dump wait")?;
    std::thread::scope(|scope| {
        let dump = scope.spawn(|| {
            let told = tell();
            done.store(true, Ordering::Relaxed);
            told
        });
        while !done.load(Ordering::Relaxed) {
            during.push(turn()?);
        }
        dump.join().expect("it does not panic")
    })?;
    if during.len() > 1 {
        during.pop();
    }
    Ok(during)
}
