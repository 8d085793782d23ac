//! `mux`: the cost of a multiplexer between a client and its servers, and its growth with clients, servers, mount
//! points and union members (Hickey, Figures 8 to 12).
//!
//! In: muxes, in-memory trees and host directories, each in a process of its own behind a unix socket. Out: rows, keys
//! and figures, each from the file that measures it.

mod growth;
mod hop;
mod memory;
mod names;
mod scaling;
mod stalled;
mod suite;

use std::ffi::OsStr;
use std::io;

use crate::args::BenchPace;
use crate::parts::{ExperimentPart, chosen};
use crate::peers::diod;
use crate::report::{BenchRace, BenchReport, ReportRow, interleave};
use crate::scratch::ScratchDir;
use crate::server::MeasuredServer;
use crate::{BenchExperiment, place};
use growth::CostGrowth;

pub const EXPERIMENT: BenchExperiment = BenchExperiment {
    name: "mux",
    what: "a relay's latency, throughput and memory; latency by clients, servers, mount points, union members; a stall",
    run,
};

/// The resources of a part; each part has its own.
struct MuxContest {
    pace: BenchPace,
    sockets: ScratchDir,
}

fn run(pace: BenchPace, only: Option<&str>) -> io::Result<BenchReport> {
    let parts = chosen(&PARTS, only)?;
    let mut report = BenchReport::default();
    let version = diod::version();
    report.notes.push(format!("{} processors; each row says where who runs", place::count()));
    report.notes.push("peer: the same without a mux, the client asks the servers itself".into());
    report.notes.push(match &version {
        Some(version) => format!("diod as a mounted server: {version}"),
        None => "diod as a mounted server is MISSING (Debian package diod): no rows; no key needs it".into(),
    });
    for (_, measure) in parts {
        measure(&MuxContest { pace, sockets: ScratchDir::for_sockets()? }, &mut report)?;
    }
    report.order(&KEYS);
    report.keys.push(("rounds", pace.rounds().to_string()));
    Ok(report)
}

const PARTS: [ExperimentPart<MuxContest>; 9] = [
    ("hop", hop::measure),
    ("read1m", hop::measure_read),
    ("clients", scaling::clients),
    ("servers", scaling::servers),
    ("both", scaling::both),
    ("walk", names::walk),
    ("union", names::union),
    ("stalled", stalled::measure),
    ("memory", memory::measure),
];

const KEYS: [&str; 12] = [
    "hop_depth1_vs_direct",
    "hop_depth32_vs_direct",
    "read1m_vs_direct",
    "clients_growth",
    "servers_growth",
    "both_growth",
    "walk_growth",
    "union_growth",
    "stalled_p99_ratio",
    "idle_client_bytes",
    "idle_upstream_bytes",
    "cfid_bytes",
];

impl MuxContest {
    /// Starts an in-memory tree; `name` is that of its socket.
    fn ram(&self, name: &str) -> io::Result<MeasuredServer> {
        MeasuredServer::role("ram", &[], self.sockets.path().join(name))
    }

    /// Runs the rounds of many races.
    fn interleave(&self, races: Vec<BenchRace<'_>>) -> io::Result<Vec<ReportRow>> {
        interleave(self.pace.rounds(), self.pace.patience(), races)
    }

    /// Starts a mux with the name space of `script`.
    fn mux(&self, name: &str, script: &str) -> io::Result<MeasuredServer> {
        let path = self.sockets.path().join(format!("{name}.ns"));
        std::fs::write(&path, script)?;
        MeasuredServer::role("mux", &[OsStr::new(&path)], self.sockets.path().join(name))
    }
}
