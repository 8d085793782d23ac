//! Copies of one file from end to end, by cold clients: several sizes and round trips, both directions, all contestants
//! in turn.
//!
//! The time is that of a process from start to end, with its connection and all messages before and after the data. The
//! time for an empty file is the set-up time.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use nine_sim::delay::Side;

use super::plain::PlainReadSize;
use super::{MIDDLE, StreamingContest};
use crate::args::BenchPace;
use crate::peers::{curl, sftp};
use crate::plot::{PlotFigure, PlotLabels};
use crate::report::{BenchReport, ReportRow};
use crate::stats::median;

/// The round trips of all tables.
pub(super) const RTTS: [Duration; 5] = [
    Duration::from_micros(500),
    Duration::from_millis(15),
    MIDDLE,
    Duration::from_millis(100),
    Duration::from_millis(200),
];

/// The contestants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CopyTool {
    /// Ours, with streams.
    Streams,
    /// Ours, with a window of Treads or Twrites.
    Compat,
    /// Our client with diod, which does not know streams.
    Diod,
    /// nginx and curl.
    Http,
    /// OpenSSH.
    Sftp,
    /// Plain 9P: one request at a time.
    Plain(PlainReadSize),
}

use CopyTool::{Compat, Diod, Http, Sftp, Streams};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CopyDirection {
    Read,
    Write,
}

/// A cell of a table: direction and size of the copy, and the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TableCell {
    direction: CopyDirection,
    rtt: Duration,
    /// Size of the file, MB.
    size: u64,
}

/// Seconds of all turns.
type TurnTimes = BTreeMap<(TableCell, CopyTool), Vec<f64>>;

/// The contestants of tables in the order of their turns, with their names; plain 9P last.
const ALL: [(CopyTool, &str); 7] = [
    (Streams, "streams"),
    (Http, "HTTP"),
    (Compat, "compat"),
    (Diod, "compat, diod"),
    (Sftp, "SFTP"),
    (CopyTool::Plain(PlainReadSize::Seed), "plain 8 KiB"),
    (CopyTool::Plain(PlainReadSize::Msize), "plain 1 MiB"),
];

/// Returns the file sizes of a run, MB.
pub(super) fn sizes(pace: BenchPace) -> &'static [u64] {
    pace.of(&[0, 10, 50, 100, 200], &[0, 10, 25, 50, 200], &[0, 1])
}

pub(super) fn measure(contest: &StreamingContest, report: &mut BenchReport) -> io::Result<()> {
    let mut times = TurnTimes::new();
    for rtt in RTTS {
        contest.link(rtt);
        for direction in [CopyDirection::Read, CopyDirection::Write] {
            for (size, turns) in plan(contest.pace, direction, rtt) {
                run(contest, TableCell { direction, rtt, size }, &turns, &mut times)?;
            }
        }
    }
    keys(contest, &times, report);
    rows(&times, report);
    figures(&times, report);
    Ok(())
}

/// Returns the plan for a round trip: for each file size the contestants, with their numbers of rounds.
fn plan(pace: BenchPace, direction: CopyDirection, rtt: Duration) -> Vec<(u64, Vec<(CopyTool, usize)>)> {
    let everybody = |rounds| ALL.map(|(tool, _)| (tool, rounds)).to_vec();
    let once = |tools: &[CopyTool]| tools.iter().map(|tool| (*tool, 1)).collect::<Vec<_>>();
    let seed = CopyTool::Plain(PlainReadSize::Seed);
    match (pace, direction) {
        // Keys need the first entries, twice. Plain 9P has a constant rate, so one size is enough.
        (BenchPace::Full, CopyDirection::Read) => {
            let whole = [Streams, Http, Compat, Diod, Sftp];
            let mut large = vec![(Streams, 2), (Http, 2), (Diod, 1), (Compat, 1), (Sftp, 1)];
            large.extend((rtt == MIDDLE).then_some((seed, 1)));
            vec![(200, large), (0, everybody(3)), (100, once(&whole)), (50, once(&whole)), (10, everybody(1))]
        }
        (BenchPace::Full, CopyDirection::Write) => {
            let large = vec![(Streams, 2), (Http, 2), (Diod, 1), (Compat, 1), (Sftp, 1)];
            vec![(200, large), (0, everybody(3)), (10, everybody(1))]
        }
        (BenchPace::Quick, CopyDirection::Read) if rtt == MIDDLE => {
            vec![(200, once(&[Streams, Http, Diod, seed])), (10, everybody(1)), (0, everybody(1))]
        }
        (BenchPace::Quick, CopyDirection::Write) if rtt == MIDDLE => {
            vec![(200, once(&[Streams, Http])), (10, everybody(1)), (0, everybody(1))]
        }
        // At this round trip all contestants reach the link's rate at once.
        (BenchPace::Quick, CopyDirection::Read) if rtt < Duration::from_millis(1) => {
            vec![(50, once(&[Streams, Http]))]
        }
        (BenchPace::Quick, CopyDirection::Read) => vec![(25, once(&[Streams, Http, Diod]))],
        (BenchPace::Quick, CopyDirection::Write) => vec![(25, once(&[Streams, Http]))],
        (BenchPace::Tiny, _) if rtt == MIDDLE => vec![(1, everybody(1)), (0, everybody(1))],
        (BenchPace::Tiny, _) => vec![(1, once(&[Streams, Http]))],
    }
}

