//! Many small files. Each is created, written and closed; then each is removed. 32 are in flight on one connection, as
//! from a client under tar. There is one sync at the end. The limit is the same by system calls of one thread.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use nine_proto::msg::{Data, Names, Tmsg};
use nine_proto::{Fid, OpenFlags, Tag};
use rustix::fs::syncfs;
use rustix::process::getegid;

use super::ArchiveContest;
use super::serve::ArchiveShape;
use super::stand::ArchiveTestbed;
use crate::files::file_name;
use crate::place::CpuPlacement;
use crate::report::{BenchReport, ReportRow};
use crate::wire::{CycleLoad, LeanConnection, MessageCycle, encoded};

/// Files in flight at a time, each in a separate directory with its predecessors and successors.
const DEPTH: u16 = 32;
/// Size of a file, bytes.
const FILE_LEN: usize = 1024;
/// First fids of the directories, and of new files.
const DIRS: u32 = 100;
const FILES: u32 = 1000;

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    let each = contest.pace.of(1_000_000, 20_000, 640) / u32::from(DEPTH);
    let count = each * u32::from(DEPTH);
    // A small file occupies no block of its own.
    let mib = u64::from(count) / 100 + 256;
    let (ours, disk) = (ArchiveTestbed::archive(ArchiveShape::of(mib, mib))?, ArchiveTestbed::disk()?);
    CpuPlacement::Free.arrange(&[])?;
    let direct = disk.dir().join("direct");
    let row = |what| ReportRow {
        what: format!("{what} {count} files of 1 KiB"),
        unit: "k/s",
        ..ReportRow::default()
    };
    let mut rows =
        ["create, sync:", "create, before the sync:", "remove, sync:", "remove, before the sync:"].map(row);
    let begun = Instant::now();
    for round in 0..=contest.pace.of(3, 5, 1) {
        if round > 1 && begun.elapsed() > contest.pace.patience() {
            eprintln!("  {} rounds: more take too long", round - 1);
            break;
        }
        // The first round is a warm-up, so it is shorter.
        let each = if round == 0 { each.div_ceil(10) } else { each };
        let mut figures = Vec::new();
        for stand in [&ours, &disk] {
            syncfs(File::open(stand.dir())?)?;
            make_dirs(stand)?;
            let [made, removed] = [FileAction::Make, FileAction::Remove]
                .map(|what| timed(each, || work(stand, what, each), || stand.sync()));
            figures.push([made?, removed?].concat());
            remove_dirs(stand)?;
        }
        let sync = || Ok(syncfs(File::open(disk.dir())?)?);
        sync()?;
        let made = timed(each, || make(&direct, each), sync)?;
        figures.push([made, timed(each, || remove(&direct, each), sync)?].concat());
        if round > 0 {
            for (i, row) in rows.iter_mut().enumerate() {
                row.ours.push(figures[0][i]);
                row.peer.push(figures[1][i]);
                row.limit.push(figures[2][i]);
            }
        }
    }
    report.key("create_vs_disk", rows[0].vs_peer());
    report.key("remove_vs_disk", rows[2].vs_peer());
    report.extend(rows.into());
    Ok(())
}

/// Returns thousands of files per second, with the sync and without it.
fn timed(
    each: u32,
    work: impl FnOnce() -> io::Result<()>,
    sync: impl FnOnce() -> io::Result<()>,
) -> io::Result<Vec<f64>> {
    let (begun, count) = (Instant::now(), f64::from(each * u32::from(DEPTH)) / 1e3);
    work()?;
    let before = begun.elapsed();
    sync()?;
    Ok([begun.elapsed(), before].map(|time| count / time.as_secs_f64()).into())
}

#[derive(Clone, Copy, PartialEq)]
enum FileAction {
    Make,
    Remove,
}

/// The sequence of files of one of the parallel operations.
struct FileSequence {
    what: FileAction,
    tag: Tag,
    each: u32,
    data: Vec<u8>,
}

impl MessageCycle for FileSequence {
    fn put(&mut self, n: usize, out: &mut Vec<u8>) -> bool {
        let (dir, fid) = (Fid(DIRS + u32::from(self.tag.0)), Fid(FILES + u32::from(self.tag.0)));
        let (file, step) = match self.what {
            FileAction::Make => (n as u32 / 4, n % 4),
            FileAction::Remove => (n as u32, 4),
        };
        if file >= self.each {
            return false;
        }
        let name = file_name(file);
        let message = match step {
            0 => Tmsg::Walk { fid: dir, newfid: fid, names: Names::Slice(&[]) },
            1 => Tmsg::Lcreate {
                fid,
                name: name.as_bytes(),
                flags: OpenFlags::WRITE.to_wire(),
                mode: 0o644,
                gid: getegid().as_raw(),
            },
            2 => Tmsg::Write { fid, offset: 0, data: Data::Bytes(&self.data) },
            3 => Tmsg::Clunk { fid },
            _ => Tmsg::Unlinkat { dirfid: dir, name: name.as_bytes(), flags: 0 },
        };
        out.extend_from_slice(&encoded(&message, self.tag));
        true
    }
}

/// Processes all files of all directories.
fn work(stand: &ArchiveTestbed, what: FileAction, each: u32) -> io::Result<()> {
    let conn = on_dirs(stand)?;
    let data = super::pattern(FILE_LEN, each.into());
    CycleLoad::new(vec![conn], DEPTH, |_, tag| FileSequence { what, tag, each, data: data.clone() })?
        .run(std::time::Duration::ZERO)?;
    Ok(())
}

fn dir_name(n: u16) -> String {
    format!("dir{n}")
}

fn make_dirs(stand: &ArchiveTestbed) -> io::Result<()> {
    let mut conn = stand.server().dial()?;
    for n in 0..DEPTH {
        let name = dir_name(n);
        let gid = getegid().as_raw();
        conn.call(&Tmsg::Mkdir { dfid: Fid(0), name: name.as_bytes(), mode: 0o755, gid })?;
    }
    Ok(())
}

fn remove_dirs(stand: &ArchiveTestbed) -> io::Result<()> {
    let mut conn = stand.server().dial()?;
    for n in 0..DEPTH {
        let name = dir_name(n);
        conn.call(&Tmsg::Unlinkat { dirfid: Fid(0), name: name.as_bytes(), flags: AT_REMOVEDIR })?;
    }
    Ok(())
}

/// Opens a connection with a fid on each directory.
fn on_dirs(stand: &ArchiveTestbed) -> io::Result<LeanConnection> {
    let mut conn = stand.server().dial()?;
    for n in 0..DEPTH {
        conn.walk(Fid(0), Fid(DIRS + u32::from(n)), dir_name(n).as_bytes())?;
    }
    Ok(conn)
}

fn make(dir: &Path, each: u32) -> io::Result<()> {
    let data = super::pattern(FILE_LEN, each.into());
    for n in 0..DEPTH {
        std::fs::create_dir_all(dir.join(dir_name(n)))?;
    }
    for file in 0..each {
        for n in 0..DEPTH {
            File::create(dir.join(dir_name(n)).join(file_name(file)))?.write_all(&data)?;
        }
    }
    Ok(())
}

fn remove(dir: &Path, each: u32) -> io::Result<()> {
    for file in 0..each {
        for n in 0..DEPTH {
            std::fs::remove_file(dir.join(dir_name(n)).join(file_name(file)))?;
        }
    }
    Ok(())
}

const AT_REMOVEDIR: u32 = 0x200;
