//! One of ten servers never answers reads. Measures the effect on clients of the other nine while other clients keep
//! asking the silent one. The peer is the same mux with ten working servers and the same load.

use std::io::{self, Read, Write};
use std::time::Instant;

use nine_proto::msg::Tmsg;
use nine_proto::{Fid, OpenFlags, Tag};

use super::{MuxContest, hop};
use crate::files::SMALL;
use crate::place::CpuPlacement;
use crate::report::{BenchReport, BenchTurn, alternate};
use crate::server::MeasuredServer;
use crate::stats::quantile;
use crate::wire::{LeanConnection, encoded};

/// Servers that work.
const WELL: u32 = 9;
/// Clients that ask the tenth.
const OTHERS: usize = 8;
/// Requests that each of them has in flight at the start.
const REQUESTS_AHEAD: usize = 32;
/// Our requests between two of theirs.
const BETWEEN: usize = 64;
const COUNT: u32 = 4096;

pub(super) fn measure(contest: &MuxContest, report: &mut BenchReport) -> io::Result<()> {
    let sockets = contest.sockets.path();
    let servers = (0..WELL + 1).map(|n| contest.ram(&format!("well{n}"))).collect::<io::Result<Vec<_>>>()?;
    let mute = MeasuredServer::role("mute", &[], sockets.join("mute"))?;
    servers.iter().chain([&mute]).try_for_each(hop::write_small)?;
    let mux = |name: &str, tenth: &MeasuredServer| {
        let all = servers[..WELL as usize].iter().chain([tenth]).enumerate();
        contest.mux(name, &all.map(|(n, server)| server.mount_line(&format!("s{n}"))).collect::<String>())
    };
    let (stalled, healthy) = (mux("stalled", &mute)?, mux("healthy", &servers[WELL as usize])?);
    let pids: Vec<_> = servers.iter().chain([&mute, &stalled, &healthy]).map(MeasuredServer::pid).collect();
    CpuPlacement::Same.arrange(&pids)?;
    for (share, key) in [(0.5, None), (0.99, Some("stalled_p99_ratio"))] {
        let row = alternate(
            format!("read 4 KiB of nine, the tenth silent: p{:.0}", share * 100.0),
            "us",
            contest.pace.rounds(),
            [Some(turn(contest, &stalled, share)?), Some(turn(contest, &healthy, share)?), None],
        )?;
        if let Some(key) = key {
            report.key(key, row.vs_peer());
        }
        report.push(row);
    }
    report.notes.push("silent server: the peer is the same mux with a tenth server that answers".into());
    Ok(())
}

/// Measures a quantile of our client's response times.
fn turn(contest: &MuxContest, mux: &MeasuredServer, share: f64) -> io::Result<BenchTurn<'static>> {
    let mut conn = mux.dial()?;
    for n in 0..WELL {
        open(&mut conn, n)?;
    }
    let mut others = (0..OTHERS).map(|_| StalledReader::new(mux)).collect::<io::Result<Vec<_>>>()?;
    let (turn, mut answer) = (contest.pace.turn(), vec![0; 11 + COUNT as usize]);
    let requests: Vec<_> = (0..WELL).map(|n| read(n, Tag(0))).collect();
    Ok(Box::new(move || {
        let (begun, mut waits) = (Instant::now(), Vec::new());
        while begun.elapsed() < turn {
            let next = waits.len() / BETWEEN % OTHERS;
            others[next].ask()?;
            for request in requests.iter().cycle().take(BETWEEN) {
                let asked = Instant::now();
                conn.exchange(request, &mut answer)?;
                waits.push(asked.elapsed().as_secs_f64() * 1e6);
            }
        }
        quantile(&waits, share).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }))
}

/// A client that reads from the tenth server without waiting for answers.
struct StalledReader {
    conn: LeanConnection,
    tag: u16,
}

impl StalledReader {
    fn new(mux: &MeasuredServer) -> io::Result<Self> {
        let mut conn = mux.dial()?;
        open(&mut conn, WELL)?;
        conn.stream().set_nonblocking(true)?;
        let mut other = Self { conn, tag: 0 };
        (0..REQUESTS_AHEAD).try_for_each(|_| other.ask())?;
        Ok(other)
    }

    /// Sends one more read if the mux accepts it; discards received answers.
    fn ask(&mut self) -> io::Result<()> {
        self.tag += 1;
        let stream = self.conn.stream();
        let done = [stream.read(&mut [0; 256 << 10]), stream.write(&read(WELL, Tag(self.tag)))];
        done.into_iter().try_for_each(|done| match done {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        })
    }
}

/// Opens the file of a server on a fid of its own.
fn open(conn: &mut LeanConnection, server: u32) -> io::Result<()> {
    conn.walk_path(Fid(server + 1), &[&format!("s{server}"), SMALL])?;
    conn.call(&Tmsg::Lopen { fid: Fid(server + 1), flags: OpenFlags::READ.to_wire() })
}

fn read(server: u32, tag: Tag) -> Vec<u8> {
    encoded(&Tmsg::Read { fid: Fid(server + 1), offset: 0, count: COUNT }, tag)
}
