//! The effect of a dump on a client. The client sends a request each millisecond, alternately a read and a write of 4
//! KiB. A request that was delayed counts from its scheduled time. The pause of a dump is the longest response time of
//! requests in flight between the command and 50 ms after its answer. For comparison: the longest one in an equally
//! long time before the command.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nine_proto::Tag;
use nine_proto::msg::{Data, Tmsg};

use super::serve::ArchiveShape;
use super::stand::ArchiveTestbed;
use super::work::{self, BlockAccess, OPEN, SeededRandom};
use super::{ArchiveContest, crash};
use crate::place::CpuPlacement;
use crate::report::{BenchReport, ReportRow};
use crate::stats::{growth, median, quantile};
use crate::wire::LeanConnection;

const PERIOD: Duration = Duration::from_millis(1);
/// Time after the answer that still counts as part of the dump.
const BEHIND: Duration = Duration::from_millis(50);
/// The client's file.
const WORK: &str = "work";
const WORK_SIZE: u64 = 16 << 20;
const BLOCK: usize = 4096;
const TREE: &str = "tree";

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    CpuPlacement::Free.arrange(&[])?;
    let sizes: &[u64] = contest.pace.of(&[64, 256, 1024, 10240], &[16, 64, 256], &[1, 2, 4]);
    let (mut points, mut worst) = (Vec::new(), None);
    for (i, &mib) in sizes.iter().enumerate() {
        // The worm of the largest also holds 20 dumps of a hundredth each.
        let stand = ArchiveTestbed::archive(ArchiveShape::of(mib * 3 / 2 + 256, mib * 2 + 512))?;
        work::write(&stand.server(), TREE, 0, mib << 20, mib)?;
        let found = dumps(contest, &stand, (mib << 20) / 100)?;
        points.push((mib as f64, median(&found.with).unwrap_or_default().max(1e-3)));
        worst = quantile(&found.with, 0.99);
        found.report(&format!("of {mib} MiB"), report);
        if i + 1 == sizes.len() {
            crash::measure(contest, &stand, WORK, report)?;
        }
    }
    report.key("dump_pause_growth", growth(&points));
    if contest.pace == crate::args::BenchPace::Full {
        let stand = ArchiveTestbed::archive(ArchiveShape::of(4096, 6144))?;
        sparse(&stand)?;
        let found = dumps(contest, &stand, 5 << 20)?;
        worst = quantile(&found.with, 0.99).into_iter().chain(worst).reduce(f64::max);
        found.report("of 50 GiB, of which each megabyte has a block", report);
    }
    report.key("dump_pause_p99_ms", worst);
    Ok(())
}

/// Writes a block in each megabyte of 50 GiB.
fn sparse(stand: &ArchiveTestbed) -> io::Result<()> {
    work::write(&stand.server(), TREE, 0, 4096, 1)?;
    let mut conn = work::on_file(&stand.server(), TREE)?;
    let data = super::pattern(BLOCK, 3);
    let writes = (0..50 << 10).map(|mib: u64| {
        let write = Tmsg::Write { fid: OPEN, offset: mib << 20, data: Data::Bytes(&data) };
        crate::wire::encoded(&write, Tag(mib as u16 % 32))
    });
    conn = conn.call_all(writes)?;
    drop(conn);
    stand.sync()
}

#[derive(Default)]
struct PauseResult {
    /// The longest waits in milliseconds: during each dump, and before it.
    with: Vec<f64>,
    without: Vec<f64>,
    /// Times until the command's answer, and until the dump was copied.
    answers: Vec<f64>,
    copies: Vec<f64>,
}

/// Makes twenty dumps, each after `changed` bytes have changed.
fn dumps(contest: &ArchiveContest, stand: &ArchiveTestbed, changed: u64) -> io::Result<PauseResult> {
    work::write(&stand.server(), WORK, 0, WORK_SIZE, 1)?;
    stand.tell("dump wait")?;
    work::settled(stand)?;
    let over = AtomicBool::new(false);
    let conn = work::on_file(&stand.server(), WORK)?;
    let mut found = PauseResult::default();
    let (waits, windows) = std::thread::scope(|scope| {
        let client = scope.spawn(|| steady(conn, &over));
        let windows = (0..contest.pace.of(20, 20, 2)).map(|n| {
            work::write(&stand.server(), TREE, 0, changed.max(1 << 16), n)?;
            stand.sync()?;
            std::thread::sleep(BEHIND);
            let before = Instant::now();
            std::thread::sleep(BEHIND * 2);
            let begun = Instant::now();
            stand.tell("dump")?;
            let answered = Instant::now();
            std::thread::sleep(BEHIND);
            work::copied(stand)?;
            Ok::<_, io::Error>((before, begun, answered, Instant::now()))
        });
        let windows = windows.collect::<io::Result<Vec<_>>>();
        over.store(true, Ordering::Relaxed);
        (client.join().expect("it does not panic"), windows)
    });
    let waits = waits?;
    let longest = |from: Instant, to: Instant| {
        let under_way = waits.iter().filter(|(asked, answered)| *answered >= from && *asked <= to);
        under_way.map(|(asked, answered)| (*answered - *asked).as_secs_f64() * 1e3).fold(0.0, f64::max)
    };
    for (before, begun, answered, copied) in windows? {
        found.with.push(longest(begun, answered + BEHIND));
        found.without.push(longest(before, begun - BEHIND / 10));
        found.answers.push((answered - begun).as_secs_f64() * 1e3);
        found.copies.push((copied - begun).as_secs_f64() * 1e3);
    }
    Ok(found)
}

/// Returns for each request its scheduled time (or the actual one if nothing delayed it) and the time of its answer.
fn steady(mut conn: LeanConnection, over: &AtomicBool) -> io::Result<Vec<(Instant, Instant)>> {
    let (mut chance, data) = (SeededRandom::new(5), super::pattern(BLOCK, 5));
    let blocks = BlockAccess::new(Tag(0), WORK_SIZE, BLOCK, None).count;
    let (mut due, mut waits) = (Instant::now(), Vec::new());
    for n in 0u64.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        due += PERIOD;
        let asked = match due.checked_duration_since(Instant::now()) {
            Some(early) => {
                std::thread::sleep(early);
                Instant::now()
            }
            None => due,
        };
        let offset = chance.below(blocks) * BLOCK as u64;
        let message = match n % 2 {
            0 => Tmsg::Read { fid: OPEN, offset, count: BLOCK as u32 },
            _ => Tmsg::Write { fid: OPEN, offset, data: Data::Bytes(&data) },
        };
        conn.call(&message)?;
        waits.push((asked, Instant::now()));
    }
    Ok(waits)
}

impl PauseResult {
    fn report(self, what: &str, report: &mut BenchReport) {
        let row = |what: String, ours| ReportRow { what, unit: "ms", ours, ..ReportRow::default() };
        for (share, name) in [(0.5, "median"), (0.99, "p99")] {
            let [with, without] = [&self.with, &self.without].map(|all| quantile(all, share));
            for (figure, when) in [(with, "a dump"), (without, "no dump")] {
                report.push(ReportRow::counted(
                    format!("longest wait, {when} {what}, {name}"),
                    "ms",
                    figure.unwrap_or_default(),
                    None,
                ));
            }
        }
        report.push(row(format!("a dump {what}: to browse"), self.answers));
        report.push(row(format!("a dump {what}: copied"), self.copies));
    }
}