/// Runs all contestants' turns for a cell.
fn run(
    contest: &StreamingContest,
    cell: TableCell,
    turns: &[(CopyTool, usize)],
    times: &mut TurnTimes,
) -> io::Result<()> {
    let mut said = Vec::new();
    for round in 0..turns.iter().map(|(_, rounds)| *rounds).max().unwrap_or(0) {
        for &(tool, rounds) in turns {
            let no_key = round > 0 || !matches!(tool, Streams | Http | Diod);
            if round >= rounds || no_key && !contest.has_time() {
                continue;
            }
            let before = contest.far.dropped();
            if let Some(took) = contest.copy(tool, cell.direction, cell.size)? {
                times.entry((cell, tool)).or_default().push(took);
                let dropped = match contest.far.dropped() - before {
                    0 => String::new(),
                    dropped => format!(" ({dropped} packets dropped)"),
                };
                said.push(format!("{} {took:.2}{dropped}", name(tool)));
            }
        }
    }
    eprintln!("  {} s: {}", cell.what(), said.join(", "));
    Ok(())
}

impl StreamingContest {
    /// Copies a file of `size` MB with a cold client and compares the result; seconds. `None` if the tool is not
    /// available.
    pub(super) fn copy(
        &self,
        tool: CopyTool,
        direction: CopyDirection,
        size: u64,
    ) -> io::Result<Option<f64>> {
        if let CopyTool::Plain(plain) = tool {
            return plain.copy(self, direction, size).map(Some);
        }
        let name = size.to_string();
        let (source, sink) = match direction {
            CopyDirection::Read => (self.served.path().join(&name), self.local.path().join("copy")),
            CopyDirection::Write => (self.served.path().join(&name), self.served.path().join("in/copy")),
        };
        let words = match direction {
            CopyDirection::Read => self.get(tool, &name, &sink)?,
            CopyDirection::Write => self.put(tool, &source, "in/copy")?,
        };
        let Some(words) = words else { return Ok(None) };
        let took = self.time(Side::Here, &words, self.limit(size))?;
        same(&source, &sink)?;
        std::fs::remove_file(sink)?;
        Ok(Some(took.as_secs_f64()))
    }

    /// A copy that takes longer has failed.
    pub(super) fn limit(&self, size: u64) -> Duration {
        Duration::from_secs(60 + size)
    }

    /// Returns the command that downloads a file, or `None` if the tool is not available.
    pub(super) fn get(&self, tool: CopyTool, name: &str, to: &Path) -> io::Result<Option<Vec<OsString>>> {
        Ok(match (tool, &self.nginx, &self.sshd) {
            (Streams | Compat | Diod, ..) => {
                let words = |(place, how): (_, Vec<_>)| [&[place, to.into()], &how[..]].concat();
                self.place(tool, name)?.map(words).map(|words| self.ours("get", words))
            }
            (Http, Some(nginx), _) => Some(curl::get(self.address(nginx)?, name, to)),
            (Sftp, _, Some(sshd)) => {
                let from = self.served.path().join(name);
                Some(sftp::sftp(self.address(sshd)?, self.run.path(), sftp::SftpCommand::Get(&from, to))?)
            }
            _ => None,
        })
    }

    /// Returns the command that uploads a file, or `None` if the tool is not available.
    fn put(&self, tool: CopyTool, from: &Path, name: &str) -> io::Result<Option<Vec<OsString>>> {
        Ok(match (tool, &self.nginx, &self.sshd) {
            (Streams | Compat | Diod, ..) => {
                let words = |(place, how): (_, Vec<_>)| [&[from.into(), place], &how[..]].concat();
                self.place(tool, name)?.map(words).map(|words| self.ours("put", words))
            }
            (Http, Some(nginx), _) => Some(curl::put(from, self.address(nginx)?, name)),
            (Sftp, _, Some(sshd)) => {
                let to = self.served.path().join(name);
                Some(sftp::sftp(self.address(sshd)?, self.run.path(), sftp::SftpCommand::Put(from, &to))?)
            }
            _ => None,
        })
    }

