//! Figures 11 and 12: a walk over mount points, and a read of a union with many members.

use std::io;
use std::time::{Duration, Instant};

use nine_proto::msg::{Names, Tmsg};
use nine_proto::{Fid, OpenFlags, Tag};

use super::{CostGrowth, MuxContest};
use crate::limit::LimitServer;
use crate::place::CpuPlacement;
use crate::plot::PlotLabels;
use crate::report::{BenchRace, BenchReport, BenchTurn};
use crate::server::MeasuredServer;
use crate::wire::{LeanConnection, encoded};

/// The directory where walks begin.
const FROM: Fid = Fid(1);
const TO: Fid = Fid(2);
/// Maximum names of a walk.
const DEEPEST: usize = 16;
/// Divisor for the length of a turn, because there are many turns.
const SHORT: u32 = 4;
/// Size of a directory read, bytes.
const DIR_READ_LEN: u32 = 8168;

/// Measures one walk over as many names as mount points.
pub(super) fn walk(contest: &MuxContest, report: &mut BenchReport) -> io::Result<()> {
    let sizes = contest.pace.of(vec![1, 2, 3, 4, 6, 8, 12, 16], vec![1, 2, 4, 8, 12, 16], vec![1, 8, 16]);
    let echo = LimitServer::start("echo", contest.sockets.path(), &[])?;
    // Flat directories d01 to d16; each has the next one bound to its `n`. The last `n` is a separate tree.
    let mut script = format!("mount ram: /{}/n\n", flat(DEEPEST));
    for n in (1..DEEPEST).rev() {
        script += &format!("bind /{} /{}/n\n", flat(n + 1), flat(n));
    }
    let bound = contest.mux("bound", &script)?;
    let plain = contest.ram("plain")?;
    mkdirs(&plain, DEEPEST)?;
    let servers = (0..=DEEPEST).map(|n| contest.ram(&format!("r{n}"))).collect::<io::Result<Vec<_>>>()?;
    servers.iter().try_for_each(|server| mkdirs(server, 1))?;
    let lines =
        servers.iter().enumerate().map(|(n, server)| server.mount_line(&format!("m{}", "/n".repeat(n))));
    let mounted = contest.mux("mounted", &lines.collect::<String>())?;
    let mut pids: Vec<_> = servers.iter().map(MeasuredServer::pid).collect();
    pids.extend([&bound, &plain, &mounted].map(MeasuredServer::pid));
    pids.push(echo.child.pid());
    CpuPlacement::Same.arrange(&pids)?;
    let races = |what: &str, mux: &MeasuredServer, from: &str| -> io::Result<Vec<BenchRace<'static>>> {
        let race = |&n: &usize| {
            let mut through = mux.dial()?;
            through.walk_path(FROM, &[from])?;
            let mut direct = plain.dial()?;
            direct.walk_path(FROM, &[])?;
            let turn = |conn| walking(contest.pace.turn() / SHORT, conn, n);
            Ok(BenchRace {
                what: format!("walk over {n} {what}, same core"),
                unit: "us",
                turns: [
                    Some(turn(through)),
                    Some(turn(direct)),
                    Some(turn(LeanConnection::bare(&echo.socket)?)),
                ],
            })
        };
        sizes.iter().map(race).collect()
    };
    let mut all = races("binds", &bound, &flat(1))?;
    all.extend(races("mounted servers", &mounted, "m")?);
    let mut rows = contest.interleave(all)?;
    let over_servers = rows.split_off(sizes.len());
    let plot = PlotLabels {
        file: "figure-11",
        title: "Walk over mount points (Figure 11)",
        x: "mount points on the way of one walk",
        y: "a walk, us",
    };
    let curves = [
        "through the mux, over binds",
        "direct, the same names without mount points",
        "echo of the same bytes",
    ];
    CostGrowth { key: "walk_growth", plot, curves, sizes: &sizes }.tell(report, rows);
    for row in over_servers {
        report.push(row);
    }
    Ok(())
}

