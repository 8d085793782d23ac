//! The experiments of the seed paper: first, a file read again after a dump has put its blocks in order. Then, the
//! effect of read-ahead, the fast worm and the order of slots on uncached reads, by one reader and by two.

use std::io;

use nine_block::Ahead;
use nine_proto::Tag;
use nine_proto::msg::{Data, Tmsg};

use super::ArchiveContest;
use super::serve::ArchiveShape;
use super::stand::ArchiveTestbed;
use super::work::{self, OPEN, SeededRandom};
use crate::place::CpuPlacement;
use crate::report::{BenchRace, BenchReport, BenchTurn, ReportRow, interleave};
use crate::turns::read_whole;
use crate::wire::encoded;

const FILES: [&str; 2] = ["one", "two"];
const BLOCK: u64 = 16 << 10;

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    CpuPlacement::Free.arrange(&[])?;
    scattered(contest, report)?;
    shapes(contest, report)?;
    workers(contest, report)
}

/// Reads a file that is in no memory; GB/s.
fn cold(stand: &ArchiveTestbed, file: &str, size: u64) -> io::Result<f64> {
    stand.cool(file)?;
    read_whole(&stand.server(), file, size)?()
}

/// Reads a file that was written in random order, before and after its dump.
fn scattered(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    let size = contest.pace.of(512, 64, 1) << 20;
    let mib = size >> 20;
    let stand = ArchiveTestbed::archive(ArchiveShape::of(mib * 2 + 256, mib * 2 + 256))?;
    let file = FILES[0];
    work::write(&stand.server(), file, 0, 4096, 1)?;
    let (mut order, mut chance) = ((0..size / BLOCK).collect::<Vec<_>>(), SeededRandom::new(11));
    for i in (1..order.len()).rev() {
        order.swap(i, chance.below(i as u64 + 1) as usize);
    }
    let data = super::pattern(BLOCK as usize, 11);
    let conn = work::on_file(&stand.server(), file)?;
    drop(conn.call_all(order.into_iter().map(|block| {
        let write = Tmsg::Write { fid: OPEN, offset: block * BLOCK, data: Data::Bytes(&data) };
        encoded(&write, Tag(block as u16 % 32))
    }))?);
    let what = format!("{mib} MiB written in any order, uncached: after its dump / before");
    let mut row = ReportRow { what, unit: "GB/s", ..ReportRow::default() };
    let rounds = contest.rounds();
    row.peer = (0..rounds).map(|_| cold(&stand, file, size)).collect::<io::Result<_>>()?;
    stand.tell("dump wait")?;
    work::settled(&stand)?;
    row.ours = (0..rounds).map(|_| cold(&stand, file, size)).collect::<io::Result<_>>()?;
    report.push(row);
    Ok(())
}

fn shapes(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    let size = contest.pace.of(512, 64, 1) << 20;
    let mib = size >> 20;
    let plain = ArchiveShape::of(mib * 5 + 256, mib * 3 + 256);
    let kinds = [
        ("read ahead as it grows", plain),
        ("no read ahead", ArchiveShape { ahead: Ahead::Never, ..plain }),
        ("read ahead as the seed", ArchiveShape { ahead: Ahead::Seed, ..plain }),
        ("fastworm", ArchiveShape { fastworm: true, ..plain }),
        ("row order", ArchiveShape { row_order: true, ..plain }),
    ];
    for (name, shape) in kinds {
        let stand = ArchiveTestbed::archive(shape)?;
        for file in FILES {
            work::write(&stand.server(), file, 0, size, 3)?;
        }
        stand.tell("dump wait")?;
        work::settled(&stand)?;
        // Data from w is written to c at the first read, so report the first read separately.
        let first = cold(&stand, FILES[0], size)?;
        report.push(ReportRow::counted(format!("{name}: {mib} MiB from w, first"), "GB/s", first, None));
        let one = BenchRace {
            what: format!("{name}: {mib} MiB uncached"),
            unit: "GB/s",
            turns: [Some(Box::new(|| cold(&stand, FILES[0], size)) as BenchTurn<'_>), None, None],
        };
        let two = BenchRace {
            what: format!("{name}: two readers, together"),
            unit: "GB/s",
            turns: [Some(Box::new(|| both(&stand, size)) as BenchTurn<'_>), None, None],
        };
        let rows = interleave(contest.pace.of(3, 2, 1), contest.pace.patience(), vec![one, two])?;
        report.extend(rows);
    }
    Ok(())
}

/// Reads a file with a limited number of device reads in flight. The file is only on c, because data read from w would
/// be written to c at the same time. Both rules have limits of their own (8 and 20 ahead). A host file has 16 threads,
/// so 20 means 16 here.
fn workers(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    let size = contest.large();
    let mib = size >> 20;
    let plain = ArchiveShape::of(mib * 2 + 256, mib * 2 + 256);
    let (stand, file) = (ArchiveTestbed::archive(plain)?, FILES[0]);
    work::write(&stand.server(), file, 0, size, 3)?;
    stand.sync()?;
    let race = |ahead: Ahead, readers: u64| {
        let stand = &stand;
        let rule = if ahead == Ahead::Seed { "as the seed" } else { "as it grows" };
        let workers = if readers == 1 { "worker" } else { "workers" };
        BenchRace {
            what: format!("read ahead {rule}, {readers} {workers}: {mib} MiB uncached"),
            unit: "GB/s",
            turns: [
                Some(Box::new(move || {
                    stand.reshape(ArchiveShape { ahead, readers, ..plain });
                    cold(stand, file, size)
                }) as BenchTurn<'_>),
                None,
                None,
            ],
        }
    };
    let races = [Ahead::Seed, Ahead::Grow].into_iter().flat_map(|ahead| [1, 10, 20].map(|n| race(ahead, n)));
    report.extend(interleave(contest.pace.of(3, 2, 1), contest.pace.patience(), races.collect())?);
    Ok(())
}

/// Reads with two clients at once, each a file of its own; GB/s of both together.
fn both(stand: &ArchiveTestbed, size: u64) -> io::Result<f64> {
    stand.cool(FILES[0])?;
    let server = stand.server();
    let speeds = std::thread::scope(|scope| {
        let server = &*server;
        let readers = FILES.map(|file| scope.spawn(move || read_whole(server, file, size)?()));
        readers.map(|reader| reader.join().expect("it does not panic"))
    });
    let [one, two] = speeds;
    Ok(one? + two?)
}
