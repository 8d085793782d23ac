//! `rpc`: the cost of a request. Ours against diod, and against the same bytes without a protocol.
//!
//! In: a scratch directory with a large file, a small one and a directory of many. Out: rows and keys, each from the
//! file that measures it.

mod bulk;
mod depth1;
mod ls;
mod memory;
mod small;

use std::fs::File;
use std::io;

use rustix::process::Pid;

use crate::args::BenchPace;
use crate::files::{LARGE, fill};
use crate::limit::LimitServer;
use crate::parts::{ExperimentPart, chosen};
use crate::peers::diod;
use crate::report::BenchReport;
use crate::scratch::ScratchDir;
use crate::server::MeasuredServer;
use crate::{BenchExperiment, place};

pub const EXPERIMENT: BenchExperiment = BenchExperiment {
    name: "rpc",
    what: "latency at depth 1, small operations at depth 32, sequential reads and writes, memory, ls -l; against diod",
    run,
};

/// The contestants, and the served files.
struct RpcContest {
    pace: BenchPace,
    ours: MeasuredServer,
    diod: Option<MeasuredServer>,
    echo: LimitServer,
    bulk: LimitServer,
    /// Size of the file [`LARGE`], bytes.
    large: u64,
    /// Number of files in the directory `MANY`.
    many: u32,
    dir: ScratchDir,
    sockets: ScratchDir,
}

fn run(pace: BenchPace, only: Option<&str>) -> io::Result<BenchReport> {
    let parts = chosen(&PARTS, only)?;
    let mut report = BenchReport::default();
    let contest = RpcContest::new(pace)?;
    let version = diod::version();
    let cores = place::count();
    report.notes.push(format!("{cores} processors; each row says where client and server run"));
    report.notes.push(match &version {
        Some(version) => format!("peer: diod {version}; its memory: same files, same connections"),
        None => "peer: diod is MISSING (Debian package diod): its keys are na".into(),
    });
    if cores < 2 {
        report.notes.push("one processor: cross is the same core".into());
    }
    for (_, measure) in parts {
        measure(&contest, &mut report)?;
    }
    report.order(&KEYS);
    report.keys.push(("rounds", pace.rounds().to_string()));
    report.keys.push(("diod", version.unwrap_or("na".into())));
    Ok(report)
}

const PARTS: [ExperimentPart<RpcContest>; 5] = [
    ("depth1", depth1::measure),
    ("small", small::measure),
    ("bulk", bulk::measure),
    ("memory", memory::measure),
    ("ls", ls::measure),
];

const KEYS: [&str; 8] = [
    "small32_vs_diod",
    "small32_128conn_vs_diod",
    "depth1_vs_limit",
    "seqread_vs_limit",
    "seqread_vs_diod",
    "seqwrite_vs_diod",
    "idle_conn_bytes",
    "fid_bytes",
];

impl RpcContest {
    fn new(pace: BenchPace) -> io::Result<Self> {
        let (dir, sockets) = (ScratchDir::new()?, ScratchDir::for_sockets()?);
        let large = pace.of(1 << 30, 512 << 20, 4 << 20).min(free_memory()? / 4);
        let many = pace.of(100_000, 60_000, 2_000);
        File::create(dir.path().join(LARGE))?;
        let large_file = dir.path().join(LARGE);
        let echo = LimitServer::start("echo", sockets.path(), &[])?;
        let bulk = LimitServer::start("bulk", sockets.path(), &[large_file.as_os_str()])?;
        let ours = MeasuredServer::ours(dir.path(), sockets.path())?;
        let diod = diod::start(dir.path(), sockets.path())?;
        eprintln!("  the servers run; makes a file of {} MiB and {many} names", large >> 20);
        fill(dir.path(), large, many)?;
        Ok(Self { pace, ours, diod, echo, bulk, large: large >> 20 << 20, many, dir, sockets })
    }

    /// Returns all servers.
    fn servers(&self) -> Vec<Pid> {
        let fixed = [self.ours.pid(), self.echo.child.pid(), self.bulk.child.pid()];
        fixed.into_iter().chain(self.diod.as_ref().map(MeasuredServer::pid)).collect()
    }
}

fn free_memory() -> io::Result<u64> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("the kernel does not say what memory is free"))
}
