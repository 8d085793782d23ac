//! A data set that is larger than the allowed cache. Each server runs in a memory cgroup of an eighth of the set. The
//! page cache is emptied before each turn, because it is shared by all servers.

use std::io;
use std::time::Duration;

use super::cage::{MemoryCgroup, drop_caches};
use super::load::{self, LoadResult};
use super::set::{self, RequestMix};
use super::{HttpContest, WebServer};
use crate::args::BenchPace;
use crate::peers::nginx;
use crate::place::CpuPlacement;
use crate::report::{BenchReport, ReportRow};
use crate::scratch::ScratchDir;
use crate::stats::quantile;

/// Clients against nginx, and clients for the overload.
const CLIENTS: usize = 64;
const OVERLOAD: usize = 256;

/// A server in its cgroup.
struct CagedServer {
    web: WebServer,
    _cage: MemoryCgroup,
}

impl CagedServer {
    fn new(name: &str, bytes: u64, web: WebServer) -> io::Result<Option<Self>> {
        let Some(cage) = MemoryCgroup::new(name, bytes) else { return Ok(None) };
        cage.hold(web.child.pid())?;
        Ok(Some(Self { web, _cage: cage }))
    }
}

pub fn measure(contest: &HttpContest, report: &mut BenchReport) -> io::Result<()> {
    let directories = contest.pace.of(679, 60, 2);
    let (dir, run) = (ScratchDir::new()?, ScratchDir::for_sockets()?);
    let bytes = set::size(directories) / 8 + (64 << 20);
    set::make(dir.path(), directories)?;
    let nginx = match contest.servers[1] {
        Some(_) => {
            let addr = super::free()?;
            let child = nginx::local(dir.path(), run.path(), addr)?;
            CagedServer::new("nginx", bytes, WebServer { child, addr })?
        }
        None => None,
    };
    let fifo = CagedServer::new("fifo", bytes, WebServer::role("web", dir.path())?)?;
    let short = CagedServer::new("srpt", bytes, WebServer::role("web-srpt", dir.path())?)?;
    // A tiny run does not touch the machine's cache.
    let is_cold = contest.pace != BenchPace::Tiny;
    let emptied = if is_cold { drop_caches() } else { Ok(()) };
    let (Some(fifo), Some(short), Ok(())) = (fifo, short, emptied) else {
        for key in ["disk_vs_nginx", "srpt_median_vs_fifo"] {
            report.key(key, None);
            report.notes.push(format!("{key} is na: no memory cgroup, or the page cache cannot be emptied"));
        }
        return Ok(());
    };
    report.notes.push(format!(
        "disk: {directories} directories, {} MB; each server in a memory cgroup of {} MB, page cache emptied before \
         each turn",
        set::size(directories) / 1_000_000,
        bytes / 1_000_000
    ));
    let pids: Vec<_> = [Some(&fifo), Some(&short), nginx.as_ref()]
        .into_iter()
        .flatten()
        .map(|one| one.web.child.pid())
        .collect();
    CpuPlacement::Cross.arrange(&pids)?;
    let time = contest.pace.of(Duration::from_secs(15), Duration::from_secs(5), Duration::from_millis(100));
    let (mut plain, mut loaded) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for round in 0..contest.pace.of(3, 2, 1) {
        let turn = |one: &CagedServer, clients| -> io::Result<LoadResult> {
            if is_cold {
                drop_caches()?;
            }
            load::run(one.web.addr, clients, &mut RequestMix::new(round, directories), time)
        };
        plain[0].push(turn(&fifo, CLIENTS)?);
        if let Some(nginx) = &nginx {
            plain[1].push(turn(nginx, CLIENTS)?);
        }
        loaded[0].push(turn(&short, OVERLOAD)?);
        loaded[1].push(turn(&fifo, OVERLOAD)?);
    }
    let of =
        |seen: &[LoadResult], figure: fn(&LoadResult) -> f64| seen.iter().map(figure).collect::<Vec<_>>();
    let row = |what: String, unit, all: &[Vec<LoadResult>; 2], figure: fn(&LoadResult) -> f64| ReportRow {
        what,
        unit,
        ours: of(&all[0], figure),
        peer: of(&all[1], figure),
        ..ReportRow::default()
    };
    let median = |seen: &LoadResult| quantile(&seen.times, 0.5).unwrap_or_default() / 1000.0;
    let p99 = |seen: &LoadResult| quantile(&seen.times, 0.99).unwrap_or_default() / 1000.0;
    let longest = |seen: &LoadResult| quantile(&seen.times, 1.0).unwrap_or_default() / 1000.0;
    let requests = row(format!("from disk, nginx, {CLIENTS} clients"), "1/s", &plain, LoadResult::rate);
    report.key("disk_vs_nginx", requests.vs_peer());
    report.push(requests);
    report.push(row(format!("from disk, median, nginx, {CLIENTS} clients"), "ms", &plain, median));
    let shorter =
        row(format!("from disk, median, srpt over fifo, {OVERLOAD} clients"), "ms", &loaded, median);
    report.key("srpt_median_vs_fifo", shorter.vs_peer());
    report.push(shorter);
    report.push(row(
        format!("from disk, requests, srpt over fifo, {OVERLOAD} clients"),
        "1/s",
        &loaded,
        LoadResult::rate,
    ));
    report.push(row(format!("from disk, 99th, srpt over fifo, {OVERLOAD} clients"), "ms", &loaded, p99));
    report.push(row(
        format!("from disk, longest, srpt over fifo, {OVERLOAD} clients"),
        "ms",
        &loaded,
        longest,
    ));
    Ok(())
}
