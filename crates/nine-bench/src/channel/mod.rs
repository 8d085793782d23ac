//! `channel`: 9P through shared memory between two processes. The graph of *PROSE I/O*: 10,000 writes to a null file
//! with payloads of 0 to 256 KiB. Here they go over a channel, a unix socket and TCP to one server. The files are its
//! own null file, that of the host, and that of another machine behind it.
//!
//! In: a server in a process of its own, this process as its guest. Out: rows and keys. Limits: the round trip of a
//! cache line between two processors, and one copy of the payload.

mod guest;
mod kernel;
mod limits;
mod machine;

use std::io;
use std::time::Instant;

use nine_guest::Wait;
use nine_net::shm::Waits;

pub use self::guest::serve;
use self::guest::{ChannelSite, ServerRoute};
use self::machine::{MachineRoute, MachineSetup};
use crate::args::BenchPace;
use crate::parts::{ExperimentPart, chosen};
use crate::place::CpuPlacement;
use crate::plot::{PlotFigure, PlotLabels};
use crate::report::{BenchRace, BenchReport, BenchTurn, ReportRow, interleave};
use crate::stats::median;
use crate::{BenchExperiment, peers, place};

pub const EXPERIMENT: BenchExperiment = BenchExperiment {
    name: "channel",
    what: "9P through shared memory against unix sockets, TCP and diod: empty writes, payloads, files of the host, \
           another machine behind it; from programs, from machines without a system, from Linux' kernel; a cache line \
           to and fro, and memcpy",
    run,
};

/// The payloads of that graph, bytes.
const SIZES: [usize; 8] = [0, 64, 512, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10];
/// Payloads that count as large.
const BIG: [usize; 2] = [64 << 10, 256 << 10];
/// The cost of a byte is measured between these payloads.
const SLOPE: [usize; 2] = [8 << 10, 256 << 10];
/// Writes of one turn, as in that graph.
const WRITES: u32 = 10_000;
/// Factor on the writes if processor time is measured, because the cost of starting a machine varies.
const COUNTED: u32 = 10;
/// Name of the machines' peer.
const VIRTIO: &str = "virtio-9p, whose guest spins";

struct ChannelContest {
    pace: BenchPace,
    site: ChannelSite,
}

const PARTS: [ExperimentPart<ChannelContest>; 8] = [
    ("empty", empty),
    ("sizes", sizes),
    ("host", host),
    ("remote", remote),
    ("switches", switches),
    ("idle", idle),
    ("machine", from_machines),
    ("kernel", from_the_kernel),
];

const KEYS: [&str; 16] = [
    "empty_vs_pingpong",
    "asleep_vs_unix",
    "asleep_same_core_vs_unix",
    "big_vs_memcpy",
    "big_vs_unix",
    "slope_vs_memcpy",
    "file_slope_vs_memcpy",
    "file_slope_vs_cross_memcpy",
    "idle_wakeups",
    "adaptive_empty_vs_pingpong",
    "guest_empty_us",
    "guest_empty_vs_process",
    "guest_remote_vs_process",
    "guest_vs_virtio",
    "guest_first_line_ms",
    "guest_image_kib",
];

fn run(pace: BenchPace, only: Option<&str>) -> io::Result<BenchReport> {
    let parts = chosen(&PARTS, only)?;
    let contest = ChannelContest { pace, site: ChannelSite::start()? };
    let mut report = BenchReport::default();
    report.notes.push(format!(
        "{} processors; cross: the server has one, the guest another; spinning: neither sleeps",
        place::count()
    ));
    report.notes.push("every payload is written anew by the guest before each write of it".into());
    match peers::diod::version() {
        Some(version) => report.notes.push(format!("diod {version} at a unix socket")),
        None => report.notes.push("MISSING: diod, its rows are left out (apt-get install diod)".into()),
    }
    for (name, measure) in parts {
        let begun = Instant::now();
        measure(&contest, &mut report)?;
        eprintln!("  {name}: {:.0} s", begun.elapsed().as_secs_f64());
    }
    report.order(&KEYS);
    report.keys.push(("rounds", pace.rounds().to_string()));
    report.keys.push(("guest_rounds", guest_rounds(pace).to_string()));
    report.keys.push(("diod", peers::diod::version().unwrap_or("na".into())));
    Ok(report)
}

