//! fio: large files from end to end, and 4 KiB at random offsets.
//!
//! A file is read from end to end as programs do, through the kernel's page cache, which has nothing of it. One request
//! and the read-ahead are in flight. Rows with 32 in flight, and all random ones, bypass the page cache (O_DIRECT) if
//! the files are mounted. On the directory itself the page cache is used, because the servers use it, too.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::OFlags;
use serde_json::Value;

use super::stand::WRITTEN;
use super::sweep::{FigureLabel, sweep};
use super::{MountContest, MountContestant};
use crate::files::LARGE;
use crate::peers;
use crate::report::BenchReport;

/// A job of fio.
#[derive(Clone, Copy)]
pub(super) struct FioJob {
    /// fio's name of the access pattern.
    pub rw: &'static str,
    pub depth: u32,
    /// Bypass the page cache, if the mount supports that.
    pub is_direct: bool,
}

const JOBS: [FioJob; 8] = [
    FioJob { rw: "read", depth: 1, is_direct: false },
    FioJob { rw: "read", depth: 32, is_direct: true },
    FioJob { rw: "randread", depth: 1, is_direct: true },
    FioJob { rw: "randread", depth: 32, is_direct: true },
    FioJob { rw: "write", depth: 1, is_direct: false },
    FioJob { rw: "write", depth: 32, is_direct: true },
    FioJob { rw: "randwrite", depth: 1, is_direct: true },
    FioJob { rw: "randwrite", depth: 32, is_direct: true },
];

const FIGURES: [FigureLabel; 8] = [
    ("sequential read, depth 1, page cache", "GB/s"),
    ("sequential read, depth 32", "GB/s"),
    ("read 4 KiB, depth 1", "k/s"),
    ("read 4 KiB, depth 32", "k/s"),
    ("sequential write, depth 1, page cache", "GB/s"),
    ("sequential write, depth 32", "GB/s"),
    ("write 4 KiB, depth 1", "k/s"),
    ("write 4 KiB, depth 32", "k/s"),
];

/// Returns whether fio is installed. If not, notes that.
pub(super) fn is_there(report: &mut BenchReport) -> bool {
    let found = peers::find("fio").is_some();
    if !found {
        report.notes.push("MISSING, and na what needs it: fio (Debian package fio)".into());
    }
    found
}

pub(super) fn measure(contest: &MountContest, report: &mut BenchReport) -> io::Result<()> {
    if !is_there(report) {
        return Ok(());
    }
    let (size, refused) = (contest.stand.large()?, Cell::new(None));
    let whos = [
        MountContestant::Ours,
        MountContestant::Served,
        MountContestant::Sshfs,
        MountContestant::Rclone,
        MountContestant::Direct,
    ];
    let found = sweep(contest, report, &whos, FIGURES, |who| {
        let mounted = contest.stand.mount(who)?;
        let direct = OFlags::DIRECT.bits() as i32;
        let opened = File::options().read(true).custom_flags(direct).open(mounted.dir().join(LARGE));
        if who != MountContestant::Direct && opened.is_err() {
            refused.set(Some(who));
        }
        let is_direct = refused.get().is_none() && who != MountContestant::Direct;
        fio(contest, who, mounted.dir(), is_direct, &JOBS)
    })?;
    report.notes.push(format!(
        "fio: {} MiB from end to end in pieces of 1 MiB, and 4 KiB by chance; `page cache`: through it, and it is \
         empty; all else {} where it is mounted; the directory itself with its page cache; writes go over what is \
         there, without fsync",
        size >> 20,
        match refused.get() {
            None => "by O_DIRECT".into(),
            Some(who) => format!("through the page cache, for {} refuses O_DIRECT,", who.label()),
        }
    ));
    let worse = |a: usize, b: usize| Some(found.vs_sshfs(a)?.min(found.vs_sshfs(b)?));
    report.key("seqread_vs_sshfs", worse(0, 1));
    report.key("seqwrite_vs_sshfs", worse(4, 5));
    report.key("rand4k_vs_sshfs", found.vs_sshfs(3));
    found.rows(report);
    Ok(())
}

/// Runs these jobs one after the other: GB/s of sequential jobs, thousands a second of the others. The kernel's caches
/// of a mount are empty before each job; those of a directory itself stay as they are.
pub(super) fn fio<const N: usize>(
    contest: &MountContest,
    who: MountContestant,
    dir: &Path,
    is_direct: bool,
    jobs: &[FioJob; N],
) -> io::Result<[f64; N]> {
    let mut command = Command::new(peers::find("fio").ok_or(io::ErrorKind::NotFound)?);
    command.args(["--output-format=json", "--thread", "--fallocate=none", "--allow_file_create=0"]);
    command.arg(format!("--size={}", contest.stand.large()?));
    command.arg(format!("--invalidate={}", u8::from(who != MountContestant::Direct)));
    for job in jobs {
        let (is_random, is_write) = (job.rw.starts_with("rand"), job.rw.ends_with("write"));
        let file = dir.join(if is_write { WRITTEN } else { LARGE });
        let engine = if is_direct && job.is_direct { "libaio" } else { "psync" };
        command.args(["--name=job", "--stonewall"]).arg(format!("--filename={}", file.display()));
        command.arg(format!("--rw={}", job.rw)).arg(format!("--bs={}", if is_random { "4k" } else { "1m" }));
        command.arg(format!("--ioengine={engine}")).arg(format!("--iodepth={}", job.depth));
        command.arg(format!("--direct={}", u8::from(is_direct && job.is_direct)));
        if is_random {
            command.arg("--time_based").arg(format!("--runtime={}ms", contest.pace.of(2000, 300, 20)));
        }
    }
    let out = command.stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let said = || {
        let why = text.split('{').next().unwrap_or_default();
        io::Error::other(format!("{why}{}", String::from_utf8_lossy(&out.stderr)))
    };
    if !out.status.success() {
        return Err(said());
    }
    // Skip the warnings before the JSON text.
    let json =
        text.find('{').and_then(|at| serde_json::from_str::<Value>(&text[at..]).ok()).ok_or_else(said)?;
    let figure = |(job, said_of): (&FioJob, &Value)| {
        let way = &said_of[if job.rw.ends_with("write") { "write" } else { "read" }];
        match job.rw.starts_with("rand") {
            true => way["iops"].as_f64().map(|iops| iops / 1e3),
            false => way["bw_bytes"].as_f64().map(|bytes| bytes / 1e9),
        }
    };
    let all = json["jobs"].as_array().ok_or_else(said)?;
    let figures: Option<Vec<f64>> = jobs.iter().zip(all).map(figure).collect();
    figures.and_then(|figures| figures.try_into().ok()).ok_or_else(said)
}
