//! Second reads, from the kernel's pages; and passthrough reads by the kernel itself.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};

use super::fio::{self, Job, fio};
use super::sweep::{Figure, sweep};
use super::{Contest, Who};
use crate::files::LARGE;
use crate::report::{Report, Row};
use crate::turns::rate;

/// Size of the file that is read twice, and of one read, bytes.
const TWICE: u64 = 256 << 20;
const PIECE: usize = 1 << 20;

/// Reads a file from end to end, closes it, opens it and reads it again.
pub(super) fn again(contest: &Contest, report: &mut Report) -> io::Result<()> {
    let size = contest.stand.large()?.min(TWICE);
    let whos = [Who::Ours, Who::Passed, Who::Served, Who::Sshfs, Who::Rclone, Who::Direct];
    let what: [Figure; 1] = [("sequential read, again", "GB/s")];
    let found = sweep(contest, report, &whos, what, |who| {
        let mounted = contest.stand.mount(who)?;
        let file = mounted.dir().join(LARGE);
        read(&file, size)?;
        Ok([read(&file, size)?])
    })?;
    report
        .notes
        .push(format!("again: {} MiB that have just been read, opened and read once more", size >> 20));
    report.key("reread_vs_direct", found.row(0, "", Who::Ours, None, Some(Who::Direct)).vs_limit());
    found.rows(report);
    report.push(found.row(0, ", passthrough", Who::Passed, None, Some(Who::Direct)));
    Ok(())
}

/// Reads the beginning of a file; GB/s.
fn read(path: &Path, size: u64) -> io::Result<f64> {
    let (file, mut piece) = (File::open(path)?, vec![0; PIECE]);
    let begun = Instant::now();
    for at in (0..size).step_by(PIECE) {
        file.read_exact_at(&mut piece, at)?;
    }
    rate(begun, size, size)
}

const JOBS: [Job; 2] =
    [Job { rw: "read", depth: 1, is_direct: false }, Job { rw: "randread", depth: 1, is_direct: false }];
const FIGURES: [Figure; 4] = [
    ("sequential read", "GB/s"),
    ("read 4 KiB by chance", "k/s"),
    ("sequential read, host cold", "GB/s"),
    ("read 4 KiB by chance, host cold", "k/s"),
];

/// Measures reads through the page cache, which has nothing of the mount. The host's cache has the
/// whole file, then nothing.
pub(super) fn passthrough(contest: &Contest, report: &mut Report) -> io::Result<()> {
    if !fio::is_there(report) {
        return Ok(());
    }
    if !passes(contest)? {
        report
            .notes
            .push("passthrough_vs_direct is na: this kernel reads no files by itself (Linux 6.9)".into());
        return Ok(());
    }
    let whos = [Who::Passed, Who::Ours, Who::Direct];
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
    let rows = [0, 1, 2, 3]
        .map(|n| found.row(n, ", passthrough / never", Who::Passed, Some(Who::Ours), Some(Who::Direct)));
    // The speed of the disk varies from run to run.
    report.key("passthrough_vs_direct", rows[..2].iter().filter_map(Row::vs_limit).reduce(f64::min));
    report.extend(rows.into());
    Ok(())
}

/// Returns whether this kernel reads files of our mount by itself, without our process.
fn passes(contest: &Contest) -> io::Result<bool> {
    let (mounted, size) = (contest.stand.mount(Who::Passed)?, contest.stand.large()?);
    let before = mounted.has_read()?;
    read(&mounted.dir().join(LARGE), size)?;
    Ok(mounted.has_read()? - before < size / 2)
}