/// Measures a read of a directory to which an empty one is bound many times.
pub(super) fn union(contest: &MuxContest, report: &mut BenchReport) -> io::Result<()> {
    let sizes: Vec<usize> = contest.pace.of(
        vec![1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
        vec![1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
        vec![1, 2, 4],
    );
    let mux = |&n: &usize| {
        let script = "mount ram: /empty\n".to_string() + &"bind -a /empty /base\n".repeat(n);
        contest.mux(&format!("union{n}"), &script)
    };
    let muxes = sizes.iter().map(mux).collect::<io::Result<Vec<_>>>()?;
    let plain = contest.ram("plain")?;
    mkdirs(&plain, 1)?;
    let pids: Vec<_> = muxes.iter().map(MeasuredServer::pid).chain([plain.pid()]).collect();
    CpuPlacement::Same.arrange(&pids)?;
    let races = |what: &str, again: bool| -> io::Result<Vec<BenchRace<'static>>> {
        let race = |(&n, mux): (&usize, &MeasuredServer)| {
            let turn = contest.pace.turn() / SHORT;
            Ok(BenchRace {
                what: format!("{what} of a union of {n}, same core"),
                unit: "us",
                turns: [
                    Some(reading(turn, mux.dial()?, "base", 1, again)),
                    Some(reading(turn, plain.dial()?, "n", n, again)),
                    None,
                ],
            })
        };
        sizes.iter().zip(&muxes).map(race).collect()
    };
    let mut all = races("first read", false)?;
    all.extend(races("read again", true)?);
    let mut rows = contest.interleave(all)?;
    let again = rows.split_off(sizes.len());
    let plot = |file, title| PlotLabels {
        file,
        title,
        x: "empty directories bound behind a base directory",
        y: "a read, us",
    };
    let curves = ["through the mux", "direct, as many reads of an empty directory", ""];
    let first = plot("figure-12", "Union read (Figure 12)");
    let first = CostGrowth { key: "", plot: first, curves, sizes: &sizes }.tell(report, rows);
    let second = plot("figure-12-again", "Union read again, its members open (Figure 12)");
    let second = CostGrowth { key: "", plot: second, curves, sizes: &sizes }.tell(report, again);
    report.key("union_growth", first.zip(second).map(|(first, second)| first.max(second)));
    Ok(())
}

/// Measures walks without their clunks.
fn walking(turn: Duration, mut conn: LeanConnection, names: usize) -> BenchTurn<'static> {
    let path = vec![&b"n"[..]; names];
    let walk = encoded(&Tmsg::Walk { fid: FROM, newfid: TO, names: Names::Slice(&path) }, Tag(0));
    let clunk = encoded(&Tmsg::Clunk { fid: TO }, Tag(0));
    let mut answer = vec![0; 9 + 13 * names];
    Box::new(move || {
        let (begun, mut took, mut done) = (Instant::now(), Duration::ZERO, 0);
        while begun.elapsed() < turn {
            let asked = Instant::now();
            conn.exchange(&walk, &mut answer)?;
            took += asked.elapsed();
            conn.exchange(&clunk, &mut answer[..7])?;
            done += 1;
        }
        Ok(took.as_secs_f64() * 1e6 / f64::from(done))
    })
}

/// Measures `count` directory reads: directly after the open, or again after a first read.
fn reading(
    turn: Duration,
    mut conn: LeanConnection,
    dir: &'static str,
    count: usize,
    again: bool,
) -> BenchTurn<'static> {
    Box::new(move || {
        let (begun, mut took, mut done) = (Instant::now(), Duration::ZERO, 0);
        while done == 0 || begun.elapsed() < turn {
            for _ in 0..count {
                conn.walk_path(FROM, &[dir])?;
                conn.call(&Tmsg::Lopen { fid: FROM, flags: OpenFlags::READ.to_wire() })?;
                let read = Tmsg::Readdir { fid: FROM, offset: 0, count: DIR_READ_LEN };
                if again {
                    conn.call(&read)?;
                }
                let asked = Instant::now();
                conn.call(&read)?;
                took += asked.elapsed();
                conn.call(&Tmsg::Clunk { fid: FROM })?;
            }
            done += 1;
        }
        Ok(took.as_secs_f64() * 1e6 / f64::from(done))
    })
}

/// Creates a chain of directories named `n`.
fn mkdirs(server: &MeasuredServer, deep: usize) -> io::Result<()> {
    let mut conn = server.dial()?;
    conn.walk_path(FROM, &[])?;
    for _ in 0..deep {
        conn.call(&Tmsg::Mkdir { dfid: FROM, name: b"n", mode: 0o755, gid: 0 })?;
        conn.walk(FROM, FROM, b"n")?;
    }
    Ok(())
}

fn flat(n: usize) -> String {
    format!("d{n:02}")
}