/// Returns the number of rounds with machines, each of which must be started.
fn guest_rounds(pace: BenchPace) -> usize {
    pace.of(5, 3, 1)
}

fn writes(pace: BenchPace) -> u32 {
    pace.of(WRITES, WRITES / 4, 50)
}

/// Empty writes: the cost of a message.
fn empty(contest: &ChannelContest, report: &mut BenchReport) -> io::Result<()> {
    let ChannelContest { pace, site } = contest;
    let n = writes(*pace);
    let turn = |road, place| site.turn(road, "dev/null", 0, n, place);
    let limit = |place: CpuPlacement| -> Option<BenchTurn<'_>> {
        (place == CpuPlacement::Cross).then(|| Box::new(move || limits::ping_pong(n)) as BenchTurn<'_>)
    };
    let mut races = Vec::new();
    for (what, place, wait) in [
        ("empty write, both spinning, cross: channel / unix socket", CpuPlacement::Cross, Wait::Poll),
        ("empty write, adaptive, cross: channel / unix socket", CpuPlacement::Cross, Wait::Adaptive),
        ("empty write, asleep, cross: channel / unix socket", CpuPlacement::Cross, Wait::Interrupt),
        ("empty write, asleep, same core: channel / unix socket", CpuPlacement::Same, Wait::Interrupt),
    ] {
        races.push(BenchRace {
            what: what.into(),
            unit: "us",
            turns: [
                Some(turn(ServerRoute::Channel(wait), place)?),
                Some(turn(ServerRoute::Unix, place)?),
                limit(place).filter(|_| wait != Wait::Interrupt),
            ],
        });
    }
    let rows = interleave(pace.rounds(), pace.patience(), races)?;
    report.key("empty_vs_pingpong", rows[0].vs_limit());
    report.key("adaptive_empty_vs_pingpong", rows[1].vs_limit());
    report.key("asleep_vs_unix", rows[2].vs_peer());
    report.key("asleep_same_core_vs_unix", rows[3].vs_peer());
    report.extend(rows);
    Ok(())
}

/// The graph for the server's own null file.
fn sizes(contest: &ChannelContest, report: &mut BenchReport) -> io::Result<()> {
    let ChannelContest { pace, site } = contest;
    let rows = graph(contest, report, "dev/null", "to null", ("channel-null", "Writes to null"))?;
    let (mut memcpy, mut unix) = (f64::INFINITY, f64::INFINITY);
    for (size, row) in SIZES.iter().zip(&rows).filter(|(size, _)| BIG.contains(size)) {
        // The figures are times, so the ratio of bandwidths is the inverse ratio.
        let (ours, limit) = (row.vs_limit().unwrap_or(f64::NAN), row.vs_peer().unwrap_or(f64::NAN));
        eprintln!("  {size}: {:.3} of memcpy, {:.2} of a unix socket", 1.0 / ours, 1.0 / limit);
        (memcpy, unix) = (memcpy.min(1.0 / ours), unix.min(1.0 / limit));
    }
    report.key("big_vs_memcpy", Some(memcpy));
    report.key("big_vs_unix", Some(unix));
    let filling = filling(*pace)?;
    report.key("slope_vs_memcpy", slope(&rows, &filling));
    report.extend(filling);
    report.extend(rows);
    let n = writes(*pace);
    let races = SIZES.iter().map(|&size| -> io::Result<BenchRace<'_>> {
        let turn = |road| site.turn(road, "dev/null", size, n, CpuPlacement::Cross);
        Ok(BenchRace {
            what: format!("{size} bytes to null, cross: channel, adaptive / TCP"),
            unit: "us",
            turns: [Some(turn(ServerRoute::Channel(Wait::Adaptive))?), Some(turn(ServerRoute::Tcp)?), None],
        })
    });
    report.extend(interleave(pace.rounds(), pace.patience(), races.collect::<io::Result<_>>()?)?);
    Ok(())
}