    /// Returns the operand of a file for our command, with the options that it needs.
    fn place(&self, tool: CopyTool, name: &str) -> io::Result<Option<(OsString, Vec<OsString>)>> {
        let (server, aname) = match (tool, &self.diod) {
            (Diod, None) => return Ok(None),
            (Diod, Some(diod)) => (diod, vec!["--aname".into(), self.served.path().into()]),
            _ => (&self.ours, Vec::new()),
        };
        let plain = if tool == Streams { vec![] } else { vec!["--dialect".into(), "L".into()] };
        Ok(Some((self.remote(server, name)?, [aname, plain].concat())))
    }
}

/// Fails unless both files have the same bytes.
fn same(source: &Path, copy: &Path) -> io::Result<()> {
    let (mut a, mut b) = (std::fs::File::open(source)?, std::fs::File::open(copy)?);
    let (mut ours, mut theirs) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut left = a.metadata()?.len();
    let is_long = b.metadata()?.len() == left;
    while is_long && left > 0 {
        let len = left.min(1 << 20) as usize;
        a.read_exact(&mut ours[..len])?;
        b.read_exact(&mut theirs[..len])?;
        if ours[..len] != theirs[..len] {
            break;
        }
        left -= len as u64;
    }
    if is_long && left == 0 {
        Ok(())
    } else {
        Err(io::Error::other(format!("{} is no copy", copy.display())))
    }
}

impl TableCell {
    fn what(&self) -> String {
        let direction = match self.direction {
            CopyDirection::Read => "read",
            CopyDirection::Write => "write",
        };
        format!("{direction} {} MB, {} ms", self.size, millis(self.rtt))
    }

    /// Returns the rates, MB/s.
    fn rates(&self, tool: CopyTool, times: &TurnTimes) -> Vec<f64> {
        let took = times.get(&(*self, tool)).map_or(&[][..], Vec::as_slice);
        took.iter().map(|took| self.size as f64 / took).collect()
    }
}

fn millis(rtt: Duration) -> f64 {
    rtt.as_secs_f64() * 1e3
}

fn name(tool: CopyTool) -> &'static str {
    ALL.iter().find(|(one, _)| *one == tool).map_or("", |(_, name)| name)
}

/// Returns the measured cells, either with empty or with other files.
fn cells(times: &TurnTimes, empty: bool) -> Vec<TableCell> {
    let mut cells: Vec<TableCell> = times.keys().map(|(cell, _)| *cell).collect();
    cells.dedup();
    cells.retain(|cell| (cell.size == 0) == empty);
    cells
}

fn keys(contest: &StreamingContest, times: &TurnTimes, report: &mut BenchReport) {
    let key = |direction, rtt, tool| {
        // Use the largest file.
        let cell =
            cells(times, false).into_iter().rfind(|cell| cell.direction == direction && cell.rtt == rtt)?;
        row(&cell, tool, Http, times).vs_peer()
    };
    const READ: [&str; 5] =
        ["read05_vs_http", "read15_vs_http", "read50_vs_http", "read100_vs_http", "read200_vs_http"];
    const WRITE: [&str; 5] =
        ["write05_vs_http", "write15_vs_http", "write50_vs_http", "write100_vs_http", "write200_vs_http"];
    for (direction, names) in [(CopyDirection::Read, READ), (CopyDirection::Write, WRITE)] {
        for (rtt, name) in RTTS.into_iter().zip(names) {
            report.key(name, key(direction, rtt, Streams));
        }
    }
    report.key("compat50_vs_http", key(CopyDirection::Read, MIDDLE, Diod));
    report.key("plain50_vs_http", key(CopyDirection::Read, MIDDLE, CopyTool::Plain(PlainReadSize::Seed)));
    let size = contest.pace.of("200 MB", "200 MB at 50 ms, less elsewhere", "1 MB");
    report.notes.push(format!("files of the keys read*, write*, compat50, plain50: {size}"));
    report.notes.push(PlainReadSize::note(contest.pace));
}

fn row(cell: &TableCell, ours: CopyTool, peer: CopyTool, times: &TurnTimes) -> ReportRow {
    let what = format!("{}: {} / {}", cell.what(), name(ours), name(peer));
    let (ours, peer) = (cell.rates(ours, times), cell.rates(peer, times));
    ReportRow { what, unit: "MB/s", ours, peer, limit: Vec::new() }
}

