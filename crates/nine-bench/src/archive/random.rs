//! Random offsets of a large file, with eight operations in flight on one connection. The operations are reads of 4 and
//! of 64 KiB, cached and uncached, and writes of 4 KiB up to the end of an fsync. The limit is pread and pwrite by one
//! thread at the same offsets.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nine_proto::{OpenFlags, Tag};

use super::serve::ArchiveShape;
use super::stand::{ArchiveTestbed, forget};
use super::work::{self, BlockAccess};
use super::{ArchiveContest, CLIENT_IO_LEN, bulk, pattern};
use crate::place::CpuPlacement;
use crate::report::{BenchRace, BenchReport, BenchTurn, interleave};
use crate::turns::read_whole;
use crate::wire::{CycleLoad, MessageCycle};

const FILE: &str = "large";
const DEPTH: u16 = 8;

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    let size = contest.large();
    let mib = size >> 20;
    let ours = ArchiveTestbed::archive(ArchiveShape::of(mib * 2 + 256, mib * 2 + 64))?;
    let disk = ArchiveTestbed::disk()?;
    let direct = disk.dir().join("direct");
    CpuPlacement::Free.arrange(&[])?;
    // Write ours twice, because overwritten data gets other slots; then those have been used before (see `bulk`).
    for stand in [&ours, &ours, &disk] {
        bulk::write_new(stand, FILE, size)?;
        read_whole(&stand.server(), FILE, size)?()?;
    }
    fill(&direct, size)?;

    let [many, few] = contest.pace.of([8192, 1024], [2048, 256], [8, 4]);
    let race = |what: &str, kib: usize, is_write: bool, is_cold: bool| {
        let each = if is_cold { few } else { many };
        let job = RandomJob { size, block: kib << 10, each, is_write, is_cold };
        let of = match (is_write, is_cold) {
            (true, _) => "with an fsync",
            (_, true) => "uncached",
            _ => "cached",
        };
        let turn = |stand| -> BenchTurn<'_> { Box::new(move || job.of(stand)) };
        let direct = &direct;
        let turns = [Some(turn(&ours)), Some(turn(&disk)), Some(Box::new(move || job.direct(direct)) as _)];
        BenchRace {
            what: format!("{what} {kib} KiB by chance of {mib} MiB, depth {DEPTH}, {of}"),
            unit: "k/s",
            turns,
        }
    };
    let cached = vec![race("read", 4, false, false), race("read", 64, false, false)];
    let rows = interleave(contest.rounds(), contest.pace.patience(), cached)?;
    report.key("rand4k_read_vs_disk", rows[0].vs_peer());
    report.extend(rows);
    let writes = vec![race("write", 4, true, false)];
    let rows = interleave(contest.rounds(), contest.pace.patience(), writes)?;
    report.key("rand4k_write_vs_disk", rows[0].vs_peer());
    report.extend(rows);
    let cold = vec![race("read", 4, false, true), race("read", 64, false, true)];
    report.extend(interleave(contest.rounds(), contest.pace.patience(), cold)?);
    Ok(())
}

/// The work of a turn.
#[derive(Clone, Copy)]
struct RandomJob {
    /// Size of the file and of an operation, bytes.
    size: u64,
    block: usize,
    /// Operations of each parallel sequence.
    each: usize,
    is_write: bool,
    is_cold: bool,
}

impl RandomJob {
    fn blocks(self, tag: Tag) -> BlockAccess {
        BlockAccess::new(tag, self.size, self.block, self.is_write.then_some(1))
    }

    /// Measures a server, thousands a second.
    fn of(self, stand: &ArchiveTestbed) -> io::Result<f64> {
        if self.is_cold {
            stand.cool(FILE)?;
        }
        let server = stand.server();
        let (_client, root) = server.client()?;
        let (file, conn) = (root.open(FILE, OpenFlags::WRITE)?, work::on_file(&server, FILE)?);
        let mut load = CycleLoad::new(vec![conn], DEPTH, |_, tag| BlockSequence {
            blocks: self.blocks(tag),
            each: self.each,
        })?;
        let begun = Instant::now();
        load.run(Duration::ZERO)?;
        if self.is_write {
            file.fsync(false)?;
        }
        Ok(self.rate(begun))
    }

    /// Measures system calls, thousands a second.
    fn direct(self, path: &Path) -> io::Result<f64> {
        if self.is_cold {
            forget(path)?;
        }
        let file = File::options().read(true).write(true).open(path)?;
        let mut lanes: Vec<BlockAccess> = (0..DEPTH).map(|tag| self.blocks(Tag(tag))).collect();
        let (mut buf, begun) = (vec![0; self.block], Instant::now());
        for _ in 0..self.each {
            for blocks in &mut lanes {
                match blocks.next() {
                    (offset, true) => file.write_all_at(&blocks.data, offset)?,
                    (offset, false) => file.read_exact_at(&mut buf, offset)?,
                }
            }
        }
        if self.is_write {
            file.sync_all()?;
        }
        Ok(self.rate(begun))
    }

    fn rate(self, begun: Instant) -> f64 {
        (self.each * usize::from(DEPTH)) as f64 / begun.elapsed().as_secs_f64() / 1e3
    }
}

/// A sequence of `each` operations.
struct BlockSequence {
    blocks: BlockAccess,
    each: usize,
}

impl MessageCycle for BlockSequence {
    fn put(&mut self, n: usize, out: &mut Vec<u8>) -> bool {
        n < self.each && self.blocks.put(0, out)
    }
}

fn fill(path: &Path, size: u64) -> io::Result<()> {
    let (file, piece) = (File::create(path)?, pattern(CLIENT_IO_LEN, 1));
    for at in (0..size).step_by(CLIENT_IO_LEN) {
        file.write_all_at(&piece, at)?;
    }
    file.sync_all()
}