/// Measures a row for each size, and draws the figure.
fn graph(
    contest: &ChannelContest,
    report: &mut BenchReport,
    file: &'static str,
    what: &str,
    (figure, title): (&'static str, &'static str),
) -> io::Result<Vec<ReportRow>> {
    let ChannelContest { pace, site } = contest;
    let peer = ServerRoute::Unix;
    let n = writes(*pace);
    let races = SIZES.iter().map(|&size| -> io::Result<BenchRace<'_>> {
        Ok(BenchRace {
            what: format!("{size} bytes {what}, spinning, cross: channel / {}", peer.label()),
            unit: "us",
            turns: [
                Some(site.turn(ServerRoute::Channel(Wait::Poll), file, size, n, CpuPlacement::Cross)?),
                Some(site.turn(peer, file, size, n, CpuPlacement::Cross)?),
                (size > 0).then(|| Box::new(move || Ok(limits::copied(size, n))) as BenchTurn<'_>),
            ],
        })
    });
    let rows = interleave(pace.rounds(), pace.patience(), races.collect::<io::Result<_>>()?)?;
    let curve = |of: fn(&ReportRow) -> &[f64]| {
        let points = SIZES.iter().zip(&rows).filter(|(size, _)| **size > 0);
        points.filter_map(|(size, row)| Some((*size as f64, median(of(row))?))).collect()
    };
    report.figures.push(PlotFigure {
        plot: PlotLabels { file: figure, title, x: "payload, bytes", y: "us a write" },
        curves: vec![
            ("channel, spinning", curve(|row| &row.ours)),
            (peer.label(), curve(|row| &row.peer)),
            ("filled and copied once", curve(|row| &row.limit)),
        ],
    });
    Ok(rows)
}