/// Adds rows: all tools beside HTTP, ours beside SFTP, and the set-up times.
fn rows(times: &TurnTimes, report: &mut BenchReport) {
    let pairs = ALL.into_iter().filter(|(tool, _)| *tool != Http).map(|(tool, _)| (tool, Http));
    let pairs: Vec<_> = pairs.chain([(Streams, Sftp), (Compat, Sftp)]).collect();
    for cell in cells(times, false) {
        for &(ours, peer) in &pairs {
            let row = row(&cell, ours, peer, times);
            if !row.ours.is_empty() && !row.peer.is_empty() {
                report.push(row);
            }
        }
    }
    for cell in cells(times, true) {
        let trips = |tool| {
            let took = times.get(&(cell, tool)).map_or(&[][..], Vec::as_slice);
            took.iter().map(|took| took / cell.rtt.as_secs_f64()).collect::<Vec<f64>>()
        };
        for (tool, name) in ALL.into_iter().filter(|(tool, _)| *tool != Http) {
            let what = format!("{}: set-up, {name} / HTTP", cell.what());
            let (ours, peer) = (trips(tool), trips(Http));
            if !ours.is_empty() {
                report.push(ReportRow { what, unit: "rtts", ours, peer, limit: Vec::new() });
            }
        }
        without_set_up(cell, times, report);
    }
}

/// Adds rows of the largest file at this round trip, with the time of an empty one subtracted.
fn without_set_up(empty: TableCell, times: &TurnTimes, report: &mut BenchReport) {
    let same = |cell: &TableCell| (cell.direction, cell.rtt) == (empty.direction, empty.rtt);
    let Some(cell) = cells(times, false).into_iter().rfind(same) else { return };
    let rates = |tool| {
        let set_up = times.get(&(empty, tool)).and_then(|took| median(took));
        let took = times.get(&(cell, tool)).map_or(&[][..], Vec::as_slice);
        let rate = |took: &f64| Some(cell.size as f64 / (took - set_up?));
        took.iter().filter_map(rate).collect::<Vec<f64>>()
    };
    for (tool, name) in ALL.into_iter().filter(|(tool, _)| *tool != Http) {
        let what = format!("{}: w/o set-up, {name} / HTTP", cell.what());
        let (ours, peer) = (rates(tool), rates(Http));
        if !ours.is_empty() && !peer.is_empty() {
            report.push(ReportRow { what, unit: "MB/s", ours, peer, limit: Vec::new() });
        }
    }
}

/// Draws throughput over round trips, and time over sizes.
fn figures(times: &TurnTimes, report: &mut BenchReport) {
    let (whole, all) = (&ALL[..5], &ALL[..]);
    let over_rtt = [
        (CopyDirection::Read, whole, "streaming-read", "A large file is read over 100 Mbit/s"),
        (CopyDirection::Write, whole, "streaming-write", "A large file is written over 100 Mbit/s"),
        (
            CopyDirection::Read,
            all,
            "streaming-plain",
            "A file is read over 100 Mbit/s, one piece at a time, too",
        ),
    ];
    for (direction, tools, file, title) in over_rtt {
        // Use the largest file that this tool has copied.
        let point = |rtt, tool| {
            let mut all = cells(times, false).into_iter().rev();
            let cell = all.find(|cell| {
                (cell.direction, cell.rtt) == (direction, rtt) && times.contains_key(&(*cell, tool))
            })?;
            Some((millis(rtt), median(&cell.rates(tool, times))?))
        };
        let plot = PlotLabels { file, title, x: "round trip, ms", y: "MB/s" };
        draw(plot, tools, |tool| RTTS.into_iter().filter_map(|rtt| point(rtt, tool)).collect(), report);
    }
    let middle = |cell: &TableCell| cell.direction == CopyDirection::Read && cell.rtt == MIDDLE;
    let sizes: Vec<TableCell> = cells(times, false).into_iter().filter(middle).collect();
    let point = |cell: &TableCell, tool| Some((cell.size as f64, median(times.get(&(*cell, tool))?)?));
    let plot = PlotLabels {
        file: "streaming-sizes",
        title: "Files of several sizes are read over 100 Mbit/s and 50 ms",
        x: "size, MB",
        y: "seconds",
    };
    draw(plot, whole, |tool| sizes.iter().filter_map(|cell| point(cell, tool)).collect(), report);
}

fn draw(
    plot: PlotLabels,
    tools: &[(CopyTool, &'static str)],
    points: impl Fn(CopyTool) -> Vec<(f64, f64)>,
    report: &mut BenchReport,
) {
    let curves: Vec<_> = tools.iter().map(|&(tool, name)| (name, points(tool))).collect();
    let curves: Vec<_> = curves.into_iter().filter(|(_, points)| !points.is_empty()).collect();
    if !curves.is_empty() {
        report.figures.push(PlotFigure { plot, curves });
    }
}
