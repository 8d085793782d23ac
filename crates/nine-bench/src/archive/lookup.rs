//! A lookup in a large directory beside one in a small directory; the memory of an archive with many files; and its
//! time to open after a crash.

use std::io;
use std::time::{Duration, Instant};

use nine_proto::msg::Tmsg;
use nine_proto::{Fid, Tag};
use rustix::process::getegid;

use super::serve::ArchiveShape;
use super::stand::ArchiveTestbed;
use super::work::{self, FileVisits, SeededRandom};
use super::{ArchiveContest, crash};
use crate::files::file_name;
use crate::place::CpuPlacement;
use crate::report::{BenchRace, BenchReport, BenchTurn, ReportRow, interleave};
use crate::wire::{CycleLoad, MessageCycle, encoded};

const DEPTH: u16 = 32;
const DIR: Fid = Fid(1);
const S_IFREG: u32 = 0o100_000;

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    CpuPlacement::Free.arrange(&[])?;
    let (few, many) = contest.pace.of((1000, 1_000_000), (1000, 200_000), (100, 2000));
    let stand = ArchiveTestbed::archive(ArchiveShape::of(u64::from(many) / 400 + 256, 1024))?;
    let before = stand.server().memory()?;
    for (name, count) in [("few", few), ("many", many)] {
        let mut conn = stand.server().dial()?;
        let gid = getegid().as_raw();
        conn.call(&Tmsg::Mkdir { dfid: Fid(0), name: name.as_bytes(), mode: 0o755, gid })?;
        conn.walk(Fid(0), DIR, name.as_bytes())?;
        let begun = Instant::now();
        CycleLoad::new(vec![conn], DEPTH, |_, tag| FileCreator { tag, count })?.run(Duration::ZERO)?;
        stand.sync()?;
        let speed = f64::from(count) / begun.elapsed().as_secs_f64() / 1e3;
        report.push(ReportRow::counted(format!("mknod, {count} in one directory"), "k/s", speed, None));
    }
    let grown = stand.server().memory()?.saturating_sub(before) as f64 / f64::from(1 << 20);
    report.push(ReportRow::counted(format!("memory, grown by {many} files"), "MiB", grown, None));
    let million = grown / f64::from(few + many) * 1e6;
    report.push(ReportRow::counted("memory of a million files", "MiB", million, None));
    report.key("memory_per_million_files_mib", Some(million));

    let visit = |name: &str, files: u32| -> io::Result<BenchTurn<'static>> {
        let mut conn = stand.server().dial()?;
        conn.walk(Fid(0), DIR, name.as_bytes())?;
        let visits = |_, tag: Tag| FileVisits {
            tag,
            chance: SeededRandom::new(u64::from(tag.0)),
            dir: DIR,
            files,
            read: None,
        };
        let (mut load, turn) = (CycleLoad::new(vec![conn], DEPTH, visits)?, contest.pace.turn());
        Ok(Box::new(move || Ok(1e9 / load.run(turn)?)))
    };
    CpuPlacement::Same.arrange(&[stand.server().pid()])?;
    let race = BenchRace {
        what: format!("walk and clunk in {many} / in {few}, depth {DEPTH}, same core"),
        unit: "ns",
        turns: [Some(visit("many", many)?), Some(visit("few", few)?), None],
    };
    let rows = interleave(contest.pace.rounds(), contest.pace.patience(), vec![race])?;
    report.key("lookup_1m_vs_1k", rows[0].vs_peer());
    report.extend(rows);
    CpuPlacement::Free.arrange(&[stand.server().pid()])?;
    work::write(&stand.server(), "work", 0, 1 << 20, 1)?;
    crash::measure(contest, &stand, "work", report)
}

/// Creates empty files.
struct FileCreator {
    tag: Tag,
    count: u32,
}

impl MessageCycle for FileCreator {
    fn put(&mut self, n: usize, out: &mut Vec<u8>) -> bool {
        let file = n as u32 * u32::from(DEPTH) + u32::from(self.tag.0);
        if file >= self.count {
            return false;
        }
        let (name, gid) = (file_name(file), getegid().as_raw());
        let (mode, major, minor) = (S_IFREG | 0o644, 0, 0);
        let node = Tmsg::Mknod { dfid: DIR, name: name.as_bytes(), mode, major, minor, gid };
        out.extend_from_slice(&encoded(&node, self.tag));
        true
    }
}
