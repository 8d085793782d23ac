//! The loss of a client during a scrub, and during the resync of a mirror member. It has eight operations in flight on
//! one connection. The same is measured before and after.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::ArchiveContest;
use super::serve::ArchiveShape;
use super::stand::ArchiveTestbed;
use super::work::{self, BlockAccess};
use crate::place::CpuPlacement;
use crate::report::{BenchReport, ReportRow};

const DEPTH: u16 = 8;
/// The client's file, and the other file.
const WORK: &str = "work";
const WORK_SIZE: u64 = 32 << 20;
const TREE: &str = "tree";
/// Longer than anything here takes, unless it hangs.
const LIMIT: Duration = Duration::from_secs(600);
/// Interval of checks for the end.
const LOOK: Duration = Duration::from_millis(20);

/// The work beside the client, on a thread of its own.
type BackgroundWork = Box<dyn FnOnce() -> io::Result<()> + Send>;

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    CpuPlacement::Free.arrange(&[])?;
    let mib = contest.pace.of(1024, 256, 4);
    let shape = ArchiveShape { mirror: true, ..ArchiveShape::of(mib * 2 + 256, mib * 2 + 64) };
    let stand = ArchiveTestbed::archive(shape)?;
    work::write(&stand.server(), WORK, 0, WORK_SIZE, 1)?;
    work::write(&stand.server(), TREE, 0, mib << 20, 2)?;
    stand.tell("dump wait")?;
    work::settled(&stand)?;
    let scrub = lost(contest, &stand, &format!("{mib} MiB are verified on two members"), || {
        Ok(Box::new(stand.teller("scrub wait")?))
    })?;
    report.key("scrub_keeps", worst(&scrub));
    report.extend(scrub);
    let resync = lost(contest, &stand, "the worm is copied to its other member", || {
        let (tell, ask) = (stand.teller("worm resync full 1")?, stand.asker("worm")?);
        Ok(Box::new(move || {
            tell()?;
            let begun = Instant::now();
            while ask()?.contains("resync full") {
                if begun.elapsed() > LIMIT {
                    return Err(io::Error::other("the member does not get everything"));
                }
                std::thread::sleep(LOOK);
            }
            Ok(())
        }))
    })?;
    report.key("resync_keeps", worst(&resync));
    report.extend(resync);
    Ok(())
}

fn worst(rows: &[ReportRow]) -> Option<f64> {
    rows.iter().filter_map(ReportRow::vs_peer).reduce(f64::min)
}

fn lost(
    contest: &ArchiveContest,
    stand: &ArchiveTestbed,
    what: &str,
    begins: impl Fn() -> io::Result<BackgroundWork>,
) -> io::Result<Vec<ReportRow>> {
    let kinds = [("read 64 KiB", 64, None), ("write 4 KiB", 4, Some(1))];
    let mut rows = Vec::new();
    for (kind, kib, writes) in kinds {
        let blocks = |tag| BlockAccess::new(tag, WORK_SIZE, kib << 10, writes);
        let mut load = work::load(&stand.server(), WORK, DEPTH, blocks)?;
        let mut row = ReportRow {
            what: format!("{kind}, depth {DEPTH}, {what} / not"),
            unit: "k/s",
            ..ReportRow::default()
        };
        for _ in 0..contest.pace.of(3, 2, 1) {
            let idle = contest.pace.turn() * 4;
            let before = load.run(idle)?;
            let (done, mut during) = (AtomicBool::new(false), Vec::new());
            let work = begins()?;
            std::thread::scope(|scope| {
                let works = scope.spawn(|| {
                    let told = work();
                    done.store(true, Ordering::Relaxed);
                    told
                });
                while !done.load(Ordering::Relaxed) {
                    during.push(load.run(contest.pace.turn())?);
                }
                works.join().expect("it does not panic")
            })?;
            if during.len() > 1 {
                during.pop();
            }
            let after = load.run(idle)?;
            row.ours.push(during.iter().sum::<f64>() / during.len() as f64 / 1e3);
            row.peer.push((before + after) / 2e3);
        }
        rows.push(row);
    }
    Ok(rows)
}
