//! Cables of 500 Mbit/s: two paths beside one, the cost of loss, and a path that is cut.

use std::io;
use std::time::{Duration, Instant};

use nine_sim::delay::Way;

use super::cables::EtherCable;
use super::job::{BlockJob, BlockOp, OffsetOrder};
use super::lane::EmulatedLink;
use super::{AoeContest, nbd, ours};
use crate::child::ChildProcess;
use crate::peers::vblade;
use crate::report::{BenchRace, BenchReport, BenchTurn, ReportRow, interleave};
use crate::stats::median;

/// Rate, bits per second.
const RATE: u64 = 500_000_000;
const LOSSES: [f64; 3] = [0.0, 0.001, 0.01];
/// Bytes of an AoE frame that are not data.
const HEADERS: u64 = 36;
/// Share of the full speed that counts as full.
const FULL_SPEED_MIN: f64 = 0.9;
/// Interval of speed samples.
const LOOK: Duration = Duration::from_millis(100);

/// Two lanes for us, one for vblade.
pub(super) struct AoeLinks {
    mtu: u32,
    ours: [(EtherCable, EmulatedLink); 2],
    theirs: (EtherCable, EmulatedLink),
    vblade: Option<ChildProcess>,
}

impl AoeLinks {
    fn new(contest: &AoeContest, first: u8, mtu: u32) -> io::Result<Self> {
        let ground = &contest.ground;
        let ours = [ground.lane(first, mtu)?, ground.lane(first + 1, mtu)?];
        let theirs = ground.lane(first + 2, mtu)?;
        let run = contest.run.path();
        let vblade = vblade::start(&ground.far, &theirs.0.name, &contest.file, vblade::BUFFERS, run)?;
        Ok(Self { mtu, ours, theirs, vblade })
    }

    /// Sets the loss of all lanes.
    fn set(&self, loss: f64, seed: u64) {
        let way = Way { rate: Some(RATE), loss, ..Way::default() };
        self.ours.iter().chain([&self.theirs]).for_each(|(_, lane)| lane.set(way, seed));
    }

    /// Returns a turn on lanes with this loss. Each contestant gets the same sequence of random losses.
    fn turn<'l>(&'l self, loss: f64, mut of: impl FnMut() -> io::Result<f64> + 'l) -> BenchTurn<'l> {
        let mut seed = 0;
        Box::new(move || {
            seed += 1;
            self.set(loss, seed);
            of()
        })
    }

    /// Returns the data rate that one lane carries, MB/s.
    fn let_through(&self, job: &BlockJob, loss: f64) -> f64 {
        let most = (u64::from(self.mtu) - HEADERS) / 512 * 512;
        let share = job.size as f64 / (job.size + job.size.div_ceil(most) * HEADERS) as f64;
        RATE as f64 / 8e6 * share * (1.0 - loss)
    }
}

/// Calls `measure` with the lanes of both packet lengths, one after the other.
fn on_each(
    contest: &AoeContest,
    mut measure: impl FnMut(&AoeLinks, BlockJob) -> io::Result<()>,
) -> io::Result<()> {
    for (at, first, mtu) in [(0, 10, 9000), (1, 20, 1500)] {
        if contest.lanes[at].get().is_none() {
            let made = AoeLinks::new(contest, first, mtu)?;
            // There is only one thread, so this cannot be set already.
            let _ = contest.lanes[at].set(made);
        }
        let Some(lanes) = contest.lanes[at].get() else { continue };
        let cables = [&lanes.ours[0].0, &lanes.ours[1].0];
        contest.serve(&cables, &lanes.vblade.iter().collect::<Vec<_>>())?;
        let ms = |full, quick, tiny| Duration::from_millis(contest.pace.of(full, quick, tiny));
        let job = contest.job(BlockOp::Read, OffsetOrder::Sequential, 64 << 10, 32);
        measure(lanes, BlockJob { time: ms(1000, 400, 5), warm: ms(300, 200, 0), ..job })?;
    }
    Ok(())
}

