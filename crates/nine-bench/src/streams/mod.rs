//! `streams`: the cost of modules and queues. Presotto's two programs: 64 KiB writes for throughput, and one byte to
//! and fro for latency. They run over our pipes and over those of the kernel, with two threads each (*Multiprocessor
//! Streams*, Table 1); over networks (`links`: Tables 2 and 3); and through the files of `/net` (`gateway`).
//!
//! In: kinds of connections, each created anew for every turn. Out: rows and keys.

mod gateway;
mod lines;
mod links;
mod plumbing;
mod stands;

use std::io;
use std::time::Instant;

use self::plumbing::{ConnectionEnds, ThreadPlumbing};
use crate::args::BenchPace;
use crate::parts::{ExperimentPart, chosen};
use crate::place::CpuPlacement;
use crate::report::{BenchRace, BenchReport, BenchTurn, ReportRow, interleave};
use crate::stats::median;
use crate::{BenchExperiment, place};

pub const EXPERIMENT: BenchExperiment = BenchExperiment {
    name: "streams",
    what: "pipes of ours with 0 to 8 modules against pipe(2), socketpair(2) and TCP: throughput and round trip; 9P \
           connections that are conversations against bare ones; /net, il and nonet against sockets",
    run,
};

/// Table 1 of *Multiprocessor Streams for Plan 9*: systems, MB/s, round trip in microseconds.
const TABLE_1: [(&str, f64, u32); 8] = [
    ("Plan 9, SGI, 1 processor", 6.0, 290),
    ("Plan 9, SGI, 2 processors", 8.4, 210),
    ("Plan 9, SGI, 4 processors", 8.4, 280),
    ("SVR3 old pipes, SGI, 4 processors", 4.5, 510),
    ("SVR3 stream pipes, M2000", 8.0, 510),
    ("SVR3 sockets, M2000", 8.0, 360),
    ("Plan 9, Gnot (68020)", 1.79, 1670),
    ("10th Edition stream pipes, MicroVAX 3", 1.04, 1690),
];

/// Size of one write, bytes, as in the paper.
const WRITE: usize = 64 << 10;
/// Numbers of pushed modules.
const PUSHED: [usize; 4] = [0, 1, 4, 8];

fn run(pace: BenchPace, only: Option<&str>) -> io::Result<BenchReport> {
    let parts = chosen(&PARTS, only)?;
    let mut report = BenchReport::default();
    let cores = place::count();
    report
        .notes
        .push(format!("{cores} processors; same core: both threads on one of them, cross: each on its own"));
    report.notes.push("every write is filled by its writer; the peer and the limit do the same work".into());
    for (name, measure) in parts {
        let begun = Instant::now();
        measure(&pace, &mut report)?;
        eprintln!("  {name}: {:.0} s", begun.elapsed().as_secs_f64());
    }
    report.notes.push("Table 1 of the seed, the same programs:         MB/s      us".into());
    for (system, rate, trip) in TABLE_1 {
        report.notes.push(format!("  {system:<40} {rate:>9} {trip:>7}"));
    }
    report.order(&KEYS);
    report.keys.push(("rounds", pace.rounds().to_string()));
    Ok(report)
}

const PARTS: [ExperimentPart<BenchPace>; 8] = [
    ("copy", copy),
    ("move", hand_over),
    ("rtt", round_trip),
    ("stands", stands::measure),
    ("net", gateway::measure),
    ("il", links::il),
    ("tables", links::tables),
    ("table1", links::table_1),
];

const KEYS: [&str; 23] = [
    "pipe_copy_vs_linux_pipe",
    "pipe_move_vs_linux_pipe",
    "rtt_vs_socketpair",
    "module_ns",
    "pipe_copy_same_core_vs_linux_pipe",
    "pipe_move_same_core_vs_linux_pipe",
    "rtt_same_core_vs_socketpair",
    "stands_small32_vs_bare",
    "stands_depth1_vs_bare",
    "stands_read_vs_bare",
    "stands_write_vs_bare",
    "stands_hop32_vs_bare",
    "il_vs_tcp",
    "il_rtt_vs_udp",
    "il_loss_vs_tcp",
    "il_loopback_vs_tcp",
    "il_loopback_same_core_vs_tcp",
    "il_rtt_cross_vs_udp",
    "il_rtt_same_core_vs_udp",
    "net_vs_relay",
    "net_4_reads_vs_relay",
    "net_same_core_vs_relay",
    "net_4_reads_same_core_vs_relay",
];

