//! The memory of a mux: for each attached idle client, for each mounted unused server, and for each fid that a client
//! has on a mounted server. The kernel's memory for sockets is not included.

use std::ffi::{OsStr, OsString};
use std::io;

use nine_proto::Fid;
use nine_proto::msg::Tmsg;

use super::MuxContest;
use crate::files::file_name;
use crate::place::CpuPlacement;
use crate::report::{BenchReport, ReportRow};
use crate::server::MeasuredServer;
use crate::wire::{LeanConnection, encoded, on_file, walk_to};

/// The mounted server's root.
const DIR: Fid = Fid(1);
const S_IFREG: u32 = 0o100_000;

pub(super) fn measure(contest: &MuxContest, report: &mut BenchReport) -> io::Result<()> {
    CpuPlacement::Free.arrange(&[])?;
    clients(contest, report)?;
    upstreams(contest, report)?;
    fids(contest, report)
}

fn clients(contest: &MuxContest, report: &mut BenchReport) -> io::Result<()> {
    let ram = contest.ram("ram-clients")?;
    let mux = contest.mux("mux-clients", &ram.mount_line("u"))?;
    let sizes = contest.pace.of([1000, 2000, 4000, 8000], [500, 1000, 2000, 4000], [10, 20, 30, 40]);
    let found = mux.memory_for_each(&sizes, MeasuredServer::dial_more)?;
    rows(report, "idle client", "idle_client_bytes", &sizes, &found);
    Ok(())
}

/// The servers are one process with a socket for each: only the mux is measured.
fn upstreams(contest: &MuxContest, report: &mut BenchReport) -> io::Result<()> {
    let sizes = contest.pace.of([64, 128, 256, 512], [64, 128, 256, 512], [2, 3, 4, 5]);
    let sockets: Vec<OsString> =
        (0..sizes[3]).map(|n| contest.sockets.path().join(format!("idle{n}")).into_os_string()).collect();
    let (last, others) = sockets.split_last().ok_or(io::ErrorKind::InvalidInput)?;
    let words: Vec<&OsStr> = others.iter().map(OsString::as_os_str).collect();
    let _servers = MeasuredServer::role("ram", &words, last.into())?;
    let memory = |n: u64| -> io::Result<u64> {
        let line = |i| format!("mount unix!{} /u{i}\n", sockets[i as usize].display());
        let mux = contest.mux(&format!("mux-upstreams-{n}"), &(0..n).map(line).collect::<String>())?;
        let _client = mux.dial()?;
        mux.memory()
    };
    let one = memory(1)?;
    let each = |&n: &u64| Ok(memory(n)?.saturating_sub(one) as f64 / (n - 1) as f64);
    let found = sizes.iter().map(each).collect::<io::Result<Vec<_>>>()?;
    rows(report, "idle mounted server", "idle_upstream_bytes", &sizes, &found);
    report.notes.push("idle mounted servers: one process with a socket and a tree for each".into());
    Ok(())
}

fn fids(contest: &MuxContest, report: &mut BenchReport) -> io::Result<()> {
    let ram = contest.ram("ram-fids")?;
    let sizes = contest.pace.of(
        [10_000, 30_000, 60_000, 100_000],
        [10_000, 30_000, 60_000, 100_000],
        [10, 20, 30, 40],
    );
    let make = |n| {
        let (tag, _) = on_file(n);
        let name = file_name(n);
        let file = Tmsg::Mknod {
            dfid: Fid(0),
            name: name.as_bytes(),
            mode: S_IFREG | 0o644,
            major: 0,
            minor: 0,
            gid: 0,
        };
        encoded(&file, tag)
    };
    ram.dial()?.call_all((0..sizes[3] as u32).map(make))?;
    let mux = contest.mux("mux-fids", &ram.mount_line("u"))?;
    let walk = |mux: &MeasuredServer, from: u64, to: u64| -> io::Result<Vec<LeanConnection>> {
        let mut conn = mux.dial()?;
        conn.walk_path(DIR, &["u"])?;
        Ok(vec![conn.call_all((from as u32..to as u32).map(|n| walk_to(DIR, n)))?])
    };
    let found = mux.memory_for_each(&sizes, walk)?;
    rows(report, "fid on a mounted server", "cfid_bytes", &sizes, &found);
    Ok(())
}

/// Adds a row for each number; the key gets the worst figure.
fn rows(report: &mut BenchReport, what: &str, key: &'static str, sizes: &[u64], found: &[f64]) {
    for (size, found) in sizes.iter().zip(found) {
        report.push(ReportRow::counted(format!("memory per {what}, of {size}"), "bytes", *found, None));
    }
    report.key(key, found.iter().copied().reduce(f64::max));
}
