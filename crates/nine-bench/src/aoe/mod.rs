//! `aoe`: disks over an Ethernet. Our initiator with our target and with vblade, beside NBD over TCP and beside bare
//! frames.
//!
//! In: a file in the page cache; cables between two network name spaces, some with a rate and loss. Out: throughput and
//! latency by size, depth, order, direction and MTU; the gain of two paths, and the cost of loss.
//!
//! Always holds: servers are in one name space on the first processor, clients in the other on the last one. Only one
//! contestant works at a time.

mod cables;
mod job;
mod lane;
mod lanes;
mod nbd;
mod ours;
mod raw;
mod sizes;

use std::cell::{OnceCell, RefCell};
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use nine_sim::delay::Side;
use rustix::process::Pid;

use crate::args::BenchPace;
use crate::child::ChildProcess;
use crate::parts::{ExperimentPart, chosen};
use crate::peers::{PeerServer, nbdkit, vblade};
use crate::place::CpuPlacement;
use crate::report::{BenchReport, BenchTurn};
use crate::scratch::ScratchDir;
use crate::{BenchExperiment, command};
use cables::{EtherCable, EtherTestbed};
use job::{BlockJob, BlockOp, OffsetOrder};
use lanes::AoeLinks;

pub const EXPERIMENT: BenchExperiment = BenchExperiment {
    name: "aoe",
    what: "disks over an Ethernet, 4 KiB to 1 MiB, depth 1 to 64, two paths, loss; against vblade, NBD and bare frames",
    run,
};

const PARTS: [ExperimentPart<AoeContest>; 9] = [
    ("read64k", sizes::read64k),
    ("rand4k", sizes::rand4k),
    ("depth1", sizes::depth1),
    ("write64k", sizes::write64k),
    ("offloads", sizes::offloads),
    ("seed", sizes::seed),
    ("loss", lanes::loss),
    ("paths", lanes::paths),
    ("sizes", sizes::sweep),
];

const KEYS: [&str; 12] = [
    "read64k_vs_raw",
    "read64k_vs_nbd",
    "target_vs_vblade",
    "rand4k_vs_nbd",
    "depth1_vs_raw",
    "twopath",
    "loss1_vs_clean",
    "loss01_vs_clean",
    "twopath_back_s",
    "write64k_vs_raw",
    "write64k_vs_nbd",
    "depth1_vs_nbd",
];

/// The limit of bare frames, in the far name space.
pub fn answer(interface: &OsStr) -> io::Result<()> {
    raw::answer(interface.to_str().ok_or(io::ErrorKind::InvalidInput)?)
}

fn run(pace: BenchPace, only: Option<&str>) -> io::Result<BenchReport> {
    let parts = chosen(&PARTS, only)?;
    let mut report = BenchReport::default();
    let (nbdkit, vblade) = (nbdkit::version(), vblade::version());
    match AoeContest::new(pace) {
        Ok(contest) => {
            contest.say(&mut report, nbdkit.as_deref(), vblade.as_deref());
            for (_, measure) in parts {
                measure(&contest, &mut report)?;
            }
        }
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            report.notes.push(format!("MISSING, and all keys are na: {error}"));
        }
        Err(error) => return Err(error),
    }
    report.order(&KEYS);
    report.keys.push(("rounds", pace.rounds().to_string()));
    report.keys.push(("nbdkit", nbdkit.unwrap_or("na".into())));
    report.keys.push(("vblade", vblade.unwrap_or("na".into())));
    Ok(report)
}

/// The contestants. Fields are dropped in order, so servers stand before their cables.
struct AoeContest {
    pace: BenchPace,
    /// Our target, while it is needed: the file must not be open elsewhere.
    target: RefCell<Option<ChildProcess>>,
    nbd: Option<PeerServer>,
    /// By MTU, 9000 first.
    plain: [AoeTestbed; 2],
    /// vblade with as many buffers as our target has.
    deep: OnceCell<AoeTestbed>,
    /// By MTU, 9000 first.
    lanes: [OnceCell<AoeLinks>; 2],
    program: PathBuf,
    file: PathBuf,
    ground: EtherTestbed,
    _dir: ScratchDir,
    run: ScratchDir,
}

/// Cables and their servers.
struct AoeTestbed {
    ours: EtherCable,
    /// Another cable of the same kind, because each target receives all AoE frames of its cable.
    theirs: EtherCable,
    vblade: Option<ChildProcess>,
    frames: Option<ChildProcess>,
}