/// The work of the two threads.
#[derive(Clone, Copy, PartialEq)]
enum ThreadWork {
    /// Fill a buffer and copy it in; copy it out.
    Copy,
    /// Fill a buffer and hand it over; read every byte of it.
    Move,
}

/// Returns the bytes of one turn.
fn volume(pace: BenchPace) -> usize {
    pace.of(1 << 30, 256 << 20, 4 << 20)
}

fn copy(pace: &BenchPace, report: &mut BenchReport) -> io::Result<()> {
    throughput(
        *pace,
        report,
        ThreadWork::Copy,
        ["pipe_copy_vs_linux_pipe", "pipe_copy_same_core_vs_linux_pipe"],
    )
}

fn hand_over(pace: &BenchPace, report: &mut BenchReport) -> io::Result<()> {
    throughput(
        *pace,
        report,
        ThreadWork::Move,
        ["pipe_move_vs_linux_pipe", "pipe_move_same_core_vs_linux_pipe"],
    )
}

fn throughput(
    pace: BenchPace,
    report: &mut BenchReport,
    work: ThreadWork,
    keys: [&'static str; 2],
) -> io::Result<()> {
    let verb = if work == ThreadWork::Copy { "copied" } else { "handed over, read" };
    for (place, key) in [CpuPlacement::Cross, CpuPlacement::Same].into_iter().zip(keys) {
        let label = place.label();
        let turn = |plumbing| -> Option<BenchTurn<'static>> {
            Some(Box::new(move || gigabytes_a_second(plumbing, work, place, volume(pace), WRITE)))
        };
        let limit =
            || -> Option<BenchTurn<'static>> { Some(Box::new(move || Ok(alone(work, volume(pace))))) };
        let mut races = Vec::new();
        for (what, plumbing) in [
            ("pipe(2)", ThreadPlumbing::Pipe),
            ("socketpair(2)", ThreadPlumbing::Socketpair),
            ("TCP", ThreadPlumbing::Tcp),
        ] {
            races.push(BenchRace {
                what: format!("64 KiB {verb}, {label}: ours / {what}"),
                unit: "GB/s",
                turns: [turn(ThreadPlumbing::Ours(0)), turn(plumbing), limit()],
            });
        }
        for pushed in PUSHED.into_iter().skip(1) {
            races.push(BenchRace {
                what: format!("64 KiB {verb}, {label}, {pushed} modules: ours / pipe(2)"),
                unit: "GB/s",
                turns: [turn(ThreadPlumbing::Ours(pushed)), turn(ThreadPlumbing::Pipe), None],
            });
        }
        let rows = interleave(pace.rounds(), pace.patience(), races)?;
        report.key(key, rows[0].vs_peer());
        rows.into_iter().for_each(|row| {
            report.push(row);
        });
    }
    if work == ThreadWork::Move {
        modules(pace, report)?;
    }
    Ok(())
}

/// Measures the cost of a module for a block without other work: one thread puts a block and takes it out.
fn modules(pace: BenchPace, report: &mut BenchReport) -> io::Result<()> {
    let races = PUSHED.into_iter().map(|pushed| -> BenchRace<'static> {
        let turn: BenchTurn<'static> =
            Box::new(move || Ok(plumbing::nanos_a_block(pushed, pace.of(2_000_000, 500_000, 1000))));
        BenchRace {
            what: format!("a block through {pushed} modules, one thread"),
            unit: "ns",
            turns: [Some(turn), None, None],
        }
    });
    let rows = interleave(pace.rounds(), pace.patience(), races.collect())?;
    let cost = |row: &ReportRow| median(&row.ours).unwrap_or_default();
    let most = PUSHED[PUSHED.len() - 1];
    report.key("module_ns", Some((cost(&rows[PUSHED.len() - 1]) - cost(&rows[0])) / most as f64));
    rows.into_iter().for_each(|row| {
        report.push(row);
    });
    Ok(())
}

