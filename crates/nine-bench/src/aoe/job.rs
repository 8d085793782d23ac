//! The work of every contestant: operations of one size, with a number in flight, in an order; and the file they work
//! on.
//!
//! Always holds: each sector of the file contains its own number, so that readers can check the data. Writes go to the
//! upper half of the file, reads to the lower half.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nine_sim::Rng;

/// Size of a sector, bytes.
pub const SECTOR: u64 = 512;
/// Distance between consecutive operations in the order of columns.
const ROWS: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOp {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetOrder {
    Sequential,
    Random,
    /// The file is divided into rows of `ROWS` operations, and processed column by column: one operation of each row
    /// before the next of any.
    Columns,
}

/// A job.
#[derive(Clone, Copy, Debug)]
pub struct BlockJob {
    pub op: BlockOp,
    pub order: OffsetOrder,
    /// Size of an operation, bytes.
    pub size: u64,
    /// Operations in flight.
    pub depth: usize,
    /// Size of the file, bytes.
    pub file: u64,
    /// Duration of the warm-up; then that of the measurement.
    pub warm: Duration,
    pub time: Duration,
}

impl BlockJob {
    /// Returns the unit of its figure.
    pub fn unit(&self) -> &'static str {
        if self.depth == 1 { "us" } else { "MB/s" }
    }

    pub fn name(&self) -> String {
        let size = if self.size >= 1 << 20 {
            format!("{} MiB", self.size >> 20)
        } else {
            format!("{} KiB", self.size >> 10)
        };
        let order = match self.order {
            OffsetOrder::Sequential => "seq",
            OffsetOrder::Random => "random",
            OffsetOrder::Columns => "column",
        };
        let op = if self.op == BlockOp::Read { "reads" } else { "writes" };
        format!("{size} {order} {op}, depth {}", self.depth)
    }

    pub fn places(&self) -> OffsetSequence {
        let from = if self.op == BlockOp::Read { 0 } else { self.file / 2 };
        OffsetSequence {
            job: *self,
            from,
            count: (self.file / 2 / self.size).max(1),
            next: 0,
            rng: Rng::new(9),
        }
    }
}

/// An endless sequence of offsets for operations.
pub struct OffsetSequence {
    job: BlockJob,
    from: u64,
    count: u64,
    next: u64,
    rng: Rng,
}

impl Iterator for OffsetSequence {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let n = self.next;
        self.next = (n + 1) % self.count;
        let at = match self.job.order {
            OffsetOrder::Sequential => n,
            OffsetOrder::Random => self.rng.bits() % self.count,
            OffsetOrder::Columns => {
                let rows = self.count.div_ceil(ROWS);
                (n % rows * ROWS + n / rows) % self.count
            }
        };
        Some(self.from + at * self.job.size)
    }
}

/// Counts operations between the end of the warm-up and the end of the measurement.
pub struct OperationMeter {
    job: BlockJob,
    begun: Instant,
    warm: Option<Instant>,
    done: u64,
    last: Instant,
}

impl OperationMeter {
    pub fn new(job: &BlockJob) -> Self {
        let now = Instant::now();
        Self { job: *job, begun: now, warm: None, done: 0, last: now }
    }

    /// Counts an operation that has ended. Returns whether to continue.
    pub fn done(&mut self) -> bool {
        let now = Instant::now();
        let Some(warm) = self.warm else {
            if now - self.begun >= self.job.warm {
                self.warm = Some(now);
            }
            return true;
        };
        self.done += 1;
        self.last = now;
        now - warm < self.job.time
    }

    /// Returns the microseconds of an operation at depth 1, else MB/s.
    pub fn figure(&self) -> io::Result<f64> {
        let took = self.warm.map(|warm| (self.last - warm).as_secs_f64()).filter(|took| *took > 0.0);
        let took = took.ok_or_else(|| io::Error::other("nothing was done in time"))?;
        let done = self.done as f64;
        Ok(if self.job.depth == 1 { took * 1e6 / done } else { done * self.job.size as f64 / took / 1e6 })
    }
}

/// Creates the file.
pub fn fill(path: &Path, size: u64) -> io::Result<()> {
    let (mut file, mut piece) = (File::create(path)?, vec![0; 1 << 20]);
    for at in (0..size).step_by(1 << 20) {
        for (n, sector) in piece.chunks_exact_mut(SECTOR as usize).enumerate() {
            let number = at / SECTOR + n as u64;
            sector.as_chunks_mut::<8>().0.fill(number.to_le_bytes());
        }
        file.write_all(&piece)?;
    }
    // Otherwise the kernel would write the file to disk during a measurement.
    file.sync_all()
}

/// Checks that data read at an offset begins with the expected number.
pub fn check(at: u64, data: &[u8]) -> io::Result<()> {
    match data.first_chunk::<8>() {
        Some(number) if u64::from_le_bytes(*number) == at / SECTOR => Ok(()),
        _ => Err(io::Error::other(format!("what was read at byte {at} is something else"))),
    }
}

/// Runs a job on the file itself, by system calls of one thread.
pub fn directly(path: &Path, job: &BlockJob) -> io::Result<f64> {
    let file = File::options().read(true).write(true).open(path)?;
    let (mut meter, mut data) = (OperationMeter::new(job), vec![0x5a; job.size as usize]);
    for at in job.places() {
        match job.op {
            BlockOp::Read => {
                file.read_exact_at(&mut data, at)?;
                check(at, &data)?;
            }
            BlockOp::Write => file.write_all_at(&data, at)?,
        }
        if !meter.done() {
            break;
        }
    }
    meter.figure()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(op: BlockOp, order: OffsetOrder, size: u64) -> BlockJob {
        let none = Duration::ZERO;
        BlockJob { op, order, size, depth: 4, file: 1 << 20, warm: none, time: none }
    }

    #[test]
    fn reads_are_below_writes_and_both_within_the_file() {
        for order in [OffsetOrder::Sequential, OffsetOrder::Random, OffsetOrder::Columns] {
            assert!(job(BlockOp::Read, order, 4096).places().take(500).all(|at| at + 4096 <= 1 << 19));
            let within = |at| (1 << 19..=(1 << 20) - 4096).contains(&at);
            assert!(job(BlockOp::Write, order, 4096).places().take(500).all(within));
        }
        assert_eq!(job(BlockOp::Read, OffsetOrder::Sequential, 1 << 20).places().nth(5), Some(0));
    }

    #[test]
    fn columns_come_one_after_the_other_and_leave_nothing_out() {
        let mut all: Vec<u64> = job(BlockOp::Read, OffsetOrder::Columns, 512).places().take(1024).collect();
        assert_eq!(all[..3], [0, 64 * 512, 128 * 512]);
        all.sort_unstable();
        assert!(all.iter().enumerate().all(|(n, at)| n as u64 * 512 == *at));
    }

    #[test]
    fn the_file_says_where_each_sector_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fill(file.path(), 2 << 20).unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        assert_eq!(bytes.len(), 2 << 20);
        for at in [0, 512, (1 << 20) + 4096, (2 << 20) - 512] {
            check(at, &bytes[at as usize..]).unwrap();
            assert!(check(at + 512, &bytes[at as usize..]).is_err());
        }
    }
}