pub(super) fn loss(contest: &AoeContest, report: &mut BenchReport) -> io::Result<()> {
    report.notes.push(NOTE.into());
    on_each(contest, |lanes, read| lossy(contest, lanes, read, report))
}

pub(super) fn paths(contest: &AoeContest, report: &mut BenchReport) -> io::Result<()> {
    if !report.notes.iter().any(|note| note == NOTE) {
        report.notes.push(NOTE.into());
    }
    on_each(contest, |lanes, read| {
        two(contest, lanes, read, report)?;
        if lanes.mtu == 9000 { cut(contest, lanes, read, report) } else { Ok(()) }
    })
}

const NOTE: &str = "lanes: 500 Mbit/s each way, 1000 frames of queue, no delay; a thread between two veths, which may \
                    have any processor";

/// Measures one path with no loss, little loss, and more loss.
fn lossy(contest: &AoeContest, lanes: &AoeLinks, read: BlockJob, report: &mut BenchReport) -> io::Result<()> {
    let ground = &contest.ground;
    let mut races = Vec::new();
    let write = BlockJob { op: BlockOp::Write, ..read };
    for job in [read, write] {
        for loss in LOSSES {
            let ours = lanes.turn(loss, move || ours::turn(ground, &[&lanes.ours[0].0], ours::OURS, &job));
            let nbd = contest
                .nbd
                .as_ref()
                .map(|peer| lanes.turn(loss, move || nbd::turn(ground, &lanes.ours[0].0, peer.port, &job)));
            let limit = lanes.let_through(&job, loss);
            let lost = format!("{} {}, {} % lost", lanes.mtu, job.name(), loss * 100.0);
            races.push(BenchRace {
                what: format!("{lost}: nbdkit"),
                unit: "MB/s",
                turns: [Some(ours), nbd, Some(Box::new(move || Ok(limit)))],
            });
            let ours = lanes.turn(loss, move || ours::turn(ground, &[&lanes.ours[0].0], ours::OURS, &job));
            let theirs = lanes.vblade.as_ref().map(|_| {
                lanes.turn(loss, move || ours::turn(ground, &[&lanes.theirs.0], ours::THEIRS, &job))
            });
            if job.op == BlockOp::Read {
                let turns = [Some(ours), theirs, None];
                races.push(BenchRace { what: format!("{lost}: vblade"), unit: "MB/s", turns });
            }
        }
    }
    let rows = interleave(contest.pace.of(5, 2, 1), contest.pace.patience(), races)?;
    // Compare reads, in the rows beside NBD.
    if let [clean, _, little, _, more, ..] = &rows[..] {
        for (lossy, key, share) in [(little, "loss01_vs_clean", "0.1"), (more, "loss1_vs_clean", "1")] {
            let row = ReportRow {
                what: format!("{} {}: {share} % lost / clean", lanes.mtu, read.name()),
                unit: "MB/s",
                ours: lossy.ours.clone(),
                peer: clean.ours.clone(),
                ..ReportRow::default()
            };
            if lanes.mtu == 9000 {
                report.key(key, row.vs_peer());
            }
            report.push(row);
        }
    }
    report.extend(rows);
    Ok(())
}

/// Compares both paths with one.
fn two(contest: &AoeContest, lanes: &AoeLinks, read: BlockJob, report: &mut BenchReport) -> io::Result<()> {
    let [(first, _), (second, _)] = &lanes.ours;
    lanes.set(0.0, 1);
    let races = [BlockOp::Read, BlockOp::Write].map(|op| {
        let job = BlockJob { op, ..read };
        let limit = 2.0 * lanes.let_through(&job, 0.0);
        let ground = &contest.ground;
        BenchRace {
            what: format!("{} {}: two paths / one", lanes.mtu, job.name()),
            unit: "MB/s",
            turns: [
                Some(Box::new(move || ours::turn(ground, &[first, second], ours::OURS, &job))),
                Some(Box::new(move || ours::turn(ground, &[first], ours::OURS, &job))),
                Some(Box::new(move || Ok(limit))),
            ],
        }
    });
    let rows = interleave(contest.pace.of(9, 3, 1), contest.pace.patience(), races.into())?;
    if lanes.mtu == 9000 {
        report.key("twopath", rows[0].vs_peer());
    }
    report.extend(rows);
    Ok(())
}

