//! The cost of a mux between client and server: the same requests directly to a server, and through a mux that mounts
//! it. The limit is an echo of the same bytes behind a protocol-agnostic relay.

use std::io;

use nine_proto::msg::{Data, Tmsg};
use nine_proto::{Fid, GetMask, OpenFlags, Tag};
use rustix::process::Pid;

use super::MuxContest;
use crate::files::{LARGE, SMALL, fill};
use crate::limit::{BulkRequest, LimitServer};
use crate::peers::diod;
use crate::place::CpuPlacement;
use crate::report::{BenchReport, BenchTurn, ReportRow, alternate};
use crate::scratch::ScratchDir;
use crate::server::MeasuredServer;
use crate::turns::{exchange, rate, read_whole};
use crate::wire::{CycleLoad, LeanConnection, encoded};

const COUNT: usize = 4096;
/// Requests in flight in rows with many.
const DEPTH: u16 = 32;
/// The fid of the file.
const FILE: Fid = Fid(1);
/// The server's mount point.
const AT: &str = "u";

/// Small operations.
#[derive(Clone, Copy)]
enum HopOp {
    Getattr,
    Read,
}

pub(super) fn measure(contest: &MuxContest, report: &mut BenchReport) -> io::Result<()> {
    let dir = ScratchDir::new()?;
    fill(dir.path(), 0, 0)?;
    let ram = contest.ram("ram")?;
    write_small(&ram)?;
    let disk = MeasuredServer::ours(dir.path(), contest.sockets.path())?;
    let echo = LimitServer::start("echo", contest.sockets.path(), &[])?;
    let relay = LimitServer::start("relay", contest.sockets.path(), &[echo.socket.as_os_str()])?;
    let mut worst = [None::<f64>; 2];
    let servers = [
        ("ram", Some(ram)),
        ("disk", Some(disk)),
        ("diod", diod::start(dir.path(), contest.sockets.path())?),
    ];
    for (name, server) in servers {
        let Some(server) = server else { continue };
        let mux = contest.mux(&format!("mux-{name}"), &server.mount_line(AT))?;
        CpuPlacement::Same.arrange(&[mux.pid(), server.pid(), echo.child.pid(), relay.child.pid()])?;
        for (key, depth) in [1, DEPTH].into_iter().enumerate() {
            for op in [HopOp::Getattr, HopOp::Read] {
                let row = alternate(
                    format!("{}, {name}, depth {depth}, same core", op.label()),
                    "us",
                    contest.pace.rounds(),
                    [
                        Some(op.turn(contest, op.ready(mux.dial()?, &[AT, SMALL])?, depth)?),
                        Some(op.turn(contest, op.ready(server.dial()?, &[SMALL])?, depth)?),
                        Some(op.turn(contest, LeanConnection::bare(&relay.socket)?, depth)?),
                    ],
                )?;
                // diod is not ours, so its cost counts for no key.
                if let (true, Some(ratio)) = (name != "diod", row.vs_peer()) {
                    worst[key] = Some(worst[key].map_or(ratio, |worst: f64| worst.max(ratio)));
                }
                report.push(row);
            }
        }
    }
    for depth in [1, DEPTH] {
        for op in [HopOp::Getattr, HopOp::Read] {
            let echoed = |limit: &LimitServer| op.turn(contest, LeanConnection::bare(&limit.socket)?, depth);
            report.push(alternate(
                format!("{}, a relay over an echo, depth {depth}, same core", op.label()),
                "us",
                contest.pace.rounds(),
                [None, Some(echoed(&relay)?), Some(echoed(&echo)?)],
            )?);
        }
    }
    report.key("hop_depth1_vs_direct", worst[0]);
    report.key("hop_depth32_vs_direct", worst[1]);
    Ok(())
}

