//! `rpc`: what a request costs. Ours against diod, and against the same bytes with no protocol.
//!
//! In: a scratch directory with a large file, a small one and a directory of many. Out: rows and keys, each from the
//! file that measures it.

mod bulk;
mod depth1;
mod ls;
mod memory;
mod small;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use rustix::process::Pid;

use crate::args::Pace;
use crate::child::Child;
use crate::peers::diod;
use crate::report::Report;
use crate::scratch::Scratch;
use crate::server::Server;
use crate::{Experiment, place};

pub const EXPERIMENT: Experiment = Experiment {
    name: "rpc",
    what: "latency at depth 1, small operations at depth 32, sequential reads and writes, memory, ls -l; against diod",
    run,
};

/// Who takes part, and the files that are served.
struct Contest {
    pace: Pace,
    ours: Server,
    diod: Option<Server>,
    echo: Limit,
    bulk: Limit,
    /// Bytes of the file [`LARGE`].
    large: u64,
    /// Files in the directory [`MANY`].
    many: u32,
    dir: Scratch,
    sockets: Scratch,
}

struct Limit {
    child: Child,
    socket: PathBuf,
}

const LARGE: &str = "large";
const SMALL: &str = "small";
const MANY: &str = "many";
/// Names of one file; ext4 allows 65,000.
const LINKS: u32 = 10_000;

fn run(pace: Pace, only: Option<&str>) -> io::Result<Report> {
    if let Some(part) = only.filter(|part| !PARTS.iter().any(|(name, _)| name == part)) {
        let names = PARTS.map(|(name, _)| name).join(", ");
        return Err(io::Error::other(format!("rpc has no part `{part}`, but {names}")));
    }
    let mut report = Report::default();
    let contest = Contest::new(pace)?;
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
    for (name, measure) in PARTS {
        if only.is_none_or(|only| only == name) {
            measure(&contest, &mut report)?;
        }
    }
    // In this order, whatever was measured when.
    let mut keys = std::mem::take(&mut report.keys);
    for name in KEYS {
        let found = keys.iter().position(|(key, _)| *key == name);
        let value = found.map_or("na".into(), |found| keys.swap_remove(found).1);
        report.keys.push((name, value));
    }
    report.keys.push(("rounds", pace.rounds().to_string()));
    report.keys.push(("diod", version.unwrap_or("na".into())));
    Ok(report)
}

type Measure = fn(&Contest, &mut Report) -> io::Result<()>;

const PARTS: [(&str, Measure); 5] = [
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

impl Contest {
    fn new(pace: Pace) -> io::Result<Self> {
        let (dir, sockets) = (Scratch::new()?, Scratch::for_sockets()?);
        let large = pace.of(1 << 30, 512 << 20, 4 << 20).min(free_memory()? / 4);
        let many = pace.of(100_000, 60_000, 2_000);
        let file = File::create(dir.path().join(LARGE))?;
        let limit = |role: &str| -> io::Result<Limit> {
            let socket = sockets.path().join(role);
            let file = dir.path().join(LARGE);
            let mut words = vec![OsStr::new(role), socket.as_os_str()];
            words.extend((role == "bulk").then_some(file.as_os_str()));
            Ok(Limit { child: Child::role(&words)?, socket })
        };
        let (echo, bulk) = (limit("echo")?, limit("bulk")?);
        let ours = Server::ours(dir.path(), sockets.path())?;
        let diod = diod::start(dir.path(), sockets.path())?;
        eprintln!("  the servers run; makes a file of {} MiB and {many} names", large >> 20);
        fill(&dir, file, large, many)?;
        Ok(Self { pace, ours, diod, echo, bulk, large: large >> 20 << 20, many, dir, sockets })
    }

    /// Everybody who serves.
    fn servers(&self) -> Vec<Pid> {
        let fixed = [self.ours.pid(), self.echo.child.pid(), self.bulk.child.pid()];
        fixed.into_iter().chain(self.diod.as_ref().map(Server::pid)).collect()
    }
}

/// Makes what is served.
fn fill(dir: &Scratch, mut file: File, large: u64, many: u32) -> io::Result<()> {
    let piece: Vec<u8> = (0..1 << 20).map(|i: u32| (i / 7) as u8).collect();
    for _ in 0..large >> 20 {
        file.write_all(&piece)?;
    }
    // What is not on the disk yet would be written while something is measured.
    file.sync_all()?;
    File::create(dir.path().join(SMALL))?.write_all(&piece[..8192])?;
    std::fs::create_dir(dir.path().join(MANY))?;
    for n in 0..many {
        // A server tells files apart by their names; new inodes would take their time.
        let (first, name) = (n - n % LINKS, dir.path().join(MANY).join(file_name(n)));
        match n % LINKS {
            0 => drop(File::create(name)?),
            _ => std::fs::hard_link(dir.path().join(MANY).join(file_name(first)), name)?,
        }
    }
    File::open(dir.path().join(MANY))?.sync_all()
}

/// The name of a file in [`MANY`].
fn file_name(n: u32) -> String {
    format!("f{n:07}")
}

fn free_memory() -> io::Result<u64> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("the kernel does not say what memory is free"))
}
