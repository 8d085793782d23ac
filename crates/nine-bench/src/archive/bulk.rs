//! One large file from end to end, with our client, in messages of 1 MiB. It is on an archive, or on the disk server
//! beside it on the same file system. The limit is pread and pwrite of as many bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use nine_io::client::Writer;
use nine_proto::{NOGID, OpenFlags};

use super::serve::ArchiveShape;
use super::stand::{ArchiveTestbed, forget};
use super::{ArchiveContest, CLIENT_IO_LEN, work};
use crate::place::CpuPlacement;
use crate::report::{BenchRace, BenchReport, BenchTurn, ReportRow, interleave};
use crate::turns::{rate, read_whole};

const FILE: &str = "large";

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    let size = contest.large();
    // Use its slots once before, so that they are in the page cache. On a virtual machine the first touch of a page
    // costs more than its data.
    let ours = ArchiveTestbed::archive(ArchiveShape::of((size >> 20) * 2 + 256, (size >> 20) * 4 + 64))?;
    let disk = ArchiveTestbed::disk()?;
    let direct = disk.dir().join("direct");
    let mib = size >> 20;
    CpuPlacement::Free.arrange(&[])?;
    for _ in 0..2 {
        write_new(&ours, FILE, size)?;
    }
    let write = BenchRace {
        what: format!("sequential write and fsync, {mib} MiB, a new file"),
        unit: "GB/s",
        turns: [
            Some(Box::new(|| write_new(&ours, FILE, size)) as BenchTurn<'_>),
            Some(Box::new(|| write_new(&disk, FILE, size))),
            Some(Box::new(|| pwrite_new(&direct, size))),
        ],
    };
    let rows = interleave(contest.rounds(), contest.pace.patience(), vec![write])?;
    report.key("seqwrite_vs_disk", rows[0].vs_peer());
    report.extend(rows);
    ours.sync()?;

    let cached = |place: CpuPlacement| -> io::Result<ReportRow> {
        place.arrange(&[ours.server().pid(), disk.server().pid()])?;
        let race = BenchRace {
            what: format!("sequential read, {mib} MiB, cached, {}", place.label()),
            unit: "GB/s",
            turns: [
                Some(read_whole(&ours.server(), FILE, size)?),
                Some(read_whole(&disk.server(), FILE, size)?),
                Some(Box::new(|| pread(&direct, size))),
            ],
        };
        Ok(interleave(contest.pace.rounds(), contest.pace.patience(), vec![race])?.remove(0))
    };
    let free = cached(CpuPlacement::Free)?;
    report.key("seqread_vs_disk", free.vs_peer());
    report.push(free);
    report.push(cached(CpuPlacement::Cross)?);
    CpuPlacement::Free.arrange(&[ours.server().pid(), disk.server().pid()])?;
    report.push(memcpy(size));

    let cold = |stand: &ArchiveTestbed| -> io::Result<f64> {
        stand.cool(FILE)?;
        read_whole(&stand.server(), FILE, size)?()
    };
    let uncached = BenchRace {
        what: format!("sequential read, {mib} MiB, uncached"),
        unit: "GB/s",
        turns: [
            Some(Box::new(|| cold(&ours)) as BenchTurn<'_>),
            Some(Box::new(|| cold(&disk))),
            Some(Box::new(|| {
                forget(&direct)?;
                pread(&direct, size)
            })),
        ],
    };
    let rows = interleave(contest.rounds(), contest.pace.patience(), vec![uncached])?;
    report.key("seqread_uncached_vs_disk", rows[0].vs_peer());
    report.extend(rows);
    drop(ours);
    warm(contest, &disk, report)
}

/// Measures the same with an archive that has used all of its memory before, so that no page is touched for the first
/// time. For that, a new process reads other files, larger than its memory.
fn warm(contest: &ArchiveContest, disk: &ArchiveTestbed, report: &mut BenchReport) -> io::Result<()> {
    let size = contest.large();
    let mib = size >> 20;
    let memory = (mib / 4).max(1);
    let ours =
        ArchiveTestbed::archive(ArchiveShape { memory, ..ArchiveShape::of(mib * 3 + 256, mib * 2 + 64) })?;
    let others = ["one", "two"];
    for (name, size) in [(FILE, size), (others[0], size / 2), (others[1], size / 2)] {
        work::write(&ours.server(), name, 0, size, 1)?;
    }
    let direct = disk.dir().join("direct");
    let race = BenchRace {
        what: format!("sequential read, {mib} MiB, uncached, in a process whose {memory} MiB have been used"),
        unit: "GB/s",
        turns: [
            Some(Box::new(|| {
                ours.cool(FILE)?;
                for other in others {
                    read_whole(&ours.server(), other, size / 2)?()?;
                }
                ours.forget_pages()?;
                read_whole(&ours.server(), FILE, size)?()
            }) as BenchTurn<'_>),
            Some(Box::new(|| {
                disk.cool(FILE)?;
                read_whole(&disk.server(), FILE, size)?()
            })),
            Some(Box::new(|| {
                forget(&direct)?;
                pread(&direct, size)
            })),
        ],
    };
    let rows = interleave(contest.rounds(), contest.pace.patience(), vec![race])?;
    report.key("seqread_uncached_warm_vs_disk", rows[0].vs_peer());
    report.extend(rows);
    Ok(())
}

/// Writes a new file, up to the end of an fsync; GB/s.
pub(super) fn write_new(stand: &ArchiveTestbed, name: &str, size: u64) -> io::Result<f64> {
    let (client, root) = stand.server().client()?;
    // Fails the first time, when there is no file.
    let _ = root.unlink(name, false);
    stand.sync()?;
    let piece = Bytes::from(super::pattern(CLIENT_IO_LEN, size));
    let begun = Instant::now();
    let file = root.create(name, OpenFlags::WRITE, 0o644, NOGID)?;
    let written = client.wait(async {
        let mut writer = Writer::new(file.file(), 0);
        for _ in 0..size / CLIENT_IO_LEN as u64 {
            writer.push(piece.clone()).await?;
        }
        writer.finish().await?;
        file.file().fsync(false).await?;
        Ok::<_, io::Error>(writer.written())
    })?;
    rate(begun, written, size)
}

fn pwrite_new(path: &Path, size: u64) -> io::Result<f64> {
    let _ = std::fs::remove_file(path);
    let piece = super::pattern(CLIENT_IO_LEN, size);
    let begun = Instant::now();
    let file = File::create(path)?;
    for at in (0..size).step_by(CLIENT_IO_LEN) {
        file.write_all_at(&piece, at)?;
    }
    file.sync_all()?;
    rate(begun, size, size)
}

fn pread(path: &Path, size: u64) -> io::Result<f64> {
    let (file, mut buf) = (File::open(path)?, vec![0; CLIENT_IO_LEN]);
    let begun = Instant::now();
    for at in (0..size).step_by(CLIENT_IO_LEN) {
        file.read_exact_at(&mut buf, at)?;
    }
    rate(begun, size, size)
}

fn memcpy(size: u64) -> ReportRow {
    let (from, mut to) = (vec![1u8; CLIENT_IO_LEN], vec![0u8; CLIENT_IO_LEN]);
    let mut turn = || {
        let begun = Instant::now();
        for _ in 0..size / CLIENT_IO_LEN as u64 {
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
        }
        size as f64 / begun.elapsed().as_secs_f64() / 1e9
    };
    let limit = (0..5).map(|_| turn()).collect();
    ReportRow { what: "memcpy, pieces of 256 KiB".into(), unit: "GB/s", limit, ..ReportRow::default() }
}
