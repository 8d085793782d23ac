//! Second reads, from the kernel's pages; and passthrough reads by the kernel itself.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};

use super::fio::{self, FioJob, fio};
use super::sweep::{FigureLabel, sweep};
use super::{MountContest, MountContestant};
use crate::files::LARGE;
use crate::report::{BenchReport, ReportRow};
use crate::turns::rate;

/// Size of the file that is read twice, and of one read, bytes.
const TWICE: u64 = 256 << 20;
const READ_LEN: usize = 1 << 20;

/// Reads a file from end to end, closes it, opens it and reads it again.
pub(super) fn again(contest: &MountContest, report: &mut BenchReport) -> io::Result<()> {
    let size = contest.stand.large()?.min(TWICE);
    let whos = [
        MountContestant::Ours,
        MountContestant::Passed,
        MountContestant::Served,
        MountContestant::Sshfs,
        MountContestant::Rclone,
        MountContestant::Direct,
    ];
    let what: [FigureLabel; 1] = [("sequential read, again", "GB/s")];
    let found = sweep(contest, report, &whos, what, |who| {
        let mounted = contest.stand.mount(who)?;
        let file = mounted.dir().join(LARGE);
        read(&file, size)?;
        Ok([read(&file, size)?])
    })?;
    report
        .notes
        .push(format!("again: {} MiB that have just been read, opened and read once more", size >> 20));
    report.key(
        "reread_vs_direct",
        found.row(0, "", MountContestant::Ours, None, Some(MountContestant::Direct)).vs_limit(),
    );
    found.rows(report);
    report.push(found.row(0, ", passthrough", MountContestant::Passed, None, Some(MountContestant::Direct)));
    Ok(())
}

/// Reads the beginning of a file; GB/s.
fn read(path: &Path, size: u64) -> io::Result<f64> {
    let (file, mut piece) = (File::open(path)?, vec![0; READ_LEN]);
    let begun = Instant::now();
    for at in (0..size).step_by(READ_LEN) {
        file.read_exact_at(&mut piece, at)?;
    }
    rate(begun, size, size)
}

const JOBS: [FioJob; 2] = [
    FioJob { rw: "read", depth: 1, is_direct: false },
    FioJob { rw: "randread", depth: 1, is_direct: false },
];
const FIGURES: [FigureLabel; 4] = [
    ("sequential read", "GB/s"),
    ("read 4 KiB by chance", "k/s"),
    ("sequential read, host cold", "GB/s"),
    ("read 4 KiB by chance, host cold", "k/s"),
];

/// Measures reads through the page cache, which has nothing of the mount. The host's cache has the
/// whole file, then nothing.
pub(super) fn passthrough(contest: &MountContest, report: &mut BenchReport) -> io::Result<()> {
    if !fio::is_there(report) {
        return Ok(());
    }
    if !passes(contest)? {
        report
            .notes
            .push("passthrough_vs_direct is na: this kernel reads no files by itself (Linux 6.9)".into());
        return Ok(());
    }
    let whos = [MountContestant::Passed, MountContestant::Ours, MountContestant::Direct];
    let found = sweep(contest, report, &whos, FIGURES, |who| {
        let mounted = contest.stand.mount(who)?;
        let forget = || {
            Ok::<_, io::Error>(fadvise(
                File::open(contest.stand.dir().join(LARGE))?,
                0,
                None,
                Advice::DontNeed,
            )?)
        };
        read(&contest.stand.dir().join(LARGE), contest.stand.large()?)?;
        let [all, chance] = fio(contest, who, mounted.dir(), false, &JOBS)?;
        forget()?;
        let [cold] = fio(contest, who, mounted.dir(), false, &[JOBS[0]])?;
        forget()?;
        let [cold_chance] = fio(contest, who, mounted.dir(), false, &[JOBS[1]])?;
        Ok([all, chance, cold, cold_chance])
    })?;
    let rows = [0, 1, 2, 3].map(|n| {
        found.row(
            n,
            ", passthrough / never",
            MountContestant::Passed,
            Some(MountContestant::Ours),
            Some(MountContestant::Direct),
        )
    });
    // The speed of the disk varies from run to run.
    report.key("passthrough_vs_direct", rows[..2].iter().filter_map(ReportRow::vs_limit).reduce(f64::min));
    report.extend(rows.into());
    Ok(())
}

/// Returns whether this kernel reads files of our mount by itself, without our process.
fn passes(contest: &MountContest) -> io::Result<bool> {
    let (mounted, size) = (contest.stand.mount(MountContestant::Passed)?, contest.stand.large()?);
    let before = mounted.has_read()?;
    read(&mounted.dir().join(LARGE), size)?;
    Ok(mounted.has_read()? - before < size / 2)
}