fn round_trip(pace: &BenchPace, report: &mut BenchReport) -> io::Result<()> {
    let pace = *pace;
    for (place, key) in
        [(CpuPlacement::Cross, "rtt_vs_socketpair"), (CpuPlacement::Same, "rtt_same_core_vs_socketpair")]
    {
        let turn = |plumbing| -> Option<BenchTurn<'static>> {
            Some(Box::new(move || micros_a_round_trip(plumbing, place, pace.of(20_000, 5_000, 100))))
        };
        let mut races = Vec::new();
        for (what, plumbing) in [
            ("socketpair(2)", ThreadPlumbing::Socketpair),
            ("pipe(2)", ThreadPlumbing::Pipe),
            ("TCP", ThreadPlumbing::Tcp),
        ] {
            races.push(BenchRace {
                what: format!("one byte to and fro, {}: ours / {what}", place.label()),
                unit: "us",
                turns: [turn(ThreadPlumbing::Ours(0)), turn(plumbing), turn(ThreadPlumbing::Park)],
            });
        }
        for pushed in PUSHED.into_iter().skip(1) {
            races.push(BenchRace {
                what: format!(
                    "one byte to and fro, {}, {pushed} modules: ours / socketpair(2)",
                    place.label()
                ),
                unit: "us",
                turns: [turn(ThreadPlumbing::Ours(pushed)), turn(ThreadPlumbing::Socketpair), None],
            });
        }
        let rows = interleave(pace.rounds(), pace.patience(), races)?;
        report.key(key, rows[0].vs_peer());
        rows.into_iter().for_each(|row| {
            report.push(row);
        });
    }
    Ok(())
}

/// Runs the paper's first program.
fn gigabytes_a_second(
    plumbing: ThreadPlumbing,
    work: ThreadWork,
    place: CpuPlacement,
    bytes: usize,
    write: usize,
) -> io::Result<f64> {
    assert!(work == ThreadWork::Copy || write == WRITE, "what is handed over is of one size");
    let ConnectionEnds { mut near, mut far } = plumbing.make()?;
    let begun = Instant::now();
    let reader = std::thread::spawn(move || -> io::Result<usize> {
        place.stand_far()?;
        let (mut seen, mut buf) = (0, vec![0; write]);
        loop {
            let n = match work {
                ThreadWork::Copy => far.read(&mut buf)?,
                ThreadWork::Move => far.look(&mut buf)?,
            };
            if n == 0 {
                return Ok(seen);
            }
            seen += n;
        }
    });
    place.stand_near()?;
    let mut buf = vec![0; write];
    for n in 0..bytes / write {
        match work {
            ThreadWork::Copy => {
                buf.fill(n as u8);
                near.write(&buf)?;
            }
            ThreadWork::Move => near.give(n as u8, &mut buf)?,
        }
    }
    drop(near);
    let seen = reader.join().map_err(|_| io::Error::other("the reader has failed"))??;
    crate::turns::rate(begun, seen as u64, (bytes / write * write) as u64)
}

/// Does the same work on the same bytes with one thread and no connection.
fn alone(work: ThreadWork, bytes: usize) -> f64 {
    let (mut from, mut between, mut to) = (vec![0u8; WRITE], vec![0u8; WRITE], vec![0u8; WRITE]);
    let begun = Instant::now();
    for n in 0..bytes / WRITE {
        from.fill(n as u8);
        match work {
            ThreadWork::Copy => {
                between.copy_from_slice(std::hint::black_box(&from));
                to.copy_from_slice(std::hint::black_box(&between));
                std::hint::black_box(&to);
            }
            ThreadWork::Move => {
                std::hint::black_box(plumbing::sum(std::hint::black_box(&from)));
            }
        }
    }
    (bytes / WRITE * WRITE) as f64 / begun.elapsed().as_secs_f64() / 1e9
}

/// Runs the paper's second program.
fn micros_a_round_trip(plumbing: ThreadPlumbing, place: CpuPlacement, trips: u32) -> io::Result<f64> {
    let ConnectionEnds { mut near, mut far } = plumbing.make()?;
    let echo = std::thread::spawn(move || -> io::Result<()> {
        place.stand_far()?;
        let mut byte = [0];
        while far.read(&mut byte)? == 1 {
            far.write(&byte)?;
        }
        Ok(())
    });
    place.stand_near()?;
    let (begun, mut byte) = (Instant::now(), [7]);
    for _ in 0..trips {
        near.write(&byte)?;
        if near.read(&mut byte)? != 1 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let took = begun.elapsed();
    drop(near);
    echo.join().map_err(|_| io::Error::other("the echo has failed"))??;
    Ok(took.as_secs_f64() * 1e6 / f64::from(trips))
}
