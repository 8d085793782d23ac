//! Unpacks a source tree like tar: one client, one request at a time, directories before their content. Each file is
//! created, written, given its times and clunked; one sync at the end. Then the tree is read, as tar would to pack it.
//! The limit is the same by system calls.

use std::fs::{File, FileTimes};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use nine_proto::msg::{Data, Tmsg};
use nine_proto::{Fid, GetMask, OpenFlags, SetMask, Tag, Time};
use rustix::fs::syncfs;
use rustix::process::getegid;

use super::serve::ArchiveShape;
use super::stand::ArchiveTestbed;
use super::work::SeededRandom;
use super::{ArchiveContest, pattern};
use crate::files::file_name;
use crate::place::CpuPlacement;
use crate::report::{BenchReport, ReportRow};
use crate::wire::{LeanConnection, encoded};

/// Name of the tree in the root.
const TREE: &str = "tree";
/// Mean number of files in a directory, and the maximum depth of directories.
const EACH: u64 = 15;
const DEEPEST: usize = 8;
/// Minimum, median and maximum size of files, bytes.
const SIZES: [f64; 3] = [200.0, 5000.0, 200.0 * 1024.0];
/// The times of all files, seconds.
const WHEN: i64 = 1_700_000_000;
/// Fids: of a file, of a directory being read, and the first one of the directories on the path.
const FILE: Fid = Fid(1);
const READ: Fid = Fid(2);
const DIRS: u32 = 10;
const AT_REMOVEDIR: u32 = 0x200;

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    let tree = tree(contest.pace.of(70_000, 3000, 60));
    let count: usize = tree.iter().map(|dir| dir.sizes.len()).sum();
    let bytes: u64 = tree.iter().flat_map(|dir| &dir.sizes).map(|size| *size as u64).sum();
    let mib = (bytes >> 20) + 1;
    let (ours, disk) =
        (ArchiveTestbed::archive(ArchiveShape::of(mib * 3 + 256, mib * 2 + 256))?, ArchiveTestbed::disk()?);
    CpuPlacement::Free.arrange(&[])?;
    let direct = disk.dir().join("direct");
    std::fs::create_dir(&direct)?;
    let whole = format!("{count} files in {} directories, {mib} MiB", tree.len());
    let row = |what| ReportRow { what: format!("{what} {whole}"), unit: "k/s", ..ReportRow::default() };
    let mut rows = ["unpack, sync:", "unpack, before the sync:", "read back:"].map(row);
    let data = pattern(SIZES[2] as usize, 17);
    let begun = Instant::now();
    for round in 0..=contest.pace.of(3, 3, 1) {
        if round > 1 && begun.elapsed() > contest.pace.patience() {
            eprintln!("  {} rounds: more take too long", round - 1);
            break;
        }
        let mut figures = Vec::new();
        for stand in [&ours, &disk] {
            syncfs(File::open(stand.dir())?)?;
            let mut conn = stand.server().dial()?;
            let unpacked = timed(|| unpack(&mut conn, &tree, &data), || stand.sync())?;
            let read = timed(|| pack(&mut conn, &tree), || Ok(()))?;
            figures.push([unpacked[0], unpacked[1], read[0]]);
            remove(conn, &tree)?;
        }
        let sync = || Ok(syncfs(File::open(disk.dir())?)?);
        sync()?;
        let unpacked = timed(|| unpack_here(&direct, &tree, &data), sync)?;
        let read = timed(|| pack_here(&direct, &tree), || Ok(()))?;
        figures.push([unpacked[0], unpacked[1], read[0]]);
        std::fs::remove_dir_all(direct.join(TREE))?;
        // The first round is a warm-up.
        if round > 0 {
            for (i, row) in rows.iter_mut().enumerate() {
                let all = [&mut row.ours, &mut row.peer, &mut row.limit];
                all.into_iter()
                    .zip(&figures)
                    .for_each(|(all, figures)| all.push(count as f64 / figures[i] / 1e3));
            }
        }
    }
    report.key("unpack_vs_disk", rows[0].vs_peer());
    report.extend(rows.into());
    Ok(())
}

/// Returns the seconds with the sync, and without it.
fn timed(
    work: impl FnOnce() -> io::Result<()>,
    sync: impl FnOnce() -> io::Result<()>,
) -> io::Result<[f64; 2]> {
    let begun = Instant::now();
    work()?;
    let before = begun.elapsed();
    sync()?;
    Ok([begun.elapsed(), before].map(|time| time.as_secs_f64()))
}

