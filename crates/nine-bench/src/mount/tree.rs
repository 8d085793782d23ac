//! A source tree, processed by common programs: tar, git, rm.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::sweep::{FigureLabel, sweep};
use super::{MountContest, MountContestant};
use crate::report::BenchReport;
use crate::{archive, peers};

/// Name of the tree, and of the tree to remove.
const TREE: &str = "tree";
const OLD: &str = "old";

const FIGURES: [FigureLabel; 4] = [
    ("tar x", "s"),
    ("git status, nothing cached", "s"),
    ("git status, again", "s"),
    ("tar c, nothing cached", "s"),
];

pub(super) fn measure(contest: &MountContest, report: &mut BenchReport) -> io::Result<()> {
    let (stand, files) = (&contest.stand, contest.pace.of(3000, 1000, 60));
    let (dir, packed) = (stand.dir(), stand.run.path().join("tree.tar"));
    archive::source(dir, files)?;
    tar(&["-cf".as_ref(), &packed, "-C".as_ref(), dir, TREE.as_ref()])?;
    let has_git = peers::find("git").is_some();
    if has_git {
        for words in [&["init", "-q", "--template="][..], &["add", "-A"]] {
            git(&dir.join(TREE), words)?;
        }
    } else {
        report.notes.push("MISSING, and na what needs it: git (Debian package git)".into());
    }
    let unpack = |to: &Path| tar(&["-xf".as_ref(), &packed, "--no-same-owner".as_ref(), "-C".as_ref(), to]);
    let whos = [
        MountContestant::Ours,
        MountContestant::Served,
        MountContestant::Sshfs,
        MountContestant::Rclone,
        MountContestant::Direct,
    ];
    // Remove nothing before the end: after removals, ext4 searches for free inode numbers for
    // minutes.
    let mut count = 0;
    let found = sweep(contest, report, &whos, FIGURES, |who| {
        count += 1;
        let new = format!("new{count}");
        std::fs::create_dir(dir.join(&new))?;
        let mounted = stand.mount(who)?;
        let unpacked = unpack(&mounted.dir().join(&new))?;
        drop(mounted);
        let mounted = stand.mount(who)?;
        let status = || if has_git { git(&mounted.dir().join(TREE), &["status"]) } else { Ok(f64::NAN) };
        let (first, again) = (status()?, status()?);
        drop(mounted);
        let mounted = stand.mount(who)?;
        // Use a pipe: tar does not even read files if its output is /dev/null.
        let script = "tar -c --exclude=./.git -C \"$0\" . | cat > /dev/null";
        let read = timed(Command::new("sh").args(["-c", script]).arg(mounted.dir().join(TREE)))?;
        Ok([unpacked, first, again, read])
    })?;
    let removed = sweep(contest, report, &whos, [("rm -r", "s")], |who| {
        let old = dir.join(OLD);
        std::fs::create_dir_all(&old)?;
        unpack(&old)?;
        let mounted = stand.mount(who)?;
        Ok([timed(Command::new("rm").arg("-r").arg(mounted.dir().join(OLD)))?])
    })?;
    report.notes.push(format!(
        "tree: {files} files in some directories, half of them up to 5 KiB; unpacked without owners; git init and git \
         add, no commit; git compares lengths and times (core.checkStat=minimal), for sshfs has other inode numbers \
         each time; `again` follows at once"
    ));
    let speedup = |n| found.vs_sshfs(n).map(|ratio| 1.0 / ratio).filter(|ratio| ratio.is_finite());
    report.key("untar_sshfs_speedup", speedup(0));
    report.key("gitstatus_sshfs_speedup", speedup(1));
    found.rows(report);
    removed.rows(report);
    Ok(())
}

fn tar(words: &[&Path]) -> io::Result<f64> {
    timed(Command::new("tar").args(words))
}

/// Runs git without user configuration; seconds.
fn git(dir: &Path, words: &[&str]) -> io::Result<f64> {
    let mut command = Command::new("git");
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").arg("-C").arg(dir);
    command.args(["-c", "core.checkStat=minimal", "-c", "core.trustctime=false", "-c", "core.compression=0"]);
    timed(command.args(words))
}

/// Runs a command; seconds.
fn timed(command: &mut Command) -> io::Result<f64> {
    let begun = Instant::now();
    let out = command.stdin(Stdio::null()).stdout(Stdio::null()).output()?;
    let took = begun.elapsed().as_secs_f64();
    match out.status.success() {
        true => Ok(took),
        false => {
            Err(io::Error::other(format!("{command:?}: {}", String::from_utf8_lossy(&out.stderr).trim())))
        }
    }
}
