//! `http`: the web server over files, beside nginx and beside the same service by system calls. That runs on threads
//! (Hickey, Figures 13 and 14) and in one thread, which shows the price of uniformity. Also the number of copies of a
//! byte (Figure 15).
//!
//! In: the data set of SpecWeb99 (`set`). Out: requests a second and response times, by the number of clients. The
//! server has one processor and the clients the other.

mod cage;
mod check;
mod copies;
mod disk;
mod load;
mod set;
mod twin;

use std::ffi::OsStr;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use crate::BenchExperiment;
use crate::args::BenchPace;
use crate::child::{self, ChildProcess};
use crate::parts::{ExperimentPart, chosen};
use crate::peers::{find, nginx, version};
use crate::place::CpuPlacement;
use crate::plot::{PlotFigure, PlotLabels};
use crate::report::{BenchReport, ReportRow};
use crate::scratch::ScratchDir;
use crate::stats::{median, quantile};
use set::RequestMix;

pub const EXPERIMENT: BenchExperiment = BenchExperiment {
    name: "http",
    what: "requests and times of answers, 1 to 512 clients, from memory and disk; against nginx and its own twins",
    run,
};

/// Numbers of clients.
const CLIENTS: [usize; 5] = [1, 8, 64, 128, 512];
/// Directories of the set in memory: 10 MB.
const DIRECTORIES: usize = 2;
/// Idle conversations.
const IDLE_CONVERSATIONS: usize = 10_000;

/// The contestants.
struct HttpContest {
    pace: BenchPace,
    /// Ours, nginx, the twin on threads, the twin in one thread.
    servers: [Option<WebServer>; 4],
    /// Our server for idle conversations.
    idle: WebServer,
    _dir: ScratchDir,
    _run: ScratchDir,
}

const NAMES: [&str; 4] = ["ours", "nginx", "threads", "system calls"];

struct WebServer {
    child: ChildProcess,
    addr: SocketAddr,
}

impl WebServer {
    /// Starts this program in a role; the address is its last word.
    fn role(role: &str, dir: &Path) -> io::Result<Self> {
        let addr = free()?;
        let child = ChildProcess::role(&[OsStr::new(role), dir.as_os_str(), OsStr::new(&addr.to_string())])?;
        Ok(Self { child, addr })
    }
}

/// Returns a free address of this machine.
fn free() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Runs a twin: see [`twin`].
pub fn serve(dir: &Path, addr: &OsStr, on_threads: bool) -> io::Result<()> {
    let addr: SocketAddr =
        addr.to_str().and_then(|addr| addr.parse().ok()).ok_or(io::ErrorKind::InvalidInput)?;
    let listener = TcpListener::bind(addr)?;
    nine_net::rt::raise_nofile()?;
    child::ready();
    if on_threads { twin::threads(dir, &listener) } else { twin::events(dir, &listener) }
}

fn run(pace: BenchPace, only: Option<&str>) -> io::Result<BenchReport> {
    let parts = chosen(&PARTS, only)?;
    let mut report = BenchReport::default();
    let contest = HttpContest::new(pace)?;
    let version = version("nginx", "nginx");
    report.notes.push(
        "the server on one processor, all clients on the other; loopback, connections that stay".into(),
    );
    report.notes.push(format!(
        "data: {DIRECTORIES} directories of {} MB, Zipf over directories, SpecWeb99's mix of classes and files",
        set::size(1) / 1_000_000
    ));
    report.notes.push(match &version {
        Some(version) => format!("peer: nginx {version}, one process, sendfile, open_file_cache, no log"),
        None => "peer: nginx is MISSING (Debian package nginx): its keys are na".into(),
    });
    report.notes.push("clients are ours, for wrk's ask for one file; `check` has both ask for one".into());
    for (_, measure) in parts {
        measure(&contest, &mut report)?;
    }
    report.order(&KEYS);
    report.keys.push(("rounds", pace.rounds().to_string()));
    report.keys.push(("nginx", version.unwrap_or("na".into())));
    Ok(report)
}

const PARTS: [ExperimentPart<HttpContest>; 5] = [
    ("memory", memory),
    ("disk", disk::measure),
    ("idle", idle),
    ("check", check::measure),
    ("copies", copies::measure),
];

const KEYS: [&str; 10] = [
    "mem64_vs_nginx",
    "mem512_vs_nginx",
    "p99_vs_nginx",
    "disk_vs_nginx",
    "srpt_median_vs_fifo",
    "uniform_price",
    "idle_conn_bytes",
    "load_vs_wrk",
    "copies_4k",
    "copies_256k",
];

impl HttpContest {
    fn new(pace: BenchPace) -> io::Result<Self> {
        let (dir, run) = (ScratchDir::new()?, ScratchDir::for_sockets()?);
        set::make(dir.path(), DIRECTORIES)?;
        let role = |role| WebServer::role(role, dir.path());
        let nginx = match find("nginx") {
            Some(_) => {
                let addr = free()?;
                let child = nginx::local(dir.path(), run.path(), addr)?;
                Some(WebServer { child, addr })
            }
            None => None,
        };
        let servers = [Some(role("web")?), nginx, Some(role("web-threads")?), Some(role("web-events")?)];
        Ok(Self { pace, servers, idle: role("web")?, _dir: dir, _run: run })
    }
}

