//! `mount`: a directory mounted by our command (FUSE), beside sshfs and rclone on the same machine, and beside the
//! directory itself.
//!
//! In: one directory of files, and the programs that mount it. Each mounts it anew for its turn, so that its kernel
//! caches are empty and no other contestant runs meanwhile. Out: rows and keys, each from the file that measures it.

mod fio;
mod reads;
mod stand;
mod sweep;
mod tree;

use std::io;

use crate::args::BenchPace;
use crate::parts::{ExperimentPart, chosen};
use crate::peers;
use crate::report::BenchReport;
use crate::{BenchExperiment, place};

use stand::{MountContestant, MountTestbed};

pub const EXPERIMENT: BenchExperiment = BenchExperiment {
    name: "mount",
    what: "our FUSE mount of a directory beside sshfs, rclone and the directory itself: fio, trees, git, page cache",
    run,
};

const PARTS: [ExperimentPart<MountContest>; 4] = [
    ("fio", fio::measure),
    ("tree", tree::measure),
    ("reread", reads::again),
    ("passthrough", reads::passthrough),
];

const KEYS: [&str; 7] = [
    "seqread_vs_sshfs",
    "seqwrite_vs_sshfs",
    "rand4k_vs_sshfs",
    "untar_sshfs_speedup",
    "gitstatus_sshfs_speedup",
    "reread_vs_direct",
    "passthrough_vs_direct",
];

/// Keys, programs and packages of the peers with versions to report.
const PEERS: [(&str, &str, &str); 4] = [
    ("sshfs", "sshfs", "sshfs"),
    ("rclone", "rclone", "rclone"),
    ("fio", "fio", "fio"),
    ("openssh", "sshd", "openssh-server"),
];

struct MountContest {
    pace: BenchPace,
    stand: MountTestbed,
}

impl MountContest {
    /// Returns the number of rounds of long measurements.
    fn rounds(&self) -> usize {
        self.pace.of(9, 3, 1)
    }
}

fn run(pace: BenchPace, only: Option<&str>) -> io::Result<BenchReport> {
    let parts = chosen(&PARTS, only)?;
    let mut report = BenchReport::default();
    match stand::apart() {
        Ok(()) => measure(&MountContest { pace, stand: MountTestbed::new(pace)? }, &parts, &mut report)?,
        Err(why) => report.notes.push(format!(
            "MISSING: mounts of one's own, for which one must be root ({why}): all keys are na"
        )),
    }
    report.order(&KEYS);
    report.keys.push(("rounds", pace.of(9, 3, 1).to_string()));
    for (key, program, package) in PEERS {
        report.keys.push((key, peers::version(program, package).unwrap_or("na".into())));
    }
    Ok(report)
}

fn measure(
    contest: &MountContest,
    parts: &[ExperimentPart<MountContest>],
    report: &mut BenchReport,
) -> io::Result<()> {
    eprintln!("  the servers run");
    report.notes.push(format!(
        "{} processors, free; each is mounted anew for its turn, so that its kernel caches are empty; the files are in \
         the page cache of the host",
        place::count()
    ));
    report.notes.push(
        "ours: `ninefold mount disk:DIR`, server and all in one process, without passthrough; `by TCP`: a server of \
         its own at a port of the loopback, not encrypted"
            .into(),
    );
    report.notes.push(
        "peer: sshfs with its own defaults to sshd on the loopback (a process each, encrypted); rclone, of its sftp \
         backend to the same sshd, with --vfs-cache-mode writes and no upload yet: what it writes is in its own cache"
            .into(),
    );
    report.notes.push("limit: the directory itself".into());
    for who in [MountContestant::Sshfs, MountContestant::Rclone] {
        if let Err(why) = contest.stand.attend(who) {
            report.notes.push(format!("MISSING, and na what needs it: {}: {why}", who.label()));
        }
    }
    for (name, measure) in parts {
        let begun = std::time::Instant::now();
        measure(contest, report)?;
        eprintln!("  {name}: {:.0} s", begun.elapsed().as_secs_f64());
    }
    Ok(())
}