/// Measures filling a payload without sending it.
fn filling(pace: BenchPace) -> io::Result<Vec<ReportRow>> {
    let n = writes(pace);
    let races = SLOPE.iter().map(|&size| BenchRace {
        what: format!("{size} bytes, filled by their writer and not sent"),
        unit: "us",
        turns: [Some(Box::new(move || Ok(limits::filled(size, n))) as BenchTurn<'_>), None, None],
    });
    interleave(pace.rounds(), pace.patience(), races.collect())
}

/// Measures filling a payload on one processor and copying it once on another.
fn carried(pace: BenchPace) -> io::Result<Vec<ReportRow>> {
    let n = writes(pace);
    let races = SIZES.iter().map(|&size| BenchRace {
        what: format!("{size} bytes, filled on one processor and copied once on another"),
        unit: "us",
        turns: [Some(Box::new(move || limits::carried(size, n)) as BenchTurn<'_>), None, None],
    });
    interleave(pace.rounds(), pace.patience(), races.collect())
}

/// Returns the cost of a byte beyond 8 KiB over the cost of copying one. The time to fill the payload is subtracted on
/// both sides.
fn slope(rows: &[ReportRow], filling: &[ReportRow]) -> Option<f64> {
    let [small, big] = SLOPE.map(|size| median(&rows[at(size)].limit));
    let limit = big? - small? - filled(filling)?;
    Some(beyond(rows, filling)? / limit)
}

/// Returns the microseconds for the bytes beyond 8 KiB, without filling them.
fn beyond(rows: &[ReportRow], filling: &[ReportRow]) -> Option<f64> {
    let [small, big] = SLOPE.map(|size| median(&rows[at(size)].ours));
    Some(big? - small? - filled(filling)?)
}

fn filled(filling: &[ReportRow]) -> Option<f64> {
    Some(median(&filling[1].ours)? - median(&filling[0].ours)?)
}

/// Returns the index of a size's row.
fn at(size: usize) -> usize {
    SIZES.iter().position(|&other| other == size).expect("a size of the graph")
}

/// The graph for a file of the host and the host's null file, by the disk server.
fn host(contest: &ChannelContest, report: &mut BenchReport) -> io::Result<()> {
    let rows = graph(
        contest,
        report,
        "files/cached",
        "to a cached file of the host",
        ("channel-file", "Writes to a cached file of the host"),
    )?;
    let filling = filling(contest.pace)?;
    report.key("file_slope_vs_memcpy", slope(&rows, &filling));
    let carried = carried(contest.pace)?;
    report.key(
        "file_slope_vs_cross_memcpy",
        beyond(&rows, &filling).zip(beyond(&carried, &filling)).map(|(ours, limit)| ours / limit),
    );
    report.extend(carried);
    report.extend(rows);
    let rows = graph(
        contest,
        report,
        "host/null",
        "to the host's null",
        ("channel-host", "Writes to the null of the host"),
    )?;
    report.extend(rows);
    if !contest.site.has_diod() {
        return Ok(());
    }
    let ChannelContest { pace, site } = contest;
    // Its largest message has 65,512 bytes.
    let races = SIZES.iter().filter(|size| **size <= 16 << 10).map(|&size| -> io::Result<BenchRace<'_>> {
        let n = writes(*pace);
        let ours =
            site.turn(ServerRoute::Channel(Wait::Adaptive), "host/null", size, n, CpuPlacement::Cross)?;
        let diod = site.turn(ServerRoute::Diod, "null", size, n, CpuPlacement::Cross)?;
        let what = format!("{size} bytes to the host's null, cross: channel, adaptive / diod");
        Ok(BenchRace { what, unit: "us", turns: [Some(ours), Some(diod), None] })
    });
    report.extend(interleave(pace.rounds(), pace.patience(), races.collect::<io::Result<_>>()?)?);
    Ok(())
}

/// The graph for another server, mounted over TCP behind the channel's server.
fn remote(contest: &ChannelContest, report: &mut BenchReport) -> io::Result<()> {
    let rows = graph(
        contest,
        report,
        "n/dev/null",
        "to a remote null",
        ("channel-remote", "Writes to a null of another machine"),
    )?;
    report.extend(rows);
    Ok(())
}

/// Counts how often a thread sleeps for a write: four times in *PROSE I/O*.
fn switches(contest: &ChannelContest, report: &mut BenchReport) -> io::Result<()> {
    let ChannelContest { pace, site } = contest;
    let n = writes(*pace);
    for (file, size, what) in [
        ("dev/null", 0, "an empty write to null"),
        ("dev/null", 64 << 10, "64 KiB to null"),
        ("files/cached", 64 << 10, "64 KiB to a cached file of the host"),
    ] {
        let unix = site.switches_of(ServerRoute::Unix, file, size, n)?;
        for (wait, how) in
            [(Wait::Poll, "spinning"), (Wait::Adaptive, "adaptive"), (Wait::Interrupt, "asleep")]
        {
            let ours = site.switches_of(ServerRoute::Channel(wait), file, size, n)?;
            let what = format!("context switches of {what}, {how}, cross: channel / unix socket");
            report.push(ReportRow::counted(what, "1", ours, Some(unix)));
        }
    }
    Ok(())
}

/// Counts how often an idle channel wakes its server.
fn idle(contest: &ChannelContest, report: &mut BenchReport) -> io::Result<()> {
    let woken = contest.site.idle_wakeups()?;
    report.key("idle_wakeups", Some(woken));
    report.push(ReportRow::counted("wake-ups of an idle channel's server, adaptive", "1/s", woken, None));
    Ok(())
}

/// The graph from machines without an operating system, beside that of a program.
fn from_machines(contest: &ChannelContest, report: &mut BenchReport) -> io::Result<()> {
    let ChannelContest { pace, site } = contest;
    let machines = match MachineSetup::find(&site.space())? {
        Ok(machines) => machines,
        Err(what) => {
            report.notes.push(format!("MISSING: {what}"));
            return Ok(());
        }
    };
    let (n, accel) = (writes(*pace), machines.accel);
    report.notes.push(format!("machines run with {accel}"));
    let spinning = MachineRoute::Channel(Waits::Poll);
    let mut races = Vec::new();
    for (wait, waits, how) in [
        (Wait::Poll, Waits::Poll, "both spinning"),
        (Wait::Adaptive, Waits::Adaptive, "adaptive"),
        (Wait::Interrupt, Waits::Interrupt, "asleep"),
    ] {
        races.push(BenchRace {
            what: format!("empty write, {how}, cross: a machine ({accel}) / a program"),
            unit: "us",
            turns: [
                Some(machines.turn(MachineRoute::Channel(waits), "dev/null", 0, n)),
                Some(site.turn(ServerRoute::Channel(wait), "dev/null", 0, n, CpuPlacement::Cross)?),
                (wait != Wait::Interrupt).then(|| Box::new(move || limits::ping_pong(n)) as BenchTurn<'_>),
            ],
        });
    }
    let rounds = guest_rounds(*pace);
    let rows = interleave(rounds, pace.patience(), races)?;
    report.key("guest_empty_us", median(&rows[0].ours));
    report.key("guest_empty_vs_process", rows[0].vs_peer());
    report.extend(rows);
    let mut curves = Vec::new();
    for (file, what) in
        [("dev/null", "to null"), ("host/null", "to the host's null"), ("n/dev/null", "to a remote null")]
    {
        let races = SIZES.iter().map(|&size| -> io::Result<BenchRace<'_>> {
            Ok(BenchRace {
                what: format!("{size} bytes {what}, spinning, cross: a machine ({accel}) / a program"),
                unit: "us",
                turns: [
                    Some(machines.turn(spinning, file, size, n)),
                    Some(site.turn(ServerRoute::Channel(Wait::Poll), file, size, n, CpuPlacement::Cross)?),
                    None,
                ],
            })
        });
        let rows = interleave(rounds, pace.patience(), races.collect::<io::Result<_>>()?)?;
        if file == "n/dev/null" {
            report.key("guest_remote_vs_process", rows[0].vs_peer());
        }
        let points = SIZES.iter().zip(&rows).filter(|(size, _)| **size > 0);
        let points = points.filter_map(|(size, row)| Some((*size as f64, median(&row.ours)?)));
        curves.push((what, points.collect::<Vec<_>>()));
        report.extend(rows);
    }
    report.figures.push(PlotFigure {
        plot: PlotLabels {
            file: "channel-machine",
            title: "Writes of a machine without a system",
            x: "payload, bytes",
            y: "us a write",
        },
        curves,
    });
    match machines.has_virtio() {
        false => {
            report.notes.push("MISSING: the image that drives QEMU's own 9P, its rows are left out".into())
        }
        true => {
            // An empty write is not a file operation here.
            let races = SIZES[1..].iter().map(|&size| BenchRace {
                what: format!(
                    "{size} bytes to a cached file, cross: a machine ({accel}), adaptive / {VIRTIO}"
                ),
                unit: "us",
                turns: [
                    Some(machines.turn(MachineRoute::Channel(Waits::Adaptive), "files/cached", size, n)),
                    Some(machines.turn(MachineRoute::Virtio, "cached", size, n)),
                    None,
                ],
            });
            let rows = interleave(rounds, pace.patience(), races.collect())?;
            report.key("guest_vs_virtio", rows[at(64 << 10) - 1].vs_peer());
            report.extend(rows);
        }
    }
    let mut races = Vec::new();
    for (size, what) in [(64, "64 bytes"), (64 << 10, "64 KiB")] {
        for (way, how) in [(spinning, "spinning"), (MachineRoute::Channel(Waits::Adaptive), "adaptive")] {
            let turn = |way, file| machines.cpu(way, file, size, n * COUNTED);
            races.push(BenchRace {
                what: format!(
                    "processor time of {what} to a cached file, {how}, cross: a machine ({accel}) / {VIRTIO}"
                ),
                unit: "us",
                turns: [
                    Some(turn(way, "files/cached")),
                    machines.has_virtio().then(|| turn(MachineRoute::Virtio, "cached")),
                    None,
                ],
            });
        }
    }
    report.extend(interleave(rounds, pace.patience(), races)?);
    let race = BenchRace {
        what: format!("the first line of an image ({accel})"),
        unit: "ms",
        turns: [Some(machines.first_line()), None, None],
    };
    let rows = interleave(rounds, pace.patience(), vec![race])?;
    report.key("guest_first_line_ms", median(&rows[0].ours));
    report.extend(rows);
    report.key("guest_image_kib", Some(machines.image_size()?));
    Ok(())
}

/// The same with Linux's own client over TCP, in a machine with Debian's kernel.
fn from_the_kernel(contest: &ChannelContest, report: &mut BenchReport) -> io::Result<()> {
    let n = contest.pace.of(2000, 500, 20);
    for (file, what) in [("dev/null", "to null"), ("n/dev/null", "to a remote null")] {
        match kernel::writes(contest.site.port()?, file, &SIZES[1..], n)? {
            Err(what) => {
                report.notes.push(format!("MISSING: {what}"));
                return Ok(());
            }
            Ok(times) => {
                for (size, time) in SIZES[1..].iter().zip(times) {
                    let what = format!("{size} bytes {what}: Linux' 9P client over TCP, in a machine (TCG)");
                    report.push(ReportRow::counted(what, "us", time, None));
                }
            }
        }
    }
    Ok(())
}