/// A directory, and the sizes of its files.
struct SourceDir {
    /// Names from the root; the last one is the directory's own.
    path: Vec<String>,
    sizes: Vec<usize>,
}

impl SourceDir {
    fn name(&self) -> &str {
        self.path.last().expect("none is the root")
    }

    /// Returns its fid, and that of its parent.
    fn fids(&self) -> (Fid, Fid) {
        let deep = self.path.len() as u32;
        let above = if deep == 1 { 0 } else { DIRS + deep - 1 };
        (Fid(DIRS + deep), Fid(above))
    }
}

/// Returns the tree, the same each time: about `files` files, each directory before its content.
fn tree(files: u64) -> Vec<SourceDir> {
    let (mut chance, mut left) = (SeededRandom::new(23), files);
    let mut dirs = vec![SourceDir { path: vec![TREE.into()], sizes: Vec::new() }];
    while left > 0 {
        let deep = dirs[dirs.len() - 1].path.len();
        // Place it beside, in or above the last directory, preferring depth.
        let to = (0..2).map(|_| 1 + chance.below(deep as u64) as usize).max().unwrap_or(1).min(DEEPEST - 1);
        let mut path = dirs[dirs.len() - 1].path[..to].to_vec();
        path.push(format!("dir{}", dirs.len()));
        let count = (1 + chance.below(2 * EACH - 1)).min(left);
        left -= count;
        dirs.push(SourceDir { path, sizes: (0..count).map(|_| size(&mut chance)).collect() });
    }
    dirs
}

/// Returns a random size. The logarithm of a source file's size is about normally distributed.
fn size(chance: &mut SeededRandom) -> usize {
    let normal = (0..12).map(|_| chance.below(1 << 20) as f64 / f64::from(1 << 20)).sum::<f64>() - 6.0;
    (SIZES[1] * (1.45 * normal).exp()).clamp(SIZES[0], SIZES[2]) as usize
}

/// Creates such a tree of about `files` files in this directory, with the name `tree`.
pub fn source(root: &Path, files: u64) -> io::Result<()> {
    unpack_here(root, &tree(files), &pattern(SIZES[2] as usize, 17))
}

fn unpack(conn: &mut LeanConnection, tree: &[SourceDir], data: &[u8]) -> io::Result<()> {
    let gid = getegid().as_raw();
    let mut deep = 0;
    for dir in tree {
        let (fid, above) = dir.fids();
        leave(conn, dir.path.len(), deep)?;
        deep = dir.path.len();
        conn.call(&Tmsg::Mkdir { dfid: above, name: dir.name().as_bytes(), mode: 0o755, gid })?;
        conn.walk(above, fid, dir.name().as_bytes())?;
        for (n, &size) in dir.sizes.iter().enumerate() {
            let (name, flags) = (file_name(n as u32), OpenFlags::WRITE.to_wire());
            conn.walk(fid, FILE, b"")?;
            conn.call(&Tmsg::Lcreate { fid: FILE, name: name.as_bytes(), flags, mode: 0o644, gid })?;
            conn.call(&Tmsg::Write { fid: FILE, offset: 0, data: Data::Bytes(&data[..size]) })?;
            conn.call(&dated(FILE))?;
            conn.call(&Tmsg::Clunk { fid: FILE })?;
        }
    }
    leave(conn, 1, deep)
}

/// Sets the times of completed directories, from the last one of the path up to `from`, and clunks them.
fn leave(conn: &mut LeanConnection, from: usize, to: usize) -> io::Result<()> {
    for deep in (from..=to).rev() {
        let fid = Fid(DIRS + deep as u32);
        conn.call(&dated(fid))?;
        conn.call(&Tmsg::Clunk { fid })?;
    }
    Ok(())
}

fn dated(fid: Fid) -> Tmsg<'static> {
    let valid = SetMask::ATIME | SetMask::ATIME_SET | SetMask::MTIME | SetMask::MTIME_SET;
    let when = Time { sec: WHEN, nsec: 0 };
    Tmsg::Setattr { fid, valid, mode: 0, uid: 0, gid: 0, size: 0, atime: when, mtime: when }
}