impl AoeContest {
    fn new(pace: BenchPace) -> io::Result<Self> {
        let (dir, run) = (ScratchDir::new()?, ScratchDir::for_sockets()?);
        let (file, program) = (dir.path().join("disk"), command::program()?);
        job::fill(&file, pace.of(512, 512, 8) << 20)?;
        // Threads may use any processor until they are placed.
        CpuPlacement::Free.arrange(&[])?;
        let ground = EtherTestbed::new(run.path())?;
        let nbd = if ground.has_ethtool() { nbdkit::start(&ground.far, &file, run.path())? } else { None };
        let stand = |number, mtu| -> io::Result<AoeTestbed> {
            let (ours, theirs) = (ground.direct(number, mtu, false)?, ground.direct(number + 1, mtu, false)?);
            let log = run.path().join(format!("frames-{number}.log"));
            let frames = ground.far.role(Side::There, &["frames".into(), (&ours.name).into()], &log)?;
            let vblade = vblade::start(&ground.far, &theirs.name, &file, vblade::BUFFERS, run.path())?;
            Ok(AoeTestbed { ours, theirs, vblade, frames: Some(frames) })
        };
        let plain = [stand(1, 9000)?, stand(3, 1500)?];
        let (target, deep, lanes) = (RefCell::default(), OnceCell::new(), Default::default());
        let contest = Self { pace, target, nbd, plain, deep, lanes, program, file, ground, _dir: dir, run };
        eprintln!("  the servers run");
        Ok(contest)
    }

    /// Restarts our target on these cables only, and places all processes, `others` included.
    fn serve(&self, cables: &[&EtherCable], others: &[&ChildProcess]) -> io::Result<()> {
        let mut target = self.target.borrow_mut();
        *target = None;
        let ours = ours::target(&self.ground, &self.program, &self.file, cables, self.run.path())?;
        let stands = self.plain.iter().chain(self.deep.get());
        let children = stands.flat_map(|stand| stand.frames.iter().chain(&stand.vblade));
        let children = children.chain(self.nbd.as_ref().map(|nbd| &nbd.child));
        let children = children.chain(others.iter().copied()).chain([&ours]);
        CpuPlacement::Cross.arrange(&children.map(ChildProcess::pid).collect::<Vec<Pid>>())?;
        *target = Some(ours);
        Ok(())
    }

    fn say(&self, report: &mut BenchReport, nbdkit: Option<&str>, vblade: Option<&str>) {
        let notes = &mut report.notes;
        notes.push(format!(
            "the file: {} MiB on the disk that is built on, in the page cache; reads from its lower half, writes to \
             its upper half, none flushed",
            self.pace.of(512, 512, 8)
        ));
        notes.push(
            "servers cross: in a name space of their own on the first processor; who asks, one thread, on the last"
                .into(),
        );
        notes.push(
            "cables: veth, of the MTU that each row begins with; ours, NBD and bare frames on one, vblade on \
             another"
                .into(),
        );
        notes.push(match nbdkit {
            Some(version) if self.nbd.is_some() => format!(
                "peer: nbdkit {version}, file plugin, 16 threads, over TCP, without segmentation offloads unless \
                 said; the client is this program's"
            ),
            Some(_) => "peer: ethtool is MISSING (Debian package ethtool): nbdkit's keys are na".into(),
            None => "peer: nbdkit is MISSING (Debian package nbdkit): its keys are na".into(),
        });
        notes.push(match vblade {
            Some(version) => {
                format!(
                    "peer: vblade {version} under our initiator, {} buffers, its default",
                    vblade::BUFFERS
                )
            }
            None => "peer: vblade is MISSING (Debian package vblade): its keys are na".into(),
        });
        notes.push(
            "limit: bare frames of the same lengths by the same calls, 64 under way, nothing behind them; beside \
             vblade: the file itself, by pread and pwrite"
                .into(),
);
    }

    fn job(&self, op: BlockOp, order: OffsetOrder, size: u64, depth: usize) -> BlockJob {
        let (file, time) = (self.pace.of(512, 512, 8) << 20, self.pace.turn());
        BlockJob { op, order, size, depth, file, warm: time / 5, time }
    }

    /// Turns on a stand.
    fn ours<'c>(&'c self, at: &'c AoeTestbed, job: BlockJob) -> Option<BenchTurn<'c>> {
        Some(Box::new(move || ours::turn(&self.ground, &[&at.ours], ours::OURS, &job)))
    }

    fn vblade<'c>(&'c self, at: &'c AoeTestbed, job: BlockJob) -> Option<BenchTurn<'c>> {
        at.vblade.as_ref()?;
        Some(Box::new(move || ours::turn(&self.ground, &[&at.theirs], ours::THEIRS, &job)))
    }

    fn nbd<'c>(&'c self, cable: &'c EtherCable, job: BlockJob) -> Option<BenchTurn<'c>> {
        let port = self.nbd.as_ref()?.port;
        Some(Box::new(move || nbd::turn(&self.ground, cable, port, &job)))
    }

    fn raw<'c>(&'c self, at: &'c AoeTestbed, job: BlockJob) -> Option<BenchTurn<'c>> {
        Some(Box::new(move || raw::turn(&self.ground, &at.ours, &job)))
    }

    fn file(&self, job: BlockJob) -> Option<BenchTurn<'_>> {
        Some(Box::new(move || job::directly(&self.file, &job)))
    }
}
