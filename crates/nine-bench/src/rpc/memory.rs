//! The cost of idle clients: memory of the server process for each attached connection, each fid, and each open file.
//! The servers are fresh, so that no earlier memory is reused. The kernel's memory for sockets and files is not
//! included.

use std::io;

use nine_proto::msg::Tmsg;
use nine_proto::{Fid, OpenFlags};

use super::RpcContest;
use crate::files::MANY;
use crate::peers::diod;
use crate::place::CpuPlacement;
use crate::report::{BenchReport, ReportRow};
use crate::server::MeasuredServer;
use crate::wire::{LeanConnection, encoded, on_file, walk_to};

/// The directory of files.
const DIR: Fid = Fid(1);

pub(super) fn measure(contest: &RpcContest, report: &mut BenchReport) -> io::Result<()> {
    CpuPlacement::Free.arrange(&[])?;
    // A server reserves half of its descriptors for open files, and a part of the others for connections.
    let descriptors = nine_net::rt::raise_nofile()?;
    let conns = contest.pace.of([1000, 2000, 4000, 8000], [500, 1000, 2000, 4000], [10, 20, 30, 40]);
    let conns = conns.map(|n: u64| n.min(descriptors / 3));
    let idle = each(contest, report, "idle connection", &conns, MeasuredServer::dial_more)?;
    report.key("idle_conn_bytes", Some(idle));
    let fids = [4_000, 10_000, 15_000, 30_000, 60_000, 100_000];
    let fids: Vec<u64> = fids.into_iter().filter(|&n| n <= u64::from(contest.many)).collect();
    let fids = if fids.is_empty() { vec![u64::from(contest.many)] } else { fids };
    // A connection may use half of the descriptors left for open files; each size uses a new connection.
    let most = u64::from(contest.many).min(descriptors * 3 / 10);
    let open = [1_000, 2_000, 4_000, 6_000].map(|n: u64| n.min(most));
    let walked = each(contest, report, "fid", &fids, |server, from, to| on_files(server, from, to, false))?;
    let opened =
        each(contest, report, "open fid", &open, |server, from, to| on_files(server, from, to, true))?;
    report.key("fid_bytes", Some(walked.max(opened)));
    Ok(())
}

/// Returns the worst figure over several sizes, on fresh servers; each size and the mean get a row.
fn each(
    contest: &RpcContest,
    report: &mut BenchReport,
    what: &str,
    sizes: &[u64],
    add: impl Fn(&MeasuredServer, u64, u64) -> io::Result<Vec<LeanConnection>>,
) -> io::Result<f64> {
    let sockets = tempfile::tempdir_in(contest.sockets.path())?;
    let ours = MeasuredServer::ours(contest.dir.path(), sockets.path())?.memory_for_each(sizes, &add)?;
    let theirs = diod::start(contest.dir.path(), sockets.path())?;
    let theirs = theirs.map(|diod| diod.memory_for_each(sizes, &add)).transpose()?;
    for (i, size) in sizes.iter().enumerate() {
        let peer = theirs.as_ref().map(|theirs| theirs[i]);
        report.push(ReportRow::counted(format!("memory per {what}, of {size}"), "bytes", ours[i], peer));
    }
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    let peer = theirs.as_deref().map(mean);
    report.push(ReportRow::counted(format!("memory per {what}, mean"), "bytes", mean(&ours), peer));
    Ok(ours.into_iter().fold(0.0, f64::max))
}

/// Walks to files on one more connection, each on a fid of its own, and opens them if `open`.
fn on_files(server: &MeasuredServer, from: u64, to: u64, open: bool) -> io::Result<Vec<LeanConnection>> {
    let mut conn = server.dial()?;
    conn.walk(Fid(0), DIR, MANY.as_bytes())?;
    let all = from as u32..to as u32;
    conn = conn.call_all(all.clone().map(|n| walk_to(DIR, n)))?;
    if open {
        let opens = all.map(|n| {
            let (tag, fid) = on_file(n);
            encoded(&Tmsg::Lopen { fid, flags: OpenFlags::READ.to_wire() }, tag)
        });
        conn = conn.call_all(opens)?;
    }
    Ok(vec![conn])
}