/// The results of one server for each number of clients.
type LoadResults = Vec<load::LoadResult>;

/// Files in memory, by the number of clients: Figures 13 and 14.
fn memory(contest: &HttpContest, report: &mut BenchReport) -> io::Result<()> {
    let pids: Vec<_> = contest.servers.iter().flatten().map(|web| web.child.pid()).collect();
    CpuPlacement::Cross.arrange(&pids)?;
    let time = contest.pace.of(Duration::from_secs(4), Duration::from_secs(1), Duration::from_millis(50));
    let rounds = contest.pace.rounds();
    let mut curves: Vec<(&'static str, Vec<(f64, f64)>)> =
        NAMES.iter().map(|name| (*name, Vec::new())).collect();
    let mut times: Vec<(&'static str, Vec<(f64, f64)>)> =
        NAMES.iter().map(|name| (*name, Vec::new())).collect();
    for clients in CLIENTS {
        let mut all: [LoadResults; 4] = Default::default();
        // The first round is a warm-up.
        for round in 0..=rounds {
            for (web, seen) in contest.servers.iter().zip(&mut all) {
                let Some(web) = web else { continue };
                let mut mix = RequestMix::new(round as u64, DIRECTORIES);
                let one = load::run(web.addr, clients, &mut mix, time)?;
                if round > 0 {
                    seen.push(one);
                }
            }
        }
        let of =
            |at: usize, figure: fn(&load::LoadResult) -> f64| all[at].iter().map(figure).collect::<Vec<_>>();
        let rate = |at| of(at, load::LoadResult::rate);
        let p99 = |seen: &load::LoadResult| quantile(&seen.times, 0.99).unwrap_or_default();
        let p50 = |seen: &load::LoadResult| quantile(&seen.times, 0.5).unwrap_or_default();
        let row = |what: &str, unit, ours: Vec<f64>, peer: Vec<f64>, limit: Vec<f64>| ReportRow {
            what: format!("{what}, {clients} clients"),
            unit,
            ours,
            peer,
            limit,
        };
        let requests = row("requests, nginx, system calls", "1/s", rate(0), rate(1), rate(3));
        match clients {
            64 => {
                report.key("mem64_vs_nginx", requests.vs_peer());
                report.key("uniform_price", requests.vs_limit().map(|ratio| 1.0 - ratio));
            }
            512 => report.key("mem512_vs_nginx", requests.vs_peer()),
            _ => {}
        }
        report.push(requests);
        report.push(row("requests, the threads' as limit", "1/s", rate(0), rate(1), rate(2)));
        report.push(row("median time, nginx, system calls", "us", of(0, p50), of(1, p50), of(3, p50)));
        let late = row("99th percentile, nginx, system calls", "us", of(0, p99), of(1, p99), of(3, p99));
        if clients == 64 {
            report.key("p99_vs_nginx", late.vs_peer());
        }
        report.push(late);
        for (n, curve) in curves.iter_mut().enumerate() {
            if let Some(rate) = median(&rate(n)) {
                curve.1.push((clients as f64, rate));
            }
        }
        if clients == 64 {
            for (seen, curve) in all.iter().zip(&mut times) {
                let all: Vec<f64> = seen.iter().flat_map(|seen| seen.times.iter().copied()).collect();
                let share = |percent: u32| quantile(&all, f64::from(percent) / 100.0);
                curve.1 =
                    (1..100).filter_map(|percent| Some((share(percent)?, f64::from(percent)))).collect();
            }
        }
    }
    let of = |file, title, x, y, curves: Vec<(&'static str, Vec<(f64, f64)>)>| PlotFigure {
        plot: PlotLabels { file, title, x, y },
        curves: curves.into_iter().filter(|(_, points)| !points.is_empty()).collect(),
    };
    report.figures.push(of(
        "http-clients",
        "Requests a second by clients, 10 MB in memory (Figure 13)",
        "clients",
        "1/s",
        curves,
    ));
    report.figures.push(of(
        "http-times",
        "Distribution of times, 64 clients, 10 MB in memory (Figure 14)",
        "us",
        "percent",
        times,
    ));
    Ok(())
}

/// Measures the memory of conversations that are idle after one answer each.
fn idle(contest: &HttpContest, report: &mut BenchReport) -> io::Result<()> {
    let many = contest.pace.of(IDLE_CONVERSATIONS, IDLE_CONVERSATIONS, 100);
    let memory = || memory_of(&contest.idle);
    let mut mix = RequestMix::new(1, DIRECTORIES);
    let mut open = Vec::new();
    let mut answered = |open: &mut Vec<_>, to: usize| {
        while open.len() < to {
            open.push(load::one(contest.idle.addr, &mut mix)?);
        }
        Ok::<_, io::Error>(())
    };
    // Leave out costs that occur only once, at the first connections.
    answered(&mut open, many / 10)?;
    let before = memory()?;
    answered(&mut open, many)?;
    let each = memory()?.saturating_sub(before) as f64 / (many - many / 10) as f64;
    report.key("idle_conn_bytes", Some(each));
    report.push(ReportRow::counted(
        format!("memory of an idle conversation, of {many}"),
        "bytes",
        each,
        None,
    ));
    Ok(())
}

/// Returns the anonymous resident memory of a server, bytes.
fn memory_of(web: &WebServer) -> io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", web.child.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("the kernel does not say what memory it has"))
}