/// Reads a cached file in messages of 1 MiB.
pub(super) fn measure_read(contest: &MuxContest, report: &mut BenchReport) -> io::Result<()> {
    let dir = ScratchDir::new()?;
    let size = contest.pace.of(256 << 20, 128 << 20, 4 << 20);
    fill(dir.path(), size, 0)?;
    let disk = MeasuredServer::ours(dir.path(), contest.sockets.path())?;
    let mux = contest.mux("mux", &disk.mount_line(AT))?;
    let large = dir.path().join(LARGE);
    let bulk = LimitServer::start("bulk", contest.sockets.path(), &[large.as_os_str()])?;
    let relay = LimitServer::start("relay", contest.sockets.path(), &[bulk.socket.as_os_str()])?;
    let mut row = |label: &str, pids: &[Pid], place: CpuPlacement| -> io::Result<Option<f64>> {
        place.arrange(pids)?;
        let mut raw = LeanConnection::bare(&relay.socket)?;
        let mut buf = vec![0; 256 << 10];
        let limit: BenchTurn<'_> = Box::new(move || {
            let begun = std::time::Instant::now();
            BulkRequest::Write.move_bytes(raw.stream(), size, &mut buf)?;
            rate(begun, size, size)
        });
        let ours = read_whole(&mux, &format!("{AT}/{LARGE}"), size)?;
        let direct = read_whole(&disk, LARGE, size)?;
        let row: ReportRow = alternate(
            format!("read in 1 MiB, {} MiB, disk, {label}", size >> 20),
            "GB/s",
            contest.pace.rounds(),
            [Some(ours), Some(direct), Some(limit)],
        )?;
        Ok(report.push(row).vs_peer())
    };
    let all = [mux.pid(), disk.pid(), bulk.child.pid(), relay.child.pid()];
    let key = row("two cores, free", &all, CpuPlacement::Free)?;
    row("client on a core, servers on the other", &all, CpuPlacement::Cross)?;
    report.key("read1m_vs_direct", key);
    Ok(())
}

/// Creates the same file of 8 KiB that host directories have.
pub(super) fn write_small(server: &MeasuredServer) -> io::Result<()> {
    let mut conn = server.dial()?;
    conn.walk(Fid(0), FILE, b"")?;
    let flags = OpenFlags::RDWR.to_wire();
    conn.call(&Tmsg::Lcreate { fid: FILE, name: SMALL.as_bytes(), flags, mode: 0o644, gid: 0 })?;
    conn.call(&Tmsg::Write { fid: FILE, offset: 0, data: Data::Bytes(&[7; 8192]) })
}

impl HopOp {
    fn label(self) -> &'static str {
        match self {
            Self::Getattr => "getattr",
            Self::Read => "read 4 KiB",
        }
    }

    /// Walks [`FILE`] to the file and opens it if necessary.
    fn ready(self, mut conn: LeanConnection, path: &[&str]) -> io::Result<LeanConnection> {
        conn.walk_path(FILE, path)?;
        if let Self::Read = self {
            conn.call(&Tmsg::Lopen { fid: FILE, flags: OpenFlags::READ.to_wire() })?;
        }
        Ok(conn)
    }

    /// Measures an operation with `depth` in flight, microseconds.
    fn turn(self, contest: &MuxContest, conn: LeanConnection, depth: u16) -> io::Result<BenchTurn<'static>> {
        let turn = contest.pace.turn();
        let (request, answer) = match self {
            Self::Getattr => (Tmsg::Getattr { fid: FILE, mask: GetMask::BASIC.0 }, 160),
            Self::Read => (Tmsg::Read { fid: FILE, offset: 0, count: COUNT as u32 }, 11 + COUNT),
        };
        if depth == 1 {
            return Ok(exchange(turn, conn, encoded(&request, Tag(0)), answer));
        }
        let mut load = CycleLoad::new(vec![conn], depth, |_, tag| vec![encoded(&request, tag)])?;
        Ok(Box::new(move || Ok(1e6 / load.run(turn)?)))
    }
}