fn pack(conn: &mut LeanConnection, tree: &[SourceDir]) -> io::Result<()> {
    let (flags, mask) = (OpenFlags::READ.to_wire(), GetMask::BASIC.0);
    for dir in tree {
        let (fid, _) = dir.fids();
        let path: Vec<&str> = dir.path.iter().map(String::as_str).collect();
        conn.walk_path(fid, &path)?;
        conn.call(&Tmsg::Getattr { fid, mask })?;
        conn.walk(fid, READ, b"")?;
        conn.call(&Tmsg::Lopen { fid: READ, flags })?;
        conn.call(&Tmsg::Readdir { fid: READ, offset: 0, count: 64 << 10 })?;
        conn.call(&Tmsg::Clunk { fid: READ })?;
        for (n, &size) in dir.sizes.iter().enumerate() {
            conn.walk(fid, FILE, file_name(n as u32).as_bytes())?;
            conn.call(&Tmsg::Getattr { fid: FILE, mask })?;
            conn.call(&Tmsg::Lopen { fid: FILE, flags })?;
            let read = conn.read(FILE, 0, size as u32)?;
            if read != size {
                return Err(io::Error::other(format!("{read} bytes of {size} were read")));
            }
            conn.call(&Tmsg::Clunk { fid: FILE })?;
        }
        conn.call(&Tmsg::Clunk { fid })?;
    }
    Ok(())
}

/// Removes the directories, the last one first, each with its content, many files at a time.
fn remove(mut conn: LeanConnection, tree: &[SourceDir]) -> io::Result<()> {
    for dir in tree.iter().rev() {
        let path: Vec<&str> = dir.path.iter().map(String::as_str).collect();
        let unlink = |n: usize| {
            let name = file_name(n as u32);
            encoded(&Tmsg::Unlinkat { dirfid: FILE, name: name.as_bytes(), flags: 0 }, Tag(n as u16))
        };
        conn.walk_path(FILE, &path)?;
        conn = conn.call_all((0..dir.sizes.len()).map(unlink))?;
        conn.call(&Tmsg::Clunk { fid: FILE })?;
        conn.walk_path(FILE, &path[..path.len() - 1])?;
        let name = dir.name().as_bytes();
        conn.call(&Tmsg::Unlinkat { dirfid: FILE, name, flags: AT_REMOVEDIR })?;
        conn.call(&Tmsg::Clunk { fid: FILE })?;
    }
    Ok(())
}

fn unpack_here(root: &Path, tree: &[SourceDir], data: &[u8]) -> io::Result<()> {
    let when = SystemTime::UNIX_EPOCH + Duration::from_secs(WHEN as u64);
    let when = FileTimes::new().set_accessed(when).set_modified(when);
    for dir in tree {
        let path = root.join(dir.path.join("/"));
        std::fs::create_dir(&path)?;
        for (n, &size) in dir.sizes.iter().enumerate() {
            let mut file = File::create_new(path.join(file_name(n as u32)))?;
            file.write_all(&data[..size])?;
            file.set_times(when)?;
        }
    }
    tree.iter().try_for_each(|dir| File::open(root.join(dir.path.join("/")))?.set_times(when))
}

fn pack_here(root: &Path, tree: &[SourceDir]) -> io::Result<()> {
    let mut data = Vec::new();
    for dir in tree {
        let path = root.join(dir.path.join("/"));
        std::fs::metadata(&path)?;
        std::fs::read_dir(&path)?.try_for_each(|entry| entry.map(drop))?;
        for n in 0..dir.sizes.len() {
            let mut file = File::open(path.join(file_name(n as u32)))?;
            file.metadata()?;
            data.clear();
            file.read_to_end(&mut data)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_tree_has_each_directory_before_what_is_in_it_and_small_files() {
        let tree = tree(3000);
        let mut sizes: Vec<usize> = tree.iter().flat_map(|dir| dir.sizes.clone()).collect();
        sizes.sort_unstable();
        assert_eq!(sizes.len(), 3000);
        assert!(
            (4000..6500).contains(&sizes[1500])
                && (9000..20_000).contains(&(sizes.iter().sum::<usize>() / 3000))
        );
        for (n, dir) in tree.iter().enumerate() {
            let above = &dir.path[..dir.path.len() - 1];
            assert!(above.is_empty() || tree[..n].iter().any(|dir| dir.path == above), "{:?}", dir.path);
            assert!(dir.path.len() <= DEEPEST);
        }
        assert!(tree.iter().any(|dir| dir.path.len() > 4));
    }
}
