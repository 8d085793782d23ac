//! Operations of all sizes and depths on cables without a rate limit; and the figures of the seed
//! paper.

use std::io;

use super::job::{BlockJob, BlockOp, OffsetOrder};
use super::{AoeContest, AoeTestbed, ours};
use crate::peers::vblade;
use crate::report::{BenchRace, BenchReport, BenchTurn, ReportRow, alternate, interleave};
use crate::stats::median;

const SIZES: [u64; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const DEPTHS: [usize; 3] = [1, 8, 64];
/// From the seed paper: block size of a frame, and blocks that are read ahead.
const SEED_BLOCK_LEN: u64 = 8 << 10;
const SEED_BLOCKS_AHEAD: usize = 20;

/// Reads of 64 KiB at depth 32; also our target beside vblade.
pub(super) fn read64k(contest: &AoeContest, report: &mut BenchReport) -> io::Result<()> {
    let read = contest.job(BlockOp::Read, OffsetOrder::Sequential, 64 << 10, 32);
    let deep = deep(contest)?;
    let [plain, target, ..] = &measure(contest, report, read, |stand| {
        let what = format!("9000 {}: vblade -b 64, unranked", read.name());
        vec![BenchRace {
            what,
            unit: read.unit(),
            turns: [contest.ours(stand, read), contest.vblade(deep, read), None],
        }]
    })?[..] else {
        return Ok(());
    };
    report.key("read64k_vs_raw", plain.vs_limit());
    report.key("read64k_vs_nbd", plain.vs_peer());
    report.key("target_vs_vblade", target.vs_peer());
    Ok(())
}

/// Writes of 64 KiB at depth 32.
pub(super) fn write64k(contest: &AoeContest, report: &mut BenchReport) -> io::Result<()> {
    let write = contest.job(BlockOp::Write, OffsetOrder::Sequential, 64 << 10, 32);
    let rows = measure(contest, report, write, |_| Vec::new())?;
    report.key("write64k_vs_raw", rows[0].vs_limit());
    report.key("write64k_vs_nbd", rows[0].vs_peer());
    Ok(())
}

/// Random reads of 4 KiB at depth 64.
pub(super) fn rand4k(contest: &AoeContest, report: &mut BenchReport) -> io::Result<()> {
    let random = contest.job(BlockOp::Read, OffsetOrder::Random, 4 << 10, 64);
    let rows = measure(contest, report, random, |_| Vec::new())?;
    report.key("rand4k_vs_nbd", rows[0].vs_peer());
    Ok(())
}

/// Random reads of 4 KiB, one at a time.
pub(super) fn depth1(contest: &AoeContest, report: &mut BenchReport) -> io::Result<()> {
    let one = contest.job(BlockOp::Read, OffsetOrder::Random, 4 << 10, 1);
    let rows = measure(contest, report, one, |_| Vec::new())?;
    report.key("depth1_vs_raw", rows[0].vs_limit());
    report.key("depth1_vs_nbd", rows[0].vs_peer());
    Ok(())
}

/// Runs a job beside NBD and bare frames, then beside vblade and the file, then the races of
/// `more`. Returns the rows.
fn measure<'c>(
    contest: &'c AoeContest,
    report: &mut BenchReport,
    job: BlockJob,
    more: impl FnOnce(&'c AoeTestbed) -> Vec<BenchRace<'c>>,
) -> io::Result<Vec<ReportRow>> {
    let [stand, _] = &contest.plain;
    contest.serve(&[&stand.ours], &[])?;
    let mut races = vec![beside_nbd(contest, stand, job), beside_vblade(contest, stand, job)];
    races.extend(more(stand));
    let rows = interleave(contest.pace.rounds(), contest.pace.patience(), races)?;
    report.extend(rows.clone());
    Ok(rows)
}

fn beside_nbd<'c>(contest: &'c AoeContest, at: &'c AoeTestbed, job: BlockJob) -> BenchRace<'c> {
    let turns = [contest.ours(at, job), contest.nbd(&at.ours, job), contest.raw(at, job)];
    BenchRace { what: format!("{} {}: nbdkit", at.ours.mtu, job.name()), unit: job.unit(), turns }
}

fn beside_vblade<'c>(contest: &'c AoeContest, at: &'c AoeTestbed, job: BlockJob) -> BenchRace<'c> {
    let turns = [contest.ours(at, job), contest.vblade(at, job), contest.file(job)];
    BenchRace { what: format!("{} {}: vblade", at.ours.mtu, job.name()), unit: job.unit(), turns }
}

/// Starts vblade with as many buffers as our target has.
fn deep(contest: &AoeContest) -> io::Result<&AoeTestbed> {
    let cable = contest.ground.direct(5, 9000, false)?;
    let run = contest.run.path();
    let vblade = vblade::start(&contest.ground.far, &cable.name, &contest.file, 64, run)?;
    let stand = AoeTestbed { ours: cable.clone(), theirs: cable, vblade, frames: None };
    Ok(contest.deep.get_or_init(|| stand))
}

/// Reads with the kernel's segment offloads, which matter for TCP only.
pub(super) fn offloads(contest: &AoeContest, report: &mut BenchReport) -> io::Result<()> {
    let read = contest.job(BlockOp::Read, OffsetOrder::Sequential, 64 << 10, 32);
    let cable = contest.ground.direct(6, 9000, true)?;
    contest.serve(&[&cable], &[])?;
    let ours = || ours::turn(&contest.ground, &[&cable], ours::OURS, &read);
    let turns: [Option<BenchTurn<'_>>; 3] = [Some(Box::new(ours)), contest.nbd(&cable, read), None];
    let what = format!("9000 {}: nbdkit, offloads on", read.name());
    report.push(alternate(what, read.unit(), contest.pace.of(9, 3, 1), turns)?);
    Ok(())
}

/// Measures all sizes, depths, orders, directions and packet lengths.
pub(super) fn sweep(contest: &AoeContest, report: &mut BenchReport) -> io::Result<()> {
    let pace = contest.pace;
    for (stand, mtu) in contest.plain.iter().zip(["9000", "1500"]) {
        let standard = mtu == "1500";
        contest.serve(&[&stand.ours], &[])?;
        for size in SIZES {
            for depth in DEPTHS {
                for (op, order) in [
                    (BlockOp::Read, OffsetOrder::Sequential),
                    (BlockOp::Write, OffsetOrder::Sequential),
                    (BlockOp::Read, OffsetOrder::Random),
                    (BlockOp::Write, OffsetOrder::Random),
                ] {
                    let some = matches!(size >> 10, 4 | 64 | 1024) && depth != 8;
                    let few =
                        matches!(size >> 10, 4 | 1024) && depth != 8 && op_goes_with(op, order) && !standard;
                    if !pace.of(some || !standard, some && op_goes_with(op, order), few) {
                        continue;
                    }
                    let job = contest.job(op, order, size, depth);
                    let races = vec![beside_nbd(contest, stand, job), beside_vblade(contest, stand, job)];
                    for row in interleave(pace.of(7, 3, 1), pace.patience(), races)? {
                        report.push(row);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Selects the combinations to measure if there is no time for all.
fn op_goes_with(op: BlockOp, order: OffsetOrder) -> bool {
    (op == BlockOp::Read) == (order == OffsetOrder::Random)
}

/// Repeats the measurements of the seed paper.
pub(super) fn seed(contest: &AoeContest, report: &mut BenchReport) -> io::Result<()> {
    let [stand, _] = &contest.plain;
    contest.serve(&[&stand.ours], &[])?;
    let job = |order, depth| contest.job(BlockOp::Read, order, SEED_BLOCK_LEN, depth);
    let mut run = |job: BlockJob, what: &str| -> io::Result<f64> {
        let row: ReportRow = alternate(
            format!("9000 {}, {what}: nbdkit", job.name()),
            job.unit(),
            contest.pace.of(9, 3, 1),
            [contest.ours(stand, job), contest.nbd(&stand.ours, job), contest.raw(stand, job)],
        )?;
        Ok(median(&report.push(row).ours).unwrap_or_default())
    };
    let one = run(job(OffsetOrder::Sequential, 1), "one reader")?;
    let two = run(job(OffsetOrder::Sequential, 2), "two readers")?;
    let ahead = run(job(OffsetOrder::Sequential, SEED_BLOCKS_AHEAD), "read ahead")?;
    let columns = run(job(OffsetOrder::Columns, SEED_BLOCKS_AHEAD), "read ahead")?;
    let rate = SEED_BLOCK_LEN as f64 / one;
    let gigabyte = |rate: f64| 1e9 / rate / 1e6;
    report.notes.extend([
        "the seed (SR1521, Ethernet of 1 Gbit/s), and here (a cable without a limit):".into(),
        format!("  8 KiB, one at a time          79 us, 103 MB/s     {one:.0} us, {rate:.0} MB/s"),
        format!("  two readers                   201 MB/s            {two:.0} MB/s"),
        format!(
            "  1 GB, plain and read ahead    25.5 s -> 13.75 s   {:.1} s -> {:.2} s ({SEED_BLOCKS_AHEAD} blocks ahead)",
            gigabyte(rate),
            gigabyte(ahead)
        ),
        format!("  by rows and by columns        25 MB/s, 2 MB/s     {ahead:.0} MB/s, {columns:.0} MB/s"),
    ]);
    Ok(())
}
