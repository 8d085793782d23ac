//! Turns that return several figures at once, for more than three contestants; and the rows made of them.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use rustix::fs::syncfs;

use super::{MountContest, MountContestant};
use crate::report::{BenchReport, ReportRow};

/// Description and unit of a figure.
pub(super) type FigureLabel = (&'static str, &'static str);

/// Figures of all rounds, by contestant.
pub(super) struct SweepResult<const N: usize> {
    what: [FigureLabel; N],
    of: Vec<(MountContestant, Vec<[f64; N]>)>,
}

/// Runs all contestants in turns, for all rounds; the first one is a warm-up. A peer with a failed turn is dropped.
pub(super) fn sweep<const N: usize>(
    contest: &MountContest,
    report: &mut BenchReport,
    whos: &[MountContestant],
    what: [FigureLabel; N],
    mut turn: impl FnMut(MountContestant) -> io::Result<[f64; N]>,
) -> io::Result<SweepResult<N>> {
    let begun = Instant::now();
    let patience = Duration::from_secs(contest.pace.of(450, 40, 450));
    let mut of: Vec<(MountContestant, Vec<[f64; N]>)> = whos.iter().map(|&who| (who, Vec::new())).collect();
    for round in 0..=contest.rounds() {
        if round > 1 && begun.elapsed() > patience {
            eprintln!("  {} rounds: more take too long", round - 1);
            break;
        }
        for (who, all) in of.iter_mut().filter(|(who, _)| contest.stand.has(*who)) {
            // Write back earlier data now, not during the turn.
            syncfs(File::open(contest.stand.dir())?)?;
            match turn(*who) {
                Ok(figures) if round > 0 => all.push(figures),
                Ok(_) => {}
                Err(why) if matches!(who, MountContestant::Sshfs | MountContestant::Rclone) => {
                    report.notes.push(format!("MISSING, and na what needs it: {}: {why}", who.label()));
                    contest.stand.leave(*who);
                    all.clear();
                }
                Err(why) => return Err(io::Error::other(format!("{}: {why}", who.label()))),
            }
        }
    }
    Ok(SweepResult { what, of })
}

impl<const N: usize> SweepResult<N> {
    /// Returns a row of one figure.
    pub fn row(
        &self,
        n: usize,
        and: &str,
        ours: MountContestant,
        peer: Option<MountContestant>,
        limit: Option<MountContestant>,
    ) -> ReportRow {
        let of = |who: Option<MountContestant>| -> Vec<f64> {
            let all = self.of.iter().find(|(one, _)| Some(*one) == who);
            all.map(|(_, all)| all.iter().map(|figures| figures[n]).collect()).unwrap_or_default()
        };
        let (what, unit) = self.what[n];
        ReportRow {
            what: format!("{what}{and}"),
            unit,
            ours: of(Some(ours)),
            peer: of(peer),
            limit: of(limit),
        }
    }

    /// Adds rows of each figure: ours beside sshfs, the directory and rclone; and ours by TCP.
    pub fn rows(&self, report: &mut BenchReport) {
        for n in 0..N {
            report.push(self.row(
                n,
                " / sshfs",
                MountContestant::Ours,
                Some(MountContestant::Sshfs),
                Some(MountContestant::Direct),
            ));
            report.push(self.row(n, " / rclone", MountContestant::Ours, Some(MountContestant::Rclone), None));
            report.push(self.row(
                n,
                ", by TCP / sshfs",
                MountContestant::Served,
                Some(MountContestant::Sshfs),
                Some(MountContestant::Direct),
            ));
        }
    }

    /// Returns the ratio of ours to sshfs.
    pub fn vs_sshfs(&self, n: usize) -> Option<f64> {
        self.row(n, "", MountContestant::Ours, Some(MountContestant::Sshfs), None).vs_peer()
    }
}
