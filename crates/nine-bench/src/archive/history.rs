//! Dumps beside backups of the same tree by restic, to a repository on the same file system, and beside snapshots of
//! btrfs. Measures the times until a dump can be browsed and until it is copied, and its size. Then the read of a file
//! of an old date, and the time to verify everything.

use std::fs::File;
use std::io;
use std::time::Instant;

use nine_proto::OpenFlags;

use super::ArchiveContest;
use super::serve::ArchiveShape;
use super::stand::ArchiveTestbed;
use super::{pattern, work};
use crate::files::file_name;
use crate::peers::btrfs::BtrfsVolume;
use crate::peers::restic::ResticRepository;
use crate::place::CpuPlacement;
use crate::report::{BenchReport, ReportRow};
use crate::scratch::ScratchDir;
use crate::stats::median;

const SIZE: u64 = 100_000;

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    CpuPlacement::Free.arrange(&[])?;
    let files: u32 = contest.pace.of(100_000, 2_048, 32);
    let mib = (u64::from(files) * SIZE) >> 20;
    let stand = ArchiveTestbed::archive(ArchiveShape::of(mib * 2 + 256, mib * 2 + 1024))?;
    let (plain, run) = (ScratchDir::new()?, ScratchDir::new()?);
    let restic = ResticRepository::new(run.path())?;
    let volume = BtrfsVolume::new(run.path(), mib * 2 + 1024)?;
    if let Err(why) = &volume {
        report.notes.push(format!("peer of dumps: btrfs is MISSING: {why}"));
    }
    let volume = volume.ok();
    let tree = volume.as_ref().map_or_else(|| plain.path().to_owned(), BtrfsVolume::tree);
    let what = format!("{mib} MiB in {files} files");
    let row = |what: String, unit| ReportRow { what, unit, ..ReportRow::default() };
    let mut kept = ["", ", a hundredth changed"].map(|changed| {
        ["browse / restic", "copied / restic", "browse / btrfs, a snapshot"]
            .map(|to| row(format!("dump of {what}{changed}, {to}"), "s"))
    });
    let mut old = row(format!("{what}: one of them as it was at the first date / restic"), "ms");
    let rounds = contest.pace.of(3, 3, 1);
    for round in 0..=rounds {
        let changed = (0..files).filter(|n| round == 0 || n % 100 == round);
        for n in changed.clone() {
            let bytes = pattern(SIZE as usize, u64::from(n) << 8 | u64::from(round));
            std::fs::write(tree.join(file_name(n)), bytes)?;
        }
        work::write_files(&stand.server(), changed, SIZE, round.into())?;
        stand.sync()?;
        rustix::fs::syncfs(File::open(&tree)?)?;
        let begun = Instant::now();
        stand.tell("dump")?;
        let browse = begun.elapsed().as_secs_f64();
        work::copied(&stand)?;
        let copied = begun.elapsed().as_secs_f64();
        work::settled(&stand)?;
        let name = format!("round{round}");
        let backup = restic.as_ref().map(|restic| restic.backup(&tree, &name)).transpose()?;
        let snapshot = volume.as_ref().map(|volume| volume.snapshot(&name)).transpose()?;
        let rows = &mut kept[usize::from(round > 0)];
        let figures = [(browse, backup), (copied, backup), (browse, snapshot)];
        for (row, (ours, theirs)) in rows.iter_mut().zip(figures) {
            row.ours.push(ours);
            row.peer.extend(theirs);
        }
        let file = file_name(files / 2 + round);
        old.ours.push(first_dump(&stand, &file)? * 1e3);
        let theirs = restic.as_ref().map(|restic| restic.read(&tree.join(&file), "round0")).transpose()?;
        old.peer.extend(theirs.map(|seconds| seconds * 1e3));
    }
    let mut stored = row(format!("{what}, and {rounds} times a hundredth of them: stored / restic"), "MiB");
    stored.ours.push(written(&stand)?);
    let theirs = restic.as_ref().map(ResticRepository::stored).transpose()?;
    stored.peer.extend(theirs.map(|bytes| bytes as f64 / f64::from(1 << 20)));
    stored.limit.push((mib + mib * u64::from(rounds) / 100) as f64);
    let mut verified = row("all of it is verified / restic".into(), "s");
    let begun = Instant::now();
    stand.tell("scrub wait")?;
    verified.ours.push(begun.elapsed().as_secs_f64());
    verified.peer.extend(restic.as_ref().map(ResticRepository::check).transpose()?);
    let speedup = |row: &ReportRow| {
        median(&row.ours.iter().zip(&row.peer).map(|(ours, theirs)| theirs / ours).collect::<Vec<_>>())
    };
    report.key("dump_restic_speedup", speedup(&kept[1][0]));
    report.key("dump_copied_restic_speedup", speedup(&kept[1][1]));
    report.extend(kept.into_iter().flatten().filter(|row| !row.peer.is_empty()).collect());
    report.extend(vec![old, stored, verified]);
    Ok(())
}

/// Reads a file of the first dump with a new client; seconds.
fn first_dump(stand: &ArchiveTestbed, file: &str) -> io::Result<f64> {
    let dumps = stand.ask("dumps")?;
    let first = dumps.split(' ').next().unwrap_or_default();
    let begun = Instant::now();
    let (_client, root) = stand.server().client_to("dump")?;
    let file = root.open(format!("{first}/{file}"), OpenFlags::READ)?;
    let mut read = 0;
    while read < SIZE {
        let more = file.read(read, 1 << 20)?.len() as u64;
        if more == 0 {
            return Err(io::Error::other("a file of a dump is shorter than it was"));
        }
        read += more;
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Returns the written part of the worm, MiB.
fn written(stand: &ArchiveTestbed) -> io::Result<f64> {
    let stats = stand.ask("stats")?;
    let of = |name: &str| {
        let words = stats.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        words.filter(|words| words.first() == Some(&name)).find_map(|words| words.get(1)?.parse::<f64>().ok())
    };
    match (of("worm_written_blocks"), of("block_bytes")) {
        (Some(blocks), Some(bytes)) => Ok(blocks * bytes / f64::from(1 << 20)),
        _ => Err(io::Error::other("the archive does not say how much is written")),
    }
}