/// Cuts one of two paths for a while, and measures the speed during the cut and the time to recover.
fn cut(contest: &AoeContest, lanes: &AoeLinks, read: BlockJob, report: &mut BenchReport) -> io::Result<()> {
    let [(first, _), (second, lane)] = &lanes.ours;
    let unit = contest.pace.of(Duration::from_secs(1), Duration::from_secs(1), LOOK * 2);
    let (mut speeds, mut meanwhile, mut backs) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..contest.pace.of(5, 2, 1) {
        lanes.set(0.0, round);
        let (whole, gone) = (Way { rate: Some(RATE), ..Way::default() }, Way { loss: 1.0, ..Way::default() });
        let (mut begun, mut phase, mut ends) = (None, 0, Vec::new());
        // One unit to start, one as the reference, two without the path, three with it.
        let go_on = |now: Instant| {
            let passed = now - *begun.get_or_insert(now);
            ends.push(passed.as_secs_f64());
            if phase == 0 && passed >= unit * 2 {
                lane.set(gone, round);
                phase = 1;
            }
            if phase == 1 && passed >= unit * 4 {
                lane.set(whole, round);
                phase = 2;
            }
            passed < unit * 7
        };
        ours::work(&contest.ground, &[first, second], ours::OURS, &read, go_on)?;
        let unit = unit.as_secs_f64();
        let full = speed(&ends, unit, 2.0 * unit);
        let megabytes = read.size as f64 / 1e6;
        speeds.push(full * megabytes);
        meanwhile.push(speed(&ends, 3.0 * unit, 4.0 * unit) * megabytes);
        backs.push(back(&ends, 4.0 * unit, 7.0 * unit, full));
    }
    report.key("twopath_back_s", median(&backs));
    let what = format!("{} {}", lanes.mtu, read.name());
    let row = |what: String, unit, ours, peer| ReportRow { what, unit, ours, peer, limit: Vec::new() };
    for row in [
        row(format!("{what}: one of two cut / whole"), "MB/s", meanwhile, speeds),
        row(format!("{what}: back after"), "s", backs, Vec::new()),
    ] {
        let middle = median(&row.ours).unwrap_or_default();
        eprintln!("  {}: {middle:.3} {}", row.what, row.unit);
        report.push(row);
    }
    Ok(())
}

/// Returns the operations per second in an interval.
fn speed(ends: &[f64], from: f64, to: f64) -> f64 {
    ends.iter().filter(|end| (from..to).contains(*end)).count() as f64 / (to - from)
}

/// Returns the seconds until the end of the first interval at full speed; the whole time if there is none.
fn back(ends: &[f64], from: f64, to: f64, full: f64) -> f64 {
    let step = LOOK.as_secs_f64();
    let steps = ((to - from) / step).round() as u32;
    let found = (0..steps)
        .map(|n| from + f64::from(n) * step)
        .find(|at| speed(ends, *at, at + step) >= FULL_SPEED_MIN * full);
    found.map_or(to - from, |at| at + step - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_speed_is_back_with_the_first_tenth_of_a_second_that_has_it() {
        // A hundred a second; half of that from 2.0 s to 3.4 s.
        let ends: Vec<f64> = (0..500).map(|n| f64::from(n) / 100.0 + 0.001).collect();
        let slow = |end: &f64| !(2.0..3.4).contains(end) || ((end * 100.0) as u32).is_multiple_of(2);
        let ends: Vec<f64> = ends.into_iter().filter(slow).collect();
        assert!((speed(&ends, 0.0, 1.0) - 100.0).abs() < 1.0);
        let back = |full| back(&ends, 3.0, 5.0, full);
        assert!((back(100.0) - 0.5).abs() < 0.02, "{}", back(100.0));
        assert!((back(1000.0) - 2.0).abs() < 0.02);
    }
}
