//! The time to open an archive after it was killed during writes.

use std::io;
use std::time::Duration;

use super::ArchiveContest;
use super::stand::ArchiveTestbed;
use super::work::{self, BlockAccess};
use crate::report::{BenchReport, ReportRow};

/// Writes to this file, kills the archive and opens it, several times.
pub(super) fn measure(
    contest: &ArchiveContest,
    stand: &ArchiveTestbed,
    file: &str,
    report: &mut BenchReport,
) -> io::Result<()> {
    let mut times = Vec::new();
    // Sync first: unsynced data would be lost with the first kill.
    stand.sync()?;
    for _ in 0..contest.pace.of(9, 3, 1) {
        let mut load =
            work::load(&stand.server(), file, 8, |tag| BlockAccess::new(tag, 1 << 20, 4096, Some(1)))?;
        let writer = std::thread::spawn(move || load.run(Duration::from_secs(60)));
        std::thread::sleep(contest.pace.turn() * 5);
        times.push(stand.crash()? / 1e3);
        // The writer's connection was lost.
        drop(writer.join());
    }
    contest.crashes.borrow_mut().extend(&times);
    let text = stand.ask("status")?;
    let files = text.lines().find(|line| line.starts_with("files ")).unwrap_or("an archive");
    let what = format!("opened after a crash, {files}");
    report.push(ReportRow { what, unit: "s", ours: times, ..ReportRow::default() });
    Ok(())
}
