//! A tree of small files at a round trip of 50 ms: latency decides.
//!
//! sftp waits for each file, so it copies a part of the tree, and its time is scaled to the whole.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use nine_sim::delay::Side;

use super::{MIDDLE, StreamingContest};
use crate::peers::{rsync, sftp};
use crate::report::{BenchReport, ReportRow};

/// Files of one directory.
const IN_DIR: u32 = 30;
/// Maximum size of a file, bytes; the mean is half of it.
const FILE_LEN_MAX: u32 = 2048;
/// More than any contestant needs.
const LIMIT: Duration = Duration::from_secs(600);

pub(super) fn measure(contest: &StreamingContest, report: &mut BenchReport) -> io::Result<()> {
    let dirs = contest.pace.of(1200, 200, 4);
    // The smaller part is for contestants that wait for each file.
    let part = contest.pace.of(5, 1, 1);
    let root = contest.served.path().join("tree");
    for dir in 0..dirs {
        let place = root.join(format!("d{dir:04}"));
        fs::create_dir_all(&place)?;
        for n in 0..IN_DIR {
            let size = (dir * IN_DIR + n).wrapping_mul(2_654_435_761) % FILE_LEN_MAX;
            fs::write(place.join(format!("file-{n:02}")), vec![n as u8; size as usize])?;
        }
    }
    contest.link(MIDDLE);
    let files = dirs * IN_DIR;
    let scale = f64::from(dirs) / f64::from(part);
    let local = contest.local.path();
    let words = vec!["-r".into(), contest.remote(&contest.ours, "tree")?, local.join("tree").into()];
    let ours = tree(contest, &contest.ours("get", words), "tree", files)?;
    let sftp = match &contest.sshd {
        Some(sshd) => {
            let mut took = 0.0;
            for dir in 0..part {
                let name = format!("d{dir:04}");
                let (from, to) = (root.join(&name), local.join(&name));
                let order = sftp::SftpCommand::GetTree(&from, &to);
                let words = sftp::sftp(contest.address(sshd)?, contest.run.path(), order)?;
                took += tree(contest, &words, &name, IN_DIR)?;
            }
            Some(took * scale)
        }
        None => None,
    };
    let rsync = match &contest.rsync {
        Some(rsync) => {
            let to = local.join("tree");
            let words = rsync::get_tree(contest.address(rsync)?, "tree", &to);
            Some(tree(contest, &words, "tree", files)?)
        }
        None => None,
    };
    fs::remove_dir_all(&root)?;
    report.notes.push(format!(
        "tree: {files} files of {} bytes in the middle; sftp copies {} of them and its time is SCALED by {scale}",
        FILE_LEN_MAX / 2,
        part * IN_DIR
    ));
    for (what, peer) in [("sftp -r, scaled", sftp), ("rsync", rsync)] {
        let row = ReportRow {
            what: format!("tree of {files} files, 50 ms: ours / {what}"),
            unit: "s",
            ours: vec![ours],
            peer: peer.into_iter().collect(),
            limit: Vec::new(),
        };
        if what.starts_with("sftp") {
            report.key("tree50_sftp_speedup", row.vs_peer().map(|ratio| 1.0 / ratio));
        }
        report.push(row);
    }
    Ok(())
}

/// Downloads a tree into the directory `name`, checks the number of files, and removes it; seconds.
fn tree(contest: &StreamingContest, words: &[OsString], name: &str, files: u32) -> io::Result<f64> {
    let took = contest.time(Side::Here, words, LIMIT)?;
    let to = contest.local.path().join(name);
    let came = count(&to)?;
    if came != files {
        return Err(io::Error::other(format!("{}: {came} files of {files} came", words[0].display())));
    }
    fs::remove_dir_all(to)?;
    Ok(took.as_secs_f64())
}

/// Counts the files below a directory.
fn count(dir: &Path) -> io::Result<u32> {
    let mut files = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        files += if entry.file_type()?.is_dir() { count(&entry.path())? } else { 1 };
    }
    Ok(files)
}
